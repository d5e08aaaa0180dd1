"""``tokonomics fleet``: what it prints, saves and refuses."""

import json
import subprocess
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import NoReturn

import pytest

from tokonomics.errors import BadInput
from tokonomics.questions import fleet as fleet_questions
from tokonomics.questions.requests.buy import FleetRequest
from tokonomics.units import usd

Call = Callable[..., subprocess.CompletedProcess[str]]

OFFERS = f"--offers={Path(__file__).parents[1] / 'golden' / 'offers.csv'}"
SIZES = ("--input=700", "--output=120")
SLO = "--slo=ttft_p99=2,tpot_p99=0.1"
QUICK = ("fleet", "llama-3.1-8b", *SIZES, SLO, "--hours=24", "--gap=0.02", "--no-replay", OFFERS)


def bill(call: Call, *flags: str) -> float:
    done = call(*QUICK, "--gpu=L4,H100", "--json", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return float(json.loads(done.stdout)["plan"]["usd_per_month"])


def test_the_document_holds_the_plan_the_verdict_and_what_was_chosen_from(tokonomics: Call) -> None:
    done = tokonomics(*QUICK, "--demand=12x20,12x2", "--gpu=L4,H100", "--provider=aws", "--json")
    assert done.returncode == 0
    made = json.loads(done.stdout)
    plan = made["plan"]
    assert plan["hours"] == 24
    bought = sum(each["usd_per_month"] for each in plan["purchases"])
    assert bought == pytest.approx(plan["usd_per_month"])
    for hour, rate in enumerate(plan["demand"]):
        assert plan["firm_capacity"][hour] + plan["spot_capacity"][hour] >= rate * (1 - 1e-6)
    assert made["verdict"]["suitability"]
    owed = [each for each in plan["purchases"] if each["terms"] == "reserved"]
    assert made["committed_usd"] == pytest.approx(
        sum(each["usd_per_hour"] * each["by_hour"][0] * 8760 * int(each["place"][0]) for each in owed)
    )
    assert {each["name"] for each in plan["comparisons"]} >= {"all on demand", "all reserved"}
    assert made["rule"]["saved_share"] == pytest.approx(0.201, abs=5e-4)
    assert {each["offer"] for each in plan["purchases"]} <= {each["name"] for each in made["machines"]}


def test_the_table_says_for_how_long_machines_are_reserved(tokonomics: Call) -> None:
    asked = (*QUICK, "--demand=24x5", "--gpu=H100", "--provider=aws", "--no-spot")
    made, shown = json.loads(tokonomics(*asked, "--json").stdout), tokonomics(*asked).stdout
    terms = {each["place"] for each in made["plan"]["purchases"] if each["terms"] == "reserved"}
    assert terms
    assert terms <= {"1 year", "3 years"}
    rows = [line.strip() for line in shown.splitlines() if line.startswith("reserved")]
    assert {row[: len(f"reserved {term}")] for row, term in zip(rows, terms, strict=True)} == {
        f"reserved {term}" for term in terms
    }


def test_a_region_is_chosen_by_its_whole_bill_start_ups_too(tokonomics: Call) -> None:
    """Spot in one region looks cheaper than a machine that always runs in another, until replicas have to start."""
    steady = bill(tokonomics, "--demand=12x20,12x2", "--no-spot")
    assert bill(tokonomics, "--demand=12x20,12x2", "--max-spot-share=0.5") <= steady


def test_what_the_model_cannot_take_is_left_out_and_said(tokonomics: Call) -> None:
    done = tokonomics("fleet", "llama-2-7b", "--trace=azure-conv", "--no-replay", OFFERS, "--gpu=A100-80GB")
    assert done.returncode == 0
    assert "8.3 % of the requests are left out: longer than the model's context" in done.stdout
    assert "taken as batch work" in done.stdout


@pytest.mark.explore
def test_a_log_is_replayed_on_the_fleet_bought_for_it(tokonomics: Call) -> None:
    done = tokonomics("fleet", "llama-3.1-8b", "--trace=azure-conv", SLO, OFFERS, "--gpu=L4,H100", "--json")
    calm, loss = json.loads(done.stdout)["replays"]
    assert calm["requests"] == loss["requests"] > 10_000
    assert all(each["kept"] for each in calm["slo"])


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ((), "no demand is given"),
        (("--demand=12x20", "--trace=azure-conv"), "a demand and a log are given"),
        (("--demand=24x0",), "no hour with a request"),
        (("--demand=12x20", "--terms=sport"), "Did you mean spot?"),
        (("--demand=12x20", "--terms=spot", "--no-spot"), "leaves nothing to buy"),
        (("--demand=12x20", "--size-classes=many"), "not sizes in tokens"),
        (("--demand=12x20", "--interruptions=often"), "not a chance"),
        (("--demand=12x20", "--startup=soon"), "is not a time"),
        (("--demand=12x20", "--availability=1"), "above 0 and below 1"),
        (("--demand=12x20", "--gpu=T4", "--provider=aws"), "no offer is left"),
        (("--demand=12x20", "--columns=a=b"), "is for a log"),
        (("--demand=12x20", "--hours=0"), "1 to 744 hours"),
        (("--demand=12x20", "--hours=8760"), "--hours 168 stands for every week"),
        (("--demand=12x20", "--gap=1"), "less than or equal to 0.99"),
        (("--demand=12x20", "--chart=fleet.doc"), "cannot save a chart"),
    ],
)
def test_a_slip_gets_one_message(tokonomics: Call, flags: tuple[str, ...], says: str) -> None:
    done = tokonomics(*QUICK, *flags)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_what_to_commit_is_in_the_document(tokonomics: Call) -> None:
    flags = ("--commit", "--commit-price=1y=0.3", "--horizon=24", "--growth=0:2%:4%")
    done = tokonomics(*QUICK, "--demand=12x20,12x2", "--gpu=L4", "--no-spot", "--json", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)["commitments"]
    assert found["growth"] == [0.0, 0.02, 0.04]
    assert [term["months"] for term in found["terms"]] == [12]
    assert found["terms"][0]["usd_per_hour"] == pytest.approx(0.3 * found["machine"]["gpus"])
    assert found["ways"][0]["name"] == "this plan"
    assert len(found["reserved"]) == 24


