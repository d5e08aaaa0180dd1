"""What metered servers drew and emitted over a stretch: read off the GPUs where the meter did, else modelled.

A meter that was given the GPUs (``gpu_metrics``) keeps their joules in the ledger; their mean watts stand for the whole
stretch, also where it was not read for all of it. Without, the GPU that is named draws by its curve
(``physics.curves``) at the metered batch while its server was busy, with the modelled share of prompts, and its idle
watts otherwise. The host is known with the GPU alone; who owns the site is not, so its PUE is the industry's mean.
"""

from pydantic import NonNegativeFloat

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.places import Grid
from tokonomics.measure.meter.bill import Bill
from tokonomics.measure.meter.ledger import Drawn
from tokonomics.measure.meter.token_price import MeteredGpu, prompt_time_of
from tokonomics.measure.priced_run import PromptTime
from tokonomics.money.energy import HOST_SHARE, Energy, energy, fleet_watts
from tokonomics.money.own_hardware import MEAN_PUE
from tokonomics.physics.curves import PowerCurve, power_of
from tokonomics.types import copied
from tokonomics.units import SECONDS_PER_HOUR


class MeteredEnergy(Energy):
    """Electricity and emissions of a stretch; by the month, at its pace."""

    kwh: NonNegativeFloat
    """Over the stretch."""
    kg_co2e: NonNegativeFloat
    read_share: float
    """Of the stretch, in which the GPUs were read; 0: modelled."""


def metered_energy(by_model: Bill, drawn: Drawn | None, on: MeteredGpu | None, grid: Grid) -> MeteredEnergy | None:
    """Of a bill by model and engine; None where the GPUs were neither read nor named."""
    lasted_s, total = by_model.until - by_model.since, by_model.total
    if lasted_s <= 0:
        return None
    gpu = find_gpu(on.gpu) if on else None
    curve = power_of(gpu) if gpu else None
    paid = total.seconds / lasted_s * on.gpus if on else 0.0
    host_watts = HOST_SHARE * gpu.watts * paid if gpu and gpu.watts else 0.0
    tokens_per_s = total.billed_tokens / lasted_s
    if drawn and drawn.seconds > 0:
        made = energy(drawn.joules / drawn.seconds, host_watts, MEAN_PUE, grid, tokens_per_s, None, "read off them")
    elif on and curve:
        watts = _modelled(by_model, curve, on, paid, lasted_s)
        made = energy(watts, host_watts, MEAN_PUE, grid, tokens_per_s, curve)
    else:
        return None
    kwh = made.watts * lasted_s / SECONDS_PER_HOUR / 1000
    read = min(1.0, drawn.seconds / lasted_s) if drawn else 0.0
    fields = copied(made, *Energy.model_fields)
    return MeteredEnergy(**fields, kwh=kwh, kg_co2e=kwh * grid.g_per_kwh / 1000, read_share=read)


def _modelled(by_model: Bill, curve: PowerCurve, on: MeteredGpu, paid: float, lasted_s: float) -> float:
    """Watts of all GPUs, in the mean over the stretch."""
    above_idle = 0.0
    for line in by_model.lines:
        model, engine = line.group[-2:]
        busy = line.sums.busy_s / lasted_s * on.gpus
        time = prompt_time_of(model, engine, line.sums, on)
        # Where prompts' share is not known, all of it is taken for answers.
        prompts = busy * (time.share if isinstance(time, PromptTime) else 0.0)
        above_idle += fleet_watts(curve, busy, prompts, busy - prompts, line.sums.batch or 1.0) - busy * curve.idle_w
    return paid * curve.idle_w + above_idle
