"""A meter's ledger as loads: what ``calibrate`` learns of servers that simply run."""

from pathlib import Path

import pytest
from tests.measure.ledgers import hour, ledger_of
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.measure.evidence import is_ledger, read_evidence, runs_of
from tokonomics.measure.measurements import Metric
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan
from tokonomics.measure.priced_run import GivenMachine


def span(start: float, running: float, output: float, **other: object) -> PaidTime:
    """Five busy minutes of 50 requests, 100 of whose 400 prompt tokens are cached."""
    given = {
        "seconds": 300.0, "server_s": 300.0, "usd": 300 * 2 / 3600, "busy_s": 300.0, "input_total": 20_000.0,
        "input_cached": 5_000.0, "answered": 50.0, "running_s": running * 300, "running_seen_s": 300.0, "ttft_s": 10.0,
        "ttft_count": 50.0, "output": output,
    }  # fmt: skip
    return hour(start, **(given | other))


def test_busy_stretches_of_like_batch_are_one_load(tmp_path: Path) -> None:
    spans = [
        span(0, 4, 9_000),
        span(600, 4, 11_000),
        span(1200, 16, 30_000),
        span(1800, 16, 90_000, busy_s=150.0),  # half of it idle: it would pass for a slow server
        span(2400, 16, 90_000, watched=WatchedSpan.gap),
        span(3000, 64, 90_000, answered=3.0),  # too few
        span(3600, 64, 90_000, server_s=150.0, busy_s=150.0),  # another model had half of the server
    ]
    (run,) = runs_of(ledger_of(tmp_path / "meter.db", spans))
    assert (run.model, run.stated.engine) == ("llama-3.1-8b", "vllm")
    assert [point.concurrency for point in run.points] == [4, 16]
    first = run.points[0]
    assert first.output_tokens_per_s == pytest.approx(20_000 / 600)
    assert first.mean_input_tokens == pytest.approx(30_000 / 100)  # those computed
    assert first.mean_output_tokens == pytest.approx(200)
    assert there(first.ttft_s).mean == pytest.approx(0.2)


def test_calibrate_reads_a_ledger_like_any_other_result(tmp_path: Path) -> None:
    path = ledger_of(
        tmp_path / "meter.db", [span(600.0 * place, batch, 300.0 * batch) for place, batch in enumerate((2, 8, 32))]
    )
    assert is_ledger(path)
    found = read_evidence([path], GivenMachine(gpu="H100"), "")
    assert {(row.batch, row.metric) for row in found.rows} >= {(2, Metric.output_tok_s), (32, Metric.ttft_s)}
    rates = {row.batch: row.value for row in found.rows if row.metric is Metric.output_tok_s}
    assert rates[8] == pytest.approx(8.0)


def test_a_ledger_without_a_busy_load_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="busy throughout"):
        runs_of(ledger_of(tmp_path / "meter.db", [span(0, 4, 9_000, busy_s=10.0)]))
