"""Disaggregated prefill/decode in a plan: which two layouts, and how many replicas of each.

Both sides are layouts of one GPU with the same precisions and engine. Closed form: a replica that computes prompts
alone finishes so many a second, one that answers alone so many (``serving.steady``); the load divided by either is the
fewest of each side, and their machines a bill that the pair cannot go below. In the order of these bounds, pairs that
could cost less than what is known are simulated. More replicas of a side never hurt, so the fewest of each side beside
the most of the other bound the search from below; from there splits are tried by their bill. So the ratio is whatever
costs least: what trying every split would give.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.search import Placed, Sought
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.serving.disaggregated import sent_bytes
from tokonomics.serving.links import link_speed
from tokonomics.serving.steady import Capacity, MissesSlo, ReplicaCurve, prompts_alone
from tokonomics.sizing.hosts import Hosts, PrefillPool
from tokonomics.sizing.load import Load
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.screen import LEEWAY, Screened, curve_for, floors, least_by_arithmetic, screen, tpot_limit
from tokonomics.sizing.search import halved
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Latency
from tokonomics.types import Noun

ENGINES = frozenset(("vllm", "sglang", "tensorrt-llm"))
"""Engines that serve so (vLLM docs, "Disaggregated Prefilling"; SGLang docs, "PD Disaggregation"; TensorRT-LLM docs,
"Disaggregated Serving")."""
_LAYOUTS = 3
"""Of each side on one GPU at one precision: those that take the least GPU time. Others could win by rounding alone."""
_PAIRS = 6
"""That are simulated, cheapest bound first: a plan must not take much longer for them."""
_FURTHEST = 2
"""Times the closed form's fewest replicas, and ``_MORE``: beyond, a side is not what breaks."""
_MORE = 4
RATIOS = 9
"""Points of a curve over the ratio."""


@dataclass(frozen=True)
class Pair:
    """Two layouts that serve together, with what one replica of each does at best."""

    prefill: Hosts
    decode: Hosts
    curve: ReplicaCurve
    """Of the decode side."""
    prompts: float
    """A second, of one replica that computes nothing else."""
    answers: Capacity
    """Of one replica that computes no prompts."""
    least: tuple[int, int]
    """Replicas of each side that the load takes at the very least."""

    def hosts(self, prompts: int) -> Hosts:
        """With so many replicas for prompts."""
        return replace(self.decode, prefill=PrefillPool(self.prefill.deployment, prompts), tiers=None)

    def usd_per_hour(self, prompts: int, answers: int) -> float:
        """On the cheapest machines."""
        pool = PrefillPool(self.prefill.deployment, prompts)
        return replace(self._cheapest, prefill=pool).usd_per_hour(prompts + answers)

    @cached_property
    def _cheapest(self) -> Hosts:
        """With the cheapest machine of each size alone: a bill is asked for hundreds of times."""
        return replace(self.decode, machines=self.decode.cheapest_of_each_size)

    @cached_property
    def bound(self) -> float:
        """Dollars an hour that it cannot go below."""
        return self.usd_per_hour(*self.least)

    def split(self, prompts: int, answers: int) -> Screened:
        """A candidate with so many replicas of each side; its capacity is that of the side that is full first."""
        rate = min(prompts * self.prompts, answers * self.answers.rate) / (prompts + answers)
        full = "prefill side" if prompts * self.prompts < answers * self.answers.rate else self.answers.limited_by
        share = self._gpu_s_of_a_prompt / (self._gpu_s_of_a_prompt + self.decode.deployment.gpus / self.answers.rate)
        capacity = self.answers.model_copy(update={"rate": rate, "prefill_share": share, "limited_by": full})
        return Screened(self.decode.deployment, self.hosts(prompts), self.curve, capacity, sum(self.least))

    @property
    def _gpu_s_of_a_prompt(self) -> float:
        return self.prefill.deployment.gpus / self.prompts


def disaggregated(
    sought: Sought,
    hosts: Iterable[Hosts],
    below: float,
    max_utilization: float | None = None,
    progress: Say = silent,
) -> list[Placed]:
    """The pairs that cost less than ``below`` dollars an hour and than every one before them, the cheapest last."""
    pairs = sorted(_pairs(sought, hosts, below, max_utilization), key=lambda pair: pair.bound)
    found: list[Placed] = []
    for pair in pairs[:_PAIRS]:
        if pair.bound >= below:
            break
        progress(f"prefill apart: {pair.decode.deployment}")
        if placed := cheapest_split(sought, pair, below):
            found.append(placed)
            below = placed.usd_per_hour
    return found


