"""The levers: each a pure function from a setup to a changed setup, or the reason why it does not apply.

A lever moves one knob, so levers on different knobs compose, in any order, to the same setup; those that cannot be
simulated together refuse each other in either order, and only the search for GPUs looks at where the others are. What
a lever saves is never written here: it is measured by simulating the changed setup (``ranking``). Notes on quality are
what published evaluations found, with their source; they say nothing about another model or task.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.precision import Precision
from tokonomics.physics.deployment import why_not_run
from tokonomics.physics.speculation import ACCEPTANCE, DRAFT_TOKENS, Speculation
from tokonomics.planner.bills import Bills, SetupBill
from tokonomics.planner.levers.cheaper_gpus import Found, changes, cheaper
from tokonomics.planner.plan import Limits, Question, study
from tokonomics.planner.setup import HOST_MEMORY, Setup
from tokonomics.planner.sizing import changes_over_time
from tokonomics.serving.fleet import Router
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.units import percent, plural

_SMALLER = 4
"""A draft has at most a quarter of the weights that a token visits: a larger one costs more than it proposes."""
_VARIES = 1.2
"""Busiest hour over mean from which replicas that come and go can save anything worth a cold start."""
PLANNED_WHOLE = ENOUGH_REQUESTS
"""Requests up to which the planner ranks every GPU; of more, only what may be cheaper than today is simulated."""
_CHECKED = 3
_NEAR = 1.25
"""Of the planner's leaders on demand, how many are simulated with all that the setup has besides, and up to how much
above the least of their bills."""

QUALITY_FP8 = (
    "FP8 weights and activations were lossless on academic and real-world tasks at every size of Llama-3.1 "
    "(Kurtic et al., ACL 2025, arXiv:2411.02355). Check your own task."
)
QUALITY_INT4 = (
    "INT4 weights were competitive with INT8, which lost 1 to 3 %, on Llama-3.1 (Kurtic et al., ACL 2025, "
    "arXiv:2411.02355). Check your own task."
)
QUALITY_KV8 = (
    "WizardCoder-34B with its KV cache alone in FP8 (E4M3) scored 67.7 % on HumanEval, 68.3 % in 16 bit "
    "(github.com/vllm-project/vllm/pull/2279, 2023-12-27). One task: check long contexts of your own."
)
QUALITY_NONE = "The answers do not change."
QUALITY_DRAFT = "Same distribution as without a draft, by construction (Leviathan et al. 2023, arXiv:2211.17192)."


@dataclass(frozen=True)
class NotApplicable:
    """Why a lever has nothing to move."""

    reason: str


@dataclass(frozen=True)
class Lever:
    """Something to do, what it moves, and what it asks of the people who do it."""

    name: str
    knob: str
    """Two levers on one knob exclude each other."""
    effort: str
    risk: str
    quality: str
    apply: Callable[[Setup], Setup | NotApplicable]


@dataclass(frozen=True)
class Choices:
    """What the user says of levers that need a word."""

    draft: str | None = None
    """The model that drafts, by name; None: the smallest relative in the catalogue."""
    draft_share: float | None = None
    draft_tokens: int = DRAFT_TOKENS
    acceptance: float | None = None
    """Of a drafted token; None: nobody measured it, and one is assumed."""
    tiers: str | None = None
    """Memories for KV behind the GPU's; None: what the bought machine has left of its own, which is paid for."""
    min_weights: Precision | None = None
    """No precision below this one."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Knobs to leave alone."""

    @property
    def speaks_of_drafts(self) -> bool:
        """Something of the user's own stands behind speculative decoding."""
        return any(each is not None for each in (self.draft, self.draft_share, self.acceptance))


def memories(tiers: str | None) -> str:
    """``dram=200,ssd=2000`` in words; the host's memory where nothing is named."""
    named = {"dram": "host memory", "ssd": "SSDs", "remote": "remote memory"}
    kinds = [part.partition("=")[0].strip().lower() for part in (tiers or "").split(",")]
    return " and ".join(dict.fromkeys(named.get(kind, "host memory") for kind in kinds))


