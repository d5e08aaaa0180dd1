"""What ``route`` says of shares and SLOs, of a report made by hand."""

from typing import Any

import numpy as np
import pytest

from tokonomics.planner.route_models import RouteBreakEven, RoutePart, RouteWay
from tokonomics.questions.request import Request
from tokonomics.questions.route import RouteResult
from tokonomics.report.route_view import route
from tokonomics.serving.outcome import SloOutcome
from tokonomics.serving.spread import spread
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.traffic.workload import workload_of

TRACE = make_trace(np.arange(10.0), np.full(10, 100), np.full(10, 10))


def way(name: str, *parts: RoutePart, usd: float = 100.0, quality: float | None = None) -> RouteWay:
    called = sum(part.share for part in parts if part.replicas is None)
    slo = SloOutcome(slo="ttft_p99", objective_s=1.0, delivered_s=0.5, met=True)
    return RouteWay(
        kind="single" if len(parts) == 1 else "routed",
        name=name,
        parts=parts,
        first_share=parts[0].share,
        usd_per_month=usd,
        usd_per_mtok=1.0,
        quality=quality,
        simulated_share=1 - called,
        ttft_s=spread(np.array([0.5])),
        e2e_s=spread(np.array([1.0])),
        slo=(slo,) if called < 1 else (),
    )


OWN = RoutePart(
    model="small", share=0.9, requests=9, tokens=900, usd_per_month=50.0, replicas=1, fleet="1", machines="1×L4"
)
CALLED = RoutePart(
    model="api", share=0.1, requests=1, tokens=100, usd_per_month=50.0, replicas=None, fleet="API", machines="API"
)


def result(even: RouteBreakEven, *ways: RouteWay, slos: str = "ttft_p99=1", floor: float | None = None) -> RouteResult:
    good = [way for way in ways if floor is not None and (way.quality or 0) >= floor]
    return RouteResult(
        workload=workload_of(TRACE, 1.0),
        slos=tuple(parse_slos(slos)) if slos else (),
        models=("small", "api"),
        routed_by="share",
        labels=(),
        scored=floor is not None,
        min_quality=floor,
        ways=ways,
        frontier=(),
        break_even=(even,),
        best=min(good, key=lambda way: way.usd_per_month, default=None),
    )


def even(share: float | None, **more: Any) -> RouteBreakEven:
    return RouteBreakEven(kind="routed", first="small", second="api", baseline_usd_per_month=200.0, share=share, **more)


def said(share: float | None, **more: Any) -> str:
    alone = way("all on small", OWN.model_copy(update={"share": 1.0})), way("all on api", CALLED)
    made = result(even(share, **more), *alone, way("both", OWN, CALLED))
    return " ".join(route(made, Request()).text().split()) if more else route(made, Request()).text()


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.9875, "must take 99 % of the requests"),
        (1.0, "Routing: only all on small costs less"),
        (None, "Routing: never cheaper"),
    ],
)
def test_a_share_close_to_all_is_not_called_all(share: float | None, words: str) -> None:
    assert words in said(share)


def test_a_break_even_names_the_two_shares_it_lies_between() -> None:
    between = said(0.4, not_at_share=0.3, threshold=0.71)
    assert "must take 40 % of the requests (score ≥ 0.71) to cost less than" in between
    assert "; at 30 % not yet." in between
    lowest = said(0.067, not_at_share=0.0, threshold=1.0, is_smallest=True)
    assert "must take 6.7 % of the requests (score ≥ 1) to cost less than" in lowest
    assert "; no threshold of the log gives it less." in lowest


def headline(
    small: float, api: float, both: float, floor: float | None = None, qualities: tuple[float, ...] = (0.5, 0.9, 0.8)
) -> str:
    """What is said above the tables, of bills and qualities."""
    parts = ("all on small", (OWN,)), ("all on api", (CALLED,)), ("both", (OWN, CALLED))
    ways = [
        way(name, *of, usd=usd, quality=None if floor is None else quality)
        for (name, of), usd, quality in zip(parts, (small, api, both), qualities, strict=True)
    ]
    text = " ".join(route(result(even(None), *ways, slos="", floor=floor), Request()).text().split())
    return text.partition(" per Mtok")[0].partition(" Ways to serve")[0]


def test_the_cheapest_leads_and_then_comes_what_routing_costs() -> None:
    assert headline(15_000, 10_000, 14_700).endswith(
        "Cheapest: $10,000 a month, all on api"
        " Several models together: $14,700 a month, both; 47 % more than all on api ($10,000)."
    )
    # All on the small one costs less, and is not good enough.
    assert headline(5000, 10_000, 14_700, floor=0.75).endswith(
        "Cheapest with quality ≥ 0.75: $10,000 a month, all on api"
        " Several models together: $14,700 a month, both; 47 % more than all on api ($10,000)."
    )
    assert headline(5000, 10_000, 6500, floor=0.75).endswith(
        "Cheapest with quality ≥ 0.75: $6,500 a month, both; 35 % less than all on api ($10,000)"
    )
    assert "both; as much as all on api ($10,000)" in headline(15_000, 10_000, 10_000)
    assert headline(5000, 10_000, 6500, floor=0.85).endswith("all on api No mix of models does as well.")


def test_a_floor_out_of_reach_speaks_of_an_slo_only_where_there_is_one() -> None:
    assert headline(50, 100, 65, floor=0.99).endswith("No way reaches a quality of 0.99.")


def test_an_slo_that_an_api_may_miss_is_marked() -> None:
    rows = {line.split("  ")[0]: line.rstrip() for line in said(0.5).splitlines()}
    assert rows["all on small"].endswith("met")
    assert rows["both"].endswith("met‡")
