"""What the README and the guide show is what the code prints."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


sys.path.insert(0, str(ROOT / "docs"))

from generate import PAGES, WHOLE  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("page", [*WHOLE, *PAGES])
def test_every_output_in_the_readme_and_the_guide_is_what_the_command_prints(page: str) -> None:
    check = subprocess.run(
        [sys.executable, "docs/generate.py", "--check", page], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_claims_page_has_all_38_claims() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert [f"| C{number:02} |" in page for number in range(1, 39)] == [True] * 38
