"""What does a GPU-hour cost when the machine is bought?"""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.inputs import PriceList
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Kind, Number, Share, Text, Whole, declared
from tokonomics.questions.tables import prices_in

if TYPE_CHECKING:
    from tokonomics.catalog.gpus import Gpu
    from tokonomics.catalog.offers import Offer
    from tokonomics.money.own_hardware import Purchase
    from tokonomics.questions.results import OneNoun

_EXAMPLE = (
    "tokonomics own-hardware --gpu H100 --gpus 8 --purchase-usd 250k --years 4 --usd-per-kwh 0.12 --host-watts 4600"
)
_NEEDED = ("gpu", "purchase_usd", "years", "usd_per_kwh", "host_watts")


class OwnHardwareRequest(PriceList):
    """
    Examples:
      tokonomics own-hardware --gpu H100 --gpus 8 --purchase-usd 250000 --years 4 --usd-per-kwh 0.12 --host-watts 4600
      tokonomics own-hardware --gpu L40S --purchase-usd 15k --years 5 --usd-per-kwh 0.2 --host-watts 300 --save mine.csv
      tokonomics own-hardware server.toml --pue 1.3 --residual 10% --cost-of-capital 8% --hosting-usd-per-month 600
    """

    FIRST = ("gpu", "purchase_usd", "years", "usd_per_kwh", "host_watts", "gpus")

    gpu: Text | None = declared(None, "Which GPU the machine has. Needed.", example="H100")
    purchase_usd: Text | None = declared(None, "Price of the whole machine: 250000, 250k. Needed.", example="250k")
    years: Number | None = declared(None, "Over which it is written off. Needed.", example=4)
    usd_per_kwh: Number | None = declared(None, "Your price of a kilowatt-hour. Needed.", example=0.12)
    host_watts: Number | None = declared(
        None, "What it draws beside the GPUs; a DGX H100: 4600 of its 10,200. Needed.", example=4600
    )
    gpus: Whole = declared(1, "GPUs in the machine.", low=1, example=8)
    pue: Number | None = declared(
        None, "Power of the site over that of the machines.", without="1.58, mean 2023", example=1.3
    )
    gpu_load: Share | None = declared(
        None, "Share of its watts a GPU draws.", without="1, the datasheet's limit", example=0.9
    )
    residual: Share | None = declared(None, "Share of the price it still sells for: 0.1 or 10%.", example="10%")
    cost_of_capital: Share | None = declared(None, "A year: 0.08 or 8%.", example="8%")
    hosting_usd_per_month: Text | None = declared(None, "Space, or a colocation's fee.", example="600")
    maintenance: Share | None = declared(None, "Share of the price a year: 0.05 or 5%.", example="5%")
    staff_usd_per_year: Text | None = declared(None, "People, for this machine: 60k.", example="60k")
    memory_gb: Number | None = declared(None, "The host's memory: checked against weights.", low=1, example=2000)
    save: Text | None = declared(
        None, "Save it as a price list for --offers: mine.csv.", kind=Kind.FILE, writes=True, example="mine.csv"
    )


def own_hardware(request: OwnHardwareRequest, listener: Listener = SILENT) -> "OneNoun":
    """Depreciation, power and people by the GPU-hour, beside what renting costs."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.offers import NoOffer, cheapest_offer, write_offers
    from tokonomics.clock import today
    from tokonomics.money.own_hardware import own_hardware as price
    from tokonomics.money.own_hardware import own_offer
    from tokonomics.questions.results import OneNoun

    missing = [name for name in _NEEDED if getattr(request, name) is None]
    if missing or request.gpu is None:
        given = "is missing" if len(missing) == 1 else "are missing"
        raise BadInput(given, field=", ".join(missing), fix=f"Such as: {_EXAMPLE}")
    gpu = find_gpu(request.gpu)
    bought = _purchase(request)
    rented = None
    with suppress(NoOffer):
        rivals = [offer for offer in prices_in(request.offers) if _is_like_owned(offer, gpu)]
        rented = cheapest_offer(gpu.key, offers=rivals)
    found = price(bought, gpu, rented)
    if request.save:
        save = Path(request.save)
        if not save.parent.is_dir():
            raise BadInput(f"the folder {shorten(str(save.parent), 200)} does not exist", field="save")
        write_offers(save, [own_offer(bought, gpu, today(), request.memory_gb)])
        listener.note(f"saved to {save}: use it with {option('offers', save)}")
    return OneNoun.holding(found)


def _purchase(request: OwnHardwareRequest) -> "Purchase":
    from pydantic import ValidationError

    from tokonomics.money.own_hardware import Purchase
    from tokonomics.planner.parsing import dollars

    values = {
        "gpus": request.gpus, "purchase_usd": dollars(request.purchase_usd, "purchase_usd"), "years": request.years,
        "residual_share": request.residual, "cost_of_capital": request.cost_of_capital,
        "usd_per_kwh": request.usd_per_kwh, "pue": request.pue, "gpu_load": request.gpu_load,
        "host_watts": request.host_watts, "maintenance_share": request.maintenance,
        "hosting_usd_per_month": dollars(request.hosting_usd_per_month, "hosting_usd_per_month"),
        "staff_usd_per_year": dollars(request.staff_usd_per_year, "staff_usd_per_year"),
    }  # fmt: skip
    try:
        return Purchase.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0]).removesuffix("_share")
        said = problem["msg"].lower().removeprefix("input ")
        raise BadInput(f"{said}, got {shorten(str(problem['input']))}", field=field) from None


def _is_like_owned(offer: "Offer", gpu: "Gpu") -> bool:
    """A host with as much memory as its GPUs, as machines that are bought have; cheaper ones with 4 GB are no rival."""
    return offer.memory_gb is None or offer.memory_gb >= gpu.memory_gb * offer.gpus
