"""Result files of other tools: the figures are theirs, in our words; whatever is wrong with a file is said."""

import copy
import json
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.measure.benchmark_run import LoadPoint, RequestRecord, point_from_records
from tokonomics.measure.importers.load_generators import read_aiperf_requests
from tokonomics.measure.importers.recognise import FORMATS, read_run, read_runs
from tokonomics.measure.measurements import RunFacts
from tokonomics.measure.priced_run import MeasuredMachine, measurements_of, price_run
from tokonomics.measure.validate import predict

RESULTS = Path(__file__).parent / "results"
SAMPLES = sorted(path for path in RESULTS.iterdir() if path.suffix != ".md")


def raw(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def test_every_supported_format_has_a_sample() -> None:
    tools = {read_run(path).tool for path in SAMPLES}
    assert tools == {
        *("vLLM bench serve", "guidellm", "InferenceX", "aiperf", "genai-perf"),
        *("SGLang bench_serving", "inference-perf", "tokonomics bench"),
    }


def test_vllm_rates_are_the_ones_vllm_printed() -> None:
    said, point = raw("vllm.json"), read_run(RESULTS / "vllm.json").points[0]
    assert point.concurrency == 4
    assert point.rate is None
    assert point.requests_per_s == pytest.approx(said["request_throughput"])
    assert point.output_tokens_per_s == pytest.approx(said["output_throughput"])
    assert point.input_tokens_per_s + point.output_tokens_per_s == pytest.approx(said["total_token_throughput"])
    assert point.ttft_s is not None
    assert point.e2e_s is not None
    assert point.ttft_s.p50 == pytest.approx(said["median_ttft_ms"] / 1e3)
    assert point.e2e_s.p50 == pytest.approx(statistics.median(said["latencies"]))


def detailed() -> dict[str, Any]:
    """As ``--save-detailed`` writes it: three requests, of which the second failed."""
    return {
        **{"date": "20261115-000415", "model_id": "llama-3.1-8b", "request_rate": 2.0, "max_concurrency": None},
        **{"duration": 2.0, "completed": 2, "failed": 1, "total_input_tokens": 30, "total_output_tokens": 5},
        **{"input_lens": [10, 7, 20], "output_lens": [3, 0, 2], "ttfts": [0.1, 0.0, 0.2]},
        **{"itls": [[0.02, 0.04], [], [0.05]], "start_times": [5.0, 5.5, 6.0], "errors": ["", "Traceback…\nboom", ""]},
    }


def test_vllm_requests_give_the_same_figures_as_their_lists(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(detailed()))
    point = read_run(tmp_path / "v.json").points[0]
    assert (point.rate, point.concurrency) == (2.0, None)
    assert (point.completed, point.failed, point.errors) == (2, 1, {"boom": 1})
    assert [record.sent_s for record in point.records] == [0.0, 0.5, 1.0]
    assert point.tpot_s is not None
    assert point.e2e_s is not None
    assert point.itl_s is not None
    assert point.tpot_s.mean == pytest.approx((0.03 + 0.05) / 2)
    assert point.e2e_s.mean == pytest.approx((0.16 + 0.25) / 2)
    assert point.itl_s.mean == pytest.approx((0.02 + 0.04 + 0.05) / 3)


def test_vllm_lists_without_start_times_are_left_for_the_summary(tmp_path: Path) -> None:
    """Older releases did not write when requests were sent."""
    old = {name: value for name, value in detailed().items() if name != "start_times"} | {"mean_tpot_ms": 40.0}
    (tmp_path / "old.json").write_text(json.dumps(old))
    point = read_run(tmp_path / "old.json").points[0]
    assert point.records == ()
    assert (point.completed, point.failed, point.output_tokens) == (2, 1, 5)
    assert point.tpot_s is not None
    assert point.tpot_s.mean == pytest.approx(0.04)


def test_vllm_requests_without_their_gaps_are_kept_beside_the_summary(tmp_path: Path) -> None:
    whole = {name: value for name, value in detailed().items() if name != "itls"}
    said = {"median_tpot_ms": 40.0, "p99_tpot_ms": 50.0, "p99_e2el_ms": 250.0, "median_ttft_ms": 1.0}
    (tmp_path / "v.json").write_text(json.dumps(whole | said))
    point = read_run(tmp_path / "v.json").points[0]
    assert [(record.sent_s, record.input_tokens, record.output_tokens) for record in point.records] == [
        (0.0, 10, 3), (0.5, 7, 0), (1.0, 20, 2),
    ]  # fmt: skip
    assert point.tpot_s is not None
    assert point.ttft_s is not None
    assert point.e2e_s is not None
    assert (point.tpot_s.p50, point.tpot_s.p99, point.e2e_s.p99) == (0.04, 0.05, 0.25)
    assert point.ttft_s.p50 == pytest.approx(0.15)  # of its requests, whatever the summary says


def test_a_file_with_arrivals_is_predicted_with_those_arrivals(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(detailed()))
    rows = measurements_of(read_run(tmp_path / "v.json"), MeasuredMachine(gpu="H100", gpus=1, tp=1))
    times = {f"{metric}{statistic}" for metric in ("tpot_s", "ttft_s") for statistic in ("", " p50", " p99")}
    assert {row.figure for row in rows} == {*times, "output_tok_s"}
    (facts,) = {row.run for row in rows}
    assert facts == RunFacts(requests=2, arrival_s=(0.0, 1.0), input_tokens=(10, 20), output_tokens=(3, 2))
    said = predict(rows[-1])
    assert not isinstance(said, str)
    assert 5 / 1.2 < said.interval.mid < 5  # five tokens, the last of them soon after a second


NAN = float("nan")
CONTRADICTIONS = [
    ({"duration": 0.9}, r"'start_times\[2\]' is 1 s after the first request, but the run lasted 0.9 s \(duration\)"),
    ({"start_times": [5.0, 5.5, 1e18]}, r"'start_times\[2\]' is 1e\+18"),
    ({"start_times": [1e18, 1e18, 1e18]}, r"'start_times\[0\]' is 1e\+18"),
    ({"start_times": [5.0, 5.5, None]}, r"'start_times\[2\]' is null"),
    ({"start_times": [5.0, 5.5, NAN]}, r"'start_times\[2\]' is 'nan', not a finite number"),
    ({"start_times": {"0": 5.0}}, r"'start_times' is not a list"),
    ({"ttfts": [0.1, 0.0, 30.0]}, r"'ttfts\[2\]' is 30 s for a request sent at 1 s, but the run lasted 2 s"),
    ({"ttfts": [0.1, 0.0, NAN]}, r"'ttfts\[2\]' is 'nan'"),
    ({"itls": [[0.02, 0.04], [], [3.0]]}, r"'itls\[2\]' ends the answer at 4.2 s, but the run lasted 2 s"),
    ({"itls": [[0.02, 0.04], [], "fast"]}, r"'itls\[2\]' is not a list"),
    ({"itls": [[0.02, 0.04], []]}, "start_times 3, input_lens 3, output_lens 3, ttfts 3, itls 2, errors 3"),
    ({"ttfts": [0.1, 0.0], "itls": None, "errors": None}, "start_times 3, input_lens 3, output_lens 3, ttfts 2$"),
    ({"input_lens": [10, 7, 20.5]}, r"'input_lens\[2\]' is not a whole number: 20.5"),
    ({"duration": NAN}, "'duration' is 'nan', not a finite number"),
    ({"duration": None}, "'duration' is missing"),
    ({"median_ttft_ms": 150.0, "p99_ttft_ms": 1.0}, "'p99_ttft_ms' is below the p50 of the same times"),
]


@pytest.mark.parametrize(("slip", "says"), CONTRADICTIONS)
def test_vllm_lists_that_contradict_the_run_are_refused_by_name(
    tmp_path: Path, slip: dict[str, Any], says: str
) -> None:
    (tmp_path / "v.json").write_text(json.dumps(detailed() | slip))
    with pytest.raises(BadInput, match=says):
        read_run(tmp_path / "v.json")


def test_a_vllm_file_without_its_duration_says_so(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps({key: each for key, each in detailed().items() if key != "duration"}))
    with pytest.raises(BadInput, match="'duration' is missing"):
        read_run(tmp_path / "v.json")


DOUBTS = [
    (
        {"median_ttft_ms": 1.0},
        "printed figures contradict the lists, which are taken: p50 TTFT 1 ms, by the lists 150 ms",
    ),
    ({"completed": 3}, "printed figures contradict the lists, which are taken: completed 3, by the lists 2"),
    (
        {"itls": [[0.06], [], [0.05]]},
        "1 answer came in fewer pieces than tokens, as several tokens at once do "
        "(itls[0] has 1 gap, output_lens[0] is 3)",
    ),
    (
        {"itls": [[0.02] * 40, [], [0.05]]},
        "1 answer came in far more pieces than tokens were counted: times per token are too long there "
        "(itls[0] has 40 gaps, output_lens[0] is 3)",
    ),
]


@pytest.mark.parametrize(("slip", "note"), DOUBTS)
def test_what_is_odd_in_a_vllm_file_is_noted(tmp_path: Path, slip: dict[str, Any], note: str) -> None:
    (tmp_path / "v.json").write_text(json.dumps(detailed()))
    assert read_run(tmp_path / "v.json").points[0].notes == ()
    (tmp_path / "v.json").write_text(json.dumps(detailed() | slip))
    assert read_run(tmp_path / "v.json").points[0].notes == (note,)


def test_a_clock_that_begins_at_zero_keeps_its_first_arrival(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(detailed() | {"start_times": [0.0, 0.5, 1.0]}))
    assert [record.sent_s for record in read_run(tmp_path / "v.json").points[0].records] == [0.0, 0.5, 1.0]


def test_a_request_that_was_never_sent_does_not_begin_the_run(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_text(json.dumps(detailed() | {"start_times": [5.0, 0.0, 6.0]}))
    assert [record.sent_s for record in read_run(tmp_path / "v.json").points[0].records] == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("total", ["total_input_tokens", "total_output_tokens"])
def test_a_total_that_is_not_the_sum_of_the_requests_is_refused(tmp_path: Path, total: str) -> None:
    (tmp_path / "v.json").write_text(json.dumps({**detailed(), total: 31}))
    with pytest.raises(BadInput, match=f"'{total}' is 31, but its requests add up to"):
        read_run(tmp_path / "v.json")


def test_guidellm_throughput_is_tokens_over_duration_not_the_median_of_moments() -> None:
    said, point = raw("guidellm.json")["benchmarks"][0], read_run(RESULTS / "guidellm.json").points[0]
    assert point.output_tokens_per_s == pytest.approx(320 / 0.2577481269836426)
    assert point.output_tokens_per_s > 1.5 * said["metrics"]["output_tokens_per_second"]["successful"]["median"]
    requests = said["requests"]["successful"]
    assert point.tpot_s is not None
    assert point.tpot_s.mean == pytest.approx(statistics.fmean(r["inter_token_latency_ms"] for r in requests) / 1e3)
    assert point.cached_tokens == sum(r["cached_tokens"] for r in requests)


def test_guidellm_without_its_requests_says_the_same_from_its_summary(tmp_path: Path) -> None:
    document = raw("guidellm.json")
    document["benchmarks"][0]["requests"]["successful"] = []
    (tmp_path / "g.json").write_text(json.dumps(document))
    whole, summary = read_run(RESULTS / "guidellm.json").points[0], read_run(tmp_path / "g.json").points[0]
    assert summary.records == ()
    for name in ("completed", "input_tokens", "output_tokens", "output_tokens_per_s", "mean_input_tokens"):
        assert getattr(summary, name) == pytest.approx(getattr(whole, name))
    assert summary.ttft_s is not None
    assert whole.ttft_s is not None
    assert summary.ttft_s.mean == pytest.approx(whole.ttft_s.mean)


def test_inferencex_figures_are_per_gpu_and_latencies_are_seconds() -> None:
    run = read_run(RESULTS / "inferencex.json")
    said, point = raw("inferencex.json")[0], run.points[0]
    assert (run.stated.gpu, run.stated.gpus, run.stated.tp) == ("h100", 4, 4)
    assert point.output_tokens_per_s == pytest.approx(4 * said["output_tput_per_gpu"])
    assert point.input_tokens_per_s + point.output_tokens_per_s == pytest.approx(4 * said["tput_per_gpu"])
    assert point.tpot_s is not None
    assert point.tpot_s.p50 == pytest.approx(1 / said["median_intvty"], rel=1e-3)
    # From 80 to 100 % of the nominal: a ninth of their mean to either side.
    assert point.mean_input_tokens * (1 + (point.length_spread or 0)) == pytest.approx(said["isl"])
    assert point.mean_input_tokens * (1 - (point.length_spread or 0)) == pytest.approx(0.8 * said["isl"])


def test_inferencex_apart_divides_prompts_by_prefill_and_answers_by_decode_gpus(tmp_path: Path) -> None:
    load = {**raw("inferencex.json")[0], "disagg": True, "num_prefill_gpu": 2, "num_decode_gpu": 6}
    load |= {"input_tput_per_gpu": 100.0, "output_tput_per_gpu": 50.0, "tput_per_gpu": (200 + 300) / 8}
    (tmp_path / "agg.json").write_text(json.dumps(load))
    run = read_run(tmp_path / "agg.json")
    assert (run.points[0].input_tokens_per_s, run.points[0].output_tokens_per_s) == (200, 300)
    assert run.stated.gpus == 8
    assert run.stated.engine == "vllm disagg"


def test_sglang_lines_are_loads() -> None:
    run = read_run(RESULTS / "sglang.jsonl")
    assert [(point.concurrency, point.rate) for point in run.points] == [(8, None), (None, 2.0)]
    assert run.model == "meta-llama/Llama-3.1-8B-Instruct"
    # In a closed loop users = rate × time of a request (Little): the file's own figures must agree.
    closed = run.points[0]
    assert closed.e2e_s is not None
    assert closed.e2e_s.mean is not None
    assert closed.requests_per_s * closed.e2e_s.mean == pytest.approx(8, rel=0.01)


def test_aiperf_calls_the_time_per_token_inter_token_latency() -> None:
    point = read_run(RESULTS / "aiperf.json").points[0]
    said = raw("aiperf.json")
    assert point.tpot_s is not None
    assert point.tpot_s.p99 == pytest.approx(said["inter_token_latency"]["p99"] / 1e3)
    assert point.requests_per_s == pytest.approx(said["request_throughput"]["avg"])
    assert (point.concurrency, point.completed, point.failed) == (100, 200, 84)


def test_aiperf_times_are_read_in_the_unit_they_state(tmp_path: Path) -> None:
    document = raw("aiperf.json")
    for name in ("request_latency", "time_to_first_token", "inter_token_latency"):
        document[name] = {k: v / 1e3 if isinstance(v, float) else v for k, v in document[name].items()} | {"unit": "s"}
    (tmp_path / "a.json").write_text(json.dumps(document))
    same, point = read_run(RESULTS / "aiperf.json").points[0], read_run(tmp_path / "a.json").points[0]
    assert point.ttft_s is not None
    assert same.ttft_s is not None
    assert point.ttft_s.mean == pytest.approx(same.ttft_s.mean)


def test_aiperf_request_lines_count_failures_and_users() -> None:
    point = read_run(RESULTS / "aiperf-requests.jsonl").points[0]
    assert (point.completed, point.failed, point.input_tokens, point.output_tokens) == (2, 1, 1000, 42)
    assert point.duration_s == pytest.approx(0.5, rel=1e-3)
    assert point.concurrency == 2
    assert point.tpot_s is not None
    assert point.tpot_s.mean == pytest.approx(5e-3)


def test_genai_perf_totals_follow_from_rate_and_means() -> None:
    point = read_run(RESULTS / "genai-perf.json").points[0]
    assert (point.concurrency, point.completed, point.output_tokens) == (16, 100, 12_800)
    assert point.output_tokens_per_s == pytest.approx(1024)


def test_llm_d_units_and_replicas() -> None:
    run = read_run(RESULTS / "llm-d.yaml")
    point = run.points[0]
    assert (point.rate, point.concurrency, point.completed, point.failed) == (10, None, 496, 4)
    assert point.tpot_s is not None
    assert point.tpot_s.p99 == pytest.approx(4.2e-3)
    assert run.stated.gpus == 2
    assert run.when is not None
    assert run.when.year == 2025


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


def test_a_file_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "newer.json").write_text(json.dumps(raw("bench.json") | {"schema_version": 99}))
    with pytest.raises(BadInput, match="schema version 99"):
        read_run(tmp_path / "newer.json")


records = st.builds(
    RequestRecord,
    sent_s=st.floats(0, 100),
    ttft_s=st.none() | st.floats(0, 10),
    e2e_s=st.none() | st.floats(0, 10),
    input_tokens=st.integers(1, 10_000),
    output_tokens=st.integers(1, 10_000),
    error=st.none() | st.sampled_from(["boom", "cut"]),
)


@given(st.lists(records, min_size=1, max_size=30), st.floats(0.1, 1000))
def test_totals_equal_the_sum_of_the_records(made: list[RequestRecord], duration_s: float) -> None:
    point = point_from_records(made, duration_s, concurrency=1)
    good = [each for each in made if each.error is None]
    assert (point is None) == (not good)
    if point is None:
        return
    assert point.completed == len(good)
    assert point.failed == sum(point.errors.values()) == len(made) - len(good)
    assert point.output_tokens == sum(each.output_tokens for each in good)
    assert math.isclose(point.output_tokens_per_s * duration_s, point.output_tokens, rel_tol=1e-9)
    with pytest.raises(ValueError, match="output_tokens is"):
        LoadPoint.model_validate({**point.model_dump(), "output_tokens": point.output_tokens + 1})


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_keeps_the_law(path: Path) -> None:
    for point in read_run(path).points:
        if point.records:
            good = [record for record in point.records if record.error is None]
            assert point.input_tokens == sum(each.input_tokens for each in good)
            assert point.output_tokens == sum(each.output_tokens for each in good)
        if point.duration_s and point.output_tokens:
            assert point.output_tokens_per_s == pytest.approx(point.output_tokens / point.duration_s, rel=1e-3)


SLIPS = [
    ("vllm-detailed", {"duration": 1e-320}, "duration"),
    ("vllm-detailed", {"itls": [["a"], [], [0.05]]}, r"itls\[0\]"),
    ("vllm-detailed", {"itls": [[float("nan")], [], [0.05]]}, r"itls\[0\]"),
    ("vllm-detailed", {"request_rate": 1e12}, "rate"),
    ("vllm", {"mean_ttft_ms": 1e15}, "mean"),
    ("vllm", {"duration": 1e15}, "requests_per_s"),
    ("vllm", {"tensor_parallel_size": 10**7}, "tp"),
    ("aiperf", {"request_count": {"avg": 0.3}}, "request_count.avg"),
]


@pytest.mark.parametrize(("name", "slip", "named"), SLIPS)
def test_a_figure_that_no_run_has_is_refused_with_its_name(
    tmp_path: Path, name: str, slip: dict[str, Any], named: str
) -> None:
    (tmp_path / "r.json").write_text(json.dumps(json.loads(DOCUMENTS[name]) | slip))
    with pytest.raises(BadInput, match=named) as refused:
        read_run(tmp_path / "r.json")
    assert "r.json" in str(refused.value)


def test_a_day_that_no_calendar_has_is_no_day(tmp_path: Path) -> None:
    result = raw("guidellm.json")
    result["benchmarks"][0]["start_time"] = 1e15
    (tmp_path / "g.json").write_text(json.dumps(result))
    assert read_run(tmp_path / "g.json").when is None


def test_no_more_users_are_at_work_than_there_are_requests(tmp_path: Path) -> None:
    """A hundred requests under a limit of 256 users are a load of a hundred."""
    flat = raw("vllm.json") | {"max_concurrency": 256}
    line = json.loads((RESULTS / "sglang.jsonl").read_text().splitlines()[0]) | {"max_concurrency": 10_000}
    for written, requests in ((flat, flat["completed"] + flat.get("failed", 0)), (line, line["completed"])):
        (tmp_path / "r.json").write_text(json.dumps(written | {"request_rate": "inf"}))
        point = read_run(tmp_path / "r.json").points[0]
        assert point.concurrency == requests
        assert "users were allowed" in point.notes[0]


def test_nor_in_the_files_of_other_tools(tmp_path: Path) -> None:
    allowed = 50_000
    guided, sampled = raw("guidellm.json"), raw("guidellm.json")
    for result in (guided, sampled):
        result["benchmarks"][0]["config"]["strategy"] = {"type_": "throughput", "max_concurrency": allowed}
    sampled["benchmarks"][0]["requests"] = {}
    profiled = raw("aiperf.json")
    profiled["input_config"]["loadgen"]["concurrency"] = allowed
    report = yaml.safe_load((RESULTS / "llm-d.yaml").read_text())
    report["scenario"]["load"]["standardized"] = {"concurrency": allowed}
    for result in (guided, sampled, profiled, report):
        (tmp_path / "r.json").write_text(json.dumps(result, default=str))
        (point,) = read_run(tmp_path / "r.json").points
        assert point.concurrency == (point.completed or 0) + (point.failed or 0)
        assert sum("50,000 users were allowed" in note for note in point.notes) == 1


@pytest.mark.parametrize("figures", [{}, {"avg": None, "p50": None}])
def test_a_metric_without_a_figure_may_have_any_unit(tmp_path: Path, figures: dict[str, Any]) -> None:
    result = raw("aiperf.json") | {"inter_chunk_latency": {"unit": "N/A", **figures}}
    (tmp_path / "r.json").write_text(json.dumps(result))
    assert read_run(tmp_path / "r.json").points[0].itl_s is None
    (tmp_path / "r.json").write_text(json.dumps(result | {"inter_chunk_latency": {"unit": "N/A", "p99": 3}}))
    with pytest.raises(BadInput, match="'inter_chunk_latency' is in 'N/A'"):
        read_run(tmp_path / "r.json")


def test_a_wait_in_nanoseconds_is_as_long_as_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(raw("aiperf.json") | {"request_latency": {"unit": "ns", "avg": 5e12}}))
    waited = read_run(tmp_path / "r.json").points[0].e2e_s
    assert waited is not None
    assert waited.mean == pytest.approx(5000)


