"""What a person sees, kept word for word in the ``.txt`` files beside this one.

After a change that is meant to be seen, write them anew and read the difference before it is committed:

    UPDATE_GOLDEN=1 python -m pytest tests/golden && git diff tests/golden

The prices are those of ``offers.csv`` here, the day is 2026-11-15 and the terminal has 140 columns. Spaces at the end
of a line are dropped, since nobody sees them.
"""

import html
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokonomics.cli import commands
from tokonomics.errors import flag
from tokonomics.report.answer import Answer
from tokonomics.report.html import described
from tokonomics.report.terminal import give

MARKS = re.compile("[\u2063\u2064]")
Call = Callable[..., subprocess.CompletedProcess[str]]

HERE = Path(__file__).parent
OFFERS = f"--offers={HERE / 'offers.csv'}"
DEMO = (
    "plan",
    "llama-3.1-8b",
    "--rate",
    "5",
    "--input",
    "1000",
    "--output",
    "300",
    "--slo",
    "ttft_p99=0.5,tpot_p99=50ms",
    OFFERS,
)
LOADED = HERE.parents[1] / "benchmarks" / "data" / "h200_transformers.json"
STEPS = HERE.parents[1] / "benchmarks" / "data" / "h200_steps.json"
COST = ("cost", "--usd-per-hour", "2.21", "--gpus", "4", "--tokens-per-second", "2400")
SERVED = ("--model=llama-3.1-8b", "--gpu=H100", "--usd-per-hour=3")
CONVERSATIONS = ("--arrivals=poisson:3", "--requests=1500", "--input=400", "--output=150", "--sessions=5,think=5")
TENANTS = (
    "--arrivals=gamma:12,cv=2",
    "--duration=10m",
    "--input=800",
    "--output=200",
    "--slo=ttft_p99=0.3,tpot_p99=30ms",
)
LEVERS = ("--gpu=A100-80GB", "--rate=20", "--input=1000", "--output=300", "--slo=ttft_p99=1,tpot_p99=60ms", OFFERS)
FLEET = (
    "fleet",
    "llama-3.1-8b",
    "--demand=8x30,16x4",
    "--hours=24",
    "--input=lognormal:mean=900,p99=3000",
    "--output=300",
    "--slo=ttft_p99=2,tpot_p99=80ms",
    "--gap=0.02",
    OFFERS,
)
RESULTS = HERE.parent / "measure" / "results"
BREAKEVEN = (
    "breakeven",
    "--replica-tokens-per-second=2400",
    "--usd-per-hour=2.21",
    "--replica-gpus=4",
    "--max-utilization=0.7",
    "--api=openai:gpt-4o,openai:gpt-4o-mini",
    "--input=1000",
    "--output=1000",
)
BREAKEVEN_PLAN = ("breakeven", "llama-3.3-70b", "--api=openai:gpt-4o", "--input=1000", "--output=300", OFFERS)
OWN = ("cost", "--gpu=H100", "--gpus=8", "--purchase-usd=250000", "--years=4", "--usd-per-kwh=0.12",
       "--host-watts=4600")  # fmt: skip
COMPARE = ("plan", "--by-gpu", "llama-3.1-8b", "qwen2.5-32b", "--rate=20", "--input=1000", "--output=300")
CAPACITY = ("simulate", "--capacity", *SERVED, "--input=1000", "--output=300")

