"""What each GPU of a replica holds: tensor parallelism splits matrices and heads, pipeline stages split layers.

Norms, routers, MLA's down-projections and those to and from latent experts are copied to every tensor-parallel rank;
KV heads are copied once there are more ranks than heads (vLLM and SGLang do the same), and MLA's single latent vector
always is.
"""

import math

from tokonomics.catalog.models import (
    DenseMlp,
    GroupedAttention,
    LatentAttention,
    LayerGroup,
    Mixer,
    MoeMlp,
    RecurrentMixer,
)
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


def mixer_parameters(mixer: Mixer, hidden: int, tp: int) -> float:
    """Matrix weights of one attention or recurrent layer on one rank."""
    if isinstance(mixer, GroupedAttention):
        kv_heads = max(mixer.kv_heads / tp, 1)
        query = mixer.heads * mixer.head_dim * (2 if mixer.output_gate else 1) / tp
        output = mixer.heads * mixer.head_dim / tp
        return hidden * (query + output + 2 * kv_heads * mixer.head_dim)
    if isinstance(mixer, LatentAttention):
        down = hidden * ((mixer.query_rank or 0) + mixer.kv_rank + mixer.rope_dim)
        return down + (mixer.matrix_parameters(hidden) - down) / tp
    return mixer.matrix_parameters(hidden) / tp


def kv_elements_per_token(mixer: Mixer, tp: int) -> float:
    """Cached elements of one layer for one token on one rank."""
    if isinstance(mixer, GroupedAttention):
        return mixer.kv_elements_per_token / min(tp, mixer.kv_heads)
    return mixer.kv_elements_per_token


def expert_bytes(deployment: Deployment, mlp: MoeMlp) -> float:
    """One expert of one layer on one rank."""
    width = deployment.model.matrix_widths(deployment.weights)
    matrices = mlp.expert_parameters(deployment.model.hidden) / deployment.tp
    return matrices * width.expert + mlp.expert_bias_elements * width.rest


def shard(deployment: Deployment) -> Shard:
    """The weights on the fullest GPU of a replica."""
    model, tp = deployment.model, deployment.tp
    width = model.matrix_widths(deployment.weights)
    blocks = experts = 0.0
    for group in model.groups:
        blocks += group.count * group.norm_elements * width.rest
        if group.mixer:
            blocks += group.count * mixer_parameters(group.mixer, model.hidden, tp) * width.mixer
            blocks += group.count * group.mixer.small_parameters * width.rest
        if isinstance(group.mlp, DenseMlp):
            blocks += group.count * group.mlp.matrix_parameters(model.hidden) / tp * width.mlp
            blocks += group.count * group.mlp.bias_elements * width.rest
        elif isinstance(group.mlp, MoeMlp):
            mlp = group.mlp
            shared = mlp.shared_parameters(model.hidden) / tp + mlp.latent_parameters(model.hidden)
            blocks += group.count * shared * width.mlp
            blocks += group.count * mlp.router_parameters(model.hidden) * width.rest
            experts += group.count * mlp.experts * expert_bytes(deployment, mlp)
    stage = math.ceil(model.layers / deployment.pp) / model.layers
    parts = model.parts
    table = model.vocab * model.hidden
    # Tied, the embedding is the head; in stages, the first holds the one and the last the other.
    embedding = parts.embedding - (table if deployment.pp > 1 or not parts.head else 0)
    return Shard(
        blocks=blocks * stage + model.final_norm_elements * width.rest,
        experts_held=experts * stage,
        head=(table + model.head_bias_elements) / tp * width.rest,
        idle=(embedding / tp + parts.extra) * width.rest,
    )


def step_weight_bytes(deployment: Deployment, tokens: float) -> float:
    """Weights that a step reads on one tensor rank, over all stages: every block once, and the experts visited."""
    held = shard(deployment)
    total = held.blocks * deployment.pp + held.head
    for group in deployment.model.groups:
        if isinstance(group.mlp, MoeMlp):
            visited = float(distinct_experts(group.mlp.experts, group.mlp.active_experts, tokens))
            total += group.count * visited * expert_bytes(deployment, group.mlp)
    return total


def adapter_bytes(deployment: Deployment) -> float:
    """LoRA adapters on one GPU: for every dense product of every layer, two matrices of the rank's width."""
    widths = sum(
        group.count * (n + k) for group in deployment.model.groups for n, k, _ in dense_products(group, deployment)
    )
    each = widths * deployment.lora_rank * Precision.bf16.bytes_per_weight
    return deployment.lora_adapters * each / deployment.pp


def dense_products(group: LayerGroup, deployment: Deployment) -> list[tuple[float, float, Precision]]:
    """Output width, input width and precision of each dense matrix product of a layer, on one rank."""
    model, tp = deployment.model, deployment.tp
    in_mixer, in_mlp = model.precisions(deployment.weights)
    mixer, mlp, hidden = group.mixer, group.mlp, model.hidden
    made: list[tuple[float, float, Precision]] = []
    if isinstance(mixer, GroupedAttention):
        query = mixer.heads * mixer.head_dim / tp
        kv = 2 * max(mixer.kv_heads / tp, 1) * mixer.head_dim
        made += [(query * (2 if mixer.output_gate else 1) + kv, hidden, in_mixer), (hidden, query, in_mixer)]
    elif isinstance(mixer, LatentAttention):
        heads = mixer.heads / tp
        query = heads * (mixer.nope_dim + mixer.rope_dim)
        down = (mixer.query_rank or query) + mixer.kv_rank + mixer.rope_dim
        made += [(down, hidden, in_mixer)]
        made += [(query, mixer.query_rank, in_mixer)] if mixer.query_rank else []
        made += [(heads * (mixer.nope_dim + mixer.value_dim), mixer.kv_rank, in_mixer)]
        made += [(hidden, heads * mixer.value_dim, in_mixer)]
    elif isinstance(mixer, RecurrentMixer):
        made += [(mixer.projection_parameters / hidden / tp, hidden, in_mixer)]
    if isinstance(mlp, DenseMlp):
        made += _feed_forward(hidden, mlp.intermediate / tp, mlp.gated, in_mlp)
    elif isinstance(mlp, MoeMlp):
        if mlp.shared_intermediate:
            made += _feed_forward(hidden, mlp.shared_intermediate / tp, mlp.gated, in_mlp)
        if mlp.latent:
            made += [(mlp.latent, hidden, in_mlp), (hidden, mlp.latent, in_mlp)]
    return made


def _feed_forward(hidden: int, width: float, gated: bool, weights: Precision) -> list[tuple[float, float, Precision]]:
    return [((2 if gated else 1) * width, hidden, weights), (hidden, width, weights)]
