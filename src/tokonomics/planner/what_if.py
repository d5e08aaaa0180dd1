"""The same candidate under other circumstances: other traffic, lengths, SLOs or speed, and what it then takes.

The candidate is sized anew as the plan sized it. A fleet that is ``k`` times slower serves a trace exactly as the
unchanged one serves it replayed ``k`` times faster, with every duration divided by ``k``: so a doubt about the speed is
a change of traffic and SLOs, and the simulator needs no second set of step times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokonomics.physics.deployment import Deployment
from tokonomics.planner.candidates import Refusal, why_not
from tokonomics.planner.load import Load
from tokonomics.planner.machines import Hosts, Machine, machines_for
from tokonomics.planner.plan import Candidate, Question, Study
from tokonomics.planner.screen import LEEWAY, Screened
from tokonomics.planner.search import Placed, Search, late_in_the_mean
from tokonomics.planner.trials import Trials
from tokonomics.serving.capacity import BEHIND
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Counts, PrefixBlocks

CLOSE_ENOUGH = 1.01
"""Of two rates: chance alone moves a capacity found with 20,000 requests by about as much."""
_MOST_DOUBLINGS = 10


@dataclass(frozen=True)
class HeldRate:
    """How far the traffic of a fleet may grow."""

    rate: float
    """Requests a second: the highest tried that holds."""
    at_most: float
    """The lowest tried that does not; infinite where nothing breaks."""
    breaks: str
    """What gives way there."""


def resize(
    question: Question, hosts: Hosts, load: Load | None = None, slos: Sequence[Slo] | None = None
) -> Placed | Refusal:
    """The replicas that one candidate takes for other traffic or other SLOs, found as the plan finds them."""
    load = load or question.load
    refusal = why_not(hosts.deployment, load.longest)
    if refusal:
        return refusal
    targets = question.slos if slos is None else tuple(slos)
    search = Search(
        load,
        targets,
        Trials(load, targets, question.router),
        simulate=question.simulate,
        max_utilization=question.limits.max_utilization,
        spare=question.limits.spare,
    )
    # Alone, a candidate is never too dear: it is sized, or refused for a reason of its own.
    search.run([hosts])
    return search.sized[0] if search.sized else search.refused[0][1]


def highest_rate(
    question: Question,
    each: Screened,
    replicas: int,
    load: Load | None = None,
    slos: Sequence[Slo] | None = None,
    close_enough: float = CLOSE_ENOUGH,
) -> HeldRate:
    """The highest rate that these replicas hold, from the load's own on, which they are known to hold.

    Rates are those of a grid, ``close_enough`` apart, so that a looser SLO never holds less.
    """
    load = load or question.load
    targets = question.slos if slos is None else tuple(slos)
    planned = load.workload.rate

    def broken(step: int) -> str | None:
        return _broken(question, each, replicas, load.at(planned * close_enough**step), targets)

    ceiling = each.capacity.rate * replicas * LEEWAY / planned
    holds, breaks = 0, max(1, math.ceil(math.log(max(ceiling, 1.0), close_enough)))
    reason: str | None = None
    for _ in range(_MOST_DOUBLINGS):
        while breaks - holds > 1:
            middle = (holds + breaks) // 2
            found = broken(middle)
            holds, breaks, reason = (middle, breaks, reason) if found is None else (holds, middle, found)
        # So far only the closed form may say that the upper end breaks.
        reason = reason or broken(breaks)
        if reason:
            return HeldRate(planned * close_enough**holds, planned * close_enough**breaks, reason)
        holds, breaks = breaks, 2 * breaks
    return HeldRate(planned * close_enough**holds, math.inf, "nothing: is there any work to do?")


def _broken(question: Question, each: Screened, replicas: int, load: Load, slos: tuple[Slo, ...]) -> str | None:
    if question.simulate:
        return Trials(load, slos, question.router).on(each, replicas).breaks
    rate = load.workload.rate / replicas
    if rate > each.capacity.rate:
        return BEHIND
    return late_in_the_mean(each, rate, slos)


# --- what is altered ------------------------------------------------------------------------------------------------


def slower(load: Load, slos: Sequence[Slo], times: float) -> tuple[Load, tuple[Slo, ...]]:
    """Traffic and SLOs under which the unchanged fleet does what one so many times slower would do."""
    trace = load.trace
    if trace.patience_s is not None:
        load = replace(load, trace=replace(trace, patience_s=trace.patience_s / times))
    return load.at(load.workload.rate * times), loosened(slos, 1 / times)


def loosened(slos: Sequence[Slo], factor: float, only: Slo | None = None) -> tuple[Slo, ...]:
    """SLOs so many times as long; all of them, or only one."""
    return tuple(
        slo.model_copy(update={"seconds": slo.seconds * factor}) if only in (None, slo) else slo for slo in slos
    )


def stretched(load: Load, inputs: float = 1.0, outputs: float = 1.0, context: int | None = None) -> Load:
    """Prompts and answers so many times as long. What prompts share stays as long: they grow and shrink at their ends.

    Of a log, requests beyond ``context`` are left out, as the plan does.
    """
    trace = load.trace
    longer = replace(
        trace,
        input_tokens=_times(trace.input_tokens, inputs, 1),
        output_tokens=_times(trace.output_tokens, outputs, 0),
    )
    if trace.prefix is not None:
        before = trace.input_tokens, trace.output_tokens
        cut = _cut(trace.prefix, before, (longer.input_tokens, longer.output_tokens))
        longer = replace(longer, prefix=cut)
    mean = {
        "input_tokens": max(1, round(float(longer.input_tokens.mean()))),
        "output_tokens": max(1, round(float(longer.output_tokens.mean()))),
    }
    made = replace(load, trace=longer, workload=load.workload.model_copy(update=mean))
    return made.within(context) if load.is_log and context else made


def _times(tokens: Counts, factor: float, least: int) -> Counts:
    if factor == 1:
        return tokens
    # An answer of no token stays one.
    return np.where(tokens > 0, np.maximum(np.rint(tokens * factor), max(1, least)), 0).astype(np.int32)


def _cut(prefix: PrefixBlocks, before: tuple[Counts, Counts], after: tuple[Counts, Counts]) -> PrefixBlocks:
    """No more shared blocks than a shortened prompt has, or, where they name answers too, prompt and answer."""
    counts = np.diff(prefix.starts)
    prompts = -(-before[0].astype(np.int64) // prefix.block_tokens)
    room = -(-after[0].astype(np.int64) // prefix.block_tokens)
    both = (after[0].astype(np.int64) + after[1]) // prefix.block_tokens
    left = np.minimum(counts, np.where(counts > prompts, both, room))
    place = np.arange(len(prefix.ids)) - np.repeat(prefix.starts[:-1], counts)
    starts = np.concatenate([[0], np.cumsum(left)]).astype(np.int64)
    return replace(prefix, ids=prefix.ids[place < np.repeat(left, counts)], starts=starts)


# --- what it costs --------------------------------------------------------------------------------------------------


def usd_per_month(deployment: Deployment, machine: Machine, replicas: int) -> float:
    """Whole machines of one offer that so many replicas take, spare ones included."""
    return machine.usd_per_month(machines_for(deployment, machine.offer, replicas))


def resized(study: Study, row: Candidate, load: Load, slos: Sequence[Slo]) -> tuple[Placed, int, float] | Refusal:
    """A ranked row sized for other traffic or SLOs: its replicas, spare ones included, and their bill."""
    sized = study.of(row)
    found = resize(study.question, sized.screened.hosts, load, slos)
    if isinstance(found, Refusal):
        return found
    replicas = found.replicas + study.question.limits.spare
    return found, replicas, usd_per_month(sized.deployment, machine_of(sized, row), replicas)


def machine_of(sized: Placed, row: Candidate) -> Machine:
    """The machine that a ranked row stands on."""
    wanted = row.provider, row.region, row.instance, row.gpu, row.terms
    return next(
        host
        for host in sized.screened.hosts.machines
        if (host.offer.provider, host.offer.region, host.offer.instance, host.offer.gpu, host.terms) == wanted
        and (host.usd_per_hour, host.offer.gpus * row.instances) == (row.instance_usd_per_hour, row.gpus_paid)
    )
