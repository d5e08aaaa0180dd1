"""Load tests of one's own beside a plan: their prices and latencies, over what was predicted."""

from contextlib import suppress
from pathlib import Path

from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.measure.benchmark_run import BenchmarkRun
from tokonomics.measure.importers.recognise import read_runs
from tokonomics.measure.priced_run import PricedRun, Said, as_model, machine_of, price_run, rental_of
from tokonomics.planner.parsing import listed
from tokonomics.planner.plan_answer import Plan
from tokonomics.questions.requests.buy import PlanRequest


def measured_beside(request: PlanRequest, plan: Plan) -> tuple[PricedRun, ...]:
    """Each file's run of the planned model, at the cheapest rent of its machine.

    A file that names no GPU was measured on the one that is asked for; where there are none or several, on the pick's.
    """
    return tuple(
        _priced(read_runs([Path(name)]), shorten(Path(name).name), request, plan) for name in request.measured or ()
    )


def _priced(run: BenchmarkRun, where: str, request: PlanRequest, plan: Plan) -> PricedRun:
    with suppress(UnknownName):  # a file may call the model what it likes
        if run.model is not None and find_model(run.model).key != plan.model:
            what = f"measured {shorten(run.model)}, the plan is of {plan.model}"
            raise BadInput(what, where=where, field="measured", fix="Give a test of the planned model.")
    asked = listed(request.gpu, "gpu") or ()
    picked = plan.best.gpu if plan.best else None
    gpu = run.stated.gpu or (asked[0] if len(asked) == 1 else picked)
    own = as_model(run, plan.model)
    machine = machine_of(own.stated, Said(gpu=gpu))
    return price_run(own, machine, rental_of(machine, plan.model) if machine else None)
