"""Flags that go together, as one argument of a verb: what serves, what arrives, what may be bought, how it is shown.

A verb takes a group as an argument; ``flat`` puts the group's flags in its place for the command line, so that a flag
is declared once and every verb with the group has it.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Any, get_type_hints

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile


def flat(function: Callable[..., None]) -> Callable[..., None]:
    """The verb with the fields of its groups as arguments of its own."""
    hints = get_type_hints(function, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    flattened: dict[str, inspect.Parameter] = {}
    for each in inspect.signature(function).parameters.values():
        inside = _fields(groups[each.name]) if each.name in groups else [each.replace(annotation=hints[each.name])]
        for one in inside:
            if one.name in flattened:
                raise TypeError(f"{function.__name__} takes {one.name} twice")
            flattened[one.name] = one.replace(kind=inspect.Parameter.KEYWORD_ONLY)

    @wraps(function)
    def verb(**given: Any) -> None:
        made = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group) if each.name in given})
            for name, group in groups.items()
        }
        function(**given, **made)

    verb.__signature__ = inspect.Signature(list(flattened.values()))  # type: ignore[attr-defined]
    verb.__annotations__ = {name: each.annotation for name, each in flattened.items()}
    return verb


def _fields(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(group)
    ]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model lies on its GPUs, and what serves it."""

    tp: flags.Tp = 1
    pp: flags.Pp = 1
    ep: flags.Ep = 1
    weights: flags.Weights = None
    kv: flags.Kv = "bf16"
    engine: flags.EngineName = "vllm"


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A log's window and pace, or made-up requests; the log itself is the verb's."""

    columns: flags.Columns = None
    strict: flags.Strict = False
    start: flags.From = None
    end: flags.To = None
    sample: flags.Sample = None
    speed: flags.Speed = None
    rate: flags.Rate = None
    tokens_per_month: flags.TokensPerMonth = None
    input: flags.InputText = None
    output: flags.OutputText = None
    arrivals: flags.ArrivalsText = None
    requests: flags.Requests = None
    duration: flags.Duration = None
    system_prompts: flags.SystemText = None
    sessions: flags.SessionsText = None
    tenants: flags.TenantsText = None
    servegen_model: flags.ServegenModel = None
    servegen_scale: flags.ServegenScale = None
    seed: flags.Seed = 0

    @property
    def is_made_up(self) -> bool:
        """Something says how many requests to make."""
        return any(each is not None for each in (self.arrivals, self.rate, self.tokens_per_month))


@dataclass(frozen=True, kw_only=True)
class Load:
    """The traffic that is planned for, and the promise."""

    rate: flags.Rates = None
    tokens_per_month: flags.TokensPerMonth = None
    input: flags.InputText = None
    output: flags.OutputText = None
    arrivals: flags.ArrivalsText = None
    trace: flags.TraceName = None
    columns: flags.Columns = None
    start: flags.From = None
    end: flags.To = None
    seed: flags.Seed = 0
    slo: flags.SloText = None
    offline: flags.Offline = False


@dataclass(frozen=True, kw_only=True)
class Market:
    """Whose prices count."""

    provider: flags.Provider = None
    region: flags.Region = None
    discount: flags.Discount = None
    offers: flags.OffersFile = None


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a search may choose from."""

    gpu: flags.GpuNames = None
    weights: flags.WeightsChoice = None
    min_weights: flags.MinWeights = None
    kv: flags.KvChoice = None
    engine: flags.EngineChoice = None
    terms: flags.TermsChoice = None
    max_price: flags.MaxPrice = None
    max_age: flags.MaxAge = None


@dataclass(frozen=True, kw_only=True)
class Shown:
    """How the answer is shown, and the profile that it is predicted with."""

    chart: ChartFile = None
    html: HtmlFile = None
    profile: ProfileFile = None
    json: Json = False

    def check(self) -> None:
        """Refuse names that cannot be written to before any work is done."""
        check_files(self.chart, self.html)

    def give(self, answer: Answer) -> None:
        """Print the answer and save what was asked for."""
        give(answer, json=self.json, chart=self.chart, html=self.html)


def words(*groups: Load | Market | Choice) -> dict[str, object]:
    """The flags of groups as the words of a scenario."""
    found = {each.name: getattr(group, each.name) for group in groups for each in fields(group)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in found.items()}
