"""``@compiled`` and ``@entry``: machine code for the simulator's loop, made and kept by ``machine_code``."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import cast

import numpy as np

from tokonomics.machine_code import Unit

_SOURCES = (
    "compiled", "blocks", "loop", "routing", "scheduler", "sends", "sequences", "state", "step_table",
)  # fmt: skip


def _examples() -> Mapping[str, tuple[object, ...]]:
    # By name: it imports what is compiled here.
    return cast(Mapping[str, tuple[object, ...]], import_module("tokonomics.serving.example").arguments())


SIMULATOR = Unit("compiled", [Path(__file__).with_name(f"{name}.py") for name in _SOURCES], _examples)
entry, compiled = SIMULATOR.entry, SIMULATOR.compiled

wide = cast(Callable[[int], int], np.int64)
"""An integer of 64 bits: the compiler keeps the width it is given, and compiles a function anew for every other one."""


def must_compile() -> bool:
    """Nothing whole has been compiled from today's sources on this machine: the first run will take a while."""
    return SIMULATOR.must_compile


def must_translate() -> bool:
    """No code was shipped that can be compiled here either."""
    return SIMULATOR.must_translate


def code_folder() -> Path | None:
    """Where code made from today's sources is kept; None where nothing can be written."""
    return SIMULATOR.folder
