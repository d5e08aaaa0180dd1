"""What ``route`` says of shares and SLOs, of a report made by hand."""

import numpy as np
import pytest

from tokonomics.planner.route_answer import RouteBreakEven, RoutePart, RouteWay
from tokonomics.questions.request import Request
from tokonomics.questions.traffic_results import RouteResult
from tokonomics.report.route_view import route
from tokonomics.serving.outcome import SloOutcome
from tokonomics.serving.spread import spread
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace
from tokonomics.traffic.workload import workload_of

TRACE = make_trace(np.arange(10.0), np.full(10, 100), np.full(10, 10))


def way(name: str, *parts: RoutePart) -> RouteWay:
    called = sum(part.share for part in parts if part.replicas is None)
    slo = SloOutcome(slo="ttft_p99", objective_s=1.0, delivered_s=0.5, met=True)
    return RouteWay(
        kind="single" if len(parts) == 1 else "routed",
        name=name,
        parts=parts,
        first_share=parts[0].share,
        usd_per_month=100.0,
        usd_per_mtok=1.0,
        quality=None,
        simulated_share=1 - called,
        ttft_s=spread(np.array([0.5])),
        e2e_s=spread(np.array([1.0])),
        slo=(slo,) if called < 1 else (),
    )


def said(share: float | None) -> str:
    own = RoutePart(model="small", share=0.9, usd_per_month=50.0, replicas=1, fleet="1", machines="1×L4")
    api = RoutePart(model="api", share=0.1, usd_per_month=50.0, replicas=None, fleet="API", machines="API")
    even = RouteBreakEven(kind="routed", first="small", second="api", baseline_usd_per_month=200.0, share=share)
    result = RouteResult(
        workload=workload_of(TRACE, 1.0),
        slos=tuple(parse_slos("ttft_p99=1")),
        models=("small", "api"),
        routed_by="share",
        labels=(),
        scored=False,
        min_quality=None,
        ways=(
            way("all on small", own.model_copy(update={"share": 1.0})),
            way("all on api", api),
            way("both", own, api),
        ),
        frontier=(),
        break_even=(even,),
        best=None,
    )
    return route(result, Request()).text()


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


def test_an_slo_that_an_api_may_miss_is_marked() -> None:
    rows = {line.split("  ")[0]: line.rstrip() for line in said(0.5).splitlines()}
    assert rows["all on small"].endswith("met")
    assert rows["both"].endswith("met‡")
