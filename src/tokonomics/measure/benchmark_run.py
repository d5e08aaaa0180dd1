"""Define the result of a load test in one shape, whichever tool ran it, and decide which of its loads is best.

A run has load points (a number of users at once, or of requests a second); a point may keep its requests. If it does,
every total is the sum over them. Rates are totals over the duration, never a median of moments. TPOT is (last − first
token) ÷ (output tokens − 1) of a request; ITL is one gap between two arrivals of text; all times are seconds.

The knee of the load curve is the smallest measured load that gives 90 % of the highest output throughput: beyond it
users wait longer for little more. The best load has the lowest price per token (or, without a price, the highest
throughput) among those that meet every SLO with at most 1 % of requests failed. Nothing is interpolated. Knee and best
are chosen among loads of equal lengths, because other lengths are other work. The lightest load tells how fast an API
answers.
"""

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import check_path, write_text
from tokonomics.traffic.sessions import turn_groups
from tokonomics.traffic.slo import PERCENTILES, Slo
from tokonomics.types import Marked, Noun, copied
from tokonomics.units import requests_a_second

OWN_TOOL = "tokonomics bench"
SCHEMA_VERSION: Final = 1  # of a saved run; raised when a field changes its meaning

LONGEST_S = 1e9  # thirty years: a longer wait is a mistake in a file, as is anything beyond the next two limits
Waited = Annotated[NonNegativeFloat, Field(le=LONGEST_S)]
PerSecond = Annotated[float, Field(ge=1 / LONGEST_S, le=1e11)]  # 1,000 × what the largest services make
MeanTokens = Annotated[float, Field(ge=1e-6, le=1e8)]  # from one in a million answers to ten times the longest context
MostGpus = Annotated[PositiveInt, Field(le=100_000)]
MostStages = Annotated[PositiveInt, Field(le=1000)]


class Latencies(Noun):
    """The distribution of one latency over requests (for ITL, over gaps); None if the source does not say."""

    mean: Waited | None = None
    p50: Waited | None = None
    p90: Waited | None = None
    p95: Waited | None = None
    p99: Waited | None = None

    @property
    def typical(self) -> float | None:
        """Return the mean, which predictions are of; the median if there is no mean."""
        return self.mean if self.mean is not None else self.p50


class RequestRecord(Noun):
    """One request as its client saw it."""

    sent_s: float  # when it was due, since the point began; latencies count from here even if the client was late
    ttft_s: Waited | None = None
    tpot_s: Waited | None = None  # (last − first token) ÷ (output tokens − 1); None for an answer of one token
    e2e_s: Waited | None = None
    input_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt
    retries: NonNegativeInt = 0
    error: str | None = None
    job: NonNegativeInt | None = None  # the session that it was a turn of
    turn: PositiveInt | None = None


class Outside(Noun):
    """What was served before and after the measured window: paid for, counted by the server, not in the figures."""

    requests: NonNegativeInt = 0
    failed: NonNegativeInt = 0
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0


class MeasuredTurns(Noun):
    """The requests that were turns ``first`` to ``last`` of their session."""

    first: PositiveInt
    last: PositiveInt
    requests: NonNegativeInt
    mean_input_tokens: MeanTokens
    cached_share: float | None = None  # of their prompt tokens; None if the server does not say
    ttft_s: Latencies | None = None


class MeasuredJobs(Noun):
    """Sessions as their users saw them."""

    finished: NonNegativeInt  # whose last answer came within the window
    begun: NonNegativeInt  # with an answer within the window
    requests_per_job: NonNegativeFloat  # of those
    job_s: Latencies | None = None  # of finished ones: from when the first request was due to the last answer
    by_turn: tuple[MeasuredTurns, ...] = ()


