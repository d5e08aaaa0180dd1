"""How fast a deployment is, and what fits: ``fit``, ``predict`` and ``curve``."""

from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.physics.memory import fit as fit_memory
from tokonomics.planner.layout_speed import faster_at, faster_within
from tokonomics.planner.predict import batch_curve
from tokonomics.planner.predict import predict as predicted
from tokonomics.questions.deployment import deployment_of, require_writer
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.predict_results import CurveResult, FitResult, PredictResult
from tokonomics.questions.requests.buy import CurveRequest, FitRequest, PredictRequest
from tokonomics.questions.targets import targets_of
from tokonomics.traffic.slo import Latency, Slo
from tokonomics.traffic.workload import parse_thinking


def fit(request: FitRequest, listener: Listener = SILENT) -> FitResult:
    """Where the memory goes, and the largest batch."""
    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    found = fit_memory(deployment, _context(request, deployment.model))
    return FitResult(**found.summary(), memory=found)


def predict(request: PredictRequest, listener: Listener = SILENT) -> PredictResult:
    """The time of a step and of a prompt, with intervals, and where it goes."""
    loras = request.lora_rank, request.lora_adapters
    deployment = deployment_of(request, request.model, request.gpu, *loras, images=request.images)
    thinking = parse_thinking(request.thinking, reasons=False)
    if thinking is not None:
        require_writer(deployment.model)
    if thinking is not None and thinking.tokens is None:
        what = "needs a number of tokens: no output is said here to take a share of"
        raise BadInput(what, field="thinking", fix=f"Such as {option('thinking', 2000)}.")
    before = thinking.tokens if thinking else None
    context = _context(request, deployment.model)
    made = predicted(deployment, request.batch, context, before)
    tokens = context + (made.images.tokens if made.images else 0)
    faster = None if deployment.model.is_encoder else faster_at(deployment, request.batch, tokens)
    return PredictResult(**dict(made), faster=faster)


def _context(request: FitRequest | PredictRequest, model: ModelSpec) -> int:
    """As given; where it is not, no more than the model takes: many encoders have 512 tokens."""
    room = model.max_context - (model.images.tokens if model.images else 0)
    return request.context if "context" in request.given() else max(1, min(request.context, room))


def curve(request: CurveRequest, listener: Listener = SILENT) -> CurveResult:
    """Throughput, time per token and price against the batch."""
    from tokonomics.questions.serving import fleet_of, price_of  # With the market: only where a price is wanted.

    deployment = deployment_of(request, request.model, request.gpu, request.lora_rank, request.lora_adapters)
    require_writer(deployment.model)
    # Without an offer the curve is shown without prices.
    price, price_from = price_of(deployment, fleet_of(), request) or (None, None)
    made = batch_curve(deployment, request.context, price / deployment.gpus if price else None, price_from)
    paces = _paces(request, listener)
    # All sequences of a batch keep the same pace: the strictest counts.
    pace = min((slo.seconds for slo in paces), default=None)
    faster = faster_within(deployment, request.context, paces)
    return CurveResult(**dict(made), faster=faster, **({} if pace is None else {"slo_tpot_s": pace}))


def _paces(request: CurveRequest, listener: Listener) -> list[Slo]:
    """The SLOs on the time per token."""
    slos = targets_of(request)
    if any(slo.latency is not Latency.tpot for slo in slos):
        listener.note("a curve has no waiting in it: only the SLO on the time per token counts here")
    return [slo for slo in slos if slo.latency is Latency.tpot]
