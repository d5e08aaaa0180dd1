"""What a machine of one's own can run: for each model a precision that fits, its layout, speed, users and dollars.

A model is tried as published, then at FP8, then at INT4, with the KV cache in 16 bits; in FP8 where nothing fits so. Of
the layouts that fit, the one that writes the most tokens a second within the SLO is taken, in as many replicas as the
GPUs hold. A user is one answer being written with its context full: so many are served at once as memory holds, the
engine runs, and every one of them gets its tokens at the pace of the SLO. Prompts that arrive meanwhile are not
counted; ``simulate`` and ``capacity`` count them.

    $/Mtok at a load = dollars an hour at that load ÷ (output tokens/s of all users × load × 3600 ÷ 10⁶)
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import MAX_GPUS
from tokonomics.catalog.precision import KV_PRECISIONS, Precision
from tokonomics.money.own_hardware import Power, Purchase, usd_per_hour
from tokonomics.physics.calibration import Coverage, profiled
from tokonomics.physics.deployment import Deployment, valid_tp, why_not_run
from tokonomics.physics.intervals import Interval, known_speed
from tokonomics.physics.memory import max_sequences, smallest
from tokonomics.physics.power import power_of
from tokonomics.physics.steptime import step_model
from tokonomics.planner.predict import predict
from tokonomics.serving.steady import alone_s
from tokonomics.sizing.layouts import is_faithful, weight_choices, why_not
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.types import Noun, Speed, copied
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

LOADS = {"full": 1.0, "half": 0.5, "tenth": 0.1}
"""Shares of full use at which a million tokens is priced: most machines of one's own are idle most of the day."""


@dataclass(frozen=True)
class OwnMachine:
    """GPUs in one machine, what serves on them, and what it costs to keep."""

    gpu: Gpu
    gpus: int
    engine: Engine
    power: Power | None = None
    """None: nobody asked for dollars."""


class LoadPrices(Noun):
    """What a million output tokens costs where all users are busy all the time, half of it, a tenth of it."""

    full: NonNegativeFloat
    half: NonNegativeFloat
    tenth: NonNegativeFloat


class RunnableModel(Noun):
    """A model on the machine, at one precision."""

    model: str
    name: str
    parameters: PositiveInt
    active_parameters: PositiveInt
    weights: Precision
    kv: Precision
    below_checkpoint: bool
    """Weights or KV cache at fewer bits than published."""
    tp: int
    pp: int
    ep: int
    dp: int
    replicas: PositiveInt
    weight_bytes: PositiveInt
    """The whole model, once."""
    context: PositiveInt
    """Tokens of every sequence: as asked, or the most that the model accepts."""
    longest_context: PositiveInt
    """Of one sequence alone in memory."""
    alone_tokens_per_s: Interval
    """Output tokens of one user, nobody else there."""
    ttft_s: Interval
    """A prompt of ``context`` tokens on an idle server."""
    users: NonNegativeInt
    """Answers written at once within the SLO, on all replicas; 0: even one is too slow."""
    limited_by: str
    """What keeps more users out."""
    tpot_s: PositiveFloat | None
    """Of each of these users."""
    tokens_per_s: Interval | None
    """Output tokens of all of them."""
    speed: Speed
    profiled: Coverage | None = None
    """Whether the profile in use was measured on this layout; None without a profile."""
    usd_per_mtok: LoadPrices | None
    """Output tokens; None where no price of a kilowatt-hour is known, or nobody is served."""


class TooLarge(Noun):
    """A model that the machine does not hold."""

    model: str
    weights: Precision | None
    """The fewest bits that were tried; None: the engine runs none of them on this GPU."""
    min_gpus: PositiveInt | None
    """The fewest such GPUs, of those sold together, that hold one sequence at these bits; None: no number does."""
    min_layout: str | None = None
    """How it lies on them."""


class CanRun(Noun):
    """Every model on one machine, the largest first."""

    gpu: str
    gpus: PositiveInt
    gpu_memory_gb: PositiveFloat
    gpu_watts: PositiveFloat | None
    engine: str
    context: PositiveInt
    slos: tuple[Slo, ...]
    power: Purchase | Power | None
    runs: tuple[RunnableModel, ...]
    too_large: tuple[TooLarge, ...]


