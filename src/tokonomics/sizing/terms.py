"""What commitments and spot ask of a machine: prices by commitment, spot zones, cold starts, and what a loss costs.

Spot zones are AWS's own; elsewhere the offer's spot price stands for a zone of its own, with interruptions as of the
median AWS band. The tokens that wait in a cache for their next use are known from the log
(``traffic.prefix_reuse.waiting_state``); each replica holds its share of them, as far as its memory goes.
"""

from functools import cache
from statistics import median

from tokonomics.catalog.engines import start_times
from tokonomics.catalog.offers import Offer
from tokonomics.catalog.spot import Interruptions, load_bands, load_zone_prices
from tokonomics.money.fleet import ADVISOR, SpotMarket, aws_spot
from tokonomics.money.spot_verdict import LostState
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.traffic.prefix_reuse import waiting_state
from tokonomics.traffic.trace import Trace
from tokonomics.units import SECONDS_PER_HOUR

ASSUMED = "assumed"


def startup_seconds(deployment: Deployment) -> float:
    """Boot, image and engine, then the weights from a network disk."""
    return start_times().cold_s(deployment.model.weight_bytes(deployment.weights))


@cache
def assumed_interruptions() -> Interruptions:
    """Where no advisor speaks: those of the median band of AWS's GPU machines."""
    return Interruptions(per_hour=median(band.interruptions.per_hour for band in load_bands().values()))


def reserved_prices(offer: Offer) -> dict[str, float]:
    """USD per hour by commitment."""
    quoted = {"1 year": offer.reserved_1yr_usd_per_hour, "3 years": offer.reserved_3yr_usd_per_hour}
    return {term: price for term, price in quoted.items() if price is not None}


def spot_markets(
    offer: Offer, interruptions: Interruptions | None = None, aws_zones: bool = True
) -> tuple[SpotMarket, ...]:
    """The zones that sell it; elsewhere one zone that stands for the region.

    An AWS machine whose zones are not listed is not counted on: which of the others' zones it shares is not known.
    """
    if aws_zones and offer.provider == "aws":
        if offer.instance not in load_zone_prices():
            return ()
        if interruptions is None and (offer.instance, offer.region) not in load_bands():
            return aws_spot(offer.instance, offer.region, assumed_interruptions(), ASSUMED)
        return aws_spot(offer.instance, offer.region, interruptions)
    if offer.spot_usd_per_hour is None:
        return ()
    known = load_bands().get((offer.instance, offer.region)) if offer.provider == "aws" else None
    taken = interruptions or (known.interruptions if known else assumed_interruptions())
    said_by = "given" if interruptions else ADVISOR if known else ASSUMED
    zone = f"{offer.provider} {offer.region}"
    return (SpotMarket(zone=zone, usd_per_hour=offer.spot_usd_per_hour, interruptions=taken, interruptions_by=said_by),)


def lost_state(deployment: Deployment, trace: Trace | None, replicas: int, share: float = 1.0) -> LostState | None:
    """What goes with one of so many replicas, None where nothing is shared; ``share``: of the rate in the trace."""
    if trace is None or not deployment.reuses_prefixes:
        return None
    tokens, requests = (number / share / replicas for number in waiting_state(trace))
    if not tokens:
        return None
    block = deployment.engine.kv_block_tokens
    kept = min(1.0, max_sequences(deployment, block) * block / tokens)
    each = max(1, round(tokens / requests))
    return LostState(
        tokens=tokens * kept,
        requests=requests * kept,
        prefill_s=requests * kept * float(step_model(deployment).prefill(each)),
        requests_per_hour=len(trace) / trace.duration_s * SECONDS_PER_HOUR / share / replicas,
    )
