"""Rank what to do first: every lever alone on the user's setup, and those that pay together, each bill simulated.

A saving is a difference of two simulated bills, so saving + remaining bill = old bill. Together, levers are applied on
top of each other, and one that no longer lowers the bill is left out: they act on the same replicas, so together they
save less than their sum (or more, if one makes room for the other).

The module also computes what utilization costs: the same requests at other batch limits, loads and arrivals, one thing
changed at a time and sized anew. A burst needs the replicas of its busiest minutes and pays for them in the quiet ones.

It also states how much of the model's quality a change keeps: only the precision of weights and KV cache affects the
answers; everything else, drafts included, computes the same distribution. A score is the user's own, or published for
the model or its family (``catalog.checkpoints``). For weights and KV cache together the product is taken.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import NonNegativeFloat, PositiveFloat

from tokonomics.catalog.checkpoints import Recovery, recovery_of, recovery_text
from tokonomics.levers.boundaries import Boundary, Fleet, boundaries, cheaper_api_loads, context_of, fleet_of
from tokonomics.levers.lever_list import (
    API,
    CLOCKS,
    LOCKED_BY,
    LOCKED_SAVES,
    QUALITY_API,
    QUALITY_NONE,
    Lever,
    all_levers,
    moved,
)
from tokonomics.money.cost import saving
from tokonomics.money.trace_bills import ApiCost
from tokonomics.physics.curves import power_of
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes, sequence_bytes, shard
from tokonomics.physics.steptime import step_model
from tokonomics.planner.apis import ApiBeside, ApiSlo, cheapest_api
from tokonomics.sizing.bill import CENT, DECODING, Bill, Bills
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.load import Load
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import draw_arrivals, parse_arrivals
from tokonomics.types import Marked, Noun, copied
from tokonomics.units import gigabytes, percent, plural

NONE_LOST = "the answers do not change"
NOT_SCORED = "no score is published for this model or its family"


class QualityKept(Noun):
    """The share of the published model's quality that is kept."""

    share: float | None  # 1: nothing is lost; None: not scored
    said: str  # who measured or published it
    scores: tuple[Recovery, ...] = ()


def quality_kept(before: Deployment, after: Deployment) -> QualityKept:
    """Return what a change of precisions keeps of the model's quality; an unchanged precision loses nothing."""
    model = after.model
    fewer = []
    if after.weights.is_below(before.weights) and after.weights.is_below(model.served):
        fewer.append(recovery_of(model, after.weights, "weights", after.tp, after.expert_parts))
    if after.kv.is_below(before.kv) and after.kv.is_below(model.kv_served):
        fewer.append(recovery_of(model, after.kv, "kv"))
    if not fewer:
        return QualityKept(share=1.0, said=NONE_LOST)
    scores = tuple(found for found in fewer if found is not None)
    if len(scores) < len(fewer):
        return QualityKept(share=None, said=NOT_SCORED, scores=scores)
    share = math.prod(found.recovery for found in scores)
    return QualityKept(share=share, said="; ".join(recovery_text(found, model) for found in scores), scores=scores)


CHUNK = 1000  # prompt tokens whose time shows the effect on arithmetic
_BUYING = {
    "commit": "no commitment in the three cheapest regions is cheaper than {}",
    "spot": "with the share of spot that this workload bears, none of the three cheapest regions is cheaper than {}",
}


class Effects(Noun):
    """The effects of a change of the deployment before any traffic: bytes, arithmetic, and room for sequences."""

    weight_bytes_before: PositiveFloat  # on one GPU
    weight_bytes_after: PositiveFloat
    batch: NonNegativeFloat  # the batch at which steps are compared: that before the change
    step_s_before: PositiveFloat  # a decode step of that batch: mostly bytes
    step_s_after: PositiveFloat
    prompt_s_before: PositiveFloat  # ``CHUNK`` tokens of a prompt: mostly arithmetic
    prompt_s_after: PositiveFloat
    sequences_before: float  # sequences of mean length that fit in memory
    sequences_after: float


class Pulled(Noun):
    """The result of one lever on the setup as it is."""

    name: str
    knob: str
    effort: str
    risk: str
    quality: str
    bill: Bill | None  # None if it does not apply, or misses an SLO
    reason: Marked | None  # why there is no bill
    saved_usd_per_month: float
    saved_share: float
    effects: Effects | None  # of levers on the deployment
    kept: QualityKept | None = None  # of the model's quality; None if it does not apply
    api: ApiBeside | None = None  # the API that is called instead of the setup, beside today's bill
    boundaries: tuple[Boundary, ...] = ()  # where it starts and stops to pay; that in dollars last


