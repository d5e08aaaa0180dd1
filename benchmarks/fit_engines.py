"""What engines add to the GPU's own time: fits physics/data/overhead.toml.

    python benchmarks/fit_engines.py                                    # vLLM of today, on logs of a real one
    python benchmarks/fit_engines.py --published published.csv.gz       # and the other eras, on published results

Layers: the time between kernels, on bare decode steps (no engine). vLLM since 0.14: the host's part of a step and a
request's time outside any. The first on logs of four hosts, each with a factor of its own (``fit_hosts``); the second
on those of ``data/vllm_h200.json.xz`` named in ``TEACHES`` (straight lines through medians; the front end's own work
from the rate at which one-token requests pass); how much longer attention takes if contexts differ, and decodes beside
prompts, on steps of Llama 3.1 8B (``UNEVEN``, ``MIXED``). No other serving result is fitted. Other eras: two figures of
the host, on the rows of the published table marked ``calibrate`` and on nothing else, by least squares on
log(predicted ÷ measured) with a soft loss; and from the times to the first token of those rows under the least load,
one figure more (``FIRST_TOKENS``). What none of them can tell is another engine's, and said to be. Without
``--published`` these eras stay as they are.
"""

import argparse
import csv
import gzip
import json
import lzma
import math
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from benchmarks import bench_levers
from numpy.typing import NDArray
from scipy.optimize import least_squares

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.layers import CompressedAttention, GroupedAttention, LatentAttention, MoeMlp
from tokonomics.catalog.load_models import find_model
from tokonomics.measure.measurements import Measurement, Metric, Mode, read_measurements
from tokonomics.measure.stated_setup import as_run, deployment_of, model_named, recipe_of, stated_deployment
from tokonomics.measure.validate import impossible_rows, value_of
from tokonomics.physics.attention_kernels import spread_inside, uneven_share
from tokonomics.physics.overhead import FORK, LAUNCHES, REQUESTS, Host, Layers, Overhead, overhead, version_numbers
from tokonomics.physics.steptime import StepModel
from tokonomics.serving.steady import context_spread
from tokonomics.types import Badge

Floats = NDArray[np.float64]

