"""Compare several models on one GPU with each on its own: simulate, price and check each way by the models' SLOs.

    own      each model on GPUs of its own plan; models with the same kind of machine fill it together
    shares   all engines on one GPU, each with a share of its memory; its time is divided among those with work
    slices   the GPU cut into MIG slices, one for each model
    turns    one model awake at a time, the others' weights in the host's memory
    zero     own machines, paid from a request until no other has come for a while

The bill of a shared GPU is split by the GPU time that each model takes. Machines are tried in the order of their price,
so the first that meets every SLO is the cheapest of its way.

To find where the cheaper choice changes, all rates grow or shrink by one factor, which is doubled until it does, or
starts at a 64th; the gap is then halved in logarithms to a tenth. More traffic never costs less, so own GPUs cost at
least what they did at less traffic and at most what they did at more: if that decides, they are not planned again.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tokonomics.catalog.engines import start_times
from tokonomics.catalog.offer_choice import loading_gib
from tokonomics.catalog.offers import Terms
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import known_speed
from tokonomics.physics.memory import shard
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.shared_ways import (
    SHARED_WAYS,
    Attempt,
    Crossing,
    JudgedModel,
    ModelHere,
    SharedPlan,
    Tenant,
    Way,
    WayRow,
    aligned,
    by_shares,
    by_slices,
    by_turns,
    judged,
    nearest,
)
from tokonomics.serving.shared import SharedEngine, TurnRules, in_turns
from tokonomics.sizing.hosts import Machine, usable
from tokonomics.sizing.layouts import is_faithful, weight_choices
from tokonomics.sizing.search import highest_between
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.trace import Trace
from tokonomics.types import Speed
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

HOLDS_S = (60.0, 300.0, 900.0, 3600.0)
"""How long a server that scales to zero may wait for the next request, shortest first."""


def shared_plan(tenants: Sequence[Tenant], say: Say = silent) -> SharedPlan:
    """Return all ways for these models at the given traffic, the cheapest that meets every SLO first."""
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


SHOWN_UP_TO = 2.0  # times the bill of own GPUs: look for one GPU for all up to this
_WHY_NOT = {
    Way.shares: "no GPU up to twice the bill of own ones has memory and time for all",
    Way.slices: "no GPU up to twice the bill of own ones has slices that hold them",
    Way.turns: "no GPU up to twice the bill of own ones has time for all, and host memory for the weights",
}


# --- each its own ---------------------------------------------------------------------------------------------------


def own_way(tenants: Sequence[Tenant]) -> WayRow | None:
    """Put each model on GPUs of its own plan; those with the same kind of machine fill it together."""
    found = []
    for tenant in tenants:
        if (best := tenant.own.plan.best) is None:
            return None
        found.append((tenant, best, tenant.own.ranked_as(best).machine))
    bills, gpus_paid = _filled([(best, machine) for _, best, machine in found])
    rows = [
        ModelHere(
            **_billed(tenant, bill),
            weights=best.weights,
            below_checkpoint=best.below_checkpoint,
            place=f"{best.replicas * best.gpus_per_replica}×{best.gpu} at {best.provider}",
            memory_share=None,
            ttft_p99_s=best.ttft_s.p99,
            tpot_p99_s=best.tpot_s.p99,
            breaks=None,
            gpu_share=None,
        )
        for (tenant, best, _), bill in zip(found, bills, strict=True)
    ]
    return WayRow(
        way=Way.own,
        **_bought([best for _, best, _ in found]),
        gpus_paid=gpus_paid,
        usd_per_month=math.fsum(bills),
        meets=True,
        models=tuple(rows),
    )


def _billed(tenant: Tenant, usd_per_month: float) -> dict[str, Any]:
    """Return a model with its bill."""
    return {
        "model": tenant.question.model.key,
        "rate": tenant.load.workload.rate,
        "usd_per_month": usd_per_month,
        "usd_per_mtok": usd_per_month / tenant.tokens_per_month * TOKENS_PER_MTOK,
    }


def _filled(picks: Sequence[tuple[Candidate, Machine]]) -> tuple[list[float], int]:
    """Return each one's bill, by its GPUs, and the GPUs paid; replicas of all models fill machines of one kind."""
    alike: dict[object, list[int]] = defaultdict(list)
    for place, (best, machine) in enumerate(picks):
        alike[best.provider, best.region, best.instance, machine.terms, machine.usd_per_hour].append(place)
    bills, gpus_paid = [0.0] * len(picks), 0
    for places in alike.values():
        machine, here = picks[places[0]][1], [picks[place][0] for place in places]
        machine_gpus = machine.offer.gpus
        replicas = [best.gpus_per_replica for best in here for _ in range(best.replicas)]
        # Place replicas, largest first, each in the first machine with room.
        room: list[int] = []
        for gpus in sorted((gpus for gpus in replicas if gpus <= machine_gpus), reverse=True):
            first = next((place for place, left in enumerate(room) if left >= gpus), len(room))
            room += [machine_gpus] if first == len(room) else []
            room[first] -= gpus
        number = sum(best.instances for best in here if best.gpus_per_replica > machine_gpus) + len(room)
        taken = [best.replicas * best.gpus_per_replica for best in here]
        gpus_paid += number * machine_gpus
        for place, own in zip(places, taken, strict=True):
            bills[place] = machine.usd_per_month(number) * own / sum(taken)
    return bills, gpus_paid


