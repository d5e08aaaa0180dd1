"""Build the traffic and the planner's question from a request.

``rate``, ``input`` and ``output`` may be a range ``low:mid:high``, which makes three cases of a request.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.checkpoints import QuantisedPart, allowed_by_recovery, lossy_pairs
from tokonomics.catalog.engines import all_engines, find_engine
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offer_choice import list_prices
from tokonomics.catalog.offers import MAX_AGE_DAYS, STALE_AFTER_DAYS, Offer
from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.physics.deployment import Speculation
from tokonomics.planner.infeasible import Blame, blame
from tokonomics.planner.parsing import (
    NO_DRAFT,
    amount,
    draft_named,
    gpu_filter,
    kv_for,
    limits_from,
    listed,
    published_draft,
    reaching,
    router_from,
    share_of_quality,
    spare_from,
    terms_from,
    weights_for,
)
from tokonomics.planner.plan import Question, Study
from tokonomics.planner.plan_answer import KV_CHOICES, Catch, Limits
from tokonomics.planner.search import TABLE_ROWS
from tokonomics.questions.catalogue import allowed_of, certain_of, every_offer, listed_of
from tokonomics.questions.deployment import (
    NO_ANSWERS,
    check_jobs,
    check_pauses,
    classes_of,
    encodes,
    load_for,
    reading,
    targets_of,
)
from tokonomics.questions.inputs import Conversations, Drafting, ImageInputs, PlanInputs, PlanTraffic
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import CompareRequest, PlanRequest
from tokonomics.questions.traffic import number_above_0, prompts_of, rate_of, read_log, read_rate
from tokonomics.sizing.hosts import HOST_MEMORY
from tokonomics.sizing.layouts import weight_choices
from tokonomics.sizing.load import Load, load_of_log, load_of_shape
from tokonomics.traffic.generate import agent_in
from tokonomics.traffic.lengths import Lengths
from tokonomics.traffic.slo import Latency
from tokonomics.traffic.tenants import classed
from tokonomics.types import today
from tokonomics.units import plural

CASES = ("low", "mid", "high")
_MADE_UP = {"input", "output", "arrivals", "system_prompts", "sessions"}
_OF_A_LOG = {"columns", "start", "end"}
Asked = TypeVar("Asked", bound=PlanTraffic)
Catches = dict[Catch, dict[str, object]]


def cases_of(request: Asked) -> dict[str, Asked]:
    """Return the three cases of a request with ranges, or the request alone without any."""
    written = {name: getattr(request, name) for name in ("rate", "input", "output")}
    parts = {name: _range(value, name) for name, value in written.items() if value}
    if all(len(values) == 1 for values in parts.values()):
        return {"mid": request}
    return {
        case: request.model_copy(update={name: values[place % len(values)] for name, values in parts.items()})
        for place, case in enumerate(CASES)
    }


def refuse_several(request: Any) -> None:
    """Refuse a plan that has several answers: the library returns one."""
    several = len(request.model) > 1 or any("," in name for name in request.model)
    if several or len(cases_of(request)) > 1:
        what = "several models" if several else "a range of demand"
        ranged = ", ".join(name for name in ("rate", "input", "output") if getattr(request, name))
        fix = "Call plan() for each of them."
        raise BadInput(f"{what}: that is a plan each", field="model" if several else ranged, fix=fix)


def questions_of(request: PlanRequest | CompareRequest, quick: bool, listener: Listener = SILENT) -> list[Question]:
    """Return the request for each of its models; all share the same traffic."""
    names = listed(request.model, "model") or []
    if not names:
        example = f"llama-3.1-8b {option('rate', 5)} {option('input', 1000)} …"
        raise BadInput("no model is named", fix=f"Such as: tokonomics plan {example}")
    for name in names:
        _check_model(name)
    writes_nothing = encodes([find_model(name) for name in names], request.output, targets_of(request))
    load, offers = load_of(request, listener, writes_nothing), every_offer(request)
    if any(slo.latency is Latency.job for slo in targets_of(request)):
        for name in names:
            check_pauses(targets_of(request), load.within(find_model(name).max_context).trace)
    return [question_of(request, name, load, offers, quick) for name in names]


def _check_model(name: str) -> None:
    """Refuse an unknown model before missing traffic: the name may have been meant as a scenario file."""
    try:
        find_model(name)
    except UnknownName as unknown:
        if name in (".", "..") or Path(name).suffix.lower().startswith(".t"):
            unknown.fix = "A scenario's name ends in .toml: tokonomics plan chat.toml"
        elif any(api.model.casefold().rpartition("/")[2] == name.strip().casefold() for api in list_apis(match=name)):
            prices = f"`tokonomics apis {name.strip()}` has its prices"
            unknown.fix = f"It is sold as an API: {prices}. A plan needs a model whose weights are published."
        raise


def question_of(request: PlanInputs, model_name: str, load: Load, offers: tuple[Offer, ...], quick: bool) -> Question:
    """Return the request as the planner takes it; not every kind of plan has all of its inputs.

    ``offers`` are all that its filters leave. What a headline should not name by default is set aside.
    """
    images = request.images if isinstance(request, ImageInputs) else None
    model = reading(find_model(model_name), images)
    allowed = allowed_of(request, offers)
    given = dict.fromkeys(("gpus", "router", "spare", "disaggregate")) | dict(request)
    limits = {name: value for name, value in given.items() if name in Limits.model_fields}
    gpus, most_gpus = gpu_filter(request.gpu, given["gpus"])
    engines = listed(request.engine, "engine") or []  # none: each GPU with the engine that runs there
    names = [engine.key for engine in all_engines()] if engines == ["all"] else engines
    named = gpus is not None or request.offers is not None
    floor = share_of_quality(request.min_recovery)
    weights, left_out = reaching(model, weights_for(model, request.weights, request.min_weights), floor)
    kv, kv_left_out = reaching(model, _kv_of(request, model), floor, "kv")
    lossy = lossy_pairs(model, weights, kv, floor or 0.0)
    pairs_left_out = {f"{pair[0]} with KV {pair[1]}": reason for pair, reason in lossy.items()}
    draft = draft_of(request, model) if isinstance(request, PlanRequest) else None
    question = Question(
        model=model,
        load=load_for(model, load),
        offers=allowed,
        engines=tuple(find_engine(name) for name in names),
        today=today(),
        slos=targets_of(request),
        weights=weights,
        kv=kv,
        drafts=(draft,) if draft else (),
        lossy=frozenset(lossy),
        not_tried=left_out | kv_left_out | pairs_left_out,
        terms=terms_from(request.terms),
        limits=limits_from(
            **limits
            | {"max_usd_per_gpu_hour": request.max_price, "max_gpus": most_gpus, "max_age_days": request.max_age}
            | {"spare": spare_from(given["spare"])}
        ),
        rows=(request.top if isinstance(request, PlanRequest) else None) or TABLE_ROWS,
        simulate=not quick,
        router=None if given["router"] is None else router_from(given["router"]),
        assumed_speeds=named,
        assumed_networks=False,
        consumer_cards=named,
        disaggregate=bool(given["disaggregate"]),
        tiers=_tiers(request, load) if isinstance(request, PlanRequest) else None,
    )
    catches: Catches = {}
    days = [offer.date for offer in allowed]
    if request.max_age is None and days and (max(days) - min(days)).days > STALE_AFTER_DAYS:
        catches[Catch.old_price] = {"limits": question.limits.model_copy(update={"max_age_days": MAX_AGE_DAYS})}
    if isinstance(request, PlanRequest):
        catches |= _catches(request, question, offers)
    catches |= {catch: {name: True} for catch, name in _DOUBTS.items() if not getattr(question, name)}
    return replace(question, catches=catches)


_DOUBTS = {
    Catch.assumed_speed: "assumed_speeds",
    Catch.assumed_network: "assumed_networks",
    Catch.consumer_cards: "consumer_cards",
}
"""The catches of every plan, and the field of the question that lets them in."""


def _kv_of(request: PlanInputs, model: ModelSpec) -> tuple[Precision, ...]:
    """Return the KV cache precisions to try; an encoder has none."""
    if model.is_encoder and request.kv is not None:
        fix = f"Leave out {option('kv')}."
        raise BadInput(f"{model.name} is an encoder: it keeps no KV cache", field="kv", fix=fix)
    return kv_for(model, request.kv)


def draft_of(request: Drafting, model: ModelSpec) -> Speculation | None:
    if request.draft is None or request.draft.strip().lower() == NO_DRAFT:
        for field in ("draft_tokens", "acceptance"):
            if getattr(request, field) is not None:
                fix = f"Name what drafts: {option('draft', 'mtp')}."
                raise BadInput("is for a draft, and none is named", field=field, fix=fix)
        return None
    return draft_named(request.draft, model, request.draft_tokens, request.acceptance)


def _tiers(request: PlanRequest, load: Load) -> str | None:
    """Return the KV memory that comes with machines, if prompts share anything to keep in it."""
    text = request.tiers
    if text is None:
        return None
    if load.trace.prefix is None:
        fix = f"Give {option('sessions')} or {option('system_prompts')}, or a log with hashes of its prompts."
        raise BadInput("keep what prompts share, and these share nothing", field="tiers", fix=fix)
    if text.strip().lower() == HOST_MEMORY:
        return HOST_MEMORY
    if not all(part.strip().endswith("@0") for part in text.split(",")):
        fix = "Write @0 behind what is paid for with the machine: dram=200@0; of more, ask `tokonomics cache`."
        raise BadInput("are those that machines come with", field="tiers", fix=fix)
    return text


def _catches(request: PlanRequest, question: Question, offers: tuple[Offer, ...]) -> Catches:
    """Return what a plan sets aside below its pick; ``offers`` include those that a headline may not name."""
    catches: Catches = {}
    for catch, wider in (
        (Catch.marketplace, certain_of(request, offers)),
        (Catch.uncertain_place, listed_of(request, offers)),
    ):
        if len(wider) > len(question.offers):
            catches[catch] = {"offers": wider}
    model, floor = question.model, share_of_quality(request.min_recovery) or 0.0

    def allowed(precisions: tuple[Precision, ...], part: QuantisedPart = "weights") -> tuple[Precision, ...]:
        return allowed_by_recovery(model, precisions, floor, part)[0] if floor else precisions

    named = request.weights is not None or request.min_weights is not None
    weights = question.weights if named else allowed(weight_choices(model, floor=None))
    kv = question.kv if request.kv is not None or model.is_encoder else allowed(KV_CHOICES, "kv")
    if (weights, kv) != (question.weights, question.kv):
        lossy = lossy_pairs(model, weights or (), kv, floor)
        catches[Catch.fewer_bits] = {"weights": weights, "kv": kv, "lossy": frozenset(lossy)}
    if request.draft is None and (published := published_draft(model)):
        catches[Catch.drafting] = {"drafts": (published,)}
    if request.tiers is None and question.load.trace.prefix is not None and question.simulate:
        catches[Catch.offload] = {"tiers": HOST_MEMORY}
    waits = question.load.trace.turns is not None  # turns wait for answers: not simulated if disaggregated
    if not question.disaggregate and not model.is_encoder and not waits:
        catches[Catch.disaggregated] = {"disaggregate": True}
    return catches


def say_not_tried(question: Question, listener: Listener) -> None:
    """Note the precisions left out for their quality, for an answer that has no place for them."""
    for name, reason in question.not_tried.items():
        listener.note(f"{question.model.name}: {name} is not tried: {reason}")


def blamed(request: PlanInputs, study: Study) -> Iterator[Blame]:
    """Yield what prevents a plan that found nothing."""
    filters = {name: getattr(request, name) for name in ("provider", "region", "sellers", "gpu")}
    narrowed = {name: ",".join(value) for name, value in filters.items() if value}
    everywhere = every_offer(request.model_copy(update=dict.fromkeys(filters))) if narrowed else ()
    return blame(study, narrowed, list_prices(everywhere))


def load_of(request: PlanTraffic, listener: Listener = SILENT, writes_nothing: bool = False) -> Load:
    """Return the requests to plan for; sessions of a log at another rate last long enough to offer it for a while."""
    load = load_once(request, listener, writes_nothing)
    if request.trace is None or (request.rate is None and request.tokens_per_month is None):
        return load
    return lasting(load, listener)


def load_once(request: PlanTraffic, listener: Listener = SILENT, writes_nothing: bool = False) -> Load:
    """Return the requests to plan for, each of a log once, in their classes if there are any."""
    load = _load_of(request, listener, writes_nothing)
    trace = classed(load.trace, classes_of(request), request.seed)
    return replace(load, trace=trace, headroom=request.headroom or 0.0)


def lasting(load: Load, listener: Listener) -> Load:
    """Repeat a log's sessions until its whole load is offered for a while, and say so."""
    made, turns = load.lasting, load.trace.turns
    times = len(made.trace) // len(load.trace)
    if times > 1 and turns is not None:
        few = f"the log's {plural(turns.sessions, 'session')} are repeated {times:,} times"
        listener.note(f"{few}, for a steady load of {load.workload.rate:.3g} requests a second")
    return made


