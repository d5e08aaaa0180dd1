"""Disaggregated prefill/decode: one side alone is an aggregated fleet, the KV takes its time, every token is made."""

from itertools import pairwise

import numpy as np
import pytest
from tests.deployed import on
from tests.serving.small_worlds import KV_BYTES_PER_TOKEN, poisson

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput
from tokonomics.money.trace_bills import served_cost_apart
from tokonomics.physics.steptime import step_model
from tokonomics.serving.disaggregated import sent_bytes, why_not_apart
from tokonomics.serving.fleet_settings import LINK_NAMES, FleetSettings, Router, link_speed, network_of
from tokonomics.serving.outcome import outcome, sides
from tokonomics.serving.simulator import simulate
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.serving.steady import ReplicaCurve, prefill_only_rate
from tokonomics.traffic.trace import make_trace

BLOCKS = {"vllm": 16, "sglang": 1, "tensorrt-llm": 32}


# One side alone


@pytest.mark.parametrize("engine", list(BLOCKS))
def test_answers_of_one_token_make_the_prefill_side_an_aggregated_fleet(engine: str) -> None:
    trace = poisson(40, 3000, 1500, 1)
    for router in (Router.round_robin, Router.least_outstanding):
        together = simulate(on(engine=engine), trace, FleetSettings(replicas=3, router=router))
        apart = simulate(on(engine=engine), trace, FleetSettings(prefill_replicas=3, replicas=2, router=router))
        for name in ("status", "start_s", "first_token_s", "finish_s", "replica"):
            assert np.array_equal(getattr(together.served, name), getattr(apart.served, name)), name
        assert np.array_equal(together.replicas["busy_s"], apart.replicas["busy_s"][:3])
        assert (apart.replicas["busy_s"][3:] == 0).all()


def test_prompts_of_one_token_and_an_endless_link_make_the_decode_side_an_aggregated_fleet() -> None:
    """An aggregated replica computes them in steps of its answers, which costs as good as nothing."""
    trace = poisson(30, 4000, 1, 200)
    plain = step_model(on()).with_engine(None)
    endless = FleetSettings(prefill_replicas=8, replicas=2, router=Router.round_robin, link_bytes_per_s=1e15)
    apart = outcome(simulate(on(engine="sglang"), trace, endless, steps=plain))
    mixed = FleetSettings(replicas=2, router=Router.round_robin)
    together = outcome(simulate(on(engine="vllm"), trace, mixed, steps=plain))
    assert apart.completed == together.completed == 4000
    assert apart.tpot_s.p50 == pytest.approx(together.tpot_s.p50, rel=0.03)
    assert apart.tpot_s.p99 == pytest.approx(together.tpot_s.p99, rel=0.03)


# The transfer


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("link", [1e6, 50e9])
@pytest.mark.parametrize("engine", list(BLOCKS))
def test_a_lone_answer_is_later_by_the_transfer_and_any_token_computed_twice(engine: str, link: float, tp: int) -> None:
    deployment = on(engine=engine, tp=tp)
    trace = make_trace([0.0, 1e5, 2e5], [1000, 20_000, 50], [100, 20, 300])
    together = simulate(deployment, trace).served
    apart = simulate(deployment, trace, FleetSettings(prefill_replicas=1, link_bytes_per_s=link)).served
    whole_blocks = np.ceil(trace.input_tokens / BLOCKS[engine]) * BLOCKS[engine]
    later_s = whole_blocks / (link * tp) * KV_BYTES_PER_TOKEN
    if engine == "vllm":
        later_s = later_s + step_model(deployment).decode(1, trace.input_tokens)
    assert apart.finish_s - together.finish_s == pytest.approx(later_s, rel=1e-5, abs=1e-7)
    if engine != "vllm":
        # The client hears of the first token from the side that answers, after the transfer.
        assert apart.first_token_s - together.first_token_s == pytest.approx(later_s, rel=1e-5, abs=1e-7)
    assert (apart.first_token_s < apart.finish_s).all()


