"""How fast an API answers, beside its price: the lightest load of a run that names it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.there import there

from tokonomics.catalog.apis import ApiPrice
from tokonomics.errors import BadInput
from tokonomics.measure.bench.client import Reply
from tokonomics.measure.bench.loads import LoadWindow
from tokonomics.measure.benchmark_run import BenchmarkRun, api_latency
from tokonomics.measure.priced_run import Price, price_run
from tokonomics.questions.api_beside import latencies_of
from tokonomics.questions.inputs import MeasuredApis

GROQ = "groq:llama-3.3-70b-versatile"


def point(users: int, ttft_s: float, tpot_s: float) -> dict[str, Any]:
    """Requests of 1,000 tokens in and 300 out."""
    return {
        "concurrency": users, "requests_per_s": 2.0, "input_tokens_per_s": 2000.0, "output_tokens_per_s": 600.0,
        "mean_input_tokens": 1000.0, "mean_output_tokens": 300.0, "completed": 40,
        "ttft_s": {"p50": ttft_s, "p99": 2 * ttft_s}, "tpot_s": {"p50": tpot_s},
    }  # fmt: skip


def run(api: str | None = GROQ) -> BenchmarkRun:
    document = {"tool": "tokonomics bench", "api": api, "points": [point(8, 1.0, 0.01), point(1, 0.25, 0.004)]}
    return BenchmarkRun.model_validate(document)


def test_a_callers_latency_is_that_of_the_lightest_load() -> None:
    found = api_latency(run(), "run.json")
    assert (found.api, found.load) == (GROQ, "1 user")
    assert (found.ttft_p50_s, found.ttft_p99_s) == (0.25, 0.5)
    assert found.tokens_per_s == pytest.approx(250)
    with pytest.raises(BadInput):
        api_latency(run(None), "run.json")
    document = json.loads(run().model_dump_json())
    del document["api"]  # as runs of before were saved
    assert BenchmarkRun.model_validate(document).api is None


def test_files_are_found_by_the_name_of_their_api(tmp_path: Path) -> None:
    file = tmp_path / "groq.json"
    file.write_text(run().model_dump_json())
    assert list(latencies_of(MeasuredApis.checked({"measured": [str(file)]}))) == [GROQ]
    with pytest.raises(BadInput):
        latencies_of(MeasuredApis.checked({"measured": [str(file), str(file)]}))
    assert latencies_of(MeasuredApis()) == {}


def test_an_api_is_paid_by_the_token() -> None:
    """1,000 tokens at $0.59 and 300 at $0.79 a million: $0.000827 a request, over 1,300 tokens $0.636 a million."""
    rates = {"input_usd_per_mtok": 0.59, "output_usd_per_mtok": 0.79}
    api = ApiPrice(host="groq", model="llama", date=None, source="test", **rates)
    priced = there(price_run(run(), None, Price(api=api, price_from="test")).points[0].usd_per_mtok)
    assert priced.blended == pytest.approx((590 + 237) / 1300)
    assert priced.output_only == pytest.approx((590 + 237) / 300)
    assert (priced.input, priced.output) == (0.59, 0.79)


def test_a_window_counts_what_every_answer_was_charged() -> None:
    """Two answers of 5 tokens to prompts of 3, one of them in the warm-up: 2 × (3 + 2 × 5) millionths of a dollar."""
    window = LoadWindow(0.0, usd_of=lambda prompt, answer: prompt * 1e-6 + answer * 2e-6)
    for inside in (False, True):
        window.keep(Reply(0.0, 0.0, 0.5, 1.0, 1.0, input_tokens=3, output_tokens=5), inside=inside)
    assert window.usd == pytest.approx(26e-6)
