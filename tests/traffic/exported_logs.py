"""The logs of tools in the shape that they write, of requests that are known: what a reader must find again."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

START = 1_790_000_000.0  # 2026-09-21 13:33:20 UTC
CACHED = 5  # prompt tokens of each request that were found in a cache


@dataclass(frozen=True)
class Known:
    """One request, as it was."""

    at_s: float
    prompt: int
    answer: int
    usd: float
    team: str
    feature: str
    user: str

    @property
    def when(self) -> datetime:
        return datetime.fromtimestamp(START + self.at_s, UTC)


REQUESTS = (
    Known(0.0, 1200, 80, 0.0041, "search", "answers", "ada"),
    Known(1.5, 300, 500, 0.0062, "search", "summaries", "bob"),
    Known(4.25, 15, 1, 0.0, "support", "answers", "ada"),
    Known(9.0, 4000, 250, 0.0125, "support", "triage", "cy"),
)


def langfuse_item(request: Known, *, snake: bool = False) -> dict[str, Any]:
    """An observation of the blob storage export (snake case) or of the public API (camel case)."""
    item = {
        "id": f"obs-{request.at_s}",
        "traceId": "t-1",
        "projectId": "p-1",
        "environment": "default",
        "type": "GENERATION",
        "startTime": request.when.strftime("%Y-%m-%d %H:%M:%S.%f") if snake else request.when.isoformat(),
        "endTime": None,
        "name": "call",
        "metadata": {"feature": request.feature},
        "level": "DEFAULT",
        "input": "a prompt",
        "output": "an answer",
        "providedModelName": "llama",
        # What was read from a cache is counted apart; ClickHouse writes 64-bit numbers as text.
        "usageDetails": {
            "input": str(request.prompt - CACHED), "input_cached_tokens": CACHED, "output": request.answer,
            "total": request.prompt + request.answer,
        },
        "costDetails": {"input": request.usd / 2, "output": request.usd / 2, "total": request.usd},
        "totalCost": request.usd,
        "userId": request.user,
        "sessionId": "s-1",
        "tags": ["prod", f"team:{request.team}"],
    }  # fmt: skip
    return {_snake(key): value for key, value in item.items()} if snake else item


def _snake(name: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


LANGFUSE_SPAN = {"id": "obs-span", "traceId": "t-1", "type": "SPAN", "startTime": "2026-09-21T13:33:20Z", "usage": None}


def litellm_item(request: Known) -> dict[str, Any]:
    """A row of LiteLLM_SpendLogs."""
    return {
        "request_id": f"chatcmpl-{request.at_s}", "call_type": "acompletion", "api_key": "88dc28", "spend": request.usd,
        "total_tokens": request.prompt + request.answer, "prompt_tokens": request.prompt,
        "completion_tokens": request.answer, "startTime": request.when.isoformat().replace("+00:00", "Z"),
        "endTime": request.when.isoformat(), "completionStartTime": None, "model": "hosted_vllm/llama",
        "model_group": "llama", "user": request.user,
        "metadata": {
            "user_api_key_team_alias": request.team, "user_api_key_team_id": "0b6c2f0e-5a50-4e0e-9f43-1c7b5d1c6a55",
            "spend_logs_metadata": {"feature": request.feature},
            "usage_object": {"prompt_tokens_details": {"cached_tokens": CACHED}},
        },
        "cache_hit": "False", "cache_key": "Cache OFF",
        "request_tags": ["User-Agent: curl", f"feature:{request.feature}"],
        "team_id": "0b6c2f0e-5a50-4e0e-9f43-1c7b5d1c6a55", "end_user": "",
        "status": "success",
    }  # fmt: skip


LITELLM_CACHED = litellm_item(REQUESTS[0]) | {"cache_hit": "True", "spend": 0.0}
LITELLM_FAILED = litellm_item(REQUESTS[0]) | {"status": "failure", "prompt_tokens": 0, "completion_tokens": 0}


def otlp_span(request: Known) -> dict[str, Any]:
    usage = {"input_tokens": request.prompt, "output_tokens": request.answer, "cost": request.usd}
    usage |= {"cache_read.input_tokens": CACHED}
    pairs = [_pair(f"gen_ai.usage.{name}", value) for name, value in usage.items()]
    nested = {"key": "app", "value": {"kvlistValue": {"values": [_pair("feature", request.feature)]}}}
    return {
        "traceId": "5b8efff798038103d269b633813fc60c",
        "spanId": "eee19b7ec3c1b174",
        "name": "chat llama",
        "kind": 3,
        "startTimeUnixNano": str(round((START + request.at_s) * 1e9)),
        "endTimeUnixNano": str(round((START + request.at_s + 1) * 1e9)),
        "attributes": [_pair("gen_ai.operation.name", "chat"), *pairs, nested, _pair("user.id", request.user)],
    }


def _pair(key: str, value: Any) -> dict[str, Any]:
    kind = {int: "intValue", float: "doubleValue"}.get(type(value), "stringValue")
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


def _resource(team: str, spans: list[dict[str, Any]]) -> dict[str, Any]:
    resource = {"attributes": [_pair("service.name", f"{team}-api"), _pair("team", team)]}
    return {"resource": resource, "scopeSpans": [{"scope": {"name": "openai"}, "spans": spans}]}


_AGENT = [_pair("gen_ai.operation.name", "invoke_agent"), _pair("gen_ai.usage.input_tokens", 5515)]
_HTTP = [_pair("http.request.method", "POST")]


def otlp_document() -> str:
    """One request of the exporter: spans of calls, of the agent above them, and of HTTP."""
    others = [otlp_span(REQUESTS[0]) | {"attributes": attributes} for attributes in (_AGENT, _HTTP)]
    teams = [
        _resource(team, [otlp_span(request) for request in REQUESTS if request.team == team])
        for team in ("search", "support")
    ]
    return json.dumps({"resourceSpans": [*teams, _resource("search", others)]}, indent=2)


def openai_batch() -> str:
    return _lines(
        {
            "id": f"batch_req_{place}",
            "custom_id": f"request-{place}",
            "response": {
                "status_code": 200,
                "request_id": f"req_{place}",
                "body": {
                    "id": "chatcmpl-1", "object": "chat.completion", "created": START + request.at_s, "model": "llama",
                    "user": request.user, "metadata": {"team": request.team, "feature": request.feature},
                    "usage": {
                        "prompt_tokens": request.prompt, "completion_tokens": request.answer,
                        "prompt_tokens_details": {"cached_tokens": CACHED},
                    },
                },
            },
            "error": None,
        }
        for place, request in enumerate(REQUESTS)
    )  # fmt: skip


def openai_usage() -> str:
    """A page of GET /v1/organization/usage/completions: five requests of one hour, three of the next."""
    hours = ((5, 1001, 502, "proj_a"), (3, 300, 0, "proj_b"))
    buckets = [
        {
            "object": "bucket",
            "start_time": int(START) + 3600 * place,
            "end_time": int(START) + 3600 * (place + 1),
            "results": [
                {
                    "object": "organization.usage.completions.result", "input_tokens": prompt, "output_tokens": answer,
                    "input_cached_tokens": 0, "num_model_requests": requests, "project_id": project, "user_id": None,
                    "api_key_id": None, "model": "gpt", "batch": None,
                }
            ],
        }
        for place, (requests, prompt, answer, project) in enumerate(hours)
    ]  # fmt: skip
    return json.dumps({"object": "page", "data": buckets, "has_more": False, "next_page": None})


def agent_request(at_s: float, prompt: int, answer: int, took_s: float | None, blocks: list[int]) -> dict[str, Any]:
    return {
        "t": at_s, "type": "n", "model": "large", "in": prompt, "out": answer, "hash_ids": blocks,
        "input_types": ["tool_result"], "output_types": ["text"], "stop": "tool_use", "api_time": took_s,
        "think_time": 0.0,
    }  # fmt: skip


def agent_session() -> dict[str, Any]:
    """A session as Weka's and AgentX' traces have it: two requests, two sub-agents beside each other, a last request.

    The first sub-agent asks twice; the second has times that count from its entry, as older captures do.
    """
    explorers = [
        [agent_request(9.5, 100, 20, 2.0, [1]), agent_request(12.0, 140, 20, 1.0, [1, 9])],
        [agent_request(0.5, 70, 10, 6.25, [1])],
    ]
    agents = [
        {
            "t": at_s, "type": "subagent", "agent_id": f"agent_00{place}", "subagent_type": "Explore",
            "duration_ms": milliseconds, "total_tokens": 0, "tool_use_count": 1, "status": "completed",
            "requests": requests, "models": ["large"], "tool_tokens": 0, "system_tokens": 0,
        }
        for place, (at_s, milliseconds, requests) in enumerate(zip((9.5, 9.75), (4000, None), explorers, strict=True))
    ]  # fmt: skip
    main = [
        agent_request(0.0, 130, 50, 3.0, [1, 2]),
        agent_request(4.5, 200, 60, 4.0, [1, 2, 3]),
        agent_request(20.25, 300, 70, 5.0, [1, 2, 3, 4]),
    ]
    known = {"id": "s-1", "models": ["large"], "block_size": 64, "hash_id_scope": "local"}
    return {**known, "tool_tokens": 10, "system_tokens": 5, "requests": [*main[:2], *agents, main[2]]}


def vllm_log(requests: tuple[Known, ...] = REQUESTS) -> str:
    """As vLLM writes it with outputs, at DEBUG: of the second request streamed in two parts."""
    lines = ["INFO 09-21 13:33:00 [api_server.py:1834] Starting vLLM API server on http://0.0.0.0:8000"]
    for place, request in enumerate(requests):
        clock = request.when.strftime("%m-%d %H:%M:%S")
        ids, out = _ids(request.prompt), _ids(request.answer)
        name = f"chatcmpl-{place}"
        lora = f"LoRARequest(lora_name='{request.team}', lora_int_id=1, lora_path='/x')"
        prompt = "ignore this: prompt_token_ids: [1, 2], "
        lines += [
            f"(APIServer pid=7) DEBUG {clock} [logger.py:50] Request {name} details: prompt: {prompt!r}, "
            f"prompt_token_ids: {ids}, prompt_embeds shape: None.",
            f"(APIServer pid=7) INFO {clock} [logger.py:59] Received request {name}: params: "
            f"SamplingParams(n=1, max_tokens=4096), lora_request: {lora}.",
            'INFO:     127.0.0.1:4242 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
        ]
        head = f"(APIServer pid=7) INFO {clock} [logger.py:99] Generated response {name}"
        if place == 1:
            half = request.answer // 2
            for part in (half, request.answer - half):
                lines.append(
                    f"{head} (streaming delta): output: 'x', output_token_ids: {_ids(part)}, finish_reason: None"
                )
            lines.append(f"{head} (streaming complete): output: 'xx', output_token_ids: None, finish_reason: stop")
        else:
            lines.append(f"{head}: output: 'x', output_token_ids: {out}, finish_reason: stop")
    return "\n".join(lines) + "\n"


def _ids(number: int) -> str:
    return str(list(range(100, 100 + number)))


def sglang_log() -> str:
    """Text, as SGLang writes it to its own log."""
    lines = ["[2026-09-21 13:33:00] INFO:     Application startup complete."]
    for place, request in enumerate(REQUESTS):
        clock = request.when.strftime("%Y-%m-%d %H:%M:%S")
        obj = f"GenerateReqInput(validation_time=0.1, rid='r{place}', http_worker_ipc=None, stream=False)"
        meta = (
            f"{{'id': 'r{place}', 'finish_reason': {{'type': 'stop'}}, 'prompt_tokens': {request.prompt}, "
            f"'completion_tokens': {request.answer}, 'cached_tokens': 1, 'e2e_latency': 0.25}}"
        )
        lines += [f"[{clock}] Receive: obj={obj}", f"[{clock}] Finish: obj={obj}, out={{'meta_info': {meta}}}"]
    return "\n".join(lines) + "\n"


def sglang_json() -> str:
    """JSON, as SGLang writes it with --log-requests-format json; the first request began before the log."""
    lines = []
    for place, request in enumerate(REQUESTS):
        ended = datetime.fromtimestamp(START + request.at_s + 0.5, UTC).replace(tzinfo=None).isoformat()
        meta = {"prompt_tokens": request.prompt, "completion_tokens": request.answer, "e2e_latency": 0.5}
        obj = {"rid": f"r{place}", "stream": False, "lora_path": request.team}
        began = request.when.replace(tzinfo=None).isoformat()
        if place:
            lines.append({"timestamp": began, "event": "request.received", "rid": f"r{place}", "obj": obj})
        finish = {"timestamp": ended, "event": "request.finished", "rid": f"r{place}", "obj": obj}
        lines.append(finish | {"out": {"meta_info": meta}})
    return _lines(lines)


def _lines(items: Any) -> str:
    return "".join(json.dumps(item) + "\n" for item in items)


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    for row in rows:
        table.writerow(
            {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in row.items()}
        )
    return text.getvalue()


OBSERVATIONS = [langfuse_item(request, snake=True) for request in REQUESTS]
SPENT = [litellm_item(request) for request in REQUESTS]
PAGE = {"data": [LANGFUSE_SPAN, *map(langfuse_item, REQUESTS)], "meta": {"page": 1, "totalItems": 5}}
EXPORTED = [{"resourceSpans": [_resource(request.team, [otlp_span(request)])]} for request in REQUESTS]
LOGS: dict[str, Callable[[], str]] = {
    "langfuse-api": lambda: json.dumps(PAGE),
    "langfuse-lines": lambda: _lines(OBSERVATIONS),
    "langfuse-csv": lambda: _csv(OBSERVATIONS),
    "litellm-list": lambda: json.dumps([LITELLM_CACHED, *SPENT, LITELLM_FAILED], indent=1),
    "litellm-lines": lambda: _lines(SPENT),
    "litellm-csv": lambda: _csv(SPENT),
    "otlp-document": otlp_document,
    "otlp-lines": lambda: _lines(EXPORTED),
    "openai-batch": openai_batch,
    "vllm": vllm_log,
    "sglang-text": sglang_log,
    "sglang-json": sglang_json,
}
"""Logs of ``REQUESTS``, by name; totals are apart, since they list none."""
