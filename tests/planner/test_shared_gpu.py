"""One GPU for several models: what must hold of the bills, the memory and the crossing."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from functools import cache

import pytest
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.physics.deployment import deploy
from tokonomics.physics.memory import kv_budget_bytes, shard, workspace_bytes
from tokonomics.planner.plan import Question, plan
from tokonomics.planner.shared_gpu import cheapest_of, crossing, own_way, shared_plan
from tokonomics.planner.shared_ways import (
    SHARED_WAYS,
    SharedPlan,
    Tenant,
    Way,
    WayRow,
    aligned,
    memory_shares,
    tenants_of,
)
from tokonomics.sizing.load import load_of_shape
from tokonomics.traffic.slo import parse_slos

DAY = date(2026, 11, 1)
PRICES = {"L40S": 1.0, "H100-SXM": 2.5}
VLLM = find_engine("vllm")


def question(model: str, rate: float, slo: str, prices: dict[str, float] = PRICES, **offer: float) -> Question:
    named = {"provider": "p", "region": "r", "gpus": 1, "memory_gb": 200, "date": DAY, "source": ""} | offer
    offers = [
        Offer.model_validate(named | {"instance": gpu, "gpu": gpu, "usd_per_hour": price})
        for gpu, price in prices.items()
    ]
    load = load_of_shape(rate, "const:800", "const:150")
    return Question(find_model(model), load, offers, (VLLM,), DAY, parse_slos(slo))


@cache
def planned() -> tuple[tuple[Tenant, ...], SharedPlan]:
    slos = "ttft_p99=2,tpot_p99=60ms"
    tenants = tuple(tenants_of([question("llama-3.1-8b", 0.2, slos), question("qwen3-4b", 0.1, slos)]))
    return tenants, shared_plan(tenants)


def test_apart_is_the_sum_of_the_single_plans() -> None:
    tenants, found = planned()
    own = next(row for row in found.rows if row.way is Way.own)
    singles = [plan(tenant.question).best for tenant in tenants]
    assert own.usd_per_month == pytest.approx(sum(single.usd_per_month for single in singles if single))


def test_a_shared_bill_is_one_machines_and_all_of_it_is_paid() -> None:
    _, found = planned()
    for row in found.rows:
        assert sum(model.usd_per_month for model in row.models) == pytest.approx(row.usd_per_month)
        if row.way in SHARED_WAYS:
            assert row.usd_per_month == pytest.approx(PRICES[row.gpu] * 730)
            assert row.meets == all(model.breaks is None for model in row.models)


def test_the_pick_is_the_cheapest_of_those_that_meet_every_slo() -> None:
    _, found = planned()
    met = [row.usd_per_month for row in found.rows if row.meets]
    assert there(found.best).usd_per_month == min(met)
    assert {row.way for row in found.rows} | set(found.not_possible) == set(Way)


@pytest.mark.parametrize(
    ("ends", "own_grows", "expected"),
    [(3.3, 9.0, 3.3), (3.3, 2.0, 3.3), (0.2, 9.0, 0.2), (1000.0, 9.0, None), (0.001, 9.0, 0.0)],
)
def test_the_crossing_is_where_the_bills_cross(
    monkeypatch: pytest.MonkeyPatch, ends: float, own_grows: float, expected: float | None
) -> None:
    # One GPU for all costs 60 up to a factor and 150 beyond; own ones cost 100, and 120 from another factor on.
    tenants, found = planned()
    row, rate = found.rows[0], tenants[0].load.workload.rate

    def factor(there: Sequence[Tenant]) -> float:
        return there[0].load.workload.rate / rate

    def own(there: Sequence[Tenant]) -> WayRow:
        bill = 100.0 if factor(there) < own_grows else 120.0
        return row.model_copy(update={"way": Way.own, "usd_per_month": bill, "meets": True})

    def shared(
        way: Way, there: Sequence[Tenant], _: object, below: float, least: float = 0.0, *, only_met: bool
    ) -> WayRow | None:
        bill = 60.0 if factor(there) <= ends else 150.0
        made = row.model_copy(update={"way": way, "usd_per_month": bill, "meets": True})
        return made if least <= bill < below and way is Way.shares else None

    monkeypatch.setattr("tokonomics.planner.shared_gpu.own_way", own)
    monkeypatch.setattr("tokonomics.planner.shared_gpu.cheapest_of", shared)
    first = shared(Way.shares, tenants, None, 1e9, only_met=True)
    rows = (own(tenants), *([first] if first else []))
    crossed = there(crossing(tenants, SharedPlan(rows=rows, not_possible={}, best=None)))
    if expected is None:
        assert (crossed.below, crossed.above) == (64, None)
    elif expected == 0:
        assert crossed.below == 0
    else:
        assert crossed.below <= expected < there(crossed.above) <= 1.1 * crossed.below
        assert (crossed.together_usd_per_month, crossed.own_usd_per_month) == (
            60.0,
            100.0 if expected < own_grows else 120.0,
        )


def test_the_crossing_of_real_bills_is_where_they_cross() -> None:
    # Own GPUs are two; one for all meets every SLO at the factor below, and no longer at the one above.
    slos = "ttft_p99=2,tpot_p99=60ms"
    tenants = tenants_of([question(model, 0.4, slos, {"L40S": 1.0}) for model in ("llama-3.1-8b", "qwen3-4b")])
    tenants = [Tenant(replace(tenant.question, weights=(Precision.bf16,))) for tenant in tenants]
    crossed = there(crossing(tenants, shared_plan(tenants)))
    assert crossed.above is not None
    assert crossed.below < crossed.above <= 1.1 * crossed.below
    for factor, still in ((crossed.below, True), (crossed.above, False)):
        scaled = [one.times(factor) for one in tenants]
        traces = aligned([one.load.trace for one in scaled])
        assert any(cheapest_of(way, scaled, traces, 2 * 730, only_met=True) for way in SHARED_WAYS) == still


def test_a_shared_gpu_keeps_the_published_bits_where_they_meet_every_slo() -> None:
    # 16 + 8 GB of weights fit 48: no fewer bits than own GPUs have, so nothing to mark.
    _, found = planned()
    shares = next(row for row in found.rows if row.way is Way.shares)
    assert shares.meets
    assert [(model.weights, model.below_checkpoint) for model in shares.models] == [(Precision.bf16, False)] * 2
    assert found.own_at_these_bits_usd_per_month is None


def test_fewer_bits_are_marked_and_own_gpus_priced_at_them() -> None:
    # Three of 16 GB do not fit 48; at FP8 they do. Own GPUs cost the same at either.
    slos = "ttft_p99=5,tpot_p99=200ms"
    tenants = tenants_of([question("llama-3.1-8b", 0.02, slos, {"L40S": 1.0})] * 3)
    found = shared_plan(tenants)
    assert found.best is not None
    assert found.best.way is Way.shares
    assert [(model.weights, model.below_checkpoint) for model in found.best.models] == [(Precision.fp8, True)] * 3
    assert found.own_at_these_bits_usd_per_month == pytest.approx(3 * 730)


def test_own_gpus_of_one_kind_of_machine_fill_it_together() -> None:
    # Two models, a GPU each, on machines of four: one machine, whose bill they share.
    slos = "ttft_p99=2,tpot_p99=60ms"
    tenants = tenants_of([question(model, 0.2, slos, {"L40S": 4.0}, gpus=4) for model in ("llama-3.1-8b", "qwen3-4b")])
    own = there(own_way(tenants))
    assert own.gpus_paid == 4
    assert own.usd_per_month == pytest.approx(4 * 730)
    assert sum(model.usd_per_month for model in own.models) == pytest.approx(own.usd_per_month)


def test_memory_shares_hold_every_engine_and_no_more_than_the_gpu_has() -> None:
    gpu = find_gpu("L40S")
    whole = [deploy(find_model(name), gpu, VLLM) for name in ("llama-3.1-8b", "qwen3-4b")]
    loads = [load_of_shape(rate, "const:800", "const:150") for rate in (0.3, 0.1)]
    shares = there(memory_shares(whole, loads))
    assert sum(share.gpu.usable_bytes for share in shares) <= gpu.usable_bytes
    taken = [shard(share).total + workspace_bytes(share) + kv_budget_bytes(share) for share in shares]
    assert sum(taken) == pytest.approx(gpu.usable_bytes * VLLM.defaults_on(gpu).memory_fraction, rel=1e-6)
    # Three of 16 GB with their workspace do not fit 48.
    assert memory_shares([whole[0]] * 3, [loads[0]] * 3) is None


def test_traces_last_equally_long_at_their_own_rates() -> None:
    traces = [load_of_shape(rate, "const:100", "const:10").trace for rate in (5.0, 0.05)]
    fast, slow = aligned(traces)
    assert len(slow) == pytest.approx(1000, rel=0.2)
    assert fast.duration_s == pytest.approx(slow.duration_s, rel=0.05)
    assert fast.rate == pytest.approx(5.0, rel=0.05)
