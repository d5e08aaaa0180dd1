"""``tokonomics breakeven``: from which volume on hosting a model oneself is cheaper than an API."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, working
from tokonomics.cli.groups import Choice, Load, Market, Shown, flat, words
from tokonomics.errors import BadInput, shorten

if TYPE_CHECKING:
    from tokonomics.catalog.apis import ApiPrice
    from tokonomics.money.breakeven import Extra
    from tokonomics.planner.breakeven import BreakEvenReport, NothingFits


@flat
def breakeven(
    *,
    model_name: flags.ModelArgument = None,
    model: flags.Model = None,
    api: Annotated[
        list[str] | None, typer.Option(help="host:model as in `tokonomics apis`; with commas, or repeat.")
    ] = None,
    load: Load,
    cached_share: Annotated[
        float | None,
        typer.Option(
            help="Share of every prompt that all have in common: the host's cached price, our cache.",
            show_default="0, or what the log repeats",
        ),
    ] = None,
    batch_api: Annotated[
        bool, typer.Option("--batch-api", help="The hosts' batch prices as well (answers within a day).")
    ] = False,
    engineers: Annotated[float | None, typer.Option(help="People who run it, such as 0.5.")] = None,
    engineer_usd_per_month: Annotated[str | None, typer.Option(help="What one of them costs: 15k.")] = None,
    overhead: Annotated[
        list[str] | None,
        typer.Option(help="Another line of the bill: monitoring=500 ($/month) or network=8% (of the machines)."),
    ] = None,
    choice: Choice,
    market: Market,
    max_utilization: flags.MaxUtilization = None,
    spare: flags.Spare = None,
    replica_tokens_per_second: Annotated[
        float | None, typer.Option(help="Instead of planning: what one replica of yours makes, in and out.")
    ] = None,
    usd_per_hour: Annotated[float | None, typer.Option(help="With --replica-tokens-per-second: one GPU.")] = None,
    replica_gpus: Annotated[int, typer.Option(min=1, help="With --replica-tokens-per-second: GPUs of a replica.")] = 1,
    quick: flags.Quick = False,
    shown: Shown,
) -> None:
    """From which volume on hosting a model oneself is cheaper than an API: whole machines against a price per token.

    \b
    Examples:
      tokonomics breakeven llama-3.3-70b --api openai:gpt-4o --input 1000 --output 300 --slo ttft_p99=1,tpot_p99=80ms
      tokonomics breakeven chat.toml --api openai:gpt-4o,groq:llama-3.3-70b-versatile --chart breakeven.png
      tokonomics breakeven chat.toml --api openai:gpt-4o --engineers 0.5 --engineer-usd-per-month 15k --overhead tax=5%
      tokonomics breakeven llama-3.1-8b --api openai:gpt-4o-mini --batch-api --cached-share 0.3 --input 2000 --output 99
      tokonomics breakeven traffic.toml --replica-tokens-per-second 2400 --usd-per-hour 2.21 --max-utilization 0.7
      tokonomics breakeven chat.toml --api openai:gpt-4o-mini
    """
    from tokonomics.planner.breakeven import NothingFits
    from tokonomics.report.breakeven_charts import breakeven_chart
    from tokonomics.report.breakeven_view import breakeven_view

    shown.check()
    extras = extras_from(engineers, engineer_usd_per_month, overhead)
    asked = words(load, choice, market) | {"max_utilization": max_utilization, "spare": spare, "quick": quick}
    if replica_tokens_per_second is not None or usd_per_hour is not None:
        planned = {"model": model_name or model, **{name: asked[name] for name in _PLANNED}}
        _refuse(planned)
        given = (replica_tokens_per_second, usd_per_hour, replica_gpus, max_utilization)
        found = _given(given, asked, api, cached_share, batch_api, extras)
    else:
        try:
            found = _planned(model_name, model, asked, api, cached_share, batch_api, extras)
        except NothingFits as nothing:
            shown.give(_blamed(nothing))
            return
    charts = {"Bills against volume": lambda: breakeven_chart(found)}
    answer = Answer(found, lambda: breakeven_view(found), f"Host {found.model} or call an API", charts)
    shown.give(answer)


_PLANNED = ("slo", "offline", "gpu", "provider", "region", "terms", "discount", "offers", "max_price", "max_age",
            "weights", "min_weights", "kv", "engine", "spare", "quick", "arrivals", "start", "end")  # fmt: skip


_TO_PLAN = "leave out --replica-tokens-per-second and --usd-per-hour"


def _refuse(planned: Mapping[str, object]) -> None:
    for name, value in planned.items():
        if value not in (None, False):
            raise BadInput(
                "plans a fleet; with --replica-tokens-per-second and --usd-per-hour its speed and price are given",
                where=f"--{name.replace('_', '-')}",
                fix=f"Leave it out; or, to plan, {_TO_PLAN}.",
            )


def _planned(
    model_name: str | None,
    model: str | None,
    asked: Mapping[str, object],
    api: list[str] | None,
    cached_share: float | None,
    batch_api: bool,
    extras: "tuple[Extra, ...]",
) -> "BreakEvenReport":
    """The self-hosted side as the planner would buy it."""
    from tokonomics.catalog.load_models import find_model
    from tokonomics.cli.serving_flags import model_from, say_if_compiling
    from tokonomics.clock import today
    from tokonomics.money.api_bill import api_bills
    from tokonomics.planner.breakeven import (
        SECONDS_PER_MONTH,
        TRICKLE,
        Hosting,
        report,
        self_hosted,
        share_of_api,
        tokens_per_request,
    )
    from tokonomics.planner.scenario import Scenario, offers_of, promises_of

    name = model_from(model_name, model)
    spec = find_model(name)
    traffic = {key: value for key, value in asked.items() if key not in ("rate", "tokens_per_month")}
    scenario = Scenario().over({"model": (name,), **traffic})
    hosting = Hosting(scenario, offers_of(scenario), today(), cached_share or 0.0)
    load = hosting.load(TRICKLE)
    own = _own_volume(asked, tokens_per_request(load))
    share = share_of_api(hosting.recorded(), cached_share)
    bills, left_out = api_bills(_apis(api), load.trace, share, batch_api, replayed=cached_share is None)
    if not scenario.quick:
        say_if_compiling()
    with working("planning") as say:
        prices = [each.usd_per_mtok for each in bills]
        own_rate = own / tokens_per_request(load) / SECONDS_PER_MONTH if own else None
        hosted, hardware = self_hosted(hosting, prices, extras, own_rate, say)
    return report(
        spec.name, load.trace, hosted, hardware, bills, left_out, cached_share=share,
        promises=promises_of(scenario), own_tokens_per_month=own,
    )  # fmt: skip


def _own_volume(asked: Mapping[str, object], tokens_per_request: float) -> float | None:
    """The user's own tokens a month, said in either way."""
    from tokonomics.planner.breakeven import SECONDS_PER_MONTH
    from tokonomics.planner.parsing import amount
    from tokonomics.planner.scenario import read_rate

    rate, volume = asked["rate"], asked["tokens_per_month"]
    if rate is not None and volume is not None:
        raise BadInput("says the same as --rate", where="--tokens-per-month", fix="Give one of the two.")
    if rate is not None:
        return read_rate(str(rate)) * tokens_per_request * SECONDS_PER_MONTH
    return amount(str(volume), "tokens_per_month") if volume else None