def test_a_replica_sends_one_prompt_after_the_other() -> None:
    """Two prompts of a burst: the second leaves when the first has been sent, or from another replica at once."""
    trace = make_trace([0.0, 0.0], [8000, 8000], [2, 2])
    link = 1e8
    takes_s = 8000 * KV_BYTES_PER_TOKEN / link
    heard = {
        replicas: simulate(
            on(engine="sglang"), trace, FleetSettings(prefill_replicas=replicas, link_bytes_per_s=link)
        ).served.first_token_s
        for replicas in (1, 2)
    }
    assert abs(heard[1][1] - heard[1][0]) == pytest.approx(takes_s, rel=1e-3)
    assert abs(heard[2][1] - heard[2][0]) < 0.01 * takes_s


def test_groups_of_the_attention_send_over_links_of_their_own() -> None:
    """Eight prompts of eight groups leave at once; sixteen in two turns; of one group one after the other."""
    split, groups = (on("deepseek-r1", "H200", "sglang", **own, ep=8) for own in ({"tp": 8}, {"dp": 8}))
    link = 1e6  # so slow that everything else is nothing beside it
    heard = {}
    for deployment, count in ((groups, 8), (groups, 16), (split, 8)):
        trace = make_trace(np.zeros(count), [500] * count, [2] * count)
        fleet = FleetSettings(prefill_replicas=1, link_bytes_per_s=link)
        heard[deployment.dp, count] = float(simulate(deployment, trace, fleet).served.first_token_s.max())
    one_s = 500 * 61 * 576 * 2 / link  # a latent of 576 numbers in each of 61 layers, whole on every rank
    assert [heard[8, 8], heard[8, 16], heard[1, 8]] == pytest.approx([one_s, 2 * one_s, 8 * one_s], rel=0.02)


def test_a_slow_link_only_delays() -> None:
    trace = poisson(4, 800, 2000, 100)
    runs = [
        simulate(on(), trace, FleetSettings(prefill_replicas=1, link_bytes_per_s=link)) for link in (1e12, 1e10, 2e9)
    ]
    for fast, slow in pairwise(runs):
        assert (slow.served.status == DONE).all()
        assert np.array_equal(fast.served.start_s, slow.served.start_s), "prompts begin as before"
        assert fast.replicas["busy_s"][0] == slow.replicas["busy_s"][0]
        assert fast.served.finish_s.mean() < slow.served.finish_s.mean()
        assert fast.served.first_token_s.mean() < slow.served.first_token_s.mean()


def test_every_rank_that_answers_gets_its_own_copy_of_a_latent() -> None:
    """DeepSeek V3 caches 61 layers of 512 + 64 numbers of 2 bytes: 70,272 bytes a token, whole on every rank."""
    eight, four, one = (on("deepseek-v3", "B200", "sglang", tp=tp) for tp in (8, 4, 1))
    assert sent_bytes(eight, eight, 1000) == 70_272_000
    assert sent_bytes(eight, four, 1000) == 70_272_000, "what a rank receives"
    assert sent_bytes(four, eight, 1000) == 2 * 70_272_000, "each sender feeds two"
    assert sent_bytes(one, eight, 1000) == 8 * 70_272_000
    # Keys and values of grouped heads are shared out: as much in all, whoever sends it.
    llama = {tp: on(engine="sglang", tp=tp) for tp in (1, 4)}
    assert sent_bytes(llama[4], llama[4], 1000) * 4 == sent_bytes(llama[1], llama[1], 1000)
    assert sent_bytes(llama[1], llama[4], 1000) == sent_bytes(llama[4], llama[1], 1000) == 1000 * KV_BYTES_PER_TOKEN