class Ranking(Noun):
    """All levers, the largest saving first."""

    now: Bill
    levers: tuple[Pulled, ...]
    together: Bill
    taken: tuple[str, ...]  # those that lower the bill on top of each other, in that order
    saved_share: float  # together
    sum_of_shares: float  # of the same levers, each alone
    api: ApiBeside | None = None  # the cheapest API beside the bill of all levers together


@dataclass(frozen=True)
class Ranked:
    """A ranking with the setup that it leads to."""

    ranking: Ranking
    setup: Setup


def rank_levers(
    setup: Setup,
    levers: Sequence[Lever] | None = None,
    bills: Bills | None = None,
    apis: Sequence[ApiCost] | None = None,
    region: Sequence[str] = (),
    clocks: bool = False,
    least_usd_per_month: float = CENT,
) -> Ranked | NotServed:
    """Return each lever alone, then together; or why the setup itself cannot be served.

    Together are only levers without each of which the bill would be higher by ``least_usd_per_month``.
    Calling the cheapest of ``apis`` in the region is a lever too, but is combined with no other: it replaces the setup.
    Locking the GPUs' ``clocks`` has no bill.
    """
    bills = bills or Bills()
    levers = all_levers(bills=bills) if levers is None else levers
    bills.begin("what runs today")
    now = bills.bill_of(setup)
    if isinstance(now, NotServed):
        return now
    pulled = []
    for place, lever in enumerate(levers, 1):
        bills.begin(f"{place} of {plural(len(levers), 'lever')}: {lever.name}")
        pulled.append(pull(lever, setup, now, bills))
    ranked = sorted(pulled, key=_most_saved_then_most_room)
    end, best, taken = _together(setup, now, levers, ranked, bills, max(CENT, least_usd_per_month))
    tokens, has_slo = setup.load.workload.tokens_per_month, bool(setup.slos)
    beside = [
        cheapest_api(apis or (), tokens, bill.usd_per_month, region=region, has_slo=has_slo) for bill in (now, best)
    ]
    if apis is not None:
        fleet = fleet_of(setup, now, bills) if beside[0] else None
        ranked = sorted([*ranked, called(beside[0], fleet)], key=_most_saved_then_most_room)
    if clocks:
        ranked.append(clocks_locked(setup, now))
    ranking = Ranking(
        now=now,
        levers=tuple(ranked),
        together=best,
        taken=tuple(taken),
        saved_share=saving(now.usd_per_month, best.usd_per_month),
        sum_of_shares=sum(lever.saved_share for lever in ranked if lever.name in taken),
        api=beside[1],
    )
    return Ranked(ranking, end)


def pull(lever: Lever, setup: Setup, now: Bill, bills: Bills) -> Pulled:
    """Return one lever's bill on the setup, or why it has none."""
    changed = lever.apply(setup)
    made = changed if isinstance(changed, NotServed) else bills.bill_of(changed)
    if isinstance(made, Bill) and made.bought == now.bought and lever.knob in _BUYING:
        made = NotServed(Reason.nothing_to_change, _BUYING[lever.knob].format(now.bought))
    bill = made if isinstance(made, Bill) else None
    effects = None
    if isinstance(changed, Setup) and changed.deployment != setup.deployment and lever.knob in ("weights", "kv"):
        effects = effects_of(setup, changed.deployment, now.batch)
    risk = lever.risk
    if bill and bill.memory_assumed:
        size = " + ".join(gigabytes(memory.tier.size_bytes) for memory in bill.memories)
        risk = f"takes {size} a replica from the host's page cache and other processes; already paid for"
    return Pulled(
        **copied(lever, "name", "knob", "effort", "quality"),
        risk=risk,
        bill=bill,
        reason=made.reason if isinstance(made, NotServed) else None,
        saved_usd_per_month=now.usd_per_month - bill.usd_per_month if bill else 0.0,
        saved_share=saving(now.usd_per_month, bill.usd_per_month) if bill else 0.0,
        effects=effects,
        kept=quality_kept(setup.deployment, changed.deployment) if isinstance(changed, Setup) else None,
        boundaries=boundaries(lever.knob, setup, changed, now, bill, bills),
    )


