"""How much a deployment holds under an SLO, by simulation: the highest rate, and the replicas a trace needs.

The same requests, repeated until there are enough of them and their sessions bring all of the load, arrive faster and
faster until an SLO is missed or the replica falls behind; between the last rate that held and the first that did not,
the search halves the gap until it is 1 %. Numbers of replicas are searched likewise, from a guess
(``fewest_that_hold``).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.errors import BadInput, TokonomicsError, option
from tokonomics.serving.class_outcome import class_breaks
from tokonomics.serving.counted import falls_behind
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, Rows
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.stretch import session_starts_s, stretch_of
from tokonomics.traffic.trace import Counts, Trace
from tokonomics.types import Noun
from tokonomics.units import percent, seconds, seconds_apart

_CLOSE_ENOUGH = 1.01
_UNANSWERED_SHARE = 0.01  # of the requests that may be given up: as rare as above a p99
_FURTHEST = 2.0**20  # times or parts of the guess: a search that goes further has not understood the traffic
_MOST_REQUESTS = 500_000  # of one simulation: a few seconds of it
MOST_REPLICAS = 4096  # more than anyone runs of one kind; a search that goes further has not understood the traffic
_APART_S = 1e5  # more than a day between two requests: longer than any answer takes
_PATIENCE = 4  # sizes of a fleet tried in vain before it is asked whether any will do

BEHIND = "it falls behind: more requests arrive than it finishes"


class Trial(Noun):
    """One simulation of the search."""

    rate: NonNegativeFloat
    replicas: PositiveInt
    breaks: str | None
    """What gives way; None when it holds."""
    outcome: Outcome

    @property
    def holds(self) -> bool:
        return self.breaks is None


class HighestRate(Noun):
    """The most requests a second that meet the SLOs."""

    rate: PositiveFloat
    at_most: PositiveFloat
    """The lowest rate tried that did not hold."""
    breaks: str = Field(alias="broken")
    """What gives way there."""
    sessions_per_s: float | None = None
    """That begin at that rate, where requests wait for each other."""
    outcome: Outcome
    trials: tuple[Trial, ...]


class ReplicasNeeded(Noun):
    """The fewest replicas that meet the SLOs."""

    replicas: PositiveInt
    outcome: Outcome
    trials: tuple[Trial, ...]


class NeverHolds(TokonomicsError):
    """Not even the lightest load, or the largest fleet, meets the SLO."""


def highest_rate(serve: Callable[[Trace], Simulation], trace: Trace, slos: Sequence[Slo], guess: float) -> HighestRate:
    """Search from a guess of the rate; ``serve`` simulates a trace on what is being measured."""
    if trace.rate <= 0:
        raise BadInput("all requests arrive at once: there is no rate to raise", where=trace.source)
    trace = trace.repeated(math.ceil(ENOUGH_REQUESTS / len(trace)))
    trials: dict[float, Trial] = {}

    def holds(rate: float) -> bool:
        simulation = serve(_at(rate, trace))
        result, fleet = outcome(simulation, slos), simulation.fleet
        breaks, replicas = what_breaks(simulation, result), fleet.replicas + fleet.prefill_replicas
        trials[rate] = Trial(rate=rate, replicas=replicas, breaks=breaks, outcome=result)
        return breaks is None

    low = high = guess
    if holds(guess):
        while holds(high := high * 2):
            low = high
            if high > guess * _FURTHEST:
                raise NeverHolds(f"nothing breaks, not even at {high:.2g} requests a second: is there any work to do?")
    else:
        while not holds(low := low / 2):
            high = low
            if low < guess / _FURTHEST:
                last = trials[low]
                raise NeverHolds(f"even next to no load is too much: {last.breaks}", fix=_nearest(last.outcome))
    while high / low > _CLOSE_ENOUGH:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return HighestRate(
        rate=low,
        at_most=high,
        breaks=trials[high].breaks or "",
        sessions_per_s=None if trace.turns is None else low * trace.turns.sessions / len(trace),
        outcome=trials[low].outcome,
        trials=tuple(trials[rate] for rate in sorted(trials)),
    )


def _at(rate: float, trace: Trace) -> Trace:
    """The trace at that rate, again and again until there is a stretch in which all of its load is offered."""
    sooner = trace.faster(rate / trace.rate)
    times = min(math.ceil(stretch_of(sooner).times_longer), _MOST_REQUESTS // len(trace))
    return trace.repeated(times).faster(rate / trace.rate) if times > 1 else sooner


def replicas_needed(
    serve_on: Callable[[int], Simulation],
    slos: Sequence[Slo],
    also_breaks: Callable[[Simulation], str | None] = lambda simulation: None,
    start: int = 1,
    hopeless: Callable[[], bool] = lambda: False,
) -> ReplicasNeeded:
    """Search the number of replicas from ``start``; ``serve_on`` simulates the trace on so many.

    ``also_breaks`` asks for more than the SLOs; ``hopeless`` tells, after a few failures, whether any will do.
    """
    trials: dict[int, Trial] = {}

    def holds(replicas: int) -> bool:
        if replicas not in trials:
            simulation = serve_on(replicas)
            result = outcome(simulation, slos)
            breaks = what_breaks(simulation, result) or also_breaks(simulation)
            trials[replicas] = Trial(rate=simulation.trace.rate, replicas=replicas, breaks=breaks, outcome=result)
        return trials[replicas].holds

    found = fewest_that_hold(holds, start, step=start, hopeless=hopeless, patience=_PATIENCE)
    in_order = tuple(trials[replicas] for replicas in sorted(trials))
    if found is None:
        last = in_order[-1]
        raise NeverHolds(f"not even {last.replicas:,} replicas are enough: {last.breaks}", fix=_nearest(last.outcome))
    return ReplicasNeeded(replicas=found, outcome=trials[found].outcome, trials=in_order)


def fewest_that_hold(
    holds: Callable[[int], bool],
    start: int,
    *,
    least: int = 1,
    most: int = MOST_REPLICAS,
    step: int = 1,
    sink: int = 1,
    hopeless: Callable[[], bool] = lambda: False,
    patience: int = 2,
) -> int | None:
    """The fewest replicas from ``least`` to ``most`` that hold; None where ``most`` do not, or none can.

    Up from ``start`` in steps that double, or down in steps that grow ``sink`` times; then halving. It takes more for
    better: where that is not so, what it finds holds and one fewer does not, but a still smaller number might. Once
    ``patience`` numbers have failed, ``hopeless`` is asked whether all will. ``holds`` must remember what it was asked.
    """
    low, high, down, failures = least - 1, start, 1, 0
    if holds(high):
        while high > least and holds(max(least, high - down)):
            high, down = max(least, high - down), down * sink
        low = max(low, high - down)
    while not holds(high):
        failures += 1
        if (failures >= patience and hopeless()) or high >= most:
            return None
        low, high, step = high, min(high + step, most), step * 2
    return halved(holds, low, high)


def halved(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The fewest above ``low``, which does not hold, up to ``high``, which does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


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
    return BEHIND if falls_behind(simulation) else None


def sure_to_miss(slos: Sequence[Slo], trace: Trace, fetches: bool = False) -> Callable[[Rows], bool]:
    """Whether, of the requests of a trace that count, more were late by now than an SLO on a percentile allows.

    A simulation that is ``is_settled`` by it misses that SLO, however the others fare: no more requests count than the
    trace has. Jobs are judged likewise: by their answers so far, as none gets shorter. With ``fetches`` requests join
    in another order and later than they are sent: which of them count is not told, nor whose job they are of.
    """
    stretch, turns = stretch_of(trace), None if fetches else trace.turns
    ranked = [slo for slo in slos if slo.statistic != "mean" and not (fetches and stretch.ramp_s)]
    allowed = [(slo, late_allowed(slo, len(trace))) for slo in ranked if slo.latency in _TOLD]
    jobs = [slo for slo in ranked if slo.latency is Latency.job]
    sessions = (
        None if turns is None else np.where(stretch.counts(session_starts_s(turns, trace.arrival_s)), turns.session, -1)
    )

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
        counted = done & stretch.counts(came_s)
        late = [(took_s[slo.latency] > slo.seconds) & counted for slo, _ in allowed]
        sums = [count + int(np.count_nonzero(some)) for count, some in zip(before, late, strict=True)]
        last = [int(np.count_nonzero(some[: told - judged])) for some in late]
        before = [count + more for count, more in zip(before, last, strict=True)]
        judged, told = told, judged + (len(done) if done.all() else int(done.argmin()))
        return any(count > most for count, (_, most) in zip(sums, allowed, strict=True))

    return misses


def _jobs_miss(slos: Sequence[Slo], rows: Rows, sessions: Counts) -> bool:
    """Whether more jobs took too long by now than an SLO allows of those that count; -1: the session does not."""
    done = np.flatnonzero((rows["status"] == DONE) & (sessions[: len(rows)] >= 0))
    first_s, last_s = (np.full(int(sessions.max()) + 1, edge) for edge in (np.inf, -np.inf))
    np.minimum.at(first_s, sessions[done], rows["arrival_s"][done])
    np.maximum.at(last_s, sessions[done], rows["finish_s"][done])
    took_s, count = last_s - first_s, len(np.unique(sessions[sessions >= 0]))
    return any(np.count_nonzero(took_s > slo.seconds) > late_allowed(slo, count) for slo in slos)


_TOLD = (Latency.ttft, Latency.tpot, Latency.e2e)  # by the requests themselves


def late_allowed(slo: Slo, requests: float) -> float:
    """Requests that may be late of so many, and one for the way in which a percentile is rounded."""
    return (1 - float(slo.statistic[1:]) / 100) * requests + 1


def _nearest(result: Outcome) -> str:
    reached = ", ".join(f"{slo.slo} {seconds(slo.delivered_s)}" for slo in result.slo if slo.delivered_s is not None)
    return f"What it reaches: {reached}." if reached else f"Choose a larger GPU or more of them ({option('tp')})."
