"""``tokonomics web``: the page on this machine."""

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from tokonomics.errors import BadInput

_PORTS = 20
"""So many after the one asked for are tried."""


def web(
    port: Annotated[int, typer.Option(min=0, max=65535, help="The next free one where it is taken; 0: any.")] = 8321,
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback demands a token.")] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    token: Annotated[
        bool, typer.Option("--token", help="Demand a token on loopback too: TOKONOMICS_TOKEN, or one that is made.")
    ] = False,
    name: Annotated[
        list[str] | None, typer.Option(help="Another name of this machine in the browser's address, such as gpu-box.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="The meter's ledger, for the view of what is spent.")] = None,
) -> None:
    """Open the page: the same answers as here, with sliders, charts and links; on this machine alone.

    \b
    Examples:
      tokonomics web
      tokonomics web --port 9000 --no-open
      TOKONOMICS_TOKEN=$(openssl rand -hex 16) tokonomics web --host 0.0.0.0
    """
    import uvicorn

    from tokonomics.web.app import make_app
    from tokonomics.web.pages import prepare
    from tokonomics.web.safety import LEAST_TOKEN, is_loopback
    from tokonomics.web.service import Settings

    given = os.environ.get("TOKONOMICS_TOKEN")
    if given is not None and len(given) < LEAST_TOKEN:
        raise BadInput(f"has fewer than {LEAST_TOKEN} characters", where="TOKONOMICS_TOKEN")
    demanded = given or (secrets.token_urlsafe(32) if token or not is_loopback(host) else None)
    bound = listening(host, port)
    taken = bound.getsockname()[1]
    if port not in (0, taken):
        typer.echo(f"port {port} is taken; using {taken}", err=True)
    prepare()
    app = make_app(Settings(host=host, token=demanded, names=tuple(name or ()), ledger=ledger))
    everywhere = host in ("0.0.0.0", "::")
    shown = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{taken}/"
    typer.echo(f"tokonomics is at {address}  (Ctrl+C ends it)")
    if demanded:
        typer.echo("It asks for a token: " + ("the one in TOKONOMICS_TOKEN" if given else demanded))
    if not is_loopback(host):
        typer.echo("Others can reach this address. What they send is not encrypted: use a trusted network or a tunnel.")
    if not no_open:
        _open_soon(f"http://127.0.0.1:{taken}/" if everywhere else address)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, ws="none",
        proxy_headers=False, timeout_graceful_shutdown=1, limit_concurrency=200, h11_max_incomplete_event_size=64_000,
    )  # fmt: skip
    try:
        uvicorn.Server(config).run(sockets=[bound])
    finally:
        app.service.close()


def listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections: on the port asked for, or on the next that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + _PORTS, 65536)) if port else [0]:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((host, candidate))
            made.listen(128)  # who comes before the server runs waits instead of being turned away
        except OSError as error:
            made.close()
            if error.errno not in _TAKEN:
                raise BadInput(f"cannot be listened on: {error.strerror or error}", where=f"--host {host}") from None
            continue
        return made
    raise BadInput(f"ports {port} to {port + _PORTS - 1} are all taken", where="--port")


def _taken() -> frozenset[int]:
    import errno

    return frozenset({errno.EADDRINUSE, errno.EACCES})


_TAKEN = _taken()


def _open_soon(address: str) -> None:
    """The browser, once the server answers."""
    import threading
    import webbrowser

    timer = threading.Timer(0.5, webbrowser.open, [address])
    timer.daemon = True
    timer.start()
