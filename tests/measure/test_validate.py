"""Scores of tables whose answers are known: because they are small, or because we wrote our own predictions in."""

import itertools
import math
import statistics
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tests.measure.rows import measurement
from tests.there import there

from tokonomics.catalog.layers import Precision
from tokonomics.measure.measurements import Measurement, Metric, Mode, RunFacts, Statistic, Unread, read_measurements
from tokonomics.measure.stated_setup import Gathering, Recipe, recipe, steps_of
from tokonomics.measure.validate import (
    ScoredPrediction,
    beats_datasheet,
    impossible_rows,
    predict,
    simulated,
    spearman,
    summary,
    validate,
    value_of,
)
from tokonomics.physics.intervals import Interval
from tokonomics.serving.steady import ReplicaCurve, static_batch_s

STEPS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_steps.json"


def predicted(row: Measurement) -> ScoredPrediction:
    found = predict(row)
    assert isinstance(found, ScoredPrediction), found
    return found


def but(row: Measurement, **changes: Any) -> Measurement:
    return row.model_copy(update=changes)


def value(row: Measurement, **changes: Any) -> float:
    return value_of(but(row, **changes), steps_of(but(row, **changes)))


def off_by(factor: float, row: Measurement) -> Measurement:
    """The row with such a value that our prediction is ``factor`` times too high."""
    return but(row, value=predicted(row).interval.mid / factor)


VARIED = [
    measurement(),
    measurement(metric=Metric.ttft_s),
    measurement(metric=Metric.output_tok_s, batch=64),
    measurement(metric=Metric.total_tok_s, batch=None, mode=Mode.max_throughput),
    measurement(metric=Metric.output_tok_s, batch=None, rate=2.0, mode=Mode.server_slo),
    measurement(metric=Metric.output_tok_s, mode=Mode.fixed_batch, engine="tensorrt-llm", year=2024),
    measurement(model="llama-3.1-70b", gpu="A100-80GB", gpus=4, tp=4, year=2024, source="another"),
    measurement(model="mixtral-8x7b", gpu="H200", gpus=2, tp=2, engine="sglang"),
    measurement(gpu="MI300X", weights="fp8"),
]
BARE = [row for row in read_measurements(STEPS) if isinstance(row, Measurement)][::9]


def scored(error: float) -> ScoredPrediction:
    """A prediction that is off by this logarithm, in an interval from half of itself to twice."""
    return ScoredPrediction(measurement=measurement(value=math.exp(-error)), interval=Interval(low=0.5, mid=1, high=2))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=60))
@settings(max_examples=30)
def test_the_figures_are_numpys(errors: list[float]) -> None:
    found = summary([scored(error) for error in errors])
    sizes = np.abs(errors)
    assert found.n == len(errors)
    assert found.median_abs_log_error == pytest.approx(float(np.median(sizes)), abs=1e-12)
    assert found.p90_abs_log_error == pytest.approx(float(np.percentile(sizes, 90, method="inverted_cdf")), abs=1e-12)
    assert found.bias == pytest.approx(float(np.median(errors)), abs=1e-12)
    clear = [error for error in errors if abs(abs(error) - math.log(2)) > 1e-9]
    inside = summary([scored(error) for error in clear]).inside_interval if clear else 0.0
    assert inside == pytest.approx(float(np.mean(np.abs(clear) < math.log(2))) if clear else 0.0)


numbers = st.integers(0, 5).map(float) | st.floats(0.001, 1000)


@given(st.lists(st.tuples(numbers, numbers), min_size=2, max_size=25))
@settings(max_examples=30)
def test_rank_correlations_are_scipys(both: list[tuple[float, float]]) -> None:
    one, other = [x for x, _ in both], [y for _, y in both]
    if len(set(one)) > 1 and len(set(other)) > 1:
        assert spearman(one, other) == pytest.approx(float(spearmanr(one, other).statistic), abs=1e-9)
        assert spearman(one, other) == pytest.approx(spearman(other, one), abs=1e-12)
        assert spearman(one, [-each for each in other]) == pytest.approx(-spearman(one, other), abs=1e-9)


def trio(values: Sequence[float], **changes: Any) -> list[Measurement]:
    """Three GPUs that differ in speed and in nothing else, slowest first, with these measured TPOTs."""
    gpus = ("L40S", "A100-80GB", "H100")
    return [measurement(gpu=gpu, value=each, **changes) for gpu, each in zip(gpus, values, strict=True)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [((3, 2, 1), 1.0), ((1, 2, 3), -1.0), ((3, 1, 2), 0.5), ((2, 2, 1), 1.5 / math.sqrt(1.5 * 2))],
)
def test_three_gpus_are_ranked(order: tuple[float, ...], expected: float) -> None:
    mids = [predicted(row).interval.mid for row in trio((1, 1, 1))]
    assert mids == sorted(mids, reverse=True)
    ranking = validate(trio(order))[0].ranking
    assert (ranking.groups, ranking.pairs) == (1, 3)
    assert ranking.spearman == pytest.approx(expected)


