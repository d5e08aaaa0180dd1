"""The traffic and the question that a plan is made for, from what was asked.

``rate``, ``input`` and ``output`` may be a range ``low:mid:high``, which makes three cases of a request.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.questions.inputs import Choice, Market, Objectives, PlanTraffic, SomeGpus
from tokonomics.questions.tables import prices_in, trace_in
from tokonomics.questions.traffic import number_above_0, open_log, rate_of, read_rate, window_of

if TYPE_CHECKING:
    from tokonomics.catalog.offers import Offer
    from tokonomics.planner.load import Load
    from tokonomics.planner.plan import Question
    from tokonomics.traffic.slo import Slo
    from tokonomics.traffic.trace import Trace

CASES = ("low", "mid", "high")
_MADE_UP = {"input", "output", "arrivals"}
_OF_A_LOG = {"trace", "columns", "start", "end"}
_ALSO_MADE_UP = {"duration", "system_prompts", "sessions", "tenants", "demand"}
_ALSO_OF_A_LOG = {"from", "to", "strict", "servegen_model", "servegen_scale"}


class PlanInputs(PlanTraffic, Choice, Market):
    """What every plan is made from: traffic, latency targets, hardware to choose from, whose prices."""


Asked = TypeVar("Asked", bound=PlanTraffic)


def cases_of(request: Asked) -> dict[str, Asked]:
    """The three cases of a request with ranges; itself alone without."""
    written = {name: getattr(request, name) for name in ("rate", "input", "output")}
    parts = {name: _range(value, name) for name, value in written.items() if value}
    if all(len(values) == 1 for values in parts.values()):
        return {"mid": request}
    return {
        case: request.model_copy(update={name: values[place % len(values)] for name, values in parts.items()})
        for place, case in enumerate(CASES)
    }


def replaced_by(given: Collection[str]) -> set[str]:
    """The inputs that others take the place of: themselves, and traffic of the other kind."""
    gone = set(given)
    if "trace" in gone:
        gone |= _MADE_UP | _ALSO_MADE_UP
    elif (_MADE_UP | _ALSO_MADE_UP) & gone:
        gone |= _OF_A_LOG | _ALSO_OF_A_LOG
    for one, other in (("rate", "tokens_per_month"), ("offline", "slo"), ("demand", "rate")):
        gone |= {other} if one in gone else {one} if other in gone else set()
    # Arrivals carry a rate of their own: gamma:7,cv=3.
    return gone | {"rate", "tokens_per_month"} if "arrivals" in given else gone


def questions_of(request: PlanInputs, models: Sequence[str], **more: Any) -> "list[Question]":
    """The request for each of its models; the traffic is the same requests for all."""
    from tokonomics.planner.parsing import listed

    names = listed(models, "model") or []
    if not names:
        raise BadInput("no model is named", fix="Such as: tokonomics plan llama-3.1-8b --rate 5 --input 1000 …")
    for name in names:
        _check_model(name)
    load, offers = load_of(request), offers_of(request, more.get("gpus"))
    return [question_of(request, name, load, offers, **more) for name in names]


def _check_model(name: str) -> None:
    """A name that is none is said before the traffic is missed: it may have been meant for a scenario's."""
    from tokonomics.catalog.load_models import find_model

    try:
        find_model(name)
    except UnknownName as unknown:
        if name in (".", "..") or Path(name).suffix.lower().startswith(".t"):
            unknown.fix = "A scenario's name ends in .toml: tokonomics plan chat.toml"
        raise


def question_of(
    request: PlanInputs,
    model_name: str,
    load: "Load",
    offers: "tuple[Offer, ...]",
    *,
    gpus: str | None = None,
    router: str | None = None,
    quick: bool = False,
    max_utilization: float | None = None,
    spare: int | None = None,
) -> "Question":
    """The request as the planner takes it."""
    from tokonomics.catalog.engines import all_engines, find_engine
    from tokonomics.catalog.load_models import find_model
    from tokonomics.clock import today
    from tokonomics.planner.parsing import gpu_filter, kv_for, limits_from, listed, router_from, terms_from, weights_for
    from tokonomics.planner.plan import Question

    model = find_model(model_name)
    _, most_gpus = gpu_filter(request.gpu, gpus)
    engines = listed(request.engine, "engine") or ["vllm"]
    names = [engine.key for engine in all_engines()] if engines == ["all"] else engines
    return Question(
        model=model,
        load=load,
        offers=offers,
        engines=tuple(find_engine(name) for name in names),
        today=today(),
        slos=targets_of(request),
        weights=weights_for(model, request.weights, request.min_weights),
        kv=kv_for(request.kv),
        terms=terms_from(request.terms),
        limits=limits_from(
            max_utilization=max_utilization,
            max_usd_per_gpu_hour=request.max_price,
            max_gpus=most_gpus,
            max_age_days=request.max_age,
            spare=spare,
        ),
        simulate=not quick,
        router=None if router is None else router_from(router),
    )


