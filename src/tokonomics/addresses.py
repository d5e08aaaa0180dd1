"""Check and show the addresses of servers as people write them, and take connections on one of our own.

A server whose process has no file left to open says so once a minute, and takes connections again when it can. asyncio
waits a second before it accepts again, but reports every place of the listening queue with a traceback.
"""

import asyncio
import errno
import socket
import sys
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit, urlunsplit

from tokonomics.errors import BadInput, option, shorten

_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_QUIET_S = 60.0  # between two lines. Our choice.


def listening(host: str, port: int, ports: int = 1) -> socket.socket:
    """A socket that takes connections: on the port asked for, or on the next that is free, of so many; 0: any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + ports, 65536)) if port else [0]:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, candidate))
            bound.listen(128)  # who comes before the server runs waits instead of being turned away
        except OSError as error:
            bound.close()
            if error.errno not in _TAKEN or ports == 1:
                where = option("port", port) if ports == 1 else option("host", host)
                raise BadInput(f"cannot be listened on: {error.strerror or error}", where=where) from None
            continue
        return bound
    raise BadInput(f"ports {port} to {port + ports - 1} are all taken", where=option("port"))


def say_once_when_full() -> None:
    """From now on, in the loop that runs: connections that find no free file make one line, not a traceback each."""
    said_s = -_QUIET_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said_s
        problem = context.get("exception")
        if not (isinstance(problem, OSError) and problem.errno in _OUT_OF_FILES):
            loop.default_exception_handler(context)
        elif loop.time() - said_s >= _QUIET_S:
            said_s = loop.time()
            sys.stderr.write(
                f"connections wait: {problem.strerror}. Close some, or raise the limit on open files (ulimit -n).\n"
            )

    asyncio.get_running_loop().set_exception_handler(handle)


def split_address(text: str) -> SplitResult | None:
    """The parts of an address over HTTP; None where it is none."""
    try:
        parts = urlsplit(text.strip())
        usable = parts.port != 0
    except ValueError:
        return None
    return parts if usable and parts.scheme in ("http", "https") and parts.hostname else None


def host_of(parts: SplitResult) -> str:
    """The host as it stands in an address: one of IPv6 in brackets."""
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def shown_address(text: str) -> str:
    """The address without user, password and query."""
    try:
        parts = urlsplit(text.strip())
        host = f"{host_of(parts)}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "the address"
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


class BenchTarget(NamedTuple):
    """An endpoint of an OpenAI-compatible server."""

    url: str
    models_url: str
    chat: bool  # chat completions; otherwise plain completions

    @property
    def shown(self) -> str:
        return shown_address(self.url)


def target(url: str) -> BenchTarget:
    """The endpoint meant by ``http://host:8000``, ``…/v1`` or a whole path."""
    parts = split_address(url)
    if parts is None:
        said = f"'{shorten(shown_address(url))}' is not the address of a server"
        raise BadInput(said, fix="Write for example http://localhost:8000.")
    path = parts.path.rstrip("/")
    if path.endswith("/completions"):
        base = path.removesuffix("/completions").removesuffix("/chat")
        chat = path.endswith("/chat/completions")
    else:
        base = path if path.rsplit("/", 1)[-1].startswith("v") else f"{path}/v1"
        path, chat = f"{base}/chat/completions", True
    url, models_url = (urlunsplit((parts.scheme, parts.netloc, at, parts.query, "")) for at in (path, f"{base}/models"))
    return BenchTarget(url, models_url, chat)
