"""Engines whose host takes no time, and what the host of one that works ahead adds to a lone request, by hand."""

from typing import NamedTuple

from tokonomics.physics.deployment import Deployment
from tokonomics.physics.overhead import LAUNCHES, REQUESTS, Overhead, overhead
from tokonomics.physics.steptime import StepModel, step_model


def free(engine: Overhead) -> Overhead:
    """The same engine if its host took no time at all."""
    return engine.model_copy(update=dict.fromkeys(("step_s", "sequence_s", *LAUNCHES, *REQUESTS), 0.0))


def hostless(deployment: Deployment) -> StepModel:
    """Kernels only, without the host, whose share does not depend on the GPU."""
    return step_model(deployment).with_engine(free(overhead(deployment.engine)))


class Lone(NamedTuple):
    """A request that finds an empty replica; seconds after it was sent."""

    begun_s: float
    done_s: float
    """Its prompt is computed; the first step of its answer begins."""
    heard_s: float
    """Its client has the first token."""


def lone(deployment: Deployment, layers: int, tokens: int, past: int = 0, answer: int = 2) -> Lone:
    """A prompt of a dense model in one step: received, tokenised, launched and computed, told and sent.

    The recursion in ``serving.scheduler`` for two steps, the prompt's and the first of its answer, which is composed
    when the prompt's has been launched; an engine that works in turn tells when its host has looked at the step.
    """
    host = overhead(deployment.engine)
    assert tokens <= deployment.limits.max_batched_tokens
    begun_s = host.request_s + host.token_s * (past + tokens) + host.reach_s
    a_layer_s = host.piece_s if tokens <= host.graph_tokens else host.layer_s
    if not host.overlapped:
        done_s = begun_s + max(float(hostless(deployment).prefill(tokens, past)), layers * a_layer_s) + host.step_s
        return Lone(begun_s, done_s, done_s + host.answer_s)
    launched_s = begun_s + host.step_s + layers * a_layer_s + host.sequence_s
    done_s = max(begun_s + float(hostless(deployment).prefill(tokens, past)), launched_s)
    # Clients hear of a step when the next one has been launched; where there is none, at once.
    told_s = max(done_s, launched_s + host.step_s + host.sequence_s) if answer > 1 else done_s
    return Lone(begun_s, done_s, told_s + host.answer_s)