HERE = Path(__file__).parent
TEACHES = ("dense", "fp8", "moe", "moe-fp8")
"""Sessions that teach; the others (another model, other step budgets, the first runs) judge."""
GRAPH_TOKENS = 512
"""vLLM's largest captured step: ``max_cudagraph_capture_size`` of its log (and of vllm/config, 0.26)."""
UNEVEN = "llama-3.1-8b"
"""Whose decode steps teach how unequal contexts slow attention: those of a plan with headroom (log-normal lengths), and
of the session with steps of 2,048 tokens (lengths within 50 %, or equal). Other models' steps judge."""
LEAST_BATCH = 4
"""Smaller batches have little attention: their steps tell of products."""
BINS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256)
"""Where the batches of the former's steps begin (``bench_headroom.py``)."""
MIXED, LONG_PROMPT = "llama-3.1-8b-again", 1024
"""Whose steps of one prompt, so long that the GPU and not its launches decide, beside 16 to 256 decodes teach what the
latter take longer there."""
BESIDE = ("cool_s", "beside_s", "beside_sequences")
ATTENTION = ("uneven", "uneven_heads", *BESIDE)
DRAFTING = ("draft_s", "search_s", "older_round_s")
LEAST_STEPS = 30
"""Of a batch of a session, fewer than these say little."""
BLOCKED_US = 150_000
"""A launch that takes longer waited for room in the GPU's queue: it says nothing of the host."""
LOGGED_ON = {"moe-fp8": "2026-11-16"}
"""Sessions of another day than the others of their file, 2026-11-15: another machine."""
EXPERTS = HERE / "data" / "vllm_h200_experts"
EXPERT_STEPS = {
    "qwen3-30b-a3b": "qwen3-30b-a3b", "qwen3-30b-a3b-fp8": "qwen3-30b-a3b",
    "qwen3-30b-a3b-fp8-uniform": "qwen3-30b-a3b",
    "deepseek-v2-lite": "deepseek-v2-lite", "deepseek-v2-lite-uniform": "deepseek-v2-lite",
    "mixtral-8x7b-8-layers": "mixtral-8x7b", "llama-3.1-8b-again": "llama-3.1-8b",
}  # fmt: skip
"""Whose steps ``summary.csv.gz`` has, by our names."""
LAYERS_OF = {"mixtral-8x7b-8-layers": 8}
"""Models that were cut to fewer layers."""
SMALL_LAUNCH_S = {"machine 1": 7.0e-6, "machine 2": 10.0e-6}
"""What PyTorch's ``add_`` took on the hosts of ``vllm_h200_experts``; a third, of which no steps were logged, took
9.1 (its README), and the one of ``bench_blind.py`` 5.9."""
UNLOGGED_HOSTS_S = (9.1e-6, 5.9e-6)
MOST_LAUNCHED = 3072
"""Prompt tokens from which the GPU's queue may hold a launch up."""
QUANTISED_LAUNCHES = 1.11
"""Kernels of a layer of experts with quantised activations, relative to 16 bits: 20.6 and 18.6 in ``kernels.csv.gz``,
without those of a router in FP8, which a published checkpoint keeps in 16 bits."""
ERAS: dict[str, tuple[tuple[int, str, bool], ...]] = {
    # First year (of rows that state no version; TensorRT-LLM's of 2025 are of its autumn, when 1.0 was out), first
    # version, and whether the host is said to work beside the GPU: then both are tried. vLLM: the V1 engine came with
    # 0.8, asynchronous scheduling by default with 0.14 (release notes). TensorRT-LLM: tables made with the C++ executor
    # and in-flight batching with 0.11, the PyTorch backend and its overlap scheduler with 0.17, the default with 1.0.
    # SGLang: the zero-overhead scheduler with 0.4.
    "vllm": ((2023, "0.0", False), (2025, "0.8", False), (2026, "0.14", True)),
    "tensorrt-llm": ((2023, "0.0", False), (2024, "0.11", False), (2025, "0.17", True), (2025, "1.0", True)),
    "sglang": ((2023, "0.0", True),),
}
ROCM = ("cdna2", "cdna3")
"""Architectures of AMD's GPUs on which vLLM before 0.6 is an era of its own. Its attention read keys and values once
for each query head: the paged attention written for ROCm, which reads them once for all that share them, came in
September 2024 (vLLM PR 8310). And its dense products, by a library without tuning, reached a tenth of an MI300X's
peak."""
UNPACKING = ("llama.cpp", "0.0 of 2024")
"""llama.cpp before it multiplied prompts with packed weights (its PR 8075, June 2024) and its attention kept scores on
the chip without being asked (``--flash-attn auto``, PR 15434, August 2025). Rows state a year: the era is taken to end
with 2024, which is late for the one and early for the other."""
LOGGED = ("vllm", "0.14")
"""The era of the logs."""
STAND_INS = {"tgi": ("vllm", "0.0"), "llama.cpp": ("vllm", "0.0")}
WHY = {
    "tgi": "published results at hand are of one endpoint, its gateway included",
    "llama.cpp": "published results at hand are of single streams",
}
ALIKE: dict[tuple[str, str], tuple[str, ...]] = {
    ("vllm", "0.8"): ("graph_tokens", *LAUNCHES, *REQUESTS),
    ("tensorrt-llm", "1.0"): ("layer_s",),
    ("sglang", "0.0"): ("layer_s", *REQUESTS),
}
"""What no row tells: engines that launch PyTorch's kernels layer by layer, and a front end in Python, as vLLM's."""
FIRST_TOKENS: dict[tuple[str, str], tuple[str, ...]] = {
    ("tensorrt-llm", "0.11"): ("reach_s",),
    ("tensorrt-llm", "1.0"): ("expert_layer_s", "quantised_layer_s", "latent_layer_s"),
    ("sglang", "0.0"): ("expert_layer_s", "quantised_layer_s"),
}
"""What times to the first token tell of an era: a request's way, where rates are low; what launches experts, where
prompts of any length take as long (Qwen3 235B with a few users), with and without quantised activations if there are
rows of both; and what latent attention adds (DeepSeek; SGLang's rows do not tell it apart)."""
FROM_FIRST_TOKENS = ("expert_layer_s", "quantised_layer_s", "latent_layer_s")
COMPILED = ("DeepSeek-V3", "B200", "sglang")
"""Rows whose first tokens come after 2 to 9 s, later with 8 users than with 64: kernels were compiled during the run.
They are scored like any other, and teach nothing of first tokens."""
LOW_RATE = 8
FEW_USERS = 8
"""Requests a second, or users, at the most of the rows that tell it."""
DRAFTS = ("DeepSeek-R1", "1.2.0rc6.post3")
"""A model and a build of TensorRT-LLM that drafted, it seems, without a word of it: 1.7 times as fast as the build
before it at the same settings (``bench_odd_rows.py``). It is scored like any other, and teaches nothing."""
PACED = (("tensorrt-llm", "0.17"),)
"""Eras whose products in FP8 differ from those that were timed (TensorRT-LLM 1.x): how many times as long they took is
fitted with the host's figures. Sums over GPUs took no longer than timed, and before 0.17 neither figure brought much
(10.6 % off instead of 11.1, and 19 instead of 17)."""
SAME = {"tensorrt-llm+triton": "tensorrt-llm"}
FITTED_METRICS = (Metric.tpot_s, Metric.output_tok_s, Metric.total_tok_s)
MOST_ROWS = 300
NOTHING_US = 0.01  # what the search leaves of a figure at its bound
CLEARLY = 0.005
"""Of the median error, by which what an engine is said to do must be off to be left."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, nargs="+")
    parser.add_argument("--only", nargs="+", default=[], help="eras to fit on them, such as 'sglang 0.0'; else all")
    parser.add_argument("--served", type=Path, default=HERE / "data" / "vllm_h200.json.xz")
    parser.add_argument("--planned", type=Path, default=HERE / "data" / "vllm_h200_headroom.json.gz")
    parser.add_argument("--mixed", type=Path, default=HERE / "data" / "vllm_h200_experts" / "summary.csv.gz")
    parser.add_argument("--steps", type=Path, default=HERE / "data" / "h200_steps.json")
    parser.add_argument("--out", type=Path, default=HERE.parent / "src/tokonomics/physics/data/overhead.toml")
    options = parser.parse_args()
    layers = fit_layers([row for row in read_measurements(options.steps) if isinstance(row, Measurement)])
    print(f"layers: {layers.layer_s * 1e6:.1f} µs each")
    before = tomllib.loads(options.out.read_text(encoding="utf-8"))["engines"]
    fitted = {
        (engine, era["since_version"] + _kind_of_era(era)): Overhead.model_validate(era)
        for engine, known in before.items()
        for era in known
    }
    with lzma.open(options.served, "rt") as file:
        sessions = json.load(file)["sessions"]
    host, fitted[LOGGED] = fit_logs(sessions)
    layers = layers.model_copy(update={"expert_launch": fit_expert_launch(sessions, layers)})
    fitted[LOGGED] = fit_attention(fitted[LOGGED], layers, decode_rows(sessions, options.planned), options.mixed)
    fitted[LOGGED] = fit_drafts(fitted[LOGGED], layers, host.launch_s)
    if options.published:
        fitted |= fit_published(options.published, layers, fitted, options.only)
    text = [_header(), _host_text(host), _layers_text(layers)]
    eras = [(engine, version) for engine, known in ERAS.items() for _, version, _ in known]
    # After the first of all GPUs: where they hold, they come before that.
    eras[1:1] = [("vllm", f"0.0 on {architecture}") for architecture in ROCM]
    eras += [(engine, version) for engine, (_, version) in STAND_INS.items()]
    eras.insert(eras.index(("llama.cpp", "0.0")), UNPACKING)
    text += [_engine_text(find_engine(engine).key, fitted[engine, version]) for engine, version in eras]
    options.out.write_text("\n".join(text), encoding="utf-8")


def _kind_of_era(era: dict[str, Any]) -> str:
    """What tells an era from another of the same first version."""
    if "architectures" in era:
        return f" on {era['architectures'][0]}"
    return " of 2024" if "unpacks" in era else ""


def fit_published(
    paths: Sequence[Path], layers: Layers, before: dict[tuple[str, str], Overhead], only: Sequence[str]
) -> dict[tuple[str, str], Overhead]:
    """The eras that published results speak of, and those that they stand in for."""
    fitted, logged = dict(before), before[LOGGED]
    rows = [row for path in paths for row in read_measurements(path) if isinstance(row, Measurement)]
    rows = [row for row in rows if row.split == "calibrate" and deployment_of(row)]
    # Runs tuned to limits of their own tell of a search for the highest rate, not of a step.
    impossible = impossible_rows(rows)
    rows = [row for row in rows if (row.model, row.engine_version) != DRAFTS and row.slo is None]
    rows = [row for row in rows if row.key not in impossible]
    for architecture in ROCM:
        if not only or f"vllm 0.0 on {architecture}" in only:
            fitted["vllm", f"0.0 on {architecture}"] = fit_rocm(rows, layers, architecture)
    rows = [row for row in rows if _is_nvidia(row)]
    for engine, eras in ERAS.items():
        of_engine = [row for row in rows if SAME.get(row.engine or "", row.engine) == engine]
        for start, version, overlapped in sorted(eras, key=lambda era: (engine, era[1]) not in FIRST_TOKENS):
            if (engine, version) == LOGGED or (only and f"{engine} {version}" not in only):
                continue
            of_era = [row for row in of_engine if _era(row, eras) == version]
            known = fitted.get((engine, "0.11")) if version != "0.11" else None
            begin = Overhead(
                since_version=version,
                since_year=start,
                step_s=0,
                sequence_s=0,
                overlapped=overlapped,
                reach_s=known.reach_s if known else 0,
                badge=Badge.modelled,  # others' hosts, seen through their results
                source="",
            )
            said = "; a request's way as of 0.11" if known and known.reach_s else ""
            alike = ALIKE.get((engine, version), ())
            begin = begin.model_copy(update={name: getattr(logged, name) for name in alike})
            if alike:
                said += f"; {', '.join(alike)} taken as vLLM 0.26's"
            told = FIRST_TOKENS.get((engine, version), ())
            for field in told:
                begin, rows_said = fit_first_token(of_era, layers, begin, field, told)
                said += rows_said
            error, found = fit_engine(of_era, layers, begin, said)
            if overlapped:
                in_turn = fit_engine(of_era, layers, begin.model_copy(update={"overlapped": False}), said)
                found = in_turn[1] if in_turn[0] < error - CLEARLY else found
            fitted[engine, version] = found
    for engine, like in STAND_INS.items():
        source = f"taken as {like[0]} {like[1]}, a request as vLLM 0.26's: {WHY[engine]}"
        requests = {name: getattr(logged, name) for name in REQUESTS}
        fitted[engine, like[1]] = fitted[like].model_copy(update={"badge": Badge.assumed, "source": source, **requests})
    if not only or " ".join(UNPACKING) in only:
        fitted[UNPACKING] = fit_unpacking([row for row in rows if row.engine == "llama.cpp"], layers, fitted)
    fitted["llama.cpp", "0.0"] = fitted["llama.cpp", "0.0"].model_copy(update={"since_year": 2025})
    return fitted


def fit_unpacking(rows: Sequence[Measurement], layers: Layers, fitted: dict[tuple[str, str], Overhead]) -> Overhead:
    """How often scores crossed the memory: by how much slower longer prompts were on one GPU than the shortest.

    The host's figures are those it stands on.
    """
    prompts = [row for row in rows if row.year <= 2024 and row.output_tokens <= 1 and row.gpus == 1]
    begin = fitted["llama.cpp", "0.0"].model_copy(update={"since_year": 2023, "unpacks": True})

    shortest: dict[tuple[str, ...], Measurement] = {}
    for row in sorted(prompts, key=lambda row: row.input_tokens):
        shortest.setdefault((row.gpu, row.model, row.weights), row)
    pairs = [(row, shortest[row.gpu, row.model, row.weights]) for row in prompts]
    longer = [(row, first) for row, first in pairs if row is not first]

    def off(row: Measurement, passes: float) -> float:
        made = begin.model_copy(update={"score_passes": passes})
        return math.log(value_of(row, _model(row, made, layers)) / row.value)

    def slower(passes: float) -> float:
        return statistics.median(abs(off(row, passes) - off(first, passes)) for row, first in longer)

    best = float(min(np.arange(0.0, 13.0, 0.5), key=slower))
    errors = [statistics.median(abs(off(row, passes)) for row in prompts) for passes in (best, 0.0)]
    print(f"llama.cpp of 2024: scores cross the memory {best} times, n {len(longer)}, median error {errors[0]:.1%} "
          f"(with none {errors[1]:.1%}); of how much slower longer prompts are {slower(best):.1%} "
          f"(two times fewer {slower(best - 2):.1%}, two more {slower(best + 2):.1%})")  # fmt: skip
    said = f"{begin.source}; score_passes on {len(longer)} longer prompts alone of {prompts[0].source}"
    return begin.model_copy(update={"score_passes": best, "source": said})


def fit_rocm(rows: Sequence[Measurement], layers: Layers, architecture: str) -> Overhead:
    """The host's two figures, how fast the old attention read, and how much of the peak its products reached."""
    rows = [row for row in rows if row.engine == "vllm" and (0, 0) < version_numbers(row.engine_version) < (0, 6)]
    rows = [row for row in rows if row.metric in FITTED_METRICS and FORK not in (row.engine_version or "")]
    placed = [(row, found) for row in rows if (found := deployment_of(row))]
    placed = [(row, found) for row, found in placed if found.gpu.architecture == architecture]
    sources = sorted({row.source for row, _ in placed})

    def era(figures: Sequence[float]) -> Overhead:
        step_ms, sequence_ms, head_reads, split_reads, product_share = figures
        return Overhead(
            since_version="0.0", since_year=2023, until_version="0.6", architectures=(architecture,),
            step_s=step_ms * 1e-3, sequence_s=sequence_ms * 1e-3, overlapped=False, head_reads=round(head_reads, 2),
            split_reads=round(split_reads, 2), product_share=round(product_share, 3), badge=Badge.modelled,
            source=f"{len(placed)} rows of {'; '.join(sources)}; on {architecture} alone",
        )  # fmt: skip

    def residuals(figures: Sequence[float]) -> list[float]:
        own = era(figures)
        models = {found: StepModel(found, own, layers) for _, found in placed}
        return [math.log(value_of(row, models[found]) / row.value) for row, found in placed]

    found = least_squares(
        residuals, [5.0, 0.1, 0.3, 0.8, 0.12], bounds=([0.0, 0.0, 0.05, 0.05, 0.02], [20.0, 0.5, 1.5, 2.0, 1.0]),
        loss="soft_l1", f_scale=0.1, x_scale=[1.0, 0.02, 0.1, 0.3, 0.03], diff_step=0.03, max_nfev=20,
    )  # fmt: skip
    error = statistics.median(abs(each) for each in found.fun)
    step_ms, sequence_ms, *shares = (round(float(figure), 3) for figure in found.x)
    print(f"vllm before 0.6 on {architecture}: n {len(placed)}, step {step_ms} ms, sequence {sequence_ms} ms, shares "
          f"of the bandwidth (attention, and split) and of the peak {shares}; median error {error:.1%}")  # fmt: skip
    return era(found.x)


