"""Return how the price of a class of GPUs moved between two months, from lists that were kept up.

The index is a chained Jevons index (ILO and others, Consumer Price Index Manual, 2020, chapter 8): from each month to
the next, the geometric mean of the price ratios of the same series (one seller's list of one GPU on the same terms), so
that a seller who comes or goes does not move it. Every seller counts alike, however many series he has. A series is
followed while its list is alive, and across gaps of a quarter or less with the price unchanged: a list that nobody
changed for two months and then changed was kept up. Marketplaces are left out: what they show on a day is not a list.
If fewer than three sellers can be followed through every month, GPUs of the same architecture are followed, or else all
GPUs. The history ends with its last month; nothing is extrapolated past it.

A row of the history (``price_history.csv.gz``) is the lowest and the median price per GPU-hour of one seller's list
at the end of a month. The source carries a list that nobody refreshes forward for months, so a row also says when its
list last changed: only lists that were alive (``ALIVE_DAYS``) show how the market moved. Reduced from the history of
the SkyPilot catalogue by ``benchmarks/reduce_offers.py``.
"""

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from tokonomics.catalog.entries import shipped_rows
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import newer_quote
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.places import Seller, continent_of, seller_of
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
    rows = (MonthlyPrice.model_validate(row) for row in shipped_rows("price_history.csv.gz"))
    return tuple(sorted(rows, key=lambda row: (row.month_end, *row.series)))


FEWEST_SELLERS = 3  # assumed: what one or two sellers do is a decision of theirs rather than a move of the market
GAP_MONTHS = 3  # assumed: a list that was unchanged for longer does not show in which month its price moved
JUMP = 2.0
"""A price that doubles or halves from a month to the next is left out: the list changed, not the market. In the shipped
history Google's H100 goes from $4.20 to $9.80 in 2026-08, having cost $10.19 in the median of its regions until May;
the largest rise of an otherwise steady list is Verda's H100, from $2.29 to $3.25."""

Series = Mapping[dt.date, MonthlyPrice]


class PriceMove(Noun):
    """How the prices of a class of GPUs moved between the ends of two months."""

    ratio: float  # of the later prices to the earlier ones
    since: dt.date
    until: dt.date
    gpus: str  # whose prices were followed: a GPU, an architecture, or all
    sellers: int  # the fewest followed in any month


def price_move(gpu: str, since: dt.date, terms: Terms = Terms.on_demand) -> PriceMove | None:
    """Return how prices moved from the month of a quote to the end of the history; None if that is not known.

    Reserved machines have no history: theirs is that of machines on demand.
    """
    return _move(find_gpu(gpu).key, since.replace(day=1), Terms.spot if terms is Terms.spot else Terms.on_demand)


class Outdated(Noun):
    """Why a cheaper, older quote is not what the machine costs: a newer one, and how prices moved in between."""

    newer_provider: str  # of the cheapest newer quote of this GPU
    newer_instance: str
    newer_usd_per_gpu_hour: float
    newer_date: dt.date
    moved: PriceMove | None  # None: not known


def outdated(old: Offer, offers: Iterable[Offer], terms: Terms) -> Outdated | None:
    """Return what shows that an old quote is out of date; None if it is not."""
    newer = newer_quote(old, offers, terms)
    if newer is None:
        return None
    return Outdated(
        newer_provider=newer.provider,
        newer_instance=newer.instance,
        newer_usd_per_gpu_hour=newer.usd_per_gpu_hour(terms) or 0.0,
        newer_date=newer.date,
        moved=price_move(old.gpu, old.date, terms),
    )


@cache
def _move(gpu: str, month: dt.date, terms: Terms) -> PriceMove | None:
    moves = (move_of(rows, month, name) for name, rows in classes_of(gpu, terms))
    return next((move for move in moves if move), None)


def classes_of(
    gpu: str, terms: Terms = Terms.on_demand, until: dt.date | None = None
) -> Iterator[tuple[str, list[MonthlyPrice]]]:
    """Yield the rows of lists whose prices may stand for a GPU's: its own, its architecture's, those of all GPUs.

    Marketplaces are left out, and so is a class that nobody lists any more. ``until`` hides later months.
    """
    listed = [
        row
        for row in price_history()
        if row.terms is terms
        and seller_of(row.provider) is not Seller.marketplace
        and (until is None or row.month_end <= until)
    ]
    last = max((row.month_end for row in listed), default=None)
    architecture = find_gpu(gpu).architecture
    every = {row.gpu for row in listed}
    related = {name for name in every if find_gpu(name).architecture == architecture}
    for name, gpus in (gpu, {gpu}), (f"{architecture} GPUs", related), ("all GPUs", every):
        rows = [row for row in listed if row.gpu in gpus]
        if rows and max(row.month_end for row in rows) == last:
            yield name, rows


