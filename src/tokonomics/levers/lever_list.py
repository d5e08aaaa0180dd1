"""Define the levers: each a pure function from a setup to a changed setup, or the reason why it does not apply.

A lever moves one knob, so levers on different knobs compose, in any order, to the same setup. Levers that cannot be
simulated together refuse each other in either order, and only the search for GPUs depends on where the other knobs are.
The saving of a lever is never stated here: it is found by simulating the changed setup (``ranking``). Notes on quality
report published evaluations, with their source; they say nothing about another model or task.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any

from tokonomics.catalog.checkpoints import QuantisedPart, allowed_by_recovery
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.errors import BadInput, option
from tokonomics.levers.batch_work import deferred, with_waiting
from tokonomics.physics.deployment import ACCEPTANCE, DRAFT_TOKENS, Deployment, Speculation, why_not_run
from tokonomics.physics.intervals import known_speed
from tokonomics.planner.parsing import METHODS, draft_named, published_draft
from tokonomics.planner.plan import Question, study
from tokonomics.planner.plan_answer import Limits
from tokonomics.planner.prospects import takes_many_cards
from tokonomics.serving.fleet_settings import Router
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.buy import reserved_prices
from tokonomics.sizing.hosts import HOST_MEMORY
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.search import changes_over_time
from tokonomics.sizing.setup import Setup
from tokonomics.types import Same, Speed, copied
from tokonomics.units import percent, plural

_CHECKED = 3  # how many of the planner's best on demand are simulated with everything else that the setup has
_NEAR = 1.25  # only those whose bill is at most this factor times the lowest
_SMALLER = 4
"""A draft has at most a quarter of the weights that a token uses: a larger one costs more than it saves."""
VARIES = 1.2  # busiest hour ÷ mean from which autoscaling can save more than cold starts cost

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
QUALITY_API = "A host may serve the model at fewer bits than published, and few say so. Check your own task."
QUALITY_DRAFT = "Same distribution as without a draft, by construction (Leviathan et al. 2023, arXiv:2211.17192)."


@dataclass(frozen=True)
class Knob:
    """What a lever moves: fields of the setup or of its deployment."""

    fields: tuple[str, ...]
    step: str  # the name of this step in a stack


KNOBS = {
    "batch": Knob(("max_sequences",), "continuous batching"),
    "weights": Knob(("weights",), "{weights} weights"),
    "kv": Knob(("kv",), "{kv} KV cache"),
    "hardware": Knob(("gpu", "tp", "pp", "ep", "dp"), "right-sized: {gpus}×{gpu}"),
    "cache": Knob(("prefix_cache",), "prefix cache"),
    "router": Knob(("router",), "prefix-aware router"),
    "tiers": Knob(("tiers",), "KV in {memories}"),
    "speculation": Knob(("speculation",), "speculative decoding"),
    "disaggregation": Knob(("disaggregated",), "disaggregated prefill/decode"),
    "waiting": Knob(("load", "slos"), "requests that can wait"),
    "autoscale": Knob(("autoscale",), "autoscaling"),
    "commit": Knob(("commit",), "commitment"),
    "spot": Knob(("spot",), "spot"),
    "offers": Knob(("offers",), "another seller"),
}
"""The knobs, in the order in which a stack moves them."""
OFFERS = "offers"
"""Renting the same machines elsewhere: of what is paid for at a price of its own, as metered."""
API = "api"
"""Calling an API moves no knob: it replaces the setup, so it stands beside the others and is combined with none."""
CLOCKS = "clocks"
"""Locking the clocks of GPUs moves none either: it saves electricity, which is in the price of a rented GPU."""
LOCKED_SAVES = {"H200": 0.32}
"""The most of the energy of decode steps that locked clocks were published to save, by GPU: up to 32 % on H200 at
little loss of throughput, while steps wait for memory and draw 137 to 300 W (Ma et al. 2026, arXiv:2605.11999)."""
LOCKED_BY = "Ma et al. 2026, arXiv:2605.11999: at 137 to 300 W in decode, little loss of throughput"


def moved(setup: Setup, target: Setup, knob: str) -> Setup:
    """Return the setup with one knob set as in the target."""
    fields = KNOBS[knob].fields
    if fields[0] in Deployment.model_fields:
        return setup.deployed(**copied(target.deployment, *fields))
    return replace(setup, **copied(target, *fields))


def differs(setup: Setup, target: Setup, knob: str) -> bool:
    """Return whether the two setups have this knob in different places."""
    fields = KNOBS[knob].fields
    on_deployment = fields[0] in Deployment.model_fields
    here, there = (setup.deployment, target.deployment) if on_deployment else (setup, target)
    return copied(here, *fields) != copied(there, *fields)


@dataclass(frozen=True)
class Lever:
    """A change, the knob it moves, and what it requires from the people who make it."""

    name: str
    knob: str  # two levers on one knob exclude each other
    effort: str
    risk: str
    quality: str
    apply: Callable[[Setup], Setup | NotServed]


@dataclass(frozen=True)
class Choices:
    """The user's choices for levers that need one."""

    draft: str | None = None  # the model that drafts, by name; None: the smallest relative in the catalogue
    draft_share: float | None = None
    draft_tokens: int = DRAFT_TOKENS
    acceptance: float | None = None  # of a drafted token; None: not measured, so one is assumed
    tiers: str | None = None
    """Memories for KV behind the GPU's; None: the host memory that the bought machine has left, already paid for."""
    min_weights: Precision | None = None  # no precision below this one
    min_recovery: float | None = None  # of quality: fewer bits only if a score reaches it
    batch_share: float | None = None  # of the requests: their answers may come hours later; None: as classes say
    without: frozenset[str] = field(default_factory=frozenset)  # knobs to leave alone

    def too_low(self, model: ModelSpec, precision: Precision, part: QuantisedPart = "weights") -> str | None:
        """Say why a precision keeps, or may keep, less quality than was asked for; None if it keeps enough."""
        if self.min_recovery is None:
            return None
        _, left_out = allowed_by_recovery(model, [precision], self.min_recovery, part)
        return left_out.get(precision)

    @property
    def speaks_of_drafts(self) -> bool:
        """Return whether the user said anything about speculative decoding."""
        return any(given is not None for given in (self.draft, self.draft_share, self.acceptance))


