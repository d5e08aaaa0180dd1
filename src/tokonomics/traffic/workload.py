"""The traffic a plan is made for: how many requests a second, how long their prompts and answers."""

from pydantic import Field

from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR


class Workload(Noun):
    """Requests in the mean, at a constant mean rate."""

    rate: float = Field(ge=1e-9, le=1e9)
    """Requests a second."""
    input_tokens: float = Field(gt=0, le=1e8)
    """In the mean."""
    output_tokens: float = Field(gt=0, le=1e8)

    @property
    def tokens_per_second(self) -> float:
        return self.rate * (self.input_tokens + self.output_tokens)

    @property
    def tokens_per_month(self) -> float:
        return self.tokens_per_second * SECONDS_PER_HOUR * HOURS_PER_MONTH
