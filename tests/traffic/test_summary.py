"""A summary made batch by batch says what plain arithmetic on the whole says."""

import json
import math
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.there import refused, there

from tokonomics.errors import BadInput
from tokonomics.traffic import sources
from tokonomics.traffic import summary as summary_module
from tokonomics.traffic import tally as tally_module
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import Sessions, SystemPrompts, Tenants, generate
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.summary import TraceSummary, summarize
from tokonomics.traffic.tally import Tally, Window
from tokonomics.traffic.trace import Trace, make_trace, save_trace


def traffic(arrivals: str = "gamma:2,cv=3", requests: int = 20_000, **how: Any) -> Trace:
    inputs, outputs = parse_lengths("lognormal:mean=800,cv=1.5"), parse_lengths("uniform:1-500")
    return generate(parse_arrivals(arrivals), inputs, outputs, requests=requests, **how)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return traffic(tenants=Tenants(count=15))


@pytest.fixture(scope="module")
def made(trace: Trace) -> TraceSummary:
    return summarize(trace)


def test_lengths_are_those_of_the_whole(trace: Trace, made: TraceSummary) -> None:
    for tokens, told in ((trace.input_tokens, made.input), (trace.output_tokens, made.output)):
        assert told.total == tokens.sum()
        assert told.mean == pytest.approx(tokens.mean())
        assert told.max == tokens.max()
        for share, value in ((50, told.p50), (90, told.p90), (95, told.p95), (99, told.p99)):
            assert value == np.percentile(tokens, share, method="inverted_cdf")
        edges = [(each.low, each.high) for each in told.histogram]
        counts = [((tokens >= low) & (tokens < high)).sum() for low, high in edges]
        assert [each.count for each in told.histogram] == counts
        assert sum(counts) == len(trace)
    assert made.input_per_output == pytest.approx(trace.input_tokens.sum() / trace.output_tokens.sum())
    assert json.loads(made.model_dump_json())["input_per_output"] == made.input_per_output


