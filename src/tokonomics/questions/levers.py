"""Answer what to change first, what all changes save together, and what caches save."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field

from tokonomics.catalog.layers import WEIGHT_PRECISIONS, parse_precision
from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.levers.lever_list import API, CLOCKS, KNOBS, OFFERS, Choices, all_levers, elsewhere
from tokonomics.levers.prefix_cache import PrefixCacheLever, prefix_cache_lever
from tokonomics.levers.ranking import Ranked, Ranking, Utilization, rank_levers, utilization_bills
from tokonomics.levers.semantic_cache import (
    THRESHOLDS,
    SemanticHits,
    SemanticLever,
    false_hits,
    semantic_cache_lever,
    semantic_hits,
)
from tokonomics.levers.stack import Waterfall, order_from
from tokonomics.levers.stack import stack as stacked
from tokonomics.levers.templates import TemplateLever, TextTemplate, template_lever, text_templates
from tokonomics.money.breakeven import Upkeep, upkeep
from tokonomics.money.cache_tiers import AUTO, parse_tiers
from tokonomics.money.cost import require_positive
from tokonomics.money.trace_bills import ApiCost
from tokonomics.operate.expect import profile_of
from tokonomics.operate.metered import metered_load
from tokonomics.operate.pull_request import OpenedChange
from tokonomics.physics.calibration import active, using
from tokonomics.physics.deployment import DRAFT_TOKENS, Deployment
from tokonomics.planner.apis import ApiBeside, api_bills, cheapest_api
from tokonomics.planner.parsing import listed, share_of_quality, spare_from
from tokonomics.questions.catalogue import extras_of, offers_of
from tokonomics.questions.deployment import check_jobs, check_pauses, deployment_of, named, require_writer, targets_of
from tokonomics.questions.inputs import BatchLimits, Layout
from tokonomics.questions.load import load_of
from tokonomics.questions.metered import (
    REPLICAS,
    TOGETHER,
    MeteredRun,
    MeteredToday,
    as_metered,
    is_metered,
    metered_run,
    proposed,
)
from tokonomics.questions.proposal import DraftedChange, check_open, drafted, taken
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import CacheRequest, Changes, LeversRequest, StackRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.serving import prices_of, say_if_compiling, say_left_out, within_context
from tokonomics.questions.traffic import read_time, traffic_of
from tokonomics.questions.twin import as_stated
from tokonomics.sizing.bill import Bills
from tokonomics.sizing.hosts import cheapest_host, left_gb
from tokonomics.sizing.layouts import FLOOR, NotServed
from tokonomics.sizing.search import NeverHolds
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.prompts import Prompts, embed, read_pairs, read_prompts
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.workload import Workload
from tokonomics.types import today
from tokonomics.units import HOURS_PER_MONTH, percent, usd


class LeversResult(Result, Ranking):
    """Every lever, largest saving first, and all useful ones together."""

    ROWS = "levers"

    utilization: Utilization | None  # the bill against batch limit, load and burstiness, if asked for
    upkeep_now: Upkeep | None = None  # a month of today's setup with people and overheads, if any are given
    upkeep_together: Upkeep | None = None  # the same with all useful levers
    metered: MeteredToday | None = None  # what runs today as metered, and what is proposed for it
    opened: OpenedChange | None = None  # the branch that a proposal was put on, if asked for
    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")

    setup: Any = beside()
    drafted: Any = beside()  # the change to open, for the door that does

    def headline(self) -> str:
        if self.metered:
            return self._proposed(self.metered)
        now, together = usd(self.now.usd_per_month), usd(self.together.usd_per_month)
        if not self.taken:
            return f"{self.now.deployment}: {now} a month, and no lever lowers it"
        first = next((lever for lever in self.levers if lever.name in self.taken and lever.saved_share > 0), None)
        alone = f"; {first.name} alone: {percent(first.saved_share)} less" if first else ""
        return (
            f"{self.now.deployment}: {now} a month now, {together} with all that help "
            f"({percent(self.saved_share)} less){alone}"
        )

    @staticmethod
    def _proposed(metered: MeteredToday) -> str:
        paid = f"{metered.servers.model}: {usd(metered.usd_per_month)} a month as metered"
        if not metered.proposals:
            return f"{paid}; no change saves more than the twin's own error"
        best = metered.proposals[0]
        return f"{paid}; {best.name} saves {percent(best.saved_share)}"


class StackResult(Result, Waterfall):
    """From one request at a time to the best deployment found, step by step."""

    ROWS = "steps"

    workload: Workload
    slos: tuple[Slo, ...] = Field(alias="promises")
    api: ApiBeside | None = None  # the cheapest API beside the end: it is no step, as it replaces them all
    setup: Any = beside()


_TAKES_A_WHILE = 200_000  # with this many requests, thirty simulations take more than 15 seconds


def setup_of(request: LeversRequest | StackRequest, listener: Listener) -> tuple[Setup, MeteredRun | None]:
    """Return what runs today, and what was metered of it if that is asked for."""
    if isinstance(request, StackRequest):  # it starts with the checkpoint's precision and the engine's own limits
        layout, limits = (
            Layout(tp=request.tp, pp=request.pp, ep=request.ep, dp=request.dp, engine=request.engine),
            BatchLimits(),
        )
    else:
        layout, limits = request, request
    deployment = deployment_of(layout, request.model, request.gpu)
    require_writer(deployment.model)
    targets, offers, run = targets_of(request), offers_of(request), None
    context = deployment.model.max_context
    if is_metered(request):
        run = metered_run(request, deployment, listener)
        load = replace(metered_load(run.servers, context, request.seed), headroom=request.headroom or 0.0)
        offers = as_metered(offers, deployment, run.servers)
    else:
        _refuse_metered(request)
        load = load_of(request, listener).within(context)
    say_left_out(load, context, listener)
    check_pauses(targets, load.trace)
    if request.usd_per_hour is not None and run is None:
        offers = _at_price(deployment, offers, request.usd_per_hour)
    setup = Setup(
        deployment=deployment,
        load=load,
        offers=offers,
        today=today(),
        slos=targets,
        max_sequences=limits.max_sequences,
        prefix_cache=not limits.no_prefix_cache,
        spare=spare_from(request.spare),
        offline=request.offline,
    )
    if run is not None:
        setup = as_stated(
            setup, {name: said for name, said in run.servers.states.items() if not _is_typed(limits, name)}
        )
    if request.tiers is not None:  # check them even if no lever uses them
        parse_tiers(request.tiers, deployment)
    many = len(load.trace)
    if many > _TAKES_A_WHILE:
        part = "" if run else f"; {option('start')} and {option('end')} take a part of a log"
        listener.note(f"{many:,} requests are simulated some thirty times{part}")
    return setup, run


_STATED = {"cache_dtype": "kv", "enable_prefix_caching": "no_prefix_cache"}
"""What a metrics page says of a set-up, and the input that says the same."""


def _is_typed(limits: object, stated: str) -> bool:
    return bool(getattr(limits, _STATED.get(stated, ""), None))


def _refuse_metered(request: LeversRequest | StackRequest) -> None:
    for name in ("since", "query"):
        if getattr(request, name) is not None:
            raise BadInput("is for what was metered", field=name, fix=f"Add {option('start', 'ledger')}.")


def _at_price(deployment: Deployment, offers: tuple[Offer, ...], usd_per_gpu_hour: float) -> tuple[Offer, ...]:
    """Use the user's own price for the GPU instead of the market's; other GPUs keep theirs, for comparison."""
    price, gpu = require_positive("usd_per_hour", usd_per_gpu_hour), deployment.gpu
    own = [
        Offer(
            provider="yours",
            region="as given",
            instance=f"{size}×{gpu.key}",
            gpu=gpu.key,
            gpus=size,
            usd_per_hour=price * size,
            date=today(),
            source="as given",
        )
        for size in (1, 2, 4, 8)
        if size <= gpu.gpus_per_node
    ]
    return (*own, *(offer for offer in offers if offer.gpu != gpu.key))


def choices_of(changes: Changes) -> Choices:
    names, known = listed(changes.without, "without") or [], (*KNOBS, API, CLOCKS)
    for name in names:
        if name not in known:
            fix = f"Valid: {', '.join(known)}. {did_you_mean(name, known, 1) or ''}".rstrip()
            raise BadInput(f"'{shorten(name)}' is no lever", field="without", fix=fix)
    if changes.draft is not None and changes.draft_share is not None:
        raise BadInput(f"says the same as {option('draft')}", field="draft_share", fix="Give one of the two.")
    # The lowest weight precision is the requested one; any if scores decide; else FP8.
    floor = None if changes.min_recovery is not None else FLOOR
    if changes.min_weights is not None:
        floor = parse_precision(changes.min_weights, WEIGHT_PRECISIONS, "min_weights")
    return Choices(
        draft=changes.draft,
        draft_share=changes.draft_share,
        draft_tokens=DRAFT_TOKENS if changes.draft_tokens is None else changes.draft_tokens,
        acceptance=changes.acceptance,
        tiers=changes.tiers,
        min_weights=floor,
        min_recovery=share_of_quality(changes.min_recovery),
        batch_share=changes.batch_share,
        without=frozenset(names),
    )


def _apis(request: LeversRequest | StackRequest, setup: Setup) -> tuple[ApiCost, ...]:
    """Return what the hosts of the model charge for the setup's requests."""
    return api_bills(setup.deployment.model, named(request.model), setup.load, batch=setup.offline)


