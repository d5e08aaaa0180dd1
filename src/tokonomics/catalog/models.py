"""Describe a model: layers, heads, experts, a vision tower; and count what follows from them.

A ``ModelSpec`` is read from a Hugging Face ``config.json`` (``catalog.config_json``) or from the catalogue, whose rows
are such configs reduced to the fields that matter. Parameters, bytes and FLOPs are counted from the matrices of the
architecture and checked against the published parameter counts in each row.

A vision tower cuts an image into patches, attends among them, and joins a few neighbours into one token. How the image
is resized before that is the model's own rule, from its published processor; tokens that open and close an image are
left out, as chat templates are (at most four).
"""

import math
import re
from collections.abc import Sequence
from datetime import date as Date  # noqa: N812 — `date` is the name of a field
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from tokonomics.catalog.layers import (
    KV_PRECISIONS,
    Cache,
    DenseMlp,
    GroupedAttention,
    LayerGroup,
    MoeMlp,
    Precision,
    RecurrentMixer,
    Scales,
    weights_of,
)
from tokonomics.errors import BadInput, option, shorten
from tokonomics.types import Noun, copied

_LONGEST_SIDE = 20_000  # pixels; more than any camera or processor has
_MOST_IMAGES = 1000
_WORDS = "Write number x width x height, such as 1x1024x1024; several kinds with commas."


class Cut(NamedTuple):
    """An image as the tower gets it: crops of cells (each becomes a token), and the tokens that the model reads."""

    crops: int
    cells: int  # of one crop
    tokens: int


