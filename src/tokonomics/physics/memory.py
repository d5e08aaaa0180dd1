"""Decide whether a model fits: weights + workspace + KV cache against the memory an engine may use.

    KV budget = the engine's share of memory − weights on the fullest GPU − workspace
    sequences = whole KV blocks in the budget ÷ whole blocks of one sequence

Tensor parallelism splits matrices and heads, pipeline stages split layers. Norms, routers, MLA's down-projections and
those to and from latent experts are copied to every tensor-parallel rank; KV heads are copied once there are more ranks
than heads (vLLM and SGLang do the same), and MLA's single latent vector always is.

KV comes in blocks of a fixed number of tokens, so a sequence of 17 tokens takes two blocks of 16. A sliding-window
layer keeps only its window, MLA one compressed vector per token, a recurrent layer a state of fixed size. An encoder
keeps nothing: a sequence only needs its activations while it is computed.
"""

import math
from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from tokonomics.catalog.layers import DenseMlp, LayerGroup, Mixer, MoeMlp, Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, DoesNotFit
from tokonomics.physics.deployment import Deployment, DraftMethod, is_power_of_two, valid_tp
from tokonomics.physics.matrix_kernels import distinct_experts
from tokonomics.types import Noun
from tokonomics.units import GIB, gigabytes, plural


class Shard(Noun):
    """Bytes on the fullest GPU, by how often a decode step reads them."""

    blocks: float  # attention, dense and shared feed-forward matrices, routers, norms: read every step
    head: float  # the LM head: read every step
    idle: float  # embedding table and vision tower: loaded, but a step reads a few rows at most
    experts_held: float  # all experts of all layers on this GPU

    @property
    def total(self) -> float:
        return self.blocks + self.head + self.idle + self.experts_held


def layer_kv_bytes(mixer: Mixer, deployment: Deployment) -> float:
    """Return the bytes that one more token adds to one layer's cache on one rank, inside every window."""
    return sum(cache.row_bytes(deployment.kv, deployment.tp) / cache.every for cache in mixer.caches)


def expert_bytes(deployment: Deployment, mlp: MoeMlp) -> float:
    """Return the mean bytes of one expert of one layer on one rank, which holds some experts and its split of each.

    Biases are not split.
    """
    weights = deployment.weights
    matrices = mlp.expert_parameters(deployment.model.hidden) / deployment.expert_gpus
    biases = mlp.expert_bias_elements / deployment.ep * weights.bytes_per_unquantised
    return matrices * deployment.model.bytes_per_weight(weights)[-1] + biases


@lru_cache(maxsize=4096)
def shard(deployment: Deployment) -> Shard:
    """Return the weights on the fullest GPU of a replica; cached, because a plan asks for every machine and speed."""
    model, tp = deployment.model, deployment.tp
    rest_bytes = deployment.weights.bytes_per_unquantised
    in_mixer, in_mlp, _ = model.bytes_per_weight(deployment.weights)
    blocks = experts = 0.0
    for group in model.groups:
        parts_of = ((group.mixer, in_mixer), (group.mlp, in_mlp))
        matrices = sum(n * k * width for part, width in parts_of if part for n, k in part.products(model.hidden, tp))
        small = group.norm_elements + (group.mixer.small_parameters if group.mixer else 0)
        if isinstance(group.mlp, DenseMlp):
            small += group.mlp.bias_elements
        elif isinstance(group.mlp, MoeMlp):
            small += group.mlp.router_parameters(model.hidden)
            experts += group.count * group.mlp.experts * expert_bytes(deployment, group.mlp)
        blocks += group.count * (matrices + small * rest_bytes)
    stage = math.ceil(model.layers / deployment.pp) / model.layers
    parts = model.parts
    table = 0 if model.is_encoder else model.vocab * model.hidden  # an encoder has no head to read it again
    # A tied embedding is also the head. With stages, the first stage holds the embedding and the last the head.
    embedding = parts.embedding - (table if deployment.pp > 1 or not parts.head else 0)
    return Shard(
        blocks=blocks * stage + model.final_norm_elements * rest_bytes,
        experts_held=experts * stage,
        head=(table + model.head_bias_elements) / tp * rest_bytes,
        idle=(embedding / tp + parts.extra) * rest_bytes,
    )


