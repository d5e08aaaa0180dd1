"""Keeps off the screen what Rust writes there before it gives up on a damaged file: its message is told as an error.

Polars raises a PanicException, but the text of the panic, with a backtrace, has gone to file descriptor 2 by then, from
a thread of its own. While a file is read, that descriptor leads to a temporary file; Python's own standard error goes
on to the screen. What was caught is shown after all where the file could be read.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import IO, Any

_LOCK = Lock()
_STDERR = 2
_reading = 0
"""How many files are being read: the first takes the descriptor, the last gives it back."""
_caught: "_Caught | None" = None


class _Caught:
    """File descriptor 2 while it leads to a temporary file."""

    def __init__(self) -> None:
        self.text: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `release`
        self.before: Any = sys.stderr
        sys.stderr.flush()
        self.screen = os.dup(_STDERR)
        os.dup2(self.text.fileno(), _STDERR)
        how: dict[str, Any] = {"encoding": self.before.encoding, "errors": "replace", "buffering": 1, "closefd": False}
        sys.stderr = open(self.screen, "w", **how)  # noqa: PTH123, SIM115 - closed with the descriptor

    def release(self, *, shown: bool) -> None:
        sys.stderr.flush()
        sys.stderr = self.before
        os.dup2(self.screen, _STDERR)
        os.close(self.screen)
        if shown and self.text.tell():
            self.text.seek(0)
            shutil.copyfileobj(self.text, sys.stderr.buffer)
            sys.stderr.flush()
        self.text.close()


@contextmanager
def without_panics() -> Iterator[None]:
    """Nothing on the screen from a library that panics within; nothing changes where standard error is no file."""
    global _reading, _caught
    with _LOCK:
        _reading += 1
        if _reading == 1 and _is_plain():
            with suppress(OSError):  # no room for a temporary file: a panic is on the screen as well
                _caught = _Caught()
    shown = False
    try:
        yield
        shown = True
    finally:
        with _LOCK:
            _reading -= 1
            if not _reading and _caught:
                _caught.release(shown=shown)
                _caught = None


def _is_plain() -> bool:
    """Whether Python's standard error is the descriptor that Rust writes to."""
    try:
        return sys.stderr is not None and sys.stderr.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):
        return False
