"""The ledger for other tools: every format adds up to the ledger's dollars, to the cent."""

import csv
import io
import json
from collections import Counter
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.measure.focus_rules import problems
from tests.measure.ledgers import at, booked, day_of, hour, ledger_of
from tests.measure.real_prometheus import needs_promtool
from tests.there import refused
from typer.testing import CliRunner

from tokonomics.cli.meter import app
from tokonomics.errors import BadInput
from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.export import CENT, ExportFormat, cents, exported, text_of_export, whole_parts
from tokonomics.questions.meter import meter_export
from tokonomics.questions.requests.run import MeterExportRequest

WEEK = Path(__file__).parent / "pages" / "week.db"
MONDAY = date(2026, 11, 9)


def typed(*words: str, ledger: Path = WEEK) -> str:
    command = ["export", *words, "--ledger", str(ledger), "--since", "2026-11-01", "--until", "2026-12-01"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=50))
def test_cents_sum_to_the_total_and_none_is_off_by_one(parts: list[float]) -> None:
    total = cents(sum(parts))
    shares = whole_parts(parts, total, CENT)
    assert sum(shares) == total
    assert whole_parts([1 / 3] * 3, Decimal("1.00"), CENT) == [Decimal("0.34"), Decimal("0.33"), Decimal("0.33")]
    for part, share in zip(parts, shares, strict=True):
        assert abs(share - Decimal(repr(part))) < Decimal("0.01")


def test_focus_rows_keep_the_columns_rules_and_sum_to_the_ledger() -> None:
    text = typed("focus")
    assert problems(text) == []
    charges = rows(text)
    assert sum(Decimal(row["usd"]) for row in rows(typed("csv"))) == cents(booked(WEEK).usd)
    assert sum(Decimal(row["BilledCost"]) for row in charges) == cents(booked(WEEK).usd)
    keys = Counter((row["ChargePeriodStart"], row["ResourceId"], row["SubAccountId"]) for row in charges)
    assert set(keys.values()) == {1}


def test_the_checker_finds_what_is_wrong() -> None:
    good = typed("focus")
    head, first, *_ = good.splitlines()
    assert any("mandatory" in problem for problem in problems(good.replace("BilledCost", "Cost", 1)))
    assert any("null" in problem for problem in problems(f"{head}\n{first.replace('USD', '')}\n"))
    assert any("no decimal" in problem for problem in problems(f"{head}\n{first.replace('119.52', '$119.52')}\n"))
    assert any("not allowed" in problem for problem in problems(f"{head}\n{first.replace('Usage,', 'Use,')}\n"))
    assert any("datetime" in problem for problem in problems(f"{head}\n{first.replace('T00:00:00Z', ' 00:00')}\n"))


def test_rows_without_a_team_are_focus_too(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path / "meter.db", day_of(MONDAY, 48.0, labels={}, model=""))
    text = typed("focus", ledger=ledger)
    assert problems(text) == []
    assert [(row["SubAccountId"], row["Tags"], row["BilledCost"]) for row in rows(text)] == [("", "", "48.00")]


def test_tokens_and_hours_of_a_day_are_those_of_its_hours(tmp_path: Path) -> None:
    """24 hours of 1 M prompt tokens, 400 K of them cached, 200 K out and 1,000 requests."""
    (row,) = rows(typed("focus", ledger=ledger_of(tmp_path / "meter.db", day_of(MONDAY))))
    figures = ("x_InputTokens", "x_CachedInputTokens", "x_OutputTokens", "x_Requests", "PricingQuantity")
    assert [float(row[name]) for name in figures] == [14.4e6, 9.6e6, 4.8e6, 24_000, 24]
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2026-11-09T00:00:00Z", "2026-11-10T00:00:00Z")


def test_openmetrics_parses_and_its_last_sums_are_the_ledgers() -> None:
    parse: Any = text_string_to_metric_families
    families = {family.name: family for family in parse(typed("openmetrics"))}
    last: dict[tuple[str, ...], float] = {}
    for sample in families["llm_ledger_cost_usd"].samples:
        key = tuple(sample.labels.values())
        assert sample.value >= last.get(key, 0.0)
        last[key] = sample.value
    assert sum(last.values()) == pytest.approx(booked(WEEK).usd, abs=0.005)
    kinds = {sample.labels["kind"] for sample in families["llm_ledger_price_usd_per_million_tokens"].samples}
    assert kinds == {"input", "cached", "output"}


