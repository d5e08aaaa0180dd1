"""Decide when clients send: at a planned time, after an answer, or again after a time-out.

In a closed loop requests wait for others. A request is sent when its client has received the last answer it waits for
and has paused. If one of those failed it is never sent, and neither is what waits for it. A request that timed out or
was turned away and has attempts left is sent again after a backoff that doubles each time, as a row of its own: attempt
``k`` (from 0) of request ``i`` of ``n`` is row ``i + k × n``. Known sends and deadlines lie in two binary heaps,
soonest first and at the same time the lowest row first; those planned from the beginning are found in the order of the
trace.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.serving.compiled import compiled, entry, wide
from tokonomics.serving.state import DEADLINES, ENDED, NONE, OPEN, SENDS, UNSERVED, Requests, Row, Rows, World


def with_attempts(requests: Requests, attempts: int, backoff_s: float) -> Requests:
    """Return requests whose clients send up to ``attempts`` times."""
    if attempts == 1:
        return requests
    names = ["arrival_s", "input_tokens", "output_tokens", "urgency", "deadline_s"]
    names += ["unit_ids", "unit_ends"]
    names += [name for name in ("fetched", "shed_s", "queue_limit") if getattr(requests, name) is not None]
    rows: dict[str, Any] = {name: np.tile(getattr(requests, name), attempts) for name in names}
    ends = [requests.unit_starts[1:] + attempt * len(requests.unit_ids) for attempt in range(attempts)]
    starts = np.concatenate([requests.unit_starts[:1], *ends])
    return requests._replace(**rows, unit_starts=starts, attempts=attempts, backoff_s=backoff_s)


@compiled
def next_send(world: World) -> int:
    """Return the row to send next, of those with a known time; NONE if there is none."""
    clock, turns = world.clock[0], world.turns
    while clock.arrivals < len(turns) and not turns[clock.arrivals].planned:
        clock.arrivals += 1
    planned = clock.arrivals if clock.arrivals < len(turns) else wide(NONE)
    if clock.sends == 0:
        return planned
    top = world.events[SENDS][0]
    if planned == NONE:
        return wide(top.row)
    planned_s = world.requests[planned].arrival_s
    return planned if planned_s < top.time_s or (planned_s == top.time_s and planned < top.row) else wide(top.row)


@compiled
def send_s(world: World, row: int) -> float:
    if row == NONE:
        return np.inf
    return float(world.requests[row].arrival_s if _is_planned(world, row) else world.events[SENDS][0].time_s)


@compiled
def _is_planned(world: World, row: int) -> bool:
    return row < len(world.turns) and bool(world.turns[row].planned)


@compiled
def send(world: World, row: int, now_s: float) -> None:
    """Let a client send, and begin to wait."""
    clock, request = world.clock[0], world.requests[row]
    if _is_planned(world, row):
        clock.arrivals += 1
    else:
        clock.sends -= 1
        _pop(world.events[SENDS], clock.sends)
    turn = world.turns[row % len(world.turns)]
    turn.attempts += 1
    request.arrival_s = now_s
    request.deadline_s = max(now_s, now_s + turn.patience_s)
    if request.status != OPEN:
        return
    if request.deadline_s < np.inf:
        _push(world.events[DEADLINES], clock.deadlines, request.deadline_s, row)
        clock.deadlines += 1
    if turn.longest_wait_s < np.inf:
        shed_s = max(now_s, now_s + turn.longest_wait_s)
        _push(world.events[DEADLINES], clock.deadlines, shed_s, len(world.requests) + row)
        clock.deadlines += 1


@compiled
def next_deadline(world: World) -> int:
    """Return the row whose client hangs up next, or -1 - row for the one turned away next."""
    whom = wide(world.events[DEADLINES][0].row)
    return whom if whom < len(world.requests) else len(world.requests) - 1 - whom


@compiled
def deadline_s(world: World) -> float:
    """Return when that happens; infinite if never."""
    return float(world.events[DEADLINES][0].time_s) if world.clock[0].deadlines > 0 else np.inf


@compiled
def pass_deadline(world: World) -> None:
    clock = world.clock[0]
    clock.deadlines -= 1
    _pop(world.events[DEADLINES], clock.deadlines)


@compiled
def try_again(world: World, row: int, now_s: float) -> None:
    """Let a client that hung up or was turned away send again after a while, or give up."""
    clock, settings, count = world.clock[0], world.settings[0], len(world.turns)
    attempt = row // count
    if attempt + 1 < settings.attempts:
        _push(world.events[SENDS], clock.sends, now_s + settings.backoff_s * float(1 << attempt), row + count)
        clock.sends += 1
    else:
        hear(world, row, now_s, False)


@compiled
def hear(world: World, row: int, at_s: float, done: bool) -> None:
    """End a request for its client: those that wait for it are sent after a pause, or never if it failed."""
    clock, turns, requests = world.clock[0], world.turns, world.requests
    if clock.released < len(turns) and world.settings[0].users > 0:
        _push(world.events[SENDS], clock.sends, at_s, clock.released)
        clock.sends += 1
        clock.released += 1
        clock.waiting -= 1
    ended = last = row % len(turns)
    turns[last].following = NONE
    while ended != NONE:
        first = turns[ended].first_child
        for listed in range(first, first + turns[ended].children):
            child = wide(world.children[listed])
            turn = turns[child]
            turn.waits -= 1
            turn.ready_s = max(turn.ready_s, at_s)
            turn.doomed = turn.doomed or not done
            if turn.waits > 0:
                continue
            clock.waiting -= 1
            if not turn.doomed:
                _push(world.events[SENDS], clock.sends, turn.ready_s + turn.pause_s, child)
                clock.sends += 1
                continue
            requests[child].arrival_s = turn.ready_s
            requests[child].finish_s = turn.ready_s
            requests[child].status = UNSERVED
            requests[child].place = ENDED
            turns[last].following = child
            turn.following = NONE
            last = child
        done = False
        ended = wide(turns[ended].following)
        if ended != NONE:
            at_s = turns[ended].ready_s


@entry
def never_heard(world: World, rows: NDArray[np.int64]) -> None:
    """Mark these as never served: what waits for them is never sent."""
    for place in range(len(rows)):
        hear(world, rows[place], world.requests[rows[place]].arrival_s, False)


@compiled
def _sooner(event: Row, other: Row) -> bool:
    return bool(event.time_s < other.time_s or (event.time_s == other.time_s and event.row < other.row))


@compiled
def _push(heap: Rows, size: int, time_s: float, row: int) -> None:
    """Add an event to a heap with ``size`` events."""
    place = wide(size)
    while place > 0:
        above = heap[(place - 1) // 2]
        if above.time_s < time_s or (above.time_s == time_s and above.row < row):
            break
        heap[place].time_s = above.time_s
        heap[place].row = above.row
        place = (place - 1) // 2
    heap[place].time_s = time_s
    heap[place].row = row


@compiled
def _pop(heap: Rows, size: int) -> None:
    """Remove the first event of a heap, which has ``size`` left afterwards: the last one sinks from its place."""
    last = heap[size]
    place = wide(0)
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _sooner(heap[below + 1], heap[below]):
            below += 1
        if not _sooner(heap[below], last):
            break
        heap[place].time_s = heap[below].time_s
        heap[place].row = heap[below].row
        place = below
    heap[place].time_s = last.time_s
    heap[place].row = last.row
