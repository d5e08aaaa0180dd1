"""A program too large to solve at once: solved without start-ups, then improved a few hours at a time.

Without start-ups hours of the same demand are one, which makes the program small; its proven bound holds for the whole
one, where start-ups only add to the bill (so does the bound of the whole one with divided replicas: the better counts).
The fleet found is improved by solving a window of hours with all else kept, and the whole again with only the kinds in
use, until the gap is closed, nothing improves, or time is up.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tokonomics.catalog.offers import Terms
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import Wishes
from tokonomics.money.fleet_kinds import Kind
from tokonomics.money.fleet_program import Ints, OutOfTime, Solution, Window, bill, solve

AT_ONCE = 600
"""Columns that HiGHS solves by itself within seconds (benchmarks/bench_fleet.py)."""
WINDOW_HOURS = 12
WINDOW_S = 2.0
ROUNDS = 6


def search(kinds: Sequence[Kind], demand: Demand, wishes: Wishes, gap: float, time_limit_s: float) -> Solution | None:
    """The counts by kind and hour with a proven bound; None where there is no fleet."""
    started = any(kind.start_usd for kind in kinds)
    different = demand.hours if started else len(set(zip(*demand.rates.values(), strict=True)))
    if len(kinds) * different <= AT_ONCE:
        return solve(kinds, demand, wishes, gap, time_limit_s)
    began = time.perf_counter()

    def until(share: float) -> Callable[[], float]:
        """Seconds left of that share of the time."""
        return lambda: share * time_limit_s - (time.perf_counter() - began)

    free = [replace(kind, start_usd=0.0) for kind in kinds]
    first = solve(free, demand, wishes, gap / 2, 0.3 * time_limit_s)
    if first is None:
        return None
    bound, variables = first.lower_bound, first.variables
    left = until(0.6 if started else 0.95)
    counts = _improved(free, demand, wishes, first.counts, 1, gap, bound, left)
    if started:
        whole = solve(kinds, demand, wishes, gap, 0.2 * time_limit_s, relaxed=True)
        if whole is not None:
            bound, variables = max(bound, whole.lower_bound), whole.variables
        # The kinds that hours choose for themselves are the ones worth starting.
        used = [index for index in range(len(kinds)) if counts[index].any()]
        some = [kinds[index] for index in used]
        counts[used] = _improved(some, demand, wishes, counts[used], WINDOW_HOURS, gap, bound, until(0.95))
    return Solution(counts, bound, time.perf_counter() - began, variables)


def _improved(
    kinds: Sequence[Kind],
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
        counts = _by_windows(kinds, demand, wishes, counts, hours, gap / 4, turn, left)
        if hours == 1 and left() > 1 and bill(kinds, counts) > bound / (1 - gap):
            counts = _with_those_in_use(kinds, demand, wishes, counts, gap / 4, min(left(), 0.5 * left() + 1))
        now = bill(kinds, counts)
        # Shifted windows get their turn even where the first ones found nothing.
        if now <= bound / (1 - gap) or left() <= 0 or (now >= before and (turn or hours == 1)):
            break
    return counts


def _by_windows(
    kinds: Sequence[Kind],
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
        rates = {name: tuple(np.asarray(each)[inside].tolist()) for name, each in demand.rates.items()}
        if hours == 1 and (same := done.get(key := tuple(each[0] for each in rates.values()))) is not None:
            counts[:, inside[0]] = counts[:, same]
            continue
        if left() <= 0:
            break
        around = Window(counts[:, inside[0] - 1], counts[:, (inside[-1] + 1) % demand.hours])
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
    kinds: Sequence[Kind], demand: Demand, wishes: Wishes, counts: Ints, gap: float, time_limit_s: float
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
