"""Everything that writes a file, as a turn that a process takes over and over, and what a reader then finds.

``write(folder, turn)`` calls the product and leaves content that says which turn made it; ``found(folder)`` reads it
back and answers with that turn, 0 where there is nothing yet, and fails where the content is of two turns or of half of
one. Files are tens to hundreds of kilobytes: time enough to be killed in the middle.
"""

import asyncio
import csv
import html
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from tests.measure.metered import BEGIN, HandClock, PageSource, Process

TICK_S = 15.0
ROWS = 5_000


@dataclass(frozen=True)
class Writer:
    """One kind of file, and how often its writer is killed."""

    name: str
    kills: int
    write: Callable[[Path, int], None]
    found: Callable[[Path], int]
    prepare: Callable[[], object] | None = None
    """For those whose turn starts threads: what else is to be there before the process is copied."""


def one(turns: Any) -> int:
    """The turn that made all of it."""
    seen = set(map(int, turns))
    assert len(seen) == 1, f"content of turns {sorted(seen)[:5]} in one file"
    return seen.pop()


def in_file(name: str, turns: Callable[[Path], Iterable[Any]], rows: int = ROWS) -> Callable[[Path], int]:
    """The turn of a file of so many rows, each of which says its turn; 0 where there is no file yet."""

    def found(folder: Path) -> int:
        if not (folder / name).exists():
            return 0
        seen = list(turns(folder / name))
        assert len(seen) == rows
        return one(seen)

    return found


# --- the meter's ledger ---------------------------------------------------------------------------------------------

_meters: dict[Path, Any] = {}


def tick(folder: Path, turn: int) -> None:
    """The meter reads a server that has worked since the last tick, and books it."""
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.live_meter import Meter, MeterSettings

    if folder not in _meters:
        clock = HandClock()
        process = Process(clock)
        book = Ledger(folder / "meter.db")
        _meters[folder] = clock, process, book, Meter([PageSource(process)], book, clock, MeterSettings(3.6))
    clock, process, book, meter = _meters[folder]
    clock.passed = TICK_S * turn
    process.counted[0].update(input=10.0 * turn, output=5.0 * turn, steps=float(turn))
    asyncio.run(meter.tick())
    assert not book.held, "a tick that is not in the book is not acknowledged"


def booked(folder: Path) -> int:
    """Every second and token up to the mark is in the book once, and what the mark says of them is their sum."""
    from tokonomics.measure.meter.ledger import Ledger
    from tokonomics.measure.meter.spans import tally
    from tokonomics.measure.meter.state import MeterTally

    path = folder / "meter.db"
    if not path.exists():
        return 0
    with Ledger(path) as book:
        assert book._db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        marks, spans = book.marks(), list(book.spans())
    if not marks:
        assert not spans
        return 0
    (mark,) = marks.values()
    turn = round((mark.until - BEGIN) / TICK_S)
    total = sum(map(tally, spans), MeterTally())
    counted = 5.0 * (turn - 1)  # the first tick only learns where the counters stand
    assert (total.output, total.input_total) == (counted, 2 * counted)
    assert abs(total.seconds - TICK_S * (turn - 1)) < 1e-6
    assert abs(total.usd - total.seconds * 0.001) < 1e-9
    said = sum(mark.totals.values(), MeterTally())
    assert (said.output, said.input_total) == (total.output, total.input_total)
    assert abs(said.usd - total.usd) < 1e-9
    return turn


# --- prices ---------------------------------------------------------------------------------------------------------

OFFERS = 150


@cache
def some_offers() -> tuple[Any, ...]:
    from tokonomics.catalog.offers import SNAPSHOT, read_offers

    return read_offers(SNAPSHOT)[:OFFERS]


def write_prices(folder: Path, turn: int) -> None:
    from tokonomics.catalog.offers import write_offers

    write_offers(folder / "prices" / "offers.csv", [each.model_copy(update={"vcpus": turn}) for each in some_offers()])