def nearest_pair(sought: Sought, hosts: Iterable[Hosts], max_utilization: float | None = None) -> Pair | None:
    """The pair that could cost least by the closed form, simulated or not; None where there is none."""
    return min(_pairs(sought, hosts, math.inf, max_utilization), key=lambda pair: pair.bound, default=None)


def resize_apart(sought: Sought, hosts: Hosts, max_utilization: float | None = None) -> Placed | NotServed:
    """The cheapest split of one pair for the load and SLOs of these sought, whatever it costs."""
    pair = pair_of(sought, hosts, max_utilization)
    if isinstance(pair, NotServed):
        return pair
    return cheapest_split(sought, pair, math.inf) or NotServed(Reason.too_slow, "misses the SLO however it is split")


def pair_of(sought: Sought, hosts: Hosts, max_utilization: float | None = None) -> Pair | NotServed:
    """The two layouts of a disaggregated candidate, for the load and SLOs of these sought."""
    assert hosts.prefill is not None
    decode = replace(hosts, prefill=None)
    return _pair(sought, replace(decode, deployment=hosts.prefill.deployment), decode, max_utilization)


def _pairs(sought: Sought, hosts: Iterable[Hosts], below: float, max_utilization: float | None) -> Iterator[Pair]:
    """Sensible pairs of layouts: of each GPU, precision and engine, those that take the least GPU time."""
    groups: dict[object, list[Hosts]] = defaultdict(list)
    for one in hosts:
        deployment = one.deployment
        if deployment.engine.key in ENGINES and _may_pay(one, sought.load, below):
            alike = deployment.weights, deployment.kv, deployment.speculation
            groups[deployment.gpu.key, deployment.engine.key, alike].append(one)
    for group in groups.values():
        computing = _least_gpu_time(group, lambda one: _prompts(sought, one.deployment))
        answering = _least_gpu_time(group, lambda one: _answers(sought, one.deployment))
        for prefill in computing:
            for decode in answering:
                pair = _pair(sought, prefill, decode, max_utilization)
                if isinstance(pair, Pair) and math.isfinite(pair.bound):
                    yield pair


def _may_pay(hosts: Hosts, load: Load, below: float) -> bool:
    """Whether the GPUs that arithmetic alone demands cost less than that; and a replica stands in one machine."""
    machines = [machine for machine in hosts.machines if machine.offer.gpus >= hosts.deployment.gpus]
    if not machines:
        return False
    cheapest = min(machine.usd_per_hour / machine.offer.gpus for machine in machines)
    gpus = (least_by_arithmetic(hosts.deployment, load) - 1) * hosts.deployment.gpus
    return cheapest * max(2, gpus) < below


def _least_gpu_time(group: Sequence[Hosts], rate_of: Callable[[Hosts], float | None]) -> list[Hosts]:
    rated = [(one.deployment.gpus / rate, place) for place, one in enumerate(group) if (rate := rate_of(one))]
    return [group[place] for _, place in sorted(rated)[:_LAYOUTS]]


def _pair(sought: Sought, prefill: Hosts, decode: Hosts, max_utilization: float | None) -> Pair | NotServed:
    """Two layouts with the fewest replicas of each; refused where a lone request misses an SLO."""
    prompts, answers = _prompts(sought, prefill.deployment), _answers(sought, decode.deployment)
    if not prompts or not answers:
        return NotServed(Reason.too_slow, "misses the SLO even for a lone request")
    curve = curve_for(decode.deployment, sought.load)
    capacity = curve.answers_alone(tpot_limit(sought.slos))

    def least(rate: float) -> int:
        most = rate * min(LEEWAY, max_utilization or LEEWAY)
        needed = math.ceil(sought.load.workload.rate / most - 1e-9)
        return max(1, needed, sought.load.least_replicas)

    return Pair(prefill, decode, curve, prompts, capacity, (least(prompts), least(answers)))


def _prompts(sought: Sought, deployment: Deployment) -> float | None:
    """Prompts a second of one replica; None where a lone one misses an SLO on the first token."""
    curve = curve_for(deployment, sought.load)
    waits = [slo for slo in sought.slos if slo.latency is Latency.ttft]
    late = any(alone_s > slo.seconds for slo, alone_s in floors(curve.steps, sought.load, waits).items())
    return None if late else prompts_alone(curve.steps, curve.input_tokens)


def _answers(sought: Sought, deployment: Deployment) -> float | None:
    """Answers a second of one replica; None where a lone one misses the SLO on the time per token."""
    try:
        return curve_for(deployment, sought.load).answers_alone(tpot_limit(sought.slos)).rate
    except MissesSlo:
        return None


