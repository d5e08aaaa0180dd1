"""Answer how fast a deployment is, and what fits: ``predict``, ``predict --fit`` and ``predict --curve``."""

from typing import Any

from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.physics.memory import fit as fit_memory
from tokonomics.planner.predict import BatchCurve, FasterLayout, Prediction, batch_curve, faster_at, faster_within
from tokonomics.planner.predict import predict as predicted
from tokonomics.questions.deployment import deployment_of, require_writer, targets_of
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import CurveRequest, FitRequest, PredictRequest
from tokonomics.questions.result import Result, beside
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.workload import parse_thinking
from tokonomics.units import count, plural, seconds, usd


class FitResult(Result):
    """How the memory of one GPU of a replica is used, and how many sequences it has room for."""

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
    memory_bytes: int  # of one GPU
    usable_bytes: int  # what the driver leaves for processes
    weight_bytes: int  # the whole model
    weight_bytes_per_gpu: int
    workspace_bytes: int
    kv_budget_bytes: int
    shortfall_bytes: int  # by how much weights and workspace exceed what the engine may use
    kv_bytes_per_token: int  # the whole model: for each further token of a sequence
    kv_constant_bytes: int
    """The whole model: what a sequence of any length holds, such as full windows and recurrent states."""
    kv_bytes_per_sequence: int  # on one GPU, at this context, in whole blocks
    max_sequences: int  # sequences of this context at once; 0 if none fits
    min_gpus: int | None
    """The smallest number of such GPUs, as they are sold, that holds a sequence; None if no split does."""
    min_layout: str | None  # its layout on them: ``TP=8 PP=2 on 2 machines``
    notes: tuple[str, ...] = ()  # what was noted of how a config.json was read, such as fields that are not known
    memory: Any = beside()

    def headline(self) -> str:
        where = f"{self.model} {self.weights} on {self.tp * self.pp * self.dp}×{self.gpu}"
        if self.fits:
            return f"{where}: {plural(self.max_sequences, 'sequence')} of {self.context:,} tokens fit"
        more = f"; the fewest such GPUs are {self.min_gpus} ({self.min_layout})" if self.min_gpus else ""
        return f"{where}: does not fit{more}"


class PredictResult(Result, Prediction):
    """The time of a decode step and of a prompt; every time has low, mid and high (80 % interval)."""

    notes: tuple[str, ...] = ()  # what was noted of how a config.json was read, such as fields that are not known
    faster: FasterLayout | None = None
    """The layout that writes most with as many sequences on the same GPUs, if it is worth mentioning."""

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
    """The gain from batching, point by point up to what the memory holds."""

    ROWS = "points"

    slo_tpot_s: float | None = None  # the strictest SLO on the time per token, if given
    faster: FasterLayout | None = None
    """The layout that writes most within that SLO on the same GPUs, if it is worth mentioning."""

    def headline(self) -> str:
        first, last = self.points[0], self.points[-1]
        price = "" if last.usd_per_mtok is None else f", {usd(last.usd_per_mtok)} per Mtok of output"
        return (
            f"{self.deployment} at {self.context:,} tokens: {count(first.tokens_per_s)} tokens/s alone, "
            f"{count(last.tokens_per_s)} at batch {last.batch:,}{price}"
        )


def fit(request: FitRequest, listener: Listener = SILENT) -> FitResult:
    """Return how the memory is used, and the largest batch."""
    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    found = fit_memory(deployment, _context(request, deployment.model))
    return FitResult(**found.summary(), memory=found)


def predict(request: PredictRequest, listener: Listener = SILENT) -> PredictResult:
    """Return the time of a step and of a prompt, with intervals, and where it goes."""
    loras = request.lora_rank, request.lora_adapters
    deployment = deployment_of(request, request.model, request.gpu, *loras, images=request.images)
    thinking = parse_thinking(request.thinking, reasons=False)
    if thinking is not None:
        require_writer(deployment.model)
    if thinking is not None and thinking.tokens is None:
        what = "needs a number of tokens: there is no output here to take a share of"
        raise BadInput(what, field="thinking", fix=f"Such as {option('thinking', 2000)}.")
    before = thinking.tokens if thinking else None
    context = _context(request, deployment.model)
    made = predicted(deployment, request.batch, context, before)
    tokens = context + (made.images.tokens if made.images else 0)
    faster = None if deployment.model.is_encoder else faster_at(deployment, request.batch, tokens)
    return PredictResult(**dict(made), faster=faster)


def _context(request: FitRequest | PredictRequest, model: ModelSpec) -> int:
    """Return the given context, or the default cut to the model's limit (many encoders take 512 tokens)."""
    room = model.max_context - (model.images.tokens if model.images else 0)
    return request.context if "context" in request.given() else max(1, min(request.context, room))


def curve(request: CurveRequest, listener: Listener = SILENT) -> CurveResult:
    """Return throughput, time per token and price against the batch."""
    from tokonomics.questions.serving import fleet_of, price_of  # Loads the market, so only for a price.

    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    require_writer(deployment.model)
    # Without an offer the curve has no prices.
    price, price_from = price_of(deployment, fleet_of(), request) or (None, None)
    made = batch_curve(deployment, request.context, price / deployment.gpus if price else None, price_from)
    paces = _paces(request, listener)
    # All sequences of a batch have the same time per token: the strictest SLO counts.
    pace = min((slo.seconds for slo in paces), default=None)
    faster = faster_within(deployment, request.context, paces)
    return CurveResult(**dict(made), faster=faster, **({} if pace is None else {"slo_tpot_s": pace}))


def _paces(request: CurveRequest, listener: Listener) -> list[Slo]:
    """Return the SLOs on the time per token."""
    slos = targets_of(request)
    if any(slo.latency is not Latency.tpot for slo in slos):
        listener.note("a curve has no waiting in it: only the SLO on the time per token counts here")
    return [slo for slo in slos if slo.latency is Latency.tpot]
