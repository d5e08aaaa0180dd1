"""How much memory for KV pays: the search against trying everything, and sums worked out by hand."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deployed import on

from tokonomics.errors import BadInput
from tokonomics.levers.memory_sizes import MemoryAnswer, Tried, Worth, sizes_gb, try_sizes, verdict_on
from tokonomics.levers.prefix_cache import PrefixCacheLever, prefix_cache_lever
from tokonomics.money.cache_tiers import DRAM_USD_PER_GB_HOUR, parse_tiers
from tokonomics.physics.steptime import step_model
from tokonomics.questions.levers import CacheResult
from tokonomics.questions.requests.traffic import CacheRequest
from tokonomics.report.cache_view import cache
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace

USD = 3.0
KV = 131_072  # bytes a token of Llama 3.1 8B: 2 × 32 layers × 8 heads × 128 × 2


def in_turn(prompts: int, requests: int, rate: float) -> Trace:
    """Prompts of 16,384 tokens, 2.1 GB of KV each, asked one after the other, again and again."""
    blocks = 32
    ids = np.concatenate([np.arange(blocks) + blocks * (turn % prompts) for turn in range(requests)]).astype(np.int32)
    starts = np.arange(requests + 1, dtype=np.int64) * blocks
    plain = make_trace(np.arange(requests) / rate, [blocks * 512 + 1] * requests, [8] * requests)
    return replace(plain, prefix=PrefixBlocks(ids, starts, 512, blocks * prompts))


@pytest.fixture(scope="module")
def cycle() -> Trace:
    """Sixty-one prompts take 131 GB, twice the room of an H100; three a second are more than two replicas compute."""
    return in_turn(61, 900, 3.0)


def asked(trace: Trace, tiers: str, machine_gb: float = 0.0) -> tuple[PrefixCacheLever, MemoryAnswer]:
    deployment = on()
    made = prefix_cache_lever(
        deployment,
        trace,
        lambda count: USD,
        tiers=parse_tiers(tiers, deployment, auto=True),
        machine_gb=lambda count: machine_gb,
        slos=parse_slos("ttft_p99=20"),
    )
    assert made.memory
    return made, made.memory


def test_sizes_double_from_the_gpus_own_to_the_whole_and_name_what_is_free() -> None:
    assert sizes_gb(60.1, 500.2) == (60, 120, 240, 480, 501)
    assert sizes_gb(60.1, 500.2, 126) == (60, 120, 126, 240, 480, 501)
    assert sizes_gb(60.1, 500.2, 700) == (60, 120, 240, 480, 501)
    assert sizes_gb(60.1, 12.0) == (12,)
    assert sizes_gb(0.2, 3.0) == (1, 2, 3)
    assert sizes_gb(60.1, 0.0) == ()


@settings(deadline=None, max_examples=200)
@given(steps=st.lists(st.integers(0, 4), min_size=1, max_size=9), without=st.integers(0, 4), price=st.floats(0, 2))
def test_the_search_misses_no_cheaper_size(steps: list[int], without: int, price: float) -> None:
    """Larger memories never need more replicas; of all sizes the cheapest is among those that are tried."""
    needs = [1 + rest for rest in itertools.accumulate(reversed(steps))][::-1]
    sizes = [float(2**power) for power in range(len(needs))]
    alone = needs[0] + without

    def bill(replicas: float, size: float) -> float:
        return replicas * (10 + size * price)

    seen = {0.0: 10.0 * alone}

    def at(size: float) -> Tried:
        assert size not in seen
        replicas = needs[sizes.index(size)]
        seen[size] = bill(replicas, size)
        return Tried(replicas, counts=True)

    try_sizes(sizes, Tried(alone, counts=True), at, bill, lambda: min(seen.values()))
    everything = [10.0 * alone, *(bill(replicas, size) for replicas, size in zip(needs, sizes, strict=True))]
    assert min(seen.values()) == min(everything)
    if alone == needs[-1]:
        assert len(seen) <= 2


def test_where_nothing_is_served_without_the_search_goes_on_to_the_smallest_that_is() -> None:
    sizes, seen = [1.0, 2.0, 4.0, 8.0, 16.0], []

    def at(size: float) -> Tried:
        seen.append(size)
        return Tried(2 if size >= 4 else math.inf, counts=size >= 4)

    try_sizes(sizes, Tried(math.inf, counts=False), at, lambda needs, size: needs * size, lambda: math.inf)
    assert {2.0, 4.0, 16.0} <= set(seen)


def test_a_memory_pays_from_the_load_that_frees_a_replica_or_from_the_share_that_is_worth_it() -> None:
    """A quarter of four replicas' time at $3 and $0.12 for each is worth $0.78."""
    cheap, dear, idle = Worth(1e11, 0.2, 0.25, 0.48), Worth(1e12, 0.3, 0.25, 9.0), Worth(1e10, 0.0, 0.0, 0.1)
    made = verdict_on("ssd", [idle, cheap, dear], 4, USD, pays=False)
    assert made.size_bytes == 1e11
    assert made.pays_from_load == pytest.approx(4)
    assert made.pays_from_share is None
    never = verdict_on("ssd", [idle, dear], 4, USD, pays=False)
    assert never.pays_from_load is None
    # $9 is 2.25 a replica: the time freed is worth 0.25 × 5.25, so it would have to be 6.86 times as much.
    assert never.pays_from_share == pytest.approx(0.3 * 9.0 / (0.25 * 5.25))
    kept = verdict_on("ssd", [cheap], 4, USD, pays=True)
    assert (kept.pays, kept.pays_from_load, kept.pays_from_share) == (True, None, None)
    late = verdict_on("ssd", [dear._replace(quicker_from_bytes_per_s=5.2e9)], 4, USD, pays=False)
    assert (never.quicker_from_bytes_per_s, late.quicker_from_bytes_per_s) == (None, 5.2e9)
    nothing = verdict_on("ssd", [idle], 4, USD, pays=False)
    assert (nothing.pays_from_load, nothing.pays_from_share) == (None, None)