def step_weight_bytes(deployment: Deployment, tokens: float) -> float:
    """Return the weights that a step reads on one tensor rank, over all stages: each block, and visited experts."""
    held = shard(deployment)
    total = held.blocks * deployment.pp + held.head
    for group in deployment.model.groups:
        if isinstance(group.mlp, MoeMlp):
            arrived = tokens * deployment.dp
            visited = float(distinct_experts(deployment.pool(group.mlp), group.mlp.active_experts, arrived))
            total += group.count * visited * expert_bytes(deployment, group.mlp)
    return total


def adapter_bytes(deployment: Deployment) -> float:
    """Return the bytes of the LoRA adapters on one GPU: for every dense product, two matrices of the rank's width."""
    groups = deployment.model.groups
    widths = sum(group.count * (n + k) for group in groups for n, k, _ in dense_products(group, deployment))
    adapter = widths * deployment.lora_rank * Precision.bf16.bytes_per_weight
    return deployment.lora_adapters * adapter / deployment.pp


def dense_products(group: LayerGroup, deployment: Deployment) -> list[tuple[float, float, Precision]]:
    """Return the output width, input width and precision of each dense matrix product of a layer, on one rank."""
    model = deployment.model
    in_mixer, in_mlp = model.precisions(deployment.weights)
    parts = ((group.mixer, in_mixer), (group.mlp, in_mlp))
    return [(n, k, weights) for part, weights in parts if part for n, k in part.products(model.hidden, deployment.tp)]


SAMPLER_BYTES_PER_LOGIT = 40
"""Logits in 16 and 32 bits, probabilities, and the sort behind top-k and top-p: 35 to 41 bytes for each entry of the
vocabulary and sequence in vLLM's logs at 256 sequences ("PyTorch activation peak memory": Llama-3-8B 1.26 GiB in PR
10511, Qwen2.5-7B 1.42 in issue 13882, Qwen2.5-32B 1.26 in issue 15815)."""
SAMPLED_SEQUENCES = 256  # the most sequences in those logs; larger limits are assumed to sample in parts of this size
RUNTIME_BYTES = round(0.16 * GIB + 0.5 * GIB)
"""0.16 GiB outside the framework's allocator (vLLM on an 80 GB card: gateway-api-inference-extension PR 550), and 0.5
GiB for CUDA graphs, which take 0.13 to 0.9 GiB in the logs of dense models (vLLM issue 52872)."""
NCCL_BYTES = round(0.37 * GIB)
"""Communication buffers of tensor parallelism: 342 to 392 MiB (aiconfigurator-core 0.12.0)."""
EXPERT_CHUNK = 32_768
"""Tokens that experts compute at a time, however many groups send tokens (vLLM's ``VLLM_FUSED_MOE_CHUNK_SIZE``)."""

_LARGEST_CONTEXT = 10**8


class Fit(Noun):
    """How the memory of one GPU of the replica is used, and how many sequences it leaves room for."""

    deployment: Deployment
    context: PositiveInt
    memory_bytes: PositiveInt  # of one GPU
    usable_bytes: PositiveInt  # what the driver leaves to processes
    weight_bytes: PositiveInt  # the whole model
    weight_bytes_per_gpu: PositiveInt
    workspace_bytes: PositiveInt
    kv_budget_bytes: NonNegativeInt
    shortfall_bytes: NonNegativeInt  # by how much weights and workspace exceed what the engine may use
    kv_bytes_per_token: NonNegativeInt  # the whole model: what every further token adds
    kv_constant_bytes: NonNegativeInt  # the whole model: what a sequence of any length takes, full windows and states
    kv_bytes_per_sequence: NonNegativeInt  # on one GPU, at this context, in whole blocks
    max_sequences: NonNegativeInt  # sequences of this context at once; 0 when none fits
    min_gpus: PositiveInt | None  # fewest sold together on which one sequence fits; None if no split does
    min_layout: str | None  # how the model is split over them

    @property
    def fits(self) -> bool:
        return self.max_sequences > 0

    def summary(self) -> dict[str, object]:
        """Return the figures with the deployment's names instead of its whole specification."""
        names: dict[str, object] = {name: getattr(self.deployment, name).key for name in ("model", "gpu", "engine")}
        split = self.deployment.model_dump(mode="json", include={"tp", "pp", "ep", "dp", "weights", "kv"})
        return names | split | {"fits": self.fits} | self.model_dump(mode="json", exclude={"deployment"})


