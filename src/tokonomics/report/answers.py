"""What each question's result looks like: a function for every verb, which ``describe`` finds by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.report.answer import Answer, below_each_other

if TYPE_CHECKING:
    from tokonomics.planner.plan import Study
    from tokonomics.questions.doctor import DoctorResult
    from tokonomics.questions.measured_results import (
        CalibrateResult,
        MeterReportResult,
        PricedRunResult,
        ProbeResult,
        ReplayResult,
        ValidateResult,
    )
    from tokonomics.questions.request import Request
    from tokonomics.questions.requests.buy import CostRequest, DiffRequest, PlanRequest
    from tokonomics.questions.requests.known import ApisRequest, OffersRequest
    from tokonomics.questions.requests.run import ValidateRequest
    from tokonomics.questions.requests.traffic import CacheRequest
    from tokonomics.questions.result import Listing, Result
    from tokonomics.questions.results import (
        BreakevenResult,
        CacheResult,
        CapacityResult,
        CompareResult,
        CostResult,
        CurveResult,
        FitResult,
        FleetResult,
        LeversResult,
        NothingHosts,
        OneNoun,
        PlanCases,
        PlanModels,
        PlanResult,
        PredictResult,
        SimulateResult,
        StackResult,
        TenantsResult,
        TraceResult,
    )
    from tokonomics.questions.verbs import Verb

Charts = dict[str, Callable[[], Any]]
_PRICE_RULE = (
    "The cheapest price of the last year for this GPU, whatever its host. Where a model is named (simulate, plan), "
    "hosts with too little memory for its weights are passed over, so the price may be higher."
)


def describe(verb: "Verb", result: "Result", request: "Request") -> Answer:
    """The answer of a verb, as people see it."""
    described: Callable[[Any, Any], Answer] = globals()[verb.function_name]
    return described(result, request)


def plan(result: "PlanResult | PlanModels | PlanCases", request: "PlanRequest") -> Answer:
    from tokonomics.questions.results import PlanCases, PlanModels
    from tokonomics.report.text import file_view

    if isinstance(result, PlanCases):
        views, charts = _plan_cases(result)
        studies = result.studies
    elif isinstance(result, PlanModels):
        views, charts = _plan_models(result)
        studies = result.studies
    else:
        views, charts = _plan_one(result, request)
        studies = (result.study,)
    if not request.deploy_to:
        views += [file_view(file.name, file.text) for file in result.deploy]
    names = ", ".join(dict.fromkeys(study.question.model.name for study in studies))
    return Answer(result, partial(below_each_other, views), f"What serving {names} costs", charts)


def _plan_one(result: "PlanResult", request: "PlanRequest") -> tuple[list[Any], Charts]:
    """One model at one demand: its plan, how firm it is, and why not the others."""
    from tokonomics.report.advice_view import firmness_text, flips_view, sensitivity_view
    from tokonomics.report.plan_view import blame_view, plan_view, why_view

    study: Study = result.study
    whole, name = study.plan, study.question.model.name
    views: list[Any] = []
    charts: Charts = {}
    if result.best is None:
        views.append(blame_view(whole, name, result.blame))
    else:
        charts = _plan_charts(result)
        firm = firmness_text(result.headroom, result.bill_range) if result.headroom and result.bill_range else None
        rows = request.top or 10
        views.append(plan_view(whole, firm, rows=rows, model_name=name, **_plan_asides(request, study)))
        if result.flips:
            views += ["", flips_view(whole, result.flips)]
        if result.sensitivity:
            views += ["", sensitivity_view(result.sensitivity)]
    if request.why:
        views += ["", why_view(whole)]
    return views, charts


def _plan_asides(request: "PlanRequest", study: "Study") -> dict[str, Any]:
    """What the reader should know of the filters: discounts taken off, GPUs that nobody sells."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.planner.parsing import discounts_from, gpu_filter

    names, _ = gpu_filter(request.gpu, request.gpus)
    sold = {offer.gpu for offer in study.question.offers}
    return {
        "discounts": discounts_from(request.discount),
        "without_offers": [name for name in names or () if find_gpu(name).key not in sold],
    }


