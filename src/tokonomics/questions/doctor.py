"""Is this installation whole, and how old is what it knows?"""

from tokonomics.measure.installation import Installation, examine
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.requests.known import DoctorRequest
from tokonomics.questions.result import Result


# Here and not beside the other results: it must be had where a package that those need is broken.
class DoctorResult(Result, Installation):
    """Everything that was looked at."""

    ROWS = "checks"

    @property
    def is_found(self) -> bool:
        return self.works

    def headline(self) -> str:
        broken = [check.name for check in self.checks if check.state == "broken"]
        return f"broken: {', '.join(broken)}" if broken else "all that is needed works"


def doctor(request: DoctorRequest, listener: Listener = SILENT) -> DoctorResult:
    """What is installed, how old the prices are, which files and GPUs are found."""
    return DoctorResult(**dict(examine()))
