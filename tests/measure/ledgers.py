"""Ledgers made by hand: an hour of a server is a row, so that sums can be worked out on paper."""

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan, tally
from tokonomics.measure.meter.state import MeterTally

HOUR_S = 3600.0


def at(day: date, hour: float = 0.0) -> float:
    return datetime.combine(day, time(), UTC).timestamp() + hour * HOUR_S


def hour(start: float, **changed: Any) -> PaidTime:
    """A busy hour of a $2 server: 1 M prompt tokens, 400 K of them cached, 200 K answered; 1,000 requests."""
    known: dict[str, Any] = {
        "target": "http://gpu1:8000", "model": "llama-3.1-8b", "engine": "vllm", "watched": WatchedSpan.seen,
        "start": start, "seconds": HOUR_S, "usd_per_hour": 2.0, "usd": 2.0, "server_s": HOUR_S, "busy_s": HOUR_S,
        "input_total": 1e6, "input_cached": 4e5, "output": 2e5, "answered": 1000.0, "running_s": 20 * HOUR_S,
        "running_seen_s": HOUR_S, "labels": {"team": "search"},
    }  # fmt: skip
    return PaidTime(**(known | changed))


def day_of(day: date, usd: float = 48.0, **changed: Any) -> list[PaidTime]:
    """24 equal hours that cost so much together."""
    return [hour(at(day, number), usd=usd / 24, usd_per_hour=usd / 24, **changed) for number in range(24)]


def days_from(first: date, dollars: Iterable[float], **changed: Any) -> list[PaidTime]:
    return [span for place, usd in enumerate(dollars) for span in day_of(first + timedelta(days=place), usd, **changed)]


def ledger_of(path: Path, spans: Iterable[PaidTime]) -> Path:
    with Ledger(path) as book:
        assert book.record(spans, []) is None
    return path


def booked(path: Path) -> MeterTally:
    """All that a ledger has."""
    with Ledger(path, read_only=True) as book:
        return sum(map(tally, book.spans()), MeterTally())
