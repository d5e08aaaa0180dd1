"""The simulator's clock: arrivals, clients that hang up, replicas that come and go, in order of time.

Replicas work by themselves between the events that concern them; the loop brings a replica up to an event's time, acts,
and leaves it. At one time, replicas come back first, then notices and failures, then clients hang up, the autoscaler
looks, and requests arrive. ``docs/simulator.md`` has the rules in words; ``tests/serving/reference.py`` follows them
one step at a time and must agree.
"""

import math
from collections.abc import Callable

import numpy as np

from tokonomics.serving.changes import come_up, go_down, route_held, scale
from tokonomics.serving.compiled import entry, inlined, wide
from tokonomics.serving.routing import ROUND_ROBIN, in_turn, route
from tokonomics.serving.scheduler import advance, cut_run, drain_if_empty
from tokonomics.serving.state import (
    DRAINING,
    ENDED,
    HELD,
    NONE,
    NOWHERE,
    OFF,
    OPEN,
    QUEUED,
    REFUSED,
    TIMED_OUT,
    UNSERVED,
    UP,
    Fleet,
    Requests,
    Rules,
    Served,
    World,
    new_world,
    served_by,
)
from tokonomics.serving.step_table import StepTable
from tokonomics.serving.work import count_abandoned

_SLICES = 200
"""Parts into which the arrivals are cut to report progress."""
_UNINTERRUPTED = 50_000
"""Requests, where nobody watches: a tenth of a second or so after which Python hears of Ctrl-C."""
BACK, READY, NOTICE, DOWN, TICK = range(5)
"""What happens to replicas, in the order in which it happens at one time."""


def run(
    requests: Requests,
    table: StepTable,
    rules: Rules,
    fleet: Fleet,
    progress: Callable[[int], None] | None = None,
    paid_for: list[tuple[float, int]] | None = None,
) -> tuple[Served, World]:
    """Serve all requests; what became of each, and the world after the last (totals and timeline).

    ``paid_for`` is given the number of replicas that are not off after each change.
    """
    world = new_world(requests, table, rules, fleet)
    planned = _outages(fleet)
    while True:
        now_s, kind, place = _next_change(world, fleet, planned)
        _serve(world, now_s, kind == TICK and now_s < math.inf, progress)
        done = world.clock["arrivals"][0] == len(requests.arrival_s) and not _unfinished(world)
        if now_s == math.inf:
            break
        if done:
            # Steps whose clients have all hung up run to their end.
            _serve(world, math.inf, False, progress)
            break
        if kind in (BACK, READY):
            come_up(world, place, now_s)
        elif kind == NOTICE:
            if world.replicas["mode"][place] == UP:
                world.replicas["mode"][place] = DRAINING
        elif kind == DOWN:
            go_down(world, place, now_s)
        else:
            world.clock["ticks"] += 1
            scale(world, now_s)
        if kind in (BACK, NOTICE, DOWN):
            planned.pop()
        if world.clock["held_first"][0] != NONE and not _more_come(world, fleet, planned, now_s):
            route_held(world, now_s)
        if paid_for is not None:
            paid_for.append((now_s, int(np.count_nonzero(world.replicas["mode"] != OFF))))
    status = world.requests["status"]
    status[status == OPEN] = UNSERVED
    return served_by(world), world


def _outages(fleet: Fleet) -> list[tuple[float, int, int]]:
    """Notices, failures and returns, the last first."""
    rows = [
        (float(time_s), kind, int(row[0]))
        for row in fleet.outages
        for time_s, kind in zip(row[1:], (NOTICE, DOWN, BACK), strict=True)
    ]
    return sorted((row for row in rows if row[0] < math.inf), reverse=True)


def _next_change(world: World, fleet: Fleet, planned: list[tuple[float, int, int]]) -> tuple[float, int, int]:
    """When a replica comes, goes or is told to, or the autoscaler looks: time, kind, replica."""
    if len(fleet.autoscale) == 0:
        return planned[-1] if planned else (math.inf, TICK, NONE)
    ready_s = world.replicas["ready_s"]
    soonest = int(ready_s.argmin())
    tick_s = float((world.clock["ticks"][0] + 1) * world.settings["interval_s"][0])
    return min((float(ready_s[soonest]), READY, soonest), (tick_s, TICK, NONE))


