"""List every question: the verb or flag that asks it, its module, its group, and its summary.

Requests and answers are loaded when they are used, so that listing the verbs costs nothing and help is quick. By
convention the question ``can-run`` takes a ``CanRunRequest``, in its group's file of ``questions/requests``, and is
answered by ``can_run(request, listener)`` in its module of ``questions``.

Some questions are asked by a flag of another verb: ``curve`` is ``predict --curve``. They are separate questions on the
page, for agents, in Python and in scenario files; on the command line their old name is that of version 0.2.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from tokonomics.errors import UnknownName

if TYPE_CHECKING:
    from tokonomics.questions.request import Listener, Parameters, Request
    from tokonomics.questions.result import Result

BUY, TRAFFIC, RUN, KNOWN = "Before you buy", "With your traffic", "While you run", "What is known"
_REQUESTS = {BUY: "buy", TRAFFIC: "traffic", RUN: "run", KNOWN: "run"}


@dataclass(frozen=True)
class Verb:
    """A question as the doors know it."""

    name: str
    group: str
    summary: str
    """One line of at most 60 characters; the request's docstring, without its examples, follows it."""
    module: str = ""  # within ``questions``; by default named like the verb
    charts: bool = False
    scenario: bool = False  # whether it takes a scenario file
    reports: bool = True  # whether the answer can be saved as one HTML file
    of: str = ""  # the verb with the flag that asks this question; empty for a verb, and for ``tokonomics --doctor``
    by: str = ""  # the flag that asks it: one of its own inputs, or else a switch

    @property
    def function_name(self) -> str:
        return "import_results" if self.name == "import" else self.name.replace("-", "_").replace(" ", "_")

    @property
    def words(self) -> list[str]:
        """Return how it is asked on the command line: ``predict --curve``."""
        return [*self.name.split()] if not self.by else [*self.of.split(), f"--{self.by.replace('_', '-')}"]

    @property
    def by_flag(self) -> "list[Verb]":
        """Return the other questions that flags of this verb ask."""
        return [question for question in QUESTIONS.values() if question.of == self.name]

    @cached_property
    def request(self) -> "type[Request]":
        name = "".join(part.capitalize() for part in self.function_name.split("_"))
        requests = import_module(f"tokonomics.questions.requests.{_REQUESTS[self.group]}")
        return cast("type[Request]", getattr(requests, f"{name}Request"))

    @cached_property
    def parameters(self) -> "Parameters":
        from tokonomics.questions.request import parameters_of

        return parameters_of(self.request)

    @cached_property
    def keys(self) -> "Parameters":
        """Return what a scenario file can set: the fields of its request, and how the answer is shown."""
        from tokonomics.questions.inputs import Shown
        from tokonomics.questions.request import parameters_of

        left_out = {"chart": not self.charts, "html": not self.reports, "as_code": self.name not in IN_PYTHON}
        shown = {name: output for name, output in parameters_of(Shown).items() if not left_out.get(name)}
        return {**self.parameters, **shown}

    def answer(self, request: "Request", listener: "Listener") -> "Result":
        """Answer the request, with the profile that it names."""
        from tokonomics.questions.answering import in_market, reading_models, with_profile

        request = in_market(request, listener)
        with reading_models(request, listener) as notes, with_profile(request, listener):
            module = import_module(f"tokonomics.questions.{self.module or self.function_name}")
            result = cast("Result", getattr(module, self.function_name)(request, listener))
        return result.noting(notes)


