"""Offers that read at a glance in tests."""

from tokonomics.money.purchases import EVERY_SIZE, FleetOffer


def simple_offer(name: str, requests_per_s: float, usd_per_hour: float | None = None, **more: object) -> FleetOffer:
    return FleetOffer.model_validate(
        {"name": name, "requests_per_s": {EVERY_SIZE: requests_per_s}, "usd_per_hour": usd_per_hour, **more}
    )
