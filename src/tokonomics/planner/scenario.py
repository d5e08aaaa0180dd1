"""What a user wants served, in the words of the flags: models, traffic, promises, limits.

Every field is a flag of ``tokonomics plan`` with underscores for hyphens, and holds what one would type there; lists
may be written as such. ``rate``, ``input`` and ``output`` may be a range ``low:mid:high``, which makes three cases of
the scenario.
"""

import re
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from tokonomics.catalog.engines import all_engines, find_engine
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput, UnknownName, nearest, option, shorten
from tokonomics.planner.load import Load, load_of_log, load_of_shape
from tokonomics.planner.parsing import (
    amount,
    discounts_from,
    gpu_filter,
    kv_for,
    limits_from,
    listed,
    offers_for,
    router_from,
    terms_from,
    weights_for,
)
from tokonomics.planner.plan import Question
from tokonomics.traffic.promises import Promise, parse_promises
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.recognise import DescribesClients
from tokonomics.traffic.servegen import servegen_trace
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR

_SECONDS_PER_MONTH = HOURS_PER_MONTH * SECONDS_PER_HOUR
_LEAST_RATE, _MOST_RATE = 1e-9, 1e9
"""Requests a second that a ``Workload`` takes."""
CASES = ("low", "mid", "high")


def _text(value: object) -> object:
    """Numbers may be written without quotes."""
    return repr(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _texts(value: object) -> object:
    return [_text(value)] if isinstance(value, str | int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text), Field(min_length=1)]
Texts = Annotated[tuple[Annotated[str, BeforeValidator(_text)], ...], BeforeValidator(_texts)]
"""Their own readers say what an empty one should be."""


class Scenario(Noun):
    """A question to the planner, as it was written."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)

    model: Texts = ()
    """One, or several to compare."""
    rate: Text | None = None
    """Requests a second: a number or low:mid:high."""
    tokens_per_month: Text | None = None
    """Instead of a rate: prompt and answer tokens together, such as 2B."""
    input: Text | None = None
    output: Text | None = None
    arrivals: Text | None = None
    trace: Text | None = None
    columns: Text | None = None
    start: Text | None = Field(default=None, alias="from")
    end: Text | None = Field(default=None, alias="to")
    seed: int = Field(default=0, ge=0, lt=2**63)
    slo: Text | None = None
    offline: bool = False
    gpu: Texts | None = None
    gpus: Text | None = None
    provider: Texts | None = None
    region: Texts | None = None
    terms: Texts | None = None
    discount: Texts | None = None
    offers: Text | None = None
    max_price: float | None = None
    max_age: Annotated[int, Field(strict=True)] | None = None
    weights: Texts | None = None
    min_weights: Text | None = None
    kv: Texts | None = None
    engine: Texts | None = None
    router: Text | None = None
    max_utilization: float | None = None
    spare: Annotated[int, Field(strict=True)] | None = None
    quick: bool = False
    """The closed form alone, without simulation."""

    def cases(self) -> dict[str, "Scenario"]:
        """The three cases of a scenario with ranges; itself alone without."""
        parts = {name: _range(value, name) for name in ("rate", "input", "output") if (value := self._get(name))}
        if all(len(values) == 1 for values in parts.values()):
            return {"mid": self}
        return {
            case: self.model_copy(update={name: values[place % len(values)] for name, values in parts.items()})
            for place, case in enumerate(CASES)
        }

    def _get(self, name: str) -> str | None:
        value = getattr(self, name)
        return None if value is None else str(value)

    def over(self, flags: Mapping[str, object]) -> "Scenario":
        """With what was typed beside it; a flag that names other traffic replaces the file's."""
        given = {
            name: value for name, value in flags.items() if value is not None and value is not False and value != ()
        }
        kept = self.model_dump(exclude_unset=True, exclude=replaced_by(given))
        return scenario_from({**kept, **given})


_MADE_UP = {"input", "output", "arrivals"}
_OF_A_LOG = {"trace", "columns", "start", "end"}
_ALSO_MADE_UP = {"duration", "system_prompts", "sessions", "tenants", "demand"}
_ALSO_OF_A_LOG = {"from", "to", "strict", "servegen_model", "servegen_scale"}


