"""Simulate several models on one GPU: by shares of its memory, by MIG slices, and one awake at a time.

Models that share a GPU finish no more than on the whole of it, so a GPU is not tried if the closed form's loads of all
models exceed its time. Models have the precisions that their own plans may choose: all at the most bits that fit the
GPU, and all at the fewest if that misses an SLO, as memory is scarce.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from functools import cached_property, partial
from itertools import product
from typing import NamedTuple

import numpy as np

from tokonomics.catalog.engines import Engine, default_engine, start_times
from tokonomics.catalog.gpus import Gpu, MigProfile, find_gpu, fit_together, mig_profiles, slice_of
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offer_choice import loading_gib
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes, max_sequences, sequence_bytes, shard, workspace_bytes
from tokonomics.planner.plan import Question, Study, study, widened
from tokonomics.planner.prospects import prospects, why_doubtful
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.outcome import Outcome, outcome
from tokonomics.serving.shared import SharedEngine, SharedRun, TurnRules, in_turns, side_by_side
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.steady import MissesSlo
from tokonomics.sizing.hosts import Machine
from tokonomics.sizing.layouts import fitting, weight_choices
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import curve_for, tpot_limit
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun, Speed
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR


class Way(StrEnum):
    """How several models are placed on GPUs."""

    own = "each its own GPU"
    shares = "one GPU, memory shares"
    slices = "one GPU, MIG slices"
    turns = "one GPU, sleep and wake"
    zero = "own GPUs, scaled to zero"


SHARED_WAYS = (Way.shares, Way.slices, Way.turns)  # one GPU for all


class ModelHere(Noun):
    """One model in one way: its place, its latencies, and its bill."""

    model: str
    weights: Precision
    below_checkpoint: bool  # its weights or its KV cache at fewer bits than it was published at
    rate: float
    place: str  # its machines, its slice, or its share of the GPU's memory
    memory_share: float | None  # of the GPU's memory; None if it has a GPU of its own
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    breaks: str | None  # text: the missed SLO; None: all are met
    usd_per_month: float
    usd_per_mtok: float
    gpu_share: float | None  # of the paid time, in which the GPU works for it; None for own GPUs and slices


class WayRow(Noun):
    """One way, with its bill."""

    way: Way
    gpu: str
    machine: str  # provider and instance; if several, the first and how many more
    gpus_paid: float  # mean over time
    usd_per_month: float
    price_date: date  # oldest quote of its machines
    meets: bool
    models: tuple[ModelHere, ...]
    speed: Speed | None = None
    switches_per_hour: float | None = None
    hold_s: float | None = None


class SharedPlan(Noun):
    """Every way to serve several models: those that meet every SLO first, then by price."""

    rows: tuple[WayRow, ...]
    not_possible: dict[Way, str]  # why a way is missing
    best: WayRow | None
    own_at_these_bits_usd_per_month: float | None = None
    """Own GPUs at the precisions of ``best``, if these have fewer bits than own GPUs; None: they do not, or no offer
    meets the SLOs."""


class Crossing(Noun):
    """Up to this factor of the traffic one GPU for all is cheaper, and no longer above."""

    below: float  # the largest factor tried at which one GPU for all is cheaper; 0: none
    above: float | None  # the smallest at which own GPUs are cheaper; None: none
    together_usd_per_month: float | None  # one GPU for all, at ``below``
    own_usd_per_month: float | None  # own GPUs, at ``above``
    together_above_usd_per_month: float | None
    """One GPU for all, at ``above``; None if none that costs less than own ones meets every SLO."""


ENOUGH_OF_THE_SLOWEST = 2_000  # requests of the model with fewest: twenty of them decide its p99
_MOST_REQUESTS = 100_000  # of all models together: a few seconds of simulation
_FAR_OFF = 1.5  # times an SLO: a miss by this factor in part of the traffic is not simulated in full
_PART = 8
_PATIENCE_S = (math.inf, 0.0)
"""How long requests for a sleeping model wait: until the running one is idle, or until its running requests are
answered."""


@dataclass(frozen=True)
class Tenant:
    """A model with its traffic."""

    question: Question

    @cached_property
    def load(self) -> Load:
        return self.question.load.within(self.question.model.max_context)

    def times(self, scale: float) -> "Tenant":
        """Return the same model with a multiple of the requests."""
        load = self.question.load
        return Tenant(replace(self.question, load=load.at(load.workload.rate * scale)))

    @cached_property
    def own(self) -> Study:
        """Return its plan on machines of its own."""
        return study(self.question)

    @cached_property
    def tokens_per_month(self) -> float:
        work = self.load.workload
        return work.rate * (work.input_tokens + work.output_tokens) * SECONDS_PER_HOUR * HOURS_PER_MONTH


def tenants_of(questions: Sequence[Question]) -> list[Tenant]:
    """Return the models of these questions, without what a single plan would set aside if anything else is sold."""
    return [Tenant(replace(_with_offers(question), catches={})) for question in questions]


def _with_offers(question: Question) -> Question:
    """Return the question, with the first catches of the last resort that leave anything to choose from."""
    load = question.load.within(question.model.max_context)
    return next((asked for asked, _ in widened(question) if prospects(asked, load)), question)


def aligned(traces: Sequence[Trace]) -> list[Trace]:
    """Return traces of equal length: as long as the one with fewest requests needs; shorter ones are repeated."""
    slowest = min(trace.rate for trace in traces)
    total = sum(trace.rate for trace in traces)
    span_s = min(ENOUGH_OF_THE_SLOWEST / slowest, max(_MOST_REQUESTS, ENOUGH_OF_THE_SLOWEST) / total)
    lasting = []
    for trace in traces:
        period_s = trace.duration_s * len(trace) / max(1, len(trace) - 1)
        times = max(1, math.ceil(span_s / period_s))
        places = np.tile(np.arange(len(trace)), times)
        arrival_s = (trace.arrival_s - trace.arrival_s[0])[places] + np.repeat(np.arange(times), len(trace)) * period_s
        kept = max(1, int(np.searchsorted(arrival_s, span_s)))
        lasting.append(replace(trace.take(places[:kept]), arrival_s=arrival_s[:kept]))
    return lasting


class JudgedModel(NamedTuple):
    """One model's requests in a simulated way."""

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
    """A simulated way on one machine."""

    models: tuple[JudgedModel, ...]
    busy: tuple[float, ...]  # GPU seconds of each model
    span_s: float
    switches: int = 0

    @property
    def meets(self) -> bool:
        return all(model.breaks is None for model in self.models)

    @property
    def worst(self) -> float:
        """Return the largest ratio of a delivered latency to its SLO."""
        ratios = [
            slo.delivered_s / slo.objective_s if slo.delivered_s is not None else math.inf
            for model in self.models
            for slo in model.outcome.slo
        ]
        return max(ratios, default=1.0)