class LoadPoint(Noun):
    concurrency: PositiveInt | None = Field(default=None, le=10**6)  # users; each sends the next request when answered
    rate: PositiveFloat | None = Field(default=None, le=1e9)  # requests a second; neither: all at once
    requests_per_s: PerSecond
    input_tokens_per_s: PerSecond  # of answered requests, cached tokens included
    output_tokens_per_s: PerSecond
    mean_input_tokens: MeanTokens
    mean_output_tokens: MeanTokens
    lengths: str | None = None  # as asked for, such as 1000 / 300; loads of one test are of equal lengths
    length_spread: float | None = Field(default=None, ge=0, lt=1)  # lengths are uniform within mean × (1 ± this)
    duration_s: PositiveFloat | None = None
    completed: NonNegativeInt | None = None
    failed: NonNegativeInt | None = None
    retries: NonNegativeInt | None = None
    input_tokens: NonNegativeInt | None = None
    cached_tokens: NonNegativeInt | None = None  # part of ``input_tokens``; None if unknown
    output_tokens: NonNegativeInt | None = None
    ttft_s: Latencies | None = None
    tpot_s: Latencies | None = None
    itl_s: Latencies | None = None
    e2e_s: Latencies | None = None
    errors: dict[str, int] = Field(default_factory=dict)  # number of failed requests by error
    outside: Outside = Outside()
    jobs: MeasuredJobs | None = None  # if users ran sessions
    stopped: str | None = None  # what ended the measurement
    precision: NonNegativeFloat | None = None  # half of the 95 % interval of TTFT or whole answer (the wider) ÷ mean
    records: tuple[RequestRecord, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def load(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency:,} user{'s' * (self.concurrency != 1)}"
        return requests_a_second(f"{float(f'{self.rate:.3g}'):g}") if self.rate is not None else "all at once"

    @property
    def size(self) -> float:
        """Return the value that orders the loads of one run."""
        return self.concurrency or self.rate or self.requests_per_s

    @property
    def error_share(self) -> float:
        tried = (self.completed or 0) + (self.failed or 0)
        return (self.failed or 0) / tried if tried else 0.0

    @model_validator(mode="after")
    def _totals_are_sums(self) -> Self:
        if not self.records:
            return self
        good = [record for record in self.records if record.error is None]
        sums = {"completed": len(good), "failed": len(self.records) - len(good)}
        sums |= {name: sum(getattr(record, name) for record in good) for name in ("input_tokens", "output_tokens")}
        for name, expected in sums.items():
            if getattr(self, name) != expected:
                raise ValueError(f"{name} is {getattr(self, name)}, but its requests add up to {expected}")
        return self


class Stated(Noun):
    """What the file itself says about the machine; None if it does not say."""

    gpu: str | None = None
    gpus: MostGpus | None = None
    tp: MostGpus | None = None
    pp: MostStages | None = None
    ep: MostGpus | None = None
    dp: MostGpus | None = None  # groups of the attention that share their experts
    engine: str | None = None
    weights: str | None = None
    tuned: bool = False  # its recipe turns on options, off by default, that reduce the host's share of the time


class BenchmarkRun(Noun):
    """A load test: who measured, which model, when, and the results of each load."""

    schema_version: Literal[1] = SCHEMA_VERSION
    tool: str
    tool_version: str | None = None
    model: str | None = None
    api: str | None = None  # ``host:model`` of the API catalogue, if an API was measured
    when: datetime | None = None
    stated: Stated = Stated()
    points: tuple[LoadPoint, ...] = Field(min_length=1)
    notes: tuple[Marked, ...] = ()

    def without_records(self) -> "BenchmarkRun":
        points = tuple(point.model_copy(update={"records": ()}) for point in self.points)
        return self.model_copy(update={"points": points})


def save_run(run: BenchmarkRun, path: Path) -> None:
    """Write the file atomically; ``importers`` read it back unchanged."""
    check_path(path, "save", (".json",))
    write_text(path, run.model_dump_json() + "\n", option("save", shorten(path.name)))


def tpot(first_s: float | None, last_s: float | None, output_tokens: int) -> float | None:
    """Return the time per token after the first."""
    if first_s is None or last_s is None or output_tokens < 2:
        return None
    return max(0.0, last_s - first_s) / (output_tokens - 1)


def latencies(values: Sequence[float] | ArrayLike, weights: ArrayLike | None = None) -> Latencies | None:
    """Return mean and percentiles; with weights, a value counts that many times."""
    seen = np.asarray(values, dtype=np.float64)
    if not len(seen):
        return None
    if weights is None:
        mean, found = float(seen.mean()), np.percentile(seen, PERCENTILES)
    else:
        counts = np.asarray(weights, dtype=np.float64)
        order = np.argsort(seen)
        reached = np.cumsum(counts[order]) / counts.sum()
        places = np.searchsorted(reached, np.asarray(PERCENTILES) / 100, side="left")
        mean, found = float(np.average(seen, weights=counts)), seen[order][np.minimum(places, len(seen) - 1)]
    return Latencies(mean=mean, **{f"p{rank}": float(at) for rank, at in zip(PERCENTILES, found, strict=True)})


def point_from_records(
    records: Iterable[RequestRecord], duration_s: float, *, cached_known: bool = False, **more: Any
) -> LoadPoint | None:
    """Return a load point computed from its requests, with ``more`` fields; None if none was answered."""
    kept = tuple(records)
    good = [record for record in kept if record.error is None]
    tokens_in, tokens_out = sum(record.input_tokens for record in good), sum(record.output_tokens for record in good)
    if not good or not tokens_in or not tokens_out:
        return None
    times = ("ttft_s", "tpot_s", "e2e_s")
    waits = {name: [wait for record in good if (wait := getattr(record, name)) is not None] for name in times}
    return LoadPoint(
        **more,
        **from_totals(duration_s, len(good), tokens_in, tokens_out),
        failed=len(kept) - len(good),
        retries=sum(record.retries for record in kept),
        cached_tokens=sum(record.cached_tokens for record in good) if cached_known else None,
        **{name: latencies(values) for name, values in waits.items()},
        errors=dict(Counter(record.error for record in kept if record.error is not None)),
        records=kept,
    )


def jobs_from_records(
    records: Sequence[RequestRecord], took_s: Sequence[float], *, cached_known: bool
) -> MeasuredJobs | None:
    """Return sessions from their requests and the finished ones' durations; None if no request was a turn of one."""
    good = [record for record in records if record.error is None and record.turn is not None]
    if not good:
        return None
    rows = []
    for first, last, chosen in turn_groups(np.asarray([record.turn for record in good], np.int32)):
        alike = [good[place] for place in chosen]
        tokens = sum(record.input_tokens for record in alike)
        waits = [record.ttft_s for record in alike if record.ttft_s is not None]
        rows.append(
            MeasuredTurns(
                first=first,
                last=last,
                requests=len(alike),
                mean_input_tokens=tokens / len(alike),
                cached_share=sum(record.cached_tokens for record in alike) / tokens if cached_known else None,
                ttft_s=latencies(waits),
            )
        )
    begun = len({record.job for record in good})
    return MeasuredJobs(
        finished=len(took_s),
        begun=begun,
        requests_per_job=len(good) / begun,
        job_s=latencies(took_s),
        by_turn=tuple(rows),
    )


def from_totals(duration_s: float, completed: int, input_tokens: float, output_tokens: float) -> dict[str, Any]:
    """Return the fields of a load point that follow from its totals: rates and mean lengths."""
    return {
        "requests_per_s": completed / duration_s,
        "input_tokens_per_s": input_tokens / duration_s,
        "output_tokens_per_s": output_tokens / duration_s,
        "mean_input_tokens": input_tokens / completed,
        "mean_output_tokens": output_tokens / completed,
        "duration_s": duration_s,
        "completed": completed,
        "input_tokens": round(input_tokens),
        "output_tokens": round(output_tokens),
    }


KNEE_SHARE = 0.9
MOST_ERRORS = 0.01
MOST_APART = 1.25  # factor up to which mean lengths count as equal, if the lengths asked for are unknown


class MeasuredSlo(Noun):
    slo: str = Field(alias="promise")
    objective_s: float = Field(alias="promised_s")
    measured_s: float | None  # None if the source does not have this statistic: not met

    @property
    def met(self) -> bool:
        return self.measured_s is not None and self.measured_s <= self.objective_s


class EqualLengths(Noun):
    """Loads of equal lengths, by their index in the run, and which of them matter."""

    points: tuple[int, ...]
    knee: int | None  # None for fewer than three loads
    best: int | None  # None if no load meets the SLOs


class LoadVerdict(Noun):
    """Which of the measured loads matter, by their index in the run."""

    knee: int | None
    best: int | None  # as in ``groups``, if there is one; None if lengths differ
    groups: tuple[EqualLengths, ...]
    slos: tuple[tuple[MeasuredSlo, ...], ...] = Field((), alias="promises")  # of each load


def slos_at(point: "LoadPoint | ApiLatency", slos: Sequence[Slo]) -> tuple[MeasuredSlo, ...]:
    """Return what was measured under each SLO; nothing for a latency that was not measured, such as that of jobs."""
    measured = [getattr(getattr(point, f"{slo.latency}_s", None), slo.statistic, None) for slo in slos]
    stated = zip(slos, measured, strict=True)
    return tuple(MeasuredSlo(slo=str(slo), objective_s=slo.seconds, measured_s=value) for slo, value in stated)


def holds(point: LoadPoint, slos: Sequence[Slo]) -> bool:
    return point.error_share <= MOST_ERRORS and all(slo.met for slo in slos_at(point, slos))


def judge(points: Sequence[LoadPoint], usd_per_mtok: Sequence[float | None], slos: Sequence[Slo] = ()) -> LoadVerdict:
    """Find the knee and the best of the measured loads, among those of equal lengths."""

    def cost(place: int) -> float:
        price = usd_per_mtok[place]
        return price if price is not None else -points[place].output_tokens_per_s

    groups = []
    for places in _equal_lengths(points):
        top = max(points[place].output_tokens_per_s for place in places)
        order = sorted(places, key=lambda place: points[place].size)
        knee = next(place for place in order if points[place].output_tokens_per_s >= KNEE_SHARE * top)
        held = [place for place in order if holds(points[place], slos)]
        best = min(held, key=cost) if held else None
        groups.append(EqualLengths(points=tuple(places), knee=knee if len(places) > 2 else None, best=best))
    alone = groups[0] if len(groups) == 1 else None
    return LoadVerdict(
        knee=alone.knee if alone else None,
        best=alone.best if alone else None,
        groups=tuple(groups),
        slos=tuple(slos_at(point, slos) for point in points) if slos else (),
    )


def _equal_lengths(points: Sequence[LoadPoint]) -> list[list[int]]:
    """Return groups of loads whose mean lengths are close to those of the first of them."""
    groups: dict[int, list[int]] = {}
    for place, point in enumerate(points):
        first = next((first for first in groups if _have_equal_lengths(points[first], point)), place)
        groups.setdefault(first, []).append(place)
    return list(groups.values())


def _have_equal_lengths(one: LoadPoint, other: LoadPoint) -> bool:
    """Compare the lengths asked for, or the means; a few varying lengths may have very different means by chance."""
    if one.lengths and one.lengths == other.lengths:
        return True
    pairs = (one.mean_input_tokens, other.mean_input_tokens), (one.mean_output_tokens, other.mean_output_tokens)
    return all(max(pair) <= MOST_APART * min(pair) for pair in pairs)


class ApiLatency(Noun):
    """What a caller sees with almost no other load: the lightest load that was measured."""

    api: str  # ``host:model``
    load: str
    requests: NonNegativeInt | None
    mean_input_tokens: PositiveFloat
    mean_output_tokens: PositiveFloat
    ttft_p50_s: NonNegativeFloat | None
    ttft_p99_s: NonNegativeFloat | None
    tpot_p50_s: NonNegativeFloat | None
    tokens_per_s: PositiveFloat | None  # speed of one answer after its first token
    measured_on: dt.date | None
    measured_by: str
    ttft_s: Latencies | None = None  # every percentile that was measured
    tpot_s: Latencies | None = None
    e2e_s: Latencies | None = None


def api_latency(run: BenchmarkRun, where: str) -> ApiLatency:
    """Return how fast the API that a run names answers."""
    if run.api is None:
        fix = f"Measure it as `tokonomics bench URL` with {option('api', 'host:model')}, and save that."
        raise BadInput("does not say which API was measured", where=where, fix=fix)
    point = min(run.points, key=lambda point: point.size)
    ttft, tpot = (point.ttft_s or Latencies()), (point.tpot_s or Latencies())
    ttft_s, tpot_s = (spread.mean if spread.p50 is None else spread.p50 for spread in (ttft, tpot))
    return ApiLatency(
        api=run.api,
        load=point.load,
        requests=point.completed,
        mean_input_tokens=point.mean_input_tokens,
        mean_output_tokens=point.mean_output_tokens,
        ttft_p50_s=ttft_s,
        ttft_p99_s=ttft.p99,
        tpot_p50_s=tpot_s,
        tokens_per_s=1 / tpot_s if tpot_s else None,
        measured_on=run.when.date() if run.when else None,
        measured_by=run.tool,
        **copied(point, "ttft_s", "tpot_s", "e2e_s"),
    )
