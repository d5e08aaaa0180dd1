"""Several models on one GPU, simulated: by shares of its memory, by MIG slices, and one awake at a time.

Whoever shares a GPU finishes no more than on the whole of it, so a GPU whose time the closed form's loads of all
models exceed is not tried. Weights are at the fewest bits that may be served: memory is what is short.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from tokonomics.catalog.gpus import Gpu, find_gpu
from tokonomics.catalog.mig import MigProfile, fit_together, mig_profiles, slice_of
from tokonomics.catalog.start_times import start_times
from tokonomics.physics.deployment import Deployment, why_not_run
from tokonomics.physics.intervals import known_speed
from tokonomics.physics.memory import kv_budget_bytes, max_sequences, sequence_bytes, workspace_bytes
from tokonomics.physics.sharding import shard
from tokonomics.planner.candidates import FLOOR, weight_choices
from tokonomics.planner.hosts import PROCESS_GIB, Machine
from tokonomics.planner.load import Load
from tokonomics.planner.plan import Question, Study, study
from tokonomics.planner.screen import curve_for, tpot_limit
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.shared import SharedEngine, SharedRun, TurnRules, in_turns, side_by_side
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.steady import MissesSlo
from tokonomics.traffic.trace import Trace
from tokonomics.types import Speed
from tokonomics.units import BYTES_PER_GB, GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR

ENOUGH_OF_THE_SLOWEST = 2_000
"""Requests of the model with fewest: its p99 rests on twenty of them."""
_MOST_REQUESTS = 100_000
"""Of all models together: some seconds of simulation."""
_PATIENCE_S = (math.inf, 0.0)
"""Of requests for a sleeping model: until the running one has no work, or until what it holds is answered."""


@dataclass(frozen=True)
class Tenant:
    """A model with its traffic."""

    question: Question

    @cached_property
    def load(self) -> Load:
        return self.question.load.within(self.question.model.max_context)

    def times(self, scale: float) -> "Tenant":
        """The same with so many times the requests."""
        load = self.question.load
        return Tenant(replace(self.question, load=load.at(load.workload.rate * scale)))

    @cached_property
    def own(self) -> Study:
        """Its plan on machines of its own."""
        return study(self.question)

    @cached_property
    def tokens_per_month(self) -> float:
        work = self.load.workload
        return work.rate * (work.input_tokens + work.output_tokens) * SECONDS_PER_HOUR * HOURS_PER_MONTH


def tenants_of(questions: Sequence[Question]) -> list[Tenant]:
    """The models of these questions; what a single plan would set aside is left out."""
    return [Tenant(replace(question, catches={})) for question in questions]


def aligned(traces: Sequence[Trace]) -> list[Trace]:
    """Traces that last equally long: as long as the one with fewest requests needs; shorter ones are repeated."""
    slowest = min(trace.rate for trace in traces)
    total = sum(trace.rate for trace in traces)
    span_s = min(ENOUGH_OF_THE_SLOWEST / slowest, max(_MOST_REQUESTS, ENOUGH_OF_THE_SLOWEST) / total)
    return [_lasting(trace, span_s) for trace in traces]


def _lasting(trace: Trace, span_s: float) -> Trace:
    """The trace from its first arrival on, repeated or cut to last so long."""
    period_s = trace.duration_s * len(trace) / max(1, len(trace) - 1)
    times = max(1, math.ceil(span_s / period_s))
    places = np.tile(np.arange(len(trace)), times)
    arrival_s = (trace.arrival_s - trace.arrival_s[0])[places] + np.repeat(np.arange(times), len(trace)) * period_s
    kept = int(np.searchsorted(arrival_s, span_s))
    return replace(trace.take(places[: max(1, kept)]), arrival_s=arrival_s[: max(1, kept)])


class JudgedModel(NamedTuple):
    """A model's requests in a simulation of a way."""

    deployment: Deployment
    place: str
    memory_share: float | None
    made: Simulation
    outcome: Outcome
    breaks: str | None


