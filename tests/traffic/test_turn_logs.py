"""Logs with sessions: who waits for whose answer, and how long after it."""

import json
from pathlib import Path

import numpy as np
import pytest

from tokonomics.errors import BadInput
from tokonomics.traffic.readers import TraceFile, open_trace
from tokonomics.traffic.session_summary import summarize_sessions
from tokonomics.traffic.trace import Trace, save_trace
from tokonomics.traffic.turns import Turns


def waits(trace: Trace) -> list[list[int]]:
    """For each request, those that it waits for."""
    turns = trace.turns
    assert turns is not None
    return [part.tolist() for part in np.split(turns.waits_for, turns.starts[1:-1])]


def lines(path: Path, rows: list[dict[str, object]]) -> TraceFile:
    path.write_text("\n".join(map(json.dumps, rows)))
    return open_trace(path)


def bailian(chat: int, parent: int, at: float, blocks: list[int]) -> dict[str, object]:
    sizes = {"input_length": 16 * len(blocks), "output_length": 9, "hash_ids": blocks}
    return {"chat_id": chat, "parent_chat_id": parent, "timestamp": at, "type": "text", "turn": 1, **sizes}


def test_parents_of_a_bailian_trace_are_waited_for(tmp_path: Path) -> None:
    rows = [bailian(7, -1, 0, [1, 2]), bailian(8, -1, 1, [5]), bailian(9, 7, 4, [1, 2, 3]), bailian(4, 99, 5, [6])]
    file = lines(tmp_path / "log.jsonl", rows)
    trace = file.read()
    assert waits(trace) == [[], [], [0], []]
    assert trace.turns is not None
    assert trace.turns.session.tolist() == [0, 1, 0, 2]
    assert trace.turns.pause_s.tolist() == [0, 0, 4, 0]
    assert any("pauses between turns include them" in note for note in file.problems.notes)
    assert any("1 requests wait for ids" in note for note in file.problems.notes)
    found = summarize_sessions(trace)
    assert found is not None
    # Two of the third prompt's three blocks were there before it: 32 of 48 tokens.
    assert [row.cached_share for row in found.by_turn] == [0, pytest.approx(2 / 3)]


def test_a_list_of_parents_is_waited_for_whole(tmp_path: Path) -> None:
    def row(name: str, parent: object, at: float) -> dict[str, object]:
        return {"timestamp": at, "prompt_tokens": 50, "completion_tokens": 5, "request_id": name, "parent_id": parent}

    rows = [row("a", None, 0), row("b", "a", 2), row("c", ["a"], 2), row("d", ["b", "c"], 9)]
    trace = lines(tmp_path / "log.jsonl", rows).read()
    assert waits(trace) == [[], [0], [0], [1, 2]]
    found = summarize_sessions(trace)
    assert found is not None
    assert found.branch_share == 0.5


def test_what_overlaps_in_a_session_is_a_branch(tmp_path: Path) -> None:
    """Answers take 1, 4 and 3 s from 0, 5 and 6: the third request comes while the second runs, the last after both."""
    path = tmp_path / "log.csv"
    path.write_text(
        "time,prompt_tokens,completion_tokens,session_id,latency_ms\n"
        "0,100,10,a,1000\n1,100,10,b,1000\n5,130,20,a,4000\n6,150,20,a,3000\n20,200,20,a,1000\n"
    )
    file = open_trace(path)
    trace = file.read()
    assert waits(trace) == [[], [], [0], [0], [2, 3]]
    assert trace.turns is not None
    assert trace.turns.pause_s.tolist() == [0, 0, 4, 5, 11]
    assert not any("include them" in note for note in file.problems.notes)


def test_turns_are_taken_to_begin_with_what_was_said(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,prompt_tokens,completion_tokens,session_id\n0,160,16,a\n9,320,16,a\n12,64,16,a\n")
    trace = open_trace(path).read()
    prefix = trace.prefix
    assert prefix is not None
    assert prefix.block_tokens == 16
    np.testing.assert_array_equal(prefix.of(1)[:11], prefix.of(0))  # 176 tokens were said before it
    assert not set(prefix.of(2)) & set(prefix.of(1))  # shorter than what was said: written anew


def test_turns_are_saved_and_read_back(tmp_path: Path) -> None:
    turns = Turns(
        np.asarray([0, 0, 1, 2], np.int32),
        np.asarray([0, 0, 1, 2, 4]),
        np.asarray([0, 1.5, 1.5, 2]),
        np.zeros(4, np.int32),
    )
    trace = Trace(np.arange(4, dtype=np.float64), np.full(4, 30, np.int32), np.full(4, 3, np.int32), turns=turns)
    save_trace(trace, tmp_path / "jobs.parquet")
    again = open_trace(tmp_path / "jobs.parquet").read()
    assert again.turns is not None
    assert again.prefix is None
    for name in ("waits_for", "starts", "pause_s", "session"):
        np.testing.assert_array_equal(getattr(again.turns, name), getattr(turns, name))


def test_columns_name_what_a_log_calls_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("t,i,o,me,above,idle_ms\n0,10,1,x,,\n5,20,1,y,x,250\n")
    told = "arrival=t,input=i,output=o,request=me,parent=above,pause=idle_ms"
    turns = open_trace(path, columns=told).read().turns
    assert turns is not None
    assert turns.pause_s.tolist() == [0, 0.25]
    with pytest.raises(BadInput, match="no column 'mee'"):
        open_trace(path, columns=told.replace("me,", "mee,"))


def test_observations_of_one_trace_are_one_job(tmp_path: Path) -> None:
    def call(trace: str, start: int, end: int) -> dict[str, object]:
        times = {"startTime": f"2026-01-01T00:00:{start:02}Z", "endTime": f"2026-01-01T00:00:{end:02}Z"}
        return {
            "id": f"{trace}{start}",
            "traceId": trace,
            "type": "GENERATION",
            **times,
            "usageDetails": {"input": 9, "output": 2},
        }

    trace = lines(tmp_path / "langfuse.jsonl", [call("a", 0, 3), call("b", 1, 2), call("a", 10, 12)]).read()
    assert waits(trace) == [[], [], [0]]
    assert trace.turns is not None
    assert trace.turns.pause_s.tolist() == [0, 0, 7]