def _load_of(request: PlanTraffic, listener: Listener = SILENT, writes_nothing: bool = False) -> Load:
    """Return the requests to plan for, from a log or generated; without answers if nothing is written."""
    outputs: Lengths | str | None = NO_ANSWERS if writes_nothing else request.output
    rate = read_rate(request.rate) if request.rate is not None else None
    if rate is not None and request.tokens_per_month is not None:
        raise BadInput(f"says the same as {option('rate')}", field="tokens_per_month", fix="Give one of the two.")
    if request.trace is not None:
        for name in sorted(_MADE_UP):
            if getattr(request, name, None) is not None:
                raise BadInput("is for made-up requests, not for a log", field=name)
        trace, file = read_log(request, listener)
        if not len(trace):
            where = request.trace if isinstance(request.trace, str) else None
            raise BadInput("no request is left", where=where, fix=f"Widen {option('start')} and {option('end')}.")
        if request.tokens_per_month is not None:
            rate = rate_of(request.tokens_per_month, float((trace.input_tokens + trace.output_tokens).mean()))
        check_jobs(targets_of(request), trace)
        load = load_of_log(trace, rate, file.problems.count if file else 0)
        return load.evenly() if request.offline else load
    for name in sorted(_OF_A_LOG):
        if getattr(request, name) is not None:
            raise BadInput("is for a log, not for made-up requests", field=name)
    agent = agent_in(request.sessions) if isinstance(request, Conversations) else None
    inputs = agent.inputs if agent and request.input is None else request.input
    outputs = agent.outputs if agent and outputs is None else outputs
    asked = (rate, request.tokens_per_month, request.arrivals, request.output)
    if inputs is None and any(value is not None for value in asked):
        answers = "" if outputs is not None else f" {option('output', 300)}"
        fix = f"Such as {option('input', 1000)}{answers}."
        raise BadInput("is missing: how long are the prompts?", field="input", fix=fix)
    if inputs is None:
        shape = f"{option('input', 1000)} {option('output', 300)}"
        raise BadInput(
            "no traffic is given",
            fix=f"Say {option('rate', 5)} {shape}, {option('tokens_per_month', '2B')} {shape}, or "
            f"{option('trace', 'FILE')}.",
        )
    prompts: dict[str, Any] = prompts_of(request) if isinstance(request, Conversations) else {}
    if request.tokens_per_month is not None:
        mean = load_of_shape(1.0, inputs, outputs, seed=request.seed, **prompts).workload
        rate = rate_of(request.tokens_per_month, mean.input_tokens + mean.output_tokens)
    if rate is None and request.arrivals is None:
        raise BadInput(
            "how many requests a second?",
            field="rate",
            fix=f"Such as {option('rate', 5)}, or {option('tokens_per_month', '2B')}.",
        )
    # A batch can be sent evenly.
    arrivals = "constant:1" if request.offline and request.arrivals is None else request.arrivals
    load = load_of_shape(rate, inputs, outputs, arrivals=arrivals, seed=request.seed, **prompts)
    check_jobs(targets_of(request), load.trace)
    return load


def _range(text: str, field: str) -> list[str]:
    """Split ``10:20:40`` into its rising parts; return anything else unchanged (``lognormal:mean=800`` is no range)."""
    parts = [part.strip() for part in text.split(":")]
    if not all(re.fullmatch(r"[0-9.eE+-]+[kKmM]?", part) for part in parts) or len(parts) == 1:
        return [text]
    numbers = [number_above_0(part, field) if field == "rate" else amount(part, field, "500:1k:2k") for part in parts]
    if len(parts) != len(CASES) or numbers != sorted(numbers):
        raise BadInput(f"'{shorten(text)}' is not low:mid:high", field=field, fix="Write such as 10:20:40.")
    return parts
