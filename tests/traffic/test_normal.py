"""Quantiles of the normal distribution are those of the standard library, in the middle and far out."""

from statistics import NormalDist

import numpy as np
import pytest

from tokonomics.traffic.lengths import normal_quantiles


def test_quantiles_are_those_of_the_standard_library() -> None:
    # Both ends of each of the three approximations, and what lies between.
    edges = [1e-300, 1e-20, 1.38e-11, 1.39e-11, 0.0749, 0.0751, 0.5, 0.9249, 0.9251, 1 - 1e-11, 1 - 1e-16]
    shares = np.concatenate([edges, np.random.default_rng(0).random(1000)])
    expected = [NormalDist().inv_cdf(share) for share in shares]
    assert normal_quantiles(shares) == pytest.approx(expected, rel=1e-14, abs=1e-15)
