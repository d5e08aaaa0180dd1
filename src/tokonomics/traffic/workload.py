"""Describe the traffic a plan is made for: rate, lengths, share of thinking, and when its full load is offered.

**Thinking** is the part of a reasoning model's output that comes before the answer: ``0.7`` of it, or ``2000`` tokens.
It changes no total, as thinking is output like any other; it decides when the answer begins, and what its tokens cost.

**The stretch** of a trace is the time in which its full load is offered, known before anyone serves it. Requests that
wait for nobody are offered from the first arrival to the last: all of them count. Sessions begin from the first to the
last of their first requests, but later turns ramp up for as long as sessions last, and after the last session began the
load runs dry. So a stretch of sessions ends when the last one begins, and begins as soon as, from then on, 97 % of the
whole load arrives on average: at time ``t`` the missing requests are those that come later than ``t`` after the
beginning of their session, by the times of the trace as it was made.

``spread`` gives the percentiles and the mean of a latency, as every answer states one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic.slo import PERCENTILES
from tokonomics.traffic.trace import MOST_TOKENS, Floats, Trace, Turns
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, percent, whole_number

_NO_ANSWER = 1e-6  # stands for no tokens, because every workload needs a price per output token


class Workload(Noun):
    """The mean request, at a constant mean rate."""

    rate: float = Field(ge=1e-9, le=1e9)  # requests a second
    input_tokens: float = Field(gt=0, le=1e8)  # mean
    output_tokens: float = Field(gt=0, le=1e8)  # mean
    input_p50: float | None = None  # None, like the other percentiles, if only the means are known
    input_p99: float | None = None
    output_p50: float | None = None
    output_p99: float | None = None
    cut_share: float = Field(default=0.0, ge=0, le=1)
    """The share of generated requests that were shortened to the model's context."""

    @property
    def writes(self) -> bool:
        """Return whether there are answers at all: an encoder gives none."""
        return self.output_tokens > _NO_ANSWER

    @property
    def lengths_text(self) -> str:
        """Write the lengths: ``1,000 in (p50 722, p99 4,720) / 300 out (constant)``."""
        text = f"{_tokens(self.input_tokens)} in{_spread_text(self.input_tokens, self.input_p50, self.input_p99)}"
        if self.writes:
            spread = _spread_text(self.output_tokens, self.output_p50, self.output_p99)
            text += f" / {_tokens(self.output_tokens)} out{spread}"
        return text + (f", {percent(self.cut_share)} of them cut to the model's context" if self.cut_share else "")

    @property
    def tokens_per_second(self) -> float:
        return self.rate * (self.input_tokens + self.output_tokens)

    @property
    def tokens_per_month(self) -> float:
        return self.tokens_per_second * SECONDS_PER_HOUR * HOURS_PER_MONTH


def workload_of(trace: Trace, rate: float, cut: int = 0) -> Workload:
    """Return the means, medians and 99th percentiles of requests at a rate; ``cut`` of them were shortened."""
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
    """Write how long prompts and answers are: ``1,000 in (p50 722, p99 4,720) / 300 out (constant)``."""
    return workload_of(trace, 1.0, cut).lengths_text


def _spread_text(mean: float, p50: float | None, p99: float | None) -> str:
    if p50 is None or p99 is None:
        return ""
    return " (constant)" if mean == p50 == p99 else f" (p50 {_tokens(p50)}, p99 {_tokens(p99)})"


