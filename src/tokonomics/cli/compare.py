"""``tokonomics compare``: several models on several GPUs, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, HtmlFile, check_files, give, working
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile


def compare(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="Models, or paths to a config.json.")],
    gpu: Annotated[
        list[str] | None,
        typer.Option(help="GPUs side by side: names with commas, or repeat.", show_default="all with offers"),
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Requests a second, on average.")] = None,
    tokens_per_month: Annotated[str | None, typer.Option(help="Instead of --rate: tokens in and out, as 2B.")] = None,
    input: Annotated[str | None, typer.Option(help="Prompt tokens: 1000, lognormal:mean=800,p99=6000 …")] = None,
    output: Annotated[str | None, typer.Option(help="Answer tokens, likewise.")] = None,
    trace: Annotated[str | None, typer.Option(help="Your request log, or a sample such as azure-conv.")] = None,
    slo: Annotated[str | None, typer.Option(help="The promise: ttft_p99=0.5,tpot_p99=50ms.")] = None,
    quality: Annotated[
        list[str] | None, typer.Option(help="Your score of each model: llama-3.1-8b=0.66,llama-3.3-70b=0.86.")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Size every pair by simulation instead of the closed form; slower.")
    ] = False,
    provider: Annotated[list[str] | None, typer.Option(help="Only these providers.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only these regions.")] = None,
    terms: Annotated[
        list[str] | None, typer.Option(help="on_demand, spot, reserved.", show_default="on_demand")
    ] = None,
    discount: Annotated[list[str] | None, typer.Option(help="Your discount at a provider: aws=0.2.")] = None,
    offers: Annotated[Path | None, typer.Option(help="Your own price list (CSV) instead of the shipped one.")] = None,
    max_age: Annotated[
        int | None, typer.Option(min=0, help="Leave out prices older than this many days.", show_default="365")
    ] = None,
    weights: Annotated[list[str] | None, typer.Option(help="Only these precisions of the weights.")] = None,
    min_weights: Annotated[str | None, typer.Option(help="No precision below this one, such as fp8.")] = None,
    kv: Annotated[list[str] | None, typer.Option(help="Precisions of the KV cache.", show_default="bf16,fp8")] = None,
    engine: Annotated[list[str] | None, typer.Option(help="Serving engines, or all.", show_default="vllm")] = None,
    chart: Annotated[Path | None, typer.Option(help="Save the grid: .svg, .png, .html, .json.")] = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Several models on several GPUs under the same traffic and promise: dollars per million tokens, side by side.

    \b
    Examples:
      tokonomics compare llama-3.1-8b qwen2.5-32b llama-3.3-70b --gpu L4,A100,H100 --rate 20 --input 1000 --output 300
      tokonomics compare llama-3.1-8b llama-3.3-70b --gpu H100,H200 --rate 20 --input 1000 --output 300 --simulate \\
        --slo ttft_p99=1,tpot_p99=50ms --quality llama-3.1-8b=0.66,llama-3.3-70b=0.86 --chart compare.png
    """
    from tokonomics.clock import today
    from tokonomics.planner.compare import compare as side_by_side
    from tokonomics.planner.compare import parse_quality
    from tokonomics.planner.scenario import Scenario, questions_of
    from tokonomics.report.compare_charts import compare_chart
    from tokonomics.report.compare_view import compare_view

    check_files(chart, html)
    scenario = Scenario().over({
        "model": tuple(models), "gpu": gpu, "rate": rate, "tokens_per_month": tokens_per_month, "input": input,
        "output": output, "trace": trace, "slo": slo, "quick": not simulate, "provider": provider, "region": region,
        "terms": terms, "discount": discount, "offers": None if offers is None else str(offers), "max_age": max_age,
        "weights": weights, "min_weights": min_weights, "kv": kv, "engine": engine,
    })  # fmt: skip
    questions = questions_of(scenario, today())
    scores = parse_quality(quality or (), [each.model.key for each in questions])
    if simulate:
        from tokonomics.cli.serving_flags import say_if_compiling

        say_if_compiling()
    with working("comparing") as say:
        found = side_by_side(questions, scores, say)
    answer = Answer(
        found,
        lambda: compare_view(found),
        "Models and GPUs side by side",
        {"Dollars per million tokens": lambda: compare_chart(found)} if found.gpus else {},
        exit_code=0 if found.gpus else 1,
    )
    give(answer, json=json, chart=chart, html=html)
