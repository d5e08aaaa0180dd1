"""A real llama.cpp server under our own load: the bench, the meter and the server agree on every token."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.explore import EXPLORE
from tests.measure.faulty import metrics_server
from tests.measure.ledgers import booked
from tests.measure.tiny_llama import counters, llama_server
from tests.there import there

from tokonomics.addresses import target
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.session import meter_servers
from tokonomics.measure.meter.state import MeterState


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


@pytest.mark.slow
@pytest.mark.law
def test_killed_at_random_moments_the_ledger_still_has_every_token_once(tmp_path: Path) -> None:
    """Twenty meters (two in ``make test``), each killed by the kernel at a moment of its own; the server works on.

    The last one ends by Ctrl-C, after what it has not read yet.
    """
    chance = random.Random(0)
    with metrics_server() as server:
        address, process = f"{server.address}/good", server.process
        once(address, tmp_path / "meter.db")
        for kills_left in reversed(range(21 if EXPLORE else 3)):
            meter = metered(tmp_path, address, "--usd-per-hour", "2.49", "--every", "0.1s")
            there(meter.stdout).readline()
            # Not a wait for something: the moment of death is what is drawn.
            until = time.monotonic() + chance.uniform(0, 0.4)
            while time.monotonic() < until:
                process.work(chance.randrange(50), chance.randrange(20), cached=3)
            meter.send_signal(signal.SIGKILL if kills_left else signal.SIGINT)
            meter.communicate(timeout=600)
            assert meter.returncode == (-signal.SIGKILL if kills_left else 0)
            process.work(*((11, 7) if kills_left else (0, 0)))
    made = booked(tmp_path / "meter.db")
    true = process.true_input, process.true_cached, process.true_output
    assert (made.input_total, made.input_cached, made.output) == true
    assert made.usd == pytest.approx(made.seconds * 2.49 / 3600)
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        first, last = book.extent() or (0.0, 0.0)
    assert made.seconds == pytest.approx(last - first, abs=0.01)
