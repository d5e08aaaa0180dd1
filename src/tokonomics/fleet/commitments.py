"""Advise what to commit to: draw the months ahead, choose the machine, and find what to reserve of it and when.

A path has a growth of its own, drawn from the user's range, a price of the GPU-hour on demand (``money.price_paths``)
and a speed of the layout within its 80 % interval, which the same replicas turn out to have. Machines for each month
come from the sizing search: one ladder of what a machine carries, from the least demand of any path to the largest. The
schedule is found on some paths and paid on others (``money.commitments``), so that no bill profits from hindsight.
"""

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.offers import PAID_UPFRONT, UNSPECIFIED, Terms, load_offers
from tokonomics.errors import BadInput, option
from tokonomics.fleet.layouts import FleetLayout, layout_for
from tokonomics.fleet.offers import MachineKind, Machines
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.commitments import (
    NOTHING,
    CommitmentWay,
    Futures,
    Schedule,
    Term,
    best_schedule,
    months_of,
    objective,
    way,
    ways_to_buy,
)
from tokonomics.money.price_paths import drawn_prices, price_moves
from tokonomics.money.purchases import Demand, FleetOffer
from tokonomics.physics.intervals import EIGHTY_PERCENT, interval
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

STEP_MONTHS = 3  # commitments start today or some quarters later. Our choice: as often as a budget is looked at
_PATHS = 400  # to decide on, and as many others to pay: the worst tenth is then forty bills


class PathSpread(Noun):
    """Of a figure on all paths: one in ten is below the low, one in ten above the high."""

    low: float
    mid: float
    high: float


class CommitmentStep(Noun):
    """Machines to commit to at the start of a month."""

    month: NonNegativeInt  # from today
    date: dt.date
    term: str
    machines: PositiveInt
    usd_per_hour: PositiveFloat  # one machine; of a later step, expected
    usd_owed: PositiveFloat  # for all of them, to the end of the term


class CommitmentReport(Noun):
    """What to reserve, for how long and in which steps, and what that costs beside other ways to buy."""

    machine: MachineKind
    terms: tuple[Term, ...]
    too_long: tuple[str, ...]  # terms that do not end within the horizon
    usd_per_hour: PositiveFloat  # one machine on demand, today
    months: PositiveInt
    growth: tuple[float, float, float]  # of the demand, a month: low, mid, high
    growth_noise: NonNegativeFloat
    speed: PathSpread  # of the layout ÷ what is predicted
    prices_of: str  # whose history the prices are drawn from
    prices_from: dt.date
    prices_until: dt.date
    end_price: PathSpread  # on demand in the last month ÷ today's
    peak_machines: tuple[PathSpread, ...]  # that the busiest hour of each month needs
    caution: NonNegativeFloat
    paths: PositiveInt
    steps: tuple[CommitmentStep, ...]
    paid_upfront: bool  # the commitments' price is for paying each as a whole when it begins
    reserved: tuple[NonNegativeInt, ...]  # machines, by month
    ways: tuple[CommitmentWay, ...]  # this plan first
    elsewhere: MachineKind | None  # the cheapest on demand of the machines for which nobody quotes a commitment
    elsewhere_way: CommitmentWay | None
    compared: PositiveInt  # machines whose schedules were compared

    @property
    def best_elsewhere(self) -> bool:
        """Decide whether it is cheaper to rent the machine that cannot be reserved."""
        return self.elsewhere_way is not None and self.elsewhere_way.usd_per_month < self.ways[0].usd_per_month

    @property
    def owed_usd(self) -> float:
        """Return what is owed for all steps."""
        return math.fsum(step.usd_owed for step in self.steps)


