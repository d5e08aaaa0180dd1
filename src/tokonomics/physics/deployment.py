"""Describe a model on some GPUs, perhaps with a draft: the unit whose memory and speed everything is computed from.

In speculative decoding a small draft proposes some tokens and one step of the model checks them all. If each proposed
token is accepted with probability ``a``, independently, a round of ``k`` proposals yields ``(1 − a^(k+1)) ÷ (1 − a)``
tokens (Leviathan, Kalman and Matias, 2023, arXiv:2211.17192, equation 1). A round costs ``k`` passes of the draft and
one of the model on ``k + 1`` tokens of each sequence, in one step of the engine; ``steptime`` divides that by the
yield. A step with prompts drafts nothing, but the draft computes the same tokens for its own KV. A token is counted
with its mean time: the simulator sees evenly paced tokens where a server sends small bunches.
"""

import math
from enum import StrEnum

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tokonomics.catalog.engines import Defaults, Engine, all_engines, default_engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import (
    KV_PRECISIONS,
    CompressedAttention,
    DenseMlp,
    GroupedAttention,
    MoeMlp,
    Precision,
    RecurrentMixer,
)
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.types import Noun

ACCEPTANCE = 0.65
"""Assumed if the user's own is not known: no table of pairs like those drafted here could be cited. Near it are 0.64
and 0.71 for GPT-2 medium and large drafted by DistilGPT-2, greedy (hurjun/speculative-decoding-lab), and 0.74, 0.64 and
0.65 for the first three tokens of Qwen3.6-27B's own draft head (vLLM's counters in noonghunna/club-3090#105,
2026-05-08); far from it is 0.98 on other texts (eugr/spark-vllm-docker#200). It depends on the texts, the temperature
and the pair: measure it."""
DRAFT_TOKENS = 3
"""Assumed, as in vLLM's own example of a draft model (vllm-project/vllm#24322, 2025-09-05). It is small because a full
batch has no idle arithmetic to spend on proposals that fail."""


class DraftMethod(StrEnum):
    """What drafts, by vLLM's name for it."""

    mtp = "mtp"  # a module of the model's own checkpoint, with the model's embedding and head
    eagle3 = "eagle3"  # a head trained for the model, in a checkpoint of its own
    draft_model = "draft_model"
    ngram = "ngram_gpu"  # nothing: what followed the same few tokens earlier in the text is proposed


LOOKED_UP = (2, 4)
"""The fewest and the most tokens that are looked up in the text to propose what followed them, as was measured
(``benchmarks/lever_grid.py``). vLLM's ``ngram`` does the same on the host, and composes no step ahead."""


class Speculation(Noun):
    """How a deployment drafts."""

    method: DraftMethod = DraftMethod.draft_model
    checkpoint: str | None = None  # of the draft; None: the model's own, or found by the draft's name
    source: str | None = None  # of the acceptance; None: given by the user, or assumed

    tokens: int = Field(default=DRAFT_TOKENS, ge=1, le=16)  # proposed in a round
    acceptance: float = Field(default=ACCEPTANCE, ge=0, le=1)  # chance that the model accepts a proposed token
    draft: ModelSpec | None = None  # runs on the same GPUs, its weights and KV beside the model's
    draft_share: float | None = Field(default=None, ge=0, le=10)
    """Instead of a model: the cost of one drafted token, as a share of a step of the model; takes no memory."""

    @model_validator(mode="after")
    def _one_draft(self) -> "Speculation":
        if (self.draft is None) == (self.draft_share is None):
            raise ValueError("a draft is a model, or a share of the model's own step")
        return self

    @property
    def name(self) -> str:
        """Return a short name such as ``mtp:3``; for a draft model, its key."""
        what = self.draft.key if self.draft and self.method is DraftMethod.draft_model else self.method.value
        return f"{what}:{self.tokens}"

    @property
    def needs_checkpoint(self) -> bool:
        """Decide whether what drafts is loaded from a checkpoint of its own."""
        return self.method in (DraftMethod.eagle3, DraftMethod.draft_model)

    @property
    def tokens_per_round(self) -> float:
        return expected_tokens(self.acceptance, self.tokens)

    @property
    def spread_per_round(self) -> float:
        """Return the variance of a round's tokens: their square is Σ (2i + 1) aⁱ, of i accepted ones, on average."""
        squares = math.fsum((2 * accepted + 1) * self.acceptance**accepted for accepted in range(self.tokens + 1))
        return max(0.0, squares - self.tokens_per_round**2)


