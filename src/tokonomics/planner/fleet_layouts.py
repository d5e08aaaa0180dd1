"""Which layouts of a model a fleet is made of: every GPU sold at every degree of tensor parallelism, the best measured.

All are tried in closed form. Those that would be cheapest for this demand, class by class and in whole machines, are
then measured: the highest rate that meets the SLOs, by simulation, and a little less than it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput
from tokonomics.money.demand import EVERY_SIZE
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.candidates import why_not
from tokonomics.planner.fleet_traffic import FleetTraffic
from tokonomics.planner.hosts import room_for
from tokonomics.planner.screen import tpot_limit
from tokonomics.planner.setup import Say
from tokonomics.serving.capacity import NeverHolds, highest_rate
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.steady import MissesSlo, ReplicaCurve
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace
from tokonomics.units import seconds

MARGIN = 0.97
"""Of the highest rate that held, since that was one draw of 20,000 requests. Llama 3.1 8B on RTX PRO 6000, L40S and
H100, 900 tokens in, 99 out, ttft_p99 of 1 s, eight other hours each: at that rate 10 of 24 broke it (2.8 s at worst),
at 97 % of it none (0.86 s)."""
_FIRST_GUESS = 0.8
_ALONE = 1_000
"""Requests sent one at a time, each after so many times the time that one takes at full load."""

_THIN = "every host has too little memory to load the weights"


class Refused(NamedTuple):
    """Why a layout is out; the smallest came nearest: SLO missed in simulation, too slow even alone, or no room."""

    kind: int
    distance: float
    text: str


@dataclass(frozen=True)
class FleetLayout:
    """A way to run the model, with what a replica of it carries: in closed form, or as it is counted on."""

    deployment: Deployment
    rates: dict[str, float]
    """Requests a second, by class."""
    answer_s: float = 0.0
    """A long answer (p99) at these rates, of the slowest class, once it is measured."""

    @property
    def name(self) -> str:
        return layout_name(self.deployment)


def measured_layouts(
    deployments: Sequence[Deployment],
    sold: Sequence[Offer],
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    terms: Sequence[Terms],
    most: int,
    say: Say,
) -> tuple[list[FleetLayout], dict[str, str]]:
    """For each class at most so many of those that meet the SLOs when requests come one at a time, measured; and by
    name why others are out."""
    refused: dict[str, Refused] = {}
    layouts = _layouts(deployments, traffic, slos, refused)
    alone: dict[tuple[str, str], Refused | None] = {}

    def breaks_alone(layout: FleetLayout, size: str) -> bool:
        key = layout.name, size
        if key not in alone:
            alone[key] = _missed_alone(layout.deployment, traffic.samples[size], slos, layout.rates[size])
            if found := alone[key]:
                refused[layout.name] = found
        return alone[key] is not None

    leading: dict[str, FleetLayout] = {}
    for size in traffic.samples:
        in_order = _by_bill(layouts, sold, traffic, terms, size, refused)
        fit = (layout for layout in in_order if not breaks_alone(layout, size))
        leading |= {layout.name: layout for layout in islice(fit, most)}
    kept: list[FleetLayout] = []
    for place, (name, layout) in enumerate(leading.items(), 1):
        say(f"capacity of {name} ({place} of {len(leading)})")
        rates: dict[str, float] = {}
        answer_s = 0.0
        for size, guess in layout.rates.items():
            if breaks_alone(layout, size):
                continue
            try:
                rates[size], e2e_s = measure(layout.deployment, traffic.samples[size], slos, guess * _FIRST_GUESS)
                answer_s = max(answer_s, e2e_s)
            except NeverHolds as never:
                refused[name] = Refused(0, 1.0, f"{never.what}. {never.fix or ''}".strip())
        if rates:
            kept.append(FleetLayout(layout.deployment, rates, answer_s))
    _check_held(traffic, kept, refused)
    return kept, {name: refusal.text for name, refusal in refused.items()}


def measure(deployment: Deployment, sample: Trace, slos: Sequence[Slo], guess: float) -> tuple[float, float]:
    """The rate that one replica is counted on for under the SLOs, and the p99 of a whole answer there."""
    best = highest_rate(lambda requests: simulate(deployment, requests), sample, slos, guess)
    return best.rate * MARGIN, best.outcome.e2e_s.p99 or 0.0


def _missed_alone(deployment: Deployment, sample: Trace, slos: Sequence[Slo], guess: float) -> Refused | None:
    """The SLO that is missed even if requests come one at a time: no need to search a rate."""
    few = sample.take(np.arange(min(len(sample), _ALONE)))
    slowly = few.faster(guess / (_ALONE * few.rate)) if few.rate > 0 else few
    judged = outcome(simulate(deployment, slowly), slos).slo
    missed = [(slo.delivered_s / slo.objective_s, slo) for slo in judged if not slo.met and slo.delivered_s]
    if not missed:
        return None
    late, worst = max(missed, key=lambda pair: pair[0])
    delivered, target = seconds(worst.delivered_s or 0.0), seconds(worst.objective_s)
    return Refused(0, late, f"{worst.slo} is {delivered} even for one request at a time; the SLO is {target}")


def _layouts(
    deployments: Sequence[Deployment], traffic: FleetTraffic, slos: Sequence[Slo], refused: dict[str, Refused]
) -> list[FleetLayout]:
    """What a replica of each carries of the classes that it holds, in closed form."""
    tpot_s, layouts = tpot_limit(slos), []
    for deployment in deployments:
        name, rates = layout_name(deployment), {}
        for size, sample in traffic.samples.items():
            longest = int((sample.input_tokens + sample.output_tokens).max())
            if refusal := why_not(deployment, min(longest, deployment.model.max_context)):
                refused.setdefault(name, Refused(2, -deployment.gpus, refusal.reason))
                continue
            lengths = (max(1, round(float(of.mean()))) for of in (sample.input_tokens, sample.output_tokens))
            try:
                rates[size] = ReplicaCurve(deployment, *lengths).capacity(tpot_s).rate
            except MissesSlo as miss:
                refused.setdefault(name, Refused(1, miss.tpot_s, miss.what))
        if rates:
            layouts.append(FleetLayout(deployment, rates))
    return layouts


def _by_bill(
    layouts: Sequence[FleetLayout],
    sold: Sequence[Offer],
    traffic: FleetTraffic,
    terms: Sequence[Terms],
    size: str,
    refused: dict[str, Refused],
) -> list[FleetLayout]:
    """Those that hold a class, the one whose cheapest machines would carry it for the smallest bill first."""
    demand = np.asarray(traffic.demand.rates[size])
    bills: list[tuple[float, str, FleetLayout]] = []
    for layout in layouts:
        if size not in layout.rates:
            continue
        hosts = {
            (offer.gpus // layout.deployment.gpus, price)
            for offer in filter(stands_on(layout.deployment), sold)
            if (price := cheapest_price(offer, terms)) is not None
        }
        if not hosts:
            refused.setdefault(layout.name, Refused(2, -layout.deployment.gpus, _THIN))
            continue
        # Whole machines only.
        needed = [(np.ceil(demand / (replicas * layout.rates[size]) - 1e-9).sum(), price) for replicas, price in hosts]
        bills.append((min(float(machines) * price for machines, price in needed), layout.name, layout))
    return [layout for _, _, layout in sorted(bills, key=lambda bill: bill[:2])]


def _check_held(traffic: FleetTraffic, kept: Sequence[FleetLayout], refused: Mapping[str, Refused]) -> None:
    """A class that nothing sold can hold: say what stood in the way of the layout that came nearest."""
    for size in traffic.samples:
        if any(size in layout.rates for layout in kept):
            continue
        name, nearest = min(refused.items(), key=lambda refusal: refusal[1])
        whom = "" if size == EVERY_SIZE else f" for requests of {size}"
        fix = f"The nearest is {name}: {nearest.text}"
        if nearest.kind == 2:
            raise BadInput(f"no machine on offer can hold the model{whom}", fix=fix)
        raise BadInput(f"no machine on offer meets the SLOs{whom}", field="slo", fix=fix)


def stands_on(deployment: Deployment) -> Callable[[Offer], bool]:
    """Whether an offer has enough GPUs of the kind, and a host with memory enough."""
    has_room = room_for(deployment)
    return lambda offer: offer.gpu == deployment.gpu.key and offer.gpus >= deployment.gpus and has_room(offer)


def cheapest_price(offer: Offer, terms: Sequence[Terms]) -> float | None:
    return min((price for term in terms if (price := offer.price(term)) is not None), default=None)


def layout_name(deployment: Deployment) -> str:
    return f"{deployment.gpus}×{deployment.gpu.key} {deployment.weights}"
