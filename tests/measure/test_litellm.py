"""LiteLLM itself, installed, prices calls by our file: what it adds up to is the ledger's bill.

It is large, so it has an environment of its own: ``make check-litellm``. Here the tests are skipped without it.
"""

import json
import os
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from tests.measure.ledgers import at, days_from, hour, ledger_of

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its own price list as installed: nothing is fetched
litellm = pytest.importorskip("litellm")

MONDAY = date(2026, 11, 9)


def exported(ledger: Path, *more: str) -> dict[str, object]:
    command = ["meter", "export", "litellm", "--ledger", str(ledger), "--since", "2026-11-01", "--until", "2026-12-01"]
    made = subprocess.run(
        [sys.executable, "-m", "tokonomics", *command, *more], capture_output=True, text=True, check=True
    )
    return dict(json.loads(made.stdout))


def priced(model: str, prompt: int, cached: int, answer: int) -> float:
    """What LiteLLM says that a completion cost."""
    response = litellm.ModelResponse(
        model=model,
        usage=litellm.Usage(
            prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer,
            prompt_tokens_details={"cached_tokens": cached},
        ),
    )  # fmt: skip
    return float(litellm.completion_cost(completion_response=response, model=f"hosted_vllm/{model}"))


@pytest.mark.parametrize("more", [(), ("--gpu", "H100")], ids=["every token alike", "by GPU time"])
def test_a_days_calls_cost_what_the_ledger_says(tmp_path: Path, more: tuple[str, ...]) -> None:
    """24 hours of 1,000 requests, each 1,000 prompt tokens, 400 of them cached, and 200 out: $48 in all."""
    prices = exported(ledger_of(tmp_path / "meter.db", days_from(MONDAY, [48.0])), *more)
    litellm.register_model(prices)
    one = priced("llama-3.1-8b", prompt=1000, cached=400, answer=200)
    assert one * 24_000 == pytest.approx(48.0, rel=1e-3)
    print(f"LiteLLM prices the day's 24,000 requests at ${one * 24_000:.6f}; the ledger says $48")  # noqa: T201


def test_two_models_are_priced_apart(tmp_path: Path) -> None:
    big = hour(at(MONDAY), target="http://gpu2:8000", model="org/Big-70B", usd=8.0, usd_per_hour=8.0)
    litellm.register_model(exported(ledger_of(tmp_path / "meter.db", [hour(at(MONDAY)), big])))
    small, large = (priced(model, 1000, 400, 200) for model in ("llama-3.1-8b", "org/Big-70B"))
    assert small * 1000 == pytest.approx(2.0, rel=1e-3)
    assert large * 1000 == pytest.approx(8.0, rel=1e-3)
