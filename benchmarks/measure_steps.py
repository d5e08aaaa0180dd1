"""Time whole transformer steps on this machine's GPU: bare kernels, random bf16 weights, no engine around them.

    python benchmarks/measure_steps.py --out FILE [--models NAME ...] [--seconds N]

Needs torch and a CUDA GPU, not tokonomics. What it writes, ``tokonomics validate FILE`` scores.

- Decode: all layers, LM head and argmax in one CUDA graph; the median of ``REPLAYS`` replays, timed with events. The
  blocks around attention (norm, QKV, rotary, cache write; output, norm, MLP) are compiled. Attention is SDPA without a
  mask over the cached keys, the query viewed as (batch, kv_heads, group, head_dim), whichever kernel PyTorch picks.
- Prefill: the same blocks without a graph, causal SDPA pinned to the flash kernel, LM head on each prompt's last token.
- Mixture of experts: a grouped matrix product over tokens sorted by expert; the router's weights are random too.
- ``rows`` are the measurements. Beside them, to take errors apart: ``anchors`` repeats shapes of h200_steps.json,
  ``without_attention`` leaves attention out of the decode step, ``attention_kernels`` names what SDPA ran,
  ``experts_touched`` counts the experts that a step read.

The file is written after every row, and no row is begun after ``--seconds``.
"""

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

REPLAYS = 20
PREFILLS = 7
WARM = 4
MEMORY = 120e9
"""Bytes that weights and KV cache may take together."""
BYTES = 2


