"""Builds whose change ``guard`` has to find, and the requests on which each is priced: for a real vLLM on one H200.

A build is Llama 3.1 8B with one flag changed. Servers of a group run side by side on one GPU, so each has little memory
for KV: enough for the largest probe (64 answers of 545 tokens). The requests are those of ``measure_flags``'s kind:
log-normal lengths of 1,500 in and 250 out, Poisson, so that a load lasts some seconds and one rate takes a few loads.
"""

from typing import Any

import numpy as np
from benchmarks.measure_vllm import CONFIGS

from tokonomics.traffic.trace import Trace, make_trace

KV_BYTES = 6_000_000_000  # 45,776 tokens in bf16, of 131,072 bytes each
SLO = "ttft_p90=1,tpot_p90=40ms"
SEED, REQUESTS = 5, 150


def _build(name: str, *flags: str, **more: Any) -> dict[str, Any]:
    memory = ["--gpu-memory-utilization", "0.06", "--kv-cache-memory-bytes", str(KV_BYTES)]
    return {"name": name, "config": CONFIGS["llama-3.1-8b"], "flags": [*memory, *flags], **more}


GROUPS: dict[str, list[dict[str, Any]]] = {
    "alike": [_build("base-a", times=3), _build("base-b", times=3)],
    "host": [
        _build("base-c"),
        _build("eager", "--enforce-eager", guess=9.0),
        _build("graphs-64", "--max-cudagraph-capture-size", "64"),
    ],
    "cache": [
        _build("base-d"),
        _build("no-prefix-cache", "--no-enable-prefix-caching"),
        _build("kv-fp8", "--kv-cache-dtype", "fp8"),
    ],
}
"""What runs side by side; a build is compared with its own group's base."""
CAUSES = {"eager": "graphs", "graphs-64": "graphs", "no-prefix-cache": "cache", "kv-fp8": "KV precision"}
"""What has to be named: a term, or what the server says of itself."""


def requests() -> Trace:
    """Return the requests, the same on both machines, at one a second."""
    chance = np.random.default_rng(SEED)
    lengths = [
        np.clip(np.round(mean * np.exp(0.5 * chance.standard_normal(REQUESTS) - 0.125)), 16, 8 * mean)
        for mean in (1500, 250)
    ]
    return make_trace(np.cumsum(chance.exponential(1.0, REQUESTS)), *(each.astype(np.int64) for each in lengths))
