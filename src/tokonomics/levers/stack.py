"""Go from a naive deployment to an optimised one, step by step, with each step's saving simulated.

The baseline serves one request at a time, 16 bit, nothing cached, on demand, on the GPU that the user names. The end is
the planner's pick for this traffic with the levers that lower its bill further. The end is found first; each step then
sets one knob as the end has it, so the order changes what each step saves, but not the total. A step that cannot be
served alone (weights too large for its GPU) is combined with the next. Speculative decoding is a step only if the user
says something about it: its saving depends on the acceptance.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.levers.boundaries import context_of, paying_acceptance
from tokonomics.levers.lever_list import (
    KNOBS,
    NOTHING_SHARED,
    OFFERS,
    Choices,
    all_levers,
    differs,
    memories,
    moved,
    right_size,
)
from tokonomics.levers.ranking import QualityKept, quality_kept, taken_on_top
from tokonomics.money.cost import saving
from tokonomics.planner.parsing import published_draft
from tokonomics.planner.plan_answer import KV_CHOICES
from tokonomics.sizing.bill import CENT, Bill, Bills
from tokonomics.sizing.layouts import NotServed, weight_choices
from tokonomics.sizing.search import NeverHolds
from tokonomics.sizing.setup import Setup
from tokonomics.types import Marked, Noun, copied
from tokonomics.units import plural

ORDER = tuple(knob for knob in KNOBS if knob != OFFERS)
_PLANNED = ("batch", "weights", "kv", "hardware")  # what the planner decides at once
_UNMEASURED = (
    f"not tried: what it saves depends on its acceptance. Give yours ({option('acceptance')}), or a {option('draft')}"
)


class Step(Noun):
    """One move towards the end."""

    name: str
    knobs: tuple[str, ...]
    bill: Bill
    saved_usd_per_month: float  # below zero if it only pays together with later steps
    saved_share: float  # of the baseline's bill: the steps add up to the whole
    kept: QualityKept  # of the model's quality


class LeftOut(Noun):
    """A lever that the end does not use."""

    name: str
    reason: Marked


class Drafted(Noun):
    """The figures behind the step of speculative decoding."""

    acceptance: float
    assumed: bool  # the acceptance was not measured
    source: str | None = None  # who published it; None: given by the user, or assumed
    batch: float
    pays_from: float | None
    """The acceptance from which a token takes less time than without a draft at that batch; None: there is none."""


class Waterfall(Noun):
    """From the naive bill to the optimised one."""

    naive: Bill
    steps: tuple[Step, ...]
    end: Bill
    batched: Bill | None
    """The baseline with continuous batching, where most teams are. None if that does not meet the SLOs."""
    left_out: tuple[LeftOut, ...]
    quality: tuple[str, ...]  # what published evaluations say about the steps that affect the answers
    saved_share: float
    saved_share_of_batched: float | None
    drafted: Drafted | None = None


@dataclass(frozen=True)
class Stacked:
    """A waterfall with the setups at both ends."""

    waterfall: Waterfall
    naive: Setup
    end: Setup


def naive_setup(setup: Setup) -> Setup:
    """Return the baseline on the same GPUs: one request at a time, 16 bit, nothing cached, on demand."""
    plain = setup.deployed(weights=setup.deployment.model.served, kv=Precision.bf16, speculation=None)
    asked = copied(plain, "deployment", "load", "offers", "today", "slos", "spare", "offline")
    return Setup(**asked, max_sequences=1, prefix_cache=False)


def stack(
    setup: Setup, choices: Choices | None = None, order: Sequence[str] = ORDER, bills: Bills | None = None
) -> Stacked:
    """Return the waterfall from the naive form of a setup to the best one found for its traffic."""
    bills, choices = bills or Bills(), choices or Choices()
    naive = naive_setup(setup)
    bills.begin("one request at a time")
    first = bills.bill_of(naive)
    if isinstance(first, NotServed):
        raise NeverHolds(first, "the naive baseline cannot be served: ")
    end, left_out = optimised(naive, choices, bills)
    made = walk(naive, end, order, bills, left_out)
    drafted = _drafted(end, made.waterfall.end, choices.acceptance is not None)
    return replace(made, waterfall=made.waterfall.model_copy(update={"drafted": drafted}))


def _drafted(end: Setup, bill: Bill, given: bool) -> Drafted | None:
    speculation = end.deployment.speculation
    if speculation is None:
        return None
    batch = max(bill.batch, 1.0)
    pays_from = paying_acceptance(end.deployment, batch, context_of(end.load.workload))
    source = None if given else speculation.source
    assumed = not given and source is None
    return Drafted(acceptance=speculation.acceptance, assumed=assumed, source=source, batch=batch, pays_from=pays_from)


def order_from(text: str | None) -> tuple[str, ...]:
    """Return the order of knobs: those named, such as ``hardware,weights``, first, the others as usual."""
    if text is None:
        return ORDER
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in ORDER or names.count(name) > 1:
            hint = did_you_mean(name, ORDER, 1) if name not in ORDER else None
            fix = f"Valid: {', '.join(ORDER)}. {hint or ''}".rstrip()
            raise BadInput(f"'{shorten(name)}' is not a step, or is named twice", field="order", fix=fix)
    return (*names, *(knob for knob in ORDER if knob not in names))


def optimised(naive: Setup, choices: Choices, bills: Bills) -> tuple[Setup, tuple[LeftOut, ...]]:
    """Return the planner's pick over GPUs and precisions, with every other lever that lowers its bill."""
    left_out: list[LeftOut] = []
    bills.begin("the cheapest GPUs and precisions")
    end = _planned(replace(naive, max_sequences=None, prefix_cache=True), choices, bills)
    best = bills.bill_of(end)
    usd = best.usd_per_month if isinstance(best, Bill) else math.inf
    levers = [lever for lever in all_levers(choices, bills) if lever.knob not in (*_PLANNED, "cache")]
    for place, lever in enumerate(levers, 1):
        bills.begin(f"{place} of {plural(len(levers), 'lever')}: {lever.name}")
        known = choices.speaks_of_drafts or published_draft(end.deployment.model)
        if lever.knob == "speculation" and not known:
            left_out.append(LeftOut(name=lever.name, reason=_UNMEASURED))
            continue
        made = taken_on_top(lever, end, usd, bills, -CENT)
        if isinstance(made, str):
            left_out.append(LeftOut(name=lever.name, reason=made))
        else:
            end, usd = made[0], made[1].usd_per_month
    if naive.load.trace.prefix is None:
        # The cache would find nothing, so it is not a step.
        end = replace(end, prefix_cache=naive.prefix_cache)
        left_out.insert(0, LeftOut(name="prefix cache", reason=NOTHING_SHARED))
    return end, tuple(left_out)


