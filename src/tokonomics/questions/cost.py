"""Answer what a million tokens cost, and a GPU-hour of a bought machine: ``cost`` and ``own-hardware``."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import NoOffer, cheapest_offer, machines_usd_per_hour, market_offers
from tokonomics.catalog.offers import OLDER, Offer, write_offers
from tokonomics.errors import BadInput, option, shorten
from tokonomics.money import cost as money
from tokonomics.money.cost import Cost, LoadCost, Needed, require_positive
from tokonomics.money.own_hardware import Power, Purchase, own_offer
from tokonomics.money.own_hardware import own_hardware as price_of_own
from tokonomics.planner.parsing import dollars
from tokonomics.questions.inputs import PriceList
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import CostRequest, OwnHardwareRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.results import OneNoun
from tokonomics.questions.tables import prices_in
from tokonomics.traffic.lengths import draw_lengths, parse_lengths
from tokonomics.types import today

_DRAWN = 100_000  # draws to estimate a distribution's mean: within a percent if lengths vary threefold


class CostResult(Result, Cost):
    """The cost of a million tokens, and what it takes to reach a price."""

    gpus: int
    price: dict[str, Any]  # where the price of a GPU-hour comes from
    usd_per_request: float | None
    target: Needed | None
    loads: tuple[LoadCost, ...]
    price_note: Any = beside()


def cost(request: CostRequest, listener: Listener = SILENT) -> CostResult:
    """Solve the cost equation and its inverses."""
    speed, gpus = request.tokens_per_second, request.gpus
    price, price_note, quoted = _price(request)
    if request.load and request.utilization is not None:
        both = f"{option('load')} and {option('utilization')}"
        raise BadInput(f"{both} both say how busy it is", fix="Give one of them.")
    loads = [money.load_cost(text, price, speed, gpus) for text in request.load or ()]
    given = 1.0 if request.utilization is None else request.utilization
    share = loads[0].mean_utilization if loads else given
    found = money.cost(price, speed, share, gpus)
    prompt, reply = _mean_tokens(request.input, request.output)
    target = request.target
    return CostResult(
        **dict(found),
        gpus=gpus,
        price=quoted,
        usd_per_request=money.usd_per_request(found.usd_per_mtok, prompt, reply) if prompt or reply else None,
        target=money.needed_for(target, price, speed, share, gpus) if target is not None else None,
        loads=tuple(loads),
        price_note=price_note,
    )


def _mean_tokens(input_text: str | None, output_text: str | None) -> tuple[float, float]:
    """Return the mean prompt and answer tokens: as given, or the mean of many draws from a distribution."""
    if input_text is None and output_text is None:
        return 0.0, 0.0

    none = parse_lengths("0", least=0)
    inputs = none if input_text is None else parse_lengths(input_text, "input", least=0)
    of_pairs = inputs if inputs.pairs is not None else none
    outputs = of_pairs if output_text is None else parse_lengths(output_text, "output", least=0)
    if inputs.mean is not None and outputs.mean is not None:
        return inputs.mean, outputs.mean
    prompts, replies = draw_lengths(inputs, outputs, _DRAWN, np.random.default_rng(0))
    return float(prompts.mean()), float(replies.mean())


def _price(request: CostRequest) -> tuple[float, str, dict[str, Any]]:
    """Return dollars per GPU-hour, a note for people on their source, and the same for programs."""
    gpu, gpus = request.gpu, request.gpus
    if (request.usd_per_hour is None) == (gpu is None):
        either = f"Either {option('usd_per_hour', 2.21)} or {option('gpu', 'A100-80GB')}."
        raise BadInput("give the price of a GPU-hour in one way", fix=either)
    if request.offers is not None and gpu is None:
        fix = f"Add {option('gpu')}, or leave {option('offers')} out."
        raise BadInput("a price list is for looking a GPU up", field="offers", fix=fix)
    if request.usd_per_hour is not None:
        return request.usd_per_hour, "price as given", {"source": "given"}

    require_positive("gpus", gpus)
    offer = cheapest_offer(gpu or "", gpus, offers=_price_list(request))
    machines = -(-gpus // offer.gpus)
    unused = machines * offer.gpus - gpus
    old = f", {OLDER}" if offer.is_stale(today()) else ""
    spare = f"; {unused} of {machines * offer.gpus} GPUs unused" if unused else ""
    where = f"{machines}× {offer.provider} {offer.instance}, {offer.region}"
    quoted = {
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


def _price_list(request: PriceList) -> tuple[Offer, ...]:
    """Return the given list, or the user's own market."""
    return market_offers() if request.offers is None else prices_in(request.offers)


_EXAMPLE = {"gpu": "H100", "gpus": 8, "purchase_usd": "250k", "years": 4, "usd_per_kwh": 0.12, "host_watts": 4600}
_NEEDED = ("gpu", "purchase_usd", "years", "usd_per_kwh", "host_watts")


def own_hardware(request: OwnHardwareRequest, listener: Listener = SILENT) -> OneNoun:
    """Return depreciation, power and people per GPU-hour, beside the price of renting."""
    missing = [name for name in _NEEDED if getattr(request, name) is None]
    if missing or request.gpu is None:
        given = "is missing" if len(missing) == 1 else "are missing"
        example = " ".join(option(name, value) for name, value in _EXAMPLE.items())
        raise BadInput(given, field=", ".join(missing), fix=f"Such as: {example}")
    gpu = find_gpu(request.gpu)
    bought = _purchase(request)
    rented = None
    with suppress(NoOffer):
        rented = cheapest_offer(gpu.key, request.gpus, offers=_price_list(request))
    found = price_of_own(bought, gpu, rented)
    if request.save:
        save = Path(request.save)
        if not save.parent.is_dir():
            raise BadInput(f"the folder {shorten(str(save.parent), 200)} does not exist", field="save")
        write_offers(save, [own_offer(bought, gpu, today(), request.memory_gb)])
        listener.note(f"saved to {save}: use it with {option('offers', save)}")
    return OneNoun(noun=found)


def _purchase(request: OwnHardwareRequest) -> Purchase:
    values = {
        "gpus": request.gpus, "purchase_usd": dollars(request.purchase_usd, "purchase_usd"), "years": request.years,
        "residual_share": request.residual, "cost_of_capital": request.cost_of_capital,
        "usd_per_kwh": request.usd_per_kwh, "pue": request.pue, "gpu_load": request.gpu_load,
        "host_watts": request.host_watts, "maintenance_share": request.maintenance,
        "hosting_usd_per_month": dollars(request.hosting_usd_per_month, "hosting_usd_per_month"),
        "staff_usd_per_year": dollars(request.staff_usd_per_year, "staff_usd_per_year"),
    }  # fmt: skip
    return kept_machine(Purchase, {name: value for name, value in values.items() if value is not None})


Kept = TypeVar("Kept", bound=Power)


def kept_machine(kind: type[Kept], values: Mapping[str, object]) -> Kept:
    """Check what the user's machine draws or cost; an error in a value names its input."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = str(problem["loc"][0]).removesuffix("_share")
        said = problem["msg"].lower().removeprefix("input ")
        raise BadInput(f"{said}, got {shorten(str(problem['input']))}", field=field) from None
