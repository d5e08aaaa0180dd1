"""How long prompts and answers are: a text such as ``512``, ``lognormal:mean=800,p99=6000`` or ``sample:sharegpt``.

A lognormal is fixed by its centre (mean or median) and its spread (coefficient of variation or a percentile), solved in
closed form. Lengths taken from a sample or a log are drawn with replacement; where prompt and answer name the same one,
they are drawn in pairs, since long prompts and long answers do not come independently.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput
from tokonomics.traffic.grammar import Phrase, parse_phrase
from tokonomics.traffic.trace import MOST_TOKENS, Counts

EXAMPLES = "512, lognormal:mean=800,p99=6000, lognormal:mean=800,cv=1.5, uniform:100-900, sample:sharegpt, trace:FILE"
_NAMES = ("lognormal", "uniform", "sample", "trace")
_PERCENTILES = {"p90": 0.90, "p95": 0.95, "p99": 0.99}
_MOST_CV = 30.0


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths; ``pairs`` where it stands for those of real requests."""

    text: str
    draw: Callable[[np.random.Generator, int], NDArray[np.float64]] | None = None
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None  # prompts and answers of the same requests


def parse_lengths(text: str, field: str = "input", least: int = 1) -> Lengths:
    """Read one distribution; a fixed length is at least ``least``, any other at least one token."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,20}", text):
        return _fixed(text, field, least)
    name, _, named = (part.strip() for part in text.partition(":"))
    if name.lower() in ("sample", "trace"):
        if not named:
            raise BadInput(f"'{name}:' names nothing", field=field, fix=f"Such as: {EXAMPLES}.")
        return Lengths(text, pairs=_pairs(name.lower(), named))
    phrase = parse_phrase(text, _NAMES, field=field, examples=EXAMPLES)
    return _lognormal(phrase) if phrase.name == "lognormal" else _uniform(phrase)


def draw_lengths(inputs: Lengths, outputs: Lengths, number: int, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """So many prompts and answers: paired where both name the same sample, else independent."""
    if inputs.pairs is not None and inputs.text == outputs.text:
        chosen = rng.integers(len(inputs.pairs[0]), size=number)
        prompts, answers = inputs.pairs
        return prompts[chosen].astype(np.int32), answers[chosen].astype(np.int32)
    return _drawn(inputs, 0, number, rng), _drawn(outputs, 1, number, rng)


def _drawn(lengths: Lengths, side: int, number: int, rng: np.random.Generator) -> Counts:
    if lengths.pairs is not None:
        column = lengths.pairs[side]
        return column[rng.integers(len(column), size=number)].astype(np.int32)
    assert lengths.draw is not None
    return np.rint(lengths.draw(rng, number)).astype(np.int32)


def _fixed(text: str, field: str, least: int) -> Lengths:
    tokens = int(text)
    if not least <= tokens <= MOST_TOKENS:
        raise BadInput(f"must be from {least} to {MOST_TOKENS:,} tokens, got {tokens:,}", field=field)
    return Lengths(text, lambda _, number: np.full(number, float(tokens)))


def _lognormal(phrase: Phrase) -> Lengths:
    phrase.allow("mean", "p50", "cv", *_PERCENTILES, "max")
    centres = [name for name in ("mean", "p50") if name in phrase.options]
    spreads = [name for name in ("cv", *_PERCENTILES) if name in phrase.options]
    if phrase.value is not None or len(centres) != 1 or len(spreads) != 1:
        raise phrase.wrong("a lognormal takes mean= or p50=, and one of cv=, p90=, p95=, p99=")
    centre = phrase.number(centres[0], 1, MOST_TOKENS)
    sigma = _sigma(phrase, centres[0], centre, spreads[0])
    mu = math.log(centre) - (sigma**2 / 2 if centres[0] == "mean" else 0.0)
    most = phrase.number("max", 1, MOST_TOKENS, MOST_TOKENS)
    return Lengths(phrase.text, lambda rng, number: np.clip(rng.lognormal(mu, sigma, number), 1, most))


def _sigma(phrase: Phrase, centre_name: str, centre: float, spread_name: str) -> float:
    """The spread of the logarithm: cv² = e^σ² − 1, and ln(percentile) = μ + zσ with μ = ln(mean) − σ²/2."""
    if spread_name == "cv":
        return math.sqrt(math.log1p(phrase.number("cv", 0, _MOST_CV) ** 2))
    tail = phrase.number(spread_name, 1, MOST_TOKENS)
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
    found = re.fullmatch(r"([0-9]{1,9})\s*-\s*([0-9]{1,9})", phrase.value or "")
    if not found:
        raise phrase.wrong("a uniform is written as its least and most tokens")
    low, high = int(found[1]), int(found[2])
    if not 1 <= low <= high <= MOST_TOKENS:
        raise phrase.wrong(f"must go from at least 1 up to at most {MOST_TOKENS:,} tokens")
    return Lengths(phrase.text, lambda rng, number: rng.integers(low, high + 1, number).astype(np.float64))


def _pairs(kind: str, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Prompts and answers of a sample or of a log."""
    if kind == "sample":
        from tokonomics.traffic.samples import sample_lengths

        return sample_lengths(name)
    from tokonomics.traffic.readers import open_trace

    trace = open_trace(name).read()
    return trace.input_tokens.astype(np.int64), trace.output_tokens.astype(np.int64)
