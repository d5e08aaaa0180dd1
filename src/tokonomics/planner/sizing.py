"""The replicas that a setup takes: simulated on more and more until every promise holds.

Numbers of replicas are found by doubling steps and halving, as if more of them never served worse; behind a
prefix-aware router, which spreads what is cached, a few smaller numbers are tried as well. Of long traffic the busiest
part is simulated first: where it alone is late more often than the promise allows of the whole, the rest need not be.
Where the time per token is what breaks, the same replicas are tried with no more sequences at a time than the closed
form allows. Of a disaggregated setup, prompts get the share of the replicas that they took of the working time, give or
take one. An autoscaled setup is tried with a few rules on how many outstanding requests call for a replica, from greedy
to careful, until one keeps the promises, cold starts included.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.gpus import Gpu, all_gpus
from tokonomics.errors import TokonomicsError
from tokonomics.physics.deployment import valid_tp
from tokonomics.planner.candidates import Reason, why_not
from tokonomics.planner.fleet_offers import startup_seconds
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

_TARGETS = (0.8, 0.6, 0.4)
"""Of the requests outstanding at a replica of the fixed fleet in its fullest hundredth of the time: when one more is
called for. From greedy to careful; a cold start needs room for what arrives meanwhile."""
_GROWTH = 2
"""Times the fixed fleet that an autoscaler may reach: a backlog that a cold start left calls for more."""

WHOLE_AT_ONCE = 60_000
"""Requests up to which all are simulated at once; of more, first the busiest part. Three times what a p99 rests on."""
_BUSIEST = 1 / 8
"""Of long traffic: three hours of a day."""
_ALONE = 200_000
"""Requests served one by one to tell what no fleet betters: all of nearly any log. Of more, every so manieth: the share
beyond a p99 is then known to 2 % of itself."""
_BELOW = (0.5, 2 / 3, 0.75)
"""Of the fewest replicas found behind a prefix-aware router: smaller fleets that are tried as well."""

_FASTER = "Loosen --slo, or name more or faster GPUs (--tp, --gpu)."

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sizing:
    """Replicas that keep the promises, and how requests fare on them."""

    replicas: int
    """At the most, those for prompts included."""
    prefill_replicas: int
    mean_replicas: float
    by_time: Floats
    """Rows of time and replicas from then on; one row where they are always as many."""
    span_s: float
    max_sequences: int | None
    """Where it is not the engine's own limit."""
    router: Router
    outcome: Outcome


@dataclass(frozen=True)
class _Trial:
    replicas: int
    prefill_replicas: int
    max_sequences: int | None
    router: Router
    breaks: str | None
    outcome: Outcome
    simulation: Simulation


@dataclass
class Sized:
    """Sizings, each made once; setups that differ in how replicas come and go share the fleet they start from."""

    made: dict[object, tuple[Load, Sizing | NotServed]] = field(default_factory=dict)
    fixed: dict[object, _Trial | NotServed] = field(default_factory=dict)
    tried: dict[object, tuple[Load, bool]] = field(default_factory=dict)

    def holds(self, setup: Setup, replicas: int) -> bool:
        """Whether a fixed fleet of so many keeps the promises: one step of a sizing."""
        key = _fleet_as(setup), replicas
        if key not in self.tried:
            self.tried[key] = setup.load, _better(setup, replicas).breaks is None
        return self.tried[key][1]

    def of(self, setup: Setup, say: Callable[[str], None] = lambda what: None) -> Sizing | NotServed:
        key = _served_as(setup)
        if key not in self.made:
            say(str(setup.deployment))
            # The load is kept with it: the key names it by its place in memory.
            self.made[key] = setup.load, size(setup, self.fixed)
        return self.made[key][1]


def _served_as(setup: Setup) -> object:
    """What the simulator sees of a setup."""
    return _fleet_as(setup), setup.disaggregated, setup.autoscale


def _fleet_as(setup: Setup) -> object:
    return (
        setup.deployment,
        id(setup.load.trace),
        setup.load.share,
        setup.promises,
        setup.max_sequences,
        setup.prefix_cache,
        setup.router,
        setup.tiers,
    )


