"""Prefix caching and the memories behind the GPU: laws that hold on any trace, and figures worked out by hand."""

import gzip
import json
import statistics
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deployed import on
from tests.traffic.test_prefix_reuse import blocks_of, chains

from tokonomics.catalog.offers import load_offers
from tokonomics.errors import BadInput
from tokonomics.levers.prefix_cache import hits_by_size, hits_by_ttl, prefix_cache_lever
from tokonomics.money.cache_tiers import DRAM_PRICE_DATE, DRAM_USD_PER_GB_HOUR, break_even, parse_tiers
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import Fetches
from tokonomics.serving.tiers import (
    Tier,
    break_even_position,
    compute_s,
    fetch_s,
    gpu_cache_bytes,
    kv_bytes_per_token,
    plan_fetches,
)
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.prefix_reuse import found_by_size, reuse_within
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace, make_trace

USD = 3.0


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return on()


def sent_at_their_times(*how: Any, requests: int, **more: Any) -> Trace:
    """Made-up conversations as an open loop, cut where they still come as often as they go.

    What a cache saves then does not change when requests come.
    """
    whole = generate(*how, requests=5 * requests, **more)
    return replace(whole, turns=None).take(np.arange(requests))


def conversing(requests: int, sessions: str) -> Trace:
    """Four conversations a second, each turn of 3,000 tokens, answered in 100."""
    return sent_at_their_times(
        parse_arrivals("poisson:4"),
        parse_lengths("const:3000", "input"),
        parse_lengths("const:100", "output", least=0),
        requests=requests,
        seed=1,
        sessions=parse_sessions(sessions),
    )


@pytest.fixture(scope="module")
def conversations() -> Trace:
    """Long conversations whose KV does not fit the GPU."""
    return conversing(1500, "6,think=40,limit=32000")


@pytest.fixture(scope="module")
def crowded() -> Trace:
    """Short conversations, close together: a cache needs so many fewer replicas that those it needs are fuller."""
    return conversing(600, "4,think=5,limit=32000").faster(2.6)


@settings(deadline=None, max_examples=60)
@given(
    lists=chains(),
    gaps=st.lists(st.integers(0, 9), min_size=31, max_size=31),
    small=st.integers(0, 30),
    more=st.integers(0, 30),
    ttl=st.integers(1, 30),
    longer=st.integers(0, 30),
)
def test_a_larger_cache_or_a_longer_time_never_finds_less_and_never_more_than_was_asked(
    lists: list[list[int]], gaps: list[int], small: int, more: int, ttl: int, longer: int
) -> None:
    prompts = np.array([max(1, len(ids) * 4) for ids in lists], np.int32)
    arrival_s = np.cumsum(gaps[: len(lists)]).astype(np.float64)
    blocks = blocks_of(lists, 4)

    def found(capacity: int | None, ttl_s: float | None) -> np.ndarray:
        return reuse_within(blocks, prompts, arrival_s, capacity, ttl_s)[0]

    least = found(small, ttl)
    for other in (found(small + more, ttl), found(small, ttl + longer), found(small, None), found(None, ttl)):
        assert (other >= least).all()
        assert (other <= prompts).all()


def test_a_time_to_live_counts_from_the_last_use() -> None:
    blocks = blocks_of([[0], [0], [0]], 4)
    prompts = np.array([4, 4, 4], np.int32)
    hits, held, unwritten = reuse_within(blocks, prompts, np.array([0.0, 8.0, 16.0]), None, 10.0)
    assert unwritten == 0
    assert hits.tolist() == [0, 4, 4]
    assert held == 1
    assert reuse_within(blocks, prompts, np.array([0.0, 11.0, 16.0]), None, 10.0)[0].tolist() == [0, 0, 4]


def test_the_curves_rise(conversations: Trace, deployment: Deployment) -> None:
    assert conversations.prefix
    one = found_by_size((conversations.prefix, conversations.input_tokens))
    sizes = [each.share for each in hits_by_size(one, 131_072)]
    ttls = [each.share for each in hits_by_ttl(conversations, 131_072, (10.0, 60.0, 300.0))]
    assert sizes == sorted(sizes)
    assert ttls == sorted(ttls)
    assert sizes[-1] == pytest.approx(ttls[-1])


