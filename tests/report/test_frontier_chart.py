"""The frontier's rows are the plan's own figures, and its level lines what APIs charge; the drawing shows each once."""

import datetime as dt
import json
import re
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import altair as alt
import numpy as np
import pytest
import vl_convert
from tests.planner.small_catalogue import SLOS, asked
from tests.there import there

from tokonomics.catalog.api_hosts import find_api
from tokonomics.catalog.load_models import find_model
from tokonomics.measure.bench.loads import Progress
from tokonomics.measure.importers.recognise import read_run, read_runs
from tokonomics.measure.priced_run import GivenMachine, Price, PricedRun, as_model, machine_of, price_run, rental_of
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.apis import api_bills
from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import bill_range, least_regret
from tokonomics.planner.frontier import Frontier, frontier_of
from tokonomics.planner.plan import Study, study
from tokonomics.planner.vary import Case, CostSwing, Sensitivity
from tokonomics.questions.plan import measured_beside, plan
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import PlanResult
from tokonomics.report import charts
from tokonomics.report.charts import save_chart
from tokonomics.report.charts.frontier import frontier_chart, frontier_rows, measured_rows
from tokonomics.report.charts.measured import bench_chart
from tokonomics.report.charts.plan import ratio_chart, regret_chart, sensitivity_chart
from tokonomics.report.terminal import progress_line
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import PrefixBlocks, make_trace
from tokonomics.units import usd

RESULTS = Path(__file__).parents[1] / "measure" / "results"


@cache
def planned() -> tuple[Study, Frontier]:
    return around(study(asked(slos=SLOS, simulate=False)))


def around(found: Study) -> tuple[Study, Frontier]:
    made = frontier_of(found)
    assert made is not None
    return found, made


def api(name: str, usd_per_mtok: float) -> ApiCost:
    return ApiCost(
        name=name, usd_per_request=usd_per_mtok * 1300 / 1e6, usd_per_mtok=usd_per_mtok, input_usd_per_mtok=0.1,
        output_usd_per_mtok=0.4, date=dt.date(2026, 11, 1), source="a list",
    )  # fmt: skip


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def test_the_pick_stands_where_the_plan_says_with_the_interval_of_its_bill() -> None:
    found, made = planned()
    best = found.plan.best
    assert best is not None
    bills = bill_range(found, best)
    (pick,) = of_kind(frontier_rows(made, found.plan, bills=bills), "pick")
    assert pick["usd"] == best.usd_per_mtok.blended
    assert best.tpot_s.mean is not None
    assert pick["tps"] == pytest.approx(1 / best.tpot_s.mean, rel=1e-4)
    assert pick["ttft"] == pytest.approx(best.ttft_s.mean, rel=1e-4)
    assert usd(best.usd_per_month) in pick["price"]
    assert bills.slow.usd_per_month is not None
    tokens = best.usd_per_month / best.usd_per_mtok.blended
    assert pick["usd_high"] == pytest.approx(bills.slow.usd_per_month / tokens, rel=1e-4)


def test_every_fleet_within_reason_is_one_row_within_its_interval() -> None:
    found, made = planned()
    rows = frontier_rows(made, found.plan)
    fleets = of_kind(rows, "fleet")
    best = found.plan.best
    assert best is not None
    wanted = [point for point in made.points if point.meets_slo or point.usd_per_month < best.usd_per_month]
    assert len(wanted) - 1 <= len(fleets) <= len(wanted)  # the pick's own fleet is the pick
    assert len({row["deployment"] for row in rows}) == len(rows)
    for row in fleets:
        assert row["tps_low"] < row["tps"] < row["tps_high"]
        assert row["ttft_low"] < row["ttft"] < row["ttft_high"]
        assert row["met"] == (row["slo"] == "met in the mean") == (row["usd"] >= best.usd_per_mtok.blended * (1 - 1e-4))


def test_only_fleets_that_meet_the_slo_stand_in_the_shade() -> None:
    """By simulation too, where means within the SLO are not enough."""
    for found, made in (planned(), around(study(asked(slos=parse_slos("tpot_p99=20ms"), simulate=True)))):
        spec = frontier_chart(made, found.plan, "A model").to_dict()
        shades = 0
        for panel, field in zip(spec["hconcat"], ("tps", "ttft"), strict=True):
            for shade in (layer for layer in panel["layer"] if layer["mark"]["type"] == "rect"):
                (corner,), shades = shade["data"]["values"], shades + 1
                left, right = sorted((corner[field], corner["end"]))
                inside = [
                    row
                    for row in spec["data"]["values"]
                    if row["kind"] == "fleet" and left <= row[field] <= right and row["usd"] >= corner["usd"]
                ]
                assert inside
                assert all(row["met"] for row in inside)
        assert shades == len({slo.latency for slo in found.plan.slos})


