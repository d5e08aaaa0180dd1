"""The plan: every candidate ranked or rejected, bills that add up, wishes that only help."""

import math
from datetime import date

import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import deploy, valid_tp
from tokonomics.physics.memory import max_sequences
from tokonomics.planner.plan import Limits, Plan, plan
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.traffic.workload import Slo, Workload

TODAY = date(2026, 11, 15)
RECENT = date(2026, 11, 1)
BF16 = [Precision.bf16]
BUSY = Workload(rate=500, input_tokens=1000, output_tokens=300)
CHAT = Workload(rate=5, input_tokens=1000, output_tokens=300)


def offer(gpu: str, gpus: int, price: float, **more: object) -> Offer:
    fields = {"provider": "acme", "region": "here", "instance": f"{gpus}x{gpu}", "date": RECENT, "source": "test"}
    return Offer.model_validate(fields | {"gpu": gpu, "gpus": gpus, "usd_per_hour": price} | more)


OFFERS = (
    offer("L4", 1, 0.7),
    offer("A100-80GB", 1, 2.0),
    offer("A100-80GB", 8, 15.0),
    offer("H100-SXM", 1, 3.0, spot_usd_per_hour=1.0),
    offer("H100-SXM", 8, 22.0),
)


def planned(
    model: str = "llama-3.1-8b", workload: Workload = CHAT, offers: tuple[Offer, ...] = OFFERS, **more: object
) -> Plan:
    return plan(find_model(model), workload, offers, find_engine("vllm"), today=TODAY, **more)  # type: ignore[arg-type]


def test_every_offer_and_layout_is_ranked_or_rejected() -> None:
    result = planned()
    degrees = valid_tp(find_model("llama-3.1-8b"), 8)
    for each in OFFERS:
        for weights in ("bf16", "fp8", "int4"):
            for tp in (tp for tp in degrees if tp <= each.gpus):
                ranked = [
                    row for row in result.ranked
                    if (row.gpu, row.instance, row.tp, row.weights) == (each.gpu, each.instance, tp, weights)
                ]  # fmt: skip
                rejected = [
                    row for row in result.rejected
                    if (row.gpu, row.tp, row.weights) == (each.gpu, tp, weights)
                    and row.instance in (each.instance, None)
                ]  # fmt: skip
                assert len(ranked) + len(rejected) == 1, (each.instance, tp, weights)


def test_the_best_is_the_lowest_bill_found_by_trying_each_by_hand() -> None:
    result = planned(weights=[Precision.bf16])
    bills = []
    for each in OFFERS:
        for tp in (tp for tp in valid_tp(find_model("llama-3.1-8b"), each.gpus)):
            deployment = deploy(find_model("llama-3.1-8b"), find_gpu(each.gpu), find_engine("vllm"), tp=tp)
            if not max_sequences(deployment, 1300):
                continue
            capacity = ReplicaCurve(deployment, 1000, 300).capacity().rate
            replicas = math.ceil(5 / (0.7 * capacity))
            instances = math.ceil(replicas / (each.gpus // tp))
            bills.append(instances * (each.usd_per_hour or 0) * 730)
    assert result.best is not None
    assert result.best.usd_per_month == pytest.approx(min(bills))


def test_bills_add_up_and_agree_with_the_price_per_mtok() -> None:
    for row in planned().ranked:
        assert math.fsum(line.usd for line in row.bill.lines) == pytest.approx(row.usd_per_month)
        assert row.instances * row.instance_usd_per_hour * 730 == pytest.approx(row.usd_per_month)
        assert row.usd_per_mtok.blended * CHAT.tokens_per_month / 1e6 == pytest.approx(row.usd_per_month)
        split = row.usd_per_mtok.input * 1000 + row.usd_per_mtok.output * 300
        assert split == pytest.approx(row.usd_per_mtok.blended * 1300)
        assert row.usd_per_mtok_usage <= row.usd_per_mtok.blended * (1 + 1e-9)


def test_the_ranking_is_by_bill_and_prefers_more_bits_at_the_same_bill() -> None:
    rows = planned().ranked
    keys = [(round(row.usd_per_month, 2), -row.weights.bits) for row in rows]
    assert keys == sorted(keys)


def test_the_fleet_carries_the_traffic_within_the_promise() -> None:
    result = planned(slo=Slo(tpot_s=0.02))
    assert result.ranked
    for row in result.ranked:
        assert row.replicas * row.capacity_requests_per_s * 0.7 >= CHAT.rate * (1 - 1e-9)
        assert row.tpot_s <= 0.02
        assert row.utilization <= 0.7 + 1e-9
        assert row.gpus_paid >= row.replicas * row.gpus_per_replica


def test_fewer_requests_a_looser_promise_or_another_offer_never_raise_the_bill() -> None:
    def bill(**more: object) -> float:
        best = planned(**more).best  # type: ignore[arg-type]
        return best.usd_per_month if best else math.inf

    half = Workload(rate=2.5, input_tokens=1000, output_tokens=300)
    assert bill(workload=half) <= bill()
    assert bill(slo=Slo(tpot_s=0.05)) <= bill(slo=Slo(tpot_s=0.01))
    assert bill(offers=(*OFFERS, offer("L40S", 1, 1.0))) <= bill()
    assert bill(limits=Limits(max_utilization=0.9)) <= bill()


def test_spot_is_priced_where_there_is_a_spot_price_and_refused_elsewhere() -> None:
    result = planned(terms=Terms.spot)
    assert {row.gpu for row in result.ranked} == {"H100-SXM"}
    assert all(row.instance_usd_per_hour == 1.0 for row in result.ranked)
    assert {"no spot price"} == {row.reason for row in result.rejected if row.instance == "1xL4"}


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"model": "llama-3.1-70b", "offers": (OFFERS[1],), "weights": BF16}, "does not fit: 141 GB of weights"),
        ({"slo": Slo(tpot_s=0.0005)}, "misses TPOT by"),
        ({"limits": Limits(max_usd_per_gpu_hour=0.1)}, "dearer than $0.100"),
        ({"limits": Limits(max_gpus=1), "workload": BUSY}, "at most 1 allowed"),
        ({"workload": Workload(rate=1, input_tokens=200_000, output_tokens=1)}, "131,072 of context"),
        ({"offers": (offer("V100-16GB", 1, 1.0),)}, "does not run on volta"),
    ],
)  # fmt: skip
def test_a_wish_that_nothing_fulfils_names_what_is_to_blame(options: dict[str, object], fragment: str) -> None:
    result = planned(**options)  # type: ignore[arg-type]
    assert result.best is None
    assert any(fragment in row.reason for row in result.rejected), {row.reason for row in result.rejected}


