"""What is done stays done: whole parts, one row for each point, whatever the moment of a kill."""

import json
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tokonomics.__main__  # registers the verbs  # noqa: F401
from tokonomics.errors import BadInput
from tokonomics.questions.request import SILENT
from tokonomics.questions.verbs import find_verb
from tokonomics.sweep import store as folders
from tokonomics.sweep.outcome import _PATHS, PointOutcome, Status, figures_of
from tokonomics.sweep.points import SweepPoint
from tokonomics.sweep.store import opened, read_manifest, write_manifest
from tokonomics.traffic.trace import make_trace, save_trace


def answered(number: int) -> PointOutcome:
    return PointOutcome(Status.OK, None, {"usd_per_mtok": number / 7}, json.dumps({"is": number}), 0.5)


def points(count: int) -> list[SweepPoint]:
    return [SweepPoint(place, f"id{place}", {"rate": str(place)}, {}) for place in range(count)]


def test_what_is_added_is_there_when_the_folder_is_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sweep") as store:
        store.add([("id0", answered(0)), ("id1", PointOutcome(Status.REFUSED, "does not fit"))])
    with opened(tmp_path / "a.sweep") as store:
        assert {key: kept.outcome.status for key, kept in store.done.items()} == {
            "id0": Status.OK,
            "id1": Status.REFUSED,
        }
        assert store.done["id1"].outcome.error == "does not fit"
        assert store.done["id0"].outcome.figures == {"usd_per_mtok": 0.0}


def test_each_point_has_its_row_in_order_with_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 points added backwards, so that parts are merged on the way and chunks of the results span several."""
    monkeypatch.setattr(folders, "_CHUNK", 70)
    with opened(tmp_path / "a.sweep") as store:
        for place in reversed(range(300)):
            store.add([(f"id{place}", answered(place))])
        path = store.results(points(300), {"over_rate": list(range(300))})
        assert len(list(store.folder.glob("part-*"))) < 300
    rows = pl.read_parquet(path)
    assert rows["point"].to_list() == rows["over_rate"].to_list() == list(range(300))
    assert [json.loads(text)["is"] for text in rows["answer"]] == list(range(300))


def test_a_kill_between_merging_and_clearing_away_doubles_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sweep") as store:
        for place in range(5):
            store.add([(f"id{place}", answered(place))])
        small = {path.name: path.read_bytes() for path in store.folder.glob("part-*")}
        store._merge()
        store.add([("id5", answered(5))])
        for name, content in small.items():
            (store.folder / name).write_bytes(content)
        (store.folder / ".part-000000009.0a1b2c3d4e5f.part.parquet").write_bytes(b"half")
    with opened(tmp_path / "a.sweep") as store:
        assert sorted(path.name for path in store.folder.iterdir()) == [
            "lock", "part-000000001-000000005.parquet", "part-000000006.parquet",
        ]  # fmt: skip
        assert len(store.done) == 6
        store.add([("id6", answered(6))])
        assert (store.folder / "part-000000007.parquet").exists()


class Death(BaseException):
    """Of the process, as far as what lies on the disk is concerned."""


@pytest.mark.parametrize("steps", range(7))
def test_a_death_within_a_merge_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Five parts: before the merged one is written, after it, and after each of the five that are cleared away."""
    left = [steps]

    def mortal(step: Any) -> Any:
        def taken(*given: Any, **named: Any) -> Any:
            if left[0] == 0:
                raise Death
            left[0] -= 1
            return step(*given, **named)

        return taken

    with opened(tmp_path / "a.sweep") as store:
        for place in range(5):
            store.add([(f"id{place}", answered(place))])
        with monkeypatch.context() as dying:
            dying.setattr(folders.Store, "_write", mortal(folders.Store._write))
            dying.setattr(Path, "unlink", mortal(Path.unlink))
            try:
                store._merge()
                assert steps == 6
            except Death:
                assert steps < 6
    with opened(tmp_path / "a.sweep") as store:
        rows = pl.concat([pl.read_parquet(path) for path in store.folder.glob("part-*")])
        assert sorted(rows["id"]) == sorted(store.done) == [f"id{place}" for place in range(5)]
        assert len(list(store.folder.glob("part-*"))) == (5 if steps == 0 else 1)


