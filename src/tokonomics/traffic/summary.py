"""What a trace is like: how fast, how bursty, how long, how much shared, and what the quiet hours cost.

Everything but the prefix structure is counted in one pass over batches (``tally``), so the log need not fit in memory:
what is kept grows with the number of tenants and of different lengths. Of the prefix structure, as much is replayed as
can be held, which is said.
Burstiness is the coefficient of variation of the gaps (of all, and of neighbours), the fullest window ÷ the mean, and
the variance ÷ mean of the counts of windows (1 for a Poisson process). Reuse is a replay through caches of some sizes
(``prefix_reuse``).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import check_room
from tokonomics.traffic.idle import Idle, idle_cost
from tokonomics.traffic.tally import GAP_EDGES, LADDER_S, Tally, Values, Window, fold
from tokonomics.traffic.trace import Counts, PrefixBlocks, Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, plural

if TYPE_CHECKING:
    from tokonomics.traffic.readers import Rows, TraceFile

WINDOWS_S = (1, 10, 60)
CACHES_TOKENS = (100_000, 1_000_000, 10_000_000)
"""From the KV cache of one small GPU to the memory of a host, in tokens of a model such as Llama-3.1-8B."""
MOST_REPLAYED = 20_000_000
"""Requests and blocks they list whose reuse is replayed: these must be held, which takes some hundred MB."""
DAY_S, WEEK_S = 86400, 604800
_OLDEST_DATE_S = 946_684_800
"""2000-01-01: a clock that shows more counts seconds since 1970."""
_CURVE_BINS = 400
_TOP_TENANTS = 10
_BYTES_PER_TENANT = 380
"""Peak over that of a log with one, by tenant: 1.5 and 3 million tenants with names of 36 characters, as parquet."""
_HISTOGRAM_EDGES = np.unique(np.concatenate([[0], np.rint(2 ** np.arange(0, 27.01, 0.25))])).astype(np.int64)
"""Lengths in quarter octaves, up to more than any prompt; none at all apart."""


class Share(Noun):
    """A part of a histogram: values from ``low`` to below ``high``, and how many."""

    low: float
    high: float
    count: int


class LengthSummary(Noun):
    """Tokens of prompts or of answers."""

    total: int
    mean: float
    p50: int
    p90: int
    p95: int
    p99: int
    max: int
    histogram: tuple[Share, ...]


class Peak(Noun):
    """The fullest window of one width."""

    window_s: int
    rate: float
    """Requests a second."""
    over_mean: float
    dispersion: float | None
    """Variance ÷ mean of the requests in a window; None for fewer than ten windows."""


class Reuse(Noun):
    """What a cache of so many tokens (None: without limit) would spare."""

    cache_tokens: int | None
    share_of_input: float


class TenantShare(Noun):
    name: str
    requests: float
    tokens: float


class RateBin(Noun):
    """Traffic from ``start_s`` on; the width is the summary's ``bin_s``."""

    start_s: float
    requests: int
    input_tokens: int
    output_tokens: int


class TraceSummary(Noun):
    source: str
    format: str | None = None
    requests: int
    bad_rows: int = 0
    first_problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    started: datetime | None = None
    """In UTC, where the log has dates."""
    duration_s: float
    rate: float
    """Mean requests a second from the first arrival to the last; 0 where all arrive at once."""
    peaks: tuple[Peak, ...]
    gap_cv: float | None
    """Standard deviation ÷ mean of the gaps, slow swings of the rate included."""
    local_cv: float | None
    """The same from neighbouring gaps only: 0 even, 1 Poisson, above it bursts, whatever the time of day."""
    gaps: tuple[Share, ...]
    same_time: float
    """Share of requests with the same time as the one before."""
    clock_step_s: float | None
    """Where times come in steps too coarse to see burstiness within them."""
    out_of_order: int
    input: LengthSummary
    output: LengthSummary
    input_per_output: float | None
    """Prompt tokens for each answer token; None where nothing is answered."""
    tokens_per_second: float
    """Prompts and answers, mean over the span."""
    peak_minute_over_mean: float | None
    """Tokens in the fullest minute ÷ the mean; None for less than ten minutes or where bins are wider."""
    reuse: tuple[Reuse, ...] = ()
    block_tokens: int | None = None
    tenants: tuple[TenantShare, ...] = ()
    tenant_count: int = 0
    bin_s: int
    curve: tuple[RateBin, ...]
    by_hour: tuple[float, ...] = ()
    """Rate in each hour of the day ÷ the mean; UTC, or since the first request where the log has no dates."""
    by_weekday: tuple[float, ...] = ()
    """Likewise from Monday; only for logs with dates of a week or more."""
    idle: Idle | None = None


