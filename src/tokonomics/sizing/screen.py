"""Screen every candidate with the closed form: what a replica holds at best, and the latency it cannot go below.

A lone request on an idle replica is the fastest possible: if even that misses an SLO, nothing helps. The highest rate
at which the mean time per token meets the SLO gives a lower bound on replicas, since a p90 or p99 is not below the mean
and waiting only adds; with ``LEEWAY`` for what the simulator finishes beyond the closed form.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

import numpy as np

from tokonomics.physics.calibration import profile_key
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.operations import least_decode_attention_s
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.serving.steady import Capacity, MissesSlo, ReplicaCurve, Steady, most_answered
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.load import CachedPrompts, Load, Rush
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Floats, Trace
from tokonomics.traffic.workload import spread
from tokonomics.units import percent, seconds

LEEWAY = 1.05  # simulated over closed-form capacity was at most 1.016 in 442 cases (``benchmarks/bench_plan.py``)
_FLOOR_REQUESTS = 64  # evenly spaced in the order of lengths, to estimate the mean time of a lone request


@dataclass(frozen=True)
class Screened:
    """A deployment that might serve the load, before any simulation."""

    deployment: Deployment
    hosts: Hosts
    curve: ReplicaCurve
    capacity: Capacity  # of one replica, for mean requests
    fewest: int  # fewest replicas for the load

    @property
    def name(self) -> str:
        """Return a name that is unique among the candidates of a plan."""
        prefill = self.hosts.prefill
        apart = f" after {prefill.replicas} of {prefill.deployment}" if prefill else ""
        apart += f" {self.hosts.tiers}" if self.hosts.tiers else ""
        return f"{self.deployment} {self.deployment.engine.key} kv={self.deployment.kv}{apart}"

    def steady(self, rate: float) -> Steady:
        return self.curve.at_rate(min(rate, self.capacity.rate), self.capacity)


def screen(deployment: Deployment, hosts: Hosts, load: Load, slos: tuple[Slo, ...]) -> Screened | NotServed:
    """Return how one replica serves this load at best, or why it cannot."""
    if late := late_alone(deployment, load, slos):
        return late
    curve = curve_for(deployment, load)
    try:
        capacity = curve.capacity(_loosest([tpot_limit(targets) for _, targets in load.owed(slos)]))
    except MissesSlo as miss:
        by = f"TPOT by {percent(miss.tpot_s / miss.objective_s - 1)}"
        return NotServed(Reason.too_slow, f"misses {by} even for a single request: {seconds(miss.tpot_s)} at best")
    fewest = least_for(load, capacity.rate, deployment, slos)
    return Screened(deployment=deployment, hosts=hosts, curve=curve, capacity=capacity, fewest=fewest)


def late_alone(deployment: Deployment, load: Load, slos: tuple[Slo, ...]) -> NotServed | None:
    """Return the SLO that even lone requests miss by most; None if they meet all."""
    refusals = (late_by_pauses(part.trace, targets) for part, targets in load.owed(slos))
    if refusal := next(filter(None, refusals), None):
        return refusal
    steps = step_model(deployment)
    late = [
        (alone_s / slo.seconds, alone_s, slo)
        for part, targets in load.owed(slos)
        for slo, alone_s in floors(steps, part, targets).items()
    ]
    times, alone_s, worst = max(late, key=itemgetter(0), default=(0.0, 0.0, None))
    if worst is None or times <= 1:
        return None
    by = f"{worst.label} by {percent(times - 1)}"
    return NotServed(Reason.too_slow, f"misses {by} even for a lone request: {seconds(alone_s)} at best")


def late_by_pauses(trace: Trace, slos: Sequence[Slo]) -> NotServed | None:
    """Return the job target that the pauses of tools and people alone miss; None if they leave time."""
    for slo in slos:
        if trace.turns is None or slo.latency is not Latency.job:
            continue
        paused: float | None = getattr(spread(trace.turns.paused_s), slo.statistic)
        if paused is not None and paused > slo.seconds:
            alone = f"the pauses of tools and people alone have a {slo.statistic} of {seconds(paused)}"
            what = f"no hardware meets {slo} of {seconds(slo.seconds)}: {alone}"
            return NotServed(Reason.too_slow, what, "Allow jobs more time than that, or set ttft and tpot instead.")
    return None


def closed_form_replicas(setup: Setup) -> int:
    """Return the fewest replicas by the closed form, where a search begins; 1 if the closed form has no answer."""
    held = held_by_one(setup)
    if held is None:
        return 1
    is_patient = math.isinf(setup.handling.timeout_s)  # clients that hang up take their work with them
    return least_for(setup.load, held, setup.deployment, setup.slos if is_patient else ())


def held_by_one(setup: Setup, found_share: float | None = None) -> float | None:
    """Return the closed form's request rate of one replica; None if it holds none.

    With a ``found_share``, as if a cache found that share of each prompt, whatever the prompts have in common.
    """
    deployment, load, limit = setup.deployment, setup.load, setup.max_sequences
    target = _loosest([tpot_limit(targets) for _, targets in load.owed(setup.slos)])
    curve = curve_for(deployment, load)
    is_limited = limit is not None and limit < deployment.limits.max_sequences
    if is_limited or not setup.prefix_cache or found_share is not None:
        computed, output, context, held = _lengths(deployment, load, setup.prefix_cache)
        if found_share is not None:
            computed = max(1, round(load.workload.input_tokens * (1 - found_share)))
        curve = ReplicaCurve(
            deployment, computed, output, most_sequences=limit, context_tokens=context, held_tokens=held,
            spread=round(load.context_spread, 2),
        )  # fmt: skip
    with suppress(MissesSlo):
        return curve.capacity(target).rate
    return None


def first_limit(deployment: Deployment, load: Load, slos: tuple[Slo, ...]) -> int | None:
    """Return the largest batch that meets the strictest TPOT target; None if one sequence is too many."""
    limits = [tpot_limit(targets) for _, targets in load.owed(slos)]
    for limit in (tpot_limit([slo for _, targets in load.owed(slos) for slo in targets]), _loosest(limits)):
        with suppress(MissesSlo):
            return curve_for(deployment, load).capacity(limit).batch
    return None


def least_for(load: Load, held: float, deployment: Deployment, slos: Sequence[Slo] = ()) -> int:
    """Return the fewest replicas for a load if one holds ``held`` requests a second.

    If an SLO bounds the wait, they also carry the busiest stretches of a changing rate: a request in time has begun by
    then, so a replica has finished all of them but those that it runs, and those that may be late. Both may be the
    heaviest ones.
    """
    held *= LEEWAY
    least = max(1, math.ceil(load.least_rate / held - 1e-9))
    ranked = [slo for slo in slos if slo.statistic != "mean"]
    for slo in ranked if load.rushes else ():
        if slo.latency in _BOUND_THE_WAIT:
            judged = [one for one in ranked if one is slo or one.latency is Latency.tpot]
            late = sum(1 - float(one.statistic[1:]) / 100 for one in judged)
            for rush in load.rushes:
                finished = held * (rush.lasts_s + slo.seconds) * (1 + 1e-9)
                unfinished = late * rush.of + len(judged), deployment.limits.max_sequences
                least = max(least, _fewest_in(rush, finished, *unfinished, least))
    return least


def _fewest_in(rush: Rush, finished: float, late: float, running: int, least: int) -> int:
    """Return the fewest replicas, from the ``least``, if each finishes so much of a stretch and runs so many more."""

    def enough(replicas: int) -> bool:
        return rush.work_without(late + replicas * running) <= replicas * finished

    if enough(least):
        return least
    most = max(least + 1, math.ceil(rush.work_without(0) / finished))
    return least + 1 + bisect_left(range(least + 1, most), True, key=enough)


_BOUND_THE_WAIT = (Latency.ttft, Latency.e2e)


def least_by_arithmetic(deployment: Deployment, load: Load, slos: Sequence[Slo] = ()) -> int:
    """Return a cheap lower bound on replicas from the datasheet's FLOP/s and bandwidth.

    A token takes two FLOPs a weight; an answer token reads the KV cache before it, half of the answer included.
    """
    written = max(0.0, load.workload.output_tokens - 1)
    # Half of the last answer's token pairs are not read: the first token reads the prompt alone.
    held = max(1, math.floor(load.context_mean - load.workload.output_tokens / 2))
    busy_s = _least_busy_s(deployment, load.computed_mean, written, held)
    return least_for(load, 1 / busy_s, deployment, slos)


@lru_cache(maxsize=8192)
def _least_busy_s(deployment: Deployment, computed: float, written: float, held: int) -> float:
    """Return the least busy seconds of a replica that one request takes."""
    model, gpu, parts = deployment.model, deployment.gpu, deployment.model.parts
    flops = 2.0 * (parts.mixers + parts.dense_mlps + parts.active_experts) * (computed + written)
    # A round of drafts reads the cache once for all tokens that it yields.
    reads = written / (deployment.speculation.tokens_per_round if deployment.speculation else 1.0)
    # Bytes read per sequence, on each of the ranks that hold a part of it.
    layers, one = [(group.count, group.mixer) for group in model.groups if group.mixer], np.float64(1)
    pairs = np.float64(held)
    once_s = sum(count * float(least_decode_attention_s(mixer, deployment, one, pairs)) for count, mixer in layers)
    return max(flops / gpu.peak_flops(deployment.weights), reads * once_s * deployment.tp) / deployment.gpus


def curve_for(deployment: Deployment, load: Load) -> ReplicaCurve:
    """Return the closed form for the mean request, without prompt tokens that an unlimited cache would hold."""
    return _curve(deployment, *_lengths(deployment, load), round(load.context_spread, 2), profile_key())


def most_held(deployment: Deployment, load: Load, slos: tuple[Slo, ...]) -> float:
    """Return a cheap upper bound on the closed form's rate: prompts are left out."""
    _, *lengths = _lengths(deployment, load)
    limit = _loosest([tpot_limit(targets) for _, targets in load.owed(slos)])
    return _most_answered(deployment, *lengths, limit, profile_key())