SCREENS: dict[str, tuple[str, ...]] = {
    "plan": DEMO,
    "plan-why": (*DEMO, "--why"),
    "plan-quick": (*DEMO, "--quick"),
    "plan-cases": (*DEMO, "--gpu=A100-80GB,GH200", "--rate=2:5:20"),
    "plan-models": (*DEMO[:2], "gpt-oss-20b", *DEMO[2:]),
    "diff": ("plan", "tests/golden/today.toml", "--against", "tests/golden/proposed.toml"),
    "fleet": (*FLEET, "--gpu=A100-80GB,L4"),
    "fleet-availability": (*FLEET, "--gpu=GH200", "--availability=0.999999", "--no-replay"),
    "fit": ("predict", "--fit", "llama-3.1-70b", "--gpu", "H100", "--tp", "4"),
    "fit-not": ("predict", "--fit", "llama-3.1-70b", "--gpu", "H100"),
    "predict": ("predict", "llama-3.1-8b", "--gpu", "H200", "--batch", "64", "--context", "1024"),
    "predict-moe": ("predict", "deepseek-v3", "--gpu", "H200", "--tp", "8", "--batch", "128", "--context", "4096"),
    "predict-scaled": ("predict", "llama-3.1-8b", "--gpu", "MI300X", "--batch", "64"),
    "curve": ("predict", "--curve", "llama-3.1-8b", "--gpu", "H100", "--context", "1024", "--usd-per-hour", "2.21"),
    "validate": ("calibrate", "--score", str(STEPS)),
    "calibrate": ("calibrate", str(LOADED), "--gpu=H200", "--engine=vllm"),
    "import": ("import", str(RESULTS / "inferencex.json"), "--usd-per-hour=2.5", "--slo=ttft_p50=0.5"),
    "import-bench": ("import", str(RESULTS / "bench.json"), "--usd-per-hour=0.05"),
    "cost-machine": ("cost", "--gpu", "H100", "--gpus", "9", "--tokens-per-second", "2400", OFFERS),
    "cost": (*COST, "--utilization", "0.7"),
    "cost-load": (*COST, "--load", "8x0.99,16x0", "--load", "24x0.7"),
    "cost-target": (*COST, "--utilization", "0.7", "--target", "0.50"),
    "models-llama-3": ("models", "llama-3"),
    "gpus-hopper": ("gpus", "--architecture", "hopper"),
    "offers": ("offers", OFFERS),
    "trace": ("trace", "azure-conv", "--machine-tokens-per-second", "8000", "--machine-usd-per-hour", "3"),
    "trace-shared": ("trace", "mooncake-conversation"),
    "simulate": ("simulate", *SERVED, "--trace=azure-conv", "--requests=3000", "--slo=ttft_p99=0.5,tpot_p99=50ms"),
    "simulate-broken": ("simulate", *SERVED, "--trace=azure-code", "--speed=9", "--timeout=5", "--slo=ttft_p99=0.5"),
    "simulate-fleet": (
        "simulate",
        *SERVED,
        *CONVERSATIONS,
        "--replicas=3",
        "--router=prefix-aware",
        "--outage=replica=1,at=60",
    ),
    "simulate-scaled": ("simulate", *SERVED, *CONVERSATIONS, "--autoscale=max=6,target=20,cold=30"),
    "capacity": (*CAPACITY, "--slo=ttft_p99=0.5,tpot_p99=50ms"),
    "capacity-log": (
        "simulate",
        "--capacity",
        *SERVED,
        "--trace=azure-conv",
        "--requests=3000",
        "--speed=9",
        "--slo=tpot_p99=20ms",
    ),
    "cache": ("cache", *SERVED, "--trace=mooncake-conversation", "--requests=2000", "--tiers=dram=200@0,ssd=2000"),
    "tenants": ("tenants", *SERVED, *TENANTS, "--tenants=3,skew=1", "--lora-rank=16", "--lora-adapters=50"),
    "tenants-many": ("tenants", *SERVED, *TENANTS, "--tenants=15,skew=1"),
    "breakeven": (*BREAKEVEN, "--engineers=1", "--engineer-usd-per-month=16667", "--overhead=network=5%"),
    "breakeven-plan": (*BREAKEVEN_PLAN, "--quick", "--batch-api", "--tokens-per-month=2B"),
    "breakeven-hosts": ("breakeven", "llama-3.3-70b", "--input=1000", "--output=300", OFFERS, "--quick"),
    "can-run": ("can-run", "--gpu=RTX3090", "--gpus=2"),
    "can-run-priced": (
        "can-run",
        "llama-3.1-8b",
        "qwen3-32b",
        "gpt-oss-120b",
        "--gpu=RTX3090",
        "--gpus=2",
        "--usd-per-kwh=0.3",
        "--host-watts=150",
        "--purchase-usd=2500",
        "--years=3",
    ),
    "own-hardware": (*OWN, "--cost-of-capital=0.08", "--residual=0.1", OFFERS),
    "compare": (*COMPARE, "--quality=llama-3.1-8b=0.66,qwen2.5-32b=0.8", OFFERS),
    "levers": ("levers", "llama-3.1-8b", *LEVERS, "--utilization", "--without=speculation,hardware"),
    "stack": ("levers", "--from-scratch", "llama-3.1-8b", *LEVERS, "--without=speculation,hardware"),
    "trace-messy": ("trace", "tests/golden/messy.csv", "--columns", "arrival=when,input=asked,output=said,tenant=who"),
}