def test_where_fetching_begins_to_win_both_sides_say_so(deployment: Deployment) -> None:
    kv = deployment.model.kv_bytes_per_token(deployment.kv)
    assert kv == 2 * 32 * 8 * 128 * 2
    chunk = deployment.limits.max_batched_tokens
    middle_s = float(step_model(deployment).prefill(chunk, 40_000)) * 16 / chunk
    tier = Tier(name="made for it", size_bytes=1e12, bytes_per_s=16 * kv / middle_s)
    position = break_even_position(deployment, tier)
    assert position is not None
    assert abs(position - 40_000) <= 40
    takes = float(fetch_s(deployment, tier, 16))
    assert takes == pytest.approx(middle_s)
    assert float(compute_s(deployment, 16, position)) > takes >= float(compute_s(deployment, 16, position - 1))


def test_a_fast_tier_wins_everywhere_and_a_slow_one_nowhere(deployment: Deployment) -> None:
    fast, slow = (Tier(name="t", size_bytes=1e12, bytes_per_s=speed) for speed in (1e14, 1e6))
    assert break_even_position(deployment, fast) == 0
    assert break_even_position(deployment, slow) is None


def test_a_block_pays_for_its_place_as_long_as_its_time_is_worth_more(deployment: Deployment) -> None:
    price = parse_tiers("dram=100@0.003", deployment)[0]
    made = break_even(deployment, price, USD)
    gigabytes = 16 * 131_072 / 1e9
    assert made.pays_within_s is not None
    assert made.compute_first_s * USD == pytest.approx(gigabytes * 0.003 * made.pays_within_s)
    assert break_even(deployment, parse_tiers("dram=100@0", deployment)[0], USD).pays_within_s is None


def test_where_computing_is_quicker_a_block_never_pays_whatever_its_place_costs() -> None:
    """The 1B model computes sixteen tokens in less time than a disk takes to bring their 524 KB."""
    small = on("llama-3.2-1b", "H100")
    for text in ("ssd=1000", "ssd=1000@0"):
        made = break_even(small, parse_tiers(text, small)[0], USD)
        assert made.fetch_s == pytest.approx(16 * 2 * 16 * 8 * 64 * 2 / 6.9e9)
        assert made.fetch_s > made.compute_first_s
        assert made.position
        assert made.pays_within_s == 0


def test_every_rank_fetches_its_copy_of_what_is_not_split() -> None:
    """MLA's 576 numbers a layer go to all eight ranks; four KV heads on eight ranks lie twice."""
    tier = Tier(name="t", size_bytes=1e12, bytes_per_s=1e9)
    latent = on("deepseek-v3", "H200", tp=8)
    token = 61 * 576 * 2
    assert token == 70_272 == kv_bytes_per_token(latent)
    assert float(fetch_s(latent, tier, 1)) == pytest.approx(token / 1e9)
    assert gpu_cache_bytes(latent) == pytest.approx(kv_budget_bytes(latent), rel=1e-6)
    grouped = on("qwen3-30b-a3b", "H100", tp=8)
    token = 48 * 2 * 4 * 128 * 2
    assert float(fetch_s(grouped, tier, 1)) == pytest.approx(token / 4 / 1e9)
    assert gpu_cache_bytes(grouped) == pytest.approx(kv_budget_bytes(grouped) * 4, rel=1e-6)
    split = on(tp=2)
    assert float(fetch_s(split, tier, 1)) == pytest.approx(131_072 / 2 / 1e9)
    assert gpu_cache_bytes(split) == pytest.approx(kv_budget_bytes(split) * 2, rel=1e-6)


def test_the_prices_of_memories_have_a_date_and_old_ones_a_mark(deployment: Deployment) -> None:
    fresh, later = DRAM_PRICE_DATE + timedelta(90), DRAM_PRICE_DATE + timedelta(91)
    marks = {
        (text, on): parse_tiers(text, deployment, on=on)[0].price_stale
        for text in ("dram=1", "remote=1", "ssd=1", "ssd=1@0.1", "dram=1@0")
        for on in (fresh, later)
    }
    assert [text for (text, on), old in marks.items() if old and on == fresh] == ["ssd=1"]
    assert [text for (text, on), old in marks.items() if old and on == later] == ["dram=1", "remote=1", "ssd=1"]
    assert parse_tiers("dram=1", deployment)[0].price_date == DRAM_PRICE_DATE
    assert parse_tiers("dram=1@0", deployment)[0].price_date is None


def test_the_price_of_memory_is_what_two_machines_differ_in() -> None:
    usd = {
        offer.instance: offer
        for offer in load_offers()
        if offer.region == "us-east-1" and offer.instance in ("g6.4xlarge", "gr6.4xlarge")
    }
    plain, large = usd["g6.4xlarge"], usd["gr6.4xlarge"]
    assert (plain.vcpus, plain.gpus, plain.gpu) == (large.vcpus, large.gpus, large.gpu)
    gib = (large.memory_gb or 0) - (plain.memory_gb or 0)
    assert (large.usd_per_hour or 0) - (plain.usd_per_hour or 0) == pytest.approx(
        DRAM_USD_PER_GB_HOUR * gib * 1.073741824
    )


