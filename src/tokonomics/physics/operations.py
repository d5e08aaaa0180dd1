"""How long each operation of a deployment's layers takes, on one rank, over all layers of a kind.

Which kernel an operation is, at which sizes and in which precision, is decided here; how long a kernel takes, in
``matrix_kernels`` and ``attention_kernels``; curves of one's ``own`` GPU come before ours. ``least_…`` is what the
datasheet allows, whatever a profile says.
"""

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.models import (
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    MoeMlp,
    RecurrentMixer,
)
from tokonomics.catalog.precision import Precision, kv_bytes_per_element
from tokonomics.physics.attention_kernels import (
    decode_attention_s,
    mla_decode_s,
    mla_prefill_s,
    prefill_attention_s,
    seen_pairs,
)
from tokonomics.physics.calibration import Kernels
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.efficiency import efficiency
from tokonomics.physics.matrix_kernels import GemmCurve, all_reduce_s, experts_s, gemm_s
from tokonomics.physics.overhead import Layers
from tokonomics.physics.sharding import adapter_bytes, dense_products, kv_elements_per_token, step_weight_bytes

Array = NDArray[np.float64]

BARE_KERNELS = "pytorch"  # whose kernels a bare step runs: no engine around it, plain PyTorch


def _bf16(own: Kernels | None) -> GemmCurve | None:
    return own.gemm_curve(Precision.bf16) if own else None


def _memory_share(deployment: Deployment, own: Kernels | None) -> float:
    return own.memory if own else efficiency(deployment.gpu).memory


def matrices_s(
    group: LayerGroup, deployment: Deployment, between: Layers, backend: str, tokens: Array, own: Kernels | None
) -> Array:
    """Matrix products of a group of layers: projections, feed-forward, router, experts."""
    total = np.zeros_like(tokens)
    for n, k, weights in dense_products(group, deployment):
        total = (
            total
            + gemm_s(deployment.gpu, weights, tokens, n, k, backend, own.gemm_curve(weights) if own else None)
            + _lora_products_s(deployment, tokens, n, k, backend, own)
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
                # Bare steps have their experts' curve from whole steps, as a graph runs them.
                launch=1.0 if backend == BARE_KERNELS else between.expert_launch,
            )
        )
    return group.count * total


def head_s(deployment: Deployment, backend: str, sequences: Array, own: Kernels | None) -> Array:
    """The vocabulary's product, for the last token of each sequence."""
    model = deployment.model
    return gemm_s(
        deployment.gpu, Precision.bf16, sequences, model.vocab / deployment.tp, model.hidden, backend, _bf16(own)
    )


def least_tokens_s(deployment: Deployment, tokens: Array) -> Array:
    """What the datasheet allows: weights read once at full bandwidth, matrix products at peak FLOP/s."""
    model, gpu = deployment.model, deployment.gpu
    read = np.array([step_weight_bytes(deployment, token) for token in tokens]) / gpu.bandwidth_bytes_per_s
    token_s = 0.0
    for group in model.groups:
        for n, k, weights in dense_products(group, deployment):
            token_s += group.count * 2.0 * n * k / gpu.peak_flops(weights)
        if isinstance(group.mlp, MoeMlp):
            routed = group.mlp.active_experts * group.mlp.expert_parameters(model.hidden) / deployment.tp
            token_s += group.count * 2.0 * routed / gpu.peak_flops(deployment.weights)
    return np.maximum(read, tokens * token_s)


def least_decode_attention_s(
    mixer: Mixer, deployment: Deployment, batch: Array | np.float64, context: Array | np.float64
) -> Array:
    """The cached keys and values of one layer, read once at full bandwidth."""
    seen = np.minimum(context, mixer.window) if mixer.window else context
    width = kv_elements_per_token(mixer, deployment.tp) * kv_bytes_per_element(deployment.kv)
    return np.asarray(batch * seen * width / deployment.gpu.bandwidth_bytes_per_s)


