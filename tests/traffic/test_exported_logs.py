"""What tools export is read without being told what it is: tokens, dollars, times and tenants as they were."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.there import refused, there
from tests.traffic import exported_logs
from tests.traffic.exported_logs import CACHED, LOGS, REQUESTS, START

from tokonomics.errors import BadInput
from tokonomics.traffic.readers import TraceFile, open_trace
from tokonomics.traffic.summary import summarize
from tokonomics.traffic.trace import Trace, save_trace

FORMATS = {
    "langfuse": "Langfuse export", "litellm": "LiteLLM spend log", "otlp": "OpenTelemetry GenAI spans",
    "openai": "OpenAI batch output", "vllm": "vLLM request log", "sglang": "SGLang request log",
}  # fmt: skip
PRICED = ("langfuse", "litellm", "otlp")
WHOLE_SECONDS = ("vllm", "sglang-text")  # the clocks of their logs


def opened(folder: Path, name: str, *by: str) -> TraceFile:
    path = folder / "log"
    path.write_text(LOGS[name]() if name in LOGS else name)
    return open_trace(path, by=by)


def names(trace: Trace) -> list[str]:
    assert trace.tenant is not None
    return [trace.tenants[number] for number in trace.tenant]


@pytest.mark.parametrize("name", LOGS)
def test_every_log_gives_back_times_tokens_and_dollars_also_when_saved(tmp_path: Path, name: str) -> None:
    file = opened(tmp_path, name)
    trace = file.read()
    assert file.format == FORMATS[name.split("-")[0]]
    assert file.problems.count == 0, file.problems.first
    times = [np.floor(request.at_s) if name in WHOLE_SECONDS else request.at_s for request in REQUESTS]
    assert trace.arrival_s.round(3).tolist() == times
    assert trace.input_tokens.tolist() == [request.prompt for request in REQUESTS]
    assert trace.output_tokens.tolist() == [request.answer for request in REQUESTS]
    if name.startswith(PRICED):
        assert trace.usd is not None
        assert trace.usd.tolist() == [request.usd for request in REQUESTS]
    save_trace(trace, tmp_path / "saved.parquet")
    again = open_trace(tmp_path / "saved.parquet").read()
    assert again.digest == trace.digest
    assert (again.usd is None) == (trace.usd is None) or np.array_equal(again.usd, trace.usd)  # type: ignore[arg-type]
    assert names(again) == names(trace)


@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith(("langfuse", "litellm", "otlp", "openai"))])
@pytest.mark.parametrize("by", [("team",), ("feature",), ("user", "team", "feature")])
def test_requests_are_attributed_by_fields_tags_and_attributes(tmp_path: Path, name: str, by: tuple[str, ...]) -> None:
    trace = opened(tmp_path, name, *by).read()
    assert names(trace) == [" / ".join(getattr(request, label) for label in by) for request in REQUESTS]


@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith(PRICED)])
def test_what_was_found_in_a_cache_is_read(tmp_path: Path, name: str) -> None:
    (batch,) = opened(tmp_path, name).batches()
    assert batch["cached"].to_list() == [CACHED] * len(REQUESTS)


@pytest.mark.parametrize("how", ["team_alias", "metadata", "neither"])
@pytest.mark.parametrize("by", [(), ("team",)])
@pytest.mark.parametrize("table", [False, True])
def test_a_team_of_litellm_is_known_by_its_alias_before_its_uuid(
    tmp_path: Path, how: str, by: tuple[str, ...], table: bool
) -> None:
    item = exported_logs.litellm_item(REQUESTS[0]) | {"team_id": "0b6c2f0e"}
    item["metadata"] = {"user_api_key_team_id": "0b6c2f0e"}
    if how == "team_alias":
        item["team_alias"] = "search"
    elif how == "metadata":
        item["metadata"]["user_api_key_team_alias"] = "search"
    text = json.dumps(item)
    if table:
        cells = {name: json.dumps(cell) if isinstance(cell, dict | list) else cell for name, cell in item.items()}
        text = pl.DataFrame([cells]).write_csv()
    assert names(opened(tmp_path, text, *by).read()) == ["0b6c2f0e" if how == "neither" else "search"]


def test_a_log_in_the_style_of_openai_says_what_was_cached(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 64}}
    (batch,) = opened(tmp_path, json.dumps({"created": 1_790_000_000, "model": "m", "usage": usage})).batches()
    assert batch["cached"].cast(int).to_list() == [64]


def test_a_table_says_what_was_cached_by_a_usual_name(tmp_path: Path) -> None:
    rows = "time,prompt_tokens,output_tokens,cached_tokens\n1790000000,100,5,40\n1790000001,100,5,\n"
    (batch,) = opened(tmp_path, rows).batches()
    assert batch["cached"].to_list() == [40, None]


@pytest.mark.parametrize("name", [name for name in LOGS if name.startswith(PRICED)])
def test_what_each_label_costs_sums_to_all(tmp_path: Path, name: str) -> None:
    by = ("team", "feature", "user")
    summary = summarize(opened(tmp_path, name, *by), by=by)
    assert [bill.label for bill in summary.by] == list(by)
    assert summary.usd == pytest.approx(sum(request.usd for request in REQUESTS), abs=1e-12)
    for bill in summary.by:
        assert sum(value.requests for value in bill.values) == len(REQUESTS)
        assert sum(value.input_tokens for value in bill.values) == sum(request.prompt for request in REQUESTS)
        assert sum(value.output_tokens for value in bill.values) == sum(request.answer for request in REQUESTS)
        assert sum(value.usd or 0 for value in bill.values) == pytest.approx(summary.usd, abs=1e-12)
        for value in bill.values:
            own = [request for request in REQUESTS if getattr(request, bill.label) == value.name]
            assert value.usd == pytest.approx(sum(request.usd for request in own), abs=1e-12)
            assert value.input_tokens == sum(request.prompt for request in own)


def test_times_are_unix_time_where_the_log_has_a_year(tmp_path: Path) -> None:
    for name in LOGS:
        (batch,) = opened(tmp_path, name).batches()
        if name == "vllm":
            assert max(batch["arrival"].to_list()) < 946_684_800  # no year, so no date is told
        else:
            assert min(batch["arrival"].to_list()) == pytest.approx(START, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "left_out"), [("langfuse-api", [1]), ("litellm-list", [1, 1]), ("otlp-document", [1, 1])]
)
def test_what_is_no_call_of_a_model_is_left_out_and_counted(tmp_path: Path, name: str, left_out: list[int]) -> None:
    file = opened(tmp_path, name)
    file.read()
    assert list(there(file.log.unfolding).left_out.values()) == left_out


def test_langfuse_parquet_with_maps_dates_and_decimals(tmp_path: Path) -> None:
    usage = [{"input": request.prompt, "output": request.answer} for request in REQUESTS]
    pairs = [[{"key": key, "value": value} for key, value in counts.items()] for counts in usage]
    columns = {
        "trace_id": ["t"] * len(REQUESTS),
        "type": ["GENERATION"] * len(REQUESTS),
        "start_time": [request.when.replace(tzinfo=None) for request in REQUESTS],
        "usage_details": pl.Series(pairs, dtype=pl.List(pl.Struct({"key": pl.String, "value": pl.Int64}))),
        "total_cost": pl.Series([str(request.usd) for request in REQUESTS]).cast(pl.Decimal(18, 6)),
        "tags": [[f"team:{request.team}"] for request in REQUESTS],
    }
    path = tmp_path / "observations.parquet"
    pl.DataFrame(columns).write_parquet(path)
    trace = open_trace(path, by=("team",)).read()
    assert trace.input_tokens.tolist() == [request.prompt for request in REQUESTS]
    assert there(trace.usd).tolist() == [request.usd for request in REQUESTS]
    assert names(trace) == [request.team for request in REQUESTS]


def test_an_openai_style_log_with_the_id_of_a_trace_is_no_langfuse_export(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 6}
    file = opened(tmp_path, json.dumps([{"trace_id": "t", "start_time": 1_790_000_000, "usage": usage}]))
    assert (file.format, file.read().input_tokens.tolist()) == ("OpenAI-style usage log", [5])


def test_totals_are_spread_over_their_time_and_kept(tmp_path: Path) -> None:
    file = opened(tmp_path, exported_logs.openai_usage())
    trace = file.read()
    assert file.format == "OpenAI usage export"
    assert any("totals, not requests" in note for note in file.problems.notes)
    assert [len(trace), int(trace.input_tokens.sum()), int(trace.output_tokens.sum())] == [8, 1301, 502]
    assert names(trace) == ["proj_a"] * 5 + ["proj_b"] * 3
    # The middles of fifths of the first hour, then of thirds of the second, from the first of them on.
    assert trace.arrival_s.round(3).tolist() == [0, 720, 1440, 2160, 2880, 3840, 5040, 6240]
    assert trace.input_tokens.tolist()[:5] == [200, 200, 200, 200, 201]


def test_the_table_of_the_dashboard_is_totals_too(tmp_path: Path) -> None:
    header = "start_time,end_time,project_id,num_model_requests,input_tokens,output_tokens"
    trace = opened(tmp_path, f"{header}\n1790000000,1790003600,p,4,40,8\n").read()
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([10] * 4, [2] * 4)


COST = {"object": "organization.costs.result", "amount": {"value": 0.06, "currency": "usd"}}
REFUSED = {
    "too many": exported_logs.openai_usage().replace('"num_model_requests": 5', '"num_model_requests": 3000000'),
    "costs": json.dumps({"data": [{"object": "bucket", "start_time": 1, "end_time": 2, "results": [COST]}]}),
    "nothing counted": "INFO 09-21 13:33:20 [logger.py:59] Received request c-1: params: SamplingParams(n=1).\n",
}


@pytest.mark.parametrize("name", REFUSED)
def test_totals_and_logs_without_requests_are_refused(tmp_path: Path, name: str) -> None:
    assert refused(lambda: opened(tmp_path, REFUSED[name]).read()).where


def test_older_forms_of_a_vllm_line(tmp_path: Path) -> None:
    """Up to 0.11 the ids stand on the line of the request; a completion's id has a number behind it there."""
    log = (
        "INFO 12-31 23:59:59 [logger.py:43] Received request cmpl-7-0: prompt: 'a]', params: SamplingParams(n=1), "
        "prompt_token_ids: [1, 2, 3], prompt_embeds shape: None, lora_request: None.\n"
        "INFO 01-01 00:00:02 [logger.py:43] Received request cmpl-8-0: prompt: 'b', params: SamplingParams(n=1), "
        "prompt_token_ids: [1], prompt_embeds shape: None, lora_request: None.\n"
        "INFO 01-01 00:00:03 [logger.py:71] Generated response cmpl-7: output: 'x', output_token_ids: (5, 6), "
        "finish_reason: stop\n"
        "INFO 01-01 00:00:04 [logger.py:71] Generated response cmpl-8: output: '', output_token_ids: [], "
        "finish_reason: stop\n"
    )
    trace = opened(tmp_path, log).read()
    assert trace.arrival_s.tolist() == [0, 3]  # over the new year
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([3, 1], [2, 0])


