"""How long one engine step takes: the sum of its kernels, plus what lies between them.

A step computes some prompt tokens and one token for each running sequence. Everything but attention depends only on
the number of tokens: the matrix products of each layer, the experts those tokens visit, the all-reduces, norms and
activations. That part is tabulated once for a deployment (``StepModel``); attention is a formula in batch and context.
A step is then two look-ups and one formula, whatever the model:

    step = layers(tokens) + head(sequences) + adapters(sequences) + attention(batch, context) + attention(prompt chunk)
           + overhead

Kernel times come from curves fitted on measured kernels (``matrix_kernels``, ``attention_kernels``). Arguments may be
numpy arrays that broadcast. With pipeline stages, a step is one pass of a share of the batch through all of them.
"""

from copy import copy
from functools import lru_cache
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokonomics.catalog.models import (
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    MoeMlp,
)
from tokonomics.catalog.precision import Precision, kv_bytes_per_element
from tokonomics.nouns import Noun
from tokonomics.physics.attention_kernels import (
    decode_attention_s,
    mla_decode_s,
    mla_prefill_s,
    prefill_attention_s,
)
from tokonomics.physics.calibration import Correction, Kernels, active, engine_of, profile_key
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.efficiency import efficiency
from tokonomics.physics.matrix_kernels import GemmCurve, all_reduce_s, experts_s, gemm_s
from tokonomics.physics.overhead import Layers, Overhead, layers, overhead
from tokonomics.physics.sharding import adapter_bytes, dense_products, kv_elements_per_token, step_weight_bytes

Array = NDArray[np.float64]

_MOST_TOKENS = 1 << 20
_TOKENS = np.unique(np.concatenate([np.arange(1, 33), np.geomspace(32, _MOST_TOKENS, 220).round()]))
"""Where the token-wise part of a step is tabulated; between two points it is close to straight."""
_HUGE = 65_536.0
"""Rows and columns of a matrix larger than any cache."""

BARE_MATRICES = "torch"
BARE_ATTENTION = "pytorch"
"""Whose kernels a bare step runs: no engine around it, plain PyTorch."""


class StepParts(Noun):
    """Where the time of one step goes, in seconds; the parts sum to the step."""

    weights_s: float
    """Reading the weights."""
    kv_s: float
    """Attention of the running sequences: reading their KV cache."""
    compute_s: float
    """Matrix products beyond the reading of weights, and attention inside prompts."""
    communication_s: float
    overhead_s: float
    """Norms, launches, and the engine's own time."""
    step_s: float


