"""The deployment that was asked for: a model, with images where prompts have any, on a GPU at a precision."""

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, parse_precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option, shorten
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.questions.inputs import Layout


def named(model: str | None) -> str:
    """The model, where a question needs one after all."""
    if model is None:
        raise BadInput("no model is given", field="model", fix=f"Name one, such as {option('model', 'llama-3.1-8b')}.")
    return model


def reading(model: ModelSpec, images: str | None) -> ModelSpec:
    """The model with the images that every prompt brings, if any."""
    return model if images is None else model.reading(images)


def require_writer(model: ModelSpec) -> None:
    """Refuse an encoder where the question is about answers."""
    if model.is_encoder:
        fix = "Of encoders ask predict, plan or simulate."
        raise BadInput(f"{model.name} is an encoder: it writes no tokens", field="model", fix=fix)


def deployment_of(
    layout: Layout,
    model: str | None,
    gpu: str,
    lora_rank: int = 0,
    lora_adapters: int = 0,
    images: str | None = None,
) -> Deployment:
    several = [name for name in gpu.split(",") if name.strip()]
    if len(several) > 1:
        fix = "Several are compared by: tokonomics plan, tokonomics plan --by-gpu."
        raise BadInput(f"one GPU at a time, got {len(several)}: {shorten(gpu)}", field="gpu", fix=fix)
    weights = layout.weights
    return deploy(
        reading(find_model(named(model)), images),
        find_gpu(gpu),
        find_engine(layout.engine),
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        weights=parse_precision(weights, WEIGHT_PRECISIONS, "weights") if weights is not None else None,
        kv=parse_precision(layout.kv, KV_PRECISIONS, "kv"),
        lora_rank=lora_rank,
        lora_adapters=lora_adapters,
    )
