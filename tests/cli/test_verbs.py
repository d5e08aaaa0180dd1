"""Each verb as a user calls it: what it answers, on which stream, with which exit code."""

import csv
import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from tests.explore import some
from typer.testing import CliRunner

import tokonomics as package
from tokonomics.__main__ import app
from tokonomics.cli.main import ACTIONS
from tokonomics.questions.verbs import QUESTIONS, VERBS, find_verb

Call = Callable[..., subprocess.CompletedProcess[str]]

OFFERS = Path(__file__).parents[1] / "golden" / "offers.csv"
STEPS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_steps.json"
TRAFFIC = ["--rate", "5", "--input", "1000", "--output", "300"]
PLAN = ["plan", "llama-3.1-8b", *TRAFFIC, "--offers", str(OFFERS), "--kv", "bf16", "--quick"]
FIT = ["predict", "--fit", "llama-3.1-70b", "--gpu", "H100", "--tp", "4"]
COST = ["cost", "--usd-per-hour", "2.21", "--gpus", "4", "--tokens-per-second", "2400", "--utilization", "0.7"]
PREDICT = ["predict", "llama-3.1-70b", "--gpu", "H100", "--tp", "4", "--batch", "32", "--context", "2048"]
CURVE = ["predict", "--curve", "llama-3.1-8b", "--gpu", "H100", "--context", "1024", "--usd-per-hour", "2.21"]
SERVED = ["--model", "llama-3.1-8b", "--gpu", "H100", "--input", "500", "--output", "50", "--slo", "ttft_p99=0.5"]
CACHED = ["--model", "llama-3.1-8b", "--gpu", "H100", "--trace", "mooncake-conversation", "--requests", "300"]
BREAKEVEN = ["llama-3.1-8b", "--api", "openai:gpt-4o-mini", *TRAFFIC[2:], "--offers", str(OFFERS), "--quick"]
OWNED = ["--gpu", "H100", "--purchase-usd", "30000", "--years", "4", "--usd-per-kwh", "0.1", "--host-watts", "500"]
LEVERS = ["--gpu", "A100-80GB", *TRAFFIC, "--slo", "ttft_p99=1", "--offers", str(OFFERS)]
LITTLE = ["--rate", "2", "--input", "const:200", "--output", "const:9"]
ROUTED = ["llama-3.2-1b", "--api", "openai:gpt-4o-mini", *LITTLE, "--gpu", "L4", "--offers", str(OFFERS)]
OFFLINE = {
    "plan": PLAN,
    "fit": FIT,
    "predict": PREDICT,
    "curve": CURVE,
    "validate": ["calibrate", "--score", str(STEPS)],
    "cost": COST,
    "trace": ["trace", "azure-code"],
    "simulate": ["simulate", *SERVED, "--arrivals", "poisson:9", "--requests", "300"],
    "capacity": ["simulate", "--capacity", *SERVED, "--requests", "300"],
    "cache": ["cache", *CACHED, "--tiers", "dram=200"],
    "tenants": ["tenants", *SERVED, "--arrivals", "poisson:9", "--requests", "600", "--tenants", "3"],
    "breakeven": ["breakeven", *BREAKEVEN],
    "own-hardware": ["cost", *OWNED],
    "can-run": ["can-run", "llama-3.1-8b", *OWNED],
    "compare": ["plan", "--by-gpu", "llama-3.1-8b", *TRAFFIC, "--gpu", "H100,L4", "--offers", str(OFFERS)],
    "levers": ["levers", "llama-3.1-8b", *LEVERS, "--without", "hardware,disaggregation"],
    "stack": ["levers", "--from-scratch", "llama-3.1-8b", *LEVERS, "--without", "hardware,disaggregation"],
    "route": ["route", *ROUTED, "--slo", "ttft_p99=1"],
    "models": ["models", "llama-3"],
    "gpus": ["gpus", "--architecture", "hopper"],
    "offers": ["offers", "--offers", str(OFFERS)],
    "apis": ["apis", "gpt-4o", "--host", "openai"],
}

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def answer(*args: str | Path, aside: str = "") -> str:
    """What the verb prints when all is well; beside it, on standard error, only what is expected there."""
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exception is None, done.exception
    assert done.exit_code == 0
    assert done.stderr == aside
    return done.stdout


def answer_json(*args: str | Path) -> Any:
    return json.loads(answer(*args, "--json"))


def offered() -> list[dict[str, str]]:
    with OFFERS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --- cost -----------------------------------------------------------------------------------------------------------


