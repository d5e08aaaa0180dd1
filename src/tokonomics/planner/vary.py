"""Ask a plan again with a change of traffic, lengths, SLOs, limits or speed, and compare the answers.

The change applies to the question (``again``, which studies it anew) or to what one candidate is sized for (``resize``,
which finds its replicas as the plan does). A fleet that is ``k`` times slower serves a trace exactly as the unchanged
one serves it replayed ``k`` times faster, with every duration divided by ``k``: so a doubt about the speed is a change
of traffic and SLOs, and the simulator needs no second set of step times.

Two answers follow: the headroom of a plan (the same requests ever faster on the pick's replicas until an SLO is
missed), and which assumption moves the bill most (each changed alone by a quarter). Replicas are whole, so a change
often costs nothing or a whole machine: the share of the fleet's simulated capacity in use is given beside the bill.
What the ends of the 80 % interval cost is in ``firmness``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.physics.intervals import interval
from tokonomics.planner.disaggregation import RatioPoint, kv_transfer_s, resize_apart, splits_of
from tokonomics.planner.plan import Question, Study, searched, study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.search import Placed, late_in_the_mean
from tokonomics.serving.capacity import BEHIND
from tokonomics.sizing.attempt import Attempts, Sized
from tokonomics.sizing.disaggregation import Pair, pair_of
from tokonomics.sizing.hosts import Hosts
from tokonomics.sizing.layouts import NotServed, Reason, why_not
from tokonomics.sizing.load import Load
from tokonomics.sizing.screen import LEEWAY, Screened, screen
from tokonomics.sizing.search import CLOSE_ENOUGH
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.tenants import hurried
from tokonomics.traffic.trace import Counts
from tokonomics.traffic.workload import workload_of
from tokonomics.types import Noun, copied
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

_MOST_DOUBLINGS = 10
_CHANGE = 0.25
_SHOWN = 1.04  # times the capacity in use: a bar of a chart does not show a smaller change

_GLANCE = 5000  # requests for one point of a curve, which only shows a shape; decisions use all requests
_LIGHT = 0.3
"""Share of the closed form's capacity at which the search for a fleet's capacity begins, and of that if an SLO is
missed."""
_LIGHTER = 4  # times to repeat that: below a hundredth of its capacity, no fleet is worth its GPUs


def again(question: Question, *, pick_only: bool = False, attempts: Attempts | None = None, **changes: Any) -> Study:
    """Study the same question with other fields; nothing is set aside. ``attempts`` must be for the same load."""
    return study(replace(question, catches={}, **changes), pick_only=pick_only, attempts=attempts)


def resize(question: Question, hosts: Hosts) -> Placed | NotServed:
    """Find the replicas that one candidate takes for a question, as the plan does."""
    if refusal := why_not(hosts.deployment, question.load.longest):
        return refusal
    # A single candidate is never too expensive: it is sized, or refused for a reason of its own.
    sought = question.sought()
    if hosts.prefill:
        return resize_apart(sought, hosts)
    search = searched(question, sought, [hosts])
    return search.sized[0] if search.sized else search.refused[0][1]


class HeldRate(NamedTuple):
    """The highest tried rate that a fleet holds, the lowest that it does not (or infinity), and what breaks."""

    rate: float
    at_most: float
    breaks: str


def highest_rate(
    question: Question,
    screened: Screened,
    replicas: int,
    close_enough: float = CLOSE_ENOUGH,
    trial: Sized | None = None,
) -> HeldRate:
    """Find the highest rate that these replicas hold, starting at the question's own, which they are known to hold.

    Rates lie on a grid, ``close_enough`` apart, so that a looser SLO never gives a lower rate. A ``trial`` fixes router
    and sequence limit; otherwise each rate gets those that suit it.
    """
    planned = question.load.workload.rate

    def broken(step: int, whole: bool = False) -> str | None:
        return _broken(question, screened, replicas, planned * close_enough**step, trial, whole)

    ceiling = screened.capacity.rate * replicas * LEEWAY / planned
    holds, breaks = 0, max(1, math.ceil(math.log(max(ceiling, 1.0), close_enough)))
    reason: str | None = None
    for _ in range(_MOST_DOUBLINGS):
        while breaks - holds > 1:
            middle = (holds + breaks) // 2
            found = broken(middle)
            holds, breaks, reason = (middle, breaks, reason) if found is None else (holds, middle, found)
        # So far perhaps only the closed form says that the upper end breaks, or the part of a simulation.
        if reason or broken(breaks):
            reason = broken(breaks, whole=True) or reason
            return HeldRate(planned * close_enough**holds, planned * close_enough**breaks, reason or "")
        holds, breaks = breaks, 2 * breaks
    return HeldRate(planned * close_enough**holds, math.inf, "nothing: is there any work to do?")


def _broken(
    question: Question, screened: Screened, replicas: int, rate: float, trial: Sized | None = None, whole: bool = False
) -> str | None:
    """Say what breaks on these replicas at a rate; None if they hold. A ``trial`` may be simulated to the end."""
    if question.simulate:
        sought = question.sought(question.load.at(rate))
        if trial is None:
            return sought.on(screened, replicas).breaks
        return sought.as_sized(screened, trial, whole=whole).breaks
    held = rate * (1 + question.load.headroom) / replicas
    if held > screened.capacity.rate:
        return BEHIND
    return late_in_the_mean(screened, held, question.slos)


# --- what is changed ------------------------------------------------------------------------------------------------


def at_the_speed(question: Question, speed: float) -> Question:
    """Return the question as if replicas had that share of the modelled speed: shorter SLOs and faster traffic."""
    times = 1 / speed
    load = replace(question.load, trace=hurried(question.load.trace, times))
    return replace(question, load=load.at(load.workload.rate * times), slos=loosened(question.slos, 1 / times))


def loosened(slos: Sequence[Slo], factor: float, only: Slo | None = None) -> tuple[Slo, ...]:
    """Multiply all SLOs, or only one, by a factor."""
    return tuple(
        slo.model_copy(update={"seconds": slo.seconds * factor}) if only in (None, slo) else slo for slo in slos
    )


def stretched(load: Load, inputs: float = 1.0, outputs: float = 1.0, context: int | None = None) -> Load:
    """Multiply prompts and answers by a factor. Shared parts of prompts keep their length: only the ends change.

    Requests beyond ``context`` are left out or cut, as in the plan.
    """
    trace = load.trace
    longer = trace.resized(_times(trace.input_tokens, inputs, 1), _times(trace.output_tokens, outputs, 0))
    made = replace(load, trace=longer, workload=workload_of(longer, load.workload.rate))
    return made.within(context) if context else made


def _times(tokens: Counts, factor: float, least: int) -> Counts:
    if factor == 1:
        return tokens
    # An answer without tokens stays empty.
    return np.where(tokens > 0, np.maximum(np.rint(tokens * factor), max(1, least)), 0).astype(np.int32)


RATE, PROMPTS, ANSWERS = "requests a second", "prompt tokens", "answer tokens"


def traffic_axes(question: Question) -> dict[str, Callable[[float], Load]]:
    """Return the possible changes of the traffic: the load at a multiple of its rate, prompts or answers."""
    load, context = question.load, question.model.max_context
    axes: dict[str, Callable[[float], Load]] = {
        RATE: lambda by: load.at(load.workload.rate * by),
        PROMPTS: lambda by: stretched(load, inputs=by, context=context),
    }
    if load.workload.writes:
        axes[ANSWERS] = lambda by: stretched(load, outputs=by, context=context)
    return axes


def resized(study: Study, row: Candidate, question: Question) -> tuple[Placed, int, float] | NotServed:
    """Size a ranked row for a changed question: its replicas with spare ones, and their bill."""
    ranked = study.ranked_as(row)
    found = resize(question, ranked.sized.screened.hosts)
    if isinstance(found, NotServed):
        return found
    hosts, offer = found.screened.hosts, ranked.machine.offer
    machines = hosts.machines_on(offer, found.replicas)
    if math.isinf(machines):
        return NotServed(Reason.instance_too_small, "it takes more than one machine, and these are not networked")
    return found, sum(hosts.counts_on(offer, found.replicas)), ranked.machine.usd_per_month(machines)


# --- room to grow ---------------------------------------------------------------------------------------------------


class Headroom(Noun):
    """How much the traffic may grow on the pick's replicas."""

    replicas: PositiveInt  # that serve: spare ones are assumed to be down
    rate: PositiveFloat  # requests a second that it still serves
    share: NonNegativeFloat  # 0.2: a fifth more than planned
    at_most: PositiveFloat | None  # the lowest tried rate that it does not serve
    breaks: str  # what breaks there
    simulated: bool


