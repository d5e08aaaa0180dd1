"""What selling tokens earns on a bill: revenue, margin, and the volume at which the two are equal.

Margin is gross margin: (revenue − cost) ÷ revenue. The price that gives a margin m is the cost of each kind of token
÷ (1 − m). A fleet is paid for whether or not it is used, so up to its capacity the bill stays while revenue grows with
the volume: it turns profitable at cost ÷ revenue times the volume.
"""

from pydantic import Field, NonNegativeFloat, computed_field

from tokonomics.errors import BadInput, option, shorten
from tokonomics.types import Noun
from tokonomics.units import DAY_S, HOURS_PER_MONTH, SECONDS_PER_HOUR, TOKENS_PER_MTOK

_MOST = 1e6  # dollars per Mtok: a dollar a token is beyond any price list


class SellPrice(Noun):
    """Dollars per Mtok that customers pay."""

    input: NonNegativeFloat
    output: NonNegativeFloat
    cached: NonNegativeFloat | None = None  # of prompt tokens that are found in the cache; None: they are sold as input

    def revenue(self, input_tokens: float, output_tokens: float, cached_tokens: float = 0.0) -> float:
        """Dollars for these tokens; the cached ones are among the input tokens."""
        cached = self.input if self.cached is None else self.cached
        computed = self.input * (input_tokens - cached_tokens) + cached * cached_tokens
        return (computed + self.output * output_tokens) / TOKENS_PER_MTOK


class SellTerms(Noun):
    """A price that is asked, or the margin that it shall give."""

    price: SellPrice | None = None
    margin: float | None = Field(default=None, ge=0, lt=1)

    def price_over(self, input: float, output: float, cached: float | None = None) -> SellPrice:
        """The price, where a Mtok of input, of output and of cached input costs this much."""
        if self.price is not None:
            return self.price
        keeps = 1 - (self.margin or 0.0)
        return SellPrice(input=input / keeps, output=output / keeps, cached=None if cached is None else cached / keeps)


def sell_terms(sell: str | None, margin: float | None) -> SellTerms | None:
    """``0.20/0.80`` (input/output), one price for both, or a third of cached input; or a margin; None: neither."""
    if sell is not None and margin is not None:
        raise BadInput(f"the price is given twice: {option('sell')} and {option('margin')}", field="sell")
    if margin is not None:
        return SellTerms(margin=margin)
    if sell is None:
        return None
    parts = sell.split("/")
    try:
        dollars = [float(part) for part in parts]
    except ValueError:
        dollars = []
    if len(dollars) not in (1, 2, 3) or not all(0 <= price <= _MOST for price in dollars) or not any(dollars):
        fix = (
            "Write dollars per million input and output tokens, such as 0.20/0.80, or with cached input 0.20/0.80/0.05."
        )
        raise BadInput(f"'{shorten(sell)}' is not a price", field="sell", fix=fix)
    input, output, cached = (*dollars, None)[:3] if len(dollars) > 1 else (*dollars, *dollars, None)
    return SellTerms(price=SellPrice(input=input, output=output, cached=cached))


class Sale(Noun):
    """Revenue and cost over the same time."""

    revenue_usd: NonNegativeFloat
    cost_usd: NonNegativeFloat

    @computed_field  # type: ignore[prop-decorator]
    @property
    def margin_usd(self) -> float:
        return self.revenue_usd - self.cost_usd

    @computed_field  # type: ignore[prop-decorator]
    @property
    def margin_share(self) -> float | None:
        """Of the revenue; None where nothing is earned."""
        return self.margin_usd / self.revenue_usd if self.revenue_usd > 0 else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def break_even_share(self) -> float | None:
        """Of this volume: where revenue is the cost; None where nothing is earned."""
        return self.cost_usd / self.revenue_usd if self.revenue_usd > 0 else None


def break_even(sale: Sale, tokens_per_s: float, load: float | None) -> tuple[float | None, float | None]:
    """Tokens a day and the share of the capacity at which a sale pays, where these now are its volume and its load.

    None where nothing is earned, or the load is not known.
    """
    share = sale.break_even_share
    if share is None:
        return None, None
    return share * tokens_per_s * DAY_S, None if load is None else share * load


class FleetSale(Noun):
    """What a planned fleet earns in a month, and the volume from which on it is profitable."""

    model: str
    usd_per_mtok: SellPrice
    month: Sale
    mtok: Sale  # of a million tokens, prompts and answers together
    break_even_requests_per_s: NonNegativeFloat | None
    break_even_tokens_per_day: NonNegativeFloat | None  # prompts and answers
    break_even_load: NonNegativeFloat | None  # share of the fleet's capacity; above 1 it loses money however full it is


def fleet_sale(
    model: str,
    price: SellPrice,
    usd_per_month: float,
    rate: float,
    lengths: tuple[float, float],
    load: float,
    cached_tokens: float = 0.0,
) -> FleetSale:
    """``rate`` requests a second of these input and output tokens, which are ``load`` of the fleet's capacity.

    ``cached_tokens`` of the input tokens are found in the cache.
    """
    seconds = HOURS_PER_MONTH * SECONDS_PER_HOUR
    month = Sale(revenue_usd=price.revenue(*lengths, cached_tokens) * rate * seconds, cost_usd=usd_per_month)
    mtok = rate * sum(lengths) * seconds / TOKENS_PER_MTOK
    share = month.break_even_share
    tokens_per_day, at_load = break_even(month, rate * sum(lengths), load)
    return FleetSale(
        model=model,
        usd_per_mtok=price,
        month=month,
        mtok=Sale(revenue_usd=month.revenue_usd / mtok, cost_usd=month.cost_usd / mtok),
        break_even_requests_per_s=None if share is None else share * rate,
        break_even_tokens_per_day=tokens_per_day,
        break_even_load=at_load,
    )
