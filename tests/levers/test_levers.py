"""Levers: each alone is a direct simulation of the changed setup; saving and remaining bill make up the old one.

The order of a stack changes its steps and not its end.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from io import StringIO
from itertools import combinations, permutations

import numpy as np
import pytest
from rich.console import Console
from tests.planner.small_catalogue import OFFERS, SLOS, TODAY, offer

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.levers.lever_list import (
    KNOBS,
    Choices,
    Lever,
    all_levers,
    differs,
    moved,
    right_size,
    smallest_relative,
)
from tokonomics.levers.ranking import Ranked, Ranking, effects_of, rank_levers
from tokonomics.levers.stack import ORDER, Stacked, Waterfall, naive_setup, order_from, stack, walk
from tokonomics.money.cache_tiers import DRAM_PRICE_DATE
from tokonomics.physics.deployment import deploy
from tokonomics.physics.steptime import decode_step
from tokonomics.questions.levers import LeversResult, StackResult
from tokonomics.questions.request import Request
from tokonomics.report import levers_view
from tokonomics.report.answer import Answer
from tokonomics.report.rich_text import renderable
from tokonomics.serving.fleet import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.refusal import NotServed
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.units import percent, usd

A100 = deploy(find_model("llama-3.1-8b"), find_gpu("A100-80GB"), find_engine("vllm"))
CHEAP = (
    OFFERS[0],
    offer("A100-80GB", 1, 2.0, spot_usd_per_hour=0.9, reserved_1yr_usd_per_hour=1.5),
    OFFERS[2],
    offer("H100-SXM", 1, 3.0, spot_usd_per_hour=1.0, reserved_3yr_usd_per_hour=1.8),
    OFFERS[4],
)
REQUESTS = 5_000


def short_load(rate: float, inputs: str = "const:1000", outputs: str = "const:300") -> Load:
    """The first requests of what a rate is made up as: as many as a bill needs to be one."""
    whole = load_of_shape(rate, inputs, outputs)
    return load_of_log(whole.trace.take(np.arange(REQUESTS)))


NOW = Setup(A100, short_load(40), CHEAP, TODAY, SLOS)
QUICK = ("weights", "kv", "commit", "spot", "hardware", "speculation")


@cache
def ranked() -> Ranked:
    made = rank_levers(NOW, [each for each in all_levers() if each.knob in QUICK])
    assert isinstance(made, Ranked)
    return made


@cache
def stacked() -> Stacked:
    return stack(NOW, Choices(without=frozenset({"speculation", "disaggregation"})))


def test_each_lever_alone_is_a_direct_simulation_of_the_changed_setup() -> None:
    for pulled in ranked().ranking.levers:
        lever = next(each for each in all_levers() if each.name == pulled.name)
        changed = lever.apply(NOW)
        if pulled.bill is None or isinstance(changed, NotServed):
            continue
        direct = simulate(
            changed.deployment,
            changed.load.trace,
            FleetSettings(replicas=pulled.bill.replicas, router=pulled.bill.router),
            max_sequences=pulled.bill.max_sequences,
        )  # fmt: skip
        made = outcome(direct, SLOS)
        assert made.slo_met
        assert made.ttft_s == pulled.bill.ttft_s
        assert made.tpot_s == pulled.bill.tpot_s


def test_what_a_lever_saves_is_the_difference_of_two_bills_made_apart() -> None:
    """Nothing that was remembered on the way to the ranking moves a bill."""
    now = Bills().of(NOW)
    assert isinstance(now, Bill)
    tried = 0
    for each in ranked().ranking.levers:
        changed = next(lever for lever in all_levers() if lever.name == each.name).apply(NOW)
        if each.bill is None or isinstance(changed, NotServed):
            continue
        alone = Bills().of(changed)
        assert isinstance(alone, Bill)
        assert each.bill == alone
        assert each.saved_usd_per_month == pytest.approx(now.usd_per_month - alone.usd_per_month)
        assert each.saved_share == pytest.approx(1 - alone.usd_per_month / now.usd_per_month)
        tried += 1
    assert tried >= 4


def test_the_largest_saving_comes_first() -> None:
    savings = [round(each.saved_usd_per_month, 2) for each in ranked().ranking.levers if each.bill]
    assert savings == sorted(savings, reverse=True)


def test_together_is_the_bill_of_one_setup_and_no_dearer_than_the_best_lever() -> None:
    ranking = ranked().ranking
    again = Bills().of(ranked().setup)
    assert isinstance(again, Bill)
    assert again.usd_per_month == pytest.approx(ranking.together.usd_per_month)
    assert ranking.together.usd_per_month <= min(each.bill.usd_per_month for each in ranking.levers if each.bill) + 0.01
    assert ranking.saved_share == pytest.approx(1 - again.usd_per_month / ranking.now.usd_per_month)


def test_a_lever_taken_matters() -> None:
    """Putting any of them back makes it dearer."""
    ranking, end = ranked().ranking, ranked().setup
    knobs = {each.name: each.knob for each in all_levers()}
    assert ranking.taken
    for name in ranking.taken:
        back = Bills().of(moved(end, NOW, knobs[name]))
        assert isinstance(back, NotServed) or back.usd_per_month > ranking.together.usd_per_month


def _turned(order: Sequence[Lever], start: Setup) -> Setup | str:
    """Where these levers lead, or the name of the one that refuses."""
    here = start
    for lever in order:
        changed = lever.apply(here)
        if isinstance(changed, NotServed):
            return lever.name
        here = changed
    return here


def _on_h100(setup: Setup) -> Setup:
    """What the search for GPUs does once it has found them."""
    return setup.deployed(gpu=find_gpu("H100"))


@cache
def _talks() -> Load:
    """Conversations whose load rises and falls: every lever has something to move."""
    trace = generate(
        parse_arrivals("poisson:0.3"),
        parse_lengths("const:2000", "input"),
        parse_lengths("const:50", "output", least=0),
        requests=900,
        seed=1,
        sessions=parse_sessions("4,think=20,limit=16000"),
    )
    span = trace.arrival_s[-1]
    # The same requests, three quarters of them in the first third of eight hours.
    at = np.interp(trace.arrival_s, [0, 0.75 * span, span], [0, 9600, 28800])
    return load_of_log(replace(trace, arrival_s=at, turns=None))


_SECOND_OF_A_KNOB = ("INT4 weights", "session-affine router")


def _knobs(*knobs: str) -> list[Lever]:
    levers = [each for each in all_levers() if each.knob in knobs and each.name not in _SECOND_OF_A_KNOB]
    return [replace(each, apply=_on_h100) if each.knob == "hardware" else each for each in levers]


def test_levers_on_different_knobs_commute() -> None:
    start = replace(NOW, load=_talks())
    for others in (("tiers", "router"), ("autoscale", "router"), ("disaggregation", "spot")):
        some = _knobs("kv", "weights", "hardware", *others)
        assert len(some) == 5
        ends = [_turned(order, start) for order in permutations(some)]
        assert isinstance(ends[0], Setup)
        assert all(each == ends[0] for each in ends)


def test_levers_that_are_not_simulated_together_refuse_each_other_in_either_order() -> None:
    start = replace(NOW, load=_talks())
    for one, other in combinations(_knobs("tiers", "autoscale", "disaggregation"), 2):
        assert _turned((one, other), start) == other.name
        assert _turned((other, one), start) == one.name


def test_a_tier_follows_the_hardware_it_is_served_on() -> None:
    tiers, hardware = (_knobs(each)[0] for each in ("tiers", "hardware"))
    tiers = next(each for each in all_levers(Choices(tiers="dram=100")) if each.knob == tiers.knob)
    start = replace(NOW, load=_talks())
    for order in ((tiers, hardware), (hardware, tiers)):
        end = _turned(order, start)
        assert isinstance(end, Setup)
        (memory,) = end.memories()
        assert memory.tier.bytes_per_s == pytest.approx(0.87 * find_gpu("H100").pcie_bytes_per_s)


def test_host_memory_is_what_the_bought_machine_has_left_for_each_replica() -> None:
    """Two GPUs on one host of 200 GiB: 16.06 GB of weights once, 3 GiB for each process; not what another host has."""
    sold = (
        offer("A100-80GB", 2, 2.0, memory_gb=200.0),
        offer("A100-80GB", 1, 9.0, memory_gb=4.0),
        offer("A100-80GB", 1, 9.5, memory_gb=4000.0),
    )
    lever = _knobs("tiers")[0]
    wished = lever.apply(Setup(A100, _talks(), sold, TODAY))
    assert isinstance(wished, Setup)
    made = Bills().of(wished)
    assert isinstance(made, Bill)
    (memory,) = made.memories
    weights_gb = find_model("llama-3.1-8b").weight_bytes(Precision.bf16) / 1e9
    left_gb = (200 * 1.073741824 - weights_gb - 2 * 3 * 1.073741824) / 2
    assert "2xA100-80GB" in made.bought
    assert memory.tier.size_bytes / 1e9 == pytest.approx(left_gb, abs=1)
    assert memory.usd_per_gb_hour == 0
    assert made.memory_assumed
    assert made.cached_share > 0
    ranking = rank_levers(Setup(A100, _talks(), sold, TODAY), [lever])
    assert isinstance(ranking, Ranked)
    assert f"dram {int(left_gb)} GB a replica, assumed free" in shown(ranking.ranking, width=160)


def test_host_memory_that_is_not_told_or_not_left_is_refused() -> None:
    lever = _knobs("tiers")[0]
    for memory_gb, says in ((None, "not known"), (18.5, "leave none")):
        setup = Setup(A100, _talks(), (offer("A100-80GB", 1, 2.0, memory_gb=memory_gb),), TODAY)
        wished = lever.apply(setup)
        assert isinstance(wished, Setup)
        made = Bills().of(wished)
        assert isinstance(made, NotServed)
        assert says in made.reason


def test_an_old_price_of_a_memory_marks_the_bill() -> None:
    setup = replace(NOW, load=_talks(), slos=())
    plain, disk = Bills().of(setup), Bills().of(replace(setup, tiers="ssd=500"))
    assert isinstance(plain, Bill)
    assert isinstance(disk, Bill)
    assert not plain.price_stale
    assert disk.price_stale
    memory = Bills().of(replace(setup, tiers="dram=50"))
    assert isinstance(memory, Bill)
    assert memory.price_date == DRAM_PRICE_DATE
    assert not memory.price_stale
    later = Bills().of(replace(setup, tiers="dram=50", today=DRAM_PRICE_DATE + timedelta(91)))
    assert isinstance(later, Bill)
    assert later.price_stale


# --- the stack ------------------------------------------------------------------------------------------------------


def test_the_baseline_serves_one_request_at_a_time_in_16_bit_on_demand() -> None:
    naive = naive_setup(replace(NOW, commit=True, router=Router.prefix_aware).deployed(weights=Precision.int4))
    assert (naive.max_sequences, naive.prefix_cache, naive.commit, naive.spot) == (1, False, False, False)
    assert (naive.deployment.weights, naive.deployment.kv) == (Precision.bf16, Precision.bf16)
    assert stacked().waterfall.naive.batch == pytest.approx(1.0)


def test_one_at_a_time_requests_go_to_whoever_is_free() -> None:
    """With answers of unequal length, taking turns would make the baseline look worse than anyone runs it."""
    naive = naive_setup(replace(NOW, load=short_load(4, "500", "lognormal:mean=200,p99=900")))
    made, turns = Bills().of(naive), Bills().of(replace(naive, router=Router.round_robin))
    assert isinstance(made, Bill)
    assert isinstance(turns, Bill)
    assert made.router is Router.least_outstanding
    assert made.replicas < turns.replicas


def test_the_saving_is_also_told_from_a_start_that_batches() -> None:
    made = stacked().waterfall
    assert made.steps[0].knobs == ("batch",)
    assert made.batched == made.steps[0].bill
    assert made.saved_share_of_batched == pytest.approx(1 - made.end.usd_per_month / made.batched.usd_per_month)


def test_the_steps_add_up_to_the_whole() -> None:
    made = stacked().waterfall
    saved = sum(each.saved_usd_per_month for each in made.steps)
    assert made.naive.usd_per_month - saved == pytest.approx(made.end.usd_per_month)
    assert sum(each.saved_share for each in made.steps) == pytest.approx(made.saved_share)
    assert made.steps[-1].bill == made.end


def test_each_step_is_billed_as_the_setup_it_leads_to() -> None:
    """Made apart, with nothing remembered."""
    made = stacked()
    here = made.naive
    for step in made.waterfall.steps:
        for knob in step.knobs:
            here = moved(here, made.end, knob)
        assert Bills().of(here) == step.bill
    assert here == made.end


def test_the_order_changes_the_steps_and_not_the_end() -> None:
    made = stacked()
    knobs = [knob for knob in ORDER if differs(made.naive, made.end, knob)]
    assert len(knobs) >= 3
    bills = Bills()
    orders = [(*order, *(set(ORDER) - set(knobs))) for order in (knobs, knobs[::-1], knobs[1:] + knobs[:1])]
    walks = [walk(made.naive, made.end, order, bills) for order in orders]
    ends = {round(each.waterfall.end.usd_per_month, 6) for each in walks}
    assert len(ends) == 1
    for each in walks:
        assert each.waterfall.steps[-1].bill.usd_per_month == pytest.approx(each.waterfall.end.usd_per_month)
        assert sum(step.saved_usd_per_month for step in each.waterfall.steps) == pytest.approx(
            made.waterfall.naive.usd_per_month - made.waterfall.end.usd_per_month
        )
    assert walks[0].waterfall.steps[0].saved_share != walks[1].waterfall.steps[0].saved_share


def test_the_documents_93_percent_is_reached_from_one_request_at_a_time() -> None:
    """C32: mostly by batching, as the article says."""
    made = stacked().waterfall
    assert made.saved_share > 0.93
    assert made.steps[0].knobs == ("batch",)
    assert made.steps[0].saved_share > 0.8


def test_a_step_that_does_not_fit_alone_is_taken_with_the_next() -> None:
    """A 70B in 16 bits fits four A100s and no single H100; in int4 it does."""
    big = deploy(find_model("llama-3.1-70b"), find_gpu("A100-80GB"), find_engine("vllm"), tp=4)
    start = Setup(big, load_of_shape(0.2, "const:500", "const:100"), CHEAP, TODAY)
    end = start.deployed(weights=Precision.int4, gpu=find_gpu("H100"), tp=1)
    made = walk(start, end, ("hardware", "weights", *(each for each in ORDER if each not in ("hardware", "weights"))))
    assert [each.knobs for each in made.waterfall.steps] == [("hardware", "weights")]
    assert made.waterfall.steps[0].bill == made.waterfall.end


def test_an_order_names_known_steps_once() -> None:
    assert order_from("spot,kv")[:2] == ("spot", "kv")
    assert sorted(order_from("spot,kv")) == sorted(ORDER)
    for wrong in ("spots", "kv,kv", ""):
        with pytest.raises(BadInput, match="not a step"):
            order_from(wrong)


# --- single levers --------------------------------------------------------------------------------------------------


def test_a_lever_that_has_nothing_to_move_says_why() -> None:
    reasons = {each.name: made.reason for each in all_levers() if isinstance(made := _cheap(each.name), NotServed)}
    assert "batches already" in reasons["continuous batching"]
    assert "block hashes" in reasons["prefix cache"]
    assert "hardly changes" in reasons["autoscaling"]


def _cheap(name: str) -> Setup | NotServed | None:
    lever = next(each for each in all_levers() if each.name == name)
    return None if lever.knob == "hardware" else lever.apply(NOW)


def test_no_precision_below_the_floor_is_tried() -> None:
    lever = next(each for each in all_levers(Choices(min_weights=Precision.fp8)) if each.name == "INT4 weights")
    assert isinstance(lever.apply(NOW), NotServed)


def test_fewer_bits_act_on_bytes_and_room_and_int4_not_on_arithmetic() -> None:
    made = effects_of(NOW, A100.model_copy(update={"weights": Precision.int4}), batch=16)
    assert made.weight_bytes_after < 0.4 * made.weight_bytes_before
    assert made.step_s_after < made.step_s_before
    assert made.prompt_s_after == pytest.approx(made.prompt_s_before, rel=0.1)
    assert made.sequences_after > made.sequences_before
    kept = effects_of(NOW, A100.model_copy(update={"kv": Precision.fp8}), batch=16)
    assert kept.weight_bytes_after == kept.weight_bytes_before
    assert kept.sequences_after == pytest.approx(2 * kept.sequences_before, rel=0.01)


def test_a_draft_is_the_smallest_of_the_family_with_its_vocabulary() -> None:
    found = smallest_relative(find_model("llama-3.3-70b"))
    assert found is not None
    assert found.key == "llama-3.2-1b"
    assert smallest_relative(find_model("llama-3.2-1b")) is None
    assert smallest_relative(find_model("gpt2-xl")) is None


def test_long_traffic_is_right_sized_for_its_bursts_and_never_to_a_dearer_gpu() -> None:
    """In the mean three A100s look cheaper; the minute with six times the load decides, and asks for H100s."""
    draw = np.random.default_rng(0)
    arrival_s = np.sort(np.concatenate([draw.uniform(0, 900, 12 * 900), draw.uniform(400, 460, 12 * 6 * 60)]))
    requests = NOW.load.trace.take(np.arange(len(arrival_s)) % len(NOW.load.trace))
    load = load_of_log(replace(requests, arrival_s=arrival_s - arrival_s[0]))
    window = load.busiest(5_000).trace
    assert len(window) == 5_000
    assert window.rate > 4 * load.trace.rate
    offers = (offer("A100-80GB", 1, 2.0), offer("H100-SXM", 1, 3.8))
    on_a100 = Setup(A100, load, offers, TODAY, SLOS)
    on_h100 = on_a100.deployed(gpu=find_gpu("H100"))
    bills = Bills()
    dear, cheap = bills.of(on_a100), bills.of(on_h100)
    assert isinstance(dear, Bill)
    assert isinstance(cheap, Bill)
    assert cheap.usd_per_month < dear.usd_per_month
    picked = right_size(on_a100, bills=bills)
    assert isinstance(picked, Setup)
    assert picked.deployment.gpu.key == "H100-SXM"
    assert isinstance(right_size(on_h100, bills=bills), NotServed)


# --- on the screen --------------------------------------------------------------------------------------------------


def described(found: Ranking | Waterfall) -> Answer:
    if isinstance(found, Ranking):
        result = LeversResult.model_construct(**dict(found), utilization=None, setup=NOW)
        return levers_view.levers(result, Request())
    return levers_view.stack(StackResult.model_construct(**dict(found), setup=NOW), Request())


def shown(found: Ranking | Waterfall, width: int = 120) -> str:
    screen = Console(width=width, file=StringIO())
    screen.print(renderable(described(found).sections()))
    return screen.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_no_number_of_the_stack_is_cut_at_120_columns() -> None:
    made = stacked()
    long = made.waterfall.steps[-1].model_copy(update={"name": "FP8 weights + FP8 KV cache + right-sized: 8×H100-SXM"})
    dear = made.waterfall.naive.model_copy(update={"usd_per_month": 12_345_678.0})
    text = shown(made.waterfall.model_copy(update={"steps": (long,), "naive": dear}))
    assert "…" not in text
    bill = long.bill
    for number in (
        "$12,345,678",
        usd(long.saved_usd_per_month),
        usd(bill.usd_per_month),
        usd(bill.usd_per_mtok.blended),
    ):
        assert number in text
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize(("together", "said"), [(0.1, "together it is less"), (0.9, "together it is more")])
def test_what_levers_save_together_is_explained_where_it_is_not_their_sum(together: float, said: str) -> None:
    ranking = ranked().ranking
    alone = [lever for lever in ranking.levers if lever.saved_share > 0]
    first, *rest = alone
    assert rest
    changes = {"taken": (first.name,), "sum_of_shares": 0.5, "saved_share": together}
    words = " ".join(shown(ranking.model_copy(update=changes)).split())
    assert said in words
    named = ", ".join(f"{lever.name} ({percent(lever.saved_share)} alone)" for lever in rest)
    assert f"Not among them: {named}." in words


def test_the_ranking_names_the_gpus_it_moves_to_and_tells_effort_and_risk_below() -> None:
    ranking = ranked().ranking
    moves = next(each for each in ranking.levers if each.knob == "hardware")
    text = shown(ranking)
    assert "…" not in text
    assert moves.bill
    words = " ".join(text.split())
    assert moves.bill.deployment.rpartition(" on ")[2] in words
    assert "acme" in words
    for each in ranking.levers:
        if each.bill:
            assert each.effort in words
            assert each.risk in words
            assert usd(each.bill.usd_per_month) in text


# --- what a draft rests on ------------------------------------------------------------------------------------------


@cache
def drafting_stack(**said: object) -> Stacked:
    """One GPU for sale and a tight SLO per token: a good draft needs fewer replicas."""
    alone = frozenset(KNOBS) - {"batch", "speculation"}
    lone = replace(
        NOW,
        load=short_load(5),
        offers=CHEAP[1:2],
        slos=parse_slos("ttft_p99=1,tpot_p99=13ms"),
    )
    return stack(lone, Choices(without=alone, **said))  # type: ignore[arg-type]


def test_a_stack_without_a_word_on_drafts_does_without_and_says_why() -> None:
    made = drafting_stack().waterfall
    assert made.drafted is None
    assert all("speculation" not in each.knobs for each in made.steps)
    assert next(each.reason for each in made.left_out if each.name == "speculative decoding").startswith("not tried")


@pytest.mark.parametrize("said", [{}, {"acceptance": 0.9}])
def test_a_draft_whose_acceptance_is_assumed_is_marked_in_the_stack(said: dict[str, float]) -> None:
    made = drafting_stack(draft_share=0.02, **said)
    drafted = made.waterfall.drafted
    assert drafted
    assert "speculation" in made.waterfall.steps[-1].knobs
    text = " ".join(shown(made.waterfall).split())
    assert drafted.assumed == (not said) == ("speculative decoding (assumed)" in text)
    assert ("assumed, not measured" in text) == (not said)


def test_a_draft_saves_time_from_the_acceptance_that_is_told() -> None:
    made = drafting_stack(draft_share=0.02)
    drafted, end = made.waterfall.drafted, made.end.deployment
    assert drafted
    assert drafted.pays_from
    assert end.speculation
    plain = float(decode_step(end.model_copy(update={"speculation": None}), drafted.batch, 1150))
    for off in (-0.05, 0.05):
        moved = end.speculation.model_copy(update={"acceptance": drafted.pays_from + off})
        took = float(decode_step(end.model_copy(update={"speculation": moved}), drafted.batch, 1150))
        assert (took < plain) == (off > 0)