def all_levers(choices: Choices | None = None, bills: Bills | None = None) -> tuple[Lever, ...]:
    """Every lever, in the order in which a team usually comes to them; ``bills`` remember what was simulated."""
    choices, bills = choices or Choices(), bills or Bills()
    made = (
        Lever("continuous batching", "batch", "a flag", "none: every engine does it", QUALITY_NONE, _batch),
        Lever("FP8 weights", "weights", "hours: a published or converted checkpoint", "quality", QUALITY_FP8,
              partial(_weights, Precision.fp8, choices)),
        Lever("INT4 weights", "weights", "days: calibrate, evaluate", "quality", QUALITY_INT4,
              partial(_weights, Precision.int4, choices)),
        Lever("FP8 KV cache", "kv", "a flag", "quality at long context", QUALITY_KV8, _kv),
        Lever("right-sized GPUs", "hardware", "days: another machine, load test", "supply, another provider",
              QUALITY_NONE, partial(right_size, bills=bills)),
        Lever("prefix cache", "cache", "a flag", "none", QUALITY_NONE, _prefix_cache),
        Lever("prefix-aware router", "router", "days: a router in front", "uneven load", QUALITY_NONE, _router),
        Lever(f"KV in {memories(choices.tiers)}", "tiers", "hours: an engine extension",
              f"{'host memory' if choices.tiers is None else 'that memory'} is shared", QUALITY_NONE,
              partial(_tiers, choices)),
        Lever("speculative decoding", "speculation", "days: a draft, its acceptance", "slower when batches are full",
              QUALITY_DRAFT, partial(_speculation, choices)),
        Lever("prompts and answers apart", "disaggregation", "weeks: two pools, a fast network",
              "two pools to keep in balance", QUALITY_NONE, _apart),
        Lever("autoscaling", "autoscale", "days: a scaler, images close by", "cold starts", QUALITY_NONE, _autoscale),
        Lever("commitment", "commit", "a signature", "paid for one to three years, used or not", QUALITY_NONE, _commit),
        Lever("spot", "spot", "days: drain on notice, replace", "interruptions", QUALITY_NONE, _spot),
    )  # fmt: skip
    return tuple(each for each in made if each.knob not in choices.without)


# --- knobs ----------------------------------------------------------------------------------------------------------

_ON_DEPLOYMENT = {
    "weights": ("weights",),
    "kv": ("kv",),
    "hardware": ("gpu", "tp", "pp", "ep"),
    "speculation": ("speculation",),
}
_ON_SETUP = {
    "batch": "max_sequences",
    "cache": "prefix_cache",
    "router": "router",
    "tiers": "tiers",
    "disaggregation": "disaggregated",
    "autoscale": "autoscale",
    "commit": "commit",
    "spot": "spot",
}
KNOBS = (*_ON_SETUP, *_ON_DEPLOYMENT)


def moved(setup: Setup, target: Setup, knob: str) -> Setup:
    """The setup with one knob where the target has it."""
    if knob in _ON_SETUP:
        return replace(setup, **{_ON_SETUP[knob]: getattr(target, _ON_SETUP[knob])})
    return setup.deployed(**{name: getattr(target.deployment, name) for name in _ON_DEPLOYMENT[knob]})


def differs(setup: Setup, target: Setup, knob: str) -> bool:
    """Whether the two have this knob in different places."""
    if knob in _ON_SETUP:
        return bool(getattr(setup, _ON_SETUP[knob]) != getattr(target, _ON_SETUP[knob]))
    return any(getattr(setup.deployment, name) != getattr(target.deployment, name) for name in _ON_DEPLOYMENT[knob])


# --- each of them ---------------------------------------------------------------------------------------------------


def _batch(setup: Setup) -> Setup | NotApplicable:
    limit = setup.deployment.limits.max_sequences
    if setup.max_sequences is None or setup.max_sequences >= limit:
        return NotApplicable(f"it batches already, up to {limit} requests at a time")
    return replace(setup, max_sequences=None)


