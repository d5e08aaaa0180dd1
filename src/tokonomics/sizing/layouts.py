"""List every way to lay out a model on GPUs of a kind, or say why it cannot be served.

A layer is split over the GPUs of one machine (TP); experts are split likewise or distributed whole (EP). Groups of GPUs
may attend to their own sequences over one set of experts (DP), in one machine or over several with a fast network.
Stages (PP) are tried if GPUs have no fast link between them, so that splitting every layer is slow, and if nothing else
holds a sequence. Every verb that chooses a layout chooses from these. ``sizing.hosts`` finds the machines for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import product

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import MoeMlp, Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import option
from tokonomics.physics.deployment import NETWORKED, Deployment, valid_tp, why_not_run
from tokonomics.physics.memory import max_sequences, smallest
from tokonomics.types import copied
from tokonomics.units import gigabytes


class Reason(StrEnum):
    """The kinds of reasons why something is not served."""

    no_price = "no price on these terms"
    too_expensive = "more expensive than the price limit"
    old_price = "price too old"
    too_long = "requests longer than the model's context"
    not_supported = "not run by the engine"
    does_not_fit = "does not fit"
    too_slow = "misses the SLO"
    instance_too_small = "needs more GPUs than the instance has"
    host_too_small = "host memory below the weights and a process for each GPU"
    no_zones = "sold without zones"
    no_network = "no fast network between machines is known"
    assumed_speed = "speed assumed: no kernels timed on such a GPU"
    consumer_cards = "more consumer cards than exchange data well"
    too_many_gpus = "takes more GPUs than allowed"
    more_expensive = "more expensive than the pick"
    no_machine = "no machine is sold for it on these terms"
    not_simulated = "not simulated like that"
    nothing_to_change = "nothing to change"


@dataclass(frozen=True)
class NotServed:
    """Why a setup cannot meet its SLOs or be bought, or why a lever changes nothing."""

    kind: Reason
    reason: str  # the reason in words
    fix: str | None = None  # what to change, if more is known than the usual fix

    @property
    def what_to_do(self) -> str | None:
        """Suggest what to change: the specific fix, or the usual one for this kind."""
        return self.fix or _FIXES.get(self.kind)


_FIXES = {
    Reason.too_long: "Take a model with a longer context, or shorter prompts and answers.",
    Reason.does_not_fit: f"Give more GPUs ({option('tp')}), larger ones ({option('gpu')}) or fewer bits "
    f"({option('weights')}).",
    Reason.too_slow: f"Loosen {option('slo')}, or name more or faster GPUs ({option('tp')}, {option('gpu')}).",
    Reason.not_supported: f"Name another engine ({option('engine')}) or precision ({option('weights')}).",
    Reason.instance_too_small: f"Split it over fewer GPUs ({option('tp')}).",
    Reason.no_machine: f"Give its price: {option('usd_per_hour')}, or {option('offers')} with your own list.",
}


_QUANTISED = (Precision.fp8, Precision.int4)
"""The precisions at which a bf16 checkpoint is commonly served (vLLM: fp8 weights per tensor, AWQ, GPTQ)."""
FLOOR = Precision.fp8
"""The lowest precision of weights that any verb tries by default: published scores of FP8 stay near those of 16 bits,
INT4 needs its own checkpoint and a check of its quality."""
_STAGES = (2, 4, 8)
_MACHINES = (2, 4, 8)
_WIDEST = 72
"""GPUs that share experts: DeepSeek's own decoding used 144, published results of others up to 72."""


def weight_choices(model: ModelSpec, floor: Precision | None = FLOOR) -> tuple[Precision, ...]:
    """Return the precisions every verb tries by default: as published, then common lower ones, down to the floor.

    A floor of None sets no limit.
    """
    fewer = [precision for precision in _QUANTISED if precision.is_below(model.served)]
    return (model.served, *(precision for precision in fewer if floor is None or not precision.is_below(floor)))


