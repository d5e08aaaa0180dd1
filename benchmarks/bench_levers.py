"""Predict where each lever pays, then have a real vLLM serve the same loads with and without it, then compare.

    python -m benchmarks.bench_levers ask FOLDER     # the grid's loads and predictions, before the run; FOLDER/jobs.json
    python -m benchmarks.bench_levers keep RAW...    # adds what the client recorded (measure_levers.py: GROUP.jsonl)
    python -m benchmarks.bench_levers                # prints the tables and records them

A *load* is what one server is sent: sessions, each a list of requests sent one after another. A *cell* is a load with a
lever beside the same requests without it, on one axis or two. Its saving is of the GPU's time for a token of the
answers, so of dollars for it at whatever the GPU costs; where a lever is about latency, of that latency. The
simulator predicts both loads, whatever else it knows of the run: flags, the memory for KV, the acceptance set.
"""

import argparse
import gzip
import json
import random
import statistics
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.bench_blind import BLOCKS, BY_TENSOR, ERNIE, UNIFORM
from benchmarks.measure_vllm import CONFIGS, LLAMA

from tokonomics.catalog.engines import start_times
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.layers import Scales
from tokonomics.measure.stated_setup import stated_deployment
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.memory import kv_budget_bytes, shard
from tokonomics.physics.overhead import Overhead, overhead
from tokonomics.physics.steptime import StepModel
from tokonomics.planner.parsing import draft_named
from tokonomics.serving.shared import SharedEngine, side_by_side
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.tiers import Tier, plan_fetches
from tokonomics.traffic.trace import PrefixBlocks, Trace, Turns
from tokonomics.types import today

HERE = Path(__file__).parent
DATA = HERE / "data" / "vllm_h200_levers.json.gz"
BLOCK = 16  # tokens of vLLM's KV block
MOST_SEQUENCES, MOST_TOKENS = 1024, 8192
GAP_S = 30.0  # between two loads of which one finds what the other left in the cache
DRAM_GIB = 16
DISK_DRAM_BYTES = 4_000_000_000
DISK_SPEEDS = "2.7/1.6"  # GB/s read and written by dd with O_DIRECT on that machine, before the run
KV_TOKEN_BYTES = 131_072  # of Llama 3.1 8B in bf16
SMALL_KV = 40_000 * KV_TOKEN_BYTES
LLAMA_8B, LLAMA_1B = CONFIGS["llama-3.1-8b"], LLAMA | {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True,
}  # fmt: skip
EAGLE = LLAMA_8B | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 32_000}

Json = dict[str, Any]


def _server(name: str, kv_bytes: int, *flags: str, config: Json = LLAMA_8B, **more: Any) -> Json:
    shared = ["--gpu-memory-utilization", "0.06", "--kv-cache-memory-bytes", str(kv_bytes)]
    return {"name": name, "config": config, "flags": [*shared, *flags], "kv_bytes": kv_bytes, **more}


def _drafts(**said: Any) -> str:
    return json.dumps(said)


def _synthetic(method: str, tokens: int, **more: Any) -> tuple[str, str]:
    rates = [round(0.7 ** (place + 1), 4) for place in range(tokens)]
    said = {"num_speculative_tokens": tokens, "rejection_sample_method": "synthetic"}
    return "--speculative-config", _drafts(method=method, **said, synthetic_acceptance_rates=rates, **more)


TIERED = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
    "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": DISK_DRAM_BYTES,
    "secondary_tiers": [{"type": "fs", "root_dir": "{root}/kvdisk"}]}}  # fmt: skip