def replaced_by(given: Collection[str]) -> set[str]:
    """The words of a scenario that others take the place of: themselves, and traffic of the other kind."""
    gone = set(given)
    if "trace" in gone:
        gone |= _MADE_UP | _ALSO_MADE_UP
    elif (_MADE_UP | _ALSO_MADE_UP) & gone:
        gone |= _OF_A_LOG | _ALSO_OF_A_LOG
    for one, other in (("rate", "tokens_per_month"), ("offline", "slo"), ("demand", "rate")):
        gone |= {other} if one in gone else {one} if other in gone else set()
    # Arrivals carry a rate of their own: gamma:7,cv=3.
    return gone | {"rate", "tokens_per_month"} if "arrivals" in given else gone


def scenario_from(values: Mapping[str, object], where: str | None = None) -> Scenario:
    """A checked scenario; an unknown or unusable key says so."""
    names = {field.alias or name for name, field in Scenario.model_fields.items()} | set(Scenario.model_fields)
    for name in values:
        if name not in names:
            guess = nearest(name, names, 1)
            raise BadInput(
                f"unknown key '{shorten(name)}'", where=where, fix=f"Did you mean {guess[0]}?" if guess else None
            )
    try:
        return Scenario.model_validate(dict(values))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        what = f"{shorten(str(problem['input']))} is not usable: {problem['msg'].lower()}"
        if where:
            raise BadInput(what, where=f"{where}: {name}") from None
        raise BadInput(what, field={"from": "start", "to": "end"}.get(name, name)) from None


def questions_of(scenario: Scenario, today: date) -> list[Question]:
    """The scenario for each of its models; the traffic is the same requests for all."""
    if not scenario.model:
        raise BadInput("no model is named", fix="Such as: tokonomics plan llama-3.1-8b --rate 5 --input 1000 …")
    names = listed(scenario.model, "model", by_position=True) or []
    for name in names:
        _check_model(name)
    load, offers = load_of(scenario), offers_of(scenario)
    return [question_of(scenario, name, load, offers, today) for name in names]


def _check_model(name: str) -> None:
    """A name that is none is said before the traffic is missed: it may have been meant for a scenario's."""
    try:
        find_model(name)
    except UnknownName as unknown:
        if name in (".", "..") or Path(name).suffix.lower().startswith(".t"):
            unknown.fix = "A scenario's name ends in .toml: tokonomics plan chat.toml"
        raise


def question_of(scenario: Scenario, model_name: str, load: Load, offers: tuple[Offer, ...], today: date) -> Question:
    """The scenario as the planner takes it."""
    model = find_model(model_name)
    _, most_gpus = gpu_filter(scenario.gpu, scenario.gpus)
    engines = listed(scenario.engine, "engine") or ["vllm"]
    names = [each.key for each in all_engines()] if engines == ["all"] else engines
    return Question(
        model=model,
        load=load,
        offers=offers,
        engines=tuple(find_engine(name) for name in names),
        today=today,
        promises=promises_of(scenario),
        weights=weights_for(model, scenario.weights, scenario.min_weights),
        kv=kv_for(scenario.kv),
        terms=terms_from(scenario.terms),
        limits=limits_from(
            max_utilization=scenario.max_utilization,
            max_usd_per_gpu_hour=scenario.max_price,
            max_gpus=most_gpus,
            max_age_days=scenario.max_age,
            spare=scenario.spare,
        ),
        simulate=not scenario.quick,
        router=None if scenario.router is None else router_from(scenario.router),
    )


def offers_of(scenario: Scenario) -> tuple[Offer, ...]:
    """The offers that its filters leave, at its discounts."""
    names, _ = gpu_filter(scenario.gpu, scenario.gpus)
    path = Path(scenario.offers) if scenario.offers else None
    return offers_for(path, scenario.provider, scenario.region, names, discounts_from(scenario.discount))


def promises_of(scenario: Scenario) -> tuple[Promise, ...]:
    """What is promised; nothing offline."""
    if scenario.offline and scenario.slo:
        raise BadInput("promises nothing", field="offline", fix=f"Leave out {option('slo')} or {option('offline')}.")
    return parse_promises(scenario.slo) if scenario.slo is not None else ()


