"""The front end of a replica: the process that receives, checks and tokenises requests before the engine has them.

An event loop: it takes what has come meanwhile all together, works on each (``request_s``), and hands them on together;
prompts are tokenised beside that (``token_s``, the longest decides). A request that finds it idle is taken at once.
"""

import numpy as np

from tokonomics.serving.compiled import compiled, wide
from tokonomics.serving.state import NONE, World

TOGETHER = 256
"""Requests at the most: the largest burst that was measured (256 users at once)."""


@compiled
def receive(world: World, place: int, index: int, now_s: float) -> None:
    """A request comes to a replica."""
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
    """Bring the front end up to now: those that wait are its next, when it has done the ones before."""
    replica = world.replicas[place]
    while replica.front_first != NONE and replica.front_end_s <= now_s:
        _hand_on(world, place, replica.front_end_s)


@compiled
def _hand_on(world: World, place: int, begins_s: float) -> None:
    """Those that wait longest are taken in hand: when the engine gets them is known."""
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
