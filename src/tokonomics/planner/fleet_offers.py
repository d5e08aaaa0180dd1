"""From price lists to machines a fleet can be bought of: which layout each kind runs, and what it carries.

Every GPU sold is tried at every degree of tensor parallelism in closed form. The layouts that would be cheapest for
this demand, class by class and in whole machines, are then measured: the highest rate that keeps the promises, by
simulation. A machine runs as many replicas side by side as it has room for and is bought whole. Spot zones are AWS's
own; elsewhere the offer's spot price stands for a zone of its own, with interruptions as of the median AWS band.
"""

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms, oldest_days
from tokonomics.catalog.precision import Precision
from tokonomics.catalog.spot import Interruptions, load_bands, load_zone_prices
from tokonomics.errors import BadInput
from tokonomics.money.demand import EVERY_SIZE
from tokonomics.money.fleet import ADVISOR, FleetOffer, SpotMarket, aws_spot
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment, valid_tp
from tokonomics.planner.candidates import why_not
from tokonomics.planner.fleet_traffic import FleetTraffic
from tokonomics.planner.machines import has_room, told_apart
from tokonomics.planner.screen import tpot_limit
from tokonomics.serving.capacity import NeverHolds, highest_rate
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.steady import MissesPromise, ReplicaCurve
from tokonomics.traffic.promises import Promise
from tokonomics.traffic.trace import Trace
from tokonomics.units import seconds

MEASURED = 10
"""Layouts simulated: the rest would be dearer in closed form."""
READY_S = 180.0
"""From the order to an engine that loads weights: machine 1 min, container image 1 to 2, engine and its graphs half
(assumed: what public accounts of vLLM on cloud machines come to; --startup sets your own)."""
LOAD_BYTES_PER_S = 1e9
"""Weights from a network disk: the most an AWS gp3 volume gives (EBS user guide: 1,000 MiB/s)."""
DRAIN_S = 120.0
"""A machine that is no longer needed takes nothing new for so long before it stops (assumed: longer than most answers;
what is not finished then is answered by another)."""
ASSUMED = "assumed"
MARGIN = 0.97
"""Of the highest rate that held, since that was one draw of 20,000 requests. Llama 3.1 8B on RTX PRO 6000, L40S and
H100, 900 tokens in, 99 out, ttft_p99 of 1 s, eight other hours each: at that rate 10 of 24 broke it (2.8 s at worst),
at 97 % of it none (0.86 s)."""
_FIRST_GUESS = 0.8
_ALONE = 1_000
"""Requests sent one at a time, each after so many times the time that one takes at full load."""

Say = Callable[[str], None]


class MachineKind(Noun):
    """A machine that the fleet may be made of, for a person to read."""

    name: str
    provider: str
    region: str
    instance: str
    gpu: str
    gpus: int
    layout: str
    replicas: int
    requests_per_s: dict[str, PositiveFloat]
    """One machine, by size class, as measured."""
    startup_s: NonNegativeFloat
    price_date: dt.date
    price_stale: bool


@dataclass(frozen=True)
class Machines:
    """What the program chooses from, and what stands behind each name."""

    offers: tuple[FleetOffer, ...]
    kinds: dict[str, MachineKind]
    deployments: dict[str, Deployment]
    e2e_p99_s: float
    """Of a request at the highest rate, on the slowest layout measured: how long a long answer takes."""
    refused: dict[str, str] = field(default_factory=dict)
    """By layout: why it is out."""

    def only(self, offers: Sequence[FleetOffer]) -> "Machines":
        """Some of them."""
        kinds = {offer.name: self.kinds[offer.name] for offer in offers}
        return replace(self, offers=tuple(offers), kinds=kinds)

    def counted_less(self, share: float) -> "Machines":
        """The same machines, each counted on for that share."""

        def less(rates: Mapping[str, float]) -> dict[str, float]:
            return {name: rate * share for name, rate in rates.items()}

        return replace(
            self,
            offers=tuple(each.model_copy(update={"requests_per_s": less(each.requests_per_s)}) for each in self.offers),
            kinds={
                name: each.model_copy(update={"requests_per_s": less(each.requests_per_s)})
                for name, each in self.kinds.items()
            },
        )


class Refused(NamedTuple):
    """Why a layout is out; the smallest came nearest: broken in simulation, too slow even alone, or no room."""

    kind: int
    distance: float
    text: str


@dataclass(frozen=True)
class _Layout:
    deployment: Deployment
    rates: dict[str, float]
    """Of one replica, by class, in closed form."""