class StepModel:
    """The step time of one deployment, compiled: made once, asked millions of times."""

    def __init__(self, deployment: Deployment, engine: Overhead | None, between: Layers | None = None) -> None:
        model, gpu, tp = deployment.model, deployment.gpu, deployment.tp
        self.deployment = deployment
        profile = active()
        self.own = profile.kernels_of(gpu) if profile else None
        self.correction: Correction | None = None
        self.engine = engine
        self.between = between or _between(self.own)
        self.backend = deployment.engine.key if engine else BARE_ATTENTION
        kernels = deployment.engine.key if engine else BARE_MATRICES
        self.mixers = tuple((group.count, group.mixer) for group in model.groups if group.mixer is not None)
        nothing = np.zeros_like(_TOKENS)
        own, groups = self.own, model.groups
        self._matrices = sum((_matrices_s(group, deployment, kernels, _TOKENS, own) for group in groups), nothing)
        self._small = sum((_small_ops_s(group, deployment, self.between, _TOKENS, own) for group in groups), nothing)
        self._communication = _communication_s(deployment, _TOKENS, own)
        self._head = gemm_s(gpu, Precision.bf16, _TOKENS, model.vocab / tp, model.hidden, kernels, _bf16(own))
        self._per_token = self._matrices + self._small + self._communication
        self._adapter_s = _adapter_s(deployment, own)
        drafter = deployment.draft
        self.draft = StepModel(drafter, engine, between) if drafter else None
        found = profile.correction_of(deployment, engine_of(deployment, bool(engine))) if profile else None
        if found:
            self._correct(found)

    def corrected(self, correction: Correction) -> "StepModel":
        """The same kernels, as a server's results correct them; of a model that is not corrected yet."""
        other = copy(self)
        other._correct(correction)
        return other

    def _correct(self, correction: Correction) -> None:
        """Scale what the GPU takes, and put the host's time in place of the engine's own.

        A factor that falls must not make more tokens faster, and none beats the datasheet.
        """
        self.correction = correction
        factor = correction.factor(_TOKENS)
        self._head = self._head * correction.decode
        for name in ("_matrices", "_small", "_communication"):
            setattr(self, name, np.maximum.accumulate(getattr(self, name) * factor))
        self._matrices = np.maximum(self._matrices, _least_s(self.deployment) - self._head[0])
        self._per_token = self._matrices + self._small + self._communication
        if self.engine and correction.step_s is not None:
            added = {"step_s": correction.step_s, "sequence_s": correction.sequence_s or 0.0, "overlapped": False}
            self.engine = self.engine.model_copy(update=added)

    def with_engine(self, engine: Overhead | None) -> "StepModel":
        """The same kernels under another engine's overhead."""
        other = copy(self)
        other.engine = engine
        other.draft = self.draft and self.draft.with_engine(engine)
        return other

    def decode(self, batch: ArrayLike, context: ArrayLike) -> Array:
        """Seconds of a step that adds one token to each of ``batch`` sequences holding ``context`` tokens.

        Of a deployment that drafts: of a round, divided by the tokens it yields.
        """
        speculation = self.deployment.speculation
        if speculation is None:
            return self.step(0, 0, batch, context)
        checked = self._check(batch, context, speculation.tokens + 1)
        share = speculation.draft_share or 0.0
        proposed = self.draft.decode(batch, context) if self.draft else share * self.step(0, 0, batch, context)
        return (speculation.tokens * proposed + checked) / speculation.tokens_per_round

    def _check(self, batch: ArrayLike, context: ArrayLike, tokens: int) -> Array:
        """A step on several tokens of each sequence: their KV is read once for all of them."""
        batch, context = np.broadcast_arrays(self.passing(batch), np.asarray(context, np.float64))
        rows = np.maximum(batch * tokens, 1.0)
        kernels = self.tokens_s(rows) + self.head_s(rows) + self.adapters_s(batch)
        return self.with_host(kernels + self.decode_attention_s(batch, context), batch)

    def prefill(self, tokens: ArrayLike, past: ArrayLike = 0, prompts: ArrayLike = 1) -> Array:
        """Seconds of a step that computes ``tokens`` tokens of one prompt after ``past`` cached ones.

        With several ``prompts`` the tokens are shared out evenly among them.
        """
        return self.step(tokens, past, 0, 0, prompts)

    def step(
        self,
        prompt_tokens: ArrayLike,
        past: ArrayLike,
        batch: ArrayLike,
        context: ArrayLike,
        prompts: ArrayLike = 1,
    ) -> Array:
        """Seconds of a step that holds prompt chunks and a decode batch; either may be empty."""
        prompt, past, batch, context, prompts = np.broadcast_arrays(
            *(np.asarray(each, np.float64) for each in (prompt_tokens, past, self.passing(batch), context, prompts))
        )
        sequences = np.maximum(batch + np.where(prompt > 0, prompts, 0.0), 1.0)
        kernels = self.head_s(sequences) + self.adapters_s(sequences)
        for place, (share, model) in enumerate(self.beside_prompts()):
            computed = (
                model.tokens_s(np.maximum(prompt + batch, 1.0))
                + model.decode_attention_s(batch, context)
                + model.prompt_attention_s(prompt / prompts, past, prompts)
            )
            kernels = kernels + np.where((prompt > 0) | (place == 0), share * computed, 0.0)
        return self.with_host(kernels, batch)

    def passing(self, batch: ArrayLike) -> Array:
        """Sequences of a batch in one pass: the stages' share of them, and a whole one where there are fewer."""
        batch = np.asarray(batch, np.float64)
        return np.asarray(np.maximum(batch / self.deployment.pp, np.minimum(batch, 1.0)))

    def beside_prompts(self) -> list[tuple[float, "StepModel"]]:
        """What computes a step with prompts, and how often: the model; and its draft, which needs the KV as well."""
        speculation = self.deployment.speculation
        if speculation is None:
            return [(1.0, self)]
        return [(1.0, self), (1.0, self.draft) if self.draft else (speculation.draft_share or 0.0, self)]

    def tokens_s(self, tokens: Array) -> Array:
        """Everything but attention and the head, on the GPU: it depends on the number of tokens alone."""
        return np.interp(tokens, _TOKENS, self._per_token)

    def head_s(self, sequences: Array) -> Array:
        """The vocabulary's product, for the last token of each sequence."""
        return np.interp(sequences, _TOKENS, self._head)

    def adapters_s(self, sequences: Array) -> Array:
        """Reading the LoRA adapters beyond the first: each sequence has one, however many tokens of it are computed."""
        others = np.clip(np.minimum(sequences, self.deployment.lora_adapters) - 1, 0.0, None)
        return np.asarray(others * self._adapter_s)

    def parts(self, batch: float, context: float) -> StepParts:
        """One decode step of the model itself, taken apart: a draft adds its own."""
        share = np.float64(self.passing(max(batch, 1.0)))
        matrices = float(np.interp(share, _TOKENS, self._matrices) + np.interp(share, _TOKENS, self._head))
        matrices += float(self.adapters_s(np.asarray(share)))
        weights_s = min(matrices, step_weight_bytes(self.deployment, share) / self._stream_bytes_per_s())
        step_s = float(self.step(0, 0, batch, context))
        kv_s = float(self.decode_attention_s(share, np.float64(context)))
        communication_s = float(np.interp(share, _TOKENS, self._communication))
        return StepParts(
            weights_s=weights_s,
            kv_s=kv_s,
            compute_s=matrices - weights_s,
            communication_s=communication_s,
            overhead_s=step_s - matrices - kv_s - communication_s,
            step_s=step_s,
        )

    def _stream_bytes_per_s(self) -> float:
        """How fast weights stream through a product of one row too large for any cache: the curve's own bandwidth."""
        in_mixer, _ = self.deployment.model.precisions(self.deployment.weights)
        own = self.own.gemm_curve(in_mixer) if self.own else None
        one_row = float(gemm_s(self.deployment.gpu, in_mixer, 1, _HUGE, _HUGE, self.backend, own))
        one_row *= self.correction.decode if self.correction else 1.0
        return _HUGE * _HUGE * in_mixer.bytes_per_weight / one_row

    def decode_attention_s(self, batch: Array | np.float64, context: Array | np.float64) -> Array:
        """Attention of the running sequences, on the GPU; ``batch`` is that of one pass."""
        total = np.zeros(np.broadcast_shapes(np.shape(batch), np.shape(context)))
        for count, mixer in self.mixers:
            taken = _decode_attention_s(mixer, self.deployment, self.backend, batch, context, self.own)
            if self.correction:
                taken = np.maximum(taken * self.correction.decode, _kv_read_s(mixer, self.deployment, batch, context))
            total = total + count * taken
        return np.where(np.asarray(batch) > 0, total, 0.0)

    def prompt_attention_s(self, prompt: Array, past: Array, prompts: Array) -> Array:
        """Attention inside ``prompts`` chunks of ``prompt`` tokens each, on the GPU."""
        if not np.any(prompt > 0):
            return np.zeros(np.shape(prompt))
        total = np.zeros(np.shape(prompt))
        for count, mixer in self.mixers:
            parts = (prompt, past, prompts)
            total = total + count * _prompt_attention_s(mixer, self.deployment, self.backend, *parts, self.own)
        if self.correction:
            total = total * self.correction.prefill
        return np.where(prompt > 0, total, 0.0)

    def with_host(self, gpu_s: Array, batch: Array) -> Array:
        """The step as the engine runs it: the host's work beside the GPU's, or after it."""
        if self.engine is None:
            return gpu_s
        host_s = self.engine.host_s(batch)
        return np.maximum(gpu_s, host_s) if self.engine.overlapped else gpu_s + host_s


