"""Move requests that can wait to quiet hours, so that a fleet is sized for the others.

Requests that can wait are those of classes without targets, or a share drawn at random. Each hour of the traffic is
filled up to one level, as water fills a bed (``levelled``), and such requests take those places in order, each at or
after its own time; traffic is taken to repeat, so what finds none before the end comes at its beginning. They are a
class without targets that is served last (``serving.scheduler``: a smaller priority first), and the fleet must still
finish them.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tokonomics.sizing.load import Load
from tokonomics.sizing.search import parts_of
from tokonomics.traffic.slo import ServiceClass, Slo
from tokonomics.traffic.tenants import classed
from tokonomics.traffic.trace import Floats, Trace

URGENT, WAITS = "in time", "can wait"
LAST = 1  # priority of what can wait: after 0, that of all others


def with_waiting(trace: Trace, share: float | None, slos: tuple[Slo, ...]) -> Trace | None:
    """Return a trace with a class that can wait: its own classes if some have no targets, else a share at random.

    None if nobody says which requests can wait.
    """
    if trace.classes:
        return trace if waiting(trace).any() else None
    if not share:
        return None
    return classed(trace, (ServiceClass(name=URGENT, slos=slos), ServiceClass(name=WAITS, share=share, priority=LAST)))


def waiting(trace: Trace) -> NDArray[np.bool_]:
    """Return which requests are of a class without targets, if others have some."""
    if trace.service is None or not any(one.slos for one in trace.classes):
        return np.zeros(len(trace), np.bool_)
    waits: NDArray[np.bool_] = np.array([not one.slos for one in trace.classes])[trace.service]
    return waits


def deferred(load: Load) -> Load:
    """Return the load with the requests that can wait in its quiet hours; the others keep their times and targets."""
    trace, waits = load.trace, waiting(load.trace)
    edges = np.linspace(trace.arrival_s[0], trace.arrival_s[-1], parts_of(load) + 1)
    urgent, _ = np.histogram(trace.arrival_s[~waits], edges)
    places_s = _places(edges, levelled(urgent, int(waits.sum())))
    arrival_s = trace.arrival_s.copy()
    arrival_s[waits] = _later(arrival_s[waits], places_s)
    moved = replace(trace, arrival_s=arrival_s)
    return replace(load, trace=moved.take(np.argsort(arrival_s, kind="stable")))


def levelled(there: NDArray[np.int64], added: int) -> NDArray[np.int64]:
    """Return how many of ``added`` go to each part, so that the fullest of those that get any is as low as possible."""
    lowest_first = np.sort(there)
    # With the k lowest parts filled to one level, it is the mean of theirs and what is added.
    levels = (np.cumsum(lowest_first) + added) / np.arange(1, len(there) + 1)
    filled = int(np.flatnonzero(levels >= lowest_first)[-1])
    wanted = np.maximum(0.0, levels[filled] - there)
    return np.diff(np.round(np.append(0.0, np.cumsum(wanted)))).astype(np.int64)


def _places(edges: Floats, counts: NDArray[np.int64]) -> Floats:
    """Return that many times in each part, evenly spaced."""
    return np.concatenate(
        [
            start + (np.arange(count) + 0.5) / count * (end - start)
            for start, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
            if count
        ]
    )


def _later(arrival_s: Floats, places_s: Floats) -> Floats:
    """Give each request a place at or after its time, in order; the last ones get the places at the beginning."""
    skipped = np.searchsorted(places_s, arrival_s) - np.arange(len(arrival_s))
    return np.roll(places_s, -max(0, int(skipped.max(initial=0))))
