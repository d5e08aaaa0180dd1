"""Flag sets change a setup as they say, are spelled as engines take them, and leave out what an engine refuses."""

import json
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from tests.there import refused, there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.operate.flag_sets import (
    MODELLED,
    SPELLED,
    Axes,
    FlagSet,
    FlagSpace,
    Value,
    gpus_of,
    parse_axes,
    server_plan,
    space_of,
    usual_axes,
    values_in,
    values_now,
    with_values,
    words_of,
)
from tokonomics.physics.deployment import deploy
from tokonomics.sizing.load import load_of_shape
from tokonomics.sizing.setup import Setup

KNOWN = json.loads((Path(__file__).parents[1] / "deploy" / "engine_flags.json").read_text(encoding="utf-8"))


def setup(model: str = "llama-3.1-8b", gpu: str = "H100", engine: str = "vllm", prompt: int = 500, **how: Any) -> Setup:
    deployment = deploy(find_model(model), find_gpu(gpu), find_engine(engine), **how)
    return Setup(deployment, load_of_shape(2.0, f"const:{prompt}", "const:100"))


def words(engine: str, **values: Value) -> list[str]:
    return words_of(setup(engine=engine), engine, FlagSet(values=values))


# --- what a knob does -----------------------------------------------------------------------------------------------


def test_each_knob_changes_what_it_is_named_for_and_nothing_else() -> None:
    started = setup("qwen3-30b-a3b", "H200")
    changes: dict[str, tuple[Value, Any]] = {
        "max_sequences": (48, lambda now: now.max_sequences == 48),
        "max_batched_tokens": (2048, lambda now: now.handling.max_batched_tokens == 2048),
        "kv": ("fp8", lambda now: now.deployment.kv is Precision.fp8),
        "weights": ("fp8", lambda now: now.deployment.weights is Precision.fp8),
        "prefix_cache": (False, lambda now: not now.prefix_cache),
        "captured_tokens": (512, lambda now: now.deployment.flags.captured_tokens == 512),
        "composes_ahead": (False, lambda now: now.deployment.flags.composes_ahead is False),
        "tp": (2, lambda now: now.deployment.tp == 2),
        "pp": (2, lambda now: now.deployment.pp == 2),
        "dp": (2, lambda now: now.deployment.dp == 2),
        "ep": (1, lambda now: now.deployment.ep == 1),
        "tiers": ("dram=100@0", lambda now: now.tiers == "dram=100@0"),
    }
    assert {*changes, "draft"} == set(MODELLED)
    for knob, (value, is_so) in changes.items():
        changed = with_values(started, {knob: value})
        assert is_so(changed), knob
        for other, (_, is_other) in changes.items():
            assert other in (knob, "ep") or not is_other(changed), (knob, other)
    drafting = with_values(setup(), {"draft": "eagle"})
    assert there(drafting.deployment.speculation).method.value == "eagle3"
    assert with_values(drafting, {"draft": "none"}).deployment.speculation is None
    assert with_values(started, {"threads": 4, "no-such-flag": "x"}) == started


def test_a_plan_of_a_server_has_the_limits_that_were_set() -> None:
    limits = server_plan(with_values(setup(), {"max_sequences": 48, "max_batched_tokens": 2048})).limits
    assert (limits.max_sequences, limits.max_batched_tokens) == (48, 2048)
    assert server_plan(setup()).limits == setup().deployment.limits


# --- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_flag_is_one_of_the_engines_own(engine: str) -> None:
    """Python's ``BooleanOptionalAction`` adds ``--no-…``; the list holds such flags by their positive name."""
    accepted = set(KNOWN[engine]["flags"])
    for name in (name for names in SPELLED[engine].values() for name in names):
        assert f"--{name}" in accepted or f"--{name.removeprefix('no-')}" in accepted, name
    assert set(SPELLED[engine]) == set(MODELLED)