def _lengths(deployment: Deployment, load: Load, prefix_cache: bool = True) -> tuple[int, int, float, float]:
    """Return, for the mean request: prompt tokens to compute, answer tokens, context, and tokens that take memory."""
    computed, held = load.workload.input_tokens, load.context_mean
    if load.trace.prefix is not None and deployment.reuses_prefixes and prefix_cache:
        computed, held = load.computed_mean, load.held_mean
    output_tokens = max(1, round(load.workload.output_tokens))
    return max(1, round(computed)), output_tokens, round(load.context_mean, 1), round(held, 1)


@lru_cache(maxsize=4096)
def _most_answered(
    deployment: Deployment, output_tokens: int, context: float, held: float, tpot_s: float | None, profile: str | None
) -> float:
    return most_answered(deployment, output_tokens, context, held, tpot_s)


@lru_cache(maxsize=4096)
def _curve(
    deployment: Deployment,
    input_tokens: int,
    output_tokens: int,
    context: float,
    held: float,
    spread: float,
    profile: str | None,
) -> ReplicaCurve:
    """Return the closed form, cached: the same lengths are asked about at many rates, prices and SLOs."""
    return ReplicaCurve(
        deployment, input_tokens, output_tokens, context_tokens=context, held_tokens=held, spread=spread
    )