def test_one_request_is_spoken_of_as_one(tmp_path: Path) -> None:
    line = json.loads((RESULTS / "sglang.jsonl").read_text().splitlines()[0])
    alone = line | {"completed": 1, "num_prompts": 1, "max_concurrency": 8, "request_rate": "inf"}
    (tmp_path / "r.json").write_text(json.dumps(alone))
    assert read_run(tmp_path / "r.json").points[0].notes == ("8 users were allowed, but there was 1 request",)


def test_requests_of_aiperf_of_which_none_ended_are_refused() -> None:
    sizes = {"input_sequence_length": {"value": 10}, "output_sequence_length": {"value": 5}}
    with pytest.raises(BadInput, match="when it ended"):
        read_aiperf_requests([{"metadata": {"request_start_ns": 1e18}, "metrics": sizes}], "profile_export.jsonl")


UNKNOWN = {
    "text.json": ("hello", "neither JSON nor YAML|not an object"),
    "list.json": ("[]", "an empty list"),
    "keys.json": ('{"speed": 3, "tokens": 4}', "its keys: speed, tokens"),
    "cut.json": ('{"completed": 3, "dura', "not JSON"),
    "lines.jsonl": ('{"a": 1}\n{"b": \n{"c": 3}', "lines.jsonl:2: not JSON"),
    "empty.json": ("", "is empty"),
    "deep.json": ("[" * 100_000, "not JSON"),
    "yaml.yaml": ("version: '0.3'\nscenario: {}\nresults: {}\n", "version 0.3"),
    "number.json": ("[1, 2]", "not an object"),
    "mixed.jsonl": (
        json.dumps(detailed())
        + "\n"
        + json.dumps({"completed": 1, "duration": 1, "total_output_tokens": 1, "mean_e2e_latency_ms": 1}),
        "mixed",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_or_damaged_file_says_what_was_found(tmp_path: Path, name: str) -> None:
    text, found = UNKNOWN[name]
    (tmp_path / name).write_text(text)
    with pytest.raises(BadInput) as refused:
        read_run(tmp_path / name)
    import re

    assert re.search(found, str(refused.value))


def test_an_unknown_file_names_what_is_supported(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"speed": 3}')
    with pytest.raises(BadInput) as refused:
        read_run(tmp_path / "x.json")
    assert all(each.name in str(refused.value) for each in FORMATS)


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
@settings(max_examples=300, deadline=None)
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
    lines = [
        {
            "metadata": {"request_start_ns": start * 1e9} | ({"request_end_ns": end * 1e9} if end else {}),
            "metrics": {
                "input_sequence_length": {"value": 10},
                "output_sequence_length": {"value": 5},
                "request_latency": {"value": 1000.0, "unit": "ms"},
            },
        }
        for start, end in ((1000, 1002), (1001, 1003), (1004, None))
    ]
    (point,) = read_aiperf_requests(lines, "records.jsonl").points
    assert point.concurrency == 2
