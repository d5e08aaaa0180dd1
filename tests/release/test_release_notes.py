"""What a release says of itself is complete: CHANGELOG.md its verbs, SECURITY.md what leaves the machine and what is
kept, CONTRIBUTING.md its layers."""

import re
import tomllib
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "tokonomics"


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_changelog_names_every_verb() -> None:
    from tokonomics.__main__ import app

    verbs = get_command(app)
    assert isinstance(verbs, TyperGroup)
    named = set(re.findall(r"`(?:tokonomics )?([\w-]+)[^`]*`", text("CHANGELOG.md")))
    assert set(verbs.commands) <= named, set(verbs.commands) - named


def test_the_security_page_names_every_command_that_opens_a_connection() -> None:
    """By what the sources import: a new one is named there first."""
    opens = re.compile(r"\b(?:urlopen\(|aiohttp\.ClientSession\(|create_connection\(|import gpuhunt|ray\.init\()")
    because_of = {
        "catalog/refresh.py": "`offers --refresh`",
        "traffic/prompts.py": "`cache --semantic URL`",
        "measure/bench/client.py": "`bench URL`",
        "operate/": "`tune URL`, `tune --start COMMAND`",
        "measure/meter/": "`meter URL`, `meter --prometheus URL`",
        "sweep/crew.py": "`sweep --ray ADDRESS`",
    }
    leaves = text("SECURITY.md").partition("## What leaves your machine")[2].partition("\n## ")[0]
    found = [
        str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if opens.search(file.read_text(encoding="utf-8"))
    ]
    for part, row in because_of.items():
        assert any(file.startswith(part) for file in found), part
        assert f"| {row} |" in leaves
    assert [file for file in found if not file.startswith(tuple(because_of))] == []


def test_the_security_page_names_every_variable_that_holds_a_secret() -> None:
    secret = re.compile(r'"((?:TOKONOMICS|OPENAI)_(?:\w+_)?(?:KEY|TOKEN|AUTHORIZATION|PASSWORD|SECRET))"')
    found = {name for file in SOURCE.rglob("*.py") for name in secret.findall(file.read_text(encoding="utf-8"))}
    assert len(found) >= 4
    keys = text("SECURITY.md").partition("## Keys and tokens")[2].partition("\n## ")[0]
    assert {name for name in found if f"`{name}`" not in keys} == set()


def test_the_layers_of_the_map_are_those_that_are_checked() -> None:
    """In the same order, from the top."""
    contracts = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = [
        {part.strip().removeprefix("tokonomics.") for part in layer.split("|")} for layer in contracts[0]["layers"]
    ]
    place = {name: number for number, layer in enumerate(layers) for name in layer}
    drawn = text("docs/architecture.md").partition("```\n")[2].partition("```")[0]
    words = [word.strip("()").removesuffix(".py") for word in re.split(r"\s{2,}", drawn)]
    told = [word for word in words if word in place]
    assert set(told) == set(place) - {"__main__"}
    assert [place[name] for name in told] == sorted(place[name] for name in told)