def tpot_limit(slos: Sequence[Slo]) -> float | None:
    """Return what the mean TPOT must stay under: the strictest target on a statistic that is not below the mean."""
    bounds = [slo.seconds for slo in slos if slo.latency is Latency.tpot and slo.statistic != "p50"]
    return min(bounds, default=None)


def _loosest(limits: Sequence[float | None]) -> float | None:
    """Return what the mean over several classes must stay under; None if one of them has no target."""
    known = [limit for limit in limits if limit is not None]
    return max(known, default=None) if len(known) == len(limits) else None


def floors(steps: StepModel, load: Load, slos: Sequence[Slo]) -> dict[Slo, float]:
    """Return, by SLO, the latency below which lone requests on an idle replica cannot go.

    A longer prompt never takes less, so a percentile of the latency is that of the length. For a whole answer it is
    the shortest prompt with that percentile of the answer's length.
    """
    if not slos:
        return {}
    computed, inputs, outputs = load.sorted_lengths
    if not steps.deployment.reuses_prefixes:
        computed = inputs

    outside_s = steps.engine.request_seconds(float(computed[0])) if steps.engine else 0.0
    is_cached = load.trace.prefix is not None and steps.deployment.reuses_prefixes

    def floor(slo: Slo) -> float:
        if slo.latency is Latency.ttft:
            # The whole prompt in one step: chunks only add.
            if is_cached:
                return _first_tokens_s(steps, load.cached_prompts, slo.statistic)
            return _prefills_s(steps, tuple(_at(computed, slo.statistic))) + outside_s
        if slo.latency is Latency.tpot:
            # The first token is only reported after the next step was launched, so the others seem to come sooner.
            late_s = float(steps.engine.host_s(1)) if steps.engine and steps.engine.overlapped else 0.0
            shortened_s = late_s / max(float(outputs[0]) - 1, 1.0)
            return max(0.0, _decodes_s(steps, tuple(_at(inputs, slo.statistic))) - shortened_s)
        if slo.latency is Latency.job:
            return 0.0  # pauses are judged separately (``late_by_pauses``), and the number of turns differs
        prefill_s, decode_s = _lone_s(steps, computed[0], inputs[0])
        answer = float(outputs.mean() if slo.statistic == "mean" else _at(outputs, slo.statistic)[0])
        return prefill_s + (answer - 1) * decode_s + outside_s

    return {slo: floor(slo) for slo in slos}


