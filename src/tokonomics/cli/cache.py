"""``tokonomics cache``: what keeping KV, answers and templates saves on the user's traffic and prompts."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile
from tokonomics.cli.serving_flags import EngineName, Ep, Kv, Model, ModelArgument, Pp, SloText, Tp, UsdPerHour, Weights
from tokonomics.cli.simulate import TraceName
from tokonomics.cli.traffic_flags import (
    ArrivalsText,
    Columns,
    Duration,
    From,
    InputText,
    OutputText,
    Requests,
    Seed,
    SessionsText,
    Speed,
    Strict,
    SystemText,
    To,
)

if TYPE_CHECKING:
    from tokonomics.money.levers.semantic_cache import SemanticHits
    from tokonomics.physics.deployment import Deployment
    from tokonomics.traffic.prompts import Prompts

TiersText = Annotated[
    str | None,
    typer.Option(
        "--tiers", help="Memories behind the GPU, GB a replica (remote: for all): dram=200,ssd=2000@0; @ is $/GB-hour."
    ),
]
Ttl = Annotated[
    str | None, typer.Option(help="The tiers, and the semantic cache, let go of what is older: 300, 5m, 1h.")
]
Semantic = Annotated[
    str | None,
    typer.Option(help="What embeds the prompts: an embeddings URL, a model folder, or 'hashed' (spelling only)."),
]


def cache(
    model_name: ModelArgument = None,
    model: Model = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU to run it on.")] = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    trace: TraceName = None,
    columns: Columns = None,
    strict: Strict = False,
    start: From = None,
    end: To = None,
    speed: Speed = None,
    arrivals: ArrivalsText = None,
    requests: Requests = None,
    duration: Duration = None,
    input_text: InputText = None,
    output_text: OutputText = None,
    system_prompts: SystemText = None,
    sessions: SessionsText = None,
    seed: Seed = 0,
    tiers: TiersText = None,
    ttl: Ttl = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Compare on so many.", show_default="what it takes without a cache"),
    ] = None,
    slo: SloText = None,
    usd_per_hour: UsdPerHour = None,
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
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """What caching saves: shared prompt beginnings on the GPU and behind it, similar prompts, fixed templates.

    \b
    Examples:
      tokonomics cache --model llama-3.1-8b --gpu H100 --trace mooncake-conversation --chart cache.png
      tokonomics cache --model llama-3.1-8b --gpu H100 --trace mooncake-conversation --tiers dram=200,ssd=2000@0
      tokonomics cache --model llama-3.1-70b --gpu H200 --tp 2 --trace log.jsonl --slo ttft_p99=2 --tiers remote=5000
      tokonomics cache --prompts prompts.jsonl --semantic models/all-MiniLM-L6-v2 --pairs labelled.csv
      tokonomics cache --prompts prompts.txt --semantic https://host/v1/embeddings --embedding-model NAME
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, model_from, price_of, say_if_compiling
    from tokonomics.cli.traffic_flags import read_time, traffic_from
    from tokonomics.errors import BadInput
    from tokonomics.money.levers.cache_tiers import parse_tiers
    from tokonomics.money.levers.prefix_cache import prefix_cache_lever
    from tokonomics.money.levers.semantic_cache import semantic_cache_lever
    from tokonomics.money.levers.templates import template_lever, text_templates
    from tokonomics.report.cache_charts import cache_chart
    from tokonomics.report.cache_view import cache_view
    from tokonomics.traffic.promises import parse_promises
    from tokonomics.traffic.prompts import read_prompts

    check_files(chart, html)
    ttl_s = read_time(ttl, "--ttl")
    if ttl_s is not None and not ttl_s > 0:
        raise BadInput("must be above 0", where="--ttl")
    served = trace is not None or arrivals is not None
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
        deployment = deployment_from(model_from(model_name, model), gpu, engine, tp, pp, ep, weights, kv)
        usd_per_replica_hour, price_from = _prices(deployment, usd_per_hour, fleet_from, price_of)
        memories = parse_tiers(tiers, deployment, ttl_s) if tiers is not None else ()
        traffic = traffic_from(
            trace,
            arrivals=arrivals,
            requests=requests,
            duration=duration,
            input_text=input_text,
            output_text=output_text,
            system_prompts=system_prompts,
            sessions=sessions,
            speed=speed,
            start=start,
            end=end,
            seed=seed,
            columns=columns,
            strict=strict,
        )
        say_if_compiling()
        lever = prefix_cache_lever(
            deployment, traffic, usd_per_replica_hour, tiers=memories, replicas=replicas, promises=promises
        )
        fixed = template_lever(
            deployment,
            traffic,
            usd_per_replica_hour(1),
            replicas=lever.rows[1].replicas,
        )
        if texts and hits and hits.means and lever.rows[0].bill:
            share = hits.at(threshold).hit_share
            saved = semantic_cache_lever(
                deployment,
                traffic,
                texts,
                share,
                usd_per_replica_hour,
                embed_usd_per_mtok=embedding_usd_per_mtok,
                wait_s=hits.embed_s + hits.lookup_s,
                bytes_per_entry=hits.bytes_per_entry,
                promises=promises,
                seed=seed,
            )
    shown = {
        "prefix_cache": lever.model_dump(mode="json") if lever else None,
        "templates": fixed.model_dump(mode="json") if fixed else None,
        "text_templates": [each.model_dump(mode="json") for each in in_texts],
        "semantic": hits.model_dump(mode="json") if hits else None,
        "semantic_bill": saved.model_dump(mode="json") if saved else None,
        "price_from": price_from,
    }
    charts = {"What caching saves": lambda: cache_chart(lever, hits, threshold)}
    view = partial(cache_view, lever, fixed, in_texts, hits, saved, threshold, price_from)
    give(Answer(shown, view, "What caching saves", charts), json=json, chart=chart, html=html)


def _prices(
    deployment: "Deployment",
    usd_per_hour: float | None,
    fleet_from: Callable[..., object],
    price_of: Callable[..., object],
) -> tuple[Callable[[int], float], str]:
    """Dollars an hour of a replica among so many; whole machines are shared."""
    from tokonomics.errors import BadInput

    def of(count: int) -> tuple[float, str]:
        found = price_of(deployment, fleet_from(count, "least-outstanding", None, None, 0, None), usd_per_hour)
        if found is None:
            raise BadInput(
                f"nobody is known to sell {deployment.gpu.key}", where="--usd-per-hour", fix="Give its price."
            )
        return found  # type: ignore[return-value]

    return lambda count: of(count)[0], of(1)[1]


def _semantic_hits(
    texts: "Prompts", with_what: str, model: str | None, threshold: float, ttl_s: float | None, pairs: Path | None
) -> "SemanticHits":
    from tokonomics.money.levers.semantic_cache import THRESHOLDS, false_hits, semantic_hits
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
