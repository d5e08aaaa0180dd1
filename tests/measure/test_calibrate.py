"""Calibrating finds what a made-up server does differently, judges itself on loads it has not seen, and says no."""

import json
import math
import statistics
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.measure.ledgers import hour, ledger_of
from tests.measure.rows import measurement
from tests.there import there
from typer.testing import CliRunner

from tokonomics.__main__ import app
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.measure.calibrate import Calibrated, calibrate, errors, held_out_loads, load_of
from tokonomics.measure.evidence import Evidence, is_ledger, read_evidence, runs_of
from tokonomics.measure.measurements import Measurement, Metric, Mode, RunFacts, Statistic
from tokonomics.measure.meter.spans import PaidTime, WatchedSpan
from tokonomics.measure.priced_run import GivenMachine
from tokonomics.measure.stated_setup import steps_of
from tokonomics.measure.validate import kind_of, value_of
from tokonomics.physics.calibration import Correction, Kernels, Profile, read_profile, using
from tokonomics.physics.intervals import prior_deviation
from tokonomics.physics.memory import step_weight_bytes
from tokonomics.physics.overhead import host

DATA = Path(__file__).parents[2] / "benchmarks" / "data"
RUN = DATA / "h200_transformers.json"
USERS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
FEW_USERS = (1, 2, 4, 8)
EIGHT_LOADS = (1, 2, 3, 4, 6, 8, 12, 16)
SERVED = (Metric.tpot_s, Metric.ttft_s, Metric.output_tok_s)
PROMPTS = (16, 32, 64, 128, 256, 480, 1024, 2048)
NUMBERS = ("decode", "prefill", "launch", "request", "experts", "step_s", "sequence_s")


def row(users: int, metric: Metric, value: float = 1.0, **changes: Any) -> Measurement:
    return measurement(
        **{
            "gpu": "H200", "weights": "bf16", "output_tokens": 100, "batch": users, "metric": metric, "value": value,
            "run": RunFacts(requests=max(8, 3 * users)),
        }
        | changes
    )  # fmt: skip


def server(users: tuple[int, ...] = USERS, noise: float = 0.0, **numbers: float) -> list[Measurement]:
    """What a server would measure that differs from our predictions by known numbers."""
    return measured([row(user, metric) for user in users for metric in SERVED], noise, **numbers)


def alone(noise: float = 0.0, **numbers: float) -> list[Measurement]:
    """The same of prompts of one user, with medians and tails: short ones tell of the way in and out."""
    figures = [(metric, Statistic.mean) for metric in SERVED]
    figures += [(metric, statistic) for metric in SERVED[:2] for statistic in (Statistic.p50, Statistic.p99)]
    rows = [row(1, metric, statistic=statistic, input_tokens=n) for n in PROMPTS for metric, statistic in figures]
    return measured(rows, noise, **numbers)


def measured(rows: list[Measurement], noise: float, **numbers: float) -> list[Measurement]:
    chance = np.random.default_rng(1)
    true = Correction(gpu="H200", engine="vllm", loads=1, rows=1, **numbers)
    steps = steps_of(rows[0]).corrected(true)
    return [
        each.model_copy(update={"value": value_of(each, steps) * math.exp(noise * chance.standard_normal())})
        for each in rows
    ]


def numbers(found: Correction) -> set[str]:
    """What it corrects."""
    plain = Correction(gpu="H200", engine="vllm", loads=1, rows=1)
    return {name for name in NUMBERS if getattr(found, name) != getattr(plain, name)}


@cache
def made_of_a_third_slower() -> Calibrated:
    return made(server(EIGHT_LOADS, decode=1.3, noise=0.01))


@cache
def made_of_one_user() -> Calibrated:
    return made(alone(decode=1.3, noise=0.05))


def made(rows: list[Measurement], **options: Any) -> Calibrated:
    return calibrate(Evidence(rows=rows), made=date(2026, 11, 15), command="test", name="mine", **options)


def evidence_of(*runs: Path | dict[str, Any], folder: Path = Path(), engine: str | None = "vllm") -> Evidence:
    """Of an H200; a document is kept in the folder first."""
    paths = [run if isinstance(run, Path) else folder / "run.json" for run in runs]
    for path, run in zip(paths, runs, strict=True):
        if not isinstance(run, Path):
            path.write_text(json.dumps(run))
    return read_evidence(paths, GivenMachine(gpu="H200", engine=engine), "test")


