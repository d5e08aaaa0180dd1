"""A process without threads that has imported what a writer needs, copies itself, and kills the copies.

Each line on standard input is an order: in which folder, from which turn on, how many turns to let pass, and at which
share of the next one to kill. The copy writes turn after turn and acknowledges each through a pipe once it is done;
the answer is the last turn that was acknowledged. The process never reads what was written: that would start threads,
which a copy does not get.
"""

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LONGEST_S = 60.0
"""For a turn: a machine with other work may take a while; one that hangs is an error."""


def main() -> None:
    from tests.kill.writers import BY_NAME

    writer = BY_NAME[sys.argv[1]]
    if "plain" in sys.argv[2:]:
        write_plainly()
    if writer.prepare:
        writer.prepare()
    else:
        rehearse(writer)
    turn_s = 0.01
    for line in sys.stdin:
        order = json.loads(line)
        answer = killed(writer, order, turn_s)
        if answer["turn_s"]:
            turn_s = 0.7 * turn_s + 0.3 * answer["turn_s"]
        print(json.dumps(answer), flush=True)  # noqa: T201 - the other end reads it


def rehearse(writer: Any) -> None:
    """One turn elsewhere, so that the copies need not import anything."""
    out = os.dup(1)
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        writer.write(Path(folder), 1)
    os.dup2(out, 1)


def killed(writer: Any, order: dict[str, Any], turn_s: float) -> dict[str, Any]:
    """One copy's life."""
    heard, said = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(heard)
        write_on(writer, Path(order["folder"]), order["turn"], said)
    os.close(said)
    text = b""
    began, first_s, last_s = time.monotonic(), 0.0, 0.0
    try:
        while text.count(b"\n") < order["pass"]:
            if not select.select([heard], [], [], LONGEST_S)[0] or not (part := os.read(heard, 65536)):
                break
            text += part
            last_s = time.monotonic() - began
            first_s = first_s or last_s
        passed_s = last_s - first_s if order["pass"] == 2 else 0.0
        select.select([], [], [], order["share"] * turn_s)
    finally:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    while part := os.read(heard, 65536):
        text += part
    os.close(heard)
    turns = text.split()
    return {
        "turn": int(turns[-1]) if turns else order["turn"] - 1,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        "after_s": order["share"] * turn_s,
        "turn_s": passed_s,
    }


def write_on(writer: Any, folder: Path, turn: int, said: int) -> None:
    """The copy: it ends by being killed, or by a mistake."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    kept = os.dup(2)
    os.dup2(1, 2)
    try:
        while True:
            writer.write(folder, turn)
            os.write(said, b"%d\n" % turn)
            turn += 1
    except BaseException:
        os.dup2(kept, 2)
        traceback.print_exc()
    finally:
        os._exit(1)


def write_plainly() -> None:
    """As a file is written without thinking: into its place, piece by piece as it comes."""
    import importlib

    from tokonomics import files

    @contextmanager
    def whole(path: Path, where: str) -> Iterator[Path]:
        yield path

    files.whole = whole
    for user in ("traffic.trace", "serving.outcome", "report.charts", "measure.meter.bill", "web.pages", "sweep.store"):
        importlib.import_module(f"tokonomics.{user}").whole = whole  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
