"""Count the whole machines that replicas take, and the spare ones needed so that machines, or a zone, may fail.

Machines fail, not replicas: with one spare, the machines left after the loss of any one still have room for every
replica that the targets need. Replicas are spread evenly over the machines, so that a loss takes as few as possible.
"""

import math

from pydantic import Field

from tokonomics.catalog.offers import UNSPECIFIED, Offer
from tokonomics.physics.deployment import Deployment
from tokonomics.types import Noun
from tokonomics.units import plural

ZONES = 3
ZONED = ("aws", "azure", "gcp")
"""Providers whose regions have three zones at least: AWS ("each Region has a minimum of three Availability Zones"),
Azure ("a minimum of three" where a region has them), Google Cloud ("most regions have three zones"). That a GPU is
sold in all of them is assumed (``Spare.assumed``)."""


class Spare(Noun):
    """What may fail with every target still met."""

    machines: int = Field(default=0, ge=0, le=1000)
    zone: bool = False  # one of the region's zones, with every machine in it

    def __bool__(self) -> bool:
        return self.zone or self.machines > 0

    def __str__(self) -> str:
        return "a zone" if self.zone else plural(self.machines, "machine")

    def lost_of(self, machines: int) -> int:
        """Return how many of these machines, or groups of them, may be lost at once."""
        return math.ceil(machines / ZONES) if self.zone else self.machines

    def beside(self, machines: int) -> int:
        """Return how many to buy so that this many are left."""
        return machines + (math.ceil(machines / (ZONES - 1)) if self.zone else self.machines)

    def assumed(self, instance: str, region: str, zones: int) -> str:
        """Say what is assumed if a zone may fail; empty otherwise."""
        where = "its region" if region == UNSPECIFIED else region
        return f"assuming that {instance} is sold in {zones} zones of {where}: check" if self.zone else ""


NO_SPARE = Spare()


def in_zones(machines: int) -> list[int]:
    """Spread machines, or groups of them, evenly over zones: 5 are 2, 2 and 1."""
    zones = min(ZONES, machines)
    each, larger = divmod(machines, zones)
    return [each + 1] * larger + [each] * (zones - larger)


def machines_for(deployment: Deployment, offer: Offer, replicas: int, spare: Spare = NO_SPARE) -> int:
    """Count the whole machines for this many replicas: several to a machine, or several machines to one."""
    if deployment.gpus > offer.gpus:
        return spare.beside(replicas) * math.ceil(deployment.pp * deployment.dp / (offer.gpus // deployment.tp))
    return spare.beside(math.ceil(replicas / (offer.gpus // deployment.gpus)))


def machines_for_both(machine_gpus: int, *kinds: tuple[int, int]) -> int:
    """Count the whole machines for replicas of two kinds, each given as GPUs of a replica and number of replicas.

    Larger replicas are placed first; smaller ones fill the GPUs left, then more machines.
    """
    (large, many), (small, more) = sorted(kinds, reverse=True)
    each = machine_gpus // large
    machines = math.ceil(many / each)
    last = many - (machines - 1) * each
    left = (machines - 1) * ((machine_gpus - each * large) // small) + (machine_gpus - last * large) // small
    return machines + math.ceil(max(0, more - left) / (machine_gpus // small))


def replicas_on(deployment: Deployment, offer: Offer, replicas: int, spare: Spare) -> int:
    """Return the fewest replicas, spread evenly over the machines, so that enough are left whatever fails."""
    if deployment.gpus > offer.gpus:
        return spare.beside(replicas)
    machines = machines_for(deployment, offer, replicas, spare)
    most, lost = machines * (offer.gpus // deployment.gpus), spare.lost_of(machines)
    return next(
        (count for count in range(replicas, most) if count - lost * math.ceil(count / machines) >= replicas), most
    )
