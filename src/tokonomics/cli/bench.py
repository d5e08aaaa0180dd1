"""``tokonomics bench``: load a server and read dollars."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli.answer import ChartFile, HtmlFile
from tokonomics.cli.flags import SloText, Speed, UsdPerHour
from tokonomics.cli.imports import EngineName, Ep, Gpu, Gpus, Kv, Pp, Tp, Weights
from tokonomics.cli.output import Json, console
from tokonomics.cli.profile_flag import ProfileFile
from tokonomics.errors import BadInput, shorten

if TYPE_CHECKING:
    from tokonomics.measure.bench.progress import Show
    from tokonomics.traffic.trace import Trace


def bench(
    url: Annotated[str, typer.Argument(help="Server: http://host:8000, …/v1, or a whole endpoint.")],
    model: Annotated[str | None, typer.Option(help="Model to ask for.", show_default="the server's only one")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Users at once, each load in turn: 1,4,16,64.")] = None,
    rate: Annotated[str | None, typer.Option(help="Requests a second, arriving at random: 1,2,4.")] = None,
    trace: Annotated[str | None, typer.Option(help="A request log or shipped sample, replayed as it came.")] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Double the users to the knee, or until --slo breaks.")
    ] = False,
    input: Annotated[int, typer.Option("--input", min=1, max=10**6, help="Prompt tokens, about.")] = 512,
    output: Annotated[int, typer.Option("--output", min=1, max=10**6, help="Answer tokens.")] = 128,
    slo: SloText = None,
    requests: Annotated[int | None, typer.Option(min=1, max=10**7, help="At most so many a load.")] = None,
    seconds: Annotated[float, typer.Option(help="At most so long a load.")] = 60.0,
    precision: Annotated[float, typer.Option(help="Stop when mean latencies are known this closely.")] = 0.05,
    max_usd: Annotated[float | None, typer.Option(help="At most so many dollars in all.")] = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    usd_per_hour: UsdPerHour = None,
    tp: Tp = None,
    pp: Pp = None,
    ep: Ep = None,
    weights: Weights = None,
    kv: Kv = None,
    engine: EngineName = None,
    retries: Annotated[int, typer.Option(min=0, max=10, help="Of requests the server did not take.")] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request has failed.")] = 600.0,
    speed: Speed = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Of prompts and arrivals; the same seed sends the same.", show_default="new"),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Keep the result with every request (.json), for import.")] = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Load an OpenAI-compatible server and say what its tokens cost, latency and knee included.

    Answers are streamed; latencies count from when a request was due. A key is taken from OPENAI_API_KEY only, never
    printed or kept. Without a kind of load: --concurrency 1,4,16,64. How it measures: docs/bench.md.

    \b
    Examples:
      tokonomics bench http://localhost:8000 --usd-per-hour 2.49
      tokonomics bench http://localhost:8000 --sweep --slo ttft_p99=0.5,tpot_p99=50ms --gpu H100 --gpus 2
      tokonomics bench http://localhost:8000 --rate 1,2,4 --input 1000 --output 300 --save run.json
      tokonomics bench http://localhost:8000 --trace azure-conv --speed 2 --seconds 120
    """
    from tokonomics.cli.imports import check_names, price_from, report
    from tokonomics.measure.bench.run import Asked, run_bench
    from tokonomics.measure.bench.save import check_save_path, save_run
    from tokonomics.measure.bench.stopping import Budget
    from tokonomics.measure.bench.target import target
    from tokonomics.measure.benchmark_run import Stated
    from tokonomics.measure.priced_run import machine_of
    from tokonomics.report.charts import check_chart_path
    from tokonomics.traffic.promises import parse_promises

    if chart:
        check_chart_path(chart)
    if save:
        check_save_path(save)
    check_names(gpu, weights, kv, engine)
    # Prompts that were sent before may lie in the server's cache: unless asked for, none is sent twice.
    seed = secrets.randbelow(2**31) if seed is None else seed
    users, rates, log = _loads(concurrency, rate, trace, sweep, speed, requests, seed)
    _in_range("--seconds", seconds, 0.1, 86_400)
    _in_range("--timeout", timeout, 0.1, 86_400)
    _in_range("--precision", precision, 1e-3, 1)
    price = price_from(machine_of(Stated(), gpu, gpus, tp, pp, ep, engine, weights, kv), model, gpus, usd_per_hour)
    if max_usd is not None:
        _in_range("--max-usd", max_usd, 1e-6, 1e9)
        if price is None:
            raise BadInput("needs a price", where="--max-usd", fix="Give --usd-per-hour, or --gpu.")
    asked = Asked(
        target(url),
        model=model,
        users=users,
        rates=rates,
        trace=log,
        sweep=sweep,
        input_tokens=input,
        output_tokens=output,
        budget=Budget(precision, requests or 100_000, seconds, max_usd),
        promises=parse_promises(slo) if slo is not None else (),
        usd_per_hour=price.usd_per_hour if price else None,
        retries=retries,
        timeout_s=timeout,
        seed=seed,
    )
    with _live() as show:
        run = run_bench(asked, show)
    if save:
        save_run(run, save)
        typer.echo(f"result saved to {save}", err=True)
    report(run, gpu, gpus, tp, pp, ep, weights, kv, engine, usd_per_hour, slo, chart, html, json)


def _loads(
    concurrency: str | None,
    rate: str | None,
    trace: str | None,
    sweep: bool,
    speed: float | None,
    requests: int | None,
    seed: int,
) -> "tuple[list[int], list[float], Trace | None]":
    """The one kind of load that was asked for."""
    from tokonomics.cli.groups import Traffic
    from tokonomics.cli.traffic_flags import traffic_from
    from tokonomics.measure.bench.run import MOST_USERS

    kinds = {"--concurrency": concurrency, "--rate": rate, "--trace": trace, "--sweep": sweep or None}
    given = [flag for flag, value in kinds.items() if value is not None]
    if len(given) > 1:
        raise BadInput(f"{' and '.join(given)} are different kinds of load", fix="Give one of them.")
    if speed is not None and trace is None:
        raise BadInput("is for a trace", where="--speed")
    if trace is not None:
        return [], [], traffic_from(trace, Traffic(speed=speed, requests=requests, seed=seed))
    if rate is not None:
        return [], _numbers(rate, "--rate", 1e-3, 1e5), None
    if sweep:
        return [], [], None
    users = _numbers("1,4,16,64" if concurrency is None else concurrency, "--concurrency", 1, MOST_USERS)
    if any(each != round(each) for each in users):
        raise BadInput("users are whole numbers", where="--concurrency")
    return [round(each) for each in users], [], None


def _numbers(text: str, flag: str, low: float, high: float) -> list[float]:
    made = []
    for part in text.split(","):
        try:
            made.append(float(part))
        except ValueError:
            raise BadInput(f"'{shorten(part.strip())}' is not a number", where=flag, fix="Such as 1,4,16.") from None
        _in_range(flag, made[-1], low, high)
    return made


def _in_range(flag: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise BadInput(f"must be from {low:g} to {high:,.6g}, got {value:g}", where=flag)


@contextmanager
def _live() -> "Iterator[Show | None]":
    """A line that is drawn again while a load runs; only on a terminal."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    from rich.live import Live

    from tokonomics.report.bench_view import progress_view

    with Live(console=screen, transient=True, auto_refresh=False) as live:
        yield lambda progress: live.update(progress_view(progress), refresh=True)
