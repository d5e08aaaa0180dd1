"""A setup's bill: the fewest replicas that a direct simulation lets hold, on whole machines at their price."""

import math
from dataclasses import replace
from datetime import date
from functools import cache

import numpy as np
import pytest
from tests.deployed import on
from tests.planner.small_catalogue import OFFERS, SLOS, TODAY, offer

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offers import Offer
from tokonomics.levers.lever_list import right_size
from tokonomics.levers.ranking import Ranked, arrival_patterns, arriving, rank_levers, utilization_bills
from tokonomics.physics.deployment import deploy
from tokonomics.planner.hosting import with_shared_head
from tokonomics.questions.levers import LeversResult
from tokonomics.questions.request import Request
from tokonomics.report.levers_view import levers
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.attempt import Sized, attempt
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.sizing.search import size
from tokonomics.sizing.setup import Setup
from tokonomics.sizing.spare import Spare
from tokonomics.traffic.generate import parse_sessions
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

A100 = on(gpu="A100-80GB")
LOAD = load_of_shape(20, "const:1000", "const:300")


def setup(load: Load = LOAD, offers: tuple[Offer, ...] = OFFERS, **more: object) -> Setup:
    return replace(Setup(A100, load, offers, TODAY, SLOS), **more)  # type: ignore[arg-type]


@cache
def billed(**more: object) -> Bill:
    made = Bills().bill_of(setup(**more))  # type: ignore[arg-type]
    assert isinstance(made, Bill)
    return made


def test_the_bill_is_whole_machines_at_the_cheapest_price() -> None:
    made = billed()
    alone, by_eight = made.replicas * 2.0, math.ceil(made.replicas / 8) * 15.0
    assert made.usd_per_month == pytest.approx(min(alone, by_eight) * 730)
    assert made.bill.usd == pytest.approx(made.usd_per_month)
    assert made.usd_per_mtok.blended == pytest.approx(made.usd_per_month / (20 * 1300 * 3600 * 730) * 1e6)


def test_a_spare_machine_is_paid_for() -> None:
    assert billed(spare=Spare(machines=1)).usd_per_month == pytest.approx(billed().usd_per_month + 2.0 * 730)


def test_what_cannot_be_kept_says_what_breaks() -> None:
    made = Bills().bill_of(setup(slos=parse_slos("ttft_p99=1ms")))
    assert isinstance(made, NotServed)
    assert made.kind is Reason.too_slow


def test_what_nobody_sells_says_so() -> None:
    made = Bills().bill_of(setup(offers=(offer("L4", 1, 0.7),)))
    assert isinstance(made, NotServed)
    assert made.kind is Reason.no_machine


def test_a_commitment_is_taken_where_it_is_cheaper() -> None:
    offers = (offer("A100-80GB", 1, 2.0, reserved_1yr_usd_per_hour=1.5, reserved_3yr_usd_per_hour=1.0),)
    assert billed(offers=offers, commit=True).usd_per_month == pytest.approx(billed().replicas * 730.0)
    assert billed(offers=offers).usd_per_month == pytest.approx(billed().replicas * 2 * 730.0)


def test_spot_carries_no_more_than_the_verdict_allows_and_costs_no_more_than_on_demand() -> None:
    offers = (offer("A100-80GB", 1, 2.0, spot_usd_per_hour=0.5),)
    firm, mixed = billed(offers=offers), billed(offers=offers, spot=True)
    on_spot = firm.replicas // 2
    least = (firm.replicas - on_spot) * 2.0 + on_spot * 0.5
    assert least * 730 <= mixed.usd_per_month < firm.usd_per_month


def test_the_documents_h100_costs_what_its_tokens_say_at_low_and_high_load() -> None:
    """C16 and C17: $4.50 an hour over 400 and 3,800 tokens a second, one replica either way."""
    h100 = on()
    for tokens_per_s, stated in ((400, 3.125), (3800, 0.3289)):
        load = load_of_shape(tokens_per_s / 1000, "const:500", "const:500")
        made = Bills().bill_of(Setup(h100, load, (offer("H100-SXM", 1, 4.50),), TODAY))
        assert isinstance(made, Bill)
        assert made.replicas == 1
        assert made.usd_per_mtok.blended == pytest.approx(stated, rel=1e-3)