def load_of(scenario: Scenario) -> Load:
    """The traffic of a scenario without ranges."""
    rate = read_rate(scenario.rate) if scenario.rate is not None else None
    if rate is not None and scenario.tokens_per_month is not None:
        raise BadInput(f"says the same as {option('rate')}", field="tokens_per_month", fix="Give one of the two.")
    if scenario.trace is not None:
        for name in sorted(_MADE_UP):
            if scenario._get(name):
                raise BadInput("is for made-up requests, not for a log", field=name)
        trace, unusable = _log(scenario)
        if scenario.tokens_per_month is not None:
            rate = rate_of(scenario.tokens_per_month, float((trace.input_tokens + trace.output_tokens).mean()))
        load = load_of_log(trace, rate, unusable)
        return load.evenly() if scenario.offline else load
    for name in sorted(_OF_A_LOG - {"trace"}):
        if scenario._get(name):
            raise BadInput("is for a log, not for made-up requests", field=name)
    if scenario.input is None:
        raise BadInput(
            "no traffic is given",
            fix=f"Say {option('rate', 5)} {option('input', 1000)} {option('output', 300)}, "
            f"{option('tokens_per_month', '2B')} {option('input', '…')} {option('output', '…')}, "
            f"or {option('trace', 'FILE')}.",
        )
    if scenario.tokens_per_month is not None:
        shape = load_of_shape(1.0, scenario.input, scenario.output, seed=scenario.seed).workload
        rate = rate_of(scenario.tokens_per_month, shape.input_tokens + shape.output_tokens)
    if rate is None and scenario.arrivals is None:
        raise BadInput(
            "how many requests a second?",
            field="rate",
            fix=f"Such as {option('rate', 5)}, or {option('tokens_per_month', '2B')}.",
        )
    # A batch can be fed evenly.
    arrivals = scenario.arrivals or ("constant:1" if scenario.offline else None)
    return load_of_shape(rate, scenario.input, scenario.output, arrivals=arrivals, seed=scenario.seed)


def _log(scenario: Scenario) -> tuple[Trace, int]:
    """The requests of the log in its window, and how many rows could not be used."""
    from tokonomics.traffic.grammar import span_s

    window = []
    for field, text, default in (("start", scenario.start, 0.0), ("end", scenario.end, float("inf"))):
        moment = default if text is None else span_s(text)
        if moment is None:
            raise BadInput(f"'{shorten(text or '')}' is not a time", field=field, fix="Write seconds, or 10m, 2h, 1d.")
        window.append(moment)
    start_s, end_s = window
    if start_s >= end_s:
        raise BadInput(f"must be later than {option('start')}", field="end")
    path = scenario.trace or ""
    try:
        file = open_trace(path, columns=scenario.columns)
        trace = file.read()
    except DescribesClients:
        last = None if end_s == float("inf") else end_s
        return servegen_trace(path, start_s=start_s, end_s=last, seed=scenario.seed), 0
    cut = trace.window(start_s, end_s) if scenario.start or scenario.end else trace
    if not len(cut):
        raise BadInput("no request is left", where=path, fix=f"Widen {option('start')} and {option('end')}.")
    return cut, file.problems.count


def read_rate(text: str) -> float:
    """Requests a second, as typed."""
    rate = _number(text, "rate", "Such as 5.")
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise BadInput(f"must be above 0 requests a second, and at most a billion, got {rate:g}", field="rate")
    return rate


def rate_of(tokens_per_month: str, tokens_per_request: float) -> float:
    """Requests a second that come to so many tokens a month."""
    rate = amount(tokens_per_month, "tokens_per_month") / tokens_per_request / _SECONDS_PER_MONTH
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise BadInput(f"comes to {rate:.3g} requests a second, which nobody serves", field="tokens_per_month")
    return rate


def _range(text: str, field: str) -> list[str]:
    """``10:20:40`` → its three parts, rising; anything else as it is (``lognormal:mean=800`` is no range)."""
    parts = [part.strip() for part in text.split(":")]
    if not all(re.fullmatch(r"[0-9.eE+-]+", part) for part in parts) or len(parts) == 1:
        return [text]
    numbers = [_number(part, field) for part in parts]
    if len(parts) != len(CASES) or numbers != sorted(numbers):
        raise BadInput(f"'{shorten(text)}' is not low:mid:high", field=field, fix="Write such as 10:20:40.")
    return parts


def _number(text: str, field: str, fix: str = "Such as 5, or 2.5:5:10.") -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value > 0:
        raise BadInput(f"must be a number above 0, got {shorten(text)}", field=field, fix=fix)
    return value
