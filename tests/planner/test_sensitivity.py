"""What moves the bill: each case against a plan of its own, more work never cheaper, the strongest first."""

import math
from functools import cache

import pytest
from tests.planner.small_catalogue import BF16, OFFERS, SLOS, asked
from tests.there import there

from tokonomics.planner.plan import Study, study
from tokonomics.planner.vary import Case, Sensitivity, sensitivity
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import parse_slos

BUSIER = load_of_shape(12, "const:1000", "const:300")


@cache
def made() -> tuple[Study, Sensitivity]:
    base = study(asked(simulate=True, slos=SLOS, load=BUSIER, weights=BF16))
    found = there(sensitivity(base))
    return base, found


def cases(assumption: str) -> tuple[Case, Case]:
    swing = next(each for each in made()[1].swings if each.assumption == assumption)
    return swing.low, swing.high


def usd(case: Case) -> float:
    return case.usd_per_month or math.inf


def test_every_assumption_is_changed_and_the_strongest_comes_first() -> None:
    base, found = made()
    names = {swing.assumption for swing in found.swings}
    traffic = {"requests a second", "prompt tokens", "answer tokens"}
    assert names == traffic | {"speed of the replicas", "price of the machine", "SLO ttft_p99", "SLO tpot_p99"}
    swings = [swing.usd(found.usd_per_month) for swing in found.swings]
    assert swings == sorted(swings, reverse=True)
    assert found.usd_per_month == there(base.plan.best).usd_per_month


def test_more_work_never_costs_less_and_looser_slos_never_more() -> None:
    mid = made()[1].usd_per_month * (1 + 1e-9)
    for name in ("requests a second", "prompt tokens", "answer tokens", "price of the machine"):
        few, many = cases(name)
        assert usd(few) <= mid
        assert usd(many) * (1 + 1e-9) >= made()[1].usd_per_month
    for name in ("speed of the replicas", "SLO ttft_p99", "SLO tpot_p99"):
        strict, loose = cases(name)
        assert usd(strict) * (1 + 1e-9) >= made()[1].usd_per_month
        assert usd(loose) <= mid


def test_the_bill_at_another_rate_is_that_of_a_plan_for_it() -> None:
    base, _ = made()
    best = there(base.plan.best)
    only = tuple(offer for offer in OFFERS if offer.instance == best.instance)
    for case in cases("requests a second"):
        elsewhere = study(
            asked(simulate=True, slos=SLOS, load=BUSIER.at(12 * case.factor), offers=only, weights=(best.weights,))
        )
        bills = [row.usd_per_month for row in elsewhere.plan.ranked if (row.tp, row.pp) == (best.tp, best.pp)]
        assert case.usd_per_month == pytest.approx(min(bills))


def test_the_price_moves_the_bill_by_as_much_and_nothing_else() -> None:
    _, found = made()
    low, high = cases("price of the machine")
    assert usd(low) == pytest.approx(0.75 * found.usd_per_month)
    assert usd(high) == pytest.approx(1.25 * found.usd_per_month)
    assert low.used == high.used == found.used


def test_where_the_bill_stands_still_the_share_in_use_moves() -> None:
    _, found = made()
    for name in ("requests a second", "prompt tokens"):
        few, many = cases(name)
        for case, fewer in ((few, True), (many, False)):
            assert case.used is not None
            assert 0 < case.used <= 1
            if case.replicas == found.replicas:
                assert case.used <= found.used if fewer else case.used >= found.used


def test_a_slo_that_cannot_be_kept_says_so() -> None:
    base = study(asked(slos=parse_slos("tpot_p99=0.008"), offers=(OFFERS[3],), weights=BF16))
    found = there(sensitivity(base))
    swing = next(each for each in found.swings if each.assumption == "SLO tpot_p99")
    assert swing.low.usd_per_month is None
    assert "TPOT" in there(swing.low.refused)
    assert found.swings[0].usd(found.usd_per_month) == math.inf


def test_without_a_pick_there_is_nothing_to_move() -> None:
    assert sensitivity(study(asked(slos=parse_slos("tpot_p99=0.0001")))) is None
