"""What the tests of the catalogue share: a day; files of the user are kept away for all tests (tests/conftest.py)."""

import pytest


@pytest.fixture
def on_the_first_of_november(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-11-01")


@pytest.fixture
def on_the_thirtieth_of_august(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-08-30")
