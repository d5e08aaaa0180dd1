"""What a deployment does with a trace: the edges of its input, its prefix cache, its fleets, and its repeatability."""

import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from tests.deployed import on
from tests.physics.hosts import hostless, lone
from tests.serving.small_worlds import KV_BYTES_PER_TOKEN, ROOMY, asked, poisson
from tests.there import there

from tokonomics.errors import BadInput, DoesNotFit
from tokonomics.physics.memory import kv_budget_bytes
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import step_model
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Outage, Router
from tokonomics.serving.loop import Watcher, run
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import rules_for, simulate
from tokonomics.serving.state import DONE, REFUSED, TIMED_OUT, UNSERVED
from tokonomics.serving.step_table import compile_steps
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace

# Edges of the input


def test_a_request_without_an_answer_ends_with_its_prompt() -> None:
    served = simulate(on(), make_trace([0.0, 100.0], [1000, 1000], [0, 1])).served
    assert served.status.tolist() == [DONE, DONE]
    assert served.finish_s - [0, 100] == pytest.approx([served.first_token_s[0]] * 2)
    assert served.finish_s[0] == pytest.approx(lone(on(), layers=32, tokens=1000, answer=1).heard_s, rel=0.01)


def test_a_prompt_of_one_token_takes_a_step_of_one_token() -> None:
    served = simulate(on(), make_trace([0.0], [1], [3])).served
    steps = step_model(on())
    answer = float(steps.decode(1, 2) + steps.decode(1, 3))
    expected = lone(on(), layers=32, tokens=1).done_s + answer + overhead(on().engine).answer_s
    assert served.finish_s[0] == pytest.approx(expected, rel=0.01)


def test_a_request_longer_than_the_context_is_refused_and_the_others_are_served() -> None:
    limit = on().model.max_context
    simulation = simulate(on(), make_trace([0, 1, 2, 3], [limit - 10, limit - 9, limit + 1, 10], [10, 10, 0, 10]))
    assert simulation.served.status.tolist() == [DONE, REFUSED, REFUSED, DONE]
    made = outcome(simulation)
    assert (made.completed, made.failed, made.refused) == (2, 2, 2)


def test_a_prompt_longer_than_the_memory_is_refused_and_counted_as_failed() -> None:
    tight = on(gpu="L4")  # 24 GB, of which the weights take 16
    tokens = kv_budget_bytes(tight) // (16 * KV_BYTES_PER_TOKEN) * 16
    assert 1000 < tokens < tight.model.max_context
    # The KV of the last token of an answer is never computed, so it needs no room.
    simulation = simulate(tight, make_trace([0, 1, 2], [tokens, tokens - 10, tokens - 10], [1, 11, 12]))
    assert simulation.rules.kv_blocks * 16 == tokens
    assert simulation.served.status.tolist() == [DONE, DONE, REFUSED]
    assert outcome(simulation).failed == 1
    assert simulation.replicas["kv_peak"][0] == simulation.rules.kv_blocks


def test_a_model_that_does_not_fit_and_an_empty_trace_are_errors() -> None:
    with pytest.raises(DoesNotFit):
        simulate(on("llama-3.1-70b"), make_trace([0], [10], [10]))
    with pytest.raises(BadInput, match="no request"):
        simulate(on(), make_trace([], [], []))


def test_requests_in_any_order_are_served_in_order_of_arrival() -> None:
    shuffled = simulate(on(), make_trace([9.0, 1.0, 5.0], [300, 100, 200], [3, 1, 2]))
    sorted_ = simulate(on(), make_trace([0.0, 4.0, 8.0], [100, 200, 300], [1, 2, 3]))
    assert shuffled.trace.input_tokens.tolist() == [100, 200, 300]
    assert shuffled.served.finish_s == pytest.approx(sorted_.served.finish_s)


def test_requests_that_arrive_together_share_a_step() -> None:
    # Of its front end only the way is known, on which requests do not wait for each other: none is before the others.
    deployment = on(engine="tensorrt-llm")
    served = simulate(deployment, make_trace([0.0] * 3, [100] * 3, [2] * 3)).served
    there_s = overhead(deployment.engine).reach_s
    assert served.start_s == pytest.approx([there_s] * 3)
    assert len(set(served.first_token_s)) == len(set(served.finish_s)) == 1
    computed_s = float(step_model(deployment).prefill(300, 0, 3))
    assert served.first_token_s[0] == pytest.approx(there_s + computed_s, rel=0.01)