@pytest.mark.parametrize(
    ("engine", "values", "expected"),
    [
        ("vllm", {"max_sequences": 64}, "--max-num-seqs 64"),
        ("vllm", {"max_batched_tokens": 2048}, "--max-num-batched-tokens 2048"),
        ("vllm", {"kv": "fp8"}, "--kv-cache-dtype fp8"),
        ("vllm", {"kv": "bf16"}, "--kv-cache-dtype auto"),
        ("vllm", {"weights": "fp8"}, "--quantization fp8_per_tensor"),
        ("vllm", {"weights": "bf16"}, ""),
        ("vllm", {"prefix_cache": True}, "--enable-prefix-caching"),
        ("vllm", {"prefix_cache": False}, "--no-enable-prefix-caching"),
        ("vllm", {"captured_tokens": 512}, "--max-cudagraph-capture-size 512"),
        ("vllm", {"captured_tokens": 0}, "--enforce-eager"),
        ("vllm", {"composes_ahead": True}, "--async-scheduling"),
        ("vllm", {"composes_ahead": False}, "--no-async-scheduling"),
        ("vllm", {"tp": 2, "pp": 2}, "--tensor-parallel-size 2 --pipeline-parallel-size 2"),
        ("vllm", {"dp": 2, "max_sequences": 64}, "--data-parallel-size 2 --max-num-seqs 32"),
        ("vllm", {"tiers": "dram=100@0"}, f"--kv-offloading-size {100e9 / 2**30:.1f}"),
        ("vllm", {"draft": "none"}, ""),
        ("vllm", {"seed": 3, "flag": True, "other": False}, "--seed 3 --flag"),
        ("sglang", {"max_sequences": 64}, "--max-running-requests 64"),
        ("sglang", {"max_batched_tokens": 2048}, "--chunked-prefill-size 2048"),
        ("sglang", {"kv": "fp8"}, "--kv-cache-dtype fp8_e4m3"),
        ("sglang", {"weights": "fp8"}, "--quantization fp8"),
        ("sglang", {"prefix_cache": True}, ""),
        ("sglang", {"prefix_cache": False}, "--disable-radix-cache"),
        ("sglang", {"captured_tokens": 0}, "--disable-decode-cuda-graph"),
        ("sglang", {"composes_ahead": False}, "--disable-overlap-schedule"),
        ("sglang", {"tp": 2, "dp": 2}, "--tp-size 4 --attn-dp-size 2"),
        ("sglang", {"dp": 2}, "--attn-dp-size 2 --tp-size 2"),
        ("sglang", {"tiers": "dram=100@0"}, "--enable-hierarchical-cache --hicache-size 100"),
        ("llama.cpp", {"max_sequences": 8}, f"--parallel 8 --ctx-size {8 * 600}"),
        ("llama.cpp", {"kv": "fp8"}, "--cache-type-k q8_0 --cache-type-v q8_0"),
        ("llama.cpp", {"threads": 4}, "--threads 4"),
    ],
)
def test_a_set_is_spelled_as_the_engine_takes_it(engine: str, values: dict[str, Value], expected: str) -> None:
    said, wanted = words(engine, **values), expected.split()
    assert sorted(said) == sorted(wanted)
    for name, value in pairwise(wanted):
        if name.startswith("--") and not value.startswith("--"):
            assert said[said.index(name) + 1] == value


def test_a_draft_of_each_engine_names_its_method_and_checkpoint() -> None:
    vllm = words("vllm", draft="eagle")
    assert vllm[0] == "--speculative-config"
    assert json.loads(vllm[1])["method"] == "eagle3"
    sglang = words("sglang", draft="eagle")
    assert sglang[:2] == ["--speculative-algorithm", "EAGLE3"]
    tokens = json.loads(vllm[1])["num_speculative_tokens"]
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == str(tokens + 1)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
def test_values_are_read_back_from_the_words_they_were_spelled_with(engine: str) -> None:
    tried: dict[str, tuple[Value, ...]] = {
        "max_sequences": (64, 256), "max_batched_tokens": (2048,), "kv": ("fp8", "bf16"), "prefix_cache": (False,),
    }  # fmt: skip
    if engine != "llama.cpp":
        tried |= {"weights": ("fp8",), "captured_tokens": (0, 512), "composes_ahead": (False,), "tp": (1, 2),
                  "dp": (2,)}  # fmt: skip
    for values in product(*tried.values()):
        given = dict(zip(tried, values, strict=True))
        assert values_in(["serve", "m", *words(engine, **given)], engine) == given


def test_words_may_be_joined_by_an_equals_sign_and_others_are_passed_over() -> None:
    line = "vllm serve max-num-seqs --max-num-seqs=64 --kv-cache-dtype=fp8_e4m3 --tensor-parallel-size many --port 8000"
    assert values_in(line.split(), "vllm") == {"max_sequences": 64, "kv": "fp8"}
    assert values_in(["--max-num-seqs"], "vllm") == {}
    moe = "vllm serve m --tensor-parallel-size 4 --data-parallel-size 2 --enable-expert-parallel --max-num-seqs 32"
    assert values_in(moe.split(), "vllm") == {"tp": 4, "dp": 2, "ep": 8, "max_sequences": 64}
    assert values_in(["--max-num-seqs", "64"], "tensorrt-llm") == {}


# --- which sets there are -------------------------------------------------------------------------------------------


def whole(started: Setup, axes: Axes, space: FlagSpace) -> list[dict[str, Value]]:
    """Every knob's value of each set: a set names only what differs from the server as it is started."""
    return [{**values_now(started, axes), **each.values} for each in space.sets]


