"""What does batching buy?"""

from typing import TYPE_CHECKING

from tokonomics.questions.inputs import Adapters, Layout, OneGpu, OneModel, Priced, Profiled
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Number, Whole, declared
from tokonomics.questions.serving import deployment_of, fleet_of, price_of

if TYPE_CHECKING:
    from tokonomics.questions.results import CurveResult


class CurveRequest(OneModel, OneGpu, Layout, Adapters, Priced, Profiled):
    """
    Examples:
      tokonomics curve llama-2-7b --gpu H100 --context 1024
      tokonomics curve llama-3.1-70b --gpu H100 --tp 4 --context 4096 --chart curve.svg
      tokonomics curve qwen3-30b-a3b --gpu L40S --weights fp8 --usd-per-hour 0.86 --json
      tokonomics curve chat.toml --kv fp8
    """

    FIRST = ("model", "gpu", "context")

    context: Whole = declared(1024, "Tokens each sequence holds; for a prompt, its length.")
    tpot_ms: Number | None = declared(
        None, "Slowest time per output token you accept: marks the largest batch that keeps it.", low=0.001, example=40
    )


def curve(request: CurveRequest, listener: Listener = SILENT) -> "CurveResult":
    """Throughput, time per token and price against the batch."""
    from tokonomics.planner.predict import batch_curve
    from tokonomics.questions.results import CurveResult

    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    # Without an offer the curve is shown without prices.
    price, price_from = price_of(deployment, fleet_of(), request) or (None, None)
    made = batch_curve(deployment, request.context, price / deployment.gpus if price else None, price_from)
    return CurveResult(**dict(made))
