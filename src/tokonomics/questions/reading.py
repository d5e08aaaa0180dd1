"""Requests as a model reads them: with the images that come with every prompt; of an encoder without answers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.sizing.load import Load
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import workload_of

NO_ANSWERS: Lengths = parse_lengths("const:0", "output", least=0)


def trace_for(model: ModelSpec, trace: Trace) -> Trace:
    """The same requests with their images; of an encoder without answers."""
    if model.is_encoder and trace.output_tokens.any():
        trace = trace.resized(trace.input_tokens, np.zeros_like(trace.output_tokens))
    if model.images is None:
        return trace
    if trace.prefix is not None:
        # The tower's work is told by how much of a prompt is cached, and a cached head is text, not images.
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
