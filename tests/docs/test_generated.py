"""What the README and the guide show is what the code prints."""

import hashlib
import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from tokonomics.cli.main import application

ROOT = Path(__file__).parents[2]


sys.path.insert(0, str(ROOT / "docs"))

from generate import BLOCK, PAGES, WHOLE, main, run  # noqa: E402
from generate import _fill as fill  # noqa: E402
from generate import _printed as printed  # noqa: E402

from tokonomics.files import write_text  # noqa: E402

OWN_PROCESS = {"docs/commands.md", "docs/python.md"}
"""Typer reads the width of its help when it is imported, so help is printed by an interpreter that has not; and what a
Python session shows is shown by a new one."""


@pytest.fixture
def _commands_run_once(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one page shows and saves nowhere, another shows too: as printed the first time, by whichever worker."""
    base = tmp_path_factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "printed"
    kept.mkdir(exist_ok=True)

    def once(command: str) -> str:
        if re.search(r"--(deploy-to|into) |\.json", command):  # what an earlier command of the page saved, or this one
            return run(command)
        file = kept / hashlib.sha256(command.encode()).hexdigest()
        if not file.exists():
            write_text(file, run(command), "printed")
        return file.read_text(encoding="utf-8")

    monkeypatch.setattr("generate.run", once)


DEAR = (
    "levers llama-3.3-70b ",
    "stack llama-3.3-70b ",
    "breakeven llama-3.3-70b ",
    "fleet llama-3.1-8b --demand 10x40,14x6 --input ",
    "fleet llama-3.1-8b --demand diurnal:0.4,peak=2 --hours 24 --input 6000 ",
    "sweep docs/examples/chat.toml ",
)
"""How commands begin that take 10 seconds and more; another page or a golden file shows each of these verbs."""
DEAR_PAGES = {
    "docs/caching.md", "docs/claims.md", "docs/questions/own-or-api.md",
    "docs/questions/which-gpu-for-a-70b.md", "docs/questions/why-is-my-bill-twice-the-plan.md",
    "docs/tenants.md",
}  # fmt: skip
"""A quarter of a minute and more, for figures of other tests and views of other pages."""


def shown_again(page: str) -> set[str]:
    """Commands of a page that has shown their verb before and that leave nothing behind for a later one; and the dear.

    They take half of the time of all pages, and ``make test`` leaves them to ``make explore``.
    """
    verbs, found = set(), set()
    for block in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        if command := block["command"]:
            verb = command.split()[0]
            if command.startswith(DEAR) or (verb in verbs and not re.search(r" > |--(deploy-to|into) ", command)):
                found.add(command)
            verbs.add(verb)
    return found


def is_up_to_date(page: str) -> bool:
    with patch.dict(os.environ), patch.object(sys, "argv", ["generate.py", "--check", page]):
        return main() == 0


@pytest.mark.slow
@pytest.mark.usefixtures("_commands_run_once")
@pytest.mark.parametrize(
    "page", [pytest.param(each, marks=[pytest.mark.explore] * (each in DEAR_PAGES)) for each in (*WHOLE, *PAGES)]
)
def test_every_output_in_the_pages_is_what_the_command_prints(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if page in OWN_PROCESS:
        command = [sys.executable, "docs/generate.py", "--check", page]
        assert subprocess.run(command, cwd=ROOT, check=False).returncode == 0
        return
    again = set() if page in WHOLE else shown_again(page)
    monkeypatch.setattr(
        "generate._fill", lambda block, until: block[0] if block["command"] in again else fill(block, until)
    )
    assert is_up_to_date(page)


@pytest.mark.explore
@pytest.mark.usefixtures("_commands_run_once")
@pytest.mark.parametrize("page", [page for page in PAGES if shown_again(page)])
def test_a_page_that_shows_a_verb_again_is_what_the_commands_print(page: str) -> None:
    assert is_up_to_date(page)


def test_an_output_may_be_cut_to_its_first_lines() -> None:
    command = "cost --usd-per-hour 2 --tokens-per-second 100"
    whole = run(command).splitlines()
    with ExitStack() as until_done:
        assert printed(f"{command} | head -4", until_done).splitlines() == whole[:4]
        assert printed(command, until_done).splitlines() == whole


def test_the_claims_page_has_all_42_claims() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert [f"| C{number:02} |" in page for number in range(1, 43)] == [True] * 42


def test_the_list_of_verbs_says_of_each_what_its_own_help_says() -> None:
    """Only the verb that is typed is loaded; the others are listed by what the tables say of them."""
    listed, loaded = (get_command(application(only)) for only in ("", None))
    assert isinstance(listed, TyperGroup)
    assert isinstance(loaded, TyperGroup)
    assert listed.commands.keys() == {name for name, command in loaded.commands.items() if not command.hidden}
    for name, command in listed.commands.items():
        assert command.get_short_help_str(500) == loaded.commands[name].get_short_help_str(500)
