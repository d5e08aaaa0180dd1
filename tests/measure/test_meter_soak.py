"""Servers that restart, change, hang and lie, a clock that jumps, a disk that fills and a meter that dies: not a token
or a cent is off beyond what no scrape could see, and where tokens were lost the meter says so."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.measure.metered import BEGIN, HandClock
from tests.measure.soak import Launched, Network, Rates, Server, Soak, SoakSummary, summary

from tokonomics.measure.meter.scrape import EngineSource


def soaked(folder: Path, servers: int, hours: float, every_s: float, seed: int, times: float = 1.0) -> SoakSummary:
    """Everything happens so many times as often."""
    rates = Rates(**{name: rate * times for name, rate in vars(Rates()).items()})
    soak = Soak(folder, servers, hours, every_s, seed, rates)
    state = soak.run()
    found = summary(soak)
    assert state.total.billed_tokens == found.metered_tokens, "the screen has what the ledger has"
    assert state.total.usd == pytest.approx(found.usd)
    return found


def judge(found: SoakSummary) -> None:
    assert found.wrong == ()
    assert found.off_tokens == 0
    assert found.off_usd < 0.005
    assert found.true_tokens == found.metered_tokens + found.lost_tokens + found.overtaken_tokens
    for what in ("restart", "swap", "hang", "bad page", "half a page", "kill", "clock jump", "disk full", "missed"):
        assert found.happened[what] > 0, what


@pytest.mark.parametrize("seed", [7, 15, 18])
def test_two_bad_hours_of_a_small_fleet_are_metered_to_the_token(seed: int, tmp_path: Path) -> None:
    judge(soaked(tmp_path, servers=8, hours=2.0, every_s=30.0, seed=seed, times=10.0))


@pytest.mark.parametrize("swapped", ["llama.cpp", "tgi"])
def test_an_unnamed_model_is_asked_for_anew_when_another_process_answers(swapped: str) -> None:
    """Neither engine names its model on its page; the counts of the new one may not stand under the old name."""
    clock = HandClock()
    server = Server("http://s0:8000", "m0", clock, random.Random(0))
    server.process = Launched.at("tgi", "m0", BEGIN)
    server.process.work(random.Random(1))
    source = EngineSource(server.name, Network({server.name: server}), clock)  # type: ignore[arg-type]

    async def models() -> list[str]:
        first = await source.read()
        server.process = Launched.at(swapped, "m1", BEGIN + 60)
        return [reading.model for reading in (*first, *await source.read())]

    assert asyncio.run(models()) == ["m0", "m1"]


@pytest.mark.explore
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_bad_hours(seed: int, tmp_path: Path) -> None:
    found = soaked(tmp_path, servers=20, hours=4.0, every_s=30.0, seed=seed, times=10.0)
    judge(replace(found, happened={**found.happened, "disk full": 1, "kill": 1, "clock jump": 1}))


@pytest.mark.explore
def test_a_day_of_two_hundred_servers_is_metered_to_the_token(tmp_path: Path) -> None:
    """At the usual interval: 1.1 million scrapes, about twenty minutes of processor time."""
    judge(soaked(tmp_path, servers=200, hours=24.0, every_s=15.0, seed=1))
