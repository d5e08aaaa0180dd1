"""What the meter and its report share: the ledger, and the plan to compare with."""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option
from tokonomics.questions.request import Kind, Number, Request, Text, declared

if TYPE_CHECKING:
    from tokonomics.measure.meter.state import Planned


class InLedger(Request):
    """The file that the meter writes to."""

    ledger: Text | None = declared(
        None,
        "SQLite file of spans.",
        without="~/.local/share/tokonomics/meter.db",
        kind=Kind.FILE,
        example="meter.db",
    )


class AgainstPlan(Request):
    """The plan to compare with: a file, or its figures."""

    plan: Text | None = declared(
        None, "To compare with: the file of `tokonomics plan … --json`.", kind=Kind.FILE, example="plan.json"
    )
    planned_usd_per_mtok: Number | None = declared(None, "To compare with, instead of a file.", example=0.35)
    planned_batch: Number | None = declared(None, "Requests running at once that were planned, with it.", example=48)


def ledger_of(request: InLedger) -> Path:
    """The ledger that is named, or else this user's."""
    from tokonomics.measure.meter.ledger import default_ledger

    return Path(request.ledger) if request.ledger else default_ledger()


def planned_of(request: AgainstPlan) -> "Planned | None":
    """The plan, said in one way; None where there is none."""
    from tokonomics.measure.meter.against_plan import read_plan
    from tokonomics.measure.meter.state import Planned
    from tokonomics.money.cost import require_positive

    usd_per_mtok, batch = request.planned_usd_per_mtok, request.planned_batch
    if request.plan is not None:
        if usd_per_mtok is not None or batch is not None:
            raise BadInput("a plan is given twice", field="plan", fix="Give the file, or the figures.")
        return read_plan(Path(request.plan))
    if usd_per_mtok is None:
        if batch is not None:
            fix = f"Add {option('planned_usd_per_mtok')}."
            raise BadInput("needs the planned price too", field="planned_batch", fix=fix)
        return None
    return Planned(
        usd_per_mtok=require_positive("planned_usd_per_mtok", usd_per_mtok),
        batch=require_positive("planned_batch", batch) if batch is not None else None,
    )
