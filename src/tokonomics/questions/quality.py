"""What does a quantised model keep of the published one's quality? ``import --baseline``, from results of lm-eval."""

from pathlib import Path

from tokonomics.catalog.checkpoints import OwnRecovery, QuantisedPart, save_recovery
from tokonomics.catalog.layers import KV_PRECISIONS, WEIGHT_PRECISIONS, Precision, parse_precision
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.measure.importers.lm_eval import HarnessRun, kept_quality, read_scores
from tokonomics.measure.stated_setup import stated_weights
from tokonomics.questions.listener import Listener
from tokonomics.questions.measured_results import RecoveryResult
from tokonomics.questions.requests.run import ImportResultsRequest
from tokonomics.types import today


def recovered(request: ImportResultsRequest, baseline: str, listener: Listener) -> RecoveryResult:
    """The mean over the tasks that both runs did of quantised ÷ baseline; kept in the user's catalogue where asked."""
    if len(request.files) != 1:
        raise BadInput("compares one file with the baseline", field="files")
    before, after = read_scores(Path(baseline)), read_scores(Path(request.files[0]))
    model = _model(request, before)
    part, precision = _precision(request, model, after)
    found = kept_quality(before, after)
    own = OwnRecovery(
        model=model.key,
        part=part,
        precision=precision,
        recovery=found.recovery,
        tasks=tuple(task.task for task in found.tasks),
        date=today(),
    )
    if request.keep:
        listener.note(f"kept in {save_recovery(own)}")
    return RecoveryResult(
        **dict(found),
        model=model.key,
        name=model.name,
        part=part,
        precision=precision,
        published=model.served if part == "weights" else Precision.bf16,
        kept=request.keep,
    )


def _model(request: ImportResultsRequest, before: HarnessRun) -> ModelSpec:
    """As typed, or as the baseline's file names it."""
    named = request.model or before.model
    if named is None:
        raise BadInput("the files name no model", field="model", fix=f"Such as {option('model', 'llama-3.1-8b')}.")
    try:
        return find_model(named)
    except UnknownName:
        if request.model:
            raise
        what = f"'{shorten(named)}', as the baseline names it, is not known"
        raise BadInput(what, field="model", fix=f"Name it as `tokonomics models` does: {option('model')}.") from None


def _precision(request: ImportResultsRequest, model: ModelSpec, after: HarnessRun) -> tuple[QuantisedPart, Precision]:
    """What was quantised, and to what: as typed, or as the checkpoint's name says."""
    if request.weights is None and request.kv is not None:
        kv = parse_precision(request.kv, KV_PRECISIONS, "kv")
        if not kv.is_below(Precision.bf16):
            raise BadInput(f"{kv} is what it is compared with", field="kv", fix=f"Such as {option('kv', 'fp8')}.")
        return "kv", kv
    if request.weights is not None:
        weights: Precision | None = parse_precision(request.weights, WEIGHT_PRECISIONS, "weights")
    else:
        weights = stated_weights("unstated", after.model or "")
    if weights is None:
        fix = f"Such as {option('weights', 'int4')}."
        raise BadInput("to what precision was it quantised?", field="weights", fix=fix)
    if not weights.is_below(model.served):
        what = f"{weights} is no fewer bits than {model.name} is published in, {model.served}"
        raise BadInput(what, field="weights", fix=f"Such as {option('weights', 'int4')}.")
    return "weights", weights
