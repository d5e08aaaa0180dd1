"""Test how firm a choice is: what would make another GPU cheapest, and which choice is safest for unknown demand.

Prices: bills are whole machines times a price, so the rise or fall that makes two of them equal is exact. Traffic: the
plan is made again with more or fewer, longer or shorter requests, in steps away from the given traffic, until another
GPU is the cheapest; then the crossing is narrowed down to one in fifty.

Regret: low, middle and high traffic, one kind of hardware for all. The number of replicas follows the demand;
deployment, machine and terms do not. In each case the regret of a choice is what it costs more than the best one for
that case. The least regret is the choice whose largest is smallest (Savage, "The theory of statistical decision",
1951), among those that meet the SLOs in every case. The choices are everything that the plan of any case sized, on the
cheapest machine of each size; a choice that cannot be among the best so far is not simulated.

Energy: a plan's row draws watts for its simulated time with prompts, with answers and idle. If nothing was simulated,
the closed form's mean number of running requests L gives the idle time: arrivals are random, so none runs for e^−L of
it. Prompts take their stalls at this rate out of the rest.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import product, repeat

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.offers import Terms
from tokonomics.catalog.places import LISTED_EVERYWHERE, WORLD, Grid, grid_named, grid_of
from tokonomics.money.own_hardware import HOST_SHARE, Energy, energy, fleet_watts, pue_of
from tokonomics.physics.curves import power_of
from tokonomics.physics.intervals import interval
from tokonomics.planner.plan import Question, Study, cheapest_row, searched
from tokonomics.planner.plan_answer import Candidate, Kind
from tokonomics.planner.prospects import layout
from tokonomics.planner.search import Placed, Sought, kind_of
from tokonomics.planner.vary import ANSWERS, PROMPTS, RATE, again, at_the_speed, resize, resized, traffic_axes
from tokonomics.sizing.attempt import prefill_share
from tokonomics.sizing.disaggregation import Pair, pair_of
from tokonomics.sizing.hosts import Hosts, Machine
from tokonomics.sizing.layouts import NotServed, Reason, is_faithful, why_not
from tokonomics.sizing.screen import Screened, screen
from tokonomics.sizing.search import highest_between
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.workload import Workload
from tokonomics.types import Noun, copied

FURTHEST = 8.0  # times more or less: beyond that, it is another plan
_RATE_STEPS, _LENGTH_STEPS = 24, 6  # steps up to the furthest. Rates are cheap to try; every length needs new curves.
_CLOSE_ENOUGH = 1.02


class PriceFlip(Noun):
    """Prices at which the pick and a rival cost the same."""

    gpu: str
    provider: str
    region: str
    instance: str
    usd_per_month: PositiveFloat  # of the rival
    pick_may_rise: NonNegativeFloat  # share by which the price of the pick's machine may rise
    rival_must_fall: NonNegativeFloat  # share by which the price of the rival's machine must fall instead


class Side(Noun):
    """The two cheapest candidates on one side of a crossing, as simulated."""

    value: PositiveFloat  # of the changed quantity
    pick_usd_per_month: PositiveFloat | None  # the cheapest on the pick's GPU; None if it cannot serve
    rival_usd_per_month: PositiveFloat | None


class Flip(Noun):
    """The point at which another GPU becomes the cheapest."""

    what: str  # ``requests a second``, ``prompt tokens`` or ``answer tokens``
    factor: PositiveFloat  # of the plan's value
    before: Side
    after: Side
    gpu: str  # the rival's
    rival: str  # its layout
    replicas: PositiveInt  # that serve, without spare ones


class Flips(Noun):
    """The changes that would flip the choice."""

    other_offer: PriceFlip | None  # the nearest price on another machine of any GPU
    other_gpu: PriceFlip | None  # against the runner-up, if prices of the pick's GPU rise everywhere
    traffic: tuple[Flip, ...]  # the nearest first
    steady: tuple[str, ...]  # changes up to the furthest that do not flip it, such as ``prompt tokens ÷ 8``


def flips(study: Study, only: Collection[str] | None = None, progress: Say = silent) -> Flips | None:
    """Find the nearest flips of each kind, or only along these axes of the traffic; None if there is no pick.

    A direction takes about ten plans.
    """
    pick = study.plan.best
    if pick is None:
        return None
    found: list[Flip] = []
    steady: list[str] = []
    for name, sign in product(traffic_axes(study.question), (-1, 1)):
        if only is not None and name not in only:
            continue
        progress(f"{'more' if sign > 0 else 'fewer'} {name}")
        if flip := _nearest_flip(study.question, pick.gpu, name, sign):
            found.append(flip)
        else:
            steady.append(f"{name} {'×' if sign > 0 else '÷'} {FURTHEST:g}")
    here = pick.provider, pick.region, pick.instance
    other = next((row for row in study.plan.ranked if (row.provider, row.region, row.instance) != here), None)
    return Flips(
        other_offer=_price_flip(pick, other),
        other_gpu=_price_flip(pick, study.plan.runner_up()),
        traffic=tuple(sorted(found, key=lambda flip: abs(math.log(flip.factor)))),
        steady=tuple(steady),
    )


def _price_flip(pick: Candidate, rival: Candidate | None) -> PriceFlip | None:
    if rival is None:
        return None
    return PriceFlip(
        **copied(rival, "gpu", "provider", "region", "instance", "usd_per_month"),
        pick_may_rise=max(0.0, rival.usd_per_month / pick.usd_per_month - 1),
        rival_must_fall=max(0.0, 1 - pick.usd_per_month / rival.usd_per_month),
    )


def _nearest_flip(question: Question, gpu: str, axis: str, sign: int) -> Flip | None:
    """Find the first crossing along one axis in one direction to another GPU, with replicas that do both."""
    load_at = traffic_axes(question)[axis]

    @cache
    def planned(away: float) -> Study:
        return again(question, pick_only=True, load=load_at(away**sign), disaggregate=False)

    def stays(away: float) -> bool:
        """Tell whether no other GPU is cheaper than the pick's; the plan ranks all that cost the same."""
        rows = planned(away).plan.ranked
        return not rows or any(row.gpu == gpu for row in rows)

    steps = _RATE_STEPS if axis == RATE else _LENGTH_STEPS
    distances = [FURTHEST ** (step / steps) for step in range(steps + 1)]
    crossed = next((place for place in range(1, steps + 1) if not stays(distances[place])), None)
    if crossed is None:
        return None
    near, far = highest_between(stays, distances[crossed - 1], distances[crossed], _CLOSE_ENOUGH)
    still, flipped = planned(near), planned(far)
    here, rival = still.plan.best, flipped.plan.best
    assert rival is not None
    placed, attempts = flipped.ranked_as(rival).sized, flipped.search.sought.attempts
    own = again(flipped.question.on(gpu), pick_only=True, attempts=attempts).plan.best
    before = resize(still.question, placed.screened.hosts)
    rival_usd = math.inf if isinstance(before, NotServed) else before.screened.hosts.usd_per_month(before.replicas)
    mean = question.load.workload
    value = {RATE: mean.rate, PROMPTS: mean.input_tokens, ANSWERS: mean.output_tokens}[axis]
    return Flip(
        what=axis,
        factor=far**sign,
        before=Side(
            value=value * near**sign,
            pick_usd_per_month=here.usd_per_month if here else None,
            rival_usd_per_month=rival_usd if math.isfinite(rival_usd) else None,
        ),
        after=Side(
            value=value * far**sign,
            pick_usd_per_month=own.usd_per_month if own else None,
            rival_usd_per_month=rival.usd_per_month,
        ),
        gpu=rival.gpu,
        rival=layout(placed.deployment),
        replicas=placed.replicas,
    )


