"""From price lists to machines a fleet can be bought of: what each carries, on which terms, and how soon it is there.

A machine runs as many replicas side by side as it has room for, of a layout that leads for this demand
(``fleet_layouts``), and is bought whole. Spot zones are AWS's own; elsewhere the offer's spot price stands for a zone
of its own, with interruptions as of the median AWS band.
"""

import datetime as dt
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.spot import Interruptions
from tokonomics.errors import BadInput, option
from tokonomics.fleet.layouts import FleetLayout, layout_name, machines_with_room, sized_layouts
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.fleet import FleetOffer, SpotMarket
from tokonomics.physics.intervals import known_speed, speed_from
from tokonomics.planner.prospects import layout as layout_text
from tokonomics.planner.prospects import why_not_known
from tokonomics.serving.fleet import Router
from tokonomics.sizing.buy import reserved_prices, spot_markets, startup_seconds
from tokonomics.sizing.hosts import Machine, told_apart, usable
from tokonomics.sizing.layouts import fitting, weight_choices
from tokonomics.sizing.refusal import Reason
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun, Speed, copied

_SIZED = 10
"""Layouts of each class that are sized by simulation: the rest would cost more in closed form."""
DRAIN_S = 120.0
"""A machine that is no longer needed takes nothing new for so long before it stops (assumed: longer than most answers;
what is not finished then is answered by another)."""


class MachineKind(Noun):
    """A machine that the fleet may be made of, for a person to read."""

    name: str
    provider: str
    region: str
    instance: str
    gpu: str
    gpus: int
    layout: str
    weights: Precision
    kv: Precision
    max_sequences: PositiveInt | None = None
    """At a time on a replica, where it is not the engine's own limit."""
    router: Router = Router.least_outstanding
    """Before all replicas of this layout."""
    speed: Speed
    """How the speed of its replicas is known."""
    speed_from: tuple[str, ...]
    """Other GPUs whose kernel timings it is scaled from."""
    replicas: int
    requests_per_s: dict[str, PositiveFloat]
    """One machine, by size class, in the fleet for the busiest hour."""
    startup_s: NonNegativeFloat
    price_date: dt.date
    price_stale: bool


_Priced = tuple[FleetOffer, MachineKind, FleetLayout]


@dataclass(frozen=True)
class Machines:
    """What the program chooses from, and what stands behind each name."""

    offers: tuple[FleetOffer, ...]
    kinds: dict[str, MachineKind]
    layouts: dict[str, FleetLayout]
    """How the replicas of each are served."""
    e2e_p99_s: float
    """Of a request in the busiest hour, on the slowest layout: how long a long answer takes."""
    refused: dict[str, str] = field(default_factory=dict)
    """By layout: why it is out."""

    def only(self, offers: Sequence[FleetOffer]) -> "Machines":
        kinds = {offer.name: self.kinds[offer.name] for offer in offers}
        return replace(self, offers=tuple(offers), kinds=kinds)

    def counted_less(self, share: float) -> "Machines":
        """The same machines, each counted on for that share."""

        def less(machine: FleetOffer | MachineKind) -> dict[str, dict[str, float]]:
            return {"requests_per_s": {name: rate * share for name, rate in machine.requests_per_s.items()}}

        def levels(offer: FleetOffer) -> dict[str, object]:
            lower = {name: tuple((rate, one * share) for rate, one in levels) for name, levels in offer.levels.items()}
            return {"levels": lower}

        kinds = {name: kind.model_copy(update=less(kind)) for name, kind in self.kinds.items()}
        offers = tuple(offer.model_copy(update=less(offer) | levels(offer)) for offer in self.offers)
        return replace(self, offers=offers, kinds=kinds)


@dataclass(frozen=True, kw_only=True)
class FleetMarket:
    """How machines may be bought, and what is assumed of them."""

    today: dt.date
    terms: Sequence[Terms] = tuple(Terms)
    startup_s: float | None = None
    """From ordering a machine to its first answer; None estimates it."""
    interruptions: Interruptions | None = None
    """Of spot machines; None takes what is known of each."""
    aws_zones: bool = True
    most_zones: int = 4
    anywhere: bool = False
    """In several regions at once."""


def fleet_machines(
    model: ModelSpec,
    engine: Engine,
    offers: Sequence[Offer],
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    market: FleetMarket,
    *,
    weights: tuple[Precision, ...] | None = None,
    kv: tuple[Precision, ...] = (Precision.bf16,),
    assumed_speeds: bool = True,
    sized: int = _SIZED,
    say: Say = silent,
) -> Machines:
    """Every machine worth considering for this traffic, priced on the terms allowed."""
    terms, today = market.terms, market.today
    stocks, unsold = usable(offers, terms, today)
    old = [offer.date for offer, refusal in unsold if refusal.kind is Reason.old_price]
    if old and not stocks:
        newest = max(old)
        fix = f"Give prices of your own ({option('offers', 'mine.csv')}), or run `tokonomics offers --refresh`."
        raise BadInput(f"every price is over a year old, the newest of {newest}", fix=fix)
    if not stocks:
        wanted = ", ".join(term.replace("_", " ") for term in terms)
        fix = f"Loosen {option('terms')}, {option('gpu')} or {option('region')}."
        raise BadInput(f"no offer has a price on these terms ({wanted})", fix=fix)
    longest = min(model.max_context, max(traffic.load_of(size).longest for size in traffic.samples))
    choices = weights or weight_choices(model)
    in_one_machine = [
        deployment
        for gpu, stock in stocks.items()
        for most_gpus in [max(shape.gpus for shape in stock.shapes)]
        for deployment, _ in fitting(model, find_gpu(gpu), engine, choices, kv, most_gpus, longest)
        if deployment.gpus <= most_gpus
    ]
    unknown = {
        layout_name(deployment): why.reason
        for deployment in in_one_machine
        if (why := why_not_known(deployment, assumed_speeds))
    }
    known = [deployment for deployment in in_one_machine if layout_name(deployment) not in unknown]
    standing = partial(machines_with_room, stocks, today)
    layouts, refused = sized_layouts(known or in_one_machine, standing, traffic, slos, sized, say)
    sold = list({id(machine.offer): machine.offer for stock in stocks.values() for machine in stock}.values())
    apart = {id(offer): name for offer, name in zip(sold, told_apart(sold), strict=True)}
    risk = partial(spot_markets, interruptions=market.interruptions, aws_zones=market.aws_zones)
    priced = [
        (_priced(kind, offer, layout, bought, risk), kind, layout)
        for layout in layouts
        for offer, bought in _terms_of(standing(layout.deployment), terms)
        for kind in [_kind(offer, apart[id(offer)], layout, market.startup_s, today)]
    ]
    chosen = _worth_a_look([machine for machine in priced if machine[0].prices], market.most_zones, market.anywhere)
    return Machines(
        offers=tuple(offer for offer, _, _ in chosen),
        kinds={kind.name: kind for _, kind, _ in chosen},
        layouts={kind.name: layout for _, kind, layout in chosen},
        e2e_p99_s=max(layout.answer_s for layout in layouts),
        refused={**(unknown if known else {}), **refused},
    )


