"""The grid of levers: servers with and without each, the loads they are sent, and the cells that compare two loads.

A *load* is what one server is sent: sessions, each a list of requests sent one after another; a request's prompt is
segments (seed, tokens), so that equal segments are equal tokens. A *cell* is a load with a lever beside the same
requests without it, at a place on one axis or two. `bench_levers` predicts them, `measure_levers` serves them.
"""

import json
import random
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.bench_blind import BLOCKS, BY_TENSOR, ERNIE, UNIFORM
from benchmarks.measure_vllm import CONFIGS, LLAMA

BLOCK = 16  # tokens of vLLM's KV block
DRAM_GIB = 16
DISK_DRAM_BYTES = 4_000_000_000
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
CONVERSATIONS = {"conversations 12": (12, 4, 0, 1024, 192, 96, 0.3),
                 "conversations 32": (32, 4, 0, 1024, 192, 96, 0.3),
                 "agents 4": (4, 8, 3072, 512, 512, 48, 0.1),
                 "agents 10": (10, 8, 3072, 512, 512, 48, 0.1)}  # fmt: skip
"""Sessions, turns, tokens that all begin with, own tokens of the first prompt, of each later one, answers, pause."""


def seed_of(*words: object) -> int:
    return zlib.crc32(repr(words).encode()) % 10**8 * 10


def _turn(new: Sequence[tuple[int, int]], out: int, **more: Any) -> Json:
    return {"new": [list(part) for part in new], "out": out, **more}


def _loop(name: str, users: int, count: int, prompt: int, out: int, **more: Any) -> list[Json]:
    """Return a closed loop: each user sends the next of their requests when the last was answered."""
    seed = seed_of(name)
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
    arrivals, sessions, at = random.Random(seed_of(name)), [], 0.0
    while (at := at + arrivals.expovariate(rate)) < 6.0:
        sessions.append({"at": round(at, 4), "turns": [_turn([(seed_of(name, at), 256)], 128)]})
    return sessions


def _beginning_alike(name: str, share: float, users: int, count: int, out: int) -> list[Json]:
    """Return a loop whose prompts of 2,048 tokens begin with the same tokens, sent once before it begins."""
    seed, alike = seed_of(name), round(2048 * share / BLOCK) * BLOCK
    first = [(seed, alike)] if alike else []
    sessions = [{"at": 0.0, "turns": [_turn([*first, (seed + 1, 2048 - alike)], 4, warm=1)]}]
    for user in range(users):
        own = [_turn([*first, (seed + 2 + place, 2048 - alike)], out) for place in range(user, count, users)]
        sessions.append({"at": 0.5, "turns": own})
    return sessions


def _drawn(name: str, prefixes: int, users: int, count: int, warm: bool) -> list[Json]:
    """Return a loop over so many beginnings, drawn at random; if warm, each was sent once before."""
    seed, draw = seed_of("beginnings", name.split(",")[0]), random.Random(seed_of(name))
    turns: list[list[Json]] = [[] for _ in range(users)]
    place = 0
    for prefix in range(prefixes if warm else 0):
        turns[prefix % users].append(_turn([(seed + prefix, PREFIX), (seed_of(name, prefix), TAIL)], 8, warm=1))
    for place in range(count):
        chosen = [(seed + draw.randrange(prefixes), PREFIX)] if prefixes else [(seed_of(name, "own", place), PREFIX)]
        turns[place % users].append(_turn([*chosen, (seed_of(name, "tail", place), TAIL)], 48))
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
            own, more = (seed_of(name, place, turn), later if turn else first), {"pause": pause} if turn else {}
            if carries:
                given.append(_turn([own] if turn or not together else [(seed_of(name), together), own], out, **more))
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
    """Yield people and batch work on one server: all alike, or people first; and batch work where there is room."""
    for rate in BATCH_WORK:
        for known in (False, True):
            name = f"small: people and {rate}/s of batch{', people first' if known else ''}"
            arrivals = random.Random(seed_of("classes", rate))
            sessions = []
            for kind, each, prompt, out in ((0, 2.0, 300, 60), (5, rate, 2000, 200)):
                at, place = 0.0, 0
                while (at := at + arrivals.expovariate(each)) < 7.0:
                    place += 1
                    turn = _turn(
                        [(seed_of(name, kind, place), prompt)], out, kind=kind, **({"priority": kind} if known else {})
                    )
                    sessions.append({"at": round(at, 4), "turns": [turn]})
            yield _load(name, "small", sessions, need_s=16)
    for users in (0, 4, 12):
        name = f"small: gaps filled by {users}"
        arrivals, sessions, at, place = random.Random(seed_of("gaps")), [], 0.0, 0
        while (at := at + arrivals.expovariate(4.0)) < 6.0:
            place += 1
            turn = _turn([(seed_of(name, place), 300)], 60, kind=0, priority=0)
            sessions.append({"at": round(at, 4), "turns": [turn]})
        for user in range(users):
            own = [
                _turn([(seed_of(name, user, number), 1000)], 100, kind=5, priority=5)
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
        arrivals, sessions, at = random.Random(seed_of("flags")), [], 0.0
        while (at := at + arrivals.expovariate(12.0)) < 6.0:
            turn = _turn([(seed_of(name, at), int(arrivals.uniform(512, 1536)))], int(arrivals.uniform(64, 192)))
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
    at: Json
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
    for pair in PAIRS:
        for figure in ("TTFT p50", "TPOT p50"):
            load, without = f"plain: beside another at {pair:g}/s", f"plain: alone at {pair:g}/s"
            yield _cell("two models on a GPU", {"rate of each": pair}, load, without, figure)
    for figure in ("sleep", "wake"):
        yield _cell("sleep and wake", {"figure": figure}, "chunk 2048: sleep and wake", None, figure)


def _cell(lever: str, at: Json, load: str, without: str | None, figure: str = "time a token") -> Json:
    return {"lever": lever, "at": at, "load": load, "without": without, "figure": figure}


def _working_set(prefixes: int) -> float:
    return round(prefixes * PREFIX / 40_000, 2)