def levers(request: LeversRequest, listener: Listener = SILENT) -> LeversResult:
    """Rank every lever by its saving, and combine all that help."""
    choices, extras = choices_of(request), extras_of(request)
    check_open(request, listener)
    setup, run = setup_of(request, listener)
    say_if_compiling(listener)
    listener.doing("simulating")
    bills = Bills(progress=listener.doing)
    with _as_learned(setup, run, request, listener):
        found, metered, change = _ranked(request, choices, setup, run, bills, listener)
    ranking, tokens = found.ranking, setup.load.workload.tokens_per_month
    return LeversResult(
        metered=metered,
        drafted=change,
        **dict(ranking),
        upkeep_now=upkeep(extras, ranking.now.usd_per_month, tokens),
        upkeep_together=upkeep(extras, ranking.together.usd_per_month, tokens),
        utilization=utilization_bills(setup, bills) if request.utilization else None,
        workload=setup.load.workload,
        slos=setup.slos,
        setup=setup,
    )


@contextmanager
def _as_learned(setup: Setup, run: MeteredRun | None, request: LeversRequest, listener: Listener) -> Iterator[None]:
    """Predict with what a twin has learned of the servers, if it has."""
    if run is None or not run.factors:
        yield
        return
    if active() is not None:
        listener.note("the twin's own factors are used instead of the profile: it learned them without one")
    with using(profile_of(setup, run.factors)):
        yield


