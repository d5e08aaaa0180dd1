"""``tokonomics fit``: does a model fit, and with how many sequences."""

from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, give
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile


def fit(
    model: Annotated[str, typer.Argument(help="A catalogue name (see `tokonomics models`) or a config.json.")],
    gpu: Annotated[str, typer.Option(help="GPU to fit it on.")],
    tp: Annotated[int, typer.Option(help="Tensor parallelism: GPUs that share each layer.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages: groups of GPUs that share the layers.")] = 1,
    weights: Annotated[
        str | None, typer.Option(help="Precision of the weights; the checkpoint's own if not given.")
    ] = None,
    kv: Annotated[str, typer.Option(help="Precision of the KV cache: bf16 or fp8.")] = "bf16",
    context: Annotated[int, typer.Option(help="Tokens of one sequence, prompt and answer.")] = 4096,
    engine: Annotated[str, typer.Option(help="Serving engine, for its memory share and limits.")] = "vllm",
    lora_rank: Annotated[int, typer.Option(help="Rank of LoRA adapters served beside the base model.")] = 0,
    lora_adapters: Annotated[int, typer.Option(help="How many adapters are loaded.")] = 0,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Does a model fit a GPU: weights, KV cache, workspace, the largest batch.

    \b
    Examples:
      tokonomics fit llama-3.1-70b --gpu H100 --tp 4
      tokonomics fit llama-2-7b --gpu T4 --context 2048
      tokonomics fit ./config.json --gpu L40S --weights fp8 --kv fp8 --context 16384
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.physics.memory import fit as fit_memory
    from tokonomics.report.fit_view import fit_view

    result = fit_memory(deployment_from(model, gpu, engine, tp, pp, 1, weights, kv, lora_rank, lora_adapters), context)
    give(Answer(result.summary(), lambda: fit_view(result), f"Does {model} fit {gpu}?"), json=json)
