"""Gaps, absences, clocks that jump and servers that come and go, in the meter's own time."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from tests.measure.metered import BEGIN, HandClock, PageSource, Process

from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.engines import FINDER, readings_of, samples_of
from tokonomics.measure.meter.exposition import page
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import LATE_S, Meter, MeterSettings
from tokonomics.measure.meter.readings import Missed, Reading, Source
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan
from tokonomics.measure.meter.state import GroupState, MeterState, Planned
from tokonomics.measure.meter.watch import LONG_S, STARTED_AGAIN, STRANGERS_BELIEVED


@dataclass
class Bench:
    """A meter in the hand."""

    path: Path
    clock: HandClock
    process: Process
    book: Ledger
    meter: Meter

    def tick(self, seconds: float = 15.0) -> MeterState:
        self.clock.passed += seconds
        return asyncio.run(self.meter.tick())

    def only(self, seconds: float = 15.0) -> GroupState:
        (group,) = self.tick(seconds).groups
        return group

    def spans(self) -> list[PaidTime]:
        return list(self.book.spans())

    def again(self, from_now: bool = False, usd_per_hour: float = 3.6) -> None:
        """The meter dies, and another one starts."""
        self.book.close()
        self.book = Ledger(self.path)
        self.meter = Meter(
            [PageSource(self.process)], self.book, self.clock, MeterSettings(usd_per_hour, from_now=from_now)
        )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    clock = HandClock()
    process = Process(clock)
    book = Ledger(tmp_path / "meter.db")
    made = Bench(
        tmp_path / "meter.db", clock, process, book, Meter([PageSource(process)], book, clock, MeterSettings(3.6))
    )
    yield made
    made.book.close()


def test_tokens_from_before_the_first_reading_are_not_ours(bench: Bench) -> None:
    bench.process.work(1000, 1000)
    group = bench.only()
    assert group.total.output == 0
    assert group.total.usd == 0


def test_a_server_that_is_away_is_paid_and_its_tokens_are_shown_as_unseen(bench: Bench) -> None:
    bench.tick()
    bench.process.work(10, 5)
    bench.process.up = False
    for _ in range(3):
        state = bench.tick()
        assert not state.groups[0].up
    assert state.total.gap_usd == pytest.approx(45 * 0.001)
    assert state.total.output == 0
    assert state.notes == ("http://gpu:8000: cannot be reached",)
    bench.process.up = True
    group = bench.only()
    assert (group.total.output, group.total.unseen_tokens, group.misses) == (5, 15, 3)
    assert group.total.gap_s == pytest.approx(60)
    assert bench.only().total.idle_s == pytest.approx(15)


def test_what_was_produced_while_the_meter_was_away_is_an_absence_of_its_own(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.passed += 985
    bench.process.work(100, 50)
    bench.again()
    group = bench.only()
    assert group.total.away_s == pytest.approx(1000)
    assert group.total.unseen_tokens == 150
    assert [span.watched for span in bench.spans()] == [WatchedSpan.seen, WatchedSpan.away]


def test_from_now_leaves_the_absence_out(bench: Bench) -> None:
    bench.tick()
    bench.process.work(1, 1)
    bench.tick()
    bench.clock.passed += 985
    bench.process.work(100, 50)
    bench.again(from_now=True)
    group = bench.only()
    assert (group.total.away_s, group.total.output) == (0, 1)


def test_a_machine_that_slept_was_not_watching(bench: Bench) -> None:
    bench.tick()
    bench.process.work(10, 5)
    group = bench.only(seconds=LONG_S + 1000)
    assert group.total.away_s == pytest.approx(LONG_S + 1000)


@pytest.mark.parametrize("jump", [-3500.0, -30.0, 30.0, 7200.0, 40 * 365 * 86_400.0])
def test_a_wall_clock_that_is_set_changes_labels_and_no_sums(bench: Bench, jump: float) -> None:
    for place in range(20):
        if place == 10:
            bench.clock.offset += jump
        bench.process.work(10, 5)
        state = bench.tick()
    spans = bench.spans()
    assert all(span.seconds >= 0 for span in spans)
    assert state.total.seconds == pytest.approx(19 * 15)
    assert state.total.output == 19 * 5
    assert any(span.end == pytest.approx(bench.clock.wall()) for span in spans)
    if jump > 0:
        assert all(then.start >= first.end - 1e-6 for first, then in pairwise(spans))


def test_the_clock_is_behind_the_book_when_the_next_meter_starts(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.offset -= 3600
    bench.process.work(10, 5)
    bench.again()
    group = bench.only()
    assert (group.total.away_s, group.total.output) == (0, 5)
    assert group.total.seconds == pytest.approx(15)


def test_an_absence_after_the_clock_was_set_back_in_the_one_before_is_paid_in_full(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.offset -= 3600
    bench.again()
    bench.tick()
    bench.clock.passed += 585
    bench.again()
    assert bench.only().total.seconds == pytest.approx(15 + 600)


def test_a_restart_is_said_with_what_cannot_be_known_of_it(bench: Bench) -> None:
    bench.tick()
    bench.process.work(10, 5)
    assert bench.only().said is None
    bench.process.restart()
    assert bench.only().said == STARTED_AGAIN
    assert bench.only().said is None


def test_sums_of_the_hour_and_the_day_begin_again(bench: Bench) -> None:
    bench.tick(23 * 3600 + 3585)
    bench.process.work(10, 5)
    assert bench.only(10).today.output == 5
    bench.process.work(10, 7)
    group = bench.only(10)
    # The span from 23:59:55 to 0:00:05 has its tokens in the new day, half of its dollars in the old one.
    assert (group.today.output, group.hour.output, group.total.output) == (7, 7, 12)
    assert group.today.usd == pytest.approx(0.005)
    assert group.total.usd == pytest.approx(0.020)


def test_today_goes_on_after_the_meter_was_started_again(bench: Bench) -> None:
    bench.tick(7200)
    bench.process.work(10, 5)
    bench.tick()
    bench.again()
    bench.process.work(10, 7)
    group = bench.only()
    assert (group.today.output, group.hour.output) == (12, 12)


def test_now_forgets_after_a_minute(bench: Bench) -> None:
    bench.tick()
    bench.process.work(0, 60)
    assert bench.only().now.output == 60
    for _ in range(3):
        group = bench.only()
    assert group.now.output == 60
    assert group.now.output_per_s == pytest.approx(1)
    assert bench.only().now.output == 0


def test_two_processes_behind_one_address_are_said_and_not_counted_as_restarts(bench: Bench) -> None:
    bench.tick(5000)
    other = Process(bench.clock)
    bench.tick(5000)
    mine = copy(bench.process)
    other.work(500, 500)
    bench.process.__dict__.update(other.__dict__)
    group = bench.only()
    assert group.said is not None
    assert "load balancer" in group.said
    bench.process.__dict__.update(mine.__dict__)
    group = bench.only()
    assert (group.said, group.total.output) == (None, 0)


def test_a_process_that_stays_is_believed_and_counts_from_then_on(bench: Bench) -> None:
    bench.tick(5000)
    bench.process.started -= 3000
    bench.process.work(0, 500)
    for _ in range(STRANGERS_BELIEVED):
        group = bench.only()
    assert (group.said, group.total.output) == (None, 0)
    bench.process.work(0, 7)
    assert bench.only().total.output == 7


def test_a_server_that_forgets_its_models_name_is_still_the_same(bench: Bench) -> None:
    bench.tick()
    bench.process.work(0, 5)
    bench.tick()
    bench.process.model = ""
    bench.process.work(0, 7)
    group = bench.only()
    assert (group.model, group.total.output) == ("tiny", 12)


@dataclass
class Scraper:
    """A source that has scraped servers at its own times, as a Prometheus has."""

    clock: HandClock
    scraped: list[tuple[str, float, str]] = field(default_factory=list)
    living: set[str] = field(default_factory=set)
    down: bool = False
    name: str = "http://prometheus:9090"
    discovers: bool = True
    warnings: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    _newest: dict[str, Reading] = field(default_factory=dict)

    def scrape(self, target: str, process: Process) -> None:
        self.scraped.append((target, self.clock.wall(), process.page()))
        self.living.add(target)

    async def read(self) -> Sequence[Reading]:
        if self.down:
            raise Missed("does not answer")
        new = [readings_of(samples_of(page, FINDER), target, at)[0] for target, at, page in self.scraped]
        self.scraped = []
        came = {each.target for each in new}
        self._newest = {target: each for target, each in self._newest.items() if target in self.living}
        again = [each for target, each in self._newest.items() if target not in came]
        self._newest |= {each.target: each for each in new}
        return [*again, *new]


def run(meter: Meter) -> MeterState:
    return asyncio.run(meter.tick())


def test_every_scrape_of_a_prometheus_counts_with_its_own_time(tmp_path: Path) -> None:
    clock = HandClock()
    process, source = Process(clock), Scraper(clock)
    sources: list[Source] = [source]
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter(sources, book, clock, MeterSettings(3.6))
        source.scrape("prod/a", process)
        run(meter)
        for _ in range(4):
            clock.passed += 30
            process.work(10, 5)
            source.scrape("prod/a", process)
        clock.passed += 7
        state = run(meter)
        assert state.total.output == 20
        assert state.total.seconds == pytest.approx(120)
        # Nothing new: nothing is paid twice.
        clock.passed += 7
        assert run(meter).total.seconds == pytest.approx(120)
        source.down = True
        assert run(meter).notes == ("http://prometheus:9090: does not answer",)
        source.down = False
        clock.passed += 30
        source.scrape("prod/a", process)
        assert run(meter).total.seconds == pytest.approx(clock.passed)


def test_a_pod_is_paid_from_its_first_breath_to_its_last_scrape(tmp_path: Path) -> None:
    clock = HandClock()
    first, source = Process(clock), Scraper(clock)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3.6))
        source.scrape("prod/a", first)
        run(meter)
        clock.passed += 10
        second = Process(clock)
        second.work(10, 5)
        clock.passed += 20
        source.scrape("prod/a", first)
        source.scrape("prod/b", second)
        state = run(meter)
        new = next(group for group in state.groups if group.target == "prod/b")
        assert new.total.output == 5
        assert new.total.seconds == pytest.approx(20)
        source.living.discard("prod/b")
        clock.passed += 3600
        source.scrape("prod/a", first)
        assert [group.target for group in run(meter).groups] == ["prod/a"]
        assert sum(span.seconds for span in book.spans() if span.target == "prod/b") == pytest.approx(20)


def test_a_pod_that_left_and_came_back_keeps_its_tokens_and_is_not_paid_for_the_time_between(tmp_path: Path) -> None:
    clock = HandClock()
    process, source = Process(clock), Scraper(clock)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3.6))
        for _ in range(2):
            process.work(10, 5)
            source.scrape("prod/a", process)
            run(meter)
            clock.passed += 30
        source.living.clear()
        assert run(meter).groups == ()
        process.work(10, 7)
        clock.passed += 3600
        source.scrape("prod/a", process)
        run(meter)
        clock.passed += 30
        source.scrape("prod/a", process)
        state = run(meter)
        assert state.total.output == 5 + 7
        assert state.total.seconds == pytest.approx(30 + 30)
        assert state.today.output == state.total.output == sum(span.output for span in book.spans())


def test_after_more_than_a_month_counting_starts_anew_and_says_so(bench: Bench) -> None:
    bench.tick()
    bench.process.work(1, 1)
    bench.tick()
    bench.clock.passed += 56 * 365 * 86_400
    bench.process.work(100, 50)
    bench.again()
    group = bench.only()
    assert group.said is not None
    assert "starts anew" in group.said
    assert (group.total.output, group.total.away_s) == (1, 0)


def test_a_pod_that_is_there_but_not_scraped_is_a_gap(tmp_path: Path) -> None:
    clock = HandClock()
    process, source = Process(clock), Scraper(clock)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3.6))
        source.scrape("prod/a", process)
        run(meter)
        clock.passed += 1000
        state = run(meter)
        assert state.total.gap_s == pytest.approx(1000 - LATE_S)
        process.work(10, 5)
        clock.passed += 30
        source.scrape("prod/a", process)
        state = run(meter)
        assert state.total.gap_s == pytest.approx(1030)
        assert state.total.unseen_tokens == 15


def test_a_source_that_is_strange_from_the_first_does_not_hide_the_others(tmp_path: Path) -> None:
    clock = HandClock()
    good, bad = Process(clock), Process(clock, up=False)
    with Ledger(tmp_path / "meter.db") as book:
        sources = [PageSource(good, "http://a:1"), PageSource(bad, "http://b:1")]
        meter = Meter(sources, book, clock, MeterSettings(3.6))
        run(meter)
        good.work(10, 5)
        clock.passed += 15
        state = run(meter)
    assert state.total.output == 5
    assert state.notes == ("http://b:1: cannot be reached",)
    assert state.at == BEGIN + clock.passed


def test_an_absence_costs_what_the_server_cost_before_it(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.passed += 985
    bench.again(usd_per_hour=36.0)
    assert bench.only().total.usd == pytest.approx((15 + 1000) * 0.001)
    assert bench.only().total.usd == pytest.approx((15 + 1000) * 0.001 + 15 * 0.01)


@pytest.mark.parametrize("began_meanwhile", [True, False])
def test_a_server_that_is_down_when_the_meter_starts_is_paid_for_and_told_of(
    bench: Bench, began_meanwhile: bool
) -> None:
    """Its gap has no model until it answers; its counts are ours if it began while we looked."""
    bench.process.work(100, 50)
    bench.process.up = False
    bench.tick()
    state = bench.tick()
    (group,) = state.groups
    assert (group.up, group.model) == (False, "")
    assert state.total.gap_usd == pytest.approx(0.015)
    assert b'llm_target_up{engine="",model="",target="http://gpu:8000"} 0.0' in page(state, MeterSettings(3.6))[0]
    bench.again()
    bench.process.up = True
    if began_meanwhile:
        bench.process.restart()
        bench.process.work(10, 5)
    group = bench.only()
    assert (group.up, group.model) == (True, "tiny")
    assert group.total.output == (5 if began_meanwhile else 0)
    assert group.total.usd == pytest.approx(0.030)
    assert group.today.usd == group.total.usd
    assert {span.model for span in bench.spans()} == {"tiny"}


def test_a_clock_that_was_wrong_for_one_reading_is_followed_back(bench: Bench) -> None:
    year = 365 * 86_400.0
    for place in range(10):
        bench.clock.offset = BEGIN + (year if place == 4 else 0.0)
        bench.process.work(10, 5)
        state = bench.tick()
        if place == 5:
            assert state.notes == ("http://gpu:8000: the clock was set back by 8,760 h",)
    assert state.total.seconds == pytest.approx(9 * 15)
    assert [span.start < BEGIN + 86_400 for span in bench.spans()].count(False) == 1
    assert state.today.output >= 4 * 5


def test_blue_after_green_loses_no_token_that_was_read(bench: Bench) -> None:
    """A new process that warmed up beside the old one takes its address over: after three readings it is believed."""
    bench.tick(5000)
    bench.process.started -= 3000
    bench.process.work(0, 500)
    for _ in range(STRANGERS_BELIEVED + 1):
        group = bench.only()
        bench.process.work(0, 7)
    assert group.total.output == 7 * STRANGERS_BELIEVED


@dataclass
class Page:
    """A page that is written by hand."""

    clock: HandClock
    name: str
    lines: str = ""
    discovers: bool = False
    warnings: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> Sequence[Reading]:
        return readings_of(samples_of(self.lines, FINDER), self.name, self.clock.wall())


def test_nothing_that_counts_up_on_our_page_ever_falls(tmp_path: Path) -> None:
    """Hits run ahead of the prompts they are part of, a page is cut in half, a server is away."""
    clock = HandClock()
    source = Page(clock, "http://gpu:8000")
    hits: list[tuple[int, int | None]] = [
        (0, 0),
        (100_000, 40_000),
        (100_000, 130_000),
        (200_000, None),
        (200_000, 130_000),
    ]
    hits += [(300_000, 300_000), (600_000, 300_000)]
    before: dict[str, float] = {}
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3.6))
        for prompt, cached in hits:
            source.lines = f'vllm:prompt_tokens_total{{model_name="m"}} {prompt}\n'
            if cached is not None:
                source.lines += f'vllm:prefix_cache_hits_total{{model_name="m"}} {cached}\n'
            clock.passed += 15
            state = run(meter)
            counts = {
                line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
                for line in page(state, MeterSettings(3.6))[0].decode().splitlines()
                if "_total{" in line
            }
            assert all(counts[name] >= value for name, value in before.items())
            before = counts
    assert (state.total.input_cached, state.total.input_computed) == (300_000, 300_000)


def test_now_is_one_window_for_all_engines(tmp_path: Path) -> None:
    """Under a steady load the last minutes cost what the hour costs, though one engine counts at the end."""
    clock = HandClock()
    fast, slow = Page(clock, "http://a:1"), Page(clock, "http://b:1")
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([fast, slow], book, clock, MeterSettings(3.6))
        for _ in range(60):
            clock.passed += 15
            at = clock.passed
            fast.lines = "".join(
                f'vllm:{name}_tokens_total{{model_name="m"}} {at * 1000}\n' for name in ("prompt", "generation")
            )
            slow.lines = f"llamacpp:prompt_tokens_total {at * 10}\nllamacpp:tokens_predicted_total {at * 10}\n"
            state = run(meter)
    assert state.now.usd_per_mtok == pytest.approx(state.hour.usd_per_mtok)


def test_the_screen_and_a_report_name_the_same_starved_dollars(tmp_path: Path) -> None:
    """Half of the planned 48 is 24: 9 and 60 running are 34.5 in the mean of a row, and starve nobody."""
    clock, planned = HandClock(), Planned(usd_per_mtok=1.0, batch=48.0)
    process = Process(clock)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([PageSource(process)], book, clock, MeterSettings(3.6, planned=planned))
        asyncio.run(meter.tick())
        for running in (9.0, 9.0, 60.0, 60.0):
            process.work(100, 50)
            process.running = running
            clock.passed += 15
            screen = asyncio.run(meter.tick()).total
        report = bill(book.spans(), BEGIN, clock.wall(), ("model",), planned).total
    assert screen.starved_usd == pytest.approx(report.starved_usd)
    assert screen.starved_s == report.starved_s
    assert (screen.starved_s, screen.busy_s) == (0.0, 60.0)
