"""The plan: every candidate ranked or rejected, bills that add up, limits that only help, the pick of all picks."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np
import pytest
from tests.deployed import on
from tests.explore import some
from tests.planner.small_catalogue import BF16, BUSY, CHAT, OFFERS, RECENT, SLOS, asked, offer, planned
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Terms
from tokonomics.physics.deployment import Deployment, valid_tp
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.planner.plan import Question, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.prospects import prospects
from tokonomics.planner.vary import stretched
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.serving.steady import MissesSlo, ReplicaCurve
from tokonomics.sizing.layouts import Reason
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.screen import curve_for, floors, most_held
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.traffic.trace import make_trace


def bill(**more: object) -> float:
    best = planned(**more).best
    return best.usd_per_month if best else math.inf


def test_the_best_is_the_lowest_bill_found_by_trying_each_by_hand() -> None:
    result = planned(weights=BF16)
    bills = []
    for each in OFFERS:
        for tp in (tp for tp in valid_tp(find_model("llama-3.1-8b"), each.gpus)):
            deployment = on(gpu=each.gpu, tp=tp)
            if not max_sequences(deployment, 1300):
                continue
            capacity = ReplicaCurve(deployment, 1000, 300).capacity().rate
            replicas = math.ceil(5 / (0.7 * capacity))
            instances = math.ceil(replicas / (each.gpus // tp))
            bills.append(instances * (each.usd_per_hour or 0) * 730)
    assert there(result.best).usd_per_month == pytest.approx(min(bills))


def test_bills_add_up_and_agree_with_the_price_per_mtok() -> None:
    for row in planned().ranked:
        assert math.fsum(line.usd for line in row.bill.lines) == pytest.approx(row.usd_per_month)
        assert row.instances * row.instance_usd_per_hour * 730 == pytest.approx(row.usd_per_month)
        assert row.usd_per_mtok.blended * CHAT.workload.tokens_per_month / 1e6 == pytest.approx(row.usd_per_month)
        split = row.usd_per_mtok.input * 1000 + row.usd_per_mtok.output * 300
        assert split == pytest.approx(row.usd_per_mtok.blended * 1300)
        assert row.usd_per_mtok_usage <= row.usd_per_mtok.blended * (1 + 1e-9)


def test_the_ranking_is_by_bill_and_prefers_more_bits_at_the_same_bill() -> None:
    rows = planned().ranked
    keys = [(round(row.usd_per_month, 2), -row.weights.bits) for row in rows]
    assert keys == sorted(keys)


def test_the_quick_fleet_carries_the_traffic_within_the_slo_in_the_mean() -> None:
    result = planned(slos=parse_slos("tpot_mean=0.02"))
    assert result.ranked
    for row in result.ranked:
        assert row.replicas * row.capacity_requests_per_s * 0.7 >= 5 * (1 - 1e-9)
        assert there(row.tpot_s.mean) <= 0.02
        assert row.load_share <= 0.7 + 1e-9
        assert row.gpus_paid >= row.replicas * row.gpus_per_replica


def exhaustive(load: Load, slos: tuple[Slo, ...], weights: tuple[Precision, ...], most: int) -> Iterator[float]:
    """USD a month of every layout on every offer, each simulated on 1, 2, 3 … replicas until all SLOs hold."""
    for each, precision in product(OFFERS, weights):
        gpu, model = find_gpu(each.gpu), find_model("llama-3.1-8b")
        for tp in valid_tp(model, each.gpus):
            one = Deployment(model=model, gpu=gpu, engine=find_engine("vllm"), tp=tp, weights=precision, kv=BF16[0])
            if not max_sequences(one, load.longest):
                continue
            replicas = next((number for number in range(1, most + 1) if holds(one, load, slos, number)), None)
            if replicas:
                yield math.ceil(replicas / (each.gpus // tp)) * (each.usd_per_hour or 0) * 730


def holds(one: Deployment, load: Load, slos: tuple[Slo, ...], replicas: int) -> bool:
    """With the engine's own batch limit, or with the one that the closed form allows."""
    limits: list[int | None] = [None]
    strictest = min((slo.seconds for slo in slos if slo.latency == "tpot"), default=None)
    try:
        limits.append(curve_for(one, load).capacity(strictest).batch)
    except MissesSlo:
        return False
    for limit, router in product(limits, (Router.round_robin, Router.least_outstanding)):
        simulation = simulate(one, load.trace, FleetSettings(replicas=replicas, router=router), max_sequences=limit)
        if what_breaks(simulation, outcome(simulation, slos)) is None:
            return True
    return False


