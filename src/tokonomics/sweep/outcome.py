"""Record the outcome of each point (an answer, a refusal or a failure), and summarise a sweep.

The few figures of an answer that become columns of the results have the same name and unit for every verb; the whole
answer is kept beside them. A verb without a list of its own gives the top level of its answer: numbers, names, and the
middle of an interval. A point counts if it was answered and meets its SLO, if it has one. Lower is better, except for
rates and attainments.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tokonomics.errors import BadInput, UnknownName, did_you_mean, shorten
from tokonomics.sweep.points import SweepPoint

OUT_OF_MEMORY = "needs more memory than a worker may take (--memory)"
"""The error of a point whose allocation failed; its worker is replaced."""


class Status(StrEnum):
    OK = "ok"
    NOTHING = "nothing"  # an answer, but nothing meets the request
    REFUSED = "refused"  # the inputs have no answer: does not fit, unknown name. The same every time.
    FAILED = "failed"  # out of time, out of memory, or the worker died: may succeed another time


@dataclass(frozen=True)
class PointOutcome:
    """One row of the results, without the point's inputs."""

    status: Status
    error: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    answer: str | None = None  # the verb's whole JSON
    seconds: float = 0.0


_LATENCIES = {
    f"{name}_{statistic}_s": f"{name}_s.{statistic}"
    for name in ("ttft", "tpot", "e2e")
    for statistic in ("p50", "p99", "mean")
}
_CANDIDATE = {
    "usd_per_month": "usd_per_month", "usd_per_mtok": "usd_per_mtok.blended",
    "usd_per_mtok_output": "usd_per_mtok.output", "replicas": "replicas", "gpu": "gpu",
    "gpus_per_replica": "gpus_per_replica", "gpus_paid": "gpus_paid", "tp": "tp", "pp": "pp", "ep": "ep", "dp": "dp",
    "weights": "weights", "kv": "kv", "engine": "engine", "provider": "provider", "region": "region",
    "instance": "instance", "terms": "terms", "load_share": "load_share", **_LATENCIES,
    "capacity_requests_per_s": "capacity_requests_per_s",
}  # fmt: skip
_SERVED = {
    "slo_kept": "slo_kept", "slo_attainment": "slo_attainment", "requests_per_s": "requests_per_s",
    "output_tokens_per_s": "output_tokens_per_s", "goodput_per_s": "goodput_per_s", "busy_share": "busy_share",
    "load_share": "load_share", "batch": "batch", "kv_peak_share": "kv_peak_share", "preemptions": "preemptions",
    "failed_requests": "failed", "replicas": "peak_replicas", **_LATENCIES,
}  # fmt: skip
_COST = {
    "usd_per_mtok": "cost.usd_per_mtok", "usd_per_mtok_output": "cost.usd_per_mtok_output",
    "usd_per_replica_hour": "cost.usd_per_replica_hour",
}  # fmt: skip
_PATHS: dict[str, dict[str, str]] = {
    "plan": {name: f"best.{path}" for name, path in _CANDIDATE.items()}
    | {"holds_requests_per_s": "headroom.rate", "api": "api.api.name", "api_usd_per_month": "api.usd_per_month"},
    "simulate": {"deployment": "deployment", **_COST, **_SERVED},
    "capacity": {
        "deployment": "deployment",
        "holds_requests_per_s": "rate",
        "replicas": "replicas",
        **_COST,
        **{name: f"highest_rate.outcome.{path}" for name, path in _SERVED.items() if name != "replicas"},
    },
}
TIMINGS = frozenset({"wall_s", "simulated_requests_per_s", "solve_s"})
"""Figures that say how long the answer took: they differ every time and are not part of the answer."""


def check_figure(verb: str, name: str) -> None:
    """Refuse a figure that no answer of the verb can have, before any is asked for."""
    if verb in _PATHS and name not in _PATHS[verb]:
        raise UnknownName("figure", name, _PATHS[verb])


def figures_of(verb: str, answer: Any) -> dict[str, Any]:
    """Return the columns by name; figures that the answer does not have are left out."""
    if not isinstance(answer, Mapping):
        return {}
    if verb == "plan" and isinstance(answer.get("models"), list):
        answer = {"best": answer["models"][0]} if answer["models"] else {}
    if verb not in _PATHS:
        return _top(answer)
    found = {name: _at(answer, path) for name, path in _PATHS[verb].items()}
    return {name: value for name, value in found.items() if value is not None}


def untimed(answer: Any) -> Any:
    """Return the answer without the time it took."""
    if isinstance(answer, Mapping):
        return {name: untimed(value) for name, value in answer.items() if name not in TIMINGS}
    return [untimed(part) for part in answer] if isinstance(answer, list | tuple) else answer


def _at(answer: Any, path: str) -> Any:
    for name in path.split("."):
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    return answer if isinstance(answer, str | int | float | bool) else None


