"""``tokonomics breakeven``, ``own-hardware`` and ``compare``: what they print, save and refuse."""

import json
import subprocess
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tokonomics.questions.request import Request
from tokonomics.questions.results import BreakevenResult
from tokonomics.report.breakeven_view import breakeven
from tokonomics.report.rich_text import renderable
from tokonomics.units import usd

Call = Callable[..., subprocess.CompletedProcess[str]]

OFFERS = f"--offers={Path(__file__).parents[1] / 'golden' / 'offers.csv'}"
SIZES = ("--input=1000", "--output=300")
QUICK = ("breakeven", "llama-3.1-8b", *SIZES, OFFERS, "--quick")
MOONCAKE = ("breakeven", "llama-3.1-8b", "--trace=mooncake-conversation", OFFERS, "--quick", "--api=openai:gpt-4o")
OWN = (
    "own-hardware",
    "--gpu=H100",
    "--gpus=8",
    "--purchase-usd=250000",
    "--years=4",
    "--usd-per-kwh=0.1",
    "--host-watts=4600",
)
COMPARE = ("compare", "llama-3.1-8b", "qwen2.5-32b", "--rate=20", *SIZES, OFFERS)


def found(call: Call, *flags: str) -> dict[str, Any]:
    done = call(*QUICK, "--json", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def test_the_document_has_both_bills_equal_at_the_break_even(tokonomics: Call) -> None:
    made = found(tokonomics, "--api=openai:gpt-4o-mini")
    (meets,) = made["found"]
    again = found(tokonomics, "--api=openai:gpt-4o-mini", f"--tokens-per-month={meets['stays_tokens_per_month']:.6f}")
    at = next(each for each in again["bills"] if abs(each["tokens_per_month"] - meets["stays_tokens_per_month"]) < 1)
    assert at["hosted_usd"] == pytest.approx(at["api_usd"]["openai:gpt-4o-mini"], rel=1e-6)


def test_engineers_and_overheads_are_lines_of_the_bill(tokonomics: Call) -> None:
    flags = ("--engineers=0.5", "--engineer-usd-per-month=10000", "--overhead=monitoring=300", "--overhead=network=10%")
    made = found(tokonomics, "--api=openai:gpt-4o", *flags)
    for each in made["bills"]:
        lines = {line["name"]: line["quantity"] * line["usd_per_unit"] for line in each["hosted"]["lines"]}
        assert lines["0.5 engineers"] == pytest.approx(5000)
        assert lines["monitoring"] == pytest.approx(300)
        assert lines["network"] == pytest.approx(0.1 * lines["machines"])
        assert sum(lines.values()) == pytest.approx(each["hosted_usd"])


def test_a_bought_machine_is_an_offer_for_the_other_verbs(tokonomics: Call, tmp_path: Path) -> None:
    mine = tmp_path / "mine.csv"
    done = tokonomics(*OWN, f"--save={mine}", "--json")
    assert done.returncode == 0
    hour = json.loads(done.stdout)["usd_per_hour"]
    planned = tokonomics("plan", "llama-3.1-8b", "--rate=5", *SIZES, f"--offers={mine}", "--quick", "--json")
    best = json.loads(planned.stdout)["best"]
    assert (best["provider"], best["instance_usd_per_hour"]) == ("own", pytest.approx(hour))
    assert best["usd_per_month"] == pytest.approx(hour * 730)


def test_charts_are_saved(tokonomics: Call, tmp_path: Path) -> None:
    stairs, grid = tmp_path / "breakeven.svg", tmp_path / "compare.svg"
    assert tokonomics(*QUICK, "--api=openai:gpt-4o", f"--chart={stairs}").returncode == 0
    assert "dollars a month" in stairs.read_text(encoding="utf-8")
    scores = "--quality=llama-3.1-8b=1,qwen2.5-32b=2"
    assert tokonomics(*COMPARE, scores, f"--chart={grid}").returncode == 0
    assert "your quality score" in grid.read_text(encoding="utf-8")


def test_a_slo_that_nothing_keeps_says_what_stands_in_the_way(tokonomics: Call) -> None:
    done = tokonomics(*QUICK, "--api=openai:gpt-4o", "--slo=ttft_p99=1ms")
    assert done.returncode == 1
    assert "No offer meets these constraints" in done.stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((*QUICK,), "which API is it compared with?"),
        ((*QUICK, "--api=gpt-4o"), "openai:gpt-4o"),
        ((*QUICK, "--api=openai:gpt-4o", "--cached-share=1.5"), "from 0 to 1"),
        ((*MOONCAKE, "--cached-share=0.3"), "the log itself says"),
        ((*QUICK, "--api=openai:gpt-4o", "--engineer-usd-per-month=9"), "--engineers: is missing"),
        ((*QUICK, "--api=openai:gpt-4o", "--overhead=much"), "monitoring=500"),
        ((*QUICK, "--api=openai:gpt-4o", "--replica-tokens-per-second=9", "--usd-per-hour=1"), "plans a fleet"),
        (("breakeven", "--api=openai:gpt-4o", *SIZES, "--replica-tokens-per-second=9"), "--usd-per-hour: is missing"),
        (("breakeven", "--api=openai:gpt-4o", *SIZES, "--usd-per-hour=1", "--replica-tokens-per-second=9"), "how full"),
        ((*OWN, "--residual=1"), "--residual"),
        ((*OWN, "--save=no/such/folder.csv"), "does not exist"),
        ((*COMPARE, "--quality=qwen=1"), "not among the models"),
    ],
)
def test_what_cannot_be_used_says_so(tokonomics: Call, flags: tuple[str, ...], says: str) -> None:
    done = tokonomics(*flags)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