def test_burst_then_idle_needs_the_fleet_of_its_bursts_and_costs_more_than_steady() -> None:
    """C36: at equal mean, work in a third of the time takes the replicas of three times the rate."""
    made = utilization_bills(setup())
    steady, burst = (next(each.bill for each in made.by_burst if name in each.name) for name in ("evenly", "all in"))
    assert steady
    assert burst
    assert burst.usd_per_mtok.blended > 2 * steady.usd_per_mtok.blended
    tripled = Bills().bill_of(setup(load=arriving(LOAD, "constant:1").at(60)))
    assert isinstance(tripled, Bill)
    assert abs(burst.replicas - tripled.replicas) <= 1


def test_other_arrivals_keep_the_requests_and_the_mean_rate() -> None:
    for text in arrival_patterns(LOAD).values():
        made = arriving(LOAD, text)
        assert made.trace.rate == pytest.approx(20, rel=0.01)
        assert (made.trace.input_tokens == LOAD.trace.input_tokens).all()


@pytest.mark.explore
def test_a_larger_batch_and_more_load_never_cost_more_per_token() -> None:
    made = utilization_bills(setup())
    for points in (made.by_batch, made.by_load):
        prices = [point.bill.usd_per_mtok.blended for point in points if point.bill]
        assert len(prices) > 2
        assert prices == sorted(prices, reverse=True)


def test_replicas_that_come_and_go_cost_less_than_the_fleet_of_the_busiest_hour() -> None:
    """Four busy hours of a day: the fixed fleet is paid for all of it."""
    rng = np.random.default_rng(0)
    rates = np.where(np.arange(24) < 4, 6.0, 0.3)
    hours = [hour * 3600 + rng.uniform(0, 3600, int(rate * 3600)) for hour, rate in enumerate(rates)]
    times = np.concatenate(hours)
    day = load_of_log(make_trace(times, np.full(len(times), 1000), np.full(len(times), 200)))
    l4 = deploy(A100.model, find_gpu("L4"), A100.engine)
    here = setup(load=day, slos=parse_slos("ttft_p90=5"), deployment=l4)
    fixed, scaled = (Bills().bill_of(replace(here, autoscale=each)) for each in (False, True))
    assert isinstance(fixed, Bill)
    assert isinstance(scaled, Bill)
    assert fixed.replicas > 1
    assert scaled.mean_replicas < fixed.replicas
    assert scaled.usd_per_month == pytest.approx(scaled.mean_replicas * 0.7 * 730)
    assert scaled.usd_per_month < fixed.usd_per_month == pytest.approx(fixed.replicas * 0.7 * 730)


def test_a_bill_says_how_old_its_price_is() -> None:
    old = date(2026, 5, 1)
    cheaper = offer("A100-80GB", 1, 1.0, date=old)
    made = billed(offers=(cheaper, *(other for other in OFFERS if other.gpu != cheaper.gpu)))
    assert (made.price_date, made.price_stale) == (old, True)
    assert not billed().price_stale
    assert billed(offers=(cheaper, *OFFERS)).price_date > old  # somebody quoted the GPU since


def test_one_replica_that_people_wait_for_stays_off_spot_and_a_batch_does_not() -> None:
    offers = (offer("A100-80GB", 1, 2.0, spot_usd_per_hour=0.5),)
    alone = setup(load=load_of_shape(0.2, "const:500", "const:100"), offers=offers, slos=(), spot=True)
    waited_for, batch = Bills().bill_of(alone), Bills().bill_of(replace(alone, offline=True))
    assert isinstance(waited_for, Bill)
    assert isinstance(batch, Bill)
    assert waited_for.replicas == batch.replicas == 1
    assert waited_for.usd_per_month == pytest.approx(2.0 * 730)
    assert batch.usd_per_month < waited_for.usd_per_month


def test_where_nothing_is_asked_the_levers_say_that_requests_may_wait_longer() -> None:
    made = rank_levers(setup(slos=(), load=load_of_shape(1, "const:500", "const:100")), [])
    assert isinstance(made, Ranked)

    def shown(**more: object) -> str:
        ranking = dict(made.ranking)
        result = LeversResult.model_construct(**ranking, utilization=None, setup=setup(**more))  # type: ignore[arg-type]
        return levers(result, Request()).text()

    assert shown(slos=()).count("No SLO is set") == 1
    assert "No SLO is set" not in shown()
    assert "No SLO is set" not in shown(slos=(), offline=True)


WITH_TERMS = (
    offer("A100-80GB", 1, 2.0, spot_usd_per_hour=0.5, reserved_1yr_usd_per_hour=1.2),
    offer("A100-80GB", 8, 15.0, spot_usd_per_hour=5.0),
)
FEW_LARGE = (offer("A100-80GB", 8, 15.0),)


