"""Which machines to buy, on which terms, hour by hour: a mixed-integer program solved by HiGHS through SciPy.

    least Σ reserved × price × hours + Σ on demand × price + Σ spot × expected price + Σ starts × start-up time × price

such that in every hour and size class the machines carry the demand (a spot machine counts for what interruptions leave
of it), the firm ones carry what spot may not, what is left without any one zone carries its share, quotas and the least
number of firm replicas hold, and whatever was not there an hour before is started. The horizon repeats. With several
size classes a machine divides its time among those it can hold, as Mélange does (Griggs et al. 2024).
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
from numpy.typing import NDArray

from tokonomics.catalog.offers import Terms
from tokonomics.errors import BadInput
from tokonomics.money.demand import Demand
from tokonomics.money.fleet import Wishes
from tokonomics.money.fleet_kinds import PurchaseKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING = 1e-9  # relative slack on the demand, so that ten machines of a tenth carry one


@dataclass(frozen=True)
class Solution:
    """Counts by kind and hour, and what the solver says of them."""

    counts: Ints
    lower_bound: float
    solve_s: float
    variables: int


@dataclass(frozen=True)
class ProgramWindow:
    """Some hours of a longer horizon: counts by kind just before and just after; reserved ones stay as they are."""

    before: Ints
    after: Ints


class OutOfTime(BadInput):
    """The solver found nothing in the time it had."""


@dataclass
class _Rows:
    """Rows of a sparse matrix, collected as coordinates."""

    rows: list[Ints]
    columns: list[Ints]
    values: list[Floats]
    low: list[Floats]
    high: list[Floats]
    count: int = 0

    def block(self, low: Floats, high: Floats) -> Ints:
        """So many new rows between these bounds; their numbers."""
        made = np.arange(self.count, self.count + len(low))
        self.count += len(low)
        self.low.append(low)
        self.high.append(high)
        return made

    def put(self, rows: Ints, columns: Ints, value: float) -> None:
        self.rows.append(rows)
        self.columns.append(np.broadcast_to(columns, rows.shape))
        self.values.append(np.full(len(rows), value))


def solve(
    kinds: Sequence[PurchaseKind],
    demand: Demand,
    wishes: Wishes,
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
        raise OutOfTime("no fleet was found: no time was left for it", fix="Give it longer, or fewer offers.")
    began = time.perf_counter()
    demand, weights, group = _merged(demand, window is not None or any(kind.start_usd for kind in kinds))
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
        own = columns[index]
        once = kind.terms is Terms.reserved
        price[own] = kind.expected_usd_per_hour * (weights.sum() if once else weights)
        most[own], whole[own] = kind.limit, 1
        if window is not None and once:
            least[own] = most[own] = window.before[index]
    for index, own in starts.items():
        price[own] = kinds[index].start_usd

    table = _Rows([], [], [], [], [])
    extra = _carry(table, kinds, columns, demand, wishes, size)
    _keep_least(table, kinds, columns, hours, wishes)
    _keep_quotas(table, kinds, columns, hours)
    for index, own in starts.items():
        _start(table, own, columns[index], (window.before[index], window.after[index]) if window else None)
    size += extra
    price, least, whole = (np.pad(each, (0, extra)) for each in (price, least, whole))
    most = np.pad(most, (0, extra), constant_values=np.inf)
    entries = (np.concatenate(table.rows), np.concatenate(table.columns))
    matrix = coo_array((np.concatenate(table.values), entries), shape=(table.count, size)).tocsr()
    with _silent():
        found: Any = milp(
            price,
            integrality=np.zeros(size) if relaxed else whole,
            bounds=Bounds(least, most),
            constraints=LinearConstraint(matrix, np.concatenate(table.low), np.concatenate(table.high)),
            options={"mip_rel_gap": gap, "time_limit": time_limit_s},
        )
    if found.x is None:
        if found.status == 1:
            raise OutOfTime(f"no fleet was found within {time_limit_s:.3g} s", fix="Give it longer, or fewer offers.")
        return None
    counts = np.array([np.broadcast_to(found.x[own], hours) for own in columns])
    bound = found.fun if relaxed or found.mip_dual_bound is None else found.mip_dual_bound
    return Solution(
        counts=np.rint(counts).astype(np.int64)[:, group],
        lower_bound=float(bound),
        solve_s=time.perf_counter() - began,
        variables=size,
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


def _start(table: _Rows, starts: Ints, own: Ints, around: tuple[int, int] | None) -> None:
    """Rows by which whatever was not there an hour before is started: started − now + an hour before ≥ 0."""
    low = np.zeros(len(starts))
    rows = np.arange(table.count, table.count + len(starts))
    if around is None:
        table.put(rows, np.roll(own, 1), 1.0)
        table.put(rows, own, -1.0)
    else:
        low[0], low[-1] = -float(around[0]), float(around[1])
        table.put(rows[1:], own, 1.0)
        table.put(rows[:-1], own, -1.0)
    table.put(rows, starts, 1.0)
    table.block(low, np.full(len(starts), np.inf))


def bill(kinds: Sequence[PurchaseKind], counts: Ints) -> float:
    """Expected USD of these counts over their hours."""
    usd = np.array([kind.expected_usd_per_hour for kind in kinds]) @ counts.sum(axis=1)
    return float(usd + np.array([kind.start_usd for kind in kinds]) @ starts_of(counts).sum(axis=1))


def starts_of(counts: Ints) -> Ints:
    """Machines that were not there an hour before; the horizon repeats."""
    started: Ints = np.maximum(0, counts - np.roll(counts, 1, axis=1))
    return started


def _merged(demand: Demand, hours_matter: bool) -> tuple[Demand, Floats, Ints]:
    """Hours of the same demand as one, with their number: all of them, or with start-ups those that follow each other.

    A fleet that changes while the demand does not gains nothing: its cheapest hour, kept, starts no more machines.
    """
    table = np.array(list(demand.rates.values()))
    if hours_matter:
        begins = np.append(True, (table[:, 1:] != table[:, :-1]).any(axis=0))
        different, group = table[:, begins], np.cumsum(begins) - 1
        weights = np.bincount(group)
    else:
        different, group, weights = np.unique(table, axis=1, return_inverse=True, return_counts=True)
    merged = Demand(rates={name: tuple(row) for name, row in zip(demand.rates, different.tolist(), strict=True)})
    return merged, weights.astype(np.float64), group.reshape(-1)


def spells(demand: Demand) -> int:
    """How often the demand changes."""
    return _merged(demand, True)[0].hours


def _columns(kinds: Sequence[PurchaseKind], hours: int) -> tuple[list[Ints], int]:
    """The columns of each kind: one an hour, or a single one if reserved."""
    columns, size = [], 0
    for kind in kinds:
        width = 1 if kind.terms is Terms.reserved else hours
        columns.append(np.arange(size, size + width))
        size += width
    return columns, size


def _carry(
    table: _Rows, kinds: Sequence[PurchaseKind], columns: Sequence[Ints], demand: Demand, wishes: Wishes, size: int
) -> int:
    """Rows that make the fleet carry the demand; how many columns they add."""
    hours, endless = demand.hours, np.full(demand.hours, np.inf)
    firm_share, extra = 1 - wishes.max_spot_share, 0
    zones = {kind.place for kind in kinds if not kind.is_firm} if wishes.max_zone_share < 1 else set()
    # Columns of requests a second that a kind serves of a class: needed only if there is a choice of classes.
    several = len(demand.rates) > 1
    time_rows = {}
    if several:
        for index in range(len(kinds)):
            rows = table.block(np.zeros(hours), endless)  # machines − Σ served ÷ capacity ≥ 0
            table.put(rows, columns[index], 1.0)
            time_rows[index] = rows
    for name, rates in demand.rates.items():
        needed = np.asarray(rates) * (1 - ROUNDING)
        served = table.block(needed + wishes.spare.get(name, 0.0) * (needed > 0), endless)
        firm = table.block(needed * firm_share, endless) if firm_share > 0 else None
        without = {zone: table.block(needed * (1 - wishes.max_zone_share), endless) for zone in zones}
        for index, kind in enumerate(kinds):
            carries = kind.carries(name)
            if not carries:
                continue
            own, value = columns[index], carries
            if several:
                own, value = size + extra + np.arange(hours), 1.0
                extra += hours
                table.put(time_rows[index], own, -1.0 / carries)
            table.put(served, own, value)
            if firm is not None and kind.is_firm:
                table.put(firm, own, value)
            for zone, rows in without.items():
                if kind.is_firm or kind.place != zone:
                    table.put(rows, own, value)
    return extra


def _keep_least(
    table: _Rows, kinds: Sequence[PurchaseKind], columns: Sequence[Ints], hours: int, wishes: Wishes
) -> None:
    if not wishes.min_replicas:
        return
    rows = table.block(np.full(hours, float(wishes.min_replicas)), np.full(hours, np.inf))
    for index, kind in enumerate(kinds):
        if kind.is_firm:
            table.put(rows, columns[index], float(kind.offer.replicas))


def _keep_quotas(table: _Rows, kinds: Sequence[PurchaseKind], columns: Sequence[Ints], hours: int) -> None:
    """Reserved and on-demand machines of an offer share its quota."""
    for offer in {id(kind.offer): kind.offer for kind in kinds}.values():
        firm = [index for index, kind in enumerate(kinds) if kind.offer is offer and kind.is_firm]
        if offer.max_machines is None or len(firm) < 2:
            continue
        rows = table.block(np.full(hours, -np.inf), np.full(hours, float(offer.max_machines)))
        for index in firm:
            table.put(rows, columns[index], 1.0)
