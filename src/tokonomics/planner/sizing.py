"""The replicas that a setup takes: a fixed fleet, prompts and answers apart, or replicas that come and go.

Every setup is first sized as a fixed fleet (``fixed_fleet``). Of a disaggregated one, prompts get the share of the
replicas that they took of the working time, give or take one. An autoscaled one is tried with a few rules on how many
outstanding requests call for a replica, from greedy to careful, until one keeps the promises, cold starts included.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.gpus import Gpu, all_gpus
from tokonomics.errors import TokonomicsError, option
from tokonomics.physics.deployment import valid_tp
from tokonomics.planner.candidates import Reason, why_not
from tokonomics.planner.fixed_fleet import FixedTrial, better, fewest_replicas, serve, try_fixed
from tokonomics.planner.fleet_offers import startup_seconds
from tokonomics.planner.load import Load
from tokonomics.planner.setup import NotServed, Setup
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet import Autoscale, Router
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.simulator import Simulation

_TARGETS = (0.8, 0.6, 0.4)
"""Of the requests outstanding at a replica of the fixed fleet in its fullest hundredth of the time: when one more is
called for. From greedy to careful; a cold start needs room for what arrives meanwhile."""
_GROWTH = 2
"""Times the fixed fleet that an autoscaler may reach: a backlog that a cold start left calls for more."""

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


@dataclass
class Sizings:
    """Sizings, each made once; setups that differ in how replicas come and go share the fleet they start from."""

    made: dict[object, tuple[Load, Sizing | NotServed]] = field(default_factory=dict)
    fixed: dict[object, FixedTrial | NotServed] = field(default_factory=dict)
    tried: dict[object, tuple[Load, bool]] = field(default_factory=dict)

    def holds(self, setup: Setup, replicas: int) -> bool:
        """Whether a fixed fleet of so many keeps the promises: one step of a sizing."""
        key = _fleet_as(setup), replicas
        if key not in self.tried:
            self.tried[key] = setup.load, better(setup, replicas).breaks is None
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


def size(setup: Setup, known: dict[object, FixedTrial | NotServed] | None = None) -> Sizing | NotServed:
    """The fewest replicas that hold, or what breaks however many there are; ``known`` fleets are not searched again."""
    known = {} if known is None else known
    refusal = why_not(setup.deployment, setup.load.longest)
    if refusal:
        return NotServed(refusal.reason, _what_fits(setup) if refusal.kind is Reason.does_not_fit else None)
    try:
        key = _fleet_as(setup)
        if key not in known:
            known[key] = fewest_replicas(setup, lambda count: better(setup, count))
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
        return f"Give {option('tp', tp)}, a larger GPU ({option('gpu')}), or fewer bits ({option('weights')})."
    sold = {each.gpu for each in setup.offers}
    larger = sorted((each for each in all_gpus() if each.key in sold), key=lambda each: (each.memory_gb, each.key))
    found = next(((gpu.key, tp) for gpu in larger if (tp := degree(gpu))), None)
    if found is None:
        return "Choose a smaller model."
    return f"Give {option('gpu', found[0])} {option('tp', found[1])}, or fewer bits ({option('weights')})."


def _sized(setup: Setup, trial: FixedTrial | NotServed) -> Sizing | NotServed:
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


def _disaggregated(setup: Setup, together: FixedTrial) -> FixedTrial | NotServed:
    if setup.load.share < 1:
        return NotServed("only a slice of this traffic is simulated, and prompts cannot be sent on between slices")
    shares = together.outcome.shares
    working = shares.prefill + shares.decode
    share = shares.prefill / working if working else 0.5

    # Together it may hold only with fewer sequences at a time: what answers need then, they may need apart.
    limits = dict.fromkeys((None, together.max_sequences))

    def best(count: int) -> FixedTrial:
        first: FixedTrial | None = None
        for limit, prompts in product(limits, _splits(count, share)):
            trial = try_fixed(setup, count, limit, prefill_replicas=prompts)
            if trial.breaks is None:
                return trial
            first = first or trial
        assert first is not None
        return first

    return fewest_replicas(setup, best, start=2)


def _splits(replicas: int, share: float) -> Sequence[int]:
    """How many compute prompts: what they took of the work, and one more or less."""
    middle = round(replicas * share)
    return sorted({min(max(1, each), replicas - 1) for each in (middle - 1, middle, middle + 1)})


# --- replicas that come and go --------------------------------------------------------------------------------------


def _autoscaled(setup: Setup, fixed: FixedTrial) -> Sizing | NotServed:
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


def _scaled(setup: Setup, fixed: FixedTrial, share: float, fewest: int) -> Sizing | str:
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
