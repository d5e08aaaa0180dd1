"""A plan's screen: short first, machines by the names people know, and no figure that could mislead."""

from functools import cache
from math import log2
from pathlib import Path

import pytest
from tests.command import Call
from tests.planner.small_catalogue import OFFERS, SLOS, asked
from tests.there import there

import tokonomics
from tokonomics.catalog.gpus import all_gpus, gpu_text
from tokonomics.catalog.load_models import all_models
from tokonomics.planner.firmness import AtSpeed, CostRange, bill_range, safe_fleet, slo_rooms
from tokonomics.planner.plan import study
from tokonomics.planner.plan_answer import Candidate, Catch, Plan, SetAside
from tokonomics.report import blocks
from tokonomics.report.plan_pick_view import pick_blocks, safe_lines, set_aside_lines
from tokonomics.report.plan_table_view import ranking
from tokonomics.report.plan_view import _interval
from tokonomics.report.wording import machine_text
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import parse_slos
from tokonomics.units import seconds, seconds_apart, usd

GOLDEN_OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"


@cache
def planned() -> Plan:
    return study(asked(load=load_of_shape(40, "const:1000", "const:300"), offers=OFFERS, slos=SLOS)).plan


def row(**changes: object) -> Candidate:
    best = planned().best
    assert best is not None
    return best.model_copy(update=changes)


def test_a_plan_is_one_screen_and_explain_says_more(tokonomics: Call) -> None:
    words = "plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms --quick --top 5"
    short, long = (
        tokonomics(*words.split(), f"--offers={GOLDEN_OFFERS}", *more, env={"COLUMNS": "100"}).stdout.splitlines()
        for more in ((), ("--explain",))
    )
    assert len(short) <= 35
    assert max(map(len, short)) <= 100
    assert {line.rstrip() for line in short[:-1]} <= {line.rstrip() for line in long}  # but for the hint at explain
    assert not any(line.startswith("energy") for line in short)
    assert any(line.startswith("energy") for line in long)
    assert max(map(len, long)) <= 100
    assert not [line for line in long if "…" in line]  # no cell of a table is cut
    whole = "\n".join(long).partition("The pick beside the nearest other ways\n")[2]
    ways, parts = (line.split() for line in whole.splitlines() if line.startswith("layout "))
    assert ways[1:] == ["$/month", "$/GPU-h", "in", "use", "batch", "limited", "by", "way"]
    assert parts[1:] == ["in", "all", "prompts", "weights", "KV", "compute", "comm.", "overhead"]


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (("aws", "p5.48xlarge", "H100-SXM", 8, "us-east-1"), "AWS p5.48xlarge, 8× H100, us-east-1"),
        (("yotta", "1x_14c_115g_RTX5090", "RTX5090", 1, "us-east-3"), "Yotta, RTX 5090, us-east-3"),
        (("gcp", "a2-ultragpu-1g", "A100-80GB", 1), "Google Cloud a2-ultragpu-1g, A100 80GB"),
        (("runpod", "2x_RTXPRO6000_SECURE", "RTXPRO6000", 2), "RunPod, 2× RTX PRO 6000"),
        (("mine", "rack-3", "L4", 4, "unspecified"), "mine rack-3, 4× L4"),
    ],
)
def test_a_machine_has_the_names_that_people_know(machine: tuple[str, str, str, int], said: str) -> None:
    assert machine_text(*machine) == said


def test_every_gpu_of_the_catalogue_keeps_a_name_of_its_own() -> None:
    keys = [gpu.key for gpu in all_gpus()]
    assert len({gpu_text(key) for key in keys}) == len(keys)


@pytest.mark.parametrize(
    ("value", "limit", "said"),
    [(0.2004, 0.2, "200.4 ms"), (0.20001, 0.2, "200.01 ms"), (0.25, 0.2, "250 ms"), (2.0004, 2.0, "2.0004 s")],
)
def test_a_latency_is_told_from_the_slo_it_misses(value: float, limit: float, said: str) -> None:
    assert seconds_apart(value, limit) == said != seconds(limit)


