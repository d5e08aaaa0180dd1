"""From which traffic on is one GPU for several models no longer the cheaper choice?

All rates grow or shrink together, by one factor: doubled until the choice changes, or taken from a 64th on, then halved
in logarithms to a tenth. More traffic never costs less, so own GPUs cost at least what they did at less traffic and
at most what they did at more: where that decides, they are not planned again.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tokonomics.planner.shared_answer import SHARED_WAYS, Crossing, SharedPlan, Way, WayRow
from tokonomics.planner.shared_gpu import cheapest_of, own_way
from tokonomics.planner.shared_ways import Tenant, aligned
from tokonomics.sizing.setup import Say, silent

_MOST, _CLOSE = 64.0, 1.1
"""The largest factor looked at, either way; and how close the crossing is told."""


class _Compared(NamedTuple):
    """Both choices at some traffic."""

    together: WayRow | None
    own_usd: float | None
    """A month; infinite where no own GPUs serve it, None where what they cost at other traffic decides."""
    shared_wins: bool


_Seen = dict[float, _Compared]
"""By the factor."""


def crossing(tenants: Sequence[Tenant], plan: SharedPlan, say: Say = silent) -> Crossing | None:
    """Where the cheaper choice changes; None where neither way serves the traffic asked."""
    by_way = {row.way: row for row in plan.rows if row.meets}
    shared = min((by_way[way] for way in SHARED_WAYS if way in by_way), key=lambda row: row.usd_per_month, default=None)
    own = by_way.get(Way.own)
    if shared is None and own is None:
        return None
    own_usd = own.usd_per_month if own else math.inf
    seen = {1.0: _Compared(shared, own_usd, shared is not None and shared.usd_per_month < own_usd)}
    low, high = 1.0, 1.0
    if seen[1.0].shared_wins:
        while seen[high].shared_wins and high < _MOST:
            low, high = high, 2 * high
            seen[high] = _compared(tenants, high, seen, say)
        if seen[high].shared_wins:
            return _told(seen, high, None)
    else:
        low = 1 / _MOST
        seen[low] = _compared(tenants, low, seen, say)
        if not seen[low].shared_wins:
            return _told(seen, 0.0, low)
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        seen[middle] = _compared(tenants, middle, seen, say)
        low, high = (middle, high) if seen[middle].shared_wins else (low, middle)
    if seen[high].own_usd is None:
        least, most = _own_between(seen, high)
        seen[high] = seen[high]._replace(own_usd=most if least == most else _own_usd(tenants, high))
    return _told(seen, low, high)


def _compared(tenants: Sequence[Tenant], factor: float, seen: _Seen, say: Say) -> _Compared:
    """Both choices at so many times the traffic; own GPUs are planned only where other traffic leaves it open."""
    say(f"{factor:.2g} times the traffic")
    scaled = [tenant.times(factor) for tenant in tenants]
    least, most = _own_between(seen, factor)
    if row := _together(scaled, below_usd=least):
        return _Compared(row, None, True)
    row = _together(scaled, below_usd=most, from_usd=least) if most < math.inf else None
    if most < math.inf and row is None:
        return _Compared(None, None, False)
    own_usd = _own_usd(tenants, factor)
    row = row or _together(scaled, below_usd=own_usd, from_usd=least)
    return _Compared(row, own_usd, row is not None and row.usd_per_month < own_usd)


def _own_between(seen: _Seen, factor: float) -> tuple[float, float]:
    """What own GPUs cost at the least and at the most, by what they do at less and at more traffic."""
    known = {other: found.own_usd for other, found in seen.items() if found.own_usd is not None}
    least = max((bill for other, bill in known.items() if other < factor), default=0.0)
    return least, min((bill for other, bill in known.items() if other > factor), default=math.inf)


def _own_usd(tenants: Sequence[Tenant], factor: float) -> float:
    own = own_way([tenant.times(factor) for tenant in tenants])
    return own.usd_per_month if own else math.inf


def _together(tenants: Sequence[Tenant], below_usd: float, from_usd: float = 0.0) -> WayRow | None:
    """The cheapest of the ways with one GPU for all that meets every SLO, between two bills."""
    if below_usd <= from_usd:
        return None
    traces, best = aligned([tenant.load.trace for tenant in tenants]), None
    for way in SHARED_WAYS:
        most_usd = best.usd_per_month if best else below_usd
        if row := cheapest_of(way, tenants, traces, most_usd, from_usd, only_met=True):
            best = row
    return best


def _told(seen: _Seen, below: float, above: float | None) -> Crossing:
    low, high = seen.get(below), seen.get(above) if above is not None else None
    own_usd = high.own_usd if high else None
    return Crossing(
        below=below,
        above=above,
        together_usd_per_month=low.together.usd_per_month if low and low.together else None,
        own_usd_per_month=own_usd if own_usd is not None and math.isfinite(own_usd) else None,
        together_above_usd_per_month=high.together.usd_per_month if high and high.together else None,
    )
