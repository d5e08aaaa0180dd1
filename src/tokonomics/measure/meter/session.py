"""A run of the meter: its sources opened, ticks on the beat until it is told to stop, and a last word.

The first tick decides: an address whose page is of no engine that we know, or none that answers at all, is a mistake
of who asked and ends the run. From then on nothing that a server does ends it.
"""

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tokonomics.errors import BadInput
from tokonomics.measure.meter.clocks import Clock, SystemClock
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.meter import Meter
from tokonomics.measure.meter.readings import GpuSource, Source
from tokonomics.measure.meter.scrape import EngineSource, address_of, authorization
from tokonomics.measure.meter.state import MeterState, Planned

Show = Callable[[MeterState], None]


@dataclass(frozen=True)
class Asked:
    """What to meter, and how."""

    urls: Sequence[str]
    usd_per_hour: float
    price_from: str
    every_s: float = 15.0
    beats: int | None = None
    """Intervals after which it ends; None: when it is told to."""
    labels: Mapping[str, str] = field(default_factory=dict)
    planned: Planned | None = None
    from_now: bool = False
    others: Sequence[Source] = ()
    """Such as a Prometheus."""
    gpus: GpuSource | None = None


def meter_servers(asked: Asked, ledger: Ledger, show: Show, clock: Clock | None = None) -> MeterState | None:
    """Run to the end, or to Ctrl-C or a termination; the last state, or None when there is none."""
    return asyncio.run(_run(asked, ledger, show, clock or SystemClock()))


async def _run(asked: Asked, ledger: Ledger, show: Show, clock: Clock) -> MeterState | None:
    import aiohttp

    addresses = list(dict.fromkeys(address_of(url) for url in asked.urls))
    if not addresses and not asked.others:
        raise BadInput("no server is given", where="URL", fix="Such as: tokonomics meter http://localhost:8000")
    connector = aiohttp.TCPConnector(limit=64, keepalive_timeout=max(15.0, 2 * asked.every_s))
    async with aiohttp.ClientSession(connector=connector, headers=authorization()) as session:
        sources: list[Source] = [EngineSource(each, session, clock, asked.labels) for each in addresses]
        meter = Meter(
            [*sources, *asked.others],
            ledger,
            clock,
            asked.usd_per_hour,
            price_from=asked.price_from,
            every_s=asked.every_s,
            planned=asked.planned,
            gpus=asked.gpus,
            from_now=asked.from_now,
        )
        return await _beat(meter, asked, show, clock)


async def _beat(meter: Meter, asked: Asked, show: Show, clock: Clock) -> MeterState | None:
    """A tick that takes longer than a beat skips those it missed."""
    stop = asyncio.Event()
    with _told_to_stop(stop):
        began, beat = clock.steady(), 0
        state = await meter.tick()
        _refuse(meter, state)
        show(state)
        while not stop.is_set() and (asked.beats is None or beat < asked.beats):
            beat = max(beat + 1, int((clock.steady() - began) / asked.every_s))
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, began + beat * asked.every_s - clock.steady()))
            state = await meter.tick()
            show(state)
    return state


def _refuse(meter: Meter, state: MeterState) -> None:
    for name, miss in meter.unreachable().items():
        if name in meter.unknown_engines():
            raise BadInput(miss.what, where=name, fix=miss.fix)
    if not state.groups:
        name, miss = next(iter(meter.unreachable().items()))
        raise BadInput(miss.what, where=name, fix=miss.fix or "Is the server up, and the address right?")


@contextmanager
def _told_to_stop(stop: asyncio.Event) -> Iterator[None]:
    """Ctrl-C and termination set the event, so that the last tick is still written and shown."""
    loop, signals = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    # Outside the main thread there are no signals to be had.
    with suppress(ValueError, RuntimeError):
        for each in signals:
            loop.add_signal_handler(each, stop.set)
    try:
        yield
    finally:
        with suppress(ValueError, RuntimeError):
            for each in signals:
                loop.remove_signal_handler(each)
