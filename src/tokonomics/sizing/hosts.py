"""Machines that replicas stand on: which offers can hold a deployment, how many of them it takes, what they cost.

Machines are bought whole: a replica takes some GPUs of one, or several machines of which it uses every GPU. Over
several it needs the network that its speed was worked out for, and every host needs memory for the weights it loads.
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
from tokonomics.catalog.offer_choice import loading_gib, market_offers, no_offer, prices_that_count
from tokonomics.catalog.offers import MAX_AGE_DAYS, Offer, Terms
from tokonomics.clock import today
from tokonomics.physics.deployment import NETWORKED, Deployment
from tokonomics.physics.memory import draft_bytes, shard
from tokonomics.serving.fleet import network_of
from tokonomics.sizing.refusal import NotServed, Reason
from tokonomics.sizing.spare import NO_SPARE, ZONED, Spare, machines_for, machines_for_both, replicas_on
from tokonomics.units import BYTES_PER_GB, GIB, HOURS_PER_MONTH, usd

_NEAR = 0.9  # of the network that speeds were worked out for
HOST_MEMORY = "host"  # asks for KV in what the bought machine's memory has left
UNUSED = "unused GPUs"  # GPUs of a paid machine on which no replica runs


@dataclass(frozen=True)
class Machine:
    """An offer on terms it has a price for."""

    offer: Offer
    terms: Terms
    usd_per_hour: float

    @cached_property
    def shape(self) -> "Shape":
        """What decides which deployments can stand on it; kept, as it is in many lists."""
        offer = self.offer
        return Shape(offer.gpus, offer.memory_gb, offer.network_bytes_per_s or 0.0, offer.provider in ZONED)

    @property
    def commitment_years(self) -> int | None:
        """Of a reserved one: the longest that is quoted."""
        if self.terms is not Terms.reserved:
            return None
        return 3 if self.offer.reserved_3yr_usd_per_hour is not None else 1

    def usd_per_month(self, machines: float) -> float:
        """What so many of them cost a month."""
        return machines * self.usd_per_hour * HOURS_PER_MONTH


class PrefillPool(NamedTuple):
    """The replicas of a disaggregated candidate that compute prompts only."""

    deployment: Deployment
    replicas: int


def usable(
    offers: Sequence[Offer],
    terms: Sequence[Terms],
    today: date,
    max_usd_per_gpu_hour: float | None = None,
    max_age_days: int | None = None,
) -> tuple[Mapping[str, "Stock"], list[tuple[Offer, NotServed]]]:
    """By GPU, the machines with a price on these terms, cheap and recent enough; the other offers with their reason.

    Without a limit of the user's, prices may be a year old. Which of them count: ``hosts_of``.
    """
    oldest = MAX_AGE_DAYS if max_age_days is None else max_age_days
    kept: list[Machine] = []
    refused: list[tuple[Offer, NotServed]] = []
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
    return {gpu: Stock(group) for gpu, group in groupby(sorted(kept, key=by_gpu), key=by_gpu)}, refused


def told_apart(offers: Sequence[Offer]) -> list[str]:
    """What to add to each offer's provider, instance and region for a name of its own: mostly nothing.

    Google sells its n1 machines with several GPUs, and a list of one's own may name every machine alike.
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
    on: date | None,
    max_gpus: int | None = None,
    spare: Spare = NO_SPARE,
) -> tuple["Hosts", list[tuple[int, NotServed]]]:
    """The machines that a deployment can stand on; for the others how many of them there are, and why not.

    Of those, the ones whose price counts on that day; of any age where the user says how old one may be (None).
    """
    stock = machines if isinstance(machines, Stock) else Stock(machines)
    verdicts: dict[Reason | None, list[Shape]] = {}
    needs = cache(partial(host_gib, deployment))
    for shape in stock.shapes:
        verdicts.setdefault(_verdict(deployment, shape, needs, spare), []).append(shape)
    kept = stock.of(tuple(verdicts.pop(None, ())))
    refused = []
    for kind in (Reason.instance_too_small, Reason.no_network, Reason.host_too_small, Reason.no_zones):
        if shapes := verdicts.get(kind):
            number = sum(len(stock.shapes[shape]) for shape in shapes)
            refused.append((number, NotServed(kind, _why_not_on(deployment, kind, stock, shapes))))
    return Hosts(deployment, kept.that_count(on), max_gpus, spare), refused


