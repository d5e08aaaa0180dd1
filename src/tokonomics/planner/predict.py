"""One deployment at one batch, and along all batches: how fast, with an interval, and where the time goes."""

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.money.cost import cost
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Interval, interval, speed_badge
from tokonomics.physics.memory import check_context, max_sequences, require_fit
from tokonomics.physics.steptime import StepParts, step_model
from tokonomics.serving.steady import alone_s
from tokonomics.types import Badge, Noun, copied


class Prediction(Noun):
    """How long a decode step, a prompt's step and a lone request's first token take on a deployment."""

    model: str
    deployment: str
    """In words."""
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
    decode_step_s: Interval
    prefill_s: Interval
    """One prompt of ``context`` tokens: its step in the engine, not yet what a client waits."""
    ttft_s: Interval
    """A request of ``context`` tokens on an idle server, from arrival to its first token at the client."""
    tokens_per_s: Interval
    """Output tokens of the whole batch."""
    parts: StepParts
    speed: Badge
    max_sequences: PositiveInt


class CurvePoint(Noun):
    """A deployment at one batch."""

    batch: PositiveInt
    tpot_s: PositiveFloat
    tokens_per_s: PositiveFloat
    usd_per_mtok: PositiveFloat | None
    """Output tokens only, at full utilisation; None without a price."""
    share_of_linear: NonNegativeFloat
    """Throughput ÷ (batch × throughput of one sequence): how much of the batch's ideal gain is left."""


class BatchCurve(Noun):
    """What batching buys on a deployment, up to what its memory holds."""

    model: str
    deployment: str
    context: PositiveInt
    max_sequences: PositiveInt
    """The KV limit."""
    engine_sequences: PositiveInt
    """What the engine runs at once unless told otherwise."""
    usd_per_hour: PositiveFloat | None
    price_from: str | None
    points: tuple[CurvePoint, ...]


def predict(deployment: Deployment, batch: int, context: int) -> Prediction:
    """A decode step of a batch, and a prompt as long as its context."""
    check_context(deployment.model, context)
    require_fit(deployment, context, batch)
    steps = step_model(deployment)
    parts = steps.parts(batch, context)
    step = interval(parts.step_s, "tpot", deployment)
    prompt = interval(float(steps.prefill(context)), "prefill", deployment)
    alone = interval(alone_s(steps, context, output_tokens=2), "ttft", deployment)
    return Prediction(
        model=deployment.model.key,
        deployment=str(deployment),
        gpu=deployment.gpu.key,
        engine=deployment.engine.key,
        **copied(deployment, "gpus", "tp", "pp", "ep", "dp"),
        weights=deployment.weights.value,
        kv=deployment.kv.value,
        batch=batch,
        context=context,
        decode_step_s=step,
        prefill_s=prompt,
        ttft_s=alone.model_copy(update={"low": max(alone.low, prompt.low)}),  # its class is that of loaded servers
        tokens_per_s=Interval(low=batch / step.high, mid=batch / step.mid, high=batch / step.low),
        parts=parts,
        speed=speed_badge(deployment),
        max_sequences=max_sequences(deployment, context),
    )


def batch_curve(
    deployment: Deployment, context: int, usd_per_hour: float | None = None, price_from: str | None = None
) -> BatchCurve:
    """Throughput, time per token and price at batches from one to the KV limit; ``usd_per_hour`` is of one GPU."""
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
