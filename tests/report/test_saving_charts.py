"""Charts of savings say the saving, in the digits of the table; a waterfall stands on zero, a tornado on its base.

The figures are those of the examples that the page ships: nothing is simulated here.
"""

import gzip
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.deployed import on
from tests.planner.small_catalogue import OFFERS, SLOS, TODAY
from tests.report.test_frontier_chart import layers

from tokonomics.levers.ranking import Ranking
from tokonomics.levers.stack import Waterfall
from tokonomics.money.breakeven import FleetKind, ReplicaHolds, SelfHosted, break_even, swings
from tokonomics.money.purchases import FleetComparison
from tokonomics.money.trace_bills import ApiCost
from tokonomics.planner.hosting import BreakEvenReport
from tokonomics.questions.fleet import FleetResult
from tokonomics.questions.levers import LeversResult
from tokonomics.questions.requests.buy import FleetRequest
from tokonomics.questions.requests.traffic import LeversRequest
from tokonomics.report import fleet_view, levers_view
from tokonomics.report.blocks import Facts, Section, Table
from tokonomics.report.charts.bills import breakeven_chart, swings_chart
from tokonomics.report.charts.levers import _lines, levers_chart, stack_chart
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.setup import Setup

EXAMPLES = Path(__file__).parents[2] / "src" / "tokonomics" / "web" / "page" / "examples"


