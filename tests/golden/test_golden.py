"""What a person sees, kept word for word in the ``.txt`` files beside this one.

After a change that is meant to be seen, write them anew and read the difference before it is committed:

    UPDATE_GOLDEN=1 python -m pytest tests/golden && git diff tests/golden

The prices are those of ``offers.csv`` here, the day is 2026-11-15 and the terminal has 140 columns. Spaces at the end
of a line are dropped, since nobody sees them.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., subprocess.CompletedProcess[str]]

HERE = Path(__file__).parent
OFFERS = f"--offers={HERE / 'offers.csv'}"
DEMO = ("plan", "llama-3.1-8b", "--rate", "5", "--input", "1000", "--output", "300", "--tpot", "0.05", OFFERS)
STEPS = HERE.parents[1] / "benchmarks" / "data" / "h200_steps.json"
COST = ("cost", "--usd-per-hour", "2.21", "--gpus", "4", "--tokens-per-second", "2400")

SCREENS: dict[str, tuple[str, ...]] = {
    "plan": DEMO,
    "plan-why": (*DEMO, "--why"),
    "plan-nothing-fits": (*DEMO, "--max-price", "0.01"),
    "fit": ("fit", "llama-3.1-70b", "--gpu", "H100", "--tp", "4"),
    "fit-not": ("fit", "llama-3.1-70b", "--gpu", "H100"),
    "predict": ("predict", "llama-3.1-8b", "--gpu", "H200", "--batch", "64", "--context", "1024"),
    "predict-moe": ("predict", "deepseek-v3", "--gpu", "H200", "--tp", "8", "--batch", "128", "--context", "4096"),
    "predict-scaled": ("predict", "llama-3.1-8b", "--gpu", "MI300X", "--batch", "64"),
    "curve": ("curve", "llama-3.1-8b", "--gpu", "H100", "--context", "1024", "--usd-per-hour", "2.21"),
    "validate": ("validate", str(STEPS)),
    "cost-machine": ("cost", "--gpu", "H100", "--gpus", "9", "--tokens-per-second", "2400", OFFERS),
    "cost": (*COST, "--utilization", "0.7"),
    "cost-load": (*COST, "--load", "8x0.99,16x0", "--load", "24x0.7"),
    "cost-target": (*COST, "--utilization", "0.7", "--target", "0.50"),
    "models-llama-3": ("models", "llama-3"),
    "gpus-hopper": ("gpus", "--architecture", "hopper"),
    "offers": ("offers", OFFERS),
    "trace": ("trace", "azure-conv", "--tokens-per-second", "8000", "--usd-per-hour", "3"),
    "trace-shared": ("trace", "mooncake-conversation"),
    "trace-messy": ("trace", str(HERE / "messy.csv"), "--columns", "arrival=when,input=asked,output=said,tenant=who"),
}

REFUSALS: dict[str, tuple[str, ...]] = {
    "error-tp": ("fit", "llama-3.1-8b", "--gpu", "H100", "--tp", "3"),
    "error-model": ("fit", "lama-3.1-70b", "--gpu", "H100"),
    "error-batch": ("predict", "llama-3.1-8b", "--gpu", "H200", "--batch", "6400"),
    "error-does-not-fit": ("predict", "llama-3.1-70b", "--gpu", "H100"),
    "error-engine": ("fit", "llama-3.1-8b", "--gpu", "V100"),
    "error-no-offer": (*DEMO, "--gpu", "T4", "--provider", "aws"),
    "error-gpu": ("fit", "llama-3.1-8b", "--gpu", "H1000"),
    "error-arrivals": ("trace", "--arrivals", "poison:2", "--requests", "9", "--input", "512", "--output", "64"),
}


def compare(name: str, text: str) -> None:
    """The text is what the file holds; with UPDATE_GOLDEN=1 the file takes the text."""
    file = HERE / f"{name}.txt"
    seen = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(seen, encoding="utf-8")
    assert file.is_file(), f"{file.name} is missing: write it with UPDATE_GOLDEN=1"
    assert seen == file.read_text(encoding="utf-8"), f"{file.name} differs: see this file's head"


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_it_was(tokonomics: Call, name: str) -> None:
    done = tokonomics(*SCREENS[name])
    assert (done.returncode, done.stderr) == (0, "")
    compare(name, done.stdout)


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_as_it_was(tokonomics: Call, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", "/home/someone")  # the message says where the user's own catalogue would be
    done = tokonomics(*REFUSALS[name])
    assert (done.returncode, done.stdout) == (2, "")
    compare(name, done.stderr)


def test_every_golden_file_is_compared() -> None:
    assert {file.stem for file in HERE.glob("*.txt")} == SCREENS.keys() | REFUSALS.keys()
