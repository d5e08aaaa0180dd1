"""How widely lengths vary in measured traffic: a lognormal around the mean of each shipped sample.

    python benchmarks/fit_lengths.py

The lognormal is cut at the longest length measured, and its sigma is the one that gives the coefficient of variation
(CV) measured: mean and variance are those of the sample, and waiting and the memory of a batch depend on them. Beside
it stands how well that fits: p50 and p99 of both, and the area between both quantile functions, all in means (0.2: a
length is off by a fifth of the mean, on average). ``traffic/lengths.py`` carries sigma and longest of azure-conv.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtri

from tokonomics.traffic.formats import SAMPLES, sample_lengths
from tokonomics.traffic.lengths import ANSWERS, PROMPTS, LengthSpread

CHOSEN = "azure-conv"
CARRIED = {"prompt": PROMPTS, "answer": ANSWERS}
_PARTS = (np.arange(20_000) + 0.5) / 20_000


class LengthFit(NamedTuple):
    """Lengths in units of their mean: those measured, and the lognormal of the same mean, CV and longest."""

    mean: float
    cv: float
    spread: LengthSpread
    measured: NDArray[np.float64]
    fitted: NDArray[np.float64]

    @property
    def area(self) -> float:
        return float(np.abs(self.measured - self.fitted).mean())


def fit(tokens: NDArray[np.int64]) -> LengthFit:
    """Empty prompts and answers are left out: no lognormal has any."""
    mean = tokens[tokens > 0].mean()
    lengths = tokens[tokens > 0] / mean
    longest, cv = float(lengths.max()), float(lengths.std())

    def shape(sigma: float) -> NDArray[np.float64]:
        cut = np.minimum(np.exp(sigma * ndtri(_PARTS) - sigma**2 / 2), longest)
        return np.asarray(cut / cut.mean())

    sigma = brentq(lambda sigma: shape(sigma).std() - cv, 0.01, 3)
    return LengthFit(float(mean), cv, LengthSpread(sigma, longest), np.quantile(lengths, _PARTS), shape(sigma))


def fits() -> Iterator[tuple[str, str, LengthFit]]:
    for name in SAMPLES:
        for side, tokens in zip(CARRIED, sample_lengths(name), strict=True):
            yield name, side, fit(tokens)


def main() -> None:
    print("sample                 side      mean    CV  longest  sigma    p50 (fit)     p99 (fit)   area")
    for name, side, found in fits():
        p50, p99 = (
            [float(np.quantile(lengths, share)) for lengths in (found.measured, found.fitted)] for share in (0.5, 0.99)
        )
        print(
            f"{name:22} {side} {found.mean:8,.0f}  {found.cv:.2f}  {found.spread.longest:7.1f}   "
            f"{found.spread.sigma:.2f}   {p50[0]:.2f} ({p50[1]:.2f})  {p99[0]:5.2f} ({p99[1]:5.2f})  {found.area:.3f}"
        )
        rounded = LengthSpread(round(found.spread.sigma, 2), round(found.spread.longest, 1))
        if name == CHOSEN and rounded != CARRIED[side]:
            print(f"  traffic/lengths.py carries {CARRIED[side]}: bring it up to date")


if __name__ == "__main__":
    main()
