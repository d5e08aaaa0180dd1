"""Keep running totals over the rows of a log, so that a log larger than memory can be summarised.

Lengths are counted value by value, which keeps their percentiles exact. Rows pass through a buffer that puts them in
order of arrival: gaps, windows and bins see them sorted unless a row comes more than ``KEPT`` rows late. Bins over time
widen as the log grows, so that there are never more than ``MOST_BINS``. Requests, tokens and logged dollars are summed
up by tenant, and by the value of a label.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokonomics.traffic.attribution import BETWEEN
from tokonomics.traffic.trace import Floats, Ints
from tokonomics.types import Noun

if TYPE_CHECKING:
    import polars as pl

KEPT = 1_000_000
MOST_BINS = 200_000
LADDER_S = (1, 2, 10, 60, 300, 600, 3600, 21600, 86400, 864000, 8640000)
"""Widths of bins, each a multiple of the one before: a minute holds for 138 days."""
GAP_EDGES = np.logspace(-4, 4, 33)
"""Four bins per factor of ten, from 0.1 ms to 3 h; gaps outside fall in the first or the last."""
MOST_VALUES = 1000  # of one label that are listed
MERGED_TENANTS = 200_000  # tenants of batches that are held before they are added up


@dataclass
class Values:
    """How often each value occurred."""

    values: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, new: NDArray[np.integer]) -> None:
        """Count more values: whole numbers from 0 on."""
        if int(new.max()) < 8 * len(new):  # a table is many times faster than a sort
            table = np.bincount(new)
            values = np.flatnonzero(table)
            counts = table[values]
        else:
            values, counts = np.unique(new, return_counts=True)
        merged, place = np.unique(np.concatenate([self.values, values]), return_inverse=True)
        both = np.zeros(len(merged), np.int64)
        np.add.at(both, place, np.concatenate([self.counts, counts]))
        self.values, self.counts = merged.astype(np.int64), both

    @property
    def total(self) -> int:
        return int(self.values @ self.counts)

    def percentile(self, share: float) -> int:
        """Return the smallest value that at least this share of all values does not exceed."""
        upto = np.cumsum(self.counts)
        return int(self.values[np.searchsorted(upto, math.ceil(share * upto[-1]))])


@dataclass
class Window:
    """The requests in consecutive windows of one width: the fullest, and their sum of squares."""

    width_s: int
    peak: int = 0
    squares: float = 0.0
    open_index: int = -1
    open_count: int = 0

    def add(self, since_start_s: Floats) -> None:
        """Count requests at these sorted times."""
        index = np.maximum(np.floor(since_start_s / self.width_s).astype(np.int64), self.open_index)
        edges = np.flatnonzero(np.diff(index, prepend=-2))
        counts = np.diff(edges, append=len(index))
        if index[0] == self.open_index:
            counts[0] += self.open_count
        elif self.open_index >= 0:
            self.squares += float(self.open_count) ** 2
        self.peak = max(self.peak, int(counts.max()))
        self.squares += float(np.square(counts[:-1].astype(np.float64)).sum())
        self.open_index, self.open_count = int(index[-1]), int(counts[-1])

    def dispersion(self, requests: int, span_s: float) -> float | None:
        """Return variance ÷ mean of the counts of whole windows: 1 for a Poisson process. None for fewer than ten."""
        whole = math.floor(span_s / self.width_s)
        if whole < 10:
            return None
        partly = self.open_index >= whole
        inside = requests - (self.open_count if partly else 0)
        squares = self.squares + (0.0 if partly else float(self.open_count) ** 2)
        mean = inside / whole
        return (squares / whole - mean**2) / mean if inside else None


@dataclass
class Bins:
    """Requests, prompt tokens and answer tokens by time, from the first request on."""

    step: int = 0
    sums: Ints = field(default_factory=lambda: np.zeros((3, 0), np.int64))

    @property
    def width_s(self) -> int:
        return LADDER_S[self.step]

    def add(self, since_start_s: Floats, inputs: Ints, outputs: Ints) -> None:
        last = float(since_start_s.max())
        while last / self.width_s >= MOST_BINS and self.step + 1 < len(LADDER_S):
            self.sums = fold(self.sums, LADDER_S[self.step + 1] // self.width_s)
            self.step += 1
        index = np.clip(since_start_s / self.width_s, 0, MOST_BINS - 1).astype(np.int64)
        size = max(int(index.max()) + 1, self.sums.shape[1])
        columns = [np.bincount(index, weights, size) for weights in (None, inputs, outputs)]
        before = np.pad(self.sums, ((0, 0), (0, size - self.sums.shape[1])))
        self.sums = before + np.rint(np.stack(columns)).astype(np.int64)


def fold(sums: Ints, factor: int) -> Ints:
    """Return bins ``factor`` times as wide; the last may be partly filled."""
    padded = np.pad(sums, ((0, 0), (0, -sums.shape[1] % factor)))
    return np.asarray(padded.reshape(len(sums), -1, factor).sum(axis=2))


@dataclass
class Gaps:
    """Statistics of the times between one arrival and the next."""

    number: int = 0
    none: int = 0
    squares: float = 0.0
    smallest_s: float = math.inf  # of those above zero
    pairs: int = 0  # neighbouring gaps that are not both zero
    variation: float = 0.0  # Σ ((a − b) ÷ (a + b))² over them
    previous_s: float = math.nan
    histogram: Ints = field(default_factory=lambda: np.zeros(len(GAP_EDGES) - 1, np.int64))

    def add(self, gaps: Floats) -> None:
        if not len(gaps):
            return
        before = np.concatenate([[self.previous_s], gaps[:-1]])
        both = before + gaps
        some = both > 0  # false for the very first gap, which has none before it
        self.pairs += int(np.count_nonzero(some))
        self.variation += float(np.square((gaps - before)[some] / both[some]).sum())
        self.previous_s = float(gaps[-1])
        above = gaps[gaps > 0]
        self.number += len(gaps)
        self.none += len(gaps) - len(above)
        if len(above):
            self.squares += float(np.square(above).sum())
            self.smallest_s = min(self.smallest_s, float(above.min()))
            inside = np.clip(above, GAP_EDGES[0], GAP_EDGES[-1] * (1 - 1e-12))
            self.histogram += np.histogram(inside, GAP_EDGES)[0]

    def cv(self, span_s: float) -> float | None:
        """Return standard deviation ÷ mean; None if all arrive at once. Evenly spaced: 0, Poisson: 1."""
        if not self.number or span_s <= 0:
            return None
        mean = span_s / self.number
        return math.sqrt(max(self.squares / self.number - mean**2, 0.0)) / mean

    @property
    def local_cv(self) -> float | None:
        """Return the CV of gamma gaps with the same local variation; slow swings of the rate do not change it.

        Lv = 3 × mean of ((a − b) ÷ (a + b))² over neighbouring gaps is 3 ÷ (2k + 1) for gamma gaps of shape k = 1/CV²
        (Shinomoto, Shima & Tanji, Neural Computation 15, 2003). None for fewer than a hundred pairs.
        """
        if self.pairs < 100:
            return None
        lv = 3 * self.variation / self.pairs
        return math.sqrt(2 * lv / (3 - lv)) if lv < 2.999 else None


@dataclass
class Tally:
    """All totals; ``add`` takes rows in any order, ``finish`` empties the buffer."""

    windows: tuple[Window, ...]
    inputs: Values = field(default_factory=Values)
    outputs: Values = field(default_factory=Values)
    gaps: Gaps = field(default_factory=Gaps)
    bins: Bins = field(default_factory=Bins)
    requests: int = 0
    out_of_order: int = 0  # rows that arrived before one read earlier
    late: int = 0  # rows that came too late for the buffer to put them in order
    start_s: float = math.nan
    end_s: float = -math.inf
    _latest_read: float = -math.inf
    _pending: list[tuple[Floats, Ints, Ints]] = field(default_factory=list)
    _waiting: int = 0

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s if self.requests else 0.0

    def add(self, arrival_s: Floats, inputs: Ints, outputs: Ints) -> None:
        if not len(arrival_s):
            return
        running = np.maximum.accumulate(arrival_s)
        self.out_of_order += int(np.count_nonzero(arrival_s < np.maximum(running, self._latest_read)))
        self._latest_read = max(self._latest_read, float(running[-1]))
        self.requests += len(arrival_s)
        self.inputs.add(inputs)
        self.outputs.add(outputs)
        self._pending.append((arrival_s, inputs, outputs))
        self._waiting += len(arrival_s)
        if self._waiting >= 2 * KEPT:
            self._pass_on(self._waiting - KEPT)

    def finish(self) -> None:
        if self._waiting:
            self._pass_on(self._waiting)

    def _pass_on(self, number: int) -> None:
        """Sort the buffered rows, and count the earliest ``number`` of them."""
        columns = [np.concatenate(parts) for parts in zip(*self._pending, strict=True)]
        if np.any(np.diff(columns[0]) < 0):
            order = np.argsort(columns[0], kind="stable")
            columns = [column[order] for column in columns]
        arrival, inputs, outputs = (column[:number] for column in columns)
        self._pending = [(columns[0][number:], columns[1][number:], columns[2][number:])]
        self._waiting -= number
        previous = [] if math.isnan(self.start_s) else [self.end_s]
        if not previous:
            self.start_s = float(arrival[0])
        self.late += int(np.count_nonzero(arrival < self.end_s))
        steady = np.maximum(arrival, self.end_s)
        self.gaps.add(np.diff(np.concatenate([previous, steady])))
        self.end_s = float(steady[-1])
        for window in self.windows:
            window.add(steady - self.start_s)
        self.bins.add(arrival - self.start_s, inputs, outputs)


class PaidValue(Noun):
    """The totals of the requests with one value of a label."""

    name: str
    requests: int
    input_tokens: int
    output_tokens: int
    usd: float | None  # as the log says


class PaidBy(Noun):
    """Requests by the value of one label; every request has one, so they sum to the total."""

    label: str
    values: tuple[PaidValue, ...]  # most tokens first; last, those beyond ``MOST_VALUES`` together


class TenantSums:
    """The totals of each tenant, added up batch by batch; memory grows with the tenants, not with the rows."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []  # first what was merged, then the batches since

    def add(self, batch: "pl.DataFrame") -> None:
        import polars as pl

        usd = pl.col("usd") if "usd" in batch.columns else pl.lit(None, pl.Float64)
        rows = batch.select("tenant", "input", "output", requests=pl.lit(1, pl.Int64), usd=usd)
        self._parts.append(_summed(rows, "tenant"))
        merged, *since = map(len, self._parts)
        # Not after every batch: with millions of tenants the work would grow quadratically with the log.
        if sum(since) >= max(merged, MERGED_TENANTS):
            self._parts = [_summed(pl.concat(self._parts), "tenant")]

    def __len__(self) -> int:
        """Return the number of tenants when they were last merged."""
        return len(self._parts[0]) if self._parts else 0

    def ranked(self) -> "pl.DataFrame":
        """Return a row per tenant, most tokens first: requests, input, output and usd (null if no log states it)."""
        import polars as pl

        nobody = pl.DataFrame(schema=dict.fromkeys(("tenant", "requests", "input", "output", "usd"), pl.Null))
        return _ranked(_summed(pl.concat(self._parts), "tenant"), "tenant") if self._parts else nobody


