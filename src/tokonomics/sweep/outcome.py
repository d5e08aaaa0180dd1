"""What became of one point: an answer, a refusal, or a failure; made by a worker, kept by the store."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

OUT_OF_MEMORY = "needs more memory than a worker may take (--memory)"
"""The error of a point whose allocation failed: its worker is replaced."""


class Status(StrEnum):
    """How a point ended."""

    OK = "ok"
    NOTHING = "nothing"
    """An answer, but nothing does what was asked."""
    REFUSED = "refused"
    """The inputs cannot be answered: does not fit, unknown name. The same every time."""
    FAILED = "failed"
    """Out of time, out of memory, or the worker died: may go well another time."""


@dataclass(frozen=True)
class Outcome:
    """One row of the results, without the point's inputs."""

    status: Status
    error: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    answer: str | None = None
    """The verb's whole JSON."""
    seconds: float = 0.0

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def outcome_from(plain: dict[str, Any]) -> Outcome:
    return Outcome(**{**plain, "status": Status(plain["status"])})
