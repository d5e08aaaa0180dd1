"""What ``fit``, ``predict`` and ``curve`` return."""

from typing import Any

from tokonomics.planner.predict import BatchCurve, FasterLayout, Prediction
from tokonomics.questions.result import Result, beside
from tokonomics.units import count, plural, seconds, usd


class FitResult(Result):
    """Where the memory of one GPU of a replica goes, and how many sequences it leaves room for."""

    model: str
    gpu: str
    engine: str
    tp: int
    pp: int
    ep: int
    dp: int
    weights: str
    kv: str
    fits: bool
    context: int
    memory_bytes: int
    """Of one GPU."""
    usable_bytes: int
    """What the driver leaves to processes."""
    weight_bytes: int
    """The whole model."""
    weight_bytes_per_gpu: int
    workspace_bytes: int
    kv_budget_bytes: int
    shortfall_bytes: int
    """By how much weights and workspace exceed what the engine may use."""
    kv_bytes_per_token: int
    """The whole model: what every further token adds to a sequence."""
    kv_constant_bytes: int
    """The whole model: what a sequence holds whatever its length: windows once full, recurrent states."""
    kv_bytes_per_sequence: int
    """On one GPU, at this context, in whole blocks."""
    max_sequences: int
    """Sequences of this context at once; 0 when none fits."""
    min_gpus: int | None
    """The smallest number of such GPUs, of those sold together, that holds a sequence; None when no split does."""
    min_layout: str | None
    """How the model lies on them: ``TP=8 PP=2 on 2 machines``."""
    notes: tuple[str, ...] = ()
    """What was noted of how a config.json was read, such as fields that are not known."""
    memory: Any = beside()

    def headline(self) -> str:
        where = f"{self.model} {self.weights} on {self.tp * self.pp * self.dp}×{self.gpu}"
        if self.fits:
            return f"{where}: {plural(self.max_sequences, 'sequence')} of {self.context:,} tokens fit"
        more = f"; the fewest such GPUs are {self.min_gpus} ({self.min_layout})" if self.min_gpus else ""
        return f"{where}: does not fit{more}"


class PredictResult(Result, Prediction):
    """How long a decode step and a prompt take; every time has low, mid and high (80 % interval)."""

    notes: tuple[str, ...] = ()
    """What was noted of how a config.json was read, such as fields that are not known."""
    faster: FasterLayout | None = None
    """The layout that writes most with as many sequences on the same GPUs, where it is worth a word."""

    def headline(self) -> str:
        step = self.decode_step_s
        if step is None:
            speed = f"{count(self.tokens_per_s.mid)} tokens/s"
            return f"{self.deployment}, {self.batch:,} prompts of {self.context:,} tokens a step: {speed}"
        return (
            f"{self.deployment}, batch {self.batch:,} at {self.context:,} tokens: a step takes {seconds(step.mid)} "
            f"({seconds(step.low)} to {seconds(step.high)}), {count(self.tokens_per_s.mid)} tokens/s"
        )


class CurveResult(Result, BatchCurve):
    """What batching buys, point by point up to what the memory holds."""

    ROWS = "points"

    slo_tpot_s: float | None = None
    """The strictest SLO on the time per token, where one was given."""
    faster: FasterLayout | None = None
    """The layout that writes most within that SLO on the same GPUs, where it is worth a word."""

    def headline(self) -> str:
        first, last = self.points[0], self.points[-1]
        price = "" if last.usd_per_mtok is None else f", {usd(last.usd_per_mtok)} per Mtok of output"
        return (
            f"{self.deployment} at {self.context:,} tokens: {count(first.tokens_per_s)} tokens/s alone, "
            f"{count(last.tokens_per_s)} at batch {last.batch:,}{price}"
        )