def _summed(rows: "pl.DataFrame", key: str) -> "pl.DataFrame":
    import polars as pl

    usd = pl.when(pl.col("usd").is_not_null().any()).then(pl.col("usd").sum())
    return rows.group_by(key).agg(pl.col("requests", "input", "output").sum(), usd)


def _ranked(sums: "pl.DataFrame", key: str) -> "pl.DataFrame":
    import polars as pl

    return sums.sort(-(pl.col("input") + pl.col("output")), key)


def billed_by(tenants: "pl.DataFrame", labels: Sequence[str], place: int) -> PaidBy:
    """Sum up the ranked tenants by the value of one of the labels in their names."""
    import polars as pl

    value = pl.col("tenant").str.split(BETWEEN).list.get(place) if len(labels) > 1 else pl.col("tenant")
    values = _ranked(_summed(tenants.with_columns(name=value), "name"), "name")
    rows = values.head(MOST_VALUES)
    if others := len(values) - len(rows):
        rows = rows.vstack(_summed(values.tail(others).with_columns(name=pl.lit(f"{others:,} more")), "name"))
    paid = rows.rename({"input": "input_tokens", "output": "output_tokens"}).iter_rows(named=True)
    return PaidBy(label=labels[place], values=tuple(PaidValue(**row) for row in paid))
