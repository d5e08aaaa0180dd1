"""Time kernels of this GPU one by one with PyTorch: memory, launches, matrix products, attention, all-reduce.

Weights and KV caches are cold, as a model's next step finds them: calls cycle through buffers that together are four
times the L2 cache, inside one CUDA graph. Times are medians by CUDA events (by the wall clock without a GPU). Values
are random, so that they draw as much power as real ones. Every function yields rows as soon as they are timed.
"""

import gc
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear
from torch.nn.functional import scaled_dot_product_attention as sdpa

from tokonomics.measure.probe import shapes
from tokonomics.measure.probe.transformer import Model, random_values

Row = dict[str, Any]

HOT_S = 0.06  # warm-up with the same product if it is compute-bound: power limits act within tens of milliseconds
_TINY_KERNELS = 200
REPLAYS = 20
PREFILLS = 7
WARM = 4


class GpuClock:
    """Times steps: on a GPU with events, elsewhere by the wall clock."""

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def median_ms(self, run: Callable[[], object], times: int) -> float:
        """Return the median of runs queued one after another, so that the host's first launch is not timed."""
        if not self.cuda:
            wall = []
            for _ in range(times):
                begin = time.perf_counter()
                run()
                wall.append((time.perf_counter() - begin) * 1e3)
            return statistics.median(wall)
        events = [torch.cuda.Event(enable_timing=True) for _ in range(times + 1)]
        run()
        events[0].record()
        for event in events[1:]:
            run()
            event.record()
        torch.cuda.synchronize()
        return statistics.median(float(one.elapsed_time(other)) for one, other in pairwise(events))

    def graph(self, run: Callable[[], Any]) -> tuple[Callable[[], object], Any, Callable[[], None]]:
        """Return the call as one CUDA graph: its replay, its result, and its release."""
        if not self.cuda:
            return run, run(), lambda: None
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            run()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            gave = run()
        return graph.replay, gave, graph.reset

    def in_graph_s(self, run: Callable[[], Any], calls: int, warm_s: float = 2e-3) -> tuple[float, float]:
        """Return the seconds of one of ``calls`` that ``run`` makes, replayed as a graph, and how long it had been
        busy.

        It is replayed for ``warm_s`` before, because a cold and a hot GPU run at different clock rates.
        """
        replay, _, let_go = self.graph(run)
        try:
            once_s = max(1e-6, self.median_ms(replay, 2) * 1e-3)
            warm = min(2000, int(warm_s / once_s) + 1)
            for _ in range(warm):
                replay()
            times = max(3, min(15, int(20e-3 / once_s)))
            seconds = self.median_ms(replay, times) * 1e-3
        finally:
            let_go()
            if self.cuda:
                torch.cuda.empty_cache()  # memory of the graph cannot be returned while the next is captured
        return seconds / calls, once_s * (warm + 3 + times / 2)

    def decode_ms(self, step: Callable[[], tuple[Any, list[Any]]]) -> tuple[float, list[Any]]:
        """Return the median over replays of the step as one graph, and the step's other results beside its tokens."""
        step()  # compiles
        replay, (_, counts), let_go = self.graph(step)
        for _ in range(WARM):
            replay()
        milliseconds = self.median_ms(replay, REPLAYS)
        counts = [count.cpu() for count in counts if count is not None]
        let_go()
        return milliseconds, counts

    def prefill_ms(self, step: Callable[[], object]) -> float:
        """Return the time of whole prompts, launched by the host, with the flash attention kernel."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.FLASH_ATTENTION if self.cuda else SDPBackend.MATH):
            for _ in range(WARM):
                step()
            return self.median_ms(step, PREFILLS)


class Bench:
    """The device that is timed, and how large it is."""

    def __init__(self, device: str, quick: bool = False) -> None:
        self.device, self.quick, self.clock = device, quick, GpuClock(device)
        self.memory_bytes, self.cache_bytes = 64e6, 1e5
        if device == "cuda":
            properties = torch.cuda.get_device_properties(0)
            self.memory_bytes = float(properties.total_memory)
            self.cache_bytes = float(getattr(properties, "L2_cache_size", 50e6))

    def random(self, elements: int, spread: float = 0.02) -> Any:
        return random_values(elements, self.device, spread)


def machine(device: str) -> Row:
    if device != "cuda":
        return {"device": "no GPU", "gpus": 0, "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory, "cache_bytes": getattr(properties, "L2_cache_size", None),
        "multiprocessors": properties.multi_processor_count, "capability": f"{properties.major}.{properties.minor}",
        "driver": _driver(), "torch": torch.__version__, "cuda": torch.version.cuda,
    }  # fmt: skip


def _driver() -> str | None:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        return None
    return said[0] if said else None


def memory(bench: Bench) -> Iterator[Row]:
    """Time how fast large buffers are read (summed up) and copied."""
    size = int(min(1 << 32, bench.memory_bytes / 8))
    one, other = (bench.random(size // shapes.BYTES) for _ in range(2))
    words = one.view(torch.float32)
    runs: dict[str, tuple[Callable[[], object], float]] = {
        "read": (lambda: words.sum(), size),
        "copy": (lambda: other.copy_(one), 2 * size),
    }
    for kind, (run, moved) in runs.items():
        for _ in range(3):
            run()
        seconds = bench.clock.median_ms(run, 10) * 1e-3
        yield {"kind": kind, "bytes": moved, "us": seconds * 1e6, "bytes_per_s": moved / seconds}


def launch(bench: Bench) -> Iterator[Row]:
    """Time the shortest kernel, repeated in a graph and launched by the host."""
    small = torch.zeros(32, device=bench.device)

    def many() -> None:
        for _ in range(_TINY_KERNELS):
            small.add_(1)

    seconds, _ = bench.clock.in_graph_s(many, _TINY_KERNELS)
    yield {"kind": "in a graph", "us": seconds * 1e6}
    many()
    yield {"kind": "by the host", "us": bench.clock.median_ms(many, 5) * 1e3 / _TINY_KERNELS}


def gemm(bench: Bench) -> Iterator[Row]:
    """Time dense layers in bf16."""
    pool = bench.random(int(min(4e9, bench.memory_bytes * 0.15)) // shapes.BYTES)
    points = shapes.matrix_points(bench.quick)
    inputs = bench.random(max(m * k for m, _, k in points), 1.0)
    for m, n, k in points:
        count = shapes.copies(n * k * shapes.BYTES, bench.cache_bytes)
        if count * n * k <= len(pool) and 3 * shapes.BYTES * m * n <= 0.2 * bench.memory_bytes:
            weights = [pool[place * n * k : (place + 1) * n * k].view(n, k) for place in range(count)]
            yield _product(bench, "bf16", (m, n, k), partial(linear, inputs[: m * k].view(m, k)), weights)


def _product(bench: Bench, dtype: str, size: tuple[int, int, int], call: Callable[[Any], Any], weights: Any) -> Row:
    """Time a product with cold weights, on a hot GPU if it is compute-bound."""
    m, n, k = size
    seconds, busy_s = bench.clock.in_graph_s(_each(call, weights), len(weights), HOT_S if m >= 512 else 2e-3)
    return {"dtype": dtype, "m": m, "n": n, "k": k, "us": seconds * 1e6, "busy_ms": busy_s * 1e3}


def gemm_fp8(bench: Bench) -> Iterator[Row]:
    """Time dense layers in FP8, one scale per tensor, activations already quantised: shown, not used to calibrate."""
    pool = bench.random(int(min(2e9, bench.memory_bytes * 0.15)), 1.0).to(torch.float8_e4m3fn)
    one = torch.ones((), device=bench.device)
    for m, n, k in ((16, 8192, 8192), (64, 24576, 4096), (256, 8192, 8192), (2048, 8192, 8192), (8192, 8192, 8192)):
        count = shapes.copies(n * k, bench.cache_bytes)
        weights = [pool[place * n * k : (place + 1) * n * k].view(n, k).t() for place in range(count)]
        scaled = partial(torch._scaled_mm, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        yield _product(bench, "fp8", (m, n, k), partial(scaled, pool[: m * k].view(m, k)), weights)


def sustained(bench: Bench) -> Iterator[Row]:
    """Time large products on a rested GPU, and after a second of them."""
    for m, n, k in shapes.SUSTAINED:
        if shapes.BYTES * (m * n + m * k + 2 * n * k) > 0.2 * bench.memory_bytes:
            continue
        call = partial(linear, bench.random(m * k, 1.0).view(m, k), bench.random(n * k).view(n, k))
        for _ in range(3):
            call()
        if bench.device == "cuda":
            torch.cuda.synchronize()
        cool = []
        for _ in range(3):
            time.sleep(0.25)
            cool.append(bench.clock.median_ms(call, 1))
        until = time.monotonic() + (1.0 if bench.device == "cuda" else 0.0)
        hot = bench.clock.median_ms(call, 20)
        while time.monotonic() < until:
            hot = bench.clock.median_ms(call, 20)
        size = {"dtype": "bf16", "m": m, "n": n, "k": k}
        yield size | {"heat": 0.0, "us": min(cool) * 1e3}
        yield size | {"heat": 1.0, "us": hot * 1e3}
        del call
        if bench.device == "cuda":
            torch.cuda.empty_cache()


def decode_attention(bench: Bench) -> Iterator[Row]:
    """Time one new token per sequence over its cached keys and values, with whichever kernel PyTorch picks."""
    most = min(18e9, 0.3 * bench.memory_bytes)
    pool = bench.random(int(most) // shapes.BYTES, 1.0)
    for heads, batch, context in shapes.decode_points(bench.quick, most):
        half = batch * heads.kv_heads * context * heads.head_dim
        size = (batch, heads.kv_heads, context, heads.head_dim)
        count = min(shapes.copies(2 * half * shapes.BYTES, bench.cache_bytes, 24), len(pool) // (2 * half))
        query = bench.random(batch * heads.heads * heads.head_dim, 1.0)
        query = query.view(batch, heads.kv_heads, heads.heads // heads.kv_heads, heads.head_dim)
        caches = [
            tuple(pool[(2 * place + side) * half : (2 * place + side + 1) * half].view(size) for side in (0, 1))
            for place in range(count)
        ]

        def attend(kept: Any, query: Any = query) -> Any:
            return sdpa(query, *kept)

        seconds, _ = bench.clock.in_graph_s(_each(attend, caches), count)
        yield asdict(heads) | {"batch": batch, "context": context, "us": seconds * 1e6}


def prefill_attention(bench: Bench) -> Iterator[Row]:
    """Time causal attention inside prompts, with the flash kernel; some chunks come after cached tokens."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION if bench.device == "cuda" else SDPBackend.MATH):
        for heads, prompts, tokens, past in shapes.prompt_points(bench.quick, 0.3 * bench.memory_bytes):

            def part(many: int, length: int, prompts: int = prompts, width: int = heads.head_dim) -> Any:
                made = bench.random(prompts * length * many * width, 1.0)
                return made.view(prompts, length, many, width).transpose(1, 2)

            # Chunks after cached tokens use a mask object, which does not repeat keys for grouped queries.
            keys = heads.heads if past else heads.kv_heads
            sizes = ((heads.heads, tokens), (keys, past + tokens), (keys, past + tokens))
            parts = [[part(*size) for size in sizes] for _ in range(2)]
            grouped = heads.heads != heads.kv_heads

            def call(kept: Any, grouped: bool = grouped, tokens: int = tokens, past: int = past) -> Any:
                if past:
                    return sdpa(*kept, attn_mask=causal_lower_right(tokens, past + tokens))
                return sdpa(*kept, is_causal=True, enable_gqa=grouped)

            seconds, _ = bench.clock.in_graph_s(_each(call, parts), len(parts), HOT_S / 2 if tokens >= 1024 else 2e-3)
            shown = asdict(heads) | ({"kv_heads": heads.heads} if past else {})
            yield shown | {"batch": prompts, "tokens": tokens, "past": past, "us": seconds * 1e6}


