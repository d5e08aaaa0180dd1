"""The types of ``import tokonomics``, from the requests: python docs/library_stub.py writes them, as does make outputs."""

from pathlib import Path

import tokonomics
from tokonomics.library import annotation, function
from tokonomics.questions.request import Placement

STUB = Path(__file__).parents[1] / "src" / "tokonomics" / "__init__.pyi"
HEAD = '''"""Written by docs/library_stub.py from the requests: what type checkers and editors see."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from tokonomics.errors import TokonomicsError as TokonomicsError
from tokonomics.questions.breakeven import BreakevenResult
from tokonomics.questions.can_run import CanRunResult
from tokonomics.questions.fleet import FleetResult
from tokonomics.questions.levers import LeversResult
from tokonomics.questions.predict import CurveResult, FitResult, PredictResult
from tokonomics.questions.results import PlanResult
from tokonomics.questions.simulate import CapacityResult, SimulateResult
from tokonomics.questions.traffic import TraceResult
from tokonomics.traffic.trace import Trace

__version__: str
__all__ = [
{names}]

class _Frame(Protocol):
    @property
    def columns(self) -> Any: ...
    def __getitem__(self, name: Any, /) -> Any: ...

Words = str | float | Path | Sequence[str | float] | Mapping[str, float | str]
Tables = str | Mapping[str, object] | Sequence[str | Mapping[str, object]]
Requests = str | Path | Trace | _Frame | Mapping[str, Sequence[object]]
Prices = str | Path | _Frame | Mapping[str, Sequence[object]]
'''


def stub() -> str:
    """The whole file."""
    names = "".join(f'    "{name}",\n' for name in tokonomics.__all__)
    functions = (_function(name) for name in tokonomics.__all__ if name != "TokonomicsError")
    return "\n".join([HEAD.replace("{names}", names), "".join(functions)])


def _function(name: str) -> str:
    called = function(name)
    placed: list[str] = []
    flagged: list[str] = []
    for argument in called.arguments.values():
        default = "" if argument.required else f" = {_literal(argument.default)}"
        line = f"    {argument.name}: {annotation(argument)}{default},\n"
        (flagged if argument.place is Placement.FLAG else placed).append(line)
    return f"def {name}(\n{''.join(placed)}    *,\n{''.join(flagged)}) -> {called.returns}: ...\n"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
