"""Load tests of one's own beside a plan: their prices and latencies, over what was predicted."""

from contextlib import suppress
from pathlib import Path

from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput, UnknownName, shorten
from tokonomics.measure.benchmark_run import ApiLatency, BenchmarkRun, api_latency
from tokonomics.measure.priced_run import GivenMachine, PricedRun, as_model, machine_of, price_run, rental_of
from tokonomics.planner.parsing import listed
from tokonomics.planner.plan_answer import Plan
from tokonomics.questions.inputs import MeasuredApis
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.requests.buy import PlanRequest


def measured_beside(request: PlanRequest, plan: Plan, listener: Listener = SILENT) -> tuple[PricedRun, ...]:
    """Each file's run of the planned model, at the cheapest rent of its machine.

    A file that names no GPU was measured on the one that is asked for; where there are none or several, on the pick's.
    """
    from tokonomics.measure.importers.recognise import read_runs  # Slow to load: only where it is used.

    paths = [Path(name) for name in request.measured or ()]
    runs = [read_runs([path]) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        _check_model(run, shorten(path.name), plan.model, listener)
    return tuple(
        _priced(run, shorten(path.name), request, plan, listener) for path, run in zip(paths, runs, strict=True)
    )


def _check_model(run: BenchmarkRun, where: str, planned: str, listener: Listener) -> None:
    """Refuse a test of another model; where the file's name for it is not known, say what it is taken for."""
    named = "names no model"
    if run.model is not None:
        named = f"names its model {shorten(run.model)}, which is not in the catalogue"
        with suppress(UnknownName):
            if find_model(run.model).key == planned:
                return
            what = f"measured {shorten(run.model)}, the plan is of {planned}"
            raise BadInput(what, where=where, field="measured", fix="Give a test of the planned model.")
    listener.note(f"{where} {named}: taken as a test of {planned}")


def _priced(run: BenchmarkRun, where: str, request: PlanRequest, plan: Plan, listener: Listener) -> PricedRun:
    asked = listed(request.gpu, "gpu") or ()
    picked = plan.best.gpu if plan.best else None
    gpu = run.stated.gpu or (asked[0] if len(asked) == 1 else picked)
    if gpu and not run.stated.gpu:
        listener.note(f"{where} names no GPU: taken as measured on {gpu}")
    own = as_model(run, plan.model)
    machine = machine_of(own.stated, GivenMachine(gpu=gpu))
    return price_run(own, machine, rental_of(machine, plan.model) if machine else None)


def latencies_of(request: MeasuredApis) -> dict[str, ApiLatency]:
    """By ``host:model``; none unless files are given."""
    if not request.measured:
        return {}
    from tokonomics.measure.importers.recognise import read_runs  # Slow to load: only where it is used.

    found: dict[str, ApiLatency] = {}
    for name in request.measured:
        made = api_latency(read_runs([Path(name)]), shorten(Path(name).name))
        if made.api in found:
            raise BadInput(f"{made.api} is measured by two files", field="measured", fix="Give one of them.")
        found[made.api] = made
    return found
