"""Cheaper GPUs for long traffic: best first, each simulated on all of it, with the replicas that the best bill affords.

A candidate enters with the bill that arithmetic demands at the mean rate, comes back with the closed form's, and is
left out once that is no less than the best bill so far. What is left is simulated once, on as many replicas as that
bill affords: where a promise breaks there, it is dearer; only where all hold is it sized. A day is not judged by its
busiest minutes, which ask for more than a promise on nine requests of ten does.
"""

import heapq
import math
from dataclasses import dataclass, replace

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.bills import Bills, SetupBill
from tokonomics.planner.candidates import Refusal
from tokonomics.planner.machines import Hosts
from tokonomics.planner.plan import Question, prospects
from tokonomics.planner.screen import Screened, fewest_by_arithmetic, screen
from tokonomics.planner.setup import Setup
from tokonomics.planner.trials import MOST_REPLICAS
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
    queue: list[tuple[float, int, Hosts | Screened]] = []
    for place, hosts in enumerate(hosted):
        least = fewest_by_arithmetic(hosts.deployment, setup.load)
        queue.append((_usd_per_month(hosts, least + setup.spare), place, hosts))
    heapq.heapify(queue)
    found: list[Deployment] = []
    simulated = 0
    while queue:
        bound, place, each = heapq.heappop(queue)
        if bound > best - _CENT:
            break
        if isinstance(each, Hosts):
            seen = screen(each.deployment, each, setup.load, setup.promises)
            if not isinstance(seen, Refusal):
                least = max(seen.fewest, setup.load.fewest_replicas) + setup.spare
                heapq.heappush(queue, (max(bound, _usd_per_month(each, least)), place, seen))
            continue
        tried = plain.deployed(**changes(each.deployment))
        if tried.deployment == setup.deployment:
            continue
        bills.progress(str(tried.deployment))
        simulated += 1
        affordable = _affordable(each.hosts, best) - setup.spare
        if affordable < 1 or (affordable < MOST_REPLICAS and not bills.holds(tried, affordable)):
            continue
        made = bills.of(tried)
        if isinstance(made, SetupBill) and made.usd_per_month < best - _CENT:
            best = made.usd_per_month
            found.insert(0, tried.deployment)
    return Found(tuple(found), len(hosted), simulated)


def changes(pick: Deployment) -> dict[str, object]:
    """What right-sizing changes of a deployment."""
    return {name: getattr(pick, name) for name in ("gpu", "tp", "pp", "ep", "weights", "kv")}


def _usd_per_month(hosts: Hosts, replicas: int) -> float:
    return hosts.usd_per_hour(replicas) * HOURS_PER_MONTH


def _affordable(hosts: Hosts, usd_per_month: float) -> int:
    """The most replicas for less than a bill."""
    low, high = 0, MOST_REPLICAS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _usd_per_month(hosts, middle) < usd_per_month - _CENT else (low, middle)
    return low
