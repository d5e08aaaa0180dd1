"""Result files of other tools: the figures are theirs, in our words; whatever is wrong with a file is said."""

import copy
import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.there import refused, there

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.measure.benchmark_run import BenchmarkRun, Latencies, LoadPoint, RequestRecord, point_from_records
from tokonomics.measure.importers.load_generators import read_aiperf_requests
from tokonomics.measure.importers.recognise import FORMATS, read_run, read_runs
from tokonomics.measure.measurements import RunFacts
from tokonomics.measure.priced_run import MeasuredMachine, measurements_of, price_run
from tokonomics.measure.validate import predict

RESULTS = Path(__file__).parent / "results"
SAMPLES = sorted(path for path in RESULTS.iterdir() if path.suffix != ".md")


def raw(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def read(folder: Path, document: Any) -> BenchmarkRun:
    (folder / "r.json").write_text(json.dumps(document, default=str))
    return read_run(folder / "r.json")


def test_every_supported_format_has_a_sample() -> None:
    tools = {read_run(path).tool for path in SAMPLES}
    assert tools == {
        *("vLLM bench serve", "guidellm", "InferenceX", "aiperf", "genai-perf"),
        *("SGLang bench_serving", "inference-perf", "tokonomics bench"),
    }


def test_vllm_rates_are_the_ones_vllm_printed() -> None:
    said, point = raw("vllm.json"), read_run(RESULTS / "vllm.json").points[0]
    assert (point.concurrency, point.rate) == (4, None)
    assert point.requests_per_s == pytest.approx(said["request_throughput"])
    assert point.output_tokens_per_s == pytest.approx(said["output_throughput"])
    assert point.input_tokens_per_s + point.output_tokens_per_s == pytest.approx(said["total_token_throughput"])
    assert waits(point, "ttft_s").p50 == pytest.approx(said["median_ttft_ms"] / 1e3)
    assert waits(point, "e2e_s").p50 == pytest.approx(statistics.median(said["latencies"]))


def waits(point: LoadPoint, kind: str) -> Latencies:
    found = getattr(point, kind)
    assert isinstance(found, Latencies)
    return found


def detailed() -> dict[str, Any]:
    """As ``--save-detailed`` writes it: three requests, of which the second failed."""
    return {
        **{"date": "20261115-000415", "model_id": "llama-3.1-8b", "request_rate": 2.0, "max_concurrency": None},
        **{"duration": 2.0, "completed": 2, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 5},
        **{"input_lens": [10, 7, 20], "output_lens": [3, 0, 2], "ttfts": [0.1, 0.0, 0.2]},
        **{"itls": [[0.02, 0.04], [], [0.05]], "start_times": [5.0, 5.5, 6.0], "errors": ["", "Traceback…\nboom", ""]},
    }


def test_vllm_requests_give_the_same_figures_as_their_lists(tmp_path: Path) -> None:
    point = read(tmp_path, detailed()).points[0]
    assert (point.rate, point.concurrency) == (2.0, None)
    assert (point.completed, point.failed, point.errors) == (2, 1, {"boom": 1})
    assert [record.sent_s for record in point.records] == [0.0, 0.5, 1.0]
    assert waits(point, "tpot_s").mean == pytest.approx((0.03 + 0.05) / 2)
    assert waits(point, "e2e_s").mean == pytest.approx((0.16 + 0.25) / 2)
    assert waits(point, "itl_s").mean == pytest.approx((0.02 + 0.04 + 0.05) / 3)


def test_vllm_lists_without_start_times_are_left_for_the_summary(tmp_path: Path) -> None:
    """Older releases did not write when requests were sent."""
    old = {name: value for name, value in detailed().items() if name != "start_times"} | {"mean_tpot_ms": 40.0}
    point = read(tmp_path, old).points[0]
    assert point.records == ()
    assert (point.completed, point.failed, point.output_tokens) == (2, 1, 5)
    assert waits(point, "tpot_s").mean == pytest.approx(0.04)


def test_vllm_requests_without_their_gaps_are_kept_beside_the_summary(tmp_path: Path) -> None:
    whole = {name: value for name, value in detailed().items() if name != "itls"}
    said = {"median_tpot_ms": 40.0, "p99_tpot_ms": 50.0, "p99_e2el_ms": 250.0, "median_ttft_ms": 1.0}
    point = read(tmp_path, whole | said).points[0]
    assert [(record.sent_s, record.input_tokens, record.output_tokens) for record in point.records] == [
        (0.0, 10, 3), (0.5, 7, 0), (1.0, 20, 2),
    ]  # fmt: skip
    assert (waits(point, "tpot_s").p50, waits(point, "tpot_s").p99, waits(point, "e2e_s").p99) == (0.04, 0.05, 0.25)
    assert waits(point, "ttft_s").p50 == pytest.approx(0.15)  # of its requests, whatever the summary says


def test_a_file_with_arrivals_is_predicted_with_those_arrivals(tmp_path: Path) -> None:
    rows = measurements_of(read(tmp_path, detailed()), MeasuredMachine(gpu="H100", gpus=1, tp=1))
    times = {f"{metric}{statistic}" for metric in ("tpot_s", "ttft_s") for statistic in ("", " p50", " p99")}
    assert {row.figure for row in rows} == {*times, "output_tok_s"}
    (facts,) = {row.run for row in rows}
    assert facts == RunFacts(requests=2, arrival_s=(0.0, 1.0), input_tokens=(10, 20), output_tokens=(3, 2))
    said = predict(rows[-1])
    assert not isinstance(said, str)
    assert 5 / 1.2 < said.interval.mid < 5  # five tokens, the last of them soon after a second


NAN = float("nan")
CONTRADICTIONS = [
    ({"duration": 0.9}, "start_times[2]"),
    ({"start_times": [5.0, 5.5, 1e18]}, "start_times[2]"),
    ({"start_times": [1e18, 1e18, 1e18]}, "start_times[0]"),
    ({"start_times": [5.0, 5.5, None]}, "start_times[2]"),
    ({"start_times": [5.0, 5.5, NAN]}, "start_times[2]"),
    ({"start_times": {"0": 5.0}}, "start_times"),
    ({"ttfts": [0.1, 0.0, 30.0]}, "ttfts[2]"),
    ({"ttfts": [0.1, 0.0, NAN]}, "ttfts[2]"),
    ({"itls": [[0.02, 0.04], [], [3.0]]}, "itls[2]"),
    ({"itls": [[0.02, 0.04], [], "fast"]}, "itls[2]"),
    ({"itls": [["a"], [], [0.05]]}, "itls[0]"),
    ({"itls": [[NAN], [], [0.05]]}, "itls[0]"),
    ({"itls": [[0.02, 0.04], []]}, "itls 2"),
    ({"ttfts": [0.1, 0.0], "itls": None, "errors": None}, "ttfts 2"),
    ({"input_lens": [10, 7, 20.5]}, "input_lens[2]"),
    ({"duration": NAN}, "duration"),
    ({"duration": None}, "duration"),
    ({"duration": 1e-320}, "requests_per_s"),
    ({"request_rate": 1e12}, "rate"),
    ({"median_ttft_ms": 150.0, "p99_ttft_ms": 1.0}, "p99_ttft_ms"),
    ({"total_input_tokens": 31}, "total_input_tokens"),
    ({"total_output_tokens": 31}, "total_output_tokens"),
]


@pytest.mark.parametrize(("slip", "field"), CONTRADICTIONS)
def test_vllm_lists_that_contradict_the_run_are_refused(tmp_path: Path, slip: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=re.escape(field)):
        read(tmp_path, detailed() | slip)


@pytest.mark.parametrize(
    "slip",
    [{"median_ttft_ms": 1.0}, {"completed": 3}, {"itls": [[0.06], [], [0.05]]}, {"itls": [[0.02] * 40, [], [0.05]]}],
)
def test_what_is_odd_in_a_vllm_file_is_noted(tmp_path: Path, slip: dict[str, Any]) -> None:
    assert read(tmp_path, detailed()).points[0].notes == ()
    assert len(read(tmp_path, detailed() | slip).points[0].notes) == 1


@pytest.mark.parametrize(
    ("starts", "sent"),
    [
        ([0.0, 0.5, 1.0], [0.0, 0.5, 1.0]),  # a clock may begin at zero
        ([5.0, 0.0, 6.0], [0.0, 0.0, 1.0]),  # the second was never sent
    ],
)
def test_a_run_begins_with_the_first_request_sent(tmp_path: Path, starts: list[float], sent: list[float]) -> None:
    point = read(tmp_path, detailed() | {"start_times": starts}).points[0]
    assert [record.sent_s for record in point.records] == sent


def test_guidellm_throughput_is_tokens_over_duration_not_the_median_of_moments() -> None:
    said, point = raw("guidellm.json")["benchmarks"][0], read_run(RESULTS / "guidellm.json").points[0]
    assert point.output_tokens_per_s == pytest.approx(320 / 0.2577481269836426)
    assert point.output_tokens_per_s > 1.5 * said["metrics"]["output_tokens_per_second"]["successful"]["median"]
    requests = said["requests"]["successful"]
    assert waits(point, "tpot_s").mean == pytest.approx(
        statistics.fmean(r["inter_token_latency_ms"] for r in requests) / 1e3
    )
    assert point.cached_tokens == sum(r["cached_tokens"] for r in requests)


def test_guidellm_without_its_requests_says_the_same_from_its_summary(tmp_path: Path) -> None:
    document = raw("guidellm.json")
    document["benchmarks"][0]["requests"]["successful"] = []
    whole, summary = read_run(RESULTS / "guidellm.json").points[0], read(tmp_path, document).points[0]
    assert summary.records == ()
    for name in ("completed", "input_tokens", "output_tokens", "output_tokens_per_s", "mean_input_tokens"):
        assert getattr(summary, name) == pytest.approx(getattr(whole, name))
    assert waits(summary, "ttft_s").mean == pytest.approx(waits(whole, "ttft_s").mean)


def test_inferencex_figures_are_per_gpu_and_latencies_are_seconds() -> None:
    run = read_run(RESULTS / "inferencex.json")
    said, point = raw("inferencex.json")[0], run.points[0]
    assert (run.stated.gpu, run.stated.gpus, run.stated.tp) == ("h100", 4, 4)
    assert point.output_tokens_per_s == pytest.approx(4 * said["output_tput_per_gpu"])
    assert point.input_tokens_per_s + point.output_tokens_per_s == pytest.approx(4 * said["tput_per_gpu"])
    assert waits(point, "tpot_s").p50 == pytest.approx(1 / said["median_intvty"], rel=1e-3)
    # From 80 to 100 % of the nominal: a ninth of their mean to either side.
    assert point.mean_input_tokens * (1 + (point.length_spread or 0)) == pytest.approx(said["isl"])
    assert point.mean_input_tokens * (1 - (point.length_spread or 0)) == pytest.approx(0.8 * said["isl"])


def test_inferencex_apart_divides_prompts_by_prefill_and_answers_by_decode_gpus(tmp_path: Path) -> None:
    load = {**raw("inferencex.json")[0], "disagg": True, "num_prefill_gpu": 2, "num_decode_gpu": 6}
    load |= {"input_tput_per_gpu": 100.0, "output_tput_per_gpu": 50.0, "tput_per_gpu": (200 + 300) / 8}
    run = read(tmp_path, load)
    assert (run.points[0].input_tokens_per_s, run.points[0].output_tokens_per_s) == (200, 300)
    assert (run.stated.gpus, run.stated.engine) == (8, "vllm disagg")


def test_sglang_lines_are_loads() -> None:
    run = read_run(RESULTS / "sglang.jsonl")
    assert [(point.concurrency, point.rate) for point in run.points] == [(8, None), (None, 2.0)]
    assert run.model == "meta-llama/Llama-3.1-8B-Instruct"
    # In a closed loop users = rate × time of a request (Little): the file's own figures must agree.
    closed = run.points[0]
    assert closed.requests_per_s * (waits(closed, "e2e_s").mean or 0) == pytest.approx(8, rel=0.01)


def test_aiperf_calls_the_time_per_token_inter_token_latency() -> None:
    point = read_run(RESULTS / "aiperf.json").points[0]
    said = raw("aiperf.json")
    assert waits(point, "tpot_s").p99 == pytest.approx(said["inter_token_latency"]["p99"] / 1e3)
    assert point.requests_per_s == pytest.approx(said["request_throughput"]["avg"])
    assert (point.concurrency, point.completed, point.failed) == (100, 200, 84)


def test_aiperf_times_are_read_in_the_unit_they_state(tmp_path: Path) -> None:
    waited = read(tmp_path, raw("aiperf.json") | {"request_latency": {"unit": "ns", "avg": 5e12}}).points[0]
    assert waits(waited, "e2e_s").mean == pytest.approx(5000)
    document = raw("aiperf.json")
    for name in ("request_latency", "time_to_first_token", "inter_token_latency"):
        document[name] = {k: v / 1e3 if isinstance(v, float) else v for k, v in document[name].items()} | {"unit": "s"}
    same, point = read_run(RESULTS / "aiperf.json").points[0], read(tmp_path, document).points[0]
    assert waits(point, "ttft_s").mean == pytest.approx(waits(same, "ttft_s").mean)


def test_aiperf_request_lines_count_failures_and_users() -> None:
    point = read_run(RESULTS / "aiperf-requests.jsonl").points[0]
    assert (point.completed, point.failed, point.input_tokens, point.output_tokens) == (2, 1, 1000, 42)
    assert point.duration_s == pytest.approx(0.5, rel=1e-3)
    assert point.concurrency == 2
    assert waits(point, "tpot_s").mean == pytest.approx(5e-3)


def test_genai_perf_totals_follow_from_rate_and_means() -> None:
    point = read_run(RESULTS / "genai-perf.json").points[0]
    assert (point.concurrency, point.completed, point.output_tokens) == (16, 100, 12_800)
    assert point.output_tokens_per_s == pytest.approx(1024)


def test_llm_d_units_and_replicas() -> None:
    run = read_run(RESULTS / "llm-d.yaml")
    point = run.points[0]
    assert (point.rate, point.concurrency, point.completed, point.failed) == (10, None, 496, 4)
    assert waits(point, "tpot_s").p99 == pytest.approx(4.2e-3)
    assert run.stated.gpus == 2
    assert there(run.when).year == 2025


def test_files_of_one_run_are_one_curve(tmp_path: Path) -> None:
    for users in (16, 4):
        (tmp_path / f"{users}.json").write_text(json.dumps({**raw("vllm.json"), "max_concurrency": users}))
    run = read_runs([tmp_path / "16.json", tmp_path / "4.json"])
    assert [point.concurrency for point in run.points] == [4, 16]
    with pytest.raises(BadInput, match="different runs"):
        read_runs([tmp_path / "4.json", RESULTS / "aiperf.json"])


def test_what_bench_and_import_print_as_json_can_be_imported(tmp_path: Path) -> None:
    run = read_run(RESULTS / "bench.json")
    (tmp_path / "printed.json").write_text(price_run(run, None, None).model_dump_json())
    assert read_run(tmp_path / "printed.json") == run.without_records()
    (tmp_path / "saved.json").write_text(run.model_dump_json())
    assert read_run(tmp_path / "saved.json") == run


records = st.builds(
    RequestRecord, sent_s=st.floats(0, 100), ttft_s=st.none() | st.floats(0, 10), e2e_s=st.none() | st.floats(0, 10),
    input_tokens=st.integers(1, 10_000), output_tokens=st.integers(1, 10_000),
    error=st.none() | st.sampled_from(["boom", "cut"]),
)  # fmt: skip


@given(st.lists(records, min_size=1, max_size=30), st.floats(0.1, 1000))
@settings(max_examples=40)
def test_totals_equal_the_sum_of_the_records(made: list[RequestRecord], duration_s: float) -> None:
    point = point_from_records(made, duration_s, concurrency=1)
    good = [record for record in made if record.error is None]
    assert (point is None) == (not good)
    if point is None:
        return
    assert point.completed == len(good)
    assert point.failed == sum(point.errors.values()) == len(made) - len(good)
    assert point.output_tokens == sum(record.output_tokens for record in good)
    assert math.isclose(point.output_tokens_per_s * duration_s, point.output_tokens, rel_tol=1e-9)
    with pytest.raises(ValueError, match="output_tokens is"):
        LoadPoint.model_validate({**point.model_dump(), "output_tokens": point.output_tokens + 1})


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_keeps_the_law(path: Path) -> None:
    for point in read_run(path).points:
        if point.records:
            good = [record for record in point.records if record.error is None]
            assert point.input_tokens == sum(record.input_tokens for record in good)
            assert point.output_tokens == sum(record.output_tokens for record in good)
        if point.duration_s and point.output_tokens:
            assert point.output_tokens_per_s == pytest.approx(point.output_tokens / point.duration_s, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "slip", "field"),
    [
        ("vllm", {"mean_ttft_ms": 1e15}, "mean"),
        ("vllm", {"duration": 1e15}, "requests_per_s"),
        ("vllm", {"tensor_parallel_size": 10**7}, "tp"),
        ("aiperf", {"request_count": {"avg": 0.3}}, "request_count.avg"),
        ("aiperf", {"inter_chunk_latency": {"unit": "N/A", "p99": 3}}, "inter_chunk_latency"),
        ("bench", {"schema_version": 99}, "schema version 99"),
    ],
)
def test_a_figure_that_no_run_has_is_refused(tmp_path: Path, name: str, slip: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput, match=rf"r\.json(.|\n)*{field}"):
        read(tmp_path, raw(f"{name}.json") | slip)


