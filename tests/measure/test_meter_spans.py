"""Time, dollars and tokens of spans: split them anywhere, and nothing is lost."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.metered import BEGIN, HandClock, Process, read_page
from tests.measure.test_meter_engines import read as page_reading
from tests.measure.test_meter_engines import recorded

from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.readings import Counted, Reading
from tokonomics.measure.meter.spans import (
    PaidTime,
    Stretch,
    WatchedSpan,
    change_between,
    cut,
    cut_every,
    empty_spans,
    spans_between,
    tally,
)
from tokonomics.measure.meter.state import MeterTally


def span(start: float = BEGIN, seconds: float = 15.0, **given: object) -> PaidTime:
    usual: dict[str, object] = {
        "target": "t", "model": "m", "engine": "vllm", "watched": WatchedSpan.seen, "usd_per_hour": 3.6,
        "usd": seconds * 0.001, "server_s": seconds, "busy_s": seconds, "input_total": 100.0, "output": 50.0,
    }  # fmt: skip
    return PaidTime(start=start, seconds=seconds, **(usual | given))  # type: ignore[arg-type]


def between(before: Reading, now: Reading, seconds: float = 15.0, watched: WatchedSpan = WatchedSpan.seen) -> PaidTime:
    (made,) = spans_between([change_between(before, now)], Stretch(watched, BEGIN, seconds, 3.6))
    return made


def of_models(before: Mapping[str, Reading], now: Iterable[Reading]) -> list[PaidTime]:
    """An hour of a $4 server."""
    changes = [change_between(before[reading.model], reading) for reading in now]
    return spans_between(changes, Stretch(WatchedSpan.seen, BEGIN, 3600, 4.0))


def read(process: Process) -> Reading:
    (reading,) = read_page(process.page(), at=process.clock.wall())
    return reading


def test_a_span_costs_its_time_at_the_price() -> None:
    process = Process(HandClock())
    before = read(process)
    process.work(3000, 600)
    made = tally(between(before, read(process), seconds=1800))
    assert made.usd == pytest.approx(1.80)
    assert made.usd_per_mtok == pytest.approx(1.80 / 3600 * 1e6)
    assert made.usd_per_mtok_output == pytest.approx(1.80 / 600 * 1e6)


def test_a_burst_between_two_readings_is_work_though_no_gauge_saw_it() -> None:
    process = Process(HandClock())
    before = read(process)
    process.work(1, 1)
    assert tally(between(before, read(process))).busy_s == 15.0


@pytest.mark.parametrize(
    ("page", "lacks", "old", "new", "busy_s"),
    [
        # It counts tokens at the end, but its decoding steps move while a request runs.
        ("llamacpp-2026.10.prom", "none", "llamacpp:n_decode_total 32", "llamacpp:n_decode_total 90", 15.0),
        ("llamacpp-2026.10.prom", "none", "", "", 0.0),
        # Without the steps on the page the gauge decides.
        ("llamacpp-2026.10.prom", "n_decode", "requests_processing 0", "requests_processing 1", 15.0),
        ("llamacpp-2026.10.prom", "n_decode", "", "", 0.0),
        # Nothing on the page shows work while it is done: never called idle.
        ("tensorrt-llm.prom", "num_requests_running", "", "", 15.0),
        # Two ranks were idle for 6 and 2 of the 15 seconds by their own count, and tokens moved.
        ("sglang-0.5.23.prom", "none", "} 100.0\n", "} 106.0\n", 15 - (6 + 2) / 2),
        # Idle seconds that were added late are not taken twice.
        ("sglang-0.5.23.prom", "none", "} 100.0\n", "} 900.0\n", 15.0),
    ],
)
def test_an_engine_is_busy_or_idle_as_its_page_tells(page: str, lacks: str, old: str, new: str, busy_s: float) -> None:
    before = "".join(line + "\n" for line in recorded(page).splitlines() if lacks not in line)
    after = before.replace(old, new) if old else before
    if "sglang" in page:
        after = after.replace("} 200.0\n", "} 202.0\n").replace("} 1100.0", "} 1200.0")
    assert tally(between(page_reading(before), page_reading(after))).busy_s == pytest.approx(busy_s)


def test_a_gauge_that_is_stuck_does_not_make_an_idle_server_busy() -> None:
    """vLLM leaves a request in its gauge after some aborts (issue 22545), while its steps stand still."""
    process = Process(HandClock())
    process.work(10, 5)
    process.running = 1
    assert tally(between(read(process), read(process))).idle_s == 15.0


def test_a_gap_has_its_tokens_as_unseen_ones_and_no_busy_time() -> None:
    process = Process(HandClock())
    before = read(process)
    process.work(10, 5)
    made = tally(between(before, read(process), watched=WatchedSpan.gap))
    assert (made.unseen_tokens, made.gap_s, made.busy_s, made.idle_s) == (15, 15.0, 0.0, 0.0)
    assert (made.usd, made.usd_per_mtok_usage) == (made.gap_usd, None)


def test_failed_requests_take_their_share_of_the_busy_dollars() -> None:
    before, now = (
        Reading("t", "vllm", "m", at, {Counted.answered: {"x": done}, Counted.failed: {"x": bad}}, running=1.0)
        for at, done, bad in ((0.0, 0.0, 0.0), (3600.0, 9.0, 1.0))
    )
    assert tally(between(before, now, 3600.0)).failed_usd == pytest.approx(3.60 / 10)


def test_starved_is_busy_with_less_than_half_of_the_planned_batch() -> None:
    small = span(running_s=15 * 9.0, running_seen_s=15.0)
    assert tally(small, planned_batch=48).starved_s == 15.0
    assert tally(small, planned_batch=16).starved_s == 0.0
    assert tally(small).starved_s == 0.0


def test_models_of_one_server_share_its_price_by_their_tokens() -> None:
    readings = {
        name: Reading("t", "vllm", name, 0.0, {Counted.output: {"x": 0.0}}, running=0.0) for name in ("a", "b", "c")
    }
    now = [
        replace(readings[name], counters={Counted.output: {"x": out}}) for name, out in (("a", 30), ("b", 10), ("c", 0))
    ]
    spans = of_models(readings, now)
    assert [each.usd for each in spans] == pytest.approx([3.0, 1.0, 0.0])
    idle = of_models(readings, readings.values())
    assert [each.usd for each in idle] == pytest.approx([4 / 3] * 3)
    gap = empty_spans(now, Stretch(WatchedSpan.gap, BEGIN, 3600, 4.0))
    assert math.fsum(each.usd for each in gap) == pytest.approx(4.0)
    # The server's hour is an hour, however many models were on it.
    for hour in (spans, idle, gap):
        assert math.fsum(tally(each).seconds for each in hour) == pytest.approx(3600)
        assert all(each.end == BEGIN + 3600 for each in hour)
    assert math.fsum(tally(each).busy_s for each in spans) == pytest.approx(3600)


def test_the_batches_of_models_on_one_server_add_up_to_the_servers() -> None:
    readings = {name: Reading("t", "vllm", name, 0.0, {Counted.output: {"x": 0.0}}, running=3.0) for name in ("a", "b")}
    now = [replace(reading, counters={Counted.output: {"x": 10.0}}) for reading in readings.values()]
    both = sum(map(tally, of_models(readings, now)), MeterTally())
    assert both.batch == pytest.approx(3 + 3)


@given(
    seconds=st.floats(0, 1e5), offset=st.floats(0, 1e5), watched=st.sampled_from(list(WatchedSpan)),
    share=st.floats(0, 1), period=st.sampled_from([300.0, 3600.0, 86_400.0]),
)  # fmt: skip
def test_pieces_make_the_span(seconds: float, offset: float, watched: WatchedSpan, share: float, period: float) -> None:
    whole = span(BEGIN + offset, seconds, watched=watched, busy_s=seconds * share)
    pieces = cut_every(whole, period)
    assert sum(piece.input_total for piece in pieces) == whole.input_total
    for name in ("seconds", "usd", "busy_s"):
        assert math.fsum(getattr(piece, name) for piece in pieces) == pytest.approx(getattr(whole, name))
    for first, then in pairwise(pieces):
        assert then.start == pytest.approx(first.end)
        assert then.start % period == 0
    assert all(piece.seconds >= 0 and piece.usd >= 0 for piece in pieces)


def test_tokens_stay_where_they_were_seen() -> None:
    first, last = cut(span(BEGIN, 100.0), BEGIN + 60)
    assert first is not None
    assert last is not None
    assert (first.output, last.output) == (0.0, 50.0)
    assert (first.seconds, last.seconds) == (60.0, 40.0)


tallied = st.lists(
    st.tuples(st.floats(0.1, 5000), st.integers(0, 10**6), st.sampled_from(list(WatchedSpan))), min_size=1, max_size=20
)


@given(stretches=tallied, edges=st.lists(st.floats(-10, 1e5), max_size=5))
def test_a_bill_is_the_sum_of_its_parts(stretches: list[tuple[float, int, WatchedSpan]], edges: list[float]) -> None:
    """However the window is split: tokens exactly, dollars as close as floating point adds."""
    spans, at = [], BEGIN
    for seconds, tokens, watched in stretches:
        spans.append(span(at, seconds, output=float(tokens), watched=watched, busy_s=0.0))
        at = spans[-1].end
    bounds = [BEGIN - 1, *sorted(BEGIN + edge for edge in edges if 0 < edge < at - BEGIN), at + 1]
    whole = bill(spans, bounds[0], bounds[-1], ("day",)).total
    parts = [bill(spans, start, end, ("hour",)).total for start, end in pairwise(bounds)]
    together = sum(parts, MeterTally())
    assert together.output == whole.output == sum(tokens for _, tokens, _ in stretches)
    assert together.usd == pytest.approx(whole.usd)
    assert together.gap_usd == pytest.approx(whole.gap_usd)
    assert whole.seconds == pytest.approx(sum(seconds for seconds, _, _ in stretches))


def test_every_dollar_is_busy_idle_gap_or_away() -> None:
    spans = [span(watched=watched, busy_s=busy) for watched in WatchedSpan for busy in (0.0, 4.0, 15.0)]
    made = sum((tally(each) for each in spans), MeterTally())
    assert made.busy_usd + made.idle_usd + made.gap_usd + made.away_usd == pytest.approx(made.usd)
    assert made.busy_s + made.idle_s + made.gap_s + made.away_s == pytest.approx(made.seconds)