explore = pytest.mark.explore


@pytest.mark.parametrize(
    ("calibrated", "true"),
    [
        (made_of_a_third_slower, {"decode": (1.3, 0.03)}),
        # Requests outside any step take twice as long: only first tokens wait for it.
        (lambda: made(alone(request=2.0, noise=0.01)), {"request": (2.0, 0.1)}),
        pytest.param(
            lambda: made(alone(decode=1.2, request=2.0, noise=0.01)),
            {"decode": (1.2, 0.03), "request": (2.0, 0.1)},
            marks=explore,
        ),
        pytest.param(
            lambda: made(server(step_s=0.03, sequence_s=0.3e-3, noise=0.01)),
            {"step_s": (0.03, 0.03), "sequence_s": (0.3e-3, 0.1)},
            marks=explore,
        ),
        pytest.param(lambda: made(server(prefill=1.6, noise=0.01)), {"prefill": (1.6, 0.1)}, marks=explore),
    ],
    ids=["slow GPU", "slow front end", "both", "slow host", "slow prompts"],
)
def test_what_a_server_does_differently_is_found_and_nothing_else_is_blamed(
    calibrated: Callable[[], Calibrated], true: dict[str, tuple[float, float]]
) -> None:
    group = calibrated().groups[0]
    assert group.correction
    assert numbers(group.correction) == true.keys()
    for name, (value, within) in true.items():
        assert getattr(group.correction, name) == pytest.approx(value, rel=within)
    after = {figure.figure: figure.after for figure in group.held_out}
    assert max(after["tpot"], after["throughput"]) < 0.04, "only the noise is left"


def test_a_server_as_predicted_is_left_as_predicted() -> None:
    """Nothing is learned, so nothing is saved that would narrow the ranges shown."""
    result = made(server(EIGHT_LOADS, noise=0.01))
    assert result.profile.corrections == ()
    assert result.groups[0].refused


def test_what_is_saved_is_what_was_judged() -> None:
    """The held-out errors are those of the numbers in the profile, to the last digit."""
    rows = alone(decode=1.3, noise=0.05)
    saved = made_of_one_user().profile.corrections[0]
    apart = held_out_loads((load_of(each) for each in rows), 0.5)
    for figure, metric, statistic in (("tpot", Metric.tpot_s, Statistic.mean), ("ttft p99", Metric.ttft_s, "p99")):
        judging = [row for row in rows if load_of(row) in apart and (row.metric, row.statistic) == (metric, statistic)]
        (shown,) = [each for each in saved.held_out if each.figure == figure]
        assert shown.after == statistics.median(map(abs, errors(judging, saved)))


@pytest.mark.explore
def test_a_term_that_pays_on_the_taught_loads_alone_is_not_kept() -> None:
    """First tokens are slow in the loads that teach, and as predicted in those that judge; decoding is slow in all."""
    rows = alone(decode=1.3)
    apart = held_out_loads((load_of(each) for each in rows), 0.5)
    torn = [
        each.model_copy(update={"value": each.value * 1.6})
        if each.metric is Metric.ttft_s and load_of(each) not in apart
        else each
        for each in rows
    ]
    found = made(torn).groups[0]
    assert found.correction
    assert numbers(found.correction) == {"decode"}
    assert found.correction.decode == pytest.approx(1.3, rel=0.03)
    assert found.dropped
    assert not any(each.worse for each in found.held_out)


def test_every_figure_is_judged_and_a_load_has_one_word_in_the_interval() -> None:
    found = made_of_one_user().groups[0]
    latencies = {f"{metric}{statistic}" for metric in ("tpot", "ttft") for statistic in ("", " p50", " p99")}
    assert {each.figure for each in found.held_out} == {*latencies, "throughput"}
    assert {kind: spread.n for kind, spread in there(found.correction).spreads.items()} == dict.fromkeys(
        ("tpot", "ttft", "throughput"), found.judged
    )


def test_loads_that_judge_teach_nothing() -> None:
    rows = server(FEW_USERS, decode=1.3, noise=0.01)
    apart = held_out_loads((load_of(each) for each in rows), 0.5)
    spoiled = [each.model_copy(update={"value": each.value * 1.1}) if load_of(each) in apart else each for each in rows]
    one, other = made(rows).groups[0], made(spoiled).groups[0]
    assert one.correction
    assert other.correction
    assert [getattr(one.correction, name) for name in NUMBERS] == [getattr(other.correction, name) for name in NUMBERS]
    assert one.held_out != other.held_out