def memories(tiers: str | None) -> str:
    """Describe ``dram=200,ssd=2000`` in words; the host's memory if nothing is named."""
    named = {"dram": "host memory", "ssd": "SSDs", "remote": "remote memory"}
    kinds = [part.partition("=")[0].strip().lower() for part in (tiers or "").split(",")]
    return " and ".join(dict.fromkeys(named.get(kind, "host memory") for kind in kinds))


def all_levers(choices: Choices | None = None, bills: Bills | None = None) -> tuple[Lever, ...]:
    """Return every lever, in the order in which teams usually try them; ``bills`` remembers what was simulated."""
    choices, bills = choices or Choices(), bills or Bills()
    levers = (
        Lever("continuous batching", "batch", "a flag", "none: every engine does it", QUALITY_NONE, _batch),
        Lever("FP8 weights", "weights", "hours: a published or converted checkpoint", "quality", QUALITY_FP8,
              partial(_fewer_bits, "weights", Precision.fp8, choices)),
        Lever("INT4 weights", "weights", "days: calibrate, evaluate", "quality", QUALITY_INT4,
              partial(_fewer_bits, "weights", Precision.int4, choices)),
        Lever("FP8 KV cache", "kv", "a flag", "quality at long context", QUALITY_KV8,
              partial(_fewer_bits, "kv", Precision.fp8, choices)),
        Lever("right-sized GPUs", "hardware", "days: another machine, load test", "supply, another provider",
              QUALITY_NONE, partial(right_size, bills=bills)),
        Lever("prefix cache", "cache", "a flag", "none", QUALITY_NONE, _prefix_cache),
        Lever("prefix-aware router", "router", "days: a router in front", "uneven load", QUALITY_NONE,
              partial(_route, Router.prefix_aware)),
        Lever("session-affine router", "router", "hours: a router with sticky sessions", "uneven load", QUALITY_NONE,
              partial(_route, Router.session_affine)),
        Lever(f"KV in {memories(choices.tiers)}", "tiers", "hours: an engine extension",
              f"{'host memory' if choices.tiers is None else 'that memory'} is shared", QUALITY_NONE,
              partial(_switch, "tiers", choices.tiers or HOST_MEMORY, _no_tiers)),
        Lever("speculative decoding", "speculation", "days: a draft, its acceptance", "slower when batches are full",
              QUALITY_DRAFT, partial(_speculation, choices)),
        Lever("disaggregated prefill/decode", "disaggregation", "weeks: two pools, a fast network",
              "two pools to keep in balance", QUALITY_NONE, partial(_switch, "disaggregated", True, _not_apart)),
        Lever("requests that can wait", "waiting", "days: a queue for them, priorities",
              "their answers come hours later", QUALITY_NONE, partial(_let_wait, choices.batch_share)),
        Lever("autoscaling", "autoscale", "days: a scaler, images close by", "cold starts", QUALITY_NONE,
              partial(_switch, "autoscale", True, _not_autoscaled)),
        Lever("commitment", "commit", "a signature", "paid for one to three years, used or not", QUALITY_NONE,
              partial(_switch, "commit", True, partial(_not_sold, Terms.reserved))),
        Lever("spot", "spot", "days: drain on notice, replace", "interruptions", QUALITY_NONE,
              partial(_switch, "spot", True, partial(_not_sold, Terms.spot))),
    )  # fmt: skip
    return tuple(lever for lever in levers if lever.knob not in choices.without)


