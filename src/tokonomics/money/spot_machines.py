"""Compute what a spot machine costs and counts for, the bill of a bad month, and which workloads belong on spot.

A spot machine counts for less than a firm one and costs more than its price: what interruptions take is lost, or bought
again on demand (``FleetLimits.fallback``).

The bad month is the 99th percentile of many drawn months. Each zone of an offer is up or down from hour to hour (a
chain with the market's availability and mean outage; as a careful assumption, all machines of an offer in a zone go
down together). Zones are correlated by a Gaussian copula: one factor for all, one for each. While a zone is down, its
machines are bought on demand. A zone's price is drawn once a month, lognormal around the quoted one with the spread of
its history, correlated the same way, never above the list price.

Whether a workload belongs on spot is judged by friendly and hostile patterns, each tested on the user's own figures:
those of "Tokens per dollar" (batch, overflow, short answers against a lone replica, a strict p99, long answers, a slow
start, conversations that lose their state). Work is lost if a machine is reclaimed before its answers are finished:
those longer than the notice. So are prefixes in its memory, which the next turn of a conversation computes again.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.feeds import (
    NOTICE_S,
    REGION_CORRELATION,
    Interruptions,
    find_band,
    find_zones,
    load_spot_history,
)
from tokonomics.errors import BadInput
from tokonomics.money.purchases import FleetLimits, FleetOffer, Floats, SpotMarket
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, count, percent, plural, seconds

Held = tuple[FleetOffer, SpotMarket, NDArray[np.int64]]  # spot machines by hour

ADVISOR = "AWS's advisor"
LONG_S = 300.0  # a long answer or cold start: five minutes for both
LOST_SHARE = 0.01  # if a hundredth of all answers is cut off, spot alone misses a p99 SLO
DRAWS = 2000  # twenty months are above the 99th percentile, so it is accurate to about a percent


def aws_spot(
    instance: str, region: str, interruptions: Interruptions | None = None, said_by: str = "given"
) -> tuple[SpotMarket, ...]:
    """Return the zones of a region as markets, from shipped tables; interruptions are the advisor's unless given."""
    said_by = said_by if interruptions else ADVISOR
    interruptions = interruptions or find_band(instance, region).interruptions
    return tuple(
        SpotMarket(
            zone=zone.zone,
            usd_per_hour=zone.spot_usd_per_hour,
            interruptions=interruptions,
            p90_to_median=zone.p90_to_median,
            interruptions_by=said_by,
        )
        for zone in find_zones(instance, region)
    )


def zone_correlation(instances: Sequence[str]) -> float:
    """Return the largest correlation between zones over these instances: a careful choice for a mixed fleet."""
    known = load_spot_history()
    return max((known[name].correlation for name in instances if name in known), default=REGION_CORRELATION)


def is_bought_again(offer: FleetOffer, limits: FleetLimits) -> bool:
    """Decide whether an interrupted machine is replaced on demand."""
    return limits.fallback and offer.usd_per_hour is not None


def finishing_s(offer: FleetOffer) -> float:
    """Return the last part of the notice, in which a machine only finishes its answers."""
    return min(NOTICE_S, offer.answer_s)


def gone_s(offer: FleetOffer, outage_s: float, limits: FleetLimits) -> float:
    """Return the time from the end of the notice until a machine ordered then, or spot again, serves."""
    return min(outage_s, max(0.0, offer.startup_s - NOTICE_S)) if is_bought_again(offer, limits) else outage_s


def counted_share(offer: FleetOffer, market: SpotMarket, limits: FleetLimits) -> float:
    """Return the share of a machine that a spot machine counts for: its availability, or with a fallback all but gaps.

    A gap lasts from the last part of the notice until another machine serves.
    """
    interruptions = market.interruptions
    if not is_bought_again(offer, limits):
        return interruptions.availability
    if offer.startup_s <= NOTICE_S:
        gap_s = max(0.0, offer.startup_s - NOTICE_S + finishing_s(offer))
    else:
        gap_s = finishing_s(offer) + gone_s(offer, interruptions.outage_hours * SECONDS_PER_HOUR, limits)
    return max(0.0, 1 - interruptions.availability * interruptions.per_hour * (gap_s / SECONDS_PER_HOUR))


