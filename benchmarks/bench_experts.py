"""Compare predictions of experts with a real vLLM: steps, loads, the highest rate; prints the tables and records them.

    python -m benchmarks.bench_experts

Decode steps and prompts of ``data/vllm_h200_experts/summary.csv.gz``; loads of its ``rates.csv``, ``loads.csv`` and
``replays.json.gz``, and of ``vllm_h200_headroom.json.gz``. A load is simulated request by request as it was sent,
twice: on the default host, and on the host that served it where a small launch was timed there. Where dummy weights
sent every token to the same experts, so does the prediction (``visited_experts``). Runs with real weights are others'
and published (``bench_accuracy.py``).

What taught: launches of the machines of ``summary.csv.gz`` (``fit_engines.fit_hosts``), and decode steps of
qwen3-30b-a3b-fp8-uniform at 4 to 128 sequences (``fit_experts``). No latency taught anything, and no load of the
third machine, of the headroom runs or of the replays taught anything but the default host, which is the median of six:
two of them are the third machine's and the headroom's.
"""

import csv
import gzip
import json
import platform
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks.bench_headroom import errors_of, highest_rate, signed

from tokonomics.measure.calibrate import calibrate
from tokonomics.measure.evidence import Evidence
from tokonomics.measure.measurements import Measurement, Metric, Mode, RunFacts, Statistic
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.measure.validate import RunLoad, simulated
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.overhead import host, overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_experts"
FIGURES = {
    "TPOT p50": (Metric.tpot_s, Statistic.p50),
    "TPOT p99": (Metric.tpot_s, Statistic.p99),
    "TTFT p50": (Metric.ttft_s, Statistic.p50),
    "TTFT p99": (Metric.ttft_s, Statistic.p99),
}
SMALL_LAUNCH_S = {"1": 7.0e-6, "2": 10.0e-6, "3": 9.1e-6, "headroom": 7.1e-6, "blind": 5.9e-6}
"""PyTorch's ``add_`` on each machine (README there); the headroom runs' is placed by launches (``fit_engines``)."""
COLLAPSED = {"qwen3-30b-a3b-fp8": 8, "deepseek-v2-lite": 6}
"""Experts that dummy weights sent all tokens to, by the name of the server."""
GRAPH_TOKENS = 512  # sequences of the largest captured step
MIXTRAL_LAYERS = 8  # measured with so many, which the catalogue's model has not
MOST_SEQUENCES, MOST_TOKENS = 1024, 8192
LONGEST_ANSWER = 400  # to which the trace of ``loads.csv`` was cut
LIMITS = {
    ("rates", "qwen3-30b-a3b-fp8, spread"): 0.040,
    ("rates", "qwen3-30b-a3b"): 0.028,
    ("replays", "qwen3-30b-a3b-fp8, 8 experts visited"): 0.020,
}
"""An SLO on the TPOT p99 of each series of rates that some of its loads meet and others miss."""


class Load(NamedTuple):
    """A load as it was served, with what was measured of it."""

    source: str
    series: str
    name: str
    deployment: Deployment
    run: RunLoad
    measured: dict[str, float]
    machine: str | None
    rate: float | None  # that came, requests a second