def test_cost_solves_the_equation() -> None:
    cost = answer_json(*COST)
    tokens_per_hour = 2400 * 0.7 * 3600
    assert cost["usd_per_mtok"] == pytest.approx(1.4616, abs=5e-5)
    assert cost["usd_per_mtok"] == pytest.approx(2.21 * 4 / tokens_per_hour * 1e6)
    assert cost["usd_per_token"] == pytest.approx(2.21 * 4 / tokens_per_hour)
    assert cost["tokens_per_usd"] == pytest.approx(tokens_per_hour / (2.21 * 4))
    assert cost["usd_per_month"] == pytest.approx(2.21 * 4 * 730)
    assert cost["tokens_per_month"] == pytest.approx(tokens_per_hour * 730)


@pytest.mark.parametrize(
    ("load", "gpus"),
    [("8x0.99,16x0", 4), ("24x0.7", 3), ("24x0.75", 3), ("24x0.76", 4), ("1x0.01", 1), ("1x0.5,1x1", 4)],
)
def test_cost_of_a_load_on_the_gpus_that_its_peak_needs(load: str, gpus: int) -> None:
    (priced,) = answer_json(*COST[:-2], "--load", load)["loads"]
    assert priced["gpus_for_peak"] == gpus
    assert priced["usd_per_mtok_for_peak"] == pytest.approx(priced["usd_per_mtok"] * gpus / 4)


def test_cost_takes_the_price_of_a_named_gpu_from_the_offers() -> None:
    cost = answer_json("cost", "--gpu", "H100", "--tokens-per-second", "2400", "--offers", OFFERS)
    assert cost["price"]["provider"] == "runpod"  # older than 90 days, and said to be
    assert cost["price"]["stale"] is True
    assert (cost["price"]["instance"], cost["price"]["instances"]) == ("2x_H100", 1)
    assert cost["price"]["instance_usd_per_hour"] == 5.98
    assert cost["price"]["unused_gpus"] == 1
    assert cost["usd_per_hour"] == pytest.approx(5.98)  # the whole machine, though one GPU of it is used
    assert cost["usd_per_mtok"] == pytest.approx(5.98 / (2400 * 3600) * 1e6)
    assert "1 of 2 GPUs unused" in answer("cost", "--gpu", "H100", "--tokens-per-second", "2400", "--offers", OFFERS)


@pytest.mark.parametrize(
    ("gpu", "gpus", "instance", "instances", "usd_per_hour"),
    [
        ("H100", 8, "2x_H100", 4, 4 * 5.98),
        ("H100", 9, "2x_H100", 5, 5 * 5.98),
        ("L4", 3, "g6.xlarge", 3, 3 * 0.8048),
        ("L4", 24, "g6.xlarge", 24, 24 * 0.8048),
        ("T4", 1, "NC4as_T4_v3", 1, 0.526),
        ("GH200", 2, "gpu_1x_gh200", 2, 2.98),
    ],
)
def test_cost_of_named_gpus_is_that_of_whole_machines(
    gpu: str, gpus: int, instance: str, instances: int, usd_per_hour: float
) -> None:
    cost = answer_json("cost", "--gpu", gpu, "--gpus", str(gpus), "--tokens-per-second", "100", "--offers", OFFERS)
    price = cost["price"]
    assert (price["instance"], price["instances"]) == (instance, instances)
    (row,) = [row for row in offered() if row["instance"] == instance]
    assert price["unused_gpus"] == instances * int(row["gpus"]) - gpus
    assert cost["usd_per_hour"] == pytest.approx(usd_per_hour)
    assert cost["usd_per_hour"] == pytest.approx(instances * price["instance_usd_per_hour"])
    assert price["stale"] is (gpu in ("GH200", "H100"))


# --- fit ------------------------------------------------------------------------------------------------------------


def test_fit_counts_weights_and_cache_of_llama_70b() -> None:
    fit = answer_json(*FIT)
    hidden, layers, heads_kv, head_dim, width, vocab = 8192, 80, 8, 128, 28672, 128256
    attention = 2 * hidden * hidden + 2 * hidden * heads_kv * head_dim
    parameters = 2 * vocab * hidden + layers * (attention + 3 * hidden * width + 2 * hidden) + hidden
    assert fit["weight_bytes"] == parameters * 2
    assert fit["kv_bytes_per_token"] == 2 * layers * heads_kv * head_dim * 2
    assert fit["fits"] is True


def test_fit_needs_two_h100_for_a_70b_and_says_so() -> None:
    alone = answer_json("predict", "--fit", "llama-3.1-70b", "--gpu", "H100")
    assert alone["fits"] is False
    assert alone["max_sequences"] == 0
    assert alone["min_gpus"] == 2
    assert "does not fit" in answer("predict", "--fit", "llama-3.1-70b", "--gpu", "H100")