def headroom(study: Study) -> Headroom | None:
    """Find how much the traffic may grow before the pick misses an SLO.

    None if there is no pick, or if the requests are sessions that never offer their whole load: faster ones end sooner.
    """
    if study.plan.best is None or not study.question.load.is_steady:
        return None
    question, sized = study.question, study.ranked_as(study.plan.best).sized
    # With the headroom that was asked for, the pick is known to hold. A short log is repeated for the search.
    grown = replace(question, load=question.load.lasting.grown)
    held = highest_rate(grown, sized.screened, sized.replicas, trial=sized.trial)
    return Headroom(
        replicas=sized.replicas,
        **copied(held, "rate", "breaks"),
        share=held.rate / question.load.workload.rate - 1,
        at_most=held.at_most if math.isfinite(held.at_most) else None,
        simulated=question.simulate,
    )


# --- what moves the bill --------------------------------------------------------------------------------------------


class Case(Noun):
    """The pick under one changed assumption."""

    factor: PositiveFloat  # what the assumption is multiplied by
    usd_per_month: PositiveFloat | None  # None if no number of replicas meets the SLOs
    replicas: PositiveInt | None
    used: NonNegativeFloat | None  # share of these replicas' capacity in use
    refused: str | None = None  # why there is no bill


class CostSwing(Noun):
    """The effect of an assumption on the bill of the pick."""

    assumption: str  # ``requests a second``, ``SLO ttft_p99``…
    low: Case  # with the assumption at its smaller value
    high: Case

    def usd(self, mid: float) -> float:
        """Return the difference between the highest and the lowest bill; infinite if one case cannot be served."""
        low, high = self.low.usd_per_month, self.high.usd_per_month
        return math.inf if low is None or high is None else max(low, mid, high) - min(low, mid, high)


