"""Open the change that ``levers --open`` drafted: its branch, with the Markdown of ``plan --against`` as its text."""

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokonomics.errors import TokonomicsError
from tokonomics.files import write_text
from tokonomics.operate.pull_request import open_change
from tokonomics.physics.calibration import using
from tokonomics.questions.proposal import DraftedChange
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.buy import DiffRequest
from tokonomics.questions.verbs import find_verb
from tokonomics.report.answer import describe


def opened(result: Any, request: Any, listener: Listener) -> Any:
    """Return the result of ``levers`` with the branch, request or patch that was made of its change."""
    change: DraftedChange = result.drafted
    listener.doing("writing the change")
    made = open_change(
        change.root, change.name, change.title, f"{change.summary}\n\n{_compared(change, listener)}\n", change.files,
        only_patch=request.open_ == "patch", patches=Path.cwd(),
    )  # fmt: skip
    return result.model_copy(update={"opened": made})


def _compared(change: DraftedChange, listener: Listener) -> str:
    """Return both scenarios side by side, as a pull request shows them; or why they are not compared."""
    if change.before == change.after:
        return "A plan of it is the same: a plan searches for the number of replicas itself."
    verb = find_verb("diff")
    with TemporaryDirectory(prefix="tokonomics-") as folder:
        paths = [Path(folder) / "today.toml", Path(folder) / "proposed.toml"]
        for path, text in zip(paths, (change.before, change.after), strict=True):
            write_text(path, text, path.name)
        asked = DiffRequest.checked({"model": str(paths[0]), "against": str(paths[1]), "format": "github"})
        try:
            with using(change.profile) if change.profile else nullcontext():
                answer = describe(verb, verb.answer(asked, listener), asked)
        except TokonomicsError as error:
            return f"Planned at list prices they cannot be compared: {error.what}."
        assert answer.printed is not None
        return answer.printed()
