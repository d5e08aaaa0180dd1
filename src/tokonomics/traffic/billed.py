"""What the requests of each tenant come to, and of each value of a label: requests, tokens, and dollars as logged."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tokonomics.traffic.attribution import values_of
from tokonomics.types import Noun

if TYPE_CHECKING:
    import polars as pl

MOST_VALUES = 1000  # of one label that are told apart
MERGED_ROWS = 200_000  # tenants of batches that are held before they are added up


class BilledValue(Noun):
    """What the requests with one value of a label come to."""

    name: str
    requests: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    """As the log says."""


class BilledBy(Noun):
    """Requests by the value of one label; every request has one, so that they sum to all."""

    label: str
    values: tuple[BilledValue, ...]
    """Most tokens first; what is beyond ``MOST_VALUES`` together, last."""


@dataclass(frozen=True)
class Sums:
    """Of the requests of one tenant."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = None

    def __add__(self, other: "Sums") -> "Sums":
        is_priced = self.usd is not None or other.usd is not None
        return Sums(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            (self.usd or 0.0) + (other.usd or 0.0) if is_priced else None,
        )

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class TenantSums:
    """What the requests of each tenant come to, batch by batch; takes memory for each tenant, not for each row."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []
        """What was merged, then what came since."""

    def add(self, batch: "pl.DataFrame") -> None:
        import polars as pl

        usd = pl.col("usd").sum() if "usd" in batch.columns else pl.lit(None, pl.Float64)
        requests = pl.len().cast(pl.Int64).alias("requests")
        summed = batch.group_by("tenant").agg(requests, pl.col("input").sum(), pl.col("output").sum(), usd=usd)
        self._parts.append(summed)
        merged, *since = map(len, self._parts)
        # Not after every batch: with millions of tenants the work would grow with the square of the log.
        if sum(since) >= max(merged, MERGED_ROWS):
            self._merge()

    def _merge(self) -> None:
        import polars as pl

        if len(self._parts) > 1:
            usd = pl.when(pl.col("usd").is_not_null().any()).then(pl.col("usd").sum())
            counted = pl.col("requests", "input", "output").sum()
            self._parts = [pl.concat(self._parts).group_by("tenant").agg(counted, usd)]

    def __len__(self) -> int:
        """How many there were when they were last counted."""
        return len(self._parts[0]) if self._parts else 0

    def by_name(self) -> dict[str, Sums]:
        """Of all batches, each tenant's."""
        self._merge()
        rows = self._parts[0].iter_rows() if self._parts else iter(())
        return {name: Sums(*found) for name, *found in rows}


def billed_by(tenants: dict[str, Sums], labels: Sequence[str], place: int) -> BilledBy:
    """By the value of one of the labels that tenants are named by."""
    values: dict[str, Sums] = {}
    for tenant, sums in tenants.items():
        name = values_of(tenant, len(labels))[place]
        values[name] = values.get(name, Sums()) + sums
    ranked = sorted(values, key=lambda name: (-values[name].tokens, name))
    rows = [(name, values[name]) for name in ranked[:MOST_VALUES]]
    if others := ranked[MOST_VALUES:]:
        rows.append((f"{len(others):,} more", sum((values[name] for name in others), Sums())))
    return BilledBy(label=labels[place], values=tuple(BilledValue(name=name, **asdict(sums)) for name, sums in rows))