class Sensitivity(Noun):
    """The bill of the pick, and the effect of every assumption on it, strongest first."""

    usd_per_month: PositiveFloat
    replicas: PositiveInt
    used: NonNegativeFloat
    swings: tuple[CostSwing, ...]


def sensitivity(study: Study) -> Sensitivity | None:
    """Change each assumption alone; None if there is no pick."""
    row = study.plan.best
    if row is None:
        return None
    question, sized = study.question, study.ranked_as(row).sized
    slos, speed = question.slos, interval(1.0, "throughput", sized.deployment)

    def case(factor: float, changed: Question) -> Case:
        found = resized(study, row, changed)
        if isinstance(found, NotServed):
            return Case(factor=factor, usd_per_month=None, replicas=None, used=None, refused=found.reason)
        placed, replicas, bill = found
        return Case(factor=factor, usd_per_month=bill, replicas=replicas, used=_used(changed, placed))

    few, many = 1 - _CHANGE, 1 + _CHANGE
    changes: dict[str, list[tuple[float, Question]]] = {
        name: [(by, replace(question, load=load(by))) for by in (few, many)]
        for name, load in traffic_axes(question).items()
    }
    changes["speed of the replicas"] = [(by, at_the_speed(question, by)) for by in (speed.low, speed.high)]
    for slo in slos:
        changes[f"SLO {slo}"] = [(by, replace(question, slos=loosened(slos, by, slo))) for by in (few, many)]
    cases = {name: [case(*changed) for changed in both] for name, both in changes.items()}
    mid_used = _used(question, sized)
    cases["price of the machine"] = [
        Case(factor=by, usd_per_month=row.usd_per_month * by, replicas=row.replicas, used=mid_used)
        for by in (few, many)
    ]
    swings = [CostSwing(assumption=name, low=low, high=high) for name, (low, high) in cases.items()]
    swings.sort(key=lambda swing: (-swing.usd(row.usd_per_month), -_moved(swing, mid_used)))
    return Sensitivity(usd_per_month=row.usd_per_month, replicas=row.replicas, used=mid_used, swings=tuple(swings))


