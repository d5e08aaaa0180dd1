"""Define the layers of a model, and what follows from each by counting: matrices, caches, bytes at each precision.

Quantised formats carry scales, so a 4-bit weight is not half a byte.
"""

import math
from collections.abc import Sequence
from enum import StrEnum
from string import ascii_lowercase
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from tokonomics.errors import BadInput, shorten
from tokonomics.types import Noun


class Precision(StrEnum):
    """Number formats of weights and KV cache, widest first."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp8 = "fp8"
    int8 = "int8"
    int4 = "int4"
    nvfp4 = "nvfp4"
    mxfp4 = "mxfp4"

    bits: int  # the number in its name

    def __init__(self, name: str) -> None:
        self.bits = int(name.lstrip(ascii_lowercase))

    @property
    def bytes_per_weight(self) -> float:
        return _BYTES_PER_WEIGHT[self]

    @property
    def bytes_per_unquantised(self) -> float:
        """Return the bytes of embeddings, LM head, norms, routers and a vision tower: always 16 bits or more."""
        return max(self.bytes_per_weight, Precision.bf16.bytes_per_weight)

    def is_below(self, other: "Precision") -> bool:
        """Decide whether it has fewer bits than the other, so that a checkpoint served in it needs a quality check."""
        return self.bits < other.bits


_BYTES_PER_WEIGHT = {
    Precision.fp32: 4.0,
    Precision.bf16: 2.0,
    # One fp32 scale per 128×128 block (DeepSeek-V3 technical report, arXiv:2412.19437, section 3.3.2).
    Precision.fp8: 1.0 + 4 / (128 * 128),
    # One fp32 scale per output channel; a channel has thousands of weights (LLM.int8(), arXiv:2208.07339): negligible.
    Precision.int8: 1.0,
    # AWQ and GPTQ with groups of 128: a 16-bit scale and a 4-bit zero point each (arXiv:2306.00978, arXiv:2210.17323).
    Precision.int4: 0.5 + (2 + 0.5) / 128,
    # An fp8 scale per 16 weights (NVIDIA, "Introducing NVFP4", 2025-06-24).
    Precision.nvfp4: 0.5 + 1 / 16,
    # An 8-bit exponent per 32 weights (OCP Microscaling Formats v1.0, 2023-09).
    Precision.mxfp4: 0.5 + 1 / 32,
}


class Scales(StrEnum):
    """What shares a scale among weights in FP8, for which engines have kernels of their own."""

    blocks = "blocks"  # a square of weights (DeepSeek-V3, ``weight_block_size``)
    channel = "channel"  # all weights of an output
    tensor = "tensor"  # a whole matrix


WEIGHT_PRECISIONS = tuple(Precision)
KV_PRECISIONS = (Precision.bf16, Precision.fp8)  # the precisions of engines' KV caches (vLLM ``--kv-cache-dtype``)

_OTHER_NAMES = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "awq": "int4", "gptq": "int4", "w4a16": "int4"}


def kv_bytes_per_element(kv: Precision) -> float:
    """Return the bytes of one cached key or value element; the one scale per tensor of an FP8 cache is negligible."""
    return 1.0 if kv is Precision.fp8 else kv.bytes_per_weight


def parse_precision(text: str, allowed: Sequence[Precision], field: str) -> Precision:
    """Read a precision by its name; 16-bit formats count as bf16, AWQ and GPTQ as int4."""
    name = text.strip().lower()
    name = _OTHER_NAMES.get(name, name)
    if name not in allowed:
        raise BadInput(f"'{shorten(text)}' is not a precision here", field=field, fix=f"Valid: {', '.join(allowed)}.")
    return Precision(name)


Products = list[tuple[float, float]]
"""Output and input width of the matrix products that every token passes through, on one tensor-parallel rank."""


def weights_of(products: Products) -> int:
    """Count the weights in the matrices of these products."""
    return round(sum(outputs * inputs for outputs, inputs in products))


def _feed_forward(hidden: int, width: float, gated: bool) -> Products:
    return [((2 if gated else 1) * width, hidden), (hidden, width)]


class Cache(NamedTuple):
    """What a layer keeps of earlier tokens: one row for every few tokens, of the last ones or of all."""

    elements: int  # of a row
    heads: int  # which tensor-parallel ranks share; more ranks than heads hold copies
    every: int = 1  # tokens per row
    window: int | None = None  # keep only the rows of this many last tokens
    read: int | None = None  # rows that a new token reads; None: all that are kept
    element_bytes: float | None = None  # fixed, whatever the precision of the KV cache; None: follows that
    fp8_bytes: int | None = None  # of a row in FP8, if it is not a byte for each element

    def row_bytes(self, kv: Precision, tp: int = 1) -> float:
        """Return the bytes of one row on one rank."""
        width = kv_bytes_per_element(kv) if self.element_bytes is None else self.element_bytes
        row = self.fp8_bytes if self.fp8_bytes and kv is Precision.fp8 else self.elements * width
        return row / min(tp, self.heads)


class Indexer(Noun):
    """Scores a small key of every cached row to choose the few that attention then reads.

    DeepSeek Sparse Attention (DeepSeek-V3.2, arXiv:2512.02556, section 2.1). Every rank has a copy, because all heads
    share one choice.
    """

    heads: PositiveInt
    head_dim: PositiveInt
    query_input: PositiveInt  # width that its queries are projected from: the hidden one, or the queries' rank
    hidden_outputs: PositiveInt  # columns projected from the hidden width: keys, gates and weights of the heads
    small_parameters: NonNegativeInt = 0
    every: PositiveInt = 1  # tokens per key
    key_bytes: float = 1 + 4 / 128
    """Bytes of an element of a key: FP8 with a 32-bit scale for each 128 (vLLM, ``DeepseekV32IndexerCache``)."""

    def products(self, hidden: int) -> Products:
        return [(self.heads * self.head_dim, self.query_input), (self.hidden_outputs, hidden)]

    @property
    def cache(self) -> Cache:
        return Cache(self.head_dim, 1, every=self.every, element_bytes=self.key_bytes)

    @property
    def pair_flops(self) -> float:
        """Return the FLOPs of a token and one key: a score by each head."""
        return 2.0 * self.heads * self.head_dim


class GroupedAttention(Noun):
    """Multi-head, grouped-query or multi-query attention; with a window it keeps only the last tokens."""

    kind: Literal["gqa"] = "gqa"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    value_dim: PositiveInt | None = None  # None: as wide as a key
    query_rank: PositiveInt | None = None  # queries are projected down to this width, then up (Step 3)
    window: PositiveInt | None = None
    topk: PositiveInt | None = None  # cached tokens that an indexer leaves to attend to; None: all
    indexer: Indexer | None = None  # None beside ``topk``: another layer's choice is used
    bias_elements: NonNegativeInt = 0
    norm_elements: NonNegativeInt = 0
    output_gate: bool = False  # the query projection also makes a gate of the same width (Qwen3-Next)
    keys_are_values: bool = False  # one projection makes both (Gemma 4); each is cached
    reads_other: bool = False  # keys and values are another layer's (Gemma 4): neither projected nor cached
    bidirectional: bool = False  # of an encoder: every token also sees later ones, and nothing is kept
    state_bytes: ClassVar[int] = 0

    def products(self, hidden: int, tp: int = 1) -> Products:
        """Copy KV heads if there are more ranks than heads (vLLM and SGLang do the same)."""
        query = self.heads * self.head_dim / tp
        made = 0 if self.reads_other else self.head_dim if self.keys_are_values else self.kv_width
        kv = max(self.kv_heads / tp, 1) * made
        chosen = self.indexer.products(hidden) if self.indexer else []
        out = self.heads * (self.value_dim or self.head_dim) / tp
        if self.query_rank:
            return [(self.query_rank + kv, hidden), (query, self.query_rank), (hidden, out), *chosen]
        return [(query * (2 if self.output_gate else 1) + kv, hidden), (hidden, out), *chosen]

    @property
    def small_parameters(self) -> int:
        return self.bias_elements + self.norm_elements + (self.indexer.small_parameters if self.indexer else 0)

    @property
    def kv_width(self) -> int:
        """Return the width of a key and a value of one head."""
        return self.head_dim + (self.value_dim or self.head_dim)

    @property
    def caches(self) -> tuple[Cache, ...]:
        one = Cache(self.kv_heads * self.kv_width, self.kv_heads, window=self.window, read=self.topk)
        own = () if self.reads_other or self.bidirectional else (one,)
        return (*own, self.indexer.cache) if self.indexer else own

    @property
    def pair_flops(self) -> float:
        """Return the FLOPs of a prompt's token and one that it sees: score and weighted value."""
        return 2.0 * self.heads * self.kv_width


