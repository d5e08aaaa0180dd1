"""How good a twin is on a real vLLM: its pages of eight minutes of changing load, played to a meter and a twin.

    python -m benchmarks.bench_twin ask JOB.json     # what measure_twin.py is to serve on a machine with a GPU
    python -m benchmarks.bench_twin keep FILE        # make the record of what measure_twin.py left
    python -m benchmarks.bench_twin                  # play benchmarks/data/vllm_h200_twin.json.xz, and score

Windows are half a minute long, so that the run has seventeen; the first three do not count. Forecasts cannot know of a
change in the traffic, so they are scored once more without the windows in which one began. What a window is expected to
be given its traffic is the model's own error.
"""

import asyncio
import gzip
import json
import lzma
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.guard_grid import BUILDS
from tests.measure.metered import HandClock, HandSource, read_page

from tokonomics.catalog.load_models import find_model
from tokonomics.measure.meter.engines import ENGINES
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Reading
from tokonomics.operate.learn import TwinWindow
from tokonomics.operate.scoreboard import scoreboard
from tokonomics.operate.twin import said_of
from tokonomics.questions.requests.run import TwinRequest
from tokonomics.questions.twin import LiveTwin, NamedChange, named, twin_asked
from tokonomics.types import today

DATA = Path(__file__).with_name("data") / "vllm_h200_twin.json.xz"
RESULTS = Path(__file__).with_name("results") / "twin.json"
MODEL, WINDOW_S, EVERY_S = "llama-3.1-8b", 30.0, 2.0
WARMED = 3  # windows before the first that counts
BESIDE = [f"vllm:{name}" for name in ("request_prefill_kv_computed_tokens", "num_preemptions", "prefix_cache_queries",
          "prefix_cache_hits", "request_queue_time_seconds", "request_prefill_time_seconds",
          "request_decode_time_seconds", "inter_token_latency_seconds", "engine_sleep_state")]  # fmt: skip
"""Lines that the meter does not read, and that may tell more."""
STRETCHES: dict[str, list[dict[str, Any]]] = {
    "base": [
        {"name": "quiet", "seconds": 180, "rate": 6.0},
        {"name": "more requests", "seconds": 60, "rate": 10.0},
        {"name": "longer prompts", "seconds": 60, "rate": 6.0, "input": 2000},
        {"name": "no reuse", "seconds": 60, "rate": 6.0, "input": 2000, "shared": 0.0},
        {"name": "a neighbour", "seconds": 60, "rate": 6.0, "input": 2000, "shared": 0.0, "neighbour": True},
    ],
    "kv-fp8": [{"name": "other flags", "seconds": 75, "rate": 6.0, "input": 2000, "shared": 0.0}],
}
"""By build of ``guard_grid``, what it serves; the second takes the place of the first, as in a rolling update."""


def rows_of(stretch: dict[str, Any], seed: int) -> list[list[Any]]:
    """Return Poisson arrivals of log-normal lengths; four prompts in five begin as others of their conversation do."""
    rng = np.random.default_rng(seed)
    seconds, mean, shared = stretch["seconds"], stretch.get("input", 1000), stretch.get("shared", 0.5)
    arrivals = np.sort(rng.uniform(0, seconds, rng.poisson(stretch["rate"] * seconds)))
    rows: list[list[Any]] = []
    for number, at in enumerate(arrivals):
        tokens = int(np.clip(rng.lognormal(np.log(mean) - 0.18, 0.6), 16, 12_000))
        out = int(np.clip(rng.lognormal(np.log(160) - 0.125, 0.5), 8, 1500))
        same = int(shared / 0.8 * tokens) if rng.random() < 0.8 else 0
        of = [[int(rng.integers(0, 8)) + 1, same]] if same else []
        rows.append([round(float(at), 3), [*of, [seed * 100_000 + number, tokens - same]], out])
    return rows


def ask(path: Path) -> None:
    """Write the job: a model's config, the servers' flags, their stretches and the names that a meter reads."""
    (vllm,) = (words for words in ENGINES if words.prefix == "vllm:")
    builds = {build["name"]: build for build in BUILDS}
    servers: list[dict[str, Any]] = [
        builds[name] | {
            "stretches": [stretch | {"rows": rows_of(stretch, 10 * place + at + 1)}
                          for at, stretch in enumerate(stretches)],
        }
        for place, (name, stretches) in enumerate(STRETCHES.items())
    ]  # fmt: skip
    wanted = ["process_start_time_seconds", *sorted(f"{vllm.prefix}{name}" for name in vllm.names()), *BESIDE]
    job = {"model": find_model(MODEL).key, "servers": servers, "wanted": wanted}
    path.write_text(json.dumps(job))
    print(path, sum(len(stretch["rows"]) for server in servers for stretch in server["stretches"]), "requests")


_COUNTED = ("_total", "_bucket", "_sum", "_count")