def test_apis_are_level_lines_at_their_prices_and_far_ones_are_left_out() -> None:
    found, made = planned()
    cheapest = min(point.usd_per_mtok for point in made.points)
    bills = [api("near:m", 2 * cheapest), api("far:m", 11 * cheapest)]
    (row,) = of_kind(frontier_rows(made, found.plan, apis=bills), "API")
    assert row["usd"] == 2 * cheapest
    assert row["deployment"] == "API of near:m"
    assert f"{usd(2 * cheapest)}/Mtok" in row["price"]
    assert "tps" not in row


def test_a_measured_load_says_how_far_the_prediction_was_off() -> None:
    run = as_model(read_runs([RESULTS / "vllm.json"]), "llama-3.1-8b")
    machine = machine_of(run.stated, GivenMachine(gpu="H100"))
    assert machine is not None
    (row,) = measured_rows(price_run(run, machine, rental_of(machine, "llama-3.1-8b")))
    said = json.loads((RESULTS / "vllm.json").read_text())
    assert row["tps"] == pytest.approx(1e3 / said["mean_tpot_ms"])
    assert row["ttft"] == pytest.approx(said["mean_ttft_ms"] / 1e3)
    off = row["tps"] / row["predicted_tps"] - 1
    assert f"predicted time per token {off * 100:+.0f}"[:28] in row["distance"]
    assert "not said by the file" in row["deployment"]


def test_a_file_without_a_gpu_was_measured_on_the_pick_where_several_gpus_are_asked_for() -> None:
    shape = {"model": ["llama-3.1-8b"], "rate": "5", "input": "const:1000", "output": "const:300", "quick": True}
    request = PlanRequest.checked(shape | {"gpu": ["H100,L4"], "measured": [str(RESULTS / "vllm.json")]})
    found = plan(request)
    assert isinstance(found, PlanResult)
    assert found.best
    assert [run.machine and run.machine.gpu for run in found.measured] == [found.best.gpu]


@pytest.mark.parametrize(("name", "said"), [("own-13b", "own-13b, which is not in"), (None, "names no model")])
def test_a_file_without_a_known_model_says_what_it_is_taken_for(tmp_path: Path, name: str | None, said: str) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps(json.loads((RESULTS / "vllm.json").read_text()) | {"model_id": name}))
    hears, made = Mock(spec=Listener), planned()[0].plan
    (run,) = measured_beside(PlanRequest(model=(made.model,), measured=(str(file),)), made, hears)
    note, machine = (call.args[0] for call in hears.note.call_args_list)
    assert said in note
    assert note.endswith(f"taken as a test of {made.model}")
    assert made.best
    assert machine.endswith(f"names no GPU: taken as measured on {made.best.gpu}")
    assert run.run.model == made.model


def test_the_drawing_is_valid_small_and_saved_with_both_panels(tmp_path: Path) -> None:
    found, made = planned()
    chart = frontier_chart(made, found.plan, "A model", apis=[api("near:m", made.tpot[-1].usd_per_mtok)])
    spec = chart.to_dict()
    assert len(json.dumps(spec)) < 100_000
    alt.HConcatChart.from_dict(spec, validate=True)
    assert [panel["title"]["text"].split(",")[0] for panel in spec["hconcat"]] == [
        "Tokens/s for each user",
        "Time to first token",
    ]
    for panel, front in zip(spec["hconcat"], (made.tpot, made.ttft), strict=True):
        (line,) = (layer for layer in panel["layer"] if layer["mark"]["type"] == "line")
        assert [row["usd"] for row in line["data"]["values"][1:-1]] == [point.usd_per_mtok for point in front]
        assert any(layer["mark"]["type"] == "rect" for layer in panel["layer"])  # where the SLO is met
    save_chart(chart.altair(), tmp_path / "frontier.svg")
    assert "the pick" in (tmp_path / "frontier.svg").read_text()


def test_without_slos_nothing_is_shaded() -> None:
    found, made = around(study(asked(simulate=False)))
    spec = frontier_chart(made, found.plan, "A model").to_dict()
    assert not any(layer["mark"]["type"] == "rect" for panel in spec["hconcat"] for layer in panel["layer"])


def test_an_api_reads_from_its_cache_what_a_log_repeats() -> None:
    """Four prompts of 64 tokens, half of each alike: three of them begin as the one 200 seconds before."""
    prefix = PrefixBlocks(np.tile(np.arange(2, dtype=np.int32), 4), np.arange(0, 9, 2), block_tokens=16, distinct=2)
    log = load_of_log(make_trace([0, 200, 400, 600], [64] * 4, [10] * 4, prefix=prefix))
    found, made = planned()
    bills = api_bills(find_model("gpt-oss-120b"), "gpt-oss-120b", log)
    (groq,) = [bill for bill in bills if bill.name == "groq:openai/gpt-oss-120b"]
    quoted = find_api(groq.name)
    share = 3 * 32 / (4 * 64)
    prompt = (1 - share) * quoted.input_usd_per_mtok + share * there(quoted.cached_input_usd_per_mtok)
    assert groq.usd_per_mtok == pytest.approx((64 * prompt + 10 * quoted.output_usd_per_mtok) / 74)
    (line,) = of_kind(frontier_rows(made, found.plan, apis=[groq]), "API")
    assert "38 % of prompts from its cache" in line["price"]


