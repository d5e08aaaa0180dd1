"""Time whole transformer steps on this machine's GPU: bare kernels, random bf16 weights, no engine around them.

    python benchmarks/measure_steps.py --out FILE [--models NAME ...] [--seconds N]

Needs torch and a CUDA GPU, and of tokonomics only ``measure/probe`` (PYTHONPATH=src), not its dependencies. What it
writes, ``tokonomics calibrate --score FILE`` scores.

- The steps are those of ``tokonomics.measure.probe.transformer``: decode in one CUDA graph, the median of replays timed
  with events; prefill without a graph, causal SDPA pinned to the flash kernel.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokonomics.measure.probe.kernels import GpuClock
from tokonomics.measure.probe.shapes import KernelShape
from tokonomics.measure.probe.transformer import Model

MODELS = {
    "qwen2.5-7b": KernelShape(28, 3584, 28, 4, 18944, 152064, bias=True),
    "llama-2-7b": KernelShape(
        32, 4096, 32, 32, 11008, 32000, contexts=(512, 2048, 4096), prompts=((1, 512), (1, 2048), (1, 4096), (4, 1024))
    ),
    "llama-3.2-3b": KernelShape(28, 3072, 24, 8, 8192, 128256, tied=True),
    "mistral-nemo": KernelShape(40, 5120, 32, 8, 14336, 131072),
    "mixtral-8x7b": KernelShape(32, 4096, 32, 8, 14336, 32000, experts=8, active=2, batches=(1, 8, 64, 256)),
    "qwen2.5-14b": KernelShape(48, 5120, 40, 8, 13824, 152064, bias=True, batches=(1, 32, 128)),
}
ANCHORS = {
    "llama-3.1-8b": KernelShape(
        32, 4096, 32, 8, 14336, 128256, batches=(1, 64), contexts=(512, 2048, 8192), prompts=((1, 512), (1, 2048))
    )
}
TINY = {
    "tiny": KernelShape(
        2, 64, 4, 2, 96, 128, 16, bias=True, batches=(1, 3), contexts=(8, 16), prompts=((1, 8), (2, 8))
    ),
    "tiny-moe": KernelShape(
        2, 64, 4, 2, 96, 128, 16, experts=4, active=2, batches=(3,), contexts=(8,), prompts=((1, 8), (2, 8))
    ),
}
"""For a look at the logic on a machine without a GPU."""


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


def measure(name: str, shape: KernelShape, device: str, record: Record, into: str) -> None:
    """Every load of one model."""
    import torch

    model, clock = Model(shape, device), GpuClock(device)
    for batch in dict.fromkeys(batch for batch, _ in shape.loads):
        for context in (context for load, context in shape.loads if load == batch):
            if record.late:
                return
            milliseconds, counts = clock.decode_ms(model.decode_step(batch, context))
            record.add(into, row("decode", name, shape, batch, context, milliseconds))
            if shape.experts and context == shape.contexts[0]:
                touched = statistics.mean(int((count > 0).sum()) for count in counts)
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


def row(kind: str, name: str, shape: KernelShape, batch: int, context: int, milliseconds: float) -> dict[str, Any]:
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


def attention_kernels(shape: KernelShape, batch: int, context: int) -> list[str]:
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
        f"{average.key[:80]} {average.device_time_total:.1f} us"
        for average in profile.key_averages()
        if average.device_time_total > 2
    ]


def ceilings() -> dict[str, float]:
    """What a copy and a large matrix product reach: is this GPU like the one measured before?"""
    import torch

    clock = GpuClock("cuda")
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


def chosen(tiny: bool, names: list[str] | None) -> Iterator[tuple[str, KernelShape, str]]:
    """The shapes to time, and under which name of the file."""
    known = TINY if tiny else ANCHORS | MODELS
    for name in names or known:
        yield name, known[name], "anchors" if name in ANCHORS else "rows"


if __name__ == "__main__":
    sys.exit(main())
