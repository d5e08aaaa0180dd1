"""Present one result to people: its description and its charts, for every door."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokonomics.errors import Spell, in_python, option, spelled
from tokonomics.report.blocks import Section, View, note, sections
from tokonomics.units import percent

if TYPE_CHECKING:
    from tokonomics.questions.request import Request
    from tokonomics.questions.result import Result
    from tokonomics.questions.verbs import Verb

Charts = Mapping[str, Callable[[], Any]]  # by name, in reading order; drawn on first use


@dataclass(frozen=True)
class Answer:
    """One result as people see it; expensive descriptions and charts are made on first use."""

    result: "Result"
    title: str
    view: Callable[[], View]
    charts: Charts = field(default_factory=dict)
    printed: Callable[[], str] | None = None  # what a terminal prints instead of the description
    plays: Callable[[], dict[str, Any]] | None = None  # a run over time that the page can play, with its texts

    def sections(self) -> list[Section]:
        return sections(self.view())

    def document(self, spell: Spell) -> list[dict[str, Any]]:
        """Return the description as plain data, with inputs as a door writes them."""
        return document(self.sections(), spell)

    def plain(self) -> Any:
        """Return the result as in JSON."""
        return self.result.plain()

    @property
    def exit_code(self) -> int:
        """Return 1 if nothing was found that does what was asked."""
        return 0 if self.result.is_found else 1

    def chart(self, name: str = "") -> Any:
        """Return one of the charts, or all of them below each other."""
        from tokonomics.report.charts.style import Spec, stacked

        if name or len(self.charts) == 1:
            drawn = self.charts[name or next(iter(self.charts))]()
            return drawn.altair() if isinstance(drawn, Spec) else drawn

        return stacked([draw() for draw in self.charts.values()])

    def text(self) -> str:
        """Return what a terminal of 140 columns shows."""
        if self.printed:
            return self.printed()
        from tokonomics.report.terminal import as_text

        return as_text(self.sections())

    def html(self) -> str:
        """Return what a notebook shows."""
        from tokonomics.report.html import described

        return described(self.sections(), in_python)

    def markdown(self) -> str:
        """Return what a pull request shows."""
        from tokonomics.report.markdown import markdown

        return markdown(self.sections())


def document(description: Iterable[Section], spell: Spell) -> list[dict[str, Any]]:
    """Return a description as plain data, with inputs as a door writes them."""
    return [_plain(section, spell) for section in description]


def _plain(value: Any, spell: Spell) -> Any:
    """Return a block, or a part of one, as plain data with every text spelled for the door."""
    if isinstance(value, str):
        return spelled(value, spell)
    if isinstance(value, tuple):
        return [_plain(part, spell) for part in value]
    if is_dataclass(value):
        parts = vars(value).items()
        return {name: _plain(part, spell) for name, part in parts if part or name != "opens"}
    return value


_VIEWS = {
    "plan": "plan_view", "diff": "compare_view", "fleet": "fleet_view", "breakeven": "breakeven_view",
    "own_hardware": "cost_view", "can_run": "can_run_view", "compare": "compare_view", "fit": "predict_view",
    "predict": "predict_view", "curve": "predict_view", "cost": "cost_view", "models": "catalog_view",
    "gpus": "catalog_view", "offers": "catalog_view", "apis": "catalog_view", "trace": "trace_view",
    "simulate": "simulate_view", "capacity": "simulate_view", "cache": "cache_view", "levers": "levers_view",
    "stack": "levers_view", "tenants": "tenants_view", "route": "route_view", "bench": "bench_view",
    "import_results": "bench_view",
    "calibrate": "validate_view", "probe": "validate_view", "validate": "validate_view", "doctor": "catalog_view",
    "prices_refresh": "catalog_view", "meter_report": "meter_view", "tune": "tune_view", "verify": "tune_view",
    "twin_report": "twin_view",
    "guard": "guard_view",
}  # fmt: skip
"""The module that has a function with the verb's name."""


def describe(verb: "Verb", result: "Result", request: "Request") -> Answer:
    """Return the answer of a verb, as people see it."""
    view = import_module(f"tokonomics.report.{_VIEWS[verb.function_name]}")
    described: Callable[[Result, Request], Answer] = getattr(view, verb.function_name)
    answer, headroom = described(result, request), getattr(request, "headroom", None)
    if not headroom or verb.function_name == "plan":  # a plan says it in its first line
        return answer
    said = f"With {percent(headroom)} of headroom ({option('headroom')}): every target is also met under that much more"
    sized = note(f"{said} traffic. Bills and latencies are of the traffic itself.")
    return replace(answer, view=lambda: [*answer.view(), sized])
