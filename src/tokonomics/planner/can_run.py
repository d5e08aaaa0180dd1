"""Find what your own machine can run: for each model a precision that fits, its layout, speed, users and dollars.

A model is tried at the precisions that every verb tries (``sizing.layouts``), then at fewer bits if nothing fits, and
with the KV cache in FP8 last. For a catalogue, each model gets its best layout at the first precision that fits; for
named models, every layout is listed. The best layout writes the most tokens a second within the SLO, in as many
replicas as the GPUs hold. A user is one answer being written with its context full. The number of users is limited by
memory, by the engine, and by the SLO on each user's time per token. Prompts that arrive meanwhile are not counted;
``simulate`` and ``capacity`` count them.

    $/Mtok at a load = dollars an hour at that load ÷ (output tokens/s of all users × load × 3600 ÷ 10⁶)
"""

import math
import re
import shlex
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product, starmap

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import Gpu
from tokonomics.catalog.layers import KV_PRECISIONS, Precision
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import MAX_GPUS
from tokonomics.errors import BadInput
from tokonomics.money.own_hardware import Power, Purchase, usd_per_hour
from tokonomics.physics.calibration import Coverage, profiled
from tokonomics.physics.curves import power_of
from tokonomics.physics.deployment import Deployment, default_kv, why_not_run
from tokonomics.physics.intervals import Interval, known_speed
from tokonomics.physics.memory import max_sequences, smallest
from tokonomics.planner.predict import AtOnce, at_once, predict
from tokonomics.sizing.engine_flags import ServerPlan, copies_in_one_server, engine_command
from tokonomics.sizing.layouts import is_faithful, on_machine, weight_choices
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun, Speed, copied
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK

SHORTLIST = 15  # models that a person would look at first: one screen
_FEWER_BITS = (Precision.int4, Precision.int8)
LOADS = {"full": 1.0, "half": 0.5, "tenth": 0.1}
"""Shares of full use at which a million tokens is priced: most people's own machines are idle most of the day."""


@dataclass(frozen=True)
class OwnMachine:
    """GPUs in one machine, the engine on them, and the cost of keeping it."""

    gpu: Gpu
    gpus: int
    engine: Engine
    power: Power | None = None  # None: no dollars wanted


class LoadPrices(Noun):
    """The price of a million output tokens if all users are busy all the time, half of it, or a tenth of it."""

    full: NonNegativeFloat
    half: NonNegativeFloat
    tenth: NonNegativeFloat


class RunnableModel(Noun):
    """A model on the machine, at one precision in one layout."""

    model: str
    name: str
    parameters: PositiveInt
    active_parameters: PositiveInt
    weights: Precision
    kv: Precision
    below_checkpoint: bool  # weights or KV cache at fewer bits than published
    tp: int
    pp: int
    ep: int
    dp: int
    replicas: PositiveInt
    weight_bytes: PositiveInt  # the whole model, once
    context: PositiveInt  # tokens of every sequence: as asked, or the most that the model accepts
    longest_context: PositiveInt  # of a sequence alone in memory
    alone_tokens_per_s: Interval  # output tokens of one user on an idle server
    ttft_s: Interval  # a prompt of ``context`` tokens on an idle server
    users: NonNegativeInt  # answers written at once within the SLO, on all replicas; 0: even one user is too slow
    limited_by: str  # what limits the number of users
    tpot_s: PositiveFloat | None  # for each of these users
    tokens_per_s: Interval | None  # output tokens of all of them
    kv_tokens: PositiveInt  # KV tokens that memory holds in whole sequences of ``context``, on all replicas
    command: str | None
    """The command that starts one replica, or all of them if the engine can, with the split and the users as its
    limit; None for an engine whose flags are not known."""
    speed: Speed
    profiled: Coverage | None = None  # whether the profile in use was measured on this layout; None without a profile
    usd_per_mtok: LoadPrices | None
    """Output tokens; None if no price of a kilowatt-hour is known, or nobody is served."""


class TooLarge(Noun):
    """A model that does not fit the machine."""

    model: str
    weights: Precision | None  # the fewest bits tried; None: the engine runs none of them on this GPU
    min_gpus: PositiveInt | None
    """The fewest GPUs, in a number that is sold, that hold one sequence at these bits; None: no number does."""
    min_layout: str | None = None  # its layout on them


