"""A twin of a server that differs from its model by factors nobody tells it, under traffic nobody tells it."""

import asyncio
import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.measure.metered import BEGIN, HandClock, PageSource
from tests.operate.served_vllm import PER_TOKEN, SECONDS, ServedVllm, Stretch, modelled

from tokonomics.measure.calibrate import PRIOR
from tokonomics.measure.meter.exposition import page as exposed_page
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Counted
from tokonomics.measure.meter.scrape import EngineSource
from tokonomics.measure.meter.spans import BEYOND
from tokonomics.measure.meter.state import MeterState, MeterTally
from tokonomics.measure.meter.windows import WINDOW_S, ServedWindow, quantile
from tokonomics.operate.expect import TERMS, KnownWindow, WindowTraffic, in_buckets, lengths_in, trace_like, traffic_of
from tokonomics.operate.follow import AS_MODELLED, _taught
from tokonomics.operate.learn import ForecastBand, TwinState, TwinWindow, WindowFigure, forecast, learn
from tokonomics.operate.scoreboard import scoreboard
from tokonomics.operate.twin import said_of
from tokonomics.physics.steptime import decode_step
from tokonomics.questions.twin import LiveTwin, named
from tokonomics.serving.outcome import request_latencies
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency

FACTORS = {"decode": 1.12, "prefill": 1.08, "launch": 1.3, "request": 1.2}
EVERY_S = 60.0


def run(
    ledger: Path, clock: HandClock, server: ServedVllm, setup: Setup | None, until: float, every_s: float = EVERY_S
) -> MeterState:
    """Meter and twin a server until an instant, as one process that then ends without a word."""

    async def ticks() -> MeterState:
        with Ledger(ledger) as book:
            meter = Meter([PageSource(server)], book, clock, MeterSettings(usd_per_hour=3.0, every_s=every_s))
            twin = LiveTwin(book, setup, WINDOW_S)
            state = twin.beside(await meter.tick())
            while clock.passed < until:
                clock.passed += every_s
                state = twin.beside(await meter.tick())
            return state

    return asyncio.run(ticks())


def windows_of(ledger: Path) -> list[TwinWindow]:
    with Ledger(ledger, read_only=True) as book:
        return [said for said in said_of(book, 0.0, 1e12) if said.is_over and said.figures]


def served(setup: Setup, stretches: Sequence[Stretch], seed: int = 0) -> tuple[HandClock, ServedVllm]:
    clock = HandClock()
    return clock, ServedVllm(clock, setup, stretches, seed)


def off(windows: Sequence[TwinWindow], name: str, kind: str) -> float:
    """Median size of measured ÷ expected less one, worked out here."""
    apart = []
    for window in windows:
        figure = window.figures[name]
        band = getattr(figure, kind)
        if band is not None and figure.measured is not None:
            apart.append(abs(figure.measured / band.mid - 1))
    return float(np.median(apart))


def number_of(window: TwinWindow) -> int:
    return round((window.start - BEGIN) / WINDOW_S)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.explore)])