def called(api: ApiBeside | None, fleet: Fleet | None = None) -> Pulled:
    """Return the lever of calling an API instead; ``api`` stands beside today's bill, that of ``fleet``."""
    row = {
        "name": "call an API",
        "knob": API,
        "effort": "hours: another address, a key",
        "quality": QUALITY_API,
        "bill": None,
        "effects": None,
    }
    latency = "latency as measured" if api and api.slo is ApiSlo.met else "latency not measured"
    risk = f"{latency}; prompts go to a third party; its host sets prices and rate limits"
    if api is None or not api.there or api.saved_usd_per_month is None or api.saved_share is None:
        sold = "no host sells the model for these requests" if api is None else "no host says that it computes there"
        return Pulled(**row, risk=risk, reason=sold, saved_usd_per_month=0.0, saved_share=0.0)
    saved = {"saved_usd_per_month": api.saved_usd_per_month, "saved_share": api.saved_share}
    loads = (cheaper_api_loads(fleet, api.usd_per_month),) if fleet else ()
    return Pulled(**row, risk=risk, reason=None, api=api, boundaries=loads, **saved)


def clocks_locked(setup: Setup, now: Bill) -> Pulled:
    """Return the lever of locking the GPUs' clocks while they decode, which saves who pays their electricity.

    It has no bill: a rented GPU's price includes its power. What an owner saves at most is told in kilowatt-hours.
    """
    gpu = setup.deployment.gpu
    share, curve = LOCKED_SAVES.get(gpu.key), power_of(gpu)
    reason = f"power is in the price of a rented GPU, and no figure for your own {gpu.key} is published"
    if share and curve:
        hours = sum(line.quantity for line in now.bill.lines if line.name == DECODING)
        kwh = share * hours * curve.decoding(now.batch) / 1000
        reason = (
            f"power is in the price of a rented GPU; with your own {gpu.key}, at most {kwh:,.0f} kWh a month: up to "
            f"{percent(share)} of what decode draws ({LOCKED_BY}; here it draws {curve.decoding(now.batch):.0f} W)"
        )
    return Pulled(
        name="locked GPU clocks",
        knob=CLOCKS,
        effort="hours: nvidia-smi on every host",
        risk="slower prompts, and slower steps of large batches",
        quality=QUALITY_NONE,
        bill=None,
        reason=Marked(reason),
        saved_usd_per_month=0.0,
        saved_share=0.0,
        effects=None,
    )


def _most_saved_then_most_room(lever: Pulled) -> tuple[bool, float, float]:
    room = lever.bill.load_share if lever.bill and lever.bill.load_share is not None else 1.0
    return lever.bill is None and lever.api is None, -round(lever.saved_usd_per_month, 2), room


def taken_on_top(
    lever: Lever, setup: Setup, usd_per_month: float, bills: Bills, above: float
) -> tuple[Setup, Bill] | str:
    """Return the setup with one more lever and its bill, or why not: its bill may be too far above the last."""
    changed = lever.apply(setup)
    if isinstance(changed, NotServed):
        return changed.reason
    made = bills.bill_of(changed)
    if isinstance(made, NotServed):
        return made.reason
    return (changed, made) if made.usd_per_month < usd_per_month + above else "it does not lower the bill further"


def _together(
    setup: Setup, now: Bill, levers: Sequence[Lever], ranked: Sequence[Pulled], bills: Bills, least_usd: float
) -> tuple[Setup, Bill, list[str]]:
    """Apply levers on top of each other, largest saving first; also once with each way to quantise and the GPUs first.

    Fewer bits may save nothing on today's GPUs and much on those that they make large enough. If some requests can
    wait, all of it is tried again with them moved first. A lever that makes no difference in the end is removed.
    """
    by_name = {lever.name: lever for lever in levers}
    paying = [by_name[lever.name] for lever in ranked if lever.saved_usd_per_month >= CENT]
    hardware = [lever for lever in levers if lever.knob == "hardware"]
    possible = [by_name[lever.name] for lever in ranked if lever.bill]
    cache = [lever for lever in possible if lever.knob == "kv"]
    # Another GPU may be sold on terms that today's is not.
    buying = [lever for lever in levers if lever.knob in _BUYING]
    orders = [paying]
    orders += [[lever, *cache, *hardware, *paying] for lever in possible if lever.knob == "weights"]
    # A fleet that is sized for fewer requests may fit other machines.
    waiting = [lever for lever in possible if lever.knob == "waiting"]
    orders += [[*waiting, *order, *hardware] for order in orders] if waiting else []
    orders = [[*order, *buying] for order in orders]
    ends = []
    for place, order in enumerate(orders, 1):
        bills.begin(f"levers together, order {place} of {len(orders)}")
        ends.append(_applied(setup, now, order, bills, least_usd))
    return min(ends, key=lambda end: (round(end[1].usd_per_month, 2), len(end[2])))