@pytest.mark.parametrize("outputs", [[1, 1], [0, 1], [2, 1]])
def test_answers_of_one_token_never_travel(outputs: list[int]) -> None:
    trace = make_trace([0.0, 1e5], [1000, 2000], outputs)
    slow = FleetSettings(prefill_replicas=1, link_bytes_per_s=1.0)
    simulation = simulate(on(), trace, slow)
    assert (simulation.served.status == DONE).all()
    assert simulation.served.finish_s[1] == pytest.approx(simulation.served.first_token_s[1])
    assert len(simulation.replicas) == len(simulation.paid_s) == 2


# Both sides


@pytest.mark.parametrize("engine", list(BLOCKS))
def test_every_token_is_made_once_and_the_first_twice_where_it_is_computed_again(engine: str) -> None:
    rng = np.random.default_rng(1)
    inputs, outputs = rng.integers(2, 3000, 1500), rng.integers(0, 300, 1500)
    trace = make_trace(np.cumsum(rng.exponential(0.1, 1500)), inputs, outputs)
    simulation = simulate(on(engine=engine), trace, FleetSettings(prefill_replicas=2, replicas=3))
    assert (simulation.served.status == DONE).all()
    assert simulation.served.preemptions.sum() == 0
    rows = simulation.replicas
    assert rows["prompt_tokens"].tolist()[2:] == [0, 0, 0]
    assert rows["prompt_tokens"].sum() == inputs.sum()
    assert rows["answer_tokens"].tolist()[:2] == [0, 0]
    again = int((outputs > 1).sum()) if engine == "vllm" else 0
    assert rows["answer_tokens"].sum() == (outputs - 1).clip(0).sum() + again
    made = outcome(simulation)
    assert (made.input_tokens, made.output_tokens) == (inputs.sum(), outputs.sum())


def test_prompts_do_not_hold_answers_up() -> None:
    trace = poisson(6, 2000, 3000, 200)
    together = outcome(simulate(on(), trace, FleetSettings(replicas=2)))
    apart = outcome(simulate(on(), trace, FleetSettings(prefill_replicas=1)))
    assert apart.completed == together.completed == 2000
    assert apart.tpot_s.p99 is not None
    assert together.tpot_s.p99 is not None
    assert apart.tpot_s.p99 < together.tpot_s.p99


def test_each_side_is_its_own_deployment() -> None:
    """A lone prompt takes as long as on the prefill side's GPUs, a lone answer as long as on the other's."""
    trace = make_trace([0.0], [8000], [200])
    endless = 1e15
    fleet = FleetSettings(prefill_replicas=1, prefill=on(gpu="H200", tp=4), link_bytes_per_s=endless)
    simulation = simulate(on(gpu="L40S"), trace, fleet)
    first = make_trace([0.0], [8000], [1])
    prompt_s = float(simulate(on(gpu="H200", tp=4), first).served.finish_s[0])
    alone = simulate(on(gpu="L40S"), trace).served
    step_s = float((alone.finish_s - alone.first_token_s)[0]) / 199
    assert simulation.served.finish_s[0] == pytest.approx(prompt_s + 200 * step_s, rel=0.01)
    assert [side.deployment for side in sides(simulation)] == [str(on(gpu="H200", tp=4)), str(on(gpu="L40S"))]


def test_each_side_has_its_own_limits() -> None:
    trace = poisson(3, 300, 500, 20)
    fleet = FleetSettings(prefill_replicas=1, prefill_max_sequences=7, prefill_max_batched_tokens=1024)
    simulation = simulate(on(), trace, fleet, max_sequences=5, max_batched_tokens=2048)
    assert simulation.prefill_rules is not None
    first, second = simulation.prefill_rules, simulation.rules
    assert (first.max_sequences, first.max_batched_tokens) == (7, 1024)
    assert (second.max_sequences, second.max_batched_tokens) == (5, 2048)