def test_every_change_is_named_with_its_cause_within_two_windows_and_the_server_is_expected_as_it_is(
    tmp_path: Path, seed: int
) -> None:
    setup, minutes = modelled(), WINDOW_S
    changed = FACTORS | {"decode": 1.7, "prefill": 1.65}
    clock, server = served(
        setup,
        [
            Stretch(9 * minutes, 4, factors=FACTORS),
            Stretch(4 * minutes, 4, input_tokens=2600, factors=FACTORS),
            Stretch(4 * minutes, 4, input_tokens=2600, shared=0.02, factors=FACTORS),
            Stretch(4 * minutes, 4, input_tokens=2600, shared=0.02, factors=changed),
        ],
        seed,
    )
    run(tmp_path / "meter.db", clock, server, setup, server.seconds + 120)
    windows = windows_of(tmp_path / "meter.db")
    alarms = {(number_of(window), change.cause) for window in windows for change in window.changes}
    for first, cause in ((9, "traffic"), (13, "cache"), (17, "kernels")):
        assert {(first, cause), (first + 1, cause)} & alarms, (cause, alarms)
    assert all(number in (9, 10, 13, 14, 17, 18) for number, _ in alarms), alarms
    (kernels,) = (change for window in windows for change in window.changes if change.cause == "kernels")
    assert kernels.ratio == pytest.approx(1.7 / 1.12, rel=0.12)
    later = windows[3:]
    assert off(later, "tpot_s", "given") < 0.06
    assert off(later, "ttft_s", "given") < 0.06
    assert off(later, "ttft_p99_s", "given") < 0.35  # within its bucket the tail is not seen
    held = [
        band.holds(figure.measured)
        for window in later
        for figure in window.figures.values()
        for band in (figure.forecast, figure.given)
        if band is not None and figure.measured is not None
    ]
    assert 0.7 < np.mean(held) < 0.97


@pytest.mark.slow
def test_a_quiet_server_raises_no_alarm_and_teaches_its_factors(tmp_path: Path) -> None:
    setup = modelled()
    clock, server = served(setup, [Stretch(14 * WINDOW_S, 5, factors=FACTORS)], seed=3)
    run(tmp_path / "meter.db", clock, server, setup, server.seconds + 120)
    windows = windows_of(tmp_path / "meter.db")
    assert [change for window in windows for change in window.changes] == []
    # What matters of the factors is what they make of the server, not which of two alike ones is larger.
    assert windows[-1].factors["decode"] == pytest.approx(FACTORS["decode"], rel=0.05)
    assert windows[-1].factors["prefill"] == pytest.approx(FACTORS["prefill"], rel=0.1)


@pytest.mark.slow
def test_a_twin_that_is_killed_again_and_again_says_what_one_that_ran_through_says(tmp_path: Path) -> None:
    setup = modelled()
    stretches = [Stretch(3 * WINDOW_S, 3, factors=FACTORS), Stretch(3 * WINDOW_S, 3, 2600, factors=FACTORS)]
    clock, server = served(setup, stretches)
    run(tmp_path / "whole.db", clock, server, setup, server.seconds + 120)
    clock.passed = 0.0
    cuts = [*np.random.default_rng(0).choice(np.arange(1, 60), 8, replace=False) * EVERY_S]
    for until in (*sorted(cuts), server.seconds + 120):
        run(tmp_path / "cut.db", clock, server, setup, until)
    whole, cut = windows_of(tmp_path / "whole.db"), windows_of(tmp_path / "cut.db")
    assert [window.start for window in cut] == [window.start for window in whole]
    for one, other in zip(whole, cut, strict=True):
        assert one.figures.keys() == other.figures.keys()
        for name in ("tokens_per_s", "ttft_s", "tpot_s"):
            # Each start takes a reading more; the counts are the same.
            assert other.figures[name].measured == pytest.approx(one.figures[name].measured, rel=1e-6)


def conserved(ledger: Path) -> None:
    """Windows have just what the spans have."""
    with Ledger(ledger, read_only=True) as book:
        windows, spans = list(book.windows()), list(book.spans())
    for name in ("input_total", "input_cached", "output", "answered", "ttft_s", "usd", "seconds"):
        of_spans = sum(getattr(span, "server_s" if name == "seconds" else name) for span in spans)
        assert sum(getattr(window.sums, name) for window in windows) == pytest.approx(of_spans, rel=1e-9), name


