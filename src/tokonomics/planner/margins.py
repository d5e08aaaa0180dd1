"""How much room a plan has: the growth it takes before an SLO is missed, and the bill if replicas are faster or slower.

Growth is found by simulating the same requests ever faster on the replicas of the pick. The bill's range re-sizes the
fleet at both ends of the 80 % interval that was learned from published throughput (``physics.intervals``).
"""

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.physics.intervals import interval
from tokonomics.planner.candidates import Refusal
from tokonomics.planner.plan import Candidate, Study
from tokonomics.planner.what_if import highest_rate, resized, slower
from tokonomics.types import Noun


class Headroom(Noun):
    """How much the traffic of the pick may grow on the same replicas."""

    replicas: PositiveInt
    """Those that serve: spare ones are taken to be down."""
    rate: PositiveFloat
    """Requests a second that still hold."""
    share: NonNegativeFloat
    """0.2: a fifth more than planned."""
    at_most: PositiveFloat | None
    """The lowest rate tried that does not hold."""
    breaks: str
    """What gives way there."""
    simulated: bool


class AtSpeed(Noun):
    """What a candidate takes at one speed."""

    speed: PositiveFloat
    """Of that which was modelled."""
    replicas: PositiveInt | None
    """Spare ones included; None where no number meets the SLOs."""
    usd_per_month: PositiveFloat | None
    refused: str | None = None
    """Why there is none."""


class BillRange(Noun):
    """A bill with replicas as fast, and as slow, as four of five measurements of this kind are."""

    fast: AtSpeed
    mid: AtSpeed
    slow: AtSpeed


def headroom(study: Study) -> Headroom | None:
    """How much the traffic may grow before the pick misses an SLO; None where there is no pick."""
    if study.plan.best is None:
        return None
    question, sized = study.question, study.of(study.plan.best)
    found = highest_rate(question, sized.screened, sized.replicas)
    return Headroom(
        replicas=sized.replicas,
        rate=found.rate,
        share=found.rate / question.load.workload.rate - 1,
        at_most=found.at_most if found.at_most < float("inf") else None,
        breaks=found.breaks,
        simulated=question.simulate,
    )


def bill_range(study: Study, row: Candidate) -> BillRange:
    """The bill of a ranked row over the 80 % interval of its speed."""
    speed = interval(1.0, "throughput", study.of(row).deployment)
    mid = AtSpeed(speed=1.0, replicas=row.replicas, usd_per_month=row.usd_per_month)
    return BillRange(fast=at_speed(study, row, speed.high), mid=mid, slow=at_speed(study, row, speed.low))


def at_speed(study: Study, row: Candidate, speed: float) -> AtSpeed:
    """A ranked row sized as if its replicas had that share of the modelled speed."""
    found = resized(study, row, *slower(study.question.load, study.question.slos, 1 / speed))
    if isinstance(found, Refusal):
        return AtSpeed(speed=speed, replicas=None, usd_per_month=None, refused=found.reason)
    return AtSpeed(speed=speed, replicas=found[1], usd_per_month=found[2])
