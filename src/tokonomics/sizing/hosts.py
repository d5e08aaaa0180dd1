"""Choose the machines that replicas run on: which offers can hold a deployment, how many it takes, what they cost.

Machines are bought whole: a replica takes some GPUs of one, or several machines of which it uses every GPU. Across
several machines it needs the network that its predicted speed assumes, and every host needs memory for the weights it
loads.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property, partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.offer_choice import (
    Market,
    loading_gib,
    market_offers,
    newest_quotes,
    no_offer,
    prices_that_count,
)
from tokonomics.catalog.offers import MAX_AGE_DAYS, Offer, Terms
from tokonomics.physics.deployment import NETWORKED, Deployment
from tokonomics.physics.memory import draft_bytes, shard
from tokonomics.serving.fleet_settings import network_of
from tokonomics.sizing.layouts import NotServed, Reason
from tokonomics.sizing.spare import NO_SPARE, ZONED, Spare, machines_for, machines_for_both, replicas_on
from tokonomics.types import today
from tokonomics.units import BYTES_PER_GB, GIB, HOURS_PER_MONTH, usd

_NEAR = 0.9  # of the network that predicted speeds assume
HOST_MEMORY = "host"  # asks for KV in the host memory that the bought machine has left
UNUSED = "unused GPUs"  # GPUs of a paid machine on which no replica runs


@dataclass(frozen=True)
class Machine:
    """An offer with the terms of one of its prices."""

    offer: Offer
    terms: Terms
    usd_per_hour: float

    @cached_property
    def shape(self) -> "Shape":
        """Return what decides which deployments can run on it."""
        offer = self.offer
        return Shape(offer.gpus, offer.memory_gb, offer.network_bytes_per_s or 0.0, offer.provider in ZONED)

    @property
    def commitment_years(self) -> int | None:
        """Return the longest quoted commitment of a reserved machine."""
        if self.terms is not Terms.reserved:
            return None
        return 3 if self.offer.reserved_3yr_usd_per_hour is not None else 1

    def usd_per_month(self, machines: float) -> float:
        """Return the monthly cost of this many machines."""
        return machines * self.usd_per_hour * HOURS_PER_MONTH


class PrefillPool(NamedTuple):
    """The replicas of a disaggregated candidate that only compute prompts."""

    deployment: Deployment
    replicas: int


def usable(
    offers: Sequence[Offer],
    terms: Sequence[Terms],
    today: date,
    max_usd_per_gpu_hour: float | None = None,
    max_age_days: int | None = None,
) -> tuple[Mapping[str, "Stock"], list[tuple[Offer, NotServed]]]:
    """Return, by GPU, the machines priced on these terms, cheap and recent enough; and why the others are not.

    Without a limit by the user, prices may be a year old. ``hosts_of`` decides which of them count: a machine that is
    too expensive still shows that an older price of its GPU is out of date.
    """
    oldest = MAX_AGE_DAYS if max_age_days is None else max_age_days
    kept: list[Machine] = []
    refused: list[tuple[Offer, NotServed]] = []
    recent = [offer for offer in offers if offer.age_days(today) <= oldest]
    newest = {term: newest_quotes(recent, term) for term in terms}
    for offer in offers:
        prices = [(term, price) for term in terms if (price := offer.price(term)) is not None]
        cheap = [(term, price) for term, price in prices if price / offer.gpus <= (max_usd_per_gpu_hour or math.inf)]
        if not prices:
            wanted = " or ".join(term.replace("_", "-") for term in terms)
            refused.append((offer, NotServed(Reason.no_price, f"no {wanted} price")))
        elif not cheap:
            limit = usd(max_usd_per_gpu_hour or 0.0)
            refused.append((offer, NotServed(Reason.too_expensive, f"more than {limit} a GPU-hour")))
        elif offer.age_days(today) > oldest:
            reason = f"price of {offer.date}, more than {oldest} days old"
            refused.append((offer, NotServed(Reason.old_price, reason)))
        else:
            kept += [Machine(offer, term, price) for term, price in cheap]
    by_gpu = attrgetter("offer.gpu")
    return {gpu: Stock(group, newest) for gpu, group in groupby(sorted(kept, key=by_gpu), key=by_gpu)}, refused


def told_apart(offers: Sequence[Offer]) -> list[str]:
    """Return what to append to each offer's provider, instance and region to make the name unique: mostly nothing.

    Google sells one n1 machine with several GPUs, and a user's own list may repeat a name.
    """
    shared = Counter((offer.provider, offer.instance, offer.region) for offer in offers)
    seen: Counter[tuple[str, str, str, str]] = Counter()
    names = []
    for offer in offers:
        place, gpus = (offer.provider, offer.instance, offer.region), f" ({offer.gpus}×{offer.gpu})"
        seen[*place, gpus] += 1
        again = f" #{seen[*place, gpus]}" if seen[*place, gpus] > 1 else ""
        names.append(f"{gpus}{again}" if shared[place] > 1 else "")
    return names


def hosts_of(
    deployment: Deployment,
    machines: Sequence[Machine],
    *,
    any_age: bool = False,
    max_gpus: int | None = None,
    spare: Spare = NO_SPARE,
    assumed_networks: bool = True,
) -> tuple["Hosts", list[tuple[int, NotServed]]]:
    """Return the machines that a deployment can run on; for the others, how many there are and why not.

    Only machines whose price counts are kept (``prices_that_count``); of any age where the user set a limit. Unless
    ``assumed_networks`` are taken, pipeline stages too are only spread over machines whose seller states the network.
    """
    stock = machines if isinstance(machines, Stock) else Stock(machines)
    verdicts: dict[Reason | None, list[Shape]] = {}
    needs = cache(partial(host_gib, deployment))
    for shape in stock.shapes:
        verdicts.setdefault(_verdict(deployment, shape, needs, spare, assumed_networks), []).append(shape)
    kept = stock.with_shapes(tuple(verdicts.pop(None, ())))
    refused = []
    for kind in (Reason.instance_too_small, Reason.no_network, Reason.host_too_small, Reason.no_zones):
        if shapes := verdicts.get(kind):
            number = sum(len(stock.shapes[shape]) for shape in shapes)
            refused.append((number, NotServed(kind, _why_not_on(deployment, kind, stock, shapes))))
    return Hosts(deployment, kept.that_count(any_age=any_age), max_gpus, spare), refused


def _verdict(
    deployment: Deployment, shape: "Shape", needs: Callable[[int], float], spare: Spare, assumed_networks: bool
) -> Reason | None:
    """Return why a deployment cannot run on machines of a shape; None if it can. ``needs``: GiB of host memory."""
    several = deployment.gpus > shape.gpus
    if several and not _can_be_one_of_several(deployment, shape.gpus):
        return Reason.instance_too_small
    certain = deployment.dp > 1 or not assumed_networks
    if several and certain and shape.bytes_per_s < _network_needed(deployment.gpu):
        return Reason.no_network
    if shape.memory_gb is not None and shape.memory_gb < needs(shape.gpus):
        return Reason.host_too_small
    return Reason.no_zones if spare.zone and not shape.has_zones else None


def _why_not_on(deployment: Deployment, kind: Reason, stock: "Stock", shapes: "Sequence[Shape]") -> str:
    """Say why in words, for the machine that comes closest."""
    if kind is Reason.instance_too_small:
        return f"a replica needs {deployment.gpus}, the instance has {max(shape.gpus for shape in shapes)}"
    if kind is Reason.host_too_small:
        most, of_it = max((shape.memory_gb or 0.0, shape.gpus) for shape in shapes)
        takes = host_gib(deployment, of_it)
        return f"the host has {most:g} GB, weights and a process for each GPU take {takes:.1f}"
    offers = [machine.offer for shape in shapes for machine in stock.shapes[shape]]
    if kind is Reason.no_zones:
        return f"{min(offer.provider for offer in offers)} is not known to have zones that fail apart"
    needed, nearest = deployment.gpu.network_bytes_per_s * 8 / 1e9, min(offer.instance for offer in offers)
    return f"a replica spans machines: no network of {needed:g} Gbit/s a GPU is known of {nearest}"


class Shape(NamedTuple):
    """The properties of a machine that decide which deployments can run on it."""

    gpus: int
    memory_gb: float | None
    bytes_per_s: float  # of one GPU to other machines; 0 if no network is known
    has_zones: bool


class Stock(tuple[Machine, ...]):
    """Machines with one kind of GPU. Thousands of offers have few shapes, so results are kept by shape."""

    newest: Mapping[Terms, Mapping[Market, date]] | None
    """The days of the newest quotes, of machines that are not in it as well; None: those in it are all."""

    def __new__(
        cls, machines: Iterable[Machine] = (), newest: Mapping[Terms, Mapping[Market, date]] | None = None
    ) -> "Stock":
        """Return the machines as a stock."""
        made = super().__new__(cls, machines)
        made.newest = newest
        return made

    @cached_property
    def shapes(self) -> dict[Shape, list[Machine]]:
        """Group the machines by shape."""
        found: dict[Shape, list[Machine]] = {}
        for machine, shape in zip(self, self._shape_of_each, strict=True):
            found.setdefault(shape, []).append(machine)
        return found

    def with_shapes(self, shapes: tuple[Shape, ...]) -> "Stock":
        """Return the machines of these shapes, in order."""
        if len(shapes) == len(self.shapes):
            return self
        if shapes not in self._parts:
            wanted = set(shapes)
            pairs = zip(self, self._shape_of_each, strict=True)
            self._parts[shapes] = self.of(machine for machine, shape in pairs if shape in wanted)
        return self._parts[shapes]

    def cheapest_of_each_size(self, network: float) -> tuple[Machine, ...]:
        """Return the cheapest machine of each size, with and without a network of this many bytes a second."""
        if network not in self._cheapest:
            by_size: dict[tuple[int, bool], Machine] = {}
            for machine, shape in zip(self, self._shape_of_each, strict=True):
                size = shape.gpus, shape.bytes_per_s >= network
                if size not in by_size or machine.usd_per_hour < by_size[size].usd_per_hour:
                    by_size[size] = machine
            self._cheapest[network] = tuple(by_size.values())
        return self._cheapest[network]

    def of(self, machines: Iterable[Machine]) -> "Stock":
        """Return some of its machines, of which the same quotes are out of date."""
        newest = self.newest
        if newest is None:
            sold = {term: [machine.offer for machine in self if machine.terms is term] for term in Terms}
            newest = {term: newest_quotes(offers, term) for term, offers in sold.items()}
        return Stock(machines, newest)

    def that_count(self, *, any_age: bool = False) -> "Stock":
        """Return the machines whose price counts (``prices_that_count``)."""
        if any_age not in self._counted:
            counted: set[tuple[int, Terms]] = set()
            for term in {machine.terms for machine in self}:
                sold = [machine.offer for machine in self if machine.terms is term]
                newest = None if self.newest is None else self.newest[term]
                counted |= {(id(offer), term) for offer in prices_that_count(sold, term, newest, any_age=any_age)}
            kept = self.of(machine for machine in self if (id(machine.offer), machine.terms) in counted)
            self._counted[any_age] = self if len(kept) == len(self) else kept
        return self._counted[any_age]

    @cached_property
    def usd_per_hour(self) -> float:
        """Return the price of the cheapest machine: no replica costs less."""
        return min(machine.usd_per_hour for machine in self)

    @cached_property
    def usd_per_gpu_hour(self) -> float:
        """Return the lowest price of a GPU in a whole machine."""
        return min(machine.usd_per_hour / machine.offer.gpus for machine in self)

    @cached_property
    def _shape_of_each(self) -> list[Shape]:
        return [machine.shape for machine in self]

    @cached_property
    def _parts(self) -> "dict[tuple[Shape, ...], Stock]":
        return {}

    @cached_property
    def _cheapest(self) -> dict[float, tuple[Machine, ...]]:
        return {}

    @cached_property
    def _counted(self) -> "dict[bool, Stock]":
        return {}


def _can_be_one_of_several(deployment: Deployment, machine_gpus: int) -> bool:
    """Return whether a replica can span such machines: whole pipeline stages or attention groups on each."""
    node = deployment.gpu.gpus_per_node
    whole = deployment.tp == node if deployment.dp == 1 else deployment.gpus % machine_gpus == 0
    return machine_gpus == node >= NETWORKED and whole and deployment.pp * deployment.dp > 1


def is_networked(gpu: Gpu, offer: Offer) -> bool:
    """Return whether a seller states the network of a machine that its GPUs' speed assumes."""
    return (offer.network_bytes_per_s or 0.0) >= _network_needed(gpu)


