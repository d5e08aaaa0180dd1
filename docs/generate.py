"""Make every output and figure shown in the README and the guide; nothing in them is typed.

    python docs/generate.py            rewrite them
    python docs/generate.py --check    fail if any of them differs from what the code says today

A block between ``<!-- output: COMMAND -->`` and ``<!-- end -->`` holds what that command prints; one between
``<!-- accuracy -->`` and ``<!-- end -->`` the error table of the last ``make bench``, after ``<!-- client -->`` the speed
of our load generator. Outputs are made as of the date
in ``docs/as-of.txt``, so that ages of prices do not change what a check sees.
"""

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/breakeven.md",
    "docs/caching.md",
    "docs/fit.md",
    "docs/cost.md",
    "docs/plan.md",
    "docs/scenario.md",
    "docs/fleet.md",
    "docs/levers.md",
    "docs/physics.md",
    "docs/simulator.md",
    "docs/tenants.md",
    "docs/traffic.md",
    "docs/validate.md",
    "docs/bench.md",
    "docs/calibrate.md",
    "docs/meter.md",
    "docs/meter-fleet.md",
)
CHARTS = {
    "plan.svg": "plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms",
    "fleet.svg": "fleet llama-3.1-8b --demand weekly:20,peak=2,weekend=0.4 --input lognormal:mean=1000,p99=8000 "
    "--output 300 --slo ttft_p99=1,tpot_p99=50ms --provider aws --region us-east-1 --no-replay",
    "simulate.svg": "simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --speed 4 --slo ttft_p99=0.5",
    "cache.svg": "cache --model llama-3.1-8b --gpu H100 --trace mooncake-conversation --tiers dram=200,ssd=2000",
    "tenants.svg": "tenants --model llama-3.1-8b --gpu L4 --arrivals diurnal:1.2,peak=2 --duration 1d --speed 12 "
    "--tenants 10,skew=1 --input 500 --output 100 --slo ttft_p99=2,tpot_p99=200ms",
    "breakeven.svg": "breakeven llama-3.3-70b --api openai:gpt-4o,groq:llama-3.3-70b-versatile,novita:meta-llama/llama-3.3-70b-instruct "
    "--input 1000 --output 300 --slo ttft_p99=1,tpot_p99=80ms --min-weights fp8",
    "compare.svg": "compare llama-3.1-8b qwen2.5-32b llama-3.3-70b --gpu L4,L40S,A100,H100,H200 --rate 20 --input 1000 --output 300 "
    "--quality llama-3.1-8b=0.66,qwen2.5-32b=0.8,llama-3.3-70b=0.86",
    "levers.svg": "levers llama-3.3-70b --gpu H100 --tp 4 --trace azure-conv --slo ttft_p99=2,tpot_p99=80ms "
    "--provider aws --min-weights fp8",
    "stack.svg": "stack llama-3.3-70b --gpu A100-80GB --tp 4 --trace azure-conv --slo ttft_p99=5,tpot_p99=80ms "
    "--provider aws",
    "curve.svg": "curve llama-2-7b --gpu H100 --context 1024",
    "bench.svg": f"import {ROOT / 'tests' / 'measure' / 'results' / 'inferencex.json'} --slo ttft_p50=0.5",
    "meter.svg": f"meter report --ledger {ROOT / 'tests' / 'measure' / 'pages' / 'week.db'} --since 2026-11-09 "
    "--until 2026-11-14 --by day",
    "accuracy.png": f"validate {ROOT / 'benchmarks' / 'data' / 'published.csv.gz'} --split dev",
}
BLOCK = re.compile(
    r"(<!-- (?P<what>output: (?P<command>.+?)|accuracy|client|profile|semantic|document-table|document-bills) -->\n)"
    r".*?(<!-- end -->)",
    re.DOTALL,
)
WIDTH = 122


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages are out of date")
    parser.add_argument("names", nargs="*", help="only these pages, such as docs/plan.md, and no charts")
    options = parser.parse_args()
    _fix_surroundings()
    made = pages(options.names)
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for name, command in [] if options.names else CHARTS.items():
        run(f"{command} --chart {ROOT / 'docs' / 'img' / name}")
    return 0