def spot_usd_per_hour(offer: FleetOffer, market: SpotMarket, limits: FleetLimits) -> float:
    """Return the expected hourly price of a spot machine: spot while it is there, on demand while it is not."""
    interruptions = market.interruptions
    up = interruptions.availability
    spot = up * market.usd_per_hour
    if not limits.fallback or offer.usd_per_hour is None:
        return spot
    starting_hours = up * interruptions.per_hour * offer.startup_s / SECONDS_PER_HOUR
    return spot + (1 - up + starting_hours) * offer.usd_per_hour


def p99_bill(
    held: Sequence[Held],
    usd_per_month: float,
    limits: FleetLimits,
    correlation: float = REGION_CORRELATION,
    seed: int = 0,
) -> float:
    """Return the bill that 99 of 100 months stay under, given the expected one; never below it."""
    if not held:
        return usd_per_month
    # A bad week is not a bad month: repeat the horizon over the time of the bill.
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
    """Return what the spot part costs in each drawn horizon, with replacements on demand."""
    if not 0 <= correlation <= 1:
        raise BadInput(f"a correlation between zones is from 0 to 1, got {correlation}")
    rng = np.random.default_rng(seed)
    hours = len(held[0][2])
    shared = rng.standard_normal((draws, hours))
    shared_price = rng.standard_normal(draws)
    own, tied = np.sqrt(1 - correlation), np.sqrt(correlation)
    bills = np.zeros(draws)
    for offer, market, counts in held:
        risk = market.interruptions
        # The chance that a zone recovers within an hour, and the chance to go down that gives its availability.
        recover = float(-np.expm1(-1 / risk.outage_hours))
        fall = min(1.0, recover * (1 - risk.availability) / risk.availability)
        shocks = tied * shared + own * rng.standard_normal((draws, hours))
        up_at_first = np.less(rng.random(draws), risk.availability)
        up, fell = _up_and_fell(up_at_first, fall, recover, shocks)
        price = _prices(offer, market, tied * shared_price + own * rng.standard_normal(draws))
        bills += price * (up @ counts)
        if limits.fallback and offer.usd_per_hour is not None:
            # Hourly steps merge short outages: each one seen represents several real ones.
            real = risk.per_hour / fall if risk.per_hour else 0.0
            started = fell @ counts * real * offer.startup_s / SECONDS_PER_HOUR
            bills += offer.usd_per_hour * ((~up) @ counts + started)
    return bills