def _precisions(tenant: Tenant, gpu: Gpu, engine: Engine) -> list[Deployment]:
    """Return the model on one such GPU at each precision that its own plan may choose, most bits first."""
    question = tenant.question
    choices = engine.loads(question.weights or weight_choices(question.model))
    fitted = fitting(question.model, gpu, engine, choices, question.kv, 1, tenant.load.longest)
    found = [
        deployment
        for deployment, refusal in fitted
        if refusal is None
        and (deployment.weights, deployment.kv) not in question.lossy
        and why_doubtful(deployment, question.assumed_speeds, question.consumer_cards) is None
    ]
    return sorted(found, key=lambda deployment: (-deployment.weights.bits, -deployment.kv.bits))


def _load(tenant: Tenant, deployment: Deployment) -> float:
    """Return the share of a GPU's time by the closed form; infinite if no batch meets the time per token."""
    try:
        capacity = curve_for(deployment, tenant.load).capacity(tpot_limit(tenant.question.slos))
    except MissesSlo:
        return math.inf
    return tenant.load.workload.rate / capacity.rate


def _with_time_for_all(tenants: Sequence[Tenant], gpu: Gpu) -> Iterator[list[Deployment]]:
    """Yield all models on one such GPU, at the most bits that fit and then at the fewest, if its time is enough.

    Each has the same choice in a plan of its own, in which more bits win at the same bill. Models that share a GPU
    finish no more than on the whole of it.
    """
    for engine in tenants[0].question.engines or (default_engine(gpu.architecture),):
        choices = [_precisions(tenant, gpu, engine) for tenant in tenants]
        if not all(choices):
            continue
        most, fewest = [found[0] for found in choices], [found[-1] for found in choices]
        for deployments in [most] if most == fewest else [most, fewest]:
            if sum(map(_load, tenants, deployments)) <= 1:
                yield deployments


def nearest(attempts: Iterable[Attempt]) -> Attempt | None:
    """Return the first that meets every SLO, or else the smallest miss."""
    missed: list[Attempt] = []
    for attempt in attempts:
        if attempt.meets:
            return attempt
        missed.append(attempt)
    return min(missed, key=lambda attempt: attempt.worst, default=None)


