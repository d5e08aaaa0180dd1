"""Read the steps that an engine logs of itself, as counters beside those of its page.

vLLM writes a line for each step with ``--enable-logging-iteration-details`` (vllm/v1/metrics/loggers.py; so in 0.26.0).
Steps without prompts are counted: how many, how many answers ran in them, and how long the engine waited for each. With
asynchronous scheduling that wait is a step less what the host did meanwhile.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tokonomics.errors import BadInput
from tokonomics.measure.meter.readings import Counted, Reading

_STEP = re.compile(
    rb"Iteration\(\d{1,12}\): (\d{1,9}) context requests, \d{1,12} context tokens, (\d{1,9}) generation requests, "
    rb"\d{1,12} generation tokens, iteration elapsed time: (\d{1,9}\.\d{1,6}) ms,"
)
_AT_ONCE = 1 << 24  # bytes of one reading: 80,000 steps; what is beyond is read at the next (our choice)
_SERIES = "logged steps"


class StepLog:
    """The log of one server, from where it was when reading began."""

    def __init__(self, path: Path) -> None:
        try:
            self._at, self._file = path.stat().st_size, path.stat().st_ino
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror}", field="engine_log", where=str(path)) from None
        self._path, self._begun = path, b""
        self._started: float | None = None
        self._counted = dict.fromkeys((Counted.step_s, Counted.step_count, Counted.step_answers), 0.0)

    def beside(self, readings: Sequence[Reading]) -> Sequence[Reading]:
        """Return the readings with the steps that were logged up to now, if they are of one model."""
        if len(readings) != 1:
            return readings
        (reading,) = readings
        if reading.started != self._started:  # counters of a new process begin at 0, and so do these
            self._started, self._counted = reading.started, dict.fromkeys(self._counted, 0.0)
        self._read()
        logged = {kind: {_SERIES: value} for kind, value in self._counted.items()}
        return [replace(reading, counters={**reading.counters, **logged})]

    def _read(self) -> None:
        """Count the lines that were added; a log that was replaced or cut is read from its beginning."""
        try:
            with self._path.open("rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._file or now.st_size < self._at:
                    self._at, self._file, self._begun = 0, now.st_ino, b""
                file.seek(self._at)
                new = file.read(_AT_ONCE)
        except OSError:
            return  # between two names while it is rotated
        self._at += len(new)
        lines = (self._begun + new).split(b"\n")
        self._begun = lines.pop()[-4096:]
        for line in lines:
            found = _STEP.search(line)
            if found and found[1] == b"0" and found[2] != b"0":
                self._counted[Counted.step_count] += 1
                self._counted[Counted.step_answers] += int(found[2])
                self._counted[Counted.step_s] += float(found[3]) / 1000
