"""Which machines to buy, on which terms, hour by hour: a mixed-integer program solved by HiGHS through SciPy.

    least Σ reserved × price × hours + Σ on demand × price + Σ spot × expected price + Σ starts × start-up time × price

such that in every hour and size class the machines carry the demand (a spot machine counts for what interruptions leave
of it), the firm ones carry what spot may not, what is left without any one zone carries its share, the least number of
firm replicas is there, and whatever was not there an hour before is started. Batch work is a quantity for each day
that hours between its start and its deadline share as they like, beside the demand. The horizon repeats. With several
size classes a machine divides its time among those it can hold, as Mélange does (Griggs et al. 2024).

A kind that another does as well for no more money is ruled out before the program is written: exact, and what makes a
price list of hundreds of offers small.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput, option
from tokonomics.money.batch_work import BatchWork
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import FleetLimits, FleetOffer, SpotMarket, counted_share, spot_usd_per_hour
from tokonomics.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING = 1e-9  # relative slack on the demand, so that ten machines of a tenth carry one


@dataclass(frozen=True)
class PurchaseKind:
    """Something that can be bought: a column of the program for each hour, or one for all hours if reserved."""

    offer: FleetOffer
    terms: Terms
    place: str | None
    usd_per_hour: float  # as quoted
    expected_usd_per_hour: float
    counted: float  # of a machine: 1 unless spot
    start_usd: float  # paid while one starts and, later, finishes: each start has its end
    market: SpotMarket | None = None

    @property
    def is_firm(self) -> bool:
        return self.terms is not Terms.spot

    def carries(self, name: str, demand: ArrayLike) -> Floats:
        """Requests a second of that class that one counts for, at each demand."""
        return self.offer.carries(name, demand) * self.counted


def kinds_of(offers: Sequence[FleetOffer], limits: FleetLimits) -> list[PurchaseKind]:
    """Everything the offers sell: each commitment, on demand, each zone of spot."""
    kinds: list[PurchaseKind] = []
    for offer in offers:
        hours = start_hours(offer)
        for term, usd in offer.reserved.items():
            kinds.append(PurchaseKind(offer, Terms.reserved, term, usd, usd, 1.0, 0.0))
        if (usd_now := offer.usd_per_hour) is not None:
            kinds.append(PurchaseKind(offer, Terms.on_demand, None, usd_now, usd_now, 1.0, usd_now * hours))
        for market in offer.spot:
            usd, expected = market.usd_per_hour, spot_usd_per_hour(offer, market, limits)
            counted = counted_share(offer, market, limits)
            kinds.append(PurchaseKind(offer, Terms.spot, market.zone, usd, expected, counted, usd * hours, market))
    return kinds


def start_hours(offer: FleetOffer) -> float:
    """Paid for each machine that comes and goes: before it serves, and while it finishes."""
    return (offer.startup_s + offer.drain_s) / SECONDS_PER_HOUR


def undominated(kinds: Sequence[PurchaseKind], limits: FleetLimits) -> list[PurchaseKind]:
    """Without what another kind on the same terms does as well for no more money: exact, and far fewer columns."""

    def expense(kind: PurchaseKind) -> tuple[float, float, float]:
        capacity = kind.counted * sum(kind.offer.requests_per_s.values())
        return kind.expected_usd_per_hour, kind.start_usd, -capacity

    kept: list[PurchaseKind] = []
    # Cheapest first, so that what could rule a kind out was seen before it.
    for kind in sorted(kinds, key=expense):
        if not any(_replaces(other, kind, limits) for other in kept):
            kept.append(kind)
    return [kind for kind in kinds if any(kind is other for other in kept)]


def _replaces(other: PurchaseKind, kind: PurchaseKind, limits: FleetLimits) -> bool:
    if other.terms is not kind.terms:
        return False
    if other.expected_usd_per_hour > kind.expected_usd_per_hour or other.start_usd > kind.start_usd:
        return False
    # What leaves with a zone must stay in that zone.
    if not kind.is_firm and limits.max_zone_share < 1 and other.place != kind.place:
        return False
    if kind.is_firm and limits.min_replicas and other.offer.replicas < kind.offer.replicas:
        return False
    return all(_carries_as_much(other, kind, name) for name in kind.offer.requests_per_s)


def _carries_as_much(other: PurchaseKind, kind: PurchaseKind, name: str) -> bool:
    """At any demand: between the levels of both it changes evenly."""
    levels = (*other.offer.levels.get(name, ()), *kind.offer.levels.get(name, ()))
    rates = [rate for rate, _ in levels] or [0.0]
    return bool(np.all(other.carries(name, rates) >= kind.carries(name, rates)))


@dataclass(frozen=True)
class FleetProblem:
    """What can be bought, and what it must carry."""

    kinds: Sequence[PurchaseKind]
    demand: Demand
    limits: FleetLimits
    batch: BatchWork | None = None
    """Of the demand's one class."""

    def bill(self, counts: Ints) -> float:
        """Expected USD of these counts over their hours."""
        usd = np.array([kind.expected_usd_per_hour for kind in self.kinds]) @ counts.sum(axis=1)
        return float(usd + np.array([kind.start_usd for kind in self.kinds]) @ starts_of(counts).sum(axis=1))


