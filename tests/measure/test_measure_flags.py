"""How the grid of flags chooses its rates and scores its loads, on loads made by hand."""

import json
import math
from typing import Any

import pytest
from benchmarks import measure_flags
from benchmarks.measure_flags import bracket, next_rate, percentile, score, urgency

SLO = {"ttft": {"percentile": 90, "s": 1.0}, "tpot": {"percentile": 50, "s": 0.04}}


def answered(at: float, first: float, last: float, out: int) -> dict[str, Any]:
    return {"at": at, "first": first, "last": last, "out": out, "asked": out}


def test_q_is_the_worst_percentile_over_its_limit() -> None:
    rows = [answered(0.0, 0.1 * place, 0.1 * place + 0.2, 11) for place in range(1, 11)]
    q, found = score(rows, SLO)
    assert found["ttft"] == pytest.approx(0.9)  # the ninth of ten
    assert found["tpot"] == pytest.approx(0.02)
    assert q == pytest.approx(0.9)
    assert percentile([3, 1, 2], 50) == 2
    assert percentile([3, 1, 2], 100) == 3


def test_what_was_not_answered_or_was_cut_short_counts_as_infinite() -> None:
    rows = [answered(0.0, 0.1, 0.3, 11) for _ in range(8)] + [{"at": 0.5, "asked": 11}, {}]
    assert score(rows, SLO)[0] == math.inf
    assert score([*rows[:8], rows[0], {}], SLO)[0] == pytest.approx(0.5)  # one in ten may be late; TPOT 0.02 ÷ 0.04
    short = [answered(0.0, 0.1, 0.3, 11) | {"asked": 12} for _ in range(10)]
    assert score(short, SLO)[0] == math.inf


def test_one_token_has_no_tpot() -> None:
    rows = [answered(0.0, 0.5, 0.5, 1), answered(0.0, 0.5, 0.53, 2)]
    assert score(rows, SLO)[1] == {"ttft": 0.5, "tpot": pytest.approx(0.03)}


def test_rates_step_until_a_bracket_and_then_halve_it() -> None:
    assert next_rate(10.0, []) == 10.0
    assert next_rate(10.0, [(10.0, 0.9)]) == pytest.approx(10.5)
    assert next_rate(10.0, [(10.0, 1.1)]) == pytest.approx(10 / 1.05)
    assert next_rate(10.0, [(10.0, 0.9), (10.5, 1.2)]) == pytest.approx(math.sqrt(105))
    # q doubles for each 5 %: a secant from 0.5 goes to 1 in one more step; from 0.1 the step is the longest, 25 %
    assert next_rate(10.0, [(10.0, 0.25), (10.5, 0.5)]) == pytest.approx(10.5 * 1.05)
    assert next_rate(10.0, [(10.0, 0.05), (10.5, 0.055)]) == pytest.approx(10.5 * 1.25)
    assert next_rate(10.0, [(10.0, math.inf), (10 / 1.05, math.inf)]) == pytest.approx(10 / 1.05 / 1.25)


def test_a_bracket_is_the_highest_met_rate_and_what_was_missed_above() -> None:
    assert bracket([(10.0, 1.2), (9.0, 0.8), (8.0, 1.1)]) == (9.0, 10.0)
    assert bracket([(10.0, 1.2)]) == (None, 10.0)
    assert bracket([(10.0, 0.2)]) == (10.0, None)


def test_every_cell_goes_first_then_those_that_may_be_best_then_the_others() -> None:
    once, both_met = [(10.0, 0.9)], [(10.0, 0.9), (10.7, 0.95)]
    wide, narrow, fine = ([(10.0, 0.9), (10.0 * gap, 1.1)] for gap in (1.07, 1.03, 1.005))
    far = [(5.0, 0.9)]
    cells = [narrow, wide, both_met, once, [], fine, far]
    keys = sorted(key for place, loads in enumerate(cells) if (key := urgency(place, loads, 11.0)) is not None)
    assert [key[3] for key in keys] == [4, 3, 2, 1, 0, 6]
    assert urgency(0, [(10.0 / 1.25**step, math.inf) for step in range(measure_flags.MOST_LOADS)], 11.0) is None


def test_a_trace_is_encoded_with_equal_beginnings_for_equal_seeds() -> None:
    rows = measure_flags.encode({"rows": [[0.5, [[1, 20], [2, 5]], 7], [1.5, [[1, 20], [3, 5]], 8]]}, 32000)
    assert [row[:3] for row in rows] == [(0.5, 25, 7), (1.5, 25, 8)]
    prompts = [json.loads(row[3])["prompt"] for row in rows]
    assert prompts[0][:20] == prompts[1][:20]
    assert prompts[0][20:] != prompts[1][20:]
