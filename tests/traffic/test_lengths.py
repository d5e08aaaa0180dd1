"""Lengths have the mean, the spread and the pairing they are asked for."""

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.there import refused

from tokonomics.catalog.load_models import find_model
from tokonomics.errors import TokonomicsError, UnknownName
from tokonomics.traffic.formats import FOLDER, SAMPLES, TRACES, sample_lengths
from tokonomics.traffic.lengths import draw_lengths, normal_quantiles, parse_lengths
from tokonomics.traffic.readers import open_trace
from tokonomics.traffic.workload import USUAL, Thinking, parse_thinking

MANY = 400_000


def drawn(text: str, number: int = MANY, field: str = "input") -> NDArray[np.int32]:
    made, _ = draw_lengths(parse_lengths(text, field), parse_lengths("1"), number, np.random.default_rng(0))
    return made


@pytest.mark.parametrize("mean", [1, 3, 20, 300, 1500, 100_000])
@pytest.mark.parametrize("field", ["input", "output"])
@pytest.mark.parametrize("number", [32, 20_000])
def test_a_number_is_the_mean_of_what_is_drawn(mean: int, field: str, number: int) -> None:
    tokens = drawn(str(mean), number, field)
    # Rounding to whole tokens is all that is left to chance.
    assert tokens.mean() == pytest.approx(mean, abs=max(0.01 * mean, 3 * 0.3 / math.sqrt(number)))
    assert tokens.min() >= 1


@pytest.mark.parametrize(("field", "side"), [("input", 0), ("output", 1)])
def test_lengths_around_a_mean_vary_as_in_measured_chat(field: str, side: int) -> None:
    """Mean, standard deviation and longest of azure-conv; the logarithms are as far apart on both sides of p50."""
    measured = sample_lengths("azure-conv")[side]
    tokens = drawn(str(round(measured.mean())), field=field)
    assert tokens.std() / tokens.mean() == pytest.approx(measured.std() / measured.mean(), rel=0.01)
    assert tokens.max() == pytest.approx(measured.max(), rel=0.02)
    below, middle, above = np.log(np.percentile(tokens, (16, 50, 84)))
    assert above - middle == pytest.approx(middle - below, rel=0.02)


def test_percentiles_of_a_few_thousand_are_no_matter_of_chance() -> None:
    """Independent draws of 2,000 miss a p99 by a tenth; one from each of 2,000 parts do not."""
    tails = [
        np.percentile(draw_lengths(parse_lengths("1000"), parse_lengths("1"), 2000, rng)[0], 99)
        for rng in map(np.random.default_rng, range(8))
    ]
    assert max(tails) / min(tails) < 1.03


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("1.5k", "1500"),
        ("const:2k", "const:2000"),
        ("uniform:1k-2k", "uniform:1000-2000"),
        ("lognormal:mean=1.2k,p99=6k,max=0.01M", "lognormal:mean=1200,p99=6000,max=10000"),
    ],
)
def test_tokens_may_be_written_with_k_and_m(short: str, long: str) -> None:
    np.testing.assert_array_equal(drawn(short, 100), drawn(long, 100))


@pytest.mark.parametrize(
    ("text", "mean", "percentile", "value"),
    [
        ("lognormal:mean=800,p99=6000", 800, 99, 6000),
        ("lognormal:mean=800,p90=1700", 800, 90, 1700),
        ("lognormal:p50=500,p95=4000", None, 95, 4000),
        ("lognormal:p50=500,p95=4000", None, 50, 500),
    ],
)
def test_a_lognormal_meets_mean_and_percentile(text: str, mean: float | None, percentile: float, value: float) -> None:
    tokens = drawn(text)
    if mean is not None:
        assert tokens.mean() == pytest.approx(mean, rel=5 * tokens.std() / mean / math.sqrt(MANY))
    assert np.percentile(tokens, percentile) == pytest.approx(value, rel=0.02)


def test_a_lognormal_meets_its_cv_and_stays_within_its_bounds() -> None:
    tokens = drawn("lognormal:mean=8000,cv=0.7")
    assert tokens.std() / tokens.mean() == pytest.approx(0.7, rel=0.02)
    tokens = drawn("lognormal:mean=20,cv=3,max=100")
    assert tokens.min() >= 1
    assert tokens.max() == 100


def test_a_uniform_takes_both_ends_and_a_constant_is_one() -> None:
    assert set(drawn("const:512", 100)) == {512}
    tokens = drawn("uniform:3-5")
    assert set(tokens) == {3, 4, 5}
    assert tokens.mean() == pytest.approx(4, rel=0.01)


def test_prompts_and_answers_of_one_sample_stay_pairs() -> None:
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