def test_a_label_that_no_request_has(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        opened(tmp_path, "litellm-lines", "region").read()
    file = opened(tmp_path, "litellm-lines", "team", "region")
    assert names(file.read())[0] == "search / (none)"
    assert "no request says its region" in file.problems.notes


@pytest.mark.parametrize("by", [("te am",), ("a", "a"), tuple("abcde")])
def test_labels_that_cannot_be_asked_for(tmp_path: Path, by: tuple[str, ...]) -> None:
    assert refused(opened, tmp_path, "litellm-lines", *by).field == "by"


def test_any_table_is_attributed_by_its_columns(tmp_path: Path) -> None:
    text = "timestamp,prompt_tokens,completion_tokens,Team Name,cost\n1,5,6,red,0.5\n2,7,8,,0.25\n"
    trace = opened(tmp_path, text, "team").read()
    assert names(trace) == ["red", "(none)"]
    assert there(trace.usd).tolist() == [0.5, 0.25]


def test_a_cost_that_is_none_costs_no_request(tmp_path: Path) -> None:
    rows = [exported_logs.litellm_item(request) for request in REQUESTS]
    rows[1]["spend"] = "free"
    rows[2]["spend"] = -1
    file = opened(tmp_path, json.dumps(rows))
    trace = file.read()
    assert file.problems.count == 0
    assert there(trace.usd).tolist() == [REQUESTS[0].usd, 0, 0, *(request.usd for request in REQUESTS[3:])]
    assert "2 requests have a cost that is no amount of dollars: taken as none" in file.problems.notes


def test_a_column_of_costs_with_signs_and_gaps_is_read_and_one_that_is_named_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("timestamp,prompt_tokens,completion_tokens,cost\n1,5,6,$0.0012\n2,7,8,n/a\n3,9,9,\n")
    file = open_trace(path)
    trace = file.read()
    assert there(trace.usd).tolist() == [0.0012, 0, 0]
    assert trace.input_tokens.tolist() == [5, 7, 9]
    assert "1 requests have a cost that is no amount of dollars: taken as none" in file.problems.notes
    told = open_trace(path, columns="arrival=timestamp,input=prompt_tokens,output=completion_tokens,usd=cost")
    assert told.read().input_tokens.tolist() == [5, 9]
    assert told.problems.first[0].startswith("line 3: ")


def span(own: str, above: str, trace: str = "t", **told: object) -> dict[str, object]:
    """One of OpenTelemetry; keywords are GenAI attributes."""
    kinds = {int: "intValue", str: "stringValue"}
    named = {f"gen_ai.{name.replace('__', '.')}": value for name, value in told.items()}
    listed = [{"key": key, "value": {kinds[type(value)]: value}} for key, value in named.items()]
    when = "1790000000000000000"
    ids = {"traceId": trace, "spanId": own, "parentSpanId": above}
    return {**ids, "startTimeUnixNano": when, "attributes": listed}


def test_a_server_s_span_within_the_client_s_call_is_not_counted_again(tmp_path: Path) -> None:
    tokens: dict[str, Any] = {"usage__input_tokens": 100, "usage__output_tokens": 10}
    spans = [
        # The server ends first, so its span comes first, in a batch of its own.
        [span("engine", "http", **tokens), span("http", "call")],
        [span("call", "agent", operation__name="chat", **tokens)],
        [span("agent", "", operation__name="invoke_agent", **tokens)],
        # A tool that asks a model within the call: a call of its own.
        [span("tool", "call", operation__name="execute_tool"), span("inner", "tool", **tokens)],
        # The same ids in another trace; and spans in a circle.
        [span("engine", "http", "u", **tokens), span("b", "c"), span("c", "b"), span("d", "c", **tokens)],
    ]
    lines = [json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": batch}]}]}) for batch in spans]
    file = opened(tmp_path, "\n".join(lines))
    for _ in range(2):  # each pass begins anew
        assert file.read().input_tokens.tolist() == [100] * 4
        assert "1 spans within a call that counts the same tokens are left out" in file.problems.notes


@pytest.mark.parametrize(
    ("details", "prompt"),
    [
        ({"input": 100, "cache_read_input_tokens": 900, "output": 100, "total": 1100}, 1000),
        ({"input": 100, "cache_read_input_tokens": 800, "cache_creation_input_tokens": 100, "output": 100}, 1000),
        ({"input": 100, "input_cached_tokens": 900, "cache_read_input_tokens": 900, "output": 100}, 1000),
        ({"input": 100, "input_cache_creation": 900, "cache_creation_input_tokens": 900, "output": 100}, 1000),
        ({"input": 1000, "cache_read_input_tokens": 900, "output": 100, "total": 1100}, 1000),
    ],
)
def test_langfuse_prompts_count_cached_tokens_once(tmp_path: Path, details: dict[str, int], prompt: int) -> None:
    item = {"traceId": "t", "type": "GENERATION", "startTime": "2026-10-01T00:00:00Z", "usageDetails": details}
    trace = opened(tmp_path, json.dumps([item])).read()
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([prompt], [100])


@pytest.mark.parametrize("name", ["sglang-text", "sglang-json", "vllm"])
def test_an_answer_that_the_log_ends_before_is_left_out(tmp_path: Path, name: str) -> None:
    lines = LOGS[name]().splitlines()
    last = max(place for place, line in enumerate(lines) if "Receive" in line or "request.received" in line)
    file = opened(tmp_path, "\n".join(lines[: last + 1]))
    assert len(file.read()) == len(REQUESTS) - 1
    assert list(there(file.log.unfolding).left_out.values()) == [1]