def size(setup: Setup, known: dict[object, _Trial | NotServed] | None = None) -> Sizing | NotServed:
    """The fewest replicas that hold, or what breaks however many there are; ``known`` fleets are not searched again."""
    known = {} if known is None else known
    refusal = why_not(setup.deployment, setup.load.longest)
    if refusal:
        return NotServed(refusal.reason, _what_fits(setup) if refusal.kind is Reason.does_not_fit else None)
    try:
        key = _fleet_as(setup)
        if key not in known:
            known[key] = _fewest(setup, lambda count: _better(setup, count))
        fixed = known[key]
        if isinstance(fixed, NotServed):
            return fixed
        setup = replace(setup, router=fixed.router)
        if setup.disaggregated:
            return _sized(setup, _disaggregated(setup, fixed))
        return _autoscaled(setup, fixed) if setup.autoscale else _sized(setup, fixed)
    except TokonomicsError as error:
        return NotServed(error.what, error.fix)


def _what_fits(setup: Setup) -> str:
    """GPUs of this kind that hold it in one machine; where none do, the smallest kind of which they do."""
    now, longest = setup.deployment, setup.load.longest

    def degree(gpu: Gpu) -> int | None:
        degrees = valid_tp(now.model, gpu.gpus_per_node)
        ways = (now.model_copy(update={"gpu": gpu, "tp": tp, "pp": 1, "ep": 1}) for tp in degrees)
        return next((each.tp for each in ways if why_not(each, longest) is None), None)

    if tp := degree(now.gpu):
        return f"Give --tp {tp}, a larger GPU (--gpu), or fewer bits (--weights)."
    sold = {each.gpu for each in setup.offers}
    larger = sorted((each for each in all_gpus() if each.key in sold), key=lambda each: (each.memory_gb, each.key))
    found = next(((gpu.key, tp) for gpu in larger if (tp := degree(gpu))), None)
    return f"Give --gpu {found[0]} --tp {found[1]}, or fewer bits (--weights)." if found else "Choose a smaller model."


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


def _try(setup: Setup, replicas: int, max_sequences: int | None, prefill_replicas: int = 0) -> _Trial:
    hopeless = _hopeless(setup, replicas, max_sequences, prefill_replicas)
    return hopeless or _whole(setup, replicas, max_sequences, prefill_replicas)


def _hopeless(setup: Setup, replicas: int, max_sequences: int | None, prefill_replicas: int) -> _Trial | None:
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


def _whole(setup: Setup, replicas: int, max_sequences: int | None, prefill_replicas: int) -> _Trial:
    if prefill_replicas:
        made = serve(setup, replicas - prefill_replicas, prefill_replicas=prefill_replicas, max_sequences=max_sequences)
    else:
        # A replica that serves one at a time evens nothing out: a part of the fleet would ask for more than the whole.
        whole = setup.max_sequences == 1 and setup.load.is_stationary
        trace, served_by = (setup.load.trace, replicas) if whole else setup.load.on(replicas)
        made = serve(setup, served_by, max_sequences=max_sequences, load=replace(setup.load, trace=trace))
    summed = outcome(made, setup.promises)
    breaks = what_breaks(made, summed)
    return _Trial(replicas, prefill_replicas, max_sequences, _routers(setup)[0], breaks, summed, made)


def _routers(setup: Setup) -> tuple[Router, ...]:
    """To be tried, as the planner does; where a replica serves one at a time, first whoever is free."""
    if setup.router is not None:
        return (setup.router,)
    both = Router.round_robin, Router.least_outstanding
    return both[::-1] if setup.max_sequences == 1 else both


def _better(setup: Setup, replicas: int) -> _Trial:
    """The first router with which it holds; what the first of them breaks, where none does."""
    first: _Trial | None = None
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


def _limited(setup: Setup, replicas: int) -> _Trial:
    """With the engine's limit on sequences, or, where tokens are late, with the closed form's."""
    first = _try(setup, replicas, None)
    late = any(not each.kept and each.promise.startswith(Latency.tpot) for each in first.outcome.slo)
    if first.breaks is None or not late or setup.max_sequences is not None:
        return first
    try:
        batch = curve_for(setup.deployment, setup.load).capacity(tpot_limit(setup.promises)).batch
    except MissesPromise:
        return first
    if batch >= setup.deployment.limits.max_sequences:
        return first
    second = _try(setup, replicas, batch)
    return second if second.breaks is None else first


def _fewest(setup: Setup, tried: Callable[[int], _Trial], start: int = 1) -> _Trial | NotServed:
    """From the closed form's guess up, or down, in doubling steps; then halving.

    It takes more replicas for better: where that is not so, what it finds holds, and one fewer does not, but a still
    smaller number might.
    """
    # Of a slice, no fewer than one replica can be simulated.
    grid = range(max(start, setup.load.fewest_replicas), MOST_REPLICAS + 1)
    made: dict[int, _Trial] = {}

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