def expected_tokens(acceptance: float, proposed: int) -> float:
    """Return the tokens of a round: the accepted ones and the one that the check itself gives, 1 + a + … + a^k."""
    return math.fsum(acceptance**accepted for accepted in range(proposed + 1))


def acceptance_for(tokens_per_round: float, tokens: int) -> float | None:
    """Return the acceptance at which a round of ``tokens`` proposals yields ``tokens_per_round``; None if none does.

    The yield only rises with the acceptance, so bisection finds it.
    """
    if tokens_per_round > tokens + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        enough = expected_tokens(middle, tokens) >= tokens_per_round
        low, high = (low, middle) if enough else (middle, high)
    return high


_POOLED_TOKENS = 32_768
"""Tokens of an encoder's step: vLLM's value (``POOLING_MODEL_MAX_NUM_BATCHED_TOKENS``), assumed for all engines."""
NETWORKED = 8
"""Machines of eight GPUs are sold with a network card for each (NVIDIA HGX, OCP OAM). Smaller ones rarely are, so no
replica spreads over several of those."""
_LARGEST_RANK = 512  # vLLM's --max-lora-rank accepts up to 512


class EngineFlags(Noun):
    """Flags of an engine that change its own time or memory, where they are not its defaults."""

    captured_tokens: NonNegativeInt | None = None
    """Steps of up to so many tokens are launched as graphs, however few sequences are allowed; 0: none is."""
    composes_ahead: bool | None = None  # whether the next step is composed while the GPU computes this one
    kv_bytes: PositiveFloat | None = None  # memory of one GPU for the KV cache, instead of what its share leaves


NO_FLAGS = EngineFlags()


