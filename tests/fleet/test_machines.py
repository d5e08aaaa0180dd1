"""From price lists to machines: whole machines at their price, capacity as simulated, zones where they are known."""

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.feeds import SCARCE, find_band, find_zones
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput
from tokonomics.fleet import layouts
from tokonomics.fleet.design import FleetBounds, FleetReport, plan_fleet
from tokonomics.fleet.layouts import FleetLayout, _levels
from tokonomics.fleet.offers import FleetMarket, Machines, fleet_machines, zones_needed
from tokonomics.fleet.replay import FleetReplay, ReplayCase, places_of, replay, window_of
from tokonomics.fleet.traffic import FleetTraffic, parse_demand, traffic_from_curve, traffic_from_trace
from tokonomics.money.purchases import FleetLimits
from tokonomics.physics.deployment import deploy
from tokonomics.planner.plan import Question, plan
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.search import Sought
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.buy import assumed_interruptions
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.rules import OTHER_HOURS
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.search import highest_between
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.traffic.trace import Trace, make_trace
from tokonomics.types import Same

TODAY = dt.date(2026, 11, 15)
MARKET = FleetMarket(today=TODAY)
MODEL, ENGINE = find_model("llama-3.1-8b"), find_engine("vllm")
SLOS = parse_slos("ttft_p99=2,tpot_p99=0.1")
AS_PUBLISHED = (Precision.bf16,)


@pytest.fixture(autouse=True, scope="module")
def sized_once() -> Iterator[None]:
    """What a layout carries of the same traffic is simulated once for all tests here."""
    known: dict[object, FleetLayout] = {}
    size = layouts._sized

    def sized(prospect: Any, loads: Any, traffic: FleetTraffic, slos: Any, refused: Any) -> FleetLayout | None:
        key = prospect.name, Same(traffic), slos
        if key not in known and (found := size(prospect, loads, traffic, slos, refused)):
            known[key] = found
        return known.get(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts, "_sized", sized)
        yield


def offer(instance: str, gpu: str, gpus: int, usd: float, provider: str = "ours", **more: object) -> Offer:
    fields = {"provider": provider, "region": "here", "instance": instance, "gpu": gpu, "gpus": gpus}
    return Offer.model_validate({**fields, "usd_per_hour": usd, "date": TODAY, "source": "a test", **more})


AWS = offer("g6e.xlarge", "L40S", 1, 1.861, provider="aws", region="us-west-2")


@cache
def curve(demand: str = "12x12,12x3", inputs: str = "const:700", sizes: tuple[int, ...] = ()) -> FleetTraffic:
    return traffic_from_curve(parse_demand(demand, 24), parse_lengths(inputs), parse_lengths("const:120"), sizes)


def machines(*offers: Offer, traffic: FleetTraffic | None = None, sized: int = 10, **more: object) -> Machines:
    market = FleetMarket(today=TODAY, **more)  # type: ignore[arg-type]
    return fleet_machines(MODEL, ENGINE, offers, traffic or curve(), SLOS, market, weights=AS_PUBLISHED, sized=sized)


def test_a_machine_of_eight_runs_eight_replicas_at_its_whole_price() -> None:
    made = machines(offer("one", "L40S", 1, 1.0), offer("eight", "L40S", 8, 7.0), sized=1)
    by_size = {sold.gpus: sold for sold in made.offers}
    assert (by_size[8].usd_per_hour, by_size[8].replicas) == (7.0, 8)
    assert by_size[8].requests_per_s["all"] == pytest.approx(8 * by_size[1].requests_per_s["all"])


def test_machines_of_one_name_are_all_looked_at() -> None:
    """Google's n1-standard-8 comes with two T4 or one V100; a list of one's own may name a machine twice."""
    same = [offer("box", "L40S", 1, 1.0), offer("box", "A100-80GB", 1, 2.0), offer("box", "L40S", 1, 0.9)]
    made = machines(*same, offer("other", "L4", 1, 0.5))
    assert {(sold.gpus, made.kinds[sold.name].gpu, sold.usd_per_hour) for sold in made.offers} == {
        (1, "L40S", 0.9),
        (1, "A100-80GB", 2.0),
        (1, "L4", 0.5),
    }
    assert next(sold.name for sold in made.offers if made.kinds[sold.name].gpu == "L4") == "ours other here TP=1 bf16"