@dataclass(frozen=True)
class Solution:
    """Counts by kind and hour, and what the solver says of them."""

    counts: Ints
    lower_bound: float
    solve_s: float
    variables: int
    batch: Floats | None = None
    """Requests a second of batch work, by hour."""


@dataclass(frozen=True)
class ProgramWindow:
    """Some hours of a longer horizon: counts by kind just before and just after; reserved ones stay as they are."""

    before: Ints
    after: Ints


_LONGER = f"Give it longer ({option('time_limit', 120)}), or fewer offers."


class OutOfTime(BadInput):
    """The solver found nothing in the time it had."""


@dataclass
class _Rows:
    """Rows of a sparse matrix, collected as coordinates."""

    rows: list[Ints] = field(default_factory=list)
    columns: list[Ints] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    low: list[Floats] = field(default_factory=list)
    count: int = 0

    def block(self, low: Floats) -> Ints:
        """So many new rows that come to this at least; their numbers."""
        numbers = np.arange(self.count, self.count + len(low))
        self.count += len(low)
        self.low.append(low)
        return numbers

    def put(self, rows: Ints, columns: Ints, value: float | Floats) -> None:
        self.rows.append(rows)
        self.columns.append(np.broadcast_to(columns, rows.shape))
        self.values.append(np.broadcast_to(np.asarray(value, np.float64), rows.shape))


def solve(
    problem: FleetProblem,
    gap: float,
    time_limit_s: float,
    *,
    relaxed: bool = False,
    window: ProgramWindow | None = None,
) -> Solution | None:
    """The counts by kind and hour; None where there is no fleet. ``relaxed`` lets machines be divided."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # Half a second: only for those who solve.
    from scipy.sparse import coo_array

    if time_limit_s <= 0:
        # HiGHS takes less than none for no limit at all.
        raise OutOfTime("no fleet was found: no time was left for it", fix=_LONGER)
    began, kinds = time.perf_counter(), problem.kinds
    demand, weights, group = _merged(problem, window is not None)
    hours = demand.hours
    columns, size = _columns(kinds, hours)
    starting = [index for index, kind in enumerate(kinds) if kind.start_usd and kind.terms is not Terms.reserved]
    starting = starting if hours > 1 or window else []
    # A window has one hour more: what follows it may have to be started as well.
    width = hours + (window is not None)
    starts = {index: size + np.arange(width) + place * width for place, index in enumerate(starting)}
    size += len(starting) * width

    price, least, most, whole = np.zeros(size), np.zeros(size), np.full(size, np.inf), np.zeros(size)
    for index, kind in enumerate(kinds):
        own, once = columns[index], kind.terms is Terms.reserved
        price[own] = kind.expected_usd_per_hour * (weights.sum() if once else weights)
        whole[own] = 1
        if window is not None and once:
            least[own] = most[own] = window.before[index]
    for index, own in starts.items():
        price[own] = kinds[index].start_usd

    table = _Rows()
    extra = _carry(table, kinds, columns, demand, problem.limits, size)
    batch = None
    if problem.batch is not None:
        batch = _do_batch(table, kinds, columns, demand, problem.batch, size + extra)
        extra += hours
    if problem.limits.min_replicas:
        rows = table.block(np.full(hours, float(problem.limits.min_replicas)))
        for kind, own in zip(kinds, columns, strict=True):
            if kind.is_firm:
                table.put(rows, own, float(kind.offer.replicas))
    for index, own in starts.items():
        _start(table, own, columns[index], (window.before[index], window.after[index]) if window else None)
    size += extra
    price, least, whole = (np.pad(values, (0, extra)) for values in (price, least, whole))
    most = np.pad(most, (0, extra), constant_values=np.inf)
    entries = (np.concatenate(table.rows), np.concatenate(table.columns))
    matrix = coo_array((np.concatenate(table.values), entries), shape=(table.count, size)).tocsr()
    with _silent():
        found: Any = milp(
            price,
            integrality=np.zeros(size) if relaxed else whole,
            bounds=Bounds(least, most),
            constraints=LinearConstraint(matrix, np.concatenate(table.low)),
            options={"mip_rel_gap": gap, "time_limit": time_limit_s},
        )
    if found.x is None:
        if found.status == 1:
            raise OutOfTime(f"no fleet was found within {time_limit_s:.3g} s", fix=_LONGER)
        return None
    counts = np.array([np.broadcast_to(found.x[own], hours) for own in columns])
    bound = found.fun if relaxed or found.mip_dual_bound is None else found.mip_dual_bound
    return Solution(
        np.rint(counts).astype(np.int64)[:, group],
        float(bound),
        time.perf_counter() - began,
        variables=size,
        batch=None if batch is None else np.maximum(0.0, found.x[batch]),
    )


_solving = threading.Lock()


@contextmanager
def _silent() -> Iterator[None]:
    """HiGHS as of SciPy 1.17 prints a line for developers past its own switch, into what may be somebody's JSON.

    One thread at a time: of two, the second would take the first one's silence for standard output, and bring it back.
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
            libc.fflush(None)  # What C has in its buffer, before standard output is itself again.
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)


