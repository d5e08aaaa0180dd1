"""Results are read as their sources wrote them, and a row that cannot be read is kept with its reason."""

import csv
import gzip
import io
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokonomics.measure.measurements import (
    COLUMNS,
    Measurement,
    Metric,
    Mode,
    RunFacts,
    Statistic,
    Unread,
    read_measurements,
)
from tokonomics.measure.validate import validate

STEPS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_steps.json"

ROW = {
    "model": "llama-3.1-8b", "gpu": "H100", "num_gpus": "1", "tp": "1", "engine": "vllm", "input_len": "1000",
    "output_len": "300", "batch_or_concurrency": "16", "mode": "fixed_concurrency", "metric": "tpot_ms",
    "value": "12.5",
}  # fmt: skip
STEP = {"kind": "decode", "model": "llama-3.1-8b", "batch": 8, "ctx": 1024, "ms": 4.5}


def table(*rows: Mapping[str, str]) -> bytes:
    columns = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def read(content: bytes, folder: Path) -> list[Measurement | Unread]:
    file = folder / "results"
    file.write_bytes(content)
    return read_measurements(file)


def read_one(folder: Path, **changes: str) -> Measurement:
    (row,) = read(table({**ROW, **changes}), folder)
    assert isinstance(row, Measurement), row
    return row


def reason_of(folder: Path, **changes: str) -> str:
    (row,) = read(table({**ROW, **changes}), folder)
    assert isinstance(row, Unread), row
    return row.reason


def test_a_row_is_read_in_seconds(tmp_path: Path) -> None:
    row = read_one(tmp_path)
    assert (row.model, row.gpu, row.gpus, row.tp, row.pp, row.ep) == ("llama-3.1-8b", "H100", 1, 1, 1, 1)
    assert (row.input_tokens, row.output_tokens, row.batch, row.rate) == (1000, 300, 16, None)
    assert (row.mode, row.metric, row.engine) == (Mode.fixed_concurrency, Metric.tpot_s, "vllm")
    assert row.value == pytest.approx(0.0125)
    assert (row.weights, row.kv, row.split, row.length_share) == ("unstated", None, "", 1.0)
    assert row.key == "line 2"


