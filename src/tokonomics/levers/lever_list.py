"""The levers: each a pure function from a setup to a changed setup, or the reason why it does not apply.

A lever moves one knob, so levers on different knobs compose, in any order, to the same setup; those that cannot be
simulated together refuse each other in either order, and only the search for GPUs looks at where the others are. What
a lever saves is never written here: it is measured by simulating the changed setup (``ranking``). Notes on quality are
what published evaluations found, with their source; they say nothing about another model or task.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

from tokonomics.catalog.checkpoints import QuantisedPart, allowed_by_recovery
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.physics.deployment import ACCEPTANCE, DRAFT_TOKENS, Speculation, why_not_run
from tokonomics.physics.intervals import known_speed
from tokonomics.planner.parsing import METHODS, draft_named
from tokonomics.planner.plan import Question, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.serving.fleet import Router
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.buy import reserved_prices
from tokonomics.sizing.hosts import HOST_MEMORY
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.search import changes_over_time
from tokonomics.sizing.setup import Setup
from tokonomics.types import Same, Speed, copied
from tokonomics.units import percent, plural

_CHANGES = ("gpu", "tp", "pp", "ep", "dp", "weights", "kv")
_CHECKED = 3
_NEAR = 1.25
"""Of the planner's leaders on demand, how many are simulated with all that the setup has besides, and up to how much
above the least of their bills."""


def right_size(
    setup: Setup, weights: tuple[Precision, ...] = (), kv: tuple[Precision, ...] = (), bills: Bills | None = None
) -> Setup | NotServed:
    """The setup on the cheapest GPUs, on demand, at the precisions given or the setup's own.

    The best few are simulated on all traffic, with all that the setup has besides. Never one that costs more than the
    setup.
    """
    now, bills = setup.deployment, bills or Bills()
    question = Question(
        model=now.model,
        load=setup.load,
        offers=setup.offers,
        engines=(now.engine,),
        today=setup.today,
        slos=setup.slos,
        weights=weights or (now.weights,),
        kv=kv or (now.kv,),
        limits=Limits(spare=setup.spare),
        assumed_speeds=known_speed(now) is Speed.assumed,
        near=_NEAR,
    )
    # What else a setup has, such as replicas that come and go, is not asked.
    asked = question.weights, question.kv, setup.slos, setup.spare, Same(setup.offers), setup.load
    key = "study", question.model.key, now.engine.key, asked
    made = bills.once(key, lambda: study(question, bills.say, attempts=bills.attempts))
    near = made.plan.best.usd_per_month * _NEAR if made.plan.best else 0.0
    leaders = [made.ranked_as(row).sized.deployment for row in made.plan.leaders(_CHECKED) if row.usd_per_month <= near]
    picks = [setup.deployed(**copied(deployment, *_CHANGES)) for deployment in leaders]
    bill, pick = min(((_usd(pick, bills), pick) for pick in picks), key=itemgetter(0), default=(math.inf, setup))
    today = _usd(setup, bills)
    if bill < today:
        return pick
    why = "no other machine meets the SLOs" if math.isinf(today) else "no cheaper GPU found"
    sized, refused = len(made.search.sized), len(made.search.refused)
    looked_at = f"of {plural(sized + refused, 'layout')} screened, {sized} simulated"
    return NotServed(Reason.nothing_to_change, f"{why}: {looked_at}")


def _usd(setup: Setup, bills: Bills) -> float:
    """A month; infinite where it cannot be served."""
    bill = bills.of(setup)
    return bill.usd_per_month if isinstance(bill, Bill) else math.inf


_SMALLER = 4
"""A draft has at most a quarter of the weights that a token visits: a larger one costs more than it proposes."""
_VARIES = 1.2
"""Busiest hour over mean from which replicas that come and go can save anything worth a cold start."""

NOTHING_SHARED = "the traffic does not say which prompts begin alike: a log with block hashes would"
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
class Lever:
    """Something to do, what it moves, and what it asks of the people who do it."""

    name: str
    knob: str
    """Two levers on one knob exclude each other."""
    effort: str
    risk: str
    quality: str
    apply: Callable[[Setup], Setup | NotServed]


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
    min_recovery: float | None = None
    """Of quality: fewer bits only where a score reaches it."""
    without: frozenset[str] = field(default_factory=frozenset)
    """Knobs to leave alone."""

    def too_low(self, model: ModelSpec, precision: Precision, part: QuantisedPart = "weights") -> str | None:
        """Why a precision keeps less quality than was asked for, or may; None where it keeps enough."""
        if self.min_recovery is None:
            return None
        _, left_out = allowed_by_recovery(model, [precision], self.min_recovery, part)
        return left_out.get(precision)

    @property
    def speaks_of_drafts(self) -> bool:
        """Something of the user's own stands behind speculative decoding."""
        return any(said is not None for said in (self.draft, self.draft_share, self.acceptance))


