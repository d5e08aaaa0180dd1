"""The few figures of an answer that become columns of the results; the whole answer lies beside them.

The same column has the same name and unit whatever verb it comes from. A verb without a list of its own gives what
stands at the top of its answer: numbers, names, and the middle of an interval.
"""

from collections.abc import Mapping
from typing import Any

from tokonomics.errors import UnknownName

_LATENCIES = {
    f"{name}_{statistic}_s": f"{name}_s.{statistic}"
    for name in ("ttft", "tpot", "e2e")
    for statistic in ("p50", "p99", "mean")
}
_CANDIDATE = {
    "usd_per_month": "usd_per_month", "usd_per_mtok": "usd_per_mtok.blended",
    "usd_per_mtok_output": "usd_per_mtok.output", "replicas": "replicas", "gpu": "gpu",
    "gpus_per_replica": "gpus_per_replica", "gpus_paid": "gpus_paid", "tp": "tp", "pp": "pp", "ep": "ep",
    "weights": "weights", "kv": "kv", "engine": "engine", "provider": "provider", "region": "region",
    "instance": "instance", "terms": "terms", "utilization": "utilization", **_LATENCIES,
    "capacity_requests_per_s": "capacity_requests_per_s",
}  # fmt: skip
_SERVED = {
    "slo_kept": "slo_kept", "slo_attainment": "slo_attainment", "requests_per_s": "requests_per_s",
    "output_tokens_per_s": "output_tokens_per_s", "goodput_per_s": "goodput_per_s", "utilization": "utilization",
    "load_share": "load_share", "batch": "batch", "kv_peak_share": "kv_peak_share", "preemptions": "preemptions",
    "failed_requests": "failed", "replicas": "peak_replicas", **_LATENCIES,
}  # fmt: skip
_COST = {
    "usd_per_mtok": "cost.usd_per_mtok", "usd_per_mtok_output": "cost.usd_per_mtok_output",
    "usd_per_replica_hour": "cost.usd_per_replica_hour",
}  # fmt: skip
_PATHS: dict[str, dict[str, str]] = {
    "plan": {name: f"best.{path}" for name, path in _CANDIDATE.items()} | {"holds_requests_per_s": "headroom.rate"},
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
"""How long the answer took: not part of what it says, and another number every time."""


def check_figure(verb: str, name: str) -> None:
    """Refuse a figure that no answer of the verb can have, before any is asked for."""
    if verb in _PATHS and name not in _PATHS[verb]:
        raise UnknownName("figure", name, _PATHS[verb])


def figures_of(verb: str, answer: Any) -> dict[str, Any]:
    """Columns by name; what the answer does not have is left out."""
    if not isinstance(answer, Mapping):
        return {}
    if verb == "plan" and isinstance(answer.get("models"), list):
        answer = {"best": answer["models"][0]} if answer["models"] else {}
    if verb not in _PATHS:
        return _top(answer)
    found = {name: _at(answer, path) for name, path in _PATHS[verb].items()}
    return {name: value for name, value in found.items() if value is not None}


def untimed(answer: Any) -> Any:
    """The answer without the time it took."""
    if isinstance(answer, Mapping):
        return {name: untimed(value) for name, value in answer.items() if name not in TIMINGS}
    return [untimed(each) for each in answer] if isinstance(answer, list | tuple) else answer


def _at(answer: Any, path: str) -> Any:
    for name in path.split("."):
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    return answer if isinstance(answer, str | int | float | bool) else None


def _top(answer: Mapping[str, Any]) -> dict[str, Any]:
    made = {}
    for name, value in answer.items():
        middle = value.get("mid") if isinstance(value, Mapping) and {"low", "mid", "high"} <= value.keys() else value
        if isinstance(middle, str | int | float | bool):
            made[name] = middle
    return made
