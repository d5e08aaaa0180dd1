"""What could serve a model: every way to lay it on a GPU type, and the reasons why some cannot."""

from collections.abc import Iterator, Sequence

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import Deployment, deploy, valid_tp
from tokonomics.physics.memory import max_sequences, min_gpus
from tokonomics.units import gigabytes

_QUANTISED = (Precision.fp8, Precision.int4)
"""What a bf16 checkpoint is commonly served at besides its own precision (vLLM: --quantization fp8, awq, gptq)."""


def weight_choices(model: ModelSpec) -> tuple[Precision, ...]:
    """The checkpoint's own precision, then the common ones below it."""
    return (model.checkpoint, *(each for each in _QUANTISED if each.is_below(model.checkpoint)))


def deployments(
    model: ModelSpec, gpu: Gpu, engine: Engine, weights: Sequence[Precision], kv: Precision, most_gpus: int
) -> Iterator[Deployment]:
    """Every tensor-parallel degree and precision on up to ``most_gpus`` GPUs of a kind."""
    for precision in weights:
        for tp in valid_tp(model, most_gpus):
            yield deploy(model, gpu, engine, tp=tp, weights=precision, kv=kv)


def why_not(deployment: Deployment, context: int) -> str | None:
    """The reason a deployment cannot serve sequences of this length at all; None when it can."""
    if context > deployment.model.max_context:
        longest = deployment.model.max_context
        return f"requests of {context:,} tokens exceed the model's {longest:,} tokens of context"
    hardware = deployment.engine.hardware_of(deployment.gpu.architecture)
    if hardware is None:
        return f"{deployment.engine.key} does not run on {deployment.gpu.architecture} GPUs"
    if deployment.weights not in hardware.weights:
        return f"{deployment.engine.key} does not run {deployment.weights} weights on {deployment.gpu.architecture}"
    if deployment.kv not in hardware.kv:
        return f"{deployment.engine.key} does not keep KV in {deployment.kv} on {deployment.gpu.architecture}"
    if deployment.tp > deployment.gpu.gpus_per_node:
        node = deployment.gpu.gpus_per_node
        return f"needs {deployment.tp} GPUs in one node; a node of {deployment.gpu.key} has {node}"
    if not max_sequences(deployment, context):
        needed = min_gpus(deployment, context)
        weights = gigabytes(deployment.model.weight_bytes(deployment.weights))
        need = f"needs {needed} GPUs" if needed else "no number of these GPUs is enough"
        return f"does not fit: {weights} of weights, {need}"
    return None
