"""The charts of a simulation show what it came to: every bin, every SLO, on an axis a reader can use."""

import json
from pathlib import Path
from typing import Any

import pytest

from tokonomics.report.charts import save_chart
from tokonomics.report.charts.traffic import capacity_chart, simulate_chart
from tokonomics.serving.outcome import Moment, Outcome, SloOutcome
from tokonomics.traffic.workload import Spread

NOTHING = Spread(p50=None, p90=None, p95=None, p99=None, mean=None)


def spread(seconds: float) -> Spread:
    return Spread(p50=seconds, p90=seconds, p95=seconds, p99=seconds, mean=seconds)


def kept(slo: str, objective_s: float, delivered_s: float | None) -> SloOutcome:
    fine = delivered_s is None or delivered_s <= objective_s
    return SloOutcome(slo=slo, objective_s=objective_s, delivered_s=delivered_s, met=fine)


def made(
    duration_s: float = 60.0, ttft_s: Spread = NOTHING, tpot_s: Spread = NOTHING, slo: tuple[SloOutcome, ...] = ()
) -> Outcome:
    """What the charts read of an outcome; the rest is left out."""
    read: dict[str, Any] = {
        "duration_s": duration_s, "ttft_s": ttft_s, "tpot_s": tpot_s, "slo": slo, "output_tokens": 1,
    }  # fmt: skip
    return Outcome.model_construct(**read)


def moment(at_s: float, ttft_s: float | None = 0.1, size: float = 1.0) -> Moment:
    return Moment(
        at_s=at_s,
        arrivals_per_s=size,
        running=2 * size,
        waiting=3 * size,
        kv_share=0.25,
        busy_share=0.75,
        input_tokens_per_s=5 * size,
        output_tokens_per_s=7 * size,
        ttft_p50_s=ttft_s,
        ttft_p99_s=None if ttft_s is None else 2 * ttft_s,
    )


def panels(chart: Any) -> dict[str, Any]:
    """The panels of a chart by their heading, as written to a file; each layer with its data."""
    drawn = json.loads(chart.to_json())
    found = {}
    for panel in drawn.get("vconcat") or drawn["hconcat"]:
        for layer in layers(panel):
            # Altair keeps data once, at the lowest level at which all is the same.
            data = layer.get("data") or panel.get("data") or drawn["data"]
            layer["rows"] = drawn["datasets"][data["name"]] if "name" in data else data["values"]
        found[panel["title"]["text"]] = panel
    return found


def layers(panel: Any) -> list[Any]:
    return panel.get("layer") or [panel]


def rows(panel: Any) -> list[Any]:
    """The data of a panel, all layers together."""
    return [row for layer in layers(panel) for row in layer["rows"]]


def bins(panel: Any, kind: str) -> list[Any]:
    """The value of each bin: it is written at both of its ends."""
    values = [row["value"] for row in rows(panel) if row["kind"] == kind]
    assert values[::2] == values[1::2]
    return values[::2]


def scale(panel: Any) -> Any:
    return layers(panel)[0]["encoding"]["y"]["scale"]


TTFT = "Time to first token, by time of arrival"


def test_every_quantity_of_every_bin_is_drawn() -> None:
    drawn = panels(simulate_chart(made(), [moment(0.0, 0.1, 1.0), moment(30.0, 0.2, 4.0)], "title", "subtitle"))
    assert bins(drawn["Requests arriving per second"], "requests/s") == [1, 4]
    assert bins(drawn["Requests waiting"], "waiting") == [3, 12]
    assert bins(drawn[TTFT], "p50") == [0.1, 0.2]
    assert bins(drawn[TTFT], "p99") == [0.2, 0.4]
    assert bins(drawn["Sequences in the batch"], "sequences") == [2, 8]
    assert bins(drawn["Share of time computing, share of KV memory in use"], "computing") == [0.75, 0.75]
    assert bins(drawn["Share of time computing, share of KV memory in use"], "KV in use") == [0.25, 0.25]
    assert bins(drawn["Output tokens per second"], "tokens/s") == [7, 28]
    # Where two bins meet there are two values: they must not be added up.
    assert drawn["Output tokens per second"]["encoding"]["y"]["stack"] is None


def test_all_panels_share_the_axis_of_time() -> None:
    drawn = panels(simulate_chart(made(50.0), [moment(0.0), moment(30.0)], "title", "subtitle"))
    axes = [layers(panel)[0]["encoding"]["x"]["scale"]["domain"] for panel in drawn.values()]
    assert axes == [[0, 50]] * 6


@pytest.mark.parametrize(
    ("duration_s", "unit", "end"),
    [(60.0, "seconds", 60), (600.0, "minutes", 10), (86400.0, "hours", 24), (7 * 86400.0, "days", 7)],
)
def test_time_is_in_the_unit_of_its_span(duration_s: float, unit: str, end: float) -> None:
    half = duration_s / 2
    drawn = panels(simulate_chart(made(duration_s), [moment(0.0), moment(half)], "title", "subtitle"))
    last = drawn["Output tokens per second"]
    assert last["encoding"]["x"]["title"].startswith(unit)
    assert max(row["time"] for row in rows(last)) == end


