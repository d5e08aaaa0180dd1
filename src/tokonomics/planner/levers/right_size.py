"""The cheapest GPUs that meet the same SLOs: the leaders of a plan for the same traffic, each simulated with all that
the setup has besides.
"""

import math
from operator import itemgetter

from tokonomics.catalog.layers import Precision
from tokonomics.physics.intervals import known_speed
from tokonomics.planner.plan import Question, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.setup import Setup
from tokonomics.types import Same, Speed, copied
from tokonomics.units import plural

_CHANGES = ("gpu", "tp", "pp", "ep", "dp", "weights", "kv")
_CHECKED = 3
_NEAR = 1.25
"""Of the planner's leaders on demand, how many are simulated with all that the setup has besides, and up to how much
above the least of their bills."""


def right_size(
    setup: Setup, weights: tuple[Precision, ...] = (), kv: tuple[Precision, ...] = (), bills: Bills | None = None
) -> Setup | NotServed:
    """The setup on the cheapest GPUs, on demand, at the precisions given or the setup's own.

    The best few are simulated on all traffic, with all that the setup has besides. Never one that costs more than the
    setup.
    """
    now, bills = setup.deployment, bills or Bills()
    question = Question(
        model=now.model,
        load=setup.load,
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
    key = "study", question.model.key, now.engine.key, asked
    made = bills.once(key, lambda: study(question, bills.say, attempts=bills.attempts))
    near = made.plan.best.usd_per_month * _NEAR if made.plan.best else 0.0
    leaders = [made.of(row).deployment for row in made.plan.leaders(_CHECKED) if row.usd_per_month <= near]
    picks = [setup.deployed(**copied(deployment, *_CHANGES)) for deployment in leaders]
    bill, pick = min(((_usd(pick, bills), pick) for pick in picks), key=itemgetter(0), default=(math.inf, setup))
    today = _usd(setup, bills)
    if bill < today:
        return pick
    why = "no other machine meets the SLOs" if math.isinf(today) else "no cheaper GPU found"
    sized, refused = len(made.search.sized), len(made.search.refused)
    looked_at = f"of {plural(sized + refused, 'layout')} screened, {sized} simulated"
    return NotServed(Reason.nothing_to_change, f"{why}: {looked_at}")


def _usd(setup: Setup, bills: Bills) -> float:
    """A month; infinite where it cannot be served."""
    bill = bills.of(setup)
    return bill.usd_per_month if isinstance(bill, Bill) else math.inf