class Deployment(Noun):
    """One replica: a model at a precision, split over ``tp × pp × dp`` GPUs, run by an engine with its limits.

    With ``dp`` above 1 (data-parallel attention), each of ``dp`` groups of GPUs holds the whole attention and has its
    own sequences. One set of experts is spread over the GPUs of all groups, and each of their steps has the tokens of
    all groups. Groups step together, so they are one replica; requests are divided evenly among them.
    """

    model: ModelSpec
    gpu: Gpu
    engine: Engine
    weights: Precision
    kv: Precision
    tp: PositiveInt = 1
    pp: PositiveInt = 1
    ep: PositiveInt = 1  # groups of GPUs that share whole experts; within a group each expert is split
    dp: PositiveInt = 1  # groups of the attention; the experts are spread over the GPUs of all groups
    lora_rank: NonNegativeInt = 0
    lora_adapters: NonNegativeInt = 0  # loaded with the base model: two thin matrices at each dense product
    lora_in_batch: PositiveFloat | None = None  # that a batch uses at the most; None: each sequence another, if loaded
    speculation: Speculation | None = None
    flags: EngineFlags = NO_FLAGS
    visited_experts: PositiveFloat | None = None
    """Experts of a layer that the traffic visits at all; None: all of them, each as often as the others. Dummy weights
    may send every token to the same few."""

    def __hash__(self) -> int:
        """Hash only what most deployments differ in, which is quick: many caches have deployments as keys."""
        return hash((self.model.key, self.gpu.key, self.engine.key, self.weights, self.kv, self.tp, self.pp, self.dp))

    @property
    def draft(self) -> "Deployment | None":
        """Return the model that drafts, on the same GPUs: split as the model is if possible, else on one of them."""
        if self.speculation is None or self.speculation.draft is None:
            return None
        model, own = self.speculation.draft, self.speculation.method is DraftMethod.mtp
        tp = self.tp if _what_does_not_divide(model, self.tp) is None else 1
        # A module of the checkpoint is quantised like the model, and its experts are distributed like the model's.
        weights, ep = (self.weights, self.ep) if own else (model.served, 1)
        return Deployment(
            model=model, gpu=self.gpu, engine=self.engine, weights=weights, kv=self.kv, tp=tp, ep=ep, dp=self.dp
        )

    @property
    def has_own_drafter(self) -> bool:
        """Decide whether a model of its own drafts, known or not, and not a part of this one."""
        return self.speculation is not None and self.speculation.method is DraftMethod.draft_model

    def visiting(self, share: float) -> "Deployment":
        """Return the same deployment under traffic that visits a share of the experts it visits now."""
        most = max((group.mlp.experts for group in self.model.groups if isinstance(group.mlp, MoeMlp)), default=1)
        return self.model_copy(update={"visited_experts": min(share * most, self.visited_experts or most)})

    def pool(self, mlp: MoeMlp) -> float:
        """Return how many of a layer's experts the traffic visits at all: at least those of one token."""
        return min(float(mlp.experts), max(float(mlp.active_experts), self.visited_experts or mlp.experts))

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def limits(self) -> Defaults:
        """Return the engine's own limits of batch and memory on this GPU, for all groups of the attention together."""
        one = self.group_limits
        if self.dp == 1:
            return one
        many = {name: getattr(one, name) * self.dp for name in ("max_sequences", "max_batched_tokens")}
        return one.model_copy(update=many)

    @property
    def group_limits(self) -> Defaults:
        """Return the limits of one group; an encoder's prompts are not chunked."""
        own = self.engine.defaults_on(self.gpu)
        if not self.model.is_encoder:
            return own
        tokens = max(own.max_batched_tokens, _POOLED_TOKENS, self.model.max_context)
        return own.model_copy(update={"max_batched_tokens": tokens})

    @property
    def spans_machines(self) -> bool:
        """Decide whether its experts are spread over the network between machines."""
        return self.dp > 1 and self.expert_gpus > self.gpu.gpus_per_node

    @property
    def uses_network(self) -> bool:
        """Decide whether a replica sends anything between machines: to experts, or from stage to stage."""
        return self.gpus > self.gpu.gpus_per_node

    @property
    def stage_bytes_per_s(self) -> float:
        """Return the rate between pipeline stages: through the host, and over the network if machines differ."""
        host = self.gpu.pcie_bytes_per_s
        return min(host, self.gpu.network_bytes_per_s) if self.uses_network else host

    @property
    def expert_gpus(self) -> int:
        """Count the GPUs of one stage that share its experts."""
        return self.tp * self.dp

    @property
    def expert_parts(self) -> int:
        """Count the GPUs over which each expert is cut."""
        return self.expert_gpus // self.ep

    @property
    def chunks_prompts(self) -> bool:
        """Decide whether a prompt may be computed in parts: not an encoder's, whose tokens also see later ones."""
        return self.engine.chunks_prefill and not self.model.is_encoder

    @property
    def reuses_prefixes(self) -> bool:
        """Decide whether a shared prefix is computed once: not an encoder's, whose first tokens see different ones."""
        return self.engine.reuses_prefixes and not self.model.is_encoder

    def __str__(self) -> str:
        splits = (("TP", self.tp), ("PP", self.pp), ("EP", self.ep), ("DP", self.dp))
        split = "".join(f" {name}={ranks}" for name, ranks in splits if ranks > 1)
        drafts = f" with {self.speculation.name}" if self.speculation else ""
        return f"{self.model.name} {self.weights} on {self.gpus}×{self.gpu.key}{split}{drafts}"


