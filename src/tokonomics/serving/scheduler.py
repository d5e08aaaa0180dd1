"""Advance one replica step by step: compose the next step, and apply its result at its end.

A step gives one token to every running answer, then prompt chunks in order of arrival until the token budget is spent
(vLLM's scheduler; engines that do not mix let prompts go first, alone). With data-parallel attention a prompt belongs
to one group: it has that group's share of the budget, and prompts of other groups run beside it. When the running
answers outgrow the KV cache, the request admitted last gives up its place and computes its tokens again later. Steps in
which nothing can change are taken together: until the first answer ends, memory runs out, or something arrives.

An engine that works ahead composes step n while the GPU computes step n - 1, as soon as it has looked at step n - 2:

    composed(n)  = max(begun(n - 1), composed(n - 1) + launch(n - 1))
    begun(n)     = max(done(n - 1), composed(n))
    done(n)      = max(begun(n) + kernels(n), composed(n) + launch(n))
    told(n)      = max(done(n), composed(n + 1) + launch(n + 1))

Requests that reach the engine after ``composed(n)`` are not in step n; clients get the tokens of step n when it is
``told``. Other engines compose a step when the one before it is done, and tell at once. With nothing to compose ahead,
the engine waits for the GPU, tells at once, and composes the next step when a request is there.
"""

import numpy as np

from tokonomics.serving.blocks import empty_cache, publish_units, take_blocks, units_within
from tokonomics.serving.compiled import compiled, entry, wide
from tokonomics.serving.sends import hear
from tokonomics.serving.sequences import (
    admit,
    begin_answer,
    end_answer,
    end_partial,
    enqueue,
    let_leave,
    next_queued_s,
    queue_front,
    remove_running,
    take_in_hand,
)
from tokonomics.serving.state import (
    ANSWERS,
    BUSY,
    DRAINING,
    KV,
    NONE,
    OFF,
    PROMPTS,
    SEQUENCES,
    Counts,
    Row,
    Rows,
    World,
)
from tokonomics.serving.step_table import after_s, gpu_s, launching_s, run_s, steps_until


@compiled
def advance(world: World, place: int, until_s: float) -> None:
    """Finish the steps of a replica that end by ``until_s`` and begin those that start before it."""
    replica = world.replicas[place]
    while True:
        if replica.run_steps > 0:
            if replica.run_end_s > until_s:
                return
            _finish_run(world, place)
        if replica.time_s >= until_s:
            return
        if not _compose(world, place):
            tell(world, place, replica.time_s)
            # The next step begins when a request on its way has arrived.
            comes_s = next_queued_s(world.queues[place], world.requests, replica)
            if comes_s == np.inf:
                return
            replica.time_s = comes_s


@compiled
def tell(world: World, place: int, at_s: float) -> None:
    """Send the tokens of the last step to clients: first and last ones; a last one sends the next of a closed loop."""
    replica, slots, requests = world.replicas[place], world.slots[place], world.requests
    for count in range(replica.told):
        index = wide(slots[count].told)
        if index < 0:
            index = -1 - index
            requests[index].first_token_s = at_s
        request = requests[index]
        if request.finish_s == replica.told_s:
            request.finish_s = at_s
            if world.settings[0].closed:
                hear(world, index, min(at_s + world.table.answer_s, request.deadline_s), True)
    replica.told = 0


@compiled
def cut_run(world: World, place: int, at_s: float, arrives: bool) -> None:
    """End the run in flight with the step that is being computed, because something happens.

    A request that ``arrives`` is too late for a step composed ahead: the run ends with that one.
    """
    replica = world.replicas[place]
    if replica.run_steps <= 1:
        return
    held = float(_kv_tokens(replica))
    start = replica.run_start_s
    decodes = wide(replica.run_decodes)
    count = steps_until(world.table, decodes, held, replica.run_steps, at_s - start)
    if arrives and world.table.ahead and replica.run_composed_s + count * replica.run_launch_s < at_s:
        count += 1
    if count < replica.run_steps:
        replica.run_steps = count
        replica.run_end_s = start + run_s(world.table, decodes, held, count)


@compiled
def settle(world: World, place: int, at_s: float) -> None:
    """Count the steps of the run in flight that have ended by then, so that the blocks in use are up to date."""
    replica = world.replicas[place]
    if replica.run_steps <= 1:
        return
    table, start = world.table, replica.run_start_s
    decodes, held = wide(replica.run_decodes), float(_kv_tokens(replica))
    count = steps_until(table, decodes, held, replica.run_steps, at_s - start)
    end = start + run_s(table, decodes, held, count)
    if end > at_s:
        count -= 1
        end = start + run_s(table, decodes, held, count)
    if count == 0:
        return
    _count_steps(world, place, count, end)
    replica.run_composed_s += count * replica.run_launch_s
    replica.run_start_s = end
    replica.run_steps -= count
    settings = world.settings[0]
    need = _blocks_needed(replica, world.phases[place], settings, wide(0), wide(1))
    take_blocks(world, place, need)
    replica.run_end_s = end + run_s(table, decodes, float(_kv_tokens(replica)), replica.run_steps)