def memories(tiers: str | None) -> str:
    """``dram=200,ssd=2000`` in words; the host's memory where nothing is named."""
    named = {"dram": "host memory", "ssd": "SSDs", "remote": "remote memory"}
    kinds = [part.partition("=")[0].strip().lower() for part in (tiers or "").split(",")]
    return " and ".join(dict.fromkeys(named.get(kind, "host memory") for kind in kinds))


def all_levers(choices: Choices | None = None, bills: Bills | None = None) -> tuple[Lever, ...]:
    """Every lever, in the order in which a team usually comes to them; ``bills`` remember what was simulated."""
    choices, bills = choices or Choices(), bills or Bills()
    levers = (
        Lever("continuous batching", "batch", "a flag", "none: every engine does it", QUALITY_NONE, _batch),
        Lever("FP8 weights", "weights", "hours: a published or converted checkpoint", "quality", QUALITY_FP8,
              partial(_weights, Precision.fp8, choices)),
        Lever("INT4 weights", "weights", "days: calibrate, evaluate", "quality", QUALITY_INT4,
              partial(_weights, Precision.int4, choices)),
        Lever("FP8 KV cache", "kv", "a flag", "quality at long context", QUALITY_KV8, partial(_kv, choices)),
        Lever("right-sized GPUs", "hardware", "days: another machine, load test", "supply, another provider",
              QUALITY_NONE, partial(right_size, bills=bills)),
        Lever("prefix cache", "cache", "a flag", "none", QUALITY_NONE, _prefix_cache),
        Lever("prefix-aware router", "router", "days: a router in front", "uneven load", QUALITY_NONE, _router),
        Lever("session-affine router", "router", "hours: a router with sticky sessions", "uneven load", QUALITY_NONE,
              _affine),
        Lever(f"KV in {memories(choices.tiers)}", "tiers", "hours: an engine extension",
              f"{'host memory' if choices.tiers is None else 'that memory'} is shared", QUALITY_NONE,
              partial(_tiers, choices)),
        Lever("speculative decoding", "speculation", "days: a draft, its acceptance", "slower when batches are full",
              QUALITY_DRAFT, partial(_speculation, choices)),
        Lever("disaggregated prefill/decode", "disaggregation", "weeks: two pools, a fast network",
              "two pools to keep in balance", QUALITY_NONE, _apart),
        Lever("autoscaling", "autoscale", "days: a scaler, images close by", "cold starts", QUALITY_NONE, _autoscale),
        Lever("commitment", "commit", "a signature", "paid for one to three years, used or not", QUALITY_NONE, _commit),
        Lever("spot", "spot", "days: drain on notice, replace", "interruptions", QUALITY_NONE, _spot),
    )  # fmt: skip
    return tuple(lever for lever in levers if lever.knob not in choices.without)


# --- knobs ----------------------------------------------------------------------------------------------------------

