"""The first line of an answer says that its price is old, whichever verb was asked; so do ``doctor`` and the page."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.command import Call

from tokonomics.report.wording import aged, marked_old
from tokonomics.web.verbs import catalogue

MEASURED = Path(__file__).parents[1] / "measure" / "results" / "inferencex.json"
OFFERS = "provider,region,instance,gpu,gpus,usd_per_hour,date,source\naws,us,p5,H100,8,50,2026-08-22,mine\n"
SMALL = "--model llama-3.1-8b --gpu H100 --arrivals poisson:1 --duration 60s --input 500 --output 50"
LAST, FIRST = "2026-11-20", "2026-11-21"
"""Of 90 days after the price, and the day after it."""


@pytest.fixture
def prices_of_august(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """One offer of 2026-08-22; and what day it is."""
    folder = Path.home() / "prices"
    folder.mkdir()
    (folder / "offers.csv").write_text(OFFERS, encoding="utf-8")
    return lambda day: monkeypatch.setenv("TOKONOMICS_TODAY", day)


@pytest.mark.parametrize(
    "asked",
    [
        "cost --gpu H100 --tokens-per-second 2900",
        "curve llama-3.1-8b --gpu H100 --context 1024",
        f"simulate {SMALL}",
        "capacity llama-3.1-8b --gpu H100 --input 500 --output 50 --requests 500 --slo ttft_p99=1",
        f"cache {SMALL} --system-prompts 2,tokens=200",
        f"tenants {SMALL} --tenants 2,skew=1",
        f"import {MEASURED} --gpu H100",
    ],
    ids=lambda asked: asked.split()[0],
)
def test_the_first_line_says_a_price_is_old(
    asked: str, prices_of_august: Callable[[str], None], tokonomics: Call
) -> None:
    said = {}
    for day in (LAST, FIRST):
        prices_of_august(day)
        answered = tokonomics(*asked.split(), env={"COLUMNS": "400"})
        assert answered.returncode == 0, answered.stderr
        said[day] = answered.stdout.splitlines()[0]
    assert said[FIRST] == f"{said[LAST]}; price older than 90 days"


@pytest.mark.parametrize(
    "asked",
    [
        "plan llama-3.1-8b --rate 1 --input 500 --output 100 --quick",
        "levers llama-3.1-8b --gpu H100 --rate 1 --input 500 --output 50 --slo ttft_p99=2",
        "offers --gpu H100",
        "compare llama-3.1-8b --gpu H100 --rate 1 --input 500 --output 100",
    ],
    ids=lambda asked: asked.split()[0],
)
def test_a_bill_says_how_old_a_price_is(asked: str, prices_of_august: Callable[[str], None], tokonomics: Call) -> None:
    prices_of_august(FIRST)
    answered = tokonomics(*asked.split(), env={"COLUMNS": "400"})
    first = next(line for line in answered.stdout.splitlines() if "$" in line or "No lever" in line)
    assert "; price 91 days old" in first


def test_ages_of_several_prices_are_told_by_the_oldest() -> None:
    assert aged(0) == aged(1, 0) == aged() == ""
    assert aged(91) == aged(91, 91) == "; price 91 days old"
    assert aged(3, 91) == "; prices up to 91 days old"
    assert aged(91, what="GPU price") == "; GPU price 91 days old"
    assert marked_old(None) == marked_old("as given") == ""


def test_doctor_says_first_that_no_price_is_recent(prices_of_august: Callable[[str], None], tokonomics: Call) -> None:
    prices_of_august(LAST)
    assert tokonomics("doctor").stdout.splitlines()[0] == "All that is needed works."
    prices_of_august(FIRST)
    first = tokonomics("doctor").stdout.splitlines()[0]
    assert first == "All that is needed works, but even the newest GPU price is 91 days old."


def test_the_page_says_how_old_the_newest_price_is(prices_of_august: Callable[[str], None]) -> None:
    prices_of_august(LAST)
    assert catalogue()["prices"] == "the newest GPU price is of 2026-08-22, 90 days ago"
    prices_of_august(FIRST)
    told = json.loads(json.dumps(catalogue()))["prices"]
    assert told.endswith("91 days ago: older than 90 days, run `tokonomics offers --refresh`")
