"""Does our counting agree with the modelling code? Builds every catalogue model in transformers, without memory.

Each row's config is instantiated on torch's meta device, its parameters are counted (tied ones once, with the expert
correction terms that transformers keeps as buffers) and compared with ours and with the published figure. Needs
torch and transformers; says so and stops where they are missing.

    python benchmarks/check_parameters.py [model ...]
"""

import sys
import tomllib
from pathlib import Path
from typing import Any

from tokonomics.catalog.config_families import FAMILIES
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec

ROWS = Path(__file__).parents[1] / "src" / "tokonomics" / "catalog" / "data" / "models.toml"
SAME_CLASS = {"kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text"}
"""Types that transformers knows under another name: Kimi K2 ships DeepSeek-V3's modelling code."""
TEXT_PARTS = {"minimax_m3"}
"""Text models that transformers only has inside a multimodal one, without an LM head."""


def reference_count(config: dict[str, Any]) -> int:
    """Parameters of the model that transformers builds from a config."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSequenceClassification,
    )

    values = {name: value for name, value in with_nulls(config).items() if name != "quantization_config"}
    model_type = values.pop("model_type")
    settings = AutoConfig.for_model(SAME_CLASS.get(model_type, model_type), **values)
    build = AutoModelForImageTextToText if "vision_config" in values else AutoModelForCausalLM
    if model_type in FAMILIES and FAMILIES[model_type].encoder:
        ranks = any(name.endswith("ForSequenceClassification") for name in values.get("architectures", ()))
        build = AutoModelForSequenceClassification if ranks else AutoModel
    elif model_type in TEXT_PARTS:
        build = AutoModel
    with torch.device("meta"):
        model = build.from_config(settings)
    model.tie_weights()
    corrections = sum(each.numel() for name, each in model.named_buffers() if name.endswith("e_score_correction_bias"))
    head = values["vocab_size"] * values["hidden_size"] if model_type in TEXT_PARTS else 0
    return int(sum(parameter.numel() for parameter in model.parameters()) + corrections + head)


def with_nulls(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: with_nulls(value) if isinstance(value, dict) else None if value == "null" else value
        for name, value in config.items()
    }


def line(model: ModelSpec, reference: int | str) -> str:
    """One row of the table."""
    published = model.published
    served = published.parameters - published.not_served if published else 0
    ratio = f"{model.parameters / served:.4f}" if served else "–"
    same = "equal" if reference == model.parameters else "DIFFERS"
    if isinstance(reference, int) and reference != model.parameters:
        same += f" by {model.parameters - reference:+,}"
    shown = f"{reference:,}" if isinstance(reference, int) else reference
    return f"{model.key:28} {model.parameters:>20,} {shown:>20} {same:24} {served:>20,} {ratio}"


def main(names: list[str]) -> int:
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError:
        print("This check needs torch and transformers: pip install torch transformers")
        return 0
    transformers.logging.set_verbosity_error()
    rows = tomllib.loads(ROWS.read_text("utf-8"))
    wrong = 0
    print(f"{'model':28} {'ours':>20} {'transformers':>20} {'':24} {'published, served':>20} ours/published")
    for model in [find_model(name) for name in names] or all_models():
        if model.key not in rows:
            continue
        try:
            reference: int | str = reference_count(rows[model.key]["config"])
        except Exception as error:  # whatever transformers trips over is a finding for the table, not a crash
            reference = type(error).__name__
            print(f"  {model.key}: {str(error)[:300]}", file=sys.stderr)
        wrong += reference != model.parameters
        print(line(model, reference), flush=True)
    print(f"{wrong} differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
