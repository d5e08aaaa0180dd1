"""Predict loads of models that nothing was fitted on, then have a real vLLM serve them, then compare.

    python -m benchmarks.bench_blind ask FOLDER      # loads and predictions, before the run; jobs for the server
    python -m benchmarks.bench_blind keep RAW...     # adds what the client recorded: MODEL.json.gz
    python -m benchmarks.bench_blind                 # prints the tables and records them

Three models of experts (small experts in FP8 blocks, latent attention in bf16, large experts in FP8 by channel) and a
dense one in bf16 and FP8. Of each, Poisson loads around the highest rate that `simulate --capacity` names under an SLO,
and closed loops of the experts. `ask` writes the requests and what the simulator says of them on the default host, and
`keep` adds what was measured without touching that. Routing is vLLM's own switch for uniform routing, as dummy weights
may send every token to the same experts. A first load of each server is thrown away, as kernels compile during it.
"""

import argparse
import gzip
import json
import lzma
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench_experts import FIGURES, Load, _of_answers, _run, score
from benchmarks.bench_headroom import _requests, errors_of, highest_rate, signed

import tokonomics
from tokonomics.catalog.layers import Scales
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.physics.intervals import interval
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_blind.json.xz"
SHAPE: dict[str, Any] = {"input": "1500", "output": "250"}
UNIFORM = {"VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random"}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
BY_TENSOR = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BY_CHANNEL = {
    "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
    "kv_cache_scheme": None, "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {"group_0": {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False},
        "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True},
    }},
}  # fmt: skip
TOKENS = {"bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu", "tie_word_embeddings": False}
ERNIE = TOKENS | {
    "architectures": ["Ernie4_5_MoeForCausalLM"], "model_type": "ernie4_5_moe", "hidden_size": 2560,
    "intermediate_size": 12288, "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4,
    "head_dim": 128, "vocab_size": 103424, "max_position_embeddings": 131072, "moe_intermediate_size": 1536,
    "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
    "moe_layer_end_index": 27, "moe_layer_interval": 1, "use_bias": False, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
GLM_FLASH = TOKENS | {
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "hidden_size": 2048,
    "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20,
    "num_key_value_heads": 20, "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4,
    "first_k_dense_replace": 1, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880, "max_position_embeddings": 202752,
    "norm_topk_prob": True, "routed_scaling_factor": 1.8, "n_group": 1, "topk_group": 1, "attention_bias": False,
    "topk_method": "noaux_tc", "rope_theta": 1000000.0, "rms_norm_eps": 1e-5,
}  # fmt: skip
GLM_AIR = TOKENS | {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944,
    "moe_intermediate_size": 1408, "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
    "head_dim": 128, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "first_k_dense_replace": 1, "attention_bias": True, "use_qk_norm": False, "vocab_size": 151552,
    "max_position_embeddings": 131072, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "n_group": 1,
    "topk_group": 1, "partial_rotary_factor": 0.5, "rope_theta": 1000000.0, "rms_norm_eps": 1e-5,
}  # fmt: skip
MISTRAL = TOKENS | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 131072, "max_position_embeddings": 32768, "rope_theta": 100000000.0, "rms_norm_eps": 1e-5,
    "sliding_window": None,
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "ernie-4.5-21b-a3b-fp8": {"model": "ernie-4.5-21b-a3b", "weights": "fp8", "slo": "ttft_p99=1,tpot_p99=40ms",
                              "config": ERNIE | {"quantization_config": BLOCKS}, "kv_bytes": 30_000_000_000},
    "mistral-small-24b": {"model": "mistral-small-24b", "weights": "bf16", "slo": "ttft_p99=1.5,tpot_p99=50ms",
                          "config": MISTRAL, "kv_bytes": 20_000_000_000},
    "glm-4.7-flash": {"model": "glm-4.7-flash", "weights": "bf16", "slo": "ttft_p99=1,tpot_p99=50ms",
                      "config": GLM_FLASH, "kv_bytes": 20_000_000_000},
    "mistral-small-24b-fp8": {"model": "mistral-small-24b", "weights": "fp8", "slo": "ttft_p99=1,tpot_p99=40ms",
                              "config": MISTRAL | {"quantization_config": BY_TENSOR}, "kv_bytes": 26_000_000_000},
    "glm-4.5-air-fp8": {"model": "glm-4.5-air", "weights": "fp8", "slo": "ttft_p99=1.5,tpot_p99=60ms",
                        "config": GLM_AIR | {"quantization_config": BY_CHANNEL}, "kv_bytes": 24_000_000_000},
}  # fmt: skip
SHARES = {"experts": (0.75, 1.0, 1.2), "dense": (0.9, 1.05, 1.15)}
"""Of the highest rate that is predicted: what is served."""
SECONDS = {"experts": 34.0, "dense": 50.0}
LOOPS = ((1, 4), (16, 48), (64, 192))
"""Users and requests of the closed loops, of 1,024 tokens in and 128 out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["ask", "keep", "score"], default="score")
    parser.add_argument("files", nargs="*", type=Path)
    given = parser.parse_args()
    if given.what == "ask":
        ask(given.files[0])
    elif given.what == "keep":
        keep(given.files)
    else:
        compare()


def ask(folder: Path) -> None:
    """Write loads and predictions of every case to DATA, and a job for the server each."""
    folder.mkdir(parents=True, exist_ok=True)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    data = {"engine": "vllm 0.26.0", "gpu": "H200", "asked": today().isoformat(), "commit": head.stdout.strip(),
            "cases": [_case(name, case, folder) for name, case in CASES.items()]}  # fmt: skip
    _write(data)


def _case(name: str, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    setup: dict[str, Any] = {
        "model": case["model"],
        "gpu": "H200",
        "weights": case["weights"],
        "kv": "bf16",
        "slo": case["slo"],
    }
    highest = tokonomics.capacity(**setup, **SHAPE, max_sequences=1024).rate
    assert highest is not None
    kind = "dense" if name.startswith("mistral") else "experts"
    loads: list[dict[str, Any]] = []
    if kind == "experts":
        loads += [{"name": f"{users} users", "users": users, "requests": [[0.0, 1024, 128]] * n} for users, n in LOOPS]
    for share in SHARES[kind]:
        rate = round(highest * share, 2)
        count = int(rate * SECONDS[kind])
        requests = _requests(rate, count, seed=int(share * 100), saved=folder / "drawn.parquet")
        loads.append({"name": f"{rate:g}/s", "rate": rate, "requests": requests})
    for load in loads:
        load["predicted"] = score(_load(name, case, load, {}))["predicted"]
        print(
            name,
            load["name"],
            {figure: round(value * 1e3, 2) for figure, value in load["predicted"].items()},
            flush=True,
        )
    flags = ["--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(case["kv_bytes"])]
    flags += ["--gpu-memory-utilization", "0.3"]  # as two servers share the GPU, one idle while the other is measured
    middle = next(load for load in loads if "rate" in load and load["rate"] >= highest * 0.99)
    played = [{"name": "first", "drop": True, "kind": "trace", "need_s": 30,
               "requests": [row for row in middle["requests"] if row[0] < (16 if kind == "experts" else 5)]}] + [
        {"name": load["name"], "kind": "closed", "users": load["users"], "n": len(load["requests"]), "input": 1024,
         "output": 128, "need_s": 15} if "users" in load else
        {"name": load["name"], "kind": "trace", "requests": load["requests"], "need_s": SECONDS[kind] + 12}
        for load in loads
    ]  # fmt: skip
    job = {"name": name, "config": case["config"], "flags": flags, "env": UNIFORM if kind == "experts" else {},
           "loads": played}  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(job))
    return {"name": name, "model": case["model"], "weights": case["weights"], "slo": case["slo"], "flags": flags,
            "highest": highest, "loads": loads}  # fmt: skip


def _load(name: str, case: dict[str, Any], load: dict[str, Any], measured: dict[str, float]) -> Load:
    made = stated_deployment(case["model"], "H200", 1, 1, 1, 1, case["weights"], "bf16", "vllm")
    if CASES[name]["config"].get("quantization_config") == BLOCKS:
        made = made.model_copy(update={"model": made.model.model_copy(update={"fp8_scales": Scales.blocks})})
    run = _run(load["requests"], load.get("users"))
    return Load("blind", name, load["name"], made, run, measured, "blind", load.get("rate"))


def _write(data: dict[str, Any]) -> None:
    DATA.write_bytes(lzma.compress(json.dumps(data).encode(), preset=9))


def read() -> dict[str, Any]:
    """Return the cases with what was predicted and measured."""
    found: dict[str, Any] = json.loads(lzma.decompress(DATA.read_bytes()))
    return found


def keep(files: Sequence[Path]) -> None:
    """Add what was measured of every request."""
    data = read()
    loads = {(case["name"], load["name"]): load for case in data["cases"] for load in case["loads"]}
    for file in files:
        with gzip.open(file, "rt") as opened:
            served = json.load(opened)
        for played in served["loads"]:
            load = loads[served["name"], played["name"]]
            assert [row[1:] for row in load["requests"]] == [row[1:3] for row in played["rows"]], "other requests"
            load["measured"] = [[row[3], row[4]] for row in played["rows"]]
    _write(data | {"served": today().isoformat()})


def served_loads() -> Iterator[tuple[str, Load, dict[str, float]]]:
    """Yield the SLO of each load that was served, the load, and what was predicted of it before."""
    for case in read()["cases"]:
        for load in case["loads"]:
            if "measured" in load:
                answered = [row for row in load["measured"] if row[0] is not None]
                ttfts, tpots = zip(*answered, strict=True)
                measured = _of_answers(ttfts, [tpot_s for tpot_s in tpots if tpot_s is not None])
                yield case["slo"], _load(case["name"], case, load, measured), load["predicted"]


def _is_inside(load: Load, figure: str, predicted_s: float) -> bool:
    """Decide whether what was measured lies in today's interval around a prediction."""
    found = interval(predicted_s, "ttft" if figure.startswith("TTFT") else "tpot", load.deployment)
    return found.low <= load.measured[figure] <= found.high


