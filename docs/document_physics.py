"""One decode step worked out by hand for docs/physics.md: plain arithmetic on the shipped curves, none of the product's code.

A test compares the sum with what ``tokonomics predict`` says, so that the formulas on that page stay those of the code.
The prompt worked out beside it takes its kernels from the code, and the host by hand.
"""

import json
import math
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.physics.overhead import overhead
from tokonomics.physics.steptime import StepModel

_DATA = Path(__file__).parent.parent / "src" / "tokonomics"
BATCH, CONTEXT = 32, 1024
HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 4096, 14336, 32, 32, 8, 128, 128_256
"""Llama 3.1 8B."""
BANDWIDTH, PEAK = 4.8e12, 989.4e12
"""H200, from its datasheet: bytes/s and dense bf16 FLOP/s."""
PRODUCTS = {
    "query, key, value": ((HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN),
    "attention output": (HIDDEN, HEADS * HEAD_DIM),
    "gate and up": (2 * INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
}
"""Columns n and depth k of the dense products of a layer."""


class Product(NamedTuple):
    """One dense product, in seconds."""

    memory_s: float
    compute_s: float
    latency_s: float

    def seconds(self, p: float) -> float:
        return self.latency_s + float((self.memory_s**p + self.compute_s**p) ** (1 / p))


class Attention(NamedTuple):
    """Attention of one layer for the batch, in seconds."""

    launch_s: float
    read_s: float
    block_s: float
    compute_s: float
    stream_s: float
    wave_s: float

    def seconds(self, p: float) -> float:
        return self.launch_s + float(sum(term**p for term in self[1:]) ** (1 / p))


def product(n: int, k: int) -> Product:
    """m tokens times a k × n matrix in 16 bits."""
    c, m = gemm_curve(), BATCH
    return Product(
        memory_s=(n * k * 2 + (m * k + m * n) * 2) / (BANDWIDTH * c["memory"]),
        compute_s=2 * (m + c["rows"]) * (n + c["columns"]) * (k + c["depth"]) / (PEAK * c["compute"])
        + c["throttle"] * 2 * m * n * k / PEAK,
        latency_s=c["launch_s"] + c["depth_s"] * k / (k + c["depth_half"]),
    )


def attention() -> Attention:
    """One new token of each sequence against its KV cache."""
    c, group = decode_curve(), HEADS / KV_HEADS
    token_bytes = 2 * HEAD_DIM * 2
    rows = math.hypot(group, c["rows"])
    return Attention(
        launch_s=c["launch_s"] + c["split_s"] * math.log2(1 + CONTEXT / c["split_tokens"]),
        read_s=BATCH * CONTEXT * KV_HEADS * token_bytes / (BANDWIDTH * c["memory"]),
        block_s=BATCH * KV_HEADS * c["block_bytes"] * (1 + group / c["group"]) / BANDWIDTH,
        compute_s=BATCH * CONTEXT * KV_HEADS * rows * 4 * HEAD_DIM / (PEAK * c["compute"]),
        stream_s=CONTEXT * token_bytes / c["stream"],
        wave_s=c["wave_s"],
    )


def between_kernels_s() -> float:
    """Norms, rotary embedding, activation, residual, and a fixed time, of one layer."""
    moved = 8 * HIDDEN + 2 * (HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * INTERMEDIATE
    return layer_s() + BATCH * moved * 2 / (BANDWIDTH * memory_share())


def step_s() -> float:
    """The whole step on the GPU."""
    p = gemm_curve()["sharpness"]
    layer = sum(product(n, k).seconds(p) for n, k in PRODUCTS.values())
    layer += attention().seconds(decode_curve()["sharpness"]) + between_kernels_s()
    return LAYERS * layer + product(VOCAB, HIDDEN).seconds(p)


def worked_example() -> str:
    """Markdown: every number of the step."""
    c, a, p = gemm_curve(), decode_curve(), gemm_curve()["sharpness"]
    weights = LAYERS * sum(n * k for n, k in PRODUCTS.values()) + VOCAB * HIDDEN
    kv = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2
    floor = (weights * 2 + BATCH * CONTEXT * kv) / BANDWIDTH
    lines = [
        f"Llama 3.1 8B in bf16 on one H200, {BATCH} sequences of {CONTEXT:,} tokens, vLLM. From its config.json: {LAYERS} layers, "
        f"hidden {HIDDEN:,}, feed-forward {INTERMEDIATE:,}, {HEADS} query and {KV_HEADS} KV heads of {HEAD_DIM}, vocabulary {VOCAB:,}.",
        "",
        f"**The floor.** A step reads {weights * 2 / 1e9:.2f} GB of matrices and {BATCH} × {CONTEXT:,} × {kv:,} B = "
        f"{BATCH * CONTEXT * kv / 1e9:.2f} GB of KV; at the datasheet's {BANDWIDTH / 1e12:g} TB/s that is {floor * 1e3:.2f} ms. "
        "Nothing can be faster.",
        "",
        f"**The curves** (H200, vLLM, bf16). Products: {_named(c)}. Decode attention, head of {HEAD_DIM}: {_named(a)}.",
        "",
        "| dense product | n | k | memory, µs | compute, µs | latency, µs | takes, µs | times | ms |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, (n, k) in {**PRODUCTS, "LM head": (VOCAB, HIDDEN)}.items():
        made, times = product(n, k), 1 if n == VOCAB else LAYERS
        cells = " | ".join(f"{each * 1e6:.2f}" for each in (*made, made.seconds(p)))
        lines.append(f"| {name} | {n:,} | {k:,} | {cells} | {times} | {made.seconds(p) * times * 1e3:.3f} |")
    work = attention()
    one = work.seconds(a["sharpness"])
    terms = ", ".join(f"{name.removesuffix('_s')} {term * 1e6:.2f}" for name, term in work._asdict().items())
    own_s = host_s(BATCH)
    total, host = max(step_s(), own_s), f"{own_s * 1e3:.2f} ms, beside the GPU"
    lines += [
        "",
        f"| the rest | one layer, µs | times {LAYERS}, ms |",
        "|---|--:|--:|",
        f"| attention: {terms} µs | {one * 1e6:.2f} | {one * LAYERS * 1e3:.3f} |",
        f"| between kernels: {layer_s() * 1e6:.0f} µs fixed, and bytes at {memory_share():.1%} of the bandwidth | "
        f"{between_kernels_s() * 1e6:.2f} | {between_kernels_s() * LAYERS * 1e3:.3f} |",
        f"| the host | {host} | 0 |",
        "",
        f"**Sum: {total * 1e3:.2f} ms**, {floor / total:.0%} of it the floor; {BATCH / total:,.0f} tokens a second.",
    ]
    return "\n".join(lines)


def engines() -> dict[str, list[dict[str, Any]]]:
    text = (_DATA / "physics/data/overhead.toml").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = tomllib.loads(text)["engines"]
    return found


def host_s(batch: int) -> float:
    """The host's work on a decode step of today's vLLM."""
    era = engines()["vllm"][-1]
    return float(era["step_s"] + era["sequence_s"] * batch)


PROMPT = 1024


def prompt_by_hand() -> str:
    """Markdown: from a lone prompt's arrival to its first token at the client."""
    era = engines()["vllm"][-1]
    deployment = deploy(find_model("llama-3.1-8b"), find_gpu("H200"), find_engine("vllm"))
    kernels_s = float(StepModel(deployment, overhead(deployment.engine)).with_engine(None).prefill(PROMPT))
    launch_s = era["step_s"] + LAYERS * era["layer_s"] + era["sequence_s"]
    told_s = max(kernels_s, launch_s + host_s(1))
    arrives_s = era["request_s"] + era["token_s"] * PROMPT + era["reach_s"]
    rows = {
        f"received, tokenised ({PROMPT:,} tokens), handed to the engine": arrives_s,
        "kernels of the step": kernels_s,
        f"its launches, beside the kernels: {era['step_s'] * 1e3:.2f} + {LAYERS} × {era['layer_s'] * 1e3:.3f} ms": launch_s,
        "then the next step, which writes the second token, is launched": launch_s + host_s(1),
        "so the first token is known after": told_s,
        "and is with its client, all in all, after": arrives_s + told_s + era["answer_s"],
    }
    lines = [
        f"Llama 3.1 8B in bf16 on one H200, vLLM, a prompt of {PROMPT:,} tokens on an idle server. It is more than "
        f"{era['graph_tokens']} tokens, so every kernel is launched by the host.",
        "",
        "| | ms |",
        "|---|--:|",
        *(f"| {what} | {seconds * 1e3:.2f} |" for what, seconds in rows.items()),
    ]
    return "\n".join(lines)


def hosts() -> str:
    """Whose host the engines' times are, and how many small launches a layer of today's vLLM takes on it."""
    host = tomllib.loads((_DATA / "physics/data/overhead.toml").read_text(encoding="utf-8"))["host"]
    era = engines()["vllm"][-1]
    kinds = {
        "a captured piece of a layer": "piece_s", "a dense layer": "layer_s", "one with experts": "expert_layer_s",
        "with quantised activations": "quantised_layer_s", "latent attention adds": "latent_layer_s",
    }  # fmt: skip
    counted = ", ".join(f"{what} {era[field] / host['launch_s']:.0f}" for what, field in kinds.items())
    return (
        f"**{host['launch_s'] * 1e6:.1f} µs** a small launch: {host['source']}. In such launches, vLLM since "
        f"{era['since_version']} takes: {counted}."
    )


def engines_table() -> str:
    """What each engine's host adds, by era."""
    launched = ("piece_s", "layer_s", "expert_layer_s", "quantised_layer_s", "latent_layer_s")
    head = "| engine | since | step | each sequence | ahead | captured piece, layer, of experts, quantised, latent | request: own, a token, in, out | from |"
    lines = [head, "|---|---|--:|--:|---|---|---|---|"]
    for name, eras in engines().items():
        for era in eras:
            launches = " / ".join(f"{era[field] * 1e3:.2f}" if field in era else "–" for field in launched)
            way = " / ".join(f"{era.get(field, 0) * 1e3:.2f}" for field in ("request_s", "reach_s", "answer_s"))
            own, into, out = way.split(" / ")
            request = (
                f"{own} ms / {era.get('token_s', 0) * 1e6:.1f} µs / {into} / {out} ms" if "reach_s" in era else "–"
            )
            cells = (
                name,
                ("the first" if era["since_version"] == "0.0" else era["since_version"])
                + (
                    f", until {era['until_version']} on {', '.join(era['architectures'])}"
                    if "architectures" in era
                    else ""
                ),
                f"{era['step_s'] * 1e3:.2f} ms",
                f"{era['sequence_s'] * 1e6:.0f} µs",
                "yes" if era["overlapped"] else "no",
                f"{launches} ms" if "layer_s" in era else "–",
                request,
                f"**{era['badge']}**: {era['source']}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def intervals_table() -> str:
    """The ends of log(measured ÷ predicted) by class, and what a GPU without timings adds."""
    learned = tomllib.loads((_DATA / "physics/data/intervals.toml").read_text(encoding="utf-8"))
    lines = ["| class | measurements | low | high |", "|---|--:|--:|--:|"]
    for name, spread in learned["classes"].items():
        lines.append(f"| {name} | {spread['n']:,} | {spread['low']:+.3f} | {spread['high']:+.3f} |")
    extra = f"extra: {learned['scaled']:g} where curves are scaled, {learned['assumed']:g} where they are assumed."
    return "\n".join([*lines, "", f"{extra} Learned from {learned['source']}."])


def gemm_curve() -> dict[str, float]:
    whole = json.loads((_DATA / "physics/data/matrix_kernels.json").read_text(encoding="utf-8"))
    return dict(zip(whole["fields"]["gemm"], whole["curves"]["gemm"]["H200/vllm/bf16"], strict=True))


def decode_curve() -> dict[str, float]:
    whole = json.loads((_DATA / "physics/data/attention_kernels.json").read_text(encoding="utf-8"))
    names = [
        "launch_s",
        "split_s",
        "split_tokens",
        "wave_s",
        "block_bytes",
        "memory",
        "compute",
        "sharpness",
        "group",
        "rows",
        "stream",
    ]
    return dict(zip(names, whole["curves"]["decode"]["H200"]["vllm"]["bf16"]["grouped"][str(HEAD_DIM)], strict=True))


def layer_s() -> float:
    figure: float = tomllib.loads((_DATA / "physics/data/overhead.toml").read_text(encoding="utf-8"))["layers"][
        "layer_s"
    ]
    return figure


def memory_share() -> float:
    families = tomllib.loads((_DATA / "physics/data/efficiency.toml").read_text(encoding="utf-8"))["families"]
    share: float = families["hopper"]["memory"]
    return share


def _named(curve: dict[str, float]) -> str:
    return ", ".join(f"`{name}` {value:.4g}" for name, value in curve.items())