def starts_of(counts: Ints) -> Ints:
    """Machines that were not there an hour before; the horizon repeats."""
    started: Ints = np.maximum(0, counts - np.roll(counts, 1, axis=1))
    return started


def _merged(problem: FleetProblem, in_window: bool) -> tuple[Demand, Floats, Ints]:
    """Hours of the same demand as one, with their number: all of them, or with start-ups those that follow each other.

    A fleet that changes while the demand does not gains nothing: its cheapest hour, kept, starts no more machines.
    Batch work may need one of them only.
    """
    demand = problem.demand
    if problem.batch is not None:
        return demand, np.ones(demand.hours), np.arange(demand.hours)
    hours_matter = in_window or any(kind.start_usd for kind in problem.kinds)
    table = np.array(list(demand.rates.values()))
    if hours_matter:
        begins = np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))
        different, group = table[:, begins], np.cumsum(begins) - 1
        weights = np.bincount(group)
    else:
        different, group, weights = np.unique(table, axis=1, return_inverse=True, return_counts=True)
    merged = Demand(rates={name: tuple(row) for name, row in zip(demand.rates, different.tolist(), strict=True)})
    return merged, weights.astype(np.float64), group.reshape(-1)


def different_hours(problem: FleetProblem) -> int:
    """Hours that the program has after merging: with start-ups, how often the demand changes."""
    return _merged(problem, False)[0].hours


def _columns(kinds: Sequence[PurchaseKind], hours: int) -> tuple[list[Ints], int]:
    """The columns of each kind: one an hour, or a single one if reserved."""
    columns, size = [], 0
    for kind in kinds:
        width = 1 if kind.terms is Terms.reserved else hours
        columns.append(np.arange(size, size + width))
        size += width
    return columns, size


def _carry(
    table: _Rows, kinds: Sequence[PurchaseKind], columns: Sequence[Ints], demand: Demand, limits: FleetLimits, size: int
) -> int:
    """Rows that make the fleet carry the demand; how many columns they add."""
    hours, firm_share, extra = demand.hours, 1 - limits.max_spot_share, 0
    zones = dict.fromkeys(kind.place for kind in kinds if not kind.is_firm and limits.max_zone_share < 1)
    # Columns of requests a second that a kind serves of a class: needed only if there is a choice of classes.
    several = len(demand.rates) > 1
    time_rows = [table.block(np.zeros(hours)) for _ in kinds] if several else []  # machines − Σ served ÷ capacity ≥ 0
    for rows, own in zip(time_rows, columns, strict=False):
        table.put(rows, own, 1.0)
    for name, rates in demand.rates.items():
        needed = np.asarray(rates) * (1 - ROUNDING)
        served = table.block(needed + limits.spare.get(name, 0.0) * (needed > 0))
        firm = table.block(needed * firm_share) if firm_share > 0 else None
        without = {zone: table.block(needed * (1 - limits.max_zone_share)) for zone in zones}
        for index, kind in enumerate(kinds):
            if name not in kind.offer.requests_per_s:
                continue
            carries = kind.carries(name, rates)
            own, value = columns[index], carries
            if several:
                own, value = size + extra + np.arange(hours), np.ones(hours)
                extra += hours
                table.put(time_rows[index], own, -1.0 / carries)
            table.put(served, own, value)
            if firm is not None and kind.is_firm:
                table.put(firm, own, value)
            for zone, rows in without.items():
                if kind.is_firm or kind.place != zone:
                    table.put(rows, own, value)
    return extra


def _do_batch(
    table: _Rows, kinds: Sequence[PurchaseKind], columns: Sequence[Ints], demand: Demand, batch: BatchWork, size: int
) -> Ints:
    """Rows that make the fleet do each day's batch work beside the demand; its columns, requests a second by hour."""
    ((name, rates),) = demand.rates.items()
    own = size + np.arange(demand.hours)
    beside = table.block(np.asarray(rates) * (1 - ROUNDING))
    table.put(beside, own, -1.0)
    for kind, counts in zip(kinds, columns, strict=True):
        if name in kind.offer.requests_per_s:
            table.put(beside, counts, kind.carries(name, rates))
    for hours in batch.windows(demand.hours):
        done = table.block(np.full(1, batch.requests_per_day / SECONDS_PER_HOUR * (1 - ROUNDING)))
        table.put(np.repeat(done, len(hours)), own[hours], 1.0)
    return own


def _start(table: _Rows, starts: Ints, own: Ints, around: tuple[int, int] | None) -> None:
    """Rows by which whatever was not there an hour before is started: started − now + an hour before ≥ 0."""
    low = np.zeros(len(starts))
    if around is not None:
        low[0], low[-1] = -float(around[0]), float(around[1])
    rows = table.block(low)
    table.put(rows, starts, 1.0)
    if around is None:
        table.put(rows, np.roll(own, 1), 1.0)
        table.put(rows, own, -1.0)
    else:
        table.put(rows[1:], own, 1.0)
        table.put(rows[:-1], own, -1.0)