def can_run(
    models: Sequence[ModelSpec], machine: OwnMachine, context: int, slos: tuple[Slo, ...], every_precision: bool = False
) -> CanRun:
    """What of the models fits; each at the first precision that does, or at every one."""
    runs: list[RunnableModel] = []
    too_large: list[TooLarge] = []
    # Of one size, the newest version has the last name.
    by_name = sorted(models, key=lambda model: model.key, reverse=True)
    for model in sorted(by_name, key=lambda model: -model.parameters):
        tokens = min(context, model.max_context)
        fitting = _fitting(model, machine, tokens, every_precision)
        runs += [_at_best(layouts, machine, tokens, slos) for layouts in fitting]
        too_large += [] if fitting else [_too_large(model, machine, tokens)]
    gpu = machine.gpu
    return CanRun(
        gpu=gpu.key,
        gpus=machine.gpus,
        gpu_memory_gb=gpu.memory_gb,
        gpu_watts=gpu.watts,
        engine=machine.engine.key,
        context=context,
        slos=slos,
        power=machine.power,
        runs=tuple(runs),
        too_large=tuple(
            sorted(
                too_large, key=lambda model: (model.min_gpus or MAX_GPUS, model.min_layout or "", model.weights or "")
            )
        ),
    )


def _fitting(model: ModelSpec, machine: OwnMachine, context: int, every_precision: bool) -> list[list[Deployment]]:
    """The layouts that hold one sequence, for each precision of the weights that is looked at."""
    found: dict[Precision, list[Deployment]] = {}
    for kv in KV_PRECISIONS:
        for weights in weight_choices(model):
            if weights in found or (found and not every_precision):
                continue
            single = Deployment(model=model, gpu=machine.gpu, engine=machine.engine, weights=weights, kv=kv)
            layouts = [layout for layout in _layouts(single, machine.gpus) if why_not(layout, context) is None]
            unstaged = [layout for layout in layouts if layout.pp == 1]
            # With a fast link between GPUs nobody takes stages where layers can be split.
            layouts = unstaged if machine.gpu.fast_link_bytes_per_s and unstaged else layouts
            found |= {weights: layouts} if layouts else {}
    return list(found.values())


def _layouts(single: Deployment, gpus: int) -> Iterator[Deployment]:
    """Every way to split the model over some or all of the GPUs: tensor ranks of a node, stages, experts."""
    model = single.model
    for tp in valid_tp(model, min(gpus, single.gpu.gpus_per_node)):
        groups = gpus // tp
        for pp in range(1, min(groups, model.layers) + 1):
            if groups % pp == 0:
                yield single.model_copy(update={"tp": tp, "pp": pp})
        if model.is_moe and tp > 1:
            yield single.model_copy(update={"tp": tp, "ep": tp})


@dataclass(frozen=True)
class _Shared:
    """A layout with as many users as it serves."""

    layout: Deployment
    replicas: int
    batch: int
    """Users of one replica."""
    limited_by: str
    tokens_per_s: float
    """Of all replicas with these users; of one user each where none is served in time."""


def _shared(layout: Deployment, machine: OwnMachine, context: int, slos: Sequence[Slo]) -> _Shared:
    """The users that a layout serves: until memory, the engine's limit or the SLO."""
    tpot_s, ttft_s = (_strictest(slos, latency) for latency in (Latency.tpot, Latency.ttft))
    in_memory, allowed = max_sequences(layout, context), layout.limits.max_sequences
    steps, batches = step_model(layout), np.arange(1, min(in_memory, allowed) + 1)
    step_s = steps.decode(batches.astype(np.float64), context)
    slow = np.flatnonzero(step_s > tpot_s)
    batch, limit = len(batches), "KV memory" if in_memory < allowed else "engine's max sequences"
    if len(slow):
        batch, limit = int(slow[0]), "TPOT SLO"  # of the last batch before the first slow one
    if alone_s(steps, context, output_tokens=2) > ttft_s:
        batch, limit = 0, "TTFT SLO"
    replicas = machine.gpus // layout.gpus
    speed = replicas * max(batch, 1) / float(step_s[max(batch, 1) - 1])
    return _Shared(layout, replicas, batch, limit, speed)