def test_a_layout_that_breaks_the_slo_alone_takes_no_better_ones_place() -> None:
    """One layout is measured: an L4 looks cheapest by its hour, and takes 0.2 s for a prompt of 700 by itself."""
    both = offer("cheap", "L4", 1, 0.1), offer("quick", "H100-SXM", 1, 3.0)
    slo = parse_slos("ttft_p99=0.1")
    made = fleet_machines(MODEL, ENGINE, both, curve("24x2"), slo, MARKET, weights=AS_PUBLISHED, sized=1)
    assert [kind.gpu for kind in made.kinds.values()] == ["H100-SXM"]
    assert set(made.refused) == {"1×L4 TP=1 bf16"}


@pytest.mark.parametrize(
    ("model", "sold", "slo", "field"),
    [
        ("llama-3.1-8b", offer("thin", "H100-SXM", 1, 3.0, memory_gb=4.0), SLOS, None),
        ("llama-3.1-70b", offer("one", "L4", 1, 1.0), SLOS, None),
        ("llama-3.1-8b", offer("one", "L4", 1, 1.0), parse_slos("tpot_p99=0.001"), "slo"),
        # What most tokens keep, the mean of all need not: no closed form refuses a median SLO.
        ("llama-3.1-8b", offer("one", "L4", 1, 1.0), parse_slos("tpot_p50=0.004"), "slo"),
    ],
)
def test_what_cannot_be_held_says_why(model: str, sold: Offer, slo: tuple[Slo, ...], field: str | None) -> None:
    with pytest.raises(BadInput) as refused:
        fleet_machines(find_model(model), ENGINE, [sold], curve(), slo, MARKET)
    assert refused.value.field == field
    assert sold.gpu in (refused.value.fix or "")


def test_offers_without_a_price_on_the_terms_are_refused() -> None:
    with pytest.raises(BadInput):
        machines(offer("one", "L4", 1, 1.0), terms=[Terms.spot])


def test_capacity_is_what_the_simulator_says() -> None:
    """Of the replicas for the busiest hour together, less the margin; below what is too much for one fewer."""
    traffic = curve()
    made = machines(offer("one", "L40S", 1, 1.0), traffic=traffic)
    (only,) = made.offers
    layout = made.layouts[only.name]
    replicas = math.ceil(12 / only.requests_per_s["all"])
    together = FleetSettings(replicas=replicas, router=layout.router)

    def serve(requests: Trace) -> Simulation:
        return simulate(layout.deployment, requests, together, max_sequences=layout.max_sequences)

    log = traffic.samples["all"].repeated(math.ceil(20_000 / len(traffic.samples["all"])))

    def holds(rate: float) -> bool:
        made = serve(log.faster(rate / log.rate))
        return what_breaks(made, outcome(made, SLOS)) is None

    highest, _ = highest_between(holds, 6.0, 48.0)
    expected = max(12 / replicas, OTHER_HOURS * min(highest / replicas, 12 / (replicas - 1)))
    assert only.requests_per_s["all"] == pytest.approx(expected, rel=0.02)


def test_the_cheapest_of_equal_machines_is_kept_and_the_dearer_is_not() -> None:
    made = machines(offer("cheap", "L40S", 1, 1.0), offer("dear", "L40S", 1, 2.0, spot_usd_per_hour=0.3))
    names = {sold.name.split()[1]: sold for sold in made.offers}
    assert set(names) == {"cheap", "dear"}  # The dear one for its spot price.
    assert not names["cheap"].spot
    elsewhere = machines(offer("cheap", "L40S", 1, 1.0), offer("dear", "L40S", 1, 2.0))
    assert [sold.name.split()[1] for sold in elsewhere.offers] == ["cheap"]


def test_a_host_that_a_plan_refuses_for_its_memory_is_in_no_fleet() -> None:
    """16.1 GB of weights are 15 GiB, and a process takes 3 more: 17 hold little more than the weights."""
    thin, enough = offer("thin", "L40S", 1, 1.0, memory_gb=17), offer("enough", "L40S", 1, 2.0, memory_gb=24)
    assert [sold.name.split()[1] for sold in machines(thin, enough).offers] == ["enough"]


def test_aws_zones_come_with_their_own_prices_and_band() -> None:
    markets = machines(AWS).offers[0].spot
    zones = find_zones("g6e.xlarge", "us-west-2")
    assert {market.zone: market.usd_per_hour for market in markets} == {
        zone.zone: zone.spot_usd_per_hour for zone in zones[:4]
    }
    assert markets[0].interruptions == find_band("g6e.xlarge", "us-west-2").interruptions
    assert markets[0].interruptions_by == "AWS's advisor"


