"""A process that answers one request at a time, so that the server can limit it, and kill it without losing itself.

Messages are frames on the standard streams: a kind (one byte), a length (four bytes) and JSON. Whatever a verb prints
goes nowhere near them. ``python -m tokonomics.web.worker`` is started by ``pool``; it imports the library first and
says ``ready``.
"""

import gc
import json
import os
import resource
import select
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

READY, BEGUN, PROGRESS, ANSWER, REFUSED, FAILED = b"rbpaef"
HEAD = struct.Struct(">BI")


def write_frame(out: IO[bytes], kind: int, content: bytes) -> None:
    out.write(HEAD.pack(kind, len(content)) + content)
    out.flush()


def read_frame(source: IO[bytes]) -> tuple[int, bytes] | None:
    """The next message; None where the other side has gone."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, length = HEAD.unpack(head)
    content = source.read(length)
    return (kind, content) if len(content) == length else None


def main(folder: str, memory_bytes: int, niceness: int, warm_ups: list[str]) -> None:
    """Answer until the server goes away."""
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.chdir(folder)  # an empty one: a relative path leads nowhere
    os.nice(niceness)
    gc.set_threshold(100_000, 20, 20)  # as on the command line: what is imported stays
    _import()
    _take_paths_of(Path(folder).parent)
    _limit_memory(memory_bytes)
    write_frame(out, READY, b"{}")
    while True:
        while warm_ups and not select.select([source], [], [], 0.05)[0]:
            _warm_up(warm_ups.pop(0))
        if (frame := read_frame(source)) is None:
            return
        write_frame(out, BEGUN, b"")
        write_frame(out, *_handled(json.loads(frame[1]), lambda what: write_frame(out, PROGRESS, what.encode())))


def _handled(request: dict[str, Any], tell: Callable[[str], None]) -> tuple[int, bytes]:
    from tokonomics.errors import TokonomicsError
    from tokonomics.web import answering, looking

    work = {"answer": answering.answer, "look": looking.look, "report": looking.report}[request["work"]]
    try:
        return ANSWER, answering.as_json(work(request, tell))
    except TokonomicsError as problem:
        return REFUSED, answering.as_json(answering.error_of(problem))
    except MemoryError:
        said = TokonomicsError("needs more memory than one request may take", fix="Ask for fewer requests or rows.")
        return REFUSED, answering.as_json(answering.error_of(said))
    except Exception:
        return FAILED, traceback.format_exc().encode()


def _limit_memory(memory_bytes: int) -> None:
    """Beyond what the imports took; where the system knows no such limit there is none."""
    try:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + memory_bytes))
    except (OSError, ValueError):
        return


WARM_UPS: dict[str, dict[str, Any]] = {
    "curve": {"model": "llama-3.1-8b", "gpu": "H100"},
    "plan": {"what": ["llama-3.1-8b"], "rate": "1", "input": "1000", "output": "300", "quick": True},
    "simulate": {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:1", "requests": 100,
                 "input_text": "100", "output_text": "100"},
}  # fmt: skip
"""What is done once while nobody asks, so that the first visitor does not wait for imports and compiled code."""


def _import() -> None:
    from altair.utils import schemapi

    schemapi.DEBUG_MODE = False  # checking each part of a chart takes longer than drawing it; the tests check them
    _warm_up("curve")


def _take_paths_of(root: Path) -> None:
    """A model is read from a file among the uploads alone: a benchmark's results may state a path of this machine."""
    from tokonomics.catalog.load_models import CONFIGS_IN

    CONFIGS_IN.set(root)


def _warm_up(verb: str) -> None:
    from tokonomics.web.answering import answer

    answer({"verb": verb, "call": WARM_UPS[verb], "inputs": {}, "command": "", "charts": True}, lambda what: None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