class LatentAttention(Noun):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434): caches one compressed vector per token."""

    kind: Literal["mla"] = "mla"
    heads: PositiveInt
    query_rank: PositiveInt | None
    kv_rank: PositiveInt
    nope_dim: PositiveInt
    rope_dim: PositiveInt
    value_dim: PositiveInt
    topk: PositiveInt | None = None  # cached tokens that an indexer leaves to attend to; None: all
    indexer: Indexer | None = None  # None beside ``topk``: another layer's choice is used
    bias_elements: NonNegativeInt = 0
    output_gate: bool = False  # a gate for every head's output, from the hidden width (Kimi K3)
    window: None = None
    state_bytes: ClassVar[int] = 0

    def products(self, hidden: int, tp: int = 1) -> Products:
        """Copy the down-projections to every rank, like the latent vector."""
        heads = self.heads / tp
        query = heads * (self.nope_dim + self.rope_dim)
        down = (self.query_rank or query) + self.kv_rank + self.rope_dim
        up = [(query, self.query_rank)] if self.query_rank else []
        up += [(heads * (self.nope_dim + self.value_dim), self.kv_rank)]
        up += [(heads * self.value_dim, hidden)] if self.output_gate else []
        chosen = self.indexer.products(hidden) if self.indexer else []
        return [(down, hidden), *up, (hidden, heads * self.value_dim), *chosen]

    @property
    def small_parameters(self) -> int:
        chosen = self.indexer.small_parameters if self.indexer else 0
        return (self.query_rank or 0) + self.kv_rank + self.bias_elements + chosen

    @property
    def caches(self) -> tuple[Cache, ...]:
        # Rows to choose from keep the rotary key in 16 bits, and a 32-bit scale for each 128 other elements: 656 bytes
        # of DeepSeek-V3.2 (vLLM, ``flashmla_sparse.py``; SGLang, ``quant_k_cache.py``). Else a layer has one scale.
        apart = self.kv_rank + 4 * math.ceil(self.kv_rank / 128) + 2 * self.rope_dim
        own = Cache(self.kv_rank + self.rope_dim, 1, read=self.topk, fp8_bytes=apart if self.topk else None)
        return (own, self.indexer.cache) if self.indexer else (own,)

    @property
    def pair_flops(self) -> float:
        """Return the FLOPs of prefill in the plain form: keys and values are expanded to every head once."""
        return 2.0 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)


class CompressedAttention(Noun):
    """One vector as key and value for every few tokens, and one for each of the last tokens (DeepSeek-V4)."""

    kind: Literal["compressed"] = "compressed"
    heads: PositiveInt
    query_rank: PositiveInt
    head_dim: PositiveInt
    rope_dim: NonNegativeInt  # of these, rotary
    every: PositiveInt | None  # tokens per compressed row; None: only the last tokens are seen
    overlaps: bool = False  # each row is made from its tokens and those before: two of every projection
    last: PositiveInt  # tokens seen as they are
    output_groups: PositiveInt  # heads are projected down in groups, to ``output_rank`` each, then to the hidden width
    output_rank: PositiveInt
    topk: PositiveInt | None = None  # compressed rows that an indexer leaves to attend to; None: all
    indexer: Indexer | None = None
    norm_elements: NonNegativeInt = 0  # norms, sinks, and biases by the position in a row
    window: None = None
    state_bytes: ClassVar[int] = 0

    def products(self, hidden: int, tp: int = 1) -> Products:
        """Copy keys to every rank; distribute groups of heads."""
        compress = 0 if self.every is None else 2 * (2 if self.overlaps else 1) * self.head_dim
        heads, groups = self.heads / tp, self.output_groups / tp
        return [
            (self.query_rank + self.head_dim + compress, hidden),
            (heads * self.head_dim, self.query_rank),
            (groups * self.output_rank, self.heads * self.head_dim / self.output_groups),
            (hidden, groups * self.output_rank),
            *(self.indexer.products(hidden) if self.indexer else []),
        ]

    @property
    def small_parameters(self) -> int:
        return self.norm_elements + (self.indexer.small_parameters if self.indexer else 0)

    @property
    def caches(self) -> tuple[Cache, ...]:
        # The rotary part stays in 16 bits; 64 others share an 8-bit exponent, and rows are filled up to 8 bytes: 584 of
        # DeepSeek-V4 (vLLM, ``deepseek_v4/xpu/xpu_sparse_decode_fp8.py``).
        plain = self.head_dim - self.rope_dim
        one = Cache(self.head_dim, 1, fp8_bytes=plain + 2 * self.rope_dim + 8 * math.ceil(plain / 512))
        last = one._replace(window=self.last)
        rows = (one._replace(every=self.every, read=self.topk),) if self.every else ()
        return (last, *rows, self.indexer.cache) if self.indexer else (last, *rows)

    @property
    def pair_flops(self) -> float:
        """Return the FLOPs of a prompt's token and one row that it sees."""
        return 4.0 * self.heads * self.head_dim


