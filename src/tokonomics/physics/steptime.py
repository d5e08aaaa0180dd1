"""How long one engine step takes: a roofline with KV reads, distinct experts, links and launch overhead.

    step = max(bytes ÷ (bandwidth × efficiency), FLOPs ÷ (peak × efficiency)) + all-reduces + layers × overhead

A decode step reads every block matrix once, the experts its tokens visit, and the KV cache of every sequence. Batch
and context may be numpy arrays of any shape that broadcast. Efficiencies are one figure per GPU family
(``physics.efficiency``); the result is never faster than the datasheet allows.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokonomics.catalog.models import MoeMlp
from tokonomics.catalog.precision import Precision, kv_bytes_per_element
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.efficiency import efficiencies, efficiency
from tokonomics.physics.sharding import expert_bytes, kv_elements_per_token, shard

Array = NDArray[np.float64]


class StepParts(Noun):
    """Where the time of one step goes, in seconds. Memory and compute overlap: the longer one counts."""

    memory_s: float
    compute_s: float
    communication_s: float
    overhead_s: float
    step_s: float


def decode_step(deployment: Deployment, batch: ArrayLike, context: ArrayLike) -> Array:
    """Seconds of one decode step: one new token for each of ``batch`` sequences that hold ``context`` tokens."""
    memory, compute, communication, overhead = _decode_times(deployment, batch, context)
    return np.maximum(memory, compute) + communication + overhead


def prefill(deployment: Deployment, tokens: ArrayLike) -> Array:
    """Seconds to compute a prompt of ``tokens`` tokens in one go, nothing cached."""
    memory, compute, communication, overhead = _prefill_times(deployment, tokens)
    return np.maximum(memory, compute) + communication + overhead


def decode_parts(deployment: Deployment, batch: int, context: int) -> StepParts:
    """One decode step, taken apart."""
    return _parts(*(float(term) for term in _decode_times(deployment, batch, context)))


def distinct_experts(experts: int, active: int, tokens: ArrayLike) -> Array:
    """Expected number of different experts that ``tokens`` tokens visit, each choosing ``active`` evenly."""
    return np.asarray(experts * (1 - (1 - active / experts) ** np.asarray(tokens, dtype=np.float64)))


def _decode_times(deployment: Deployment, batch: ArrayLike, context: ArrayLike) -> tuple[Array, Array, Array, Array]:
    batch, context = np.broadcast_arrays(np.asarray(batch, np.float64), np.asarray(context, np.float64))
    model = deployment.model
    moved = _weight_bytes_read(deployment, batch) + batch * _kv_bytes_read(deployment, context)
    wide = batch * (2.0 * model.vocab * model.hidden + _attention_flops(deployment, context, prompt=False))
    return _times(deployment, moved, batch * 2.0 * _block_weights(deployment), wide, batch * model.hidden)


def _prefill_times(deployment: Deployment, tokens: ArrayLike) -> tuple[Array, Array, Array, Array]:
    tokens = np.asarray(tokens, np.float64)
    model = deployment.model
    moved = _weight_bytes_read(deployment, tokens) + tokens * _kv_bytes_read(deployment, np.ones_like(tokens))
    # Token i sees i tokens, so a prompt sees half its length on average; only the last token meets the LM head.
    wide = tokens * _attention_flops(deployment, tokens / 2, prompt=True) + 2.0 * model.vocab * model.hidden
    return _times(deployment, moved, tokens * 2.0 * _block_weights(deployment), wide, tokens * model.hidden)


def _times(
    deployment: Deployment, moved: Array, block_flops: Array, wide_flops: Array, stream: Array
) -> tuple[Array, Array, Array, Array]:
    """Memory, compute, communication and overhead of a step that moves bytes, computes and reduces a stream.

    Block matrices run at the rate of the weights' precision; attention and LM head always in 16 bits.
    """
    gpu, tp, layers = deployment.gpu, deployment.tp, deployment.model.layers
    reached = efficiency(gpu)
    memory = moved / (gpu.bandwidth_bytes_per_s * reached.memory) * deployment.pp
    ideal = block_flops / gpu.peak_flops(deployment.weights) + wide_flops / gpu.peak_flops(Precision.bf16)
    compute = ideal / (reached.compute * tp)
    communication = np.zeros_like(memory)
    if tp > 1:
        # Two all-reduces a layer, after attention and after the feed-forward; a ring moves 2(tp-1)/tp of the data.
        reduced = 2 * (tp - 1) / tp * stream * Precision.bf16.bytes_per_weight
        each = reached.all_reduce_latency_s + reduced / (gpu.link_among(tp) * reached.link)
        communication = 2 * layers * each
    overhead = np.full_like(memory, layers * efficiencies().layer_overhead_s)
    return memory, compute, communication, overhead


def _weight_bytes_read(deployment: Deployment, tokens: Array) -> Array:
    """Weights that one pass of ``tokens`` tokens reads on the fullest GPU."""
    held = shard(deployment)
    moved = np.full_like(tokens, held.blocks + held.head)
    for group in deployment.model.groups:
        if isinstance(group.mlp, MoeMlp):
            visited = distinct_experts(group.mlp.experts, group.mlp.active_experts, tokens)
            moved = moved + group.count / deployment.pp * visited * expert_bytes(deployment, group.mlp)
    return moved


def _kv_bytes_read(deployment: Deployment, context: Array) -> Array:
    """KV cache and state that one sequence's decode reads on one GPU."""
    width = kv_bytes_per_element(deployment.kv)
    moved = np.zeros_like(context)
    for group in deployment.model.groups:
        if group.mixer is None:
            continue
        seen = np.minimum(context, group.mixer.window) if group.mixer.window else context
        per_token = kv_elements_per_token(group.mixer, deployment.tp) * width
        state = 2 * group.mixer.state_bytes / deployment.tp  # read and written back
        moved = moved + group.count / deployment.pp * (seen * per_token + state)
    return moved


def _block_weights(deployment: Deployment) -> int:
    """Weights of the blocks that a token is multiplied with, over all GPUs."""
    parts = deployment.model.parts
    return parts.mixers + parts.dense_mlps + parts.active_experts + parts.routers


def _attention_flops(deployment: Deployment, context: Array, *, prompt: bool) -> Array:
    """Attention beyond the projections for one token that sees ``context`` tokens."""
    total = np.zeros_like(context)
    for group in deployment.model.groups:
        if group.mixer is not None:
            seen = np.minimum(context, group.mixer.window) if group.mixer.window else context
            flops = group.mixer.prompt_flops_per_token if prompt else group.mixer.flops_per_token
            total = total + group.count * (flops(0) + seen * (flops(1) - flops(0)))
    return total


def _parts(memory: float, compute: float, communication: float, overhead: float) -> StepParts:
    return StepParts(
        memory_s=memory,
        compute_s=compute,
        communication_s=communication,
        overhead_s=overhead,
        step_s=max(memory, compute) + communication + overhead,
    )
