"""Follow a request on its replica: it is received, waits, gets its place and blocks, writes its answer, and leaves.

The front end receives, checks and tokenises requests before the engine has them. It is an event loop: it takes all that
have come meanwhile, works on each (``request_s``), and hands them on together; prompts are tokenised in parallel
(``token_s``, the longest decides). A request that finds it idle is taken at once.

The queue is a linked list of requests, one for each class of urgency. Admission takes a slot and the blocks of the
whole prompt, less those in the prefix cache; a request that leaves, for any reason, gives both up. A heap of the
decoding slots shows which answer ends first; it knows the position of each slot, since a slot can leave before its end.
"""

import numpy as np

from tokonomics.physics.overhead import TOGETHER
from tokonomics.serving.blocks import (
    blocks_of,
    covered_tokens,
    hold_units,
    publish_units,
    release_blocks,
    resident_units,
    take_blocks,
    units_blocks,
)
from tokonomics.serving.compiled import compiled, wide
from tokonomics.serving.state import (
    ANSWER,
    DONE,
    ENDED,
    HEAD,
    NONE,
    OPEN,
    PROMPT,
    QUEUED,
    TAIL,
    Counts,
    Row,
    Rows,
    World,
)


@compiled
def receive(world: World, place: int, index: int, now_s: float) -> None:
    replica, request = world.replicas[place], world.requests[index]
    if world.settings[0].prefilled:
        request.queued_s = now_s
        return
    take_in_hand(world, place, now_s)
    request.queued_s = np.inf
    request.fellow = NONE
    if replica.front_first == NONE:
        replica.front_first = index
    else:
        world.requests[replica.front_last].fellow = index
    replica.front_last = index
    if replica.front_end_s <= now_s:
        _hand_on(world, place, now_s)


@compiled
def take_in_hand(world: World, place: int, now_s: float) -> None:
    """Bring the front end up to now: it takes the waiting requests when it has done the ones before."""
    replica = world.replicas[place]
    while replica.front_first != NONE and replica.front_end_s <= now_s:
        _hand_on(world, place, replica.front_end_s)


@compiled
def _hand_on(world: World, place: int, begins_s: float) -> None:
    """Take those that have waited longest, and set when the engine gets them."""
    replica, requests, table = world.replicas[place], world.requests, world.table
    longest = wide(0)
    count = wide(0)
    index = wide(replica.front_first)
    while index != NONE and count < TOGETHER:
        count += 1
        longest = max(longest, wide(requests[index].input_tokens))
        index = wide(requests[index].fellow)
    replica.front_end_s = begins_s + count * table.request_s + table.token_s * longest
    index = wide(replica.front_first)
    for _ in range(count):
        requests[index].queued_s = replica.front_end_s + table.reach_s
        index = wide(requests[index].fellow)
    replica.front_first = index


@compiled
def enqueue(queues: Counts, requests: Rows, index: int) -> None:
    """Put a request into a replica's queue, last in its class or, if it was preempted, first."""
    request = requests[index]
    queue = queues[request.urgency]
    preempted = request.place == PROMPT or request.place == ANSWER
    request.place = QUEUED
    request.following = NONE
    if queue[HEAD] == NONE:
        queue[HEAD] = index
        queue[TAIL] = index
    elif preempted:
        request.following = queue[HEAD]
        queue[HEAD] = index
    else:
        requests[queue[TAIL]].following = index
        queue[TAIL] = index


@compiled
def queue_front(queues: Counts, requests: Rows, seen_s: float) -> int:
    """Return the next request to admit of those there by then; skip one whose client hung up while waiting."""
    for queue in queues:
        while queue[HEAD] != NONE:
            request = requests[queue[HEAD]]
            if request.status == OPEN:
                if request.queued_s <= seen_s:
                    return wide(queue[HEAD])
                break
            queue[HEAD] = request.following
    return NONE


@compiled
def next_queued_s(queues: Counts, requests: Rows, replica: Row) -> float:
    """Return when the engine gets the next request on its way, or more is known about it; infinite if there is none."""
    soonest = np.inf
    for queue in queues:
        index = queue[HEAD]
        while index != NONE and requests[index].status != OPEN:
            index = requests[index].following
        if index != NONE and requests[index].queued_s > replica.composed_s:
            known = requests[index].queued_s < np.inf
            soonest = min(soonest, requests[index].queued_s if known else replica.front_end_s)
    return soonest