def test_windows_have_what_the_spans_have_whatever_the_clock_and_the_server_do(tmp_path: Path) -> None:
    setup = modelled()
    clock, server = served(setup, [Stretch(WINDOW_S, 1), Stretch(2 * WINDOW_S, 1, restarted=True)])
    for until in (400.0, 900.0):
        run(tmp_path / "meter.db", clock, server, None, until, every_s=50.0)
        clock.offset -= 700  # set back, into a window that is written
        server.began -= 700
    run(tmp_path / "meter.db", clock, server, None, 1700.0, every_s=50.0)
    conserved(tmp_path / "meter.db")
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        starts = [(window.target, window.model, window.start) for window in book.windows()]
    assert len(starts) == len(set(starts))


def test_a_full_disk_delays_forecasts_and_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, server = served(modelled(), [Stretch(5 * WINDOW_S, 1)])

    async def ticks() -> int:
        with Ledger(tmp_path / "meter.db") as book:
            meter = Meter([PageSource(server)], book, clock, MeterSettings(usd_per_hour=3.0, every_s=EVERY_S))
            twin = LiveTwin(book, None, WINDOW_S)
            real = book._db
            refused = 0
            while clock.passed < server.seconds:
                book._db = Full(real) if 700 < clock.passed < 2000 else real  # type: ignore[assignment]
                state = twin.beside(await meter.tick())
                refused += twin.shown(state).note is not None
                clock.passed += EVERY_S
            return refused

    assert asyncio.run(ticks()) > 0
    conserved(tmp_path / "meter.db")
    assert [number_of(window) for window in windows_of(tmp_path / "meter.db")] == [0, 1, 2, 3]


class Full:
    """A database whose disk has no room."""

    def __init__(self, real: sqlite3.Connection) -> None:
        self._real = real

    def execute(self, query: str, *values: object) -> sqlite3.Cursor:
        if query.startswith(("BEGIN IMMEDIATE", "INSERT", "UPDATE")):
            raise sqlite3.OperationalError("database or disk is full")
        return self._real.execute(query, *values)  # type: ignore[arg-type]


def test_a_server_without_a_model_is_expected_to_go_on_as_it_did(tmp_path: Path) -> None:
    setup = modelled()
    slow = {"decode": 2.0, "prefill": 2.0}
    clock, server = served(setup, [Stretch(8 * WINDOW_S, 2), Stretch(3 * WINDOW_S, 2, factors=slow)])
    run(tmp_path / "meter.db", clock, server, None, server.seconds + 120)
    windows = windows_of(tmp_path / "meter.db")
    alarms = {(number_of(window), change.cause) for window in windows for change in window.changes}
    assert (8, "kernels") in alarms
    assert all(number in (8, 9) for number, _ in alarms)
    assert off(windows[4:8], "tpot_s", "forecast") < 0.05


def test_a_restart_with_other_flags_is_told_by_the_server(tmp_path: Path) -> None:
    clock, server = served(
        modelled(), [Stretch(2 * WINDOW_S, 1), Stretch(2 * WINDOW_S, 1, restarted=True, kv_cache_dtype="fp8_e4m3")]
    )
    run(tmp_path / "meter.db", clock, server, None, server.seconds + 120)
    (told,) = (change for window in windows_of(tmp_path / "meter.db") for change in window.changes)
    assert told.cause == "flags"
    assert "cache_dtype auto → fp8_e4m3" in told.what
    assert len(named(windows_of(tmp_path / "meter.db"))) == 1


def test_what_is_expected_is_shown_to_scrapers(tmp_path: Path) -> None:
    clock, server = served(modelled(), [Stretch(4 * WINDOW_S, 1)])
    state = run(tmp_path / "meter.db", clock, server, None, server.seconds)
    (tokens,) = (one for one in state.expected if one.figure == "tokens_per_s")
    assert 0 < tokens.low < tokens.mid < tokens.high
    body, _ = exposed_page(state, MeterSettings(usd_per_hour=3.0), "")
    said = [line for line in body.decode().splitlines() if line.startswith("llm_twin_expected")]
    (mid,) = (line for line in said if 'figure="tokens_per_s"' in line and 'bound="mid"' in line)
    assert float(mid.rpartition(" ")[2]) == pytest.approx(tokens.mid)


