"""Build a transformer with random bf16 weights, to time whole steps without an engine.

- Decode: all layers, LM head and argmax. The blocks around attention (norm, QKV, rotary, cache write; output, norm,
  MLP) are compiled. Attention is SDPA without a mask over the cached keys, the query viewed as (batch, kv_heads, group,
  head_dim), whichever kernel PyTorch picks.
- Prefill: the same blocks, causal SDPA, LM head on each prompt's last token.
- Mixture of experts: a grouped matrix product over tokens sorted by expert; the router's weights are random too.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn.functional import linear, silu
from torch.nn.functional import scaled_dot_product_attention as sdpa

from tokonomics.measure.probe.shapes import KernelShape


def random_values(size: int | tuple[int, ...], device: str, spread: float = 0.02) -> Any:
    return torch.empty(size, dtype=torch.bfloat16, device=device).normal_(0, spread)


def blocks(shape: KernelShape, grouped: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return the parts of a layer around attention, and what follows the last layer; to be compiled."""
    heads, kv_heads, width = shape.heads, shape.kv_heads, shape.head_dim

    def norm(x: Any, weight: Any) -> Any:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        one, other = x.float().chunk(2, -1)
        return torch.cat((one * cos - other * sin, other * cos + one * sin), -1).to(x.dtype)

    def before(x: Any, weights: dict[str, Any], cos: Any, sin: Any) -> tuple[Any, Any, Any]:
        qkv = linear(norm(x, weights["norm1"]), weights["qkv"], weights.get("bias")).view(x.shape[0], -1, width)
        query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
        return rotate(query, cos, sin), rotate(key, cos, sin), value

    def before_decode(x: Any, weights: dict[str, Any], cos: Any, sin: Any, keys: Any, values: Any, at: Any) -> Any:
        query, key, value = before(x, weights, cos, sin)
        keys[at] = key
        values[at] = value
        return query

    def gated(x: Any) -> Any:
        gate, up = x.chunk(2, -1)
        return silu(gate) * up

    def after(x: Any, attended: Any, weights: dict[str, Any]) -> tuple[Any, Any]:
        x = x + linear(attended.reshape(x.shape[0], heads * width), weights["out"])
        inner = norm(x, weights["norm2"])
        if not shape.experts:
            return x + linear(gated(linear(inner, weights["up"])), weights["down"]), None
        share, chosen = torch.softmax(linear(inner, weights["router"]).float(), -1).topk(shape.active, -1)
        share = share / share.sum(-1, keepdim=True)
        order = chosen.view(-1).argsort()
        counts = (chosen.view(-1, 1) == torch.arange(shape.experts, device=x.device)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        packed = inner[order // shape.active]
        done = grouped(gated(grouped(packed, weights["up"].transpose(-2, -1), ends)), weights["down"].mT, ends)
        done = done * share.view(-1, 1)[order].to(done.dtype)
        back = torch.empty_like(done).index_copy(0, order, done)
        return x + back.view(x.shape[0], shape.active, -1).sum(1), counts

    def finish(x: Any, weight: Any, head: Any) -> Any:
        return linear(norm(x, weight), head).argmax(-1)

    return before, before_decode, after, finish


class Model:
    """Random weights and KV cache of one shape, and the steps over them."""

    def __init__(self, shape: KernelShape, device: str) -> None:
        self.shape, self.device = shape, device
        grouped = torch._grouped_mm if device == "cuda" else _grouped_by_loop
        compiled = (torch.compile(block, fullgraph=True, dynamic=False) for block in blocks(shape, grouped))
        self.before, self.before_decode, self.after, self.finish = compiled
        hidden, inner = shape.hidden, shape.intermediate
        experts = (shape.experts,) if shape.experts else ()
        sizes: dict[str, tuple[int, ...]] = {
            "qkv": (shape.qkv, hidden),
            "out": (hidden, shape.heads * shape.head_dim),
            "up": (*experts, 2 * inner, hidden),
            "down": (*experts, hidden, inner),
        }
        if shape.bias:
            sizes["bias"] = (shape.qkv,)
        if shape.experts:
            sizes["router"] = (shape.experts, hidden)
        random, ones = partial(random_values, device=device), {"norm1": (hidden,), "norm2": (hidden,)}
        self.layers = [
            {name: random(size) for name, size in sizes.items()}
            | {name: torch.ones(size, dtype=torch.bfloat16, device=device) for name, size in ones.items()}
            for _ in range(shape.layers)
        ]
        self.embedding = random((shape.vocab, hidden), spread=1.0 if not shape.tied else 0.02)
        self.head = self.embedding if shape.tied else random((shape.vocab, hidden))
        self.norm = torch.ones(hidden, dtype=torch.bfloat16, device=device)
        rows = max(batch * context for batch, context in shape.loads) * shape.kv_heads
        self.keys, self.values = (
            [random((rows, shape.head_dim), spread=1.0) for _ in range(shape.layers)] for _ in range(2)
        )

    def tokens(self, count: int) -> Any:
        return torch.randint(self.shape.vocab, (count,), device=self.device)

    def rotary(self, positions: Any) -> tuple[Any, Any]:
        half = self.shape.head_dim // 2
        speed = 10000.0 ** (-torch.arange(half, device=self.device) / half)
        angle = (positions[:, None] * speed)[:, None, :]
        return angle.cos(), angle.sin()

    def decode_step(self, batch: int, context: int, *, attention: bool = True) -> Callable[[], tuple[Any, list[Any]]]:
        """Return a step of one more token for each sequence; it is the last of its ``context`` cached ones."""
        shape = self.shape
        tokens = self.tokens(batch)
        cos, sin = self.rotary(torch.full((batch,), context - 1, device=self.device))
        heads = torch.arange(batch * shape.kv_heads, device=self.device).view(batch, shape.kv_heads)
        at = heads * context + context - 1
        size = (batch, shape.kv_heads, context, shape.head_dim)
        used = batch * shape.kv_heads * context
        grouped = (batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim)

        def step() -> tuple[Any, list[Any]]:
            x = self.embedding[tokens]
            counts = []
            for weights, keys, values in zip(self.layers, self.keys, self.values, strict=True):
                query = self.before_decode(x, weights, cos, sin, keys, values, at).view(grouped)
                attended = sdpa(query, keys[:used].view(size), values[:used].view(size)) if attention else query
                x, count = self.after(x, attended.view(batch, shape.heads, shape.head_dim), weights)
                counts.append(count)
            return self.finish(x, self.norm, self.head), counts

        return step

    def prefill_step(self, prompts: int, length: int) -> Callable[[], tuple[Any, list[Any]]]:
        """Return a step of whole prompts at once; each layer's keys and values are the cache."""
        shape = self.shape
        tokens = self.tokens(prompts * length)
        cos, sin = self.rotary(torch.arange(length, device=self.device).repeat(prompts))
        last = torch.arange(1, prompts + 1, device=self.device) * length - 1

        def step() -> tuple[Any, list[Any]]:
            x = self.embedding[tokens]
            counts = []
            for weights in self.layers:
                query, key, value = (
                    part.view(prompts, length, -1, shape.head_dim).transpose(1, 2)
                    for part in self.before(x, weights, cos, sin)
                )
                attended = sdpa(query, key, value, is_causal=True, enable_gqa=shape.heads != shape.kv_heads)
                x, count = self.after(x, attended.transpose(1, 2).reshape(x.shape[0], shape.heads, -1), weights)
                counts.append(count)
            return self.finish(x[last], self.norm, self.head), counts

        return step


def _grouped_by_loop(packed: Any, weights: Any, ends: Any) -> Any:
    """Compute the grouped matrix product on a machine without a GPU: every expert on every row."""
    expert = torch.searchsorted(ends, torch.arange(packed.shape[0], device=packed.device, dtype=ends.dtype), right=True)
    every = torch.einsum("tk,ekn->etn", packed, weights)
    return every.gather(0, expert.view(1, -1, 1).expand(1, -1, every.shape[-1]))[0]
