"""The scraper through a page that fails in every way we know: nothing is lost or invented once the faults end."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.measure.faulty import Fault, FaultyPage, faulty_page
from tests.measure.metered import HandClock, Process

from tokonomics.measure.meter import scrape
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.scrape import EngineSource
from tokonomics.measure.meter.state import MeterState, MeterTally

EVERY_S, USD_PER_HOUR = 15.0, 36.0
FAULTS = [fault for fault in Fault if fault is not Fault.none]
READABLE = {Fault.none, Fault.short}
"""Half a page that ends in good order is a page: nothing shows that more was meant."""

HANGING = {Fault.slow, Fault.silent}
"""What the meter gives up on; with anything else it has patience, for the machine may be busy."""

Scenario = Callable[["Rig"], Awaitable[None]]


@pytest.fixture(autouse=True)
def _most_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "MOST_BYTES", 1_000_000)


class Rig:
    """A process, a page that may fail between it and the meter, and the meter with its book; time is moved by hand."""

    def __init__(self, process: Process, page: FaultyPage, meter: Meter) -> None:
        self.process, self.page, self.meter = process, page, meter

    async def tick(self, fault: Fault = Fault.none, after_s: float = EVERY_S) -> MeterState:
        self.page.fault = fault
        self.process.clock.passed += after_s
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scrape, "TIMEOUT_S", 0.25 if fault in HANGING else 600.0)
            patch.setattr(scrape, "CONNECT_S", 600.0)
            return await self.meter.tick()


def metered(folder: Path, scenario: Scenario) -> MeterTally:
    """Play the scenario and read the book: what it holds is what counts."""
    clock = HandClock()
    process = Process(clock, engines=2)
    with ExitStack() as stack:
        page = stack.enter_context(faulty_page(FaultyPage(process.page)))
        book = stack.enter_context(Ledger(folder / "meter.db"))

        async def play() -> MeterState:
            async with aiohttp.ClientSession() as session:
                asked = MeterSettings(USD_PER_HOUR, every_s=EVERY_S)
                meter = Meter([EngineSource(page.address, session, clock)], book, clock, asked)
                rig = Rig(process, page, meter)
                await rig.tick(after_s=0.0)
                await scenario(rig)
                state = await rig.tick()
                assert state.groups[0].up
                return state

        state = asyncio.run(play())
        assert state.total.usd == pytest.approx(clock.passed / 3600 * USD_PER_HOUR), "every second is paid once"
        assert (state.total.input_total, state.total.output) == (process.true_input, process.true_output)
        assert state.total.input_cached == process.true_cached
        (mark,) = book.marks().values()
        written = sum(mark.totals.values(), MeterTally())
        assert written == state.total, "the book has it all"
        return state.total


@pytest.mark.parametrize("fault", FAULTS)
def test_what_was_counted_during_a_fault_is_there_when_it_ends(fault: Fault, tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.process.work(1000, 100, cached=300)
        await rig.tick()
        for _ in range(3):
            rig.process.work(500, 50, engine=1)
            state = await rig.tick(fault)
            assert state.groups[0].up == (fault in READABLE)
            assert bool(state.notes) == (fault not in READABLE), "a person can read why"
        if fault is not Fault.refused:
            assert rig.page.asked[fault] >= 3
        rig.process.work(10, 1)

    total = metered(tmp_path, scenario)
    # Three readings that did not come, and the time until the next one that did.
    assert total.gap_s == (0 if fault in READABLE else 4 * EVERY_S)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restart_behind_a_fault_loses_only_what_nobody_saw(fault: Fault, tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.process.work(1000, 100)
        await rig.tick()
        await rig.tick(fault)
        await rig.tick()  # a fault without work makes no token
        rig.process.restart()
        rig.process.work(2000, 200)
        await rig.tick(fault)

    metered(tmp_path, scenario)


QUICK = st.sampled_from([fault for fault in Fault if fault not in (Fault.slow, Fault.silent, Fault.endless)])
STEP = st.tuples(QUICK, st.integers(0, 1000), st.integers(0, 100), st.integers(0, 1), st.booleans())


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, max_size=12))
def test_any_sequence_of_faults_work_and_restarts(
    steps: list[tuple[Fault, int, int, int, bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A process is restarted only right after it was read: what it counts unseen before that nobody can know."""

    async def scenario(rig: Rig) -> None:
        for fault, tokens_in, tokens_out, engine, restart in steps:
            if restart:
                assert (await rig.tick()).groups[0].up
                rig.process.restart()
            rig.process.work(tokens_in, tokens_out, engine=engine)
            await rig.tick(fault)

    metered(tmp_path_factory.mktemp("meter"), scenario)
