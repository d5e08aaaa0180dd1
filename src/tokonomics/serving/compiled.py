"""``@compiled`` and ``@entry``: machine code for the simulator's loop, kept on disk between runs (``machine_code``)."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

from tokonomics import machine_code

_njit: Any = numba.njit

Function = TypeVar("Function", bound=Callable[..., object])


wide = cast(Callable[[int], int], np.int64)
"""An integer of 64 bits: the compiler keeps the width it is given, and compiles a function anew for every other one."""


def entry(function: Function) -> Function:
    """Compile a function that Python calls, at its first call; or load what an earlier run compiled."""
    return machine_code.kept(function, code_folder(), _nrt=False)


def compiled(function: Function) -> Function:
    """Compile a function that only compiled ones call: without the part that reads Python's objects."""
    return machine_code.kept(function, code_folder(), _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined(function: Function) -> Function:
    """Compile a function as a part of the compiled ones that call it: cheaper for small ones, and those called once."""
    return cast(Function, _njit(inline="always", _nrt=False)(function))


def must_compile() -> bool:
    """Nothing whole has been compiled from today's sources on this machine: the first run will take a while."""
    folder = code_folder()
    return folder is None or not machine_code.is_whole(folder)


@cache
def code_folder() -> Path | None:
    """Where code made from today's sources is kept; None where nothing can be written."""
    return machine_code.code_folder("compiled", sorted(Path(__file__).parent.glob("*.py")))