def test_requests_that_arrive_together_reach_vllm_one_before_the_others() -> None:
    served = simulate(on(), make_trace([0.0] * 3, [100] * 3, [2] * 3)).served
    host, first = overhead(on().engine), lone(on(), layers=32, tokens=100)
    # The others are handed on together while the first is being launched: they share the step after its own.
    handed_on_s = host.request_s + 100 * host.token_s + 2 * host.request_s + 100 * host.token_s + host.reach_s
    assert first.begun_s < handed_on_s < first.done_s
    assert served.start_s == pytest.approx([first.begun_s, first.done_s, first.done_s], rel=0.01)
    launched_s = first.done_s + host.step_s + 32 * host.piece_s + 3 * host.sequence_s
    done_s = max(first.done_s + float(hostless(on()).step(200, 0, 1, 101, 2)), launched_s)
    # The first has its two tokens; the others' client hears of theirs when their next step has been launched.
    assert served.first_token_s[0] == pytest.approx(max(first.done_s, launched_s) + host.answer_s, rel=0.01)
    told_s = max(done_s, launched_s + host.step_s + 2 * host.sequence_s)
    assert served.first_token_s[1:] == pytest.approx([told_s + host.answer_s] * 2, rel=0.01)
    assert served.finish_s[0] == pytest.approx(told_s + host.answer_s, rel=0.01)
    last_s = done_s + float(step_model(on()).decode(2, 101))
    assert served.finish_s[1:] == pytest.approx([last_s + host.answer_s] * 2, rel=0.01)


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_so_many_requests_at_once_are_all_served(count: int) -> None:
    simulation = simulate(on(), make_trace(np.zeros(count), np.full(count, 200), np.full(count, 20)))
    served, rules = simulation.served, simulation.rules
    assert (served.status == DONE).all()
    assert (np.diff(served.start_s) >= 0).all(), "first come, first served"
    assert simulation.replicas["answer_tokens"].sum() == count * 19 - served.preemptions.sum()
    # The first comes to the engine by itself; the others when the front end has looked at 256 of them.
    host = overhead(on().engine)
    first_s = host.request_s + 200 * host.token_s + host.reach_s
    others_s = first_s + 256 * host.request_s + 200 * host.token_s
    assert served.start_s[:2] == pytest.approx([first_s, others_s])
    # It looks at one after the other: the last waits for all.
    batches = 1 + math.ceil((count - 1) / 256)
    assert simulation.end_s > count * host.request_s + batches * 200 * host.token_s + host.reach_s
    assert simulation.replicas["busy_s"][0] <= simulation.end_s
    assert simulation.replicas["kv_peak"][0] <= rules.kv_blocks


def test_a_fleet_that_fails_for_good_leaves_requests_unserved() -> None:
    fleet = FleetSettings(outages=(Outage(replica=0, at_s=5.0, reclaimed=True),))
    simulation = simulate(on(), make_trace([0.0, 4.999, 6.0], [100] * 3, [10] * 3), fleet)
    assert simulation.served.status.tolist() == [DONE, UNSERVED, UNSERVED]
    assert simulation.served.restarts.tolist() == [0, 1, 0]
    made = outcome(simulation)
    assert (made.completed, made.unserved, made.failed) == (1, 2, 2)
    assert simulation.paid_s.tolist() == [5.0], "a machine that was taken back is not paid for"


def test_a_replica_that_comes_back_serves_what_waited() -> None:
    outage = Outage(replica=0, at_s=5.0, down_s=20.0)
    requests = make_trace([0.0, 10.0], [100, 100], [10, 10])
    simulation = simulate(on(), requests, FleetSettings(outages=(outage,)))
    begun_s = lone(on(), layers=32, tokens=100).begun_s  # its front end comes back with it
    assert simulation.served.start_s == pytest.approx([begun_s, 25.0 + begun_s])
    assert simulation.paid_s[0] == pytest.approx(simulation.end_s), "a machine that failed is paid for"
    spot = FleetSettings(outages=(outage.model_copy(update={"reclaimed": True}),))
    assert simulate(on(), requests, spot).paid_s[0] == pytest.approx(simulation.end_s - 20)


