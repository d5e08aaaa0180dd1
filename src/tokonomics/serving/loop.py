"""Run the simulator's clock: arrivals, clients that hang up, replicas that come and go, in order of time.

Replicas work by themselves between the events that concern them; the loop brings a replica up to an event's time, acts,
and leaves it. At the same time, replicas come back first, then notices and failures, then clients hang up, the
autoscaler acts, and requests arrive. ``docs/simulator.md`` explains the rules; ``tests/serving/reference.py`` follows
them one step at a time and must agree.

A replica that fails loses the step in flight and its cache; its requests begin again elsewhere. The autoscaler wants
one replica per ``target`` outstanding requests: upwards at once, after a cold start; downwards only after it has wanted
less for a while (Kubernetes' HorizontalPodAutoscaler). A schedule sets the least that it wants.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tokonomics.serving.blocks import empty_cache
from tokonomics.serving.compiled import compiled, entry, wide
from tokonomics.serving.fleet_settings import Autoscale, FleetSettings
from tokonomics.serving.routing import ROUND_ROBIN, in_turn, leaves_as, route
from tokonomics.serving.scheduler import advance, count_busy, cut_run, drain_if_empty, settle, tell
from tokonomics.serving.sends import (
    deadline_s,
    hear,
    never_heard,
    next_deadline,
    next_send,
    pass_deadline,
    send,
    send_s,
    try_again,
)
from tokonomics.serving.sequences import count_abandoned
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
    Row,
    Rows,
    Rules,
    Served,
    World,
    in_cache,
    new_world,
)
from tokonomics.serving.step_table import StepTable

_SLICES = 200  # parts of the arrivals, to report progress
_UNINTERRUPTED = 50_000  # requests per part without a watcher: about a tenth of a second until Python notices Ctrl-C
_LOOKS = 16
"""How often to check whether the requests so far settle the question: a check takes a thousandth of the whole run."""
BACK, READY, NOTICE, DOWN, TICK = range(5)  # events of replicas, in their order at the same time


class Watcher(NamedTuple):
    """Callbacks of a run, which show progress and may end it.

    ``progress`` gets the number of requests that have come; ``is_settled`` gets those so far, as rows of
    ``state.REQUEST``, and says whether they are enough.
    """

    progress: Callable[[int], None] | None = None
    is_settled: Callable[[Rows], bool] | None = None


NOBODY = Watcher()


def run(
    requests: Requests,
    table: StepTable,
    rules: Rules,
    fleet: FleetSettings,
    *,
    seed: int = 0,
    watch: Watcher = NOBODY,
    paid_for: list[tuple[float, int, int]] | None = None,
) -> tuple[Served, World]:
    """Serve all requests; return the outcome of each, and the world after the last (totals and timeline).

    ``paid_for`` receives the number of replicas that are not off, and of those that serve, after each change. If the
    watcher says that the question is settled, the other requests are left unserved.
    """
    world = new_world(requests, table, rules, fleet, seed)
    planned = _outages(fleet)
    while True:
        now_s, kind, place = _next_change(world, fleet.autoscale, planned)
        served = _serve(world, now_s, kind == TICK and now_s < math.inf, watch)
        if now_s == math.inf or not served:
            break
        under_way = world.replicas["outstanding"].sum() > 0 or world.clock["held_first"][0] != NONE
        if not under_way and _all_came(world):
            # Steps run to their end even if all their clients have hung up.
            _serve(world, math.inf, False, watch)
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
            if time_s > now_s or following not in (BACK, READY):  # replicas that come up at the same time come up first
                _route_held(world, now_s)
        if paid_for is not None:
            mode = world.replicas["mode"]
            paid_for.append((now_s, int(np.count_nonzero(mode != OFF)), int(np.count_nonzero(mode == UP))))
    return served_in(world), world


def _all_came(world: World) -> bool:
    clock = world.clock[0]
    if not world.settings["closed"][0]:
        return bool(clock["arrivals"] == len(world.requests))
    return bool(clock["arrivals"] == len(world.turns) and clock["sends"] == 0 and clock["waiting"] == 0)


def served_in(world: World) -> Served:
    """Return the final outcome of each request; one without a replica now never gets one."""
    rows, attempts = world.requests, np.ones(len(world.requests), np.int16)
    if world.settings["closed"][0]:
        held = np.flatnonzero(rows["place"] == HELD)
        never_heard(world, held)
        count, attempts = len(world.turns), world.turns["attempts"]
        last = np.arange(count) + np.maximum(attempts.astype(np.int64) - 1, 0) * count
        first_s = rows["arrival_s"][:count]
        rows = rows[last]
        rows["arrival_s"] = first_s
    rows["status"][rows["status"] == OPEN] = UNSERVED
    columns = {name: np.empty(len(rows), rows.dtype[name]) for name in Served._fields if name != "attempts"}
    for some in in_cache(len(rows)):
        for name, column in columns.items():
            column[some] = rows[name][some]
    return Served(**columns, attempts=attempts)


def _outages(fleet: FleetSettings) -> list[tuple[float, int, int]]:
    """Return notices, failures and returns as time, kind and replica, the last first."""
    events = []
    for outage in fleet.outages:
        events.append((max(0.0, outage.at_s - outage.notice_s), NOTICE, outage.replica))
        events.append((outage.at_s, DOWN, outage.replica))
        events.append((outage.back_s, BACK, outage.replica))
    return sorted((event for event in events if event[0] < math.inf), reverse=True)


def _next_change(world: World, rule: Autoscale | None, planned: list[tuple[float, int, int]]) -> tuple[float, int, int]:
    """Return the next change as time, kind and replica: one comes, goes or gets notice, or the autoscaler acts."""
    if rule is None:
        return planned[-1] if planned else (math.inf, TICK, NONE)
    ready_s = world.replicas["ready_s"]
    soonest = int(ready_s.argmin())
    tick_s = float((world.clock["ticks"][0] + 1) * rule.interval_s)
    return min((float(ready_s[soonest]), READY, soonest), (tick_s, TICK, NONE))


def _serve(world: World, until_s: float, deadlines_too: bool, watch: Watcher) -> bool:
    """Run everything before ``until_s``, in parts, so that progress can be shown and Ctrl-C works.

    Return False if the requests so far settled the question.
    """
    progress, is_settled = watch
    count = len(world.requests) // int(world.settings["attempts"][0])
    part = max(1 if progress else _UNINTERRUPTED, count // _SLICES)
    if is_settled:
        part = max(1, min(part, count // _LOOKS))
    stop = part
    while not serve_until(world, stop, until_s, deadlines_too):
        if progress:
            progress(min(stop, count))
        # Later attempts of the same requests have rows after those: they only delay the end.
        if is_settled and is_settled(world.requests[: min(stop, count)]):
            return False
        stop += part
    if progress:
        progress(min(int(world.clock["came"][0]), count))
    return True


@entry
def serve_until(world: World, stop: int, until_s: float, deadlines_too: bool) -> bool:
    """Handle events before ``until_s``; return False if it stopped because ``stop`` requests have arrived."""
    clock, requests, replicas = world.clock[0], world.requests, world.replicas
    by_turn, closed = world.settings[0].router == ROUND_ROBIN, world.settings[0].closed
    stuck = False  # whether no replica can work before the next event
    while True:
        if closed:
            coming = next_send(world)
            arrival, deadline, whom = send_s(world, coming), deadline_s(world), next_deadline(world)
        else:
            coming, whom = clock.arrivals, wide(0)
            arrival = requests[coming].arrival_s if coming < len(requests) else np.inf
            deadline = np.inf
            if clock.deadlines < len(world.impatient):
                deadline, whom = world.due_s[clock.deadlines], world.impatient[clock.deadlines]
        hangs_up = deadline <= arrival and (deadline < until_s or (deadlines_too and deadline == until_s))
        arrives = not hangs_up and arrival < until_s
        if arrives and clock.came >= stop:
            return False
        now = deadline if hangs_up else arrival if arrives else until_s
        # An answer may trigger another request before then: advance to the next moment that may bring one.
        moment = _soonest(replicas) if closed and clock.waiting > 0 and not stuck else np.inf
        works = moment < now
        # Only the replicas that an event concerns are brought up to its time.
        first, last = wide(0), wide(len(replicas) - 1)
        if works:
            now = _just_after(moment)
        elif hangs_up:
            first = last = wide(requests[whom if whom >= 0 else -1 - whom].replica)
        elif arrives and by_turn:
            first = last = in_turn(world)
        stuck = works
        for place in range(max(first, 0), last + 1):
            if works and _next_moment(replicas[place]) != moment:
                continue
            advance(world, place, now)
            stuck = stuck and _next_moment(replicas[place]) == moment
        if works:
            continue
        if hangs_up:
            _pass(world, whom, now)
        elif arrives:
            _arrive(world, coming, now)
        else:
            return True


@compiled
def _just_after(time_s: float) -> float:
    """Return the next float after a time of 0 or more."""
    return float(np.int64(np.float64(time_s).view(np.int64) + 1).view(np.float64))


@compiled
def _soonest(replicas: Rows) -> float:
    """Return the next moment at which a replica may answer."""
    soonest = np.inf
    for place in range(len(replicas)):
        soonest = min(soonest, _next_moment(replicas[place]))
    return soonest


@compiled
def _next_moment(replica: Row) -> float:
    """Return when a replica ends a step, or may begin one and report the last."""
    if replica.run_steps > 0:
        return float(replica.run_end_s)
    return float(replica.time_s) if replica.told > 0 or replica.outstanding > 0 else np.inf


@compiled
def _arrive(world: World, index: int, now_s: float) -> None:
    """Let a request arrive, unless it is turned away or its client has already hung up."""
    clock, request, closed = world.clock[0], world.requests[index], world.settings[0].closed
    clock.came += 1
    if closed:
        send(world, index, now_s)
    else:
        clock.arrivals += 1
    if request.status == OPEN:
        route(world, index, now_s)
    elif request.status == REFUSED:
        request.finish_s = now_s
        if closed:
            hear(world, index, now_s, False)


@compiled
def _pass(world: World, whom: int, now_s: float) -> None:
    """Handle a deadline: a client's patience or a request's longest wait is over; it may be sent again."""
    request, closed = world.requests[whom if whom >= 0 else -1 - whom], world.settings[0].closed
    waited = request.status == OPEN
    if closed:
        pass_deadline(world)
    else:
        world.clock[0].deadlines += 1
    _hang_up(world, whom, now_s)
    if closed and waited and request.status != OPEN:
        try_again(world, whom if whom >= 0 else -1 - whom, now_s)


@compiled
def _hang_up(world: World, whom: int, now_s: float) -> None:
    """Remove a request whose client hangs up, or one (given as -1 - request) that is shed after its longest wait."""
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
        # It may have been the one that blocked the queue: the next one gets its chance.
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
    replicas = world.replicas
    replicas["mode"][place] = UP
    replicas["ready_s"][place] = np.inf
    if replicas["run_steps"][place] == 0:
        replicas["time_s"][place] = max(replicas["time_s"][place], now_s)


def _route_held(world: World, now_s: float) -> None:
    """Route the requests that waited for a replica, or let them wait on."""
    first = int(world.clock["held_first"][0])
    until = len(world.requests) if world.settings["closed"][0] else int(world.clock["arrivals"][0])
    world.clock["held_first"], world.clock["held"] = NONE, 0
    _route_all(world, first + np.flatnonzero(world.requests["place"][first:until] == HELD), now_s)


@entry
def _route_all(world: World, indices: Ints, now_s: float) -> None:
    for place in range(len(indices)):
        route(world, indices[place], now_s)


def _go_down(world: World, place: int, now_s: float) -> None:
    """Let a replica fail: the step in flight and the cache are lost, and its requests begin again elsewhere."""
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
    tell(world, place, replica.told_s)
    if replica.run_steps > 0:
        replica.lost_s += now_s - replica.run_start_s
        replica.time_s = now_s
        count_busy(world, place, now_s, wide(0), wide(0))
    # It may have been waiting for its front end, which now has no requests.
    replica.time_s = min(replica.time_s, now_s)


def _scale(world: World, rule: Autoscale, now_s: float) -> None:
    """Let the autoscaler act: one replica per ``target`` outstanding requests, up at once, down after a while."""
    replicas, ticks = world.replicas, int(world.clock["ticks"][0])
    mode = replicas["mode"]
    outstanding = int(replicas["outstanding"].sum() + world.clock["held"][0])
    # With a tiny target, the quotient may exceed any integer.
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