# --- the charts of a plan's questions show every answer once, and nothing that was not computed -----------------------


def layers(spec: dict[str, Any], panel: dict[str, Any] | None = None) -> list[list[dict[str, Any]]]:
    """The rows of every layer; Altair names data, and moves what layers share one level up."""
    chart = spec if panel is None else panel
    if "layer" not in chart:
        return [spec["datasets"][chart["data"]["name"]]]
    return [rows for layer in chart["layer"] for rows in layers(spec, {"data": chart.get("data")} | layer)]


def swing(name: str, low: float | None, high: float | None, factor: float = 0.25) -> CostSwing:
    def case(by: float, usd: float | None) -> Case:
        replicas, used = (1, 0.5 * by) if usd else (None, None)
        return Case(factor=by, usd_per_month=usd, replicas=replicas, used=used, refused=None if usd else "too slow")

    return CostSwing(assumption=name, low=case(1 - factor, low), high=case(1 + factor, high))


def test_the_tornado_keeps_the_order_and_says_what_cannot_be_met() -> None:
    swings = (swing("SLO tpot_p99", None, 100.0), swing("requests a second", 50.0, 200.0), swing("speed", 100.0, 100.0))
    made = Sensitivity(usd_per_month=100.0, replicas=1, used=0.5, swings=swings)
    chart = sensitivity_chart(made, "1 × H100").to_dict()
    text = json.dumps(chart, ensure_ascii=False)
    assert "cannot be met" in text
    assert "no change; 38 % to 62 % in use" in text
    bars = layers(chart)[0]
    assert [row["what"].split(" ±")[0] for row in bars[::2]] == ["SLO tpot_p99", "requests a second", "speed"]
    assert {row["usd"] for row in bars if row["what"].startswith("requests")} == {50.0, 200.0}


def test_the_regret_chart_has_a_bar_for_every_choice_and_case(tmp_path: Path) -> None:
    studies = [study(asked(load=load_of_shape(rate, "const:1000", "const:300"))) for rate in (2.0, 20.0, 80.0)]
    made = least_regret(studies)
    assert made is not None
    chart = regret_chart(made, "A model", rows=3)
    bars = layers(chart.to_dict())[0]
    assert len(bars) == 3 * min(3, len(made.choices))
    assert {row["case"] for row in bars} == {"low: 2/s", "middle: 20/s", "high: 80/s"}
    for row in bars:
        assert row["label"].endswith("best") == (row["usd"] < 1.005 * row["best"])
    save_chart(chart, tmp_path / "regret.svg")
    drawn = (tmp_path / "regret.svg").read_text(encoding="utf-8")
    assert "best" in drawn
    assert 'font-family="sans-serif"' not in drawn, "a wider font than was measured cuts labels at the edges"


def test_a_saved_svg_draws_and_says_what_the_drawn_one_does_in_fewer_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    studies = [study(asked(load=load_of_shape(rate, "const:1000", "const:300"))) for rate in (2.0, 20.0)]
    made = least_regret(studies)
    assert made is not None
    drawn = vl_convert.vegalite_to_svg(regret_chart(made, 'A <model> of 1.23456 "layers"', rows=3).to_dict())
    rounded = charts.smaller_svg(drawn)
    assert len(rounded) < 0.7 * len(drawn)
    labels = r'aria-label="[^"]*"'
    assert re.findall(labels, rounded) == re.findall(labels, drawn)
    assert "1.23456" in rounded
    assert not re.search(r'(transform|d)="[^"]*\.\d{3}', rounded)
    monkeypatch.setattr(charts, "_PLACES", set())
    exact = charts.smaller_svg(drawn).replace(charts._FONTS, "sans-serif")
    assert vl_convert.svg_to_png(exact) == vl_convert.svg_to_png(drawn)


def test_the_ratio_chart_has_a_bar_for_every_split_and_the_planned_one_stands_out() -> None:
    splits = ((0, 4, 8.0, 1.1), (1, 3, 5.0, 1.9), (2, 2, 12.0, 0.75), (3, 1, 0.0, None))
    points = [
        RatioPoint(
            prefill_replicas=first, decode_replicas=second, requests_per_s=rate, usd_per_mtok=usd, is_planned=first == 2
        )
        for first, second, rate, usd in splits
    ]
    bars = layers(ratio_chart(points, "a fleet").to_dict())[0]
    assert [row["rate"] for row in bars] == [8.0, 5.0, 12.0, 0.0]
    assert [row["kind"] == "planned" for row in bars] == [False, False, True, False]
    assert bars[0]["what"] == "4 that do both"
    assert bars[3]["label"] == "misses an SLO at any rate"


# --- the picture of a benchmark shows what was measured, the SLO and what was predicted -------------------------------


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
