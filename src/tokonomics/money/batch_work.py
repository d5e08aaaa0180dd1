"""Work that nobody waits for, to be done every day between its start and its deadline: in hours that have room for it.

Its requests have the lengths of the traffic beside it, so that what a machine has free of one it has of the other.
"""

import numpy as np
from pydantic import Field, PositiveFloat

from tokonomics.errors import BadInput, option
from tokonomics.traffic.grammar import Phrase, read_options
from tokonomics.traffic.trace import Floats
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

_EXAMPLES = "500M (tokens a day), 2B,start=20h,deadline=10h"
_MOST_TOKENS = 1e15


class BatchWork(Noun):
    """Requests that come at one hour of every day and must be done some hours later."""

    tokens_per_day: PositiveFloat
    requests_per_day: PositiveFloat
    start_hour: int = Field(default=0, ge=0, lt=24)
    deadline_hours: int = Field(default=24, ge=1, le=24)

    def windows(self, hours: int) -> list["np.ndarray[tuple[int], np.dtype[np.int64]]"]:
        """The hours of a horizon of whole days in which each day's work may be done; the horizon repeats."""
        if hours % 24:
            fix = f"Such as {option('hours', 24)} or {option('hours', 168)}."
            raise BadInput(f"is for whole days; the horizon has {hours} hours", field="batch_work", fix=fix)
        first = np.arange(self.start_hour, self.start_hour + self.deadline_hours)
        return [(first + 24 * day) % hours for day in range(hours // 24)]

    def filled_into(self, free: Floats) -> Floats | None:
        """Requests a second by hour, in equal parts of what is free; None where a day's work does not fit."""
        placed: Floats = np.zeros(len(free))
        for hours in self.windows(len(free)):
            room = float(free[hours].sum()) * SECONDS_PER_HOUR
            if room < self.requests_per_day * (1 - 1e-9):
                return None
            placed[hours] = free[hours] * min(1.0, self.requests_per_day / room)
        return placed

    def free_shares(self, free: Floats) -> list[float]:
        """Of each day's work: what fits into so many free requests a second by hour."""
        rooms = [float(free[hours].sum()) * SECONDS_PER_HOUR for hours in self.windows(len(free))]
        return [min(1.0, room / self.requests_per_day) for room in rooms]

    def part(self, share: float) -> "BatchWork":
        """So much of it, within the same hours."""
        less = {"tokens_per_day": self.tokens_per_day * share, "requests_per_day": self.requests_per_day * share}
        return self.model_copy(update=less)


def parse_batch_work(text: str, tokens_per_request: float) -> BatchWork:
    """``2B,start=20h,deadline=10h``: tokens a day, in and out; from that hour on, done so many hours later."""
    phrase = read_options(Phrase(text, "", None, {}, "batch_work", _EXAMPLES), text)
    phrase.allow("start", "deadline")
    tokens = phrase.tokens(None, 1, _MOST_TOKENS)
    start_s = phrase.time_s("start", 0, 23 * SECONDS_PER_HOUR, 0.0)
    deadline_s = phrase.time_s("deadline", SECONDS_PER_HOUR, 24 * SECONDS_PER_HOUR, 24.0 * SECONDS_PER_HOUR)
    if start_s % SECONDS_PER_HOUR or deadline_s % SECONDS_PER_HOUR:
        raise phrase.wrong("start= and deadline= are whole hours")
    return BatchWork(
        tokens_per_day=tokens,
        requests_per_day=tokens / tokens_per_request,
        start_hour=int(start_s // SECONDS_PER_HOUR),
        deadline_hours=int(deadline_s // SECONDS_PER_HOUR),
    )
