"""Collect everything that decides a bill in one value: levers change it, and two bills differ by it.

A setup is simulated on as few replicas as meet its SLOs (``search``); those run on whole machines bought on the terms
it allows, and that is its bill (``bill``). Equal setups have equal bills, however they came about.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date

from tokonomics.catalog.offers import Offer, Terms
from tokonomics.money.cache_tiers import TierPrice, parse_tiers
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet_settings import FIRST_BACKOFF_S, LINK_BYTES_PER_S, Router
from tokonomics.sizing.hosts import Hosts, PrefillPool, hosts_of, usable
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load
from tokonomics.sizing.spare import NO_SPARE, Spare
from tokonomics.traffic.slo import Slo

Say = Callable[[str], None]  # reports what is being done


def silent(what: str) -> None:
    """Ignore progress messages."""


@dataclass(frozen=True)
class Handling:
    """How an engine and its clients handle requests, beside what is searched for."""

    timeout_s: float = math.inf  # clients hang up after this time
    retries: int = 0
    backoff_s: float = FIRST_BACKOFF_S
    by_priority: bool = False
    max_batched_tokens: int | None = None  # tokens of a step; None: the engine's own limit
    seed: int = 0


@dataclass(frozen=True)
class Setup:
    """A deployment, its traffic and SLOs, how it serves and how it is bought."""

    deployment: Deployment
    load: Load
    offers: tuple[Offer, ...] = ()  # all that may be bought, of any GPU
    today: date = date.min
    slos: tuple[Slo, ...] = ()
    max_sequences: int | None = None
    """At a time; None: the engine's own limit, or a lower one that meets the SLOs on fewer replicas."""
    prefix_cache: bool = True
    router: Router | None = None  # None: whichever needs the fewest replicas (``rules.routers``)
    tiers: str | tuple[TierPrice, ...] | None = None
    """Memories for KV behind the GPU's: themselves, or as asked for: ``dram=200,ssd=2000@0``, or ``HOST_MEMORY``. In
    the latter cases their size and speed are derived from the hardware when the setup is served and billed."""
    disaggregated: bool = False  # prefill and decode run on replicas of their own, in the ratio that takes the fewest
    prefill: Deployment | None = None  # the prefill layout, if it differs from the decode layout
    prefill_replicas: int = 0  # replicas that only compute prompts, if the ratio is given
    link_bytes_per_s: float = LINK_BYTES_PER_S  # the link over which each GPU sends KV
    autoscale: bool = False  # replicas come and go with the requests outstanding
    each_tenant: bool = False  # the SLOs are owed to every tenant, not only to all requests together
    handling: Handling = Handling()
    commit: bool = False  # reserved machines may be bought
    spot: bool = False  # spot may carry what the verdict on this workload allows
    spare: Spare = NO_SPARE
    offline: bool = False  # a batch that can be repeated: nobody waits for its answers

    @property
    def targets(self) -> tuple[Slo, ...]:
        """Return every SLO that any request is owed: those of all, and those of classes."""
        return (*self.slos, *(slo for one in self.load.trace.classes for slo in one.slos))

    def memories(self) -> tuple[TierPrice, ...]:
        """Return the KV tiers of this deployment at the prices of the day."""
        if isinstance(self.tiers, str):
            return parse_tiers(self.tiers, self.deployment, on=self.today)
        return self.tiers or ()

    def hosts(
        self, terms: Sequence[Terms] = (Terms.on_demand,), prompts: int = 1
    ) -> tuple[Hosts, list[tuple[int, NotServed]]]:
        """Return the machines it can run on, sold on these terms at a recent price; and why not the others.

        A disaggregated setup has ``prompts`` prefill replicas.
        """
        gpu = self.deployment.gpu.key
        stocks, _ = usable([offer for offer in self.offers if offer.gpu == gpu], terms, self.today)
        hosts, refused = hosts_of(self.deployment, stocks.get(gpu, ()), spare=self.spare)
        pool = PrefillPool(self.prefill or self.deployment, prompts) if self.disaggregated else None
        return replace(hosts, prefill=pool), refused

    def deployed(self, **changes: object) -> "Setup":
        """Return the setup with another deployment."""
        return replace(self, deployment=self.deployment.model_copy(update=changes))

    @property
    def as_fixed_fleet(self) -> object:
        """Return what the simulator sees of a fixed fleet: setups with equal keys are served alike."""
        split = self.prefill, self.prefill_replicas, self.link_bytes_per_s if self.prefill_replicas else None
        limits = self.max_sequences, self.prefix_cache, self.router, self.tiers
        return self.deployment, self.load.content, self.slos, split, limits, self.each_tenant, self.handling
