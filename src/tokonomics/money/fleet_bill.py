"""The bill of a fleet when the spot market has a bad month: months drawn many times over, and their 99th percentile.

Each zone of an offer is up or down from hour to hour (a chain with the market's availability and mean outage; all
machines of an offer in a zone go together, the careful assumption). Zones are tied by a Gaussian copula: one factor for
all, one for each. While a zone is down its machines are bought on demand. A zone's price is drawn once a month,
lognormal about the quoted one with the spread its history shows, tied the same way, never above the list price.
"""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tokonomics.catalog.spot import REGION_CORRELATION
from tokonomics.errors import BadInput
from tokonomics.money.fleet import FleetLimits, FleetOffer, SpotMarket, is_bought_again, spot_usd_per_hour
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Held = tuple[FleetOffer, SpotMarket, Ints]  # spot machines by hour

DRAWS = 2000  # twenty months above the 99th percentile: it comes out within a percent or so


def p99_bill(
    held: Sequence[Held],
    usd_per_month: float,
    limits: FleetLimits,
    correlation: float = REGION_CORRELATION,
    seed: int = 0,
) -> float:
    """The bill that 99 of 100 months stay under, given the expected one; never below it."""
    if not held:
        return usd_per_month
    # A bad week is not a bad month: the horizon is repeated for as long as the bill is for.
    hours = max(len(held[0][2]), HOURS_PER_MONTH)
    month = [(offer, market, np.resize(counts, hours)) for offer, market, counts in held]
    spot = spot_bills(month, limits, correlation, seed)
    mean = sum(spot_usd_per_hour(offer, market, limits) * counts.sum() for offer, market, counts in month)
    above = (float(np.quantile(spot, 0.99)) - float(mean)) * HOURS_PER_MONTH / hours
    return usd_per_month + max(0.0, above)


def spot_bills(
    held: Sequence[Held],
    limits: FleetLimits,
    correlation: float = REGION_CORRELATION,
    seed: int = 0,
    draws: int = DRAWS,
) -> Floats:
    """What the spot part costs in each drawn horizon, with what is bought again on demand."""
    if not 0 <= correlation <= 1:
        raise BadInput(f"a correlation between zones is from 0 to 1, got {correlation}")
    rng = np.random.default_rng(seed)
    hours = len(held[0][2])
    shared = rng.standard_normal((draws, hours))
    shared_price = rng.standard_normal(draws)
    own, tied = np.sqrt(1 - correlation), np.sqrt(correlation)
    bills = np.zeros(draws)
    for offer, market, counts in held:
        shocks = tied * shared + own * rng.standard_normal((draws, hours))
        up, fell = states(market, shocks, rng)
        price = _prices(offer, market, tied * shared_price + own * rng.standard_normal(draws))
        bills += price * (up @ counts)
        if is_bought_again(offer, limits) and offer.usd_per_hour is not None:
            # Steps of an hour merge short outages: each fall seen stands for so many real ones.
            real = market.interruptions.per_hour / _fall(market) if market.interruptions.per_hour else 0.0
            started = fell @ counts * real * offer.startup_s / SECONDS_PER_HOUR
            bills += offer.usd_per_hour * ((~up) @ counts + started)
    return bills


def states(market: SpotMarket, shocks: Floats, rng: np.random.Generator) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Up or not, and gone down in the hour that follows or not, from standard normal shocks; low ones take machines."""
    normal = NormalDist()
    fall, recover = _fall(market), _recover(market)
    falls = normal.inv_cdf(fall) if 0 < fall < 1 else (-np.inf if fall <= 0 else np.inf)
    stays_down = normal.inv_cdf(1 - recover) if recover < 1 else -np.inf
    draws, hours = shocks.shape
    now = np.less(rng.random(draws), market.interruptions.availability)
    up, fell = np.empty((draws, hours), bool), np.empty((draws, hours), bool)
    for hour in range(hours):
        up[:, hour] = now
        following = np.where(now, shocks[:, hour] >= falls, shocks[:, hour] >= stays_down)
        fell[:, hour] = now & ~following
        now = following
    return up, fell


def _recover(market: SpotMarket) -> float:
    """The chance that a zone that is down is up an hour later."""
    return float(-np.expm1(-1 / market.interruptions.outage_hours))


def _fall(market: SpotMarket) -> float:
    """The chance to go down within an hour that gives the market's availability."""
    up = market.interruptions.availability
    return min(1.0, _recover(market) * (1 - up) / up)


def _prices(offer: FleetOffer, market: SpotMarket, shocks: Floats) -> Floats:
    sigma = np.log(market.p90_to_median) / NormalDist().inv_cdf(0.9)
    listed = offer.list_usd_per_hour or offer.usd_per_hour
    ceiling = np.inf if listed is None else max(listed, market.usd_per_hour)
    # Of mean one, so that the quoted price stays the expected one.
    prices: Floats = np.minimum(market.usd_per_hour * np.exp(sigma * shocks - sigma**2 / 2), ceiling)
    return prices
