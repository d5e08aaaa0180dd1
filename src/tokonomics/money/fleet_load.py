"""How the requests of a moment are shared among the machines that are there, and how much room they leave.

With one size class each machine takes its share of the capacity. With several a linear program spreads the classes so
that the fullest machine is as little loaded as can be. The room is what all rates could be multiplied by.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.money.fleet import FleetOffer

Floats = NDArray[np.float64]
Present = Sequence[tuple[FleetOffer, int]]  # offers, and how many machines of each are there


def shared_out(present: Present, rates: Mapping[str, float]) -> tuple[float, dict[str, Floats]]:
    """The room (1: just enough), and for each class the share that each offer's machines take.

    Without a machine for a class that has requests the room is 0 and its shares are nought.
    """
    asked = {name: rate for name, rate in rates.items() if rate > 0}
    capacity = {
        name: np.array([number * offer.requests_per_s.get(name, 0.0) for offer, number in present]) for name in asked
    }
    shares = {name: each / each.sum() if each.sum() > 0 else np.zeros(len(present)) for name, each in capacity.items()}
    if not asked:
        return math.inf, shares
    if any(not share.sum() for share in shares.values()):
        return 0.0, shares
    if len(asked) == 1:
        ((name, rate),) = asked.items()
        return float(capacity[name].sum()) / rate, shares
    return _least_load(capacity, asked, shares)


def _least_load(
    capacity: Mapping[str, Floats], asked: Mapping[str, float], proportional: dict[str, Floats]
) -> tuple[float, dict[str, Floats]]:
    """Columns: the share of each class on each offer, then the load of the fullest, which is made least."""
    from scipy.optimize import linprog  # Half a second: only for those who have several classes.

    offers, names = len(next(iter(capacity.values()))), list(asked)
    width = offers * len(names)
    load = np.zeros((offers, width + 1))
    whole = np.zeros((len(names), width + 1))
    most = np.ones(width + 1)
    for place, name in enumerate(names):
        own = place * offers + np.arange(offers)
        held = capacity[name] > 0
        load[np.arange(offers)[held], own[held]] = asked[name] / capacity[name][held]
        whole[place, own] = 1
        most[own[~held]] = 0
    load[:, -1] = -1
    most[-1] = np.inf
    price = np.zeros(width + 1)
    price[-1] = 1
    bounds = np.column_stack([np.zeros(width + 1), most])
    found: Any = linprog(price, A_ub=load, b_ub=np.zeros(offers), A_eq=whole, b_eq=np.ones(len(names)), bounds=bounds)
    if found.x is None:
        return 0.0, proportional
    shares = {
        name: np.asarray(found.x[place * offers : (place + 1) * offers], np.float64) for place, name in enumerate(names)
    }
    return 1 / max(float(found.x[-1]), 1e-12), {name: share / share.sum() for name, share in shares.items()}
