"""The timing part of the probe: needs torch and a CUDA GPU, and nothing else that is not Python.

    PYTHONPATH=src python -m tokonomics.measure.probe.timings OUT.json [--seconds 170] [--sections …] [--quick]

Sections run one after the other; each has a share of the time and stops, with what it has, when that is over. The file
is written after every section, and every few seconds within one; a section that fails says so in ``failures`` and the
rest goes on. ``tokonomics probe`` runs this and fits a profile on it; ``tokonomics calibrate OUT.json`` does the latter
alone.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.errors import shorten
from tokonomics.files import write_text
from tokonomics.measure.probe import kernels
from tokonomics.measure.probe.shapes import CHECK, HELD_OUT, STACKS, KernelShape

SCHEMA_VERSION = 1
KIND = "tokonomics probe timings"
SECONDS = 170.0  # the whole probe ends within three minutes

Row = dict[str, Any]
Show = Callable[[str, int, float], None]  # what is being measured, rows so far, and seconds left of the whole


@dataclass(frozen=True)
class ProbePart:
    rows: Callable[[kernels.Bench], Iterator[Row]]
    seconds: float
    says: str


def models(bench: kernels.Bench, shapes: Mapping[str, KernelShape], attention: bool = True) -> Iterator[Row]:
    """Decode steps and prompts of these models; of the first alone where it must be quick."""
    for name in list(shapes)[: 1 if bench.quick and shapes is not HELD_OUT else None]:
        yield from steps(bench, name, shapes[name], attention=attention)


SECTIONS = {
    "memory": ProbePart(kernels.memory, 5, "memory bandwidth"),
    "launch": ProbePart(kernels.launches, 5, "kernel launches"),
    "gemm": ProbePart(kernels.matrices, 45, "matrix products"),
    "gemm_fp8": ProbePart(kernels.matrices_fp8, 5, "matrix products in FP8"),
    "sustained": ProbePart(kernels.sustained, 12, "products on a hot GPU"),
    "decode_attention": ProbePart(kernels.decode_attention, 35, "decode attention"),
    "prefill_attention": ProbePart(kernels.prompt_attention, 20, "prefill attention"),
    "all_reduce": ProbePart(kernels.all_reduce, 30, "all-reduce"),
    "layers": ProbePart(partial(models, shapes=STACKS, attention=False), 45, "layers without attention"),
    "check": ProbePart(partial(models, shapes=CHECK), 75, "whole decode steps"),
    "validate": ProbePart(partial(models, shapes=HELD_OUT), 420, "held-out models"),
}
PROBE = tuple(name for name in SECTIONS if name != "validate")


def steps(bench: kernels.Bench, name: str, shape: KernelShape, *, attention: bool = True) -> Iterator[Row]:
    import torch
    import torch._dynamo

    from tokonomics.measure.probe.transformer import Model

    shape = replace(shape, memory=min(shape.memory, 0.85 * bench.memory_bytes))
    if not shape.loads:
        return
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    model = Model(shape, bench.device)
    size = {"layers": shape.layers, "hidden": shape.hidden, "qkv": shape.qkv, "heads": shape.heads}
    size |= {"head_dim": shape.head_dim, "intermediate": shape.intermediate, "vocab": shape.vocab}
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


def free(bench: kernels.Bench) -> None:
    import torch

    gc.collect()
    if bench.device == "cuda":
        torch.cuda.empty_cache()


def measure(
    bench: kernels.Bench, names: list[str], seconds: float, save: Callable[[Row], None], show: Show | None = None
) -> Row:
    """All timings as one document; ``save`` is called with it as it grows."""
    import torch

    begin = time.monotonic()
    document: Row = {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "made": time.strftime("%Y-%m-%d"), "quick": bench.quick,
        "machine": kernels.machine(bench.device), "seconds": {}, "failures": {}, "cut_short": [],
    }  # fmt: skip
    document |= {name: [] for name in names}
    with torch.no_grad():
        for name in names:
            section, started = SECTIONS[name], time.monotonic()
            until = min(started + section.seconds, begin + seconds)
            written = started
            try:
                rows = section.rows(bench)
                while True:
                    if show:
                        show(section.says, len(document[name]), begin + seconds - time.monotonic())
                    if time.monotonic() > until:
                        document["cut_short"].append(name)
                        rows.close()  # type: ignore[attr-defined]
                        break
                    row = next(rows, None)
                    if row is None:
                        break
                    document[name].append(row)
                    if time.monotonic() - written > 5:
                        written = time.monotonic()
                        save(document)
            except Exception as error:  # one section's failure must not cost the others
                document["failures"][name] = f"{type(error).__name__}: {str(error)[:800]}"
            document["seconds"][name] = round(time.monotonic() - started, 1)
            rows = iter(())
            free(bench)
            save(document)
    return document


def write(document: Row, path: Path) -> None:
    """One row a line; never half a file."""
    parts = []
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            lines = ",\n".join(json.dumps({key: _rounded(cell) for key, cell in row.items()}) for row in value)
            parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n", shorten(str(path), 200))


def _rounded(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def why_not() -> str | None:
    """What is missing to probe this machine; None where nothing is."""
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return None if torch.cuda.is_available() else "PyTorch finds no CUDA GPU"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--sections", default=",".join(PROBE), help="comma-separated; also: validate")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="a look at the logic without a GPU")
    options = parser.parse_args()
    names = [part.strip() for part in options.sections.split(",") if part.strip()]
    unknown = [name for name in names if name not in SECTIONS]
    if unknown:
        sys.stderr.write(f"unknown sections {', '.join(unknown)}; known: {', '.join(SECTIONS)}\n")
        return 2
    missing = None if options.cpu else why_not()
    if missing:
        sys.stderr.write(f"{missing}\n")
        return 1
    bench = kernels.Bench("cpu" if options.cpu else "cuda", options.quick)
    last = [""]

    def show(says: str, rows: int, left: float) -> None:
        if says != last[0] or rows % 50 == 0:
            sys.stderr.write(f"{says}: {rows} rows, {left:.0f} s left\n")
            sys.stderr.flush()
            last[0] = says

    document = measure(bench, names, options.seconds, lambda done: write(done, options.out), show)
    shown = {"seconds": document["seconds"], "failures": document["failures"], "cut_short": document["cut_short"]}
    sys.stderr.write(json.dumps(shown, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
