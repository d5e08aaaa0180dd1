"""Read or generate the requests that a ``Traffic`` describes: from a log, from ServeGen's clients, or at random."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import check_path
from tokonomics.planner.parsing import amount
from tokonomics.questions.inputs import Attributed, Conversations, Traffic, TrafficShape
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import TraceRequest
from tokonomics.questions.result import Result
from tokonomics.questions.tables import say_columns, trace_in
from tokonomics.sizing.load import conversations, cut_to_context, extent_of, load_of_log, load_of_shape
from tokonomics.traffic.arrivals import Arrivals, parse_arrivals
from tokonomics.traffic.attribution import labels_in
from tokonomics.traffic.generate import (
    ENOUGH_REQUESTS,
    SystemPrompts,
    agent_in,
    generate,
    parse_sessions,
    parse_system,
    parse_tenants,
)
from tokonomics.traffic.grammar import span_s
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.traffic.summary import TraceSummary, summarize
from tokonomics.traffic.trace import Trace, save_trace
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, count, percent, plural, seconds

if TYPE_CHECKING:
    from tokonomics.traffic.readers import TraceFile


_AS_GOOD_AS = 0.05  # note generated requests that miss the rate by more than this; 20,000 random ones miss it by 1 %
_SECONDS_PER_MONTH = HOURS_PER_MONTH * SECONDS_PER_HOUR
_LEAST_RATE, _MOST_RATE = 1e-9, 1e9  # requests a second that a ``Workload`` takes


def traffic_of(traffic: Traffic, listener: Listener, context: int | None = None) -> Trace:
    """Return a log, ServeGen's clients or generated requests; then apply window, sample and pace, in this order.

    Generated requests are cut to the model's ``context``; conversations, like logs, are not.
    """
    if traffic.requests is not None and traffic.requests < 1:
        raise BadInput(f"must be at least 1, got {traffic.requests:,}", field="requests")
    rate = _rate(traffic)
    window = window_of(traffic.start, traffic.end)
    if traffic.trace is not None:
        return _recorded(traffic, rate, listener)
    if not traffic.is_made_up:
        shape = f"{option('rate', 2)} {option('input', 512)} {option('output', 512)}"
        raise BadInput(
            "no traffic is given", fix=f"Name a log or a shipped sample (azure-conv), or make requests up: {shape}."
        )
    _refuse(traffic, ("columns", "strict", *_OF_CLIENTS), "is for a log, not for made-up requests")
    if isinstance(traffic, Attributed) and traffic.by:
        raise BadInput("is for a log, not for made-up requests", field="by")
    trace, rate = _made_up(traffic, rate)
    if context is not None and traffic.sessions is None:
        trace, cut = cut_to_context(trace, context)
        if cut:
            share = f"{percent(cut / len(trace))} of the made-up requests are longer than the model's"
            listener.note(f"{share} {context:,} tokens of context: their prompts are cut to fit")
    trace = trace.window(*window) if window else trace
    trace = _cut(trace, traffic.speed, traffic.sample, traffic.seed)
    if rate is not None:
        _say_rate(trace, traffic, rate, listener)
    return trace


_OF_CLIENTS = ("servegen_model", "servegen_scale")
_MADE_UP = ("arrivals", "duration", "input", "output", "system_prompts", "sessions", "tenants")


def _recorded(traffic: Traffic, rate: float | None, listener: Listener) -> Trace:
    _refuse(traffic, _MADE_UP, "is for made-up requests, not for a log")
    trace, file = read_log(traffic, listener)
    if file and file.problems.count:
        first = "\n".join(f"  {shorten(line, 160)}" for line in file.problems.first)
        listener.note(f"{shorten(file.path.name)}: {plural(file.problems.count, 'row')} could not be used\n{first}")
    if traffic.requests is not None:
        trace = trace.take(np.arange(min(traffic.requests, len(trace))))
    trace = _cut(trace, traffic.speed, traffic.sample, traffic.seed)
    if traffic.tokens_per_month is not None:
        rate = rate_of(traffic.tokens_per_month, float((trace.input_tokens + trace.output_tokens).mean()))
    return trace if rate is None else load_of_log(trace, rate).trace


def _rate(traffic: Traffic) -> float | None:
    """Return the requests a second, checked; refuse two ways of saying it."""
    paces = [name for name in ("rate", "tokens_per_month", "speed") if getattr(traffic, name) is not None]
    if len(paces) > 1:
        raise BadInput(f"says how fast, as {option(paces[0])} does", field=paces[1], fix="Give one of the two.")
    if traffic.rate is None:
        return None
    if ":" in traffic.rate:
        raise BadInput(
            f"'{shorten(traffic.rate)}' is a range, which is for plan", field="rate", fix="Give one rate, such as 5."
        )
    return read_rate(traffic.rate)


def _refuse(traffic: Traffic, names: Iterable[str], why: str) -> None:
    for name in names:
        if getattr(traffic, name) not in (None, False):
            raise BadInput(why, field=name)


def open_log(path: str, columns: str | None = None, strict: bool = False, by: Sequence[str] = ()) -> "TraceFile | None":
    """Open the log; None for ServeGen's clients, which send requests but list none."""
    from tokonomics.traffic.readers import open_trace
    from tokonomics.traffic.recognise import DescribesClients

    try:
        return open_trace(path, columns=columns, strict=strict, by=by)
    except DescribesClients:
        return None


