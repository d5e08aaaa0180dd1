"""Which assumption moves the bill most: each is changed alone by a quarter, and the pick is sized anew.

Replicas are whole, so a change often costs nothing or a whole machine; beside the bill stands the share of the fleet's
simulated capacity that is then in use, which moves where the bill does not. The speed is changed by its 80 % interval.
"""

from collections.abc import Callable, Sequence

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.physics.intervals import interval
from tokonomics.planner.candidates import Refusal
from tokonomics.planner.load import Load
from tokonomics.planner.plan import Study
from tokonomics.planner.search import Placed
from tokonomics.planner.what_if import highest_rate, loosened, resized, slower, stretched
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun

CHANGE = 0.25
_CLOSE_ENOUGH = 1.04
"""Of the capacity in use: a bar of a chart does not show less."""

Circumstances = tuple[Load, Sequence[Slo]]


class Case(Noun):
    """The pick under one changed assumption."""

    factor: PositiveFloat
    """What the assumption is multiplied by."""
    usd_per_month: PositiveFloat | None
    """None where no number of replicas meets the SLOs."""
    replicas: PositiveInt | None
    used: NonNegativeFloat | None
    """Share of what these replicas hold that is in use."""
    refused: str | None = None
    """Why there is no bill."""


class BillSwing(Noun):
    """What an assumption does to the bill of the pick."""

    assumption: str
    """``requests a second``, ``SLO ttft_p99``…"""
    low: Case
    """With the assumption at its smaller value."""
    high: Case

    def usd(self, mid: float) -> float:
        """Between the dearest and the cheapest case; infinite where one cannot be served."""
        bills = [self.low.usd_per_month, mid, self.high.usd_per_month]
        known = [bill for bill in bills if bill is not None]
        return float("inf") if len(known) < len(bills) else max(known) - min(known)


class Sensitivity(Noun):
    """The bill of the pick, and every assumption with what it does to it, the strongest first."""

    usd_per_month: PositiveFloat
    replicas: PositiveInt
    used: NonNegativeFloat
    swings: tuple[BillSwing, ...]


def sensitivity(study: Study) -> Sensitivity | None:
    """Change each assumption alone; None where there is no pick."""
    row = study.plan.best
    if row is None:
        return None
    question, sized = study.question, study.of(row)
    load, slos, context = question.load, question.slos, question.model.max_context
    rate = load.workload.rate
    speed = interval(1.0, "throughput", sized.deployment)

    def case(factor: float, changed: Circumstances) -> Case:
        found = resized(study, row, *changed)
        if isinstance(found, Refusal):
            return Case(factor=factor, usd_per_month=None, replicas=None, used=None, refused=found.reason)
        again, replicas, bill = found
        return Case(factor=factor, usd_per_month=bill, replicas=replicas, used=_used(study, again, *changed))

    def swing(name: str, change: Callable[[float], Circumstances], low: float, high: float) -> BillSwing:
        return BillSwing(assumption=name, low=case(low, change(low)), high=case(high, change(high)))

    few, many = 1 - CHANGE, 1 + CHANGE
    mid_used = _used(study, sized, load, slos)
    swings = [
        swing("requests a second", lambda by: (load.at(rate * by), slos), few, many),
        swing("prompt tokens", lambda by: (stretched(load, inputs=by, context=context), slos), few, many),
        swing("answer tokens", lambda by: (stretched(load, outputs=by, context=context), slos), few, many),
        swing("speed of the replicas", lambda by: slower(load, slos, 1 / by), speed.low, speed.high),
        *(
            swing(f"SLO {slo}", lambda by, only=slo: (load, loosened(slos, by, only)), few, many)  # type: ignore[misc]
            for slo in slos
        ),
    ]
    at_price = [
        Case(factor=by, usd_per_month=row.usd_per_month * by, replicas=row.replicas, used=mid_used)
        for by in (few, many)
    ]
    swings.append(BillSwing(assumption="price of the machine", low=at_price[0], high=at_price[1]))
    swings.sort(key=lambda each: (-each.usd(row.usd_per_month), -_moved(each, mid_used)))
    return Sensitivity(usd_per_month=row.usd_per_month, replicas=row.replicas, used=mid_used, swings=tuple(swings))


def _used(study: Study, sized: Placed, load: Load, slos: Sequence[Slo]) -> float:
    """The load ÷ the highest rate that the replicas hold."""
    found = highest_rate(study.question, sized.screened, sized.replicas, load, slos, _CLOSE_ENOUGH)
    return load.workload.rate / found.rate


def _moved(swing: BillSwing, mid: float) -> float:
    shares = [each for each in (swing.low.used, mid, swing.high.used) if each is not None]
    return max(shares) - min(shares)