WRONG = (
    "lognormal:mean=800", "lognormal:mean=800,p50=500,cv=1", "lognormal:mean=10,p99=1000", "lognormal:mean=800,p99=100",
    "lognorm:mean=800,cv=1", "uniform:900-100", "uniform:100", "999999999999", "-5", "12.5", "const:12.5", "const:",
    "const:5,cv=1", "lognormal:mean=8x,cv=1", "sample:", "sample:sharegtp", "trace:no-such-file.csv",
)  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_text_is_refused(text: str) -> None:
    with pytest.raises(TokonomicsError):
        parse_lengths(text)
    assert parse_lengths("0", "output", least=0)  # an answer may be empty
    with pytest.raises(TokonomicsError, match="from 1"):
        parse_lengths("0", "input")


def test_quantiles_are_those_of_the_standard_library() -> None:
    # Both ends of each of the three approximations, and what lies between.
    edges = [1e-300, 1e-20, 1.38e-11, 1.39e-11, 0.0749, 0.0751, 0.5, 0.9249, 0.9251, 1 - 1e-11, 1 - 1e-16]
    shares = np.concatenate([edges, np.random.default_rng(0).random(1000)])
    expected = [NormalDist().inv_cdf(share) for share in shares]
    assert normal_quantiles(shares) == pytest.approx(expected, rel=1e-14, abs=1e-15)


# --- the shipped samples are what their sources published -------------------------------------------------------------

# Requests, and mean tokens of prompt and answer, counted from the published files with gzip and awk.
PUBLISHED = {
    "azure-code": (8_819, 2047.85, 27.88),
    "azure-conv": (19_366, 1154.70, 211.13),
    "mooncake-conversation": (12_031, 12035.06, 342.62),
    "mooncake-synthetic": (3_993, 15325.48, 149.12),
    "arxiv": (28_257, 2588.08, 291.43),
    "sharegpt": (30_731, 2340.03, 438.71),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_lengths_are_those_published(name: str) -> None:
    inputs, outputs = sample_lengths(name)
    requests, prompt, answer = PUBLISHED[name]
    assert len(inputs) == len(outputs) == requests
    assert inputs.mean() == pytest.approx(prompt, abs=0.005)
    assert outputs.mean() == pytest.approx(answer, abs=0.005)


@pytest.mark.parametrize("name", TRACES)
def test_a_sample_opens_by_its_name(name: str) -> None:
    file = open_trace(name)
    trace = file.read()
    assert len(trace) == PUBLISHED[name][0]
    assert file.problems.count == 0
    assert trace.source == f"{name} (shipped sample)"
    assert 1000 < trace.duration_s < 3600
    inputs, outputs = sample_lengths(name)
    assert (np.sort(inputs) == np.sort(trace.input_tokens)).all()
    assert (np.sort(outputs) == np.sort(trace.output_tokens)).all()


@pytest.mark.parametrize("name", ["mooncake-conversation", "mooncake-synthetic"])
def test_mooncake_blocks_cover_every_prompt(name: str) -> None:
    trace = open_trace(name).read()
    assert trace.prefix is not None
    assert trace.prefix.block_tokens == 512
    assert (np.diff(trace.prefix.starts) == -(-trace.input_tokens // 512)).all()
    assert trace.prefix.distinct == len(np.unique(trace.prefix.ids)) == trace.prefix.ids.max() + 1


def test_the_samples_stay_small_and_are_described() -> None:
    files = list(FOLDER.glob("*.parquet"))
    assert {file.stem for file in files} == set(SAMPLES)
    assert sum(file.stat().st_size for file in files) < 1_600_000
    described = (FOLDER / "README.md").read_text()
    assert all(f"`{name}`" in described for name in SAMPLES)
    with pytest.raises(UnknownName):
        sample_lengths("azure-cov")


# --- thinking: a share or a number of tokens, the usual share where a model reasons, never more than the output -------


OUTPUTS = np.array([0, 1, 100, 5000], np.int32)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0.7", Thinking(share=0.7)),
        ("70%", Thinking(share=0.7)),
        ("1", Thinking(share=1.0)),
        ("2000", Thinking(tokens=2000)),
        ("2k", Thinking(tokens=2000)),
        ("0", None),
    ],
)
def test_a_share_or_a_number_of_tokens(text: str, found: Thinking | None) -> None:
    assert parse_thinking(text, reasons=True) == found


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5", "140%", "1e99", "nan"])
def test_anything_else_is_refused(text: str) -> None:
    assert refused(parse_thinking, text, reasons=True).field == "thinking"


def test_thinking_is_part_of_the_output_and_the_usual_share_where_a_model_reasons() -> None:
    assert Thinking(share=0.5).thinking_tokens(OUTPUTS).tolist() == [0, 0.5, 50, 2500]
    assert Thinking(tokens=300).thinking_tokens(OUTPUTS).tolist() == [0, 1, 100, 300]
    assert [parse_thinking(None, reasons=reasons) for reasons in (True, False)] == [USUAL, None]
    assert USUAL.assumed
    assert all(find_model(name).reasons for name in ("deepseek-r1", "gpt-oss-120b", "qwen3-8b"))
    assert not any(find_model(name).reasons for name in ("deepseek-v3", "llama-3.1-8b", "bge-m3"))