def compare() -> None:
    """Print predictions of before the run and of today against what was measured, and record them."""
    rows = []
    for slo, load, before in served_loads():
        errors = {figure: before[figure] / value - 1 for figure, value in load.measured.items()}
        rows.append(score(load) | {"slo": slo, "before": before, "errors_before": errors})
        for side, predicted in (("inside", rows[-1]["predicted"]), ("inside_before", before)):
            rows[-1][side] = {figure: _is_inside(load, figure, predicted[figure]) for figure in FIGURES}
        now = rows[-1]["errors"]
        shown = "  ".join(
            f"{figure} {value * 1e3:7.1f} {signed(errors[figure]):>5} ({signed(now[figure]):>5})"
            for figure, value in load.measured.items()
        )
        print(f"{load.series:24}{load.name:10}{shown}")
    sums = {}
    for kind, dense in (("experts", False), ("dense", True)):
        alike = [row for row in rows if row["series"].startswith("mistral") == dense]
        for side in ("errors_before", "errors"):
            sums[f"{kind}, {side}"] = {figure: errors_of([row[side][figure] for row in alike]) for figure in FIGURES}
            told = "  ".join(
                f"{figure} {found['median']:.1%} ({found['worst']:.0%}; {found['bias']:+z.1%})"
                for figure, found in sums[f"{kind}, {side}"].items()
            )
            print(f"{kind:9}{side:14}{told}")
    sums["all, errors"] = {figure: errors_of([row["errors"][figure] for row in rows]) for figure in FIGURES}
    for side in ("inside_before", "inside"):
        sums[side] = {figure: sum(row[side][figure] for row in rows) for figure in FIGURES}
        print(f"of {len(rows)} loads, inside the 80 % interval of today, {side}: {sums[side]}")
    limits = []
    for series in dict.fromkeys(row["series"] for row in rows):
        at_rates = [row for row in rows if row["series"] == series and row["rate"]]
        found = {
            side: highest_rate([(row["rate"], row[side]) for row in at_rates], at_rates[0]["slo"])
            for side in ("measured", "before", "predicted")
        }
        limits.append({"series": series, "slo": at_rates[0]["slo"], **found})
        names = {"measured": "measured", "before": "before the run", "predicted": "today"}
        told = ", ".join(f"{name} {_rate_text(found[side], found['measured'])}" for side, name in names.items())
        print(f"highest rate, {series}, {at_rates[0]['slo']}: {told}")
    own = {figure: errors_of([row["on_own_host"][figure] for row in rows if row["on_own_host"]]) for figure in FIGURES}
    record = {
        "date": today().isoformat(), "machine": f"{platform.system()} {platform.machine()}",
        "command": "python -m benchmarks.bench_blind", **{name: read()[name] for name in ("asked", "commit", "served")},
        "sums": sums | {"all, on their own host": own}, "highest_rates": limits, "loads": rows,
    }  # fmt: skip
    text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
    (HERE / "results" / "blind.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def _rate_text(rate: float | None, measured: float | None) -> str:
    """Return ``20.9/s (+13 %)``, against the measured rate where both are known."""
    if rate is None:
        return "not in reach"
    return f"{rate:.1f}/s" + (f" ({signed(rate / measured - 1)})" if measured and rate != measured else "")


if __name__ == "__main__":
    main()
