"""Compute the self-hosted side of a break-even: which machines the planner buys at which volume, and what each holds.

The planner picks the cheapest hardware for a trickle of requests, for about a dozen replicas, and at every named
volume: the user's own, the round ones of the table, and every break-even found, again if that moves it. The cost curve
(a staircase of whole machines) of each pick competes at every volume. What a replica holds under the SLO is simulated
in fleets of several sizes, since larger ones even out bursts; between two sizes the smaller counts, and if there is a
plan for the volume, the plan counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput
from tokonomics.money.breakeven import (
    FILLED,
    BreakEven,
    CostAt,
    Extra,
    FleetKind,
    SelfHosted,
    Swing,
    bill_at,
    break_even,
    rising,
    swings,
)
from tokonomics.money.cost import require_share, require_utilization
from tokonomics.money.trace_bills import ApiCost, ApiLeftOut
from tokonomics.physics.intervals import interval
from tokonomics.planner.plan import Question, Study, study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.prospects import layout
from tokonomics.planner.search import CLOSED_FORM_UTILIZATION
from tokonomics.planner.vary import highest_rate
from tokonomics.sizing.attempt import cached_share
from tokonomics.sizing.load import Load
from tokonomics.sizing.setup import Say, silent
from tokonomics.sizing.spare import machines_for
from tokonomics.traffic.prefix_reuse import found_share
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import PrefixBlocks, Trace
from tokonomics.traffic.workload import lengths_text
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_MONTH, requests_a_second

TRICKLE = 0.01  # requests a second: one at a time on most hardware, so any that fits the model and the SLO is enough
MANY_REPLICAS = 12  # of the hardware with the cheapest request: enough that rounding to whole machines hardly matters
SIZES = (1, 2, 3, 4, 6, 8)
_CLOSE_ENOUGH = 1.02
_BLOCK_TOKENS = 16  # vLLM's block: shared prompts are matched in whole blocks
_MOST_STUDIES = 30  # most volumes to plan for, each a search of its own; the result names those beyond
_SAME = 1e-9  # relative difference of two bills or two volumes


class HostedKind(Noun):
    """Hardware that the planner picked at some volume, as a staircase of bills."""

    pick: Candidate  # at the volume for which it was picked
    kind: FleetKind
    simulated: bool
    slow: float  # low end of the 80 % interval of its speed, as a factor of the modelled speed
    fast: float
    cached_share: float  # of the prompt tokens, found in its own cache at that volume


@dataclass(frozen=True)
class Hosting:
    """The question, apart from the volume."""

    base: Question
    at_rate: Callable[[float], Load]
    log: Load | None = None  # at its own pace, if there is one
    shared: float = 0.0  # share of every prompt that is the same in all

    def load(self, rate: float) -> Load:
        """Return the requests at a rate, with the beginning that they share."""
        return with_shared_head(self.at_rate(rate), self.shared)

    def recorded(self) -> Load:
        """Return a log at its own pace, which decides what a cache with a time limit still holds; else a trickle."""
        return self.load(TRICKLE) if self.log is None else self.log

    def question(self, rate: float) -> Question:
        return replace(self.base, load=self.load(rate))


class NothingFits(BadInput):
    """Raised if no hardware meets the SLO even for a trickle of requests; carries the study that says why."""

    def __init__(self, found: Study) -> None:
        super().__init__("no offer meets these constraints")
        self.study = found


def tokens_per_request(load: Load) -> float:
    trace = load.trace
    return float((trace.input_tokens.astype(np.int64) + trace.output_tokens).mean())


def self_hosted(
    hosting: Hosting,
    api_usd_per_mtok: Sequence[float],
    extras: tuple[Extra, ...] = (),
    own_rate: float | None = None,
    say: Say = silent,
) -> tuple[SelfHosted, list[HostedKind]]:
    """Return the staircase against these API prices, and the hardware it is made of."""
    found: dict[tuple[object, ...], HostedKind] = {}
    asked: list[float] = []
    plans: dict[float, Placing] = {}
    base = hosting.question(TRICKLE)
    tokens = tokens_per_request(base.load)

    def ask(volume: float) -> Study:
        """Plan for a volume in tokens a month, and keep the hardware that it picks."""
        rate = volume / tokens / SECONDS_PER_MONTH
        say(f"the cheapest hardware at {requests_a_second(f'{rate:.3g}')}")
        asked.append(volume)
        made = study(replace(base, load=hosting.load(rate)), pick_only=len(asked) > 1)
        for pick in _picks(made):
            if _key(pick) not in found:
                say(f"what {pick.gpu} replicas hold")
                found[_key(pick)] = _hosted(made, pick, base.load, tokens)
        if best := made.plan.best:
            plans[volume] = Placing(_key(best), made.ranked_as(best).sized.replicas, best.usd_per_month)
        return made

    first = ask(TRICKLE * tokens * SECONDS_PER_MONTH)
    if not found:
        raise NothingFits(first)

    def usd_per_full_request(row: Candidate) -> float:
        return row.instance_usd_per_hour * row.instances / (row.replicas * row.capacity_requests_per_s)

    at_most = min(first.plan.ranked, key=usd_per_full_request).capacity_requests_per_s
    ask(MANY_REPLICAS * at_most * tokens * SECONDS_PER_MONTH)
    own = own_rate and own_rate * tokens * SECONDS_PER_MONTH
    while True:
        # Hardware picked at a break-even may move it: ask again at the new volume.
        kinds = _as_planned(found, plans)
        hosted = SelfHosted(kinds=tuple(hardware.kind for hardware in kinds), extras=extras)
        meets = [break_even(hosted, "", price) for price in sorted(set(api_usd_per_mtok))]
        met = {volume for meet in meets for volume in meet.volumes}
        named = dict.fromkeys([*_table_volumes(meets, own), *sorted(met, reverse=True)])
        left = [volume for volume in named if volume not in asked and not _is_settled(volume, plans)]
        if not left or len(asked) >= _MOST_STUDIES:
            return hosted.model_copy(update={"not_planned_for": tuple(sorted(met.intersection(left)))}), kinds
        ask(left[0])


class Placing(NamedTuple):
    """The plan for one volume."""

    key: tuple[object, ...]  # identifies its pick
    replicas: int  # without spare ones
    usd_per_month: float


def _is_settled(volume: float, plans: Mapping[float, Placing]) -> bool:
    """Tell whether a volume was planned for, or lies between two whose plans cost the same (more never costs less)."""
    below = [plan.usd_per_month for asked, plan in plans.items() if asked <= volume * (1 + _SAME)]
    above = [plan.usd_per_month for asked, plan in plans.items() if asked >= volume * (1 - _SAME)]
    return bool(below and above) and max(below) >= min(above) * (1 - _SAME)


def _as_planned(found: Mapping[tuple[object, ...], HostedKind], plans: Mapping[float, Placing]) -> list[HostedKind]:
    """Add the plans to the staircases: a pick's replicas hold its volume, and nothing cheaper does."""
    kinds = {key: hardware.kind for key, hardware in found.items()}
    for volume, plan in sorted(plans.items()):
        kinds[plan.key] = kinds[plan.key].holding(plan.replicas, volume)
    for volume, plan in plans.items():
        for key, kind in kinds.items():
            while kind.purchases(volume) * kind.usd_per_purchase < plan.usd_per_month * (1 - _SAME):
                kind = kind.missing(kind.replicas(volume), volume)
            kinds[key] = kind
    return [hardware.model_copy(update={"kind": kinds[key]}) for key, hardware in found.items()]


