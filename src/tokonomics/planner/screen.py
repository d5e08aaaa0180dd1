"""The closed form for every candidate: what a replica holds at best, and the floor no replica goes below.

A lone request on an idle replica is the fastest there is: where even that misses a promise, nothing helps. The highest
rate at which the mean time per token keeps the promise bounds the replicas from below, since a p90 or p99 is not below
the mean and waiting only adds; with ``LEEWAY`` for what the simulator finishes beyond the closed form.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import sequence_bytes
from tokonomics.physics.steptime import StepModel
from tokonomics.planner.candidates import Reason, Refusal, is_faithful
from tokonomics.planner.load import Floats, Load
from tokonomics.planner.machines import Hosts
from tokonomics.serving.steady import Capacity, MissesPromise, ReplicaCurve, Steady
from tokonomics.traffic.promises import Latency, Promise
from tokonomics.units import percent, seconds

LEEWAY = 1.05
"""Simulated over closed-form capacity was at most 1.016 in 442 cases (``benchmarks/bench_plan.py``)."""
_FLOOR_REQUESTS = 64
"""Drawn evenly from the trace to tell what a lone request takes."""


@dataclass(frozen=True)
class Screened:
    """A deployment that might serve the load, before any simulation."""

    deployment: Deployment
    hosts: Hosts
    curve: ReplicaCurve
    capacity: Capacity
    """Of one replica, for mean requests."""
    fewest: int
    """Replicas that the load takes at the very least."""

    @property
    def name(self) -> str:
        """Tells it from every other candidate of a plan."""
        each = self.deployment
        return f"{each} {each.engine.key} kv={each.kv}"

    @property
    def is_faithful(self) -> bool:
        return is_faithful(self.deployment)

    def steady(self, rate: float) -> Steady:
        return self.curve.at_rate(min(rate, self.capacity.rate), self.capacity)


@dataclass(frozen=True)
class Floor:
    """The fastest a deployment can be: a lone request, by promise."""

    promise: Promise
    seconds: float


def screen(deployment: Deployment, hosts: Hosts, load: Load, promises: Sequence[Promise]) -> Screened | Refusal:
    """How one replica serves this load at best, or why it cannot."""
    workload = load.workload
    curve = curve_for(deployment, load)
    missed = [each for each in floors(curve.steps, load, promises) if each.seconds > each.promise.seconds]
    if missed:
        worst = max(missed, key=lambda each: each.seconds / each.promise.seconds)
        late = percent(worst.seconds / worst.promise.seconds - 1)
        name = describe(worst.promise)
        return Refusal(
            Reason.too_slow, f"misses {name} by {late} even for a lone request: {seconds(worst.seconds)} at best"
        )
    try:
        capacity = curve.capacity(tpot_limit(promises))
    except MissesPromise as miss:
        late = percent(miss.tpot_s / miss.promised_s - 1)
        return Refusal(
            Reason.too_slow, f"misses TPOT by {late} even for a single request: {seconds(miss.tpot_s)} at best"
        )
    fewest = max(1, math.ceil(workload.rate / (capacity.rate * LEEWAY) - 1e-9))
    return Screened(deployment=deployment, hosts=hosts, curve=curve, capacity=capacity, fewest=fewest)


def fewest_by_arithmetic(deployment: Deployment, load: Load) -> int:
    """Replicas below which the datasheet's FLOP/s or bytes a second are not enough: cheap, and below the closed form's.

    A token takes two FLOPs a weight; a token of an answer reads the KV cache before it, half of the answer included.
    """
    model, gpu, workload = deployment.model, deployment.gpu, load.workload
    parts = model.parts
    computed, written = load.computed_mean, workload.output_tokens - 1
    flops = 2.0 * (parts.mixers + parts.dense_mlps + parts.active_experts) * (computed + written)
    kv_bytes = written * sequence_bytes(deployment, max(1, round(computed))) * deployment.gpus if written else 0.0
    busy_s = max(flops / gpu.peak_flops(deployment.weights), kv_bytes / gpu.bandwidth_bytes_per_s) / deployment.gpus
    return max(1, math.ceil(workload.rate * busy_s / LEEWAY - 1e-9))


def curve_for(deployment: Deployment, load: Load) -> ReplicaCurve:
    """The closed form for the mean request; of a prompt, only what an endless cache would not hold."""
    computed = load.workload.input_tokens
    if load.trace.prefix is not None and deployment.engine.reuses_prefixes:
        computed = max(1, round(load.computed_mean))
    return _curve(deployment, computed, load.workload.output_tokens)


@lru_cache(maxsize=4096)
def _curve(deployment: Deployment, input_tokens: int, output_tokens: int) -> ReplicaCurve:
    """Kept: whoever asks again with another rate, price or promise gets an answer at once."""
    return ReplicaCurve(deployment, input_tokens, output_tokens)


def tpot_limit(promises: Sequence[Promise]) -> float | None:
    """What the mean TPOT must keep: the strictest promise on any statistic that is not below it."""
    bounds = [each.seconds for each in promises if each.latency is Latency.tpot and each.statistic != "p50"]
    return min(bounds, default=None)


def floors(steps: StepModel, load: Load, promises: Sequence[Promise]) -> list[Floor]:
    """Each promise with what a lone request on an idle replica takes, over a sample of the requests."""
    if not promises:
        return []
    trace = load.trace
    drawn = np.linspace(0, len(trace) - 1, min(len(trace), _FLOOR_REQUESTS)).astype(int)
    caches = steps.deployment.engine.reuses_prefixes
    inputs = trace.input_tokens[drawn].astype(np.float64)
    computed = load.computed_tokens[drawn] if caches else inputs
    outputs = np.maximum(trace.output_tokens[drawn].astype(np.float64), 1)
    # The whole prompt in one step: chunks only add.
    prefill = steps.prefill(computed, inputs - computed)
    tpot = steps.decode(np.ones_like(inputs), inputs)
    times = {Latency.ttft: prefill, Latency.tpot: tpot, Latency.e2e: prefill + (outputs - 1) * tpot}
    return [Floor(each, _statistic(times[each.latency], each.statistic)) for each in promises]


def _statistic(values: Floats, name: str) -> float:
    if values.min() == values.max():
        return float(values[0])
    return float(values.mean() if name == "mean" else np.percentile(values, float(name[1:])))


def describe(promise: Promise) -> str:
    """``TTFT p99``."""
    return f"{promise.latency.upper() if promise.latency is not Latency.e2e else 'e2e'} {promise.statistic}"