def test_a_day_that_no_calendar_has_is_no_day(tmp_path: Path) -> None:
    result = raw("guidellm.json")
    result["benchmarks"][0]["start_time"] = 1e15
    assert read(tmp_path, result).when is None


def test_no_more_users_are_at_work_than_there_are_requests(tmp_path: Path) -> None:
    allowed = 50_000
    flat = raw("vllm.json") | {"max_concurrency": allowed, "request_rate": "inf"}
    line = json.loads((RESULTS / "sglang.jsonl").read_text().splitlines()[0])
    guided, sampled = raw("guidellm.json"), raw("guidellm.json")
    for result in (guided, sampled):
        result["benchmarks"][0]["config"]["strategy"] = {"type_": "throughput", "max_concurrency": allowed}
    sampled["benchmarks"][0]["requests"] = {}
    profiled = raw("aiperf.json")
    profiled["input_config"]["loadgen"]["concurrency"] = allowed
    report = yaml.safe_load((RESULTS / "llm-d.yaml").read_text())
    report["scenario"]["load"]["standardized"] = {"concurrency": allowed}
    line |= {"max_concurrency": allowed, "request_rate": "inf"}
    for result in (flat, line, guided, sampled, profiled, report):
        (point,) = read(tmp_path, result).points
        assert point.concurrency == (point.completed or 0) + (point.failed or 0)
        assert sum("50,000" in note for note in point.notes) == 1


