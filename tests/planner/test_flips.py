"""What would flip the choice: prices to the cent, crossings by a plan on either side of each."""

from functools import cache

import pytest
from tests.planner.small_catalogue import BF16, OFFERS, SLOS, asked, offer
from tests.there import there

from tokonomics.catalog.offers import Offer
from tokonomics.planner.firmness import FURTHEST, Flip, Flips, flips
from tokonomics.planner.plan import Study, study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.vary import RATE, stretched
from tokonomics.sizing.load import Load, load_of_shape
from tokonomics.traffic.slo import parse_slos

LOAD = load_of_shape(8, "const:1000", "const:300")
"""At eight requests a second three GPUs are near each other."""


def made(simulate: bool = True, only: tuple[str, ...] | None = (RATE,)) -> tuple[Study, Flips]:
    return kept(simulate, only)


@cache
def kept(simulate: bool, only: tuple[str, ...] | None) -> tuple[Study, Flips]:
    base = study(asked(simulate=simulate, slos=SLOS, load=LOAD, weights=BF16))
    return base, there(flips(base, only))


def pick_of(load: Load = LOAD, offers: tuple[Offer, ...] = OFFERS, simulate: bool = True) -> Candidate:
    return there(study(asked(simulate=simulate, slos=SLOS, load=load, weights=BF16, offers=offers)).plan.best)


def repriced(row: Candidate, factor: float, gpu: bool = False) -> tuple[Offer, ...]:
    """The same list with one offer, or every offer of its GPU, at so many times its price."""

    def is_meant(each: Offer) -> bool:
        return each.gpu == row.gpu if gpu else each.instance == row.instance

    return tuple(
        each.model_copy(update={"usd_per_hour": (each.usd_per_hour or 0) * factor}) if is_meant(each) else each
        for each in OFFERS
    )


def altered(flip: Flip, value: float) -> Load:
    if flip.what == "requests a second":
        return LOAD.at(value)
    if flip.what == "prompt tokens":
        return stretched(LOAD, inputs=value / 1000)
    return stretched(LOAD, outputs=value / 300)


def test_the_price_of_the_pick_may_rise_as_far_as_said() -> None:
    base, found = made()
    best = there(base.plan.best)
    assert found.other_gpu is not None
    rise = found.other_gpu.pick_may_rise
    assert pick_of(offers=repriced(best, 1 + rise * 0.99, gpu=True)).gpu == best.gpu
    assert pick_of(offers=repriced(best, 1 + rise * 1.01, gpu=True)).gpu == found.other_gpu.gpu


def test_the_nearest_price_flip_is_to_another_machine_of_whatever_gpu() -> None:
    base, found = made()
    best = there(base.plan.best)
    assert found.other_offer is not None
    rise = found.other_offer.pick_may_rise
    assert pick_of(offers=repriced(best, 1 + rise * 0.99)).instance == best.instance
    assert pick_of(offers=repriced(best, 1 + rise * 1.01)).instance == found.other_offer.instance


def test_the_runner_up_must_fall_as_far_as_said() -> None:
    base, found = made()
    rival = there(base.plan.runner_up())
    assert found.other_gpu is not None
    assert found.other_gpu.gpu == rival.gpu
    fall = found.other_gpu.rival_must_fall
    assert pick_of(offers=repriced(rival, 1 - fall * 0.99)).gpu != rival.gpu
    assert pick_of(offers=repriced(rival, 1 - fall * 1.01)).gpu == rival.gpu


@pytest.mark.slow
@pytest.mark.explore
def test_on_either_side_of_every_crossing_the_plan_picks_what_is_said() -> None:
    base, found = made(only=None)
    assert found.traffic
    for flip in found.traffic:
        before, after = pick_of(altered(flip, flip.before.value)), pick_of(altered(flip, flip.after.value))
        assert before.gpu == there(base.plan.best).gpu, flip
        assert after.gpu == flip.gpu, flip
        assert after.usd_per_month == pytest.approx(flip.after.rival_usd_per_month), flip
        assert before.usd_per_month == pytest.approx(flip.before.pick_usd_per_month), flip


@pytest.mark.parametrize(("simulate", "only", "directions"), [(True, (RATE,), 2), (False, None, 6)])
def test_crossings_are_narrow_the_nearest_first(simulate: bool, only: tuple[str, ...] | None, directions: int) -> None:
    _, found = made(simulate, only)
    distances = []
    for flip in found.traffic:
        low, high = sorted([flip.before.value, flip.after.value])
        assert high / low <= 1.02 + 1e-9
        assert 1 / FURTHEST <= flip.factor <= FURTHEST
        if flip.after.pick_usd_per_month is not None:
            assert there(flip.after.rival_usd_per_month) < flip.after.pick_usd_per_month
        distances.append(max(flip.factor, 1 / flip.factor))
    assert distances == sorted(distances)
    assert len(found.traffic) + len(found.steady) == directions


def test_in_closed_form_crossings_hold_too() -> None:
    base, found = made(simulate=False, only=None)
    for flip in found.traffic:
        assert pick_of(altered(flip, flip.before.value), simulate=False).gpu == there(base.plan.best).gpu
        assert pick_of(altered(flip, flip.after.value), simulate=False).gpu == flip.gpu


def test_a_single_gpu_is_never_flipped() -> None:
    found = there(flips(study(asked(offers=(offer("L4", 1, 0.7),)))))
    assert found.other_gpu is None
    assert found.traffic == ()
    assert len(found.steady) == 6


def test_without_a_pick_there_is_nothing_to_flip() -> None:
    assert flips(study(asked(slos=parse_slos("tpot_p99=0.0001")))) is None
