"""What capacity costs while nobody uses it: the traffic of each window against what machines could have done in it.

Tokens, prompt and answer alike, count in the window in which their request arrives, and nothing waits for the next one.
So it is a first estimate, which needs only a throughput and a price; latency and queues are the simulator's.
"""

import math

import numpy as np

from tokonomics.errors import BadInput
from tokonomics.traffic.tally import Bins, fold
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

_HOURS_FROM_S, _MINUTES_FROM_S = 2 * 86400, 600
"""A trace of two days is looked at hour by hour, one of ten minutes minute by minute, a shorter one by the second."""


class Idle(Noun):
    """One machine, and as many as the fullest window needs."""

    tokens_per_second: float
    """Of one machine, as given."""
    usd_per_hour: float
    """Of one machine, as given."""
    window_s: int
    enough: float
    """Share of the windows in which one machine does."""
    idle: float
    """Share of one machine's capacity that is not used."""
    overflow: float
    """Share of the tokens that are beyond one machine."""
    idle_usd_per_day: float
    machines_for_peak: int
    idle_for_peak: float
    idle_for_peak_usd_per_day: float
    usd_per_mtok_for_peak: float


def idle_cost(bins: Bins, span_s: float, tokens_per_second: float, usd_per_hour: float) -> Idle:
    """Only windows that the trace fills count, so that its end does not look idle."""
    given = {"machine_tokens_per_second": tokens_per_second, "machine_usd_per_hour": usd_per_hour}
    for field, value in given.items():
        if not 1e-6 <= value <= 1e12:
            raise BadInput(f"must be between 0.000001 and a trillion, got {value:g}", field=field)
    if span_s < 1:
        raise BadInput("cannot price idle time: all requests arrive within a second", field="machine_tokens_per_second")
    wanted = SECONDS_PER_HOUR if span_s >= _HOURS_FROM_S else 60 if span_s >= _MINUTES_FROM_S else 1
    width = max(wanted, bins.width_s)
    sums = fold(bins.sums, width // bins.width_s)
    whole = max(math.floor(span_s / width), 1)
    tokens = (sums[1] + sums[2])[:whole].astype(np.float64)
    capacity = tokens_per_second * width
    served, total = float(np.minimum(tokens, capacity).sum()), float(tokens.sum())
    idle = 1 - served / (whole * capacity)
    machines = max(math.ceil(float(tokens.max()) / capacity - 1e-9), 1)
    idle_for_peak = max(1 - total / (machines * whole * capacity), 0.0)
    usd = machines * usd_per_hour * whole * width / SECONDS_PER_HOUR
    return Idle(
        tokens_per_second=tokens_per_second,
        usd_per_hour=usd_per_hour,
        window_s=width,
        enough=float(np.mean(tokens <= capacity)),
        idle=idle,
        overflow=1 - served / total,
        idle_usd_per_day=idle * usd_per_hour * 24,
        machines_for_peak=machines,
        idle_for_peak=idle_for_peak,
        idle_for_peak_usd_per_day=idle_for_peak * machines * usd_per_hour * 24,
        usd_per_mtok_for_peak=usd / total * TOKENS_PER_MTOK,
    )
