"""Whether two checkouts answer alike: the ``--json`` of the commands in ``data/commands.txt``, number by number.

    python benchmarks/compare_answers.py OLD NEW [--only plan,fleet] [--workers 2]

Each checkout is run with its own sources and this interpreter, on the same day. Times that a run took are left out. Old
names of verbs are asked on purpose: they must go on answering.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

COMMANDS = Path(__file__).parent / "data" / "commands.txt"
TIMES = ("solve_s", "wall_s", "took_s")
DAY = "2026-11-18"


def answer(tree: Path, command: str) -> tuple[int, str]:
    """Return the exit status and what is printed."""
    surroundings = os.environ | {"PYTHONPATH": str(tree / "src"), "NO_COLOR": "1", "TOKONOMICS_TODAY": DAY}
    asked = [sys.executable, "-m", "tokonomics", *shlex.split(command), "--json"]
    done = subprocess.run(asked, cwd=tree, env=surroundings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Say where two documents differ; numbers may differ by rounding alone."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in TIMES:
                yield from differences(old.get(key, "missing"), new.get(key, "missing"), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{path}[{place}]")
    elif isinstance(old, int | float) and isinstance(new, int | float):
        if not math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{path}: {old} → {new}"
    elif old != new:
        yield f"{path}: {str(old)[:80]} → {str(new)[:80]}"


def compared(trees: tuple[Path, Path], command: str) -> list[str]:
    """Ask both checkouts and list what differs."""
    (old_status, old), (new_status, new) = (answer(tree, command) for tree in trees)
    if old_status != new_status:
        return [f"exit status {old_status} → {new_status}"]
    try:
        return list(differences(json.loads(old), json.loads(new)))
    except json.JSONDecodeError:
        return [] if old == new else ["the text differs"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", help="these verbs, with commas")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    verbs = {verb for verb in options.only.split(",") if verb}
    listed = [line for line in COMMANDS.read_text(encoding="utf-8").splitlines() if line]
    commands = [line for line in listed if not verbs or line.split()[0] in verbs]
    trees = options.old.resolve(), options.new.resolve()
    with ThreadPoolExecutor(options.workers) as pool:
        found = list(pool.map(lambda command: compared(trees, command), commands))
    for command, differing in zip(commands, found, strict=True):
        if differing:
            print(f"{len(differing)} differ: tokonomics {command}", *differing[:4], sep="\n    ")
    print(f"{sum(not differing for differing in found)} of {len(commands)} answer alike")
    return any(found)


if __name__ == "__main__":
    sys.exit(main())