def test_a_ranking_is_the_mean_over_what_is_alike() -> None:
    rows = [*trio((3, 2, 1)), *trio((1, 2, 3), batch=32), *trio((3, 1, 2), source="another")]
    ranking = validate(rows)[0].ranking
    assert (ranking.groups, ranking.pairs) == (3, 9)
    assert ranking.spearman == pytest.approx((1 - 1 + 0.5) / 3)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        trio((3, 2, 1))[:2],
        [*trio((3, 2, 1))[:2], measurement(batch=32)],
        trio((3, 2, 1), metric=Metric.ttft_s),
        [measurement(value=each) for each in (1, 2, 3)],
        [measurement(gpu=gpu, value=2.0) for gpu in ("H100", "H100-SXM", "NVIDIA H100 80GB HBM3")],
    ],
    ids=["none", "two", "another load", "first token", "one GPU", "one GPU, three names"],
)
def test_fewer_than_three_kinds_of_gpus_are_no_ranking(rows: list[Measurement]) -> None:
    ranking = validate(rows)[0].ranking
    assert (ranking.groups, ranking.pairs, ranking.spearman) == (0, 0, None)


def test_the_worst_rows_are_named_by_the_factor_they_are_off_the_farthest_first() -> None:
    mid = predicted(measurement()).interval.mid
    factors = {"a": 1.5, "b": 1 / 8, "c": 4.0, "d": 1.0, "e": 1.2, "f": 1 / 2, "g": 1.1}
    rows = [measurement(key=key, value=mid / factor) for key, factor in factors.items()]
    worst = validate(rows)[0].worst
    assert [row.key for row in worst] == ["b", "c", "f", "a", "e"]
    assert [row.ratio for row in worst] == pytest.approx([1 / 8, 4.0, 1 / 2, 1.5, 1.2])
    assert (worst[0].measured, worst[0].predicted) == pytest.approx((8 * mid, mid))


def test_gpus_that_measured_all_the_same_spoil_no_score() -> None:
    result, _ = validate([*trio((2, 2, 2)), *trio((3, 2, 1), batch=32)])
    assert result.predicted == 6
    assert result.ranking.spearman == pytest.approx(1.0)
    assert validate(trio((2, 2, 2)))[0].ranking.spearman is None


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.97])
@pytest.mark.parametrize("rows", [VARIED, BARE], ids=["served", "bare"])
def test_rows_that_are_all_off_by_a_factor_have_that_error(rows: list[Measurement], factor: float) -> None:
    result, predictions = validate([off_by(factor, row) for row in rows])
    assert (result.rows, result.predicted, result.not_predicted) == (len(rows), len(rows), {})
    assert result.overall is not None
    for group in (result.overall, *(each for groups in result.groups.values() for each in groups.values())):
        assert group.bias == pytest.approx(math.log(factor), abs=1e-12)
        assert group.median_abs_log_error == pytest.approx(abs(math.log(factor)), abs=1e-12)
        assert group.p90_abs_log_error == pytest.approx(abs(math.log(factor)), abs=1e-12)
        assert group.mean_abs_percentage_error == pytest.approx(abs(factor - 1), abs=1e-12)  # of what was measured
    inside = [each.interval.low <= each.interval.mid / factor <= each.interval.high for each in predictions]
    assert result.overall.inside_interval == pytest.approx(sum(inside) / len(inside))
    if factor == 1:
        assert all(inside)


@pytest.mark.parametrize("row", [*VARIED, BARE[0]], ids=lambda row: f"{row.model} {row.metric}")
def test_a_measurement_is_inside_up_to_the_ends_of_the_interval(row: Measurement) -> None:
    interval = predicted(row).interval
    assert interval.low < interval.mid < interval.high
    for end, beyond in [(interval.low, 0.999), (interval.high, 1.001)]:
        inside, outside = (but(row, value=end * by) for by in (1.0, beyond))
        assert predicted(inside).inside
        assert not predicted(outside).inside
        assert predicted(but(inside, value=end / beyond)).inside


def test_groups_are_named_after_what_ran() -> None:
    result, _ = validate([*VARIED, *BARE])
    counts = {kind: {name: group.n for name, group in groups.items()} for kind, groups in result.groups.items()}
    assert counts["model"] == {"MoE": 1, "dense": len(VARIED) - 1 + len(BARE)}
    assert counts["source"] == {"made up": len(VARIED) - 1, "another": 1, "bare steps on NVIDIA H200": len(BARE)}
    assert counts["gpu"]["H100-SXM"] == 6
    assert counts["engine"]["bare 2026"] == len(BARE)
    assert counts["engine"]["vllm 2024"] == counts["engine"]["tensorrt-llm 2024"] == 1
    assert counts["metric"]["output_tok_s"] == 3
    assert {"decode_step", "prefill_step"} & set(counts["metric"])
    assert "step_s" not in counts["metric"]


def test_nothing_predicted_has_no_figures() -> None:
    result, predictions = validate([Unread(key="a", reason="blurred"), Unread(key="b", reason="blurred")])
    assert predictions == []
    assert (result.rows, result.predicted, result.overall) == (2, 0, None)
    assert result.not_predicted == {"blurred": 2}
    assert all(groups == {} for groups in result.groups.values())


