"""How widely lengths vary in measured traffic: a lognormal around the mean of each shipped sample.

    python benchmarks/fit_lengths.py

A lognormal of a known mean has one more number. Here it is taken from the coefficient of variation (CV), so that mean
and variance are those measured: waiting and the memory of a batch depend on them. Beside it stands how well that fits:
the area between both quantile functions, in means (0.2: a length is off by a fifth of the mean, on average), the least
area that any lognormal of this mean has, and p50 and p99 of both. ``traffic/lengths.py`` carries the CVs of azure-conv.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.traffic.lengths import ANSWER_CV, PROMPT_CV
from tokonomics.traffic.samples import SAMPLES, sample_lengths

CHOSEN = "azure-conv"
_PARTS = (np.arange(4000) + 0.5) / 4000
_NORMAL = np.array([NormalDist().inv_cdf(part) for part in _PARTS])
_P99 = NormalDist().inv_cdf(0.99)


class LengthFit(NamedTuple):
    """A sample's lengths in units of their mean, and the lognormal of the same mean and CV."""

    mean: float
    cv: float
    sigma: float
    p50: float
    p99: float
    fitted_p50: float
    fitted_p99: float
    area: float
    least_area: float


def fit(tokens: NDArray[np.int64]) -> LengthFit:
    """Empty prompts and answers are left out: no lognormal has any."""
    lengths = tokens[tokens > 0] / tokens[tokens > 0].mean()
    cv = float(lengths.std())
    sigma = math.sqrt(math.log1p(cv**2))
    measured = np.quantile(lengths, _PARTS)

    def area(sigma: float) -> float:
        return float(np.abs(np.exp(sigma * _NORMAL - sigma**2 / 2) - measured).mean())

    return LengthFit(
        mean=float(tokens[tokens > 0].mean()),
        cv=cv,
        sigma=sigma,
        p50=float(np.quantile(lengths, 0.5)),
        p99=float(np.quantile(lengths, 0.99)),
        fitted_p50=math.exp(-(sigma**2) / 2),
        fitted_p99=math.exp(_P99 * sigma - sigma**2 / 2),
        area=area(sigma),
        least_area=min(area(step / 100) for step in range(1, 300)),
    )


def fits() -> Iterator[tuple[str, str, LengthFit]]:
    for name in SAMPLES:
        for side, tokens in zip(("prompt", "answer"), sample_lengths(name), strict=True):
            yield name, side, fit(tokens)


def main() -> None:
    print("sample                 side      mean    CV  sigma    p50 (fit)     p99 (fit)   area (least)")
    carried = {"prompt": PROMPT_CV, "answer": ANSWER_CV}
    for name, side, found in fits():
        print(
            f"{name:22} {side} {found.mean:8,.0f}  {found.cv:.2f}   {found.sigma:.2f}  {found.p50:5.2f} "
            f"({found.fitted_p50:.2f})  {found.p99:5.2f} ({found.fitted_p99:5.2f})  {found.area:.3f} "
            f"({found.least_area:.3f})"
        )
        if name == CHOSEN and abs(found.cv - carried[side]) > 0.005:
            print(f"  traffic/lengths.py carries {carried[side]}: bring it up to date")


if __name__ == "__main__":
    main()
