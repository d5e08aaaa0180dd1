"""What running machines costs beside them: people, on-call, upgrades, and overheads that grow with the machines.

The lines are those of a break-even (``money.breakeven.Extra``). They are the same whatever the hardware, so they
change no pick; they change what a million tokens really costs, and how much a saving is of the whole.
"""

import math
from collections.abc import Sequence

from pydantic import NonNegativeFloat

from tokonomics.money.breakeven import Extra
from tokonomics.money.cost import CostLine, CostTree
from tokonomics.types import Noun
from tokonomics.units import TOKENS_PER_MTOK


class Upkeep(Noun):
    """A bill of machines with people and overheads, over the same time."""

    lines: CostTree
    """What comes on top."""
    usd: NonNegativeFloat
    machines_usd: NonNegativeFloat
    total_usd: NonNegativeFloat
    usd_per_mtok: NonNegativeFloat | None
    """All of it over all tokens; None where there is no token."""
    usd_per_mtok_machines: NonNegativeFloat | None

    @property
    def share(self) -> float:
        """Of all that is paid."""
        return self.usd / self.total_usd if self.total_usd else 0.0


def upkeep(extras: Sequence[Extra], machines_usd: float, tokens: float, months: float = 1.0) -> Upkeep | None:
    """People and overheads over so many months in which machines cost so much; None where none are named."""
    if not extras:
        return None
    lines = tuple(
        CostLine(
            name=extra.name,
            quantity=1,
            unit="bill",
            usd_per_unit=extra.usd_per_month * months + extra.share_of_machines * machines_usd,
        )
        for extra in extras
    )
    usd = math.fsum(line.usd for line in lines)

    def per_mtok(dollars: float) -> float | None:
        return dollars / tokens * TOKENS_PER_MTOK if tokens > 0 else None

    return Upkeep(
        lines=CostTree(name="people and overheads", lines=lines),
        usd=usd,
        machines_usd=machines_usd,
        total_usd=machines_usd + usd,
        usd_per_mtok=per_mtok(machines_usd + usd),
        usd_per_mtok_machines=per_mtok(machines_usd),
    )