def test_vllm_is_never_given_fewer_tokens_than_sequences() -> None:
    axes = {"max_sequences": (64, 512, 1024), "max_batched_tokens": (256, 512, 1024)}
    space = space_of(setup(), "vllm", axes)
    tried = {(each["max_sequences"], each["max_batched_tokens"]) for each in whole(setup(), axes, space)}
    assert tried == {(64, 256), (64, 512), (64, 1024), (512, 512), (512, 1024), (1024, 1024)}
    assert space.refused == {"vLLM refuses fewer tokens a step than sequences": 3}
    assert len(space_of(setup(engine="sglang"), "sglang", axes).sets) == 9


def test_kv_in_eight_bits_is_left_out_where_the_gpu_has_none() -> None:
    """16 GB of a T4 hold the 3B model; vLLM keeps no FP8 there."""
    space = space_of(setup("llama-3.2-3b", "T4"), "vllm", {"kv": ("bf16", "fp8")})
    assert space.sets == ()
    assert list(space.refused.values()) == [1]
    assert "does not keep KV in fp8 on turing" in next(iter(space.refused))
    assert "kv" not in usual_axes(setup("llama-3.2-3b", "T4"), 1)
    assert usual_axes(setup(), 1)["kv"] == ("bf16", "fp8")


def test_what_does_not_fit_is_never_tried() -> None:
    """70.6 billion weights of 16 bits are 141 GB: above the 86 GB of an H100, below the 172 GB of two, KV included."""
    axes = {"tp": (1, 2, 4)}
    space = space_of(setup("llama-3.3-70b", "H100"), "vllm", axes, gpus=4)
    assert [each.values["tp"] for each in space.sets] == [2, 4]
    assert sum(space.refused.values()) == 1
    assert any("does not fit" in reason for reason in space.refused)
    on_two = space_of(setup("llama-3.1-8b", "H100"), "vllm", axes, gpus=2)
    assert [each.values["tp"] for each in on_two.sets] == [2]
    assert on_two.refused == {"takes more than the 2 GPUs of the machine": 1}


def test_requests_beyond_the_models_context_leave_no_set() -> None:
    space = space_of(setup("llama-3-8b", prompt=9000), "vllm", {"max_sequences": (64,)})
    assert space.sets == ()
    assert "exceed the model's 8,192 of context" in next(iter(space.refused))


def test_knobs_without_a_flag_of_the_engine_are_never_tried() -> None:
    space = space_of(setup(engine="llama.cpp"), "llama.cpp", {"tp": (1, 2), "max_sequences": (8, 16)}, gpus=2)
    assert all(each.values.keys() == {"max_sequences"} for each in space.sets)
    assert space.refused == {"no flag of llama.cpp is known for tp": 2}


def test_weights_that_no_flag_makes_are_never_tried() -> None:
    space = space_of(setup(), "vllm", {"weights": ("bf16", "fp8", "int4")})
    assert [each.values["weights"] for each in space.sets] == ["fp8"]
    assert space.refused == {"no flag makes int4 of bf16 weights": 1}
    back = space_of(setup(weights=Precision.fp8), "vllm", {"weights": ("bf16", "fp8")})
    assert (back.sets, list(back.refused.values())) == ((), [1])


def test_experts_are_shared_by_all_gpus_of_a_stage_or_by_none() -> None:
    axes = {"tp": (1, 2, 4), "ep": (1, 2, 4)}
    started = setup("qwen3-30b-a3b", "H200")
    tried = whole(started, axes, space_of(started, "vllm", axes, gpus=4))
    assert {(each["tp"], each["ep"]) for each in tried} == {(2, 1), (2, 2), (4, 1), (4, 4)}


def test_llama_cpp_takes_no_micro_batch_above_its_batch() -> None:
    space = space_of(None, "llama.cpp", {"batch-size": (64, 256), "ubatch-size": (64, 128)})
    pairs = [tuple(each.values.values()) for each in space.sets]
    assert pairs == [(64, 64), (256, 64), (256, 128)]
    assert list(space.refused.values()) == [1]


@pytest.mark.parametrize(("model", "gpu", "engine", "gpus"), [
    ("llama-3.1-8b", "H200", "vllm", 1), ("llama-3.1-8b", "H100", "sglang", 2), ("qwen3-30b-a3b", "H200", "vllm", 2),
    ("llama-3.1-8b", "H100", "llama.cpp", 1),
])  # fmt: skip
def test_no_two_sets_are_the_same_command(model: str, gpu: str, engine: str, gpus: int) -> None:
    started = setup(model, gpu, engine)
    axes = usual_axes(started, gpus)
    space = space_of(started, engine, axes, gpus)
    lines = [tuple(words_of(started, engine, each)) for each in space.sets]
    assert len(set(lines)) == len(lines) > 20
    for knob, values in axes.items():  # every value is left in some set: none is lost for its words
        if knob not in ("tp", "dp", "ep"):
            assert {each[knob] for each in whole(started, axes, space)} >= set(values), knob


