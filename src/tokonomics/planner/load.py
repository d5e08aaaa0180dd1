"""The traffic a plan is made for: its mean request for the closed form, its requests for the simulator.

A log is served as it is, or replayed faster or slower for another rate. Made-up requests are drawn once at one a second
and replayed at the rate asked for, so that plans for two rates meet the same requests; there are so many that a p99
rests on 200 of them and that they last twenty times as long as an answer. A rate that would take more than half a
million requests is cut into equal slices, of which one is served by its share of the replicas.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput
from tokonomics.traffic.arrivals import Arrivals, parse_arrivals
from tokonomics.traffic.generate import generate
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.traffic.prefix_reuse import reuse
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import Workload

ENOUGH_REQUESTS = 20_000
"""200 lie beyond a p99; as in ``serving.capacity``."""
_MOST_REQUESTS = 500_000
"""About a second of simulation."""
_ANSWERS_LONG = 20
"""A fleet starts empty: in so many times the length of an answer, its filling no longer counts."""
_TPOT_S = 0.05
"""How long a token takes, to tell how long an answer does: a common promise, and slower than most picks."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """Requests to be served, in the mean and one by one."""

    workload: Workload
    trace: Trace
    share: float = 1.0
    """Of the rate that the trace carries: below 1 where only a slice is simulated."""
    is_log: bool = False
    unusable_rows: int = 0
    """Of the log, left out."""

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request, prompt and answer."""
        return int((self.trace.input_tokens.astype(np.int64) + self.trace.output_tokens).max())

    @cached_property
    def computed_tokens(self) -> Floats:
        """Of each prompt, what even an endless cache does not hold."""
        inputs = self.trace.input_tokens
        if self.trace.prefix is None:
            return inputs.astype(np.float64)
        left: Floats = np.maximum(inputs - reuse(self.trace.prefix, inputs), 1).astype(np.float64)
        return left

    @cached_property
    def computed_mean(self) -> float:
        """Prompt tokens that are computed, in the mean, with an endless cache."""
        return float(self.computed_tokens.mean())

    def within(self, context: int) -> "Load":
        """Without the requests that the model cannot take, which every candidate refuses alike."""
        fits = self.trace.input_tokens.astype(np.int64) + self.trace.output_tokens <= context
        if fits.all():
            return self
        if not fits.any():
            raise BadInput(
                f"the shortest request is longer than the model's {context:,} tokens of context",
                where=self.trace.source,
            )
        kept = self.trace.take(np.flatnonzero(fits))
        return replace(self, trace=kept, workload=_mean(kept, self.workload.rate * len(kept) / len(self.trace)))

    def at(self, rate: float) -> "Load":
        """The same requests at another rate."""
        factor = rate / self.workload.rate
        return replace(self, trace=self.trace.faster(factor), workload=self.workload.model_copy(update={"rate": rate}))


def load_of_log(trace: Trace, rate: float | None = None, unusable_rows: int = 0) -> Load:
    """A log, at its own rate or replayed at another."""
    if trace.rate <= 0:
        raise BadInput(
            "all requests arrive at once: there is no rate", where=trace.source, fix="Give the mean rate with --rate."
        )
    if rate is not None:
        trace = trace.faster(rate / trace.rate)
    return Load(workload=_mean(trace, trace.rate), trace=trace, is_log=True, unusable_rows=unusable_rows)


def load_of_shape(
    rate: float | None,
    inputs: Lengths | str,
    outputs: Lengths | str | None = None,
    *,
    arrivals: Arrivals | str | None = None,
    seed: int = 0,
) -> Load:
    """Made-up requests: Poisson arrivals unless told, at the arrivals' own rate unless told."""
    inputs = parse_lengths(inputs, "--input") if isinstance(inputs, str) else inputs
    if outputs is None and inputs.pairs is None:
        raise BadInput("is missing: how long are the answers?", where="--output", fix="Such as --output 256.")
    outputs = inputs if outputs is None else outputs
    outputs = parse_lengths(outputs, "--output") if isinstance(outputs, str) else outputs
    process = parse_arrivals(arrivals) if isinstance(arrivals, str) else arrivals or parse_arrivals("poisson:1")
    if process.at_once is not None:
        raise BadInput("a burst has no rate to plan for", where="--arrivals", fix="Such as gamma:5,cv=3.")
    own_rate = 1.0 if arrivals is None else _mean_rate(process)
    if rate is None and arrivals is None:
        raise BadInput("no traffic is given", fix="Give --rate and --input and --output, or --trace.")
    rate = own_rate if rate is None else rate
    drawn = generate(process, inputs, outputs, requests=1000, seed=seed)
    lasts_s = _ANSWERS_LONG * float(drawn.output_tokens.mean()) * _TPOT_S
    if process.curve.period_s is not None:
        # Whole periods, at the pace of the curve.
        requests = math.ceil(own_rate * process.curve.period_s)
    else:
        requests = math.ceil(max(ENOUGH_REQUESTS, rate * lasts_s))
    slices = math.ceil(requests / _MOST_REQUESTS)
    trace = generate(process, inputs, outputs, requests=math.ceil(requests / slices), seed=seed)
    trace = trace.faster(rate / slices / trace.rate)
    return Load(workload=_mean(trace, rate), trace=trace, share=1 / slices)


def _mean_rate(process: Arrivals) -> float:
    """Requests a second in the mean: of a period, or of a long time."""
    span_s = process.curve.period_s or 1e6
    return process.curve.by(span_s) / span_s


def _mean(trace: Trace, rate: float) -> Workload:
    return Workload(
        rate=rate,
        input_tokens=max(1, round(float(trace.input_tokens.mean()))),
        output_tokens=max(1, round(float(trace.output_tokens.mean()))),
    )