_CHARTED: Any = {"charts": True, "scenario": True}
_BESIDE: Any = {"reports": False}
_LISTED = (
    Verb("plan", BUY, "The cheapest ways to serve a model.", **_CHARTED),
    Verb("fleet", BUY, "The cheapest fleet for a demand that changes over time.", **_CHARTED),
    Verb("breakeven", BUY, "From which volume on hosting beats calling an API.", **_CHARTED),
    Verb("can-run", BUY, "What a machine of your own can run, and how fast.", scenario=True),
    Verb("predict", BUY, "How long a decode step and a prompt take.", scenario=True),
    Verb("cost", BUY, "What a million tokens costs on GPUs paid by the hour.", scenario=True),
    Verb("trace", TRAFFIC, "What a request log is like; or make one up.", "traffic", **_CHARTED),
    Verb("simulate", TRAFFIC, "Serve a request log on a deployment, request by request.", **_CHARTED),
    Verb("cache", TRAFFIC, "What caching saves: prefixes, similar prompts, templates.", "levers", **_CHARTED),
    Verb("levers", TRAFFIC, "What to change first: every lever's saving, simulated.", **_CHARTED),
    Verb("tenants", TRAFFIC, "One fleet for all tenants or one for each, and who pays.", **_CHARTED),
    Verb("route", TRAFFIC, "A small model first, a large one or an API behind it.", **_CHARTED),
    Verb("bench", RUN, "Load a server and say what its tokens cost.", charts=True),
    Verb("import", RUN, "What a benchmark that you ran costs per million tokens.", "bench", charts=True),
    Verb("tune", RUN, "The engine flags for your targets, proven on your engine.", charts=True),
    Verb("guard", RUN, "What a new build changes: term by term, in dollars."),
    Verb("calibrate", RUN, "Make a profile of your machine from what you measured.", **_BESIDE),
    Verb("models", KNOWN, "Models: parameters, weight bytes, KV cache per token.", "catalogue", **_BESIDE),
    Verb("gpus", KNOWN, "GPUs: memory, bandwidth, dense FLOP/s, links, watts.", "catalogue", **_BESIDE),
    Verb("offers", KNOWN, "GPU prices by the hour, cheapest first, with their dates.", "catalogue", scenario=True,
         **_BESIDE),
    Verb("apis", KNOWN, "Token prices of hosted models.", "catalogue", **_BESIDE),
)  # fmt: skip
_ASKED_BY_FLAG = (
    Verb("compare", BUY, "Several models on several GPUs, side by side, by a closed form.", "plan", of="plan",
         by="by_gpu", **_CHARTED),
    Verb("diff", BUY, "What changes between two scenarios, and what it saves.", "plan", of="plan", by="against",
         **_BESIDE),
    Verb("fit", BUY, "Does a model fit: weights, KV cache, the largest batch.", "predict", of="predict", by="fit",
         scenario=True),
    Verb("curve", BUY, "What batching buys: speed and price against the batch.", "predict", of="predict", by="curve",
         **_CHARTED),
    Verb("own-hardware", BUY, "What a GPU-hour of a bought machine costs.", "cost", of="cost", by="purchase_usd",
         scenario=True),
    Verb("capacity", TRAFFIC, "The highest rate that meets the SLO; the replicas of a log.", "simulate", of="simulate",
         by="capacity", **_CHARTED),
    Verb("stack", TRAFFIC, "From one request at a time to the best: each step's saving.", "levers", of="levers",
         by="from_scratch", **_CHARTED),
    Verb("probe", RUN, "Time the kernels of this machine's GPU.", "calibrate", of="calibrate", by="probe", **_BESIDE),
    Verb("verify", RUN, "Check what a search for flags measured, or measure it again.", of="tune",
         by="verify", charts=True),
    Verb("validate", RUN, "Score predictions against a file of measurements.", "calibrate", of="calibrate",
         by="score", charts=True, **_BESIDE),
    Verb("prices refresh", KNOWN, "Fetch today's GPU prices from the network.", "catalogue", of="offers", by="refresh",
         **_BESIDE),
    Verb("doctor", KNOWN, "What is installed, found and out of date.", by="doctor", **_BESIDE),
)  # fmt: skip
VERBS = {verb.name: verb for verb in _LISTED}
METER_REPORT = Verb("meter report", RUN, "What tokens have cost, from the meter's ledger.", "meter", charts=True)
TWIN_REPORT = Verb("twin report", RUN, "How good forecasts of a server were, and what changed.", "twin", charts=True)
"""Verbs within ``meter`` and ``twin``, which answer nothing themselves."""
QUESTIONS = VERBS | {verb.name: verb for verb in (*_ASKED_BY_FLAG, METER_REPORT, TWIN_REPORT)}
IN_PYTHON = ("plan", "fleet", "breakeven", "can-run", "fit", "predict", "curve", "trace", "simulate", "capacity",
             "levers", "models", "gpus", "offers")  # fmt: skip
"""The questions that are functions of the library; the last three return frames."""


def find_verb(name: str) -> Verb:
    """Return a question by its name, whatever asks it on the command line."""
    if name not in QUESTIONS:
        raise UnknownName("verb", name, VERBS)
    return QUESTIONS[name]


def scenario_verbs() -> list[str]:
    """Return the questions that take a scenario file."""
    return [verb.name for verb in QUESTIONS.values() if verb.scenario]
