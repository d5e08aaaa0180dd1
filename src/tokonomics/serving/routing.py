"""Choose the replica for a request, and decide which requests are turned away.

Round robin ignores the state. Least outstanding and power of two compare the unfinished requests of replicas.
Prefix-aware routing compares which cache holds the longest beginning of the prompt, unless the load has become too
uneven, with the thresholds of SGLang's router (sgl-router: balance_abs_threshold 64, balance_rel_threshold 1.5,
cache_threshold 0.3); it sees the caches themselves, as llm-d's precise scorer does, not an estimate of them.
Session-affine routing sends a session's next request to the replica of its last one while that is up, as the vLLM
production stack's session router does by the id of the session; otherwise to the least loaded one.

A request is turned away if too many are before it, or if it has waited too long to begin. The first applies if as many
wait at its replica as its class allows, counting those that are as urgent or more, which come before it. SGLang does
this with ``--max-queued-requests`` and priorities, except that there an urgent request also pushes a less urgent one
out (``Scheduler._abort_on_queued_limit``, 2026-09). A request that no step has worked on within its class's longest
wait is then shed: SGLang's ``SGLANG_REQ_WAITING_TIMEOUT``, and the time to live of a request in the flow control of the
Gateway API inference extension (``defaultRequestTTL``), which llm-d runs. vLLM itself limits the requests in flight
whatever their priority (``--max-num-queued-reqs``, vllm-project/vllm#49445, 2026-07).
"""

from typing import NamedTuple

import numpy as np

from tokonomics.serving.blocks import covered_tokens, resident_units
from tokonomics.serving.compiled import compiled, wide
from tokonomics.serving.scheduler import cut_run, settle
from tokonomics.serving.sends import try_again
from tokonomics.serving.sequences import count_abandoned, enqueue, receive
from tokonomics.serving.state import ENDED, HELD, NONE, OPEN, SHED, TIMED_OUT, UP, Counts, Floats, Row, Rows, World
from tokonomics.traffic.trace import Trace

_NO_LIMIT = np.iinfo(np.int32).max


class WaitLimits(NamedTuple):
    """The limits of a trace's classes for each request; None if no class has limits."""

    shed_s: Floats | None = None
    queue_limit: Counts | None = None


def wait_limits(trace: Trace) -> WaitLimits:
    """Return when each request is shed if it has not begun, and how many may wait before it."""
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
    """Tell whether as many wait on a replica before a request as its class allows."""
    if not len(world.queue_limit):
        return False
    request = world.requests[index]
    before = 0
    for urgency in range(request.urgency + 1):
        before += world.waiting[place, urgency]
    return bool(before >= world.queue_limit[index])


@compiled
def turn_away(world: World, place: int, index: int, now_s: float) -> None:
    """Shed a request where it would have waited; count what an earlier replica computed for it as wasted."""
    request = world.requests[index]
    request.status = SHED
    request.finish_s = now_s
    request.place = ENDED
    request.replica = place
    count_abandoned(world.replicas[place], request)


@compiled
def leaves_as(request: Row, is_shed: bool) -> int:
    """Return the outcome of a request whose time is up; OPEN if there is none: it has ended, or began in time."""
    if request.status != OPEN or (is_shed and not np.isnan(request.start_s)):
        return OPEN
    return SHED if is_shed else TIMED_OUT


# In the order of ``fleet.Router``.
ROUND_ROBIN, LEAST_OUTSTANDING, POWER_OF_TWO, PREFIX_AWARE, SESSION_AFFINE = range(5)

_UNEVEN = 64
_UNEVEN_RATIO = 1.5
_WORTH_IT = 0.3  # share of a prompt that must be cached for the cache to decide


