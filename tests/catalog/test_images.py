"""Images as tokens: each model's rule against sizes worked out by hand, and the tower's work by its closed form."""

import math
from collections.abc import Mapping

import pytest
from tests.there import refused, there

from tokonomics.catalog.config_families import Fields
from tokonomics.catalog.config_towers import read_tower
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ByPixels, ByTiles, VisionTower, prompt_images
from tokonomics.errors import BadInput

QWEN2_5 = {
    "depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14, "spatial_merge_size": 2,
    "out_hidden_size": 3584, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
}  # fmt: skip
KIMI = {
    "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27, "patch_size": 14,
    "merge_kernel_size": [2, 2],
}  # fmt: skip
GEMMA4 = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "patch_size": 16}


def read(model_type: str, vision: Mapping[str, object], hidden: int) -> VisionTower:
    return there(read_tower(Fields({"vision_config": vision}, "config.json"), model_type, hidden))


def tower(model: str) -> VisionTower:
    return there(find_model(model).vision)


@pytest.mark.parametrize(
    ("model", "width", "height", "tokens"),
    [
        ("qwen3-vl-8b", 1024, 1024, 32 * 32),  # cells of 32 pixels
        ("qwen3-vl-8b", 640, 480, 20 * 15),
        ("qwen3-vl-8b", 32, 32, 8 * 8),  # at least 65,536 pixels: 256 to a side
        ("qwen3-vl-8b", 8192, 8192, 128 * 128),  # at most 16.8 million
        ("qwen3.5-35b-a3b", 1024, 512, 32 * 16),
        ("gemma-3-27b", 1024, 1024, 256),
        ("gemma-3-27b", 100, 3000, 256),
        ("mistral-small-3.2-24b", 1024, 1024, 37 * (37 + 1)),  # cells of 28, and an end to each row
        ("mistral-small-3.2-24b", 3080, 1540, 28 * (55 + 1)),  # the longer side cut to 1,540
        ("llama-4-scout", 336, 336, 144),  # one tile, and no other for the whole
        ("llama-4-scout", 672, 336, 2 * 145 + 144),
        ("llama-4-scout", 1024, 1024, 16 * 145 + 144),  # 4 × 4 tiles hold it
    ],
)
def test_an_image_is_so_many_tokens(model: str, width: int, height: int, tokens: int) -> None:
    assert tower(model).cut(width, height).tokens == tokens


def test_towers_of_models_that_are_not_in_the_catalogue_yet() -> None:
    assert read("qwen2_5_vl", QWEN2_5, 3584).cut(1024, 1024).tokens == 37 * 37
    assert read("kimi_k25", KIMI, 7168).cut(1024, 1024).tokens == 37 * 37
    assert read("kimi_k25", KIMI, 7168).cut(14 * 256, 14 * 256).tokens == 64 * 64  # 16,384 patches
    assert read("gemma4", GEMMA4, 2816).cut(500, 500).tokens == 16 * 16  # within 280
    assert read("gemma4", GEMMA4, 2816).cut(9000, 10).tokens == 280


def test_tiles_are_the_smallest_canvas_that_needs_no_shrinking() -> None:
    rule = ByTiles(side=336, most=16)
    for width, height in ((1, 1), (337, 336), (700, 1400), (5000, 400), (336 * 4, 336 * 4)):
        across, down = math.ceil(width / 336), math.ceil(height / 336)
        tiles = (rule.cut(width, height, 28).tokens - 144) // 145 or 1
        if across * down <= 16:
            assert tiles <= 16
            held = [
                (rows, number // rows) for number in (tiles,) for rows in range(1, number + 1) if number % rows == 0
            ]
            assert any(rows >= down and columns >= across for rows, columns in held)


def test_the_work_of_a_tower_is_that_of_its_patches_and_of_their_pairs() -> None:
    made = VisionTower(
        sizing=ByPixels(least=1, most=10**8), patch=10, merge=2, layers=3, width=8, layer_parameters=100,
        projector_parameters=50,
    )  # fmt: skip
    patches, cells = 8 * 6, 4 * 3
    by_pair = sum(4 * 8 for _ in range(patches) for _ in range(patches))
    assert made.flops(made.cut(80, 60)) == 3 * (2 * 100 * patches + by_pair) + 2 * 50 * cells


def test_windows_leave_fewer_pairs() -> None:
    made = read("qwen2_5_vl", QWEN2_5, 3584)
    cut = made.cut(1120, 1120)
    full = made.model_copy(update={"windowed_layers": 0})
    patches = 80 * 80
    assert full.flops(cut) - made.flops(cut) == 4 * 1280 * patches * 28 * (patches - 64)


def test_images_of_several_sizes_add_up() -> None:
    seen = tower("qwen3-vl-8b")
    both, one, other = (prompt_images(text, seen) for text in ("2x640x480, 1024x1024", "1x640x480", "1x1024x1024"))
    assert both.images == 3
    assert prompt_images("1x2", seen).images == 1  # of a pixel by two
    with pytest.raises(BadInput, match="no vision tower"):
        find_model("llama-3.1-8b").reading("1x64x64")
    assert both.tokens == 2 * one.tokens + other.tokens
    assert both.flops == pytest.approx(2 * one.flops + other.flops)


@pytest.mark.parametrize("text", ["", "x", "0x64x64", "1x0x64", "1x64x30000", "1x64x64x64", "-1x64x64", "1x6.4x64"])
def test_what_is_no_size_is_said(text: str) -> None:
    assert refused(prompt_images, text, tower("qwen3-vl-8b")).field == "images"
