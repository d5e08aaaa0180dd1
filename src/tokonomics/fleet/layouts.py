"""Choose a fleet's layouts of a model: try all that fit one machine, on every GPU sold, and size the best.

All are tried in closed form. Those that would be cheapest for this demand, class by class and in whole machines, are
then sized by simulation as a plan is (``sizing.search``): the fewest replicas for the busiest hour, with their limit on
sequences and their router. In a smaller fleet each replica carries less, because bursts even out less: how much less is
found for the quietest hour, and for one in between if that differs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.fleet.traffic import FleetTraffic
from tokonomics.money.purchases import EVERY_SIZE
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.steptime import step_model
from tokonomics.planner.prospects import layout
from tokonomics.planner.search import Sought, missed_text
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing import rules
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.hosts import Hosts, Machine
from tokonomics.sizing.layouts import why_not
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import LEEWAY, Screened, floors, least_for, screen
from tokonomics.sizing.search import CLOSE_ENOUGH, highest_between
from tokonomics.sizing.setup import Say
from tokonomics.traffic.slo import Slo

_EVEN = 0.9
"""Share of what a replica carries in the busiest hour: if one carries less in the quietest, the value is also found for
a fleet between the two. The values interpolated for other fleets are below what they carry. Our choice."""
_MOST_SIZED = 64
"""Replicas, by the closed form: a plan also simulates only sixteen of a larger fleet (``sizing.load``), so each replica
of a larger one is assumed to carry the same; what one of 64 carries is known to a hundredth or two. Our choice."""
_LIKELY = 0.85  # of what a replica of a larger fleet carries: the search for a smaller fleet begins there
_LEAST = 1e-3  # of the closed form's rate: replicas that hold less are not worth their GPUs

Levels = tuple[tuple[float, float], ...]
"""From the quietest hour to the busiest: total requests a second, and those of a replica in the fleet for them."""
Standing = Callable[[Deployment], Sequence[Machine]]  # the machines on which a layout can run


class Refused(NamedTuple):
    """Why a layout is refused; the smallest came closest: SLO missed in simulation, too slow even alone, or no room."""

    kind: int
    distance: float
    text: str


@dataclass(frozen=True)
class FleetLayout:
    """A way to run the model: how its replicas serve, and how much each of them carries."""

    deployment: Deployment
    rates: dict[str, float]  # requests a second, by class, in the fleet for its busiest hour
    levels: dict[str, Levels] = field(default_factory=dict)  # by class
    max_sequences: int | None = None  # at a time, if it is not the engine's own limit
    router: Router = Router.least_outstanding
    answer_s: float = 0.0  # a long answer (p99) in the busiest hour, of the slowest class

    @property
    def name(self) -> str:
        return layout_name(self.deployment)


class _Prospect(NamedTuple):
    """A layout by the closed form, for each of the classes that it may hold."""

    name: str
    deployment: Deployment
    screened: dict[str, Screened]


def sized_layouts(
    deployments: Sequence[Deployment],
    standing: Standing,
    traffic: FleetTraffic,
    slos: Sequence[Slo],
    most: int,
    say: Say,
) -> tuple[list[FleetLayout], dict[str, str]]:
    """Return, for each class, at most ``most`` layouts that meet the SLOs, cheapest first by the closed form.

    Also return, by name, why others are refused.
    """
    refused: dict[str, Refused] = {}
    loads = {size: traffic.load_of(size) for size in traffic.samples}
    prospects = _prospects(deployments, loads, tuple(slos), refused)
    kept: dict[str, FleetLayout] = {}
    tried: set[str] = set()
    for size in traffic.samples:
        places = most
        for prospect in _by_bill(prospects, standing, traffic, size, refused):
            if not places:
                break
            if prospect.name not in tried:
                tried.add(prospect.name)
                say(f"capacity of {prospect.name}")
                if sized := _sized(prospect, loads, traffic, tuple(slos), refused):
                    kept[prospect.name] = sized
            places -= prospect.name in kept and size in kept[prospect.name].rates
    for size in traffic.samples:
        if not any(size in sized.rates for sized in kept.values()):
            # Nothing sold can hold this class: say why the layout that came closest was refused.
            name, nearest = min(refused.items(), key=lambda refusal: refusal[1])
            whom = "" if size == EVERY_SIZE else f" for requests of {size}"
            fix = f"The nearest is {name}: {nearest.text}"
            if nearest.kind == 2:
                raise BadInput(f"no machine on offer can hold the model{whom}", fix=fix)
            raise BadInput(f"no machine on offer meets the SLOs{whom}", field="slo", fix=fix)
    return list(kept.values()), {name: refusal.text for name, refusal in refused.items()}


def layout_for(deployment: Deployment, traffic: FleetTraffic, slos: Sequence[Slo]) -> FleetLayout | None:
    """Return one layout sized for another demand, with what its replicas carry there; None if it cannot hold it."""
    refused: dict[str, Refused] = {}
    loads = {size: traffic.load_of(size) for size in traffic.samples}
    prospects = _prospects([deployment], loads, tuple(slos), refused)
    return _sized(prospects[0], loads, traffic, tuple(slos), refused) if prospects else None


def _sized(
    prospect: _Prospect,
    loads: Mapping[str, Load],
    traffic: FleetTraffic,
    slos: tuple[Slo, ...],
    refused: dict[str, Refused],
) -> FleetLayout | None:
    """Return the layout as deployed for the class with most work, and the rate of each class that it then carries."""
    served: Sized | None = None
    levels: dict[str, Levels] = {}
    answer_s = 0.0

    def work(size: str) -> float:
        return loads[size].workload.rate / prospect.screened[size].capacity.rate

    for size in sorted(prospect.screened, key=work, reverse=True):
        screened = prospect.screened[size]
        load = loads[size].at(min(loads[size].workload.rate, screened.capacity.rate * _MOST_SIZED))
        screened = replace(screened, fewest=least_for(load, screened.capacity.rate, prospect.deployment, slos))
        sized = Sought(load, slos).smallest(screened)
        if not sized.holds:
            missed = [slo.delivered_s / slo.objective_s for slo in sized.outcome.slo if not slo.met and slo.delivered_s]
            refused[prospect.name] = Refused(0, max(missed, default=math.inf), missed_text(sized))
            continue
        served = served or sized
        own = replace(served, replicas=sized.replicas)
        if found := _levels(screened, load, slos, own, min(filter(None, traffic.demand.rates[size]))):
            levels[size] = found
            answer_s = max(answer_s, sized.outcome.e2e_s.p99 or 0.0)
        else:
            why = "misses the SLO with the limit on sequences that suits the class with most work"
            refused.setdefault(prospect.name, Refused(0, math.inf, why))
    if served is None or not levels:
        return None
    rates = {size: pairs[-1][1] for size, pairs in levels.items()}
    return FleetLayout(prospect.deployment, rates, levels, served.max_sequences, served.router, answer_s)


def _levels(screened: Screened, load: Load, slos: tuple[Slo, ...], sized: Sized, quietest: float) -> Levels:
    """Return demands down to the quietest, and what a replica carries in each: never more than in a larger fleet."""
    number, peak = sized.replicas, load.workload.rate

    def holds(replicas: int, rate: float) -> bool:
        return Sought(load.at(replicas * rate), slos).holds_on(screened, sized, replicas)

    # One replica fewer does not hold the peak, so its rate per replica is too much.
    too_much = peak / (number - 1) if number > 1 else max(peak * CLOSE_ENOUGH, screened.capacity.rate * LEEWAY)
    known = peak / number if holds(number, peak / number) else None
    if (highest := _most(partial(holds, number), too_much, known)) is None:
        return ()
    most = max(known or 0.0, highest * rules.OTHER_HOURS)
    least = max(1, int(quietest / most))
    if quietest >= peak or least >= number:
        return ((peak, most),)
    if (one := _most(partial(holds, least), highest)) is None:
        # Few replicas cannot hold bursts at any rate: quiet hours take as many as the busiest.
        return ((quietest, quietest / number), (peak, most))
    levels = {least * one * rules.OTHER_HOURS: one * rules.OTHER_HOURS, peak: most}
    middle = round(math.sqrt(least * number))
    if least < middle < number and one < _EVEN * highest and (between := _most(partial(holds, middle), highest)):
        levels[middle * between * rules.OTHER_HOURS] = between * rules.OTHER_HOURS
    return tuple(sorted(levels.items()))


def _most(holds: Callable[[float], bool], too_much: float, known: float | None = None) -> float | None:
    """Return the highest rate that holds, to 1 %, starting from one ``known`` to hold; None if almost none holds."""
    low, high = known or too_much * _LIKELY, too_much
    while known is None and not holds(low):
        low, high = low / 2, low
        if low < too_much * _LEAST:
            return None
    return highest_between(holds, low, high)[0]


def _prospects(
    deployments: Sequence[Deployment], loads: Mapping[str, Load], slos: tuple[Slo, ...], refused: dict[str, Refused]
) -> list[_Prospect]:
    """Return the layouts that may hold a class, by the closed form."""
    prospects = []
    for deployment in deployments:
        name, screened = layout_name(deployment), {}
        for size, load in loads.items():
            if refusal := why_not(deployment, min(load.longest, deployment.model.max_context)):
                refused.setdefault(name, Refused(2, -deployment.gpus, refusal.reason))
                continue
            found = screen(deployment, Hosts(deployment, ()), load, slos)
            if isinstance(found, Screened):
                screened[size] = found
            else:
                late = [alone_s / slo.seconds for slo, alone_s in floors(step_model(deployment), load, slos).items()]
                refused.setdefault(name, Refused(1, max(late, default=0.0), found.reason))
        if screened:
            prospects.append(_Prospect(name, deployment, screened))
    return prospects


def _by_bill(
    prospects: Sequence[_Prospect], standing: Standing, traffic: FleetTraffic, size: str, refused: dict[str, Refused]
) -> list[_Prospect]:
    """Return the layouts that hold a class, ordered by the bill of the cheapest machines that would carry it."""
    demand = np.asarray(traffic.demand.rates[size])
    bills: list[tuple[float, int, str, _Prospect]] = []
    for prospect in prospects:
        if size not in prospect.screened:
            continue
        deployment, rate = prospect.deployment, prospect.screened[size].capacity.rate
        hosts = {(machine.offer.gpus // deployment.gpus, machine.usd_per_hour) for machine in standing(deployment)}
        if not hosts:
            thin = "every host has too little memory to load the weights"
            refused.setdefault(prospect.name, Refused(2, -deployment.gpus, thin))
            continue
        # Whole machines only.
        needed = [(np.ceil(demand / (replicas * rate) - 1e-9).sum(), price) for replicas, price in hosts]
        least = min(float(machines) * price for machines, price in needed)
        bills.append((least, -deployment.weights.bits - deployment.kv.bits, prospect.name, prospect))
    # At the same price, higher precision first.
    return [prospect for *_, prospect in sorted(bills, key=lambda bill: bill[:3])]


def layout_name(deployment: Deployment) -> str:
    return f"{deployment.gpus}×{deployment.gpu.key} {layout(deployment)}"
