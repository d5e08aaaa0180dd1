"""The simulator's clock: arrivals, clients that hang up, replicas that come and go, in order of time.

Replicas work by themselves between the events that concern them; the loop brings a replica up to an event's time, acts,
and leaves it. At one time, replicas come back first, then notices and failures, then clients hang up, the autoscaler
looks, and requests arrive. ``docs/simulator.md`` has the rules in words; ``tests/serving/reference.py`` follows them
one step at a time and must agree.

A replica that fails loses the step in flight and its cache; its requests begin again elsewhere. The autoscaler wants
one replica for so many outstanding requests: upwards at once, after a cold start; downwards only when it has wanted
less for a while (Kubernetes' HorizontalPodAutoscaler). A schedule is a number it never wants less than.
"""

import math
from collections.abc import Callable

import numpy as np

from tokonomics.serving.blocks import empty_cache
from tokonomics.serving.compiled import entry, inlined, wide
from tokonomics.serving.fleet import Autoscale, FleetSettings
from tokonomics.serving.routing import ROUND_ROBIN, in_turn, route
from tokonomics.serving.scheduler import advance, count_busy, cut_run, drain_if_empty, settle
from tokonomics.serving.sequences import count_abandoned
from tokonomics.serving.shedding import leaves_as
from tokonomics.serving.state import (
    ANSWER,
    BOOTING,
    DRAINING,
    ENDED,
    HEAD,
    HELD,
    NONE,
    NOWHERE,
    OFF,
    OPEN,
    QUEUED,
    REFUSED,
    UNSERVED,
    UP,
    Ints,
    Requests,
    Rules,
    Served,
    World,
    new_world,
)
from tokonomics.serving.step_table import StepTable

_SLICES = 200  # parts into which the arrivals are cut to report progress
_UNINTERRUPTED = 50_000
"""Requests, where nobody watches: a tenth of a second or so after which Python hears of Ctrl-C."""
BACK, READY, NOTICE, DOWN, TICK = range(5)  # what happens to replicas, in the order in which it happens at one time


def run(
    requests: Requests,
    table: StepTable,
    rules: Rules,
    fleet: FleetSettings,
    *,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    paid_for: list[tuple[float, int, int]] | None = None,
) -> tuple[Served, World]:
    """Serve all requests; what became of each, and the world after the last (totals and timeline).

    ``paid_for`` is given the number of replicas that are not off, and of those that serve, after each change.
    """
    world = new_world(requests, table, rules, fleet, seed)
    planned = _outages(fleet)
    while True:
        now_s, kind, place = _next_change(world, fleet.autoscale, planned)
        _serve(world, now_s, kind == TICK and now_s < math.inf, progress)
        if now_s == math.inf:
            break
        under_way = world.replicas["outstanding"].sum() > 0 or world.clock["held_first"][0] != NONE
        if world.clock["arrivals"][0] == len(requests.arrival_s) and not under_way:
            # Steps whose clients have all hung up run to their end.
            _serve(world, math.inf, False, progress)
            break
        if kind in (BACK, READY):
            _come_up(world, place, now_s)
        elif kind == NOTICE:
            if world.replicas["mode"][place] == UP:
                world.replicas["mode"][place] = DRAINING
        elif kind == DOWN:
            _go_down(world, place, now_s)
        elif fleet.autoscale:
            world.clock["ticks"] += 1
            _scale(world, fleet.autoscale, now_s)
        if kind in (BACK, NOTICE, DOWN):
            planned.pop()
        if world.clock["held_first"][0] != NONE:
            time_s, following, _ = _next_change(world, fleet.autoscale, planned)
            if time_s > now_s or following not in (BACK, READY):  # all that come up at once, come up first
                _route_held(world, now_s)
        if paid_for is not None:
            mode = world.replicas["mode"]
            paid_for.append((now_s, int(np.count_nonzero(mode != OFF)), int(np.count_nonzero(mode == UP))))
    status = world.requests["status"]
    status[status == OPEN] = UNSERVED
    return Served(**{name: np.ascontiguousarray(world.requests[name]) for name in Served._fields}), world


