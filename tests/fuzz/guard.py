"""What a parser may do with any bytes at all: give a sane value, or refuse in a short message that names the file.

Everything else is a bug: another exception, a warning, more than ``CPU_S`` of computing, memory out of proportion to
the input, a message that is long or holds control characters, a number that is none. Time is CPU time of this process,
so that a busy machine is no failure; memory is the peak of resident pages, which Linux lets a process reset.
"""

import dataclasses
import faulthandler
import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from tokonomics.errors import TokonomicsError
from tokonomics.measure.bench.client import BadAnswer

CPU_S = 10.0
"""A choice: thousands of times what a file of a few kilobytes takes."""
STUCK_S = 300.0
"""Wall time after which a parser that never comes back (a hang in compiled code) ends the run and shows its stack."""
MEMORY_BYTES = 400_000_000
"""A choice: a thread pool and the buffers of polars take up to 150 MB on their own."""
PER_INPUT_BYTE = 100
LONGEST_MESSAGE = 1500
"""Characters; the list of supported architectures alone has 700."""


class Hang(BaseException):
    """Not an Exception: nothing in a parser may swallow it."""


def judged(read: Callable[[Path], object], path: Path, *, names_file: bool = True) -> str:
    """``value`` or ``refused``; raises AssertionError, or whatever the parser let through."""
    size = path.stat().st_size if path.is_file() else 0
    with _limits(size):
        try:
            value = read(path)
        except TokonomicsError as error:
            _fair(str(error), path.name if names_file else None)
            return "refused"
        except BadAnswer as error:
            _fair(str(error), None)
            return "refused"
        _sane(value)
        return "value"


def _fair(message: str, name: str | None) -> None:
    assert message.strip(), "an empty message"
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]}…"
    odd = [char for char in message if not char.isprintable() and char != "\n"]
    assert not odd, f"control characters in a message: {odd[:5]!r} in {message[:200]!r}"
    assert "Traceback" not in message
    assert name is None or name in message, f"the message does not name the file {name}: {message[:300]}"


def _sane(value: object, depth: int = 0) -> None:
    """No number in a result is NaN; infinity only where a field means "no limit" (patience, a span without end)."""
    if isinstance(value, float):
        assert not math.isnan(value), "not a number in a result"
    elif isinstance(value, np.ndarray):
        assert value.dtype.kind != "f" or not np.isnan(value).any(), "not a number in a result"
    elif depth > 6:
        return
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            _sane(getattr(value, name), depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _sane(getattr(value, field.name), depth + 1)
    elif isinstance(value, Mapping):
        for each in value.values():
            _sane(each, depth + 1)
    elif isinstance(value, list | tuple):
        for each in value[:200]:
            _sane(each, depth + 1)


@contextmanager
def _limits(size: int) -> Iterator[None]:
    before = _reset_peak()
    with warnings.catch_warnings(), _no_longer_than(CPU_S):
        warnings.simplefilter("error")
        yield
    grown = _memory("VmHWM") - before
    assert grown <= MEMORY_BYTES + PER_INPUT_BYTE * size, f"{grown / 1e6:,.0f} MB for an input of {size:,} bytes"


@contextmanager
def _no_longer_than(cpu_s: float) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise Hang(f"more than {cpu_s:g} s of computing")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    faulthandler.dump_traceback_later(STUCK_S, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGPROF, before)


def _reset_peak() -> int:
    """Bytes in use now, from which the peak is counted anew; elsewhere than on Linux nothing is counted."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 1 << 62
    return _memory("VmRSS")


def _memory(field: str) -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(status.split(f"{field}:", 1)[1].split(None, 1)[0]) * 1024
