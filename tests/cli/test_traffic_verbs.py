"""``tenants``, ``route``, ``levers`` and what they compare, as a person types them."""

import csv
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


# --- ``tokonomics route`` as a person types it ------------------------------------------------------------------------


OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
MODELS = ("route", "llama-3.2-1b", "llama-3.1-8b", "--offers", OFFERS, "--gpu", "L4,A100-80GB")
ON_TIME = ("--slo", "ttft_p99=2,tpot_p99=0.2")
ROUTED = (*MODELS, "--trace", Path(__file__).parents[2] / "docs" / "examples" / "routed.csv")
EASY, HARD = 200, 100
"""Requests of each task."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Two tasks; the small model answers one of them well, and the router's score knows which."""
    path = tmp_path / "log.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["time", "prompt_tokens", "completion_tokens", "task", "confidence", "small_ok", "large_ok"])
        for place in range(EASY + HARD):
            hard = place % 3 == 2
            rows.writerow(
                [place / 4, 300 + place % 50, 40, "hard" if hard else "easy", *((0.2, 0, 1) if hard else (0.9, 1, 1))]
            )
    return path


def test_scores_of_a_log_route_it_and_the_floor_picks_the_cheapest(tokonomics: Call, log: Path, tmp_path: Path) -> None:
    scored = ("--score", "confidence", "--by", "task", "--quality", "llama-3.2-1b=small_ok,llama-3.1-8b=large_ok")
    made = answer(
        tokonomics, *MODELS, *ON_TIME, "--trace", log, *scored, "--min-quality=0.99", "--chart", tmp_path / "r.svg"
    )
    assert (tmp_path / "r.svg").exists()
    singles = {way["parts"][0]["model"]: way for way in made["ways"] if way["kind"] == "single"}
    assert singles["llama-3.2-1b"]["quality"] == pytest.approx(EASY / (EASY + HARD))
    assert singles["llama-3.1-8b"]["quality"] == 1
    # One threshold tells the tasks apart, as the labels do: the same parts, so the same bill.
    (routed,) = [way for way in made["frontier"] if way["kind"] == "routed"]
    labels = [way for way in made["frontier"] if way["kind"] == "labels"]
    assert routed["threshold"] == 0.9
    assert routed["first_share"] == pytest.approx(EASY / (EASY + HARD))
    assert routed["quality"] == 1
    for way in (way for way in labels if way["quality"] == 1):
        assert way["usd_per_month"] == pytest.approx(routed["usd_per_month"])
    good = [way["usd_per_month"] for way in made["ways"] if way["quality"] >= 0.99]
    assert made["best"]["usd_per_month"] == pytest.approx(min(good))


def test_scores_by_label_are_weighed_by_their_requests(tokonomics: Call, log: Path) -> None:
    scores = "easy/llama-3.2-1b=0.9,hard/llama-3.2-1b=0.3,llama-3.1-8b=0.8"
    made = answer(tokonomics, *MODELS, *ON_TIME, "--trace", log, "--by", "task", "--quality", scores)
    small = next(way for way in made["ways"] if way["parts"][0]["model"] == "llama-3.2-1b")
    assert small["quality"] == pytest.approx((EASY * 0.9 + HARD * 0.3) / (EASY + HARD))
    best = max(way["quality"] for way in made["frontier"])
    assert best == pytest.approx((EASY * 0.9 + HARD * 0.8) / (EASY + HARD))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("route", "llama-3.1-8b", "--rate=5", "--input=500", "--output=50"), "at least two models"),
        ((*MODELS, "--rate=5", "--input=500", "--output=50", "--score=confidence"), "--score: is for a log"),
        ((*MODELS, "--rate=5", "--input=500", "--output=50", "--min-quality=0.9"), "none are given"),
        (
            (*MODELS, "--rate=5", "--input=500", "--output=50", "--quality=llama-3.2-1b=0.5"),
            "llama-3.1-8b has no score",
        ),
        ((*MODELS, "--rate=5", "--input=500", "--output=50", "--quality=lama=0.5"), "is not MODEL=SCORE"),
        ((*MODELS, "--trace=azure-conv", "--score=confidence"), "no request says its confidence"),
        (
            (*ROUTED, "--score=confidnce"),
            "Did you mean confidence? The log has time, prompt_tokens, completion_tokens,",
        ),
        ((*ROUTED, "--score=confidnce", "--by=task"), "no request says its confidnce Did you mean confidence?"),
        ((*ROUTED, "--score=confidence", "--share=70%"), "--share, --score: give one of the two"),
    ],
)
def test_what_cannot_be_routed_is_said_in_a_line(tokonomics: Call, words: tuple[str | Path, ...], said: str) -> None:
    assert said in refusal(tokonomics, *words)


# --- ``levers``, bought machines and models by GPU: what they say to a person who has not read the manual -------------


TRAFFIC = ("--rate=5", "--input=1000", "--output=300")
OWN = ("cost", "--gpu=H100", "--gpus=8", "--years=4", "--usd-per-kwh=0.12", "--host-watts=4600")