def _more_come(world: World, fleet: Fleet, planned: list[tuple[float, int, int]], now_s: float) -> bool:
    """Another replica comes up at the same time."""
    time_s, kind, _ = _next_change(world, fleet, planned)
    return time_s == now_s and kind in (BACK, READY)


def _unfinished(world: World) -> bool:
    return bool(world.replicas["outstanding"].sum() > 0 or world.clock["held_first"][0] != NONE)


def _serve(world: World, until_s: float, deadlines_too: bool, progress: Callable[[int], None] | None) -> None:
    """Everything that happens before ``until_s``; in parts, so that progress can be shown and Ctrl-C be heard."""
    count = len(world.requests)
    part = max(1 if progress else _UNINTERRUPTED, count // _SLICES)
    stop = part
    while not _serve_until(world, min(stop, count), until_s, deadlines_too):
        if progress:
            progress(min(stop, count))
        stop += part
    if progress:
        progress(int(world.clock["arrivals"][0]))


@entry
def _serve_until(world: World, stop: int, until_s: float, deadlines_too: bool) -> bool:
    """Handle events before ``until_s``; False when it stopped because ``stop`` requests have arrived."""
    clock, requests, replicas = world.clock[0], world.requests, world.replicas
    by_turn = world.settings[0].router == ROUND_ROBIN
    while True:
        arrival = requests[clock.arrivals].arrival_s if clock.arrivals < len(requests) else np.inf
        if arrival == np.inf and clock.arrivals < len(requests):
            # The next request of a closed loop is sent when another has been answered.
            replica, released = replicas[0], clock.released
            working, soonest = replica.run_steps > 0, replica.run_end_s if replica.run_steps > 0 else replica.time_s
            advance(world, wide(0), np.nextafter(soonest, np.inf))
            if working or replica.run_steps > 0 or replica.time_s > soonest or clock.released > released:
                continue
            return True  # nobody is left to answer: the rest is never sent
        deadline = np.inf
        if clock.deadlines < len(world.impatient):
            deadline = requests[world.impatient[clock.deadlines]].deadline_s
        hangs_up = deadline <= arrival and (deadline < until_s or (deadlines_too and deadline == until_s))
        arrives = not hangs_up and arrival < until_s
        if arrives and clock.arrivals >= stop:
            return False
        # Only the replicas that an event looks at are brought up to its time.
        first, last = wide(0), wide(len(replicas) - 1)
        now = until_s
        if hangs_up:
            now = deadline
            first = last = wide(requests[world.impatient[clock.deadlines]].replica)
        elif arrives:
            now = arrival
            if by_turn:
                first = last = in_turn(world)
        for place in range(max(first, 0), last + 1):
            advance(world, place, now)
        if hangs_up:
            clock.deadlines += 1
            _hang_up(world, world.impatient[clock.deadlines - 1], now)
        elif arrives:
            clock.arrivals += 1
            _arrive(world, clock.arrivals - 1, now)
        else:
            return True


@inlined
def _arrive(world: World, index: int, now_s: float) -> None:
    """A request comes in, unless it is turned away or its client has hung up before."""
    clock, request = world.clock[0], world.requests[index]
    if request.status == OPEN:
        route(world, index, now_s)
    elif request.status == REFUSED:
        request.finish_s = now_s
        if clock.released < len(world.requests) and world.settings[0].users > 0:
            # Refused at once: its user goes on to the next, after those that are on their way.
            world.requests[clock.released].arrival_s = max(now_s, world.requests[clock.released - 1].arrival_s)
            clock.released += 1


@inlined
def _hang_up(world: World, index: int, now_s: float) -> None:
    """The client of a request has waited long enough."""
    request = world.requests[index]
    placed = request.place != HELD and request.place != NOWHERE
    if request.status != OPEN:
        return
    request.status = TIMED_OUT
    request.finish_s = now_s
    if not placed:
        world.clock[0].held -= request.place == HELD
        request.place = ENDED
        return
    place = wide(request.replica)
    replica = world.replicas[place]
    replica.outstanding -= 1
    if request.place == QUEUED:
        request.place = ENDED
        count_abandoned(replica, request)
        # It may have been the one for whom there was no room: the next in the queue gets its chance.
        cut_run(world, place, now_s, False)
        drain_if_empty(world, place, now_s)
        return
    request.following = NONE
    if replica.leaving == NONE:
        replica.leaving = index
    else:
        last = replica.leaving
        while world.requests[last].following != NONE:
            last = world.requests[last].following
        world.requests[last].following = index
    cut_run(world, place, now_s, False)
