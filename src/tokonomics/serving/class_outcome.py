"""Sum up a simulation for each class of service: latencies, requests turned away, and whether targets were met.

A class is judged by its own requests sent while the full load was offered. Requests given up or turned away count as
never answered. If a class allows a share to be turned away, that share is forgiven and more is a miss.

Tenants are judged likewise: what each tenant's users see, and whether every tenant's SLOs are met. For a reasoning
model, ``FirstAnswer`` says when the answer after its thinking begins and what its tokens cost, thinking included.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.errors import shorten
from tokonomics.serving.outcome import SloOutcome, judged, request_latencies, within_slos
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, REFUSED, SHED
from tokonomics.traffic.slo import Latency, ServiceClass, Slo
from tokonomics.traffic.tenants import by_class, by_tenant
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import Spread, Thinking, spread
from tokonomics.types import Noun
from tokonomics.units import percent, seconds, seconds_apart

UNANSWERED_SHARE = 0.01  # share of a class without targets that may be given up or turned away: as rare as above a p99


class ClassOutcome(Noun):
    """One class of service in figures."""

    name: str
    priority: int
    requests: NonNegativeInt
    completed: NonNegativeInt
    shed: NonNegativeInt  # turned away: too many waited, or it had waited too long
    shed_share: NonNegativeFloat
    input_tokens: NonNegativeInt  # of completed requests
    output_tokens: NonNegativeInt
    ttft_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    queue_s: Spread
    slo: tuple[SloOutcome, ...]
    within: float | None  # share of its requests answered within every target; None without targets
    breaks: str | None  # text: the target that is missed; None if all are met


def class_outcomes(simulation: Simulation) -> tuple[ClassOutcome, ...]:
    """Return the outcome of every class of the trace, in order; empty if the trace has no classes."""
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
    """Say what the first class that misses its targets misses."""
    return next((one.breaks for one in class_outcomes(simulation) if one.breaks), None)


def within_own_slos(simulation: Simulation, slos: Sequence[Slo] = ()) -> NDArray[np.bool_]:
    """Return which requests were answered within every target of their class, or within ``slos`` without classes."""
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


class TenantLatency(Noun):
    """What one tenant's users see."""

    ttft_p99_s: float | None
    tpot_p99_s: float | None
    within: float | None  # share of its requests answered within every SLO; None without SLOs


def tenant_breaks(simulation: Simulation, slos: Sequence[Slo]) -> str | None:
    """Say which SLO is missed for which tenant."""
    latencies, served = request_latencies(simulation), simulation.served
    for slo, name, at in owed_to_tenants(simulation.trace, slos):
        asked = at[~np.isin(served.status[at], (REFUSED, SHED))]  # shed requests are judged by their class
        values = latencies[slo.latency][asked]
        done = served.status[asked] == DONE
        found = judged(slo, values[done], int(np.count_nonzero(~done)))
        if len(asked) and not found.met:
            took = "never" if found.delivered_s is None else seconds(found.delivered_s)
            return f"{slo} of {shorten(name)} is {took}; the SLO is {seconds(slo.seconds)}"
    return None


def owed_to_tenants(trace: Trace, slos: Sequence[Slo]) -> Iterator[tuple[Slo, str, NDArray[np.intp]]]:
    """Yield each SLO with every tenant's name and the places of its requests.

    Tenants with too few requests for the percentile (fewer than 100 for a p99) are judged together: the p99 of seven
    requests is just the slowest of them.
    """
    places = by_tenant(trace)
    for slo, whose in _owed(trace, slos, places):
        least = 1 if slo.statistic == "mean" else math.ceil(100 / (100 - float(slo.statistic[1:])))
        yield from ((slo, trace.tenants[tenant], places[tenant]) for tenant in whose if len(places[tenant]) >= least)
        if small := [places[tenant] for tenant in whose if len(places[tenant]) < least]:
            yield slo, "the smaller tenants", np.concatenate(small)