def test_every_second_load_judges_whatever_its_order_and_the_smallest_teaches() -> None:
    rows = server(users=(64, 1, 16, 4))
    apart = held_out_loads((load_of(each) for each in rows), 0.5)
    assert {each.batch for each in rows if load_of(each) in apart} == {4, 64}
    fourth = held_out_loads((load_of(each) for each in server()), 0.25)
    assert len(fourth) == 3  # of ten loads: the 2nd, 6th and 10th


def test_what_makes_held_out_loads_worse_is_left_out_and_said() -> None:
    rows = server(FEW_USERS)
    apart = held_out_loads((load_of(each) for each in rows), 0.5)

    # Loads that teach are slow, those that judge are as predicted: nothing can be learned from one for the other.
    def torn(each: Measurement) -> Measurement:
        slower = 0.5 if each.metric is Metric.output_tok_s else 2.0
        return each if load_of(each) in apart else each.model_copy(update={"value": each.value * slower})

    result = made([torn(each) for each in rows])
    assert result.profile.corrections == ()
    assert result.groups[0].dropped


def test_a_profile_keeps_what_it_saw() -> None:
    found = made_of_a_third_slower().profile.corrections[0]
    assert made_of_a_third_slower().groups[0].doubts == found.notes == ()
    assert (found.weights, found.kv, found.tp, found.pp, found.ep, found.dp) == ("bf16", "bf16", 1, 1, 1, 1)
    assert (found.seen["batch"].low, found.seen["batch"].high) == (1, 16)
    assert found.seen["context"].low == 1000
    assert found.seen["context"].high == 1100


@pytest.mark.explore
def test_a_profile_keeps_an_interval_no_narrower_than_its_data() -> None:
    found = made(server(step_s=0.02, noise=0.05)).profile.corrections[0]
    deployment = steps_of(row(1, Metric.tpot_s)).deployment
    prior = prior_deviation("tpot", deployment)
    # Five held-out points of 5 % beside eight of the size known before.
    assert 0.6 * prior < found.spreads["tpot"].deviation < prior


def test_a_correction_is_used_where_it_was_learned() -> None:
    rows = server(EIGHT_LOADS, decode=1.3, noise=0.01)
    result = made_of_a_third_slower()
    with using(result.profile):
        slow = float(steps_of(rows[0]).decode(32, 1000))
        other = float(steps_of(rows[0].model_copy(update={"model": "llama-3.2-1b"})).decode(32, 1000))
    assert slow == pytest.approx(1.3 * float(steps_of(rows[0]).decode(32, 1000)), rel=0.05)
    assert other == float(steps_of(rows[0].model_copy(update={"model": "llama-3.2-1b"})).decode(32, 1000))


@pytest.mark.explore
def test_other_precisions_share_the_host_until_they_are_measured() -> None:
    rows = server(FEW_USERS, step_s=0.03)
    narrow = rows[0].model_copy(update={"weights": "fp8"})
    with using(made(rows).profile):
        assert float(steps_of(narrow).decode(1, 1000)) > 0.03
    both = rows + [each.model_copy(update={"weights": "fp8", "value": each.value}) for each in rows]
    assert {correction.weights for correction in made(both).profile.corrections} == {"bf16", "fp8"}


def test_what_cannot_be_calibrated_on_says_why() -> None:
    with pytest.raises(BadInput):
        made(server(users=(1, 8, 64)))
    with pytest.raises(BadInput, match="no-such-model"):
        made([each.model_copy(update={"model": "no-such-model"}) for each in server()])
    mixed = server() + [each.model_copy(update={"gpu": "H100"}) for each in server()]
    with pytest.raises(BadInput):
        made(mixed)


def bare_steps() -> list[Measurement]:
    return [
        row(batch, Metric.step_s, engine=None, mode=Mode.decode_step, input_tokens=context, output_tokens=1)
        for batch in (1, 8, 64, 256)
        for context in (512, 2048)
    ]


def test_bare_steps_are_calibrated_without_a_host() -> None:
    steps = bare_steps()
    base = steps_of(steps[0])
    rows = [step.model_copy(update={"value": 1.2 * value_of(step, base)}) for step in steps]
    found = made(rows).groups[0].correction
    assert found
    assert (found.engine, found.step_s) == ("bare", None)
    assert found.decode == pytest.approx(1.2, rel=0.02)