def fleet_machines(
    model: ModelSpec,
    engine: Engine,
    offers: Sequence[Offer],
    traffic: FleetTraffic,
    promises: Sequence[Promise],
    *,
    weights: Precision | None = None,
    kv: Precision = Precision.bf16,
    terms: Sequence[Terms] = tuple(Terms),
    today: dt.date,
    startup_s: float | None = None,
    interruptions: Interruptions | None = None,
    aws_zones: bool = True,
    most_zones: int = 4,
    anywhere: bool = False,
    measured: int = MEASURED,
    say: Say = lambda what: None,
) -> Machines:
    """Every machine worth considering for this traffic, priced on the terms allowed."""
    sold = _recent([offer for offer in offers if _cheapest(offer, terms) is not None], today)
    if not sold:
        wanted = ", ".join(each.replace("_", " ") for each in terms)
        raise BadInput(f"no offer has a price on these terms ({wanted})", fix="Loosen --terms, --gpu or --region.")
    refused: dict[str, Refused] = {}
    layouts = _layouts(model, engine, sold, traffic, promises, weights or model.served, kv, refused)
    leading = _leading(layouts, sold, traffic, terms, measured)
    rates: dict[str, dict[str, float]] = {}
    answers_s: dict[str, float] = {}
    for place, layout in enumerate(leading, 1):
        name = _name(layout.deployment)
        say(f"capacity of {name} ({place} of {len(leading)})")
        rates[name] = {}
        for size, guess in layout.rates.items():
            sample = traffic.samples[size]
            broken = _broken_alone(layout.deployment, sample, promises, guess)
            if broken:
                refused[name] = broken
                continue
            try:
                rate, e2e = measure(layout.deployment, sample, promises, guess * _FIRST_GUESS)
            except NeverHolds as never:
                refused[name] = Refused(0, 1.0, f"{never.what}. {never.fix or ''}".strip())
                continue
            rates[name][size], answers_s[name] = rate, max(answers_s.get(name, 0.0), e2e)
    _check_held(traffic, rates, refused)
    kept = [layout for layout in leading if rates[_name(layout.deployment)]]
    made = [
        _machine(offer, apart, layout.deployment, rates[_name(layout.deployment)], startup_s, answers_s)
        for layout in kept
        for offer, apart in zip(sold, told_apart(sold), strict=True)
        if _hosts(offer, layout.deployment)
    ]
    priced = [(_priced(each, terms, interruptions, aws_zones), each) for each in made]
    chosen = _worth_a_look([each for each in priced if each[0].prices], most_zones, anywhere)
    return Machines(
        offers=tuple(offer for offer, _ in chosen),
        kinds={each.name: _described(each, today) for _, each in chosen},
        deployments={each.name: each.deployment for _, each in chosen},
        e2e_p99_s=max(answers_s.values()),
        refused={name: each.text for name, each in refused.items()},
    )


def startup_seconds(deployment: Deployment) -> float:
    """Boot, image and engine, then the weights from a network disk."""
    return READY_S + deployment.model.weight_bytes(deployment.weights) / LOAD_BYTES_PER_S


def measure(deployment: Deployment, sample: Trace, promises: Sequence[Promise], guess: float) -> tuple[float, float]:
    """The rate that one replica is counted on for under the promises, and the p99 of a whole answer there."""
    best = highest_rate(lambda requests: simulate(deployment, requests), sample, promises, guess)
    return best.rate * MARGIN, best.outcome.e2e_s.p99 or 0.0


def _broken_alone(deployment: Deployment, sample: Trace, promises: Sequence[Promise], guess: float) -> "Refused | None":
    """The promise that breaks even if requests come one at a time: no need to search a rate."""
    few = sample.take(np.arange(min(len(sample), _ALONE)))
    slowly = few.faster(guess / (_ALONE * few.rate)) if few.rate > 0 else few
    broken = [
        each for each in outcome(simulate(deployment, slowly), promises).slo if not each.kept and each.delivered_s
    ]
    if not broken:
        return None
    worst = max(broken, key=lambda each: (each.delivered_s or 0.0) / each.promised_s)
    late = (worst.delivered_s or 0.0) / worst.promised_s
    delivered, promised = seconds(worst.delivered_s or 0.0), seconds(worst.promised_s)
    return Refused(0, late, f"{worst.promise} is {delivered} even for one request at a time, {promised} promised")


def assumed_interruptions() -> Interruptions:
    """Where no advisor speaks: those of the median band of AWS's GPU machines."""
    return Interruptions(per_hour=median(band.interruptions.per_hour for band in load_bands().values()))


# --- layouts --------------------------------------------------------------------------------------------------------


