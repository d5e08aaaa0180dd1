"""The load test against a real engine: llama.cpp, with a tiny random model, on loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from tests.measure.tiny_llama import counters, llama_server

from tokonomics.addresses import target
from tokonomics.measure.bench.loads import Budget
from tokonomics.measure.bench.run import BenchSettings, run_bench
from tokonomics.measure.benchmark_run import BenchmarkRun
from tokonomics.measure.importers.recognise import read_run
from tokonomics.traffic.generate import Sessions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("llama")


@pytest.fixture
def server(folder: Path) -> Iterator[str]:
    with llama_server(folder) as address:
        yield address


def served(run: BenchmarkRun) -> tuple[int, int]:
    return (
        sum((point.input_tokens or 0) + point.outside.input_tokens for point in run.points),
        sum((point.output_tokens or 0) + point.outside.output_tokens for point in run.points),
    )


@pytest.mark.parametrize("load", [{"users": [1, 3, 9]}, {"rates": [20.0]}], ids=["users", "rate"])
def test_tokens_agree_exactly_with_the_servers_own_counters(server: str, load: dict[str, list[int]]) -> None:
    """llama.cpp counts computed prompt tokens and cached ones apart; usage counts both as the prompt."""
    loads: Any = load
    budget = Budget(requests=30, seconds=30)
    asked = BenchSettings(target(server), input="const:120", output="const:24", budget=budget, **loads)
    run = run_bench(asked)
    said = counters(server)
    tokens_in, tokens_out = served(run)
    assert tokens_in == said["prompt_tokens_total"] + said["prompt_tokens_cached_total"]
    assert tokens_out == said["tokens_predicted_total"]
    assert all(point.failed == 0 for point in run.points)


def test_turns_find_what_was_said_before_them_in_the_cache(server: str) -> None:
    """The prompt of a turn holds all of the one before: a server that keeps it computes little but what is new."""
    asked = BenchSettings(
        target(server), users=[2], sessions=Sessions(5, 0.01, limit=1200), input="const:100", output="const:16",
        budget=Budget(precision=1e-9, requests=30, seconds=30),
    )  # fmt: skip
    run = run_bench(asked)
    point, said = run.points[0], counters(server)
    assert point.jobs is not None
    assert point.jobs.finished >= 1
    by_turn = {row.first: row for row in point.jobs.by_turn}
    assert (by_turn[3].cached_share or 0) > 0.5 > (by_turn[1].cached_share or 0)
    computed = said["prompt_tokens_total"] + said["prompt_tokens_cached_total"]
    assert served(run) == (computed, said["tokens_predicted_total"])


def test_prompts_and_answers_have_the_length_asked_for(server: str) -> None:
    """The tokenizer makes a token of each byte, so words differ in tokens: the mean is met within 10 %."""
    point = run_bench(
        BenchSettings(target(server), users=[2], input="const:400", output="const:16", budget=Budget(requests=30))
    ).points[0]
    assert point.mean_output_tokens == 16
    assert point.mean_input_tokens == pytest.approx(400, rel=0.1)


def test_the_command_measures_saves_and_imports_the_same(
    server: str, tmp_path: Path, tokonomics: Callable[..., CompletedProcess[str]]
) -> None:
    saved = tmp_path / "run.json"
    flags = ("--concurrency=1,4", "--input=100", "--output=16", "--requests=30", "--usd-per-hour=2")
    done = tokonomics("bench", server, *flags, "--save", saved, "--chart", tmp_path / "load.svg")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "load.svg").read_text().startswith("<svg")
    again = tokonomics("import", saved, "--usd-per-hour=2")
    assert again.stdout == done.stdout
    assert len(read_run(saved).points[0].records) == 30