def _network_needed(gpu: Gpu) -> float:
    """Return the network speed of one GPU that its predicted speed assumes, less 10 %."""
    return _NEAR * gpu.network_bytes_per_s


def cheapest_host(
    deployment: Deployment, replicas: int = 1, offers: Iterable[Offer] | None = None
) -> tuple[Offer, float]:
    """Return the offer on which this many replicas cost least in whole machines, and their hourly cost.

    Raise ``NoOffer`` if none that counts can hold them.
    """
    gpu, on = deployment.gpu.key, today()
    known = market_offers() if offers is None else offers
    sold = [offer for offer in known if offer.gpu == gpu and offer.usd_per_hour is not None]
    stocks, _ = usable(sold, (Terms.on_demand,), on)
    hosts, refused = hosts_of(deployment, stocks.get(gpu, ()))
    if not hosts.machines:
        why = refused[0][1].reason if refused else "all that are known are over a year old" if sold else ""
        raise no_offer(gpu, Terms.on_demand, deployment.tp * deployment.dp, why)

    def bill(machine: Machine) -> tuple[float, float, int, str, str, str]:
        offer, number = machine.offer, machines_for(deployment, machine.offer, replicas)
        per_gpu = machine.usd_per_hour / offer.gpus
        return number * machine.usd_per_hour, per_gpu, offer.gpus, offer.provider, offer.region, offer.instance

    best = min(hosts.machines, key=bill)
    return best.offer, bill(best)[0]