# --- the ratio ------------------------------------------------------------------------------------------------------


@dataclass
class _Splits:
    """Splits of one pair that were tried."""

    sought: Sought
    pair: Pair
    failed: list[tuple[int, int]] = field(default_factory=list)

    def holds(self, prompts: int, answers: int) -> bool:
        if any(prompts <= fewer[0] and answers <= fewer[1] for fewer in self.failed):
            return False
        held = self.sought.on(self.pair.split(prompts, answers), prompts + answers).holds
        if not held:
            self.failed.append((prompts, answers))
        return held


def cheapest_split(sought: Sought, pair: Pair, below: float) -> Placed | None:
    """The split that costs least, below so many dollars an hour, and meets the SLOs; None where none does."""
    least, splits = pair.least, _Splits(sought, pair)
    most_prompts = _most(least[0], lambda count: pair.usd_per_hour(count, least[1]) < below)
    most_answers = _most(least[1], lambda count: pair.usd_per_hour(least[0], count) < below)
    if not most_prompts or not most_answers or not splits.holds(most_prompts, most_answers):
        return None
    prompts = halved(lambda count: splits.holds(count, most_answers), least[0] - 1, most_prompts)
    answers = halved(lambda count: splits.holds(most_prompts, count), least[1] - 1, most_answers)
    ways = (
        (pair.usd_per_hour(first, second), first + second, first, second)
        for first in range(prompts, most_prompts + 1)
        for second in range(answers, most_answers + 1)
    )
    for _, _, first, second in sorted(way for way in ways if way[0] < below):
        if splits.holds(first, second):
            candidate = pair.split(first, second)
            return Placed(candidate, first + second, sought.on(candidate, first + second))
    return None


def _most(least: int, affordable: Callable[[int], bool]) -> int:
    """The most replicas that are affordable and not far beyond the fewest; 0 where the fewest are not."""
    counts = range(least, min(_FURTHEST * least + _MORE, MOST_REPLICAS) + 1)
    return max((count for count in counts if affordable(count)), default=0)


def together_breaks(sought: Sought, placed: Placed, hosts: Sequence[Hosts]) -> str | None:
    """What breaks where as many GPUs in the layout that answers do both; None: nothing, or it does not run at all."""
    own = next((one for one in hosts if one.deployment == placed.deployment), None)
    found = own and screen(own.deployment, own, sought.load, sought.slos)
    if own is None or not isinstance(found, Screened):
        return found.reason if isinstance(found, NotServed) else None
    replicas = placed.screened.hosts.gpus_of(placed.replicas) // own.deployment.gpus
    return sought.on(found, replicas).breaks if replicas >= sought.load.least_replicas else None


class RatioPoint(Noun):
    """A disaggregated fleet, split some way."""

    prefill_replicas: NonNegativeInt
    """0: every replica does both."""
    decode_replicas: NonNegativeInt
    requests_per_s: NonNegativeFloat
    """That it holds under the SLOs; 0: none."""
    usd_per_mtok: float | None
    """At that rate; None where it holds none."""
    kv_transfer_s: float | None = None
    """To send the KV of a mean prompt; None where nothing is sent."""
    is_planned: bool
    """What the plan picked, split or not."""
    is_cheapest: bool = False
    """The split that serves the load for least, picked or not."""


def kv_transfer_s(hosts: Hosts, replicas: int, load: Load) -> float:
    """Seconds that the KV of a prompt of mean length takes to the side that answers, as the simulator sends it."""
    assert hosts.prefill is not None
    prefill, decode = hosts.prefill.deployment, hosts.deployment
    sent = sent_bytes(prefill, decode, round(load.workload.input_tokens))
    return sent / link_speed(hosts.link(replicas), decode.gpu)


def splits_of(hosts: Hosts, replicas: int) -> list[tuple[int, int]]:
    """Splits of the same GPUs, evenly from the fewest prefill replicas to the most; the cheapest and 1:1 among them."""
    assert hosts.prefill is not None
    of_one, of_other = hosts.prefill.deployment.gpus, hosts.deployment.gpus
    gpus = hosts.gpus_of(replicas)
    counts = range(1, (gpus - of_other) // of_one + 1)
    places = np.linspace(0, len(counts) - 1, min(RATIOS, len(counts))).round().astype(int)
    even = [gpus // (of_one + of_other)] if gpus % (of_one + of_other) == 0 else []
    chosen = sorted({*(counts[place] for place in places), *even, hosts.prefill.replicas})
    return [(first, (gpus - first * of_one) // of_other) for first in chosen]
