"""The draft that a question names: a module of the checkpoint, a published head or another model.

How much of it is accepted is the user's, or was published for that pair; where neither is known the question is not
answered, since a draft that fails costs more than none.
"""

from collections.abc import Iterable, Iterator, Sequence

from tokonomics.catalog.checkpoints import eagle_head, longer_draft, mtp_module, nearest_draft
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput, option
from tokonomics.physics.deployment import DRAFT_TOKENS, Deployment, DraftMethod, Speculation, acceptance_for
from tokonomics.sizing.layouts import why_not
from tokonomics.sizing.refusal import NotServed

NO_DRAFT = "none"
_ENGINES = ("vllm", "sglang", "tensorrt-llm")
"""Those that run modules, heads and small models as drafts (vLLM 0.32.0 ``--speculative-config``, SGLang 0.5.23
``--speculative-algorithm``, TensorRT-LLM 1.2.1 ``speculative_config``)."""
METHODS = {"mtp": DraftMethod.mtp, "eagle": DraftMethod.eagle3, "eagle3": DraftMethod.eagle3}
"""Drafts that belong to a model, as a user writes them; any other name is a model's."""


def draft_named(name: str, model: ModelSpec, tokens: int | None, acceptance: float | None) -> Speculation:
    """How the model drafts with what was named."""
    if method := METHODS.get(name.strip().lower()):
        return _of_its_own(method, model, tokens, acceptance)
    draft = find_model(name)
    if draft.vocab != model.vocab:
        raise BadInput(f"{draft.name} has another vocabulary than {model.name}", field="draft")
    if acceptance is None:
        raise _unknown(f"{draft.name} drafting for {model.name}")
    return Speculation(tokens=tokens or DRAFT_TOKENS, acceptance=acceptance, draft=draft)


def published_draft(model: ModelSpec) -> Speculation | None:
    """The draft of a model whose acceptance is published; its own module before a head of others."""
    for method in (DraftMethod.mtp, DraftMethod.eagle3):
        if nearest_draft(model, method, DRAFT_TOKENS) and _draft_model(method, model):
            return _of_its_own(method, model, None, None)
    return None


def with_drafts(
    fitted: Iterable[tuple[Deployment, NotServed | None]], drafts: Sequence[Speculation], context: int
) -> Iterator[tuple[Deployment, NotServed | None]]:
    """Each deployment alone and with each draft, and why it cannot serve.

    Only without pipeline stages: vLLM's draft is on the last of them, and its documentation long ruled them out.
    """
    for deployment, refusal in fitted:
        yield deployment, refusal
        if refusal is None and deployment.pp == 1 and deployment.engine.key in _ENGINES:
            for draft in drafts:
                drafting = deployment.model_copy(update={"speculation": draft})
                yield drafting, why_not(drafting, context)


def _of_its_own(method: DraftMethod, model: ModelSpec, tokens: int | None, acceptance: float | None) -> Speculation:
    """By a module of the checkpoint or a head for it, in a round of as many tokens as asked for, or as published.

    Tokens beyond those of a published round are taken to add nothing to it.
    """
    draft = _draft_model(method, model)
    row = longer_draft(model, method, tokens) if tokens else nearest_draft(model, method, DRAFT_TOKENS)
    if draft is None:
        what = "has no module that drafts" if method is DraftMethod.mtp else "has no EAGLE-3 head that we know of"
        raise BadInput(f"{model.name} {what}", field="draft", fix=f"Name a small model: {option('draft', 'MODEL')}.")
    drafted, source = tokens or (row.tokens if row else DRAFT_TOKENS), None
    if acceptance is None and row is None:
        raise _unknown(f"the {method.upper()} module of {model.name}")
    if acceptance is None and row is not None:
        acceptance = acceptance_for(row.accepted_length, max(row.tokens, drafted))
        source = f"{row.accepted_length:g} with {row.tokens} drafted ({row.conditions}): {row.source}"
    return Speculation(
        tokens=drafted,
        acceptance=acceptance or 0.0,
        draft=draft,
        method=method,
        checkpoint=row.checkpoint if row else None,
        source=source,
    )


def _draft_model(method: DraftMethod, model: ModelSpec) -> ModelSpec | None:
    if method is DraftMethod.mtp:
        return mtp_module(model)
    row = nearest_draft(model, method, DRAFT_TOKENS)
    return eagle_head(model, row.intermediate) if row and row.intermediate else None


def _unknown(pair: str) -> BadInput:
    return BadInput(
        f"no acceptance is published of {pair}",
        field="acceptance",
        fix=f"Measure yours and give it: {option('acceptance', 0.7)} (vLLM and SGLang report it).",
    )
