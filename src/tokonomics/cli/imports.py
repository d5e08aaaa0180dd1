"""``tokonomics import``: result files of other load generators, in dollars and against our prediction."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give
from tokonomics.cli.flags import SloText, UsdPerHour
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile

if TYPE_CHECKING:
    from tokonomics.measure.benchmark_run import BenchmarkRun
    from tokonomics.measure.priced_run import Machine, Price, PricedRun

Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU it ran on.", show_default="as the file says")]
Gpus = Annotated[
    int | None,
    typer.Option(min=1, max=10**6, help="GPUs it ran on, all replicas.", show_default="as the file says, or 1"),
]
Tp = Annotated[int | None, typer.Option(min=1, max=10**6, help="Tensor parallelism.", show_default="all GPUs")]
Pp = Annotated[int | None, typer.Option(min=1, max=1000, help="Pipeline stages.", show_default="1")]
Ep = Annotated[int | None, typer.Option(min=1, max=10**6, help="Expert parallelism.", show_default="1")]
Weights = Annotated[
    str | None, typer.Option(help="Precision of the weights.", show_default="by the model's name, or its own")
]
Kv = Annotated[str | None, typer.Option(help="Precision of the KV cache: bf16 or fp8.", show_default="bf16")]
EngineName = Annotated[
    str | None, typer.Option("--engine", help="Serving engine.", show_default="as the file says, or vllm")
]


def import_results(
    files: Annotated[list[Path], typer.Argument(help="Result files of one run.", metavar="FILE…")],
    gpu: Gpu = None,
    gpus: Gpus = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model, where the file does not name one we know.", show_default="as the file says"),
    ] = None,
    tp: Tp = None,
    pp: Pp = None,
    ep: Ep = None,
    weights: Weights = None,
    kv: Kv = None,
    engine: EngineName = None,
    usd_per_hour: UsdPerHour = None,
    slo: SloText = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """What a benchmark you already ran costs per million tokens, and how far our prediction was off.

    Reads vLLM bench serve, SGLang bench_serving, guidellm, aiperf and genai-perf, InferenceX, llm-d Benchmark Report
    and tokonomics bench; told apart by what is in them. Tools that write a file for each load: give all of them.

    \b
    Examples:
      tokonomics import vllm-*.json --gpu H100 --gpus 2
      tokonomics import benchmarks.json --gpu L40S --model llama-3.1-8b --usd-per-hour 0.86
      tokonomics import agg_h200_tp8.json --slo tpot_p99=50ms --chart load.png
    """
    from tokonomics.catalog.load_models import find_model
    from tokonomics.measure.importers.recognise import read_runs
    from tokonomics.measure.priced_run import as_model

    if model is not None:
        find_model(model)
    run = read_runs(files)
    if model is not None:
        run = as_model(run, model)
    report(run, gpu, gpus, tp, pp, ep, weights, kv, engine, usd_per_hour, slo, chart, html, json)


def report(
    run: "BenchmarkRun",
    gpu: str | None,
    gpus: int | None,
    tp: int | None,
    pp: int | None,
    ep: int | None,
    weights: str | None,
    kv: str | None,
    engine: str | None,
    usd_per_hour: float | None,
    slo: str | None,
    chart: Path | None,
    html: Path | None,
    json: bool,
) -> None:
    """Price, score and show a run, whoever made it."""
    from tokonomics.measure.priced_run import machine_of, price_run
    from tokonomics.report.bench_charts import bench_chart
    from tokonomics.report.bench_view import bench_view
    from tokonomics.traffic.promises import parse_promises

    check_files(chart, html)
    check_names(gpu, weights, kv, engine)
    machine = machine_of(run.stated, gpu, gpus, tp, pp, ep, engine, weights, kv)
    price = price_from(machine, run.model, gpus, usd_per_hour)
    made: PricedRun = price_run(run, machine, price, parse_promises(slo) if slo is not None else ())
    charts = {"Load against price and latency": lambda: bench_chart(made)}
    title = f"{run.model or 'A server'}, measured by {run.tool}"
    give(Answer(made, lambda: bench_view(made), title, charts), json=json, chart=chart, html=html)


def check_names(gpu: str | None, weights: str | None, kv: str | None, engine: str | None) -> None:
    """What was typed must be known; what a file states may be anything."""
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision

    if gpu is not None:
        find_gpu(gpu)
    if engine is not None:
        find_engine(engine)
    if weights is not None:
        parse_precision(weights, WEIGHT_PRECISIONS, "weights")
    if kv is not None:
        parse_precision(kv, KV_PRECISIONS, "kv")


def price_from(
    machine: "Machine | None", model: str | None, gpus: int | None, usd_per_hour: float | None
) -> "Price | None":
    """As given for each GPU, or the cheapest offer of the machine; None where there is neither."""
    from tokonomics.measure.priced_run import Price, rental_of
    from tokonomics.money.cost import require_positive

    if usd_per_hour is not None:
        many = machine.gpus if machine else gpus or 1
        return Price(usd_per_hour=require_positive("usd_per_hour", usd_per_hour) * many, price_from="as given")
    return rental_of(machine, model) if machine else None
