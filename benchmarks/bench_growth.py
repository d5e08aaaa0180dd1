"""What work costs as it grows: requests simulated, offers planned over, rows of a log summed up.

    python benchmarks/bench_growth.py [--most 1e7] [--rows 1e8] [--chart docs/img/growth.svg]

Each size is a command as a user types it, in a process of its own; what is counted is the processor time and the
largest memory of that process (``getrusage``), so that other work on the machine changes little. The growth is the
slope of log(time) against log(size) over the larger half of the sizes, once for the time as it is, once for what goes
beyond the same command on the smallest size (start and imports); 1 is linear. Logs are written first, away from what is
measured. Prints tables and writes ``results/growth.json``.
"""

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokonomics.types import today

HERE = Path(__file__).parent
PIECE = 10_000_000
"""Rows made at once: what this script itself holds in memory."""
SLOPES = ("time_slope", "time_slope_beyond_start", "memory_slope")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=float, default=1e7, help="requests simulated at the most")
    parser.add_argument("--offers", type=float, default=1e4, help="offers planned over at the most")
    parser.add_argument("--rows", type=float, default=1e8, help="rows of a log at the most")
    parser.add_argument("--chart", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "growth.json")
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    parser.add_argument("--only", default="", help="part of the name of what is measured")
    given = parser.parse_args()
    if given.draw:
        drawn(json.loads(given.out.read_text(encoding="utf-8")), given.chart)
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        jobs: dict[str, tuple[str, list[int], Callable[[int], list[str]]]] = {
            "simulate": ("requests", sizes(1e4, given.most), simulating),
            "plan --quick": ("offers", sizes(10, given.offers), lambda n: planning(n, work, "--quick")),
            "plan": ("offers", sizes(10, given.offers), lambda n: planning(n, work)),
            "trace, parquet": ("rows", sizes(1e5, given.rows), lambda n: summing(n, work, "parquet")),
            "trace, CSV": ("rows", sizes(1e5, given.rows / 10), lambda n: summing(n, work, "csv")),
        }
        kept = json.loads(given.out.read_text(encoding="utf-8")) if given.only and given.out.exists() else {}
        found: dict[str, Any] = {
            "date": today().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
            "command": "python benchmarks/bench_growth.py",
            "grown": kept.get("grown", {}),
        }
        for name, (unit, counts, command) in jobs.items():
            if given.only not in name:
                continue
            measured("first", unit, counts[0], command(counts[0]))  # compiles the simulator, reads files into the cache
            rows = [measured(name, unit, size, command(size)) for size in counts]
            found["grown"][name] = {"unit": unit, "rows": rows, **slopes(rows)}
            show(name, found["grown"][name])
            given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if given.chart:
        drawn(found, given.chart)


def sizes(least: float, most: float) -> list[int]:
    """Powers of ten."""
    return [10**power for power in range(round(math.log10(least)), round(math.log10(most)) + 1)]


def simulating(requests: int) -> list[str]:
    shape = ["--arrivals", "poisson:8", "--input", "500", "--output", "100"]
    return ["simulate", "llama-3.1-8b", "--gpu", "H100", *shape, "--requests", str(requests), "--json"]


def planning(offers: int, work: Path, *more: str) -> list[str]:
    """Over so many offers: the shipped ones again and again, each time a little dearer and under another name."""
    import polars as pl

    from tokonomics.catalog import offers as catalogue

    path = work / f"offers-{offers}.csv"
    if not path.exists():
        shipped = pl.read_csv(Path(catalogue.__file__).parent / "data" / "offers.csv", infer_schema=False)
        sold = shipped.filter(pl.col("usd_per_hour").is_not_null()).sample(fraction=1, shuffle=True, seed=0)
        rounds = math.ceil(offers / len(sold))
        copies = [
            sold.with_columns(
                (pl.col("usd_per_hour").cast(pl.Float64) * (1 + 0.01 * each)).cast(pl.String),
                pl.col("provider") + f"-{each}",
            )
            for each in range(rounds)
        ]
        pl.concat(copies).head(offers).write_csv(path)
    load = ["--rate", "5", "--input", "1000", "--output", "300", "--slo", "ttft_p99=1,tpot_p99=60ms"]
    return ["plan", "llama-3.1-8b", *load, "--offers", str(path), *more, "--json"]


def summing(rows: int, work: Path, kind: str) -> list[str]:
    """A log of so many requests: Poisson at 1,000/s, lengths of a lognormal law."""
    import polars as pl

    path = work / f"log-{rows}.{kind}"
    pieces = [work / f"piece-{at}.parquet" for at in range(math.ceil(rows / PIECE))]
    for piece, frame in zip(pieces, requests(rows), strict=True):
        frame.write_parquet(piece)
    whole = pl.scan_parquet(pieces)
    if kind == "parquet":
        whole.sink_parquet(path)
    else:
        whole.sink_csv(path)
    for piece in pieces:
        piece.unlink()
    return ["trace", str(path), "--json"]


