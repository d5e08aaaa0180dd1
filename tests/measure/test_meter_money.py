"""``meter report`` with a price, a margin, a budget: sums that can be worked out by hand."""

import asyncio
from datetime import date
from pathlib import Path

import pytest
from tests.measure.ledgers import at, day_of, days_from, hour, ledger_of
from tests.measure.metered import HandClock
from tests.there import there

from tokonomics.errors import BadInput
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.spending import MonthlyBudget
from tokonomics.questions.meter import MeterReportResult, meter_report
from tokonomics.questions.requests.run import MeterReportRequest

MONDAY = date(2026, 11, 9)


@pytest.fixture
def two_teams(tmp_path: Path) -> Path:
    """A day of two servers at $48 and $24: search has 24 M tokens in and 4.8 M out, chat half as many of each."""
    half = {"input_total": 5e5, "input_cached": 2e5, "output": 1e5}
    chat = {"target": "http://gpu2:8000", "model": "qwen3-8b", "labels": {"team": "chat"}}
    return ledger_of(tmp_path / "meter.db", day_of(MONDAY, 48.0) + day_of(MONDAY, 24.0, **half, **chat))


def report(ledger: Path, **asked: object) -> MeterReportResult:
    known = {"ledger": str(ledger), "since": "2026-11-09", "until": "2026-11-10", "by": "team"}
    return meter_report(MeterReportRequest.checked(known | asked))


def test_a_price_earns_its_tokens_and_each_team_has_its_margin(two_teams: Path) -> None:
    """At $1 in and $5 out search earns 24 + 24 = $48, which is its cost; chat 12 + 12 = $24, likewise."""
    sale = there(report(two_teams, sell="1/5").sale)
    assert [line.revenue_usd for line in sale.lines] == pytest.approx([24, 48])
    assert [line.cost_usd for line in sale.lines] == pytest.approx([24, 48])
    assert sale.total.margin_usd == pytest.approx(0, abs=1e-9)
    assert sale.break_even_tokens_per_day == pytest.approx(43.2e6)
    assert sale.break_even_busy_share == pytest.approx(1.0)
    dear = there(report(two_teams, sell="2/10").sale)
    assert dear.total.margin_share == pytest.approx(0.5)
    assert dear.break_even_tokens_per_day == pytest.approx(21.6e6)


@pytest.mark.parametrize("gpu", [None, "H100"])
def test_a_margin_is_met_by_the_price_it_gives(two_teams: Path, gpu: str | None) -> None:
    """Each model has its own price; selling at it earns the bill ÷ 0.6."""
    sale = there(report(two_teams, margin="40%", gpu=gpu).sale)
    assert sale.total.margin_share == pytest.approx(0.4)
    assert sale.total.revenue_usd == pytest.approx(72 / 0.6)
    assert {price.model for price in sale.prices} == {"llama-3.1-8b", "qwen3-8b"}
    for line in sale.lines:
        assert line.margin_share == pytest.approx(0.4)
    dear = sale.prices[0].usd_per_mtok
    assert (dear.output > dear.input) is (gpu is not None)


def test_days_differ_where_their_load_does(tmp_path: Path) -> None:
    """Two days at $48, the second with half the tokens: at a margin of 0 the first earns two thirds of the bill."""
    half = {"input_total": 5e5, "input_cached": 2e5, "output": 1e5}
    spans = day_of(MONDAY, 48.0) + day_of(date(2026, 11, 10), 48.0, **half)
    sale = there(report(ledger_of(tmp_path / "meter.db", spans), by="day", until="2026-11-11", margin=0).sale)
    assert [line.revenue_usd for line in sale.lines] == [pytest.approx(64), pytest.approx(32)]


def test_a_budget_stands_in_the_report(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "meter.db", days_from(date(2026, 10, 26), [48.0] * 15))
    asked = {"budget": ["team=search:1000"]}
    (found,) = report(ledger, **asked).plain()["budgets"]
    assert found["spent_usd"] == pytest.approx(9 * 48)
    assert found["spent_up_on"] == "2026-11-21"


def test_unusual_days_stand_in_the_report(tmp_path: Path) -> None:
    spans = days_from(date(2026, 11, 2), [48.0, 48.5, 47.5, 48.0, 144.0, 48.2])
    found = report(ledger_of(tmp_path / "meter.db", spans), since="2026-11-02", until="2026-11-08")
    (odd,) = found.unusual
    assert (odd.day, odd.largest and odd.largest.name) == (date(2026, 11, 6), "price")
    with pytest.raises(BadInput):
        report(tmp_path / "meter.db", gpus=2)  # of which kind?


def test_days_that_are_there_in_part_are_not_unusual(tmp_path: Path) -> None:
    """A meter that began at noon on a dear Monday and is asked at noon of a dear Sunday: neither day is full."""
    dear, half = {"usd": 20.0, "usd_per_hour": 20.0}, range(12)
    spans = [hour(at(date(2026, 11, 2), 12 + number), **dear) for number in half]
    spans += days_from(date(2026, 11, 3), [48.0, 48.5, 47.5, 48.0, 48.2])
    spans += [hour(at(date(2026, 11, 8), number), **dear) for number in half]
    ledger = ledger_of(tmp_path / "meter.db", spans)
    assert report(ledger, since="2026-11-01", until="2026-11-08T12:00").unusual == ()


def test_a_meter_keeps_its_budget_up_to_date(tmp_path: Path) -> None:
    """Read from its own ledger, once an hour."""
    clock = HandClock(offset=at(date(2026, 11, 15)))
    path = ledger_of(tmp_path / "meter.db", [*days_from(date(2026, 10, 26), [48.0] * 20)])
    spent = []
    with Ledger(path) as book:
        meter = Meter([], book, clock, MeterSettings(2.0, budgets=[MonthlyBudget(usd=1000)]))
        for passed in (0, 60, 3600):
            clock.passed = passed
            spent += [each.spent_usd for each in asyncio.run(meter.tick()).budgets]
            if not passed:
                book.record([hour(clock.wall())], [])
    assert spent == pytest.approx([14 * 48, 14 * 48, 14 * 48 + 2])