def least_prompt_attention_s(
    mixer: Mixer, deployment: Deployment, prompt: Array, past: Array, prompts: Array
) -> Array | float:
    """The pairs of a prompt's token and one that it sees, multiplied at peak FLOP/s."""
    if isinstance(mixer, RecurrentMixer):
        return 0.0
    flops = prompts * seen_pairs(prompt, past, mixer.window) * mixer.prompt_flops_per_token(1) / deployment.tp
    return np.asarray(flops / deployment.gpu.peak_flops(deployment.kv))


def _lora_products_s(
    deployment: Deployment, tokens: Array, n: float, k: float, backend: str, own: Kernels | None
) -> Array | float:
    """LoRA beside one dense product, with one adapter for all tokens: down to the rank and up again."""
    rank = deployment.lora_rank
    if not rank:
        return 0.0
    gpu, curve, bf16 = deployment.gpu, _bf16(own), Precision.bf16
    return gemm_s(gpu, bf16, tokens, rank, k, backend, curve) + gemm_s(gpu, bf16, tokens, n, rank, backend, curve)


def adapter_read_s(deployment: Deployment, own: Kernels | None) -> float:
    """Streaming the weights of one adapter more, over all layers."""
    one = deployment.model_copy(update={"lora_adapters": 1})
    bandwidth = deployment.gpu.bandwidth_bytes_per_s * _memory_share(deployment, own)
    return adapter_bytes(one) * deployment.pp / bandwidth


def small_ops_s(
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
    return group.count * (layer_share(group) * between.layer_s + moved / (gpu.bandwidth_bytes_per_s * share))


def _blocks(group: LayerGroup) -> int:
    """A mixer and a feed-forward make two blocks of a layer; some hybrids have layers of one."""
    return (group.mixer is not None) + (group.mlp is not None)


def layer_share(group: LayerGroup) -> float:
    """Of a whole layer, a mixer and a feed-forward: one half where a hybrid's layer has only one of the two."""
    return _blocks(group) / 2


def communication_s(deployment: Deployment, tokens: Array, own: Kernels | None) -> Array:
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


def decode_mixer_s(
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
        curve = own.decode_curve(**heads) if own and backend == BARE_KERNELS else None
        return decode_attention_s(gpu, kv, batch, context, backend=backend, own=curve, **heads)
    if isinstance(mixer, LatentAttention):
        ranks = {"kv_rank": mixer.kv_rank, "rope_dim": mixer.rope_dim}
        return mla_decode_s(gpu, kv, batch, context, heads=mixer.heads / tp, backend=backend, **ranks)
    # A recurrent state is read and written back once a step, whatever the context.
    moved = 2.0 * mixer.state_bytes / tp * np.asarray(batch)
    return np.asarray(moved / (gpu.bandwidth_bytes_per_s * _memory_share(deployment, own)))


def prompt_mixer_s(
    mixer: Mixer, deployment: Deployment, backend: str, prompt: Array, past: Array, prompts: Array, own: Kernels | None
) -> Array:
    gpu, kv, tp = deployment.gpu, deployment.kv, deployment.tp
    if isinstance(mixer, GroupedAttention):
        curve = own.prefill_curve(mixer.head_dim, mixer.window) if own and backend == BARE_KERNELS else None
        return prefill_attention_s(
            gpu, kv, prompt, past, sequences=prompts, backend=backend, own=curve, **_heads(mixer, tp)
        )
    if isinstance(mixer, LatentAttention):
        ranks = {"kv_rank": mixer.kv_rank, "rope_dim": mixer.rope_dim}
        dims = {"nope_dim": mixer.nope_dim, "value_dim": mixer.value_dim}
        heads = mixer.heads / tp
        return mla_prefill_s(gpu, kv, prompt, past, heads=heads, sequences=prompts, backend=backend, **ranks, **dims)
    return np.zeros(np.shape(prompt))
