"""Run the meter: open its sources, tick at every interval until told to stop, and return the last state.

The first tick decides: if an address has the page of no engine that we know, or no address answers at all, it is the
user's mistake and ends the run; a fleet that the ledger knows and that is scaled to zero is no mistake. After that
nothing that a server does ends the run.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option
from tokonomics.measure.meter.engines import UnknownEngine
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Clock, Source, SystemClock
from tokonomics.measure.meter.scrape import AT_ONCE, EngineSource, address_of, authorization, on_loopback
from tokonomics.measure.meter.spending import labels_of
from tokonomics.measure.meter.state import MeterState
from tokonomics.measure.meter.step_log import StepLog
from tokonomics.units import plural

if TYPE_CHECKING:
    from tokonomics.measure.meter.prometheus_source import PrometheusSource

Show = Callable[[MeterState], None]
Say = Callable[[str], None]
Beside = Callable[[MeterState], MeterState]
_LAST_MINUTES_S = 600.0  # read again, because not all servers were scraped at once; the ledger skips what it has
_SAY_EVERY_S = 6 * 3600.0  # how much of the past is read between two progress lines: 28 of them for a week


def meter_servers(
    asked: MeterSettings, ledger: Ledger, show: Show, say: Say = lambda text: None, beside: Beside = lambda state: state
) -> MeterState:
    """Run to the end, or to Ctrl-C or a termination; return the last state.

    ``beside`` is called after every tick, and may add to the state what it makes of the ledger.
    """
    return asyncio.run(_run(asked, ledger, show, say, beside))


async def _run(asked: MeterSettings, ledger: Ledger, show: Show, say: Say, beside: Beside) -> MeterState:
    import aiohttp

    clock = SystemClock()
    addresses = _distinct([address_of(url) for url in asked.urls], ledger, say)
    if not addresses and asked.prometheus is None:
        raise BadInput("no server is given", where="URL", fix="Such as: tokonomics meter http://localhost:8000")
    # No limit here: waiting for a connection would count against a server's time to answer.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=max(15.0, 2 * asked.every_s))
    at_once = asyncio.Semaphore(AT_ONCE)
    steps = None if asked.engine_log is None else StepLog(asked.engine_log)
    async with aiohttp.ClientSession(connector=connector, headers=authorization()) as session, AsyncExitStack() as ends:
        if steps is not None:
            ends.callback(steps.close)
            if not steps.tells:
                say(f"{asked.engine_log} has no step yet: vLLM 0.26 logs them with --enable-logging-iteration-details")
        sources: list[Source] = [
            EngineSource(address, session, clock, labels_of(address, asked.labels), at_once, asked.in_buckets, steps)
            for address in addresses
        ]
        fleet = _fleet(asked, clock, ledger)
        meter = Meter([*sources, *([fleet] if fleet else [])], ledger, clock, asked)
        since = _past_from(asked, ledger)
        if fleet is not None and since is not None:
            there = [mark for mark in _discovered(ledger) if not mark.is_gone]
            if asked.since is not None and there:
                # Book nothing again that is in the ledger, nor anything from before it.
                say(f"{option('since')}: {plural(len(there), 'server')} in the ledger continue from where they are")
            last_said = since
            async for at, readings in fleet.history(since, clock.wall()):
                meter.backfill(readings, at)
                if at - last_said > _SAY_EVERY_S:
                    last_said = at
                    say(f"read the past up to {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC")
        async with _exposed(asked, show, say) as show_state:
            return await _beat(meter, asked, lambda state: show_state(beside(state)), clock)


def _distinct(addresses: Sequence[str], ledger: Ledger, say: Say) -> list[str]:
    """Return each server once, even if this machine has several names: as the ledger knows it, or the first."""
    known, kept = ledger.marks(), dict[str, str]()
    for address in sorted(dict.fromkeys(addresses), key=lambda address: address not in known):
        same = kept.setdefault(on_loopback(address), address)
        if same != address:
            say(f"{address} is {same}: metered once")
    return [address for address in dict.fromkeys(addresses) if address in kept.values()]


def _past_from(asked: MeterSettings, ledger: Ledger) -> float | None:
    """Return where to start reading a Prometheus: as asked, or else where the last meter ended."""
    if asked.since is not None or asked.from_now:
        return asked.since
    booked = [mark.until for mark in _discovered(ledger)]
    return max(booked) - _LAST_MINUTES_S if booked else None


def _discovered(ledger: Ledger) -> list[Mark]:
    return [mark for target, mark in ledger.marks().items() if "://" not in target]


def _fleet(asked: MeterSettings, clock: Clock, ledger: Ledger) -> "PrometheusSource | None":
    from tokonomics.measure.meter.prometheus_source import PrometheusSource

    if asked.prometheus is None:
        return None
    known = [reading for mark in _discovered(ledger) for reading in mark.readings.values()]
    return PrometheusSource(
        asked.prometheus, asked.match, asked.keep_labels, clock=clock.wall, known=known, in_buckets=asked.in_buckets
    )


@asynccontextmanager
async def _exposed(asked: MeterSettings, show: Show, say: Say) -> AsyncIterator[Show]:
    """Also serve each state to scrapers, if asked to."""
    if asked.listen is None:
        yield show
        return
    from tokonomics.measure.meter.exposition import serve_exposition

    latest: list[MeterState] = []

    def show_and_keep(state: MeterState) -> None:
        latest[:] = [state]
        show(state)

    async with serve_exposition(*asked.listen, lambda: latest[0] if latest else None, asked) as address:
        say(f"our own metrics: {address}")
        yield show_and_keep


async def _beat(meter: Meter, asked: MeterSettings, show: Show, clock: Clock) -> MeterState:
    """Tick at every interval; a tick that takes longer skips the intervals it missed."""
    stop = asyncio.Event()
    with _stopped_by_signals(stop):
        began, beat = clock.steady(), 0
        state = await meter.tick(lambda: _refuse(meter))
        show(state)
        while not stop.is_set() and (asked.beats is None or beat < asked.beats):
            beat = max(beat + 1, int((clock.steady() - began) / asked.every_s))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, began + beat * asked.every_s - clock.steady()))
            state = await meter.tick()
            show(state)
    return state


def _refuse(meter: Meter) -> None:
    """End the meter before anything is in the ledger if an address cannot be metered at all."""
    for name, miss in meter.unreachable().items():
        if isinstance(miss, UnknownEngine) or not meter.has_read_any():
            raise BadInput(miss.what, where=name, fix=miss.fix or "Is the server up, and the address right?")


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Let Ctrl-C and termination set the event, so that the last tick is still written and shown."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    # Signals can only be handled in the main thread.
    with suppress(ValueError, RuntimeError):
        for number in signals:
            loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError):
            for number in signals:
                loop.remove_signal_handler(number)
