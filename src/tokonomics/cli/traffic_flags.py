"""Turning the flags of traffic into requests: a log, ServeGen's clients, or made-up ones."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from tokonomics.cli.output import console
from tokonomics.errors import BadInput, shorten
from tokonomics.units import plural

if TYPE_CHECKING:
    from tokonomics.cli.groups import Traffic
    from tokonomics.traffic.arrivals import Arrivals
    from tokonomics.traffic.lengths import Lengths
    from tokonomics.traffic.readers import TraceFile
    from tokonomics.traffic.trace import Trace

_AS_GOOD_AS = 0.05
"""By so much may made-up requests miss the rate asked for before it is said: 20,000 random ones miss it by 1 %."""
_ROUNDS = 8
"""Of finding how many conversations make a rate of requests; two or three do."""


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
    made, rate = _made_up(traffic, rate)
    made = made.window(*window) if window else made
    made = _cut(made, traffic.speed, traffic.sample, seed)
    if rate is not None:
        _say_rate(made, traffic, rate)
    return made


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


def _made_up(traffic: "Traffic", rate: float | None) -> "tuple[Trace, float | None]":
    """The requests, and the rate that was asked for."""
    from tokonomics.planner.load import extent_of, load_of_shape
    from tokonomics.planner.scenario import rate_of
    from tokonomics.traffic.arrivals import parse_arrivals
    from tokonomics.traffic.generate import ENOUGH_REQUESTS

    inputs, outputs = _lengths(traffic)
    process = parse_arrivals("poisson:1" if traffic.arrivals is None else traffic.arrivals)
    make = _maker(traffic, inputs, outputs)
    if traffic.tokens_per_month is not None:
        if _is_structured(traffic):
            drawn = make(parse_arrivals("poisson:1"), ENOUGH_REQUESTS, None)
            tokens = float((drawn.input_tokens + drawn.output_tokens).mean())
        else:
            mean = load_of_shape(1.0, inputs, outputs, seed=traffic.seed).workload
            tokens = mean.input_tokens + mean.output_tokens
        rate = rate_of(traffic.tokens_per_month, tokens)
    if rate is None and traffic.requests is None and traffic.duration is None and process.at_once is None:
        rate = extent_of(process, inputs, outputs, seed=traffic.seed).rate  # arrivals without an end bring their own
    if rate is None:
        return make(process, traffic.requests, read_time(traffic.duration, "duration")), None
    if process.at_once is not None:
        raise BadInput("a burst has no rate", where="--arrivals", fix="Leave out --rate, or write gamma:5,cv=3.")
    return _made_at(rate, process, traffic, inputs, outputs), rate


def _made_at(rate: float, process: "Arrivals", traffic: "Traffic", inputs: "Lengths", outputs: "Lengths") -> "Trace":
    """Requests of a mean rate: those that a plan for it is sized on, unless something else is asked for."""
    from tokonomics.planner.load import extent_of, load_of_shape
    from tokonomics.traffic.generate import parse_sessions

    asked = extent_of(process, inputs, outputs, rate=rate, seed=traffic.seed)
    requests, duration_s = traffic.requests, read_time(traffic.duration, "duration")
    if requests is None and duration_s is None:
        if asked.slices > 1:
            span_s = asked.span_s or 0.0
            days = f"{span_s / 86400:g}d" if span_s % 86400 == 0 else f"{math.ceil(span_s)}"
            raise BadInput(
                f"{shorten(process.text)} at {rate:g} requests a second as a whole: "
                f"{asked.expected:,.0f} requests, more than are made unasked",
                where="--duration",
                fix=f"Give --duration {days} for all of them, or --duration 1h for a part (start=11h in --arrivals "
                "says which); tokonomics plan serves a share of the whole.",
            )
        if not _is_structured(traffic):
            return load_of_shape(rate, inputs, outputs, arrivals=process, seed=traffic.seed).trace
        requests, duration_s = (None, asked.span_s) if asked.span_s else (round(asked.expected), None)
    make = _maker(traffic, inputs, outputs)
    is_part_of_a_curve = asked.span_s is not None and duration_s != asked.span_s
    if traffic.sessions is None:
        made = make(asked.process, requests, duration_s)
        # A part of a curve has the rate of its hours, and a time that is asked for is kept.
        exact = not is_part_of_a_curve and duration_s is None and made.rate > 0
        return made.faster(rate / made.rate) if exact else made
    conversations = asked.process.times(1 / parse_sessions(traffic.sessions).turns)
    made = make(conversations, requests, duration_s)
    for _ in range(0 if is_part_of_a_curve else _ROUNDS):
        served = _rate_of(made, duration_s)
        if served <= 0 or abs(served / rate - 1) < _AS_GOOD_AS / 10:
            break
        conversations = conversations.times(rate / served)
        made = make(conversations, requests, duration_s)
    return made


def _is_structured(traffic: "Traffic") -> bool:
    return any(each is not None for each in (traffic.system_prompts, traffic.sessions, traffic.tenants))


def _lengths(traffic: "Traffic") -> "tuple[Lengths, Lengths]":
    from tokonomics.traffic.lengths import parse_lengths

    if traffic.input is None:
        raise BadInput("is missing: how long are the prompts?", where="--input", fix="Such as --input 512.")
    inputs = parse_lengths(traffic.input, "input")
    if traffic.output is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", where="--output", fix="Such as --output 256.")
    return inputs, inputs if traffic.output is None else parse_lengths(traffic.output, "output", least=0)


def _maker(
    traffic: "Traffic", inputs: "Lengths", outputs: "Lengths"
) -> "Callable[[Arrivals, int | None, float | None], Trace]":
    """Makes so many requests, or those of so many seconds, of a process."""
    from tokonomics.traffic.generate import generate, parse_sessions, parse_system, parse_tenants

    system = parse_system(traffic.system_prompts) if traffic.system_prompts is not None else None
    sessions = parse_sessions(traffic.sessions) if traffic.sessions is not None else None
    tenants = parse_tenants(traffic.tenants) if traffic.tenants is not None else None
    return lambda process, requests, duration_s: generate(
        process,
        inputs,
        outputs,
        requests=requests,
        duration_s=duration_s,
        seed=traffic.seed,
        system=system,
        sessions=sessions,
        tenants=tenants,
    )


def trial_from(traffic: "Traffic") -> "Trace":
    """Made-up requests for a search that sets the rate itself: of a curve, all of it."""
    from tokonomics.planner.load import extent_of
    from tokonomics.traffic.arrivals import parse_arrivals
    from tokonomics.traffic.generate import ENOUGH_REQUESTS

    if not traffic.is_made_up:
        traffic = replace(traffic, arrivals="poisson:1")
    if traffic.requests is not None or traffic.duration is not None:
        return traffic_from(None, traffic)
    process = parse_arrivals(traffic.arrivals or "poisson:1")
    if process.is_stationary or process.at_once is not None:
        return traffic_from(None, replace(traffic, requests=ENOUGH_REQUESTS))
    rate = _rate(traffic)
    span_s = extent_of(process, *_lengths(traffic), rate=rate, seed=traffic.seed).span_s or 1.0
    return traffic_from(None, replace(traffic, rate=repr(ENOUGH_REQUESTS / span_s), tokens_per_month=None))


def _say_rate(made: "Trace", traffic: "Traffic", rate: float) -> None:
    """On standard error: another rate than the one asked for is never served in silence."""
    cuts = (traffic.start, traffic.end, traffic.sample)
    is_cut = any(each is not None for each in cuts)
    if not is_cut and traffic.requests is None and traffic.duration is None:
        return
    served = _rate_of(made, None if is_cut else read_time(traffic.duration, "duration"))
    if abs(served / rate - 1) > _AS_GOOD_AS:
        what = f"{plural(len(made), 'request')} at {served:.3g} a second, not {rate:.3g}"
        typer.echo(f"{shorten(made.source)}: {what}, which is the mean of the whole", err=True)


def _rate_of(made: "Trace", duration_s: float | None) -> float:
    """Over the time that was asked for: a night at its end is part of a day."""
    return len(made) / duration_s if duration_s else made.rate


def _window(start: str | None, end: str | None) -> tuple[float, float] | None:
    start_s, end_s = read_time(start, "start"), read_time(end, "end")
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


def read_time(text: str | None, field: str) -> float | None:
    """``90``, ``10m``, ``2h``, ``1d``."""
    from tokonomics.traffic.grammar import span_s

    if text is None:
        return None
    value = span_s(text)
    if value is None:
        raise BadInput(f"'{shorten(text)}' is not a time", field=field, fix="Write seconds, or such as 10m, 2h, 1d.")
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
