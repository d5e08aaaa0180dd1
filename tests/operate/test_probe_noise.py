"""A probe's own scatter is shrunk towards that of its like, as far as these are alike."""

import math

import numpy as np
import pytest

from tokonomics.operate.fingerprint import PROBES, Probe, ProbeKind, ProbeTimes
from tokonomics.operate.probe_noise import variances

ROUNDS = 5
MANY = tuple(Probe(kind=ProbeKind.prompt, prompt_tokens=tokens) for tokens in range(1, 4001))
FEWER = MANY[:400]


def times(
    deviations: np.ndarray, seed: int, probes: tuple[Probe, ...] = MANY, rounds: int = ROUNDS
) -> list[ProbeTimes]:
    """Rounds of probes around a second, each with a deviation of its own."""
    drawn = np.random.default_rng(seed).standard_normal((len(probes), rounds))
    return [
        ProbeTimes(probe=probe, tokens=1, seconds=tuple(np.exp(deviation * row).tolist()))
        for probe, deviation, row in zip(probes, deviations, drawn, strict=True)
    ]


def test_probes_that_scatter_alike_share_what_they_tell() -> None:
    """Of one true variance, what is left of each probe's own error is small, and nearly all rounds count."""
    spread, freedom = variances(times(np.full(400, 0.1), 1, FEWER))
    assert np.abs(spread / 0.1**2 - 1).max() < 0.4  # its own variance is off by a factor of four among so many
    assert freedom.min() > 100


@pytest.mark.parametrize("prior", [4.0, 12.0])
def test_the_degrees_of_freedom_of_their_like_are_found(prior: float) -> None:
    """True variances of a scaled inverse chi-squared distribution (Smyth 2004): the estimate is its parameter."""
    true = 0.1**2 * prior / np.random.default_rng(2).chisquare(prior, len(MANY))
    spread, freedom = variances(times(np.sqrt(true), seed=3))
    assert np.median(freedom) - (ROUNDS - 1) == pytest.approx(prior, rel=0.25)
    own = np.array([np.var(np.log(row.seconds), ddof=1) for row in times(np.sqrt(true), seed=3)])
    errors = [np.mean((np.log(guess) - np.log(true)) ** 2) for guess in (spread, own)]
    assert errors[0] < 0.7 * errors[1]


def test_kinds_that_scatter_unlike_are_not_mixed() -> None:
    quiet = np.array([0.002 if probe.kind is ProbeKind.decode else 0.2 for probe in PROBES])
    spread, _ = variances(times(quiet, seed=4, probes=PROBES))
    assert np.median(np.sqrt(spread[quiet < 0.1])) == pytest.approx(0.002, rel=0.3)
    assert np.median(np.sqrt(spread[quiet > 0.1])) == pytest.approx(0.2, rel=0.3)


def test_short_probes_may_scatter_more_than_long_ones() -> None:
    """Two milliseconds of a host are a fifth of ten milliseconds, and a hundredth of 200."""
    long_s = np.geomspace(0.01, 0.2, 40)
    rows = [
        row.model_copy(update={"seconds": tuple(own_s * value for value in row.seconds)})
        for own_s, row in zip(long_s, times(0.002 / long_s, seed=5, probes=MANY[:40]), strict=True)
    ]
    spread, freedom = variances(rows)
    assert np.abs(np.log(np.sqrt(spread) / (0.002 / long_s))).max() < math.log(1.6)
    assert freedom.min() > 2 * (ROUNDS - 1)


def test_one_round_of_a_probe_borrows_all_and_one_round_of_each_tells_nothing() -> None:
    rows = times(np.full(20, 0.1), seed=6, probes=MANY[:20])
    rows[7] = rows[7].model_copy(update={"seconds": rows[7].seconds[:1]})
    spread, _ = variances(rows)
    assert math.sqrt(spread[7]) == pytest.approx(0.1, rel=0.3)
    alone, freedom = variances(times(np.full(5, 0.1), seed=7, probes=MANY[:5], rounds=1))
    assert alone.min() >= 1
    assert freedom.tolist() == [1] * 5


def test_times_that_never_differ_scatter_by_their_rounding() -> None:
    rows = [ProbeTimes(probe=probe, tokens=1, seconds=(0.01,) * ROUNDS) for probe in MANY[:10]]
    spread, _ = variances(rows)
    assert np.sqrt(spread) == pytest.approx(np.full(10, 1e-6 / 0.01 / math.sqrt(12)), rel=0.5)
