"""Compare one base model with many LoRA adapters to a deployment for each: memory, time per step, capacity and bill.

An adapter is two thin matrices beside every dense product of every layer; each loaded adapter takes memory from the KV
cache and launches blocks at each step that uses any. A batch that mixes adapters also computes those of each of them
(``physics.steptime``, which assumes that every sequence uses a different one as long as there are enough: the most
expensive case). How many a batch really mixes follows from the tenants' shares. In its own deployment an adapter is
merged into the weights and costs no time, but needs at least one replica, however little it is used.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from tokonomics.errors import BadInput
from tokonomics.levers.tenancy import Pooling, Sharing
from tokonomics.money.cost import BeforeAfter, replica_hour
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import adapter_bytes, kv_budget_bytes, max_sequences
from tokonomics.physics.steptime import decode_step
from tokonomics.traffic.tenants import tenant_numbers
from tokonomics.types import Noun


class LoraStep(Noun):
    """A decode step whose sequences use some number of adapters."""

    adapters: NonNegativeInt
    step_s: PositiveFloat
    slower: float  # share by which it is longer than without adapters


class Lora(Noun):
    """What adapters cost a replica."""

    rank: PositiveInt
    adapters: PositiveInt
    bytes_each: NonNegativeFloat  # over all GPUs of a replica
    kv_bytes: NonNegativeInt  # left for KV with all adapters loaded; over all GPUs
    kv_bytes_without: NonNegativeInt
    batch: PositiveInt
    context: PositiveInt
    sequences: NonNegativeInt  # sequences of that context that fit at once
    sequences_without: NonNegativeInt
    mixed: NonNegativeFloat  # mean adapters that a batch of that size uses, from the tenants' shares
    steps: tuple[LoraStep, ...]  # with no adapter, one, the batch's mean number, and the most it can have
    most_adapters: NonNegativeInt  # that leave room for the batch at that context; more can wait in the host's memory


class LoraLever(Noun):
    """One base for all adapters, compared to a deployment for each."""

    lora: Lora
    bill: BeforeAfter
    """The bill of an hour; an adapter that no tenant of the trace uses needs one replica in its own deployment."""


def lora_lever(sharing: Sharing, pooling: Pooling) -> LoraLever:
    """Compare both ways, with adapters at the mean batch and context of the shared fleet."""
    trace, deployment = sharing.trace, sharing.shared
    shares = np.bincount(tenant_numbers(trace)) / len(trace)
    context = float((trace.input_tokens + trace.output_tokens / 2).mean())
    made = lora(deployment, max(1, round(pooling.batch)), max(1, round(context)), shares.tolist())
    apart = pooling.apart.replicas + max(0, deployment.lora_adapters - len(pooling.tenants))
    before = replica_hour("a deployment for each", apart, sharing.usd_per_replica_hour(apart))
    return LoraLever(lora=made, bill=BeforeAfter(before=before, after=pooling.bill.after))


def lora(deployment: Deployment, batch: int, context: int, shares: Sequence[float] = ()) -> Lora:
    """Return the cost of adapters at a batch and context; ``shares`` of requests are by adapter, by default equal."""
    if not deployment.lora_adapters:
        raise BadInput("how many adapters, of which rank?", field="lora_rank, lora_adapters")
    plain = deployment.model_copy(update={"lora_adapters": 0, "lora_rank": 0})
    shares = shares or [1 / deployment.lora_adapters] * deployment.lora_adapters
    mixed = distinct_adapters(shares, batch)
    before = float(decode_step(plain, batch, context))
    steps = []
    for count in sorted({0, 1, round(mixed), min(batch, deployment.lora_adapters)}):
        used = deployment.model_copy(update={"lora_in_batch": float(count)}) if count else plain
        step_s = float(decode_step(used, batch, context))
        steps.append(LoraStep(adapters=count, step_s=step_s, slower=step_s / before - 1))
    return Lora(
        rank=deployment.lora_rank,
        adapters=deployment.lora_adapters,
        bytes_each=adapter_bytes(_with(deployment, 1)) * deployment.gpus,
        kv_bytes=max(0, kv_budget_bytes(deployment)) * deployment.gpus,
        kv_bytes_without=max(0, kv_budget_bytes(plain)) * deployment.gpus,
        batch=batch,
        context=context,
        sequences=max_sequences(deployment, context),
        sequences_without=max_sequences(plain, context),
        mixed=mixed,
        steps=tuple(steps),
        most_adapters=most_adapters(deployment, batch, context),
    )


def distinct_adapters(shares: Sequence[float], batch: float) -> float:
    """Return how many adapters a batch of random requests uses on average."""
    return math.fsum(1.0 - math.pow(1.0 - share, batch) for share in shares)


def most_adapters(deployment: Deployment, batch: int, context: int) -> int:
    """Return, by bisection, the most adapters beside which a batch still fits in memory."""

    def fits(count: int) -> bool:
        return max_sequences(_with(deployment, count), context) >= batch

    if not fits(0):
        return 0
    many = 1
    while fits(many):
        many *= 2
    return bisect_left(range(1, many), True, key=lambda count: not fits(count))


def _with(deployment: Deployment, adapters: int) -> Deployment:
    return deployment.model_copy(update={"lora_adapters": adapters})
