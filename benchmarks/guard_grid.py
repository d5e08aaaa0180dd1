"""Builds whose change ``guard`` has to find, and the requests on which each is priced: for a real vLLM on one H200.

A build is Llama 3.1 8B with one flag changed. All run side by side on one GPU, one measured at a time, so each has
little memory for KV: 7 GB, enough for the largest probe (64 answers of 545 tokens). The requests have log-normal
lengths of 1,600 in and 100 out, and half of their prompts' tokens are the beginnings of eight conversations, so that
the prefix cache is worth something; 250 of them last some seconds and one rate takes a few loads.
"""

from typing import Any

import numpy as np
from benchmarks.measure_vllm import CONFIGS

from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace

KV_BYTES = 7_000_000_000  # 53,406 tokens in bf16, of 131,072 bytes each
SLO = "ttft_p90=1,tpot_p90=40ms"
SEED, REQUESTS, CONVERSATIONS, BLOCK = 5, 250, 8, 16
SERVED = ["--gpu-memory-utilization", "0.06", "--kv-cache-memory-bytes", str(KV_BYTES), "--max-num-seqs", "256"]
FLAGS = {
    "base": [],
    "eager": ["--enforce-eager"],
    "graphs-64": ["--max-cudagraph-capture-size", "64"],
    "no-prefix-cache": ["--no-enable-prefix-caching"],
    "kv-fp8": ["--kv-cache-dtype", "fp8"],
}
BUILDS: list[dict[str, Any]] = [
    {"name": name, "config": CONFIGS["llama-3.1-8b"], "flags": [*SERVED, *flags]} for name, flags in FLAGS.items()
]
TIMES = 5  # fingerprints of the base, each in a run of its own
CAUSES = {"eager": "graphs", "graphs-64": "graphs", "no-prefix-cache": "cache", "kv-fp8": "KV precision"}
"""What has to be named: a term, or what the server says of itself."""
GUESSES = {"base": 30.0, "eager": 15.3, "graphs-64": 29.4, "no-prefix-cache": 17.8, "kv-fp8": 39.1}
"""Requests a second that the simulator expected of each build before any was measured (``bench_guard ask``)."""


def requests() -> Trace:
    """Return the requests, the same on both machines, at one a second."""
    chance = np.random.default_rng(SEED)
    inputs, outputs = (
        np.clip(np.round(mean * np.exp(0.5 * chance.standard_normal(REQUESTS) - 0.125)), 16, 8 * mean).astype(np.int64)
        for mean in (1600, 100)
    )
    blocks = np.where(chance.random(REQUESTS) < 0.8, 0.625 * inputs // BLOCK, 0).astype(np.int64)
    longest, of = int(blocks.max()), chance.integers(0, CONVERSATIONS, REQUESTS)
    ids = np.concatenate([group * longest + np.arange(count) for group, count in zip(of, blocks, strict=True)])
    starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    prefix = PrefixBlocks(ids.astype(np.int32), starts, block_tokens=BLOCK, distinct=CONVERSATIONS * longest)
    return make_trace(np.cumsum(chance.exponential(1.0, REQUESTS)), inputs, outputs, prefix=prefix)