@pytest.mark.parametrize("splits", [("calibrate", "dev"), ("calibrate",), ("dev", "test"), ("",)])
def test_rows_are_counted_by_split(splits: tuple[str, ...]) -> None:
    result, _ = validate([BARE[0].model_copy(update={"split": split}) for split in splits])
    assert result.splits == {split: 1 for split in splits if split}


def test_our_own_steps_are_predicted_to_a_few_percent() -> None:
    result, _ = validate(read_measurements(STEPS))
    decode = result.groups["metric"]["decode_step"]
    assert decode.n == 67
    assert decode.median_abs_log_error < 0.05
    assert decode.inside_interval >= 0.8


def test_a_rate_below_capacity_is_served_as_it_comes() -> None:
    row = measurement(batch=None, rate=4.0, mode=Mode.server_slo, run=RunFacts(requests=3000))
    out = value(row, metric=Metric.output_tok_s)
    assert out == pytest.approx(4 * 300, rel=0.05)  # of 3,000 random gaps the mean is known to 2 %
    assert value(row, metric=Metric.total_tok_s) == pytest.approx(out * 1300 / 300)


def test_a_rate_beyond_capacity_is_served_at_capacity() -> None:
    """All at once: at the pace of a full replica, but for the start and for the last answers."""
    row = measurement(batch=None, mode=Mode.server_slo, metric=Metric.output_tok_s, run=RunFacts(requests=5000))
    most = value(row, rate=1e6)
    assert most == pytest.approx(value(row, rate=1e9), rel=0.01)
    capacity = ReplicaCurve(steps_of(row).deployment, 1000, 300, steps=steps_of(row)).capacity()
    assert most == pytest.approx(capacity.rate * 300, rel=0.15)


def test_a_blank_batch_is_a_queue_that_never_empties() -> None:
    row = measurement(batch=None, mode=Mode.max_throughput, metric=Metric.output_tok_s)
    full = value(row)
    alone, some, many = (value(row, batch=users) for users in (1, 16, 128))
    assert alone < some < many < full


def test_a_users_time_grows_with_their_number() -> None:
    times = [value(measurement(batch=users)) for users in (1, 4, 16, 64, 256)]
    assert all(one < other for one, other in itertools.pairwise(times))


@pytest.mark.parametrize("users", [1, 16, 100])
def test_tokens_in_and_out_are_the_same_requests(users: int) -> None:
    out = value(measurement(batch=users, metric=Metric.output_tok_s))
    assert value(measurement(batch=users, metric=Metric.total_tok_s)) == pytest.approx(out * 1300 / 300)


def test_a_fixed_batch_is_answered_together() -> None:
    row = measurement(mode=Mode.fixed_batch, batch=8)
    seconds = static_batch_s(steps_of(row), 8, 1000, 300)
    assert value(row, metric=Metric.output_tok_s) == pytest.approx(8 * 300 / seconds)
    assert value(row, metric=Metric.total_tok_s) == pytest.approx(8 * 1300 / seconds)
    first = static_batch_s(steps_of(row), 8, 1000, 1)
    assert value(row, metric=Metric.ttft_s) == pytest.approx(first)
    assert value(row, metric=Metric.tpot_s) == pytest.approx((seconds - first) / 299)


def test_a_bare_step_has_no_engine_around_it() -> None:
    step = measurement(mode=Mode.decode_step, metric=Metric.step_s, engine=None, batch=8)
    assert steps_of(step).engine is None
    assert steps_of(but(step, engine="vllm")).engine is not None
    assert value(step) == pytest.approx(float(steps_of(step).decode(8, 1000)))
    prompts = but(step, mode=Mode.prefill_step)
    assert value(prompts) == pytest.approx(float(steps_of(step).prefill(8000, prompts=8)))


def test_what_an_engine_times_itself_has_no_front_end() -> None:
    row = measurement(batch=1, metric=Metric.ttft_s, mode=Mode.fixed_concurrency, output_tokens=8)
    inside = but(row, mode=Mode.low_latency)
    own = steps_of(row).engine
    assert value(row) - value(inside) == pytest.approx(there(own).request_seconds(row.input_tokens), rel=1e-6)
    assert steps_of(inside) is steps_of(inside)


def test_lengths_that_vary_are_drawn_around_their_mean() -> None:
    """From 80 to 100 % of the nominal: about as long as ones of 90 %, but no longer in step with each other."""
    varied = measurement(length_share=0.9, tuned=True, run=RunFacts(requests=400))
    for metric in (Metric.tpot_s, Metric.output_tok_s, Metric.total_tok_s):
        row = but(varied, metric=metric)
        mean = but(row, length_share=1.0, input_tokens=900, output_tokens=270)
        assert value(row) == pytest.approx(value(mean), rel=0.1)
        assert value(row) != value(mean)
        around = but(mean, run=RunFacts(requests=400, spread=1 / 9))
        assert value(row) == pytest.approx(value(around), rel=1e-9)
    first = {"metric": Metric.ttft_s}
    assert value(varied, **first) < value(mean, **first)


