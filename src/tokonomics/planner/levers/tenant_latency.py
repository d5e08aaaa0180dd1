"""What each tenant's users see in a simulation, and whether an SLO is met for every one of them."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from tokonomics.errors import shorten
from tokonomics.serving.outcome import judged, request_latencies, within_slos
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.spread import spread
from tokonomics.serving.state import DONE, REFUSED
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.tenants import by_tenant
from tokonomics.types import Noun
from tokonomics.units import seconds


class TenantLatency(Noun):
    """What one tenant's users see."""

    ttft_p99_s: float | None
    tpot_p99_s: float | None
    within: float | None
    """Share of its requests answered within every SLO; None without SLOs."""


def tenant_breaks(simulation: Simulation, slos: Sequence[Slo]) -> str | None:
    """The SLO missed for a tenant, in words.

    Who sends too few requests to have that percentile (fewer than 100 for a p99) is judged with the others like it:
    the p99 of seven requests is the slowest of them.
    """
    latencies, served = request_latencies(simulation), simulation.served
    places = by_tenant(simulation.trace)
    for slo in slos:
        least = 1 if slo.statistic == "mean" else math.ceil(100 / (100 - float(slo.statistic[1:])))
        large = {simulation.trace.tenants[tenant]: at for tenant, at in places.items() if len(at) >= least}
        if small := [at for at in places.values() if len(at) < least]:
            large["the smaller tenants"] = np.concatenate(small)
        for name, at in large.items():
            asked = at[served.status[at] != REFUSED]
            values = latencies[slo.latency][asked]
            done = served.status[asked] == DONE
            found = judged(slo, values[done], int(np.count_nonzero(~done)))
            if len(asked) and not found.met:
                took = "never" if found.delivered_s is None else seconds(found.delivered_s)
                return f"{slo} of {shorten(name)} is {took}; the SLO is {seconds(slo.seconds)}"
    return None


def latency_reader(simulation: Simulation, slos: Sequence[Slo]) -> Callable[[Sequence[int]], TenantLatency]:
    """What some tenants' users see, asked for one group of them after the other."""
    latencies, done = request_latencies(simulation), simulation.served.status == DONE
    places = by_tenant(simulation.trace)
    within = within_slos(simulation.served.status, latencies, slos)

    def read(tenants: Sequence[int]) -> TenantLatency:
        at = np.concatenate([places[tenant] for tenant in tenants])
        answered = at[done[at]]
        return TenantLatency(
            ttft_p99_s=spread(latencies["ttft"][answered]).p99,
            tpot_p99_s=spread(latencies["tpot"][answered]).p99,
            within=float(within[at].mean()) if slos else None,
        )

    return read
