"""Whether a workload belongs on spot: the friendly and the hostile patterns, each tested on the user's own figures.

The patterns are those of "Tokens per dollar" (batch, overflow, short answers against a lone replica, a strict p99, long
answers, a slow start, conversations whose state goes). Work is lost when a machine goes with answers unfinished: those
longer than the notice. So are prefixes in its memory, which the next turn of a conversation computes again.
"""

from enum import StrEnum

from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.spot import NOTICE_S, Interruptions
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, count, percent, plural, seconds

LONG_S = 300.0  # of an answer or of a cold start: five minutes for both
LOST_SHARE = 0.01  # a hundredth of all answers cut off is a p99 SLO missed by spot alone


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
    """What goes with one replica: prefixes in its memory that later requests would have found."""

    tokens: NonNegativeFloat
    requests: NonNegativeFloat  # that would have found them: one for every conversation under way, or more
    prefill_s: NonNegativeFloat  # of a replica, to compute them again
    requests_per_hour: PositiveFloat  # that a replica serves


class SpotVerdict(Noun):
    """How much of the fleet may be on spot, and why."""

    suitability: Suitability
    reasons: tuple[SpotReason, ...]
    max_spot_share: NonNegativeFloat  # what a fleet may hold: of an hour's demand
    cut_off_share: NonNegativeFloat  # of all answers: begun on a machine that goes before they end
    lost_state: LostState | None = None  # by a loss; None where no request is known to find a prefix
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
        reasons.append((False, "a strict p99 leaves no room for a replica that goes"))
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
