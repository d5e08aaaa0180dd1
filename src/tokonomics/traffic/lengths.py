"""Draw the lengths of prompts and answers from a text: ``512``, ``lognormal:mean=800,p99=6000`` or ``sample:sharegpt``.

A number is a mean: around it lengths vary as in measured chat traffic (``PROMPTS``, ``ANSWERS``); ``const:512`` makes
all lengths equal. A lognormal is fixed by its centre (mean or median) and its spread (coefficient of variation or a
percentile), solved in closed form. Its draws are stratified: one from each of as many equal parts of the distribution
as there are requests, in random order, so that means and percentiles are those asked for and not a matter of chance.
Lengths from a sample or a log are drawn with replacement; where prompt and answer name the same one, they are drawn in
pairs, since long prompts and long answers do not come independently.

Quantiles of the normal distribution are those of Wichura, "Algorithm AS241: The Percentage Points of the Normal
Distribution", Applied Statistics 37 (3), 1988, to about 1 part in 10^16, without the fifth of a second that scipy takes
to load: ratios of polynomials for the middle, the tails and the far tails, the highest power first.
``statistics.NormalDist`` has the same for single numbers.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput
from tokonomics.traffic.grammar import Phrase, parse_phrase
from tokonomics.traffic.trace import MOST_TOKENS, Counts, Floats
from tokonomics.units import whole_number

_MIDDLE = 0.425  # on both sides of one half
_FAR = 5.0  # of √(−ln share)
# fmt: off
_IN_MIDDLE = (
    (2509.0809287301227, 33430.57558358813, 67265.7709270087, 45921.95393154987,
     13731.69376550946, 1971.5909503065513, 133.14166789178438, 3.3871328727963665),
    (5226.495278852854, 28729.085735721943, 39307.89580009271, 21213.794301586597,
     5394.196021424751, 687.1870074920579, 42.31333070160091, 1.0),
)
_IN_TAILS = (
    (0.0007745450142783414, 0.022723844989269184, 0.2417807251774506, 1.2704582524523684,
     3.6478483247632045, 5.769497221460691, 4.630337846156546, 1.4234371107496835),
    (1.0507500716444169e-09, 0.0005475938084995345, 0.015198666563616457, 0.14810397642748008,
     0.6897673349851, 1.6763848301838038, 2.053191626637759, 1.0),
)
_FAR_OUT = (
    (2.0103343992922881e-07, 2.7115555687434876e-05, 0.0012426609473880784, 0.026532189526576124,
     0.29656057182850487, 1.7848265399172913, 5.463784911164114, 6.657904643501103),
    (2.0442631033899397e-15, 1.421511758316446e-07, 1.8463183175100548e-05, 0.0007868691311456133,
     0.014875361290850615, 0.1369298809227358, 0.599832206555888, 1.0),
)
# fmt: on


def normal_quantiles(shares: Floats) -> Floats:
    """Return the quantiles of the standard normal distribution at these shares, above 0 and below 1."""
    from_half = shares - 0.5
    quantiles = from_half * _ratio(0.180625 - from_half**2, _IN_MIDDLE)
    outer = np.flatnonzero(np.abs(from_half) > _MIDDLE)
    tail = np.sqrt(-np.log(np.minimum(shares[outer], 1 - shares[outer])))
    far = np.where(tail > _FAR, _ratio(tail - _FAR, _FAR_OUT), _ratio(tail - 1.6, _IN_TAILS))
    quantiles[outer] = np.copysign(far, from_half[outer])
    return quantiles


def _ratio(at: Floats, polynomials: tuple[tuple[float, ...], tuple[float, ...]]) -> Floats:
    above, below = polynomials
    found: Floats = np.polyval(above, at) / np.polyval(below, at)
    return found


class LengthSpread(NamedTuple):
    """How lengths vary around a mean: a lognormal, cut at the longest."""

    sigma: float  # of the logarithm
    longest: float  # in means


PROMPTS, ANSWERS = LengthSpread(0.82, 12.2), LengthSpread(0.72, 4.7)
"""Around a mean that is given alone: those of azure-conv, all 19,366 requests of a production chat service in an hour
of 2023-11-16; ``benchmarks/fit_lengths.py``, 2026-11-16.

The other samples are code, papers, a benchmark's chats, or documents of 12,000 tokens. Mean, variance and longest are
as measured; waiting and memory depend on them. The p99 of prompts is 4.8 times their mean where 3.6 were measured: 7 %
of that hour's requests end at the 4,096 tokens of their model's context, which cut the tail."""
_BELOW_ONE = float(np.nextafter(1.0, 0.0))
EXAMPLES = (
    "1500 (their mean), const:512, lognormal:mean=800,p99=6k, lognormal:mean=800,cv=1.5, uniform:100-900, "
    "sample:sharegpt, trace:FILE"
)
_NAMES = ("const", "lognormal", "uniform", "sample", "trace")
_PERCENTILES = {"p90": 0.90, "p95": 0.95, "p99": 0.99}
_MOST_CV = 30.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths; ``pairs`` if it consists of real requests."""

    text: str
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]] | None = None
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # prompts and answers of the same requests
    mean: float | None = None  # if it was given
    is_constant: bool = False


