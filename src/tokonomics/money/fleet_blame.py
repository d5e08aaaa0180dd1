"""Why no fleet holds the wishes: which one is to blame, and the nearest value that can be had.

Start-ups cost money but forbid nothing, so each hour is possible or not by itself. The worst hour is tried again with
one wish loosened at a time; a wish whose loosening helps is to blame, and bisection finds how far it must give way.
"""

import math
from collections.abc import Callable, Sequence

from tokonomics.errors import BadInput, option
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import FleetOffer, Wishes
from tokonomics.money.fleet_kinds import kinds_of
from tokonomics.money.fleet_program import solve
from tokonomics.units import count

_STEPS = 20
_SOLVE_S = 10.0


class NoFleet(BadInput):
    """No fleet carries the demand within the wishes; carries the wishes to blame."""

    def __init__(self, what: str, *, blame: tuple[str, ...], fix: str) -> None:
        super().__init__(what, fix=fix)
        self.blame = blame


def impossible(offers: Sequence[FleetOffer], demand: Demand, wishes: Wishes) -> NoFleet:
    """The error that says which wish is to blame and what is possible instead."""
    hour, share = _worst_hour(offers, demand, wishes)
    one = _hour(demand, hour)
    repairs = {name: fix for name, fix in _repairs(offers, one, wishes).items() if fix}
    wanted = f"in hour {hour} of {demand.hours} the demand is {count(demand.total[hour])} requests a second"
    if not repairs:
        return NoFleet(
            f"no fleet holds these wishes: {wanted}",
            blame=(),
            fix=f"More than one wish stands against it; {_percent(share)} of that demand can be carried as it is.",
        )
    carried = f"; {_percent(share)} of it can be carried" if share > 0 else ""
    return NoFleet(
        f"no fleet holds these wishes: {wanted}{carried}. To blame: {', '.join(repairs)}",
        blame=tuple(repairs),
        fix="\n  or ".join(repairs.values()),
    )


def is_possible(offers: Sequence[FleetOffer], demand: Demand, wishes: Wishes) -> bool:
    """Whether any fleet, even of divided machines, holds the wishes."""
    kinds = kinds_of(offers, wishes)
    return bool(kinds) and solve(kinds, demand, wishes, 0.0, _SOLVE_S, relaxed=True) is not None


def _repairs(offers: Sequence[FleetOffer], one: Demand, wishes: Wishes) -> dict[str, str]:
    """For each wish, what would have to be asked instead; empty where it does not help."""
    repairs: dict[str, str] = {}

    def loosened(**changes: object) -> bool:
        return is_possible(offers, one, wishes.model_copy(update=changes))

    if wishes.min_replicas and loosened(min_replicas=0):
        most, too_many = 0, wishes.min_replicas
        while too_many - most > 1:
            middle = (most + too_many) // 2
            most, too_many = (middle, too_many) if loosened(min_replicas=middle) else (most, middle)
        repairs["min_replicas"] = f"Ask for at least {most} firm replicas instead of {wishes.min_replicas}."
    if wishes.max_spot_share < 1 and loosened(max_spot_share=1.0):
        least = _least(lambda share: loosened(max_spot_share=share), wishes.max_spot_share)
        repairs["max_spot_share"] = (
            f"Let spot carry {_percent(least, up=True)} of an hour's demand ({option('max_spot_share')})."
        )
    if wishes.max_zone_share < 1 and loosened(max_zone_share=1.0):
        least = _least(lambda share: loosened(max_zone_share=share), wishes.max_zone_share)
        repairs["max_zone_share"] = (
            f"Let one zone hold {_percent(least, up=True)} of an hour's demand ({option('max_zone_share')})."
        )
    if wishes.spare and loosened(spare={}):
        repairs["availability"] = "Ask for a lower availability: there is no room for what fails."
    unlimited = [_without_quota(offer) for offer in offers]
    if unlimited != list(offers) and is_possible(unlimited, one, wishes):
        repairs["max_machines"] = "Raise the quotas, or add an offer."
    return repairs


def _worst_hour(offers: Sequence[FleetOffer], demand: Demand, wishes: Wishes) -> tuple[int, float]:
    """The hour of which least can be carried, and how much of it can."""
    different: dict[tuple[float, ...], int] = {}
    for hour in range(demand.hours):
        different.setdefault(tuple(rates[hour] for rates in demand.rates.values()), hour)
    impossible_hours = [hour for hour in different.values() if not is_possible(offers, _hour(demand, hour), wishes)]
    shares = {hour: _carried(offers, _hour(demand, hour), wishes) for hour in impossible_hours}
    worst = min(shares, key=lambda hour: (shares[hour], -demand.total[hour]), default=0)
    return worst, shares.get(worst, 1.0)


def _carried(offers: Sequence[FleetOffer], one: Demand, wishes: Wishes) -> float:
    """The largest share of an hour's demand that is possible."""
    low, high = 0.0, 1.0
    if not is_possible(offers, one.scaled(0.0), wishes):
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_possible(offers, one.scaled(middle), wishes) else (low, middle)
    return low


def _least(works: Callable[[float], bool], low: float) -> float:
    """The smallest share above ``low`` that works, knowing that all of it does."""
    high = 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _hour(demand: Demand, hour: int) -> Demand:
    return Demand(rates={name: (rates[hour],) for name, rates in demand.rates.items()})


def _without_quota(offer: FleetOffer) -> FleetOffer:
    spot = tuple(market.model_copy(update={"max_machines": None}) for market in offer.spot)
    return offer.model_copy(update={"max_machines": None, "spot": spot})


def _percent(share: float, up: bool = False) -> str:
    """Rounded to the safe side, to a tenth of a percent."""
    # The bisection stops a millionth above or below: that is not another tenth of a percent.
    tenths = math.ceil(share * 1000 - 0.01) if up else math.floor(share * 1000 + 0.01)
    return f"{tenths / 10:g} %"
