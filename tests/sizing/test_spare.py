"""Machines fail, not replicas: by brute force over every way to lose some."""

import math
from itertools import combinations

import pytest
from tests.deployed import on

from tokonomics.catalog.offers import Offer
from tokonomics.physics.deployment import Deployment
from tokonomics.sizing.spare import NO_SPARE, ZONES, Spare, machines_for, replicas_on

ONE = Spare(machines=1)
ZONE = Spare(zone=True)


def deployed(tp: int, pp: int = 1) -> Deployment:
    return on("llama-3.1-70b", "H100", tp=tp, pp=pp)


def machine(gpus: int) -> Offer:
    row = {"provider": "aws", "region": "x", "instance": "box", "gpu": "H100-SXM", "gpus": gpus, "source": "test"}
    return Offer.model_validate({**row, "usd_per_hour": 1.0, "date": "2026-08-01"})


def spread(replicas: int, machines: int) -> list[int]:
    """Replicas on each machine, as even as can be."""
    return [replicas // machines + (place < replicas % machines) for place in range(machines)]


def left_at_worst(replicas: int, machines: int, spare: Spare) -> int:
    """Replicas that are left whatever fails, by trying every way."""
    on_each = spread(replicas, machines)
    if spare.zone:
        zones = [sum(on_each[place::ZONES]) for place in range(ZONES)]
        return replicas - max(zones)
    return min(replicas - sum(lost) for lost in combinations(on_each, min(spare.machines, machines)))


@pytest.mark.parametrize("spare", [ONE, Spare(machines=2), ZONE])
@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_what_is_left_after_any_loss_is_enough_and_one_machine_less_is_not(spare: Spare, gpus: int) -> None:
    deployment, offer = deployed(tp=1), machine(gpus)
    for needed in range(1, 20):
        machines = machines_for(deployment, offer, needed, spare)
        replicas = replicas_on(deployment, offer, needed, spare)
        assert math.ceil(replicas / machines) <= gpus
        assert left_at_worst(replicas, machines, spare) >= needed
        # With one machine less, not even full ones would do.
        fewer = machines - 1
        assert fewer == 0 or left_at_worst(fewer * gpus, fewer, spare) < needed
        # One replica less would not do; which machines share a zone is not known, so there one more may be run.
        assert spare.zone or left_at_worst(replicas - 1, machines, spare) < needed


def test_two_replicas_that_share_a_machine_need_a_second_machine() -> None:
    deployment, offer = deployed(tp=4), machine(8)
    assert machines_for(deployment, offer, 1) == 1
    assert machines_for(deployment, offer, 1, ONE) == 2
    assert replicas_on(deployment, offer, 1, ONE) == 2


def test_without_a_spare_nothing_is_added() -> None:
    for needed in range(1, 9):
        assert replicas_on(deployed(tp=2), machine(8), needed, NO_SPARE) == needed
        assert machines_for(deployed(tp=2), machine(8), needed) == math.ceil(needed / 4)


def test_a_replica_over_two_machines_is_spared_whole() -> None:
    wide = deployed(tp=8, pp=2)
    assert machines_for(wide, machine(8), 3) == 6
    assert machines_for(wide, machine(8), 3, ONE) == 8
    assert replicas_on(wide, machine(8), 3, ONE) == 4


def test_more_spare_never_takes_fewer_machines() -> None:
    for needed in range(1, 30):
        counts = [machines_for(deployed(tp=2), machine(8), needed, Spare(machines=spare)) for spare in range(4)]
        assert counts == sorted(counts)