def _verdict(deployment: Deployment, shape: "Shape", needs: Callable[[int], float], spare: Spare) -> Reason | None:
    """Why a deployment cannot stand on machines of a shape, whose hosts need so many GiB; None where it can."""
    several = deployment.gpus > shape.gpus
    if several and not _can_be_one_of_several(deployment, shape.gpus):
        return Reason.instance_too_small
    if several and deployment.dp > 1 and shape.bytes_per_s < _network_needed(deployment.gpu):
        return Reason.no_network
    if shape.memory_gb is not None and shape.memory_gb < needs(shape.gpus):
        return Reason.host_too_small
    return Reason.no_zones if spare.zone and not shape.has_zones else None


def _why_not_on(deployment: Deployment, kind: Reason, stock: "Stock", shapes: "Sequence[Shape]") -> str:
    """The same in words: the case of the nearest of them."""
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
    """All of a machine that decides which deployments can stand on it."""

    gpus: int
    memory_gb: float | None
    bytes_per_s: float  # of one GPU to other machines; 0 where no network is known
    has_zones: bool


class Stock(tuple[Machine, ...]):
    """Machines with one kind of GPU. Thousands of offers have few shapes: what depends on these is found once."""

    @cached_property
    def shapes(self) -> dict[Shape, list[Machine]]:
        """The machines of each shape."""
        found: dict[Shape, list[Machine]] = {}
        for machine, shape in zip(self, self._shape_of_each, strict=True):
            found.setdefault(shape, []).append(machine)
        return found

    def of(self, shapes: tuple[Shape, ...]) -> "Stock":
        """Those of these shapes, in their order."""
        if len(shapes) == len(self.shapes):
            return self
        if shapes not in self._parts:
            wanted = set(shapes)
            pairs = zip(self, self._shape_of_each, strict=True)
            self._parts[shapes] = Stock(machine for machine, shape in pairs if shape in wanted)
        return self._parts[shapes]

    def cheapest_of_each_size(self, network: float) -> tuple[Machine, ...]:
        """Of machines with a network of so many bytes a second, and of those without."""
        if network not in self._cheapest:
            by_size: dict[tuple[int, bool], Machine] = {}
            for machine, shape in zip(self, self._shape_of_each, strict=True):
                size = shape.gpus, shape.bytes_per_s >= network
                if size not in by_size or machine.usd_per_hour < by_size[size].usd_per_hour:
                    by_size[size] = machine
            self._cheapest[network] = tuple(by_size.values())
        return self._cheapest[network]

    def that_count(self, on: date | None) -> "Stock":
        """Those whose price counts that day, of machines that would all do (``prices_that_count``)."""
        if on not in self._counted:
            sold = {term: [machine.offer for machine in self if machine.terms is term] for term in Terms}
            counted = {(id(offer), term) for term in Terms for offer in prices_that_count(sold[term], term, on)}
            kept = Stock(machine for machine in self if (id(machine.offer), machine.terms) in counted)
            self._counted[on] = self if len(kept) == len(self) else kept
        return self._counted[on]

    @cached_property
    def usd_per_hour(self) -> float:
        """Of the cheapest: no replica stands for less."""
        return min(machine.usd_per_hour for machine in self)

    @cached_property
    def usd_per_gpu_hour(self) -> float:
        """The lowest, of whole machines."""
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
    def _counted(self) -> "dict[date | None, Stock]":
        return {}


def _can_be_one_of_several(deployment: Deployment, machine_gpus: int) -> bool:
    """Whether a machine can be one of those that a replica spans: whole stages, or whole groups of the attention."""
    node = deployment.gpu.gpus_per_node
    whole = deployment.tp == node if deployment.dp == 1 else deployment.gpus % machine_gpus == 0
    return machine_gpus == node >= NETWORKED and whole and deployment.pp * deployment.dp > 1


def _is_networked(gpu: Gpu, offer: Offer) -> bool:
    """Whether a machine has the network that its GPUs are taken to have."""
    return (offer.network_bytes_per_s or 0.0) >= _network_needed(gpu)


def _network_needed(gpu: Gpu) -> float:
    """Bytes a second of one GPU to other machines, about as its speed was worked out for."""
    return _NEAR * gpu.network_bytes_per_s