def test_steps_faster_than_the_datasheet_stop_the_factor_there_and_are_doubted() -> None:
    """Weights and KV cache read at 4.8 TB/s take the step its floor; these are said to take 30 % less."""
    steps = bare_steps()
    base = steps_of(steps[0])
    model, gpu = base.deployment.model, base.deployment.gpu

    def floor_s(step: Measurement) -> float:
        read = step_weight_bytes(base.deployment, 1)
        read += (step.batch or 1) * step.input_tokens * model.kv_bytes_per_token(Precision.bf16)
        return read / gpu.bandwidth_bytes_per_s

    rows = [step.model_copy(update={"value": 0.7 * floor_s(step)}) for step in steps]
    found = made(rows).groups[0]
    assert found.correction
    corrected = base.corrected(found.correction)
    above = [float(corrected.decode(step.batch or 1, step.input_tokens)) / floor_s(step) for step in steps]
    assert min(above) == pytest.approx(1, abs=0.1)
    assert min(above) >= 1
    # The factor passes it on no load by itself, whatever holds it up where it is applied.
    taught = [step for step in steps if load_of(step) not in held_out_loads(map(load_of, steps), 0.5)]
    assert all(found.correction.decode * value_of(step, base) >= floor_s(step) for step in taught)
    (doubt,) = [said for said in found.doubts if "decode factor" in said]
    assert "4.8 TB/s" in doubt
    assert doubt in found.correction.notes


def test_a_load_that_was_not_warm_is_named() -> None:
    """Three loads are too few to fit anything: the refusal names the one that is slower than a larger load."""
    cold = [
        row.model_copy(update={"value": row.value * 3}) if (row.batch, row.metric) == (4, Metric.tpot_s) else row
        for row in server((1, 4, 8), decode=1.3)
    ]
    with pytest.raises(BadInput, match="4 users"):
        made(cold)


@pytest.mark.explore
def test_loads_that_a_real_engine_met_cold_are_named() -> None:
    evidence = evidence_of(RUN, DATA / "h200_transformers_cold.json")
    result = calibrate(evidence, made=date(2026, 11, 15), command="test", name="mine").groups[0]
    assert [said.split(":")[0] for said in result.doubts] == ["4 users", "16 users"]


@pytest.mark.explore
def test_on_a_real_engine_half_of_the_loads_predict_the_other_half() -> None:
    evidence = evidence_of(RUN)
    result = calibrate(evidence, made=date(2026, 11, 15), command="test", name="mine").groups[0]
    by_name = {each.figure: each for each in result.held_out}
    assert by_name["tpot"].after < 0.1
    assert by_name["throughput"].after < 0.1
    assert by_name["tpot"].before > 1
    assert result.correction
    # What a host of tens of milliseconds adds cannot be told from slow kernels of as many: their sum can.
    (alone,) = [
        each for each in evidence.rows if kind_of(each) == "tpot" and each.batch == 1 and each.statistic == "mean"
    ]
    step_s = float(steps_of(alone).corrected(result.correction).decode(1, alone.input_tokens + alone.output_tokens / 2))
    assert step_s == pytest.approx(alone.value, rel=0.1)
    assert 0.01 < (result.correction.step_s or 0) < alone.value


def test_a_window_that_ends_in_the_middle_of_a_round_is_counted_by_littles_law() -> None:
    evidence = evidence_of(RUN)
    points = {load["concurrency"]: load for load in json.loads(RUN.read_text())["points"]}
    found = next(each for each in evidence.rows if each.batch == 32 and each.metric is Metric.output_tok_s)
    assert points[32]["output_tokens_per_s"] < 0.7 * found.value
    assert found.value == pytest.approx(32 * 64 / points[32]["e2e_s"]["mean"], rel=1e-3)
    assert len(evidence.notes) == 1


def test_a_run_without_a_warm_up_is_counted_as_it_was(tmp_path: Path) -> None:
    """It is simulated with its beginning and its end, in which fewer users wait: that is no round cut short."""
    whole = json.loads(RUN.read_text())
    for point in whole["points"]:
        point["outside"] = {"requests": point["concurrency"] - 1}
    evidence = evidence_of(whole, folder=tmp_path)
    counted = [each.value for each in evidence.rows if each.metric is Metric.output_tok_s]
    assert counted == [point["output_tokens_per_s"] for point in whole["points"]]
    assert not evidence.notes