@pytest.mark.parametrize(
    ("rate", "shape", "slo"),
    some(
        [
            (5, ("1000", "300"), "ttft_p99=0.5,tpot_p99=0.05"),
            (30, ("lognormal:mean=800,p99=4000", "lognormal:mean=200,p99=900"), "ttft_p99=1,tpot_p99=0.03"),
            (12, ("300", "600"), "e2e_p90=15"),
            (40, ("500", "100"), "ttft_mean=0.2"),
        ],
        keep=1,
    ),
)
def test_the_pick_is_that_of_simulating_everything(rate: float, shape: tuple[str, str], slo: str) -> None:
    load, slos = load_of_shape(rate, *shape), parse_slos(slo)
    weights = (Precision.bf16, Precision.fp8)
    result = planned(load=load, slos=slos, weights=weights, simulate=True)
    assert there(result.best).usd_per_month == pytest.approx(min(exhaustive(load, slos, weights, most=24)))
    assert result.simulations > 0


def test_the_pick_keeps_its_slo_and_one_replica_less_does_not() -> None:
    load = load_of_shape(40, "const:1000", "const:300")
    made = study(asked(load=load, slos=SLOS, weights=BF16, simulate=True, offers=(OFFERS[1],)))
    best = there(made.plan.best)
    assert best.replicas > 1
    assert there(best.ttft_s.p99) <= 0.5
    assert there(best.tpot_s.p99) <= 0.05
    deployment = made.ranked_as(best).sized.deployment
    assert not holds(deployment, load, SLOS, best.replicas - 1)


@pytest.mark.parametrize("simulated", some([False, True], keep=1))
def test_fewer_requests_a_looser_slo_or_another_offer_never_raise_the_bill(simulated: bool) -> None:
    now = bill(slos=SLOS, simulate=simulated)
    loose, strict = (parse_slos(text) for text in ("ttft_p99=2,tpot_p99=0.2", "ttft_p99=0.2,tpot_p99=0.02"))
    assert bill(slos=loose, simulate=simulated) <= now <= bill(slos=strict, simulate=simulated)
    for rate in (1, 2.5, 4.5):
        assert bill(load=load_of_shape(rate, "const:1000", "const:300"), slos=SLOS, simulate=simulated) <= now
    assert bill(offers=(*OFFERS, offer("L40S", 1, 1.0)), slos=SLOS, simulate=simulated) <= now
    assert bill(limits=Limits(max_usd_per_gpu_hour=2.5), slos=SLOS, simulate=simulated) >= now
    assert bill(limits=Limits(max_gpus=2), slos=SLOS, simulate=simulated) >= now
    assert bill(limits=Limits(max_utilization=0.3), slos=SLOS, simulate=simulated) >= now
    assert bill(weights=BF16, slos=SLOS, simulate=simulated) >= now


def test_the_requests_of_a_log_are_the_ones_served() -> None:
    log = open_trace("azure-conv").read()
    load = load_of_log(log)
    best = there(planned(load=load, slos=SLOS, simulate=True).best)
    assert best.simulated
    assert load.workload.rate == pytest.approx((len(log) - 1) / log.duration_s)
    assert load.workload.input_tokens == pytest.approx(float(log.input_tokens.mean()))


def test_a_log_replayed_at_another_rate_keeps_its_requests() -> None:
    log = open_trace("azure-code").read()
    twice = load_of_log(log, 2 * log.rate)
    assert twice.trace.duration_s == pytest.approx(log.duration_s / 2)
    assert (twice.trace.input_tokens == log.input_tokens).all()