def cheapest_host(
    deployment: Deployment, replicas: int = 1, offers: Iterable[Offer] | None = None
) -> tuple[Offer, float]:
    """The offer on which so many replicas cost least in whole machines, and what they cost an hour.

    ``NoOffer`` where none that counts can hold them.
    """
    gpu, on = deployment.gpu.key, today()
    known = market_offers() if offers is None else offers
    sold = [offer for offer in known if offer.gpu == gpu and offer.usd_per_hour is not None]
    stocks, _ = usable(sold, (Terms.on_demand,), on)
    hosts, refused = hosts_of(deployment, stocks.get(gpu, ()), on)
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
    """Memory a host of so many GPUs needs: the weights that its GPUs load, and a process for each GPU in use.

    Replicas on one machine share the host's page cache, through which engines read a checkpoint.
    """
    of_a_replica = min(deployment.gpus, gpus)
    replicas = max(1, gpus // deployment.gpus)
    weights = shard(deployment).total + draft_bytes(deployment)
    return loading_gib(weights * of_a_replica, of_a_replica * replicas)


def left_gb(deployment: Deployment, offer: Offer) -> float | None:
    """Of a host's memory, in GB for each replica: what weights and processes leave. None: it is not told.

    All of it is taken to be free, which is assumed: nothing else is run there, and pages of the system are small.
    """
    if offer.memory_gb is None:
        return None
    left = (offer.memory_gb - host_gib(deployment, offer.gpus)) * GIB / BYTES_PER_GB
    # A replica has its part of a machine, or several machines to itself.
    if deployment.gpus > offer.gpus:
        return left * deployment.gpus / offer.gpus
    return left / (offer.gpus // deployment.gpus)


@dataclass(frozen=True)
class Hosts:
    """Every machine that one deployment can stand on. Replicas are those that serve; what is spare comes on top.

    A disaggregated candidate has replicas for prompts as well, counted among all. Both kinds stand in one machine, or
    on several that are networked; with spare machines each kind has its own.
    """

    deployment: Deployment
    machines: tuple[Machine, ...]
    max_gpus: int | None = None
    spare: Spare = NO_SPARE
    prefill: PrefillPool | None = None
    tiers: str | None = None
    """Memories for KV behind the GPUs', of each replica, that come with the machines: ``dram=200@0``."""

    def with_memories(self, tiers: str) -> "Hosts":
        """With those memories, or with what the hosts have left: the machines that have as much as the cheapest."""
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
        """GPUs that so many replicas run on."""
        if self.prefill is None:
            return replicas * self.deployment.gpus
        first = self.prefill
        return first.replicas * first.deployment.gpus + (replicas - first.replicas) * self.deployment.gpus

    def link(self, replicas: int) -> str:
        """What KV is sent over between the replicas of a disaggregated candidate.

        Between machines their network: only those that have one are taken (``machines_on``).
        """
        gpu = self.deployment.gpu
        if not self._in_one_machine(replicas):
            return network_of(gpu)
        return "pcie" if gpu.fast_link_bytes_per_s is None else "nvlink"

    def _in_one_machine(self, replicas: int) -> bool:
        largest = max((machine.offer.gpus for machine in self.machines), default=0)
        return not self.spare and self.gpus_of(replicas) <= largest

    def machines_on(self, offer: Offer, replicas: int) -> float:
        """How many of the offer so many replicas take; infinite where they cannot stand there."""
        if self.prefill is None:
            return machines_for(self.deployment, offer, replicas, self.spare)
        if self._in_one_machine(replicas):
            return 1 if self.gpus_of(replicas) <= offer.gpus else math.inf
        first, others = self.prefill, replicas - self.prefill.replicas
        widest = max(first.deployment.gpus, self.deployment.gpus)
        if offer.gpus < max(NETWORKED, widest) or not _is_networked(self.deployment.gpu, offer):
            return math.inf
        if not self.spare:
            kinds = (first.deployment.gpus, first.replicas), (self.deployment.gpus, others)
            return machines_for_both(offer.gpus, *kinds)
        pools = (first.deployment, first.replicas), (self.deployment, others)
        return sum(machines_for(deployment, offer, count, self.spare) for deployment, count in pools)

    def counts_on(self, offer: Offer, replicas: int) -> tuple[int, int]:
        """Replicas to run, spare ones included: those for prompts only, and those that answer."""
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
        """Of machines with a network and without: no other can win."""
        stock = self.machines if isinstance(self.machines, Stock) else Stock(self.machines)
        return stock.cheapest_of_each_size(_network_needed(self.deployment.gpu))

    def usd_per_hour(self, replicas: int) -> float:
        """The cheapest way to host so many; infinite when there is none within the GPUs allowed."""
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
        """Dollars an hour by replicas: a search asks for the same again and again."""
        return {}

    def usd_per_month(self, replicas: int) -> float:
        return self.usd_per_hour(replicas) * HOURS_PER_MONTH

    def most_replicas(self, usd_per_hour: float, ceiling: int) -> int:
        """The most replicas, up to the ceiling, that cost no more than that."""
        limit = usd_per_hour * (1 + 1e-12)
        return bisect_left(range(1, ceiling + 1), True, key=lambda count: self.usd_per_hour(count) > limit)
