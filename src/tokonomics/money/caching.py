"""What a shared prompt prefix saves when its KV cache is kept: the arithmetic of prefix caching.

A request is a shared prefix and a query of its own. On a hit only the query is computed; on a miss everything is.
"""

from pydantic import NonNegativeFloat

from tokonomics.errors import BadInput
from tokonomics.money.cost import require_positive
from tokonomics.nouns import Noun
from tokonomics.units import TOKENS_PER_MTOK


class PrefixSaving(Noun):
    """Prompt tokens computed in an hour, with and without the cache."""

    tokens_without: NonNegativeFloat
    tokens_with: NonNegativeFloat
    share_saved: NonNegativeFloat
    """Over all requests."""
    share_saved_per_hit: NonNegativeFloat
    """Of a request that finds its prefix."""
    usd_saved_per_hour: NonNegativeFloat


def prefix_saving(
    prefix_tokens: int, query_tokens: int, requests_per_hour: float, hit_rate: float, usd_per_mtok: float
) -> PrefixSaving:
    """Prompt work saved by a cache that ``hit_rate`` of the requests hit, at a price per Mtok of prompt."""
    for name, value in (("prefix-tokens", prefix_tokens), ("query-tokens", query_tokens)):
        require_positive(name, value)
    require_positive("requests-per-hour", requests_per_hour)
    require_positive("usd-per-mtok", usd_per_mtok)
    if not 0 <= hit_rate <= 1:
        raise BadInput(f"hit-rate must be between 0 and 1, got {hit_rate}")
    request = prefix_tokens + query_tokens
    without = requests_per_hour * request
    saved = requests_per_hour * hit_rate * prefix_tokens
    return PrefixSaving(
        tokens_without=without,
        tokens_with=without - saved,
        share_saved=saved / without,
        share_saved_per_hit=prefix_tokens / request,
        usd_saved_per_hour=saved / TOKENS_PER_MTOK * usd_per_mtok,
    )
