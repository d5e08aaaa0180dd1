"""Build the requested deployment: a model, with images if prompts have any, on a GPU at a precision.

Also build the requested latency targets and classes of service, and requests as the model reads them: with the images
of every prompt, and without answers for an encoder.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tokonomics.catalog.engines import engine_for
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, MoeMlp, parse_precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option, shorten
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.questions.inputs import Classed, Layout, Objectives, PlanTraffic, RoutedExperts, TrafficShape
from tokonomics.sizing.load import Load
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.traffic.slo import Latency, ServiceClass, Slo, parse_classes, parse_slos
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import workload_of


def named(model: str | None) -> str:
    """Return the model, or refuse a question that needs one."""
    if model is None:
        raise BadInput("no model is given", field="model", fix=f"Name one, such as {option('model', 'llama-3.1-8b')}.")
    return model


def reading(model: ModelSpec, images: str | None) -> ModelSpec:
    """Return the model with the images that every prompt brings, if any."""
    return model if images is None else model.reading(images)


def require_writer(model: ModelSpec) -> None:
    """Refuse an encoder if the question is about answers."""
    if model.is_encoder:
        fix = "Of encoders ask predict, plan or simulate."
        raise BadInput(f"{model.name} is an encoder: it writes no tokens", field="model", fix=fix)


def deployment_of(
    layout: Layout, model: str | None, gpu: str, lora_rank: int = 0, lora_adapters: int = 0, images: str | None = None
) -> Deployment:
    several = [name for name in gpu.split(",") if name.strip()]
    if len(several) > 1:
        fix = "Several are compared by: tokonomics plan, tokonomics plan --by-gpu."
        raise BadInput(f"one GPU at a time, got {len(several)}: {shorten(gpu)}", field="gpu", fix=fix)
    weights, found = layout.weights, find_gpu(gpu)
    made = deploy(
        reading(find_model(named(model)), images),
        found,
        engine_for(found, layout.engine),
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        weights=parse_precision(weights, WEIGHT_PRECISIONS, "weights") if weights is not None else None,
        kv=parse_precision(layout.kv, KV_PRECISIONS, "kv") if layout.kv is not None else None,
        lora_rank=lora_rank,
        lora_adapters=lora_adapters,
    )
    visited = layout.visited_experts if isinstance(layout, RoutedExperts) else None
    if visited is None:
        return made
    layers = [group.mlp for group in made.model.groups if isinstance(group.mlp, MoeMlp)]
    if not layers:
        raise BadInput(f"{made.model.name} has no experts", field="visited_experts")
    least, most = min(layer.active_experts for layer in layers), max(layer.experts for layer in layers)
    if not least <= visited <= most:
        raise BadInput(
            f"{visited} experts visited, of {most} in a layer", field="visited_experts", fix=f"From {least} to {most}."
        )
    return made.model_copy(update={"visited_experts": visited})


def targets_of(request: Objectives) -> tuple[Slo, ...]:
    """Return the latency targets of all requests; none offline, or if classes have their own."""
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
    """Refuse a target for jobs if the traffic has none."""
    if any(slo.latency is Latency.job for slo in slos) and trace.turns is None:
        fix = f"Give {option('sessions', 'agent')}, or a log with sessions."
        raise BadInput("has a target for jobs, and these requests are of no session", field="slo", fix=fix)


def check_pauses(slos: Sequence[Slo], trace: Trace) -> None:
    """Refuse a job target that tools and people alone miss, before searching for hardware that meets it."""
    if trace.turns is None:
        return
    from tokonomics.sizing.screen import late_by_pauses  # Loads the simulator, so only for sessions.

    if late := late_by_pauses(trace, slos):
        raise BadInput(late.reason, field="slo", fix=late.what_to_do)


def classes_of(request: Objectives) -> tuple[ServiceClass, ...]:
    """Return the requested classes of service; those without targets get the targets of all."""
    if not isinstance(request, Classed) or not request.classes:
        return ()
    if isinstance(request, PlanTraffic) and request.offline:
        raise BadInput("a batch has no classes", field="classes", fix=f"Leave out {option('offline')}.")
    return parse_classes(request.classes, parse_slos(request.slo) if request.slo is not None else ())


NO_ANSWERS: Lengths = parse_lengths("const:0", "output", least=0)


def trace_for(model: ModelSpec, trace: Trace) -> Trace:
    """Return the same requests with their images; without answers for an encoder."""
    if model.is_encoder and trace.output_tokens.any():
        trace = trace.resized(trace.input_tokens, np.zeros_like(trace.output_tokens))
    if model.images is None:
        return trace
    if trace.prefix is not None:
        # The image tower's work depends on how much of a prompt is cached, and a cached beginning is text.
        what = "are not counted where prompts share their heads"
        raise BadInput(what, field="images", fix="Give lengths alone, or a log without shared prefixes.")
    return trace.resized(trace.input_tokens + np.int32(model.images.tokens), trace.output_tokens)


def load_for(model: ModelSpec, load: Load) -> Load:
    """Do the same for the traffic of a plan."""
    trace = trace_for(model, load.trace)
    return load if trace is load.trace else replace(load, trace=trace, workload=workload_of(trace, load.workload.rate))


def encodes(models: Sequence[ModelSpec], output: str | None, slos: Sequence[Slo]) -> bool:
    """Tell whether these are encoders, and refuse answers for them."""
    encoders = [model.name for model in models if model.is_encoder]
    if not encoders:
        return False
    if len(encoders) < len(models):
        raise BadInput(f"{encoders[0]} writes no tokens: it cannot be compared with models that do", field="model")
    if output is not None:
        raise BadInput(
            f"{encoders[0]} is an encoder: it writes no tokens", field="output", fix=f"Leave out {option('output')}."
        )
    if any(slo.latency is Latency.tpot for slo in slos):
        what = f"{encoders[0]} is an encoder: it has no time per token"
        raise BadInput(what, field="slo", fix="Give ttft or e2e, which are the same for it.")
    return True
