"""A replica under constant load: the closed form against slow references and laws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.errors import DoesNotFit
from tokonomics.physics.deployment import Deployment, deploy
from tokonomics.physics.memory import max_sequences
from tokonomics.physics.steptime import decode_step, prefill
from tokonomics.serving.steady import MissesPromise, ReplicaCurve


def on(model: str = "llama-3.1-8b", gpu: str = "H100", **options: object) -> Deployment:
    return deploy(find_model(model), find_gpu(gpu), find_engine("vllm"), **options)  # type: ignore[arg-type]


shapes = st.tuples(st.integers(1, 4000), st.integers(1, 2000))


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_a_full_batch_obeys_littles_law(shape: tuple[int, int]) -> None:
    curve = ReplicaCurve(on(), *shape)
    # Requests in the system = rate × time each of them spends writing its answer.
    assert curve.rates * shape[1] * curve.tpot_s == pytest.approx(curve.batches)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_rate_and_tpot_rise_with_the_batch(shape: tuple[int, int]) -> None:
    curve = ReplicaCurve(on(), *shape)
    assert (np.diff(curve.rates) >= -1e-12).all()
    assert (np.diff(curve.tpot_s) >= -1e-12).all()


def test_the_round_of_a_batch_is_its_prompts_and_its_steps() -> None:
    deployment = on()
    curve = ReplicaCurve(deployment, 1000, 200)
    batch = curve.batches[20]
    seconds = batch * float(prefill(deployment, 1000)) + 200 * float(decode_step(deployment, batch, 1100))
    assert curve.rates[20] == pytest.approx(batch / seconds)


def test_an_unhurried_replica_answers_one_request_at_a_time() -> None:
    deployment = on()
    curve = ReplicaCurve(deployment, 1000, 200)
    alone = curve.at(1e-6, curve.capacity())
    step = float(decode_step(deployment, 1, 1100))
    prompt = float(prefill(deployment, 1000))
    assert alone.batch == pytest.approx(1)
    assert alone.tpot_s == pytest.approx(step + prompt / 200)
    assert alone.ttft_s == pytest.approx(prompt + step, rel=1e-3)


def test_a_tighter_promise_never_raises_the_capacity() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    rates = [curve.capacity(tpot_s).rate for tpot_s in (0.008, 0.01, 0.015, 0.03, 0.1)]
    assert rates == sorted(rates)
    assert curve.capacity().rate == pytest.approx(max(rates))


def test_capacity_keeps_the_promise_and_names_what_limits_it() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    held = curve.capacity(0.01)
    assert held.tpot_s <= 0.01
    assert held.limited_by == "TPOT promise"
    assert ReplicaCurve(on(gpu="L4"), 1000, 300).capacity().limited_by == "KV memory"
    assert ReplicaCurve(on(model="llama-3.2-1b"), 10, 10).capacity().limited_by == "engine's max sequences"


def test_the_largest_batch_is_what_memory_and_engine_allow() -> None:
    deployment = on(gpu="L4")
    largest = ReplicaCurve(deployment, 1000, 300).batches[-1]
    assert largest == min(max_sequences(deployment, 1300), deployment.limits.max_sequences)


def test_an_impossible_promise_says_how_fast_a_single_request_is() -> None:
    curve = ReplicaCurve(on(), 1000, 300)
    with pytest.raises(MissesPromise) as miss:
        curve.capacity(0.0001)
    assert miss.value.tpot_s == pytest.approx(curve.tpot_s[0])


def test_a_model_that_does_not_fit_has_no_curve() -> None:
    with pytest.raises(DoesNotFit):
        ReplicaCurve(on(model="llama-3.1-70b"), 1000, 300)


def test_waiting_for_the_first_token_is_that_of_an_m_d_1_queue() -> None:
    deployment = on()
    curve = ReplicaCurve(deployment, 4000, 1)
    prompt = float(prefill(deployment, 4000))
    capacity = curve.capacity()
    at_half = curve.at(0.5 / prompt, capacity) if 0.5 / prompt <= capacity.rate else curve.at(capacity.rate, capacity)
    busy = at_half.rate * prompt
    step = float(np.interp(at_half.batch, curve.batches, curve.steps))
    assert at_half.ttft_s == pytest.approx(busy * prompt / (2 * (1 - busy)) + prompt + step)
