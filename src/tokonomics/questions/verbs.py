"""Every question by its verb: where it is answered, how it is grouped, what it is about.

Requests and answers are loaded when they are used, so that listing the verbs costs nothing and help is quick. By
convention the verb ``own-hardware`` takes an ``OwnHardwareRequest``, in its group's file of ``questions/requests``,
and is answered by ``own_hardware(request, listener)`` in its module of ``questions``.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from tokonomics.errors import UnknownName

if TYPE_CHECKING:
    from tokonomics.questions.listener import Listener
    from tokonomics.questions.request import Parameters, Request
    from tokonomics.questions.result import Result

BUY, TRAFFIC, RUN, KNOWN = "Before you buy", "With your traffic", "While you run", "What is known"
_REQUESTS = {BUY: "buy", TRAFFIC: "traffic", RUN: "run", KNOWN: "known"}


@dataclass(frozen=True)
class Verb:
    """A question as the doors know it."""

    name: str
    group: str
    summary: str
    module: str = ""
    """Within ``questions``; called like the verb unless it says otherwise."""
    charts: bool = False
    scenario: bool = False
    """A scenario file may say what is asked."""
    reports: bool = True
    """The answer can be saved as one HTML file."""

    @property
    def function_name(self) -> str:
        return "import_results" if self.name == "import" else self.name.replace("-", "_").replace(" ", "_")

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
        """What a scenario file can say to it: the fields of its request, and how the answer is shown."""
        from tokonomics.questions.inputs import Shown
        from tokonomics.questions.request import parameters_of

        left_out = {"chart": not self.charts, "html": not self.reports, "as_code": self.name not in IN_PYTHON}
        shown = {name: output for name, output in parameters_of(Shown).items() if not left_out.get(name)}
        return {**self.parameters, **shown}

    def answer(self, request: "Request", listener: "Listener") -> "Result":
        """What is found, with the profile that the request names."""
        from tokonomics.questions.answering import in_market, reading_models, with_profile

        request = in_market(request, listener)
        with reading_models(request, listener) as notes, with_profile(request, listener):
            module = import_module(f"tokonomics.questions.{self.module or self.function_name}")
            result = cast("Result", getattr(module, self.function_name)(request, listener))
        return result.noting(notes)


_CHARTED: Any = {"charts": True, "scenario": True}
_LISTED = (
    Verb("plan", BUY, "The cheapest ways to serve a model: every offer × layout × precision, sized by simulation.",
         **_CHARTED),
    Verb("diff", BUY, "What changes between two scenarios, and what it saves.", "plan", reports=False),
    Verb("fleet", BUY, "The cheapest fleet for a demand that changes over time: reserved, on demand and spot, hour by "
         "hour.", **_CHARTED),
    Verb("breakeven", BUY, "From which volume on hosting a model oneself is cheaper than an API: whole machines "
         "against a price per token.", **_CHARTED),
    Verb("own-hardware", BUY, "What a GPU-hour costs when the machine is bought: depreciation, power, people; as an "
         "offer for every other verb.", "cost", scenario=True),
    Verb("can-run", BUY, "What a machine of your own can run: which models fit, at what precision, how fast, for how "
         "many users, and what a million tokens costs in electricity.", scenario=True),
    Verb("compare", BUY, "Several models on several GPUs under the same traffic and latency targets: dollars per "
         "million tokens, side by side.", "plan", **_CHARTED),
    Verb("fit", BUY, "Does a model fit a GPU: weights, KV cache, workspace, the largest batch.", "predict",
         scenario=True),
    Verb("predict", BUY, "How long a decode step and a prompt take, with an interval, and where the time goes.",
         scenario=True),
    Verb("curve", BUY, "What batching buys: throughput, time per token and price against the batch, up to the KV "
         "limit.", "predict", **_CHARTED),
    Verb("cost", BUY, "What a million tokens costs on GPUs paid by the hour.", scenario=True),
    Verb("trace", TRAFFIC, "What a request log is like: rates, bursts, lengths, shared prefixes, idle hours. Or make "
         "one up.", "traffic", **_CHARTED),
    Verb("simulate", TRAFFIC, "Serve a request log on a deployment, request by request: latency, throughput, "
         "utilisation, cost.", **_CHARTED),
    Verb("capacity", TRAFFIC, "The highest rate one replica holds under latency targets, and the replicas a request "
         "log needs; by simulation.", "simulate", **_CHARTED),
    Verb("cache", TRAFFIC, "What caching saves: shared prompt beginnings on the GPU and behind it, similar prompts, "
         "fixed templates.", **_CHARTED),
    Verb("levers", TRAFFIC, "What to change first: every lever on your traffic, its saving simulated, alone and "
         "together.", **_CHARTED),
    Verb("stack", TRAFFIC, "From one request at a time on the GPU you name to the best deployment found: each step's "
         "saving, simulated.", "levers", **_CHARTED),
    Verb("tenants", TRAFFIC, "One fleet for all tenants, or one for each: replicas, latency, a noisy neighbour, and "
         "who pays what.", **_CHARTED),
    Verb("route", TRAFFIC, "A small model first, a large one or an API behind it: routed, cascaded or for what spills "
         "over; cost, latency, quality, and the share from which it pays.", **_CHARTED),
    Verb("bench", RUN, "Load an OpenAI-compatible server and say what its tokens cost, latency and knee included.",
          charts=True),
    Verb("import", RUN, "What a benchmark you already ran costs per million tokens, and how far our prediction was "
         "off.", "bench", charts=True),
    Verb("probe", RUN, "Time the kernels of this machine's GPU and save a profile that --profile uses in every "
         "prediction.", "calibrate", reports=False),
    Verb("calibrate", RUN, "Make a profile of your machine from what you measured on it; --profile uses it in every "
         "prediction.", reports=False),
    Verb("validate", RUN, "Score predictions against a file of measurements: errors, bias, coverage, ranking; no row "
         "dropped silently.", "calibrate", charts=True, reports=False),
    Verb("models", KNOWN, "Models we know: parameters, weight bytes, KV cache per token.", "catalogue", reports=False),
    Verb("gpus", KNOWN, "GPUs we know: memory, bandwidth, dense FLOP/s, links, watts.", "catalogue", reports=False),
    Verb("offers", KNOWN, "GPU prices by the hour, cheapest GPU-hour first; each with its date.", "catalogue",
         scenario=True, reports=False),
    Verb("apis", KNOWN, "Token prices of hosted models: input, cached, output, batch; unknown prices say so.",
         "catalogue", reports=False),
    Verb("doctor", KNOWN, "What is installed, how old the prices are, which files and GPUs are found; asks nothing of "
         "the network.", reports=False),
)  # fmt: skip
VERBS = {verb.name: verb for verb in _LISTED}
METER_REPORT = Verb("meter report", RUN, "What tokens have cost, by model, server, day, hour or label, from the "
                    "meter's ledger.", "meter", charts=True)  # fmt: skip
"""A verb within ``meter``, which answers nothing itself."""
IN_PYTHON = ("plan", "fleet", "breakeven", "can-run", "fit", "predict", "curve", "trace", "simulate", "capacity",
             "levers", "models", "gpus", "offers")  # fmt: skip
"""The verbs that are functions of the library; the last three give frames."""


def find_verb(name: str) -> Verb:
    if name == METER_REPORT.name:
        return METER_REPORT
    if name not in VERBS:
        raise UnknownName("verb", name, VERBS)
    return VERBS[name]


def scenario_verbs() -> list[str]:
    """The verbs that a scenario file is for."""
    return [verb.name for verb in VERBS.values() if verb.scenario]
