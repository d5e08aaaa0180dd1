"""What a machine of one's own can run, against arithmetic on the datasheet and the models' published shapes."""

from functools import cache

import pytest
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import all_models, find_model
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.money.own_hardware import Power, Purchase
from tokonomics.physics.curves import power_of
from tokonomics.physics.steptime import step_model
from tokonomics.planner.can_run import CanRun, OwnMachine, RunnableModel, can_run
from tokonomics.traffic.slo import parse_slos

GIB = 2**30
VISIBLE_3090 = 25_318_832_209  # bytes a process sees of a 24 GB card (vllm-project/vllm#14447)
VLLM_SHARE = 0.92  # vLLM 0.26: gpu_memory_utilization
BANDWIDTH_3090 = 936e9  # datasheet
RUNTIME = (0.16 + 0.5 + 0.37) * GIB  # outside the allocator, CUDA graphs, communication buffers of tensor parallelism
SAMPLER = 40 * 128_256 * 256  # bytes a logit × Llama 3's vocabulary × sequences


def asked(*names: str, gpu: str = "RTX3090", gpus: int = 2, slo: str = "tpot=50ms", context: int = 4096,
          power: Power | None = None, weights: tuple[Precision, ...] | None = None) -> CanRun:  # fmt: skip
    machine = OwnMachine(find_gpu(gpu), gpus, find_engine("vllm"), power)
    models = [find_model(name) for name in names] or all_models()
    return can_run(models, machine, context, parse_slos(slo), weights=weights, every_layout=bool(names))


def row_of(found: CanRun, weights: str) -> RunnableModel:
    return next(row for row in found.runs if row.weights == weights)


