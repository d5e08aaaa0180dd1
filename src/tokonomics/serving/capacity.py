"""Decide whether a simulated fleet holds: every SLO is met and it keeps up with arrivals (``serving.counted``)."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tokonomics.serving.class_outcome import class_breaks
from tokonomics.serving.counted import falls_behind
from tokonomics.serving.outcome import Outcome
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, Rows
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Counts, Trace
from tokonomics.traffic.workload import session_starts_s, stretch_of
from tokonomics.units import percent, seconds, seconds_apart

_UNANSWERED_SHARE = 0.01  # of the requests that may be given up: as rare as above a p99
MOST_REPLICAS = 4096  # more than anyone runs of one kind; a search that goes further has not understood the traffic
_APART_S = 1e5  # more than a day between two requests: longer than any answer takes

BEHIND = "it falls behind: more requests arrive than it finishes"


def apart_in_time(trace: Trace, most: int) -> Trace:
    """Space at most ``most`` requests so far apart that none is served beside another.

    An SLO that these miss is missed on any number of replicas.
    """
    few = trace.take(np.linspace(0, len(trace) - 1, min(len(trace), most)).astype(np.intp))
    return replace(few, arrival_s=np.arange(len(few), dtype=np.float64) * _APART_S, turns=None)


def what_breaks(simulation: Simulation, result: Outcome) -> str | None:
    """Say what breaks in a simulation, a missed SLO first; None if it holds."""
    if result.completed == 0:
        return "no request can be answered: all are longer than the context or the memory, or were given up"
    missed = [slo for slo in result.slo if not slo.met]
    if never := [slo for slo in missed if slo.delivered_s is None]:
        return f"{never[0].slo} is missed: {result.never_answered(never[0])}"
    if missed:
        worst = max(missed, key=lambda slo: (slo.delivered_s or 0.0) / slo.objective_s)
        late = seconds_apart(worst.delivered_s or 0.0, worst.objective_s)
        return f"{worst.slo} is {late}; the SLO is {seconds(worst.objective_s)}"
    if (unanswered := result.timed_out + result.unserved) > _UNANSWERED_SHARE * result.requests:
        return f"{percent(unanswered / result.requests)} of the requests are given up before they are answered"
    if broken := class_breaks(simulation):
        return broken
    return BEHIND if falls_behind(simulation) else None


def sure_to_miss(
    slos: Sequence[Slo], trace: Trace, requests: int | None = None, times: float = 1.0
) -> Callable[[Rows], bool]:
    """Return a test whether, by now, more requests are late than a percentile SLO allows of the whole trace.

    A simulation that it stops misses that SLO whatever the other requests do. Jobs are judged by their answers so far,
    since no job gets shorter. If the trace is a part of so many ``requests``, what these allow counts; ``times`` asks
    for more late ones than that.
    """
    stretch, turns = stretch_of(trace), trace.turns
    ranked = [slo for slo in slos if slo.statistic != "mean"]
    allowed = [(slo, times * late_allowed(slo, requests or len(trace))) for slo in ranked if slo.latency in _TOLD]
    jobs = [slo for slo in ranked if slo.latency is Latency.job]
    sessions = (
        None if turns is None else np.where(stretch.counts(session_starts_s(turns, trace.arrival_s)), turns.session, -1)
    )

    # All requests before ``told`` had ended at the last look; their clients know by now, so they are judged once more.
    judged, told, before = 0, 0, [0] * len(allowed)

    def misses(rows: Rows) -> bool:
        nonlocal judged, told, before
        if jobs and sessions is not None and _jobs_miss(jobs, rows, sessions):
            return True
        rest = rows[judged:]
        done = rest["status"] == DONE
        came_s, first_s, end_s, tokens = (
            rest[name] for name in ("arrival_s", "first_token_s", "finish_s", "output_tokens")
        )
        took_s = {
            Latency.ttft: first_s - came_s,
            Latency.tpot: np.where(tokens > 1, (end_s - first_s) / np.maximum(tokens - 1, 1), 0.0),
            Latency.e2e: end_s - came_s,
        }
        counted = done & stretch.counts(came_s)
        late = [(took_s[slo.latency] > slo.seconds) & counted for slo, _ in allowed]
        sums = [count + int(np.count_nonzero(some)) for count, some in zip(before, late, strict=True)]
        last = [int(np.count_nonzero(some[: told - judged])) for some in late]
        before = [count + more for count, more in zip(before, last, strict=True)]
        judged, told = told, judged + (len(done) if done.all() else int(done.argmin()))
        return any(count > most for count, (_, most) in zip(sums, allowed, strict=True))

    return misses


def _jobs_miss(slos: Sequence[Slo], rows: Rows, sessions: Counts) -> bool:
    """Return whether, by now, more jobs are late than an SLO allows; session -1 does not count."""
    done = np.flatnonzero((rows["status"] == DONE) & (sessions[: len(rows)] >= 0))
    first_s, last_s = (np.full(int(sessions.max()) + 1, edge) for edge in (np.inf, -np.inf))
    np.minimum.at(first_s, sessions[done], rows["arrival_s"][done])
    np.maximum.at(last_s, sessions[done], rows["finish_s"][done])
    took_s, count = last_s - first_s, len(np.unique(sessions[sessions >= 0]))
    return any(np.count_nonzero(took_s > slo.seconds) > late_allowed(slo, count) for slo in slos)


_TOLD = (Latency.ttft, Latency.tpot, Latency.e2e)  # judged by single requests


def late_allowed(slo: Slo, requests: float) -> float:
    """Return how many requests may be late, plus one for the rounding of a percentile."""
    return (1 - float(slo.statistic[1:]) / 100) * requests + 1