def read_log(traffic: TrafficShape, listener: Listener = SILENT) -> "tuple[Trace, TraceFile | None]":
    """Return the requests of a log in its window, and its file; None for clients and for a table in memory."""
    window = window_of(traffic.start, traffic.end)
    more = traffic if isinstance(traffic, Traffic) else Traffic()  # a plan has no other inputs
    by = (traffic.by or ()) if isinstance(traffic, Attributed) else ()
    file = open_log(traffic.trace, traffic.columns, more.strict, by) if isinstance(traffic.trace, str) else None
    if isinstance(traffic.trace, str) and file is None:
        if by:
            raise BadInput("is for a log of requests, not for ServeGen's clients", field="by")
        from tokonomics.traffic.servegen import servegen_trace

        # Generate only the window: two weeks of a large provider would not fit in memory.
        start_s, end_s = window or (0.0, math.inf)
        scale = 1.0 if more.servegen_scale is None else more.servegen_scale
        last_s = None if math.isinf(end_s) else end_s
        drawn = servegen_trace(
            traffic.trace, model=more.servegen_model, start_s=start_s, end_s=last_s, scale=scale, seed=traffic.seed
        )
        return drawn, None
    _refuse(more, _OF_CLIENTS, "is for ServeGen's clients, not for a log of requests")
    if file:
        listener.doing(f"reading {shorten(file.path.name)}")
        say_columns(file, listener)
    trace = file.read() if file else trace_in(traffic.trace, traffic.columns, more.strict, listener, by)
    return trace.window(*window) if window else trace, file


def _made_up(traffic: Traffic, rate: float | None) -> tuple[Trace, float | None]:
    """Return the generated requests, and the rate that was asked for."""
    inputs, outputs = lengths_of(traffic)
    process = parse_arrivals("poisson:1" if traffic.arrivals is None else traffic.arrivals)
    structure = _structure(traffic)
    if traffic.tokens_per_month is not None:
        mean = load_of_shape(1.0, inputs, outputs, seed=traffic.seed, **structure).workload
        rate = rate_of(traffic.tokens_per_month, mean.input_tokens + mean.output_tokens)
    if rate is None and traffic.requests is None and traffic.duration is None and process.at_once is None:
        rate = extent_of(
            process, inputs, outputs, seed=traffic.seed, sessions=structure["sessions"]
        ).rate  # arrivals without an end have their own rate
    if rate is None:
        requests, duration_s = traffic.requests, read_time(traffic.duration, "duration")
        seed = traffic.seed
        made = generate(process, inputs, outputs, requests=requests, duration_s=duration_s, seed=seed, **structure)
        return made, None
    if process.at_once is not None:
        raise BadInput(
            "a burst has no rate", field="arrivals", fix=f"Leave out {option('rate')}, or write gamma:5,cv=3."
        )
    made = _made_at(rate, process, traffic, inputs, outputs)
    named = traffic.arrivals is None and structure["sessions"] is None
    return replace(made, source=f"poisson:{rate:.6g}") if named else made, rate


