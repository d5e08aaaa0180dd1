"""The flags that say what traffic is served, shared by every verb that takes a log or makes requests up."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli.output import console
from tokonomics.errors import BadInput, shorten
from tokonomics.units import plural

if TYPE_CHECKING:
    from tokonomics.traffic.readers import TraceFile
    from tokonomics.traffic.trace import Trace

ArrivalsText = Annotated[
    str | None,
    typer.Option("--arrivals", help="Make requests up: poisson:2, gamma:2,cv=3, diurnal:5,peak=3 … (docs/traffic.md)"),
]
Requests = Annotated[int | None, typer.Option(help="So many requests; of a log the first so many.")]
Duration = Annotated[str | None, typer.Option(help="Make requests up for so long: 90, 10m, 2h, 1d.")]
InputText = Annotated[
    str | None,
    typer.Option("--input", help="Prompt tokens: 512, lognormal:mean=800,p99=6000, uniform:100-900, sample:sharegpt."),
]
OutputText = Annotated[
    str | None, typer.Option("--output", help="Answer tokens, likewise.", show_default="pairs of --input's sample")
]
SystemText = Annotated[
    str | None, typer.Option("--system-prompts", help="Shared heads of prompts: 20,tokens=1000,skew=1.")
]
SessionsText = Annotated[
    str | None, typer.Option("--sessions", help="Conversations: mean turns, think time: 5,think=30,limit=32000.")
]
TenantsText = Annotated[
    str | None, typer.Option("--tenants", help="Customers of unequal size: 10,skew=1,priorities=0/1/…")
]
Speed = Annotated[float | None, typer.Option(help="Replay so many times as fast.")]
Sample = Annotated[float | None, typer.Option(help="Keep requests with this probability; prefix reuse falls.")]
From = Annotated[str | None, typer.Option("--from", help="Leave out what arrives before: 600, 10m, 2h.")]
To = Annotated[str | None, typer.Option("--to", help="Leave out what arrives from then on.")]
ServegenModel = Annotated[
    str | None,
    typer.Option("--servegen-model", help="Of ServeGen's clients: whose, where it describes several models."),
]
ServegenScale = Annotated[
    float | None, typer.Option("--servegen-scale", help="Of ServeGen's clients: so many times their rate.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything random: equal seeds give equal traffic.")]
Columns = Annotated[
    str | None, typer.Option(help="Which column is what: arrival=TIME,input=PROMPT_TOKENS,output=ANSWER_TOKENS.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first row that cannot be used.")]


def traffic_from(
    trace: str | None,
    *,
    arrivals: str | None = None,
    requests: int | None = None,
    duration: str | None = None,
    input_text: str | None = None,
    output_text: str | None = None,
    system_prompts: str | None = None,
    sessions: str | None = None,
    tenants: str | None = None,
    speed: float | None = None,
    sample: float | None = None,
    start: str | None = None,
    end: str | None = None,
    seed: int = 0,
    columns: str | None = None,
    strict: bool = False,
    servegen_model: str | None = None,
    servegen_scale: float | None = None,
) -> "Trace":
    """A log, ServeGen's clients or made-up requests; then the window, the sample and the speed, in this order."""
    made_up = {
        "--duration": duration,
        "--input": input_text,
        "--output": output_text,
        "--system-prompts": system_prompts,
        "--sessions": sessions,
        "--tenants": tenants,
    }
    if requests is not None and requests < 1:
        raise BadInput(f"must be at least 1, got {requests:,}", where="--requests")
    window = _window(start, end)
    of_clients = {"--servegen-model": servegen_model, "--servegen-scale": servegen_scale}
    if trace is not None:
        _refuse({"--arrivals": arrivals, **made_up}, "is for made-up requests, not for a log")
        log = open_log(trace, columns, strict)
        if log is None:
            made = _of_clients(trace, window, servegen_model, servegen_scale, seed)
        else:
            _refuse(of_clients, "is for ServeGen's clients, not for a log of requests")
            made = _of_log(log)
            made = made.window(*window) if window else made
        if requests is not None:
            made = _first(made, requests)
    elif arrivals is not None:
        of_log = {"--columns": columns, "--strict": strict or None, **of_clients}
        _refuse(of_log, "is for a log, not for made-up requests")
        made = _made_up(arrivals, input_text, output_text, system_prompts, sessions, tenants, requests, duration, seed)
        made = made.window(*window) if window else made
    else:
        raise BadInput(
            "no traffic is given",
            fix="Name a log or a shipped sample (azure-conv), or make requests up: "
            "--arrivals poisson:2 --requests 10000 --input 512 --output 512.",
        )
    return _cut(made, speed, sample, seed)


