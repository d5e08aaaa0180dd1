"""Levers: each alone is a direct simulation of the changed setup; saving and remaining bill make up the old one.

The order of a stack changes its steps and not its end.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache
from itertools import combinations, permutations

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import OFFERS, SLOS, TODAY, offer
from tests.there import there

from tokonomics.catalog.checkpoints import recovery_of
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
from tokonomics.levers.ranking import Ranked, effects_of, pull, quality_kept, rank_levers
from tokonomics.levers.stack import ORDER, Stacked, naive_setup, order_from, stack, walk
from tokonomics.money.cache_tiers import DRAM_PRICE_DATE
from tokonomics.money.trace_bills import ApiCost
from tokonomics.physics.deployment import Deployment, DraftMethod
from tokonomics.physics.steptime import decode_step
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos

A100 = on(gpu="A100-80GB")
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


def billed(setup: Setup) -> Bill:
    """Its bill, with nothing remembered."""
    bill = Bills().bill_of(setup)
    assert isinstance(bill, Bill)
    return bill


NOW = Setup(A100, short_load(40), CHEAP, TODAY, SLOS)
QUICK = ("weights", "kv", "commit", "spot", "hardware", "speculation")


@cache
def changed(name: str) -> Setup | NotServed:
    """Where a lever leads from today's setup: the search for GPUs is made once."""
    return next(lever for lever in all_levers() if lever.name == name).apply(NOW)


@cache
def ranked() -> Ranked:
    def remembered(lever: Lever) -> Lever:
        return replace(lever, apply=lambda setup: changed(lever.name) if setup is NOW else lever.apply(setup))

    made = rank_levers(NOW, [remembered(lever) for lever in all_levers() if lever.knob in QUICK])
    assert isinstance(made, Ranked)
    return made


@cache
def stacked() -> Stacked:
    return stack(NOW, Choices(without=frozenset({"speculation", "disaggregation"})))


def test_each_lever_alone_is_a_direct_simulation_of_the_changed_setup() -> None:
    """And what it saves is the difference of two bills made apart: nothing remembered on the way moves a bill."""
    now, tried = billed(NOW), 0
    for pulled in ranked().ranking.levers:
        setup = changed(pulled.name)
        if pulled.bill is None or isinstance(setup, NotServed):
            continue
        fleet = FleetSettings(replicas=pulled.bill.replicas, router=pulled.bill.router)
        limit = pulled.bill.max_sequences
        made = outcome(simulate(setup.deployment, setup.load.trace, fleet, max_sequences=limit), SLOS)
        assert made.slo_met
        assert (made.ttft_s, made.tpot_s) == (pulled.bill.ttft_s, pulled.bill.tpot_s)
        alone = billed(setup)
        assert pulled.bill == alone
        assert pulled.saved_usd_per_month == pytest.approx(now.usd_per_month - alone.usd_per_month)
        assert pulled.saved_share == pytest.approx(1 - alone.usd_per_month / now.usd_per_month)
        tried += 1
    assert tried >= 4


def test_together_is_the_bill_of_one_setup_and_no_dearer_than_the_best_lever() -> None:
    ranking = ranked().ranking
    savings = [round(lever.saved_usd_per_month, 2) for lever in ranking.levers if lever.bill]
    assert savings == sorted(savings, reverse=True)
    again = billed(ranked().setup)
    assert again.usd_per_month == pytest.approx(ranking.together.usd_per_month)
    assert ranking.saved_share == pytest.approx(1 - again.usd_per_month / ranking.now.usd_per_month)
    assert ranking.now.usd_per_month - again.usd_per_month >= savings[0] - 0.01


def test_a_lever_taken_matters() -> None:
    ranking, end = ranked().ranking, ranked().setup
    knobs = {lever.name: lever.knob for lever in all_levers()}
    assert ranking.taken
    for name in ranking.taken:
        back = Bills().bill_of(moved(end, NOW, knobs[name]))
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
    levers = [lever for lever in all_levers() if lever.knob in knobs and lever.name not in _SECOND_OF_A_KNOB]
    return [replace(lever, apply=_on_h100) if lever.knob == "hardware" else lever for lever in levers]


def test_levers_on_different_knobs_commute() -> None:
    start = replace(NOW, load=_talks())
    for others in (("tiers", "router"), ("autoscale", "router"), ("disaggregation", "spot")):
        some = _knobs("kv", "weights", "hardware", *others)
        assert len(some) == 5
        ends = [_turned(order, start) for order in permutations(some)]
        assert isinstance(ends[0], Setup)
        assert all(end == ends[0] for end in ends)