def _own_at(tenants: Sequence[Tenant], best: WayRow | None, own: WayRow | None) -> float | None:
    """Return the bill of own GPUs at the bits of a way with one GPU for all, if own ones have more bits."""
    if best is None or own is None or best.way not in SHARED_WAYS:
        return None
    pairs = list(zip(best.models, own.models, strict=True))
    if not any(here.weights.is_below(there.weights) for here, there in pairs):
        return None
    questions = [
        replace(tenant.question, weights=(here.weights,)) for tenant, (here, _) in zip(tenants, pairs, strict=True)
    ]
    found = own_way([Tenant(question) for question in questions])
    return found.usd_per_month if found else None


def _bought(bests: Sequence[Candidate]) -> dict[str, Any]:
    """Name the GPUs and machines of several plans, with their oldest price."""
    machines = list(dict.fromkeys(f"{best.provider} {best.instance}" for best in bests))
    return {
        "gpu": ", ".join(dict.fromkeys(best.gpu for best in bests)),
        "machine": machines[0] if len(machines) == 1 else f"{machines[0]} and {len(machines) - 1} more",
        "price_date": min(best.price_date for best in bests),
    }


def cheapest_of(
    way: Way,
    tenants: Sequence[Tenant],
    traces: Sequence[Trace],
    below_usd: float,
    from_usd: float = 0.0,
    only_met: bool = False,
) -> WayRow | None:
    """Return the cheapest machine between two bills on which the way meets every SLO, or else the nearest miss."""
    serve = {Way.shares: by_shares, Way.slices: by_slices, Way.turns: by_turns}[way]
    missed: tuple[Attempt, Machine] | None = None
    for machine in _machines(tenants):
        if machine.usd_per_month(1) >= below_usd:
            break
        if machine.usd_per_month(1) < from_usd:
            continue
        attempt = nearest(serve(tenants, traces, machine))
        if attempt and attempt.meets:
            return _row(way, attempt, machine, tenants)
        if attempt and (missed is None or attempt.worst < missed[0].worst):
            missed = attempt, machine
    return _row(way, *missed, tenants) if missed and not only_met else None


def _machines(tenants: Sequence[Tenant]) -> Iterator[Machine]:
    """Yield the cheapest machine of every GPU whose host holds all models at their fewest bits, by price."""
    question = tenants[0].question
    limits = question.limits
    limited = limits.max_usd_per_gpu_hour, limits.max_age_days
    stocks, _ = usable(question.offers, question.terms, question.today, *limited)
    fewest = []
    for model, weights in ((tenant.question.model, tenant.question.weights) for tenant in tenants):
        fewest.append(model.weight_bytes(min(weights or weight_choices(model), key=lambda one: one.bits)))
    needed_gb, most_gpus = loading_gib(sum(fewest), len(fewest)), limits.max_gpus or math.inf
    cheapest = []
    for stock in stocks.values():
        fits = stock.of(
            machine
            for machine in stock
            if machine.offer.gpus <= most_gpus and (machine.offer.memory_gb or math.inf) >= needed_gb
        )
        counted = fits.that_count(any_age=limits.max_age_days is not None)
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
        **_billed(tenant, usd_per_month),
        weights=model.deployment.weights,
        below_checkpoint=not is_faithful(model.deployment),
        place=model.place,
        memory_share=model.memory_share,
        ttft_p99_s=model.outcome.ttft_s.p99,
        tpot_p99_s=model.outcome.tpot_s.p99,
        breaks=model.breaks,
        gpu_share=gpu_share,
    )


# --- scaled to zero -------------------------------------------------------------------------------------------------


def _zero_way(tenants: Sequence[Tenant]) -> WayRow | None:
    """Put each model on the machine of its own plan, off while idle; use the shortest hold that meets its SLOs."""
    bests, rows, shares, holds = [], [], [], []
    for tenant in tenants:
        best = tenant.own.plan.best
        if best is None or best.replicas != 1 or best.prefill is not None or best.terms is Terms.reserved:
            return None
        deployment = tenant.own.ranked_as(best).sized.deployment
        (trace,) = aligned([tenant.load.trace])
        cold_s = start_times().cold_s(shard(deployment).total * deployment.gpus)
        row, share, hold_s = _held(tenant, deployment, trace, cold_s, best.usd_per_month)
        bests.append(best)
        rows.append(row)
        shares.append(share)
        holds.append(hold_s)
    return WayRow(
        way=Way.zero,
        **_bought(bests),
        gpus_paid=sum(share * best.gpus_paid for share, best in zip(shares, bests, strict=True)),
        usd_per_month=math.fsum(row.usd_per_month for row in rows),
        meets=all(row.breaks is None for row in rows),
        models=tuple(rows),
        hold_s=max(holds),
    )


