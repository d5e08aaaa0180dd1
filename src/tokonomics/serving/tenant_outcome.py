"""What each tenant's users see in a simulation, and whether an SLO is met for every one of them."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tokonomics.errors import shorten
from tokonomics.serving.class_outcome import within_own_slos
from tokonomics.serving.outcome import judged, request_latencies
from tokonomics.serving.simulator import Simulation
from tokonomics.serving.spread import spread
from tokonomics.serving.state import DONE, REFUSED, SHED
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.tenants import by_tenant
from tokonomics.traffic.trace import Trace
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
    for slo, whose in _owed(simulation.trace, slos, places):
        least = 1 if slo.statistic == "mean" else math.ceil(100 / (100 - float(slo.statistic[1:])))
        large = {simulation.trace.tenants[tenant]: places[tenant] for tenant in whose if len(places[tenant]) >= least}
        if small := [places[tenant] for tenant in whose if len(places[tenant]) < least]:
            large["the smaller tenants"] = np.concatenate(small)
        for name, at in large.items():
            asked = at[~np.isin(served.status[at], (REFUSED, SHED))]  # what is shed is for its class to judge
            values = latencies[slo.latency][asked]
            done = served.status[asked] == DONE
            found = judged(slo, values[done], int(np.count_nonzero(~done)))
            if len(asked) and not found.met:
                took = "never" if found.delivered_s is None else seconds(found.delivered_s)
                return f"{slo} of {shorten(name)} is {took}; the SLO is {seconds(slo.seconds)}"
    return None


def _owed(trace: Trace, slos: Sequence[Slo], tenants: Iterable[int]) -> Iterator[tuple[Slo, list[int]]]:
    """Each SLO with the tenants who are owed it: all, or those of the class that has it.

    A class that shares a tenant with others, by share=, is judged as a class alone.
    """
    if trace.service is None or trace.tenant is None:
        yield from ((slo, list(tenants)) for slo in slos)
        return
    mine = {tenant: np.unique(trace.service[trace.tenant == tenant]).tolist() for tenant in tenants}
    for place, one in enumerate(trace.classes):
        yield from ((slo, [tenant for tenant, classes in mine.items() if classes == [place]]) for slo in one.slos)


def latency_reader(simulation: Simulation, slos: Sequence[Slo]) -> Callable[[Sequence[int]], TenantLatency]:
    """What some tenants' users see, asked for one group of them after the other."""
    latencies, done = request_latencies(simulation), simulation.served.status == DONE
    places = by_tenant(simulation.trace)
    within = within_own_slos(simulation, slos)
    has_slos = bool(slos) or any(one.slos for one in simulation.trace.classes)

    def read(tenants: Sequence[int]) -> TenantLatency:
        at = np.concatenate([places[tenant] for tenant in tenants])
        answered = at[done[at]]
        return TenantLatency(
            ttft_p99_s=spread(latencies["ttft"][answered]).p99,
            tpot_p99_s=spread(latencies["tpot"][answered]).p99,
            within=float(within[at].mean()) if has_slos else None,
        )

    return read
