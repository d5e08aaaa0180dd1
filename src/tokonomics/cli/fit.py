"""``tokonomics fit``: does a model fit, and with how many sequences."""

from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, HtmlFile, give
from tokonomics.cli.groups import Layout, flat
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile


@flat
def fit(
    *,
    model: flags.ModelPlace,
    gpu: flags.GpuName,
    layout: Layout,
    context: Annotated[int, typer.Option(help="Tokens of one sequence, prompt and answer.")] = 4096,
    lora_rank: flags.LoraRank = 0,
    lora_adapters: flags.LoraAdapters = 0,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Does a model fit a GPU: weights, KV cache, workspace, the largest batch.

    \b
    Examples:
      tokonomics fit llama-3.1-70b --gpu H100 --tp 4
      tokonomics fit llama-2-7b --gpu T4 --context 2048
      tokonomics fit ./config.json --gpu L40S --weights fp8 --kv fp8 --context 16384
      tokonomics fit chat.toml --gpu L40S
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.physics.memory import fit as fit_memory
    from tokonomics.report.fit_view import fit_view

    result = fit_memory(deployment_from(model, gpu, layout, lora_rank, lora_adapters), context)
    give(Answer(result.summary(), lambda: fit_view(result), f"Does {model} fit {gpu}?"), json=json, html=html)
