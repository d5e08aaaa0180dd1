"""Writes a trace as parquet that ``open_trace`` reads back the same: whole or not at all."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tokonomics.errors import option, shorten
from tokonomics.files import check_path, whole
from tokonomics.traffic.formats import OWN
from tokonomics.traffic.trace import PrefixBlocks, Trace

if TYPE_CHECKING:
    import polars as pl


def check_save_path(path: Path) -> None:
    """Refuse a name or folder that cannot be written, before any work is done."""
    check_path(path, "save", (".parquet",))


def trace_frame(trace: Trace) -> "pl.DataFrame":
    """One row a request; the names are those of our own layout."""
    import polars as pl

    columns = {
        OWN.arrival[0][0]: pl.Series(trace.arrival_s),
        OWN.input[0][0]: pl.Series(trace.input_tokens),
        OWN.output[0][0]: pl.Series(trace.output_tokens),
    }
    if trace.tenant is not None:
        columns[OWN.tenant[0][0]] = pl.Series(trace.tenants, dtype=pl.String)[trace.tenant]
    if trace.priority is not None:
        columns[OWN.priority[0][0]] = pl.Series(trace.priority)
    if trace.patience_s is not None:
        endless = np.isinf(trace.patience_s)
        columns[OWN.patience[0][0]] = pl.Series(np.where(endless, np.nan, trace.patience_s)).fill_nan(None)
    if trace.prefix is not None:
        columns[OWN.prefix[0][0]] = _lists(trace.prefix)
    return pl.DataFrame(columns)


def save_trace(trace: Trace, path: Path) -> None:
    """The frame of a trace; the size of a block is in the file's metadata."""
    check_save_path(path)
    metadata = {} if trace.prefix is None else {"block_tokens": str(trace.prefix.block_tokens)}
    with whole(path, option("save", shorten(path.name))) as unfinished:
        trace_frame(trace).write_parquet(unfinished, metadata=metadata)


def _lists(prefix: PrefixBlocks) -> "pl.Series":
    """The blocks of each request as one list; empty where it names none."""
    import polars as pl

    requests = np.arange(len(prefix.starts) - 1)
    flat = pl.DataFrame({"request": np.repeat(requests, np.diff(prefix.starts)), "ids": prefix.ids})
    listed = flat.with_columns(pl.col("request").set_sorted()).group_by("request", maintain_order=True).agg("ids")
    every = pl.DataFrame({"request": requests}).join(listed, on="request", how="left", maintain_order="left")
    return every["ids"].fill_null(pl.lit([], dtype=pl.List(pl.Int32)))