def test_a_price_of_more_than_a_year_ago_does_not_win_unless_asked_for() -> None:
    gone = offer("H100-SXM", 1, 0.5, date=date(2025, 1, 1))
    assert all(row.price_date == RECENT for row in planned(offers=(*OFFERS, gone)).ranked)
    with_old = planned(offers=(*OFFERS, gone), limits=Limits(max_age_days=1000)).best
    assert with_old is not None
    assert with_old.price_date == date(2025, 1, 1)
    assert with_old.price_stale


def test_a_fresh_price_never_drives_the_older_ones_out() -> None:
    older = tuple(each.model_copy(update={"date": date(2026, 5, 1)}) for each in OFFERS)
    dear = offer("H100-SXM", 1, 9.0)
    before, after = planned(offers=older).best, planned(offers=(*older, dear)).best
    assert before is not None
    assert after is not None
    assert after.usd_per_month <= before.usd_per_month


def test_when_every_price_is_old_none_is_left_out_for_it() -> None:
    older = tuple(each.model_copy(update={"date": date(2023, 5, 1)}) for each in OFFERS)
    best = planned(offers=older).best
    assert best is not None
    assert best.price_stale


def test_weights_below_the_checkpoints_own_precision_are_flagged() -> None:
    result = planned()
    assert {row.weights for row in result.ranked if row.below_checkpoint} == {Precision.fp8, Precision.int4}
    faithful = result.best_at_checkpoint()
    assert faithful is not None
    assert faithful.weights is Precision.bf16
    moe = planned(model="gpt-oss-20b")
    assert all(not row.below_checkpoint for row in moe.ranked)


def test_the_leaders_are_one_row_a_kind_of_hardware() -> None:
    leaders = planned().leaders(100)
    kinds = [(row.gpu, row.gpus_per_replica, row.weights) for row in leaders]
    assert len(kinds) == len(set(kinds))


def test_unused_gpus_of_an_instance_are_paid_for_and_said() -> None:
    row = planned(offers=(OFFERS[4],), weights=[Precision.bf16]).best
    assert row is not None
    assert row.gpus_paid == 8
    assert row.usd_per_month == pytest.approx(22 * 730)
    unused = 8 - row.replicas * row.gpus_per_replica
    assert math.fsum(line.quantity for line in row.bill.lines if line.name == "unused GPUs") == pytest.approx(
        unused * 730
    )