def test_tiers_find_more_and_cost_no_latency(deployment: Deployment, conversations: Trace) -> None:
    plain, _ = serve(Setup(deployment, load_of_requests(conversations)), 1)
    tiers = parse_tiers("dram=400", deployment)
    with_tier, hits = serve(Setup(deployment, load_of_requests(conversations), tiers=tiers), 1)
    before, after = outcome(plain), outcome(with_tier)
    assert hits[0].tokens > 0
    assert hits[0].unwritten_tokens == 0
    assert before.cached_tokens < after.cached_tokens <= after.input_tokens
    assert (with_tier.served.cached_tokens <= conversations.input_tokens).all()
    assert after.completed == before.completed
    assert (after.ttft_s.mean or 0) <= (before.ttft_s.mean or 0)
    assert after.shares.prefill * after.replica_hours < before.shares.prefill * before.replica_hours


def test_fetches_of_one_link_follow_each_other(deployment: Deployment, conversations: Trace) -> None:
    plain, _ = serve(Setup(deployment, load_of_requests(conversations)), 1)
    tier = parse_tiers("dram=400", deployment)[0].tier
    fetches, hits = plan_fetches(plain, (tier,))
    gains = np.maximum(fetches.tokens.astype(np.int64) - plain.served.cached_tokens, 0)
    takes = gains * 131_072 / tier.bytes_per_s
    free_s = 0.0
    for arrival_s, take_s, delay_s in zip(conversations.arrival_s, takes, fetches.delay_s, strict=True):
        if take_s > 0:
            free_s = max(free_s, arrival_s) + take_s
            assert arrival_s + delay_s == pytest.approx(free_s)
        else:
            assert delay_s == 0
    assert hits[0].busy_s == pytest.approx(float(takes.sum()))