@needs_promtool
def test_prometheus_backfills_from_it(tmp_path: Path) -> None:
    (tmp_path / "ledger.om").write_text(typed("openmetrics"), encoding="utf-8")
    made = run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", "ledger.om", "blocks"], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout + made.stderr
    assert any((tmp_path / "blocks").iterdir())


@pytest.mark.parametrize(
    ("engine", "provider", "switch"),
    [("vllm", "hosted_vllm", "--enable-prompt-tokens-details"), ("sglang", "openai", "--enable-cache-report")],
)
def test_litellm_prices_times_tokens_are_the_bill(tmp_path: Path, engine: str, provider: str, switch: str) -> None:
    """$48 over 28.8 M tokens is $1.6667 a Mtok of any kind; by GPU time each kind has its own.

    LiteLLM is told what cached prices need only where cached tokens have a price of their own.
    """
    ledger = ledger_of(tmp_path / "meter.db", day_of(MONDAY, engine=engine))
    names = ("input_cost_per_token", "cache_read_input_token_cost", "output_cost_per_token")
    for more in ((), ("--gpu", "H100")):
        price = json.loads(typed("litellm", *more, ledger=ledger))[f"{provider}/llama-3.1-8b"]
        assert (price["litellm_provider"], price["mode"]) == (provider, "chat")
        assert (switch in price["metadata"]["notes"]) == bool(more)
        computed, cached, output = (price[name] for name in names)
        assert 14.4e6 * computed + 9.6e6 * cached + 4.8e6 * output == pytest.approx(48)
        if more:
            assert output > computed > cached
        else:
            assert computed == cached == output == pytest.approx(48 / 28.8e6)


@given(st.lists(st.floats(0.001, 500), min_size=1, max_size=12))
def test_charges_sum_to_the_cent_whatever_days_cost(dollars: list[float]) -> None:
    spans = [hour(at(MONDAY, 24 * place), usd=usd) for place, usd in enumerate(dollars)]
    billed = bill(spans, 0.0, 2e9, ("day", "model", "team"))
    charged = rows(text_of_export(exported(billed, ("team",), [], until=2e9), ExportFormat.focus))
    assert sum(Decimal(row["BilledCost"]) for row in charged) == cents(sum(dollars))


PLAN: dict[str, dict[str, Any]] = {
    "best": {
        "model": "llama-3.1-8b", "engine": "vllm", "usd_per_month": 1460.0, "instances": 2,
        "usd_per_mtok": {"input": 0.1, "output": 0.4, "blended": 0.2}, "replicas": 2, "batch": 10,
    },
    "workload": {"rate": 1.0, "input_tokens": 1000, "output_tokens": 500},
}  # fmt: skip


def planned(tmp_path: Path, **changed: object) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(PLAN | changed))
    return path


