"""The charts of a plan's questions show every answer once, and nothing that was not computed."""

import json
from pathlib import Path
from typing import Any

from tests.planner.small_catalogue import asked

from tokonomics.planner.disaggregation import RatioPoint
from tokonomics.planner.firmness import least_regret
from tokonomics.planner.plan import study
from tokonomics.planner.vary import Case, CostSwing, Sensitivity
from tokonomics.report.charts import save_chart
from tokonomics.report.charts.plan import ratio_chart, regret_chart, sensitivity_chart
from tokonomics.sizing.load import load_of_shape


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
