"""What a model is made of: layers, heads, experts; and what follows from it by counting.

A ``ModelSpec`` is read from a Hugging Face ``config.json`` (``catalog.config_json``) or from the catalogue, whose
rows are such configs reduced to the fields that matter. Parameters, bytes and FLOPs are counted from the matrices
the architecture has; they are checked against the published parameter counts kept beside each row.
"""

from datetime import date
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from tokonomics.catalog.precision import KV_PRECISIONS, Precision, kv_bytes_per_element
from tokonomics.types import Noun


class GroupedAttention(Noun):
    """Multi-head, grouped-query or multi-query attention; with a window it only keeps the last tokens."""

    kind: Literal["gqa"] = "gqa"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    window: PositiveInt | None = None
    bias_elements: NonNegativeInt = 0
    norm_elements: NonNegativeInt = 0
    output_gate: bool = False
    """The query projection also makes a gate of the same width (Qwen3-Next)."""

    def matrix_parameters(self, hidden: int) -> int:
        query = self.heads * self.head_dim * (2 if self.output_gate else 1)
        kv = 2 * self.kv_heads * self.head_dim
        return hidden * (query + kv) + self.heads * self.head_dim * hidden

    @property
    def small_parameters(self) -> int:
        return self.bias_elements + self.norm_elements

    @property
    def kv_elements_per_token(self) -> int:
        return 2 * self.kv_heads * self.head_dim

    @property
    def state_bytes(self) -> int:
        return 0

    def flops_per_token(self, context: float) -> float:
        """Scores and weighted values over the tokens it can see, beyond the projections."""
        seen = min(context, self.window) if self.window else context
        return 4.0 * self.heads * self.head_dim * seen

    def prompt_flops_per_token(self, context: float) -> float:
        return self.flops_per_token(context)


class LatentAttention(Noun):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): caches one compressed vector per token."""

    kind: Literal["mla"] = "mla"
    heads: PositiveInt
    query_rank: PositiveInt | None
    kv_rank: PositiveInt
    nope_dim: PositiveInt
    rope_dim: PositiveInt
    value_dim: PositiveInt
    bias_elements: NonNegativeInt = 0
    window: None = None

    def matrix_parameters(self, hidden: int) -> int:
        query_width = self.heads * (self.nope_dim + self.rope_dim)
        query = hidden * query_width
        if self.query_rank:
            query = hidden * self.query_rank + self.query_rank * query_width
        down = hidden * (self.kv_rank + self.rope_dim)
        up = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return query + down + up + self.heads * self.value_dim * hidden

    @property
    def small_parameters(self) -> int:
        return (self.query_rank or 0) + self.kv_rank + self.bias_elements

    @property
    def kv_elements_per_token(self) -> int:
        return self.kv_rank + self.rope_dim

    @property
    def state_bytes(self) -> int:
        return 0

    def flops_per_token(self, context: float) -> float:
        """Decode in the absorbed form: queries and values live in the latent space."""
        return 2.0 * self.heads * (2 * self.kv_rank + self.rope_dim) * context

    def prompt_flops_per_token(self, context: float) -> float:
        """Prefill in the plain form: keys and values are expanded to every head once, then attended to."""
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim) * context


class RecurrentMixer(Noun):
    """Linear attention or state-space layer (Gated DeltaNet, Mamba): a state of fixed size instead of a KV cache."""

    kind: Literal["recurrent"] = "recurrent"
    projection_parameters: PositiveInt
    small_parameters: NonNegativeInt = 0
    state_elements: PositiveInt
    """Recurrent and convolution state of one sequence."""
    fp32_state_elements: NonNegativeInt = 0
    """How many of them the config asks to keep in 32 bits; the rest is in 16."""
    window: None = None

    def matrix_parameters(self, hidden: int) -> int:
        return self.projection_parameters

    @property
    def kv_elements_per_token(self) -> int:
        return 0

    @property
    def state_bytes(self) -> int:
        return 2 * (self.state_elements + self.fp32_state_elements)

    def flops_per_token(self, context: float) -> float:
        """Decay, update by an outer product, and read: three multiply-adds per state element."""
        return 6.0 * self.state_elements

    def prompt_flops_per_token(self, context: float) -> float:
        return self.flops_per_token(context)


Mixer = Annotated[GroupedAttention | LatentAttention | RecurrentMixer, Field(discriminator="kind")]


class DenseMlp(Noun):
    """A feed-forward block that every token passes."""

    kind: Literal["dense"] = "dense"
    intermediate: PositiveInt
    gated: bool = True
    bias_elements: NonNegativeInt = 0

    def matrix_parameters(self, hidden: int) -> int:
        return (3 if self.gated else 2) * hidden * self.intermediate


class MoeMlp(Noun):
    """Experts of which each token visits a few; shared experts see every token."""

    kind: Literal["moe"] = "moe"
    experts: PositiveInt
    active_experts: PositiveInt
    intermediate: PositiveInt
    gated: bool = True
    shared_intermediate: NonNegativeInt = 0
    """Total width of the shared experts."""
    expert_bias_elements: NonNegativeInt = 0
    router_bias_elements: NonNegativeInt = 0
    shared_gate: bool = False
    latent: PositiveInt | None = None
    """Width the routed experts work in, behind a projection down and one up (Nemotron 3); None: the hidden width."""

    def expert_parameters(self, hidden: int) -> int:
        return (3 if self.gated else 2) * (self.latent or hidden) * self.intermediate

    def shared_parameters(self, hidden: int) -> int:
        return (3 if self.gated else 2) * hidden * self.shared_intermediate

    def latent_parameters(self, hidden: int) -> int:
        """The projections to and from the latent width."""
        return 2 * hidden * (self.latent or 0)

    def router_parameters(self, hidden: int) -> int:
        return hidden * self.experts + self.router_bias_elements + (hidden if self.shared_gate else 0)


Mlp = Annotated[DenseMlp | MoeMlp, Field(discriminator="kind")]


class LayerGroup(Noun):
    """Layers of the same make. Their order in the model does not change what they cost."""

    count: PositiveInt
    mixer: Mixer | None
    mlp: Mlp | None
    norm_elements: NonNegativeInt


class Parts(Noun):
    """Parameters by the role that decides their precision and how often a token touches them."""

    embedding: int
    head: int
    """The LM head's own matrix; 0 when it shares the embedding."""
    mixers: int
    dense_mlps: int
    experts: int
    active_experts: int
    """The experts' parameters that one token passes."""
    routers: int
    small: int
    """Norms and biases."""
    extra: int
    """Loaded with the checkpoint, unused by text: vision or audio tower."""


