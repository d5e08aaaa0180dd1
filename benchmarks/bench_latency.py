"""Compare how long whole requests took on a real vLLM with what is predicted: mean absolute percentage errors.

    python -m benchmarks.bench_latency

A request's end-to-end latency is TTFT + (output − 1) × TPOT. Every load whose requests were recorded one by one is
simulated as it was sent, by today's model on the default host: closed loops and arrivals of ``vllm_h200.json.xz``,
plans with headroom, a trace near saturation under three sets of flags, replays of experts, and the five servers that
were predicted blind (by today's model these are no longer blind: ``bench_blind.py`` has what was said before). Of each
load the mean, p90 and p99 over its requests are compared; a group's error is the mean of |predicted ÷ measured − 1|
over its loads. Loads of one user are prompts alone and left out, as in a mean they would count as much as any other.
"""

import gzip
import json
import lzma
import platform
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks import bench_blind, bench_headroom
from benchmarks.bench_experts import COLLAPSED as SAME_EXPERTS
from benchmarks.bench_experts import DATA as EXPERTS
from benchmarks.bench_experts import MOST_SEQUENCES, MOST_TOKENS
from benchmarks.bench_vllm import BUDGETS, COLLAPSED, FITS, comparable
from numpy.typing import NDArray

from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.trace import make_trace
from tokonomics.types import today

HERE = Path(__file__).parent
Floats = NDArray[np.float64]
SEQUENCES = 256
"""The limit of the servers of ``vllm_h200.json.xz``."""
STANDS = {
    "left out": "Qwen3 32B and 4B: nothing was fitted on them",
    "shaped": "sessions whose log of steps taught the host",
    "seen": "first runs of two models",
}


class Load(NamedTuple):
    """A load as it was served: its requests, and the seconds to the first token and per token of each."""

    group: str
    name: str
    model: str
    weights: str
    visited: int | None  # experts that dummy weights sent every token to; None: all
    users: int | None
    max_sequences: int
    max_batched_tokens: int | None
    requests: Sequence[Sequence[float]]  # when, prompt tokens, output tokens
    measured: Sequence[Sequence[float | None]]


def main() -> None:
    scored = [score(load) for load in loads()]
    groups = {}
    print(f"{'mean absolute percentage error over loads':58}{'loads':>5}{'requests':>9}  " + "  ".join(FIGURES))
    for name in [*dict.fromkeys(row["group"] for row in scored), "all"]:
        found = [row for row in scored if name in (row["group"], "all")]
        groups[name] = {
            "loads": len(found), "requests": sum(row["requests"] for row in found),
            "errors": {figure: statistics.fmean(abs(row["errors"][figure]) for row in found) for figure in FIGURES},
            "bias": statistics.median(row["errors"]["end to end mean"] for row in found),
        }  # fmt: skip
        cells = "  ".join(f"{groups[name]['errors'][figure]:>{len(figure)}.1%}" for figure in FIGURES)
        print(f"{name:58}{len(found):>5}{groups[name]['requests']:>9,}  {cells}")
    record = {
        "date": today().isoformat(), "machine": f"{platform.system()} {platform.machine()}",
        "command": "python -m benchmarks.bench_latency", "groups": groups, "loads": scored,
    }  # fmt: skip
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results" / "latency.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


FIGURES = ("TPOT mean", "TTFT mean", "end to end mean", "end to end p90", "end to end p99")


def loads() -> Iterator[Load]:
    """Yield all loads of several users, or at a rate, of which every request was recorded."""
    yield from _sessions()
    for case in bench_headroom.read()["cases"]:
        kind = "experts" if "a3b" in case["model"] else "dense models"
        for load in case["loads"]:
            rate = case["rate"] * load["times"]
            yield Load(f"plans with headroom, {kind}", f"{rate:g}/s", case["model"], "bf16", None, None,
                       case["max_sequences"], MOST_TOKENS, load["requests"], load["measured"])  # fmt: skip
    flags = _opened(bench_headroom.FLAGS)
    for run in flags["runs"]:
        yield Load("one trace near saturation, Llama 3.1 8B", run["flags"], flags["model"], run["weights"], None, None,
                   run["max_sequences"], MOST_TOKENS, flags["requests"], run["measured"])  # fmt: skip
    replays, served = _opened(EXPERTS / "replays.json.gz"), "qwen3-30b-a3b-fp8"
    for load in replays["loads"]:
        if load["users"] != 1:
            rows = load["rows"]
            yield Load("replays, experts in FP8 blocks", load["load"], "qwen3-30b-a3b", "fp8", SAME_EXPERTS[served],
                       load["users"], MOST_SEQUENCES, MOST_TOKENS, [row[:3] for row in rows],
                       [row[3:5] for row in rows])  # fmt: skip
    for case in bench_blind.read()["cases"]:
        kind = "dense model" if case["name"].startswith("mistral") else "experts"
        for load in case["loads"]:
            if "measured" in load and load.get("users") != 1:
                yield Load(f"servers that were predicted blind, {kind}", load["name"], case["model"], case["weights"],
                           None, load.get("users"), MOST_SEQUENCES, MOST_TOKENS, load["requests"],
                           load["measured"])  # fmt: skip


