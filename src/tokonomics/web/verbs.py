"""Choose the questions that the page may ask, and their inputs: the requests, less what reaches outside the page.

The model that FastAPI checks has the request's own fields: name, type, bounds and help. Inputs that write files or open
addresses are left out; an input that names a file on the command line names an upload or a shipped sample here.

``catalogue`` lists the choices that the page offers: models, GPUs, samples and scenarios to start with.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from tokonomics import __version__
from tokonomics.catalog.api_hosts import list_apis
from tokonomics.catalog.engines import all_engines
from tokonomics.catalog.entries import stamp, user_path
from tokonomics.catalog.gpus import all_gpus
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS
from tokonomics.catalog.load_models import find_models
from tokonomics.catalog.offers import OLDER, cache_file, is_stale, load_offers
from tokonomics.errors import UnknownName
from tokonomics.questions.request import Kind, Parameter, Text
from tokonomics.questions.scenario_text import command_line, command_words
from tokonomics.questions.verbs import QUESTIONS, Verb
from tokonomics.traffic.formats import SAMPLES, TRACES
from tokonomics.types import copied, today
from tokonomics.units import plural
from tokonomics.workers import as_json

MOST_TEXT = 2_000  # characters of one value; the longest that makes sense is a list of all regions
MOST_ITEMS = 64  # values of a list
_MOST_NUMBER = 2**53  # the largest integer that JSON carries exactly in a browser

_FILES = "deploy"  # this input asks for files beside the answer; the page always wants them
_LEFT_OUT = frozenset({"embedding_model", "embedding_usd_per_mtok", "strict", "profile", "hub"})
_ONLY = {"verify": frozenset({"verify"})}
"""Inputs of verbs whose others start a process or reach a server."""
_FORMER = {"what": "model", "model_name": "model", "models": "model", "file": "trace"}
"""Names of inputs in version 0.1."""
_TIME_LIMITS = {"time_limit": 120.0}  # seconds for a solver, below the worker's own limit


@dataclass(frozen=True)
class PageVerb:
    """A question that the page may ask."""

    name: str
    parameters: Mapping[str, Parameter]
    inputs: type[BaseModel]
    summary: str
    quick_when: "bool | dict[str, bool]"  # answered at once: always, never, or if a parameter has this value

    def is_quick(self, inputs: Mapping[str, Any]) -> bool:
        if isinstance(self.quick_when, bool):
            return self.quick_when
        return all(inputs.get(name, self.parameters[name].default) is value for name, value in self.quick_when.items())

    def command(self, inputs: Mapping[str, Any]) -> str:
        """Return the command line that gives the same figures, without the files that the page adds."""
        said = {name: value for name, value in inputs.items() if name != _FILES}
        return command_line(command_words(QUESTIONS[self.name], self.parameters, said))


_QUICK: dict[str, bool | dict[str, bool]] = {
    "plan": {"quick": True}, "curve": True, "predict": True, "fit": True, "cost": True, "own-hardware": True,
    "can-run": True,
    "compare": {"simulate": False}, "trace": True, "import": True, "offers": True, "breakeven": {"quick": True},
    "simulate": False, "capacity": False, "fleet": False, "levers": False, "stack": False, "cache": False,
    "tenants": False, "route": False, "verify": True,
}  # fmt: skip
"""The verbs of the page, and when a closed form answers them."""


@lru_cache(maxsize=1)
def verbs() -> Mapping[str, PageVerb]:
    """Return the page's verbs by name, in the order of the command line's help."""
    return {name: _page_verb(verb, _QUICK[name]) for name, verb in QUESTIONS.items() if name in _QUICK}


def find_verb(name: str) -> PageVerb:
    if name not in verbs():
        raise UnknownName("verb", name, verbs())
    return verbs()[name]


class _Inputs(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, str_max_length=MOST_TEXT)

    @model_validator(mode="before")
    @classmethod
    def _renamed(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = cls.model_fields
        former = {old: new for old, new in _FORMER.items() if old in given and old not in known and new in known}
        return {former.get(name, name): value for name, value in given.items()}


def _page_verb(verb: Verb, quick_when: bool | dict[str, bool]) -> PageVerb:
    parameters = {
        name: replace(input, high=_TIME_LIMITS.get(name, input.high))
        for name, input in verb.parameters.items()
        if name not in _LEFT_OUT and not input.writes and name in _ONLY.get(verb.name, {name})
    }
    fields: dict[str, Any] = {name: _field(input) for name, input in parameters.items()}
    model = create_model(
        f"{verb.name.title().replace('-', '')}Inputs", __base__=_Inputs, __doc__=verb.summary, **fields
    )
    return PageVerb(verb.name, parameters, model, verb.summary, quick_when)


def _field(parameter: Parameter) -> tuple[Any, Any]:
    """Return the type that the request declares, with bounds; a table in memory cannot come from the page."""
    kind, *marks = get_args(Text if parameter.kind in (Kind.TRACE, Kind.FILE) else parameter.annotation)
    limits: dict[str, Any] = {}
    if parameter.is_list:
        kind, *marks = get_args(parameter.annotation)
        limits = {"min_length": int(parameter.required), "max_length": MOST_ITEMS}
    elif parameter.type in (int, float):
        low, high = parameter.low, parameter.high
        limits = {"ge": -_MOST_NUMBER if low is None else low, "le": _MOST_NUMBER if high is None else high}
    elif parameter.type is bool:
        marks = []  # a switch also takes 1 and "yes", not only true and false
    elif parameter.kind is Kind.EMBEDDER:
        kind, marks = Literal["hashed"], []
    made: Any = Annotated[kind, Field(**limits), *marks]
    examples = None
    if parameter.type is str and parameter.kind is not Kind.FILE and isinstance(parameter.example, str | int):
        examples = [[str(parameter.example)] if parameter.is_list else str(parameter.example)]
    about = f"{parameter.help} {_NOTES.get(parameter.kind, '')}".strip()
    default = ... if parameter.required else parameter.default
    return made | None if default is None else made, Field(default, description=about, examples=examples)


_NOTES = {
    Kind.MODEL: "Here: a name of the catalogue, or upload:ID of a config.json.",
    Kind.TRACE: "Here: a shipped sample, or upload:ID.",
    Kind.FILE: "Here: upload:ID.",
    Kind.LENGTHS: "Here trace: takes a shipped sample or upload:ID.",
    Kind.EMBEDDER: "Here: hashed.",
    Kind.TENANT: "Here: of a model of the catalogue.",
}


_B = 1e9

PRESETS: tuple[dict[str, Any], ...] = (
    {
        "key": "chat", "name": "Chat", "what": "People talk to it: short prompts, answers read as they come.",
        "inputs": {"model": "llama-3.1-8b", "rate": "5", "input": "lognormal:mean=1000,p99=6000",
                   "output": "lognormal:mean=250,p99=900", "slo": "ttft_p99=1,tpot_p99=50ms"},
    },
    {
        "key": "rag", "name": "Retrieval (RAG)", "what": "Long prompts full of found text, short answers.",
        "inputs": {"model": "llama-3.3-70b", "rate": "2", "input": "lognormal:mean=6000,p99=16000",
                   "output": "lognormal:mean=300,p99=1000", "slo": "ttft_p99=2,tpot_p99=60ms"},
    },
    {
        "key": "code", "name": "Code completion", "what": "Long prompts, a line or two of answer, at once.",
        "inputs": {"model": "qwen2.5-coder-7b", "rate": "10", "input": "sample:azure-code",
                   "output": "sample:azure-code", "slo": "e2e_p95=1.5"},
    },
    {
        "key": "batch", "name": "Batch work", "what": "Documents overnight: no SLO is set, price is all.",
        "inputs": {"model": "qwen3-30b-a3b", "tokens_per_month": "20B", "input": "2000", "output": "400",
                   "offline": True},
    },
    {
        "key": "agents", "name": "Agents", "what": "Many turns over a growing context, tool calls between them.",
        "inputs": {"model": "gpt-oss-120b", "rate": "3", "input": "uniform:2000-30000",
                   "output": "lognormal:mean=500,p99=2000", "slo": "ttft_p95=4,tpot_p95=50ms"},
    },
)  # fmt: skip
"""Round numbers of our own to start from, not measurements; sample: takes the lengths of a public log."""


AsOf = tuple[date, int, int]


def prices_as_of() -> AsOf:
    """Return a key that changes with the day, the user's catalogue and the fetched prices, as every answer does."""
    return today(), stamp(user_path()), stamp(cache_file())


