"""``meter report`` with a price, a margin, a budget: sums that can be worked out by hand."""

import asyncio
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.ledgers import HOUR_S, at, day_of, days_from, hour, ledger_of
from tests.measure.metered import BEGIN, HandClock, PageSource, Process
from tests.there import there

from tokonomics.catalog.places import grid_named
from tokonomics.errors import BadInput
from tokonomics.measure.meter.bill import ALIKE, MeteredGpu, TokenCost, bill, metered_energy, token_cost, token_costs
from tokonomics.measure.meter.ledger import Drawn, Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.spending import MonthlyBudget
from tokonomics.measure.meter.state import MeterTally, Statement, StatementLine
from tokonomics.questions.meter import MeterReportResult, meter_report
from tokonomics.questions.requests.run import MeterReportRequest
from tokonomics.types import Badge, Speed

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


# --- input, cached input and output: whatever the split, tokens times prices are the bill -----------------------------


H100 = MeteredGpu(gpu="h100-sxm")


def sums(**changed: float) -> MeterTally:
    """An hour of a $2.40 server with 1,000 requests: 600 tokens computed, 400 cached, 200 out; batch 20."""
    known = {
        "seconds": 3600.0, "busy_s": 1800.0, "idle_s": 1800.0, "usd": 2.4, "busy_usd": 1.2, "idle_usd": 1.2,
        "input_total": 1e6, "input_cached": 4e5, "output": 2e5, "answered": 1000.0,
        "running_s": 36_000.0, "running_seen_s": 1800.0,
    }  # fmt: skip
    return MeterTally(**(known | changed))


def billed(cost: TokenCost, tally: MeterTally) -> float:
    tokens = cost.input * tally.input_computed + cost.cached * tally.input_cached + cost.output * tally.output
    return tokens / 1e6


def found(tally: MeterTally, on: MeteredGpu | None = None, model: str = "llama-3.1-8b") -> TokenCost:
    return there(token_cost(model, "vllm", tally, on))


def test_without_a_gpu_every_token_costs_the_same() -> None:
    """$2.40 over 1.2 M tokens."""
    cost = found(sums())
    assert cost.input == cost.cached == cost.output == cost.blended == pytest.approx(2.0)
    assert cost.split == ALIKE


def test_by_gpu_time_output_is_dear_and_cached_input_cheap() -> None:
    cost = found(sums(), H100)
    assert cost.output > cost.input > cost.cached


def test_tokens_of_a_kind_that_was_not_served_take_no_dollars() -> None:
    assert found(sums(input_cached=0.0), H100).cached == 0
    with_none = sums(output=0.0)
    assert billed(found(with_none, H100), with_none) == pytest.approx(2.4)


def test_answers_pay_for_attending_to_cached_prompts() -> None:
    """1,000 computed tokens each, alone or after 9,000 cached: prefill's work is alike, each step reads ten times more.

    Llama 3.1 8B has 128 KB of KV a token (32 layers × 8 heads × 128 × 2 × 2 bytes): at batch 20, 9,000 tokens more are
    23.6 GB a step beside 16 GB of weights. So a step takes about (16 + 26.5) ÷ (16 + 2.9) = 2.25 times as long.
    """
    alone = found(sums(input_total=1e6, input_cached=0.0), H100)
    after = sums(input_total=1e7, input_cached=9e6)
    cost = found(after, H100)
    shares = [price.output * 2e5 / 1e6 / 2.4 for price in (alone, cost)]
    assert shares[1] > shares[0]
    longer = (shares[1] / (1 - shares[1])) / (shares[0] / (1 - shares[0]))
    assert longer == pytest.approx(2.25, rel=0.25)
    assert billed(cost, after) == pytest.approx(2.4)


def test_a_model_is_charged_as_on_the_engine_that_cost_most_in_all() -> None:
    """vLLM's one line of $3 against SGLang's two of $2."""
    lines = (("mon", "m", "vllm", 3.0), ("mon", "m", "sglang", 2.0), ("tue", "m", "sglang", 2.0))
    of = Statement(
        since=0.0, until=1.0, by=("day", "model", "engine"), total=sums(usd=7.0),
        lines=tuple(StatementLine(group=group, sums=sums(usd=usd)) for *group, usd in lines),
    )  # fmt: skip
    assert [cost.engine for cost in token_costs(of)] == ["sglang"]