def summarize(
    source: "TraceFile | Trace",
    *,
    tokens_per_second: float | None = None,
    usd_per_hour: float | None = None,
    on_rows: Callable[[int], None] | None = None,
) -> TraceSummary:
    """Read all of it once; a log that lists prefix blocks is read a second time for them, up to ``MOST_REPLAYED``.

    With the capacity and the price of one machine also what its idle time costs. ``on_rows`` hears after every batch
    how many rows were read so far.
    """
    if (tokens_per_second is None) != (usd_per_hour is None):
        missing = "machine_usd_per_hour" if usd_per_hour is None else "machine_tokens_per_second"
        raise BadInput("is missing: idle time needs both a capacity and a price", field=missing)
    tally = Tally(tuple(Window(width) for width in WINDOWS_S))
    tenants: dict[str, NDArray[np.int64]] = {}
    shared = False
    for rows in _batches(source):
        tally.add(rows.arrival_s, rows.input_tokens, rows.output_tokens)
        shared = shared or rows.blocks is not None
        if rows.tenant is not None:
            _add_tenants(tenants, rows.tenants, rows.tenant, rows.input_tokens + rows.output_tokens)
            check_room(
                len(tenants) * _BYTES_PER_TENANT,
                f"to count more than {plural(len(tenants), 'tenant')} apart",
                where=_name(source),
                fix=f"Without them: {option('columns', 'arrival=…,input=…,output=…')}.",
            )
        if on_rows:
            on_rows(tally.requests)
    if not tally.requests:
        raise BadInput("has no requests", where=_name(source))
    tally.finish()
    known = _told_by_the_file(source)
    if tally.late:
        late = (
            f"{plural(tally.late, 'row')} came too late to be put in order: gaps and peaks take them as arriving then"
        )
        known["notes"] = (*known.get("notes", ()), late)
    if tokens_per_second is not None and usd_per_hour is not None:
        known["idle"] = idle_cost(tally.bins, tally.duration_s, tokens_per_second, usd_per_hour)
    replayed = source if isinstance(source, Trace) else source.read(MOST_REPLAYED) if shared else None
    if replayed is not None and len(replayed) < tally.requests:
        part = f"prefix reuse is that of the first {len(replayed):,} requests of the file"
        known["notes"] = (*known.get("notes", ()), part)
    block_tokens, reuse = _reuse(replayed)
    return _summary(tally, tenants, source=_name(source), block_tokens=block_tokens, reuse=reuse, **known)


def _name(source: "TraceFile | Trace") -> str:
    return source.source if isinstance(source, Trace) else str(source.path.name)


def _told_by_the_file(source: "TraceFile | Trace") -> dict[str, Any]:
    """Taken before the file is read again, which counts its problems anew."""
    if isinstance(source, Trace):
        return {}
    found = source.problems
    return {
        "format": source.format,
        "bad_rows": found.count,
        "first_problems": tuple(found.first),
        "notes": tuple(found.notes),
    }


def _batches(source: "TraceFile | Trace") -> "Iterable[Rows]":
    return _whole(source) if isinstance(source, Trace) else source.batches()


