"""Explain why the pick won: what a request takes on the nearest alternative of each kind, its limit, its extra cost.

A bill is the GPU time of requests, at the price of a GPU, divided by the share of the paid GPUs in use:

    bill = requests a second × GPU-seconds a request × $ a GPU-hour ÷ share in use

So two bills differ by three factors. The GPU-seconds are the closed form's at its final batch (``serving.steady``):
prompts, then the parts of a decode step (``physics.steptime``). Other kinds are other splits on the pick's GPU,
disaggregated prefill/decode, and the runner-up's GPU. A candidate that the plan did not size has the bill of the fewest
possible replicas: those of the closed form, or more than were simulated and missed an SLO.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.gpus import gpu_text
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.disaggregation import nearest_pair
from tokonomics.planner.plan import RankedRow, Study
from tokonomics.planner.search import Placed, cheapest_machine
from tokonomics.sizing.hosts import Hosts, Machine
from tokonomics.sizing.screen import Screened, screen
from tokonomics.types import Noun, copied
from tokonomics.units import HOURS_PER_MONTH, percent, plural, usd


class LayoutKind(StrEnum):
    """The kind of a replica's layout, in a few words."""

    one_gpu = "on one GPU"
    tensor = "every layer split (TP)"
    experts = "layers split, experts dealt out (TP, EP)"
    groups = "attention in groups over shared experts (DP, EP)"
    over_machines = "attention in groups over several machines (DP, EP)"
    stages = "in stages (PP)"
    apart = "disaggregated prefill/decode"
    other_gpu = "another GPU"


class GpuSeconds(Noun):
    """The GPU time of a request at full batches."""

    prompts: NonNegativeFloat
    """To compute its prompt, for which other requests' tokens wait, or on the prefill side."""
    weights: NonNegativeFloat  # its share of reading the weights at each step
    kv: NonNegativeFloat  # reading KV
    compute: NonNegativeFloat  # matrix products beyond reading the weights
    communication: NonNegativeFloat  # all-reduce, all-to-all, stages
    overhead: NonNegativeFloat  # norms, launches, the engine

    @property
    def total(self) -> float:
        return sum(self.by_part.values())

    @property
    def by_part(self) -> dict[str, float]:
        return dict(self)


class Contender(Noun):
    """The pick, or the nearest alternative of another kind."""

    kind: LayoutKind
    gpu: str
    layout: str  # such as ``TP=8``; ``TP=4 + EP=8 DP=8`` if disaggregated
    gpus_per_replica: PositiveInt
    replicas: PositiveInt  # including the prefill side
    machines: PositiveInt
    usd_per_month: PositiveFloat
    at_least: bool  # whether it takes this many replicas or more, as the plan did not size it
    costs_more: float  # as a share of the pick's bill
    batch: PositiveInt  # sequences of a replica: more would not help, not fit, or miss the SLO
    limited_by: str  # what limits its rate: ``KV memory``, ``TPOT SLO``, ``replica's speed``…
    gpu_s: GpuSeconds
    usd_per_gpu_hour: PositiveFloat
    in_use: NonNegativeFloat  # share of the paid GPUs that full batches of this traffic would take
    misses: str | None = None  # what fewer replicas missed in the simulation, if known


class WhyPick(Noun):
    """The pick beside the nearest alternative of each kind, cheapest first.

    One that was not sized, and might cost less than the pick by its lower bound, is left out.
    """

    text: str  # text: what the nearest of them costs more, and why
    pick: Contender
    others: tuple[Contender, ...]


def why_pick(study: Study) -> WhyPick | None:
    """Explain the pick; None if there is no pick."""
    best = study.plan.best
    if best is None:
        return None
    chosen = study.ranked_as(best)
    pick = _of_row(study, chosen)
    rivals = [*_other_splits(study, chosen.sized), *_apart(study, chosen.sized)]
    if rival := study.plan.runner_up():
        rivals.append(_of_row(study, study.ranked_as(rival), LayoutKind.other_gpu))
    others = [
        rival.model_copy(update={"costs_more": rival.usd_per_month / pick.usd_per_month - 1})
        for rival in rivals
        if rival.kind is not pick.kind
    ]
    dearer = sorted((rival for rival in others if rival.costs_more > -_SAME), key=lambda rival: rival.costs_more)
    return WhyPick(text=in_words(pick, dearer), pick=pick, others=tuple(dearer))


_SAME = 1e-9


def kind_of_layout(deployment: Deployment) -> LayoutKind:
    """Return the kind of layout of a replica that does both."""
    if deployment.gpus == 1:
        return LayoutKind.one_gpu
    if deployment.pp > 1:
        return LayoutKind.stages
    if deployment.dp > 1:
        return LayoutKind.over_machines if deployment.gpus > deployment.gpu.gpus_per_node else LayoutKind.groups
    return LayoutKind.experts if deployment.ep > 1 else LayoutKind.tensor