class CanRun(Noun):
    """Models on one machine, largest first: the best layout of each, or every layout, fastest first."""

    gpu: str
    gpus: PositiveInt
    gpu_memory_gb: PositiveFloat
    gpu_watts: PositiveFloat | None
    engine: str
    context: PositiveInt
    slos: tuple[Slo, ...]
    every_layout: bool  # whether each model has every layout, not only its best
    tried: tuple[Precision, ...] = ()  # precisions of weights tried first, of all models
    not_run: tuple[Precision, ...] = ()  # those that would be tried too if the engine ran them on this GPU
    fewer_bits: Precision | None = None  # what else may be asked for: INT4, or INT8 if the engine does not run that
    power: Purchase | Power | None
    runs: tuple[RunnableModel, ...]
    too_large: tuple[TooLarge, ...]


def can_run(
    models: Sequence[ModelSpec],
    machine: OwnMachine,
    context: int,
    slos: tuple[Slo, ...],
    *,
    weights: tuple[Precision, ...] | None = None,
    kv: tuple[Precision, ...] | None = None,
    every_layout: bool = False,
    longest: int = 0,
) -> CanRun:
    """Find the models that fit: the best layout of each, or every layout, most tokens within the SLO first.

    ``context`` is the length of every sequence in memory; servers are started for requests up to ``longest``, if
    longer.
    """
    runs: list[RunnableModel] = []
    too_large: list[TooLarge] = []
    # At the same size, the newest version has the last name.
    by_name = sorted(models, key=lambda model: model.key, reverse=True)
    for model in sorted(by_name, key=lambda model: -model.parameters):
        tokens = min(context, model.max_context)
        layouts = _fitting(model, machine, tokens, weights, kv, every_layout)
        found = [at_once(layout, machine.gpus, tokens, slos) for layout in layouts]
        ranked = sorted(found, key=lambda one: one.rank, reverse=True)
        runs += [_row(one, machine, tokens, longest) for one in (ranked if every_layout else ranked[:1])]
        too_large += [] if found else [_too_large(model, machine, tokens, weights)]

    def refuses(precision: Precision) -> bool:
        return why_not_run(machine.engine, machine.gpu, precision, Precision.bf16) is not None

    first = dict.fromkeys(
        chain.from_iterable(machine.engine.loads(weights or weight_choices(model)) for model in models)
    )
    not_run = [one for one in first if refuses(one)]
    too_large.sort(key=lambda model: (model.min_gpus or MAX_GPUS, model.min_layout or "", model.weights or ""))
    gpu = machine.gpu
    return CanRun(
        gpu=gpu.key,
        gpus=machine.gpus,
        gpu_memory_gb=gpu.memory_gb,
        gpu_watts=gpu.watts,
        engine=machine.engine.key,
        context=context,
        slos=slos,
        every_layout=every_layout,
        tried=tuple(precision for precision in first if precision not in not_run),
        not_run=tuple(not_run),
        fewer_bits=next((one for one in _FEWER_BITS if not refuses(one)), None),
        power=machine.power,
        runs=tuple(runs),
        too_large=tuple(too_large),
    )


def shortlist(runs: Sequence[RunnableModel], models: Sequence[ModelSpec]) -> list[RunnableModel]:
    """Pick the models a person would try first: the newest of each maker, size and kind, most capable first.

    A model counts as twice as capable for twice its parameters or for a year less of age. A mixture of experts counts
    as a dense model of the geometric mean of its total and its active parameters, a common rule of thumb. A model below
    8 bits, unless it is published so, counts as half its size. Models that serve nobody within the SLO, or whose
    release date is not known, come last. This is our choice: it orders a screen, and no number depends on it.
    """
    known = {model.key: model for model in models}

    def capable(row: RunnableModel) -> float:
        model = known.get(row.model)
        if model is None or model.released is None or not row.users:
            return -math.inf
        size = math.log2(row.parameters * row.active_parameters) / 2
        squeezed = row.below_checkpoint and row.weights.bits < 8
        return size - squeezed + model.released.toordinal() / 365.25

    def alike(row: RunnableModel) -> tuple[str, int, bool]:
        """Return its maker (``Qwen`` for Qwen2.5-VL), its size within a factor of two, and whether it has experts."""
        family = known[row.model].family if row.model in known else row.model
        maker = re.split(r"[\d ]", family)[0].rstrip("-")
        return maker, round(math.log2(row.parameters)), row.active_parameters < row.parameters / 2

    best: dict[tuple[str, int, bool], RunnableModel] = {}
    for row in sorted(runs, key=capable, reverse=True):
        best.setdefault(alike(row), row)
    return list(best.values())[:SHORTLIST]