def main() -> None:
    steps = list(score_steps())
    found_by_calibrate = list(calibrated())
    loads = [*rates(), *headroom(), *replays(), *closed_loops()]
    scored = [score(load) for load in loads]
    print(f"\n{'loads':52}", "  ".join(f"{figure:>22}" for figure in FIGURES))
    for row in scored:
        cells = (
            f"{row['measured'][figure] * 1e3:8.1f} {signed(error):>5} {own}" if figure in row["errors"] else " " * 22
            for figure in FIGURES
            for error, own in [(row["errors"].get(figure, 0.0), _or_nothing(row["on_own_host"].get(figure)))]
        )
        print(f"{row['source']:9}{row['series']:36}{row['load']:12}", "  ".join(cells))
    groups = {
        source: {where: _summed(scored, source, where) for where in ("errors", "on_own_host")}
        for source in dict.fromkeys(load.source for load in loads)
    }
    print("\nmedian error (worst; with its sign), on the default host and on its own")
    for source, found in groups.items():
        for where, figures in found.items():
            shown = "  ".join(
                f"{figure} {value['median']:.1%} ({value['worst']:.0%}; {value['bias']:+z.1%})"
                for figure, value in figures.items()
            )
            print(f"{source:10}{'its own' if where == 'on_own_host' else 'default':9}{shown}")
    limits = list(highest_rates(scored))
    for row in limits:
        print(f"highest rate with a TPOT p99 of {row['slo_s'] * 1e3:.0f} ms, {row['series']}: measured "
              f"{row['measured']:.2f}/s, predicted {row['predicted']:.2f}/s, {signed(row['error'])}")  # fmt: skip
    record = {
        "date": today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}",
        "command": "python -m benchmarks.bench_experts",
        "host_us": host().launch_s * 1e6,
        "steps": steps,
        "calibrated": found_by_calibrate,
        "groups": groups,
        "highest_rates": limits,
        "loads": scored,
    }
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results" / "experts.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _or_nothing(error: float | None) -> str:
    return "       " if error is None else f"({signed(error):>5})"


def _table(name: str) -> list[dict[str, str]]:
    path = DATA / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _deployment(served: str, *, collapsed: bool) -> Deployment:
    """Return what a server of the step logs ran, by its name there."""
    name = served.removesuffix("-fp8")
    made = stated_deployment(name, "H200", 1, 1, 1, 1, "fp8" if name != served else "bf16", None, "vllm")
    visited = COLLAPSED.get(served) if collapsed else None
    return made.model_copy(update={"visited_experts": visited}) if visited else made


def score_steps() -> Iterator[dict[str, Any]]:
    """Yield the errors of decode steps in a graph and of prompts, by server; prompts on the machine's own host."""
    servers: dict[str, list[dict[str, str]]] = {}
    for row in _table("summary.csv.gz"):
        servers.setdefault(row["model"], []).append(row)
    print("steps: median error (bias), n; decode steps in a graph, those beyond it, prompts alone")
    for server, rows in servers.items():
        if "graphs" in server:
            continue
        plain = server.removesuffix("-uniform").removesuffix("-again")
        if "mixtral" in server:
            made = stated_deployment("mixtral-8x7b", "H200", 1, 1, 1, 1, "bf16", None, "vllm")
            groups = tuple(group.model_copy(update={"count": MIXTRAL_LAYERS}) for group in made.model.groups)
            made = made.model_copy(update={"model": made.model.model_copy(update={"groups": groups})})
        else:
            made = _deployment(plain, collapsed=plain == server)
        steps = StepModel(made, overhead(made.engine).on_host(SMALL_LAUNCH_S[rows[0]["machine"]]))
        errors: dict[str, list[float]] = {"decode": [], "beyond": [], "prompt": []}
        for row in rows:
            batch, prompt, taken_s = int(row["batch"]), int(row["prompt"]), float(row["step_ms"]) * 1e-3
            if row["kind"] == "decode":
                kind = "decode" if batch <= steps.engine.graph_tokens else "beyond"  # type: ignore[union-attr]
                errors[kind].append(float(steps.decode(batch, float(row["context"]))) / taken_s - 1)
            elif row["kind"] == "prompt":
                errors["prompt"].append(float(steps.prefill(prompt)) / taken_s - 1)
        found = {kind: errors_of(errors[kind]) for kind in errors if errors[kind]}
        shown = "  ".join(
            f"{kind} {value['median']:.1%} ({value['bias']:+z.1%}) {value['n']}" for kind, value in found.items()
        )
        print(f"    {server:28}{shown}")
        yield {"server": server, "machine": rows[0]["machine"], **found}


