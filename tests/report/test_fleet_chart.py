"""The fleet's chart: what is drawn of an hour is what was bought for it, whatever is bought."""

from collections import defaultdict

import numpy as np
import pytest
from tests.fleet.test_machines import SLOS, curve, machines, offer

from tokonomics.catalog.offers import Terms
from tokonomics.fleet.design import FleetReport, plan_fleet
from tokonomics.money.purchases import FleetLimits, FleetPurchase
from tokonomics.report.charts.bills import fleet_chart

HOURS = 24


@pytest.fixture(scope="module")
def report() -> FleetReport:
    made = machines(offer("one", "L40S", 1, 1.0, spot_usd_per_hour=0.4, reserved_3yr_usd_per_hour=0.6))
    return plan_fleet("m", "", made, curve(), SLOS, FleetLimits(), with_replay=False)


def random_fleet(report: FleetReport, seed: int) -> FleetReport:
    """A fleet of up to fourteen purchases; some machines serve in two layouts, some are bought in two zones."""
    chance = np.random.default_rng(seed)
    (kind,) = report.machines
    kinds = [
        kind.model_copy(update={"name": f"{instance} {layout}", "instance": instance, "layout": layout})
        for instance in ("small", "large") for layout in ("TP=1", "TP=2")
    ]  # fmt: skip
    purchases = tuple(
        FleetPurchase(
            offer=kinds[int(chance.integers(len(kinds)))].name, terms=list(Terms)[int(chance.integers(3))],
            place=[None, "zone 1", "zone 2"][int(chance.integers(3))],
            by_hour=tuple(chance.integers(0, 5, HOURS).tolist()), usd_per_hour=1.0,
            requests_per_s=float(chance.uniform(0.5, 9.0)), usd=1.0, usd_per_month=1.0,
        )
        for _ in range(int(chance.integers(1, 15)))
    )  # fmt: skip
    return report.model_copy(
        update={"machines": tuple(kinds), "plan": report.plan.model_copy(update={"purchases": purchases})}
    )


@pytest.mark.parametrize("seed", range(10))
def test_the_bars_of_an_hour_sum_to_what_is_bought(report: FleetReport, seed: int) -> None:
    made = random_fleet(report, seed)
    spec = fleet_chart(made, made.plan.purchases).to_dict()
    (rows,) = [rows for rows in spec["datasets"].values() if rows and "capacity" in rows[0]]
    names = [(row["what"], row["hour"]) for row in rows]
    assert len(names) == len(set(names)), "two points of a series in one hour are drawn over each other"
    drawn = defaultdict[int, float](float)
    for row in rows:
        drawn[row["hour"]] += row["capacity"]
    for hour in range(HOURS):
        bought = sum(each.by_hour[hour] * each.requests_per_s for each in made.plan.purchases)
        assert drawn[hour] == pytest.approx(bought)
    # Every series is in every hour: a stack that lacks one has a hole below the next.
    assert len(rows) == (HOURS + 1) * len({row["what"] for row in rows})


def test_layouts_of_one_machine_have_colours_of_their_own(report: FleetReport) -> None:
    made = random_fleet(report, 3)
    alike = [
        made.plan.purchases[0].model_copy(update={"offer": f"small {layout}", "place": None})
        for layout in ("TP=1", "TP=2")
    ]
    spec = fleet_chart(made, alike).to_dict()
    (rows,) = [rows for rows in spec["datasets"].values() if rows and "capacity" in rows[0]]
    assert len({row["what"] for row in rows}) == 2
