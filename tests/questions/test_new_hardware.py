"""TPUs, Trainium2, Macs and other GPUs that nobody timed: every verb answers, with its badge, source and own engine."""

import csv
import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.command import Call
from tests.deployed import on

import tokonomics as tk
from tokonomics.catalog.engines import default_engine, find_engine
from tokonomics.catalog.gpus import all_gpus, find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput
from tokonomics.measure.measurements import Measurement, read_measurements
from tokonomics.measure.stated_setup import steps_of
from tokonomics.measure.validate import validate
from tokonomics.physics.curves import efficiency
from tokonomics.physics.deployment import why_not_run
from tokonomics.physics.intervals import weakest_badge
from tokonomics.physics.matrix_kernels import experts_s, gemm_s
from tokonomics.physics.steptime import StepModel
from tokonomics.types import Speed

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "data" / "published_accelerators.csv"
ENGINES = {
    "M1-Max-64GB": "llama.cpp",
    "M2-Ultra": "llama.cpp",
    "M3-Ultra-512GB": "llama.cpp",
    "M4-24GB": "llama.cpp",
    "M4-Pro-48GB": "llama.cpp",
    "M4-Max-128GB": "llama.cpp",
    "M5-32GB": "llama.cpp",
    "Strix Halo": "llama.cpp",
    "DGX Spark": "vllm",
    "TPU-v5e": "vllm",
    "TPU-v6e": "vllm",
    "Ironwood": "vllm",
    "Trainium2": "vllm",
    "MI350X": "vllm",
}
"""The engine that each runs by default."""
SMALL = "llama-3.2-3b"
SLOW: dict[str, Any] = {"input": "const:500", "output": "const:100", "slo": "tpot_p99=100ms", "quick": True}


@pytest.mark.parametrize("name", ENGINES)
def test_each_device_answers_with_its_engine_badge_and_source(name: str) -> None:
    gpu = find_gpu(name)
    assert gpu.source
    assert gpu.date
    made, fits, runs = tk.predict(SMALL, gpu=name), tk.fit(SMALL, gpu=name), tk.can_run(SMALL, gpu=name)
    assert made.engine == fits.memory.deployment.engine.key == runs.engine == ENGINES[name]
    known = Speed.scaled if name == "DGX Spark" else Speed.assumed
    assert made.speed is known
    assert {row.speed for row in runs.runs if row.weights == "bf16"} == {known}
    for answer in (made, fits, runs):
        assert f"Datasheet of {gpu.key}: {gpu.source}" in " ".join(str(answer).split())


@pytest.mark.parametrize("name", ENGINES)
def test_no_step_is_faster_than_the_memory_gives_its_weights_to_the_chip(name: str) -> None:
    """3,212,749,824 parameters, of which one step reads all but norms: the table of tokens is also the last layer."""
    gpu, read = find_gpu(name), 2 * 3.21e9
    made = tk.predict(SMALL, gpu=name)
    assert made.decode_step_s is not None
    assert made.decode_step_s.mid > read / gpu.bandwidth_bytes_per_s
    assert made.prefill_s.mid > 2 * 2.8e9 * 1024 / gpu.peak_flops(Precision.bf16)


@pytest.mark.parametrize("name", ENGINES)
def test_ranges_of_what_nobody_timed_are_no_narrower_than_of_a_family_that_taught_them(name: str) -> None:
    if efficiency(find_gpu(name)).taught:
        pytest.skip("published results of its family taught the intervals")
    untaught, taught = tk.predict(SMALL, gpu=name).decode_step_s, tk.predict(SMALL, gpu="MI300X").decode_step_s
    assert untaught is not None
    assert taught is not None
    assert untaught.high / untaught.low >= max(2, taught.high / taught.low)


@pytest.mark.parametrize(
    ("name", "share_bytes"),
    [
        ("M2-Max-96GB", 72 * 2**30),
        ("M3-Ultra-512GB", 384 * 2**30),
        ("M4-24GB", 16 * 2**30),
        ("M4-16GB", 32 * 2**30 / 3),
    ],
)
def test_the_gpu_of_a_mac_takes_two_thirds_of_the_memory_up_to_36_gb_and_three_quarters_above(
    name: str, share_bytes: float
) -> None:
    """As Metal reports it: 73,728 MiB on an M2 Max of 96 GB, 21,845 MiB on a Mac of 32 GB."""
    assert find_gpu(name).usable_bytes == pytest.approx(share_bytes, rel=2e-3)
    assert find_gpu(name).unified_memory