def _plan_charts(result: "PlanResult") -> Charts:
    """The bill by hardware, the frontier of price and latency, and, where asked for, what moves the bill."""
    from tokonomics.planner.frontier import frontier
    from tokonomics.report.charts import plan_chart
    from tokonomics.report.plan_charts import frontier_chart, sensitivity_chart

    study: Study = result.study
    name = study.question.model.name
    charts: Charts = {
        "Bills": partial(plan_chart, study.plan, name),
        "Price against latency": lambda: frontier_chart(frontier(study.question), study.plan, name),
    }
    if result.sensitivity:
        charts["What moves the bill"] = partial(sensitivity_chart, result.sensitivity, name)
    return charts


def _plan_models(result: "PlanModels") -> tuple[list[Any], Charts]:
    from tokonomics.report.advice_view import models_view
    from tokonomics.report.charts import bill_chart
    from tokonomics.report.plan_view import asked_text

    studies, picks = result.studies, list(result.models)
    names = [f"{place}. {row.model} on {row.gpu}" for place, row in enumerate(picks, 1)]
    asked = asked_text(studies[0].plan, "The same requests")
    title = "What each model costs on its cheapest hardware"
    views: list[Any] = [asked_text(studies[0].plan, ", ".join(study.question.model.name for study in studies)), ""]
    views.append(models_view(studies, picks) if picks else "Nothing fits for any of them: plan one alone to see why.")
    return views, {"Bills": partial(bill_chart, picks, names, title, asked)} if picks else {}


def _plan_cases(result: "PlanCases") -> tuple[list[Any], Charts]:
    from tokonomics.report.advice_view import regret_view
    from tokonomics.report.plan_charts import regret_chart
    from tokonomics.report.plan_view import blame_view

    name = result.studies[0].question.model.name
    if result.regret is None:
        lost = next(study for study in result.studies if study.plan.best is None)
        return [blame_view(lost.plan, name, result.blame)], {}
    charts: Charts = {"Bills and regrets": partial(regret_chart, result.regret, name)}
    return [regret_view(result.regret, list(result.cases or ()), name)], charts


def diff(result: "OneNoun", request: "DiffRequest") -> Answer:
    from pathlib import Path

    from rich.text import Text

    from tokonomics.report.diff_view import diff_markdown, diff_view

    def view() -> object:
        if request.markdown:
            return Text(diff_markdown(result.noun), no_wrap=True, overflow="ignore")
        return diff_view(result.noun)

    return Answer(result, view, f"{Path(request.before).name} against {Path(request.after).name}")


def fleet(result: "FleetResult", request: "Request") -> Answer:
    from tokonomics.report.fleet_charts import fleet_chart
    from tokonomics.report.fleet_view import fleet_view

    charts: Charts = {"What runs hour by hour": partial(fleet_chart, result)}
    return Answer(result, partial(fleet_view, result), f"The fleet for {result.model}", charts)


def breakeven(result: "BreakevenResult | NothingHosts", request: "Request") -> Answer:
    from tokonomics.questions.results import BreakevenResult
    from tokonomics.report.breakeven_charts import breakeven_chart
    from tokonomics.report.breakeven_view import breakeven_view
    from tokonomics.report.plan_view import blame_view

    if isinstance(result, BreakevenResult):
        charts: Charts = {"Bills against volume": partial(breakeven_chart, result)}
        return Answer(result, partial(breakeven_view, result), f"Host {result.model} or call an API", charts)
    study: Study = result.study
    name = study.question.model.name
    view = partial(blame_view, study.plan, name, result.blame, "See tokonomics plan … --why.")
    return Answer(result, view, f"Nothing hosts {name}")


def own_hardware(result: "OneNoun", request: "Request") -> Answer:
    from tokonomics.clock import today
    from tokonomics.report.own_hardware_view import own_hardware_view

    return Answer(result, partial(own_hardware_view, result.noun, today()), f"A {result.noun.gpu} of your own")


