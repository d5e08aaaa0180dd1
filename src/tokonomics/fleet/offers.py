"""Turn price lists into machines that a fleet can buy: what each carries, on which terms, and how soon it starts.

A machine runs as many replicas as it has room for, of one of the best layouts for this demand (``fleet.layouts``), and
is bought whole. Spot zones are AWS's own; elsewhere the offer's spot price stands for one zone, with interruptions as
of the median AWS band.
"""

import datetime as dt
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.engines import Engine, default_engine
from tokonomics.catalog.feeds import Interruptions
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput, option
from tokonomics.fleet.layouts import FleetLayout, layout_name, sized_layouts
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.purchases import FleetOffer
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import known_speed, speed_from
from tokonomics.planner.prospects import layout as layout_text
from tokonomics.planner.prospects import why_doubtful
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.buy import reserved_prices, spot_markets, startup_seconds
from tokonomics.sizing.hosts import Machine, hosts_of, told_apart, usable
from tokonomics.sizing.layouts import Reason, fitting, weight_choices
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun, Speed, copied

_SIZED = 10  # layouts of each class to size by simulation: the rest cost more by the closed form
DRAIN_S = 120.0
"""A machine that is no longer needed takes nothing new for this long before it stops (assumed: longer than most
answers; what is not finished then is answered by another)."""


class MachineKind(Noun):
    """A machine that the fleet may consist of, described for people."""

    name: str
    provider: str
    region: str
    instance: str
    gpu: str
    gpus: int
    layout: str
    weights: Precision
    kv: Precision
    max_sequences: PositiveInt | None = None  # at a time on a replica, if it is not the engine's own limit
    router: Router = Router.least_outstanding  # in front of all replicas of this layout
    speed: Speed  # how the speed of its replicas is known
    speed_from: tuple[str, ...]  # other GPUs whose kernel timings it is scaled from
    replicas: int
    requests_per_s: dict[str, PositiveFloat]  # one machine, by size class, in the fleet for the busiest hour
    startup_s: NonNegativeFloat
    price_date: dt.date
    price_source: str
    price_stale: bool

    @property
    def where(self) -> str:
        """Return the provider and its region."""
        return f"{self.provider} {self.region}"


_Priced = tuple[FleetOffer, MachineKind, FleetLayout]


@dataclass(frozen=True)
class Machines:
    """The offers that the program chooses from, and the machine behind each name."""

    offers: tuple[FleetOffer, ...]
    kinds: dict[str, MachineKind]
    layouts: dict[str, FleetLayout]  # how the replicas of each are served
    e2e_p99_s: float  # of a request in the busiest hour, on the slowest layout
    refused: dict[str, str] = field(default_factory=dict)  # by layout: why it is refused

    def only(self, offers: Sequence[FleetOffer]) -> "Machines":
        """Return the machines of these offers."""
        kinds = {offer.name: self.kinds[offer.name] for offer in offers}
        return replace(self, offers=tuple(offers), kinds=kinds)

    def counted_less(self, share: float) -> "Machines":
        """Return the same machines, each assumed to carry that share."""

        def less(machine: FleetOffer | MachineKind) -> dict[str, object]:
            return {"requests_per_s": {name: rate * share for name, rate in machine.requests_per_s.items()}}

        kinds = {name: kind.model_copy(update=less(kind)) for name, kind in self.kinds.items()}
        offers = []
        for offer in self.offers:
            levels = {name: tuple((rate, one * share) for rate, one in pairs) for name, pairs in offer.levels.items()}
            offers.append(offer.model_copy(update={**less(offer), "levels": levels}))
        return replace(self, offers=tuple(offers), kinds=kinds)


@dataclass(frozen=True, kw_only=True)
class FleetMarket:
    """How machines may be bought, and what is assumed about them."""

    today: dt.date
    terms: Sequence[Terms] = tuple(Terms)
    startup_s: float | None = None  # from ordering a machine to its first answer; None estimates it
    interruptions: Interruptions | None = None  # of spot machines; None: as known for each
    aws_zones: bool = True
    most_zones: int = 4
    anywhere: bool = False  # in several regions at once


