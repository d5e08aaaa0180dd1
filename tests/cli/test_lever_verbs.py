"""``levers``, bought machines and models by GPU: what they say to a person who has not read the manual."""

import json
from pathlib import Path

import pytest
from tests.command import Call, answer, refusal

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