@pytest.mark.parametrize("verb", [("levers",), ("levers", "--from-scratch")])
def test_a_model_that_does_not_fit_says_on_how_many_it_does(tokonomics: Call, verb: tuple[str, ...]) -> None:
    done = tokonomics(*verb, "llama-3.3-70b", "--gpu=L4", *TRAFFIC, "--slo=ttft_p99=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--tp 8" in done.stderr
    assert "--slo" not in done.stderr


@pytest.mark.parametrize("verb", [("levers",), ("levers", "--from-scratch")])
def test_a_memory_below_nothing_is_refused_even_if_unused(tokonomics: Call, verb: tuple[str, ...]) -> None:
    assert "--tiers: 'dram=-4'" in refusal(tokonomics, *verb, "llama-3.1-8b", "--gpu=H100", *TRAFFIC, "--tiers=dram=-4")


@pytest.mark.slow
def test_the_json_of_levers_says_what_is_asked(tokonomics: Call) -> None:
    quick = "--without=hardware,speculation,disaggregation,weights,kv,autoscale,spot,commit"
    done = tokonomics(
        "levers", "llama-3.1-8b", "--gpu=H100", *TRAFFIC, "--slo=ttft_p99=0.8,tpot_mean=40ms", quick, "--json"
    )
    slos = json.loads(done.stdout)["promises"]
    assert [(slo["latency"], slo["statistic"], slo["seconds"]) for slo in slos] == [
        ("ttft", "p99", 0.8),
        ("tpot", "mean", 0.04),
    ]


def test_levers_say_where_they_pay_and_that_a_share_can_wait(tokonomics: Call) -> None:
    quick = "--without=hardware,speculation,disaggregation,weights,spot,commit,api"
    made = answer(
        tokonomics, "levers", "llama-3.1-8b", "--gpu=H100", *TRAFFIC, "--slo=ttft_p99=0.8", "--batch-share=30%", quick
    )
    by_knob = {lever["knob"]: lever for lever in made["levers"]}
    axes = [boundary["axis"] for boundary in by_knob["kv"]["boundaries"]]
    assert axes == ["batch", "context", "requests_per_s"]
    assert [round(boundary["yours"]) for boundary in by_knob["kv"]["boundaries"][1:]] == [1150, 5]
    assert by_knob["waiting"]["bill"]["replicas"] >= 1
    assert "kWh" not in by_knob["clocks"]["reason"]


def test_every_missing_flag_is_named_at_once_with_an_example(tokonomics: Call) -> None:
    done = tokonomics("cost", "--gpu=H100", "--purchase-usd=250k")
    assert done.returncode == 2
    for flag in ("--years", "--usd-per-kwh", "--host-watts"):
        assert flag in done.stderr.splitlines()[0]


@pytest.mark.parametrize("price", ["250k", "250,000", "$250K", "0.25M", "2.5e5"])
def test_dollars_are_read_as_people_write_them(tokonomics: Call, price: str) -> None:
    made = [answer(tokonomics, *OWN, f"--purchase-usd={each}") for each in (price, "250000")]
    assert made[0] == made[1]
    assert made[0]["purchase"]["purchase_usd"] == 250_000


def test_a_price_that_is_none_is_refused(tokonomics: Call) -> None:
    assert "250k" in refusal(tokonomics, *OWN, "--purchase-usd=much")


def test_rent_is_of_a_machine_like_the_one_bought(tokonomics: Call) -> None:
    rented = answer(tokonomics, *OWN, "--purchase-usd=250k")["rented"][0]
    assert rented["gpu"] == "H100-SXM"
    # By the one price rule: a host that loads weights of a quarter of its GPUs' memory, with 3 GiB for each process.
    assert rented["memory_gb"] >= (0.25 * 80e9 / 2**30 + 3) * rented["gpus"]


def test_compare_tells_gpus_that_are_paid_for_and_not_used(tokonomics: Call) -> None:
    flags = (
        "plan",
        "llama-3.3-70b",
        "--by-gpu",
        "--gpu=A100-80GB",
        "--provider=aws",
        "--weights=bf16",
        "--rate=1",
        *TRAFFIC[1:],
    )
    pick = answer(tokonomics, *flags)["cells"][0]["pick"]
    used = pick["replicas"] * pick["gpus_per_replica"]
    assert used < pick["gpus_paid"]
    assert f"{used} of {pick['gpus_paid']}" in tokonomics(*flags).stdout


def test_one_tenant_alone_is_told_what_to_give(tokonomics: Call, tmp_path: Path) -> None:
    file = tmp_path / "one.csv"
    file.write_text("at,input,output,who\n0,100,10,a\n", encoding="utf-8")
    columns = "--columns=arrival=at,input=input,output=output,tenant=who"
    assert "--trace" in refusal(tokonomics, "tenants", "llama-3.1-8b", "--gpu=H100", f"--trace={file}", columns)
