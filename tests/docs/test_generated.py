"""What the README and the guide show is what the code prints."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from tokonomics.__main__ import DOORS
from tokonomics.cli.main import application

ROOT = Path(__file__).parents[2]


sys.path.insert(0, str(ROOT / "docs"))

from generate import PAGES, WHOLE, main  # noqa: E402

OWN_PROCESS = {"docs/commands.md", "docs/python.md"}
"""Typer reads the width of its help when it is imported, so help is printed by an interpreter that has not; and what a
Python session shows is shown by a new one."""


@pytest.mark.slow
@pytest.mark.parametrize("page", [*WHOLE, *PAGES])
def test_every_output_in_the_readme_and_the_guide_is_what_the_command_prints(page: str) -> None:
    if page in OWN_PROCESS:
        command = [sys.executable, "docs/generate.py", "--check", page]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        return
    with patch.dict(os.environ), patch.object(sys, "argv", ["generate.py", "--check", page]):
        assert main() == 0


def test_the_claims_page_has_all_38_claims() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert [f"| C{number:02} |" in page for number in range(1, 39)] == [True] * 38


def test_the_list_of_verbs_says_of_each_what_its_own_help_says() -> None:
    """Only the verb that is typed is loaded; the others are listed by what the tables say of them."""
    listed, loaded = (get_command(application(only, DOORS)) for only in ("", None))
    assert isinstance(listed, TyperGroup)
    assert isinstance(loaded, TyperGroup)
    assert listed.commands.keys() == loaded.commands.keys()
    for name, command in listed.commands.items():
        assert command.get_short_help_str(500) == loaded.commands[name].get_short_help_str(500)
