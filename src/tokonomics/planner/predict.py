"""Predict how fast one deployment is at one batch or at all batches, with an interval, and where the time goes.

Also find the layout of the same GPUs that writes the most tokens, within an SLO or for a given number of sequences. It
compares all layouts of ``sizing.layouts`` in closed form, for sequences of one length, in as many replicas as fit:

    tokens/s = replicas × sequences of each ÷ the time of a decode step
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.models import PromptImages
from tokonomics.money.cost import cost
from tokonomics.physics.calibration import Coverage, profiled
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Interval, interval, kind_of_prompts, known_speed
from tokonomics.physics.memory import check_context, max_sequences, require_fit
from tokonomics.physics.steptime import StepModel, StepParts, step_model
from tokonomics.serving.fleet_settings import network_text
from tokonomics.serving.steady import alone_s, whole_prompts
from tokonomics.sizing.layouts import on_machine
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.types import Noun, Speed, copied


class Prediction(Noun):
    """How long a decode step, a prompt's step and a lone request's first token take on a deployment."""

    model: str
    deployment: str  # as text
    gpu: str
    gpus: int
    tp: int
    pp: int
    ep: int
    dp: int
    weights: str
    kv: str
    engine: str
    batch: PositiveInt
    context: PositiveInt
    images: PromptImages | None = None  # in every prompt, with tokens besides those of ``context``
    decode_step_s: Interval | None  # None for an encoder, which writes nothing
    prefill_s: Interval  # one prompt of ``context`` tokens: its step in the engine, not a client's whole wait
    prompt_bound: Literal["gpu", "host"] = "gpu"
    """What sets ``prefill_s``: the GPU that computes it, or the host that launches its kernels (a slightly shorter
    or longer prompt then takes as long)."""
    ttft_s: Interval  # a request of ``context`` tokens on an idle server, from arrival to its first token at the client
    first_answer_s: Interval | None = None
    """Time to the first token after the thinking, if thinking was asked for, at the speed of this batch."""
    tokens_per_s: Interval  # output tokens of the whole batch; prompt tokens for an encoder
    parts: StepParts | None  # the parts of a decode step
    requests_per_s: Interval | None = None
    """For an encoder, in steps of ``batch`` prompts, or of as many as its engine takes at once."""
    speed: Speed
    profiled: Coverage | None = None  # whether the profile in use was measured on this layout; None without a profile
    max_sequences: PositiveInt
    network: str | None = None
    """The assumed network between the machines of a replica, with its source; None if the replica fits one machine."""


class CurvePoint(Noun):
    """A deployment at one batch."""

    batch: PositiveInt
    tpot_s: PositiveFloat
    tokens_per_s: PositiveFloat
    usd_per_mtok: PositiveFloat | None  # for output tokens, at full utilisation; None without a price
    share_of_linear: NonNegativeFloat
    """Throughput ÷ (batch × throughput of one sequence): the share of the batch's ideal gain that is left."""


class BatchCurve(Noun):
    """The gain from batching on a deployment, up to what its memory holds."""

    model: str
    deployment: str
    context: PositiveInt
    max_sequences: PositiveInt  # the KV limit
    engine_sequences: PositiveInt  # what the engine runs at once by default
    usd_per_hour: PositiveFloat | None
    price_from: str | None
    points: tuple[CurvePoint, ...]


