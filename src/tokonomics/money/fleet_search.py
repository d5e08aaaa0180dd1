"""The cheapest fleet for a demand: the program of ``fleet_program`` solved, at once or part by part.

A program too large to solve at once is solved for divided machines, made whole hour by hour, then improved. The bill of
divided machines is a proven bound. It also says how many to reserve; with those kept, and no start-ups, each hour is a
small program of its own. The fleet found is improved by solving the whole with only the kinds in use, and a window of
hours at a time with start-ups and all else kept, until the gap is closed, nothing improves, or time is up; what time is
left goes into a better bound.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.spot import REGION_CORRELATION
from tokonomics.errors import BadInput
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import FleetOffer, FleetPlan, FleetPurchase, Wishes, mixed_capacity
from tokonomics.money.fleet_bill import p99_bill
from tokonomics.money.fleet_blame import impossible
from tokonomics.money.fleet_kinds import PurchaseKind, kinds_of, undominated
from tokonomics.money.fleet_program import (
    Floats,
    Ints,
    OutOfTime,
    ProgramWindow,
    Solution,
    bill,
    solve,
    spells,
    starts_of,
)
from tokonomics.units import HOURS_PER_MONTH

GAP = 5e-3  # stop when no fleet can be cheaper by more than this share: half a percent is far below what prices move
TIME_LIMIT_S = 30.0
"""What is left of the gap by then is mostly a bound not proven, and is printed (benchmarks/bench_fleet.py)."""
AT_ONCE = 600  # columns that HiGHS solves by itself within seconds (benchmarks/bench_fleet.py)
WINDOW_HOURS = 12
WINDOW_S = 2.0
ROUNDS = 6


def optimal_fleet(
    offers: Sequence[FleetOffer],
    demand: Demand,
    wishes: Wishes | None = None,
    *,
    gap: float = GAP,
    time_limit_s: float = TIME_LIMIT_S,
    correlation: float = REGION_CORRELATION,
    seed: int = 0,
) -> FleetPlan:
    """The cheapest fleet for a demand; ``correlation`` is that of interruptions between zones, for the p99 bill."""
    wishes = wishes or Wishes()
    _check(offers, demand)
    kinds = undominated(kinds_of(offers, wishes), wishes)
    solution = search(kinds, demand, wishes, gap, time_limit_s)
    if solution is None:
        raise impossible(offers, demand, wishes)
    starts = starts_of(solution.counts)
    usd = np.array([kind.expected_usd_per_hour for kind in kinds]) * solution.counts.sum(axis=1)
    start_usd = np.array([kind.start_usd for kind in kinds]) * starts.sum(axis=1)
    bought = [index for index in range(len(kinds)) if solution.counts[index].any()]
    expected = float(usd.sum() + start_usd.sum())
    held = [(kinds[i].offer, market, solution.counts[i]) for i in bought if (market := kinds[i].market)]
    sizes = _sizes(kinds, demand)
    is_firm = np.array([kind.is_firm for kind in kinds])
    firm, spot = (size.tolist() for size in ((sizes * is_firm) @ solution.counts, (sizes * ~is_firm) @ solution.counts))
    usd_per_month = expected * HOURS_PER_MONTH / demand.hours
    return FleetPlan(
        hours=demand.hours,
        purchases=tuple(
            FleetPurchase(
                offer=kinds[index].offer.name,
                terms=kinds[index].terms,
                place=kinds[index].place,
                by_hour=tuple(solution.counts[index].tolist()),
                usd_per_hour=kinds[index].usd_per_hour,
                requests_per_s=float(sizes[index]),
                usd=float(usd[index] + start_usd[index]),
                usd_per_month=float(usd[index] + start_usd[index]) * HOURS_PER_MONTH / demand.hours,
                interruptions_by=market.interruptions_by if (market := kinds[index].market) else None,
            )
            for index in bought
        ),
        demand=demand.total,
        firm_capacity=tuple(firm),
        spot_capacity=tuple(spot),
        expected_usd=expected,
        usd_per_month=usd_per_month,
        p99_usd_per_month=p99_bill(held, usd_per_month, wishes, correlation, seed),
        startup_usd=float(start_usd.sum()),
        gap=max(0.0, 1 - solution.lower_bound / expected) if expected > 0 else 0.0,
        solve_s=solution.solve_s,
        variables=solution.variables,
    )


def _sizes(kinds: Sequence[PurchaseKind], demand: Demand) -> Floats:
    """What one of each kind counts for, in requests of the demand's mix."""
    return np.array([mixed_capacity(kind.offer, demand.mix) * kind.counted for kind in kinds])