Recurrence = Literal["delta", "kda", "mamba2", "mamba"]
"""The kernels that a recurrent layer runs: of Gated DeltaNet, Kimi Delta Attention (a decay for every channel), Mamba-2
or Mamba."""


class RecurrentMixer(Noun):
    """Linear attention or state-space layer (Gated DeltaNet, Mamba): a state of fixed size instead of a KV cache."""

    kind: Literal["recurrent"] = "recurrent"
    projection_parameters: PositiveInt
    small_parameters: NonNegativeInt = 0
    state_elements: PositiveInt  # recurrent and convolution state of one sequence
    fp32_state_elements: NonNegativeInt = 0  # how many of them the config keeps in 32 bits; the rest is in 16
    scan_flops: float = 0.0  # of a prompt's token in the chunked scan, over all heads
    recurrence: Recurrence = "delta"
    window: None = None
    caches: ClassVar[tuple[Cache, ...]] = ()

    def products(self, hidden: int, tp: int = 1) -> Products:
        return [(self.projection_parameters / hidden / tp, hidden)]

    @property
    def state_bytes(self) -> int:
        return 2 * (self.state_elements + self.fp32_state_elements)

    @property
    def state_flops(self) -> float:
        """Return the FLOPs of a token: decay, update by outer product, and read, three multiply-adds per element."""
        return 6.0 * self.state_elements


