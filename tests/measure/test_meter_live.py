"""A real llama.cpp server under our own load: the bench, the meter and the server agree on every token."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.explore import EXPLORE
from tests.measure.metrics_server import metrics_server
from tests.measure.tiny_llama import counters, llama_server

from tokonomics.measure.addresses import target
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.session import meter_servers
from tokonomics.measure.meter.spans import tally
from tokonomics.measure.meter.state import MeterState, MeterTally


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with llama_server(tmp_path_factory.mktemp("model")) as address:
        yield address


def once(address: str, path: Path) -> MeterState:
    with Ledger(path) as book:
        last = meter_servers(MeterSettings(2.49, [address], every_s=0.1, beats=1), book, lambda state: None)
    assert last is not None
    return last


def test_the_bench_the_meter_and_the_server_agree_on_every_token(llama: str, tmp_path: Path) -> None:
    before = counters(llama)
    once(llama, tmp_path / "meter.db")
    load = BenchSettings(
        target(llama), users=[3], input="const:60", output="const:20", budget=Budget(requests=12, seconds=30)
    )
    run = run_bench(load)
    state = once(llama, tmp_path / "meter.db")
    after = counters(llama)
    grown = {name: after[name] - before[name] for name in after}
    (group,) = state.groups
    assert (group.engine, group.model) == ("llama.cpp", "tiny")
    assert group.total.output == grown["tokens_predicted_total"]
    assert group.total.input_total == grown["prompt_tokens_total"] + grown["prompt_tokens_cached_total"]
    assert group.total.input_cached == grown["prompt_tokens_cached_total"]
    assert group.total.input_computed == grown["prompt_tokens_total"]
    (point,) = run.points
    assert group.total.input_total == (point.input_tokens or 0) + point.outside.input_tokens
    assert group.total.output == (point.output_tokens or 0) + point.outside.output_tokens
    assert group.total.usd == pytest.approx(group.total.seconds * 2.49 / 3600)


def metered(tmp_path: Path, *arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tokonomics", "meter", *arguments, "--ledger", str(tmp_path / "meter.db")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_ctrl_c_ends_with_the_sums_and_how_to_get_the_report(tmp_path: Path) -> None:
    with metrics_server() as server:
        meter = metered(tmp_path, f"{server.address}/good", "--usd-per-hour", "2.49", "--every", "0.1s")
        assert meter.stdout is not None
        assert "1/1 server up" in meter.stdout.readline()
        server.process.work(700, 300)
        meter.send_signal(signal.SIGINT)
        out, said = meter.communicate(timeout=600)
    assert meter.returncode == 0
    assert "per million tokens today" in out
    assert "tokens in" in out
    assert f"tokonomics meter report --since 1d --by model,hour --ledger {tmp_path / 'meter.db'}" in said


def test_json_is_an_object_an_interval_and_the_last_alone_with_once(tmp_path: Path) -> None:
    with metrics_server() as server:
        arguments = (f"{server.address}/good", "--usd-per-hour", "2.49", "--every", "0.1s", "--json")
        out, _ = metered(tmp_path, *arguments, "--for", "0.2s").communicate(timeout=600)
        states = [json.loads(line) for line in out.splitlines()]
        assert len(states) in (2, 3)  # what a busy machine comes too late for is skipped, but not the last
        out, _ = metered(tmp_path, *arguments, "--once").communicate(timeout=600)
        state = json.loads(out)
    assert state["groups"][0]["engine"] == "vllm"
    assert state["today"]["seconds"] > states[-1]["today"]["seconds"]
    assert {"usd_per_mtok", "usd_per_mtok_usage", "idle_share"} <= state["now"].keys()


@pytest.mark.slow
@pytest.mark.law
def test_killed_at_random_moments_the_ledger_still_has_every_token_once(tmp_path: Path) -> None:
    """Twenty meters (two in ``make test``), each killed by the kernel at a moment of its own; the server works on."""
    chance = random.Random(0)
    with metrics_server() as server:
        arguments = (f"{server.address}/good", "--usd-per-hour", "3.6", "--every", "0.1s")
        first = metered(tmp_path, *arguments, "--once")
        first.communicate(timeout=600)
        for _ in range(20 if EXPLORE else 2):
            meter = metered(tmp_path, *arguments)
            assert meter.stdout is not None
            meter.stdout.readline()
            # Not a wait for something: the moment of death is what is drawn.
            until = time.monotonic() + chance.uniform(0, 0.4)
            while time.monotonic() < until:
                server.process.work(chance.randrange(50), chance.randrange(20), cached=3)
            os.kill(meter.pid, signal.SIGKILL)
            meter.communicate(timeout=600)
            server.process.work(11, 7)
        metered(tmp_path, *arguments, "--once").communicate(timeout=600)
        process = server.process
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        spans = list(book.spans())
    made = sum((tally(span) for span in spans), MeterTally())
    assert made.output == process.true_output
    assert made.input_total == process.true_input
    assert made.input_cached == process.true_cached
    assert made.usd == pytest.approx(made.seconds * 3.6 / 3600)
    assert made.seconds == pytest.approx(spans[-1].end - spans[0].start, abs=0.01)
