"""The timing part of the probe: needs torch and a CUDA GPU, and nothing else that is not Python.

    PYTHONPATH=src python -m tokonomics.measure.probe.timings OUT.json [--seconds 170] [--sections …] [--quick]

Sections run one after the other; each has a share of the time and stops, with what it has, when that is over. The file
is written after every section, and every few seconds within one; a section that fails says so in ``failures`` and the
rest goes on. ``calibrate --probe`` runs this and fits a profile on it; ``calibrate OUT.json`` does the latter
alone.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tokonomics.errors import shorten
from tokonomics.files import write_text

SCHEMA_VERSION = 1
KIND = "tokonomics probe timings"
SECONDS = 170.0  # the whole probe ends within three minutes

Row = dict[str, Any]
Show = Callable[[str, int, float], None]  # what is being measured, rows so far, and seconds left of the whole


class ProbePart(NamedTuple):
    """What the function of that name in ``kernels`` times."""

    seconds: float
    says: str


SECTIONS = {
    "memory": ProbePart(5, "memory bandwidth"),
    "launch": ProbePart(5, "kernel launches"),
    "gemm": ProbePart(45, "matrix products"),
    "gemm_fp8": ProbePart(5, "matrix products in FP8"),
    "sustained": ProbePart(12, "products on a hot GPU"),
    "decode_attention": ProbePart(35, "decode attention"),
    "prefill_attention": ProbePart(20, "prefill attention"),
    "all_reduce": ProbePart(30, "all-reduce"),
    "layers": ProbePart(45, "layers without attention"),
    "check": ProbePart(75, "whole decode steps"),
    "validate": ProbePart(420, "held-out models"),
}
PROBE = tuple(name for name in SECTIONS if name != "validate")


def measure(
    device: str, quick: bool, names: list[str], seconds: float, save: Callable[[Row], None], show: Show | None = None
) -> Row:
    """Time all sections; pass the growing document to ``save``, and return it."""
    import torch

    from tokonomics.measure.probe import kernels

    bench = kernels.Bench(device, quick)
    begin = time.monotonic()
    document: Row = {
        "kind": KIND, "schema_version": SCHEMA_VERSION, "made": time.strftime("%Y-%m-%d"), "quick": quick,
        "machine": kernels.machine(device), "seconds": {}, "failures": {}, "cut_short": [],
    }  # fmt: skip
    document |= {name: [] for name in names}
    with torch.no_grad():
        for name in names:
            section, started = SECTIONS[name], time.monotonic()
            until = min(started + section.seconds, begin + seconds)
            written = started
            try:
                rows = getattr(kernels, name)(bench)
                while True:
                    if show:
                        show(section.says, len(document[name]), begin + seconds - time.monotonic())
                    if time.monotonic() > until:
                        document["cut_short"].append(name)
                        rows.close()
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
            kernels.free(bench)
            save(document)
    return document


def write(document: Row, path: Path) -> None:
    """Write one row per line, atomically."""
    parts = []
    for name, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = [
                {key: float(f"{cell:.5g}") if isinstance(cell, float) else cell for key, cell in row.items()}
                for row in value
            ]
            text = "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    write_text(path, "{\n" + ",\n".join(parts) + "\n}\n", shorten(str(path), 200))


def why_not() -> str | None:
    """Return what is missing to probe this machine; None if nothing is."""
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
    device = "cpu" if options.cpu else "cuda"
    last = [""]

    def show(says: str, rows: int, left: float) -> None:
        if says != last[0] or rows % 50 == 0:
            sys.stderr.write(f"{says}: {rows} rows, {left:.0f} s left\n")
            sys.stderr.flush()
            last[0] = says

    document = measure(device, options.quick, names, options.seconds, lambda done: write(done, options.out), show)
    shown = {"seconds": document["seconds"], "failures": document["failures"], "cut_short": document["cut_short"]}
    sys.stderr.write(json.dumps(shown, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
