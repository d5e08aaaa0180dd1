"""KV blocks of a replica, and the prefix cache that lives in those nobody needs.

Blocks are free, in use, or evictable: left by requests that are gone, but still holding KV another prompt may begin
with. Shared units are found again by their id; what only one request had is kept as one anonymous entry that merely
ages. A request's own blocks are let go before its shared units, and those last to first, so that the tails of old
prompts are evicted before their heads, as in vLLM (v1/core/kv_cache_manager.py, free_blocks in reverse order).
"""

from tokonomics.serving.compiled import compiled, wide
from tokonomics.serving.state import NONE, Bytes, Counts, Row, Rows


@compiled
def blocks_of(tokens: int, block_tokens: int) -> int:
    return (tokens + block_tokens - 1) // block_tokens


@compiled
def take_blocks(replica: Row, nodes: Rows, units: int, count: int) -> None:
    """Take blocks into use: free ones first, then the least recently used of the evictable ones."""
    end = len(nodes) - 1
    while replica.free < count:
        entry = wide(nodes[end].next)
        size = nodes[entry].size
        if entry >= units:
            size = min(size, count - replica.free)
            nodes[entry].size -= size
            if nodes[entry].size == 0:
                _unlink(nodes, entry)
        else:
            nodes[entry].references = NONE
            _unlink(nodes, entry)
        replica.free += size
        replica.evictable -= size
    replica.free -= count


@compiled
def release_blocks(
    replica: Row, nodes: Rows, units: Counts, held: Bytes, distinct: int, request: Row, index: int
) -> None:
    """Let go of all a request holds."""
    own = request.blocks - request.shared_blocks
    if distinct == 0:
        replica.free += own
    else:
        if own > 0:
            entry = distinct + index
            if nodes[entry].size > 0:
                # What it left when it was preempted has not been evicted: one entry holds both.
                _unlink(nodes, entry)
            nodes[entry].size += own
            replica.evictable += own
            _append(nodes, entry)
        for place in range(request.first_unit + request.units - 1, request.first_unit - 1, -1):
            if held[place]:
                held[place] = 0
                unit = wide(units[place])
                nodes[unit].references -= 1
                if nodes[unit].references == 0:
                    replica.evictable += nodes[unit].size
                    _append(nodes, unit)
    request.blocks = 0
    request.shared_blocks = 0


@compiled
def resident_units(nodes: Rows, units: Counts, request: Row) -> int:
    """How many of the leading units of a prompt are in the cache."""
    for place in range(request.prompt_units):
        if nodes[units[request.first_unit + place]].references == NONE:
            return place
    return wide(request.prompt_units)


@compiled
def units_blocks(nodes: Rows, units: Counts, request: Row, count: int) -> tuple[int, int]:
    """Blocks of the leading units of a prompt, and how many of them nobody holds."""
    total, unheld = 0, 0
    for place in range(request.first_unit, request.first_unit + count):
        node = nodes[units[place]]
        total += node.size
        if node.references == 0:
            unheld += node.size
    return total, unheld


@compiled
def hold_units(replica: Row, nodes: Rows, units: Counts, held: Bytes, request: Row, count: int) -> None:
    """Reference the leading units of a prompt, so that they stay."""
    for place in range(request.first_unit, request.first_unit + count):
        unit = wide(units[place])
        if nodes[unit].references == 0:
            replica.evictable -= nodes[unit].size
            _unlink(nodes, unit)
        nodes[unit].references += 1
        held[place] = 1
        request.shared_blocks += nodes[unit].size


@compiled
def publish_units(
    nodes: Rows, units: Counts, held: Bytes, request: Row, past: int, computed: int, unit_tokens: int, block_tokens: int
) -> None:
    """Units that a scheduled chunk completes can be found by others from now on, even in the same step."""
    for count in range(past // unit_tokens, request.prompt_units):
        begin = count * unit_tokens
        end = min(begin + unit_tokens, request.input_tokens)
        if end > computed:
            return
        place = request.first_unit + count
        unit = wide(units[place])
        if held[place] or nodes[unit].references != NONE:
            continue
        nodes[unit].references = 1
        nodes[unit].size = blocks_of(end - begin, block_tokens)
        held[place] = 1
        request.shared_blocks += nodes[unit].size


@compiled
def publish_answer(
    nodes: Rows, units: Counts, held: Bytes, request: Row, computed: int, unit_tokens: int, block_tokens: int
) -> None:
    """Units that a finished answer completes can be found by the next turn of its conversation."""
    for count in range(request.prompt_units, request.units):
        place = request.first_unit + count
        unit = wide(units[place])
        if (count + 1) * unit_tokens > computed:
            return
        if nodes[unit].references == NONE:
            nodes[unit].references = 1
            nodes[unit].size = unit_tokens // block_tokens
            held[place] = 1
            request.shared_blocks += nodes[unit].size


@compiled
def empty_cache(replica: Row, nodes: Rows, kv_blocks: int) -> None:
    """A replica that comes back has nothing."""
    replica.free = kv_blocks
    replica.evictable = 0
    end = len(nodes) - 1
    for entry in range(end):
        nodes[entry].references = NONE
        nodes[entry].size = 0
    nodes[end].next = end
    nodes[end].previous = end


@compiled
def _append(nodes: Rows, entry: int) -> None:
    """As the most recently used."""
    end = len(nodes) - 1
    last = nodes[end].previous
    nodes[last].next = entry
    nodes[entry].previous = last
    nodes[entry].next = end
    nodes[end].previous = entry


@compiled
def _unlink(nodes: Rows, entry: int) -> None:
    before, behind = nodes[entry].previous, nodes[entry].next
    nodes[before].next = behind
    nodes[behind].previous = before
