"""Draw paths that the price of a GPU-hour may take, from how the market moved month by month.

A month's move is that of the price index (``catalog.price_index``): of the same lists in both months, with every seller
counted alike. Months count from the last one back, as long as three sellers can be followed. Paths draw blocks of
consecutive months with replacement (the circular block bootstrap of Politis and Romano 1992), so that months that fell
or rose together stay together. Blocks have n^(1/3) of n months (Hall, Horowitz and Jing 1995).
"""

import datetime as dt
from functools import cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.price_index import FEWEST_SELLERS, classes_of, month_moves
from tokonomics.errors import BadInput

Floats = NDArray[np.float64]

OWN_MONTHS = 24  # a GPU with fewer months of its own gets the moves of its architecture, or else of all. Our choice


class PriceMoves(NamedTuple):
    """How the prices of a class of GPUs moved, month by month."""

    of: str  # the GPU, its architecture, or "all GPUs"
    months: tuple[dt.date, ...]  # their ends
    moves: Floats  # log(price ÷ the price a month before)


@cache
def price_moves(gpu: str, until: dt.date | None = None) -> PriceMoves:
    """Return how a GPU's price on demand moved in the unbroken months up to the last; ``until`` hides later ones.

    If its own months are few, they are those of GPUs of its architecture, or else of all; if all have few, the most.
    """
    runs = []
    for name, rows in classes_of(find_gpu(gpu).key, until=until):
        back = takewhile(lambda move: move.sellers >= FEWEST_SELLERS, reversed(month_moves(rows)))
        runs.append((name, [*back][::-1]))
    of, run = max(runs, key=lambda named: min(len(named[1]), OWN_MONTHS), default=(gpu, []))
    return PriceMoves(of, tuple(move.until for move in run), np.array([move.log_ratio for move in run], np.float64))


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