def parse_lengths(text: str, field: str = "input", least: int = 1) -> Lengths:
    """Read one distribution; a mean or a constant is at least ``least``, any other length at least one token."""
    text = text.strip()
    if (tokens := whole_number(text)) is not None:
        return _around(_checked(tokens, field, least), text, ANSWERS if field == "output" else PROMPTS)
    name, _, named = (part.strip() for part in text.partition(":"))
    if name.lower() in ("sample", "trace"):
        if not named:
            raise BadInput(f"'{name}:' names nothing", field=field, fix=f"Such as: {EXAMPLES}.")
        return Lengths(text, pairs=_pairs(name.lower(), named))
    phrase = parse_phrase(text, _NAMES, field=field, examples=EXAMPLES)
    if phrase.name == "const":
        phrase.allow()
        if phrase.value is None or (tokens := whole_number(phrase.value)) is None:
            raise phrase.wrong("a constant length is a whole number of tokens")
        return _constant(_checked(tokens, field, least), text)
    return _lognormal(phrase) if phrase.name == "lognormal" else _uniform(phrase)


def draw_lengths(inputs: Lengths, outputs: Lengths, number: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """Draw ``number`` prompts and answers: paired where both name the same sample, else independent."""
    if inputs.pairs is not None and inputs.text == outputs.text:
        chosen = rng.integers(len(inputs.pairs[0]), size=number)
        prompts, answers = inputs.pairs
        return prompts[chosen].astype(np.int32), answers[chosen].astype(np.int32)

    def drawn(lengths: Lengths, side: int) -> Counts:
        if lengths.pairs is not None:
            column = lengths.pairs[side]
            return column[rng.integers(len(column), size=number)].astype(np.int32)
        assert lengths.draw is not None
        return np.rint(lengths.draw(rng, number)).astype(np.int32)

    return drawn(inputs, 0), drawn(outputs, 1)


def _checked(tokens: int, field: str, least: int) -> int:
    if not least <= tokens <= MOST_TOKENS:
        raise BadInput(f"must be from {least} to {MOST_TOKENS:,} tokens, got {tokens:,}", field=field)
    return tokens


def _constant(tokens: int, text: str) -> Lengths:
    return Lengths(text, lambda _, number: np.full(number, float(tokens)), mean=tokens, is_constant=True)


def _around(mean: int, text: str, spread: LengthSpread) -> Lengths:
    """Return a lognormal plus one token, scaled so that the lengths drawn have exactly this mean."""
    if mean <= 1:
        return _constant(mean, text)

    def draw(rng: np.random.Generator, number: int) -> NDArray[np.float64]:
        drawn = np.minimum(_lognormal_draws(rng, -(spread.sigma**2) / 2, spread.sigma, number), spread.longest)
        return np.minimum(1 + drawn * ((mean - 1) / drawn.mean()), MOST_TOKENS) if number else drawn

    return Lengths(text, draw, mean=mean)


def _lognormal_draws(rng: np.random.Generator, mu: float, sigma: float, number: int) -> NDArray[np.float64]:
    """Draw from a lognormal, once from each of ``number`` equally likely parts, in random order."""
    parts = (rng.permutation(number) + rng.random(number)) / number
    return np.asarray(np.exp(mu + sigma * normal_quantiles(np.clip(parts, 1e-300, _BELOW_ONE))), np.float64)


def _lognormal(phrase: Phrase) -> Lengths:
    phrase.allow("mean", "p50", "cv", *_PERCENTILES, "max")
    centres = [name for name in ("mean", "p50") if name in phrase.options]
    spreads = [name for name in ("cv", *_PERCENTILES) if name in phrase.options]
    if phrase.value is not None or len(centres) != 1 or len(spreads) != 1:
        raise phrase.wrong("a lognormal takes mean= or p50=, and one of cv=, p90=, p95=, p99=")
    centre = phrase.tokens(centres[0], 1, MOST_TOKENS)
    sigma = _sigma(phrase, centres[0], centre, spreads[0])
    mu = math.log(centre) - (sigma**2 / 2 if centres[0] == "mean" else 0.0)
    most = phrase.tokens("max", 1, MOST_TOKENS, MOST_TOKENS)
    return Lengths(phrase.text, lambda rng, number: np.clip(_lognormal_draws(rng, mu, sigma, number), 1, most))


def _sigma(phrase: Phrase, centre_name: str, centre: float, spread_name: str) -> float:
    """Return the spread of the logarithm: cv² = e^σ² − 1, and ln(percentile) = μ + zσ with μ = ln(mean) − σ²/2."""
    if spread_name == "cv":
        return math.sqrt(math.log1p(phrase.number("cv", 0, _MOST_CV) ** 2))
    tail = phrase.tokens(spread_name, 1, MOST_TOKENS)
    z, ratio = NormalDist().inv_cdf(_PERCENTILES[spread_name]), tail / centre
    if ratio < 1:
        raise phrase.wrong(f"{spread_name}= must be at least {centre_name}=")
    if centre_name == "p50":
        return math.log(ratio) / z
    if math.log(ratio) > z**2 / 2:
        most = f"{math.exp(z**2 / 2):.3g} times its mean"
        raise phrase.wrong(f"no lognormal has a {spread_name} above {most}; give p50= or cv= instead")
    return z - math.sqrt(z**2 - 2 * math.log(ratio))


def _uniform(phrase: Phrase) -> Lengths:
    phrase.allow()
    ends = [whole_number(end) for end in (phrase.value or "").split("-")]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        raise phrase.wrong("a uniform is written as its least and most tokens")
    low, high = ends[0], ends[1]
    if not 1 <= low <= high <= MOST_TOKENS:
        raise phrase.wrong(f"must go from at least 1 up to at most {MOST_TOKENS:,} tokens")
    return Lengths(phrase.text, lambda rng, number: rng.integers(low, high + 1, number).astype(np.float64))


def _pairs(kind: str, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the prompts and answers of a sample or of a log."""
    if kind == "sample":
        from tokonomics.traffic.formats import sample_lengths

        return sample_lengths(name)
    from tokonomics.traffic.readers import open_trace

    trace = open_trace(name).read()
    return trace.input_tokens.astype(np.int64), trace.output_tokens.astype(np.int64)
