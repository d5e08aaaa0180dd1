"""Decide which machines to buy, on which terms, hour by hour: a mixed-integer program solved by HiGHS through SciPy.

    least Σ reserved × price × hours + Σ on demand × price + Σ spot × expected price + Σ starts × start-up time × price

such that in every hour and size class the machines serve the demand (a spot machine counts for what interruptions leave
of it), firm machines serve what spot may not, the rest serves its share if any one zone fails, the minimum of firm
replicas is there, and every machine that was not there an hour before is started. Batch work is a quantity for each
day, done in any hours between its start and its deadline, beside the demand. The horizon repeats. With several size
classes a machine divides its time among those it can hold, as Mélange does (Griggs et al. 2024).

A kind is removed before the program is written if another kind does the same for no more money. This is exact, and
keeps the program small for a price list of hundreds of offers.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.money.purchases import BatchWork, Demand, FleetLimits, FleetOffer, Floats, SpotMarket
from tokonomics.money.spot_machines import counted_share, spot_usd_per_hour
from tokonomics.units import SECONDS_PER_HOUR

Ints = NDArray[np.int64]

ROUNDING = 1e-9  # relative slack on the demand, so that ten machines of a tenth serve one
_LONGER = f"Give it longer ({option('time_limit', 120)}), or fewer offers."


@dataclass(frozen=True)
class PurchaseKind:
    """Something that can be bought: a column of the program for each hour, or one for all hours if reserved."""

    offer: FleetOffer
    terms: Terms
    place: str | None
    usd_per_hour: float  # as quoted
    expected_usd_per_hour: float
    counted: float  # share of a machine that counts: 1 unless spot
    start_usd: float  # paid while one starts and, later, finishes its requests
    market: SpotMarket | None = None

    @property
    def is_firm(self) -> bool:
        return self.terms is not Terms.spot

    def carries(self, name: str, demand: ArrayLike) -> Floats:
        """Return the requests a second of that class that one counts for, at each demand."""
        return self.offer.carries(name, demand) * self.counted


def kinds_of(offers: Sequence[FleetOffer], limits: FleetLimits) -> list[PurchaseKind]:
    """Return everything the offers sell: each commitment, on demand, each spot zone."""
    kinds: list[PurchaseKind] = []
    for offer in offers:
        for term, usd in offer.reserved.items():
            kinds.append(PurchaseKind(offer, Terms.reserved, term, usd, usd, 1.0, 0.0))
        if (usd_now := offer.usd_per_hour) is not None:
            start_usd = usd_now * offer.start_hours
            kinds.append(PurchaseKind(offer, Terms.on_demand, None, usd_now, usd_now, 1.0, start_usd))
        for market in offer.spot:
            usd, expected = market.usd_per_hour, spot_usd_per_hour(offer, market, limits)
            counted, start_usd = counted_share(offer, market, limits), usd * offer.start_hours
            kinds.append(PurchaseKind(offer, Terms.spot, market.zone, usd, expected, counted, start_usd, market))
    return kinds


def undominated(kinds: Sequence[PurchaseKind], limits: FleetLimits) -> list[PurchaseKind]:
    """Return the kinds that no other kind on the same terms replaces for no more money."""

    def expense(kind: PurchaseKind) -> tuple[float, float, float]:
        capacity = kind.counted * sum(kind.offer.requests_per_s.values())
        return kind.expected_usd_per_hour, kind.start_usd, -capacity

    kept: list[PurchaseKind] = []
    # Cheapest first, so that any kind that could replace this one was seen before it.
    for kind in sorted(kinds, key=expense):
        if not any(_replaces(other, kind, limits) for other in kept):
            kept.append(kind)
    return [kind for kind in kinds if any(kind is other for other in kept)]


def _replaces(other: PurchaseKind, kind: PurchaseKind, limits: FleetLimits) -> bool:
    if other.terms is not kind.terms:
        return False
    if other.expected_usd_per_hour > kind.expected_usd_per_hour or other.start_usd > kind.start_usd:
        return False
    # A limit on zones counts what a zone loses, so another zone's machine is no replacement.
    if not kind.is_firm and limits.max_zone_share < 1 and other.place != kind.place:
        return False
    if kind.is_firm and limits.min_replicas and other.offer.replicas < kind.offer.replicas:
        return False
    for name in kind.offer.requests_per_s:
        # Capacity is linear between the levels of both, so comparing it at every level compares it at any demand.
        levels = (*other.offer.levels.get(name, ()), *kind.offer.levels.get(name, ()))
        rates = [rate for rate, _ in levels] or [0.0]
        if np.any(other.carries(name, rates) < kind.carries(name, rates)):
            return False
    return True


@dataclass(frozen=True)
class FleetProblem:
    """What can be bought, and what it must serve."""

    kinds: Sequence[PurchaseKind]
    demand: Demand
    limits: FleetLimits
    batch: BatchWork | None = None  # of the demand's one class

    def bill(self, counts: Ints) -> float:
        """Return the expected USD of these counts over their hours."""
        usd = np.array([kind.expected_usd_per_hour for kind in self.kinds]) @ counts.sum(axis=1)
        return float(usd + np.array([kind.start_usd for kind in self.kinds]) @ starts_of(counts).sum(axis=1))


@dataclass(frozen=True)
class Solution:
    """Counts by kind and hour, and what the solver reports about them."""

    counts: Ints
    lower_bound: float
    solve_s: float
    variables: int
    batch: Floats | None = None  # requests a second of batch work, by hour


class OutOfTime(BadInput):
    """The solver found nothing in the time it had."""


class Program:
    """A sparse program, written in blocks: columns with their prices and bounds, rows with their least sums."""

    def __init__(self) -> None:
        self.width = self.height = 0
        self.columns: list[tuple[Floats, ...]] = []  # price, least, most, whether whole
        self.low: list[Floats] = []
        self.entries: list[tuple[Ints, Ints, Floats]] = []  # row, column, value

    def add_columns(
        self,
        number: int,
        price: float | Floats = 0.0,
        whole: bool = False,
        fixed: int | None = None,
        most: float = np.inf,
    ) -> Ints:
        """Add this many columns, at one value if ``fixed``; return their numbers."""
        bounds = (0.0, most) if fixed is None else (float(fixed), float(fixed))
        self.columns.append(tuple(np.full(number, value, np.float64) for value in (price, *bounds, float(whole))))
        self.width += number
        return np.arange(self.width - number, self.width)

    def add_rows(self, low: Floats) -> Ints:
        """Add rows whose sums are at least these; return their numbers."""
        self.low.append(low)
        self.height += len(low)
        return np.arange(self.height - len(low), self.height)

    def put(self, rows: Ints, columns: Ints, value: float | Floats) -> None:
        values = np.broadcast_to(np.asarray(value, np.float64), rows.shape)
        self.entries.append((rows, np.broadcast_to(columns, rows.shape), values))

    def solved(self, gap: float, time_limit_s: float, relaxed: bool) -> Any:
        from scipy.optimize import Bounds, LinearConstraint, milp  # Takes half a second: load it only to solve.
        from scipy.sparse import coo_array

        price, least, most, whole = (np.concatenate(blocks) for blocks in zip(*self.columns, strict=True))
        rows, columns, values = (np.concatenate(blocks) for blocks in zip(*self.entries, strict=True))
        matrix = coo_array((values, (rows, columns)), shape=(self.height, self.width)).tocsr()
        with _silent():
            return milp(
                price,
                integrality=np.zeros(self.width) if relaxed else whole,
                bounds=Bounds(least, most),
                constraints=LinearConstraint(matrix, np.concatenate(self.low)),
                options={"mip_rel_gap": gap, "time_limit": time_limit_s},
            )


def solve(
    problem: FleetProblem,
    gap: float,
    time_limit_s: float,
    *,
    relaxed: bool = False,
    window: tuple[Ints, Ints] | None = None,
) -> Solution | None:
    """Return the counts by kind and hour; None if there is no fleet. ``relaxed`` allows fractions of machines.

    A ``window`` is some hours of a longer horizon: the counts by kind just before and just after them, of which
    reserved ones do not change.
    """
    if time_limit_s <= 0:
        # HiGHS reads a negative limit as no limit.
        raise OutOfTime("no fleet was found: no time was left for it", fix=_LONGER)
    began, kinds, limits, program = time.perf_counter(), problem.kinds, problem.limits, Program()
    demand, weights, group = _merged(problem, window is not None)
    hours = demand.hours
    machines = []
    for index, kind in enumerate(kinds):
        if kind.terms is Terms.reserved:
            usd, fixed = kind.expected_usd_per_hour * weights.sum(), window[0][index] if window else None
            machines.append(program.add_columns(1, usd, whole=True, fixed=fixed))
        else:
            machines.append(program.add_columns(hours, kind.expected_usd_per_hour * weights, whole=True))
    # A window has one hour more: machines of the hour after it may have to be started as well.
    width = hours + (window is not None)
    starts = {
        index: program.add_columns(width, kind.start_usd)
        for index, kind in enumerate(kinds)
        if kind.start_usd and kind.terms is not Terms.reserved and width > 1
    }
    _carry(program, kinds, machines, demand, limits)
    batch = None if problem.batch is None else _do_batch(program, kinds, machines, demand, problem.batch)
    if limits.min_replicas:
        rows = program.add_rows(np.full(hours, float(limits.min_replicas)))
        for kind, own in zip(kinds, machines, strict=True):
            if kind.is_firm:
                program.put(rows, own, float(kind.offer.replicas))
    for index, own in starts.items():
        _start(program, own, machines[index], (window[0][index], window[1][index]) if window else None)
    found = program.solved(gap, time_limit_s, relaxed)
    if found.x is None:
        if found.status == 1:
            raise OutOfTime(f"no fleet was found within {time_limit_s:.3g} s", fix=_LONGER)
        return None
    counts = np.array([np.broadcast_to(found.x[own], hours) for own in machines])
    return Solution(
        np.rint(counts).astype(np.int64)[:, group],
        lower_bound=float(found.fun if relaxed or found.mip_dual_bound is None else found.mip_dual_bound),
        solve_s=time.perf_counter() - began,
        variables=program.width,
        batch=None if batch is None else np.maximum(0.0, found.x[batch]),
    )


_solving = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """Silence HiGHS (SciPy 1.17), which prints a developers' line past its own switch, into what may be JSON output.

    Only one thread at a time may do this: a second would take the first one's silence for standard output, and restore
    that.
    """
    libc = ctypes.CDLL(None)
    with _solving:
        sys.stdout.flush()
        libc.fflush(None)
        kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 1)
            yield
        finally:
            libc.fflush(None)  # Flush C's buffer before standard output is restored.
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)


def starts_of(counts: Ints) -> Ints:
    """Return the machines that were not there an hour before; the horizon repeats."""
    started: Ints = np.maximum(0, counts - np.roll(counts, 1, axis=1))
    return started


def _merged(problem: FleetProblem, in_window: bool) -> tuple[Demand, Floats, Ints]:
    """Merge hours of the same demand into one, with their number: all of them or, with start-ups, adjacent ones only.

    A fleet that changes while the demand does not gains nothing: keeping its cheapest hour starts no more machines.
    With batch work nothing is merged, because it may need machines in only one of the hours.
    """
    demand = problem.demand
    if problem.batch is not None:
        return demand, np.ones(demand.hours), np.arange(demand.hours)
    table = np.array(list(demand.rates.values()))
    if in_window or any(kind.start_usd for kind in problem.kinds):
        begins = np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))
        different, group = table[:, begins], np.cumsum(begins) - 1
        weights = np.bincount(group)
    else:
        different, group, weights = np.unique(table, axis=1, return_inverse=True, return_counts=True)
    merged = Demand(rates={name: tuple(row) for name, row in zip(demand.rates, different.tolist(), strict=True)})
    return merged, weights.astype(np.float64), group.reshape(-1)


def different_hours(problem: FleetProblem) -> int:
    """Count the hours of the program after merging: with start-ups, how often the demand changes."""
    return _merged(problem, False)[0].hours


def _carry(
    program: Program, kinds: Sequence[PurchaseKind], machines: Sequence[Ints], demand: Demand, limits: FleetLimits
) -> None:
    """Add the rows that make the fleet serve the demand."""
    hours, firm_share = demand.hours, 1 - limits.max_spot_share
    zones = dict.fromkeys(kind.place for kind in kinds if not kind.is_firm and limits.max_zone_share < 1)
    # Columns of requests a second that a kind serves of a class: needed only with several classes.
    several = len(demand.rates) > 1
    time_rows = [program.add_rows(np.zeros(hours)) for _ in kinds] if several else []  # machines ≥ Σ served ÷ capacity
    for rows, own in zip(time_rows, machines, strict=False):
        program.put(rows, own, 1.0)
    for name, rates in demand.rates.items():
        needed = np.asarray(rates) * (1 - ROUNDING)
        served = program.add_rows(needed + limits.spare.get(name, 0.0) * (needed > 0))
        firm = program.add_rows(needed * firm_share) if firm_share > 0 else None
        without = {zone: program.add_rows(needed * (1 - limits.max_zone_share)) for zone in zones}
        for index, kind in enumerate(kinds):
            if name not in kind.offer.requests_per_s:
                continue
            carries = kind.carries(name, rates)
            own, value = machines[index], carries
            if several:
                own, value = program.add_columns(hours), np.ones(hours)
                program.put(time_rows[index], own, -1.0 / carries)
            program.put(served, own, value)
            if firm is not None and kind.is_firm:
                program.put(firm, own, value)
            for zone, rows in without.items():
                if kind.is_firm or kind.place != zone:
                    program.put(rows, own, value)


def _do_batch(
    program: Program, kinds: Sequence[PurchaseKind], machines: Sequence[Ints], demand: Demand, batch: BatchWork
) -> Ints:
    """Add the rows that make the fleet do each day's batch work beside the demand; return its columns, by hour."""
    ((name, rates),) = demand.rates.items()
    own = program.add_columns(demand.hours)
    beside = program.add_rows(np.asarray(rates) * (1 - ROUNDING))
    program.put(beside, own, -1.0)
    for kind, counts in zip(kinds, machines, strict=True):
        if name in kind.offer.requests_per_s:
            program.put(beside, counts, kind.carries(name, rates))
    for hours in batch.windows(demand.hours):
        done = program.add_rows(np.full(1, batch.requests_per_day / SECONDS_PER_HOUR * (1 - ROUNDING)))
        program.put(np.repeat(done, len(hours)), own[hours], 1.0)
    return own


def _start(program: Program, starts: Ints, own: Ints, around: tuple[int, int] | None) -> None:
    """Add the rows that start every machine that was not there an hour before: started − now + an hour before ≥ 0."""
    low = np.zeros(len(starts))
    if around is not None:
        low[0], low[-1] = -float(around[0]), float(around[1])
    rows = program.add_rows(low)
    program.put(rows, starts, 1.0)
    if around is None:
        program.put(rows, np.roll(own, 1), 1.0)
        program.put(rows, own, -1.0)
    else:
        program.put(rows[1:], own, 1.0)
        program.put(rows[:-1], own, -1.0)
