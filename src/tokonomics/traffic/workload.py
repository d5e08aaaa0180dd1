"""The traffic a plan is made for: how many requests a second, how long their prompts and answers."""

import numpy as np
from pydantic import Field

from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, percent

_NO_ANSWER = 1e-6  # tokens that stand for none: a price per token of output is asked of every workload


class Workload(Noun):
    """Requests in the mean, at a constant mean rate."""

    rate: float = Field(ge=1e-9, le=1e9)
    """Requests a second."""
    input_tokens: float = Field(gt=0, le=1e8)
    """In the mean."""
    output_tokens: float = Field(gt=0, le=1e8)
    input_p50: float | None = None
    """Half of the prompts are at most so long; None where only the means are known."""
    input_p99: float | None = None
    output_p50: float | None = None
    output_p99: float | None = None
    cut_share: float = Field(default=0.0, ge=0, le=1)
    """Of the requests: made-up ones that were shortened to the model's context."""

    @property
    def writes(self) -> bool:
        """Whether there are answers at all: an encoder gives none."""
        return self.output_tokens > _NO_ANSWER

    @property
    def lengths_text(self) -> str:
        """``1,000 in (p50 722, p99 4,720) / 300 out (constant)``."""
        inputs = _spread_text(self.input_tokens, self.input_p50, self.input_p99)
        outputs = _spread_text(self.output_tokens, self.output_p50, self.output_p99)
        cut = f", {percent(self.cut_share)} of them cut to the model's context" if self.cut_share else ""
        written = f" / {outputs[0]} out{outputs[1]}" if self.writes else ""
        return f"{inputs[0]} in{inputs[1]}{written}{cut}"

    @property
    def tokens_per_second(self) -> float:
        return self.rate * (self.input_tokens + self.output_tokens)

    @property
    def tokens_per_month(self) -> float:
        return self.tokens_per_second * SECONDS_PER_HOUR * HOURS_PER_MONTH


def workload_of(trace: Trace, rate: float, cut: int = 0) -> Workload:
    """The means, medians and 99th percentiles of requests, ``cut`` of them shortened, at a rate."""
    inputs, outputs = (
        [float(tokens.mean()), *(float(cut) for cut in np.percentile(tokens, (50, 99), method="inverted_cdf"))]
        for tokens in (trace.input_tokens, trace.output_tokens)
    )
    return Workload(
        rate=rate,
        input_tokens=inputs[0],
        output_tokens=max(outputs[0], _NO_ANSWER),
        input_p50=inputs[1],
        input_p99=inputs[2],
        output_p50=outputs[1],
        output_p99=outputs[2],
        cut_share=cut / len(trace),
    )


def lengths_text(trace: Trace, cut: int = 0) -> str:
    """How long prompts and answers are: ``1,000 in (p50 722, p99 4,720) / 300 out (constant)``."""
    return workload_of(trace, 1.0, cut).lengths_text


def _spread_text(mean: float, p50: float | None, p99: float | None) -> tuple[str, str]:
    """A mean, and how lengths vary around it."""
    if p50 is None or p99 is None:
        return _tokens(mean), ""
    return _tokens(mean), " (constant)" if mean == p50 == p99 else f" (p50 {_tokens(p50)}, p99 {_tokens(p99)})"


def _tokens(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"
