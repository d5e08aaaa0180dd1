"""How the lever grid is scored, on series made by hand; and the page of levers shows what is recorded."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import bench_levers, lever_scores
from benchmarks.lever_grid import SERVERS, cells, loads

ROOT = Path(__file__).parents[2]
RECORD = json.loads(gzip.decompress(bench_levers.RECORD.read_bytes()))
DATA = bench_levers.read()
PAGE = (ROOT / "docs" / "levers-measured.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("predicted", "measured", "right"),
    [
        (0.30, 0.05, True),  # both save
        (-0.30, -0.05, True),
        (0.019, -0.019, True),  # both none
        (0.03, 0.011, True),  # one is none, and 1.9 points apart
        (0.03, 0.009, False),  # one is none, and 2.1 points apart
        (-0.025, -0.006, True),
        (0.02, -0.02, False),  # opposite
        (0.10, 0.0, False),
    ],
)
def test_the_sign_of_a_saving_is_right_if_both_agree_within_two_points_of_none(
    predicted: float, measured: float, right: bool
) -> None:
    assert lever_scores.is_sign_right(predicted, measured) is right
    assert lever_scores.is_sign_right(measured, predicted) is right


@pytest.mark.parametrize(
    ("measured", "predicted", "what", "turns", "places", "texts"),
    [
        ([0.2, 0.1, 0.01, -0.1], [0.3, 0.2, 0.1, 0.0], "pays", "stops", (2, 3), ("up to 4", "up to 16")),
        ([0.0, 0.01, 0.05, 0.1], [0.03, 0.1, 0.1, 0.1], "pays", "starts", (2, 0), ("from 16", "everywhere")),
        ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.02], "pays", "stops", (4, 4), ("everywhere", "everywhere")),
        ([0.1, 0.1, 0.1, 0.1], [0.1, 0.1, 0.0, 0.0], "pays", "stops", (4, 2), ("everywhere", "up to 4")),
        ([0.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1], "pays", "stops", (0, 4), ("nowhere", "everywhere")),
        ([0.0, -0.1, -0.2, -0.3], [0.0, 0.01, -0.1, -0.2], "costs", "starts", (1, 2), ("from 4", "from 16")),
        ([0.0, 0.01, -0.01, 0.0], [0.0, 0.0, 0.0, 0.0], "costs", "stops", (0, 0), ("nowhere", "nowhere")),
        ([-0.03, -0.01, -0.3, -0.5], [0.0, 0.0, 0.0, -0.4], "costs", "starts", (2, 3), ("from 16", "from 64")),
    ],
)
def test_a_boundary_is_where_a_series_starts_or_stops_to_pay(
    measured: list[float],
    predicted: list[float],
    what: str,
    turns: str,
    places: tuple[int, int],
    texts: tuple[str, str],
) -> None:
    found = lever_scores.boundary(measured, predicted)
    assert (found["what"], found["turns"]) == (what, turns)
    assert (found["measured"], *found["predicted"]) == places
    assert found["steps"] == [abs(places[0] - places[1])]
    assert tuple(lever_scores.place_text(found, place, [1, 4, 16, 64]) for place in places) == texts
    assert found["again"] is (measured[0] == -0.03)


def _row(share: float, before: float, users: int, **more: Any) -> dict[str, Any]:
    right = {side: lever_scores.is_sign_right(before, share) for side in lever_scores.SIDES}
    at = {"batch": users, "flag": "a"}
    return {"lever": "l", "figure": "f", "at": at, "measured": share, "before": before, "today": before,
            "right": right, "apart": None, "least": lever_scores.NOTHING} | more  # fmt: skip


def test_a_tail_that_differs_by_what_chance_makes_is_none() -> None:
    least = lever_scores.CHANCE["TTFT"]
    assert lever_scores.sign(0.087, least) == 0 != lever_scores.sign(0.087)
    assert lever_scores.is_sign_right(0.0, 0.087, least)
    assert not lever_scores.is_sign_right(0.0, 0.087)
    assert lever_scores.sums_of([_row(0.087, 0.0, 4, least=least)])["saving"] == 0


def test_sums_and_series_leave_out_what_is_set_apart() -> None:
    rows = [_row(0.1, 0.14, 4), _row(0.0, -0.1, 16), _row(0.2, 0.21, 1), _row(0.5, -0.5, 64, apart="a reason")]
    sums = lever_scores.sums_of(rows)
    assert (sums["cells"], sums["saving"]) == (3, 2)
    assert sums["before"] == {
        "right": 2, "off": pytest.approx(0.04), "off_where_saving": pytest.approx(0.025), "worst": pytest.approx(0.1),
    }  # fmt: skip
    [(axis, fixed, series)] = lever_scores.series_of(rows)
    assert (axis, fixed) == ("batch", {"flag": "a"})
    assert [row["at"]["batch"] for row in series] == [1, 4, 16]
    [found] = lever_scores.boundaries(rows)
    assert found["text"] == {"measured": "up to 4", "before": "up to 4", "today": "up to 4"}


def test_a_drafts_speed_up_is_compared_and_not_its_saving() -> None:
    row = _row(0.5, 0.6, 1, load="drafted")
    loads = {"drafted": {"tokens a round": 2.0}}
    [found] = lever_scores.draft_errors([row], loads, {"before": {"drafted": {"tokens a round": 2.2}}})
    assert found["speedup"] == pytest.approx(2.0)
    assert found["before"] == {"tokens": pytest.approx(0.1), "speedup": pytest.approx(0.25)}  # 2.5 ÷ 2 − 1


def test_shares_found_are_compared_only_where_both_count_the_same_requests() -> None:
    rows = [_row(0.1, 0.1, 1, lever="prefix cache", load="warm", without="cold")]
    counted = {"warm": {"found": 0.5, "with warm-up": True}, "cold": {"found": 0.25, "with warm-up": False}}
    said = {"before": {"warm": {"found": 0.9}, "cold": {"found": 0.2}}}
    assert lever_scores.hit_shares(rows, counted, said) == [
        {"load": "cold", "warm": False, "measured": 0.25, "before": 0.2}
    ]
    said["before"]["warm"]["found, with warm-up"] = 0.6
    assert [row["load"] for row in lever_scores.hit_shares(rows, counted, said)] == ["warm", "cold"]


def test_the_record_has_every_cell_that_was_served_as_it_was_measured_and_predicted_before() -> None:
    served = [cell for cell in cells() if cell["without"] and cell["load"] not in RECORD["not_served"]]
    assert len(RECORD["cells"]) == len(served)
    for row, cell in zip(RECORD["cells"], served, strict=True):
        assert {name: row[name] for name in cell} == cell
        for name, figures in (("measured", DATA["measured"]), ("before", DATA["predicted"])):
            there, without = (figures[cell[load]][cell["figure"]] for load in ("load", "without"))
            assert row[name] == pytest.approx((without - there) / without, rel=1e-4, abs=1e-6)
    apart = {row["load"] for row in RECORD["cells"] if row["apart"]}
    assert apart == {
        "fp8 weights: bits 256 × 128",
        "fp8 kv: bits 256 × 128",
        "n-grams: 16 × 256",
        "lora 16: 96 users, none",
    }
    assert RECORD["not_served"] == ["small: gaps filled by 12"]


@pytest.mark.parametrize("name", ["fp8 weights: bits 8 × 256", "eagle3: 16 at 0.5", "dram: agents 4"])
def test_today_is_what_the_simulator_says_now(name: str) -> None:
    by_name = {load["name"]: load for load in loads()}
    row = next(row for row in RECORD["cells"] if row["load"] == name)
    predicted = {each: bench_levers.predict(by_name[each], by_name) for each in (name, row["without"])}
    assert row["today"] == pytest.approx(lever_scores.saving(row, predicted), rel=1e-4)


def test_the_page_shows_every_recorded_cell_and_the_sums() -> None:
    shown = re.findall(r"\| ([+-][0-9.]+) % \| ([+-][0-9.]+) %( ✗)? \| ([+-][0-9.]+) %( ✗)? \|", PAGE)
    sides = ("measured", "before", "today")
    recorded = sorted(tuple(f"{row[side] * 100:+z.1f}" for side in sides) for row in RECORD["cells"])
    assert sorted((measured, before, today) for measured, before, _, today, _ in shown) == recorded
    assert sum(bool(cell[2]) for cell in shown) == sum(not row["right"]["before"] for row in RECORD["cells"])
    total = RECORD["sums"]["all"]
    assert f"| **{total['cells']}** | **{total['saving']}** | **{total['before']['right']}** |" in PAGE


def test_the_shares_that_the_page_names_for_a_disk_are_recorded() -> None:
    found = {row["load"]: row["measured"] for row in RECORD["hits"]}
    with_disk, without = (found[f"{server}: 80 beginnings, 2 users"] for server in ("disk", "small"))
    assert (
        f"2 users found {with_disk * 100:.0f} % of their prompts with it and\n{without * 100:.0f} % without it" in PAGE
    )


def test_dollars_are_the_time_of_a_token_at_the_price_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", (ROOT / "docs" / "as-of.txt").read_text(encoding="utf-8").strip())
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import document_levers

    price = document_levers.h200().usd_per_hour
    assert price is not None
    assert document_levers.dollars(0.0036) == pytest.approx(price * 1e6 * 0.0036 / 3600)
    assert f"${price:.2f} an hour" in PAGE
    row = next(row for row in RECORD["cells"] if row["load"] == "eagle3: 1 at 0.9")
    ends = [f"${price / 3600 * row['took'][side] * 1e6:.2f}" for side in ("without", "with")]
    assert " → ".join(ends) in PAGE
    sys.modules.pop("document_levers")


def test_every_lever_of_the_record_has_its_part_of_the_page_and_every_server_its_flags() -> None:
    for lever in {row["lever"] for row in RECORD["cells"]} - {"batch in the gaps"}:
        assert f"{lever.replace('kv', 'KV')}: measured and predicted savings](img/levers-".lower() in PAGE.lower()
    for picture in re.findall(r"\(img/(levers-[a-z-]+\.svg)\)", PAGE):
        assert (ROOT / "docs" / "img" / picture).stat().st_size <= 40_000
    for group in SERVERS.values():
        for server in group:
            line = next(line for line in PAGE.splitlines() if line.startswith(f"| {server['name']} | `"))
            assert all(flag in line for flag in server["flags"])
