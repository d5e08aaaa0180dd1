"""Make every output and figure shown in the README and the guide; nothing in them is typed.

    python docs/generate.py            rewrite them
    python docs/generate.py --check    fail if any of them differs from what the code says today

A block between ``<!-- output: COMMAND -->`` and ``<!-- end -->`` holds what that command prints; one between
``<!-- accuracy -->`` and ``<!-- end -->`` the error table of the last ``make bench``. Outputs are made as of the date
in ``docs/as-of.txt``, so that ages of prices do not change what a check sees.
"""

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/fit.md", "docs/cost.md", "docs/plan.md")
CHART = "plan llama-3.1-8b --rate 5 --input 1000 --output 300 --tpot 0.05"
BLOCK = re.compile(r"(<!-- (?P<what>output: (?P<command>.+?)|accuracy) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 118


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say which pages are out of date")
    options = parser.parse_args()
    _fix_surroundings()
    made = pages()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run `make docs`")
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    run(f"{CHART} --chart {ROOT / 'docs' / 'img' / 'plan.svg'}")
    return 0


def pages() -> dict[Path, str]:
    """Every generated page, as it should be now."""
    sys.path.insert(0, str(ROOT / "docs"))
    from claims import claims_page

    as_of = _as_of()
    made = {ROOT / "docs" / "claims.md": f"{claims_page()}\nMade by `make docs`, prices as of {as_of}.\n"}
    made[ROOT / "docs" / "commands.md"] = commands_page()
    for name in PAGES:
        path = ROOT / name
        made[path] = BLOCK.sub(_fill, path.read_text(encoding="utf-8"))
    return made


def run(command: str) -> str:
    """What a command prints."""
    from tokonomics.cli.main import app

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        app(shlex.split(command), prog_name="tokonomics", standalone_mode=False)
    return "\n".join(line.rstrip() for line in printed.getvalue().strip("\n").splitlines())


def commands_page() -> str:
    """docs/commands.md: the help of every verb."""
    verbs = ("", "plan", "fit", "cost", "models", "gpus", "offers", "apis", "prices refresh")
    parts = ["# Commands", "", "The help of every verb, as the program prints it."]
    for verb in verbs:
        parts += ["", f"## tokonomics {verb}".rstrip(), "", "```text", run(f"{verb} --help".strip()), "```"]
    return "\n".join(parts) + "\n"


def accuracy_table() -> str:
    """The errors of the last benchmark run, with its date and GPU."""
    result = json.loads((ROOT / "benchmarks" / "results" / "accuracy.json").read_text(encoding="utf-8"))
    lines = [f"| steps measured on one {result['gpu']} | n | median error | p90 | bias |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {name} | {group['n']} | {group['median_abs_log_error']:.1%} | {group['p90_abs_log_error']:.1%} "
        f"| {group['bias']:+.1%} |"
        for name, group in result["groups"].items()
    ]
    return "\n".join([*lines, "", f"Made by `{result['command']}` on {result['date']}."])


def _fill(block: re.Match[str]) -> str:
    if block["what"] == "accuracy":
        return f"{block[1]}{accuracy_table()}\n{block[4]}"
    command = block["command"]
    return f"{block[1]}```console\n$ tokonomics {command}\n{run(command)}\n```\n{block[4]}"


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
