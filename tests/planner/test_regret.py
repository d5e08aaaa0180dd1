"""Least regret: the same as trying every choice in every case by hand, and never beaten by a pick of one case."""

import math
from functools import cache

import pytest
from tests.planner.small_catalogue import BF16, OFFERS, SLOS, asked
from tests.there import there

from tokonomics.planner.firmness import Regret, least_regret
from tokonomics.planner.plan import Study, study
from tokonomics.planner.prospects import prospects
from tokonomics.planner.search import Placed
from tokonomics.planner.vary import resize
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import parse_slos

RATES = (3.0, 9.0, 30.0)


@cache
def made(simulate: bool = True) -> tuple[tuple[Study, ...], Regret]:
    studies = tuple(
        study(asked(load=load_of_shape(rate, "const:1000", "const:300"), simulate=simulate, slos=SLOS, weights=BF16))
        for rate in RATES
    )
    found = there(least_regret(studies))
    return studies, found


def largest_regrets_by_hand(studies: tuple[Study, ...]) -> list[float]:
    """Of every deployment on every offer that serves all cases, smallest first."""
    best = [each.plan.best.usd_per_month for each in studies if each.plan.best]
    found = []
    for hosts in prospects(studies[0].question, studies[0].question.load):
        sized = [resize(each.question, hosts) for each in studies]
        counts = [each.replicas for each in sized if isinstance(each, Placed)]
        if len(counts) < len(studies):
            continue
        for offer in OFFERS:
            if offer.gpu == hosts.deployment.gpu.key and offer.gpus >= hosts.deployment.gpus:
                per_machine = offer.gpus // hosts.deployment.gpus
                bills = [math.ceil(count / per_machine) * (offer.usd_per_hour or 0) * 730 for count in counts]
                found.append(max(bill / least - 1 for bill, least in zip(bills, best, strict=True)))
    return sorted(found)


@pytest.mark.parametrize("simulate", [False, pytest.param(True, marks=pytest.mark.explore)])
def test_the_least_regret_is_that_of_trying_every_choice(simulate: bool) -> None:
    studies, found = made(simulate)
    assert there(found.least).largest_regret == pytest.approx(max(0.0, largest_regrets_by_hand(studies)[0]), abs=1e-9)


def test_regrets_are_bills_over_the_best_of_each_case() -> None:
    studies, found = made()
    for choice in found.choices:
        assert choice.largest_regret == max(case.regret for case in choice.cases)
        for case, best, each in zip(choice.cases, found.best_usd_per_month, studies, strict=True):
            assert best == there(each.plan.best).usd_per_month
            assert case.usd_per_month / best - 1 == pytest.approx(case.regret, abs=1e-9)


def test_replicas_follow_the_demand() -> None:
    for choice in made()[1].choices:
        counts = [case.replicas for case in choice.cases]
        assert counts == sorted(counts)


def test_the_pick_of_a_case_has_no_regret_there_and_is_never_the_better_choice() -> None:
    studies, found = made()
    for place, each in enumerate(studies):
        best = there(each.plan.best)
        same = [choice for choice in found.choices if place in choice.best_in]
        assert any(choice.gpu == best.gpu for choice in same)
        assert all(choice.largest_regret >= there(found.least).largest_regret for choice in same)


def test_one_case_has_no_regret() -> None:
    found = there(least_regret(made()[0][:1]))
    assert there(found.least).largest_regret == pytest.approx(0, abs=1e-9)


def test_a_demand_that_nothing_serves_has_no_answer() -> None:
    none = study(asked(slos=parse_slos("tpot_p99=0.0001")))
    assert least_regret([*made()[0], none]) is None
