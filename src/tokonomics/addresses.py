"""Check and show server addresses as people write them, and listen on a port of our own.

When the process has run out of file descriptors, the server says so once a minute and accepts connections again when it
can. asyncio alone waits a second before it accepts again, but logs a traceback for every pending connection.
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
_QUIET_S = 60.0  # between two messages (our choice)


def listening(host: str, port: int, ports: int = 1) -> socket.socket:
    """Return a listening socket on the given port, or on the first free one of the next ``ports``; port 0 means any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + ports, 65536)) if port else [0]:
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((host, candidate))
            bound.listen(128)  # clients that connect before the server runs wait instead of being refused
        except OSError as error:
            bound.close()
            if error.errno not in _TAKEN or ports == 1:
                where = option("port", port) if ports == 1 else option("host", host)
                raise BadInput(f"cannot be listened on: {error.strerror or error}", where=where) from None
            continue
        return bound
    raise BadInput(f"ports {port} to {port + ports - 1} are all taken", where=option("port"))


def say_once_when_full() -> None:
    """Make the running loop log one line, not a traceback each, for connections that find no free file descriptor."""
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
    """Return the parts of an HTTP address, or None if the text is not one."""
    try:
        parts = urlsplit(text.strip())
        usable = parts.port != 0
    except ValueError:
        return None
    return parts if usable and parts.scheme in ("http", "https") and parts.hostname else None


def host_of(parts: SplitResult) -> str:
    """Return the host as an address writes it: IPv6 in brackets."""
    host = parts.hostname or ""
    return f"[{host}]" if ":" in host else host


def shown_address(text: str) -> str:
    """Return the address without user, password and query."""
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
    """Return the endpoint that ``http://host:8000``, ``…/v1`` or a whole path means."""
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