def result(verb: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(gzip.decompress((EXAMPLES / f"{verb}.json.gz").read_bytes()))["result"]
    return made


@cache
def setup() -> Setup:
    deployment = on(gpu="H100-SXM")
    return Setup(deployment, load_of_shape(5, "const:1000", "const:300"), OFFERS, TODAY, SLOS)


@cache
def levers() -> LeversResult:
    made = result("levers")
    ranking = Ranking.model_validate({name: made[name] for name in Ranking.model_fields if name in made})
    asked = {"workload": setup().load.workload, "slos": SLOS, "setup": setup()}
    return LeversResult(**dict(ranking), utilization=None, **asked)


def described() -> list[Section]:
    return levers_view.levers(levers(), LeversRequest(model="llama-3.1-8b", gpu="H100-SXM")).sections()


def test_a_bar_says_what_its_lever_saves_as_the_table_does() -> None:
    bars = {row["lever"]: row for row in layers(levers_chart(levers(), setup()).to_dict())[0]}
    table = next(block for part in described() for block in part.blocks if isinstance(block, Table) and block.best)
    said = {row[0][0].text.partition(":")[0]: row[1][0].text for row in table.rows}
    now = levers().now.usd_per_month
    signs = set()
    for lever in levers().levers:
        if lever.bill is None or lever.name not in bars:
            continue
        saved = now - lever.bill.usd_per_month
        share, dollars = bars[lever.name]["label"].split("\n")
        assert bars[lever.name]["share"] == pytest.approx(saved / now)
        assert share == (f"saves {said[lever.name]}" if saved > 0 else f"{said[lever.name]} more")
        assert float(dollars.removesuffix(" a month").strip("$").replace(",", "")) == pytest.approx(
            abs(saved), rel=1e-3
        )
        signs.add(saved > 0)
    assert signs == {True, False}, "some save, some cost"


def test_levers_that_do_not_apply_are_folded_under_their_number_and_still_printed() -> None:
    without = [lever for lever in levers().levers if lever.bill is None and lever.api is None]
    folded = next(part for part in described() if part.folded)
    assert folded.title == f"{len(without)} levers do not apply"
    (table,) = folded.blocks
    assert isinstance(table, Table)
    reasons = {row[0][0].text: row[1][0].text for row in table.rows}
    assert reasons == {lever.name: lever.reason.marked for lever in without if lever.reason}
    text = levers_view.levers(levers(), LeversRequest(model="llama-3.1-8b", gpu="H100-SXM")).text()
    assert folded.title in text
    assert "the traffic has no sessions" in text


def test_the_waterfall_stands_on_zero_dollars_and_each_step_begins_where_the_last_ended() -> None:
    made = result("stack")
    fall = Waterfall.model_validate({name: made[name] for name in Waterfall.model_fields})
    chart = stack_chart(fall, setup()).to_dict()
    panel = chart["hconcat"][0]
    scale = panel["layer"][0]["encoding"]["x"]["scale"]
    assert scale.get("type", "linear") == "linear"
    assert scale["domain"][0] == 0
    first, *steps, last = layers(chart, panel)[0]
    assert (first["low"], first["high"]) == (0, fall.naive.usd_per_month)
    assert (last["low"], last["high"]) == (0, fall.end.usd_per_month)
    bills = [fall.naive.usd_per_month, *(step.bill.usd_per_month for step in fall.steps)]
    assert [{row["low"], row["high"]} for row in steps] == [{*pair} for pair in pairwise(bills)]


def fleet(*ways: tuple[str, float]) -> FleetResult:
    made = FleetResult.model_validate(result("fleet"))
    bill = made.plan.usd_per_month
    rows = tuple(
        FleetComparison(name=name, usd_per_month=usd, saved_share=1 - bill / usd, note="") for name, usd in ways
    )
    return made.model_copy(update={"plan": made.plan.model_copy(update={"comparisons": rows})})


@pytest.mark.parametrize(
    ("times", "against"),
    [({"all on demand": 1, "peak": 4 / 3}, "peak"), ({"spot": 0.9, "reserved": 1.25, "peak": 2}, "reserved")],
)
def test_a_fleets_figure_and_chart_say_the_same_saving(times: dict[str, float], against: str) -> None:
    bill = FleetResult.model_validate(result("fleet")).plan.usd_per_month
    made = fleet(*((name, bill * more) for name, more in times.items()))
    answer = fleet_view.fleet(made, FleetRequest(model="llama-3.1-8b"))
    facts = [
        row for part in answer.sections() for block in part.blocks if isinstance(block, Facts) for row in block.rows
    ]
    saves = next(fact for fact in facts if fact.name == "saves")
    share = f"{round((1 - 1 / times[against]) * 100)} %"
    assert (saves.value[0].text, saves.note) == (share, f"against {against}")
    title = answer.chart().to_dict()["title"]["text"]
    assert title.endswith(f"a month, {share} below {against}")


def test_a_fleet_that_beats_no_simpler_way_claims_no_saving() -> None:
    bill = FleetResult.model_validate(result("fleet")).plan.usd_per_month
    answer = fleet_view.fleet(fleet(("all on demand", bill)), FleetRequest(model="llama-3.1-8b"))
    assert answer.chart().to_dict()["title"]["text"].endswith("a month")


def test_break_evens_close_to_each_other_are_dots_of_which_few_have_a_label() -> None:
    kind = FleetKind(
        name="one", gpus_per_purchase=1, replicas_per_purchase=1, usd_per_purchase=1000.0,
        holds=(ReplicaHolds(replicas=1, tokens_per_month=20e9),), spare=0,
    )  # fmt: skip
    hosted = SelfHosted(kinds=(kind,), extras=())
    prices = {"a": 0.2, "b": 0.201, "c": 0.202, "d": 0.203, "e": 0.06}
    bills: list[dict[str, Any]] = [{"name": name, "usd_per_mtok": usd} for name, usd in prices.items()]
    parts: dict[str, Any] = {
        "model": "a model", "input_tokens": 10.0, "output_tokens": 10.0, "hosted": hosted, "own_tokens_per_month": None,
        "apis": tuple(ApiCost.model_construct(**bill) for bill in bills),
        "found": tuple(break_even(hosted, name, usd) for name, usd in prices.items()),
    }  # fmt: skip
    drawn = layers(breakeven_chart(BreakEvenReport.model_construct(**parts)).to_dict())
    dots = next(rows for rows in drawn if "label" in rows[0])
    assert sorted(row["side"] for row in dots) == sorted(prices)
    labelled = [row for row in dots if row["label"]]
    # Four within 2 % have room for one below and one above; the fifth, where five machines' $5,000 buy as much, is far.
    assert len(labelled) == 3
    assert labelled[-1]["label"] == "83.3 B"


def test_a_tornado_has_both_ends_of_each_assumption_about_the_base_the_widest_on_top() -> None:
    kind = FleetKind(
        name="one", gpus_per_purchase=1, replicas_per_purchase=1, usd_per_purchase=1000.0,
        holds=(ReplicaHolds(replicas=1, tokens_per_month=20e9),), spare=0,
    )  # fmt: skip
    hosted = SelfHosted(kinds=(kind,), extras=())
    found = break_even(hosted, "api", 0.2)
    assert found.stays_tokens_per_month == pytest.approx(5e9)
    parts: dict[str, Any] = {"model": "a model", "hosted": hosted, "found": (found,)}
    parts["swings"] = (tuple(swings(hosted, "api", 0.2, (0.8, 1.5))),)
    made = BreakEvenReport.model_construct(**parts)
    chart = swings_chart(made).to_dict()
    rows, base, *_ = layers(chart)
    assert base[0]["tokens"] == pytest.approx(5e9)
    by_name: dict[str, list[float]] = {}
    for row in rows:
        by_name.setdefault(row["what"], []).append(row["tokens"])
    # Machines at 0.8 and 1.25 times the price: the bill of one over the API's price, and the other way round for it.
    assert by_name["price of the machines ×0.8 to ×1.25"] == pytest.approx([4e9, 6.25e9])
    assert by_name["price of the API ×0.8 to ×1.25"] == pytest.approx([6.25e9, 4e9])
    spans = [max(5e9, *ends) / min(5e9, *ends) for ends in by_name.values()]
    assert spans == sorted(spans, reverse=True)
    assert set(by_name) >= {"speed ×0.8 to ×1.5", "how full machines are ×0.7"}


def test_a_subtitle_in_two_lines_goes_on_after_a_space() -> None:
    # The page joins lines that go on by that space, and sets others apart by a dot.
    text = " ".join(["word"] * 60)
    first, *others = _lines(text)
    assert others
    assert first.endswith(" ")
    assert "".join([first, *others]) == text
    assert _lines("short") == ["short"]
    assert _lines("") == []
