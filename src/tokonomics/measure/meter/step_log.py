"""Read the steps that an engine logs of itself, as counters beside those of its page.

vLLM writes a line for each step with ``--enable-logging-iteration-details`` (vllm/v1/metrics/loggers.py; so in 0.26.0).
Steps without prompts are counted: how many, how many answers ran in them, and how long the engine waited for each. With
asynchronous scheduling that wait is a step less what the host did meanwhile. Where steps of two processes meet in one
log, a few may be counted with the wrong one.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from tokonomics.errors import BadInput
from tokonomics.measure.meter.readings import STEPS, Counted, Reading

_STEP = re.compile(
    rb"Iteration\(\d{1,12}\): (\d{1,9}) context requests, \d{1,12} context tokens, (\d{1,9}) generation requests, "
    rb"\d{1,12} generation tokens, iteration elapsed time: (\d{1,9}\.\d{1,6}) ms,"
)
_AT_ONCE = 1 << 24  # bytes of one reading: 80,000 steps; what is beyond is read at the next (our choice)
_LOOKED_AT = 1 << 20  # bytes at its end: 5,000 steps (our choice)
_LONGEST = 4096  # bytes of a line that is half written (our choice)
_SERIES = "logged steps"


class StepLog:
    """The log of one server, from where it was when reading began."""

    def __init__(self, path: Path) -> None:
        self._path, self._begun = path, b""
        try:
            self._file: BinaryIO | None = path.open("rb")
            self._file.seek(max(0, os.fstat(self._file.fileno()).st_size - _LOOKED_AT))
            self.tells = _STEP.search(self._file.read()) is not None  # whether steps were logged before reading began
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror}", field="engine_log", where=str(path)) from None
        self._started: float | None = None
        self._counted = dict.fromkeys(STEPS, 0.0)

    def beside(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """Return the readings with the steps that were logged up to now, if they are of one model."""
        if len(readings) != 1:
            return readings
        (reading,) = readings
        self._read()
        if reading.started is not None:
            if self._started not in (None, reading.started):
                self._counted = dict.fromkeys(STEPS, 0.0)  # counters of a new process begin at 0, and so do these
            self._started = reading.started
        logged = {kind: {_SERIES: value} for kind, value in self._counted.items()}
        return [replace(reading, counters={**reading.counters, **logged})]

    def _read(self) -> None:
        """Count the lines that were added: those of a log that was rotated to its end, then those of the new one."""
        with suppress(OSError):  # between two names while it is rotated
            if self._file is not None:
                self._count(self._file)
            now = self._path.stat()
            if self._file is None or os.fstat(self._file.fileno()).st_ino != now.st_ino:
                self.close()
                self._file = self._path.open("rb")
                self._count(self._file)
            elif now.st_size < self._file.tell():  # cut short in its place
                self._begun = b""
                self._file.seek(0)
                self._count(self._file)

    def _count(self, file: BinaryIO) -> None:
        lines = (self._begun + file.read(_AT_ONCE)).split(b"\n")
        self._begun = lines.pop()[-_LONGEST:]
        for line in lines:
            found = _STEP.search(line)
            if found and found[1] == b"0" and found[2] != b"0":
                self._counted[Counted.step_count] += 1
                self._counted[Counted.step_answers] += int(found[2])
                self._counted[Counted.step_s] += float(found[3]) / 1000

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file, self._begun = None, b""
