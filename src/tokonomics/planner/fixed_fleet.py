"""The fewest replicas of a setup, always as many, that keep its promises: simulated on more and more until all hold.

Numbers of replicas are found by doubling steps and halving, as if more of them never served worse; behind a
prefix-aware router, which spreads what is cached, a few smaller numbers are tried as well. Of long traffic the busiest
part is simulated first: where it alone is late more often than the promise allows of the whole, the rest need not be.
Where the time per token is what breaks, the same replicas are tried with no more sequences at a time than the closed
form allows.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tokonomics.errors import option
from tokonomics.planner.load import Load
from tokonomics.planner.screen import curve_for, tpot_limit
from tokonomics.planner.setup import NotServed, Setup
from tokonomics.planner.trials import APART_S, MOST_REPLICAS
from tokonomics.serving.capacity import BEHIND, what_breaks
from tokonomics.serving.fleet import Autoscale, FleetSettings, Router
from tokonomics.serving.outcome import Outcome, outcome, request_latencies
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.steady import MissesPromise, ReplicaCurve
from tokonomics.serving.tiers import plan_fetches
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.promises import Latency

WHOLE_AT_ONCE = 60_000
"""Requests up to which all are simulated at once; of more, first the busiest part. Three times what a p99 rests on."""
_BUSIEST = 1 / 8
"""Of long traffic: three hours of a day."""
_ALONE = 200_000
"""Requests served one by one to tell what no fleet betters: all of nearly any log. Of more, every so manieth: the share
beyond a p99 is then known to 2 % of itself."""
_BELOW = (0.5, 2 / 3, 0.75)
"""Of the fewest replicas found behind a prefix-aware router: smaller fleets that are tried as well."""

_FASTER = f"Loosen {option('slo')}, or name more or faster GPUs ({option('tp')}, {option('gpu')})."


@dataclass(frozen=True)
class FixedTrial:
    """One simulation of a setup on a number of replicas."""

    replicas: int
    """Those for prompts included."""
    prefill_replicas: int
    max_sequences: int | None
    router: Router
    breaks: str | None
    outcome: Outcome
    simulation: Simulation


def serve(
    setup: Setup,
    replicas: int,
    *,
    prefill_replicas: int = 0,
    max_sequences: int | None = None,
    autoscale: Autoscale | None = None,
    load: Load | None = None,
) -> Simulation:
    """Simulate a setup on so many replicas; slower memories need a first run that shows which replica gets what."""
    fleet = FleetSettings(
        replicas=replicas, prefill_replicas=prefill_replicas, router=_routers(setup)[0], autoscale=autoscale
    )
    trace, limit = (load or setup.load).trace, max_sequences or setup.max_sequences
    made = simulate(setup.deployment, trace, fleet, prefix_cache=setup.prefix_cache, max_sequences=limit)
    if not setup.tiers:
        return made
    fetches, _ = plan_fetches(made, tuple(price.tier for price in setup.memories()))
    return simulate(
        setup.deployment, trace, fleet, prefix_cache=setup.prefix_cache, max_sequences=limit, fetches=fetches
    )


def try_fixed(setup: Setup, replicas: int, max_sequences: int | None, prefill_replicas: int = 0) -> FixedTrial:
    hopeless = _hopeless(setup, replicas, max_sequences, prefill_replicas)
    return hopeless or _whole(setup, replicas, max_sequences, prefill_replicas)


def _hopeless(setup: Setup, replicas: int, max_sequences: int | None, prefill_replicas: int) -> FixedTrial | None:
    """The busiest part alone, where in it more requests are late than the promise allows of all of them.

    It begins with idle replicas, which the whole does not, so it is late no more often. With a prefix cache it begins
    cold, which proves nothing.
    """
    load, busiest = setup.load, _busiest(setup)
    if busiest is load or load.trace.prefix is not None:
        return None
    made = _whole(replace(setup, load=busiest), replicas, max_sequences, prefill_replicas)
    if made.breaks is None:
        return None
    latencies = request_latencies(made.simulation)
    unserved = np.isnan(latencies[Latency.e2e])
    for promise in setup.promises:
        if promise.statistic == "mean":
            continue
        late = np.count_nonzero(unserved | (latencies[promise.latency] > promise.seconds))
        if late > (1 - float(promise.statistic[1:]) / 100) * len(load.trace) + 1:
            # Its latencies are those of the part.
            return made if made.breaks == BEHIND else replace(made, breaks=f"in its busiest hours {made.breaks}")
    return None


def _busiest(setup: Setup) -> Load:
    """The part of long traffic that decides whether promises are kept; all of it where it is short or even."""
    load = setup.load
    if load.is_stationary or len(load.trace) <= WHOLE_AT_ONCE or not setup.promises:
        return load
    return load.busiest(max(ENOUGH_REQUESTS, round(len(load.trace) * _BUSIEST)))


def _whole(setup: Setup, replicas: int, max_sequences: int | None, prefill_replicas: int) -> FixedTrial:
    if prefill_replicas:
        made = serve(setup, replicas - prefill_replicas, prefill_replicas=prefill_replicas, max_sequences=max_sequences)
    else:
        # A replica that serves one at a time evens nothing out: a part of the fleet would ask for more than the whole.
        whole = setup.max_sequences == 1 and setup.load.is_stationary
        trace, served_by = (setup.load.trace, replicas) if whole else setup.load.on(replicas)
        made = serve(setup, served_by, max_sequences=max_sequences, load=replace(setup.load, trace=trace))
    summed = outcome(made, setup.promises)
    breaks = what_breaks(made, summed)
    return FixedTrial(replicas, prefill_replicas, max_sequences, _routers(setup)[0], breaks, summed, made)


def _routers(setup: Setup) -> tuple[Router, ...]:
    """To be tried, as the planner does; where a replica serves one at a time, first whoever is free."""
    if setup.router is not None:
        return (setup.router,)
    both = Router.round_robin, Router.least_outstanding
    return both[::-1] if setup.max_sequences == 1 else both


def better(setup: Setup, replicas: int) -> FixedTrial:
    """The first router with which it holds; what the first of them breaks, where none does."""
    first: FixedTrial | None = None
    for router in _routers(setup)[: 1 if replicas == 1 else None]:
        trial = _limited(replace(setup, router=router), replicas)
        if trial.breaks is None:
            return trial
        first = first or trial
        if trial.breaks == BEHIND:
            # Too much work for so many replicas, whoever gets it.
            break
    assert first is not None
    return first


def _limited(setup: Setup, replicas: int) -> FixedTrial:
    """With the engine's limit on sequences, or, where tokens are late, with the closed form's."""
    first = try_fixed(setup, replicas, None)
    late = any(not each.kept and each.promise.startswith(Latency.tpot) for each in first.outcome.slo)
    if first.breaks is None or not late or setup.max_sequences is not None:
        return first
    try:
        batch = curve_for(setup.deployment, setup.load).capacity(tpot_limit(setup.promises)).batch
    except MissesPromise:
        return first
    if batch >= setup.deployment.limits.max_sequences:
        return first
    second = try_fixed(setup, replicas, batch)
    return second if second.breaks is None else first


def fewest_replicas(setup: Setup, tried: Callable[[int], FixedTrial], start: int = 1) -> FixedTrial | NotServed:
    """From the closed form's guess up, or down, in doubling steps; then halving.

    It takes more replicas for better: where that is not so, what it finds holds, and one fewer does not, but a still
    smaller number might.
    """
    # Of a slice, no fewer than one replica can be simulated.
    grid = range(max(start, setup.load.fewest_replicas), MOST_REPLICAS + 1)
    made: dict[int, FixedTrial] = {}

    def holds(place: int) -> bool:
        if place not in made:
            made[place] = tried(grid[place])
        return made[place].breaks is None

    place = min(bisect_left(grid, _guess(setup)), len(grid) - 1)
    low, high, step = -1, len(grid), 1
    if holds(place):
        high = place
        while high > 0 and holds(max(0, high - step)):
            high, step = max(0, high - step), step * 2
        low = max(-1, high - step) if high > 0 else -1
    else:
        low = place
        alone = _alone(setup)
        while low < len(grid) - 1 and not holds(min(low + step, len(grid) - 1)):
            low, step = min(low + step, len(grid) - 1), step * 2
            if alone:
                return NotServed(f"even a request that is alone on a replica: {alone}", _FASTER)
        if low == len(grid) - 1:
            return NotServed(f"on {MOST_REPLICAS:,} replicas {made[low].breaks}", _FASTER)
        high = min(low + step, len(grid) - 1)

    def halved(low: int, high: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    high = halved(low, high)
    if setup.router is Router.prefix_aware:
        below = (bisect_left(grid, math.ceil(grid[high] * share)) for share in _BELOW)
        smaller = next((each for each in below if each < high and holds(each)), high)
        high = halved(max((each for each in made if each < smaller and not holds(each)), default=-1), smaller)
    return made[high]


def _guess(setup: Setup) -> int:
    """Replicas by the closed form: where to begin, whatever comes out."""
    workload = _busiest(setup).workload
    curve = ReplicaCurve(
        setup.deployment,
        max(1, round(workload.input_tokens)),
        max(1, round(workload.output_tokens)),
        most_sequences=setup.max_sequences,
        context_tokens=setup.load.context_mean,
    )
    return max(1, math.ceil(workload.rate / float(curve.rates.max())))


def _alone(setup: Setup) -> str | None:
    """What breaks for requests that never meet, and find in a cache whatever any of those before them left.

    No fleet does better: an endless cache holds what the memory and the slower ones behind it can only hold a part of.
    """
    trace = setup.load.trace
    computed = setup.load.computed_tokens if setup.prefix_cache else trace.input_tokens
    prompts = np.ceil(computed).astype(trace.input_tokens.dtype)
    chosen = np.linspace(0, len(trace) - 1, min(len(trace), _ALONE)).astype(np.intp)
    few = replace(trace, input_tokens=prompts, prefix=None).take(chosen)
    few = replace(few, arrival_s=np.arange(len(few), dtype=np.float64) * APART_S)
    made = serve(replace(setup, tiers=None), 1, load=replace(setup.load, trace=few))
    return what_breaks(made, outcome(made, setup.promises))
