"""What does a change to a scenario do to the plan and its bill?"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import BadInput
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.load import cases_of
from tokonomics.questions.plan import PlanRequest, questions_in, studied
from tokonomics.questions.request import Kind, Placement, Request, Switch, Text, declared, parameters_of
from tokonomics.questions.scenario import read_request

if TYPE_CHECKING:
    from tokonomics.questions.results import OneNoun


class DiffRequest(Request):
    """
    Examples:
      tokonomics diff today.toml proposal.toml
      tokonomics diff today.toml proposal.toml --markdown > comment.md
    """

    before: Text = declared(..., "A scenario file (TOML).", place=Placement.FIRST, kind=Kind.FILE)
    after: Text = declared(..., "The changed one.", place=Placement.FIRST, kind=Kind.FILE)
    markdown: Switch = declared(False, "Print Markdown, for a pull request.")


def diff(request: DiffRequest, listener: Listener = SILENT) -> "OneNoun":
    """The inputs that differ, the pick of each side, and what the change saves."""
    from tokonomics.planner.compare import diff as compare
    from tokonomics.questions.results import OneNoun

    sides = []
    for path in (Path(request.before), Path(request.after)):
        asked = read_request(path, PlanRequest, "plan")
        if len(cases_of(asked)) > 1 or len(asked.model) > 1:
            raise BadInput("is compared with one model and without ranges", where=str(path))
        (study,) = studied(questions_in(asked), listener)
        sides.append((path.name, _words(asked), study.plan))
    return OneNoun.holding(compare(*sides))


_NOT_COMPARED = {"top", "why", "explain", "deploy", "deploy_to", "profile"}


def _words(request: PlanRequest) -> dict[str, object]:
    """What the scenario says to the planner, by key."""
    return {
        parameter.key: getattr(request, name)
        for name, parameter in parameters_of(PlanRequest).items()
        if name not in _NOT_COMPARED
    }