def _up_and_fell(
    now: NDArray[np.bool_], fall: float, recover: float, shocks: Floats
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return whether a zone is up in each hour, and whether it goes down after it; low normal shocks take machines."""
    normal = NormalDist()
    falls = normal.inv_cdf(fall) if 0 < fall < 1 else (-np.inf if fall <= 0 else np.inf)
    stays_down = normal.inv_cdf(1 - recover) if recover < 1 else -np.inf
    up, fell = np.empty(shocks.shape, bool), np.empty(shocks.shape, bool)
    for hour in range(shocks.shape[1]):
        up[:, hour] = now
        following = np.where(now, shocks[:, hour] >= falls, shocks[:, hour] >= stays_down)
        fell[:, hour] = now & ~following
        now = following
    return up, fell


def _prices(offer: FleetOffer, market: SpotMarket, shocks: Floats) -> Floats:
    sigma = np.log(market.p90_to_median) / NormalDist().inv_cdf(0.9)
    listed = offer.list_usd_per_hour or offer.usd_per_hour
    ceiling = np.inf if listed is None else max(listed, market.usd_per_hour)
    # The factor has mean one, so the quoted price stays the expected one.
    prices: Floats = np.minimum(market.usd_per_hour * np.exp(sigma * shocks - sigma**2 / 2), ceiling)
    return prices


# --- which workloads belong on spot ----------------------------------------------------------------------------------


class Suitability(StrEnum):
    """How much of the fleet may be on spot."""

    all = "all of it"
    overflow = "overflow above a firm base"
    none = "none of it"


class SpotReason(Noun):
    """One pattern and which way it points."""

    speaks_for: bool
    text: str


class LostState(Noun):
    """What is lost with one replica: prefixes in its memory that later requests would have found."""

    tokens: NonNegativeFloat
    requests: NonNegativeFloat  # that would have found them: at least one for every open conversation
    prefill_s: NonNegativeFloat  # of a replica, to compute them again
    requests_per_hour: PositiveFloat  # that a replica serves


class SpotVerdict(Noun):
    """How much of the fleet may be on spot, and why."""

    suitability: Suitability
    reasons: tuple[SpotReason, ...]
    max_spot_share: NonNegativeFloat  # the most that a fleet may have, of an hour's demand
    cut_off_share: NonNegativeFloat  # of all answers: begun on a machine that is reclaimed before they end
    lost_state: LostState | None = None  # by a loss; None if no request is known to find a prefix
    recomputed_share: NonNegativeFloat = 0.0  # of a replica's time: prefill of what losses take
    waiting_share: NonNegativeFloat = 0.0  # of all requests: those that compute again what a loss took


def spot_verdict(
    *,
    answer_s: float,
    cold_start_s: float,
    replicas: int,
    interruptions: Interruptions,
    strict_p99: bool = False,
    batch: bool = False,
    state: LostState | None = None,
) -> SpotVerdict:
    """Judge a workload: ``answer_s`` is the time of a long answer (p99), ``replicas`` what the mean hour needs."""
    per_hour = interruptions.per_hour
    cut_off = min(1.0, per_hour * max(0.0, answer_s - NOTICE_S) / SECONDS_PER_HOUR)
    recomputed = min(1.0, per_hour * state.prefill_s / SECONDS_PER_HOUR) if state else 0.0
    waiting = min(1.0, per_hour * state.requests / state.requests_per_hour) if state else 0.0
    others = "the others carry on when one goes" if replicas > 1 else "nothing is left when it goes"
    often = f"{per_hour:.2g} interruptions an hour, {seconds(NOTICE_S)} notice"
    reasons = [
        (batch, "a batch can be done again" if batch else "clients wait for the answers"),
        _within(answer_s < LONG_S, f"answers take up to {seconds(answer_s)}"),
        _within(cold_start_s <= LONG_S, f"a replacement serves after {seconds(cold_start_s)}"),
        (replicas > 1, f"{plural(replicas, 'replica')}: {others}"),
        (cut_off < LOST_SHARE, f"{percent(cut_off)} of answers are cut off ({often})"),
    ]
    if strict_p99:
        reasons.append((False, "a strict p99 leaves little room for a replica that goes"))
    if state:
        tokens, requests = count(state.tokens), count(round(state.requests))
        lost = f"a loss takes {tokens} tokens of state that {requests} requests come back for"
        again = f"{seconds(state.prefill_s)} of prefill, {percent(recomputed)} of a replica's time"
        reasons.append((waiting < LOST_SHARE, f"{lost}: {again}; {percent(waiting)} of requests wait for it"))
    against = sum(not speaks_for for speaks_for, _ in reasons[1:])
    slow_p99 = strict_p99 and (cold_start_s > LONG_S or waiting >= LOST_SHARE)
    suitability, share = Suitability.overflow, 0.5
    if batch:
        suitability, share = Suitability.all, 1.0
    elif replicas <= 1 or cut_off >= LOST_SHARE or slow_p99 or against >= 3:
        suitability, share = Suitability.none, 0.0
    return SpotVerdict(
        suitability=suitability,
        reasons=tuple(SpotReason(speaks_for=speaks_for, text=text) for speaks_for, text in reasons),
        max_spot_share=share,
        cut_off_share=cut_off,
        lost_state=state,
        recomputed_share=recomputed,
        waiting_share=waiting,
    )


def _within(good: bool, what: str) -> tuple[bool, str]:
    return good, f"{what}, {'within' if good else 'above'} {seconds(LONG_S)}"