def test_fit_shows_the_checkpoints_kv_cache_and_says_where_a_gpu_cannot_keep_it(tmp_path: Path) -> None:
    quantised = {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
        "quantization_config": quantised,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    element = 2 * 32 * 8 * 128
    note = f"note: {path}: its KV cache is for NVFP4; counted in FP8, the fewest bits that engines here keep\n"
    on_b200, on_v100 = (answer("predict", "--fit", path, "--gpu", gpu, aside=note) for gpu in ("B200", "V100-32GB"))
    assert f"{element:,} B  the whole model in fp8, the checkpoint's own" in on_b200
    assert "keeps no KV cache" not in on_b200
    assert f"{2 * element:,} B  the whole model in bf16" in on_v100
    assert "llama.cpp reads nvfp4 checkpoints as int4" in on_v100
    assert "llama.cpp keeps no KV cache in fp8 on V100-32GB" in on_v100


# --- predict --------------------------------------------------------------------------------------------------------


def test_predict_says_how_fast_within_an_interval() -> None:
    made = answer_json(*PREDICT)
    for name in ("decode_step_s", "prefill_s", "ttft_s", "tokens_per_s"):
        assert 0 < made[name]["low"] < made[name]["mid"] < made[name]["high"]
    assert made["tokens_per_s"]["mid"] == pytest.approx(32 / made["decode_step_s"]["mid"])
    # A client waits for more than the step: the way in, the next step's launch, and the way out.
    assert made["ttft_s"]["mid"] > made["prefill_s"]["mid"] + 0.005
    assert (made["gpu"], made["gpus"], made["tp"], made["weights"], made["engine"]) == (
        "H100-SXM",
        4,
        4,
        "bf16",
        "vllm",
    )
    assert (made["batch"], made["context"]) == (32, 2048)


def test_predict_knows_the_batch_that_fits() -> None:
    assert answer_json(*PREDICT)["max_sequences"] == answer_json(*FIT, "--context", "2048")["max_sequences"]


@pytest.mark.parametrize(
    ("gpu", "speed", "words"),
    [("H200", "timed", "timed on this GPU"), ("MI300X", "assumed", "an extrapolation")],
)
def test_predict_says_where_its_kernels_were_timed(gpu: str, speed: str, words: str) -> None:
    args = ("predict", "llama-3.1-8b", "--gpu", gpu)
    assert answer_json(*args)["speed"] == speed
    assert words in answer(*args)


# --- curve ----------------------------------------------------------------------------------------------------------


CURVES = [
    ["llama-3.1-8b", "--gpu", "H100"],
    ["llama-3.1-8b", "--gpu", "T4", "--weights", "int4", "--context", "512"],
    ["llama-3.1-70b", "--gpu", "MI300X", "--tp", "2", "--context", "4096"],
    ["qwen3-30b-a3b", "--gpu", "L40S", "--weights", "fp8"],
    ["gpt-oss-120b", "--gpu", "H200", "--engine", "sglang"],
    ["deepseek-v3", "--gpu", "H200", "--tp", "8", "--ep", "8", "--context", "4096"],
    ["llama-2-7b", "--gpu", "A100-80GB", "--context", "4096", "--kv", "fp8"],
]


@pytest.mark.parametrize("args", CURVES, ids=lambda args: " ".join(args[:3]))
def test_curve_runs_from_one_to_the_kv_limit(args: list[str]) -> None:
    curve = answer_json("predict", "--curve", *args, "--usd-per-hour", "2")
    batches = [point["batch"] for point in curve["points"]]
    assert batches[0] == 1
    assert batches[-1] == curve["max_sequences"]
    assert all(one < next <= 2 * one for one, next in pairwise(batches))
    context = args[args.index("--context") + 1] if "--context" in args else "1024"
    fit = [arg for arg in args if arg != "--ep"]
    if "--ep" in args:
        fit.pop(args.index("--ep"))
    assert curve["max_sequences"] == answer_json("predict", "--fit", *fit, "--context", context)["max_sequences"]


@pytest.mark.parametrize("args", CURVES, ids=lambda args: " ".join(args[:3]))
def test_curve_gains_tokens_and_loses_time_with_the_batch(args: list[str]) -> None:
    curve = answer_json("predict", "--curve", *args, "--usd-per-hour", "2")
    points, gpus = curve["points"], curve["usd_per_hour"] / 2
    for one, next in pairwise(points):
        assert next["tpot_s"] >= one["tpot_s"]
        assert next["tokens_per_s"] >= one["tokens_per_s"]
        assert next["share_of_linear"] <= one["share_of_linear"]
        assert next["usd_per_mtok"] <= one["usd_per_mtok"]
    for point in points:
        assert point["tokens_per_s"] == pytest.approx(point["batch"] / point["tpot_s"])
        linear = point["batch"] * points[0]["tokens_per_s"]
        assert point["share_of_linear"] == pytest.approx(point["tokens_per_s"] / linear)
        assert point["usd_per_mtok"] == pytest.approx(2 * gpus / (point["tokens_per_s"] * 3600) * 1e6)


def test_curve_and_predict_agree() -> None:
    for point in answer_json(*CURVE)["points"][::3]:
        made = answer_json("predict", *CURVE[2:7], "--batch", str(point["batch"]))
        assert point["tpot_s"] == pytest.approx(made["decode_step_s"]["mid"])
        assert point["tokens_per_s"] == pytest.approx(made["tokens_per_s"]["mid"])


@pytest.fixture
def _prices_as_refreshed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "offers.csv").write_bytes(OFFERS.read_bytes())
    monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path))


