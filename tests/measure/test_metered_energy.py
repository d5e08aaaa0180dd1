"""What metered servers draw: read off the GPUs where they were, else modelled and marked so."""

import asyncio
from datetime import date
from pathlib import Path

import pytest
from tests.measure.ledgers import HOUR_S, at, hour
from tests.measure.metered import BEGIN, HandClock, PageSource, Process
from tests.there import there

from tokonomics.catalog.places import grid_named
from tokonomics.measure.meter.bill import MeteredGpu, bill, metered_energy
from tokonomics.measure.meter.ledger import Drawn, Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.state import Statement
from tokonomics.types import Badge, Speed

MONDAY = date(2026, 11, 9)
GRID = grid_named("100")
H200 = MeteredGpu(gpu="H200", gpus=2)


def day() -> Statement:
    """Twelve busy hours and twelve idle ones of a server; 1.2 M tokens an hour while it is busy."""
    idle = {"busy_s": 0.0, "input_total": 0.0, "input_cached": 0.0, "output": 0.0, "answered": 0.0}
    quiet = idle | {"running_s": 0.0, "running_seen_s": 0.0}
    spans = [hour(at(MONDAY, number), **(quiet if number >= 12 else {})) for number in range(24)]
    return bill(spans, at(MONDAY), at(MONDAY, 24), ("model", "engine"))


def test_joules_that_were_read_are_the_energy_of_the_gpus() -> None:
    """1 kW over a quarter of a day stands for all of it: 24 kWh, × 1.58 of the site; 14.4 Mtok; 100 g a kWh."""
    made = there(metered_energy(day(), Drawn(at(MONDAY, 6), 6 * HOUR_S, 1000 * 6 * HOUR_S), None, GRID))
    assert made.basis is Badge.measured
    assert made.kwh == pytest.approx(24 * 1.58)
    assert made.kwh_per_mtok == pytest.approx(24 * 1.58 / 14.4)
    assert made.kg_co2e == pytest.approx(24 * 1.58 * 0.1)
    assert made.read_share == pytest.approx(0.25)


def test_without_a_reading_it_is_modelled_for_the_gpu_that_is_named() -> None:
    """Two H200s, idle for half a day; busy, they draw between decoding at batch 20 and prompts alone. Host 700 W."""
    made = there(metered_energy(day(), None, H200, GRID))
    assert made.basis is Badge.modelled
    assert made.known is Speed.timed
    assert made.host_watts == pytest.approx(700)
    at_20 = 527.3 + (695.9 - 527.3) * 0.1609640  # log2(20 ÷ 16) of log2(64 ÷ 16)
    assert 124 + at_20 < made.gpu_watts < 124 + 688.1
    assert made.kwh == pytest.approx((made.gpu_watts + 700) * 1.58 * 24 / 1000)


def test_nothing_is_said_where_gpus_are_neither_read_nor_named() -> None:
    assert metered_energy(day(), None, None, GRID) is None


def test_the_meter_books_what_the_gpus_draw(tmp_path: Path) -> None:
    clock, drawn = HandClock(), iter([1000.0, 16_000.0, 46_000.0])
    process = Process(clock)

    async def gpus() -> list[GpuReading]:
        return [GpuReading(uuid="GPU-1", name="H200", at=clock.wall(), energy_j=next(drawn))]

    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([PageSource(process)], book, clock, MeterSettings(2.0, gpus=gpus))
        for _ in range(3):
            clock.passed += 30.0
            process.work(100, 50)
            asyncio.run(meter.tick())
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        found = there(book.energy(BEGIN, BEGIN + 3600))
        assert (found.seconds, found.joules) == (60.0, 45_000.0)
        assert book.energy(BEGIN + 3600, BEGIN + 7200) is None