def test_what_a_preempted_request_had_written_is_lost_with_its_replica_too() -> None:
    # Two answers of 20 tokens outgrow 32 tokens of memory: the second waits, half written, when the replica fails.
    requests = asked(np.zeros(2), [8, 8], [20, 20], unit_tokens=4)
    rules = ROOMY._replace(max_sequences=4, block_tokens=4, kv_blocks=8, max_context=100)
    table = compile_steps(step_model(on()), 4, 64, 100)
    undisturbed, world = run(requests, table, rules, FleetSettings())
    assert undisturbed.preemptions.tolist() == [0, 1]
    # Its first token, and that of the prompt computed again, come from prompts.
    assert world.replicas["answer_tokens"][0] == 2 * 19 - 1
    down_s = 0.95 * float(undisturbed.finish_s[0])
    outage = Outage(replica=0, at_s=down_s, down_s=100.0 - down_s)
    failing, world = run(requests, table, rules, FleetSettings(outages=(outage,)))
    assert failing.restarts.tolist() == [1, 1]
    (replica,) = world.replicas
    assert failing.preemptions.tolist() == [0, 2]
    assert replica["answer_lost"] > 19, "what the second had written is more than nothing"
    assert replica["answer_tokens"] == 2 * 19 - 1 + replica["answer_lost"]


def test_with_an_early_notice_a_replica_finishes_what_it_has() -> None:
    trace = make_trace([0.0, 4.0], [100, 100], [100, 100])
    sudden = FleetSettings(replicas=2, router=Router.round_robin, outages=(Outage(replica=1, at_s=4.1, notice_s=0),))
    warned = FleetSettings(replicas=2, router=Router.round_robin, outages=(Outage(replica=1, at_s=4.1, notice_s=1),))
    assert simulate(on(), trace, sudden).served.restarts.tolist() == [0, 1]
    assert simulate(on(), trace, warned).served.restarts.tolist() == [0, 0]


def test_outages_that_cannot_be_are_errors() -> None:
    trace = make_trace([0.0], [10], [10])
    two = (Outage(replica=0, at_s=5.0, down_s=10), Outage(replica=0, at_s=12.0))
    scaled = Autoscale(max_replicas=2, target=1, cold_start_s=1)
    for fleet in (
        FleetSettings(outages=two),
        FleetSettings(outages=(Outage(replica=1, at_s=5.0),)),
        FleetSettings(outages=two[:1], autoscale=scaled),
        FleetSettings(prefill_replicas=1, autoscale=scaled),
        FleetSettings(prefill_replicas=1, outages=two[:1]),
    ):
        with pytest.raises(BadInput):
            simulate(on(), trace, fleet)


@pytest.mark.parametrize("target", [5e-324, 1e-300, 1e-3])
def test_however_small_the_target_an_autoscaler_asks_for_no_more_than_it_may(target: float) -> None:
    rule = Autoscale(max_replicas=3, target=target, cold_start_s=1.0)
    trace = make_trace(np.arange(4000) * 0.01, [1000] * 4000, [200] * 4000)
    simulation = simulate(on(), trace, FleetSettings(autoscale=rule), max_sequences=4)
    assert simulation.history[:, 1].max() == 3
    assert (simulation.served.status == DONE).all()


def test_no_fleet_has_more_replicas_than_can_be_numbered() -> None:
    for too_many in (40_000, 2**31):
        with pytest.raises(ValidationError):
            Autoscale(max_replicas=too_many, target=1, cold_start_s=1)
        with pytest.raises(ValidationError):
            FleetSettings(replicas=too_many)


def test_when_every_client_hangs_up_nothing_is_answered_and_all_work_is_in_vain() -> None:
    trace = make_trace(np.arange(50) * 0.1, [2000] * 50, [500] * 50)
    simulation = simulate(on(), trace, timeout_s=0.5)
    assert (simulation.served.status == TIMED_OUT).all()
    assert simulation.served.finish_s - trace.arrival_s == pytest.approx([0.5] * 50)
    made = outcome(simulation)
    assert (made.completed, made.failed, made.timed_out) == (0, 50, 50)
    assert made.e2e_s.mean is None
    assert made.useful_share < 0.1 * made.shares.abandoned


def test_a_client_has_its_own_patience_and_the_shorter_one_counts() -> None:
    trace = make_trace([0.0, 100.0, 200.0], [1000] * 3, [1000] * 3, patience_s=[math.inf, 0.2, 3.0])
    served = simulate(on(), trace, timeout_s=1.0).served
    assert served.finish_s - trace.arrival_s == pytest.approx([1.0, 0.2, 1.0])


def test_progress_ends_with_the_last_request() -> None:
    seen: list[int] = []
    simulate(on(), poisson(5, 1000, 100, 10), watch=Watcher(progress=seen.append))
    assert seen == sorted(seen)
    assert seen[-1] == 1000
    assert len(seen) > 50


