"""A worker that does as it is told, for the tests of the pool."""

import os
import threading
from collections.abc import Callable
from typing import Any

from tokonomics.errors import TokonomicsError

_KEPT: list[bytearray] = []


def begin(folder: str, niceness: int) -> Callable[..., dict[str, Any]]:
    return does


def does(request: dict[str, Any], tell: Callable[[str], None]) -> dict[str, Any]:
    what = request.get("what", "hang")
    tell(f"{what} in {os.getpid()}")
    if what == "hang":
        threading.Event().wait()
    elif what == "die":
        os._exit(9)
    elif what == "refuse":
        raise TokonomicsError("no", where="--x", fix="yes")
    elif what == "exhaust":
        raise MemoryError
    elif what == "overreach":
        import polars

        polars.repeat(0, 10**15, eager=True)  # 8 PB: Rust ends the process where an allocation fails
    elif what.startswith("keep"):
        _KEPT.append(bytearray(350_000_000 if what == "keep most" else 10_000_000))
    elif what == "break":
        raise RuntimeError("inside")
    secrets = ("TOKONOMICS_TOKEN", "HF_TOKEN", "HF_TOKEN_PATH")
    return {"pid": os.getpid(), "secrets": [name for name in secrets if name in os.environ]}


def begin_badly(folder: str, niceness: int) -> Callable[..., dict[str, Any]]:
    os._exit(3)
