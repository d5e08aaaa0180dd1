"""Keeps Rust's panic messages about damaged files off the screen, since an error of ours reports them.

Polars raises a PanicException, but by then a thread of its own has written the text of the panic, with a backtrace, to
file descriptor 2. While a file is read, that descriptor leads to a temporary file, and Python's own standard error to
the screen. If the file could be read, what was caught is shown afterwards.
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
_reading = 0  # files being read: the first takes the descriptor, the last gives it back
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
    """Keep what a library writes to standard error off the screen; does nothing where that is no file."""
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
