"""The same question has the same answer: every function against the command line's ``--json``."""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import tokonomics as tk
from tokonomics.errors import BadInput, DoesNotFit, TokonomicsError, UnknownName
from tokonomics.questions.result import Result

Cli = Callable[..., subprocess.CompletedProcess[str]]
SHAPE = ("--input", "1000", "--output", "300")
QUESTIONS: dict[str, tuple[Callable[[], Result], tuple[str, ...]]] = {
    "fit": (
        lambda: tk.fit("llama-3.1-70b", gpu="H100", tp=4, kv="fp8", context=8192),
        ("fit", "llama-3.1-70b", "--gpu", "H100", "--tp", "4", "--kv", "fp8", "--context", "8192"),
    ),
    "does not fit": (
        lambda: tk.fit("llama-3.1-70b", gpu="T4"),
        ("fit", "llama-3.1-70b", "--gpu", "T4"),
    ),
    "predict": (
        lambda: tk.predict("qwen3-30b-a3b", gpu="H200", batch=np.int64(64), weights="fp8"),  # type: ignore[arg-type]
        ("predict", "qwen3-30b-a3b", "--gpu", "H200", "--batch", "64", "--weights", "fp8"),
    ),
    "curve": (
        lambda: tk.curve("llama-2-7b", gpu="H100", usd_per_hour=0.1 + 0.2),
        ("curve", "llama-2-7b", "--gpu", "H100", "--usd-per-hour", "0.30000000000000004"),
    ),
    "curve at a provider's price": (
        lambda: tk.curve("llama-2-7b", gpu="H100", provider=["lambda"], discount="lambda=0.5"),
        ("curve", "llama-2-7b", "--gpu", "H100", "--provider", "lambda", "--discount", "lambda=0.5"),
    ),
    "trace": (
        lambda: tk.trace("azure-code", start=60, end="10m", speed=2),
        ("trace", "azure-code", "--from", "60", "--to", "10m", "--speed", "2"),
    ),
    "trace made up": (
        lambda: tk.trace(arrivals="gamma:2,cv=3", requests=500, input="lognormal:mean=800,p99=6000", output=99),
        ("trace", "--arrivals", "gamma:2,cv=3", "--requests", "500", "--input", "lognormal:mean=800,p99=6000",
         "--output", "99"),
    ),
    "trace of a month's tokens": (
        lambda: tk.trace(tokens_per_month="2B", requests=500, input=800, output=99),
        ("trace", "--tokens-per-month", "2B", "--requests", "500", "--input", "800", "--output", "99"),
    ),
    "simulate": (
        lambda: tk.simulate(
            "llama-3.1-8b", gpu="H100", trace="azure-conv", requests=2000, replicas=2, no_prefix_cache=True,
            slo={"ttft_p99": 0.5, "tpot_p99": "50ms"}, outage=["replica=0,at=60,for=30", "replica=1,at=200"],
        ),
        ("simulate", "llama-3.1-8b", "--gpu", "H100", "--trace", "azure-conv", "--requests", "2000", "--replicas", "2",
         "--no-prefix-cache", "--slo", "ttft_p99=0.5,tpot_p99=50ms", "--outage", "replica=0,at=60,for=30", "--outage",
         "replica=1,at=200"),
    ),
    "simulate autoscaled": (
        lambda: tk.simulate("llama-3.1-8b", gpu="L4", arrivals="poisson:3", requests=900, input=500, output=99,
                            autoscale={"max": 4, "target": 9, "cold": 9}, timeout=60, usd_per_hour=0.8),
        ("simulate", "llama-3.1-8b", "--gpu", "L4", "--arrivals", "poisson:3", "--requests", "900", "--input", "500",
         "--output", "99", "--autoscale", "max=4,target=9,cold=9", "--timeout", "60", "--usd-per-hour", "0.8"),
    ),
    "simulate at a rate and a discount": (
        lambda: tk.simulate("llama-3.1-8b", gpu="H100", rate=5, requests=500, input=500, output=100, provider="lambda",
                            discount={"lambda": 0.2}),
        ("simulate", "llama-3.1-8b", "--gpu", "H100", "--rate", "5", "--requests", "500", "--input", "500", "--output",
         "100", "--provider", "lambda", "--discount", "lambda=0.2"),
    ),
    "capacity": (
        lambda: tk.capacity("llama-3.1-8b", gpu="H100", trace="azure-code", slo="ttft_p99=2", requests=2000),
        ("capacity", "llama-3.1-8b", "--gpu", "H100", "--trace", "azure-code", "--slo", "ttft_p99=2", "--requests",
         "2000"),
    ),
    "plan": (
        lambda: tk.plan("llama-3.1-8b", rate=2, input=1000, output=100, gpu=["L4"], provider=["aws", "gcp"],
                        discount={"aws": 0.2}, slo={"ttft_p99": 1}, kv="bf16"),
        ("plan", "llama-3.1-8b", "--rate", "2", "--input", "1000", "--output", "100", "--gpu", "L4", "--provider",
         "aws,gcp", "--discount", "aws=0.2", "--slo", "ttft_p99=1", "--kv", "bf16"),
    ),
    "plan of which nothing fits": (
        lambda: tk.plan("llama-3.1-70b", rate=5, input=1000, output=300, gpu="T4", gpus=1, quick=True),
        ("plan", "llama-3.1-70b", "--rate", "5", *SHAPE, "--gpu", "T4", "--gpus", "1", "--quick"),
    ),
    "breakeven": (
        lambda: tk.breakeven("llama-3.1-8b", api=["openai:gpt-4o-mini"], input=1000, output=300, gpu="L4", quick=True,
                             overhead={"monitoring": 500, "network": "8%"}, engineers=0.5,
                             engineer_usd_per_month="15k"),
        ("breakeven", "llama-3.1-8b", "--api", "openai:gpt-4o-mini", *SHAPE, "--gpu", "L4", "--quick", "--overhead",
         "monitoring=500", "--overhead", "network=8%", "--engineers", "0.5", "--engineer-usd-per-month", "15k"),
    ),
    "levers": (
        lambda: tk.levers("llama-3.1-8b", gpu="L4", usd_per_hour=0.8, rate=10, input=500, output=100,
                          slo="ttft_p99=1", without=["hardware", "speculation", "disaggregation"]),
        ("levers", "llama-3.1-8b", "--gpu", "L4", "--usd-per-hour", "0.8", "--rate", "10", "--input", "500", "--output",
         "100", "--slo", "ttft_p99=1", "--without", "hardware,speculation,disaggregation"),
    ),
    "fleet": (
        lambda: tk.fleet("llama-3.1-8b", demand="12x3,12x1", input=1000, output=100, slo="ttft_p99=1", provider="aws",
                         region="us-east-1", gpu="L40S", weights="bf16", terms=["on_demand", "spot"],
                         size_classes=[4000], hours=24, no_replay=True),
        ("fleet", "llama-3.1-8b", "--demand", "12x3,12x1", "--input", "1000", "--output", "100", "--slo", "ttft_p99=1",
         "--provider", "aws", "--region", "us-east-1", "--gpu", "L40S", "--weights", "bf16",
         "--terms", "on_demand,spot", "--size-classes", "4000", "--hours", "24", "--no-replay"),
    ),
}  # fmt: skip
TIMED = {"wall_s", "simulated_requests_per_s", "solve_s"}
"""How long our own work took: no two runs agree."""


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: untimed(each) for name, each in value.items() if name not in TIMED}
    return [untimed(each) for each in value] if isinstance(value, list) else value


