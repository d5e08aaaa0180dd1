"""The flags that ``levers`` and ``stack`` share, and the setup that they say."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.groups import Layout, Load, Market, words

if TYPE_CHECKING:
    from tokonomics.catalog.offers import Offer
    from tokonomics.physics.deployment import Deployment
    from tokonomics.planner.levers.lever_list import Choices
    from tokonomics.planner.setup import Setup

Draft = Annotated[str | None, typer.Option(help="The model that drafts.", show_default="the smallest of the family")]
DraftShare = Annotated[
    float | None, typer.Option(min=0, max=10, help="Instead: a draft token's cost, in steps of the model.")
]
DraftTokens = Annotated[int | None, typer.Option(min=1, max=16, help="Tokens drafted in a round.", show_default="3")]
Acceptance = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Chance that a drafted token is accepted.", show_default="0.65; measure yours"),
]
Without = Annotated[
    list[str] | None, typer.Option(help="Leave these alone: weights, kv, hardware, speculation, spot …")
]


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the levers may change, and how."""

    spare: flags.Spare = None
    draft: Draft = None
    draft_share: DraftShare = None
    draft_tokens: DraftTokens = None
    acceptance: Acceptance = None
    tiers: flags.TiersText = None
    min_weights: flags.MinWeights = None
    without: Without = None


_TAKES_A_WHILE = 200_000
"""Requests from which thirty simulations of them take more than a quarter of a minute."""


def setup_from(
    model: str,
    gpu: str,
    layout: Layout,
    load: Load,
    market: Market,
    changes: Changes,
    *,
    usd_per_hour: float | None,
    max_sequences: int | None = None,
    prefix_cache: bool = True,
) -> "Setup":
    """What runs today, from what was typed."""
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import say_left_out
    from tokonomics.clock import today
    from tokonomics.planner.scenario import Scenario, load_of, offers_of, promises_of
    from tokonomics.planner.setup import Setup

    scenario = Scenario().over(words(load, market))
    deployment = deployment_from(model, gpu, layout)
    promises, offers, arrives = promises_of(scenario), offers_of(scenario), load_of(scenario)
    context = deployment.model.max_context
    arrives = arrives.within(context) if arrives.is_log else arrives
    say_left_out(arrives, context)
    if usd_per_hour is not None:
        offers = _at_price(deployment, offers, usd_per_hour)
    return Setup(
        deployment=deployment,
        load=arrives,
        offers=offers,
        today=today(),
        promises=promises,
        max_sequences=max_sequences,
        prefix_cache=prefix_cache,
        spare=changes.spare or 0,
        offline=bool(scenario.offline),
    )


def _at_price(deployment: "Deployment", offers: "tuple[Offer, ...]", usd_per_gpu_hour: float) -> "tuple[Offer, ...]":
    """The user's own price for the GPU instead of the market's; others stay, to compare with."""
    from tokonomics.catalog.offers import Offer
    from tokonomics.clock import today
    from tokonomics.money.cost import require_positive

    price, gpu = require_positive("--usd-per-hour", usd_per_gpu_hour), deployment.gpu
    sizes = [size for size in (1, 2, 4, 8) if size <= gpu.gpus_per_node]
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
        for size in sizes
    ]
    return (*own, *(each for each in offers if each.gpu != gpu.key))


def choices_from(changes: Changes) -> "Choices":
    """What was said of the levers."""
    from tokonomics.catalog.precision import WEIGHT_PRECISIONS, parse_precision
    from tokonomics.errors import BadInput, nearest, shorten
    from tokonomics.physics.speculation import DRAFT_TOKENS
    from tokonomics.planner.levers.lever_list import KNOBS, Choices
    from tokonomics.planner.parsing import listed

    names, lowest = listed(changes.without, "--without") or [], changes.min_weights
    for name in names:
        if name not in KNOBS:
            guess = nearest(name, KNOBS, 1)
            hint = f" Did you mean {guess[0]}?" if guess else ""
            raise BadInput(f"'{shorten(name)}' is no lever", where="--without", fix=f"Valid: {', '.join(KNOBS)}.{hint}")
    if changes.draft is not None and changes.draft_share is not None:
        raise BadInput("says the same as --draft", where="--draft-share", fix="Give one of the two.")
    return Choices(
        draft=changes.draft,
        draft_share=changes.draft_share,
        draft_tokens=DRAFT_TOKENS if changes.draft_tokens is None else changes.draft_tokens,
        acceptance=changes.acceptance,
        tiers=changes.tiers,
        min_weights=parse_precision(lowest, WEIGHT_PRECISIONS, "--min-weights") if lowest else None,
        without=frozenset(names),
    )


def check_tiers(tiers: str | None, setup: "Setup") -> None:
    """Refuse memories that are none, also where no lever will ask for them."""
    from tokonomics.money.cache_tiers import parse_tiers

    if tiers is not None:
        parse_tiers(tiers, setup.deployment)


def say_if_long(setup: "Setup") -> None:
    """A day of requests, simulated again and again, takes its time."""
    many = len(setup.load.trace)
    if many > _TAKES_A_WHILE:
        typer.echo(f"{many:,} requests are simulated some thirty times; --from and --to take a part of a log", err=True)
