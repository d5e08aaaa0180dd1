"""What the client itself adds to the latencies that it measures: requests sent late, and answers read late.

One thread sends all requests and reads all streams, in turns: it looks for what has arrived, and then works on it. What
it finds at once had arrived since it last looked, in the middle of that time on average; what it had to wait for has
just arrived. What a stream brings is read in the turn that finds it and handed on in the next.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from tokonomics.units import seconds

Result = TypeVar("Result")
_OWN_SHARE = 0.05
"""Of a measured TTFT that is the client's own, from which on it says so: a choice."""


class LoopTurns(selectors.DefaultSelector):
    """The selector of an event loop, which knows how long it was idle and when what it found had arrived."""

    def __init__(self) -> None:
        super().__init__()
        self._looked_s = self._arrived_s = perf_counter()
        self._arrived_before_s: float | None = None
        self.idle_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What has arrived, as the event loop asks for it."""
        since_s = self._looked_s
        found = super().select(0)
        if not found and timeout != 0:
            asleep_s = perf_counter()
            found = super().select(timeout)
            since_s = perf_counter()
            self.idle_s += since_s - asleep_s
        self._looked_s, self._arrived_before_s = perf_counter(), self._arrived_s
        self._arrived_s = (since_s + self._looked_s) / 2
        return found

    def waited_s(self, now_s: float) -> float:
        """For how long, about, what is handed on now had waited; 0 where no event loop uses it."""
        return 0.0 if self._arrived_before_s is None else now_s - self._arrived_before_s


def run_in_turns(main: Callable[[LoopTurns], Coroutine[Any, Any, Result]]) -> Result:
    """The result of what is to know the turns of its event loop."""
    turns = LoopTurns()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(turns)) as runner:
        return runner.run(main(turns))


def own_delay(own_s: Sequence[float], ttft_s: Sequence[float]) -> str | None:
    """What the client itself adds to the first token, where that is a part worth knowing."""
    if not ttft_s:
        return None
    ranked = [(rank, *(float(np.percentile(times_s, rank)) for times_s in (own_s, ttft_s))) for rank in (50, 99)]
    if all(own <= _OWN_SHARE * ttft for _, own, ttft in ranked):
        return None
    told = [f"{seconds(own)} of {seconds(ttft)} (p{rank})" for rank, own, ttft in ranked]
    return f"the client was busy itself: about {' and '.join(told)} of TTFT are its own"
