"""Logs that tests write: the text, where it is kept, and the trace that is opened from it."""

from pathlib import Path
from typing import Any

from tokonomics.traffic.readers import TraceFile, open_trace
from tokonomics.traffic.trace import Trace


def kept(folder: Path, content: str | bytes, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def opened(folder: Path, content: str | bytes, name: str = "log.csv", **options: Any) -> TraceFile:
    return open_trace(kept(folder, content, name), **options)


def columns(trace: Trace) -> list[list[float]]:
    """Arrivals, prompts and answers."""
    return [trace.arrival_s.round(6).tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist()]