def mixed(rate: float) -> Load:
    """Long prompts with short answers and short prompts with long ones, in turns: lengths that anti-correlate."""
    count = 20_000
    arrivals = np.cumsum(np.random.default_rng(7).exponential(1 / rate, count))
    inputs, outputs = np.tile([8000, 50], count // 2), np.tile([4, 400], count // 2)
    return load_of_log(make_trace(arrivals, inputs, outputs))


@pytest.mark.explore
def test_lengths_that_anti_correlate_do_not_cost_a_replica() -> None:
    load, slos = mixed(40), parse_slos("ttft_p99=5")
    found = bill(load=load, slos=slos, weights=BF16, simulate=True)
    assert found == pytest.approx(min(exhaustive(load, slos, BF16, most=30)))


def test_requests_with_the_same_timestamp_are_kept_apart_by_enough_replicas() -> None:
    # Ten requests at every full second: on one replica they meet, however slowly the log is replayed.
    arrivals = np.repeat(np.arange(2000.0), 10)
    load = load_of_log(make_trace(arrivals, np.full(20_000, 4000), np.full(20_000, 20)))
    best = there(planned(load=load, slos=parse_slos("ttft_p99=0.6"), weights=BF16, simulate=True).best)
    assert there(best.ttft_s.p99) <= 0.6


def test_a_lone_request_is_no_quicker_than_the_floor_says() -> None:
    slos = parse_slos("ttft_p99=1,ttft_p50=1,tpot_p90=1,e2e_p99=99,e2e_mean=99,ttft_mean=1")
    for seed, gpu in product(range(3), ("H100-SXM", "L4")):
        load = load_of_shape(2, "lognormal:mean=800,p99=6000", "lognormal:mean=200,p99=900", seed=seed)
        one = on(gpu=gpu)
        apart = replace(load.trace, arrival_s=np.arange(len(load.trace), dtype=np.float64) * 1e4)
        delivered = {each.slo: each.delivered_s or 0.0 for each in outcome(simulate(one, apart), slos).slo}
        for slo, floor_s in floors(step_model(one), load, slos).items():
            assert floor_s <= delivered[str(slo)] * 1.01, (gpu, slo)
            if slo.latency == "ttft":
                assert floor_s >= 0.7 * delivered[str(slo)]


def test_a_batch_from_a_log_is_fed_evenly() -> None:
    # Everything in the log arrives in its last hundredth.
    arrivals = np.concatenate([[0.0], np.linspace(99_000, 100_000, 9_999)])
    log = make_trace(arrivals, np.full(10_000, 500), np.full(10_000, 100))
    even = load_of_log(log).evenly()
    assert np.diff(even.trace.arrival_s) == pytest.approx(np.full(9_999, 100_000 / 9_999))
    assert bill(load=even, simulate=True) < bill(load=load_of_log(log), simulate=True)


def test_spot_is_priced_where_there_is_a_spot_price_and_refused_elsewhere() -> None:
    result = planned(terms=(Terms.spot,))
    assert {row.gpu for row in result.ranked} == {"H100-SXM"}
    assert all(row.instance_usd_per_hour == 1.0 for row in result.ranked)
    assert {"no spot price"} == {row.reason for row in result.rejected if row.instance == "1xL4"}
    both = planned(terms=tuple(Terms))
    assert {row.terms for row in both.ranked} == {Terms.spot, Terms.on_demand}
    assert there(both.best).usd_per_month <= min(bill(), bill(terms=(Terms.spot,)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "llama-3.1-70b", "offers": (OFFERS[1],), "weights": BF16}, Reason.does_not_fit),
        ({"slos": parse_slos("tpot_p99=0.0005")}, Reason.too_slow),
        ({"slos": parse_slos("ttft_p50=0.001")}, Reason.too_slow),
        ({"limits": Limits(max_usd_per_gpu_hour=0.1)}, Reason.too_expensive),
        ({"limits": Limits(max_gpus=1), "load": BUSY}, Reason.too_many_gpus),
        ({"load": load_of_shape(1, "const:200000", "const:1")}, Reason.too_long),
        ({"offers": (offer("V100-16GB", 1, 1.0),)}, Reason.not_supported),
    ],
)
def test_a_wish_that_nothing_fulfils_names_what_is_to_blame(options: dict[str, object], reason: Reason) -> None:
    result = planned(**options)
    assert result.best is None
    assert reason in {row.kind for row in result.rejected}


def test_a_price_of_more_than_a_year_ago_does_not_win_unless_asked_for() -> None:
    gone = offer("H100-SXM", 1, 0.5, date=date(2025, 1, 1))
    assert all(row.price_date == RECENT for row in planned(offers=(*OFFERS, gone)).ranked)
    with_old = there(planned(offers=(*OFFERS, gone), limits=Limits(max_age_days=1000)).best)
    assert (with_old.price_date, with_old.price_stale) == (date(2025, 1, 1), True)
    assert planned(offers=(gone,)).best is None
    assert planned(offers=(gone,), limits=Limits(max_age_days=30)).best is None


def test_a_fresh_price_never_drives_the_older_ones_out() -> None:
    older = tuple(each.model_copy(update={"date": date(2026, 5, 1)}) for each in OFFERS)
    dear = offer("H100-SXM", 1, 9.0)
    before, after = there(planned(offers=older).best), there(planned(offers=(*older, dear)).best)
    assert after.usd_per_month <= before.usd_per_month


def test_weights_below_the_checkpoints_own_precision_are_flagged() -> None:
    result = planned()
    assert {row.weights for row in result.ranked if row.below_checkpoint} == {Precision.fp8}
    asked_for = planned(weights=(Precision.bf16, Precision.fp8, Precision.int4))
    assert {row.weights for row in asked_for.ranked if row.below_checkpoint} == {Precision.fp8, Precision.int4}
    faithful = there(result.best_at_checkpoint())
    assert faithful.weights is Precision.bf16
    moe = planned(model="gpt-oss-20b")
    assert all(not row.below_checkpoint for row in moe.ranked)