@pytest.mark.parametrize("packed", [False, True], ids=["csv", "csv.gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
def test_a_table_is_read_packed_or_not(tmp_path: Path, packed: bool, mark: bytes) -> None:
    content = mark + table(ROW, {**ROW, "value": "20"}, {**ROW, "value": "none"})
    rows = read(gzip.compress(content) if packed else content, tmp_path)
    assert [type(row) for row in rows] == [Measurement, Measurement, Unread]
    assert [row.value for row in rows if isinstance(row, Measurement)] == pytest.approx([0.0125, 0.020])


def test_columns_come_in_any_order_and_foreign_ones_are_left_alone(tmp_path: Path) -> None:
    turned = {"notes": 'said "fast", twice', **dict(reversed(ROW.items()))}
    assert read(table(turned), tmp_path) == [read_one(tmp_path)]


@pytest.mark.parametrize(
    ("cells", "metric", "statistic", "value"),
    [
        ({"metric": "tpot_ms", "value": "12.5"}, Metric.tpot_s, Statistic.mean, 0.0125),
        ({"metric": "output_tok_s", "value": "2400"}, Metric.output_tok_s, Statistic.mean, 2400),
        ({"metric": "total_tok_s", "value": "1e4"}, Metric.total_tok_s, Statistic.mean, 10_000),
        ({"metric": "p99_ttft_ms", "value": "80"}, Metric.ttft_s, Statistic.p99, 0.080),
        ({"metric": "median_ttft_ms", "value": "80"}, Metric.ttft_s, Statistic.p50, 0.080),
        ({"metric": "ttft_ms", "value": "80", "statistic": "p50"}, Metric.ttft_s, Statistic.p50, 0.080),
        ({"metric": "ttft_ms", "value": "80", "statistic": ""}, Metric.ttft_s, Statistic.mean, 0.080),
    ],
)
def test_a_figure_is_read_in_seconds_with_its_statistic(
    tmp_path: Path, cells: dict[str, str], metric: Metric, statistic: Statistic, value: float
) -> None:
    row = read_one(tmp_path, **cells)
    assert (row.metric, row.statistic) == (metric, statistic)
    assert row.value == pytest.approx(value)


def test_a_run_may_say_how_many_requests_it_had_and_how_far_their_lengths_spread(tmp_path: Path) -> None:
    assert read_one(tmp_path, length_spread="0.5", num_requests="320").run == RunFacts(requests=320, spread=0.5)
    assert read_one(tmp_path, length_spread="", num_requests="").run == read_one(tmp_path).run == RunFacts()


@pytest.mark.parametrize(
    ("text", "batch", "rate"),
    [
        ("64", 64, None),
        (" 64 ", 64, None),
        ("64.0", 64, None),
        ("max_num_seqs=64", 64, None),
        ("qps=4", None, 4.0),
        ("qps=0.5", None, 0.5),
        ("qps=inf", None, None),
        ("", None, None),
    ],
)
def test_a_load_is_a_batch_a_rate_or_a_queue(tmp_path: Path, text: str, batch: int | None, rate: float | None) -> None:
    row = read_one(tmp_path, batch_or_concurrency=text)
    assert (row.batch, row.rate) == (batch, rate)


def test_a_rate_is_of_all_gpus_or_of_one(tmp_path: Path) -> None:
    rate = {"metric": "output_tok_s", "value": "1000", "num_gpus": "8", "tp": "8"}
    values = [read_one(tmp_path, **rate, per=per).value for per in ("gpu", "system", "")]
    assert values == [8000, 1000, 1000]
    for per in ("node", "user"):
        assert reason_of(tmp_path, per=per, **rate)


def test_a_row_of_several_replicas_is_one_of_them(tmp_path: Path) -> None:
    split = {"num_gpus": "8", "tp": "2", "batch_or_concurrency": "64", "num_requests": "400"}
    rate = read_one(tmp_path, **split, metric="output_tok_s", value="1000")
    assert (rate.value, rate.batch, rate.run.requests) == (250, 16, 100)
    assert read_one(tmp_path, **split, metric="output_tok_s", value="1000", per="gpu").value == 2000
    assert read_one(tmp_path, **split, metric="tpot_ms", value="20").value == pytest.approx(0.02)
    assert read_one(tmp_path, **split | {"batch_or_concurrency": "max_batch=64"}).batch == 64
    assert read_one(tmp_path, **split | {"batch_or_concurrency": "qps=8"}).rate == 2
    assert read_one(tmp_path, num_gpus="4", tp="").tp == 4  # without a degree all GPUs share each layer
    for gpus, tp in (("4", "8"), ("7", "2"), ("1.5", "1")):
        assert "num_gpus" in reason_of(tmp_path, num_gpus=gpus, tp=tp)


def test_replicas_without_a_user_idle(tmp_path: Path) -> None:
    """Four replicas: of one user's tokens a second all are one replica's; of six users', a third are those of two."""
    four = {"num_gpus": "4", "tp": "1", "metric": "output_tok_s", "value": "600"}
    one, six = (read_one(tmp_path, batch_or_concurrency=users, **four) for users in ("1", "6"))
    assert (one.batch, one.value) == (1, 600)
    assert (six.batch, six.value) == (2, 200)


@pytest.mark.parametrize(
    ("source", "share"), [("SemiAnalysis InferenceMAX 2026", 0.9), ("InferenceX", 0.9), ("MLPerf", 1.0), ("", 1.0)]
)
def test_lengths_that_vary_have_a_mean(tmp_path: Path, source: str, share: float) -> None:
    row = read_one(tmp_path, source_name=source)
    assert row.length_share == share
    assert row.tuned is (share < 1)
    assert (row.input_tokens, row.output_tokens) == (1000, 300)
    assert row.source == (source or "unnamed")


def test_a_row_keeps_the_name_and_the_split_it_was_given(tmp_path: Path) -> None:
    named = {"id": "argonne-17", "split": "test", "year": "2024", "engine_version": "0.5.4", "precision_kv": "fp8"}
    row = read_one(tmp_path, **named)
    assert (row.key, row.split, row.year, row.engine_version, row.kv) == ("argonne-17", "test", 2024, "0.5.4", "fp8")
    (unread,) = read(table(ROW | named | {"value": "none"}), tmp_path)
    assert isinstance(unread, Unread)
    assert (unread.key, unread.split) == ("argonne-17", "test")


@pytest.mark.parametrize(
    ("column", "text"),
    [
        *[("value", text) for text in ("", "ten", "nan", "inf", "-inf", "1e400", "0", "-3", "1,5", "0x10")],
        *[("num_gpus", text) for text in ("", "none", "0", "-1", "nan", "inf")],
        *[("tp", text) for text in ("x", "0", "-1", "nan")],
        *[("input_len", text) for text in ("", "long", "-5", "inf")],
        *[("output_len", text) for text in ("", "long", "-5", "inf")],
        *[("batch_or_concurrency", text) for text in ("many", "0", "-1", "nan", "inf", "qps=", "qps=x", "qps=0")],
        *[("batch_or_concurrency", text) for text in ("qps=-1", "qps=nan", "max_num_seqs=", "0.2")],
        *[("metric", text) for text in ("", "tpot_min", "TPOT_MS", "latency")],
        *[("mode", text) for text in ("", "idle", "FIXED_BATCH")],
        *[("year", "MMXXVI"), ("pp", "x"), ("ep", "x"), ("statistic", "p98"), ("statistic", "max")],
        *[("num_requests", text) for text in ("many", "0", "-1", "1e9")],
        ("length_spread", "1.5"),
    ],
)
def test_a_cell_that_makes_no_sense_is_a_reason_that_names_the_column(tmp_path: Path, column: str, text: str) -> None:
    reason = reason_of(tmp_path, **{column: text})
    names = {
        "num_gpus": ["gpus"],
        "input_len": ["input"],
        "output_len": ["output"],
        "batch_or_concurrency": ["batch", "rate"],
        "num_requests": ["requests"],
        "length_spread": ["spread"],
    }.get(column, [column])
    assert any(name in reason for name in names) or (column == "mode" and "Mode" in reason), reason
    assert "validation error" not in reason
    assert len(reason) < 200
    assert reason.isprintable()


@pytest.mark.parametrize("cells", [1, 5, len(ROW) - 1])
def test_a_row_that_ends_early_is_a_reason(tmp_path: Path, cells: int) -> None:
    lines = [[*ROW], [*ROW.values()][:cells], [*ROW.values()], [*ROW.values(), "more", "and more"]]
    first, *others = read("\n".join(map(",".join, lines)).encode(), tmp_path)
    assert isinstance(first, Unread)
    assert [type(row) for row in others] == [Measurement, Measurement]


def steps(*rows: object, **more: object) -> bytes:
    return json.dumps({"gpu": "H200", **more, "rows": rows}).encode()


def test_steps_are_bare_kernels_in_seconds(tmp_path: Path) -> None:
    decode, prefill = read(steps(STEP, {**STEP, "kind": "prefill", "batch": 1}), tmp_path)
    assert isinstance(decode, Measurement)
    assert isinstance(prefill, Measurement)
    assert (decode.mode, prefill.mode) == (Mode.decode_step, Mode.prefill_step)
    assert (decode.metric, decode.engine, decode.gpu, decode.gpus) == (Metric.step_s, None, "H200", 1)
    assert (decode.batch, decode.input_tokens, decode.weights) == (8, 1024, "bf16")
    assert decode.value == pytest.approx(4.5e-3)


def test_the_precision_of_a_step_is_its_own_or_the_files(tmp_path: Path) -> None:
    rows = read(steps(STEP, {**STEP, "dtype": "int4"}, {**STEP, "weights": "fp8"}, dtype="fp16"), tmp_path)
    assert [row.weights for row in rows if isinstance(row, Measurement)] == ["fp16", "int4", "fp8"]


def test_our_own_steps_are_all_there() -> None:
    rows = read_measurements(STEPS)
    kinds = [row["kind"] for row in json.loads(STEPS.read_text(encoding="utf-8"))["rows"]]
    assert len(rows) == len(kinds)
    for row, kind in zip(rows, kinds, strict=True):
        assert isinstance(row, Measurement) is (kind in ("decode", "prefill"))


json_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*STEP, "tp", "gpus", "weights", "kv", "dtype"]),
            json_scalars | st.lists(json_scalars, max_size=2),
            max_size=2,
        ).map(lambda changes: {**STEP, **changes})
        | json_scalars,
        min_size=1,
        max_size=4,
    )
)
def test_any_steps_are_all_accounted_for(tmp_path: Path, rows: list[object]) -> None:
    account_for(read(steps(*rows), tmp_path), len(rows))