def _layouts(single: Deployment, most_gpus: int, context: int) -> Iterator[dict[str, int]]:
    """Yield degrees of TP, PP, EP and DP."""
    model, gpu, node = single.model, single.gpu, single.gpu.gpus_per_node
    degrees = valid_tp(model, most_gpus, gpu)
    holds = any(max_sequences(single.model_copy(update={"tp": tp}), context) for tp in degrees if tp <= node)
    # An encoder is small, and engines run it in one stage.
    staged = not model.is_encoder and (gpu.fast_link_bytes_per_s is None or not holds)
    for tp in degrees:
        yield {"tp": tp}
        if model.is_moe and tp > 1:
            yield {"tp": tp, "ep": tp}
        stages = range(2, min(most_gpus // tp, model.layers) + 1) if staged else ()
        yield from ({"tp": tp, "pp": pp} for pp in stages if pp in _STAGES or (most_gpus // tp) % pp == 0)
    if not holds and node >= NETWORKED and node in degrees:
        yield from ({"tp": node, "pp": pp} for pp in _STAGES if most_gpus < node * pp and pp <= model.layers)
    yield from _shared_experts(single, degrees, most_gpus)


def _shared_experts(single: Deployment, degrees: Sequence[int], most_gpus: int) -> Iterator[dict[str, int]]:
    """Yield attention groups over one set of experts: in a machine each expert split over all GPUs, or kept whole.

    Over several machines with a fast network experts are kept whole and every GPU is a group, as DeepSeek and those who
    follow it deploy; only if splitting the attention further would copy its KV cache.
    """
    model, gpu, node = single.model, single.gpu, single.gpu.gpus_per_node
    mixtures = [group.mlp.experts for group in model.groups if isinstance(group.mlp, MoeMlp)]
    heads = [cache.heads for group in model.groups if group.mixer for cache in group.mixer.caches]
    if not mixtures or not heads:
        return
    for gpus, tp in product([gpus for gpus in degrees if gpus <= node], degrees):
        if tp < gpus and gpus % tp == 0:
            yield {"tp": tp, "dp": gpus // tp}
            if not min(mixtures) % gpus:
                yield {"tp": tp, "dp": gpus // tp, "ep": gpus}
    if most_gpus >= node >= NETWORKED and gpu.fast_link_bytes_per_s is not None:
        for gpus in (node * machines for machines in _MACHINES):
            if min(heads) < gpus <= _WIDEST and not min(mixtures) % gpus:
                yield {"tp": 1, "dp": gpus, "ep": gpus}


def is_faithful(deployment: Deployment) -> bool:
    """Return whether weights and KV cache keep at least the precision the checkpoint was published in."""
    return not (
        deployment.weights.is_below(deployment.model.served) or deployment.kv.is_below(deployment.model.kv_served)
    )


_smallest = lru_cache(maxsize=4096)(smallest)  # the same for every layout of a model on a GPU: searched once


def why_not(deployment: Deployment, context: int) -> NotServed | None:
    """Return why a deployment cannot serve sequences of this length; None if it can."""
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
    """Return every layout and precision on GPUs of a kind, and why it cannot serve sequences of this length, if so.

    The largest machine has ``most_gpus``. Results are cached, as one plan asks for them at several prices.
    """
    layouts = (
        single.model_copy(update=layout)
        for weight, cached in product(weights, kv)
        for single in [Deployment(model=model, gpu=gpu, engine=engine, weights=weight, kv=cached)]
        for layout in _layouts(single, most_gpus, context)
    )
    return tuple((deployment, why_not(deployment, context)) for deployment in layouts)


def on_machine(like: Deployment, gpus: int, context: int) -> list[Deployment]:
    """Return the layouts of a deployment that fit this many GPUs, some as several replicas."""
    fitted = fitting(like.model, like.gpu, like.engine, (like.weights,), (like.kv,), gpus, context)
    degrees = [copied(layout, "tp", "pp", "ep", "dp") for layout, refusal in fitted if refusal is None]
    layouts = [like.model_copy(update=split) for split in degrees]
    return [layout for layout in layouts if layout.gpus <= gpus and max_sequences(layout, context)]
