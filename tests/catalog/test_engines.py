"""Engines: their documented defaults, and how much memory each leaves for the KV cache."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokonomics.catalog.engines import Engine, MemoryRule, all_engines, find_engine
from tokonomics.catalog.entries import spellings
from tokonomics.catalog.gpus import Gpu, all_gpus, find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, Precision
from tokonomics.errors import UnknownName

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vLLM", "vllm"),
        ("SGLang", "sglang"),
        ("TensorRT-LLM", "tensorrt-llm"),
        ("trtllm", "tensorrt-llm"),
        ("TGI", "tgi"),
        ("text-generation-inference", "tgi"),
        ("llama.cpp", "llama.cpp"),
        ("llama-server", "llama.cpp"),
    ],
)
def test_the_names_people_use_find_the_engine(name: str, key: str) -> None:
    assert find_engine(name).key == key


def test_an_unknown_engine_suggests_the_nearest_and_lists_the_rest() -> None:
    with pytest.raises(UnknownName) as caught:
        find_engine("vlm")
    assert "Did you mean vllm" in str(caught.value)
    assert "llama.cpp" in str(caught.value)
    for one, other in combinations(all_engines(), 2):
        assert not spellings(one) & spellings(other)


# vllm 0.32.0, engine/arg_utils.py, EngineArgs.get_batch_defaults for the API server.
@pytest.mark.parametrize(
    ("gpu", "sequences", "tokens"),
    [
        ("H100", 1024, 8192),
        ("H200", 1024, 8192),
        ("B200", 1024, 16384),
        ("MI300X", 1024, 16384),
        ("A100-80GB", 256, 2048),
        ("A100-80GB-PCIe", 256, 2048),
        ("L40S", 256, 2048),
        ("T4", 256, 2048),
    ],
)
def test_vllm_batches_by_device_as_its_source_does(gpu: str, sequences: int, tokens: int) -> None:
    defaults = find_engine("vllm").defaults_on(find_gpu(gpu))
    assert (defaults.max_sequences, defaults.max_batched_tokens) == (sequences, tokens)
    assert defaults.memory_fraction == 0.92


# sglang 0.5.23, srt/arg_groups/memory_hook.py.
@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [("T4", 2048), ("RTX4090", 4096), ("L40S", 4096), ("H100", 8192), ("H200", 8192), ("B200", 16384)],
)
def test_sglang_chunks_by_device_memory_as_its_source_does(gpu: str, tokens: int) -> None:
    assert find_engine("sglang").defaults_on(find_gpu(gpu)).max_batched_tokens == tokens


@pytest.mark.parametrize(
    ("engine", "block"), [("vllm", 16), ("sglang", 1), ("tensorrt-llm", 32), ("tgi", 1), ("llama.cpp", 1)]
)
def test_kv_blocks_are_the_documented_ones(engine: str, block: int) -> None:
    assert find_engine(engine).kv_block_tokens == block


def test_vllm_leaves_what_its_own_log_says_it_leaves() -> None:
    """vllm-project/vllm#15815, Qwen2.5-32B on two L40S at 0.90: 39.98 GiB, of which 7.71 for the KV cache."""
    left = find_engine("vllm").kv_bytes(find_gpu("L40S"), 30.71 * GIB, (0.30 + 1.26) * GIB, fraction=0.90)
    assert left / GIB == pytest.approx(7.71, abs=0.01)


def test_tensorrt_takes_its_share_of_what_is_left_not_of_the_device() -> None:
    engine, gpu = find_engine("tensorrt-llm"), find_gpu("H100")
    assert engine.memory_rule is MemoryRule.free
    assert engine.kv_bytes(gpu, 40e9, 4e9) == pytest.approx(0.9 * (gpu.usable_bytes - 44e9))


def test_sglang_keeps_its_workspace_out_of_the_share() -> None:
    engine, gpu = find_engine("sglang"), find_gpu("H100")
    reserve = engine.defaults_on(gpu).reserve_bytes
    assert engine.kv_bytes(gpu, 40e9, 4e9) == gpu.usable_bytes - reserve - 40e9
    assert engine.kv_bytes(gpu, 40e9, reserve + 1e9) == gpu.usable_bytes - reserve - 41e9
    assert 1 - reserve / gpu.memory_bytes == pytest.approx(0.835, abs=0.005)


@given(
    engine=st.sampled_from(all_engines()), gpu=st.sampled_from(all_gpus()), weights=st.floats(0, 400e9),
    workspace=st.floats(0, 50e9), more=st.floats(0, 50e9),
)  # fmt: skip
def test_memory_held_is_within_the_device(
    engine: Engine, gpu: Gpu, weights: float, workspace: float, more: float
) -> None:
    left = engine.kv_bytes(gpu, weights, workspace)
    if left > 0:
        assert weights + workspace + left <= gpu.usable_bytes * (1 + 1e-9)
    assert engine.kv_bytes(gpu, weights + more, workspace) <= left + 1e-3
    assert engine.kv_bytes(gpu, weights, workspace + more) <= left + 1e-3


@pytest.mark.parametrize("engine", all_engines(), ids=lambda engine: engine.key)
def test_every_engine_is_sourced_and_runs_sixteen_bits_wherever_it_runs(engine: Engine) -> None:
    assert engine.source
    assert engine.version
    architectures = [architecture for row in engine.hardware for architecture in row.architectures]
    assert len(architectures) == len(set(architectures))
    for row in engine.hardware:
        assert Precision.bf16 in row.weights
        assert Precision.bf16 in row.kv
        assert set(row.kv) <= set(KV_PRECISIONS)


def test_precisions_follow_the_vendors_matrices() -> None:
    trt = find_engine("tensorrt-llm")
    assert trt.hardware_of("turing") is None
    assert (ampere := trt.hardware_of("ampere")) is not None
    assert Precision.fp8 not in ampere.weights
    assert Precision.fp8 in ampere.kv
    assert (hopper := trt.hardware_of("hopper")) is not None
    assert Precision.nvfp4 not in hopper.weights
    assert find_engine("vllm").hardware_of("volta") is None
    for gpu in all_gpus():
        assert any(engine.hardware_of(gpu.architecture) for engine in all_engines()), gpu.key