def _weights(precision: Precision, choices: Choices, setup: Setup) -> Setup | NotApplicable:
    now = setup.deployment
    if not precision.is_below(now.weights):
        return NotApplicable(f"weights are {now.weights} already")
    if choices.min_weights and precision.is_below(choices.min_weights):
        return NotApplicable(f"below {choices.min_weights}, which you asked for at least")
    reason = why_not_run(now.engine, now.gpu, precision, now.kv)
    return NotApplicable(reason) if reason else setup.deployed(weights=precision)


def _kv(setup: Setup) -> Setup | NotApplicable:
    now = setup.deployment
    if now.kv is not Precision.bf16:
        return NotApplicable(f"the KV cache is {now.kv} already")
    reason = why_not_run(now.engine, now.gpu, now.weights, Precision.fp8)
    return NotApplicable(reason) if reason else setup.deployed(kv=Precision.fp8)


def right_size(
    setup: Setup, weights: tuple[Precision, ...] = (), kv: tuple[Precision, ...] = (), bills: Bills | None = None
) -> Setup | NotApplicable:
    """The cheapest GPUs under the same SLO, on demand, at the precisions given or the setup's own.

    Short traffic, or the first of even traffic, is planned; long traffic is searched for what is cheaper than today
    (``cheaper_gpus``). The best few are simulated on all of it, with all that the setup has besides. Never one that is
    dearer than the setup.
    """
    now, bills = setup.deployment, bills or Bills()
    is_long = len(setup.load.trace) > PLANNED_WHOLE and not setup.load.is_stationary
    question = Question(
        model=now.model,
        load=setup.load if is_long else setup.load.busiest(PLANNED_WHOLE),
        offers=setup.offers,
        engines=(now.engine,),
        today=setup.today,
        slos=setup.slos,
        weights=weights or (now.weights,),
        kv=kv or (now.kv,),
        limits=Limits(spare=setup.spare),
    )
    # What else a setup has, such as replicas that come and go, is not asked. The load, named by its place in memory,
    # is kept with the answer.
    key = question.weights, question.kv, setup.slos, setup.spare, setup.offers, id(setup.load.trace)
    found = (_searched if is_long else _ranked)(setup, question, bills, key)
    picks = [setup.deployed(**changes(deployment)) for deployment in found.deployments[:_CHECKED]]
    billed = [(bill.usd_per_month, place) for place, pick in enumerate(picks)
              if isinstance(bill := bills.of(pick), SetupBill)]  # fmt: skip
    today = bills.of(setup)
    counts = f"of {plural(found.screened, 'layout')} screened, {found.simulated} simulated"
    if not billed and not isinstance(today, SetupBill):
        return NotApplicable(f"no other machine meets the SLOs: {counts}")
    if not billed or (isinstance(today, SetupBill) and min(billed)[0] >= today.usd_per_month):
        return NotApplicable(f"no cheaper GPU found: {counts}")
    return picks[min(billed)[1]]


def _searched(setup: Setup, question: Question, bills: Bills, asked: object) -> Found:
    key = "search", setup.deployment, setup.max_sequences, setup.prefix_cache, setup.router, asked
    return bills.memo.once(key, setup.load, lambda: cheaper(setup, question, bills))


def _ranked(setup: Setup, question: Question, bills: Bills, asked: object) -> Found:
    """The planner's leaders, near the cheapest of them."""
    key = "study", question.model.key, setup.deployment.engine.key, asked
    made = bills.memo.once(key, setup.load, lambda: study(question))
    near = made.plan.best.usd_per_month * _NEAR if made.plan.best else 0.0
    rows = [leader for leader in made.plan.leaders(_CHECKED) if leader.usd_per_month <= near]
    looked_at = len(made.search.sized) + len(made.search.refused)
    return Found(tuple(made.of(row).deployment for row in rows), looked_at, len(made.search.sized))


def _prefix_cache(setup: Setup) -> Setup | NotApplicable:
    if setup.prefix_cache and setup.load.trace.prefix is not None:
        return NotApplicable("it is on already")
    return _shares(setup) or replace(setup, prefix_cache=True)


