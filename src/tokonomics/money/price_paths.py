"""Draw paths that the price of a GPU-hour may take, from how lists moved month by month (``catalog.price_history``).

A month's move is the mean logarithm of price ÷ last price over sellers, each list followed from one month in which it
was kept up to the next such month (a Jevons index, which consumer prices use for goods of one kind). Paths draw blocks
of consecutive months with replacement (the circular block bootstrap of Politis and Romano 1992), so that months that
fell or rose together stay together. Blocks have n^(1/3) of n months (Hall, Horowitz and Jing 1995).
"""

import datetime as dt
import math
from collections import defaultdict
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.offers import Terms
from tokonomics.catalog.price_history import MonthlyPrice, price_history
from tokonomics.errors import BadInput

Floats = NDArray[np.float64]

OTHER_PRODUCT = math.log(2)
"""A list that moves by more than a factor of two in a month has another product under that name. Our choice: it keeps
AWS's cut of June 2025 (44 %, announced) and drops marketplaces whose cheapest card changed."""
OWN_MONTHS = 24  # a GPU with fewer months of its own gets the moves of all GPUs together. Our choice


class PriceMoves(NamedTuple):
    """How the price of a GPU class moved, month by month."""

    of: str  # the GPU, or "all GPUs"
    months: tuple[dt.date, ...]  # their ends
    moves: Floats  # log(price ÷ the price a month before)


def price_moves(gpu: str, until: dt.date | None = None) -> PriceMoves:
    """Return how a GPU's price on demand moved, or all GPUs' if its own months are few; ``until`` hides later ones."""
    own, every = _moves_of(gpu), _moves_of(None)
    chosen, of = (own, gpu) if len(_before(own, until)) >= OWN_MONTHS else (every, "all GPUs")
    known = _before(chosen, until)
    return PriceMoves(of, tuple(known), np.array(list(known.values()), np.float64))


def _before(moves: dict[dt.date, float], until: dt.date | None) -> dict[dt.date, float]:
    return {month: move for month, move in moves.items() if until is None or month <= until}


@cache
def _moves_of(gpu: str | None) -> dict[dt.date, float]:
    """Return each month's mean move over sellers, the oldest first; None takes every GPU."""
    last: dict[tuple[str, str, Terms], MonthlyPrice] = {}
    seen: dict[dt.date, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in price_history():
        if row.terms is not Terms.on_demand or not row.is_alive or gpu not in (None, row.gpu):
            continue
        if (before := last.get(row.series)) is not None:
            move = math.log(row.min_usd_per_gpu_hour / before.min_usd_per_gpu_hour)
            if abs(move) <= OTHER_PRODUCT:
                seen[row.month_end][row.provider].append(move)
        last[row.series] = row
    return {
        month: math.fsum(math.fsum(moves) / len(moves) for moves in sellers.values()) / len(sellers)
        for month, sellers in sorted(seen.items())
    }


def drawn_prices(moves: PriceMoves, months: int, paths: int, rng: np.random.Generator) -> Floats:
    """Return ``paths`` × ``months`` of price ÷ today's, which the first month pays."""
    number = len(moves.moves)
    if not number:
        raise BadInput(f"no price history is known of {moves.of}", field="commit")
    block = max(1, round(number ** (1 / 3)))
    blocks = -(-(months - 1) // block)
    begins = rng.integers(number, size=(paths, blocks, 1))
    drawn = moves.moves[(begins + np.arange(block)) % number].reshape(paths, -1)[:, : months - 1]
    steady = np.zeros((paths, 1))
    found: Floats = np.exp(np.cumsum(np.concatenate([steady, drawn], axis=1), axis=1))
    return found
