"""The twin's report and chart: what a reader sees of forecasts, measurements and changes."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.command import Call, answer

from tokonomics.errors import BadInput
from tokonomics.operate.follow import NoticedChange
from tokonomics.operate.learn import ForecastBand, TwinWindow, WindowFigure
from tokonomics.questions.requests.run import TwinReportRequest
from tokonomics.questions.twin import twin_report
from tokonomics.report.charts.twin import bands_chart

MORNING = Path(__file__).parents[2] / "docs" / "examples" / "twin-morning.db"
BEGIN, WINDOW_S = 1_794_733_200.0, 600.0
"""2026-11-15, 09:00 UTC, as in the ledger."""


def window(number: int, measured: float | None = 1.0, *causes: str) -> TwinWindow:
    figure = WindowFigure(measured=measured, forecast=ForecastBand(low=0.5, mid=1.0, high=2.0))
    changes = tuple(NoticedChange(cause=cause, what=f"{cause} changed") for cause in causes)
    return TwinWindow(
        target="t", model="m", start=BEGIN + number * WINDOW_S, figures={"ttft_s": figure}, changes=changes,
        is_over=measured is not None,
    )  # fmt: skip


def drawn(*windows: TwinWindow) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Return the specification, and the rows of each list in it."""
    spec: dict[str, Any] = bands_chart(windows, {"ttft_s": "TTFT"}, ("ttft_s",)).to_dict()
    return spec, [*spec["datasets"].values()]


def rows_with(lists: list[list[dict[str, Any]]], name: str) -> list[dict[str, Any]]:
    return [row for rows in lists for row in rows if row.get(name) is not None]


def test_the_last_window_is_as_long_as_the_others() -> None:
    """Measured to the end of the second window, forecast to the end of the third; the axis goes to its end."""
    spec, lists = drawn(window(0), window(1), window(2, None))
    assert max(row["at"] for row in rows_with(lists, "measured")) == (BEGIN + 2 * WINDOW_S) * 1000
    assert max(row["at"] for row in rows_with(lists, "mid")) == (BEGIN + 3 * WINDOW_S) * 1000
    x = spec["vconcat"][0]["layer"][0]["encoding"]["x"]
    assert x["scale"]["domain"] == [BEGIN * 1000, (BEGIN + 3 * WINDOW_S) * 1000]


def test_a_time_without_windows_is_a_gap() -> None:
    _, lists = drawn(window(0), window(1), window(5))
    (rows,) = lists[:1]
    ends = [row["at"] for row in rows if row.keys() == {"at"}]
    assert ends == [(BEGIN + 2 * WINDOW_S) * 1000]


def test_each_change_has_its_time_and_cause_beside_it_and_labels_keep_apart() -> None:
    changes = ["traffic", "cache", "kernels", "flags", "restart", "launches", "requests"]
    windows = [window(number, 1.0, changes[number % 7]) for number in range(24)]
    _, lists = drawn(*windows)
    labels = [row for row in rows_with(lists, "label") if row["label"]]
    assert labels[0]["label"] == "09:00 traffic"
    for place in {row["row"] for row in labels}:
        beside = [row["at"] for row in labels if row["row"] == place]
        assert all(then - now >= 0.3 * 24 * WINDOW_S * 1000 for now, then in pairwise(beside))
    said = {row["cause"] for row in rows_with(lists, "what")}
    assert said == set(changes)


def test_two_changes_of_one_window_share_a_label() -> None:
    _, lists = drawn(window(0), window(1, 1.0, "restart", "flags"))
    (label,) = rows_with(lists, "label")
    assert label["label"] == "09:10 restart, flags"


@pytest.mark.parametrize(("minutes", "most"), [(10, 9), (60, 9), (60 * 24, 9), (60 * 24 * 8, 9)])
def test_times_below_a_panel_are_few_and_apart(minutes: int, most: int) -> None:
    spec, _ = drawn(window(0), window(1), window(minutes // 10))
    axis = spec["vconcat"][0]["layer"][0]["encoding"]["x"]["axis"]
    assert 1 <= len(axis["values"]) <= most + 1
    assert axis["labelOverlap"] == "greedy"
    assert axis["labelFlush"] is False


# --- refusals -------------------------------------------------------------------------------------------------------


def test_a_stretch_without_forecasts_says_of_when_the_newest_is(tokonomics: Call) -> None:
    asked = TwinReportRequest(ledger=str(MORNING), since="2026-11-16", until="2026-11-17")
    with pytest.raises(BadInput, match="the newest is of 2026-11-15 13:00 UTC") as caught:
        twin_report(asked)
    assert "2026-11-14T13:00" in str(caught.value.fix)
    found = answer(tokonomics, "twin", "report", "--ledger", MORNING, "--since=2026-11-14T13:00")
    assert found["servers"][0]["windows"] == 24


def test_a_server_that_no_twin_knows_has_no_newest() -> None:
    asked = TwinReportRequest(ledger=str(MORNING), since="2026-11-15", until="2026-11-16", server="gpu9")
    with pytest.raises(BadInput) as caught:
        twin_report(asked)
    assert "newest" not in str(caught.value)
    assert "tokonomics twin http" in str(caught.value.fix)


def test_a_missing_ledger_says_how_to_start_a_twin(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no ledger yet") as caught:
        twin_report(TwinReportRequest(ledger=str(tmp_path / "none.db")))
    assert str(caught.value.fix).startswith("Start a twin: tokonomics twin http")
