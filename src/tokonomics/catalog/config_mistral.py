"""Translate Mistral's ``params.json`` into the fields of a config.json: Mistral Large 3 is published with that alone.

Names and meanings are those that vLLM gives them (``vllm/transformers_utils/configs/mistral.py``).
"""

from collections.abc import Mapping
from typing import Any

from tokonomics.errors import BadInput

_NAMES = {
    "dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings",
}  # fmt: skip
_EXPERTS = {
    "num_experts": "n_routed_experts", "expert_hidden_dim": "moe_intermediate_size", "routed_scale":
    "routed_scaling_factor", "num_shared_experts": "n_shared_experts", "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}  # fmt: skip
_HARMLESS = (
    "expert_parallel", "expert_model_parallel", "route_every_n", "yarn", "llama_4_scaling", "causal", "max_seq_len",
)  # fmt: skip
_TOWER = (
    "image_token_id", "image_break_token_id", "image_end_token_id", "mm_projector_id", "max_image_size",
    "add_pre_mm_projector_layer_norm", "adapter_bias", "spatial_merge_size",
)  # fmt: skip
_AUDIO = {
    "dim": "d_model", "n_layers": "encoder_layers", "hidden_dim": "encoder_ffn_dim",
    "n_heads": "encoder_attention_heads", "causal": "is_causal",
}  # fmt: skip
_AUDIO_HARMLESS = ("audio_encoding_args", "pos_embed", "max_source_positions", "head_dim", "vocab_size")
_CONTEXT = 128_000  # vLLM's default


def is_params(config: Mapping[str, object]) -> bool:
    """Tell whether these are the fields of a params.json."""
    return "model_type" not in config and {"dim", "n_layers"} <= config.keys()


def from_params(params: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the same model in the fields of transformers."""
    apart = ("moe", "vision_encoder", "multimodal", "quantization", *_HARMLESS)
    text = {_NAMES.get(name, name): value for name, value in params.items() if name not in apart}
    if not text.get("use_biases"):
        text.pop("use_biases", None)
    text.setdefault("max_position_embeddings", params.get("max_seq_len") or _CONTEXT)
    text["model_type"] = "mistral"
    text.setdefault("sliding_window", None)
    if isinstance(experts := params.get("moe"), Mapping):
        latent = "kv_lora_rank" in params
        names = _EXPERTS if latent else {"num_experts": "num_local_experts"}
        text |= {names.get(name) or name: value for name, value in experts.items() if name not in _HARMLESS}
        text["model_type"] = "mistral_large_3" if latent else "mixtral"
    found = _quantised(params.get("quantization"))
    if params.get("multimodal"):
        audio = _audio(params, where)
        return {"model_type": "voxtral", "text_config": text, "audio_config": audio} | found
    if not isinstance(tower := params.get("vision_encoder"), Mapping):
        return text | found
    vision = {name: value for name, value in tower.items() if name not in _TOWER}
    return {
        "model_type": "mistral3",
        "text_config": text,
        "vision_config": vision,
        "spatial_merge_size": tower.get("spatial_merge_size", 1),
    } | found


def _audio(params: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of Voxtral's encoder; refuse any other tower that is described in the same place."""
    given = params["multimodal"]
    alone = isinstance(given, Mapping) and len(given) == 1 and not params.get("vision_encoder")
    whisper = given.get("whisper_model_args") if alone else None
    parts = whisper if isinstance(whisper, Mapping) else {}
    encoder, joined = parts.get("encoder_args"), parts.get("downsample_args")
    if not isinstance(encoder, Mapping) or not isinstance(joined, Mapping):
        fix = "Remove 'multimodal' from a copy of the file to cost the text model alone."
        raise BadInput("field 'multimodal' describes a tower that cannot be counted", where=where, fix=fix)
    named = {_AUDIO.get(name) or name: value for name, value in encoder.items() if name not in _AUDIO_HARMLESS}
    spectrum = encoder.get("audio_encoding_args")
    mels = spectrum.get("num_mel_bins") if isinstance(spectrum, Mapping) else None
    return named | {"num_mel_bins": mels, "downsample_factor": joined.get("downsample_factor")}


def _quantised(given: object) -> dict[str, Any]:
    """Return what quantised it: FP8 with a scale for each matrix, or compressed-tensors as it stands."""
    if not isinstance(given, Mapping):
        return {}
    plain = given.get("qformat_weight") == "fp8_e4m3"
    return {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"} if plain else dict(given)}