# --- several demands ------------------------------------------------------------------------------------------------


class InCase(Noun):
    """A choice in one case."""

    replicas: PositiveInt  # spare ones included
    usd_per_month: PositiveFloat
    regret: NonNegativeFloat  # bill ÷ best bill of this case - 1


class RegretChoice(Noun):
    """One kind of hardware on one offer, for every demand."""

    gpu: str
    layout: str
    weights: Precision
    engine: str
    provider: str
    region: str
    instance: str
    terms: Terms
    below_checkpoint: bool
    cases: tuple[InCase, ...]  # in the order of the demands
    largest_regret: NonNegativeFloat
    best_in: tuple[int, ...]  # indices of the cases for which it is the pick


class Regret(Noun):
    """Choices that hold in every case, the one with the least regret first."""

    demands: tuple[Workload, ...]
    best_usd_per_month: tuple[PositiveFloat, ...]  # of each case, with the choice that is best for it
    choices: tuple[RegretChoice, ...]
    not_everywhere: int  # choices left out because they miss an SLO in some case, or take more GPUs than allowed

    @property
    def least(self) -> RegretChoice | None:
        return self.choices[0] if self.choices else None


def least_regret(studies: Sequence[Study], rows: int = 10) -> Regret | None:
    """Find the choices with the least regret over studies of the same question for several demands.

    Return None if some demand cannot be served at all.
    """
    bests = [study.plan.best.usd_per_month for study in studies if study.plan.best]
    if len(bests) < len(studies):
        return None
    named: dict[str, Hosts] = {}
    for placed in (placed for study in studies for placed in study.search.sized):
        named.setdefault(placed.screened.name, placed.screened.hosts)
    hopes = [(max(map(_hope, studies, bests, repeat(hosts))), hosts) for hosts in named.values()]
    found: dict[Kind, RegretChoice] = {}
    not_everywhere = 0
    for hope, hosts in sorted(hopes, key=lambda hoped: hoped[0]):
        enough = sorted(choice.largest_regret for choice in found.values())[:rows]
        if math.isfinite(hope) and len(enough) == rows and hope > enough[-1]:
            continue
        choice = _choice(hosts, studies, bests) if math.isfinite(hope) else None
        if choice is None:
            not_everywhere += 1
        elif (kind := kind_of(hosts.deployment)) not in found or _key(choice) < _key(found[kind]):
            found[kind] = choice
    return Regret(
        demands=tuple(study.question.load.workload for study in studies),
        best_usd_per_month=tuple(bests),
        choices=tuple(sorted(found.values(), key=_key)[:rows]),
        not_everywhere=not_everywhere,
    )


