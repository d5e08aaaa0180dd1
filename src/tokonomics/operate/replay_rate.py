"""Find the highest rate at which a replay of the same requests meets its targets, simulated or on an engine.

What is played is the user's requests, faster or slower. A load is **late** by the worst of its targets: what was
delivered over what was promised, so that at most 1 holds. Both searches step from a guess until one rate holds and one
does not, then halve the gap between them; the rate in between at which the lateness would be 1 is read off the line
through both, in logarithms. A simulation goes to 1 %; on an engine, where a load takes a minute, a few loads do.

Only the targets judge, so one of them has to be on the wait for an answer, and requests have to arrive for ten times as
long as that target (``LASTS``): a burst that is over before anybody has waited too long says nothing of a rate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokonomics.serving.outcome import outcome
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import replayed
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Trace

LASTS = 10
"""How many times the longest promised wait requests arrive for, at least. A server that is a tenth too slow falls
behind by that wait in this time. Our choice."""
FURTHEST = 2.0**12  # factor from the guess beyond which the guess was meaningless
_LEAST_STEP, _MOST_STEP, _WHEN_FAILED = 1.05, 4.0, 2.0
"""By how much a rate changes while all of them hold or none does: nearly held means a small step."""
_TO_BRACKET = 2  # times the loads that halve a gap: so many may be played until there is one


@dataclass(frozen=True)
class PlayedRate:
    """One replay at a rate."""

    rate: float
    late: float  # the worst target's delivered ÷ promised; infinite if requests failed


def at_rate(trace: Trace, rate: float, requests: int, slos: Sequence[Slo]) -> Trace:
    """Return the requests of a load at a rate: so many of the log, or more if these would not arrive for long enough.

    They are the first of the log, which is repeated if it ends before. Sessions are repeated until all of them are
    under way at once.
    """
    if trace.turns is not None:
        return replayed(trace, rate / trace.rate)
    count = max(requests, math.ceil(LASTS * longest_wait_s(slos) * rate))
    longer = trace.repeated(math.ceil(count / len(trace))) if count > len(trace) else trace
    return longer.take(np.arange(count)).faster(rate / trace.rate)


def longest_wait_s(slos: Sequence[Slo]) -> float:
    """Return the longest wait for an answer that is promised."""
    return max(slo.seconds for slo in slos if slo.latency in (Latency.ttft, Latency.e2e))


def highest_held(
    play: Callable[[float], float], guess: float, *, close_enough: float, most_loads: int = 60
) -> tuple[float, tuple[PlayedRate, ...]]:
    """Return the highest rate that holds, 0 if none does, and the loads that were played."""
    loads: list[PlayedRate] = []

    def holds(rate: float) -> bool:
        loads.append(PlayedRate(rate, play(rate)))
        return loads[-1].late <= 1

    low = high = guess
    most_steps, step = _TO_BRACKET * most_loads, 1.0
    if holds(guess):
        while len(loads) < most_steps and holds(high := low * (step := _step(loads[-1].late, step))):
            low = high
            if high > guess * FURTHEST:
                break
    else:
        while len(loads) < most_steps and not holds(low := high / (step := _step(loads[-1].late, step))):
            high = low
            if low < guess / FURTHEST:
                break
    most = max(most_loads, len(loads) + most_loads // 2)
    while len(loads) < most and _bracket(loads) and high / low > close_enough:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return held_rate(loads), tuple(loads)


def _step(late: float, before: float) -> float:
    """Return the factor to the next rate: the further off the targets, the larger, and the square of the one before.

    A server far below its limit is as late at twice the rate: steps that only its lateness sets would never end.
    """
    by_late = math.exp(abs(math.log(late)) / 2) if math.isfinite(late) and late > 0 else _WHEN_FAILED
    return min(_MOST_STEP, max(_LEAST_STEP, by_late, before**2))


def _bracket(loads: Sequence[PlayedRate]) -> bool:
    return len({load.late <= 1 for load in loads}) == 2


def bracket(loads: Sequence[PlayedRate]) -> tuple[PlayedRate | None, PlayedRate | None]:
    """Return the highest rate that holds, below all that do not, and the next that does not; None if there is none."""
    missed = [load for load in loads if load.late > 1]
    held = [load for load in loads if load.late <= 1 and all(load.rate < other.rate for other in missed)]
    low = max(held, key=lambda load: load.rate, default=None)
    above = [load for load in missed if low is None or load.rate > low.rate]
    return low, min(above, key=lambda load: load.rate, default=None)


def held_rate(loads: Sequence[PlayedRate]) -> float:
    """Return the rate at which the targets are just met: between the highest that holds and the next that does not.

    0 if none holds; if all do, the highest of them.
    """
    low, high = bracket(loads)
    if low is None or high is None or not math.isfinite(high.late) or low.late <= 0:
        return 0.0 if low is None else low.rate
    share = -math.log(low.late) / (math.log(high.late) - math.log(low.late))
    return low.rate * math.exp(share * math.log(high.rate / low.rate))


def simulated_rate(setup: Setup, guess: float, requests: int) -> tuple[float, tuple[PlayedRate, ...]]:
    """Return the highest rate of one replica in simulation, to 1 %, and what was played."""

    def play(rate: float) -> float:
        return simulated_lateness(setup, at_rate(setup.load.trace, rate, requests, setup.slos))

    return highest_held(play, guess, close_enough=1.01)


def simulated_lateness(setup: Setup, trace: Trace) -> float:
    """Serve requests on one replica and return how late they are."""
    served, _ = serve(replace(setup, load=replace(setup.load, trace=trace)), 1, setup.max_sequences, trace=trace)
    result = outcome(served, setup.slos, with_load=False)
    if result.completed < result.requests:
        return math.inf
    return max((slo.delivered_s or 0.0) / slo.objective_s for slo in result.slo)