CELLS = {
    "model": ["llama-3.1-8b", "gpt-oss-20b", "mixtral-8x7b", "nobody-1b", ""],
    "gpu": ["H100", "A100-80GB", "MI300X", "T4", "Z80", ""],
    "num_gpus": ["1", "2", "8", "0", "-1", "x", "", "nan", "1e300"],
    "tp": ["1", "2", "8", "3", "", "0", "1e9"],
    "engine": ["vllm", "sglang", "tensorrt-llm+triton", "deepspeed-mii", "dynamo-disagg", "vlm", ""],
    "input_len": ["1", "128", "1000", "200000", "0", "x", "", "1e300"],
    "output_len": ["1", "128", "1000", "200000", "0", "x", "", "1e300"],
    "batch_or_concurrency": ["1", "64", "100000", "", "qps=4", "qps=inf", "qps=1e300", "qps=0", "x", "1e300"],
    "mode": [*Mode, "idle", ""],
    "metric": ["tpot_ms", "ttft_ms", "output_tok_s", "total_tok_s", "step_s", "tokens", ""],
    "value": ["1", "12.5", "3000", "1e9", "1e-9", "0", "-1", "nan", "inf", "", "x", "1e308", "1e-320"],
    "per": ["gpu", "system", "user", ""],
    "precision_weights": ["bf16", "fp8", "fp8/fp8", "unstated", "auto", "fp9", ""],
    "precision_kv": ["auto", "fp8", "int2", ""],
    "year": ["2023", "2026", "0", "x", ""],
    "source_name": ["InferenceMAX", "MLPerf", ""],
}
sensible = st.fixed_dictionaries({name: st.sampled_from(cells[:2]) for name, cells in CELLS.items()})
garbage = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
pairs = st.sampled_from([(name, cell) for name, cells in CELLS.items() for cell in cells])
spoilt = st.lists(pairs | st.tuples(st.sampled_from([*CELLS]), garbage), min_size=1, max_size=2).map(dict)


