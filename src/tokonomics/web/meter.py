"""What the meter's ledger says, for the page: now, today, and the hours and days before.

The page reads the book that ``tokonomics meter`` writes, named with ``--ledger`` when the page is started; it scrapes
nothing itself, so no address that a browser sends is ever asked for anything.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.web.answering import as_json

EVERY_S = 5.0
"""How often the ledger is looked at for who watches; the meter itself reads every 15 seconds."""
_NOW_S, _HOUR_S, _DAY_S = 300.0, 3600.0, 86400.0
_HOURS, _DAYS = 48, 30


class NoLedger(BadInput):
    """The page was started without one."""


def state(ledger: Path | None) -> dict[str, Any]:
    """Sums of the last five minutes, this hour, today (UTC) and of all; by server and model; by hour and by day."""
    if ledger is None:
        raise NoLedger(
            "no ledger is shown here",
            fix="Meter: tokonomics meter http://… --usd-per-hour 2.49. Then: tokonomics web --ledger FILE",
        )
    now = time.time()

    def sums(since: float, *by: str) -> dict[str, Any]:
        made: dict[str, Any] = bill(book.spans(since, now), since, now, by).model_dump(mode="json")
        return made

    today = now - now % _DAY_S
    with Ledger(ledger, read_only=True) as book:
        return {
            "at": now,
            "ledger": ledger.name,
            "read": max((mark.until for mark in book.marks().values()), default=None),
            "now": sums(now - _NOW_S)["total"],
            "hour": sums(now - now % _HOUR_S)["total"],
            "today": sums(today)["total"],
            "total": sums(0.0)["total"],
            "groups": sums(today, "target", "model", "engine")["lines"],
            "hours": sums(now - now % _HOUR_S - _HOURS * _HOUR_S, "hour")["lines"],
            "days": sums(today - _DAYS * _DAY_S, "day")["lines"],
        }


async def events(ledger: Path | None) -> AsyncIterator[bytes]:
    """The state whenever it has changed."""
    before: tuple[Any, ...] | None = None
    while True:
        made = await asyncio.to_thread(state, ledger)
        if (made["read"], made["total"]["usd"]) != before:
            before = made["read"], made["total"]["usd"]
            yield b"event: state\ndata: " + as_json(made) + b"\n\n"
        else:
            yield b": nothing new\n\n"
        await asyncio.sleep(EVERY_S)
