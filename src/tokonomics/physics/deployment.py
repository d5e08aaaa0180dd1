"""A model on some GPUs: the unit whose memory and speed everything else is computed from."""

from pydantic import PositiveInt

from tokonomics.catalog.engines import Defaults, Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.models import DenseMlp, GroupedAttention, LatentAttention, ModelSpec, MoeMlp
from tokonomics.catalog.precision import KV_PRECISIONS, Precision
from tokonomics.errors import BadInput
from tokonomics.nouns import Noun


class Deployment(Noun):
    """One replica: a model at a precision, split over ``tp × pp`` GPUs, run by an engine with its limits."""

    model: ModelSpec
    gpu: Gpu
    engine: Engine
    weights: Precision
    kv: Precision
    tp: PositiveInt = 1
    pp: PositiveInt = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp

    @property
    def limits(self) -> Defaults:
        """Batch and memory limits the engine sets itself on this GPU."""
        return self.engine.defaults_on(self.gpu)

    def __str__(self) -> str:
        split = f" TP={self.tp}" if self.tp > 1 else ""
        stages = f" PP={self.pp}" if self.pp > 1 else ""
        return f"{self.model.name} {self.weights} on {self.gpus}×{self.gpu.key}{split}{stages}"


def deploy(
    model: ModelSpec,
    gpu: Gpu,
    engine: Engine,
    *,
    tp: int = 1,
    pp: int = 1,
    weights: Precision | None = None,
    kv: Precision = Precision.bf16,
) -> Deployment:
    """A checked deployment; the weights default to the precision the checkpoint is published in."""
    valid = valid_tp(model)
    if tp < 1:
        raise BadInput(f"must be at least 1, got {tp}", where="--tp", fix=f"Valid: {', '.join(map(str, valid))}.")
    if tp not in valid:
        raise BadInput(
            f"tensor parallelism of {tp} cannot split {model.name}: {_what_does_not_divide(model, tp)}",
            where="--tp",
            fix=f"Valid degrees: {', '.join(map(str, valid))}.",
        )
    if not 1 <= pp <= model.layers:
        raise BadInput(f"pipeline parallelism of {pp} needs 1 to {model.layers} stages (layers)", where="--pp")
    if kv not in KV_PRECISIONS:
        raise BadInput(f"no engine keeps its KV cache in {kv}", where="--kv", fix=f"Valid: {', '.join(KV_PRECISIONS)}.")
    return Deployment(model=model, gpu=gpu, engine=engine, tp=tp, pp=pp, weights=weights or model.checkpoint, kv=kv)


def valid_tp(model: ModelSpec, most: int = 128) -> tuple[int, ...]:
    """Degrees that split every head, KV head and feed-forward width evenly (KV heads may also be copied whole)."""
    return tuple(tp for tp in range(1, most + 1) if _what_does_not_divide(model, tp) is None)


def _what_does_not_divide(model: ModelSpec, tp: int) -> str | None:
    for group in model.groups:
        mixer, mlp = group.mixer, group.mlp
        if isinstance(mixer, GroupedAttention | LatentAttention) and mixer.heads % tp:
            return f"it has {mixer.heads} attention heads"
        if isinstance(mixer, GroupedAttention) and mixer.kv_heads % tp and tp % mixer.kv_heads:
            return f"it has {mixer.kv_heads} KV heads"
        if isinstance(mlp, DenseMlp) and mlp.intermediate % tp:
            return f"its feed-forward width is {mlp.intermediate}"
        if isinstance(mlp, MoeMlp) and mlp.intermediate % tp:
            return f"its experts' width is {mlp.intermediate}"
    return None