def host_gib(deployment: Deployment, gpus: int) -> float:
    """Return the memory a host with this many GPUs needs: the weights it loads, and a process for each GPU in use.

    Replicas on one machine share the page cache through which engines read a checkpoint.
    """
    of_a_replica = min(deployment.gpus, gpus)
    replicas = max(1, gpus // deployment.gpus)
    weights = shard(deployment).total + draft_bytes(deployment)
    return loading_gib(weights * of_a_replica, of_a_replica * replicas)


def left_gb(deployment: Deployment, offer: Offer) -> float | None:
    """Return the GB of host memory per replica left by weights and processes; None if the host's memory is unknown.

    It assumes that nothing else runs on the host.
    """
    if offer.memory_gb is None:
        return None
    left = (offer.memory_gb - host_gib(deployment, offer.gpus)) * GIB / BYTES_PER_GB
    # A replica has a part of a machine, or several whole machines.
    if deployment.gpus > offer.gpus:
        return left * deployment.gpus / offer.gpus
    return left / (offer.gpus // deployment.gpus)


@dataclass(frozen=True)
class Hosts:
    """Every machine that one deployment can run on. Replicas are those that serve; spare ones come on top.

    A disaggregated candidate also has prefill replicas, counted in the total. Both kinds share one machine or several
    networked ones; with spare machines each kind has its own.
    """

    deployment: Deployment
    machines: tuple[Machine, ...]
    max_gpus: int | None = None
    spare: Spare = NO_SPARE
    prefill: PrefillPool | None = None
    tiers: str | None = None
    """Memories for KV behind the GPUs', per replica, that come with the machines: ``dram=200@0``."""

    def with_memories(self, tiers: str) -> "Hosts":
        """Add KV tiers; for host memory, keep the machines with at least as much left as the cheapest."""
        if tiers != HOST_MEMORY:
            return replace(self, tiers=tiers)
        left = [(machine, left_gb(self.deployment, machine.offer) or 0.0) for machine in self.machines]
        roomy = [pair for pair in left if pair[1] >= 1]
        if not roomy:
            return replace(self, machines=())
        least = min(roomy, key=lambda pair: pair[0].usd_per_hour / pair[0].offer.gpus)[1]
        kept = tuple(machine for machine, gigabytes in roomy if gigabytes >= least)
        return replace(self, machines=kept, tiers=f"dram={math.floor(least)}@0")

    def gpus_of(self, replicas: int) -> int:
        """Count the GPUs of this many replicas."""
        if self.prefill is None:
            return replicas * self.deployment.gpus
        first = self.prefill
        return first.replicas * first.deployment.gpus + (replicas - first.replicas) * self.deployment.gpus

    def link(self, replicas: int) -> str:
        """Name the link that KV is sent over: inside the machine, or the network between machines."""
        gpu = self.deployment.gpu
        if not self._in_one_machine(replicas):
            return network_of(gpu)
        return "pcie" if gpu.fast_link_bytes_per_s is None else "nvlink"

    def _in_one_machine(self, replicas: int) -> bool:
        largest = max((machine.offer.gpus for machine in self.machines), default=0)
        return not self.spare and self.gpus_of(replicas) <= largest

    def machines_on(self, offer: Offer, replicas: int) -> float:
        """Count the machines of an offer that this many replicas take; infinite if they cannot run there."""
        if self.prefill is None:
            return machines_for(self.deployment, offer, replicas, self.spare)
        if self._in_one_machine(replicas):
            return 1 if self.gpus_of(replicas) <= offer.gpus else math.inf
        first, others = self.prefill, replicas - self.prefill.replicas
        widest = max(first.deployment.gpus, self.deployment.gpus)
        if offer.gpus < max(NETWORKED, widest) or not is_networked(self.deployment.gpu, offer):
            return math.inf
        if not self.spare:
            kinds = (first.deployment.gpus, first.replicas), (self.deployment.gpus, others)
            return machines_for_both(offer.gpus, *kinds)
        pools = (first.deployment, first.replicas), (self.deployment, others)
        return sum(machines_for(deployment, offer, count, self.spare) for deployment, count in pools)

    def counts_on(self, offer: Offer, replicas: int) -> tuple[int, int]:
        """Count the replicas to run, spare ones included: for prefill only, and for answers."""
        if self.prefill is None:
            return 0, replicas_on(self.deployment, offer, replicas, self.spare)
        first, others = self.prefill, replicas - self.prefill.replicas
        if not self.spare:
            return first.replicas, others
        pools = (first.deployment, first.replicas), (self.deployment, others)
        prompts, answers = (replicas_on(deployment, offer, count, self.spare) for deployment, count in pools)
        return prompts, answers

    @cached_property
    def cheapest_of_each_size(self) -> tuple[Machine, ...]:
        """Return the cheapest machine of each size, with a network and without: no other can win."""
        stock = self.machines if isinstance(self.machines, Stock) else Stock(self.machines)
        return stock.cheapest_of_each_size(_network_needed(self.deployment.gpu))

    def usd_per_hour(self, replicas: int) -> float:
        """Return the lowest hourly cost of this many replicas; infinite if the GPUs allowed do not suffice."""
        if replicas not in self._bills:
            most = self.max_gpus or math.inf
            bills = []
            for machine in self.cheapest_of_each_size:
                number = self.machines_on(machine.offer, replicas)
                if math.isfinite(number) and number * machine.offer.gpus <= most:
                    bills.append(number * machine.usd_per_hour)
            self._bills[replicas] = min(bills, default=math.inf)
        return self._bills[replicas]

    @cached_property
    def _bills(self) -> dict[int, float]:
        """Return the hourly costs found so far, by number of replicas: a search asks for the same again and again."""
        return {}

    def usd_per_month(self, replicas: int) -> float:
        return self.usd_per_hour(replicas) * HOURS_PER_MONTH

    def most_replicas(self, usd_per_hour: float, ceiling: int) -> int:
        """Return the most replicas, up to the ceiling, that cost no more than this."""
        limit = usd_per_hour * (1 + 1e-12)
        return bisect_left(range(1, ceiling + 1), True, key=lambda count: self.usd_per_hour(count) > limit)
