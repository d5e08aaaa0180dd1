"""The slow reference itself, on cases small enough to work out by hand.

A step takes 1 ms and 0.1 ms more for each token in it, prompt or answer; all times below are in milliseconds.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from tests.serving import small_worlds
from tests.serving.reference import serve, splitmix64
from tests.serving.reference_replica import EngineTimes

from tokonomics.serving.fleet_settings import Autoscale, FleetSettings, Outage, Router
from tokonomics.serving.state import Requests, Rules, Served

DONE = 1


@dataclass
class Ask:
    """A request as these cases write it; prompts of fewer units than tokens have the rest to themselves."""

    at: float
    input: int
    output: int
    urgency: int = 0
    deadline: float = math.inf
    units: tuple[int, ...] = ()


def requests(*asks: Ask, unit_tokens: int = 4, prefilled: bool = False) -> Requests:
    return small_worlds.asked(
        [ask.at / 1e3 for ask in asks],
        [ask.input for ask in asks],
        [ask.output for ask in asks],
        urgency=np.array([ask.urgency for ask in asks], np.int32),
        deadline_s=np.array([ask.deadline / 1e3 for ask in asks]),
        unit_ids=np.array([unit for ask in asks for unit in ask.units], np.int32),
        unit_starts=np.cumsum([0] + [len(ask.units) for ask in asks]).astype(np.int64),
        unit_tokens=unit_tokens,
        prefilled=prefilled,
    )


ROOMY = small_worlds.ROOMY._replace(block_tokens=2, max_context=1000)


def fleet(
    replicas: int = 1, router: Router = Router.round_robin, outage: Outage | None = None, scale: Autoscale | None = None
) -> FleetSettings:
    return FleetSettings.model_construct(
        replicas=replicas, router=router, outages=(outage,) if outage else (), autoscale=scale
    )


def scaled(least: int, most: int, target: float, *, hold_s: float) -> Autoscale:
    """It looks every 10 ms, more often than anyone may ask for, and boots in 5."""
    return Autoscale.model_construct(
        min_replicas=least, max_replicas=most, target=target, interval_s=10e-3, cold_start_s=5e-3, hold_s=hold_s
    )


def step_s(decodes: int, kv_tokens: float, prompt_tokens: int, prompts: int, pairs: float) -> float:
    return 1e-3 + 1e-4 * (decodes + prompt_tokens)


def served(asked: Requests, rules: Rules = ROOMY, on: FleetSettings | None = None) -> Served:
    return serve(asked, EngineTimes(step_s), rules, on or fleet())


def ms(times_s: object) -> object:
    """For comparing with lists of milliseconds; not a number equals itself."""
    return pytest.approx([1e3 * float(t) for t in np.asarray(times_s)], nan_ok=True)


nan = math.nan


def test_a_request_alone_takes_its_prompt_step_and_a_step_for_each_further_token() -> None:
    # Prompt of 10: 1 + 1.0. Two more tokens: 1.1 each.
    answer = served(requests(Ask(1000, 10, 3)))
    assert ms(answer.start_s) == [1000]
    assert ms(answer.first_token_s) == [1002]
    assert ms(answer.finish_s) == [1004.2]
    assert answer.status.tolist() == [DONE]
    assert answer.replica.tolist() == [0]
    # One that wants no answer ends with its prompt.
    answer = served(requests(Ask(0, 10, 0)))
    assert [ms(answer.first_token_s), ms(answer.finish_s)] == [[2.0], [2.0]]


def test_a_prompt_rides_in_the_step_of_a_decoding_request() -> None:
    # 0–2.0 prompt of A; 2.0–3.6 A writes while B's prompt of 5 rides (1 + 0.6); 3.6–4.8 both write, both are done.
    answer = served(requests(Ask(0, 10, 3), Ask(1, 5, 2)))
    assert ms(answer.start_s) == [0, 2.0]
    assert ms(answer.first_token_s) == [2.0, 3.6]
    assert ms(answer.finish_s) == [4.8, 4.8]


def test_an_engine_that_does_not_mix_lets_decodes_wait_for_prompts() -> None:
    # 0–2.0 prompt of A; 2.0–3.5 prompt of B; 3.5–4.7 both write, B is done; 4.7–5.8 A's third token.
    answer = served(requests(Ask(0, 10, 3), Ask(1, 5, 2)), ROOMY._replace(mixes=False))
    assert ms(answer.first_token_s) == [2.0, 3.5]
    assert ms(answer.finish_s) == [5.8, 4.7]


def test_a_long_prompt_is_cut_to_the_token_budget() -> None:
    # Chunks of 4, 4 and 2: 1.4 + 1.4 + 1.2. Pairs: 4·2.5, 4·(4 + 2.5), 2·(8 + 1.5); together 10·11/2.
    steps = []

    def watched(*step: float) -> float:
        steps.append(step)
        return 1e-3 + 1e-4 * (step[0] + step[2])

    answer = serve(requests(Ask(0, 10, 2)), EngineTimes(watched), ROOMY._replace(max_batched_tokens=4), fleet())
    assert steps == [(0, 0, 4, 1, 10), (0, 0, 4, 1, 26), (0, 0, 2, 1, 19), (1, 11, 0, 0, 0)]
    assert ms(answer.first_token_s) == [4.0]


def test_decodes_take_their_tokens_from_the_budget_first() -> None:
    # Budget 4. 0–1.4: A's prompt of 3, and the first token of B's prompt of 5. Then A writes each step and B has three
    # tokens of budget (1 + 0.4), then the last one (1 + 0.2).
    answer = served(requests(Ask(0, 3, 3), Ask(0, 5, 1)), ROOMY._replace(max_batched_tokens=4))
    assert ms(answer.start_s) == [0, 0]
    assert ms(answer.first_token_s) == [1.4, 4.0]
    assert ms(answer.finish_s) == [4.0, 4.0]


def test_without_chunks_a_prompt_is_never_cut() -> None:
    # Budget 4. A's prompt of 10 goes alone and whole (2.0); B and C wait, and 2 + 3 is over the budget: B with A's
    # second token (1 + 0.3), then C with B's second (1 + 0.4).
    rules = ROOMY._replace(max_batched_tokens=4, chunks=False)
    answer = served(requests(Ask(0, 10, 2), Ask(0, 2, 2), Ask(0, 3, 1)), rules)
    assert ms(answer.first_token_s) == [2.0, 3.3, 4.7]
    assert ms(answer.finish_s) == [3.3, 4.7, 4.7]


def test_the_last_admitted_makes_room_and_is_computed_again() -> None:
    # Four blocks of two tokens; A and B take two each for prompts of 3 (0–1.6) and fill them with their second token
    # (1.6–2.8). Both need a third: B goes. A: 2.8–3.9, 3.9–5.0 (B's five tokens need three blocks, one is free).
    # B: five tokens again 5.0–6.5, its third token; 6.5–7.6 its fourth.
    answer = served(requests(Ask(0, 3, 4), Ask(0, 3, 4)), ROOMY._replace(kv_blocks=4))
    assert ms(answer.first_token_s) == [1.6, 1.6]
    assert ms(answer.finish_s) == [5.0, 7.6]
    assert answer.preemptions.tolist() == [0, 1]


def test_the_least_urgent_makes_room_even_if_it_came_first() -> None:
    # A alone 0–1.3; A writes and B's prompt 1.3–2.7; A needs a block and is itself the least urgent: it goes.
    # B writes 2.7–3.8, 3.8–4.9, 4.9–6.0. A: five tokens again 6.0–7.5, and its fourth token 7.5–8.6.
    asked = requests(Ask(0, 3, 4, urgency=1), Ask(0.1, 3, 4))
    answer = served(asked, ROOMY._replace(kv_blocks=4))
    assert ms(answer.finish_s) == [8.6, 6.0]
    assert answer.preemptions.tolist() == [1, 0]


def test_the_most_urgent_is_admitted_first() -> None:
    # One at a time, prompts of 10 (2.0 each): A is in when B and C come.
    asked = requests(Ask(0, 10, 1), Ask(0.5, 10, 1, urgency=1), Ask(1, 10, 1))
    answer = served(asked, ROOMY._replace(max_sequences=1))
    assert ms(answer.finish_s) == [2, 6, 4]


def test_an_engine_that_reserves_the_answer_admits_fewer_and_preempts_none() -> None:
    # Six tokens need three of the four blocks: B waits for A (1.3 + 1.1 + 1.1).
    answer = served(requests(Ask(0, 3, 3), Ask(0, 3, 3)), ROOMY._replace(kv_blocks=4, reserves=True))
    assert ms(answer.start_s) == [0, 3.5]
    assert ms(answer.finish_s) == [3.5, 7.0]


def test_what_a_running_sequence_always_holds_counts() -> None:
    # Two blocks of prompt and one fixed each: five blocks are enough for one at a time, a token of answer needs none.
    asked = requests(Ask(0, 3, 1), Ask(0, 3, 1))
    assert ms(served(asked, ROOMY._replace(kv_blocks=5, fixed_blocks=1)).start_s) == [0, 1.3]
    assert ms(served(asked, ROOMY._replace(kv_blocks=6, fixed_blocks=1)).start_s) == [0, 0]


def test_a_request_too_long_for_the_replica_is_refused_at_once() -> None:
    # Of 3 in, 4 out, six tokens are kept: three blocks.
    asked = requests(Ask(1, 3, 4))
    for rules in (
        ROOMY._replace(max_context=6),
        ROOMY._replace(kv_blocks=2),
        ROOMY._replace(kv_blocks=3, reserves=True),
    ):
        answer = served(asked, rules)
        assert answer.status.tolist() == [0]
        assert ms(answer.finish_s) == [1]
        assert [nan] == ms(answer.start_s)
        assert answer.replica.tolist() == [-1]
    assert served(asked, ROOMY._replace(kv_blocks=3, max_context=7)).status.tolist() == [DONE]


CACHING = ROOMY._replace(caches=True, kv_blocks=8)


def test_a_prompt_seen_before_is_not_computed_again_except_its_last_block() -> None:
    # A: 10 tokens in units of 4, 4, 2. B shares the first two: 8 cached, 2 computed (1.2). C shares all ten, but its
    # last block is computed to have a next token: 8 cached.
    asked = requests(Ask(0, 10, 1, units=(0, 1, 2)), Ask(10, 10, 1, units=(0, 1, 3)), Ask(20, 10, 1, units=(0, 1, 2)))
    answer = served(asked, CACHING)
    assert answer.cached_tokens.tolist() == [0, 8, 8]
    assert ms(answer.finish_s) == [2.0, 11.2, 21.2]
    assert ms(served(asked, CACHING._replace(caches=False)).finish_s) == [2.0, 12.0, 22.0]


def test_a_prompt_is_shared_with_one_admitted_later_in_the_same_step() -> None:
    # A computes 10, B the 2 of its last block: 1 + 1.2. Together they hold A's five blocks.
    asked = requests(Ask(0, 10, 1, units=(0, 1, 2)), Ask(0, 10, 1, units=(0, 1, 2)))
    answer = served(asked, CACHING._replace(kv_blocks=5))
    assert answer.cached_tokens.tolist() == [0, 8]
    assert ms(answer.finish_s) == [2.2, 2.2]


def test_the_tail_of_the_oldest_prompt_is_evicted_first() -> None:
    # A fills the five blocks: units of 2, 2 and 1. B needs two: A's last unit (1) and, whole, the one before (2).
    # A again: only its first unit is left, 4 cached, 6 computed: 1.6.
    asked = requests(Ask(0, 10, 1, units=(0, 1, 2)), Ask(10, 3, 1, units=(3,)), Ask(20, 10, 1, units=(0, 1, 2)))
    answer = served(asked, CACHING._replace(kv_blocks=5))
    assert answer.cached_tokens.tolist() == [0, 0, 4]
    assert ms(answer.finish_s) == [2.0, 11.3, 21.6]


def test_blocks_nobody_can_share_are_eaten_one_by_one() -> None:
    # A: one unit (two blocks) and, of 9 tokens, three blocks of its own; those were let go first and are eaten first:
    # B (3 tokens, nothing shared) takes two of the three, and A again still finds its unit.
    asked = requests(Ask(0, 9, 1, units=(0,)), Ask(10, 3, 1), Ask(20, 9, 1, units=(0,)))
    assert served(asked, CACHING._replace(kv_blocks=5)).cached_tokens.tolist() == [0, 0, 4]


def test_who_waits_past_the_deadline_leaves_the_queue() -> None:
    # One at a time: A runs until 4.2, B gives up at 3, C starts at 4.2.
    asked = requests(Ask(0, 10, 3), Ask(1, 10, 3, deadline=3), Ask(1, 10, 1))
    answer = served(asked, ROOMY._replace(max_sequences=1))
    assert answer.status.tolist() == [DONE, 2, DONE]
    assert [0, nan, 4.2] == ms(answer.start_s)
    assert ms(answer.finish_s) == [4.2, 3, 6.2]


def test_who_runs_past_the_deadline_leaves_after_the_step_in_flight() -> None:
    # A: prompt 0–2.0, writes 2.0–3.1, gone for the client at 3; its place is free at 3.1. D: prompt of 10 in flight.
    asked = requests(Ask(0, 10, 3, deadline=3), Ask(1, 5, 1), Ask(10, 10, 1, deadline=11))
    answer = served(asked, ROOMY._replace(max_sequences=1))
    assert answer.status.tolist() == [2, DONE, 2]
    assert ms(answer.start_s) == [0, 3.1, 10]
    assert [2.0, 4.6, nan] == ms(answer.first_token_s)
    assert ms(answer.finish_s) == [3, 4.6, 11]


def test_requests_with_their_prompt_computed_elsewhere_only_decode() -> None:
    # The first token came with them; two more take 1.1 each. One that wanted a single token is done on arrival.
    answer = served(requests(Ask(5, 10, 3), Ask(20, 10, 1), prefilled=True))
    assert ms(answer.first_token_s) == [5, 20]
    assert ms(answer.finish_s) == [7.2, 20]


def test_a_failed_replica_hands_its_requests_over() -> None:
    # A on 0 and B on 1: prompts 0–2.0, second tokens 2.0–3.1. From the notice at 1 nobody is sent to 0: C goes to 1.
    # 0 fails at 3, with A's second token in flight. On 1 at 3.1: B writes, C's prompt of 1, A's of 10: 1 + 1.2.
    asked = requests(Ask(0, 10, 3), Ask(0, 10, 3), Ask(2.5, 1, 1))
    answer = served(asked, on=fleet(2, outage=Outage(replica=0, at_s=3e-3, notice_s=2e-3)))
    assert answer.replica.tolist() == [1, 1, 1]
    assert answer.restarts.tolist() == [1, 0, 0]
    assert ms(answer.start_s) == [0, 0, 3.1]
    assert ms(answer.first_token_s) == [5.3, 2.0, 5.3]
    assert ms(answer.finish_s) == [7.5, 5.3, 5.3]


def test_requests_wait_for_a_replica_to_come_back() -> None:
    # A fails at 3 and starts again at 10; B came while nobody was up. Prompts of 20 (3.0), then two tokens of both.
    asked = requests(Ask(0, 10, 3), Ask(4, 10, 3))
    answer = served(asked, on=fleet(outage=Outage(replica=0, at_s=3e-3, down_s=7e-3)))
    assert ms(answer.start_s) == [0, 10]
    assert ms(answer.finish_s) == [15.4, 15.4]
    lost = served(asked, on=fleet(outage=Outage(replica=0, at_s=3e-3)))
    assert lost.status.tolist() == [3, 3]
    assert [nan, nan] == ms(lost.first_token_s)
    assert [nan, nan] == ms(lost.finish_s)
    assert lost.replica.tolist() == [0, -1]


def test_the_autoscaler_boots_on_demand_and_drains_after_the_hold() -> None:
    # One sequence a replica. A: 2.0 + 19·1.1 = 22.9, then B until 45.8. Tick 10: two outstanding, 1 boots until 15: C
    # (16) starts there at once. Tick 30: one outstanding, but two at 20. Tick 40: one at 30 too (20 is 20 ago): 1 goes.
    # D (35) still went to 1; E (41) waits for B on 0.
    asked = requests(Ask(0, 10, 20), Ask(0, 10, 20), Ask(16, 5, 1), Ask(35, 5, 1), Ask(41, 5, 1))
    scale = scaled(1, 2, 1, hold_s=20e-3)
    answer = served(asked, ROOMY._replace(max_sequences=1), fleet(1, Router.least_outstanding, scale=scale))
    assert answer.replica.tolist() == [0, 0, 1, 1, 0]
    assert ms(answer.start_s) == [0, 22.9, 16, 35, 45.8]


def test_a_fleet_scaled_to_zero_boots_at_the_next_tick() -> None:
    answer = served(requests(Ask(1, 10, 1)), on=fleet(1, scale=scaled(0, 1, 8, hold_s=0)))
    assert ms(answer.start_s) == [15]
    assert ms(answer.finish_s) == [17]


def test_round_robin_takes_turns_and_least_outstanding_avoids_the_busy() -> None:
    # The first request is long; the others are done before the next comes.
    asked = requests(Ask(0, 10, 50), *(Ask(10 * n, 10, 1) for n in range(1, 5)))
    assert served(asked, on=fleet(2, Router.round_robin)).replica.tolist() == [0, 1, 0, 1, 0]
    assert served(asked, on=fleet(2, Router.least_outstanding)).replica.tolist() == [0, 1, 1, 1, 1]


def test_power_of_two_compares_two_different_replicas() -> None:
    # With two replicas it always sees both; the generator's first output from state 0 is published with its code.
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    asked = requests(Ask(0, 10, 50), *(Ask(10 * n, 10, 1) for n in range(1, 5)))
    assert served(asked, on=fleet(2, Router.power_of_two)).replica.tolist() == [0, 1, 1, 1, 1]


def test_a_prefix_aware_router_goes_where_the_prompt_is() -> None:
    # A leaves its prompt on 0, which is then busy with B. C shares 8 of 10 tokens with A: 0. D shares 4 of 20: 1.
    asked = requests(
        Ask(0, 10, 1, units=(0, 1, 2)), Ask(5, 10, 50), Ask(10, 10, 1, units=(0, 1, 3)), Ask(30, 20, 1, units=(0, 4))
    )
    answer = served(asked, CACHING._replace(kv_blocks=100), fleet(2, Router.prefix_aware))
    assert answer.replica.tolist() == [0, 0, 0, 1]
    assert answer.cached_tokens.tolist() == [0, 0, 8, 0]
