"""Measured rows that tests make up: one default, and what differs from it."""

from typing import Any

from tokonomics.measure.measurements import Measurement, Metric, Mode


def measurement(**changes: Any) -> Measurement:
    """The time per token of sixteen users of an 8B model on an H100 under vLLM, changed as asked."""
    row: dict[str, Any] = {
        "key": "row", "model": "llama-3.1-8b", "gpu": "H100", "gpus": 1, "tp": 1, "weights": "unstated", "kv": None,
        "engine": "vllm", "year": 2026, "input_tokens": 1000, "output_tokens": 300, "batch": 16,
        "mode": Mode.fixed_concurrency, "metric": Metric.tpot_s, "value": 1.0, "source": "made up",
    }  # fmt: skip
    return Measurement.model_validate(row | changes)
