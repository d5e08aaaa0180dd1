"""Read a file in batches of rows within bounded memory: CSV, JSON lines, JSON or parquet; plain, gzip or zstd.

Polars streams, decompresses and parses. A batch holds the fields of a layout as they were written (text, or the type
of the parquet column) and the place of each row in the file. JSON lines are parsed a batch at a time; only a batch in
which a line does not parse is gone through line by line, to find which.
"""

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic import formats
from tokonomics.traffic.formats import FIELDS, LogLayout

if TYPE_CHECKING:
    import polars as pl

BATCH_ROWS = 200_000
BATCH_LINES = 50_000
BLOCK_BYTES = 8_000_000  # of a table of text that is cut between lines
SLICE_ROWS = 1_000_000
"""Rows of a parquet file read at once: given the whole, polars decodes far ahead of its reader (its issue 28569; 40
million rows took 840 MB, in slices 150)."""
BATCH_BYTES = 32_000_000  # of JSON lines: one may be long (a whole conversation, ids of a thousand blocks)
BATCH_LISTS = 1_000  # rows that are made one by one and may list thousands of blocks each
HEAD_LINES = 500
LARGEST_DOCUMENT = 1_000_000_000  # bytes of a JSON document, which is read whole (JSON lines have no limit)
UNPACKED_BYTES, UNPACKED_TIMES = 64_000_000, 50
"""Bytes that a packed file may unpack into if all or one line must be held; a log shrinks to a tenth, a bomb more.

JSON, once parsed, takes up to 25 times its text (measured on empty lists): a small file takes 1.6 GB at the most.
"""
ROW = "row"
_INDEX = "\x01row"  # the same for a table, whose own columns may include one called row
BESIDE = "\x02"  # prefix of a column that is no field of a request
MOST_ROWS: ContextVar[int | None] = ContextVar("most_rows", default=None)
"""The most rows to read of an untrusted file, since a small one can unpack into billions; None: no limit."""
PARQUET = b"PAR1"  # how such a file begins
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # how gzip (RFC 1952) and zstd (RFC 8878) begin
_DAMAGED = "It is damaged or not whole: copy or export it anew, or write it as CSV or JSON lines."
_UNREADABLE = (OSError, EOFError, UnicodeError, zlib.error)  # errors of disks and unpackers


class TooManyRows(BadInput):
    """The file has more than ``MOST_ROWS`` rows."""


def check_rows(rows: int, path: Path, *, is_total: bool = False) -> None:
    """Refuse a file with more rows than may be read; ``is_total``: the number is the total, not the rows so far."""
    most = MOST_ROWS.get()
    if most is not None and rows > most:
        counted = f"{rows:,}" if is_total else f"more than {most:,}"
        fix = "Use the command line for larger files."
        raise TooManyRows(f"has {counted} rows; {most:,} are read here", where=named(path), fix=fix)


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as opened:
        return opened.read(4)


def is_packed(path: Path) -> bool:
    """Return whether a file is gzip or zstd, by its first bytes."""
    with readable(path):
        return _first_bytes(path).startswith(_PACKED)


def most_unpacked(packed_bytes: int) -> int:
    """Return the bytes that a packed file of that size may unpack into if they are held at once."""
    return max(UNPACKED_BYTES, UNPACKED_TIMES * packed_bytes)


def refuse_bomb(path: Path) -> None:
    """Refuse a gzip file with a line of absurd length: it is no log, and memory may not hold it.

    Every line of an untrusted file is checked, but only the first of the user's own.
    """
    with readable(path), path.open("rb") as opened:
        if opened.read(2) != _PACKED[0]:
            return
        most, length = most_unpacked(path.stat().st_size), 0
        with gzip.open(path) as unpacked:
            while piece := unpacked.read(1 << 20):
                before, newline, after = piece.rpartition(b"\n")
                if newline and MOST_ROWS.get() is None:
                    return
                if length + len(before.partition(b"\n")[0] if newline else after) > most:
                    raise BadInput("unpacks to a line without end", where=named(path), fix="It is no log of requests.")
                length = len(after) + (0 if newline else length)


def _counted(
    path: Path, table: "pl.LazyFrame", chunk: int, rows: int = 0, known: int | None = None
) -> "Iterator[pl.DataFrame]":
    """Yield the batches of a table, after ``rows`` rows that were read before; ``known`` is the expected total.

    When a thread of polars panics on a damaged file, the batches may simply end early.
    """
    for batch in table.collect_batches(chunk_size=chunk, maintain_order=True, lazy=True):
        rows += len(batch)
        check_rows(rows, path)
        yield batch
    if known is not None and rows < known:
        said = f"cannot be read: it is damaged after row {rows:,} of {known:,}"
        raise BadInput(said, where=named(path), fix=_DAMAGED)