def judged(tenant: Tenant, made: Simulation, place: str, memory_share: float | None) -> JudgedModel:
    summed = outcome(made, tenant.question.slos, with_load=False)
    return JudgedModel(made.deployment, place, memory_share, made, summed, what_breaks(made, summed))


class Attempt(NamedTuple):
    """A way on one machine, simulated."""

    models: tuple[JudgedModel, ...]
    busy: tuple[float, ...]
    """Seconds of the GPU for each."""
    span_s: float
    switches: int = 0

    @property
    def meets(self) -> bool:
        return all(model.breaks is None for model in self.models)

    @property
    def worst(self) -> float:
        """The largest ratio of what was delivered to what the SLO allows."""
        ratios = [
            slo.delivered_s / slo.objective_s if slo.delivered_s is not None else math.inf
            for model in self.models
            for slo in model.outcome.slo
        ]
        return max(ratios, default=1.0)


def _deployed(tenant: Tenant, gpu: Gpu) -> Deployment | None:
    """The model on one such GPU, at the fewest bits that may be served; None where that is no choice."""
    question = tenant.question
    engine, kv = question.engines[0], question.kv[0]
    choices = question.weights or weight_choices(question.model, FLOOR)
    for weights in sorted(choices, key=lambda precision: precision.bits):
        if why_not_run(engine, gpu, weights, kv) is None:
            deployment = Deployment(model=question.model, gpu=gpu, engine=engine, weights=weights, kv=kv)
            known = question.assumed_speeds or known_speed(deployment) is not Speed.assumed
            return deployment if known else None
    return None


def _all_deployed(tenants: Sequence[Tenant], gpu: Gpu) -> list[Deployment] | None:
    """All models on one such GPU; None where one cannot be, or where its time is too short for all of them.

    Whoever shares a GPU finishes no more than on the whole of it: the closed form's load of each adds up to 1 at most.
    """
    deployments, load = [], 0.0
    for tenant in tenants:
        deployment = _deployed(tenant, gpu)
        if deployment is None or not max_sequences(deployment, tenant.load.longest):
            return None
        try:
            capacity = curve_for(deployment, tenant.load).capacity(tpot_limit(tenant.question.slos))
        except MissesSlo:
            return None
        load += tenant.load.workload.rate / capacity.rate
        deployments.append(deployment)
    return deployments if load <= 1 else None


def _fixed_bytes(deployment: Deployment) -> float:
    """What an engine takes of the GPU beside its KV cache."""
    return shard(deployment).total + workspace_bytes(deployment)


def memory_shares(deployments: Sequence[Deployment], loads: Sequence[Load]) -> list[Deployment] | None:
    """The engines with a share of the GPU's memory each; None where they do not fit.

    Weights and workspace of each, room for its longest request, and of what is left a part by the KV that its traffic
    holds: rate × answer × context × bytes of a token.
    """
    gpu = deployments[0].gpu
    fraction = deployments[0].limits.memory_fraction
    fixed = [_fixed_bytes(deployment) for deployment in deployments]
    least = [sequence_bytes(each, load.longest) for each, load in zip(deployments, loads, strict=True)]
    left = gpu.usable_bytes * fraction - sum(fixed) - sum(least)
    if left < 0:
        return None
    wanted = [
        load.workload.rate * load.workload.output_tokens * sequence_bytes(each, max(1, round(load.context_mean)))
        for each, load in zip(deployments, loads, strict=True)
    ]
    made = []
    for deployment, own, room, wish in zip(deployments, fixed, least, wanted, strict=True):
        taken = own + room + left * wish / sum(wanted)
        share = deployment.gpu.model_copy(update={"visible_bytes": math.floor(taken / fraction)})
        made.append(deployment.model_copy(update={"gpu": share}))
    return made if all(kv_budget_bytes(each) >= room for each, room in zip(made, least, strict=True)) else None


