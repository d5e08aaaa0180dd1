"""Find the cheapest fleet for a demand by solving the program of ``purchase_program``, at once or part by part.

A program too large to solve at once is first solved with divisible machines, then rounded to whole ones hour by hour,
then improved. The bill of divisible machines is a proven bound, and tells how many to reserve. With those fixed, and no
start-ups, each hour is a small program of its own. The fleet found is improved by solving the whole with only the kinds
in use, and one window of hours at a time with start-ups and everything else fixed, until the gap is closed, nothing
improves, or time is up. The remaining time is used for a better bound.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tokonomics.catalog.feeds import REGION_CORRELATION
from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.money.purchase_program import (
    FleetProblem,
    Ints,
    OutOfTime,
    Solution,
    different_hours,
    kinds_of,
    solve,
    starts_of,
    undominated,
)
from tokonomics.money.purchases import (
    BatchWork,
    Demand,
    FleetLimits,
    FleetOffer,
    FleetPlan,
    FleetPurchase,
    demand_of,
    mixed_by_hour,
    mixed_capacity,
)
from tokonomics.money.spot_machines import p99_bill
from tokonomics.units import HOURS_PER_MONTH

GAP = 5e-3  # stop when no fleet can be cheaper by more than this share, which is far below how prices move
TIME_LIMIT_S = 30.0
"""The gap that remains by then is mostly an unproven bound; it is printed (benchmarks/bench_fleet.py)."""
DAY_SHARE = 0.2  # of the time limit, after all of it: for a day that repeats, if there is no proven fleet by then
AT_ONCE = 600  # columns that HiGHS solves by itself within seconds (benchmarks/bench_fleet.py)
WINDOW_HOURS = 12
WINDOW_S = 2.0
ROUNDS = 6

Clock = Callable[[], float]  # seconds left


def optimal_fleet(
    offers: Sequence[FleetOffer],
    demand: Demand,
    limits: FleetLimits | None = None,
    *,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
    correlation: float = REGION_CORRELATION,
    seed: int = 0,
    batch: BatchWork | None = None,
) -> FleetPlan:
    """Return the cheapest fleet for a demand; ``correlation`` of interruptions between zones is for the p99 bill."""
    limits = limits or FleetLimits()
    _check(offers, demand)
    kinds = undominated(kinds_of(offers, limits), limits)
    solution = search(FleetProblem(kinds, demand, limits, batch), gap, time_limit_s)
    if solution is None:
        raise _impossible(offers, demand, limits)
    counts = solution.counts
    running_usd = np.array([kind.expected_usd_per_hour for kind in kinds]) * counts.sum(axis=1)
    start_usd = np.array([kind.start_usd for kind in kinds]) * starts_of(counts).sum(axis=1)
    expected = float(running_usd.sum() + start_usd.sum())
    # Capacity of one machine of each kind, in requests of the demand's mix: at the largest demand, and by hour.
    mix = demand.mix
    sizes = [mixed_capacity(kind.offer, mix) * kind.counted for kind in kinds]
    carried = counts * np.array([mixed_by_hour(kind.offer, mix, demand.rates) * kind.counted for kind in kinds])
    is_firm = np.array([kind.is_firm for kind in kinds])
    purchases, held = [], []
    for index, kind in enumerate(kinds):
        if not counts[index].any():
            continue
        usd = float(running_usd[index] + start_usd[index])
        purchases.append(
            FleetPurchase(
                offer=kind.offer.name,
                terms=kind.terms,
                place=kind.place,
                by_hour=tuple(counts[index].tolist()),
                usd_per_hour=kind.usd_per_hour,
                requests_per_s=sizes[index],
                usd=usd,
                usd_per_month=usd * HOURS_PER_MONTH / demand.hours,
                interruptions_by=kind.market.interruptions_by if kind.market else None,
            )
        )
        held += [(kind.offer, kind.market, counts[index])] if kind.market else []
    usd_per_month = expected * HOURS_PER_MONTH / demand.hours
    return FleetPlan(
        hours=demand.hours,
        purchases=tuple(purchases),
        demand=demand.total,
        firm_capacity=tuple(carried[is_firm].sum(axis=0).tolist()),
        spot_capacity=tuple(carried[~is_firm].sum(axis=0).tolist()),
        expected_usd=expected,
        usd_per_month=usd_per_month,
        p99_usd_per_month=p99_bill(held, usd_per_month, limits, correlation, seed),
        startup_usd=float(start_usd.sum()),
        gap=max(0.0, 1 - solution.lower_bound / expected) if expected > 0 else 0.0,
        solve_s=solution.solve_s,
        variables=solution.variables,
        batch=() if solution.batch is None else tuple(solution.batch.tolist()),
    )


def _check(offers: Sequence[FleetOffer], demand: Demand) -> None:
    if not offers:
        raise BadInput("there is no offer to buy from", fix="Loosen the filters, or add offers.")
    names = [offer.name for offer in offers]
    for offer in offers:
        if names.count(offer.name) > 1:
            raise BadInput(f"two offers are called '{offer.name}'")
        if not offer.prices:
            raise BadInput(f"'{offer.name}' has no price on any terms")
    for name, rates in demand.rates.items():
        if max(rates) > 0 and not any(name in offer.requests_per_s for offer in offers):
            fix = "Add an offer with more memory, or leave these requests out."
            raise BadInput(f"no offer holds requests of the class '{name}'", fix=fix)


class NoFleet(BadInput):
    """Raised if no fleet serves the demand within the constraints."""


def _impossible(offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits) -> NoFleet:
    """Return the error that names the constraints in the way; the number of machines is never one of them."""
    kinds = kinds_of(offers, limits)
    carrying = [
        [kind for kind in kinds if name in kind.offer.requests_per_s]
        for name, rates in demand.rates.items()
        if any(rates)
    ]
    unfirm = [sold for sold in carrying if not any(kind.is_firm for kind in sold)]
    repairs = {}
    if limits.min_replicas and not any(kind.is_firm for kind in kinds):
        repairs["min_replicas"] = f"Only spot is sold: ask for no firm replicas ({option('min_replicas', 0)})."
    if limits.max_spot_share < 1 and unfirm:
        repairs["max_spot_share"] = f"Only spot carries these requests: allow it ({option('max_spot_share', 1)})."
    if limits.max_zone_share < 1 and any(len({kind.place for kind in sold}) == 1 for sold in unfirm):
        repairs["max_zone_share"] = f"Only one spot zone carries them: allow it ({option('max_zone_share', 1)})."
    asked = " and ".join(map(option, repairs)) or "these constraints"
    return NoFleet(f"no fleet meets {asked}", fix="\n  ".join(repairs.values()) or None)


def divided_usd(offers: Sequence[FleetOffer], demand: Demand, limits: FleetLimits) -> float | None:
    """Return the bill if machines were divisible and started for free: a quick bound; None if none was found."""
    kinds = undominated(kinds_of(offers, limits), limits)
    found = _solve_in_time(_without_starts(FleetProblem(kinds, demand, limits)), 0.0, WINDOW_S, relaxed=True)
    return None if found is None else found.lower_bound


def _solve_in_time(problem: FleetProblem, gap: float, time_limit_s: float, **how: Any) -> Solution | None:
    """Solve as ``solve`` does; None also if time ran out."""
    with suppress(OutOfTime):
        return solve(problem, gap, time_limit_s, **how)
    return None


def _without_starts(problem: FleetProblem) -> FleetProblem:
    return replace(problem, kinds=[replace(kind, start_usd=0.0) for kind in problem.kinds])


def search(problem: FleetProblem, gap: float, time_limit_s: float) -> Solution | None:
    """Return the counts by kind and hour with a proven bound; None if there is no fleet."""
    if problem.batch is not None:
        return _with_batch(problem, gap, time_limit_s)
    began, day_s = time.perf_counter(), DAY_SHARE * time_limit_s
    try:
        found = _at_once_or_apart(problem, gap, time_limit_s)
        was_quick = time.perf_counter() - began < time_limit_s / 2  # No program stopped at its share of the time.
        if found is None or was_quick or _is_proven(problem, found, gap):
            return found
        tried = [found, *_repeated(problem, gap, day_s)]
    except OutOfTime:
        if not (tried := _repeated(problem, gap, day_s)):
            raise
    return _best(problem, tried, began)


def _best(problem: FleetProblem, tried: Sequence[Solution], began: float) -> Solution:
    """Return the cheapest fleet of those tried, with the highest bound that any of them proved."""
    best = min(tried, key=lambda solution: problem.bill(solution.counts))
    bound = max(solution.lower_bound for solution in tried)
    return replace(best, lower_bound=bound, solve_s=time.perf_counter() - began)


def _at_once_or_apart(problem: FleetProblem, gap: float, time_limit_s: float) -> Solution | None:
    """Solve the program at once if it is small, and taken apart if that proves nothing in its share of the time."""
    began, at_once = time.perf_counter(), None
    if len(problem.kinds) * different_hours(problem) <= AT_ONCE:
        with suppress(OutOfTime):
            at_once = solve(problem, gap, 0.4 * time_limit_s)
            if at_once is None or _is_proven(problem, at_once, gap):
                return at_once
    left = time_limit_s - (time.perf_counter() - began)
    if at_once is None:
        # On a busy computer all time may be used up: a late fleet is better than none.
        return _taken_apart(problem, gap, max(left, 0.4 * time_limit_s))
    with suppress(OutOfTime):
        if (taken_apart := _taken_apart(problem, gap, left)) is not None:
            return _best(problem, (at_once, taken_apart), began)
    return at_once


def _repeated(problem: FleetProblem, gap: float, time_limit_s: float) -> list[Solution]:
    """Return the cheapest fleet of a day that repeats, bought every day, if that is a small program; else nothing.

    Its whole machines prove no bound, because the cheapest fleet may differ from day to day. Its divisible ones do: a
    fleet of those costs no more if every day has the mean of its days.
    """
    began, period = time.perf_counter(), problem.demand.period
    times, day = problem.demand.hours // period, replace(problem, demand=problem.demand.over(period))
    if times == 1 or len(day.kinds) * different_hours(day) > AT_ONCE:
        return []
    divided = _solve_in_time(day, gap, time_limit_s, relaxed=True)
    if divided is None:
        return []
    found = _solve_in_time(day, gap, time_limit_s - (time.perf_counter() - began))
    if found is None:
        return []
    return [replace(found, counts=np.tile(found.counts, times), lower_bound=times * divided.lower_bound)]


def _is_proven(problem: FleetProblem, solution: Solution, gap: float) -> bool:
    """Decide whether no fleet is cheaper by more than the gap."""
    return problem.bill(solution.counts) <= solution.lower_bound / (1 - gap) * (1 + 1e-6)


def _taken_apart(problem: FleetProblem, gap: float, time_limit_s: float) -> Solution | None:
    began = time.perf_counter()

    def until(share: float) -> Clock:
        """Return a clock of the seconds left of that share of the time."""
        return lambda: share * time_limit_s - (time.perf_counter() - began)

    started = any(kind.start_usd for kind in problem.kinds)
    free = _without_starts(problem)
    divided = solve(free, gap, time_limit_s, relaxed=True)
    if divided is None:
        return None
    bound, variables = divided.lower_bound, divided.variables
    if started and (whole := solve(problem, gap, 0.2 * time_limit_s, relaxed=True)) is not None:
        bound, variables = max(bound, whole.lower_bound), whole.variables
    by_hours = _by_hours(free, divided.counts, gap / 2, until(0.8))
    by_hours = by_hours or solve(free, gap / 2, max(1.0, until(0.5)()))
    if by_hours is None:
        return None
    counts, bound = by_hours.counts, max(bound, by_hours.lower_bound)
    counts = _improved(free, counts, 1, gap, bound, until(0.6 if started else 0.95))
    if started:
        # The kinds that single hours choose are the ones worth starting.
        used = [index for index in range(len(counts)) if counts[index].any()]
        some = replace(problem, kinds=[problem.kinds[index] for index in used])
        counts[used] = _improved(some, counts[used], WINDOW_HOURS, gap, bound, until(0.95))
    reserves = any(kind.terms is Terms.reserved for kind in problem.kinds)
    if problem.bill(counts) > bound / (1 - gap) and until(0.95)() > 1 and reserves:
        # Use the time that is left for the proof.
        proof = _solve_in_time(free, gap, until(0.95)())
        bound = max(bound, proof.lower_bound) if proof else bound
    return Solution(counts, bound, time.perf_counter() - began, variables)


def _with_batch(problem: FleetProblem, gap: float, time_limit_s: float) -> Solution | None:
    """Solve all at once if it is small; else place batch work where divisible machines would do it, as demand.

    If the fleet for the demand alone has room for all of it, that fleet is the cheapest.
    """
    began, small = time.perf_counter(), len(problem.kinds) * different_hours(problem) <= AT_ONCE
    at_once = _solve_in_time(problem, gap, 0.4 * time_limit_s) if small else None
    if at_once is not None and _is_proven(problem, at_once, gap):
        return at_once
    divided = _solve_in_time(_without_starts(problem), 0.0, time_limit_s / 4, relaxed=True)
    if divided is None or divided.batch is None or problem.batch is None:
        return at_once
    ((name, rates),) = problem.demand.rates.items()
    alone = search(replace(problem, batch=None), gap, time_limit_s / 4)
    if alone is None:
        return at_once
    carried = np.array([kind.carries(name, rates) for kind in problem.kinds]) * alone.counts
    free = np.maximum(0.0, carried.sum(axis=0) - np.asarray(rates))
    tried = [found for found in (at_once,) if found is not None]
    if (filled := problem.batch.filled_into(free)) is not None:
        tried.append(replace(alone, batch=filled))
    else:
        both = demand_of((np.asarray(rates) + divided.batch).tolist(), name)
        found = search(replace(problem, demand=both, batch=None), gap, time_limit_s / 4)
        tried += [replace(found, batch=divided.batch)] if found is not None else []
    if not tried:
        return None
    best = min(tried, key=lambda found: problem.bill(found.counts))
    bound = max(divided.lower_bound, alone.lower_bound, at_once.lower_bound if at_once else 0.0)
    return replace(best, lower_bound=bound, solve_s=time.perf_counter() - began)


def _by_hours(problem: FleetProblem, near: Ints, gap: float, left: Clock) -> Solution | None:
    """Solve each hour separately, with the reserved machines of a divisible fleet, rounded; None if one has no fleet.

    If nothing can be reserved, hours are independent and their bounds add up to the whole one.
    """
    is_reserved = np.array([kind.terms is Terms.reserved for kind in problem.kinds])
    base = np.where(is_reserved, near[:, 0], 0)
    counts, bounds = np.zeros_like(near), np.zeros(problem.demand.hours)
    done: dict[tuple[float, ...], int] = {}
    for hour in range(problem.demand.hours):
        demand = problem.demand.at_hours([hour])
        rates = tuple(rate for (rate,) in demand.rates.values())
        if rates not in done:
            if left() <= 0:
                return None
            found = _solve_in_time(replace(problem, demand=demand), gap, WINDOW_S, window=(base, base))
            if found is None:
                return None
            counts[:, hour] = found.counts[:, 0]
            done[rates], bounds[hour] = hour, found.lower_bound
        counts[:, hour], bounds[hour] = counts[:, done[rates]], bounds[done[rates]]
    return Solution(counts, 0.0 if is_reserved.any() else float(bounds.sum()), 0.0, 0)


def _improved(problem: FleetProblem, counts: Ints, hours: int, gap: float, bound: float, left: Clock) -> Ints:
    """Return better counts: solve windows of hours and, between them, the kinds in use, as long as that helps."""
    for turn in range(ROUNDS):
        before = problem.bill(counts)
        if hours == 1 and left() > 0 and before > bound / (1 - gap):
            counts = _with_those_in_use(problem, counts, gap / 4, min(left(), 0.5 * left() + 1))
        # Single hours cannot improve until the reserved machines change.
        if hours > 1 or problem.bill(counts) < before:
            counts = _by_windows(problem, counts, hours, gap / 4, turn, left)
        now = problem.bill(counts)
        # Try shifted windows even if the first ones found nothing.
        if now <= bound / (1 - gap) or left() <= 0 or (now >= before and (turn or hours == 1)):
            break
    return counts


def _by_windows(problem: FleetProblem, counts: Ints, hours: int, gap: float, turn: int, left: Clock) -> Ints:
    """Solve each window with everything around it fixed; the windows shift by half from turn to turn."""
    counts, demand = counts.copy(), problem.demand
    done: dict[tuple[float, ...], int] = {}
    shift = (hours // 2) * (turn % 2)
    for begin in range(shift, demand.hours + shift, hours):
        inside = np.arange(begin, min(begin + hours, demand.hours + shift)) % demand.hours
        part = demand.at_hours(inside.tolist())
        if hours == 1 and (same := done.get(key := tuple(rate for (rate,) in part.rates.values()))) is not None:
            counts[:, inside[0]] = counts[:, same]
            continue
        if left() <= 0:
            break
        around = counts[:, inside[0] - 1], counts[:, (inside[-1] + 1) % demand.hours]
        try:
            found = solve(replace(problem, demand=part), gap, min(WINDOW_S, max(0.2, left())), window=around)
        except OutOfTime:
            continue
        if found is not None:
            tried = counts.copy()
            tried[:, inside] = found.counts
            counts = min(counts, tried, key=problem.bill)
        if hours == 1:
            done[key] = int(inside[0])
    return counts


def _with_those_in_use(problem: FleetProblem, counts: Ints, gap: float, time_limit_s: float) -> Ints:
    """Solve the whole horizon again with only the kinds in use, which may change the reserved numbers."""
    kinds = problem.kinds
    used = [index for index in range(len(kinds)) if counts[index].any()]
    # Also try every commitment that is not in use.
    used += [i for i, kind in enumerate(kinds) if kind.terms is Terms.reserved and i not in used]
    found = _solve_in_time(replace(problem, kinds=[kinds[index] for index in used]), gap, time_limit_s)
    if found is None:
        return counts
    tried = np.zeros_like(counts)
    tried[used] = found.counts
    return min(counts, tried, key=problem.bill)