def test_levers_that_are_not_simulated_together_refuse_each_other_in_either_order() -> None:
    start = replace(NOW, load=_talks())
    for one, other in combinations(_knobs("tiers", "autoscale", "disaggregation"), 2):
        assert _turned((one, other), start) == other.name
        assert _turned((other, one), start) == one.name


def test_a_tier_follows_the_hardware_it_is_served_on() -> None:
    tiers, hardware = (_knobs(knob)[0] for knob in ("tiers", "hardware"))
    tiers = next(lever for lever in all_levers(Choices(tiers="dram=100")) if lever.knob == tiers.knob)
    start = replace(NOW, load=_talks())
    for order in ((tiers, hardware), (hardware, tiers)):
        end = _turned(order, start)
        assert isinstance(end, Setup)
        (memory,) = end.memories()
        assert memory.tier.bytes_per_s == pytest.approx(36.6 / 64 * find_gpu("H100").pcie_bytes_per_s)


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
    made = billed(wished)
    (memory,) = made.memories
    weights_gb = find_model("llama-3.1-8b").weight_bytes(Precision.bf16) / 1e9
    left_gb = (200 * 1.073741824 - weights_gb - 2 * 3 * 1.073741824) / 2
    assert "2xA100-80GB" in made.bought
    assert memory.tier.size_bytes / 1e9 == pytest.approx(left_gb, abs=1)
    assert memory.usd_per_gb_hour == 0
    assert made.memory_assumed
    assert made.cached_share > 0
    here, bills = Setup(A100, _talks(), sold, TODAY), Bills()
    now = bills.bill_of(here)
    assert isinstance(now, Bill)
    assert f"takes {math.floor(left_gb)} GB a replica" in pull(lever, here, now, bills).risk


def test_host_memory_that_is_not_told_or_not_left_is_refused() -> None:
    lever = _knobs("tiers")[0]
    for memory_gb in (None, 18.5):
        wished = lever.apply(Setup(A100, _talks(), (offer("A100-80GB", 1, 2.0, memory_gb=memory_gb),), TODAY))
        assert isinstance(wished, Setup)
        assert isinstance(Bills().bill_of(wished), NotServed)


def test_an_old_price_of_a_memory_marks_the_bill() -> None:
    setup = replace(NOW, load=_talks(), slos=())
    fresh, later = TODAY, DRAM_PRICE_DATE + timedelta(91)
    stale = {}
    for tiers, today in ((None, fresh), ("ssd=500", fresh), ("dram=50", fresh), ("dram=50", later)):
        stale[tiers, today] = billed(replace(setup, tiers=tiers, today=today)).price_stale
    assert [key for key, old in stale.items() if old] == [("ssd=500", fresh), ("dram=50", later)]


def test_the_baseline_serves_one_request_at_a_time_in_16_bit_on_demand() -> None:
    naive = naive_setup(replace(NOW, commit=True, router=Router.prefix_aware).deployed(weights=Precision.int4))
    assert (naive.max_sequences, naive.prefix_cache, naive.commit, naive.spot) == (1, False, False, False)
    assert (naive.deployment.weights, naive.deployment.kv) == (Precision.bf16, Precision.bf16)
    assert stacked().waterfall.naive.batch == pytest.approx(1.0)


def test_one_at_a_time_requests_go_to_whoever_is_free() -> None:
    """With answers of unequal length, taking turns would make the baseline look worse than anyone runs it."""
    naive = naive_setup(replace(NOW, load=short_load(4, "500", "lognormal:mean=200,p99=900")))
    made, turns = billed(naive), billed(replace(naive, router=Router.round_robin))
    assert made.router is Router.least_outstanding
    assert made.replicas < turns.replicas


def test_the_steps_add_up_to_the_whole_and_the_first_is_batching() -> None:
    """C32: the document's 93 % is reached from one request at a time, mostly by batching, as the article says."""
    made = stacked().waterfall
    saved = sum(step.saved_usd_per_month for step in made.steps)
    assert made.naive.usd_per_month - saved == pytest.approx(made.end.usd_per_month)
    assert sum(step.saved_share for step in made.steps) == pytest.approx(made.saved_share)
    assert made.steps[-1].bill == made.end
    assert made.steps[0].knobs == ("batch",)
    assert made.batched == made.steps[0].bill
    assert made.saved_share_of_batched == pytest.approx(1 - made.end.usd_per_month / made.batched.usd_per_month)
    assert made.saved_share > 0.93
    assert made.steps[0].saved_share > 0.8


