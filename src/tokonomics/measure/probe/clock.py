"""How long a call takes on a GPU: CUDA graphs where launches would dominate, events, medians; by the wall elsewhere."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

REPLAYS = 20
PREFILLS = 7
WARM = 4


class GpuClock:
    """Times steps: on a GPU with events, elsewhere by the wall."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def median_ms(self, run: Callable[[], object], times: int) -> float:
        """The median of runs queued one behind the other, so that the host's first launch is not timed."""
        import torch

        if not self.cuda:
            return statistics.median(_wall_ms(run) for _ in range(times))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        run()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return statistics.median(float(one.elapsed_time(other)) for one, other in pairwise(events))

    def graph(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any, Callable[[], None]]:
        """The call as one CUDA graph: what replays it, what it gave, and what lets go of it."""
        import torch

        if not self.cuda:
            return run, run(), lambda: None
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gave = run()
        return graph.replay, gave, graph.reset

    def in_graph_s(self, run: Callable[[], Any], calls: int, warm_s: float = 2e-3) -> tuple[float, float]:
        """Seconds of one of the ``calls`` that ``run`` makes, replayed as a graph; and how long it had been busy.

        Replayed for ``warm_s`` before: the clock of a rested GPU, and of a hot one, is another.
        """
        import torch

        replay, _, let_go = self.graph(run)
        try:
            once_s = max(1e-6, self.median_ms(replay, 2) * 1e-3)
            warm = min(2000, int(warm_s / once_s) + 1)
            for _ in range(warm):
                replay()
            times = max(3, min(15, int(20e-3 / once_s)))
            seconds = self.median_ms(replay, times) * 1e-3
        finally:
            let_go()
            if self.cuda:
                torch.cuda.empty_cache()  # what the graph held cannot be given back while the next is captured
        return seconds / calls, once_s * (warm + 3 + times / 2)

    def decode_ms(self, step: Callable[[], tuple[Any, list[Any]]]) -> tuple[float, list[Any]]:
        """The median over replays of the step as one graph, and what the step gave beside its tokens."""
        step()  # compiles
        replay, (_, counts), let_go = self.graph(step)
        for _ in range(WARM):
            replay()
        milliseconds = self.median_ms(replay, REPLAYS)
        counts = [count.cpu() for count in counts if count is not None]
        let_go()
        return milliseconds, counts

    def prefill_ms(self, step: Callable[[], object]) -> float:
        """Whole prompts, launched by the host, attention by the flash kernel."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION if self.cuda else SDPBackend.MATH):
            for _ in range(WARM):
                step()
            return self.median_ms(step, PREFILLS)


def _wall_ms(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e3