def _key(choice: RegretChoice) -> tuple[float, float, int, int]:
    """Order by the largest regret, then by the smaller sum, then by more bits."""
    total = sum(case.regret for case in choice.cases)
    return round(choice.largest_regret, 9), round(total, 9), -choice.weights.bits, choice.layout.count("KV")


def _hope(study: Study, best_usd: float, hosts: Hosts) -> float:
    """Return the smallest regret that the closed form allows a deployment; infinite if it cannot serve."""
    question = study.question
    if why_not(hosts.deployment, question.load.longest):
        return math.inf
    screened = screen(hosts.deployment, hosts, question.load, question.slos)
    if isinstance(screened, NotServed):
        return math.inf
    return max(0.0, hosts.usd_per_month(screened.fewest) / best_usd - 1)


def _choice(hosts: Hosts, studies: Sequence[Study], bests: Sequence[float]) -> RegretChoice | None:
    """Put a deployment on its best machine over all cases; None if it does not hold in one of them."""
    counts = []
    for study in studies:
        known = (placed for placed in study.search.sized if placed.deployment == hosts.deployment)
        placed = next(known, None) or resize(study.question, hosts)
        if isinstance(placed, NotServed):
            return None
        counts.append(placed.replicas)
    choices = (_on(hosts, machine, counts, bests) for machine in hosts.cheapest_of_each_size)
    return min(filter(None, choices), key=_key, default=None)


