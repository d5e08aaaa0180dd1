"""Answer what keeping KV, answers and templates saves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, option
from tokonomics.levers.prefix_cache import PrefixCacheLever, prefix_cache_lever
from tokonomics.levers.semantic_cache import (
    THRESHOLDS,
    SemanticHits,
    SemanticLever,
    false_hits,
    semantic_cache_lever,
    semantic_hits,
)
from tokonomics.levers.templates import TemplateLever, TextTemplate, template_lever, text_templates
from tokonomics.money.cache_tiers import parse_tiers
from tokonomics.questions.deployment import check_jobs, check_pauses, deployment_of, require_writer, targets_of
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import CacheRequest
from tokonomics.questions.result import Result
from tokonomics.questions.serving import prices_of, say_if_compiling, within_context
from tokonomics.questions.traffic import read_time, traffic_of
from tokonomics.traffic.prompts import Prompts, embed, read_pairs, read_prompts


class CacheResult(Result):
    """The saving of each kind of caching."""

    prefix_cache: PrefixCacheLever | None
    templates: TemplateLever | None
    text_templates: tuple[TextTemplate, ...]
    semantic: SemanticHits | None
    semantic_bill: SemanticLever | None
    price_from: str | None


def cache(request: CacheRequest, listener: Listener = SILENT) -> CacheResult:
    """Compute savings of shared prompt beginnings on the GPU and beyond it, similar prompts, and fixed templates."""
    ttl_s = read_time(request.ttl, "ttl")
    if ttl_s is not None and not ttl_s > 0:
        raise BadInput("must be above 0", field="ttl")
    served = request.trace is not None or request.is_made_up
    _check(request, served)
    texts = read_prompts(Path(request.prompts), request.prompt_column) if request.prompts else None
    hits = _semantic_hits(request, texts, ttl_s) if texts and request.semantic else None
    found: dict[str, Any] = dict.fromkeys(("prefix_cache", "templates", "semantic_bill", "price_from"))
    if served:
        found = _served(request, texts, hits, ttl_s, listener)
    return CacheResult(**found, text_templates=text_templates(texts) if texts else (), semantic=hits)


def _check(request: CacheRequest, served: bool) -> None:
    traffic = f"{option('trace')} with {option('model')} and {option('gpu')}"
    if not served and request.prompts is None:
        fix = f"Give {traffic} (try mooncake-conversation), or {option('prompts')}."
        raise BadInput("nothing to look at", fix=fix)
    if request.semantic is not None and request.prompts is None:
        raise BadInput("needs the texts of prompts", field="semantic", fix=f"Give {option('prompts', 'FILE')}.")
    if request.tiers is not None and not served:
        raise BadInput("needs the traffic that it serves", field="tiers", fix=f"Give {traffic}.")
    if request.pairs is not None and request.semantic is None:
        raise BadInput("needs something that embeds", field="pairs", fix=f"Give {option('semantic')}.")


def _served(
    request: CacheRequest, texts: Prompts | None, hits: SemanticHits | None, ttl_s: float | None, listener: Listener
) -> dict[str, Any]:
    """Return what caches save on traffic that a deployment serves."""
    if request.gpu is None:
        raise BadInput("is missing: which GPU serves it?", field="gpu")
    targets = targets_of(request)
    deployment = deployment_of(request, request.model, request.gpu)
    require_writer(deployment.model)
    priced = prices_of(deployment, request)
    price: Callable[[int], float] = lambda count: priced(count)[0]  # noqa: E731
    memories = parse_tiers(request.tiers, deployment, ttl_s) if request.tiers is not None else ()
    requests = traffic_of(request, listener, deployment.model.max_context)
    check_jobs(targets, requests)
    requests = within_context(requests, deployment, listener)
    check_pauses(targets, requests)
    say_if_compiling(listener)
    listener.doing("simulating with and without a cache")
    lever = prefix_cache_lever(deployment, requests, price, tiers=memories, replicas=request.replicas, slos=targets)
    fixed = template_lever(deployment, requests, price(1), replicas=lever.rows[1].replicas)
    saved = None
    if texts and hits and hits.means and lever.rows[0].bill:
        saved = semantic_cache_lever(
            deployment,
            requests,
            texts,
            hits.at(request.threshold).hit_share,
            price,
            embed_usd_per_mtok=request.embedding_usd_per_mtok,
            wait_s=hits.embed_s + hits.lookup_s,
            index=hits.index,
            slos=targets,
            seed=request.seed,
        )
    return {"prefix_cache": lever, "templates": fixed, "semantic_bill": saved, "price_from": priced(1)[1]}


def _semantic_hits(request: CacheRequest, texts: Prompts, ttl_s: float | None) -> SemanticHits:
    embedder, model = request.semantic or "", request.embedding_model
    thresholds = tuple(sorted({*THRESHOLDS, request.threshold}))
    hits = semantic_hits(texts, embed(texts.texts, embedder, model), thresholds, ttl_s)
    if request.pairs is None:
        return hits
    labelled = read_pairs(Path(request.pairs))
    both = embed((*labelled.first, *labelled.second), embedder, model).vectors
    many = len(labelled.first)
    return hits.model_copy(update={"labels": false_hits(both[:many], both[many:], labelled.same, thresholds)})
