"""What a plan of several models answers: each way with its bill, and how every model fares in it."""

from datetime import date
from enum import StrEnum

from tokonomics.catalog.layers import Precision
from tokonomics.types import Noun, Speed


class Way(StrEnum):
    """How several models stand on GPUs."""

    own = "each its own GPU"
    shares = "one GPU, memory shares"
    slices = "one GPU, MIG slices"
    turns = "one GPU, sleep and wake"
    zero = "own GPUs, scaled to zero"


SHARED_WAYS = (Way.shares, Way.slices, Way.turns)
"""One GPU for all."""


class ModelHere(Noun):
    """One model in one way: where it stands, how its requests fare, and what it pays."""

    model: str
    weights: Precision
    below_checkpoint: bool
    """Its weights or its KV cache at fewer bits than it was published at."""
    rate: float
    place: str
    """Its machines, its slice, or what it takes of the GPU's memory."""
    memory_share: float | None
    """Of the GPU's memory; None where it has a GPU of its own."""
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    breaks: str | None
    """The SLO that is missed, in words; None: all are met."""
    usd_per_month: float
    usd_per_mtok: float
    gpu_share: float | None
    """Of the paid time in which the GPU works for it; None for own GPUs and slices."""


class WayRow(Noun):
    """One way, with its bill."""

    way: Way
    gpu: str
    machine: str
    """Provider and instance; of several, the first and how many more."""
    gpus_paid: float
    """In the mean over time."""
    usd_per_month: float
    price_date: date
    """Of several machines, the oldest quote."""
    meets: bool
    models: tuple[ModelHere, ...]
    speed: Speed | None = None
    switches_per_hour: float | None = None
    hold_s: float | None = None


class SharedPlan(Noun):
    """Every way to serve several models: those that meet every SLO first, the cheapest before the others."""

    rows: tuple[WayRow, ...]
    not_possible: dict[Way, str]
    """Why a way is not among them."""
    best: WayRow | None
    own_at_these_bits_usd_per_month: float | None = None
    """Own GPUs at the precisions of ``best``, where those are fewer bits than own GPUs have; None: they are not, or no
    offer meets the SLOs."""


class Crossing(Noun):
    """Up to this many times the traffic one GPU for all is the cheaper choice, and no longer above."""

    below: float
    """The largest factor looked at with one GPU for all the cheaper; 0 where it was so at none."""
    above: float | None
    """The smallest with own GPUs the cheaper; None where it was so at none."""
    together_usd_per_month: float | None
    """One GPU for all, at ``below``."""
    own_usd_per_month: float | None
    """Own GPUs, at ``above``."""
    together_above_usd_per_month: float | None
    """One GPU for all, at ``above``; None where none of those below the bill of own ones meets every SLO."""
