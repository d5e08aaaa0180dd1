"""The token: demanded where others can reach the page, shown once, never in an address."""

import pytest
from starlette.testclient import TestClient

from tokonomics.web import login
from tokonomics.web.safety import COOKIE, Gate, Sessions, allowed_hosts, is_loopback

TOKEN = "a-token-of-some-length"
ADDRESS = "http://192.0.2.7:8321"


@pytest.fixture
def guarded(gate: Gate) -> TestClient:
    """The same application with a token, as on an address that others can reach."""
    from fastapi import FastAPI, Request
    from starlette.responses import Response

    sessions = Sessions(TOKEN)
    inner = FastAPI()

    @inner.get("/login")
    def form() -> Response:
        return login.form()

    @inner.post("/login")
    async def logged_in(request: Request) -> Response:
        return await login.logged_in(request, sessions)

    inner.mount("/", gate.app)
    return TestClient(
        Gate(inner, allowed_hosts("0.0.0.0"), sessions, gate.service, any_ip=True),
        base_url=ADDRESS,
        follow_redirects=False,
        headers={"sec-fetch-site": "same-origin"},
    )


def log_in(client: TestClient, token: str) -> int:
    return client.post("/login", data={"token": token}).status_code


def test_without_the_token_there_is_only_the_form(guarded: TestClient) -> None:
    front = guarded.get("/")
    assert (front.status_code, front.headers["location"]) == (303, "/login")
    for path in ("/api/v1/catalog", "/api/v1/openapi.json", "/vega.js", "/static/app.js", "/api/v1/jobs/x/events"):
        assert guarded.get(path).status_code == 401
    assert guarded.post("/api/v1/uploads?name=x", content=b"x").status_code == 401
    assert guarded.get("/login").status_code == 200


def test_the_right_token_opens_a_session_that_scripts_cannot_read(guarded: TestClient) -> None:
    reply = guarded.post("/login", data={"token": TOKEN})
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in reply.headers["set-cookie"]
    assert TOKEN not in reply.headers["location"]
    assert guarded.get("/api/v1/verbs").status_code == 200


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\u00e9" * 22, "\x00"])
def test_any_other_token_opens_nothing(guarded: TestClient, wrong: str) -> None:
    assert log_in(guarded, wrong) == 401
    assert guarded.get("/api/v1/verbs").status_code == 401


def test_a_token_in_the_address_opens_nothing(guarded: TestClient) -> None:
    assert guarded.get(f"/api/v1/verbs?token={TOKEN}").status_code == 401


def test_a_program_sends_it_in_a_header(guarded: TestClient) -> None:
    assert guarded.get("/api/v1/verbs", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert guarded.get("/api/v1/verbs", headers={"authorization": f"Basic {TOKEN}"}).status_code == 401
    assert guarded.get("/api/v1/verbs", headers={"authorization": "Bearer x"}).status_code == 401


@pytest.mark.parametrize("cookie", ["x", "", TOKEN, "=;;=\x7f"])
def test_a_made_up_session_opens_nothing(guarded: TestClient, cookie: str) -> None:
    assert guarded.get("/api/v1/verbs", headers={"cookie": f"{COOKIE}={cookie}"}).status_code == 401


def test_guessing_is_slowed_down(guarded: TestClient) -> None:
    tries = [log_in(guarded, f"guess {number}") for number in range(30)]
    assert tries[0] == 401
    assert tries[-1] == 429
    assert log_in(guarded, TOKEN) == 429


def test_a_session_ends_with_the_logout() -> None:
    from starlette.datastructures import Headers

    sessions = Sessions(TOKEN)
    headers = Headers({"cookie": f"{COOKIE}={sessions.login(TOKEN)}"})
    assert sessions.admits(headers)
    sessions.logout(headers)
    assert not sessions.admits(headers)


def test_addresses_in_digits_are_ours_on_every_interface_and_names_are_not(guarded: TestClient) -> None:
    held = {"authorization": f"Bearer {TOKEN}"}
    assert guarded.get("/api/v1/verbs", headers={**held, "host": "198.51.100.2:8321"}).status_code == 200
    assert guarded.get("/api/v1/verbs", headers={**held, "host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False),
     ("192.168.1.2", False), ("localhost.evil.example", False), ("", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