def test_elsewhere_a_region_is_a_zone_with_assumed_interruptions() -> None:
    sold = offer("one", "L40S", 1, 1.0, spot_usd_per_hour=0.4)
    (market,) = machines(sold).offers[0].spot
    assert (market.zone, market.usd_per_hour) == ("ours here", 0.4)
    assert (market.interruptions, market.interruptions_by) == (assumed_interruptions(), "assumed")
    assert machines(sold, interruptions=SCARCE).offers[0].spot[0].interruptions_by == "given"
    assert not machines(sold, terms=[Terms.on_demand]).offers[0].spot


def test_long_requests_need_the_larger_machine() -> None:
    long_ones = curve("24x2", "lognormal:mean=9000,p99=60000,max=100000", (20_000,))
    assert len(long_ones.samples) == 2
    sold = [offer("small", "L4", 1, 0.5), offer("large", "H100-SXM", 1, 3.0)]
    slo = parse_slos("tpot_p99=0.2")
    made = fleet_machines(MODEL, ENGINE, sold, long_ones, slo, MARKET, weights=AS_PUBLISHED)
    held = {made.kinds[sold.name].gpu: set(sold.requests_per_s) for sold in made.offers}
    assert held["H100-SXM"] == set(long_ones.samples)
    assert "> 20 K tokens" not in held.get("L4", set())


def test_a_log_brings_its_own_hours_lengths_and_bursts() -> None:
    arrival = np.concatenate([np.linspace(0, 3599, 1200), np.linspace(3600, 7199, 3600)])
    trace = make_trace(arrival, np.full(len(arrival), 500), np.full(len(arrival), 100))
    traffic = traffic_from_trace(trace)
    assert traffic.demand.total == pytest.approx((1 / 3, 1.0), rel=0.01)
    assert len(traffic.samples["all"]) == 3600  # The busiest hour.
    inside = traffic.requests_in(3600.0, 7200.0)
    assert len(inside) == 3600
    assert traffic_from_trace(trace, hours=48).demand.hours == 48


def test_made_up_requests_arrive_at_the_hour_s_rate() -> None:
    inside = curve("12x12,12x3").requests_in(11 * 3600.0, 13 * 3600.0)
    first = int((inside.arrival_s < 3600).sum())
    assert first == pytest.approx(12 * 3600, abs=5 * np.sqrt(12 * 3600))
    assert len(inside) - first == pytest.approx(3 * 3600, abs=5 * np.sqrt(3 * 3600))


def test_a_limit_on_zones_leaves_enough_of_them() -> None:
    assert (zones_needed(1.0), zones_needed(0.1), zones_needed(0.0)) == (4, 11, 4)


def test_a_fleet_stays_in_one_region_unless_told() -> None:
    here = [offer("one", "L40S", 1, 1.0), offer("small", "L4", 1, 0.35)]
    there = offer("other", "H100-SXM", 1, 2.2, region="there")
    report, mixed = (
        plan_fleet("m", "", sold, curve(), SLOS, FleetLimits(), bounds, gap=0.02, with_replay=False)
        for bounds in (FleetBounds(), FleetBounds(anywhere=True))
        for sold in [machines(*here, there, anywhere=bounds.anywhere)]
    )
    assert len({(machine.provider, machine.region) for machine in report.machines}) == 1
    assert report.chosen_place
    assert mixed.plan.usd_per_month <= report.plan.usd_per_month * (1 + mixed.plan.gap)


def test_requests_beyond_the_context_are_left_out_of_the_demand() -> None:
    tokens = np.where(np.arange(7200) % 10 == 0, 5000, 500)
    trace = make_trace(np.linspace(0, 7199, 7200), tokens, np.full(7200, 100))
    traffic = traffic_from_trace(trace, context=4096)
    assert traffic.left_out_share == pytest.approx(0.1)
    assert traffic.demand.total == pytest.approx((0.9, 0.9), rel=0.01)
    assert traffic.requests_in(0.0, 3600.0).input_tokens.max() == 500
    with pytest.raises(BadInput):
        traffic_from_trace(trace, context=50)


def test_made_up_requests_beyond_the_context_are_cut_and_the_demand_stays() -> None:
    drawn = traffic_from_curve(
        parse_demand("24x2", 24), parse_lengths("uniform:1000-5000"), parse_lengths("const:1"), context=4000
    )
    assert drawn.left_out_share == 0
    assert drawn.demand.mean == pytest.approx(2)
    assert drawn.samples["all"].input_tokens.max() == 3999
    with pytest.raises(BadInput):
        traffic_from_curve(parse_demand("24x2", 24), parse_lengths("const:1k"), parse_lengths("1"), context=500)


