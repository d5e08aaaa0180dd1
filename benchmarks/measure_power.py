"""What this machine's GPU draws while it serves, and how fast weights come to it.

    python benchmarks/measure_power.py --out FILE [--seconds N]

Needs torch, nvidia-smi and a CUDA GPU, and of tokonomics only ``measure/probe`` (PYTHONPATH=src). The steps are those
of ``measure_steps.py``: random bf16 weights, decode in one CUDA graph. ``rows``: watts by nvidia-smi, ten times a
second, the mean of the last three quarters of each load; ``busy`` is the share of the time in which steps ran (the
rest waits, as a server without requests does). ``copies``: 8 GB to the GPU and back, from pinned and from pageable
memory, and from a file that was written just before and then dropped from the page cache where that is allowed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from tokonomics.measure.probe.kernels import GpuClock
from tokonomics.measure.probe.shapes import KernelShape
from tokonomics.measure.probe.transformer import Model

SHAPE = KernelShape(32, 4096, 32, 8, 14336, 128256)
NAME = "llama-3.1-8b"
DECODES = [(1, 1024), (4, 1024), (16, 1024), (64, 1024), (128, 1024), (256, 1024), (64, 4096)]
DUTY = (0.25, 0.5, 0.75)
PROMPTS = ((1, 512), (1, 2048), (4, 2048), (1, 8192))
COPIED = 8 << 30


class Meter:
    """Watts by nvidia-smi, in a thread."""

    def __init__(self) -> None:
        asked = [
            "nvidia-smi",
            "--query-gpu=power.draw.instant,clocks.sm,temperature.gpu",
            "--format=csv,noheader,nounits",
            "-lms",
            "100",
        ]
        self.process = subprocess.Popen(asked, stdout=subprocess.PIPE, text=True)
        self.seen: list[tuple[float, float, float, float]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                watts, clock, heat = (float(part) for part in line.split(","))
            except ValueError:
                continue
            self.seen.append((time.monotonic(), watts, clock, heat))

    def between(self, begin: float, end: float) -> dict[str, Any]:
        inside = [row for row in self.seen if begin <= row[0] <= end]
        means = (
            [round(statistics.mean(row[place] for row in inside), 1) for place in (1, 2, 3)] if inside else [None] * 3
        )
        return dict(zip(("watts", "sm_mhz", "celsius"), means, strict=True)) | {"samples": len(inside)}


def loaded(meter: Meter, run: Callable[[], object], seconds: float, step_s: float, busy: float = 1.0) -> dict[str, Any]:
    """Steps for so long, with pauses where it is to be busy only part of the time."""
    begin = time.monotonic()
    while time.monotonic() < begin + seconds:
        block = time.monotonic()
        for _ in range(max(1, int(0.05 / step_s))):
            run()
        torch.cuda.synchronize()
        if busy < 1:
            time.sleep((time.monotonic() - block) * (1 / busy - 1))
    end = time.monotonic()
    return meter.between(begin + (end - begin) / 4, end) | {"busy": busy}


def decodes(meter: Meter, model: Model, seconds: float, keep: Callable[[dict[str, Any]], None]) -> None:
    clock = GpuClock("cuda")
    for batch, context in DECODES:
        step = model.decode_step(batch, context)
        step()
        replay, _, let_go = clock.graph(step)
        for _ in range(4):
            replay()
        step_ms = clock.median_ms(replay, 20)
        shown = {"model": NAME, "phase": "decode", "batch": batch, "context": context, "step_ms": round(step_ms, 3)}
        for busy in (1.0, *(DUTY if (batch, context) == (64, 1024) else ())):
            keep(shown | loaded(meter, replay, seconds, step_ms / 1e3, busy))
        let_go()


def prompts(meter: Meter, model: Model, seconds: float, keep: Callable[[dict[str, Any]], None]) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    clock = GpuClock("cuda")
    for batch, tokens in PROMPTS:
        step = model.prefill_step(batch, tokens)
        step_ms = clock.prefill_ms(step)
        shown = {"model": NAME, "phase": "prefill", "batch": batch, "context": tokens, "step_ms": round(step_ms, 3)}
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            keep(shown | loaded(meter, step, seconds, step_ms / 1e3))


def copies() -> list[dict[str, Any]]:
    rows = []
    on_gpu = torch.empty(COPIED, dtype=torch.uint8, device="cuda")
    for kind in ("pinned", "pageable"):
        host = torch.empty(COPIED, dtype=torch.uint8, pin_memory=kind == "pinned")
        host.fill_(1)
        for way, source, target in (("to the GPU", host, on_gpu), ("to the host", on_gpu, host)):
            target.copy_(source)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            target.copy_(source)
            torch.cuda.synchronize()
            rows.append({"from": kind, "way": way, "gb_per_s": round(COPIED / (time.perf_counter() - begin) / 1e9, 2)})
    with tempfile.NamedTemporaryFile(dir=os.environ.get("DISK", "/tmp")) as file:
        begin = time.perf_counter()
        host.numpy().tofile(file)
        file.flush()
        os.fsync(file.fileno())
        rows.append(
            {"from": "file", "way": "written", "gb_per_s": round(COPIED / (time.perf_counter() - begin) / 1e9, 2)}
        )
        for state in ("dropped from the page cache", "in the page cache"):
            if state.startswith("dropped"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            begin = time.perf_counter()
            with Path(file.name).open("rb", buffering=0) as saved:
                view, done = memoryview(host.numpy()), 0
                while got := saved.readinto(view[done : done + (64 << 20)]):
                    done += got
            rows.append(
                {"from": "file", "way": state, "gb_per_s": round(COPIED / (time.perf_counter() - begin) / 1e9, 2)}
            )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load")
    options = parser.parse_args()
    meter = Meter()
    time.sleep(options.seconds)
    idle = meter.between(time.monotonic() - options.seconds * 0.75, time.monotonic())
    limit = subprocess.run(
        ["nvidia-smi", "--query-gpu=power.limit,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    ).stdout.strip()
    content: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d"),
        "command": "python benchmarks/measure_power.py " + " ".join(sys.argv[1:]), "limit": limit,
        "rows": [{"phase": "idle", "without": "a process"} | idle],
    }  # fmt: skip

    def keep(row: dict[str, Any]) -> None:
        content["rows"].append(row)
        print(row, flush=True)
        options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    torch._dynamo.config.recompile_limit = 64
    torch.manual_seed(0)
    with torch.no_grad():
        model = Model(SHAPE, "cuda")
        time.sleep(options.seconds)
        keep(
            {"phase": "idle", "with": "weights on it"}
            | meter.between(time.monotonic() - options.seconds * 0.75, time.monotonic())
        )
        prompts(meter, model, options.seconds, keep)
        decodes(meter, model, options.seconds, keep)
        time.sleep(options.seconds)
        keep(
            {"phase": "idle", "with": "weights on it, after work"}
            | meter.between(time.monotonic() - options.seconds * 0.5, time.monotonic())
        )
        del model
        torch.cuda.empty_cache()
        content["copies"] = copies()
    print(content["copies"])
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
