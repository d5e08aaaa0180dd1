"""One price rule: the same GPUs on the same terms cost the same, whoever asks."""

from dataclasses import replace
from datetime import date

import pytest
from tests.explore import some
from tests.there import there

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offers import STALE_AFTER_DAYS, Offer, load_offers
from tokonomics.catalog.places import Seller
from tokonomics.measure.meter.spending import Prices
from tokonomics.questions.cost import cost, own_hardware
from tokonomics.questions.fleet import fleet
from tokonomics.questions.levers import cache, setup_of
from tokonomics.questions.meter import asked as meter_settings
from tokonomics.questions.plan import plan
from tokonomics.questions.request import SILENT
from tokonomics.questions.requests.buy import CostRequest, FleetRequest, OwnHardwareRequest, PlanRequest
from tokonomics.questions.requests.run import MeterWatchRequest
from tokonomics.questions.requests.traffic import CacheRequest, CapacityRequest, LeversRequest, SimulateRequest
from tokonomics.questions.results import PlanResult
from tokonomics.questions.simulate import capacity, simulate
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.units import HOURS_PER_MONTH

GPUS = ("H100", "H200", "A100-80GB", "A100-40GB", "L40S", "L4", "A10G", "RTX4090", "RTX5090", "B200", "A6000", "GH200")
SMALL = {"model": "llama-3.2-1b", "input": "const:500", "output": "const:50", "rate": "0.5"}
DAY = date(2026, 11, 15)


@pytest.fixture(autouse=True)
def _today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", DAY.isoformat())


def cheapest_by_hand(gpu: str) -> float:
    """A lone GPU in whole machines, by the rule as the guide writes it: every offer against every other."""
    found = find_gpu(gpu)
    least_gib = 0.25 * found.memory_bytes / 2**30 + 3

    def may_be_bought(offer: Offer) -> bool:
        listed = offer.gpu == found.key and offer.usd_per_hour and offer.seller is not Seller.marketplace
        roomy = offer.memory_gb is None or offer.memory_gb >= least_gib * offer.gpus
        return bool(listed and roomy and (DAY - offer.date).days <= 365)

    sold = [offer for offer in load_offers() if may_be_bought(offer)]
    newest = max(offer.date for offer in sold)
    return min(offer.usd_per_hour or 0.0 for offer in sold if (newest - offer.date).days <= STALE_AFTER_DAYS)


@pytest.mark.parametrize("gpu", some(GPUS, 5))
def test_every_verb_pays_the_same_for_a_gpu_hour(gpu: str) -> None:
    asked = {**SMALL, "gpu": gpu, "weights": "bf16", "slo": "ttft_p99=5"}
    found = plan(PlanRequest.checked({**asked, "quick": True}))
    assert isinstance(found, PlanResult)
    planned = there(found.best)
    assert (planned.replicas, planned.gpus_per_replica) == (1, 1)
    today, _ = setup_of(LeversRequest.checked(asked), SILENT)
    now = Bills().bill_of(today)
    assert isinstance(now, Bill)
    simulated, most = (
        simulate(SimulateRequest.checked({**asked, "requests": 200})),
        capacity(CapacityRequest.checked(asked)),
    )
    metered = meter_settings(MeterWatchRequest(urls=("http://gpu:8000",), gpu=gpu)).usd_per_hour
    assert isinstance(metered, Prices)
    prices = {
        "cost": cost(CostRequest(gpu=gpu, tokens_per_second=1000)).usd_per_hour,
        "meter": metered.usd_per_hour,
        "plan": planned.usd_per_month / HOURS_PER_MONTH,
        "simulate": there(simulated.cost).usd_per_replica_hour,
        "capacity": there(most.cost).usd_per_replica_hour,
        "levers": now.usd_per_month / HOURS_PER_MONTH,
    }
    assert prices == pytest.approx(dict.fromkeys(prices, cheapest_by_hand(gpu)))


def test_levers_and_cache_charge_the_same_for_memories_that_the_machine_has_in_part() -> None:
    """Five replicas on machines of one L40S: of each 200 GB of DRAM some are left on the machine and cost nothing."""
    asked = {"model": "llama-3.1-8b", "gpu": "L40S", "trace": "mooncake-conversation", "to": "1m", "rate": "0.4",
             "slo": "ttft_p99=20"}  # fmt: skip
    tiers = "dram=200,ssd=100"
    setup, _ = setup_of(LeversRequest.checked(asked), SILENT)
    bill = Bills().bill_of(replace(setup, tiers=tiers))
    assert isinstance(bill, Bill)
    rows = there(cache(CacheRequest.checked({**asked, "tiers": tiers})).prefix_cache).rows
    hour = there(next(row.bill for row in rows if len(row.setting.tiers) == 2))
    assert hour.line("replicas").quantity == bill.replicas
    for memory, gb in (("dram", 200), ("ssd", 100)):
        assert bill.bill.line(memory).usd == pytest.approx(hour.line(memory).usd * HOURS_PER_MONTH)
        assert hour.line(memory).quantity <= gb * bill.replicas
    assert 0 < hour.line("dram").quantity < 200 * bill.replicas
    assert bill.usd_per_month == pytest.approx(hour.usd * HOURS_PER_MONTH)


def test_a_fleet_and_a_machine_of_ones_own_are_held_against_the_same_price() -> None:
    bought = fleet(FleetRequest.checked({**SMALL, "gpu": "H100", "terms": "on_demand", "no_replay": True}))
    assert bought.plan.usd_per_month == pytest.approx(cheapest_by_hand("H100") * HOURS_PER_MONTH)
    owned = OwnHardwareRequest(gpu="H100", purchase_usd="30k", years=4, usd_per_kwh=0.1, host_watts=500)
    rented = own_hardware(owned).noun.rented
    assert [offer.usd_per_gpu_hour() for offer in rented] == [cheapest_by_hand("H100")]
