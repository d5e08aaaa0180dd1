"""``tokonomics cache`` as a person types it."""

from pathlib import Path

import pytest
from tests.command import Call, answer, refusal

TRACE = ("--model", "llama-3.1-8b", "--gpu", "H100", "--trace", "mooncake-conversation", "--to", "10m")


def test_a_trace_with_tiers_gives_every_setting_and_its_bill(tokonomics: Call, tmp_path: Path) -> None:
    made = answer(tokonomics, "cache", *TRACE, "--tiers", "dram=200,ssd=2000@0", "--chart", tmp_path / "c.svg")[
        "prefix_cache"
    ]
    assert made["rows"][0]["setting"]["name"] == "no cache"
    assert made["rows"][-1]["setting"]["tiers"][1]["usd_per_gb_hour"] == 0
    assert (tmp_path / "c.svg").exists()
    # A memory that costs nothing and hits more never asks for a machine more: dram is paid for, ssd is not.
    bills = [[line["quantity"] * line["usd_per_unit"] for line in row["bill"]["lines"]] for row in made["rows"]]
    none, gpu, aware, dram, ssd, both = (round(sum(lines), 9) for lines in bills)
    assert none >= gpu >= aware >= ssd
    assert dram >= both
    shown = tokonomics("cache", *TRACE, "--tiers", "dram=200")
    assert "Fetch a block, or compute it?" in shown.stdout


def test_without_sizes_the_answer_says_how_much_memory_to_keep(tokonomics: Call, tmp_path: Path) -> None:
    made = answer(tokonomics, "cache", *TRACE, "--slo", "ttft_p99=10", "--chart", tmp_path / "c.svg")["prefix_cache"]
    memory, names = made["memory"], [row["setting"]["name"] for row in made["rows"]]
    assert {memory["keep"], memory["cheapest"]} <= set(names)
    assert [verdict["name"] for verdict in memory["verdicts"]] == ["dram", "ssd"]
    shares = [size["found_share"] for size in memory["sizes"]]
    assert shares == sorted(shares)
    assert memory["gpu_share"] == pytest.approx(made["gpu_cache_bytes"] / memory["working_set_bytes"])
    said = tokonomics("cache", *TRACE, "--slo", "ttft_p99=10", "--tiers", "dram=auto").stdout
    assert "\nKeep " in said
    assert "of the working set" in said


def test_on_the_same_replicas_every_memory_more_hits_more(tokonomics: Call) -> None:
    none, gpu, aware, dram, ssd, both = (
        row["cached_share"]
        for row in answer(tokonomics, "cache", *TRACE, "--replicas", "3", "--tiers", "dram=200,ssd=2000@0")[
            "prefix_cache"
        ]["rows"]
    )
    assert 0 == none < gpu < aware < dram < both
    # Alone, the disk keeps only what it can write from a small buffer in time.
    assert aware < ssd
    # What is fetched from where moves arrivals at the engine by milliseconds, and with them who finds what.
    assert ssd <= 1.02 * both


def test_a_disk_too_slow_to_help_is_said_to_cost_and_from_which_speed_it_would_not(tokonomics: Call) -> None:
    """Each conversation is on the GPU no more when it goes on; a quarter of the disk's speed is computing's."""
    load = ("--sessions", "4,think=60", "--requests", "300", "--rate", "2", "--input", "2000", "--output", "100")
    asked = ("cache", "llama-3.1-8b", "--gpu", "L40S", *load, "--tiers", "dram=30@0,ssd=900:0.3@0")
    rows = answer(tokonomics, *asked)["prefix_cache"]["rows"]
    bare, both = (next(row for row in rows if len(row["setting"]["tiers"]) == many and row["setting"]["prefix_cache"])
                  for many in (0, 2))  # fmt: skip
    disk = both["tier_hits"][1]
    needed = 0.3e9 * disk["busy_s"] / disk["compute_s"]
    assert disk["quicker_from_bytes_per_s"] == pytest.approx(needed)
    times = both["ttft_s"]["mean"] / bare["ttft_s"]["mean"]
    assert times > 1
    said = " ".join(tokonomics(*asked).stdout.split())
    assert f"costs, first tokens {times:.3g} times as late on average: below {needed / 1e9:.3g} GB/s into a GPU" in said


def test_prompts_alone_are_enough(tokonomics: Call, tmp_path: Path) -> None:
    pytest.importorskip("usearch")
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(f"what is the price of item {number % 5}" for number in range(50)), encoding="utf-8")
    done = tokonomics("cache", "--prompts", file, "--semantic", "hashed")
    assert done.returncode == 0, done.stderr
    assert "see spelling, not meaning" in done.stdout
    made = answer(tokonomics, "cache", "--prompts", file, "--semantic", "hashed")["semantic"]
    assert made["exact_share"] == pytest.approx(0.9)
    assert made["points"][-1]["hit_share"] >= 0.9


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "nothing to look at"),
        (("--semantic", "hashed"), "nothing to look at"),
        (("--trace", "azure-conv", "--gpu", "H100", "--model", "llama-3.1-8b"), "which blocks"),
        (("--trace", "mooncake-conversation", "--model", "llama-3.1-8b"), "--gpu"),
        ((*TRACE, "--tiers", "tape=4"), "--tiers"),
        ((*TRACE, "--tiers", "remote=auto"), "--tiers"),
        ((*TRACE, "--pairs", "x.csv"), "--pairs"),
        ((*TRACE, "--ttl", "soon"), "--ttl"),
    ],
)
def test_mistakes_are_one_message(tokonomics: Call, args: tuple[str, ...], says: str) -> None:
    assert says in refusal(tokonomics, "cache", *args)
