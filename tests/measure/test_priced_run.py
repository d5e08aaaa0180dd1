"""A benchmark in dollars and against our prediction: the bill is the machine's price, whoever measured."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.planner.small_catalogue import offer
from tests.there import there

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import BadInput
from tokonomics.measure.benchmark_run import (
    BenchmarkRun,
    Latencies,
    LoadPoint,
    Outside,
    RequestRecord,
    Stated,
    judge,
    point_from_records,
)
from tokonomics.measure.importers.load_generators import read_inferencex
from tokonomics.measure.importers.recognise import read_run
from tokonomics.measure.measurements import Metric, RunFacts
from tokonomics.measure.priced_run import (
    GivenMachine,
    MeasuredMachine,
    Price,
    as_model,
    machine_of,
    measurements_of,
    price_run,
    rental_of,
)
from tokonomics.measure.validate import predict
from tokonomics.physics.deployment import deploy
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos

RESULTS = Path(__file__).parent / "results"
PRICE = Price(usd_per_hour=7.2, price_from="as given")
H100 = MeasuredMachine(gpu="H100", gpus=1, tp=1)


def point(users: int, tokens_per_s: float, tpot_s: float = 0.01, failed: int = 0) -> LoadPoint:
    """A load of 1,000 tokens in and 250 out."""
    return LoadPoint(
        concurrency=users, requests_per_s=tokens_per_s / 250, input_tokens_per_s=4 * tokens_per_s,
        output_tokens_per_s=tokens_per_s, mean_input_tokens=1000, mean_output_tokens=250, completed=100, failed=failed,
        ttft_s=Latencies(mean=0.1, p99=0.2), tpot_s=Latencies(mean=tpot_s, p99=2 * tpot_s),
    )  # fmt: skip


def run(*points: LoadPoint, model: str | None = "llama-3.1-8b") -> BenchmarkRun:
    return BenchmarkRun(tool="a tool", model=model, points=points)


def test_the_price_is_the_machine_over_its_tokens() -> None:
    """$7.20 an hour is 0.2 cents a second: over 500 tokens a second, 4 dollars a million."""
    priced = there(price_run(run(point(4, 100)), None, PRICE).points[0].usd_per_mtok)
    assert priced.blended == pytest.approx(4.0)
    assert priced.output_only == pytest.approx(20.0)
    assert priced.input is priced.output is None  # without a model nobody knows what prompts take


def test_a_host_that_cannot_hold_the_model_is_not_what_it_ran_on() -> None:
    """16 GB of weights and a process: 8 GB are too few, and by the one price rule such a host counts for nobody."""
    thin, enough = offer("H100-SXM", 1, 1.0, memory_gb=8), offer("H100-SXM", 1, 2.0, memory_gb=24)
    prices = [rental_of(H100, model, [thin, enough]) for model in ("llama-3.1-8b", None, "a model of ours")]
    assert [price.usd_per_hour for price in prices if price] == [2.0, 2.0, 2.0]
    assert rental_of(MeasuredMachine(gpu="a GPU of ours", gpus=1, tp=1), None) is None


def test_prompts_and_answers_together_pay_the_bill() -> None:
    priced = there(price_run(run(point(4, 100)), H100, PRICE).points[0].usd_per_mtok)
    assert priced.input is not None
    assert priced.output is not None
    assert 400 * priced.input + 100 * priced.output == pytest.approx(500 * priced.blended)
    assert priced.input < priced.output


def test_errors_are_those_that_validate_computes() -> None:
    made = run(point(16, 1500))
    scored = {(each.metric, each.statistic): each for each in price_run(made, H100, None).points[0].scored}
    rows = measurements_of(made, H100)
    assert len(rows) == len(scored) == 5
    for row in rows:
        said = predict(row)
        assert not isinstance(said, str)
        assert scored[row.metric, row.statistic].off == pytest.approx(said.interval.mid / row.value - 1)
        assert scored[row.metric, row.statistic].inside == said.inside


def test_medians_and_tails_are_scored_where_they_are_known() -> None:
    known = point(16, 1500).model_copy(update={"tpot_s": Latencies(mean=0.01, p50=0.009, p99=0.02)})
    figures = [(row.figure, row.value) for row in measurements_of(run(known), H100)]
    assert figures[:3] == [("tpot_s", 0.01), ("tpot_s p50", 0.009), ("tpot_s p99", 0.02)]
    assert figures[3:] == [("ttft_s", 0.1), ("ttft_s p99", 0.2), ("output_tok_s", 1500)]
    at_once = known.model_copy(update={"concurrency": None})
    assert [(row.figure, row.value) for row in measurements_of(run(at_once), H100)] == figures  # so many in a queue
    endless = at_once.model_copy(update={"completed": 0})
    assert [row.figure for row in measurements_of(run(endless), H100)] == ["tpot_s", "ttft_s", "output_tok_s"]
    # Of mean and median, the median alone is shown.
    assert list(price_run(run(known), H100, None).median_abs_error) == [figure for figure, _ in figures[1:]]


def test_a_run_is_predicted_with_its_own_requests() -> None:
    """Sent at 1, 0 and 4 s; the one that failed is nobody's load. Each of two replicas gets every second."""
    records = [
        RequestRecord(sent_s=sent, ttft_s=0.1, tpot_s=0.01, e2e_s=1.0, input_tokens=prompt, output_tokens=30)
        for sent, prompt in ((1.0, 20), (0.0, 10), (4.0, 30))
    ] + [RequestRecord(sent_s=2.0, input_tokens=7, output_tokens=0, error="boom")]
    made = there(point_from_records(records, 5.0, rate=0.6))
    facts = measurements_of(run(made), H100)[0].run
    assert facts == RunFacts(
        requests=3, arrival_s=(0.0, 1.0, 4.0), input_tokens=(10, 20, 30), output_tokens=(30, 30, 30)
    )
    halved = measurements_of(run(made), MeasuredMachine(gpu="H100", gpus=2, tp=1))[0].run
    assert (halved.requests, halved.arrival_s, halved.input_tokens) == (2, (0.0, 4.0), (10, 30))
    out = price_run(run(made), H100, None).points[0].scored[-1]
    assert out.metric is Metric.output_tok_s
    assert 90 / 4.5 < out.predicted.mid < 90 / 4.05  # the last comes after 4 s and takes 0.1 to 0.5


