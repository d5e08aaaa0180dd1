"""List the sizes that the probe times: generic ones that span served models, and whole models to check their sum.

Matrices are those of layers (queries and keys, output, feed-forward, vocabulary) of hidden widths from 1k to 16k, whole
or split over GPUs, in round numbers that few models have: so the curves are not fitted on the models of the check. This
is plain Python: the machine with the GPU needs no more.
"""

from dataclasses import dataclass, replace
from itertools import product

BYTES = 2  # of an element in bf16


@dataclass(frozen=True)
class KernelShape:
    """A model's dimensions, as in the catalogue, and the loads it is timed under."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    head_dim: int = 128
    bias: bool = False
    tied: bool = False
    experts: int = 0
    active: int = 0
    batches: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    contexts: tuple[int, ...] = (512, 2048, 8192)
    prompts: tuple[tuple[int, int], ...] = ((1, 512), (1, 2048), (1, 8192), (4, 1024))
    memory: float = 120e9  # bytes that weights and KV cache may take together

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that a step reads if every expert is visited: all but an untied embedding table."""
        own = self.hidden * (self.qkv + self.heads * self.head_dim) + (self.qkv if self.bias else 0) + 2 * self.hidden
        mlp = 3 * self.hidden * self.intermediate
        own += self.experts * (mlp + self.hidden) if self.experts else mlp
        return BYTES * (self.layers * own + self.hidden + self.vocab * self.hidden)

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Return columns and depth of one layer's matrices and of the head."""
        wide = self.heads * self.head_dim
        layer = ((self.qkv, self.hidden), (self.hidden, wide), (2 * self.intermediate, self.hidden))
        return (*layer, (self.hidden, self.intermediate), (self.vocab, self.hidden))

    @property
    def held_bytes(self) -> int:
        """Return the bytes in memory before there is any KV cache."""
        return self.weight_bytes + (0 if self.tied else BYTES * self.vocab * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def loads(self) -> list[tuple[int, int]]:
        """Return every batch and context that fits."""
        room = self.memory - self.held_bytes
        every = product(self.batches, self.contexts)
        return [(batch, context) for batch, context in every if batch * context * self.kv_bytes_per_token <= room]


@dataclass(frozen=True)
class Heads:
    heads: int
    kv_heads: int
    head_dim: int

    def kv_bytes(self, batch: int, context: int) -> int:
        return BYTES * 2 * batch * context * self.kv_heads * self.head_dim


ROWS = (1, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192)
MATRICES = (
    (1024, 1024), (1536, 1024), (6144, 1024), (1024, 3072),
    (2048, 2048), (3072, 2048), (16384, 2048), (2048, 8192), (131072, 2048),
    (3072, 3072), (4608, 3072), (20480, 3072), (3072, 10240),
    (4096, 4096), (6144, 4096), (24576, 4096), (4096, 12288), (98304, 4096),
    (5120, 5120), (7168, 5120), (32768, 5120), (5120, 16384),
    (1280, 8192), (8192, 1024), (7168, 8192), (8192, 3584),
    (8192, 8192), (10240, 8192), (49152, 8192), (8192, 24576),
    (12288, 12288), (16384, 16384),
)  # fmt: skip
"""Columns and depth of weights: out × in."""
SUSTAINED = ((8192, 8192, 8192), (4096, 24576, 4096), (2048, 4096, 12288))
"""Rows, columns and depth of products timed on a rested GPU and on one that has computed for a second."""

DECODE = Heads(32, 8, 128)
DECODE_BATCHES = (1, 3, 12, 20, 40, 64, 110, 160, 256)
DECODE_CONTEXTS = (131, 517, 1531, 2503, 4099, 8209, 16411, 32749)
"""No tile divides these contexts: a kernel's fast path for whole tiles, a tenth faster, is not typical of served
contexts."""
OTHER_HEADS = (Heads(16, 8, 128), Heads(32, 4, 128), Heads(64, 8, 128), Heads(32, 8, 64), Heads(32, 32, 128))
OTHER_BATCHES = (1, 12, 40, 110, 256)
OTHER_CONTEXTS = (517, 1531, 4099, 16411)
PROMPT_HEADS = (Heads(32, 8, 128), Heads(32, 8, 64), Heads(16, 8, 128), Heads(32, 32, 128))
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PASTS = ((512, 2048), (512, 8192), (2048, 8192), (2048, 30720))  # tokens of a chunk and cached ones before it
MESSAGES = tuple(1 << power for power in range(12, 29, 2))  # bytes of an all-reduce

STACKS = {
    "narrow": KernelShape(12, 1536, 16, 8, 6144, 1024, batches=(1, 32, 256), contexts=(16,), prompts=()),
    "wide": KernelShape(6, 4608, 32, 8, 15360, 1024, batches=(1, 32, 256), contexts=(16,), prompts=()),
}
"""A few layers without attention, to time what is between the matrices."""

CHECK = {
    "llama-3.1-8b": KernelShape(
        32, 4096, 32, 8, 14336, 128256, batches=(1, 64, 256), contexts=(512, 2048, 8192), prompts=((1, 2048),)
    ),
    "llama-3.2-1b": KernelShape(
        16, 2048, 32, 8, 8192, 128256, 64, tied=True, batches=(1, 64), contexts=(512, 4096), prompts=((1, 2048),)
    ),
}
"""Whole models whose steps are predicted from the profile and timed."""

_MODELS = {
    "qwen2.5-7b": KernelShape(28, 3584, 28, 4, 18944, 152064, bias=True),
    "llama-3.2-3b": KernelShape(28, 3072, 24, 8, 8192, 128256, tied=True),
    "mistral-nemo": KernelShape(40, 5120, 32, 8, 14336, 131072),
    "llama-3.1-8b": KernelShape(32, 4096, 32, 8, 14336, 128256),
    "qwen2.5-14b": KernelShape(48, 5120, 40, 8, 13824, 152064, bias=True),
    "llama-3.2-1b": KernelShape(16, 2048, 32, 8, 8192, 128256, 64, tied=True),
}
HELD_OUT = {
    name: replace(shape, batches=(2, 24, 96, 192), contexts=(1000, 3000), prompts=((1, 1536), (2, 3000), (1, 6000)))
    for name, shape in _MODELS.items()
}
"""For validation: models, batches and contexts that the probe times nowhere."""


def matrix_points(quick: bool) -> list[tuple[int, int, int]]:
    """Return (m, n, k) of the products to time, large strides first, so that a run cut short has seen all sizes."""
    rows, matrices = (ROWS[::2] + ROWS[-1:], MATRICES[::2]) if quick else (ROWS, MATRICES)
    every = [(m, n, k) for n, k in matrices for m in rows]
    # Also those of ``STACKS``: the rest of their layers' time is between the products.
    stacks = list(STACKS.values())[: 1 if quick else None]
    stacked = [(m, n, k) for stack in stacks for m in stack.batches for n, k in stack.products]
    return stacked + [point for start in (0, 2, 1, 3) for point in every[start::4]]


def decode_points(quick: bool, most_bytes: float) -> list[tuple[Heads, int, int]]:
    """Return heads, batch and context of the decode attention to time, as far as they fit."""
    own = product((DECODE,), DECODE_BATCHES[::2] if quick else DECODE_BATCHES, DECODE_CONTEXTS)
    rest = product(OTHER_HEADS[2:] if quick else OTHER_HEADS, OTHER_BATCHES, OTHER_CONTEXTS)
    every = [point for point in (*own, *rest) if point[0].kv_bytes(*point[1:]) <= most_bytes]
    return [point for start in (0, 2, 1, 3) for point in every[start::4]]


def prompt_points(quick: bool, most_bytes: float) -> list[tuple[Heads, int, int, int]]:
    """Return heads, prompts, tokens of each and cached tokens before them."""
    heads = PROMPT_HEADS[:2] if quick else PROMPT_HEADS
    sizes = product(heads, (1, 4), PROMPTS)
    fresh = [(head, many, tokens, 0) for head, many, tokens in sizes if many * tokens < 32768]
    after = [(head, 1, tokens, past) for head in heads[:1] for tokens, past in PASTS]
    return [point for point in (*fresh, *after) if 8 * point[0].kv_bytes(point[1], point[2] + point[3]) <= most_bytes]


def copies(size_bytes: float, cache_bytes: float, most: int = 64) -> int:
    """Return how many buffers to cycle through so that none is still in the cache when it is used again."""
    return max(1, min(most, -(-int(4 * cache_bytes) // max(1, int(size_bytes)))))
