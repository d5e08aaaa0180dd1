"""The vision tower of a config, as far as images cost by it: one function for each published processor.

``config_towers`` counts the same tower's parameters. Limits that a processor keeps in a file of its own
(``preprocessor_config.json``) are those its authors ship. A model type that is in no row takes no images here.
"""

from collections.abc import Callable

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.images import ByEdge, ByPatches, ByPixels, BySquare, ByTiles, ByTokens, VisionTower
from tokonomics.errors import BadInput

Reader = Callable[[Fields, Fields, int], VisionTower]
"""(vision_config, the whole config, hidden size of the text model) → tower."""

QWEN2_PIXELS = ByPixels(least=3136, most=12_845_056)
"""Qwen2.5-VL's preprocessor_config.json; ``smart_resize`` of transformers' image_processing_qwen2_vl."""
QWEN3_PIXELS = ByPixels(least=65_536, most=16_777_216)
"""Qwen3-VL's and Qwen3.5's preprocessor_config.json: shortest_edge and longest_edge, which are pixels there."""
LLAMA4_TILES = 16
"""``max_patches`` of transformers' image_processing_llama4_fast: tiles, beside the whole image."""
GEMMA4_TOKENS, GEMMA4_POOLING = 280, 3
"""``max_soft_tokens`` and ``pooling_kernel_size`` of transformers' image_processing_gemma4."""
KIMI_PATCHES, KIMI_SIDE = 16_384, 512
"""``in_patch_limit`` and ``patch_limit_on_one_side`` of Kimi-K2.5's preprocessor_config.json (media_proc_cfg)."""


def read_tower(whole: Fields, model_type: str, hidden: int) -> VisionTower | None:
    """The tower in ``vision_config``; None where there is none, or none whose rule is known."""
    vision, reader = whole.child("vision_config"), TOWER_READERS.get(model_type)
    try:
        return reader(vision, whole, hidden) if vision and reader else None
    except BadInput:  # a shape of its own, whose parameters were given
        return None


def qwen2_5_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Qwen2.5-VL: gated layers, most of which attend within windows of 112 pixels."""
    width, layers, merge = vision.size("hidden_size"), vision.size("depth"), vision.size("spatial_merge_size")
    patch = vision.size("patch_size")
    full = vision.numbers("fullatt_block_indexes") or ()
    return VisionTower(
        sizing=QWEN2_PIXELS,
        patch=patch,
        merge=merge,
        layers=layers,
        width=width,
        layer_parameters=4 * width * width + 3 * width * vision.size("intermediate_size"),
        projector_parameters=_merger(width * merge * merge, vision.size("out_hidden_size", default=hidden)),
        windowed_layers=max(0, layers - len(full)),
        window=(vision.size("window_size", default=112) // patch) ** 2,
    )


def qwen3_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Qwen3-VL and Qwen3.5; a merger more for each deep-stack level."""
    width, merge = vision.size("hidden_size"), vision.size("spatial_merge_size")
    levels = len(vision.numbers("deepstack_visual_indexes") or ())
    return VisionTower(
        sizing=QWEN3_PIXELS,
        patch=vision.size("patch_size"),
        merge=merge,
        layers=vision.size("depth"),
        width=width,
        layer_parameters=_plain_layer(width, vision.size("intermediate_size")),
        projector_parameters=(1 + levels) * _merger(width * merge * merge, vision.size("out_hidden_size")),
    )


def gemma3_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Gemma 3: one square, pooled to 256 tokens (``mm_tokens_per_image``)."""
    width, patch = vision.size("hidden_size"), vision.size("patch_size")
    tokens = whole.size("mm_tokens_per_image", default=256)
    return VisionTower(
        sizing=BySquare(cells=tokens),
        patch=patch,
        merge=max(1, round(vision.size("image_size") / patch / tokens**0.5)),
        layers=vision.size("num_hidden_layers"),
        width=width,
        layer_parameters=_plain_layer(width, vision.size("intermediate_size")),
        projector_parameters=width * hidden,
    )


def gemma4_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Gemma 4: gated layers, pooled three by three."""
    width = vision.size("hidden_size")
    return VisionTower(
        sizing=ByTokens(most=GEMMA4_TOKENS),
        patch=vision.size("patch_size", default=16),
        merge=vision.size("pooling_kernel_size", default=GEMMA4_POOLING),
        layers=vision.size("num_hidden_layers"),
        width=width,
        layer_parameters=4 * width * width + 3 * width * vision.size("intermediate_size"),
        projector_parameters=width * hidden,
    )


def pixtral_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Mistral 3: gated layers; transformers' image_processing_pixtral with the edge of the checkpoint's tower."""
    width, merge = vision.size("hidden_size"), whole.size("spatial_merge_size", default=2)
    return VisionTower(
        sizing=ByEdge(longest=vision.size("image_size", default=1540)),
        patch=vision.size("patch_size"),
        merge=merge,
        layers=vision.size("num_hidden_layers"),
        width=width,
        layer_parameters=4 * width * width + 3 * width * vision.size("intermediate_size"),
        projector_parameters=width * width * merge * merge + width * hidden + hidden * hidden,
    )


def llama4_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Llama 4: tiles of 336 pixels, of whose patches four become a token by pixel shuffle."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    adapter = inner * vision.size("projector_input_dim") + vision.size("projector_output_dim") ** 2
    return VisionTower(
        sizing=ByTiles(side=vision.size("image_size"), most=LLAMA4_TILES),
        patch=vision.size("patch_size"),
        merge=2,
        layers=vision.size("num_hidden_layers"),
        width=width,
        layer_parameters=_plain_layer(width, inner),
        projector_parameters=adapter + vision.size("vision_output_dim") * hidden,
    )


def kimi_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Kimi-K2.5: MoonViT at the image's own size; field names as in its config.json."""
    width = vision.size("vt_hidden_size")
    patch, merge = vision.size("patch_size"), (vision.numbers("merge_kernel_size") or [2])[0]
    return VisionTower(
        sizing=ByPatches(most=KIMI_PATCHES, most_to_a_side=KIMI_SIDE, patch=patch),
        patch=patch,
        merge=merge,
        layers=vision.size("vt_num_hidden_layers"),
        width=width,
        layer_parameters=_plain_layer(width, vision.size("vt_intermediate_size")),
        projector_parameters=_merger(width * merge * merge, hidden),
    )


def _plain_layer(width: int, inner: int) -> int:
    """The matrices of a layer without gates."""
    return 4 * width * width + 2 * width * inner


def _merger(joined: int, out: int) -> int:
    """Two products, from the joined patches to a token."""
    return joined * joined + joined * out


TOWER_READERS: dict[str, Reader] = {
    "qwen2_5_vl": qwen2_5_tower,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), qwen3_tower),
    "gemma3": gemma3_tower,
    "gemma4": gemma4_tower,
    "mistral3": pixtral_tower,
    "llama4": llama4_tower,
    "kimi_k25": kimi_tower,
}
