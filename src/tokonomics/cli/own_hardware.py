"""``tokonomics own-hardware``: what a GPU-hour costs when the machine is bought."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, HtmlFile, give
from tokonomics.cli.output import Json
from tokonomics.errors import BadInput, shorten

if TYPE_CHECKING:
    from tokonomics.catalog.gpus import Gpu
    from tokonomics.catalog.offers import Offer


def _share(text: str) -> float:
    """``0.1`` or ``10%``."""
    plain = text.strip()
    try:
        return float(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"'{shorten(text)}' is not a share: write 0.1 or 10%.") from None


_EXAMPLE = (
    "tokonomics own-hardware --gpu H100 --gpus 8 --purchase-usd 250k --years 4 --usd-per-kwh 0.12 --host-watts 4600"
)


def own_hardware(
    gpu: Annotated[str | None, typer.Option(help="Which GPU the machine has. Needed.")] = None,
    purchase_usd: Annotated[str | None, typer.Option(help="Price of the whole machine: 250000, 250k. Needed.")] = None,
    years: Annotated[float | None, typer.Option(help="Over which it is written off. Needed.")] = None,
    usd_per_kwh: Annotated[float | None, typer.Option(help="Your price of a kilowatt-hour. Needed.")] = None,
    host_watts: Annotated[
        float | None, typer.Option(help="What it draws beside the GPUs; a DGX H100: 4600 of its 10,200. Needed.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in the machine.")] = 1,
    pue: Annotated[
        float | None, typer.Option(help="Power of the site over that of the machines.", show_default="1.58, mean 2023")
    ] = None,
    gpu_load: Annotated[
        float | None,
        typer.Option(
            parser=_share,
            metavar="<float>",
            help="Share of its watts a GPU draws.",
            show_default="1, the datasheet's limit",
        ),
    ] = None,
    residual: Annotated[
        float | None,
        typer.Option(parser=_share, metavar="<float>", help="Share of the price it still sells for: 0.1 or 10%."),
    ] = None,
    cost_of_capital: Annotated[
        float | None, typer.Option(parser=_share, metavar="<float>", help="A year: 0.08 or 8%.")
    ] = None,
    hosting_usd_per_month: Annotated[str | None, typer.Option(help="Space, or a colocation's fee.")] = None,
    maintenance: Annotated[
        float | None, typer.Option(parser=_share, metavar="<float>", help="Share of the price a year: 0.05 or 5%.")
    ] = None,
    staff_usd_per_year: Annotated[str | None, typer.Option(help="People, for this machine: 60k.")] = None,
    memory_gb: Annotated[float | None, typer.Option(min=1, help="The host's memory: checked against weights.")] = None,
    offers: flags.OffersFile = None,
    save: Annotated[Path | None, typer.Option(help="Save it as a price list for --offers: mine.csv.")] = None,
    html: HtmlFile = None,
    json: Json = False,
) -> None:
    """What a GPU-hour costs when the machine is bought: depreciation, power, people; as an offer for every other verb.

    \b
    Examples:
      tokonomics own-hardware --gpu H100 --gpus 8 --purchase-usd 250000 --years 4 --usd-per-kwh 0.12 --host-watts 4600
      tokonomics own-hardware --gpu L40S --purchase-usd 15k --years 5 --usd-per-kwh 0.2 --host-watts 300 --save mine.csv
      tokonomics own-hardware server.toml --pue 1.3 --residual 10% --cost-of-capital 8% --hosting-usd-per-month 600
    """
    from pydantic import ValidationError

    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.offers import NoOffer, cheapest_offer, load_offers, write_offers
    from tokonomics.clock import today
    from tokonomics.money.own_hardware import Purchase, own_offer
    from tokonomics.money.own_hardware import own_hardware as price
    from tokonomics.planner.parsing import dollars
    from tokonomics.report.own_hardware_view import own_hardware_view

    needed = {
        "--gpu": gpu, "--purchase-usd": purchase_usd, "--years": years, "--usd-per-kwh": usd_per_kwh,
        "--host-watts": host_watts,
    }  # fmt: skip
    missing = [flag for flag, value in needed.items() if value is None]
    if missing or gpu is None:
        given = "is missing" if len(missing) == 1 else "are missing"
        raise BadInput(given, where=", ".join(missing), fix=f"Such as: {_EXAMPLE}")
    spec = find_gpu(gpu)
    values = {
        "gpus": gpus, "purchase_usd": dollars(purchase_usd, "purchase_usd"), "years": years,
        "residual_share": residual, "cost_of_capital": cost_of_capital, "usd_per_kwh": usd_per_kwh, "pue": pue,
        "gpu_load": gpu_load, "host_watts": host_watts, "maintenance_share": maintenance,
        "hosting_usd_per_month": dollars(hosting_usd_per_month, "hosting_usd_per_month"),
        "staff_usd_per_year": dollars(staff_usd_per_year, "staff_usd_per_year"),
    }  # fmt: skip
    try:
        bought = Purchase.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        flag = str(problem["loc"][0]).removesuffix("_share").replace("_", "-")
        said = problem["msg"].lower().removeprefix("input ")
        raise BadInput(f"{said}, got {shorten(str(problem['input']))}", where=f"--{flag}") from None
    rented = None
    with suppress(NoOffer):
        rented = cheapest_offer(spec.key, offers=[each for each in load_offers(offers) if _is_like_owned(each, spec)])
    found = price(bought, spec, rented)
    if save:
        if not save.parent.is_dir():
            raise BadInput(f"the folder {shorten(str(save.parent), 200)} does not exist", where="--save")
        write_offers(save, [own_offer(bought, spec, today(), memory_gb)])
        typer.echo(f"saved to {save}: use it with --offers {save}", err=True)
    give(Answer(found, lambda: own_hardware_view(found, today()), f"A {spec.name} of your own"), json=json, html=html)


def _is_like_owned(offer: "Offer", gpu: "Gpu") -> bool:
    """A host with as much memory as its GPUs, as machines that are bought have; cheaper ones with 4 GB are no rival."""
    return offer.memory_gb is None or offer.memory_gb >= gpu.memory_gb * offer.gpus