def step_model(deployment: Deployment) -> StepModel:
    """The compiled step time of a deployment under its engine as it is today, and under the profile in use."""
    return _step_model(deployment, profile_key())


@lru_cache(maxsize=4096)
def _step_model(deployment: Deployment, profile: str | None) -> StepModel:
    return StepModel(deployment, overhead(deployment.engine))


def decode_step(deployment: Deployment, batch: ArrayLike, context: ArrayLike) -> Array:
    """Seconds of one decode step of a deployment."""
    return step_model(deployment).decode(batch, context)


def prefill(deployment: Deployment, tokens: ArrayLike) -> Array:
    """Seconds to compute a prompt of ``tokens`` tokens in one go, nothing cached."""
    return step_model(deployment).prefill(tokens)


def _between(own: Kernels | None) -> Layers:
    """What lies between kernels: as probed on this GPU, or as we know it."""
    if own and own.layer_s is not None:
        return Layers(layer_s=own.layer_s, source="tokonomics probe")
    return layers()


def _bf16(own: Kernels | None) -> GemmCurve | None:
    return own.gemm_curve(Precision.bf16) if own else None


def _memory_share(deployment: Deployment, own: Kernels | None) -> float:
    return own.memory if own else efficiency(deployment.gpu).memory


def _matrices_s(group: LayerGroup, deployment: Deployment, backend: str, tokens: Array, own: Kernels | None) -> Array:
    """Matrix products of a group of layers: projections, feed-forward, router, experts."""
    total = np.zeros_like(tokens)
    for n, k, weights in dense_products(group, deployment):
        total = (
            total
            + gemm_s(deployment.gpu, weights, tokens, n, k, backend, own.gemm_curve(weights) if own else None)
            + _adapters_s(deployment, tokens, n, k, backend, own)
        )
    if isinstance(group.mlp, MoeMlp):
        size = (group.mlp.experts, deployment.model.hidden)
        router = gemm_s(deployment.gpu, Precision.bf16, tokens, *size, backend, _bf16(own))
        total = (
            total
            + router
            + experts_s(
                deployment.gpu,
                deployment.weights,
                tokens,
                hidden=group.mlp.latent or deployment.model.hidden,
                intermediate=group.mlp.intermediate,
                active=group.mlp.active_experts,
                experts=group.mlp.experts,
                gated=group.mlp.gated,
                tp=deployment.tp // deployment.ep,
                ep=deployment.ep,
                backend=backend,
            )
        )
    return group.count * total


