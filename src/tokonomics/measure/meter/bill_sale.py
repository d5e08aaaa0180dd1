"""What metered tokens earned where they are sold: revenue and margin of every line of a bill."""

from collections import defaultdict

from pydantic import NonNegativeFloat

from tokonomics.measure.meter.bill import Bill
from tokonomics.measure.meter.state import MeterTally
from tokonomics.measure.meter.token_price import MeteredGpu, token_costs
from tokonomics.money.sale import Sale, SellPrice, SellTerms
from tokonomics.types import Noun
from tokonomics.units import DAY_S


class ModelPrice(Noun):
    """What a model is sold at, and how its cost was split where that made the price."""

    model: str
    usd_per_mtok: SellPrice
    split: str | None = None


class BillSale(Noun):
    """A bill with what was earned; lines are those of the bill."""

    prices: tuple[ModelPrice, ...]
    lines: tuple[Sale, ...]
    total: Sale
    tokens_per_day: NonNegativeFloat
    break_even_tokens_per_day: NonNegativeFloat | None
    """At the same mix, on the same servers; None where nothing is earned."""
    break_even_busy_share: NonNegativeFloat | None
    """Of the watched time, at the same batch: above 1 the servers do not earn what they cost."""


def bill_sale(of: Bill, by_model: Bill, terms: SellTerms, on: MeteredGpu | None = None) -> BillSale:
    """The bill ``of`` sold on these terms; ``by_model`` is the same by model and engine as well.

    With a margin, each model has the price that gives it over the whole stretch: days and teams then differ.
    """
    costs = token_costs(by_model, on)
    prices = {
        cost.model: _price(terms, cost.input, cost.cached, cost.output, _sums(by_model, cost.model)) for cost in costs
    }
    earned: dict[tuple[str, ...], float] = defaultdict(float)
    for line in by_model.lines:
        price = prices.get(line.group[-2])
        if price is not None:
            sums = line.sums
            earned[line.group[:-2]] += price.revenue(sums.input_total, sums.output, sums.input_cached)
    lines = tuple(Sale(revenue_usd=earned[line.group], cost_usd=line.sums.usd) for line in of.lines)
    total = Sale(revenue_usd=sum(earned.values()), cost_usd=of.total.usd)
    days = (of.until - of.since) / DAY_S
    tokens = of.total.billed_tokens / days if days > 0 else 0.0
    share, idle = total.break_even_share, of.total.idle_share
    return BillSale(
        prices=tuple(
            ModelPrice(
                model=cost.model, usd_per_mtok=prices[cost.model], split=cost.split if terms.price is None else None
            )
            for cost in costs
        ),
        lines=lines,
        total=total,
        tokens_per_day=tokens,
        break_even_tokens_per_day=None if share is None else tokens * share,
        break_even_busy_share=None if share is None or idle is None else (1 - idle) * share,
    )


def _sums(by_model: Bill, model: str) -> MeterTally:
    return sum((line.sums for line in by_model.lines if line.group[-2] == model), MeterTally())


def _price(terms: SellTerms, computed: float, cached: float, output: float, sums: MeterTally) -> SellPrice:
    """With a margin cached tokens are sold as input, so that input costs the mean of both."""
    tokens = sums.input_total
    input = (computed * sums.input_computed + cached * sums.input_cached) / tokens if tokens > 0 else computed
    return terms.price_over(input, output)
