"""Turning what was typed into a deployment."""

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.precision import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision
from tokonomics.physics.deployment import Deployment, deploy


def deployment_from(
    model: str,
    gpu: str,
    engine: str,
    tp: int,
    pp: int,
    ep: int,
    weights: str | None,
    kv: str,
    lora_rank: int = 0,
    lora_adapters: int = 0,
) -> Deployment:
    """A checked deployment from what was typed."""
    return deploy(
        find_model(model),
        find_gpu(gpu),
        find_engine(engine),
        tp=tp,
        pp=pp,
        ep=ep,
        weights=parse_precision(weights, WEIGHT_PRECISIONS, "--weights") if weights is not None else None,
        kv=parse_precision(kv, KV_PRECISIONS, "--kv"),
        lora_rank=lora_rank,
        lora_adapters=lora_adapters,
    )
