"""Writes the types of ``import tokonomics`` from the requests: python docs/library_stub.py"""

from pathlib import Path

import tokonomics
from tokonomics.library import LISTS, annotation, function
from tokonomics.questions.request import Place

STUB = Path(__file__).parents[1] / "src" / "tokonomics" / "__init__.pyi"
HEAD = '''"""Written by docs/library_stub.py from the requests: what type checkers and editors see."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from tokonomics.errors import TokonomicsError as TokonomicsError
from tokonomics.questions.results import (
    BreakevenResult,
    CapacityResult,
    CurveResult,
    FitResult,
    FleetResult,
    LeversResult,
    PlanResult,
    PredictResult,
    SimulateResult,
    TraceResult,
)
from tokonomics.traffic.trace import Trace

__version__: str
__all__: list[str]

class _Frame(Protocol):
    @property
    def columns(self) -> Any: ...
    def __getitem__(self, name: Any, /) -> Any: ...

Words = str | float | Path | Sequence[str | float] | Mapping[str, float | str]
Requests = str | Path | Trace | _Frame | Mapping[str, Sequence[object]]
Prices = str | Path | _Frame | Mapping[str, Sequence[object]]
'''


def stub() -> str:
    """The whole file."""
    return HEAD + "".join(_function(name) for name in tokonomics.__all__ if name != "TokonomicsError")


def _function(name: str) -> str:
    called = function(name)
    placed: list[str] = []
    flagged: list[str] = []
    for argument in called.arguments.values():
        default = "" if argument.required else f" = {_literal(argument.default)}"
        line = f"    {argument.name}: {annotation(argument)}{default},\n"
        (flagged if argument.place is Place.FLAG else placed).append(line)
    result = f"{name.capitalize()}Result"
    result = "pl.DataFrame" if name in LISTS else "Trace" if name == "read_trace" else result
    return f"\ndef {name}(\n{''.join(placed)}    *,\n{''.join(flagged)}) -> {result}: ...\n"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
