"""``tokonomics predict`` and ``curve``: how long a step takes, and what batching buys."""

from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, HtmlFile, give
from tokonomics.cli.groups import Layout, Market, Shown, flat
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile

Context = Annotated[int, typer.Option(help="Tokens each sequence holds; for a prompt, its length.")]


@flat
def predict(
    *,
    model: flags.ModelPlace,
    gpu: flags.GpuName,
    batch: Annotated[int, typer.Option(min=1, max=10**6, help="Sequences running at once.")] = 1,
    context: Context = 1024,
    layout: Layout,
    lora_rank: flags.LoraRank = 0,
    lora_adapters: flags.LoraAdapters = 0,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """How long a decode step and a prompt take, with an interval, and where the time goes.

    \b
    Examples:
      tokonomics predict llama-3.1-8b --gpu H200 --batch 64 --context 1024
      tokonomics predict deepseek-v3 --gpu H200 --tp 8 --batch 128 --context 4096
      tokonomics predict gpt-oss-120b --gpu H100 --engine sglang --batch 32 --json
      tokonomics predict chat.toml --batch 16
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.planner.predict import predict as make
    from tokonomics.report.predict_view import predict_view

    made = make(deployment_from(model, gpu, layout, lora_rank, lora_adapters), batch, context)
    give(Answer(made, lambda: predict_view(made), f"A step of {made.deployment}"), json=json, html=html)


@flat
def curve(
    *,
    model: flags.ModelPlace,
    gpu: flags.GpuName,
    context: Context = 1024,
    layout: Layout,
    lora_rank: flags.LoraRank = 0,
    lora_adapters: flags.LoraAdapters = 0,
    usd_per_hour: flags.UsdPerHour = None,
    market: Market,
    shown: Shown,
) -> None:
    """What batching buys: throughput, time per token and price against the batch, up to the KV limit.

    \b
    Examples:
      tokonomics curve llama-2-7b --gpu H100 --context 1024
      tokonomics curve llama-3.1-70b --gpu H100 --tp 4 --context 4096 --chart curve.svg
      tokonomics curve qwen3-30b-a3b --gpu L40S --weights fp8 --usd-per-hour 0.86 --json
      tokonomics curve chat.toml --kv fp8
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, price_of
    from tokonomics.planner.predict import batch_curve
    from tokonomics.report.charts import curve_chart
    from tokonomics.report.predict_view import curve_view

    shown.check()
    deployment = deployment_from(model, gpu, layout, lora_rank, lora_adapters)
    alone = fleet_from(1, "least-outstanding", None, None, 0, None)
    # Without an offer the curve is shown without prices.
    price, price_from = price_of(deployment, alone, usd_per_hour, market) or (None, None)
    made = batch_curve(deployment, context, price / deployment.gpus if price else None, price_from)
    charts = {"What batching buys": lambda: curve_chart(made)}
    shown.give(Answer(made, lambda: curve_view(made), f"Batching on {made.deployment}", charts))
