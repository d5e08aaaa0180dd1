"""Everything that decides a bill, as one value: what a lever changes, and what two bills differ by.

A setup is served by the simulator on as few replicas as meet its SLOs (``sizing``); those stand on whole machines
bought on the terms it allows, and that is its bill (``bills``). Equal setups have equal bills, however they came about.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, TypeVar

from tokonomics.catalog.offers import Offer
from tokonomics.money.cache_tiers import TierPrice, parse_tiers
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.fleet import LINK_BYTES_PER_S, Router
from tokonomics.sizing.load import Load
from tokonomics.sizing.spare import NO_SPARE, Spare
from tokonomics.traffic.slo import Slo

Made = TypeVar("Made")
Say = Callable[[str], None]
"""Told what is being done."""


def silent(what: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Setup:
    """A deployment, its traffic and SLOs, how it serves and how it is bought."""

    deployment: Deployment
    load: Load
    offers: tuple[Offer, ...]
    """All that may be bought, of any GPU."""
    today: date
    slos: tuple[Slo, ...] = ()
    max_sequences: int | None = None
    """At a time; None: the engine's own limit, or what the SLO on time per token allows."""
    prefix_cache: bool = True
    router: Router | None = None
    """None: taking turns or the least outstanding requests, whichever needs fewer replicas."""
    tiers: str | None = None
    """Memories for KV behind the GPU's, as asked for: ``dram=200,ssd=2000@0``, or ``HOST_MEMORY``. Size and speed
    follow from the hardware when it is served and billed, so that they follow it when it changes."""
    disaggregated: bool = False
    """Prefill and decode on replicas of their own."""
    prefill: Deployment | None = None
    """Those for prompts, where they are not as the others."""
    link_bytes_per_s: float = LINK_BYTES_PER_S
    """What each GPU sends KV over."""
    autoscale: bool = False
    """Replicas come and go with the requests outstanding."""
    commit: bool = False
    """Reserved machines may be bought."""
    spot: bool = False
    """Spot may carry what the verdict on this workload allows."""
    spare: Spare = NO_SPARE
    offline: bool = False
    """A batch that can be done again: nobody waits for its answers."""

    def memories(self) -> tuple[TierPrice, ...]:
        """The tiers on this deployment's GPUs, at the prices of the day."""
        return parse_tiers(self.tiers, self.deployment, on=self.today) if self.tiers else ()

    def deployed(self, **changes: object) -> "Setup":
        """With another deployment."""
        return replace(self, deployment=self.deployment.model_copy(update=changes))

    @property
    def as_fixed_fleet(self) -> object:
        """What the simulator sees of it while replicas are always as many; the load by its place in memory."""
        served = self.max_sequences, self.prefix_cache, self.router, self.tiers
        return self.deployment, id(self.load.trace), self.load.share, self.slos, *served


@dataclass
class Memo:
    """What was made for setups, each made once."""

    _made: dict[object, tuple[Load, Any]] = field(default_factory=dict)

    def once(self, key: object, load: Load, make: Callable[[], Made]) -> Made:
        """What ``make`` returned for this key. The load is held with it: keys name it by its place in memory."""
        if key not in self._made:
            self._made[key] = load, make()
        found: Made = self._made[key][1]
        return found


@dataclass(frozen=True)
class NotServed:
    """Why a setup cannot meet its SLOs or be bought, or why a lever has nothing to move."""

    reason: str
    fix: str | None = None
    """What to change, in flags, where it is known."""
