"""What tests of serving ask for again and again: requests and rules as arrays, the times of a table."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from tests.serving.reference_replica import EngineTimes

from tokonomics.serving.state import Requests, Rules, unit_ends
from tokonomics.serving.step_table import StepTable, after_s, context_points, gpu_s, launching_s, prompt_axes
from tokonomics.traffic.trace import Trace, make_trace

KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2
"""Llama 3.1 8B: keys and values of 32 layers, 8 heads of 128, in 16 bits."""


def poisson(rate: float, count: int, inputs: int, outputs: int) -> Trace:
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, count))
    return make_trace(arrivals, [inputs] * count, [outputs] * count)


def some_traffic(count: int, rate: float = 28.0, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    inputs, outputs = rng.integers(1, 2000, count), rng.integers(0, 300, count)
    return make_trace(np.cumsum(rng.exponential(1 / rate, count)), inputs, outputs)


def asked(
    arrival_s: ArrayLike, inputs: ArrayLike, outputs: ArrayLike, *, unit_tokens: int = 16, **more: Any
) -> Requests:
    """Requests without urgency, deadline or shared prompts, unless told."""
    arrivals = np.asarray(arrival_s, np.float64)
    plain: dict[str, Any] = {
        "urgency": np.zeros(len(arrivals), np.int32), "deadline_s": np.full(len(arrivals), np.inf),
        "unit_ids": np.zeros(0, np.int32), "unit_starts": np.zeros(len(arrivals) + 1, np.int64), "prefilled": False,
    }  # fmt: skip
    lengths, given = (np.asarray(inputs, np.int32), np.asarray(outputs, np.int32)), plain | more
    ends = unit_ends(given["unit_starts"], unit_tokens, lengths[0])
    return Requests(arrivals, *lengths, **given, unit_ends=ends)


ROOMY = Rules(
    max_sequences=8, max_batched_tokens=64, mixes=True, chunks=True, reserves=False, block_tokens=16, kv_blocks=100,
    fixed_blocks=0, caches=False, max_context=200,
)  # fmt: skip


HOST_S = ("host_step_s", "request_s", "token_s", "reach_s")


def flat_table(with_prompts_s: float, answers_s: float, **host: Any) -> StepTable:
    """Every step with prompts takes the GPU as long, and every one without; its host takes no time, unless told."""
    contexts, axes = len(context_points(200)), prompt_axes(8, 64, 200)
    told: dict[str, Any] = {"launch_s": np.zeros(100), "ahead": False} | dict.fromkeys(HOST_S, 0.0) | host
    return StepTable(
        tokens_s=np.full(100, with_prompts_s), shared_s=np.zeros(100), head_s=np.zeros(20),
        decode_s=np.full((9, contexts), answers_s), attention_s=np.zeros((9, contexts)),
        beside_s=np.zeros(9), cool_s=np.zeros(100),
        prompt_log_s=np.full([len(axis) for axis in axes], math.log(1e-15)), launch_prompt_s=0.0, host_sequence_s=0.0,
        answer_s=0.0, stages=1, groups=1, aligned=False, **told,
    )  # fmt: skip


def times_of(table: StepTable) -> EngineTimes:
    """What the slow reference takes, from the table of the fast loop."""
    return EngineTimes(
        gpu_s=lambda *step: float(gpu_s(table, *step)),
        launch_s=lambda *step: float(launching_s(table, *step)),
        after_s=lambda *step: float(after_s(table, *step)),
        ahead=table.ahead, request_s=table.request_s, token_s=table.token_s, reach_s=table.reach_s,
        answer_s=table.answer_s,
    )  # fmt: skip
