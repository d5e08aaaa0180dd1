"""When a load has been measured for long enough: the answer is known closely, or what may be spent is spent.

How closely is known from batch means: the requests, in the order they ended, in ten batches of at least one round of
all users each, so that neighbours that wait for each other fall into one batch; Student's interval at 95 % over the
ten means, relative to their mean, of TTFT and of the whole answer, whichever is wider. (Law, Simulation Modeling and
Analysis, chapter 9.)
"""

from array import array
from dataclasses import dataclass

import numpy as np

BATCHES = 10
_STUDENT = 2.262
"""97.5 % of Student's distribution with nine degrees of freedom."""
_LEAST_IN_BATCH = 3


@dataclass(frozen=True)
class Budget:
    """What one load may take; the first that is reached ends it."""

    precision: float = 0.05
    requests: int = 100_000
    seconds: float = 60.0
    usd: float | None = None
    """For the whole test."""


def half_width(values: "array[float]") -> float | None:
    """Of the 95 % interval of the mean, relative to it; None while there is too little to tell."""
    size = len(values) // BATCHES
    if size < 1:
        return None
    # The first of them are left over: they are closest to the warm-up.
    batches = np.frombuffer(values, dtype=np.float64)[len(values) - size * BATCHES :].reshape(BATCHES, size)
    means = batches.mean(axis=1)
    mean = float(means.mean())
    return _STUDENT * float(means.std(ddof=1)) / BATCHES**0.5 / mean if mean > 0 else None


class Stopping:
    """Watches one load."""

    def __init__(self, budget: Budget, users: int) -> None:
        self._budget = budget
        self._least = BATCHES * max(users, _LEAST_IN_BATCH)
        self._next = self._least
        self._ttft, self._e2e = array("d"), array("d")
        self.precision: float | None = None
        self.seen = 0

    def add(self, ttft_s: float | None, e2e_s: float | None) -> None:
        """A request that ended; without times where it failed."""
        self.seen += 1
        if ttft_s is not None and e2e_s is not None:
            self._ttft.append(ttft_s)
            self._e2e.append(e2e_s)

    def is_spent(self, spent_usd: float) -> bool:
        """Whether a limit is reached that not one request may exceed."""
        budget = self._budget
        return self.seen >= budget.requests or (budget.usd is not None and spent_usd >= budget.usd)

    def reason(self, elapsed_s: float, spent_usd: float) -> str | None:
        """Why to stop now; None to go on."""
        budget = self._budget
        if len(self._e2e) >= self._next:
            widths = [half_width(array("d", each)) for each in (self._ttft, self._e2e)]
            self.precision = max((width for width in widths if width is not None), default=None)
            self._next = len(self._e2e) + max(1, self._least // 4)
            if self.precision is not None and self.precision <= budget.precision:
                return f"interval within {budget.precision:.0%}"
        if self.seen >= budget.requests:
            return f"{budget.requests:,} requests"
        if elapsed_s >= budget.seconds:
            return f"{budget.seconds:g} s"
        if budget.usd is not None and spent_usd >= budget.usd:
            return f"${budget.usd:g} spent"
        return None
