"""The replicas that a setup takes: a fixed fleet, disaggregated prefill/decode, or replicas that come and go.

Every setup is first sized as a fixed fleet (``trials``). Of a disaggregated one, prompts get the share of the
replicas that they took of the working time, give or take one. An autoscaled one is tried with a few rules on how many
outstanding requests call for a replica, from greedy to careful, until one meets the SLOs, cold starts included.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tokonomics.catalog.gpus import Gpu, all_gpus
from tokonomics.errors import TokonomicsError, option
from tokonomics.physics.deployment import valid_tp
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet import Autoscale
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import Simulation
from tokonomics.sizing.attempt import (
    Sized,
    better,
    fewest_replicas,
    first_that_holds,
    prefill_share,
    serve,
    try_fixed,
)
from tokonomics.sizing.layouts import Reason, why_not
from tokonomics.sizing.load import Load
from tokonomics.sizing.setup import Memo, NotServed, Setup
from tokonomics.sizing.terms import startup_seconds

_TARGETS = (0.8, 0.6, 0.4)
"""Of the requests outstanding at a replica of the fixed fleet in its fullest hundredth of the time: when one more is
called for. From greedy to careful; a cold start needs room for what arrives meanwhile."""
_GROWTH = 2
"""Times the fixed fleet that an autoscaler may reach: a backlog that a cold start left calls for more."""


def size(setup: Setup, memo: Memo | None = None) -> Sized | NotServed:
    """The fewest replicas that hold, or what breaks however many there are.

    Setups that differ in how replicas come and go share the fleet they start from.
    """
    if refusal := why_not(setup.deployment, setup.load.longest):
        return NotServed(refusal.reason, _what_fits(setup) if refusal.kind is Reason.does_not_fit else None)

    def fixed_fleet() -> Sized | NotServed:
        return fewest_replicas(setup, lambda count: better(setup, count))

    try:
        found = (memo or Memo()).once(("fixed", setup.as_fixed_fleet), setup.load, fixed_fleet)
        if isinstance(found, Sized) and (setup.disaggregated or setup.autoscale):
            routed = replace(setup, router=found.router)
            found = _disaggregated(routed, found) if setup.disaggregated else _autoscaled(routed, found)
    except TokonomicsError as error:
        return NotServed(error.what, error.fix)
    if isinstance(found, NotServed):
        return found
    return replace(found, max_sequences=found.max_sequences or setup.max_sequences, simulation=None)


def _what_fits(setup: Setup) -> str:
    """GPUs of this kind that hold it in one machine; where none do, the smallest kind of which they do."""
    now, longest = setup.deployment, setup.load.longest

    def degree(gpu: Gpu) -> int | None:
        degrees = valid_tp(now.model, gpu.gpus_per_node)
        ways = (now.model_copy(update={"gpu": gpu, "tp": tp, "pp": 1, "ep": 1, "dp": 1}) for tp in degrees)
        return next((way.tp for way in ways if why_not(way, longest) is None), None)

    if tp := degree(now.gpu):
        return f"Give {option('tp', tp)}, a larger GPU ({option('gpu')}), or fewer bits ({option('weights')})."
    sold = {offer.gpu for offer in setup.offers}
    larger = sorted((gpu for gpu in all_gpus() if gpu.key in sold), key=lambda gpu: (gpu.memory_gb, gpu.key))
    found = next(((gpu.key, tp) for gpu in larger if (tp := degree(gpu))), None)
    if found is None:
        return "Choose a smaller model."
    return f"Give {option('gpu', found[0])} {option('tp', found[1])}, or fewer bits ({option('weights')})."


# --- disaggregated prefill/decode -----------------------------------------------------------------------------------


def _disaggregated(setup: Setup, together: Sized) -> Sized | NotServed:
    if setup.load.share < 1:
        return NotServed("only a slice of this traffic is simulated, and prompts cannot be sent on between slices")
    share = prefill_share(together.outcome, otherwise=0.5)
    # Together it may hold only with fewer sequences at a time: what answers need then, they may need apart.
    limits = dict.fromkeys((None, together.max_sequences))

    def best(count: int) -> Sized:
        ways = product(limits, _splits(count, share))
        return first_that_holds(try_fixed(setup, count, limit, prefill_replicas=prompts) for limit, prompts in ways)

    return fewest_replicas(setup, best, start=2)


def _splits(replicas: int, share: float) -> Sequence[int]:
    """How many compute prompts: what they took of the work, and one more or less."""
    middle = round(replicas * share)
    return sorted({min(max(1, count), replicas - 1) for count in (middle - 1, middle, middle + 1)})


# --- replicas that come and go --------------------------------------------------------------------------------------


def _autoscaled(setup: Setup, fixed: Sized) -> Sized | NotServed:
    if setup.load.share < 1:
        return NotServed("only a slice of this traffic is simulated: an autoscaler would see the wrong number")
    broken: str | None = None
    for share in _TARGETS:
        # A rule that misses an SLO with one replica that always stays misses it without.
        staying = _scaled(setup, fixed, share, 1)
        if staying.holds:
            leaving = _scaled(setup, fixed, share, 0)
            return min((way for way in (leaving, staying) if way.holds), key=lambda way: way.mean_replicas)
        broken = staying.breaks
    return NotServed(f"no rule tried meets the SLOs through cold starts: {broken}")


def _scaled(setup: Setup, fixed: Sized, share: float, fewest: int) -> Sized:
    assert fixed.simulation is not None
    fullest = _outstanding(fixed.simulation) / fixed.replicas
    rule = Autoscale(
        min_replicas=fewest,
        max_replicas=_GROWTH * fixed.replicas,
        target=max(1e-3, fullest * share),
        cold_start_s=startup_seconds(setup.deployment),
    )
    made = serve(setup, 1, autoscale=rule, max_sequences=fixed.max_sequences)
    summed = outcome(made, setup.slos)
    return Sized(
        replicas=summed.peak_replicas,
        max_sequences=fixed.max_sequences,
        router=fixed.router,
        breaks=what_breaks(made, summed),
        outcome=summed,
        by_time=made.history,
        span_s=made.end_s,
    )


def _outstanding(simulation: Simulation) -> float:
    """Requests that have arrived and not finished, in the fullest hundredth of the time."""
    arrives, finish_s = simulation.trace.arrival_s, simulation.served.finish_s
    ends = np.sort(finish_s[~np.isnan(finish_s)])
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
