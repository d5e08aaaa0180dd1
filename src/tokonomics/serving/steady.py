"""Compute a replica under load in closed form: batch, time per token, time to the first token, tokens a second.

While ``batch`` requests are running, each needs its prompt computed once, which writes the first token of its answer,
and one step for each token after it. A prompt delays the others by ``stall``: what its chunks add to the decode steps
they join (or the host's launches, if they take longer), or a step of their own in engines that do not mix the two. If
they mix, one in ``output`` of the batch is at its prompt in any step: ``beside`` = (batch - 1) × (1 - 1 ÷ output)
others decode. So, averaged over an answer of ``output`` tokens,

    tpot(batch) = step(1 + beside) + (batch - 1) × stall ÷ output
    rate(batch) = batch ÷ (batch × stall + step(beside) + (output - 1) × step(1 + beside))

If they do not mix, all others decode, and none in a prompt's own step. Both rise with the batch. One process receives
requests (``physics.overhead``): its capacity limits the rate. Under a constant rate of random arrivals the batch is
where rate(batch) equals it; with a fixed number of users it is that number; if the queue never empties it is what
memory and the engine's limits allow. The first token waits for the prompts before its own (M/D/1, Pollaczek-Khinchine;
with attention groups, each of which has prompts of its own, M/D/c, Sakasegawa) and for one of the batch's places
(Sakasegawa). The simulator replaces both if bursts matter. An encoder has no answers: its batch is the prompts of a
step, as many whole ones as its token budget holds, and ``stall`` is each one's part of that step.
"""

import math
from typing import NamedTuple

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.errors import TokonomicsError
from tokonomics.physics.curves import Array
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences, require_fit
from tokonomics.physics.overhead import TOGETHER
from tokonomics.physics.steptime import StepModel, step_model
from tokonomics.types import Noun
from tokonomics.units import seconds, seconds_apart

_FIRST_ROUND = 0.3
"""Share of a closed-loop benchmark's prompts that queue behind each other because all its users start at once: median
over published results of engines that mix prompts with answers (0.2 to 0.45 from 16 users on; split calibrate)."""
_FULLEST = 0.999  # a queue at full load never empties: waiting is computed up to this share
_NO_STEP_S = 1e-12  # a decode step of answers without one: negligible beside any other time
FRONT_END = "engine's front end"
"""The limit on the rate of a replica whose requests take less time than receiving them."""

REPLICA_SPEED = "replica's speed"
"""The limit on a batch that would hardly finish more if it were larger: compute, bandwidth for its KV, or the host."""
_HARDLY_MORE = 0.1  # gain in requests by twice the batch: below it, room for sequences is not the limit (our choice)


class Steady(Noun):
    """One replica under a load."""

    rate: PositiveFloat  # requests finished a second
    batch: PositiveFloat
    tpot_s: PositiveFloat
    ttft_s: PositiveFloat  # mean, waiting included
    output_tokens_per_s: PositiveFloat
    total_tokens_per_s: PositiveFloat
    load_share: NonNegativeFloat  # rate ÷ the highest rate that it serves


class Capacity(Noun):
    """The most that one replica serves of requests of one shape."""

    rate: PositiveFloat
    batch: PositiveInt
    tpot_s: PositiveFloat
    prefill_share: NonNegativeFloat  # share of the GPU's time that prompts take at this load
    limited_by: str


class MissesSlo(TokonomicsError):
    """Raised if even one request at a time is slower than the SLO; carries the fastest TPOT."""

    def __init__(self, what: str, *, tpot_s: float, objective_s: float) -> None:
        super().__init__(what)
        self.tpot_s = tpot_s
        self.objective_s = objective_s


def _misses_slo(fastest_s: float, slo_s: float) -> MissesSlo:
    what = (
        f"misses the SLO: TPOT is {seconds_apart(fastest_s, slo_s)} for a single request; the SLO is {seconds(slo_s)}"
    )
    return MissesSlo(what, tpot_s=fastest_s, objective_s=slo_s)


