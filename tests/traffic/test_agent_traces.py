"""Recorded sessions of coding agents: requests, sub-agents, who waits for whom, and shared blocks."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tests.there import refused, there
from tests.traffic.exported_logs import agent_request, agent_session
from tests.traffic.test_turn_logs import waits

from tokonomics.traffic.agent_traces import APART
from tokonomics.traffic.readers import TraceFile, open_trace
from tokonomics.traffic.trace import Trace, save_trace


def opened(folder: Path, *sessions: Any, **options: Any) -> TraceFile:
    path = folder / "sessions.jsonl"
    path.write_text("\n".join(map(json.dumps, sessions)))
    return open_trace(path, **options)


def session(*requests: Any, **told: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"id": "s", "models": ["large"], "block_size": 64, "hash_id_scope": "local"}
    return known | {"requests": requests} | told


def blocks(trace: Trace) -> list[list[int]]:
    prefix = there(trace.prefix)
    return [prefix.blocks_of(request).tolist() for request in range(len(trace))]


def spread(trace: Trace) -> tuple[list[float], list[list[int]], list[float]]:
    return trace.arrival_s.tolist(), waits(trace), there(trace.turns).pause_s.tolist()


def test_sub_agents_branch_off_and_are_joined(tmp_path: Path) -> None:
    """Answers take 3 s from 0, 4 s from 4.5; the agents run from 9.5 to 13.5 and from 10.25 to 16.5."""
    file = opened(tmp_path, agent_session())
    trace = file.read()
    assert file.format == "Weka agent traces"
    assert file.problems.count == 0
    at_s, awaited, pause_s = spread(trace)
    assert at_s == [0, 4.5, 9.5, 10.25, 12, 20.25]
    assert awaited == [[], [0], [1], [1], [2], [3, 4]]
    assert pause_s == [0, 1.5, 1, 1.75, 0.5, 20.25 - 16.5]
    assert trace.input_tokens.tolist() == [130, 200, 100, 70, 140, 300]
    assert trace.output_tokens.tolist() == [50, 60, 20, 10, 20, 70]
    assert there(trace.prefix).block_tokens == 64
    assert blocks(trace) == [[0, 1], [0, 1, 2], [0], [0], [0, 4], [0, 1, 2, 3]]
    assert trace.tenants == ("large",)
    assert not any("recorded apart" in note for note in file.problems.notes)


@pytest.mark.parametrize("scope", ["local", "global"])
def test_sessions_follow_one_another_and_share_blocks_only_if_their_ids_are_global(tmp_path: Path, scope: str) -> None:
    """The first ends with its last answer, at 25.25 s; the second begins then."""
    two = [agent_session() | {"hash_id_scope": scope}] * 2
    file = opened(tmp_path, *two)
    trace = file.read()
    assert trace.arrival_s.tolist() == [at + start for start in (0, 25.25) for at in (0, 4.5, 9.5, 10.25, 12, 20.25)]
    assert there(trace.turns).session.tolist() == [0] * 6 + [1] * 6
    assert (blocks(trace)[6:] == blocks(trace)[:6]) is (scope == "global")
    assert there(trace.prefix).distinct == (5 if scope == "global" else 10)
    assert f"2 {APART}" in file.problems.notes
    faster = trace.faster(5)
    assert faster.arrival_s[there(faster.turns).roots].tolist() == pytest.approx([0, 25.25 / 5])
    save_trace(trace, tmp_path / "saved.parquet")
    assert open_trace(tmp_path / "saved.parquet").read().digest == trace.digest


def test_a_document_a_folder_and_a_table_hold_the_same_sessions(tmp_path: Path) -> None:
    sessions = [agent_session(), agent_session() | {"id": "s-2"}]
    expected = opened(tmp_path, *sessions).read()
    (tmp_path / "list.json").write_text(json.dumps(sessions, indent=2))
    pl.DataFrame(sessions, infer_schema_length=None).write_parquet(tmp_path / "table.parquet")
    (tmp_path / "folder").mkdir()
    for place, one in enumerate(sessions):
        (tmp_path / "folder" / f"trace_{place}.json").write_text(json.dumps(one, indent=1))
    for name in ("list.json", "table.parquet", "folder"):
        assert open_trace(tmp_path / name).read().digest == expected.digest
    first = open_trace(tmp_path / "folder" / "trace_0.json").read()
    assert first.arrival_s.tolist() == expected.arrival_s[:6].tolist()
    (tmp_path / "folder" / "trace_2.json").write_text("{")
    file = open_trace(tmp_path / "folder")
    assert len(file.read()) == 12
    assert file.problems.first == ["file 3: not a JSON object"]


def test_the_session_in_the_guide_is_read(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "traffic.md"
    written = page.read_text(encoding="utf-8").partition("### Recorded agents")[2].partition("```json\n")[2]
    trace = opened(tmp_path, json.loads(written.partition("```")[0])).read()
    assert spread(trace) == ([0, 4.5, 9.5], [[], [0], [1]], [0, 1.5, 3])


def test_a_folder_of_other_documents_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert "is a folder" in str(refused(open_trace, tmp_path))


def test_an_agent_in_the_background_is_awaited_once_it_ended(tmp_path: Path) -> None:
    """It runs from 2.5 to 8.5: the request at 4.5 waits for the one before it, that at 10.5 for both."""
    background = {"t": 2.5, "type": "subagent", "requests": [agent_request(2.5, 9, 1, 6.0, [])], "duration_ms": None}
    main = [agent_request(at, 9, 1, 1.0, []) for at in (0.0, 4.5, 10.5, 13.5)]
    trace = opened(tmp_path, session(main[0], background, *main[1:])).read()
    at_s, awaited, pause_s = spread(trace)
    assert at_s == [0, 2.5, 4.5, 10.5, 13.5]
    assert awaited == [[], [0], [0], [1, 2], [3]]
    assert pause_s == [0, 1.5, 3.5, 2, 2]


def test_an_agent_that_reports_later_is_awaited_later(tmp_path: Path) -> None:
    """Its answer came at 3.5, but it worked on until 7.5: the request at 5.5 did not wait for it."""
    agent = {"t": 2.5, "type": "subagent", "requests": [agent_request(2.5, 9, 1, 1.0, [])], "duration_ms": 5000}
    main = [agent_request(at, 9, 1, 1.0, []) for at in (0.0, 5.5, 9.5)]
    trace = opened(tmp_path, session(main[0], agent, *main[1:])).read()
    assert waits(trace) == [[], [0], [0], [1, 2]]


def test_requests_beside_each_other_wait_for_the_same_answer(tmp_path: Path) -> None:
    requests = [agent_request(at, 9, 1, took, []) for at, took in ((0.0, 1.0), (2.5, 9.0), (3.5, 2.0), (12.5, 1.0))]
    assert waits(opened(tmp_path, session(*requests)).read()) == [[], [0], [0], [1, 2]]


def test_times_in_whole_seconds_make_no_branches(tmp_path: Path) -> None:
    """The answer to a request at 38 came at 47.18, by a clock that calls 47.9 also 47; two at 60 were sent together."""
    requests = [agent_request(at, 9, 1, took, []) for at, took in ((38.0, 9.18), (47.0, 5.0), (60.0, 0.5), (60.0, 0.5))]
    trace = opened(tmp_path, session(*requests)).read()
    assert spread(trace)[1:] == ([[], [0], [1], [1]], [0, 0, 8, 8])
    finer = [request | {"t": request["t"] + 0.001} for request in requests]
    assert waits(opened(tmp_path, session(*finer)).read())[1] == []


def test_think_time_is_the_pause_where_no_time_of_an_answer_is_known(tmp_path: Path) -> None:
    requests = [agent_request(at, 9, 1, None, []) | {"think_time": think} for at, think in ((0, 0), (9, 2.5), (12, 1))]
    file = opened(tmp_path, session(*requests))
    assert spread(file.read())[1:] == ([[], [0], [1]], [0, 2.5, 1])
    del requests[1]["think_time"]
    file = opened(tmp_path, session(*requests))
    assert spread(file.read())[2] == [0, 9, 1]
    assert any("pauses between turns include them" in note for note in file.problems.notes)


def test_requests_without_blocks_or_answers_are_kept_and_said(tmp_path: Path) -> None:
    bare = [agent_request(1.5, 200, 0, 0.5, []), agent_request(3.5, 200, 5, 0.5, [])]
    del bare[1]["hash_ids"]
    file = opened(tmp_path, session(agent_request(0.0, 200, 5, 1.0, [1, 2, 3]), *bare))
    trace = file.read()
    assert blocks(trace) == [[0, 1, 2], [], []]
    assert trace.output_tokens.tolist() == [5, 0, 5]
    assert "2 requests list no blocks (hash_ids): taken to share nothing" in file.problems.notes
    assert "1 requests without an answer (out is 0), kept as prompts" in file.problems.notes


GOOD = agent_request(0.0, 100, 5, 1.0, [1])
SPOILT: dict[str, tuple[dict[str, Any], str]] = {
    "t missing": ({"t": None}, "request 2: t is missing"),
    "t negative": ({"t": -1}, "request 2: t is -1, not seconds in the session"),
    "t text": ({"t": "soon"}, "request 2: t is 'soon', not seconds in the session"),
    "t huge": ({"t": 1e300}, "request 2: t is 1e+300, not seconds in the session"),
    "in zero": ({"in": 0}, "in is '0', must be 1 to 100,000,000"),
    "in huge": ({"in": 10**12}, "in is '1000000000000', must be 1 to 100,000,000"),
    "in missing": ({"in": None}, "in is missing"),
    "out text": ({"out": "many"}, "out is 'many', not a whole number"),
    "ids text": ({"hash_ids": "1,2"}, 'hash_ids is "1,2", not a list of ids'),
    "ids of bool": ({"hash_ids": [True]}, "hash_ids is [true], not a list of ids"),
    "id missing": ({"hash_ids": [None]}, "hash_ids has a block without an id"),
    "too many blocks": (
        {"hash_ids": [1, 2, 3]},
        "hash_ids lists 3 blocks of 64: more than 100 + 5 tokens of prompt and answer",
    ),
    "agent without a list": (
        {"type": "subagent", "requests": 4},
        "the requests of a sub-agent are 4, not a list",
    ),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_request_is_set_aside_and_those_around_it_stay_in_line(tmp_path: Path, name: str) -> None:
    edit, why = SPOILT[name]
    after = agent_request(9.0, 100, 5, 1.0, [1])
    file = opened(tmp_path, session(GOOD, GOOD | {"t": 4.0} | edit, after))
    trace = file.read()
    assert file.problems.first == [f"line 1: {why}"]
    assert len(trace) == 2
    refused(opened(tmp_path, session(GOOD, GOOD | {"t": 4.0} | edit, after), strict=True).read)
    if name.startswith(("t ", "in ", "out ", "agent ")):
        assert waits(trace) == [[], [0]]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"requests": "none"}, "requests is 'none', not a list"),
        ({"requests": []}, "requests is empty"),
        ({"requests": [7]}, "request 1 is 7, not an object"),
        ({"block_size": None}, "block_size is missing, not a number of tokens"),
        ({"block_size": 0}, "block_size is 0, not a number of tokens"),
        ({"block_size": True}, "block_size is True, not a number of tokens"),
        ({"block_size": 10**30}, f"block_size is {10**30}, not a number of tokens"),
        ({"block_size": 32}, "block_size is 32, but 64 in the sessions before it"),
        ({"hash_id_scope": "mine"}, "hash_id_scope is 'mine', not local or global"),
    ],
)
def test_a_spoilt_session_is_set_aside(tmp_path: Path, told: dict[str, Any], why: str) -> None:
    file = opened(tmp_path, session(GOOD), session(GOOD, **told), session(GOOD))
    trace = file.read()
    assert file.problems.first == [f"line 2: {why}"]
    assert trace.arrival_s.tolist() == [0, 1]
    if told != {"block_size": 32}:
        assert why in str(refused(opened(tmp_path, session(GOOD, **told)).read))


def test_sub_agents_of_sub_agents_end_somewhere(tmp_path: Path) -> None:
    inner: list[dict[str, Any]] = [GOOD | {"t": 0.5}]
    for _ in range(5):
        inner = [{"t": 0.5, "type": "subagent", "requests": inner}]
    assert len(opened(tmp_path, session(*inner)).read()) == 1
    deeper = session(GOOD, {"t": 0.5, "type": "subagent", "requests": inner})
    file = opened(tmp_path, deeper)
    assert len(file.read()) == 1
    assert file.problems.first == ["line 1: sub-agents more than 5 deep"]


def test_sessions_are_attributed_by_their_fields(tmp_path: Path) -> None:
    small = GOOD | {"t": 2.0, "model": "small"}
    trace = opened(tmp_path, session(GOOD, small), session(GOOD, id="t"), by=("id", "model")).read()
    assert [trace.tenants[number] for number in there(trace.tenant)] == ["s / large", "s / small", "t / large"]
