"""Run ``tokonomics mcp``: the tools over stdin and stdout, or over HTTP on this machine."""

import signal
import socket
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokonomics.addresses import listening
from tokonomics.errors import BadInput
from tokonomics.guarded.worker import MOST_BODY

if TYPE_CHECKING:
    from mcp.server import Server

    from tokonomics.workers import Pool

HOST, PORT, PATH = "127.0.0.1", 8322, "/mcp"


def mcp(
    http: Annotated[bool, typer.Option("--http", help="Over streamable HTTP on this machine.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --http; 0: any that is free.")] = PORT,
    ledger: Annotated[
        Path | None, typer.Option(help="The meter's ledger; with --http there is none unless it is named.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Leave long answers whole: some have a megabyte.")] = False,
) -> None:
    """Answer agents over the Model Context Protocol.

    They plan, fit, simulate and look up prices. Started by the agent, it speaks over stdin and stdout and reads the
    files that the agent names. Over HTTP it reads none, and takes requests from this machine alone. How to add it to an
    agent: docs/agents.md.

    \b
    Examples:
      tokonomics mcp
      tokonomics mcp --http --port 8322
    """
    try:
        from tokonomics.mcp.server import make_server
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("mcp"):
            raise
        fix = "In a checkout: pip install '.[mcp]'"
        raise BadInput("the MCP SDK is not installed", where="tokonomics mcp", fix=fix) from None
    from tokonomics.mcp.server import Toolbox

    with ExitStack() as until_done:
        toolbox = Toolbox(fenced=http, ledger=ledger and ledger.absolute(), whole=whole)
        fence = _fence(until_done) if http else None

        @cache
        def pool() -> "Pool":
            made = _workers(fence)
            until_done.callback(made.close)
            return made

        server = make_server(toolbox, pool)
        if http:
            _serve_http(server, listening(HOST, port))
        else:
            _serve_stdio(server)


def _fence(until_done: ExitStack) -> Path:
    """Return an empty folder for workers, inside a private one."""
    folder = Path(until_done.enter_context(tempfile.TemporaryDirectory(prefix="tokonomics-mcp-"))) / "empty"
    folder.mkdir()
    return folder


def _workers(fence: Path | None) -> "Pool":
    """Start as many workers as the page has for long work, with as much memory."""
    from tokonomics.guarded.worker import LONG_WORKERS, WAITING, guarded_pool, memory_of_worker
    from tokonomics.memory_budget import available_bytes

    return guarded_pool(LONG_WORKERS, WAITING, fence, memory_of_worker(LONG_WORKERS, available_bytes()))


def _serve_stdio(server: "Server[Any]") -> None:
    """Serve until the agent closes its end, or until Ctrl+C.

    Ctrl+C ends the process with its workers, as a thread that reads stdin cannot be stopped.
    """
    import anyio
    from mcp.server.stdio import stdio_server

    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def serve() -> None:
        async with stdio_server() as (heard, said):
            await server.run(heard, said, server.create_initialization_options())

    anyio.run(serve)


def _serve_http(server: "Server[Any]", bound: socket.socket) -> None:
    """Serve until a signal ends the process."""
    import uvicorn

    port = bound.getsockname()[1]
    typer.echo(f"tokonomics mcp is at http://{HOST}:{port}{PATH}  (Ctrl+C ends it)")
    config = uvicorn.Config(
        http_app(server, port), log_level="warning", access_log=False, server_header=False, ws="none",
        proxy_headers=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    uvicorn.Server(config).run(sockets=[bound])


def http_app(server: "Server[Any]", port: int) -> Any:
    """Return the ASGI application; it refuses another machine's name (DNS rebinding) and pages of other sites."""
    from mcp.server.transport_security import TransportSecuritySettings

    names = [f"{name}:{port}" for name in (HOST, "localhost")]
    checked = TransportSecuritySettings(allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names])
    return server.streamable_http_app(
        streamable_http_path=PATH, transport_security=checked, max_request_body_size=MOST_BODY
    )