def _blamed(nothing: "NothingFits") -> Answer:
    """Why nothing can be hosted."""
    from tokonomics.planner.infeasible import blame
    from tokonomics.report.plan_view import blame_view

    study = nothing.study
    blames = blame(study)
    shown = {"blame": [each.model_dump(mode="json") for each in blames]}
    name = study.question.model.name
    return Answer(
        shown,
        lambda: blame_view(study.plan, name, blames, "See tokonomics plan … --why."),
        f"Nothing hosts {name}",
        exit_code=1,
    )


def _given(
    replica: tuple[float | None, float | None, int, float | None],
    asked: Mapping[str, object],
    api: list[str] | None,
    cached_share: float | None,
    batch_api: bool,
    extras: "tuple[Extra, ...]",
) -> "BreakEvenReport":
    """The self-hosted side from the user's own speed, price and utilisation."""
    from tokonomics.money.api_bill import api_bills
    from tokonomics.money.breakeven import SelfHosted, kind_of_equation
    from tokonomics.planner.breakeven import report, share_of_api, tokens_per_request
    from tokonomics.planner.scenario import Scenario, load_of
    from tokonomics.units import percent, plural, usd

    speed, price, gpus, share = replica
    if speed is None or price is None:
        missing = "--usd-per-hour" if price is None else "--replica-tokens-per-second"
        raise BadInput("is missing", where=missing, fix="Such as --replica-tokens-per-second 2400 --usd-per-hour 2.21.")
    if share is None:
        raise BadInput(
            "how full are the machines?", where="--max-utilization", fix=f"Such as 0.7; or, to plan, {_TO_PLAN}."
        )
    name = f"{plural(gpus, 'GPU')} at {usd(price)}/h, {speed:,.0f} tok/s filled to {percent(share)}"
    kind = kind_of_equation(name, price, gpus, speed, share)
    traffic = {each: asked[each] for each in ("input", "output", "trace", "columns", "seed")}
    load = load_of(Scenario().over({**traffic, "rate": None if asked["trace"] else "1"}))
    cached = share_of_api(load, cached_share)
    bills, left_out = api_bills(_apis(api), load.trace, cached, batch_api, replayed=cached_share is None)
    return report(
        "your replica", load.trace, SelfHosted(kinds=(kind,), extras=extras), (), bills, left_out,
        cached_share=cached, filled=(),
        own_tokens_per_month=_own_volume(asked, tokens_per_request(load)),
    )  # fmt: skip