def account_for(rows: list[Measurement | Unread], written: int) -> None:
    """Nothing is dropped: every row is scored, or counted under a reason that can be printed."""
    assert len(rows) == written
    result, predictions = validate(rows)
    assert result.rows == written
    assert result.predicted == len(predictions)
    assert result.rows == result.predicted + sum(result.not_predicted.values())
    for groups in result.groups.values():
        assert sum(group.n for group in groups.values()) == result.predicted
    assert all(reason and len(reason) < 300 for reason in result.not_predicted)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(sensible | st.tuples(sensible, spoilt).map(lambda both: both[0] | both[1]), min_size=1, max_size=4))
def test_any_rows_are_all_accounted_for(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    account_for(read(table(*rows), tmp_path), len(rows))


@pytest.mark.parametrize(
    ("gpus", "tp", "ep", "split"),
    [
        ("8", "1", "8", (1, 8, 8)),
        ("8", "1", "64", (1, 8, 8)),  # some sources print the product of two degrees
        ("8", "8", "8", (8, 8, 1)),
        ("16", "1", "8", (1, 8, 8)),  # two replicas
    ],
)
def test_groups_of_the_attention_share_experts(
    gpus: str, tp: str, ep: str, split: tuple[int, int, int], tmp_path: Path
) -> None:
    row = read_one(tmp_path, model="deepseek-r1", num_gpus=gpus, tp=tp, ep=ep, batch_or_concurrency="64")
    assert (row.tp, row.ep, row.dp) == split
    assert row.batch == 64 * row.tp * row.dp // int(gpus)


MLPERF = {
    "source_name": "MLPerf Inference v4.1 (closed)", "source_ref": "closed/Someone/results/8xH100/llama2-70b-99/Server",
    "model": "Llama-2-70B", "gpu": "H100-SXM", "num_gpus": "8", "tp": "", "engine": "tensorrt-llm", "input_len": "",
    "output_len": "290.1", "precision_weights": "fp8", "batch_or_concurrency": "", "mode": "max_throughput",
    "metric": "output_tok_s", "value": "20000",
}  # fmt: skip


@pytest.mark.parametrize(("metric", "value"), [("tpot_ms", "-3"), ("output_tok_s", "0")])
def test_a_figure_that_is_not_above_0_is_said_in_its_own_unit(metric: str, value: str, tmp_path: Path) -> None:
    assert reason_of(tmp_path, metric=metric, value=value) == f"the value of {metric} must be above 0, got {value}"


def test_a_row_of_mlperf_has_the_lengths_and_the_split_of_its_task(tmp_path: Path) -> None:
    offline = read_one(tmp_path, **MLPERF)
    assert (offline.input_tokens, offline.output_tokens, offline.run.spread) == (160, 290, 0.99)
    # 69 GB of weights leave half of 80 GB only on two GPUs: four replicas.
    assert (offline.tp, offline.value, offline.slo) == (2, 5000, None)
    assert read_one(tmp_path, **MLPERF | {"gpu": "H200"}).tp == 1
    assert read_one(tmp_path, **MLPERF | {"tp": "4", "input_len": "200"}).tp == 4
    long = read_one(tmp_path, **MLPERF | {"model": "DeepSeek-R1", "gpu": "B200", "output_len": ""})
    assert (long.input_tokens, long.output_tokens) == (800, 3880)
    assert reason_of(tmp_path, **MLPERF | {"source_name": "another"}) == "input_len is not stated"
    assert reason_of(tmp_path, **MLPERF | {"model": "GPT-J-6B"}) == "input_len is not stated"  # it ran with beams


@pytest.mark.parametrize(("scenario", "limits"), [("Server", (2.0, 0.2)), ("Interactive", (0.45, 0.04))])
def test_a_served_run_of_mlperf_has_the_limits_of_its_scenario(
    scenario: str, limits: tuple[float, float], tmp_path: Path
) -> None:
    row = MLPERF | {"mode": "server_slo", "source_ref": MLPERF["source_ref"].replace("Server", scenario)}
    assert read_one(tmp_path, **row).slo == limits