def compare(result: "CompareResult", request: "Request") -> Answer:
    from tokonomics.report.compare_charts import compare_chart
    from tokonomics.report.compare_view import compare_view

    charts: Charts = {"Dollars per million tokens": partial(compare_chart, result)} if result.gpus else {}
    return Answer(result, partial(compare_view, result), "Models and GPUs side by side", charts)


def fit(result: "FitResult", request: "Request") -> Answer:
    from tokonomics.report.fit_view import fit_view

    return Answer(result, partial(fit_view, result.memory), f"Does {result.model} fit {result.gpu}?")


def predict(result: "PredictResult", request: "Request") -> Answer:
    from tokonomics.report.predict_view import predict_view

    return Answer(result, partial(predict_view, result), f"A step of {result.deployment}")


def curve(result: "CurveResult", request: "Request") -> Answer:
    from tokonomics.report.charts import curve_chart
    from tokonomics.report.predict_view import curve_view

    charts: Charts = {"What batching buys": partial(curve_chart, result)}
    return Answer(result, partial(curve_view, result), f"Batching on {result.deployment}", charts)


def cost(result: "CostResult", request: "CostRequest") -> Answer:
    from tokonomics.report import cost_view

    rule = _PRICE_RULE if request.usd_per_hour is None else None
    views = [
        cost_view.cost_view(
            result,
            gpus=result.gpus,
            price_note=result.price_note,
            price_rule=rule,
            usd_per_request=result.usd_per_request,
        )
    ]
    if result.loads:
        views += ["", cost_view.loads_view(result.loads, result.gpus)]
    if result.target:
        views += ["", cost_view.target_view(result.target)]
    return Answer(result, partial(below_each_other, views), "What a million tokens costs")


def models(result: "Listing", request: "Request") -> Answer:
    from tokonomics.report.catalog_view import models_view

    return Answer(result, partial(models_view, result.rows), "Models")


def gpus(result: "Listing", request: "Request") -> Answer:
    from tokonomics.report.catalog_view import gpus_view

    return Answer(result, partial(gpus_view, result.rows), "GPUs")


def offers(result: "Listing", request: "OffersRequest") -> Answer:
    from tokonomics.clock import today
    from tokonomics.planner.parsing import parse_terms
    from tokonomics.report.catalog_view import offers_view

    view = partial(offers_view, result.rows, parse_terms(request.terms), today(), request.top)
    return Answer(result, view, "GPU prices")


def apis(result: "Listing", request: "ApisRequest") -> Answer:
    from tokonomics.clock import today
    from tokonomics.report.catalog_view import apis_view

    view = partial(apis_view, result.rows, request.input, request.output, today(), request.top)
    return Answer(result, view, "Token prices")


def trace(result: "TraceResult", request: "Request") -> Answer:
    from tokonomics.report.trace_view import trace_view
    from tokonomics.report.traffic_charts import traffic_chart

    charts: Charts = {"What arrives": partial(traffic_chart, result)}
    return Answer(result, partial(trace_view, result), f"Traffic: {result.source}", charts)


def simulate(result: "SimulateResult", request: "Request") -> Answer:
    from tokonomics.report.simulate_charts import simulate_chart
    from tokonomics.report.simulate_view import simulate_view, what_serves
    from tokonomics.units import plural

    simulation, log = result.simulation, result.log
    subtitle = f"{log.source}: {plural(result.requests, 'request')}, {log.rate:.3g} a second"
    served = what_serves(simulation)
    charts: Charts = {
        "What happens over time": partial(simulate_chart, result, list(result.timeline), served, subtitle)
    }
    view = partial(simulate_view, simulation, result, result.cost)
    return Answer(result, view, f"{served} under {log.source}", charts)


def capacity(result: "CapacityResult", request: "Request") -> Answer:
    from tokonomics.report.simulate_charts import capacity_chart
    from tokonomics.report.simulate_view import capacity_view

    best, log = result.highest_rate, result.log
    points = [(trial.rate, trial.outcome) for trial in best.trials]
    charts: Charts = {
        "Latency as the rate grows": partial(capacity_chart, points, result.deployment, log.source, best.rate)
    }
    view = partial(capacity_view, result.placed, log, best, result.replicas_needed, result.cost)
    return Answer(result, view, f"What {result.deployment} holds", charts)


