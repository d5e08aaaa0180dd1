"""What does a million tokens cost at this speed, price and utilisation?"""

from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, option
from tokonomics.questions.inputs import GpuPrice, LengthInputs, PriceList
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.request import Number, Text, Texts, Whole, declared
from tokonomics.questions.tables import prices_in

if TYPE_CHECKING:
    from tokonomics.questions.results import CostResult

_DRAWN = 100_000
"""Requests whose mean stands for a distribution's: within a percent where lengths vary threefold."""


class CostRequest(GpuPrice, LengthInputs, PriceList):
    """
    Examples:
      tokonomics cost --usd-per-hour 2.21 --gpus 4 --tokens-per-second 2400 --utilization 0.7
      tokonomics cost --gpu A100-80GB --tokens-per-second 2900 --utilization 0.5 --target 0.20
      tokonomics cost --gpu H100 --tokens-per-second 4800 --load 8x0.99,16x0 --load 24x0.7
      tokonomics cost chat.toml --tokens-per-second 4800
    """

    FIRST = ("tokens_per_second", "usd_per_hour", "gpu", "gpus")

    tokens_per_second: Number = declared(..., "Tokens a second of all GPUs together, at full speed.", example=2400)
    gpu: Text | None = declared(None, "GPU whose cheapest offer is the price instead.", example="H100")
    gpus: Whole = declared(1, "Number of GPUs.", example=8)
    utilization: Number | None = declared(
        None, "Share of full speed really produced, 0 to 1.", without="1", example=0.5
    )
    load: Texts | None = declared(
        None,
        "A load profile instead: HOURSxUTILIZATION,… such as 8x0.99,16x0. Repeat to compare.",
        example=["8x0.99,16x0"],
    )
    target: Number | None = declared(None, "Also: what it takes to reach this many dollars per Mtok.", example=0.2)


def cost(request: CostRequest, listener: Listener = SILENT) -> "CostResult":
    """The cost equation and its inverses."""
    from tokonomics.money import cost as money
    from tokonomics.questions.results import CostResult

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


def _price(request: CostRequest) -> tuple[float, str, dict[str, Any]]:
    """Dollars per GPU-hour, a note for people on where they come from, and the same for programs."""
    from tokonomics.clock import today

    gpu, gpus = request.gpu, request.gpus
    if (request.usd_per_hour is None) == (gpu is None):
        either = f"Either {option('usd_per_hour', 2.21)} or {option('gpu', 'A100-80GB')}."
        raise BadInput("give the price of a GPU-hour in one way", fix=either)
    if request.offers is not None and gpu is None:
        fix = f"Add {option('gpu')}, or leave {option('offers')} out."
        raise BadInput("a price list is for looking a GPU up", field="offers", fix=fix)
    if request.usd_per_hour is not None:
        return request.usd_per_hour, "price as given", {"source": "given"}
    from tokonomics.catalog.offers import STALE_AFTER_DAYS, cheapest_offer, machines_usd_per_hour
    from tokonomics.money.cost import require_positive

    require_positive("gpus", gpus)
    offer = cheapest_offer(gpu or "", gpus, offers=prices_in(request.offers))
    machines = -(-gpus // offer.gpus)
    unused = machines * offer.gpus - gpus
    old = f", older than {STALE_AFTER_DAYS} days" if offer.is_stale(today()) else ""
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