@dataclass(frozen=True)
class Outlook:
    """What the buyer expects of the months ahead."""

    months: int = 36
    growth: tuple[float, float, float] = (0.0, 0.0, 0.0)  # a month: low, mid, high
    noise: float = 0.0  # standard deviation of a month's demand about its trend, in logarithms
    caution: float = 0.0
    usd_per_gpu_hour: dict[str, float] | None = None  # by term, instead of what offers quote

    def terms_of(self, offer: FleetOffer) -> tuple[Term, ...]:
        """Return the commitments on a machine, at the buyer's own prices if given."""
        own = self.usd_per_gpu_hour
        quoted = offer.reserved if own is None else {name: usd * offer.gpus for name, usd in own.items()}
        return tuple(Term(name=name, months=months_of(name), usd_per_hour=usd) for name, usd in quoted.items())


@dataclass(frozen=True)
class _Drawn:
    """Paths of the demand, and of how fast replicas turn out to be, before machines and prices."""

    scales: Floats  # path × month: demand ÷ today's
    luck: Floats  # path: of the speed, a standard normal variable
    prices: np.random.SeedSequence

    def speeds(self, layout: FleetLayout) -> Floats:
        """Return each path's speed ÷ prediction: the logarithm is normal to either side, 80 % within the interval."""
        around = interval(1.0, "throughput", layout.deployment)
        width = np.where(self.luck < 0, -math.log(around.low), math.log(around.high)) / EIGHTY_PERCENT
        found: Floats = np.exp(self.luck * width)
        return found

    def demand(self, layout: FleetLayout) -> Floats:
        """Return demand ÷ today's, as large as it is for replicas of that speed: path × month."""
        found: Floats = self.scales / self.speeds(layout)[:, None]
        return found


def _drawn(outlook: Outlook, seed: np.random.SeedSequence) -> _Drawn:
    own, prices = seed.spawn(2)
    rng = np.random.default_rng(own)
    growth = _triangular(_strata(rng), *outlook.growth)
    noise = outlook.noise * rng.normal(size=(_PATHS, outlook.months)) - outlook.noise**2 / 2
    noise[:, 0] = 0.0  # today's demand is known
    trend = (1 + growth[:, None]) ** np.arange(outlook.months)
    luck = np.array([NormalDist().inv_cdf(share) for share in _strata(rng)])
    return _Drawn(trend * np.exp(noise), luck, prices)


def _strata(rng: np.random.Generator) -> Floats:
    """Return evenly spaced shares in a random order: a draw from each stratum (Latin hypercube), so few paths do."""
    return (rng.permutation(_PATHS) + 0.5) / _PATHS


def _triangular(shares: Floats, low: float, mid: float, high: float) -> Floats:
    """Return the quantiles of a triangular distribution."""
    if low == high:
        return np.full(shares.shape, mid)
    rising = low + np.sqrt(shares * (high - low) * (mid - low))
    falling = high - np.sqrt((1 - shares) * (high - low) * (high - mid))
    return np.where(shares * (high - low) < mid - low, rising, falling)


