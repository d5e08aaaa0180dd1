"""Handle tenants and classes of a trace: select or join their requests, move their peaks, or make one busier.

Moving is a rotation: what leaves the end of the trace comes back at its beginning, so that every tenant keeps its
requests, its gaps and its rhythm, and only the hour of its peak changes. A tenant's peak is where its first harmonic
over the length of the trace is highest: the direction of the mean of its arrivals on a clock face (circular mean).

A class of service has tenants by name; the first class that names one takes it. Of the requests that no class names,
each class with a share gets that share at random, a whole conversation at a time where the trace says which belong
together, and one class may take what is left.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.traffic.slo import ServiceClass, Slo
from tokonomics.traffic.trace import Counts, Floats, PrefixBlocks, Trace
from tokonomics.units import plural

_BINS = 24  # in which loads are correlated: the hours of a day's trace
_A_PEAK = 0.1  # the first harmonic of a day whose rate is 1 + 0.2 cos
_NO_CHANCE = 30.0
"""Requests × harmonic²: steady arrivals exceed it by chance with probability exp(-30 ÷ cv²) (Rayleigh), one in 2,000
for a coefficient of variation of 2."""
ALIGNED, SPREAD = "together", "spread"  # where the peaks of the tenants are put


def tenant_numbers(trace: Trace) -> Counts:
    """Return the tenant of each request; refuse a trace that does not say."""
    if trace.tenant is None or not trace.tenants:
        raise BadInput(
            "does not say which request is whose",
            where=trace.source,
            fix=f"Name the column ({option('columns', 'tenant=customer')}), "
            f"give {option('trace')} once for each tenant, "
            f"or make requests up with {option('arrivals', '…')} {option('tenants', 10)}.",
        )
    return trace.tenant


def only(trace: Trace, tenants: Sequence[int]) -> Trace:
    """Return the requests of some tenants, at the times at which they arrive among the others."""
    return trace.take(np.flatnonzero(np.isin(tenant_numbers(trace), np.asarray(tenants))))


def present(trace: Trace) -> tuple[int, ...]:
    """Return the tenants that send anything, in the order of the trace's names."""
    return tuple(np.unique(tenant_numbers(trace)).tolist())


def joined(traces: Sequence[Trace], names: Sequence[str]) -> Trace:
    """Join several traces into one, each as its own tenant; all begin together and share no prompts."""
    return _in_order(
        Trace(
            arrival_s=np.concatenate([trace.arrival_s for trace in traces]),
            input_tokens=np.concatenate([trace.input_tokens for trace in traces]),
            output_tokens=np.concatenate([trace.output_tokens for trace in traces]),
            tenant=np.repeat(np.arange(len(traces), dtype=np.int32), [len(trace) for trace in traces]),
            tenants=tuple(names),
            prefix=_joined_blocks(traces),
            source=", ".join(names),
        )
    )


def _joined_blocks(traces: Sequence[Trace]) -> PrefixBlocks | None:
    """Join the blocks, only if all logs say what prompts share, in blocks of one size."""
    known = [trace.prefix for trace in traces if trace.prefix is not None]
    if len(known) < len(traces) or len({prefix.block_tokens for prefix in known}) != 1:
        return None
    before = np.cumsum([0, *(prefix.distinct for prefix in known)])
    lengths = np.concatenate([np.diff(prefix.starts) for prefix in known])
    return PrefixBlocks(
        ids=np.concatenate([prefix.ids + first for prefix, first in zip(known, before, strict=False)]).astype(np.int32),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        block_tokens=known[0].block_tokens,
        distinct=int(before[-1]),
    )


def peak_phase(arrival_s: Floats, span_s: float) -> float:
    """Return where the peak lies, as a share of the span from 0 to 1."""
    return float(np.angle(_first_harmonic(arrival_s, span_s)) / (2 * math.pi)) % 1.0


def have_peaks(trace: Trace) -> bool:
    """Return whether at least two tenants have a first harmonic beyond what steady traffic shows by chance."""
    span_s, clear = _span_s(trace), 0
    for own in by_tenant(trace).values():
        length = abs(_first_harmonic(trace.arrival_s[own], span_s))
        clear += length >= _A_PEAK and len(own) * length**2 >= _NO_CHANCE
    return clear >= 2


def _first_harmonic(arrival_s: Floats, span_s: float) -> complex:
    return complex(np.exp(2j * math.pi * arrival_s / span_s).mean())


