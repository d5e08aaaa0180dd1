"""Writes a trace as parquet that ``open_trace`` reads back the same: whole or not at all."""

from pathlib import Path

from tokonomics.errors import option, shorten
from tokonomics.files import check_path, whole
from tokonomics.traffic.trace import Trace


def check_save_path(path: Path) -> None:
    """Refuse a name or folder that cannot be written, before any work is done."""
    check_path(path, "save", (".parquet",))


def save_trace(trace: Trace, path: Path) -> None:
    """Write the frame of a trace; the size of a block is in the file's metadata."""
    check_save_path(path)
    metadata = {} if trace.prefix is None else {"block_tokens": str(trace.prefix.block_tokens)}
    with whole(path, option("save", shorten(path.name))) as unfinished:
        trace.to_frame().write_parquet(unfinished, metadata=metadata)
