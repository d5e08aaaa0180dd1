"""What exists and what it costs, as frames to filter and join."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tokonomics.api.ask import answered, as_files, documented, words_of
from tokonomics.api.frames import Prices
from tokonomics.report.frames import frame_of

if TYPE_CHECKING:
    import polars as pl

Words = str | Sequence[str]


@documented
def models(match: str | None = None, *, family: str | None = None, moe: bool | None = None) -> "pl.DataFrame":
    """Models we know: parameters, weight bytes, KV cache per token; ``key`` is what other functions take.

    >>> tk.models("qwen3", moe=True).select("key", "parameters", "active_parameters")
    """
    return frame_of(answered(words_of(models, locals())).plain())


@documented
def gpus(
    match: str | None = None, *, min_memory: float | None = None, architecture: str | None = None
) -> "pl.DataFrame":
    """GPUs we know: memory, bandwidth, dense FLOP/s by precision, links, watts.

    >>> tk.gpus(min_memory=100, architecture="hopper").select("key", "memory_gb", "bandwidth_bytes_per_s")
    """
    return frame_of(answered(words_of(gpus, locals())).plain())


@documented
def offers(
    *, gpu: Words | None = None, provider: Words | None = None, region: Words | None = None, terms: str = "on_demand",
    max_price: float | None = None, discount: str | Sequence[str] | Mapping[str, float] | None = None,
    offers: Prices | None = None,
) -> "pl.DataFrame":  # fmt: skip
    """GPU prices by the hour, cheapest GPU-hour first; each with its date.

    >>> tk.offers(gpu="H100", provider=["aws", "gcp"]).select("provider", "region", "gpus", "usd_per_hour", "date")
    """
    with as_files(locals()) as given:
        return frame_of(answered(words_of(_offers, given)).plain())


_offers = offers
"""Inside the function, its argument has its name."""
