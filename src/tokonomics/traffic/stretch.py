"""The stretch of a trace in which its load is really offered, known before anyone serves it.

Requests that wait for nobody are offered from the first arrival to the last: all of them count. Sessions start from the
first to the last of their beginnings, but the later turns ramp up for as long as sessions last, and after the last
beginning the load runs dry. So a stretch of sessions begins when 97 % of the requests of the first sessions have come,
by the times of the trace as it was made, and ends with the last beginning.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokonomics.traffic.trace import Floats, Trace
from tokonomics.traffic.turns import Turns

NEARLY_ALL = 0.97
"""Of a load, what passes for all of it: with 20,000 requests, chance alone makes less than 1 % of difference."""
_MOST_RAMP = 0.5
"""Of the time in which sessions begin: where the ramp-up takes more, less than half of the requests would count."""


@dataclass(frozen=True)
class Stretch:
    """From when a load is offered as a whole until it no longer is."""

    first_s: float
    """When the first request is sent."""
    ramp_s: float
    """From then until later turns come as often as they will."""
    end_s: float
    """When the last request is sent that waits for nobody."""

    @property
    def span_s(self) -> float:
        """Over which requests that wait for nobody are sent."""
        return self.end_s - self.first_s

    @property
    def begin_s(self) -> float:
        """From when a request counts: from the first one where the ramp-up takes too much of the time."""
        return self.first_s + self.ramp_s if self.outlasts(self.ramp_s) else self.first_s

    def outlasts(self, lasting_s: float) -> bool:
        """Whether requests are sent for long enough that what takes so long comes to its mean."""
        return self.span_s > 0 and lasting_s <= _MOST_RAMP * self.span_s

    def times_longer(self, lasting_s: float) -> float | None:
        """How many times longer requests should be sent: twice the least. None where all are sent at once."""
        return 2 * lasting_s / (_MOST_RAMP * self.span_s) if self.span_s > 0 else None

    def counts(self, sent_s: Floats) -> NDArray[np.bool_]:
        """Which of the requests or sessions that are sent or begin at these times are judged."""
        if not self.ramp_s or not self.outlasts(self.ramp_s):
            return np.ones(len(sent_s), np.bool_)
        return np.asarray((sent_s >= self.begin_s) & (sent_s <= self.end_s))


def stretch_of(trace: Trace) -> Stretch:
    """When the load of a trace is offered."""
    sent_s, turns = trace.arrival_s, trace.turns
    if turns is None or not turns.linked:
        return Stretch(float(sent_s[0]), 0.0, float(sent_s[-1]))
    roots_s = sent_s[turns.roots]
    since_s = sent_s - session_starts_s(turns, sent_s)
    return Stretch(float(roots_s.min()), float(np.quantile(since_s, NEARLY_ALL)), float(roots_s.max()))


def session_starts_s(turns: Turns, sent_s: Floats) -> Floats:
    """By request: when the first request of its session is sent."""
    first_s = np.full(turns.sessions, np.inf)
    np.minimum.at(first_s, turns.session, sent_s)
    return np.asarray(first_s[turns.session])