def _picks(made: Study) -> list[Candidate]:
    """Return the cheapest, and of those that cost the same the one with most room, which is bought at more volume."""
    best = made.plan.best
    if best is None:
        return []
    same = [row for row in made.plan.ranked if row.usd_per_month <= best.usd_per_month * (1 + 1e-9)]
    return [best, max(same, key=lambda row: row.replicas * row.capacity_requests_per_s)]


def _key(row: Candidate) -> tuple[object, ...]:
    layout = row.gpu, row.tp, row.pp, row.ep, row.dp, row.weights, row.kv, row.engine
    return *layout, row.provider, row.region, row.instance, row.terms


def _hosted(made: Study, row: Candidate, trickle: Load, tokens: float) -> HostedKind:
    """Turn a pick into a staircase: what its replicas hold, in fleets of several sizes."""
    question, (_, sized, machine) = made.question, made.ranked_as(row)
    deployment = sized.deployment
    limit = question.limits.max_utilization or (None if question.simulate else CLOSED_FORM_UTILIZATION)
    most = None if limit is None else require_utilization(limit) * row.capacity_requests_per_s / (1 + trickle.headroom)
    held: list[tuple[int, float]] = []
    alone = trickle.workload.rate
    for replicas in SIZES if question.simulate else SIZES[:1]:
        # Several replicas hold at least what each would hold alone, so each search starts where the last ended.
        known = replace(question, load=trickle.at(alone * replicas))
        alone = highest_rate(known, sized.screened, replicas, _CLOSE_ENOUGH).rate / replicas
        held.append((replicas, (alone if most is None else min(most, alone)) * tokens * SECONDS_PER_MONTH))
    offer, machines = machine.offer, machines_for(deployment, machine.offer, 1)
    speed = interval(1.0, "throughput", deployment)
    return HostedKind(
        pick=row,
        kind=FleetKind(
            name=f"{row.gpus_per_replica}×{row.gpu} {layout(deployment)} at {row.provider} {row.instance}",
            gpus_per_purchase=machines * offer.gpus,
            replicas_per_purchase=max(1, offer.gpus // deployment.gpus),
            usd_per_purchase=machine.usd_per_month(machines),
            holds=rising(held),
            spare=question.limits.spare.machines * max(1, offer.gpus // deployment.gpus),
        ),
        simulated=question.simulate,
        slow=speed.low,
        fast=speed.high,
        # The closed form assumes an unlimited cache.
        cached_share=cached_share(sized.trial.outcome) if sized.trial else found_share(trickle.trace)[0],
    )


def at_break_even(kinds: Sequence[HostedKind], hosted: SelfHosted, found: BreakEven) -> HostedKind:
    """Return the hardware that counts where the bills meet; if they never meet, that of full machines."""
    if found.stays_tokens_per_month is None:
        kind = min(hosted.kinds, key=lambda kind: kind.usd_per_mtok_full)
    else:
        kind = hosted.kind(found.stays_tokens_per_month)
    return next(hardware for hardware in kinds if hardware.kind == kind)


def with_shared_head(load: Load, share: float) -> Load:
    """Let all requests begin with the same words: a share of each prompt, in whole blocks."""
    if require_share("cached_share", share) == 0 or load.trace.prefix is not None:
        return load
    blocks = (load.trace.input_tokens * share / _BLOCK_TOKENS).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    ids = (np.arange(starts[-1]) - np.repeat(starts[:-1], blocks)).astype(np.int32)
    prefix = PrefixBlocks(ids=ids, starts=starts, block_tokens=_BLOCK_TOKENS, distinct=max(1, int(blocks.max())))
    return replace(load, trace=replace(load.trace, prefix=prefix))


# --- the whole comparison -------------------------------------------------------------------------------------------


class BreakEvenReport(Noun):
    """A self-hosted model against APIs, at every volume."""

    model: str
    input_tokens: PositiveFloat  # of the mean request
    output_tokens: NonNegativeFloat
    lengths: str  # text: mean, median and p99 of prompts and answers
    cached_share: NonNegativeFloat
    slos: tuple[Slo, ...] = Field(alias="promises")
    hosted: SelfHosted
    hardware: tuple[HostedKind, ...]  # empty if speed and price were given
    apis: tuple[ApiCost, ...]
    left_out: tuple[ApiLeftOut, ...]
    found: tuple[BreakEven, ...]  # one for each API
    swings: tuple[tuple[Swing, ...], ...]  # one row for each API
    bills: tuple[CostAt, ...]
    own_tokens_per_month: PositiveFloat | None
    perhaps_there: tuple[str, ...] = ()
    """APIs whose host does not say that it computes in the region asked for: verdicts are about them only if no other
    is known to be there."""

    @property
    def counted(self) -> list[int]:
        """Return the places of the APIs that verdicts are about: known to be in the region, or all if none is."""
        known = [place for place, meets in enumerate(self.found) if meets.api not in self.perhaps_there]
        return known or list(range(len(self.found)))

    @property
    def tokens_per_request(self) -> float:
        return self.input_tokens + self.output_tokens

    def fewer_bits(self, meets: BreakEven) -> str | None:
        """Return ``fp8 weights`` for the hardware of a break-even; None if it serves the model as published."""
        if not self.hardware:
            return None
        pick = at_break_even(self.hardware, self.hosted, meets).pick
        if not pick.below_checkpoint:
            return None
        cache = f" and {pick.kv} KV cache" if pick.kv.is_below(Precision.bf16) else ""
        return f"{pick.weights} weights{cache}"

    def cheapest(self, most: int) -> list[int]:
        """Return the places of the first API and of the cheapest, ``most`` in all, in the order of the list.

        Those known to be in the region come before the others.
        """
        counted = set(self.counted)
        ranked = sorted(
            range(len(self.apis)), key=lambda place: (place > 0, place not in counted, self.apis[place].usd_per_mtok)
        )
        return sorted(ranked[:most])


def report(
    model: str,
    trace: Trace,
    hosted: SelfHosted,
    hardware: Sequence[HostedKind],
    apis: tuple[ApiCost, ...],
    left_out: tuple[ApiLeftOut, ...] = (),
    *,
    cached_share: float = 0.0,
    slos: tuple[Slo, ...] = (),
    own_tokens_per_month: float | None = None,
    filled: Sequence[float] = FILLED,
    perhaps_there: tuple[str, ...] = (),
) -> BreakEvenReport:
    """Compute break-evens, what moves them, and the bills at round volumes."""
    found = tuple(break_even(hosted, api.name, api.usd_per_mtok) for api in apis)
    moved = []
    for api, meets in zip(apis, found, strict=True):
        counts = at_break_even(hardware, hosted, meets) if hardware else None
        speeds = (counts.slow, counts.fast) if counts else ()
        moved.append(tuple(swings(hosted, api.name, api.usd_per_mtok, speeds, filled)))
    prices = {api.name: api.usd_per_mtok for api in apis}
    return BreakEvenReport(
        model=model,
        input_tokens=float(trace.input_tokens.mean()),
        output_tokens=float(trace.output_tokens.mean()),
        lengths=lengths_text(trace),
        cached_share=cached_share,
        slos=slos,
        hosted=hosted,
        hardware=tuple(hardware),
        apis=apis,
        left_out=left_out,
        found=found,
        swings=tuple(moved),
        bills=tuple(
            bill_at(hosted, prices, volume, perhaps_there) for volume in _table_volumes(found, own_tokens_per_month)
        ),
        own_tokens_per_month=own_tokens_per_month,
        perhaps_there=perhaps_there,
    )


def _table_volumes(found: Sequence[BreakEven], own_tokens_per_month: float | None) -> list[float]:
    """Return the volumes to compare: about five powers of ten around the break-evens, and the user's own."""
    met = [volume for meets in found for volume in meets.volumes] or [1e9]
    low, high = math.floor(math.log10(min(met))), math.ceil(math.log10(max(met)))
    high = min(high, low + 4)
    while high - low < 3:
        low, high = (low - 1, high) if high - math.log10(max(met)) > math.log10(min(met)) - low else (low, high + 1)
    own = [own_tokens_per_month] if own_tokens_per_month else []
    return sorted({*(10.0**power for power in range(low, high + 1)), *own})