def fit(deployment: Deployment, context: int) -> Fit:
    """Compute the memory of a deployment at a context length."""
    check_context(deployment.model, context)
    budget, least = kv_budget_bytes(deployment), smallest(deployment, context)
    return Fit(
        deployment=deployment,
        context=context,
        memory_bytes=deployment.gpu.memory_bytes,
        usable_bytes=deployment.gpu.usable_bytes,
        weight_bytes=deployment.model.weight_bytes(deployment.weights),
        weight_bytes_per_gpu=round(shard(deployment).total),
        workspace_bytes=workspace_bytes(deployment),
        kv_budget_bytes=max(budget, 0),
        shortfall_bytes=max(-budget, 0),
        kv_bytes_per_token=deployment.model.kv_bytes_per_token(deployment.kv),
        kv_constant_bytes=deployment.model.kv_constant_bytes(deployment.kv),
        kv_bytes_per_sequence=sequence_bytes(deployment, context),
        max_sequences=max_sequences(deployment, context),
        min_gpus=least.gpus if least else None,
        min_layout=least.layout if least else None,
    )


def max_sequences(deployment: Deployment, context: int) -> int:
    """Count the sequences of ``context`` tokens that the memory holds, without the engine's own limit."""
    return deployment.dp * (max(0, kv_budget_bytes(deployment)) // max(1, sequence_bytes(deployment, context)))


def require_fit(deployment: Deployment, context: int, batch: int = 1) -> None:
    """Refuse a batch that does not fit, and name the largest that does."""
    largest = max_sequences(deployment, context)
    if batch > largest:
        what = f"{batch:,} sequences of {context:,} tokens do not fit {deployment}"
        if largest:
            raise DoesNotFit(what, largest=largest, fix=f"The largest batch that fits is {largest:,}.")
        need = smallest(deployment, context)
        fix = f"It needs {need} of this kind." if need else "No number of these GPUs is enough."
        there = f"{gigabytes(shard(deployment).total)} of weights a GPU, {gigabytes(deployment.gpu.usable_bytes)} there"
        raise DoesNotFit(f"{deployment} does not fit: {there}", largest=0, fix=fix)


class Smallest(NamedTuple):
    """The smallest number of GPUs sold together that holds a sequence, and how the model is split over them."""

    gpus: int
    tp: int
    pp: int
    machines: int

    @property
    def layout(self) -> str:
        """Describe the split: ``TP=8 PP=2 on 2 machines``, ``one GPU``."""
        split = " ".join(f"{name}={degree}" for name, degree in (("TP", self.tp), ("PP", self.pp)) if degree > 1)
        return f"{split} on {self.machines} machines" if self.machines > 1 else split or "one GPU"

    def __str__(self) -> str:
        return f"{plural(self.gpus, 'GPU')}{f' ({self.layout})' if self.gpus > 1 else ''}"


def smallest(deployment: Deployment, context: int) -> Smallest | None:
    """Return the smallest number of GPUs, as they are sold, that holds one sequence; None if no number does.

    That is 1, 2, 4, 8 … GPUs of a machine, then whole machines (of TPUs 2, 4, 8 … of them). Layers are split over as
    many GPUs of a machine as the model allows; stages use the rest.
    """
    node, layers = deployment.gpu.gpus_per_node, deployment.model.layers
    degrees = valid_tp(deployment.model, node, deployment.gpu)
    whole = [tp for tp in degrees if node % tp == 0]
    single = deployment.model_copy(update={"dp": 1, "ep": 1})

    def fitting(gpus: int) -> Smallest | None:
        for tp in reversed(whole if gpus > node else degrees):
            pp = gpus // tp
            if tp * pp == gpus and pp <= layers:
                split = single.model_copy(update={"tp": tp, "pp": pp})
                if max_sequences(split, context) > 0:
                    return Smallest(gpus, tp, pp, math.ceil(gpus / node))
        return None

    for gpus in sorted({1 << power for power in range(node.bit_length())} | {node}):
        if found := fitting(gpus):
            return found
    # More machines leave less on each GPU, so bisection finds the fewest that fit.
    most = layers * max(whole) // node
    sold = [number for number in range(2, most + 1) if is_power_of_two(number) or not deployment.gpu.comes_in_slices]
    fewest = bisect_left(sold, True, key=lambda number: fitting(number * node) is not None)
    return fitting(sold[fewest] * node) if fewest < len(sold) else None


@lru_cache(maxsize=8192)
def kv_budget_bytes(deployment: Deployment) -> int:
    """Return what one GPU has left for KV; negative if the weights alone are too large. Cached: asked often."""
    if deployment.flags.kv_bytes is not None:
        return math.floor(deployment.flags.kv_bytes)
    weights = shard(deployment).total + draft_bytes(deployment)
    return math.floor(deployment.engine.kv_bytes(deployment.gpu, weights, workspace_bytes(deployment)))


def draft_bytes(deployment: Deployment) -> float:
    """Return the draft's weights on one GPU; a module of the model's checkpoint uses its embedding and head."""
    if deployment.draft is None or deployment.speculation is None:
        return 0.0
    held = shard(deployment.draft)
    return held.total - (held.head + held.idle if deployment.speculation.method is DraftMethod.mtp else 0.0)


def sequence_bytes(deployment: Deployment, context: int) -> int:
    """Return the KV and state of one sequence on one GPU, in whole blocks; for an encoder, its activations."""
    if deployment.model.is_encoder:
        return math.ceil(context * activation_bytes(deployment))
    block = deployment.engine.kv_block_tokens
    total = 0.0
    for group in deployment.model.groups:
        if group.mixer is None:
            continue
        total += group.count * group.mixer.state_bytes / deployment.tp
        for cache in group.mixer.caches:
            seen = context if cache.window is None else min(context, cache.window)
            tokens = math.ceil(seen / block) * block
            total += group.count * tokens / cache.every * cache.row_bytes(deployment.kv, deployment.tp)
    stage = math.ceil(deployment.model.layers / deployment.pp) / deployment.model.layers
    drafted = sequence_bytes(deployment.draft, context) if deployment.draft else 0
    return math.ceil(total * stage) + drafted


def workspace_bytes(deployment: Deployment) -> int:
    """Return the larger of a full chunk's activations and the sampler's logits, plus LoRA adapters and the runtime."""
    model, limits = deployment.model, deployment.group_limits
    chunk = limits.max_batched_tokens * activation_bytes(deployment)
    logits = 0 if model.is_encoder else model.vocab
    sampler = SAMPLER_BYTES_PER_LOGIT * logits * min(limits.max_sequences, SAMPLED_SEQUENCES)
    adapters = math.ceil(adapter_bytes(deployment))
    links = NCCL_BYTES if deployment.expert_gpus > 1 else 0
    return round(max(chunk, sampler)) + adapters + RUNTIME_BYTES + links


def activation_bytes(deployment: Deployment) -> float:
    """Return the bytes that a token takes on one GPU while it is computed.

    At its peak a layer holds, for every token of a step, the residual stream and the feed-forward's input, both
    projections and their product; experts hold these once per visited expert.
    """
    model, limits, tp = deployment.model, deployment.group_limits, deployment.tp
    widest = 0.0
    for group in model.groups:
        if isinstance(group.mlp, DenseMlp):
            widest = max(widest, 3 * group.mlp.intermediate / tp)
        elif isinstance(group.mlp, MoeMlp):
            arrived = min(deployment.dp, max(1.0, EXPERT_CHUNK / limits.max_batched_tokens))
            width = 3 * group.mlp.intermediate / tp + arrived * (group.mlp.latent or model.hidden)
            routed = group.mlp.active_experts * width
            widest = max(widest, routed + 3 * group.mlp.shared_intermediate / tp)
    return (2 * model.hidden + widest) * Precision.bf16.bytes_per_weight


def check_context(model: ModelSpec, context: int) -> None:
    """Refuse a length that is not positive, or beyond what the model accepts."""
    if not 1 <= context <= _LARGEST_CONTEXT:
        raise BadInput(f"must be between 1 and {_LARGEST_CONTEXT:,} tokens, got {context}", field="context")
    if context > model.max_context:
        most = f"{model.name} accepts {model.max_context:,} tokens of context at most"
        raise BadInput(f"{most}, got {context:,}", field="context")
