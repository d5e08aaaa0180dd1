"""A deployment by its names."""

from typing import Any

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import Deployment, deploy


def on(model: str = "llama-3.1-8b", gpu: str = "H100", engine: str = "vllm", **more: Any) -> Deployment:
    """A model on a GPU as its engine starts it."""
    return deploy(find_model(model), find_gpu(gpu), find_engine(engine), **more)
