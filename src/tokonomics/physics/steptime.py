"""Compute how long one engine step takes: the sum of its kernels, plus the time between them.

A step computes some prompt tokens and one token for each running sequence. Everything but attention depends only on
the number of tokens: the matrix products of each layer, the experts those tokens visit, the all-reduces, norms and
activations. That part is tabulated once for a deployment (``StepModel``); attention is a formula in batch and context.
A step is then two look-ups and one formula, whatever the model:

    step = layers(tokens) + experts(tokens) + head(sequences) + adapters(sequences)
           + attention(batch, context) + attention(prompt chunk) + overhead

plus the host that launches it (``overhead``), beside the GPU or after it. ``operations`` tells what each operation
takes. Arguments may be numpy arrays that broadcast. With pipeline stages, a step is one pass of a part of the batch
through all of them.
"""

import math
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike

from tokonomics.catalog.layers import CompressedAttention, LatentAttention, MoeMlp, Precision
from tokonomics.physics.calibration import Correction, Kernels, active, profile_key
from tokonomics.physics.curves import Array
from tokonomics.physics.deployment import Deployment, DraftMethod, EngineFlags, Speculation
from tokonomics.physics.matrix_kernels import BLOCKS, FUSED, TILE_EDGES
from tokonomics.physics.memory import step_weight_bytes
from tokonomics.physics.operations import (
    BARE_KERNELS,
    BESIDE_TOKENS,
    COOL_FROM,
    QUANTISES,
    LeastKernels,
    Numbers,
    RankKernels,
    layer_share,
)
from tokonomics.physics.overhead import CAPTURED, CAPTURED_PER_SEQUENCE, Layers, Overhead, layers, overhead
from tokonomics.types import Noun

_TOKENS = np.unique(
    np.concatenate(
        [np.arange(1, 33), np.geomspace(32, 2**20, 220).round(), np.exp2(np.arange(21, 28)), TILE_EDGES, TILE_EDGES + 1]
    )
)
"""Numbers of tokens at which the token-wise part of a step is tabulated, up to the longest prompt of any model. Between
two points it is close to a straight line, the closer the more tokens; where tiles are full it may jump."""
_TOKENS.flags.writeable = False  # what is tabulated at them is kept
_SPREADS = 32  # spreads of contexts are rounded to this part, so that similar traffic shares its step times
_HUGE = 65_536.0  # rows and columns of a matrix larger than any cache


class StepParts(Noun):
    """Where the time of one step goes, in seconds; the parts sum to the step."""

    weights_s: float  # reading the weights
    kv_s: float  # attention of the running sequences: reading their KV cache
    compute_s: float  # matrix products beyond the reading of weights, and attention inside prompts
    communication_s: float
    overhead_s: float  # norms, launches, and the engine's own time
    step_s: float