def _other_splits(study: Study, pick: Placed) -> Iterator[Contender]:
    """Yield the cheapest of each other kind of split, on the pick's GPU at its precisions."""
    own = pick.deployment
    by_kind: dict[LayoutKind, list[Contender]] = defaultdict(list)
    for hosts in _alike(study.hosts, own):
        kind = kind_of_layout(hosts.deployment)
        is_own = not pick.screened.hosts.prefill and kind is kind_of_layout(own)
        if not is_own and (found := _of_hosts(study, hosts)):
            by_kind[kind].append(found)
    for found_alike in by_kind.values():
        yield min(found_alike, key=lambda one: (round(one.usd_per_month, 2), one.at_least, one.gpu_s.total))


def _alike(hosts: Iterable[Hosts], own: Deployment) -> list[Hosts]:
    """Return the candidates that differ from the pick only in their layout."""
    but_layout = attrgetter("gpu", "engine", "weights", "kv", "speculation")
    return [one for one in hosts if but_layout(one.deployment) == but_layout(own)]


def _of_hosts(study: Study, hosts: Hosts) -> Contender | None:
    """Return one deployment as sized, or on the fewest replicas not ruled out; None if it cannot serve."""
    for placed in study.search.sized:
        if placed.screened.hosts == hosts:
            return _contender(study, placed.screened, placed.replicas)
    found = screen(hosts.deployment, hosts, study.question.load, study.question.slos)
    if not isinstance(found, Screened):
        return None
    sought = study.search.sought
    failed = {count: trial for count, trial in sought.attempts.tried(sought.setup(hosts)).items() if trial.breaks}
    most = max(failed, default=0)
    if most < found.fewest:
        return _contender(study, found, found.fewest, at_least=True)
    return _contender(study, found, most + 1, at_least=True, misses=failed[most].breaks)


def _apart(study: Study, pick: Placed) -> Iterator[Contender]:
    """Yield the cheapest disaggregated candidate if one was found; else the least that one on the pick's GPU costs."""
    question = study.question
    if pick.screened.hosts.prefill or not question.simulate or not question.load.workload.writes:
        return
    if study.apart:
        yield _of_row(study, study.apart)
        return
    alike = [replace(hosts, tiers=None) for hosts in _alike(study.hosts, pick.deployment)]
    pair = nearest_pair(study.search.sought, alike)
    if pair and (found := _contender(study, pair.split(*pair.least), sum(pair.least), at_least=True)):
        yield found


def _of_row(study: Study, ranked: RankedRow, kind: LayoutKind | None = None) -> Contender:
    found = _contender(study, ranked.sized.screened, ranked.sized.replicas, machine=ranked.machine)
    assert found is not None
    return found.model_copy(update={"kind": kind or found.kind})


def _contender(
    study: Study,
    screened: Screened,
    replicas: int,
    *,
    machine: Machine | None = None,
    at_least: bool = False,
    misses: str | None = None,
) -> Contender | None:
    """Put a number of replicas on a machine, or on the cheapest; None if none holds them."""
    hosts, capacity = screened.hosts, screened.capacity
    machine = machine or cheapest_machine(hosts, replicas)
    if machine is None:
        return None
    offer = machine.offer
    machines = int(hosts.machines_on(offer, replicas))
    paid = machines * offer.gpus
    gpu_s = hosts.gpus_of(replicas) / (replicas * capacity.rate)
    prefill, deployment = hosts.prefill, screened.deployment
    usd_per_gpu_hour = machine.usd_per_hour / offer.gpus
    return Contender(
        kind=LayoutKind.apart if prefill else kind_of_layout(deployment),
        gpu=deployment.gpu.key,
        layout=" + ".join(split_name(side) for side in ([prefill.deployment] if prefill else []) + [deployment]),
        gpus_per_replica=deployment.gpus,
        replicas=replicas,
        machines=machines,
        usd_per_month=paid * usd_per_gpu_hour * HOURS_PER_MONTH,
        at_least=at_least,
        costs_more=0.0,
        **copied(capacity, "batch", "limited_by"),
        gpu_s=_gpu_seconds(screened, gpu_s, study.question.load.context_mean),
        usd_per_gpu_hour=usd_per_gpu_hour,
        in_use=study.question.load.workload.rate * gpu_s / paid,
        misses=misses,
    )


