"""``capacity`` as a user calls it: the rate it names holds when simulated, and its replicas are the fewest."""

from typing import Any

import pytest
from tests.command import Call, answer, refusal

ON = ("--model=llama-3.1-8b", "--gpu=H100")
LENGTHS = ("--input=1000", "--output=uniform:20-200")
SLO = "--slo=ttft_p99=0.5,tpot_p99=30ms"
LOG = ("--trace=azure-code", "--requests=2000", "--speed=60")
MADE_UP = ("simulate", "--capacity", *ON, *LENGTHS, SLO, "--usd-per-hour=3")
OF_A_LOG = ("simulate", "--capacity", *ON, *LOG, "--slo=ttft_p99=0.5", "--usd-per-hour=3")


def as_found(found: Any) -> list[str]:
    """The router and the limit on sequences that a search took, as options."""
    options = {"--router": found.get("router"), "--max-sequences": found["max_sequences"]}
    return [f"{name}={value}" for name, value in options.items() if value is not None]


def test_the_cost_of_a_log_is_that_of_the_replicas_it_needs(tokonomics: Call) -> None:
    made = answer(tokonomics, *OF_A_LOG)
    how = as_found(made["replicas_needed"])
    served = answer(tokonomics, "simulate", *ON, *LOG, "--usd-per-hour=3", f"--replicas={made['replicas']}", *how)
    assert made["usd_per_mtok"] == pytest.approx(served["usd_per_mtok"])


def test_made_up_requests_need_no_number_of_replicas(tokonomics: Call) -> None:
    made = answer(tokonomics, *MADE_UP)
    assert (made["replicas"], made["replicas_needed"]) == (None, None)
    assert made["rate"] == made["highest_rate"]["rate"]
    outcome = made["highest_rate"]["outcome"]
    bill = 3.0 * outcome["replica_hours"]
    assert made["usd_per_mtok"] == pytest.approx(bill / (outcome["input_tokens"] + outcome["output_tokens"]) * 1e6)


def test_sessions_at_once_are_said_by_gpu_machine_and_dollar(tokonomics: Call) -> None:
    made = answer(tokonomics, *MADE_UP, "--sessions=5,think=10", "--tp=2", "--requests=4000")
    sessions, found = made["highest_rate"]["outcome"]["sessions"], made["at_once"]
    assert found["replica"] == pytest.approx(sessions["jobs_per_s"] * sessions["job_s"]["mean"])
    assert (found["gpu"], found["machine"]) == pytest.approx((found["replica"] / 2, found["replica"] * 4))
    assert found["usd_per_hour"] == pytest.approx(found["replica"] / 6)  # two GPUs of $3
    assert answer(tokonomics, *MADE_UP)["at_once"] is None


def test_a_rate_that_changes_nothing_is_not_taken_in_silence(tokonomics: Call) -> None:
    plain, rated = tokonomics(*MADE_UP), tokonomics(*MADE_UP, "--rate=200")
    assert plain.stdout.splitlines()[:6] == rated.stdout.splitlines()[:6]
    assert (plain.stderr, "plan sizes for a rate" in rated.stderr) == ("", True)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--slo=ttft",), ["--slo"]),
        (("--slo=tttf=1",), ["--slo", "ttft, tpot, e2e or job"]),
        (("--router=random",), ["--router", "power-of-two"]),
        (("--timeout=never",), ["--timeout"]),
        (("--arrivals=burst:50",), ["at once"]),
        (("--input=200k",), ["--input", "exceed the model's 131,072 tokens of context"]),
        (("--trace=azure-conv",), ["--input", "not for a log"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_explained(tokonomics: Call, flags: tuple[str, ...], says: list[str]) -> None:
    message = refusal(tokonomics, *MADE_UP, *flags)
    assert [say for say in says if say not in message] == []


def test_lengths_are_asked_for(tokonomics: Call) -> None:
    assert "--input" in refusal(tokonomics, "simulate", "--capacity", *ON)
    assert "--output" in refusal(tokonomics, "simulate", "--capacity", *ON, "--input=100")