def fleet_machines(
    model: ModelSpec,
    engine: Engine | None,
    offers: Sequence[Offer],
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    market: FleetMarket,
    *,
    weights: tuple[Precision, ...] | None = None,
    kv: tuple[Precision, ...] = (Precision.bf16,),
    doubtful: bool = True,
    sized: int = _SIZED,
    say: Say = silent,
) -> Machines:
    """Return every machine worth considering for this traffic, priced on the terms allowed.

    Without an ``engine``, each GPU has the one that runs there by default. Layouts at an assumed speed or over several
    consumer cards are taken if ``doubtful`` ones are, or if there is no other.
    """
    terms, today = market.terms, market.today
    stocks, unsold = usable(offers, terms, today)

    def standing(deployment: Deployment) -> list[Machine]:
        """Return the machines with room for a whole replica, at the prices that count."""
        hosts, _ = hosts_of(deployment, stocks[deployment.gpu.key])
        return [machine for machine in hosts.machines if machine.offer.gpus >= deployment.gpus]

    old = [offer.date for offer, refusal in unsold if refusal.kind is Reason.old_price]
    if old and not stocks:
        fix = f"Give prices of your own ({option('offers', 'mine.csv')}), or run `tokonomics offers --refresh`."
        raise BadInput(f"every price is over a year old, the newest of {max(old)}", fix=fix)
    if not stocks:
        wanted = ", ".join(term.replace("_", " ") for term in terms)
        fix = f"Loosen {option('terms')}, {option('gpu')} or {option('region')}."
        raise BadInput(f"no offer has a price on these terms ({wanted})", fix=fix)
    longest = min(model.max_context, max(traffic.load_of(size).longest for size in traffic.samples))
    choices = weights or weight_choices(model)
    in_one_machine = [
        deployment
        for gpu, stock in ((find_gpu(key), stock) for key, stock in stocks.items())
        for most_gpus in [max(shape.gpus for shape in stock.shapes)]
        for runs in [engine or default_engine(gpu.architecture)]
        for deployment, _ in fitting(model, gpu, runs, runs.loads(choices), kv, most_gpus, longest)
        if deployment.gpus <= most_gpus
    ]
    unknown = {
        layout_name(deployment): why.reason
        for deployment in in_one_machine
        if (why := why_doubtful(deployment, doubtful, doubtful))
    }
    known = [deployment for deployment in in_one_machine if layout_name(deployment) not in unknown]
    layouts, refused = sized_layouts(known or in_one_machine, standing, traffic, slos, sized, say)
    sold = list({id(machine.offer): machine.offer for stock in stocks.values() for machine in stock}.values())
    apart = {id(offer): name for offer, name in zip(sold, told_apart(sold), strict=True)}
    priced = [
        _machine(offer, apart[id(offer)], bought, layout, market)
        for layout in layouts
        for offer, bought in _terms_of(standing(layout.deployment), terms)
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
    """Return each offer once, with the terms on which its price counts; spot prices may be known only by zone."""
    found: dict[int, tuple[Offer, list[Terms]]] = {}
    for machine in machines:
        offer = machine.offer
        by_zone = [Terms.spot] if Terms.spot in terms and offer.price(Terms.spot) is None else []
        found.setdefault(id(offer), (offer, by_zone))[1].append(machine.terms)
    return found.values()


def _machine(offer: Offer, apart: str, terms: Sequence[Terms], layout: FleetLayout, market: FleetMarket) -> _Priced:
    """Return a machine with replicas of a layout: its offer with prices on these terms, and its description."""
    replicas, split = offer.gpus // layout.deployment.gpus, layout_text(layout.deployment)
    kind = MachineKind(
        name=f"{offer.provider} {offer.instance} {offer.region}{apart} {split}",
        **copied(offer, "provider", "region", "instance", "gpu", "gpus"),
        layout=split,
        **copied(layout.deployment, "weights", "kv"),
        **copied(layout, "max_sequences", "router"),
        speed=known_speed(layout.deployment),
        speed_from=speed_from(layout.deployment),
        replicas=replicas,
        requests_per_s={size: rate * replicas for size, rate in layout.rates.items()},
        startup_s=startup_seconds(layout.deployment) if market.startup_s is None else market.startup_s,
        price_date=offer.date,
        price_source=offer.source,
        price_stale=offer.is_stale(market.today),
    )
    priced = FleetOffer(
        **copied(kind, "name", "requests_per_s", "replicas", "gpus", "startup_s"),
        levels={size: tuple((rate, one * replicas) for rate, one in pairs) for size, pairs in layout.levels.items()},
        usd_per_hour=offer.usd_per_hour if Terms.on_demand in terms else None,
        list_usd_per_hour=offer.usd_per_hour,
        reserved=reserved_prices(offer) if Terms.reserved in terms else {},
        spot=spot_markets(offer, market.interruptions, market.aws_zones) if Terms.spot in terms else (),
        drain_s=DRAIN_S,
        answer_s=layout.answer_s,
    )
    return priced, kind, layout


def _worth_a_look(priced: Sequence[_Priced], most_zones: int, anywhere: bool) -> list[_Priced]:
    """Keep the cheapest on each terms of the machines in a place that carry the same: no fleet needs the others."""
    groups: dict[tuple[str, int, str], list[_Priced]] = {}
    for machine in priced:
        _, kind, layout = machine
        groups.setdefault((layout.name, kind.gpus, "" if anywhere else kind.where), []).append(machine)
    kept: dict[str, _Priced] = {}
    for group in groups.values():
        firm = [{"on demand": offer.usd_per_hour, **offer.reserved} for offer, _, _ in group]
        for term in ("on demand", "1 year", "3 years"):
            sold = [(usd, machine) for prices, machine in zip(firm, group, strict=True) if (usd := prices.get(term))]
            if sold:
                _, best = min(sold, key=lambda quoted: (quoted[0], quoted[1][0].name))
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
    """Return how many zones each kind of machine needs, so that a limit on one zone can be met."""
    return 4 if max_zone_share <= 0 else max(4, math.ceil(1 / max_zone_share) + 1)