def elsewhere(offers: Sequence[Offer]) -> Lever:
    """Return the lever of renting the same GPUs at the market's price instead of at one's own."""

    def apply(setup: Setup) -> Setup | NotServed:
        return replace(setup, offers=tuple(offers))

    return Lever("the same GPUs elsewhere", OFFERS, "days: another provider, load test", "supply, another provider",
                 QUALITY_NONE, apply)  # fmt: skip


# --- each of them ---------------------------------------------------------------------------------------------------

_nothing = partial(NotServed, Reason.nothing_to_change)


def right_size(
    setup: Setup, weights: tuple[Precision, ...] = (), kv: tuple[Precision, ...] = (), bills: Bills | None = None
) -> Setup | NotServed:
    """Return the setup on the cheapest GPUs, on demand, at the precisions given or the setup's own.

    The best few are simulated on all traffic, with everything else that the setup has. The result never costs more than
    the setup.
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
        assumed_networks=now.uses_network,
        consumer_cards=takes_many_cards(now),
        near=_NEAR,
    )
    # Other features of the setup, such as autoscaling, are not considered.
    asked = question.weights, question.kv, setup.slos, setup.spare, Same(setup.offers), setup.load
    key = "study", question.model.key, now.engine.key, asked
    made = bills.once(key, lambda: study(question, bills.say, attempts=bills.attempts))
    near = made.plan.best.usd_per_month * _NEAR if made.plan.best else 0.0
    leaders = [made.ranked_as(row).sized.deployment for row in made.plan.leaders(_CHECKED) if row.usd_per_month <= near]
    picks = [setup.deployed(**copied(deployment, *KNOBS["hardware"].fields, "weights", "kv")) for deployment in leaders]

    def usd(setup: Setup) -> float:
        bill = bills.bill_of(setup)
        return bill.usd_per_month if isinstance(bill, Bill) else math.inf

    bill, pick = min(((usd(pick), pick) for pick in picks), key=itemgetter(0), default=(math.inf, setup))
    if bill < (today := usd(setup)):
        return pick
    why = "no other machine meets the SLOs" if math.isinf(today) else "no cheaper GPU found"
    sized, refused = len(made.search.sized), len(made.search.refused)
    looked_at = f"of {plural(sized + refused, 'layout')} screened, {sized} simulated"
    return _nothing(f"{why}: {looked_at}")


def _batch(setup: Setup) -> Setup | NotServed:
    limit = setup.deployment.limits.max_sequences
    if setup.max_sequences is None or setup.max_sequences >= limit:
        return _nothing(f"it batches already, up to {limit} requests at a time")
    return replace(setup, max_sequences=None)


def _fewer_bits(part: QuantisedPart, precision: Precision, choices: Choices, setup: Setup) -> Setup | NotServed:
    """Return the setup with its weights or its KV cache in that precision."""
    now, changed = setup.deployment, setup.deployed(**{part: precision})
    if not precision.is_below(getattr(now, part)):
        whose = "weights are" if part == "weights" else "the KV cache is"
        return _nothing(f"{whose} {getattr(now, part)} already")
    if part == "weights" and choices.min_weights and precision.is_below(choices.min_weights):
        fix = f"Ask for it: {option('min_weights', precision)}."
        return _nothing(f"below {choices.min_weights}, the fewest bits allowed", fix)
    reason = choices.too_low(now.model, precision, part)
    reason = reason or why_not_run(now.engine, now.gpu, changed.deployment.weights, changed.deployment.kv)
    return _nothing(reason) if reason else changed


def _prefix_cache(setup: Setup) -> Setup | NotServed:
    if setup.prefix_cache and setup.load.trace.prefix is not None:
        return _nothing("it is on already")
    return _shares_nothing(setup, needs_cache=False) or replace(setup, prefix_cache=True)


def _shares_nothing(setup: Setup, needs_cache: bool = True) -> NotServed | None:
    """Say why no part of this traffic's prompts can be reused."""
    if setup.load.trace.prefix is None:
        return _nothing(NOTHING_SHARED)
    if not setup.deployment.engine.reuses_prefixes:
        return _nothing(f"{setup.deployment.engine.key} keeps no prefixes")
    return _nothing("it needs the prefix cache") if needs_cache and not setup.prefix_cache else None


