"""The vision or audio tower that a multimodal checkpoint brings along: its parameters, and what images cost by it.

Text never passes a tower, but its weights take memory. Shapes follow each tower's published modelling code; a tower
that is in no table is an error, because its size cannot be known from here. What an image costs follows the published
processor; limits that a processor keeps in a file of its own (``preprocessor_config.json``) are those its authors
ship, and a model type without a row takes no images here.
"""

import math
from collections.abc import Callable

from tokonomics.catalog.config_families import TOWER_HARMLESS
from tokonomics.catalog.config_fields import Fields
from tokonomics.catalog.images import ByEdge, ByPatches, ByPixels, BySquare, ByTiles, ByTokens, Sizing, VisionTower
from tokonomics.errors import BadInput

Count = Callable[[Fields, Fields, int], int]
"""(vision_config, the whole config, hidden size of the text model) → parameters."""
Reader = Callable[[Fields, Fields, int], VisionTower]
"""The same → the shape that an image's tokens and FLOPs follow from."""


def count_towers(whole: Fields, model_type: str, hidden: int) -> int:
    """Parameters of the towers in ``vision_config`` and ``audio_config``; 0 where there is none."""
    return sum(
        _count(whole, name, towers.get(model_type), model_type, hidden)
        for name, towers in (("vision_config", TOWERS), ("audio_config", AUDIO_TOWERS))
    )


def _count(whole: Fields, name: str, tower: Count | None, model_type: str, hidden: int) -> int:
    described = whole.child(name)
    if described is None:
        return 0
    if tower is None:
        fix = f"Remove {name} from a copy of the file to cost the text model alone."
        what = f"describes a tower that cannot be counted for model_type '{model_type}'"
        raise whole.wrong(name, what, fix)
    count = tower(described, whole, hidden)
    whole.notes += described.unread(TOWER_HARMLESS)
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
    return embeddings + layers + 4 * width + _llama4_projector(vision, hidden)


def _llama4_projector(vision: Fields, hidden: int) -> int:
    """The two products of the adapter, and the projection."""
    adapter = vision.size("intermediate_size") * vision.size("projector_input_dim")
    adapter += vision.size("projector_output_dim") ** 2
    return adapter + vision.size("vision_output_dim") * hidden


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
    channels = audio.numbers("subsampling_conv_channels") or [128, 32]
    if len(channels) != 2:
        raise audio.wrong("subsampling_conv_channels", f"has {len(channels)} entries where two are understood")
    first, second = channels
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


TOWERS: dict[str, Count] = {
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
AUDIO_TOWERS: dict[str, Count] = {"gemma4": gemma4_conformer}


# --- what images cost -----------------------------------------------------------------------------------------------

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


def _tower(
    vision: Fields,
    sizing: Sizing,
    merge: int,
    projector: int,
    *,
    gated: bool = False,
    layers: str = "num_hidden_layers",
    prefix: str = "",
    patch: int | None = None,
) -> VisionTower:
    """A tower of equal layers, each with the four matrices of attention and two or three of a feed-forward block."""
    width, inner = vision.size(f"{prefix}hidden_size"), vision.size(f"{prefix}intermediate_size")
    return VisionTower(
        sizing=sizing,
        patch=vision.size("patch_size", default=patch),
        merge=merge,
        layers=vision.size(f"{prefix}{layers}"),
        width=width,
        layer_parameters=4 * width * width + (3 if gated else 2) * width * inner,
        projector_parameters=projector,
    )


def _merger(vision: Fields, merge: int, out: int, width: str = "hidden_size") -> int:
    """Two products, from the joined patches to a token."""
    joined = vision.size(width) * merge * merge
    return joined * joined + joined * out


def qwen2_5_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Qwen2.5-VL: gated layers, most of which attend within windows of 112 pixels."""
    merge, out = vision.size("spatial_merge_size"), vision.size("out_hidden_size", default=hidden)
    found = _tower(vision, QWEN2_PIXELS, merge, _merger(vision, merge, out), gated=True, layers="depth")
    full = len(vision.numbers("fullatt_block_indexes") or ())
    window = (vision.size("window_size", default=112) // found.patch) ** 2
    return found.model_copy(update={"windowed_layers": max(0, found.layers - full), "window": window})


def qwen3_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Qwen3-VL and Qwen3.5; a merger more for each deep-stack level."""
    merge, levels = vision.size("spatial_merge_size"), len(vision.numbers("deepstack_visual_indexes") or ())
    mergers = (1 + levels) * _merger(vision, merge, vision.size("out_hidden_size"))
    return _tower(vision, QWEN3_PIXELS, merge, mergers, layers="depth")


def gemma3_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Gemma 3: one square, pooled to 256 tokens (``mm_tokens_per_image``)."""
    tokens = whole.size("mm_tokens_per_image", default=256)
    merge = max(1, round(vision.size("image_size") / vision.size("patch_size") / tokens**0.5))
    return _tower(vision, BySquare(cells=tokens), merge, vision.size("hidden_size") * hidden)


def gemma4_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Gemma 4: gated layers, pooled three by three."""
    pooled, projector = vision.size("pooling_kernel_size", default=GEMMA4_POOLING), vision.size("hidden_size") * hidden
    return _tower(vision, ByTokens(most=GEMMA4_TOKENS), pooled, projector, gated=True, patch=16)


def pixtral_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Mistral 3: gated layers; transformers' image_processing_pixtral with the edge of the checkpoint's tower."""
    width, merge = vision.size("hidden_size"), whole.size("spatial_merge_size", default=2)
    projector = width * width * merge * merge + width * hidden + hidden * hidden
    return _tower(vision, ByEdge(longest=vision.size("image_size", default=1540)), merge, projector, gated=True)


def llama4_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Llama 4: tiles of 336 pixels, of whose patches four become a token by pixel shuffle."""
    tiles = ByTiles(side=vision.size("image_size"), most=LLAMA4_TILES)
    return _tower(vision, tiles, 2, _llama4_projector(vision, hidden))


def kimi_tower(vision: Fields, whole: Fields, hidden: int) -> VisionTower:
    """Kimi-K2.5: MoonViT at the image's own size; field names as in its config.json."""
    merge = (vision.numbers("merge_kernel_size") or [2])[0]
    sizing = ByPatches(most=KIMI_PATCHES, most_to_a_side=KIMI_SIDE, patch=vision.size("patch_size"))
    return _tower(vision, sizing, merge, _merger(vision, merge, hidden, "vt_hidden_size"), prefix="vt_")


TOWER_READERS: dict[str, Reader] = {
    "qwen2_5_vl": qwen2_5_tower,
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), qwen3_tower),
    "gemma3": gemma3_tower,
    "gemma4": gemma4_tower,
    "mistral3": pixtral_tower,
    "llama4": llama4_tower,
    "kimi_k25": kimi_tower,
}