def _layouts(
    model: ModelSpec,
    engine: Engine,
    sold: Sequence[Offer],
    traffic: FleetTraffic,
    promises: Sequence[Promise],
    weights: Precision,
    kv: Precision,
    refused: "dict[str, Refused]",
) -> list[_Layout]:
    """Each GPU sold at each degree of tensor parallelism, with what a replica carries of each class it holds."""
    tpot_s = tpot_limit(promises)
    largest: dict[str, int] = {}
    for offer in sold:
        largest[offer.gpu] = max(largest.get(offer.gpu, 0), offer.gpus)
    made = []
    for gpu, most in largest.items():
        for tp in valid_tp(model, most):
            deployment = Deployment(model=model, gpu=find_gpu(gpu), engine=engine, tp=tp, weights=weights, kv=kv)
            rates: dict[str, float] = {}
            for size, sample in traffic.samples.items():
                longest = int((sample.input_tokens + sample.output_tokens).max())
                refusal = why_not(deployment, min(longest, model.max_context))
                if refusal:
                    refused.setdefault(_name(deployment), Refused(2, -deployment.gpus, refusal.reason))
                    continue
                inputs, outputs = (
                    max(1, round(float(each.mean()))) for each in (sample.input_tokens, sample.output_tokens)
                )
                try:
                    rates[size] = ReplicaCurve(deployment, inputs, outputs).capacity(tpot_s).rate
                except MissesPromise as miss:
                    refused.setdefault(_name(deployment), Refused(1, miss.tpot_s, miss.what))
            if rates:
                made.append(_Layout(deployment, rates))
    return made


