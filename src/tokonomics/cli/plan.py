"""``tokonomics plan``: the cheapest ways to serve a model."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.output import Json, show, show_json


def plan(
    model: Annotated[str, typer.Argument(help="A catalogue name (see `tokonomics models`) or a config.json.")],
    rate: Annotated[float, typer.Option(help="Requests a second, on average.")],
    input: Annotated[int, typer.Option(help="Prompt tokens of a request.")],
    output: Annotated[int, typer.Option(help="Answer tokens of a request.")],
    tpot: Annotated[
        str | None, typer.Option(help="Promise: mean time per output token, such as 50ms or 0.05 (seconds).")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="Only these GPUs: names with commas, or repeat.")] = None,
    gpus: Annotated[str | None, typer.Option(help="The most GPUs to pay for; or GPU names, as --gpu.")] = None,
    max_price: Annotated[float | None, typer.Option(help="The most dollars per GPU-hour.")] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only these providers.")] = None,
    region: Annotated[list[str] | None, typer.Option(help="Only these regions.")] = None,
    terms: Annotated[str, typer.Option(help="on_demand, spot or reserved.")] = "on_demand",
    discount: Annotated[list[str] | None, typer.Option(help="Your discount at a provider: aws=0.2.")] = None,
    offers: Annotated[Path | None, typer.Option(help="Your own price list (CSV) instead of the shipped one.")] = None,
    max_age: Annotated[
        int | None, typer.Option(min=0, help="Leave out prices older than this many days.", show_default="365")
    ] = None,
    weights: Annotated[list[str] | None, typer.Option(help="Only these precisions of the weights.")] = None,
    min_weights: Annotated[str | None, typer.Option(help="No precision below this one, such as fp8.")] = None,
    kv: Annotated[str, typer.Option(help="Precision of the KV cache: bf16 or fp8.")] = "bf16",
    engine: Annotated[str, typer.Option(help="Serving engine.")] = "vllm",
    max_utilization: Annotated[
        float | None, typer.Option(help="Plan replicas to at most this share of capacity.", show_default="0.7")
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Rows to show.", show_default="10; all with --json")] = None,
    why: Annotated[bool, typer.Option("--why", help="Show why the other candidates were rejected.")] = False,
    chart: Annotated[Path | None, typer.Option(help="Save a chart: .svg, .png, .html or .json.")] = None,
    deploy: Annotated[
        list[str] | None, typer.Option(help="The files that start the pick: vllm, sglang, skypilot, kubernetes.")
    ] = None,
    deploy_to: Annotated[
        Path | None, typer.Option(help="A folder to save them in.", show_default="they are printed")
    ] = None,
    json: Json = False,
) -> None:
    """The cheapest ways to serve a model: every offer × tensor parallelism × precision that fits, ranked.

    \b
    Examples:
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --tpot 0.05
      tokonomics plan llama-3.3-70b --rate 2 --input 2000 --output 500 --gpu H100,H200 --min-weights fp8
      tokonomics plan qwen3-30b-a3b --rate 20 --input 500 --output 200 --provider aws --discount aws=0.2 --why
      tokonomics plan llama-3.1-8b --rate 5 --input 1000 --output 300 --min-weights bf16 --deploy vllm,kubernetes
    """
    from tokonomics.catalog.engines import find_engine
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.load_models import find_model
    from tokonomics.catalog.precision import KV_PRECISIONS, parse_precision
    from tokonomics.cli.choices import (
        discounts_from,
        gpu_filter,
        limits_from,
        offers_for,
        parse_seconds,
        parse_terms,
        slo_from,
        weights_for,
        workload_from,
    )
    from tokonomics.cli.deploy import deploy_files_of, save_files, targets_from
    from tokonomics.clock import today
    from tokonomics.planner.plan import plan as make_plan
    from tokonomics.report.charts import check_chart_path, plan_chart, save_chart
    from tokonomics.report.plan_view import plan_view, why_view

    if chart:
        check_chart_path(chart)
    targets = targets_from(deploy, deploy_to)
    spec = find_model(model)
    names, most_gpus = gpu_filter(gpu, gpus)
    given = discounts_from(discount)
    chosen = offers_for(offers, provider, region, names, given)
    result = make_plan(
        spec,
        workload_from(rate, input, output),
        chosen,
        find_engine(engine),
        today=today(),
        slo=slo_from(parse_seconds(tpot, "--tpot")),
        weights=weights_for(spec, weights, min_weights),
        kv=parse_precision(kv, KV_PRECISIONS, "--kv"),
        terms=parse_terms(terms),
        limits=limits_from(max_utilization, max_price, most_gpus, max_age),
    )
    if chart and result.best:
        save_chart(plan_chart(result, spec.name), chart)
        typer.echo(f"chart saved to {chart}", err=True)
    files = deploy_files_of(result, spec, chosen, targets) if targets and result.best else []
    if deploy_to:
        save_files(files, deploy_to)
    if json:
        shown = result.model_copy(update={"ranked": result.ranked[:top]}).model_dump(mode="json")
        show_json(shown | ({"deploy": [each.model_dump(mode="json") for each in files]} if targets else {}))
        return
    sold = {each.gpu for each in chosen}
    missing = [name for name in names or () if find_gpu(name).key not in sold]
    view = plan_view(result, rows=top or 10, model_name=spec.name, discounts=given, without_offers=missing)
    show(view)
    if why:
        show("")
        show(why_view(result))
    if not deploy_to:
        for each in files:
            typer.echo(f"\n# {each.name}\n{each.text}")
