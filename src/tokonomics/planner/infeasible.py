"""Explain why no offer meets the constraints: which one is to blame, and the nearest value that could be met.

Each constraint is loosened alone and the plan is made again in closed form. A constraint is to blame if there is a plan
without it, and the value that this plan reaches is the nearest. An SLO is compared with the fastest lone request of any
candidate or, if that would meet it, with the best simulation.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import certainly_there, list_prices
from tokonomics.catalog.offers import MAX_AGE_DAYS, Offer, Terms
from tokonomics.catalog.places import place_filter
from tokonomics.errors import option
from tokonomics.physics.steptime import step_model
from tokonomics.planner.parsing import listed, regions_from
from tokonomics.planner.plan import Question, Study
from tokonomics.planner.plan_answer import Plan
from tokonomics.planner.prospects import prospects, rejections
from tokonomics.planner.vary import again
from tokonomics.serving.capacity import MOST_REPLICAS
from tokonomics.sizing.hosts import Hosts, host_gib
from tokonomics.sizing.layouts import Reason
from tokonomics.sizing.screen import floors
from tokonomics.sizing.spare import ZONED
from tokonomics.types import Marked, Noun
from tokonomics.units import gigabytes, plural, seconds, usd


class Blame(Noun):
    """One constraint that alone prevents a plan."""

    constraint: Marked  # as it was given, such as ``gpus=1``
    why: Marked
    nearest: Marked  # the nearest value that works, or what else to do


def blame(study: Study, narrowed: Mapping[str, str] | None = None, every: Sequence[Offer] = ()) -> Iterator[Blame]:
    """Yield what prevents a plan that found nothing: the market, memory, the engine, an SLO, or a limit.

    ``narrowed`` are the filters of the market as given, ``every`` the offers without them.
    """
    question = study.question
    kinds = {rejection.kind for rejection in study.plan.rejected}
    hosts = prospects(question, question.load)
    limits = list(_limits(question))
    if not hosts:
        yield from _nothing_to_choose_from(study, kinds)
    elif Reason.too_slow in kinds:
        yield from _too_slow(study, hosts, bool(limits))
    elif Reason.too_many_gpus in kinds and question.limits.max_gpus is None and study.search.screened:
        most = max(screened.capacity.rate for screened in study.search.screened) * MOST_REPLICAS
        yield Blame(
            constraint=option("rate", f"{question.load.workload.rate:g}"),
            why=f"it takes more than {MOST_REPLICAS:,} replicas of every kind",
            nearest=f"plan at most {most:.2g} requests a second at once",
        )
    yield from limits
    if narrowed and (elsewhere := again(question, offers=list(every), simulate=False).plan.best):
        machine = f"{elsewhere.provider} {elsewhere.instance}, {elsewhere.region}"
        yield Blame(
            constraint=" ".join(option(name, value) for name, value in narrowed.items()),
            why="no machine that is sold there would do",
            nearest=f"elsewhere {elsewhere.gpu} may, such as {machine}",
        )


def left_out(
    question: Question,
    providers: Sequence[str] | None,
    regions: Sequence[str] | None,
    gpus: Sequence[str] | None,
    every: Sequence[Offer],
) -> dict[str, str]:
    """Say which of the named providers, regions and GPUs offer nothing that can be bought, and why: age, memory …

    ``every`` are the offers before marketplaces and those in uncertain places were set aside.
    """
    sold = {
        name: [offer for offer in every if offer.provider == name.lower()]
        for name in listed(providers, "provider") or ()
    }
    for region in regions_from(regions, every) or ():
        is_there = place_filter([region], {offer.place for offer in every})
        sold[region] = [offer for offer in every if is_there(offer.place)]
    for gpu in gpus or ():
        sold[gpu] = [offer for offer in every if offer.gpu == find_gpu(gpu).key]

    def why(name: str, offers: Sequence[Offer]) -> str | None:
        if offers:
            return _why_left_out(question, offers)
        seen = "no public price of it is known" if name in (gpus or ()) else "no price of it is known"
        return f"{seen}{' there' if regions else ''} ({option('offers', 'my.csv')})"

    return {name: reason for name, offers in sold.items() if (reason := why(name, offers))}


def _why_left_out(question: Question, offers: Sequence[Offer]) -> str | None:
    bought = set(question.offers)
    sold = {offer for offer in offers if offer in bought}
    newest = max(offer.date for offer in offers)
    age = (question.today - newest).days
    listed_there = list_prices(offers)
    if not sold and not listed_there:
        older = f" {option('max_age', age)}" if age > MAX_AGE_DAYS else ""
        return f"only marketplaces sell it ({option('sellers', 'all')}{older})"
    if not sold and not certainly_there(listed_there):
        return f"it is not certain that anybody sells it there ({option('provider', listed_there[0].provider)})"
    if any(machine.offer in sold for hosts in prospects(question, question.load) for machine in hosts.machines):
        return None
    asked = replace(question, offers=list(sold))
    if not sold or age > MAX_AGE_DAYS or prospects(asked, question.load):
        return f"the newest price is of {newest} ({option('max_age', age)})"
    rejected = rejections(asked, question.load)
    if not rejected:
        return None
    reason, _ = Counter(rejection.reason for rejection in rejected).most_common(1)[0]
    return f"{reason} ({option('why')})"


def _too_slow(study: Study, hosts: Sequence[Hosts], is_limited: bool) -> Iterator[Blame]:
    """Yield SLOs that a lone request misses, or that any number of replicas misses, unless a limit keeps them few."""
    question, trials = study.question, [trial.outcome.slo for trial in study.search.sought.attempts.made.values()]
    for slo in question.slos:
        constraint, target = option("slo", f"{slo}={slo.seconds:g}"), f"{slo.label} of {seconds(slo.seconds)}"
        deployments = [host.deployment for host in hosts]
        alone = [(floors(step_model(one), question.load, [slo])[slo], str(one)) for one in deployments]
        fastest_s, fastest = min(alone, default=(0.0, ""))
        if fastest_s > slo.seconds:
            yield Blame(
                constraint=constraint,
                why=f"{target} is below what a lone request takes",
                nearest=f"the fastest, {fastest}, takes {seconds(fastest_s)}",
            )
            continue
        was_missed = not trials or any(found.slo == str(slo) and not found.met for trial in trials for found in trial)
        others = tuple(other for other in question.slos if other != slo)
        if was_missed and not is_limited and again(question, slos=others, simulate=False).plan.best:
            others_met = (trial for trial in trials if all(found.met for found in trial if found.slo != str(slo)))
            own = [found.delivered_s for trial in others_met for found in trial if found.slo == str(slo)]
            best_s = min((delivered_s for delivered_s in own if delivered_s is not None), default=None)
            simulated = "with the others met, the best that was simulated is"
            nearest = "loosen it" if best_s is None else f"{simulated} {seconds(best_s)}"
            yield Blame(constraint=constraint, why=f"{target} is not met on any number of replicas", nearest=nearest)


def _limits(question: Question) -> Iterator[Blame]:
    """Yield the limits without which there is a plan."""
    limits = question.limits

    def without(limit: str, simulate: bool = False) -> Plan:
        return again(question, limits=limits.model_copy(update={limit: None}), simulate=simulate).plan

    if limits.max_age_days is not None and question.offers:
        newest = min(offer.age_days(question.today) for offer in question.offers)
        if newest > limits.max_age_days:
            yield Blame(
                constraint=option("max_age", limits.max_age_days),
                why=f"every price is older, the newest {newest} days",
                nearest=f"run `tokonomics offers --refresh`, or give {option('max_age', newest)}",
            )
    if limits.max_gpus is not None and (ranked := without("max_gpus", question.simulate).ranked):
        row = min(ranked, key=lambda row: (row.gpus_paid, row.usd_per_month))
        number, bill = plural(row.gpus_paid, "GPU"), usd(row.usd_per_month)
        yield Blame(
            constraint=option("gpus", limits.max_gpus),
            why="more GPUs are needed than allowed",
            nearest=f"{number} would do: {row.gpu}, {bill} a month",
        )
    if limits.max_usd_per_gpu_hour is not None and (ranked := without("max_usd_per_gpu_hour").ranked):
        prices = [(row.instance_usd_per_hour * row.instances / row.gpus_paid, row) for row in ranked]
        price, row = min(prices, key=lambda priced: priced[0])
        yield Blame(
            constraint=option("max_price", f"{limits.max_usd_per_gpu_hour:g}"),
            why="no GPU that would do is sold for that",
            nearest=f"{row.gpu} at {row.provider} costs {usd(price)} a GPU-hour",
        )


def _nothing_to_choose_from(study: Study, kinds: set[Reason]) -> Iterator[Blame]:
    """Yield the most common reason why no candidate fits any machine, before any speed is known."""
    question, model, mean = study.question, study.question.model, study.question.load.workload
    priced = [offer for offer in question.offers if any(offer.price(term) for term in question.terms)]
    newest = min((offer.age_days(question.today) for offer in priced), default=0)
    if newest > MAX_AGE_DAYS and question.limits.max_age_days is None:
        yield Blame(
            constraint="prices up to a year old",
            why=f"every price is older, the newest {newest} days",
            nearest=f"run `tokonomics offers --refresh`, or take old prices with {option('max_age', newest)}",
        )
    elif not priced:
        sold = sorted(term for term in Terms if any(offer.price(term) is not None for offer in question.offers))
        yield Blame(
            constraint=option("terms", ", ".join(question.terms)),
            why="none of these offers has such a price",
            nearest=f"they are sold on: {', '.join(sold) or 'no terms at all'}",
        )
    elif old := _at_older_prices(question):
        yield Blame(
            constraint="the newest prices",
            why="the machines that would do have only prices that newer ones of their GPU show to be out of date",
            nearest=f"{option('max_age', old.age_days(question.today))}: {old.gpu} at {old.provider}, of {old.date}",
        )
    elif Reason.too_long in kinds:
        yield Blame(
            constraint=f"{option('input')}, {option('output')}",
            why=f"requests of {mean.input_tokens + mean.output_tokens:,.0f} tokens exceed {model.name}'s context",
            nearest=f"{model.max_context:,} tokens, prompt and answer together",
        )
    elif Reason.no_zones in kinds:
        constraint, nearest = option("spare", "zone"), f"{', '.join(ZONED)} have them"
        yield Blame(constraint=constraint, why="none of these sellers is known to have zones", nearest=nearest)
    elif Reason.assumed_speed in kinds:
        gpu = next(rejection.gpu for rejection in study.plan.rejected if rejection.kind is Reason.assumed_speed)
        why = "only GPUs whose speed is assumed would do: no kernels were timed on them, nor on a relative"
        yield Blame(constraint=option("gpu"), why=why, nearest=f"name one ({option('gpu', gpu)}), and measure it")
    elif Reason.host_too_small in kinds:
        yield _host_too_small(question)
    elif Reason.does_not_fit in kinds or Reason.instance_too_small in kinds:
        weights = min(question.weights or (model.served,), key=lambda precision: precision.bits)
        largest = max(question.offers, key=lambda offer: offer.gpus, default=None)
        machine = f"; the largest machine here has {largest.gpus} {largest.gpu}" if largest else ""
        size = gigabytes(model.weight_bytes(weights))
        yield Blame(
            constraint=f"{option('gpu')}, {option('provider')}, {option('offers')}",
            why=f"{model.name} needs {size} for its weights at {weights} alone{machine}",
            nearest=f"larger machines, or fewer bits ({option('weights', 'int4')})",
        )
    elif Reason.not_supported in kinds:
        case = next(rejection for rejection in study.plan.rejected if rejection.kind is Reason.not_supported)
        constraint = f"{option('engine')}, {option('weights')}, {option('kv')}"
        yield Blame(constraint=constraint, why=case.reason, nearest="another engine or precision")


def _at_older_prices(question: Question) -> Offer | None:
    """Return the newest offer of a machine that would do but for its price, which is out of date; None if none is."""
    limits = question.limits.model_copy(update={"max_age_days": MAX_AGE_DAYS})
    if question.limits.max_age_days is not None:
        return None
    found = prospects(replace(question, limits=limits), question.load)
    return max(
        (machine.offer for hosts in found for machine in hosts.machines), key=lambda offer: offer.date, default=None
    )


def _host_too_small(question: Question) -> Blame:
    """Name the machine that comes nearest; what was refused for its host's memory would fit its GPUs."""
    memory_gb: dict[Offer, float] = {}
    for offer in question.offers:
        unlimited = offer.model_copy(update={"memory_gb": None})
        memory_gb[unlimited] = max(memory_gb.get(unlimited, 0.0), offer.memory_gb or 0.0)
    fitting = prospects(replace(question, offers=list(memory_gb)), question.load)
    short = [(hosts.deployment, machine.offer) for hosts in fitting for machine in hosts.machines]
    deployment, offer = min(short, key=lambda pair: host_gib(pair[0], pair[1].gpus) - memory_gb[pair[1]])
    return Blame(
        constraint=f"{option('provider')}, {option('offers')}",
        why=f"no machine has memory enough beside its GPUs to load {question.model.name}: "
        f"the nearest, with {offer.gpus} {offer.gpu}, has {memory_gb[offer]:g} GB",
        nearest=f"{math.ceil(host_gib(deployment, offer.gpus)):,} GB would do",
    )