def deploy(
    model: ModelSpec,
    gpu: Gpu,
    engine: Engine,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dp: int = 1,
    weights: Precision | None = None,
    kv: Precision | None = None,
    lora_rank: int = 0,
    lora_adapters: int = 0,
) -> Deployment:
    """Return a checked deployment; weights and KV cache default to the precisions the checkpoint is published in.

    Without scales for a KV cache, or on hardware that keeps none with so few bits, the default has 16.
    """
    valid = valid_tp(model, gpu=gpu)
    if tp < 1:
        raise BadInput(f"must be at least 1, got {tp}", field="tp", fix=f"Valid: {', '.join(map(str, valid))}.")
    if tp not in valid:
        what = f"tensor parallelism of {tp} cannot split {model.name}: {_why_no_split(model, tp, gpu)}"
        raise BadInput(what, field="tp", fix=f"Valid degrees: {', '.join(map(str, valid))}.")
    if tp > gpu.gpus_per_node:
        what = f"tensor parallelism of {tp} spans nodes: a node of {gpu.key} has {gpu.gpus_per_node} GPUs"
        fix = f"Use {option('tp', gpu.gpus_per_node)} at most, and {option('pp')} for more GPUs."
        raise BadInput(what, field="tp", fix=fix)
    if not 1 <= pp <= model.layers:
        raise BadInput(f"pipeline parallelism of {pp} needs 1 to {model.layers} stages (layers)", field="pp")
    if dp < 1:
        raise BadInput(f"must be at least 1, got {dp}", field="dp")
    if ep < 1 or (dp == 1 and tp % ep):
        raise BadInput(f"expert parallelism of {ep} must divide the {tp} GPUs of a stage", field="ep")
    for field, degree in (("ep", ep), ("dp", dp)):
        if degree > 1 and not model.is_moe:
            fix = f"Leave {option(field)} out; for more of it, run more replicas."
            raise BadInput(f"{model.name} has no experts to share out", field=field, fix=fix)
    if dp > 1:
        _check_groups(gpu, tp, ep, dp)
    fewest = min((group.mlp.experts for group in model.groups if isinstance(group.mlp, MoeMlp)), default=ep)
    if ep > fewest:
        raise BadInput(f"{model.name} has {fewest} experts, fewer than {ep}", field="ep")
    if (lora_rank > 0) != (lora_adapters > 0) or not 0 <= lora_rank <= _LARGEST_RANK or not 0 <= lora_adapters <= 10**6:
        what = f"needs both a rank (1 to {_LARGEST_RANK}) and a number of adapters, got {lora_rank} and {lora_adapters}"
        raise BadInput(what, field="lora_rank, lora_adapters")
    kv = kv or default_kv(model, gpu, engine)
    if kv not in KV_PRECISIONS:
        raise BadInput(f"no engine keeps its KV cache in {kv}", field="kv", fix=f"Valid: {', '.join(KV_PRECISIONS)}.")
    weights = weights or engine.loads([model.served])[0]
    reason = why_not_run(engine, gpu, weights, kv)
    if reason:
        others = [other.key for other in all_engines() if why_not_run(other, gpu, weights, kv) is None]
        nearest_first = sorted(others, key=lambda other: other != default_engine(gpu.architecture).key)
        advice = f"These engines do: {', '.join(nearest_first)}." if others else None
        if engine.hardware_of(gpu.architecture) and weights in engine.converts:
            read = engine.converts[weights]
            advice = f"Its files of such models are {read}: {option('weights', read)}."
        raise BadInput(reason, fix=advice)
    plain = Deployment(model=model, gpu=gpu, engine=engine, tp=tp, pp=pp, ep=ep, dp=dp, weights=weights, kv=kv)
    return plain.model_copy(update={"lora_rank": lora_rank, "lora_adapters": lora_adapters})


def default_kv(model: ModelSpec, gpu: Gpu, engine: Engine) -> Precision:
    """Return the precision in which an engine keeps the KV cache of a checkpoint on a GPU if nobody names one."""
    hardware = engine.hardware_of(gpu.architecture)
    return model.kv_served if hardware is not None and model.kv_served in hardware.kv else Precision.bf16


