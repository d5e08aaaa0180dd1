"""Whatever body is sent to the page's API, the reply is an answer or a refusal in its own words, never a failure.

schemathesis makes requests up from the API's description (tests/web); here valid bodies are spoilt: what arrives
may be no JSON at all.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.explore import EXPLORE, times
from tests.fuzz.guard import LONGEST_MESSAGE
from tests.fuzz.mutations import spoilt

from tokonomics.web.app import make_app
from tokonomics.web.service import Settings

CASES = int(os.environ.get("FUZZ_CASES", times(12)))
BODIES: dict[str, list[dict[str, Any]]] = {
    "/api/v1/answers/fit": [{"model": "llama-3.1-8b", "gpu": "H100", "tp": 1}],
    "/api/v1/answers/cost": [{"usd_per_hour": 2.5, "tokens_per_second": 900.0}],
    "/api/v1/jobs": [{"verb": "fit", "inputs": {"model": "llama-3.1-8b", "gpu": "H100"}}],
    "/api/v1/report": [{"verb": "fit", "inputs": {"model": "llama-3.1-8b", "gpu": "H100"}}],
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    home = tmp_path_factory.mktemp("page-home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("TOKONOMICS_TODAY", "2026-11-15")
        patch.setenv("TOKONOMICS_CACHE", str(home / "prices"))
        made = make_app(Settings(quick_workers=1, long_workers=1, warm_up=False))
        yield TestClient(made, base_url="http://127.0.0.1:8321", raise_server_exceptions=False)
        made.service.close()


@pytest.mark.slow
@pytest.mark.parametrize("address", BODIES)
def test_a_valid_body_is_answered(page: TestClient, address: str) -> None:
    for body in BODIES[address]:
        assert page.post(address, json=body).status_code in (200, 202)


@pytest.mark.slow
@pytest.mark.law
@pytest.mark.parametrize("address", BODIES)
def test_a_spoilt_body_is_answered_or_refused(page: TestClient, address: str) -> None:
    seeds, seen = [json.dumps(body).encode() for body in BODIES[address]], Counter[int]()

    @given(place=st.integers(0, len(seeds) - 1), chance=st.randoms())
    @settings(
        max_examples=CASES, deadline=None, derandomize=not ("FUZZ_CASES" in os.environ or EXPLORE),
        database=None, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    def holds(place: int, chance: Random) -> None:
        body = spoilt(seeds[place], chance)
        reply = page.post(address, content=body, headers={"content-type": "application/json"})
        seen[reply.status_code] += 1
        # 503: more was asked in a minute than one client may, which the page says too.
        assert reply.status_code < 500 or reply.status_code == 503, reply.text[:500]
        if reply.status_code >= 400:
            said = reply.json()
            assert isinstance(said, dict)
            assert len(json.dumps(said)) <= 4 * LONGEST_MESSAGE
            assert "Traceback" not in reply.text

    holds()
    assert any(400 <= status < 500 for status in seen), seen
