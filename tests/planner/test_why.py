"""Why a plan's pick won: figures that make up the bills, the nearest of each kind, and the sentence."""

import math
from functools import cache

import pytest
from tests.planner.small_catalogue import OFFERS, SLOS, asked, offer
from tests.there import there

from tokonomics.planner.plan import Study, study
from tokonomics.planner.vary import resize
from tokonomics.planner.why import LayoutKind, WhyPick, factors, in_words, kind_of_layout, why_pick
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import load_of_shape
from tokonomics.units import HOURS_PER_MONTH

LOAD = load_of_shape(40, "const:1000", "const:300")
MIXED = (*OFFERS[2:3], *OFFERS[4:])


@cache
def made(simulate: bool) -> Study:
    return study(asked(load=LOAD, offers=MIXED, slos=SLOS, simulate=simulate))


def why(simulate: bool) -> WhyPick:
    return there(why_pick(made(simulate)))


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
    rival = there(plan.runner_up())
    assert found.pick.usd_per_month == pytest.approx(there(plan.best).usd_per_month)
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
    best = there(whole.plan.best)
    assert why(True).pick.gpu_s.total == pytest.approx(best.gpus_per_replica / best.capacity_requests_per_s)


def test_bills_differ_by_the_three_factors_and_the_nearest_is_named_with_them() -> None:
    found = why(True)
    for rival in found.others:
        assert math.prod(factors(found.pick, rival).values()) == pytest.approx(1 + rival.costs_more)
    nearest = found.others[0]
    assert nearest.layout in found.text
    assert f"{nearest.batch:,}" in found.text


def test_at_the_same_bill_the_next_that_costs_more_is_named_too() -> None:
    found = why(True)
    pick, rival = found.pick, found.others[-1]
    same = pick.model_copy(update={"layout": "PP=9"})
    assert in_words(pick, [same, rival]) == f"{in_words(pick, [same])} {in_words(pick, [rival])}"


def test_a_lone_way_has_nothing_beside_it() -> None:
    alone = study(asked(load=load_of_shape(1, "const:200", "const:50"), offers=(offer("L4", 1, 0.7),)))
    found = there(why_pick(alone))
    assert found.others == ()
