"""Who hears what a question does while it works: a terminal, a job of the page, or nobody."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokonomics.measure.bench.loads import Progress


class Listener:
    """Hears nothing; a door overrides what it can show."""

    typed: str | None = None  # the command line as it was typed, where there is one

    def doing(self, what: str) -> None:
        """What is being done now."""

    def note(self, line: str) -> None:
        """What the reader should know beside the answer, such as rows that were left out."""

    def watching(self) -> "Callable[[Progress], None] | None":
        """A function that takes where a load test stands, some times a second; None where nobody watches."""
        return None

    def counting(self, what: str, total: int) -> Callable[[int], None] | None:
        """A function that takes how many of ``total`` (0: nobody knows) are done; None where nobody counts along."""
        return None


SILENT = Listener()