def test_one_user_waits_for_each_step_by_itself() -> None:
    """Step by step: a token each, with one more in the context every time; then the next request."""
    row = measurement(batch=1, output_tokens=50, run=RunFacts(requests=4))
    steps = steps_of(row)
    each_s = [float(steps.decode(1, context)) for context in range(1001, 1050)]
    tpot_s = value(row)
    assert tpot_s == pytest.approx(statistics.fmean(each_s), rel=0.01)
    ttft_s = value(row, metric=Metric.ttft_s)
    assert ttft_s > float(steps.with_engine(None).prefill(1000))
    answer_s = ttft_s + 49 * tpot_s
    assert value(row, metric=Metric.output_tok_s) == pytest.approx(50 / answer_s, rel=1e-3)
    for statistic in (Statistic.p50, Statistic.p99):
        assert value(row, statistic=statistic) == pytest.approx(tpot_s, rel=1e-6)


def test_recorded_requests_arrive_when_they_did() -> None:
    """Two far apart are each alone: a hundred seconds and one answer for all their tokens."""
    facts = RunFacts(requests=2, arrival_s=(0.0, 100.0), input_tokens=(500, 2000), output_tokens=(10, 40))
    row = measurement(batch=None, rate=7.0, mode=Mode.server_slo, run=facts)
    alone = {
        name: value(measurement(batch=1, metric=name, input_tokens=2000, output_tokens=40))
        for name in (Metric.tpot_s, Metric.ttft_s)
    }
    answer_s = alone[Metric.ttft_s] + 39 * alone[Metric.tpot_s]
    out = value(row, metric=Metric.output_tok_s)
    assert out == pytest.approx(50 / (100 + answer_s), rel=1e-4)
    assert value(row, metric=Metric.total_tok_s) == pytest.approx(out * 2550 / 50)
    first = measurement(batch=1, metric=Metric.ttft_s, input_tokens=500, output_tokens=10)
    both = sorted([value(first), alone[Metric.ttft_s]])
    for statistic, share in ((Statistic.mean, 0.5), (Statistic.p50, 0.5), (Statistic.p99, 0.99)):
        found = value(row, metric=Metric.ttft_s, statistic=statistic)
        assert found == pytest.approx(both[0] + share * (both[1] - both[0]), rel=1e-3)


def test_all_users_begin_at_once_and_the_last_prompts_wait_for_the_first() -> None:
    """With one request a user, the 99th percentile of 64 waits is about that for all their prompts."""
    row = measurement(batch=64, metric=Metric.ttft_s, run=RunFacts(requests=64))
    mean, p50, p99 = (value(row, statistic=each) for each in Statistic)
    prompts_s = float(steps_of(row).with_engine(None).prefill(8000, prompts=8)) * 8
    assert p50 < p99
    assert p99 == pytest.approx(prompts_s, rel=0.35)
    assert mean == pytest.approx(p99 / 2, rel=0.35)
    longer = value(row, run=RunFacts(requests=640))
    assert longer < mean  # later rounds are spread out


def test_after_a_warm_up_the_first_round_does_not_count() -> None:
    cold, warm = (
        measurement(batch=32, metric=Metric.output_tok_s, run=RunFacts(requests=64, warm_up=users)) for users in (0, 32)
    )
    assert value(warm) > value(cold)
    first = {"metric": Metric.ttft_s, "statistic": Statistic.p99}
    assert value(warm, **first) < value(cold, **first)


def test_the_figures_of_one_run_are_of_one_simulation() -> None:
    facts = RunFacts(requests=17)
    rows = [
        measurement(batch=5, metric=metric, statistic=statistic, run=facts)
        for metric in (Metric.ttft_s, Metric.tpot_s, Metric.output_tok_s, Metric.total_tok_s)
        for statistic in Statistic
    ]
    before = simulated.cache_info().misses
    named = set(validate(rows)[0].groups["metric"])
    assert simulated.cache_info().misses == before + 1
    assert {name for name in named if name.startswith("ttft")} == {"ttft_s", "ttft_s p50", "ttft_s p99"}


def test_a_tuned_recipe_captures_longer_prompts() -> None:
    row = measurement(model="gpt-oss-120b", batch=1, metric=Metric.ttft_s, input_tokens=1024)
    plain, tuned = steps_of(row).engine, steps_of(but(row, tuned=True)).engine
    assert plain
    assert tuned
    # 36 layers of experts: launched in captured pieces, not kernel by kernel; then the kernels are the longer.
    saved = value(row) - value(row, tuned=True)
    assert 0.01 < saved < 36 * (plain.expert_layer_s - plain.piece_s)
    assert steps_of(but(row, tuned=True, engine="sglang")).engine.graph_tokens == 0  # type: ignore[union-attr]
    host = measurement(year=2024, engine_version="0.6.0", batch=256)
    assert value(host, tuned=True) <= value(host)