def prefill_only_rate(steps: StepModel, input_tokens: int) -> float:
    """Return the most prompts a second of a replica that computes nothing else: every step is full of them."""
    deployment, on_gpu, groups = steps.deployment, steps.with_engine(None), steps.deployment.dp
    budget = deployment.group_limits.max_batched_tokens
    together = budget / input_tokens if deployment.engine.chunks_prefill else float(budget // input_tokens)
    if together > 1:
        together *= groups
        each_s = float(on_gpu.prefill(together * input_tokens, 0, together)) / together
    else:
        # Every group has a chunk of its own prompt.
        chunks = prompt_chunks(deployment, input_tokens)
        pasts = np.cumsum(chunks) - chunks
        parts = (on_gpu.prefill(groups * chunk, past, groups) for chunk, past in zip(chunks, pasts, strict=True))
        each_s = sum(float(part) for part in parts) / groups
    # Pipeline stages work on different prompts at once.
    return min(deployment.pp / each_s, received_per_s(steps, input_tokens))


def received_per_s(steps: StepModel, input_tokens: int) -> float:
    """Return the most requests a second that the engine's front end hands on, taking as many together as it can."""
    engine = steps.engine
    each_s = engine.request_s + engine.token_s * input_tokens / TOGETHER if engine else 0.0
    return 1 / each_s if each_s else math.inf


def alone_s(steps: StepModel, input_tokens: int, output_tokens: int) -> float:
    """Return the time from a request's arrival to its first token at the client, on an empty replica."""
    outside_s = steps.engine.request_seconds(input_tokens) if steps.engine else 0.0
    return max(_computed_and_told_s(steps, input_tokens, output_tokens)) + outside_s


def _computed_and_told_s(steps: StepModel, input_tokens: int, output_tokens: int) -> tuple[float, float]:
    """Return when a prompt on an empty replica is computed and when its client gets the token, as in ``scheduler``."""
    on_gpu, engine = steps.with_engine(None), steps.engine
    chunks = prompt_chunks(steps.deployment, input_tokens)
    pasts = np.cumsum(chunks) - chunks
    if engine is None or not engine.overlapped:
        total = sum(float(steps.prefill(chunk, past)) for chunk, past in zip(chunks, pasts, strict=True))
        return total, total
    done_s = composed_s = 0.0
    for chunk, past in zip(chunks, pasts, strict=True):
        launched_s = composed_s + float(steps.launch_s(chunk)) + engine.sequence_s
        begun_s = max(done_s, composed_s)
        done_s = max(begun_s + float(on_gpu.prefill(chunk, past)), launched_s)
        composed_s = max(begun_s, launched_s)
    # When the next step, the first of its answer, has been launched.
    return done_s, max(done_s, composed_s + float(engine.host_s(1))) if output_tokens > 1 else done_s


class ReplicaCurve:
    """Compute rate and TPOT against batch for one deployment and one request shape, once for many questions."""

    def __init__(
        self,
        deployment: Deployment,
        input_tokens: int,
        output_tokens: int,
        *,
        steps: StepModel | None = None,
        most_sequences: int | None = None,
        context_tokens: float | None = None,
        held_tokens: float | None = None,
        spread: float = 0.0,
    ) -> None:
        """Compute the curves.

        ``context_tokens`` is what a running request attends to, averaged over its answer, if lengths vary; ``spread``
        how much that differs between requests (``context_spread``).
        ``held_tokens`` is the part of that which takes memory of its own, if prompts share their beginnings.
        """
        require_fit(deployment, input_tokens + output_tokens if context_tokens is None else 1)
        # On average half of the answer exists while it is being written.
        context = input_tokens + output_tokens / 2 if context_tokens is None else context_tokens
        in_memory = _in_memory(deployment, output_tokens, context if held_tokens is None else held_tokens)
        allowed = most_sequences or deployment.limits.max_sequences
        self.limited_by = "KV memory" if in_memory < allowed else "engine's max sequences"
        self.steps = (steps or step_model(deployment)).holding(allowed).with_spread(spread)
        self.input_tokens, self.output_tokens = input_tokens, output_tokens
        self.chunks = prompt_chunks(deployment, input_tokens)
        if deployment.model.is_encoder:
            in_budget = whole_prompts(deployment, input_tokens)
            self.limited_by = "engine's tokens of a step" if in_budget < min(in_memory, allowed) else self.limited_by
            self.batches = _batches(min(in_memory, allowed, in_budget))
            self.step_s = np.full_like(self.batches, _NO_STEP_S)
            together_s = self.steps.prefill(self.batches * input_tokens, 0, self.batches)
            self.stall_s = self.through_s = together_s / self.batches / deployment.pp
            self.tpot_s, rates = self.step_s, 1 / self.stall_s
        else:
            self.batches = _batches(min(in_memory, allowed))
            decoding, after = _decoding(self.steps, self.batches - 1, output_tokens, context), output_tokens - 1
            self.step_s = decoding.step_s if after else np.full_like(self.batches, _NO_STEP_S)
            self.stall_s = prompt_stall_s(self.steps, self.batches, input_tokens, output_tokens, context, decoding)
            # How long a prompt delays its group: prompts beside it in other groups add nothing to that.
            riding = _riders(deployment, self.batches - 1, len(self.chunks), output_tokens)
            self.through_s = self.stall_s * np.clip(riding, 1.0, deployment.dp)
            held_up_s = (self.batches - 1) * self.stall_s
            self.tpot_s = self.step_s + held_up_s / output_tokens if after else self.step_s
            rates = self.batches / (self.stall_s + held_up_s + decoding.ridden_s + after * self.step_s)
        self.received_per_s = received_per_s(self.steps, input_tokens)
        self.rates = np.minimum(rates, self.received_per_s)

    def capacity(self, tpot_s: float | None = None) -> Capacity:
        """Return the highest rate whose TPOT meets the SLO."""
        kept = np.flatnonzero(self.tpot_s <= tpot_s) if tpot_s else np.arange(len(self.batches))
        if not len(kept):
            raise _misses_slo(float(self.tpot_s[0]), tpot_s or 0.0)
        best = int(kept[np.argmax(self.rates[kept])])
        is_fed = self.rates[best] < self.received_per_s
        return Capacity(
            rate=float(self.rates[best]),
            batch=int(self.batches[best]),
            tpot_s=float(self.tpot_s[best]),
            prefill_share=float(self.rates[best] * self.stall_s[best]),
            limited_by=self._limit(best, tpot_s, self.tpot_s, self.rates) if is_fed else FRONT_END,
        )

    def decode_only_capacity(self, tpot_s: float | None = None) -> Capacity:
        """Return the same for a replica without prompts: no step waits for one, the first token comes with its KV."""
        kept = np.flatnonzero(self.step_s <= tpot_s) if tpot_s else np.arange(len(self.batches))
        if not len(kept):
            raise _misses_slo(float(self.step_s[0]), tpot_s or 0.0)
        rates = self.batches / (max(1, self.output_tokens - 1) * self.step_s)
        best = int(kept[np.argmax(rates[kept])])
        return Capacity(
            rate=float(rates[best]),
            batch=int(self.batches[best]),
            tpot_s=float(self.step_s[best]),
            prefill_share=0.0,
            limited_by=self._limit(best, tpot_s, self.step_s, rates),
        )

    def _limit(self, best: int, slo_s: float | None, tpot_s: Array, rates: Array) -> str:
        """Say what limits the rate: room for a larger batch, the SLO, or that a larger one finishes no more."""
        if best < len(self.batches) - 1:
            return "TPOT SLO" if slo_s is not None and tpot_s[best + 1] > slo_s else REPLICA_SPEED
        by_half = float(np.interp(self.batches[best] / 2, self.batches, rates))
        is_flat = self.batches[best] > 1 and rates[best] < by_half * (1 + _HARDLY_MORE)
        return REPLICA_SPEED if is_flat else self.limited_by

    def at_rate(self, rate: float, capacity: Capacity) -> Steady:
        """Return the state under random arrivals at a rate up to its capacity."""
        # If the host or the FLOPs are full, a larger batch adds nothing: use the smallest that reaches the rate.
        reached = np.maximum.accumulate(self.rates)
        first = self.batches[min(int(np.searchsorted(reached, rate)), len(reached) - 1)]
        batch = min(float(np.interp(rate, reached, self.batches)), float(first))
        steady = self._at(batch, rate, capacity.rate)
        steady = steady.model_copy(update={"ttft_s": steady.ttft_s + self._slot_wait_s(steady, capacity)})
        if rate >= self.rates[0]:
            return steady
        # Below one request at a time on average, it is the share of time with one (Little's law).
        share = rate / float(self.rates[0])
        # A prompt joins steps of others in that share of cases, and has its own otherwise.
        ttft_s = steady.ttft_s - (1 - share) * (self._beside_others_s(batch) - self._on_empty_s())
        return steady.model_copy(update={"batch": batch * share, "ttft_s": ttft_s})

    @property
    def outside_s(self) -> float:
        """Return the time of a request outside any step."""
        return self.steps.engine.request_seconds(self.input_tokens) if self.steps.engine else 0.0

    def _on_empty_s(self) -> float:
        return alone_s(self.steps, self.input_tokens, self.output_tokens)

    def _read(self, batch: float, *curves: Array) -> list[float]:
        """Return the curves at a batch, interpolated linearly."""
        return [float(np.interp(batch, self.batches, curve)) for curve in curves]

    def _beside_others_s(self, batch: float) -> float:
        """Return the time to the first token if other requests are being answered, without any wait in a queue.

        Its chunks join their steps; or, if prompts go first, it waits for the current step.
        """
        step_s, own_s = self._read(max(batch, 2.0), self.step_s, self.through_s)
        through_s = own_s * self.steps.deployment.pp
        if self.steps.deployment.model.is_encoder:
            # The step of its own batch, after the rest of the current one.
            return 1.5 * max(batch, 1.0) * through_s + self.outside_s
        if self.steps.deployment.engine.mixes_prefill_with_decode:
            # If the engine composes ahead, one more step has been composed when it comes, half-way through another.
            ahead_s = 1.5 * step_s if self.steps.engine and self.steps.engine.overlapped else 0.0
            return through_s + len(self.chunks) * step_s + ahead_s + self.outside_s
        # The host's work on the first chunk is its work on the step.
        on_gpu_s = through_s / len(self.chunks)
        hosted_s = float(self.steps.with_host(np.array(on_gpu_s), np.array(batch)))
        return through_s + step_s + (len(self.chunks) - 1) * (hosted_s - on_gpu_s) + self.outside_s

    def at_concurrency(self, users: int) -> Steady:
        """Return the state with ``users`` who each send a request after an answer; those beyond the batch wait."""
        batch = min(float(users), float(self.batches[-1]))
        rate, step_s, stall_s, tpot_s = self._read(batch, self.rates, self.step_s, self.stall_s, self.tpot_s)
        in_step = _FIRST_ROUND
        held_up_s, after = (batch - 1) * stall_s, self.output_tokens - 1
        if not self.steps.deployment.engine.mixes_prefill_with_decode:
            # If prompts go first, users synchronise: a round of prompts, then one of answers. A user waits for the
            # prompts after their own, half of them on average, before the second token.
            in_step, held_up_s = 1.0, held_up_s / 2
            tpot_s = step_s + held_up_s / self.output_tokens if after else step_s
        queued = max(0.0, users - batch) / rate + in_step * (batch - 1) / 2 * stall_s
        # The step that computes a prompt writes the first token; with others running, one of theirs comes first.
        ttft_s = queued + (self._beside_others_s(batch) if batch > 1 else self._on_empty_s())
        # The whole loop finishes users ÷ time per user (Little's law). The first token's step is part of its wait; the
        # others' prompts delay it completely.
        done_s, told_s = _computed_and_told_s(self.steps, self.input_tokens, self.output_tokens)
        late_s = told_s - done_s if batch <= 1 else 0.0
        rate = min(users / (ttft_s - late_s + after * step_s + held_up_s), self.received_per_s)
        return self._steady(batch, rate, float(self.rates.max()), tpot_s, ttft_s)

    def saturated(self) -> Steady:
        """Return the state if the queue never empties: the largest batch that fits."""
        return self._at(float(self.batches[-1]), float(self.rates[-1]), float(self.rates.max()))

    def _slot_wait_s(self, steady: Steady, capacity: Capacity) -> float:
        """Return the mean wait for one of the batch's places, each taken for as long as a request stays."""
        stay = steady.ttft_s + (self.output_tokens - 1) * steady.tpot_s
        return _queue_wait_s(steady.rate / capacity.rate, capacity.batch, stay)

    def _at(self, batch: float, rate: float, full_rate: float) -> Steady:
        through_s, tpot_s = self._read(batch, self.through_s, self.tpot_s)
        groups = self.steps.deployment.dp
        # Prompts of an encoder that arrive during a step wait for it, and share the next one's batch.
        alone = self.steps.deployment.model.is_encoder
        load, others_s = rate * through_s / groups, 0.0
        if self.output_tokens == 1:
            # Only prompts: they fill the time at any batch, and a larger one takes those that arrive meanwhile. A
            # prompt shares a step after the rest of the current one, or one later if the engine composes ahead.
            load = min(load, rate / full_rate)
            steps = 2.5 if self.steps.engine and self.steps.engine.overlapped else 1.5
            others_s = steps * max(0.0, batch - 1) * through_s
        waiting = 0.0 if alone else others_s + _queue_wait_s(load, groups, through_s)
        return self._steady(batch, rate, full_rate, tpot_s, waiting + self._beside_others_s(batch))

    def _steady(self, batch: float, rate: float, full_rate: float, tpot_s: float, ttft_s: float) -> Steady:
        return Steady(
            rate=rate,
            batch=batch,
            tpot_s=tpot_s,
            ttft_s=ttft_s,
            output_tokens_per_s=rate * self.output_tokens,
            total_tokens_per_s=rate * (self.input_tokens + self.output_tokens),
            load_share=rate / full_rate,
        )


def _in_memory(deployment: Deployment, output_tokens: int, held: float) -> int:
    """Return how many requests fit the memory if each holds ``held`` tokens on average."""
    # An engine that reserves answers also counts the rest of the answer at admission.
    reserved = output_tokens / 2 if deployment.engine.reserves_answers else 0
    return max_sequences(deployment, math.ceil(held + reserved))


def most_answered(
    deployment: Deployment, output_tokens: int, context: float, held: float, tpot_s: float | None
) -> float:
    """Return an upper bound on the rate of any ``ReplicaCurve``: its answers alone, as if prompts took no time.

    Infinite if that says nothing: for an encoder, for answers that come with their prompts, or if no batch is quick
    enough.
    """
    largest = min(_in_memory(deployment, output_tokens, held), deployment.limits.max_sequences)
    if deployment.model.is_encoder or output_tokens == 1 or largest < 1:
        return math.inf
    batches = _batches(largest)
    step_s = step_model(deployment).decode(1 + _beside(deployment, batches - 1, output_tokens), context)
    rates = (batches / ((output_tokens - 1) * step_s))[step_s <= (tpot_s or math.inf)]
    return float(rates.max()) if len(rates) else math.inf


def _queue_wait_s(load: float, places: int, stay_s: float) -> float:
    """Return the mean wait for one of ``places`` at a load, if each is taken for ``stay_s``.

    This is Sakasegawa's approximation of a queue with many servers, random arrivals and requests of one length; with
    one server it is Pollaczek's and Khinchine's own.
    """
    load = min(load, _FULLEST)
    return float(0.5 * load ** (math.sqrt(2 * (places + 1)) - 1) / (places * (1 - load)) * stay_s)


_MANY = np.geomspace(256, 1 << 20, 840).round()


def _batches(largest: int) -> Array:
    """Return the batches to compute: every one up to 256, then one in a hundred, and the largest.

    The grid does not depend on the largest, so that more memory only ever adds to it.
    """
    few = np.arange(1, min(largest, 256) + 1)
    return np.unique(np.concatenate([few, _MANY[largest >= _MANY], [largest]])).astype(np.float64)


def context_while_answering(prompts: Array, outputs: Array) -> float:
    """Return the tokens a running request attends to, averaged over all answer tokens: long answers run longer."""
    outputs = np.maximum(outputs, 1.0)
    return float((outputs * (prompts + outputs / 2)).sum() / outputs.sum())


def context_spread(prompts: Array, outputs: Array) -> float:
    """Return the standard deviation of those tokens over all answer tokens, relative to their mean."""
    outputs = np.maximum(outputs, 1.0)
    mean = context_while_answering(prompts, outputs)
    squares = float((outputs * (prompts * (prompts + outputs) + outputs * outputs / 3)).sum() / outputs.sum())
    return math.sqrt(max(squares / mean**2 - 1.0, 0.0)) if mean else 0.0


def whole_prompts(deployment: Deployment, input_tokens: int) -> int:
    """Return how many whole prompts a step holds: in each attention group as many as its tokens allow, at least one."""
    return deployment.dp * max(1, deployment.group_limits.max_batched_tokens // input_tokens)


def prompt_chunks(deployment: Deployment, input_tokens: int) -> list[int]:
    """Return the tokens of a prompt that each step computes, at most those of one attention group."""
    budget = deployment.group_limits.max_batched_tokens if deployment.chunks_prompts else input_tokens
    return [min(budget, input_tokens - done) for done in range(0, input_tokens, max(budget, 1))]


class _Decoding(NamedTuple):
    """Mean decode steps, against the batch."""

    beside: Array
    step_s: Array  # with the request itself
    ridden_s: Array  # without it, with a prompt instead: below one, the share of steps that have one
    on_gpu_s: Array  # the same on the GPU alone


def _beside(deployment: Deployment, others: Array, output_tokens: int) -> Array:
    """Return the mean number of others in a batch that decode in a step, without those whose prompts are in it."""
    return others * (1 - 1 / output_tokens) if deployment.engine.mixes_prefill_with_decode else others


def _decoding(steps: StepModel, others: Array, output_tokens: int, context: float) -> _Decoding:
    beside = _beside(steps.deployment, others, output_tokens)
    step_s, none = steps.decode(1 + beside, context), np.zeros_like(others)
    if not steps.deployment.engine.mixes_prefill_with_decode:
        return _Decoding(beside, step_s, none, none)
    on_gpu_s, hosted_s = steps.decode_apart(np.maximum(beside, 1), context)
    some = np.minimum(beside, 1)
    return _Decoding(beside, step_s, hosted_s * some, on_gpu_s * some)


def prompt_stall_s(
    steps: StepModel,
    batches: Array,
    input_tokens: int,
    output_tokens: int,
    context: float | None = None,
    decoding: "_Decoding | None" = None,
) -> Array:
    """Return what one prompt adds to the GPU's time for a batch: its chunks join decode steps, or run alone.

    Each of the others needs a prompt once in ``output`` steps. If that makes more than one a step, they share a step
    and each adds its share: the first may be free, as the weights are read anyway, but a hundred are not.
    """
    engine = steps.deployment.engine
    on_gpu = steps.with_engine(None)
    context = input_tokens + output_tokens / 2 if context is None else context
    others = batches - 1
    chunks = prompt_chunks(steps.deployment, input_tokens)
    riders = _riders(steps.deployment, others, len(chunks), output_tokens)
    decoding = decoding or _decoding(steps, others, output_tokens, context)
    plain_s = decoding.on_gpu_s
    lead_s = np.zeros_like(batches)
    if steps.engine and steps.engine.overlapped:
        # With the request itself it may outgrow the captured sizes: then launches take longer without any prompt.
        grown_s = np.where(decoding.beside > 0, decoding.step_s - steps.engine.sequence_s, 0.0)
        plain_s = np.maximum(decoding.ridden_s, grown_s)
        # Launches begin with the step before, if that one holds no prompts and the host was not slower than the GPU.
        free = decoding.on_gpu_s > steps.engine.host_s(steps.passing(decoding.beside))
        lead_s = np.exp(-others / output_tokens * len(chunks)) * np.where(free, decoding.on_gpu_s, 0.0)
    total = np.zeros_like(batches)
    # Each attention group has a host for its own sequences.
    beside, own = steps.passing(decoding.beside), riders / np.clip(riders, 1.0, steps.deployment.dp)
    done = 0
    for chunk in chunks:
        if engine.mixes_prefill_with_decode:
            mixed = on_gpu.step(chunk * riders, done, decoding.beside, context, riders)
            launched = _launched(steps, mixed, chunk * own + beside, beside + own, lead_s)
            total = total + np.maximum(launched - plain_s, 0.0) / riders
        else:
            alone = on_gpu.prefill(chunk * riders, done, riders)
            total = total + _launched(steps, alone, chunk * own, own, np.zeros_like(riders)) / riders
        done += chunk
    # Pipeline stages work on different prompts at once: each delays the others for its own share of the time.
    return total / steps.deployment.pp


def _riders(deployment: Deployment, others: Array, chunks: int, output_tokens: int) -> Array:
    """Return the mean number of prompts in a step that has any; they come at random.

    A chunk that fills its group's step leaves no room for another there; other groups have theirs beside it.
    """

    def in_any(mean: Array) -> Array:
        return np.maximum(1.0, mean / -np.expm1(-np.maximum(mean, 1e-12)))

    begun = in_any(others / output_tokens)
    return np.minimum(in_any(chunks * others / output_tokens), np.maximum(begun, deployment.dp))


def _launched(steps: StepModel, gpu_s: Array, tokens: Array, sequences: Array, lead_s: Array) -> Array:
    """Return the time of a step with prompts of ``tokens`` tokens on average, whose launches began ``lead_s`` before.

    Some steps hold more prompts than others: the share beyond the captured sizes grows from half to twice of them.
    """
    if steps.engine is None:
        return gpu_s
    few, many = steps.launch_s(np.minimum(tokens, steps.engine.graph_tokens)), steps.launch_s(np.inf)
    share = np.clip(np.log2(np.maximum(tokens, 1.0) / max(steps.engine.graph_tokens, 1)) / 2 + 0.5, 0.0, 1.0)
    launch_s = few + share * (many - few) if steps.engine.graph_tokens else many
    if not steps.engine.overlapped:
        return np.maximum(gpu_s, launch_s)
    return np.maximum(gpu_s, launch_s + steps.engine.sequence_s * sequences - lead_s)


def static_batch_s(steps: StepModel, batch: int, input_tokens: int, output_tokens: int) -> float:
    """Return the seconds from the first prompt to the last token of a batch answered together (old benchmarks)."""
    at_once = min(batch, whole_prompts(steps.deployment, input_tokens))
    prompts = math.ceil(batch / at_once) * float(steps.prefill(at_once * input_tokens, 0, at_once))
    contexts = np.linspace(input_tokens, input_tokens + output_tokens, 9)
    return prompts + (output_tokens - 1) * float(np.mean(steps.decode(batch, contexts)))
