"""What a row of a plan draws: its simulated time with prompts, with answers and idle, in watts.

Where nothing was simulated, the closed form's mean number of running requests L tells the idle time: arrivals are
random, so none runs for e^−L of it. Prompts take of the rest what their stalls add up to at this rate.
"""

import math

import numpy as np

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.places import LISTED_EVERYWHERE, WORLD, Grid, grid_named, grid_of
from tokonomics.money.energy import HOST_SHARE, Energy, energy, fleet_watts, pue_of
from tokonomics.physics.curves import power_of
from tokonomics.planner.plan import Study
from tokonomics.planner.plan_answer import Candidate
from tokonomics.planner.search import Placed
from tokonomics.sizing.attempt import prefill_share


def energy_of(study: Study, row: Candidate, grid: Grid | None = None) -> Energy | None:
    """Of a ranked row; None where nobody says what its GPU draws. ``grid``: instead of that of its region."""
    gpu = find_gpu(row.gpu)
    curve, load = power_of(gpu), study.plan.workload
    if curve is None:
        return None
    prompts, answers, batch = _busy_gpus(study.ranked_as(row).sized, row, load.rate)
    rated = gpu.watts or curve.prefill_w
    return energy(
        fleet_watts(curve, row.gpus_paid, prompts, answers, batch),
        HOST_SHARE * rated * row.gpus_paid,
        pue_of(row.seller),
        grid or _grid(row),
        load.rate * (load.input_tokens + load.output_tokens),
        curve,
    )


def _grid(row: Candidate) -> Grid:
    """Of the row's region; the world's mean where its seller lists every machine in all of several regions."""
    is_known = row.provider not in LISTED_EVERYWHERE or len(row.regions) == 1
    return grid_of(row.provider, row.region) if is_known else grid_named(WORLD)


def _busy_gpus(sized: Placed, row: Candidate, rate: float) -> tuple[float, float, float]:
    """GPUs that compute prompts and that write answers, in the mean over time, and the batch of a step."""
    gpus_for_prompts = row.prefill.gpus_per_replica if row.prefill else row.gpus_per_replica
    if sized.trial:
        served = sized.trial.outcome
        busy, share, batch = 1 - served.shares.idle, prefill_share(served), served.batch
    else:
        curve, each = sized.screened.curve, rate / sized.replicas
        running = sized.screened.steady(each).batch
        busy = -math.expm1(-running)
        prompts = each * float(np.interp(running, curve.batches, curve.stall_s))
        share, batch = min(1.0, prompts / busy), running / busy
    share = 1.0 if sized.deployment.model.is_encoder else share
    working = sized.replicas * busy  # those for prompts of a disaggregated one among them, as in the simulated shares
    return working * share * gpus_for_prompts, working * (1 - share) * row.gpus_per_replica, batch
