"""Make docs/examples/gpt-oss-week.db anew: the meter's ledger of a made-up week, for the tutorial.

    python docs/document_ledger.py

Two servers on an H200 each are paid for round the clock and used for twelve hours of each working day. In those hours they
get the rate that the tutorial plans for, so what they cost more per token than planned is the night. The last day
also has windows, as the meter keeps them, and what a twin of the servers was off by: a made-up 4 % of the time per token
and 9 % of the traffic, above and below in turn. Run it when the ledger's tables change.
"""

import math
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.readings import Counted
from tokonomics.measure.meter.spans import Glimpse, PaidTime, WatchedSpan
from tokonomics.measure.meter.windows import OpenWindows, ServedWindow
from tokonomics.operate.learn import ForecastBand, TwinWindow, WindowFigure

LEDGER = Path(__file__).parent / "examples" / "gpt-oss-week.db"
MONDAY = datetime(2026, 11, 9, tzinfo=UTC).timestamp()
DAYS, OPENS, CLOSES = 5, 8, 20
REQUESTS_PER_S, INPUT, OUTPUT, CACHED = 6.0, 1_060, 990, 0.03
STAY_S = 28.0
"""Of a request, as the plan says: its running requests are rate × stay (Little's law)."""
SERVERS, USD_PER_HOUR = 2, 4.00
TPOT_S = STAY_S / OUTPUT
WINDOWS_FROM = MONDAY + 4 * 86_400
INPUTS = {200.0: 0.15, 500.0: 0.2, 1000.0: 0.27, 2000.0: 0.26, 5000.0: 0.12}
OUTPUTS = {200.0: 0.12, 500.0: 0.21, 1000.0: 0.29, 2000.0: 0.27, 5000.0: 0.11}
"""The share of requests in each of vLLM's buckets that has any, by its bound: as chat is, about the mean lengths."""
OFF = {"tpot_s": 0.04, "tokens_per_s": 0.09}


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
        glimpse=_glimpse(requests),
    )


def _glimpse(requests: int) -> Glimpse:
    if not requests:
        return Glimpse()
    kinds = {Counted.input_buckets: INPUTS, Counted.output_buckets: OUTPUTS}
    buckets = {kind: {bound: round(share * requests) for bound, share in of.items()} for kind, of in kinds.items()}
    return Glimpse(tpot_s=round(requests * TPOT_S), tpot_count=requests, buckets=buckets)


def said(windows: list[ServedWindow]) -> dict[tuple[str, str, float], str]:
    """What the twin had said of each window in which requests came."""
    rows = {}
    for place, window in enumerate(window for window in windows if window.sums.answered):
        figures = {}
        for name, off in OFF.items():
            band = ForecastBand(low=0.9, mid=1.0, high=1.1)
            measured = 1 + off if place % 2 else 1 / (1 + off)
            figures[name] = WindowFigure(
                measured=round(measured, 4), **{"given" if name == "tpot_s" else "forecast": band}
            )
        row = TwinWindow(target=window.target, model=window.model, start=window.start, figures=figures, is_over=True)
        rows[row.target, row.model, row.start] = row.model_dump_json(exclude_defaults=True)
    return rows


def main(path: Path) -> None:
    """The same bytes every time."""
    path.unlink(missing_ok=True)
    spans = hours()
    windows = OpenWindows(lambda *_: None, 3600.0).add(span for span in spans if span.start >= WINDOWS_FROM)
    with Ledger(path) as book:
        book.record(spans, [], None, windows)
        book.keep_forecasts(said(windows))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA page_size = 512")
        db.execute("VACUUM")
    Path(f"{path}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else LEDGER)
