"""The requests of a trace by class of service: who belongs to which, and what is strictest of all.

Tenants are matched by name, the first class that names one takes it. Of the requests that no class names, each
class with a share gets that share at random, a whole conversation at a time where the trace says which belong
together, and one class may take what is left.
"""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.traffic.service_class import ServiceClass
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Counts, Trace
from tokonomics.units import plural

_NOBODY = -1


def classed(trace: Trace, classes: Sequence[ServiceClass], seed: int = 0) -> Trace:
    """The same requests, each in a class, whose priority is theirs; as it is where there are no classes."""
    if not classes:
        return trace
    service = _by_tenant(trace, classes)
    left = np.flatnonzero(service == _NOBODY)
    service[left] = _by_share(trace, left, classes, seed)
    unnamed = int(np.count_nonzero(service == _NOBODY))
    if unnamed:
        raise BadInput(
            f"{plural(unnamed, 'request')} of {len(service):,} belong to no class",
            field="classes",
            fix=f"Add a class without tenants= and share=, which takes the rest: {option('classes', 'others')}.",
        )
    priority = np.array([one.priority for one in classes], np.int32)[service]
    return replace(trace, service=service, classes=tuple(classes), priority=priority)


def without_classes(trace: Trace) -> Trace:
    """The same requests, all alike."""
    return replace(trace, service=None, classes=(), priority=None)


def strictest(classes: Sequence[ServiceClass]) -> tuple[Slo, ...]:
    """Of every latency and statistic the shortest time that a class is owed: what one SLO for all would have to be."""
    found: dict[str, Slo] = {}
    for slo in (slo for one in classes for slo in one.slos):
        found[str(slo)] = min(slo, found.get(str(slo), slo), key=lambda either: either.seconds)
    return tuple(found.values())


def by_class(trace: Trace) -> dict[int, NDArray[np.intp]]:
    """The places of each class's requests; of every class, in the order given."""
    assert trace.service is not None
    return {place: np.flatnonzero(trace.service == place) for place in range(len(trace.classes))}


def _by_tenant(trace: Trace, classes: Sequence[ServiceClass]) -> Counts:
    """The class of each request whose tenant some class names."""
    named = [one for one in classes if one.tenants]
    if trace.tenant is None or not named:
        if named:
            raise BadInput(
                f"{shorten(named[0].name)} is for tenants, and the requests have none",
                field="classes",
                fix=f"Name the log's column ({option('columns', 'tenant=customer')}), or give share= instead.",
            )
        return np.full(len(trace), _NOBODY, np.int32)
    of_tenant = np.full(len(trace.tenants), _NOBODY, np.int32)
    for place, one in enumerate(classes):
        for pattern in one.tenants:
            fits = [number for number, name in enumerate(trace.tenants) if fnmatchcase(name, pattern)]
            if not fits:
                raise BadInput(
                    f"no tenant is called '{shorten(pattern)}'",
                    field="classes",
                    fix=did_you_mean(pattern, trace.tenants, 1),
                )
            of_tenant[[number for number in fits if of_tenant[number] == _NOBODY]] = place
    return np.asarray(of_tenant[trace.tenant], np.int32)


def _by_share(trace: Trace, left: NDArray[np.intp], classes: Sequence[ServiceClass], seed: int) -> Counts:
    """A class for each of the requests that no tenant decides."""
    shares = np.array([one.share or 0.0 for one in classes])
    rest = next((place for place, one in enumerate(classes) if one.takes_the_rest), _NOBODY)
    # The fifth stream of the seed: made-up requests are drawn from the first four.
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(5)[4])
    together = np.arange(len(trace)) if trace.turns is None else trace.turns.session
    draws = rng.random(int(together.max(initial=-1)) + 1)[together][left]
    edges = np.cumsum(shares)
    place = np.searchsorted(edges, draws, side="right")
    full = edges[-1] >= 1 - 1e-9
    last = int(np.flatnonzero(shares)[-1]) if full else rest
    return np.where(place < len(classes), place, last).astype(np.int32)
