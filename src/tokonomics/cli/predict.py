"""``tokonomics predict`` and ``curve``: how long a step takes, and what batching buys."""

from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile
from tokonomics.cli.serving_flags import EngineName, Ep, GpuName, Kv, Pp, Tp, Weights

Model = Annotated[str, typer.Argument(help="A catalogue name (see `tokonomics models`) or a config.json.")]
Context = Annotated[int, typer.Option(help="Tokens each sequence holds; for a prompt, its length.")]
LoraRank = Annotated[int, typer.Option(help="Rank of LoRA adapters served beside the base model.")]
LoraAdapters = Annotated[int, typer.Option(help="How many adapters are loaded.")]


def predict(
    model: Model,
    gpu: GpuName,
    batch: Annotated[int, typer.Option(min=1, max=10**6, help="Sequences running at once.")] = 1,
    context: Context = 1024,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    lora_rank: LoraRank = 0,
    lora_adapters: LoraAdapters = 0,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """How long a decode step and a prompt take, with an interval, and where the time goes.

    \b
    Examples:
      tokonomics predict llama-3.1-8b --gpu H200 --batch 64 --context 1024
      tokonomics predict deepseek-v3 --gpu H200 --tp 8 --batch 128 --context 4096
      tokonomics predict gpt-oss-120b --gpu H100 --engine sglang --batch 32 --json
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.planner.predict import predict as make
    from tokonomics.report.predict_view import predict_view

    made = make(deployment_from(model, gpu, engine, tp, pp, ep, weights, kv, lora_rank, lora_adapters), batch, context)
    give(Answer(made, lambda: predict_view(made), f"A step of {made.deployment}"), json=json)


def curve(
    model: Model,
    gpu: GpuName,
    context: Context = 1024,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    lora_rank: LoraRank = 0,
    lora_adapters: LoraAdapters = 0,
    usd_per_hour: Annotated[
        float | None, typer.Option(help="Price of one GPU-hour.", show_default="the cheapest offer, if there is one")
    ] = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """What batching buys: throughput, time per token and price against the batch, up to the KV limit.

    \b
    Examples:
      tokonomics curve llama-2-7b --gpu H100 --context 1024
      tokonomics curve llama-3.1-70b --gpu H100 --tp 4 --context 4096 --chart curve.svg
      tokonomics curve qwen3-30b-a3b --gpu L40S --weights fp8 --usd-per-hour 0.86 --json
    """
    from contextlib import suppress

    from tokonomics.catalog.offers import NoOffer, cheapest_offer, load_offers, machines_usd_per_hour
    from tokonomics.cli.choices import deployment_from
    from tokonomics.clock import today
    from tokonomics.money.cost import require_positive
    from tokonomics.planner.machines import offers_with_room
    from tokonomics.planner.predict import batch_curve
    from tokonomics.report.charts import curve_chart
    from tokonomics.report.predict_view import curve_view

    check_files(chart, html)
    deployment = deployment_from(model, gpu, engine, tp, pp, ep, weights, kv, lora_rank, lora_adapters)
    price, price_from = usd_per_hour, "as given"
    if price is not None:
        require_positive("--usd-per-hour", price)
    else:
        # Without an offer the curve is shown without prices.
        with suppress(NoOffer):
            roomy = offers_with_room(deployment, load_offers())
            offer = cheapest_offer(deployment.gpu.key, deployment.gpus, offers=roomy, together=deployment.tp)
            price = machines_usd_per_hour(offer, deployment.gpus) / deployment.gpus
            price_from = offer.quoted(today())
    made = batch_curve(deployment, context, price, price_from if price else None)
    charts = {"What batching buys": lambda: curve_chart(made)}
    give(
        Answer(made, lambda: curve_view(made), f"Batching on {made.deployment}", charts),
        json=json,
        chart=chart,
        html=html,
    )
