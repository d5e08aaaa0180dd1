"""``tokonomics plan``: the cheapest ways to serve a model under a promise."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, asked_as, below_each_other, working
from tokonomics.cli.groups import Choice, Load, Market, Shown, flat, words

if TYPE_CHECKING:
    from tokonomics.planner.plan import Question, Study
    from tokonomics.planner.scenario import Scenario
    from tokonomics.planner.sensitivity import Sensitivity
    from tokonomics.planner.trials import Progress


@flat
def plan(
    *,
    what: flags.ModelPlaces,
    load: Load,
    choice: Choice,
    gpus: Annotated[str | None, typer.Option(help="The most GPUs to pay for; or GPU names, as --gpu.")] = None,
    market: Market,
    router: flags.RouterChoice = None,
    max_utilization: flags.MaxUtilization = None,
    spare: flags.Spare = None,
    quick: flags.Quick = False,
    top: flags.Top = None,
    why: Annotated[bool, typer.Option("--why", help="Show why the other candidates were rejected.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show which traffic would flip the choice, and what moves the bill; slower."),
    ] = False,
    deploy: Annotated[
        list[str] | None, typer.Option(help="The files that start the pick: vllm, sglang, skypilot, kubernetes.")
    ] = None,
    deploy_to: Annotated[
        Path | None, typer.Option(help="A folder to save them in.", show_default="they are printed")
    ] = None,
    shown: Shown,
) -> None:
    """The cheapest ways to serve a model: every offer × layout × precision, sized by simulation to keep the promise.

    \b
    Examples:
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms
      tokonomics plan llama-3.3-70b --trace azure-conv --slo ttft_p99=1,tpot_p99=80ms --min-weights fp8 --spare 1
      tokonomics plan llama-3.1-8b qwen3-8b gemma-2-9b --tokens-per-month 2B --input 500 --output 200
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --provider aws,gcp --why --explain
      tokonomics plan qwen3-30b-a3b --rate 10:20:40 --input 500 --output 200 --provider aws --discount aws=0.2
      tokonomics plan chat.toml --rate 10 --deploy vllm,kubernetes --deploy-to out
    """
    from tokonomics.cli.deploy import deploy_files_of, save_files, targets_from
    from tokonomics.clock import today
    from tokonomics.errors import BadInput
    from tokonomics.planner.scenario import Scenario, questions_of
    from tokonomics.report.text import file_view

    shown.check()
    targets = targets_from(deploy, deploy_to)
    scenario = Scenario().over({
        "model": tuple(what), **words(load, choice, market), "gpus": gpus, "router": router,
        "max_utilization": max_utilization, "spare": spare, "quick": quick,
    })  # fmt: skip
    cases = scenario.cases()
    if len(cases) > 1 and len(scenario.model) > 1:
        raise BadInput("a range is for one model", where="--rate, --input, --output")
    if targets and (len(cases) > 1 or len(scenario.model) > 1):
        raise BadInput("is for one model at one demand", where="--deploy")
    if (why or explain) and (len(cases) > 1 or len(scenario.model) > 1):
        raise BadInput("is for one model at one demand", where="--explain" if explain else "--why")
    studies = [study for each in cases.values() for study in studied(questions_of(each, today()))]
    files = deploy_files_of(studies[0], targets, asked_as()) if targets and len(studies) == 1 else []
    if deploy_to:
        save_files(files, deploy_to)
    if len(cases) > 1:
        result, views, charts = _cases(studies, list(cases))
    elif len(studies) > 1:
        result, views, charts = _models(studies)
    else:
        result, views, charts = _one(scenario, studies[0], top, why, explain)
    if targets:
        result |= {"deploy": [each.model_dump(mode="json") for each in files]}
    if not deploy_to:
        views += [file_view(each.name, each.text) for each in files]
    names = ", ".join(dict.fromkeys(study.question.model.name for study in studies))
    answer = Answer(
        result,
        lambda: below_each_other(views),
        f"What serving {names} costs",
        charts,
        exit_code=0 if all(study.plan.best for study in studies) else 1,
    )
    shown.give(answer)


Parts = tuple[dict[str, Any], list[Any], dict[str, Callable[[], Any]]]
"""The result for programs, its views for people, and its charts."""


def _one(scenario: "Scenario", study: "Study", top: int | None, why: bool, explain: bool) -> Parts:
    """One model at one demand: its plan, how firm it is, and why not the others."""
    from tokonomics.planner.flips import flips
    from tokonomics.planner.infeasible import blame
    from tokonomics.planner.margins import bill_range, headroom
    from tokonomics.planner.sensitivity import sensitivity
    from tokonomics.report.advice_view import firmness_text, flips_view, sensitivity_view
    from tokonomics.report.plan_view import blame_view, plan_view, why_view

    plan, best = study.plan, study.plan.best
    shown = plan.model_copy(update={"ranked": plan.ranked[:top]}).model_dump(mode="json")
    views: list[Any] = []
    charts: dict[str, Callable[[], Any]] = {}
    if best is None:
        blames = blame(study)
        views.append(blame_view(plan, study.question.model.name, blames))
        found: dict[str, object] = {"blame": [each.model_dump(mode="json") for each in blames]}
    else:
        with working("planning") as tell:
            say = _simulating(tell)
            say("how much the traffic may grow")
            room, bills = headroom(study), bill_range(study, best)
            moved = None
            flipped = flips(study, None if explain else (), say)
            if explain:
                say("what moves the bill")
                moved = sensitivity(study)
        charts = _plan_charts(study, moved)
        firm = firmness_text(room, bills) if room else None
        name = study.question.model.name
        views.append(plan_view(plan, firm, rows=top or 10, model_name=name, **_asides(scenario, study)))
        if flipped:
            views += ["", flips_view(plan, flipped)]
        if moved:
            views += ["", sensitivity_view(moved)]
        parts = {"headroom": room, "bill_range": bills, "flips": flipped, "sensitivity": moved}
        found = {name: each.model_dump(mode="json") if each else None for name, each in parts.items()}
    if why:
        views += ["", why_view(plan)]
    return shown | found, views, charts


def _asides(scenario: "Scenario", study: "Study") -> "dict[str, Any]":
    """What the reader should know of the wishes: discounts taken off, GPUs that nobody sells."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.planner.parsing import discounts_from, gpu_filter

    names, _ = gpu_filter(scenario.gpu, scenario.gpus)
    sold = {each.gpu for each in study.question.offers}
    return {
        "discounts": discounts_from(scenario.discount),
        "without_offers": [name for name in names or () if find_gpu(name).key not in sold],
    }


