"""Tables a user holds in memory, as files that the readers of logs and price lists take: one way in for all of them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tokonomics.errors import BadInput
from tokonomics.traffic.trace import Trace

if TYPE_CHECKING:
    import polars as pl


class Frame(Protocol):
    """A table by columns: polars, pandas, pyarrow's after ``to_pandas``."""

    @property
    def columns(self) -> Any: ...

    def __getitem__(self, name: Any, /) -> Any: ...


Requests = str | Path | Trace | Frame | Mapping[str, Sequence[object]]
"""A log, a shipped sample, a ``Trace``, or columns such as ``arrival_s``, ``input_tokens``, ``output_tokens``."""
Prices = str | Path | Frame | Mapping[str, Sequence[object]]
"""A price list: a CSV file, or its columns."""


def as_file(value: object, name: str, folder: Path) -> Path:
    """The table saved there: prices as CSV, requests as parquet."""
    if name == "offers":
        path = folder / "offers.csv"
        _polars(value, name).write_csv(path)
        return path
    path = folder / "trace.parquet"
    if isinstance(value, Trace):
        from tokonomics.traffic.save import save_trace

        save_trace(value, path)
    else:
        _polars(value, name).write_parquet(path)
    return path


def _polars(value: object, name: str) -> "pl.DataFrame":
    import polars as pl

    if isinstance(value, pl.DataFrame):
        return value
    if isinstance(value, pl.LazyFrame):
        return value.collect()
    columns: Any = value
    try:
        if isinstance(value, Mapping):
            return pl.DataFrame(dict(value))
        return pl.DataFrame({str(each): columns[each].tolist() for each in columns.columns})
    except (AttributeError, TypeError, ValueError, pl.exceptions.PolarsError):
        raise BadInput(
            f"a {type(value).__name__} is no table",
            where=name,
            fix="Give a file, a frame (polars, pandas), or columns by name: {'arrival_s': […], 'input_tokens': …}.",
        ) from None