def test_a_folder_with_brackets_in_its_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``d[1].sweep``: no pattern of names."""
    monkeypatch.setattr(folders, "_SMALL", 2)
    folder = tmp_path / "d[1]*.sweep"
    for place in range(3):
        with opened(folder) as store:
            store.add([(f"id{place}", answered(place))])
    with opened(folder) as store:
        store.add([("id3", PointOutcome(Status.FAILED, "took longer")), ("id4", PointOutcome(Status.REFUSED, "no"))])
        assert store.forget_failed() == 1
        assert sorted(store.done) == ["id0", "id1", "id2", "id4"]
        path = store.results(points(3), {"over_rate": [0, 1, 2]})
    assert [json.loads(text)["is"] for text in pl.read_parquet(path, glob=False)["answer"]] == [0, 1, 2]


def test_a_folder_that_is_no_sweeps_own_is_refused_and_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path / "a.sweep") as store:
        store.add([("id0", answered(0))])
        with pytest.raises(BadInput), opened(tmp_path / "a.sweep"):
            pass  # another sweep is at work in it
    (part := tmp_path / "a.sweep" / "part-000000001.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(BadInput) as refused, opened(tmp_path / "a.sweep"):
        pass
    assert refused.value.where == str(part)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("dear")
    with pytest.raises(BadInput), opened(tmp_path / "mine"):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_manifest_of_another_version_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"verb": "plan"})
    assert (read_manifest(tmp_path) or {})["verb"] == "plan"
    (tmp_path / folders.MANIFEST).write_text('{"schema": 99}')
    with pytest.raises(BadInput, match="another version"):
        read_manifest(tmp_path)


WRITER = """
import sys
from pathlib import Path
from tokonomics.sweep import store as folders
from tokonomics.sweep.outcome import PointOutcome, Status
folders._SMALL = 7
with folders.opened(Path(sys.argv[1])) as store:
    for place in range(len(store.done), 100_000):
        store.add([(f"id{place}", PointOutcome(Status.OK, None, {"n": place}, str(place)))])
        print(place, flush=True)
"""


@pytest.mark.slow
def test_kill_9_at_any_moment_loses_nothing_that_was_said_to_be_done(tmp_path: Path) -> None:
    """Six kills of one growing store: every point it reported is there, whole, once, and nothing is left over."""
    folder, done = tmp_path / "a.sweep", 0
    for kill in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True, env=os.environ
        ) as writer:
            assert writer.stdout is not None
            said = -1
            for _ in range(5 + 3 * kill):
                said = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            said = max([said, *(int(line) for line in writer.stdout.read().split("\n")[:-1])])
        with opened(folder) as store:
            assert {f"id{place}" for place in range(said + 1)} <= store.done.keys()
            assert len(store.done) in (said + 1, said + 2)  # one may have been stored and not yet reported
            rows = pl.concat([pl.read_parquet(path) for path in folder.glob("part-*")])
            assert sorted(rows["id"]) == sorted(store.done)
            assert all(row["answer"] == row["id"].removeprefix("id") for row in rows.to_dicts())
            assert len(store.done) > done
            done = len(store.done)


# --- the columns of the results are figures of the verb's own answer, under the names that it gives them --------------


CHAT = {"model": "llama-3.1-8b", "input": 500, "output": 100, "slo": "ttft_p99=1,tpot_p99=50ms"}
ASKED: dict[str, dict[str, Any]] = {
    "plan": {**CHAT, "rate": "5", "gpu": ["H100"]},
    "simulate": {**CHAT, "rate": "5", "gpu": "H100", "requests": 500, "replicas": 2},
    "capacity": {"model": "llama-3.1-8b", "gpu": "H100", "slo": CHAT["slo"]},
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    log = tmp_path_factory.mktemp("log") / "log.parquet"
    save_trace(make_trace(np.arange(500) * 0.2, np.full(500, 500), np.full(500, 100)), log)

    @cache
    def answer(verb: str) -> Any:
        asked = find_verb(verb)
        values = ASKED[verb] | ({"trace": str(log)} if verb == "capacity" else {})
        return asked.answer(asked.request.checked(values), SILENT).plain()

    return answer


@pytest.mark.parametrize("verb", sorted(_PATHS))
def test_every_column_of_a_verb_is_in_its_answer(answers: Any, verb: str) -> None:
    assert _PATHS[verb].keys() - figures_of(verb, answers(verb)).keys() == set()


def test_a_column_with_a_name_of_the_answer_has_its_value(answers: Any) -> None:
    """Of two replicas that answer five requests a second, some time is idle and hardly any batch is full."""
    answer = answers("simulate")
    found = figures_of("simulate", answer)
    assert {name: answer[name] for name in found if name in answer} == {
        name: value for name, value in found.items() if name in answer
    }
    assert found["replicas"] == answer["peak_replicas"] == 2
    assert (found["busy_share"], found["load_share"]) == (answer["busy_share"], answer["load_share"])
    assert answer["load_share"] < answer["busy_share"]