def test_the_mark_of_an_old_price_stands_at_the_price_which_is_never_cut() -> None:
    table = ranking([row(price_stale=True), row(price_stale=False)], None)
    place = next(place for place, column in enumerate(table.columns) if column.name == "$/month")
    assert table.columns[place].whole
    old, fresh = (cells[place][0].text for cells in table.rows)
    assert old == f"†{fresh}"
    assert "†" not in "".join(cell[0].text for cell in table.rows[0][:place])


def test_what_is_saved_with_a_catch_comes_first() -> None:
    cheaper = row(usd_per_month=row().usd_per_month * 0.7, tiers="dram=380@0")
    aside = SetAside(catch=Catch.offload, candidate=cheaper)
    (line,) = set_aside_lines(planned().model_copy(update={"set_aside": (aside,)}))
    assert line.spans[0].text.startswith("30 % less")


@pytest.mark.parametrize(
    ("replicas", "dollars", "value", "reason"),
    [
        ((1, 1, None), (500, 500, None), "from $500.00", "no number of replicas"),
        ((1, 1, 3), (500, 500, 1500), "$500.00 to $1,500", "3 replicas instead of 1"),
        ((1, 2, 2), (500, 1000, 1000), "$500.00 to $1,000", "1 replica instead of 2"),
    ],
)
def test_an_interval_says_why_the_bill_moves(
    replicas: tuple[int | None, ...], dollars: tuple[float | None, ...], value: str, reason: str
) -> None:
    fast, mid, slow = (
        AtSpeed(speed=speed, replicas=number, usd_per_month=bill, refused=None if bill else "TTFT")
        for speed, number, bill in zip((1.2, 1.0, 0.75), replicas, dollars, strict=True)
    )
    said = there(_interval(CostRange(fast=fast, mid=mid, slow=slow)))
    assert said.value[0].text == value
    assert reason in said.note


def test_an_interval_that_moves_nothing_is_left_to_the_line_on_what_is_safe() -> None:
    same = [AtSpeed(speed=speed, replicas=1, usd_per_month=500) for speed in (1.2, 1.0, 0.75)]
    assert _interval(CostRange(fast=same[0], mid=same[1], slow=same[2])) is None


def test_a_pick_that_fails_inside_its_interval_says_so_before_its_latencies() -> None:
    """An A100's speed is assumed: at the slow end even a lone request of the 8B takes more than 17 ms a token."""
    found = study(asked(simulate=True, slos=parse_slos("tpot_p99=0.017")))
    best = there(found.plan.best)
    bills = bill_range(found, best)
    assert bills.slow.usd_per_month is None
    safe = there(safe_fleet(found, bills))
    lines = list(safe_lines(best, bills.slow, safe))
    rooms = slo_rooms(found, bills)
    made = pick_blocks(best, "Cheapest", found.plan, safe=lines, rooms=rooms, advice="buy more")
    kinds = [block.kind if isinstance(block, blocks.Line) else "facts" for block in made]
    assert kinds[:2] == ["headline", "worst"]
    assert kinds.index("worst") < kinds.index("facts")
    assert usd(safe.candidate.usd_per_month) in "".join(span.text for span in lines[1].spans)
    (facts,) = (block for block in made if isinstance(block, blocks.Facts))
    assert "buy more" in next(fact.note for fact in facts.rows if fact.name == "TPOT p99")


def test_an_encoder_shows_no_kv_no_stages_and_no_decode() -> None:
    plan = tokonomics.plan("bge-m3", rate=200, input=400, slo="ttft_p99=0.2", quick=True, gpu=["L4", "A10G"])
    shown = str(plan)
    for absent in (" KV ", "PP=", "TPOT", "end to end", "in and out"):
        assert absent not in shown
    assert plan.best is not None
    assert f"read {200 / plan.best.load_share:.3g}/s" in shown
    assert all(candidate.pp == 1 for candidate in plan.ranked)


def test_the_first_models_are_recent_and_no_two_of_a_maker_are_alike() -> None:
    found = tokonomics.can_run(gpu="RTX3090", gpus=2)
    known = {model.key: model for model in all_models()}
    first = [known[row.model] for row in found.shortlist]
    assert len({model.key for model in first}) == 15
    assert min(str(model.released) for model in first) >= "2024"
    assert not any(model.is_encoder for model in first)
    assert len({(model.family, round(log2(model.parameters)), model.is_moe) for model in first}) == 15
    assert {"gpt-oss-20b", "llama-3.3-70b"} <= {model.key for model in first}
