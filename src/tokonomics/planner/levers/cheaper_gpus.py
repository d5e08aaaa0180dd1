"""Cheaper GPUs for long traffic: best first, each simulated on all of it, with the replicas that the best bill affords.

A candidate enters with the bill that arithmetic demands at the mean rate, comes back with the closed form's, and is
left out once that is no less than the best bill so far. What is left is simulated once, on as many replicas as that
bill affords: where an SLO is missed there, it is dearer; only where all hold is it sized. A day is not judged by its
busiest minutes, which ask for more than an SLO on nine requests of ten does.
"""

import math
from dataclasses import dataclass, replace

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.bills import Bills, SetupBill
from tokonomics.planner.candidates import Refusal
from tokonomics.planner.machines import Hosts
from tokonomics.planner.plan import Question, prospects
from tokonomics.planner.screen import Screened, fewest_by_arithmetic, screen
from tokonomics.planner.search import best_first
from tokonomics.planner.setup import Setup
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.units import HOURS_PER_MONTH

_CENT = 0.005
"""Of a month: what is cheaper by less is as dear."""


@dataclass(frozen=True)
class Found:
    """What may be cheaper than today, the cheapest first, and how many were looked at."""

    deployments: tuple[Deployment, ...]
    screened: int
    simulated: int


def cheaper(setup: Setup, question: Question, bills: Bills) -> Found:
    """Deployments that cost less than the setup on fixed fleets, on demand: each the cheapest when it was found."""
    plain = replace(setup, autoscale=False, disaggregated=False, commit=False, spot=False, tiers=None)
    today = bills.of(plain)
    best = today.usd_per_month if isinstance(today, SetupBill) else math.inf
    hosted, _ = prospects(question, setup.load)
    found: list[Deployment] = []
    simulated = 0

    def look(bound: float, prospect: Hosts | Screened) -> tuple[float, Screened] | None:
        nonlocal best, simulated
        if bound > best - _CENT:
            return None
        if isinstance(prospect, Hosts):
            seen = screen(prospect.deployment, prospect, setup.load, setup.slos)
            if isinstance(seen, Refusal):
                return None
            least = max(seen.fewest, setup.load.fewest_replicas) + setup.spare
            return max(bound, prospect.usd_per_month(least)), seen
        tried = plain.deployed(**changes(prospect.deployment))
        if tried.deployment == setup.deployment:
            return None
        bills.progress(str(tried.deployment))
        simulated += 1
        affordable = prospect.hosts.most_replicas((best - _CENT) / HOURS_PER_MONTH, MOST_REPLICAS) - setup.spare
        if affordable < 1 or (affordable < MOST_REPLICAS and not bills.holds(tried, affordable)):
            return None
        bill = bills.of(tried)
        if isinstance(bill, SetupBill) and bill.usd_per_month < best - _CENT:
            best = bill.usd_per_month
            found.insert(0, tried.deployment)
        return None

    entered: list[tuple[float, Hosts | Screened]] = []
    for hosts in hosted:
        least = fewest_by_arithmetic(hosts.deployment, setup.load) + setup.spare
        entered.append((hosts.usd_per_month(least), hosts))
    best_first(entered, look)
    return Found(tuple(found), len(hosted), simulated)


def changes(pick: Deployment) -> dict[str, object]:
    """What right-sizing changes of a deployment."""
    return {name: getattr(pick, name) for name in ("gpu", "tp", "pp", "ep", "weights", "kv")}