def test_the_99th_percentile_of_a_few_requests_teaches_nothing() -> None:
    rows = evidence_of(RUN).rows
    points = json.loads(RUN.read_text())["points"]
    enough = {point["concurrency"] for point in points if point["completed"] >= 40}
    assert {each.batch for each in rows if each.statistic is Statistic.p99} == enough
    assert {each.batch for each in rows if each.statistic is Statistic.p50} == {each.batch for each in rows}


def test_figures_that_contradict_each_other_are_left_as_they_are(tmp_path: Path) -> None:
    """A hundred users, each answered within a microsecond, make a hundred million requests a second, not ten."""
    rates = {"requests_per_s": 10, "input_tokens_per_s": 100, "output_tokens_per_s": 100}
    lengths = {"mean_input_tokens": 10, "mean_output_tokens": 10}
    point = {**rates, **lengths, "concurrency": 100, "e2e_s": {"mean": 1e-6}}
    run = {"schema_version": 1, "tool": "t", "model": "llama-3.1-8b", "points": [point]}
    evidence = evidence_of(run, folder=tmp_path)
    assert [row.value for row in evidence.rows] == [100]
    assert not evidence.notes


def test_an_engine_we_do_not_know_needs_one_that_stands_for_it(tmp_path: Path) -> None:
    whole = json.loads(RUN.read_text())
    whole["stated"]["engine"] = "transformers"
    with pytest.raises(BadInput):
        evidence_of(whole, folder=tmp_path, engine=None)
    assert evidence_of(whole, folder=tmp_path).rows
    whole["stated"]["engine"] = "vLLM+LMCache"  # what validate takes for vLLM
    assert evidence_of(whole, folder=tmp_path, engine=None).rows
    with pytest.raises(BadInput):
        read_evidence([RUN], GivenMachine(), "test")


def test_calibrate_saves_a_profile_that_predict_uses_and_names(tmp_path: Path) -> None:
    out = tmp_path / "mine.json"
    run = DATA / "h200_transformers_third.json"
    asked = ["calibrate", str(run), "--gpu", "H200", "--engine", "vllm", "--out", str(out)]
    said = CliRunner().invoke(app, asked, env={"COLUMNS": "140"})
    assert said.exit_code == 0, said.output
    assert read_profile(out).corrections[0].model == "llama-3.1-8b"

    def predict(*more: str) -> Any:
        return CliRunner().invoke(app, ["predict", "llama-3.1-8b", "--context", "540", "--json", *more])

    plain = json.loads(predict("--gpu", "H200").stdout)
    used = predict("--gpu", "H200", "--profile", str(out))
    assert json.loads(used.stdout)["decode_step_s"]["mid"] > 4 * plain["decode_step_s"]["mid"]
    assert "extrapolates" not in used.stderr
    assert "extrapolates" in predict("--gpu", "H200", "--batch", "512", "--profile", str(out)).stderr
    elsewhere = predict("--gpu", "H100", "--profile", str(out))
    assert json.loads(elsewhere.stdout) == json.loads(predict("--gpu", "H100").stdout) | {"profiled": "not covered"}
    assert json.loads(used.stdout)["profiled"] == "measured"
    assert json.loads(predict("--gpu", "H200", "--tp", "2", "--profile", str(out)).stdout)["profiled"] == "carried over"
    # The profile was of that command alone.
    assert json.loads(predict("--gpu", "H200").stdout) == plain


@pytest.mark.parametrize("more", [["--hold-out", "0.9"], ["--out", "profile.txt"], ["--gpu", "nothing"]])
def test_what_is_asked_wrongly_is_refused(more: list[str]) -> None:
    said = CliRunner().invoke(app, ["calibrate", str(RUN), "--gpu", "H200", *more])
    assert isinstance(said.exception, TokonomicsError)


