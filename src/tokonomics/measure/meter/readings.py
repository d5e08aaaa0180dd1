"""What the meter reads: counters of serving engines in common words, what GPUs report, and the time.

Engines disagree on what "prompt tokens" are and count per rank or data-parallel engine, so a reading keeps every
series of a kind apart: only the increases of single series may be added up, since each can restart from zero. A source
is anything that can be asked for readings: an engine's address, or a Prometheus server.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from pydantic import Field

from tokonomics.errors import TokonomicsError
from tokonomics.types import Noun


class Counted(StrEnum):
    """What is counted up over the life of a process; values of all series of a kind add up."""

    input_total = "input_total"  # prompt tokens, those found in a cache included
    input_cached = "input_cached"  # of them, not computed again
    output = "output"
    answered = "answered"  # requests that ended well
    failed = "failed"  # requests that ended in an error, or were given up
    preempted = "preempted"  # times that a request lost its place and must compute again
    work = "work"  # steps, seconds or tokens that move whenever the engine does anything: only whether it moves matters
    idle_s = "idle_s"  # seconds without work, by the engine's own account
    ttft_s = "ttft_s"
    ttft_count = "ttft_count"
    e2e_s = "e2e_s"
    e2e_count = "e2e_count"


Series = Mapping[str, float]  # values by the series' full name, such as ``vllm:generation_tokens_total{engine="0"}``


@dataclass(frozen=True, slots=True)
class Reading:
    """What one model on one server had counted at an instant."""

    target: str  # the address, or the name the source gives it; with the model, who this reading is of
    engine: str
    model: str  # as the engine names it; "" where it does not
    at: float  # unix seconds, by the meter's clock
    counters: Mapping[Counted, Series]
    started: float | None = None  # of the process, unix seconds by the server's clock
    server_at: float | None = None  # ``at`` by that clock, where the answer tells it: ours may be set meanwhile
    created: Series = field(default_factory=dict)  # when each series was made: later than before means restarted at 0
    running: float | None = None
    waiting: float | None = None
    kv_share: float | None = None  # share of the KV cache in use, 0 to 1
    lumpy: bool = False  # tokens are counted only when a request ends
    moves_within: bool = False  # a counter moves while a request runs: none moved means no work, whatever gauges say
    tells_idle: bool = True  # False: nothing on the page moves while a long request runs, so silence is not idleness
    labels: Mapping[str, str] = field(default_factory=dict)  # of the target, to group by: pod, namespace, tenant, team

    def total(self, kind: Counted) -> float:
        return sum(self.counters.get(kind, {}).values())


class GpuReading(Noun):
    """What one GPU says of itself at an instant; None where it does not."""

    uuid: str
    name: str
    at: float = Field(exclude=True)
    utilization: float | None = None  # share of the time in which any kernel ran: decode at batch 1 reads about 1
    power_w: float | None = None
    energy_j: float | None = None  # cumulative; starts again with the driver or the machine
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    dram_active: float | None = None  # share of the memory bandwidth in use, 0 to 1
    tensor_active: float | None = None
    labels: dict[str, str] = Field(default_factory=dict)  # such as hostname, pod, namespace


class Missed(TokonomicsError):
    """A reading that did not come: the meter says so, counts it, and goes on."""


class Source(Protocol):
    name: str  # for messages; of an engine's address also the target of its readings
    discovers: bool  # targets come and go by themselves: one that is not reported any more is not paid for any more
    labels: Mapping[str, str]  # of its one target, to group and price by; empty where it discovers
    warnings: Sequence[str]  # what was odd about the last reading

    async def read(self) -> Sequence[Reading]:
        """All there is now; raises ``Missed`` when nothing can be had.

        Of a source that discovers: every scrape of each living target since the last call, with its own time.
        """


GpuSource = Callable[[], Awaitable[Sequence[GpuReading]]]
"""All GPUs there are now; raises an error of ours where none can be had."""


class Clock(Protocol):
    """Two clocks: one that labels and may jump, and one that measures durations."""

    def wall(self) -> float:
        """Unix seconds."""

    def steady(self) -> float:
        """Seconds since some instant; never goes back."""


class SystemClock:
    def wall(self) -> float:
        return time.time()

    def steady(self) -> float:
        # Linux alone has a clock that neither jumps nor stops while the machine sleeps.
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.clock_gettime(boottime) if boottime is not None else time.monotonic()