def _check(offers: Sequence[FleetOffer], demand: Demand) -> None:
    if not offers:
        raise BadInput("there is no offer to buy from", fix="Loosen the filters, or add offers.")
    names = [offer.name for offer in offers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"two offers are called '{twice}'")
    unpriced = next((offer for offer in offers if not offer.prices), None)
    if unpriced is not None:
        raise BadInput(f"'{unpriced.name}' has no price on any terms")
    for name, rates in demand.rates.items():
        if max(rates) > 0 and not any(name in offer.requests_per_s for offer in offers):
            raise BadInput(
                f"no offer holds requests of the class '{name}'",
                fix="Add an offer with more memory, or leave these requests out.",
            )


def search(
    kinds: Sequence[PurchaseKind], demand: Demand, wishes: Wishes, gap: float, time_limit_s: float
) -> Solution | None:
    """The counts by kind and hour with a proven bound; None where there is no fleet."""
    started = any(kind.start_usd for kind in kinds)
    different = spells(demand) if started else len(set(zip(*demand.rates.values(), strict=True)))
    began, at_once = time.perf_counter(), None
    if len(kinds) * different <= AT_ONCE:
        with suppress(OutOfTime):
            at_once = solve(kinds, demand, wishes, gap, 0.4 * time_limit_s)
            if at_once is None or bill(kinds, at_once.counts) <= at_once.lower_bound / (1 - gap) * (1 + 1e-6):
                return at_once
    left = time_limit_s - (time.perf_counter() - began)
    if at_once is None:
        # A busy machine may have taken all of the time: a fleet that comes late is better than none.
        return _taken_apart(kinds, demand, wishes, gap, max(left, 0.4 * time_limit_s), started)
    try:
        taken_apart = _taken_apart(kinds, demand, wishes, gap, left, started)
    except OutOfTime:
        taken_apart = None
    if taken_apart is None:
        return at_once
    best = min((at_once, taken_apart), key=lambda each: bill(kinds, each.counts))
    bound = max(at_once.lower_bound, taken_apart.lower_bound)
    return replace(best, lower_bound=bound, solve_s=time.perf_counter() - began)


def divided_usd(offers: Sequence[FleetOffer], demand: Demand, wishes: Wishes) -> float | None:
    """The bill if machines could be divided and started for nothing: a quick bound; None where none was found."""
    kinds = [replace(kind, start_usd=0.0) for kind in undominated(kinds_of(offers, wishes), wishes)]
    with suppress(OutOfTime):
        found = solve(kinds, demand, wishes, 0.0, WINDOW_S, relaxed=True)
        return None if found is None else found.lower_bound
    return None


def _taken_apart(
    kinds: Sequence[PurchaseKind], demand: Demand, wishes: Wishes, gap: float, time_limit_s: float, started: bool
) -> Solution | None:
    began = time.perf_counter()

    def until(share: float) -> Callable[[], float]:
        """Seconds left of that share of the time."""
        return lambda: share * time_limit_s - (time.perf_counter() - began)

    free = [replace(kind, start_usd=0.0) for kind in kinds]
    divided = solve(free, demand, wishes, gap, time_limit_s, relaxed=True)
    if divided is None:
        return None
    bound, variables = divided.lower_bound, divided.variables
    if started and (whole := solve(kinds, demand, wishes, gap, 0.2 * time_limit_s, relaxed=True)) is not None:
        bound, variables = max(bound, whole.lower_bound), whole.variables
    by_hours = _by_hours(free, demand, wishes, divided.counts, gap / 2, until(0.8))
    if by_hours is None:
        by_hours = solve(free, demand, wishes, gap / 2, max(1.0, until(0.5)()))
        if by_hours is None:
            return None
    counts, bound = by_hours.counts, max(bound, by_hours.lower_bound)
    counts = _improved(free, demand, wishes, counts, 1, gap, bound, until(0.6 if started else 0.95))
    if started:
        # The kinds that hours choose for themselves are the ones worth starting.
        used = [index for index in range(len(kinds)) if counts[index].any()]
        some = [kinds[index] for index in used]
        counts[used] = _improved(some, demand, wishes, counts[used], WINDOW_HOURS, gap, bound, until(0.95))
    if bill(kinds, counts) > bound / (1 - gap) and until(0.95)() > 1 and any(k.terms is Terms.reserved for k in kinds):
        # Time is left: it goes into the proof.
        with suppress(OutOfTime):
            proof = solve(free, demand, wishes, gap, until(0.95)())
            bound = max(bound, proof.lower_bound) if proof else bound
    return Solution(counts, bound, time.perf_counter() - began, variables)


