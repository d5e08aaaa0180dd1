"""Which view describes the result of which verb."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokonomics.questions.request import Request
    from tokonomics.questions.result import Result
    from tokonomics.questions.verbs import Verb
    from tokonomics.report.answer import Answer

_VIEWS = {
    "plan": "plan_view", "diff": "diff_view", "fleet": "fleet_view", "breakeven": "breakeven_view",
    "own_hardware": "own_hardware_view", "can_run": "can_run_view", "compare": "compare_view", "fit": "predict_view",
    "predict": "predict_view", "curve": "predict_view", "cost": "cost_view", "models": "catalog_view",
    "gpus": "catalog_view", "offers": "catalog_view", "apis": "catalog_view", "trace": "trace_view",
    "simulate": "simulate_view", "capacity": "simulate_view", "cache": "cache_view", "levers": "levers_view",
    "stack": "levers_view", "tenants": "tenants_view", "route": "route_view", "bench": "bench_view",
    "import_results": "bench_view",
    "calibrate": "calibrate_view", "probe": "calibrate_view", "validate": "validate_view", "doctor": "doctor_view",
    "meter_report": "meter_view",
}  # fmt: skip
"""The module that has a function of the verb's name."""


def describe(verb: "Verb", result: "Result", request: "Request") -> "Answer":
    """The answer of a verb, as people see it."""
    view = import_module(f"tokonomics.report.{_VIEWS[verb.function_name]}")
    described: Callable[[Result, Request], Answer] = getattr(view, verb.function_name)
    return described(result, request)