class StepModel:
    """The step time of one deployment, compiled: made once, asked millions of times."""

    def __init__(
        self, deployment: Deployment, engine: Overhead | None, between: Layers | None = None, *, aligned: bool = False
    ) -> None:
        """With ``aligned``, prompts wait until every group of the attention has one, so that all compute at once."""
        self.deployment = deployment
        self.aligned = aligned
        self.engine = engine and with_flags(engine, deployment.flags)
        self.spread = 0.0
        self.correction: Correction | None = None
        profile = active()
        own = profile.kernels_of(deployment.gpu) if profile else None
        if self.engine and own and own.launch_s:
            self.engine = self.engine.on_host(own.launch_s)
        if self.engine and self.engine.older_round_s and deployment.has_own_drafter:
            # vLLM composes no step ahead then: that "will be disabled" (0.26, config/vllm.py).
            self.engine = self.engine.model_copy(update={"overlapped": False})
        backend = deployment.engine.key if engine else BARE_KERNELS
        fused = BLOCKS if deployment.model.is_moe else FUSED
        products = fused if engine and engine.fused else backend
        groups = deployment.model.groups
        self.mixers = tuple((group.count, group.mixer) for group in groups if group.mixer is not None)
        self._tabulate(RankKernels(deployment, backend, products, between or _between(own), own, engine))
        several = not runs_as_one(deployment)
        shares = [(group.count * layer_share(group), several and isinstance(group.mlp, MoeMlp)) for group in groups]
        dense, mixed = (sum(share for share, experts in shares if experts is which) for which in (False, True))
        latent = sum(group.count for group in groups if isinstance(group.mixer, LatentAttention | CompressedAttention))
        self._layers = dense / deployment.pp, mixed / deployment.pp, latent / deployment.pp
        self.draft = StepModel(deployment.draft, engine, between) if deployment.draft else None
        found = profile.correction_of(deployment, engine) if profile else None
        if found:
            self.__dict__.update(self.corrected(found).__dict__)

    def _tabulate(self, kernels: RankKernels) -> None:
        """Tabulate everything but attention by the number of tokens."""
        self.kernels, deployment = kernels, self.deployment
        groups, nothing = deployment.model.groups, np.zeros_like(_TOKENS)
        self._matrices = sum((kernels.matrices_s(group, _TOKENS) for group in groups), nothing)
        self._small = sum((kernels.small_ops_s(group, _TOKENS) for group in groups), nothing)
        self._communication = kernels.communication_s(_TOKENS)
        self._experts, self._exchange = kernels.shared_s(_TOKENS)
        if deployment.spans_machines:
            self._exchange = self._overlapped(self._exchange)
        self._head = kernels.head_s(_TOKENS)
        self._cool = kernels.cool_s(_TOKENS)
        self._adapter_s = kernels.adapter_s()
        self._tower_s = kernels.tower_s()

    def _overlapped(self, exchange: Array) -> Array:
        """Return the visible time of sending to experts if one half of a batch is sent while the other is computed.

        Two-batch overlap (SGLang ``--enable-two-batch-overlap``, vLLM ``--enable-dbo``): two halves take longer to
        compute than the whole, so engines do it only if it is faster. Attention could hide more, but is left out.
        """
        own = self._matrices + self._small + self._communication

        def computed(tokens: Array) -> Array:
            return np.interp(tokens / self.deployment.dp, _TOKENS, own) + np.interp(tokens, _TOKENS, self._experts)

        halves = np.maximum(2 * computed(_TOKENS / 2), 2 * np.interp(_TOKENS / 2, _TOKENS, exchange))
        return np.minimum(exchange, halves - computed(_TOKENS))

    def corrected(self, correction: Correction) -> "StepModel":
        """Return the same kernels with a server's correction; the model must not be corrected yet."""
        narrowed = self.visiting(correction.experts)
        floor, other = narrowed.floor, copy(narrowed)  # the floor is cached: a fit tries many corrections
        other._correct(correction, floor)
        return other

    def visiting(self, share: float) -> "StepModel":
        """Return the same model under traffic that visits only a share of its experts."""
        if share == 1:
            return self
        other, deployment = copy(self), self.deployment.visiting(share)
        other.__dict__.pop("floor", None)
        other.deployment = deployment
        other._tabulate(replace(self.kernels, deployment=deployment))
        return other

    @cached_property
    def floor(self) -> "StepModel":
        """Return the same steps at the datasheet's limits: each byte at full bandwidth or FLOP at peak, no host."""
        other, own = copy(self), self.kernels
        other.engine = other.correction = None
        other._tabulate(LeastKernels(own.deployment, own.backend, own.products, own.between, own.own, own.era))
        other.draft = self.draft and self.draft.floor
        return other

    def _correct(self, correction: Correction, floor: "StepModel") -> None:
        """Scale the GPU's time, and replace the engine's overhead by the host's measured time.

        If the factor falls with the tokens, more tokens still never take less time. No operation beats the datasheet.
        """
        self.correction, factor = correction, correction.factor(_TOKENS)
        for name in ("_matrices", "_small", "_communication", "_experts", "_exchange", "_head"):
            times = getattr(self, name) * (correction.decode if name == "_head" else factor)
            times = np.maximum.accumulate(times) if correction.decode > correction.prefill else times
            setattr(self, name, np.maximum(times, getattr(floor, name)))
        if self.engine:
            self.engine = correction.of_engine(self.engine)

    def with_engine(self, engine: Overhead | None) -> "StepModel":
        """Return the same kernels under another engine's overhead, of an era that runs the same kernels."""
        other = copy(self)
        other.engine = engine
        other.draft = self.draft and self.draft.with_engine(engine)
        return other

    def with_spread(self, spread: float) -> "StepModel":
        """Return the steps of batches whose contexts differ: by this standard deviation, relative to their mean."""
        rounded = round(spread * _SPREADS) / _SPREADS
        return self if rounded == self.spread else _with_spread(self, rounded)

    def holding(self, sequences: int) -> "StepModel":
        """Return the steps of a server that may hold so many sequences: few sequences, few captured sizes."""
        deployment = self.deployment
        if deployment.flags.captured_tokens is not None:
            return self
        each = CAPTURED_PER_SEQUENCE * (1 + (deployment.speculation.tokens if deployment.speculation else 0))
        most = each * -(-sequences // deployment.dp)
        own = 0 if self.engine is None else self.engine.graph_tokens
        return _capturing(self, most) if most < own <= CAPTURED else self

    def decode(self, batch: ArrayLike, context: ArrayLike) -> Array:
        """Return the seconds of a step that adds one token to each of ``batch`` sequences of ``context`` tokens.

        With a draft: those of a round, divided by the tokens it yields.
        """
        return self.decode_apart(batch, context)[1]

    def decode_apart(self, batch: ArrayLike, context: ArrayLike) -> tuple[Array, Array]:
        """Return the time of the same step on the GPU alone, and as the engine runs it."""
        speculation, share = self.deployment.speculation, self.passing(batch)
        if speculation is None:
            # The same sum as in ``step`` without a prompt, in the same order.
            sequences, together = np.maximum(share, 1.0), np.maximum(self.together(batch), 1.0)
            computed = self.tokens_s(sequences) + self.shared_s(together)
            computed = computed + self.decode_attention_s(share, np.asarray(context, np.float64))
            kernels = self.head_s(sequences) + self.adapters_s(sequences) + computed
            return kernels, self.with_host(kernels, share)
        kernels = self._round_s(speculation, batch, context)
        each = speculation.tokens_per_round
        hosted = self.with_host(kernels, share, speculation.tokens + 1, self._host_of_round_s)
        return kernels / each, hosted / each

    @property
    def _host_of_round_s(self) -> float:
        """Return the least that the host works on a round of drafts.

        vLLM 0.26 runs draft models, n-grams and most models of experts in its older runner (``config/vllm.py``,
        ``use_v2_model_runner``). What n-grams take there is told apart (``search_s``).
        """
        drafts = self.deployment.speculation
        if self.engine is None or drafts is None or drafts.method is DraftMethod.ngram:
            return 0.0
        older = self.deployment.has_own_drafter or self.deployment.model.is_moe
        return self.engine.older_round_s if older else 0.0

    def _round_s(self, speculation: Speculation, batch: ArrayLike, context: ArrayLike) -> Array:
        """Return the kernel time of a round: the drafts one after another, and the check of them all.

        It is one step of the engine, composed once. The draft's first pass computes all tokens of the last check, whose
        KV it needs; each later pass computes one token of each sequence (vLLM ``v1/spec_decode/eagle.py``, ``propose``;
        TensorRT-LLM captures drafts and check in one graph: its "DeepSeek R1 MTP Implementation and Optimization",
        2025-05-23).
        """
        several, context = speculation.tokens + 1, np.asarray(context, np.float64)
        share, together = self.passing(batch), self.together(batch)
        checked = self._pass_s(share, together, context, several, several)
        if self.engine:
            searched = speculation.method is DraftMethod.ngram
            checked = checked + (self.engine.search_s if searched else speculation.tokens * self.engine.draft_s)
        if self.draft is None:
            alone = self._pass_s(share, together, context, 1, 1)
            return checked + speculation.tokens * (speculation.draft_share or 0.0) * alone
        first = self.draft._pass_s(share, together, context, several, 1)
        return checked + first + (speculation.tokens - 1) * self.draft._pass_s(share, together, context, 1, 1)

    def _pass_s(self, share: Array, together: Array, context: Array, tokens: int, sampled: int) -> Array:
        """Return the kernel time of one pass on ``tokens`` tokens of each sequence, whose KV is read once for all."""
        kernels = self.tokens_s(np.maximum(share * tokens, 1.0)) + self.shared_s(np.maximum(together * tokens, 1.0))
        kernels = kernels + self.head_s(np.maximum(share * sampled, 1.0)) + self.adapters_s(share)
        return kernels + self.decode_attention_s(share, context)

    def prefill(self, tokens: ArrayLike, past: ArrayLike = 0, prompts: ArrayLike = 1) -> Array:
        """Return the seconds of a step that computes ``tokens`` tokens of one prompt after ``past`` cached ones.

        With several ``prompts``, the tokens are divided evenly among them.
        """
        return self.step(tokens, past, 0, 0, prompts)

    def is_host_bound(self, tokens: float) -> bool:
        """Decide whether the step of one prompt takes only as long as the host needs to launch its kernels."""
        launched = self.launched(np.zeros(()), np.asarray(tokens), np.zeros(()), np.ones(()))
        return bool(launched > 0) and float(self.prefill(tokens)) <= float(launched)

    def step(
        self, prompt_tokens: ArrayLike, past: ArrayLike, batch: ArrayLike, context: ArrayLike, prompts: ArrayLike = 1
    ) -> Array:
        """Return the seconds of a step that holds prompt chunks and a decode batch; either may be empty.

        ``batch`` is that of all pipeline stages; ``prompts``, and their tokens, are those of one pass through them.
        """
        if self.aligned and np.any(np.asarray(prompts) < self.deployment.dp):
            return self._share_of_aligned(prompt_tokens, past, batch, context, prompts)
        sizes = (prompt_tokens, past, batch, context, prompts)
        prompt, past, running, context, many = np.broadcast_arrays(*(np.asarray(size, np.float64) for size in sizes))
        everything, share = prompt + self.together(running), self.passing(running)
        # One group computes a prompt: with fewer prompts than groups, some groups have none.
        fullest = np.clip(many, 1.0, self.deployment.dp)
        prompt, own = prompt / fullest, many / fullest
        sequences = np.maximum(share + np.where(prompt > 0, own, 0.0), 1.0)
        kernels = self.head_s(sequences) + self.adapters_s(sequences)
        for place, (times, model) in enumerate(self.prompt_steps()):
            computed = (
                model.tokens_s(np.maximum(prompt + share, 1.0))
                + model.shared_s(np.maximum(everything, 1.0))
                + model.decode_attention_s(share, context)
                + model.beside_prompts_s(share) * beside_share(prompt - own)
                - np.where(prompt > 0, model.cool_s(prompt) * np.minimum(share / COOL_FROM, 1.0), 0.0)
                + model.prompt_attention_s(prompt / own, past, own)
            )
            kernels = kernels + np.where((prompt > 0) | (place == 0), times * computed, 0.0)
        launched = self.launched(kernels, prompt + share, share, own)
        return launched if np.all(prompt > 0) else np.where(prompt > 0, launched, self.with_host(kernels, share))

    def _share_of_aligned(
        self, prompt_tokens: ArrayLike, past: ArrayLike, batch: ArrayLike, context: ArrayLike, prompts: ArrayLike
    ) -> Array:
        """Count a step with fewer prompts than groups as its share of a step in which every group has one."""
        share = np.minimum(1.0, np.asarray(prompts, np.float64) / self.deployment.dp)
        full = self.step(np.asarray(prompt_tokens) / share, past, batch, context, np.asarray(prompts) / share)
        some = np.maximum(batch, 1)
        drafts = self.deployment.speculation is not None
        plain = self.decode(some, context) if drafts else self.step(0, 0, some, context, self.deployment.dp)
        without = np.where(np.asarray(batch) > 0, plain, 0.0)
        return np.where(np.asarray(prompt_tokens) > 0, share * full + (1 - share) * without, full)

    def passing(self, batch: ArrayLike) -> Array:
        """Return the sequences of a batch in one pass of one group of the attention; at least one, if there is any."""
        batch = np.asarray(batch, np.float64)
        return np.asarray(np.maximum(batch / (self.deployment.pp * self.deployment.dp), np.minimum(batch, 1.0)))

    def together(self, batch: ArrayLike) -> Array:
        """Return the sequences of a batch in one pass of all groups of the attention."""
        batch = np.asarray(batch, np.float64)
        return np.asarray(np.maximum(batch / self.deployment.pp, np.minimum(batch, 1.0)))

    def prompt_steps(self) -> list[tuple[float, "StepModel"]]:
        """Return what computes a step with prompts, and how often: the model, and its draft, which needs the KV."""
        speculation = self.deployment.speculation
        if speculation is None:
            return [(1.0, self)]
        return [(1.0, self), (1.0, self.draft) if self.draft else (speculation.draft_share or 0.0, self)]

    def tokens_s(self, tokens: Array) -> Array:
        """Return the time on one rank of everything but attention, experts and the head; only its tokens matter."""
        return self._looked_up(self._matrices + self._small + self._communication, tokens)

    def _looked_up(self, times: Array, tokens: Array, groups: float = 1.0) -> Array:
        """Look up the time of a pass with so many tokens in each of some groups of the attention.

        A captured one computes all tokens for which it was captured. A mean number of tokens takes the mean time of the
        whole numbers beside it, as graphs and tiles hold whole ones.
        """
        if self.engine is None:
            return np.interp(tokens * groups, _TOKENS, times)
        few = np.floor(tokens)
        low, high = (np.interp(self.engine.captured_tokens(each) * groups, _TOKENS, times) for each in (few, few + 1))
        return np.asarray(low + (tokens - few) * (high - low))

    def cool_s(self, tokens: Array) -> Array:
        """Return what of that a pass with this many prompt tokens gains if answers run beside it, but few."""
        gained = np.interp(tokens, _TOKENS, self._cool)
        return gained * self.correction.prefill if self.correction else gained

    def shared_s(self, tokens: Array) -> Array:
        """Return the time of the experts, and of sending to them, for the tokens of all groups of the attention."""
        groups = self.deployment.dp
        return self._looked_up(self._experts + self._exchange, tokens / groups, groups)

    def head_s(self, sequences: Array) -> Array:
        """Return the time of the vocabulary's product, for the last token of each sequence."""
        return np.interp(sequences, _TOKENS, self._head)

    def adapters_s(self, sequences: Array) -> Array:
        """Return the time of the LoRA adapters that a step uses: one for each sequence, whatever its tokens."""
        deployment = self.deployment
        most = min(deployment.lora_adapters, deployment.lora_in_batch or math.inf)
        return np.asarray(np.minimum(sequences, most) * self._adapter_s)

    def parts(self, batch: float, context: float) -> StepParts:
        """Split one decode step of the model itself into its parts, without a draft."""
        share, groups = np.asarray(self.passing(max(batch, 1.0))), self.deployment.dp
        together = np.asarray(self.together(max(batch, 1.0))) / groups
        matrices = float(self._looked_up(self._matrices, share) + self.head_s(share) + self.adapters_s(share))
        matrices += float(self._looked_up(self._experts, together, groups))
        weights_s = min(matrices, step_weight_bytes(self.deployment, float(share)) / self._stream_bytes_per_s())
        step_s = float(self.step(0, 0, batch, context))
        kv_s = float(self.decode_attention_s(share, np.float64(context)))
        communication_s = float(self._looked_up(self._communication, share))
        communication_s += float(self._looked_up(self._exchange, together, groups))
        return StepParts(
            weights_s=weights_s,
            kv_s=kv_s,
            compute_s=matrices - weights_s,
            communication_s=communication_s,
            overhead_s=step_s - matrices - kv_s - communication_s,
            step_s=step_s,
        )

    def _stream_bytes_per_s(self) -> float:
        """Return how fast a product of one row reads weights too large for any cache; at most the datasheet's rate."""
        in_mixer, _ = self.deployment.model.precisions(self.deployment.weights)
        one_row = float(self.kernels.gemm_s(in_mixer, 1, _HUGE, _HUGE))
        one_row *= self.correction.decode if self.correction else 1.0
        return min(_HUGE * _HUGE * in_mixer.bytes_per_weight / one_row, self.deployment.gpu.bandwidth_bytes_per_s)

    def decode_attention_s(self, batch: Numbers, context: Numbers) -> Array:
        """Return the GPU time of the running sequences' attention; ``batch`` is that of one pass."""
        total = np.zeros(np.broadcast_shapes(np.shape(batch), np.shape(context)))
        for count, mixer in self.mixers if np.any(np.asarray(batch) > 0) else ():
            taken = self.kernels.decode_mixer_s(mixer, batch, context)
            taken = taken * (1.0 + self.kernels.uneven_share(mixer, batch, context, self.spread))
            if self.correction:
                least = self.floor.kernels.decode_mixer_s(mixer, batch, context)
                taken = np.maximum(taken * self.correction.decode, least)
            total = total + count * taken
        return np.where(np.asarray(batch) > 0, total, 0.0)

    def beside_prompts_s(self, batch: Numbers) -> Array:
        """Return the GPU time that the running sequences take longer in a step with long prompts."""
        total = np.zeros(np.shape(batch))
        for count, mixer in self.mixers:
            total = total + count * self.kernels.beside_prompts_s(mixer, batch)
        return total * self.correction.decode if self.correction else total

    def prompt_attention_s(self, prompt: Array, past: Array, prompts: Array) -> Array:
        """Return the GPU time of attention inside ``prompts`` chunks of ``prompt`` tokens, with their images' tower."""
        total = np.zeros(np.shape(prompt))
        for count, mixer in self.mixers if np.any(prompt > 0) else ():
            taken = self.kernels.prompt_mixer_s(mixer, prompt, past, prompts)
            if self.correction:
                least = self.floor.kernels.prompt_mixer_s(mixer, prompt, past, prompts)
                taken = np.maximum(taken * self.correction.prefill, least)
            total = total + count * taken
        return np.where(prompt > 0, total + self._images_s(prompt, past, prompts), 0.0)

    def _images_s(self, prompt: Array, past: Array, prompts: Array) -> Array | float:
        """Return the vision tower's time for the images at the start of each prompt: for the part in these chunks."""
        images = self.deployment.model.images
        if images is None:
            return 0.0
        inside = np.clip(np.minimum(past + prompt, images.tokens) - past, 0.0, None)
        return prompts * inside / images.tokens * self._tower_s

    def with_host(self, gpu_s: Array, batch: Array, tokens: int = 1, least_s: float = 0.0) -> Array:
        """Return a decode step as the engine runs it: the host works beside the GPU, or after it.

        ``tokens`` of each sequence are computed, and the host works for ``least_s`` at least.
        """
        if self.engine is None:
            return gpu_s
        host_s, rows = np.maximum(self.engine.host_s(batch), least_s), np.asarray(batch) * tokens
        # A step with more tokens than any graph holds is launched like a step with prompts.
        apart = (self.engine.graph_tokens > 0) & (rows > self.engine.graph_tokens) | (not self.engine.captures)
        each_s = self.engine.sequence_s * np.asarray(batch) if self.engine.overlapped else 0.0
        gpu_s = np.maximum(gpu_s, np.where(apart, self.launch_s(rows) + each_s, 0.0))
        return np.maximum(gpu_s, host_s) if self.engine.overlapped else gpu_s + host_s

    def launch_s(self, tokens: ArrayLike) -> Array:
        """Return the host's time to launch a step with prompts of this many tokens; stages launch at the same time."""
        if self.engine is None:
            return np.zeros(np.shape(tokens))
        return self.engine.launch_s(tokens, *self._layers, self.quantises)

    @property
    def quantises(self) -> bool:
        """Decide whether products take quantised activations: without math for them, weights are unpacked."""
        weights, gpu = self.deployment.weights, self.deployment.gpu
        return weights in QUANTISES and gpu.peak_flops(weights) > gpu.peak_flops(Precision.bf16)

    def launched(self, gpu_s: Array, tokens: Array, batch: Array, prompts: Array) -> Array:
        """Return a step with prompts that is composed after the last one; launches and kernels run side by side."""
        if self.engine is None:
            return gpu_s
        if not self.engine.overlapped:
            return np.maximum(gpu_s, self.launch_s(tokens)) + self.engine.host_s(batch)
        return np.maximum(gpu_s, self.launch_s(tokens) + self.engine.sequence_s * (batch + prompts))


def beside_share(tokens: Numbers) -> Array:
    """Return the share of ``beside_prompts_s`` by a pass's prompt tokens beyond the first of each prompt."""
    return np.clip(tokens / BESIDE_TOKENS, 0.0, 1.0)


def with_flags(engine: Overhead, flags: EngineFlags) -> Overhead:
    """Return the engine's own time with flags that change it."""
    changes: dict[str, object] = {}
    if flags.captured_tokens is not None:
        changes = {"graph_tokens": flags.captured_tokens, "captures": engine.captures and flags.captured_tokens > 0}
    if flags.composes_ahead is not None:
        changes["overlapped"] = flags.composes_ahead
    return engine.model_copy(update=changes) if changes else engine


def runs_as_one(deployment: Deployment) -> bool:
    """Decide whether one operation computes routed experts, so that their layer is launched as soon as a dense one.

    So do TensorRT-LLM's kernels for MXFP4 on Blackwell, which vLLM and SGLang call too (FlashInfer's
    ``trtllm_fp4_block_scale_moe``).
    """
    return deployment.weights is Precision.mxfp4 and deployment.gpu.architecture == "blackwell"


def step_model(deployment: Deployment) -> StepModel:
    """Return the compiled step time of a deployment under today's engine and the profile in use."""
    return _step_model(deployment, profile_key())


@lru_cache(maxsize=4096)
def _step_model(deployment: Deployment, profile: str | None) -> StepModel:
    return StepModel(deployment, overhead(deployment.engine))


@lru_cache(maxsize=1024)
def _capturing(steps: StepModel, tokens: int) -> StepModel:
    return steps.with_engine(steps.engine and steps.engine.model_copy(update={"graph_tokens": tokens}))


@lru_cache(maxsize=1024)
def _with_spread(steps: StepModel, spread: float) -> StepModel:
    other = copy(steps)
    other.spread = spread
    other.draft = steps.draft and _with_spread(steps.draft, spread)
    return other


def forget_step_models() -> None:
    """Compile anew whatever is asked next: of many corrections, none of which comes again, each keeps 40 kB."""
    for kept in (_step_model, _with_spread, _capturing):
        kept.cache_clear()


def decode_step(deployment: Deployment, batch: ArrayLike, context: ArrayLike) -> Array:
    """Return the seconds of one decode step of a deployment."""
    return step_model(deployment).decode(batch, context)


def _between(own: Kernels | None) -> Layers:
    """Return the time between kernels: as probed on this GPU, or our own."""
    if own and own.layer_s is not None:
        return Layers(layer_s=own.layer_s, source="tokonomics probe")
    return layers()