def named(path: Path | str) -> str:
    """Return a file's name for a message: printable and of bounded length."""
    return shorten(str(path), 200)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn any error of the parser or the disk into one message."""
    import polars as pl

    from tokonomics.traffic.cleaning import without_panics

    try:
        with without_panics() if _first_bytes(path) == PARQUET else nullcontext():
            yield
    except (*_UNREADABLE, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        told = not isinstance(error, pl.exceptions.PolarsError | pl.exceptions.PanicException)  # of its own parts
        said = shorten(" ".join(str(error).split()) or type(error).__name__, 160) if told else "it is no whole table"
        fix = None if getattr(error, "errno", None) else _DAMAGED  # only errors of the disk have a number
        raise BadInput(f"cannot be read: {said}", where=named(path), fix=fix) from None


def _scan(path: Path | io.BytesIO, separator: str | None, rows: int = 0, **lines: Any) -> "pl.LazyFrame":
    """Scan a table of text with a separator, otherwise of parquet; its first column is the place of each row.

    Places are lines, where the header is line 1, or rows. A quoted field that spans lines counts as one.
    """
    import polars as pl

    if separator is None:
        return pl.scan_parquet(path, row_index_name=_INDEX, row_index_offset=rows + 1, glob=False)
    options: dict[str, Any] = {"row_index_name": _INDEX, "row_index_offset": rows + 2, "separator": separator} | lines
    options |= {"infer_schema": False, "truncate_ragged_lines": True, "encoding": "utf8-lossy", "glob": False}
    return pl.scan_csv(path, **options)


def _lines(path: Path) -> "pl.LazyFrame":
    """Scan a file as one row per line. A separator that JSON may not contain unescaped keeps each line whole."""
    plain: dict[str, Any] = {"has_header": False, "new_columns": ["line"], "quote_char": None, "raise_if_empty": False}
    return _scan(path, "\x01", row_index_name=ROW, row_index_offset=1, **plain)


def _filled_lines(path: Path, chunk: int = BATCH_LINES) -> "Iterator[pl.DataFrame]":
    """Yield the lines that are not blank, with their numbers, in batches."""
    import polars as pl

    with readable(path):
        for batch in _counted(path, _lines(path), chunk):
            yield batch.filter(pl.col("line").is_not_null() & (pl.col("line").str.strip_chars() != ""))


def head(path: Path) -> list[str]:
    """Return the first lines that are not blank."""
    with readable(path):
        table = _lines(path).head(HEAD_LINES).collect()
    lines: Iterable[str | None] = table["line"] if "line" in table.columns else []
    return [line for line in lines if line and line.strip()]


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every line that is not blank, with its number."""
    for batch in _filled_lines(path, _lines_at_once(path)):
        yield from batch.select(ROW, "line").iter_rows()


