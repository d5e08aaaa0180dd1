"""Find disaggregated prefill/decode fleets for a plan: which two layouts, and what other ratios of them would hold.

Pairs of layouts whose closed form could cost less than the best known bill are sized, in the order of their bounds
(``sizing.disaggregation``).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt

from tokonomics.planner.search import Placed, Sought
from tokonomics.serving.disaggregated import sent_bytes
from tokonomics.serving.fleet_settings import link_speed
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.disaggregation import ENGINES, Pair, answers_per_s, cheapest_split, pair_of, prompts_per_s
from tokonomics.sizing.hosts import Hosts, PrefillPool
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import Screened, least_by_arithmetic, screen
from tokonomics.sizing.setup import Say, silent
from tokonomics.types import Noun

_LAYOUTS = 3
"""Layouts of each side on one GPU at one precision: those that take the least GPU time. Others could only win by
rounding."""
_PAIRS = 6  # most pairs to simulate, cheapest bound first, so that a plan stays quick
RATIOS = 9  # points of a curve over the ratio


def disaggregated(sought: Sought, hosts: Iterable[Hosts], below: float, progress: Say = silent) -> list[Placed]:
    """Return the pairs that each cost less than ``below`` dollars an hour and than all pairs before, cheapest last."""
    pairs = sorted(_pairs(sought, hosts, below), key=lambda pair: pair.bound)
    found: list[Placed] = []
    for pair in pairs[:_PAIRS]:
        if pair.bound >= below:
            break
        progress(f"prefill apart: {pair.decode.deployment}")
        placed = _placed(sought, pair, below)
        if isinstance(placed, Placed):
            found.append(placed)
            below = placed.usd_per_hour
    return found


def _placed(sought: Sought, pair: Pair, below: float = math.inf) -> Placed | NotServed:
    """Split a pair for the smallest bill."""
    sized = cheapest_split(pair, sought.attempts, below)
    if not isinstance(sized, Sized):
        return sized
    split = pair.split(sized.prefill_replicas, sized.replicas - sized.prefill_replicas)
    return Placed(split, sized.replicas, sized)


def nearest_pair(sought: Sought, hosts: Iterable[Hosts]) -> Pair | None:
    """Return the pair that could cost least by the closed form, simulated or not; None if there is none."""
    return min(_pairs(sought, hosts, math.inf), key=lambda pair: pair.bound, default=None)


def resize_apart(sought: Sought, hosts: Hosts) -> Placed | NotServed:
    """Split one pair as cheaply as possible for this load and these SLOs, whatever it costs."""
    pair = pair_of(sought.setup(hosts), hosts, sought.limits.max_utilization)
    return _placed(sought, pair) if isinstance(pair, Pair) else pair


def _pairs(sought: Sought, hosts: Iterable[Hosts], below: float) -> Iterator[Pair]:
    """Yield sensible pairs of layouts: for each GPU, precision and engine, those that take the least GPU time."""
    groups: dict[object, list[Hosts]] = defaultdict(list)
    for one in hosts:
        deployment = one.deployment
        if deployment.engine.key in ENGINES and _may_pay(one, sought.load, below):
            alike = deployment.weights, deployment.kv, deployment.speculation
            groups[deployment.gpu.key, deployment.engine.key, alike].append(one)
    for group in groups.values():
        computing = _least_gpu_time(group, lambda one: prompts_per_s(one.deployment, sought.load, sought.slos))
        answering = _least_gpu_time(group, lambda one: answers_per_s(one.deployment, sought.load, sought.slos))
        for prefill in computing:
            for decode in answering:
                both = replace(decode, prefill=PrefillPool(prefill.deployment, 1), tiers=None)
                pair = pair_of(sought.setup(both), both, sought.limits.max_utilization)
                if isinstance(pair, Pair) and math.isfinite(pair.bound):
                    yield pair


def _may_pay(hosts: Hosts, load: Load, below: float) -> bool:
    """Tell whether the fewest GPUs by arithmetic cost less than ``below``, and a replica fits in one machine."""
    machines = [machine for machine in hosts.machines if machine.offer.gpus >= hosts.deployment.gpus]
    if not machines:
        return False
    cheapest = min(machine.usd_per_hour / machine.offer.gpus for machine in machines)
    gpus = (least_by_arithmetic(hosts.deployment, load) - 1) * hosts.deployment.gpus
    return cheapest * max(2, gpus) < below


def _least_gpu_time(group: Sequence[Hosts], rate_of: Callable[[Hosts], float | None]) -> list[Hosts]:
    rated = [(one.deployment.gpus / rate, place) for place, one in enumerate(group) if (rate := rate_of(one))]
    return [group[place] for _, place in sorted(rated)[:_LAYOUTS]]


def together_breaks(sought: Sought, placed: Placed, hosts: Sequence[Hosts]) -> str | None:
    """Say what breaks if as many GPUs do both in the decode layout; None if nothing does, or it does not run at all."""
    own = next((one for one in hosts if one.deployment == placed.deployment), None)
    found = own and screen(own.deployment, own, sought.load, sought.slos)
    if own is None or not isinstance(found, Screened):
        return found.reason if isinstance(found, NotServed) else None
    replicas = placed.screened.hosts.gpus_of(placed.replicas) // own.deployment.gpus
    return sought.on(found, replicas).breaks if replicas >= sought.load.least_replicas else None


class RatioPoint(Noun):
    """A disaggregated fleet with one split of its GPUs."""

    prefill_replicas: NonNegativeInt  # 0: every replica does both
    decode_replicas: NonNegativeInt
    requests_per_s: NonNegativeFloat  # that it serves within the SLOs; 0: none
    usd_per_mtok: float | None  # at that rate; None if the rate is 0
    kv_transfer_s: float | None = None  # to send the KV of a mean prompt; None if nothing is sent
    is_planned: bool  # the plan's pick, split or not
    is_cheapest: bool = False  # the split that serves the load at the lowest bill, picked or not


def kv_transfer_s(hosts: Hosts, replicas: int, load: Load) -> float:
    """Return the seconds to send the KV of a prompt of mean length to the decode side, as the simulator sends it."""
    assert hosts.prefill is not None
    prefill, decode = hosts.prefill.deployment, hosts.deployment
    sent = sent_bytes(prefill, decode, round(load.workload.input_tokens))
    return sent / link_speed(hosts.link(replicas), decode.gpu)


def splits_of(hosts: Hosts, replicas: int) -> list[tuple[int, int]]:
    """Return splits of the same GPUs, evenly from fewest to most prefill replicas, with the cheapest and 1:1."""
    assert hosts.prefill is not None
    of_one, of_other = hosts.prefill.deployment.gpus, hosts.deployment.gpus
    gpus = hosts.gpus_of(replicas)
    counts = range(1, (gpus - of_other) // of_one + 1)
    places = np.linspace(0, len(counts) - 1, min(RATIOS, len(counts))).round().astype(int)
    even = [gpus // (of_one + of_other)] if gpus % (of_one + of_other) == 0 else []
    chosen = sorted({*(counts[place] for place in places), *even, hosts.prefill.replicas})
    return [(first, (gpus - first * of_one) // of_other) for first in chosen]
