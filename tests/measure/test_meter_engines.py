"""Metrics pages of every engine come out as the same words; the traps of each are known."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.measure.metered import Bench, HandClock, HandSource

from tokonomics.measure.meter.engines import (
    ENGINES,
    FINDER,
    FRONTENDS,
    Sample,
    UnknownEngine,
    engine_of,
    prefixes_of,
    readings_of,
    samples_of,
)
from tokonomics.measure.meter.readings import Counted, Missed, Reading, Source

PAGES = Path(__file__).parent / "pages"


def read(page: str) -> Reading:
    (reading,) = readings_of(samples_of(page, FINDER), "http://gpu:8000", 100.0, found=prefixes_of(page))
    return reading


def recorded(name: str) -> str:
    return (PAGES / name).read_text()


def figures(reading: Reading) -> dict[str, float]:
    kinds = (Counted.input_total, Counted.input_cached, Counted.output, Counted.answered, Counted.failed)
    return {kind.value: reading.total(kind) for kind in kinds}


@pytest.mark.parametrize(
    ("page", "engine", "model", "expected"),
    [
        # The same 224-token prompt twice, 16 tokens out each: 128 of the second were cached (pages/README.md).
        ("vllm-0.32.prom", "vllm", "tiny", (448, 128, 32, 2, 0)),
        # One prompt of 55 tokens (51 letters, the first space in 3 bytes, the start) twice, 16 out each; all
        # but one token of the second prompt come from the cache.
        ("llamacpp-2026.10.prom", "llama.cpp", "", (110, 54, 32, 0, 0)),
        ("sglang-0.5.23.prom", "sglang", "glm", (10_000, 4000, 2000, 40, 2)),
        ("tensorrt-llm.prom", "tensorrt-llm", "llama", (5000, 1000, 700, 9, 5)),
        ("tgi-3.prom", "tgi", "", (2400, 0, 1500, 12, 3)),
        ("triton.prom", "triton", "tensorrt_llm", (6400, 0, 900, 8, 0)),
        # 30 streamed and 10 others; tokens as they come, not those of the requests that are done.
        ("dynamo.prom", "dynamo", "qwen", (12_000, 4500, 3200, 40, 3)),
        # Both models that stand behind the name; the older names beside are the same requests.
        ("llm-d.prom", "llm-d", "chat", (9000 + 2500, 3000, 1800 + 400, 18 + 5, 2)),
        ("gateway.prom", "gateway", "chat", (7700, 700, 1100, 11, 1)),
    ],
)
def test_every_engine_is_told_by_its_page(page: str, engine: str, model: str, expected: tuple[float, ...]) -> None:
    reading = read(recorded(page))
    assert (reading.engine, reading.model) == (engine, model)
    assert tuple(figures(reading).values()) == expected


def test_kserve_names_are_those_of_vllm() -> None:
    """Its PodMonitor has Prometheus put ``kserve_`` before every name."""
    page = recorded("vllm-0.32.prom")
    as_kserve = re.sub(r"^(# \w+ )?vllm:", r"\1kserve_vllm:", page, flags=re.MULTILINE)
    assert (read(as_kserve).engine, figures(read(as_kserve))) == ("vllm", figures(read(page)))
    assert read(as_kserve).running == read(page).running


def test_what_stands_before_engines_is_told() -> None:
    lumpy = {read(page.read_text()).engine: read(page.read_text()).lumpy for page in PAGES.glob("*.prom")}
    assert {engine for engine, is_lumpy in lumpy.items() if not is_lumpy} == {"vllm"}, "it counts tokens as they come"
    assert len(lumpy) == len({words.name for words in ENGINES})
    pages = {page.stem: read(page.read_text()).engine for page in PAGES.glob("*.prom")}
    assert {page for page, engine in pages.items() if engine in FRONTENDS} == {"dynamo", "llm-d", "gateway"}
    worker = samples_of(recorded("vllm-0.32.prom") + recorded("dynamo.prom"), FINDER)
    assert engine_of(worker).name not in FRONTENDS


def test_data_parallel_ranks_add_up_and_of_tensor_ranks_one_speaks() -> None:
    reading = read(recorded("sglang-0.5.23.prom"))
    assert (reading.running, reading.waiting) == (3 + 4, 1 + 0)
    assert reading.kv_share == pytest.approx((0.2 + 0.4) / 2)
    assert reading.total(Counted.preempted) == 1 + 2
    assert reading.total(Counted.idle_s) == 100 + 200
    # The realtime counter shows work and is not billed.
    assert (reading.total(Counted.work), reading.total(Counted.output)) == (1000 + 1100, 2000)


def test_pages_of_a_line_or_two_are_read() -> None:
    page = 'vllm:generation_tokens_total{engine="0",model_name="a \\"b\\" {c} 1"} 7.0\n'
    assert read(page).model == 'a "b" {c} 1'
    for none in ("NaN", "+Inf"):
        assert read(f'{page}vllm:kv_cache_usage_perc{{engine="0"}} {none}\n').kv_share is None
    idle = read('sglang:num_running_reqs{model_name="glm",tp_rank="0"} 0.0\n')
    assert sum(figures(idle).values()) == 0, "it has not worked yet"


def test_engines_of_one_vllm_server_add_up_and_say_when_they_and_their_series_began() -> None:
    one = recorded("vllm-0.32.prom")
    assert read(one).started == 1.79470052531e09
    assert read(one).created["vllm:generation_tokens_total{engine=0}"] == 1.7947007071209996e09
    both = one + "".join(
        line.replace('engine="0"', 'engine="1"') + "\n" for line in one.splitlines() if 'engine="0"' in line
    )
    assert read(both).total(Counted.input_total) == 2 * 448
    assert len(read(both).counters[Counted.output]) == 2


def without(page: str, *names: str) -> str:
    return "".join(line + "\n" for line in page.splitlines() if not any(name in line for name in names))


def test_older_names_are_understood() -> None:
    page = recorded("vllm-0.32.prom")
    by_source = without(page, "prompt_tokens_cached")
    assert read(by_source).total(Counted.input_cached) == 128
    older = without(by_source, "prompt_tokens_by_source")
    assert read(older).total(Counted.input_cached) == 128
    assert "vllm:prefix_cache_hits_total{engine=0}" in read(older).counters[Counted.input_cached]
    renamed = re.sub(r"vllm:kv_cache_usage_perc(\{.*\}) 0.0", r"vllm:gpu_cache_usage_perc\1 0.4", page)
    assert read(renamed).kv_share == 0.4
    uncounted = read(without(recorded("llamacpp-2026.10.prom"), "prompt_tokens_cached"))
    assert (uncounted.total(Counted.input_total), uncounted.total(Counted.input_cached)) == (56, 0)


@pytest.mark.parametrize(
    ("page", "fix"),
    [
        ("node_cpu_seconds_total 1.0\ngo_threads 3\n", "--enable-metrics"),
        # It has answered, but counts no tokens: too old, or told not to.
        ('trtllm_request_success_total{finished_reason="stop"} 5.0\n', "return_perf_metrics"),
        # A page that is cut off would read as a restart.
        (recorded("vllm-0.32.prom")[:-3], ""),
        ('vllm:generation_tokens_total{engine="0"} -7.0\n', ""),
        ("vllm:generation_tokens_total{engine= 7\n", ""),
        ("vllm:generation_tokens_total x\n", ""),
    ],
    ids=["another", "no tokens", "cut off", "below zero", "open label", "no number"],
)
def test_a_page_that_cannot_be_trusted_is_a_reading_that_did_not_come(page: str, fix: str) -> None:
    with pytest.raises(Missed) as refused:
        read(page)
    assert isinstance(refused.value, UnknownEngine) == page.startswith("node")
    assert fix in (refused.value.fix or "")


def test_silence_is_idleness_only_where_something_would_show() -> None:
    page = recorded("tensorrt-llm.prom")
    assert read(page).tells_idle
    assert not read(without(page, "num_requests_running")).tells_idle
    assert read(without(recorded("llamacpp-2026.10.prom"), "requests_processing")).tells_idle


def test_each_model_of_a_server_has_its_reading() -> None:
    samples = [
        Sample("vllm:generation_tokens_total", {"engine": "0", "model_name": name}, value)
        for name, value in (("a", 3.0), ("b", 4.0))
    ]
    unnamed = Sample("vllm:num_preemptions_total", {}, 2.0)
    readings = readings_of([*samples, unnamed], "t", 0.0, {"pod": "p"})
    assert [(reading.model, reading.total(Counted.output)) for reading in readings] == [("a", 3.0), ("b", 4.0)]
    assert sum(reading.total(Counted.preempted) for reading in readings) == 2.0
    assert replace(readings[0], labels={}) != readings[0]


# --- A frontend and the engines behind it count the same tokens: dollars and tokens are those of the engines alone ----


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
