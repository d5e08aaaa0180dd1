"""Offer every question as a Python function with typed results for notebooks.

A function asks the same question as the verb of its name. It returns the noun that ``--json`` prints, which can show
itself as a line, a table, a frame or a chart.
"""

import inspect
import sys
from functools import partial
from typing import Any

from tokonomics.errors import BadInput, TokonomicsError, by_name, in_python, spelled
from tokonomics.questions.request import Kind, Listener, Parameter, Placement, Request
from tokonomics.questions.scenario_text import FRAMES, LEFT_OUT, command_of
from tokonomics.questions.verbs import Verb, find_verb

SUMMARISED = frozenset({"machine_tokens_per_second", "machine_usd_per_hour", "save"})
"""Inputs of ``trace`` that shape its summary; ``read_trace``, which returns the requests, does not take them."""


class Notes(Listener):
    """Print notes to standard error, with inputs spelled as in Python."""

    def note(self, line: str) -> None:
        sys.stderr.write(f"{spelled(line, in_python)}\n")


class Function:
    """A question that can be called; its signature and help come from the request."""

    def __init__(self, verb: Verb, name: str = "") -> None:
        self.verb = verb
        self.__name__ = name or verb.name
        self.__module__ = "tokonomics"

    @property
    def arguments(self) -> dict[str, Parameter]:
        left_out = LEFT_OUT | SUMMARISED if self.__name__ == "read_trace" else LEFT_OUT
        return {name: input for name, input in self.verb.parameters.items() if name not in left_out}

    @property
    def returns(self) -> str:
        """Return the name of the type that the function returns."""
        if self.__name__ in FRAMES:
            return "pl.DataFrame"
        return "Trace" if self.__name__ == "read_trace" else f"{self.__name__.title().replace('_', '')}Result"

    @property
    def __signature__(self) -> inspect.Signature:
        parameters = []
        for name, argument in self.arguments.items():
            by_place = argument.place is not Placement.FLAG
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if by_place else inspect.Parameter.KEYWORD_ONLY
            default = inspect.Parameter.empty if argument.required else argument.default
            parameters.append(inspect.Parameter(name, kind, default=default, annotation=annotation(argument)))
        return inspect.Signature(sorted(parameters, key=lambda argument: argument.kind), return_annotation=self.returns)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        about = ABOUT.get(self.__name__, "{summary}").format(summary=by_name(self.verb.summary))
        example = EXAMPLES[self.__name__].replace("\n", "\n... ")
        lines = [f"    {name}: {by_name(argument.help)}" for name, argument in self.arguments.items()]
        return "\n".join([about, "", f">>> {example}", "", "Arguments:", *lines])

    def __repr__(self) -> str:
        return f"<function tokonomics.{self.__name__}>"

    def __call__(self, *by_place: Any, **inputs: Any) -> Any:
        try:
            return self._answered(self.request(*by_place, **inputs))
        except TokonomicsError as error:  # a person's mistake needs no traceback through our code
            raise error.with_traceback(None) from None

    def _answered(self, request: Request) -> Any:
        if self.__name__ == "plan":
            from tokonomics.questions.load import refuse_several

            refuse_several(request)
        if self.__name__ == "read_trace":
            from tokonomics.questions.traffic import traffic_of

            return traffic_of(request, Notes())  # type: ignore[arg-type]
        from tokonomics.report.answer import describe

        result = self.verb.answer(request, Notes())
        described = partial(describe, self.verb, result, request)
        result.shown(described, command_of(self.verb, request))
        if self.__name__ in FRAMES:
            return result.to_frame()
        if self.__name__ == "breakeven" and not result.is_found:
            why = [f"{reason.constraint}: {reason.why}; {reason.nearest}." for reason in result.blame]  # type: ignore[attr-defined]
            raise BadInput(described().title, fix="\n  ".join(why))
        return result

    def request(self, *by_place: Any, **inputs: Any) -> Request:
        """Build the request from the arguments, or from a scenario file that the arguments override."""
        try:
            values = self.__signature__.bind_partial(*by_place, **inputs).arguments
        except TypeError as error:
            raise TypeError(f"{self.__name__}(): {error}") from None
        from tokonomics.questions.scenario import request_of

        return request_of(self.verb, values)


ABOUT = {
    "plan": "{summary}\n\n``model`` may be a scenario file (``.toml``). One model at one demand: to compare several, "
    "plan each.",
    "models": "{summary}\n\n``key`` is what other functions take.",
    "read_trace": "The requests themselves, of a log or made up, as columns: to look at, to alter, and to give as "
    "``trace=``.",
}
"""Docstrings of functions for which the verb's summary is not enough."""
EXAMPLES = {
    "plan": 'tk.plan("llama-3.1-8b", rate=5, input=1000, output=300, slo={"ttft_p99": 0.5}, gpu=["L4", "H100"])',
    "fleet": 'tk.fleet("llama-3.1-8b", demand="12x20,12x2", input=1000, output=300, slo="ttft_p99=1", provider="aws",\n'
    '         gpu="L40S", no_replay=True).to_frame().select("offer", "terms", "usd_per_hour")',
    "breakeven": 'tk.breakeven("llama-3.3-70b", input=1000, output=300, quick=True)',
    "can_run": 'tk.can_run(gpu="RTX3090", gpus=2).to_frame().select("model", "weights", "tp", "users")',
    "fit": 'tk.fit("llama-3.1-8b", gpu="H100", context=8192)',
    "predict": 'tk.predict("llama-3.1-8b", gpu="H200", batch=64).decode_step_s',
    "curve": 'tk.curve("llama-2-7b", gpu="H100", usd_per_hour=2.0).to_frame().select("batch", "tokens_per_s", '
    '"usd_per_mtok")',
    "trace": 'tk.trace("azure-conv")',
    "read_trace": 'tk.read_trace("azure-conv", speed=4)',
    "simulate": 'tk.simulate("llama-3.1-8b", gpu="H100", trace="azure-conv", speed=4, slo={"ttft_p99": 0.5}, '
    "usd_per_hour=2.0)",
    "capacity": 'tk.capacity("llama-3.1-8b", gpu="H100", input=1000, output=300, '
    'slo="ttft_p99=0.5,tpot_p99=0.05").rate',
    "levers": 'tk.levers("llama-3.1-8b", gpu="L4", usd_per_hour=0.8, rate=30, input=500, output=200, '
    'slo={"ttft_p99": 1},\n          without=["hardware", "speculation", "disaggregation"])',
    "models": 'tk.models("qwen3", moe=True).select("key", "parameters", "active_parameters")',
    "gpus": 'tk.gpus(min_memory=100, architecture="hopper").select("key", "memory_gb", "bandwidth_bytes_per_s")',
    "offers": 'tk.offers(gpu="H100", provider=["aws", "gcp"]).select("provider", "region", "gpus", "usd_per_hour", '
    '"date")',
}


def function(name: str) -> Function:
    return Function(find_verb("trace" if name == "read_trace" else name.replace("_", "-")), name)


def annotation(argument: Parameter) -> str:
    """Return the type of an argument; ``Words`` are a text, a number, a list of them, or names with values."""
    kind = "Words" if argument.type is str else argument.type.__name__
    if argument.kind is Kind.TRACE:
        kind = "Requests"
    elif argument.name == "offers":
        kind = "Prices"
    elif argument.takes_tables:
        kind = "Tables"
    elif argument.takes_text:
        kind = f"{kind} | str"
    return kind if argument.required or argument.default is not None else f"{kind} | None"