def predict(deployment: Deployment, batch: int, context: int, thinking: int | None = None) -> Prediction:
    """Predict a decode step of a batch and a prompt as long as its context; an encoder steps ``batch`` prompts."""
    model = deployment.model
    images, text = model.images, context
    context += images.tokens if images else 0
    check_context(model, context)
    require_fit(deployment, context, batch)
    steps = step_model(deployment)
    prompt = _prompts(steps, context)
    alone = _after(
        prompt, interval(alone_s(steps, context, output_tokens=1 if model.is_encoder else 2), "ttft", deployment)
    )
    if model.is_encoder:
        # A step holds whole prompts within its token budget; the rest of a larger batch goes into the next.
        at_once = min(batch, whole_prompts(deployment, context))
        together = _prompts(steps, context, at_once)
        speeds: dict[str, object] = {
            "decode_step_s": None,
            "parts": None,
            "tokens_per_s": _per_second(at_once * context, together),
            "requests_per_s": _per_second(at_once, together),
        }
    else:
        parts = steps.parts(batch, context)
        step = interval(parts.step_s, "tpot", deployment).not_faster_than(float(steps.floor.decode(batch, context)))
        ends = {end: getattr(alone, end) + (thinking or 0) * getattr(step, end) for end in ("low", "mid", "high")}
        speeds = {
            "decode_step_s": step,
            "parts": parts,
            "tokens_per_s": _per_second(batch, step),
            "first_answer_s": Interval(**ends) if thinking else None,
        }
    return Prediction(
        model=deployment.model.key,
        deployment=str(deployment),
        gpu=deployment.gpu.key,
        engine=deployment.engine.key,
        **copied(deployment, "gpus", "tp", "pp", "ep", "dp"),
        weights=deployment.weights.value,
        kv=deployment.kv.value,
        batch=batch,
        context=text,
        images=images,
        prefill_s=prompt,
        prompt_bound="host" if steps.is_host_bound(context) else "gpu",
        ttft_s=alone,
        **speeds,
        speed=known_speed(deployment),
        profiled=profiled(deployment),
        max_sequences=max_sequences(deployment, context),
        network=network_text(deployment.gpu) if deployment.uses_network else None,
    )


def _prompts(steps: StepModel, context: int, prompts: int = 1) -> Interval:
    """Return the time of one step of whole prompts; its fast end is no faster than the datasheet allows."""
    asked = (prompts * context, 0, prompts)
    found = interval(float(steps.prefill(*asked)), kind_of_prompts(steps.deployment), steps.deployment)
    return found.not_faster_than(float(steps.floor.prefill(*asked)))


def _after(prompt: Interval, first: Interval) -> Interval:
    """Return the interval of a first token: no end is earlier than its prompt's step and its wait can be."""
    wait = (first.mid - prompt.mid) / first.mid
    ends = {end: max(getattr(first, end), getattr(prompt, end) + wait * getattr(first, end)) for end in ("low", "high")}
    return first.model_copy(update=ends)


def _per_second(number: float, step: Interval) -> Interval:
    return Interval(low=number / step.high, mid=number / step.mid, high=number / step.low)


def batch_curve(
    deployment: Deployment, context: int, usd_per_hour: float | None = None, price_from: str | None = None
) -> BatchCurve:
    """Return throughput, time per token and price at batches from one to the KV limit; ``usd_per_hour`` is per GPU."""
    check_context(deployment.model, context)
    require_fit(deployment, context)
    largest = max_sequences(deployment, context)
    batches = np.unique([*(1 << power for power in range(largest.bit_length())), largest])
    steps_s = step_model(deployment).decode(batches, context)
    alone = 1 / float(steps_s[0])
    points = []
    for batch, step_s in zip(batches.tolist(), steps_s.tolist(), strict=True):
        speed = batch / step_s
        price = cost(usd_per_hour, speed, 1.0, deployment.gpus).usd_per_mtok if usd_per_hour else None
        left = speed / (batch * alone)
        point = CurvePoint(batch=batch, tpot_s=step_s, tokens_per_s=speed, usd_per_mtok=price, share_of_linear=left)
        points.append(point)
    return BatchCurve(
        model=deployment.model.name,
        deployment=str(deployment),
        context=context,
        max_sequences=largest,
        engine_sequences=deployment.limits.max_sequences,
        usd_per_hour=usd_per_hour * deployment.gpus if usd_per_hour else None,
        price_from=price_from,
        points=tuple(points),
    )


_WORTH = 1.1
"""Times the tokens/s of the given layout: a smaller gain is within the error of a prediction (``tokonomics calibrate
--score``)."""


@dataclass(frozen=True)
class AtOnce:
    """A layout on some GPUs, with the number of users it serves at once."""

    layout: Deployment
    replicas: int
    batch: int  # users of one replica; 0 if not even one is served in time
    limited_by: str
    tokens_per_s: float  # of all replicas with these users; with one user each if none is served in time

    @property
    def rank(self) -> tuple[bool, float]:
        """Rank by tokens/s if users are served in time, or else by the fastest step; higher is better."""
        return self.batch > 0, self.tokens_per_s / (1 if self.batch else self.replicas)


