"""Read the vision or audio tower of a multimodal checkpoint: its parameters, and what images cost.

Text never passes a tower, but its weights take memory. A vision tower is a row of ``data/families.toml``, which one
formula counts; a tower without a row is an error, because its size cannot be known here. The same row gives the
patches, layers and tokens that an image costs.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from pydantic import ValidationError

from tokonomics.catalog.config_families import (
    AUDIO_HARMLESS,
    DECODER_ONLY,
    TOWER_HARMLESS,
    TOWERS,
    Fields,
    Size,
    Tower,
)
from tokonomics.catalog.config_layers import field_names, is_on, size_of
from tokonomics.catalog.models import VisionTower
from tokonomics.errors import BadInput


def count_towers(whole: Fields, model_type: str, hidden: int) -> int:
    """Count the parameters of the towers in ``vision_config`` and ``audio_config``; 0 if there is none."""
    total = 0
    for name, known in (("vision_config", model_type in TOWERS), ("audio_config", model_type in AUDIO)):
        described = whole.child(name)
        if described is None:
            continue
        if not known:
            fix = f"Remove {name} from a copy of the file to cost the text model alone."
            what = f"describes a tower that cannot be counted for model_type '{model_type}'"
            raise whole.wrong(name, what, fix)
        is_audio = name == "audio_config"
        if is_audio:
            total += AUDIO[model_type](described, hidden)
        else:
            total += _count(TowerShape.read(described, whole, hidden, TOWERS[model_type]))
        described.expect(DECODER_ONLY)
        whole.notes += described.unread(AUDIO_HARMLESS if is_audio else TOWER_HARMLESS)
    return total


class TowerShape(NamedTuple):
    """What is read from every vision tower, for its parameters and for its images."""

    vision: Fields
    whole: Fields
    hidden: int  # of the text model
    row: Tower
    width: int
    inner: int
    layers: int
    patch: int

    @staticmethod
    def read(vision: Fields, whole: Fields, hidden: int, row: Tower) -> "TowerShape":
        width = size_of(vision, row.width)
        inner = int(width * vision.ratio("mlp_ratio", 64, row.ratio)) if row.ratio else size_of(vision, row.inner)
        layers, patch = size_of(vision, row.layers), size_of(vision, row.patch)
        return TowerShape(vision, whole, hidden, row, width, inner, layers, patch)

    def size(self, size: Size) -> int:
        """Return a size of the row, from the tower's fields or from those around them (``outer.``)."""
        if isinstance(size, int) or not any(name.startswith("outer.") for name in field_names(size)):
            return size_of(self.vision, size)
        return size_of(self.whole, [name.removeprefix("outer.") if isinstance(name, str) else name for name in size])


