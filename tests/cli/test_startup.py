"""Asking for help is quick because nothing heavy is imported for it."""

import subprocess
import sys

import pytest

HEAVY = {"numpy", "numba", "fastapi", "altair", "polars", "scipy", "genai_prices"}
VERBS = [
    *["", "plan", "fit", "predict", "curve", "trace", "simulate", "capacity", "fleet", "cost"],
    *["models", "gpus", "offers", "apis", "validate", "prices", "prices refresh"],
]

ASK_FOR_HELP = """
import sys
from tokonomics.cli.main import app
app(sys.argv[1:], standalone_mode=False)
print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb or "tokonomics")
def test_help_imports_nothing_heavy(verb: str) -> None:
    asked = [sys.executable, "-c", ASK_FOR_HELP, *verb.split(), "--help"]
    done = subprocess.run(asked, capture_output=True, encoding="utf-8", check=True, timeout=60)
    assert "Usage" in done.stdout
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "tokonomics" in loaded
    assert loaded & HEAVY == set()
