"""The picture of a benchmark shows what was measured, the SLO and what was predicted."""

from pathlib import Path
from typing import Any

import pytest

from tokonomics.measure.bench.loads import Progress
from tokonomics.measure.importers.recognise import read_run
from tokonomics.measure.priced_run import GivenMachine, Price, PricedRun, machine_of, price_run
from tokonomics.report.charts.measured import bench_chart
from tokonomics.report.terminal import progress_line
from tokonomics.traffic.slo import parse_slos

RESULTS = Path(__file__).parents[1] / "measure" / "results"


def priced(price: bool = True) -> PricedRun:
    run = read_run(RESULTS / "inferencex.json")
    cost = Price(usd_per_hour=10, price_from="as given") if price else None
    return price_run(run, machine_of(run.stated, GivenMachine()), cost, parse_slos("ttft_p50=0.5"))


def panels(result: PricedRun) -> list[tuple[str, list[dict[str, Any]]]]:
    """The title and the rows of each panel."""
    spec = bench_chart(result).to_dict()
    drawn = [panel for row in spec["vconcat"] for panel in row["hconcat"]]
    return [(panel["title"]["text"], spec["datasets"][panel["layer"][0]["data"]["name"]]) for panel in drawn]


def test_each_panel_draws_every_load_as_measured() -> None:
    result = priced()
    drawn = panels(result)
    assert [title.split()[0] for title, _ in drawn] == ["Output", "Time", "Time", "Dollars"]
    measured = {row["load"]: row["value"] for row in drawn[0][1] if row["kind"] == "measured"}
    assert measured == {point.concurrency: point.output_tokens_per_s for point in result.run.points}
    dollars = [row["value"] for row in drawn[3][1]]
    assert dollars == [point.usd_per_mtok.blended for point in result.points if point.usd_per_mtok]


def test_predictions_and_slos_stand_beside_the_measurements() -> None:
    _, rows = panels(priced())[1]
    assert {row["kind"] for row in rows} == {"p50", "predicted p50", "SLO"}
    assert {row["value"] for row in rows if row["kind"] == "SLO"} == {0.5}


def test_without_a_price_there_is_no_panel_of_dollars() -> None:
    assert len(panels(priced(price=False))) == 3


@pytest.mark.parametrize("name", ["vllm.json", "aiperf.json", "llm-d.yaml"])
def test_one_load_is_drawn_too(name: str, tmp_path: Path) -> None:
    bench_chart(price_run(read_run(RESULTS / name), None, None)).save(str(tmp_path / "one.svg"))
    assert (tmp_path / "one.svg").read_text(encoding="utf-8").startswith("<svg")


def test_the_live_line_says_load_speed_price_and_precision() -> None:
    progress = Progress(
        load="16 users", phase="measuring", elapsed_s=12.0, completed=340, failed=2, output_tokens_per_s=4321.0,
        usd_per_mtok=0.5, precision=0.08,
    )  # fmt: skip
    shown = progress_line(progress).plain
    assert all(
        part in shown for part in ("16 users", "measuring", "340 answered", "2 failed", "4,321 tok/s", "$0.500/Mtok")
    )
    assert "±8 %" in shown
