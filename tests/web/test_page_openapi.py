"""The API keeps to its own description, whatever is sent: schemathesis makes the requests up from it."""

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

from tokonomics.web.safety import Gate
from tokonomics.web.verbs import verbs

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
