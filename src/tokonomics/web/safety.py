"""Guard every request: who may ask, from which page, and what the browser may do with the answer.

- Host: only names of this machine, so that a foreign site whose name is made to point here (DNS rebinding) is refused.
- Origin and Sec-Fetch-Site: another site's page may only ask for the front page (CSRF).
- Token: required on every address but loopback, or if the user wants one; compared in constant time, given once in a
  form (``login_form``), then replaced by a random session in a cookie that scripts cannot read.
- Headers: no script but our own files, no frame, no foreign address, no sniffing.
- Refusals: JSON with what, where and fix (``Problem``), and no internal details.
"""

import asyncio
import hmac
import html
import ipaddress
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, parse_qsl, urlencode

from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tokonomics.errors import BadInput, TokonomicsError, did_you_mean, shorten
from tokonomics.guarded.worker import MOST_BODY


class Problem(BaseModel):
    """What is wrong, where, and what to do about it."""

    what: str
    where: str | None = None
    fix: str | None = None


class RefusalOut(BaseModel):
    """The body of every answer that is not what was asked for."""

    error: Problem


def problem_response(
    status: int, what: str, *, where: str | None = None, fix: str | None = None, retry_s: int | None = None
) -> JSONResponse:
    body = {"error": {"what": what, "where": where, "fix": fix}}
    return JSONResponse(body, status, {"retry-after": str(retry_s)} if retry_s is not None else None)


def refusal_of(problem: TokonomicsError, status: int, retry_s: int | None = None) -> JSONResponse:
    return problem_response(status, problem.what, where=problem.where, fix=problem.fix, retry_s=retry_s)


def of_validation(found: Sequence[Mapping[str, Any]], known: tuple[str, ...]) -> BadInput:
    """Turn pydantic's first finding into a sentence; an unknown input comes first, as it explains a missing one."""
    problem = next((error for error in found if error["type"] == "extra_forbidden"), found[0])
    place = [str(part) for part in problem["loc"] if part not in ("body", "query", "path")]
    field = ".".join(place) or "body"
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(place[-1], known) or f"It takes {', '.join(known)}."
        return BadInput(f"unknown input '{shorten(place[-1])}'", where=shorten(field), fix=hint)
    if problem["type"] == "missing":
        return BadInput("is missing", where=shorten(field))
    if problem["type"] == "json_invalid":
        return BadInput("the body is not JSON")
    said = problem["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return BadInput(f"{said} (got {shorten(repr(problem.get('input')), 40)})", where=shorten(field))


if TYPE_CHECKING:
    from tokonomics.web.service import Service

COOKIE = "tokonomics_session"
SESSION_S = 12 * 3600
LEAST_TOKEN = 16  # characters of a token that the user chose
_TRIES_PER_MINUTE = 20  # wrong tokens from one address; the right one is always accepted
_MOST_ADDRESSES = 10_000  # addresses whose wrong tokens are counted
BODY_S = 20.0  # time for a body other than an upload to arrive: 10 kB/s carry the largest

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not "no-referrer": browsers would then send "Origin: null" with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=(), usb=(), interest-cohort=()",
    "x-robots-tag": "noindex",
}
UPLOADS = "/api/v1/uploads"
_OPEN = {"/login", "/login.css"}  # what a browser without a session may load: the form and its style