def _owed(trace: Trace, slos: Sequence[Slo], tenants: Iterable[int]) -> Iterator[tuple[Slo, list[int]]]:
    """Yield each SLO with the tenants it applies to: all of them, or those of the class that has it.

    A tenant that several classes share (``share=``) is judged only through its classes.
    """
    if trace.service is None or trace.tenant is None:
        yield from ((slo, list(tenants)) for slo in slos)
        return
    mine = {tenant: np.unique(trace.service[trace.tenant == tenant]).tolist() for tenant in tenants}
    for place, one in enumerate(trace.classes):
        yield from ((slo, [tenant for tenant, classes in mine.items() if classes == [place]]) for slo in one.slos)


def latency_reader(simulation: Simulation, slos: Sequence[Slo]) -> Callable[[Sequence[int]], TenantLatency]:
    """Return a function that says what the users of some tenants see."""
    latencies, done = request_latencies(simulation), simulation.served.status == DONE
    places = by_tenant(simulation.trace)
    within = within_own_slos(simulation, slos)
    has_slos = bool(slos) or any(one.slos for one in simulation.trace.classes)

    def read(tenants: Sequence[int]) -> TenantLatency:
        at = np.concatenate([places[tenant] for tenant in tenants])
        answered = at[done[at]]
        return TenantLatency(
            ttft_p99_s=spread(latencies["ttft"][answered]).p99,
            tpot_p99_s=spread(latencies["tpot"][answered]).p99,
            within=float(within[at].mean()) if has_slos else None,
        )

    return read


class FirstAnswer(Noun):
    """The output of a reasoning model, split into thinking and answer."""

    share: NonNegativeFloat  # share of all output tokens that are thinking
    thinking_tokens: NonNegativeFloat  # mean per request
    assumed: bool  # whether the share comes from published traces, not from the user
    first_answer_s: Spread
    """From a request's arrival to the first token after its thinking; only the mean if it was not simulated."""
    usd_per_mtok_answer: NonNegativeFloat | None
    """Price of a million answer tokens with thinking charged to them; None without a price or an answer."""


def simulated(simulation: Simulation, thinking: Thinking, usd_per_mtok_output: float | None) -> FirstAnswer:
    """Return when answers begin in a simulation: TTFT plus a step for each thinking token."""
    latencies, done = request_latencies(simulation), (simulation.served.status == DONE) & simulation.counts
    before = thinking.thinking_tokens(simulation.trace.output_tokens)
    later = np.where(before > 0, before * np.nan_to_num(latencies[Latency.tpot]), 0.0)
    return _first_answer(
        simulation.trace, thinking, spread((latencies[Latency.ttft] + later)[done]), usd_per_mtok_output
    )


def in_the_mean(
    trace: Trace, thinking: Thinking, ttft_s: float | None, tpot_s: float | None, usd_per_mtok_output: float | None
) -> FirstAnswer:
    """Return when answers begin by the mean TTFT and TPOT."""
    before = float(thinking.thinking_tokens(trace.output_tokens).mean())
    mean = None if ttft_s is None or tpot_s is None else ttft_s + before * tpot_s
    found = Spread(p50=None, p90=None, p95=None, p99=None, mean=mean)
    return _first_answer(trace, thinking, found, usd_per_mtok_output)


def _first_answer(trace: Trace, thinking: Thinking, times: Spread, usd_per_mtok_output: float | None) -> FirstAnswer:
    before, outputs = thinking.thinking_tokens(trace.output_tokens), trace.output_tokens
    share = float(before.sum() / max(1, int(outputs.sum(dtype=np.int64))))
    priced = usd_per_mtok_output is not None and share < 1
    return FirstAnswer(
        share=share,
        thinking_tokens=float(before.mean()),
        assumed=thinking.assumed,
        first_answer_s=times,
        usd_per_mtok_answer=usd_per_mtok_output / (1 - share) if priced and usd_per_mtok_output is not None else None,
    )
