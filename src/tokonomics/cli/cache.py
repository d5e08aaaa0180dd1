"""``tokonomics cache``: what keeping KV, answers and templates saves on the user's traffic and prompts."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer
from tokonomics.cli.groups import Layout, Market, Shown, Traffic, flat

if TYPE_CHECKING:
    from tokonomics.planner.levers.semantic_cache import SemanticHits
    from tokonomics.traffic.prompts import Prompts

Ttl = Annotated[
    str | None, typer.Option(help="The tiers, and the semantic cache, let go of what is older: 300, 5m, 1h.")
]
Semantic = Annotated[
    str | None,
    typer.Option(help="What embeds the prompts: an embeddings URL, a model folder, or 'hashed' (spelling only)."),
]


@flat
def cache(
    *,
    model_name: flags.ModelArgument = None,
    model: flags.Model = None,
    gpu: flags.GpuOrNone = None,
    layout: Layout,
    trace: flags.TraceName = None,
    traffic: Traffic,
    tiers: flags.TiersText = None,
    ttl: Ttl = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Compare on so many.", show_default="what it takes without a cache"),
    ] = None,
    slo: flags.SloText = None,
    usd_per_hour: flags.UsdPerHour = None,
    market: Market,
    prompts: Annotated[
        Path | None, typer.Option(help="Texts: .txt, .jsonl, .csv, .parquet; fixed parts are found.")
    ] = None,
    prompt_column: Annotated[str | None, typer.Option(help="The column with the texts.")] = None,
    semantic: Semantic = None,
    embedding_model: Annotated[str | None, typer.Option(help="The model an embeddings URL is asked for.")] = None,
    embedding_usd_per_mtok: Annotated[float, typer.Option(min=0, help="What embedding a million tokens costs.")] = 0.0,
    threshold: Annotated[float, typer.Option(min=0, max=1, help="Cosine from which an answer is reused.")] = 0.95,
    pairs: Annotated[
        Path | None, typer.Option(help="Labelled pairs (text_a, text_b, label): shows false hits.")
    ] = None,
    shown: Shown,
) -> None:
    """What caching saves: shared prompt beginnings on the GPU and behind it, similar prompts, fixed templates.

    \b
    Examples:
      tokonomics cache --model llama-3.1-8b --gpu H100 --trace mooncake-conversation --chart cache.png
      tokonomics cache --model llama-3.1-8b --gpu H100 --trace mooncake-conversation --tiers dram=200,ssd=2000@0
      tokonomics cache --model llama-3.1-70b --gpu H200 --tp 2 --trace log.jsonl --slo ttft_p99=2 --tiers remote=5000
      tokonomics cache --prompts prompts.jsonl --semantic models/all-MiniLM-L6-v2 --pairs labelled.csv
      tokonomics cache --prompts prompts.txt --semantic https://host/v1/embeddings --embedding-model NAME
      tokonomics cache chat.toml --system-prompts 20,tokens=1000
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import model_from, prices_of, say_if_compiling
    from tokonomics.cli.traffic_flags import read_time, traffic_from
    from tokonomics.errors import BadInput
    from tokonomics.money.cache_tiers import parse_tiers
    from tokonomics.planner.levers.prefix_cache import prefix_cache_lever
    from tokonomics.planner.levers.semantic_cache import semantic_cache_lever
    from tokonomics.planner.levers.templates import template_lever, text_templates
    from tokonomics.report.cache_charts import cache_chart
    from tokonomics.report.cache_view import cache_view
    from tokonomics.traffic.promises import parse_promises
    from tokonomics.traffic.prompts import read_prompts

    shown.check()
    ttl_s = read_time(ttl, "--ttl")
    if ttl_s is not None and not ttl_s > 0:
        raise BadInput("must be above 0", where="--ttl")
    served = trace is not None or traffic.is_made_up
    if not served and prompts is None:
        raise BadInput(
            "nothing to look at", fix="Give --trace with --model and --gpu (try mooncake-conversation), or --prompts."
        )
    if semantic is not None and prompts is None:
        raise BadInput("needs the texts of prompts", where="--semantic", fix="Give --prompts FILE.")
    if tiers is not None and not served:
        raise BadInput("needs the traffic that it serves", where="--tiers", fix="Give --trace with --model and --gpu.")
    if pairs is not None and semantic is None:
        raise BadInput("needs something that embeds", where="--pairs", fix="Give --semantic.")
    texts = read_prompts(prompts, prompt_column) if prompts else None
    hits = _semantic_hits(texts, semantic, embedding_model, threshold, ttl_s, pairs) if texts and semantic else None
    in_texts = text_templates(texts) if texts else ()
    lever = fixed = saved = price_from = None
    if served:
        if gpu is None:
            raise BadInput("is missing: which GPU serves it?", where="--gpu")
        promises = parse_promises(slo) if slo is not None else ()
        deployment = deployment_from(model_from(model_name, model), gpu, layout)
        price = prices_of(deployment, usd_per_hour, market)
        price_from = price(1)[1]
        memories = parse_tiers(tiers, deployment, ttl_s) if tiers is not None else ()
        requests = traffic_from(trace, traffic)
        say_if_compiling()
        lever = prefix_cache_lever(
            deployment, requests, lambda count: price(count)[0], tiers=memories, replicas=replicas, promises=promises
        )
        fixed = template_lever(
            deployment,
            requests,
            price(1)[0],
            replicas=lever.rows[1].replicas,
        )
        if texts and hits and hits.means and lever.rows[0].bill:
            share = hits.at(threshold).hit_share
            saved = semantic_cache_lever(
                deployment,
                requests,
                texts,
                share,
                lambda count: price(count)[0],
                embed_usd_per_mtok=embedding_usd_per_mtok,
                wait_s=hits.embed_s + hits.lookup_s,
                bytes_per_entry=hits.bytes_per_entry,
                promises=promises,
                seed=traffic.seed,
            )
    result = {
        "prefix_cache": lever.model_dump(mode="json") if lever else None,
        "templates": fixed.model_dump(mode="json") if fixed else None,
        "text_templates": [each.model_dump(mode="json") for each in in_texts],
        "semantic": hits.model_dump(mode="json") if hits else None,
        "semantic_bill": saved.model_dump(mode="json") if saved else None,
        "price_from": price_from,
    }
    charts = {"What caching saves": lambda: cache_chart(lever, hits, threshold)}
    view = partial(cache_view, lever, fixed, in_texts, hits, saved, threshold, price_from)
    shown.give(Answer(result, view, "What caching saves", charts))


def _semantic_hits(
    texts: "Prompts", with_what: str, model: str | None, threshold: float, ttl_s: float | None, pairs: Path | None
) -> "SemanticHits":
    from tokonomics.planner.levers.semantic_cache import THRESHOLDS, false_hits, semantic_hits
    from tokonomics.traffic.embeddings import embed
    from tokonomics.traffic.prompts import read_pairs

    thresholds = tuple(sorted({*THRESHOLDS, threshold}))
    made = semantic_hits(texts, embed(texts.texts, with_what, model), thresholds, ttl_s)
    if pairs is None:
        return made
    labelled = read_pairs(pairs)
    both = embed((*labelled.first, *labelled.second), with_what, model).vectors
    many = len(labelled.first)
    return made.model_copy(update={"labels": false_hits(both[:many], both[many:], labelled.same, thresholds)})
