"""Run ``tokonomics web``: serve the page on this machine, and close connections that keep the server waiting.

uvicorn counts every connection against its limit and waits for a first request for ever. Here a connection that has
never made a request is closed after ``SILENT_S``, and one that has made its last after ``KEPT_S``. If one address holds
``MOST_OF_ONE``, the newest replaces the one that has kept the server waiting longest, silent or with an unfinished
body. The readers of a body decide how long it may take (``safety.BODY_S``, ``UploadLimits``).
"""

import asyncio
import os
import secrets
import signal
import socket
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from uvicorn.protocols.http.h11_impl import H11Protocol

from tokonomics.addresses import listening, say_once_when_full
from tokonomics.errors import BadInput
from tokonomics.memory_budget import can_limit_memory

SILENT_S = 10.0  # time for the headers of a first request to arrive
KEPT_S = 60.0  # between two requests: a browser shows an error if it reuses a connection that is being closed
MOST_OF_ONE = 64  # connections of one address: a browser opens six for each window
MOST = 400  # of all addresses


class Connection(H11Protocol):
    """Extend uvicorn's connection with a clock and a count."""

    _clock: asyncio.TimerHandle | None = None
    since = 0.0  # when it was opened, or when its last request began; later if that took long

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        who = self.client[0] if self.client else None
        others = [other for other in self.connections if isinstance(other, Connection) and other is not self]
        of_this = [other for other in others if other.client and other.client[0] == who]
        if len(of_this) >= MOST_OF_ONE:
            waited_for = [other for other in of_this if not other.is_worked_for]
            given_up = min(waited_for, key=lambda other: other.since, default=self)
            given_up.transport.abort()
            self.connections.discard(given_up)  # now, not when the loop closes it: more may arrive before
        self.since = self.loop.time()
        self._clock = self.loop.call_later(SILENT_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._clock:
            self._clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        last = self.cycle
        super().data_received(data)
        if self.cycle is not last:
            self.since = self.loop.time()

    @property
    def is_worked_for(self) -> bool:
        """Tell whether its request has arrived completely and is not yet fully answered."""
        return self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete

    def _look(self) -> None:
        if self.cycle is None:
            self.transport.abort()  # it never sent a request
            return
        if self.is_worked_for:
            self.since = self.loop.time()
        elif self.cycle.response_complete and self.loop.time() - self.since > KEPT_S:
            self.transport.close()
            return
        self._clock = self.loop.call_later(SILENT_S, self._look)


if TYPE_CHECKING:
    from tokonomics.web.safety import Gate

_PORTS = 20  # ports to try, from the requested one on


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
    """Open the page: the same answers, with sliders and charts.

    It is served to this machine alone unless --host says otherwise.

    \b
    Examples:
      tokonomics web
      tokonomics web --port 9000 --no-open
      TOKONOMICS_TOKEN=$(openssl rand -hex 16) tokonomics web --host 0.0.0.0
    """
    from tokonomics.web.safety import LEAST_TOKEN, is_loopback
    from tokonomics.web.service import Service, Settings

    given = os.environ.get("TOKONOMICS_TOKEN")
    given = given and given.strip()  # a file or a shell often adds a line break
    if given is not None and len(given) < LEAST_TOKEN:
        raise BadInput(f"has fewer than {LEAST_TOKEN} characters", where="TOKONOMICS_TOKEN")
    demanded = given or (secrets.token_urlsafe(32) if token or not is_loopback(host) else None)
    bound = listening(host, port, _PORTS)
    taken = bound.getsockname()[1]
    if port not in (0, taken):
        typer.echo(f"port {port} is taken; using {taken}", err=True)
    _end_tidily()
    settings = Settings(host=host, token=demanded, names=tuple(name or ()), ledger=ledger)
    service = Service(settings)  # its workers start while the rest is imported
    try:
        from tokonomics.web.app import make_app
        from tokonomics.web.pages import prepare

        app = make_app(settings, service)
        prepare()
        everywhere = host in ("0.0.0.0", "::")
        shown = socket.gethostname() if everywhere else f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{taken}/"
        typer.echo(f"tokonomics is at {address}  (Ctrl+C ends it)")
        if demanded:
            typer.echo("It asks for a token: " + ("the one in TOKONOMICS_TOKEN" if given else demanded))
        if not is_loopback(host):
            typer.echo(
                "Others can reach this address. What they send is not encrypted: use a trusted network or a tunnel."
            )
        if not can_limit_memory():
            typer.echo("This system does not let a process limit its memory: a question may take all of it.")
        if not no_open:  # once the server answers
            opened = threading.Timer(0.5, webbrowser.open, [f"http://127.0.0.1:{taken}/" if everywhere else address])
            opened.daemon = True
            opened.start()
        _serve(app, bound)
    finally:
        service.close()


def _serve(app: "Gate", bound: socket.socket) -> None:
    """Serve until a signal ends the process."""
    import uvicorn

    from tokonomics.web.serve import MOST

    class _Server(uvicorn.Server):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            say_once_when_full()
            await super().serve(sockets)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, date_header=False, ws="none",
        proxy_headers=False, timeout_graceful_shutdown=1, limit_concurrency=MOST, http=Connection,
        timeout_keep_alive=round(KEPT_S), h11_max_incomplete_event_size=64_000,
    )  # fmt: skip
    server = _Server(config)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit)
    server.run(sockets=[bound])


def _end_tidily() -> None:
    """End on a closed terminal or SIGTERM as on Ctrl+C, so that workers and uploads are removed too."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    for polite in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(polite) is not signal.SIG_IGN:  # as under nohup
            signal.signal(polite, end)