# --- the parts ------------------------------------------------------------------------------------------------------


def test_a_quantile_lies_within_its_bucket_as_prometheus_has_it() -> None:
    buckets = {1.0: 10.0, 2.0: 0.0, 4.0: 30.0, BEYOND: 10.0}
    assert quantile(buckets, 0.1) == pytest.approx(0.5)
    assert quantile(buckets, 0.5) == pytest.approx(2 + 2 * 15 / 30)  # the 25th of 50 is the 15th of 30 in 2 to 4
    assert quantile(buckets, 0.99) == 4.0  # no bound above: the last one there is
    assert quantile({}, 0.5) is None


def test_the_histogram_of_a_window_is_that_of_the_requests_in_it(tmp_path: Path) -> None:
    clock, server = served(modelled(), [Stretch(3 * WINDOW_S, 2)])
    run(tmp_path / "meter.db", clock, server, None, 3 * WINDOW_S)
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        window = next(window for window in book.windows() if window.start == BEGIN + WINDOW_S)
    # A reading at the window's end counts in it; its own first reading is the end of the one before.
    came = (server.first > WINDOW_S) & (server.first <= 2 * WINDOW_S)
    waits = (server.first - server.arrival)[came]
    counted = window.buckets[Counted.ttft_buckets]
    below = 0.0
    for bound in SECONDS:
        below += counted.get(bound, 0.0)
        assert below == (waits <= bound).sum()
    ended = (server.finish > WINDOW_S) & (server.finish <= 2 * WINDOW_S) & (server.outputs > 1)
    per_token = (server.finish - server.first)[ended] / (server.outputs - 1)[ended]
    assert window.tpot_s / window.tpot_count == pytest.approx(per_token.mean())
    assert sum(window.buckets[Counted.tpot_buckets].values()) == len(per_token)
    assert max(bound for bound in window.buckets[Counted.tpot_buckets] if bound < BEYOND) in PER_TOKEN


