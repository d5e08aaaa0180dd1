"""Taking connections: a socket on a port that is free, and a server whose process has no file left to open.

Such a server says so once a minute, and takes connections again when it can. asyncio waits a second before it accepts
again, but reports every place of the listening queue with a traceback.
"""

import asyncio
import errno
import socket
import sys
from typing import Any

from tokonomics.errors import BadInput, option

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
