"""Make every output and figure shown in the README and the guide; nothing in them is typed.

    python docs/generate.py            rewrite them (`make outputs`)
    python docs/generate.py --check    fail if any of them differs from what the code says today

A block between ``<!-- output: COMMAND -->`` and ``<!-- end -->`` holds what that command prints, or with ``| head -9``
its first lines. Where it ends in ``> FILE``, or saves with ``--deploy-to FOLDER``, that lies there until the page is done, for later commands and for
``<!-- file: FILE -->``. ``TABLES`` names the other blocks, made from the files of the last ``make bench`` or from shipped
data. Outputs are made as of the date in
``docs/as-of.txt``, so that ages of prices do not change what a check sees.
"""

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/questions/how-many-users.md",
    "docs/questions/how-should-it-scale.md",
    "docs/questions/is-spot-worth-it.md",
    "docs/questions/own-or-api.md",
    "docs/questions/small-model-first.md",
    "docs/questions/what-does-it-emit.md",
    "docs/questions/several-models-on-one-gpu.md",
    "docs/questions/what-does-an-agent-job-cost.md",
    "docs/questions/what-to-change-first.md",
    "docs/questions/what-would-caching-save.md",
    "docs/questions/which-gpu-for-a-70b.md",
    "docs/questions/which-flags.md",
    "docs/questions/what-will-my-server-do-next.md",
    "docs/questions/is-the-new-build-slower.md",
    "docs/questions/which-quantisation.md",
    "docs/questions/who-comes-first.md",
    "docs/questions/why-is-my-bill-twice-the-plan.md",
    "docs/breakeven.md",
    "docs/caching.md",
    "docs/fit.md",
    "docs/cost.md",
    "docs/plan.md",
    "docs/layouts.md",
    "docs/scenario.md",
    "docs/sweep.md",
    "docs/fleet.md",
    "docs/commitments.md",
    "docs/levers.md",
    "docs/levers-measured.md",
    "docs/physics.md",
    "docs/route.md",
    "docs/simulator.md",
    "docs/tenants.md",
    "docs/traffic.md",
    "docs/validate.md",
    "docs/bench.md",
    "docs/calibrate.md",
    "docs/meter.md",
    "docs/meter-fleet.md",
    "docs/agents.md",
    "docs/limits.md",
    "docs/web.md",
)
CHARTS = {
    "plan.svg": "plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms",
    "fleet.svg": "fleet llama-3.1-8b --demand weekly:20,peak=2,weekend=0.4 --input lognormal:mean=1000,p99=8000 "
    "--output 300 --slo ttft_p99=1,tpot_p99=50ms --provider aws --region us-east-1 --no-replay",
    "simulate.svg": "simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --speed 4 --slo ttft_p99=0.5",
    "cache.svg": "cache --model llama-3.1-8b --gpu H100 --trace mooncake-conversation --tiers dram=200,ssd=2000",
    "tenants.svg": "tenants --model llama-3.1-8b --gpu L4 --arrivals diurnal:1.2,peak=2 --duration 1d --speed 12 "
    "--tenants 10,skew=1 --input 500 --output 100 --slo ttft_p99=2,tpot_p99=200ms",
    "route.svg": "route llama-3.1-8b llama-3.3-70b --trace docs/examples/routed.csv --score confidence "
    "--quality llama-3.1-8b=small_ok,llama-3.3-70b=large_ok --min-quality 0.85 --slo ttft_p99=1,tpot_p99=60ms "
    "--gpu L40S,H100,H200",
    "breakeven.svg": "breakeven llama-3.3-70b "
    "--input 1000 --output 300 --slo ttft_p99=1,tpot_p99=80ms --min-weights fp8",
    "compare.svg": "plan --by-gpu llama-3.1-8b qwen2.5-32b llama-3.3-70b --gpu L4,L40S,A100,H100,H200 --rate 20 --input 1000 --output 300 "
    "--quality llama-3.1-8b=0.66,qwen2.5-32b=0.8,llama-3.3-70b=0.86",
    "levers.svg": "levers llama-3.3-70b --gpu H100 --tp 4 --trace azure-conv --slo ttft_p99=2,tpot_p99=80ms "
    "--provider aws --min-weights fp8",
    "stack.svg": "levers --from-scratch llama-3.3-70b --gpu A100-80GB --tp 4 --trace azure-conv --slo ttft_p99=5,tpot_p99=80ms "
    "--provider aws",
    "curve.svg": "predict --curve llama-2-7b --gpu H100 --context 1024",
    "bench.svg": f"import {ROOT / 'tests' / 'measure' / 'results' / 'inferencex.json'} --slo ttft_p50=0.5",
    "meter.svg": f"meter report --ledger {ROOT / 'tests' / 'measure' / 'pages' / 'week.db'} --since 2026-11-09 "
    "--until 2026-11-14 --by day",
    "twin.svg": f"twin report --ledger {ROOT / 'docs' / 'examples' / 'twin-morning.db'} --since 2026-11-15T09:00 "
    "--until 2026-11-15T13:05",
    "accuracy.png": f"calibrate --score {ROOT / 'benchmarks' / 'data' / 'published.csv.gz'} --split dev",
}
BLOCK = re.compile(
    r"(<!-- (?P<what>output: (?P<command>[^\n]+?)|file: (?P<file>[^\n]+?)|[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL
)
WIDTH = 122


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages are out of date")
    parser.add_argument("names", nargs="*", help="only these pages, such as docs/plan.md, and no charts")
    options = parser.parse_args()
    _fix_surroundings()
    from pictures import slim

    made = pages(options.names)
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make outputs`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for name, command in [] if options.names else CHARTS.items():
        path = ROOT / "docs" / "img" / name
        run(f"{command} --chart {path}")
        slim(path)
    return 0


def pages(names: Sequence[str] = ()) -> dict[Path, str]:
    """Every generated page, or those named, as it should be now."""
    sys.path.insert(0, str(ROOT / "docs"))
    wanted = names or (*WHOLE, *PAGES)
    return {ROOT / name: _made(name) for name in wanted}


def _made(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]()
    text = (ROOT / name).read_text(encoding="utf-8")
    with contextlib.ExitStack() as until_done:
        return BLOCK.sub(lambda block: _fill(block, until_done), text)


def _claims() -> str:
    from claims import claims_page

    return f"{claims_page()}\nMade by `make outputs`, prices as of {_as_of()}.\n"


def run(command: str) -> str:
    """What a command prints."""
    from tokonomics.cli.main import application

    printed, words = io.StringIO(), shlex.split(command)
    app = application(words[0])
    sys.argv = ["tokonomics", *words]  # deploy files say which command made them
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(words, prog_name="tokonomics", standalone_mode=False)
    text = re.sub(r"Solved in [0-9.]+ s", "Solved in … s", printed.getvalue())  # no two runs take as long
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def commands_page() -> str:
    """docs/commands.md: the help of every verb."""
    from typer.main import get_command

    from tokonomics.__main__ import app

    parts = ["# Commands", "", "The help of every verb, as the program prints it."]
    for verb in ("", *_verbs(get_command(app))):
        parts += ["", f"## tokonomics {verb}".rstrip(), "", "```text", run(f"{verb} --help".strip()), "```"]
    return "\n".join(parts) + "\n"


def _verbs(group: Any, above: str = "") -> Iterator[str]:
    """Every verb, and those below it, in the order of the help."""
    for name, command in group.commands.items():
        if not command.hidden:
            yield f"{above}{name}"
            if hasattr(command, "commands"):
                yield from _verbs(command, f"{above}{name} ")


def client_table() -> str:
    """How fast the client of ``bench`` is, with the date it was measured."""
    result = json.loads((ROOT / "benchmarks" / "results" / "client.json").read_text(encoding="utf-8"))
    lines = ["| answer | requests/s | tokens/s | per processor second: requests | tokens |", "|---|--:|--:|--:|--:|"]
    for name, case in result["cases"].items():
        figures = ("requests_per_s", "tokens_per_s", "requests_per_cpu_s", "tokens_per_cpu_s")
        lines.append(f"| {name} | {' | '.join(f'{case[figure]:,.0f}' for figure in figures)} |")
    case, wanted = next(iter(result["cases"].values())), result["targets"]
    met = case["requests_per_cpu_s"] >= wanted["requests_per_s"] and case["tokens_per_cpu_s"] >= wanted["tokens_per_s"]
    target = f"{wanted['requests_per_s']:,} requests/s and {wanted['tokens_per_s']:,} tokens/s on one core"
    said = f"The target, {target}, is {'met' if met else 'not met'} where tokens arrive glued together."
    made = f"Made by `{result['command']}` on {result['date']}, {result['machine']}."
    return "\n".join([*lines, "", f"{said} {made}", *_streams(result)])


def _streams(result: dict[str, Any]) -> list[str]:
    """What the client adds to the latencies of a server of known ones, where that was measured."""
    rows = result.get("streams", [])
    if not rows:
        return []
    lines = [
        "",
        "| streams at once | failed | share of a core | TTFT of the server | as measured | TPOT | as measured |",
    ]
    lines.append("|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        times = [f"{row[f'server_{name}_s'] * 1e3:.1f} ms | {row[f'{name}_off']:+.1%}" for name in ("ttft", "tpot")]
        lines.append(f"| {row['streams']:,} | {row['failed']} | {row['core_share']:.0%} | {' | '.join(times)} |")
    few = [row for row in rows if row["streams"] <= result["most_off_streams"]]
    met = all(abs(row[name]) <= result["most_off"] for row in few for name in ("ttft_off", "tpot_off"))
    said = f"Within {result['most_off']:.0%} up to {result['most_off_streams']} streams: {'met' if met else 'not met'}"
    return [
        *lines,
        "",
        f"{said}, at a load average of {result['load_average']:.1f}. Beyond, a run says what may be the client's own.",
    ]


def growth_table() -> str:
    """Time and memory of commands as their work grows."""
    result = json.loads((ROOT / "benchmarks" / "results" / "growth.json").read_text(encoding="utf-8"))
    lines = ["| command | size | processor s | peak MB | growth of time | of memory |", "|---|--:|--:|--:|--:|--:|"]
    for name, grown in result["grown"].items():
        for row in grown["rows"]:
            size = f"{row['size']:,} {grown['unit']}"
            last = row is grown["rows"][-1]
            slopes = [grown["time_slope_beyond_start"], grown["memory_slope"]] if last else []
            cells = [f"{row['cpu_s']:.1f}", f"{row['peak_mb']:,.0f}", *(f"{slope:.2f}" for slope in slopes)]
            lines.append(f"| `{name}` | {size} | {' | '.join(cells + [''] * (4 - len(cells)))} |")
    said = "Growth: the slope of log(time beyond the start) and log(memory) against log(size); 1 is linear, 0 does not grow."
    return "\n".join([*lines, "", f"{said} Made by `{result['command']}` on {result['date']}, {result['machine']}."])


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
                cells = [f"{score[cell][key]:{sign}.1%}" for cell, key, sign in _PROFILE_CELLS]
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


def _fill(block: re.Match[str], until_done: contextlib.ExitStack) -> str:
    """A block with what belongs into it; what its command saves is removed when the page is done."""
    if block["command"]:
        text = _printed(block["command"], until_done)
        text = f"```console\n{_typed(block['command'])}\n{text}".rstrip() + "\n```"
    elif block["file"]:
        text = f"```sh\n{(ROOT / block['file']).read_text(encoding='utf-8').rstrip()}\n```"
    else:
        text = TABLES[block["what"]]()
    return f"{block[1]}{text}\n{block[5]}"


def _printed(command: str, until_done: contextlib.ExitStack) -> str:
    """What a command prints, once nothing of that name is in the way of what it saves."""
    command, _, first = command.partition(" | head -")
    command, _, file = command.partition(" > ")
    folder = re.search(r"--(?:deploy-to|into) (\S+)", command)
    for made in filter(None, (file, folder and folder[1])):
        path = ROOT / made
        if path.exists():
            raise SystemExit(f"{made} is in the way: the guide's commands make it and remove it again")
        until_done.callback(_remove, path)
    printed = run(command)
    if not file:
        return "\n".join(printed.splitlines()[: int(first) if first else None])
    (ROOT / file).write_text(printed, encoding="utf-8")
    return ""


def _typed(command: str) -> str:
    """The command as one would type it, in lines that fit."""
    lines = ["$ tokonomics"]
    for part in re.split(r" (?=--|>|\|)", command):
        if len(lines[-1]) + len(part) + 3 > WIDTH:
            lines.append("   ")
        lines[-1] += f" {part}"
    return " \\\n".join(lines)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _from(module: str, name: str, *given: str) -> Callable[[], str]:
    """A table that another script here makes; loaded only when a page wants it."""
    return lambda: str(getattr(import_module(module), name)(*given))


LEVER_PARTS = (
    "prefix-cache", "dram", "disk", "weights", "kv", "eagle", "model", "mtp", "ngrams", "chunk", "sequences", "graphs",
    "ahead", "lora", "priorities", "gaps", "pair",
)  # fmt: skip
"""Levers of docs/levers-measured.md, by their names in document_levers.py."""


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": _from("document_accuracy", "accuracy_table"),
    "accuracy-short": _from("document_accuracy", "short_accuracy_table"),
    "agent-call": _from("document_agents", "called"),
    "agent-http": _from("document_agents", "http_config"),
    "agent-instructions": _from("document_agents", "instructions"),
    "agent-stdio": _from("document_agents", "stdio_config"),
    "agent-tools": _from("document_agents", "tools_table"),
    "client": client_table,
    "soak": _from("document_soaks", "meter_table"),
    "page-soak": _from("document_soaks", "page_table"),
    "twin-soak": _from("document_soaks", "twin_line"),
    "sweep-soak": _from("document_soaks", "sweep_lines"),
    "growth": growth_table,
    "commitments": _from("document_commitments", "backtest_table"),
    "profile": profile_table,
    "semantic": semantic_table,
    "document-table": _from("document_plan", "document_table"),
    "right-sizing": _from("document_right_sizing", "right_sizing_table"),
    "document-bills": _from("document_breakeven", "document_bills"),
    "worked-example": _from("document_physics", "worked_example"),
    "prompt": _from("document_physics", "prompt_by_hand"),
    "headroom-served": _from("document_accuracy", "headroom_line"),
    "engines": _from("document_physics", "engines_table"),
    "hosts": _from("document_physics", "hosts"),
    "real-engine": _from("document_accuracy", "real_engine_table"),
    "intervals": _from("document_physics", "intervals_table"),
    "guard-made": _from("document_guard", "made"),
    "guard-scores": _from("document_guard", "scores"),
    "tune-short": _from("document_tune", "opening"),
    "tune-made": _from("document_tune", "made"),
    "tune-scores": _from("document_tune", "scores"),
    "levers-short": _from("document_levers", "opening"),
    "levers-made": _from("document_levers", "made"),
    "levers-scores": _from("document_levers", "scores"),
    "levers-turns": _from("document_levers", "turns"),
    "levers-drafts": _from("document_levers", "drafts_and_hits"),
    "levers-asleep": _from("document_levers", "asleep"),
    "levers-servers": _from("document_levers", "servers"),
    **{f"lever-{name}": _from("document_levers", "lever_part", name) for name in LEVER_PARTS},
}
"""Blocks that are not the output of a command."""
WHOLE: dict[str, Callable[[], str]] = {
    "docs/claims.md": _claims,
    "docs/commands.md": commands_page,
    "docs/accuracy.md": _from("document_accuracy", "accuracy_page"),
    "docs/api.md": _from("document_api", "api_page"),
    "docs/python.md": _from("document_api", "python_page"),
    "src/tokonomics/__init__.pyi": _from("library_stub", "stub"),
}
"""Pages and the library's types that are generated from their first line to their last."""


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
