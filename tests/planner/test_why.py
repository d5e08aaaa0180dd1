"""Why a plan's pick won: figures that make up the bills, the nearest of each kind, and the sentence."""

from functools import cache

import pytest
from tests.planner.small_catalogue import OFFERS, SLOS, asked, offer

from tokonomics.planner.plan import Study, study
from tokonomics.planner.vary import resize
from tokonomics.planner.why import Contender, GpuSeconds, LayoutKind, WhyPick, in_words, kind_of_layout, why_pick
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.refusal import NotServed
from tokonomics.units import HOURS_PER_MONTH

LOAD = load_of_shape(40, "const:1000", "const:300")
MIXED = (*OFFERS[2:3], *OFFERS[4:])


@cache
def made(simulate: bool) -> Study:
    return study(asked(load=LOAD, offers=MIXED, slos=SLOS, simulate=simulate))


def why(simulate: bool) -> WhyPick:
    found = why_pick(made(simulate))
    assert found is not None
    return found


@pytest.mark.parametrize("simulate", [False, True])
def test_price_times_gpu_seconds_over_what_is_in_use_is_the_bill(simulate: bool) -> None:
    found = why(simulate)
    assert len(found.others) > 1
    for row in (found.pick, *found.others):
        busy_gpus = LOAD.workload.rate * row.gpu_s.total
        bill = busy_gpus / row.in_use * row.usd_per_gpu_hour * HOURS_PER_MONTH
        assert bill == pytest.approx(row.usd_per_month)
        assert row.costs_more == pytest.approx(row.usd_per_month / found.pick.usd_per_month - 1)


@pytest.mark.parametrize("simulate", [False, True])
def test_the_pick_and_the_other_gpu_have_the_bills_of_the_plan(simulate: bool) -> None:
    plan, found = made(simulate).plan, why(simulate)
    rival = plan.runner_up()
    assert plan.best is not None
    assert rival is not None
    assert found.pick.usd_per_month == pytest.approx(plan.best.usd_per_month)
    other = next(row for row in found.others if row.kind is LayoutKind.other_gpu)
    assert other.gpu == rival.gpu
    assert other.usd_per_month == pytest.approx(rival.usd_per_month)


def test_each_other_kind_is_there_once_and_the_nearest_first() -> None:
    found = why(True)
    kinds = [row.kind for row in found.others]
    assert len(set(kinds)) == len(kinds)
    assert found.pick.kind not in kinds
    assert LayoutKind.apart in kinds
    bills = [row.usd_per_month for row in found.others]
    assert bills == sorted(bills)


def test_what_was_not_sized_costs_no_less_when_it_is() -> None:
    whole = made(True)
    unsized = [row for row in why(True).others if row.at_least and row.kind is not LayoutKind.apart]
    for row in unsized:
        hosts = next(
            one
            for one in whole.hosts
            if one.deployment.gpu.key == row.gpu and kind_of_layout(one.deployment) is row.kind
            and one.deployment.gpus == row.gpus_per_replica
        )  # fmt: skip
        sized = resize(whole.question, hosts)
        assert isinstance(sized, NotServed) or sized.usd_per_hour * HOURS_PER_MONTH >= row.usd_per_month * (1 - 1e-9)


def test_gpu_seconds_are_those_of_a_full_replica() -> None:
    whole = made(True)
    assert whole.plan.best is not None
    best = whole.plan.best
    assert why(True).pick.gpu_s.total == pytest.approx(best.gpus_per_replica / best.capacity_requests_per_s)


def contender(**changes: object) -> Contender:
    parts = GpuSeconds(prompts=0.4, weights=0.5, kv=0.1, compute=0.0, communication=0.0, overhead=0.0)
    fields: dict[str, object] = {
        "kind": LayoutKind.groups, "gpu": "H200", "layout": "EP=8 DP=8", "gpus_per_replica": 8, "replicas": 2,
        "machines": 2, "usd_per_month": 1000.0, "at_least": False, "costs_more": 0.0, "batch": 100,
        "limited_by": "TPOT SLO", "gpu_s": parts, "usd_per_gpu_hour": 2.0, "in_use": 0.5,
    }  # fmt: skip
    return Contender.model_validate(fields | changes)


def test_the_part_that_takes_more_is_named_with_both_figures() -> None:
    slow = GpuSeconds(prompts=0.4, weights=0.5, kv=0.6, compute=0.0, communication=0.0, overhead=0.0)
    rival = contender(
        kind=LayoutKind.tensor, layout="TP=8", gpu_s=slow, usd_per_month=1500, costs_more=0.5, batch=40,
        limited_by="KV memory",
    )  # fmt: skip
    said = in_words(contender(), [rival])
    assert "TP=8 on the same GPU costs 50 % more" in said
    assert "1.5 GPU-seconds instead of 1 (0.6 instead of 0.1 reading KV)" in said
    assert "KV memory ends its batches at 40 sequences, the TPOT SLO ends the pick's at 100" in said


def test_batches_are_not_named_where_larger_ones_would_help_neither() -> None:
    full = {"limited_by": "replica's speed"}
    rival = contender(usd_per_gpu_hour=6.0, usd_per_month=3000, costs_more=2.0, batch=40, **full)
    assert "its batches" not in in_words(contender(**full), [rival])
    said = in_words(contender(), [rival])
    assert "its batches of 40 sequences use up the replica's speed, the TPOT SLO ends the pick's at 100" in said


def test_a_price_is_named_and_what_speaks_for_the_rival_too() -> None:
    rival = contender(
        kind=LayoutKind.other_gpu, gpu="B200", usd_per_gpu_hour=6.0, in_use=0.75, usd_per_month=2000, costs_more=1.0
    )
    said = in_words(contender(), [rival])
    assert said.startswith("B200 (EP=8 DP=8) costs 2 times as much: a GPU-hour costs $6.00 instead of $2.00")
    assert "although 75 % of the paid GPUs are in use instead of 50 %" in said


def test_at_the_same_bill_the_room_decides_and_the_next_that_costs_more_is_named_too() -> None:
    slow = GpuSeconds(prompts=0.8, weights=0.5, kv=0.1, compute=0.0, communication=0.0, overhead=0.0)
    same = contender(kind=LayoutKind.tensor, layout="TP=8", gpu_s=slow, in_use=0.7)
    more = contender(kind=LayoutKind.stages, layout="TP=4 PP=2", usd_per_month=1250, costs_more=0.25, at_least=True,
                     in_use=0.4, misses="tpot_p99 is 61 ms; the SLO is 50 ms")  # fmt: skip
    said = in_words(contender(), [same, more])
    assert said.startswith(
        "TP=8 on the same GPU costs the same with less room to grow: a request takes 1.4 GPU-seconds"
    )
    assert "TP=4 PP=2 on the same GPU costs at least 25 % more" in said
    assert "(on fewer replicas tpot_p99 is 61 ms; the SLO is 50 ms)" in said


def test_a_lone_way_has_nothing_beside_it() -> None:
    alone = study(asked(load=load_of_shape(1, "const:200", "const:50"), offers=(offer("L4", 1, 0.7),)))
    found = why_pick(alone)
    assert found is not None
    assert found.others == ()
    # Not that none serves it: one that was not sized may be left out, as what it costs at least is less.
    assert found.text.endswith("none that was sized is cheaper.")


def test_every_kind_says_what_it_is_by_itself() -> None:
    assert all("same" not in kind for kind in LayoutKind)