def _made_at(rate: float, process: Arrivals, traffic: Traffic, inputs: Lengths, outputs: Lengths) -> Trace:
    """Generate requests of a mean rate: by default those that a plan for it is sized on."""
    structure = _structure(traffic)
    asked = extent_of(process, inputs, outputs, rate=rate, seed=traffic.seed, sessions=structure["sessions"])
    requests, duration_s = traffic.requests, read_time(traffic.duration, "duration")
    if requests is None and duration_s is None:
        if asked.slices > 1:
            span_s = asked.span_s or 0.0
            days = f"{span_s / 86400:g}d" if span_s % 86400 == 0 else f"{math.ceil(span_s)}"
            raise BadInput(
                f"{shorten(process.text)} at {rate:g} requests a second as a whole: "
                f"{asked.expected:,.0f} requests, more than are made unasked",
                field="duration",
                fix=f"Give {option('duration', days)} for all of them, or {option('duration', '1h')} for a part "
                f"(start=11h in {option('arrivals')} says which); tokonomics plan serves a share of the whole.",
            )
        return load_of_shape(rate, inputs, outputs, arrivals=process, seed=traffic.seed, **structure).trace
    make: Callable[..., Trace] = partial(generate, inputs=inputs, outputs=outputs, seed=traffic.seed, **structure)
    is_part_of_a_curve = asked.span_s is not None and duration_s != asked.span_s
    if (sessions := structure["sessions"]) is None:
        made = make(asked.process, requests=requests, duration_s=duration_s)
        # A part of a curve has the rate of its hours, and a requested duration is kept.
        exact = not is_part_of_a_curve and duration_s is None and made.rate > 0
        return made.faster(rate / made.rate) if exact else made
    if is_part_of_a_curve:
        return make(asked.process.times(1 / sessions.turns), requests=requests, duration_s=duration_s)
    return conversations(make, asked.process, rate, sessions, requests, duration_s)


def lengths_of(traffic: TrafficShape, least: int = 0) -> tuple[Lengths, Lengths]:
    """Return the lengths of prompts and of answers, which may come from the same sample."""
    sessions = getattr(traffic, "sessions", None)
    if agent := agent_in(sessions):
        inputs = agent.inputs if traffic.input is None else parse_lengths(traffic.input, "input")
        return inputs, agent.outputs if traffic.output is None else parse_lengths(traffic.output, "output")
    if sessions is not None:
        parse_sessions(sessions)  # a misspelt agent needs no lengths, so it is refused before they are missed
    if traffic.input is None:
        raise BadInput("is missing: how long are the prompts?", field="input", fix=f"Such as {option('input', 512)}.")
    inputs = parse_lengths(traffic.input, "input")
    if traffic.output is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", field="output", fix=f"Such as {option('output', 256)}.")
    return inputs, inputs if traffic.output is None else parse_lengths(traffic.output, "output", least=least)


def _structure(traffic: Traffic) -> dict[str, Any]:
    """Return what generated requests have in common, as ``generate`` takes it."""
    return prompts_of(traffic) | {"tenants": None if traffic.tenants is None else parse_tenants(traffic.tenants)}


def prompts_of(asked: Conversations) -> dict[str, Any]:
    """Return the shared beginnings of prompts, and the conversations that they are turns of."""
    system = None if asked.system_prompts is None else parse_system(asked.system_prompts)
    sessions = None if asked.sessions is None else parse_sessions(asked.sessions)
    if system is None and sessions and sessions.agent and sessions.agent.head_tokens:
        system = SystemPrompts(1, sessions.agent.head_tokens)
    return {"system": system, "sessions": sessions}


def trial_of(traffic: Traffic, listener: Listener, context: int | None = None) -> Trace:
    """Generate requests for a search that sets the rate itself; for a curve, all of it."""
    if not traffic.is_made_up:
        traffic = traffic.model_copy(update={"arrivals": "poisson:1"})
    if traffic.requests is not None or traffic.duration is not None:
        return traffic_of(traffic, listener, context)
    process = parse_arrivals(traffic.arrivals or "poisson:1")
    if process.is_stationary or process.at_once is not None:
        return traffic_of(traffic.model_copy(update={"requests": ENOUGH_REQUESTS}), listener, context)
    rate = _rate(traffic)
    span_s = extent_of(process, *lengths_of(traffic), rate=rate, seed=traffic.seed).span_s or 1.0
    whole = {"rate": repr(ENOUGH_REQUESTS / span_s), "tokens_per_month": None}
    return traffic_of(traffic.model_copy(update=whole), listener, context)


def _say_rate(made: Trace, traffic: Traffic, rate: float, listener: Listener) -> None:
    """Note a rate that differs from the requested one."""
    cuts = (traffic.start, traffic.end, traffic.sample)
    is_cut = any(cut is not None for cut in cuts)
    if not is_cut and traffic.requests is None and traffic.duration is None:
        return
    # Measure over the requested time: a night at its end is part of a day.
    duration_s = None if is_cut else read_time(traffic.duration, "duration")
    served = len(made) / duration_s if duration_s else made.rate
    if abs(served / rate - 1) > _AS_GOOD_AS:
        what = f"{plural(len(made), 'request')} at {served:.3g} a second, not {rate:.3g}"
        listener.note(f"{shorten(made.source)}: {what}, which is the mean of the whole")