def _gpu_seconds(screened: Screened, total_s: float, context: float) -> GpuSeconds:
    """Split a request's GPU time: prompts by their share, answers by the parts of their step."""
    if screened.deployment.model.is_encoder:
        return GpuSeconds(prompts=total_s, weights=0, kv=0, compute=0, communication=0, overhead=0)
    share = screened.capacity.prefill_share
    parts = screened.curve.steps.parts(screened.capacity.batch, context)
    of_answers = total_s * (1 - share) / parts.step_s
    return GpuSeconds(
        prompts=total_s * share,
        weights=parts.weights_s * of_answers,
        kv=parts.kv_s * of_answers,
        compute=max(0.0, parts.compute_s) * of_answers,
        communication=parts.communication_s * of_answers,
        overhead=max(0.0, parts.overhead_s) * of_answers,
    )


def split_name(deployment: Deployment) -> str:
    """Return ``TP=8 EP=8`` or ``1 GPU``."""
    degrees = (("TP", deployment.tp), ("PP", deployment.pp), ("EP", deployment.ep), ("DP", deployment.dp))
    return " ".join(f"{name}={degree}" for name, degree in degrees if degree > 1) or "1 GPU"


# --- in words -------------------------------------------------------------------------------------------------------

_TELLING = 1.05  # a factor must differ by this ratio to be named: kernel times are no more exact
_EQUAL = 0.005  # of the pick's bill: too small for a percentage to show
_CLAUSES = 2  # factors to name against a rival: the third is the smallest
_PARTS = {
    "prompts": "computing prompts",
    "weights": "reading weights",
    "kv": "reading KV",
    "compute": "in matrix products",
    "communication": "in all-reduce and all-to-all",
    "overhead": "launching",
}


def in_words(pick: Contender, others: Sequence[Contender]) -> str:
    """Describe the nearest alternative; if it costs the same as the pick, also the nearest that costs more."""
    if not others:
        return "Of the other kinds of layout and the other GPUs, none that was sized is cheaper."
    named = [others[0]]
    if others[0].costs_more < _EQUAL:
        named += [other for other in others if other.costs_more >= _EQUAL][:1]
    return " ".join(_sentence(pick, other) for other in named)


def _sentence(pick: Contender, rival: Contender) -> str:
    """Say how much more the rival costs, by which of the three factors, and what limits the batches of each."""
    same, times = rival.costs_more < _EQUAL, rival.costs_more + 1
    more = f"{times:.2g} times as much" if times >= 2 else f"{percent(rival.costs_more)} more"
    against: list[str] = []
    favour: list[str] = []
    for name, factor in sorted(factors(pick, rival).items(), key=lambda named: -abs(math.log(named[1]))):
        # At the same bill, the share in use only mirrors the GPU time of a request.
        if max(factor, 1 / factor) >= _TELLING and not (same and name == "in_use"):
            (against if factor > 1 else favour).append(_clause(name, pick, rival))
    text = "Disaggregated, " if rival.kind is LayoutKind.apart else ""
    if rival.at_least:
        costs = "would cost no less" if same else f"costs at least {more}"
    else:
        costs = "costs the same" if same else f"costs {more}"
    text += f"{gpu_text(rival.gpu)} ({rival.layout}) {costs}"
    text += " on one machine, without redundancy" if same and rival.machines == 1 < pick.machines else ""
    text += f": {' and '.join(against[:_CLAUSES])}" if against else ""
    text += f", although {favour[0]}" if favour else ""
    if rival.gpu_s.total > rival.gpu_s.prompts:  # an encoder has no batches of answers
        text += f"; its batches end at {plural(rival.batch, 'sequence')} ({rival.limited_by})"
        text += f", the pick's at {pick.batch:,} ({pick.limited_by})"
    return f"{text}."


def _clause(factor: str, pick: Contender, rival: Contender) -> str:
    """Describe one factor with both figures."""
    if factor == "price":
        return f"a GPU-hour costs {usd(rival.usd_per_gpu_hour)} instead of {usd(pick.usd_per_gpu_hour)}"
    if factor == "in_use":
        theirs, own_share = (percent(min(side.in_use, 1.0)) for side in (rival, pick))  # the estimate may pass 100 %
        text = f"{theirs} of the paid GPUs are in use instead of {own_share}"
        return f"{text} (on fewer replicas {rival.misses})" if rival.misses else text
    own, other = dict(pick.gpu_s), dict(rival.gpu_s)
    total, own_total = rival.gpu_s.total, pick.gpu_s.total
    part = max(own, key=lambda name: math.copysign(1, total - own_total) * (other[name] - own[name]))
    named = f"{other[part]:.2g} instead of {own[part]:.2g} {_PARTS[part]}"
    return f"a request takes {total:.3g} GPU-seconds instead of {own_total:.3g} ({named})"


def factors(pick: Contender, rival: Contender) -> dict[str, float]:
    """Return by how much each factor makes the rival more expensive than the pick; below 1 it favours the rival."""
    return {
        "gpu_s": rival.gpu_s.total / pick.gpu_s.total,
        "price": rival.usd_per_gpu_hour / pick.usd_per_gpu_hour,
        "in_use": pick.in_use / rival.in_use,
    }
