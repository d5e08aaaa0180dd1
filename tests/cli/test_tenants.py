"""``tokonomics tenants`` as a person types it."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tests.command import Call, answer, refusal

SERVED = ("tenants", "--model", "llama-3.1-8b", "--gpu", "H100", "--usd-per-hour", "2")
MADE_UP = (
    "--arrivals", "poisson:10", "--requests", "1500", "--input", "500", "--output", "50", "--tenants",
    "3,skew=1",
)  # fmt: skip


def test_a_log_with_a_tenant_column_gives_bills_that_sum(tokonomics: Call, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{at / 10},{400 + at % 7},{20 + at % 5},{'shop' if at % 3 else 'desk'}" for at in range(900)]
    log.write_text("when,asked,said,customer\n" + "\n".join(rows), encoding="utf-8")
    columns = "arrival=when,input=asked,output=said,tenant=customer"
    asked = ("--trace", log, "--columns", columns, "--slo", "ttft_p99=0.5")
    made = answer(tokonomics, *SERVED, *asked, "--chart", tmp_path / "t.svg")
    assert {row["tenant"]: row["requests"] for row in made["tenants"]} == {"shop": 600, "desk": 300}
    paid = math.fsum(row[part] for row in made["tenants"] for part in ("usage_usd_per_hour", "unused_usd_per_hour"))
    assert paid == made["together"]["usd_per_hour"] == 2 * made["together"]["replicas"]
    assert (tmp_path / "t.svg").exists()


def test_labels_of_a_spend_log_share_one_bill(tokonomics: Call, tmp_path: Path) -> None:
    """By both labels together, and by each alone: every way the dollars are those of the fleet."""
    rows = [
        {"startTime": 1_790_000_000 + place / 10, "prompt_tokens": 400, "completion_tokens": 20, "spend": 0.001}
        | {"team_id": ("red", "blue")[place % 2], "request_tags": [f"feature:{('chat', 'mail', 'code')[place % 3]}"]}
        for place in range(600)
    ]
    log = tmp_path / "spend.json"
    log.write_text(json.dumps(rows), encoding="utf-8")
    made = answer(tokonomics, *SERVED, "--trace", log, "--by", "team,feature")
    bill = 2 * made["together"]["replicas"]
    assert {row["tenant"] for row in made["tenants"]} == {
        f"{team} / {feature}" for team in ("red", "blue") for feature in ("chat", "mail", "code")
    }
    assert math.fsum(row["pays_usd_per_hour"] for row in made["tenants"]) == pytest.approx(bill, rel=1e-12)
    by = {label["label"]: label["values"] for label in made["by"]}
    assert {row["value"]: row["requests"] for row in by["team"]} == {"red": 300, "blue": 300}
    assert {row["value"]: row["requests"] for row in by["feature"]} == {"chat": 200, "mail": 200, "code": 200}
    for rows_of_label in by.values():
        assert math.fsum(row["pays_usd_per_hour"] for row in rows_of_label) == pytest.approx(bill, rel=1e-12)


def test_one_log_for_each_tenant(tokonomics: Call) -> None:
    made = answer(tokonomics, *SERVED, "--trace", "azure-conv", "--trace", "azure-code", "--requests", "500")
    assert {row["tenant"] for row in made["tenants"]} == {"azure-conv", "azure-code"}
    assert made["requests"] == 1000


def test_adapters_show_memory_time_and_bill(tokonomics: Call) -> None:
    done = tokonomics(*SERVED, *MADE_UP, "--lora-rank", "16", "--lora-adapters", "50", "--json")
    made = json.loads(done.stdout)["lora"]
    assert made["lora"]["adapters"] == 50
    assert [each["adapters"] for each in made["lora"]["steps"]][:2] == [0, 1]
    shown = tokonomics(*SERVED, *MADE_UP, "--lora-rank", "16")
    assert "One base, an adapter for each" in shown.stdout
    assert "3 adapters" in shown.stdout


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--trace", "azure-conv"), "tenant=customer"),
        ((*MADE_UP, "--lora-adapters", "5"), "--lora-rank"),
        ((*MADE_UP, "--lora-rank", "16", "--lora-adapters", "2"), "3 tenants need one each"),
        ((*MADE_UP, "--router", "rond-robin"), "--router"),
        ((*MADE_UP, "--slo", "ttft_p99=1ms"), "cannot be served even alone"),
        ((), "no traffic is given"),
    ],
)
def test_mistakes_are_one_message(tokonomics: Call, args: tuple[str, ...], says: str) -> None:
    assert says in refusal(tokonomics, *SERVED, *args)


def test_one_log_given_twice_is_two_tenants(tokonomics: Call, tmp_path: Path) -> None:
    twice = ("--trace", "azure-conv", "--trace", "azure-conv", "--requests", "200", "--json")
    made = json.loads(tokonomics(*SERVED, *twice).stdout)
    assert {row["tenant"] for row in made["tenants"]} == {"azure-conv", "azure-conv (2)"}
    logs = [tmp_path / folder / "log.csv" for folder in ("a", "b")]
    for log in logs:
        log.parent.mkdir()
        rows = "".join(f"{at},100,10\n" for at in range(50))
        log.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}", encoding="utf-8")
    made = answer(tokonomics, *SERVED, "--trace", logs[0], "--trace", logs[1])
    assert {row["tenant"] for row in made["tenants"]} == {str(log) for log in logs}
    for row in made["tenants"]:
        assert row["pays_usd_per_hour"] == row["usage_usd_per_hour"] + row["unused_usd_per_hour"]


def test_two_sizes_of_fleet_at_two_prices_name_both_offers() -> None:
    from tokonomics.questions.tenants import price_text

    assert price_text((2.0, "one"), (2.0, "one")) == "one"
    both = price_text((1.9, "one"), (2.0, "two"))
    assert both.startswith("$1.90 apart (one), $2.00 together (two): ")


@pytest.mark.usefixtures("simulated_anew")
def test_a_slo_no_request_meets_is_refused_before_trials(tokonomics: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokonomics.serving.simulator import simulate
    from tokonomics.sizing import attempt

    tried: list[int] = []

    def watched(deployment: Any, trace: Any, fleet: Any, **settings: Any) -> Any:
        tried.append(fleet.replicas)
        return simulate(deployment, trace, fleet, **settings)

    monkeypatch.setattr(attempt, "simulate", watched)
    done = tokonomics(*SERVED, *MADE_UP, "--slo", "ttft_p99=1ms")
    assert done.returncode == 2
    assert "TTFT p99" in done.stderr
    assert "--slo" in done.stderr
    assert max(tried, default=0) < 100
