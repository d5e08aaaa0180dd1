"""Who is turned away: requests that find too many before them, and those that have waited too long to begin.

A request that is sent to a replica is turned away where as many wait there as its class allows, counting those that
are as urgent or more: they are what stands before it. That is whom SGLang turns away with ``--max-queued-requests`` and
priorities, except that there an urgent request also pushes a less urgent one out (``Scheduler._abort_on_queued_limit``,
2026-09). One that no step has worked on within its class's longest wait is shed then: SGLang's
``SGLANG_REQ_WAITING_TIMEOUT``, and the time to live of a request in the flow control of the Gateway API inference
extension (``defaultRequestTTL``), which llm-d runs. vLLM itself limits the requests in flight whatever their priority
(``--max-num-queued-reqs``, vllm-project/vllm#49445, 2026-07).
"""

from typing import NamedTuple

import numpy as np

from tokonomics.serving.compiled import compiled
from tokonomics.serving.sequences import count_abandoned
from tokonomics.serving.state import ENDED, OPEN, SHED, TIMED_OUT, Counts, Floats, Row, World
from tokonomics.traffic.trace import Trace

_NO_LIMIT = np.iinfo(np.int32).max


class WaitLimits(NamedTuple):
    """What the classes of a trace allow each request; None where no class limits anything."""

    shed_s: Floats | None = None
    queue_limit: Counts | None = None


def wait_limits(trace: Trace) -> WaitLimits:
    """When each request is shed if it has not begun, and how many may wait before it."""
    if trace.service is None:
        return WaitLimits()
    waits = np.array([np.inf if one.max_wait_s is None else one.max_wait_s for one in trace.classes])
    queues = np.array([_NO_LIMIT if one.max_queue is None else one.max_queue for one in trace.classes], np.int32)
    return WaitLimits(
        shed_s=trace.arrival_s + waits[trace.service] if np.isfinite(waits).any() else None,
        queue_limit=queues[trace.service] if (queues < _NO_LIMIT).any() else None,
    )


@compiled
def is_full(world: World, place: int, index: int) -> bool:
    """As many wait on a replica before a request as its class allows."""
    if not len(world.queue_limit):
        return False
    request = world.requests[index]
    before = 0
    for urgency in range(request.urgency + 1):
        before += world.waiting[place, urgency]
    return bool(before >= world.queue_limit[index])


@compiled
def turn_away(world: World, place: int, index: int, now_s: float) -> None:
    """A request is shed where it would have waited; what an earlier replica computed for it was in vain."""
    request = world.requests[index]
    request.status = SHED
    request.finish_s = now_s
    request.place = ENDED
    request.replica = place
    count_abandoned(world.replicas[place], request)


@compiled
def leaves_as(request: Row, is_shed: bool) -> int:
    """What becomes of a request whose time is up; OPEN where nothing does: it has ended, or has begun in time."""
    if request.status != OPEN or (is_shed and not np.isnan(request.start_s)):
        return OPEN
    return SHED if is_shed else TIMED_OUT
