"""Encoders and images in the physics: pairs both ways, activations instead of KV, and a tower's time counted once."""

import numpy as np
import pytest

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.attention_kernels import GEMM_SHARE, seen_pairs
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.intervals import speed_badge
from tokonomics.physics.memory import fit, sequence_bytes, shard
from tokonomics.physics.steptime import step_model
from tokonomics.types import Badge


def on(model: str, gpu: str = "H100", images: str | None = None, tp: int = 1) -> Deployment:
    found = find_model(model)
    return deploy(found.reading(images) if images else found, find_gpu(gpu), find_engine("vllm"), tp=tp)


@pytest.mark.parametrize("tokens", [1, 2, 7, 100])
def test_every_token_sees_every_token(tokens: int) -> None:
    pairs = sum(1 for _ in range(tokens) for _ in range(tokens))
    assert seen_pairs(np.array([tokens]), np.zeros(1), None, causal=False).tolist() == [pairs]


def test_a_window_around_a_token_is_as_wide_as_it_says() -> None:
    seen = seen_pairs(np.array([1000, 100]), np.zeros(2), 128, causal=False)
    assert seen.tolist() == [1000 * 128, 100 * 100]


def test_a_sequence_of_an_encoder_takes_its_activations() -> None:
    # BGE-M3: a residual of 1,024 twice, and three times 4,096 in the feed-forward, in 16 bits.
    assert sequence_bytes(on("bge-m3"), 1000) == 1000 * (2 * 1024 + 3 * 4096) * 2
    found = fit(on("bge-m3", "L4"), 512)
    assert found.kv_bytes_per_token == 0
    assert found.max_sequences == found.kv_budget_bytes // found.kv_bytes_per_sequence


def test_all_of_an_encoder_is_loaded_and_none_of_it_is_a_head() -> None:
    held = shard(on("bge-m3"))
    assert held.total == pytest.approx(2 * find_model("bge-m3").parameters)
    assert held.head == pytest.approx(2 * (1024 * 1024 + 1024))  # the pooler


def test_an_encoder_computes_whole_prompts() -> None:
    deployment = on("bge-m3", "L4")
    assert not deployment.chunks_prompts
    assert not deployment.reuses_prefixes
    assert deployment.limits.max_batched_tokens == 32_768


def test_attention_both_ways_takes_longer_than_one_way() -> None:
    deployment = on("bge-m3")
    groups = deployment.model.groups
    causal = tuple(
        group.model_copy(update={"mixer": group.mixer.model_copy(update={"bidirectional": False})})  # type: ignore[union-attr]
        for group in groups
    )
    one_way = deployment.model_copy(update={"model": deployment.model.model_copy(update={"groups": causal})})
    long, none, one = np.array([8192.0]), np.array([0.0]), np.array([1.0])
    both = float(step_model(deployment).prompt_attention_s(long, none, one)[0])
    half = float(step_model(one_way).prompt_attention_s(long, none, one)[0])
    assert 1.5 < both / half < 2.05


def test_a_tower_takes_its_flops_at_the_share_of_a_large_product() -> None:
    plain, seen = on("qwen3-vl-8b"), on("qwen3-vl-8b", images="1x1024x1024")
    images = seen.model.images
    assert images is not None
    extra = float(step_model(seen).prefill(2000) - step_model(plain).prefill(2000))
    assert extra == pytest.approx(images.flops / (seen.gpu.peak_flops(Precision.bf16) * GEMM_SHARE))
    halved = on("qwen3-vl-8b", images="1x1024x1024", tp=2)
    split = float(step_model(halved).prefill(2000) - step_model(on("qwen3-vl-8b", tp=2)).prefill(2000))
    assert split == pytest.approx(extra / 2)


@pytest.mark.parametrize("chunk", [100, 512, 700, 3000])
def test_chunks_of_a_prompt_share_the_tower_out(chunk: int) -> None:
    plain, seen = step_model(on("qwen3-vl-8b")), step_model(on("qwen3-vl-8b", images="1x1024x1024"))
    one = np.array([1.0])
    extra = 0.0
    for past in range(0, 3000, chunk):
        sizes = np.array([float(min(chunk, 3000 - past))]), np.array([float(past)]), one
        extra += float((seen.prompt_attention_s(*sizes) - plain.prompt_attention_s(*sizes))[0])
    whole = np.array([3000.0]), np.array([0.0]), one
    assert extra == pytest.approx(float((seen.prompt_attention_s(*whole) - plain.prompt_attention_s(*whole))[0]))


def test_decoding_does_not_wait_for_the_tower() -> None:
    plain, seen = step_model(on("qwen3-vl-8b")), step_model(on("qwen3-vl-8b", images="1x1024x1024"))
    assert float(seen.decode(8, 2000)) == float(plain.decode(8, 2000))


def test_speeds_that_rest_on_other_kernels_do_not_count_as_measured() -> None:
    assert speed_badge(on("qwen3-vl-8b")) is Badge.measured
    assert speed_badge(on("qwen3-vl-8b", images="1x64x64")) is Badge.modelled
    assert speed_badge(on("bge-m3")) is Badge.modelled