def test_a_log_that_repeats_is_replayed_as_it_was() -> None:
    """All requests of an hour in its first minute: Poisson would spread them over the hour."""
    arrival = np.concatenate([hour * 3600 + np.linspace(0, 60, 600) for hour in range(3)] + [[3 * 3600.0]])
    trace = make_trace(arrival, np.full(len(arrival), 500), np.full(len(arrival), 100))
    traffic = traffic_from_trace(trace, hours=168)
    assert traffic.demand.hours == 168
    begin, end = window_of(traffic.seen)
    assert end <= 3 * 3600
    inside = traffic.requests_in(begin, end)
    assert (inside.arrival_s % 3600 <= 60).all()


@pytest.mark.parametrize("terms", [list(Terms), [Terms.reserved, Terms.spot]])
def test_spot_that_is_not_bought_again_is_not_counted_on_where_a_slo_is_made(terms: list[Terms]) -> None:
    """One zone goes at once: with a SLO firm machines carry all, a batch may wait for the zone."""
    sold = offer("one", "L40S", 1, 1.0, spot_usd_per_hour=0.2, reserved_3yr_usd_per_hour=0.6)
    made = machines(sold, terms=terms)

    def bought(slos: Sequence[Slo], max_zone_share: float | None = None) -> FleetReport:
        bounds = FleetBounds(max_spot_share=1.0, max_zone_share=max_zone_share)
        return plan_fleet("m", "", made, curve(), slos, FleetLimits(fallback=False), bounds, with_replay=False)

    targeted = bought(SLOS)
    assert all(
        firm >= rate * (1 - 1e-6) for firm, rate in zip(targeted.plan.firm_capacity, targeted.plan.demand, strict=True)
    )
    batch, own_risk = bought(()), bought(SLOS, max_zone_share=1.0)
    assert max(batch.plan.firm_capacity) == max(own_risk.plan.firm_capacity) == 0
    assert not batch.bought_again


@pytest.mark.slow
@pytest.mark.explore
def test_a_fleet_that_breaks_its_slo_is_bought_again_and_one_that_still_does_says_so_first() -> None:
    made = machines(offer("one", "L40S", 1, 1.0))
    mended, broken = (
        plan_fleet("m", "", made.counted_less(factor), curve(f"24x{1.1 * most}"), SLOS, FleetLimits())
        for most in [made.offers[0].requests_per_s["all"]]
        for factor in (1.12, 2.0)
    )
    assert mended.replays[0].met
    assert mended.counted_share < 1
    assert not broken.replays[0].met


@pytest.mark.slow
def test_the_bought_fleet_keeps_its_slo_on_its_own_traffic() -> None:
    made = machines(offer("one", "L40S", 1, 1.0), offer("small", "L4", 1, 0.35), offer("large", "H100-SXM", 1, 2.2))
    report = plan_fleet("m", "", made, curve(), SLOS, FleetLimits(), gap=0.02)
    calm, loss = report.replays
    assert calm.met
    assert calm.requests == pytest.approx(calm.hours * 12 * 3600, rel=0.02)
    assert loss.expected_per_month > 0


STRICT = parse_slos("ttft_p99=300ms,tpot_p99=20ms")
LOOSE = parse_slos("ttft_p99=1s")
ONE = offer("one", "H100-SXM", 1, 2.0)


def traffic_of(demand: str, lengths: tuple[str, str]) -> FleetTraffic:
    inputs, outputs = map(parse_lengths, lengths)
    return traffic_from_curve(parse_demand(demand, 24), inputs, outputs, context=MODEL.max_context)


def bought_for(traffic: FleetTraffic) -> tuple[Machines, FleetReport]:
    """On demand, of machines with one replica each."""
    market = FleetMarket(today=TODAY, terms=[Terms.on_demand])
    made = fleet_machines(MODEL, ENGINE, [ONE], traffic, STRICT, market, weights=AS_PUBLISHED)
    return made, plan_fleet("m", "", made, traffic, STRICT, FleetLimits(), with_replay=False)


def planned(rate: float, lengths: tuple[str, str]) -> Candidate:
    question = Question(MODEL, load_of_shape(rate, *lengths), [ONE], [ENGINE], TODAY, STRICT, weights=AS_PUBLISHED)
    best = plan(question).best
    assert best is not None
    return best


