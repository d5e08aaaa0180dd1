"""``route`` names the cheapest way that is good enough, and tenants are drawn on an axis that holds them all."""

from typing import Any

import numpy as np
import pytest
from tests.deployed import on

from tokonomics.levers.tenancy import Sharing, noisy_neighbour, pool
from tokonomics.planner.route_models import RouteBreakEven, RoutePart, RouteWay
from tokonomics.questions.request import Request
from tokonomics.questions.route import RouteResult
from tokonomics.report.charts.levers import tenants_chart
from tokonomics.report.route_view import route
from tokonomics.serving.outcome import SloOutcome
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.traffic.workload import spread, workload_of

TRACE = make_trace(np.arange(10.0), np.full(10, 100), np.full(10, 10))
OWN = RoutePart(
    model="small", share=0.9, requests=9, tokens=900, usd_per_month=50.0, replicas=1, fleet="1", machines="1×L4"
)
CALLED = RoutePart(
    model="api", share=0.1, requests=1, tokens=100, usd_per_month=50.0, replicas=None, fleet="API", machines="API"
)


def way(name: str, *parts: RoutePart, usd: float = 100.0, quality: float | None = None) -> RouteWay:
    called = sum(part.share for part in parts if part.replicas is None)
    slo = SloOutcome(slo="ttft_p99", objective_s=1.0, delivered_s=0.5, met=True)
    return RouteWay(
        kind="single" if len(parts) == 1 else "routed", name=name, parts=parts, first_share=parts[0].share,
        usd_per_month=usd, usd_per_mtok=1.0, quality=quality, simulated_share=1 - called,
        ttft_s=spread(np.array([0.5])), e2e_s=spread(np.array([1.0])), slo=(slo,) if called < 1 else (),
    )  # fmt: skip


def shown(*ways: RouteWay, share: float | None = None, slos: str = "", floor: float | None = None) -> list[str]:
    """The lines of the screen."""
    good = [way for way in ways if floor is not None and (way.quality or 0) >= floor]
    even = RouteBreakEven(kind="routed", first="small", second="api", baseline_usd_per_month=200.0, share=share)
    made = RouteResult(
        workload=workload_of(TRACE, 1.0), slos=tuple(parse_slos(slos)) if slos else (), models=("small", "api"),
        routed_by="share", labels=(), scored=floor is not None, min_quality=floor, ways=ways, frontier=(),
        break_even=(even,), best=min(good, key=lambda way: way.usd_per_month, default=None),
    )  # fmt: skip
    return [line.rstrip() for line in route(made, Request()).text().splitlines()]


@pytest.mark.parametrize(("share", "said"), [(0.9875, "99 %"), (1.0, "only all"), (None, "never")])
def test_a_share_close_to_all_is_not_called_all(share: float | None, said: str) -> None:
    alone = way("all on small", OWN.model_copy(update={"share": 1.0})), way("all on api", CALLED)
    assert any(said in line for line in shown(*alone, way("both", OWN, CALLED), share=share))


@pytest.mark.parametrize(
    ("bills", "floor", "pick", "against"),
    [
        ((15_000, 10_000, 14_700), None, "$10,000 a month, all on api", "47 % more"),
        ((5_000, 10_000, 14_700), 0.75, "$10,000 a month, all on api", "47 % more"),  # the small one is not good enough
        ((5_000, 10_000, 6_500), 0.75, "$6,500 a month, both", "35 % less"),
        ((15_000, 10_000, 10_000), None, "$10,000 a month, all on api", "as much as"),
    ],
)
def test_the_cheapest_good_one_leads(bills: tuple[float, ...], floor: float | None, pick: str, against: str) -> None:
    named = ("all on small", (OWN,), 0.5), ("all on api", (CALLED,), 0.9), ("both", (OWN, CALLED), 0.8)
    ways = [
        way(name, *parts, usd=usd, quality=quality if floor else None)
        for (name, parts, quality), usd in zip(named, bills, strict=True)
    ]
    lines = shown(*ways, floor=floor)
    place = next(place for place, line in enumerate(lines) if line.startswith("Cheapest"))
    assert pick in lines[place]
    assert against in " ".join(lines[place : place + 3])


def test_an_slo_that_an_api_may_miss_is_marked() -> None:
    rows = shown(
        way("all on small", OWN.model_copy(update={"share": 1.0})), way("both", OWN, CALLED), slos="ttft_p99=1"
    )
    ends = {line.split("  ")[0]: line for line in rows}
    assert ends["all on small"].endswith("met")
    assert ends["both"].endswith("met‡")


def test_the_points_of_the_tenants_chart_have_one_legend_and_fill_their_axis() -> None:
    trace = generate(
        parse_arrivals("gamma:8,cv=2"), parse_lengths("const:500", "input"), parse_lengths("const:60", "output"),
        duration_s=120, seed=0, tenants=parse_tenants("2,skew=1"),
    )  # fmt: skip
    deployment = on()
    slos = parse_slos("ttft_p99=0.5")
    sharing = Sharing(deployment, deployment, trace, slos, lambda count: 2.0)
    pooling = pool(sharing)
    assert (pooling.bill.before.usd, pooling.bill.after.usd) == (4, 2)
    made: dict[str, Any] = tenants_chart(pooling, noisy_neighbour(sharing, pooling), slos, 12).to_dict()
    for level in (made, made["vconcat"][0]):
        assert level["resolve"]["scale"] == {"color": "independent", "shape": "independent"}
    points = made["vconcat"][0]["hconcat"][1]["layer"][0]
    low, high = points["encoding"]["x"]["scale"]["domain"]
    seen = [row["seconds"] for row in made["datasets"][points["data"]["name"]]]
    assert low <= min(seen)
    assert high == pytest.approx(max(*seen, 0.5) * (1.1 if low == 0 else 1.2))
