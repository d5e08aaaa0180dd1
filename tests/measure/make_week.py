"""Makes ``pages/week.db`` anew from the hours in ``pages/week.csv``: run it when the ledger's tables change.

python -m tests.measure.make_week
"""

import csv
import sqlite3
from contextlib import closing
from pathlib import Path

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan

PAGES = Path(__file__).parent / "pages"
_TEXT = {"target", "model", "engine", "watched", "team"}


def hours() -> list[PaidTime]:
    """Two servers of two teams over five days: every row is an hour of one of them."""
    with (PAGES / "week.csv").open(newline="") as file:
        return [_span(row) for row in csv.DictReader(file)]


def _span(row: dict[str, str]) -> PaidTime:
    figures = {name: float(value) for name, value in row.items() if name not in _TEXT}
    ended = figures["answered"] + figures["failed"]
    return PaidTime(
        target=row["target"], model=row["model"], engine=row["engine"], watched=WatchedSpan(row["watched"]),
        labels={"team": row["team"]}, server_s=figures["seconds"],
        failed_s=figures["busy_s"] * figures["failed"] / ended if ended else 0.0, glimpse=None,
        **figures,
    )  # fmt: skip


def make_week(path: Path) -> None:
    """The same bytes every time."""
    path.unlink(missing_ok=True)
    with Ledger(path) as book:
        book.record(hours(), [])
    with closing(sqlite3.connect(path)) as db:
        # One file, without what a writer leaves beside it.
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA page_size = 1024")
        db.execute("VACUUM")
    Path(f"{path}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    make_week(PAGES / "week.db")
