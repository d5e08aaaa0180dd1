"""Tell how a request's traffic changes over its day or week, and what its hours need of a plan's pick."""

from tokonomics.planner.by_hour import ReplicasByHour, replicas_by_hour
from tokonomics.planner.plan import Study
from tokonomics.questions.requests.buy import FleetRequest, PlanRequest
from tokonomics.questions.scenario_text import command_of
from tokonomics.questions.verbs import find_verb
from tokonomics.sizing.load import Load
from tokonomics.traffic.arrivals import DemandSwing, parse_arrivals, swing_of_curve, swing_of_log

_ITS_OWN = {"model", "demand", "rate", "terms", "hours"}  # inputs of a fleet that a plan does not say in the same way


def swing_of(request: PlanRequest, load: Load) -> DemandSwing | None:
    """Return how the traffic changes over a day or a week; None if it is even, or a log is not at its own pace."""
    if request.arrivals is not None:
        return swing_of_curve(parse_arrivals(request.arrivals), load.workload.rate)
    paced = request.rate is not None or request.tokens_per_month is not None or request.offline
    return None if request.trace is None or paced else swing_of_log(load.trace)


def hours_of(request: PlanRequest, study: Study) -> ReplicasByHour | None:
    """Return what each hour of a request's traffic needs of the pick."""
    return replicas_by_hour(study, swing_of(request, study.question.load))


def fleet_command(request: PlanRequest, swing: DemandSwing | None) -> str | None:
    """Return the command that buys the same traffic by the hour; None if a fleet cannot be asked for it."""
    if request.classes or request.sessions or swing is None:
        return None
    shared = {
        name: value
        for name, value in request.given().items()
        if name in FleetRequest.model_fields and name not in _ITS_OWN
    }
    if request.arrivals is not None:
        kind, _, options = request.arrivals.partition(",")
        rate = f"{kind.partition(':')[0].strip()}:{swing.mean_rate:.6g}"
        shared["demand"] = f"{rate},{options}" if options else rate
    return command_of(find_verb("fleet"), FleetRequest.checked(shared | {"model": request.model[0]}))