def test_a_70b_model_fits_where_its_bytes_do() -> None:
    """70.6 billion parameters at 16 bits are 141 GB: more than three quarters of 128 GB, and of 192 GB less."""
    assert not tk.fit("llama-3.1-70b", gpu="M4-Max-128GB").memory.fits
    fits = tk.fit("llama-3.1-70b", gpu="M2-Ultra-192GB")
    assert fits.memory.fits
    assert "75 % of what it shares with the CPU" in str(fits)


@pytest.mark.parametrize(
    ("gpu", "engine", "nearest"),
    [("M4-Max-48GB", "vllm", "llama.cpp"), ("TPU-v6e", "llama.cpp", "vllm"), ("Trainium2", "sglang", "vllm"),
     ("V100", "vllm", "llama.cpp")],
)  # fmt: skip
def test_an_engine_that_does_not_run_there_is_refused_with_those_that_do(gpu: str, engine: str, nearest: str) -> None:
    for ask in (tk.predict, tk.fit, tk.can_run):
        with pytest.raises(BadInput) as caught:
            ask(SMALL, gpu=gpu, engine=engine)
        assert nearest in str(caught.value)


def test_every_gpu_has_one_default_engine_that_runs_on_it() -> None:
    for gpu in all_gpus():
        engine = default_engine(gpu.architecture)
        assert not why_not_run(engine, gpu, Precision.bf16, Precision.bf16), gpu.key
    assert default_engine("hopper").key == default_engine("cdna4").key == "vllm"
    assert default_engine("rdna3").key == default_engine("apple").key == default_engine("volta").key == "llama.cpp"


def test_weights_that_the_engine_does_not_read_become_the_nearest_that_it_does() -> None:
    """DeepSeek and others are published in FP8, which GGUF has not: Q8_0 has as many bits."""
    assert find_engine("llama.cpp").loads([Precision.bf16, Precision.fp8]) == (Precision.bf16, Precision.int8)
    assert find_engine("vllm").loads([Precision.fp8]) == (Precision.fp8,)
    with pytest.raises(BadInput, match="int8"):
        tk.predict(SMALL, gpu="M4-Max-48GB", weights="fp8")


def test_no_figure_exists_for_a_format_that_the_chip_does_not_multiply() -> None:
    formats = {gpu.architecture: set(gpu.flops) for gpu in all_gpus()}
    assert not formats["apple"] & {"fp8", "fp4"}
    assert not formats["rdna3.5"] & {"fp8", "fp4"}
    assert not formats["tpu-v5e"] & {"fp8", "fp4"}
    assert "int8" in formats["tpu-v5e"]
    assert "fp8" in formats["tpu-v7x"] & formats["trainium2"]
    assert "fp4" in find_gpu("GB10").flops


def test_few_rows_fill_no_tile_on_a_mac() -> None:
    """Eight rows take no longer than a read of the weights, which a tile of rows would; the ninth fills one."""
    gpu, of = find_gpu("M4-16GB"), efficiency(find_gpu("M4-16GB"))
    assert (of.untiled_rows, of.untiled_tokens) == (8, 31)
    product = partial(gemm_s, gpu, Precision.int4, n=4096, k=14336)
    one, eight, nine = (float(product(rows)) for rows in (1, 8, 9))
    assert one <= eight < nine
    read = 4096 * 14336 * Precision.int4.bytes_per_weight / gpu.bandwidth_bytes_per_s
    assert read / 0.83 < one < 1.5 * read / 0.83
    few, many = (
        float(experts_s(gpu, Precision.int4, tokens, hidden=2048, intermediate=768, active=8, experts=128))
        for tokens in (31, 32)
    )
    assert few < many


