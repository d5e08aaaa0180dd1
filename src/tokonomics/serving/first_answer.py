"""When the answer of a reasoning model begins, and what its tokens cost: the thinking before it is output as well."""

import numpy as np
from pydantic import NonNegativeFloat

from tokonomics.serving.outcome import request_latencies
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.spread import Spread, spread
from tokonomics.serving.state import DONE
from tokonomics.traffic.slo import Latency
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import Thinking
from tokonomics.types import Noun


class FirstAnswer(Noun):
    """The output of a reasoning model, split into thinking and answer."""

    share: NonNegativeFloat
    """Of all output tokens that are thinking."""
    thinking_tokens: NonNegativeFloat
    """Of a request, in the mean."""
    assumed: bool
    """The share is that of published traces, not one that was given."""
    first_answer_s: Spread
    """From a request's arrival to the first token behind its thinking; only the mean where it was not simulated."""
    usd_per_mtok_answer: NonNegativeFloat | None
    """What a million answer tokens cost where thinking is charged to them; None without a price or an answer."""


def simulated(simulation: Simulation, thinking: Thinking, usd_per_mtok_output: float | None) -> FirstAnswer:
    """Of the requests that were served: the first token, and a step for each of thinking."""
    latencies, done = request_latencies(simulation), (simulation.served.status == DONE) & simulation.counts
    before = thinking.thinking_tokens(simulation.trace.output_tokens)
    later = np.where(before > 0, before * np.nan_to_num(latencies[Latency.tpot]), 0.0)
    return _first_answer(
        simulation.trace, thinking, spread((latencies[Latency.ttft] + later)[done]), usd_per_mtok_output
    )


def in_the_mean(
    trace: Trace, thinking: Thinking, ttft_s: float | None, tpot_s: float | None, usd_per_mtok_output: float | None
) -> FirstAnswer:
    """By the means of a first token and of those after it."""
    before = float(thinking.thinking_tokens(trace.output_tokens).mean())
    mean = None if ttft_s is None or tpot_s is None else ttft_s + before * tpot_s
    found = Spread(p50=None, p90=None, p95=None, p99=None, mean=mean)
    return _first_answer(trace, thinking, found, usd_per_mtok_output)


def _first_answer(trace: Trace, thinking: Thinking, times: Spread, usd_per_mtok_output: float | None) -> FirstAnswer:
    before, outputs = thinking.thinking_tokens(trace.output_tokens), trace.output_tokens
    share = float(before.sum() / max(1, int(outputs.sum(dtype=np.int64))))
    priced = usd_per_mtok_output is not None and share < 1
    return FirstAnswer(
        share=share,
        thinking_tokens=float(before.mean()),
        assumed=thinking.assumed,
        first_answer_s=times,
        usd_per_mtok_answer=usd_per_mtok_output / (1 - share) if priced and usd_per_mtok_output is not None else None,
    )