def test_each_step_is_billed_as_the_setup_it_leads_to() -> None:
    made = stacked()
    here = made.naive
    for step in made.waterfall.steps:
        for knob in step.knobs:
            here = moved(here, made.end, knob)
        assert Bills().bill_of(here) == step.bill
    assert here == made.end


def test_the_order_changes_the_steps_and_not_the_end() -> None:
    made = stacked()
    knobs = [knob for knob in ORDER if differs(made.naive, made.end, knob)]
    assert len(knobs) >= 3
    bills = Bills()
    orders = [(*order, *(set(ORDER) - set(knobs))) for order in (knobs, knobs[::-1], knobs[1:] + knobs[:1])]
    walks = [walk(made.naive, made.end, order, bills) for order in orders]
    saved = made.waterfall.naive.usd_per_month - made.waterfall.end.usd_per_month
    for waterfall in (walked.waterfall for walked in walks):
        assert waterfall.end == made.waterfall.end == waterfall.steps[-1].bill
        assert sum(step.saved_usd_per_month for step in waterfall.steps) == pytest.approx(saved)
    assert walks[0].waterfall.steps[0].saved_share != walks[1].waterfall.steps[0].saved_share


def test_a_step_that_does_not_fit_alone_is_taken_with_the_next() -> None:
    """A 70B in 16 bits fits four A100s and no single H100; in int4 it does."""
    big = on("llama-3.1-70b", "A100-80GB", tp=4)
    start = Setup(big, load_of_shape(0.2, "const:500", "const:100"), CHEAP, TODAY)
    end = start.deployed(weights=Precision.int4, gpu=find_gpu("H100"), tp=1)
    made = walk(start, end, ("hardware", "weights", *(knob for knob in ORDER if knob not in ("hardware", "weights"))))
    assert [step.knobs for step in made.waterfall.steps] == [("hardware", "weights")]
    assert made.waterfall.steps[0].bill == made.waterfall.end


def test_an_order_names_known_steps_once() -> None:
    assert order_from("spot,kv")[:2] == ("spot", "kv")
    assert sorted(order_from("spot,kv")) == sorted(ORDER)
    for wrong in ("spots", "kv,kv", ""):
        with pytest.raises(BadInput) as refused:
            order_from(wrong)
        assert refused.value.field == "order"


def test_levers_that_have_nothing_to_move_do_not_apply() -> None:
    levers = [lever for lever in all_levers() if lever.knob != "hardware"]
    idle = {lever.name for lever in levers if isinstance(lever.apply(NOW), NotServed)}
    assert {"continuous batching", "prefix cache", "session-affine router", "autoscaling"} <= idle
    assert not {"FP8 KV cache", "commitment", "spot"} & idle


def test_no_precision_below_the_floor_is_tried() -> None:
    lever = next(lever for lever in all_levers(Choices(min_weights=Precision.fp8)) if lever.name == "INT4 weights")
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
    assert billed(on_h100).usd_per_month < billed(on_a100).usd_per_month
    picked = right_size(on_a100, bills=bills)
    assert isinstance(picked, Setup)
    assert picked.deployment.gpu.key == "H100-SXM"
    assert isinstance(right_size(on_h100, bills=bills), NotServed)


@cache
def drafting_stack(model: str = "llama-3.1-8b", **said: object) -> Stacked:
    """One GPU for sale and a tight SLO per token: a good draft needs fewer replicas."""
    alone = frozenset(KNOBS) - {"batch", "speculation"}
    lone = replace(NOW, load=short_load(5), offers=CHEAP[1:2], slos=parse_slos("ttft_p99=1,tpot_p99=13ms"))
    lone = lone.deployed(model=find_model(model))
    return stack(lone, Choices(without=alone, **said))  # type: ignore[arg-type]


def test_a_stack_drafts_as_published_if_nobody_says_a_word_on_drafts() -> None:
    found = drafting_stack()
    drafted, speculation = found.waterfall.drafted, found.end.deployment.speculation
    assert drafted
    assert speculation
    assert (speculation.method, drafted.assumed) == (DraftMethod.eagle3, False)
    assert drafted.source


def test_a_stack_without_a_word_on_drafts_does_without_where_none_is_published() -> None:
    made = drafting_stack("qwen2.5-7b").waterfall
    assert made.drafted is None
    assert all("speculation" not in step.knobs for step in made.steps)
    assert "speculative decoding" in {lever.name for lever in made.left_out}


