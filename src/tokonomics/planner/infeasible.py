"""Why a wish cannot be met: which constraint is to blame, and the nearest value that could be.

Each constraint is loosened alone and the plan is made again in closed form; one without which there is a plan is to
blame, and what that plan reaches is the nearest value. Against an SLO stands the fastest lone request of any
candidate; where that would keep it, the best that was simulated.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from tokonomics.catalog.offers import Offer, Terms
from tokonomics.physics.steptime import step_model
from tokonomics.planner.candidates import Reason, host_gib
from tokonomics.planner.plan import Question, Study, plan, prospects
from tokonomics.planner.screen import describe, floors
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun
from tokonomics.units import gigabytes, plural, seconds, usd


class Blame(Noun):
    """One constraint that alone stands in the way."""

    constraint: str
    """As it was written, such as ``--gpus 1``."""
    why: str
    nearest: str
    """The nearest value that would do, or what else to do."""


def blame(study: Study) -> tuple[Blame, ...]:
    """What stands in the way of a plan that found nothing."""
    question = study.question
    hosts, _ = prospects(question, question.load)
    if hosts:
        return (*_too_slow(study), *_limits(question))
    return (*_nothing_to_choose_from(study), *_limits(question))


def _too_slow(study: Study) -> Iterator[Blame]:
    question = study.question
    kinds = {each.kind for each in study.plan.rejected}
    if Reason.too_slow not in kinds:
        yield from _too_much(study, kinds)
        return
    hosts, _ = prospects(question, question.load)
    for slo in question.slos:
        fastest = min(
            ((floors(step_model(host.deployment), question.load, [slo])[slo], str(host.deployment)) for host in hosts),
            default=(0.0, ""),
        )
        if fastest[0] > slo.seconds:
            name = describe(slo)
            yield Blame(
                constraint=f"--slo {slo}={slo.seconds:g}",
                why=f"{name} of {seconds(slo.seconds)} is below what a lone request takes",
                nearest=f"the fastest, {fastest[1]}, takes {seconds(fastest[0])}",
            )
        elif _holds_without(question, slo):
            yield _missed_in_simulation(study, slo)


def _too_much(study: Study, kinds: set[Reason]) -> Iterator[Blame]:
    """More replicas than anyone runs of one kind."""
    if Reason.too_many_gpus in kinds and study.question.limits.max_gpus is None and study.search.screened:
        most = max(each.capacity.rate for each in study.search.screened) * MOST_REPLICAS
        yield Blame(
            constraint=f"--rate {study.question.load.workload.rate:g}",
            why=f"it takes more than {MOST_REPLICAS:,} replicas of every kind",
            nearest=f"plan at most {most:.2g} requests a second at once",
        )


def _holds_without(question: Question, slo: Slo) -> bool:
    others = tuple(each for each in question.slos if each != slo)
    return plan(replace(question, slos=others, simulate=False)).best is not None


def _missed_in_simulation(study: Study, slo: Slo) -> Blame:
    """The best any trial delivered of it."""
    delivered = [
        kept.delivered_s
        for trial in study.search.trials.made.values()
        for kept in trial.outcome.slo
        if kept.slo == str(slo)
        and kept.delivered_s is not None
        and all(other.kept for other in trial.outcome.slo if other.slo != kept.slo)
    ]
    best = (
        f"with the others kept, the best that was simulated is {seconds(min(delivered))}" if delivered else "loosen it"
    )
    return Blame(
        constraint=f"--slo {slo}={slo.seconds:g}",
        why=f"{describe(slo)} of {seconds(slo.seconds)} is not kept on any number of replicas",
        nearest=best,
    )


def _limits(question: Question) -> Iterator[Blame]:
    """Limits without which there is a plan."""
    limits = question.limits
    if limits.max_age_days is not None and question.offers:
        newest = min(offer.age_days(question.today) for offer in question.offers)
        if newest > limits.max_age_days:
            yield Blame(
                constraint=f"--max-age {limits.max_age_days}",
                why="every price is older",
                nearest=f"the newest is {newest} days old",
            )
    if limits.max_gpus is not None:
        free = plan(replace(question, limits=limits.model_copy(update={"max_gpus": None}), simulate=False))
        if free.best:
            fewest = min(free.ranked, key=lambda row: (row.gpus_paid, row.usd_per_month))
            number, bill = plural(fewest.gpus_paid, "GPU"), usd(fewest.usd_per_month)
            yield Blame(
                constraint=f"--gpus {limits.max_gpus}",
                why="more GPUs are needed than allowed",
                nearest=f"{number} would do: {fewest.gpu}, {bill} a month",
            )
    if limits.max_usd_per_gpu_hour is not None:
        free = plan(replace(question, limits=limits.model_copy(update={"max_usd_per_gpu_hour": None}), simulate=False))
        if free.best:
            row = min(free.ranked, key=lambda each: each.instance_usd_per_hour * each.instances / each.gpus_paid)
            price = row.instance_usd_per_hour * row.instances / row.gpus_paid
            yield Blame(
                constraint=f"--max-price {limits.max_usd_per_gpu_hour:g}",
                why="no GPU that would do is sold for that",
                nearest=f"{row.gpu} at {row.provider} costs {usd(price)} a GPU-hour",
            )


def _nothing_to_choose_from(study: Study) -> Iterator[Blame]:
    """No candidate stands on any machine: the commonest reason before any speed is known."""
    question, model = study.question, study.question.model
    kinds = {each.kind for each in study.plan.rejected}
    context = question.load.longest
    if Reason.too_long in kinds:
        yield Blame(
            constraint="--input, --output",
            why=f"requests of {context:,} tokens exceed {model.name}'s context",
            nearest=f"{model.max_context:,} tokens, prompt and answer together",
        )
    elif Reason.host_too_small in kinds:
        # Whatever was refused for it would fit its GPUs.
        told: dict[Offer, float] = {}
        for each in question.offers:
            untold = each.model_copy(update={"memory_gb": None})
            told[untold] = max(told.get(untold, 0.0), each.memory_gb or 0.0)
        fitting, _ = prospects(replace(question, offers=list(told)), question.load)
        short = [(hosts.deployment, one.offer) for hosts in fitting for one in hosts.machines]
        deployment, offer = min(short, key=lambda pair: host_gib(pair[0], pair[1].gpus) - told[pair[1]])
        yield Blame(
            constraint="--provider, --offers",
            why=f"no machine has memory enough beside its GPUs to load {model.name}: "
            f"the nearest, with {offer.gpus} {offer.gpu}, has {told[offer]:g} GB",
            nearest=f"{math.ceil(host_gib(deployment, offer.gpus)):,} GB would do",
        )
    elif Reason.does_not_fit in kinds or Reason.instance_too_small in kinds:
        weights = min(question.weights or (model.served,), key=lambda each: each.bits)
        largest = max(question.offers, key=lambda offer: offer.gpus, default=None)
        machine = f"; the largest machine here has {largest.gpus} {largest.gpu}" if largest else ""
        size = gigabytes(model.weight_bytes(weights))
        yield Blame(
            constraint="--gpu, --provider, --offers",
            why=f"{model.name} needs {size} for its weights at {weights} alone{machine}",
            nearest="larger machines, or fewer bits (--weights int4)",
        )
    elif Reason.not_supported in kinds:
        case = next(each for each in study.plan.rejected if each.kind is Reason.not_supported)
        yield Blame(constraint="--engine, --weights, --kv", why=case.reason, nearest="another engine or precision")
    elif not any(offer.price(term) for offer in question.offers for term in question.terms):
        terms = ", ".join(question.terms)
        sold = sorted(term for term in Terms if any(offer.price(term) is not None for offer in question.offers))
        yield Blame(
            constraint=f"--terms {terms}",
            why="none of these offers has such a price",
            nearest=f"they are sold on: {', '.join(sold) or 'no terms at all'}",
        )
