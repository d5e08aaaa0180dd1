"""``@compiled`` and ``@entry``: machine code for the simulator's loop, kept on disk between runs.

Numba keeps what it compiled beside the source and notices when that file changes, but not when a function it calls,
in another file, does. So the code is kept under a name made of all these sources and of the versions that compile
them: a changed line anywhere means a fresh start, and a read-only installation can keep its code too.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np

_KEPT_S = 30 * 86_400

_njit: Any = numba.njit
_config: Any = numba.config

Function = TypeVar("Function", bound=Callable[..., object])


wide = cast(Callable[[int], int], np.int64)
"""An integer of 64 bits: the compiler keeps the width it is given, and compiles a function anew for every other one."""


def entry(function: Function) -> Function:
    """Compile a function that Python calls, at its first call; or load what an earlier run compiled."""
    return _kept(function, {"_nrt": False})


def compiled(function: Function) -> Function:
    """Compile a function that only compiled ones call: without the part that reads Python's objects."""
    return _kept(function, {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True})


def inlined(function: Function) -> Function:
    """Compile a function as a part of the compiled ones that call it: cheaper for small ones, and those called once."""
    return cast(Function, _njit(inline="always", _nrt=False)(function))


def must_compile() -> bool:
    """Nothing has been compiled from today's sources on this machine: the first run will take a while."""
    folder = code_folder()
    return folder is None or not any(folder.rglob("*.nbi"))


def _kept(function: Function, options: dict[str, bool]) -> Function:
    folder = code_folder()
    if folder is None:
        return cast(Function, _njit(**options)(function))
    before = _config.CACHE_DIR
    try:
        _config.CACHE_DIR = str(folder)
        return cast(Function, _njit(cache=True, **options)(function))
    finally:
        _config.CACHE_DIR = before


@cache
def code_folder() -> Path | None:
    """Where code made from today's sources is kept; None where nothing can be written."""
    text = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {np.__version__}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        text.update(source.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME")
    name = Path("tokonomics") / f"compiled-{text.hexdigest()[:16]}"
    try:
        folder = (Path(home) if home else Path.home() / ".cache") / name
        if folder.exists():
            os.utime(folder)  # somebody runs it
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _forget_others(folder)
    except (OSError, RuntimeError):  # nobody's home, or not to be written to
        return None
    return folder if os.access(folder, os.W_OK) else None


def _forget_others(folder: Path) -> None:
    """Remove code of sources that nobody has run for a month."""
    for other in folder.parent.glob("compiled-*"):
        with suppress(FileNotFoundError):  # another process was quicker
            if time.time() - other.stat().st_mtime > _KEPT_S:
                shutil.rmtree(other, ignore_errors=True)
