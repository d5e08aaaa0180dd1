"""Steps that vLLM logs become counters beside those of its page."""

from pathlib import Path

import pytest

from tokonomics.errors import BadInput
from tokonomics.measure.meter.readings import Counted, Reading
from tokonomics.measure.meter.step_log import StepLog

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


def test_steps_without_prompts_are_counted_from_where_reading_began(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(step(1, 0, 4, 99.0))
    log = StepLog(path)
    with path.open("a") as file:
        file.write(step(2, 0, 8, 5.25) + step(3, 2, 8, 40.0) + "INFO 127.0.0.1 - POST\n" + step(4, 0, 0, 1.0))
        file.write(step(5, 0, 16, 6.75)[:60])
    counts = read(log)
    assert counts == {Counted.step_count: 1, Counted.step_answers: 8, Counted.step_s: pytest.approx(0.00525)}
    with path.open("a") as file:  # the rest of a line that was half written
        file.write(step(5, 0, 16, 6.75)[60:])
    counts = read(log)
    assert counts == {Counted.step_count: 2, Counted.step_answers: 24, Counted.step_s: pytest.approx(0.012)}


def test_a_new_process_counts_from_nothing_and_a_rotated_log_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(step(1, 0, 4, 5.0) * 3)
    log = StepLog(path)
    with path.open("a") as file:
        file.write(step(2, 0, 4, 5.0))
    assert read(log)[Counted.step_count] == 1
    path.rename(tmp_path / "vllm.log.1")
    assert read(log)[Counted.step_count] == 1  # between two names
    path.write_text(step(1, 0, 2, 5.0) * 2)
    assert read(log, started=2.0)[Counted.step_count] == 2


def test_the_log_of_a_server_with_several_models_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.touch()
    readings = [Reading("t", "vllm", model, 0.0, {}) for model in "ab"]
    assert StepLog(path).beside(readings) is readings


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        StepLog(tmp_path / "none.log")