def prices(path: Path) -> list[Any]:
    from tokonomics.catalog.offers import read_offers

    return [offer.vcpus for offer in read_offers(path)]


def refresh_prices(folder: Path, turn: int) -> None:
    """The verb's own work, with the network's part played by a table."""
    from unittest.mock import patch

    from tokonomics.catalog import refresh

    lines = ["InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone"]
    lines += [f"m{each}.large,H100,8.0,{turn},2048,60.0,20.0,us-east-1,a" for each in range(100)]
    with patch.object(refresh, "_download", lambda url, timeout_s: ("\n".join(lines) + "\n", None)):
        done = refresh.refresh(providers=["lambda"], url="http://127.0.0.1:9", path=folder / "cache.csv")
    assert done.path


def refreshed(path: Path) -> list[Any]:
    from tokonomics.catalog.offers import read_offers

    return [offer.vcpus for offer in read_offers(path) if offer.provider == "lambda"]


# --- traffic and simulations ----------------------------------------------------------------------------------------


def table_modules() -> None:
    import polars  # noqa: F401 - its threads start at its first use

    import tokonomics.serving.outcome
    import tokonomics.traffic.trace  # noqa: F401

    simulation()


def some_trace(input_tokens: int, output_tokens: int) -> Any:
    from tokonomics.traffic.trace import make_trace

    return make_trace(np.arange(ROWS) * 1.0, np.full(ROWS, input_tokens), np.full(ROWS, output_tokens))


def write_trace(folder: Path, turn: int) -> None:
    from tokonomics.traffic.trace import save_trace

    save_trace(some_trace(turn, 9), folder / "trace.parquet")


@cache
def simulation() -> Any:
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.load_models import find_model
    from tokonomics.physics.deployment import deploy
    from tokonomics.serving.simulator import simulate

    with_llama = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    return simulate(with_llama, some_trace(9, 2))


def write_records(folder: Path, turn: int) -> None:
    from tokonomics.serving.outcome import save_records

    save_records(replace(simulation(), trace=some_trace(turn, 2)), folder / "requests.parquet")


def prompts(path: Path) -> Any:
    import polars as pl

    return pl.read_parquet(path)["input_tokens"]


# --- measurements ---------------------------------------------------------------------------------------------------


@cache
def some_run() -> Any:
    from tokonomics.measure.importers.recognise import read_run

    return read_run(Path(__file__).parents[1] / "measure" / "results" / "bench.json")


def write_run(folder: Path, turn: int) -> None:
    from tokonomics.measure.benchmark_run import save_run

    save_run(some_run().model_copy(update={"notes": (str(turn),) * ROWS}), folder / "run.json")


def run(path: Path) -> Any:
    from tokonomics.measure.importers.recognise import read_run

    return read_run(path).notes


def write_profile(folder: Path, turn: int) -> None:
    from datetime import date

    from tokonomics.physics import calibration

    timings = {"gemm": [{"m": turn, "us": 2.5}] * ROWS}
    made = calibration.Profile(name="mine", made=date(2026, 11, 15), command="", timings=timings)
    calibration.write_profile(made, folder / "profile.json")


def profile(path: Path) -> list[Any]:
    from tokonomics.physics.calibration import read_profile

    rows: Any = read_profile(path).timings["gemm"]
    return [row["m"] for row in rows]


def write_timings(folder: Path, turn: int) -> None:
    from tokonomics.measure.probe import timings

    timings.write({"kind": timings.KIND, "gemm": [{"m": turn}] * ROWS, "seconds": {}}, folder / "timings.json")


def probed(path: Path) -> list[Any]:
    return [row["m"] for row in json.loads(path.read_text())["gemm"]]


def write_bill(folder: Path, turn: int) -> None:
    from tokonomics.measure.meter.bill import bill_csv
    from tokonomics.measure.meter.state import MeterTally, Statement, StatementLine

    line = StatementLine(group=("m",), sums=MeterTally(output=float(turn)))
    made = Statement(since=0.0, until=1.0, by=("model",), lines=(line,) * 1_000, total=MeterTally())
    bill_csv(made, folder / "bill.csv")