def _lines_at_once(path: Path) -> int:
    """Return how many lines fit into a batch, by the length of the first."""
    first = head(path)
    return min(BATCH_LINES, BATCH_BYTES // (sum(map(len, first)) // max(len(first), 1) + 1) + 1)


def held_lines(path: Path) -> list[str]:
    """Return every line that is not blank, of a file small enough to be held in memory."""
    size, most, lines = 0, LARGEST_DOCUMENT, list[str]()
    if is_packed(path):
        most = min(most, most_unpacked(path.stat().st_size))
    for batch in _filled_lines(path):
        size += int(batch["line"].str.len_bytes().sum())
        if size > most:
            what = f"a JSON document of more than {most / 1e6:,.0f} MB"
            raise BadInput(what, where=named(path), fix="Write it as JSON lines.")
        lines.extend(batch["line"])
    return lines


def document(path: Path) -> Any:
    """Return a whole JSON document; None if the file is not one."""
    value = load("\n".join(held_lines(path)))
    return None if isinstance(value, Unusable) else value


@dataclass(frozen=True)
class TableFile:
    """A table of text if there is a separator, otherwise of parquet."""

    path: Path
    separator: str | None = None

    def schema(self) -> "dict[str, pl.DataType]":
        """Return its columns and their types."""
        with readable(self.path):
            if MOST_ROWS.get() is not None:
                check_rows(self._length() or 0, self.path, is_total=True)
            return dict(list(_scan(self.path, self.separator).collect_schema().items())[1:])

    def first_rows(self, rows: int) -> list[dict[str, Any]]:
        with readable(self.path):
            return _scan(self.path, self.separator).head(rows).collect().drop(_INDEX).to_dicts()

    def rows(self, without: Collection[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the rows as objects with their places, without some columns."""
        with readable(self.path):
            table = _scan(self.path, self.separator)
            names = [name for name in table.collect_schema().names() if name not in without]
            for batch in _counted(self.path, table.select(names), BATCH_LINES, known=self._length()):
                for item in batch.iter_rows(named=True):
                    yield item.pop(_INDEX), item

    def batches(self, layout: LogLayout, beside: Collection[str] = ()) -> "Iterator[pl.DataFrame]":
        """Yield the fields of requests; ``beside`` are extra columns, marked with ``BESIDE``."""
        with readable(self.path):
            table = _scan(self.path, self.separator)
            fields = _fields(table.collect_schema(), layout, beside)
            if self.separator is not None and _has_a_row_a_line(self.path):
                yield from self._blocks(fields, self.separator)
            elif self.separator is not None:
                yield from _counted(self.path, table.select(fields), BATCH_ROWS)
            else:
                rows = self._length() or 0
                for start in range(0, max(rows, 1), SLICE_ROWS):
                    part = table.slice(start, SLICE_ROWS).select(fields)
                    yield from _counted(self.path, part, BATCH_ROWS, start, min(start + SLICE_ROWS, rows))

    def _blocks(self, fields: "list[pl.Expr]", separator: str) -> "Iterator[pl.DataFrame]":
        """Read a block of lines at a time, because polars reads far ahead in a file that it opens itself."""
        rows = 0
        with self.path.open("rb") as opened:
            header = opened.readline()
            while block := opened.read(BLOCK_BYTES):
                lines = io.BytesIO(header + block + opened.readline())
                batch = _scan(lines, separator, rows).select(fields).collect()
                rows += len(batch)
                check_rows(rows, self.path)
                yield batch

    def _length(self) -> int | None:
        """Return the number of rows that a parquet file says it has."""
        import polars as pl

        return None if self.separator else int(_scan(self.path, None).select(pl.len()).collect().item())

    def block_tokens(self) -> int | None:
        """Return the size of a block, which our own parquet files state."""
        import polars as pl

        with readable(self.path):
            return formats.block_tokens_of(pl.read_parquet_metadata(self.path).get("block_tokens", ""))


def _has_a_row_a_line(path: Path) -> bool:
    """Return whether a table can be cut between any two lines: not packed, its header first, and nothing quoted."""
    with path.open("rb") as opened:
        header = opened.readline(BLOCK_BYTES)
        if header.startswith(_PACKED) or not header.strip():
            return False
        return b'"' not in header and not any(b'"' in block for block in iter(lambda: opened.read(BLOCK_BYTES), b""))


def _fields(schema: "Mapping[str, pl.DataType]", layout: LogLayout, beside: Collection[str]) -> "list[pl.Expr]":
    """Return the place of a row, the fields of its request, and the extra columns."""
    import polars as pl

    named_fields = [(field, name) for field in FIELDS for (name,) in layout.paths(field)]
    fields = [_native(pl.col(name), schema[name], field, layout).alias(field) for field, name in named_fields]
    return [pl.col(_INDEX).alias(ROW), *fields, *(pl.col(name).alias(f"{BESIDE}{name}") for name in beside)]


def _native(column: "pl.Expr", dtype: "pl.DataType", field: str, layout: LogLayout) -> "pl.Expr":
    """Cast names and keys to text, and block ids to 64-bit numbers."""
    import polars as pl

    if field == "parent" and dtype.is_nested():
        return column.cast(pl.List(pl.String)).list.join(" ")
    if field in ("tenant", "session", "request", "parent") or (field == "prefix" and layout.prefix_is_key):
        return column.cast(pl.String)
    if field != "prefix":
        return column
    inner = getattr(dtype, "inner", pl.Null())
    if inner.is_integer() and inner != pl.UInt64:
        return column.cast(pl.List(pl.Int64))
    hashed = pl.when(pl.element().is_not_null()).then(pl.element().hash(0))
    return column.cast(pl.List(inner)).list.eval(hashed.reinterpret(signed=True))


def line_batches(path: Path, layout: LogLayout) -> "Iterator[pl.DataFrame]":
    """Yield the fields of JSON lines, in batches; blank lines are no rows."""
    for batch in _filled_lines(path, _lines_at_once(path)):
        if len(batch):
            yield _parsed(batch, layout)


def _parsed(batch: "pl.DataFrame", layout: LogLayout) -> "pl.DataFrame":
    """Return the fields of a batch of lines, parsed all at once if each line is as expected."""
    import polars as pl

    from tokonomics.traffic.cleaning import without_panics

    text = batch["line"].str.join("\n").item().encode()
    try:
        with without_panics():
            parsed = pl.read_ndjson(text, schema=_schema(layout))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        parsed = None
    if parsed is None or len(parsed) != len(batch):
        return objects_frame(((place, load(line)) for place, line in batch.select(ROW, "line").iter_rows()), layout)

    def at(path: formats.FieldPath) -> pl.Expr:
        return reduce(lambda column, key: column.struct.field(key), path[1:], pl.col(path[0]))

    known = [field for field in FIELDS if layout.paths(field)]
    return parsed.select(batch[ROW], **{field: pl.coalesce(map(at, layout.paths(field))) for field in known})


class Unusable(str):
    """Why a line, or a request in it, cannot be used."""


def load(line: str) -> Any:
    """Return the value of a line of JSON, or what is wrong with it."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return Unusable(f"not JSON ({shorten(str(error), 60)}): {shorten(line, 40)}")


def _schema(layout: LogLayout) -> "dict[str, pl.DataType]":
    """Return the types of the places that a layout knows, nested as in the lines: text, except for lists of ids."""
    import polars as pl

    tree: dict[str, Any] = {}
    for field in FIELDS:
        ids = field == "prefix" and not layout.prefix_is_key
        for path in layout.paths(field):
            here = tree
            for key in path[:-1]:
                here = here.setdefault(key, {})
            here[path[-1]] = pl.List(pl.Int64) if ids else pl.String()

    def typed(node: Any) -> Any:
        return pl.Struct({key: typed(value) for key, value in node.items()}) if isinstance(node, dict) else node

    return {key: typed(value) for key, value in tree.items()}


def objects_frame(items: Iterable[tuple[int, Any]], layout: LogLayout) -> "pl.DataFrame":
    """Return the fields of objects, read one by one: slower than all at once, but it accepts anything."""
    import polars as pl

    fields = [field for field in FIELDS if layout.paths(field)]
    columns: dict[str, list[Any]] = {name: [] for name in (ROW, "trouble", *fields)}
    for place, item in items:
        trouble = str(item) if isinstance(item, Unusable) else None if isinstance(item, dict) else "not a JSON object"
        columns[ROW].append(place)
        for field in fields:
            value = value_at(item, layout.paths(field)) if trouble is None else None
            if field == "prefix" and not layout.prefix_is_key:
                try:
                    columns[field].append(_ids(value))
                except ValueError:
                    columns[field].append(None)
                    trouble = f"{layout.label(field)} is {shorten(json.dumps(value), 40)}, not a list of ids"
            else:
                columns[field].append(_text(value))
        columns["trouble"].append(trouble)
    types: dict[str, pl.DataType] = {name: pl.String() for name in columns} | {ROW: pl.UInt32()}
    if "prefix" in fields and not layout.prefix_is_key:
        types["prefix"] = pl.List(pl.Int64)
    return pl.DataFrame(columns, schema=types)


def value_at(item: dict[str, Any], paths: tuple[formats.FieldPath, ...]) -> Any:
    """Return the value at the first of the places that holds one."""
    for path in paths:
        value: Any = item
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None:
            return value
    return None


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None:
        return None
    # Cells of parquet may be dates and decimals.
    return json.dumps(value) if isinstance(value, bool | float | list | dict) else str(value)


def _ids(value: Any) -> list[int | None] | None:
    """Return ids of blocks as 64-bit numbers; text and larger numbers are hashed."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise ValueError
    numbers: list[int | None] = []
    for block in value:
        if isinstance(block, bool) or not isinstance(block, int | str | None):
            raise ValueError
        if block is None or (isinstance(block, int) and -(2**63) <= block < 2**63):
            numbers.append(block)
        else:
            digest = hashlib.blake2b(str(block).encode("utf-8", "replace"), digest_size=8).digest()
            numbers.append(int.from_bytes(digest, "little", signed=True))
    return numbers