def served(made: Machines, report: FleetReport, traffic: FleetTraffic, hour: int, seconds: float) -> FleetReplay:
    """The bought fleet with requests of an hour that are none of those it was sized on."""
    offers = {offer.name: offer for offer in made.offers}
    window = hour * 3600.0, hour * 3600.0 + seconds
    requests = traffic.requests_in(*window, seed=7)
    case = ReplayCase(places_of(report.plan, offers, *window))
    everyone = np.zeros(len(requests), np.int32)
    return replay(case, offers, made.layouts, requests, ("all",), everyone, STRICT, window=window)


@pytest.mark.parametrize(
    ("rate", "lengths"), [(200, ("const:1000", "const:200")), (70, ("1000", "200"))], ids=["constant", "varied"]
)
def test_a_constant_load_takes_as_many_replicas_as_a_plan(rate: int, lengths: tuple[str, str]) -> None:
    """By what one replica holds alone it would be 11 and 5: 9 and 4 are enough behind one router."""
    traffic, best = traffic_of(f"24x{rate}", lengths), planned(rate, lengths)
    made, report = bought_for(traffic)
    assert report.plan.machines() == (best.replicas,) * 24
    (kind,) = made.kinds.values()
    assert (kind.max_sequences or best.max_sequences, kind.router) == (best.max_sequences, best.router)
    assert served(made, report, traffic, 12, 40_000 / rate).met


def test_fewer_replicas_carry_less_each_and_quiet_hours_keep_the_slo() -> None:
    traffic = traffic_of("12x122,12x30", ("1000", "200"))
    made, report = bought_for(traffic)
    ((quiet, less), *_, (busy, more)) = made.offers[0].levels["all"]
    assert (quiet <= 30, busy) == (True, 122)
    assert 0.5 * more < less < more
    counts = report.plan.machines()
    assert counts[12] > 30 * counts[0] / 122
    assert served(made, report, traffic, 12, 600.0).met
    assert served(made, report, traffic, 0, 300.0).met


def held_alone(layout: FleetLayout, rate: float, lengths: tuple[str, str], seed: int) -> bool:
    """By one replica, of requests of another draw."""
    load = load_of_shape(rate, *lengths, seed=seed)
    found = screen(layout.deployment, Hosts(layout.deployment, ()), load, LOOSE)
    assert isinstance(found, Screened)
    return Sought(load, LOOSE).on(found, 1).holds


def test_what_a_replica_is_counted_on_for_in_quiet_hours_holds_in_other_hours_too() -> None:
    """The highest rate of one draw does not: most of these other hours miss the SLO at it."""
    lengths = ("900", "99")
    market = FleetMarket(today=TODAY, terms=[Terms.on_demand])
    traffic = traffic_of("12x120,12x30", lengths)
    made = fleet_machines(MODEL, ENGINE, [ONE], traffic, LOOSE, market, weights=AS_PUBLISHED)
    (layout,) = made.layouts.values()
    counted = layout.levels["all"][0][1]
    missed = {
        share: sum(not held_alone(layout, counted * share, lengths, seed) for seed in range(1, 7))
        for share in (1.0, 1 / OTHER_HOURS)
    }
    assert missed[1.0] == 0 < missed[1 / OTHER_HOURS]


def test_quiet_hours_keep_the_peaks_replicas_where_fewer_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as where a log's requests come eight at a time."""
    load = load_of_shape(80, "1000", "200")
    layout = deploy(MODEL, find_gpu("H100-SXM"), ENGINE)
    found = screen(layout, Hosts(layout, ()), load, STRICT)
    assert isinstance(found, Screened)
    sized = replace(Sought(load, STRICT).on(found, 8), replicas=8)

    def holds_on(sought: Sought, _: Screened, __: Sized, replicas: int) -> bool:
        return replicas == 8 and sought.load.workload.rate <= 80

    monkeypatch.setattr(Sought, "holds_on", holds_on)
    rates, each = zip(*_levels(found, load, STRICT, sized, 10.0), strict=True)
    hours = np.array([10.0, 25.0, 40.0, 79.0, 80.0])
    assert np.ceil(hours / np.interp(hours, rates, each) - 1e-9).tolist() == [8] * 5


def test_a_class_without_room_beside_another_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "_levels", lambda *_: ())
    with pytest.raises(BadInput) as refused:
        fleet_machines(MODEL, ENGINE, [ONE], traffic_of("24x5", ("900", "99")), LOOSE, FleetMarket(today=TODAY))
    assert refused.value.field == "slo"