@pytest.mark.slow
def test_in_a_cycle_less_than_the_working_set_is_useless_and_all_of_it_pays(cycle: Trace) -> None:
    made, answer = asked(cycle, "dram=auto")
    # Between two uses of a prompt, the 60 others of 32 blocks and one of their own each are touched. It is found in
    # part where its first block still is there, and whole where the last is.
    block = 512 * KV
    assert answer.useless_bytes == (60 * 33 + 1) * block
    assert answer.working_set_bytes == (60 * 33 + 32) * block
    assert answer.gpu_share == pytest.approx(made.gpu_cache_bytes / answer.working_set_bytes)
    for point in answer.sizes:
        whole = point.size_bytes >= answer.working_set_bytes
        assert point.found_share == pytest.approx((900 - 61) * 16_384 / (900 * 16_385) if whole else 0)
    keep = next(row for row in made.rows if row.setting.name == answer.keep)
    base = next(row for row in made.rows if not row.setting.tiers and row.setting.prefix_cache)
    assert keep.bill
    assert base.needs
    assert keep.needs
    assert keep.needs < base.needs
    assert keep.bill.usd == min(row.bill.usd for row in made.rows if row.bill)
    (size,) = (price.tier.size_bytes for price in keep.setting.tiers)
    assert keep.bill.usd == pytest.approx(keep.needs * (USD + size / 1e9 * DRAM_USD_PER_GB_HOUR))
    for point in answer.sizes:
        assert point.usd_per_hour["dram"] == pytest.approx(point.size_bytes / 1e9 * DRAM_USD_PER_GB_HOUR * keep.needs)


@pytest.mark.slow
def test_what_is_kept_follows_its_price(cycle: Trace) -> None:
    """Nothing of it at an absurd price; all of the working set where it is free, as far as it is."""
    dear, answer = asked(cycle, "dram=auto@900")
    assert "dram" not in answer.keep
    assert not answer.verdicts[0].pays
    assert answer.verdicts[0].pays_from_share
    assert all(not row.setting.tiers for row in dear.rows)
    free, answer = asked(cycle, "dram=auto@0")
    keep = next(row for row in free.rows if row.setting.name == answer.keep)
    assert keep.setting.tiers[0].tier.size_bytes >= answer.working_set_bytes
    assert answer.verdicts[0].pays
    assert answer.verdicts[0].usd_per_hour == 0
    assert free.best == answer.keep
    _, machine = asked(cycle, "dram=auto", machine_gb=1e4)
    assert machine.keep == answer.keep
    assert {size.usd_per_hour["dram"] for size in machine.sizes} == {0.0}


def test_a_disk_that_is_read_more_slowly_than_prompts_are_computed_is_said_to_be() -> None:
    """Prompts of 2.1 GB four times in turn, 36 s apart, on a disk that reads them in 4.3 s: no queue, and no gain."""
    _, answer = asked(in_turn(40, 160, 1.1), "ssd=auto:0.5/9@0")
    (verdict,) = answer.verdicts
    chunk = on().limits.max_batched_tokens
    prompt_s = 2 * float(step_model(on()).prefill(chunk, 0))  # in full chunks of half a prompt, each at the start
    assert chunk == 8192
    assert verdict.quicker_from_bytes_per_s
    assert 0.5e9 < verdict.quicker_from_bytes_per_s == pytest.approx(16_384 * KV / prompt_s, rel=0.05)


