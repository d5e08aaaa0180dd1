"""What each question's result looks like: a function for every verb, which ``describe`` finds by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.report.answer import Answer, below_each_other

if TYPE_CHECKING:
    from tokonomics.questions.catalogue import ApisRequest, OffersRequest
    from tokonomics.questions.cost import CostRequest
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
    from tokonomics.questions.result import Listing, Result
    from tokonomics.questions.results import CostResult, CurveResult, FitResult, PredictResult
    from tokonomics.questions.validate import ValidateRequest
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