def test_llama_cpp_multiplies_8_bit_weights_no_faster_than_16_bit_ones() -> None:
    """The sums of 32 weights are scaled one by one; a DGX Spark's INT8 rate is twice its rate at 16 bits."""
    gpu, asked = find_gpu("GB10"), partial(tk.predict, SMALL, gpu="GB10", context=2048)
    assert gpu.flops["int8"] == 2 * gpu.flops["bf16"]
    prompt = {(w, e): asked(weights=w, engine=e).prefill_s.mid
              for w in ("int8", "bf16") for e in ("llama.cpp", "vllm") if (w, e) != ("int8", "vllm")}  # fmt: skip
    assert prompt["int8", "llama.cpp"] > 2 * 2.8e9 * 2048 / gpu.flops["bf16"]
    assert prompt["int8", "llama.cpp"] == pytest.approx(prompt["bf16", "llama.cpp"], rel=0.1)
    step = {w: asked(weights=w, engine="llama.cpp").decode_step_s for w in ("int8", "bf16")}
    assert step["int8"] is not None
    assert step["bf16"] is not None
    assert step["int8"].mid < 0.65 * step["bf16"].mid  # read in fewer bytes all the same


def test_prompts_of_dense_models_on_the_desks_small_machines_are_predicted_within_three_times() -> None:
    """Strix Halo's were 2.5 to 4.3 times too fast by the best product of a library, a DGX Spark's 3.3 times by INT8."""
    _, scored = validate([row for row in read_measurements(PUBLISHED) if row_is_a_prompt(row, ("GB10", "Ryzen"))])
    dense = [each for each in scored if not steps_of(each.measurement).deployment.model.is_moe]
    assert len(dense) == 5
    errors = [abs(each.error) for each in dense]
    assert max(errors) < math.log(2.5)
    assert statistics.median(errors) < math.log(1.5)


def row_is_a_prompt(row: object, machines: tuple[str, ...]) -> bool:
    return isinstance(row, Measurement) and row.output_tokens <= 1 and row.gpu.startswith(machines)


@pytest.mark.parametrize(
    ("name", "model", "read"),
    [("GB10", "qwen2.5-7b", 7.07e9), ("Strix Halo", "gemma-3-12b", 11.77e9), ("M4-Max", SMALL, 3.21e9)],
)
def test_the_fast_end_of_a_range_is_no_faster_than_the_datasheet(name: str, model: str, read: float) -> None:
    """A step reads every parameter but a table of tokens that is not also the last layer, 16 bits each."""
    made, gpu = tk.predict(model, gpu=name, engine="llama.cpp", context=512), find_gpu(name)
    assert made.decode_step_s is not None
    assert 0.99 * 2 * read / gpu.bandwidth_bytes_per_s < made.decode_step_s.low < made.decode_step_s.mid
    assert 2 * 0.8 * read * 512 / gpu.peak_flops(Precision.bf16) < made.prefill_s.low < made.prefill_s.mid


def prices(folder: Path, *rows: tuple[str, int, float]) -> Path:
    file = folder / "mine.csv"
    with file.open("w", encoding="utf-8", newline="") as out:
        table = csv.writer(out)
        table.writerow(("provider", "instance", "gpu", "gpus", "usd_per_hour"))
        table.writerows(("ours", gpu, gpu, gpus, usd) for gpu, gpus, usd in rows)
    return file


def test_a_plan_tries_each_gpu_with_its_own_engine(tmp_path: Path) -> None:
    mine = prices(tmp_path, ("M3-Ultra", 1, 0.5), ("DGX Spark", 1, 0.3), ("Trainium2", 16, 30), ("MI350X", 8, 30),
                  ("Ironwood", 4, 20), ("H100", 1, 3))  # fmt: skip
    asked = SLOW | {"rate": 0.2}
    for gpu in ("M3-Ultra", "DGX Spark", "Trainium2", "MI350X", "Ironwood"):
        best = tk.plan(SMALL, **asked, gpu=gpu, offers=str(mine)).best
        assert best is not None
        assert (best.gpu, best.engine) == (find_gpu(gpu).key, ENGINES.get(gpu, "llama.cpp"))
        assert best.speed in (Speed.assumed, Speed.scaled)
    both = tk.plan(SMALL, **asked, gpu=["M3-Ultra", "H100"], offers=str(mine))
    assert {row.gpu: row.engine for row in both.ranked} == {"M3-Ultra-512GB": "llama.cpp", "H100-SXM": "vllm"}