def test_what_to_commit_comes_before_the_fleet_for_today(tokonomics: Call) -> None:
    flags = ("--commit", "--commit-price=1y=0.3", "--horizon=24", "--growth=0:2%:4%")
    asked = (*QUICK, "--demand=12x24,12x2", "--gpu=L4", "--no-spot", *flags)
    made, shown = json.loads(tokonomics(*asked, "--json").stdout), tokonomics(*asked).stdout
    bills = [f"{usd(bill)} a month" for bill in (
        made["commitments"]["ways"][0]["usd_per_month"], made["plan"]["usd_per_month"]
    )]  # fmt: skip
    assert bills[0] != bills[1]
    assert 0 < shown.index(bills[0]) < shown.index(bills[1])


def test_without_a_quote_for_a_commitment_nothing_is_sized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def sized(*_: object, **__: object) -> NoReturn:
        pytest.fail("machines were sized")

    monkeypatch.setattr(fleet_questions, "fleet_machines", sized)
    offers = tmp_path / "mine.csv"
    offers.write_text(f"provider,instance,gpu,gpus,region,usd_per_hour,date\nours,a,L4,1,here,0.8,{date.today()}\n")
    request = FleetRequest(model="llama-3.1-8b", demand="4x2", input=500, output=100, offers=str(offers), commit=True)
    with pytest.raises(BadInput) as refused:
        fleet_questions.fleet(request)
    assert refused.value.field == "commit"
    assert "--commit-price" in (refused.value.fix or "") or "commit_price" in (refused.value.fix or "")


@pytest.mark.parametrize(
    ("flags", "field"),
    [
        (("--growth=3%",), "--growth"),
        (("--commit", "--growth=6%:3%:1%"), "--growth"),
        (("--commit", "--growth=fast"), "--growth"),
        (("--commit", "--commit-price=1y"), "--commit-price"),
        (("--commit", "--commit-price=1y=0"), "--commit-price"),
        (("--commit", "--terms=spot"), "--commit"),
        (("--commit", "--no-reserved"), "--commit"),
    ],
)
def test_a_mistake_about_commitments_names_its_input(tokonomics: Call, flags: tuple[str, ...], field: str) -> None:
    done = tokonomics(*QUICK, "--demand=12x20,12x2", *flags)
    assert done.returncode == 2
    assert field in done.stderr