def pages(names: Sequence[str] = ()) -> dict[Path, str]:
    """Every generated page, or those named, as it should be now."""
    sys.path.insert(0, str(ROOT / "docs"))
    wanted = names or (*WHOLE, *PAGES)
    return {ROOT / name: _made(name) for name in wanted}


def _made(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]()
    return BLOCK.sub(_fill, (ROOT / name).read_text(encoding="utf-8"))


def _claims() -> str:
    from claims import claims_page

    return f"{claims_page()}\nMade by `make docs`, prices as of {_as_of()}.\n"


def run(command: str) -> str:
    """What a command prints."""
    from tokonomics.__main__ import app

    printed = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(shlex.split(command), prog_name="tokonomics", standalone_mode=False)
    text = re.sub(r"Solved in [0-9.]+ s", "Solved in … s", printed.getvalue())  # no two runs take as long
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def commands_page() -> str:
    """docs/commands.md: the help of every verb."""
    verbs = (
        "",
        "plan",
        "diff",
        "fleet",
        "fit",
        "predict",
        "curve",
        "trace",
        "simulate",
        "capacity",
        "cache",
        "levers",
        "stack",
        "tenants",
        "breakeven",
        "own-hardware",
        "compare",
        "cost",
        "bench",
        "import",
        "probe",
        "calibrate",
        "meter",
        "meter watch",
        "meter report",
        "meter files",
        "validate",
        "web",
        "models",
        "gpus",
        "offers",
        "apis",
        "prices refresh",
    )
    parts = ["# Commands", "", "The help of every verb, as the program prints it."]
    for verb in verbs:
        parts += ["", f"## tokonomics {verb}".rstrip(), "", "```text", run(f"{verb} --help".strip()), "```"]
    return "\n".join(parts) + "\n"