REFUSALS: dict[str, tuple[str, ...]] = {
    "error-no-tenants": ("tenants", *SERVED, "--trace=azure-conv", "--requests=300"),
    "error-breakeven-api": (*BREAKEVEN_PLAN, "--quick", "--api=openai:gpt-4oo"),
    "error-breakeven-cached": (
        *BREAKEVEN_PLAN[:2],
        "--api=groq:llama-3.3-70b-versatile",
        "--input=9",
        "--output=9",
        "--cached-share=0.5",
    ),
    "error-breakeven-engineers": (*BREAKEVEN, "--engineers=1"),
    "error-breakeven-no-host": ("breakeven", "qwen3-4b", "--input=9", "--output=9", OFFERS, "--quick"),
    "error-can-run-purchase": ("can-run", "--gpu=RTX3090", "--purchase-usd=2500"),
    "error-own-hardware": (*OWN, "--pue=0.9"),
    "error-compare-quality": (*COMPARE, "--quality=lama=1", OFFERS),
    "error-fleet-slo": (*FLEET, "--slo=ttft_p99=1ms"),
    "error-fleet-demand": (*FLEET, "--demand=12by20"),
    "error-without": ("levers", "llama-3.1-8b", *LEVERS, "--without=hardwear"),
    "error-naive": ("levers", "--from-scratch", "llama-3.1-8b", *LEVERS, "--slo=ttft_p99=1ms"),
    "error-tp": ("predict", "--fit", "llama-3.1-8b", "--gpu", "H100", "--tp", "3"),
    "error-model": ("predict", "--fit", "lama-3.1-70b", "--gpu", "H100"),
    "error-batch": ("predict", "llama-3.1-8b", "--gpu", "H200", "--batch", "6400"),
    "error-does-not-fit": ("predict", "llama-3.1-70b", "--gpu", "H100"),
    "error-engine": ("predict", "--fit", "llama-3.1-8b", "--gpu", "V100"),
    "error-no-offer": (*DEMO, "--gpu", "T4", "--provider", "aws"),
    "error-gpu": ("predict", "--fit", "llama-3.1-8b", "--gpu", "H1000"),
    "error-slo": (*CAPACITY, "--slo=ttft_p42=0.5"),
    "error-never-holds": (*CAPACITY, "--slo=ttft_p99=1ms"),
    "error-router": ("simulate", *SERVED, "--trace=azure-conv", "--router=round-robbin"),
    "error-outage": ("simulate", *SERVED, "--trace=azure-conv", "--outage=replica=0"),
    "error-no-traffic": ("simulate", *SERVED),
    "error-calibrate": ("calibrate", str(LOADED.with_stem("h200_transformers_cold")), "--gpu=H200", "--engine=vllm"),
    "error-profile": ("predict", "llama-3.1-8b", "--gpu=H200", "--profile=nowhere.json"),
    "error-bench": ("bench", "localhost:8000", "--concurrency=4"),
    "error-bench-loads": ("bench", "http://localhost:8000", "--concurrency=4", "--rate=2"),
    "error-arrivals": ("trace", "--arrivals", "poison:2", "--requests", "9", "--input", "512", "--output", "64"),
}