def test_llama_8b_as_published_on_two_3090s_is_what_its_bytes_say() -> None:
    row = row_of(asked("llama-3.1-8b"), "bf16")
    # 32 layers: queries and outputs 4096 × 4096, keys and values 4096 × 1024, three of 4096 × 14336, two norms.
    layer = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096
    table = 128_256 * 4096
    weights = 2 * (32 * layer + 2 * table + 4096)
    assert row.weight_bytes == weights
    # Two GPUs hold half of the weights each, and half of the 8 KV heads of 128: keys and values in 2 bytes.
    sequence = 4096 * 32 * 2 * 4 * 128 * 2
    budget = VLLM_SHARE * VISIBLE_3090 - weights / 2 - SAMPLER - RUNTIME
    assert (row.tp, row.pp, row.replicas) == (2, 1, 1)
    assert row.users == int(budget // sequence) == 47
    assert row.limited_by == "KV memory"
    # A step reads all weights but the table of the input once, and the KV cache of every sequence: no step is faster.
    alone = (weights / 2 - table + sequence) / BANDWIDTH_3090
    full = (weights / 2 - table + 47 * sequence) / BANDWIDTH_3090
    assert alone < 1 / row.alone_tokens_per_s.mid < 2 * alone
    assert row.tpot_s is not None
    assert full < row.tpot_s < 2 * full
    assert row.tpot_s <= 0.05


def test_users_are_the_ranks_times_the_limit_of_each_in_the_command() -> None:
    found = asked("qwen3-30b-a3b", "gpt-oss-20b", gpu="L40S", gpus=4, context=2500)
    assert {row.dp for row in found.runs} == {1, 2, 4}
    for row in found.runs:
        assert row.command is not None
        limit = int(row.command.split("--max-num-seqs ")[1].split()[0])
        assert row.users == row.replicas * row.dp * limit, row.command


def test_a_70b_at_int4_leaves_two_3090s_room_for_one_sequence() -> None:
    found = asked("llama-3.3-70b")
    row = next(row for row in found.runs if row.tp == 2)  # neither 141 GB nor 71 GB go into 48
    assert {run.weights for run in found.runs} == {Precision.int4}
    assert (row.weights, row.kv, row.below_checkpoint) == (Precision.int4, Precision.bf16, True)
    matrices = 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28_672)
    tables, norms = 2 * 128_256 * 8192, 80 * 2 * 8192 + 8192
    # AWQ: half a byte, and for each 128 a 16-bit scale and a 4-bit zero point; tables and norms stay in 16 bits.
    weights = matrices * (0.5 + 2.5 / 128) + 2 * (tables + norms)
    assert row.weight_bytes == pytest.approx(weights, rel=1e-9)
    assert 39e9 < weights < 41e9
    token = 80 * 2 * 4 * 128 * 2
    budget = VLLM_SHARE * VISIBLE_3090 - weights / 2 - SAMPLER - RUNTIME
    assert row.users == int(budget // (4096 * token)) == 1
    assert row.longest_context == int(budget // (16 * token)) * 16  # in blocks of 16 tokens
    step = (weights / 2 - tables / 2) / BANDWIDTH_3090
    assert step < 1 / row.alone_tokens_per_s.mid < 2.2 * step


def test_dollars_are_watts_and_the_price_of_the_machine_over_the_tokens_written() -> None:
    power = Power(gpus=2, usd_per_kwh=0.3, host_watts=150, pue=1.2)
    bought = Purchase(gpus=2, usd_per_kwh=0.3, host_watts=150, pue=1.2, purchase_usd=2500, years=3)
    electric, owned = (row_of(asked("llama-3.1-8b", power=kept), "bf16") for kept in (power, bought))
    tokens_per_hour, curve = there(electric.tokens_per_s).mid * 3600, there(power_of(find_gpu("RTX3090")))
    assert curve.idle_w == pytest.approx(350 * 124 / 700)
    busy_w = curve.decoding(electric.users / electric.replicas)
    for name, load in {"full": 1.0, "half": 0.5, "tenth": 0.1}.items():
        kilowatts = (2 * (load * busy_w + (1 - load) * curve.idle_w) / 1000 + 0.150) * 1.2
        mtok = tokens_per_hour * load / 1e6
        assert getattr(electric.usd_per_mtok, name) == pytest.approx(kilowatts * 0.3 / mtok)
        assert getattr(owned.usd_per_mtok, name) == pytest.approx((kilowatts * 0.3 + 2500 / 3 / 8760) / mtok)


@cache
def everything() -> CanRun:
    return asked()


def test_every_model_has_one_row_or_says_what_it_would_need() -> None:
    found = everything()
    fits, too_large = [row.model for row in found.runs], [row.model for row in found.too_large]
    assert sorted([*fits, *too_large]) == sorted(model.key for model in all_models())
    sizes = [row.parameters for row in found.runs]
    assert sizes == sorted(sizes, reverse=True)


def test_the_published_precision_comes_first_then_fp8_then_int4() -> None:
    taken = {row.model: row.weights.value for row in everything().runs}
    # 48 GB: 28 GB, 62 GB of which half is 33, 141 GB of which a quarter is 40; one is published in four bits.
    assert taken["qwen3-14b"] == "bf16"
    assert taken["qwen3-32b"] == "fp8"
    assert taken["llama-3.3-70b"] == "int4"
    assert taken["gpt-oss-20b"] == "mxfp4"
    for row in everything().runs:
        assert row.below_checkpoint == (row.weights.bits < find_model(row.model).served.bits), row.model


def test_what_is_too_large_fits_the_gpus_that_it_is_said_to_need_and_no_fewer() -> None:
    for row in everything().too_large[::4]:
        assert row.min_gpus is not None
        sold = [1, 2, 4, 8, *range(16, row.min_gpus + 1, 8)]
        assert row.min_gpus in sold
        enough, short = (
            asked(row.model, gpus=gpus, weights=(there(row.weights),))
            for gpus in (row.min_gpus, sold[sold.index(row.min_gpus) - 1])
        )
        assert enough.runs
        assert Precision.bf16 not in {run.kv for run in short.runs}


def test_a_named_model_is_shown_at_the_precisions_that_a_plan_tries() -> None:
    assert {row.weights.value for row in asked("llama-3.1-8b").runs} == {"bf16", "fp8"}
    assert {row.weights.value for row in asked("qwen3-32b").runs} == {"fp8"}
    assert {row.weights.value for row in asked("qwen3-32b", weights=(Precision.int4,)).runs} == {"int4"}


def test_a_stricter_slo_and_a_longer_context_never_serve_more_users() -> None:
    def users(**changed: object) -> dict[tuple[Precision, int, int], int]:
        found = asked("llama-3.1-8b", **changed).runs  # type: ignore[arg-type]
        return {(row.weights, row.tp, row.pp): row.users for row in found}

    for less, more in ((users(slo="tpot=20ms"), users()), (users(context=16_384), users())):
        assert all(few <= more[layout] for layout, few in less.items())
        assert less != more


def test_more_gpus_never_write_fewer_tokens() -> None:
    rates = []
    for gpus in (1, 2, 3, 4):
        row = row_of(asked("qwen3-8b", gpus=gpus), "bf16")
        assert row.replicas * row.tp * row.pp <= gpus
        rates.append(there(row.tokens_per_s).mid)
    assert rates == sorted(rates)


@pytest.mark.parametrize(("slo", "limit"), [("tpot=1ms", "TPOT SLO"), ("tpot=50ms,ttft=1ms", "TTFT SLO")])
def test_a_target_that_not_even_one_user_gets_serves_nobody_and_prices_nothing(slo: str, limit: str) -> None:
    found = asked("llama-3.1-8b", slo=slo, power=Power(gpus=2, usd_per_kwh=0.3, host_watts=0))
    assert {(row.users, row.limited_by, row.tokens_per_s, row.usd_per_mtok) for row in found.runs} == {
        (0, limit, None, None)
    }


def test_a_layout_whose_first_token_comes_in_time_is_taken_over_one_that_writes_more() -> None:
    anyhow, in_time = (row_of(asked("qwen3.5-35b-a3b", slo=slo), "fp8") for slo in ("tpot=50ms", "tpot=50ms,ttft=0.6"))
    assert there(in_time.tokens_per_s).mid < there(anyhow.tokens_per_s).mid
    assert in_time.ttft_s.mid <= 0.6 < anyhow.ttft_s.mid


def test_a_sequence_is_never_longer_than_the_model_accepts() -> None:
    (row, *_) = asked("gpt2-xl").runs
    assert (row.context, row.longest_context) == (1024, 1024)


def test_stages_are_for_gpus_without_a_fast_link_or_for_what_fits_no_other_way() -> None:
    assert {row.pp for row in asked("llama-3.1-8b", "llama-3.3-70b", gpu="H100", gpus=8).runs} == {1}
    assert row_of(asked("qwen2.5-72b", gpus=3), "int4").pp == 3  # 64 heads split by 2, and 2 × 24 GB are too few


def test_the_end_of_the_captured_graphs_is_named_where_it_and_not_the_slo_ends_the_batch() -> None:
    """vLLM captures steps of up to 512 sequences of an attention rank, and launches a longer one kernel by kernel."""
    found = asked("gpt-oss-120b", gpu="H200", gpus=8)
    ends = [row for row in found.runs if row.limited_by == "captured graphs end at 512 sequences"]
    assert {(row.tp, row.pp, row.dp) for row in ends} >= {(4, 1, 1), (4, 1, 2), (1, 1, 8)}
    for row in ends:
        degrees = row.tp, row.pp, row.ep, row.dp
        steps = step_model(stated_deployment(row.model, "H200", *degrees, row.weights, None, "vllm"))
        most = 512 * row.pp * row.dp
        assert row.users == most * row.replicas
        full_s, beyond_s = steps.decode([most, most + 1], 4096).tolist()
        assert full_s <= 0.05
        assert beyond_s > min(0.05, full_s * (most + 1) / most)
    by_slo = [row for row in found.runs if row.limited_by == "TPOT SLO"]
    assert by_slo
    assert all(0.049 < there(row.tpot_s) <= 0.05 for row in by_slo)
