"""Traffic as the planner takes it: a log, or made-up requests, within what a model can take."""

import numpy as np
import pytest

from tokonomics.questions.load import load_of
from tokonomics.questions.requests.buy import PlanRequest
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.traffic.generate import ENOUGH_REQUESTS, Sessions, SystemPrompts
from tokonomics.traffic.trace import make_trace


def test_requests_longer_than_the_context_are_left_out_and_counted() -> None:
    load = load_of_log(make_trace([0.0, 1.0, 2.0, 3.0], [100, 5000, 100, 9000], [10, 10, 10, 10]))
    kept = load.within(4096)
    assert (len(kept.trace), kept.too_long, kept.workload.rate) == (2, 2, load.workload.rate / 2)
    assert kept.within(4096) is kept


def test_a_workload_states_how_lengths_vary() -> None:
    load = load_of_shape(5, "1500", "const:300")
    prompts = np.sort(load.trace.input_tokens)
    half, tail = (f"{prompts[round(len(prompts) * share) - 1]:,}" for share in (0.5, 0.99))
    assert load.workload.lengths_text == f"1,500 in (p50 {half}, p99 {tail}) / 300 out (constant)"


def test_the_tail_of_made_up_requests_is_cut_to_the_context_and_counted() -> None:
    load = load_of_shape(5, "2000", "300")
    before = load.trace.input_tokens.astype(np.int64) + load.trace.output_tokens
    kept = load.within(8192)
    after = kept.trace.input_tokens.astype(np.int64) + kept.trace.output_tokens
    np.testing.assert_array_equal(after, np.minimum(before, 8192))
    np.testing.assert_array_equal(kept.trace.output_tokens, load.trace.output_tokens)
    assert kept.workload.cut_share == (before > 8192).mean()
    assert f"{100 * (before > 8192).mean():.2g} % of them cut to the model's context" in kept.workload.lengths_text
    assert kept.too_long == 0
    assert kept.workload.rate == load.workload.rate
    assert kept.workload.input_tokens == kept.trace.input_tokens.mean() < load.workload.input_tokens


def test_answers_alone_longer_than_the_context_leave_a_token_to_the_prompt() -> None:
    short = make_trace([0.0, 1.0], [50, 5], [95, 5]).cut_to(80)
    assert (short.input_tokens.tolist(), short.output_tokens.tolist()) == ([1, 5], [79, 5])


def test_requests_whose_mean_exceeds_the_context_stay_to_be_refused() -> None:
    for lengths in (("const:9000", "const:100"), ("9000", "100")):
        load = load_of_shape(5, *lengths)
        assert load.within(8192).longest == load.longest > 8192


def test_cut_prompts_keep_what_they_share() -> None:
    load = load_of_shape(5, "2000", "300", system=SystemPrompts(4, 1024))
    kept = load.within(4096)
    assert kept.workload.cut_share > 0
    assert kept.trace.prefix is not None
    assert kept.longest <= 4096
    blocks = np.minimum(16, -(-kept.trace.input_tokens // 64))
    np.testing.assert_array_equal(np.diff(kept.trace.prefix.starts), blocks)


def test_conversations_come_at_the_rate_asked_for_and_end_at_the_context() -> None:
    load = load_of_shape(4, "200", "100", sessions=Sessions(turns=6, think_s=10))
    assert load.trace.rate == pytest.approx(4, rel=0.01)
    kept = load.within(2048)
    assert kept.too_long > 0
    assert kept.workload.cut_share == 0
    assert kept.longest <= 2048
    # What a turn repeats of those before it is not computed again.
    assert kept.computed_mean < 0.5 * kept.workload.input_tokens


def test_a_plan_takes_conversations_and_system_prompts() -> None:
    asked = {"model": "m", "rate": 4, "input": 200, "output": 100}
    plain = load_of(PlanRequest.checked(asked))
    headed = load_of(PlanRequest.checked({**asked, "system_prompts": "3,tokens=1k"}))
    assert headed.workload.input_tokens == pytest.approx(plain.workload.input_tokens + 1000)
    assert headed.computed_mean < 300, "an endless cache holds 960 tokens, 15 blocks of 64, of every head"
    talks = load_of(PlanRequest.checked({**asked, "sessions": "5,think=20"}))
    assert talks.workload.input_tokens > 2 * plain.workload.input_tokens
    volume = load_of(PlanRequest.checked({"model": "m", "tokens_per_month": "2B", "input": 200, "output": 100,
                                     "sessions": "5,think=20"}))  # fmt: skip
    assert volume.workload.tokens_per_month == pytest.approx(2e9, rel=0.02)


def test_very_long_answers_are_simulated_in_as_few_requests_as_a_percentile_needs() -> None:
    long, usual = load_of_shape(5, "1", "const:100000"), load_of_shape(5, "1000", "const:300")
    few, served_by = long.on(140)
    assert (len(few), served_by) == (ENOUGH_REQUESTS, 16)
    assert few.rate == pytest.approx(5 * 16 / 140, rel=0.05)
    alone, _ = long.on(10)
    assert len(alone) == ENOUGH_REQUESTS
    assert len(load_of_shape(500, "1000", "const:300").on(10)[0]) == 500 * 300
    assert len(usual.on(2)[0]) == ENOUGH_REQUESTS


def test_made_up_requests_at_another_rate_are_the_same_ones_unless_more_are_needed() -> None:
    slow = load_of_shape(0.01, "1000", "300")
    assert slow.sorted_lengths is slow.at(5.0).sorted_lengths  # looked at once
    drawn = load_of_shape(5.0, "1000", "300")
    assert slow.is_drawn_alike_at(5.0)
    assert slow.at(5.0).workload == drawn.workload
    np.testing.assert_array_equal(slow.at(5.0).trace.output_tokens, drawn.trace.output_tokens)
    np.testing.assert_allclose(slow.at(5.0).trace.arrival_s, drawn.trace.arrival_s)
    many = 2 * ENOUGH_REQUESTS / slow.lasts_s
    assert not slow.is_drawn_alike_at(many)
    assert len(load_of_shape(many, "1000", "300").trace) > len(slow.trace)