def _planned(setup: Setup, choices: Choices, bills: Bills) -> Setup:
    now, floor = setup.deployment, choices.min_weights
    weights = tuple(choice for choice in weight_choices(now.model, None) if not (floor and choice.is_below(floor)))
    weights = tuple(choice for choice in weights if not choices.too_low(now.model, choice))
    weights = (now.weights,) if "weights" in choices.without else weights or (now.weights,)
    kv = tuple(choice for choice in KV_CHOICES if not choices.too_low(now.model, choice, "kv"))
    kv = (now.kv,) if "kv" in choices.without else kv
    here = [offer for offer in setup.offers if "hardware" not in choices.without or offer.gpu == now.gpu.key]
    picked = right_size(replace(setup, offers=tuple(here)), weights, kv, bills)
    return setup if isinstance(picked, NotServed) else replace(picked, offers=setup.offers)


def walk(
    naive: Setup,
    end: Setup,
    order: Sequence[str] = ORDER,
    bills: Bills | None = None,
    left_out: tuple[LeftOut, ...] = (),
) -> Stacked:
    """Move the knobs in which two setups differ, in this order, and simulate each step."""
    bills = bills or Bills()
    first, last = _must(bills, naive), _must(bills, end)
    here, before, was = naive, first, naive
    steps: list[Step] = []
    waiting: tuple[str, ...] = ()
    knobs = [knob for knob in order if differs(naive, end, knob)]
    if missing := [knob for knob in ORDER if differs(naive, end, knob) and knob not in knobs]:
        raise BadInput(f"the order leaves out: {', '.join(missing)}", field="order")
    for place, knob in enumerate(knobs, 1):
        here, waiting = moved(here, end, knob), (*waiting, knob)
        name = _named(waiting, end)
        bills.begin(f"step {place} of {len(knobs)}: {name}")
        made = bills.bill_of(here)
        if isinstance(made, NotServed):
            continue
        saved = before.usd_per_month - made.usd_per_month
        share = saved / first.usd_per_month
        kept = quality_kept(was.deployment, here.deployment)
        moved_to = {"name": name, "knobs": waiting, "bill": made, "kept": kept}
        steps.append(Step(**moved_to, saved_usd_per_month=saved, saved_share=share))
        before, waiting, was = made, (), here
    batching = bills.bill_of(moved(naive, end, "batch"))
    batched = batching if isinstance(batching, Bill) else None
    waterfall = Waterfall(
        naive=first,
        steps=tuple(steps),
        end=last,
        batched=batched,
        left_out=left_out,
        quality=_quality(naive, end),
        saved_share=saving(first.usd_per_month, last.usd_per_month),
        saved_share_of_batched=saving(batched.usd_per_month, last.usd_per_month) if batched else None,
    )
    return Stacked(waterfall, naive, end)


def _must(bills: Bills, setup: Setup) -> Bill:
    made = bills.bill_of(setup)
    if isinstance(made, NotServed):
        raise BadInput(f"{setup.deployment} cannot be served: {made.reason}", fix=made.fix)
    return made


def _named(knobs: Sequence[str], end: Setup) -> str:
    deployment = end.deployment
    words = {
        "weights": deployment.weights.upper(),
        "kv": deployment.kv.upper(),
        "gpus": deployment.gpus,
        "gpu": deployment.gpu.key,
        "memories": memories(end.tiers if isinstance(end.tiers, str) else None),
    }
    return " + ".join(KNOBS[knob].step.format(**words) for knob in knobs)


def _quality(naive: Setup, end: Setup) -> tuple[str, ...]:
    """Return the quality notes of the levers that the end uses and that affect the answers."""
    reached = {_named([knob], end) for knob in ("weights", "kv") if differs(naive, end, knob)}
    return tuple(f"{lever.name}: {lever.quality}" for lever in all_levers() if lever.name in reached)