def a_day_with_a_peak() -> Load:
    rng = np.random.default_rng(1)
    rates = np.where(np.arange(24) < 4, 12.0, 0.2)
    times = np.concatenate([hour * 3600 + rng.uniform(0, 3600, int(rate * 3600)) for hour, rate in enumerate(rates)])
    return load_of_log(make_trace(np.sort(times), np.full(len(times), 1000), np.full(len(times), 200)))


def ways_to_buy() -> dict[str, Setup]:
    plain = setup(offers=WITH_TERMS)
    alike = replace(plain, load=with_shared_head(LOAD, 0.5))
    day = setup(load=a_day_with_a_peak(), offers=FEW_LARGE, slos=parse_slos("ttft_p90=30"), autoscale=True)
    return {
        "on demand": plain,
        "machines with GPUs to spare": setup(offers=FEW_LARGE),
        "spare": replace(plain, spare=Spare(machines=2)),
        "spot": replace(plain, spot=True),
        "spot, with spare": replace(plain, spot=True, spare=Spare(machines=1)),
        "committed": replace(plain, commit=True),
        "memory that is paid for": replace(alike, tiers="dram=200@0.004,ssd=2000@0.0001"),
        "memory and spare": replace(alike, spare=Spare(machines=2), tiers="dram=200@0.004"),
        "autoscaled, eight GPUs to the machine": day,
        "autoscaled, with spare": replace(day, spare=Spare(machines=1)),
        "apart": replace(plain, disaggregated=True),
    }


@pytest.mark.parametrize("way", ways_to_buy())
def test_the_lines_of_a_bill_sum_to_it_and_its_gpu_hours_to_those_paid(way: str) -> None:
    """However it is bought: no line is made up or cut off, also that of GPUs which no replica uses."""
    asked_for = ways_to_buy()[way]
    made = Bills().bill_of(asked_for)
    assert isinstance(made, Bill)
    assert math.fsum(line.usd for line in made.bill.lines) == pytest.approx(made.usd_per_month)
    hours = math.fsum(line.quantity for line in made.bill.lines if line.unit == "GPU-hour")
    # Were replicas to take more than is bought, the unused line would be cut at nothing and the hours exceed the paid.
    assert hours == pytest.approx(made.gpus_paid * 730)
    assert made.gpus_paid * 730 >= made.mean_replicas * A100.gpus * 730 * (1 - 1e-9)
    paid_for_memory = math.fsum(line.usd for line in made.bill.lines if line.unit != "GPU-hour")
    of_one = sum(memory.usd_per_gb_hour * memory.tier.size_bytes / 1e9 for memory in asked_for.memories()) * 730
    by_hand = of_one * made.replicas  # spare ones included
    assert paid_for_memory == pytest.approx(by_hand)


def test_a_spare_zone_is_bought_only_where_zones_fail_apart() -> None:
    cheap, zoned = offer("A100-80GB", 1, 1.0), offer("A100-80GB", 1, 3.0, provider="aws")
    made = billed(offers=(cheap, zoned), spare=Spare(zone=True))
    assert " aws " in made.bought
    refused = Bills().bill_of(setup(offers=(cheap,), spare=Spare(zone=True)))
    assert isinstance(refused, NotServed)
    assert "zones" in refused.reason


@pytest.mark.parametrize("rate", [100, 400])
def test_a_curve_of_which_a_slice_is_simulated_takes_no_more_than_its_peak_all_day(rate: int) -> None:
    """A daily curve's peak is at most twice its mean; a slice of it is a part of the requests, not a floor."""
    curve = load_of_shape(None, "const:50", "const:2", arrivals=f"diurnal:{rate}")
    assert curve.share < 1
    slow = parse_slos("ttft_p99=2")
    found, at_peak = (
        size(setup(load=load, slos=slow)) for load in (curve, load_of_shape(2 * rate, "const:50", "const:2"))
    )
    assert isinstance(found, Sized)
    assert isinstance(at_peak, Sized)
    assert found.replicas <= at_peak.replicas


def test_requests_fare_as_at_the_load_itself_where_replicas_have_work_in_hand() -> None:
    """Without a SLO on the wait, 3 % more must be finished; what is told is of the load as it is."""
    found = size(setup(slos=()))
    assert isinstance(found, Sized)
    fleet = FleetSettings(replicas=found.replicas, router=found.router)
    assert found.outcome.ttft_s == outcome(simulate(A100, LOAD.trace, fleet)).ttft_s