KNOBS = {
    "batch": ("max_sequences",),
    "cache": ("prefix_cache",),
    "router": ("router",),
    "tiers": ("tiers",),
    "disaggregation": ("disaggregated",),
    "autoscale": ("autoscale",),
    "commit": ("commit",),
    "spot": ("spot",),
    "weights": ("weights",),
    "kv": ("kv",),
    "hardware": ("gpu", "tp", "pp", "ep", "dp"),
    "speculation": ("speculation",),
}
"""What each sets, of the setup or of its deployment."""
_ON_DEPLOYMENT = ("weights", "kv", "hardware", "speculation")


def _position(setup: Setup, knob: str) -> dict[str, Any]:
    return copied(setup.deployment if knob in _ON_DEPLOYMENT else setup, *KNOBS[knob])


def moved(setup: Setup, target: Setup, knob: str) -> Setup:
    """The setup with one knob where the target has it."""
    position = _position(target, knob)
    return setup.deployed(**position) if knob in _ON_DEPLOYMENT else replace(setup, **position)


def differs(setup: Setup, target: Setup, knob: str) -> bool:
    """Whether the two have this knob in different places."""
    return _position(setup, knob) != _position(target, knob)


def billed(lever: Lever, setup: Setup, bills: Bills) -> tuple[Setup, Bill] | NotServed:
    """The setup that a lever leads to with its bill, or why there is none."""
    changed = lever.apply(setup)
    if isinstance(changed, NotServed):
        return changed
    bill = bills.of(changed)
    return bill if isinstance(bill, NotServed) else (changed, bill)


# --- each of them ---------------------------------------------------------------------------------------------------


def _batch(setup: Setup) -> Setup | NotServed:
    limit = setup.deployment.limits.max_sequences
    if setup.max_sequences is None or setup.max_sequences >= limit:
        return NotServed(Reason.nothing_to_change, f"it batches already, up to {limit} requests at a time")
    return replace(setup, max_sequences=None)


def _weights(precision: Precision, choices: Choices, setup: Setup) -> Setup | NotServed:
    now = setup.deployment
    if not precision.is_below(now.weights):
        return NotServed(Reason.nothing_to_change, f"weights are {now.weights} already")
    if choices.min_weights and precision.is_below(choices.min_weights):
        fix = f"Ask for it: {option('min_weights', precision)}."
        return NotServed(Reason.nothing_to_change, f"below {choices.min_weights}, the fewest bits allowed", fix)
    if low := choices.too_low(now.model, precision):
        return NotServed(Reason.nothing_to_change, low)
    reason = why_not_run(now.engine, now.gpu, precision, now.kv)
    return NotServed(Reason.nothing_to_change, reason) if reason else setup.deployed(weights=precision)


def _kv(choices: Choices, setup: Setup) -> Setup | NotServed:
    now = setup.deployment
    if now.kv is not Precision.bf16:
        return NotServed(Reason.nothing_to_change, f"the KV cache is {now.kv} already")
    if low := choices.too_low(now.model, Precision.fp8, "kv"):
        return NotServed(Reason.nothing_to_change, low)
    reason = why_not_run(now.engine, now.gpu, now.weights, Precision.fp8)
    return NotServed(Reason.nothing_to_change, reason) if reason else setup.deployed(kv=Precision.fp8)


def _prefix_cache(setup: Setup) -> Setup | NotServed:
    if setup.prefix_cache and setup.load.trace.prefix is not None:
        return NotServed(Reason.nothing_to_change, "it is on already")
    return _shares(setup, needs_cache=False) or replace(setup, prefix_cache=True)


def _shares(setup: Setup, needs_cache: bool = True) -> NotServed | None:
    """Why nothing can be kept of this traffic's prompts."""
    if setup.load.trace.prefix is None:
        return NotServed(Reason.nothing_to_change, NOTHING_SHARED)
    if not setup.deployment.engine.reuses_prefixes:
        return NotServed(Reason.nothing_to_change, f"{setup.deployment.engine.key} keeps no prefixes")
    return (
        NotServed(Reason.nothing_to_change, "it needs the prefix cache")
        if needs_cache and not setup.prefix_cache
        else None
    )


def _router(setup: Setup) -> Setup | NotServed:
    if setup.router is Router.prefix_aware:
        return NotServed(Reason.nothing_to_change, "it is on already")
    return _shares(setup) or replace(setup, router=Router.prefix_aware)


