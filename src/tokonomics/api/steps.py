"""Does it fit, how long is a step, what does batching buy: one deployment, without traffic."""

from pathlib import Path

from tokonomics.api.ask import Discount, Words, ask, documented
from tokonomics.api.frames import Prices
from tokonomics.api.result import Result
from tokonomics.planner.predict import BatchCurve, Prediction
from tokonomics.units import count, plural, seconds, usd


class FitResult(Result):
    """Where the memory of one GPU of a replica goes, and how many sequences it leaves room for."""

    SHOWN = ("fits", "max_sequences", "memory_bytes", "weight_bytes_per_gpu", "workspace_bytes", "kv_budget_bytes",
             "kv_bytes_per_token", "kv_bytes_per_sequence", "shortfall_bytes", "min_gpus")  # fmt: skip

    model: str
    gpu: str
    engine: str
    tp: int
    pp: int
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
    kv_bytes_per_sequence: int
    """On one GPU, at this context, in whole blocks."""
    max_sequences: int
    """Sequences of this context at once; 0 when none fits."""
    min_gpus: int | None
    """The smallest number of such GPUs on which one sequence fits; None when no split does."""

    def headline(self) -> str:
        where = f"{self.model} {self.weights} on {self.tp * self.pp}×{self.gpu}"
        if self.fits:
            return f"{where}: {plural(self.max_sequences, 'sequence')} of {self.context:,} tokens fit"
        more = f"; the fewest such GPUs are {self.min_gpus}" if self.min_gpus else ""
        return f"{where}: does not fit{more}"


class PredictResult(Result, Prediction):
    """How long a decode step and a prompt take; every time has low, mid and high (80 % interval)."""

    SHOWN = ("decode_step_low_s", "decode_step_mid_s", "decode_step_high_s", "prefill_low_s", "prefill_mid_s",
             "prefill_high_s", "tokens_per_s_low", "tokens_per_s_mid", "tokens_per_s_high", "speed")  # fmt: skip

    def headline(self) -> str:
        step = self.decode_step_s
        return (
            f"{self.deployment}, batch {self.batch:,} at {self.context:,} tokens: a step takes {seconds(step.mid)} "
            f"({seconds(step.low)} to {seconds(step.high)}), {count(self.tokens_per_s.mid)} tokens/s"
        )


class CurveResult(Result, BatchCurve):
    """What batching buys, point by point up to what the memory holds."""

    ROWS = "points"
    SHOWN = ("batch", "tpot_s", "tokens_per_s", "usd_per_mtok", "share_of_linear")

    def headline(self) -> str:
        first, last = self.points[0], self.points[-1]
        price = "" if last.usd_per_mtok is None else f", {usd(last.usd_per_mtok)} per Mtok of output"
        return (
            f"{self.deployment} at {self.context:,} tokens: {count(first.tokens_per_s)} tokens/s alone, "
            f"{count(last.tokens_per_s)} at batch {last.batch:,}{price}"
        )


@documented
def fit(
    model: str | Path, *, gpu: str, tp: int = 1, pp: int = 1, ep: int = 1, weights: str | None = None,
    kv: str = "bf16", context: int = 4096, engine: str = "vllm", lora_rank: int = 0, lora_adapters: int = 0,
    profile: str | Path | None = None,
) -> FitResult:  # fmt: skip
    """Does a model fit a GPU: weights, KV cache, workspace, the largest batch.

    >>> tk.fit("llama-3.1-8b", gpu="H100", context=8192)
    """
    return ask(fit, FitResult, locals())


@documented
def predict(
    model: str | Path, *, gpu: str, batch: int = 1, context: int = 1024, tp: int = 1, pp: int = 1, ep: int = 1,
    weights: str | None = None, kv: str = "bf16", engine: str = "vllm", lora_rank: int = 0, lora_adapters: int = 0,
    profile: str | Path | None = None,
) -> PredictResult:  # fmt: skip
    """How long a decode step and a prompt take, with an interval, and where the time goes.

    >>> tk.predict("llama-3.1-8b", gpu="H200", batch=64).decode_step_s
    """
    return ask(predict, PredictResult, locals())


@documented
def curve(
    model: str | Path, *, gpu: str, context: int = 1024, tp: int = 1, pp: int = 1, ep: int = 1,
    weights: str | None = None, kv: str = "bf16", engine: str = "vllm", lora_rank: int = 0, lora_adapters: int = 0,
    usd_per_hour: float | None = None, provider: Words | None = None, region: Words | None = None,
    discount: Discount | None = None, offers: Prices | None = None, profile: str | Path | None = None,
) -> CurveResult:  # fmt: skip
    """What batching buys: throughput, time per token and price against the batch, up to the KV limit.

    >>> tk.curve("llama-2-7b", gpu="H100", usd_per_hour=2.0).to_frame().select("batch", "tokens_per_s", "usd_per_mtok")
    """
    return ask(curve, CurveResult, locals())