@pytest.mark.parametrize("way", ["disaggregated", "autoscale"])
def test_a_batch_limit_that_is_given_is_kept_however_replicas_are_run(way: str) -> None:
    found = size(setup(load=load_of_shape(5, "const:500", "const:100"), max_sequences=32, **{way: True}))  # type: ignore[arg-type]
    assert isinstance(found, Sized)
    assert found.max_sequences == 32


def test_spare_machines_of_an_autoscaled_fleet_come_and_go_with_it() -> None:
    load = load_of_shape(None, "const:1000", "const:300", arrivals="diurnal:6")
    made = billed(load=load, slos=parse_slos("ttft_p99=60"), autoscale=True, spare=Spare(machines=1))
    assert made.bill.usd == pytest.approx(made.usd_per_month)
    assert made.mean_replicas <= made.gpus_paid / A100.gpus + 1e-9


def test_late_answers_are_those_of_the_time_that_counts() -> None:
    """Sessions ramp up on empty replicas: with those that nobody judges, answers that miss their SLO by little seem to
    be late seldom enough, no lower limit is tried, and a second replica is bought."""
    load = load_of_shape(4.336, "200", "50", sessions=parse_sessions("8,think=18,limit=30k"))
    p99 = attempt(setup(load=load, slos=()), 1, None, 1.0).outcome.e2e_s.p99
    assert p99 is not None
    missed = attempt(setup(load=load, slos=parse_slos(f"e2e_p99={0.999 * p99:.6f}")), 1)
    assert missed.breaks is not None
    assert missed.whole_late > 1


def test_requests_that_come_all_at_once_do_not_fall_behind() -> None:
    burst = simulate(A100, make_trace([0.0] * 60, [100] * 60, [10] * 60), FleetSettings(replicas=64))
    assert what_breaks(burst, outcome(burst, parse_slos("ttft_p99=5"))) is None


def test_spare_replicas_of_both_sides_are_counted_on_their_own_side() -> None:
    """Two sides on networked machines of eight, one machine spare for each: both sides have more than they need."""
    load, machines = load_of_shape(5, "const:500", "const:100"), (offer("A100-80GB", 8, 15.0, network_gbit=3200),)
    plain, spare = (
        billed(load=load, offers=machines, disaggregated=True, spare=Spare(machines=number)) for number in (0, 1)
    )
    assert plain.prefill_replicas < spare.prefill_replicas
    assert plain.replicas < spare.replicas
    assert spare.bill.usd == pytest.approx(spare.usd_per_month)
    assert math.fsum(line.quantity for line in spare.bill.lines) == pytest.approx(spare.gpus_paid * 730)


# --- A spike in long traffic does not choose the GPU where the SLO lets it be late ------------------------------------


DAY = Setup(
    on(gpu="L4"),
    load_of_shape(None, "const:1500", "const:200", arrivals="diurnal:0.5,peak=3"),
    OFFERS,
    TODAY,
    parse_slos("ttft_p99=2,tpot_p90=0.2"),
)


def test_a_spike_that_the_slo_lets_be_late_does_not_choose_the_gpu() -> None:
    """One request in seventeen comes in a spike, and one in ten may be late: the quiet rest asks for one A100.

    The spike alone would be served cheapest by H100s, and then no other GPU would seem to save anything.
    """
    rng = np.random.default_rng(0)
    arrival = np.sort(np.concatenate([rng.uniform(0, 23_500, 23_500), rng.uniform(12_000, 12_080, 1_500)]))
    load = load_of_log(make_trace(arrival, np.full(25_000, 1000), np.full(25_000, 200)))
    on = {
        gpu: Setup(deploy(DAY.deployment.model, find_gpu(gpu), DAY.deployment.engine), load, OFFERS, TODAY,
                   parse_slos("ttft_p90=2"))
        for gpu in ("L4", "A100-80GB", "H100")
    }  # fmt: skip
    bills = Bills()
    usd = {gpu: bill.usd_per_month for gpu, setup in on.items() if isinstance(bill := bills.bill_of(setup), Bill)}
    assert usd["A100-80GB"] < min(usd["L4"], usd["H100"])
    for gpu in ("L4", "H100"):
        picked = right_size(on[gpu], bills=bills)
        assert isinstance(picked, Setup)
        assert picked.deployment.gpu.key == "A100-80GB"
    stays = right_size(on["A100-80GB"], bills=bills)
    assert isinstance(stays, NotServed)
    assert "screened" in stays.reason
    assert "simulated" in stays.reason