def _fitting(
    model: ModelSpec,
    machine: OwnMachine,
    context: int,
    weights: tuple[Precision, ...] | None,
    kv: tuple[Precision, ...] | None,
    every: bool,
) -> list[Deployment]:
    """Return the layouts that hold one sequence: all of them if ``every``, or those of the first precision that fits.

    With ``every``, the given or default precisions are tried first; if none fits, the first lower one that does counts.
    """

    def layouts(weight: Precision, cached: Precision) -> list[Deployment]:
        like = Deployment(model=model, gpu=machine.gpu, engine=machine.engine, weights=weight, kv=cached)
        return on_machine(like, machine.gpus, context)

    usual = default_kv(model, machine.gpu, machine.engine)
    if every:
        tried = product(machine.engine.loads(weights or weight_choices(model)), kv or (usual,))
        if found := list(chain.from_iterable(starmap(layouts, tried))):
            return found
    choices = machine.engine.loads(weights or weight_choices(model, floor=None))
    each = (layouts(weight, cached) for cached in kv or dict.fromkeys((usual, *KV_PRECISIONS)) for weight in choices)
    return next(filter(None, each), [])


def _row(best: AtOnce, machine: OwnMachine, context: int, longest: int) -> RunnableModel:
    layout, replicas, model = best.layout, best.replicas, best.layout.model
    # The longest possible sequence: more tokens never take less memory.
    lengths = range(1, model.max_context + 1)
    most_context = bisect_left(lengths, True, key=lambda tokens: max_sequences(layout, tokens) < 1)
    alone = predict(layout, 1, context)
    full = predict(layout, best.batch, context) if best.batch else None
    one = full.tokens_per_s if full else None
    tokens_per_s = one and Interval(low=one.low * replicas, mid=one.mid * replicas, high=one.high * replicas)
    return RunnableModel(
        model=model.key,
        name=model.name,
        **copied(model, "parameters", "active_parameters"),
        **copied(layout, "weights", "kv", "tp", "pp", "ep", "dp"),
        below_checkpoint=not is_faithful(layout),
        replicas=replicas,
        weight_bytes=model.weight_bytes(layout.weights),
        context=context,
        longest_context=most_context,
        alone_tokens_per_s=alone.tokens_per_s,
        ttft_s=alone.ttft_s,
        users=replicas * best.batch,
        limited_by=best.limited_by,
        tpot_s=full.decode_step_s.mid if full and full.decode_step_s else None,
        tokens_per_s=tokens_per_s,
        kv_tokens=replicas * context * max_sequences(layout, context),
        command=_command(best, max(context, min(longest, most_context))),
        speed=known_speed(layout),
        profiled=profiled(layout),
        usd_per_mtok=_prices(machine, layout.gpus * replicas, tokens_per_s.mid, best.batch) if tokens_per_s else None,
    )


def _command(best: AtOnce, context: int) -> str | None:
    """Return the start command of a deploy file, with a machine's replicas behind one port if the engine can."""
    layout = best.layout
    # The same number for each attention group, and no more than are served in time.
    most = max(1, best.batch // layout.dp) * layout.dp
    limits = layout.limits.model_copy(update={"max_sequences": most})
    nodes = math.ceil(best.replicas * layout.gpus / layout.gpu.gpus_per_node)
    try:
        command = engine_command(ServerPlan(layout, limits, context))
    except BadInput:  # this engine's flags are not known
        return None
    copies = copies_in_one_server(layout, math.ceil(best.replicas / nodes))
    return shlex.join((*command.program, *command.arguments, *(copies or ())))


def _prices(machine: OwnMachine, gpus_used: int, tokens_per_s: float, batch: float) -> LoadPrices | None:
    """Price each share of full use: GPUs draw power to answer for that share of the time and idle otherwise.

    The host always draws power. Watts follow ``physics.curves``, as shares of the datasheet's, which
    ``money.own_hardware`` uses.
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


def _too_large(model: ModelSpec, machine: OwnMachine, context: int, weights: tuple[Precision, ...] | None) -> TooLarge:
    gpu, engine, kv = machine.gpu, machine.engine, default_kv(model, machine.gpu, machine.engine)
    lowest = engine.loads(weights or weight_choices(model, floor=None))
    for fewest in sorted(lowest, key=lambda precision: precision.bits):
        if why_not_run(engine, gpu, fewest, kv) is None:
            single = Deployment(model=model, gpu=gpu, engine=engine, weights=fewest, kv=kv)
            least = smallest(single, context)
            return TooLarge(
                model=model.key,
                weights=fewest,
                min_gpus=least.gpus if least else None,
                min_layout=least.layout if least else None,
            )
    return TooLarge(model=model.key, weights=None, min_gpus=None)