def _ranked(
    request: LeversRequest, choices: Choices, setup: Setup, run: MeteredRun | None, bills: Bills, listener: Listener
) -> tuple[Ranked, MeteredToday | None, DraftedChange | None]:
    """Return the ranking, what is proposed for what was metered, and the change to open if one is asked for."""
    levers = all_levers(choices, bills)
    if run is not None and choices.without.isdisjoint({OFFERS}):
        levers = (*levers, elsewhere(offers_of(request)))
    apis = None if API in choices.without else _apis(request, setup)
    region = listed(request.region, "region") or ()
    least = run.errors.speed * run.servers.usd_per_hour * HOURS_PER_MONTH if run and run.errors else 0.0
    clocks = CLOCKS not in choices.without
    found = rank_levers(setup, levers, bills, apis, region, clocks=clocks, least_usd_per_month=least)
    if isinstance(found, NotServed):
        raise NeverHolds(found, f"{setup.deployment}: ")
    if run is None:
        return found, None, None
    bills.begin("what runs today, on as many servers")
    modelled = bills.bill_on(setup, run.servers.servers)
    if isinstance(modelled, NotServed):
        raise NeverHolds(modelled, f"{setup.deployment}: ")
    metered = proposed(run, setup, found.ranking, modelled)
    if request.open_ is None:
        return found, metered, None
    one = taken(request, metered.proposals)
    changed = {REPLICAS: setup, TOGETHER: found.setup}.get(one.knob)
    made = changed or next(lever.apply(setup) for lever in levers if lever.name == one.name)
    assert isinstance(made, Setup)
    return found, metered, drafted(request, run, setup, made, one, bills, listener)


def stack(request: StackRequest, listener: Listener = SILENT) -> StackResult:
    """Simulate each step from one request at a time to the best deployment found, with its saving."""
    choices, steps = choices_of(request), order_from(request.order)
    setup, _ = setup_of(request, listener)
    say_if_compiling(listener)
    listener.doing("simulating")
    found = stacked(setup, choices, steps, Bills(progress=listener.doing))
    api = None
    if API not in choices.without:
        tokens, end = setup.load.workload.tokens_per_month, found.waterfall.end.usd_per_month
        region = listed(request.region, "region") or ()
        api = cheapest_api(_apis(request, setup), tokens, end, region=region, has_slo=bool(setup.slos))
    return StackResult(**dict(found.waterfall), api=api, workload=setup.load.workload, slos=setup.slos, setup=setup)


# --- what keeping KV, answers and templates saves ---------------------------------------------------------------------


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
    memories = parse_tiers(request.tiers or AUTO, deployment, ttl_s, auto=True)
    requests = traffic_of(request, listener, deployment.model.max_context)
    check_jobs(targets, requests)
    requests = within_context(requests, deployment, listener)
    check_pauses(targets, requests)
    say_if_compiling(listener)
    listener.doing("simulating with and without a cache")
    lever = prefix_cache_lever(
        deployment,
        requests,
        price,
        tiers=memories,
        machine_gb=_memory_left(deployment, request),
        replicas=request.replicas,
        slos=targets,
        say=listener.doing,
    )
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


def _memory_left(deployment: Deployment, request: CacheRequest) -> Callable[[int], float]:
    """Return the GB of host memory that the machines of so many replicas have left for each; 0 if it is not known."""

    def left(count: int) -> float:
        offer, _ = cheapest_host(deployment, count, offers)
        return max(0.0, left_gb(deployment, offer) or 0.0)

    if request.usd_per_hour is not None:
        return lambda count: 0.0
    offers = offers_of(request)
    return lru_cache(left)


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
