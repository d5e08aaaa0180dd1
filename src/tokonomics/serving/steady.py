"""A replica under a constant load, in closed form.

With ``batch`` requests running, each of them needs its prompt computed once and ``output`` decode steps; meanwhile
the others' prompts take their turns. One round of the batch therefore lasts ``output × step + batch × prompt``:

    rate(batch) = batch ÷ (output × step(batch) + batch × prompt)        requests a second
    tpot(batch) = step(batch) + batch × prompt ÷ output                  seconds between a request's tokens

Both rise with the batch, so the capacity under a TPOT promise is at the largest batch that keeps it and fits memory.
Waiting before the first token is that of a queue with random arrivals and one server that computes prompts of one
length (M/D/1, Pollaczek-Khinchine). The simulator replaces it where bursts matter.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from tokonomics.errors import TokonomicsError
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import max_sequences, require_fit
from tokonomics.physics.steptime import decode_step, prefill
from tokonomics.units import seconds


class Steady(Noun):
    """What one replica does at a rate of requests."""

    rate: PositiveFloat
    capacity_rate: PositiveFloat
    """The highest rate it holds under the promise."""
    batch: PositiveFloat
    tpot_s: PositiveFloat
    ttft_s: PositiveFloat
    """Mean, queueing included."""
    utilization: float
    """Rate ÷ capacity."""
    prefill_share: float
    """Share of the working time spent on prompts."""


class Capacity(Noun):
    """The most one replica does for requests of one shape."""

    rate: PositiveFloat
    batch: PositiveInt
    tpot_s: PositiveFloat
    limited_by: str


class MissesPromise(TokonomicsError):
    """Even one request at a time is slower than the promise; carries the fastest TPOT."""

    def __init__(self, what: str, *, tpot_s: float, promised_s: float) -> None:
        super().__init__(what)
        self.tpot_s = tpot_s
        self.promised_s = promised_s


class ReplicaCurve:
    """Rate and TPOT against batch for one deployment and one request shape; computed once, asked often."""

    def __init__(self, deployment: Deployment, input_tokens: int, output_tokens: int) -> None:
        context = input_tokens + output_tokens
        require_fit(deployment, context)
        in_memory = max_sequences(deployment, context)
        largest = min(in_memory, deployment.limits.max_sequences)
        self.limited_by = "KV memory" if in_memory < deployment.limits.max_sequences else "engine's max sequences"
        self.batches: NDArray[np.float64] = np.unique(np.geomspace(1, largest, 96).round())
        self.output_tokens = output_tokens
        # Half of the answer is there on average while it is being written.
        self.steps = decode_step(deployment, self.batches, input_tokens + output_tokens / 2)
        self.prompt_s = float(prefill(deployment, input_tokens))
        self.tpot_s = self.steps + self.batches * self.prompt_s / output_tokens
        self.rates = self.batches / (output_tokens * self.tpot_s)

    def capacity(self, tpot_s: float | None = None) -> Capacity:
        """The highest rate whose TPOT keeps the promise."""
        kept = np.flatnonzero(self.tpot_s <= tpot_s) if tpot_s else np.arange(len(self.batches))
        if not len(kept):
            fastest = float(self.tpot_s[0])
            raise MissesPromise(
                f"misses the promise: TPOT is {seconds(fastest)} for a single request, {seconds(tpot_s or 0)} promised",
                tpot_s=fastest,
                promised_s=tpot_s or 0,
            )
        best = int(kept[np.argmax(self.rates[kept])])
        at_end = best == len(self.batches) - 1
        return Capacity(
            rate=float(self.rates[best]),
            batch=int(self.batches[best]),
            tpot_s=float(self.tpot_s[best]),
            limited_by=self.limited_by if at_end else "TPOT promise",
        )

    def at(self, rate: float, capacity: Capacity) -> Steady:
        """The replica at a rate below its capacity."""
        batch = float(np.interp(rate, self.rates, self.batches))
        tpot_s = float(np.interp(batch, self.batches, self.tpot_s))
        step_s = float(np.interp(batch, self.batches, self.steps))
        busy = min(rate * self.prompt_s, 0.999)
        waiting = busy * self.prompt_s / (2 * (1 - busy))
        decode_s = self.output_tokens * step_s / max(batch, 1.0)
        return Steady(
            rate=rate,
            capacity_rate=capacity.rate,
            batch=batch,
            tpot_s=tpot_s,
            ttft_s=waiting + self.prompt_s + step_s,
            utilization=rate / capacity.rate,
            prefill_share=self.prompt_s / (self.prompt_s + decode_s),
        )