def _refuse(flags: Mapping[str, object], why: str) -> None:
    for flag, value in flags.items():
        if value is not None:
            raise BadInput(why, where=flag)


def _first(trace: "Trace", requests: int) -> "Trace":
    import numpy as np

    return trace.take(np.arange(min(requests, len(trace))))


def open_log(path: str, columns: str | None, strict: bool) -> "TraceFile | None":
    """The log; None for ServeGen's clients, who send requests but list none."""
    from tokonomics.traffic.readers import open_trace
    from tokonomics.traffic.recognise import DescribesClients

    try:
        return open_trace(path, columns=columns, strict=strict)
    except DescribesClients:
        return None


def _of_log(file: "TraceFile") -> "Trace":
    with rows_read(str(file.path)):
        trace = file.read()
    say_problems(file)
    return trace


def _of_clients(
    path: str, window: tuple[float, float] | None, model: str | None, scale: float | None, seed: int
) -> "Trace":
    """Only the window is drawn: two weeks of a large provider would not fit in memory."""
    from tokonomics.traffic.servegen import servegen_trace

    start_s, end_s = window or (0.0, math.inf)
    return servegen_trace(
        path,
        model=model,
        start_s=start_s,
        end_s=None if math.isinf(end_s) else end_s,
        scale=1.0 if scale is None else scale,
        seed=seed,
    )


def say_problems(file: "TraceFile") -> None:
    """On standard error: rows that were left out are never left out in silence."""
    if file.problems.count:
        first = "\n".join(f"  {shorten(line, 160)}" for line in file.problems.first)
        left_out = plural(file.problems.count, "row")
        typer.echo(f"{shorten(file.path.name)}: {left_out} could not be used\n{first}", err=True)


def _made_up(
    arrivals: str,
    input_text: str | None,
    output_text: str | None,
    system_prompts: str | None,
    sessions: str | None,
    tenants: str | None,
    requests: int | None,
    duration: str | None,
    seed: int,
) -> "Trace":
    from tokonomics.traffic.arrivals import parse_arrivals
    from tokonomics.traffic.generate import generate, parse_sessions, parse_system, parse_tenants
    from tokonomics.traffic.lengths import parse_lengths

    if input_text is None:
        raise BadInput("is missing: how long are the prompts?", where="--input", fix="Such as --input 512.")
    inputs = parse_lengths(input_text, "--input")
    if output_text is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", where="--output", fix="Such as --output 256.")
    return generate(
        parse_arrivals(arrivals),
        inputs,
        inputs if output_text is None else parse_lengths(output_text, "--output", least=0),
        requests=requests,
        duration_s=read_time(duration, "--duration"),
        seed=seed,
        system=parse_system(system_prompts) if system_prompts is not None else None,
        sessions=parse_sessions(sessions) if sessions is not None else None,
        tenants=parse_tenants(tenants) if tenants is not None else None,
    )


def _window(start: str | None, end: str | None) -> tuple[float, float] | None:
    start_s, end_s = read_time(start, "--from"), read_time(end, "--to")
    if start_s is None and end_s is None:
        return None
    low, high = start_s or 0.0, math.inf if end_s is None else end_s
    if low >= high:
        raise BadInput("must be later than --from", where="--to")
    return low, high


def _cut(trace: "Trace", speed: float | None, sample: float | None, seed: int) -> "Trace":
    if sample is not None:
        trace = trace.sampled(sample, seed)
    if speed is not None:
        if not 1e-6 <= speed <= 1e6:
            raise BadInput(f"must be between 0.000001 and 1,000,000, got {speed:g}", where="--speed")
        trace = trace.faster(speed)
    if not len(trace):
        raise BadInput("no request is left", fix="Widen --from and --to, or keep more with --sample.")
    return trace


def read_time(text: str | None, flag: str) -> float | None:
    """``90``, ``10m``, ``2h``, ``1d``."""
    from tokonomics.traffic.grammar import span_s

    if text is None:
        return None
    value = span_s(text)
    if value is None:
        raise BadInput(f"'{shorten(text)}' is not a time", where=flag, fix="Write seconds, or such as 10m, 2h, 1d.")
    return value


@contextmanager
def rows_read(name: str) -> Iterator[Callable[[int], None] | None]:
    """Shows on a terminal that a long file is being read; the function it gives takes the rows of each batch."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    told = TextColumn("reading {task.description}  {task.fields[rows]}")
    with Progress(SpinnerColumn(), told, TimeElapsedColumn(), console=screen, transient=True) as progress:
        task = progress.add_task(shorten(name), total=None, rows="")

        def more(rows: int) -> None:
            progress.advance(task, rows)
            progress.update(task, rows=f"{progress.tasks[0].completed:,.0f} rows")

        yield more