def _at_best(layouts: Sequence[Deployment], machine: OwnMachine, context: int, slos: Sequence[Slo]) -> RunnableModel:
    """The layout that writes most while it meets the SLO; where none does, the one that comes closest."""
    shared = [_shared(layout, machine, context, slos) for layout in layouts]
    served = [one for one in shared if one.batch]
    # Without users all have a batch of one, on so many replicas: the fastest step is what counts then.
    best = max(served or shared, key=lambda one: one.tokens_per_s / (1 if served else one.replicas))
    layout, replicas, model = best.layout, best.replicas, best.layout.model
    alone = predict(layout, 1, context)
    full = predict(layout, best.batch, context) if best.batch else None
    tokens_per_s = _times(full.tokens_per_s, replicas) if full else None
    return RunnableModel(
        model=model.key,
        name=model.name,
        **copied(model, "parameters", "active_parameters"),
        **copied(layout, "weights", "kv", "tp", "pp", "ep", "dp"),
        below_checkpoint=not is_faithful(layout),
        replicas=replicas,
        weight_bytes=model.weight_bytes(layout.weights),
        context=context,
        longest_context=_longest(layout),
        alone_tokens_per_s=alone.tokens_per_s,
        ttft_s=alone.ttft_s,
        users=replicas * best.batch,
        limited_by=best.limited_by,
        tpot_s=full.decode_step_s.mid if full and full.decode_step_s else None,
        tokens_per_s=tokens_per_s,
        speed=known_speed(layout),
        profiled=profiled(layout),
        usd_per_mtok=_prices(machine, layout.gpus * replicas, tokens_per_s.mid, best.batch) if tokens_per_s else None,
    )


def _strictest(slos: Sequence[Slo], latency: Latency) -> float:
    return min((slo.seconds for slo in slos if slo.latency is latency), default=math.inf)


def _times(one: Interval, replicas: int) -> Interval:
    return Interval(low=one.low * replicas, mid=one.mid * replicas, high=one.high * replicas)


def _longest(layout: Deployment) -> int:
    """The most tokens that one sequence can have: more of them never take less memory."""
    lengths = range(1, layout.model.max_context + 1)
    return bisect_left(lengths, True, key=lambda tokens: max_sequences(layout, tokens) < 1)


def _prices(machine: OwnMachine, gpus_used: int, tokens_per_s: float, batch: float) -> LoadPrices | None:
    """At each share of full use: GPUs draw what answers take for that share of the time and else idle, the host always.

    As ``physics.power`` has it; in shares of the datasheet's watts, which ``money.own_hardware`` counts by.
    """
    if machine.power is None:
        return None
    prices, curve, rated = {}, power_of(machine.gpu), machine.gpu.watts
    for name, load in LOADS.items():
        watts = load * curve.decoding(batch) + (1 - load) * curve.idle_w if curve else 0.0
        share = min(1.0, watts / rated) if rated else 1.0
        at_load = machine.power.model_copy(update={"gpus": gpus_used, "gpu_load": share})
        mtok_per_hour = tokens_per_s * load * SECONDS_PER_HOUR / TOKENS_PER_MTOK
        prices[name] = usd_per_hour(at_load, machine.gpu) / mtok_per_hour
    return LoadPrices(**prices)


def _too_large(model: ModelSpec, machine: OwnMachine, context: int) -> TooLarge:
    gpu, engine, kv = machine.gpu, machine.engine, Precision.bf16
    for weights in reversed(weight_choices(model)):
        if why_not_run(engine, gpu, weights, kv) is None:
            single = Deployment(model=model, gpu=gpu, engine=engine, weights=weights, kv=kv)
            least = smallest(single, context)
            return TooLarge(
                model=model.key,
                weights=weights,
                min_gpus=least.gpus if least else None,
                min_layout=least.layout if least else None,
            )
    return TooLarge(model=model.key, weights=None, min_gpus=None)
