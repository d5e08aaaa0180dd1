"""A made-up vLLM process with true books, clocks that are moved by hand, and a meter that reads it: no time passes."""

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tokonomics.measure.meter.engines import FINDER, readings_of, samples_of
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Missed, Reading, Source
from tokonomics.measure.meter.spans import PaidTime
from tokonomics.measure.meter.state import GroupState, MeterState

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
            "vllm:prompt_tokens_total": "input", "vllm:prompt_tokens_cached_total": "cached",
            "vllm:generation_tokens_total": "output", "vllm:iteration_tokens_total_count": "steps",
        }  # fmt: skip
        for engine, counted in enumerate(self.counted):
            labels = f'{{engine="{engine}",model_name="{self.model}"}}'
            lines += [f"{name}{labels} {counted[key]}" for name, key in names.items()]
            lines.append(f"vllm:num_requests_running{labels} {self.running}")
            lines.append(f"vllm:num_requests_waiting{labels} 0.0")
        return "\n".join(lines) + "\n"


def read_page(page: str, target: str = "t", at: float = 0.0, labels: Mapping[str, str] | None = None) -> list[Reading]:
    return readings_of(samples_of(page, FINDER), target, at, labels)


class Paged(Protocol):
    """Anything that has a metrics page now, unless it is down."""

    clock: HandClock
    up: bool

    def page(self) -> str: ...


@dataclass
class HandSource:
    """Gives the readings that a test makes."""

    name: str
    give: Callable[[], Sequence[Reading]]
    discovers: bool = False
    warnings: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    async def read(self) -> Sequence[Reading]:
        return self.give()


class PageSource(HandSource):
    """Reads a process without a network."""

    def __init__(
        self, process: "Paged", name: str = "http://gpu:8000", labels: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(name, self._page, labels=labels or {})
        self.process = process

    def _page(self) -> Sequence[Reading]:
        if not self.process.up:
            raise Missed("cannot be reached")
        return read_page(self.process.page(), self.name, self.process.clock.wall(), self.labels)


class Scraper(HandSource):
    """Has scraped servers at its own times, as a Prometheus has."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__("http://prometheus:9090", self._since_last, discovers=True)
        self.clock, self.down = clock, False
        self.scraped: list[tuple[str, float, str]] = []
        self.living: set[str] = set()
        self._newest: dict[str, Reading] = {}

    def scrape(self, process: Process, target: str = "prod/a") -> None:
        self.scraped.append((target, self.clock.wall(), process.page()))
        self.living.add(target)

    def _since_last(self) -> Sequence[Reading]:
        if self.down:
            raise Missed("does not answer")
        new = [read_page(page, target, at)[0] for target, at, page in self.scraped]
        self.scraped = []
        came = {reading.target for reading in new}
        again = [last for name, last in self._newest.items() if name in self.living and name not in came]
        self._newest = {reading.target: reading for reading in (*again, *new)}
        return [*again, *new]


class Bench:
    """A meter in the hand, which reads one process; with ``scraped``, through a scraper."""

    def __init__(self, path: Path, scraped: bool = False, usd_per_hour: float = 3.6) -> None:
        self.path, self.usd_per_hour, self.clock = path, usd_per_hour, HandClock()
        self.process, self.scraper = Process(self.clock), Scraper(self.clock)
        self.sources: Sequence[Source] = [self.scraper if scraped else PageSource(self.process)]
        self.book = Ledger(path)
        self.start()

    def start(self, **changed: object) -> None:
        settings = MeterSettings(**({"usd_per_hour": self.usd_per_hour} | changed))  # type: ignore[arg-type]
        self.meter = Meter(self.sources, self.book, self.clock, settings)

    def again(self, **changed: object) -> None:
        """The meter dies, and another one starts."""
        self.book.close()
        self.book = Ledger(self.path)
        self.start(**changed)

    def tick(self, seconds: float = 15.0, work: tuple[int, int] | None = None) -> MeterState:
        """The process does the work, so long passes, and the meter reads."""
        if work is not None:
            self.process.work(*work)
        self.clock.passed += seconds
        return asyncio.run(self.meter.tick())

    def only(self, seconds: float = 15.0, work: tuple[int, int] | None = None) -> GroupState:
        (group,) = self.tick(seconds, work).groups
        return group

    def scrape(self, seconds: float = 15.0, work: tuple[int, int] | None = None) -> MeterState:
        """After so long the scraper reads the process, and the meter the scraper."""
        if work is not None:
            self.process.work(*work)
        self.clock.passed += seconds
        self.scraper.scrape(self.process)
        return self.tick(0)

    def spans(self) -> list[PaidTime]:
        return list(self.book.spans())


class Killed(BaseException):
    """As good as kill -9: nothing in the meter catches it."""


class DiesAt:
    """A database whose process ends before its n-th statement."""

    def __init__(self, database: sqlite3.Connection, statements: int) -> None:
        self._database, self._left = database, statements

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if self._left == 0:
            raise Killed
        self._left -= 1
        return self._database.execute(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)
