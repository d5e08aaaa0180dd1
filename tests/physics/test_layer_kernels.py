"""Sparse attention and recurrent layers: monotone, above the datasheet's floor, close to what was timed on an H200."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import Gpu, all_gpus, find_gpu
from tokonomics.catalog.layers import KV_PRECISIONS, LatentAttention, Precision, Recurrence, kv_bytes_per_element
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.curves import Array
from tokonomics.physics.deployment import deploy
from tokonomics.physics.intervals import speed_badge, speed_from
from tokonomics.physics.layer_kernels import absorbed_prompt_s, index_s, layer_origin, scan_s, sparse_decode_s, state_s
from tokonomics.types import Badge

TIMINGS = json.loads((Path(__file__).parents[2] / "benchmarks" / "data" / "h200_new_layers.json").read_text())
H200 = find_gpu("H200")
LATENT = {"kv_rank": 512, "rope_dim": 64}
PAIR_FLOPS, KEY_BYTES = 2.0 * 64 * 128, 132.0
GROWING = np.geomspace(1, 2e5, 60)
RECURRENCES: tuple[Recurrence, ...] = ("delta", "kda", "mamba2", "mamba")

gpus = st.sampled_from(all_gpus())
kvs = st.sampled_from(sorted(KV_PRECISIONS))
heads = st.sampled_from([4, 16, 64, 128])


def rises(times: Array) -> bool:
    return bool(np.all(np.diff(times) >= 0))


@settings(max_examples=60, deadline=None)
@given(gpu=gpus, kv=kvs, heads=heads, other=st.integers(1, 4096))
def test_more_of_anything_never_takes_less(gpu: Gpu, kv: Precision, heads: int, other: int) -> None:
    laws: list[Callable[[ArrayLike, ArrayLike], Array]] = [
        lambda a, b: sparse_decode_s(gpu, kv, a, b, heads=heads, **LATENT),
        lambda a, b: absorbed_prompt_s(gpu, kv, a, b, heads=heads, **LATENT),
        lambda a, b: index_s(gpu, a, np.multiply(a, b), b, pair_flops=PAIR_FLOPS, key_bytes=KEY_BYTES),
        *(lambda a, b, kind=kind: scan_s(gpu, kind, a, b, token_flops=5e6) for kind in RECURRENCES),
    ]
    for law in laws:
        assert rises(law(GROWING, other))
        assert rises(law(other, GROWING))
    assert rises(state_s(gpu, GROWING, state_bytes=other))


@settings(max_examples=60, deadline=None)
@given(gpu=gpus, kv=kvs, heads=heads, batch=st.integers(1, 512), rows=st.integers(1, 1 << 17))
def test_nothing_beats_the_datasheet(gpu: Gpu, kv: Precision, heads: int, batch: int, rows: int) -> None:
    pairs, bandwidth, peak = batch * rows, gpu.bandwidth_bytes_per_s, gpu.peak_flops(Precision.bf16)
    attended = 2.0 * (2 * 512 + 64) * heads * pairs / peak
    read = 576 * kv_bytes_per_element(kv) * pairs / bandwidth
    assert sparse_decode_s(gpu, kv, batch, rows, heads=heads, **LATENT) >= max(attended, read)
    assert absorbed_prompt_s(gpu, kv, pairs, rows, heads=heads, **LATENT) >= attended
    scored = index_s(gpu, batch, pairs, pairs, pair_flops=PAIR_FLOPS, key_bytes=KEY_BYTES)
    assert scored >= max(PAIR_FLOPS * pairs / gpu.peak_flops(Precision.fp8), (KEY_BYTES + 8) * pairs / bandwidth)
    assert state_s(gpu, batch, state_bytes=rows) >= 2.0 * batch * rows / bandwidth
    for kind in RECURRENCES:
        assert scan_s(gpu, kind, batch, rows, token_flops=5e6) >= 5e6 * pairs / peak


@pytest.mark.parametrize(
    "section", ["sparse_decode", "sparse_prompt", "index_decode", "index_prompt", "decode", "scan"]
)
def test_kernels_on_an_h200_are_told_within_fifteen_percent(section: str) -> None:
    """At the median, of vLLM 0.26.0's kernels timed one by one."""
    off = [abs(np.log(1e6 * float(told) / row["us"])) for told, row in CASES[section]()]
    assert np.median(off) < np.log(1.15)


