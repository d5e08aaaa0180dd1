"""Steps that vLLM logs become counters beside those of its page."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.measure.meter.readings import Counted, Reading
from tokonomics.measure.meter.spans import change_between
from tokonomics.measure.meter.step_log import StepLog

Opened = Callable[[Path], StepLog]
HEAD = "(APIServer pid=567) INFO 11-19 23:13:10 [loggers.py:189] Engine 000: "


def step(number: int, prompts: int, answers: int, ms: float) -> str:
    """A line as vllm/v1/metrics/loggers.py of 0.26.0 writes it."""
    tokens = 512 * prompts
    return (
        f"{HEAD}Iteration({number}): {prompts} context requests, {tokens} context tokens, "
        f"{answers} generation requests, {answers} generation tokens, "
        f"iteration elapsed time: {ms:.2f} ms, GPU KV cache usage: 12.5%\n"
    )


def read(log: StepLog, started: float = 1.0) -> dict[Counted, float]:
    (reading,) = log.beside([Reading("t", "vllm", "m", 0.0, {Counted.output: {"a": 5.0}}, started=started)])
    return {kind: reading.total(kind) for kind in (Counted.step_count, Counted.step_answers, Counted.step_s)}


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens logs that are closed when the test is over."""
    logs: list[StepLog] = []

    def log(path: Path) -> StepLog:
        logs.append(StepLog(path))
        return logs[-1]

    yield log
    for each in logs:
        each.close()


def test_steps_without_prompts_are_counted_from_where_reading_began(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(step(1, 0, 4, 99.0))
    log = opened(path)
    with path.open("a") as file:
        file.write(step(2, 0, 8, 5.25) + step(3, 2, 8, 40.0) + "INFO 127.0.0.1 - POST\n" + step(4, 0, 0, 1.0))
        file.write(step(5, 0, 16, 6.75)[:60])
    counts = read(log)
    assert counts == {Counted.step_count: 1, Counted.step_answers: 8, Counted.step_s: pytest.approx(0.00525)}
    with path.open("a") as file:  # the rest of a line that was half written
        file.write(step(5, 0, 16, 6.75)[60:])
    counts = read(log)
    assert counts == {Counted.step_count: 2, Counted.step_answers: 24, Counted.step_s: pytest.approx(0.012)}


def test_a_new_process_counts_from_nothing_and_a_rotated_log_from_its_beginning(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(step(1, 0, 4, 5.0) * 3)
    log = opened(path)
    with path.open("a") as file:
        file.write(step(2, 0, 4, 5.0))
    assert read(log)[Counted.step_count] == 1
    with path.open("a") as file:
        file.write(step(3, 0, 4, 5.0) * 7)
    path.rename(tmp_path / "vllm.log.1")
    assert read(log)[Counted.step_count] == 8  # the rest of the old one, between two names
    path.write_text(step(1, 0, 2, 5.0) * 3)
    assert read(log)[Counted.step_count] == 11
    with path.open("a") as file:
        file.write(step(4, 0, 4, 5.0) * 2)
    assert read(log, started=2.0)[Counted.step_count] == 0  # what another process takes over begins anew
    path.write_text(step(1, 0, 4, 5.0))
    assert read(log, started=2.0)[Counted.step_count] == 1  # cut short in its place


@pytest.mark.parametrize("started", [1.0, None])
def test_a_meter_that_is_started_again_sees_no_restart_of_the_server(
    tmp_path: Path, opened: Opened, started: float | None
) -> None:
    path = tmp_path / "vllm.log"
    path.touch()

    def reading(log: StepLog, more: int) -> Reading:
        with path.open("a") as file:
            file.write(step(1, 0, 4, 5.0) * more)
        (found,) = log.beside([Reading("t", "vllm", "m", 0.0, {Counted.output: {"a": 5.0}}, started=started)])
        return found

    old = opened(path)
    reading(old, 0)
    before = reading(old, 100)
    again = opened(path)
    for more, counted in ((60, 60.0), (30, 30.0)):
        change = change_between(before, reading(again, more))
        assert (change.is_another, change.fell) == (False, None)
        assert change.counted[Counted.step_count] == counted
        before = change.carried


def test_the_log_of_a_server_with_several_models_is_nobodys(tmp_path: Path, opened: Opened) -> None:
    path = tmp_path / "vllm.log"
    path.touch()
    readings = [Reading("t", "vllm", model, 0.0, {}) for model in "ab"]
    assert opened(path).beside(readings) is readings


@pytest.mark.parametrize(("text", "tells"), [("", False), ("INFO started\n" * 9, False), (step(1, 0, 4, 5.0), True)])
def test_a_log_without_steps_is_known_at_once(tmp_path: Path, opened: Opened, text: str, tells: bool) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(text)
    assert opened(path).tells is tells


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        StepLog(tmp_path / "none.log")