def bill(path: Path) -> list[float]:
    with path.open(newline="") as file:
        return [float(row["output"]) for row in csv.DictReader(file)]


# --- charts, reports, files for other tools -------------------------------------------------------------------------


def chart_modules() -> None:
    import vl_convert  # noqa: F401 - its threads start at its first use

    import tokonomics.report.charts  # noqa: F401

    _chart(1, 1).to_dict()


def _chart(turn: int, points: int) -> Any:
    import altair as alt

    values = [{"x": each, "turn": turn} for each in range(points)]
    return alt.Chart(alt.InlineData(values=values)).mark_point().encode(x=alt.X("x:Q"), y=alt.Y("turn:Q"))


def write_chart(folder: Path, turn: int) -> None:
    from tokonomics.report.charts import save_chart

    save_chart(_chart(turn, 400), folder / "chart.json")


def chart(path: Path) -> list[Any]:
    (values,) = json.loads(path.read_text())["datasets"].values()
    return [each["turn"] for each in values]


def write_picture(folder: Path, turn: int) -> None:
    from tokonomics.report.charts import save_chart

    save_chart(_chart(turn, 300).properties(title=f"turn {turn}."), folder / "chart.svg")


def picture(path: Path) -> list[str]:
    from xml.etree import ElementTree

    text = path.read_text()
    ElementTree.fromstring(text)  # an unclosed element is no picture
    return re.findall(r">turn (\d+)\.<", text)


def write_report(folder: Path, turn: int) -> None:
    from tokonomics.questions.result import Listing
    from tokonomics.report.answer import Answer
    from tokonomics.report.html import save_report

    result = Listing(rows=(), documents=tuple({"turn": turn} for _ in range(ROWS)))
    save_report(folder / "report.html", Answer(result, f"Turn {turn}", lambda: []), "tokonomics plan")


def report(path: Path) -> list[Any]:
    text = path.read_text()
    assert text.endswith("</html>\n")
    numbers = json.loads(html.unescape(text[text.index("<pre>[") + 5 : text.rindex("]</pre>") + 1]))
    return [*(row["turn"] for row in numbers), *re.findall(r"<h1>Turn (\d+)</h1>", text)]


def write_unsent(folder: Path, turn: int) -> None:
    from datetime import date, timedelta

    from tokonomics.operate.weekly import WeeklyReports

    reports = WeeklyReports(folder / "report.html", lambda since, until, file: False, print)
    reports.keep_unsent([date(1, 1, 1) + timedelta(weeks=turn * ROWS + row) for row in range(ROWS)])