def _leading(
    layouts: Sequence[_Layout], sold: Sequence[Offer], traffic: FleetTraffic, terms: Sequence[Terms], most: int
) -> list[_Layout]:
    """For each class the layouts whose cheapest machines would carry it for the smallest bill, whole ones only."""
    chosen: dict[str, _Layout] = {}
    for size in traffic.samples:
        demand = np.asarray(traffic.demand.rates[size])
        bills: list[tuple[float, str, _Layout]] = []
        for layout in layouts:
            if size not in layout.rates:
                continue
            hosts = [
                (offer.gpus // layout.deployment.gpus, price)
                for offer in sold
                if _hosts(offer, layout.deployment) and (price := _cheapest(offer, terms)) is not None
            ]
            if hosts:
                bill = min(
                    float(np.ceil(demand / (replicas * layout.rates[size]) - 1e-9).sum()) * price
                    for replicas, price in set(hosts)
                )
                bills.append((bill, _name(layout.deployment), layout))
        for _, name, layout in sorted(bills, key=lambda each: each[:2])[:most]:
            chosen.setdefault(name, layout)
    return list(chosen.values())


def _check_held(
    traffic: FleetTraffic, rates: Mapping[str, Mapping[str, float]], refused: "Mapping[str, Refused]"
) -> None:
    """A class that nothing sold can hold: say what stood in the way of the layout that came nearest."""
    for size in traffic.samples:
        if any(size in each for each in rates.values()):
            continue
        name, nearest = min(refused.items(), key=lambda each: each[1])
        whom = "" if size == EVERY_SIZE else f" for requests of {size}"
        raise BadInput(
            f"no machine on offer can hold the model{whom}"
            if nearest.kind == 2
            else f"no machine on offer keeps the promises{whom}",
            where="--slo" if nearest.kind < 2 else None,
            fix=f"The nearest is {name}: {nearest.text}",
        )


# --- machines -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Machine:
    name: str
    offer: Offer
    deployment: Deployment
    requests_per_s: dict[str, float]
    replicas: int
    startup_s: float
    answer_s: float


def _machine(
    offer: Offer,
    apart: str,
    deployment: Deployment,
    rates: Mapping[str, float],
    startup_s: float | None,
    answers_s: Mapping[str, float],
) -> _Machine:
    replicas = offer.gpus // deployment.gpus
    return _Machine(
        name=f"{offer.provider} {offer.instance} {offer.region}{apart} {_layout_name(deployment)}",
        offer=offer,
        deployment=deployment,
        requests_per_s={size: rate * replicas for size, rate in rates.items()},
        replicas=replicas,
        startup_s=startup_seconds(deployment) if startup_s is None else startup_s,
        answer_s=answers_s[_name(deployment)],
    )


def _priced(
    machine: _Machine, terms: Sequence[Terms], interruptions: Interruptions | None, aws_zones: bool
) -> FleetOffer:
    offer = machine.offer
    return FleetOffer(
        name=machine.name,
        requests_per_s=machine.requests_per_s,
        replicas=machine.replicas,
        gpus=offer.gpus,
        usd_per_hour=offer.usd_per_hour if Terms.on_demand in terms else None,
        list_usd_per_hour=offer.usd_per_hour,
        reserved=reserved_prices(offer) if Terms.reserved in terms else {},
        spot=spot_markets(offer, interruptions, aws_zones) if Terms.spot in terms else (),
        startup_s=machine.startup_s,
        drain_s=DRAIN_S,
        answer_s=machine.answer_s,
    )


def reserved_prices(offer: Offer) -> dict[str, float]:
    """USD per hour by commitment."""
    quoted = {"1 year": offer.reserved_1yr_usd_per_hour, "3 years": offer.reserved_3yr_usd_per_hour}
    return {term: price for term, price in quoted.items() if price is not None}


def spot_markets(
    offer: Offer, interruptions: Interruptions | None = None, aws_zones: bool = True
) -> tuple[SpotMarket, ...]:
    """The zones that sell it; elsewhere one zone that stands for the region.

    An AWS machine whose zones are not listed is not counted on: which of the others' zones it shares is not known.
    """
    if aws_zones and offer.provider == "aws":
        if offer.instance not in load_zone_prices():
            return ()
        if interruptions is None and (offer.instance, offer.region) not in load_bands():
            return aws_spot(offer.instance, offer.region, assumed_interruptions(), ASSUMED)
        return aws_spot(offer.instance, offer.region, interruptions)
    if offer.spot_usd_per_hour is None:
        return ()
    known = load_bands().get((offer.instance, offer.region)) if offer.provider == "aws" else None
    taken = interruptions or (known.interruptions if known else assumed_interruptions())
    said_by = "given" if interruptions else ADVISOR if known else ASSUMED
    zone = f"{offer.provider} {offer.region}"
    return (SpotMarket(zone=zone, usd_per_hour=offer.spot_usd_per_hour, interruptions=taken, interruptions_by=said_by),)


def _worth_a_look(
    priced: Sequence[tuple[FleetOffer, _Machine]], most_zones: int, anywhere: bool
) -> list[tuple[FleetOffer, _Machine]]:
    """Of machines of a place that carry the same, the cheapest on each terms: others are in no cheaper fleet."""
    groups: dict[tuple[str, int, str], list[tuple[FleetOffer, _Machine]]] = {}
    for each in priced:
        sold_as = each[1].offer
        place = "" if anywhere else f"{sold_as.provider} {sold_as.region}"
        groups.setdefault((_name(each[1].deployment), sold_as.gpus, place), []).append(each)
    kept: dict[str, tuple[FleetOffer, _Machine]] = {}
    for group in groups.values():
        firm: list[Callable[[FleetOffer], float | None]] = [
            lambda offer: offer.usd_per_hour,
            lambda offer: offer.reserved.get("1 year"),
            lambda offer: offer.reserved.get("3 years"),
        ]
        for price in firm:
            sold = [each for each in group if price(each[0]) is not None]
            if sold:
                best = min(sold, key=lambda each: (price(each[0]), each[0].name))
                kept[best[0].name] = best
        markets = sorted(
            (
                (market.usd_per_hour, market.p90_to_median, each[0].name, market.zone, each)
                for each in group
                for market in each[0].spot
            ),
            key=lambda each: each[:4],
        )
        spot_zones: dict[str, set[str]] = {}
        for *_, name, zone, each in markets[:most_zones]:
            kept.setdefault(name, each)
            spot_zones.setdefault(name, set()).add(zone)
        for offer, machine in group:
            if offer.name in kept:
                zones = spot_zones.get(offer.name, set())
                left = tuple(market for market in offer.spot if market.zone in zones)
                kept[offer.name] = (offer.model_copy(update={"spot": left}), machine)
    return list(kept.values())


def _described(machine: _Machine, today: dt.date) -> MachineKind:
    offer = machine.offer
    return MachineKind(
        name=machine.name,
        provider=offer.provider,
        region=offer.region,
        instance=offer.instance,
        gpu=offer.gpu,
        gpus=offer.gpus,
        layout=_layout_name(machine.deployment),
        replicas=machine.replicas,
        requests_per_s=machine.requests_per_s,
        startup_s=machine.startup_s,
        price_date=offer.date,
        price_stale=offer.is_stale(today),
    )


def _hosts(offer: Offer, deployment: Deployment) -> bool:
    """Enough GPUs of the kind, and a host with memory enough."""
    return offer.gpu == deployment.gpu.key and offer.gpus >= deployment.gpus and has_room(deployment, offer)


def _cheapest(offer: Offer, terms: Sequence[Terms]) -> float | None:
    return min((price for each in terms if (price := offer.price(each)) is not None), default=None)


def _recent(offers: Sequence[Offer], today: dt.date) -> list[Offer]:
    """Without prices over a year old; or, if all are older, a year older than the newest."""
    oldest = oldest_days(offers, today)
    return [offer for offer in offers if offer.age_days(today) <= oldest]


def _name(deployment: Deployment) -> str:
    return f"{deployment.gpus}×{deployment.gpu.key} {deployment.weights}"


def _layout_name(deployment: Deployment) -> str:
    return f"TP{deployment.tp}"


def zones_needed(max_zone_share: float) -> int:
    """Zones to choose from for each kind of machine, so that a limit on one zone can be met."""
    return 4 if max_zone_share <= 0 else max(4, math.ceil(1 / max_zone_share) + 1)