@entry
def drain_if_empty(world: World, place: int, at_s: float) -> None:
    """Remove a draining replica, with its cache, once its last request has left."""
    replica = world.replicas[place]
    if replica.mode == DRAINING and replica.outstanding == 0 and replica.run_steps == 0:
        if replica.leaving != NONE:
            let_leave(world, place)
        empty_cache(world, place)
        replica.mode = OFF
        replica.paid_s += at_s - replica.paid_from_s


@compiled
def _compose(world: World, place: int) -> bool:
    """Set the next step, or run of steps, in flight; return False if there is nothing to do."""
    replica, settings = world.replicas[place], world.settings[0]
    if replica.leaving != NONE:
        let_leave(world, place)
    if replica.front_first != NONE:
        take_in_hand(world, place, replica.time_s)
    if not world.table.ahead:
        replica.composed_s = replica.time_s
    while True:
        preempted = False
        replica.run_prompts = 0
        replica.run_prompt_tokens = 0
        if settings.prefilled:
            _admit_computed(world, place)
        decodes = wide(0)
        budget = settings.max_batched_tokens
        if settings.mixes:
            preempted = _make_room(world, place)
            decodes = wide(replica.decoding)
            budget = max(0, budget - decodes)
        pairs = _add_prompts(world, place, budget, preempted)
        if not settings.mixes and replica.run_prompt_tokens == 0:
            preempted = _make_room(world, place)
            decodes = wide(replica.decoding)
        if decodes > 0 or replica.run_prompt_tokens > 0:
            break
        if preempted:
            continue
        if replica.composed_s >= replica.time_s:
            return False
        # Nothing could be composed ahead: the engine waits for the GPU, tells, and tries again.
        tell(world, place, replica.time_s)
        replica.composed_s = replica.time_s
    _begin_run(world, place, decodes, pairs, preempted)
    return True


@compiled
def _begin_run(world: World, place: int, decodes: int, pairs: float, preempted: bool) -> None:
    """Set the composed work in flight: a step with prompts, or steps without until something can change."""
    replica, settings, table = world.replicas[place], world.settings[0], world.table
    composed = min(replica.composed_s, replica.time_s)
    held = float(_kv_tokens(replica)) if decodes > 0 else 0.0
    prompts, tokens = wide(replica.run_prompts), wide(replica.run_prompt_tokens)
    launch = launching_s(table, decodes, tokens, prompts)
    if replica.told > 0:
        tell(world, place, max(replica.time_s, composed + launch) if table.ahead else replica.time_s)
    replica.run_decodes = decodes
    replica.run_start_s = replica.time_s
    replica.run_composed_s = composed
    replica.run_launch_s = launch
    replica.run_prompt_s = 0.0
    if tokens > 0:
        replica.run_steps = 1
        on_gpu = gpu_s(table, decodes, held, tokens, prompts, pairs)
        end = max(replica.run_start_s + on_gpu, composed + launch) + after_s(table, decodes, tokens)
        # Only what the prompts add: the answers alone would also have taken a step.
        alone = run_s(table, decodes, held, wide(1)) if decodes > 0 else 0.0
        replica.run_prompt_s = max(0.0, end - replica.run_start_s - alone)
        replica.run_end_s = end
        return
    count = wide(1)
    if not preempted and not _awaits(world, place):
        count = _steps_with_room(replica, world.slots[place], world.phases[place], settings)
    replica.run_steps = count
    replica.run_end_s = replica.run_start_s + run_s(table, decodes, held, count)


@compiled
def _awaits(world: World, place: int) -> bool:
    """Tell whether a request came too late for this step, and may be in the next."""
    replica = world.replicas[place]
    if replica.running >= world.settings[0].max_sequences:
        return False
    return bool(next_queued_s(world.queues[place], world.requests, replica) < np.inf)


@compiled
def _make_room(world: World, place: int) -> bool:
    """Take the blocks for the next token of every answer; if needed, preempt the requests admitted last."""
    replica, settings = world.replicas[place], world.settings[0]
    preempted = False
    while replica.decoding > 0:
        need = _blocks_needed(replica, world.phases[place], settings, wide(0), wide(1))
        if need <= replica.free + replica.evictable:
            take_blocks(world, place, need)
            break
        _preempt(world, place)
        preempted = True
    return preempted


