"""What a plan's pick draws: worked out from the busy seconds of a simulation of our own, and from the closed form."""

import pytest
from tests.planner.small_catalogue import SLOS, asked, offer
from tests.there import there

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.places import grid_named
from tokonomics.money.own_hardware import Energy
from tokonomics.physics.curves import power_of
from tokonomics.planner.firmness import energy_of
from tokonomics.planner.plan import Study, study
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.load import load_of_shape
from tokonomics.types import Speed

IDLE_W, PREFILL_W = 124.0, 688.1  # of our H200
ALONE = (offer("H200", 1, 3.0),)


def drawn(made: Study, grid: str | None = None) -> Energy:
    return there(energy_of(made, there(made.plan.best), grid_named(grid) if grid else None))


def test_a_fleet_without_work_draws_its_idle_watts_its_host_and_its_site() -> None:
    """One request in three hours: 124 W and half of 700 W, × 1.58 (nobody's cloud), 730 hours; 473.05 g, the world."""
    made = drawn(study(asked(load=load_of_shape(1e-4, "const:100", "const:10"), offers=ALONE)))
    assert made.gpu_watts == pytest.approx(IDLE_W, rel=1e-3)
    assert made.host_watts == 350
    assert made.kwh_per_month == pytest.approx((IDLE_W + 350) * 1.58 * 0.73, rel=1e-3)
    assert made.kg_co2e_per_month == pytest.approx(made.kwh_per_month * 0.47305)
    assert made.known is Speed.timed


def test_gpus_that_are_paid_for_and_not_used_draw_too() -> None:
    load = load_of_shape(1e-4, "const:100", "const:10")
    made = drawn(study(asked(load=load, offers=(offer("H200", 8, 20.0, network_gbit=3200),))))
    assert made.gpu_watts == pytest.approx(8 * IDLE_W, rel=1e-3)


def test_a_simulated_pick_draws_by_its_busy_seconds() -> None:
    question = asked(load=load_of_shape(2, "const:1000", "const:200"), offers=ALONE, simulate=True, slos=SLOS)
    made = study(question)
    assert made.plan.best is not None
    assert made.plan.best.replicas == 1
    alone = simulate(made.ranked_as(made.plan.best).sized.deployment, question.load.trace)
    paid, busy = float(alone.paid_s.sum()), float(alone.replicas["busy_s"].sum())
    prompts = float(alone.replicas["prompt_busy_s"].sum())
    curve = there(power_of(find_gpu("H200")))
    joules = prompts * PREFILL_W + (busy - prompts) * curve.decoding(outcome(alone).batch) + (paid - busy) * IDLE_W
    # Of 10,000 seconds the last one is the drain, which is no part of a month.
    assert drawn(made).gpu_watts == pytest.approx(joules / paid, rel=1e-5)


def test_the_closed_form_is_near_the_simulation() -> None:
    load = load_of_shape(2, "const:1000", "const:200")
    quick = drawn(study(asked(load=load, offers=ALONE, slos=SLOS)))
    slow = drawn(study(asked(load=load, offers=ALONE, slos=SLOS, simulate=True)))
    assert quick.gpu_watts == pytest.approx(slow.gpu_watts, rel=0.1)


def test_emissions_follow_the_grid_that_is_named() -> None:
    made = study(asked(offers=ALONE))
    assert drawn(made, "45").g_co2e_per_mtok == pytest.approx(45 * (drawn(made).kwh_per_mtok or 0))
    finnish = offer("H200", 1, 3.0, provider="verda", region="FIN-03")
    assert drawn(study(asked(offers=(finnish,)))).grid.g_per_kwh == 72.25


def test_a_machine_that_may_stand_anywhere_emits_what_the_worlds_grid_does() -> None:
    """Runpod lists every machine in every region: its first one, Australia, is no evidence."""
    anywhere = tuple(offer("H200", 1, 3.0, provider="runpod", region=region) for region in ("AU", "FR"))
    assert drawn(study(asked(offers=anywhere))).grid.place == "world"
    assert drawn(study(asked(offers=anywhere[1:]))).grid.place == "FR"


def test_replicas_for_prompts_and_for_answers_draw_what_each_does() -> None:
    """Of a disaggregated pick, every busy replica-second counts, of both sides."""
    load = load_of_shape(4, "const:4000", "const:200")
    question = asked(
        load=load, offers=(offer("H200", 8, 20.0, network_gbit=3200),), simulate=True, slos=SLOS, disaggregate=True
    )
    made = study(question)
    row = next(row for row in made.plan.ranked if row.prefill)
    served = there(made.ranked_as(row).sized.trial)
    found = there(energy_of(made, row))
    assert row.prefill is not None
    shares, replicas = served.outcome.shares, row.replicas + row.prefill.replicas
    busy = 1 - shares.idle
    prompts = busy * shares.prefill / (shares.prefill + shares.decode)
    curve = there(power_of(find_gpu("H200")))
    # All layouts here are of one GPU a replica, so replica-seconds are GPU-seconds.
    assert (row.gpus_per_replica, row.prefill.gpus_per_replica) == (1, 1)
    above = prompts * (PREFILL_W - IDLE_W) + (busy - prompts) * (curve.decoding(served.outcome.batch) - IDLE_W)
    assert found.gpu_watts == pytest.approx(row.gpus_paid * IDLE_W + replicas * above, rel=1e-6)