Mixer = Annotated[
    GroupedAttention | LatentAttention | CompressedAttention | RecurrentMixer, Field(discriminator="kind")
]


class DenseMlp(Noun):
    """A feed-forward block that every token passes."""

    kind: Literal["dense"] = "dense"
    intermediate: PositiveInt
    gated: bool = True
    bias_elements: NonNegativeInt = 0
    side: NonNegativeInt = 0
    """Width of a layer's own input (Gemma 4 E2B and E4B): projected from the embedding, gated, projected up."""

    def products(self, hidden: int, tp: int = 1) -> Products:
        """Copy the matrices of a layer's own input to every rank."""
        beside: Products = [(2 * self.side, hidden), (hidden, self.side)] if self.side else []
        return _feed_forward(hidden, self.intermediate / tp, self.gated) + beside


class MoeMlp(Noun):
    """Experts of which each token visits a few; every token passes the shared experts."""

    kind: Literal["moe"] = "moe"
    experts: PositiveInt
    active_experts: PositiveInt
    intermediate: PositiveInt
    gated: bool = True
    shared_intermediate: NonNegativeInt = 0  # total width of the shared experts
    expert_bias_elements: NonNegativeInt = 0
    router_bias_elements: NonNegativeInt = 0
    shared_gate: bool = False
    latent: PositiveInt | None = None
    """Width of the routed experts' input, with a projection down and one up (Nemotron 3); None: the hidden width."""

    def expert_parameters(self, hidden: int) -> int:
        return (3 if self.gated else 2) * (self.latent or hidden) * self.intermediate

    def products(self, hidden: int, tp: int = 1) -> Products:
        """Return the shared experts, and the projections to and from the latent width, which every rank copies."""
        shared = _feed_forward(hidden, self.shared_intermediate / tp, self.gated) if self.shared_intermediate else []
        return shared + ([(self.latent, hidden), (hidden, self.latent)] if self.latent else [])

    def router_parameters(self, hidden: int) -> int:
        return hidden * self.experts + self.router_bias_elements + (hidden if self.shared_gate else 0)


Mlp = Annotated[DenseMlp | MoeMlp, Field(discriminator="kind")]


class LayerGroup(Noun):
    """Identical layers. Their order in the model does not change what they cost."""

    count: PositiveInt
    mixer: Mixer | None
    mlp: Mlp | None
    norm_elements: NonNegativeInt
