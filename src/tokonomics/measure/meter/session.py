"""A run of the meter: its sources opened, ticks on the beat until it is told to stop, and a last word.

The first tick decides: an address whose page is of no engine that we know, or none that answers at all, is a mistake
of who asked and ends the run; a fleet that the book knows and that is scaled to zero is none. From then on nothing that
a server does ends it.
"""

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option
from tokonomics.measure.meter.engines import UnknownEngine
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.measure.meter.live_meter import Meter
from tokonomics.measure.meter.readings import Clock, GpuSource, Source, SystemClock
from tokonomics.measure.meter.scrape import AT_ONCE, EngineSource, address_of, authorization, on_loopback
from tokonomics.measure.meter.spending import MonthlyBudget
from tokonomics.measure.meter.state import MeterState, Planned
from tokonomics.units import plural

if TYPE_CHECKING:
    from tokonomics.measure.meter.prometheus_source import PrometheusSource
    from tokonomics.measure.meter.spending import Prices

Show = Callable[[MeterState], None]
_LAST_MINUTES_S = 600.0  # read again: not all servers were scraped at once; the ledger leaves out what it has
_SAY_EVERY_S = 6 * 3600.0  # of the past, how much is read between two lines that say so: 28 of them for a week


@dataclass(frozen=True)
class MeterSettings:
    urls: Sequence[str]
    usd_per_hour: "float | Prices"
    price_from: str
    every_s: float = 15.0
    beats: int | None = None  # intervals after which it ends; None: when it is told to
    labels: Mapping[str, str] = field(default_factory=dict)
    planned: Planned | None = None
    from_now: bool = False
    prometheus: str | None = None  # the address of one that scrapes engines already
    match: str | None = None  # of its series: label matchers
    keep_labels: Sequence[str] = ()
    since: float | None = None  # unix seconds: read its past from here on first
    gpus: GpuSource | None = None
    listen: tuple[str, int] | None = None  # where our own metrics are served
    gpus_per_server: int = 1
    price_date: date | None = None
    usd_per_kwh: float | None = None
    budgets: Sequence[MonthlyBudget] = ()


def meter_servers(
    asked: MeterSettings, ledger: Ledger, show: Show, say: Callable[[str], None] = lambda text: None
) -> MeterState:
    """Run to the end, or to Ctrl-C or a termination; the last state."""
    return asyncio.run(_run(asked, ledger, show, say))


async def _run(asked: MeterSettings, ledger: Ledger, show: Show, say: Callable[[str], None]) -> MeterState:
    import aiohttp

    clock = SystemClock()
    addresses = _apart([address_of(url) for url in asked.urls], ledger, say)
    if not addresses and asked.prometheus is None:
        raise BadInput("no server is given", where="URL", fix="Such as: tokonomics meter http://localhost:8000")
    # No limit here: waiting for a place would count against the time that a server has to answer.
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=max(15.0, 2 * asked.every_s))
    at_once = asyncio.Semaphore(AT_ONCE)
    async with aiohttp.ClientSession(connector=connector, headers=authorization()) as session:
        sources: list[Source] = [EngineSource(address, session, clock, asked.labels, at_once) for address in addresses]
        fleet = _fleet(asked, clock, ledger)
        meter = Meter(
            [*sources, *([fleet] if fleet else [])], ledger, clock, asked.usd_per_hour, price_from=asked.price_from,
            every_s=asked.every_s, planned=asked.planned, gpus=asked.gpus, usd_per_kwh=asked.usd_per_kwh,
            from_now=asked.from_now, budgets=asked.budgets,
        )  # fmt: skip
        since = _past_from(asked, ledger) if fleet is not None else None
        if fleet is not None and since is not None:
            there = [mark for mark in _discovered(ledger) if not mark.is_gone]
            if asked.since is not None and there:
                # What is in the book is not booked again, nor is what came before it.
                known = f"{plural(len(there), 'server')} in the ledger go on from where they are, not from before"
                say(f"{option('since')}: {known}")
            said = since
            async for at, readings in fleet.history(since, clock.wall()):
                meter.backfill(fleet, readings, at)
                if at - said > _SAY_EVERY_S:
                    said = at
                    say(f"read the past up to {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC")
        async with _exposed(asked, show, say) as show_too:
            return await _beat(meter, asked, show_too, clock)


def _apart(addresses: Sequence[str], ledger: Ledger, say: Callable[[str], None]) -> list[str]:
    """Each server once, also where this machine is called by several of its names: as the ledger knows it, or first."""
    known, kept = ledger.marks(), dict[str, str]()
    for address in sorted(dict.fromkeys(addresses), key=lambda address: address not in known):
        same = kept.setdefault(on_loopback(address), address)
        if same != address:
            say(f"{address} is {same}: metered once")
    return [address for address in dict.fromkeys(addresses) if address in kept.values()]


def _past_from(asked: MeterSettings, ledger: Ledger) -> float | None:
    """Where a Prometheus is read from: as asked, or else where the last meter ended, which it has scraped through."""
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
    return PrometheusSource(asked.prometheus, asked.match, asked.keep_labels, clock=clock.wall, known=known)


@asynccontextmanager
async def _exposed(asked: MeterSettings, show: Show, say: Callable[[str], None]) -> AsyncIterator[Show]:
    """Also keeps each state for whoever scrapes us, where that is asked for."""
    if asked.listen is None:
        yield show
        return
    from tokonomics.measure.meter.exposition import ExposedSettings, serve_exposition

    latest: list[MeterState] = []

    def show_and_keep(state: MeterState) -> None:
        latest[:] = [state]
        show(state)

    told = ExposedSettings(
        gpus_per_target=asked.gpus_per_server, price_date=asked.price_date, usd_per_kwh=asked.usd_per_kwh
    )
    async with serve_exposition(*asked.listen, lambda: latest[0] if latest else None, told) as address:
        say(f"our own metrics: {address}")
        yield show_and_keep


async def _beat(meter: Meter, asked: MeterSettings, show: Show, clock: Clock) -> MeterState:
    """A tick that takes longer than a beat skips those it missed."""
    stop = asyncio.Event()
    with _told_to_stop(stop):
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
    """An address that cannot be metered at all ends the meter before anything is in the book."""
    for name, miss in meter.unreachable().items():
        if isinstance(miss, UnknownEngine):
            raise BadInput(miss.what, where=name, fix=miss.fix)
    if not meter.has_read_any():
        for name, miss in meter.unreachable().items():
            raise BadInput(miss.what, where=name, fix=miss.fix or "Is the server up, and the address right?")


@contextmanager
def _told_to_stop(stop: asyncio.Event) -> Iterator[None]:
    """Ctrl-C and termination set the event, so that the last tick is still written and shown."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    # Outside the main thread there are no signals to be had.
    with suppress(ValueError, RuntimeError):
        for number in signals:
            loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError):
            for number in signals:
                loop.remove_signal_handler(number)