def _applied(
    setup: Setup, now: Bill, order: Sequence[Lever], bills: Bills, least_usd: float
) -> tuple[Setup, Bill, list[str]]:
    end, best = setup, now
    taken: list[Lever] = []
    for lever in order:
        if any(other.knob == lever.knob for other in taken):
            continue
        bills.say(lever.name)
        made = taken_on_top(lever, end, best.usd_per_month, bills, CENT)
        if not isinstance(made, str):
            end, best = made
            taken.append(lever)
    for lever in list(taken):
        back = moved(end, setup, lever.knob)
        bill = bills.bill_of(back)
        if isinstance(bill, Bill) and bill.usd_per_month < best.usd_per_month + least_usd:
            end, best = back, bill
            taken.remove(lever)
    return end, best, [lever.name for lever in taken]


def effects_of(setup: Setup, after: Deployment, batch: float) -> Effects:
    """Return bytes, arithmetic and room of a deployment compared to the setup's own."""
    before, workload = setup.deployment, setup.load.workload
    context = context_of(workload)
    was, becomes = step_model(before), step_model(after)
    rows = max(1.0, batch)

    def room(deployment: Deployment) -> float:
        return max(0, kv_budget_bytes(deployment)) / max(1, sequence_bytes(deployment, round(context)))

    return Effects(
        weight_bytes_before=shard(before).total,
        weight_bytes_after=shard(after).total,
        batch=rows,
        step_s_before=float(was.decode(rows, context)),
        step_s_after=float(becomes.decode(rows, context)),
        prompt_s_before=float(was.prefill(CHUNK)),
        prompt_s_after=float(becomes.prefill(CHUNK)),
        sequences_before=room(before),
        sequences_after=room(after),
    )


# --- utilization ----------------------------------------------------------------------------------------------------

LIMITS = (1, 4, 16, 64, 256, 1024)
LOADS = (1 / 16, 1 / 4, 1, 4)  # times the rate that was given
BUSY_SHARE = 1 / 3  # share of time in which a burst-then-idle load is busy: the eight hours of a working day
_ROUNDS = 4  # bursts in the time simulated: each long enough that no queue can hold it


class UtilizationPoint(Noun):
    """The bill at one setting."""

    name: str
    bill: Bill | None
    reason: Marked | None


class Utilization(Noun):
    """The bill at other batch limits, loads and arrivals."""

    by_batch: tuple[UtilizationPoint, ...]
    by_load: tuple[UtilizationPoint, ...]
    by_burst: tuple[UtilizationPoint, ...]  # at equal mean rate, calmest first


def utilization_bills(setup: Setup, bills: Bills | None = None) -> Utilization:
    """Return the bills of the setup at other batch limits, loads and arrivals."""
    bills = bills or Bills()
    rate = setup.load.workload.rate
    limits = [limit for limit in LIMITS if limit <= setup.deployment.limits.max_sequences]
    batches = {f"up to {limit}": replace(setup, max_sequences=limit) for limit in limits}
    loads = {f"{rate * times:.3g}/s": replace(setup, load=setup.load.at(rate * times)) for times in LOADS}
    patterns = arrival_patterns(setup.load).items()
    bursts = {name: replace(setup, load=arriving(setup.load, text)) for name, text in patterns}

    def points(setups: Mapping[str, Setup]) -> tuple[UtilizationPoint, ...]:
        found = []
        for name, changed in setups.items():
            bills.begin(f"utilization: {name}")
            made = bills.bill_of(changed)
            bill, reason = (None, made.reason) if isinstance(made, NotServed) else (made, None)
            found.append(UtilizationPoint(name=name, bill=bill, reason=reason))
        return tuple(found)

    return Utilization(by_batch=points(batches), by_load=points(loads), by_burst=points(bursts))


def arrival_patterns(load: Load) -> dict[str, str | None]:
    """Return arrival patterns from the calmest to burst-then-idle; None: as given."""
    # At one request a second, the bursts together carry all requests.
    on_s = len(load.trace) / _ROUNDS
    off_s = on_s * (1 / BUSY_SHARE - 1)
    return {
        "evenly spaced": "constant:1",
        "as given": None,
        "gaps vary threefold (cv 3)": "gamma:1,cv=3",
        f"all in {percent(BUSY_SHARE)} of the time": f"onoff:1,on={on_s:.6g},off={off_s:.6g}",
    }


def arriving(load: Load, arrivals: str | None) -> Load:
    """Return the same requests in the same order and at the same mean rate, with another arrival pattern."""
    if arrivals is None:
        return load
    times = draw_arrivals(parse_arrivals(arrivals), requests=len(load.trace), seed=0)
    trace = replace(load.trace, arrival_s=times)
    return replace(load, trace=trace.faster(load.workload.rate * load.share / trace.rate))