def _on(hosts: Hosts, machine: Machine, counts: Sequence[int], bests: Sequence[float]) -> RegretChoice | None:
    """Put the replicas of each case on one kind of machine; None if they take more GPUs than allowed."""
    deployment, offer = hosts.deployment, machine.offer
    if hosts.machines_on(offer, max(counts)) * offer.gpus > (hosts.max_gpus or math.inf):
        return None
    bills = [machine.usd_per_month(hosts.machines_on(offer, count)) for count in counts]
    cases = tuple(
        # The search found the lowest bill; a cent of rounding must not make a negative regret.
        InCase(replicas=sum(hosts.counts_on(offer, count)), usd_per_month=usd, regret=max(0.0, usd / best - 1))
        for count, usd, best in zip(counts, bills, bests, strict=True)
    )
    return RegretChoice(
        gpu=deployment.gpu.key,
        layout=layout(deployment),
        weights=deployment.weights,
        engine=deployment.engine.key,
        **copied(offer, "provider", "region", "instance"),
        terms=machine.terms,
        below_checkpoint=not is_faithful(deployment),
        cases=cases,
        largest_regret=max(case.regret for case in cases),
        best_in=tuple(place for place, case in enumerate(cases) if case.regret < 1e-9),
    )


def energy_of(study: Study, row: Candidate, grid: Grid | None = None) -> Energy | None:
    """Return the energy of a ranked row; None if its GPU's power is unknown. ``grid`` replaces that of its region."""
    gpu = find_gpu(row.gpu)
    curve, load = power_of(gpu), study.plan.workload
    if curve is None:
        return None
    prompts, answers, batch = _busy_gpus(study.ranked_as(row).sized, row, load.rate)
    rated = gpu.watts or curve.prefill_w
    return energy(
        fleet_watts(curve, row.gpus_paid, prompts, answers, batch),
        HOST_SHARE * rated * row.gpus_paid,
        pue_of(row.seller),
        grid or _grid(row),
        load.rate * (load.input_tokens + load.output_tokens),
        curve,
    )


def _grid(row: Candidate) -> Grid:
    """Return the grid of the row's region; the world's mean if the seller lists every machine in several regions."""
    is_known = row.provider not in LISTED_EVERYWHERE or len(row.regions) == 1
    return grid_of(row.provider, row.region) if is_known else grid_named(WORLD)


def _busy_gpus(sized: Placed, row: Candidate, rate: float) -> tuple[float, float, float]:
    """Return the mean GPUs that compute prompts, the mean GPUs that write answers, and the batch of a step."""
    gpus_for_prompts = row.prefill.gpus_per_replica if row.prefill else row.gpus_per_replica
    if sized.trial:
        served = sized.trial.outcome
        busy, share, batch = 1 - served.shares.idle, prefill_share(served), served.batch
    else:
        curve, each = sized.screened.curve, rate / sized.replicas
        running = sized.screened.steady(each).batch
        busy = -math.expm1(-running)
        prompts = each * float(np.interp(running, curve.batches, curve.stall_s))
        share, batch = min(1.0, prompts / busy), running / busy
    share = 1.0 if sized.deployment.model.is_encoder else share
    working = sized.replicas * busy  # with the prefill side of a disaggregated one, as in the simulated shares
    return working * share * gpus_for_prompts, working * (1 - share) * row.gpus_per_replica, batch


# --- what a doubt about speed costs: the bill at both ends of its interval, and the cheapest safe fleet ---------------
# Four of five measurements lie within the interval (``physics.intervals``), so nine of ten are faster than its slow
# end. The safe fleet is the cheapest of all candidates that meets every SLO, each at the slow end of its own
# interval: a GPU that is known better is doubted less. Slower replicas never cost less, so a bill at the modelled
# speed bounds the bill at the slow end: if the pick's stays the same there, nothing else is sized. Otherwise the
# plan's own search goes over the candidates that could undercut the pick at its slow end, the cheapest bound first,
# without those that no number of replicas made fast enough at the modelled speed. A headroom that was asked for is
# held at the slow end as well.
#
# A target is met within the interval if the pick's fleet, as bought, misses it at the slow end under the planned
# traffic.


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
