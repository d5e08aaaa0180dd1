"""Turning what was typed into a deployment."""

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision
from tokonomics.cli.groups import Layout
from tokonomics.errors import BadInput, shorten
from tokonomics.physics.deployment import Deployment, deploy


def deployment_from(model: str, gpu: str, layout: Layout, lora_rank: int = 0, lora_adapters: int = 0) -> Deployment:
    """A checked deployment from what was typed."""
    several = [name for name in gpu.split(",") if name.strip()]
    if len(several) > 1:
        fix = "Several are compared by: tokonomics plan, tokonomics compare."
        raise BadInput(f"one GPU at a time, got {len(several)}: {shorten(gpu)}", where="--gpu", fix=fix)
    return deploy(
        find_model(model),
        find_gpu(gpu),
        find_engine(layout.engine),
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        weights=parse_precision(layout.weights, WEIGHT_PRECISIONS, "weights") if layout.weights is not None else None,
        kv=parse_precision(layout.kv, KV_PRECISIONS, "kv"),
        lora_rank=lora_rank,
        lora_adapters=lora_adapters,
    )