# The prefix cache


def replayed(trace: Trace, kv_blocks: int) -> list[int]:
    """Cached tokens of each request, one request at a time: blocks of 512 tokens in an ordered dictionary."""
    cached = []
    evictable: OrderedDict[object, None] = OrderedDict()
    free = kv_blocks
    for request, tokens in enumerate(trace.input_tokens.tolist()):
        ids = there(trace.prefix).blocks_of(request).tolist()
        hits = next((place for place, unit in enumerate(ids) if unit not in evictable), len(ids))
        # At least one token is computed, and a block is cached whole or not at all.
        cached.append(min(hits * 512, (tokens - 1) // 512 * 512))
        for unit in ids[:hits]:
            del evictable[unit]
        blocks = math.ceil(tokens / 512)
        for _ in range(blocks - hits):
            if free:
                free -= 1
            else:
                evictable.popitem(last=False)
        # A block that another copy of is there already stays the request's own.
        mine = [unit for place, unit in enumerate(ids) if place < hits or unit not in evictable]
        for place in range(blocks - len(mine)):
            evictable[request, place] = None
        for unit in reversed(mine):
            evictable[unit] = None
    return cached


@pytest.mark.parametrize("kv_blocks", [1_000, 10_000])
def test_hits_equal_a_replay_through_a_dictionary(kv_blocks: int) -> None:
    trace = open_trace("mooncake-conversation").read()
    assert trace.prefix is not None
    assert trace.prefix.block_tokens == 512
    count = len(trace)
    longest = int(trace.input_tokens.max())
    shared: dict[str, Any] = {"unit_ids": trace.prefix.ids, "unit_starts": trace.prefix.starts, "unit_tokens": 512}
    requests = asked(1e4 * np.arange(count), trace.input_tokens, np.ones(count), **shared)
    room = ROOMY._replace(block_tokens=512, kv_blocks=kv_blocks, caches=True)
    rules = room._replace(max_sequences=4, max_batched_tokens=longest, max_context=longest + 1)
    served, world = run(requests, compile_steps(step_model(on()), 4, longest, longest + 1), rules, FleetSettings())
    expected = replayed(trace, kv_blocks)
    assert served.cached_tokens.tolist() == expected
    assert sum(expected) > 0
    assert world.replicas["prompt_tokens"][0] == trace.input_tokens.sum() - sum(expected)


def test_a_second_turn_skips_what_the_first_computed() -> None:
    prefix = PrefixBlocks(np.array([0, 1, 0, 1, 2], np.int32), np.array([0, 2, 5]), 512, 3)
    trace = make_trace([0.0, 50.0], [1024, 1600], [10, 10], prefix=prefix)
    with_cache, without = simulate(on(), trace), simulate(on(), trace, prefix_cache=False)
    assert with_cache.served.cached_tokens.tolist() == [0, 1024]
    assert without.served.cached_tokens.tolist() == [0, 0]
    ttft = with_cache.served.first_token_s - trace.arrival_s
    expected = [lone(on(), layers=32, tokens=1024).heard_s, lone(on(), layers=32, tokens=576, past=1024).heard_s]
    assert ttft == pytest.approx(expected, rel=0.01)
    assert outcome(with_cache).cached_tokens == 1024


# Repeatability


def same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def test_the_same_seed_gives_the_same_answer() -> None:
    trace = poisson(20, 3000, 500, 100)
    fleet = FleetSettings(replicas=4, router=Router.power_of_two)
    first, again, other = (simulate(on(), trace, fleet, seed=seed) for seed in (3, 3, 4))
    for name in first.served._fields:
        assert same(getattr(first.served, name), getattr(again.served, name)), name
    assert same(first.timeline, again.timeline)
    assert not same(first.served.replica, other.served.replica)


def test_only_the_lengths_and_the_memory_make_the_rules() -> None:
    rules = rules_for(on(), make_trace([0.0], [1000], [100]))
    assert rules.kv_blocks == kv_budget_bytes(on()) // (16 * KV_BYTES_PER_TOKEN)
    assert (rules.block_tokens, rules.fixed_blocks) == (16, 0)
    assert (rules.mixes, rules.chunks, rules.reserves, rules.caches) == (True, True, False, False)
    # Every second layer of gpt-oss has a window of 128 tokens: each sequence holds it whole, and grows by the others.
    windowed = rules_for(on("gpt-oss-20b"), make_trace([0.0], [1000], [100]))
    assert windowed.fixed_blocks == 128 // 16