@lru_cache(maxsize=1)
def catalogue_json(as_of: AsOf) -> bytes:
    """Return the catalogue as JSON, rebuilt when something behind it has changed."""
    return as_json(catalogue())


@lru_cache(maxsize=1)
def apis_json(as_of: AsOf) -> bytes:
    """Return the APIs and their prices likewise; they are many, and only one view asks for them."""
    names = ("key", "host", "model", "input_usd_per_mtok", "output_usd_per_mtok")
    return as_json([copied(api, *names) for api in list_apis()])


def catalogue() -> dict[str, Any]:
    """Return everything in the page's menus, except the APIs."""
    offers = load_offers()
    sold = Counter(offer.gpu for offer in offers)
    quoted = max(offer.date for offer in offers)
    old = f": {OLDER}, run `tokonomics offers --refresh`" if is_stale(quoted, today()) else ""
    return {
        "models": [
            {
                **copied(model, "key", "name", "family", "is_moe"),
                "params_b": model.parameters / _B,
                "active_b": model.active_parameters / _B,
                "context": model.max_context,
                "precision": model.served.value,
            }
            for model in find_models()
        ],
        "gpus": [
            {
                **copied(gpu, "key", "name", "memory_gb", "architecture", "watts", "year"),
                "bandwidth_tb_per_s": gpu.bandwidth_bytes_per_s / 1e12,
                "offers": sold[gpu.key],
            }
            for gpu in all_gpus()
        ],
        "engines": [copied(engine, "key", "name", "version") for engine in all_engines()],
        "providers": sorted({offer.provider for offer in offers}),
        "regions": sorted({offer.region for offer in offers}),
        "samples": list(TRACES),
        "length_samples": list(SAMPLES),
        "precisions": {
            "weights": [precision.value for precision in WEIGHT_PRECISIONS],
            "kv": [precision.value for precision in KV_PRECISIONS],
        },
        "presets": list(PRESETS),
        "version": __version__,
        "today": today().isoformat(),
        "prices": f"the newest GPU price is of {quoted}, {plural((today() - quoted).days, 'day')} ago{old}",
    }
