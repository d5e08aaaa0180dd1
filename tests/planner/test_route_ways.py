"""Several models for one traffic, on a small log and five offers: bills, waits and qualities add up."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from tests.planner.small_catalogue import OFFERS, RECENT, asked
from tests.there import there

from tokonomics.catalog.apis import ApiPrice
from tokonomics.planner.plan import plan
from tokonomics.planner.route import Spill, break_evens, route
from tokonomics.planner.route_models import CalledModel, OwnModel, part_of
from tokonomics.planner.route_ways import ALL, Marks, Routing
from tokonomics.questions.requests.traffic import RouteRequest
from tokonomics.questions.route import route as asked_route
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.traffic.slo import Latency, parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

SLOS = parse_slos("ttft_p99=2,tpot_p99=0.1")
API = CalledModel(
    ApiPrice(host="acme", model="large", input_usd_per_mtok=1.0, output_usd_per_mtok=4.0, date=RECENT, source="test")
)
INPUTS, OUTPUTS = [900, 300, 700, 1500, 200, 400, 800, 100], [200, 50, 90, 300, 20, 120, 60, 10]
SCORE = np.array([0.9, 0.2, 0.6, 0.6, 0.1, 0.8, 0.4, 0.95])
LABEL = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32)
QUALITY = (
    np.array([0.9, 0.1, 0.5, 0.6, 0.2, 0.9, 0.3, 1.0]),
    np.array([0.8, 0.7, 0.8, 0.9, 0.6, 0.9, 0.7, 0.9]),
    np.full(8, 0.95),
)


def far_apart() -> Load:
    """Eight requests, ten minutes from each other: none waits for another."""
    return load_of_log(make_trace(np.arange(8) * 600.0, INPUTS, OUTPUTS))


FEW = (OFFERS[0], OFFERS[1])
"""Enough to tell models apart."""


def routing(load: Load | None = None, **more: object) -> Routing:
    load = far_apart() if load is None else load
    own = [OwnModel(asked(model, load, FEW, simulate=True, slos=SLOS)) for model in ("llama-3.1-8b", "qwen2.5-32b")]
    fields = {"marks": Marks(SCORE, False, LABEL, ("a", "b", "c"), QUALITY), "slos": SLOS} | more
    return Routing(load, [*own, API], **fields)  # type: ignore[arg-type]


def by_hand(model: int, load: Load) -> float:
    """The plan's own bill of a part, or the API's list price of its tokens."""
    if model == 2:
        tokens = load.trace.input_tokens.sum() * 1.0 + load.trace.output_tokens.sum() * 4.0
        per_request = float(tokens) / 1e6 / len(load.trace)
        return per_request * load.workload.rate * HOURS_PER_MONTH * SECONDS_PER_HOUR
    best = there(plan(asked(("llama-3.1-8b", "qwen2.5-32b")[model], load, FEW, simulate=True, slos=SLOS)).best)
    return best.usd_per_month


def test_labels_are_sent_as_trying_all_27_ways_with_the_planner_would() -> None:
    floor = 0.78
    made, load = routing(floor=floor), far_apart()
    bills: dict[tuple[int, tuple[int, ...]], float] = {}
    every = []
    for chosen in product(range(3), repeat=3):
        to = np.array(chosen)[LABEL]
        usd = 0.0
        for model in set(chosen):
            places = np.flatnonzero(to == model)
            key = model, tuple(map(int, places))
            bills.setdefault(key, by_hand(model, part_of(load, places)))
            usd += bills[key]
        every.append((usd, float(np.mean([QUALITY[model][place] for place, model in enumerate(to)])), chosen))
    good = min(usd for usd, quality, _ in every if quality >= floor)
    ways = [*made.by_label(), *(way for way in map(made.single, range(3)) if way)]
    reached = [way.usd_per_month for way in ways if (way.quality or 0) >= floor]
    assert min(reached) == pytest.approx(good)
    # Each row of the front is one of the 27, at its own bill and quality.
    for way in ways:
        assert any(
            usd == pytest.approx(way.usd_per_month) and quality == pytest.approx(way.quality)
            for usd, quality, _ in every
        )


def test_every_threshold_of_a_small_log_is_looked_at_and_none_that_reaches_the_floor_is_cheaper() -> None:
    made = routing(floor=0.7)
    assert made.thresholds(1) == sorted(set(SCORE) - {SCORE.min()}, reverse=True)
    found = route(made)
    bills = []
    for threshold in made.thresholds(1):
        first = threshold <= SCORE
        parts = [(0, first), (1, ~first)]
        usd = sum(by_hand(model, part_of(far_apart(), np.flatnonzero(mask))) for model, mask in parts if mask.any())
        quality = float(np.where(first, *QUALITY[:2]).mean())
        way = next(way for way in found.frontier if way.kind == "routed" and way.threshold == threshold)
        assert way.usd_per_month == pytest.approx(usd)
        assert way.quality == pytest.approx(quality)
        bills += [usd] if quality >= 0.7 else []
    picked = next(way for way in found.ways if way.kind == "routed")
    assert picked.usd_per_month == pytest.approx(min(bills))
    assert there(found.best).usd_per_month <= picked.usd_per_month
    for way in (*found.ways, *found.frontier):
        assert way.usd_per_month == pytest.approx(sum(part.usd_per_month for part in way.parts))
        mtok = found.workload.tokens_per_month / 1e6
        assert way.usd_per_mtok * mtok == pytest.approx(way.usd_per_month)


def test_a_cascade_pays_both_and_waits_for_both() -> None:
    made, threshold = routing(), 0.6
    own = [model for model in made.models if isinstance(model, OwnModel)]
    alone = [model.fleet(made.load, made.part(ALL)[0]) for model in own]
    assert alone[0]
    assert alone[1]
    way = there(made.cascade(1, threshold))
    again = ~(threshold <= SCORE)
    # No request meets another, so each waits as it would with all of the others on one model.
    first, second = (fleet.latencies for fleet in alone if fleet)
    e2e = np.where(again, first[Latency.e2e] + second[Latency.e2e], first[Latency.e2e])
    ttft = np.where(again, first[Latency.e2e] + second[Latency.ttft], first[Latency.ttft])
    assert way.e2e_s.mean == pytest.approx(e2e.mean(), rel=1e-6)
    assert way.ttft_s.mean == pytest.approx(ttft.mean(), rel=1e-6)
    assert way.usd_per_month == pytest.approx(
        by_hand(0, made.load) + by_hand(1, part_of(made.load, np.flatnonzero(again)))
    )
    assert way.quality == pytest.approx(np.where(again, QUALITY[1], QUALITY[0]).mean())
    # Behind it an API: its own time is not known, the wait for the first answer is.
    called = there(made.cascade(2, threshold))
    assert called.simulated_share == pytest.approx(1 - again.mean())
    assert called.ttft_s.mean == pytest.approx(
        np.where(again, first[Latency.e2e], first[Latency.ttft]).mean(), rel=1e-6
    )


def test_parts_of_an_api_bill_sum_to_the_whole() -> None:
    made = routing()
    parts = made.exactly(2, ("from", 0.6)) + made.exactly(2, ("below", 0.6))
    assert parts == pytest.approx(made.exactly(2, ALL)) == pytest.approx(by_hand(2, made.load))


def test_break_evens_are_those_of_trying_every_threshold_of_the_log() -> None:
    """Two of the eight scores are tied, so a share of 4/8 cannot be had."""
    shares = {float((threshold <= SCORE).mean()): float(threshold) for threshold in SCORE}
    assert sorted(shares) == [1 / 8, 2 / 8, 3 / 8, 5 / 8, 6 / 8, 7 / 8, 1]
    made = routing(marks=Marks(SCORE))
    assert made.reachable_shares == tuple(sorted(shares))
    for found in break_evens(made):
        second = next(place for place, model in enumerate(made.models) if model.key == found.second)
        way = made.routed if found.kind == "routed" else made.cascade
        bills = {share: way(second, threshold) for share, threshold in shares.items()}
        dear = [share for share, bill in bills.items() if bill and bill.usd_per_month >= found.baseline_usd_per_month]
        low = max(dear, default=0.0)
        share = min((share for share in shares if share > low), default=None)
        assert found.share == share
        assert (found.not_at_share, found.threshold) == ((None, None) if share is None else (low, shares[share]))
        assert found.is_smallest == (share == 1 / 8)


def busy() -> Load:
    load = load_of_shape(16, "const:700", "const:120")
    return replace(load, trace=load.trace.take(np.arange(3000)), is_stationary=False)


def test_the_own_fleet_before_an_api_is_the_cheapest_of_all_sizes() -> None:
    load = busy()
    own = OwnModel(asked("llama-3.1-8b", load, OFFERS[:1], simulate=True, slos=SLOS))
    whole = there(own.fleet(load, "all"))
    assert whole.placed.replicas > 2
    dear = CalledModel(API.price.model_copy(update={"input_usd_per_mtok": 0.02, "output_usd_per_mtok": 0.1}))
    spill = Spill(load, dear, whole)
    bills = {}
    for replicas in range(1, whole.placed.replicas):
        found = spill.kept(replicas)
        if found is None:
            continue
        gone = np.flatnonzero(~found[1])
        api_usd = dear.usd_per_month(part_of(load, gone)) if len(gone) else 0.0
        bills[replicas] = replicas * (OFFERS[0].usd_per_hour or 0) * HOURS_PER_MONTH + api_usd
        assert there(found[0].trial).holds
        # What stays and what goes are all requests.
        assert len(gone) + found[1].sum() == len(load.trace)
    assert bills
    best = there(Spill(load, dear, whole).cheapest())
    assert bills[best[0].replicas] == pytest.approx(min(bills.values()))


def test_break_even_shares_lie_where_the_bills_cross() -> None:
    load = busy()
    chance = (np.random.default_rng(0).permutation(len(load.trace)) + 0.5) / len(load.trace)
    own = [OwnModel(asked(model, load, simulate=True, slos=SLOS)) for model in ("llama-3.1-8b", "qwen2.5-32b")]
    made = Routing(load, own, Marks(chance, by_chance=True), SLOS)
    routed, cascade = break_evens(made)
    assert routed.share is not None
    large = made.exactly(1, ALL)
    assert routed.baseline_usd_per_month == large

    def usd(share: float) -> float:
        threshold = made.threshold_at(share)
        return made.exactly(0, ("from", threshold)) + made.exactly(1, ("below", threshold))

    assert usd(routed.share) < large
    assert usd(routed.share - 0.03) >= large or routed.share < 0.03
    if cascade.share is not None:
        assert cascade.share >= routed.share - 0.02  # the small model serves all requests, not a share


def test_requests_longer_than_the_small_models_context_go_to_the_large_one_and_none_is_lost() -> None:
    """Of twelve requests five pass qwen3-8b's 40,960 tokens, and one of these llama-3.1-8b's 131,072 as well."""
    inputs = [900, 50_000, 700, 60_000, 200, 400, 45_000, 100, 140_000, 300, 70_000, 500]
    outputs = [200, 50, 90, 300, 20, 120, 60, 10, 30, 40, 80, 70]
    rows = {"arrival_s": [600.0 * place for place in range(12)], "input_tokens": inputs, "output_tokens": outputs}
    asked_for = {"model": "qwen3-8b,llama-3.1-8b", "api": "openai:gpt-4o-mini", "gpu": "H100", "seed": 3}
    found = asked_route(RouteRequest.checked({**asked_for, "trace": rows, "slo": "tpot_p99=0.2"}))
    assert (found.too_long_requests, found.too_long_tokens) == (1, 140_030)
    totals = [one + other for one, other in zip(inputs, outputs, strict=True)]
    long = [tokens for tokens in totals if 40_960 < tokens <= 131_072]
    short = [tokens for tokens in totals if tokens <= 40_960]
    assert {way.kind for way in found.ways} >= {"single", "routed", "cascade"}
    singles = [way.parts[0].model for way in found.ways if way.kind == "single"]
    assert singles == ["llama-3.1-8b", "openai:gpt-4o-mini"]
    for way in (*found.ways, *found.frontier):
        requests, tokens = (sum(getattr(part, name) for part in way.parts) for name in ("requests", "tokens"))
        first = [part for part in way.parts if part.model == "qwen3-8b"]
        if way.kind == "cascade":
            assert (first[0].requests, first[0].tokens) == (len(short), sum(short))
            assert way.parts[1].requests >= len(long)
            assert way.parts[1].tokens >= sum(long)
            continue
        assert requests + found.too_long_requests == len(inputs)
        assert tokens + found.too_long_tokens == sum(totals)
        assert all(part.requests <= len(short) for part in first)
    most = max(way.first_share for way in found.frontier if way.kind == "routed")
    assert most == pytest.approx(len(short) / (len(inputs) - 1))
