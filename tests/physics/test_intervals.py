"""Intervals: every situation has one, and the less a speed is known the wider it is."""

import math
import tomllib
from importlib.resources import files
from itertools import pairwise, product
from typing import get_args

import pytest
from tests.deployed import on

from tokonomics.physics.intervals import KNOWN, Kind, error_class, interval, weakest_badge
from tokonomics.physics.overhead import overhead
from tokonomics.types import Badge

CLASSES = tomllib.loads(files("tokonomics.physics").joinpath("data/intervals.toml").read_text())["classes"]


@pytest.mark.parametrize(("kind", "model"), list(product(get_args(Kind), ("llama-3.1-8b", "qwen3-30b-a3b"))))
def test_every_situation_has_an_interval_and_the_less_is_known_the_wider_it_is(kind: Kind, model: str) -> None:
    deployment = on(model, "H100")
    names = [error_class(kind, deployment, badge) for badge in KNOWN]
    assert all(CLASSES[name]["low"] < 0 < CLASSES[name]["high"] for name in names)
    for better, worse in pairwise(CLASSES[name] for name in names):
        assert worse["low"] <= better["low"]
        assert worse["high"] >= better["high"]


def test_an_engine_whose_time_is_assumed_makes_an_assumed_interval() -> None:
    deployment = on()
    own = overhead(deployment.engine)
    guessed = own.model_copy(update={"badge": Badge.assumed})
    assert weakest_badge(deployment, own) is Badge.measured
    assert weakest_badge(deployment, guessed) is Badge.assumed
    spread = CLASSES["tpot-dense-assumed"]
    found = interval(2.0, "tpot", deployment, guessed)
    assert found.low == pytest.approx(2.0 * math.exp(spread["low"]))
    assert found.high == pytest.approx(2.0 * math.exp(spread["high"]))


def test_an_era_says_nothing_of_an_architecture_that_taught_it_nothing() -> None:
    """TensorRT-LLM of 2025 is known from Ampere, Ada and Hopper: on Blackwell its class's wider interval holds."""
    name = "throughput-dense-scaled on tensorrt-llm-0.17"
    for gpu, taught in (("H200", True), ("H100-NVL", True), ("GB200", False)):
        deployment = on(gpu=gpu, engine="tensorrt-llm")
        found = interval(1.0, "throughput", deployment, overhead(deployment.engine, version="0.17"))
        spread = CLASSES[name if taught else name.partition(" on ")[0]]
        assert (found.low, found.high) == pytest.approx((math.exp(spread["low"]), math.exp(spread["high"])))
