"""Servers of a fleet that leave and come back under their old names, as the pods of a StatefulSet do."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.measure.metered import HandClock, PageSource, Process

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Reading
from tokonomics.measure.meter.state import MeterState


@dataclass
class Discovered(PageSource):
    """A Prometheus with one target, which may not be there."""

    discovers: bool = True
    gone: bool = False

    async def read(self) -> Sequence[Reading]:
        return [] if self.gone else await PageSource.read(self)


def test_a_pod_that_comes_back_under_its_name_counts_once(tmp_path: Path) -> None:
    """A dollar a second: a minute, ten minutes scaled to zero and not paid for, three quarters of a minute."""
    clock = HandClock()
    process = Process(clock)
    source = Discovered(process, "prod/llama-0")

    async def play(book: Ledger) -> MeterState:
        meter = Meter([source], book, clock, MeterSettings(3600.0, every_s=15.0))

        async def ticks(count: int) -> MeterState:
            for _ in range(count):
                clock.passed += 15
                process.work(100, 10)
                state = await meter.tick()
            return state

        await meter.tick()
        await ticks(4)
        source.gone = True
        clock.passed += 600
        await meter.tick()
        source.gone = False
        process.restart()
        return await ticks(3)

    with Ledger(tmp_path / "meter.db") as book:
        state = asyncio.run(play(book))
        booked = sum(span.usd for span in book.spans())
        (mark,) = book.marks().values()
    assert booked == pytest.approx(60 + 45)
    assert state.total.usd == pytest.approx(booked)
    assert state.today.output == mark.totals["tiny"].output == process.true_output


def test_the_past_of_a_pod_that_is_gone_is_not_booked_again(tmp_path: Path) -> None:
    """A minute at a dollar a second; gone, the meter starts anew and asks Prometheus for that minute again."""
    clock = HandClock()
    process = Process(clock)
    source = Discovered(process, "prod/llama-0")
    past: list[Reading] = []
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3600.0))
        for _ in range(5):
            past += asyncio.run(source.read())
            asyncio.run(meter.tick())
            clock.passed += 15
            process.work(100, 10)
        source.gone = True
        asyncio.run(meter.tick())
    with Ledger(tmp_path / "meter.db") as book:
        Meter([source], book, clock, MeterSettings(3600.0)).backfill(past, clock.wall())
        assert sum(span.usd for span in book.spans()) == pytest.approx(60)


def test_pods_that_are_gone_for_good_are_forgotten_but_for_their_sums(tmp_path: Path) -> None:
    """A hundred pods of a quarter of a minute each, the last of half a minute; two months later another one comes."""
    clock = HandClock()
    past: list[Reading] = []
    process = Process(clock)
    source = Discovered(process)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3600.0))
        for number in range(100):
            source.name = f"prod/llama-{number}"
            process.restart()
            for _ in range(2):
                past += asyncio.run(source.read())
                asyncio.run(meter.tick())
                clock.passed += 15
                process.work(100, 10)
        asyncio.run(meter.tick())
        assert len(book.marks()) == 100
        clock.passed += 60 * 86_400.0
        source.name = "prod/new-0"
        process.restart()
        state = asyncio.run(meter.tick())
        assert set(book.marks()) == {target for target, _ in meter._sums} == {"prod/new-0"}
    booked = state.total
    assert booked.seconds == pytest.approx(101 * 15)
    with Ledger(tmp_path / "meter.db") as book:
        again = Meter([source], book, clock, MeterSettings(3600.0))
        again.backfill(past, clock.wall())
        assert sum(span.server_s for span in book.spans()) == pytest.approx(booked.seconds), "the past counts once"
        assert asyncio.run(again.tick()).total == booked