class ByPixels(Noun):
    """Sides are rounded to whole cells and the pixels kept in a range (Qwen: ``smart_resize``)."""

    kind: Literal["pixels"] = "pixels"
    least: PositiveInt
    most: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        sides = [round(side / cell) * cell for side in (width, height)]
        pixels = sides[0] * sides[1]
        if pixels > self.most:
            shrink = math.sqrt(width * height / self.most)
            sides = [max(cell, math.floor(side / shrink / cell) * cell) for side in (width, height)]
        elif pixels < self.least:
            grow = math.sqrt(self.least / (width * height))
            sides = [math.ceil(side * grow / cell) * cell for side in (width, height)]
        cells = (sides[0] // cell) * (sides[1] // cell)
        return Cut(1, cells, cells)


class ByEdge(Noun):
    """The longer side is cut to a length; every row of cells ends with a token (Pixtral: ``[IMG_BREAK]``)."""

    kind: Literal["edge"] = "edge"
    longest: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        ratio = max(width / self.longest, height / self.longest, 1.0)
        columns, rows = (math.ceil(max(1, math.floor(side / ratio)) / cell) for side in (width, height))
        return Cut(1, rows * columns, rows * (columns + 1))


class ByTiles(Noun):
    """Square tiles that hold the image, a token after each, and the whole image as one tile more (Llama 4)."""

    kind: Literal["tiles"] = "tiles"
    side: PositiveInt
    most: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        tiles = self._tiles(width, height)
        cells = (self.side // cell) ** 2
        return Cut(tiles + 1, cells, tiles * (cells + 1) + cells) if tiles > 1 else Cut(1, cells, cells)

    def _tiles(self, width: int, height: int) -> int:
        """Count the tiles of the canvas that enlarges least, or shrinks least, and is smallest (``get_best_fit``)."""
        scales = {
            (rows, number // rows): min(self.side * (number // rows) / width, self.side * rows / height)
            for number in range(1, self.most + 1)
            for rows in range(1, number + 1)
            if number % rows == 0
        }
        enough = [scale for scale in scales.values() if scale >= 1]
        chosen = min(enough) if enough else max(scales.values())
        return min(rows * columns for (rows, columns), scale in scales.items() if scale == chosen)


class BySquare(Noun):
    """Every image is resized to one square (Gemma 3)."""

    kind: Literal["square"] = "square"
    cells: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        return Cut(1, self.cells, self.cells)


class ByTokens(Noun):
    """The largest size of the image's shape that stays within a number of tokens (Gemma 4)."""

    kind: Literal["tokens"] = "tokens"
    most: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        scale = math.sqrt(self.most * cell * cell / (width * height))
        columns, rows = (math.floor(side * scale / cell) for side in (width, height))
        if not columns or not rows:  # a strip becomes one row of cells
            longer = min(self.most, max(width, height) // min(width, height))
            columns, rows = longer, 1
        return Cut(1, rows * columns, rows * columns)


class ByPatches(Noun):
    """Shrunk to a number of patches, and of patches to a side, then padded to whole cells (MoonViT of Kimi-K2.5)."""

    kind: Literal["patches"] = "patches"
    most: PositiveInt
    most_to_a_side: PositiveInt
    patch: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        patches = max(1, width // self.patch) * max(1, height // self.patch)
        longest = self.most_to_a_side * self.patch
        scale = min(1.0, math.sqrt(self.most / patches), longest / width, longest / height)
        columns, rows = (math.ceil(max(1, math.floor(side * scale)) / cell) for side in (width, height))
        return Cut(1, rows * columns, rows * columns)


Sizing = Annotated[ByPixels | ByEdge | ByTiles | BySquare | ByTokens | ByPatches, Field(discriminator="kind")]


class VisionTower(Noun):
    """The shape of a tower that determines its work."""

    sizing: Sizing
    patch: PositiveInt  # pixels per side
    merge: PositiveInt  # patches per side of a cell, which becomes one token
    layers: PositiveInt
    width: PositiveInt
    layer_parameters: PositiveInt
    projector_parameters: NonNegativeInt = 0  # between the tower and the language model
    windowed_layers: NonNegativeInt = 0  # that attend within squares of ``window`` patches only (Qwen2.5-VL)
    window: PositiveInt | None = None

    def cut(self, width: int, height: int) -> Cut:
        """Cut one image of that size."""
        return self.sizing.cut(width, height, self.patch * self.merge)

    def flops(self, cut: Cut) -> float:
        """Count two per weight and patch, four per pair of patches, layer and unit of width, and the projection."""
        patches = cut.cells * self.merge * self.merge
        near = min(patches, self.window or patches)
        pairs = (self.layers - self.windowed_layers) * patches + self.windowed_layers * near
        crop = 2.0 * self.layers * self.layer_parameters * patches + 4.0 * self.width * patches * pairs
        return cut.crops * (crop + 2.0 * self.projector_parameters * cut.cells)


class PromptImages(Noun):
    """The images that come with every prompt."""

    text: str
    images: PositiveInt
    tokens: PositiveInt
    flops: float  # of the vision tower, for one prompt


def prompt_images(text: str, tower: VisionTower) -> PromptImages:
    """Read ``1x1024x1024`` or ``2x896x896,1x640x480`` as the images of a prompt."""
    number, tokens, flops = 0, 0, 0.0
    for part in text.split(","):
        found = re.fullmatch(r"\s*(?:(\d{1,9})\s*[x×*]\s*)?(\d{1,9})\s*[x×*]\s*(\d{1,9})\s*", part.lower())
        if not found:
            raise BadInput(f"'{shorten(part.strip())}' is no size of images", field="images", fix=_WORDS)
        count, width, height = int(found[1] or 1), int(found[2]), int(found[3])
        if not (1 <= count <= _MOST_IMAGES and min(width, height) >= 1 and max(width, height) <= _LONGEST_SIDE):
            what = f"'{shorten(part.strip())}': 1 to {_MOST_IMAGES:,} images of at most {_LONGEST_SIDE:,} pixels a side"
            raise BadInput(what, field="images", fix=_WORDS)
        cut = tower.cut(width, height)
        number, tokens, flops = number + count, tokens + count * cut.tokens, flops + count * tower.flops(cut)
    return PromptImages(text=text.strip(), images=number, tokens=tokens, flops=flops)


class Parts(Noun):
    """Parameters by the role that decides their precision and how often a token touches them."""

    embedding: int
    head: int  # the LM head's own matrix; 0 if it shares the embedding
    mixers: int
    dense_mlps: int
    experts: int
    active_experts: int  # the experts' parameters that one token passes
    routers: int
    small: int  # norms and biases
    extra: int  # loaded with the checkpoint, unused by text: vision or audio tower


class Published(Noun):
    """What the model's authors state, to check our counting against."""

    parameters: PositiveInt
    active_parameters: PositiveInt | None = None
    source: str
    not_served: NonNegativeInt = 0  # published, but not loaded by an engine: a second copy of a tied LM head
    excludes: str | None = None  # how the published figure differs from what is served


def repository_in(aliases: Sequence[str]) -> str | None:
    """Return the last name that a repository has: ours come after those that people use."""
    return next((name for name in reversed(aliases) if "/" in name), None)


class ModelSpec(Noun):
    """An architecture, in enough detail to count bytes and FLOPs."""

    key: str
    name: str
    family: str
    hidden: PositiveInt
    vocab: PositiveInt
    groups: tuple[LayerGroup, ...]
    tied_embeddings: bool
    final_norm_elements: NonNegativeInt
    position_parameters: NonNegativeInt = 0
    head_bias_elements: NonNegativeInt = 0  # of an encoder: its pooler or classifier
    embedding_parameters: PositiveInt
    extra_parameters: NonNegativeInt = 0
    max_context: PositiveInt
    mtp_layers: NonNegativeInt = 0  # modules of the checkpoint that draft tokens (multi-token prediction)
    checkpoint: Precision  # the precision the weights are published in; of a mixture, its experts'
    checkpoint_bytes: float | None = None  # of one weight, if the checkpoint's scales are not the usual ones
    mixer_checkpoint: Precision | None = None  # of attention's matrices, if it differs
    dense_checkpoint: Precision | None = None  # of dense and shared feed-forward matrices, likewise
    mixer_bytes: float | None = None  # of one weight of attention, if its formats are mixed or its scales not the usual
    dense_bytes: float | None = None  # of dense and shared feed-forward matrices, likewise
    fp8_scales: Scales | None = None  # of its weights in FP8; None: it has none, or does not say
    kv_checkpoint: Precision | None = None  # of the KV cache, if it has scales for it or is served so
    vision: VisionTower | None = None  # None: it takes no images, or its rule is not known
    images: PromptImages | None = None  # that come with every prompt
    reasons: bool = False  # its model card says that it thinks before it answers, unless told not to
    published: Published | None = None
    aliases: tuple[str, ...] = ()
    source: str
    date: Date
    released: Date | None = None  # the day the weights were published
    notes: tuple[str, ...] = ()  # what the user should know about how the config was read

    def __hash__(self) -> int:
        """Hash only name and size: hashing every layer would take longer than the caches save."""
        return hash((self.key, self.checkpoint, self.hidden, self.vocab))

    def reading(self, images: str) -> "ModelSpec":
        """Return the model with these images in every prompt."""
        if self.vision is None:
            what = f"{self.name} has no vision tower whose tokens are counted here; nor are those of audio towers"
            raise BadInput(what, field="images", fix=f"Leave out {option('images')}.")
        return self.model_copy(update={"images": prompt_images(images, self.vision)})

    @property
    def served(self) -> Precision:
        """Return the precision in which engines serve the checkpoint by default: its own, or 16 bits for 32."""
        return Precision.bf16 if self.checkpoint is Precision.fp32 else self.checkpoint

    @property
    def kv_served(self) -> Precision:
        """Return the precision in which engines keep the KV cache by default: the checkpoint's, or 16 bits."""
        return self.kv_checkpoint or Precision.bf16

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def is_moe(self) -> bool:
        return any(isinstance(group.mlp, MoeMlp) for group in self.groups)

    @property
    def repository(self) -> str | None:
        """Return where its authors publish it; None for the user's own model."""
        return repository_in(self.aliases)

    @property
    def is_encoder(self) -> bool:
        """Decide whether it embeds or reranks: it reads a prompt once, in both directions; nothing is kept."""
        return _is_encoder(self)

    @property
    def parts(self) -> Parts:
        return _parts(self)

    def _counted(self) -> Parts:
        mixers = dense = experts = active = routers = small = 0
        for group in self.groups:
            small += group.count * group.norm_elements
            if group.mixer:
                mixers += group.count * weights_of(group.mixer.products(self.hidden))
                small += group.count * group.mixer.small_parameters
            dense += group.count * weights_of(group.mlp.products(self.hidden)) if group.mlp else 0
            if isinstance(group.mlp, DenseMlp):
                small += group.count * group.mlp.bias_elements
            elif isinstance(group.mlp, MoeMlp):
                mlp = group.mlp
                expert = mlp.expert_parameters(self.hidden)
                experts += group.count * mlp.experts * expert
                active += group.count * mlp.active_experts * expert
                routers += group.count * mlp.router_parameters(self.hidden)
                small += group.count * mlp.experts * mlp.expert_bias_elements
        return Parts(
            embedding=self.embedding_parameters + self.position_parameters,
            head=0 if self.tied_embeddings or self.is_encoder else self.vocab * self.hidden,
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
        return sum(self.parts.model_dump(exclude={"active_experts"}).values())

    @property
    def active_parameters(self) -> int:
        """Count the parameters that a text token passes, embeddings included as is usual in the field."""
        parts = self.parts
        return self.parameters - parts.experts + parts.active_experts - parts.extra

    def precisions(self, weights: Precision) -> tuple[Precision, Precision]:
        """Return the precision of attention's and of dense feed-forward matrices if the model is held at ``weights``.

        It is the published one if the checkpoint states it. Else MXFP4 covers the experts only (GPT-OSS model card,
        arXiv:2508.10925, section 2.1); in a model without experts it covers the feed-forward matrices.
        """
        if weights is self.checkpoint and (self.mixer_checkpoint or self.dense_checkpoint):
            return self.mixer_checkpoint or weights, self.dense_checkpoint or weights
        if weights is not Precision.mxfp4:
            return weights, weights
        return Precision.bf16, Precision.bf16 if self.is_moe else weights

    def bytes_per_weight(self, weights: Precision) -> tuple[float, float, float]:
        """Return the bytes of one weight of attention, of dense blocks and of experts if held at ``weights``.

        They are those of the checkpoint if it is published so, with its scales and with what it leaves in 16 bits.
        """
        usual = (*self.precisions(weights), weights)
        published = (self.mixer_bytes, self.dense_bytes, self.checkpoint_bytes)
        if weights is not self.checkpoint:
            published = (None, None, None)
        mixer, dense, expert = (
            precision.bytes_per_weight if own is None else own for precision, own in zip(usual, published, strict=True)
        )
        return mixer, dense, expert

    def weight_bytes(self, precision: Precision) -> int:
        """Return the bytes of the loaded weights if the block matrices are held at ``precision``."""
        parts, (mixer, dense, expert) = self.parts, self.bytes_per_weight(precision)
        matrices = parts.mixers * mixer + parts.dense_mlps * dense + parts.experts * expert
        rest = parts.embedding + parts.head + parts.routers + parts.small + parts.extra
        return round(matrices + rest * precision.bytes_per_unquantised)

    @property
    def caches(self) -> tuple[tuple[int, Cache], ...]:
        """Return what is kept of earlier tokens, each with the number of layers that keep it."""
        mixers = [(group.count, group.mixer) for group in self.groups if group.mixer]
        return tuple((count, cache) for count, mixer in mixers for cache in mixer.caches)

    def kv_bytes_per_token(self, kv: Precision) -> int:
        """Return the KV cache that every further token adds, however long the sequence: layers without a window."""
        kept = [(count, cache) for count, cache in self.caches if cache.window is None]
        return round(sum(count * cache.row_bytes(kv) / cache.every for count, cache in kept))

    def kv_bytes_in_windows(self, kv: Precision) -> int:
        """Return the KV cache of one token that is inside every layer's window."""
        return round(sum(count * cache.row_bytes(kv) / cache.every for count, cache in self.caches))

    def kv_constant_bytes(self, kv: Precision) -> int:
        """Return what a sequence of any length holds: its full windows, and recurrent states."""
        windows = sum(count * cache.row_bytes(kv) / cache.every * (cache.window or 0) for count, cache in self.caches)
        return round(windows) + self.state_bytes

    @property
    def windows(self) -> tuple[int, ...]:
        """Return the tokens that layers with a window keep, the shortest first."""
        return tuple(sorted({cache.window for _, cache in self.caches if cache.window is not None}))

    @property
    def state_bytes(self) -> int:
        """Return one sequence's recurrent and convolution state, whatever its length; 0 without such layers."""
        return sum(group.count * group.mixer.state_bytes for group in self.groups if group.mixer)

    @property
    def flops_per_token(self) -> float:
        """Count two per active matrix weight, and those of recurrent states, without attention to the context."""
        parts = self.parts
        head = 0 if self.is_encoder else parts.head or self.vocab * self.hidden
        matrices = parts.mixers + parts.dense_mlps + parts.active_experts + parts.routers + head
        recurrent = [(group.count, group.mixer) for group in self.groups if isinstance(group.mixer, RecurrentMixer)]
        return 2.0 * matrices + sum(count * mixer.state_flops for count, mixer in recurrent)

    def summary(self) -> dict[str, object]:
        """Return what a table or a program needs to know about a model: names, counts, bytes by precision."""
        sizes = ("parameters", "active_parameters", "layers", "hidden", "vocab", "max_context")
        return {
            **copied(self, "key", "name", "family", *sizes),
            "moe": self.is_moe,
            "encoder": self.is_encoder,
            "checkpoint": self.checkpoint.value,
            "weight_bytes": {precision.value: self.weight_bytes(precision) for precision in Precision},
            "kv_bytes_per_token": {precision.value: self.kv_bytes_per_token(precision) for precision in KV_PRECISIONS},
            "kv_constant_bytes": {precision.value: self.kv_constant_bytes(precision) for precision in KV_PRECISIONS},
            "kv_windows": list(self.windows),
            "flops_per_token": self.flops_per_token,
            "published": self.published.model_dump() if self.published else None,
            "source": self.source,
            "date": self.date.isoformat(),
            "released": self.released.isoformat() if self.released else None,
        }


@lru_cache(maxsize=256)
def _is_encoder(model: ModelSpec) -> bool:
    return all(isinstance(group.mixer, GroupedAttention) and group.mixer.bidirectional for group in model.groups)


@lru_cache(maxsize=256)
def _parts(model: ModelSpec) -> Parts:
    """Count once: a plan asks for every layout."""
    return model._counted()