@dataclass(frozen=True)
class Shape:
    """A model's dimensions, as in src/tokonomics/catalog/data/models.toml, and the loads it is timed under."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    head_dim: int = 128
    bias: bool = False
    tied: bool = False
    experts: int = 0
    active: int = 0
    batches: tuple[int, ...] = (1, 8, 32, 64, 128, 256)
    contexts: tuple[int, ...] = (512, 2048, 8192)
    prompts: tuple[tuple[int, int], ...] = ((1, 512), (1, 2048), (1, 8192), (4, 1024))

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def weight_bytes(self) -> int:
        """What a step streams when every expert is visited: all but an untied embedding table."""
        own = self.hidden * (self.qkv + self.heads * self.head_dim) + (self.qkv if self.bias else 0) + 2 * self.hidden
        mlp = 3 * self.hidden * self.intermediate
        own += self.experts * (mlp + self.hidden) if self.experts else mlp
        return BYTES * (self.layers * own + self.hidden + self.vocab * self.hidden)

    @property
    def kv_bytes_per_token(self) -> int:
        return BYTES * 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def loads(self) -> list[tuple[int, int]]:
        """Every batch and context that fits."""
        held = self.weight_bytes + (0 if self.tied else BYTES * self.vocab * self.hidden)
        return [
            (batch, context)
            for batch in self.batches
            for context in self.contexts
            if held + batch * context * self.kv_bytes_per_token <= MEMORY
        ]


MODELS = {
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 18944, 152064, bias=True),
    "llama-2-7b": Shape(
        32, 4096, 32, 32, 11008, 32000, contexts=(512, 2048, 4096), prompts=((1, 512), (1, 2048), (1, 4096), (4, 1024))
    ),
    "llama-3.2-3b": Shape(28, 3072, 24, 8, 8192, 128256, tied=True),
    "mistral-nemo": Shape(40, 5120, 32, 8, 14336, 131072),
    "mixtral-8x7b": Shape(32, 4096, 32, 8, 14336, 32000, experts=8, active=2, batches=(1, 8, 64, 256)),
    "qwen2.5-14b": Shape(48, 5120, 40, 8, 13824, 152064, bias=True, batches=(1, 32, 128)),
}
ANCHORS = {
    "llama-3.1-8b": Shape(
        32, 4096, 32, 8, 14336, 128256, batches=(1, 64), contexts=(512, 2048, 8192), prompts=((1, 512), (1, 2048))
    )
}
TINY = {
    "tiny": Shape(2, 64, 4, 2, 96, 128, 16, bias=True, batches=(1, 3), contexts=(8, 16), prompts=((1, 8), (2, 8))),
    "tiny-moe": Shape(
        2, 64, 4, 2, 96, 128, 16, experts=4, active=2, batches=(3,), contexts=(8,), prompts=((1, 8), (2, 8))
    ),
}
"""For a look at the logic on a machine without a GPU."""


def blocks(shape: Shape, grouped: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """The parts of a layer around attention, and what follows the last layer; to be compiled."""
    import torch
    from torch.nn.functional import linear, silu

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

    def __init__(self, shape: Shape, device: str) -> None:
        import torch

        self.shape, self.device = shape, device
        grouped = torch._grouped_mm if device == "cuda" else _grouped_by_loop
        compiled = (torch.compile(each, fullgraph=True, dynamic=False) for each in blocks(shape, grouped))
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
        ones = {"norm1": (hidden,), "norm2": (hidden,)}
        self.layers = [
            {name: self._random(size) for name, size in sizes.items()}
            | {name: torch.ones(size, dtype=torch.bfloat16, device=device) for name, size in ones.items()}
            for _ in range(shape.layers)
        ]
        self.embedding = self._random((shape.vocab, hidden), 1.0 if not shape.tied else 0.02)
        self.head = self.embedding if shape.tied else self._random((shape.vocab, hidden))
        self.norm = torch.ones(hidden, dtype=torch.bfloat16, device=device)
        rows = max(batch * context for batch, context in shape.loads) * shape.kv_heads
        self.keys, self.values = (
            [self._random((rows, shape.head_dim), 1.0) for _ in range(shape.layers)] for _ in range(2)
        )

    def _random(self, size: tuple[int, ...], spread: float = 0.02) -> Any:
        import torch

        return torch.empty(size, dtype=torch.bfloat16, device=self.device).normal_(0, spread)

    def tokens(self, count: int) -> Any:
        import torch

        return torch.randint(self.shape.vocab, (count,), device=self.device)

    def rotary(self, positions: Any) -> tuple[Any, Any]:
        import torch

        half = self.shape.head_dim // 2
        speed = 10000.0 ** (-torch.arange(half, device=self.device) / half)
        angle = (positions[:, None] * speed)[:, None, :]
        return angle.cos(), angle.sin()

    def decode_step(self, batch: int, context: int, *, attention: bool = True) -> Callable[[], tuple[Any, list[Any]]]:
        """One token more for each sequence: the last of its ``context`` cached ones is this step's."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa

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
        """Whole prompts at once; what each layer's keys and values come out as is the cache."""
        import torch
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        shape = self.shape
        tokens = self.tokens(prompts * length)
        cos, sin = self.rotary(torch.arange(length, device=self.device).repeat(prompts))
        last = torch.arange(1, prompts + 1, device=self.device) * length - 1

        def step() -> tuple[Any, list[Any]]:
            x = self.embedding[tokens]
            counts = []
            for weights in self.layers:
                query, key, value = (
                    each.view(prompts, length, -1, shape.head_dim).transpose(1, 2)
                    for each in self.before(x, weights, cos, sin)
                )
                attended = sdpa(query, key, value, is_causal=True, enable_gqa=shape.heads != shape.kv_heads)
                x, count = self.after(x, attended.transpose(1, 2).reshape(x.shape[0], shape.heads, -1), weights)
                counts.append(count)
            return self.finish(x[last], self.norm, self.head), counts

        return step


def _grouped_by_loop(packed: Any, weights: Any, ends: Any) -> Any:
    """The grouped matrix product, for a machine without a GPU: every expert on every row."""
    import torch

    expert = torch.searchsorted(ends, torch.arange(packed.shape[0], device=packed.device, dtype=ends.dtype), right=True)
    every = torch.einsum("tk,ekn->etn", packed, weights)
    return every.gather(0, expert.view(1, -1, 1).expand(1, -1, every.shape[-1]))[0]