def _top(answer: Mapping[str, Any]) -> dict[str, Any]:
    figures = {}
    for name, value in answer.items():
        middle = value.get("mid") if isinstance(value, Mapping) and {"low", "mid", "high"} <= value.keys() else value
        if isinstance(middle, str | int | float | bool):
            figures[name] = middle
    return figures


DEFAULT_BY = ("usd_per_mtok", "usd_per_month", "holds_requests_per_s")
_MORE_IS_BETTER = ("requests_per_s", "tokens_per_s", "goodput_per_s", "slo_attainment", "max_sequences")
_MOST_VALUES = 40  # rows in the table of a key: a random key has as many values as there are points


@dataclass(frozen=True)
class SweepRow:
    """A point and its outcome."""

    point: SweepPoint
    outcome: PointOutcome

    @property
    def kept(self) -> bool:
        return self.outcome.status is Status.OK and self.outcome.figures.get("slo_kept") is not False

    def plain(self) -> dict[str, Any]:
        return {
            "point": self.point.place,
            "id": self.point.id,
            **{f"over_{key}": as_numbers([value])[0] for key, value in self.point.over.items()},
            **self.outcome.figures,
        }


def as_numbers(texts: Sequence[str]) -> Sequence[int | float | str]:
    """Return the texts as numbers if all of them are numbers."""
    for kind in (int, float):
        with suppress(ValueError):
            return [kind(text) for text in texts]
    return texts


@dataclass(frozen=True)
class SweptValue:
    """One value of one key, with the number of its points that meet the SLO, and the best of them."""

    value: str
    points: int
    kept: int
    best: SweepRow | None


@dataclass(frozen=True)
class SweepSummary:
    verb: str
    keys: tuple[str, ...]
    by: str | None  # the figure that ranks; None if no answer has one
    rows: tuple[SweepRow, ...]
    ranked: tuple[SweepRow, ...]
    values: Mapping[str, tuple[SweptValue, ...]]  # by key, in the order given
    counts: Mapping[str, int]  # by status
    reasons: tuple[tuple[str, int], ...]  # why points have no answer, the most frequent first
    targets: bool


def summary_of(verb: str, keys: Sequence[str], rows: Sequence[SweepRow], by: str | None, targets: bool) -> SweepSummary:
    """Summarise a sweep, the best points first."""
    columns = list(dict.fromkeys(name for row in rows for name in row.outcome.figures))
    chosen = _chosen(by, columns, rows)
    ranked = sorted(
        (row for row in rows if row.kept and chosen and _number(row.outcome.figures.get(chosen)) is not None),
        key=lambda row: (worth(row, chosen), row.point.place),
    )
    values: dict[str, tuple[SweptValue, ...]] = {}
    for key in keys:
        rows_with: dict[str, list[SweepRow]] = {}
        for row in rows:
            rows_with.setdefault(row.point.over[key], []).append(row)
        if len(rows_with) <= _MOST_VALUES:
            best = {row.point.over[key]: row for row in reversed(ranked)}
            values[key] = tuple(
                SweptValue(value, len(mine), sum(row.kept for row in mine), best.get(value))
                for value, mine in rows_with.items()
            )
    counts = Counter(str(row.outcome.status) for row in rows)
    reasons = Counter(row.outcome.error or "" for row in rows if row.outcome.status is not Status.OK)
    return SweepSummary(
        verb, tuple(keys), chosen, tuple(rows), tuple(ranked), values,
        {str(status): counts.get(str(status), 0) for status in Status}, tuple(reasons.most_common()), targets,
    )  # fmt: skip


def worth(row: SweepRow, by: str | None) -> float:
    """Return the value to rank a point by; smaller is better."""
    value = _number(row.outcome.figures.get(by or "")) or 0.0
    return -value if more_is_better(by) else value


def more_is_better(by: str | None) -> bool:
    return bool(by) and str(by).endswith(_MORE_IS_BETTER)


def _chosen(by: str | None, columns: Sequence[str], rows: Sequence[SweepRow]) -> str | None:
    if by is None:
        return next((name for name in DEFAULT_BY if name in columns), None)
    name, known = by.replace("-", "_"), f"Known figures: {', '.join(columns)}."
    if columns and name not in columns:
        fix = did_you_mean(by, columns) or known
        raise BadInput(f"no answer has a figure '{shorten(by)}'", where="--by", fix=fix)
    if columns and all(_number(row.outcome.figures.get(name)) is None for row in rows):
        raise BadInput("is not a number", where=f"--by {shorten(by)}", fix=known)
    return name


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_plain(summary: SweepSummary, top: int) -> dict[str, Any]:
    return {
        "verb": summary.verb,
        "over": list(summary.keys),
        "points": len(summary.rows),
        "counts": dict(summary.counts),
        "kept": sum(row.kept for row in summary.rows),
        "reasons": [{"reason": reason, "points": count} for reason, count in summary.reasons],
        "by": summary.by,
        "best": [row.plain() for row in summary.ranked[:top]],
        "values": {
            key: [{**vars(swept), "best": swept.best and swept.best.plain()} for swept in values]
            for key, values in summary.values.items()
        },
    }