def test_a_tier_is_fetched_from_even_where_computing_is_quicker(deployment: Deployment, conversations: Trace) -> None:
    """An engine does not ask what a fetch costs: slow or fast, it takes what is there."""
    plain, _ = serve(Setup(deployment, load_of_requests(conversations)), 1)
    fast, slow = (Tier(name="t", size_bytes=4e11, bytes_per_s=speed) for speed in (36e9, 0.9e9))
    (_, (quick,)), (fetches, (late,)) = (plan_fetches(plain, (tier,)) for tier in (fast, slow))
    assert quick.quicker_from_bytes_per_s is None
    assert quick.tokens == late.tokens > 0
    assert late.busy_s == pytest.approx(40 * quick.busy_s) == pytest.approx(late.tokens * 131_072 / 0.9e9)
    at = plain.served.cached_tokens.astype(np.int64)
    at = np.minimum(at, (conversations.input_tokens.astype(np.int64) - 1) // 16 * 16)
    gains = fetches.tokens - at
    chunk = deployment.limits.max_batched_tokens
    computing = sum(
        float(step_model(deployment).prefill(chunk, int(past))) * gain / chunk
        for past, gain in zip(at.tolist(), gains.tolist(), strict=True)
        if gain
    )
    assert late.compute_s == pytest.approx(computing)
    assert late.busy_s > computing
    assert late.quicker_from_bytes_per_s == pytest.approx(late.tokens * 131_072 / computing)


def test_a_tier_behind_host_memory_is_looked_up_for_a_step_and_written_in_time_or_never(
    deployment: Deployment, conversations: Trace
) -> None:
    plain, _ = serve(Setup(deployment, load_of_requests(conversations)), 1)
    host, disk = parse_tiers("dram=20,ssd=2000:6/30", deployment)
    _, (_, keeps_up) = plan_fetches(plain, (host.tier, disk.tier))
    slow = disk.at(6, 0.05).tier
    fetches, (first, lags) = plan_fetches(plain, (host.tier, slow))
    assert first.unwritten_tokens == keeps_up.unwritten_tokens == 0
    assert 0 < lags.unwritten_tokens < conversations.input_tokens.sum()
    assert lags.tokens < keeps_up.tokens
    step_s = plain.replicas["busy_s"].sum() / plain.replicas["steps"].sum()
    assert fetches.delay_s.min() == pytest.approx(step_s)


def test_the_speed_of_host_memory_is_what_a_server_reached(deployment: Deployment) -> None:
    file = Path(__file__).parents[2] / "benchmarks" / "data" / "vllm_h200_levers.json.gz"
    measured = json.loads(gzip.decompress(file.read_bytes()))["measured"]
    speeds = [
        load["loaded bytes/s"] for name, load in measured.items() if name[:4] == "dram" and "loaded bytes/s" in load
    ]
    assert len(speeds) == 10
    assert on("llama-3.1-8b", "H200").gpu.pcie_bytes_per_s == 64e9
    speed = parse_tiers("dram=1", on("llama-3.1-8b", "H200"))[0].tier.bytes_per_s
    assert speed == pytest.approx(statistics.median(speeds), rel=1e-3)


def test_speeds_that_the_user_knows_count(deployment: Deployment) -> None:
    tiers = {text: parse_tiers(text, deployment)[0] for text in ("ssd=9", "ssd=9:2.7", "ssd=9:2.7/1.6@0", "dram=9:24")}
    ssd, same, both, dram = tiers.values()
    assert (ssd.tier.bytes_per_s, ssd.tier.write_bytes_per_s) == (6.9e9, 3.5e9)
    assert (same.tier.bytes_per_s, same.tier.write_bytes_per_s) == (2.7e9, 2.7e9)
    assert (both.tier.bytes_per_s, both.tier.write_bytes_per_s, both.usd_per_gb_hour) == (2.7e9, 1.6e9, 0)
    assert (dram.tier.bytes_per_s, dram.tier.write_bytes_per_s) == (24e9, None)
    assert both.speed_from == "as given"
    assert both.tier.size_bytes == 9e9


def test_fetching_nothing_changes_nothing(deployment: Deployment, conversations: Trace) -> None:
    plain, _ = serve(Setup(deployment, load_of_requests(conversations), router=Router.least_outstanding), 2)
    nothing = Fetches(np.zeros(len(conversations), np.int32), np.zeros(len(conversations)))
    again = simulate(deployment, conversations, FleetSettings(replicas=2), fetches=nothing)
    for name, column in plain.served._asdict().items():
        np.testing.assert_array_equal(column, getattr(again.served, name), err_msg=name)


def test_a_delay_counts_from_the_arrival(deployment: Deployment) -> None:
    """Two alone on the replica; the first waits a second for its KV, so the second one overtakes it."""
    trace = make_trace([0.0, 0.5], [4096, 64], [2, 2])
    late = Fetches(np.array([4064, 0], np.int32), np.array([1.0, 0.0]))
    served = simulate(deployment, trace, fetches=late).served
    alone = simulate(deployment, trace).served
    assert served.cached_tokens.tolist() == [4064, 0]
    # The engine has it when its front end has tokenised it, too.
    host = overhead(deployment.engine)
    begins_s = 1.0 + host.request_s + 4096 * host.token_s + host.reach_s
    assert served.first_token_s[1] < served.start_s[0] == pytest.approx(begins_s)
    assert served.first_token_s[0] - 1.0 < alone.first_token_s[0]


@pytest.mark.slow
def test_more_hits_are_never_dearer_and_the_cheapest_mix_is_found(deployment: Deployment, conversations: Trace) -> None:
    """None, the GPU's, behind a router; then dram, ssd, and both: each with all of another finds no less."""
    for tiers, slo in (("dram=200@0,ssd=2000@0", ""), ("dram=200@9,ssd=2000@0", "ttft_p99=60")):
        made = prefix_cache_lever(
            deployment,
            conversations.faster(3),
            lambda count: USD,
            tiers=parse_tiers(tiers, deployment),
            slos=parse_slos(slo) if slo else (),
        )
        found, bills = [row.cached_share for row in made.rows], [row.bill.usd for row in made.rows if row.bill]
        assert found[0] == 0 < found[1]
        assert len(bills) == len(found) == 6
        for less, more in ((0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)):
            # Which prompts meet in a cache depends on when steps end: by some thousandths.
            assert found[less] <= found[more] * 1.003
            assert slo or bills[less] >= bills[more]
        assert made.bill
        assert made.bill.saved_usd + made.bill.after.usd == pytest.approx(made.bill.before.usd)
        assert bills[0] == pytest.approx(made.rows[0].needs * USD)  # type: ignore[operator]
    mixes = [tuple(price.tier.name for price in row.setting.tiers) for row in made.rows]
    assert mixes[-3:] == [("dram",), ("ssd",), ("dram", "ssd")]
    best = next(row for row in made.rows if row.setting.name == made.best)
    assert "dram" not in [price.tier.name for price in best.setting.tiers]
    assert best.bill
    assert best.bill.usd == min(bills)


def test_a_slo_that_no_replicas_meet_says_in_a_table_why(deployment: Deployment, conversations: Trace) -> None:
    few = conversations.take(np.arange(200))
    made = prefix_cache_lever(deployment, few, lambda count: USD, slos=parse_slos("ttft_p99=0.001"))
    assert made.best is None
    assert made.bill is None
    for row in made.rows:
        assert (row.needs, row.bill) == (None, None)
        assert row.breaks
        assert row.ttft_s.p99
        assert row.ttft_s.p99 > 0.001


def test_at_the_same_bill_the_setting_of_fewest_parts_wins(deployment: Deployment, conversations: Trace) -> None:
    """Both take as many replicas here; in the median, the router's first tokens come sooner."""
    made = prefix_cache_lever(deployment, conversations, lambda count: USD)
    rows = {row.setting.name: row for row in made.rows}
    cached, routed = rows["GPU cache"], rows["GPU cache, prefix-aware router"]
    assert cached.bill
    assert routed.bill
    assert cached.bill.usd == routed.bill.usd
    assert (cached.ttft_s.p50 or 0) > (routed.ttft_s.p50 or 0)
    assert made.best == "GPU cache"


def test_a_trace_without_blocks_is_refused(deployment: Deployment) -> None:
    plain = generate(
        parse_arrivals("poisson:1"), parse_lengths("const:10", "input"), parse_lengths("const:10", "output"), requests=5
    )
    with pytest.raises(BadInput):
        prefix_cache_lever(deployment, plain, lambda count: USD)


@pytest.mark.parametrize(
    "text",
    [
        "dram",
        "dram=0",
        "dram=x",
        "dram=1,dram=2",
        "dram=1@-1",
        "drm=4",
        "dram=nan",
        "ssd=1:",
        "ssd=1:0",
        "ssd=1:2/0",
        "ssd=1:x",
        "dram=1:2/3",
    ],
)
def test_tiers_that_are_none_are_refused(text: str, deployment: Deployment) -> None:
    with pytest.raises(BadInput) as refused:
        parse_tiers(text, deployment)
    assert refused.value.field == "tiers"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ssd=0:2", "is no size above 0"),
        ("ssd=2000:0", "gives no speed in GB/s"),
        ("ssd=2000:3/x", "gives no speed in GB/s"),
        ("dram=200:30/20", "gives two speeds: host memory has one, of reading"),
        ("ssd=2000:3@-1", "gives no price in $/GB-hour"),
    ],
)
def test_what_is_wrong_with_a_tier_is_named(text: str, said: str, deployment: Deployment) -> None:
    with pytest.raises(BadInput) as refused:
        parse_tiers(text, deployment)
    assert refused.value.what == f"'{text}' {said}"


