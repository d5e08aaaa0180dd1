"""How many tokens an image is to a model, and what its vision tower computes for them.

A tower cuts an image into patches, attends among them, and joins a few neighbours to one token. How the image is sized
before that is the model's own rule, from its published processor; tokens that open and close an image are left out, as
chat templates are (four at the most). Kept by ``catalog.config_towers`` beside the model's other shapes.
"""

import math
import re
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from tokonomics.errors import BadInput, shorten
from tokonomics.types import Noun

_LONGEST_SIDE = 20_000  # pixels; no camera's, and no processor's
_MOST_IMAGES = 1000
_WORDS = "Write number x width x height, such as 1x1024x1024; several kinds with commas."


class Cut(NamedTuple):
    """An image as the tower gets it: crops of so many cells (tokens to be), and the tokens that the model reads."""

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
        """Of the canvas that enlarges least, else shrinks least; of several the smallest (``get_best_fit``)."""
        canvases = [(rows, number // rows) for number in range(1, self.most + 1) for rows in _divisors(number)]
        scales = {
            (rows, columns): min(self.side * columns / width, self.side * rows / height) for rows, columns in canvases
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
    """The largest size of the image's shape that stays within so many tokens (Gemma 4)."""

    kind: Literal["tokens"] = "tokens"
    most: PositiveInt

    def cut(self, width: int, height: int, cell: int) -> Cut:
        scale = math.sqrt(self.most * cell * cell / (width * height))
        columns, rows = (math.floor(side * scale / cell) for side in (width, height))
        if not columns or not rows:  # a strip: one row of cells, as many as its shape has
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


Sizing = Annotated[
    ByPixels | ByEdge | ByTiles | BySquare | ByTokens | ByPatches,
    Field(discriminator="kind"),
]


class VisionTower(Noun):
    """The shape of a tower, as far as its work depends on it."""

    sizing: Sizing
    patch: PositiveInt  # pixels to a side
    merge: PositiveInt  # patches to the side of a cell, which becomes one token
    layers: PositiveInt
    width: PositiveInt
    layer_parameters: PositiveInt
    projector_parameters: NonNegativeInt = 0  # that a token passes on its way into the language model
    windowed_layers: NonNegativeInt = 0  # that attend within squares of ``window`` patches only (Qwen2.5-VL)
    window: PositiveInt | None = None

    def cut(self, width: int, height: int) -> Cut:
        """What becomes of one image of that size."""
        return self.sizing.cut(width, height, self.patch * self.merge)

    def flops(self, cut: Cut) -> float:
        """Two a weight and patch, four a pair of patches, layer and unit of width; and the projection of each cell."""
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
    """``1x1024x1024`` or ``2x896x896,1x640x480`` as a model reads them."""
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


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
