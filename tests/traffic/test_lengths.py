"""Lengths have the mean, the spread and the pairing they are asked for."""

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tokonomics.errors import TokonomicsError
from tokonomics.traffic.lengths import draw_lengths, parse_lengths

MANY = 400_000


def drawn(text: str, number: int = MANY) -> NDArray[np.int32]:
    made, _ = draw_lengths(parse_lengths(text), parse_lengths("1"), number, np.random.default_rng(0))
    return made


def test_a_fixed_length_is_fixed() -> None:
    assert set(drawn("512", 100)) == {512}


@pytest.mark.parametrize(
    ("text", "mean", "percentile", "value"),
    [
        ("lognormal:mean=800,p99=6000", 800, 99, 6000),
        ("lognormal:mean=800,p90=1700", 800, 90, 1700),
        ("lognormal:p50=500,p95=4000", None, 95, 4000),
        ("lognormal:p50=500,p95=4000", None, 50, 500),
    ],
)
def test_a_lognormal_meets_its_mean_and_percentile(
    text: str, mean: float | None, percentile: float, value: float
) -> None:
    tokens = drawn(text)
    if mean is not None:
        assert tokens.mean() == pytest.approx(mean, rel=5 * tokens.std() / mean / math.sqrt(MANY))
    assert np.percentile(tokens, percentile) == pytest.approx(value, rel=0.02)


def test_a_lognormal_meets_its_cv() -> None:
    tokens = drawn("lognormal:mean=8000,cv=0.7")
    assert tokens.std() / tokens.mean() == pytest.approx(0.7, rel=0.02)


def test_a_lognormal_stays_within_its_bounds() -> None:
    tokens = drawn("lognormal:mean=20,cv=3,max=100")
    assert tokens.min() >= 1
    assert tokens.max() == 100


def test_a_uniform_takes_both_ends() -> None:
    tokens = drawn("uniform:3-5")
    assert set(tokens) == {3, 4, 5}
    assert tokens.mean() == pytest.approx(4, rel=0.01)


def test_prompts_and_answers_of_one_sample_stay_pairs() -> None:
    from tokonomics.traffic.samples import sample_lengths

    inputs, outputs = sample_lengths("sharegpt")
    lengths = parse_lengths("sample:sharegpt")
    made = draw_lengths(lengths, parse_lengths("sample:sharegpt"), 50_000, np.random.default_rng(0))
    assert set(zip(*(each.tolist() for each in made), strict=True)) <= set(
        zip(inputs.tolist(), outputs.tolist(), strict=True)
    )
    assert made[0].mean() == pytest.approx(inputs.mean(), rel=0.03)


def test_lengths_come_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log, of may=june.csv"
    log.write_text("arrival_s,input_tokens,output_tokens\n0,10,1\n1,20,2\n2,30,3\n", encoding="utf-8")
    lengths = parse_lengths(f"trace:{log}")
    inputs, outputs = draw_lengths(lengths, lengths, 300, np.random.default_rng(0))
    assert set(inputs) == {10, 20, 30}
    np.testing.assert_array_equal(inputs, 10 * outputs)


def test_an_answer_may_be_empty_but_no_prompt() -> None:
    assert parse_lengths("0", "output", least=0)
    with pytest.raises(TokonomicsError, match="from 1"):
        parse_lengths("0", "input")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lognormal:mean=800", "one of cv="),
        ("lognormal:mean=800,p50=500,cv=1", "one of cv="),
        ("lognormal:mean=10,p99=1000", "no lognormal has a p99"),
        ("lognormal:mean=800,p99=100", "at least mean="),
        ("lognorm:mean=800,cv=1", "did you mean lognormal"),
        ("uniform:900-100", "from at least 1 up"),
        ("uniform:100", "least and most"),
        ("999999999999", "100,000,000"),
        ("-5", "none of"),
        ("sample:", "names nothing"),
        ("sample:sharegtp", "sharegpt"),
        ("trace:no-such-file.csv", "no-such-file.csv"),
    ],
)
def test_a_wrong_text_is_explained(text: str, says: str) -> None:
    with pytest.raises(TokonomicsError, match=says):
        parse_lengths(text)
