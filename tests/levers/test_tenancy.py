"""Tenants apart and together, their neighbours and their adapters: laws, and figures found another way."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deployed import on

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.levers.lora import distinct_adapters, lora, lora_lever
from tokonomics.levers.tenancy import Pooling, Sharing, noisy_neighbour, pool
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.class_outcome import tenant_breaks
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.search import NeverHolds, replicas_needed
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.tenants import by_tenant, only, present
from tokonomics.traffic.trace import Trace, make_trace

SLOS = parse_slos("ttft_p99=0.3,tpot_p99=30ms")
USD = 2.0


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return on()


def requests(arrivals: str, tenants: str, seed: int = 0, duration_s: float = 600) -> Trace:
    return generate(
        parse_arrivals(arrivals), parse_lengths("lognormal:mean=800,p99=3000", "input"),
        parse_lengths("const:150", "output"), duration_s=duration_s, seed=seed, tenants=parse_tenants(tenants),
    )  # fmt: skip


def sharing(deployment: Deployment, trace: Trace, text: str = "ttft_p99=0.3,tpot_p99=30ms") -> Sharing:
    return Sharing(deployment, deployment, trace, parse_slos(text), lambda replicas: USD)


def test_a_tenant_alone_needs_what_capacity_says_of_its_log(deployment: Deployment) -> None:
    trace = requests("gamma:25,cv=2", "3,skew=1")
    made = pool(sharing(deployment, trace))
    for tenant in present(trace):
        own = only(trace, [tenant])
        log = make_trace(own.arrival_s, own.input_tokens, own.output_tokens)  # as read from a file of its own
        needed = replicas_needed(Setup(deployment, load_of_requests(log), slos=SLOS)).replicas
        row = next(row for row in made.tenants if row.tenant == trace.tenants[tenant])
        assert row.alone_replicas == needed
    assert made.apart.replicas == sum(row.alone_replicas for row in made.tenants)


@settings(deadline=None, max_examples=4)
@given(
    st.sampled_from(["poisson:12", "gamma:12,cv=3", "spike:4,to=30,at=100,for=60"]),
    st.integers(2, 6),
    st.floats(0, 1.5),
    st.integers(0, 50),
)
def test_pooling_never_needs_more_and_shares_sum_to_it(arrivals: str, count: int, skew: float, seed: int) -> None:
    deployment = on()
    trace = requests(arrivals, f"{count},skew={skew}", seed, duration_s=240)
    made = pool(sharing(deployment, trace))
    assert made.together.replicas <= made.apart.replicas
    parts = [part for row in made.tenants for part in (row.usage_usd_per_hour, row.unused_usd_per_hour)]
    assert math.fsum(parts) == made.bill.after.usd
    assert made.bill.after.usd == pytest.approx(made.together.replicas * USD)
    assert made.bill.saved_usd + made.bill.after.usd == pytest.approx(made.bill.before.usd)
    assert all(row.pays_usd_per_hour <= row.alone_usd_per_hour + 1e-9 for row in made.tenants)
    assert sum(made.shared_by_usage_usd_per_hour) == pytest.approx(made.bill.after.usd)
    if count <= 4:
        assert math.fsum(row.shapley_usd_per_hour or 0 for row in made.tenants) == pytest.approx(made.bill.after.usd)


@pytest.fixture(scope="module")
def pooled(deployment: Deployment) -> tuple[Sharing, Pooling]:
    shared = sharing(deployment, requests("gamma:40,cv=3", "4,skew=1"))
    return shared, pool(shared)


def test_the_shared_fleet_is_the_smallest_for_all(deployment: Deployment, pooled: tuple[Sharing, Pooling]) -> None:
    shared, made = pooled
    trace, count = shared.trace, made.together.replicas
    assert count > 1
    served = shared.serve(trace, made.sized)
    for at in by_tenant(trace).values():
        waits = (served.served.first_token_s - trace.arrival_s)[at]
        assert np.percentile(waits, 99) <= 0.3
    for router in (Router.round_robin, Router.least_outstanding):
        fewer = simulate(deployment, trace, FleetSettings(replicas=count - 1, router=router))
        assert tenant_breaks(fewer, SLOS) is not None or what_breaks(fewer, outcome(fewer, SLOS)) is not None


def test_a_tenant_of_seven_requests_is_not_judged_by_its_slowest(deployment: Deployment) -> None:
    """2,000 short requests of one tenant, seven of another, one of which is long."""
    arrival = np.concatenate([np.arange(2000) * 0.05, np.linspace(1, 90, 7)])
    inputs = np.concatenate([np.full(2000, 100), [100, 100, 60_000, 100, 100, 100, 100]])
    tenant = np.repeat(np.array([0, 1], np.int32), [2000, 7])
    trace = make_trace(arrival, inputs, np.full(2007, 20), tenant=tenant, tenants=("large", "small"))
    seven = tenant_breaks(simulate(deployment, trace, FleetSettings(replicas=8)), parse_slos("ttft_p99=0.3"))
    assert seven is not None
    many = replace(trace, tenant=np.arange(2007, dtype=np.int32) % 50, tenants=tuple(map(str, range(50))))
    assert tenant_breaks(simulate(deployment, many, FleetSettings(replicas=8)), parse_slos("ttft_p99=0.3")) is None


def test_twice_the_traffic_of_one_slows_the_others_and_priorities_shield_them(pooled: tuple[Sharing, Pooling]) -> None:
    made, trace = noisy_neighbour(*pooled), pooled[0].trace
    before, loud, last, enough = (row.others.ttft_p99_s or 0.0 for row in made.rows)
    assert made.tenant == "tenant-1"
    assert made.requests == len(trace) + len(only(trace, [0]))
    assert loud > before
    assert last < loud
    # The loud one then waits longer than the others, by more than without priorities.
    loud_own, last_own = (row.noisy.ttft_p99_s or 0.0 for row in made.rows[1:3])
    assert last_own - last > loud_own - loud
    assert enough <= 0.3
    assert made.needs > made.rows[0].replicas


def test_mistakes_are_refused(deployment: Deployment) -> None:
    trace = requests("poisson:5", "2")
    for wrong in (replace(trace, tenant=None), only(trace, [0])):
        with pytest.raises(BadInput):
            pool(sharing(deployment, wrong))
    with pytest.raises(NeverHolds):
        pool(sharing(deployment, trace.take(np.arange(60)), "ttft_p99=1ms"))
    with pytest.raises(TokonomicsError):
        lora(deployment, 8, 1000)


def test_prompts_shared_within_a_tenant_make_the_pool_cheaper_to_fill(deployment: Deployment) -> None:
    """Conversations: the cache works in the pool as well, so the search may begin at one replica."""
    trace = generate(
        parse_arrivals("poisson:3"), parse_lengths("const:400", "input"), parse_lengths("const:100", "output"),
        requests=1500, sessions=parse_sessions("5,think=5"), tenants=parse_tenants("3"),
    )  # fmt: skip
    shared = sharing(deployment, trace)
    made = pool(shared)
    without = pool(replace(shared, trace=replace(trace, prefix=None)))
    assert sum(row.usage_replicas for row in made.tenants) < sum(row.usage_replicas for row in without.tenants)
    noisy_neighbour(shared, made)


def test_c24_fifty_adapters_on_one_70b_base() -> None:
    base = on("llama-2-70b", "A100-80GB", tp=4, lora_rank=16,
                  lora_adapters=50)  # fmt: skip
    found = lora(base, 32, 1024)
    # Llama 2 70B: 80 layers of q and o 8192 → 8192, k and v 8192 → 1024, gate, up and down 8192 ↔ 28672. Split over
    # four, each GPU holds the whole width of one side of every product.
    whole = 80 * 16 * 2 * (2 * (8192 + 8192) + 2 * (8192 + 1024) + 3 * (8192 + 28672))
    assert whole == pytest.approx(414e6, rel=0.01)
    assert whole <= found.bytes_each <= 4 * whole
    assert 50 * 100e6 / found.kv_bytes_without < 0.035  # 5 GB hardly matter
    slower = [step.slower for step in found.steps]
    assert slower == sorted(slower)
    assert slower[-1] > 0.03  # more than its 1 to 3 %
    fits = found.most_adapters
    assert fits >= 50
    assert lora(base.model_copy(update={"lora_adapters": fits}), 32, 1024).sequences >= 32
    assert lora(base.model_copy(update={"lora_adapters": fits + 1}), 32, 1024).sequences < 32


def test_a_batch_mixes_as_many_adapters_as_dice_show_faces() -> None:
    """Six equal adapters, a batch of ten: the faces seen in ten throws, 6 × (1 − (5/6)^10) = 5.03."""
    assert distinct_adapters([1 / 6] * 6, 10) == pytest.approx(5.031, abs=1e-3)
    rng = np.random.default_rng(0)
    thrown = rng.choice(4, p=[0.7, 0.1, 0.1, 0.1], size=(20_000, 5))
    seen = np.mean([len(set(each)) for each in thrown.tolist()])
    assert distinct_adapters([0.7, 0.1, 0.1, 0.1], 5) == pytest.approx(seen, rel=0.01)


def test_adapters_that_nobody_uses_need_a_replica_each_when_apart(deployment: Deployment) -> None:
    trace = requests("poisson:10", "3")
    with_adapters = deployment.model_copy(update={"lora_rank": 16, "lora_adapters": 50})
    shared = replace(sharing(deployment, trace), shared=with_adapters)
    made = pool(shared)
    lever = lora_lever(shared, made)
    assert lever.bill.before.usd == pytest.approx((made.apart.replicas + 47) * USD)
    assert lever.bill.after.usd == made.bill.after.usd


@pytest.mark.slow
def test_c25_pooling_depends_on_when_the_peaks_fall() -> None:
    """As published: 10 tenants at 40 % pool to 85-90 %, twice as cheap. Only where the days are spread."""
    trace = generate(
        parse_arrivals("diurnal:1.2,peak=2"), parse_lengths("const:500", "input"),
        parse_lengths("const:100", "output"), duration_s=86_400, tenants=parse_tenants("10,skew=0"),
    ).faster(12)  # fmt: skip
    small = on(gpu="L4")
    made = pool(sharing(small, trace, "ttft_p99=2,tpot_p99=200ms"))
    same, spread = made.together, made.what_if[-1]
    assert made.apart.load_share == pytest.approx(0.4, abs=0.05)
    assert made.apart.replicas / same.replicas < 1.5
    assert (same.load_share or 1) < 0.6
    assert (same.correlation or 0) > 0.9
    assert made.apart.replicas / spread.replicas >= 2
    assert (spread.load_share or 0) > 0.85
    assert (spread.correlation or 1) < 0
    # Whatever the hours, load is conserved: utilisation × replicas is the work, give or take the ends of the trace.
    work = (made.apart.load_share or 0) * made.apart.replicas
    assert (same.load_share or 0) * same.replicas == pytest.approx(work, rel=0.03)
