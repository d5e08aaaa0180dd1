"""The token: demanded where others can reach the page, shown once, never in an address."""

import html
import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tokonomics.web.app import make_app
from tokonomics.web.safety import COOKIE, Gate, LoginSessions, allowed_hosts, is_loopback
from tokonomics.web.service import Settings

TOKEN = "a-token-of-some-length"
ADDRESS = "http://192.0.2.7:8321"


@pytest.fixture
def served() -> Iterator[Gate]:
    """The application as on an address that others can reach; its workers are asked for nothing."""
    made = make_app(Settings(host="0.0.0.0", token=TOKEN, quick_workers=0, long_workers=0))
    yield made
    made.service.close()


@pytest.fixture
def guarded(served: Gate) -> TestClient:
    return client_at(served, "198.51.100.1")


def client_at(served: Gate, address: str) -> TestClient:
    own = {"sec-fetch-site": "same-origin"}
    return TestClient(served, base_url=ADDRESS, follow_redirects=False, headers=own, client=(address, 50_000))


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
    assert "samesite=lax" in cookie
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
    assert log_in(guarded, TOKEN) == 303, "whoever has the token gets in, whatever others tried from his address"


def test_guessing_in_headers_is_counted_as_well(guarded: TestClient) -> None:
    def ask(token: str) -> int:
        return guarded.get("/api/v1/verbs", headers={"authorization": f"Bearer {token}"}).status_code

    tries = [ask(f"guess{number}") for number in range(30)]
    assert (tries[0], tries[-1]) == (401, 429)
    assert ask(TOKEN) == 200


def test_one_who_guesses_does_not_slow_another(served: Gate, guarded: TestClient) -> None:
    for number in range(30):
        log_in(guarded, f"guess {number}")
    assert log_in(client_at(served, "198.51.100.2"), "mistyped") == 401


@pytest.mark.parametrize(
    "query", ["view=batching&gpu=L40S&b.gpu=H100", "slo=ttft_p99%3D1%2Ctpot_p99%3D50ms&model=a%2Fb"]
)
def test_a_link_opens_after_the_login(served: Gate, guarded: TestClient, query: str) -> None:
    """As clicked in a chat: another site's page led here, so that a strict cookie would not have come along."""
    clicked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    front = guarded.get(f"/?{query}", headers=clicked)
    assert (front.status_code, front.headers["location"]) == (303, f"/login?{query}")
    form = guarded.get(front.headers["location"], headers=clicked).text
    carried = re.search(r'name="query" value="([^"]*)"', form)
    assert carried
    sent = {"token": "mistyped", "query": html.unescape(carried[1])}
    assert html.escape(query) in guarded.post("/login", data=sent).text, "a wrong token loses no link"
    opened = guarded.post("/login", data={**sent, "token": TOKEN})
    assert opened.headers["location"] == f"/?{query}"
    assert guarded.get(f"/?{query}", headers=clicked).status_code == 200


@pytest.mark.parametrize(
    "query",
    ["//evil.example", "https://evil.example", "\r\nset-cookie: a=b", '"><script>x=1</script>', "a" * 9_000, "&" * 999],
)
def test_a_link_leads_nowhere_else(guarded: TestClient, query: str) -> None:
    opened = guarded.post("/login", data={"token": TOKEN, "query": query})
    assert opened.headers["location"] == "/" or opened.headers["location"].startswith("/?")
    assert len(opened.headers["location"]) < 5_000
    assert "a=b" not in opened.headers["set-cookie"]
    assert "<script" not in guarded.get("/login", params={"x": query}).text


@pytest.mark.parametrize("host", ["127.0.0.2", "192.0.2.9", "::1", "box.example"])
def test_the_address_it_listens_on_is_its_own(host: str) -> None:
    assert host in allowed_hosts(host)


def test_a_session_ends_with_the_logout() -> None:
    from starlette.datastructures import Headers

    sessions = LoginSessions(TOKEN)
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