def test_stages_stay_in_one_machine_unless_it_is_a_whole_node() -> None:
    small = (offer("L4", 1, 0.7), offer("L4", 4, 2.8), offer("A100-80GB", 4, 8.0))
    for row in planned(model="llama-3.1-70b", offers=small).ranked:
        assert row.gpus_per_replica <= int(row.instance.split("x")[0])
    # 671 GB of weights: two whole nodes of eight 80 GB GPUs hold them, one does not.
    nodes = planned(model="deepseek-v3", offers=(offer("H100-SXM", 8, 20.0),), weights=(Precision.fp8,)).ranked
    assert nodes
    for row in nodes:
        assert (row.tp, row.pp, row.instances) == (8, row.pp, row.replicas * row.pp)
        assert row.pp > 1


def test_the_leaders_are_one_row_a_kind_of_hardware() -> None:
    leaders = planned().leaders(100)
    kinds = [(row.gpu, row.gpus_per_replica, row.weights) for row in leaders]
    assert len(kinds) == len(set(kinds))


def test_unused_gpus_of_an_instance_are_paid_for_and_said() -> None:
    row = there(planned(offers=(OFFERS[4],), weights=BF16).best)
    assert row.gpus_paid == 8
    assert row.usd_per_month == pytest.approx(22 * 730)
    unused = 8 - row.replicas * row.gpus_per_replica
    assert math.fsum(line.quantity for line in row.bill.lines if line.name == "unused GPUs") == pytest.approx(
        unused * 730
    )


# --- the cheapest alone, by the closed form: found with less work than a table of all, and the same -------------------


RATES = (0.01, 3.0, 40.0, 400.0)
STRICT = "tpot_p99=80ms"
ROUNDED = 1.01  # dollars are said to three digits


def at(rate: float, model: str = "llama-3.1-8b") -> Question:
    return asked(model, BUSY.at(rate))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-32b"])
def test_the_pick_alone_is_that_of_the_whole_plan(rate: float, model: str) -> None:
    whole, alone = study(at(rate, model)), study(at(rate, model), pick_only=True)
    assert alone.plan.best == whole.plan.best
    assert len(alone.search.screened) <= len(whole.search.screened)


def test_at_many_replicas_most_are_ruled_out_by_their_answers() -> None:
    whole, alone = study(at(400.0)), study(at(400.0), pick_only=True)
    assert len(alone.search.screened) < len(whole.search.screened)


@pytest.mark.parametrize("gpu", ["L4", "A100-80GB", "H100-SXM"])
@pytest.mark.parametrize("slo", [None, STRICT])
def test_no_replica_holds_more_than_its_answers_alone(gpu: str, slo: str | None) -> None:
    deployment = on(gpu=gpu)
    slos = parse_slos(slo) if slo else ()
    limit = slos[0].seconds if slos else None
    for load in (BUSY, stretched(BUSY, inputs=4), stretched(BUSY, outputs=0.1)):
        assert curve_for(deployment, load).capacity(limit).rate <= most_held(deployment, load, slos)


def test_longer_requests_stand_on_the_same_hosts() -> None:
    def hosts(load: Load) -> dict[int, object]:
        return {id(found): found for found in prospects(at(1.0), load)}

    short, long = hosts(BUSY), hosts(stretched(BUSY, inputs=2))
    assert short
    assert set(long) <= set(short)


@pytest.mark.parametrize("usd_per_hour", [1.0, 3.7, 12.0])
def test_below_a_bill_no_host_is_left_out_that_costs_less(usd_per_hour: float) -> None:
    question = at(1.0)
    whole, few = prospects(question, BUSY), prospects(question, BUSY, usd_per_hour)
    assert set(map(id, few)) <= set(map(id, whole))
    assert all(found in few for found in whole if found.usd_per_hour(1) <= usd_per_hour)
    assert len(few) < len(whole)


@pytest.mark.parametrize("rate", [3.0, 40.0])
def test_what_is_said_of_the_bill_meanwhile_is_true_of_the_answer(rate: float) -> None:
    """Every lower bound is at most the answer's bill, every upper bound at least that."""
    question, heard = replace(at(rate), simulate=True, slos=parse_slos("ttft_p99=2,tpot_p99=50ms")), list[str]()
    best = there(study(question, heard.append).plan.best)
    said = [line.partition("; the cheapest fleet costs ")[2] for line in heard if "; the cheapest fleet costs " in line]
    assert said[-1].startswith("$")
    for text in said:
        bounds = [float(figure.replace(",", "")) for figure in re.findall(r"\$([\d,.]*\d)", text)]
        assert bounds[0] <= best.usd_per_month * ROUNDED
        assert text.endswith("or more") or bounds[-1] >= best.usd_per_month / ROUNDED
    heard.clear()
    study(replace(question, disaggregate=True), heard.append)
    assert heard
    assert not any("cheapest fleet" in line for line in heard)