@pytest.mark.parametrize(
    ("model", "cached"), [("acme/secret-model", 4e5), ("llama-3.1-8b", 1e6)], ids=["unknown model", "all cached"]
)
def test_what_cannot_be_modelled_has_one_price_and_says_why(model: str, cached: float) -> None:
    cost = found(sums(input_cached=cached), H100, model)
    assert cost.split == ALIKE
    assert cost.why_alike


def test_no_token_has_no_price() -> None:
    assert token_cost("m", "vllm", MeterTally(usd=1.0, seconds=60.0), H100) is None


@given(
    st.floats(0.01, 1e4), st.floats(1, 1e9), st.floats(0, 1), st.floats(1, 1e9), st.floats(1, 1e6), st.floats(1, 200)
)
def test_prices_times_tokens_are_the_bill(
    usd: float, inputs: float, cached: float, output: float, answered: float, batch: float
) -> None:
    tally = sums(
        usd=usd, input_total=inputs, input_cached=inputs * cached, output=output, answered=answered,
        running_s=batch * 1800,
    )  # fmt: skip
    for on in (None, H100):
        assert billed(found(tally, on), tally) == pytest.approx(usd, rel=1e-9)


# --- what metered servers draw: read off the GPUs where they were, else modelled and marked so ------------------------

GRID = grid_named("100")
H200 = MeteredGpu(gpu="H200", gpus=2)


def day() -> Statement:
    """Twelve busy hours and twelve idle ones of a server; 1.2 M tokens an hour while it is busy."""
    idle = {"busy_s": 0.0, "input_total": 0.0, "input_cached": 0.0, "output": 0.0, "answered": 0.0}
    quiet = idle | {"running_s": 0.0, "running_seen_s": 0.0}
    spans = [hour(at(MONDAY, number), **(quiet if number >= 12 else {})) for number in range(24)]
    return bill(spans, at(MONDAY), at(MONDAY, 24), ("model", "engine"))


def test_joules_that_were_read_are_the_energy_of_the_gpus() -> None:
    """1 kW over a quarter of a day stands for all of it: 24 kWh, × 1.58 of the site; 14.4 Mtok; 100 g a kWh."""
    made = there(metered_energy(day(), Drawn(at(MONDAY, 6), 6 * HOUR_S, 1000 * 6 * HOUR_S), None, GRID))
    assert made.basis is Badge.measured
    assert made.kwh == pytest.approx(24 * 1.58)
    assert made.kwh_per_mtok == pytest.approx(24 * 1.58 / 14.4)
    assert made.kg_co2e == pytest.approx(24 * 1.58 * 0.1)
    assert made.read_share == pytest.approx(0.25)


def test_without_a_reading_it_is_modelled_for_the_gpu_that_is_named() -> None:
    """Two H200s, idle for half a day; busy, they draw between decoding at batch 20 and prompts alone. Host 700 W."""
    made = there(metered_energy(day(), None, H200, GRID))
    assert made.basis is Badge.modelled
    assert made.known is Speed.timed
    assert made.host_watts == pytest.approx(700)
    at_20 = 527.3 + (695.9 - 527.3) * 0.1609640  # log2(20 ÷ 16) of log2(64 ÷ 16)
    assert 124 + at_20 < made.gpu_watts < 124 + 688.1
    assert made.kwh == pytest.approx((made.gpu_watts + 700) * 1.58 * 24 / 1000)


def test_nothing_is_said_where_gpus_are_neither_read_nor_named() -> None:
    assert metered_energy(day(), None, None, GRID) is None


def test_the_meter_books_what_the_gpus_draw(tmp_path: Path) -> None:
    clock, drawn = HandClock(), iter([1000.0, 16_000.0, 46_000.0])
    process = Process(clock)

    async def gpus() -> list[GpuReading]:
        return [GpuReading(uuid="GPU-1", name="H200", at=clock.wall(), energy_j=next(drawn))]

    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([PageSource(process)], book, clock, MeterSettings(2.0, gpus=gpus))
        for _ in range(3):
            clock.passed += 30.0
            process.work(100, 50)
            asyncio.run(meter.tick())
    with Ledger(tmp_path / "meter.db", read_only=True) as book:
        found = there(book.energy(BEGIN, BEGIN + 3600))
        assert (found.seconds, found.joules) == (60.0, 45_000.0)
        assert book.energy(BEGIN + 3600, BEGIN + 7200) is None
