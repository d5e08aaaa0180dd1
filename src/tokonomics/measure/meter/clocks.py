"""Two clocks: one that labels, and one that measures.

Durations come from a clock that nobody sets and that goes on while the machine sleeps; labels from the wall clock,
which may jump. Tests bring their own.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, and how much has passed."""

    def wall(self) -> float:
        """Unix seconds."""

    def steady(self) -> float:
        """Seconds since some instant; never goes back."""


class SystemClock:
    """This machine's."""

    def wall(self) -> float:
        return time.time()

    def steady(self) -> float:
        # Linux alone has a clock that neither jumps nor stops while the machine sleeps.
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.clock_gettime(boottime) if boottime is not None else time.monotonic()
