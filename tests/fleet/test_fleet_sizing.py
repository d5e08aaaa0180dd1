"""A fleet is sized by the plan's engine: as many replicas, served alike, and fewer of them carry less each."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput
from tokonomics.fleet import layouts
from tokonomics.fleet.design import FleetReport, plan_fleet
from tokonomics.fleet.layouts import FleetLayout, _levels
from tokonomics.fleet.offers import FleetMarket, Machines, fleet_machines
from tokonomics.fleet.replay import FleetReplay, ReplayCase, places_of, replay
from tokonomics.fleet.traffic import FleetTraffic, parse_demand, traffic_from_curve
from tokonomics.money.purchases import FleetLimits
from tokonomics.physics.deployment import deploy
from tokonomics.planner.plan import Question, plan
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.search import Sought
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.rules import OTHER_HOURS
from tokonomics.sizing.screen import Screened, screen
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos

TODAY = dt.date(2026, 11, 15)
MODEL, ENGINE = find_model("llama-3.1-8b"), find_engine("vllm")
STRICT = parse_slos("ttft_p99=300ms,tpot_p99=20ms")
LOOSE = parse_slos("ttft_p99=1s")
AS_PUBLISHED = (Precision.bf16,)
ONE = Offer.model_validate(
    {"provider": "ours", "region": "here", "instance": "one", "gpu": "H100-SXM", "gpus": 1, "usd_per_hour": 2.0}
    | {"date": TODAY, "source": "a test"}
)


def traffic_of(demand: str, lengths: tuple[str, str]) -> FleetTraffic:
    inputs, outputs = map(parse_lengths, lengths)
    return traffic_from_curve(parse_demand(demand, 24), inputs, outputs, context=MODEL.max_context)


def bought(traffic: FleetTraffic) -> tuple[Machines, FleetReport]:
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
    made, report = bought(traffic)
    assert report.plan.machines() == (best.replicas,) * 24
    (kind,) = made.kinds.values()
    assert (kind.max_sequences or best.max_sequences, kind.router) == (best.max_sequences, best.router)
    assert served(made, report, traffic, 12, 40_000 / rate).met


def test_fewer_replicas_carry_less_each_and_quiet_hours_keep_the_slo() -> None:
    traffic = traffic_of("12x120,12x30", ("1000", "200"))
    made, report = bought(traffic)
    ((quiet, less), *_, (busy, more)) = made.offers[0].levels["all"]
    assert (quiet <= 30, busy) == (True, 120)
    assert 0.5 * more < less < more
    counts = report.plan.machines()
    assert counts[12] > 30 * counts[0] / 120
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
    made = fleet_machines(
        MODEL, ENGINE, [ONE], traffic_of("12x120,12x30", lengths), LOOSE, market, weights=AS_PUBLISHED
    )
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


def test_a_class_that_another_ones_limits_leave_no_room_for_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(layouts, "_levels", lambda *_: ())
    with pytest.raises(BadInput) as refused:
        fleet_machines(MODEL, ENGINE, [ONE], traffic_of("24x5", ("900", "99")), LOOSE, FleetMarket(today=TODAY))
    assert refused.value.field == "slo"
