"""How long does a decode step take, and a prompt?"""

from typing import TYPE_CHECKING

from tokonomics.questions.inputs import Adapters, Layout, OneGpu, OneModel, Profiled
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Whole, declared
from tokonomics.questions.serving import deployment_of

if TYPE_CHECKING:
    from tokonomics.questions.results import PredictResult


class PredictRequest(OneModel, OneGpu, Layout, Adapters, Profiled):
    """
    Examples:
      tokonomics predict llama-3.1-8b --gpu H200 --batch 64 --context 1024
      tokonomics predict deepseek-v3 --gpu H200 --tp 8 --batch 128 --context 4096
      tokonomics predict gpt-oss-120b --gpu H100 --engine sglang --batch 32 --json
      tokonomics predict chat.toml --batch 16
    """

    FIRST = ("model", "gpu", "batch", "context")

    batch: Whole = declared(1, "Sequences running at once.", low=1, high=10**6)
    context: Whole = declared(1024, "Tokens each sequence holds; for a prompt, its length.")


def predict(request: PredictRequest, listener: Listener = SILENT) -> "PredictResult":
    """The time of a step and of a prompt, with intervals, and where it goes."""
    from tokonomics.planner.predict import predict as predicted
    from tokonomics.questions.results import PredictResult

    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    return PredictResult(**dict(predicted(deployment, request.batch, request.context)))
