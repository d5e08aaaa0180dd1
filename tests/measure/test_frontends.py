"""A frontend and the engines behind it count the same tokens: dollars and tokens are those of the engines alone."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.measure.metered import HandClock, HandSource

from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import Counted, Missed, Reading, Source
from tokonomics.measure.meter.state import MeterState

EVERY_S, USD_PER_S = 15.0, 1.0


@dataclass
class Server:
    """Ten tokens a second of each model."""

    clock: HandClock
    target: str
    engine: str
    models: Sequence[str] = ("llama",)
    up: bool = True

    def readings(self) -> list[Reading]:
        if not self.up:
            raise Missed("cannot be reached")
        counted = {Counted.output: {"output": 10 * self.clock.passed}}
        return [Reading(self.target, self.engine, model, self.clock.wall(), counted) for model in self.models]


def sources_of(servers: Sequence[Server], through: str) -> Sequence[Source]:
    """Each at its address; or a Prometheus with the newest page of every living target."""
    if through == "addresses":
        return [HandSource(server.target, server.readings) for server in servers]

    def scraped() -> list[Reading]:
        return [reading for server in servers if server.up for reading in server.readings()]

    return [HandSource("http://prometheus:9090", scraped, discovers=True)]


class Run:
    """A meter, tick by tick, at a dollar a second and server."""

    def __init__(self, path: Path, clock: HandClock, sources: Sequence[Source]) -> None:
        self.clock, self.book = clock, Ledger(path)
        self.meter = Meter(sources, self.book, clock, MeterSettings(3600 * USD_PER_S, every_s=EVERY_S))
        self.state = self.tick(0)

    def tick(self, seconds: float = EVERY_S) -> MeterState:
        self.clock.passed += seconds
        self.state = asyncio.run(self.meter.tick())
        return self.state

    def usd(self) -> float:
        return sum(span.usd for span in self.book.spans())


Start = Callable[[HandClock, Sequence[Source]], Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a meter; all of them go on in the same book, one after the other."""
    runs: list[Run] = []

    def start_one(clock: HandClock, sources: Sequence[Source]) -> Run:
        for before in runs:
            before.book.close()
        runs.append(Run(tmp_path / "meter.db", clock, sources))
        return runs[-1]

    yield start_one
    for run in runs:
        run.book.close()


BOTH = pytest.mark.parametrize("through", ["prometheus", "addresses"])


def names(through: str) -> tuple[str, str]:
    return ("prod/front", "prod/engine") if through == "prometheus" else ("http://front:8000", "http://engine:8000")


@BOTH
def test_a_frontend_before_metered_engines_costs_nothing(start: Start, through: str) -> None:
    """Four ticks of 15 s at a dollar a second, and 600 tokens: the engine's, once."""
    clock = HandClock()
    front, engine = names(through)
    run = start(clock, sources_of([Server(clock, front, "dynamo"), Server(clock, engine, "vllm")], through))
    for _ in range(4):
        run.tick()
    assert run.usd() == pytest.approx(60)
    assert run.state.total.output == pytest.approx(600)
    assert any(note.startswith(f"{front}: left out for llama") for note in run.state.notes)


@BOTH
def test_a_frontend_counts_until_its_engine_is_seen_and_is_then_no_gap(start: Start, through: str) -> None:
    """30 s of the frontend, then ten minutes of the engine alone; also while the engine is away for a moment."""
    clock = HandClock()
    front, engine = names(through)
    before, behind = Server(clock, front, "dynamo"), Server(clock, engine, "vllm", up=through == "addresses")
    # Of an address that does not answer, the time is paid all the same: there the engine comes in a second run.
    first = sources_of([before] if through == "addresses" else [before, behind], through)
    run = start(clock, first)
    run.tick()
    run.tick()
    assert run.usd() == pytest.approx(30)
    if through == "addresses":
        run = start(clock, sources_of([before, behind], through))
    behind.up = True
    run.tick(0 if through == "addresses" else EVERY_S)
    paid = run.usd()
    for _ in range(40):
        run.tick()
    assert run.usd() - paid == pytest.approx(600)
    if through == "prometheus":
        behind.up = False
        paid = run.usd()
        run.tick()
        run.tick()
        assert run.usd() == pytest.approx(paid)


@BOTH
def test_an_engine_of_another_model_leaves_a_frontend_in(start: Start, through: str) -> None:
    """A frontend of two models, one of whose engines is metered: its other model counts."""
    clock = HandClock()
    front, engine = names(through)
    servers = [Server(clock, front, "dynamo", ("llama", "qwen")), Server(clock, engine, "vllm", ("Llama",))]
    run = start(clock, sources_of(servers, through))
    for _ in range(4):
        run.tick()
    booked = {(group.target, group.model): group.total.output for group in run.state.groups}
    assert booked == {(front, "qwen"): pytest.approx(600), (engine, "Llama"): pytest.approx(600)}
    assert run.usd() == pytest.approx(120)
    said = "\n".join(run.state.notes)
    assert f"{front}: left out for llama" in said