class MatrixWidths(Noun):
    """Bytes per weight, by part."""

    mixer: float
    mlp: float
    expert: float
    rest: float


class Published(Noun):
    """What the model's authors state, to check our counting against."""

    parameters: PositiveInt
    active_parameters: PositiveInt | None = None
    source: str
    not_served: NonNegativeInt = 0
    """Parameters in the published figure that an engine does not load, such as a second copy of a tied LM head."""
    excludes: str | None = None
    """What the published figure leaves out or adds, where it differs from what is served."""


class ModelSpec(Noun):
    """An architecture, enough of it to count bytes and FLOPs."""

    key: str
    name: str
    family: str
    hidden: PositiveInt
    vocab: PositiveInt
    groups: tuple[LayerGroup, ...]
    tied_embeddings: bool
    final_norm_elements: NonNegativeInt
    position_parameters: NonNegativeInt = 0
    head_bias_elements: NonNegativeInt = 0
    embedding_parameters: PositiveInt
    extra_parameters: NonNegativeInt = 0
    max_context: PositiveInt
    checkpoint: Precision
    """The precision the weights are published in."""
    published: Published | None = None
    aliases: tuple[str, ...] = ()
    source: str
    date: date

    @property
    def served(self) -> Precision:
        """What engines serve the checkpoint in by default: its own precision, 32 bits rounded to 16."""
        return Precision.bf16 if self.checkpoint is Precision.fp32 else self.checkpoint

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def is_moe(self) -> bool:
        return any(isinstance(group.mlp, MoeMlp) for group in self.groups)

    @property
    def parts(self) -> Parts:
        mixers = dense = experts = active = routers = small = 0
        for group in self.groups:
            small += group.count * group.norm_elements
            if group.mixer:
                mixers += group.count * group.mixer.matrix_parameters(self.hidden)
                small += group.count * group.mixer.small_parameters
            if isinstance(group.mlp, DenseMlp):
                dense += group.count * group.mlp.matrix_parameters(self.hidden)
                small += group.count * group.mlp.bias_elements
            elif isinstance(group.mlp, MoeMlp):
                mlp = group.mlp
                one = mlp.expert_parameters(self.hidden)
                experts += group.count * mlp.experts * one
                active += group.count * mlp.active_experts * one
                dense += group.count * (mlp.shared_parameters(self.hidden) + mlp.latent_parameters(self.hidden))
                routers += group.count * mlp.router_parameters(self.hidden)
                small += group.count * mlp.experts * mlp.expert_bias_elements
        return Parts(
            embedding=self.embedding_parameters + self.position_parameters,
            head=0 if self.tied_embeddings else self.vocab * self.hidden,
            mixers=mixers,
            dense_mlps=dense,
            experts=experts,
            active_experts=active,
            routers=routers,
            small=small + self.final_norm_elements + self.head_bias_elements,
            extra=self.extra_parameters,
        )

    @property
    def parameters(self) -> int:
        parts = self.parts
        return (
            parts.embedding
            + parts.head
            + parts.mixers
            + parts.dense_mlps
            + parts.experts
            + parts.routers
            + parts.small
            + parts.extra
        )

    @property
    def active_parameters(self) -> int:
        """Parameters a text token passes through, embeddings counted as the field does."""
        parts = self.parts
        return self.parameters - parts.experts + parts.active_experts - parts.extra

    def precisions(self, weights: Precision) -> tuple[Precision, Precision]:
        """The precision of attention's and of dense feed-forward matrices when the model is held at ``weights``.

        MXFP4 covers the experts only (GPT-OSS model card, arXiv:2508.10925, section 2.1); a model without experts has
        its feed-forward matrices converted instead.
        """
        if weights is not Precision.mxfp4:
            return weights, weights
        return Precision.bf16, Precision.bf16 if self.is_moe else weights

    def matrix_widths(self, precision: Precision) -> "MatrixWidths":
        """Bytes per weight of each part when the block matrices are held at ``precision``.

        Embeddings, LM head, norms, routers and a vision tower stay in 16 bits, as every engine's quantisation
        leaves them.
        """
        mixer, mlp = self.precisions(precision)
        return MatrixWidths(
            mixer=mixer.bytes_per_weight,
            mlp=mlp.bytes_per_weight,
            expert=precision.bytes_per_weight,
            rest=max(precision.bytes_per_weight, Precision.bf16.bytes_per_weight),
        )

    def weight_bytes(self, precision: Precision) -> int:
        """Bytes of the loaded weights at ``precision``; see ``matrix_widths`` for what stays wide."""
        parts, width = self.parts, self.matrix_widths(precision)
        matrices = parts.mixers * width.mixer + parts.dense_mlps * width.mlp + parts.experts * width.expert
        rest = parts.embedding + parts.head + parts.routers + parts.small + parts.extra
        return round(matrices + rest * width.rest)

    def kv_bytes_per_token(self, kv: Precision) -> int:
        """KV cache that one more token needs while it is inside every layer's window."""
        elements = sum(group.count * group.mixer.kv_elements_per_token for group in self.groups if group.mixer)
        return round(elements * kv_bytes_per_element(kv))

    @property
    def state_bytes(self) -> int:
        """Recurrent and convolution state that one sequence holds, whatever its length; 0 without such layers."""
        return sum(group.count * group.mixer.state_bytes for group in self.groups if group.mixer)

    def flops_per_token(self, context: float) -> float:
        """FLOPs of one token that sees ``context`` tokens: two per active matrix weight, plus attention."""
        parts = self.parts
        head = parts.head or self.vocab * self.hidden
        matrices = parts.mixers + parts.dense_mlps + parts.active_experts + parts.routers + head
        attention = sum(group.count * group.mixer.flops_per_token(context) for group in self.groups if group.mixer)
        return 2.0 * matrices + attention

    def summary(self) -> dict[str, object]:
        """What a table or a program wants to know of a model: names, counts, bytes by precision."""
        return {
            "key": self.key,
            "name": self.name,
            "family": self.family,
            "parameters": self.parameters,
            "active_parameters": self.active_parameters,
            "layers": self.layers,
            "hidden": self.hidden,
            "vocab": self.vocab,
            "max_context": self.max_context,
            "moe": self.is_moe,
            "checkpoint": self.checkpoint.value,
            "weight_bytes": {each.value: self.weight_bytes(each) for each in Precision},
            "kv_bytes_per_token": {precision.value: self.kv_bytes_per_token(precision) for precision in KV_PRECISIONS},
            "flops_per_token": self.flops_per_token(context=0),
            "published": self.published.model_dump() if self.published else None,
            "source": self.source,
            "date": self.date.isoformat(),
        }
