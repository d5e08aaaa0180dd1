"""How fast the network between machines is that sellers state for their instances (``data/networks.csv``).

What is in no table and in no price list of one's own is not known to have one: no replica is spread over such machines.
"""

import csv
from functools import cache, lru_cache
from importlib.resources import files


@lru_cache(maxsize=4096)
def stated_gbit(provider: str, instance: str) -> float | None:
    """Gbit/s of one such machine to others, for its GPUs; None where nobody states it."""
    return _table().get((provider.casefold(), instance.casefold()))


@cache
def _table() -> dict[tuple[str, str], float]:
    text = files("tokonomics.catalog").joinpath("data/networks.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {(row["provider"].casefold(), row["instance"].casefold()): float(row["gbit"]) for row in rows}
