"""What bench, import and calibrate share: the machine that was measured, its price, and the priced run."""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput
from tokonomics.questions.inputs import Objectives
from tokonomics.questions.request import Number, Request, Text, Whole, declared

if TYPE_CHECKING:
    from tokonomics.measure.benchmark_run import BenchmarkRun, Stated
    from tokonomics.measure.priced_run import MeasuredMachine, Price
    from tokonomics.questions.measured_results import PricedRunResult


class Ran(Request):
    """The machine and the engine that were measured, where the files do not say."""

    gpu: Text | None = declared(None, "GPU it ran on.", without="as the file says", example="H100")
    gpus: Whole | None = declared(
        None, "GPUs it ran on, all replicas.", low=1, high=10**6, without="as the file says, or 1", example=2
    )
    tp: Whole | None = declared(None, "Tensor parallelism.", low=1, high=10**6, without="all GPUs", example=2)
    pp: Whole | None = declared(None, "Pipeline stages.", low=1, high=1000, without="1", example=1)
    ep: Whole | None = declared(None, "Expert parallelism.", low=1, high=10**6, without="1", example=1)
    weights: Text | None = declared(
        None, "Precision of the weights.", without="by the model's name, or its own", example="fp8"
    )
    kv: Text | None = declared(None, "Precision of the KV cache: bf16 or fp8.", without="bf16", example="bf16")
    engine: Text | None = declared(None, "Serving engine.", without="as the file says, or vllm", example="vllm")


class Rented(Ran, Objectives):
    """A machine with a price, and the latency targets that its loads are held against."""

    usd_per_hour: Number | None = declared(
        None, "Price of one GPU-hour.", without="the cheapest offer, if there is one", example=2.5
    )


def priced(run: "BenchmarkRun", request: Rented) -> "PricedRunResult":
    """A run in dollars, and how far predictions were off, whoever measured it."""
    from tokonomics.measure.priced_run import price_run
    from tokonomics.questions.measured_results import PricedRunResult
    from tokonomics.traffic.slo import parse_slos

    machine = machine_from(run.stated, request)
    price = price_from(machine, run.model, request.gpus, request.usd_per_hour)
    targets = parse_slos(request.slo) if request.slo is not None else ()
    return PricedRunResult(**dict(price_run(run, machine, price, targets)))


def check_names(ran: Ran) -> None:
    """What was typed must be known; what a file states may be anything."""
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision

    if ran.gpu is not None:
        find_gpu(ran.gpu)
    if ran.engine is not None:
        find_engine(ran.engine)
    if ran.weights is not None:
        parse_precision(ran.weights, WEIGHT_PRECISIONS, "weights")
    if ran.kv is not None:
        parse_precision(ran.kv, KV_PRECISIONS, "kv")


def machine_from(stated: "Stated", ran: Ran) -> "MeasuredMachine | None":
    """What the user says, completed by what the file says; None where neither names a GPU."""
    from tokonomics.measure.priced_run import Said, machine_of

    split = (ran.tp, ran.pp, ran.ep)
    return machine_of(stated, Said(ran.gpu, ran.gpus, *split, ran.engine, ran.weights, ran.kv))


def price_from(
    machine: "MeasuredMachine | None", model: str | None, gpus: int | None, usd_per_hour: float | None
) -> "Price | None":
    """As given for each GPU, or the cheapest offer of the machine; None where there is neither."""
    from tokonomics.measure.priced_run import Price, rental_of
    from tokonomics.money.cost import require_positive

    if usd_per_hour is not None:
        count = machine.gpus if machine else gpus or 1
        return Price(usd_per_hour=require_positive("usd_per_hour", usd_per_hour) * count, price_from="as given")
    return rental_of(machine, model) if machine else None


def paths_of(files: tuple[str, ...]) -> list[Path]:
    """Files by name; there must be one."""
    if not files:
        raise BadInput("no file is given", field="files")
    return [Path(name) for name in files]


def require_range(field: str, value: float, low: float, high: float) -> float:
    """An input from ``low`` to ``high``."""
    if not low <= value <= high:
        raise BadInput(f"must be from {low:g} to {high:,.6g}, got {value:g}", field=field)
    return value
