"""Coverage-guided fuzzing of every parser: inputs that reach new code are kept and spoilt further.

    python benchmarks/fuzz_atheris.py                          every parser, 100,000 runs or 60 s of each
    python benchmarks/fuzz_atheris.py trace-csv --runs 1000000 --seconds 600
    python benchmarks/fuzz_atheris.py --list

The parsers, their valid files and the laws are those of tests/fuzz. Half of the edits are libFuzzer's own, half know
the structure of the file. What breaks a law is written to ``--found`` and the run goes on: shrink it by hand, mend the
parser, and put it into tests/fuzz/corpus. Ends with 1 if anything was found; rows go to benchmarks/results/fuzz.json.

Atheris is not among the checks' packages: it has wheels for x86-64 Linux alone. Elsewhere it is built with clang
(Debian: apt-get install clang), into an environment of its own that has tokonomics and the checks:

    CLANG_BIN=$(command -v clang) CC=clang CXX=clang++ pip install atheris==3.0.0
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).parents[1]
RESULT = Path(__file__).parent / "results" / "fuzz.json"
LONGEST_INPUT = 65_536
_REPORTING = ["tokonomics", "prometheus_client"]
_COMPILED = ["tokonomics.serving", "tokonomics.traffic.prefix_reuse"]
STUCK_S, MOST_MB = 60, 4096
"""libFuzzer's own last resort; the guard of tests/fuzz is much stricter."""

sys.path.insert(0, str(ROOT))


def fuzz(name: str, runs: int, seconds: int, found: Path, corpus: Path) -> None:
    """One parser in this process, which libFuzzer ends."""
    import atheris  # type: ignore[import-untyped]

    os.environ.setdefault("TOKONOMICS_TODAY", "2026-11-15")
    # A parser's modules are imported with the first valid file, and what is imported here tells which lines it reaches;
    # what numba compiles does not, since it takes code only as it is written.
    with atheris.instrument_imports(include=_REPORTING, exclude=_COMPILED):
        from tests.fuzz.guard import judged
        from tests.fuzz.mutations import spoilt
        from tests.fuzz.parsers import PARSERS

        parser = PARSERS[name]
        path = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-")) / parser.file
        seeds = parser.seeds()
        for place, seed in enumerate(seeds):
            path.write_bytes(seed)
            judged(parser.read, path, names_file=parser.names_file)
            (corpus / f"seed-{place}").write_bytes(seed)

    def one(data: bytes) -> None:
        path.write_bytes(data)
        try:
            judged(parser.read, path, names_file=parser.names_file)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            _keep(found / name, data, error)

    def edited(data: bytes, most: int, seed: int) -> bytes:
        chance = Random(seed)
        if chance.random() < 0.5:
            return atheris.Mutate(data, most)  # type: ignore[no-any-return]
        return spoilt(data or chance.choice(seeds), chance)[:most]

    options = [f"-runs={runs}", f"-max_total_time={seconds}", f"-timeout={STUCK_S}", f"-rss_limit_mb={MOST_MB}"]
    options += [f"-max_len={LONGEST_INPUT}", "-print_final_stats=1", f"-artifact_prefix={found}/{name}-"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=edited)
    atheris.Fuzz()


def _keep(folder: Path, data: bytes, error: BaseException) -> None:
    """The shortest input for each place in our code that breaks, and how it does."""
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if "tokonomics" in Path(frame.filename).parts]
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else str(error)[:40]
    name = re.sub(r"[^a-z0-9]+", "-", f"{type(error).__name__} {place}".lower()).strip("-")
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    if not file.exists() or len(data) < file.stat().st_size:
        file.write_bytes(data)
        (folder / f"{name}.txt").write_text(
            "".join(traceback.format_exception(error)), encoding="utf-8", errors="replace"
        )


def run(name: str, runs: int, seconds: int, found: Path) -> dict[str, Any]:
    """One parser in a process of its own; its row of the table."""
    with tempfile.TemporaryDirectory() as corpus:
        command = [sys.executable, __file__, name, "--inside", corpus, "--runs", str(runs), "--seconds", str(seconds)]
        before = time.perf_counter()
        done = subprocess.run([*command, "--found", str(found)], capture_output=True, check=False)
        took_s = time.perf_counter() - before
        kept = len(list(Path(corpus).iterdir()))
    told = done.stderr.decode("utf-8", "replace")
    executed = re.search(r"stat::number_of_executed_units:\s*(\d+)", told)
    covered = re.findall(r"cov: (\d+)", told)
    crashes = sorted(file.name for file in found.glob(f"{name}-*"))
    broken = sorted(file.name for file in (found / name).glob("*") if file.suffix != ".txt")
    if executed is None:
        crashes.append(f"ended with {done.returncode}: {told[-300:]}")
    return {
        "parser": name,
        "runs": int(executed[1]) if executed else 0,
        "seconds": round(took_s, 1),
        "covered": int(covered[-1]) if covered else 0,
        "corpus": kept,
        "findings": [*broken, *crashes],
    }


def _record(rows: list[dict[str, Any]], command: str) -> None:
    """The last row of each parser, in the file of results."""
    before = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.exists() else []
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    new = [{**row, "date": date.today().isoformat(), "command": command, "machine": machine} for row in rows]
    kept = {row["parser"]: row for row in [*before, *new]}
    table = {"runs": sum(row["runs"] for row in kept.values()), "rows": list(kept.values())}
    RESULT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("parsers", nargs="*")
    options.add_argument("--runs", type=int, default=100_000)
    options.add_argument("--seconds", type=int, default=60, help="of wall time, for each parser")
    options.add_argument("--found", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-found")
    options.add_argument("--list", action="store_true")
    options.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.inside:
        fuzz(given.parsers[0], given.runs, given.seconds, given.found, given.inside)
        return 0
    from tests.fuzz.parsers import PARSERS

    if given.list:
        print("\n".join(PARSERS))
        return 0
    given.found.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in given.parsers or PARSERS:
        rows.append(run(name, given.runs, given.seconds, given.found))
        print(
            "{parser:20} {runs:>9,} runs {seconds:>7.1f} s  cov {covered:>5}  corpus {corpus:>5}  {findings}".format(
                **rows[-1]
            ),
            flush=True,
        )
    _record(rows, f"python benchmarks/fuzz_atheris.py --runs {given.runs} --seconds {given.seconds}")
    return 1 if any(row["findings"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