def _outages(fleet: FleetSettings) -> list[tuple[float, int, int]]:
    """Notices, failures and returns as time, kind and replica, the last first."""
    events = []
    for outage in fleet.outages:
        events.append((max(0.0, outage.at_s - outage.notice_s), NOTICE, outage.replica))
        events.append((outage.at_s, DOWN, outage.replica))
        events.append((outage.back_s, BACK, outage.replica))
    return sorted((event for event in events if event[0] < math.inf), reverse=True)


def _next_change(world: World, rule: Autoscale | None, planned: list[tuple[float, int, int]]) -> tuple[float, int, int]:
    """When a replica comes, goes or is told to, or the autoscaler looks: time, kind, replica."""
    if rule is None:
        return planned[-1] if planned else (math.inf, TICK, NONE)
    ready_s = world.replicas["ready_s"]
    soonest = int(ready_s.argmin())
    tick_s = float((world.clock["ticks"][0] + 1) * rule.interval_s)
    return min((float(ready_s[soonest]), READY, soonest), (tick_s, TICK, NONE))


def _serve(world: World, until_s: float, deadlines_too: bool, progress: Callable[[int], None] | None) -> None:
    """Everything that happens before ``until_s``; in parts, so that progress can be shown and Ctrl-C be heard."""
    count = len(world.requests)
    part = max(1 if progress else _UNINTERRUPTED, count // _SLICES)
    stop = part
    while not serve_until(world, min(stop, count), until_s, deadlines_too):
        if progress:
            progress(min(stop, count))
        stop += part
    if progress:
        progress(int(world.clock["arrivals"][0]))


@entry
def serve_until(world: World, stop: int, until_s: float, deadlines_too: bool) -> bool:
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
            deadline = world.due_s[clock.deadlines]
        hangs_up = deadline <= arrival and (deadline < until_s or (deadlines_too and deadline == until_s))
        arrives = not hangs_up and arrival < until_s
        if arrives and clock.arrivals >= stop:
            return False
        # Only the replicas that an event looks at are brought up to its time.
        first, last = wide(0), wide(len(replicas) - 1)
        now = until_s
        if hangs_up:
            now = deadline
            whom = world.impatient[clock.deadlines]
            first = last = wide(requests[whom if whom >= 0 else -1 - whom].replica)
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
def _hang_up(world: World, whom: int, now_s: float) -> None:
    """A client has waited long enough; or a request is shed, having waited as long as its class does (-1 less it)."""
    index = whom if whom >= 0 else -1 - whom
    request = world.requests[index]
    placed = request.place != HELD and request.place != NOWHERE
    how = leaves_as(request, whom < 0)
    if how == OPEN:
        return
    request.status = how
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
        world.waiting[place, request.urgency] -= 1
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


def _come_up(world: World, place: int, now_s: float) -> None:
    """A replica is there."""
    replicas = world.replicas
    replicas["mode"][place] = UP
    replicas["ready_s"][place] = np.inf
    if replicas["run_steps"][place] == 0:
        replicas["time_s"][place] = max(replicas["time_s"][place], now_s)


def _route_held(world: World, now_s: float) -> None:
    """Requests that waited for a replica find one, or go on waiting."""
    first, arrived = int(world.clock["held_first"][0]), int(world.clock["arrivals"][0])
    world.clock["held_first"], world.clock["held"] = NONE, 0
    _route_all(world, first + np.flatnonzero(world.requests["place"][first:arrived] == HELD), now_s)


@entry
def _route_all(world: World, indices: Ints, now_s: float) -> None:
    for place in range(len(indices)):
        route(world, indices[place], now_s)


def _go_down(world: World, place: int, now_s: float) -> None:
    """A replica fails: the step in flight and the cache are lost, its requests begin again elsewhere."""
    _lose_step(world, place, now_s)
    replica, slots, requests = world.replicas[place], world.slots[place], world.requests
    running = slots[slots["request"] != NONE]
    running = running[np.argsort(running["order"])]
    for index, end in zip(running["request"], running["end"], strict=True):
        if requests["place"][index] == ANSWER:
            requests["generated"][index] = requests["output_tokens"][index] - (end - replica["steps"])
    requests["place"][running["request"]], requests["slot"][running["request"]] = ENDED, NONE
    queued = []
    for index in world.queues[place, :, HEAD]:
        while index != NONE:
            queued.append(index)
            index = requests["following"][index]
    waiting = np.array(queued, np.int64)
    waiting = waiting[requests["status"][waiting] == OPEN]
    left = np.concatenate([running["request"].astype(np.int64), waiting])
    replica["answer_lost"] += np.maximum(requests["generated"][left] - 1, 0).sum()
    moved = left[requests["status"][left] == OPEN]
    zeros = ("run_steps", "running", "decoding", "base_tokens", "outstanding", "told", "front_end_s", "partials")
    emptied = dict.fromkeys(zeros, 0) | dict.fromkeys(("leaving", "front_first"), NONE) | {"mode": OFF}
    for name, value in emptied.items():
        replica[name] = value
    slots["request"], slots["free"] = NONE, np.arange(len(slots))[::-1]
    world.phases[place], world.queues[place, :, HEAD], world.waiting[place] = 0, NONE, 0
    empty_cache(world, place)
    for name in ("computed", "generated", "target", "blocks", "shared_blocks"):
        requests[name][moved] = 0
    requests["restarts"][moved] += 1
    requests["first_token_s"][moved] = np.nan
    for first, units in zip(requests["first_unit"][moved], requests["units"][moved], strict=True):
        world.held[first : first + units] = 0
    _route_all(world, moved, now_s)


@entry
def _lose_step(world: World, place: int, now_s: float) -> None:
    settle(world, place, now_s)
    replica = world.replicas[place]
    if replica.run_steps > 0:
        replica.lost_s += now_s - replica.run_start_s
        replica.time_s = now_s
        count_busy(world, place, now_s, wide(0))


def _scale(world: World, rule: Autoscale, now_s: float) -> None:
    """The autoscaler looks: one replica for so many outstanding requests, at once upwards, downwards after a while."""
    replicas, ticks = world.replicas, int(world.clock["ticks"][0])
    mode = replicas["mode"]
    outstanding = int(replicas["outstanding"].sum() + world.clock["held"][0])
    # However small the target: what is divided by it may be more than any number.
    by_load = 0 if rule.target is None else math.ceil(min(outstanding / rule.target, rule.max_replicas))
    wanted = max(by_load, rule.least(now_s))
    wanted = min(wanted, rule.max_replicas)
    world.wanted[(ticks - 1) % len(world.wanted)] = wanted
    current, kept = int(np.count_nonzero((mode == BOOTING) | (mode == UP))), int(world.wanted[:ticks].max())
    if wanted <= current <= kept:
        return
    for place in np.flatnonzero(mode == DRAINING)[: max(0, wanted - current)]:
        current += 1
        _come_up(world, int(place), now_s)
    for place in np.flatnonzero(mode == OFF)[: max(0, wanted - current)]:
        current += 1
        mode[place] = BOOTING
        replicas["ready_s"][place] = now_s + rule.cold_start_s
        replicas["paid_from_s"][place] = now_s
    surplus = [*np.flatnonzero(mode == BOOTING)[::-1], *np.flatnonzero(mode == UP)[::-1]]
    for place in surplus[: max(0, current - kept)]:
        replicas["ready_s"][place] = np.inf
        mode[place] = DRAINING
        drain_if_empty(world, int(place), now_s)