def _sparse_decode() -> list[tuple[Any, dict[str, Any]]]:
    return [
        (sparse_decode_s(H200, Precision(row["kv"]), row["batch"], row["rows"], heads=row["heads"], **LATENT), row)
        for row in TIMINGS["sparse_decode"]
    ]


def _sparse_prompt() -> list[tuple[Any, dict[str, Any]]]:
    """The kernel that vLLM takes: few heads over 8-bit rows, the others over 16-bit ones."""
    rows = [row for row in TIMINGS["sparse_prompt"] if row["kernel"] == "flashmla"]
    return [
        (absorbed_prompt_s(H200, Precision.fp8, row["tokens"] * 2048, 32768, heads=row["heads"], **LATENT), row)
        for row in rows
    ]


def _index(section: str) -> list[tuple[Any, dict[str, Any]]]:
    """Scores and choice of one shape are two rows, told as one time."""
    found = []
    rows = [row for row in TIMINGS[section] if row["heads"] == 64]
    for scores, choice in zip(rows[::2], rows[1::2], strict=True):
        if section == "index_decode":
            queries, keys = scores["batch"], scores["batch"] * scores["context"]
            pairs = keys
        else:
            queries, keys = scores["tokens"], scores["end"]
            pairs = sum(range(keys - queries + 1, keys + 1))
        told = index_s(H200, queries, pairs, keys, pair_flops=PAIR_FLOPS, key_bytes=KEY_BYTES)
        found.append((told, {"us": scores["us"] + choice["us"]}))
    return found


def _states() -> list[tuple[Any, dict[str, Any]]]:
    """Both have 524,288 elements: 32 heads of 128 × 128, or 64 of 64 × 128."""
    rows = TIMINGS["delta_decode"] + TIMINGS["mamba_decode"]
    return [(state_s(H200, row["batch"], state_bytes=524288 * int(row["state"][-2:]) / 8), row) for row in rows]


def _scans() -> list[tuple[Any, dict[str, Any]]]:
    """FLOPs of a token and head: chunks of 64 and of 128, as the papers count them (catalog/config_layers.py)."""
    delta, mamba = 2 * 64 * 5 * 128 + 6 * 128 * 128, 2 * 128 * (128 + 64) + 4 * 128 * 64
    found = []
    for row in TIMINGS["delta_prompt"] + TIMINGS["mamba_prompt"]:
        kind: Recurrence = {"gdn": "delta", "kda": "kda"}.get(row.get("kind"), "mamba2")  # type: ignore[assignment]
        flops = row["heads"] * (mamba if kind == "mamba2" else delta)
        found.append((scan_s(H200, kind, row["sequences"], row["tokens"], token_flops=flops), row))
    return found


CASES: dict[str, Callable[[], list[tuple[Any, dict[str, Any]]]]] = {
    "sparse_decode": _sparse_decode,
    "sparse_prompt": _sparse_prompt,
    "index_decode": lambda: _index("index_decode"),
    "index_prompt": lambda: _index("index_prompt"),
    "decode": _states,
    "scan": _scans,
}


def test_timings_of_the_h200_speak_for_its_family_and_are_assumed_elsewhere() -> None:
    assert layer_origin(H200) == ("measured", "H200")
    assert layer_origin(find_gpu("H100")) == ("scaled", "H200")
    assert layer_origin(find_gpu("B200")) == ("assumed", "H200")


@pytest.mark.parametrize(
    ("gpu", "badge"), [("H200", Badge.measured), ("H100", Badge.modelled), ("B200", Badge.assumed)]
)
def test_a_model_with_chosen_rows_is_known_as_its_kernels_are(gpu: str, badge: Badge) -> None:
    """DeepSeek-V3 by itself is timed on each of them; with 2,048 chosen rows it is only on the H200."""
    model = find_model("deepseek-v3")
    groups = tuple(
        group.model_copy(update={"mixer": group.mixer.model_copy(update={"topk": 2048})})
        if isinstance(group.mixer, LatentAttention)
        else group
        for group in model.groups
    )
    sparse = model.model_copy(update={"groups": groups})
    deployment = deploy(sparse, find_gpu(gpu), find_engine("vllm"), tp=8)
    assert speed_badge(deployment) is badge
    assert ("H200" in speed_from(deployment)) == (gpu != "H200")