def _by_hours(
    kinds: Sequence[PurchaseKind], demand: Demand, wishes: Wishes, near: Ints, gap: float, left: Callable[[], float]
) -> Solution | None:
    """Each hour by itself, with the reserved machines of a fleet of divided ones, rounded; None where one has none.

    Where nothing can be reserved, hours have nothing to do with each other and their bounds are the whole one's.
    """
    is_reserved = np.array([kind.terms is Terms.reserved for kind in kinds])
    base = np.where(is_reserved, near[:, 0], 0)
    counts = np.zeros_like(near)
    done: dict[tuple[float, ...], int] = {}
    bounds = np.zeros(demand.hours)
    for hour in range(demand.hours):
        rates = tuple(each[hour] for each in demand.rates.values())
        if rates not in done:
            one = Demand(rates={name: (rate,) for name, rate in zip(demand.rates, rates, strict=True)})
            try:
                found = (
                    solve(kinds, one, wishes, gap, WINDOW_S, window=ProgramWindow(base, base)) if left() > 0 else None
                )
            except OutOfTime:
                found = None
            if found is None:
                return None
            counts[:, hour] = found.counts[:, 0]
            done[rates], bounds[hour] = hour, found.lower_bound
        counts[:, hour], bounds[hour] = counts[:, done[rates]], bounds[done[rates]]
    return Solution(counts, 0.0 if is_reserved.any() else float(bounds.sum()), 0.0, 0)


def _improved(
    kinds: Sequence[PurchaseKind],
    demand: Demand,
    wishes: Wishes,
    counts: Ints,
    hours: int,
    gap: float,
    bound: float,
    left: Callable[[], float],
) -> Ints:
    """Windows of so many hours, and between them the kinds in use, as long as it helps."""
    for turn in range(ROUNDS):
        before = bill(kinds, counts)
        if hours == 1 and left() > 0 and before > bound / (1 - gap):
            counts = _with_those_in_use(kinds, demand, wishes, counts, gap / 4, min(left(), 0.5 * left() + 1))
        # Hours by themselves are as good as they get until the reserved machines change.
        if hours > 1 or bill(kinds, counts) < before:
            counts = _by_windows(kinds, demand, wishes, counts, hours, gap / 4, turn, left)
        now = bill(kinds, counts)
        # Shifted windows get their turn even where the first ones found nothing.
        if now <= bound / (1 - gap) or left() <= 0 or (now >= before and (turn or hours == 1)):
            break
    return counts


def _by_windows(
    kinds: Sequence[PurchaseKind],
    demand: Demand,
    wishes: Wishes,
    counts: Ints,
    hours: int,
    gap: float,
    turn: int,
    left: Callable[[], float],
) -> Ints:
    """Each window solved with everything around it kept; the windows shift by half from turn to turn."""
    counts = counts.copy()
    done: dict[tuple[float, ...], int] = {}
    shift = (hours // 2) * (turn % 2)
    for begin in range(shift, demand.hours + shift, hours):
        inside = np.arange(begin, min(begin + hours, demand.hours + shift)) % demand.hours
        rates = {name: tuple(np.asarray(rate)[inside].tolist()) for name, rate in demand.rates.items()}
        if hours == 1 and (same := done.get(key := tuple(rate[0] for rate in rates.values()))) is not None:
            counts[:, inside[0]] = counts[:, same]
            continue
        if left() <= 0:
            break
        around = ProgramWindow(counts[:, inside[0] - 1], counts[:, (inside[-1] + 1) % demand.hours])
        try:
            found = solve(kinds, Demand(rates=rates), wishes, gap, min(WINDOW_S, max(0.2, left())), window=around)
        except OutOfTime:
            continue
        if found is not None:
            tried = counts.copy()
            tried[:, inside] = found.counts
            if bill(kinds, tried) < bill(kinds, counts):
                counts = tried
        if hours == 1:
            done[key] = int(inside[0])
    return counts


def _with_those_in_use(
    kinds: Sequence[PurchaseKind], demand: Demand, wishes: Wishes, counts: Ints, gap: float, time_limit_s: float
) -> Ints:
    """The whole horizon again with only the kinds in use: other numbers of reserved ones."""
    used = [index for index in range(len(kinds)) if counts[index].any()]
    # A commitment not in use is still worth a try next to what is.
    used += [i for i, kind in enumerate(kinds) if kind.terms is Terms.reserved and i not in used]
    try:
        found = solve([kinds[index] for index in used], demand, wishes, gap, time_limit_s)
    except OutOfTime:
        return counts
    if found is None:
        return counts
    tried = np.zeros_like(counts)
    tried[used] = found.counts
    return tried if bill(kinds, tried) < bill(kinds, counts) else counts