def _used(question: Question, sized: Placed) -> float:
    grown = replace(question, load=question.load.grown)
    return question.load.workload.rate / highest_rate(grown, sized.screened, sized.replicas, _SHOWN).rate


def _moved(swing: CostSwing, mid: float) -> float:
    shares = [used for used in (swing.low.used, mid, swing.high.used) if used is not None]
    return max(shares) - min(shares)


# --- the ratio of a disaggregated way -------------------------------------------------------------------------------


def ratios(study: Study, progress: Say = silent) -> tuple[RatioPoint, ...]:
    """Return what the cheapest disaggregated GPUs hold if they are split differently, or if each does both."""
    if study.apart is None:
        return ()
    question, placed = study.question, study.apart.sized
    hosts, load = placed.screened.hosts, question.load
    sought = question.sought()
    pair = pair_of(sought.setup(hosts), hosts, sought.limits.max_utilization)
    assert isinstance(pair, Pair)
    together = screen(pair.decode.deployment, pair.decode, load, question.slos)
    fleets: list[tuple[int, int, Screened]] = []
    if isinstance(together, Screened):
        fleets.append((0, hosts.gpus_of(placed.replicas) // together.deployment.gpus, together))
    fleets += [(first, second, pair.split(first, second)) for first, second in splits_of(hosts, placed.replicas)]
    few = replace(load, trace=load.trace.take(np.arange(min(_GLANCE, len(load.trace)))))
    best, points = study.plan.best, []
    own = study.ranked_as(best).sized if best else None
    for first, second, screened in fleets:
        progress(f"{first} prefill and {second} decode replicas")
        replicas = first + second
        rate, usd = _held(replace(question, load=few), screened, replicas), screened.hosts.usd_per_hour(replicas)
        is_cheapest = hosts.prefill is not None and first == hosts.prefill.replicas
        is_pick = own is not None and (own.screened.name, own.replicas) == (screened.name, replicas)
        tokens_per_hour = rate * (load.workload.input_tokens + load.workload.output_tokens) * SECONDS_PER_HOUR
        points.append(
            RatioPoint(
                prefill_replicas=first,
                decode_replicas=second,
                requests_per_s=rate,
                usd_per_mtok=usd / tokens_per_hour * TOKENS_PER_MTOK if rate and math.isfinite(usd) else None,
                kv_transfer_s=kv_transfer_s(screened.hosts, replicas, load) if first else None,
                is_planned=is_pick,
                is_cheapest=is_cheapest,
            )
        )
    return tuple(points)


def _held(question: Question, screened: Screened, replicas: int) -> float:
    """Return the approximate requests a second that a fleet holds; 0 if it misses an SLO at any rate."""
    rate = _LIGHT * replicas * screened.capacity.rate
    for _ in range(_LIGHTER):
        if not _broken(question, screened, replicas, rate):
            light = replace(question, load=question.load.at(rate))
            return highest_rate(light, screened, replicas, _SHOWN).rate
        rate *= _LIGHT
    return 0.0