def test_in_a_closed_loop_a_memory_without_limit_finds_all_that_was_said_before() -> None:
    """On one replica the order in which sessions take turns changes nothing: each turn finds the turns before it."""
    trace = generate(
        parse_arrivals("poisson:0.5"),
        parse_lengths("const:3000", "input"),
        parse_lengths("const:100", "output", least=0),
        requests=120,
        seed=1,
        sessions=parse_sessions("6,think=40,limit=32000"),
    )
    assert trace.turns
    made, answer = asked(trace, "dram=auto@0")
    assert made.rows[0].needs == 1
    # Turn by turn the listed blocks are those of the turn before and new ones: all but a block's first use is found.
    assert trace.prefix
    seen: set[int] = set()
    found = 0
    for request, prompt in enumerate(trace.input_tokens.tolist()):
        ids = trace.prefix.ids[trace.prefix.starts[request] : trace.prefix.starts[request + 1]].tolist()
        whole = ids[: prompt // trace.prefix.block_tokens]
        found += trace.prefix.block_tokens * len(list(itertools.takewhile(seen.__contains__, whole)))
        seen.update(ids)
    asked_tokens = int(trace.input_tokens.sum())
    assert answer.sizes[-1].found_share == pytest.approx(found / asked_tokens)
    assert answer.sizes[-1].size_bytes >= answer.working_set_bytes
    # What the replay says is freed is what the simulation of that size is busy with less.
    base, largest = (next(row for row in made.rows if bool(row.setting.tiers) == has and row.setting.prefix_cache)
                     for has in (False, True))  # fmt: skip
    assert largest.needs == 1
    assert largest.setting.tiers[0].tier.size_bytes >= answer.working_set_bytes
    freed = answer.sizes[-1].freed_replicas["dram"]
    assert freed == pytest.approx(base.prefill_replicas - largest.prefill_replicas, rel=0.1)


def test_a_memory_for_all_is_not_told_as_one_of_each_replica(cycle: Trace) -> None:
    made, answer = asked(cycle, "dram=64@0,remote=300@0,ssd=auto@900")
    both = next(row.setting.name for row in made.rows if len(row.setting.tiers) == 2)
    empty = dict.fromkeys(("templates", "semantic", "semantic_bill", "price_from"))
    for keep, said in (
        (answer.keep, "Keep 300 GB of remote memory for all replicas, no DRAM and no disk behind the GPUs"),
        (both, "Keep 64 GB of DRAM a replica, 300 GB of remote memory for all replicas, no disk behind the GPUs"),
    ):
        lever = made.model_copy(update={"memory": answer.model_copy(update={"keep": keep})})
        result = CacheResult(prefix_cache=lever, text_templates=(), **empty)
        text = cache(result, CacheRequest()).text()
        assert said in text


def test_the_machines_own_memory_comes_first_and_costs_nothing() -> None:
    deployment = on()
    ours, given = parse_tiers("dram=200", deployment)[0], parse_tiers("dram=200@0.01", deployment)[0]
    assert ours.line(3, 126).quantity == 3 * 74
    assert ours.line(3, 300).usd == 0
    assert ours.line(3, 0).usd == pytest.approx(600 * DRAM_USD_PER_GB_HOUR)
    assert given.line(3, 126).usd == pytest.approx(6)
    assert parse_tiers("ssd=200", deployment)[0].line(3, 126).quantity == 600


def test_auto_asks_for_sizes_where_they_can_be_found() -> None:
    deployment = on()
    both = parse_tiers("auto", deployment, auto=True)
    assert [(price.tier.name, price.is_sized) for price in both] == [("dram", False), ("ssd", False)]
    named, found = parse_tiers("dram=64,ssd=auto@0.5", deployment, auto=True)
    assert (named.is_sized, found.is_sized, found.usd_per_gb_hour) == (True, False, 0.5)
    sized = found.sized(10)
    assert (sized.is_sized, sized.tier.size_bytes, sized.tier.bytes_per_s) == (True, 1e10, found.tier.bytes_per_s)
    for text, auto in (("auto", False), ("dram=auto", False), ("remote=auto", True)):
        with pytest.raises(BadInput) as refused:
            parse_tiers(text, deployment, auto=auto)
        assert refused.value.field == "tiers"
