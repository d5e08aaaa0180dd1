"""Expect what a server does in a window, given its traffic: by simulation, corrected by what was learned of it.

The traffic of a window is a rate, the lengths in the engine's own histograms (within a bucket even in logarithms, then
scaled to the mean that was counted), and the share of prompt tokens found in the cache. It is simulated as Poisson
arrivals of prompts that share their beginnings. Latencies are put into the buckets of the engine's histograms, so that
an expected p99 is read the same way as the measured one, however wide the buckets are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tokonomics.measure.calibrate import Term
from tokonomics.measure.meter.readings import Counted
from tokonomics.measure.meter.spans import BEYOND, Buckets
from tokonomics.measure.meter.windows import WINDOW_S, ServedWindow, quantile
from tokonomics.physics.calibration import BARE, Correction, Profile, engine_of, using
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.serving.outcome import request_latencies
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import Latency
from tokonomics.traffic.trace import MOST_TOKENS, Floats, PrefixBlocks, Trace, make_trace
from tokonomics.types import Noun

FEWEST = 20
"""Requests of a window without which its latencies say little: the mean of 20 waits that scatter like exponential
ones is off by a fifth."""
_SIMULATED = (1000, 3000)  # requests at the least and the most: a p99 has ten to thirty requests beyond it
_WARM = 0.1  # share of them, at the beginning, that finds an emptier server than the others
_BATCHES = 10
_BLOCK_TOKENS = 16  # of the engines' caches, as vLLM's default
TERMS: tuple[Term, ...] = ("decode", "prefill", "launch", "request")
"""The factors of a ``Correction`` that windows teach: kernels of few tokens and of prompts, launches, and the time of a
request outside any step."""


class WindowTraffic(Noun):
    """What arrived in a window, as the next one may have it too."""

    requests_per_s: float
    input_tokens: float  # mean
    output_tokens: float
    hit_share: float
    seconds: float = WINDOW_S
    inputs: dict[float, float] = Field(default_factory=dict)
    outputs: dict[float, float] = Field(default_factory=dict)

    @property
    def tokens_per_s(self) -> float:
        return self.requests_per_s * (self.input_tokens + self.output_tokens)


def traffic_of(window: ServedWindow) -> WindowTraffic | None:
    """Return the traffic of a window; None if hardly any came, or nobody watched."""
    requests, seen_s, sums = window.seen_requests, window.watched_s, window.sums
    if requests < 1 or seen_s <= 0 or sums.output <= 0 or sums.input_total <= 0:
        return None
    return WindowTraffic(
        requests_per_s=requests / seen_s,
        input_tokens=max(1.0, sums.input_total / window.requests),
        output_tokens=max(1.0, sums.output / (sums.answered or window.requests)),
        hit_share=min(1.0, sums.input_cached / sums.input_total),
        seconds=seen_s,
        inputs=window.buckets.get(Counted.input_buckets, {}),
        outputs=window.buckets.get(Counted.output_buckets, {}),
    )


def lengths_in(buckets: Buckets, mean: float, number: int, rng: np.random.Generator) -> Floats:
    """Return lengths that fill the buckets as counted and have this mean; all alike if there are no buckets."""
    total = sum(buckets.values())
    if total <= 0:
        return np.full(number, mean)
    bounds = [bound for bound in sorted(buckets) if 0 < bound < BEYOND]
    ends = np.array([1.0, *bounds]) if not bounds or bounds[0] > 1 else np.array([0.5, *bounds])
    counts = np.array([buckets[bound] for bound in bounds])
    if beyond := buckets.get(BEYOND, 0.0):
        ends, counts = np.append(ends, 2 * ends[-1]), np.append(counts, beyond)
    places = (np.arange(number) + 0.5) / number * counts.sum()
    up_to = np.concatenate([[0.0], np.cumsum(counts)])
    at = np.clip(np.searchsorted(up_to, places, side="right") - 1, 0, len(counts) - 1)
    share = (places - up_to[at]) / np.maximum(counts[at], 1e-9)
    drawn = np.exp(np.log(ends[at]) + share * (np.log(ends[at + 1]) - np.log(ends[at])))
    drawn = rng.permutation(drawn)
    return np.asarray(np.maximum(1.0, drawn * (mean / drawn.mean())))


def trace_like(traffic: WindowTraffic, context: int, seed: int = 0) -> Trace:
    """Return requests as the window had them, cut to what the model can hold."""
    least, most = _SIMULATED
    number = int(min(most, max(least, traffic.requests_per_s * traffic.seconds)))
    rng = np.random.default_rng(seed)
    inputs = np.round(lengths_in(traffic.inputs, traffic.input_tokens, number, rng)).astype(np.int64)
    outputs = np.round(lengths_in(traffic.outputs, traffic.output_tokens, number, rng)).astype(np.int64)
    outputs = np.clip(outputs, 1, max(1, context - 1))
    inputs = np.clip(inputs, 1, np.maximum(1, np.minimum(context - outputs, MOST_TOKENS)))
    gaps = rng.exponential(1.0, number)
    arrival_s = (np.cumsum(gaps) - gaps[0]) * (1 / traffic.requests_per_s) * (number - 1) / gaps[1:].sum()
    prefix = shared_beginnings(inputs, traffic.hit_share)
    return make_trace(arrival_s, inputs, outputs, prefix=prefix, source="the window")


def shared_beginnings(inputs: NDArray[np.int64], hit_share: float) -> PrefixBlocks | None:
    """Return prompts that all begin alike, each by this share of its length; None if they share nothing."""
    blocks = np.floor(hit_share * inputs / _BLOCK_TOKENS).astype(np.int64)
    if not len(blocks) or blocks.max() <= 0:
        return None
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    ids = (np.arange(starts[-1]) - np.repeat(starts[:-1], blocks)).astype(np.int32)
    return PrefixBlocks(ids=ids, starts=starts, block_tokens=_BLOCK_TOKENS, distinct=int(blocks.max()))


@lru_cache(maxsize=4)  # the terms of a server are moved one by one under the same traffic
def _known_trace(traffic: str, context: int) -> Trace:
    return trace_like(WindowTraffic.model_validate_json(traffic), context)


@dataclass(frozen=True)
class Expectation:
    """What is expected of a window with a given traffic, by figure, and how far chance alone may move the means."""

    figures: Mapping[str, float]
    scatter: Mapping[str, float]  # relative standard error of a mean over the requests of a window


def correction_of(setup: Setup, factors: Mapping[str, float]) -> Correction:
    """Return what was learned of a server as a correction of exactly its setup."""
    at = setup.deployment
    engine = engine_of(at, True)
    assert engine != BARE
    return Correction(
        gpu=at.gpu.key, engine=engine, model=at.model.key, weights=at.weights, kv=at.kv, tp=at.tp, pp=at.pp, ep=at.ep,
        dp=at.dp, loads=1, rows=1, **factors,
    )  # fmt: skip


def profile_of(setup: Setup, factors: Mapping[str, float], made: date = date.min) -> Profile:
    """Return what was learned as a profile, which every prediction can use."""
    correction = correction_of(setup, factors)
    return Profile(name="twin", made=made, command="tokonomics twin", corrections=(correction,))


@dataclass(frozen=True)
class KnownWindow:
    """A window whose traffic is known, on a set-up: what it is expected to be under any factors."""

    setup: Setup
    traffic: WindowTraffic
    bounds: Mapping[Counted, Buckets]  # histograms in whose buckets latencies are read

    def expected(self, factors: Mapping[str, float]) -> Expectation | None:
        """Simulate it; None if the server cannot serve such traffic."""
        setup, traffic = self.setup, self.traffic
        trace = _known_trace(traffic.model_dump_json(), setup.deployment.model.max_context)
        with using(profile_of(setup, factors)):
            made, _ = serve(replace(setup, load=load_of_requests(trace)), 1, setup.max_sequences)
            steps = step_model(setup.deployment)
        late = request_latencies(made)
        of_steady = np.arange(len(made.trace)) >= _WARM * len(made.trace)
        figures: dict[str, float] = {}
        scatter: dict[str, float] = {}
        for name, kind in ((Latency.ttft, Counted.ttft_buckets), (Latency.tpot, Counted.tpot_buckets)):
            values = late[name][of_steady]
            values = values[np.isfinite(values)]
            if len(values) < 2:
                continue
            figures[f"{name}_s"] = float(values.mean())
            alone = _independent(values, traffic.requests_per_s * traffic.seconds)
            scatter[f"{name}_s"] = float(values.std(ddof=1) / values.mean()) / math.sqrt(alone)
            sorted_in = in_buckets(values, self.bounds.get(kind, {}))
            for percentile in (50, 99):
                if read := quantile(sorted_in, percentile / 100):
                    figures[f"{name}_p{percentile}_s"] = read
                    scatter[f"{name}_p{percentile}_s"] = _quantile_scatter(sorted_in, percentile / 100, alone)
        if not figures:
            return None
        served, requests = made.served, made.trace
        stay_s = np.nan_to_num(served.finish_s - served.start_s)
        held = requests.input_tokens * (1 - traffic.hit_share) + requests.output_tokens / 2
        longest = float(np.mean(requests.input_tokens + requests.output_tokens))
        capacity = max_sequences(setup.deployment, max(1, round(longest))) * longest
        span_s = float(requests.arrival_s[-1]) or 1.0
        answering = float(np.nan_to_num(served.finish_s - served.first_token_s).sum()) / span_s
        halfway = float(np.mean(requests.input_tokens + requests.output_tokens / 2))
        figures["step_s"] = float(steps.decode(max(1.0, answering), halfway))
        if capacity > 0:
            figures["kv_share"] = min(1.0, float((stay_s * held).sum()) / span_s / capacity)
        return Expectation(figures, scatter)


def _independent(values: Floats, of_window: float) -> float:
    """Return how many independent values tell as much as a window's, and the simulation's, of their mean.

    Requests that wait in one queue wait alike: the means of ten batches, one after the other, scatter as much more.
    """
    means = [float(batch.mean()) for batch in np.array_split(values, min(_BATCHES, len(values) // 2))]
    alone = float(values.var(ddof=1)) / len(values)
    alike = float(np.var(means, ddof=1)) / len(means) / alone if len(means) > 1 and alone > 0 else 1.0
    together = 1 / (1 / max(1.0, of_window) + 1 / len(values))
    return max(1.0, together / max(1.0, alike))


def _quantile_scatter(sorted_in: Buckets, share: float, alone: float) -> float:
    """Return how far a quantile of so many values scatters, as a share: that of its rank, which is binomial."""
    away = math.sqrt(share * (1 - share) / alone)
    low, high = (quantile(sorted_in, min(1.0, max(0.0, share + side * away))) for side in (-1, 1))
    return math.log(high / low) / 2 if low and high else 1.0


def in_buckets(values: Floats, like: Buckets) -> dict[float, float]:
    """Return how many values fall into each bucket of a histogram with these bounds."""
    bounds = sorted(like)
    if not bounds:
        return {}
    places = np.searchsorted(bounds, values, side="left")
    counts = np.bincount(np.minimum(places, len(bounds) - 1), minlength=len(bounds))
    return {bound: float(count) for bound, count in zip(bounds, counts, strict=True)}


def is_telling(window: ServedWindow) -> bool:
    """Decide whether enough came for latencies to say something; by tokens where no requests are counted."""
    return (window.requests or window.tpot_count) >= FEWEST


def measured_figures(window: ServedWindow) -> dict[str, float]:
    """Return what the server was measured to do, by the names of ``expected``; only figures that are known."""
    found: dict[str, float] = {}
    sums = window.sums
    if traffic := traffic_of(window):
        found |= {
            "requests_per_s": traffic.requests_per_s,
            "tokens_per_s": traffic.tokens_per_s,
            "input_tokens": traffic.input_tokens,
            "output_tokens": traffic.output_tokens,
            "hit_share": traffic.hit_share,
        }
    elif window.watched_s > 0 and window.requests <= 0:  # an idle server, or one whose engine counts no requests
        found["tokens_per_s"] = max(0.0, sums.billed_tokens - sums.unseen_tokens) / window.watched_s
        if sums.billed_tokens <= 0:
            found["requests_per_s"] = 0.0
        elif sums.input_total > 0:
            found["hit_share"] = min(1.0, sums.input_cached / sums.input_total)
    if found and sums.usd_per_mtok:
        found["usd_per_mtok"] = sums.usd_per_mtok
    if is_telling(window):
        if sums.ttft_count > 0:
            found["ttft_s"] = sums.ttft_s / sums.ttft_count
        if window.tpot_count > 0:
            found["tpot_s"] = window.tpot_s / window.tpot_count
        if window.prompt_s > 0 and sums.input_computed > 0:
            found["prompt_token_s"] = window.prompt_s / sums.input_computed
        for name, kind in (("ttft", Counted.ttft_buckets), ("tpot", Counted.tpot_buckets)):
            for percentile in (50, 99):
                read = quantile(window.buckets.get(kind, {}), percentile / 100)
                if read:
                    found[f"{name}_p{percentile}_s"] = read
    if window.step_count >= FEWEST:
        found["step_s"] = window.step_s / window.step_count
    if window.gauged_s > 0:
        found["kv_share"] = window.kv_share_s / window.gauged_s
    return {name: value for name, value in found.items() if math.isfinite(value)}