def _first_tokens_s(steps: StepModel, prompts: CachedPrompts, statistic: str) -> float:
    """Return the statistic of the time to the first token of lone prompts, of which a part is in a cache."""
    computed, cached, count = prompts
    prompt_s = steps.prefill(computed, cached)
    if steps.engine:
        prompt_s = prompt_s + steps.engine.request_s + steps.engine.reach_s + steps.engine.answer_s
        prompt_s = prompt_s + steps.engine.token_s * (computed + cached)
    if statistic == "mean":
        return float(np.average(prompt_s, weights=count))
    in_order = np.argsort(prompt_s)
    place = math.floor((count.sum() - 1) * float(statistic[1:]) / 100)
    return float(prompt_s[in_order][np.searchsorted(np.cumsum(count[in_order]), place, side="right")])


# Cached, as the same requests are asked about at other rates and prices.


@lru_cache(maxsize=4096)
def _prefills_s(steps: StepModel, prompts: tuple[float, ...]) -> float:
    return float(np.mean(steps.prefill(np.array(prompts))))


@lru_cache(maxsize=4096)
def _decodes_s(steps: StepModel, contexts: tuple[float, ...]) -> float:
    return float(np.mean(steps.decode(1.0, np.array(contexts))))


@lru_cache(maxsize=4096)
def _lone_s(steps: StepModel, prompt: float, context: float) -> tuple[float, float]:
    return float(steps.prefill(prompt)), float(steps.decode(1.0, context))


def _at(in_order: Floats, statistic: str) -> Floats:
    """Return the length at a percentile; for the mean, lengths evenly through the order."""
    count = len(in_order)
    if statistic == "mean":
        parts = min(count, _FLOOR_REQUESTS)
        places = ((np.arange(parts) + 0.5) * count / parts).astype(int)
    else:
        places = np.array([math.floor((count - 1) * float(statistic[1:]) / 100)])
    found: Floats = in_order[places]
    return found