def test_a_row_has_the_latency_of_its_fleet_and_slower_is_no_saving(deployment: Deployment, crowded: Trace) -> None:
    made = prefix_cache_lever(deployment, crowded, lambda count: USD)
    for row in made.rows:
        assert row.needs
        fleet = FleetSettings(replicas=row.needs, router=row.setting.router)
        cache = row.setting.prefix_cache
        direct = outcome(simulate(deployment, crowded, fleet, prefix_cache=cache, max_sequences=row.max_sequences))
        assert row.replicas == row.needs
        assert row.ttft_s == direct.ttft_s
    assert made.bill
    plain, cheapest = made.rows[0], min(made.rows, key=lambda row: row.bill.usd if row.bill else np.inf)
    assert plain.needs
    assert cheapest.needs
    assert cheapest.bill
    ttft, tpot, e2e = (getattr(cheapest, name).p99 / getattr(plain, name).p99 for name in ("ttft_s", "tpot_s", "e2e_s"))
    assert cheapest.needs < plain.needs
    # Its prompts are shorter and come sooner, but its replicas are fuller: their tokens come later.
    assert ttft < 1 < tpot
    assert made.bill.after.usd > cheapest.bill.usd
    assert made.slower
    found = made.slower
    assert (found.ttft_times, found.tpot_times, found.e2e_times) == pytest.approx((ttft, tpot, e2e))
    best = next(row for row in made.rows if row.setting.name == made.best)
    assert best is not cheapest
    for late, now in ((best.ttft_s, plain.ttft_s), (best.tpot_s, plain.tpot_s), (best.e2e_s, plain.e2e_s)):
        assert late.p99 <= now.p99 * (1 + 1e-9)  # type: ignore[operator]
    targeted = prefix_cache_lever(deployment, crowded, lambda count: USD, slos=parse_slos("ttft_p99=60"))
    assert targeted.slower is None
    assert targeted.bill
    assert targeted.bill.after.usd == min(row.bill.usd for row in targeted.rows if row.bill)