@lru_cache(maxsize=64)
def _least_s(deployment: Deployment) -> Array:
    """What the datasheet allows: weights read once at full bandwidth, dense products at peak FLOP/s."""
    gpu = deployment.gpu
    read = np.array([step_weight_bytes(deployment, each) for each in _TOKENS]) / gpu.bandwidth_bytes_per_s
    flops_s = sum(
        group.count * 2.0 * n * k / gpu.peak_flops(weights)
        for group in deployment.model.groups
        for n, k, weights in dense_products(group, deployment)
    )
    return np.maximum(read, _TOKENS * flops_s)


def _kv_read_s(
    mixer: Mixer, deployment: Deployment, batch: Array | np.float64, context: Array | np.float64
) -> Array | float:
    """The cached keys and values of one layer, read once at full bandwidth."""
    if not isinstance(mixer, GroupedAttention | LatentAttention):
        return 0.0
    window = mixer.window if isinstance(mixer, GroupedAttention) else None
    seen = np.minimum(context, window) if window else context
    width = kv_elements_per_token(mixer, deployment.tp) * kv_bytes_per_element(deployment.kv)
    return np.asarray(batch * seen * width / deployment.gpu.bandwidth_bytes_per_s)


def _adapters_s(
    deployment: Deployment, tokens: Array, n: float, k: float, backend: str, own: Kernels | None
) -> Array | float:
    """LoRA beside one dense product, with one adapter for all tokens: down to the rank and up again."""
    rank = deployment.lora_rank
    if not rank:
        return 0.0
    gpu, curve, bf16 = deployment.gpu, _bf16(own), Precision.bf16
    return gemm_s(gpu, bf16, tokens, rank, k, backend, curve) + gemm_s(gpu, bf16, tokens, n, rank, backend, curve)


def _adapter_s(deployment: Deployment, own: Kernels | None) -> float:
    """Streaming the weights of one adapter more, over all layers."""
    one = deployment.model_copy(update={"lora_adapters": 1})
    bandwidth = deployment.gpu.bandwidth_bytes_per_s * _memory_share(deployment, own)
    return adapter_bytes(one) * deployment.pp / bandwidth


