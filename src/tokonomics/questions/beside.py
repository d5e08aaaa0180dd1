"""Several models at once, from what was asked: a plan for the first, and one GPU for all of them or own ones.

Each further model is written as ``model_text`` reads it. What it does not say is as for the first, but for the rate.
"""

from tokonomics.errors import BadInput, option
from tokonomics.planner.shared_gpu import crossing, shared_plan
from tokonomics.planner.shared_ways import tenants_of
from tokonomics.questions.load import cases_of, questions_of
from tokonomics.questions.request import Listener, model_in
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.questions.results import AskedModel, PlanResult, PlanTogether
from tokonomics.questions.serving import say_if_compiling, say_left_out

MOST_MODELS = 8  # on one GPU, the first included
_ALONE = (
    "quick", "disaggregate", "deploy", "why", "explain", "sell", "margin", "spare", "tiers", "draft", "thinking",
    "images", "max_utilization", "sessions",
)  # fmt: skip
"""Inputs that a plan of several models does not take."""
_TRAFFIC = ("tokens_per_month", "arrivals", "trace", "columns", "start", "end", "system_prompts")


def plan_beside(request: PlanRequest, listener: Listener) -> PlanResult:
    """The ways to serve the model and those beside it, with the plan of the first on machines of its own."""
    questions = [question for asked in requests_of(request) for question in questions_of(asked, False, listener)]
    say_if_compiling(listener)
    for question in questions:
        say_left_out(question.load.within(question.model.max_context), question.model.max_context, listener)
    tenants = tenants_of(questions)

    def say(what: str) -> None:
        listener.doing(f"simulating {what}")

    ways = shared_plan(tenants, say)
    first = tenants[0].own
    asked = tuple(
        AskedModel(
            model=tenant.question.model.key,
            name=tenant.question.model.name,
            workload=tenant.load.workload,
            slos=tenant.question.slos,
        )
        for tenant in tenants
    )
    together = PlanTogether(**dict(ways), asked=asked, crossing=crossing(tenants, ways, say))
    return PlanResult(**dict(first.plan) | {"ranked": first.plan.ranked[: request.top]}, together=together, study=first)


def requests_of(request: PlanRequest) -> list[PlanRequest]:
    """The request for each model: the first as asked, the others with their own traffic and SLOs."""
    others = [model_in(text) for text in request.beside or ()]
    if len(request.model) > 1 or "," in request.model[0]:
        raise BadInput("is for one model and those beside it", field="beside", fix="Name one model first.")
    if not 1 <= len(others) < MOST_MODELS:
        raise BadInput(f"{MOST_MODELS} models share a GPU at the most, got {len(others) + 1}", field="beside")
    for name in _ALONE:
        if getattr(request, name):
            raise BadInput("is for one model", field=name, fix=f"Leave out {option(name)} or {option('beside')}.")
    if len(cases_of(request)) > 1:
        raise BadInput("a range is for one model", field="rate, input, output")
    first = request.model_copy(update={"beside": None})
    return [first, *(_beside(first, said) for said in others)]


def _beside(first: PlanRequest, said: dict[str, str]) -> PlanRequest:
    alone = dict.fromkeys(_TRAFFIC)
    own = {name: said.get(name, getattr(first, name)) for name in ("input", "output", "slo")}
    return first.model_copy(update={**alone, **own, "rate": said["rate"], "model": (said["model"],)})