@pytest.mark.parametrize(
    ("stated", "field", "held"),
    [
        *(
            ({"model": "gpt-oss-20b", "weights": weights}, "weights", "mxfp4")
            for weights in ("bf16", "unstated", "int4")
        ),
        *(({"weights": weights}, "weights", "bf16") for weights in ("unstated", "auto", "", "fp16")),
        *(({"weights": weights}, "weights", "fp8") for weights in ("fp8", "fp8/fp8", "FP8")),
        *(({"weights": weights}, "weights", "int4") for weights in ("int4/bf16", "AWQ")),
        ({"weights": "w8a8"}, "weights", "int8"),
        *(({"kv": kv}, "kv", "bf16") for kv in (None, "", "auto")),
        ({"kv": "fp8"}, "kv", "fp8"),
        ({"engine": "tensorrt-llm+triton"}, "engine.key", "tensorrt-llm"),
        ({"engine": "deepspeed-mii"}, "engine.key", "vllm"),
        ({"engine": "sglang"}, "engine.key", "sglang"),
        *(({"engine": engine}, "engine.key", "llama.cpp") for engine in ("exllama v2", "autoawq gemm")),
        ({"model": "llama-3.1-8b-instruct"}, "model.key", "llama-3.1-8b"),
        ({"model": "Llama-3.1-8B-Instruct-FP8"}, "model.key", "llama-3.1-8b"),
        ({"model": "llama-2-7b-chat-hf"}, "model.key", "llama-2-7b"),
        ({"model": "mixtral-8x7b-instruct-v0.1"}, "model.key", "mixtral-8x7b"),
    ],
)
def test_what_a_source_states_is_found_under_its_names(stated: dict[str, Any], field: str, held: str) -> None:
    assert attrgetter(field)(steps_of(measurement(**stated)).deployment) == held


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "sglang (disagg)", "metric": Metric.ttft_s},
        {"engine": "vlm"},
        {"model": "nobody-1b"},
        {"gpu": "Z80"},
        {"weights": "fp9"},
        {"kv": "int2"},
        {"kv": "int4"},
        {"tp": 3, "gpus": 3},
        {"pp": 33, "gpus": 33},
        {"ep": 3, "tp": 2, "gpus": 3},
        {"model": "llama-3.1-70b"},
        {"input_tokens": 10**7},
        {"mode": Mode.fixed_batch, "output_tokens": 1},
        {"batch": None, "mode": Mode.max_throughput, "metric": Metric.ttft_s, "statistic": Statistic.p99},
        {"model": "deepseek-r1", "gpu": "B200", "gpus": 2, "tp": 2, "weights": "fp8", "engine": "sglang"},
        {"draft": "mtp:3", "accepted_length": 2.0, "engine": "sglang"},
        {"model": "deepseek-v3", "gpu": "H200", "tp": 8, "gpus": 8, "draft": "mtp:1", "accepted_length": 2.5},
        {"model": "glm-4.5", "gpu": "H200", "tp": 8, "gpus": 8, "draft": "mtp:3"},
        {
            **{"model": "llama-3-70b", "engine": "llama.cpp", "gpu": "RTX4090", "year": 2024, "mode": Mode.low_latency},
            **{"batch": 1, "metric": Metric.total_tok_s, "input_tokens": 4096, "output_tokens": 1, "weights": "bf16"},
        },
    ],
    ids=str,
)
def test_what_cannot_be_predicted_has_a_reason(changes: dict[str, Any]) -> None:
    row = measurement(**changes)
    reason = predict(row)
    assert isinstance(reason, str)
    result, predictions = validate([row, row, measurement()])
    assert (result.rows, result.predicted, len(predictions)) == (3, 1, 1)
    assert result.not_predicted == {reason: 2}


@pytest.mark.parametrize("mode", [Mode.decode_step, Mode.prefill_step])
@pytest.mark.parametrize("metric", [Metric.output_tok_s, Metric.total_tok_s, Metric.ttft_s])
def test_a_rate_is_never_compared_with_a_time(mode: Mode, metric: Metric) -> None:
    """A step that was measured in tokens a second is predicted in tokens a second, or not at all."""
    if metric is Metric.ttft_s and mode is Mode.prefill_step:
        return  # the time to the first token of a lone prompt is its step
    row = measurement(mode=mode, metric=metric, value=3000.0)
    outcome = predict(row)
    if isinstance(outcome, ScoredPrediction):
        assert metric is not Metric.ttft_s
        assert outcome.interval.mid > 1


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(VARIED), st.sampled_from([1, 3, 64, 10**6]), st.integers(1, 4000), st.integers(1, 4000),
    st.sampled_from(Mode), st.sampled_from([each for each in Metric if each is not Metric.step_s]),
    st.floats(1e-6, 1e6),
)  # fmt: skip
def test_any_load_has_a_score_or_a_reason(
    row: Measurement, batch: int, prompt: int, output: int, mode: Mode, metric: Metric, measured: float
) -> None:
    changes = {"batch": batch, "input_tokens": prompt, "output_tokens": output, "mode": mode}
    outcome = predict(row.model_copy(update={**changes, "metric": metric, "value": measured}))
    if isinstance(outcome, str):
        assert outcome
    else:
        assert math.isfinite(outcome.error)
        assert outcome.interval.low <= outcome.interval.mid <= outcome.interval.high


