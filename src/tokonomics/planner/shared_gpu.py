"""Several models on one GPU, or each on its own: every way simulated, priced, and judged by each model's SLOs.

    own      each model on GPUs of its own plan; models on the same kind of machine fill it together
    shares   all engines on one GPU, each with a share of its memory; its time is divided among those with work
    slices   the GPU cut into MIG slices, one for each model
    turns    one model awake at a time, the others' weights in the host's memory
    zero     own machines that are paid for only from a request on until nothing has come for a while

The bill of a GPU that several share is split by the GPU time that each takes. Machines are tried in the order of their
price, so the first that meets every SLO is the cheapest of its way.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tokonomics.catalog.engines import start_times
from tokonomics.catalog.offer_choice import loading_gib
from tokonomics.catalog.offers import Terms
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import known_speed
from tokonomics.physics.memory import shard
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.shared_answer import SHARED_WAYS, ModelHere, SharedPlan, Way, WayRow
from tokonomics.planner.shared_ways import (
    Attempt,
    JudgedModel,
    Tenant,
    aligned,
    by_shares,
    by_slices,
    by_turns,
    judged,
)
from tokonomics.serving.shared import SharedEngine, TurnRules, in_turns
from tokonomics.sizing.hosts import Machine, Stock, usable
from tokonomics.sizing.layouts import is_faithful, weight_choices
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.trace import Trace
from tokonomics.types import Speed
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

HOLDS_S = (60.0, 300.0, 900.0, 3600.0)
"""How long a server that scales to zero waits for the next request: what is tried, the shortest first."""


def shared_plan(tenants: Sequence[Tenant], say: Say = silent) -> SharedPlan:
    """All ways for these models at the traffic asked, the cheapest that meets every SLO first."""
    traces = aligned([tenant.load.trace for tenant in tenants])
    say(Way.own.value)
    own = own_way(tenants)
    rows, missing = ([own] if own else []), {}
    if own is None:
        lost = ", ".join(tenant.question.model.name for tenant in tenants if tenant.own.plan.best is None)
        missing[Way.own] = f"no offer meets the constraints of {lost}"
    limit = SHOWN_UP_TO * own.usd_per_month if own else math.inf
    for way in SHARED_WAYS:
        say(way.value)
        if row := cheapest_of(way, tenants, traces, limit):
            rows.append(row)
        else:
            missing[way] = _WHY_NOT[way]
    say(Way.zero.value)
    if zero := _zero_way(tenants):
        rows.append(zero)
    else:
        missing[Way.zero] = "a model needs several replicas or a commitment, or has no plan of its own"
    rows.sort(key=lambda row: (not row.meets, row.usd_per_month, list(Way).index(row.way)))
    best = rows[0] if rows and rows[0].meets else None
    at_these_bits = _own_at(tenants, best, own)
    return SharedPlan(rows=tuple(rows), not_possible=missing, best=best, own_at_these_bits_usd_per_month=at_these_bits)


SHOWN_UP_TO = 2.0
"""Times the bill of own GPUs up to which one GPU for all is looked for."""
_WHY_NOT = {
    Way.shares: "no GPU up to twice the bill of own ones has memory and time for all",
    Way.slices: "no GPU up to twice the bill of own ones has slices that hold them",
    Way.turns: "no GPU up to twice the bill of own ones has time for all, and host memory for the weights",
}


# --- each its own ---------------------------------------------------------------------------------------------------


def own_way(tenants: Sequence[Tenant]) -> WayRow | None:
    """Each on GPUs of its own plan; those that would stand on the same kind of machine fill it together."""
    found = []
    for tenant in tenants:
        if (best := tenant.own.plan.best) is None:
            return None
        found.append((tenant, best, tenant.own.ranked_as(best).machine))
    bills, gpus_paid = _filled([(best, machine) for _, best, machine in found])
    rows = [_own_row(tenant, best, bill) for (tenant, best, _), bill in zip(found, bills, strict=True)]
    return WayRow(
        way=Way.own,
        gpu=", ".join(dict.fromkeys(best.gpu for _, best, _ in found)),
        machine=_machines_text([f"{best.provider} {best.instance}" for _, best, _ in found]),
        gpus_paid=gpus_paid,
        usd_per_month=math.fsum(bills),
        price_date=min(best.price_date for _, best, _ in found),
        meets=True,
        models=tuple(rows),
    )


def _own_row(tenant: Tenant, best: Candidate, usd_per_month: float) -> ModelHere:
    return ModelHere(
        model=tenant.question.model.key,
        weights=best.weights,
        below_checkpoint=best.below_checkpoint,
        rate=tenant.load.workload.rate,
        place=f"{best.replicas * best.gpus_per_replica}×{best.gpu} at {best.provider}",
        memory_share=None,
        ttft_p99_s=best.ttft_s.p99,
        tpot_p99_s=best.tpot_s.p99,
        breaks=None,
        usd_per_month=usd_per_month,
        usd_per_mtok=usd_per_month / tenant.tokens_per_month * TOKENS_PER_MTOK,
        gpu_share=None,
    )


def _filled(picks: Sequence[tuple[Candidate, Machine]]) -> tuple[list[float], int]:
    """What each pays, by its GPUs, and the GPUs paid: replicas of all models fill machines of one kind together."""
    alike: dict[object, list[int]] = {}
    for place, (best, machine) in enumerate(picks):
        alike.setdefault((best.provider, best.region, best.instance, machine.terms, machine.usd_per_hour), []).append(
            place
        )
    bills, gpus_paid = [0.0] * len(picks), 0
    for places in alike.values():
        machine = picks[places[0]][1]
        wide = [picks[place][0] for place in places if picks[place][0].gpus_per_replica > machine.offer.gpus]
        small = [picks[place][0] for place in places if picks[place][0].gpus_per_replica <= machine.offer.gpus]
        number = sum(best.instances for best in wide) + _machines_of(small, machine.offer.gpus)
        gpus = [picks[place][0].replicas * picks[place][0].gpus_per_replica for place in places]
        gpus_paid += number * machine.offer.gpus
        for place, own in zip(places, gpus, strict=True):
            bills[place] = machine.usd_per_month(number) * own / sum(gpus)
    return bills, gpus_paid


def _machines_of(picks: Sequence[Candidate], machine_gpus: int) -> int:
    """Machines for all replicas, the largest first, each in the first machine that has room."""
    room: list[int] = []
    for gpus in sorted((best.gpus_per_replica for best in picks for _ in range(best.replicas)), reverse=True):
        place = next((place for place, left in enumerate(room) if left >= gpus), None)
        if place is None:
            room.append(machine_gpus - gpus)
        else:
            room[place] -= gpus
    return len(room)


def _own_at(tenants: Sequence[Tenant], best: WayRow | None, own: WayRow | None) -> float | None:
    """The bill of own GPUs at the bits of a way with one GPU for all, where own ones have more."""
    if best is None or own is None or best.way not in SHARED_WAYS:
        return None
    pairs = list(zip(best.models, own.models, strict=True))
    if not any(here.weights.is_below(there.weights) for here, there in pairs):
        return None
    same = [
        Tenant(replace(tenant.question, weights=(here.weights,)))
        for tenant, here in zip(tenants, best.models, strict=True)
    ]
    found = own_way(same)
    return found.usd_per_month if found else None


def _machines_text(names: Sequence[str]) -> str:
    several = list(dict.fromkeys(names))
    return several[0] if len(several) == 1 else f"{several[0]} and {len(several) - 1} more"


def cheapest_of(
    way: Way,
    tenants: Sequence[Tenant],
    traces: Sequence[Trace],
    below_usd: float,
    from_usd: float = 0.0,
    only_met: bool = False,
) -> WayRow | None:
    """The cheapest machine between two bills on which the way meets every SLO; the nearest miss where none does."""
    serve = {Way.shares: by_shares, Way.slices: by_slices, Way.turns: by_turns}[way]
    missed: tuple[Attempt, Machine] | None = None
    for machine in _machines(tenants):
        if machine.usd_per_month(1) >= below_usd:
            break
        if machine.usd_per_month(1) < from_usd:
            continue
        attempt = serve(tenants, traces, machine)
        if attempt and attempt.meets:
            return _row(way, attempt, machine, tenants)
        if attempt and (missed is None or attempt.worst < missed[0].worst):
            missed = attempt, machine
    return _row(way, *missed, tenants) if missed and not only_met else None


def _machines(tenants: Sequence[Tenant]) -> Iterator[Machine]:
    """The cheapest machine of every GPU whose host holds all models at their fewest bits, by its price."""
    question = tenants[0].question
    limits = question.limits
    limited = limits.max_usd_per_gpu_hour, limits.max_age_days
    stocks, _ = usable(question.offers, question.terms, question.today, *limited)
    fewest = [
        tenant.question.model.weight_bytes(
            min(tenant.question.weights or weight_choices(tenant.question.model), key=lambda one: one.bits)
        )
        for tenant in tenants
    ]
    needed_gb, most_gpus = loading_gib(sum(fewest), len(fewest)), limits.max_gpus or math.inf
    cheapest = []
    for stock in stocks.values():
        fits = Stock(
            machine
            for machine in stock
            if machine.offer.gpus <= most_gpus and (machine.offer.memory_gb or math.inf) >= needed_gb
        )
        counted = fits.that_count(question.today if limits.max_age_days is None else None)
        cheapest += sorted(counted, key=lambda machine: (machine.usd_per_hour, machine.offer.gpus))[:1]
    yield from sorted(cheapest, key=lambda machine: (machine.usd_per_hour, machine.offer.gpus))


def _row(way: Way, attempt: Attempt, machine: Machine, tenants: Sequence[Tenant]) -> WayRow:
    bill, working = machine.usd_per_month(1), math.fsum(attempt.busy)
    rows = []
    for tenant, model, busy_s in zip(tenants, attempt.models, attempt.busy, strict=True):
        part = bill * (busy_s / working if working else 1 / len(tenants))
        rows.append(_model_row(tenant, model, part, None if way is Way.slices else busy_s / attempt.span_s))
    return WayRow(
        way=way,
        gpu=machine.offer.gpu,
        machine=f"{machine.offer.provider} {machine.offer.instance}",
        gpus_paid=machine.offer.gpus,
        usd_per_month=bill,
        price_date=machine.offer.date,
        meets=attempt.meets,
        models=tuple(rows),
        speed=max((known_speed(model.deployment) for model in attempt.models), key=list(Speed).index),
        switches_per_hour=attempt.switches / attempt.span_s * SECONDS_PER_HOUR if way is Way.turns else None,
    )


def _model_row(tenant: Tenant, model: JudgedModel, usd_per_month: float, gpu_share: float | None) -> ModelHere:
    return ModelHere(
        model=tenant.question.model.key,
        weights=model.deployment.weights,
        below_checkpoint=not is_faithful(model.deployment),
        rate=tenant.load.workload.rate,
        place=model.place,
        memory_share=model.memory_share,
        ttft_p99_s=model.outcome.ttft_s.p99,
        tpot_p99_s=model.outcome.tpot_s.p99,
        breaks=model.breaks,
        usd_per_month=usd_per_month,
        usd_per_mtok=usd_per_month / tenant.tokens_per_month * TOKENS_PER_MTOK,
        gpu_share=gpu_share,
    )


# --- scaled to zero -------------------------------------------------------------------------------------------------


def _zero_way(tenants: Sequence[Tenant]) -> WayRow | None:
    """Each on the machine of its own plan, off while nothing comes; the shortest wait that meets its SLOs."""
    rows, paid, holds, names, quoted = [], [], [], [], []
    for tenant in tenants:
        best = tenant.own.plan.best
        if best is None or best.replicas != 1 or best.prefill is not None or best.terms is Terms.reserved:
            return None
        deployment = tenant.own.of(best).deployment
        (trace,) = aligned([tenant.load.trace])
        cold_s = start_times().cold_s(shard(deployment).total * deployment.gpus)
        row, share, hold_s = _held(tenant, deployment, trace, cold_s, best.usd_per_month)
        rows.append(row)
        paid.append(share * best.gpus_paid)
        holds.append(hold_s)
        names.append(f"{best.provider} {best.instance}")
        quoted.append(best.price_date)
    return WayRow(
        way=Way.zero,
        gpu=", ".join(dict.fromkeys(tenant.own.plan.best.gpu for tenant in tenants if tenant.own.plan.best)),
        machine=_machines_text(names),
        gpus_paid=sum(paid),
        usd_per_month=math.fsum(row.usd_per_month for row in rows),
        price_date=min(quoted),
        meets=all(row.breaks is None for row in rows),
        models=tuple(rows),
        hold_s=max(holds),
    )


def _held(
    tenant: Tenant, deployment: Deployment, trace: Trace, cold_s: float, usd_per_month: float
) -> tuple[ModelHere, float, float]:
    """One model that scales to zero: its row, the share of the time that is paid, and how long it waits."""
    tried = []
    for hold_s in HOLDS_S:
        run = in_turns([SharedEngine(deployment, trace)], TurnRules((cold_s,), (0.0,), hold_s=hold_s))
        share = min(1.0, run.paid_s / run.end_s)
        found = judged(tenant, run.engines[0], f"cold start {cold_s:.0f} s, waits {hold_s:.0f} s", None)
        busy = float(run.engines[0].replicas["busy_s"].sum()) / run.paid_s
        tried.append((_model_row(tenant, found, usd_per_month * share, busy), share, hold_s))
        if found.breaks is None:
            return tried[-1]
    return tried[-1]