def is_loopback(host: str) -> bool:
    """Tell whether a bind address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def allowed_hosts(bind: str, extra: Iterable[str] = ()) -> frozenset[str]:
    """Return the host names under which the page may be requested."""
    names = {"localhost", "127.0.0.1", "::1", bind.lower().strip("[]"), *(name.lower() for name in extra)}
    if not is_loopback(bind):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


@dataclass
class LoginSessions:
    """The token, and the sessions of those who gave it."""

    token: str | None
    _open: dict[str, float] = field(default_factory=dict)
    _failures: dict[str, list[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def login(self, given: str, client: str = "?") -> str | None:
        if not self._is_token(given, client):
            return None
        session = secrets.token_urlsafe(32)
        with self._lock:
            self._open = {known: until for known, until in self._open.items() if until > time.monotonic()}
            self._open[session] = time.monotonic() + SESSION_S
        return session

    def too_many_tries(self, client: str) -> bool:
        """Tell whether an address gave more wrong tokens within a minute than a person mistypes."""
        before = time.monotonic() - 60
        with self._lock:
            return sum(at > before for at in self._failures.get(client, ())) > _TRIES_PER_MINUTE

    def logout(self, headers: Headers) -> None:
        with self._lock:
            self._open.pop(_cookie(headers), None)

    def admits(self, headers: Headers, client: str = "?") -> bool:
        """Tell whether a request carries a session or the token itself."""
        if self.token is None:
            return True
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(given.strip(), client)
        session = _cookie(headers)
        with self._lock:
            return any(
                hmac.compare_digest(session.encode(), known.encode()) and until > time.monotonic()
                for known, until in self._open.items()
            )

    def _is_token(self, given: str, client: str) -> bool:
        if self.token is None:
            return False
        if hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode()):
            return True
        now = time.monotonic()
        with self._lock:
            if client not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
                self._failures = {who: ats for who, ats in self._failures.items() if ats[-1] > now - 60}
                if len(self._failures) >= _MOST_ADDRESSES:
                    self._failures.clear()
            tries = self._failures.setdefault(client, [])
            tries.append(now)
            del tries[: -_TRIES_PER_MINUTE - 1]
        return False


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


@dataclass(frozen=True)
class Gate:
    """Guard the application as its outer ASGI layer."""

    app: ASGIApp
    hosts: frozenset[str]
    sessions: LoginSessions
    service: "Service"  # the guarded service, for the code that runs or tests it
    any_ip: bool = False  # on every interface: a numeric address cannot be rebound, so each is one of ours

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        headers = Headers(scope=scope)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = MutableHeaders(scope=message)
                kept.update(HEADERS)
                if not is_loopback(headers.get("host", "").rpartition(":")[0]):
                    del kept["cross-origin-opener-policy"]  # browsers warn that they ignore it over plain HTTP
                kept.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refusal(scope, headers)
        if refused is None and scope["method"] not in ("GET", "HEAD") and scope["path"] != UPLOADS:
            refused, receive = await _body(scope, headers, receive)
        await (refused or self.app)(scope, receive, send_safely)

    def _refusal(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return problem_response(
                421, "this name does not belong to the page", fix="Open the address that the command printed."
            )
        if not _same_site(scope, headers, hosts[0]):
            return problem_response(403, "another site's page may not ask for this", fix="Open the page itself.")
        path: str = scope["path"]
        client = scope["client"][0] if scope.get("client") else "?"
        if path in _OPEN or self.sessions.admits(headers, client):
            return None
        if path == "/" and scope["method"] in ("GET", "HEAD"):
            query = checked_query(scope.get("query_string", b"").decode("latin-1"))
            return RedirectResponse(f"/login?{query}" if query else "/login", 303)
        if self.sessions.too_many_tries(client):
            return problem_response(429, "too many wrong tokens from this address", fix="Wait a minute.", retry_s=60)
        return problem_response(401, "a token is needed", fix="Log in at /login, or send Authorization: Bearer TOKEN.")

    def _is_ours(self, host: str) -> bool:
        found = re.fullmatch(r"(\[[0-9a-f:.]+\]|[a-z0-9.-]+)(:[0-9]{1,5})?", host.lower())
        if not found:
            return False
        name = found[1].strip("[]").rstrip(".")
        if name in self.hosts:
            return True
        try:
            return self.any_ip and bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _same_site(scope: Scope, headers: Headers, host: str) -> bool:
    """Accept our own page, the address bar, or a client other than a browser; others may link to the front page."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    reads = scope["method"] in ("GET", "HEAD")
    if origin is not None and origin.lower() != f"{scope['scheme']}://{host.lower()}":
        return False
    if site is None or site in ("same-origin", "none"):
        return True
    return reads and scope["path"] in ("/", "/login") and headers.get("sec-fetch-mode") == "navigate"


