"""What a change of a setup keeps of the model's quality: nothing is lost, a share by whose score, or not scored.

Only the precision of weights and KV cache touches the answers; everything else, drafts included, computes the same
distribution. A score is one's own, or published for the model or its family (``catalog.checkpoints``). Of weights and
KV cache together the product is taken.
"""

import math

from tokonomics.catalog.checkpoints import Recovery, recovery_of, recovery_text
from tokonomics.catalog.layers import Precision
from tokonomics.physics.deployment import Deployment
from tokonomics.types import Noun

NONE_LOST = "the answers do not change"
NOT_SCORED = "no score is published for this model or its family"


class QualityKept(Noun):
    """Of the model as it was published."""

    share: float | None
    """1: nothing is lost; None: not scored."""
    said: str
    """By whose word."""
    scores: tuple[Recovery, ...] = ()


def quality_kept(before: Deployment, after: Deployment) -> QualityKept:
    """What is left where a change moves a setup's precisions; of those that it leaves alone nothing is said."""
    model = after.model
    fewer = []
    if after.weights.is_below(before.weights) and after.weights.is_below(model.served):
        fewer.append(recovery_of(model, after.weights))
    if after.kv.is_below(before.kv) and after.kv.is_below(Precision.bf16):
        fewer.append(recovery_of(model, after.kv, "kv"))
    if not fewer:
        return QualityKept(share=1.0, said=NONE_LOST)
    scores = tuple(found for found in fewer if found is not None)
    if len(scores) < len(fewer):
        return QualityKept(share=None, said=NOT_SCORED, scores=scores)
    share = math.prod(found.recovery for found in scores)
    return QualityKept(share=share, said="; ".join(recovery_text(found, model) for found in scores), scores=scores)
