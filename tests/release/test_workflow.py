"""The workflow on GitHub does what .ci/run does, on every Python and machine that is supported."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
EXPLORING = WORKFLOW.with_name("explore.yml")


def jobs() -> dict[str, Any]:
    return dict(yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"])


def commands(text: str) -> set[str]:
    return set(re.findall(r"^\s*(?:-?\s*run:\s*)?make (?:--jobs=\d+ )?([\w-]+)", text, re.M))


def test_it_makes_everything_that_ci_makes() -> None:
    local = commands((ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    assert {"demo", "docs", "test", "check-install"} <= local
    assert local <= commands(WORKFLOW.read_text(encoding="utf-8"))


def test_it_installs_the_programs_that_tests_start_before_the_tests() -> None:
    steps = jobs()["test"]["steps"]
    tested = next(place for place, step in enumerate(steps) if step.get("run", "").startswith("make test"))
    before = " ".join(step["run"] for step in steps[:tested] if step.get("if") == "runner.os == 'Linux'")
    installed = (ROOT / ".ci" / "run").read_text(encoding="utf-8").partition("make demo")[0]
    for program in ("prometheus", "chromium"):
        assert f"echo {program}" in installed
        assert f"install --yes --no-install-recommends {program}" in before or f"--with-deps {program}" in before


def test_the_site_is_built_once() -> None:
    """By ``make docs``; the test of it is told where it lies."""
    for text in (WORKFLOW.read_text(encoding="utf-8"), (ROOT / ".ci" / "run").read_text(encoding="utf-8")):
        docs = re.search(r"make docs$", text, re.M)
        test = re.search(r"make (--jobs=\d+ )?test TOKONOMICS_SITE=site$", text, re.M)
        assert docs
        assert test
        assert docs.start() < test.start()


def test_it_runs_on_every_python_of_the_classifiers_and_on_three_kinds_of_machine() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    targeted = {each.rpartition(" :: ")[2] for each in project["classifiers"] if "Python :: 3." in each}
    matrix = jobs()["test"]["strategy"]["matrix"]
    assert set(matrix["python"]) == targeted == {"3.11", "3.12", "3.13", "3.14"}
    assert {name.partition("-")[0] for name in matrix["machine"]} == {"ubuntu", "macos"}
    assert any("arm" in name for name in matrix["machine"])


@pytest.mark.parametrize("workflow", [WORKFLOW, EXPLORING], ids=lambda path: path.stem)
def test_it_may_only_read_and_every_action_is_pinned_to_a_version(workflow: Path) -> None:
    whole = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert whole["permissions"] == {"contents": "read"}
    used = [step["uses"] for job in whole["jobs"].values() for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", each) for each in used), used


def test_whatever_it_installs_from_a_package_index_is_checked_by_hash() -> None:
    lines = [line for job in jobs().values() for step in job["steps"] for line in step.get("run", "").splitlines()]
    installing = [line for line in lines if re.search(r"\bpipx?\b", line)]
    assert len(installing) == 2
    for line in installing:
        assert "--require-hashes" in line
        (lock,) = re.findall(r"-r (requirements/\S+\.lock)", line)
        pinned = re.findall(r"^[\w.-]+==\S+ .*\\\n    --hash=sha256:[0-9a-f]{64}", (ROOT / lock).read_text(), re.M)
        assert len(pinned) == len(re.findall(r"^\w", (ROOT / lock).read_text(), re.M)) > 0


def test_what_takes_longer_runs_every_week() -> None:
    whole = yaml.safe_load(EXPLORING.read_text(encoding="utf-8"))
    (when,) = whole[True]["schedule"]  # YAML reads "on" as a truth
    assert re.fullmatch(r"\d+ \d+ \* \* [0-6]", when["cron"])
    assert "explore" in commands(EXPLORING.read_text(encoding="utf-8"))
    assert re.search(r"^explore: .*\n\t@EXPLORE=20 ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