async def _body(scope: Scope, headers: Headers, receive: Receive) -> tuple[ASGIApp | None, Receive]:
    """Read the whole body, up to the size that any of our requests needs, and pass it on as if it had just arrived."""
    content, more = b"", True
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return problem_response(400, "the body broke off"), receive
                content += message.get("body", b"")
                more = message.get("more_body", False)
                if len(content) > MOST_BODY:
                    return problem_response(413, f"the body is larger than {MOST_BODY:,} bytes"), receive
    except TimeoutError:
        return problem_response(408, f"the body took longer than {BODY_S:g} seconds to arrive"), receive
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    wanted = "application/x-www-form-urlencoded" if scope["path"] == "/login" else "application/json"
    if (content or scope["method"] == "POST") and scope["path"] != "/logout" and kind != wanted:
        return problem_response(415, f"the body must be {wanted}", where="content-type"), receive
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": content, "more_body": False}

    return None, again


MOST_QUERY = 4_000  # characters of a scenario in an address; our longest have a few hundred


def checked_query(query: str) -> str:
    """Rewrite the scenario of a link so that it always follows ``/?`` and leads to no other place."""
    try:
        parts = parse_qsl(query[:MOST_QUERY], keep_blank_values=True, max_num_fields=200)
    except ValueError:
        return ""
    return urlencode(parts)


LOGIN_STYLE = """:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
:root{background:light-dark(#f7f5f1,#0f1419);color:light-dark(#1b2430,#e4e9ef)}
body{max-width:26rem;margin:15vh auto;padding:0 1.25rem}
label,input,button{display:block;width:100%;box-sizing:border-box;font:inherit}
input,button{padding:.6rem;margin:.4rem 0 1rem;border-radius:6px;border:1px solid #8894a2}
button{background:#1559a8;color:#fff;border-color:#1559a8;cursor:pointer}
.wrong{color:light-dark(#a32b22,#f49a92);font-weight:600}
"""


def login_form(query: str = "", wrong: str | None = None, status: int = 200) -> Response:
    """Return the login form; it keeps the link that led to it, which opens after the login."""
    said = f'<p class="wrong" role="alert">{html.escape(wrong)}</p>' if wrong else ""
    return HTMLResponse(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>tokonomics: log in</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="stylesheet" href="/login.css"></head><body><main><h1>tokonomics</h1>'
        "<p>The command that started this page printed a token.</p>"
        f'{said}<form method="post" action="/login"><label for="token">Token</label>'
        '<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>'
        f'<input type="hidden" name="query" value="{html.escape(checked_query(query))}">'
        "<button>Log in</button></form></main></body></html>",
        status,
    )


async def logged_in(request: Request, sessions: LoginSessions) -> Response:
    """Set a cookie for the right token; the token itself is in no address and no cookie."""
    try:
        sent = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=20)
    except ValueError:
        sent = {}
    query = checked_query(sent.get("query", [""])[0])
    client = request.client.host if request.client else "?"
    session = sessions.login(sent.get("token", [""])[0].strip(), client)
    if session is None and sessions.too_many_tries(client):
        made = login_form(query, "Too many tries; wait a minute.", 429)
        made.headers["retry-after"] = "60"
        return made
    if session is None:
        return login_form(query, "That is not the token.", 401)
    opened = RedirectResponse(f"/?{query}" if query else "/", 303)
    # Lax: a link in a chat or a wiki opens the page. Requests that change something are guarded by Origin as well.
    opened.set_cookie(COOKIE, session, max_age=SESSION_S, httponly=True, samesite="lax", path="/")
    return opened


def logged_out(request: Request, sessions: LoginSessions) -> Response:
    """End the session, here and in the browser, and show the form."""
    sessions.logout(request.headers)
    left = RedirectResponse("/login", 303)
    left.delete_cookie(COOKIE, httponly=True, samesite="lax", path="/")
    return left
