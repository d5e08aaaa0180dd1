"""Describe a trace: its rate, burstiness, lengths and shared prompts, and what the quiet hours cost.

Everything but the prefix structure is counted in one pass over batches (``tally``), so the log need not fit in memory:
memory grows with the number of tenants and of different lengths. As much of the prefix structure is replayed as memory
holds, which a note says. Burstiness is the coefficient of variation of the gaps (of all, and of neighbours), the
fullest window ÷ the mean, and the variance ÷ mean of the counts of windows (1 for a Poisson process). Reuse is a replay
through caches of some sizes (``prefix_reuse``).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import check_room
from tokonomics.traffic.sessions import SessionSummary, summarize_sessions
from tokonomics.traffic.slo import PERCENTILES
from tokonomics.traffic.tally import (
    GAP_EDGES,
    LADDER_S,
    Bins,
    PaidBy,
    Tally,
    TenantSums,
    Values,
    Window,
    billed_by,
    fold,
)
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK, plural

if TYPE_CHECKING:
    import polars as pl

    from tokonomics.traffic.readers import TraceFile

WINDOWS_S = (1, 10, 60)
CACHES_TOKENS = (100_000, 1_000_000, 10_000_000)
"""From the KV cache of one small GPU to the memory of a host, in tokens of a model such as Llama-3.1-8B."""
MOST_REPLAYED = 20_000_000  # requests and blocks whose reuse is replayed: they take some hundred MB
DAY_S, WEEK_S = 86400, 604800
_OLDEST_DATE_S = 946_684_800  # 2000-01-01: a clock that shows more counts seconds since 1970
_HOURS_FROM_S, _MINUTES_FROM_S = 2 * DAY_S, 600  # traces from which idle time is looked at by the hour, by the minute
_CURVE_BINS = 400
_TOP_TENANTS = 10
_PART = 1_000_000
_BYTES_PER_TENANT = 380
"""Peak memory over that with one tenant, per tenant: 1.5 and 3 million names of 36 characters, as parquet."""
_HISTOGRAM_EDGES = np.unique(np.concatenate([[0], np.rint(2 ** np.arange(0, 27.01, 0.25))])).astype(np.int64)
"""Lengths in quarter octaves, up to more than any prompt; a length of 0 has its own bar."""


class Share(Noun):
    """A bar of a histogram: how many values lie from ``low`` to below ``high``."""

    low: float
    high: float
    count: int


class LengthSummary(Noun):
    """The lengths of prompts or of answers, in tokens."""

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
    rate: float  # requests a second
    over_mean: float
    dispersion: float | None  # variance ÷ mean of the requests in a window; None for fewer than ten windows


class Reuse(Noun):
    """The share of prompt tokens that a cache of this size (None: without limit) would find."""

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


class Idle(Noun):
    """What unused capacity costs: of one machine, and of as many as the fullest window needs.

    Tokens, prompt and answer alike, count in the window in which their request arrives, and nothing waits for the next
    one: a first estimate, which needs only a throughput and a price. The simulator knows of latency and queues.
    """

    tokens_per_second: float  # of one machine, as given
    usd_per_hour: float  # of one machine, as given
    window_s: int
    enough: float  # share of the windows in which one machine is enough
    idle: float  # share of one machine's capacity that is not used
    overflow: float  # share of the tokens that are beyond one machine
    idle_usd_per_day: float
    machines_for_peak: int
    idle_for_peak: float
    idle_for_peak_usd_per_day: float
    usd_per_mtok_for_peak: float


class TraceSummary(Noun):
    source: str
    format: str | None = None
    requests: int
    bad_rows: int = 0
    first_problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    started: datetime | None = None  # in UTC, if the log has dates
    duration_s: float
    rate: float  # mean requests a second from the first arrival to the last; 0 where all arrive at once
    peaks: tuple[Peak, ...]
    gap_cv: float | None  # standard deviation ÷ mean of the gaps, slow swings of the rate included
    local_cv: float | None
    """The same from neighbouring gaps only: 0 even, 1 Poisson, above it bursts, whatever the time of day."""
    gaps: tuple[Share, ...]
    same_time: float  # share of requests with the same time as the one before
    clock_step_s: float | None  # set if the log's times are too coarse to show burstiness within a step
    out_of_order: int
    input: LengthSummary
    output: LengthSummary
    input_per_output: float | None  # prompt tokens per answer token; None if there are no answers
    tokens_per_second: float  # prompts and answers, mean over the span
    peak_minute_over_mean: float | None
    """Tokens in the fullest minute ÷ the mean; None for less than ten minutes or where bins are wider."""
    reuse: tuple[Reuse, ...] = ()
    sessions: SessionSummary | None = None  # of logs that say who waits for whose answer
    block_tokens: int | None = None
    tenants: tuple[TenantShare, ...] = ()
    tenant_count: int = 0
    by: tuple[PaidBy, ...] = ()  # for each label that was asked for
    usd: float | None = None  # what all requests cost, as the log says
    bin_s: int
    curve: tuple[RateBin, ...]
    by_hour: tuple[float, ...] = ()
    """Rate in each hour of the day ÷ the mean; UTC, or since the first request where the log has no dates."""
    by_weekday: tuple[float, ...] = ()  # likewise from Monday; only for logs with dates of a week or more
    idle: Idle | None = None


def summarize(
    source: "TraceFile | Trace",
    *,
    tokens_per_second: float | None = None,
    usd_per_hour: float | None = None,
    by: Sequence[str] = (),
    on_rows: Callable[[int], None] | None = None,
) -> TraceSummary:
    """Describe a log in one pass; one that lists prefix blocks is read a second time for them, up to ``MOST_REPLAYED``.

    With the capacity and the price of one machine, the idle time is priced too. ``by`` are the labels that tenants
    are named by; each is summed up. ``on_rows`` is called after every batch with the number of rows read so far.
    """
    if (tokens_per_second is None) != (usd_per_hour is None):
        missing = "machine_usd_per_hour" if usd_per_hour is None else "machine_tokens_per_second"
        raise BadInput("is missing: idle time needs both a capacity and a price", field=missing)
    tally = Tally(tuple(Window(width) for width in WINDOWS_S))
    counted = TenantSums()
    costs: list[float] = []
    shared = in_sessions = False
    name = source.source if isinstance(source, Trace) else source.path.name
    for batch in _in_parts(source) if isinstance(source, Trace) else source.batches():
        tally.add(*(batch[column].to_numpy() for column in ("arrival", "input", "output")))
        shared = shared or "prefix" in batch.columns
        in_sessions = in_sessions or not {"session", "parent"}.isdisjoint(batch.columns)
        if "usd" in batch.columns:
            costs.append(float(batch["usd"].sum()))
        if "tenant" in batch.columns:
            counted.add(batch)
            check_room(
                len(counted) * _BYTES_PER_TENANT,
                f"to count more than {plural(len(counted), 'tenant')} apart",
                where=name,
                fix=f"Without them: {option('columns', 'arrival=…,input=…,output=…')}.",
            )
        if on_rows:
            on_rows(tally.requests)
    if not tally.requests:
        raise BadInput("has no requests", where=name)
    tally.finish()
    tenants = counted.ranked()
    known: dict[str, Any] = {"source": name}
    notes: list[str] = []
    if not isinstance(source, Trace):
        # Copied before the file is read again, which counts its problems anew.
        found = source.problems
        known |= {"format": source.format, "bad_rows": found.count, "first_problems": tuple(found.first)}
        notes += found.notes
    if tally.late:
        notes.append(
            f"{plural(tally.late, 'row')} came too late to be put in order: gaps and peaks take them as arriving then"
        )
    if tokens_per_second is not None and usd_per_hour is not None:
        known["idle"] = _idle_cost(tally.bins, tally.duration_s, tokens_per_second, usd_per_hour)
    replayed = source if isinstance(source, Trace) else None
    if not isinstance(source, Trace) and (shared or in_sessions):
        replayed = source.read(MOST_REPLAYED)
        notes += [note for note in source.problems.notes if note not in notes]
    if replayed is not None:
        if len(replayed) < tally.requests:
            what = "prefix reuse and sessions are those" if in_sessions else "prefix reuse is that"
            notes.append(f"{what} of the first {len(replayed):,} requests of the file")
        known["sessions"] = summarize_sessions(replayed)
        if replayed.prefix is not None and len(replayed.prefix.ids):
            known |= {"block_tokens": replayed.prefix.block_tokens, "reuse": tuple(_reuse(replayed))}
    if costs:
        known["usd"] = math.fsum(costs)
    if by:
        known["by"] = tuple(billed_by(tenants, labels=by, place=place) for place in range(len(by)))
    return _summary(tally, tenants, notes=tuple(notes), **known)


def _in_parts(trace: Trace) -> "Iterator[pl.DataFrame]":
    """Yield a trace as batches of a log."""
    import polars as pl

    for start in range(0, len(trace), _PART):
        part = slice(start, start + _PART)
        columns = {
            "arrival": pl.Series(trace.arrival_s[part]),
            "input": pl.Series(trace.input_tokens[part].astype(np.int64)),
            "output": pl.Series(trace.output_tokens[part].astype(np.int64)),
        }
        if trace.tenant is not None:
            columns["tenant"] = pl.Series(trace.tenants, dtype=pl.String)[trace.tenant[part]]
        if trace.usd is not None:
            columns["usd"] = pl.Series(trace.usd[part])
        yield pl.DataFrame(columns)


def _summary(tally: Tally, tenants: "pl.DataFrame", **known: Any) -> TraceSummary:
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
        tenants=tuple(
            TenantShare(name=name, requests=sent / requests, tokens=(inputs + outputs) / tokens)
            for name, sent, inputs, outputs, _ in tenants.head(_TOP_TENANTS).iter_rows()
        ),
        tenant_count=len(tenants),
        bin_s=width,
        curve=curve,
        by_hour=by_hour,
        by_weekday=by_weekday,
        **known,
    )


def _clock_step(tally: Tally, span_s: float) -> float | None:
    """Return the log's clock step: the smallest gap, if it is large and many requests share a time; otherwise None.

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
        **{f"p{rank}": values.percentile(rank / 100) for rank in PERCENTILES},
        max=int(values.values[-1]),
        histogram=tuple(
            Share(low=int(_HISTOGRAM_EDGES[place]), high=int(_HISTOGRAM_EDGES[place + 1]), count=int(counts[place]))
            for place in np.flatnonzero(counts)
        ),
    )


