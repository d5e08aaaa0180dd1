"""What could serve a model: every way to lay it on a GPU type, and the reasons why some cannot."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import Deployment, valid_tp, why_not_run
from tokonomics.physics.memory import max_sequences, min_gpus
from tokonomics.units import gigabytes

_QUANTISED = (Precision.fp8, Precision.int4)
"""What a bf16 checkpoint is commonly served at besides its own precision (vLLM: --quantization fp8, awq, gptq)."""


class Reason(StrEnum):
    """Kinds of refusal, for grouping."""

    no_price = "no price on these terms"
    too_dear = "dearer than the price limit"
    old_price = "price too old"
    too_long = "requests longer than the model's context"
    not_supported = "not run by the engine"
    does_not_fit = "does not fit"
    too_slow = "misses the promise"
    instance_too_small = "needs more GPUs than the instance has"
    host_too_small = "host memory below one GPU's weights"
    too_many_gpus = "takes more GPUs than allowed"


class Refusal(NamedTuple):
    """Why a candidate is out: the kind, and the case in words."""

    kind: Reason
    reason: str


def weight_choices(model: ModelSpec) -> tuple[Precision, ...]:
    """The precision it is served in by default, then the common ones below it."""
    return (model.served, *(each for each in _QUANTISED if each.is_below(model.served)))


def deployments(
    model: ModelSpec, gpu: Gpu, engine: Engine, weights: Sequence[Precision], kv: Precision, most_gpus: int
) -> Iterator[Deployment]:
    """Every tensor-parallel degree and precision on up to ``most_gpus`` GPUs of a kind."""
    for precision in weights:
        for tp in valid_tp(model, most_gpus):
            yield Deployment(model=model, gpu=gpu, engine=engine, tp=tp, weights=precision, kv=kv)


def why_not(deployment: Deployment, context: int) -> Refusal | None:
    """Why a deployment cannot serve sequences of this length at all; None when it can."""
    if context > deployment.model.max_context:
        longest = deployment.model.max_context
        return Refusal(Reason.too_long, f"requests of {context:,} tokens exceed the model's {longest:,} of context")
    unsupported = why_not_run(deployment.engine, deployment.gpu, deployment.weights, deployment.kv)
    if unsupported:
        return Refusal(Reason.not_supported, unsupported)
    if deployment.tp > deployment.gpu.gpus_per_node:
        node = deployment.gpu.gpus_per_node
        return Refusal(Reason.instance_too_small, f"needs {deployment.tp} GPUs in one node; a node has {node}")
    if not max_sequences(deployment, context):
        needed = min_gpus(deployment, context)
        weights = gigabytes(deployment.model.weight_bytes(deployment.weights))
        need = f"needs {needed} GPUs" if needed else "no number of these GPUs is enough"
        return Refusal(Reason.does_not_fit, f"does not fit: {weights} of weights, {need}")
    return None
