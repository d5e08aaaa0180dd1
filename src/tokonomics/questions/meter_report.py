"""What have the tokens of metered servers cost?"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.metered import AgainstPlan, InLedger, ledger_of, planned_of
from tokonomics.questions.request import Kind, Text, declared

if TYPE_CHECKING:
    from tokonomics.questions.measured_results import MeterReportResult

_BY_HOUR_S = 2 * 86_400
"""The chart has a bar for each hour of a stretch up to this long, for each day of a longer one."""


class MeterReportRequest(InLedger, AgainstPlan):
    """
    Examples:
      tokonomics meter report --since 7d --by model,day
      tokonomics meter report --since 2026-11-01 --until 2026-11-08 --by team --csv week.csv
      tokonomics meter report --since 1d --by hour --chart day.png
    """

    FIRST = ("since", "until", "by")

    since: Text = declared("1d", "From: 7d, 90m ago, or 2026-11-08 (UTC).", example="7d")
    until: Text | None = declared(None, "To, likewise.", without="now", example="2026-11-08")
    by: Text = declared("model,day", "model, target, engine, day, hour or any label, with commas.")
    csv: Text | None = declared(None, "Save the lines as a table.", kind=Kind.FILE, writes=True, example="week.csv")


def meter_report(request: MeterReportRequest, listener: Listener = SILENT) -> "MeterReportResult":
    """A stretch of the past from the meter's ledger, by model, server, day, hour or label."""
    import time

    from tokonomics.measure.meter.bill import bill, bill_csv, instant
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.questions.measured_results import MeterReportResult

    now = time.time()
    first = instant(request.since, now, "since")
    last = instant(request.until, now, "until") if request.until is not None else now
    if first >= last:
        raise BadInput(f"nothing lies between {option('since')} and {option('until')}", field="since")
    keys = tuple(key.strip() for key in request.by.split(",") if key.strip())
    planned = planned_of(request)
    with Ledger(ledger_of(request), read_only=True) as book:
        made = bill(book.spans(first, last), first, last, keys, planned)
        over = "hour" if last - first <= _BY_HOUR_S else "day"
        in_time = bill(book.spans(first, last), first, last, (over,))
    if request.csv:
        path = Path(request.csv)
        bill_csv(made, path)
        listener.note(f"table saved to {path}")
    return MeterReportResult(**dict(made), in_time=in_time, over=over)