@dataclass(frozen=True)
class _Market:
    """What can be bought, for which demand, on the paths to decide on and on those to pay."""

    machines: Machines
    traffic: FleetTraffic
    slos: Sequence[Slo]
    outlook: Outlook
    to_decide: _Drawn
    to_pay: _Drawn
    min_replicas: int
    counted_share: float
    time_limit_s: float

    def futures(self, offer: FleetOffer, drawn: _Drawn) -> Futures:
        """Return the machines of an offer that each path needs, and their price on demand."""
        months, layout = self.outlook.months, self.machines.layouts[offer.name]
        moves = price_moves(self.machines.kinds[offer.name].gpu)
        prices = drawn_prices(moves, months, _PATHS, np.random.default_rng(drawn.prices))
        needed, hours = self.needed(offer, drawn.demand(layout))
        return Futures(needed, hours, prices * (offer.usd_per_hour or 0.0))

    def middle(self, offer: FleetOffer, usd_per_hour: Floats) -> Futures:
        """Return the path of the most likely growth at the predicted speed."""
        trend = np.power(1 + self.outlook.growth[1], np.arange(self.outlook.months, dtype=np.float64))[None]
        return Futures(*self.needed(offer, trend), usd_per_hour)

    def needed(self, offer: FleetOffer, scales: Floats) -> tuple[Ints, Floats]:
        """Return the whole machines by path, month and kind of hour, and how many hours a month are of each kind.

        Hours of the same demand are one kind.
        """
        demand = self.traffic.demand
        table, number = np.unique(np.array(list(demand.rates.values())), axis=1, return_counts=True)
        load = np.zeros((*scales.shape, table.shape[1]))
        for name, rates in zip(demand.rates, table, strict=True):
            if rates.any():
                asked = scales[:, :, None] * rates
                load += asked / offer.carries(name, asked)
        fewest = math.ceil(self.min_replicas / offer.replicas)
        return np.maximum(fewest, np.ceil(load - 1e-9)).astype(np.int64), number * (HOURS_PER_MONTH / number.sum())

    def schedule(self, of: Futures, offer: FleetOffer, caution: float) -> Schedule:
        """Return what to reserve of an offer."""
        terms = self.outlook.terms_of(offer)
        return best_schedule(of, terms, caution=caution, step=STEP_MONTHS, time_limit_s=self.time_limit_s)

    def cheapest(self, offers: Sequence[FleetOffer]) -> tuple[FleetOffer, int]:
        """Return the offer whose schedule has the lowest bill, laddered, and with how many it was compared."""
        ahead = {offer.name: self.futures(offer, self.to_decide) for offer in offers}
        least = {offer.name: ahead[offer.name].least_usd(self.outlook.terms_of(offer)) for offer in offers}
        bills: dict[str, float] = {}
        for offer in sorted(offers, key=lambda one: least[one.name]):
            if least[offer.name] >= min(bills.values(), default=math.inf):
                break
            schedule = self.schedule(ahead[offer.name], offer, self.outlook.caution)
            bills[offer.name] = objective(schedule.bills(ahead[offer.name]), self.outlook.caution)
        name = min(bills, key=bills.__getitem__)
        return self.laddered(next(offer for offer in offers if offer.name == name)), len(bills)

    def laddered(self, offer: FleetOffer) -> FleetOffer:
        """Return the machine with what it carries between the least and the largest demand of any path, sized for both.

        Between sized demands it is interpolated. Beyond 64 replicas each carries what one of 64 does
        (``fleet.layouts``).
        """
        layout = self.machines.layouts[offer.name]
        scales = np.concatenate([drawn.demand(layout) for drawn in (self.to_decide, self.to_pay)])
        ends = {
            name: (min(filter(None, rates), default=0.0) * float(scales.min()), max(rates) * float(scales.max()))
            for name, rates in self.traffic.demand.rates.items()
        }
        sized = layout_for(layout.deployment, replace(self.traffic, demand=Demand(rates=ends)), self.slos)
        if sized is None:
            return offer
        counted = offer.replicas * self.counted_share
        levels = {}
        for name, known in offer.levels.items():
            new = {rate: one * counted for rate, one in sized.levels.get(name, ())}
            levels[name] = tuple(sorted({**dict(known), **new}.items()))
        return offer.model_copy(update={"levels": levels})


