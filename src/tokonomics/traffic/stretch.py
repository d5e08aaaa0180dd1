"""The stretch of a trace in which its load is really offered, known before anyone serves it.

Requests that wait for nobody are offered from the first arrival to the last: all of them count. Sessions begin from the
first to the last of their first requests, but later turns ramp up for as long as sessions last, and after the last
beginning the load runs dry. So a stretch of sessions ends with the last beginning, and begins as soon as 97 % of the
whole load comes in the mean until then: at time ``t`` the requests are missing that come later than ``t`` after the
beginning of their session, by the times of the trace as it was made.
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
_STEPS = 64  # from nothing to that: what begins later than it could by one of them loses 1 % of the stretch
_LONGER = 1.5
"""Times at which a longer run is asked for: with steps so large it is not on the edge again."""


@dataclass(frozen=True)
class LoadStretch:
    """From when a load is offered as a whole until it no longer is."""

    first_s: float
    """When the first request is sent."""
    ramp_s: float | None
    """From then until the load is whole; None: there is no such time, and everything counts."""
    end_s: float
    """When the last request is sent that waits for nobody."""
    times_longer: float = 1.0
    """How many times longer requests should be sent for there to be such a time; 0 where all are sent at once."""

    @property
    def span_s(self) -> float:
        """Over which requests that wait for nobody are sent."""
        return self.end_s - self.first_s

    @property
    def begin_s(self) -> float:
        return self.first_s + (self.ramp_s or 0.0)

    def counts(self, sent_s: Floats) -> NDArray[np.bool_]:
        """Which of the requests or sessions that are sent or begin at these times are judged."""
        if not self.ramp_s:
            return np.ones(len(sent_s), np.bool_)
        return np.asarray((sent_s >= self.begin_s) & (sent_s <= self.end_s))


def stretch_of(trace: Trace) -> LoadStretch:
    """When the load of a trace is offered."""
    sent_s, turns = trace.arrival_s, trace.turns
    linked = turns is not None and turns.linked
    roots_s = sent_s[turns.roots] if turns is not None and linked else sent_s
    since_s = sent_s - session_starts_s(turns, sent_s) if turns is not None and linked else np.zeros(1)
    first_s, end_s = float(roots_s.min()), float(roots_s.max())
    ramp_s, longer = ramp_up_s(since_s, end_s - first_s), times_longer(since_s, end_s - first_s)
    few = 1 / (1 - NEARLY_ALL) / len(roots_s)  # the last one ends a gap of time that belongs to the rate
    return LoadStretch(first_s, None if few > 1 else ramp_s, end_s, max(longer, few) if longer else 0.0)


def ramp_up_s(since_s: Floats, span_s: float) -> float | None:
    """How long it takes until nearly all comes of what comes so long after its session began; None: too long.

    Sessions begin for ``span_s``. From ``t`` until its end, a request is missing for as long as it comes after ``t``.
    """
    if span_s <= 0:
        return None
    began_s = np.linspace(0.0, _MOST_RAMP, _STEPS + 1) * span_s
    later = np.sort(np.minimum(since_s, span_s))[::-1]
    sums, counts = np.cumsum(later), len(later) - np.searchsorted(later[::-1], began_s, side="right")
    missing_s = np.where(counts > 0, sums[np.maximum(counts, 1) - 1], 0.0) - counts * began_s
    enough = np.flatnonzero(missing_s <= (1 - NEARLY_ALL) * (span_s - began_s) * len(later))
    return float(began_s[enough[0]]) if len(enough) else None


def times_longer(since_s: Floats, span_s: float) -> float:
    """How many times longer sessions should begin for there to be a stretch; 1: long enough, 0: all begin at once."""
    times = float(span_s > 0)
    while span_s > 0 and ramp_up_s(since_s, times * span_s) is None:
        times *= _LONGER
    return times


def session_starts_s(turns: Turns, sent_s: Floats) -> Floats:
    """By request: when the first request of its session is sent."""
    first_s = np.full(turns.sessions, np.inf)
    np.minimum.at(first_s, turns.session, sent_s)
    return np.asarray(first_s[turns.session])
