"""A process that answers one request at a time, so that the server can limit it, and kill it without losing itself.

Messages are frames on the standard streams: a kind (one byte), a length (four bytes) and JSON. Whatever a verb prints
goes nowhere near them. ``python -m tokonomics.web.worker`` is started by ``pool``; it imports the library first and
says ``ready``.
"""

import json
import os
import resource
import struct
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

READY, PROGRESS, ANSWER, REFUSED, FAILED = b"rpaef"
HEAD = struct.Struct(">BI")


def write_frame(out: BinaryIO, kind: int, content: bytes) -> None:
    out.write(HEAD.pack(kind, len(content)) + content)
    out.flush()


def read_frame(source: BinaryIO) -> tuple[int, bytes] | None:
    """The next message; None where the other side has gone."""
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, length = HEAD.unpack(head)
    content = source.read(length)
    return (kind, content) if len(content) == length else None


def main(folder: str, memory_bytes: int, niceness: int) -> None:
    """Answer until the server goes away."""
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.chdir(folder)  # an empty one: a relative path leads nowhere
    os.nice(niceness)
    _warm()
    _limit_memory(memory_bytes)
    write_frame(out, READY, b"{}")
    while (frame := read_frame(source)) is not None:
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
        problem = TokonomicsError("needs more memory than one request may take", fix="Ask for fewer requests or rows.")
        return REFUSED, answering.as_json(answering.error_of(problem))
    except Exception:
        return FAILED, traceback.format_exc().encode()


def _limit_memory(memory_bytes: int) -> None:
    """Beyond what the imports took; where the system knows no such limit there is none."""
    try:
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + memory_bytes))
    except (OSError, ValueError):
        return


def _warm() -> None:
    """Everything a closed form needs is imported and drawn once: the first visitor does not wait for it."""
    from altair.utils import schemapi

    from tokonomics.web.answering import answer

    schemapi.DEBUG_MODE = False  # checking each part of a chart takes longer than drawing it; the tests check them
    call = {"model": "llama-3.1-8b", "gpu": "H100"}
    answer({"verb": "curve", "call": call, "inputs": {}, "command": "", "charts": True}, lambda what: None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