def commitments(
    machines: Machines,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    outlook: Outlook,
    today: dt.date,
    *,
    min_replicas: int = 0,
    counted_share: float = 1.0,
    time_limit_s: float = 30.0,
    seed: int = 0,
    say: Say = silent,
) -> CommitmentReport:
    """Return what to reserve of the machine whose schedule has the lowest bill on the paths ahead."""
    say("what to commit to")
    to_decide, to_pay = (_drawn(outlook, child) for child in np.random.SeedSequence((seed, outlook.months)).spawn(2))
    market = _Market(
        machines, traffic, slos, outlook, to_decide, to_pay, min_replicas, counted_share, time_limit_s
    )  # fmt: skip
    sold = _sold(machines, traffic.demand)
    quoted = [offer for offer in sold if outlook.terms_of(offer)]
    require_a_quote((offer.reserved for offer in quoted), outlook)
    offer, compared = market.cheapest(quoted)
    kind, terms = machines.kinds[offer.name], outlook.terms_of(offer)
    deciding, paying = market.futures(offer, to_decide), market.futures(offer, to_pay)
    ours, safest = (market.schedule(deciding, offer, caution) for caution in (outlook.caution, 1.0))
    middle = market.middle(offer, paying.usd_per_hour[:1])
    elsewhere, elsewhere_way = None, None
    if others := [one for one in sold if not outlook.terms_of(one)]:
        rented, _ = market.cheapest(others)
        elsewhere = machines.kinds[rented.name]
        bills = NOTHING.bills(market.futures(rented, to_pay))
        elsewhere_way = way("on demand elsewhere", bills, outlook.months)
    moves = price_moves(kind.gpu)
    return CommitmentReport(
        machine=kind,
        terms=terms,
        too_long=tuple(term.name for term in terms if term.months > outlook.months),
        usd_per_hour=paying.usd_per_hour[0, 0],
        months=outlook.months,
        growth=outlook.growth,
        growth_noise=outlook.noise,
        speed=_spread(to_pay.speeds(machines.layouts[offer.name])),
        prices_of=moves.of,
        prices_from=moves.months[0],
        prices_until=moves.months[-1],
        end_price=_spread(paying.moved[:, -1]),
        peak_machines=tuple(_spread(month) for month in paying.machines.max(axis=2).T),
        caution=outlook.caution,
        paths=_PATHS,
        steps=_steps(ours, paying, today),
        paid_upfront=outlook.usd_per_gpu_hour is None and PAID_UPFRONT in kind.price_source,
        reserved=tuple(ours.by_month(outlook.months).tolist()),
        ways=ways_to_buy(paying, terms, middle, ours, safest, STEP_MONTHS),
        elsewhere=elsewhere,
        elsewhere_way=elsewhere_way,
        compared=compared,
    )


def require_a_quote(quoted: Iterable[Mapping[str, float]], outlook: Outlook) -> None:
    """Refuse if neither an offer nor the user has a price for a commitment."""
    if outlook.usd_per_gpu_hour is None and not any(quoted):
        own = option("commit_price", "1y=1.9,3y=1.5")
        priced = {(offer.provider, offer.region) for offer in load_offers() if offer.price(Terms.reserved)}
        where = ", ".join(" ".join(place).removesuffix(f" {UNSPECIFIED}") for place in sorted(priced))
        fix = f"Give what you were quoted, USD per GPU-hour of the machine chosen: {own}. Known are those of {where}."
        raise BadInput("no offer here quotes a price for a commitment", field="commit", fix=fix)


def _sold(machines: Machines, demand: Demand) -> list[FleetOffer]:
    """Return the machines to choose from: on demand, and holding every size class."""
    asked = [name for name, rates in demand.rates.items() if max(rates) > 0]
    sold = [
        offer
        for offer in machines.offers
        if offer.usd_per_hour is not None and all(name in offer.requests_per_s for name in asked)
    ]
    if not sold:
        raise BadInput("no machine on demand holds every request: what is not reserved is rented", field="commit")
    return sold


def _steps(schedule: Schedule, futures: Futures, today: dt.date) -> tuple[CommitmentStep, ...]:
    """Return what to buy, the first month first."""
    found = []
    for (term, start), number in sorted(
        schedule.bought.items(), key=lambda bought: (bought[0][1], bought[0][0].months)
    ):
        usd = term.usd_per_hour * float(futures.moved[:, start].mean())
        years, month = divmod(today.month - 1 + start, 12)
        found.append(
            CommitmentStep(
                month=start,
                date=today if not start else dt.date(today.year + years, month + 1, 1),
                term=term.name,
                machines=number,
                usd_per_hour=usd,
                usd_owed=usd * number * term.months * HOURS_PER_MONTH,
            )
        )
    return tuple(found)


def _spread(values: Floats | Ints) -> PathSpread:
    low, mid, high = np.quantile(values, (0.1, 0.5, 0.9)).tolist()
    return PathSpread(low=low, mid=mid, high=high)
