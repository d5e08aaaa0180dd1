"""Search the replicas that a setup takes, and the highest rate that a fleet holds: the only search for either.

Every setup is first sized as a fixed fleet: from the fewest replicas that the closed form allows, up in doubling steps,
then by bisection; a disaggregated one by its splits instead (``disaggregation``). An autoscaled one is tried with a few
rules on how many outstanding requests call for a replica, from greedy to careful, until one meets the SLOs, cold starts
included. A rate is searched with the same attempts.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.gpus import Gpu, all_gpus
from tokonomics.errors import BadInput, TokonomicsError, option
from tokonomics.physics.deployment import valid_tp
from tokonomics.physics.memory import smallest
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.serving.counted import counted
from tokonomics.serving.fleet_settings import Autoscale, Router
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import Simulation
from tokonomics.sizing import rules
from tokonomics.sizing.attempt import Attempts, Sized, attempt, judged_attempt, serve, simulated
from tokonomics.sizing.buy import startup_seconds
from tokonomics.sizing.disaggregation import Pair, cheapest_split, pair_of
from tokonomics.sizing.layouts import NotServed, Reason, why_not
from tokonomics.sizing.load import Load, replayed
from tokonomics.sizing.screen import closed_form_replicas, late_alone
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.workload import workload_of
from tokonomics.types import Noun, copied
from tokonomics.units import SECONDS_PER_HOUR, seconds

# --- how many -------------------------------------------------------------------------------------------------------


def size(setup: Setup, attempts: Attempts | None = None) -> Sized | NotServed:
    """Return the fewest replicas that hold, or what breaks with any number of them.

    Setups that differ only in autoscaling start from the same fixed fleet.
    """
    if refusal := cannot_serve(setup):
        return refusal
    attempts = Attempts() if attempts is None else attempts
    try:
        if setup.disaggregated:
            pair = pair_of(setup, setup.hosts()[0])
            made = cheapest_split(pair, attempts) if isinstance(pair, Pair) else pair
            return _with_limit(setup, made)
        found = fewest(setup, attempts)
        if not found.holds:
            alone = "even a request that is alone on a replica: " if found.is_lone else ""
            number = "" if alone else f"on {found.replicas:,} replicas "
            return NotServed(Reason.too_slow, f"{alone or number}{found.breaks}")
        if setup.autoscale:
            return _with_limit(setup, _autoscaled(replace(setup, router=found.router), found))
    except TokonomicsError as error:
        return NotServed(Reason.not_simulated, error.what, error.fix)
    return _with_limit(setup, found)


def _with_limit(setup: Setup, made: Sized | NotServed) -> Sized | NotServed:
    """Fill in the batch limit that was asked for, if none was searched."""
    if isinstance(made, NotServed):
        return made
    return replace(made, max_sequences=made.max_sequences or setup.max_sequences)


def cannot_serve(setup: Setup) -> NotServed | None:
    """Say, before any simulation, why no number of replicas is enough; None if nothing is known against it.

    The reason is context, memory, engine, or a lone request that misses an SLO.
    """
    refusal = why_not(setup.deployment, setup.load.longest)
    if refusal and refusal.kind is Reason.does_not_fit:
        return replace(refusal, fix=_what_fits(setup))
    return refusal or late_alone(setup.deployment, setup.load, setup.slos)


def fewest(setup: Setup, attempts: Attempts, *, least: int = 1, most: int = MOST_REPLICAS) -> Sized:
    """Return the fewest replicas from ``least`` to ``most`` that hold; if none do, what breaks.

    More replicas are better, except behind routers that gather shared prompts: there a few smaller fleets are tried.
    """
    tried = partial(attempts.on, setup)
    # The closed form gives the start; the simulation may do better than it.
    start = max(closed_form_replicas(setup), least)
    most = max(most, start)

    def hopeless() -> bool:
        return not attempts.lone(setup).holds or gains_nothing(attempts.tried(setup))

    found = smallest_that_holds(lambda count: tried(count).holds, start, least, most, hopeless)
    if found is None:
        alone = attempts.lone(setup) if (setup.as_fixed_fleet, 0) in attempts.made else None
        return alone if alone and not alone.holds else tried(max(attempts.tried(setup)))
    if tried(found).router in rules.GATHERING:
        below = (max(least, math.ceil(found * share)) for share in rules.SMALLER_FLEETS)
        smaller = next((count for count in below if count < found and tried(count).holds), found)
        found = halved(lambda count: tried(count).holds, least - 1, smaller) if smaller < found else found
    return tried(found)


def smallest_that_holds(
    holds: Callable[[int], bool], start: int, least: int, most: int, hopeless: Callable[[], bool]
) -> int | None:
    """Return the smallest number from ``least`` to ``most`` that holds; None if ``most`` does not or none can.

    It goes up from ``start`` in doubling steps, or down one by one, then bisects. If more is not always better, the
    result holds and one fewer does not, but a still smaller number might. After a few failures ``hopeless`` decides
    whether to give up.
    """
    low, high, step, failures = least - 1, start, 1, 0
    if holds(high):
        while high > least and holds(high - 1):
            high -= 1
        return high
    while not holds(high):
        failures += 1
        if (failures >= rules.PATIENCE and hopeless()) or high >= most:
            return None
        low, high, step = high, min(high + step, most), step * 2
    return halved(holds, low, high)


def gains_nothing(tried: dict[int, Sized]) -> bool:
    """Return whether the largest fleet tried gains so little over small ones that no larger one will meet the SLOs.

    If requests wait for each other, many times the replicas remove most of the wait, and further replicas gain less.
    Requests that would still be late after the same gain again are late for another reason, such as a cache too small
    for the shared prompts. Both the number of late requests and their lateness must say so.
    """
    fewer = [sized.late for count, sized in tried.items() if count * rules.MANY_TIMES <= max(tried)]
    if not fewer or any(sized.holds for sized in tried.values()):
        return False
    before, now = (np.min(late, axis=0) for late in (fewer, [sized.late for sized in tried.values()]))
    return bool(np.isfinite(before).all() and (now - (before - now) > 1).all())


def halved(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Bisect to the smallest number that holds, given that ``low`` does not and ``high`` does."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _what_fits(setup: Setup) -> str:
    """Suggest what would fit: more GPUs of this kind in one machine, or else several machines or a larger GPU."""
    now, longest = setup.deployment, setup.load.longest

    def degree(gpu: Gpu) -> int | None:
        degrees = valid_tp(now.model, gpu.gpus_per_node, gpu)
        ways = (now.model_copy(update={"gpu": gpu, "tp": tp, "pp": 1, "ep": 1, "dp": 1}) for tp in degrees)
        return next((way.tp for way in ways if why_not(way, longest) is None), None)

    if tp := degree(now.gpu):
        return f"Give {option('tp', tp)}, a larger GPU ({option('gpu')}), or fewer bits ({option('weights')})."
    sold = {offer.gpu for offer in setup.offers}
    kinds = sorted((gpu for gpu in all_gpus() if gpu.key in sold or not sold), key=lambda gpu: (gpu.memory_gb, gpu.key))
    larger = next((f"{option('gpu', gpu.key)} {option('tp', tp)}" for gpu in kinds if (tp := degree(gpu))), None)
    least = smallest(now.model_copy(update={"tp": 1, "pp": 1}), longest)
    machines = f"{option('tp', least.tp)} {option('pp', least.pp)}" if least else None
    if not (larger or machines):
        return "Choose a smaller model."
    return f"Give {' or '.join(filter(None, (machines, larger)))}, or fewer bits ({option('weights')})."


# --- replicas that come and go --------------------------------------------------------------------------------------


def _autoscaled(setup: Setup, fixed: Sized) -> Sized | NotServed:
    if setup.load.share < 1:
        why = "only a slice of this traffic is simulated: an autoscaler would see the wrong number"
        return NotServed(Reason.not_simulated, why)
    always = simulated(setup, fixed)
    fullest = _outstanding(always) / always.fleet.replicas
    broken: str | None = None
    for share in rules.SCALING_TARGETS:
        # A rule that misses an SLO with one permanent replica also misses it without.
        staying = _scaled(setup, fixed, fullest * share, 1)
        if staying.holds:
            leaving = _scaled(setup, fixed, fullest * share, 0)
            return min((way for way in (leaving, staying) if way.holds), key=lambda way: way.mean_replicas)
        broken = staying.breaks
    return NotServed(Reason.too_slow, f"no rule tried meets the SLOs through cold starts: {broken}")


def _scaled(setup: Setup, fixed: Sized, target: float, always: int) -> Sized:
    """Simulate replicas that follow the outstanding requests; ``always`` of them stay.

    The traffic with its headroom comes first; what is returned is of the load itself, if both hold.
    """
    if setup.load.headroom:
        grown = _scaled(replace(setup, load=setup.load.grown), fixed, target, always)
        if not grown.holds:
            return grown
    rule = Autoscale(
        min_replicas=always,
        max_replicas=rules.SCALING_GROWTH * fixed.replicas,
        target=max(1e-3, target),
        cold_start_s=startup_seconds(setup.deployment),
    )
    made, _ = serve(setup, 1, fixed.max_sequences, autoscale=rule)
    tried = judged_attempt(setup, fixed.replicas, fixed.max_sequences, made, len(made.trace))
    peak, when, times = tried.outcome.peak_replicas, counted(made), made.history[:, 0]
    first, end = np.searchsorted(times, when.from_s, side="right") - 1, np.searchsorted(times, when.to_s)
    by_time = np.maximum(made.history[first:end, :2] - (when.from_s, 0), 0)
    return replace(tried, replicas=peak, simulation=None, by_time=by_time, span_s=when.to_s - when.from_s)


def _outstanding(simulation: Simulation) -> float:
    """Return the 99th percentile over time of requests that have arrived and not finished."""
    arrives, finish_s = simulation.trace.arrival_s, simulation.served.finish_s
    ends = np.sort(finish_s[~np.isnan(finish_s)])
    moments = np.linspace(0, float(arrives[-1]), 2000)
    there = np.searchsorted(arrives, moments, side="right") - np.searchsorted(ends, moments, side="right")
    return max(1.0, float(np.percentile(there, 99)))


def parts_of(load: Load) -> int:
    """Count the hours of a load; a very long one is cut into 200 parts."""
    return min(200, max(1, round(load.trace.duration_s / SECONDS_PER_HOUR)))


def changes_over_time(load: Load) -> float:
    """Return the busiest hour of a load over its mean hour."""
    counts, _ = np.histogram(load.trace.arrival_s, parts_of(load))
    return float(counts.max() / counts.mean())


# --- the highest rate -----------------------------------------------------------------------------------------------

CLOSE_ENOUGH = 1.01  # ratio of two rates: chance alone changes a capacity found with 20,000 requests by about as much
_FURTHEST = 2.0**20  # factor above or below the guess: beyond it the guess was meaningless


class Trial(Noun):
    """One attempt of a search."""

    rate: NonNegativeFloat
    replicas: PositiveInt
    max_sequences: PositiveInt | None = None  # at a time, where it is not the engine's own limit
    router: Router | None = None
    breaks: str | None  # what breaks; None if it holds
    outcome: Outcome

    @property
    def holds(self) -> bool:
        return self.breaks is None


def trial_of(setup: Setup, sized: Sized) -> Trial:
    """Return an attempt as people see it; one that stopped early is simulated to its end."""
    if not sized.holds:
        sized = attempt(replace(setup, router=sized.router), sized.replicas, sized.max_sequences)
    shown = copied(sized, "replicas", "max_sequences", "router", "breaks", "outcome")
    return Trial(rate=setup.load.workload.rate, **shown)


class HighestRate(Noun):
    """The highest request rate that meets the SLOs."""

    rate: PositiveFloat
    at_most: PositiveFloat  # the lowest rate tried that did not hold
    breaks: str = Field(alias="broken")  # what breaks at that rate
    sessions_per_s: float | None = None  # sessions that begin at that rate, if requests wait for each other
    max_sequences: PositiveInt | None = None  # at a time, where it is not the engine's own limit
    outcome: Outcome
    trials: tuple[Trial, ...]


class ReplicasNeeded(Noun):
    """The fewest replicas that meet the SLOs."""

    replicas: PositiveInt
    max_sequences: PositiveInt | None = None  # at a time, where it is not the engine's own limit
    router: Router | None = None
    outcome: Outcome
    trials: tuple[Trial, ...]


class NeverHolds(TokonomicsError):
    """The SLO is missed even by the lightest load or the largest fleet, or nothing can be served at all."""

    def __init__(self, refused: NotServed, whose: str = "") -> None:
        super().__init__(f"{whose}{refused.reason}", fix=refused.what_to_do)
        self.refused = refused


def highest_rate(setup: Setup, guess: float) -> HighestRate:
    """Search, from a guess, the highest request rate that one replica of a setup holds."""
    attempts = Attempts()
    if refusal := cannot_serve(setup):
        raise NeverHolds(refusal, f"{setup.deployment}: ")
    trace = setup.load.trace
    if trace.rate <= 0:
        raise BadInput("all requests arrive at once: there is no rate to raise", where=trace.source)
    trace = trace.repeated(math.ceil(ENOUGH_REQUESTS / len(trace)))
    load = replace(setup.load, trace=trace, share=1.0, is_stationary=False)
    tried: dict[float, Sized] = {}

    def at(rate: float) -> Setup:
        """Repeat the trace until it has a stretch in which the full load is offered."""
        longer = replayed(trace, rate / trace.rate)
        return replace(setup, load=replace(load, trace=longer, workload=workload_of(trace, rate)))

    def holds(rate: float) -> bool:
        tried[rate] = attempts.on(at(rate), 1)
        return tried[rate].holds

    low = high = guess
    if holds(guess):
        while holds(high := high * 2):
            low = high
            if high > guess * _FURTHEST:
                raise BadInput(f"nothing breaks, not even at {high:.2g} requests a second: is there any work to do?")
    else:
        while not holds(low := low / 2):
            high = low
            if low < guess / _FURTHEST:
                last = tried[low]
                what = f"even next to no load is too much: {last.breaks}"
                raise NeverHolds(NotServed(Reason.too_slow, what, _nearest(last.outcome)))
    low, high = highest_between(holds, low, high)
    shown = {rate: trial_of(at(rate), tried[rate]) for rate in sorted(tried)}
    return HighestRate(
        rate=low,
        at_most=high,
        breaks=shown[high].breaks or "",
        sessions_per_s=None if trace.turns is None else low * trace.turns.sessions / len(trace),
        max_sequences=tried[low].max_sequences,
        outcome=outcome_of(at(low), tried[low]),
        trials=tuple(shown.values()),
    )


def highest_between(
    holds: Callable[[float], bool], low: float, high: float, close_enough: float = CLOSE_ENOUGH
) -> tuple[float, float]:
    """Return the highest rate that holds, to 1 %, and the next that does not; ``low`` holds and ``high`` does not."""
    while high / low > close_enough:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def replicas_needed(setup: Setup) -> ReplicasNeeded:
    """Return the fewest replicas for a setup's own load, with every number that was tried."""
    attempts = Attempts()
    found = size(setup, attempts)
    if isinstance(found, NotServed):
        raise NeverHolds(found, f"{setup.deployment}: ")
    tried = attempts.tried(setup)
    trials = tuple(trial_of(setup, tried[count]) for count in sorted(tried))
    made = outcome_of(setup, found)
    return ReplicasNeeded(**copied(found, "replicas", "max_sequences", "router"), outcome=made, trials=trials)


def outcome_of(setup: Setup, sized: Sized) -> Outcome:
    """Return the latencies and load of a sized fleet under exactly its load."""
    return outcome(simulated(setup, sized), setup.slos)


def _nearest(result: Outcome) -> str | None:
    """Say which latencies the lightest load reaches; None if nothing was answered."""
    reached = ", ".join(f"{slo.slo} {seconds(slo.delivered_s)}" for slo in result.slo if slo.delivered_s is not None)
    return f"What it reaches: {reached}." if reached else None