SLOW = {"fleet", "plan", "breakeven"}


@pytest.mark.parametrize(
    "question", [pytest.param(each, marks=[pytest.mark.slow] if each in SLOW else []) for each in QUESTIONS]
)
def test_a_function_gives_the_figures_that_the_verb_prints(question: str, tokonomics: Cli) -> None:
    ask, words = QUESTIONS[question]
    printed = tokonomics(*words, "--json")
    assert printed.stdout, printed.stderr
    made = ask()
    assert untimed(json.loads(made.to_json())) == untimed(json.loads(printed.stdout))


@pytest.mark.parametrize("question", [each for each in QUESTIONS if each not in SLOW])
def test_a_result_knows_the_command_that_gives_its_figures(question: str, tokonomics: Cli) -> None:
    made = QUESTIONS[question][0]()
    printed = tokonomics(*shlex.split(made.command)[1:], "--json")
    assert untimed(json.loads(made.to_json())) == untimed(json.loads(printed.stdout)), made.command


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: tk.models("qwen3", moe=True), ("models", "qwen3", "--moe")),
        (lambda: tk.models("qwen3", moe=False), ("models", "qwen3", "--dense")),
        (lambda: tk.gpus(min_memory=80, architecture="hopper"),
         ("gpus", "--min-memory", "80", "--architecture", "hopper")),
        (lambda: tk.offers(gpu=["L4", "T4"], terms="spot"), ("offers", "--gpu", "L4,T4", "--terms", "spot")),
    ],
)  # fmt: skip
def test_the_catalogue_is_what_the_verbs_list(
    made: Callable[[], pl.DataFrame], words: tuple[str, ...], tokonomics: Cli
) -> None:
    listed = json.loads(tokonomics(*words, "--json").stdout)
    frame = made()
    assert 0 < len(listed) == len(frame)
    for row, theirs in zip(frame.to_dicts(), listed, strict=True):
        for name, value in theirs.items():
            if isinstance(value, dict):
                assert {key: row[f"{name}_{key}"] for key in value} == value
            elif value != [] and name in row:
                assert str(row[name]) == str(value)


