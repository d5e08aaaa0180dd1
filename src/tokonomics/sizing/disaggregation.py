"""Find how many replicas each side of disaggregated prefill/decode needs for the lowest bill.

Both sides are layouts of one GPU with the same precisions and engine. The closed form gives the rate of a replica that
only computes prompts, and of one that only answers (``serving.steady``); the load divided by each rate is the fewest
replicas of that side, and their machines are a lower bound on the pair's bill. More replicas of a side never hurt, so
the fewest of each side beside the most of the other bound the search from below; from there splits are tried in order
of their bill. So the result is the cheapest split, as if every split were tried.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

from tokonomics.physics.deployment import Deployment
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.serving.fleet_settings import link_speed
from tokonomics.serving.steady import Capacity, MissesSlo, ReplicaCurve, prefill_only_rate
from tokonomics.sizing.attempt import Attempts, Sized
from tokonomics.sizing.hosts import Hosts, PrefillPool
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import LEEWAY, Screened, curve_for, floors, tpot_limit
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency, Slo

ENGINES = frozenset(("vllm", "sglang", "tensorrt-llm"))
"""Engines that support it (vLLM docs, "Disaggregated Prefilling"; SGLang docs, "PD Disaggregation"; TensorRT-LLM docs,
"Disaggregated Serving")."""
_FURTHEST = 2  # times the closed form's fewest replicas, plus ``_MORE``: beyond that, this side is not the problem
_MORE = 4


def served_on(setup: Setup, hosts: Hosts, replicas: int) -> Setup:
    """Return a setup as these hosts serve it; the KV link of a disaggregated one depends on its replicas."""
    if hosts.prefill is None:
        return setup
    link = link_speed(hosts.link(replicas), hosts.deployment.gpu)
    return replace(
        setup, prefill=hosts.prefill.deployment, prefill_replicas=hosts.prefill.replicas, link_bytes_per_s=link
    )


@dataclass(frozen=True)
class Pair:
    """A prefill and a decode layout that serve together, with the best rate of one replica of each."""

    setup: Setup  # what both serve, with the layout of the decode side
    prefill: Deployment
    decode: Hosts
    curve: ReplicaCurve  # of the decode side
    prompts: float  # prompts a second of one prefill replica
    answers: Capacity  # of one decode replica
    least: tuple[int, int]  # fewest replicas of each side for the load

    def hosts(self, prompts: int) -> Hosts:
        """Return the hosts with this many prefill replicas."""
        return replace(self.decode, prefill=PrefillPool(self.prefill, prompts), tiers=None)

    def usd_per_hour(self, prompts: int, answers: int) -> float:
        """Return the hourly cost on the cheapest machines."""
        return replace(self._cheapest, prefill=PrefillPool(self.prefill, prompts)).usd_per_hour(prompts + answers)

    @cached_property
    def _cheapest(self) -> Hosts:
        """Keep only the cheapest machine of each size: the search asks for hundreds of bills."""
        return replace(self.decode, machines=self.decode.cheapest_of_each_size)

    @cached_property
    def bound(self) -> float:
        """Return the hourly cost below which no split of this pair goes."""
        return self.usd_per_hour(*self.least)

    def split(self, prompts: int, answers: int) -> Screened:
        """Return the candidate with this many replicas on each side; the fuller side limits its capacity."""
        rate = min(prompts * self.prompts, answers * self.answers.rate) / (prompts + answers)
        full = "prefill side" if prompts * self.prompts < answers * self.answers.rate else self.answers.limited_by
        prompt_s, answer_s = self.prefill.gpus / self.prompts, self.decode.deployment.gpus / self.answers.rate
        share = prompt_s / (prompt_s + answer_s)
        capacity = self.answers.model_copy(update={"rate": rate, "prefill_share": share, "limited_by": full})
        return Screened(self.decode.deployment, self.hosts(prompts), self.curve, capacity, sum(self.least))

    def on(self, prompts: int, answers: int, attempts: Attempts) -> Sized:
        """Simulate this many replicas on each side."""
        replicas = prompts + answers
        return attempts.on(served_on(self.setup, self.hosts(prompts), replicas), replicas)


def pair_of(setup: Setup, hosts: Hosts, max_utilization: float | None = None) -> Pair | NotServed:
    """Return the two layouts with the fewest replicas of each side, or why even a lone request is late."""
    assert hosts.prefill is not None
    prefill, decode, load = hosts.prefill.deployment, hosts.deployment, setup.load
    if decode.engine.key not in ENGINES:
        return NotServed(Reason.not_supported, f"{decode.engine.name} does not serve prompts and answers apart")
    prompts, answers = prompts_per_s(prefill, load, setup.slos), answers_per_s(decode, load, setup.slos)
    if not prompts or not answers:
        return NotServed(Reason.too_slow, "misses the SLO even for a lone request")

    def least(rate: float) -> int:
        most = rate * min(LEEWAY, max_utilization or LEEWAY)
        return max(1, math.ceil(load.held_rate / most - 1e-9), load.least_replicas)

    curve, fewest = curve_for(decode, load), (least(prompts), least(answers))
    capacity = curve.decode_only_capacity(tpot_limit(setup.slos))
    return Pair(setup, prefill, replace(hosts, prefill=None), curve, prompts, capacity, fewest)


def prompts_per_s(deployment: Deployment, load: Load, slos: tuple[Slo, ...]) -> float | None:
    """Return the prompts a second of one prefill replica; None if a lone prompt misses its TTFT target."""
    curve = curve_for(deployment, load)
    waits = [slo for slo in slos if slo.latency is Latency.ttft]
    late = any(alone_s > slo.seconds for slo, alone_s in floors(curve.steps, load, waits).items())
    return None if late else prefill_only_rate(curve.steps, curve.input_tokens)


def answers_per_s(deployment: Deployment, load: Load, slos: tuple[Slo, ...]) -> float | None:
    """Return the answers a second of one decode replica; None if a lone answer misses its TPOT target."""
    try:
        return curve_for(deployment, load).decode_only_capacity(tpot_limit(slos)).rate
    except MissesSlo:
        return None


# --- the ratio ------------------------------------------------------------------------------------------------------


def cheapest_split(pair: Pair, attempts: Attempts, below: float = math.inf) -> Sized | NotServed:
    """Return the cheapest split below this hourly cost that meets the SLOs."""
    least, failed = pair.least, list[tuple[int, int]]()

    def holds(prompts: int, answers: int) -> bool:
        if any(prompts <= fewer[0] and answers <= fewer[1] for fewer in failed):
            return False
        if not (held := pair.on(prompts, answers, attempts).holds):
            failed.append((prompts, answers))
        return held

    most_prompts = _most(least[0], lambda count: pair.usd_per_hour(count, least[1]) < below)
    most_answers = _most(least[1], lambda count: pair.usd_per_hour(least[0], count) < below)
    if not most_prompts or not most_answers:
        what = f"no machine has room for {sum(least):,} replicas, nor a network that links several"
        return NotServed(Reason.no_machine, what)
    if holds(most_prompts, most_answers):
        fewer = range(least[0], most_prompts), range(least[1], most_answers)
        prompts = least[0] + bisect_left(fewer[0], True, key=lambda count: holds(count, most_answers))
        answers = least[1] + bisect_left(fewer[1], True, key=lambda count: holds(most_prompts, count))
        ways = (
            (pair.usd_per_hour(first, second), first + second, first, second)
            for first in range(prompts, most_prompts + 1)
            for second in range(answers, most_answers + 1)
        )
        for _, _, first, second in sorted(way for way in ways if way[0] < below):
            if holds(first, second):
                return pair.on(first, second, attempts)
    return NotServed(Reason.too_slow, "misses the SLO however it is split")


def _most(least: int, affordable: Callable[[int], bool]) -> int:
    """Return the most affordable replicas, not far beyond the fewest; 0 if even the fewest are not affordable."""
    counts = range(least, min(_FURTHEST * least + _MORE, MOST_REPLICAS) + 1)
    return max((count for count in counts if affordable(count)), default=0)
