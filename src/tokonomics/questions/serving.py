"""Find what serves a request: a deployment, a fleet of it, its price, and models beside it on one GPU.

Each further model is written as ``model_text`` reads it. What it does not say is as for the first, except the rate.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import NoOffer, prices_that_count, within_age
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput, option, shorten
from tokonomics.money.cost import require_positive
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.planner.parsing import router_from
from tokonomics.questions.api_beside import hosts_beside
from tokonomics.questions.by_hour import swing_of
from tokonomics.questions.catalogue import offers_of
from tokonomics.questions.inputs import Drafting, Priced
from tokonomics.questions.load import cases_of, draft_of, questions_of
from tokonomics.questions.request import Listener, model_in
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import AskedModel, PlanResult, PlanTogether
from tokonomics.questions.traffic import read_time
from tokonomics.serving.compiled import must_compile, must_translate
from tokonomics.serving.fleet_settings import (
    FIRST_BACKOFF_S,
    LINK_BYTES_PER_S,
    Autoscale,
    FleetSettings,
    Outage,
    link_speed,
)
from tokonomics.sizing.hosts import cheapest_host
from tokonomics.sizing.load import Load, load_of_requests
from tokonomics.sizing.search import NeverHolds, cannot_serve
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.grammar import Phrase, read_options
from tokonomics.traffic.trace import Trace
from tokonomics.types import today

if TYPE_CHECKING:
    from tokonomics.questions.requests.traffic import SimulateRequest

AS_GIVEN = "as given"  # the source of a price that was not looked up


def drafting(deployment: Deployment, request: Drafting, listener: Listener) -> Deployment:
    """Return the deployment with the requested draft, and note the source of its acceptance."""
    draft = draft_of(request, deployment.model)
    if draft is None:
        return deployment
    said = f"published: {draft.source}" if draft.source else f"acceptance {draft.acceptance:g} as given"
    listener.note(f"{draft.name} yields {draft.tokens_per_round:.2f} tokens a round; {said}")
    return deployment.model_copy(update={"speculation": draft})


def check_servable(requests: Trace, deployment: Deployment) -> None:
    """Refuse traffic of which no request can be served, before any simulation; for sessions, if none can begin."""
    if not len(requests):
        return
    tokens = requests.input_tokens.astype(np.int64) + requests.output_tokens
    first = np.arange(len(requests)) if requests.turns is None else requests.turns.roots
    shortest = np.array([first[np.argmin(tokens[first])]], np.intp)
    alone = load_of_requests(replace(requests, turns=None).take(shortest))
    if refusal := cannot_serve(Setup(deployment, alone)):
        raise NeverHolds(refusal, f"{deployment}: ")


def within_context(requests: Trace, deployment: Deployment, listener: Listener) -> Trace:
    """Return the requests that fit the model's context; leave out the others, as a plan does, and count them."""
    check_servable(requests, deployment)
    context = deployment.model.max_context
    load = load_of_requests(requests).within(context)
    say_left_out(load, context, listener)
    return load.trace


def say_left_out(load: Load, context: int, listener: Listener) -> None:
    """Note the requests of a log that the figures leave out."""
    if load.bad_rows:
        listener.note(f"{load.bad_rows:,} rows of the log could not be used: see `tokonomics trace`")
    if load.too_long:
        many = load.too_long + len(load.trace)
        listener.note(
            f"{load.too_long:,} of {many:,} requests are longer than the model's {context:,} tokens of context: "
            "left out"
        )


def say_if_compiling(listener: Listener) -> None:
    """Say why the first simulation on a machine takes a while: it compiles its loop."""
    if must_compile():
        takes = "half a minute, as no code for the LLVM here was shipped" if must_translate() else "a few seconds"
        listener.note(f"compiling the simulator, once on this machine: {takes} …")


def fleet_of(
    replicas: int = 1,
    router: str = "least-outstanding",
    autoscale: str | None = None,
    outages: Sequence[str] | None = None,
    timeout: str | None = None,
) -> FleetSettings:
    """Return a checked fleet; one replica by default."""
    return FleetSettings(
        **_retries(timeout),
        replicas=replicas,
        router=router_from(router),
        autoscale=_autoscale(autoscale) if autoscale is not None else None,
        outages=tuple(_outage(text) for text in outages or ()),
    )


