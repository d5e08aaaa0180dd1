"""Every model family that is read, by what ``model_type`` calls it.

Adding one is adding a row to ``config_dense``, ``config_mixtures``, ``config_hybrids`` or ``config_encoders`` (and,
for a new kind of layer, a function in ``config_layers`` or ``config_recurrent``); ``benchmarks/check_parameters.py``
compares the counts with transformers.
"""

from tokonomics.catalog.config_dense import DENSE, QWEN2_VL, QWEN3_ATTENTION
from tokonomics.catalog.config_encoders import ENCODERS
from tokonomics.catalog.config_family import Family
from tokonomics.catalog.config_hybrids import HYBRIDS
from tokonomics.catalog.config_mixtures import MIXTURES, QWEN3_MOE

_TEXT_PARTS: dict[str, Family] = {
    "qwen2_vl_text": QWEN2_VL,
    "qwen2_5_vl_text": QWEN2_VL,
    "qwen3_vl_text": Family(QWEN3_ATTENTION),
    "qwen3_vl_moe_text": QWEN3_MOE,
}
FAMILIES: dict[str, Family] = DENSE | MIXTURES | HYBRIDS | ENCODERS | _TEXT_PARTS

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "gemma4": "gemma4_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
}  # multimodal types, whose text model is under ``text_config``, with the type it has when it does not say