def _tokens(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


USUAL_SHARE = 0.74
"""The share of the output tokens of DeepSeek-R1 in production: 73 clients over a day, weighted by requests and tokens
(ServeGen, alibaba/ServeGen, Apache-2.0, arXiv:2505.09999); ``benchmarks/fit_thinking.py``, 2026-11-17. Clients range
from a half to nearly all."""
_FIX = "Write a share, such as 0.7, or tokens, such as 2000."


class Thinking(Noun):
    """How much of each output is thinking: a share of it, or a number of tokens and at most all."""

    share: float | None = Field(default=None, ge=0, le=1)
    tokens: int | None = Field(default=None, ge=0)
    assumed: bool = False  # the user said nothing: the usual share of a reasoning model

    def thinking_tokens(self, output_tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the thinking tokens of each output."""
        outputs = output_tokens.astype(np.float64)
        return outputs * self.share if self.share is not None else np.minimum(outputs, float(self.tokens or 0))


USUAL = Thinking(share=USUAL_SHARE, assumed=True)


def parse_thinking(text: str | None, reasons: bool) -> Thinking | None:
    """Read what the user said, or take the usual share if the model reasons; None if it does not."""
    if text is None:
        return USUAL if reasons else None
    written = text.strip()
    percent = written.endswith("%")
    try:
        number = float(written.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        number = float(tokens) if (tokens := whole_number(written)) is not None else float("nan")
    if 0 <= number <= 1:
        return Thinking(share=number) if number else None
    if percent or not (1 < number <= MOST_TOKENS and number.is_integer()):
        raise BadInput(f"'{shorten(written)}' is neither a share nor a number of tokens", field="thinking", fix=_FIX)
    return Thinking(tokens=int(number))


NEARLY_ALL = 0.97
"""The share of a load that counts as all of it: with 20,000 requests, chance alone changes it by less than 1 %."""
_MOST_RAMP = 0.5
"""The longest ramp-up, as a share of the time in which sessions begin: beyond it, too few requests would count."""
_STEPS = 64  # from 0 to ``_MOST_RAMP``: a ramp one step too long loses 1 % of the stretch
_LONGER = 1.5  # factor by which a run is lengthened: large enough not to be at the edge again


@dataclass(frozen=True)
class LoadStretch:
    """The time from which the full load is offered until it no longer is."""

    first_s: float  # when the first request is sent
    ramp_s: float | None  # from then until the load is whole; None: it never is, and everything counts
    end_s: float  # when the last request is sent that waits for nobody
    times_longer: float = 1.0
    """How many times longer requests should be sent for the load to be whole; 0 where all are sent at once."""

    @property
    def span_s(self) -> float:
        """Return the time over which requests that wait for nobody are sent."""
        return self.end_s - self.first_s

    @property
    def begin_s(self) -> float:
        return self.first_s + (self.ramp_s or 0.0)

    def counts(self, sent_s: Floats) -> NDArray[np.bool_]:
        """Return which requests or sessions are judged, given the times at which they are sent or begin."""
        if not self.ramp_s:
            return np.ones(len(sent_s), np.bool_)
        return np.asarray((sent_s >= self.begin_s) & (sent_s <= self.end_s))


def stretch_of(trace: Trace) -> LoadStretch:
    """Return when the full load of a trace is offered."""
    sent_s, turns = trace.arrival_s, trace.turns
    linked = turns is not None and turns.linked
    roots_s = sent_s[turns.roots] if turns is not None and linked else sent_s
    since_s = sent_s - session_starts_s(turns, sent_s) if turns is not None and linked else np.zeros(1)
    first_s, end_s = float(roots_s.min()), float(roots_s.max())
    ramp_s, longer = ramp_up_s(since_s, end_s - first_s), times_longer(since_s, end_s - first_s)
    few = 1 / (1 - NEARLY_ALL) / len(roots_s)  # the last one ends a gap that counts towards the rate
    return LoadStretch(first_s, None if few > 1 else ramp_s, end_s, max(longer, few) if longer else 0.0)


def ramp_up_s(since_s: Floats, span_s: float) -> float | None:
    """Return how long it takes until nearly the whole load arrives; None if too long.

    ``since_s`` is each request's time since the start of its session. Sessions begin for ``span_s``. From ``t`` until
    its end, a request is missing for as long as it comes after ``t``.
    """
    if span_s <= 0:
        return None
    began_s = np.linspace(0.0, _MOST_RAMP, _STEPS + 1) * span_s
    later = np.sort(np.minimum(since_s, span_s))[::-1]
    sums, counts = np.cumsum(later), len(later) - np.searchsorted(later[::-1], began_s, side="right")
    missing_s = np.where(counts > 0, sums[np.maximum(counts, 1) - 1], 0.0) - counts * began_s
    enough = np.flatnonzero(missing_s <= (1 - NEARLY_ALL) * (span_s - began_s) * len(later))
    return float(began_s[enough[0]]) if len(enough) else None


def times_longer(since_s: Floats, span_s: float) -> float:
    """Return how many times longer sessions should begin for a stretch; 1: long enough, 0: all begin at once."""
    times = float(span_s > 0)
    while span_s > 0 and ramp_up_s(since_s, times * span_s) is None:
        times *= _LONGER
    return times


def session_starts_s(turns: Turns, sent_s: Floats) -> Floats:
    """Return, by request, when the first request of its session is sent."""
    first_s = np.full(turns.sessions, np.inf)
    np.minimum.at(first_s, turns.session, sent_s)
    return np.asarray(first_s[turns.session])


class Spread(Noun):
    """A latency over requests, in seconds; None if no request has it."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    mean: float | None


def spread(values: Floats) -> Spread:
    """Return percentiles and mean of the values that are numbers."""
    known = values[~np.isnan(values)]
    if not len(known):
        return Spread(p50=None, p90=None, p95=None, p99=None, mean=None)
    points = _percentiles(known)
    named = {f"p{percent}": float(point) for percent, point in zip(PERCENTILES, points, strict=True)}
    return Spread(**named, mean=float(known.mean()))


def _percentiles(known: Floats) -> Floats:
    """Return exactly what ``np.percentile`` gives, interpolated linearly; sorting first is five times faster."""
    ordered = np.sort(known)
    place = np.array(PERCENTILES) / 100 * (len(ordered) - 1)
    below = place.astype(np.intp)
    above, share = np.minimum(below + 1, len(ordered) - 1), place - below
    gap = ordered[above] - ordered[below]
    found: Floats = np.where(share < 0.5, ordered[below] + gap * share, ordered[above] - gap * (1 - share))
    return found