def _apis(names: list[str] | None) -> "list[ApiPrice]":
    from tokonomics.catalog.apis import find_api
    from tokonomics.planner.parsing import listed

    if not names:
        raise BadInput(
            "which API is it compared with?", where="--api", fix="Such as --api openai:gpt-4o; see `tokonomics apis`."
        )
    return [find_api(name) for name in dict.fromkeys(listed(names, "api") or ())]


def extras_from(number: float | None, usd_per_month: str | None, overhead: list[str] | None) -> "tuple[Extra, ...]":
    """Lines beside the machines: none unless asked for."""
    from tokonomics.money.breakeven import engineers
    from tokonomics.planner.parsing import dollars

    made = []
    engineer_usd_per_month = dollars(usd_per_month, "engineer_usd_per_month")
    if (number is None) != (engineer_usd_per_month is None):
        missing = "--engineer-usd-per-month" if number is not None else "--engineers"
        raise BadInput("is missing", where=missing, fix="Such as --engineers 0.5 --engineer-usd-per-month 15000.")
    if number is not None and engineer_usd_per_month is not None:
        made.append(engineers(number, engineer_usd_per_month))
    return (*made, *(_overhead(text) for text in overhead or ()))


def _overhead(text: str) -> "Extra":
    from tokonomics.money.breakeven import Extra

    name, _, value = (part.strip() for part in text.partition("="))
    number = value.removesuffix("%").strip()
    try:
        amount = float(number)
    except ValueError:
        amount = -1.0
    if not name or not 0 <= amount < 1e12:
        raise BadInput(
            f"'{shorten(text)}' is not understood",
            where="--overhead",
            fix="Write monitoring=500 for dollars a month, or network=8% of what the machines cost.",
        )
    if value.endswith("%"):
        return Extra(name=name, share_of_machines=amount / 100)
    return Extra(name=name, usd_per_month=amount)