def at_once(layout: Deployment, gpus: int, context: int, slos: Sequence[Slo]) -> AtOnce:
    """Find how many users a layout serves, limited by memory, the engine, the SLO, or the highest throughput."""
    strictest = {slo.latency: slo.seconds for slo in sorted(slos, key=lambda slo: -slo.seconds)}
    tpot_s, ttft_s = (strictest.get(latency, math.inf) for latency in (Latency.tpot, Latency.ttft))
    in_memory, allowed = max_sequences(layout, context), layout.limits.max_sequences
    steps, batches = step_model(layout), np.arange(1, min(in_memory, allowed) + 1)
    step_s = steps.decode(batches.astype(np.float64), context)
    slow = np.flatnonzero(step_s > tpot_s)
    batch, limit = len(batches), "KV memory" if in_memory < allowed else "engine's max sequences"
    if len(slow):
        batch, limit = int(slow[0]), "TPOT SLO"  # the last batch before the first slow one
    if batch > (most := int(np.argmax(batches[:batch] / step_s[:batch])) + 1 if batch else 0):
        batch, limit = most, "larger batches write less"
    captured = steps.engine.graph_tokens if steps.engine else 0
    if captured and batch == captured * layout.dp * layout.pp and limit in ("TPOT SLO", "larger batches write less"):
        limit = f"captured graphs end at {captured:,} sequences"  # a step with one more is launched kernel by kernel
    if batch > layout.dp:
        batch -= batch % layout.dp  # every attention rank has the same limit
    if alone_s(steps, context, output_tokens=2) > ttft_s:
        batch, limit = 0, "TTFT SLO"
    replicas = gpus // layout.gpus
    speed = replicas * max(batch, 1) / float(step_s[max(batch, 1) - 1])
    return AtOnce(layout, replicas, batch, limit, speed)


class FasterLayout(Noun):
    """Another layout on the same GPUs, at the same precisions, that writes more tokens."""

    tp: int
    pp: int
    ep: int
    dp: int
    replicas: PositiveInt
    batch: PositiveInt  # sequences of each replica
    tpot_s: PositiveFloat
    tokens_per_s: PositiveFloat  # on all replicas
    times: PositiveFloat  # its tokens/s ÷ those of the given layout


def faster_at(asked: Deployment, batch: int, context: int) -> FasterLayout | None:
    """Find the layout that writes most with ``batch`` sequences in all; None if none is worth mentioning."""

    def shared(layout: Deployment) -> AtOnce | None:
        replicas = asked.gpus // layout.gpus
        each = math.ceil(batch / replicas)
        if each > max_sequences(layout, context):
            return None
        return AtOnce(layout, replicas, each, "", batch / float(step_model(layout).decode(each, context)))

    ways = [way for layout in on_machine(asked, asked.gpus, context) if (way := shared(layout))]
    now = shared(asked)
    return _faster(ways, now, context) if now else None


def faster_within(asked: Deployment, context: int, slos: Sequence[Slo]) -> FasterLayout | None:
    """Find the layout that writes most within the SLOs; None if none is worth mentioning."""
    ways = [at_once(layout, asked.gpus, context, slos) for layout in on_machine(asked, asked.gpus, context)]
    return _faster([way for way in ways if way.batch], at_once(asked, asked.gpus, context, slos), context)


def _faster(ways: Sequence[AtOnce], now: AtOnce, context: int) -> FasterLayout | None:
    best = max(ways, key=lambda way: way.tokens_per_s, default=now)
    times = best.tokens_per_s / now.tokens_per_s
    if best.layout == now.layout or (now.batch and times < _WORTH):
        return None
    return FasterLayout(
        **copied(best.layout, "tp", "pp", "ep", "dp"),
        **copied(best, "replicas", "batch", "tokens_per_s"),
        tpot_s=float(step_model(best.layout).decode(best.batch, context)),
        times=times,
    )
