"""How good a twin is on a real vLLM: its pages of a changing quarter of an hour, played to a meter and a twin.

    python -m benchmarks.bench_twin ask JOB.json     # what measure_twin.py is to serve on a machine with a GPU
    python -m benchmarks.bench_twin                  # play benchmarks/data/vllm_h200_twin.json.gz, and score

Windows are a minute long, so that the run has twenty. Nothing is fitted on the run; the table says which windows count.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
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
from tokonomics.questions.twin import LiveTwin, named, twin_asked

DATA = Path(__file__).with_name("data") / "vllm_h200_twin.json.gz"
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


def played(record: dict[str, Any]) -> list[tuple[float, str]]:
    """Return every page that was read, whole, with its time."""
    pages = []
    for run in record["runs"]:
        lines: dict[str, str] = {}
        for at, changed in run["pages"]:
            lines |= changed
            pages.append((at, "".join(f"{name} {value}\n" for name, value in lines.items())))
    return pages


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
    clock, now = HandClock(), [""]

    def read() -> Sequence[Reading]:
        return read_page(now[0], "http://h200:8000", clock.wall())

    async def ticks(path: Path) -> list[TwinWindow]:
        with Ledger(path) as book:
            meter = Meter([HandSource("http://h200:8000", read)], book, clock,
                          MeterSettings(usd_per_hour=3.0, every_s=EVERY_S, window_s=settings.window_s))  # fmt: skip
            twin = LiveTwin(book, setup, settings.window_s)
            for at, page in played(record):
                clock.passed, now[0] = at, page
                twin.beside(await meter.tick())
            clock.passed += 3 * WINDOW_S
            twin.beside(await meter.tick())
            return [said for said in said_of(book, 0.0, 1e12) if said.is_over]

    with tempfile.TemporaryDirectory() as folder:
        said = asyncio.run(ticks(Path(folder) / "meter.db"))
    (board,) = scoreboard(said[WARMED:])
    return {
        "made": date.today().isoformat(),
        "windows": board.windows,
        "scores": [one.model_dump() for one in board.scores],
        "changes": [{"window": round((one.start - clock.offset) / WINDOW_S), "cause": one.change.cause,
                     "what": one.change.what} for one in named(said)],
        "stretches": [{"name": stretch["name"], "window": round(stretch["began_s"] / WINDOW_S, 1)}
                      for run in record["runs"] for stretch in run["stretches"]],
        "factors": board.factors,
    }  # fmt: skip


def main() -> None:
    import gzip

    if len(sys.argv) > 2 and sys.argv[1] == "ask":
        ask(Path(sys.argv[2]))
        return
    if not DATA.exists():
        print("not measured yet: see measure_twin.py")
        return
    found = score(json.loads(gzip.decompress(DATA.read_bytes())))
    for row in found["scores"]:
        print(f"{row['name']:16} {row['kind']:9} {row['windows']:3} off {100 * row['error']:6.2f} "
              f"bias {100 * row['bias']:+6.2f} within {100 * row['coverage']:4.0f} %")  # fmt: skip
    for change in (*found["stretches"], *found["changes"]):
        print(change)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
