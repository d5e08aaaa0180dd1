"""Does a model fit, and with how many sequences?"""

from typing import TYPE_CHECKING

from tokonomics.questions.inputs import Adapters, Layout, OneGpu, OneModel, Profiled
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Whole, declared
from tokonomics.questions.serving import deployment_of

if TYPE_CHECKING:
    from tokonomics.questions.results import FitResult


class FitRequest(OneModel, OneGpu, Layout, Adapters, Profiled):
    """
    Examples:
      tokonomics fit llama-3.1-70b --gpu H100 --tp 4
      tokonomics fit llama-2-7b --gpu T4 --context 2048
      tokonomics fit ./config.json --gpu L40S --weights fp8 --kv fp8 --context 16384
      tokonomics fit chat.toml --gpu L40S
    """

    FIRST = ("model", "gpu", "context")

    context: Whole = declared(4096, "Tokens of one sequence, prompt and answer.")


def fit(request: FitRequest, listener: Listener = SILENT) -> "FitResult":
    """Where the memory goes, and the largest batch."""
    from tokonomics.physics.memory import fit as fit_memory
    from tokonomics.questions.results import FitResult

    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    found = fit_memory(deployment, request.context)
    return FitResult(**found.summary(), memory=found)