N_GRAM = {"method": "ngram_gpu", "num_speculative_tokens": 3, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
SERVERS: dict[str, tuple[Json, ...]] = {
    "bits_and_drafts": (
        _server("plain", 11_000_000_000),
        _server("fp8 weights", 10_000_000_000, config=LLAMA_8B | {"quantization_config": BY_TENSOR}, weights="fp8"),
        _server("fp8 kv", 11_000_000_000, "--kv-cache-dtype", "fp8", kv="fp8"),
        _server("eagle3", 8_000_000_000, *_synthetic("eagle3", 3, model="{draft}"), draft=EAGLE, drafts=("eagle3", 3)),
        _server("draft 1b", 8_000_000_000, *_synthetic("draft_model", 3, model="{draft}"), draft=LLAMA_1B,
                drafts=("llama-3.2-1b", 3)),
    ),
    "caches_and_adapters": (
        _server("small", SMALL_KV, "--scheduling-policy", "priority"),
        _server("dram", SMALL_KV, "--kv-offloading-size", str(DRAM_GIB), dram_bytes=DRAM_GIB * 2**30),
        _server("disk", SMALL_KV, "--kv-transfer-config", _drafts(**TIERED), dram_bytes=DISK_DRAM_BYTES,
                disk_bytes=40_000_000_000),
        _server("lora 16", 6_000_000_000, adapters={"rank": 16, "count": 64}),
        _server("lora 64", 6_000_000_000, adapters={"rank": 64, "count": 16}),
    ),
    "flags": (
        _server("chunk 2048", 8_000_000_000, "--max-num-batched-tokens", "2048", "--enable-sleep-mode", chunk=2048),
        _server("chunk 512", 8_000_000_000, "--max-num-batched-tokens", "512", "--max-num-seqs", "256", chunk=512,
                sequences=256),
        _server("sequences 32", 8_000_000_000, "--max-num-seqs", "32", sequences=32),
        _server("graphs 8", 8_000_000_000, "--max-cudagraph-capture-size", "8", graph_tokens=8),
        _server("not ahead", 8_000_000_000, "--no-async-scheduling", overlapped=False),
    ),
    "experts_and_ngrams": (
        _server("ernie", 10_000_000_000, config=ERNIE | {"quantization_config": BLOCKS}, env=UNIFORM),
        _server("ernie mtp", 10_000_000_000, *_synthetic("mtp", 1), env=UNIFORM, drafts=("mtp", 1),
                config=ERNIE | {"quantization_config": BLOCKS, "num_nextn_predict_layers": 1}),
        _server("n-grams", 8_000_000_000, "--speculative-config", _drafts(**N_GRAM), drafts=("n-gram", 3)),
    ),
}  # fmt: skip
SERVER = {server["name"]: server for group in SERVERS.values() for server in group}
GROUP_OF = {server["name"]: group for group, servers in SERVERS.items() for server in servers}


# --- the grid ---------------------------------------------------------------------------------------------------------

BATCHES = {1: 3, 4: 8, 16: 32, 48: 96, 96: 192}
"""Users of a closed loop, and requests: 256 tokens in and 128 out."""
BITS = ((1, 2, 256), (1, 2, 2048), (1, 1, 6000), (8, 16, 256), (8, 16, 2048), (8, 8, 6000), (32, 64, 256),
        (32, 32, 2048), (128, 256, 256), (128, 128, 512), (256, 256, 128), (96, 96, 1536))  # fmt: skip
"""Users, requests and prompt tokens; 128 out. The last does not fit the 16-bit cache at once."""
ACCEPTANCES = (0.3, 0.5, 0.7, 0.9)
SHARES = (0.25, 0.5, 0.75, 0.95)
SHARED_LOADS = ((4, 16, 64), (24, 72, 64), (24, 48, 256))
PREFIXES = (10, 20, 40, 80, 160)
PREFIX, TAIL = 2048, 192
PAIRS = (4.0, 9.0, 14.0)
"""Requests a second to each of two servers on one GPU: 256 tokens in, 128 out."""
ADAPTERS = {"lora 16": ((1, 1), (16, 1), (16, 4), (16, 16), (48, 1), (48, 16), (48, 48), (96, 1), (96, 16), (96, 64)),
            "lora 64": ((1, 1), (16, 1), (16, 16), (48, 1), (48, 16), (96, 1), (96, 16))}  # fmt: skip
"""Users, and adapters among them."""
BATCH_WORK = (4, 8, 12)
"""Requests a second of 2,000 tokens in and 200 out, beside people's 2 of 300 and 60."""
CONVERSATIONS = {"conversations 12": (12, 4, 0, 1024, 192, 96, 0.3), "conversations 32": (32, 4, 0, 1024, 192, 96, 0.3),
                 "agents 4": (4, 8, 3072, 512, 512, 48, 0.1), "agents 10": (10, 8, 3072, 512, 512, 48, 0.1)}  # fmt: skip
"""Sessions, turns, tokens that all begin with, own tokens of the first prompt, of each later one, answers, pause."""


def _seed(*words: object) -> int:
    return zlib.crc32(repr(words).encode()) % 10**8 * 10


def _turn(new: Sequence[tuple[int, int]], out: int, **more: Any) -> Json:
    return {"new": [list(part) for part in new], "out": out, **more}


def _loop(name: str, users: int, count: int, prompt: int, out: int, **more: Any) -> list[Json]:
    """Return a closed loop: each user sends the next of their requests when the last was answered."""
    seed = _seed(name)
    return [
        {"at": 0.0, "turns": [_turn([(seed + place, prompt)], out, **more) for place in range(user, count, users)]}
        for user in range(users)
    ]


def loads() -> Iterator[Json]:
    """Yield every load: its name, its server, and its sessions."""
    for name in SERVER:
        users = 16 if name in ("sequences 32", "ernie", "ernie mtp") else 48
        for number, (many, count, prompt, out) in enumerate(
            ((users, users, 700, 40), (4, 8, 3000, 20), (1, 2, 200, 20))
        ):
            yield _load(
                f"{name}: first {number}", name, _loop(f"{name} first {number}", many, count, prompt, out), drop=True
            )
    yield from _bits_and_drafts()
    yield from _caches()
    yield from _adapters()
    yield from _classes()
    yield from _flags()
    yield from _experts()


def _load(name: str, server: str, sessions: list[Json], **more: Any) -> Json:
    return {"name": name, "server": server, "sessions": sessions, **more}


def _bits_and_drafts() -> Iterator[Json]:
    for users, count in BATCHES.items():
        yield _load(f"plain: {users} × 256", "plain", _loop(f"plain {users}", users, count, 256, 128))
    yield _load("plain: 8 × 4000", "plain", _loop("plain 8 4000", 8, 8, 4000, 128))
    for server in ("plain", "fp8 weights", "fp8 kv"):
        for users, count, prompt in BITS:
            name = f"{server}: bits {users} × {prompt}"
            yield _load(
                name, server, _loop(name, users, count, prompt, 128), need_s=12 if users * prompt > 60_000 else 5
            )
    for acceptance in ACCEPTANCES:
        for users, count in BATCHES.items():
            name = f"eagle3: {users} at {acceptance}"
            yield _load(name, "eagle3", _loop(name, users, count, 256, 128), acceptance=acceptance)
    yield _load("eagle3: 8 × 4000 at 0.7", "eagle3", _loop("eagle3 8 4000", 8, 8, 4000, 128), acceptance=0.7)
    for acceptance in (0.5, 0.8):
        for users in (1, 16, 96):
            name = f"draft 1b: {users} at {acceptance}"
            yield _load(name, "draft 1b", _loop(name, users, BATCHES[users], 256, 128), acceptance=acceptance)
    for users, count, out in SHARED_LOADS:
        for share in (0.0, *SHARES):
            name = f"plain: share {share} of {users} users, {out} out"
            yield _load(name, "plain", _beginning_alike(name, share, users, count, out), need_s=8)
    for rate in PAIRS:
        for server in ("plain", "fp8 weights"):
            name = f"{server}: alone at {rate:g}/s"
            yield _load(name, server, _arriving(name, rate), need_s=10)
        own, other = f"plain: beside another at {rate:g}/s", f"fp8 weights: beside another at {rate:g}/s"
        yield _load(own, "plain", _arriving(own, rate), beside="fp8 weights", beside_sessions=_arriving(other, rate),
                    need_s=12)  # fmt: skip


def _arriving(name: str, rate: float) -> list[Json]:
    arrivals, sessions, at = random.Random(_seed(name)), [], 0.0
    while (at := at + arrivals.expovariate(rate)) < 6.0:
        sessions.append({"at": round(at, 4), "turns": [_turn([(_seed(name, at), 256)], 128)]})
    return sessions


def _beginning_alike(name: str, share: float, users: int, count: int, out: int) -> list[Json]:
    """Return a loop whose prompts of 2,048 tokens begin with the same tokens, sent once before it begins."""
    seed, alike = _seed(name), round(2048 * share / BLOCK) * BLOCK
    first = [(seed, alike)] if alike else []
    sessions = [{"at": 0.0, "turns": [_turn([*first, (seed + 1, 2048 - alike)], 4, warm=1)]}]
    for user in range(users):
        own = [_turn([*first, (seed + 2 + place, 2048 - alike)], out) for place in range(user, count, users)]
        sessions.append({"at": 0.5, "turns": own})
    return sessions


def _drawn(name: str, prefixes: int, users: int, count: int, warm: bool) -> list[Json]:
    """Return a loop over so many beginnings, drawn at random; if warm, each was sent once before."""
    seed, draw = _seed("beginnings", name.split(",")[0]), random.Random(_seed(name))
    turns: list[list[Json]] = [[] for _ in range(users)]
    place = 0
    for prefix in range(prefixes if warm else 0):
        turns[prefix % users].append(_turn([(seed + prefix, PREFIX), (_seed(name, prefix), TAIL)], 8, warm=1))
    for place in range(count):
        chosen = [(seed + draw.randrange(prefixes), PREFIX)] if prefixes else [(_seed(name, "own", place), PREFIX)]
        turns[place % users].append(_turn([*chosen, (_seed(name, "tail", place), TAIL)], 48))
    return [{"at": 0.0, "turns": given} for given in turns]


def _caches() -> Iterator[Json]:
    for users, count in ((8, 48), (2, 24)):
        name = f"small: own, {users} users"
        yield _load(name, "small", _drawn(name, 0, users, count, False), need_s=6)
    for server in ("small", "dram", "disk"):
        for prefixes in PREFIXES if server != "disk" else PREFIXES[-2:]:
            first = f"{server}: {prefixes} beginnings, 8 users"
            yield _load(first, server, _drawn(first, prefixes, 8, 48, True), need_s=22)
            then = f"{server}: {prefixes} beginnings, 2 users"
            yield _load(then, server, _drawn(then, prefixes, 2, 24, False), after=first, need_s=5)
    for kind in CONVERSATIONS:
        for server, carries in (("small", False), ("small", True), ("dram", True)):
            name = f"{server}: {kind}{'' if carries else ', nothing shared'}"
            yield _load(name, server, _talks(name, kind, carries), need_s=10)


def _talks(name: str, kind: str, carries: bool) -> list[Json]:
    """Return conversations or agents; if they carry nothing, prompts of the same lengths that share nothing."""
    many, turns, together, first, later, out, pause = CONVERSATIONS[kind]
    sessions = []
    for place in range(many):
        prompt, given = together + first, []
        for turn in range(turns):
            own, more = (_seed(name, place, turn), later if turn else first), {"pause": pause} if turn else {}
            if carries:
                given.append(_turn([own] if turn or not together else [(_seed(name), together), own], out, **more))
            else:
                given.append(_turn([(own[0], prompt)], out, **more))
            prompt += out + later
        sessions.append({"at": round(place * 0.05, 3), "carries": carries, "turns": given})
    return sessions


def _adapters() -> Iterator[Json]:
    for server, cells in ADAPTERS.items():
        for users, adapters in cells:
            name = f"{server}: {users} users, {adapters} adapters"
            sessions = _loop(name, users, BATCHES[users], 256, 128)
            for user, session in enumerate(sessions):
                for number, turn in enumerate(session["turns"]):
                    turn["adapter"] = (user + number) % adapters
            yield _load(name, server, sessions)
    yield _load("lora 16: 96 users, none", "lora 16", _loop("lora 16 none", 96, 192, 256, 128))


def _classes() -> Iterator[Json]:
    """Yield people and batch work on one server: all alike, or people first; and batch work only where there is room."""
    for rate in BATCH_WORK:
        for known in (False, True):
            name = f"small: people and {rate}/s of batch{', people first' if known else ''}"
            arrivals = random.Random(_seed("classes", rate))
            sessions = []
            for kind, each, prompt, out in ((0, 2.0, 300, 60), (5, rate, 2000, 200)):
                at, place = 0.0, 0
                while (at := at + arrivals.expovariate(each)) < 7.0:
                    place += 1
                    turn = _turn(
                        [(_seed(name, kind, place), prompt)], out, kind=kind, **({"priority": kind} if known else {})
                    )
                    sessions.append({"at": round(at, 4), "turns": [turn]})
            yield _load(name, "small", sessions, need_s=16)
    for users in (0, 4, 12):
        name = f"small: gaps filled by {users}"
        arrivals, sessions, at, place = random.Random(_seed("gaps")), [], 0.0, 0
        while (at := at + arrivals.expovariate(4.0)) < 6.0:
            place += 1
            turn = _turn([(_seed(name, place), 300)], 60, kind=0, priority=0)
            sessions.append({"at": round(at, 4), "turns": [turn]})
        for user in range(users):
            own = [
                _turn([(_seed(name, user, number), 1000)], 100, kind=5, priority=5)
                for number in range(8 if users < 8 else 5)
            ]
            sessions.append({"at": 0.2, "turns": own})
        yield _load(name, "small", sessions, need_s=10)


FLAG_LOADS = ((1, 3, 256, 128), (16, 32, 256, 128), (48, 96, 256, 128), (96, 192, 256, 128), (32, 64, 1024, 128),
              (12, 24, 4000, 64))  # fmt: skip


def _flags() -> Iterator[Json]:
    for server in ("plain", *(each["name"] for each in SERVERS["flags"])):
        for users, count, prompt, out in FLAG_LOADS:
            name = f"{server}: flags {users} × {prompt}"
            yield _load(name, server, _loop(name, users, count, prompt, out), need_s=8)
        name = f"{server}: flags at 12/s"
        arrivals, sessions, at = random.Random(_seed("flags")), [], 0.0
        while (at := at + arrivals.expovariate(12.0)) < 6.0:
            turn = _turn([(_seed(name, at), int(arrivals.uniform(512, 1536)))], int(arrivals.uniform(64, 192)))
            sessions.append({"at": round(at, 4), "turns": [turn]})
        yield _load(name, server, sessions, need_s=11)
    yield _load("chunk 2048: sleep and wake", "chunk 2048", _loop("asleep", 1, 1, 64, 4), level=1, times=3, need_s=25)


def _experts() -> Iterator[Json]:
    for server in ("ernie", "ernie mtp"):
        for users in (32, 96):  # kernels of experts compile for new shapes
            name = f"{server}: first of {users}"
            yield _load(name, server, _loop(name, users, users, 256, 40), drop=True)
    for users, count in BATCHES.items():
        name = f"ernie: {users} × 256"
        yield _load(name, "ernie", _loop(name, users, count, 256, 128))
    for acceptance in (0.4, 0.8):
        for users, count in BATCHES.items():
            name = f"ernie mtp: {users} at {acceptance}"
            yield _load(name, "ernie mtp", _loop(name, users, count, 256, 128), acceptance=acceptance)
    for users in (1, 16, 96):
        name = f"n-grams: {users} × 256"
        yield _load(name, "n-grams", _loop(name, users, BATCHES[users], 256, 128))


def cells() -> Iterator[Json]:
    """Yield each cell: the lever, where on its axes, its load, the load without it, and what is compared."""
    for bits in ("weights", "kv"):
        for users, _, prompt in BITS:
            at = {"batch": users, "context": prompt}
            yield _cell(f"FP8 {bits}", at, f"fp8 {bits}: bits {users} × {prompt}", f"plain: bits {users} × {prompt}")
    for acceptance in ACCEPTANCES:
        for users in BATCHES:
            at = {"batch": users, "acceptance": acceptance}
            yield _cell("drafts: EAGLE-3", at, f"eagle3: {users} at {acceptance}", f"plain: {users} × 256")
    yield _cell(
        "drafts: EAGLE-3",
        {"batch": 8, "acceptance": 0.7, "context": 4000},
        "eagle3: 8 × 4000 at 0.7",
        "plain: 8 × 4000",
    )
    for acceptance in (0.5, 0.8):
        for users in (1, 16, 96):
            at = {"batch": users, "acceptance": acceptance}
            yield _cell("drafts: a model", at, f"draft 1b: {users} at {acceptance}", f"plain: {users} × 256")
    for acceptance in (0.4, 0.8):
        for users in BATCHES:
            at = {"batch": users, "acceptance": acceptance}
            yield _cell("drafts: MTP", at, f"ernie mtp: {users} at {acceptance}", f"ernie: {users} × 256")
    for users in (1, 16, 96):
        yield _cell("drafts: n-grams", {"batch": users}, f"n-grams: {users} × 256", f"plain: {users} × 256")
    for users, _, out in SHARED_LOADS:
        for share in SHARES:
            load = f"of {users} users, {out} out"
            at = {"share": share, "batch": users, "output": out}
            yield _cell("prefix cache", at, f"plain: share {share} {load}", f"plain: share 0.0 {load}")
    for prefixes in PREFIXES:
        for users in (8, 2):
            at, load = {"working set": _working_set(prefixes), "batch": users}, f"{prefixes} beginnings, {users} users"
            yield _cell("prefix cache", at, f"small: {load}", f"small: own, {users} users")
            yield _cell("KV in DRAM", at, f"dram: {load}", f"small: {load}")
            if prefixes in PREFIXES[-2:]:
                yield _cell("KV on disk", at, f"disk: {load}", f"small: {load}")
    for kind in CONVERSATIONS:
        yield _cell("prefix cache", {"sessions": kind}, f"small: {kind}", f"small: {kind}, nothing shared")
        yield _cell("KV in DRAM", {"sessions": kind}, f"dram: {kind}", f"small: {kind}")
    for server, made in ADAPTERS.items():
        for users, adapters in made:
            at = {"rank": SERVER[server]["adapters"]["rank"], "batch": users, "adapters": adapters}
            yield _cell("LoRA", at, f"{server}: {users} users, {adapters} adapters", f"plain: {users} × 256")
    yield _cell("LoRA", {"rank": 16, "batch": 96, "adapters": 0}, "lora 16: 96 users, none", "plain: 96 × 256")
    for rate in BATCH_WORK:
        load = f"small: people and {rate}/s of batch"
        for figure in ("people's TTFT", "batch's time"):
            yield _cell("priorities", {"batch work": rate}, f"{load}, people first", load, figure)
    for users in (4, 12):
        yield _cell(
            "batch in the gaps", {"batch users": users}, f"small: gaps filled by {users}", "small: gaps filled by 0"
        )
    for server in (each["name"] for each in SERVERS["flags"]):
        lever = {"chunk": "chunk size", "sequ": "sequences", "grap": "graph sizes", "not ": "asynchronous scheduling"}
        name = next(lever[begin] for begin in lever if server.startswith(begin))
        for users, _, prompt, _ in FLAG_LOADS:
            at = {"flag": server, "batch": users, "context": prompt}
            yield _cell(name, at, f"{server}: flags {users} × {prompt}", f"plain: flags {users} × {prompt}")
        for figure in ("TTFT", "TPOT"):
            yield _cell(name, {"flag": server, "rate": 12}, f"{server}: flags at 12/s", "plain: flags at 12/s", figure)
    for rate in PAIRS:
        for figure in ("TTFT p50", "TPOT p50"):
            load, without = f"plain: beside another at {rate:g}/s", f"plain: alone at {rate:g}/s"
            yield _cell("two models on a GPU", {"rate of each": rate}, load, without, figure)
    for figure in ("sleep", "wake"):
        yield _cell("sleep and wake", {"figure": figure}, "chunk 2048: sleep and wake", None, figure)


def _cell(lever: str, at: Json, load: str, without: str | None, figure: str = "time a token") -> Json:
    return {"lever": lever, "at": at, "load": load, "without": without, "figure": figure}


def _working_set(prefixes: int) -> float:
    return round(prefixes * PREFIX / 40_000, 2)


# --- what is predicted ------------------------------------------------------------------------------------------------


@cache
def deployment_of(name: str, acceptance: float | None = None, adapters: int = 0) -> Deployment:
    """Return what a server ran, with the memory for KV that it was given."""
    server, experts = SERVER[name], name.startswith("ernie")
    model = "ernie-4.5-21b-a3b" if experts else "llama-3.1-8b"
    weights = "fp8" if experts else server.get("weights", "bf16")
    made = stated_deployment(model, "H200", 1, 1, 1, 1, weights, server.get("kv", "bf16"), "vllm")
    changes: Json = {}
    if experts:
        changes["model"] = made.model.model_copy(update={"fp8_scales": Scales.blocks})
    if drafts := server.get("drafts"):
        changes["speculation"] = _speculation(drafts, made, acceptance)
    if adapters:
        changes |= {"lora_rank": server["adapters"]["rank"], "lora_adapters": adapters}
    made = made.model_copy(update=changes)
    own = made.engine.defaults_on(made.gpu)
    kept = own.reserve_bytes + kv_budget_bytes(made) - server["kv_bytes"]
    limits = own.model_copy(update={"at_least_gib": 0, "reserve_bytes": kept})
    made = made.model_copy(update={"engine": made.engine.model_copy(update={"defaults": (limits,)})})
    assert abs(kv_budget_bytes(made) / server["kv_bytes"] - 1) < 1e-3, "another memory for KV"
    return made


def _speculation(drafts: tuple[str, int], made: Deployment, acceptance: float | None) -> Any:
    method, tokens = drafts
    if method == "n-gram":  # what is drafted costs nothing there, and is never right: the texts are random
        from tokonomics.physics.deployment import Speculation

        return Speculation(tokens=tokens, acceptance=0.0, draft_share=0.0)
    return draft_named(method, made.model, tokens, acceptance)


def steps_of(server: Json, deployment: Deployment) -> StepModel:
    """Return the steps of a server with its flags."""
    engine = overhead(deployment.engine)
    changes = {name: server[name] for name in ("graph_tokens", "overlapped") if name in server}
    changed: Overhead = engine.model_copy(update=changes)
    return StepModel(deployment, changed)


def trace_of(given: Sequence[Json]) -> tuple[Trace, list[tuple[int, int, Json]]]:
    """Return sessions as a trace, and the session, turn and request at each of its places."""
    rows: list[tuple[float, int, int, Json, int, list[tuple[int, int]]]] = []
    for place, session in enumerate(given):
        said: list[tuple[int, int]] = []
        for number, turn in enumerate(session["turns"]):
            new = [(seed, count) for seed, count in turn["new"]]
            prompt = said + new if session.get("carries") else new
            length = sum(count for _, count in prompt)
            said = [*prompt, (_seed("answer", place, number, session["at"]), turn["out"])]
            rows.append((session["at"], place, number, turn, length, said if session.get("carries") else prompt))
    order = sorted(range(len(rows)), key=lambda row: (rows[row][0], rows[row][2], rows[row][1]))
    rows = [rows[row] for row in order]
    where = {(place, number): row for row, (_, place, number, *_) in enumerate(rows)}
    ids: dict[tuple[int, tuple[Any, ...]], int] = {}
    lists, waits, starts = [], [], [0]
    for _, place, number, _, _, tokens in rows:
        lists.append(_blocks(tokens, ids))
        waits += [where[place, number - 1]] if number else []
        starts.append(len(waits))
    prefix = PrefixBlocks(
        ids=np.array([each for listed in lists for each in listed], np.int32),
        starts=np.cumsum([0, *(len(listed) for listed in lists)]).astype(np.int64),
        block_tokens=BLOCK,
        distinct=len(ids),
    )
    turns = Turns(
        waits_for=np.array(waits, np.int32),
        starts=np.array(starts, np.int64),
        pause_s=np.array([row[3].get("pause", 0.0) if row[2] else 0.0 for row in rows]),
        session=np.array([row[1] for row in rows], np.int32),
    )
    priority = [row[3].get("priority", 0) for row in rows]
    trace = Trace(
        arrival_s=np.array([row[0] for row in rows]),
        input_tokens=np.array([row[4] for row in rows], np.int32),
        output_tokens=np.array([row[3]["out"] for row in rows], np.int32),
        priority=np.array(priority, np.int32) if any(priority) else None,
        prefix=prefix,
        turns=turns,
        source="the grid",
    )
    return trace, [(row[1], row[2], row[3]) for row in rows]


def _blocks(tokens: Sequence[tuple[int, int]], ids: dict[tuple[int, tuple[Any, ...]], int]) -> list[int]:
    """Return the whole blocks of a prompt: two are the same if they and all before them have the same tokens."""
    pieces = [(seed, place) for seed, count in tokens for place in range(0, count)]
    before, found = -1, []
    for start in range(0, len(pieces) - len(pieces) % BLOCK, BLOCK):
        block = pieces[start : start + BLOCK]
        key = (before, (block[0], block[-1], *(piece for piece in block if piece[1] == 0)))
        before = ids.setdefault(key, len(ids))
        found.append(before)
    return found


def _later(sessions: Sequence[Json], at_s: float, warm: bool = False) -> list[Json]:
    """Return the same sessions from then on; those of a load before the one in question (2) are not counted."""
    return [
        session
        | {"at": session["at"] + at_s}
        | {"turns": [turn | ({"warm": 2} if warm else {}) for turn in session["turns"]]}
        for session in sessions
    ]


def predict(load: Json, by_name: dict[str, Json]) -> Json:
    """Return what the simulator says of a load."""
    server = SERVER[load["server"]]
    if "level" in load:
        times = start_times()
        weights = shard(deployment_of(server["name"])).total
        gpu = find_gpu("H200")
        return {"sleep": times.sleep_s(weights, gpu), "wake": times.wake_s(weights, gpu)}
    adapters = len({turn["adapter"] for session in load["sessions"] for turn in session["turns"] if "adapter" in turn})
    deployment = deployment_of(server["name"], load.get("acceptance"), adapters)
    if "beside" in load:
        return _side_by_side(load, deployment)
    sessions = load["sessions"]
    if "after" in load:  # its cache is as the load before it left it
        before = by_name[load["after"]]["sessions"]
        sessions = [*_later(before, 0.0, warm=True), *_later(sessions, GAP_S)]
    trace, rows = trace_of(sessions)
    made = _served(server, deployment, trace)
    return _figures(made, rows) | _of_drafts(deployment)


def _served(server: Json, deployment: Deployment, trace: Trace) -> Simulation:
    limits = {
        "max_sequences": server.get("sequences", MOST_SEQUENCES),
        "max_batched_tokens": server.get("chunk", MOST_TOKENS),
    }
    run = {"by_priority": trace.priority is not None, "steps": steps_of(server, deployment), **limits}
    made = simulate(deployment, trace, **run)
    tiers = tiers_of(server)
    if not tiers:
        return made
    fetches, _ = plan_fetches(made, tiers)
    return simulate(deployment, trace, fetches=fetches, **run)


def tiers_of(server: Json) -> tuple[Tier, ...]:
    """Return the memories behind a server's GPU: DRAM at the speed of our table, the disk at its own."""
    from tokonomics.money.cache_tiers import parse_tiers

    if "dram_bytes" not in server:
        return ()
    known = deployment_of(server["name"])
    named = [f"dram={server['dram_bytes'] / 1e9:g}"]
    named += [f"ssd={server['disk_bytes'] / 1e9:g}:{DISK_SPEEDS}"] if "disk_bytes" in server else []
    return tuple(memory.tier for memory in parse_tiers(",".join(named), known, None))


def _of_drafts(deployment: Deployment) -> Json:
    drafts = deployment.speculation
    return {"tokens a round": drafts.tokens_per_round} if drafts else {}


def _figures(made: Simulation, rows: Sequence[tuple[int, int, Json]]) -> Json:
    places = np.arange(len(rows)) if made.sent is None else made.sent
    served = made.served
    found = [
        {"kind": turn.get("kind"), "warm": turn.get("warm", 0), "in": int(made.trace.input_tokens[place]),
         "out": turn["out"], "at": float(served.arrival_s[place]), "first": float(served.first_token_s[place]),
         "last": float(served.finish_s[place]), "found": int(served.cached_tokens[place])}
        for place, (_, _, turn) in enumerate(rows[each] for each in places)
    ]  # fmt: skip
    own = [row for row in found if row["warm"] < 2]
    share = sum(row["found"] for row in own) / sum(row["in"] for row in own)
    return figures_of(found) | {"found, with warm-up": share}


def _side_by_side(load: Json, deployment: Deployment) -> Json:
    """Return the figures of one of two servers on one GPU."""
    engines, rows = [], []
    for name, sessions in ((load["server"], load["sessions"]), (load["beside"], load["beside_sessions"])):
        trace, found = trace_of(sessions)
        engines.append(SharedEngine(deployment_of(name), replace(trace, turns=None), MOST_SEQUENCES))
        rows.append(found)
    return _figures(side_by_side(engines).engines[0], rows[0])


def figures_of(rows: Sequence[Json]) -> Json:
    """Sum up the requests that count of a load, simulated or measured."""
    counted = [row for row in rows if not row["warm"] and row["first"] is not None]
    wall_s = max(row["last"] for row in counted) - min(row["at"] for row in counted)
    tokens = sum(row["out"] for row in counted)
    first = [row["first"] - row["at"] for row in counted]
    each = [(row["last"] - row["first"]) / (row["out"] - 1) for row in counted if row["out"] > 1]
    found: Json = {
        "n": len(counted), "wall": wall_s, "time a token": wall_s / tokens, "TTFT": float(np.percentile(first, 90)),
        "TTFT p50": float(np.percentile(first, 50)), "TPOT": float(np.percentile(each, 99)),
        "TPOT p50": float(np.percentile(each, 50)),
    }  # fmt: skip
    if all("found" in row for row in counted):
        found["found"] = sum(row["found"] for row in counted) / sum(row["in"] for row in counted)
    kinds = {row.get("kind") for row in counted}
    if kinds == {0, 5}:
        people = [row["first"] - row["at"] for row in counted if row["kind"] == 0]
        batch = [row["last"] - row["at"] for row in counted if row["kind"] == 5]
        found |= {"people's TTFT": float(np.percentile(people, 90)), "batch's time": statistics.mean(batch)}
    return found


# --- before and after the run -----------------------------------------------------------------------------------------


def ask(folder: Path) -> None:
    """Write every load's prediction to DATA, and the jobs for the servers."""
    folder.mkdir(parents=True, exist_ok=True)
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    made = list(loads())
    by_name = {load["name"]: load for load in made}
    assert len(by_name) == len(made), "two loads with one name"
    named = {cell["load"] for cell in cells()} | {cell["without"] for cell in cells()} - {None}
    assert named <= set(by_name), named - set(by_name)
    jobs: Json = {group: {"servers": list(servers), "loads": []} for group, servers in SERVERS.items()}
    for load in made:
        jobs[GROUP_OF[load["server"]]]["loads"].append(load)
    (folder / "jobs.json").write_text(json.dumps(jobs))
    predicted = {load["name"]: predict(load, by_name) for load in made if not load.get("drop")}
    _write({"engine": "vllm 0.26.0", "gpu": "H200", "asked": today().isoformat(), "commit": head.stdout.strip(),
            "predicted": predicted, "measured": {}})  # fmt: skip
    for cell in cells():
        print(f"{cell['lever']:24}{cell['at']!s:70}{_percent(saving(cell, predicted))}")
    for group, job in jobs.items():
        needs = sum(predicted[load["name"]].get("wall", 3.0) for load in job["loads"] if load["name"] in predicted)
        print(f"{group}: {len(job['loads'])} loads, some {needs:.0f} s")


def _write(data: Json) -> None:
    with gzip.GzipFile(DATA, "wb", mtime=0) as file:
        file.write(json.dumps(data, separators=(",", ":")).encode())


def read() -> Json:
    """Return what was predicted and measured."""
    with gzip.open(DATA, "rt") as file:
        found: Json = json.load(file)
    return found


def keep(files: Sequence[Path]) -> None:
    """Add the figures of what was measured, without touching what was predicted."""
    data, by_name = read(), {load["name"]: load for load in loads()}
    for file in files:
        for line in file.read_text().splitlines():
            row = json.loads(line)
            if "name" not in row or row.get("failed") or row.get("errors"):
                continue
            load = by_name[row["name"]]
            if "slept" in row:
                each = row["slept"]
                found = {figure: statistics.median(one[f"{figure}_s"] for one in each) for figure in ("sleep", "wake")}
            else:
                turns = [load["sessions"][session]["turns"][number] for session, number, *_ in row["rows"]]
                names = ("warm", "in", "out", "at", "first", "last")
                rows = [dict(zip(names, each[2:], strict=True)) | {"kind": turn.get("kind")}
                        for each, turn in zip(row["rows"], turns, strict=True)]  # fmt: skip
                assert all(each["out"] == turn["out"] for each, turn in zip(rows, turns, strict=True)), row["name"]
                found = figures_of(rows) | _counted(row["counters"], rows)
            data["measured"][row["name"]] = found
    _write(data | {"served": today().isoformat()})


def _counted(counters: Json, rows: Sequence[Json]) -> Json:
    """Return shares of prompt tokens found and tokens a round, as the server counted them over a whole load.

    Prompts that wait for a look-up are asked for again and again, and each time counted among vLLM's queries and hits.
    """
    said = {name.removeprefix("vllm:").removesuffix("_total"): value for name, value in counters.items()}
    found: Json = {}
    if said.get("prefix_cache_queries"):
        asked = sum(row["in"] for row in rows)
        loaded = said.get("kv_offload_load_bytes", 0.0)
        found |= {
            "found": said["prompt_tokens_cached"] / asked,
            "found behind": loaded / KV_TOKEN_BYTES / asked,
            "with warm-up": any(row["warm"] for row in rows),
        }
        if loaded:
            found["loaded bytes/s"] = loaded / said["kv_offload_load_time"]
    if rounds := said.get("spec_decode_num_drafts"):
        found["tokens a round"] = 1 + said["spec_decode_num_accepted_tokens"] / rounds
    return found


def saving(cell: Json, figures: Json) -> float | None:
    """Return the share of a figure that the lever saves, from predictions or measurements; None if one is missing."""
    there, without, figure = figures.get(cell["load"]), figures.get(cell["without"]), cell["figure"]
    if not there or not without:
        return None
    return float(1 - there[figure] / without[figure])


def _percent(share: float | None) -> str:
    return "     –" if share is None else f"{share:+6.1%}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["ask", "keep", "score"], default="score")
    parser.add_argument("files", nargs="*", type=Path)
    asked = parser.parse_args()
    if asked.what == "ask":
        ask(asked.files[0])
    elif asked.what == "keep":
        keep(asked.files)