@compiled
def route(world: World, index: int, now_s: float) -> None:
    """Send a request to a replica, hold it while there is none, or turn it away if too many wait."""
    request, clock = world.requests[index], world.clock[0]
    place = _pick_replica(world, index, now_s)
    if place == NONE:
        request.place = HELD
        clock.held += 1
        clock.held_first = index if clock.held_first == NONE else min(clock.held_first, index)
        return
    replica = world.replicas[place]
    if is_full(world, place, index):
        turn_away(world, place, index, now_s)
        if world.settings[0].closed:
            try_again(world, index, now_s)
        return
    if world.settings[0].sessions > 0:
        world.homes[world.turns[index % len(world.turns)].session] = place
    receive(world, place, index, now_s)
    if replica.running < world.settings[0].max_sequences:
        cut_run(world, place, min(request.queued_s, max(replica.front_end_s, now_s)), True)
    if replica.run_steps == 0:
        replica.time_s = max(replica.time_s, now_s)
    request.replica = place
    replica.outstanding += 1
    world.waiting[place, request.urgency] += 1
    enqueue(world.queues[place], world.requests, index)


@compiled
def _pick_replica(world: World, index: int, now_s: float) -> int:
    """Return the replica for a request, or NONE if none is up; all replicas it compares are brought up to now."""
    settings = world.settings[0]
    if settings.router == ROUND_ROBIN:
        place = in_turn(world)
        if place != NONE:
            world.clock[0].last_routed = place
        return place
    if settings.router == POWER_OF_TWO:
        return _of_two(world, index)
    if settings.router == PREFIX_AWARE and settings.units > 0:
        return _of_longest_prefix(world, index, now_s)
    if settings.router == SESSION_AFFINE and settings.sessions > 0:
        home = wide(world.homes[world.turns[index % len(world.turns)].session])
        if home != NONE and world.replicas[home].mode == UP:
            return home
    return _least(world.replicas)


@compiled
def in_turn(world: World) -> int:
    """Return the next replica that is up after the last one used."""
    replicas = world.replicas
    for step in range(1, len(replicas) + 1):
        place = (world.clock[0].last_routed + step) % len(replicas)
        if replicas[place].mode == UP:
            return wide(place)
    return NONE


@compiled
def _least(replicas: Rows) -> int:
    best = NONE
    for place in range(len(replicas)):
        if replicas[place].mode == UP and (best == NONE or replicas[place].outstanding < replicas[best].outstanding):
            best = place
    return best


@compiled
def _of_two(world: World, index: int) -> int:
    """Draw two replicas at random, and return the one with fewer outstanding requests."""
    replicas = world.replicas
    there = 0
    for place in range(len(replicas)):
        there += replicas[place].mode == UP
    if there < 2:
        return _least(replicas)
    drawn = _mixed(_mixed(world.settings[0].seed) + np.uint64(index))
    first = wide(drawn % np.uint64(there))  # type: ignore[arg-type]
    second = wide((drawn >> np.uint64(32)) % np.uint64(there - 1))  # type: ignore[arg-type]
    second += second >= first
    lower, upper = _nth_up(replicas, min(first, second)), _nth_up(replicas, max(first, second))
    return upper if replicas[upper].outstanding < replicas[lower].outstanding else lower


@compiled
def _nth_up(replicas: Rows, count: int) -> int:
    """Return the replica that is up after ``count`` others that are up."""
    place = wide(0)
    while replicas[place].mode != UP or count > 0:
        count -= replicas[place].mode == UP
        place += 1
    return place


@compiled
def _of_longest_prefix(world: World, index: int, now_s: float) -> int:
    """Return the replica whose cache holds most of the prompt, unless loads are uneven or none holds much."""
    replicas, request = world.replicas, world.requests[index]
    least = _least(replicas)
    if least == NONE:
        return NONE
    fewest = highest = replicas[least].outstanding
    for place in range(len(replicas)):
        if replicas[place].mode == UP:
            highest = max(highest, replicas[place].outstanding)
    if highest - fewest > _UNEVEN and highest > _UNEVEN_RATIO * fewest:
        return least
    best = NONE
    longest = 0
    for place in range(len(replicas)):
        if replicas[place].mode != UP:
            continue
        settle(world, place, now_s)
        units = resident_units(world, place, request)
        even = best != NONE and units == longest
        if units > longest or (even and replicas[place].outstanding < replicas[best].outstanding):
            longest = units
            best = place
    cached = covered_tokens(world, request, longest)
    return best if best != NONE and cached >= _WORTH_IT * request.input_tokens else least


@compiled
def _mixed(value: np.uint64) -> np.uint64:
    """Return well mixed bits from a count (splitmix64, Steele et al. 2014): the same draw in every run."""
    mixed = value + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
