"""The fronts: nothing on them is beaten, nothing that is not beaten is missing, and no point contradicts the pick."""

import math
from functools import cache
from itertools import pairwise, product

import pytest
from tests.explore import some
from tests.planner.small_catalogue import CHAT, OFFERS, SLOS, asked, offer
from tests.there import there

from tokonomics.catalog.layers import Precision
from tokonomics.planner.frontier import Frontier, FrontierPoint, frontier_of
from tokonomics.planner.plan import Question, Study, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.prospects import prospects
from tokonomics.planner.search import CLOSED_FORM_UTILIZATION
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.slo import parse_slos

BOTH_KV = (Precision.bf16, Precision.fp8)


def around(question: Question) -> tuple[Study, Frontier]:
    found = study(question)
    made = there(frontier_of(found))
    return found, made


@cache
def made() -> Frontier:
    return around(asked(slos=SLOS, kv=BOTH_KV))[1]


def every_fleet() -> list[tuple[float, float, float]]:
    """Dollars a month, TPOT and TTFT of all that meet the SLOs without simulation, by hand up to ten times the pick."""
    found = []
    for hosts in prospects(asked(kv=BOTH_KV), CHAT):
        curve = ReplicaCurve(hosts.deployment, 1000, 300, spread=round(CHAT.context_spread, 2))
        if curve.tpot_s[0] > 0.05:
            continue
        capacity, in_time = curve.capacity(), curve.capacity(0.05)
        fewest, allowed = (
            math.ceil(5 / rate - 1e-9) for rate in (capacity.rate, in_time.rate * CLOSED_FORM_UTILIZATION)
        )
        steps = {math.ceil(fewest * 2 ** (half / 2) - 1e-9) for half in range(7)}
        for replicas in steps | {allowed}:
            bills = [
                math.ceil(replicas / (each.gpus // hosts.deployment.gpus)) * (each.usd_per_hour or 0) * 730
                for each in OFFERS
                if each.gpu == hosts.deployment.gpu.key and each.gpus >= hosts.deployment.gpus
            ]
            steady = curve.at_rate(5 / replicas, capacity)
            if replicas >= allowed and min(bills) <= 10 * 1460 and steady.tpot_s <= 0.05 and steady.ttft_s <= 0.5:
                found.append((min(bills), steady.tpot_s, steady.ttft_s))
    return found


@pytest.mark.parametrize("latency", ["tpot_s", "ttft_s"])
def test_the_front_is_what_none_of_all_fleets_beats(latency: str) -> None:
    place = 1 if latency == "tpot_s" else 2
    fleets = [(each[0], each[place]) for each in every_fleet()]
    unbeaten = {
        (round(usd, 6), seconds)
        for usd, seconds in fleets
        if not any(a <= usd and b <= seconds and (a, b) != (usd, seconds) for a, b in fleets)
    }
    front: tuple[FrontierPoint, ...] = made().tpot if place == 1 else made().ttft
    assert {(round(point.usd_per_month, 6), getattr(point, latency)) for point in front} == unbeaten


def test_latency_and_price_conflict_along_both_fronts() -> None:
    for quick, slow in pairwise(made().tpot):
        assert quick.tpot_s < slow.tpot_s
        assert quick.usd_per_mtok > slow.usd_per_mtok
    for quick, slow in pairwise(made().ttft):
        assert quick.ttft_s < slow.ttft_s
        assert quick.usd_per_mtok > slow.usd_per_mtok
    assert len(made().tpot) > 2


def test_every_gpu_has_points_the_cheapest_first() -> None:
    assert {point.gpu for point in made().points} == {each.gpu for each in OFFERS}
    bills = [point.usd_per_month for point in made().points]
    assert bills == sorted(bills)


def test_prices_per_token_are_the_whole_bill_over_all_tokens() -> None:
    tokens = 5 * 1300 * 3600 * 730
    for point in made().points:
        assert point.usd_per_mtok == pytest.approx(point.usd_per_month / tokens * 1e6)


TARGETS = ("", "ttft_p99=0.5,tpot_p99=0.05", "tpot_p99=0.02", "e2e_p90=4", "ttft_p99=0.15")


@pytest.mark.parametrize(("slos", "simulate", "rate"), some(product(TARGETS, (True, False), (5, 40)), keep=9))
def test_no_point_that_meets_the_slos_costs_less_than_the_pick(slos: str, simulate: bool, rate: float) -> None:
    found, front = around(asked(load=CHAT.at(rate), slos=parse_slos(slos) if slos else (), simulate=simulate))
    best = there(found.plan.best)
    met = [point.usd_per_month for point in front.points if point.meets_slo]
    assert min(met) == pytest.approx(best.usd_per_month)
    cheaper = [point for point in front.points if point.usd_per_month < best.usd_per_month * (1 - 1e-9)]
    assert all(point.why_not and not point.meets_slo for point in cheaper)
    assert all((point.why_not is None) == point.meets_slo for point in front.points)
    assert all(point.meets_slo for point in (*front.tpot, *front.ttft))


def test_a_point_on_fewer_replicas_than_were_sized_misses_the_slos() -> None:
    found, front = around(asked(load=CHAT.at(40), offers=OFFERS[1:2], slos=parse_slos("tpot_p99=0.02"), simulate=True))
    best = there(found.plan.best)
    alike = [point for point in front.points if (point.gpu, point.layout) == (best.gpu, f"TP={best.tp} {best.weights}")]
    assert {point.meets_slo for point in alike} == {False, True}
    for point in alike:
        assert point.simulated
        assert point.meets_slo == (point.replicas >= best.replicas)


def test_fleets_beyond_the_gpus_allowed_are_left_out() -> None:
    _, few = around(asked(limits=Limits(max_gpus=2)))
    assert max(point.replicas * point.gpus_per_replica for point in few.points) <= 2


def test_a_plan_without_a_pick_has_no_frontier() -> None:
    assert frontier_of(study(asked(slos=parse_slos("tpot_p99=0.0001")))) is None


def test_a_point_names_the_machine_that_its_bill_is_of() -> None:
    """Eight GPUs for the price of one and a half: cheaper from two replicas on, and more than the four allowed."""
    few = offer("H100-SXM", 1, 3.0, instance="one"), offer("H100-SXM", 8, 4.5, instance="eight")
    _, found = around(asked(offers=few, limits=Limits(max_gpus=4)))
    prices = {"one": 3.0, "eight": 4.5}
    assert {each.instance for each in found.tpot} == {"one"}
    for each in found.tpot:
        machines = each.usd_per_month / 730 / prices[each.instance]
        assert machines == pytest.approx(each.replicas * each.gpus_per_replica)