def with_peaks(trace: Trace, where: str) -> Trace:
    """Rotate each tenant's requests in time so that all peaks coincide, or lie evenly over the trace."""
    tenant, span_s = tenant_numbers(trace), _span_s(trace)
    arrival = trace.arrival_s.copy()
    # The busiest two are put opposite each other, then the next two between them: large tenants are spread first.
    sent = np.bincount(tenant)
    for place, number in enumerate(sorted(present(trace), key=lambda number: (-int(sent[number]), number))):
        own = tenant == number
        wanted = 0.5 if where == ALIGNED else (0.5 + _van_der_corput(place)) % 1.0
        shift = (wanted - peak_phase(arrival[own], span_s)) * span_s
        arrival[own] = (arrival[own] + shift) % span_s
    return _in_order(replace(trace, arrival_s=arrival))


def _van_der_corput(place: int) -> float:
    """Return 0, 1/2, 1/4, 3/4, 1/8 …: however many are taken, they lie almost evenly on a circle."""
    return sum(0.5 ** (bit + 1) for bit in range(place.bit_length()) if place >> bit & 1)


def load_by_time(trace: Trace, weights: Floats) -> Floats:
    """Return the sum of the weights of requests, by tenant and 24th of the trace."""
    bins = np.minimum((trace.arrival_s / _span_s(trace) * _BINS).astype(np.int64), _BINS - 1)
    loads = np.zeros((len(trace.tenants), _BINS))
    np.add.at(loads, (tenant_numbers(trace), bins), weights)
    return loads


def correlation(trace: Trace) -> float | None:
    """Return the mean pairwise correlation of the tenants' tokens in 24 bins; None if fewer than two vary."""
    loads = load_by_time(trace, trace.input_tokens.astype(np.float64) + trace.output_tokens)
    loads = loads[loads.std(axis=1) > 0]
    if len(loads) < 2:
        return None
    return float(np.corrcoef(loads)[np.triu_indices(len(loads), 1)].mean())


def busier(trace: Trace, tenant: int, times: int = 2, seed: int = 0) -> Trace:
    """Return the trace with one tenant sending ``times`` as much: each copy arrives a random time after its original.

    That time is exponential with the tenant's mean gap, so that its day keeps its shape. Copies share prompts with each
    other but not with the originals: they come from other users.
    """
    own = np.flatnonzero(tenant_numbers(trace) == tenant)
    span_s = _span_s(trace)
    rounds = np.repeat(np.arange(times), [len(trace)] + [len(own)] * (times - 1))
    more = trace.take(np.concatenate([np.arange(len(trace)), *([own] * (times - 1))]))
    later = np.random.default_rng(seed).exponential(span_s / len(own), len(own) * (times - 1))
    arrival = more.arrival_s.copy()
    arrival[len(trace) :] = (arrival[len(trace) :] + later) % span_s
    prefix = None if more.prefix is None else more.prefix.apart(rounds)
    return _in_order(replace(more, arrival_s=arrival, prefix=prefix))


def served_last(trace: Trace, tenant: int) -> Trace:
    """Return the same requests with one tenant served after all others; earlier priorities are dropped."""
    return replace(trace, priority=(tenant_numbers(trace) == tenant).astype(np.int32))