def window_of(start: str | None, end: str | None) -> tuple[float, float] | None:
    """Return the window in seconds from the first request; None for all of it."""
    start_s, end_s = read_time(start, "start"), read_time(end, "end")
    if start_s is None and end_s is None:
        return None
    low, high = start_s or 0.0, math.inf if end_s is None else end_s
    if low >= high:
        raise BadInput(f"must be later than {option('start')}", field="end")
    return low, high


def _cut(trace: Trace, speed: float | None, sample: float | None, seed: int) -> Trace:
    if sample is not None:
        trace = trace.sampled(sample, seed)
    if speed is not None:
        if not 1e-6 <= speed <= 1e6:
            raise BadInput(f"must be between 0.000001 and 1,000,000, got {speed:g}", field="speed")
        trace = trace.faster(speed)
    if not len(trace):
        raise BadInput(
            "no request is left",
            fix=f"Widen {option('start')} and {option('end')}, or keep more with {option('sample')}.",
        )
    return trace


def read_time(text: str | None, field: str) -> float | None:
    """Read ``90``, ``10m``, ``2h`` or ``1d``."""
    if text is None:
        return None
    value = span_s(text)
    if value is None:
        raise BadInput(f"'{shorten(text)}' is not a time", field=field, fix="Write seconds, or such as 10m, 2h, 1d.")
    return value


def read_rate(text: str) -> float:
    rate = number_above_0(text, "rate", "Such as 5.")
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise BadInput(f"must be above 0 requests a second, and at most a billion, got {rate:g}", field="rate")
    return rate


def rate_of(tokens_per_month: str, tokens_per_request: float) -> float:
    """Return the requests a second that make this many tokens a month."""
    rate = amount(tokens_per_month, "tokens_per_month") / tokens_per_request / _SECONDS_PER_MONTH
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise BadInput(f"comes to {rate:.3g} requests a second, which nobody serves", field="tokens_per_month")
    return rate


def number_above_0(text: str, field: str, fix: str = "Such as 5, or 2.5:5:10.") -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not value > 0:
        raise BadInput(f"must be a number above 0, got {shorten(text)}", field=field, fix=fix)
    return value


# --- what a log or generated requests are like: ``trace`` -------------------------------------------------------------


class TraceResult(Result, TraceSummary):
    """A description of traffic."""

    def headline(self) -> str:
        span = seconds(self.duration_s)
        return (
            f"{self.source}: {plural(self.requests, 'request')} over {span}, {self.rate:.3g} a second; "
            f"{count(self.input.mean)} tokens in and {count(self.output.mean)} out in the mean"
        )


_AS_IT_IS = {"trace", "columns", "strict", "by", "seed", "machine_tokens_per_second", "machine_usd_per_hour"}
"""Inputs that leave the log unchanged: it is summarised batch by batch, and need not fit in memory."""


def trace(request: TraceRequest, listener: Listener = SILENT) -> TraceResult:
    """Summarise a log or generated requests: rates, bursts, lengths, shared prefixes and idle hours."""
    save = Path(request.save) if request.save else None
    if save:
        check_path(save, "save", (".parquet",))
    summed_up = partial(
        summarize,
        tokens_per_second=request.machine_tokens_per_second,
        usd_per_hour=request.machine_usd_per_hour,
        by=labels_in(request.by or ()),
    )
    log = None
    if isinstance(request.trace, str) and _is_whole(request):
        log = open_log(request.trace, request.columns, request.strict, request.by or ())
    if log:
        reading = f"reading {shorten(log.path.name)}"
        listener.doing(reading)
        return TraceResult(**dict(summed_up(log, on_rows=listener.counting(f"{reading}, rows", 0))))
    requests = traffic_of(request, listener)
    found = summed_up(requests)
    if save:
        save_trace(requests, save)
        listener.note(f"{len(requests):,} requests saved to {save}")
    return TraceResult(**dict(found))


def _is_whole(request: TraceRequest) -> bool:
    """Tell whether nothing asks for a part of the log, or for another pace."""
    defaults = {name: field.default for name, field in type(request).model_fields.items()}
    return {name for name, value in request.given().items() if value != defaults[name]} <= _AS_IT_IS
