"""``tokonomics init``: a commented scenario file to begin with, and the JSON Schema for editors."""

from pathlib import Path
from typing import Annotated

import typer

from tokonomics.questions.verbs import scenario_verbs
from tokonomics.report.terminal import say, show_json


def init(
    file: Annotated[
        Path | None, typer.Argument(help="Where to; - prints it.", show_default="scenario.toml", metavar="FILE")
    ] = None,
    every_key: Annotated[bool, typer.Option("--all", help="With every key of every verb, explained.")] = False,
    verb: Annotated[
        list[str] | None,
        typer.Option(help="With every key of these verbs: with commas, or repeat.", autocompletion=scenario_verbs),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Write the JSON Schema of scenario files instead: scenario.schema.json.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Write a scenario file to begin with.

    Every verb takes it in place of flags.

    \b
    Examples:
      tokonomics init
      tokonomics init chat.toml --all
      tokonomics init chat.toml --verb plan,simulate,levers
      tokonomics init --schema
      tokonomics plan chat.toml
      tokonomics simulate chat.toml --gpu H200 --slo ttft_p99=1
    """
    from tokonomics.errors import BadInput, UnknownName, option, shorten
    from tokonomics.files import write_text
    from tokonomics.planner.parsing import listed
    from tokonomics.questions.scenario_text import SCHEMA_FILE, first_scenario, scenario_schema, scenario_text

    if schema and verb:
        raise BadInput("is for a scenario, not for the schema", field="verb")
    verbs = listed(verb, "verb") or scenario_verbs()
    for name in verbs:
        if name not in scenario_verbs():
            raise UnknownName("verb", name, scenario_verbs())
    path = file or Path(SCHEMA_FILE if schema else "scenario.toml")
    text = as_text(scenario_schema()) if schema else scenario_text(verbs) if verb or every_key else first_scenario()
    if str(path) == "-":
        typer.echo(text, nl=False)
        return
    where, ending = shorten(str(path), 200), ".json" if schema else ".toml"
    if path.is_dir():
        name = SCHEMA_FILE if schema else "scenario.toml"
        raise BadInput("is a folder", where=where, fix=f"Name a file in it: {shorten(str(path / name), 200)}")
    if path.suffix.lower() != ending:
        raise BadInput(f"'{shorten(path.name)}' does not end with {ending}", where="FILE")
    if path.exists() and not force:
        fix = f"Choose another name, or write over it with {option('force')}."
        raise BadInput("exists already", where=where, fix=fix)
    write_text(path, text, where)
    if json:
        show_json({"file": str(path), "verbs": [] if schema else verbs})
    elif schema:
        say(f"{path} saved: editors find it by the first line of a scenario, #:schema ./{path.name}")
    else:
        say(f"{path} saved. Next:  tokonomics {verbs[0]} {path}")
        say(f"For completion in your editor:  tokonomics init --schema {path.parent / SCHEMA_FILE}")


def as_text(schema: object) -> str:
    import json

    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
