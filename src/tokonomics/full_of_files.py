"""A server whose process has no file left to open: it says so once a minute, and takes connections again when it can.

asyncio waits a second before it accepts again, but reports every place of the listening queue with a traceback.
"""

import asyncio
import errno
import sys
from typing import Any

_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_QUIET_S = 60.0
"""Between two lines. Our choice."""


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