def test_rates_and_peaks_are_those_of_the_whole(trace: Trace, made: TraceSummary) -> None:
    span = trace.arrival_s[-1]
    assert made.duration_s == span
    assert made.rate == pytest.approx((len(trace) - 1) / span)
    tokens = trace.input_tokens.sum() + trace.output_tokens.sum()
    assert made.tokens_per_second == pytest.approx(tokens / span)
    for peak in made.peaks:
        counts = np.bincount((trace.arrival_s // peak.window_s).astype(int))
        assert peak.rate == counts.max() / peak.window_s
        whole = counts[: int(span // peak.window_s)]
        assert peak.dispersion == pytest.approx(whole.var() / whole.mean())
    minutes = np.bincount((trace.arrival_s // 60).astype(int), trace.input_tokens + trace.output_tokens)
    assert made.peak_minute_over_mean == pytest.approx(minutes.max() / 60 / (tokens / span))
    gaps = np.diff(trace.arrival_s)
    assert made.gap_cv == pytest.approx(gaps.std() / gaps.mean())
    assert made.same_time == (gaps == 0).mean()
    assert sum(gap.count for gap in made.gaps) == (gaps > 0).sum()


def test_the_curve_adds_up(trace: Trace, made: TraceSummary) -> None:
    assert sum(each.requests for each in made.curve) == len(trace)
    assert sum(each.input_tokens for each in made.curve) == trace.input_tokens.sum()
    assert sum(each.output_tokens for each in made.curve) == trace.output_tokens.sum()
    for each in made.curve[:20]:
        inside = (trace.arrival_s >= each.start_s) & (trace.arrival_s < each.start_s + made.bin_s)
        assert each.requests == inside.sum()


def test_tenants_are_ordered_by_their_tokens(trace: Trace, made: TraceSummary) -> None:
    assert trace.tenant is not None
    tokens = trace.input_tokens + trace.output_tokens
    shares = np.bincount(trace.tenant, tokens) / tokens.sum()
    assert made.tenant_count == 15
    assert [tenant.tokens for tenant in made.tenants] == pytest.approx(sorted(shares, reverse=True)[:10])
    first = trace.tenants.index(made.tenants[0].name)
    assert made.tenants[0].requests == pytest.approx((trace.tenant == first).mean())


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_however_rows_are_batched_the_tally_is_the_same(data: st.DataObject) -> None:
    times = data.draw(st.lists(st.integers(0, 300).map(lambda tenth: tenth / 10), min_size=1, max_size=60))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=5)))
    arrival = np.array(times)
    tokens = np.arange(1, len(times) + 1)

    def tally(edges: list[int], kept: int) -> Tally:
        made = Tally((Window(1), Window(10)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tally_module, "KEPT", kept)
            for low, high in pairwise(edges):
                made.add(arrival[low:high], tokens[low:high], tokens[low:high])
            made.finish()
        return made

    whole, parts = tally([0, len(times)], 10**6), tally([0, *cuts, len(times)], len(times))
    assert parts.late == 0
    assert (whole.requests, whole.duration_s) == (parts.requests, parts.duration_s)
    assert [window.peak for window in whole.windows] == [window.peak for window in parts.windows]
    np.testing.assert_array_equal(whole.bins.sums, parts.bins.sums)
    assert whole.gaps.squares == pytest.approx(parts.gaps.squares)
    assert whole.gaps.variation == pytest.approx(parts.gaps.variation)
    assert whole.out_of_order == parts.out_of_order == (arrival < np.maximum.accumulate(arrival)).sum()


def test_rows_are_passed_on_in_order_though_the_buffer_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traffic(requests=5000)
    rng = np.random.default_rng(0)
    jittered = np.argsort(np.arange(len(trace)) + rng.uniform(0, 50, len(trace)))
    monkeypatch.setattr(tally_module, "KEPT", 200)
    made = Tally((Window(1), Window(10), Window(60)))
    for part in np.array_split(jittered, 40):
        rows = trace.take(part)
        made.add(rows.arrival_s, rows.input_tokens.astype(np.int64), rows.output_tokens.astype(np.int64))
    made.finish()
    gaps = np.diff(trace.arrival_s)
    assert made.late == 0
    assert made.out_of_order > 1000
    assert made.gaps.cv(made.duration_s) == pytest.approx(gaps.std() / gaps.mean())
    for window in made.windows:
        counts = np.bincount((trace.arrival_s // window.width_s).astype(int))
        assert window.peak == counts.max()
        whole = counts[: int(made.duration_s // window.width_s)]
        assert window.dispersion(len(trace), made.duration_s) == pytest.approx(whole.var() / whole.mean())


def test_a_row_too_late_to_be_put_in_order_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "KEPT", 10)
    made = Tally((Window(1),))
    ones = np.ones(40, np.int64)
    made.add(np.arange(100.0, 140.0), ones, ones)
    made.add(np.array([5.0]), ones[:1], ones[:1])
    made.finish()
    assert (made.requests, made.late, made.out_of_order) == (41, 1, 1)
    assert made.bins.sums.sum() == 3 * 41


def test_bins_widen_as_the_log_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally_module, "MOST_BINS", 100)
    made = Tally((Window(1),))
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 40_000, 3000))
    times[0] = 0.0
    for part in np.array_split(np.arange(3000), 30):
        made.add(times[part], np.full(100, 7), np.full(100, 3))
        made.finish()
    assert made.bins.width_s == 600
    np.testing.assert_array_equal(made.bins.sums[0], np.bincount((times // 600).astype(int)))
    np.testing.assert_array_equal(made.bins.sums[1], 7 * made.bins.sums[0])


@pytest.mark.parametrize(
    ("arrivals", "cv"),
    [("poisson:5", 1), ("gamma:5,cv=3", 3), ("diurnal:5,peak=3", 1), ("onoff:10,on=60,off=300,cv=2", 2)],
)
def test_burstiness_of_neighbours_does_not_see_slow_swings(arrivals: str, cv: float) -> None:
    made = summarize(traffic(arrivals, 100_000))
    assert made.local_cv == pytest.approx(cv, rel=0.04)


def test_a_coarse_clock_is_told_and_one_of_milliseconds_is_fine() -> None:
    trace = traffic("poisson:5", 10_000)
    coarse, fine = (
        summarize(make_trace(times, trace.input_tokens, trace.output_tokens))
        for times in (np.floor(trace.arrival_s / 3) * 3, np.round(trace.arrival_s, 3))
    )
    assert coarse.clock_step_s == pytest.approx(3)
    assert coarse.local_cv is None
    assert [peak.window_s for peak in coarse.peaks] == [10, 60]
    assert fine.clock_step_s is None
    even = summarize(traffic("constant:5", 5000))  # not bursty
    assert (even.gap_cv, even.local_cv) == pytest.approx((0, 0), abs=1e-6)
    assert even.clock_step_s is None


def test_dates_give_hours_and_weekdays(tmp_path: Path) -> None:
    """One request an hour for two weeks from a Wednesday noon, and one more every Sunday at 05:30."""
    start = datetime(2026, 11, 11, 12, tzinfo=UTC).timestamp()
    times = [start + 3600 * hour + 60 for hour in range(14 * 24 + 1)]
    times += [datetime(2026, 11, day, 5, 30, tzinfo=UTC).timestamp() for day in (15, 22)]
    log = tmp_path / "log.jsonl"
    rows = [{"created": time, "usage": {"prompt_tokens": 5, "completion_tokens": 2}, "user": "a"} for time in times]
    log.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    made = summarize(open_trace(log))
    assert made.started == datetime(2026, 11, 11, 12, 1, tzinfo=UTC)
    assert made.out_of_order == 2
    # Two requests more in the hours from five, of which there are fourteen: 16 ÷ 14 to 339 ÷ 337.
    assert made.by_hour[5] == pytest.approx(16 / 14 * 337 / len(times), rel=0.005)
    assert made.by_hour[7] == pytest.approx(337 / len(times), rel=0.005)
    assert made.by_weekday[6] == pytest.approx(50 / 48 * 337 / len(times), rel=0.005)
    assert made.by_weekday[2] == pytest.approx(337 / len(times), rel=0.03)


def test_reuse_is_told_for_caches_that_can_fill() -> None:
    trace = traffic(requests=3000, sessions=Sessions(4, 20), system=SystemPrompts(5, 1000))
    made = summarize(trace)
    shares = [each.share_of_input for each in made.reuse]
    assert made.block_tokens == 64
    assert made.reuse[0].cache_tokens == 100_000
    assert made.reuse[-1].cache_tokens is None
    assert shares == sorted(shares)
    assert shares[0] < shares[-1]
    assert summarize(traffic(requests=100)).reuse == ()


def test_idle_time_is_priced() -> None:
    """Twenty minutes: ten of 600 tokens/s, then ten of 60, on machines of 400 tokens/s."""
    busy, quiet = np.arange(0, 600, 1.0), np.arange(600, 1200.1, 10.0)
    trace = make_trace(np.concatenate([busy, quiet]), np.full(661, 500), np.full(661, 100))
    idle = there(summarize(trace, tokens_per_second=400, usd_per_hour=3).idle)
    assert (idle.window_s, idle.enough) == (60, 0.5)
    assert idle.idle == pytest.approx(1 - (400 + 60) / 800)
    assert idle.overflow == pytest.approx(200 / 660)
    assert idle.idle_usd_per_day == pytest.approx((1 - 460 / 800) * 72)
    assert idle.machines_for_peak == 2
    assert idle.idle_for_peak == pytest.approx(1 - 330 / 800)
    assert idle.idle_for_peak_usd_per_day == pytest.approx((1 - 330 / 800) * 144)
    assert idle.usd_per_mtok_for_peak == pytest.approx(6 / (330 * 3600) * 1e6)


def test_idle_time_needs_a_capacity_and_a_price(trace: Trace) -> None:
    for capacity, price in ((5, None), (0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (math.nan, 1.0)):
        refusal = refused(summarize, trace, tokens_per_second=capacity, usd_per_hour=price)
        assert (refusal.field or "").startswith("machine_")


def test_one_request_and_a_burst_have_no_rate() -> None:
    for requests in (1, 5):
        made = summarize(traffic(f"burst:{requests}", requests))
        assert (made.requests, made.rate, made.duration_s, made.peaks) == (requests, 0, 0, ())
        json.dumps(made.model_dump(mode="json"), allow_nan=False)
        with pytest.raises(BadInput):
            summarize(traffic(f"burst:{requests}", requests), tokens_per_second=100, usd_per_hour=1)
    with pytest.raises(BadInput):
        summarize(make_trace([], [], []))


def test_a_parquet_file_is_read_in_slices_and_says_the_same(
    tmp_path: Path, trace: Trace, made: TraceSummary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows keep their number in the file, whichever slice they lie in."""
    file = tmp_path / "log.parquet"
    save_trace(trace, file)
    monkeypatch.setattr(sources, "SLICE_ROWS", 777)
    opened = open_trace(file)
    raw = list(opened.log.raw())
    assert max(map(len, raw)) <= 777
    assert np.concatenate([each[sources.ROW].to_numpy() for each in raw]).tolist() == list(range(1, len(trace) + 1))
    apart = {"source", "format"}
    assert summarize(opened).model_dump(exclude=apart) == made.model_dump(exclude=apart)


def test_the_reuse_of_a_large_log_is_of_its_first_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traffic(requests=5000, system=SystemPrompts(count=20, tokens=512))
    file = tmp_path / "log.parquet"
    save_trace(trace, file)
    monkeypatch.setattr(sources, "SLICE_ROWS", 1000)
    monkeypatch.setattr(summary_module, "MOST_REPLAYED", 1)
    made = summarize(open_trace(file))
    assert made.requests == 5000
    assert made.notes == ("prefix reuse is that of the first 1,000 requests of the file",)
    assert made.reuse == summarize(trace.take(np.arange(1000))).reuse
    assert made.reuse != summarize(trace).reuse


@pytest.mark.parametrize("most", [3, 2000])
def test_lengths_are_counted_alike_whether_they_lie_close_or_far_apart(most: int) -> None:
    """A table counts short lengths, a sort those of a few requests with very long ones."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, most, 100), rng.integers(0, 10**8, 100), rng.integers(0, most, 3)]
    made = tally_module.Values()
    for each in drawn:
        made.add(each)
    values, counts = np.unique(np.concatenate(drawn), return_counts=True)
    np.testing.assert_array_equal(made.values, values)
    np.testing.assert_array_equal(made.counts, counts)
