"""Mark functions with ``@compiled`` and ``@entry`` to run as machine code, which ``machine_code`` makes and keeps."""

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
    # By name, as it imports what is compiled here.
    return cast(Mapping[str, tuple[object, ...]], import_module("tokonomics.serving.example").arguments())


SIMULATOR = Unit("compiled", [Path(__file__).with_name(f"{name}.py") for name in _SOURCES], _examples)
entry, compiled = SIMULATOR.entry, SIMULATOR.compiled

wide = cast(Callable[[int], int], np.int64)
"""An integer of 64 bits: the compiler keeps the given width, and compiles a function again for every other one."""


def must_compile() -> bool:
    """Tell whether today's sources are not yet compiled on this machine: the first run then takes a while."""
    return SIMULATOR.must_compile


def must_translate() -> bool:
    """Tell whether no usable code was shipped either."""
    return SIMULATOR.must_translate


def code_folder() -> Path | None:
    """Return the folder that keeps code made from today's sources; None if nothing can be written."""
    return SIMULATOR.folder
