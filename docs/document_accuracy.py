"""The accuracy page and its tables, wholly from the last ``make bench`` (measure/data/accuracy.json)."""

import gzip
import json
import math
import re
import statistics
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

from tokonomics.measure.accuracy_points import unseen_errors
from tokonomics.measure.validate import ErrorSummary
from tokonomics.report.validate_view import figures
from tokonomics.units import percent

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
ACCURACY = Path(__file__).parent.parent / "src" / "tokonomics" / "measure" / "data" / "accuracy.json"
ACCURACY_HEAD = """# How sure is this?

Errors of published results are factors: a median error of 10 % means that half of the predictions are within a factor of 1.1, up or down.
Errors of single loads of a real vLLM are predicted ÷ measured − 1: −50 % is half, and what was measured is twice that.
A bias above zero means that we predict too much. Of every five measurements, four should lie inside the interval: fewer
are a miss, and so are more, as the interval is then wider than it need be. Targets were set before the last fits.
Engines' overheads and the intervals were fitted on rows marked `calibrate`, on the bare steps and on loads of a real vLLM. Of the
published rows scored here, those marked `dev` were only looked at; of those marked `judge`, the groups left out of everything, only
sums such as those on this page were seen. One choice followed from them: SGLang's launches were left as they were, as new ones made the first tokens of these groups
worse. [Where the rows come from](../benchmarks/data/README.md).
"""
UNSEEN_FIRST = """## What it was not fitted on

Eight models on a real vLLM, six models step by step, and a third of the groups of published results: no speed was fitted on
any of them; all but the published groups taught the intervals. Two choices followed from them: how steps of unequal contexts and
of prompts beside answers are modelled was chosen after errors of the first four models had been seen, and what the servers predicted blind
showed was mended, their host's launches counted in the default. Plans with headroom and the blind servers stand here as they were predicted
before they were served. Expect such errors for a model of your own; the tables below take them apart.
"""
REAL_ENGINE = """vLLM 0.26.0 on one H200, dummy weights, its own load generator, closed loops and Poisson arrivals
(`benchmarks/measure_vllm.py`). Each load is simulated as it was run. The host's times were fitted on the log of steps
and on lone requests of four sessions, which are labelled, and on the rate at which one-token requests pass; no other
serving result was fitted. The session in FP8 blocks sent every token to the same experts, and is predicted so. All of these runs have
been looked at while the model was made. They are of one or two machines; launches are predicted for a host in the middle of all that were seen
([physics](physics.md#the-engine)), which these are near.

A load of one user is a prompt alone; about half of the loads of the two other models are such, and the first table takes
them apart. The session with steps of 2,048 tokens ran with the prefix cache on, and its prompts repeat from load to load: a
prompt that is cached needs no prefill, so its loaded runs are left out and only prompts alone are scored, which were new to
the cache.

What stands out: 256 users of the 8B model, who come back later than simulated, so that they wait for each other's prompts
more and are interrupted less; the first loads of the mixture of experts, which compiled kernels for seconds; and small
models (FP8 and 4B) at a rate near their limit, where the host bounds them: its launches vary from step to step, and waits
grow with that. **There a plan is too hopeful**: the last row has the size and the sign.
"""
HEADROOM = """### A plan with headroom, served

`plan --gpu H200 --headroom 20%` was asked for four models in bf16, 1,500 tokens in and 250 out in the mean, each at 95 % of
the highest rate for which it buys one GPU. The requests of two loads, at that rate and at 1.2 times it, and what the simulator
says of these very requests were written down before the run, and have not been changed since (`benchmarks/bench_headroom.py`).
A vLLM 0.26.0 with the plan's flags then served them. Limits: one H200, the client on the same machine of 16 cores, bf16 alone,
dummy weights (which route to all experts in bf16: `benchmarks/data/vllm_h200_experts/README.md`), and 70 to 100 s a load that
begins with an empty server, so that a p99 is the third to eleventh longest of its requests. Logs of Llama 3.1 8B and Qwen3
30B-A3B shaped the host's times in earlier runs; Qwen3 14B and Gemma 3 27B shaped nothing.
"""
HEADROOM_TAIL = """What stands out: TPOT of the dense models is predicted too low, of Llama 3.1 8B and Qwen3 14B most. **There a plan is too
hopeful**: the loads stand 5 % below the limit; at the limit itself, where the predicted TPOT p99 is the SLO, such an error is a
miss. The mixture of experts is predicted too slow, above all its first tokens: this host launched its prompts of more than 512
tokens in less time than the host that was fitted.
"""
BLIND = """### Five servers predicted blind

Three models of experts and a dense one that nothing here had been fitted on, on one H200 under vLLM 0.26.0 (`benchmarks/bench_blind.py`):
small experts with scales for blocks (ERNIE 4.5 21B), latent attention in bf16 (GLM 4.7 Flash), large experts with scales for channels (GLM
4.5 Air), Mistral Small 24B in bf16 and in FP8. Requests, predictions and the highest rate under the SLOs were committed before the run, on the
default host; each cell gives what was measured, how far that prediction was off, and in brackets today's. Between the two stand two
mendings whose causes these runs showed: decode steps are padded to the next captured graph, and experts of a size that vLLM was not tuned
for take larger tiles, both as its source has it; and FP8 products of Hopper GPUs come in whole tiles, fitted on timings of kernels. Their
host moved the default one from 9.4 to 9.1 µs a small launch, GLM 4.5 Air spoke for the kernels of blocks beside experts with scales for
channels, and the intervals were learned on these servers too. So what stands in brackets is no blind test; what stands before them is.

Limits: one host, faster than any before (5.9 µs for a small launch; the default is 9.1); weights are dummies, with vLLM's own switch for even
routing; prefix cache off; DeepGEMM, which an ordinary installation has, off (on one Hopper GPU vLLM 0.26 takes it for dense products with
scales for blocks and not for experts); 34 to 50 s a load, so that a p99 is the second to ninth longest of its requests.
"""
BLIND_TAIL = """What stands out: **ERNIE beyond 128 sequences is predicted too fast**, and near its limit that makes a plan too hopeful. Alone it is
predicted too slow: its shared experts ran beside the others, which is not modelled. GLM 4.7 Flash has 47 layers to launch, and this host launched
them faster than the default. **With this host's own launches first tokens are predicted too early**, by a tenth in the median: what such a fast
host waits for is not its launches alone, so a probe of a very fast host makes a plan more hopeful than these loads bear out.
"""
EXPERTS = """### Experts on a real engine

vLLM 0.26.0 on H200s, requests simulated as they were sent (`benchmarks/bench_experts.py`): Qwen3 30B-A3B at Poisson rates in FP8
blocks and in bf16 (*rates*, a third machine), the two loads of the plan above as they are predicted now (*headroom*), a replayed
trace and closed loops on another day (*replays*), and closed loops of the machines whose launches taught (*loads*, with
DeepSeek-V2-Lite). No latency taught anything; but the host's middle, sorting and the form of FP8 products were settled after the
errors of rates, headroom and replays had been seen, so these are no blind test.
Dummy weights in FP8, and those of DeepSeek-V2-Lite, sent every token to the same experts; such runs are predicted with
`--visited-experts`.

Prompts of more than 512 tokens are launched kernel by kernel, so these latencies are the host's as much as the GPU's. A host is
one number, which `calibrate --probe` times: *its own* is the machine's where it was timed (the headroom's is taken from its
launches), *default* the middle of all hosts, the blind servers' among them. The
rates ran on the host whose number is the default, so both rows are alike.
"""
EXPERTS_TAIL = """What stands out: a faster host than the default (headroom) has its first tokens predicted much too late, and
its own number mends that. Medians of first tokens in a closed loop of 120 to 192 users are of two kinds, those that came
first and those that waited, and fall between.
"""
LEVERS = """### Levers, with and without

vLLM 0.26.0 on one H200 served loads with and without a lever along one axis or two (`benchmarks/bench_levers.py`), each predicted before:
what a lever saves, whether it pays, and where it starts to. Every cell, and what was left out: [levers, measured](levers-measured.md).
"""
TWIN = """### A twin beside a real vLLM

vLLM 0.26.0 on one H200 served Llama 3.1 8B while its load was changed every minute, another job took the GPU, and a server
with other flags took its place; its metrics pages were recorded (`benchmarks/measure_twin.py`) and played to a [twin](questions/what-will-my-server-do-next.md)
in windows of half a minute, the first three not counted (`benchmarks/bench_twin.py`). Nothing was fitted on them, but the intervals and the
naming of causes were mended after the first look: *first look* is the code before that, *today* is no blind test.
"""
GUARD = """### Two builds of a real vLLM

The same model started in five ways, side by side on one H200, fingerprinted by [`guard`](questions/is-the-new-build-slower.md), and loaded
until its SLOs broke (`benchmarks/measure_guard.py`, `bench_guard.py`). *From flags alone* is what the simulator expected of each before anything was
measured. The change of dollars is as simulated from two fingerprints, beside that of the rates that were measured. How causes are found was mended after
the first look, and how far equal servers drift apart was read off these very fingerprints: what is found here shows that the parts
hold together, and is no test of another server.
"""
TODAY = """### Near the limit, and the highest rate

Today's model on the same requests, on others at Poisson rates, and on one trace near saturation under three sets of flags, each of the same
kinds of lengths (log-normal, 1,500 tokens in and 250 out; the servers' prefix caches found nothing). What attention of unequal contexts
costs was fitted on decode steps of Llama 3.1 8B, of its planned loads among others; what prompts and answers cost beside each other, on
steps of their own. Times to the first token and per token of these loads taught nothing, but were looked at when one of several forms
was chosen for both.
"""
HIGHEST = """The highest rate that meets the SLOs is where the first of them is reached, if the logarithm of its figure is interpolated
over the rates that were served, and of the predictions alike; up to 15 % beyond them. A p99 of so few requests scatters by several per cent.
"""
LATENCY = """### Whole requests

End to end, a request takes TTFT + (output − 1) × TPOT. Mean absolute percentage errors over the loads above whose requests were
recorded one by one, and over those of five servers that were predicted blind (`benchmarks/bench_blind.py`), all by today's model
on the default host; loads of a single user are left out (`benchmarks/bench_latency.py`):
"""
LEFT_OUT = """## Groups left out of everything

`published_more.csv.gz` has results of other GPUs and engines. A third of its groups of source, model, GPU and engine, chosen
by a hash of their names (`benchmarks/reduce_published.py`), taught nothing, and their sums decided one choice (above); the others taught the
engines' eras and the intervals. Of the third, {predicted:,} of {rows:,} rows are predicted ({share}). Throughput and TPOT, by
how the speed is known (of the GPU's kernels and of the engine's era, whichever is known less), by era, GPU and source:
"""
ROWS = {"judge": "left out of everything", "dev": "looked at, not fitted on", "calibrate": "fitted on"}
FIRST_TOKENS = "Time to the first token of the same groups:"
ODD = """## Rows that look mislabelled

They are kept in every figure above but the last two of the groups left out, and those of the first table taught nothing: half of
a sweep or more is faster than its load can be served with every byte at full bandwidth or every FLOP at peak, so that it cannot
have run as it is labelled (of groups left out, only sums are given, above):

| source | model | GPU | engine | rows |
|---|---|---|---|--:|
{impossible}

Rows off by more than 60 % as they are labelled, and within 10 % with another number of GPUs to a layer:
"""
ACCELERATORS = """## Macs, DGX Spark, Strix Halo, TPUs, Trainium2

Nobody timed kernels of these for this project: a speed is the datasheet's, times an efficiency from a microbenchmark or of
another family, with the widest interval. The rows (`benchmarks/data/published_accelerators.csv`, scored by
`benchmarks/bench_accelerators.py`) fitted nothing. Those of Apple were looked at before one choice: with tiles for single
rows, as a data-centre GPU has them, 4-bit answers on a Mac came out up to 2.4 times too slow; llama.cpp's Metal kernels have no
such tiles. Of {rows} rows {predicted} are predicted, {inside} of them inside the interval. *Answers* are throughput and time per
token, *prompts* are prompts alone and first tokens.
"""
ACCELERATORS_TAIL = """What stands out: **prompts on a Strix Halo are predicted far too fast**, as llama.cpp's matrix kernels there reached a small
share of the chip's rate in 2025, and so are prompts of dense 8-bit models on a DGX Spark. vLLM on a TPU took up to twice as long as
SGLang's JAX engine in the same comparison; both are predicted with those engines' times on NVIDIA GPUs. The MI355X stands in for the MI350X.
No published result that states model, lengths and load was found of MI350X, TPU v5e, TPU7x, M4 Pro, M4 Max or M5.
"""
BUILDS = """Rows of one source that differ in nothing but the engine's build, and by more than 40 %: what else ran is not said.
DeepSeek R1 on TensorRT-LLM drafts in some recipes of InferenceMAX, and the rows do not say which; that build taught nothing.
DeepSeek V3 on SGLang and B200s waits 5 to 9 s for its first token, longer with 8 users than with 64: kernels seem to have been
compiled during the run; what these first tokens took taught nothing.
"""
ACCURACY_TAIL = """## What to know

- Settings that sources state outside their tables are taken from there: how many requests TensorRT-LLM's tables queue, which
  of them share experts among replicas of the attention, how InferenceMAX's recipes set up SGLang and TensorRT-LLM
  ([data](../benchmarks/data/README.md)). They were read for all rows of a source, those left out as well.
- InferenceMAX runs vLLM with `--async-scheduling` and graphs of up to 2,048 tokens, as its recipes set it, and is predicted
  so; the row "as it comes" is what we would say without knowing that. We chose the switches knowing this source, so its
  row flatters us a little.
- The first decode row of the published results is in-sample for PyTorch's attention and for the time between layers. The six other models were
  measured after the predictions were frozen (`benchmarks/measure_steps.py`, one H200): about 5 % too slow throughout, most
  of it in attention; multi-head attention (Llama 2) runs another kernel there, and long prompts ran on a slower one.
- The intervals of bare steps were learned with an engine's kernels, which were not fitted on them, and on both files.
- Intervals are chosen so that they hold on sources, GPUs and eras that are left out in turn; the rows that were only looked at
  are of sources that also taught, and more of them are inside.
- vLLM 0.8 to 0.13: two figures for the host fit what taught them within 8 %. Half of the rows left out are of one sweep that
  beats the datasheet (FP8 on an H200, 0.12.0), as do two of the three rows of that build, source and format that might have taught.
  The others are served at a rate on cards over PCIe, and of no metric are more than 70 % inside: two and four RTX 4090 took 0.1 to
  4 s to a first token, longest at the lowest rate, in the rows that taught as well. No row says why, so no figure was fitted to it.
- An era's intervals are those of the architectures that taught it. TensorRT-LLM of 2025 on Blackwell (NVFP4) has its class's.
- The tables by group are of H100 and H200. Other GPUs stand on their own kernel timings (L40S, B200, B300,
  GB200, GB300, RTX PRO 6000), on a relative's scaled by the datasheet, or on another family's: the groups left out show how
  far off that is.
- Tensor parallelism over PCIe rests on one machine of RTX PRO 6000 beyond two GPUs. The one machine of L40S that was timed
  took 4 to 6 times as long for each byte, and published throughput of L40S and A100 PCIe shows that it was odd.
- The ranking mostly orders numbers of GPUs: few published groups hold two kinds of GPU, none three.
- Closed loops and runs at a rate are simulated as they were run; the number of requests is what the source says, or ten a
  user. Time to the first token is still the weak spot: what else these benchmarks' clients did is not published. Users of
  equal lengths move in step, so few prompts fall between answers: TPOT of such runs is predicted low, and its interval,
  learned on them, is lopsided.
- Lambda sends one burst of requests and drains it; here its rows are simulated as users in a loop, as the table gives
  them. Simulated as that burst, they are as far off: throughput comes out far too high, likely because answers of all
  lengths are drained, of which only the mean is published.
- Only today's vLLM has launches and request times from a log of its own. Those of TensorRT-LLM and SGLang come from a few
  published rows, or are vLLM's ([which](physics.md#the-engine)).
- **Engines are not of one age here**: vLLM's log is of 0.26, the rows of TensorRT-LLM are of 1.0 and older, those of SGLang of
  0.5.1. Predictions of one against another compare these versions, not what is out today.
- Errors of single kernels on shapes held out: `benchmarks/results/kernels-matrix.txt` and `kernels-attention.txt`. Dense
  products and attention are within 8 % at the median; fused experts are not everywhere (typically 9 %, up to 13 %).
- Early support of a new model in an engine can be several times slower than its kernels allow, and is not foreseen.
"""