def test_what_our_own_benchmark_keeps_apart_is_a_warm_up() -> None:
    warm = point(16, 1500).model_copy(update={"outside": Outside(requests=32)})
    assert measurements_of(run(warm), H100)[0].run == RunFacts(requests=100, warm_up=16)
    assert measurements_of(run(point(16, 1500)), H100)[0].run == RunFacts(requests=100)


def test_two_replicas_are_predicted_as_half_the_load_each() -> None:
    """Twice the users on twice the GPUs: the same latency, and twice the tokens."""
    alone = price_run(run(point(16, 1500)), H100, None).points[0]
    both = point(32, 3000).model_copy(update={"completed": 200})
    double = price_run(run(both), MeasuredMachine(gpu="H100", gpus=2, tp=1), None).points[0]
    for one, two in zip(alone.scored, double.scored, strict=True):
        times = 2 if one.metric is Metric.output_tok_s else 1
        assert two.predicted.mid == pytest.approx(times * one.predicted.mid)
        assert two.measured == pytest.approx(times * one.measured)
        assert two.off == pytest.approx(one.off)


def test_a_published_run_is_predicted_where_the_engine_was_not_full() -> None:
    """InferenceMAX, GPT-OSS-120B on four H100: 4 to 16 and 64 users (see the samples' README for the others)."""
    made = read_run(RESULTS / "inferencex.json")
    machine = machine_of(made.stated, GivenMachine())
    priced = price_run(made, machine, None)
    tpots = [next(each for each in priced.points[at].scored if each.metric is Metric.tpot_s) for at in (0, 1, 2, 4)]
    assert all(abs(tpot.off) < 0.25 for tpot in tpots)
    # Four of five should be; docs/accuracy.md says how many are, over all such rows.
    assert sum(tpot.inside for tpot in tpots) >= 2