def _sized(setup: Setup, trial: _Trial | NotServed) -> Sizing | NotServed:
    if isinstance(trial, NotServed):
        return trial
    return Sizing(
        replicas=trial.replicas,
        prefill_replicas=trial.prefill_replicas,
        mean_replicas=float(trial.replicas),
        by_time=np.array([[0.0, float(trial.replicas)]]),
        span_s=trial.simulation.end_s,
        max_sequences=trial.max_sequences or setup.max_sequences,
        router=trial.router,
        outcome=trial.outcome,
    )


# --- prompts and answers apart --------------------------------------------------------------------------------------


def _disaggregated(setup: Setup, together: _Trial) -> _Trial | NotServed:
    if setup.load.share < 1:
        return NotServed("only a slice of this traffic is simulated, and prompts cannot be sent on between slices")
    shares = together.outcome.shares
    working = shares.prefill + shares.decode
    share = shares.prefill / working if working else 0.5

    # Together it may hold only with fewer sequences at a time: what answers need then, they may need apart.
    limits = dict.fromkeys((None, together.max_sequences))

    def best(count: int) -> _Trial:
        first: _Trial | None = None
        for limit, prompts in product(limits, _splits(count, share)):
            trial = _try(setup, count, limit, prefill_replicas=prompts)
            if trial.breaks is None:
                return trial
            first = first or trial
        assert first is not None
        return first

    return _fewest(setup, best, start=2)


def _splits(replicas: int, share: float) -> Sequence[int]:
    """How many compute prompts: what they took of the work, and one more or less."""
    middle = round(replicas * share)
    return sorted({min(max(1, each), replicas - 1) for each in (middle - 1, middle, middle + 1)})


# --- replicas that come and go --------------------------------------------------------------------------------------


def _autoscaled(setup: Setup, fixed: _Trial) -> Sizing | NotServed:
    if setup.load.share < 1:
        return NotServed("only a slice of this traffic is simulated: an autoscaler would see the wrong number")
    broken = ""
    for share in _TARGETS:
        # A rule that breaks a promise with one replica that always stays breaks it without.
        staying = _scaled(setup, fixed, share, 1)
        if isinstance(staying, str):
            broken = staying
            continue
        leaving = _scaled(setup, fixed, share, 0)
        ways = [each for each in (leaving, staying) if isinstance(each, Sizing)]
        return min(ways, key=lambda each: each.mean_replicas)
    return NotServed(f"no rule tried keeps the promises through cold starts: {broken}")


def _scaled(setup: Setup, fixed: _Trial, share: float, fewest: int) -> Sizing | str:
    """Under one rule; or what breaks."""
    fullest = _outstanding(fixed.simulation) / fixed.replicas
    rule = Autoscale(
        min_replicas=fewest,
        max_replicas=_GROWTH * fixed.replicas,
        target=max(1e-3, fullest * share),
        cold_start_s=startup_seconds(setup.deployment),
    )
    made = serve(setup, 1, autoscale=rule, max_sequences=fixed.max_sequences)
    summed = outcome(made, setup.promises)
    if breaks := what_breaks(made, summed):
        return breaks
    return Sizing(
        replicas=summed.peak_replicas,
        prefill_replicas=0,
        mean_replicas=_mean_of(made.history, made.end_s),
        by_time=made.history,
        span_s=made.end_s,
        max_sequences=fixed.max_sequences or setup.max_sequences,
        router=fixed.router,
        outcome=summed,
    )


def _mean_of(by_time: Floats, end_s: float) -> float:
    lasts = np.diff(np.append(by_time[:, 0], end_s))
    return float(np.dot(by_time[:, 1], lasts) / lasts.sum())


def _outstanding(simulation: Simulation) -> float:
    """Requests that have arrived and not finished, in the fullest hundredth of the time."""
    arrives, ends = (
        simulation.trace.arrival_s,
        np.sort(simulation.served.finish_s[~np.isnan(simulation.served.finish_s)]),
    )
    moments = np.linspace(0, float(arrives[-1]), 2000)
    there = np.searchsorted(arrives, moments, side="right") - np.searchsorted(ends, moments, side="right")
    return max(1.0, float(np.percentile(there, 99)))


def changes_over_time(load: Load) -> float:
    """The busiest hour of a load over its mean hour; of a very long one, the busiest of two hundred parts."""
    trace = load.trace
    width = max(3600.0, trace.duration_s / 200)
    bins = max(1, math.ceil(trace.duration_s / width))
    counts = np.bincount(np.minimum((trace.arrival_s / width).astype(np.int64), bins - 1), minlength=bins)
    whole = counts[:-1] if bins > 2 else counts
    return float(whole.max() / whole.mean()) if len(whole) else 1.0