def _whole(trace: Trace, size: int = 1_000_000) -> "Iterator[Rows]":
    """A trace in memory, as batches."""
    from tokonomics.traffic.readers import Rows

    for start in range(0, len(trace), size):
        part = slice(start, start + size)
        yield Rows(
            trace.arrival_s[part],
            trace.input_tokens[part].astype(np.int64),
            trace.output_tokens[part].astype(np.int64),
            None if trace.tenant is None else trace.tenant[part],
            trace.tenants,
        )


def _summary(tally: Tally, tenants: dict[str, NDArray[np.int64]], **known: Any) -> TraceSummary:
    span, requests = tally.duration_s, tally.requests
    rate = (requests - 1) / span if span > 0 else 0.0
    clock = _clock_step(tally, span)
    tokens = tally.inputs.total + tally.outputs.total
    width, curve = _curve(tally)
    dated = tally.start_s > _OLDEST_DATE_S
    by_hour, by_weekday = _calendar(tally, dated)
    return TraceSummary(
        requests=requests,
        started=datetime.fromtimestamp(tally.start_s, UTC) if dated and tally.start_s < 1e11 else None,
        duration_s=span,
        rate=rate,
        peaks=tuple(
            Peak(
                window_s=window.width_s,
                rate=window.peak / window.width_s,
                over_mean=window.peak / window.width_s / rate,
                dispersion=window.dispersion(requests, span),
            )
            for window in tally.windows
            if rate and span >= window.width_s and window.width_s >= (clock or 0)
        ),
        gap_cv=tally.gaps.cv(span),
        local_cv=tally.gaps.local_cv if clock is None else None,
        gaps=tuple(
            Share(low=low, high=high, count=count)
            for low, high, count in zip(GAP_EDGES[:-1], GAP_EDGES[1:], tally.gaps.histogram, strict=True)
            if count
        ),
        same_time=tally.gaps.none / tally.gaps.number if tally.gaps.number else 0.0,
        clock_step_s=clock,
        out_of_order=tally.out_of_order,
        input=_lengths(tally.inputs),
        output=_lengths(tally.outputs),
        input_per_output=tally.inputs.total / tally.outputs.total if tally.outputs.total else None,
        tokens_per_second=tokens / span if span > 0 else 0.0,
        peak_minute_over_mean=_peak_minute(tally),
        tenants=_top(tenants, requests, tokens),
        tenant_count=len(tenants),
        bin_s=width,
        curve=curve,
        by_hour=by_hour,
        by_weekday=by_weekday,
        **known,
    )


def _clock_step(tally: Tally, span_s: float) -> float | None:
    """The smallest gap, where it is no small part of the mean although many requests share a time.

    Among a hundred or more independent arrivals the smallest gap is far below a tenth of the mean.
    """
    gaps = tally.gaps
    if gaps.number < 100 or gaps.none < 0.01 * gaps.number or not math.isfinite(gaps.smallest_s):
        return None
    return gaps.smallest_s if gaps.smallest_s >= 0.1 * span_s / gaps.number else None


def _lengths(values: Values) -> LengthSummary:
    placed = np.searchsorted(_HISTOGRAM_EDGES, values.values, side="right") - 1
    counts = np.bincount(placed, values.counts, len(_HISTOGRAM_EDGES))
    return LengthSummary(
        total=values.total,
        mean=values.total / int(values.counts.sum()),
        p50=values.percentile(0.5),
        p90=values.percentile(0.9),
        p95=values.percentile(0.95),
        p99=values.percentile(0.99),
        max=int(values.values[-1]),
        histogram=tuple(
            Share(low=int(_HISTOGRAM_EDGES[place]), high=int(_HISTOGRAM_EDGES[place + 1]), count=int(counts[place]))
            for place in np.flatnonzero(counts)
        ),
    )


