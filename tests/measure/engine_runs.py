"""A made-up engine with step times we know: one step after the other, plain lists, no code of the product."""

from collections.abc import Sequence
from typing import Any

BUCKETS = [1, 2, 4, 8, 16, 32, 64]
MAX_SEQUENCES, MAX_TOKENS = 64, 1024
COLUMNS = {
    "requests": ["arrival_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s"],
    "steps": [
        "start_s", "duration_s", "decode_sequences", "prefill_tokens", "decode_kv_tokens", "prefill_attention_pairs",
        "waiting",
    ],
}  # fmt: skip
DECODE_S, ROW_S, KV_S = 5e-3, 20e-6, 30e-9
HOST_S, HOST_PROMPT_S = 14e-3, 1.5e-3
PASS_S, TOKEN_S, PAIR_S, DECODING_S = 1e-3, 20e-6, 0.0, 2e-3


def step_s(decodes: int, kv_tokens: int, prompt_tokens: int, prompts: int, pairs: float) -> float:
    if not prompt_tokens:
        return DECODE_S + ROW_S * min(size for size in BUCKETS if size >= decodes) + KV_S * kv_tokens
    running = DECODING_S + ROW_S * decodes + KV_S * kv_tokens if decodes else 0.0
    gpu = PASS_S + TOKEN_S * (decodes + prompt_tokens) + PAIR_S * pairs + running
    return max(HOST_S + HOST_PROMPT_S * prompts, gpu)


def engine_run(requests: Sequence[tuple[float, int, int]]) -> dict[str, Any]:
    """What the engine does with (arrival, input, output), as a log has it."""
    waiting = sorted(range(len(requests)), key=lambda each: requests[each][0])
    computed, written = [0] * len(requests), [0] * len(requests)
    first, last = [0.0] * len(requests), [0.0] * len(requests)
    running: list[int] = []
    steps, now = [], 0.0
    while waiting or running:
        if not running:
            now = max(now, requests[waiting[0]][0])
        decoding = [each for each in running if computed[each] >= requests[each][1]]
        kv_tokens = sum(computed[each] + 1 for each in decoding)
        room, chunks = MAX_TOKENS - len(decoding), []
        prompts = [each for each in running if each not in decoding]
        while room > 0:
            if not prompts:
                if not waiting or requests[waiting[0]][0] > now or len(running) >= MAX_SEQUENCES:
                    break
                running.append(waiting[0])
                prompts.append(waiting.pop(0))
            each = prompts.pop(0)
            chunks.append((each, min(room, requests[each][1] - computed[each])))
            room -= chunks[-1][1]
        tokens = sum(chunk for _, chunk in chunks)
        pairs = sum(chunk * (computed[each] + chunk / 2) for each, chunk in chunks)
        took = step_s(len(decoding), kv_tokens, tokens, len(chunks), pairs)
        late = sum(requests[each][0] <= now for each in waiting)
        steps.append([now, took, len(decoding), tokens, kv_tokens, pairs, late])
        now += took
        for each, chunk in [*((each, 1) for each in decoding), *chunks]:
            computed[each] += chunk
            if computed[each] >= requests[each][1]:
                written[each] += 1
                last[each] = now
                if written[each] == 1:
                    first[each] = now
        running = [each for each in running if written[each] < requests[each][2]]
    return {"requests": [[*request, first[at], last[at]] for at, request in enumerate(requests)], "steps": steps}


def engine_log(runs: dict[str, Sequence[tuple[float, int, int]]]) -> dict[str, Any]:
    return {
        "gpu": "a GPU", "model": "a model", "max_seqs": MAX_SEQUENCES, "max_batched_tokens": MAX_TOKENS,
        "graph_buckets": BUCKETS, "columns": COLUMNS,
        "runs": {name: engine_run(requests) for name, requests in runs.items()},
    }  # fmt: skip


def spread(count: int, apart_s: float, salt: int) -> list[tuple[float, int, int]]:
    """Requests of many lengths, ``apart_s`` between them on average, irregular but always the same."""
    made, now = [], 0.0
    for at in range(count):
        draw = (at * 7919 + salt * 104729) * 2654435761 % 2**32
        now += apart_s * 2 * (draw % 1000) / 1000
        made.append((now, 20 + draw // 1000 % 900, 1 + draw // 1_000_000 % 80))
    return made


def sample() -> dict[str, Any]:
    """Two closed runs, and open ones at two rates."""
    return engine_log(
        {
            "closed-8": [(0.0, 256, 40)] * 8, "closed-64": [(0.0, 256, 40)] * 64, "poisson-16": spread(200, 1 / 16, 1),
            "poisson-24": spread(200, 1 / 24, 2),
        }
    )  # fmt: skip
