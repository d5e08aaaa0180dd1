"""``tokonomics breakeven``, ``own-hardware`` and ``compare``: what they print, save and refuse."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.command import Call, answer, refusal

from tokonomics.questions.breakeven import BreakevenResult
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.report.breakeven_view import breakeven
from tokonomics.report.terminal import renderable
from tokonomics.units import usd

OFFERS = f"--offers={Path(__file__).parents[1] / 'golden' / 'offers.csv'}"
SIZES = ("--input=1000", "--output=300")
QUICK = ("breakeven", "llama-3.1-8b", *SIZES, OFFERS, "--quick")
MOONCAKE = ("breakeven", "llama-3.1-8b", "--trace=mooncake-conversation", OFFERS, "--quick", "--api=openai:gpt-4o")
OWN = ("cost", "--gpu=H100", "--gpus=8", "--purchase-usd=250000", "--years=4", "--usd-per-kwh=0.1", "--host-watts=4600")
COMPARE = ("plan", "--by-gpu", "llama-3.1-8b", "qwen2.5-32b", "--rate=20", *SIZES, OFFERS)


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
    hour = answer(tokonomics, *OWN, f"--save={mine}")["usd_per_hour"]
    planned = tokonomics("plan", "llama-3.1-8b", "--rate=5", *SIZES, f"--offers={mine}", "--quick", "--json")
    best = json.loads(planned.stdout)["best"]
    assert (best["provider"], best["instance_usd_per_hour"]) == ("own", pytest.approx(hour))
    assert best["usd_per_month"] == pytest.approx(hour * 730)


def test_a_slo_that_nothing_keeps_says_what_stands_in_the_way(tokonomics: Call) -> None:
    done = tokonomics(*QUICK, "--api=openai:gpt-4o", "--slo=ttft_p99=1ms")
    assert done.returncode == 1
    assert "No offer meets these constraints" in done.stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("breakeven", "qwen3-4b", *SIZES, OFFERS, "--quick"), "the API catalogue has no host of qwen3-4b"),
        (
            ("breakeven", *SIZES, "--replica-tokens-per-second=9", "--usd-per-hour=1", "--max-utilization=0.7"),
            "which API is it compared with?",
        ),
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
    assert says in refusal(tokonomics, *flags)


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
    made = answer(tokonomics, *MOONCAKE)
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
    said = (" ".join(part.split()) for part in plain.split("\n\n"))
    verdict = next(part for part in said if part.startswith("From ") and "is cheaper" in part)
    machines = [row["pick"]["gpu"].removesuffix("-SXM") for row in found(tokonomics, "--api=openai:gpt-4o")["hardware"]]
    assert any(gpu in verdict for gpu in machines)
    assert any(precision in verdict for precision in ("bf16", "fp8", "int4"))
    assert "No SLO is set" in plain
    assert "under the SLO" not in plain
    assert "No SLO is set" not in targeted
    assert "under the SLO" in targeted


def test_nothing_is_cut_with_several_hosts_at_120_columns(tokonomics: Call) -> None:
    hosts = "--api=openai:gpt-4o,groq:llama-3.3-70b-versatile,novita:meta-llama/llama-3.3-70b-instruct"
    report = BreakevenResult.model_validate(found(tokonomics, hosts, "--batch-api"))
    screen = Console(width=120, file=StringIO())
    screen.print(renderable(breakeven(report, BreakevenRequest(api=(hosts.partition("=")[2],))).sections()))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    for api in report.apis:
        assert api.name in text
        assert usd(api.usd_per_mtok) in text


def test_without_an_api_every_host_of_the_model_is_compared_the_cheapest_first(tokonomics: Call) -> None:
    made = found(tokonomics)
    prices = [api["usd_per_mtok"] for api in made["apis"]]
    assert len(prices) > 8
    assert prices == sorted(prices)
    novita = next(api for api in made["apis"] if api["name"] == "novita:meta-llama/llama-3.1-8b-instruct")
    # $0.02 in, $0.05 out, for 1,000 and 300 tokens; Hugging Face's way to the same host is no other host.
    assert novita["usd_per_mtok"] == pytest.approx((1000 * 0.02 + 300 * 0.05) / 1300)
    assert not any("huggingface_novita" in api["name"] for api in made["apis"])
    assert all(api["date"] for api in made["apis"])
    assert [bill["api"] for bill in made["found"]] == [api["name"] for api in made["apis"]]


def test_a_host_without_a_price_of_cached_tokens_stays_in_at_its_list_price(tokonomics: Call) -> None:
    apis = found(tokonomics, "--cached-share=0.5")["apis"]
    unquoted = [api for api in apis if "quotes no price of cached tokens" in (api["note"] or "")]
    assert unquoted
    for api in unquoted:
        list_price = (1000 * api["input_usd_per_mtok"] + 300 * api["output_usd_per_mtok"]) / 1300
        assert api["usd_per_mtok"] == pytest.approx(list_price, rel=1e-5)  # lengths are whole tokens
        assert api["cached_share"] == 0
    assert any(api["cached_share"] == 0.5 for api in apis)


def test_apis_and_breakeven_say_the_same_day_of_a_price(tokonomics: Call) -> None:
    asked = ("apis", "llama3.1-8b", "--host=cerebras")
    (price,) = answer(tokonomics, *asked)
    assert price["checked"] < price["date"]  # the list is younger than the day this price was checked
    (bill,) = found(tokonomics, "--api=cerebras:llama3.1-8b")["apis"]
    assert bill["date"] == price["checked"]
    assert price["checked"] in tokonomics(*asked).stdout
    assert price["date"] not in tokonomics(*asked).stdout


CAN_RUN = ("can-run", "--gpu=RTX3090", "--gpus=2")


def test_can_run_lists_what_fits_and_says_how_to_get_dollars(tokonomics: Call) -> None:
    text = tokonomics(*CAN_RUN).stdout
    assert "TPOT p99 ≤ 50 ms (default; --slo)" in text
    assert "--usd-per-kwh" in text
    made = answer(tokonomics, *CAN_RUN)
    assert made["power"] is None
    assert {row["usd_per_mtok"] for row in made["runs"]} == {None}
    assert sum(row["model"] in text for row in made["runs"]) >= 15


def test_can_run_exits_with_1_where_nothing_fits(tokonomics: Call) -> None:
    done = tokonomics("can-run", "llama-3.1-70b", "--gpu=T4")
    assert done.returncode == 1
    assert "llama-3.1-70b" in done.stdout
    assert "4 GPUs (TP=4) at int4" in done.stdout


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("can-run",), "--gpu"),
        ((*CAN_RUN, "--years=3"), "--usd-per-kwh, --purchase-usd: are missing"),
        ((*CAN_RUN, "--host-watts=100"), "--usd-per-kwh: is missing"),
        ((*CAN_RUN, "--usd-per-kwh=99"), "--usd-per-kwh"),
        ((*CAN_RUN, "--gpus=1001"), "--gpus: must be at most 1,000"),
        ((*CAN_RUN, "--context=0"), "--context"),
        ((*CAN_RUN, "llama-9"), "llama-9"),
        ((*CAN_RUN, "llama-3.1-8b", "--context=200k"), "200,000 tokens exceed Llama 3.1 8B's 131,072 of context"),
        (("can-run", "--gpu=Gaudi3", "--engine=sglang"), "--engine"),
    ],
)
def test_can_run_says_what_it_cannot_use(tokonomics: Call, flags: tuple[str, ...], says: str) -> None:
    assert says in refusal(tokonomics, *flags)