def by_shares(tenants: Sequence[Tenant], traces: Sequence[Trace], machine: Machine) -> Attempt | None:
    whole = _all_deployed(tenants, find_gpu(machine.offer.gpu))
    shares = memory_shares(whole, [tenant.load for tenant in tenants]) if whole else None
    if not whole or shares is None:
        return None
    run = side_by_side([SharedEngine(each, trace) for each, trace in zip(shares, traces, strict=True)])
    gpu, fraction = whole[0].gpu, whole[0].limits.memory_fraction
    parts = [each.gpu.usable_bytes / gpu.usable_bytes for each in shares]
    return _attempt(run, tenants, [f"memory utilization {part * fraction:.2f}" for part in parts], parts)


def by_turns(tenants: Sequence[Tenant], traces: Sequence[Trace], machine: Machine) -> Attempt | None:
    gpu, times = find_gpu(machine.offer.gpu), start_times()
    whole = _all_deployed(tenants, gpu)
    if whole is None or gpu.vendor != "nvidia":
        return None
    weights = [shard(each).total for each in whole]
    host_gb = (sum(weights) + len(weights) * PROCESS_GIB * GIB) / BYTES_PER_GB
    if machine.offer.memory_gb is not None and machine.offer.memory_gb < host_gb:
        return None
    kept = int(gpu.usable_bytes - (len(tenants) - 1) * times.asleep_bytes.value)
    left = gpu.model_copy(update={"visible_bytes": kept})
    engines = [
        SharedEngine(each.model_copy(update={"gpu": left}), trace) for each, trace in zip(whole, traces, strict=True)
    ]
    if not all(
        max_sequences(one.deployment, tenant.load.longest) for one, tenant in zip(engines, tenants, strict=True)
    ):
        return None
    wake = tuple(times.wake_s(size, gpu) for size in weights)
    sleep = tuple(times.sleep_s(size, gpu) for size in weights)
    tried = []
    for patience_s in _PATIENCE_S:
        run = in_turns(engines, TurnRules(wake, sleep, patience_s))
        places = [f"wakes in {seconds:.1f} s" for seconds in wake]
        tried.append(_attempt(run, tenants, places, [kept / gpu.usable_bytes] * len(tenants)))
        if tried[-1].meets:
            return tried[-1]
    return min(tried, key=lambda attempt: attempt.worst)


def _attempt(run: SharedRun, tenants: Sequence[Tenant], places: Sequence[str], shares: Sequence[float]) -> Attempt:
    models = tuple(
        judged(tenant, made, place, share)
        for tenant, made, place, share in zip(tenants, run.engines, places, shares, strict=True)
    )
    busy = tuple(float(made.replicas["busy_s"].sum()) for made in run.engines)
    return Attempt(models, busy, run.end_s, run.switches)


def by_slices(tenants: Sequence[Tenant], traces: Sequence[Trace], machine: Machine) -> Attempt | None:
    gpu = find_gpu(machine.offer.gpu)
    choices = [list(_on_slices(tenant, trace, gpu)) for tenant, trace in zip(tenants, traces, strict=True)]
    best: Attempt | None = None
    for chosen in product(*choices):
        if not fit_together([profile for profile, _ in chosen]):
            continue
        models = tuple(model for _, model in chosen)
        # A slice is paid for whole: its part of the GPU's compute is what it takes of the bill.
        busy = tuple(profile.compute_share for profile, _ in chosen)
        attempt = Attempt(models, busy, 1.0)
        if attempt.meets:
            return attempt
        best = attempt if best is None or attempt.worst < best.worst else best
    return best


def _on_slices(tenant: Tenant, trace: Trace, gpu: Gpu) -> Iterator[tuple[MigProfile, JudgedModel]]:
    """The model alone on every slice that holds it, the smallest first."""
    for profile in mig_profiles(gpu):
        deployment = _deployed(tenant, slice_of(gpu, profile))
        if deployment is None or not max_sequences(deployment, tenant.load.longest):
            continue
        made = simulate(deployment, trace)
        yield profile, judged(tenant, made, profile.name, profile.memory_share)
