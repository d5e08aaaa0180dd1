"""Parameters of the vision or audio tower and projector that a multimodal checkpoint brings along.

Text never passes them, but they take memory. Shapes follow each tower's published modelling code; a tower that is
not in the table is an error, because its size cannot be known from here.
"""

import math
from collections.abc import Callable

from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.config_harmless import HARMLESS, TOWER_HARMLESS

Tower = Callable[[Fields, Fields, int], int]
"""(vision_config, the whole config, hidden size of the text model) → parameters."""


def count_towers(whole: Fields, model_type: str, hidden: int) -> int:
    """Parameters of the towers in ``vision_config`` and ``audio_config``; 0 where there is none."""
    return sum(
        _count(whole, name, towers.get(model_type), model_type, hidden)
        for name, towers in (("vision_config", TOWERS), ("audio_config", AUDIO_TOWERS))
    )


def _count(whole: Fields, name: str, tower: Tower | None, model_type: str, hidden: int) -> int:
    described = whole.child(name)
    if described is None:
        return 0
    if tower is None:
        fix = f"Remove {name} from a copy of the file to cost the text model alone."
        what = f"describes a tower that cannot be counted for model_type '{model_type}'"
        raise whole.wrong(name, what, fix)
    count = tower(described, whole, hidden)
    whole.notes += described.unread(HARMLESS | TOWER_HARMLESS)
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


def qwen2_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Qwen2-VL: 3-D patches without a bias, then a merger; ``hidden_size`` is what the text model reads."""
    width, out = vision.size("embed_dim", default=1280), vision.size("hidden_size", default=hidden)
    inner = width * vision.size("mlp_ratio", default=4, most=64)
    layers = vision.size("depth", default=32) * biased_layer(width, inner)
    return _qwen2_patches(vision, width) + layers + 2 * width + _qwen2_merger(vision, width, out)


def qwen2_5_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Qwen2.5-VL: gated blocks with biases, norms without."""
    width, out = vision.size("hidden_size", default=1280), vision.size("out_hidden_size", default=hidden)
    inner = vision.size("intermediate_size", default=3420)
    layer = 4 * (width * width + width) + 3 * width * inner + 2 * inner + width + 2 * width
    layers = vision.size("depth", default=32) * layer
    return _qwen2_patches(vision, width) + layers + width + _qwen2_merger(vision, width, out)


def _qwen2_patches(vision: Fields, width: int) -> int:
    patch = vision.size("patch_size", "spatial_patch_size", default=14)
    channels = vision.size("in_channels", "in_chans", default=3)
    return channels * vision.size("temporal_patch_size", default=2) * patch * patch * width


def _qwen2_merger(vision: Fields, width: int, out: int) -> int:
    merged = width * vision.size("spatial_merge_size", default=2) ** 2
    return merged * merged + merged + merged * out + out


def moon_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Kimi K2.5 (MoonViT with biases, a norm before the merger) and K3 (neither; attention wider than the stream)."""
    width, inner = vision.size("vt_hidden_size"), vision.size("vt_intermediate_size")
    attention = vision.size("qkv_hidden_size", default=width)
    biased = vision.flag("linear_bias", True)
    vision.expect("attn_bias", (biased,))
    vision.expect("patch_embed_proj_bias", (biased,))
    vision.expect("norm_type", ("layernorm" if biased else "rmsnorm",))
    vision.expect("mlp_type", ("mlp2",))
    norm = width * (1 + biased)
    patch = vision.size("patch_size", default=14)
    positions = vision.size("init_pos_emb_height", default=64) * vision.size("init_pos_emb_width", default=64)
    embeddings = 3 * patch * patch * width + width * biased + positions * width
    layer = 4 * width * attention + (3 * attention + width) * biased + 2 * width * inner + (inner + width) * biased
    merge = vision.numbers("merge_kernel_size") or [2, 2]
    merged = vision.size("mm_hidden_size", default=width) * math.prod(merge)
    projector = merged * merged + merged * hidden + ((merged + hidden) * biased)
    projector += norm if biased else hidden
    return embeddings + vision.size("vt_num_hidden_layers") * (layer + 2 * norm) + norm + projector


def gemma4_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Gemma 4: gated blocks with four norms, positions by row and column, one projection."""
    width, inner = vision.size("hidden_size"), vision.size("intermediate_size")
    heads, head_dim = vision.size("num_attention_heads"), vision.size("head_dim")
    vision.expect("num_key_value_heads", (heads,))
    patch = vision.size("patch_size")
    embeddings = 3 * patch * patch * width + 2 * vision.size("position_embedding_size") * width
    layer = 4 * width * heads * head_dim + 2 * head_dim + 3 * width * inner + 4 * width
    return embeddings + vision.size("num_hidden_layers") * layer + width * hidden


