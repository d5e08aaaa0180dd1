"""aiperf's and genai-perf's ``profile_export_*.json``: one object a metric, with its unit; and aiperf's request lines.

Both call ``inter_token_latency`` what the field calls TPOT: (latency − first token) ÷ (tokens − 1) of a request; gaps
between chunks are ``inter_chunk_latency``. genai-perf states no totals and no duration: they follow from the number
of requests, its rate and the mean lengths. Names: aiperf 0.13, genai-perf 0.0.16.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import (
    BenchmarkRun,
    LoadPoint,
    RequestRecord,
    from_totals,
    latencies,
    point_from_records,
)
from tokonomics.measure.importers.fields import Format, ResultFields, moment, stated_latencies, unit_s, users_of


def _profile(documents: list[Any], where: str) -> BenchmarkRun:
    profile = ResultFields(documents[0], where)
    settings = profile.values.get("input_config") or {}
    throughput = profile.inside("request_throughput").positive("avg")
    # A metric may say how many values it has, where the file has no count of its requests.
    completed = profile.maybe("request_count").maybe_count("avg")
    completed = completed or profile.maybe("request_latency").maybe_count("count")
    if not completed:
        raise profile.wrong("request_count", "is missing: the number of requests cannot be told")
    duration_s = _time_s(profile, "benchmark_duration", "avg") or completed / throughput
    tokens_in = _value(profile, "total_isl") or completed * profile.inside("input_sequence_length").positive("avg")
    tokens_out = _value(profile, "total_osl") or completed * profile.inside("output_sequence_length").positive("avg")
    notes = [] if "total_osl" in profile else ["totals follow from mean lengths: the file has no sums"]
    if profile.values.get("was_cancelled") or profile.values.get("is_complete") is False:
        notes.append("the run was cut short")
    rate, limit = _setting(settings, "request_rate"), _setting(settings, "concurrency")
    listed = [ResultFields(error, where).maybe_count("count") or 0 for _, error in profile.listed("error_summary")]
    failed = round(_value(profile, "error_request_count") or sum(listed))
    users = users_of(round(limit) if limit else None, completed + failed)
    load: dict[str, Any] = {"rate": rate} if rate else users
    names = ("time_to_first_token", "inter_token_latency", "inter_chunk_latency", "request_latency")
    point = LoadPoint(
        **{**load, "notes": (*notes, *load.get("notes", ()))},
        **from_totals(duration_s, completed, tokens_in, tokens_out),
        **stated_latencies(profile, names, "avg", "unit", "ms"),
        failed=failed,
    )
    return BenchmarkRun(
        tool="aiperf" if "schema_version" in profile or "benchmark_duration" in profile else "genai-perf",
        tool_version=profile.text("aiperf_version"),
        model=next((name for key in ("model_names", "model") for name in _names(settings, key)), None),
        when=moment(profile.text("start_time")),
        points=(point,),
    )


def read_records(documents: list[Any], where: str) -> BenchmarkRun:
    """Every request of a run; its load is not in the file."""
    lines = [ResultFields(document, where, f"line {at}") for at, document in enumerate(documents, 1)]
    starts = [line.inside("metadata").positive("request_start_ns") * 1e-9 for line in lines]
    # A request that never ended, or does not say when, held its place for no time that is known.
    told = [line.inside("metadata").maybe_number("request_end_ns") for line in lines]
    ends = [end * 1e-9 if end else start for end, start in zip(told, starts, strict=True)]
    gaps: list[float] = []
    records = [_record(line, start - min(starts), gaps) for line, start in zip(lines, starts, strict=True)]
    duration_s = max(ends) - min(starts)
    if duration_s <= 0:
        raise BadInput("no request says when it ended", where=where)
    point = point_from_records(records, duration_s, itl_s=latencies(gaps))
    if point is None:
        raise BadInput("no request was answered", where=where)
    notes = ("the file does not say under which load: most requests at once is taken as the number of users",)
    changes = sorted([(start, 1) for start in starts] + [(end, -1) for end in ends])
    users = max(1, *accumulate(change for _, change in changes))
    return BenchmarkRun(tool="aiperf", points=(point.model_copy(update={"concurrency": users, "notes": notes}),))


def _record(line: ResultFields, sent_s: float, gaps: list[float]) -> RequestRecord:
    metrics, failed = line.maybe("metrics"), line.values.get("error")
    if failed:
        kind = line.maybe("error").text("type") or "error"
        return RequestRecord(sent_s=sent_s, input_tokens=0, output_tokens=0, error=kind)
    chunks = metrics.maybe("inter_chunk_latency")
    gaps += [number * unit_s(chunks, "unit", "ms") for number in chunks.numbers("value")] if chunks.values else []
    return RequestRecord(
        sent_s=sent_s,
        ttft_s=_time_s(metrics, "time_to_first_token"),
        tpot_s=_time_s(metrics, "inter_token_latency"),
        e2e_s=_time_s(metrics, "request_latency"),
        input_tokens=metrics.inside("input_sequence_length").count("value"),
        output_tokens=metrics.inside("output_sequence_length").count("value"),
    )


def _time_s(metrics: ResultFields, name: str, field: str = "value") -> float | None:
    metric = metrics.maybe(name)
    value = metric.maybe_number(field)
    return None if value is None else value * unit_s(metric, "unit", "ms")


def _value(profile: ResultFields, name: str) -> float | None:
    return profile.maybe(name).maybe_number("avg")


def _setting(settings: Any, name: str) -> float | None:
    """A number of that name anywhere in the settings, whose shape changes from version to version."""
    for value in _found(settings, name):
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= sys.float_info.max:
            return float(value)
    return None


def _names(settings: Any, name: str) -> Iterator[str]:
    for value in _found(settings, name):
        names = value if isinstance(value, list) else [value]
        yield from (model for model in names if isinstance(model, str) and model)


def _found(settings: Any, name: str, depth: int = 6) -> Iterator[Any]:
    if isinstance(settings, Mapping) and depth:
        if name in settings:
            yield settings[name]
        for value in settings.values():
            yield from _found(value, name, depth - 1)


PROFILE = Format(
    "aiperf or genai-perf",
    lambda keys: any(
        isinstance(metric := keys.get(name), dict) and "avg" in metric
        for name in ("request_throughput", "request_latency")
    ),
    _profile,
    many=False,
)
RECORDS = Format(
    "aiperf requests (profile_export.jsonl)",
    lambda keys: {"metadata", "metrics"} <= keys.keys() and "benchmarks" not in keys,
    read_records,
)