def _terms_of(machines: Iterable[Machine], terms: Sequence[Terms]) -> Iterable[tuple[Offer, list[Terms]]]:
    """Each offer once, with the terms on which its price counts; spot prices may be known by zone alone."""
    found: dict[int, tuple[Offer, list[Terms]]] = {}
    for machine in machines:
        offer = machine.offer
        by_zone = [Terms.spot] if Terms.spot in terms and offer.price(Terms.spot) is None else []
        found.setdefault(id(offer), (offer, by_zone))[1].append(machine.terms)
    return found.values()


def _kind(offer: Offer, apart: str, layout: FleetLayout, startup_s: float | None, today: dt.date) -> MachineKind:
    replicas, split = offer.gpus // layout.deployment.gpus, layout_text(layout.deployment)
    return MachineKind(
        name=f"{offer.provider} {offer.instance} {offer.region}{apart} {split}",
        **copied(offer, "provider", "region", "instance", "gpu", "gpus"),
        layout=split,
        **copied(layout.deployment, "weights", "kv"),
        **copied(layout, "max_sequences", "router"),
        speed=known_speed(layout.deployment),
        speed_from=speed_from(layout.deployment),
        replicas=replicas,
        requests_per_s={size: rate * replicas for size, rate in layout.rates.items()},
        startup_s=startup_seconds(layout.deployment) if startup_s is None else startup_s,
        price_date=offer.date,
        price_stale=offer.is_stale(today),
    )


def _priced(
    kind: MachineKind,
    offer: Offer,
    layout: FleetLayout,
    terms: Sequence[Terms],
    markets: Callable[[Offer], tuple[SpotMarket, ...]],
) -> FleetOffer:
    return FleetOffer(
        **copied(kind, "name", "requests_per_s", "replicas", "gpus", "startup_s"),
        levels={
            size: tuple((rate, one * kind.replicas) for rate, one in levels) for size, levels in layout.levels.items()
        },
        usd_per_hour=offer.usd_per_hour if Terms.on_demand in terms else None,
        list_usd_per_hour=offer.usd_per_hour,
        reserved=reserved_prices(offer) if Terms.reserved in terms else {},
        spot=markets(offer) if Terms.spot in terms else (),
        drain_s=DRAIN_S,
        answer_s=layout.answer_s,
    )


def _worth_a_look(priced: Sequence[_Priced], most_zones: int, anywhere: bool) -> list[_Priced]:
    """Of machines of a place that carry the same, the cheapest on each terms: others are in no cheaper fleet."""
    groups: dict[tuple[str, int, str], list[_Priced]] = {}
    for machine in priced:
        _, kind, layout = machine
        place = "" if anywhere else f"{kind.provider} {kind.region}"
        groups.setdefault((layout.name, kind.gpus, place), []).append(machine)
    kept: dict[str, _Priced] = {}
    firm: list[Callable[[FleetOffer], float | None]] = [
        lambda offer: offer.usd_per_hour,
        lambda offer: offer.reserved.get("1 year"),
        lambda offer: offer.reserved.get("3 years"),
    ]
    for group in groups.values():
        for price in firm:
            sold = [machine for machine in group if price(machine[0]) is not None]
            if sold:
                best = min(sold, key=lambda machine: (price(machine[0]), machine[0].name))
                kept[best[0].name] = best
        markets = [
            (market.usd_per_hour, market.p90_to_median, machine[0].name, market.zone, machine)
            for machine in group
            for market in machine[0].spot
        ]
        spot_zones: dict[str, set[str]] = {}
        for *_, name, zone, machine in sorted(markets, key=lambda market: market[:4])[:most_zones]:
            kept.setdefault(name, machine)
            spot_zones.setdefault(name, set()).add(zone)
        for offer, kind, layout in group:
            if offer.name in kept:
                zones = spot_zones.get(offer.name, set())
                left = tuple(market for market in offer.spot if market.zone in zones)
                kept[offer.name] = offer.model_copy(update={"spot": left}), kind, layout
    return list(kept.values())


def zones_needed(max_zone_share: float) -> int:
    """Zones to choose from for each kind of machine, so that a limit on one zone can be met."""
    return 4 if max_zone_share <= 0 else max(4, math.ceil(1 / max_zone_share) + 1)
