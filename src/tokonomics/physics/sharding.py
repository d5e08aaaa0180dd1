"""What each GPU of a replica holds: tensor parallelism splits matrices and heads, pipeline stages split layers.

Norms, routers, MLA's down-projections and those to and from latent experts are copied to every tensor-parallel rank;
KV heads are copied once there are more ranks than heads (vLLM and SGLang do the same), and MLA's single latent vector
always is.
"""

import math
from functools import lru_cache

from tokonomics.catalog.layers import DenseMlp, LayerGroup, Mixer, MoeMlp
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.matrix_kernels import distinct_experts
from tokonomics.types import Noun


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
    """Cached bytes of one layer for one token more on one rank, inside every window."""
    return sum(cache.row_bytes(deployment.kv, deployment.tp) / cache.every for cache in mixer.caches)


def expert_bytes(deployment: Deployment, mlp: MoeMlp) -> float:
    """One expert of one layer on one rank, in the mean: a rank has those dealt to it, and its split of each.

    Biases are not split.
    """
    weights = deployment.weights
    matrices = mlp.expert_parameters(deployment.model.hidden) / deployment.expert_gpus
    biases = mlp.expert_bias_elements / deployment.ep * weights.bytes_per_unquantised
    return matrices * deployment.model.bytes_per_weight(weights) + biases


@lru_cache(maxsize=4096)
def shard(deployment: Deployment) -> Shard:
    """The weights on the fullest GPU of a replica; kept, as one plan asks for every machine and every speed."""
    model, tp = deployment.model, deployment.tp
    rest_bytes = deployment.weights.bytes_per_unquantised
    blocks = experts = 0.0
    for group in model.groups:
        matrices = sum(n * k * model.bytes_per_weight(weights) for n, k, weights in dense_products(group, deployment))
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
    # Tied, the embedding is the head; in stages, the first holds the one and the last the other.
    embedding = parts.embedding - (table if deployment.pp > 1 or not parts.head else 0)
    return Shard(
        blocks=blocks * stage + model.final_norm_elements * rest_bytes,
        experts_held=experts * stage,
        head=(table + model.head_bias_elements) / tp * rest_bytes,
        idle=(embedding / tp + parts.extra) * rest_bytes,
    )


def step_weight_bytes(deployment: Deployment, tokens: float) -> float:
    """Weights that a step reads on one tensor rank, over all stages: every block once, and the experts visited."""
    held = shard(deployment)
    total = held.blocks * deployment.pp + held.head
    for group in deployment.model.groups:
        if isinstance(group.mlp, MoeMlp):
            arrived = tokens * deployment.dp
            visited = float(distinct_experts(group.mlp.experts, group.mlp.active_experts, arrived))
            total += group.count * visited * expert_bytes(deployment, group.mlp)
    return total


def adapter_bytes(deployment: Deployment) -> float:
    """LoRA adapters on one GPU: for every dense product of every layer, two matrices of the rank's width."""
    groups = deployment.model.groups
    widths = sum(group.count * (n + k) for group in groups for n, k, _ in dense_products(group, deployment))
    adapter = widths * deployment.lora_rank * Precision.bf16.bytes_per_weight
    return deployment.lora_adapters * adapter / deployment.pp


def dense_products(group: LayerGroup, deployment: Deployment) -> list[tuple[float, float, Precision]]:
    """Output width, input width and precision of each dense matrix product of a layer, on one rank."""
    model = deployment.model
    in_mixer, in_mlp = model.precisions(deployment.weights)
    parts = ((group.mixer, in_mixer), (group.mlp, in_mlp))
    return [(n, k, weights) for part, weights in parts if part for n, k in part.products(model.hidden, deployment.tp)]
