"""Logs with sessions: who waits for whose answer, and how long after it."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.there import there
from tests.traffic.written_logs import opened

from tokonomics.traffic.formats import OF_SESSIONS, USUAL_NAMES
from tokonomics.traffic.readers import TraceFile, open_trace
from tokonomics.traffic.sessions import summarize_sessions
from tokonomics.traffic.trace import Trace, Turns, save_trace


def waits(trace: Trace) -> list[list[int]]:
    """For each request, those that it waits for."""
    turns = there(trace.turns)
    return [part.tolist() for part in np.split(turns.waits_for, turns.starts[1:-1])]


def sessions_and_pauses(trace: Trace) -> tuple[list[int], list[float]]:
    assert trace.turns is not None
    return trace.turns.session.tolist(), trace.turns.pause_s.tolist()


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
    assert sessions_and_pauses(trace) == ([0, 1, 0, 2], [0, 0, 4, 0])
    assert any("pauses between turns include them" in note for note in file.problems.notes)
    assert any("1 request waiting for ids" in note for note in file.problems.notes)
    found = there(summarize_sessions(trace))
    # Two of the third prompt's three blocks were there before it: 32 of 48 tokens.
    assert [row.cached_share for row in found.by_turn] == [0, pytest.approx(2 / 3)]


def test_a_list_of_parents_is_waited_for_whole(tmp_path: Path) -> None:
    def row(name: str, parent: object, at: float) -> dict[str, object]:
        return {"timestamp": at, "prompt_tokens": 50, "completion_tokens": 5, "request_id": name, "parent_id": parent}

    rows = [row("a", None, 0), row("b", "a", 2), row("c", ["a"], 2), row("d", ["b", "c"], 9)]
    trace = lines(tmp_path / "log.jsonl", rows).read()
    assert waits(trace) == [[], [0], [0], [1, 2]]
    found = there(summarize_sessions(trace))
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
    assert sessions_and_pauses(trace)[1] == [0, 0, 4, 5, 11]
    assert not any("include them" in note for note in file.problems.notes)


def test_turns_are_taken_to_begin_with_what_was_said(tmp_path: Path) -> None:
    turns = "time,prompt_tokens,completion_tokens,session_id\n0,160,16,a\n9,320,16,a\n12,64,16,a\n"
    trace = opened(tmp_path, turns).read()
    prefix = there(trace.prefix)
    assert prefix.block_tokens == 16
    np.testing.assert_array_equal(prefix.blocks_of(1)[:11], prefix.blocks_of(0))  # 176 tokens were said before it
    assert not set(prefix.blocks_of(2)) & set(prefix.blocks_of(1))  # shorter than what was said: written anew


def test_turns_are_saved_and_read_back(tmp_path: Path) -> None:
    turns = Turns(
        np.asarray([0, 0, 1, 2], np.int32), np.asarray([0, 0, 1, 2, 4]), np.asarray([0, 1.5, 1.5, 2]),
        np.zeros(4, np.int32),
    )  # fmt: skip
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
    assert sessions_and_pauses(open_trace(path, columns=told).read())[1] == [0, 0.25]


def test_observations_of_one_trace_are_one_job(tmp_path: Path) -> None:
    def call(trace: str, start: int, end: int) -> dict[str, object]:
        times = {"startTime": f"2026-01-01T00:00:{start:02}Z", "endTime": f"2026-01-01T00:00:{end:02}Z"}
        return {"traceId": trace, "type": "GENERATION", **times, "usageDetails": {"input": 9, "output": 2}}

    trace = lines(tmp_path / "langfuse.jsonl", [call("a", 0, 3), call("b", 1, 2), call("a", 10, 12)]).read()
    assert waits(trace) == [[], [], [0]]
    assert sessions_and_pauses(trace)[1] == [0, 0, 7]


@pytest.mark.parametrize(
    ("time", "name", "session", "parent", "took"),
    [
        ("timestamp", "id", "session_id", "parent_id", "latency_ms"),
        ("time", "request_id", "session", "parent", "duration_ms"),
        ("created_at", "id", "threadId", "waits_for", "latency_ms"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_sessions_are_found_by_the_same_names_in_lines_and_tables(
    tmp_path: Path, time: str, name: str, session: str, parent: str, took: str, kind: str
) -> None:
    """Two calls beside each other wait for the first, whose session they do not repeat; the last asks for itself."""
    rows = [(0, "a", "s", "", 1000), (4, "b", "", "a", 500), (4, "c", "", "a", 500), (9, "d", "t", "", 1000)]
    names = (time, name, session, parent, took, "prompt_tokens", "completion_tokens")
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in (names, *((*row, 50, 5) for row in rows))))
    else:
        objects = [dict(zip(names, (*row, 50, 5), strict=True)) for row in rows]
        path.write_text("\n".join(json.dumps({key: value or None for key, value in row.items()}) for row in objects))
        path.write_text(path.read_text().replace(f'"{time}": null', f'"{time}": 0'))
    trace = open_trace(path).read()
    assert waits(trace) == [[], [0], [0], []]
    assert sessions_and_pauses(trace) == ([0, 0, 0, 1], [0, 3, 3, 0])  # the first answer came after 1 s


def test_own_lines_and_bodies_of_requests_are_told_apart(tmp_path: Path) -> None:
    """A key that holds an object names no request; the own layout takes a usual name for its session."""
    rows: list[dict[str, object]] = [
        {"arrival_s": at, "input_tokens": 9, "output_tokens": 1, "conversation_id": "x"} for at in (0, 5)
    ]
    assert waits(lines(tmp_path / "own.jsonl", rows).read()) == [[], [0]]
    bodies: list[dict[str, object]] = [
        {"created": at, "usage": {"prompt_tokens": 9, "completion_tokens": 1}, "request": {"n": 1}, "id": name} | above
        for at, name, above in ((1, "a", {}), (5, "b", {"parent": "a"}))
    ]
    assert waits(lines(tmp_path / "bodies.jsonl", bodies).read()) == [[], [0]]


def test_a_session_on_the_first_row_holds_for_those_that_wait_for_it(tmp_path: Path) -> None:
    """Also before the row that names it, and of others that name none; ids beside empty cells may be written 3.0."""
    rows = "t,i,o,s,me,up\n0,9,1,x,1,\n1,9,1,,2,1.0\n2,9,1,,3,2.0\n3,9,1,y,4,3.0\n4,9,1,,5,\n5,9,1,z,6,5.0\n"
    trace = opened(tmp_path, rows, columns="arrival=t,input=i,output=o,session=s,request=me,parent=up").read()
    assert waits(trace) == [[], [0], [1], [], [], [4]]  # 4 says that it is of another session
    assert sessions_and_pauses(trace)[0] == [0, 0, 0, 1, 2, 2]


def test_parents_that_are_nowhere_are_said_even_where_nobody_else_waits(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,parent,id,prompt_tokens,completion_tokens\n0,,a,9,1\n1,zz,b,9,1\n2,yy,c,9,1\n")
    file = open_trace(path)
    assert file.read().turns is None
    assert any("2 requests waiting for ids that are not in the log" in note for note in file.problems.notes)
    path.write_text("time,session,parent,id,prompt_tokens,completion_tokens\n0,s,,a,9,1\n1,s,,b,9,1\n")
    assert waits(open_trace(path).read()) == [[], [0]]  # no parents at all: by the session


def test_the_logs_written_by_hand_in_the_guide_are_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "traffic.md"
    section = page.read_text(encoding="utf-8").partition("### Sessions")[2].partition("\n### ")[0]
    for kind in ("csv", "json"):
        written = re.search(f"```{kind}\n(.*?)```", section, re.DOTALL)
        path = tmp_path / f"log.{kind}"
        path.write_text(there(written)[1])
        trace = open_trace(path).read()
        assert waits(trace) == [[], [0], []]
        np.testing.assert_allclose(there(trace.turns).pause_s, [0, 12.5 - 0.9, 0])
    for names in (USUAL_NAMES[field] for field in OF_SESSIONS):
        assert ", ".join(f"`{name}`" for name in names) in section


def test_a_request_keeps_its_turn_in_another_order_and_begins_anew_without_those_before_it() -> None:
    """Two conversations, of three turns and of two."""
    turns = Turns(
        waits_for=np.array([0, 1, 3], np.int32),
        starts=np.array([0, 0, 1, 2, 2, 3]),
        pause_s=np.zeros(5),
        session=np.array([0, 0, 0, 1, 1], np.int32),
    )
    assert turns.depth.tolist() == [1, 2, 3, 1, 2]
    assert turns.take(np.array([3, 0, 4, 1, 2])).depth.tolist() == [1, 1, 2, 2, 3]
    assert turns.take(np.array([1, 2, 4])).depth.tolist() == [1, 2, 1]


def agent_spans(trace: str, conversation: str | None, from_s: int) -> list[Any]:
    """An agent's turn of 10 s: a call, a tool that takes 3 s, two calls beside each other."""
    spans = [
        ("agent", "", "invoke_agent", 0, 10, None), ("a", "agent", "chat", 0, 2, 100),
        ("tool", "agent", "execute_tool", 2, 5, None), ("b", "agent", "chat", 5, 7, 150),
        ("c", "agent", "chat", 6, 8, 160),
    ]  # fmt: skip
    found = []
    for name, above, operation, began_s, ended_s, tokens in spans:
        stated: dict[str, object] = {"gen_ai.operation.name": operation, "gen_ai.usage.input_tokens": tokens}
        if operation == "invoke_agent":
            stated["gen_ai.conversation.id"] = conversation
        times = {
            "startTimeUnixNano": str((from_s + began_s) * 10**9),
            "endTimeUnixNano": str((from_s + ended_s) * 10**9),
        }
        found.append({"traceId": trace, "spanId": name, "parentSpanId": above, **times, "attributes": stated})
    return found


