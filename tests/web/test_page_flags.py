"""No text of the page speaks of flags: inputs are marked by name, and the page calls them as its form does."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import one_of
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema
from starlette.testclient import TestClient
from tests.explore import EXPLORE, times

from tokonomics.questions.verbs import QUESTIONS
from tokonomics.web.safety import Gate
from tokonomics.web.verbs import verbs

FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
NAMES = {name.replace("_", "-") for verb in QUESTIONS.values() for name in verb.parameters}
OURS = NAMES | {"from", "to", "help", "json"}
"""An engine's own flag, in a file or beside its name, is what the reader types there."""
MODEL = {"model": "llama-3.1-8b"}
TRAFFIC = {"rate": 5, "input": 1000, "output": 300}
FEW = {"gpu": ["L4"]}
"""Quicker than every GPU."""
QUICK = {**MODEL, **TRAFFIC, **FEW, "quick": True}
CURVE = {**MODEL, "gpu": "H100"}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("plan", {**MODEL, "quick": True}),
    ("plan", {**MODEL, "rate": 5, "quick": True}),
    ("plan", {**QUICK, "trace": "azure-conv"}),
    ("plan", {**MODEL, "trace": "azure-conv", "columns": "arrival=when", "quick": True}),
    ("plan", {**QUICK, "tokens_per_month": "2B"}),
    ("plan", {**QUICK, "slo": "ttft_p99"}),
    ("plan", {**QUICK, "arrivals": "poisson"}),
    ("plan", {**QUICK, "min_weights": "int3"}),
    ("plan", {**QUICK, "provider": ["nobody"]}),
    ("plan", {**QUICK, "margin": "200%"}),
    ("plan", {**QUICK, "requests": 5, "sessions": "chat"}),
    ("compare", {**MODEL, **TRAFFIC, "baseline": "H1000"}),
    ("curve", MODEL),
    ("curve", {**CURVE, "tp": 3}),
    ("curve", {**CURVE, "context": 10_000_000}),
    ("predict", {**CURVE, "batch": 10**7}),
    ("cost", {**CURVE}),
    ("own-hardware", {"gpu": "H100"}),
    ("can-run", {"gpu": "H1000"}),
    ("trace", {}),
    ("trace", {"trace": "azure-conv", "by": ["team"]}),
    ("trace", {"trace": "azure-conv", "start": "2h"}),
    ("trace", {"trace": "azure-conv", "speed": 2, "rate": 3}),
    ("breakeven", {**MODEL, "quick": True, "input": 1000}),
    ("breakeven", {**MODEL, "quick": True, "input": 1000, "output": 300, "api": ["nobody:none"]}),
]
ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("plan", {**QUICK, "slo": "ttft_p99=1ms"}),
    ("plan", {**QUICK, "min_recovery": 0.99}),
    ("curve", {**CURVE, "weights": "int4"}),
    ("compare", {**MODEL, **TRAFFIC, **FEW, "slo": "ttft_p99=1ms"}),
    ("own-hardware", {"gpu": "H100", "gpus": 8, "purchase_usd": "250k", "years": 4, "usd_per_kwh": 0.12,
                      "host_watts": 4600}),
    ("trace", {"trace": "azure-conv"}),
    ("offers", {"gpu": ["H100"], "max_price": 0.01}),
]  # fmt: skip


def flags(text: Any) -> list[str]:
    return [found[0] for found in FLAG.finditer(text or "") if found[1] in OURS]


def texts(answer: dict[str, Any]) -> Iterator[str]:
    """All that the page shows of it, but for the line to type, files, and what the terminal prints."""
    yield from (answer["title"], answer["headline"], *answer["notes"])
    for section in answer["sections"]:
        yield section["title"]
        for block in section["blocks"]:
            if block["type"] != "file" and block.get("kind") != "next":
                yield from _strings(block)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def test_no_refusal_names_a_flag(page: TestClient) -> None:
    named, answered = {}, []
    for verb, inputs in REFUSED:
        reply = page.post(f"/api/v1/answers/{verb}", json=inputs, params={"charts": False})
        if reply.status_code == 200:
            answered.append((verb, inputs))
        error = reply.json().get("error", {})
        if found := [flag for part in ("what", "where", "fix") for flag in flags(error.get(part))]:
            named[f"{verb} {inputs}"] = found
    assert named == {}
    assert not answered, f"each of these is to be refused: {answered}"


@pytest.mark.parametrize(("verb", "inputs"), ANSWERED)
def test_no_answer_names_a_flag(page: TestClient, verb: str, inputs: dict[str, Any]) -> None:
    answer = page.post(f"/api/v1/answers/{verb}", json=inputs, params={"charts": False}).json()
    assert "sections" in answer, answer
    assert [text for text in texts(answer) if flags(text)] == []


@pytest.mark.parametrize(
    "content",
    [
        "when,a,b\n0,1,2\n",
        "time,created_at,prompt_tokens,completion_tokens\n0,0,1,2\n",
        "hello\n",
        '{"a": 1}\n',
        "model,client,t_s,rate_rps\nm,c,0,1\n",
    ],
)
def test_no_upload_is_told_of_flags(page: TestClient, content: str) -> None:
    kept = page.post("/api/v1/uploads", params={"name": "mine.csv"}, content=content.encode()).json()
    assert kept["kind"] == "unknown"
    assert kept["why"]
    assert flags(kept["why"]) + flags(kept["fix"]) == []


# --- the API keeps to its own description, whatever is sent: schemathesis makes the requests up from it ---------------


HOST = {"host": "127.0.0.1:8321"}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


OPERATIONS = [
    *(("POST", f"/api/v1/answers/{verb.name}") for verb in verbs().values() if verb.quick_when is not False),
    ("GET", "/api/v1/catalog"),
    ("GET", "/api/v1/catalog/apis"),
    ("GET", "/api/v1/verbs"),
    ("GET", "/api/v1/accuracy"),
    ("POST", "/api/v1/jobs"),
    ("GET", "/api/v1/jobs/{id}"),
    ("DELETE", "/api/v1/jobs/{id}"),
    ("GET", "/api/v1/jobs/{id}/events"),
    ("POST", "/api/v1/uploads"),
    ("GET", "/api/v1/uploads/{id}/table"),
    ("DELETE", "/api/v1/uploads/{id}"),
    ("POST", "/api/v1/report"),
    ("GET", "/api/v1/meter"),
    ("GET", "/api/v1/meter/events"),
]


@pytest.fixture(scope="session")
def described(gate: Gate) -> OpenApiSchema:
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", gate, headers=HOST)


@pytest.mark.law
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_any_request_gets_a_reply_that_is_described(described: OpenApiSchema, method: str, path: str) -> None:
    # A busy machine may take its time to answer; a stream of events has no end, so schemathesis's own limit ends it.
    patience = {} if path.endswith("/events") else {"timeout": 300}
    made_up = [described[path][method].as_strategy(generation_mode=mode) for mode in GenerationMode]

    @given(case=one_of(*made_up))
    @settings(
        max_examples=times(12),
        deadline=None,
        derandomize=not EXPLORE,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def holds(case: Any) -> None:
        case.call_and_validate(headers=HOST, checks=CHECKS, **patience)

    holds()


def test_no_operation_is_left_out(described: OpenApiSchema) -> None:
    paths = described.raw_schema["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == set(OPERATIONS)


def test_the_description_names_its_version_and_loads_nothing_from_elsewhere(page: TestClient) -> None:
    document = page.get("/api/v1/openapi.json")
    assert document.json()["info"]["title"] == "tokonomics"
    for path in ("/docs", "/redoc"):
        assert page.get(path).status_code == 404
