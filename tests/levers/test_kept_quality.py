"""What a lever keeps of a model's quality stands beside what it saves, by whose score, or that there is none."""

import pytest

from tokonomics.catalog.checkpoints import recovery_of
from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Precision
from tokonomics.catalog.load_models import find_model
from tokonomics.levers.ranking import quality_kept
from tokonomics.physics.deployment import Deployment, deploy


def deployment(model: str, weights: Precision = Precision.bf16) -> Deployment:
    return deploy(find_model(model), find_gpu("H100"), find_engine("vllm"), tp=1, weights=weights, kv=Precision.bf16)


def test_what_leaves_the_precisions_alone_loses_nothing() -> None:
    before = deployment("llama-3.1-8b", weights=Precision.fp8)
    assert quality_kept(before, before.model_copy(update={"tp": 4})).share == 1
    assert quality_kept(before, before).scores == ()
    more_bits = before.model_copy(update={"weights": Precision.bf16})
    assert quality_kept(before, more_bits).share == 1


def test_fewer_bits_keep_what_was_scored_and_say_by_whom() -> None:
    before = deployment("llama-3.1-8b")
    kept = quality_kept(before, before.model_copy(update={"weights": Precision.int4}))
    scored = recovery_of(find_model("llama-3.1-8b"), Precision.int4)
    assert scored is not None
    assert kept.share == scored.recovery
    assert scored.source in kept.said


def test_weights_and_kv_cache_together_keep_the_product() -> None:
    before = deployment("llama-3.3-70b")
    both = before.model_copy(update={"weights": Precision.fp8, "kv": Precision.fp8})
    apart = [quality_kept(before, before.model_copy(update={part: Precision.fp8})).share for part in ("weights", "kv")]
    assert None not in apart
    assert quality_kept(before, both).share == pytest.approx((apart[0] or 0) * (apart[1] or 0))


def test_what_nobody_scored_is_not_scored() -> None:
    before = deployment("llama-3.1-8b")
    kept = quality_kept(before, before.model_copy(update={"kv": Precision.fp8}))
    assert kept.share is None
    assert kept.scores == ()
