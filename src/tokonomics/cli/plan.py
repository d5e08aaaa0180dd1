"""``tokonomics plan``: the cheapest ways to serve a model under a promise."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokonomics.cli.answer import Answer, HtmlFile, below_each_other, check_files, give, working
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile

if TYPE_CHECKING:
    from tokonomics.planner.plan import Question, Study
    from tokonomics.planner.scenario import Scenario
    from tokonomics.planner.sensitivity import Sensitivity
    from tokonomics.planner.trials import Progress


def plan(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL… | SCENARIO.toml",
            help="Models (see `tokonomics models`, or a config.json), or a scenario file.",
        ),
    ],
    rate: Annotated[str | None, typer.Option(help="Requests a second, on average; or low:mid:high.")] = None,
    tokens_per_month: Annotated[
        str | None, typer.Option(help="Instead of --rate: tokens in and out, such as 2B.")
    ] = None,
    input: Annotated[
        str | None, typer.Option(help="Prompt tokens: 1000, lognormal:mean=800,p99=6000, sample:sharegpt.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Answer tokens, likewise.")] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="How requests arrive: gamma:5,cv=3, diurnal:5,peak=3 …", show_default="poisson")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="Your request log, or a sample such as azure-conv, instead of made-up requests.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Which column of the log is what: arrival=TIME,input=…")] = None,
    start: Annotated[str | None, typer.Option("--from", help="Of the log: leave out what arrives before.")] = None,
    end: Annotated[str | None, typer.Option("--to", help="Of the log: leave out what arrives from then on.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of made-up requests.", show_default="0")] = None,
    slo: Annotated[
        str | None, typer.Option(help="The promise: ttft_p99=0.5,tpot_p99=50ms (ttft, tpot, e2e; p50 … p99, mean).")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="A batch: nothing is promised, work is fed evenly.")
    ] = False,
    gpu: Annotated[list[str] | None, typer.Option(help="Only these GPUs: names with commas, or repeat.")] = None,
    gpus: Annotated[str | None, typer.Option(help="The most GPUs to pay for; or GPU names, as --gpu.")] = None,
    max_price: Annotated[float | None, typer.Option(help="The most dollars per GPU-hour.")] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only these providers.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only these regions.")] = None,
    terms: Annotated[
        list[str] | None, typer.Option(help="on_demand, spot, reserved or all.", show_default="on_demand")
    ] = None,
    discount: Annotated[list[str] | None, typer.Option(help="Your discount at a provider: aws=0.2.")] = None,
    offers: Annotated[Path | None, typer.Option(help="Your own price list (CSV) instead of the shipped one.")] = None,
    max_age: Annotated[
        int | None, typer.Option(min=0, help="Leave out prices older than this many days.", show_default="365")
    ] = None,
    weights: Annotated[list[str] | None, typer.Option(help="Only these precisions of the weights.")] = None,
    min_weights: Annotated[str | None, typer.Option(help="No precision below this one, such as fp8.")] = None,
    kv: Annotated[list[str] | None, typer.Option(help="Precisions of the KV cache.", show_default="bf16,fp8")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Serving engines, or all.", show_default="vllm")] = None,
    router: Annotated[
        str | None, typer.Option(help="How requests find a replica.", show_default="whichever needs fewest replicas")
    ] = None,
    max_utilization: Annotated[
        float | None,
        typer.Option(help="Load replicas to at most this share.", show_default="what the promise allows; 0.7 quick"),
    ] = None,
    spare: Annotated[
        int | None, typer.Option(min=0, help="Replicas that may fail with every promise still kept.", show_default="0")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Closed form only: means instead of percentiles.")] = False,
    top: Annotated[int | None, typer.Option(min=1, help="Rows to show.", show_default="10; all with --json")] = None,
    why: Annotated[bool, typer.Option("--why", help="Show why the other candidates were rejected.")] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show which traffic would flip the choice, and what moves the bill; slower."),
    ] = False,
    chart: Annotated[
        Path | None, typer.Option(help="Save the bill by hardware and the latency frontier: .svg, .png, .html, .json.")
    ] = None,
    html: HtmlFile = None,
    deploy: Annotated[
        list[str] | None, typer.Option(help="The files that start the pick: vllm, sglang, skypilot, kubernetes.")
    ] = None,
    deploy_to: Annotated[
        Path | None, typer.Option(help="A folder to save them in.", show_default="they are printed")
    ] = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """The cheapest ways to serve a model: every offer × layout × precision, sized by simulation to keep the promise.

    \b
    Examples:
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=50ms
      tokonomics plan llama-3.3-70b --trace azure-conv --slo ttft_p99=1,tpot_p99=80ms --min-weights fp8 --spare 1
      tokonomics plan llama-3.1-8b qwen3-8b gemma-2-9b --tokens-per-month 2B --input 500 --output 200 --why
      tokonomics plan qwen3-30b-a3b --rate 10:20:40 --input 500 --output 200 --provider aws --discount aws=0.2
      tokonomics plan scenario.toml --deploy vllm,kubernetes --deploy-to out
    """
    from tokonomics.cli.deploy import deploy_files_of, save_files, targets_from
    from tokonomics.clock import today
    from tokonomics.errors import BadInput
    from tokonomics.planner.scenario import Scenario, questions_of

    check_files(chart, html)
    targets = targets_from(deploy, deploy_to)
    flags = {
        "rate": rate, "tokens_per_month": tokens_per_month, "input": input, "output": output, "arrivals": arrivals,
        "trace": trace, "columns": columns, "start": start, "end": end, "seed": seed, "slo": slo, "offline": offline,
        "gpu": gpu, "gpus": gpus, "provider": provider, "region": region, "terms": terms, "discount": discount,
        "offers": None if offers is None else str(offers), "max_price": max_price, "max_age": max_age,
        "weights": weights, "min_weights": min_weights, "kv": kv, "engine": engine,
        "router": router, "max_utilization": max_utilization, "spare": spare, "quick": quick,
    }  # fmt: skip
    scenario = Scenario().over({"model": tuple(what), **flags})
    cases = scenario.cases()
    if len(cases) > 1 and len(scenario.model) > 1:
        raise BadInput("a range is for one model", where="--rate, --input, --output")
    if targets and (len(cases) > 1 or len(scenario.model) > 1):
        raise BadInput("is for one model at one demand", where="--deploy")
    if (why or explain) and (len(cases) > 1 or len(scenario.model) > 1):
        raise BadInput("is for one model at one demand", where="--explain" if explain else "--why")
    studies = [study for each in cases.values() for study in studied(questions_of(each, today()))]
    files = deploy_files_of(studies[0], targets) if targets and len(studies) == 1 else []
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
        views += [f"\n# {each.name}\n{each.text}" for each in files]
    names = ", ".join(dict.fromkeys(study.question.model.name for study in studies))
    answer = Answer(
        result,
        lambda: below_each_other(views),
        f"What serving {names} costs",
        charts,
        exit_code=0 if all(study.plan.best for study in studies) else 1,
    )
    give(answer, json=json, chart=chart, html=html)


Shown = tuple[dict[str, Any], list[Any], dict[str, Callable[[], Any]]]
"""The result for programs, its views for people, and its charts."""


def _one(scenario: "Scenario", study: "Study", top: int | None, why: bool, explain: bool) -> Shown:
    """One model at one demand: its plan, how firm it is, and why not the others."""
    from tokonomics.planner.blame import blame
    from tokonomics.planner.flips import flips
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
    from tokonomics.planner.wishes import discounts_from, gpu_filter

    names, _ = gpu_filter(scenario.gpu, scenario.gpus)
    sold = {each.gpu for each in study.question.offers}
    return {
        "discounts": discounts_from(scenario.discount),
        "without_offers": [name for name in names or () if find_gpu(name).key not in sold],
    }


def _models(studies: "list[Study]") -> Shown:
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


def _cases(studies: "list[Study]", cases: list[str]) -> Shown:
    """Low, middle and high demand: the bill of each, and the least regretful choice."""
    from tokonomics.planner.blame import blame
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
