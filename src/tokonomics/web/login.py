"""The form in which the token is given, where one is demanded."""

import html
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tokonomics.web.safety import COOKIE, SESSION_S, LoginSessions, checked_query

STYLE = """:root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}
:root{background:light-dark(#f7f5f1,#0f1419);color:light-dark(#1b2430,#e4e9ef)}
body{max-width:26rem;margin:15vh auto;padding:0 1.25rem}
label,input,button{display:block;width:100%;box-sizing:border-box;font:inherit}
input,button{padding:.6rem;margin:.4rem 0 1rem;border-radius:6px;border:1px solid #8894a2}
button{background:#1559a8;color:#fff;border-color:#1559a8;cursor:pointer}
.wrong{color:light-dark(#a32b22,#f49a92);font-weight:600}
"""


def form(query: str = "", wrong: str | None = None, status: int = 200) -> Response:
    """The form; the link that led to it goes along, so that it opens after the login."""
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
    """A cookie for the right token; the token itself is in no address and no cookie."""
    try:
        sent = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=20)
    except ValueError:
        sent = {}
    query = checked_query(sent.get("query", [""])[0])
    client = request.client.host if request.client else "?"
    session = sessions.login(sent.get("token", [""])[0].strip(), client)
    if session is None and sessions.too_many_tries(client):
        made = form(query, "Too many tries; wait a minute.", 429)
        made.headers["retry-after"] = "60"
        return made
    if session is None:
        return form(query, "That is not the token.", 401)
    opened = RedirectResponse(f"/?{query}" if query else "/", 303)
    # Lax: a link in a chat or a wiki opens the page. Whatever changes something is guarded by Origin as well.
    opened.set_cookie(COOKIE, session, max_age=SESSION_S, httponly=True, samesite="lax", path="/")
    return opened


def logged_out(request: Request, sessions: LoginSessions) -> Response:
    """The session ends, here and in the browser; the form is shown."""
    sessions.logout(request.headers)
    left = RedirectResponse("/login", 303)
    left.delete_cookie(COOKIE, httponly=True, samesite="lax", path="/")
    return left