def test_a_bin_without_arrivals_interrupts_the_line() -> None:
    drawn = panels(simulate_chart(made(90.0), [moment(0.0), moment(30.0, None), moment(60.0)], "title", "subtitle"))
    assert bins(drawn[TTFT], "p99") == [0.2, None, 0.2]


def test_the_asked_first_token_is_drawn_and_no_other() -> None:
    slo = (kept("ttft_p95", 0.5, 0.2), kept("tpot_p99", 0.05, 0.02))
    with_slo = panels(simulate_chart(made(slo=slo), [moment(0.0), moment(30.0)], "title", "subtitle"))[TTFT]
    assert [row for row in rows(with_slo) if row["kind"].startswith("SLO")] == [
        {"kind": "SLO p95: 500 ms", "value": 0.5}
    ]
    without = panels(simulate_chart(made(slo=slo[1:]), [moment(0.0), moment(30.0)], "title", "subtitle"))[TTFT]
    assert {row["kind"] for row in rows(without)} == {"p50", "p99"}


def test_latencies_that_span_much_get_a_logarithmic_axis_that_holds_them_all() -> None:
    near = panels(simulate_chart(made(), [moment(0.0, 0.1), moment(30.0, 0.2)], "title", "subtitle"))[TTFT]
    far = panels(simulate_chart(made(), [moment(0.0, 0.1), moment(30.0, 40.0)], "title", "subtitle"))[TTFT]
    assert "type" not in scale(near)
    assert scale(near)["domain"][0] == 0
    assert scale(far)["type"] == "log"
    low, high = scale(far)["domain"]
    assert low <= 0.1
    assert high >= 80


@pytest.mark.parametrize(
    "bins_of",
    [
        [moment(0.0)],
        [moment(0.0, None, 0.0), moment(30.0, None, 0.0)],
        [moment(0.0, 0.0)],
        [moment(0.0, 1e-4), moment(30.0, None), moment(60.0, 1e4)],
    ],
    ids=["one bin", "nothing happens", "no time at all", "extremes"],
)
@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_odd_simulations_are_drawn_too(tmp_path: Path, bins_of: list[Moment], suffix: str) -> None:
    file = tmp_path / f"chart.{suffix}"
    save_chart(simulate_chart(made(), bins_of, "title", "subtitle"), file)
    assert file.stat().st_size > 1000


def at(rate: float, ttft_s: float | None, tpot_s: float) -> tuple[float, Outcome]:
    slo = (kept("ttft_p99", 0.5, ttft_s), kept("tpot_mean", 0.05, tpot_s))
    return rate, made(ttft_s=spread(ttft_s) if ttft_s else NOTHING, tpot_s=spread(tpot_s), slo=slo)


POINTS = [at(4, 9.0, 0.04), at(1, 0.1, 0.01), at(2, 0.2, 0.02)]


def test_each_slo_has_a_panel_with_its_curve_and_its_bound() -> None:
    drawn = panels(capacity_chart(POINTS, "title", "log", 0.0))
    assert list(drawn) == ["Time to first token, p99", "Time per output token, mean"]
    first, second = drawn.values()
    assert [row for row in rows(first) if "kept" in row][:3] == [
        {"rate": 1, "value": 0.1, "kept": True},
        {"rate": 2, "value": 0.2, "kept": True},
        {"rate": 4, "value": 9.0, "kept": False},
    ]
    assert {"value": 0.5, "label": "SLO 500 ms"} in rows(first)
    assert {"value": 0.05, "label": "SLO 50 ms"} in rows(second)
    assert all(row["kept"] for row in rows(second) if "kept" in row)


def test_the_capacity_is_marked_in_every_panel_where_it_is_known() -> None:
    marked = panels(capacity_chart(POINTS, "title", "log", 2.5)).values()
    assert all({"rate": 2.5, "label": "2.5/s"} in rows(panel) for panel in marked)
    unmarked = panels(capacity_chart(POINTS, "title", "log", 0.0)).values()
    assert not any(row.get("label", "").endswith("/s") for panel in unmarked for row in rows(panel))


def test_a_rate_at_which_nobody_was_answered_has_no_point() -> None:
    first = panels(capacity_chart([*POINTS, at(8, None, 0.05)], "title", "log", 2.0))["Time to first token, p99"]
    assert {row["rate"] for row in rows(first) if "kept" in row} == {1, 2, 4}


def test_without_slos_both_latencies_are_drawn_without_bounds(tmp_path: Path) -> None:
    chart = capacity_chart(
        [(rate, point.model_copy(update={"slo": ()})) for rate, point in POINTS], "title", "log", 0.0
    )
    drawn = panels(chart)
    assert list(drawn) == ["Time to first token, p99", "Time per output token, p99"]
    assert not any("label" in row for panel in drawn.values() for row in rows(panel))
    file = tmp_path / "chart.png"
    save_chart(chart, file)
    assert file.stat().st_size > 1000