def _is_latent(row: Measurement) -> bool:
    """Decide whether its model has latent attention."""
    kinds = LatentAttention | CompressedAttention
    return any(isinstance(group.mixer, kinds) for group in model_named(row.model).groups)


def _is_nvidia(row: Measurement) -> bool:
    """Where kernels were timed, or on a relative: what is left is the host's. Elsewhere it may be the kernels'."""
    deployment = deployment_of(row)
    return deployment is not None and deployment.gpu.vendor == "nvidia"


def fit_expert_launch(sessions: Sequence[dict[str, Any]], layers: Layers) -> float:
    """The share of the launches of experts' kernels, timed one by one, that is left inside a graph: at batch 1."""
    found = []
    for session in sessions:
        if session["name"] != "moe":
            continue
        deployment = stated_deployment(session["model"], "H200", 1, 1, 1, 1, session["quant"] or "bf16", None, "vllm")
        for batch, _, _, step_us, context in session["decode_steps"]:
            if batch == 1:
                shares = np.linspace(0, 1, 101)
                own = overhead(deployment.engine).model_copy(update={"step_s": 0.0, "sequence_s": 0.0})
                either = [layers.model_copy(update={"expert_launch": share}) for share in (0.0, 1.0)]
                ends = [float(StepModel(deployment, own, between).decode(1, context)) for between in either]
                found.append(float(shares[np.argmin(np.abs(ends[0] + shares * (ends[1] - ends[0]) - step_us * 1e-6))]))
    print(f"experts' launches inside a graph: {found} of those timed one by one")
    return statistics.median(found)