def test_lengths_fill_their_buckets_and_have_the_counted_mean() -> None:
    buckets = {100.0: 0.0, 200.0: 30.0, 500.0: 50.0, 1000.0: 20.0}
    drawn = lengths_in(buckets, 330.0, 1000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(330.0, rel=1e-3)
    # Scaled to the mean, so that a few cross a bound.
    shares = [((drawn > low) & (drawn <= high)).mean() for low, high in ((100, 200), (200, 500), (500, 1000))]
    assert shares == pytest.approx([0.3, 0.5, 0.2], abs=0.08)
    assert np.all(lengths_in({}, 77.0, 5, np.random.default_rng(0)) == 77.0)


def test_a_trace_has_the_rate_the_lengths_and_the_hits_of_its_window() -> None:
    traffic = WindowTraffic(requests_per_s=5.0, input_tokens=1000.0, output_tokens=200.0, hit_share=0.4)
    trace = trace_like(traffic, 131_072)
    assert len(trace) == 3000
    assert (len(trace) - 1) / trace.arrival_s[-1] == pytest.approx(5.0)
    assert trace.prefix is not None
    shared = np.diff(trace.prefix.starts) * trace.prefix.block_tokens
    assert shared.sum() / trace.input_tokens.sum() == pytest.approx(0.4, abs=0.02)


def test_values_fall_into_the_buckets_that_hold_them() -> None:
    found = in_buckets(np.array([0.5, 1.0, 1.5, 9.0]), {1.0: 0.0, 2.0: 0.0, BEYOND: 0.0})
    assert found == {1.0: 2.0, 2.0: 1.0, BEYOND: 1.0}


def test_a_window_that_nobody_saw_has_no_traffic() -> None:
    assert traffic_of(ServedWindow(target="t", model="m", engine="vllm", start=0.0)) is None


def test_scores_are_medians_and_shares_of_the_windows_that_have_both() -> None:
    def window(measured: float, low: float, mid: float, high: float) -> TwinWindow:
        band = ForecastBand(low=low, mid=mid, high=high)
        figures = {"tpot_s": WindowFigure(measured=measured, forecast=band)}
        return TwinWindow(target="t", model="m", start=0.0, figures=figures, is_over=True)

    measured = ((0.011, 0.009, 0.010, 0.012), (0.009, 0.0095, 0.010, 0.012), (0.012, 0.009, 0.010, 0.013))
    windows = [window(*row) for row in measured]
    (board,) = scoreboard(windows)
    (score,) = board.scores
    assert (score.name, score.kind, score.windows) == ("tpot_s", "forecast", 3)
    assert score.error == pytest.approx(0.1)  # of 10, 10 and 20 %
    assert score.bias == pytest.approx(0.1)
    assert score.coverage == pytest.approx(2 / 3)


def test_old_windows_become_hours_with_the_same_sums(tmp_path: Path) -> None:
    clock, server = served(modelled(), [Stretch(8 * WINDOW_S, 1)])
    run(tmp_path / "meter.db", clock, server, None, server.seconds)
    with Ledger(tmp_path / "meter.db") as book:
        before = list(book.windows())
        book.forget_windows(clock.wall() + 3 * 86_400)
        after = list(book.windows())
        assert [window.start % 3600 for window in after] == [0.0] * len(after)
        assert len(after) == 2
        for name in ("input_total", "output", "usd", "answered"):
            total = sum(getattr(window.sums, name) for window in before)
            assert math.isclose(sum(getattr(window.sums, name) for window in after), total)
        waits = [window.buckets[Counted.ttft_buckets] for window in before]
        joined = [window.buckets[Counted.ttft_buckets] for window in after]
        assert sum(sum(counts.values()) for counts in waits) == sum(sum(counts.values()) for counts in joined)
        book.forget_windows(clock.wall() + 40 * 86_400)
        assert list(book.windows()) == []


def test_a_restarted_twin_still_knows_when_its_server_began(tmp_path: Path) -> None:
    """To the last digit: otherwise every start of a twin would look like one of the server."""
    clock, server = served(modelled(), [Stretch(6 * WINDOW_S, 1)])
    server.began -= 0.123456789
    for until in (2 * WINDOW_S, 4 * WINDOW_S, 6 * WINDOW_S):
        run(tmp_path / "meter.db", clock, server, None, until)
    assert [change for window in windows_of(tmp_path / "meter.db") for change in window.changes] == []


def test_an_answer_of_another_version_is_passed_over(tmp_path: Path) -> None:
    with Ledger(tmp_path / "meter.db") as book:
        book.keep_forecasts({("t", "m", 0.0): json.dumps({"of": "another version"})})
        assert list(said_of(book, -1.0, 1.0)) == []


def test_a_build_is_asked_for_once_a_process_and_another_one_is_a_change(tmp_path: Path) -> None:
    clock, server = served(modelled(), [Stretch(2 * WINDOW_S, 1), Stretch(2 * WINDOW_S, 1, restarted=True)])
    asked: list[str] = []

    class Pages(EngineSource):
        async def _get(self, page: str, metrics: bool = True) -> tuple[str, float | None]:
            if page.endswith("/version"):
                asked.append(page)
                return json.dumps({"version": "0.26.0" if len(asked) == 1 else "0.27.1"}), None
            return server.page(), None

    async def ticks() -> None:
        with Ledger(tmp_path / "meter.db") as book:
            source = Pages("http://gpu:8000", None, clock, asks_build=True)  # type: ignore[arg-type]
            meter = Meter([source], book, clock, MeterSettings(usd_per_hour=3.0, every_s=EVERY_S))
            twin = LiveTwin(book, None, WINDOW_S)
            while clock.passed < server.seconds:
                twin.beside(await meter.tick())
                clock.passed += EVERY_S

    asyncio.run(ticks())
    assert asked == ["http://gpu:8000/version"] * 2
    (told,) = (change for window in windows_of(tmp_path / "meter.db") for change in window.changes)
    assert told.what == "another build: version 0.26.0 → 0.27.1"


def test_requests_that_came_while_nobody_watched_are_not_of_the_time_that_was_watched() -> None:
    """Of 600 s a gap took 200, over which a third of the tokens were counted; each second has one request."""
    sums = MeterTally(
        seconds=600.0, busy_s=400.0, gap_s=200.0, input_total=60_000.0, output=30_000.0, unseen_tokens=30_000.0,
        answered=600.0, ttft_count=600.0,
    )  # fmt: skip
    found = traffic_of(ServedWindow(target="t", model="m", engine="vllm", start=0.0, sums=sums, watched_s=400.0))
    assert found is not None
    assert found.requests_per_s == pytest.approx(1.0)
    assert (found.input_tokens, found.output_tokens) == pytest.approx((100.0, 50.0))


def test_each_model_of_a_server_has_its_own_rate_and_nothing_of_it_is_simulated() -> None:
    """Half of the server's time is this model's; in 600 s it got 600 requests."""
    sums = MeterTally(
        seconds=300.0, busy_s=300.0, input_total=60_000.0, output=30_000.0, answered=600.0, ttft_count=600.0
    )
    window = ServedWindow(target="t", model="m", engine="vllm", start=0.0, sums=sums, watched_s=600.0)
    found = traffic_of(window)
    assert found is not None
    assert found.requests_per_s == pytest.approx(1.0)
    assert window.is_shared


def test_traffic_that_stops_is_scored_and_named(tmp_path: Path) -> None:
    clock, server = served(modelled(), [Stretch(9 * WINDOW_S, 1)])
    run(tmp_path / "meter.db", clock, server, None, 13 * WINDOW_S)
    windows = windows_of(tmp_path / "meter.db")
    stopped = next(window for window in windows if number_of(window) == 10)
    assert stopped.figures["requests_per_s"].measured == 0.0
    named_then = [(number_of(window), change.what) for window in windows for change in window.changes]
    assert any(number in (9, 10) and what.startswith("fewer requests") for number, what in named_then)
    last = windows[-1].figures["requests_per_s"].forecast
    assert last is not None
    assert last.mid < 0.1


def test_doubt_about_what_no_figure_shows_never_grows_beyond_what_it_was_at_first() -> None:
    terms, nothing = AS_MODELLED, np.zeros((1, 4))
    nothing[0, 0] = 1.0  # decode alone is seen
    for _ in range(2000):
        terms, _ = _taught(terms, np.zeros(1), nothing, np.eye(1) * 0.01, {}, {}, drift=600 / 86_400)
    for place, term in enumerate(TERMS):
        assert terms.covariance[place][place] <= PRIOR[term] ** 2 * (1 + 1e-9)


def test_an_engine_that_counts_no_requests_is_expected_by_its_tokens_and_the_time_they_take() -> None:
    """As llama.cpp: 60,000 tokens in 600 s for half a dollar, 20 ms for each of 30,000 answer tokens."""

    def window(number: int, tpot_s: float) -> ServedWindow:
        sums = MeterTally(
            seconds=600.0, busy_s=500.0, idle_s=100.0, usd=0.5, input_total=30_000.0, input_cached=3000.0,
            output=30_000.0,
        )  # fmt: skip
        return ServedWindow(
            target="t", model="m", engine="llama.cpp", start=number * WINDOW_S, sums=sums, watched_s=600.0,
            tpot_s=30_000 * tpot_s, tpot_count=30_000.0, prompt_s=27.0,
        )  # fmt: skip

    state, before = TwinState(), None
    for number in range(6):
        learned = learn(state, window(number, 0.020), before, None)
        state, before = learned.state, forecast(learned.state, window(number, 0.020), (number + 1) * WINDOW_S, None)
    figures = learned.window.figures
    assert figures["tokens_per_s"].measured == pytest.approx(100.0)
    assert "requests_per_s" not in figures
    assert figures["prompt_token_s"].measured == pytest.approx(0.001)
    for name, expected in (("tokens_per_s", 100.0), ("tpot_s", 0.020), ("usd_per_mtok", 0.5 / 0.06)):
        band = figures[name].forecast
        assert band is not None
        assert band.mid == pytest.approx(expected)
    (change,) = learn(state, window(6, 0.05), before, None).window.changes
    assert change.cause == "kernels"
    assert change.ratio == pytest.approx(2.5)


def test_a_step_without_prompts_takes_what_the_step_model_says_of_the_answers_that_run() -> None:
    setup = modelled()
    traffic = WindowTraffic(requests_per_s=5.0, input_tokens=1000.0, output_tokens=200.0, hit_share=0.0)
    found = KnownWindow(setup, traffic, {}).expected({})
    assert found is not None
    running = 5.0 * 199 * found.figures["tpot_s"]  # Little's law: each answer runs for 199 steps, some with prompts
    with_longer = decode_step(setup.deployment, running, 1100)
    assert found.figures["step_s"] == pytest.approx(float(with_longer), rel=0.02)
    assert found.figures["step_s"] < found.figures["tpot_s"]  # which steps with prompts lengthen


@pytest.mark.slow
def test_a_neighbour_that_leaves_is_noticed_and_the_server_is_expected_as_before(tmp_path: Path) -> None:
    setup = modelled()
    beside = FACTORS | {"decode": 2.0, "prefill": 2.0}
    clock, server = served(
        setup,
        [
            Stretch(6 * WINDOW_S, 4, factors=FACTORS),
            Stretch(3 * WINDOW_S, 4, factors=beside),
            Stretch(3 * WINDOW_S, 4, factors=FACTORS),
        ],
        seed=4,
    )
    run(tmp_path / "meter.db", clock, server, setup, server.seconds + 120)
    windows = windows_of(tmp_path / "meter.db")
    ratios = {number_of(window): change.ratio for window in windows for change in window.changes}
    assert {change.cause for window in windows for change in window.changes} == {"kernels"}
    came, left = min(ratios), max(ratios)
    assert (came in (6, 7), left in (9, 10)) == (True, True)
    assert ratios[came] == pytest.approx(2.0 / 1.12, rel=0.1)
    assert ratios[left] == pytest.approx(1.12 / 2.0, rel=0.1)
    assert off(windows[left + 1 :], "tpot_s", "forecast") < 0.03


def test_the_mean_of_a_window_scatters_as_means_of_simulated_windows_do() -> None:
    """Forty windows of the same traffic, each drawn anew, under a load where requests wait for each other."""
    setup = modelled()
    traffic = WindowTraffic(requests_per_s=9.0, input_tokens=2500.0, output_tokens=200.0, hit_share=0.0, seconds=60.0)
    found = KnownWindow(setup, traffic, {Counted.ttft_buckets: dict.fromkeys((*SECONDS, BEYOND), 0.0)}).expected({})
    assert found is not None
    waits = []
    for seed in range(40):
        trace = trace_like(traffic.model_copy(update={"seconds": 300.0}), 131_072, seed=seed)
        served_alone, _ = serve(replace(setup, load=load_of_requests(trace)), 1, setup.max_sequences)
        late = request_latencies(served_alone)[Latency.ttft]
        within = (trace.arrival_s > 60) & (trace.arrival_s <= 120)
        waits.append(float(late[within].mean()))
    alone = np.std(np.log(waits), ddof=1)
    # The simulated window is one of a few such, which scatters too: a little more than the windows themselves.
    assert 0.6 * alone < found.scatter["ttft_s"] < 2.0 * alone