def _shares(setup: Setup) -> NotApplicable | None:
    """Why nothing can be kept of this traffic's prompts."""
    if setup.load.trace.prefix is None:
        return NotApplicable("the traffic does not say which prompts begin alike: a log with block hashes would")
    if not setup.deployment.engine.reuses_prefixes:
        return NotApplicable(f"{setup.deployment.engine.key} keeps no prefixes")
    return None


def _cache_is_off(setup: Setup) -> NotApplicable | None:
    return None if setup.prefix_cache else NotApplicable("it needs the prefix cache")


def _router(setup: Setup) -> Setup | NotApplicable:
    if setup.router is Router.prefix_aware:
        return NotApplicable("it is on already")
    return _shares(setup) or _cache_is_off(setup) or replace(setup, router=Router.prefix_aware)


def _tiers(choices: Choices, setup: Setup) -> Setup | NotApplicable:
    if setup.tiers:
        return NotApplicable("there is a memory behind the GPU's already")
    if setup.autoscale or setup.disaggregated:
        return NotApplicable("not simulated together with autoscaling or disaggregation")
    return _shares(setup) or _cache_is_off(setup) or replace(setup, tiers=choices.tiers or HOST_MEMORY)


def _speculation(choices: Choices, setup: Setup) -> Setup | NotApplicable:
    if setup.deployment.speculation:
        return NotApplicable("it drafts already")
    model = setup.deployment.model
    acceptance = ACCEPTANCE if choices.acceptance is None else choices.acceptance
    if choices.draft_share is not None:
        made = Speculation(tokens=choices.draft_tokens, acceptance=acceptance, draft_share=choices.draft_share)
        return setup.deployed(speculation=made)
    draft = find_model(choices.draft) if choices.draft else smallest_relative(model)
    if draft is None:
        return NotApplicable("no much smaller model with its vocabulary is known: name one with --draft")
    if draft.vocab != model.vocab:
        return NotApplicable(f"{draft.name} has another vocabulary")
    made = Speculation(tokens=choices.draft_tokens, acceptance=acceptance, draft=draft)
    return setup.deployed(speculation=made)


def smallest_relative(model: ModelSpec) -> ModelSpec | None:
    """The smallest model of the family with the same vocabulary, much smaller than the model itself."""
    family = re.match(r"[a-z]+", model.key)
    relatives = [
        other
        for other in all_models()
        if family
        and other.key.startswith(family[0])
        and other.vocab == model.vocab
        and not other.is_moe
        and other.active_parameters * _SMALLER <= model.active_parameters
    ]
    return min(relatives, key=lambda other: other.active_parameters, default=None)


def _apart(setup: Setup) -> Setup | NotApplicable:
    if setup.disaggregated:
        return NotApplicable("they are apart already")
    if setup.autoscale or setup.tiers:
        return NotApplicable("not simulated together with autoscaling or slower memories")
    return replace(setup, disaggregated=True)


def _autoscale(setup: Setup) -> Setup | NotApplicable:
    if setup.autoscale:
        return NotApplicable("it is on already")
    if setup.disaggregated or setup.tiers:
        return NotApplicable("not simulated together with disaggregation or slower memories")
    busiest = changes_over_time(setup.load)
    if busiest < _VARIES:
        return NotApplicable(f"the load hardly changes: the busiest hour is {percent(busiest - 1)} above the mean")
    return replace(setup, autoscale=True)


def _commit(setup: Setup) -> Setup | NotApplicable:
    if setup.commit:
        return NotApplicable("it is committed already")
    gpu = setup.deployment.gpu.key
    if not any(offer.gpu == gpu and (offer.reserved_1yr_usd_per_hour or offer.reserved_3yr_usd_per_hour)
               for offer in setup.offers):  # fmt: skip
        return NotApplicable(f"no reserved price is known for {gpu} among these offers")
    return replace(setup, commit=True)


def _spot(setup: Setup) -> Setup | NotApplicable:
    if setup.spot:
        return NotApplicable("it may be on spot already")
    gpu = setup.deployment.gpu.key
    if not any(offer.gpu == gpu and offer.spot_usd_per_hour for offer in setup.offers):
        return NotApplicable(f"no spot price is known for {gpu} among these offers")
    return replace(setup, spot=True)