def requests(rows: int) -> "Iterator[Any]":
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(0)
    now = 0.0
    for start in range(0, rows, PIECE):
        count = min(PIECE, rows - start)
        arrivals = now + np.cumsum(rng.exponential(1e-3, count))
        now = float(arrivals[-1])
        lengths = {
            name: np.clip(rng.lognormal(mean, 1, count), 1, 32_000).astype(np.int32)
            for name, mean in (("input_tokens", 6.5), ("output_tokens", 5.0))
        }
        yield pl.DataFrame({"arrival_s": arrivals.round(6), **lengths})


def measured(name: str, unit: str, size: int, command: list[str]) -> dict[str, float]:
    """Seconds of processor and the largest memory of the command in a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    # A child of a child, so that its memory is not hidden behind that of a larger one before.
    script = (
        "import json, resource, subprocess, sys; "
        "done = subprocess.run([sys.executable, '-m', 'tokonomics', *sys.argv[1:]], stdout=subprocess.DEVNULL); "
        "print(json.dumps([done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss]))"
    )
    said = subprocess.run([sys.executable, "-c", script, *command], stdout=subprocess.PIPE, check=True)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, largest = json.loads(said.stdout)
    if code:
        raise SystemExit(f"{name} of {size:,} {unit} ended with {code}: tokonomics {' '.join(command)}")
    for path in (Path(part) for part in command if Path(part).name.startswith("log-")):
        path.unlink()
    per_mb = 1e6 if sys.platform == "darwin" else 1e3  # bytes there, kilobytes elsewhere
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    row = {"size": size, "cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": largest / per_mb}
    print(f"  {name}, {size:,} {unit}: {row['cpu_s']:.1f} s of processor, {row['peak_mb']:,.0f} MB", file=sys.stderr)
    return row


def slopes(rows: list[dict[str, float]]) -> dict[str, float | None]:
    """Growth over the larger half of the sizes: 1 is linear, below it less."""
    first, large = rows[0], rows[len(rows) // 2 :]
    return {
        "time_slope": slope(large, lambda row: row["cpu_s"]),
        "time_slope_beyond_start": slope(large, lambda row: row["cpu_s"] - first["cpu_s"]),
        "memory_slope": slope(large, lambda row: row["peak_mb"]),
    }


def slope(rows: list[dict[str, float]], value: Callable[[dict[str, float]], float]) -> float | None:
    points = [(math.log(row["size"]), math.log(value(row))) for row in rows if value(row) > 0]
    if len(points) < 2:
        return None
    (x0, y0), (x1, y1) = points[0], points[-1]
    return (y1 - y0) / (x1 - x0)


def show(name: str, grown: dict[str, Any]) -> None:
    print(f"\n{name}\n{grown['unit']:>12}{'processor s':>14}{'µs each':>12}{'peak MB':>10}")
    for row in grown["rows"]:
        each_us = row["cpu_s"] / row["size"] * 1e6
        print(f"{row['size']:>12,}{row['cpu_s']:>14.2f}{each_us:>12,.2f}{row['peak_mb']:>10,.0f}")
    told = {
        key: "–" if grown[key] is None else f"{grown[key]:.2f}" for key in grown if key.endswith(("slope", "start"))
    }
    print(
        f"growth (1 is linear): time {told['time_slope']}, beyond the start {told['time_slope_beyond_start']}, "
        f"memory {told['memory_slope']}"
    )


def drawn(found: dict[str, Any], path: Path) -> None:
    """Time and memory against size, on logarithmic axes."""
    import altair as alt

    from tokonomics.report.charts import save_chart

    values = [
        {"what": f"{name} ({grown['unit']})", **row} for name, grown in found["grown"].items() for row in grown["rows"]
    ]
    chart = alt.Chart(alt.InlineData(values=values)).mark_line(point=True)
    log, tens = alt.Scale(type="log"), [10**power for power in range(9)]
    x = alt.X("size:Q", scale=log, title="size of the work", axis=alt.Axis(format="~s", values=tens))
    colour = alt.Color("what:N", title=None)
    panels = [
        chart.encode(
            x, alt.Y(f"{field}:Q", scale=log, title=title, axis=alt.Axis(values=tens, format="~s")), colour
        ).properties(width=340, height=280)
        for field, title in (("cpu_s", "processor seconds"), ("peak_mb", "largest memory, MB"))
    ]
    save_chart(alt.hconcat(*panels), path)


if __name__ == "__main__":
    main()