def test_prompts_that_are_balanced_wait_for_each_other_and_cost_answers_less() -> None:
    row = measurement(
        model="deepseek-r1", gpu="B200", gpus=8, tp=1, dp=8, ep=8, weights="fp8", engine="tensorrt-llm", batch=64,
        tuned=True, engine_version="1.2.0",
    )  # fmt: skip
    assert (steps_of(row).deployment.dp, steps_of(row).deployment.ep, steps_of(row).deployment.gpus) == (8, 8, 8)
    assert steps_of(row).aligned
    plain = but(row, tuned=False)
    assert not steps_of(plain).aligned
    assert value(row) < value(plain)
    # At 64 users and answers of 300 tokens, 60 steps pass at the most: 12.8 others come meanwhile, who wait half of it.
    assert Recipe(aligns=60).wait_steps(64, 300, 8) == pytest.approx(60 * (1 + 12.8 / 2) / (1 + 12.8))
    assert Recipe(aligns=60).wait_steps(64, 300, 1) == 0


def test_replicas_that_only_decode_take_their_steps_at_half_of_the_answer() -> None:
    row = measurement(model="deepseek-v3", gpu="B200", gpus=8, tp=8, engine="sglang (disagg)", batch=12)
    assert value(row) == pytest.approx(float(steps_of(row).decode(12, 1150)))


@pytest.mark.parametrize(
    "ran",
    [
        {"model": "llama-3.2-1b", "gpu": "V100", "year": 2023},  # the engine runs it no more
        {"model": "deepseek-r1", "gpu": "B200", "gpus": 4, "tp": 4, "weights": "fp8", "engine": "sglang", "batch": 4},
    ],
)
def test_what_ran_is_predicted_and_fits_with_all_of_the_memory(ran: dict[str, Any]) -> None:
    assert predicted(measurement(**ran)).interval.mid > 0


def test_recipes_that_look_for_requests_every_few_steps_delay_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    served = {"model": "deepseek-v3", "gpu": "B200", "gpus": 8, "tp": 8, "weights": "fp8", "engine": "sglang"}
    row = measurement(**served, metric=Metric.ttft_s, tuned=True)
    for users, steps in ((8, 5), (32, 15)):
        first = but(row, batch=users)
        step_s, polled_s = value(first, metric=Metric.tpot_s), value(first)
        with monkeypatch.context() as never:
            never.setattr("tokonomics.measure.stated_setup.Recipe.wait_steps", lambda *_: 0.0)
            assert polled_s == pytest.approx(value(first) + steps * step_s)


@pytest.mark.parametrize(
    ("served", "told"),
    [
        # As the scripts named in the module say; of the last two models there is none.
        (("sglang", "deepseek-r1", "blackwell", "nvfp4", 8), ("fp8", 16_384, (10, 30), 0)),
        (("sglang", "deepseek-r1", "blackwell", "fp8", 4), ("fp8", 8_192, (10, 10), 0)),
        (("sglang", "deepseek-r1", "blackwell", "fp8", 8), ("fp8", 32_768, (10, 30), 0)),
        (("sglang", "deepseek-r1", "hopper", "fp8", 8), (None, 32_768, (0, 0), 0)),
        (("sglang", "qwen3.5-397b-a17b", "hopper", "fp8", 8), ("fp8", 16_384, (0, 0), 0)),
        (("tensorrt-llm", "gpt-oss-120b", "hopper", "mxfp4", 1), (None, 20_000, (0, 0), 0)),
        (("vllm", "llama-3.1-70b", "H200", "fp8", 8), ("fp8", 8_192, (0, 0), 0)),
        (("vllm", "llama-3.1-70b", "hopper", "fp8", 8), (None, 8_192, (0, 0), 0)),
        (("sglang", "llama-3.1-8b", "blackwell", "fp8", 1), (None, None, (0, 0), 0)),
        (("tensorrt-llm", "deepseek-r1", "hopper", "fp8", 1), ("fp8", None, (0, 0), 60)),
    ],
)
def test_recipes_are_those_of_the_scripts(served: tuple[Any, ...], told: tuple[Any, ...]) -> None:
    assert recipe(*served)[:4] == told


def test_prompts_that_gather_wait_for_a_full_step_or_for_the_last_step_allowed() -> None:
    waits = Gathering(20, 0.9).wait_steps
    # One request in 922 / 4 steps: the first waits all 20, and 0.087 others half of that.
    assert waits(4, 922, 922, 8192) == pytest.approx(20 * (1 + 0.0868 / 2) / 1.0868, rel=1e-3)
    # 0.9 × 8,192 tokens less 1,000 answers are 7 prompts: six others come within 6 × 0.922 steps.
    assert waits(1000, 922, 922, 8192) == pytest.approx(5.532 * (1 + 6 / 2) / 7, rel=1e-3)
    # Two prompts of 922 fit a step of 2,248 tokens and never reach 0.9 of it: they wait as long as allowed.
    assert waits(64, 922, 922, 2248) == pytest.approx(20 * (1 + 1 / 2) / 2, rel=1e-3)


def test_recipes_let_prompts_gather_at_short_lengths_alone() -> None:
    served = {"model": "llama-3.1-70b", "gpu": "H200", "gpus": 4, "weights": "fp8", "engine": "tensorrt-llm"}
    row = measurement(**served, tp=4, metric=Metric.ttft_s, tuned=True, batch=4, input_tokens=1024, output_tokens=1024)
    waits_s = value(row) - value(but(row, output_tokens=1025))
    decode_s = float(steps_of(row).decode(4, 1536))
    assert waits_s == pytest.approx(19.2 * decode_s, rel=0.05)
    assert value(but(row, tp=8, gpus=8)) == pytest.approx(value(but(row, tp=8, gpus=8, output_tokens=1025)), rel=0.05)


