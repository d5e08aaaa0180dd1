"""Why no fleet meets the constraints: which one is to blame, and the nearest value that can be had.

Start-ups cost money but forbid nothing, so each hour is possible or not by itself. The worst hour is tried again with
one constraint loosened at a time; one whose loosening helps is to blame, and bisection finds how far it must give way.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

from tokonomics.errors import BadInput, option
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import FleetLimits, FleetOffer
from tokonomics.money.fleet_program import FleetProblem, kinds_of, solve
from tokonomics.units import count

_STEPS = 20
_SOLVE_S = 10.0


class NoFleet(BadInput):
    """No fleet carries the demand within the constraints; ``blame`` names those that stand against it."""

    def __init__(self, what: str, *, blame: tuple[str, ...], fix: str) -> None:
        super().__init__(what, fix=fix)
        self.blame = blame


def impossible(offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits) -> NoFleet:
    """The error that says which constraint is to blame and what is possible instead."""
    hour, share = _worst_hour(offers, demand, limits)
    repairs = _repairs(offers, demand.hour(hour), limits)
    rate = count(demand.total[hour])
    what = f"no fleet meets these constraints: in hour {hour} of {demand.hours} the demand is {rate} requests a second"
    if not repairs:
        fix = f"More than one constraint is to blame; {_percent(share)} of that demand can be carried as it is."
        return NoFleet(what, blame=(), fix=fix)
    what += f"; {_percent(share)} of it can be carried" if share > 0 else ""
    names = ["the quotas" if name == "max_machines" else option(name) for name in repairs]
    return NoFleet(f"{what}. To blame: {', '.join(names)}", blame=tuple(repairs), fix="\n  or ".join(repairs.values()))


def is_possible(offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits) -> bool:
    """Whether any fleet, even of divided machines, meets the constraints."""
    kinds = kinds_of(offers, limits)
    return bool(kinds) and solve(FleetProblem(kinds, demand, limits), 0.0, _SOLVE_S, relaxed=True) is not None


def _repairs(offers: Sequence[FleetOffer], one: Demand, limits: FleetLimits) -> dict[str, str]:
    """For each constraint to blame, what could be asked instead."""
    repairs: dict[str, str] = {}

    def loosened(name: str, value: object) -> bool:
        return is_possible(offers, one, limits.model_copy(update={name: value}))

    if limits.min_replicas and loosened("min_replicas", 0):
        most, too_many = 0, limits.min_replicas
        while too_many - most > 1:
            middle = (most + too_many) // 2
            most, too_many = (middle, too_many) if loosened("min_replicas", middle) else (most, middle)
        repairs["min_replicas"] = f"Ask for at least {most} firm replicas instead of {limits.min_replicas}."
    for name, allow in (("max_spot_share", "Let spot carry"), ("max_zone_share", "Let one zone hold")):
        now: float = getattr(limits, name)
        if now < 1 and loosened(name, 1.0):
            least = _bisected(partial(loosened, name), now, 1.0)
            repairs[name] = f"{allow} {_percent(least, up=True)} of an hour's demand ({option(name)})."
    if limits.spare and loosened("spare", {}):
        repairs["availability"] = "Ask for a lower availability: there is no room for what fails."
    endless = {"max_machines": None}
    spot = [tuple(market.model_copy(update=endless) for market in offer.spot) for offer in offers]
    unlimited = [offer.model_copy(update={"spot": spot[place], **endless}) for place, offer in enumerate(offers)]
    if unlimited != list(offers) and is_possible(unlimited, one, limits):
        repairs["max_machines"] = "Raise the quotas, or add an offer."
    return repairs


def _worst_hour(offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits) -> tuple[int, float]:
    """The hour of which least can be carried, and how much of it can."""
    different: dict[tuple[float, ...], int] = {}
    for hour in range(demand.hours):
        different.setdefault(tuple(rates[hour] for rates in demand.rates.values()), hour)
    impossible_hours = [hour for hour in different.values() if not is_possible(offers, demand.hour(hour), limits)]
    shares = {hour: _carried(offers, demand.hour(hour), limits) for hour in impossible_hours}
    worst = min(shares, key=lambda hour: (shares[hour], -demand.total[hour]), default=0)
    return worst, shares.get(worst, 1.0)


def _carried(offers: Sequence[FleetOffer], one: Demand, limits: FleetLimits) -> float:
    """The largest share of an hour's demand that is possible."""
    if not is_possible(offers, one.scaled(0.0), limits):
        return 0.0
    return _bisected(lambda share: is_possible(offers, one.scaled(share), limits), 1.0, 0.0)


def _bisected(works: Callable[[float], bool], fails_at: float, works_at: float) -> float:
    """The share nearest to where it fails that works."""
    for _ in range(_STEPS):
        middle = (fails_at + works_at) / 2
        fails_at, works_at = (fails_at, middle) if works(middle) else (middle, works_at)
    return works_at


def _percent(share: float, up: bool = False) -> str:
    """Rounded to the safe side, to a tenth of a percent."""
    # The bisection stops a millionth above or below: that is not another tenth of a percent.
    tenths = math.ceil(share * 1000 - 0.01) if up else math.floor(share * 1000 + 0.01)
    return f"{tenths / 10:g} %"
