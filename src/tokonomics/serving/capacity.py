"""Whether a simulated fleet holds: every SLO is met, and it keeps up with what arrives.

A replica keeps up when, after the first fifth of the time, it finishes as many requests as arrive (97 % of them: with
20,000 requests, chance alone makes less than 1 % of difference), and when no backlog grows: at the end no more than 1 %
of all requests wait for a place, or 2 % where some wait half of the time anyway.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tokonomics.serving.class_outcome import class_breaks
from tokonomics.serving.outcome import Outcome
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, REFUSED, Rows
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Counts, Trace
from tokonomics.units import percent, seconds, seconds_apart

_WARM_UP = 0.2
_KEEPS_UP = 0.97
_UNANSWERED_SHARE = _WAITING_SHARE = 0.01
"""Of the requests: that may be given up, or wait at the end beyond what waits half of the time. As rare as above a p99.
What waits half of the time counts up to the same share: a fleet where more do is full, growing or not."""
_FEW = 10  # requests that may wait in any case: in a short log 1 % is less than what comes in one burst
_AT_THE_END = 0.1
"""Of the time, in which a backlog must last: one burst at the last moment is none. And of the requests: where so many
have not begun when the last arrives, no log is long enough to call it a wait."""
_MOMENTS = 400  # at which the waiting are counted: forty in the last tenth
MOST_REPLICAS = 4096  # more than anyone runs of one kind; a search that goes further has not understood the traffic
_APART_S = 1e5  # more than a day between two requests: longer than any answer takes

BEHIND = "it falls behind: more requests arrive than it finishes"


def apart_in_time(trace: Trace, most: int) -> Trace:
    """The requests, or an even part of more than ``most``, so far apart that none is served beside another.

    What breaks for these breaks on any number of replicas.
    """
    few = trace.take(np.linspace(0, len(trace) - 1, min(len(trace), most)).astype(np.intp))
    return replace(few, arrival_s=np.arange(len(few), dtype=np.float64) * _APART_S, turns=None)


def what_breaks(simulation: Simulation, result: Outcome) -> str | None:
    """What gives way in a simulation, an SLO first, in words; None when it holds."""
    if result.completed == 0:
        return "no request can be answered: all are longer than the context or the memory, or were given up"
    unanswered = (result.timed_out + result.unserved) / result.requests
    missed = [slo for slo in result.slo if not slo.met]
    if never := [slo for slo in missed if slo.delivered_s is None]:
        if never[0].slo.startswith(Latency.job) and result.sessions:
            return (
                f"{never[0].slo} is missed: {percent(result.sessions.failed / result.sessions.jobs)} of the jobs fail"
            )
        return f"{never[0].slo} is missed: {percent(unanswered)} of the requests are never answered"
    if missed:
        worst = max(missed, key=lambda slo: (slo.delivered_s or 0.0) / slo.objective_s)
        late = seconds_apart(worst.delivered_s or 0.0, worst.objective_s)
        return f"{worst.slo} is {late}; the SLO is {seconds(worst.objective_s)}"
    if result.timed_out + result.unserved > _UNANSWERED_SHARE * result.requests:
        return f"{percent(unanswered)} of the requests are given up before they are answered"
    if broken := class_breaks(simulation):
        return broken
    return BEHIND if _finishes_too_few(simulation) or _backlog_grows(simulation) else None


def sure_to_miss(slos: Sequence[Slo], requests: float, sessions: Counts | None = None) -> Callable[[Rows], bool]:
    """Whether, of so many requests in all, more were late by now than an SLO on a percentile allows of all of them.

    A simulation that is ``is_settled`` by it misses that SLO, however the others fare. With the session of each
    request, jobs are judged likewise: by their answers so far, as none gets shorter.
    """
    ranked = [slo for slo in slos if slo.statistic != "mean"]
    allowed = [(slo, late_allowed(slo, requests)) for slo in ranked if slo.latency in _TOLD]
    jobs = [slo for slo in ranked if slo.latency is Latency.job] if sessions is not None else []

    # Those before ``told`` had all ended a look ago: clients have heard of them since, and they are judged a last time.
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
        late = [(took_s[slo.latency] > slo.seconds) & done for slo, _ in allowed]
        sums = [count + int(np.count_nonzero(some)) for count, some in zip(before, late, strict=True)]
        last = [int(np.count_nonzero(some[: told - judged])) for some in late]
        before = [count + more for count, more in zip(before, last, strict=True)]
        judged, told = told, judged + (len(done) if done.all() else int(done.argmin()))
        return any(count > most for count, (_, most) in zip(sums, allowed, strict=True))

    return misses


def _jobs_miss(slos: Sequence[Slo], rows: Rows, sessions: Counts) -> bool:
    """Whether more jobs took too long by now than an SLO allows of all of them."""
    done = np.flatnonzero(rows["status"] == DONE)
    count = int(sessions.max()) + 1
    first_s, last_s = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first_s, sessions[done], rows["arrival_s"][done])
    np.maximum.at(last_s, sessions[done], rows["finish_s"][done])
    took_s = last_s - first_s
    return any(np.count_nonzero(took_s > slo.seconds) > late_allowed(slo, count) for slo in slos)


_TOLD = (Latency.ttft, Latency.tpot, Latency.e2e)  # by the requests themselves


def late_allowed(slo: Slo, requests: float) -> float:
    """Requests that may be late of so many, and one for the way in which a percentile is rounded."""
    return (1 - float(slo.statistic[1:]) / 100) * requests + 1


def _finishes_too_few(simulation: Simulation) -> bool:
    """Of what arrives after the first fifth; a short log does not tell."""
    served, arrival_s = simulation.served, simulation.trace.arrival_s
    if len(arrival_s) < ENOUGH_REQUESTS:
        return False
    last, accepted = _last_start_s(simulation), served.status != REFUSED
    warm = float(arrival_s[0]) + _WARM_UP * (last - float(arrival_s[0]))
    offered = int(np.count_nonzero(accepted & (arrival_s > warm) & (arrival_s <= last)))
    finished = int(np.count_nonzero((served.finish_s > warm) & (served.finish_s <= last) & accepted))
    return finished < _KEEPS_UP * offered


def _backlog_grows(simulation: Simulation) -> bool:
    """More requests wait at the end, and all through the last tenth of the time, than do half of the time.

    What waits at the last arrival alone is no measure: on busy replicas some always do, and one more or less of them
    would decide about a replica. In a closed loop sessions pile up, each with a request that waits: they are counted.
    """
    trace, served = simulation.trace, simulation.served
    first, last = float(trace.arrival_s[0]), _last_start_s(simulation)
    requests = trace.turns.sessions if simulation.closed and trace.turns is not None else len(trace)
    allowed = max(_FEW, _WAITING_SHARE * requests)
    at_last = int(np.count_nonzero((served.start_s > last) & (trace.arrival_s <= last)))
    if at_last <= allowed:
        return False
    if at_last > max(_FEW, _AT_THE_END * requests):
        return True
    # Who hangs up unserved waits until then.
    began_s = np.where(np.isnan(served.start_s), served.finish_s, served.start_s)
    known = ~np.isnan(began_s)
    moments = np.linspace(first + _WARM_UP * (last - first), last, _MOMENTS)
    came = np.searchsorted(trace.arrival_s[known], moments, side="right")
    waiting = came - np.searchsorted(np.sort(began_s[known]), moments, side="right")
    lately = float(waiting[moments >= last - _AT_THE_END * (last - first)].mean())
    return min(at_last, lately) > allowed + min(allowed, float(np.median(waiting)))


def _last_start_s(simulation: Simulation) -> float:
    """When the last request is sent; in a closed loop, the last that waits for nobody: then the load ends."""
    trace = simulation.trace
    if simulation.closed and trace.turns is not None:
        return float(trace.arrival_s[trace.turns.roots].max())
    return float(trace.arrival_s[-1])
