"""From which traffic on is one GPU for several models no longer the cheaper choice?

All rates grow or shrink together, by one factor: doubled until the choice changes, or taken from a 64th on, then halved
in logarithms to a tenth. More traffic never costs less, so a GPU for all that is cheaper than own GPUs were at less
traffic needs no plan of those; and where no GPU up to twice that bill serves all, own ones are the choice.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from tokonomics.planner.setup import Say, silent
from tokonomics.planner.shared_answer import SHARED_WAYS, SharedPlan, Way, WayRow
from tokonomics.planner.shared_gpu import SHOWN_UP_TO, cheapest_of, own_way
from tokonomics.planner.shared_ways import Tenant, aligned
from tokonomics.types import Noun

_MOST, _CLOSE = 64.0, 1.1
"""The largest factor looked at, either way; and how close the crossing is told."""


class Crossing(Noun):
    """Up to this many times the traffic one GPU for all is the cheaper choice, and no longer above."""

    below: float
    """The largest factor looked at with one GPU for all the cheaper; 0 where it was so at none."""
    above: float | None
    """The smallest with own GPUs the cheaper; None where it was so at none."""
    together_usd_per_month: float | None
    """One GPU for all, at ``below``."""
    own_usd_per_month: float | None
    """Own GPUs, at ``above``."""
    together_above_usd_per_month: float | None
    """One GPU for all, at ``above``; None where none of those below the bill of own ones meets every SLO."""


class _Compared(NamedTuple):
    together: WayRow | None
    own: WayRow | None

    @property
    def shared_wins(self) -> bool:
        if self.together is None:
            return False
        return self.own is None or self.together.usd_per_month < self.own.usd_per_month


def crossing(tenants: Sequence[Tenant], plan: SharedPlan, say: Say = silent) -> Crossing | None:
    """Where the cheaper choice changes; None where neither way serves the traffic asked."""
    by_way = {row.way: row for row in plan.rows if row.meets}
    shared = [by_way[way] for way in SHARED_WAYS if way in by_way]
    here = _Compared(min(shared, key=lambda row: row.usd_per_month, default=None), by_way.get(Way.own))
    if here.together is None and here.own is None:
        return None
    seen = {1.0: here}
    low, high = 1.0, 1.0
    if here.shared_wins:
        while seen[high].shared_wins and high < _MOST:
            low, high = high, 2 * high
            seen[high] = _above(tenants, high, here.own, say)
        if seen[high].shared_wins:
            return _told(seen, high, None)
    else:
        low = 1 / _MOST
        seen[low] = _compared(tenants, low, say)
        if not seen[low].shared_wins:
            return _told(seen, 0.0, low)
    while high / low > _CLOSE:
        middle = math.sqrt(low * high)
        seen[middle] = _above(tenants, middle, here.own, say) if here.shared_wins else _compared(tenants, middle, say)
        low, high = (middle, high) if seen[middle].shared_wins else (low, middle)
    if seen[high].own is None:
        seen[high] = seen[high]._replace(own=own_way([tenant.times(high) for tenant in tenants]))
    return _told(seen, low, high)


def _compared(tenants: Sequence[Tenant], factor: float, say: Say) -> _Compared:
    """Both choices at so many times the traffic."""
    say(f"{factor:.2g} times the traffic")
    scaled = [tenant.times(factor) for tenant in tenants]
    own = own_way(scaled)
    return _Compared(_together(scaled, own.usd_per_month if own else math.inf), own)


def _above(tenants: Sequence[Tenant], factor: float, own: WayRow | None, say: Say) -> _Compared:
    """The same with more traffic than own GPUs were planned for at ``own``: their bill is that at least."""
    if own is None:
        return _compared(tenants, factor, say)
    say(f"{factor:.2g} times the traffic")
    scaled = [tenant.times(factor) for tenant in tenants]
    row = _together(scaled, SHOWN_UP_TO * own.usd_per_month)
    if row is None or row.usd_per_month < own.usd_per_month:
        return _Compared(row, None)
    return _Compared(row, own_way(scaled))


def _together(tenants: Sequence[Tenant], below_usd: float) -> WayRow | None:
    """The cheapest of the ways with one GPU for all that meets every SLO below a bill."""
    traces, best = aligned([tenant.load.trace for tenant in tenants]), None
    for way in SHARED_WAYS:
        if row := cheapest_of(way, tenants, traces, best.usd_per_month if best else below_usd, only_met=True):
            best = row
    return best


def _told(seen: dict[float, _Compared], below: float, above: float | None) -> Crossing:
    low, high = seen.get(below), seen.get(above) if above is not None else None
    return Crossing(
        below=below,
        above=above,
        together_usd_per_month=low.together.usd_per_month if low and low.together else None,
        own_usd_per_month=high.own.usd_per_month if high and high.own else None,
        together_above_usd_per_month=high.together.usd_per_month if high and high.together else None,
    )
