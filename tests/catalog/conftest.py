"""What the tests of the catalogue share."""

from pathlib import Path

import pytest


@pytest.fixture
def a_fixed_day_and_no_user_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-11-01")
    monkeypatch.delenv("TOKONOMICS_CATALOG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
