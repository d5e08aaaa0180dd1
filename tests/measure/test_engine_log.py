"""Logs of engines: what is read, and what is refused with a reason."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure.engine_runs import BUCKETS, COLUMNS, sample

from tokonomics.errors import BadInput
from tokonomics.measure.engine_log import is_engine_log, prompts_of_steps, read_engine_log

REAL = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_engine.json"
SAMPLE = sample()
Change = Callable[[dict[str, Any]], object]


def saved(content: object, folder: Path) -> Path:
    path = folder / "log.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_every_request_and_step_of_the_real_log_is_read() -> None:
    log, raw = read_engine_log(REAL), json.loads(REAL.read_text(encoding="utf-8"))
    assert list(log.runs) == list(raw["runs"])
    for name, run in log.runs.items():
        assert len(run.arrival_s) == len(raw["runs"][name]["requests"])
        assert run.steps == len(raw["runs"][name]["steps"])
        assert run.decodes.sum() == sum(row[2] - 1 for row in raw["runs"][name]["requests"])
        prompts = prompts_of_steps(run, "here")
        assert ((prompts > 0) == (run.prompt_tokens > 0)).all()
        assert prompts.sum() >= len(run.arrival_s), "each prompt is in one step at least"


def test_columns_are_found_by_name_wherever_they_stand(tmp_path: Path) -> None:
    shuffled = copy.deepcopy(SAMPLE)
    for kind, names in COLUMNS.items():
        shuffled["columns"] = shuffled["columns"] | {kind: names[::-1]}
        for run in shuffled["runs"].values():
            run[kind] = [row[::-1] for row in run[kind]]
    one, other = (read_engine_log(saved(each, tmp_path)).runs["poisson-16"] for each in (SAMPLE, shuffled))
    assert all(np.array_equal(getattr(one, field), getattr(other, field)) for field in vars(one))


def test_a_compressed_log_is_a_log_and_other_files_are_none(tmp_path: Path) -> None:
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(json.dumps(SAMPLE).encode()))
    assert is_engine_log(path)
    assert list(read_engine_log(path).runs) == list(SAMPLE["runs"])
    assert not is_engine_log(REAL.parent / "h200_steps.json")
    assert not is_engine_log(REAL.parent / "published.csv.gz")
    assert not is_engine_log(tmp_path / "not there")
    assert not is_engine_log(tmp_path / ("long" * 1000))


def test_a_decode_batch_is_padded_to_the_next_bucket(tmp_path: Path) -> None:
    log = read_engine_log(saved(SAMPLE, tmp_path))
    batches = np.arange(1, BUCKETS[-1] + 1)
    assert log.padded(batches).tolist() == [min(size for size in BUCKETS if size >= batch) for batch in batches]
    assert log.padded(np.array([100])).tolist() == [100], "beyond the last bucket nothing is padded"


def test_prompts_that_share_a_step_are_counted(tmp_path: Path) -> None:
    run = read_engine_log(saved(SAMPLE, tmp_path)).runs["closed-8"]
    # 1,024 tokens a step: four prompts of 256; beside four answers, three and 252 tokens of a fourth; its last four.
    assert prompts_of_steps(run, "here")[:4].tolist() == [4, 4, 1, 0]


def closed(change: Change) -> Change:
    return lambda log: change(log["runs"]["closed-8"])


DAMAGE: list[Change] = [
    lambda log: log.update(runs={}),
    lambda log: log.update(runs=[1]),
    lambda log: log.pop("columns"),
    lambda log: log["columns"].update(steps=["start_s"]),
    lambda log: log.update(max_seqs=0),
    lambda log: log.update(max_batched_tokens="many"),
    lambda log: log.update(graph_buckets=[0]),
    lambda log: log.update(graph_buckets=8),
    lambda log: log["runs"].update(x=3),
    closed(lambda run: run.update(requests=[])),
    closed(lambda run: run.update(steps={})),
    closed(lambda run: run["requests"][2].pop()),
    closed(lambda run: run["steps"].append(["x"] * 7)),
    closed(lambda run: run["steps"][0].__setitem__(1, None)),
    closed(lambda run: run["steps"][0].__setitem__(1, 0)),
    closed(lambda run: run["steps"][0].__setitem__(1, 1e-320)),
    closed(lambda run: run["steps"][0].__setitem__(2, -1)),
    closed(lambda run: [request.__setitem__(3, None) for request in run["requests"]]),
    closed(lambda run: run.update(requests=[[0, 1, 1, 0, 0]])),
    closed(lambda run: run["requests"][0].__setitem__(1, 0)),
    closed(lambda run: run["requests"][0].__setitem__(3, -1)),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_log_is_refused(damage: Change, tmp_path: Path) -> None:
    log = copy.deepcopy(SAMPLE)
    damage(log)
    with pytest.raises(BadInput, match=r"log\.json"):
        read_engine_log(saved(log, tmp_path))


def test_steps_that_are_not_those_of_the_requests_and_a_log_cut_off_are_refused(tmp_path: Path) -> None:
    log = copy.deepcopy(SAMPLE)
    log["runs"]["poisson-16"]["requests"][5][3:] = [None, None]
    run = read_engine_log(saved(log, tmp_path)).runs["poisson-16"]
    assert np.flatnonzero(np.isnan(run.first_token_s)).tolist() == [5], "an answer that never came"
    del log["runs"]["poisson-16"]["steps"][0]
    with pytest.raises(BadInput):
        prompts_of_steps(read_engine_log(saved(log, tmp_path)).runs["poisson-16"], "here")
    path = saved(SAMPLE, tmp_path)
    path.write_text(path.read_text(encoding="utf-8")[:5000], encoding="utf-8")
    with pytest.raises(BadInput):
        read_engine_log(path)