@pytest.mark.parametrize("conversation", ["talk", None])
def test_the_calls_of_an_agent_are_a_session_and_its_tools_are_pauses(tmp_path: Path, conversation: str | None) -> None:
    """Two turns of a conversation, a trace each; only the spans of the agent name the conversation."""
    turns = [agent_spans("t1", conversation, 1_790_000_000), agent_spans("t2", conversation, 1_790_000_030)]
    batches: list[dict[str, object]] = [
        {"resourceSpans": [{"scopeSpans": [{"spans": spans[::-1]}]}]} for spans in turns
    ]
    file = lines(tmp_path / "spans.jsonl", batches)
    trace = file.read()
    assert trace.input_tokens.tolist() == [100, 150, 160] * 2
    assert "4 spans of agents, workflows and tools are left out: their tokens are those of the calls" in (
        file.problems.notes
    )
    if conversation:
        assert waits(trace) == [[], [0], [0], [1, 2], [3], [3]]
        assert sessions_and_pauses(trace) == ([0] * 6, [0, 3, 4, 22, 3, 4])
    else:
        assert waits(trace) == [[], [0], [0], [], [3], [3]]
        assert sessions_and_pauses(trace) == ([0] * 3 + [1] * 3, [0, 3, 4, 0, 3, 4])
