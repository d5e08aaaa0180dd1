"""What one tenant's traffic does to the others in a shared fleet, by simulation.

The tenant that takes most of the GPUs' time sends twice as much while the fleet stays as it was sized; then the same
with that tenant's requests served last (priorities, as vLLM's --scheduling-policy priority: a request in the batch is
not thrown out for an urgent one unless memory runs short). What meets the SLOs again is searched: a larger common
fleet, or the tenant on replicas of its own.
"""

from pydantic import NonNegativeInt, PositiveInt

from tokonomics.levers.tenancy import Pooling, Sharing
from tokonomics.serving.class_outcome import TenantLatency, latency_reader
from tokonomics.serving.simulator import Simulation
from tokonomics.sizing.setup import Say, silent
from tokonomics.traffic.tenants import busier, only, present, served_last
from tokonomics.types import Noun


class NoisyRow(Noun):
    """One case, on one fleet."""

    name: str
    replicas: PositiveInt
    noisy: TenantLatency
    others: TenantLatency
    """All their requests."""
    worst: str
    """The other tenant with the slowest first tokens at the p99."""
    worst_ttft_p99_s: float | None


class NoisyNeighbour(Noun):
    """The loudest tenant, twice as loud."""

    tenant: str
    times: PositiveInt
    rows: tuple[NoisyRow, ...]
    needs: PositiveInt
    """Replicas that meet every tenant's SLO then, all together."""
    apart_needs: PositiveInt
    """The same with the tenant on replicas of its own, and the others on theirs."""
    requests: NonNegativeInt
    """With those it sends more."""


def noisy_neighbour(sharing: Sharing, pooling: Pooling, times: int = 2, say: Say = silent) -> NoisyNeighbour:
    """Simulate it on the fleet that the pool needs when everyone is quiet."""
    trace, fleet = sharing.trace, pooling.sized
    loudest = max(pooling.tenants, key=lambda row: row.usage_usd_per_hour).tenant
    tenant = trace.tenants.index(loudest)
    others = [other for other in present(trace) if other != tenant]
    loud = busier(trace, tenant, times, sharing.seed)

    def row(name: str, made: Simulation) -> NoisyRow:
        read = latency_reader(made, sharing.slos)
        seen = {other: read([other]) for other in others}
        worst = max(seen, key=lambda other: seen[other].ttft_p99_s or 0.0)
        return NoisyRow(
            name=name,
            replicas=made.fleet.replicas,
            noisy=read([tenant]),
            others=read(others),
            worst=trace.tenants[worst],
            worst_ttft_p99_s=seen[worst].ttft_p99_s,
        )

    say(f"{loudest} sending {times} times as much")
    rows = [row("as it is", sharing.serve(trace, fleet))]
    rows.append(row(f"{times} times as much", sharing.serve(loud, fleet)))
    rows.append(row("  and served last", sharing.serve(served_last(loud, tenant), fleet, by_priority=True)))
    say(f"the replicas that takes, with {loudest} and without")
    needed = sharing.together(loud)
    rows.append(row("  on as many as it takes", needed.made))
    apart = sharing.together(only(trace, others)).sized.replicas if len(others) > 1 else sharing.alone(others[0])[0]
    return NoisyNeighbour(
        tenant=loudest,
        times=times,
        rows=tuple(rows),
        needs=needed.sized.replicas,
        apart_needs=apart + sharing.alone(tenant, loud)[0],
        requests=len(loud),
    )