@pytest.mark.parametrize("said", [{}, {"acceptance": 0.9}])
def test_a_draft_whose_acceptance_is_assumed_is_marked_in_the_stack(said: dict[str, float]) -> None:
    made = drafting_stack(draft_share=0.02, **said).waterfall
    assert made.drafted
    assert "speculation" in made.steps[-1].knobs
    assert made.drafted.assumed == (not said)


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


def on_h100(model: str, weights: Precision = Precision.bf16) -> Deployment:
    return on(model, "H100", tp=1, weights=weights, kv=Precision.bf16)


def test_what_leaves_the_precisions_alone_loses_nothing() -> None:
    before = on_h100("llama-3.1-8b", weights=Precision.fp8)
    assert quality_kept(before, before.model_copy(update={"tp": 4})).share == 1
    assert quality_kept(before, before).scores == ()
    more_bits = before.model_copy(update={"weights": Precision.bf16})
    assert quality_kept(before, more_bits).share == 1


def test_fewer_bits_keep_what_was_scored_and_say_by_whom() -> None:
    before = on_h100("llama-3.1-8b")
    kept = quality_kept(before, before.model_copy(update={"weights": Precision.int4}))
    scored = recovery_of(find_model("llama-3.1-8b"), Precision.int4)
    assert scored is not None
    assert kept.share == scored.recovery
    assert scored.source in kept.said


def test_weights_and_kv_cache_together_keep_the_product() -> None:
    before = on_h100("llama-3.3-70b")
    both = before.model_copy(update={"weights": Precision.fp8, "kv": Precision.fp8})
    apart = [quality_kept(before, before.model_copy(update={part: Precision.fp8})).share for part in ("weights", "kv")]
    assert None not in apart
    assert quality_kept(before, both).share == pytest.approx((apart[0] or 0) * (apart[1] or 0))


def test_what_nobody_scored_is_not_scored() -> None:
    before = on_h100("llama-3.1-8b")
    kept = quality_kept(before, before.model_copy(update={"kv": Precision.fp8}))
    assert kept.share is None
    assert kept.scores == ()


def hosted(usd_per_mtok: float, areas: tuple[str, ...] = ()) -> ApiCost:
    rate = {"usd_per_mtok": usd_per_mtok, "input_usd_per_mtok": usd_per_mtok, "output_usd_per_mtok": usd_per_mtok}
    return ApiCost(name="acme:m", usd_per_request=1e-4, date=TODAY, source="test", areas=areas, **rate)


def test_calling_an_api_is_a_lever_that_is_combined_with_no_other() -> None:
    """Its saving is today's bill without the API's, for the same tokens; the others together stay as they were."""
    levers = [lever for lever in all_levers() if lever.knob in ("commit", "spot")]
    without, made = rank_levers(NOW, levers), rank_levers(NOW, levers, apis=[hosted(0.01)])
    assert isinstance(without, Ranked)
    assert isinstance(made, Ranked)
    rows = made.ranking.levers
    assert [row.name for row in rows if row.knob != "api"] == [row.name for row in without.ranking.levers]
    (call,) = [row for row in rows if row.knob == "api"]
    usd = 0.01 * NOW.load.workload.tokens_per_month / 1e6
    assert call.saved_usd_per_month == pytest.approx(made.ranking.now.usd_per_month - usd)
    assert call.saved_share == pytest.approx(1 - usd / made.ranking.now.usd_per_month)
    assert made.ranking.taken == without.ranking.taken
    assert call.name not in made.ranking.taken
    assert made.ranking.together == without.ranking.together
    api = there(made.ranking.api)
    assert api.fleet_usd_per_month == made.ranking.together.usd_per_month
    assert api.cheaper == (usd < made.ranking.together.usd_per_month)
    savings = [row.saved_usd_per_month for row in rows if row.bill or row.api]
    assert savings == sorted(savings, reverse=True)


def test_an_api_that_may_be_elsewhere_or_that_nobody_sells_is_a_lever_that_does_not_apply() -> None:
    for apis, region in (([], ()), ([hosted(0.01)], ("EU",)), ([hosted(0.01, ("US",))], ("EU",))):
        made = rank_levers(NOW, [], apis=apis, region=region)
        assert isinstance(made, Ranked)
        (call,) = made.ranking.levers
        assert call.reason
        assert (call.api, call.saved_usd_per_month) == (None, 0)
    assert rank_levers(NOW, [], apis=[hosted(0.01, ("FR",))], region=("EU",)).ranking.levers[0].api  # type: ignore[union-attr]