def calibrated() -> Iterator[dict[str, Any]]:
    """Yield what ``calibrate`` finds in every second decode step of each server, and its errors on the others.

    It is not told which servers sent all tokens to the same experts.
    """
    print("calibrate on every second decode step: experts visited, and the error on the others before and after")
    rows = [row for row in _table("summary.csv.gz") if row["kind"] == "decode" and int(row["batch"]) <= GRAPH_TOKENS]
    for server in dict.fromkeys(row["model"] for row in rows):
        name = server.removesuffix("-uniform").removesuffix("-fp8")
        if name not in ("qwen3-30b-a3b", "deepseek-v2-lite"):
            continue
        steps = [
            Measurement(
                key=str(place), model=name, gpu="H200", gpus=1, tp=1, weights="fp8" if "fp8" in server else "bf16",
                kv=None, engine="vllm", engine_version="0.26.0", year=2026, mode=Mode.decode_step,
                input_tokens=int(row["context"]), output_tokens=1, batch=int(row["batch"]), metric=Metric.step_s,
                value=float(row["step_ms"]) * 1e-3, source=server,
            )
            for place, row in enumerate(rows)
            if row["model"] == server
        ]  # fmt: skip
        group = calibrate(Evidence(rows=steps), made=today(), command="", name="experts").groups[0]
        share = group.correction.experts if group.correction else 1.0
        (held_out,) = group.held_out
        print(f"    {server:28}{share:.0%} of the experts, {held_out.before:.1%} → {held_out.after:.1%}")
        yield {"server": server, "experts": share, "before": held_out.before, "after": held_out.after}


def _run(requests: Sequence[Sequence[float]], users: int | None = None) -> RunLoad:
    """Return requests of times, prompt and answer lengths, as a load to simulate."""
    limits = {"max_sequences": MOST_SEQUENCES, "max_batched_tokens": MOST_TOKENS}
    begin = requests[0][0]
    facts = RunFacts(
        arrival_s=tuple(float(row[0]) - begin for row in requests),
        input_tokens=tuple(int(row[1]) for row in requests),
        output_tokens=tuple(int(row[2]) for row in requests),
        requests=len(requests),
        **limits,
    )
    return RunLoad(users=users, input_tokens=1, output_tokens=2, facts=facts)


def _of_columns(row: dict[str, str]) -> dict[str, float]:
    return {
        figure: float(row[f"{figure.split()[0].lower()}_{figure.split()[1]}_ms"]) * 1e-3
        for figure in FIGURES
        if row.get(f"{figure.split()[0].lower()}_{figure.split()[1]}_ms")
    }


def _of_answers(ttfts: Sequence[float], tpots: Sequence[float]) -> dict[str, float]:
    values = {"TTFT": ttfts, "TPOT": tpots}
    return {figure: float(np.percentile(values[figure[:4]], int(figure[-2:]))) for figure in FIGURES}


def rates() -> Iterator[Load]:
    """Yield the Poisson rates on the third machine."""
    with gzip.open(DATA / "rates.json.gz", "rt") as file:
        requests = json.load(file)
    for row in _table("rates.csv"):
        if row["load"] in requests and "llama" not in row["model"]:
            collapsed = row["routing"] == "dummy" and row["model"] in COLLAPSED
            said = ", 8 experts visited" if collapsed else ", spread" if row["routing"] == "uniform" else ""
            made = _deployment(row["model"], collapsed=collapsed)
            yield Load("rates", row["model"] + said, row["load"], made, _run(requests[row["load"]]),
                       _of_columns(row), "3", float(row["load"].split("-")[1]))  # fmt: skip


def headroom() -> Iterator[Load]:
    """Yield the loads of ``bench_headroom.py`` on experts."""
    with gzip.open(HERE / "data" / "vllm_h200_headroom.json.gz", "rt") as file:
        cases = [case for case in json.load(file)["cases"] if case["model"] in ("qwen3-30b-a3b",)]
    for case in cases:
        for load in case["loads"]:
            ttfts, tpots = zip(*load["measured"], strict=True)
            measured = _of_answers(ttfts, [tpot_s for tpot_s in tpots if tpot_s is not None])
            made, rate = _deployment(case["model"], collapsed=False), case["rate"] * load["times"]
            yield Load(
                "headroom", case["model"], f"{rate:g}/s", made, _run(load["requests"]), measured, "headroom", rate
            )