@pytest.mark.usefixtures("_prices_as_refreshed")
def test_curve_takes_the_price_of_the_cheapest_offer() -> None:
    curve = answer_json("predict", "--curve", "llama-3.1-8b", "--gpu", "L4")
    assert curve["usd_per_hour"] == pytest.approx(0.8048)
    first = curve["points"][0]
    assert first["usd_per_mtok"] == pytest.approx(0.8048 * first["tpot_s"] / 3600 * 1e6)
    # Two GPUs that split every layer must sit in one machine: the only one with more than one has eight of them.
    split = answer_json("predict", "--curve", "llama-3.1-8b", "--gpu", "L4", "--tp", "2")
    assert split["usd_per_hour"] == pytest.approx(13.35)


@pytest.mark.usefixtures("_prices_as_refreshed")
def test_curve_of_a_gpu_that_nobody_offers_has_no_price() -> None:
    args = ("predict", "--curve", "llama-3.1-8b", "--gpu", "L40S")
    curve = answer_json(*args)
    assert curve["usd_per_hour"] is None
    assert {point["usd_per_mtok"] for point in curve["points"]} == {None}
    assert "$" not in answer(*args)


# --- validate -------------------------------------------------------------------------------------------------------


TABLE = (
    "id,model,gpu,num_gpus,tp,engine,input_len,output_len,batch_or_concurrency,mode,metric,value,split\n"
    "a,llama-3.1-8b,H100,1,1,vllm,1000,300,16,fixed_concurrency,tpot_ms,10,dev\n"
    "b,llama-3.1-8b,A100-80GB,1,1,vllm,1000,300,16,fixed_concurrency,tpot_ms,16,dev\n"
    "c,llama-3.1-8b,L40S,1,1,vllm,1000,300,16,fixed_concurrency,tpot_ms,30,dev\n"
    "d,llama-3.1-8b,H100,1,1,vllm,1000,300,16,fixed_concurrency,output_tok_s,1500,test\n"
    "e,llama-3.1-8b,H100,1,1,vllm,1000,300,16,fixed_concurrency,tpot_ms,none,dev\n"
    "f,nobody-1b,H100,1,1,vllm,1000,300,16,fixed_concurrency,tpot_ms,10,test\n"
)