GIVEN = ("--api=openai:gpt-4o", *SIZES, "--replica-tokens-per-second=2400", "--usd-per-hour=1")


def test_a_replica_of_ones_own_says_what_to_leave_out_and_counts_its_gpus(tokonomics: Call) -> None:
    either = "leave out --replica-tokens-per-second and --usd-per-hour"
    assert either in tokonomics("breakeven", *GIVEN).stderr
    priced = tokonomics(*QUICK, "--api=openai:gpt-4o", "--usd-per-hour=1").stderr
    assert "--model: plans a fleet" in priced
    assert either in priced
    for gpus, said in ((1, ": 1 GPU at $1.00/h"), (2, ": 2 GPUs at $1.00/h")):
        done = tokonomics("breakeven", *GIVEN, "--max-utilization=0.7", f"--replica-gpus={gpus}")
        assert said in " ".join(done.stdout.split())


def test_a_log_that_repeats_itself_gets_the_cached_price_on_both_sides(tokonomics: Call) -> None:
    made = json.loads(tokonomics(*MOONCAKE, "--json").stdout)
    (api,) = made["apis"]
    # The closed form gives our own cache no end; the API's forgets after five minutes.
    assert all(each["cached_share"] > made["cached_share"] for each in made["hardware"])
    assert made["cached_share"] > 0.1
    assert api["cached_within_s"] == 300
    assert api["cached_share"] == made["cached_share"]
    # GPT-4o: $2.50 in, $1.25 cached, $10 out.
    cached = made["cached_share"]
    dollars = made["input_tokens"] * (2.5 - 1.25 * cached) + made["output_tokens"] * 10
    assert api["usd_per_request"] == pytest.approx(dollars / 1e6, rel=1e-6)


def test_the_verdict_names_hardware_and_precision_and_says_when_nothing_is_asked(tokonomics: Call) -> None:
    plain = tokonomics(*QUICK, "--api=openai:gpt-4o").stdout
    targeted = tokonomics(*QUICK, "--api=openai:gpt-4o", "--slo=tpot_mean=80ms").stdout
    verdict = next(" ".join(part.split()) for part in plain.split("\n\n") if "Self-hosting is cheaper" in part)
    kinds = [each["kind"]["name"] for each in found(tokonomics, "--api=openai:gpt-4o")["hardware"]]
    assert any(name in verdict for name in kinds)
    assert any(precision in verdict for precision in ("bf16", "fp8", "int4"))
    assert "No SLO is set" in plain
    assert "under the SLO" not in plain
    assert "No SLO is set" not in targeted
    assert "under the SLO" in targeted


def test_nothing_is_cut_with_several_hosts_at_120_columns(tokonomics: Call) -> None:
    hosts = "--api=openai:gpt-4o,groq:llama-3.3-70b-versatile,novita:meta-llama/llama-3.3-70b-instruct"
    report = BreakevenResult.model_validate(found(tokonomics, hosts, "--batch-api"))
    screen = Console(width=120, file=StringIO())
    screen.print(renderable(breakeven(report, Request()).sections()))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    for api in report.apis:
        assert text.count(api.name) >= 2
        assert usd(api.usd_per_mtok) in text


def test_a_share_may_be_written_in_percent(tokonomics: Call) -> None:
    made = [
        json.loads(tokonomics(*OWN, f"--residual={each}", f"--cost-of-capital={interest}", "--json").stdout)
        for each, interest in (("10%", "8 %"), ("0.1", "0.08"))
    ]
    assert made[0] == made[1]
    assert "write 0.1 or 10%" in tokonomics(*OWN, "--residual=tenth").stderr