DOCUMENTS: dict[str, tuple[str, ...]] = {
    "simulate-json": ("simulate", *SERVED, "--arrivals=burst:40", "--input=700", "--output=90", "--slo=ttft=0.5"),
}
CLOCKS = {"wall_s", "simulated_requests_per_s"}
"""What no two runs have in common."""
SOLVED = re.compile(r"Solved in [0-9.]+ s")


def compare(name: str, text: str) -> None:
    """The text is what the file holds; with UPDATE_GOLDEN=1 the file takes the text."""
    file = HERE / f"{name}.txt"
    text = SOLVED.sub("Solved in … s", text)
    seen = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        file.write_text(seen, encoding="utf-8")
    assert file.is_file(), f"{file.name} is missing: write it with UPDATE_GOLDEN=1"
    assert seen == file.read_text(encoding="utf-8"), f"{file.name} differs: see this file's head"


LONGEST = set() if os.environ.get("UPDATE_GOLDEN") == "1" else {"calibrate"}
"""More than a quarter of a minute, for a view that docs/calibrate.md shows too: compared in ``make explore``."""


@pytest.mark.parametrize(
    "name", [pytest.param(screen, marks=[pytest.mark.explore] * (screen in LONGEST)) for screen in SCREENS]
)
def test_a_screen_is_as_it_was(tokonomics: Call, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    answers: list[Answer] = []

    def given(answer: Answer, *rest: Any, **shown: Any) -> int:
        answers.append(answer)
        return give(answer, *rest, **shown)

    monkeypatch.setattr(commands, "give", given)
    monkeypatch.chdir(HERE.parents[1])  # a screen may repeat the name of a file
    done = tokonomics(*SCREENS[name])
    assert (done.returncode, done.stderr) == (0, "")
    compare(name, done.stdout)
    every_door_shows_the_same(answers[0])


FIGURE = re.compile(r"\d+(?:[.,]\d+)*")


def every_door_shows_the_same(answer: Answer) -> None:
    """The terminal, HTML and Markdown carry the same figures, and no mark of an input that a door did not spell."""
    shown = [section for section in answer.sections() if section.printed or not section.folded]
    page = re.sub(r"<style>.*?</style>|<[^>]*>", " ", described(shown, flag), flags=re.DOTALL)
    texts = answer.text(), html.unescape(page), answer.markdown()
    assert not any(MARKS.search(text) for text in texts)
    terminal, web, pull_request = (set(FIGURE.findall(text)) for text in texts)
    assert terminal == web == pull_request


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_as_it_was(tokonomics: Call, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("HOME", "/home/someone")  # the message says where the user's own catalogue would be
    done = tokonomics(*REFUSALS[name])
    assert (done.returncode, done.stdout) == (2, "")
    compare(name, done.stderr)


def settled(value: Any) -> Any:
    """A document without clocks, its numbers to six digits, its timeline as its first bin."""
    if isinstance(value, dict):
        kept = {key: each[:1] if key == "timeline" else each for key, each in value.items() if key not in CLOCKS}
        return {key: settled(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [settled(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_as_it_was(tokonomics: Call, name: str) -> None:
    done = tokonomics(*DOCUMENTS[name], "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document.keys() >= CLOCKS
    compare(name, json.dumps(settled(document), indent=1, ensure_ascii=False))


def test_every_golden_file_is_compared() -> None:
    assert {file.stem for file in HERE.glob("*.txt")} == SCREENS.keys() | REFUSALS.keys() | DOCUMENTS.keys()
