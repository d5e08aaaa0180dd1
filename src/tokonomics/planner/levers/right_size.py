"""The cheapest GPUs that meet the same SLOs.

Short traffic, or the first of even traffic, is planned. Long traffic is searched for what is cheaper than today, best
first: a candidate enters with the bill that arithmetic demands at the mean rate, comes back with the closed form's, and
is left out once that is no less than the best bill so far. What is left is simulated once, on all of the traffic, with
as many replicas as that bill affords: where an SLO is missed there, it costs more; only where all hold is it sized. A
day is not judged by its busiest minutes, which ask for more than an SLO on nine requests of ten does.
"""

import math
from dataclasses import dataclass, replace
from operator import itemgetter

from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import known_speed
from tokonomics.planner.plan import Question, Study, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.prospects import prospects
from tokonomics.planner.search import best_first
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.sizing.bill import CENT, Bills, SetupBill
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.screen import Screened, fewest_by_arithmetic, screen
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.types import Same, Speed, copied
from tokonomics.units import HOURS_PER_MONTH, plural

PLANNED_WHOLE = ENOUGH_REQUESTS
"""Requests up to which the planner ranks every GPU; of more, only what may be cheaper than today is simulated."""
_CHANGES = ("gpu", "tp", "pp", "ep", "dp", "weights", "kv")
_CHECKED = 3
_NEAR = 1.25
"""Of the planner's leaders on demand, how many are simulated with all that the setup has besides, and up to how much
above the least of their bills."""


@dataclass(frozen=True)
class Found:
    """What may be cheaper than today, the cheapest first, and how many were looked at."""

    deployments: tuple[Deployment, ...]
    screened: int
    simulated: int


def right_size(
    setup: Setup, weights: tuple[Precision, ...] = (), kv: tuple[Precision, ...] = (), bills: Bills | None = None
) -> Setup | NotServed:
    """The setup on the cheapest GPUs, on demand, at the precisions given or the setup's own.

    The best few are simulated on all traffic, with all that the setup has besides. Never one that costs more than the
    setup.
    """
    now, bills = setup.deployment, bills or Bills()
    is_long = len(setup.load.trace) > PLANNED_WHOLE and not setup.load.is_stationary
    question = Question(
        model=now.model,
        load=setup.load if is_long else setup.load.busiest(PLANNED_WHOLE),
        offers=setup.offers,
        engines=(now.engine,),
        today=setup.today,
        slos=setup.slos,
        weights=weights or (now.weights,),
        kv=kv or (now.kv,),
        limits=Limits(spare=setup.spare),
        assumed_speeds=known_speed(now) is Speed.assumed,
        near=_NEAR,
    )
    # What else a setup has, such as replicas that come and go, is not asked.
    asked = question.weights, question.kv, setup.slos, setup.spare, Same(setup.offers), setup.load
    key: object
    if is_long:
        key = "search", now, setup.max_sequences, setup.prefix_cache, setup.router, asked
        found = bills.once(key, lambda: _cheaper(setup, question, bills))
    else:
        key = "study", question.model.key, now.engine.key, asked
        found = _leaders(bills.once(key, lambda: study(question, bills.say)))
    picks = [setup.deployed(**copied(deployment, *_CHANGES)) for deployment in found.deployments[:_CHECKED]]
    bill, pick = min(((_usd(pick, bills), pick) for pick in picks), key=itemgetter(0), default=(math.inf, setup))
    today = _usd(setup, bills)
    if bill < today:
        return pick
    why = "no other machine meets the SLOs" if math.isinf(today) else "no cheaper GPU found"
    return NotServed(
        Reason.nothing_to_change, f"{why}: of {plural(found.screened, 'layout')} screened, {found.simulated} simulated"
    )


def _usd(setup: Setup, bills: Bills) -> float:
    """A month; infinite where it cannot be served."""
    bill = bills.of(setup)
    return bill.usd_per_month if isinstance(bill, SetupBill) else math.inf


def _leaders(made: Study) -> Found:
    """The planner's leaders, near the cheapest of them."""
    near = made.plan.best.usd_per_month * _NEAR if made.plan.best else 0.0
    rows = [leader for leader in made.plan.leaders(_CHECKED) if leader.usd_per_month <= near]
    looked_at = len(made.search.sized) + len(made.search.refused)
    return Found(tuple(made.of(row).deployment for row in rows), looked_at, len(made.search.sized))


def _cheaper(setup: Setup, question: Question, bills: Bills) -> Found:
    """Deployments that cost less than the setup on fixed fleets, on demand: each the cheapest when it was found."""
    plain = replace(setup, autoscale=False, disaggregated=False, commit=False, spot=False, tiers=None)
    best = _usd(plain, bills)
    hosted = prospects(question, setup.load)
    found: list[Deployment] = []
    simulated = 0

    def look(bound: float, prospect: Hosts | Screened) -> tuple[float, Screened] | None:
        nonlocal best, simulated
        if bound > best - CENT:
            return None
        if isinstance(prospect, Hosts):
            seen = screen(prospect.deployment, prospect, setup.load, setup.slos)
            if isinstance(seen, NotServed):
                return None
            least = max(seen.fewest, setup.load.fewest_replicas)
            return max(bound, prospect.usd_per_month(least)), seen
        tried = plain.deployed(**copied(prospect.deployment, *_CHANGES))
        if tried.deployment == setup.deployment:
            return None
        bills.say(str(tried.deployment))
        simulated += 1
        affordable = prospect.hosts.most_replicas((best - CENT) / HOURS_PER_MONTH, MOST_REPLICAS)
        if affordable < 1 or (affordable < MOST_REPLICAS and not bills.holds(tried, affordable)):
            return None
        bill = _usd(tried, bills)
        if bill < best - CENT:
            best = bill
            found.insert(0, tried.deployment)
        return None

    entered: list[tuple[float, Hosts | Screened]] = []
    for hosts in hosted:
        least = fewest_by_arithmetic(hosts.deployment, setup.load)
        entered.append((hosts.usd_per_month(least), hosts))
    best_first(entered, look)
    return Found(tuple(found), len(hosted), simulated)
