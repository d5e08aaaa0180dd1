"""Make docs/examples/gpt-oss-week.db anew: the meter's ledger of a made-up week, for the tutorial.

    python docs/document_ledger.py

Two servers on an H200 each are paid for round the clock and used for twelve hours of each working day. In those hours they
get the rate that the tutorial plans for, so what they cost more per token than planned is the night. Run it when the
ledger's tables change.
"""

import math
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan

LEDGER = Path(__file__).parent / "examples" / "gpt-oss-week.db"
MONDAY = datetime(2026, 11, 9, tzinfo=UTC).timestamp()
DAYS, OPENS, CLOSES = 5, 8, 20
REQUESTS_PER_S, INPUT, OUTPUT, CACHED = 6.0, 1_060, 990, 0.03
STAY_S = 28.0
"""Of a request, as the plan says: its running requests are rate × stay (Little's law)."""
SERVERS, USD_PER_HOUR = 2, 4.00


def hours() -> list[PaidTime]:
    """Every hour of the week of each server; by day a hump whose mean is the server's part of the planned rate."""
    servers = range(1, SERVERS + 1)
    return [_hour(server, day * 24 + hour, hour) for server in servers for day in range(DAYS) for hour in range(24)]


def _hour(server: int, place: int, hour: int) -> PaidTime:
    open_now = OPENS <= hour < CLOSES
    shape = 0.75 + math.pi / 8 * math.sin(math.pi * (hour + 0.5 - OPENS) / (CLOSES - OPENS)) if open_now else 0.0
    requests = round(REQUESTS_PER_S / SERVERS * shape * 3600)
    return PaidTime(
        target=f"http://gpu{server}:8000",
        model="gpt-oss-120b",
        engine="vllm",
        watched=WatchedSpan.seen,
        labels={"team": "assistant"},
        start=MONDAY + place * 3600,
        seconds=3600,
        server_s=3600,
        usd_per_hour=USD_PER_HOUR,
        usd=USD_PER_HOUR,
        busy_s=3600 if open_now else 0,
        running_s=requests * STAY_S,
        running_seen_s=3600 if open_now else 0,
        input_total=requests * INPUT,
        input_cached=round(requests * INPUT * CACHED),
        output=requests * OUTPUT,
        answered=requests,
    )


def main(path: Path) -> None:
    """The same bytes every time."""
    path.unlink(missing_ok=True)
    with Ledger(path) as book:
        book.record(hours(), [])
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA page_size = 1024")
        db.execute("VACUUM")
    Path(f"{path}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else LEDGER)