def replays() -> Iterator[Load]:
    """Yield the replays of a trace and the closed loops on another machine, with dummy weights in FP8."""
    with gzip.open(DATA / "replays.json.gz", "rt") as file:
        replayed = json.load(file)
    made = _deployment("qwen3-30b-a3b-fp8", collapsed=True)
    for load in replayed["loads"]:
        measured = _of_answers([row[3] for row in load["rows"]], [row[4] for row in load["rows"]])
        yield Load("replays", "qwen3-30b-a3b-fp8, 8 experts visited", load["load"], made,
                   _run(load["rows"], load["users"]), measured, None, load["rate"])  # fmt: skip


def closed_loops() -> Iterator[Load]:
    """Yield the loads of ``loads.csv`` on experts: closed loops, and the beginning of the fastest replay."""
    with gzip.open(DATA / "replays.json.gz", "rt") as file:
        trace = next(load["rows"] for load in json.load(file)["loads"] if load["load"] == "trace-10.97")
    for row in _table("loads.csv"):
        if "llama" in row["model"]:
            continue
        plain = row["model"].removesuffix("-uniform")
        collapsed = plain == row["model"] and plain in COLLAPSED
        made = _deployment(plain, collapsed=collapsed)
        if row["load"] == "closed":
            run, name = _run([(0.0, 1024, 128)] * int(row["n"]), int(row["users"])), f"{row['users']} users"
        else:
            cut = [(at_s, prompt, min(answer, LONGEST_ANSWER)) for at_s, prompt, answer, *_ in trace]
            run, name = _run(cut[: int(row["n"])]), "trace"
        yield Load("loads", row["model"], name, made, run, _of_columns(row), row["machine"], None)


def score(load: Load) -> dict[str, Any]:
    """Return what was measured and predicted of a load, on the default host and on its own."""
    engine = overhead(load.deployment.engine)
    predicted = _predicted(StepModel(load.deployment, engine), load)
    small_s = SMALL_LAUNCH_S.get(load.machine or "")
    own = _predicted(StepModel(load.deployment, engine.on_host(small_s)), load) if small_s else {}
    return {
        "source": load.source, "series": load.series, "load": load.name, "rate": load.rate, "machine": load.machine,
        "measured": load.measured, "predicted": predicted,
        "errors": {figure: predicted[figure] / value - 1 for figure, value in load.measured.items()},
        "on_own_host": {figure: own[figure] / value - 1 for figure, value in load.measured.items() if own},
    }  # fmt: skip


def _predicted(steps: StepModel, load: Load) -> dict[str, float]:
    found = simulated(steps, load.run)
    return {figure: found[kind] for figure, kind in FIGURES.items()}


def highest_rates(scored: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rate at which the TPOT p99 reaches an SLO, where it can be told (``bench_headroom.highest_rate``)."""
    for (source, series), slo_s in LIMITS.items():
        rows = [row for row in scored if row["source"] == source and row["series"] == series and row["rate"]]
        measured, predicted = (
            highest_rate([(row["rate"], row[side]) for row in rows], f"tpot_p99={slo_s:g}")
            for side in ("measured", "predicted")
        )
        if measured and predicted:
            yield {"series": series, "slo_s": slo_s, "measured": measured, "predicted": predicted,
                   "error": predicted / measured - 1}  # fmt: skip


def _summed(scored: Iterable[dict[str, Any]], source: str, where: str) -> dict[str, dict[str, float]]:
    rows = [row for row in scored if row["source"] == source]
    found = {figure: [row[where][figure] for row in rows if figure in row[where]] for figure in FIGURES}
    return {figure: errors_of(errors) for figure, errors in found.items() if errors}


if __name__ == "__main__":
    main()
