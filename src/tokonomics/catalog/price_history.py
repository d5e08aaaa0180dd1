"""Return what a GPU-hour cost at each seller, month by month since 2023: shipped in ``data/price_history.csv``.

A row is the lowest and the median price per GPU-hour of one seller's list at the end of a month. The source carries a
list that nobody refreshes forward for months, so a row also says when its list last changed: only lists that were alive
(``ALIVE_DAYS``) show how the market moved. Reduced from the history of the SkyPilot catalogue by
``benchmarks/reduce_offers.py``.
"""

import datetime as dt
from functools import cache

from tokonomics.catalog.entries import shipped_rows
from tokonomics.catalog.offers import Terms
from tokonomics.types import Noun

ALIVE_DAYS = 45  # a list that changed within this time before the month's end was being kept up (the source's README)


class MonthlyPrice(Noun):
    """What a GPU-hour cost on one seller's list at the end of a month."""

    month_end: dt.date
    list_last_changed: dt.date
    provider: str
    name: str  # of the GPU, as the seller calls it: one seller may sell several variants of one GPU
    gpu: str
    terms: Terms
    min_usd_per_gpu_hour: float
    median_usd_per_gpu_hour: float

    @property
    def is_alive(self) -> bool:
        """Decide whether the list was kept up at the time."""
        return (self.month_end - self.list_last_changed).days <= ALIVE_DAYS

    @property
    def series(self) -> tuple[str, str, Terms]:
        """Return what to follow from month to month: one seller's list of one GPU on the same terms."""
        return self.provider, self.name, self.terms


@cache
def price_history() -> tuple[MonthlyPrice, ...]:
    """Return every row, the oldest first."""
    rows = (MonthlyPrice.model_validate(row) for row in shipped_rows("price_history.csv"))
    return tuple(sorted(rows, key=lambda row: (row.month_end, *row.series)))
