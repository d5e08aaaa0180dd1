"""What a simulation came to for each class of service: latencies, what was turned away, whether its targets were met.

A class is judged by its own requests alone, of those sent while the load was offered. Those that were given up, or
turned away, count as answers that never came; where a class says what share may be turned away, more than that is a
miss and what is turned away within it counts for nothing.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.errors import shorten
from tokonomics.serving.outcome import SloOutcome, judged, request_latencies, within_slos
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.spread import Spread, spread
from tokonomics.serving.state import DONE, REFUSED, SHED
from tokonomics.traffic.slo import ServiceClass, Slo
from tokonomics.traffic.tenants import by_class
from tokonomics.types import Noun
from tokonomics.units import percent, seconds, seconds_apart

UNANSWERED_SHARE = 0.01
"""Of a class without targets: requests that may be given up or turned away. As rare as above a p99."""


class ClassOutcome(Noun):
    """One class of service in figures."""

    name: str
    priority: int
    requests: NonNegativeInt
    completed: NonNegativeInt
    shed: NonNegativeInt
    """Turned away: too many waited, or it had waited too long."""
    shed_share: NonNegativeFloat
    input_tokens: NonNegativeInt
    """Of completed requests."""
    output_tokens: NonNegativeInt
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    queue_s: Spread
    slo: tuple[SloOutcome, ...]
    within: float | None
    """Share of its requests answered within every target; None without targets."""
    breaks: str | None
    """What it is owed and does not get, in words; None when it gets all of it."""


def class_outcomes(simulation: Simulation) -> tuple[ClassOutcome, ...]:
    """Every class of the trace, in the order given; none where all requests are alike."""
    trace, served = simulation.trace, simulation.served
    if trace.service is None:
        return ()
    latencies = request_latencies(simulation)
    found = []
    for place, at in by_class(trace).items():
        one, whole = trace.classes[place], served.status[at]
        answered, judged_at = at[whole == DONE], at[simulation.counts[at]]
        own, status = {name: values[judged_at] for name, values in latencies.items()}, served.status[judged_at]
        done, shed = status == DONE, int(np.count_nonzero(status == SHED))
        accepted = int(np.count_nonzero(status != REFUSED))
        forgiven = shed if one.shed is not None else 0
        unanswered = accepted - int(done.sum()) - forgiven
        slos = tuple(judged(slo, own[slo.latency][done], unanswered) for slo in one.slos) if accepted else ()
        found.append(
            ClassOutcome(
                name=one.name,
                priority=one.priority,
                requests=len(at),
                completed=len(answered),
                shed=int(np.count_nonzero(whole == SHED)),
                shed_share=shed / len(judged_at) if len(judged_at) else 0.0,
                input_tokens=int(trace.input_tokens[answered].sum(dtype=np.int64)),
                output_tokens=int(trace.output_tokens[answered].sum(dtype=np.int64)),
                **{f"{name}_s": spread(own[name][done]) for name in ("ttft", "tpot", "e2e", "queue")},
                slo=slos,
                within=float(within_slos(status, own, one.slos).mean()) if one.slos and len(judged_at) else None,
                breaks=_breaks(one, slos, shed, unanswered, accepted),
            )
        )
    return tuple(found)


def class_breaks(simulation: Simulation) -> str | None:
    """What the first class that does not get what it is owed misses, in words."""
    return next((one.breaks for one in class_outcomes(simulation) if one.breaks), None)


def within_own_slos(simulation: Simulation, slos: Sequence[Slo] = ()) -> NDArray[np.bool_]:
    """Requests that were answered within every target of their class; of ``slos`` where there are no classes."""
    trace, status, latencies = simulation.trace, simulation.served.status, request_latencies(simulation)
    if trace.service is None:
        return within_slos(status, latencies, slos)
    within = np.zeros(len(trace), np.bool_)
    for place, at in by_class(trace).items():
        own = {name: values[at] for name, values in latencies.items()}
        within[at] = within_slos(status[at], own, trace.classes[place].slos)
    return within


def _breaks(one: ServiceClass, slos: Sequence[SloOutcome], shed: int, unanswered: int, accepted: int) -> str | None:
    name = shorten(one.name)
    if not accepted:
        return None
    if one.shed is not None and shed > one.shed * accepted:
        return f"{percent(shed / accepted)} of {name} is turned away; {percent(one.shed)} may be"
    missed = [slo for slo in slos if not slo.met]
    if never := [slo for slo in missed if slo.delivered_s is None]:
        gone = f"{percent(unanswered / accepted)} of its requests are turned away or given up"
        return f"{never[0].slo} of {name} is missed: {gone}"
    if missed:
        worst = max(missed, key=lambda slo: (slo.delivered_s or 0.0) / slo.objective_s)
        late = seconds_apart(worst.delivered_s or 0.0, worst.objective_s)
        return f"{worst.slo} of {name} is {late}; the SLO is {seconds(worst.objective_s)}"
    if unanswered > UNANSWERED_SHARE * accepted:
        return f"{percent(unanswered / accepted)} of {name} is turned away or given up"
    return None
