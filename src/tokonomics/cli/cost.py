"""``tokonomics cost``: the cost equation and its inverses."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, HtmlFile, below_each_other, give
from tokonomics.cli.output import Json

_DRAWN = 100_000
"""Requests whose mean stands for a distribution's: within a percent where lengths vary threefold."""
_PRICE_RULE = (
    "The cheapest price of the last year for this GPU, whatever its host. Where a model is named (simulate, plan), "
    "hosts with too little memory for its weights are passed over, so the price may be higher."
)


def cost(
    tokens_per_second: Annotated[float, typer.Option(help="Tokens a second of all GPUs together, at full speed.")],
    usd_per_hour: flags.UsdPerHour = None,
    gpu: Annotated[str | None, typer.Option(help="GPU whose cheapest offer is the price instead.")] = None,
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")] = 1,
    utilization: Annotated[
        float | None, typer.Option(help="Share of full speed really produced, 0 to 1.", show_default="1")
    ] = None,
    load: Annotated[
        list[str] | None,
        typer.Option(help="A load profile instead: HOURSxUTILIZATION,… such as 8x0.99,16x0. Repeat to compare."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Also: what it takes to reach this many dollars per Mtok.")
    ] = None,
    input: flags.InputText = None,
    output: flags.OutputText = None,
    offers: flags.OffersFile = None,
    html: HtmlFile = None,
    json: Json = False,
) -> None:
    """What a million tokens costs on GPUs paid by the hour.

    \b
    Examples:
      tokonomics cost --usd-per-hour 2.21 --gpus 4 --tokens-per-second 2400 --utilization 0.7
      tokonomics cost --gpu A100-80GB --tokens-per-second 2900 --utilization 0.5 --target 0.20
      tokonomics cost --gpu H100 --tokens-per-second 4800 --load 8x0.99,16x0 --load 24x0.7
      tokonomics cost chat.toml --tokens-per-second 4800
    """
    from tokonomics.errors import BadInput
    from tokonomics.money import cost as money
    from tokonomics.report import cost_view

    price, price_note, quoted = _price(usd_per_hour, gpu, gpus, offers)
    if load and utilization is not None:
        raise BadInput("--load and --utilization both say how busy it is", fix="Give one of them.")
    loads = [money.load_cost(text, price, tokens_per_second, gpus) for text in load or []]
    share = loads[0].mean_utilization if loads else 1.0 if utilization is None else utilization
    result = money.cost(price, tokens_per_second, share, gpus)
    prompt, reply = _mean_tokens(input, output)
    per_request = money.usd_per_request(result.usd_per_mtok, prompt, reply) if prompt or reply else None
    needs = money.needed_for(target, price, tokens_per_second, share, gpus) if target is not None else None
    shown = (
        result.model_dump(mode="json")
        | {"gpus": gpus, "price": quoted, "usd_per_request": per_request}
        | {"target": needs.model_dump() if needs else None, "loads": [each.model_dump() for each in loads]}
    )
    rule = _PRICE_RULE if usd_per_hour is None else None
    views = [
        cost_view.cost_view(result, gpus=gpus, price_note=price_note, price_rule=rule, usd_per_request=per_request)
    ]
    if loads:
        views += ["", cost_view.loads_view(loads, gpus)]
    if needs:
        views += ["", cost_view.target_view(needs)]
    give(Answer(shown, lambda: below_each_other(views), "What a million tokens costs"), json=json, html=html)


def _mean_tokens(input_text: str | None, output_text: str | None) -> tuple[float, float]:
    """Of a request: what was given, or the mean of so many drawn from a distribution."""
    from tokonomics.traffic.lengths import draw_lengths, parse_lengths

    if input_text is None and output_text is None:
        return 0.0, 0.0
    import numpy as np

    none = parse_lengths("0", least=0)
    inputs = none if input_text is None else parse_lengths(input_text, "input", least=0)
    of_pairs = inputs if inputs.pairs is not None else none
    outputs = of_pairs if output_text is None else parse_lengths(output_text, "output", least=0)
    prompts, replies = draw_lengths(inputs, outputs, _DRAWN, np.random.default_rng(0))
    return float(prompts.mean()), float(replies.mean())


def _price(
    usd_per_hour: float | None, gpu: str | None, gpus: int, offers: Path | None
) -> tuple[float, str, dict[str, object]]:
    """Dollars per GPU-hour, a note for people on where they come from, and the same for programs."""
    from tokonomics.clock import today
    from tokonomics.errors import BadInput

    if (usd_per_hour is None) == (gpu is None):
        raise BadInput("give the price of a GPU-hour in one way", fix="Either --usd-per-hour 2.21 or --gpu A100-80GB.")
    if offers is not None and gpu is None:
        raise BadInput(
            "a price list is for looking a GPU up", where="--offers", fix="Add --gpu, or leave --offers out."
        )
    if usd_per_hour is not None:
        return usd_per_hour, "price as given", {"source": "given"}
    from tokonomics.catalog.offers import STALE_AFTER_DAYS, cheapest_offer, load_offers, machines_usd_per_hour
    from tokonomics.money.cost import require_positive

    require_positive("gpus", gpus)
    offer = cheapest_offer(gpu or "", gpus, offers=load_offers(offers))
    machines = -(-gpus // offer.gpus)
    unused = machines * offer.gpus - gpus
    old = f", older than {STALE_AFTER_DAYS} days" if offer.is_stale(today()) else ""
    spare = f"; {unused} of {machines * offer.gpus} GPUs unused" if unused else ""
    where = f"{machines}× {offer.provider} {offer.instance}, {offer.region}"
    quoted: dict[str, object] = {
        "source": offer.source,
        "provider": offer.provider,
        "instance": offer.instance,
        "region": offer.region,
        "instances": machines,
        "instance_usd_per_hour": offer.usd_per_hour,
        "unused_gpus": unused,
        "date": offer.date.isoformat(),
        "stale": offer.is_stale(today()),
    }
    note = f"{where} at ${offer.usd_per_hour:g}/h{spare}, quoted {offer.date}{old}"
    return machines_usd_per_hour(offer, gpus) / gpus, note, quoted