def _affine(setup: Setup) -> Setup | NotServed:
    if setup.router is Router.session_affine:
        return NotServed(Reason.nothing_to_change, "it is on already")
    if setup.load.trace.turns is None:
        return NotServed(Reason.nothing_to_change, "the traffic has no sessions")
    return _shares(setup) or replace(setup, router=Router.session_affine)


def _tiers(choices: Choices, setup: Setup) -> Setup | NotServed:
    if setup.tiers:
        return NotServed(Reason.nothing_to_change, "there is a memory behind the GPU's already")
    if setup.autoscale or setup.disaggregated:
        return NotServed(Reason.not_simulated, "not simulated together with autoscaling or disaggregation")
    return _shares(setup) or replace(setup, tiers=choices.tiers or HOST_MEMORY)


def _speculation(choices: Choices, setup: Setup) -> Setup | NotServed:
    if setup.deployment.speculation:
        return NotServed(Reason.nothing_to_change, "it drafts already")
    model = setup.deployment.model
    acceptance = ACCEPTANCE if choices.acceptance is None else choices.acceptance
    if choices.draft_share is not None:
        made = Speculation(tokens=choices.draft_tokens, acceptance=acceptance, draft_share=choices.draft_share)
        return setup.deployed(speculation=made)
    if choices.draft in METHODS:
        try:
            drafted = draft_named(choices.draft, model, choices.draft_tokens, choices.acceptance)
        except BadInput as error:
            return NotServed(Reason.nothing_to_change, error.what, error.fix)
        return setup.deployed(speculation=drafted)
    draft = find_model(choices.draft) if choices.draft else smallest_relative(model)
    if draft is None:
        return NotServed(
            Reason.nothing_to_change,
            f"no much smaller model with its vocabulary is known: name one with {option('draft')}",
        )
    if draft.vocab != model.vocab:
        return NotServed(Reason.nothing_to_change, f"{draft.name} has another vocabulary")
    return setup.deployed(speculation=Speculation(tokens=choices.draft_tokens, acceptance=acceptance, draft=draft))


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


def _apart(setup: Setup) -> Setup | NotServed:
    if setup.disaggregated:
        return NotServed(Reason.nothing_to_change, "it is disaggregated already")
    if setup.load.trace.turns is not None:
        return NotServed(Reason.not_simulated, "not simulated for sessions that wait for answers")
    if setup.autoscale or setup.tiers:
        return NotServed(Reason.not_simulated, "not simulated together with autoscaling or slower memories")
    return replace(setup, disaggregated=True)


def _autoscale(setup: Setup) -> Setup | NotServed:
    if setup.autoscale:
        return NotServed(Reason.nothing_to_change, "it is on already")
    if setup.disaggregated or setup.tiers:
        return NotServed(Reason.not_simulated, "not simulated together with disaggregation or slower memories")
    busiest = changes_over_time(setup.load)
    if busiest < _VARIES:
        return NotServed(
            Reason.nothing_to_change,
            f"the load hardly changes: the busiest hour is {percent(busiest - 1)} above the mean",
        )
    return replace(setup, autoscale=True)


def _commit(setup: Setup) -> Setup | NotServed:
    if setup.commit:
        return NotServed(Reason.nothing_to_change, "it is committed already")
    gpu = setup.deployment.gpu.key
    if not any(reserved_prices(offer) for offer in setup.offers if offer.gpu == gpu):
        return NotServed(Reason.no_price, f"no reserved price is known for {gpu} among these offers")
    return replace(setup, commit=True)


def _spot(setup: Setup) -> Setup | NotServed:
    if setup.spot:
        return NotServed(Reason.nothing_to_change, "it may be on spot already")
    gpu = setup.deployment.gpu.key
    if not any(offer.gpu == gpu and offer.spot_usd_per_hour for offer in setup.offers):
        return NotServed(Reason.no_price, f"no spot price is known for {gpu} among these offers")
    return replace(setup, spot=True)