def test_a_slow_host_is_counted_once_whether_probed_or_calibrated() -> None:
    """Its launches take half as long again: calibrated, probed, or both, a prompt's launches are predicted so."""
    rows = alone(launch=1.5)
    plain_s = float(steps_of(rows[0]).launch_s(480))
    calibrated = made(rows).profile
    (found,) = calibrated.corrections
    assert found.launch == pytest.approx(1.5, rel=0.05)
    kernels = Kernels(gpu="H200", memory=0.9, launch_s=1.5 * host().launch_s)
    probed = Profile(name="probed", made=date(2026, 11, 15), command="test", kernels=kernels)

    def launches_s(*profiles: Profile, taught: list[Measurement]) -> tuple[float, Calibrated]:
        given = Evidence(rows=taught, profiles=list(profiles))
        result = calibrate(given, made=date(2026, 11, 15), command="test", name="both")
        with using(result.profile):
            return float(steps_of(rows[0]).launch_s(480)), result

    merged_s, merged = launches_s(calibrated, probed, taught=[])
    assert merged_s == pytest.approx(1.5 * plain_s)
    assert not merged.profile.corrections
    assert [note for note in merged.notes if "1 correction left out" in note]
    both_s, both = launches_s(probed, taught=rows)
    assert both_s == pytest.approx(1.5 * plain_s, rel=0.05)
    again_s, again = launches_s(both.profile, taught=[])  # what was fitted beside these kernels is kept
    assert (again_s, again.profile.corrections, again.notes) == (both_s, both.profile.corrections, ())


# --- a meter's ledger as loads: what is learned of servers that simply run --------------------------------------------


def span(start: float, running: float, output: float, **other: object) -> PaidTime:
    """Five busy minutes of 50 requests, 100 of whose 400 prompt tokens are cached."""
    given = {
        "seconds": 300.0, "server_s": 300.0, "usd": 300 * 2 / 3600, "busy_s": 300.0, "input_total": 20_000.0,
        "input_cached": 5_000.0, "answered": 50.0, "running_s": running * 300, "running_seen_s": 300.0, "ttft_s": 10.0,
        "ttft_count": 50.0, "output": output,
    }  # fmt: skip
    return hour(start, **(given | other))


def test_busy_stretches_of_like_batch_are_one_load(tmp_path: Path) -> None:
    spans = [
        span(0, 4, 9_000),
        span(600, 4, 11_000),
        span(1200, 16, 30_000),
        span(1800, 16, 90_000, busy_s=150.0),  # half of it idle: it would pass for a slow server
        span(2400, 16, 90_000, watched=WatchedSpan.gap),
        span(3000, 64, 90_000, answered=3.0),  # too few
        span(3600, 64, 90_000, server_s=150.0, busy_s=150.0),  # another model had half of the server
    ]
    (run,) = runs_of(ledger_of(tmp_path / "meter.db", spans))
    assert (run.model, run.stated.engine) == ("llama-3.1-8b", "vllm")
    assert [point.concurrency for point in run.points] == [4, 16]
    first = run.points[0]
    assert first.output_tokens_per_s == pytest.approx(20_000 / 600)
    assert first.mean_input_tokens == pytest.approx(30_000 / 100)  # those computed
    assert first.mean_output_tokens == pytest.approx(200)
    assert there(first.ttft_s).mean == pytest.approx(0.2)


def test_calibrate_reads_a_ledger_like_any_other_result(tmp_path: Path) -> None:
    path = ledger_of(
        tmp_path / "meter.db", [span(600.0 * place, batch, 300.0 * batch) for place, batch in enumerate((2, 8, 32))]
    )
    assert is_ledger(path)
    found = read_evidence([path], GivenMachine(gpu="H100"), "")
    assert {(row.batch, row.metric) for row in found.rows} >= {(2, Metric.output_tok_s), (32, Metric.ttft_s)}
    rates = {row.batch: row.value for row in found.rows if row.metric is Metric.output_tok_s}
    assert rates[8] == pytest.approx(8.0)


def test_a_ledger_without_a_busy_load_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="busy throughout"):
        runs_of(ledger_of(tmp_path / "meter.db", [span(0, 4, 9_000, busy_s=10.0)]))


def test_it_finds_how_many_experts_the_traffic_visits() -> None:
    users = (1, 4, 8, 16, 24, 32, 48, 64)
    rows = [row(user, metric, model="qwen3-30b-a3b") for user in users for metric in SERVED]
    found = made(measured(rows, 0.01, experts=1 / 16)).groups[0].correction
    assert found is not None
    assert numbers(found) == {"experts"}
    assert found.experts == pytest.approx(1 / 16, rel=0.3)  # 8 of 128, as one token


def test_spread_traffic_visits_all_experts() -> None:
    users = (1, 4, 8, 16, 24, 32, 48, 64)
    rows = [row(user, metric, model="qwen3-30b-a3b") for user in users for metric in SERVED]
    found = made(measured(rows, 0.01, decode=1.3)).groups[0].correction
    assert found is not None
    assert found.experts > 0.8