def _curve(tally: Tally) -> tuple[int, tuple[RateBin, ...]]:
    """Return bins for a chart: the narrowest width on the ladder that needs no more than some hundreds."""
    narrow = (step for step in LADDER_S if step >= tally.bins.width_s and tally.duration_s / step < _CURVE_BINS)
    width = next(narrow, LADDER_S[-1])
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
    """Return the rate by hour of the day, from a day on, and by weekday, from a week on; each over the mean."""
    width = tally.bins.width_s
    if tally.duration_s < DAY_S or width > SECONDS_PER_HOUR:
        return (), ()
    requests = tally.bins.sums[0]
    middles = (np.arange(len(requests)) + 0.5) * width + (tally.start_s if dated else 0.0)

    def over_mean(place: NDArray[np.floating[Any]], places: int) -> tuple[float, ...]:
        index = place.astype(np.int64)
        # An hour or weekday that the log covers twice must not look busier because of it.
        lasting = np.bincount(index, minlength=places)
        return tuple(np.bincount(index, requests, places) / lasting / requests.mean())

    hours = over_mean(middles % DAY_S // SECONDS_PER_HOUR, 24)
    # 1970-01-01 was a Thursday.
    return hours, over_mean((middles // DAY_S + 3) % 7, 7) if dated and tally.duration_s >= WEEK_S else ()


def _reuse(trace: Trace) -> Iterator[Reuse]:
    """Yield the reuse in caches of several sizes; those too large to ever fill are left out."""
    from tokonomics.traffic.prefix_reuse import found_share

    prefix = trace.prefix
    assert prefix is not None
    listed = np.diff(prefix.starts) * prefix.block_tokens
    needed = prefix.distinct * prefix.block_tokens + int(np.maximum(trace.input_tokens - listed, 0).sum())
    for tokens in (*CACHES_TOKENS, None):
        if tokens is None or tokens < needed:
            share, _ = found_share(trace, None if tokens is None else tokens // prefix.block_tokens)
            yield Reuse(cache_tokens=tokens, share_of_input=share)


def _idle_cost(bins: Bins, span_s: float, tokens_per_second: float, usd_per_hour: float) -> Idle:
    """Price the idle time of whole windows only, so that the trace's end does not look idle."""
    given = {"machine_tokens_per_second": tokens_per_second, "machine_usd_per_hour": usd_per_hour}
    for field, value in given.items():
        if not 1e-6 <= value <= 1e12:
            raise BadInput(f"must be between 0.000001 and a trillion, got {value:g}", field=field)
    if span_s < 1:
        raise BadInput("cannot price idle time: all requests arrive within a second", field="machine_tokens_per_second")
    wanted = SECONDS_PER_HOUR if span_s >= _HOURS_FROM_S else 60 if span_s >= _MINUTES_FROM_S else 1
    width = max(wanted, bins.width_s)
    sums = fold(bins.sums, width // bins.width_s)
    whole = max(math.floor(span_s / width), 1)
    tokens = (sums[1] + sums[2])[:whole].astype(np.float64)
    capacity = tokens_per_second * width
    served, total = float(np.minimum(tokens, capacity).sum()), float(tokens.sum())
    idle = 1 - served / (whole * capacity)
    machines = max(math.ceil(float(tokens.max()) / capacity - 1e-9), 1)
    idle_for_peak = max(1 - total / (machines * whole * capacity), 0.0)
    usd = machines * usd_per_hour * whole * width / SECONDS_PER_HOUR
    return Idle(
        tokens_per_second=tokens_per_second,
        usd_per_hour=usd_per_hour,
        window_s=width,
        enough=float(np.mean(tokens <= capacity)),
        idle=idle,
        overflow=1 - served / total,
        idle_usd_per_day=idle * usd_per_hour * 24,
        machines_for_peak=machines,
        idle_for_peak=idle_for_peak,
        idle_for_peak_usd_per_day=idle_for_peak * machines * usd_per_hour * 24,
        usd_per_mtok_for_peak=usd / total * TOKENS_PER_MTOK,
    )
