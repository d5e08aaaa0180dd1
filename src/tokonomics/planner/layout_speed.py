"""Which layout of some GPUs writes the most tokens: within an SLO, or with a given number of sequences.

In closed form, at sequences of one length, all layouts of ``sizing.layouts`` in as many replicas as the GPUs hold:

    tokens/s = replicas × sequences of each ÷ the time of a decode step
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveFloat, PositiveInt

from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import step_model
from tokonomics.serving.steady import alone_s
from tokonomics.sizing.layouts import on_machine
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.types import Noun, copied

_WORTH = 1.1
"""Of the asked layout's tokens/s: less is within what a prediction is off by (``tokonomics validate``)."""


@dataclass(frozen=True)
class AtOnce:
    """A layout on some GPUs, with as many users as it serves at once."""

    layout: Deployment
    replicas: int
    batch: int
    """Users of one replica; 0 where not even one is served in time."""
    limited_by: str
    tokens_per_s: float
    """Of all replicas with these users; of one user each where none is served in time."""

    @property
    def rank(self) -> tuple[bool, float]:
        """Higher is better: what serves users in time, by its tokens/s; the fastest step where none is served."""
        return self.batch > 0, self.tokens_per_s / (1 if self.batch else self.replicas)


def at_once(layout: Deployment, gpus: int, context: int, slos: Sequence[Slo]) -> AtOnce:
    """The users that a layout serves: until memory, the engine's limit, the SLO, or the most tokens a second."""
    tpot_s, ttft_s = (_strictest(slos, latency) for latency in (Latency.tpot, Latency.ttft))
    in_memory, allowed = max_sequences(layout, context), layout.limits.max_sequences
    steps, batches = step_model(layout), np.arange(1, min(in_memory, allowed) + 1)
    step_s = steps.decode(batches.astype(np.float64), context)
    slow = np.flatnonzero(step_s > tpot_s)
    batch, limit = len(batches), "KV memory" if in_memory < allowed else "engine's max sequences"
    if len(slow):
        batch, limit = int(slow[0]), "TPOT SLO"  # of the last batch before the first slow one
    if batch > (most := int(np.argmax(batches[:batch] / step_s[:batch])) + 1 if batch else 0):
        batch, limit = most, "larger batches write less"  # above the sizes that an engine captures as graphs
    if batch > layout.dp:
        batch -= batch % layout.dp  # every rank of the attention has the same limit
    if alone_s(steps, context, output_tokens=2) > ttft_s:
        batch, limit = 0, "TTFT SLO"
    replicas = gpus // layout.gpus
    speed = replicas * max(batch, 1) / float(step_s[max(batch, 1) - 1])
    return AtOnce(layout, replicas, batch, limit, speed)


def _strictest(slos: Sequence[Slo], latency: Latency) -> float:
    return min((slo.seconds for slo in slos if slo.latency is latency), default=math.inf)


class FasterLayout(Noun):
    """Another layout on the same GPUs, at the same precisions, that writes more tokens."""

    tp: int
    pp: int
    ep: int
    dp: int
    replicas: PositiveInt
    batch: PositiveInt
    """Sequences of each replica."""
    tpot_s: PositiveFloat
    tokens_per_s: PositiveFloat
    """Of all replicas."""
    times: PositiveFloat
    """As many tokens/s as the layout that was asked for."""


def faster_at(asked: Deployment, batch: int, context: int) -> FasterLayout | None:
    """The layout that writes most with so many sequences in all; None where none is worth a word."""

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
    """The layout that writes most within the SLOs; None where none is worth a word."""
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