@pytest.mark.parametrize("model", [None, "no-such-model"])
def test_what_cannot_be_predicted_is_priced_and_says_why(model: str | None) -> None:
    priced = price_run(run(point(4, 100), model=model), H100, PRICE).points[0]
    assert priced.not_predicted
    assert priced.usd_per_mtok is not None


def test_the_user_knows_better_than_the_file() -> None:
    stated = Stated(gpu="h200", gpus=8, tp=8, engine="sglang", weights="fp8")
    assert machine_of(stated, GivenMachine()) == MeasuredMachine(
        gpu="H200", gpus=8, tp=8, engine="sglang", weights="fp8"
    )
    machine = machine_of(stated, GivenMachine(gpu="H100", gpus=4, tp=2, engine="vllm"))
    assert machine == MeasuredMachine(gpu="H100-SXM", gpus=4, tp=2, engine="vllm", weights="fp8")
    assert there(machine).replicas == 2
    assert machine_of(Stated(), GivenMachine(gpus=2)) is None


def test_groups_of_the_attention_are_one_replica_with_one_bill() -> None:
    machine = there(machine_of(Stated(gpu="H200", gpus=16, tp=1, ep=8, dp=8), GivenMachine()))
    assert (machine.replicas, machine.dp) == (2, 8)
    said = machine_of(Stated(), GivenMachine(gpu="H200", tp=2, dp=4, ep=8))
    assert said == MeasuredMachine(gpu="H200", gpus=8, tp=2, dp=4, ep=8)
    one, eight = offer("H200", 1, 4.0), offer("H200", 8, 40.0)
    # The groups share experts: eight machines of one GPU are no place for them, though cheaper.
    for model in ("deepseek-r1", None):
        found = there(rental_of(machine, model, [one, eight]))
        assert found.usd_per_hour == 80.0
    rows = measurements_of(run(point(4, 100), model="deepseek-r1"), machine)
    assert {row.dp for row in rows} == {8}


def test_inferencex_says_that_its_gpus_attend_for_themselves() -> None:
    documents = json.loads((RESULTS / "inferencex.json").read_text(encoding="utf-8"))
    plain = read_inferencex(documents, "a test").stated
    wide = read_inferencex([load | {"dp_attention": "true"} for load in documents], "a test").stated
    assert (plain.tp, plain.ep, plain.dp, plain.gpus) == (4, 1, None, 4)
    assert (wide.tp, wide.ep, wide.dp, wide.gpus) == (1, 4, 4, 4)


def test_the_knee_is_the_smallest_load_near_the_top_and_the_best_meets_the_slo() -> None:
    points = [point(1, 100, 0.01), point(4, 390, 0.011), point(16, 950, 0.02), point(64, 1000, 0.08)]
    prices = [8.0, 2.0, 0.9, 0.8]
    verdict = judge(points, prices)
    assert (verdict.knee, verdict.best) == (2, 3)
    assert judge(points, prices, parse_slos("tpot_p99=50ms")).best == 2
    assert judge(points, prices, parse_slos("tpot_p99=1ms")).best is None
    assert judge(points, [None] * 4).best == 3  # without a price: the most tokens
    assert judge([points[0], point(4, 400, failed=5)], [2.0, 1.0]).best == 0  # a load that fails requests never is
    verdict = judge(points[:1], [1.0], parse_slos("ttft_p90=1"))  # a statistic that the file lacks
    assert verdict.best is None
    assert verdict.slos[0][0].measured_s is None