def by_tenant(trace: Trace) -> dict[int, NDArray[np.intp]]:
    """Return the places of each tenant's requests."""
    tenant = tenant_numbers(trace)
    order = np.argsort(tenant, kind="stable")
    numbers, starts = np.unique(tenant[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


def _span_s(trace: Trace) -> float:
    """Return the length of the trace plus one mean gap after the last arrival, so that a rotation closes."""
    last = float(trace.arrival_s[-1]) if len(trace) else 0.0
    return last * (1 + 1 / max(1, len(trace) - 1)) or 1.0


def _in_order(trace: Trace) -> Trace:
    ordered = trace.take(np.argsort(trace.arrival_s, kind="stable"))
    return replace(ordered, arrival_s=ordered.arrival_s - ordered.arrival_s[0])


_NOBODY = -1


def classed(trace: Trace, classes: Sequence[ServiceClass], seed: int = 0) -> Trace:
    """Return the same requests, each with a class and its priority; unchanged if there are no classes."""
    if not classes:
        return trace
    service = _class_by_tenant(trace, classes)
    left = np.flatnonzero(service == _NOBODY)
    service[left] = _class_by_share(trace, left, classes, seed)
    if unnamed := int(np.count_nonzero(service == _NOBODY)):
        raise BadInput(
            f"{plural(unnamed, 'request')} of {len(service):,} belong to no class",
            field="classes",
            fix=f"Add a class without tenants= and share=, which takes the rest: {option('classes', 'others')}.",
        )
    priority = np.array([one.priority for one in classes], np.int32)[service]
    return replace(trace, service=service, classes=tuple(classes), priority=priority)


def without_classes(trace: Trace) -> Trace:
    """Return the same requests without classes."""
    return replace(trace, service=None, classes=(), priority=None)


def strictest(classes: Sequence[ServiceClass]) -> tuple[Slo, ...]:
    """Return the shortest target of any class for each latency and statistic: SLOs that would satisfy all classes."""
    found: dict[str, Slo] = {}
    for slo in (slo for one in classes for slo in one.slos):
        found[str(slo)] = min(slo, found.get(str(slo), slo), key=lambda either: either.seconds)
    return tuple(found.values())


def most_shed(one: ServiceClass) -> float:
    """Return the largest share of a class that may be turned away while its targets are met."""
    if one.max_wait_s is None and one.max_queue is None:
        return 0.0
    percentiles = [float(slo.statistic[1:]) for slo in one.slos if slo.statistic != "mean"]
    return one.shed if one.shed is not None else 1 - min(percentiles, default=99.0) / 100


def hurried(trace: Trace, times: float) -> Trace:
    """Return the same requests with their patience and the targets of classes divided by ``times``."""

    def sooner(one: ServiceClass) -> ServiceClass:
        slos = tuple(slo.model_copy(update={"seconds": slo.seconds / times}) for slo in one.slos)
        wait_s = None if one.max_wait_s is None else one.max_wait_s / times
        return one.model_copy(update={"slos": slos, "max_wait_s": wait_s})

    patience_s = None if trace.patience_s is None else trace.patience_s / times
    return replace(trace, patience_s=patience_s, classes=tuple(map(sooner, trace.classes)))


def by_class(trace: Trace) -> dict[int, NDArray[np.intp]]:
    """Return the places of each class's requests, for every class, in the order given."""
    assert trace.service is not None
    return {place: np.flatnonzero(trace.service == place) for place in range(len(trace.classes))}


def _class_by_tenant(trace: Trace, classes: Sequence[ServiceClass]) -> Counts:
    """Return the class of each request whose tenant is named by a class."""
    named = [one for one in classes if one.tenants]
    if not named:
        return np.full(len(trace), _NOBODY, np.int32)
    if trace.tenant is None:
        raise BadInput(
            f"{shorten(named[0].name)} is for tenants, and the requests have none",
            field="classes",
            fix=f"Name the log's column ({option('columns', 'tenant=customer')}), or give share= instead.",
        )
    of_tenant = np.full(len(trace.tenants), _NOBODY, np.int32)
    for place, one in enumerate(classes):
        for pattern in one.tenants:
            fits = [number for number, name in enumerate(trace.tenants) if fnmatchcase(name, pattern)]
            if not fits:
                fix = did_you_mean(pattern, trace.tenants, 1)
                raise BadInput(f"no tenant is called '{shorten(pattern)}'", field="classes", fix=fix)
            of_tenant[[number for number in fits if of_tenant[number] == _NOBODY]] = place
    return np.asarray(of_tenant[trace.tenant], np.int32)


def _class_by_share(trace: Trace, left: NDArray[np.intp], classes: Sequence[ServiceClass], seed: int) -> Counts:
    """Draw a class for each of the requests that no tenant decides."""
    shares = np.array([one.share or 0.0 for one in classes])
    rest = next((place for place, one in enumerate(classes) if one.takes_the_rest), _NOBODY)
    # The fifth stream of the seed: generated requests are drawn from the first four.
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(5)[4])
    together = np.arange(len(trace)) if trace.turns is None else trace.turns.session
    draws = rng.random(int(together.max(initial=-1)) + 1)[together][left]
    edges = np.cumsum(shares)
    place = np.searchsorted(edges, draws, side="right")
    full = edges[-1] >= 1 - 1e-9
    last = int(np.flatnonzero(shares)[-1]) if full else rest
    return np.where(place < len(classes), place, last).astype(np.int32)