def test_a_step_of_an_older_version_holds_one_prompt() -> None:
    served = {"model": "deepseek-r1", "gpu": "H200", "gpus": 8, "tp": 8, "weights": "fp8", "engine": "tensorrt-llm"}
    row = measurement(**served, batch=64, input_tokens=1024, output_tokens=1024, tuned=True, engine_version="1.1.0rc2")
    told = recipe("tensorrt-llm", "deepseek-r1", "hopper", Precision.fp8, 8)
    assert told.step_tokens(row) == 1024 + 64 + 64
    assert told.step_tokens(but(row, engine_version="1.2.0rc6")) is None
    assert value(but(row, metric=Metric.ttft_s)) > 1.5 * value(
        but(row, metric=Metric.ttft_s, engine_version="1.2.0rc6")
    )


def test_an_engine_that_ran_without_graphs_is_bound_by_its_launches() -> None:
    row = measurement(model="qwen3-30b-a3b", gpu="H100", engine="sglang (eager)", batch=1)
    plain = but(row, engine="sglang")
    assert not steps_of(row).engine.captures  # type: ignore[union-attr]
    assert steps_of(plain).engine.captures  # type: ignore[union-attr]
    assert value(row) > 3 * value(plain)
    # Weights of half the bytes do not help.
    assert value(row, weights="fp8") > 0.99 * value(row)


def test_recipes_tell_the_precision_of_the_cache_where_a_row_does_not() -> None:
    row = measurement(model="deepseek-r1", gpu="H200", gpus=8, tp=8, weights="fp8", engine="tensorrt-llm", tuned=True)
    assert steps_of(row).deployment.kv == "fp8"
    assert steps_of(but(row, kv="bf16")).deployment.kv == "bf16"
    assert steps_of(but(row, tuned=False)).deployment.kv == "bf16"


@pytest.mark.parametrize(("stages", "tokens"), [(1, 4096), (2, 513), (4, 8192), (8, 8192)])
def test_a_prompt_alone_goes_through_the_stages_chunk_by_chunk(stages: int, tokens: int) -> None:
    row = measurement(
        engine="llama.cpp", gpu="L40S", gpus=stages, tp=1, pp=stages, year=2024, mode=Mode.low_latency, batch=1,
        metric=Metric.total_tok_s, input_tokens=tokens, output_tokens=1,
    )  # fmt: skip
    steps = steps_of(row)
    chunks = [min(512, tokens - past) for past in range(0, tokens, 512)]
    each_s = [float(steps.prefill(chunk, 512 * place)) / stages for place, chunk in enumerate(chunks)]
    # When chunk c leaves stage s: after that stage had its predecessor, and once the fourth before it was out of all.
    left_s: dict[tuple[int, int], float] = {}
    for chunk, stage in itertools.product(range(len(chunks)), range(stages)):
        before = (left_s.get((chunk, stage - 1), 0.0), left_s.get((chunk - 1, stage), 0.0))
        left_s[chunk, stage] = max(*before, left_s.get((chunk - 3, stages - 1), 0.0)) + each_s[chunk]
    assert value(row) == pytest.approx((tokens + 1) / left_s[len(chunks) - 1, stages - 1])


def test_what_llama_cpp_stands_for_runs_other_kernels() -> None:
    row = measurement(engine="llama.cpp", gpu="RTX4090", weights="int4", year=2024, mode=Mode.low_latency, batch=1)
    for engine, unpacks in (("llama.cpp", True), ("ollama 0.1.30", True), ("autoawq", False), ("exllama v2", False)):
        own = steps_of(but(row, engine=engine)).engine
        assert own
        assert (own.unpacks, own.score_passes > 0) == (unpacks, unpacks)


def test_recipes_compute_long_prompts_in_large_steps() -> None:
    row = measurement(model="deepseek-v3", gpu="B200", gpus=8, tp=8, engine="sglang", metric=Metric.ttft_s, batch=1)
    prompt = but(row, input_tokens=30_000, output_tokens=2, weights="fp8")
    plain, tuned = value(prompt), value(prompt, tuned=True, kv="bf16")
    polled_s = 5 * value(prompt, tuned=True, kv="bf16", metric=Metric.tpot_s)
    assert tuned - polled_s < plain  # one step of 32,768 tokens instead of two of 16,384


def test_recorded_arrivals_come_before_a_queue() -> None:
    """Of a file that says neither users nor a rate, but when each request was sent."""
    lengths = {"input_tokens": (1000,) * 20, "output_tokens": (300,) * 20}
    apart = RunFacts(requests=20, arrival_s=tuple(float(second) for second in range(20)), **lengths)
    row = measurement(mode=Mode.max_throughput, metric=Metric.ttft_s, batch=None, run=apart)
    together = but(row, run=RunFacts(requests=20))
    assert value(row) < value(together) / 2
    rated = but(together, rate=1.0, metric=Metric.output_tok_s)
    assert value(rated) == pytest.approx(value(rated, mode=Mode.server_slo))


