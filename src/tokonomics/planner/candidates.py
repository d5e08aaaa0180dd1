"""What could serve a model: every way to lay it on a GPU type, and the reasons why some cannot.

A layer is split over the GPUs of one machine (TP), experts are split likewise or shared out whole (EP). Stages (PP) are
tried where GPUs have no fast link between them, so that splitting every layer is slow, and over several machines where
the model is too large for one.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import Deployment, valid_tp, why_not_run
from tokonomics.physics.memory import max_sequences, min_gpus
from tokonomics.units import gigabytes

_QUANTISED = (Precision.fp8, Precision.int4)
"""What a bf16 checkpoint is commonly served at besides its own precision (vLLM: fp8 weights per tensor, AWQ, GPTQ)."""
_STAGES = (2, 4, 8)
NETWORKED = 8
"""Machines of eight GPUs are sold with a network card for each (NVIDIA HGX, OCP OAM); smaller ones rarely are, so a
replica is not spread over several of those."""


class Reason(StrEnum):
    """Kinds of refusal, for grouping."""

    no_price = "no price on these terms"
    too_dear = "dearer than the price limit"
    old_price = "price too old"
    too_long = "requests longer than the model's context"
    not_supported = "not run by the engine"
    does_not_fit = "does not fit"
    too_slow = "misses the SLO"
    instance_too_small = "needs more GPUs than the instance has"
    host_too_small = "host memory below the weights and a process for each GPU"
    too_many_gpus = "takes more GPUs than allowed"
    dearer = "dearer than the pick"


class Refusal(NamedTuple):
    """Why a candidate is out: the kind, and the case in words."""

    kind: Reason
    reason: str


def weight_choices(model: ModelSpec) -> tuple[Precision, ...]:
    """The precision it is served in by default, then the common ones below it."""
    return (model.served, *(each for each in _QUANTISED if each.is_below(model.served)))


def deployments(
    model: ModelSpec, gpu: Gpu, engine: Engine, weights: Sequence[Precision], kv: Sequence[Precision], most_gpus: int
) -> Iterator[Deployment]:
    """Every layout and precision on GPUs of a kind, of which the largest machine has ``most_gpus``."""
    for precision in weights:
        for cache in kv:
            one = Deployment(model=model, gpu=gpu, engine=engine, weights=precision, kv=cache)
            for tp, pp, ep in _layouts(one, most_gpus):
                yield one.model_copy(update={"tp": tp, "pp": pp, "ep": ep})


def _layouts(one: Deployment, most_gpus: int) -> Iterator[tuple[int, int, int]]:
    """Degrees of TP, PP and EP."""
    model, gpu = one.model, one.gpu
    degrees = valid_tp(model, most_gpus)
    for tp in degrees:
        yield tp, 1, 1
        if model.is_moe and tp > 1:
            yield tp, 1, tp
        if gpu.fast_link_bytes_per_s is None:
            yield from ((tp, pp, 1) for pp in _STAGES if tp * pp <= most_gpus and pp <= model.layers)
    whole = gpu.gpus_per_node
    if whole >= NETWORKED and whole in degrees and not max_sequences(one.model_copy(update={"tp": whole}), 1):
        yield from ((whole, pp, 1) for pp in _STAGES if pp <= model.layers)


def is_faithful(deployment: Deployment) -> bool:
    """Neither weights nor KV cache at fewer bits than the checkpoint was published for."""
    return not (deployment.weights.is_below(deployment.model.served) or deployment.kv.is_below(Precision.bf16))


_gpus_needed = lru_cache(maxsize=4096)(min_gpus)
"""The same for every layout of a model on a GPU: searched once."""


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
        needed = _gpus_needed(deployment.model_copy(update={"tp": 1, "pp": 1, "ep": 1}), context)
        weights = gigabytes(deployment.model.weight_bytes(deployment.weights))
        need = f"needs {needed} GPUs" if needed else "no number of these GPUs is enough"
        return Refusal(Reason.does_not_fit, f"does not fit: {weights} of weights, {need}")
    return None