def gemma4_conformer(audio: Fields, whole: Fields, hidden: int) -> int:
    """Gemma 4's audio tower (E2B, E4B): two feed-forward blocks, attention and a convolution in each layer."""
    width = audio.size("hidden_size")
    kernel, out = audio.size("conv_kernel_size", default=5), audio.size("output_proj_dims", default=1536)
    first, second = audio.numbers("subsampling_conv_channels") or [128, 32]
    head_dim = width // audio.size("num_attention_heads", default=8)
    sampled = 9 * first + first + 9 * first * second + second + width * width
    # Two blocks of four times the width; five projections of attention; the convolution's two, and itself; nine norms.
    layer = 16 * width * width + 5 * width * width + 3 * width * width + kernel * width + 9 * width + head_dim
    return sampled + audio.size("num_hidden_layers") * layer + width * out + out + out * hidden


def minimax_m3_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """MiniMax-M3: a ViT with biases, two projections of every patch and two of each merged group."""
    width = vision.size("hidden_size")
    patch, frames = vision.size("patch_size"), vision.size("temporal_patch_size", default=2)
    between = whole.size("projector_hidden_size", default=hidden)
    merged = hidden * vision.size("spatial_merge_size", default=2) ** 2
    tower = vision.size("num_channels", default=3) * frames * patch * patch * width + 2 * width
    tower += vision.size("num_hidden_layers") * biased_layer(width, vision.size("intermediate_size"))
    patches = width * between + between + between * hidden + hidden
    return tower + patches + merged * between + between + between * hidden + hidden


def step_vit(vision: Fields, whole: Fields, hidden: int) -> int:
    """Step 3.7: a ViT with scales for each layer, two convolutions that halve the grid, one projection."""
    width = vision.size("hidden_size", "width", default=1536)
    image, patch = vision.size("image_size", default=728), vision.size("patch_size", default=14)
    ratio = vision.value("mlp_ratio") or 8960 / 1536
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 64:
        raise vision.wrong("mlp_ratio", "needs a number above 0")
    embeddings = 3 * patch * patch * width + (image // patch) ** 2 * width + 2 * width
    layers = vision.size("num_hidden_layers", "layers", default=47) * (
        biased_layer(width, int(width * ratio)) + 2 * width
    )
    halved = 9 * width * 2 * width + 2 * width + 9 * 2 * width * 4 * width + 4 * width
    return embeddings + layers + halved + 4 * width * hidden + hidden * whole.flag("projector_bias", False)


def biased_layer(width: int, inner: int) -> int:
    """An encoder layer with biases everywhere and two layer norms."""
    attention = 4 * (width * width + width)
    return attention + 2 * width * inner + inner + width + 4 * width


TOWERS: dict[str, Tower] = {
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), qwen_vit),
    "gemma3": siglip,
    "mistral3": pixtral,
    "llama4": llama4_vit,
    "qwen2_vl": qwen2_vit,
    "qwen2_5_vl": qwen2_5_vit,
    "kimi_k25": moon_vit,
    "kimi_k3": moon_vit,
    "gemma4": gemma4_vit,
    "minimax_m3_vl": minimax_m3_vit,
    "step3p7": step_vit,
}
AUDIO_TOWERS: dict[str, Tower] = {"gemma4": gemma4_conformer}
