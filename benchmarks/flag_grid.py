"""Define the grid of flag sets that a real vLLM serves as truth for ``tune``: servers, limits, traces and targets.

A cell is a flag set with a trace; what is sought is the highest rate at which the trace, replayed faster or slower,
meets its targets. Precision, KV and drafts take a server each; the limits of sequences and of tokens a step are changed
inside a running server, in the fields of vLLM's own scheduler (``measure_flags.py``). Every server of a model has the
same memory for KV, and captures graphs up to 512 tokens whatever the limit of sequences.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
from benchmarks.bench_blind import BLOCKS, BY_TENSOR, ERNIE
from benchmarks.bench_levers import trace_of
from benchmarks.lever_grid import EAGLE, LLAMA_8B, Json, seed_of

from tokonomics.catalog.layers import Scales
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.operate.flag_sets import FlagSet, with_values
from tokonomics.physics.deployment import EngineFlags
from tokonomics.planner.parsing import draft_named
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.request import SILENT
from tokonomics.questions.traffic import traffic_of
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import Trace

CAPTURED = 512
ACCEPTANCE = 0.7  # what the drafts' checks are told to accept, whatever the weights
SEQUENCES, STEP_TOKENS = (16, 64, 256), (2048, 8192)
MODELS = {"8b": "llama-3.1-8b", "experts": "ernie-4.5-21b-a3b"}
KV_BYTES = {"8b": 10_000_000_000, "experts": 6_000_000_000}


def _synthetic(method: str, tokens: int, **more: object) -> list[str]:
    rates = [round(ACCEPTANCE ** (place + 1), 4) for place in range(tokens)]
    said = {"method": method, "num_speculative_tokens": tokens, "rejection_sample_method": "synthetic"}
    return ["--speculative-config", json.dumps(said | {"synthetic_acceptance_rates": rates, **more})]


BY_TENSOR_8B = LLAMA_8B | {"quantization_config": BY_TENSOR}
BY_BLOCKS = ERNIE | {"quantization_config": BLOCKS}
SERVERS: dict[str, dict[str, Json]] = {
    "8b": {
        "plain": {"config": LLAMA_8B, "values": {"weights": "bf16"}},
        "fp8": {"config": BY_TENSOR_8B, "values": {"weights": "fp8"}},
        "fp8, kv": {"config": BY_TENSOR_8B, "flags": ["--kv-cache-dtype", "fp8"],
                    "values": {"weights": "fp8", "kv": "fp8"}},
        "fp8, eagle": {"config": BY_TENSOR_8B, "flags": _synthetic("eagle3", 3, model="{draft}"), "draft": EAGLE,
                       "values": {"weights": "fp8", "draft": "eagle3:3"}},
    },
    "experts": {
        "plain": {"config": BY_BLOCKS, "values": {"weights": "fp8"}},
        "kv": {"config": BY_BLOCKS, "flags": ["--kv-cache-dtype", "fp8"], "values": {"weights": "fp8", "kv": "fp8"}},
        "mtp": {"config": BY_BLOCKS | {"num_nextn_predict_layers": 1}, "flags": _synthetic("mtp", 1),
                "values": {"weights": "fp8", "draft": "mtp:1"}},
        "not ahead": {"config": BY_BLOCKS, "flags": ["--no-async-scheduling"],
                      "values": {"weights": "fp8", "composes_ahead": False}},
    },
}  # fmt: skip
SLOS = {"code": "ttft_p90=1,tpot_p90=60ms", "assistants": "ttft_p90=0.5,tpot_p90=25ms"}
REQUESTS = {"code": 130, "assistants": 220}
HEADS, HEAD_TOKENS = 8, 512


# --- what is sent -----------------------------------------------------------------------------------------------------


@cache
def rows_of(name: str) -> tuple[tuple[float, tuple[tuple[int, int], ...], int], ...]:
    """Return requests as their time at one a second, segments (seed, tokens) of their prompt, and answer tokens."""
    chance, count = np.random.default_rng(seed_of("flags", name)), REQUESTS[name]
    at = np.cumsum(chance.exponential(1.0, count))
    if name == "code":
        log = traffic_of(Traffic.checked({"trace": "azure-code", "requests": count}), SILENT)
        prompts: list[tuple[tuple[int, int], ...]] = [
            ((seed_of(name, place), max(1, int(log.input_tokens[place]))),) for place in range(count)
        ]
        outs = [max(2, int(out)) for out in log.output_tokens]
    else:
        shares = 1 / np.arange(1, HEADS + 1)
        heads = chance.choice(HEADS, count, p=shares / shares.sum())
        own = np.clip(chance.lognormal(np.log(400), 0.6, count), 16, 2500).astype(int)
        prompts = [
            ((seed_of(name, "head", int(head)), HEAD_TOKENS), (seed_of(name, place), int(own[place])))
            for place, head in enumerate(heads)
        ]
        outs = [int(out) for out in np.clip(chance.lognormal(np.log(90), 0.5, count), 8, 300)]
    return tuple((round(float(when), 5), prompt, out) for when, prompt, out in zip(at, prompts, outs, strict=True))


@cache
def trace_named(name: str) -> Trace:
    """Return the same requests as the simulator takes them."""
    sessions = [{"at": at, "turns": [{"new": list(prompt), "out": out}]} for at, prompt, out in rows_of(name)]
    made, _ = trace_of(sessions)
    return replace(made, turns=None)


# --- what is predicted ------------------------------------------------------------------------------------------------


def sets_of(model: str) -> Iterator[tuple[str, FlagSet]]:
    """Yield each flag set of a model with the server that has its precisions and drafts."""
    for server, (sequences, tokens) in product(SERVERS[model], product(SEQUENCES, STEP_TOKENS)):
        limits = {"max_sequences": sequences, "max_batched_tokens": tokens}
        yield server, FlagSet(values={**SERVERS[model][server]["values"], **limits})


def setup_of(model: str, trace: str, flags: FlagSet) -> Setup:
    """Return a flag set with a trace as the simulator takes it."""
    made = stated_deployment(MODELS[model], "H200", 1, 1, 1, 1, "fp8", "bf16", "vllm")
    own = EngineFlags(captured_tokens=CAPTURED, kv_bytes=KV_BYTES[model])
    changes: Json = {"flags": own}
    if model == "experts":
        changes["model"] = made.model.model_copy(update={"fp8_scales": Scales.blocks})
    setup = Setup(made.model_copy(update=changes), load_of_requests(trace_named(trace)), slos=parse_slos(SLOS[trace]))
    drafts = str(flags.values.get("draft", ""))
    setup = with_values(setup, {name: value for name, value in flags.values.items() if name != "draft"})
    if drafts:
        method, _, tokens = drafts.partition(":")
        setup = setup.deployed(speculation=draft_named(method, setup.deployment.model, int(tokens), ACCEPTANCE))
    return setup
