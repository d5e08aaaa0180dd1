"""``tokonomics tenants`` as a person types it."""

import json
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]
SERVED = ("tenants", "--model", "llama-3.1-8b", "--gpu", "H100", "--usd-per-hour", "2")
MADE_UP = (
    "--arrivals",
    "poisson:10",
    "--requests",
    "1500",
    "--input",
    "500",
    "--output",
    "50",
    "--tenants",
    "3,skew=1",
)


def test_a_log_with_a_tenant_column_gives_bills_that_sum(tokonomics: Call, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    rows = [f"{at / 10},{400 + at % 7},{20 + at % 5},{'shop' if at % 3 else 'desk'}" for at in range(900)]
    log.write_text("when,asked,said,customer\n" + "\n".join(rows), encoding="utf-8")
    columns = "arrival=when,input=asked,output=said,tenant=customer"
    asked = ("--trace", log, "--columns", columns, "--slo", "ttft_p99=0.5")
    done = tokonomics(*SERVED, *asked, "--chart", tmp_path / "t.svg", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert {row["tenant"]: row["requests"] for row in made["tenants"]} == {"shop": 600, "desk": 300}
    paid = math.fsum(row[part] for row in made["tenants"] for part in ("usage_usd", "unused_usd"))
    assert paid == made["together"]["usd_per_hour"] == 2 * made["together"]["replicas"]
    assert (tmp_path / "t.svg").exists()


def test_one_log_for_each_tenant(tokonomics: Call) -> None:
    done = tokonomics(*SERVED, "--trace", "azure-conv", "--trace", "azure-code", "--requests", "500", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
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
    done = tokonomics(*SERVED, *args)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
