"""Which requests go to which model: the search against trying everything, and break-evens against their closed form."""

import math
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from tests.explore import times
from tests.there import there

from tokonomics.planner.route import break_even_share, within_limit
from tokonomics.planner.route_ways import Part, Sending, cheapest, cheapest_first, every_sending, front

MODELS = 3


class Staircase:
    """Bills of whole machines: each model holds so much of the traffic on one, at a price; it counts who asks."""

    def __init__(self, seed: int, labels: int) -> None:
        rng = np.random.default_rng(seed)
        self.shares = rng.dirichlet(np.ones(labels))
        self.scores = np.sort(rng.random((MODELS, labels)), axis=0)
        self.holds, self.usd = rng.uniform(0.1, 0.7, MODELS), np.sort(rng.uniform(1, 9, MODELS))
        self.asked: set[tuple[int, Part]] = set()

    def share(self, part: Part) -> float:
        assert isinstance(part, frozenset)
        return math.fsum(self.shares[label] for label in part)

    def at_least(self, model: int, part: Part) -> float:
        return float(self.usd[model] * self.share(part) / self.holds[model])

    def exactly(self, model: int, part: Part) -> float:
        self.asked.add((model, part))
        return float(self.usd[model] * math.ceil(self.share(part) / self.holds[model] - 1e-12))

    def every(self) -> list[tuple[float, float]]:
        """Bill and quality of every assignment, by nothing but loops."""
        found = []
        for chosen in product(range(MODELS), repeat=len(self.shares)):
            usd = quality = 0.0
            for model in range(MODELS):
                share = sum(share for share, to in zip(self.shares, chosen, strict=True) if to == model)
                usd += float(self.usd[model] * math.ceil(share / self.holds[model] - 1e-12)) if share else 0.0
            for label, to in enumerate(chosen):
                quality += float(self.shares[label] * self.scores[to][label])
            found.append((usd, quality))
        return found

    def sendings(self) -> list[Sending]:
        scores = [list(map(float, row)) for row in self.scores]
        return list(every_sending(list(map(float, self.shares)), scores, MODELS))


@pytest.mark.parametrize("seed", range(times(12)))
def test_the_cheapest_way_to_send_labels_is_that_of_trying_all(seed: int) -> None:
    world = Staircase(seed, labels=2 + seed % 5)
    every = world.every()
    assert len(every) == MODELS ** len(world.shares)
    for floor in (None, 0.3, 0.5, 0.7):
        best = cheapest(world.sendings(), world.at_least, world.exactly, floor)
        allowed = [usd for usd, quality in every if floor is None or quality >= floor - 1e-12]
        assert (best is None) == (not allowed)
        if best:
            assert best[0] == pytest.approx(min(allowed))
            assert floor is None or (best[1].quality or 0) >= floor - 1e-9


@pytest.mark.parametrize("seed", range(times(12)))
def test_the_front_is_what_no_assignment_beats(seed: int) -> None:
    world = Staircase(seed, labels=2 + seed % 4)
    every = world.every()
    best, expected = -math.inf, []
    for usd, quality in sorted(every, key=lambda pair: (round(pair[0], 9), -pair[1])):
        if quality > best + 1e-12:
            expected.append((usd, quality))
            best = quality
    found = [(usd, sending.quality) for usd, sending in front(world.sendings(), world.at_least, world.exactly)]
    assert [pair[0] for pair in found] == pytest.approx([pair[0] for pair in expected])
    assert [pair[1] for pair in found] == pytest.approx([pair[1] for pair in expected])


def test_ways_leave_in_the_order_of_their_bills_and_few_fleets_are_priced_for_the_first() -> None:
    world = Staircase(3, labels=6)
    ordered = [usd for usd, _ in cheapest_first(world.sendings(), world.at_least, world.exactly)]
    assert ordered == sorted(ordered)
    assert len(ordered) == MODELS**6
    fresh = Staircase(3, labels=6)
    next(cheapest_first(fresh.sendings(), fresh.at_least, fresh.exactly))
    assert len(fresh.asked) < len(world.asked) / 2


SHARES = tuple(round(0.1 * step, 1) for step in range(1, 10))
ANY = tuple(step / 100_000 for step in range(1, 100_001))


def between(usd: Callable[[float], float], baseline: float) -> float:
    """Where any share can be reached."""
    found = there(break_even_share(usd, baseline, ANY, SHARES, 1e-6))
    assert found[1] - found[0] == pytest.approx(1e-5)
    return found[1]


def test_linear_bills_break_even_where_the_closed_form_says() -> None:
    """Fixed F, a per request on the small model, b on the large: F + a·s + b·(1 − s) < b from s = F / (b − a) on."""
    fixed, small, large = 20.0, 30.0, 100.0
    routed = between(lambda s: fixed + small * s + large * (1 - s), large)
    assert routed == pytest.approx(fixed / (large - small), abs=2e-5)
    # Every request is tried on the small one: a + b·(1 − s) < b from s = a / b on.
    cascade = between(lambda s: small + large * (1 - s), large)
    assert cascade == pytest.approx(small / large, abs=2e-5)
    assert break_even_share(lambda s: large + small * s, large, ANY, SHARES) is None
    assert between(lambda s: 0.0, large) == pytest.approx(0, abs=2e-5)


@pytest.mark.parametrize("even", [0.01, 0.069, 0.3, 0.31, 0.66, 0.92])
def test_a_break_even_lies_between_two_shares_that_can_be_reached(even: float) -> None:
    reachable = (0.067, 0.08, 0.3, 0.64, 0.66, 0.9, 1.0)
    asked = set()

    def usd(share: float) -> float:
        asked.add(share)
        return 100.0 if share <= even else 99.0

    found = break_even_share(usd, 100.0, reachable, SHARES, 1e-9)
    assert found == (max([0.0, *(s for s in reachable if s <= even)]), min(s for s in reachable if s > even))
    assert asked <= set(reachable)


def test_whole_machines_break_even_after_the_last_share_that_costs_too_much() -> None:
    def usd(share: float) -> float:
        return 10 * math.ceil(share / 0.45) + 40 * math.ceil((1 - share) / 0.34 - 1e-9)

    found = between(usd, usd_of_all := 40 * math.ceil(1 / 0.34))
    fine = np.linspace(1e-4, 1, 10_000)
    dear = [share for share in fine if usd(share) >= usd_of_all]
    assert found == pytest.approx(max(dear), abs=2e-4)


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_what_finds_too_many_under_way_goes_elsewhere(limit: int) -> None:
    rng = np.random.default_rng(limit)
    arrival_s, stay_s = np.cumsum(rng.exponential(1, 300)), rng.exponential(3, 300)
    kept = within_limit(arrival_s, stay_s, limit)
    expected: list[int] = []
    for place in range(300):
        there = [other for other in expected if arrival_s[other] + stay_s[other] > arrival_s[place]]
        if len(there) < limit:
            expected.append(place)
    assert list(np.flatnonzero(kept)) == expected
    assert within_limit(arrival_s, stay_s, 300).all()