def accuracy_table() -> str:
    """The errors of the last benchmark run, with its date."""
    result = _accuracy()
    lines = [
        "| measured | n | median error | p90 | bias | inside 80 % interval | target |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for name, group in result["rows"].items():
        lines.append(f"| {name} | {_figures(group)} | {group['target']}{_missed(group)} |")
    ranking = f"Ranking of GPUs within one source, model and load: Spearman {result['spearman']:.2f} (target ≥ 0.9)."
    made = f"Made by `{result['command']}` on {result['date']}, {result['machine']}."
    return "\n".join([*lines, "", f"{ranking} {made}"])


def _missed(group: dict[str, Any]) -> str:
    """What of a row's target it does not reach, as the figures are printed."""
    median, p90 = (math.expm1(group[f"{which}_abs_log_error"]) * 100 for which in ("median", "p90"))
    bias, inside = abs(math.expm1(group["bias"])) * 100, group["inside_interval"] * 100
    limits = (
        (r"median ≤ ([\d.]+)", "median", median),
        (r"p90 ≤ ([\d.]+)", "p90", p90),
        (r"bias ±([\d.]+)", "bias", bias),
    )
    over = [
        name
        for pattern, name, value in limits
        if (found := re.search(pattern, group["target"])) and round(value) > float(found[1])
    ]
    band = re.search(r"(\d+)–(\d+) % inside", group["target"])
    if band and not float(band[1]) <= round(inside) <= float(band[2]):
        over.append("inside")
    return f" (**missed**: {', '.join(over)})" if over else ""


SHORT = {
    "H200 steps of six other models, decode": "decode step of a bare model on an H200, six models not fitted on",
    "groups left out of everything, throughput and TPOT": "published results of other GPUs and engines, throughput and "
    "time per token",
    "groups left out of everything, TTFT": "the same, time to the first token (queueing: the weak spot)",
}
"""The rows that a reader of the first screen needs, in plain words."""


def short_accuracy_table() -> str:
    """A real engine, plans with headroom on it and three rows of the accuracy table, nothing of them fitted on."""
    result = _accuracy()
    lines = [
        "| predicted against measured | n | median error | bias | inside the 80 % interval |",
        "|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row.what} | {row.n} | at most {row.at_most * 100:.1f} % for either model | – | – |"
        for row in unseen_errors()
    ]
    lines += [*_unseen_blind(), _unseen_headroom()]
    for name, plain in SHORT.items():
        n, median, _, bias, inside = _figures(result["rows"][name]).split(" | ")
        lines.append(f"| {plain} | {n} | {median} | {bias} | {inside} |")
    ranking = f"GPUs are ranked as measured with a Spearman correlation of {result['spearman']:.2f}."
    return "\n".join([*lines, "", f"{ranking} Made by `{result['command']}` on {result['date']}, {result['machine']}."])


def real_engine_table() -> str:
    """A real vLLM on an H200, group by group: the median load, and the worst."""
    result = _result("vllm")
    figures = ["throughput", "TPOT p50", "TTFT p50", "TPOT p99", "TTFT p99"]
    lines = [f"| median error (worst load) | loads | {' | '.join(figures)} |", f"|---|--:|{'--:|' * len(figures)}"]
    for label, found in result["groups"].items():
        cells = [
            f"{found[name]['median']:.1%} ({found[name]['worst']:.0%})" if name in found else "–" for name in figures
        ]
        lines.append(f"| {label} | {found['throughput']['n']} | {' | '.join(cells)} |")
        if label not in result["calibrated"]:
            cells = [f"{found[name]['bias']:+.1%}" for name in figures]
            lines.append(f"| – their median error with its sign | | {' | '.join(cells)} |")
        learned = result["calibrated"].get(label)
        if learned:
            cells = [f"{learned[name][0]:.1%} → {learned[name][1]:.1%}" if name in learned else "–" for name in figures]
            said = "– before → after `calibrate` on every second load, on the others"
            if all(before == after for before, after in learned.values()):
                cells = [f"{learned[name][0]:.1%}" if name in learned else "–" for name in figures]
                said = "– on the other loads, of which no correction that every second load taught made any better"
            lines.append(f"| {said} | | {' | '.join(cells)} |")
    made = f"Made by `{result['command']}` on {result['date']}, {result['machine']}."
    return "\n".join([*lines, "", made])


def loop_table() -> str:
    """Plan, serve, measure: our own load test and meter on that server."""
    result = _result("vllm")
    data = json.loads(gzip.decompress((RESULTS.parent / "data" / "vllm_h200_loop.json.gz").read_bytes()))
    lines = [
        "| `tokonomics bench`, 1,000 in / 200 out | TTFT p50, measured / predicted | TTFT p99 | TPOT p50 | TPOT p99 |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in result["loop"]:
        pairs = [
            f"{row['measured'][name] * 1e3:.1f} / {row['predicted'][name] * 1e3:.1f} ms"
            for name in ("TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")
        ]
        rate = row["load"].split(", ")[1]
        lines.append(f"| {row['model']} {row['weights']}, {rate} | {' | '.join(pairs)} |")
    tokens = [sum(each["server"].values()) for each in data["sessions"]]
    plan = data["sessions"][1]["plan"]
    measured = result["loop"][len(data["sessions"][0]["points"])]["measured"]
    return "\n".join(
        [
            *lines,
            "",
            f"**Tokens.** Bench, meter and the server's own counters agree to the token: {tokens[0]:,} and {tokens[1]:,}.",
            "",
            f"**The plan.** `{plan['command']}` said, before Qwen3 4B had been measured: {plan['said']}, TTFT p99 "
            f"{plan['ttft_p99_s'] * 1e3:.0f} ms, TPOT p99 {plan['tpot_p99_s'] * 1e3:.1f} ms, and that it holds up to "
            f"{plan['holds_up_to']:g} requests/s. Served so and loaded with 30 requests/s, both targets (250 and 25 ms) "
            f"were met: {measured['TTFT p99'] * 1e3:.0f} and {measured['TPOT p99'] * 1e3:.1f} ms. The rate up to which it "
            "holds was too high: at 34 both were missed.",
        ]
    )


HEADROOM_UNSEEN = ("qwen3-14b", "gemma-3-27b")
"""Models served as a plan with headroom says that shaped nothing; logs of the others taught the host."""


def _unseen_headroom() -> str:
    """Return the errors of those models' p99s as a row: the larger median of any model and figure."""
    loads = _result("headroom")["loads"]
    unseen = [load for load in loads if load["model"] in HEADROOM_UNSEEN]
    errors = {
        (model, figure): [load["errors"][figure] for load in unseen if load["model"] == model]
        for model in HEADROOM_UNSEEN
        for figure in ("TPOT p99", "TTFT p99")
    }
    at_most = max(statistics.median(map(abs, found)) for found in errors.values())
    bias = statistics.median(error for found in errors.values() for error in found)
    what = (
        "plans with 20 % headroom for two more models, served at their rate and at 1.2 times it: p99 of TPOT and time to the first "
        f"token (SLOs met in {_kept(unseen)} of {len(unseen)} loads; of all four models, {_kept(loads)} of {len(loads)})"
    )
    n = sum(map(len, errors.values()))
    return f"| {what} | {n} | at most {at_most * 100:.1f} % for either model | {bias * 100:+.1f} % | – |"


def _unseen_blind() -> list[str]:
    """Return what had been predicted of the servers that were predicted blind: rows for experts and for the dense model."""
    sums = _result("blind")["sums"]
    kinds = {"experts": "three models of experts", "dense": "a dense model in bf16 and FP8"}
    rows = []
    for (kind, models), share in product(kinds.items(), ("p50", "p99")):
        both = [sums[f"{kind}, errors_before"][f"{figure} {share}"] for figure in ("TPOT", "TTFT")]
        what = f"{models} on a real vLLM, predicted before they were served: {share} of TPOT and of time to the first token"
        medians = " and ".join(f"{found['median'] * 100:.1f} %" for found in both)
        biases = " and ".join(f"{found['bias'] * 100:+.1f} %" for found in both)
        rows.append(f"| {what} | {2 * both[0]['n']} | {medians} | {biases} | – |")
    return rows


def _kept(loads: list[dict[str, Any]]) -> int:
    return sum(all(slo["met"] for slo in load["slos"]) for load in loads)


def headroom_table() -> str:
    """Return a row for each load of the plans with headroom: its SLOs, what was measured and what had been predicted."""
    result = _result("headroom")
    lines = [
        "| served, requests/s | requests | SLOs | TTFT p99, measured / predicted (SLO) | TPOT p99 | TTFT p50 | TPOT p50 |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for load in result["loads"]:
        targets = {slo["figure"]: f" (≤ {slo['target_s'] * 1e3:,.0f})" for slo in load["slos"]}
        cells = [
            f"{load['measured'][name] * 1e3:,.{digits}f} / {load['predicted'][name] * 1e3:,.{digits}f} ms"
            f"{targets.get(name, '')}, {load['errors'][name] * 100:+.0f} %"
            for name, digits in (("TTFT p99", 0), ("TPOT p99", 1), ("TTFT p50", 0), ("TPOT p50", 1))
        ]
        met = "met" if _kept([load]) else "**missed**"
        asked = f"{load['model']}, {load['rate']:g} × {load['times']:g}"
        lines.append(f"| {asked} | {load['requests']:,} | {met} | {' | '.join(cells)} |")
    closest, load = min(
        (((slo["target_s"] - slo["measured_s"]) / slo["target_s"], slo["figure"]), load)
        for load in result["loads"]
        for slo in load["slos"]
    )
    errors = ", ".join(
        f"{figure} {found['median'] * 100:.0f} % ({found['worst'] * 100:.0f} %; {found['bias'] * 100:+.0f} %)"
        for figure, found in result["errors"].items()
    )
    said = (
        f"Every SLO met in {_kept(result['loads'])} of {len(result['loads'])} loads, the closest by {closest[0] * 100:.0f} % "
        f"({closest[1]} of {load['model']} at {load['times']:g} times its rate). Median error (worst; with its sign): {errors}."
    )
    return "\n".join([*lines, "", f"{said} Served on {result['served']}. {_made(result)}"])


def twin_lines() -> str:
    """Return how well a twin expected a real server: at the first look, and today."""
    today, first = _result("twin"), _result("twin-blind")

    def row(name: str, result: dict[str, Any], part: dict[str, Any]) -> str:
        found = {(score["name"], score["kind"]): score for score in part["scores"]}
        errors = [
            percent(found[figure, kind]["error"])
            for kind in ("given", "forecast")
            for figure in ("tpot_s", "ttft_p99_s")
        ]
        held = [percent(found["latencies", kind]["coverage"]) for kind in ("given", "forecast")]
        return f"| {name} | {part['windows']} | {errors[0]} | {errors[1]} | {held[0]} | {errors[2]} | {errors[3]} | {held[1]} |"

    lines = [
        "| windows | | TPOT, given its traffic | TTFT p99 | within 80 % | TPOT, forecast | TTFT p99 | within 80 % |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        row("first look", first, first),
        row("today", today, today),
        row("today, without those in which something began", today, today["undisturbed"]),
        "",
        "Errors are medians; *within* counts all latencies. A forecast cannot know that something will begin. Named were:",
        "",
    ]
    began = [(round(each["window"]), each["name"]) for each in today["stretches"]]
    for change in today["changes"]:
        at, name = max(each for each in began if each[0] <= change["window"])
        lines.append(f"- {name}, window {at}: *{change['what']}* ({change['cause']}, in window {change['window']})")
    unnamed = [
        name for at, name in began if at and not any(at <= change["window"] <= at + 1 for change in today["changes"])
    ]
    if unnamed:
        lines += [
            "",
            f"Not named: {', '.join(unnamed)}. After so few windows a twin does not know how much this traffic varies.",
        ]
    return "\n".join(lines)


def guard_lines() -> str:
    """Return which changes of a build were found on a real server, and what they were said to cost."""
    result = _result("guard")
    lines = [
        "| build | requests/s, measured | from flags alone | verdict | found | change of dollars, off by |",
        "|---|--:|--:|---|---|--:|",
    ]
    rows = {row["build"]: row for row in result["changes"]}
    for build, (said, measured, off) in result["blind"].items():
        row = rows.get(build)
        found = "; ".join((row["said"] or row["told"]) if row else []) or "–"
        off_usd = signed(row["change_off"]) if row else "–"
        lines.append(
            f"| {build} | {measured:.1f} | {said:.1f} ({signed(off)}) | {row['verdict'] if row else '–'} | {found} | {off_usd} |"
        )
    alike = result["alike"]
    return "\n".join(
        [*lines, "", f"Equal builds, five fingerprints of one: {alike['alarms']} alarms in {alike['pairs']} pairs."]
    )


def signed(share: float) -> str:
    return f"{100 * share:+.1f} %"


def levers_lines() -> str:
    """Return how well savings of levers were predicted: before the run, and today."""
    result = _result("levers")
    cells, turns = result["sums"]["all"], result["boundary_sums"]
    lines = [
        "| predicted | right sign | off where it pays, median | off in all cells | turns at the same step | within one |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for side, name in (("before", "before the run"), ("today", "today")):
        sums = cells[side]
        off = [f"{sums[figure] * 100:.1f} points" for figure in ("off_where_saving", "off")]
        beside = [f"{turns[side][figure]} of {turns['turning']}" for figure in ("same", "within_one")]
        lines.append(f"| {name} | {sums['right']} of {cells['cells']} | {' | '.join((*off, *beside))} |")
    return "\n".join(lines)


def blind_table() -> str:
    """Return what was measured of each load, what had been predicted and what is today, their sums and the highest rates."""
    result = _result("blind")
    figures = ("TPOT p50", "TPOT p99", "TTFT p50", "TTFT p99")
    lines = [f"| served | load | {' | '.join(figures)} |", f"|---|---|{'--:|' * 4}"]
    for load in result["loads"]:
        cells = [
            f"{load['measured'][name] * 1e3:,.{1 if name.startswith('TPOT') else 0}f} ms {load['errors_before'][name] * 100:+.0f} % "
            f"({load['errors'][name] * 100:+.0f} %)"
            for name in figures
        ]
        lines.append(f"| {load['series']} | {load['load']} | {' | '.join(cells)} |")
    lines += ["", f"| median error (worst; with its sign) | n | {' | '.join(figures)} |", f"|---|--:|{'--:|' * 4}"]
    sides = [("errors_before", "predicted before the run"), ("errors", "today")]
    sums = [(f"{kind}, {said}", f"{kind}, {side}") for kind in ("experts", "dense") for side, said in sides]
    own = ("all, today and with this host's launches", "all, on their own host")
    for said, name in [*sums, ("all, today", "all, errors"), own]:
        found = result["sums"][name]
        cells = [
            f"{found[figure]['median']:.1%} ({found[figure]['worst']:.0%}; {found[figure]['bias']:+.0%})"
            for figure in figures
        ]
        lines.append(f"| {said} | {found['TPOT p50']['n']} | {' | '.join(cells)} |")
    before, now = (
        ", ".join(f"{found[name]} ({name})" for name in figures)
        for found in (result["sums"][side] for side in ("inside_before", "inside"))
    )
    lines += ["", f"Inside today's 80 % intervals, which these servers helped to teach, lie of {len(result['loads'])} loads: {before} around "
              f"what was predicted before the run, and {now} around today's predictions."]  # fmt: skip
    lines += ["", "| highest rate | SLOs | measured | predicted before the run | today |", "|---|---|--:|--:|--:|"]
    for row in result["highest_rates"]:
        cells = [
            "–"
            if not row[name]
            else f"{row[name]:.1f}/s" + (_off(row[name], row["measured"]) if name != "measured" else "")
            for name in ("measured", "before", "predicted")
        ]
        lines.append(f"| {row['series']} | `{row['slo']}` | {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            f"A dash: further than 15 % beyond the rates that were served. Served on {result['served']}. {_made(result)}",
        ]
    )


def _off(predicted: float, measured: float | None) -> str:
    return f" ({(predicted / measured - 1) * 100:+.0f} %)" if measured else ""


def experts_table() -> str:
    """Return the errors of experts on a real vLLM: loads by source and host, the highest rates, and what calibrate finds."""
    result = _result("experts")
    figures = ["TPOT p50", "TPOT p99", "TTFT p50", "TTFT p99"]
    lines = [
        f"| median error (worst; with its sign) | host | loads | {' | '.join(figures)} |",
        f"|---|---|--:|{'--:|' * 4}",
    ]
    for source, group in result["groups"].items():
        for where, named in (("errors", "default"), ("on_own_host", "its own")):
            found = group[where]
            if found:
                cells = [
                    f"{found[name]['median']:.1%} ({found[name]['worst']:.0%}; {found[name]['bias']:+.0%})"
                    if name in found
                    else "–"
                    for name in figures
                ]
                lines.append(f"| {source} | {named} | {found['TTFT p50']['n']} | {' | '.join(cells)} |")
    lines += ["", "| highest rate under an SLO on the TPOT p99 | measured | predicted | off |", "|---|--:|--:|--:|"]
    lines += [
        f"| {row['series']}, {row['slo_s'] * 1e3:.0f} ms | {row['measured']:.1f}/s | {row['predicted']:.1f}/s | {row['error'] * 100:+.0f} % |"
        for row in result["highest_rates"]
    ]
    lines += [
        "",
        "| decode steps of up to 512 sequences | error | `calibrate` on every second: experts visited | on the others |",
    ]
    lines += ["|---|--:|--:|--:|"]
    learned = {row["server"]: row for row in result["calibrated"]}
    for row in result["steps"]:
        found = learned.get(row["server"])
        after = f"{found['experts']:.0%} | {found['before']:.1%} → {found['after']:.1%}" if found else "– | –"
        lines.append(f"| {row['server']} | {row['decode']['median']:.1%} ({row['decode']['bias']:+.1%}) | {after} |")
    return "\n".join([*lines, "", _made(result)])


def latency_table() -> str:
    """Return the mean absolute percentage errors of whole requests on a real vLLM, a row for each group of loads."""
    result = _result("latency")
    figures = list(result["groups"]["all"]["errors"])
    lines = [f"| loads | n | requests | {' | '.join(figures)} | its sign (median) |"]
    lines.append(f"|---|--:|--:|{'--:|' * (len(figures) + 1)}")
    for name, found in result["groups"].items():
        cells = " | ".join(f"{found['errors'][figure]:.1%}" for figure in figures)
        lines.append(f"| {name} | {found['loads']} | {found['requests']:,} | {cells} | {found['bias']:+.1%} |")
    return "\n".join([*lines, "", _made(result)])


def today_table() -> str:
    """Return what today's model makes of every load that was served at a rate: a row each, its errors."""
    figures = ("TPOT p50", "TPOT p99", "TTFT p50", "TTFT p99")
    lines = [f"| load | requests/s | {' | '.join(figures)} |", "|---|--:|--:|--:|--:|--:|"]
    for load in _result("headroom")["today"]:
        cells = " | ".join(f"{load['errors'][figure] * 100:+.0f} %" for figure in figures)
        lines.append(f"| {load['kind']} | {load['rate']:.1f} | {cells} |")
    return "\n".join(lines)


def limits_table() -> str:
    """Return the highest rate under SLOs of each kind of load, measured and predicted, and the median errors."""
    limits = _result("headroom")["limits"]
    lines = ["| loads | SLOs | highest rate, measured | predicted | error |", "|---|---|--:|--:|--:|"]
    for limit in limits:
        measured, predicted = (f"{limit[name]:.1f}/s" if limit[name] else "–" for name in ("measured", "predicted"))
        error = "–" if limit["error"] is None else f"{limit['error'] * 100:+.1f} %"
        lines.append(f"| {limit['kind']} | `{limit['slo']}` | {measured} | {predicted} | {error} |")
    medians = []
    for name, experts in (("dense models", False), ("experts", True)):
        errors = [abs(one["error"]) for one in limits if one["error"] is not None and one["experts"] is experts]
        if errors:
            medians.append(f"{name} {statistics.median(errors) * 100:.1f} % (n {len(errors)})")
    return "\n".join([*lines, "", f"Median error: {', '.join(medians)}. A dash: beyond what was served."])


def headroom_line() -> str:
    """Say in a sentence how often plans with headroom met their SLOs when they were served."""
    result = _result("headroom")
    loads = result["loads"]
    models, most = len({load["model"] for load in loads}), max(load["times"] for load in loads)
    return (
        f"Such plans for {models} models ({result['headroom'] * 100:.0f} %), each at {result['share_of_highest_rate'] * 100:.0f} % of the "
        f"highest rate that one {result['gpu']} holds with it, were served by a real vLLM: every SLO was met in {_kept(loads)} of "
        f"{len(loads)} loads, at the planned rate and at {most:g} times it ([accuracy](accuracy.md#a-plan-with-headroom-served))."
    )


def accuracy_page() -> str:
    """docs/accuracy.md: what was scored, how it came out, and what it does not show."""
    result = _accuracy()
    parts = [ACCURACY_HEAD, UNSEEN_FIRST, short_accuracy_table(), ""]
    parts += ["## A real engine", "", REAL_ENGINE, real_engine_table(), "", loop_table(), ""]
    parts += [HEADROOM, headroom_table(), "", HEADROOM_TAIL]
    parts += [TODAY, today_table(), "", HIGHEST, limits_table(), ""]
    parts += [BLIND, blind_table(), "", BLIND_TAIL]
    parts += [EXPERTS, experts_table(), "", EXPERTS_TAIL]
    parts += [LEVERS, levers_lines(), ""]
    parts += [TWIN, twin_lines(), "", GUARD, guard_lines(), ""]
    parts += [LATENCY, latency_table(), ""]
    parts += _left_out(result["left_out"])
    parts += ["## Published results", "", accuracy_table(), "", "![Predicted over measured](img/accuracy.png)", ""]
    parts += ["## By group", "", "Throughput and TPOT of the published rows that nothing was fitted on.", ""]
    for kind, groups in result["by"].items():
        parts += _table(kind, groups)
    parts += [
        _accelerators(),
        "",
        _beside_aisimulate(),
        "",
        _beside_aiconfigurator(),
        "",
        _regret(),
        "",
        _odd_rows(),
        "",
    ]
    parts += [
        "## Not predicted",
        "",
        "Of the rows left out, and of those only looked at.",
        "",
        "| rows | reason |",
        "|--:|---|",
    ]
    reasons = Counter(result["not_predicted"]) + Counter(result["left_out"]["not_predicted"])
    parts += [f"| {number} | {reason} |" for reason, number in reasons.most_common()]
    return "\n".join([*parts, "", ACCURACY_TAIL])


def _left_out(groups: dict[str, Any]) -> list[str]:
    """The groups that taught nothing: throughput and TPOT, then first tokens."""
    share = _whole(groups["predicted"] / groups["rows"])
    parts = [LEFT_OUT.format(predicted=groups["predicted"], rows=groups["rows"], share=share)]
    parts += [line for kind in ("speed", "era", "gpu", "source") for line in _table(kind, groups["by"][kind])]
    parts += [_narrow(groups["by"]), "", FIRST_TOKENS, ""]
    return parts + [line for kind in ("speed", "era") for line in _table(kind, groups["first_tokens"][kind])]


def _narrow(groups: dict[str, Any]) -> str:
    """The groups on which intervals fail, so that nobody has to look for them."""
    found = [
        f"{name} ({group['n']} rows, {_whole(group['inside_interval'])} inside)"
        for kind in ("era", "source")
        for name, group in groups[kind].items()
        if group["n"] >= 4 and group["inside_interval"] < 0.6
    ]
    return f"**Intervals are too narrow for**: {'; '.join(found)}." if found else ""


def _table(kind: str, groups: dict[str, Any]) -> list[str]:
    head = [f"| {kind} | n | median error | p90 | bias | inside |", "|---|--:|--:|--:|--:|--:|"]
    return [*head, *(f"| {name} | {_figures(group)} |" for name, group in groups.items()), ""]


def _accelerators() -> str:
    """The errors on each device whose kernels nobody timed, with the engine and how its speed is known."""
    result = _result("accelerators")
    shares = {"rows": result["rows"], "predicted": result["predicted"], "inside": _whole(result["inside"])}
    lines = [
        ACCELERATORS.format(**shares),
        "| device | of | engines | speed | n | median error | p90 | bias | inside |",
        "|---|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for row in result["devices"]:
        said = f"{row['kind']}{' (looked at)' if row['seen'] else ''}"
        lines.append(f"| {row['gpu']} | {said} | {', '.join(row['engines'])} | {row['speed']} | {_figures(row)} |")
    return "\n".join([*lines, "", ACCELERATORS_TAIL, _made(result)])


def _beside_aisimulate() -> str:
    """Return mean percentage errors on one node of InferenceMAX, as NVIDIA's AISimulate states its own."""
    beside = _result("aiconfigurator")
    lines = [
        "## Beside AISimulate",
        "",
        "NVIDIA's AISimulate states mean absolute percentage errors on single-node points of InferenceX, InferenceMAX's name since "
        "2026: TPOT 28 %, time to the first token 77 %. By the same rule, on the points of InferenceMAX at hand (of 2025 and early "
        "2026: other engines and fewer models; replicas on one node that both prefill and decode; a prediction at half of the measured "
        f"counts 50 %, at twice 100 %); and NVIDIA's aiconfigurator {beside['versions']['aiconfigurator']} on those that both predict:",
        "",
        "| rows | TPOT, n | mean error | first token, n | mean error | both: n | TPOT, ours | aiconfigurator | first token, ours "
        "| aiconfigurator |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for split, found in _accuracy()["single_node"].items():
        cells = [f"{found[metric]['n']:,} | {_whole(found[metric]['mean'])}" for metric in ("tpot_s", "ttft_s")]
        both = beside["single_node"][split]
        cells.append(f"{both['tpot_s']['n']:,}")
        cells += [_whole(both[metric][who]) for metric in ("tpot_s", "ttft_s") for who in ("ours", "aiconfigurator")]
        lines.append(f"| {ROWS[split]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _beside_aiconfigurator() -> str:
    """Cells won and lost of TPOT, and both errors."""
    result = _result("aiconfigurator")
    lines = [
        "## Beside aiconfigurator",
        "",
        f"TPOT of the same InferenceMAX rows by NVIDIA's aiconfigurator {result['versions']['aiconfigurator']}, in an environment "
        "of its own (`benchmarks/bench_aiconfigurator.py`). A cell is an engine, GPU, model, precision and pair of lengths; the "
        "smaller median error has it. Its makers ship these rows, and so have seen all of them. Ours that were fitted on are mostly "
        "mixtures of experts on B200 and B300, new when they were measured: an era has two or three figures for all models, which "
        "cannot follow one of them.",
        "",
        "| rows | n | our median (p90) | aiconfigurator's | cells | lost by us |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, score in result["scores"].items():
        named = ROWS.get(name, name)
        ours, theirs = (
            f"{_percent(score[who]['median_abs_log_error'])} ({_percent(score[who]['p90_abs_log_error'])})"
            for who in ("ours", "aiconfigurator")
        )
        lines.append(f"| {named} | {score['rows']} | {ours} | {theirs} | {score['cells']} | {score['cells_lost']} |")
    lines += ["", "The cells lost, but for those left out of everything, of which only the number is known:", ""]
    lines += ["| cell | n | our median (bias) | aiconfigurator's |", "|---|--:|--:|--:|"]
    for cell in result["lost_cells"]:
        ours, theirs = (_percent(cell[who]) for who in ("ours", "aiconfigurator"))
        lines.append(
            f"| {cell['cell']} | {cell['rows']} | {ours} ({math.expm1(cell['bias']) * 100:+.0f} %) | {theirs} |"
        )
    return "\n".join([*lines, "", _made(result)])


REGRET = """## What is picked

Runs of others that differ only in what is picked, under a target for TPOT (20 to 100 ms): the cheapest by our predictions, its
measured cost over that of the best (`benchmarks/bench_regret.py`). *The layout*: one GPU and one build of the engine, tensor,
expert and data parallelism. *At full load*: rows that state throughput alone. *Free choice*: GPU, layout, precision and users at
once; where the very setting picked misses the target by any margin, its regret is infinite.
"""
REGRET_TAIL = """What stands out, of the rows that were looked at. Experts in MXFP4 (GPT-OSS) are predicted too slow on one GPU and too fast in slices,
so that too many GPUs are picked: TPOT of vLLM on B200 13 to 45 % too high on one, up to 17 % too low on eight; of TensorRT-LLM on
H200 6 to 28 % too high on one, 13 to 23 % too low in eighths, 5 to 33 % too high in whole experts. Where weights leave a few GB (70B
in 16 bits on two A100 PCIe of 80 GB), throughput is a third too high. Where a target lies between two settings, an error of
some per cent is a miss.
"""


def _regret() -> str:
    """Return what the GPU, the layout and the setting that we would pick cost beyond the best ones."""
    result = _result("regret")
    lines = [REGRET, "| picked | prices | rows | cases | as measured | median regret | p90 | target missed |"]
    lines.append("|---|---|---|--:|--:|--:|--:|--:|")
    for question, answered in result["questions"].items():
        for prices, found in answered["by_prices"].items():
            for name, group in found["summary"].items():
                right = f"{group['right']} ({_whole(group['right'] / group['cases'])})"
                figures = f"{group['cases']} | {right} | {_whole(group['median'])} | {_whole(group['p90'])} | {group['missed']}"
                lines.append(f"| {question} | {prices} | {ROWS.get(name, name)} | {figures} |")
    return "\n".join([*lines, "", REGRET_TAIL, _made(result)])


def _odd_rows() -> str:
    result = _result("odd_rows")
    sweeps = (
        f"| {row['source']} | {row['model']} | {row['gpu']} | {row['engine']} {row['version'] or ''} | {row['rows']} |"
        for row in result["impossible"]
    )
    odd = ODD.format(impossible="\n".join(sweeps))
    lines = [odd, "| source | model | GPU | engine | rows | stated | fits |", "|---|---|---|---|--:|--:|--:|"]
    for row in result["other_degree"]:
        what = f"{row['source']} | {row['model']} | {row['gpu']} | {row['engine']} {row['version'] or ''}"
        lines.append(f"| {what} | {row['rows']} | TP={row['stated']} | TP={row['fits']} |")
    lines += [
        "",
        BUILDS,
        "| source | model | GPU | engine | rows | higher, lower | ratio |",
        "|---|---|---|---|--:|---|--:|",
    ]
    for row in result["other_build"]:
        what = f"{row['source']} | {row['model']} | {row['gpu']} | {row['engine']}"
        lines.append(f"| {what} | {row['rows']} | {row['high']}, {row['low']} | {row['ratio']} |")
    return "\n".join([*lines, "", _made(result)])


def _percent(log_error: float) -> str:
    return _whole(math.expm1(log_error))


def _whole(share: float | str) -> str:
    return share if isinstance(share, str) else f"{share * 100:.0f} %"


def _made(result: dict[str, Any]) -> str:
    return f"Made by `{result['command']}` on {result['date']}, {result['machine']}."


def _accuracy() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ACCURACY.read_text(encoding="utf-8"))
    return found


def _result(name: str) -> dict[str, Any]:
    file = RESULTS / f"{name}.json"
    packed = file.with_suffix(".json.gz")  # the long ones, with a row for every load
    result: dict[str, Any] = json.loads(file.read_bytes() if file.exists() else gzip.decompress(packed.read_bytes()))
    return result


def _figures(group: dict[str, Any]) -> str:
    fields = {name: group[name] for name in ErrorSummary.model_fields}
    return " | ".join(figures(ErrorSummary.model_validate(fields)))
