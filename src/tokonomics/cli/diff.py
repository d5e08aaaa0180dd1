"""``tokonomics diff``: what a change to a scenario does to the plan and its bill."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli.answer import Answer, give
from tokonomics.cli.output import Json


def diff(
    before: Annotated[Path, typer.Argument(help="A scenario file (TOML).")],
    after: Annotated[Path, typer.Argument(help="The changed one.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for a pull request.")] = False,
    json: Json = False,
) -> None:
    """What changes between two scenarios, and what it saves.

    \b
    Examples:
      tokonomics diff today.toml proposal.toml
      tokonomics diff today.toml proposal.toml --markdown > comment.md
    """
    from tokonomics.cli.plan import studied
    from tokonomics.cli.scenario_file import read_scenario
    from tokonomics.clock import today
    from tokonomics.errors import BadInput
    from tokonomics.planner.diff import diff as compare
    from tokonomics.planner.scenario import questions_of
    from tokonomics.report.diff_view import diff_markdown, diff_view

    sides = []
    for path in (before, after):
        scenario = read_scenario(path)
        if len(scenario.cases()) > 1 or len(scenario.model) > 1:
            raise BadInput("is compared with one model and without ranges", where=str(path))
        (study,) = studied(questions_of(scenario, today()))
        sides.append((path.name, scenario, study.plan))
    made = compare(*sides)
    if markdown and not json:
        typer.echo(diff_markdown(made))
        return
    give(Answer(made, lambda: diff_view(made), f"{before.name} against {after.name}"), json=json)
