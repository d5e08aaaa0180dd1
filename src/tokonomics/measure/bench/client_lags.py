"""What the client itself adds to the latencies that it measures: the time for which answers waited to be read.

One thread reads all streams. A clock that is to ring every few milliseconds is late while that thread is busy; a first
token that is read meanwhile may have arrived at any time since. So what the clock was late by is the most that the
client can have added.
"""

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tokonomics.measure.bench.client import Reply
from tokonomics.units import seconds

_OWN_SHARE = 0.05
"""Of a measured TTFT that may be the client's own, from which on it says so: a choice."""


class ClientLags:
    """When the client was late to do what was due: whatever it read then had waited for it."""

    def __init__(self) -> None:
        self._due_s, self._ran_s = array("d"), array("d")

    def add(self, due_s: float, ran_s: float) -> None:
        """It was to run at a time, and did at another."""
        self._due_s.append(due_s)
        self._ran_s.append(ran_s)

    def before(self, read_s: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
        """By time of a reading: for how long the client had been busy, at most so long it had waited."""
        read, due, ran = np.asarray(read_s), np.asarray(self._due_s), np.asarray(self._ran_s)
        if not len(due):
            return np.zeros(len(read))
        place = np.searchsorted(due, read, side="right") - 1
        within = (place >= 0) & (read <= ran[place])
        return np.where(within, read - due[place], 0.0)


def own_delay(good: list[Reply], lags: ClientLags) -> str | None:
    """What the client itself may add to the first token, where that is a part worth knowing."""
    heard = [reply for reply in good if reply.first_s is not None]
    if not heard:
        return None
    first_s = np.array([reply.first_s for reply in heard], np.float64)
    own, ttft = lags.before(first_s), first_s - np.array([reply.due_s for reply in heard])
    shares = [(rank, *(float(np.percentile(values, rank)) for values in (own, ttft))) for rank in (50, 99)]
    told = [f"{seconds(mine)} of {seconds(all_of)} (p{rank})" for rank, mine, all_of in shares]
    if all(mine <= _OWN_SHARE * all_of for _, mine, all_of in shares):
        return None
    return f"the client was busy when first tokens came: up to {' and '.join(told)} of TTFT may be its own"
