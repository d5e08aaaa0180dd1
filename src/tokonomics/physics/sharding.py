"""What each GPU of a replica holds: tensor parallelism splits matrices and heads, pipeline stages split layers.

Norms, routers and MLA's down-projections are copied to every tensor-parallel rank; KV heads are copied once there
are more ranks than heads (vLLM and SGLang do the same), and MLA's single latent vector always is.
"""

import math

from tokonomics.catalog.models import DenseMlp, GroupedAttention, LatentAttention, Mixer, MoeMlp
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment


class Shard(Noun):
    """Bytes on the fullest GPU, by how often a decode step reads them."""

    blocks: float
    """Attention, dense and shared feed-forward matrices, routers, norms: read every step."""
    head: float
    """The LM head: read every step."""
    idle: float
    """Embedding table and vision tower: loaded, but a step reads a few rows at most."""
    experts_held: float
    """All experts of all layers on this GPU."""

    @property
    def total(self) -> float:
        return self.blocks + self.head + self.idle + self.experts_held


def mixer_parameters(mixer: Mixer, hidden: int, tp: int) -> float:
    """Matrix weights of one attention or recurrent layer on one rank."""
    if isinstance(mixer, GroupedAttention):
        kv_heads = 0 if mixer.shares_kv else max(mixer.kv_heads / tp, 1)
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
            blocks += group.count * mlp.shared_parameters(model.hidden) / tp * width.mlp
            blocks += group.count * mlp.router_parameters(model.hidden) * width.rest
            experts += group.count * mlp.experts * expert_bytes(deployment, mlp)
    stage = math.ceil(model.layers / deployment.pp) / model.layers
    parts = model.parts
    head = model.vocab * model.hidden
    embedding = parts.embedding - (0 if parts.head else head)
    if deployment.pp > 1:  # the first stage holds the embedding, the last the head: the fullest holds one of them
        embedding = 0
    return Shard(
        blocks=blocks * stage + model.final_norm_elements * width.rest,
        experts_held=experts * stage,
        head=head / tp * width.rest,
        idle=(embedding / tp + parts.extra) * width.rest,
    )
