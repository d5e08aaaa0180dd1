"""Report on classes of service in one fleet: what each gets and pays, and which breaks first when traffic grows.

It also says what one SLO for all would cost instead. The same requests arrive faster and faster on the same fleet. A
class breaks at the load where its SLOs are first missed; the gap between the last load at which they were met and the
first at which they were not is halved until it is 5 %.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.money.attribution import ClassCost, class_bills
from tokonomics.planner.plan import Study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.search import Placed, Sought
from tokonomics.serving.class_outcome import ClassOutcome, class_outcomes
from tokonomics.serving.counted import counted
from tokonomics.serving.simulator import Simulation
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.screen import screen
from tokonomics.sizing.search import highest_between
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import ServiceClass
from tokonomics.traffic.tenants import strictest, without_classes
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, seconds

LOADS = (1.0, 1.25, 1.5, 2.0, 3.0)  # times the traffic: from the given traffic to three times as much
_CLOSE_ENOUGH = 1.05

ServeLoad = Callable[[float], Simulation]  # simulates the fleet under a multiple of the traffic


class ClassLoad(Noun):
    """One class at one load."""

    name: str
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    within: float | None
    shed_share: NonNegativeFloat
    breaks: str | None


class LoadRow(Noun):
    """All classes at one load."""

    load: PositiveFloat  # times the given traffic
    classes: tuple[ClassLoad, ...]


class BreaksAt(Noun):
    """The load at which a class first misses its SLOs."""

    name: str
    load: float | None  # the lowest tried; None: it holds at every load
    breaks: str | None


class OneSlo(Noun):
    """The same traffic with the strictest class's SLO for everybody."""

    slos: tuple[str, ...]
    replicas: PositiveInt | None = None  # None if no number is enough
    usd_per_month: float | None = None
    rate: float | None = None  # requests a second that one replica holds, if asked for
    why_not: str | None = None


class ClassReport(Noun):
    """What classes of service get, pay and save."""

    classes: tuple[ClassOutcome, ...]
    bill: tuple[ClassCost, ...]  # for ``bill_for``; empty if no price is known
    bill_for: str  # ``a month``, ``an hour``, ``this run``
    overload: tuple[LoadRow, ...]
    breaks_at: tuple[BreaksAt, ...]  # the first to break comes first
    one_slo: OneSlo | None = None


def class_report(
    serve: ServeLoad, made: Simulation, bill: Sequence[ClassCost], bill_for: str, one_slo: OneSlo | None = None
) -> ClassReport:
    """Report on a fleet: ``serve`` simulates other loads, ``made`` is the simulation of the given one."""

    @cache
    def at(load: float) -> tuple[ClassOutcome, ...]:
        return class_outcomes(made if load == 1.0 else serve(load))

    def under_load(found: ClassOutcome) -> ClassLoad:
        fields = copied(found, "name", "within", "shed_share", "breaks")
        return ClassLoad(**fields, ttft_p99_s=found.ttft_s.p99, tpot_p99_s=found.tpot_s.p99)

    def breaks_at(place: int) -> BreaksAt:
        """Find the load at which one class breaks first: among the table's loads, then between two of them."""
        name = at(1.0)[place].name
        high = next((load for load in LOADS if at(load)[place].breaks), None)
        if high is None:
            return BreaksAt(name=name, load=None, breaks=None)
        low = max((load for load in LOADS if load < high), default=high)
        _, high = highest_between(lambda load: not at(load)[place].breaks, low, high, _CLOSE_ENOUGH)
        return BreaksAt(name=name, load=high, breaks=at(high)[place].breaks)

    broken = map(breaks_at, range(len(made.trace.classes)))
    return ClassReport(
        classes=at(1.0),
        bill=tuple(bill),
        bill_for=bill_for,
        overload=tuple(LoadRow(load=load, classes=tuple(map(under_load, at(load)))) for load in LOADS),
        breaks_at=tuple(sorted(broken, key=lambda found: math.inf if found.load is None else found.load)),
        one_slo=one_slo,
    )


def slo_texts(classes: Sequence[ServiceClass]) -> tuple[str, ...]:
    """Return the strictest targets as text."""
    return tuple(f"{slo} ≤ {seconds(slo.seconds)}" for slo in strictest(classes))


def run_bill(made: Simulation, usd_per_replica_hour: float | None) -> tuple[ClassCost, ...]:
    """Split the bill of a simulation's paid time among the classes; empty if no price is known."""
    if usd_per_replica_hour is None:
        return ()
    return class_bills(made, usd_per_replica_hour * counted(made).paid_s / SECONDS_PER_HOUR)


def report_of_pick(study: Study, say: Say = silent) -> ClassReport | None:
    """Report the classes on a plan's pick; None without classes or a simulated pick."""
    load, best = study.question.load, study.plan.best
    if best is None or not load.trace.classes:
        return None
    placed = study.ranked_as(best).sized
    if (trial := placed.trial) is None:
        return None
    sought = study.question.sought()
    say("the classes on the pick, under more and more load")

    def serve(times: float) -> Simulation:
        made = sought.as_sized(placed.screened, trial, times).simulation
        assert made is not None
        return made

    made = serve(1.0)
    # The bill is for a month of the whole fleet; the simulation covers this part of it.
    months = load.workload.rate * HOURS_PER_MONTH * SECONDS_PER_HOUR / len(made.trace)
    bill = class_bills(made, best.usd_per_month, times=months)
    say("one SLO for all")
    return class_report(serve, made, bill, "a month", _one_slo(study, best, placed))


def _one_slo(study: Study, best: Candidate, placed: Placed) -> OneSlo:
    """Size the pick's deployment for the strictest SLO for all, served in order of arrival."""
    load, hosts = study.question.load, placed.screened.hosts
    targets, texts = strictest(load.trace.classes), slo_texts(load.trace.classes)
    alike = replace(load, trace=without_classes(load.trace))
    found = screen(placed.deployment, hosts, alike, targets)
    if isinstance(found, NotServed):
        return OneSlo(slos=texts, why_not=found.reason)
    sized = Sought(alike, targets, study.question.router).smallest(found)
    if not sized.holds:
        return OneSlo(slos=texts, why_not=sized.breaks)
    times = hosts.usd_per_hour(sized.replicas) / hosts.usd_per_hour(placed.replicas)
    spare = best.replicas - placed.replicas
    return OneSlo(slos=texts, replicas=sized.replicas + spare, usd_per_month=best.usd_per_month * times)
