"""What each tenant's users see in a simulation, and whether a promise is kept for every one of them."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tokonomics.errors import shorten
from tokonomics.serving.outcome import judged, request_latencies, spread
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.traffic.promises import Promise
from tokonomics.traffic.tenants import by_tenant
from tokonomics.types import Noun
from tokonomics.units import seconds


class TenantLatency(Noun):
    """What one tenant's users see."""

    ttft_p99_s: float | None
    tpot_p99_s: float | None
    within: float | None
    """Share of its requests answered within every promised time; None without promises."""


def tenant_breaks(simulation: Simulation, promises: Sequence[Promise]) -> str | None:
    """The promise that a tenant is not kept, in words.

    Who sends too few requests to have that percentile (fewer than 100 for a p99) is judged with the others like it:
    the p99 of seven requests is the slowest of them.
    """
    latencies, served = request_latencies(simulation), simulation.served
    places = by_tenant(simulation.trace)
    for promise in promises:
        least = 1 if promise.statistic == "mean" else math.ceil(100 / (100 - float(promise.statistic[1:])))
        large = {simulation.trace.tenants[each]: at for each, at in places.items() if len(at) >= least}
        small = [at for at in places.values() if len(at) < least]
        if small:
            large["the smaller tenants"] = np.concatenate(small)
        for name, at in large.items():
            asked = at[served.status[at] != REFUSED]
            values = latencies[promise.latency][asked]
            done = served.status[asked] == DONE
            found = judged(promise, values[done], int(np.count_nonzero(~done)))
            if len(asked) and not found.kept:
                took = "never" if found.delivered_s is None else seconds(found.delivered_s)
                return f"{promise} of {shorten(name)} is {took}, {seconds(promise.seconds)} promised"
    return None


def latency_reader(simulation: Simulation, promises: Sequence[Promise]) -> Callable[[Sequence[int]], TenantLatency]:
    """What some tenants' users see, asked for one group of them after the other."""
    latencies, done = request_latencies(simulation), simulation.served.status == DONE
    places = by_tenant(simulation.trace)
    within = done.copy()
    for promise in promises:
        # An answer of one token has no time per token: it breaks no promise.
        within &= ~(latencies[promise.latency] > promise.seconds)

    def read(tenants: Sequence[int]) -> TenantLatency:
        at = np.concatenate([places[each] for each in tenants])
        answered = at[done[at]]
        return TenantLatency(
            ttft_p99_s=spread(latencies["ttft"][answered]).p99,
            tpot_p99_s=spread(latencies["tpot"][answered]).p99,
            within=float(within[at].mean()) if promises else None,
        )

    return read