def cache(result: "CacheResult", request: "CacheRequest") -> Answer:
    from tokonomics.report.cache_charts import cache_chart
    from tokonomics.report.cache_view import cache_view

    lever, hits, threshold = result.prefix_cache, result.semantic, request.threshold
    charts: Charts = {"What caching saves": partial(cache_chart, lever, hits, threshold)}
    view = partial(
        cache_view,
        lever,
        result.templates,
        result.text_templates,
        hits,
        result.semantic_bill,
        threshold,
        result.price_from,
    )
    return Answer(result, view, "What caching saves", charts)


def levers(result: "LeversResult", request: "Request") -> Answer:
    from tokonomics.report.levers_charts import levers_chart
    from tokonomics.report.levers_view import levers_view, utilization_view

    views = [levers_view(result, result.setup)]
    if result.utilization:
        views += ["", utilization_view(result.utilization)]
    charts: Charts = {"What each lever saves": partial(levers_chart, result, result.setup)}
    title = f"What to change first for {result.setup.deployment.model.name}"
    return Answer(result, partial(below_each_other, views), title, charts)


def stack(result: "StackResult", request: "Request") -> Answer:
    from tokonomics.report.levers_charts import stack_chart
    from tokonomics.report.levers_view import stack_view

    charts: Charts = {"From naive to best": partial(stack_chart, result, result.setup)}
    title = f"All optimisations of {result.setup.deployment.model.name}, in order"
    return Answer(result, partial(stack_view, result, result.setup), title, charts)


def tenants(result: "TenantsResult", request: "Request") -> Answer:
    from tokonomics.report.tenants_charts import tenants_chart
    from tokonomics.report.tenants_view import tenants_view

    noisy = result.noisy_neighbour
    charts: Charts = {"Shared or apart": partial(tenants_chart, result, noisy, result.targets)}
    view = partial(tenants_view, result, noisy, result.lora, result.price_from)
    return Answer(result, view, "One fleet for all tenants", charts)


def bench(result: "PricedRunResult", request: "Request") -> Answer:
    from tokonomics.report.bench_charts import bench_chart
    from tokonomics.report.bench_view import bench_view

    title = f"{result.run.model or 'A server'}, measured by {result.run.tool}"
    charts: Charts = {"Load against price and latency": partial(bench_chart, result)}
    return Answer(result, partial(bench_view, result), title, charts)


import_results = bench


def calibrate(result: "CalibrateResult", request: "Request") -> Answer:
    from tokonomics.report.calibrate_view import calibrate_view

    return Answer(result, partial(calibrate_view, result, result.saved_to), "A calibration")


def probe(result: "ProbeResult", request: "Request") -> Answer:
    from tokonomics.report.calibrate_view import probe_view

    view = partial(probe_view, result.profile, result.saved_to)
    return Answer(result, view, f"A probe of {result.profile.gpus[0]}")


def validate(result: "ValidateResult | ReplayResult", request: "ValidateRequest") -> Answer:
    from tokonomics.questions.measured_results import ReplayResult
    from tokonomics.report.charts import validation_chart
    from tokonomics.report.replay_view import replay_view
    from tokonomics.report.validate_view import validate_view

    name = Path(request.file).name
    if isinstance(result, ReplayResult):
        return Answer(result, partial(replay_view, result), f"Replay of {name}")
    drawn = partial(validation_chart, result.predictions)
    charts: Charts = {"Predicted over measured": drawn} if result.predictions else {}
    return Answer(result, partial(validate_view, result), f"Predictions against {name}", charts)


def doctor(result: "DoctorResult", request: "Request") -> Answer:
    from tokonomics.report.doctor_view import doctor_view

    return Answer(result, partial(doctor_view, result), "Doctor")


def meter_report(result: "MeterReportResult", request: "Request") -> Answer:
    from tokonomics.report.meter_charts import bill_over_time
    from tokonomics.report.meter_view import bill_view

    charts: Charts = {"Dollars over time": partial(bill_over_time, result.in_time, result.over)}
    return Answer(result, partial(bill_view, result), "What the metered tokens cost", charts)
