"""Parameters of the vision tower and projector that a multimodal checkpoint brings along.

Text never passes them, but they take memory. Shapes follow each tower's published modelling code; a tower that is
not in the table is an error, because its size cannot be known from here.
"""

from collections.abc import Callable

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import TOWER_HARMLESS

Tower = Callable[[Fields, Fields, int], int]
"""(vision_config, the whole config, hidden size of the text model) → parameters."""


def count_tower(whole: Fields, model_type: str, hidden: int) -> int:
    """Parameters of the tower in ``vision_config``; 0 where there is none."""
    vision = whole.child("vision_config")
    if vision is None:
        return 0
    tower = TOWERS.get(model_type)
    if tower is None:
        fix = "Remove vision_config from a copy of the file to cost the text model alone."
        what = f"describes a tower that cannot be counted for model_type '{model_type}'"
        raise whole.wrong("vision_config", what, fix)
    count = tower(vision, whole, hidden)
    vision.refuse_unread(TOWER_HARMLESS)
    return count


def siglip(vision: Fields, whole: Fields, hidden: int) -> int:
    """Gemma 3: SigLIP without its pooling head, then a norm and one projection."""
    width = vision.size("hidden_size")
    image, patch = vision.size("image_size"), vision.size("patch_size")
    vision.expect("vision_use_head", (False,))
    embeddings = vision.size("num_channels", default=3) * patch * patch * width + width + (image // patch) ** 2 * width
    layers = vision.size("num_hidden_layers") * biased_layer(width, vision.size("intermediate_size"))
    return embeddings + layers + 2 * width + width + width * hidden


def pixtral(vision: Fields, whole: Fields, hidden: int) -> int:
    """Mistral 3: a gated ViT without biases, a patch merger and two projections."""
    width = vision.size("hidden_size")
    patch, inner = vision.size("patch_size"), vision.size("intermediate_size")
    merge = whole.size("spatial_merge_size", default=2)
    layer = 4 * width * width + 3 * width * inner + 2 * width
    tower = vision.size("num_channels", default=3) * patch * patch * width + width
    tower += vision.size("num_hidden_layers") * layer
    bias = 2 * hidden * whole.flag("multimodal_projector_bias", False)
    return tower + width + width * width * merge * merge + width * hidden + hidden * hidden + bias


def qwen_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Qwen3-VL and Qwen3.5: 3-D patches, learned positions, a merger and one more per deep-stack level."""
    width, out = vision.size("hidden_size"), vision.size("out_hidden_size")
    patch, frames = vision.size("patch_size"), vision.size("temporal_patch_size")
    merged = width * vision.size("spatial_merge_size") ** 2
    levels = len(vision.numbers("deepstack_visual_indexes") or ())
    embeddings = vision.size("in_channels", default=3) * frames * patch * patch * width + width
    embeddings += vision.size("num_position_embeddings") * width
    layers = vision.size("depth") * biased_layer(width, vision.size("intermediate_size"))
    merger = merged * merged + merged + merged * out + out
    return embeddings + layers + (merger + 2 * width) + levels * (merger + 2 * merged)


def llama4_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Llama 4: a ViT with a class token, a pixel-shuffle adapter of two layers and a projection."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    image, patch = vision.size("image_size"), vision.size("patch_size")
    embeddings = vision.size("num_channels", default=3) * patch * patch * width
    embeddings += width + ((image // patch) ** 2 + 1) * width
    layers = vision.size("num_hidden_layers") * biased_layer(width, inner)
    adapter = inner * vision.size("projector_input_dim") + vision.size("projector_output_dim") ** 2
    return embeddings + layers + 4 * width + adapter + vision.size("vision_output_dim") * hidden


def biased_layer(width: int, inner: int) -> int:
    """An encoder layer with biases everywhere and two layer norms."""
    attention = 4 * (width * width + width)
    return attention + 2 * width * inner + inner + width + 4 * width


TOWERS: dict[str, Tower] = {
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), qwen_vit),
    "gemma3": siglip,
    "mistral3": pixtral,
    "llama4": llama4_vit,
}