@compiled
def admit(world: World, place: int, index: int, budget: int, most: int) -> int:
    """Give the request a slot and blocks; return the length of its first chunk, or NONE if it has to wait.

    ``budget`` tokens of the step are left, and a prompt may use ``most``, those of one group. One that may not be split
    and is longer has a group to itself.
    """
    replica, request, settings = world.replicas[place], world.requests[index], world.settings[0]
    block = settings.block_tokens
    first = request.target == 0
    target = request.input_tokens + request.generated
    units = 0
    if settings.units > 0 and not (settings.prefilled and request.generated == 0):
        units = resident_units(world, place, request)
    known = covered_tokens(world, request, units)
    # The fetched KV of a preempted request is gone, so it is computed again.
    fetched = request.fetched if first and not settings.prefilled else 0
    cached = min(max(known, fetched), request.input_tokens, (target - 1) // block * block)
    if not settings.chunks and min(target - cached, most) > budget and replica.run_prompt_tokens > 0:
        return NONE
    held = wide(request.input_tokens + request.output_tokens if settings.reserves else target)
    need = blocks_of(held, block) + settings.fixed_blocks
    shared, unheld = units_blocks(world, place, request, units)
    if need - shared > replica.free + replica.evictable - unheld:
        return NONE
    world.queues[place, request.urgency, HEAD] = request.following
    world.waiting[place, request.urgency] -= 1
    hold_units(world, place, request, units)
    take_blocks(world, place, wide(max(0, need - shared)))
    request.blocks = max(need, shared)
    request.target = target
    request.computed = cached
    request.place = PROMPT
    slots = world.slots[place]
    slot = slots[len(slots) - 1 - replica.running].free
    replica.running += 1
    replica.admitted += 1
    request.slot = slot
    slots[slot].request = index
    slots[slot].order = replica.admitted
    if np.isnan(request.start_s):
        request.start_s = replica.time_s
    if first:
        request.cached_tokens = cached
        if settings.units > 0 and cached > known:
            publish_units(world, place, request, wide(units), wide(request.prompt_units), wide(cached))
    whole = target - cached
    return wide(min(whole, budget, most)) if settings.chunks else wide(whole)


@compiled
def begin_answer(world: World, place: int, index: int) -> None:
    """Let the request write one token a step from the next step on."""
    replica, request, slots = world.replicas[place], world.requests[index], world.slots[place]
    slot = slots[request.slot]
    request.place = ANSWER
    slot.base = request.computed - replica.steps
    slot.end = replica.steps + request.output_tokens - request.generated
    replica.base_tokens += slot.base
    world.phases[place, _phase(slot.base, world.phases.shape[1])] += 1
    _rise(slots, wide(request.slot), wide(replica.decoding))
    replica.decoding += 1


@compiled
def end_partial(replica: Row, slots: Rows, slot: int) -> None:
    """Remove a slot from the list of unfinished prompts, if it is there; the others keep their order."""
    kept = wide(0)
    for count in range(replica.partials):
        if slots[count].partial != slot:
            slots[kept].partial = slots[count].partial
            kept += 1
    replica.partials = kept


@compiled
def remove_running(world: World, place: int, index: int) -> None:
    """Remove a request from its slot and release its blocks; bring its token counts up to date."""
    replica, request, slots = world.replicas[place], world.requests[index], world.slots[place]
    settings = world.settings[0]
    slot = slots[request.slot]
    if request.place == ANSWER:
        request.computed = slot.base + replica.steps
        request.seen = max(request.seen, request.computed)
        request.generated = request.output_tokens - (slot.end - replica.steps)
        if settings.grows:
            block = settings.block_tokens
            request.blocks += blocks_of(wide(request.computed), block) - blocks_of(wide(request.target), block)
        replica.decoding -= 1
        replica.base_tokens -= slot.base
        world.phases[place, _phase(slot.base, world.phases.shape[1])] -= 1
        _leave_heap(slots, wide(request.slot), wide(replica.decoding))
    else:
        end_partial(replica, slots, wide(request.slot))
    release_blocks(world, place, index)
    replica.running -= 1
    slots[len(slots) - 1 - replica.running].free = request.slot
    slot.request = NONE
    request.slot = NONE


@compiled
def end_answer(world: World, place: int, index: int, end_s: float) -> None:
    replica, request, settings = world.replicas[place], world.requests[index], world.settings[0]
    if settings.units > 0:
        # The next turn of its conversation can find them. The KV of the last token is never computed.
        computed = wide(request.input_tokens + max(request.output_tokens, 1) - 1)
        publish_units(world, place, request, wide(request.prompt_units), wide(request.units), computed)
    remove_running(world, place, index)
    request.status = DONE
    request.finish_s = end_s
    request.place = ENDED
    replica.outstanding -= 1


@compiled
def let_leave(world: World, place: int) -> None:
    """Remove running requests whose clients hung up during the step, which gave them nothing."""
    replica = world.replicas[place]
    index = wide(replica.leaving)
    while index != NONE:
        request = world.requests[index]
        if request.slot != NONE:
            remove_running(world, place, index)
            count_abandoned(replica, request)
            request.place = ENDED
        index = wide(request.following)
    replica.leaving = NONE


@compiled
def _phase(base: int, block_tokens: int) -> int:
    """Return the step, modulo the block, at which a sequence starts another block."""
    return -base % block_tokens


@compiled
def count_abandoned(replica: Row, request: Row) -> None:
    """Count the work for a client that hung up, including work before a preemption."""
    replica.prompt_abandoned += max(0, min(request.seen, request.input_tokens) - request.cached_tokens)
    replica.answer_abandoned += max(0, request.generated - 1)


@compiled
def _sooner(slots: Rows, slot: int, other: int) -> bool:
    """Tell whether the answer of a slot ends before another's; at the same time, whether it was admitted first."""
    if slots[slot].end != slots[other].end:
        return bool(slots[slot].end < slots[other].end)
    return bool(slots[slot].order < slots[other].order)


@compiled
def _rise(slots: Rows, slot: int, place: int) -> None:
    """Put a slot at a position of the heap, or above it while it ends sooner."""
    while place > 0:
        above = (place - 1) // 2
        other = wide(slots[above].heap)
        if not _sooner(slots, slot, other):
            break
        slots[place].heap = other
        slots[other].heap_place = place
        place = above
    slots[place].heap = slot
    slots[slot].heap_place = place


@compiled
def _leave_heap(slots: Rows, slot: int, size: int) -> None:
    """Remove a slot from a heap with ``size`` left afterwards: the last one takes its place and moves up or down."""
    place, last = wide(slots[slot].heap_place), wide(slots[size].heap)
    if last == slot:
        return
    if place > 0 and _sooner(slots, last, wide(slots[(place - 1) // 2].heap)):
        _rise(slots, last, place)
        return
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _sooner(slots, wide(slots[below + 1].heap), wide(slots[below].heap)):
            below += 1
        other = wide(slots[below].heap)
        if not _sooner(slots, other, last):
            break
        slots[place].heap = other
        slots[other].heap_place = place
        place = below
    slots[place].heap = last
    slots[last].heap_place = place