def played(record: dict[str, Any], wall: float) -> list[tuple[float, str]]:
    """Return every page that was read, whole, with its time; ``wall`` is the time of the first.

    The second server takes the address of the first over: it had started before, so its counters begin at the handover,
    and so does its process.
    """
    pages = []
    for place, run in enumerate(record["runs"]):
        lines: dict[str, str] = {}
        began, first = run["pages"][0]
        for at, changed in run["pages"]:
            lines |= changed
            said = {name: _since(name, value, first) if place else value for name, value in lines.items()}
            said["process_start_time_seconds"] = repr(wall + began - (0.0 if place else 60.0))
            pages.append((at, "".join(f"{name} {value}\n" for name, value in said.items())))
    return pages


def _since(name: str, value: str, first: dict[str, str]) -> str:
    counted = name.split("{")[0].endswith(_COUNTED)
    return repr(float(value) - float(first.get(name, "0"))) if counted else value


def score(record: dict[str, Any]) -> dict[str, Any]:
    settings, setup = twin_asked(
        TwinRequest.checked(
            {
                "urls": ["http://h200:8000"],
                "model": record["model"],
                "gpu": record["gpu"],
                "usd_per_hour": 3.0,
                "window": "1m",
                "started_with": "vllm serve m " + " ".join(record["runs"][0]["flags"]),
            }
        )
    )
    settings = replace(settings, window_s=WINDOW_S)  # shorter than a user may ask for: the minutes on a GPU are few
    clock, now = HandClock(), [""]

    def read() -> Sequence[Reading]:
        return read_page(now[0], "http://h200:8000", clock.wall())

    async def ticks(path: Path) -> list[TwinWindow]:
        with Ledger(path) as book:
            meter = Meter([HandSource("http://h200:8000", read)], book, clock,
                          MeterSettings(usd_per_hour=3.0, every_s=EVERY_S, window_s=settings.window_s))  # fmt: skip
            twin = LiveTwin(book, setup, settings.window_s, late_s=2 * EVERY_S)
            for at, page in played(record, clock.wall()):
                clock.passed, now[0] = at, page
                twin.beside(await meter.tick())
            clock.passed += 3 * WINDOW_S
            twin.beside(await meter.tick())
            return [said for said in said_of(book, 0.0, 1e12) if said.is_over]

    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(ticks(Path(folder) / "meter.db"))
    counted = said[WARMED:]
    begun = {round(stretch["began_s"] / WINDOW_S) for run in record["runs"] for stretch in run["stretches"]}

    def number(window: TwinWindow | NamedChange) -> int:
        return round((window.start - clock.offset) / WINDOW_S)

    undisturbed = [window for window in counted if number(window) not in begun]
    return {
        "made": today().isoformat(),
        "measured": record["date"],
        "windows": len(counted),
        "scores": scores_of(counted),
        "undisturbed": {"windows": len(undisturbed), "scores": scores_of(undisturbed)},
        "changes": [{"window": number(one), "cause": one.change.cause, "what": one.change.what} for one in named(said)],
        "stretches": [{"name": stretch["name"], "window": round(stretch["began_s"] / WINDOW_S, 1),
                       "requests": len(stretch["requests"])}
                      for run in record["runs"] for stretch in run["stretches"]],
    }  # fmt: skip


def scores_of(windows: list[TwinWindow]) -> list[dict[str, Any]]:
    """Return error, bias and coverage of each figure, and the coverage of all latencies together."""
    (board,) = scoreboard(windows)
    rows = [score.model_dump() for score in board.scores]
    for kind in ("forecast", "given"):
        alike = [row for row in rows if row["kind"] == kind and row["name"].startswith(("ttft", "tpot"))]
        total = sum(row["windows"] for row in alike)
        held = sum(row["windows"] * row["coverage"] for row in alike) / total
        rows.append({"name": "latencies", "kind": kind, "windows": total, "coverage": held})
    return rows


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "ask":
        ask(Path(sys.argv[2]))
        return
    if len(sys.argv) > 2 and sys.argv[1] == "keep":
        record = {"date": today().isoformat()} | json.loads(gzip.decompress(Path(sys.argv[2]).read_bytes()))
        DATA.write_bytes(lzma.compress(json.dumps(record).encode(), preset=9 | lzma.PRESET_EXTREME))
        return
    found = score(json.loads(lzma.decompress(DATA.read_bytes())))
    for which, rows in (("all windows", found["scores"]), ("nothing begun in them", found["undisturbed"]["scores"])):
        print(which)
        for row in rows:
            errors = f"off {100 * row['error']:6.2f} bias {100 * row['bias']:+6.2f}" if "error" in row else " " * 23
            print(
                f"  {row['name']:16} {row['kind']:9} {row['windows']:3} {errors} within {100 * row['coverage']:4.0f} %"
            )
    for change in (*found["stretches"], *found["changes"]):
        print(change)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
