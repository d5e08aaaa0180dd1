"""Compute what sharing one fleet among tenants saves: replicas by simulation, for each alone and for all together.

Alone, each tenant's own arrivals are served on as few replicas as meet the SLOs; together, all requests on as few as
meet them *for every tenant*, so that no tenant gets a worse service. The gain is how much more the separate fleets cost
than the common one. How much of it depends on the times of the tenants' peaks is shown by moving them: the same
requests with all peaks together, and with the peaks spread evenly (``traffic.tenants``).

The module also shows what one tenant does to the others: the tenant that takes most of the GPUs' time sends twice as
much while the fleet stays as it was sized; then the same with that tenant's requests served last (priorities, as vLLM's
--scheduling-policy priority: a request in the batch is not thrown out for an urgent one unless memory runs short). What
meets the SLOs again is searched: a larger common fleet, or the tenant on its own replicas.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, computed_field

from tokonomics.errors import BadInput, option, shorten
from tokonomics.money.attribution import at_peak, gpu_seconds, shapley, unused_shares
from tokonomics.money.cost import BeforeAfter, replica_hour
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.class_outcome import TenantLatency, latency_reader
from tokonomics.serving.counted import counted
from tokonomics.serving.fleet_settings import Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import Simulation
from tokonomics.sizing.attempt import Attempts, Sized, simulated
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.search import NeverHolds, size
from tokonomics.sizing.setup import Handling, Say, Setup, silent
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.tenants import (
    ALIGNED,
    SPREAD,
    busier,
    by_tenant,
    correlation,
    have_peaks,
    only,
    present,
    served_last,
    with_peaks,
)
from tokonomics.traffic.trace import Floats, Trace
from tokonomics.traffic.workload import lengths_text
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK, seconds

PEAKS = (("if all peaks fell together", ALIGNED), ("if peaks were spread evenly", SPREAD))
SHAPLEY_TENANTS = 4  # most tenants to check against the Shapley value: 15 groups, each with its own search
_MOST_TENANTS = 2_000  # each takes a search of its own: about a minute for 2,000 small ones


class TenantRow(Noun):
    """One tenant, alone and in the shared fleet."""

    tenant: str
    requests: NonNegativeInt
    tokens: NonNegativeInt  # prompts and answers
    input_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt = 0  # of those, found in the shared fleet's cache
    output_tokens: NonNegativeInt
    alone_replicas: PositiveInt
    alone_busy_share: NonNegativeFloat
    alone: TenantLatency
    shared: TenantLatency
    usage_replicas: NonNegativeFloat  # full replicas that its requests would keep busy in full batches
    usage_usd_per_hour: NonNegativeFloat  # with ``unused_usd_per_hour`` the sum over tenants is the bill
    unused_usd_per_hour: float
    alone_usd_per_hour: NonNegativeFloat
    shapley_usd_per_hour: float | None  # the check, for few tenants
    usd_per_mtok: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pays_usd_per_hour(self) -> float:
        return self.usage_usd_per_hour + self.unused_usd_per_hour


class FleetRow(Noun):
    """One way of serving all tenants."""

    name: str
    replicas: PositiveInt
    usd_per_hour: NonNegativeFloat
    busy_share: NonNegativeFloat  # share of the paid time with at least one request running
    load_share: float | None
    """Requests finished ÷ those that full batches would finish; shown as utilisation."""
    correlation: float | None  # of the tenants' tokens over time, mean over pairs


class Pooling(Noun):
    """The tenants on separate fleets and together."""

    deployment: str
    source: str
    requests: NonNegativeInt
    duration_s: NonNegativeFloat
    slos: tuple[str, ...] = Field(alias="promises")
    tenants: tuple[TenantRow, ...]  # the largest bill first
    apart: FleetRow
    together: FleetRow
    what_if: tuple[FleetRow, ...]  # the same tenants with their peaks moved, or with an SLO for all together only
    one_fewer: str | None  # what breaks on one replica fewer than all need together; None if fewer were not tried
    sized: Any = Field(default=None, exclude=True)
    """The shared fleet as it was sized, for callers that serve other traffic on it."""
    batch: NonNegativeFloat  # mean sequences in a step of the shared fleet
    prompt_share: NonNegativeFloat  # prompts' share of the GPU time that requests take in full batches
    bill: BeforeAfter  # an hour
    shared_by_usage_usd_per_hour: tuple[float, ...]  # the bills if idle time were charged by usage, for comparison

    @property
    def gain(self) -> float:
        return self.bill.before.usd / self.bill.after.usd


class Together(NamedTuple):
    """All tenants on one fleet."""

    sized: Sized  # the fewest replicas that meet the SLOs for every tenant
    made: Simulation
    over_all: Sized  # the fewest if the SLOs were met only over all requests
    one_fewer: str | None


@dataclass(frozen=True)
class Sharing:
    """The deployments, traffic and SLOs that tenants share."""

    shared: Deployment  # serves all: the base model with an adapter for each tenant, if they have any
    own: Deployment  # serves one tenant alone: its adapter is merged into the weights
    trace: Trace
    slos: tuple[Slo, ...]
    usd_per_replica_hour: Callable[[int], float]  # of one replica, by the number of them
    router: Router | None = None  # None: whichever needs the fewest replicas
    by_priority: bool = False
    seed: int = 0
    headroom: float = 0.0  # share by which the traffic may grow with every SLO met
    attempts: Attempts = field(default_factory=Attempts)

    def setup(self, trace: Trace, deployment: Deployment | None = None) -> Setup:
        """Return the setup for these requests on the shared deployment, or on another one."""
        handling = Handling(by_priority=self.by_priority, seed=self.seed)
        load = load_of_requests(trace, self.headroom)
        return Setup(deployment or self.shared, load, slos=self.slos, router=self.router, handling=handling)

    def serve(self, trace: Trace, sized: Sized, by_priority: bool | None = None) -> Simulation:
        """Simulate requests on the shared fleet as it was sized."""
        setup = self.setup(trace)
        if by_priority is not None:
            setup = replace(setup, handling=replace(setup.handling, by_priority=by_priority))
        return simulated(setup, sized)

    def alone(self, tenant: int, trace: Trace | None = None) -> tuple[int, Simulation]:
        """Return the fewest replicas that meet the SLOs for one tenant, and the simulation on them."""
        setup = self.setup(only(self.trace if trace is None else trace, [tenant]), self.own)
        found = self._sized(setup, f"{shorten(self.trace.tenants[tenant])} cannot be served even alone: ")
        return found.replicas, simulated(setup, found)

    def together(self, trace: Trace) -> Together:
        """Return the fewest replicas that meet the SLOs for every tenant, and the simulation on them."""
        for_all = self.setup(trace)
        for_each = replace(for_all, each_tenant=True)
        of_each, over_all = (self._sized(setup, f"{setup.deployment}: ") for setup in (for_each, for_all))
        fewer = self.attempts.on(for_each, of_each.replicas - 1).breaks if of_each.replicas > 1 else None
        return Together(of_each, simulated(for_all, of_each), over_all, fewer)

    def _sized(self, setup: Setup, whose: str) -> Sized:
        found = size(setup, self.attempts)
        if isinstance(found, NotServed):
            raise NeverHolds(found, whose)
        return found


_Alone = dict[int, tuple[int, Simulation]]  # by tenant: the replicas that it needs alone, and the simulation on them


def pool(sharing: Sharing, say: Say = silent) -> Pooling:
    """Compare every tenant alone, all together, and together with their peaks moved."""
    trace = sharing.trace
    senders = present(trace)
    if len(senders) < 2:
        whose = f"all {len(trace):,} requests are" if len(trace) > 1 else "the one request is"
        what = f"{whose} of one tenant, who has nobody to share with"
        column, each = option("columns", "tenant=customer"), option("trace")
        fix = f"Take more of the log, name another column ({column}), or give {each} once for each."
        raise BadInput(what, where=trace.source, fix=fix)
    if len(senders) > _MOST_TENANTS:
        raise BadInput(f"has {len(senders):,} tenants; at most {_MOST_TENANTS:,} are compared", where=trace.source)
    own: _Alone = {}
    for tenant in senders:
        say(f"the replicas {shorten(trace.tenants[tenant])} needs alone")
        own[tenant] = sharing.alone(tenant)
    say("the replicas all need together")
    sized, made, over_all, one_fewer = sharing.together(trace)
    replicas = sized.replicas
    apart, together = _apart(sharing, own), _row(sharing, "one fleet for all", replicas, made)
    what_if = []
    if over_all.replicas < replicas:
        looser = sharing.serve(trace, over_all)
        what_if.append(_row(sharing, "if the SLO is for all together only", over_all.replicas, looser))
    for name, where in PEAKS if have_peaks(trace) else ():
        say(f"the replicas needed {name}")
        moved = sharing.together(with_peaks(trace, where))
        what_if.append(_row(sharing, name, moved.sized.replicas, moved.made))
    # The SLOs of every tenant, or of each class.
    owed = [("", slo) for slo in sharing.slos]
    owed += [(f"{one.name} ", slo) for one in trace.classes for slo in one.slos]
    before, after = (replica_hour(row.name, row.replicas, row.usd_per_hour / row.replicas) for row in (apart, together))
    prompts_s, answers_s = gpu_seconds(made)
    rows, by_usage = _tenant_rows(sharing, own, apart, together, made, prompts_s + answers_s, say)
    return Pooling(
        deployment=str(sharing.shared),
        source=f"{trace.source}, {lengths_text(trace)}",
        requests=len(trace),
        duration_s=trace.duration_s,
        slos=tuple(f"{whose}{slo} ≤ {seconds(slo.seconds)}" for whose, slo in owed),
        tenants=rows,
        apart=apart,
        together=together,
        what_if=tuple(what_if),
        one_fewer=one_fewer,
        sized=sized,
        batch=outcome(made).batch,
        prompt_share=float(prompts_s.sum() / max((prompts_s + answers_s).sum(), 1e-9)),
        bill=BeforeAfter(before=before, after=after),
        shared_by_usage_usd_per_hour=by_usage,
    )


def _tenant_rows(
    sharing: Sharing, own: _Alone, apart: FleetRow, together: FleetRow, made: Simulation, worked_s: Floats, say: Say
) -> tuple[tuple[TenantRow, ...], tuple[float, ...]]:
    trace, senders = sharing.trace, tuple(own)
    used_s = {tenant: float(worked_s[at].sum()) for tenant, at in by_tenant(trace).items()}
    paid_s = counted(made).paid_s
    bill = together.usd_per_hour
    alone = [apart.usd_per_hour * own[tenant][0] / apart.replicas for tenant in senders]
    # A batch limit that others need makes full batches smaller: what that adds beyond a tenant's own fleet is theirs.
    usage = [min(bill * used_s[tenant] / paid_s, most) for tenant, most in zip(senders, alone, strict=True)]
    unused = unused_shares(bill, usage, at_peak(trace, worked_s, senders), alone)
    check = _shapley(sharing, own, together, say)
    hours = trace.duration_s / SECONDS_PER_HOUR
    tokens = trace.input_tokens.astype(np.int64) + trace.output_tokens
    in_the_pool = latency_reader(made, sharing.slos)
    rows = []
    for place, tenant in enumerate(senders):
        needed, simulation = own[tenant]
        at = trace.tenant == tenant
        sent, paid = int(tokens[at].sum()), usage[place] + unused[place]
        rows.append(
            TenantRow(
                tenant=trace.tenants[tenant],
                requests=int(np.count_nonzero(at)),
                tokens=sent,
                input_tokens=int(trace.input_tokens[at].sum()),
                cached_tokens=int(made.served.cached_tokens[at].sum()),
                output_tokens=int(trace.output_tokens[at].sum()),
                alone_replicas=needed,
                alone_busy_share=outcome(simulation).busy_share,
                alone=latency_reader(simulation, sharing.slos)([tenant]),
                shared=in_the_pool([tenant]),
                usage_replicas=together.replicas * used_s[tenant] / paid_s,
                usage_usd_per_hour=usage[place],
                unused_usd_per_hour=unused[place],
                alone_usd_per_hour=alone[place],
                shapley_usd_per_hour=check[place] if check else None,
                usd_per_mtok=paid * hours / sent * TOKENS_PER_MTOK if sent and hours else None,
            )
        )
    order = sorted(range(len(rows)), key=lambda place: -rows[place].pays_usd_per_hour)
    by_usage = [bill * used / math.fsum(usage) for used in usage]
    return tuple(rows[place] for place in order), tuple(by_usage[place] for place in order)


def _shapley(sharing: Sharing, own: _Alone, together: FleetRow, say: Say) -> tuple[float, ...] | None:
    """Return what each tenant adds on average; a group's simulated replicas are charged at the pool's price."""
    senders = tuple(own)
    if len(senders) > SHAPLEY_TENANTS:
        return None
    per_replica = together.usd_per_hour / together.replicas

    def cost_of(group: frozenset[int]) -> float:
        if len(group) == 1:
            return own[senders[min(group)]][0] * per_replica
        if len(group) == len(senders):
            return together.usd_per_hour
        names = sorted(senders[place] for place in group)
        say(f"the replicas {', '.join(shorten(sharing.trace.tenants[name]) for name in names)} need")
        return sharing.together(only(sharing.trace, names)).sized.replicas * per_replica

    return shapley(len(senders), cost_of)


def _apart(sharing: Sharing, own: _Alone) -> FleetRow:
    """Return the fleets of all tenants as one row: paid for as long as the tenant whose requests last longest."""
    served = [(outcome(made), counted(made)) for _, made in own.values()]
    replicas, rated_s = sum(needed for needed, _ in own.values()), max(when.rated_s for _, when in served)
    loads = [one.load_share * when.paid_s for one, when in served if one.load_share is not None]
    return FleetRow(
        name="each its own fleet",
        replicas=replicas,
        usd_per_hour=replicas * sharing.usd_per_replica_hour(replicas),
        busy_share=math.fsum(one.busy_share * when.paid_s for one, when in served) / (replicas * rated_s),
        load_share=math.fsum(loads) / (replicas * rated_s) if len(loads) == len(served) else None,
        correlation=None,
    )


def _row(sharing: Sharing, name: str, replicas: int, made: Simulation) -> FleetRow:
    result = outcome(made, sharing.slos)
    return FleetRow(
        name=name,
        replicas=replicas,
        usd_per_hour=replicas * sharing.usd_per_replica_hour(replicas),
        busy_share=result.busy_share,
        load_share=result.load_share,
        correlation=correlation(made.trace),
    )


# --- a noisy neighbour ---------------------------------------------------------------------------------------------


class NoisyRow(Noun):
    """One case on one fleet."""

    name: str
    replicas: PositiveInt
    noisy: TenantLatency
    others: TenantLatency  # all their requests
    worst: str  # the other tenant with the slowest first tokens at the p99
    worst_ttft_p99_s: float | None


class NoisyNeighbour(Noun):
    """The effects of the loudest tenant sending twice as much."""

    tenant: str
    times: PositiveInt
    rows: tuple[NoisyRow, ...]
    needs: PositiveInt  # replicas that meet every tenant's SLO then, all together
    apart_needs: PositiveInt  # the same with the tenant on replicas of its own, and the others on theirs
    requests: NonNegativeInt  # including those it sends in addition


def noisy_neighbour(sharing: Sharing, pooling: Pooling, times: int = 2, say: Say = silent) -> NoisyNeighbour:
    """Simulate a noisy tenant on the fleet that the pool needs when everyone is quiet."""
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
