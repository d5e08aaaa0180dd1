"""The fronts: nothing on them is beaten, nothing that is not beaten is missing, and quicker costs more."""

import math
from functools import cache
from itertools import pairwise

import pytest
from tests.planner.small_catalogue import CHAT, OFFERS, SLOS, asked, offer

from tokonomics.catalog.precision import Precision
from tokonomics.planner.frontier import Frontier, FrontierPoint, frontier
from tokonomics.planner.plan import plan
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.prospects import prospects
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.slo import parse_slos


@cache
def made() -> Frontier:
    return frontier(asked(slos=SLOS, kv=(Precision.bf16, Precision.fp8)))


def every_fleet() -> list[tuple[float, float, float]]:
    """Dollars a month, TPOT and TTFT of all of them, by hand."""
    found = []
    for hosts in prospects(asked(kv=(Precision.bf16, Precision.fp8)), CHAT):
        curve = ReplicaCurve(hosts.deployment, 1000, 300)
        capacity = curve.capacity()
        fewest = math.ceil(5 / capacity.rate)
        for replicas in {math.ceil(fewest * 2 ** (half / 2) - 1e-9) for half in range(7)}:
            bills = [
                math.ceil(replicas / (each.gpus // hosts.deployment.gpus)) * (each.usd_per_hour or 0) * 730
                for each in OFFERS
                if each.gpu == hosts.deployment.gpu.key and each.gpus >= hosts.deployment.gpus
            ]
            steady = curve.at_rate(5 / replicas, capacity)
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


def test_every_gpu_has_a_front_of_its_own_which_holds_its_part_of_the_whole() -> None:
    assert {point.gpu for point in made().by_gpu_tpot} == {each.gpu for each in OFFERS}
    assert set(made().tpot) <= set(made().by_gpu_tpot)
    assert set(made().ttft) <= set(made().by_gpu_ttft)


def test_prices_per_token_are_the_whole_bill_over_all_tokens() -> None:
    tokens = 5 * 1300 * 3600 * 730
    for point in made().by_gpu_tpot:
        assert point.usd_per_mtok == pytest.approx(point.usd_per_month / tokens * 1e6)


def test_a_point_meets_the_slos_when_its_means_do() -> None:
    for point in made().by_gpu_ttft:
        assert point.meets == (point.tpot_s <= 0.05 and point.ttft_s <= 0.5)


def test_slos_do_not_move_the_front() -> None:
    strict = frontier(asked(slos=parse_slos("tpot_p99=0.001"), kv=(Precision.bf16, Precision.fp8)))
    assert [point.model_copy(update={"meets": True}) for point in strict.tpot] == [
        point.model_copy(update={"meets": True}) for point in made().tpot
    ]


def test_the_front_begins_at_or_below_the_bill_of_the_pick() -> None:
    best = plan(asked(slos=SLOS)).best
    assert best is not None
    assert made().tpot[-1].usd_per_month <= best.usd_per_month * (1 + 1e-9)


def test_fleets_beyond_the_gpus_allowed_are_left_out() -> None:
    few = frontier(asked(limits=Limits(max_gpus=2)))
    assert max(point.replicas * point.gpus_per_replica for point in few.by_gpu_tpot) <= 2


def test_a_point_names_the_machine_that_its_bill_is_of() -> None:
    """Eight GPUs for the price of one and a half: cheaper from two replicas on, and more than the four allowed."""
    few = offer("H100-SXM", 1, 3.0, instance="one"), offer("H100-SXM", 8, 4.5, instance="eight")
    found = frontier(asked(offers=few, limits=Limits(max_gpus=4)))
    prices = {"one": 3.0, "eight": 4.5}
    assert {each.instance for each in found.tpot} == {"one"}
    for each in found.tpot:
        machines = each.usd_per_month / 730 / prices[each.instance]
        assert machines == pytest.approx(each.replicas * each.gpus_per_replica)