def _sessions() -> Iterator[Load]:
    for session in _opened(HERE / "data" / "vllm_h200.json.xz")["sessions"]:
        name, group = session["name"], STANDS[FITS.get(session["name"], "seen")]
        for load in session["loads"]:
            asked, recorded = load["asked"], load.get("requests")
            if asked["users"] == 1 or not recorded or not comparable(name, load):
                continue
            columns = (recorded[column] for column in ("start", "input", "output", "ttft", "span"))
            rows = list(zip(*columns, strict=True))
            said = f"{asked['input']}/{asked['output']}, {asked['users'] or asked['rate']}"
            yield Load(group, said, session["model"], session["quant"] or "bf16", COLLAPSED.get(name), asked["users"],
                       SEQUENCES, BUDGETS.get(name), [row[:3] for row in rows],
                       [_of_span(*row[2:]) for row in rows])  # fmt: skip


def _of_span(output: int, ttft_s: float, span_s: float) -> tuple[float, float | None]:
    return ttft_s, span_s / (output - 1) if output > 1 else None


def _opened(path: Path) -> dict[str, Any]:
    with (lzma if path.suffix == ".xz" else gzip).open(path, "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def score(load: Load) -> dict[str, Any]:
    """Return a load's figures, measured and predicted, and their errors."""
    sent = sorted(zip(load.requests, load.measured, strict=True), key=lambda pair: pair[0][0])
    answered = [(request, times) for request, times in sent if times[0] is not None]
    outputs = np.array([request[2] for request, _ in answered])
    ttft_s, tpot_s = (np.array([times[at] or 0.0 for _, times in answered], np.float64) for at in (0, 1))
    measured, predicted = figures(outputs, ttft_s, tpot_s), _simulated([request for request, _ in sent], load)
    return {
        "group": load.group, "model": load.model, "weights": load.weights, "load": load.name,
        "requests": len(answered), "measured": measured, "predicted": predicted,
        "errors": {figure: predicted[figure] / measured[figure] - 1 for figure in FIGURES},
    }  # fmt: skip


def figures(outputs: NDArray[Any], ttft_s: Floats, tpot_s: Floats) -> dict[str, float]:
    """Return the figures of a load from the times of its requests; one-token answers have no time per token."""
    whole_s = ttft_s + (outputs - 1) * tpot_s
    values = tpot_s[outputs > 1].mean(), ttft_s.mean(), whole_s.mean(), *np.percentile(whole_s, (90, 99))
    return {figure: float(value) for figure, value in zip(FIGURES, values, strict=True)}


def _simulated(requests: Sequence[Sequence[float]], load: Load) -> dict[str, float]:
    made = stated_deployment(load.model, "H200", 1, 1, 1, 1, load.weights, "bf16", "vllm")
    made = made.model_copy(update={"visited_experts": load.visited}) if load.visited else made
    arrival_s, inputs, outputs = (np.array(column) for column in zip(*requests, strict=True))
    trace = make_trace(np.zeros(len(inputs)) if load.users else arrival_s - arrival_s[0], inputs, outputs)
    served = simulate(
        made,
        trace,
        FleetSettings(users=load.users),
        max_sequences=load.max_sequences,
        max_batched_tokens=load.max_batched_tokens,
    ).served
    first_s, whole_s = served.first_token_s - served.arrival_s, served.finish_s - served.first_token_s
    return figures(trace.output_tokens, first_s, whole_s / np.maximum(trace.output_tokens - 1, 1))


if __name__ == "__main__":
    main()