@pytest.mark.parametrize("figures", [{}, {"avg": None, "p50": None}])
def test_a_metric_without_a_figure_may_have_any_unit(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = raw("aiperf.json") | {"inter_chunk_latency": {"unit": "N/A", **figures}}
    assert read(tmp_path, result).points[0].itl_s is None


SGLANG_LINE = {"completed": 1, "duration": 1, "total_output_tokens": 1, "mean_e2e_latency_ms": 1}
UNKNOWN = {
    "text.json": "hello", "list.json": "[]", "keys.json": '{"speed": 3, "tokens": 4}', "number.json": "[1, 2]",
    "cut.json": '{"completed": 3, "dura', "lines.jsonl": '{"a": 1}\n{"b": \n{"c": 3}', "empty.json": "",
    "deep.json": "[" * 100_000, "yaml.yaml": "version: '0.3'\nscenario: {}\nresults: {}\n",
    "mixed.jsonl": f"{json.dumps(detailed())}\n{json.dumps(SGLANG_LINE)}",
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_or_damaged_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(UNKNOWN[name])
    with pytest.raises(BadInput, match=re.escape(name)):
        read_run(tmp_path / name)


def test_an_unknown_file_names_what_is_supported(tmp_path: Path) -> None:
    said = str(refused(read, tmp_path, {"speed": 3}))
    assert all(tool.name in said for tool in FORMATS)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict):
        return [path, *(leaf for key, each in value.items() for leaf in leaves(each, (*path, key)))]
    if isinstance(value, list):
        return [path, *(leaf for at, each in enumerate(value[:3]) for leaf in leaves(each, (*path, at)))]
    return [path]


JUNK = st.sampled_from(
    [
        *(None, -1, 0, 1e-320, 0.3, 1e9, 1e15, 1e300, 10**400, float("nan"), float("inf"), "x", True),
        *([], {}, [1, "a"], [float("nan")], {"avg": "b"}, {"avg": 0.3}),
    ]
)
DOCUMENTS = {path.stem: path.read_text(encoding="utf-8") for path in SAMPLES if path.suffix == ".json"}
DOCUMENTS["vllm-detailed"] = json.dumps(detailed())


@given(st.sampled_from(sorted(DOCUMENTS)), st.data())
@settings(max_examples=100, deadline=None)
def test_no_damage_to_a_file_goes_unsaid_or_ends_in_a_crash(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    document = copy.deepcopy(json.loads(DOCUMENTS[name]))
    *way, last = data.draw(st.sampled_from([path for path in leaves(document) if path]))
    inside = document
    for key in way:
        inside = inside[key]
    inside[last] = data.draw(JUNK)
    path = tmp_path_factory.mktemp("damaged") / "d.json"
    path.write_text(json.dumps(document))
    try:
        run = read_run(path)
    except TokonomicsError:
        return
    named = run.model_copy(update={"model": "llama-3.1-8b"})
    assert measurements_of(named, MeasuredMachine(gpu="H100", gpus=1, tp=1))
    for point in run.points:
        figures = (point.requests_per_s, point.input_tokens_per_s, point.output_tokens_per_s)
        assert all(math.isfinite(figure) and figure > 0 for figure in figures)


def test_a_request_of_aiperf_that_does_not_say_when_it_ended_holds_no_place() -> None:
    """Two at once, and a third that began when they were over: its missing end is not the year 1970."""
    sizes = {"input_sequence_length": {"value": 10}, "output_sequence_length": {"value": 5}}
    metrics = sizes | {"request_latency": {"value": 1000.0, "unit": "ms"}}
    began = [{"request_start_ns": start * 1e9} for start in (1000, 1001, 1004)]
    times = [began[0] | {"request_end_ns": 1002e9}, began[1] | {"request_end_ns": 1003e9}, began[2]]
    (point,) = read_aiperf_requests([{"metadata": at, "metrics": metrics} for at in times], "records.jsonl").points
    assert point.concurrency == 2
    with pytest.raises(BadInput, match="when it ended"):
        read_aiperf_requests([{"metadata": began[0], "metrics": sizes}], "profile_export.jsonl")