def test_values_that_are_named_twice_are_tried_once() -> None:
    assert len(space_of(setup(), "vllm", {"max_sequences": (64, 64, 128)}).sets) == 2
    assert len(space_of(None, "vllm", {"seed": (1, 1), "eager": (True, False)}).sets) == 2


def test_few_sequences_have_the_captured_size_named_beside_them() -> None:
    """vLLM captures graphs up to twice the sequences and 512: 255 would leave it at 510."""
    space = space_of(setup(), "vllm", {"max_sequences": (16, 255, 256, 512)})
    assert [each.values.get("captured_tokens") for each in space.sets] == [512, 512, None, None]
    assert words_of(setup(), "vllm", space.sets[0]) == ["--max-num-seqs", "16", "--max-cudagraph-capture-size", "512"]
    named = space_of(setup(), "vllm", {"max_sequences": (16,), "captured_tokens": (64,)})
    assert named.sets[0].values["captured_tokens"] == 64
    assert space_of(setup(engine="sglang"), "sglang", {"max_sequences": (16,)}).sets[0].values == {"max_sequences": 16}
    started = with_values(setup(), {"captured_tokens": 64})
    assert space_of(started, "vllm", {"max_sequences": (16,)}).sets[0].values == {"max_sequences": 16}


# --- what the user names --------------------------------------------------------------------------------------------


def test_flags_are_named_as_the_engine_or_the_library_spells_them() -> None:
    assert parse_axes(["max-num-seqs=64/128,kv=bf16/fp8", "--seed=1"], "vllm", simulated=True) == {
        "max_sequences": (64, 128), "kv": ("bf16", "fp8"), "seed": (1,),
    }  # fmt: skip
    assert parse_axes(["max_sequences=64", "prefix-cache=true/false"], "vllm", simulated=True) == {
        "max_sequences": (64,), "prefix_cache": (True, False),
    }  # fmt: skip
    assert parse_axes(["kv-cache-dtype=auto/fp8"], "vllm", simulated=True) == {"kv": ("bf16", "fp8")}
    assert parse_axes(["kv-cache-dtype=fp8_e4m3"], "sglang", simulated=True) == {"kv": ("fp8",)}
    assert parse_axes(["max-num-seqs=64/128", "x=a"], "vllm", simulated=False) == {
        "max-num-seqs": (64, 128), "x": ("a",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "text", "knob"),
    [("sglang", "disable-radix-cache=true/false", "prefix_cache"),
     ("sglang", "disable-overlap-schedule=true/false", "composes_ahead"),
     ("llama.cpp", "no-cache-prompt=true/false", "prefix_cache")],
)  # fmt: skip
def test_a_flag_that_turns_something_off_turns_it_off(engine: str, text: str, knob: str) -> None:
    axes = parse_axes([text], engine, simulated=True)
    assert axes == {knob: (False, True)}
    (name, *_) = text.split("=")
    assert words(engine, **{knob: axes[knob][0]}) == [f"--{name}"]
    assert words(engine, **{knob: axes[knob][1]}) == []


@pytest.mark.parametrize(
    "text",
    ["max-num-seqs", "=64", "max-num-seqs=", "", ",", "max-num-seqs=many", "max-num-seqs=0", "tp=-1", "kv=int1",
     "weights=float7", "prefix-cache=perhaps", "max-num-seqs=64/", "seed=1/", "enable-expert-parallel=true"],
)  # fmt: skip
def test_what_names_no_values_is_refused(text: str) -> None:
    assert refused(parse_axes, [text], "vllm", simulated=True).field == "try_"


def test_a_set_is_named_by_its_values() -> None:
    assert FlagSet(values={"max_sequences": 64, "prefix_cache": False}).text == "max-sequences=64, prefix-cache=false"
    assert FlagSet(values={}).text == "as started"
    assert len({FlagSet(values={"a": 1, "b": 2}), FlagSet(values={"b": 2, "a": 1})}) == 1


@pytest.mark.parametrize(
    ("values", "gpus"),
    [
        ({}, 8),
        ({"max-num-seqs": 64}, 8),
        ({"tensor-parallel-size": 2}, 4),
        ({"dp": 1}, 4),
        ({"tp_size": 1, "dp": 1}, 1),
    ],
)
def test_a_set_that_names_no_layout_has_the_gpus_of_the_command(values: dict[str, Value], gpus: int) -> None:
    """Four GPUs for each of two groups, as started."""
    assert gpus_of(FlagSet(values=values), {"tp": 4, "dp": 2, "max_sequences": 64}) == gpus
