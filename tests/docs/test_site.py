"""`make docs` builds: every link and anchor of the site leads somewhere, and no page asks another host for anything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_builds_strictly_and_stands_alone(tmp_path: Path) -> None:
    """Or was built by ``make docs`` just before, where TOKONOMICS_SITE names it."""
    built = os.environ.get("TOKONOMICS_SITE")
    site = ROOT / built if built else _built(tmp_path)
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    elsewhere = re.compile(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(https?:[^"]+)"')
    for page in pages:
        assert elsewhere.findall(page.read_text(encoding="utf-8")) == [], page.name


def _built(folder: Path) -> Path:
    pytest.importorskip("mkdocs", reason="the guide's tools are apart from the checks': make docs installs them")
    made = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder
