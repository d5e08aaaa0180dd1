"""``models``, ``gpus``, ``offers``, ``apis`` and ``prices``: what exists and what it costs."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, give
from tokonomics.cli.groups import Market, flat
from tokonomics.cli.output import Json, show, show_json

Match = Annotated[str | None, typer.Argument(help="Only names that contain this.")]

prices = typer.Typer(help="Keep the shipped GPU prices up to date.", no_args_is_help=True)


def models(
    match: Match = None,
    family: Annotated[str | None, typer.Option(help="Only this family, such as llama.")] = None,
    moe: Annotated[bool | None, typer.Option("--moe/--dense", help="Only mixtures of experts, or only dense.")] = None,
    json: Json = False,
) -> None:
    """Models we know: parameters, weight bytes, KV cache per token.

    \b
    Examples:
      tokonomics models
      tokonomics models qwen3 --moe
      tokonomics models path/to/config.json --json
    """
    from tokonomics.catalog.load_models import find_models
    from tokonomics.report.catalog_view import models_view

    found = find_models(match, family, moe)
    give(Answer([each.summary() for each in found], lambda: models_view(found), "Models"), json=json)


def gpus(
    match: Match = None,
    min_memory: Annotated[float | None, typer.Option(help="At least this many GB of memory.")] = None,
    architecture: Annotated[str | None, typer.Option(help="Only this one, such as hopper.")] = None,
    json: Json = False,
) -> None:
    """GPUs we know: memory, bandwidth, dense FLOP/s, links, watts.

    \b
    Examples:
      tokonomics gpus
      tokonomics gpus --min-memory 80 --architecture hopper
      tokonomics gpus "NVIDIA H100 80GB HBM3" --json
    """
    from tokonomics.catalog.gpus import find_gpus
    from tokonomics.money.cost import require_positive
    from tokonomics.report.catalog_view import gpus_view

    if min_memory:
        require_positive("min_memory", min_memory)
    found = find_gpus(match, min_memory, architecture)
    give(Answer([each.model_dump(mode="json") for each in found], lambda: gpus_view(found), "GPUs"), json=json)


@flat
def offers(
    *,
    gpu: flags.GpuNames = None,
    market: Market,
    terms: Annotated[str, typer.Option(help="on_demand, spot or reserved: which price to sort by.")] = "on_demand",
    max_price: flags.MaxPrice = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 25,
    json: Json = False,
) -> None:
    """GPU prices by the hour, cheapest GPU-hour first; each with its date.

    \b
    Examples:
      tokonomics offers --gpu H100
      tokonomics offers --gpu L4,T4 --provider aws,gcp --terms spot
      tokonomics offers --offers my.csv --discount aws=0.2 --json
      tokonomics offers chat.toml
    """
    from tokonomics.catalog.offers import load_offers, select_offers
    from tokonomics.clock import today
    from tokonomics.money.cost import require_positive
    from tokonomics.planner.parsing import discounts_from, listed, parse_terms
    from tokonomics.report.catalog_view import offers_view

    if max_price is not None:
        require_positive("max_price", max_price)
    wanted = parse_terms(terms)
    found = select_offers(
        load_offers(market.offers),
        provider=listed(market.provider, "provider"),
        region=listed(market.region, "region"),
        gpu=listed(gpu, "gpu"),
        terms=wanted,
        max_usd_per_gpu_hour=max_price,
        discounts=discounts_from(market.discount),
    )
    listed_offers = [each.model_dump(mode="json") | {"stale": each.is_stale(today())} for each in found]
    give(Answer(listed_offers, lambda: offers_view(found, wanted, today(), top), "GPU prices"), json=json)


def apis(
    match: Annotated[str | None, typer.Argument(help="Only models that contain this, or host:model.")] = None,
    host: Annotated[str | None, typer.Option(help="Only this host, such as openai.")] = None,
    input: Annotated[int, typer.Option(min=0, max=10**8, help="Prompt tokens of a request, to price one.")] = 1000,
    output: Annotated[int, typer.Option(min=0, max=10**8, help="Answer tokens of a request, to price one.")] = 300,
    litellm: Annotated[Path | None, typer.Option(help="Also read this litellm-format price file (JSON).")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 25,
    json: Json = False,
) -> None:
    """Token prices of hosted models: input, cached, output, batch; unknown prices say so.

    \b
    Examples:
      tokonomics apis gpt-4o --host openai
      tokonomics apis llama-3.3-70b
      tokonomics apis gemini --input 300000 --output 1000
    """
    from tokonomics.catalog.apis import list_apis, price_request
    from tokonomics.catalog.litellm_file import read_litellm
    from tokonomics.clock import today
    from tokonomics.report.catalog_view import apis_view

    found = list_apis(host=host, match=match, extra=read_litellm(litellm) if litellm else ())
    priced = [(each, price_request(each, input, 0, output)) for each in found]
    if json:
        show_json([each.model_dump(mode="json") | {"request_usd": request} for each, request in priced])
    else:
        show(apis_view(priced, input, output, today(), top))


@prices.command("refresh")
def refresh(
    source: Annotated[
        str, typer.Option(help="skypilot (public catalogue files) or gpuhunt (extra \\[live]).")
    ] = "skypilot",
    url: Annotated[str | None, typer.Option(help="Where the catalogue files are, instead of the public place.")] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only these providers.")] = None,
    json: Json = False,
) -> None:
    """Fetch current GPU prices from the network; the old ones stay where a provider fails.

    \b
    Examples:
      tokonomics prices refresh
      tokonomics prices refresh --provider aws,gcp
      tokonomics prices refresh --source gpuhunt
    """
    from tokonomics.catalog.refresh import CATALOG_URL
    from tokonomics.catalog.refresh import refresh as fetch
    from tokonomics.planner.parsing import listed
    from tokonomics.report.catalog_view import refresh_view

    result = fetch(source=source, url=CATALOG_URL if url is None else url, providers=listed(provider, "provider"))
    show_json(result) if json else show(refresh_view(result))
    if result.path is None:
        raise typer.Exit(1)