def apart(fleet: FleetSettings, request: "SimulateRequest", decode: Deployment) -> FleetSettings:
    """Add prefill replicas to the fleet, if the request asks for them."""
    for name in ("prefill_gpu", "prefill_tp", "link"):
        if getattr(request, name) is not None and not request.prefill_replicas:
            fix = f"Give {option('prefill_replicas')} as well."
            raise BadInput("is for disaggregated fleets", field=name, fix=fix)
    if not request.prefill_replicas:
        return fleet
    prefill = _prefill_side(request, decode)
    link = LINK_BYTES_PER_S if request.link is None else link_speed(request.link, decode.gpu, prefill.gpu)
    return fleet.model_copy(
        update={
            "prefill_replicas": request.prefill_replicas,
            "prefill": None if prefill == decode else prefill,
            "link_bytes_per_s": link,
        }
    )


def _prefill_side(request: "SimulateRequest", decode: Deployment) -> Deployment:
    """Return the prefill deployment: like the decode one, on another GPU or more or fewer of them."""
    gpu = decode.gpu if request.prefill_gpu is None else find_gpu(request.prefill_gpu)
    split = {"tp": decode.tp, "pp": decode.pp, "ep": decode.ep, "dp": decode.dp}
    if request.prefill_tp is not None:
        # Split experts over all ranks if the other side does.
        split = {"tp": request.prefill_tp, "ep": request.prefill_tp if decode.ep > 1 else 1}
    made = deploy(decode.model, gpu, decode.engine, **split, weights=decode.weights, kv=decode.kv)
    return made.model_copy(update={"speculation": decode.speculation})


def _autoscale(text: str) -> Autoscale:
    names = {"min": "min_replicas", "max": "max_replicas", "target": "target", "cold": "cold_start_s"}
    names |= {"interval": "interval_s", "hold": "hold_s"}
    fix = "Write such as max=8,target=32,cold=120: at most 8 replicas, one for 32 requests, 120 s to start."
    settings = _named(text, names, "autoscale", fix)
    with suppress(ValidationError):
        scale = Autoscale.model_validate(settings)
        if scale.min_replicas <= scale.max_replicas <= 10_000:
            return scale
    raise BadInput(f"'{shorten(text)}' is no autoscaling", field="autoscale", fix=fix)


def _outage(text: str) -> Outage:
    names = {"replica": "replica", "at": "at_s", "for": "down_s", "notice": "notice_s", "spot": "reclaimed"}
    fix = "Write such as replica=0,at=600,for=300,notice=120,spot=1: seconds; without 'for' it never comes back."
    settings = _named(text, names, "outage", fix)
    with suppress(ValidationError):
        return Outage.model_validate(settings)
    raise BadInput(f"'{shorten(text)}' is no outage", field="outage", fix=fix)


