"""The flags that ``levers`` and ``stack`` share, and the setup that they say."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tokonomics.catalog.offers import Offer
    from tokonomics.physics.deployment import Deployment
    from tokonomics.planner.lever_list import Choices
    from tokonomics.planner.setup import Setup

ModelName = Annotated[str, typer.Argument(help="Model name, or path to a config.json.", metavar="MODEL")]
GpuNow = Annotated[str, typer.Option("--gpu", help="The GPU it is on.")]
Rate = Annotated[str | None, typer.Option(help="Requests a second, on average.")]
TokensPerMonth = Annotated[str | None, typer.Option(help="Instead of --rate: tokens in and out, such as 2B.")]
Input = Annotated[str | None, typer.Option(help="Prompt tokens: 1000, lognormal:mean=800,p99=6000, sample:sharegpt.")]
Output = Annotated[str | None, typer.Option(help="Answer tokens, likewise.")]
ArrivalsText = Annotated[
    str | None, typer.Option("--arrivals", help="gamma:5,cv=3, diurnal:5,peak=3 … in place of Poisson.")
]
TraceName = Annotated[str | None, typer.Option("--trace", help="Your request log, or a sample such as azure-conv.")]
ColumnsText = Annotated[str | None, typer.Option("--columns", help="Which column of the log is what: arrival=TIME,…")]
Start = Annotated[str | None, typer.Option("--from", help="Of the log: leave out what arrives before.")]
End = Annotated[str | None, typer.Option("--to", help="Of the log: leave out what arrives from then on.")]
SeedNumber = Annotated[int | None, typer.Option("--seed", min=0, help="Of made-up requests.", show_default="0")]
Slo = Annotated[str | None, typer.Option(help="The promise that every step keeps: ttft_p99=0.5,tpot_p99=50ms.")]
Offline = Annotated[bool, typer.Option("--offline", help="A batch: nothing is promised, work is fed evenly.")]
Provider = Annotated[list[str] | None, typer.Option(help="Only these providers.")]
Region = Annotated[list[str] | None, typer.Option(help="Only these regions.")]
Discount = Annotated[list[str] | None, typer.Option(help="Your discount at a provider: aws=0.2.")]
OffersFile = Annotated[
    Path | None, typer.Option("--offers", help="Your own price list (CSV) instead of the shipped one.")
]
UsdPerHour = Annotated[
    float | None, typer.Option(help="What you pay for an hour of --gpu.", show_default="the cheapest offer")
]
Spare = Annotated[int, typer.Option(min=0, max=1000, help="Replicas kept in reserve.")]
Draft = Annotated[str | None, typer.Option(help="The model that drafts.", show_default="the smallest of the family")]
DraftShare = Annotated[
    float | None, typer.Option(min=0, max=10, help="Instead: a draft token's cost, in steps of the model.")
]
DraftTokens = Annotated[int | None, typer.Option(min=1, max=16, help="Tokens drafted in a round.", show_default="3")]
Acceptance = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Chance that a drafted token is accepted.", show_default="0.65; measure yours"),
]
Tiers = Annotated[
    str | None,
    typer.Option(help="Memory for KV behind the GPU: dram=200@0,ssd=2000.", show_default="half of the host's"),
]
MinWeights = Annotated[str | None, typer.Option(help="No precision of the weights below this one, such as fp8.")]
Without = Annotated[
    list[str] | None, typer.Option(help="Leave these alone: weights, kv, hardware, speculation, spot …")
]

_TAKES_A_WHILE = 200_000
"""Requests from which thirty simulations of them take more than a quarter of a minute."""


def setup_from(
    model: str,
    gpu: str,
    traffic: Mapping[str, object],
    *,
    tp: int,
    pp: int,
    weights: str | None,
    kv: str,
    engine: str,
    usd_per_hour: float | None,
    spare: int,
    max_sequences: int | None = None,
    prefix_cache: bool = True,
) -> "Setup":
    """What runs today, from what was typed; ``traffic`` holds the words of a scenario."""
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import say_left_out
    from tokonomics.clock import today
    from tokonomics.planner.scenario import Scenario, load_of, offers_of, promises_of
    from tokonomics.planner.setup import Setup

    scenario = Scenario().over(traffic)
    deployment = deployment_from(model, gpu, engine, tp, pp, 1, weights, kv)
    promises, offers, load = promises_of(scenario), offers_of(scenario), load_of(scenario)
    context = deployment.model.max_context
    load = load.within(context) if load.is_log else load
    say_left_out(load, context)
    if usd_per_hour is not None:
        offers = _at_price(deployment, offers, usd_per_hour)
    return Setup(
        deployment=deployment,
        load=load,
        offers=offers,
        today=today(),
        promises=promises,
        max_sequences=max_sequences,
        prefix_cache=prefix_cache,
        spare=spare,
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


def choices_from(
    draft: str | None,
    draft_share: float | None,
    draft_tokens: int | None,
    acceptance: float | None,
    tiers: str | None,
    min_weights: str | None,
    without: list[str] | None,
) -> "Choices":
    """What was said of the levers."""
    from tokonomics.catalog.precision import WEIGHT_PRECISIONS, parse_precision
    from tokonomics.errors import BadInput, nearest, shorten
    from tokonomics.physics.speculation import DRAFT_TOKENS
    from tokonomics.planner.lever_list import KNOBS, Choices
    from tokonomics.planner.wishes import listed

    names = listed(without, "--without") or []
    for name in names:
        if name not in KNOBS:
            guess = nearest(name, KNOBS, 1)
            hint = f" Did you mean {guess[0]}?" if guess else ""
            raise BadInput(f"'{shorten(name)}' is no lever", where="--without", fix=f"Valid: {', '.join(KNOBS)}.{hint}")
    if draft is not None and draft_share is not None:
        raise BadInput("says the same as --draft", where="--draft-share", fix="Give one of the two.")
    return Choices(
        draft=draft,
        draft_share=draft_share,
        draft_tokens=DRAFT_TOKENS if draft_tokens is None else draft_tokens,
        acceptance=acceptance,
        tiers=tiers,
        min_weights=parse_precision(min_weights, WEIGHT_PRECISIONS, "--min-weights") if min_weights else None,
        without=frozenset(names),
    )


def check_tiers(tiers: str | None, setup: "Setup") -> None:
    """Refuse memories that are none, also where no lever will ask for them."""
    from tokonomics.money.levers.cache_tiers import parse_tiers

    if tiers is not None:
        parse_tiers(tiers, setup.deployment)


def say_if_long(setup: "Setup") -> None:
    """A day of requests, simulated again and again, takes its time."""
    many = len(setup.load.trace)
    if many > _TAKES_A_WHILE:
        typer.echo(f"{many:,} requests are simulated some thirty times; --from and --to take a part of a log", err=True)