class Clock:
    """Times steps: on a GPU with events, elsewhere by the wall."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def median_ms(self, run: Callable[[], object], times: int) -> float:
        """The median of runs queued one behind the other, so that the host's first launch is not timed."""
        import torch

        if not self.cuda:
            return statistics.median(_wall_ms(run) for _ in range(times))
        events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        run()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return statistics.median(float(one.elapsed_time(other)) for one, other in pairwise(events))

    def decode_ms(self, step: Callable[[], tuple[Any, list[Any]]]) -> tuple[float, list[Any]]:
        """The median over replays of the step as one graph, and what the step gave beside its tokens."""
        import torch

        step()  # compiles
        if not self.cuda:
            return self.median_ms(step, REPLAYS), step()[1]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            step()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            _, counts = step()
        for _ in range(WARM):
            graph.replay()
        milliseconds = self.median_ms(graph.replay, REPLAYS)
        counts = [each.cpu() for each in counts if each is not None]
        graph.reset()
        return milliseconds, counts

    def prefill_ms(self, step: Callable[[], object]) -> float:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION if self.cuda else SDPBackend.MATH):
            for _ in range(WARM):
                step()
            return self.median_ms(step, PREFILLS)


def _wall_ms(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e3


class Record:
    """The file: rewritten after every row, so that a run cut short loses nothing."""

    def __init__(self, path: Path, device: str, seconds: float) -> None:
        import torch

        self.path, self.begin, self.seconds = path, time.monotonic(), seconds
        self.content: dict[str, Any] = {
            "gpu": torch.cuda.get_device_name() if device == "cuda" else "no GPU",
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
            "command": "python benchmarks/measure_steps.py " + " ".join(sys.argv[1:]),
            "ceilings": {},
        }
        for name in ("rows", "anchors", "without_attention", "attention_kernels", "experts_touched"):
            self.content[name] = []

    @property
    def late(self) -> bool:
        return time.monotonic() - self.begin > self.seconds

    def add(self, name: str, row: dict[str, Any]) -> None:
        self.content[name].append(row)
        shown = " ".join(str(value) for value in row.values())
        print(f"{time.monotonic() - self.begin:6.1f} s  {name} {shown[:120]}", flush=True)
        self.save()

    def save(self) -> None:
        parts = []
        for name, value in self.content.items():
            if isinstance(value, list):
                lines = ",\n".join(json.dumps(row) for row in value)
                parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
            else:
                parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
        self.path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def measure(name: str, shape: Shape, device: str, record: Record, into: str) -> None:
    """Every load of one model."""
    import torch

    model, clock = Model(shape, device), Clock(device)
    for batch in dict.fromkeys(batch for batch, _ in shape.loads):
        for context in (context for each, context in shape.loads if each == batch):
            if record.late:
                return
            milliseconds, counts = clock.decode_ms(model.decode_step(batch, context))
            record.add(into, row("decode", name, shape, batch, context, milliseconds))
            if shape.experts and context == shape.contexts[0]:
                touched = statistics.mean(int((each > 0).sum()) for each in counts)
                record.add("experts_touched", {"model": name, "batch": batch, "mean": round(touched, 3)})
        milliseconds, _ = clock.decode_ms(model.decode_step(batch, shape.contexts[0], attention=False))
        record.add("without_attention", {"model": name, "batch": batch, "ms": round(milliseconds, 4)})
    model.keys, model.values = [], []
    if device == "cuda":
        torch.cuda.empty_cache()
    for prompts, length in shape.prompts:
        if record.late:
            return
        milliseconds = clock.prefill_ms(model.prefill_step(prompts, length))
        record.add(into, row("prefill", name, shape, prompts, length, milliseconds))


def row(kind: str, name: str, shape: Shape, batch: int, context: int, milliseconds: float) -> dict[str, Any]:
    tokens = batch * (context if kind == "prefill" else 1)
    return {
        "kind": kind,
        "model": name,
        "batch": batch,
        "ctx": context,
        "ms": round(milliseconds, 4),
        "weight_bytes": shape.weight_bytes,
        "kv_bytes": batch * context * shape.kv_bytes_per_token,
        "tok_s": round(tokens / milliseconds * 1e3, 1),
    }


def attention_kernels(shape: Shape, batch: int, context: int) -> list[str]:
    """What SDPA runs for a decode step, by the profiler."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    size = (batch, shape.kv_heads, context, shape.head_dim)
    query = torch.randn(batch, shape.kv_heads, shape.heads // shape.kv_heads, shape.head_dim, device="cuda").bfloat16()
    cached = torch.empty(size, dtype=torch.bfloat16, device="cuda").normal_()
    sdpa(query, cached, cached)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        sdpa(query, cached, cached)
        torch.cuda.synchronize()
    return [
        f"{each.key[:80]} {each.device_time_total:.1f} us"
        for each in profile.key_averages()
        if each.device_time_total > 2
    ]


def ceilings() -> dict[str, float]:
    """What a copy and a large matrix product reach: is this GPU like the one measured before?"""
    import torch

    clock = Clock("cuda")
    one, other = (torch.empty(1 << 32, dtype=torch.uint8, device="cuda").random_() for _ in range(2))
    left, right = (torch.empty(8192, 8192, dtype=torch.bfloat16, device="cuda").normal_() for _ in range(2))
    for _ in range(3):
        other.copy_(one)
        left @ right
    copied = clock.median_ms(lambda: other.copy_(one), 10)
    multiplied = clock.median_ms(lambda: left @ right, 20)
    return {
        "copy_tb_s": round(2 * (1 << 32) / copied / 1e9, 3),
        "bf16_tflops": round(2 * 8192**3 / multiplied / 1e9, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", nargs="*", help="default: all of them, after the anchors")
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--tiny", action="store_true", help="toy shapes on the CPU: a look at the logic")
    options = parser.parse_args()
    try:
        import torch
        import torch._dynamo
    except ImportError:
        print("measure_steps.py needs torch", file=sys.stderr)
        return 1
    if not options.tiny and not torch.cuda.is_available():
        print("measure_steps.py needs a CUDA GPU", file=sys.stderr)
        return 1
    device = "cpu" if options.tiny else "cuda"
    torch._dynamo.config.recompile_limit = 64
    torch.manual_seed(0)
    record = Record(options.out, device, options.seconds)
    if device == "cuda":
        record.content["ceilings"] = ceilings()
        torch.cuda.empty_cache()
        print(record.content["ceilings"], flush=True)
    failed = 0
    with torch.no_grad():
        for name, shape, into in chosen(options.tiny, options.models):
            try:
                measure(name, shape, device, record, into)
            except Exception as error:  # one model's failure must not cost the others
                print(f"{name}: {type(error).__name__}: {str(error)[:1500]}", flush=True)
                failed += 1
            torch._dynamo.reset()
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
    if device == "cuda":  # last: a profiler that was once on may slow what follows
        for name, shape, _ in chosen(options.tiny, options.models):
            for batch, context in shape.loads:
                if record.late:
                    break
                kernels = attention_kernels(shape, batch, context)
                record.add("attention_kernels", {"model": name, "batch": batch, "ctx": context, "kernels": kernels})
    record.save()
    return min(failed, 1)


def chosen(tiny: bool, names: list[str] | None) -> Iterator[tuple[str, Shape, str]]:
    """The shapes to time, and under which name of the file."""
    known = TINY if tiny else ANCHORS | MODELS
    for name in names or known:
        yield name, known[name], "anchors" if name in ANCHORS else "rows"


if __name__ == "__main__":
    sys.exit(main())
