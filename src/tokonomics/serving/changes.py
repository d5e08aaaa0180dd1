"""What happens to replicas: they come, fail, and are started and stopped by an autoscaler.

All replicas have been brought up to the time of the change. A replica that fails loses the step in flight and its
cache; its requests begin again elsewhere. The autoscaler wants one replica for so many outstanding requests: upwards
at once, after a cold start; downwards only when it has wanted less for a while (Kubernetes' HorizontalPodAutoscaler).
"""

import math

import numpy as np

from tokonomics.serving.blocks import empty_cache
from tokonomics.serving.compiled import compiled, entry, wide
from tokonomics.serving.routing import route
from tokonomics.serving.scheduler import drain_if_empty, settle
from tokonomics.serving.sequences import queue_front
from tokonomics.serving.state import (
    ANSWER,
    BOOTING,
    DRAINING,
    ENDED,
    HEAD,
    NONE,
    OFF,
    OPEN,
    UP,
    Rows,
    World,
)
from tokonomics.serving.work import count_busy


def come_up(world: World, place: int, now_s: float) -> None:
    """A replica is there."""
    replicas = world.replicas
    replicas["mode"][place] = UP
    replicas["ready_s"][place] = np.inf
    if replicas["run_steps"][place] == 0:
        replicas["time_s"][place] = max(replicas["time_s"][place], now_s)


@entry
def route_held(world: World, now_s: float) -> None:
    """Requests that waited for a replica find one, or go on waiting."""
    clock = world.clock[0]
    index = clock.held_first
    clock.held_first = NONE
    clock.held_latest = NONE
    clock.held = 0
    while index != NONE:
        following = wide(world.requests[index].following)
        if world.requests[index].status == OPEN:
            route(world, index, now_s)
        index = following


@entry
def go_down(world: World, place: int, now_s: float) -> None:
    """A replica fails: the step in flight and the cache are lost, its requests begin again elsewhere."""
    settle(world, place, now_s)
    replica, slots, requests, settings = world.replicas[place], world.slots[place], world.requests, world.settings[0]
    if replica.run_steps > 0:
        replica.lost_s += now_s - replica.run_start_s
        replica.time_s = now_s
        count_busy(replica, world.clock[0], world.timeline, settings.kv_blocks, replica.run_start_s, now_s, wide(0))
    first, last = NONE, NONE
    while replica.running > 0:
        # The one admitted first of those that are left.
        slot = NONE
        for other in range(len(slots)):
            if slots[other].request != NONE and (slot == NONE or slots[other].order < slots[slot].order):
                slot = other
        index = wide(slots[slot].request)
        slots[slot].request = NONE
        replica.running -= 1
        request = requests[index]
        if request.place == ANSWER:
            request.generated = request.output_tokens - (slots[slot].end - replica.steps)
        replica.answer_lost += max(0, request.generated - 1)
        request.place = ENDED
        request.slot = NONE
        if request.status == OPEN:
            first, last = _appended(requests, first, last, index)
    index = queue_front(world.queues[place], requests, np.inf)
    while index != NONE:
        world.queues[place, requests[index].urgency, HEAD] = requests[index].following
        replica.answer_lost += max(0, requests[index].generated - 1)
        first, last = _appended(requests, first, last, index)
        index = queue_front(world.queues[place], requests, np.inf)
    _wipe(world, place)
    while first != NONE:
        index = first
        request = requests[index]
        first = wide(request.following)
        request.restarts += 1
        request.first_token_s = np.nan
        request.computed = 0
        request.generated = 0
        request.target = 0
        request.blocks = 0
        request.shared_blocks = 0
        for unit in range(request.first_unit, request.first_unit + request.units):
            world.held[unit] = 0
        route(world, index, now_s)


@entry
def stop_if_empty(world: World, place: int, now_s: float) -> None:
    """A replica that is told to go and has nothing to do goes at once."""
    drain_if_empty(world, place, now_s)


def scale(world: World, now_s: float) -> None:
    """The autoscaler looks: one replica for so many outstanding requests, at once upwards, downwards after a while."""
    replicas, settings, ticks = world.replicas, world.settings[0], int(world.clock["ticks"][0])
    mode = replicas["mode"]
    outstanding = int(replicas["outstanding"].sum() + world.clock["held"][0])
    least, most = int(settings["least"]), int(settings["most"])
    # However small the target: what is divided by it may be more than any number.
    wanted = min(max(math.ceil(min(outstanding / float(settings["target"]), most)), least), most)
    world.wanted[(ticks - 1) % len(world.wanted)] = wanted
    current = int(np.count_nonzero((mode == BOOTING) | (mode == UP)))
    for place in np.flatnonzero(mode == DRAINING)[: max(0, wanted - current)]:
        current += 1
        come_up(world, int(place), now_s)
    for place in np.flatnonzero(mode == OFF)[: max(0, wanted - current)]:
        current += 1
        mode[place] = BOOTING
        replicas["ready_s"][place] = now_s + settings["cold_start_s"]
        replicas["paid_from_s"][place] = now_s
    kept = int(world.wanted[:ticks].max())
    surplus = [*np.flatnonzero(mode == BOOTING)[::-1], *np.flatnonzero(mode == UP)[::-1]]
    for place in surplus[: max(0, current - kept)]:
        replicas["ready_s"][place] = np.inf
        mode[place] = DRAINING
        stop_if_empty(world, int(place), now_s)


@compiled
def _appended(requests: Rows, first: int, last: int, index: int) -> tuple[int, int]:
    """The two ends of a list of requests after one more was added to it."""
    requests[index].following = NONE
    if first == NONE:
        return index, index
    requests[last].following = index
    return first, index


@compiled
def _wipe(world: World, place: int) -> None:
    """Nothing is left on a replica."""
    replica, slots = world.replicas[place], world.slots[place]
    replica.mode = OFF
    replica.run_steps = 0
    replica.running = 0
    replica.decoding = 0
    replica.base_tokens = 0
    replica.partial = NONE
    replica.outstanding = 0
    replica.leaving = NONE
    replica.told = 0
    replica.front_end_s = 0.0
    replica.front_first = NONE
    for slot in range(len(slots)):
        slots[slot].request = NONE
        slots[slot].free = len(slots) - 1 - slot
    for phase in range(world.phases.shape[1]):
        world.phases[place, phase] = 0
    for urgency in range(world.queues.shape[1]):
        world.queues[place, urgency, HEAD] = NONE
    empty_cache(replica, world.nodes[place], world.settings[0].kv_blocks)