def test_a_trace_keeps_its_shared_prefixes_on_the_way_in() -> None:
    trace = tk.read_trace("mooncake-conversation", requests=400)
    asked = tk.simulate("llama-3.1-8b", gpu="H100", trace="mooncake-conversation", requests=400)
    given = tk.simulate("llama-3.1-8b", gpu="H100", trace=trace)
    assert asked.cached_tokens > 0
    assert given.cached_tokens == asked.cached_tokens
    assert given.ttft_s == asked.ttft_s


def test_read_trace_gives_the_requests_that_the_log_holds() -> None:
    trace = tk.read_trace("azure-conv", speed=4)
    assert repr(trace) == "<Trace azure-conv (shipped sample): 19,366 requests over 14.6 min, 22.1 a second>"
    frame = trace.to_frame()
    assert frame.columns[:3] == ["arrival_s", "input_tokens", "output_tokens"]
    assert frame["input_tokens"].sum() == tk.trace("azure-conv").input.total
    twice = tk.read_trace(pl.concat([frame, frame]))
    assert len(twice) == 2 * len(trace)


def test_own_prices_may_be_a_frame(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"provider": ["mine"], "region": ["here"], "instance": ["box"], "gpu": ["L4"], "gpus": [1],
         "usd_per_hour": [0.01], "date": ["2026-11-01"], "source": ["a contract"]}
    )  # fmt: skip
    frame.write_csv(tmp_path / "mine.csv")
    asked = {"rate": 1, "input": 500, "output": 50, "quick": True}
    made = tk.plan("llama-3.1-8b", offers=frame, **asked)  # type: ignore[arg-type]
    assert made.best is not None
    assert made.best.provider == "mine"
    assert made.to_json() == tk.plan("llama-3.1-8b", offers=tmp_path / "mine.csv", **asked).to_json()  # type: ignore[arg-type]
    assert tk.offers(offers=frame)["usd_per_hour"].to_list() == [0.01]
    assert made.command.endswith("--offers offers.csv --quick")


def test_a_scenario_file_is_a_plan_too(tmp_path: Path) -> None:
    file = tmp_path / "today.toml"
    file.write_text('model = "llama-3.1-8b"\nrate = 3\ninput = 500\noutput = 50\ngpu = ["L4"]\nquick = true\n')
    said = tk.plan("llama-3.1-8b", rate=3, input=500, output=50, gpu="L4", quick=True)
    assert tk.plan(file) == said
    assert tk.plan(file, rate=300) != said


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (lambda: tk.plan("llama-3.1-8b", rate=-5, input=9, output=9), BadInput, "rate: must be a number above 0"),
        (lambda: tk.plan("llama-3.1-8b"), BadInput, "Say rate=5 input=1000 output=300"),
        (lambda: tk.plan("llama-3.1-8b", rate="2:5:20", input=9), BadInput, "rate, input: a range of demand"),
        (lambda: tk.plan("llama-3.1-8b,qwen3-8b", rate=2), BadInput, "model: several models"),
        (lambda: tk.plan("nowhere.toml"), BadInput, "nowhere.toml: cannot be read"),
        (lambda: tk.fit("lama-3.1-8b", gpu="H100"), UnknownName, "Did you mean llama-3.1-8b"),
        (lambda: tk.fit("-h", gpu="H100"), UnknownName, "unknown model '-h'"),
        (lambda: tk.fit("llama-3.1-8b", gpu="H100", weights="fp9"), TokonomicsError, "weights: "),
        (lambda: tk.predict("llama-3.1-8b", gpu="T4"), DoesNotFit, "needs 2 GPUs"),
        (lambda: tk.simulate("llama-3.1-8b", gpu="H100", trace="azure-conv", replicas=0), BadInput, "^replicas: "),
        (lambda: tk.fit("llama-3.1-8b", gpu="H100", tp=2.5), BadInput, "^tp: "),  # type: ignore[arg-type]
        (lambda: tk.simulate("llama-3.1-8b", gpu="H100", trace=[1]), BadInput, "trace: a list is no table"),  # type: ignore[arg-type]
        (lambda: tk.simulate("llama-3.1-8b", gpu="H100", trace={"a": [1]}), BadInput, "^trace.parquet: not a log"),
        (lambda: tk.read_trace("azure-conv", end="soon"), BadInput, "^end: 'soon' is not a time"),
        (lambda: tk.read_trace(), BadInput, "rate=2 input=512 output=512"),
        (lambda: tk.breakeven("llama-3.1-8b", api="opnai:gpt-4o", input=9, output=1), UnknownName, "mean openai"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_the_words_of_python(
    ask: Callable[[], object], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        ask()
    assert "--" not in str(caught.value).replace("vLLM bench --save-detailed", "")  # a flag of vLLM's
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_hosting_that_is_impossible_is_an_error_with_its_reason() -> None:
    with pytest.raises(BadInput, match="Nothing hosts Llama") as caught:
        tk.breakeven("llama-3.1-8b", api="openai:gpt-4o", input=500, output=50, slo="ttft_p99=0.0005", gpu="L4")
    assert 'slo="ttft_p99=0.0005"' in str(caught.value)
