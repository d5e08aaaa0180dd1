"""What ``levers`` and ``stack`` share: the inputs that say what may be changed, and the setup that runs today."""

from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, nearest, option, shorten
from tokonomics.questions.inputs import TIERS, Layout, LowestWeights, PlanTraffic, Priced, Spared
from tokonomics.questions.listener import Listener
from tokonomics.questions.load import load_of, offers_of, targets_of
from tokonomics.questions.request import Kind, Number, Text, Texts, Whole, declared
from tokonomics.questions.serving import deployment_of, say_left_out

if TYPE_CHECKING:
    from tokonomics.catalog.offers import Offer
    from tokonomics.physics.deployment import Deployment
    from tokonomics.planner.levers.lever_list import Choices
    from tokonomics.planner.setup import Setup

_TAKES_A_WHILE = 200_000
"""Requests from which thirty simulations of them take more than a quarter of a minute."""


class Changes(Spared, LowestWeights):
    """What the levers may change, and how."""

    draft: Text | None = declared(
        None,
        "The model that drafts.",
        without="the smallest of the family",
        kind=Kind.MODEL,
        example="llama-3.2-1b",
    )
    draft_share: Number | None = declared(
        None, "Instead: a draft token's cost, in steps of the model.", low=0, high=10, example=0.1
    )
    draft_tokens: Whole | None = declared(None, "Tokens drafted in a round.", low=1, high=16, without="3", example=3)
    acceptance: Number | None = declared(
        None,
        "Chance that a drafted token is accepted.",
        low=0,
        high=1,
        without="0.65; measure yours",
        example=0.65,
    )
    tiers: Text | None = declared(None, TIERS, example="dram=200,ssd=2000")
    without: Texts | None = declared(
        None, "Leave these alone: weights, kv, hardware, speculation, spot …", example=["spot"]
    )


class Runs(PlanTraffic, Priced, Changes):
    """What runs today, what it serves, and what may be changed."""


def setup_of(
    request: Runs, model: str, gpu: str, layout: Layout, listener: Listener, max_sequences: int | None = None,
    prefix_cache: bool = True,
) -> "Setup":  # fmt: skip
    """What runs today."""
    from tokonomics.clock import today
    from tokonomics.planner.setup import Setup

    deployment = deployment_of(layout, model, gpu)
    targets, offers, load = targets_of(request), offers_of(request), load_of(request)
    context = deployment.model.max_context
    load = load.within(context) if load.is_log else load
    say_left_out(load, context, listener)
    if request.usd_per_hour is not None:
        offers = _at_price(deployment, offers, request.usd_per_hour)
    setup = Setup(
        deployment=deployment,
        load=load,
        offers=offers,
        today=today(),
        slos=targets,
        max_sequences=max_sequences,
        prefix_cache=prefix_cache,
        spare=request.spare or 0,
        offline=request.offline,
    )
    _check_tiers(request.tiers, setup)
    many = len(load.trace)
    if many > _TAKES_A_WHILE:
        part = f"{option('start')} and {option('end')} take a part of a log"
        listener.note(f"{many:,} requests are simulated some thirty times; {part}")
    return setup


def _at_price(deployment: "Deployment", offers: "tuple[Offer, ...]", usd_per_gpu_hour: float) -> "tuple[Offer, ...]":
    """The user's own price for the GPU instead of the market's; others stay, to compare with."""
    from tokonomics.catalog.offers import Offer
    from tokonomics.clock import today
    from tokonomics.money.cost import require_positive

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
            source="--usd-per-hour",
        )
        for size in (1, 2, 4, 8)
        if size <= gpu.gpus_per_node
    ]
    return (*own, *(offer for offer in offers if offer.gpu != gpu.key))


def choices_of(changes: Changes) -> "Choices":
    """What was said of the levers."""
    from tokonomics.catalog.precision import WEIGHT_PRECISIONS, parse_precision
    from tokonomics.physics.speculation import DRAFT_TOKENS
    from tokonomics.planner.levers.lever_list import KNOBS, Choices
    from tokonomics.planner.parsing import listed

    names, lowest = listed(changes.without, "without") or [], changes.min_weights
    for name in names:
        if name not in KNOBS:
            guess = nearest(name, KNOBS, 1)
            hint = f" Did you mean {guess[0]}?" if guess else ""
            raise BadInput(f"'{shorten(name)}' is no lever", field="without", fix=f"Valid: {', '.join(KNOBS)}.{hint}")
    if changes.draft is not None and changes.draft_share is not None:
        raise BadInput(f"says the same as {option('draft')}", field="draft_share", fix="Give one of the two.")
    return Choices(
        draft=changes.draft,
        draft_share=changes.draft_share,
        draft_tokens=DRAFT_TOKENS if changes.draft_tokens is None else changes.draft_tokens,
        acceptance=changes.acceptance,
        tiers=changes.tiers,
        min_weights=parse_precision(lowest, WEIGHT_PRECISIONS, "min_weights") if lowest else None,
        without=frozenset(names),
    )


def _check_tiers(tiers: str | None, setup: "Setup") -> None:
    """Refuse memories that are none, also where no lever will ask for them."""
    from tokonomics.money.cache_tiers import parse_tiers

    if tiers is not None:
        parse_tiers(tiers, setup.deployment)
