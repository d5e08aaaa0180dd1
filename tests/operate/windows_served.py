"""Windows of a server as its metrics page would show them, from requests whose times are known."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokonomics.measure.meter.readings import Counted
from tokonomics.measure.meter.spans import BEYOND
from tokonomics.measure.meter.state import MeterTally
from tokonomics.measure.meter.windows import WINDOW_S, Window
from tokonomics.operate.expect import WindowTraffic, profile_of, trace_like
from tokonomics.physics.calibration import using
from tokonomics.serving.outcome import request_latencies
from tokonomics.sizing.attempt import serve
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup

Floats = NDArray[np.float64]

SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0, BEYOND)  # fmt: skip
"""The bounds of vLLM 0.32 for the time to the first token."""
PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
             BEYOND)  # fmt: skip
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, BEYOND)


def histogram(values: Floats, bounds: tuple[float, ...]) -> dict[float, float]:
    """Count values by the first bound that is not below them."""
    counts = [0.0] * len(bounds)
    for value in values:
        counts[next(place for place, bound in enumerate(bounds) if value <= bound)] += 1
    return dict(zip(bounds, counts, strict=True))


@dataclass
class World:
    """A server that differs from its model by factors that nobody tells the twin."""

    setup: Setup
    factors: dict[str, float]

    def window(self, number: int, traffic: WindowTraffic, seed: int, **facts: object) -> Window:
        trace = trace_like(traffic, 32_768, seed=seed)
        with using(profile_of(self.setup, self.factors)):
            made, _ = serve(Setup(self.setup.deployment, load_of_requests(trace)), 1)
        late = request_latencies(made)
        ttft, tpot = late["ttft"], late["tpot"][np.isfinite(late["tpot"])]
        times = WINDOW_S * traffic.requests_per_s / len(trace)
        inputs, outputs = trace.input_tokens.astype(float), trace.output_tokens.astype(float)
        sums = MeterTally(
            seconds=WINDOW_S, busy_s=WINDOW_S, usd=0.5, busy_usd=0.5,
            input_total=float(inputs.sum()) * times, input_cached=float(made.served.cached_tokens.sum()) * times,
            output=float(outputs.sum()) * times, answered=len(trace) * times,
            ttft_s=float(ttft.sum()) * times, ttft_count=len(trace) * times,
        )  # fmt: skip
        buckets = {
            Counted.ttft_buckets: histogram(ttft, SECONDS),
            Counted.tpot_buckets: histogram(tpot, PER_TOKEN),
            Counted.input_buckets: histogram(inputs, TOKENS),
            Counted.output_buckets: histogram(outputs, TOKENS),
        }
        return Window(
            target="http://one:8000", model="m", engine="vllm", start=number * WINDOW_S, sums=sums,
            tpot_s=float(tpot.sum()) * times, tpot_count=len(tpot) * times, buckets=buckets, **facts,
        )  # fmt: skip
