"""Read tables in the user's memory in place of a log or a price list: frames, columns by name, a ``Trace``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, shorten
from tokonomics.questions.request import SILENT, Listener

if TYPE_CHECKING:
    import polars as pl

    from tokonomics.catalog.offers import Offer
    from tokonomics.traffic.readers import TraceFile
    from tokonomics.traffic.trace import Trace


def prices_in(value: Any) -> "tuple[Offer, ...]":
    """Return the offers of a price list, by name or in memory; the shipped ones if there is none."""
    from tokonomics.catalog.offers import load_offers, parse_offers

    if value is None or isinstance(value, str):
        return load_offers(None if value is None else Path(value))
    return parse_offers(_polars(value, "offers").write_csv(), "offers")


def say_columns(file: "TraceFile", listener: Listener) -> None:
    """Say which columns were taken for what, if the user did not."""
    from tokonomics.traffic.formats import USUAL

    if file.log.layout.name == USUAL:
        listener.note(f"{shorten(file.path.name)}: {file.log.layout.note}")


def trace_in(
    value: Any, columns: str | None, strict: bool, listener: Listener = SILENT, by: Sequence[str] = ()
) -> "Trace":
    """Return the requests of a table in memory."""
    from tokonomics.traffic.readers import open_trace
    from tokonomics.traffic.trace import Trace

    if isinstance(value, Trace):
        if by:
            raise BadInput("is for a log or a table, not for requests in memory", field="by")
        return value
    # Log readers recognise a file by its content; parquet keeps the types of the columns.
    with TemporaryDirectory(prefix="tokonomics-") as folder:
        path = Path(folder) / "trace.parquet"
        _polars(value, "trace").write_parquet(path)
        try:
            opened = open_trace(str(path), columns=columns, strict=strict, by=by)
            say_columns(opened, listener)
            return opened.read()
        except BadInput as error:
            error.where = error.where and error.where.replace(str(path), path.name)
            raise


def _polars(value: Any, field: str) -> "pl.DataFrame":
    import polars as pl

    if isinstance(value, pl.DataFrame):
        return value
    if isinstance(value, pl.LazyFrame):
        return value.collect()
    try:
        if isinstance(value, Mapping):
            return pl.DataFrame(dict(value))
        return pl.DataFrame({str(name): value[name].tolist() for name in value.columns})
    except (AttributeError, TypeError, ValueError, pl.exceptions.PolarsError):
        raise BadInput(
            f"a {type(value).__name__} is no table",
            field=field,
            fix="Give a file, a frame (polars, pandas), or columns by name: {'arrival_s': […], 'input_tokens': …}.",
        ) from None
