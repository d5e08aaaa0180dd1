"""Say what a doubt about speed costs: the bill at both ends of the 80 % interval, and the cheapest fleet safe at one.

Four of five measurements lie within the interval (``physics.intervals``), so nine of ten are faster than its slow end.
The safe fleet is the cheapest of all candidates that meets every SLO, each at the slow end of its own interval: a GPU
that is known better is doubted less. Slower replicas never cost less, so a bill at the modelled speed bounds the bill
at the slow end: if the pick's stays the same there, nothing else is sized. Otherwise the plan's own search goes over
the candidates that could undercut the pick at its slow end, the cheapest bound first, without those that no number of
replicas made fast enough at the modelled speed. A headroom that was asked for is held at the slow end as well.

A target is met within the interval if the pick's fleet, as bought, misses it at the slow end under the planned traffic.
"""

import math
from collections import defaultdict
from collections.abc import Iterator

from pydantic import PositiveFloat, PositiveInt

from tokonomics.physics.intervals import interval
from tokonomics.planner.plan import Study, cheapest_row, searched
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.search import Placed, Sought
from tokonomics.planner.vary import at_the_speed, resize, resized
from tokonomics.sizing.disaggregation import Pair, pair_of
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.setup import Say, silent
from tokonomics.types import Noun

_SAME = 1 + 1e-9  # of two bills: rounding apart


class AtSpeed(Noun):
    """The replicas of a candidate at one speed."""

    speed: PositiveFloat  # share of the modelled speed
    replicas: PositiveInt | None  # spare ones included; None if no number meets the SLOs
    usd_per_month: PositiveFloat | None
    refused: str | None = None  # why there is none


class CostRange(Noun):
    """A bill with replicas as fast, and as slow, as four of five such measurements."""

    fast: AtSpeed
    mid: AtSpeed
    slow: AtSpeed


class SafeFleet(Noun):
    """The cheapest fleet that meets every SLO also at the slow end of its 80 % interval."""

    speed: PositiveFloat  # that slow end, as a share of the modelled speed
    is_pick: bool  # the deployment of the plan's pick, perhaps on more replicas
    candidate: Candidate  # its bill, and its latencies at the modelled speed


class SloRoom(Noun):
    """How far below its target a latency of the pick is."""

    slo: str  # ``ttft_p99``
    room: float  # share of the target that is left: 0.01 is 1 %; negative if it is missed
    within_interval: bool  # whether the pick's fleet misses it at the slow end of its 80 % interval


def bill_range(study: Study, row: Candidate) -> CostRange:
    """Return the bill of a ranked row over the 80 % interval of its speed."""
    speed = interval(1.0, "throughput", study.ranked_as(row).sized.deployment)
    mid = AtSpeed(speed=1.0, replicas=row.all_replicas, usd_per_month=row.usd_per_month)
    return CostRange(fast=at_speed(study, row, speed.high), mid=mid, slow=at_speed(study, row, speed.low))


def at_speed(study: Study, row: Candidate, speed: float) -> AtSpeed:
    """Size a ranked row as if its replicas had that share of the modelled speed."""
    found = resized(study, row, at_the_speed(study.question, speed))
    if isinstance(found, NotServed):
        return AtSpeed(speed=speed, replicas=None, usd_per_month=None, refused=found.reason)
    return AtSpeed(speed=speed, replicas=found[1], usd_per_month=found[2])


def safe_fleet(study: Study, bills: CostRange, progress: Say = silent) -> SafeFleet | None:
    """Find the cheapest fleet that holds at the slow end of its own interval; None if no candidate does.

    ``bills`` are those of the pick over its interval.
    """
    pick, slow = study.plan.best, bills.slow
    assert pick is not None
    costs_no_more = slow.usd_per_month is not None and slow.usd_per_month <= pick.usd_per_month * _SAME
    if costs_no_more and _holds(pick, slow):
        return SafeFleet(speed=slow.speed, is_pick=True, candidate=pick)
    own = study.ranked_as(pick).sized
    found: list[tuple[float, Placed]] = []
    if slow.usd_per_month is not None:
        more = resize(at_the_speed(study.question, slow.speed), own.screened.hosts)
        found += [(slow.speed, more)] if isinstance(more, Placed) and math.isfinite(more.usd_per_hour) else []
    progress("the slow end of the interval")
    for speed, hosts in _by_slow_end(study) if not costs_no_more else ():
        below = min((placed.usd_per_hour for _, placed in found), default=math.inf)
        question = at_the_speed(study.question, speed)
        found += [(speed, placed) for placed in searched(question, question.sought(), hosts, below).sized]
    if not found:
        return None
    # Of equal bills, the pick's own layout.
    speed, placed = min(found, key=lambda one: (round(one[1].usd_per_hour, 6), one[1].deployment != own.deployment))
    return SafeFleet(
        speed=speed,
        is_pick=placed.deployment == own.deployment,
        candidate=cheapest_row(_as_modelled(study, placed), study.question, study.search.sought, study.hosts),
    )


def _holds(pick: Candidate, slow: AtSpeed) -> bool:
    """Tell whether the pick's fleet, as bought, is enough at the slow end."""
    return slow.replicas is not None and slow.replicas <= pick.all_replicas


def _by_slow_end(study: Study) -> Iterator[tuple[float, list[Hosts]]]:
    """Yield each slow end with the candidates that have it and may hold there; the best known ones come first."""
    too_slow = {where for where, refusal in study.search.refused if refusal.kind is Reason.too_slow}
    groups: dict[float, list[Hosts]] = defaultdict(list)
    for hosts in study.hosts:
        if hosts.tiers or hosts.deployment not in too_slow:
            groups[interval(1.0, "throughput", hosts.deployment).low].append(hosts)
    yield from sorted(groups.items(), key=lambda group: -group[0])


def _as_modelled(study: Study, placed: Placed) -> Placed:
    """Return a fleet sized at another speed as it serves the planned traffic at the modelled one."""
    sought = study.search.sought
    screened = _screened(sought, placed)
    trial = sought.as_sized(screened, placed.trial, 1.0) if placed.trial else None
    return Placed(screened, placed.replicas, trial)


def _screened(sought: Sought, placed: Placed) -> Screened:
    hosts = placed.screened.hosts
    if hosts.prefill is None:
        found = screen(hosts.deployment, hosts, sought.load, sought.slos)
        assert isinstance(found, Screened)  # it holds when slower
        return found
    pair = pair_of(sought.setup(hosts), hosts, sought.limits.max_utilization)
    assert isinstance(pair, Pair)
    return pair.split(hosts.prefill.replicas, placed.replicas - hosts.prefill.replicas)


def slo_rooms(study: Study, bills: CostRange) -> tuple[SloRoom, ...]:
    """Return, for each SLO of a simulated pick, how far below its target it is, and whether a doubt takes it all."""
    row = study.plan.best
    assert row is not None
    placed, slow = study.ranked_as(row).sized, bills.slow
    if placed.trial is None:
        return ()
    missed = set[str]()
    if not _holds(row, slow):
        sought = at_the_speed(study.question, slow.speed).sought()
        made = sought.as_sized(placed.screened, placed.trial, 1.0).outcome
        missed = {found.slo for found in made.slo if not found.met}
    return tuple(
        SloRoom(slo=found.slo, room=1 - found.delivered_s / found.objective_s, within_interval=found.slo in missed)
        for found in placed.trial.outcome.slo
        if found.delivered_s is not None
    )
