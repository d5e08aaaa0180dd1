"""Turning the flags of traffic into requests: a log, ServeGen's clients, or made-up ones."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from tokonomics.cli.output import console
from tokonomics.errors import BadInput, shorten
from tokonomics.units import plural

if TYPE_CHECKING:
    from tokonomics.cli.groups import Traffic
    from tokonomics.traffic.readers import TraceFile
    from tokonomics.traffic.trace import Trace

_ENDLESS = 20_000
"""Made-up requests where a rate is given and no end: as many as a plan's p99 rests on."""


def traffic_from(trace: str | None, traffic: "Traffic") -> "Trace":
    """A log, ServeGen's clients or made-up requests; then the window, the sample, and the pace, in this order."""
    made_up = {
        "--duration": traffic.duration,
        "--input": traffic.input,
        "--output": traffic.output,
        "--system-prompts": traffic.system_prompts,
        "--sessions": traffic.sessions,
        "--tenants": traffic.tenants,
    }
    requests, seed = traffic.requests, traffic.seed
    if requests is not None and requests < 1:
        raise BadInput(f"must be at least 1, got {requests:,}", where="--requests")
    rate = _rate(traffic)
    window = _window(traffic.start, traffic.end)
    of_clients = {"--servegen-model": traffic.servegen_model, "--servegen-scale": traffic.servegen_scale}
    if trace is not None:
        _refuse({"--arrivals": traffic.arrivals, **made_up}, "is for made-up requests, not for a log")
        log = open_log(trace, traffic.columns, traffic.strict)
        if log is None:
            made = _of_clients(trace, window, traffic.servegen_model, traffic.servegen_scale, seed)
        else:
            _refuse(of_clients, "is for ServeGen's clients, not for a log of requests")
            made = _of_log(log)
            made = made.window(*window) if window else made
        if requests is not None:
            made = _first(made, requests)
        made = _cut(made, traffic.speed, traffic.sample, seed)
        return _at_rate(made, traffic, rate) if rate is not None or traffic.tokens_per_month is not None else made
    if not traffic.is_made_up:
        raise BadInput(
            "no traffic is given",
            fix="Name a log or a shipped sample (azure-conv), or make requests up: --rate 2 --input 512 --output 512.",
        )
    of_log = {"--columns": traffic.columns, "--strict": traffic.strict or None, **of_clients}
    _refuse(of_log, "is for a log, not for made-up requests")
    made = _made_up(traffic, rate)
    made = made.window(*window) if window else made
    return _cut(made, traffic.speed, traffic.sample, seed)


def _rate(traffic: "Traffic") -> float | None:
    """Requests a second, checked; one way of saying it is enough."""
    from tokonomics.planner.scenario import read_rate

    given = {"--rate": traffic.rate, "--tokens-per-month": traffic.tokens_per_month, "--speed": traffic.speed}
    paces = [flag for flag, value in given.items() if value is not None]
    if len(paces) > 1:
        raise BadInput(f"says how fast, as {paces[0]} does", where=paces[1], fix="Give one of the two.")
    if traffic.rate is None:
        return None
    if ":" in traffic.rate:
        raise BadInput(
            f"'{shorten(traffic.rate)}' is a range, which is for plan", where="--rate", fix="Give one rate, such as 5."
        )
    return read_rate(traffic.rate)


def _at_rate(trace: "Trace", traffic: "Traffic", rate: float | None) -> "Trace":
    """A log replayed at another rate."""
    from tokonomics.planner.load import load_of_log
    from tokonomics.planner.scenario import rate_of

    if traffic.tokens_per_month is not None:
        rate = rate_of(traffic.tokens_per_month, float((trace.input_tokens + trace.output_tokens).mean()))
    return load_of_log(trace, rate).trace


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


def _made_up(traffic: "Traffic", rate: float | None) -> "Trace":
    from tokonomics.planner.load import load_of_shape, mean_rate
    from tokonomics.planner.scenario import rate_of
    from tokonomics.traffic.arrivals import parse_arrivals
    from tokonomics.traffic.generate import generate, parse_sessions, parse_system, parse_tenants
    from tokonomics.traffic.lengths import parse_lengths

    if traffic.input is None:
        raise BadInput("is missing: how long are the prompts?", where="--input", fix="Such as --input 512.")
    inputs = parse_lengths(traffic.input, "--input")
    if traffic.output is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", where="--output", fix="Such as --output 256.")
    outputs = inputs if traffic.output is None else parse_lengths(traffic.output, "--output", least=0)
    seed, structured = traffic.seed, traffic.system_prompts or traffic.sessions or traffic.tenants
    if traffic.tokens_per_month is not None:
        drawn = load_of_shape(1.0, inputs, outputs, seed=seed).workload
        rate = rate_of(traffic.tokens_per_month, drawn.input_tokens + drawn.output_tokens)
    process = parse_arrivals("poisson:1" if traffic.arrivals is None else traffic.arrivals)
    if rate is None and traffic.requests is None and traffic.duration is None and process.at_once is None:
        rate = mean_rate(process) or None  # arrivals that no end is given for are their own rate
    if rate is not None:
        if not structured and traffic.requests is None and traffic.duration is None:
            planned = load_of_shape(rate, inputs, outputs, arrivals=traffic.arrivals, seed=seed)
            if planned.share == 1:
                return planned.trace  # the requests that a plan for this rate is sized on
        if process.at_once is not None:
            raise BadInput("a burst has no rate", where="--arrivals", fix="Leave out --rate, or write gamma:5,cv=3.")
        process = process.times(rate / mean_rate(process))
    endless = rate is not None and traffic.requests is None and traffic.duration is None
    made = generate(
        process,
        inputs,
        outputs,
        requests=_ENDLESS if endless else traffic.requests,
        duration_s=read_time(traffic.duration, "--duration"),
        seed=seed,
        system=parse_system(traffic.system_prompts) if traffic.system_prompts is not None else None,
        sessions=parse_sessions(traffic.sessions) if traffic.sessions is not None else None,
        tenants=parse_tenants(traffic.tenants) if traffic.tenants is not None else None,
    )
    exact = rate is not None and process.is_stationary and not traffic.sessions and made.rate > 0
    return made.faster(rate / made.rate) if exact and rate is not None and traffic.duration is None else made


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
