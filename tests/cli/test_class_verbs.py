"""Classes of service as a person types them, and as a scenario file has them."""

import json
import math
from pathlib import Path

import pytest
from tests.command import Call, answer

TRAFFIC = ("--arrivals", "poisson:30", "--requests", "1200", "--input", "500", "--output", "50")
SERVED = ("llama-3.1-8b", "--gpu", "L4", "--usd-per-hour", "0.5", "--max-sequences", "16")
SCENARIO = """
model = "llama-3.1-8b"
gpu = "L4"
usd_per_hour = 0.5
max_sequences = 16
arrivals = "poisson:30"
input = 500
output = 50

[simulate]
requests = 1200

[[class]]
name = "gold"
share = "20%"
slo = "ttft_p99=9"
priority = 0

[[class]]
name = "free"
slo = {ttft_p90 = 60}
priority = 1
max_wait = 30
max_queue = 200
"""
GOLD = "gold,share=20%,slo=ttft_p99=9,priority=0"
TYPED = ("--class", GOLD, "--class", "free,slo=ttft_p90=60,priority=1,max_wait=30,max_queue=200")


def test_a_scenario_and_the_flags_say_the_same(tokonomics: Call, tmp_path: Path) -> None:
    file = tmp_path / "chat.toml"
    file.write_text(SCENARIO, encoding="utf-8")
    typed, written = tokonomics("simulate", *SERVED, *TRAFFIC, *TYPED, "--json"), tokonomics("simulate", file, "--json")
    assert typed.returncode == written.returncode == 0, typed.stderr + written.stderr
    found, other = (json.loads(done.stdout) for done in (typed, written))
    assert found["classes"] == other["classes"]
    gold, free = found["classes"]["classes"]
    assert gold["requests"] + free["requests"] == found["requests"] == 1200
    assert found["shed"] == free["shed"] > 0 == gold["shed"]
    assert math.fsum(own["usd"] for own in found["classes"]["bill"]) == pytest.approx(found["cost"]["usd"])


def test_classes_are_shown_with_who_breaks_first(tokonomics: Call) -> None:
    done = tokonomics("simulate", *SERVED, *TRAFFIC, *TYPED)
    assert done.returncode == 0, done.stderr
    for said in ("By class", "As the load grows", "turned away by the limits of their class", "$/Mtok"):
        assert said in done.stdout


def test_tenants_are_billed_by_class_as_well(tokonomics: Call) -> None:
    named = ("--tenants", "3,skew=1", "--class", "gold,tenants=tenant-1,slo=ttft_p99=5,priority=0", "--class", "rest")
    made = answer(tokonomics, "tenants", *SERVED[:-2], *TRAFFIC, *named)
    gold, rest = made["classes"]["bill"]
    pays = {row["tenant"]: row["pays_usd_per_hour"] for row in made["tenants"]}
    assert gold["usd"] == pytest.approx(pays["tenant-1"])
    assert gold["usd"] + rest["usd"] == pytest.approx(made["together"]["usd_per_hour"])
    assert made["promises"] == ["gold ttft_p99 ≤ 5 s"]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("plan", "llama-3.1-8b", "--rate", "5", "--input", "9", "--output", "9", "--quick"), "have to be simulated"),
        (("tenants", *SERVED[:-2], *TRAFFIC, "--tenants", "3"), "here classes have tenants"),
        (
            ("plan", "llama-3.1-8b", "--rate", "5", "--input", "9", "--output", "9", "--offline"),
            "a batch has no classes",
        ),
    ],
)
def test_what_classes_cannot_be_asked_is_said(tokonomics: Call, typed: tuple[str, ...], said: str) -> None:
    done = tokonomics(*typed, "--class", "gold,share=20%", "--class", "rest")
    assert done.returncode != 0
    assert said in done.stderr
    assert "--class" in done.stderr


def test_capacity_compares_with_one_slo_for_all(tokonomics: Call) -> None:
    classes = ("--class", "gold,share=20%,slo=ttft_p99=2,priority=0", "--class", "free,slo=ttft_p90=60,priority=1")
    shape = ("--input", "const:500", "--output", "const:50", "--requests", "4000")
    made = answer(tokonomics, "simulate", "--capacity", *SERVED, *shape, *classes)
    alike = tokonomics("simulate", "--capacity", *SERVED, *shape, "--slo", "ttft_p99=2,ttft_p90=60", "--json")
    assert made["classes"]["one_slo"]["rate"] == pytest.approx(json.loads(alike.stdout)["rate"], rel=0.02)
    assert made["rate"] >= made["classes"]["one_slo"]["rate"]
    assert [own["breaks"] for own in made["classes"]["classes"]] == [None, None]
