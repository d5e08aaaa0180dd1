"""The latency targets and classes of service that were asked for, and whether the traffic can have them."""

from collections.abc import Sequence

from tokonomics.errors import BadInput, option
from tokonomics.questions.inputs import Classed, Objectives, PlanTraffic, TrafficShape
from tokonomics.traffic.slo import Latency, ServiceClass, Slo, parse_classes, parse_slos
from tokonomics.traffic.trace import Trace


def targets_of(request: Objectives) -> tuple[Slo, ...]:
    """The latency targets of all requests; none offline, nor where classes have their own."""
    if isinstance(request, PlanTraffic) and request.offline and request.slo:
        fix = f"Leave out {option('slo')} or {option('offline')}."
        raise BadInput("has no latency targets", field="offline", fix=fix)
    if isinstance(request, Classed) and request.classes:
        return ()
    slos = parse_slos(request.slo) if request.slo is not None else ()
    if any(slo.latency is Latency.job for slo in slos) and not isinstance(request, TrafficShape):
        raise BadInput("job times are of sessions that are simulated", field="slo", fix="Use ttft, tpot or e2e here.")
    return slos


def check_jobs(slos: Sequence[Slo], trace: Trace) -> None:
    """Refuse a target for jobs where the traffic has none."""
    if any(slo.latency is Latency.job for slo in slos) and trace.turns is None:
        fix = f"Give {option('sessions', 'agent')}, or a log with sessions."
        raise BadInput("has a target for jobs, and these requests are of no session", field="slo", fix=fix)


def check_pauses(slos: Sequence[Slo], trace: Trace) -> None:
    """Refuse a target for jobs that tools and people alone break, before a search for hardware that meets it."""
    if trace.turns is None:
        return
    from tokonomics.sizing.screen import late_by_pauses  # With the simulator: only where sessions are.

    if late := late_by_pauses(trace, slos):
        raise BadInput(late.reason, field="slo", fix=late.what_to_do)


def classes_of(request: Objectives) -> tuple[ServiceClass, ...]:
    """The classes of service that were asked for; those that name no targets have those of all."""
    if not isinstance(request, Classed) or not request.classes:
        return ()
    if isinstance(request, PlanTraffic) and request.offline:
        raise BadInput("a batch has no classes", field="classes", fix=f"Leave out {option('offline')}.")
    return parse_classes(request.classes, parse_slos(request.slo) if request.slo is not None else ())