def move_of(rows: Sequence[MonthlyPrice], since: dt.date, name: str) -> PriceMove | None:
    """Return the chained index of these rows, from the end of a month to the last; None with too few sellers."""
    ends = sorted({row.month_end for row in rows})
    moves = [move for move in month_moves(rows) if move.since >= since]
    first = next((end for end in ends if end >= since), None)
    if first is None or not moves or (first.year, first.month) != (since.year, since.month):
        return None
    fewest = min(move.sellers for move in moves)
    if fewest < FEWEST_SELLERS:
        return None
    ratio = math.exp(math.fsum(move.log_ratio for move in moves))
    return PriceMove(ratio=ratio, since=first, until=moves[-1].until, gpus=name, sellers=fewest)


class MonthMove(NamedTuple):
    """How prices moved from one month's end to the next."""

    since: dt.date
    until: dt.date
    log_ratio: float  # of the later prices to the earlier ones, every seller counted alike; 0 without sellers
    sellers: int  # that were followed


def month_moves(rows: Sequence[MonthlyPrice]) -> list[MonthMove]:
    """Return the links of the chained index of these rows: one for every two months in a row, however few sellers."""
    by_series: dict[object, dict[dt.date, MonthlyPrice]] = defaultdict(dict)
    for row in rows:
        by_series[row.series][row.month_end] = row
    followed = [_followed(series) for series in by_series.values()]
    found = []
    for before, after in pairwise(sorted({row.month_end for row in rows})):
        by_seller: dict[str, list[float]] = defaultdict(list)
        for seller, stretches in followed:
            for prices in stretches:
                if before in prices and after in prices:
                    move = math.log(prices[after] / prices[before])
                    if abs(move) < math.log(JUMP):
                        by_seller[seller].append(move)
        log_ratio = fmean(map(fmean, by_seller.values())) if by_seller else 0.0
        found.append(MonthMove(before, after, log_ratio, len(by_seller)))
    return found


def _followed(series: Series) -> tuple[str, list[dict[dt.date, float]]]:
    """Return a series' seller and its stretches of months with known prices, by month."""
    alive = sorted(end for end, row in series.items() if row.is_alive)
    stretches: list[dict[dt.date, float]] = []
    for end in alive:
        last = max(stretches[-1]) if stretches else None
        if last is None or 12 * (end.year - last.year) + end.month - last.month > GAP_MONTHS:
            stretches.append({})
        elif last is not None:
            stretches[-1] |= dict.fromkeys(_between(last, end), stretches[-1][last])
        stretches[-1][end] = series[end].min_usd_per_gpu_hour
    return next(iter(series.values())).provider, stretches


def _between(first: dt.date, last: dt.date) -> Iterable[dt.date]:
    """Yield the ends of the months between two."""
    day = first + dt.timedelta(days=1)
    while (end := (day.replace(day=28) + dt.timedelta(days=4)).replace(day=1) - dt.timedelta(days=1)) < last:
        yield end
        day = end + dt.timedelta(days=1)


# --- what is known of each provider's prices: how many machines, in which places, how recent --------------------------
# Where a provider is missing from an answer, this tells whether its prices are unknown there or out of date.


class PriceCoverage(Noun):
    """What is known of a provider's prices."""

    provider: str
    seller: Seller | None
    machines: int  # at one price in one region each
    regions: int
    countries: tuple[str, ...]
    continents: tuple[str, ...]
    is_place_certain: bool  # it does not list every machine for every region
    oldest: dt.date
    newest: dt.date


def price_coverage(offers: Iterable[Offer]) -> tuple[PriceCoverage, ...]:
    """Return the coverage of each provider, by name."""
    by_provider: dict[str, list[Offer]] = defaultdict(list)
    for offer in offers:
        by_provider[offer.provider].append(offer)
    return tuple(_coverage(provider, by_provider[provider]) for provider in sorted(by_provider))


def _coverage(provider: str, offers: list[Offer]) -> PriceCoverage:
    days = [offer.date for offer in offers]
    countries = sorted({offer.country for offer in offers if offer.country is not None})
    return PriceCoverage(
        provider=provider,
        seller=offers[0].seller,
        machines=len(offers),
        regions=len({offer.region for offer in offers}),
        countries=tuple(countries),
        continents=tuple(sorted({continent_of(country) for country in countries})),
        is_place_certain=any(offer.is_place_certain for offer in offers),
        oldest=min(days),
        newest=max(days),
    )
