"""What a person reads and sees of tenants who share a fleet: also where it does not pay, or no SLO is set."""

from typing import Any

import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.levers.tenancy import NoisyNeighbour, Pooling, Sharing, noisy_neighbour, pool
from tokonomics.money.cost import BeforeAfter
from tokonomics.physics.deployment import deploy
from tokonomics.questions.request import Request
from tokonomics.questions.traffic_results import TenantsResult
from tokonomics.report.charts.levers import tenants_chart
from tokonomics.report.tenants_view import tenants
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos


def studied(targeted: str | None) -> tuple[Pooling, NoisyNeighbour]:
    trace = generate(
        parse_arrivals("gamma:8,cv=2"),
        parse_lengths("const:500", "input"),
        parse_lengths("const:60", "output"),
        duration_s=120,
        seed=0,
        tenants=parse_tenants("2,skew=1"),
    )
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm"))
    slos = parse_slos(targeted) if targeted else ()
    sharing = Sharing(deployment, deployment, trace, slos, lambda count: 2.0)
    made = pool(sharing)
    return made, noisy_neighbour(sharing, made)


@pytest.fixture(scope="module")
def targeted() -> tuple[Pooling, NoisyNeighbour]:
    return studied("ttft_p99=0.5")


@pytest.fixture(scope="module")
def no_slo() -> tuple[Pooling, NoisyNeighbour]:
    return studied(None)


def text_of(pooling: Pooling, noisy: NoisyNeighbour, price_from: str = "as given") -> str:
    result = TenantsResult.model_construct(**dict(pooling), noisy_neighbour=noisy, lora=None, price_from=price_from)
    return " ".join(tenants(result, Request()).text().split())


def dearer_together(pooling: Pooling) -> Pooling:
    """The same with the two bills exchanged, as if the shared fleet were the larger one."""
    bill = BeforeAfter(before=pooling.bill.after, after=pooling.bill.before)
    more = pooling.together.model_copy(update={"replicas": 3, "usd_per_hour": 6.0})
    said = "ttft_p99 of tenant-2 is 600 ms; the SLO is 500 ms"
    return pooling.model_copy(update={"bill": bill, "together": more, "one_fewer": said})


def test_where_sharing_costs_more_it_says_so_and_why(targeted: tuple[Pooling, NoisyNeighbour]) -> None:
    pooling, noisy = targeted
    assert (pooling.bill.before.usd, pooling.bill.after.usd) == (4, 2)
    cheaper = text_of(pooling, noisy)
    assert "never more than alone" in cheaper
    dearer = text_of(dearer_together(pooling), noisy)
    assert dearer.startswith("Sharing costs 100 % more: keep them apart")
    assert "on 2 replicas ttft_p99 of tenant-2 is 600 ms; the SLO is 500 ms." in dearer
    assert "never more than alone" not in dearer


def test_where_nothing_is_asked_no_slo_is_kept_and_later_tokens_are_told(
    targeted: tuple[Pooling, NoisyNeighbour], no_slo: tuple[Pooling, NoisyNeighbour]
) -> None:
    pooling, noisy = no_slo
    worse = [(row.shared.ttft_p99_s or 0) / (row.alone.ttft_p99_s or 1) for row in pooling.tenants]
    assert max(worse) > 1.05
    shown = text_of(pooling, noisy)
    assert f"{max(worse):.2g} times at the p99; no SLO is set: say with --slo" in shown
    assert "meet every SLO" not in shown
    assert "no SLO is set" not in text_of(*targeted)


def test_the_points_of_the_chart_have_one_legend_and_fill_their_axis(
    targeted: tuple[Pooling, NoisyNeighbour],
) -> None:
    made: dict[str, Any] = tenants_chart(*targeted, parse_slos("ttft_p99=0.5"), 12).to_dict()
    for level in (made, made["vconcat"][0]):
        assert level["resolve"]["scale"] == {"color": "independent", "shape": "independent"}
    points = made["vconcat"][0]["hconcat"][1]["layer"][0]
    low, high = points["encoding"]["x"]["scale"]["domain"]
    seen = [row["seconds"] for row in made["datasets"][points["data"]["name"]]]
    assert low <= min(seen)
    assert high == pytest.approx(max(*seen, 0.5) * (1.1 if low == 0 else 1.2))


def test_a_p99_of_few_requests_is_called_chance(no_slo: tuple[Pooling, NoisyNeighbour]) -> None:
    pooling, noisy = no_slo
    assert min(row.requests for row in pooling.tenants) > 100
    assert "and chance" not in text_of(pooling, noisy)
    first, *rest = pooling.tenants
    few = pooling.model_copy(update={"tenants": (first.model_copy(update={"requests": 30}), *rest)})
    assert f"{first.tenant} sends 30 requests: their p99 is their slowest request, and chance." in text_of(few, noisy)