def test_a_queue_keeps_to_the_engines_limit() -> None:
    row = measurement(mode=Mode.max_throughput, metric=Metric.output_tok_s, batch=8, run=RunFacts(requests=64))
    free = but(row, batch=None)
    users = but(row, mode=Mode.fixed_concurrency)
    assert value(row) == pytest.approx(value(users), rel=0.05)  # eight at a time, sixty-four in all
    assert value(row) < value(free) / 2


def test_a_queue_of_so_many_requests_is_drained() -> None:
    row = measurement(
        engine="tensorrt-llm", engine_version="1.0", mode=Mode.max_throughput, metric=Metric.output_tok_s, batch=None,
        input_tokens=100, output_tokens=200, run=RunFacts(requests=40),
    )  # fmt: skip
    endless = but(row, run=RunFacts())
    assert value(row) < value(endless)
    # All fit at once: a batch of 40, whose prompts are computed in one step.
    steps = steps_of(row)
    decoded_s = sum(float(steps.decode(40, 100 + token)) for token in range(1, 200))
    assert value(row) == pytest.approx(40 * 200 / (float(steps.prefill(4000, prompts=40)) + decoded_s), rel=0.03)


def test_a_row_that_drafted_is_predicted_with_its_drafts() -> None:
    """A step of one sequence yields the accepted length; the draft and the wider check take some of that back."""
    row = measurement(model="deepseek-v3", gpu="H200", tp=8, gpus=8, weights="fp8", engine="sglang", batch=1)
    plain, drafted = value(row), value(row, draft="mtp:3", accepted_length=2.61)
    assert 1.3 < plain / drafted < 2.61
    published = value(row, draft="mtp:3")  # 2.61 is what is published for three tokens
    assert published == pytest.approx(drafted)


def test_a_run_under_limits_is_predicted_at_the_highest_rate_that_meets_them() -> None:
    """Its throughput is that rate's; a rate a tenth above misses a limit. Its latencies are unknown."""
    limits = (1.0, 0.03)
    row = measurement(
        batch=None, mode=Mode.server_slo, slo=limits, input_tokens=500, output_tokens=100, metric=Metric.output_tok_s
    )
    rate = value(row) / 100
    asked = {"mode": Mode.server_slo, "slo": None, "statistic": Statistic.p99, "run": RunFacts(requests=2000)}
    at, above = (
        [value(row, **asked, rate=tried, metric=metric) for metric in (Metric.ttft_s, Metric.tpot_s)]
        for tried in (rate * 0.97, rate * 1.1)
    )
    assert at[0] <= limits[0]
    assert at[1] <= limits[1]
    assert above[0] > limits[0] or above[1] > limits[1]
    assert value(row, slo=(1.0, 0.015)) < value(row)
    assert value(row, metric=Metric.total_tok_s) == pytest.approx(6 * value(row))
    assert isinstance(predict(but(row, metric=Metric.tpot_s)), str)
    assert isinstance(predict(but(row, slo=(1e-6, 1e-6))), str)


# Llama 3.1 8B reads 7.5e9 weights for a token (8.03e9 without the 0.53e9 of its input embedding), in 2 bytes each: an
# H100 with 3.35e12 bytes a second needs 4.48 ms, and the cache of 1,000 tokens, 131 MB, 0.04 ms.
LEAST_TPOT_S = (7.5e9 * 2 + 131e6) / 3.35e12


def test_a_row_beats_the_datasheet_if_it_reads_weights_faster_than_the_memory_can() -> None:
    row = measurement(batch=1)
    assert beats_datasheet(but(row, value=0.95 * LEAST_TPOT_S))
    assert not beats_datasheet(but(row, value=1.05 * LEAST_TPOT_S))
    assert beats_datasheet(but(row, metric=Metric.output_tok_s, value=1.05 / LEAST_TPOT_S))
    assert not beats_datasheet(but(row, metric=Metric.output_tok_s, value=0.9 / LEAST_TPOT_S))


def test_waits_and_arrivals_beat_no_datasheet() -> None:
    for served in (measurement(metric=Metric.ttft_s), measurement(metric=Metric.output_tok_s, batch=None, rate=2.0)):
        assert not any(beats_datasheet(but(served, value=value)) for value in (1e-9, 1e9))


@pytest.mark.parametrize(("fast", "slow", "all_of_it"), [(1, 0, True), (1, 1, True), (1, 2, False), (0, 1, False)])
def test_a_sweep_of_which_half_beats_the_datasheet_cannot_have_run_as_labelled(
    fast: int, slow: int, all_of_it: bool
) -> None:
    values = [0.5 * LEAST_TPOT_S] * fast + [2 * LEAST_TPOT_S] * slow
    row = measurement(batch=1)
    sweep = [but(row, key=f"{place}", value=value) for place, value in enumerate(values)]
    sweep.append(but(row, key="first token", metric=Metric.ttft_s, value=0.1))
    others = [but(each, key=f"other {each.key}", source="another", value=1.0) for each in sweep]
    assert impossible_rows([*sweep, *others]) == ({each.key for each in sweep} if all_of_it else set())
