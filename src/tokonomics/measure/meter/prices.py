"""What an hour of each server costs: one price for all, or another one for servers with a label or an address."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tokonomics.catalog.offer_choice import cheapest_offer, select_offers
from tokonomics.catalog.offers import Offer, load_offers
from tokonomics.errors import BadInput, UnknownName, shorten


@dataclass(frozen=True)
class PriceOf:
    """The price of the servers with a label, or, without its name, of the one at an address."""

    label: str
    value: str
    usd_per_hour: float

    @property
    def said(self) -> str:
        return f"{self.label}={self.value}" if self.label else self.value

    def holds(self, target: str, labels: Mapping[str, str]) -> bool:
        return labels.get(self.label) == self.value if self.label else target == self.value


@dataclass(frozen=True)
class Prices:
    """US dollars an hour of a server with all its GPUs."""

    usd_per_hour: float
    others: tuple[PriceOf, ...] = ()  # the first that holds counts

    def of(self, target: str, labels: Mapping[str, str]) -> float:
        return next((other.usd_per_hour for other in self.others if other.holds(target, labels)), self.usd_per_hour)


def parse_prices(texts: Iterable[str], gpus: int) -> tuple[PriceOf, ...]:
    """``gpu=L4:0.80`` or ``http://gpu2:8000:0.80``, of one GPU-hour, as prices of servers with ``gpus`` GPUs."""
    from tokonomics.measure.meter.scrape import address_of
    from tokonomics.money.cost import require_positive

    prices = []
    for text in texts:
        who, _, price = text.strip().rpartition(":")
        try:
            usd = float(price)
        except ValueError:
            who, usd = "", 0.0
        label, equals, value = who.partition("=") if "://" not in who else ("", "", address_of(who))
        if not value and not equals:
            # A pod as the meter names it: prod/llama-0.
            label, value = "", who
        if not value or (equals and not label):
            fix = "Such as gpu=L4:0.80 (a label of theirs), or http://gpu2:8000:0.80."
            raise BadInput(f"'{shorten(text)}' is not a price of some servers", field="price", fix=fix)
        prices.append(PriceOf(label.strip(), value.strip(), require_positive("price", usd) * gpus))
    return tuple(prices)


def find_offer(text: str) -> Offer:
    """``aws:p5.48xlarge``, or with a slash: that machine of that provider, in the cheapest region."""
    provider, sign, instance = text.replace("/", ":").partition(":")
    if not sign or not provider or not instance:
        raise BadInput(f"'{shorten(text)}' names no offer", field="offer", fix="Such as aws:p5.48xlarge.")
    sold = select_offers(load_offers(), provider=provider)
    named = [offer for offer in sold if offer.instance.lower() == instance.lower()]
    if not named:
        raise UnknownName("instance", instance, {offer.instance for offer in sold}, fix="See: tokonomics offers")
    return cheapest_offer(named[0].gpu, named[0].gpus, offers=named)