def test_a_plan_is_exported_as_an_estimate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines and one request a second in January: 744 hours where a plan's month has 730.

    $1,460 × 744 ÷ 730 = $1,488, 2 × 744 machine hours and 744 × 3,600 = 2,678,400 requests; prices stay.
    """
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-12-17")
    text = typed("focus", "--plan", str(planned(tmp_path)))
    assert problems(text) == []
    (row,) = rows(text)
    assert (row["BilledCost"], row["x_IsEstimate"], row["PricingQuantity"]) == ("1488.00", "true", "1488")
    assert (row["ChargePeriodStart"], row["ChargePeriodEnd"]) == ("2027-01-01T00:00:00Z", "2027-02-01T00:00:00Z")
    assert float(row["x_InputTokens"]) == pytest.approx(2_678_400 * 1000)
    entry = json.loads(typed("litellm", "--plan", str(planned(tmp_path))))["hosted_vllm/llama-3.1-8b"]
    assert entry["input_cost_per_token"] == entry["cache_read_input_token_cost"] == pytest.approx(1e-7)
    assert entry["output_cost_per_token"] == pytest.approx(4e-7)


def day_and_a_half(tmp_path: Path, **changed: Any) -> Path:
    return ledger_of(tmp_path / "meter.db", [hour(at(MONDAY, number), **changed) for number in range(36)])


def exported_rows(ledger: Path, form: str, *words: str, since: str, until: str) -> str:
    command = ["export", form, "--ledger", str(ledger), "--since", since, "--until", until, *words]
    return CliRunner().invoke(app, command, catch_exceptions=False).stdout


def test_charges_begin_at_midnight_and_end_when_they_do(tmp_path: Path) -> None:
    """Asked from Monday noon to Tuesday 06:00: all of Monday at $48, and six hours of Tuesday at $2."""
    asked = {"since": "2026-11-09T12:00", "until": "2026-11-10T06:00"}
    charged = rows(exported_rows(day_and_a_half(tmp_path), "focus", **asked))
    assert [(row["BilledCost"], row["ChargePeriodStart"], row["ChargePeriodEnd"]) for row in charged] == [
        ("48.00", "2026-11-09T00:00:00Z", "2026-11-10T00:00:00Z"),
        ("12.00", "2026-11-10T00:00:00Z", "2026-11-10T06:00:00Z"),
    ]
    parse: Any = text_string_to_metric_families
    families = {family.name: family for family in parse(exported_rows(tmp_path / "meter.db", "openmetrics", **asked))}
    times = [float(sample.timestamp) for sample in families["llm_ledger_cost_usd"].samples]
    assert times == [at(date(2026, 11, 10)), at(date(2026, 11, 10), 6)]
    spread = rows(exported_rows(tmp_path / "meter.db", "csv", **asked))
    assert [row["to"] for row in spread] == ["2026-11-10", "2026-11-10T06:00:00Z"]


def test_charges_are_told_by_the_label_that_was_asked_for(tmp_path: Path) -> None:
    ledger = day_and_a_half(tmp_path, labels={"customer": "acme"})
    asked = {"since": "2026-11-09", "until": "2026-11-10"}
    (row,) = rows(exported_rows(ledger, "csv", "--by", "customer", **asked))
    assert (row["customer"], "team" in row) == ("acme", False)
    assert 'customer="acme"' in exported_rows(ledger, "openmetrics", "--by", "customer", **asked)
    assert 'team="llama-3.1-8b"' in exported_rows(ledger, "openmetrics", "--by", "model", **asked)


BAD: list[dict[str, object]] = [
    {"best": None},
    {"best": {}},
    {"best": 3},
    {"workload": []},
    {"best": PLAN["best"] | {"usd_per_month": -1}},
    {"best": PLAN["best"] | {"instances": "2"}},
    {"workload": PLAN["workload"] | {"rate": 10**400}},
]


@pytest.mark.parametrize("changed", BAD)
def test_what_is_no_plan_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        meter_export(MeterExportRequest(format="litellm", plan=str(planned(tmp_path, **changed))))


def test_json_has_the_charges_and_the_prices(tmp_path: Path) -> None:
    found = json.loads(typed("csv", "--json", ledger=ledger_of(tmp_path / "meter.db", [hour(at(MONDAY))])))
    assert (found["total_usd"], found["is_estimate"], len(found["charges"])) == ("2.00", False, 1)
    assert found["prices"][0]["blended"] == pytest.approx(2 / 1.2)


def test_out_saves_and_an_unknown_format_is_refused(tmp_path: Path) -> None:
    assert typed("csv", "--out", str(tmp_path / "out.csv")) == ""
    assert len(rows((tmp_path / "out.csv").read_text())) == 10
    done = CliRunner().invoke(app, ["export", "xml", "--ledger", str(WEEK)])
    assert isinstance(done.exception, BadInput)


@pytest.mark.parametrize(
    ("field", "asked"),
    [("by", {"since": "2026-11-01", "by": "customer"}), ("since", {"since": "2020-01-01", "until": "2020-02-01"})],
)
def test_a_label_that_nobody_has_and_an_empty_stretch_are_refused(field: str, asked: dict[str, str]) -> None:
    refusal = refused(meter_export, MeterExportRequest.checked({"format": "csv", "ledger": str(WEEK), **asked}))
    assert refusal.field == field


@given(st.lists(st.floats(0, 500), min_size=1, max_size=12))
def test_requests_are_whole_and_sum_to_their_total(answered: list[float]) -> None:
    """A log splits a day's requests by what each sender sent: 31.38 of legal are no count."""
    spans = [replace(hour(at(MONDAY, 24 * place)), answered=number) for place, number in enumerate(answered)]
    billed = bill(spans, 0.0, 2e9, ("day", "model", "team"))
    charged = rows(text_of_export(exported(billed, ("team",), [], until=2e9), ExportFormat.focus))
    assert sum(int(row["x_Requests"]) for row in charged) == round(sum(answered))