def all_reduce(bench: Bench) -> Iterator[Row]:
    """Time sums over the GPUs of this machine with NCCL, in a CUDA graph."""
    groups = [gpus for gpus in (2, 4, 8) if gpus <= torch.cuda.device_count()] if bench.device == "cuda" else []
    for gpus in groups:
        with tempfile.TemporaryDirectory() as folder:
            meeting, into = Path(folder) / "meeting", Path(folder) / "rows"
            torch.multiprocessing.spawn(_rank, (gpus, str(meeting), str(into)), nprocs=gpus)
            for line in into.read_text(encoding="utf-8").splitlines():
                message, us = line.split()
                yield {"gpus": gpus, "bytes": int(message), "us": float(us)}


def _rank(rank: int, gpus: int, meeting: str, into: str) -> None:
    """Run one GPU's part of the all-reduce."""
    import torch.distributed as group

    torch.cuda.set_device(rank)
    group.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=gpus)
    clock, lines = GpuClock("cuda"), []
    for message in shapes.MESSAGES:
        data = torch.zeros(message // shapes.BYTES, dtype=torch.bfloat16, device="cuda")

        def run(data: Any = data) -> None:
            for _ in range(10):
                group.all_reduce(data)

        replay, _, let_go = clock.graph(run)
        for _ in range(5):
            replay()
        lines.append(f"{message} {clock.median_ms(replay, 9) * 1e3 / 10:.4f}")
        let_go()
    if rank == 0:
        Path(into).write_text("\n".join(lines), encoding="utf-8")
    group.destroy_process_group()


def _each(call: Callable[[Any], Any], items: list[Any]) -> Callable[[], Any]:
    """Return a call on one item after the other; only the last result is kept."""

    def run() -> Any:
        gave = None
        for item in items:
            gave = call(item)
        return gave

    return run


def _whole_models(bench: Bench, models: Mapping[str, shapes.KernelShape], attention: bool = True) -> Iterator[Row]:
    """Time decode steps and prompts of these models; only of the first if it must be quick."""
    for name in list(models)[: 1 if bench.quick and models is not shapes.HELD_OUT else None]:
        yield from _steps(bench, name, models[name], attention)


def _steps(bench: Bench, name: str, shape: shapes.KernelShape, attention: bool) -> Iterator[Row]:
    import torch._dynamo

    shape = replace(shape, memory=min(shape.memory, 0.85 * bench.memory_bytes))
    if not shape.loads:
        return
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    model = Model(shape, bench.device)
    names = ("layers", "hidden", "qkv", "heads", "head_dim", "intermediate", "vocab")
    size = {name: getattr(shape, name) for name in names}
    try:
        for batch, context in shape.loads:
            milliseconds, counts = bench.clock.decode_ms(model.decode_step(batch, context, attention=attention))
            row: Row = {"kind": "decode" if attention else "decode_no_attention", "model": name, "batch": batch}
            row |= {"ctx": context, "ms": round(milliseconds, 4)}
            if counts:
                row["experts_touched"] = round(statistics.mean(int((count > 0).sum()) for count in counts), 3)
            yield row if attention else row | size
        model.keys, model.values = [], []
        free(bench)
        for prompts, length in shape.prompts:
            milliseconds = bench.clock.prefill_ms(model.prefill_step(prompts, length))
            yield {"kind": "prefill", "model": name, "batch": prompts, "ctx": length, "ms": round(milliseconds, 4)}
    finally:
        del model
        torch._dynamo.reset()
        free(bench)


def free(bench: Bench) -> None:
    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()


layers = partial(_whole_models, models=shapes.STACKS, attention=False)
check = partial(_whole_models, models=shapes.CHECK)
validate = partial(_whole_models, models=shapes.HELD_OUT)