def _small_ops_s(
    group: LayerGroup, deployment: Deployment, between: Layers, tokens: Array, own: Kernels | None
) -> Array:
    """Norms, rotary embedding, activation and residual of a group: bytes through memory, and launches.

    A layer reads and writes the residual stream around two norms (eight times the hidden width), touches queries, keys
    and values once each way, and reads two halves of the feed-forward to write one.
    """
    model, tp = deployment.model, deployment.tp
    touched = 8.0 * model.hidden
    if isinstance(group.mixer, GroupedAttention):
        touched += 2 * (group.mixer.heads + 2 * group.mixer.kv_heads) * group.mixer.head_dim / tp
    if isinstance(group.mlp, DenseMlp):
        touched += 3 * group.mlp.intermediate / tp
    gpu = deployment.gpu
    moved = tokens * touched * Precision.bf16.bytes_per_weight
    share = _memory_share(deployment, own)
    return group.count * (_blocks(group) / 2 * between.layer_s + moved / (gpu.bandwidth_bytes_per_s * share))


def _blocks(group: LayerGroup) -> int:
    """A mixer and a feed-forward make two blocks of a layer; some hybrids have layers of one."""
    return (group.mixer is not None) + (group.mlp is not None)


def _communication_s(deployment: Deployment, tokens: Array, own: Kernels | None) -> Array:
    """Two all-reduces a layer, after attention and after the feed-forward; and the hops between stages."""
    total = np.zeros_like(tokens)
    message = tokens * deployment.model.hidden * Precision.bf16.bytes_per_weight
    if deployment.tp > 1:
        sums = sum(group.count * _blocks(group) for group in deployment.model.groups)
        link = own.link_curve(deployment.gpu, deployment.tp) if own else None
        total = total + sums * all_reduce_s(deployment.gpu, deployment.tp, message, link)
    if deployment.pp > 1:
        total = total + (deployment.pp - 1) * message / deployment.gpu.pcie_bytes_per_s
    return total


class _Heads(TypedDict):
    """One rank's share of grouped attention."""

    heads: float
    kv_heads: float
    head_dim: int
    window: int | None


def _heads(mixer: GroupedAttention, tp: int) -> _Heads:
    kv_heads = max(mixer.kv_heads / tp, 1)
    return _Heads(heads=mixer.heads / tp, kv_heads=kv_heads, head_dim=mixer.head_dim, window=mixer.window)


def _decode_attention_s(
    mixer: Mixer,
    deployment: Deployment,
    backend: str,
    batch: Array | np.float64,
    context: Array | np.float64,
    own: Kernels | None,
) -> Array:
    gpu, kv, tp = deployment.gpu, deployment.kv, deployment.tp
    if isinstance(mixer, GroupedAttention):
        heads = _heads(mixer, tp)
        # The probe times PyTorch's kernels: a bare step's, and no engine's.
        curve = own.decode_curve(**heads) if own and backend == BARE_ATTENTION else None
        return decode_attention_s(gpu, kv, batch, context, backend=backend, own=curve, **heads)
    if isinstance(mixer, LatentAttention):
        ranks = {"kv_rank": mixer.kv_rank, "rope_dim": mixer.rope_dim}
        return mla_decode_s(gpu, kv, batch, context, heads=mixer.heads / tp, backend=backend, **ranks)
    # A recurrent state is read and written back once a step, whatever the context.
    moved = 2.0 * mixer.state_bytes / tp * np.asarray(batch)
    return np.asarray(moved / (gpu.bandwidth_bytes_per_s * _memory_share(deployment, own)))


def _prompt_attention_s(
    mixer: Mixer, deployment: Deployment, backend: str, prompt: Array, past: Array, prompts: Array, own: Kernels | None
) -> Array:
    gpu, kv, tp = deployment.gpu, deployment.kv, deployment.tp
    if isinstance(mixer, GroupedAttention):
        curve = own.prefill_curve(mixer.head_dim, mixer.window) if own and backend == BARE_ATTENTION else None
        return prefill_attention_s(
            gpu, kv, prompt, past, sequences=prompts, backend=backend, own=curve, **_heads(mixer, tp)
        )
    if isinstance(mixer, LatentAttention):
        ranks = {"kv_rank": mixer.kv_rank, "rope_dim": mixer.rope_dim}
        dims = {"nope_dim": mixer.nope_dim, "value_dim": mixer.value_dim}
        heads = mixer.heads / tp
        return mla_prefill_s(gpu, kv, prompt, past, heads=heads, sequences=prompts, backend=backend, **ranks, **dims)
    return np.zeros(np.shape(prompt))