def test_what_either_side_cannot_hold_is_refused_before_anything_is_computed() -> None:
    trace = make_trace([0.0, 1.0], [100_000, 100], [10, 10])
    # An L4 holds 16 GB of weights and the KV of some ten thousand tokens.
    for small, large in (("L4", "H200"), ("H200", "L4")):
        simulation = simulate(on(gpu=large), trace, FleetSettings(prefill_replicas=1, prefill=on(gpu=small)))
        assert simulation.served.status.tolist() == [REFUSED, DONE]
        assert simulation.replicas["prompt_tokens"].sum() == 100


def test_sides_that_cannot_read_each_others_kv_are_refused() -> None:
    for prefill in (on(kv=Precision.fp8), on("qwen3-8b"), on(engine="sglang")):
        assert why_not_apart(prefill, on()) is not None
        with pytest.raises(BadInput):
            simulate(on(), make_trace([0.0], [10], [10]), FleetSettings(prefill_replicas=1, prefill=prefill))
    assert why_not_apart(on(gpu="L40S", weights=Precision.fp8), on()) is None


# What full sides finish, and what they cost


def test_a_side_that_is_never_idle_finishes_what_the_closed_form_says() -> None:
    burst = make_trace(np.zeros(3000), [2000] * 3000, [1] * 3000)
    prompts = simulate(on(), burst, FleetSettings(prefill_replicas=1))
    rate = 3000 / float(prompts.served.finish_s.max())
    assert rate == pytest.approx(prefill_only_rate(step_model(on()), 2000), rel=0.05)
    batch = 100
    answers = make_trace(np.zeros(3000), [2000] * 3000, [150] * 3000)
    fleet = FleetSettings(prefill_replicas=200, link_bytes_per_s=1e15)
    made = simulate(on(engine="sglang"), answers, fleet, max_sequences=batch)
    curve = ReplicaCurve(on(engine="sglang"), 2000, 150, most_sequences=batch)
    rate = 3000 / float(made.served.finish_s.max())
    assert rate == pytest.approx(curve.decode_only_capacity().rate, rel=0.07)


def test_the_bill_is_the_hours_of_each_side_at_its_own_price() -> None:
    simulation = simulate(on(), poisson(4, 500, 1000, 50), FleetSettings(prefill_replicas=1, replicas=2))
    made = outcome(simulation)
    cost = served_cost_apart(made, sides(simulation), (3.0, 5.0), "as given")
    hours = len(simulation.trace) / simulation.trace.rate / 3600
    assert made.steady
    assert cost.usd == pytest.approx(hours * (1 * 3.0 + 2 * 5.0))
    assert [line.name for line in cost.tree.lines] == ["prefill busy", "prefill idle", "decode busy", "decode idle"]
    # Nearly all of the work lies between the first and the last arrival, which two gaps in a thousand do not change.
    busy = simulation.replicas["busy_s"]
    assert cost.tree.lines[0].quantity == pytest.approx(busy[0] / 3600, rel=0.005)
    assert cost.tree.lines[2].quantity == pytest.approx(busy[1:].sum() / 3600, rel=0.005)


# Links


def test_a_link_goes_by_its_name_or_its_speed() -> None:
    h100, l40s = find_gpu("H100"), find_gpu("L40S")
    assert link_speed("ib400", h100, l40s) == link_speed("50", h100) == 400e9 / 8
    assert link_speed("NVLink", h100) == 450e9
    assert link_speed("pcie", h100, l40s) == min(h100.pcie_bytes_per_s, l40s.pcie_bytes_per_s)
    for wrong in ("nvlink", "token-ring", "0", "inf"):
        with pytest.raises(BadInput):
            link_speed(wrong, h100, l40s)
    assert [network_of(find_gpu(gpu)) for gpu in ("A100-80GB", "B200", "L40S")] == ["ib200", "ib400", "ib400"]
    slow = find_gpu("L40S").model_copy(update={"network_bytes_per_s": 3.125e9})
    assert link_speed(network_of(slow)) == 3.125e9
    assert {"nvlink", "pcie", "ib400", "ib200", "roce400", "ethernet100"} <= set(LINK_NAMES)
