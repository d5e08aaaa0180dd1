"""Size the pick of a plan for every hour of traffic that changes: the replicas that an hour needs, and what they cost.

A plan keeps all day what meets the SLO over all of it: mostly what its busiest hours need. Here the same replicas, with
their router and batch limit, are simulated under the steady load of an hour, with the plan's headroom: as many as hold
it are that hour's number, never more than the plan's. As for a fleet by the hour, what holds in one draw counts at 97 %
of its rate (``sizing.rules.OTHER_HOURS``). Hours of a log are simulated as they were. A large fleet is sized at twelve
numbers of replicas: between two counts the larger.
The bill has the machines of every hour, and for each one that is started the time until it serves.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from tokonomics.catalog.offers import Terms
from tokonomics.money.cost import saving
from tokonomics.planner.plan import Study
from tokonomics.sizing import rules
from tokonomics.sizing.buy import startup_seconds
from tokonomics.sizing.load import Load, load_of_log
from tokonomics.traffic.arrivals import DemandSwing, draw_arrivals, parse_arrivals
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.workload import workload_of
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

_MOST_LEVELS = 12  # numbers of replicas below the plan's that are simulated: some five simulations each


class ReplicasByHour(Noun):
    """What each hour of the traffic needs of the pick, and what that would cost by the hour."""

    replicas: tuple[PositiveInt, ...]  # in each hour of the period, spare ones included
    is_daily: bool  # the hours are those of a clock: a day's, or a week's from Monday on
    machines: tuple[PositiveInt, ...]
    cold_start_s: NonNegativeFloat  # a replica has to be ordered this long before its hour
    usd_per_month: NonNegativeFloat  # the pick's machines at its price, as many as each hour needs, and their starts
    saved_usd_per_month: float  # against the pick, which keeps them all
    saved_share: float


def replicas_by_hour(study: Study, swing: DemandSwing | None) -> ReplicasByHour | None:
    """Return what each hour needs of a study's pick; None if all hours need the same, or it is not known.

    It is not known for a pick that was not simulated or is disaggregated, nor for conversations that were made up.
    """
    best, load = study.plan.best, study.question.load
    if best is None or swing is None or not swing.hours or best.prefill is not None or load.talks:
        return None
    _, sized, machine = study.ranked_as(best)
    if sized.trial is None or sized.replicas < 2:
        return None
    trial, screened = sized.trial, sized.screened
    number, sought = sized.replicas, study.question.sought

    at_hour = _hours_of(load) if swing.period_s is None else _steady(load, swing)

    def holds(replicas: int, hour: int) -> bool:
        asked = at_hour(hour)
        return asked is None or sought(asked, study.search.sought.attempts).holds_on(screened, trial, replicas)

    needed = fewest_by_hour(swing.hours, number, holds, alike=swing.period_s is not None)
    if len(set(needed)) == 1:
        return None
    hosts = screened.hosts
    machines = tuple(hosts.machines_on(machine.offer, replicas) for replicas in needed)
    cold_start_s = startup_seconds(sized.deployment)
    started = np.diff(machines, prepend=machines[-1] if swing.period_s else machines[0]).clip(min=0).sum()
    machine_hours = sum(machines) + float(started) * cold_start_s / SECONDS_PER_HOUR
    # What is reserved is paid for in every hour, and keeping all of them costs no start.
    paid = 1.0 if best.terms is Terms.reserved else min(1.0, machine_hours / len(machines) / best.instances)
    usd = best.usd_per_month * paid
    return ReplicasByHour(
        replicas=tuple(hosts.counts_on(machine.offer, replicas)[1] for replicas in needed),
        is_daily=swing.is_daily,
        machines=machines,
        cold_start_s=cold_start_s,
        usd_per_month=usd,
        saved_usd_per_month=best.usd_per_month - usd,
        saved_share=saving(best.usd_per_month, usd),
    )


def fewest_by_hour(
    rates: Sequence[float], most: int, holds: Callable[[int, int], bool], *, alike: bool = True
) -> list[int]:
    """Return the fewest replicas for each hour, at most ``most``; ``holds`` tells whether some hold an hour.

    More requests never need fewer replicas, so the busiest hour that a number of replicas holds is bisected. If hours
    are not ``alike``, a quiet one may have the longer prompts: each is then tried on its number, and on more if it
    does not hold.
    """
    rounded = [float(f"{rate:.9g}") for rate in rates]
    busier = sorted({rate: hour for hour, rate in enumerate(rounded)}.items())
    levels = sorted({math.ceil(most * step / (_MOST_LEVELS + 1)) for step in range(1, _MOST_LEVELS + 1)} - {most})
    held = 0  # of the busier hours, those that the last level holds
    reached: list[tuple[float, int]] = []  # the highest rate of each level
    for replicas in levels:
        misses = partial(lambda count, hour: not holds(count, hour[1]), replicas)
        held = bisect_left(busier, True, lo=held, key=misses)
        if held:
            reached.append((busier[held - 1][0], replicas))
    found = [next((replicas for highest, replicas in reached if rate <= highest), most) for rate in rounded]
    if alike:
        return found
    return [
        next((count for count in levels if count >= least and holds(count, hour)), most)
        for hour, least in enumerate(found)
    ]


_Hour = Callable[[int], Load | None]  # the load of an hour; None if next to nothing comes in it


def _steady(load: Load, swing: DemandSwing) -> _Hour:
    """Return the load of an hour of a curve: the same requests, as they come at a steady rate."""
    requests = load.trace.take(np.arange(min(len(load.trace), ENOUGH_REQUESTS)))
    arrival_s = draw_arrivals(parse_arrivals("poisson:1"), requests=len(requests), seed=0)
    trace = replace(requests, arrival_s=arrival_s)
    one = Load(workload=workload_of(trace, trace.rate), trace=trace, is_stationary=True, headroom=load.headroom)

    def at_hour(hour: int) -> Load | None:
        rate = swing.hours[hour] / rules.OTHER_HOURS
        return one.at(rate) if rate * SECONDS_PER_HOUR > 1 else None

    return at_hour


def _hours_of(load: Load) -> _Hour:
    """Return the load of an hour of a log: its own requests, a little faster."""

    def at_hour(hour: int) -> Load | None:
        trace = load.trace.window(hour * SECONDS_PER_HOUR, (hour + 1) * SECONDS_PER_HOUR)
        if len(trace) < 2 or trace.rate <= 0:
            return None
        return replace(load_of_log(trace.faster(1 / rules.OTHER_HOURS)), headroom=load.headroom)

    return at_hour
