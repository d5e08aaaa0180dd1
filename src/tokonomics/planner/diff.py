"""What a change to a scenario does: which words of it changed, what the plan becomes, what that saves."""

from collections.abc import Mapping

from pydantic import NonNegativeFloat

from tokonomics.errors import BadInput
from tokonomics.money.cost import saving
from tokonomics.planner.plan import Candidate, Plan
from tokonomics.types import Noun


class Change(Noun):
    """A key of the scenario that differs; None where it is not written."""

    key: str
    before: str | None
    after: str | None


class DiffSide(Noun):
    """A scenario's pick."""

    name: str
    model: str
    plan: Candidate
    tokens_per_month: NonNegativeFloat


class Diff(Noun):
    """Two scenarios side by side."""

    before: DiffSide
    after: DiffSide
    changes: tuple[Change, ...]
    saved_usd_per_month: float
    """Negative where the change costs more."""
    saved_share: float
    saved_share_per_mtok: float
    """The same by the million tokens: what is left when the scenarios serve different traffic."""


Words = Mapping[str, object]
"""What a scenario says, by key, in the order of the file format."""


def diff(before: tuple[str, Words, Plan], after: tuple[str, Words, Plan]) -> Diff:
    """Compare the picks of two planned scenarios, each given with its name."""
    first, second = (_side(name, made) for name, _, made in (before, after))
    return Diff(
        before=first,
        after=second,
        changes=changes(before[1], after[1]),
        saved_usd_per_month=first.plan.usd_per_month - second.plan.usd_per_month,
        saved_share=saving(first.plan.usd_per_month, second.plan.usd_per_month),
        saved_share_per_mtok=saving(first.plan.usd_per_mtok.blended, second.plan.usd_per_mtok.blended),
    )


def changes(before: Words, after: Words) -> tuple[Change, ...]:
    """The keys that differ, in the order of the file format."""
    pairs = [(key, before[key], after[key]) for key in before]
    return tuple(Change(key=key, before=_word(a), after=_word(b)) for key, a, b in pairs if a != b)


def _word(value: object) -> str | None:
    if value is None or value == ():
        return None
    if isinstance(value, tuple):
        return ", ".join(str(each) for each in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _side(name: str, made: Plan) -> DiffSide:
    if made.best is None:
        raise BadInput("nothing fits this scenario", where=name, fix=f"See: tokonomics plan {name} --why")
    return DiffSide(name=name, model=made.model, plan=made.best, tokens_per_month=made.workload.tokens_per_month)
