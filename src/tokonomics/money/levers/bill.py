"""What every lever returns: the bill of an hour before it and after it, as trees that sum."""

from tokonomics.money.cost import CostTree
from tokonomics.types import Noun


class LeverBill(Noun):
    """Dollars an hour before and after a change."""

    before: CostTree
    after: CostTree

    @property
    def saved_usd(self) -> float:
        """An hour; below zero where the change costs more than it saves."""
        return self.before.usd - self.after.usd

    @property
    def saved_share(self) -> float:
        return self.saved_usd / self.before.usd if self.before.usd else 0.0
