"""A fleet behind a Prometheus over hours: pods that are scaled away, load, share a pod, and meters that start again.

A made-up Prometheus keeps the samples of made-up pods. Every pod counts 100 tokens each 15 seconds, and costs a dollar
a second, so that dollars are paid seconds.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from tests.measure.metered import BEGIN, HandClock
from tests.there import there

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
        match = there(re.search(r'__name__=~"([^"]*)"', selector))
        return [each for each in self.series if each[0]["__name__"] in match[1].split("|")]


class Run:
    """A book, a clock, and meters that follow each other."""

    def __init__(self, store: Store, path: Path) -> None:
        self.store, self.clock, self.book = store, HandClock(), Ledger(path)
        self.start()

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


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """On a store without pods, which a test adds before it goes on."""
    made = Run(Store(), tmp_path / "meter.db")
    yield made
    made.book.close()


def test_a_pod_that_is_scaled_away_while_the_meter_starts_again_is_not_paid_for(run: Run) -> None:
    """Ten minutes, two hours away in which the meter starts again, ten minutes."""
    run.store.pod("llama-0", (0, 600), (3 * HOUR, 3 * HOUR + 600))
    run.store.pod("other-0", (0, 4 * HOUR), instance="10.0.0.2:8000")
    before = run.until(900)
    run.start()
    after = run.until(900)
    assert after.today.usd == pytest.approx(before.today.usd)
    assert after.total.usd == pytest.approx(sum(run.paid().values()))
    run.clock.passed = 3 * HOUR - 60
    run.until(3 * HOUR + 900)
    assert run.paid()["prod/llama-0"] == pytest.approx(2 * 585)


def test_a_pod_that_left_while_no_meter_ran_is_paid_to_its_last_scrape(run: Run) -> None:
    run.store.pod("llama-0", (0, 1500), (3 * HOUR, 3 * HOUR + 600))
    run.store.pod("other-0", (0, 4 * HOUR), instance="10.0.0.2:8000")
    run.until(600)
    run.clock.passed = 2 * HOUR
    run.start()
    run.clock.passed = 3 * HOUR - 60
    run.until(3 * HOUR + 900)
    assert run.paid()["prod/llama-0"] == pytest.approx(1485 + 585)


@pytest.mark.parametrize("others", [True, False])
def test_a_fleet_that_is_at_zero_overnight_is_not_paid_for_in_the_past_either(run: Run, others: bool) -> None:
    """An hour, four hours at zero while Prometheus scrapes others or nothing, an hour."""
    run.store.pod("llama-0", (0, HOUR), (5 * HOUR, 6 * HOUR))
    if others:
        run.store.series.append(({"__name__": "up", "job": "node"}, [(BEGIN + at, 1.0) for at in range(0, 36_000, 60)]))
    run.clock.passed = 6 * HOUR
    run.backfill()
    assert run.paid() == {"prod/llama-0": pytest.approx(2 * (HOUR - 15))}
    assert run.output() == 2 * 239 * 100


@pytest.mark.parametrize("live", [False, True])
def test_a_time_in_which_prometheus_was_down_is_a_gap_that_is_paid(run: Run, live: bool) -> None:
    run.store.pod("llama-0", (0, 2 * HOUR))
    run.store.lost(900, 2700)
    if live:
        run.until(HOUR)
    else:
        run.clock.passed = HOUR
        run.backfill()
    gaps = [span.usd for span in run.book.spans() if span.watched is WatchedSpan.gap]
    assert sum(run.paid().values()) == pytest.approx(HOUR, abs=2 * STEP)
    assert sum(gaps) == pytest.approx(1800, abs=STEP)


@pytest.mark.parametrize("second_from", [0, 600])
def test_two_engines_of_a_pod_are_two_servers_and_keep_their_names(run: Run, second_from: float) -> None:
    """One that comes later leaves the first its name, over restarts of the meter."""
    run.store.pod("dp-0", (0, HOUR), instance="10.0.0.1:8000")
    run.store.pod("dp-0", (second_from, HOUR), instance="10.0.0.1:8001")
    run.until(900)
    run.start()
    run.until(960)
    first = "prod/dp-0" if second_from else "prod/dp-0:8000"
    assert run.paid() == {first: pytest.approx(960), "prod/dp-0:8001": pytest.approx(960 - second_from)}


def test_a_pod_that_comes_back_at_another_address_keeps_its_name(run: Run) -> None:
    run.store.pod("llama-0", (0, 600), instance="10.0.0.1:8000")
    run.store.pod("llama-0", (900, 1500), instance="10.0.0.7:8000")
    run.until(1800)
    assert run.paid() == {"prod/llama-0": pytest.approx(2 * 585)}


def test_two_servers_that_would_have_one_name_are_refused(run: Run) -> None:
    run.store.pod("llama-0", (0, 600), instance="10.0.0.1:8000")
    run.store.pod("llama-0", (0, 600), instance="10.0.0.7:8000")
    run.clock.passed = 600
    with pytest.raises(BadInput):
        run.backfill()


def test_a_meter_starts_on_a_fleet_at_zero_that_its_book_knows(run: Run) -> None:
    run.store.pod("llama-0", (0, 600), (3 * HOUR, 4 * HOUR))
    run.store.series.append(({"__name__": "up", "job": "node"}, [(BEGIN + at, 1.0) for at in range(0, 36_000, 60)]))
    run.until(900)
    run.clock.passed = 2 * HOUR
    run.start()
    state = run.until(2 * HOUR)
    _refuse(run.meter)
    assert (state.groups, state.notes) == ((), ("no servers now",))
    assert state.total.usd == pytest.approx(585)
    assert run.until(3 * HOUR + 60).groups[0].up


def test_nothing_at_all_is_still_a_mistake_for_a_book_that_knows_no_server(run: Run) -> None:
    with pytest.raises(BadInput):
        run.until(0)


@pytest.mark.parametrize("live", [False, True])
def test_loading_the_model_is_paid_live_as_in_the_past(run: Run, live: bool) -> None:
    """The process starts at 660 s and answers at 810: ten minutes to its end, and not 7.5."""
    run.store.pod("other-0", (0, HOUR), instance="10.0.0.2:8000")
    run.store.pod("new-0", (660, 1260), loads_s=150)
    if live:
        run.until(1500)
    else:
        run.clock.passed = 1500
        run.backfill()
    assert run.paid()["prod/new-0"] == pytest.approx(585)


def test_servers_with_a_label_have_their_own_price(run: Run) -> None:
    run.store.pod("big-0", (0, HOUR), instance="10.0.0.1:8000", node="h100-pool")
    run.store.pod("small-0", (0, HOUR), instance="10.0.0.2:8000", node="l4-pool")
    run.start(Prices(3600.0, (PriceOf("node", "l4-pool", 360.0),)))
    run.until(600)
    assert run.paid() == {"prod/big-0": pytest.approx(600), "prod/small-0": pytest.approx(60)}


def test_scrapes_every_three_minutes_are_watching(run: Run) -> None:
    run.store.pod("llama-0", (0, 2 * HOUR))
    run.store.series = [
        (labels, [(at, value) for at, value in samples if value is None or (at - BEGIN) % 180 == 0])
        for labels, samples in run.store.series
    ]
    run.until(HOUR)
    seen = sum(span.usd for span in run.book.spans() if span.watched is WatchedSpan.seen)
    assert seen >= HOUR - 5 * 180


@pytest.mark.parametrize("readable", [True, False])
def test_gpus_of_other_teams_and_those_that_cannot_be_read_are_left_out_and_said(run: Run, readable: bool) -> None:
    """Of two pods of two teams, and one that nobody has."""
    owners: list[dict[str, str]] = [{"namespace": space, "pod": "llama-0"} for space in ("prod", "others")]

    async def gpus() -> Sequence[GpuReading]:
        if not readable:
            raise NoGpuSeen("no GPU seen here")
        known = {"name": "H100", "at": 0.0, "power_w": 300.0}
        return [GpuReading(uuid=f"GPU-{place}", labels=own, **known) for place, own in enumerate([*owners, {}])]

    run.store.pod("llama-0", (0, HOUR))
    run.meter = Meter([run.source], run.book, run.clock, MeterSettings(3600.0, gpus=gpus))
    state = run.until(15)
    assert [gpu.uuid for gpu in state.gpus] == (["GPU-0"] if readable else [])
    assert len(state.notes) == 1


def test_a_price_for_a_label_that_no_server_has_is_said(run: Run) -> None:
    run.store.pod("llama-0", (0, HOUR))
    run.start(Prices(3600.0, (PriceOf("gpu", "L5", 1.0),)))
    assert "gpu=L5" in run.until(15).notes[0]