def offers_of(request: Market, gpus: str | None = None) -> "tuple[Offer, ...]":
    """The offers that its filters leave, at its discounts."""
    from tokonomics.planner.parsing import discounts_from, gpu_filter, offers_for

    wanted = request.gpu if isinstance(request, SomeGpus) else None
    names, _ = gpu_filter(wanted, gpus)
    sold = prices_in(request.offers)
    return offers_for(sold, request.provider, request.region, names, discounts_from(request.discount))


def targets_of(request: Objectives) -> "tuple[Slo, ...]":
    """The latency targets; none offline."""
    from tokonomics.traffic.slo import parse_slos

    if isinstance(request, PlanTraffic) and request.offline and request.slo:
        fix = f"Leave out {option('slo')} or {option('offline')}."
        raise BadInput("has no latency targets", field="offline", fix=fix)
    return parse_slos(request.slo) if request.slo is not None else ()


def load_of(request: PlanTraffic) -> "Load":
    """The traffic of a request without ranges."""
    from tokonomics.planner.load import load_of_log, load_of_shape

    rate = read_rate(request.rate) if request.rate is not None else None
    if rate is not None and request.tokens_per_month is not None:
        raise BadInput(f"says the same as {option('rate')}", field="tokens_per_month", fix="Give one of the two.")
    if request.trace is not None:
        for name in sorted(_MADE_UP):
            if getattr(request, name) is not None:
                raise BadInput("is for made-up requests, not for a log", field=name)
        trace, unusable = _log(request)
        if request.tokens_per_month is not None:
            rate = rate_of(request.tokens_per_month, float((trace.input_tokens + trace.output_tokens).mean()))
        load = load_of_log(trace, rate, unusable)
        return load.evenly() if request.offline else load
    for name in sorted(_OF_A_LOG - {"trace"}):
        if getattr(request, name) is not None:
            raise BadInput("is for a log, not for made-up requests", field=name)
    if request.input is None:
        shape = f"{option('input', 1000)} {option('output', 300)}"
        raise BadInput(
            "no traffic is given",
            fix=f"Say {option('rate', 5)} {shape}, {option('tokens_per_month', '2B')} {shape}, or "
            f"{option('trace', 'FILE')}.",
        )
    if request.tokens_per_month is not None:
        mean = load_of_shape(1.0, request.input, request.output, seed=request.seed).workload
        rate = rate_of(request.tokens_per_month, mean.input_tokens + mean.output_tokens)
    if rate is None and request.arrivals is None:
        raise BadInput(
            "how many requests a second?",
            field="rate",
            fix=f"Such as {option('rate', 5)}, or {option('tokens_per_month', '2B')}.",
        )
    # A batch can be fed evenly.
    arrivals = "constant:1" if request.offline and request.arrivals is None else request.arrivals
    return load_of_shape(rate, request.input, request.output, arrivals=arrivals, seed=request.seed)


def _log(request: PlanTraffic) -> "tuple[Trace, int]":
    """The requests of the log in its window, and how many rows could not be used."""
    from tokonomics.traffic.servegen import servegen_trace

    window = window_of(request.start, request.end)
    if not isinstance(request.trace, str):
        trace, unusable = trace_in(request.trace, request.columns, strict=False), 0
    elif (file := open_log(request.trace, request.columns)) is None:
        start_s, end_s = window or (0.0, float("inf"))
        last = None if end_s == float("inf") else end_s
        return servegen_trace(request.trace, start_s=start_s, end_s=last, seed=request.seed), 0
    else:
        trace, unusable = file.read(), file.problems.count
    trace = trace.window(*window) if window else trace
    if not len(trace):
        where = request.trace if isinstance(request.trace, str) else None
        raise BadInput("no request is left", where=where, fix=f"Widen {option('start')} and {option('end')}.")
    return trace, unusable


def _range(text: str, field: str) -> list[str]:
    """``10:20:40`` → its three parts, rising; anything else as it is (``lognormal:mean=800`` is no range)."""
    parts = [part.strip() for part in text.split(":")]
    if not all(re.fullmatch(r"[0-9.eE+-]+", part) for part in parts) or len(parts) == 1:
        return [text]
    numbers = [number_above_0(part, field) for part in parts]
    if len(parts) != len(CASES) or numbers != sorted(numbers):
        raise BadInput(f"'{shorten(text)}' is not low:mid:high", field=field, fix="Write such as 10:20:40.")
    return parts
