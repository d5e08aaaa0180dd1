"""What could serve a model: every way to lay it on GPUs of a kind, or why it cannot.

A layer is split over the GPUs of one machine (TP), experts are split likewise or shared out whole (EP). Where ranks
would hold copies of the KV cache, groups of them attend to sequences of their own and share their experts (DP), in one
machine or over several with a fast network. Stages (PP) are tried where GPUs have no fast link between them, so that
splitting every layer is slow, and over several machines where the model is too large for one. What machines such
layouts stand on: ``sizing.hosts``.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import MoeMlp
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import NETWORKED, Deployment, valid_tp, why_not_run
from tokonomics.physics.memory import max_sequences, smallest
from tokonomics.sizing.setup import NotServed, Reason
from tokonomics.units import gigabytes

_QUANTISED = (Precision.fp8, Precision.int4)
"""What a bf16 checkpoint is commonly served at besides its own precision (vLLM: fp8 weights per tensor, AWQ, GPTQ)."""
FLOOR = Precision.fp8
"""The fewest bits of weights that are not asked for: published scores of FP8 stay near those of 16 bits, INT4 needs a
checkpoint of its own and a look at its quality."""
_STAGES = (2, 4, 8)
_MACHINES = (2, 4, 8)
_WIDEST = 72
"""GPUs among which experts are shared: DeepSeek's own decoding used 144, published results of others up to 72."""


def weight_choices(model: ModelSpec, floor: Precision | None = None) -> tuple[Precision, ...]:
    """The precision it is served in by default, then the common ones below it, down to the floor."""
    fewer = [precision for precision in _QUANTISED if precision.is_below(model.served)]
    return (model.served, *(precision for precision in fewer if floor is None or not precision.is_below(floor)))


@lru_cache(maxsize=1024)
def deployments(
    model: ModelSpec,
    gpu: Gpu,
    engine: Engine,
    weights: tuple[Precision, ...],
    kv: tuple[Precision, ...],
    most_gpus: int,
) -> tuple[Deployment, ...]:
    """Every layout and precision on GPUs of a kind, of which the largest machine has ``most_gpus``.

    Kept: what is known of one of them is found again at once where it is the very same.
    """
    singles = (
        Deployment(model=model, gpu=gpu, engine=engine, weights=weight, kv=cached)
        for weight, cached in product(weights, kv)
    )
    return tuple(single.model_copy(update=layout) for single in singles for layout in _layouts(single, most_gpus))


def _layouts(single: Deployment, most_gpus: int) -> Iterator[dict[str, int]]:
    """Degrees of TP, PP, EP and DP."""
    model, gpu = single.model, single.gpu
    degrees = valid_tp(model, most_gpus)
    for tp in degrees:
        yield {"tp": tp}
        if model.is_moe and tp > 1:
            yield {"tp": tp, "ep": tp}
        if gpu.fast_link_bytes_per_s is None and not model.is_encoder:  # which is small, and engines run in one stage
            yield from ({"tp": tp, "pp": pp} for pp in _STAGES if tp * pp <= most_gpus and pp <= model.layers)
    whole = gpu.gpus_per_node
    if whole >= NETWORKED and whole in degrees and not max_sequences(single.model_copy(update={"tp": whole}), 1):
        yield from ({"tp": whole, "pp": pp} for pp in _STAGES if pp <= model.layers)
    if gpu.fast_link_bytes_per_s is not None:
        yield from _shared_experts(model, degrees, most_gpus, whole)


def _shared_experts(model: ModelSpec, degrees: Sequence[int], most_gpus: int, node: int) -> Iterator[dict[str, int]]:
    """Groups of the attention over one set of experts, dealt out whole: in a machine, and over several.

    Only where splitting the attention further would copy its KV cache. Over several machines every GPU is a group, as
    DeepSeek and those who follow it deploy.
    """
    mixtures = [group.mlp.experts for group in model.groups if isinstance(group.mlp, MoeMlp)]
    heads = [cache.heads for group in model.groups if group.mixer for cache in group.mixer.caches]
    if not mixtures or not heads:
        return
    sizes = [gpus for gpus in degrees if gpus > 1]
    if most_gpus >= node >= NETWORKED:
        sizes += [node * machines for machines in _MACHINES if node * machines <= _WIDEST]
    for gpus, tp in product(sizes, degrees):
        within = gpus <= node or tp == 1
        if tp < gpus and gpus % tp == 0 and gpus > min(heads) and not min(mixtures) % gpus and within:
            yield {"tp": tp, "dp": gpus // tp, "ep": gpus}


def is_faithful(deployment: Deployment) -> bool:
    """Neither weights nor KV cache at fewer bits than the checkpoint was published for."""
    return not (deployment.weights.is_below(deployment.model.served) or deployment.kv.is_below(Precision.bf16))


_smallest = lru_cache(maxsize=4096)(smallest)
"""The same for every layout of a model on a GPU: searched once."""


def why_not(deployment: Deployment, context: int) -> NotServed | None:
    """Why a deployment cannot serve sequences of this length at all; None when it can."""
    if context > deployment.model.max_context:
        longest = deployment.model.max_context
        return NotServed(Reason.too_long, f"requests of {context:,} tokens exceed the model's {longest:,} of context")
    if unsupported := why_not_run(deployment.engine, deployment.gpu, deployment.weights, deployment.kv):
        return NotServed(Reason.not_supported, unsupported)
    if deployment.tp > deployment.gpu.gpus_per_node:
        node = deployment.gpu.gpus_per_node
        return NotServed(Reason.instance_too_small, f"needs {deployment.tp} GPUs in one node; a node has {node}")
    if not max_sequences(deployment, context):
        needed = _smallest(deployment.model_copy(update={"tp": 1, "pp": 1, "ep": 1, "dp": 1}), context)
        weights = gigabytes(deployment.model.weight_bytes(deployment.weights))
        need = f"needs {needed}" if needed else "no number of these GPUs is enough"
        return NotServed(Reason.does_not_fit, f"does not fit: {weights} of weights, {need}")
    return None


@lru_cache(maxsize=1024)
def fitting(
    model: ModelSpec,
    gpu: Gpu,
    engine: Engine,
    weights: tuple[Precision, ...],
    kv: tuple[Precision, ...],
    most_gpus: int,
    context: int,
) -> tuple[tuple[Deployment, NotServed | None], ...]:
    """``deployments``, each with why it cannot serve; kept, as one plan asks for it at several prices."""
    layouts = deployments(model, gpu, engine, weights, kv, most_gpus)
    return tuple((deployment, why_not(deployment, context)) for deployment in layouts)
