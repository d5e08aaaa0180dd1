"""Manage the KV blocks of a replica, and the prefix cache in the blocks that no request needs.

Blocks are free, in use, or evictable: left by finished requests, but still holding KV that another prompt may begin
with. Shared units are found again by their id; the private blocks of one request are kept as one anonymous entry that
merely ages. A request's own blocks are released before its shared units, and those last to first, so that the tails of
old prompts are evicted before their heads, as in vLLM (v1/core/kv_cache_manager.py, free_blocks in reverse order).
"""

from tokonomics.serving.compiled import compiled, entry, wide
from tokonomics.serving.state import NONE, Row, Rows, World


@compiled
def blocks_of(tokens: int, block_tokens: int) -> int:
    return (tokens + block_tokens - 1) // block_tokens


@compiled
def take_blocks(world: World, place: int, count: int) -> None:
    """Take blocks into use: free ones first, then the least recently used of the evictable ones."""
    replica, nodes = world.replicas[place], world.nodes[place]
    end = len(nodes) - 1
    while replica.free < count:
        node = wide(nodes[end].next)
        size = nodes[node].size
        if node >= world.settings[0].units:
            size = min(size, count - replica.free)
            nodes[node].size -= size
        else:
            nodes[node].references = NONE
        if node < world.settings[0].units or nodes[node].size == 0:
            _unlink(nodes, node)
        replica.free += size
        replica.evictable -= size
    replica.free -= count


@compiled
def release_blocks(world: World, place: int, index: int) -> None:
    replica, nodes, request = world.replicas[place], world.nodes[place], world.requests[index]
    distinct = world.settings[0].units
    own = request.blocks - request.shared_blocks
    request.blocks = 0
    request.shared_blocks = 0
    if distinct == 0:
        replica.free += own
        return
    if own > 0:
        node = distinct + index
        if nodes[node].size > 0:
            # Its blocks from before a preemption have not been evicted: one node holds both.
            _unlink(nodes, node)
        nodes[node].size += own
        replica.evictable += own
        _append(nodes, node)
    for listed in range(request.first_unit + request.units - 1, request.first_unit - 1, -1):
        if world.held[listed]:
            world.held[listed] = 0
            unit = wide(world.units[listed])
            nodes[unit].references -= 1
            if nodes[unit].references == 0:
                replica.evictable += nodes[unit].size
                _append(nodes, unit)


@compiled
def resident_units(world: World, place: int, request: Row) -> int:
    """Count the leading units of a prompt that are in the cache."""
    for count in range(request.prompt_units):
        if world.nodes[place][world.units[request.first_unit + count]].references == NONE:
            return count
    return wide(request.prompt_units)


@compiled
def covered_tokens(world: World, request: Row, units: int) -> int:
    """Return the tokens of the leading units of a prompt."""
    return wide(world.unit_ends[request.first_unit + units - 1]) if units > 0 else wide(0)


@compiled
def units_within(world: World, request: Row, tokens: int) -> int:
    """Count the leading units that end within these tokens."""
    low, high = wide(0), wide(request.units)
    while low < high:
        middle = (low + high) // 2
        if world.unit_ends[request.first_unit + middle] <= tokens:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def units_blocks(world: World, place: int, request: Row, count: int) -> tuple[int, int]:
    """Return the blocks of the leading units of a prompt, and how many of them nobody holds."""
    total, unheld = 0, 0
    for listed in range(request.first_unit, request.first_unit + count):
        node = world.nodes[place][world.units[listed]]
        total += node.size
        if node.references == 0:
            unheld += node.size
    return total, unheld


@compiled
def hold_units(world: World, place: int, request: Row, count: int) -> None:
    """Reference the leading units of a prompt, so that they stay."""
    nodes = world.nodes[place]
    for listed in range(request.first_unit, request.first_unit + count):
        unit = wide(world.units[listed])
        if nodes[unit].references == 0:
            world.replicas[place].evictable -= nodes[unit].size
            _unlink(nodes, unit)
        nodes[unit].references += 1
        world.held[listed] = 1
        request.shared_blocks += nodes[unit].size


@compiled
def publish_units(world: World, place: int, request: Row, first: int, end: int, computed: int) -> None:
    """Let others find the units from ``first`` to ``end`` that the first ``computed`` tokens complete."""
    nodes, settings = world.nodes[place], world.settings[0]
    for count in range(first, end):
        before, after = covered_tokens(world, request, count), covered_tokens(world, request, count + 1)
        if after > computed:
            return
        listed = request.first_unit + count
        unit = wide(world.units[listed])
        if nodes[unit].references == NONE:
            nodes[unit].references = 1
            nodes[unit].size = blocks_of(after - before, settings.block_tokens)
            world.held[listed] = 1
            request.shared_blocks += nodes[unit].size


@entry
def empty_cache(world: World, place: int) -> None:
    """Empty the cache of a replica that comes back."""
    replica, nodes = world.replicas[place], world.nodes[place]
    replica.free = world.settings[0].kv_blocks
    replica.evictable = 0
    end = len(nodes) - 1
    for node in range(end):
        nodes[node].references = NONE
        nodes[node].size = 0
    nodes[end].next = end
    nodes[end].previous = end


@compiled
def _append(nodes: Rows, node: int) -> None:
    """Add a node as the most recently used."""
    end = len(nodes) - 1
    last = nodes[end].previous
    nodes[last].next = node
    nodes[node].previous = last
    nodes[node].next = end
    nodes[end].previous = node


@compiled
def _unlink(nodes: Rows, node: int) -> None:
    before, behind = nodes[node].previous, nodes[node].next
    nodes[before].next = behind
    nodes[behind].previous = before