def accuracy_table() -> str:
    """The errors of the last benchmark run, with its date."""
    result = _accuracy()
    lines = [
        "| measured | n | median error | p90 | bias | inside 80 % interval | target |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for name, group in result["rows"].items():
        lines.append(f"| {name} | {_figures(group)} | {group['target']} |")
    ranking = f"Ranking of GPUs within one source, model and load: Spearman {result['spearman']:.2f} (target ≥ 0.9)."
    made = f"Made by `{result['command']}` on {result['date']}, {result['machine']}."
    return "\n".join([*lines, "", f"{ranking} {made}"])


def client_table() -> str:
    """How fast the client of ``bench`` is, with the date it was measured."""
    result = json.loads((ROOT / "benchmarks" / "results" / "client.json").read_text(encoding="utf-8"))
    lines = ["| answer | requests/s | tokens/s | per processor second: requests | tokens |", "|---|--:|--:|--:|--:|"]
    for name, case in result["cases"].items():
        figures = ("requests_per_s", "tokens_per_s", "requests_per_cpu_s", "tokens_per_cpu_s")
        lines.append(f"| {name} | {' | '.join(f'{case[each]:,.0f}' for each in figures)} |")
    case, wanted = next(iter(result["cases"].values())), result["targets"]
    met = case["requests_per_cpu_s"] >= wanted["requests_per_s"] and case["tokens_per_cpu_s"] >= wanted["tokens_per_s"]
    target = f"{wanted['requests_per_s']:,} requests/s and {wanted['tokens_per_s']:,} tokens/s on one core"
    said = f"The target, {target}, is {'met' if met else 'not met'} where tokens arrive glued together."
    made = f"Made by `{result['command']}` on {result['date']}, {result['machine']}."
    return "\n".join([*lines, "", f"{said} {made}"])


def profile_table() -> str:
    """Steps and a served model on the H200, with and without a profile."""
    result = json.loads((ROOT / "benchmarks" / "results" / "profile.json").read_text(encoding="utf-8"))
    lines = [
        "| steps on one H200 | n | as shipped | bias | with the probe | bias | p90 |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, rows in result["steps"].items():
        for what, score in rows.items():
            kind, _, model = what.partition(", ")
            if model == "all":
                cells = [f"{score[each][key]:{sign}.1%}" for each, key, sign in _PROFILE_CELLS]
                lines.append(f"| {kind}, {name} | {score['n']} | {' | '.join(cells)} |")
    lines += [
        "",
        "| served by a real engine, held-out loads | judged | time per token | throughput | as counted | time to first token |",
    ]
    lines.append("|---|--:|--:|--:|--:|--:|")
    for name, run in result["loop"].items():
        held = {each["figure"]: f"{_factor(each['before'])} → {_factor(each['after'])}" for each in run["held_out"]}
        held["counted"] = " → ".join(_factor(run["throughput_as_counted"][each]) for each in ("before", "after"))
        row = " | ".join(held[each] for each in ("tpot", "throughput", "counted", "ttft"))
        lines.append(f"| {name} | {run['judged']} of {run['loads']} | {row} |")
    return "\n".join([*lines, "", f"Made by `{result['command']}` on {result['date']}."])


_PROFILE_CELLS = (
    ("shipped", "median", ""),
    ("shipped", "bias", "+"),
    ("probed", "median", ""),
    ("probed", "bias", "+"),
    ("probed", "p90", ""),
)


def _factor(size: float) -> str:
    """An error as a factor, up or down."""
    return f"{math.expm1(size):.1%}" if size < 0.7 else f"{math.exp(size):.1f} ×"


def accuracy_page() -> str:
    """docs/accuracy.md: what was scored, how it came out, and what it does not show."""
    result = _accuracy()
    parts = [ACCURACY_HEAD, accuracy_table(), "", "![Predicted over measured](img/accuracy.png)", ""]
    parts += ["## By group", "", "Throughput and TPOT of the published rows that nothing was fitted on.", ""]
    for kind, groups in result["by"].items():
        parts += [f"| {kind} | n | median error | p90 | bias | inside |", "|---|--:|--:|--:|--:|--:|"]
        parts += [f"| {name} | {_figures(group)} |" for name, group in groups.items()] + [""]
    parts += ["## Not predicted", "", "| rows | reason |", "|--:|---|"]
    parts += [f"| {number} | {reason} |" for reason, number in result["not_predicted"].items()]
    return "\n".join([*parts, "", ACCURACY_TAIL])


def semantic_table() -> str:
    """Hits that are false, from the last run of benchmarks/bench_semantic.py."""
    result = json.loads((ROOT / "benchmarks" / "results" / "semantic.json").read_text(encoding="utf-8"))
    lines = [
        "| cosine ≥ | all-MiniLM-L6-v2: hits | of those, false | same questions found | hashed words: false hits | same found |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for model, hashed in zip(result["model"]["labels"], result["hashed"]["labels"], strict=True):
        cells = [each[name] for each in (model, hashed) for name in ("false_share", "found_share")]
        shown = " | ".join("–" if cell is None else f"{cell * 100:.1f} %" for cell in cells)
        lines.append(f"| {model['threshold']:g} | {model['accepted']:,} | {shown} |")
    made = f"{result['pairs']:,} pairs, {result['same']:,} of them the same question."
    timed = result["model"]
    made += (
        f" Embedding a question took {timed['embed_s'] * 1e3:.0f} ms on two busy CPU cores, a look-up among "
        f"{timed['hits'][-1]['stored']:,} entries {timed['lookup_s'] * 1e3:.1f} ms."
    )
    return "\n".join([*lines, "", f"{made} Made by `{result['command']}` on {result['date']}, {result['machine']}."])


ACCURACY_HEAD = """# How sure is this?

Errors are factors: a median error of 10 % means that half of the predictions are within a factor of 1.1, up or down.
A bias above zero means that we predict too much. Of every five measurements, four should lie inside the interval.
Engines' overheads and the intervals were fitted on rows marked `calibrate` and on the bare steps; the published rows
scored here were only looked at. [Where the rows come from](../benchmarks/data/README.md).
"""
ACCURACY_TAIL = """## What to know

- InferenceMAX runs vLLM with `--async-scheduling`, as its recipes set it, and is predicted so; the row "as it comes" is
  what we would say without knowing that. We chose the switch knowing this source, so the first row flatters us a little.
- The first decode row is in-sample for PyTorch's attention and for the time between layers. The six other models were
  measured after the predictions were frozen (`benchmarks/measure_steps.py`, one H200): about 5 % too slow throughout, most
  of it in attention; multi-head attention (Llama 2) runs another kernel there, and long prompts ran on a slower one.
- The intervals of bare steps were learned with an engine's kernels, which were not fitted on them, and on both files.
- Coverage is right on the whole, and the classes of errors were chosen with an eye on it; time to the first token of dense
  models is covered least.
- The published rows are of A100, H100 and H200. Other GPUs stand on their own kernel timings (L40S, B200, B300, GB200,
  GB300, RTX PRO 6000), on a relative's scaled by the datasheet, or on another family's. Intervals widen by the error seen
  when timed GPUs are predicted that way, but no served model proves them. Tensor parallelism over PCIe rests on one
  machine of L40S and one of RTX PRO 6000, the first very slow beyond two GPUs.
- The ranking mostly orders numbers of GPUs: few published groups hold two kinds of GPU, none three.
- Time to the first token in a closed loop is queueing behind other users' prompts, and a burst that drains is no steady
  state: both need the simulator.
- Errors of single kernels on shapes held out: `benchmarks/results/kernels-matrix.txt` and `kernels-attention.txt`. Dense
  products and attention are within 8 % at the median; fused experts are not everywhere (typically 9 %, up to 13 %).
- Early support of a new model in an engine can be several times slower than its kernels allow, and is not foreseen.
"""


def _accuracy() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "accuracy.json").read_text(encoding="utf-8"))
    return result


def _figures(group: dict[str, Any]) -> str:
    from tokonomics.measure.validate import Summary
    from tokonomics.report.validate_view import figures

    fields = {name: group[name] for name in Summary.model_fields}
    return " | ".join(figures(Summary.model_validate(fields)))


def _fill(block: re.Match[str]) -> str:
    if block["what"] == "accuracy":
        return f"{block[1]}{accuracy_table()}\n{block[4]}"
    if block["what"] == "semantic":
        return f"{block[1]}{semantic_table()}\n{block[4]}"
    if block["what"] == "document-table":
        from document_plan import document_table

        return f"{block[1]}{document_table()}\n{block[4]}"
    if block["what"] == "profile":
        return f"{block[1]}{profile_table()}\n{block[4]}"
    if block["what"] == "client":
        return f"{block[1]}{client_table()}\n{block[4]}"
    if block["what"] == "document-bills":
        from document_breakeven import document_bills

        return f"{block[1]}{document_bills()}\n{block[4]}"
    command = block["command"]
    return f"{block[1]}```console\n$ tokonomics {command}\n{run(command)}\n```\n{block[4]}"


WHOLE = {"docs/claims.md": _claims, "docs/commands.md": commands_page, "docs/accuracy.md": accuracy_page}
"""Pages that are generated from their first line to their last."""


def _as_of() -> str:
    return (ROOT / "docs" / "as-of.txt").read_text(encoding="utf-8").strip()


def _fix_surroundings() -> None:
    """The same width, date, prices and no colours wherever this runs."""
    os.environ |= {
        "COLUMNS": str(WIDTH),
        "TERMINAL_WIDTH": str(WIDTH),
        "NO_COLOR": "1",
        "TERM": "dumb",
        "TOKONOMICS_TODAY": _as_of(),
        "TOKONOMICS_CACHE": str(ROOT / "docs" / "no-such-cache"),
        "XDG_CONFIG_HOME": str(ROOT / "docs" / "no-such-config"),
        "_TYPER_FORCE_DISABLE_TERMINAL": "1",
    }
    os.environ.pop("TOKONOMICS_CATALOG", None)
    os.environ.pop("FORCE_COLOR", None)


if __name__ == "__main__":
    raise SystemExit(main())