class HostWork(NamedTuple):
    """What the host of one machine did for a step, and how often each of the figures to fit is in it."""

    host: str
    session: str
    parts: tuple[float, ...]  # steps, sequences, layers in pieces, dense, with experts, latent in pieces and one by one
    seconds: float
    weight: float


FIGURES = ("step_s", "sequence_s", "piece_s", "layer_s", "expert_layer_s", "latent_piece_s", "latent_layer_s")
BEGIN = (2.4e-3, 2.5e-5, 3e-4, 7e-4, 1.8e-3, 3e-4, 7e-4)


def _layers_of(name: str, cut: int | None = None) -> tuple[float, float, float]:
    """Return a model's layers: dense, with experts, and those of either kind with latent attention."""
    groups = find_model(name).groups
    share = cut / sum(group.count for group in groups) if cut else 1.0
    kinds = [(group.count, isinstance(group.mlp, MoeMlp), isinstance(group.mixer, LatentAttention)) for group in groups]
    experts, latent = (share * sum(kind[0] for kind in kinds if kind[which]) for which in (1, 2))
    return share * sum(kind[0] for kind in kinds) - experts, experts, latent


def _parts(layers: tuple[float, float, float], sequences: float, tokens: float, quantised: bool) -> tuple[float, ...]:
    """How often a step that is launched layer by layer has each figure."""
    dense, experts, latent = layers
    if tokens <= GRAPH_TOKENS:
        return (1, sequences, dense + experts, 0, 0, latent, 0)
    return (1, sequences, 0, dense, experts * (QUANTISED_LAUNCHES if quantised else 1), 0, latent)


def _of_graph(sequences: float) -> tuple[float, ...]:
    """The same of a step that is one graph: it has no layer to launch."""
    return (1, sequences, 0, 0, 0, 0, 0)