def _held(
    tenant: Tenant, deployment: Deployment, trace: Trace, cold_s: float, usd_per_month: float
) -> tuple[ModelHere, float, float]:
    """Return the row of one model that scales to zero, the share of the time paid, and how long it is held."""
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


_MOST, _CLOSE = 64.0, 1.1  # the largest factor to try, either way; and the precision of the crossing


class _Compared(NamedTuple):
    """Both choices at some traffic."""

    together: WayRow | None
    own_usd: float | None
    """Dollars a month; infinite if no own GPUs serve it, None if their bill at other traffic already decides."""
    shared_wins: bool


_Seen = dict[float, _Compared]  # by the factor


def crossing(tenants: Sequence[Tenant], plan: SharedPlan, say: Say = silent) -> Crossing | None:
    """Find where the cheaper choice changes; None if neither way serves the given traffic."""
    by_way = {row.way: row for row in plan.rows if row.meets}
    shared = min((by_way[way] for way in SHARED_WAYS if way in by_way), key=lambda row: row.usd_per_month, default=None)
    own = by_way.get(Way.own)
    if shared is None and own is None:
        return None
    own_usd = own.usd_per_month if own else math.inf
    seen = {1.0: _Compared(shared, own_usd, shared is not None and shared.usd_per_month < own_usd)}
    low, high = 1.0, 1.0
    if seen[1.0].shared_wins:
        while seen[high].shared_wins and high < _MOST:
            low, high = high, 2 * high
            seen[high] = _compared(tenants, high, seen, say)
        if seen[high].shared_wins:
            return _crossing_at(seen, high, None)
    else:
        low = 1 / _MOST
        seen[low] = _compared(tenants, low, seen, say)
        if not seen[low].shared_wins:
            return _crossing_at(seen, 0.0, low)

    def shared_wins(factor: float) -> bool:
        seen[factor] = _compared(tenants, factor, seen, say)
        return seen[factor].shared_wins

    low, high = highest_between(shared_wins, low, high, _CLOSE)
    if seen[high].own_usd is None:
        least, most = _own_between(seen, high)
        seen[high] = seen[high]._replace(own_usd=most if least == most else _own_usd(tenants, high))
    return _crossing_at(seen, low, high)


def _compared(tenants: Sequence[Tenant], factor: float, seen: _Seen, say: Say) -> _Compared:
    """Compare both choices at a multiple of the traffic; plan own GPUs only if other traffic does not decide."""
    say(f"{factor:.2g} times the traffic")
    scaled = [tenant.times(factor) for tenant in tenants]
    least, most = _own_between(seen, factor)
    if row := _together(scaled, below_usd=least):
        return _Compared(row, None, True)
    row = _together(scaled, below_usd=most, from_usd=least) if most < math.inf else None
    if most < math.inf and row is None:
        return _Compared(None, None, False)
    own_usd = _own_usd(tenants, factor)
    row = row or _together(scaled, below_usd=own_usd, from_usd=least)
    return _Compared(row, own_usd, row is not None and row.usd_per_month < own_usd)


def _own_between(seen: _Seen, factor: float) -> tuple[float, float]:
    """Return the least and the most that own GPUs cost, from their bills at less and at more traffic."""
    known = {other: found.own_usd for other, found in seen.items() if found.own_usd is not None}
    least = max((bill for other, bill in known.items() if other < factor), default=0.0)
    return least, min((bill for other, bill in known.items() if other > factor), default=math.inf)


def _own_usd(tenants: Sequence[Tenant], factor: float) -> float:
    own = own_way([tenant.times(factor) for tenant in tenants])
    return own.usd_per_month if own else math.inf


def _together(tenants: Sequence[Tenant], below_usd: float, from_usd: float = 0.0) -> WayRow | None:
    """Return the cheapest way with one GPU for all that meets every SLO, between two bills."""
    if below_usd <= from_usd:
        return None
    traces, best = aligned([tenant.load.trace for tenant in tenants]), None
    for way in SHARED_WAYS:
        most_usd = best.usd_per_month if best else below_usd
        if row := cheapest_of(way, tenants, traces, most_usd, from_usd, only_met=True):
            best = row
    return best


def _crossing_at(seen: _Seen, below: float, above: float | None) -> Crossing:
    low, high = seen.get(below), seen.get(above) if above is not None else None
    own_usd = high.own_usd if high else None
    return Crossing(
        below=below,
        above=above,
        together_usd_per_month=low.together.usd_per_month if low and low.together else None,
        own_usd_per_month=own_usd if own_usd is not None and math.isfinite(own_usd) else None,
        together_above_usd_per_month=high.together.usd_per_month if high and high.together else None,
    )
