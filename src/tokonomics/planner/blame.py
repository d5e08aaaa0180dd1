"""Why a wish cannot be met: which constraint is to blame, and the nearest value that could be.

Each constraint is loosened alone and the plan is made again in closed form; one without which there is a plan is to
blame, and what that plan reaches is the nearest value. Against a promise stands the fastest lone request of any
candidate; where that would keep it, the best that was simulated.
"""

from collections.abc import Iterator
from dataclasses import replace

from tokonomics.nouns import Noun
from tokonomics.physics.steptime import step_model
from tokonomics.planner.candidates import Reason
from tokonomics.planner.plan import Question, Study, plan, prospects
from tokonomics.planner.screen import describe, floors
from tokonomics.traffic.promises import Promise
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
    hosts, _ = prospects(question, question.load)
    for promise in question.promises:
        fastest = min(
            (
                (floor.seconds, str(each.deployment))
                for each in hosts
                for floor in floors(step_model(each.deployment), question.load, [promise])
            ),
            default=(0.0, ""),
        )
        if fastest[0] > promise.seconds:
            name = describe(promise)
            yield Blame(
                constraint=f"--slo {promise}={promise.seconds:g}",
                why=f"{name} of {seconds(promise.seconds)} is below what a lone request takes",
                nearest=f"the fastest, {fastest[1]}, takes {seconds(fastest[0])}",
            )
        elif _holds_without(question, promise):
            yield _missed_in_simulation(study, promise)


def _holds_without(question: Question, promise: Promise) -> bool:
    others = tuple(each for each in question.promises if each != promise)
    return plan(replace(question, promises=others, simulate=False)).best is not None


def _missed_in_simulation(study: Study, promise: Promise) -> Blame:
    """The best any trial delivered of it."""
    delivered = [
        kept.delivered_s
        for trial in study.search.trials.made.values()
        for kept in trial.outcome.slo
        if kept.promise == str(promise) and kept.delivered_s is not None
    ]
    best = f"the best that was simulated is {seconds(min(delivered))}" if delivered else "loosen it"
    return Blame(
        constraint=f"--slo {promise}={promise.seconds:g}",
        why=f"{describe(promise)} of {seconds(promise.seconds)} is not kept on any number of replicas",
        nearest=best,
    )


def _limits(question: Question) -> Iterator[Blame]:
    """Limits without which there is a plan."""
    limits = question.limits
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


_BEFORE_SPEED = (Reason.too_long, Reason.not_supported, Reason.does_not_fit, Reason.host_too_small, Reason.no_price)


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
    elif Reason.no_price in kinds and not study.plan.ranked:
        terms = ", ".join(question.terms)
        sold = sorted({name for name, prices in _terms_sold(question).items() if prices})
        yield Blame(
            constraint=f"--terms {terms}",
            why="none of these offers has such a price",
            nearest=f"they are sold on: {', '.join(sold) or 'no terms at all'}",
        )


def _terms_sold(question: Question) -> dict[str, int]:
    from tokonomics.catalog.offers import Terms

    return {each.value: sum(offer.price(each) is not None for offer in question.offers) for each in Terms}