@pytest.fixture(params=["results.csv", "results.csv.gz", "results"])
def results(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / str(request.param)
    file.write_bytes(gzip.compress(TABLE.encode()) if file.suffix == ".gz" else TABLE.encode())
    return file


def test_validate_reads_a_table_packed_or_not(results: Path) -> None:
    found = answer_json("calibrate", "--score", results)
    assert (found["rows"], found["predicted"], sum(found["not_predicted"].values())) == (6, 4, 2)
    assert {name: group["n"] for name, group in found["groups"]["gpu"].items()} == {
        "A100-80GB": 1,
        "H100-SXM": 2,
        "L40S": 1,
    }
    assert {name: group["n"] for name, group in found["groups"]["metric"].items()} == {"tpot_s": 3, "output_tok_s": 1}
    assert found["ranking"] == {"groups": 1, "pairs": 3, "spearman": 1.0}
    text = answer("calibrate", "--score", results)
    assert "not predicted (2 of 6)" in text
    assert "unknown model 'nobody-1b'" in text
    assert "Spearman 1.00 over 1 group" in text


def test_validate_of_a_split_counts_the_rows_of_that_split(results: Path) -> None:
    dev, test = (answer_json("calibrate", "--score", results, "--split", split) for split in ("dev", "test"))
    assert (test["rows"], test["predicted"]) == (2, 1)
    assert (dev["rows"], dev["predicted"]) == (4, 3)  # the row that cannot be read is of this split too


# --- plan -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKONOMICS_TODAY", "2026-11-15")
        return answer_json(*PLAN, "--slo", "tpot_mean=0.05")


def test_a_share_of_what_fits_and_a_share_of_the_time_have_names_of_their_own(plan: Any) -> None:
    """What ``utilization`` means is not the same in two verbs, so neither has it."""
    made = ("--arrivals=poisson:1", "--requests=50", "--input=100", "--output=9")
    simulated = answer_json("simulate", "--model=llama-3.1-8b", "--gpu=H100", *made)
    for document, share in ((plan, "load_share"), (simulated, "busy_share")):
        assert f'"{share}":' in json.dumps(document)
        assert '"utilization":' not in json.dumps(document)


def test_plan_ranks_or_rejects_every_possible_deployment(plan: Any) -> None:
    no_price = {"RTX4090"}
    most: dict[str, int] = {}
    for row in offered():
        if row["gpu"] not in no_price:
            most[row["gpu"]] = max(most.get(row["gpu"], 0), int(row["gpus"]))
    # 32 heads, 8 KV heads, 14336 wide: powers of two split it up to 32 ways.
    possible = {
        (gpu, tp, weights)
        for gpu, gpus in most.items()
        for tp in (1, 2, 4, 8, 16, 32)
        if tp <= gpus
        for weights in ("bf16", "fp8")
    }
    ranked = {(row["gpu"], f"TP={row['tp']} {row['weights']}") for row in plan["ranked"] if row["pp"] == 1}
    rejected = {(row["gpu"], row["layout"]) for row in plan["rejected"] if row["layout"] and "PP" not in row["layout"]}
    assert ranked | rejected == {(gpu, f"TP={tp} {weights}") for gpu, tp, weights in possible}
    assert {row["gpu"] for row in plan["rejected"] if not row["layout"]} == no_price


def test_plan_leaves_prices_out_that_are_too_old() -> None:
    def old(days: int) -> dict[str, str]:
        rejected = answer_json(*PLAN, "--max-age", str(days))["rejected"]
        return {row["instance"]: row["reason"] for row in rejected if row["kind"] == "price too old"}

    assert old(198) == {}
    assert old(197) == {"gpu_1x_gh200": "price of 2026-05-01, more than 197 days old"}
    assert set(old(92)) == {"gpu_1x_gh200", "2x_H100"}
    kept = answer_json(*PLAN, "--max-age", "92", "--gpu", "H100,GH200")["ranked"]
    assert {row["gpu"] for row in kept} & {"GH200"} == set()
    assert {row["instance"] for row in kept if row["gpu"] == "H100-SXM"} == {"p5.48xlarge"}
    assert all(row["price_stale"] is False for row in kept)


def test_plan_marks_stale_prices_that_it_keeps(plan: Any) -> None:
    stale = {row["instance"]: row["price_age_days"] for row in plan["ranked"] if row["price_stale"]}
    assert set(stale) == {"gpu_1x_gh200"}  # the only one within half as much again as the cheapest
    assert stale["gpu_1x_gh200"] == (date(2026, 11, 15) - date(2026, 5, 1)).days


def test_plan_answers_once_for_every_offer_and_layout(plan: Any) -> None:
    ranked = [(row["gpu"], row["tp"], row["pp"], row["weights"], row["instance"]) for row in plan["ranked"]]
    assert len(set(ranked)) == len(ranked)
    assert all(row["reason"] and row["kind"] and row["offers"] >= 1 for row in plan["rejected"])


def test_plan_says_why_in_one_line_for_each_gpu_and_kind_of_reason() -> None:
    limits = ["--max-age", "90", "--gpus", "4", "--gpu", "L4,A100-80GB", "--slo", "tpot_mean=20ms"]
    made = answer_json(*PLAN, *limits)
    rejections = sum(row["offers"] for row in made["rejected"])
    title = f"{len(made['ranked'])} candidates ranked, {rejections:,} rejected"
    columns, _, *lines = answer(*PLAN, *limits, "--why").rpartition(title)[2].splitlines()[1:]
    assert columns.split() == ["GPU", "ranked", "rejected", "because", "such", "as"]
    assert len(made["rejected"]) > len(lines)
    shown = []
    for line in filter(None, map(str.strip, lines)):
        gpu, ranked, rejected, because, _ = re.split(r" {2,}", line)
        assert int(ranked) == sum(row["gpu"] == gpu for row in made["ranked"])
        shown.append(((gpu, because), int(rejected)))
    kinds = {(row["gpu"], row["kind"]) for row in made["rejected"]}
    assert sorted(dict(shown)) == sorted(kinds)
    assert len(shown) == len(kinds)
    assert sum(number for _, number in shown) == rejections


def test_plan_with_top_has_that_many_in_json_too(plan: Any) -> None:
    first = answer_json(*PLAN, "--slo", "tpot_mean=0.05", "--top", "3")
    assert first["ranked"] == plan["ranked"][:3]
    assert first["best"] == plan["best"]
    assert first["rejected"] == plan["rejected"]


def test_plan_rejects_what_the_engine_does_not_run() -> None:
    made = answer_json(*PLAN[:-3], "--kv", "fp8", "--quick")
    reasons = {row["reason"] for row in made["rejected"] if row["gpu"] == "T4"}
    assert reasons == {"vllm does not keep KV in fp8 on turing"}
    assert {row["kind"] for row in made["rejected"] if row["gpu"] == "T4"} == {"not run by the engine"}
    assert "T4" not in {row["gpu"] for row in made["ranked"]}
    assert made["ranked"]


def test_plan_with_nothing_left_says_so_and_why() -> None:
    # Eight offers, one of them on spot alone.
    done = CliRunner().invoke(app, [*PLAN, "--max-price", "0.01", "--json"])
    assert done.exit_code == 1
    nothing = json.loads(done.stdout)
    assert nothing["best"] is None
    assert nothing["ranked"] == []
    assert len(nothing["rejected"]) == 8
    assert [each["constraint"] for each in nothing["blame"]] == ["--max-price 0.01"]


def test_plan_takes_gpu_names_or_a_number_in_gpus() -> None:
    named = answer_json(*PLAN, "--gpus", "T4,L4")
    assert {row["gpu"] for row in named["ranked"]} == {"T4", "L4"}
    few = answer_json(*PLAN, "--gpus", "2")
    assert few["ranked"]
    assert max(row["gpus_paid"] for row in few["ranked"]) <= 2


# --- charts ---------------------------------------------------------------------------------------------------------


STARTS = {".svg": b"<svg", ".png": b"\x89PNG", ".html": b"<!DOCTYPE html>", ".json": b"{"}
TITLES = {
    "plan": b"Llama 3.1 8B",
    "curve": b"Llama 3.1 8B bf16 on 1",
    "validate": b"85 rows",
    "trace": b"azure-code: 8,819 requests",
    "simulate": b"Llama 3.1 8B bf16 on 1",
    "capacity": b"Llama 3.1 8B bf16 on 1",
    "cache": b"Llama 3.1 8B bf16 on 1",
}


@pytest.mark.parametrize(("verb", "suffix"), some(product(TITLES, STARTS), keep=10))
def test_a_chart_is_saved_and_nothing_else(tmp_path: Path, verb: str, suffix: str) -> None:
    file = tmp_path / f"chart{suffix}"
    text = answer(*OFFLINE[verb], "--chart", file, aside=f"chart saved to {file}\n")
    assert suffix != ".json" or text == answer(*OFFLINE[verb])
    assert [each.name for each in tmp_path.iterdir()] == [file.name]
    content = file.read_bytes().lstrip()
    assert content[:15].lower().startswith(STARTS[suffix].lower())
    assert TITLES[verb] in content or suffix == ".png"


def test_the_chart_of_a_curve_has_every_point(tmp_path: Path) -> None:
    file = tmp_path / "curve.json"
    made = json.loads(answer(*CURVE, "--json", "--chart", file, aside=f"chart saved to {file}\n"))
    drawn = json.dumps(json.loads(file.read_text(encoding="utf-8")))
    assert all(f'"batch": {point["batch"]},' in drawn for point in made["points"])
    assert f"KV limit {made['max_sequences']:,}" in drawn


def test_nothing_to_draw_saves_no_chart(tmp_path: Path) -> None:
    CliRunner().invoke(app, [*PLAN, "--max-price", "0.01", "--chart", str(tmp_path / "plan.svg")])
    assert list(tmp_path.iterdir()) == []


# --- the catalogue --------------------------------------------------------------------------------------------------


def test_models_tells_mixtures_from_dense() -> None:
    everything = {each["key"] for each in answer_json("models")}
    moe = {each["key"] for each in answer_json("models", "--moe")}
    dense = {each["key"] for each in answer_json("models", "--dense")}
    assert moe | dense == everything
    assert not moe & dense
    assert "mixtral-8x7b" in moe
    assert "llama-3.1-8b" in dense


def test_gpus_filters_by_memory_and_architecture() -> None:
    gpus = answer_json("gpus", "--min-memory", "80", "--architecture", "hopper")
    assert gpus
    assert all(gpu["memory_gb"] >= 80 and gpu["architecture"] == "hopper" for gpu in gpus)
    assert [gpu["key"] for gpu in answer_json("gpus", "NVIDIA H100 80GB HBM3")] == ["H100-SXM"]


def test_apis_read_a_litellm_file(tmp_path: Path) -> None:
    entry = {"litellm_provider": "acme", "input_cost_per_token": 1e-6, "output_cost_per_token": 3e-6}
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"acme/house-model": entry}), encoding="utf-8")
    (own,) = answer_json("apis", "house-model", "--litellm", file, "--input", "1000", "--output", "1000")
    assert own["host"] == "acme"
    assert own["request_usd"] == pytest.approx((1000 * 1 + 1000 * 3) / 1e6)