def _of_sessions(sessions: Sequence[dict[str, Any]]) -> Iterator[HostWork]:
    """Medians of steps alike: 32 sequences more make another bin."""
    for session in sessions:
        if session["name"] not in (*TEACHES, "qwen3-4b", "small-steps"):
            continue
        host, layers = LOGGED_ON.get(session["name"], "2026-11-15"), _layers_of(session["model"])
        bins = defaultdict(list)
        for decodes, prompts, tokens, host_us in session["prompt_steps"]:
            if host_us < BLOCKED_US:
                sequences = decodes + prompts
                bins[decodes + tokens <= GRAPH_TOKENS, min(4, sequences // 32)].append((sequences, host_us * 1e-6))
        for (captured, _), found in bins.items():
            if len(found) >= 5:
                sequences = statistics.fmean(many for many, _ in found)
                seconds = statistics.median(taken_s for _, taken_s in found)
                parts = _parts(layers, sequences, GRAPH_TOKENS if captured else math.inf, bool(session["quant"]))
                yield HostWork(host, session["name"], parts, seconds, 1.0)
        for batch, steps, host_us, *_ in session["decode_steps"]:
            if steps >= 10:
                yield HostWork(host, session["name"], _of_graph(batch), host_us * 1e-6, 0.3)


def _of_experts() -> Iterator[HostWork]:
    """Medians of ``summary.csv.gz``: decode steps, and prompts alone."""
    with gzip.open(EXPERTS / "summary.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] in EXPERT_STEPS and row["kind"] != "mixed"]
    for row in rows:
        batch, prompt = int(row["batch"]), int(row["prompt"])
        decodes = row["kind"] == "decode"
        if not decodes and prompt > MOST_LAUNCHED:
            continue
        layers = _layers_of(EXPERT_STEPS[row["model"]], LAYERS_OF.get(row["model"]))
        sizes = (batch, batch) if decodes else (1, prompt)
        parts = _parts(layers, *sizes, "fp8" in row["model"])
        if decodes and batch <= GRAPH_TOKENS:
            parts = _of_graph(batch)
        seconds = (float(row["launch_ms"]) + float(row["look_ms"])) * 1e-3
        yield HostWork(f"machine {row['machine']}", row["model"], parts, seconds, 0.3)


def _of_headroom() -> Iterator[HostWork]:
    """Medians of mixed steps under the loads of ``bench_headroom.py``, with as many sequences as decode steps had."""
    with gzip.open(HERE / "data" / "vllm_h200_headroom.json.gz", "rt") as file:
        cases = json.load(file)["cases"]
    for case in cases:
        for load in case["loads"]:
            steps = load["decode_steps"]
            sequences = sum(1.2 * begin * many for begin, many, *_ in steps) / sum(many for _, many, *_ in steps)
            for begin, many, _, launch_ms in load["prompt_steps"]:
                if many >= 10 and begin <= MOST_LAUNCHED:
                    tokens = begin if begin < GRAPH_TOKENS else math.inf
                    parts = _parts(_layers_of(case["model"]), sequences, tokens, quantised=False)
                    yield HostWork("headroom", case["model"], parts, launch_ms * 1e-3, 0.5)


def fit_hosts(sessions: Sequence[dict[str, Any]]) -> tuple[Host, dict[str, float]]:
    """Return the host in the middle of those measured, and the host's work on a step there.

    One figure for each kind of work is the same for all models, and one factor for each host is the same for all its
    work: least squares on logarithms with a soft loss. A small launch took 7.0 and 10.0 µs on two of the hosts, which
    says what the unit is. Three more hosts count in the middle and teach no figure: two known by a small launch, and
    the one of ``bench_headroom.py``, which judges.
    """
    work = [*_of_sessions(sessions), *_of_experts()]
    hosts = list(dict.fromkeys(row.host for row in work))
    parts, seconds = np.array([row.parts for row in work]), np.array([row.seconds for row in work])
    place, weight = np.array([hosts.index(row.host) for row in work]), np.array([row.weight for row in work])

    def errors(x: np.ndarray) -> np.ndarray:
        speeds = np.concatenate([[0.0], x[len(FIGURES) :]])
        return np.asarray(np.log(parts @ np.exp(x[: len(FIGURES)])) + speeds[place] - np.log(seconds))

    begin = np.concatenate([np.log(BEGIN), np.zeros(len(hosts) - 1)])
    found = least_squares(lambda x: weight * errors(x), begin, loss="soft_l1", f_scale=0.1)
    speeds = dict(zip(hosts, (1.0, *np.exp(found.x[len(FIGURES) :])), strict=True))
    unit_s = math.exp(statistics.fmean(math.log(small_s / speeds[host]) for host, small_s in SMALL_LAUNCH_S.items()))
    judging = list(_of_headroom())
    taken = np.array([row.parts for row in judging]) @ np.exp(found.x[: len(FIGURES)])
    apart = np.log([row.seconds for row in judging]) - np.log(taken)
    others = [math.exp(statistics.median(apart)), *(small_s / unit_s for small_s in UNLOGGED_HOSTS_S)]
    middle = statistics.median([*speeds.values(), *others])
    print("vllm, hosts that judge:", ", ".join(f"{speed * unit_s * 1e6:.1f} µs" for speed in others))
    off = errors(found.x)
    for host in hosts:
        by_session = defaultdict(list)
        for row, error in zip(work, off, strict=True):
            if row.host == host:
                by_session[row.session].append(error)
        said = ", ".join(f"{session} {statistics.median(errors):+.0%}" for session, errors in by_session.items())
        print(f"vllm, host {host}: {speeds[host] * unit_s * 1e6:.1f} µs a small launch; off by {said}")
    typical = Host(
        launch_s=middle * unit_s,
        source=f"the median of {len(speeds) + len(others)} hosts of H200s (16 cores each), 2026-11-15 to 19: "
        "PyTorch's add_ took 5.9, 7.0, 9.1 and 10.0 µs on four, and the others are placed by vLLM's launches",
    )
    return typical, dict(zip(FIGURES, (middle * np.exp(found.x[: len(FIGURES)])).tolist(), strict=True))


def fit_logs(sessions: Sequence[dict[str, Any]]) -> tuple[Host, Overhead]:
    """The host and the front end of vLLM, from its steps and its lone requests."""
    taught = [session for session in sessions if session["name"] in TEACHES]
    host, figures = fit_hosts(sessions)
    print("vllm, log:", ", ".join(f"{name} {value * 1e6:.1f} µs" for name, value in figures.items()))
    lone = np.array([row for session in taught for row in session["lone"]], np.float64)
    in_token_us, in_us = np.polyfit(lone[:, 0], lone[:, 1], 1)
    out_token_us, out_us = np.polyfit(lone[:, 0], lone[:, 2], 1)
    bound = next(session["front_bound"] for session in taught if "front_bound" in session)
    request_us = bound["seconds"] / bound["requests"] * 1e6
    print(f"vllm, log: a request {request_us:.0f} µs of the front "
          f"end, {in_us:.0f} in and {out_us:.0f} out + {in_token_us + out_token_us:.2f} a token")  # fmt: skip
    return host, Overhead(
        since_version="0.14",
        since_year=2026,
        overlapped=True,
        fused=True,
        graph_tokens=GRAPH_TOKENS,
        **figures,
        quantised_layer_s=QUANTISED_LAUNCHES * figures["expert_layer_s"],
        request_s=request_us * 1e-6,
        token_s=(in_token_us + out_token_us) * 1e-6,
        reach_s=max(0.0, in_us - request_us) * 1e-6,
        answer_s=out_us * 1e-6,
        badge=Badge.measured,
        source=f"steps of five models and {len(lone)} lone requests of vLLM 0.26.0 on four H200 machines of 16 cores, "
        "2026-11-15 to 18, each with a factor of its own, stated for the host above",
    )


class DecodeRow(NamedTuple):
    """Decode steps of one batch in a log, and how unequal the contexts of their load were."""

    log: str
    model: str
    batch: float
    steps: int
    measured_s: float
    context: float
    spread: float


def decode_rows(sessions: Sequence[dict[str, Any]], planned: Path) -> list[DecodeRow]:
    """Decode steps of models in bf16 without experts: of plans with headroom, and of sessions with a load at a rate."""
    found = []
    with gzip.open(planned, "rt") as file:
        cases = json.load(file)["cases"]
    for case in cases:
        for load in case["loads"]:
            _, prompts, answers = np.array(load["requests"], np.float64).T
            spread = context_spread(prompts, answers)
            for start, steps, ms, context in load["decode_steps"]:
                after = BINS[BINS.index(start) + 1 :]
                batch = (start + after[0] - 1) / 2 if after else start
                log = f"{case['model']}, planned"
                found.append(DecodeRow(log, case["model"], batch, steps, ms * 1e-3, context, spread))
    for session in sessions:
        equal = {load["asked"]["users"] for load in session["loads"]}
        spreads = []
        for load in session["loads"]:
            if load["asked"]["rate"] and "requests" in load:
                prompts, answers = (np.array(load["requests"][name], np.float64) for name in ("input", "output"))
                spreads.append(context_spread(prompts + load["asked"].get("prefix", 0), answers))
        for batch, steps, _, step_us, context in session["decode_steps"] if spreads and not session["quant"] else ():
            spread = 0.0 if batch in equal else statistics.fmean(spreads)
            row = DecodeRow(session["name"], session["model"], batch, steps, step_us * 1e-6, context, spread)
            if step_us and steps >= LEAST_STEPS:
                found.append(row)
    return [row for row in found if row.batch >= LEAST_BATCH and not find_model(row.model).is_moe]


def fit_attention(host: Overhead, layers: Layers, rows: Sequence[DecodeRow], mixed: Path) -> Overhead:
    """How much longer decode attention takes if contexts differ, and decodes beside a long prompt."""
    models = {row.model: _served(row.model, host, layers) for row in rows}

    def errors(some: Sequence[DecodeRow], figures: Sequence[float]) -> list[float]:
        made = []
        for row in some:
            steps, batch = models[row.model], np.float64(row.batch)
            on_gpu, _ = steps.decode_apart(row.batch, row.context)
            longer = 0.0
            for count, mixer in steps.mixers:
                if isinstance(mixer, GroupedAttention):
                    taken = steps.kernels.decode_mixer_s(mixer, batch, np.float64(row.context))
                    spread = float(spread_inside(row.context, row.spread, mixer.window))
                    longer += count * float(taken * uneven_share(row.batch, mixer.kv_heads, spread, *figures))
            hosted = max(float(on_gpu) + longer, float(host.host_s(row.batch)))
            made.append(math.log(hosted / row.measured_s))
        return made

    taught = [row for row in rows if row.model == UNEVEN]
    weights = np.sqrt([row.steps for row in taught])
    weights /= weights.mean()
    found = least_squares(
        lambda figures: weights * errors(taught, figures), [0.3, 300.0], bounds=([0.0, 0.0], [2.0, 1e4]),
        loss="soft_l1", f_scale=0.02, x_scale=[0.1, 100.0],
    )  # fmt: skip
    print(f"vllm, log: unequal contexts slow attention by up to {found.x[0]:.3f}, half of it at {found.x[1]:.0f} heads")
    for log in dict.fromkeys(row.log for row in rows):
        some = [row for row in rows if row.log == log]
        before, after = (np.average(errors(some, figures), weights=[row.steps for row in some])
                         for figures in ((0.0, 0.0), found.x))  # fmt: skip
        kind = "taught" if some[0].model == UNEVEN else "left out"
        print(f"    {log} ({kind}): steps predicted {before:+.1%} → {after:+.1%}")
    uneven, heads = (float(figure) for figure in found.x)
    return fit_beside(host.model_copy(update={"uneven": uneven, "uneven_heads": heads}), layers, mixed)


def fit_beside(host: Overhead, layers: Layers, mixed: Path) -> Overhead:
    """What prompts gain and decodes lose in a step of both, by the number of decodes.

    The gain is one figure: products of the prompts are so long that the GPU reaches its power limit during them.
    """
    steps = _served(UNEVEN, host.model_copy(update={"cool_s": 0.0, "beside_s": 0.0}), layers).with_engine(None)
    with gzip.open(mixed, "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == MIXED and row["kind"] == "mixed"]
    names, rows = ("prompt", "batch", "context", "extra_ms"), [row for row in rows if int(row["prompt"]) >= LONG_PROMPT]
    prompts, batches, contexts, measured_ms = (np.array([float(row[name]) for row in rows]) for name in names)
    left_ms = measured_ms - steps.step(prompts, 0, batches, contexts) * 1e3

    def off_ms(figures: Sequence[float]) -> Floats:
        gained_ms, each_us, half = figures
        return np.asarray(each_us * 1e-3 * batches / (1 + batches / half) - gained_ms - left_ms)

    found = least_squares(off_ms, [1.0, 50.0, 100.0], bounds=([0.0, 0.0, 1.0], [20.0, 1e3, 1e4]), loss="soft_l1")
    gained_ms, each_us, half = (float(figure) for figure in found.x)
    heads = sum(count * mixer.kv_heads for count, mixer in steps.mixers if isinstance(mixer, GroupedAttention))
    print(f"vllm, log: prompts beside decodes gain {gained_ms:.1f} ms, a decode loses {each_us:.0f} µs "
          f"({each_us / heads * 1e3:.0f} ns a KV head and layer), half of it at {half:.0f}, n {len(rows)}; mean error "
          f"{np.abs(left_ms).mean():.1f} → {np.abs(off_ms(found.x)).mean():.1f} ms")  # fmt: skip
    figures = (gained_ms * 1e-3, each_us * 1e-6 / heads, half)
    return host.model_copy(update=dict(zip(BESIDE, figures, strict=True)))


def fit_drafts(host: Overhead, layers: Layers, median_host_s: float) -> Overhead:
    """What a round of drafts takes beside its passes: of loads of one user at a time, of which a plain one is known.

    EAGLE-3 tells of each drafted token, n-grams of looking them up, and MTP beside experts of the older runner's host,
    which is slower there than the GPU. Loads of more users taught nothing.
    """
    measured, context = bench_levers.read()["measured"], 256 + 128 / 2
    bare = host.model_copy(update=dict.fromkeys(DRAFTING, 0.0))

    def round_s(load: str) -> float:
        return float(measured[load]["TPOT p50"] * measured[load].get("tokens a round", 1.0))

    def beside_s(load: str, server: str, acceptance: float) -> float:
        """Return what a round took more than its passes, beyond what a plain step on that machine did."""
        made = StepModel(bench_levers.deployment_of(server, acceptance), bare, layers)
        passes_s = float(made.decode(1, context)) * made.deployment.speculation.tokens_per_round  # type: ignore[union-attr]
        plain = StepModel(bench_levers.deployment_of("plain"), bare, layers)
        return round_s(load) - passes_s - (round_s("plain: 1 × 256") - float(plain.decode(1, context)))

    drafted = [beside_s(f"eagle3: 1 at {share}", "eagle3", share) / 3 for share in (0.3, 0.5, 0.7, 0.9)]
    older = [round_s(f"ernie mtp: 1 at {share}") for share in (0.4, 0.8)]
    found = {
        "draft_s": statistics.median(drafted),
        "search_s": beside_s("n-grams: 1 × 256", "n-grams", 0.9),
        "older_round_s": statistics.median(older) * median_host_s / bench_levers.OWN_HOST_S,  # stated for that host
    }
    told = ", ".join(f"{name} {taken * 1e3:.2f} ms" for name, taken in found.items())
    print(f"vllm, lever grid: {told} (a drafted token {min(drafted) * 1e3:.2f} to {max(drafted) * 1e3:.2f} ms)")
    source = f"{host.source}; drafts: loads of one user in vLLM 0.26.0, 2026-11-19, on another such machine"
    return host.model_copy(update=found | {"source": source})


def _served(model: str, host: Overhead, layers: Layers) -> StepModel:
    deployment = stated_deployment(model, "H200", 1, 1, 1, 1, "bf16", None, "vllm")
    return StepModel(deployment, host, layers)


def fit_layers(rows: Sequence[Measurement]) -> Layers:
    """Seconds a layer takes beyond its kernels."""
    decode = [row for row in rows if row.mode == "decode_step"]

    def errors(layer_s: float) -> list[float]:
        layers = Layers(layer_s=layer_s, source="")
        models = {row.model: _bare(row, layers) for row in decode}
        return [abs(math.log(value_of(row, models[row.model]) / row.value)) for row in decode]

    best = min(np.arange(8, 24, 0.5), key=lambda us: float(np.median(errors(us * 1e-6))))
    source = (
        "bare decode steps of Llama-3.1-8B and 3.2-1B shapes on one H200 (CUDA graphs, PyTorch attention); experts: "
        "decode steps of Qwen3 30B-A3B at batch 1 in vLLM 0.26.0 on one H200"
    )
    return Layers(layer_s=float(best) * 1e-6, source=source)


def _era(row: Measurement, eras: Sequence[tuple[int, str, bool]]) -> str:
    """The era a row belongs to: by its version, or else by its year."""
    given = version_numbers(row.engine_version)
    if given:
        return [version for _, version, _ in eras if version_numbers(version) <= given][-1]
    return [version for start, version, _ in eras if start <= row.year][-1]


def fit_first_token(
    rows: Sequence[Measurement], layers: Layers, begin: Overhead, field: str, told: Sequence[str]
) -> tuple[Overhead, str]:
    """The figure that brings predicted times to the first token closest to those measured under little load."""
    experts, latent = field in FROM_FIRST_TOKENS, field == "latent_layer_s"
    served = [row for row in rows if row.metric is Metric.ttft_s and row.mode is not Mode.low_latency]
    served = [row for row in served if (row.batch or row.rate) and model_named(row.model).is_moe == experts]
    served = [row for row in served if (row.model, row.gpu, row.engine) != COMPILED]
    if "latent_layer_s" in told:
        served = [row for row in served if _is_latent(row) == latent]
    if "quantised_layer_s" in told and not latent:
        quantised = field == "quantised_layer_s"
        served = [row for row in served if _model(row, begin, layers).quantises == quantised]
    served = [row for row in served if (row.rate <= LOW_RATE if row.rate else (row.batch or 0) <= FEW_USERS)]

    def residuals(figures: Sequence[float]) -> list[float]:
        made = begin.model_copy(update={field: figures[0] * 1e-3})
        return [math.log(value_of(row, _model(row, made, layers)) / row.value) for row in served]

    def cost(milliseconds: float) -> float:
        """The sum of errors, large ones counted less; tried on a grid, for it has several minima."""
        return sum(math.sqrt(1 + (each / 0.1) ** 2) for each in residuals([milliseconds]))

    coarse = min(np.arange(0.5, 12.1, 0.5), key=cost)
    best = float(min(coarse + np.arange(-0.4, 0.41, 0.1), key=cost))
    value = best * 1e-3
    error = statistics.median(abs(each) for each in residuals([best]))
    print(f"{served[0].engine} since {begin.since_version}: {field} {value * 1e3:.2f} ms, n {len(served)}, "
          f"median error {error:.1%} (with none {statistics.median(map(abs, residuals([0.0]))):.1%})")  # fmt: skip
    said = f"; {field} on the first tokens of {len(served)} rows with few users or requests"
    return begin.model_copy(update={field: value}), said


def fit_engine(rows: Sequence[Measurement], layers: Layers, begin: Overhead, said: str) -> tuple[float, Overhead]:
    """The host's two figures that bring predictions of these rows closest to what was measured, and how close."""
    fast = [row for row in rows if row.metric in FITTED_METRICS]
    fast = fast[:: max(1, len(fast) // MOST_ROWS)]
    paced = (SAME.get(fast[0].engine or "", fast[0].engine), begin.since_version) in PACED

    def overhead(figures: Sequence[float]) -> Overhead:
        step_us, sequence_us = (figure if figure > NOTHING_US else 0.0 for figure in figures[:2])
        changes = {"step_s": step_us * 1e-6, "sequence_s": sequence_us * 1e-6}
        if paced:
            changes |= {"fp8_time_factor": round(figures[2], 3)}
        return begin.model_copy(update=changes)

    def residuals(figures: Sequence[float]) -> list[float]:
        made = overhead(figures)
        return [math.log(value_of(row, _model(row, made, layers)) / row.value) for row in fast]

    more: list[list[float]] = [[1.0], [0.5], [1.5], [0.1]] if paced else [[], [], [], []]
    found = least_squares(
        residuals, [1000.0, 30.0, *more[0]], bounds=([0.0, 0.0, *more[1]], [30_000.0, 500.0, *more[2]]), loss="soft_l1",
        f_scale=0.1, x_scale=[1000.0, 10.0, *more[3]], diff_step=0.02, max_nfev=15,
    )  # fmt: skip
    made = overhead(found.x)
    if np.mean(np.abs(residuals([0.0, 0.0, *found.x[2:]]))) <= np.mean(np.abs(found.fun)) + 1e-3:
        made = overhead([0.0, 0.0, *found.x[2:]])  # the host is never the slower in these rows: its time cannot be told
    sources = sorted({row.source for row in rows})
    error = statistics.median(abs(math.log(value_of(row, _model(row, made, layers)) / row.value)) for row in fast)
    print(f"{rows[0].engine} {min(r.year for r in rows)}–{max(r.year for r in rows)}, "
          f"{'beside' if made.overlapped else 'after'} the GPU: n {len(fast)}, step {made.step_s * 1e6:.0f} µs, "
          f"sequence {made.sequence_s * 1e6:.1f} µs, FP8 × {made.fp8_time_factor}; "
          f"median error {error:.1%}")  # fmt: skip
    return error, made.model_copy(update={"source": f"{len(fast)} rows of {'; '.join(sources)}{said}"})


def _bare(row: Measurement, layers: Layers) -> StepModel:
    deployment = deployment_of(row)
    assert deployment is not None
    return StepModel(deployment, None, layers)


MOST_PARTS = 500
_PARTS: dict[tuple[object, ...], StepModel] = {}


def _model(row: Measurement, made: Overhead, layers: Layers) -> StepModel:
    """The row's step model with an engine's figures; the kernels' part is computed once."""
    deployment = deployment_of(row)
    assert deployment is not None
    aligned = row.tuned and recipe_of(deployment).aligns > 0
    key = (deployment, made.head_reads, made.unpacks, made.score_passes, made.fp8_time_factor, aligned)
    if key not in _PARTS:
        if len(_PARTS) > MOST_PARTS:
            _PARTS.clear()
        _PARTS[key] = StepModel(deployment, made, layers, aligned=aligned)
    served = row.mode is not Mode.low_latency
    return _PARTS[key].with_engine(as_run(made, deployment, row.engine or "", tuned=row.tuned, served=served))


def _header() -> str:
    return "# Made by benchmarks/fit_engines.py; do not edit.\n"


def _host_text(host: Host) -> str:
    return f'[host]\nlaunch_s = {host.launch_s:.3g}\nsource = "{host.source}"\n'


def _layers_text(layers: Layers) -> str:
    return (
        f"[layers]\nlayer_s = {layers.layer_s:.3g}\nexpert_launch = {layers.expert_launch:.2f}\n"
        f'source = "{layers.source}"\n'
    )


def _engine_text(engine: str, made: Overhead) -> str:
    more = "".join(
        f"{name} = {getattr(made, name):.2e}\n" for name in (*LAUNCHES, *DRAFTING, *REQUESTS) if getattr(made, name)
    )
    if made.uneven:
        more = "".join(f"{name} = {getattr(made, name):.4g}\n" for name in ATTENTION) + more
    if made.architectures:
        listed = ", ".join(f'"{name}"' for name in made.architectures)
        shares = ("head_reads", "split_reads", "product_share")
        more = "".join(f"{name} = {getattr(made, name)}\n" for name in shares) + more
        more = f"architectures = [{listed}]\n{more}"
        more = f'until_version = "{made.until_version}"\n{more}'
    if made.unpacks:
        more = f"unpacks = true\nscore_passes = {made.score_passes}\n{more}"
    if made.fp8_time_factor != 1:
        more = f"fp8_time_factor = {made.fp8_time_factor}\n{more}"
    if made.graph_tokens:
        more = f"graph_tokens = {made.graph_tokens}\n{more}"
    if made.fused:
        more = f"fused = true\n{more}"
    return (
        f'[[engines."{engine}"]]\nsince_version = "{made.since_version}"\nsince_year = {made.since_year}\n'
        f"step_s = {made.step_s:.2e}\n"
        f"sequence_s = {made.sequence_s:.2e}\n"
        f"overlapped = {str(made.overlapped).lower()}\n{more}"
        f'badge = "{made.badge}"\nsource = "{made.source}"\n'
    )


if __name__ == "__main__":
    main()
