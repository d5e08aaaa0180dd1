"""Which answer of a replica ends first: a heap of its decoding slots, by the step after which each is done.

A slot can leave before its end (a preemption, a client that hung up), so the heap knows where each slot sits.
"""

from tokonomics.serving.compiled import compiled, wide
from tokonomics.serving.state import Rows


@compiled
def push_end(slots: Rows, slot: int, size: int) -> None:
    """Add a slot to a heap that has ``size`` now."""
    _up(slots, slot, size)


@compiled
def remove_end(slots: Rows, slot: int, size: int) -> None:
    """Take a slot out of a heap that has ``size`` left then."""
    place = wide(slots[slot].heap_place)
    last = wide(slots[size].heap)
    if last == slot:
        return
    if place > 0 and _sooner(slots, last, wide(slots[(place - 1) // 2].heap)):
        _up(slots, last, place)
    else:
        _down(slots, last, place, size)


@compiled
def _sooner(slots: Rows, one: int, other: int) -> bool:
    """Ends earlier; together: was admitted earlier."""
    if slots[one].end != slots[other].end:
        return bool(slots[one].end < slots[other].end)
    return bool(slots[one].order < slots[other].order)


@compiled
def _up(slots: Rows, slot: int, place: int) -> None:
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
def _down(slots: Rows, slot: int, place: int, size: int) -> None:
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        if below + 1 < size and _sooner(slots, wide(slots[below + 1].heap), wide(slots[below].heap)):
            below += 1
        other = wide(slots[below].heap)
        if not _sooner(slots, other, slot):
            break
        slots[place].heap = other
        slots[other].heap_place = place
        place = below
    slots[place].heap = slot
    slots[slot].heap_place = place
