"""A made-up vLLM process with true books, clocks that are moved by hand, and a source that reads it: no time passes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokonomics.measure.meter.engines import FINDER, readings_of, samples_of
from tokonomics.measure.meter.readings import Missed, Reading

BEGIN = 1_794_700_800.0
"""2026-11-15 00:00 UTC."""


@dataclass
class HandClock:
    """Moves only when told to; the wall can be set apart from the time that passes."""

    passed: float = 0.0
    offset: float = BEGIN

    def wall(self) -> float:
        return self.passed + self.offset

    def steady(self) -> float:
        return self.passed


@dataclass
class Process:
    """What one server process has counted, and all that was ever produced over its restarts."""

    clock: HandClock
    model: str = "tiny"
    engines: int = 1
    says_start: bool = True
    counted: list[dict[str, float]] = field(default_factory=list)
    started: float = 0.0
    running: float = 0.0
    true_input: float = 0.0
    true_cached: float = 0.0
    true_output: float = 0.0
    up: bool = True

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.counted = [dict.fromkeys(("input", "cached", "output", "steps"), 0.0) for _ in range(self.engines)]
        self.started = self.clock.wall()

    def work(self, input_tokens: int, output_tokens: int, cached: int = 0, engine: int = 0) -> None:
        mine = self.counted[engine]
        mine["input"] += input_tokens
        mine["cached"] += cached
        mine["output"] += output_tokens
        mine["steps"] += 1
        self.true_input += input_tokens
        self.true_cached += cached
        self.true_output += output_tokens

    def page(self) -> str:
        lines = [f"process_start_time_seconds {self.started!r}"] if self.says_start else []
        names = {
            "vllm:prompt_tokens_total": "input",
            "vllm:prompt_tokens_cached_total": "cached",
            "vllm:generation_tokens_total": "output",
            "vllm:iteration_tokens_total_count": "steps",
        }
        for engine, counted in enumerate(self.counted):
            labels = f'{{engine="{engine}",model_name="{self.model}"}}'
            lines += [f"{name}{labels} {counted[key]}" for name, key in names.items()]
            lines.append(f"vllm:num_requests_running{labels} {self.running}")
            lines.append(f"vllm:num_requests_waiting{labels} 0.0")
        return "\n".join(lines) + "\n"


@dataclass
class PageSource:
    """Reads a process without a network."""

    process: Process
    name: str = "http://gpu:8000"
    discovers: bool = False
    warnings: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> Sequence[Reading]:
        if not self.process.up:
            raise Missed("cannot be reached")
        page = samples_of(self.process.page(), FINDER)
        return readings_of(page, self.name, self.process.clock.wall(), self.labels)