def memory_shares(deployments: Sequence[Deployment], loads: Sequence[Load]) -> list[Deployment] | None:
    """Give each engine a share of the GPU's memory; None if they do not fit.

    A share is its weights and workspace, room for its longest request, and a part of the rest by the KV that its
    traffic holds: rate × answer × context × bytes of a token.
    """
    gpu = deployments[0].gpu
    fraction = deployments[0].limits.memory_fraction
    fixed = [shard(each).total + workspace_bytes(each) for each in deployments]
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


def by_shares(tenants: Sequence[Tenant], traces: Sequence[Trace], machine: Machine) -> Iterator[Attempt]:
    """Run all engines side by side, each with a share of the memory."""
    gpu = find_gpu(machine.offer.gpu)
    for whole in _with_time_for_all(tenants, gpu):
        shares = memory_shares(whole, [tenant.load for tenant in tenants])
        if shares is None:
            continue
        parts = [each.gpu.usable_bytes / gpu.usable_bytes for each in shares]
        places = [f"memory utilization {part * whole[0].limits.memory_fraction:.2f}" for part in parts]
        yield _tried(side_by_side, tenants, shares, traces, places, parts)


def by_turns(tenants: Sequence[Tenant], traces: Sequence[Trace], machine: Machine) -> Iterator[Attempt]:
    """Keep one engine awake and the weights of the others in the host's memory."""
    times, gpu = start_times(), find_gpu(machine.offer.gpu)
    if gpu.vendor != "nvidia":
        return
    kept = int(gpu.usable_bytes - (len(tenants) - 1) * times.asleep_bytes.value)
    left = gpu.model_copy(update={"visible_bytes": kept})
    for whole in _with_time_for_all(tenants, gpu):
        weights = [shard(each).total for each in whole]
        awake = [each.model_copy(update={"gpu": left}) for each in whole]
        room = [max_sequences(each, tenant.load.longest) for each, tenant in zip(awake, tenants, strict=True)]
        if not all(room) or loading_gib(sum(weights), len(weights)) > (machine.offer.memory_gb or math.inf):
            continue
        wake = tuple(times.wake_s(size, gpu) for size in weights)
        sleep = tuple(times.sleep_s(size, gpu) for size in weights)
        places = [f"wakes in {seconds:.1f} s" for seconds in wake]
        for patience_s in _PATIENCE_S:
            run = partial(in_turns, turns=TurnRules(wake, sleep, patience_s))
            yield _tried(run, tenants, awake, traces, places, [kept / gpu.usable_bytes] * len(tenants))


def _tried(
    run: Callable[[Sequence[SharedEngine]], SharedRun],
    tenants: Sequence[Tenant],
    deployments: Sequence[Deployment],
    traces: Sequence[Trace],
    places: Sequence[str],
    shares: Sequence[float],
) -> Attempt:
    """Simulate engines that share a GPU; only the beginning of the traffic if that is far too slow."""

    def on(some: Sequence[Trace]) -> Attempt:
        made = run([SharedEngine(each, trace) for each, trace in zip(deployments, some, strict=True)])
        models = tuple(map(judged, tenants, made.engines, places, shares))
        busy = tuple(float(engine.replicas["busy_s"].sum()) for engine in made.engines)
        return Attempt(models, busy, made.end_s, made.switches)

    begins = on([trace.take(np.arange(math.ceil(len(trace) / _PART))) for trace in traces])
    return begins if begins.worst > _FAR_OFF else on(traces)


def by_slices(tenants: Sequence[Tenant], traces: Sequence[Trace], machine: Machine) -> Iterator[Attempt]:
    """Run each model alone on a slice of the GPU."""
    gpu = find_gpu(machine.offer.gpu)
    for place in (0, -1):  # the most bits, then the fewest
        choices = [list(_on_slices(tenant, trace, gpu, place)) for tenant, trace in zip(tenants, traces, strict=True)]
        for chosen in product(*choices):
            if fit_together([profile for profile, _ in chosen]):
                # A slice is paid for whole: its part of the GPU's compute is its part of the bill.
                busy = tuple(profile.compute_share for profile, _ in chosen)
                yield Attempt(tuple(model for _, model in chosen), busy, 1.0)


def _on_slices(tenant: Tenant, trace: Trace, gpu: Gpu, place: int) -> Iterator[tuple[MigProfile, JudgedModel]]:
    """Yield the model alone on every slice that holds it and keeps up, smallest first."""
    for profile in mig_profiles(gpu):
        part = slice_of(gpu, profile)
        for engine in tenant.question.engines or (default_engine(gpu.architecture),):
            found = _precisions(tenant, part, engine)
            if found and _load(tenant, found[place]) <= 1:
                made = simulate(found[place], trace)
                yield profile, judged(tenant, made, profile.name, profile.memory_share)