def unsent(path: Path) -> list[int]:
    from datetime import date

    return [(date.fromisoformat(line).toordinal() - 1) // 7 // ROWS for line in path.read_text().splitlines()]


def write_deployment(folder: Path, turn: int) -> None:
    from tokonomics.deploy.job import DeployFile
    from tokonomics.questions.plan import save_files
    from tokonomics.questions.request import SILENT

    text = f"turn: {turn}\n" * ROWS
    files = [DeployFile(name=name, text=text, fill_in=()) for name in ("serve.sh", "serve.yaml")]
    save_files(files, folder / "deploy", SILENT)


def write_dashboard(folder: Path, turn: int) -> None:
    from unittest.mock import patch

    from tokonomics.measure.meter import exposition

    with patch.object(exposition, "text_of", lambda name: f"turn: {turn}\n" * ROWS):
        exposition.write_files(folder / "monitoring", overwrite=True)


def dashboard(folder: Path) -> int:
    from tokonomics.measure.meter.exposition import NAMES

    return of_files(folder / "monitoring", NAMES)


def of_files(folder: Path, names: Any) -> int:
    """Files that are written one after the other: each is whole, and the later ones are a turn behind at most."""
    turns = []
    for name in names:
        lines = (folder / name).read_text().splitlines() if (folder / name).exists() else []
        assert len(lines) in (0, ROWS)
        turns.append(one(line.removeprefix("turn: ") for line in lines) if lines else 0)
    assert turns == sorted(turns, reverse=True), turns
    assert turns[0] - turns[-1] <= 1, turns
    return turns[-1]


def write_library(folder: Path, turn: int) -> None:
    from tokonomics.web import pages

    pages._keep(folder, folder / "vega.js", f"{turn}\n".encode() * ROWS + pages._END)


def library(path: Path) -> list[bytes]:
    from tokonomics.web import pages

    code = path.read_bytes()
    assert code.endswith(pages._END)
    return code.removesuffix(pages._END).split()


# --- sweeps ---------------------------------------------------------------------------------------------------------

_sweeps: dict[Path, Any] = {}
MERGED_AT = 2
"""Parts, here: every second turn or so ends with a merge, so that many kills fall into one."""


def sweep_modules() -> tuple[Any, Any]:
    return import_module("tokonomics.sweep.store"), import_module("tokonomics.sweep.outcome")


def finish_points(folder: Path, turn: int) -> None:
    """A batch of points that a sweep has done, and what it says of itself."""
    store, outcome = sweep_modules()
    store._SMALL = MERGED_AT
    if folder not in _sweeps:
        opened = store.opened(folder / "sweep")
        _sweeps[folder] = opened.__enter__(), opened
    done = outcome.PointOutcome(outcome.Status.OK, None, {"turn": float(turn)}, "an answer" * 500, 0.1)
    _sweeps[folder][0].add([(f"{turn}-{place}", done) for place in range(4)])
    store.write_manifest(folder / "sweep", {"turn": turn})


def points_done(folder: Path) -> int:
    """Every point that was acknowledged is there, with its own figures, and no part of a batch without the rest."""
    store, _ = sweep_modules()
    with store.opened(folder / "sweep") as found:
        done = {key: kept.outcome.figures["turn"] for key, kept in found.done.items()}
        said = int((store.read_manifest(folder / "sweep") or {}).get("turn", 0))
    turns = sorted({int(key.split("-")[0]) for key in done})
    assert turns == list(range(1, len(turns) + 1))
    assert len(done) == 4 * len(turns)
    assert all(int(key.split("-")[0]) == turn for key, turn in done.items())
    assert len(turns) - said in (0, 1), f"{len(turns)} turns done, {said} said"
    parts = [path.name for path in (folder / "sweep").glob("part-*")]
    assert len(turns) < 2 * MERGED_AT or any(name.count("-") == 2 for name in parts), f"nothing merged: {parts}"
    return said


WRITERS = (
    Writer("ledger", 240, tick, booked),
    Writer("sweep", 60, finish_points, points_done, sweep_modules),
    Writer("prices", 60, write_prices, in_file("prices/offers.csv", prices, OFFERS)),
    Writer("refresh", 40, refresh_prices, in_file("cache.csv", refreshed, 100)),
    Writer("trace", 80, write_trace, in_file("trace.parquet", prompts), table_modules),
    Writer("requests", 60, write_records, in_file("requests.parquet", prompts), table_modules),
    Writer("run", 60, write_run, in_file("run.json", run)),
    Writer("profile", 60, write_profile, in_file("profile.json", profile)),
    Writer("timings", 50, write_timings, in_file("timings.json", probed)),
    Writer("bill", 40, write_bill, in_file("bill.csv", bill, 1_000)),
    Writer("chart", 40, write_chart, in_file("chart.json", chart, 400)),
    Writer("picture", 5, write_picture, in_file("chart.svg", picture, 1), chart_modules),
    Writer("report", 40, write_report, in_file("report.html", report, ROWS + 1)),
    Writer("unsent", 40, write_unsent, in_file("report.unsent", unsent)),
    Writer("deployment", 40, write_deployment, lambda folder: of_files(folder / "deploy", ("serve.sh", "serve.yaml"))),
    Writer("dashboard", 30, write_dashboard, dashboard),
    Writer("library", 15, write_library, in_file("vega.js", library)),
)
BY_NAME = {each.name: each for each in WRITERS}
