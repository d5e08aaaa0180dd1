"""A frontend and the engines behind it count the same tokens: dollars and tokens are those of the engines alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from tests.measure.metered import Bench, HandClock, HandSource

from tokonomics.measure.meter.readings import Counted, Missed, Reading, Source


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


def metered(bench: Bench, servers: Sequence[Server], through: str) -> Bench:
    """Another meter, in the same book, at a dollar a second and server."""
    bench.sources = sources_of(servers, through)
    bench.again(usd_per_hour=3600.0)
    bench.tick(0)
    return bench


def usd(bench: Bench) -> float:
    return sum(span.usd for span in bench.spans())


BOTH = pytest.mark.parametrize("through", ["prometheus", "addresses"])


def names(through: str) -> tuple[str, str]:
    return ("prod/front", "prod/engine") if through == "prometheus" else ("http://front:8000", "http://engine:8000")


@BOTH
def test_a_frontend_before_metered_engines_costs_nothing(bench: Bench, through: str) -> None:
    """Four ticks of 15 s at a dollar a second, and 600 tokens: the engine's, once."""
    clock, (front, engine) = bench.clock, names(through)
    metered(bench, [Server(clock, front, "dynamo"), Server(clock, engine, "vllm")], through)
    for _ in range(4):
        state = bench.tick()
    assert usd(bench) == pytest.approx(60)
    assert state.total.output == pytest.approx(600)
    assert any(note.startswith(f"{front}: left out for llama") for note in state.notes)


@BOTH
def test_a_frontend_counts_until_its_engine_is_seen_and_is_then_no_gap(bench: Bench, through: str) -> None:
    """30 s of the frontend, then ten minutes of the engine alone; also while the engine is away for a moment."""
    clock, (front, engine) = bench.clock, names(through)
    before, behind = Server(clock, front, "dynamo"), Server(clock, engine, "vllm", up=through == "addresses")
    # Of an address that does not answer, the time is paid all the same: there the engine comes in a second run.
    metered(bench, [before] if through == "addresses" else [before, behind], through)
    bench.tick()
    bench.tick()
    assert usd(bench) == pytest.approx(30)
    if through == "addresses":
        metered(bench, [before, behind], through)
    behind.up = True
    bench.tick(0 if through == "addresses" else 15.0)
    paid = usd(bench)
    for _ in range(40):
        bench.tick()
    assert usd(bench) - paid == pytest.approx(600)
    if through == "prometheus":
        behind.up = False
        paid = usd(bench)
        bench.tick()
        bench.tick()
        assert usd(bench) == pytest.approx(paid)


@BOTH
def test_an_engine_of_another_model_leaves_a_frontend_in(bench: Bench, through: str) -> None:
    """A frontend of two models, one of whose engines is metered: its other model counts."""
    clock, (front, engine) = bench.clock, names(through)
    servers = [Server(clock, front, "dynamo", ("llama", "qwen")), Server(clock, engine, "vllm", ("Llama",))]
    metered(bench, servers, through)
    for _ in range(4):
        state = bench.tick()
    booked = {(group.target, group.model): group.total.output for group in state.groups}
    assert booked == {(front, "qwen"): pytest.approx(600), (engine, "Llama"): pytest.approx(600)}
    assert usd(bench) == pytest.approx(120)
    assert f"{front}: left out for llama" in "\n".join(state.notes)