def test_a_tpu_is_planned_at_its_list_price_in_sizes_of_one_machine() -> None:
    asked = SLOW | {"rate": 1}
    best = tk.plan("llama-3.1-8b", **asked, gpu="TPU-v6e").best
    assert best is not None
    assert best.provider == "gcp"
    assert best.gpus_per_replica in (1, 4, 8)
    assert best.usd_per_month == pytest.approx(2.7 * 730 * best.gpus_per_replica * best.replicas, rel=0.01)


@pytest.mark.parametrize("gpu", ["TPU-v5e", "TPU-v6e", "TPU-v7x"])
def test_a_tpu_slice_is_split_by_powers_of_two(gpu: str) -> None:
    found = tk.can_run(gpu=gpu, gpus=8)
    assert {row.tp for row in found.runs} <= {1, 2, 4, 8}
    assert {model.min_gpus for model in found.too_large} <= {None, *(2**power for power in range(9))}
    with pytest.raises(BadInput, match="slices of 1, 4, 8, 16 … chips"):
        tk.predict("phi-4", gpu=gpu, tp=5)
    assert tk.predict("phi-4", gpu="H100", tp=5).gpus == 5  # ten KV heads


def test_an_answer_says_which_precisions_the_engine_does_not_run_there(tokonomics: Call) -> None:
    tpu = ("--gpu", "TPU-v6e", "--gpus", "8")
    said = tokonomics("can-run", "qwen3-8b", *tpu).stdout
    assert "Tried: bf16; not fp8, which vllm does not run on TPU-v6e; fewer bits by --weights int8." in said
    assert "int8  " in tokonomics("can-run", "qwen3-8b", *tpu, "--weights", "int8").stdout
    said = tokonomics("can-run", "qwen3-8b", *tpu, "--weights", "fp8").stdout
    assert "vllm runs these on TPU-v6e at none of the precisions tried: qwen3-8b." in said
    said = tokonomics("can-run", "qwen3-8b", "--gpu", "H100", "--weights", "int4").stdout
    assert "Tried: int4." in said


def test_without_a_public_price_the_tool_says_so_and_what_answers_instead() -> None:
    asked: dict[str, Any] = {"rate": 1, "input": "const:500", "output": "const:100"}
    with pytest.raises(BadInput) as caught:
        tk.plan(SMALL, **asked, gpu="Trainium2")
    assert "no public price of Trainium2 is known" in str(caught.value)
    with pytest.raises(BadInput) as caught:
        tk.plan(SMALL, **asked, gpu="M3-Ultra")
    assert "can-run" in str(caught.value)


def test_no_deploy_file_pretends_to_know_a_cluster_of_tpus(tokonomics: Call) -> None:
    asked = ("--rate=1", "--input=const:500", "--output=const:100", "--quick", "--gpu=TPU-v6e")
    done = tokonomics("plan", SMALL, *asked, "--deploy=kubernetes")
    assert done.returncode == 2
    assert "no deploy file can be written for TPU-v6e" in " ".join(done.stderr.split())


def test_published_results_say_where_and_when_they_come_from_and_most_lie_in_their_ranges() -> None:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all(row["source_name"] and row["source_ref"] and row["date"] for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)
    _, scored = validate(read_measurements(PUBLISHED))
    assert len(scored) >= 0.95 * len(rows)
    assert sum(each.inside for each in scored) >= 0.8 * len(scored)
    for each in scored:
        steps = steps_of(each.measurement)
        assert weakest_badge(steps.deployment, steps.engine) is not weakest_badge(on("llama-3.1-8b", gpu="H100"), None)


def test_no_prediction_of_a_published_decode_beats_the_datasheet() -> None:
    """A step reads at least nine tenths of the weights of a dense model: not the table of its tokens."""
    for row in read_measurements(PUBLISHED):
        if not isinstance(row, Measurement) or row.output_tokens <= 1 or row.batch != 1:
            continue
        steps: StepModel = steps_of(row)
        made = steps.deployment
        if made.model.is_moe:
            continue
        read = 0.85 * made.model.weight_bytes(made.weights) / made.tp
        assert float(steps.decode(1, 1)) > read / made.gpu.bandwidth_bytes_per_s, row.key