def _route(router: Router, setup: Setup) -> Setup | NotServed:
    if setup.router is router:
        return _nothing("it is on already")
    if router is Router.session_affine and setup.load.trace.turns is None:
        return _nothing("the traffic has no sessions")
    return _shares_nothing(setup) or replace(setup, router=router)


def _switch(field: str, value: Any, why_not: Callable[[Setup], NotServed | None], setup: Setup) -> Setup | NotServed:
    """Return the setup with one field set, unless it is already set or something prevents it."""
    if getattr(setup, field):
        return _nothing("it is on already")
    return why_not(setup) or replace(setup, **{field: value})


def _no_tiers(setup: Setup) -> NotServed | None:
    if setup.autoscale or setup.disaggregated:
        return NotServed(Reason.not_simulated, "not simulated together with autoscaling or disaggregation")
    return _shares_nothing(setup)


def _not_apart(setup: Setup) -> NotServed | None:
    if setup.load.trace.turns is not None:
        return NotServed(Reason.not_simulated, "not simulated for sessions that wait for answers")
    if setup.autoscale or setup.tiers:
        return NotServed(Reason.not_simulated, "not simulated together with autoscaling or slower memories")
    return None


def _not_autoscaled(setup: Setup) -> NotServed | None:
    if setup.disaggregated or setup.tiers:
        return NotServed(Reason.not_simulated, "not simulated together with disaggregation or slower memories")
    busiest = changes_over_time(setup.load)
    little = f"the load hardly changes: the busiest hour is {percent(busiest - 1)} above the mean"
    return _nothing(little) if busiest < VARIES else None


def _let_wait(share: float | None, setup: Setup) -> Setup | NotServed:
    """Return the setup with the requests that can wait in its quiet hours, served after all others."""
    trace, ask = setup.load.trace, option("batch_share", f"{share:.0%}" if share else "30%")
    if setup.offline or not setup.targets:
        return _nothing("no request has a target: all of them can wait already")
    if trace.turns is not None:
        return NotServed(Reason.not_simulated, "not simulated for sessions that wait for answers")
    if setup.disaggregated:
        return NotServed(Reason.not_simulated, "not simulated together with disaggregation")
    told = with_waiting(trace, share, setup.slos)
    if told is None and trace.classes:
        given = f", and {ask} does not go with classes" if share else ""
        return _nothing(f"none of the classes can wait{given}: give targets only to those that cannot")
    if told is None:
        return _nothing(f"the traffic does not say which requests can wait for hours: say how many ({ask})")
    return replace(setup, load=deferred(replace(setup.load, trace=told)), slos=())


def _not_sold(terms: Terms, setup: Setup) -> NotServed | None:
    gpu = setup.deployment.gpu.key
    offers = [offer for offer in setup.offers if offer.gpu == gpu]
    if any(reserved_prices(offer) if terms is Terms.reserved else offer.spot_usd_per_hour for offer in offers):
        return None
    return NotServed(Reason.no_price, f"no {terms} price is known for {gpu} among these offers")


def _speculation(choices: Choices, setup: Setup) -> Setup | NotServed:
    if setup.deployment.speculation:
        return _nothing("it drafts already")
    model = setup.deployment.model
    acceptance = ACCEPTANCE if choices.acceptance is None else choices.acceptance
    how = {"tokens": choices.draft_tokens, "acceptance": acceptance}
    if choices.draft_share is not None:
        return setup.deployed(speculation=Speculation(**how, draft_share=choices.draft_share))
    published = None if choices.draft else published_draft(model)
    method = published.method.value if published else choices.draft
    if method in METHODS:
        try:
            drafted = draft_named(method, model, choices.draft_tokens, choices.acceptance)
        except BadInput as error:
            return _nothing(error.what, error.fix)
        return setup.deployed(speculation=drafted)
    draft = find_model(choices.draft) if choices.draft else smallest_relative(model)
    if draft is None:
        return _nothing(f"no much smaller model with its vocabulary is known: name one with {option('draft')}")
    if draft.vocab != model.vocab:
        return _nothing(f"{draft.name} has another vocabulary")
    return setup.deployed(speculation=Speculation(**how, draft=draft))


def smallest_relative(model: ModelSpec) -> ModelSpec | None:
    """Return the smallest model of the family with the same vocabulary, much smaller than the model itself."""
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