def test_loads_of_other_lengths_are_not_compared() -> None:
    """Short answers give more tokens a second than long prompts do: no best among the two, one within each."""
    other = {"mean_input_tokens": 100, "mean_output_tokens": 250}
    points = [point(users, 100 * users, 0.01) for users in (1, 2, 4)]
    points += [each.model_copy(update=other | {"output_tokens_per_s": 5000.0}) for each in points[:2]]
    verdict = judge(points, [4.0, 3.0, 2.0, 1.0, 0.5])
    assert (verdict.knee, verdict.best) == (None, None)
    assert [(group.points, group.knee, group.best) for group in verdict.groups] == [
        ((0, 1, 2), 2, 2), ((3, 4), None, 4),
    ]  # fmt: skip
    about = points[0].model_copy(update={"mean_input_tokens": 1090.0})
    assert len(judge([about, *points[1:3]], [None] * 3).groups) == 1  # drawn lengths differ a little


def test_varying_lengths_that_were_asked_for_alike_are_compared() -> None:
    """Thirty lengths, lognormal as chats are, have means that are often over a quarter apart."""
    chance = np.random.default_rng(1)
    means = [float(chance.lognormal(7, 1.2, 30).mean()) for _ in range(4)]
    assert max(means) > 1.25 * min(means)
    points = [
        point(2**place, 100 * 2**place).model_copy(update={"mean_input_tokens": mean, "lengths": "1000 / 250"})
        for place, mean in enumerate(means)
    ]
    assert judge(points, [None] * 4).best == 3
    unknown = [each.model_copy(update={"lengths": None}) for each in points]
    assert len(judge(unknown, [None] * 4).groups) > 1


@pytest.mark.parametrize(
    ("model", "weights", "assumed"),
    [
        ("llama-3.1-8b", "unstated", "bf16"),
        ("llama-3.1-8b", "fp8", None),
        ("meta-llama/Llama-3.1-8B-Instruct-FP8", "unstated", None),
        ("gpt-oss-120b", "unstated", None),
        ("nobody/knows-9b", "unstated", None),
    ],
)
def test_a_precision_that_nobody_stated_is_said_to_be_assumed(model: str, weights: str, assumed: str | None) -> None:
    made = price_run(run(point(4, 100), model=model), H100.model_copy(update={"weights": weights}), None)
    assert made.assumed_weights == assumed


@pytest.mark.parametrize(
    ("name", "stated", "weights"),
    [
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", None, "fp8"),
        ("meta-llama/Llama-3.1-8B-Instruct", None, None),
        ("meta-llama/Llama-3.1-8B-Instruct-FP8", "bf16", "bf16"),
        (None, None, None),
    ],
)
def test_a_named_model_keeps_the_files_precision(name: str | None, stated: str | None, weights: str | None) -> None:
    found = run(point(4, 100)).model_copy(update={"model": name, "stated": Stated(weights=stated)})
    made = as_model(found, "llama-3.1-8b")
    assert (made.model, made.stated.weights) == ("llama-3.1-8b", weights)


def test_prompts_take_the_share_of_the_gpu_that_a_simulation_finds() -> None:
    """At 2 and at 4 requests a second: the prompts' part of the bill is that of their time, request by request."""
    shares = {}
    for rate in (2.0, 4.0):
        load = point(1, 250 * rate).model_copy(update={"concurrency": None, "rate": rate})
        (priced,) = price_run(run(load), H100, PRICE).points
        assert priced.usd_per_mtok is not None
        assert priced.usd_per_mtok.input is not None
        shares[rate] = priced.usd_per_mtok.input * 1000 * rate * 3600 / 1e6 / (PRICE.usd_per_hour or 1)
        trace = generate(
            parse_arrivals(f"poisson:{rate}"), parse_lengths("1000", "input"), parse_lengths("250", "output"),
            requests=1000, seed=1,
        )  # fmt: skip
        time = outcome(
            simulate(deploy(find_model("llama-3.1-8b"), find_gpu("H100"), find_engine("vllm")), trace)
        ).shares
        assert shares[rate] == pytest.approx(time.prefill / (time.prefill + time.decode), rel=0.25)
    assert shares[2.0] < shares[4.0]


@pytest.mark.parametrize("given", [{"gpus": 10**6}, {"gpus": 2000, "pp": 2000}, {"gpus": 3, "tp": 2}])
def test_a_machine_that_nobody_has_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        machine_of(Stated(), GivenMachine(gpu="H100", **given))