def _models(studies: "list[Study]") -> Parts:
    """Several models on the same traffic: the pick of each."""
    from tokonomics.report.advice_view import models_view
    from tokonomics.report.charts import bill_chart
    from tokonomics.report.plan_view import asked_text

    picks = sorted((each.plan.best for each in studies if each.plan.best), key=lambda row: row.usd_per_month)
    names = [f"{place}. {row.model} on {row.gpu}" for place, row in enumerate(picks, 1)]
    asked = asked_text(studies[0].plan, "The same requests")
    title = "What each model costs on its cheapest hardware"
    views: list[Any] = [asked_text(studies[0].plan, ", ".join(each.question.model.name for each in studies)), ""]
    views.append(models_view(studies, picks) if picks else "Nothing fits for any of them: plan one alone to see why.")
    charts = {"Bills": lambda: bill_chart(picks, names, title, asked)} if picks else {}
    return {"models": [each.model_dump(mode="json") for each in picks]}, views, dict(charts)


def _cases(studies: "list[Study]", cases: list[str]) -> Parts:
    """Low, middle and high demand: the bill of each, and the least regretful choice."""
    from tokonomics.planner.infeasible import blame
    from tokonomics.planner.regret import least_regret
    from tokonomics.report.advice_view import regret_view
    from tokonomics.report.plan_charts import regret_chart
    from tokonomics.report.plan_view import blame_view

    found, name = least_regret(studies), studies[0].question.model.name
    if found is None:
        lost = next(each for each in studies if each.plan.best is None)
        blames = blame(lost)
        lost_to = {"regret": None, "blame": [each.model_dump(mode="json") for each in blames]}
        return lost_to, [blame_view(lost.plan, name, blames)], {}
    bills = dict(zip(cases, found.best_usd_per_month, strict=True))
    result = {"cases": bills, "regret": found.model_dump(mode="json")}
    return result, [regret_view(found, cases, name)], {"Bills and regrets": lambda: regret_chart(found, name)}


def studied(questions: "list[Question]") -> "list[Study]":
    """A plan for each question, saying on a terminal what is being simulated."""
    from tokonomics.cli.serving_flags import say_if_compiling, say_left_out
    from tokonomics.planner.plan import study

    if any(each.simulate for each in questions):
        say_if_compiling()
    for each in questions:
        context = each.model.max_context
        say_left_out(each.load.within(context) if each.load.is_log else each.load, context)
    with working("planning") as tell:
        return [study(each, _simulating(tell)) for each in questions]


def _simulating(tell: "Progress") -> "Progress":
    return lambda what: tell(f"simulating {what}")


def _plan_charts(study: "Study", moved: "Sensitivity | None") -> dict[str, Callable[[], Any]]:
    """The bill by hardware, the frontier of price and latency, and, where asked for, what moves the bill."""
    from tokonomics.planner.frontier import frontier
    from tokonomics.report.charts import plan_chart
    from tokonomics.report.plan_charts import frontier_chart, sensitivity_chart

    plan, name = study.plan, study.question.model.name
    charts: dict[str, Callable[[], Any]] = {
        "Bills": lambda: plan_chart(plan, name),
        "Price against latency": lambda: frontier_chart(frontier(study.question), plan, name),
    }
    if moved:
        charts["What moves the bill"] = lambda: sensitivity_chart(moved, name)
    return charts