@pytest.mark.parametrize("verb", ["models", "gpus", "offers", "apis"])
def test_the_catalogue_verbs_answer_with_a_list_of_objects(verb: str) -> None:
    listed = answer_json(*OFFLINE[verb])
    assert listed
    assert all(isinstance(each, dict) for each in listed)


# --- prices refresh -------------------------------------------------------------------------------------------------


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def price_site(tmp_path: Path) -> Iterator[str]:
    """A place on this machine with one provider's price file."""
    (tmp_path / "site" / "aws").mkdir(parents=True)
    (tmp_path / "site" / "aws" / "vms.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone,GpuInfo\n"
        "p5.48xlarge,H100,8.0,192,2048,60.0,20.0,us-east-1,a,\n",
        encoding="utf-8",
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(tmp_path / "site")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_refreshed_prices_are_used_from_then_on(price_site: str) -> None:
    done = answer_json("offers", "--refresh", "--url", price_site, "--provider", "aws")
    assert [(each["provider"], each["rows"], each["error"]) for each in done["providers"]] == [("aws", 1, None)]
    assert Path(done["path"]).is_file()
    (aws,) = answer_json("offers", "--provider", "aws")
    assert (aws["instance"], aws["usd_per_hour"], aws["spot_usd_per_hour"]) == ("p5.48xlarge", 60.0, 20.0)


def test_refresh_without_an_address_asks_the_public_catalogue(
    monkeypatch: pytest.MonkeyPatch, tokonomics: Call
) -> None:
    asked: list[str] = []

    def refuse(url: str, **_: object) -> None:
        asked.append(url)
        raise OSError("no network here")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    done = tokonomics("offers", "--refresh", "--provider", "aws")
    assert "Traceback" not in done.stderr
    assert any("skypilot-catalog" in url and url.endswith("/aws/vms.csv") for url in asked)
    assert "no network here" in " ".join((done.stdout + done.stderr).split())


# --- help, version and old names -----------------------------------------------------------------------------------


def test_help_fits_a_screen_and_lists_every_verb() -> None:
    lines = answer("--help").splitlines()
    assert len(lines) <= 42
    assert max(map(len, lines)) <= 80
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    assert listed == {*VERBS, *ACTIONS}
    assert len(listed) == 27


@pytest.mark.parametrize("verb", [*VERBS, *ACTIONS])
def test_help_of_a_verb_is_at_most_100_lines_of_80_columns(tokonomics: Call, verb: str) -> None:
    lines = tokonomics(verb, "--help", env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) <= 100
    examples = [line.strip() for line in lines if line.startswith("    tokonomics ")]
    assert any(line.startswith(f"tokonomics {verb}") for line in examples)


@pytest.mark.parametrize("name", [name for name, verb in QUESTIONS.items() if verb.by and name in OFFLINE])
def test_an_old_name_gives_the_same_figures_and_says_the_new_one(tokonomics: Call, name: str) -> None:
    verb = find_verb(name)
    new = [word for word in OFFLINE[name] if word not in verb.words[1:] or name == "own-hardware"]
    old, now = tokonomics(name, *new[1:], "--json"), tokonomics(*OFFLINE[name], "--json")
    assert (old.returncode, untimed(old.stdout)) == (0, untimed(now.stdout))
    assert old.stderr == f"`tokonomics {name}` is now `tokonomics {' '.join(verb.words)}`\n"
    assert now.stderr == ""


def untimed(text: str) -> str:
    return re.sub(r'"(wall_s|simulated_requests_per_s)": [0-9.e-]+', "", text)


def test_the_doctor_is_an_option_of_the_whole(tokonomics: Call) -> None:
    by_option, by_name = tokonomics("--doctor", "--json"), tokonomics("doctor", "--json")
    assert json.loads(by_option.stdout).keys() == json.loads(by_name.stdout).keys()
    assert (by_option.stderr, bool(by_name.stderr)) == ("", True)


def test_version_is_the_packages() -> None:
    assert answer("--version") == f"tokonomics {package.__version__}\n"


# --- as a shell sees it ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", some(["cost", "fit", "gpus", "trace"], keep=1))
def test_a_process_answers_on_stdout_and_exits_with_0(tokonomics_process: Call, verb: str) -> None:
    done = tokonomics_process(*OFFLINE[verb])
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout == answer(*OFFLINE[verb])


def test_a_process_that_fails_says_so_on_stderr_and_exits_with_2(tokonomics_process: Call) -> None:
    done = tokonomics_process("predict", "--fit", "llama-3.1-8b", "--gpu", "H100", "--tp", "3")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr, "no codes without colour"


def test_a_process_with_a_usage_error_exits_with_2(tokonomics_process: Call) -> None:
    done = tokonomics_process("plan")
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.search(r"Usage: .*tokonomics plan", done.stderr)
    assert "Missing argument" in done.stderr


def test_no_verb_shows_the_help(tokonomics_process: Call) -> None:
    done = tokonomics_process()
    assert done.returncode in (0, 2)
    assert re.search(r"Usage: .*tokonomics", done.stdout + done.stderr)


@pytest.mark.parametrize("args", some([["offers", "--json"], ["models", "--json"]], keep=1), ids=" ".join)
def test_a_reader_that_leaves_after_a_line_is_no_error(args: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tokonomics", *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        complaint = process.stderr.read().decode()
    assert process.returncode in (0, -13, 141)
    assert complaint == ""


@pytest.mark.parametrize("args", some([COST, [*COST, "--json"], ["--version"], ["--help"]], keep=2), ids=" ".join)
def test_a_reader_that_is_gone_before_the_first_line_is_no_error(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tokonomics", *args], stdout=writer, stderr=subprocess.PIPE, check=False, timeout=600
        )
    finally:
        os.close(writer)
    assert done.stderr.decode() == ""
    assert done.returncode in (0, -13, 141)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("args", some([COST, [*COST, "--json"]], keep=1), ids=["table", "json"])
def test_a_full_disk_is_one_message(args: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tokonomics", *args], stdout=full, stderr=subprocess.PIPE, check=False, timeout=600
        )
    assert "Traceback" not in done.stderr.decode()
    assert "No space left" in done.stderr.decode()
    assert done.returncode != 0


@pytest.mark.parametrize("verb", ["plan", "fit", "validate", "simulate"])
def test_a_terminal_that_knows_only_ascii_still_gets_an_answer(tokonomics: Call, verb: str) -> None:
    done = tokonomics(*OFFLINE[verb], encoding="ascii")
    assert "Traceback" not in done.stderr
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_a_process_in_ascii_answers_as_one_whose_terminal_is(tokonomics: Call, tokonomics_process: Call) -> None:
    done = tokonomics_process(*PREDICT, env={"PYTHONIOENCODING": "ascii"})
    assert done.stdout.isascii()
    assert (done.returncode, done.stdout) == (0, tokonomics(*PREDICT, encoding="ascii").stdout)


# --- JSON and colours -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", OFFLINE)
def test_json_is_nothing_but_json(verb: str) -> None:
    text = answer(*OFFLINE[verb], "--json")
    assert not ANSI.search(text)
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.mark.parametrize("verb", ["plan", "predict", "simulate"])
def test_colours_are_for_views_and_go_where_they_are_not_wanted(tokonomics: Call, verb: str) -> None:
    forced = {"FORCE_COLOR": "1", "NO_COLOR": ""}
    assert ANSI.search(tokonomics(*OFFLINE[verb], env=forced).stdout)
    assert "\x1b" not in tokonomics(*OFFLINE[verb], "--json", env=forced).stdout
    assert "\x1b" not in tokonomics(*OFFLINE[verb], env=forced | {"NO_COLOR": "1"}).stdout


def test_a_process_has_the_colours_of_its_surroundings(tokonomics: Call, tokonomics_process: Call) -> None:
    forced = {"FORCE_COLOR": "1", "NO_COLOR": ""}
    assert tokonomics_process(*FIT, env=forced).stdout == tokonomics(*FIT, env=forced).stdout


@pytest.mark.parametrize("closed", [1, 2])
@pytest.mark.parametrize("flags", [("--json",), ()])
def test_a_stream_that_was_closed_before_the_start_gets_nothing_and_breaks_nothing(
    closed: int, flags: tuple[str, ...]
) -> None:
    command = [sys.executable, "-m", "tokonomics", "cost", "--tokens-per-second=2900", "--usd-per-hour=2", *flags]
    closing = ["sh", "-c", f'"$@" {closed}>&-', "sh", *command]
    done = subprocess.run(closing, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "", closed == 2)