@compiled
def _preempt(world: World, place: int) -> None:
    """Move the least urgent running request, of these the last admitted, back to the front of its queue."""
    slots = world.slots[place]
    last = NONE
    for slot in range(len(slots)):
        if slots[slot].request == NONE:
            continue
        if last != NONE:
            urgency = world.requests[slots[slot].request].urgency
            least = world.requests[slots[last].request].urgency
            if urgency < least or (urgency == least and slots[slot].order < slots[last].order):
                continue
        last = slot
    index = wide(slots[last].request)
    request = world.requests[index]
    remove_running(world, place, index)
    request.computed = 0
    request.preemptions += 1
    world.waiting[place, request.urgency] += 1
    enqueue(world.queues[place], world.requests, index)


@compiled
def _add_prompts(world: World, place: int, budget: int, preempted: bool) -> float:
    """Add chunks of started prompts, then of new ones; return the pairs of a token and one it attends to.

    A step in which a request was preempted admits none.
    """
    replica, settings, slots = world.replicas[place], world.settings[0], world.slots[place]
    pairs = 0.0
    most = wide((budget + settings.groups - 1) // settings.groups)  # for one group: its share of what answers leave
    for count in range(replica.partials):
        if budget <= 0:
            break
        index = wide(slots[slots[count].partial].request)
        chunk = wide(min(budget, most, world.requests[index].target - world.requests[index].computed))
        pairs += _schedule(world, place, index, chunk)
        budget -= chunk
    while not preempted and budget > 0 and replica.running < settings.max_sequences:
        index = queue_front(world.queues[place], world.requests, replica.composed_s)
        if index == NONE or (settings.prefilled and world.requests[index].generated == 0):
            break
        chunk = admit(world, place, index, budget, most)
        if chunk == NONE:
            break
        request = world.requests[index]
        if chunk < request.target - request.computed:
            slots[replica.partials].partial = request.slot
            replica.partials += 1
        pairs += _schedule(world, place, index, chunk)
        budget -= min(chunk, most)
    return pairs


@compiled
def _admit_computed(world: World, place: int) -> None:
    """Admit requests whose prompts were computed elsewhere: they need a slot and blocks, and write in the next step."""
    replica = world.replicas[place]
    while replica.running < world.settings[0].max_sequences:
        index = queue_front(world.queues[place], world.requests, replica.composed_s)
        if index == NONE or world.requests[index].generated > 0 or admit(world, place, index, wide(1), wide(1)) == NONE:
            return
        request = world.requests[index]
        request.computed = request.input_tokens
        request.generated = 1
        request.first_token_s = request.arrival_s
        if request.output_tokens <= 1:
            end_answer(world, place, index, replica.time_s)
        else:
            begin_answer(world, place, index)


@compiled
def _schedule(world: World, place: int, index: int, chunk: int) -> float:
    """Add a chunk of a prompt to the step; return the pairs of a token and one it attends to."""
    replica, request, settings = world.replicas[place], world.requests[index], world.settings[0]
    past = request.computed
    slots = world.slots[place]
    slots[request.slot].chunk = chunk
    slots[replica.run_prompts].chunked = request.slot
    replica.run_prompts += 1
    replica.run_prompt_tokens += chunk
    replica.prompt_again += max(0, min(past + chunk, request.seen) - past)
    if settings.units > 0:
        first = units_within(world, request, wide(past))
        publish_units(world, place, request, first, wide(request.prompt_units), wide(past + chunk))
    return float(chunk * (past + 0.5 * (chunk + 1.0)))


@compiled
def _finish_run(world: World, place: int) -> None:
    """End the run in flight: answers have grown, some are complete, prompts have advanced."""
    replica, slots = world.replicas[place], world.slots[place]
    end = replica.run_end_s
    _work_ahead(world, place)
    _count_steps(world, place, replica.run_steps, end)
    replica.prompt_busy_s += replica.run_prompt_s
    replica.run_steps = 0
    replica.time_s = end
    replica.told_s = end
    for count in range(replica.run_prompts):
        slot = slots[slots[count].chunked]
        request = world.requests[slot.request]
        request.computed += slot.chunk
        request.seen = max(request.seen, request.computed)
    if replica.leaving != NONE:
        let_leave(world, place)
    while replica.decoding > 0 and slots[slots[0].heap].end <= replica.steps:
        index = wide(slots[slots[0].heap].request)
        end_answer(world, place, index, end)
        slots[replica.told].told = index
        replica.told += 1
    for count in range(replica.run_prompts):
        slot = slots[count].chunked
        index = wide(slots[slot].request)
        if index == NONE:
            continue
        request = world.requests[index]
        if request.computed < request.target:
            continue
        end_partial(replica, slots, slot)
        slots[replica.told].told = index
        if np.isnan(request.first_token_s):
            request.first_token_s = end
            slots[replica.told].told = -1 - index
        replica.told += 1
        if request.output_tokens > 0:
            request.generated += 1
        if request.generated >= request.output_tokens:
            end_answer(world, place, index, end)
        else:
            begin_answer(world, place, index)
    drain_if_empty(world, place, end)


@compiled
def _work_ahead(world: World, place: int) -> None:
    """Set when the host composes the step after the run in flight, which is about to be counted."""
    replica, table = world.replicas[place], world.table
    begun = replica.run_start_s
    if replica.run_steps > 1:
        decodes = wide(replica.run_decodes)
        last = float(_kv_tokens(replica) + decodes * (replica.run_steps - 1))
        begun = replica.run_end_s - run_s(table, decodes, last, wide(1))
    launched = replica.run_composed_s + replica.run_steps * replica.run_launch_s
    replica.composed_s = min(replica.run_end_s, max(begun, launched))


@compiled
def _count_steps(world: World, place: int, count: int, end_s: float) -> None:
    """Count the first ``count`` steps of the run in flight, which end at ``end_s``."""
    replica, settings = world.replicas[place], world.settings[0]
    grown = wide(0)
    if replica.run_decodes > 0:
        if count > 1:
            grown = _blocks_needed(replica, world.phases[place], settings, wide(1), count - 1)
            take_blocks(world, place, grown)
        replica.steps += count
    count_busy(world, place, end_s, count, grown)


@compiled
def count_busy(world: World, place: int, end_s: float, steps: int, grown: int) -> None:
    """Add ``steps`` of the run in flight to the totals and the timeline; 0 if they were lost.

    The blocks in use have ``grown`` since it began, evenly over its time. When time runs past the last bin of the
    timeline, neighbours merge and bins become twice as wide.
    """
    replica, clock, timeline = world.replicas[place], world.clock[0], world.timeline
    start_s = replica.run_start_s
    used = world.settings[0].kv_blocks - replica.free - replica.evictable
    answers = steps * replica.run_decodes
    prompts = replica.run_prompt_tokens if steps > 0 else 0
    replica.busy_s += end_s - start_s
    replica.kv_peak = max(replica.kv_peak, used)
    replica.answer_tokens += answers
    replica.prompt_tokens += prompts
    half = len(timeline) // 2
    while end_s >= clock.bin_s * 2 * half:
        for column in range(timeline.shape[1]):
            for bin_ in range(half):
                timeline[bin_, column] = timeline[2 * bin_, column] + timeline[2 * bin_ + 1, column]
            for bin_ in range(half, 2 * half):
                timeline[bin_, column] = 0.0
        clock.bin_s *= 2
    width, span = clock.bin_s, end_s - start_s
    sequences = replica.run_decodes + replica.run_prompts
    bin_ = int(start_s / width)
    while True:
        inside = min(end_s, (bin_ + 1) * width) - max(start_s, bin_ * width)
        share = inside / span if span > 0 else 1.0
        timeline[bin_, BUSY] += inside
        timeline[bin_, SEQUENCES] += sequences * inside
        middle_s = max(start_s, bin_ * width) + 0.5 * inside
        timeline[bin_, KV] += (used - (grown * (end_s - middle_s) / span if span > 0 else 0.0)) * inside
        timeline[bin_, ANSWERS] += answers * share
        timeline[bin_, PROMPTS] += prompts * share
        bin_ += 1
        if bin_ * width >= end_s:
            return


@compiled
def _steps_with_room(replica: Row, slots: Rows, phases: Counts, settings: Row) -> int:
    """Return the decode steps until the first answer ends, or no block is left for the next one."""
    count = wide(slots[slots[0].heap].end - replica.steps)
    room = replica.free + replica.evictable
    if count == 1 or _blocks_needed(replica, phases, settings, wide(1), count - 1) <= room:
        return count
    rounds = room // replica.decoding
    possible = rounds * settings.block_tokens
    room -= rounds * replica.decoding
    while True:
        room -= phases[(replica.steps + 1 + possible) % settings.block_tokens]
        if room < 0:
            break
        possible += 1
    return wide(min(count, 1 + possible))


@compiled
def _blocks_needed(replica: Row, phases: Counts, settings: Row, after: int, count: int) -> int:
    """Return the blocks that ``count`` decode steps need, beginning ``after`` steps from now."""
    if not settings.grows:
        return 0
    block = settings.block_tokens
    rounds = count // block
    need = rounds * replica.decoding
    first = replica.steps + after
    for step in range(count - rounds * block):
        need += phases[(first + step) % block]
    return wide(need)


@compiled
def _kv_tokens(replica: Row) -> int:
    """Return the tokens that the decoding sequences attend to in the next step, including each new one."""
    return wide(replica.base_tokens + replica.decoding * (replica.steps + 1))
