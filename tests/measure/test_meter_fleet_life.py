"""A fleet behind a Prometheus over hours: pods that are scaled away, load, share a pod, and meters that start again.

A made-up Prometheus keeps the samples of made-up pods. Every pod counts 100 tokens each 15 seconds, and costs a dollar
a second, so that dollars are paid seconds.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest
from tests.measure.metered import BEGIN, HandClock

from tokonomics.errors import BadInput
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.prometheus_source import PrometheusSource
from tokonomics.measure.meter.readings import GpuReading, NoGpuSeen
from tokonomics.measure.meter.scrape import QueryAnswer, Series
from tokonomics.measure.meter.session import _fleet, _past_from, _refuse
from tokonomics.measure.meter.spans import WatchedSpan
from tokonomics.measure.meter.spending import PriceOf, Prices
from tokonomics.measure.meter.state import MeterState

HOUR, STEP = 3600.0, 15.0
COUNTERS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:iteration_tokens_total_count")
ASKED = MeterSettings(3600.0, prometheus="http://prometheus:9090")


class Store:
    """What a Prometheus has scraped; None is the mark of a series that ended."""

    shown = "http://prometheus:9090"

    def __init__(self) -> None:
        self.series: list[tuple[Mapping[str, str], list[tuple[float, float | None]]]] = []

    def pod(
        self, name: str, *lives: tuple[float, float], instance: str = "10.0.0.1:8000", loads_s: float = 0.0, **more: str
    ) -> None:
        """Scraped from each start to each end; its page is there once the model is loaded."""
        kept: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
        for start, end in lives:
            at = start
            while at < end:
                kept["up"].append((BEGIN + at, 1.0))
                if at >= start + loads_s:
                    for counter in COUNTERS:
                        kept[counter].append((BEGIN + at, (at - start - loads_s) / STEP * 100))
                    kept["process_start_time_seconds"].append((BEGIN + at, BEGIN + start))
                at += STEP
            for samples in kept.values():
                samples.append((BEGIN + at, None))
        place = {"namespace": "prod", "pod": name, "job": "vllm", "instance": instance, **more}
        for metric, samples in kept.items():
            own = {"model_name": "llama", "engine": "0"} if metric in COUNTERS else {}
            self.series.append(({"__name__": metric, **place, **own}, samples))

    def lost(self, start: float, end: float) -> None:
        """Prometheus was down."""
        self.series = [
            (labels, [(at, value) for at, value in samples if not BEGIN + start < at < BEGIN + end])
            for labels, samples in self.series
        ]

    async def __aenter__(self) -> "Store":
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def raw_samples(self, selector: str, window_s: float, until_s: float) -> QueryAnswer:
        found = []
        for labels, samples in self._named(selector):
            inside = [(at, value) for at, value in samples if until_s - window_s < at <= until_s and value is not None]
            if inside:
                found.append(Series(labels, inside))
        return QueryAnswer(found, [])

    async def living(self, selector: str, at_s: float) -> list[Mapping[str, str]]:
        there = []
        for labels, samples in self._named('__name__=~"up"' if selector == "count(up)" else selector):
            newest = [value for at, value in samples if at_s - 300 < at <= at_s]
            if newest and newest[-1] is not None:
                there.append(labels)
        return there

    def _named(self, selector: str) -> list[tuple[Mapping[str, str], list[tuple[float, float | None]]]]:
        match = re.search(r'__name__=~"([^"]*)"', selector)
        assert match is not None
        return [each for each in self.series if each[0]["__name__"] in match[1].split("|")]


class Run:
    """A book, a clock, and meters that follow each other."""

    def __init__(self, store: Store, path: Path, prices: float | Prices = 3600.0) -> None:
        self.store, self.clock, self.prices = store, HandClock(), prices
        self.book = Ledger(path)
        self.start(self.prices)

    def start(self, prices: float | Prices = 3600.0) -> None:
        """Another meter on the same book, which reads the past from where the last one ended."""
        source = _fleet(ASKED, self.clock, self.book)
        assert isinstance(source, PrometheusSource)
        source.api = self.store  # type: ignore[assignment]
        self.source, self.meter = source, Meter([source], self.book, self.clock, MeterSettings(prices))
        since = _past_from(ASKED, self.book)
        if since is not None:
            self.backfill(since)

    def backfill(self, since: float = BEGIN - 1) -> None:
        async def whole() -> None:
            async for at, readings in self.source.history(since, self.clock.wall()):
                self.meter.backfill(readings, at)

        asyncio.run(whole())

    def until(self, passed: float) -> MeterState:
        async def ticks() -> MeterState:
            while True:
                state = await self.meter.tick()
                if self.clock.passed >= passed:
                    return state
                self.clock.passed += STEP

        return asyncio.run(ticks())

    def paid(self) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for span in self.book.spans():
            sums[span.target] += span.usd
        return dict(sums)

    def output(self) -> float:
        return sum(span.output for span in self.book.spans())


class Runs(Protocol):
    """Makes a run on a book of its own."""

    def __call__(self, store: Store, prices: float | Prices = 3600.0) -> Run: ...


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with ExitStack() as open_books:

        def run(store: Store, prices: float | Prices = 3600.0) -> Run:
            made = Run(store, tmp_path / f"{len(list(tmp_path.glob('*.db')))}.db", prices)
            open_books.enter_context(made.book)
            return made

        yield run


def test_a_pod_that_is_scaled_away_while_the_meter_starts_again_is_not_paid_for(runs: Runs) -> None:
    """Ten minutes, eight hours away in which the meter starts again, ten minutes."""
    store = Store()
    store.pod("llama-0", (0, 600), (9 * HOUR, 9 * HOUR + 600))
    store.pod("other-0", (0, 10 * HOUR), instance="10.0.0.2:8000")
    run = runs(store)
    before = run.until(1800)
    run.start()
    after = run.until(1800)
    assert after.today.usd == pytest.approx(before.today.usd)
    assert after.total.usd == pytest.approx(sum(run.paid().values()))
    run.clock.passed = 9 * HOUR - 60
    run.until(9 * HOUR + 900)
    assert run.paid()["prod/llama-0"] == pytest.approx(2 * 585)


def test_a_pod_that_left_while_no_meter_ran_is_paid_to_its_last_scrape(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, 3000), (9 * HOUR, 9 * HOUR + 600))
    store.pod("other-0", (0, 10 * HOUR), instance="10.0.0.2:8000")
    run = runs(store)
    run.until(1800)
    run.clock.passed = 8 * HOUR
    run.start()
    run.until(9 * HOUR + 900)
    assert run.paid()["prod/llama-0"] == pytest.approx(2985 + 585)


@pytest.mark.parametrize("others", [True, False])
def test_a_fleet_that_is_at_zero_overnight_is_not_paid_for_in_the_past_either(runs: Runs, others: bool) -> None:
    """An hour, eight hours at zero while Prometheus scrapes others or nothing, an hour."""
    store = Store()
    store.pod("llama-0", (0, HOUR), (9 * HOUR, 10 * HOUR))
    if others:
        store.series.append(({"__name__": "up", "job": "node"}, [(BEGIN + at, 1.0) for at in range(0, 36_000, 60)]))
    run = runs(store)
    run.clock.passed = 10 * HOUR
    run.backfill()
    assert run.paid() == {"prod/llama-0": pytest.approx(2 * (HOUR - 15))}
    assert run.output() == 2 * 239 * 100


def test_an_hour_in_which_prometheus_was_down_is_a_gap_that_is_paid(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, 3 * HOUR))
    store.lost(1800, 5400)
    for live in (False, True):
        run = runs(store)
        if live:
            run.until(2 * HOUR)
        else:
            run.clock.passed = 2 * HOUR
            run.backfill()
        paid = sum(run.paid().values())
        assert paid == pytest.approx(2 * HOUR, abs=2 * STEP)
        assert sum(span.usd for span in run.book.spans() if span.watched is WatchedSpan.gap) == pytest.approx(
            3600, abs=15
        )


def test_two_engines_in_one_pod_are_two_servers(runs: Runs) -> None:
    store = Store()
    store.pod("dp-0", (0, HOUR), instance="10.0.0.1:8000")
    store.pod("dp-0", (0, HOUR), instance="10.0.0.1:8001")
    run = runs(store)
    run.clock.passed = HOUR
    run.backfill()
    assert run.paid() == {f"prod/dp-0:{port}": pytest.approx(HOUR - 15) for port in (8000, 8001)}
    assert run.output() == 2 * 239 * 100


def test_a_second_engine_of_a_pod_leaves_the_first_its_name_over_restarts_of_the_meter(runs: Runs) -> None:
    store = Store()
    store.pod("dp-0", (0, HOUR), instance="10.0.0.1:8000")
    store.pod("dp-0", (600, HOUR), instance="10.0.0.1:8001")
    run = runs(store)
    run.until(1800)
    run.start()
    run.until(1860)
    assert run.paid() == {"prod/dp-0": pytest.approx(1860), "prod/dp-0:8001": pytest.approx(1260)}


def test_a_pod_that_comes_back_at_another_address_keeps_its_name(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, 600), instance="10.0.0.1:8000")
    store.pod("llama-0", (900, 1500), instance="10.0.0.7:8000")
    run = runs(store)
    run.until(1800)
    assert run.paid() == {"prod/llama-0": pytest.approx(2 * 585)}


def test_two_servers_that_would_have_one_name_are_refused(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, 600), instance="10.0.0.1:8000")
    store.pod("llama-0", (0, 600), instance="10.0.0.7:8000")
    run = runs(store)
    run.clock.passed = 600
    with pytest.raises(BadInput, match="prod/llama-0 is the name of two servers"):
        run.backfill()


def test_a_meter_starts_on_a_fleet_at_zero_that_its_book_knows(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, 600), (3 * HOUR, 4 * HOUR))
    store.series.append(({"__name__": "up", "job": "node"}, [(BEGIN + at, 1.0) for at in range(0, 36_000, 60)]))
    run = runs(store)
    run.until(900)
    run.clock.passed = 2 * HOUR
    run.start()
    state = run.until(2 * HOUR)
    _refuse(run.meter)
    assert (state.groups, state.notes) == ((), ("no servers now",))
    assert state.total.usd == pytest.approx(585)
    assert run.until(3 * HOUR + 60).groups[0].up


def test_nothing_at_all_is_still_a_mistake_for_a_book_that_knows_no_server(runs: Runs) -> None:
    run = runs(Store())
    with pytest.raises(BadInput, match="no sample of an engine"):
        run.until(0)


def test_loading_the_model_is_paid_live_as_in_the_past(runs: Runs) -> None:
    """The process starts at 600 s and answers at 900: 20 minutes to its end, and not 15."""
    store = Store()
    store.pod("other-0", (0, HOUR), instance="10.0.0.2:8000")
    store.pod("new-0", (600, 1800), loads_s=300)
    live = runs(store)
    live.until(2400)
    past = runs(store)
    past.clock.passed = 2400
    past.backfill()
    assert live.paid()["prod/new-0"] == pytest.approx(1185)
    assert past.paid()["prod/new-0"] == pytest.approx(1185)


def test_servers_with_a_label_have_their_own_price(runs: Runs) -> None:
    store = Store()
    store.pod("big-0", (0, HOUR), instance="10.0.0.1:8000", node="h100-pool")
    store.pod("small-0", (0, HOUR), instance="10.0.0.2:8000", node="l4-pool")
    run = runs(store, Prices(3600.0, (PriceOf("node", "l4-pool", 360.0),)))
    run.until(600)
    assert run.paid() == {"prod/big-0": pytest.approx(600), "prod/small-0": pytest.approx(60)}


def test_scrapes_every_three_minutes_are_watching(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, 3 * HOUR))
    store.series = [
        (labels, [(at, value) for at, value in samples if value is None or (at - BEGIN) % 180 == 0])
        for labels, samples in store.series
    ]
    run = runs(store)
    run.until(2 * HOUR)
    seen = sum(span.usd for span in run.book.spans() if span.watched is WatchedSpan.seen)
    assert seen >= 2 * HOUR - 5 * 180


async def gpus_of_pods() -> Sequence[GpuReading]:
    """Of two pods of two teams, and one that nobody has."""
    owners: tuple[dict[str, str], ...] = (
        {"namespace": "prod", "pod": "llama-0"},
        {"namespace": "others", "pod": "llama-0"},
        {},
    )
    return [
        GpuReading(uuid=f"GPU-{place}", name="H100", at=0.0, power_w=300.0, labels=labels)
        for place, labels in enumerate(owners)
    ]


async def no_gpus() -> Sequence[GpuReading]:
    raise NoGpuSeen("no GPU seen here")


def state_with(gpus: Callable[[], Awaitable[Sequence[GpuReading]]], runs: Runs) -> MeterState:
    """Of one pod, beside these GPUs."""
    store = Store()
    store.pod("llama-0", (0, HOUR))
    run = runs(store)
    run.meter = Meter([run.source], run.book, run.clock, MeterSettings(3600.0, gpus=gpus))
    return run.until(15)


def test_gpus_that_cannot_be_read_are_said_and_no_error_of_the_meter(runs: Runs) -> None:
    state = state_with(no_gpus, runs)
    assert (state.gpus, state.notes) == ((), ("no GPU seen here",))


def test_gpus_of_other_teams_are_left_out_and_said_so(runs: Runs) -> None:
    state = state_with(gpus_of_pods, runs)
    assert [gpu.uuid for gpu in state.gpus] == ["GPU-0"]
    assert "2 GPUs of pods that are not metered here: left out" in state.notes


def test_a_price_for_a_label_that_no_server_has_is_said(runs: Runs) -> None:
    store = Store()
    store.pod("llama-0", (0, HOUR))
    run = runs(store, Prices(3600.0, (PriceOf("gpu", "L5", 1.0),)))
    assert run.until(15).notes == ('price="gpu=L5": no server has it',)