def _count(shape: TowerShape) -> int:
    """Count the parameters: the patches' embedding, positions, layers, single parts, and the projector."""
    vision, row, width, inner, patch = shape.vision, shape.row, shape.width, shape.inner, shape.patch
    biased = is_on(vision, row.biased)
    vision.expect(row.expect)
    attended, head_norms = size_of(vision, row.attention) or width, 0
    if row.heads:
        heads, head_dim = size_of(vision, row.heads), vision.size("head_dim")
        vision.expect({"num_key_value_heads": [heads]})
        attended, head_norms = heads * head_dim, 2 * head_dim
    embedding = size_of(vision, row.channels) * size_of(vision, row.frames) * patch * patch * width
    places = (size_of(vision, row.grid) // patch) ** 2 if row.grid is not None else 0
    places += math.prod(size_of(vision, size) for size in row.positions) if row.positions else 0
    layer = 4 * width * attended + (3 if row.gated else 2) * width * inner + head_norms
    layer += (3 * attended + width + (2 if row.gated else 1) * inner + width) * biased
    layer += (row.norms * (2 if biased and row.norm_bias else 1) + row.scales) * width
    projector = PROJECTORS[row.projector](shape)
    once = (places + row.vectors) * width
    return embedding + once + shape.layers * layer + projector.matrices + projector.small


def read_tower(whole: Fields, model_type: str, hidden: int) -> VisionTower | None:
    """Return the tower in ``vision_config``; None if there is none, or if its rule for images is not known."""
    vision, row = whole.child("vision_config"), TOWERS.get(model_type)
    if not vision or row is None or not row.sizing or any(vision.value(name) is None for name in row.needed):
        return None
    try:
        return _vision_tower(TowerShape.read(vision, whole, hidden, row))
    except (BadInput, ValidationError):  # an unknown shape, whose parameters were given
        return None


def _vision_tower(shape: TowerShape) -> VisionTower:
    """Return the shape that determines the tokens and FLOPs of an image."""
    vision, row, width = shape.vision, shape.row, shape.width
    sizing = {name: size if name == "kind" else shape.size(size) for name, size in row.sizing.items()}
    projector = PROJECTORS[row.projector](shape)
    merge = projector.merge
    if sizing["kind"] == "square":
        merge = max(1, round(vision.size("image_size") / shape.patch / sizing["cells"] ** 0.5))
    found = VisionTower(
        sizing=sizing,
        patch=shape.patch,
        merge=merge,
        layers=shape.layers,
        width=width,
        layer_parameters=4 * width * width + (3 if row.gated else 2) * width * shape.inner,
        projector_parameters=projector.matrices,
    )
    if row.window is None:
        return found
    full = len(vision.numbers("fullatt_block_indexes") or ())
    window = (size_of(vision, row.window) // shape.patch) ** 2
    return found.model_copy(update={"windowed_layers": max(0, shape.layers - full), "window": window})


# --- from patches to tokens -----------------------------------------------------------------------------------------


class Projector(NamedTuple):
    """What is between a tower and the text model."""

    matrices: int  # parameters that a token passes
    small: int = 0  # norms and biases
    merge: int = 1  # patches per side of a token


def linear(shape: TowerShape) -> Projector:
    """Count one projection of pooled patches."""
    return Projector(shape.width * shape.hidden, merge=shape.size(shape.row.merge) if shape.row.merge else 1)


def merger(shape: TowerShape) -> Projector:
    """Count Qwen's two products of the joined patches; once more, behind a norm, for each deep-stack level."""
    merge, out = shape.size(shape.row.merge), shape.size(shape.row.out) or shape.hidden
    joined, levels = shape.width * merge * merge, len(shape.vision.numbers("deepstack_visual_indexes") or ())
    small = (1 + levels) * (joined + out) + levels * 2 * joined
    return Projector((1 + levels) * (joined * joined + joined * out), small, merge)


def pixtral(shape: TowerShape) -> Projector:
    """Count a patch merger and two projections."""
    width, hidden, merge = shape.width, shape.hidden, shape.size(shape.row.merge)
    bias = 2 * hidden * shape.whole.flag("multimodal_projector_bias", False)
    return Projector(width * width * merge * merge + width * hidden + hidden * hidden, bias, merge)


def llama4(shape: TowerShape) -> Projector:
    """Count the two products of the adapter, and the projection."""
    vision, merge = shape.vision, shape.size(shape.row.merge)
    adapter = shape.inner * vision.size("projector_input_dim") + vision.size("projector_output_dim") ** 2
    return Projector(adapter + vision.size("vision_output_dim") * shape.hidden, merge=merge)


def moon(shape: TowerShape) -> Projector:
    """Count MoonViT's two products of the joined patches; with biases a norm before them, else one after (Kimi K3)."""
    vision, width, hidden = shape.vision, shape.width, shape.hidden
    biased = is_on(vision, shape.row.biased)
    kind = "layernorm" if biased else "rmsnorm"
    vision.expect({"attn_bias": [biased], "patch_embed_proj_bias": [biased], "norm_type": [kind]})
    merge = vision.numbers("merge_kernel_size") or [2, 2]
    joined = vision.size("mm_hidden_size", default=width) * math.prod(merge)
    small = 2 * width + joined + hidden if biased else hidden
    small += (3 if biased else 1) * width  # the norm after the last layer, and the patches' bias
    return Projector(joined * joined + joined * hidden, small, merge[0])


def minimax(shape: TowerShape) -> Projector:
    """Count MiniMax-M3's two products of every patch and two of each merged group."""
    hidden, merge = shape.hidden, shape.size(shape.row.merge)
    shape.vision.expect({"projection_dim": [hidden]})
    between = shape.whole.size("projector_hidden_size", default=hidden)
    matrices = shape.width * between + between * hidden + hidden * merge * merge * between + between * hidden
    return Projector(matrices, 2 * (between + hidden), merge)


def step(shape: TowerShape) -> Projector:
    """Count Step 3.7's two convolutions that halve the grid, and a projection."""
    width, hidden = shape.width, shape.hidden
    matrices = 9 * width * 2 * width + 9 * 2 * width * 4 * width + 4 * width * hidden
    return Projector(matrices, 6 * width + hidden * shape.whole.flag("projector_bias", False))


def twofold(shape: TowerShape) -> Projector:
    """Count two products of every patch."""
    bias = 2 * shape.hidden * shape.whole.flag("multimodal_projector_bias", True)
    return Projector(shape.width * shape.hidden + shape.hidden * shape.hidden, bias)


def cohere(shape: TowerShape) -> Projector:
    """Count Command A Vision's gated block over joined patches."""
    merge, inner = shape.whole.size("downsample_factor", default=2), shape.whole.size("alignment_intermediate_size")
    matrices = shape.width * merge * merge * inner + inner // 2 * shape.hidden
    return Projector(matrices, inner + shape.hidden, merge)


def step3(shape: TowerShape) -> Projector:
    """Count Step 3's two convolutions, of four and of nine patches, and a projection."""
    out, hidden = shape.size(shape.row.out), shape.hidden
    matrices = 4 * shape.width * out + 9 * out * 2 * out + 2 * out * hidden
    return Projector(matrices, 3 * out + hidden * shape.whole.flag("projector_bias", False))


def glm(shape: TowerShape) -> Projector:
    """Count GLM-V's convolution over the joined patches, a projection, and a gated block."""
    merge, out = shape.size(shape.row.merge), shape.inner
    inner = shape.vision.size("intermediate_size")
    return Projector(shape.width * merge * merge * out + out * out + 3 * out * inner, 3 * out, merge)


def intern(shape: TowerShape) -> Projector:
    """Count InternVL's norm of the joined patches and two products."""
    merge = round(1 / shape.whole.ratio("downsample_ratio", 1, 0.5))
    joined, hidden = shape.width * merge * merge, shape.hidden
    return Projector(joined * hidden + hidden * hidden, 2 * joined + 2 * hidden, merge)


PROJECTORS: dict[str, Callable[[TowerShape], Projector]] = {
    "linear": linear, "merger": merger, "pixtral": pixtral, "llama4": llama4, "moon": moon, "minimax": minimax,
    "step": step, "glm": glm, "intern": intern,
    "step3": step3, "twofold": twofold, "cohere": cohere,
}  # fmt: skip


# --- audio ----------------------------------------------------------------------------------------------------------


def gemma4_conformer(audio: Fields, hidden: int) -> int:
    """Count Gemma 4's audio tower (E2B, E4B): two feed-forward blocks, attention and a convolution in each layer."""
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


class WhisperShape(NamedTuple):
    """The width of a Whisper encoder (arXiv:2212.04356), its feed-forward width and its parameters by part."""

    width: int
    inner: int
    sampled: int  # two convolutions over time
    layers: int  # with the norm after them; positions are computed

    @staticmethod
    def read(audio: Fields, key_bias: bool = False) -> "WhisperShape":
        width = audio.size("d_model", "hidden_size", default=1280)
        inner = audio.size("encoder_ffn_dim", "intermediate_size", default=5120)
        mels = audio.size("num_mel_bins", default=128)
        biases = (4 if key_bias else 3) * width + inner + width
        layer = 4 * width * width + 2 * width * inner + biases + 4 * width
        layers = audio.size("encoder_layers", "num_hidden_layers", default=32) * layer + 2 * width
        return WhisperShape(width, inner, 3 * mels * width + 3 * width * width + 2 * width, layers)


def qwen2_5_omni_encoder(audio: Fields, hidden: int) -> int:
    """Count Qwen2.5-Omni's audio tower: Whisper's encoder, a projection and two tokens around the sound."""
    whisper, out = WhisperShape.read(audio), audio.size("output_dim", default=hidden)
    return whisper.sampled + whisper.layers + whisper.width * out + out + 2 * out


def qwen3_omni_encoder(audio: Fields, hidden: int) -> int:
    """Count Qwen3-Omni's audio tower: three convolutions that halve the spectrum, then Whisper's layers."""
    whisper = WhisperShape.read(audio, key_bias=True)
    width, out = whisper.width, audio.size("output_dim", default=hidden)
    channels, mels = audio.size("downsample_hidden_size", default=480), audio.size("num_mel_bins", default=128)
    sampled = 9 * channels + 2 * 9 * channels * channels + 3 * channels + channels * -(-mels // 8) * width
    return sampled + whisper.layers + width * width + width + width * out + out


def voxtral_encoder(audio: Fields, hidden: int) -> int:
    """Count Voxtral's audio tower: Whisper's encoder, and two products of some joined frames."""
    whisper = WhisperShape.read(audio)
    audio.expect({"is_causal": [False]})  # Voxtral Realtime's encoder is another
    factor = audio.optional_size("downsample_factor")
    joined = whisper.width * factor if factor else whisper.inner  # transformers joins as many as fill this width
    return whisper.sampled + whisper.layers + joined * hidden + hidden * hidden


AUDIO: dict[str, Callable[[Fields, int], int]] = {
    "gemma4": gemma4_conformer, "qwen2_5_omni_thinker": qwen2_5_omni_encoder,
    "qwen3_omni_moe_thinker": qwen3_omni_encoder, "voxtral": voxtral_encoder,
}  # fmt: skip