def _curve(tally: Tally) -> tuple[int, tuple[RateBin, ...]]:
    """Bins for a chart: the narrowest on the ladder that make no more than some hundreds."""
    width = next(
        (each for each in LADDER_S if each >= tally.bins.width_s and tally.duration_s / each < _CURVE_BINS),
        LADDER_S[-1],
    )
    sums = fold(tally.bins.sums, width // tally.bins.width_s)
    bins = (
        RateBin(start_s=place * width, requests=requests, input_tokens=inputs, output_tokens=outputs)
        for place, (requests, inputs, outputs) in enumerate(sums.T.tolist())
    )
    return width, tuple(bins)


def _peak_minute(tally: Tally) -> float | None:
    if tally.duration_s < 600 or tally.bins.width_s > 60:
        return None
    minutes = fold(tally.bins.sums, 60 // tally.bins.width_s)
    tokens = minutes[1] + minutes[2]
    return float(tokens.max() / 60 / (tokens.sum() / tally.duration_s))


def _calendar(tally: Tally, dated: bool) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The rate by hour of the day, from a day on, and by weekday, from a week on; each ÷ the mean."""
    width = tally.bins.width_s
    if tally.duration_s < DAY_S or width > SECONDS_PER_HOUR:
        return (), ()
    requests = tally.bins.sums[0]
    middles = (np.arange(len(requests)) + 0.5) * width + (tally.start_s if dated else 0.0)

    def over_mean(place: NDArray[np.floating[Any]], places: int) -> tuple[float, ...]:
        index = place.astype(np.int64)
        # A day that the log covers twice must not look busier for it.
        lasting = np.bincount(index, minlength=places)
        return tuple(np.bincount(index, requests, places) / lasting / requests.mean())

    hours = over_mean(middles % DAY_S // SECONDS_PER_HOUR, 24)
    # 1970-01-01 was a Thursday.
    return hours, over_mean((middles // DAY_S + 3) % 7, 7) if dated and tally.duration_s >= WEEK_S else ()


def _reuse(trace: Trace | None) -> tuple[int | None, tuple[Reuse, ...]]:
    prefix = None if trace is None else trace.prefix
    if trace is None or prefix is None or not len(prefix.ids):
        return None, ()
    return prefix.block_tokens, tuple(_shares(prefix, trace))


def _shares(prefix: PrefixBlocks, trace: Trace) -> Iterator[Reuse]:
    """Caches too large to ever fill are left out: they spare as much as one without limit."""
    from tokonomics.traffic.prefix_reuse import reuse

    listed = np.diff(prefix.starts) * prefix.block_tokens
    needed = prefix.distinct * prefix.block_tokens + int(np.maximum(trace.input_tokens - listed, 0).sum())
    for tokens in (*CACHES_TOKENS, None):
        if tokens is None or tokens < needed:
            cached = reuse(prefix, trace.input_tokens, None if tokens is None else tokens // prefix.block_tokens)
            share = int(cached.sum(dtype=np.int64)) / int(trace.input_tokens.sum(dtype=np.int64))
            yield Reuse(cache_tokens=tokens, share_of_input=share)


def _add_tenants(
    tenants: dict[str, NDArray[np.int64]], names: tuple[str, ...], tenant: Counts, tokens: NDArray[np.int64]
) -> None:
    requests = np.bincount(tenant, minlength=len(names))
    rows = np.stack([requests, np.rint(np.bincount(tenant, tokens, len(names))).astype(np.int64)], axis=1)
    for place in np.flatnonzero(requests):
        before = tenants.get(names[place])
        tenants[names[place]] = rows[place] if before is None else before + rows[place]


def _top(tenants: dict[str, NDArray[np.int64]], requests: int, tokens: int) -> tuple[TenantShare, ...]:
    """The largest by tokens; equal ones by name."""
    ordered = sorted(tenants, key=lambda name: (-tenants[name][1], name))[:_TOP_TENANTS]
    return tuple(
        TenantShare(name=name, requests=tenants[name][0] / requests, tokens=tenants[name][1] / tokens)
        for name in ordered
    )
