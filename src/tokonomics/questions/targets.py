"""Latency targets and classes of service that were asked for, and requests as a model reads them: with the images that
come with every prompt; of an encoder without answers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.questions.inputs import Classed, Objectives, PlanTraffic, TrafficShape
from tokonomics.sizing.load import Load
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.traffic.slo import Latency, ServiceClass, Slo, parse_classes, parse_slos
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import workload_of


def targets_of(request: Objectives) -> tuple[Slo, ...]:
    """The latency targets of all requests; none offline, nor where classes have their own."""
    if isinstance(request, PlanTraffic) and request.offline and request.slo:
        fix = f"Leave out {option('slo')} or {option('offline')}."
        raise BadInput("has no latency targets", field="offline", fix=fix)
    if isinstance(request, Classed) and request.classes:
        return ()
    slos = parse_slos(request.slo) if request.slo is not None else ()
    if any(slo.latency is Latency.job for slo in slos) and not isinstance(request, TrafficShape):
        raise BadInput("job times are of sessions that are simulated", field="slo", fix="Use ttft, tpot or e2e here.")
    return slos


def check_jobs(slos: Sequence[Slo], trace: Trace) -> None:
    """Refuse a target for jobs where the traffic has none."""
    if any(slo.latency is Latency.job for slo in slos) and trace.turns is None:
        fix = f"Give {option('sessions', 'agent')}, or a log with sessions."
        raise BadInput("has a target for jobs, and these requests are of no session", field="slo", fix=fix)


def check_pauses(slos: Sequence[Slo], trace: Trace) -> None:
    """Refuse a target for jobs that tools and people alone break, before a search for hardware that meets it."""
    if trace.turns is None:
        return
    from tokonomics.sizing.screen import late_by_pauses  # With the simulator: only where sessions are.

    if late := late_by_pauses(trace, slos):
        raise BadInput(late.reason, field="slo", fix=late.what_to_do)


def classes_of(request: Objectives) -> tuple[ServiceClass, ...]:
    """The classes of service that were asked for; those that name no targets have those of all."""
    if not isinstance(request, Classed) or not request.classes:
        return ()
    if isinstance(request, PlanTraffic) and request.offline:
        raise BadInput("a batch has no classes", field="classes", fix=f"Leave out {option('offline')}.")
    return parse_classes(request.classes, parse_slos(request.slo) if request.slo is not None else ())


NO_ANSWERS: Lengths = parse_lengths("const:0", "output", least=0)


def trace_for(model: ModelSpec, trace: Trace) -> Trace:
    """The same requests with their images; of an encoder without answers."""
    if model.is_encoder and trace.output_tokens.any():
        trace = trace.resized(trace.input_tokens, np.zeros_like(trace.output_tokens))
    if model.images is None:
        return trace
    if trace.prefix is not None:
        # The work of the image tower follows from how much of a prompt is cached, and a cached head is text.
        what = "are not counted where prompts share their heads"
        raise BadInput(what, field="images", fix="Give lengths alone, or a log without shared prefixes.")
    return trace.resized(trace.input_tokens + np.int32(model.images.tokens), trace.output_tokens)


def load_for(model: ModelSpec, load: Load) -> Load:
    """The same of the traffic of a plan."""
    trace = trace_for(model, load.trace)
    return load if trace is load.trace else replace(load, trace=trace, workload=workload_of(trace, load.workload.rate))


def encodes(models: Sequence[ModelSpec], output: str | None, slos: Sequence[Slo]) -> bool:
    """Whether these are encoders, of which no answers may be asked."""
    encoders = [model.name for model in models if model.is_encoder]
    if not encoders:
        return False
    if len(encoders) < len(models):
        raise BadInput(f"{encoders[0]} writes no tokens: it cannot be compared with models that do", field="model")
    if output is not None:
        raise BadInput(f"{encoders[0]} is an encoder: it writes no tokens", field="output", fix=_leave_out("output"))
    if any(slo.latency is Latency.tpot for slo in slos):
        what = f"{encoders[0]} is an encoder: it has no time per token"
        raise BadInput(what, field="slo", fix="Give ttft or e2e, which are the same for it.")
    return True


def _leave_out(field: str) -> str:
    return f"Leave out {option(field)}."