def _named(text: str, names: dict[str, str], field: str, fix: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (side.strip() for side in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in names or not math.isfinite(number) or names[name] in numbers:
            raise BadInput(f"'{shorten(part.strip())}' is not understood", field=field, fix=fix)
        numbers[names[name]] = int(number) if number == int(number) else number
    return numbers


def timeout_of(text: str | None) -> float:
    """Return the seconds after which clients hang up; never by default."""
    given = read_time(None if text is None else text.partition(",")[0], "timeout")
    if given is None:
        return math.inf
    if not given > 0:
        raise BadInput(f"must be above 0, got {shorten(text or '')}", field="timeout")
    return given


def _retries(text: str | None) -> dict[str, Any]:
    """Return how often and how much later clients that hung up try again: ``30,retries=2,backoff=5``."""
    if text is None or "," not in text:
        return {}
    phrase = read_options(Phrase(text, "", None, {}, "timeout", "30, 30,retries=2, 2m,retries=3,backoff=5"), text)
    phrase.allow("retries", "backoff")
    retries = phrase.number("retries", 0, 20)
    if retries != int(retries):
        raise phrase.wrong("retries= must be a whole number")
    return {"retries": int(retries), "backoff_s": phrase.time_s("backoff", 0, 86_400, FIRST_BACKOFF_S)}


def prices_of(deployment: Deployment, priced: Priced) -> Callable[[int], tuple[float, str]]:
    """Return a function from the replicas to one's dollars an hour and the price's source (machines are shared)."""

    def of(count: int) -> tuple[float, str]:
        if priced.usd_per_hour is not None:
            return require_positive("usd_per_hour", priced.usd_per_hour) * deployment.gpus, AS_GIVEN
        offer, price = cheapest_host(deployment, count, offers_of(priced))
        return price / count, offer.quoted(today())

    of(1)
    return of


def price_of(deployment: Deployment, fleet: FleetSettings, priced: Priced) -> tuple[float, str] | None:
    """Return the dollars an hour of one replica, and the source of the price; None if no offer is known.

    A fixed number of replicas shares whole machines; replicas that come and go take their own.
    """
    come_and_go = fleet.autoscale is not None or any(outage.reclaimed for outage in fleet.outages)
    with suppress(NoOffer):
        return prices_of(deployment, priced)(1 if come_and_go else fleet.replicas + fleet.prefill_replicas)
    return None


def prices_apart(deployment: Deployment, fleet: FleetSettings, priced: Priced) -> tuple[float, float, str] | None:
    """Return the dollars an hour of one replica of each side, prefill first, and the source of the prices.

    Different sides have machines of their own, of one provider in one region: KV is not sent further.
    """
    if fleet.prefill is None or priced.usd_per_hour is not None:
        found = price_of(deployment, fleet, priced)
        first = price_of(fleet.prefill or deployment, fleet, priced)
        return (first[0], *found) if first and found else None
    either = deployment.gpu.key, fleet.prefill.gpu.key
    known = [offer for offer in offers_of(priced) if offer.gpu in either and offer.usd_per_hour is not None]
    sold: dict[tuple[str, str], list[Offer]] = defaultdict(list)
    for offer in prices_that_count(within_age(known, today()), Terms.on_demand):  # before they are told apart by place
        sold[offer.provider, offer.region].append(offer)
    ways = []
    for offers in sold.values():
        with suppress(NoOffer):
            first_offer, prompts = cheapest_host(fleet.prefill, fleet.prefill_replicas, offers)
            offer, answers = cheapest_host(deployment, fleet.replicas, offers)
            quoted = " and ".join(dict.fromkeys(one.quoted(today()) for one in (first_offer, offer)))
            ways.append((prompts + answers, prompts / fleet.prefill_replicas, answers / fleet.replicas, quoted))
    return min(ways)[1:] if ways else None


MOST_MODELS = 8  # on one GPU, including the first
_ALONE = (
    "quick", "disaggregate", "deploy", "why", "explain", "sell", "margin", "spare", "tiers", "draft", "thinking",
    "images", "max_utilization", "sessions", "headroom",
)  # fmt: skip
"""Inputs that a plan of several models does not take."""
_TRAFFIC = ("tokens_per_month", "arrivals", "trace", "columns", "start", "end", "system_prompts")


def plan_beside(request: PlanRequest, listener: Listener) -> PlanResult:
    """Compare the ways to serve the model and those beside it, with the plan of the first on its own machines."""
    from tokonomics.planner.shared_gpu import crossing, shared_plan  # Slow to load, so only when used.
    from tokonomics.planner.shared_ways import tenants_of

    alone = requests_of(request)
    questions = [question for asked in alone for question in questions_of(asked, False, listener)]
    say_if_compiling(listener)
    for question in questions:
        say_left_out(question.load.within(question.model.max_context), question.model.max_context, listener)
    tenants = tenants_of(questions)
    ways = shared_plan(tenants, listener.simulating)
    first = tenants[0].own
    asked = tuple(
        AskedModel(
            model=tenant.question.model.key,
            name=tenant.question.model.name,
            workload=tenant.load.workload,
            slos=tenant.question.slos,
            swing=swing_of(said, tenant.load),
        )
        for tenant, said in zip(tenants, alone, strict=True)
    )
    shares = {part.model: part.usd_per_month for part in ways.best.models} if ways.best else {}
    apis = {
        tenant.question.model.key: api
        for tenant, said in zip(tenants, alone, strict=True)
        if (api := hosts_beside(said, tenant.question, said.model[0], shares.get(tenant.question.model.key), {})[1])
    }
    together = PlanTogether(**dict(ways), asked=asked, crossing=crossing(tenants, ways, listener.simulating), apis=apis)
    return PlanResult(**dict(first.plan) | {"ranked": first.plan.ranked[: request.top]}, together=together, study=first)


def requests_of(request: PlanRequest) -> list[PlanRequest]:
    """Return the request for each model: the first as given, the others with their own traffic and SLOs."""
    others = [model_in(text) for text in request.beside or ()]
    if len(request.model) > 1 or "," in request.model[0]:
        raise BadInput("is for one model and those beside it", field="beside", fix="Name one model first.")
    if not 1 <= len(others) < MOST_MODELS:
        raise BadInput(f"{MOST_MODELS} models share a GPU at the most, got {len(others) + 1}", field="beside")
    for name in _ALONE:
        if getattr(request, name):
            raise BadInput("is for one model", field=name, fix=f"Leave out {option(name)} or {option('beside')}.")
    if len(cases_of(request)) > 1:
        raise BadInput("a range is for one model", field="rate, input, output")
    first = request.model_copy(update={"beside": None})
    return [first, *(_beside(first, said) for said in others)]


def _beside(first: PlanRequest, said: dict[str, str]) -> PlanRequest:
    alone = dict.fromkeys(_TRAFFIC)
    own = {name: said.get(name, getattr(first, name)) for name in ("input", "output", "slo")}
    return first.model_copy(update={**alone, **own, "rate": said["rate"], "model": (said["model"],)})