def _check_groups(gpu: Gpu, tp: int, ep: int, dp: int) -> None:
    """Refuse groups of the attention that fit neither in a machine nor in whole machines."""
    node, gpus = gpu.gpus_per_node, tp * dp
    if gpus <= node:
        if ep not in (1, gpus):
            what = f"{dp} groups of the attention split each expert over all {gpus} GPUs, or deal experts out to all"
            fix = f"Give {option('ep', 1)} or {option('ep', gpus)}."
            raise BadInput(f"{what}; {ep} is neither", field="ep", fix=fix)
        return
    most = node // tp
    within = f"Give {option('dp', most)} at most" if most > 1 else f"Leave {option('dp')} out"
    if gpu.fast_link_gpus < NETWORKED:
        what = f"{dp} groups of {tp} need {gpus} GPUs: a machine of {gpu.key} has {node}, and no network to others"
        raise BadInput(what, field="dp", fix=f"{within}; for more GPUs, run more replicas.")
    if gpus % node:
        what = f"{dp} groups of {tp} need {gpus} GPUs: these are no whole machines of {node} {gpu.key}"
        raise BadInput(what, field="dp", fix=f"{within} for one machine, or a multiple of {node} GPUs for several.")
    if ep != gpus:
        what = f"over {gpus // node} machines of {node} GPUs experts are dealt out whole, to all of them"
        raise BadInput(what, field="ep", fix=f"Give {option('ep', gpus)}; or {option('dp', most)} for one machine.")


def why_not_run(engine: Engine, gpu: Gpu, weights: Precision, kv: Precision) -> str | None:
    """Return what the engine does not run on that hardware; None if it runs the whole combination."""
    hardware = engine.hardware_of(gpu.architecture)
    if hardware is None:
        return f"{engine.key} does not run on {gpu.architecture} GPUs such as {gpu.key}"
    if weights not in hardware.weights:
        return f"{engine.key} does not run {weights} weights on {gpu.architecture}"
    if kv not in hardware.kv:
        return f"{engine.key} does not keep KV in {kv} on {gpu.architecture}"
    return None


def valid_tp(model: ModelSpec, most: int = 128, gpu: Gpu | None = None) -> tuple[int, ...]:
    """Return the degrees that split every head, KV head and feed-forward width evenly; KV heads may also be copied.

    If a GPU is given, they are also limited to what it can be split into.
    """
    return tuple(tp for tp in range(1, most + 1) if _why_no_split(model, tp, gpu) is None)


def _why_no_split(model: ModelSpec, tp: int, gpu: Gpu | None) -> str | None:
    """Say why a model cannot be split ``tp`` ways; None if it can."""
    if gpu is not None and gpu.comes_in_slices and not is_power_of_two(tp):
        return f"{gpu.key} comes in slices of 1, 4, 8, 16 … chips, which only powers of two divide"
    return _what_does_not_divide(model, tp)


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def _what_does_not_divide(model: ModelSpec, tp: int) -> str | None:
    for group in model.groups:
        mixer, mlp = group.mixer, group.mlp
        if mixer is not None and not isinstance(mixer, RecurrentMixer) and mixer.heads % tp:
            return f"it has {mixer.heads} attention heads"
        if isinstance(mixer, GroupedAttention) and mixer.kv_heads % tp and tp % mixer.kv_heads:
            return f"it has {mixer.kv_heads} KV heads"
        if isinstance(mixer, CompressedAttention) and mixer.output_groups % tp:
            return f"it has {mixer.output_groups} groups of output heads"
        if isinstance(mlp, DenseMlp) and mlp.intermediate % tp:
            return f"its feed-forward width is {mlp.intermediate}"
        if isinstance(mlp, MoeMlp) and mlp.intermediate % tp:
            return f"its experts' width is {mlp.intermediate}"
    return None
