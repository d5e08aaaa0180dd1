"""A process that answers one request at a time, so that the server can limit it, and kill it without losing itself.

Messages are frames on the standard streams: a kind (one byte), a length (four bytes) and JSON. Whatever a verb prints
goes nowhere near them. ``python -m tokonomics.web.worker`` is started by ``pool``; it imports the library first and
says ``ready``.
"""

import gc
import json
import os
import select
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tokonomics.memory_budget import limit_memory

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


def main(folder: str, memory_bytes: int, niceness: int) -> None:
    """Answer until the server goes away."""
    source, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    end_with_the_server(source.fileno())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.chdir(folder)  # an empty one: a relative path leads nowhere
    os.nice(niceness)
    gc.set_threshold(100_000, 20, 20)  # as on the command line: what is imported stays
    _import()
    _limit_files(Path(folder).parent)
    limit_memory(memory_bytes)  # beyond what the imports took
    write_frame(out, READY, b"{}")
    while (frame := read_frame(source)) is not None:
        write_frame(out, BEGUN, b"")
        write_frame(out, *_handled(json.loads(frame[1]), lambda what: write_frame(out, PROGRESS, what.encode())))


def end_with_the_server(line: int) -> None:
    """Whatever runs, and however the server ended: nobody would hear the answer."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1  # of <sys/prctl.h>
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)

    def wait() -> None:
        hung_up = select.poll()
        hung_up.register(line, 0)  # the end of the other side is told unasked
        hung_up.poll()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def _handled(request: dict[str, Any], tell: Callable[[str], None]) -> tuple[int, bytes]:
    from tokonomics.errors import TokonomicsError
    from tokonomics.web import answering, looking

    work = {"answer": answering.answer, "look": looking.look, "report": looking.report, "warm": _warmed}[
        request["work"]
    ]
    try:
        return ANSWER, answering.as_json(work(request, tell))
    except TokonomicsError as problem:
        return REFUSED, answering.as_json(answering.error_of(problem))
    except MemoryError:
        said = TokonomicsError("needs more memory than one request may take", fix="Ask for fewer requests or rows.")
        return REFUSED, answering.as_json(answering.error_of(said))
    except Exception:
        return FAILED, traceback.format_exc().encode()


WARM_UPS: dict[str, dict[str, Any]] = {
    "curve": {"model": "llama-3.1-8b", "gpu": "H100"},
    "plan": {"model": ["llama-3.1-8b"], "rate": "1", "input": "1000", "output": "300", "quick": True},
    "simulate": {"model": "llama-3.1-8b", "gpu": "H100", "arrivals": "poisson:1", "requests": 100,
                 "input": "100", "output": "100"},
}  # fmt: skip
"""What is done once while nobody asks, so that the first visitor does not wait for imports and compiled code."""


def _import() -> None:
    from altair.utils import schemapi

    schemapi.DEBUG_MODE = False  # checking each part of a chart takes longer than drawing it; the tests check them
    _warm_up("curve")


def _limit_files(root: Path) -> None:
    """A model is read from a file among the uploads alone: a benchmark's results may state a path of this machine.

    And of every log, only so many rows: a small file can unfold into billions.
    """
    from tokonomics.catalog.load_models import CONFIGS_IN
    from tokonomics.traffic.sources import MOST_ROWS
    from tokonomics.web import looking

    CONFIGS_IN.set(root)
    MOST_ROWS.set(looking.MOST_ROWS)


def _warmed(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    _warm_up(request["verb"])
    return {}


def _warm_up(verb: str) -> None:
    from tokonomics.web.answering import answer

    answer({"verb": verb, "call": WARM_UPS[verb], "inputs": {}, "command": "", "charts": True}, lambda what: None)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
