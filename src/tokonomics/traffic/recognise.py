"""Recognise which kind of log a file is, from its first bytes, header or keys, and decide how to read it.

The order is: parquet by its magic number, an engine's log by its lines, JSON by its first character, everything else as
a table with a header. What tools export is unfolded first (``exports``). Where the user asks for labels
(``attribution``), rows are read one by one. A table is read in batches: of rows that are alike in the columns that hold
labels, only one is looked at, since millions of rows have few different ones. Other JSON documents are results of load
generators.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokonomics.errors import BadInput, nearest, option, shorten
from tokonomics.traffic import formats, sources
from tokonomics.traffic.attribution import Attribution, Unfolding, row, tenant_in
from tokonomics.traffic.engine_lines import (
    engine_layout,
    engine_of,
    engine_rows,
    is_result,
    looks_like_an_engine,
    requests_of,
)
from tokonomics.traffic.exports import BULKY, Export, export_of, opened
from tokonomics.traffic.formats import OWN, SUPPORTED, TRACES, LogLayout, paths_in, spelling, usual_name
from tokonomics.traffic.sources import BESIDE, TableFile, named

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = ",\t;|"
SERVEGEN_COLUMNS = {"model", "client", "t_s", "rate_rps"}
_BEFORE_A_REQUEST = 50_000  # lines in which an engine that has started must have logged one
_BY = (("\x01by",),)  # the key of the tenant found by labels, beside the keys of a row
_NO_TOKENS = ("0", "")
_REMEMBERED = 200_000  # answers about rows that are alike

Rows = Callable[[], Iterator[tuple[int, Any]]]  # the rows of a log with their places, from the beginning
Batches = Callable[[], Iterator["pl.DataFrame"]]


@dataclass(frozen=True)
class Log:
    """A recognised file: the names of its fields, and how to read its rows."""

    layout: LogLayout
    raw: Batches
    place: str  # what the number of a row counts: line, row, request
    notes: tuple[str, ...] = ()
    unfolding: Unfolding | None = None  # what was left out and attributed, after a pass over the rows


class DescribesClients(BadInput):
    """The file describes clients and is no log; callers that take both draw requests with ``servegen_trace``."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "ServeGen describes clients, it is not a log of requests",
            where=where,
            fix=f"Draw requests from it: tokonomics trace {where} {option('start', '10h')} {option('end', '11h')} "
            f"{option('save', 'drawn.parquet')}",
        )


def recognise(file: Path, columns: str | None, by: tuple[str, ...] = ()) -> Log:
    """Return the log that a file holds; if it is no known one, refuse it and say what was found."""
    asked = _LogFile(file, columns, Attribution(by) if by else None)
    if columns is None and (folder := asked.folder()):
        return folder
    if first_bytes(file).startswith(sources.PARQUET):
        return asked.table(TableFile(file))
    lines = text_lines(file)
    engine = engine_of(lines) if columns is None else None
    if columns is None and engine is None and looks_like_an_engine(lines):
        engine = engine_of(line for _, line in islice(sources.numbered_lines(file), _BEFORE_A_REQUEST))
    if engine:
        unfolding, layout = Unfolding(asked.by), engine_layout(engine, asked.by)
        return asked.one_by_one(layout, lambda: engine_rows(sources.numbered_lines(file), unfolding), "line", unfolding)
    if lines[0].lstrip()[0] in "{[":
        return _json(asked, lines)
    return asked.table(TableFile(file, separator_of(lines)))


def text_lines(file: Path) -> list[str]:
    """Return the first lines of a text file."""
    sources.refuse_bomb(file)
    lines = sources.head(file)
    if not lines:
        raise BadInput("is empty", where=named(file))
    seen = "".join(line[:1000] for line in lines[:20])
    odd = sum(char == "\ufffd" or (char < " " and char not in "\t\r") for char in seen)
    if odd > 0.05 * len(seen):
        raise BadInput("is not text", where=named(file), fix=f"Supported: {SUPPORTED}")
    return lines


def separator_of(lines: list[str]) -> str:
    """Return the separator of columns in a table whose first line is its header."""
    return max(SEPARATORS, key=lines[0].count)


@dataclass(frozen=True)
class _LogFile:
    """The file, and what the user said about it."""

    file: Path
    columns: str | None
    by: Attribution | None

    def layout(self, present: Collection[formats.FieldPath], *, of_table: bool) -> LogLayout:
        """Return where the fields are: as the user said, as in a known log, or by usual names."""
        if self.columns is not None:
            return formats.layout_from_option(self.columns, set(present))
        names = [*dict.fromkeys(path[0] for path in (present if of_table else sorted(present)))]
        if of_table and {*names} >= SERVEGEN_COLUMNS:
            raise DescribesClients(named(self.file))
        found = formats.known_layout(present, of_table=of_table) or formats.layout_of_usual_names(names)
        if found is None:
            raise _unknown(self.file, "columns" if of_table else "keys", names)
        return found

    def layout_of_objects(self, objects: list[dict[str, Any]]) -> LogLayout:
        """Return where JSON objects have the fields; the first prefixes show whether they are block lists or keys."""
        found = self.layout(set().union(*(paths_in(item) for item in objects)), of_table=False)
        values = (sources.value_at(item, found.paths("prefix")) for item in objects)
        first: Any = next((value for value in values if value is not None), [])
        return replace(found, prefix_is_key=not isinstance(first, list | dict))

    def log(self, layout: LogLayout, rows: Rows, place: str, raw: Batches | None = None) -> Log:
        """Return the log, read in batches if possible; row by row if the user asks for labels."""
        by = self.by
        if by is None:
            return Log(layout, raw, place) if raw else self.one_by_one(layout, rows, place, Unfolding())

        def with_tenants() -> Iterator[tuple[int, Any]]:
            for number, item in rows():
                yield number, {**item, _BY[0][0]: by.tenant(item)} if isinstance(item, dict) else item

        return self.one_by_one(layout.moved(tenant=_BY), with_tenants, place, Unfolding(by))

    def one_by_one(self, layout: LogLayout, rows: Rows, place: str, unfolding: Unfolding) -> Log:
        """Return a log whose rows are made one by one; an error in them names the file."""

        def batches() -> "Iterator[pl.DataFrame]":
            unfolding.restart()
            left, read = rows(), 0
            most = sources.BATCH_LISTS if layout.paths("prefix") else sources.BATCH_LINES
            try:
                while part := list(islice(left, most)):
                    read += len(part)
                    sources.check_rows(read, self.file)
                    yield sources.objects_frame(part, layout)
            except BadInput as error:
                error.where = error.where or named(self.file)
                raise

        return Log(layout, batches, place, unfolding=unfolding)

    def exported(self, export: Export, items: Rows, place: str) -> Log:
        """Return the log of a tool's objects, each of which may hold several requests or none."""
        unfolding = Unfolding(self.by)

        def rows() -> Iterator[tuple[int, Any]]:
            if export.look_over:
                for _, item in items():
                    for inner in opened(item):
                        if isinstance(inner, dict):
                            export.look_over(inner, unfolding)
            for number, item in items():
                for inner in opened(item):
                    found = unfolding.requests(export.unfold(inner, unfolding)) if isinstance(inner, dict) else [inner]
                    yield from ((number, row) for row in found)

        return self.one_by_one(export.layout(self.by), rows, place, unfolding)

    def folder(self) -> Log | None:
        """Return the log of a folder of a tool's JSON documents, such as one for each session; None if it is none."""
        documents: list[Path] = []
        with suppress(OSError):  # of a name too long for a file: who opens it says so
            documents = sorted(self.file.glob("*.json")) if self.file.is_dir() else []
        export = export_of([sources.document(documents[0])]) if documents else None
        if export is None:
            return None
        return self.exported(export, lambda: enumerate(map(sources.document, documents), 1), "file")

    def table(self, table: TableFile) -> Log:
        """Return the log of a table, in batches unless the columns that identify the tenant hold objects."""
        schema = table.schema()
        place = "line" if table.separator else "row"
        if self.columns is None and (export := export_of([dict.fromkeys(schema)])):
            layout = export.layout(self.by)
            columns = [name for name in schema if name not in BULKY]
            fields = export.layout_of_table(columns, layout) if table.separator else None
            if fields is None:
                return self.exported(export, lambda: table.rows(BULKY), place)
            telling = [name for name in columns if name in export.telling or (self.by and self.by.tells(name))]
            return self.asked_once(layout, table, fields, telling, export)
        layout = self.layout([(name,) for name in schema], of_table=True)
        if table.separator and layout.name == OWN.name:
            layout = layout.moved(prefix=())  # lists do not fit in a cell
        if layout.paths("prefix"):
            is_key = not schema[layout.paths("prefix")[0][0]].is_nested()
            stated = None if is_key else table.block_tokens()
            layout = replace(layout, prefix_is_key=is_key, block_tokens=layout.block_tokens or stated)
        telling = [name for name in schema if self.by and self.by.tells(name)]
        if self.by is None or any(schema[name].is_nested() for name in telling):
            return self.log(layout, table.rows, place, lambda: table.batches(layout))
        return self.asked_once(layout.moved(tenant=_BY), table, layout.moved(tenant=()), telling)

    def asked_once(
        self, layout: LogLayout, table: TableFile, fields: LogLayout, telling: list[str], export: Export | None = None
    ) -> Log:
        """Return the log of a table in batches: ``telling`` columns say whether a row is a request, and whose."""
        import polars as pl

        by, unfolding = self.by, Unfolding(self.by)
        unfold = export.unfold if export else lambda item, asked: [row(tenant=asked.tenant(item))]
        keyed = export.telling if export and not by else {}
        nested = {name: keys for name, keys in keyed.items() if keys and name in telling}
        more = {
            f"{name}.{key}": pl.col(f"{BESIDE}{name}").str.json_path_match(f"$.{key}")
            for name, keys in nested.items()
            for key in keys
        }
        if export:  # it only matters whether there is a prompt
            tokens = pl.col("input").cast(pl.String)
            some = pl.when(tokens.is_null() | tokens.is_in(_NO_TOKENS)).then(tokens).otherwise(pl.lit("1"))
            more[fields.label("input")] = some
        names = [name for name in telling if name not in nested] + [*more]
        column, *paths = (export.cached if export else ()) or ("",)
        cells = [pl.col(f"{BESIDE}{column}").str.json_path_match(path) for path in paths if column in telling]
        cached = {"cached": pl.coalesce(*cells, pl.lit(None, pl.String))} if paths else {}

        @lru_cache(_REMEMBERED)
        def tenant_or_reason(*cells: Any) -> tuple[str | None, str | None]:
            item = dict(zip(names, cells, strict=True))
            item |= {name: {key: item[f"{name}.{key}"] for key in keys} for name, keys in nested.items()}
            found = next(iter(unfold(item, Unfolding(by))))
            return (None, found) if isinstance(found, str) else (tenant_in(found), None)

        def batches() -> "Iterator[pl.DataFrame]":
            unfolding.restart()
            if by:
                by.meet(name for name in table.schema() if not export or name not in BULKY)
            for batch in table.batches(fields, telling):
                marked = batch.with_columns(**{f"{BESIDE}{name}": column for name, column in more.items()})
                found = _by_distinct(marked, [f"{BESIDE}{name}" for name in names], tenant_or_reason)
                left = found["left"].drop_nulls().to_frame().group_by("left", maintain_order=True).len()
                unfolding.left_out.update(dict(left.iter_rows()))
                own = [name for name in batch.columns if not name.startswith(BESIDE)]
                kept = batch.select(*own, **cached).with_columns(found["tenant"])
                yield kept.filter(found["left"].is_null())

        return Log(layout, batches, "line" if table.separator else "row", unfolding=unfolding)


def _by_distinct(
    batch: "pl.DataFrame", names: list[str], asked: Callable[..., tuple[str | None, str | None]]
) -> "pl.DataFrame":
    """Return the tenant of each row, or why it is left out; rows that are equal in these columns are decided once."""
    import polars as pl

    schema = {"tenant": pl.String(), "left": pl.String()}
    if not names:
        return pl.DataFrame([asked()] * len(batch), schema, orient="row")
    distinct = batch.select(names).unique(maintain_order=True)
    found = pl.DataFrame([asked(*cells) for cells in distinct.iter_rows()], schema, orient="row")
    answers = distinct.hstack(found)
    return (
        batch.select(names).join(answers, on=names, how="left", nulls_equal=True, maintain_order="left").select(*schema)
    )


def first_bytes(file: Path) -> bytes:
    where = named(file)
    try:
        with file.open("rb") as opened:
            start = opened.read(4096)
    except IsADirectoryError:
        if any(any(file.glob(f"{above}chunk-*-trace.csv")) for above in ("", "*/", "*/*/")):
            raise DescribesClients(where) from None
        raise BadInput("is a folder", where=where, fix="Give one of its files.") from None
    except (OSError, ValueError) as error:
        guesses = " or ".join(nearest(file.name, TRACES))
        samples = f"Give the path of your log, or a shipped sample: {', '.join(TRACES)}."
        hint = f"Did you mean the sample {guesses}?" if guesses else samples
        raise BadInput(getattr(error, "strerror", None) or "cannot be opened", where=where, fix=hint) from None
    if not start:
        raise BadInput("is empty", where=where)
    if start.startswith(b"PK\x03\x04"):
        raise BadInput("is a zip archive", where=where, fix="Unpack it; gzip and zstd are read as they are.")
    return start


def _json(asked: _LogFile, lines: list[str]) -> Log:
    file = asked.file
    read_before = accumulate(map(len, lines), initial=0)
    items = [sources.load(line) for line, size in zip(lines, read_before, strict=False) if size < sources.BATCH_BYTES]
    objects = [item for item in items if isinstance(item, dict)]
    if lines[0].lstrip().startswith("[") or 2 * len(objects) < len(items):
        return _document(asked)

    def rows() -> Iterator[tuple[int, Any]]:
        return ((number, sources.load(line)) for number, line in sources.numbered_lines(file))

    if asked.columns is None:
        if export := export_of(inner for item in objects for inner in opened(item)):
            return asked.exported(export, rows, "line")
        if is_result(objects[0]):
            return _results(asked, [sources.load(line) for line in sources.held_lines(file)])
    if len(lines) == 1 and opened(objects[0]) != objects:
        return _document(asked)
    layout = asked.layout_of_objects(objects)
    return asked.log(layout, rows, "line", lambda: sources.line_batches(file, layout))


def _document(asked: _LogFile) -> Log:
    file = asked.file
    whole = sources.document(file)
    if whole is None:
        raise BadInput("neither JSON lines nor a JSON document", where=named(file), fix=f"Supported: {SUPPORTED}")
    items: list[Any] = whole if isinstance(whole, list) else opened(whole)

    def rows() -> Iterator[tuple[int, Any]]:
        return iter(enumerate(items, 1))

    objects = [item for item in items[: sources.HEAD_LINES] if isinstance(item, dict)]
    if asked.columns is None and (export := export_of(inner for item in objects for inner in opened(item))):
        return asked.exported(export, rows, "item")
    if (items and items[0] is whole) or not isinstance(whole, list | dict):
        return _results(asked, [whole])
    if not objects:
        raise BadInput("a JSON list without objects", where=named(file), fix=f"Supported: {SUPPORTED}")
    sources.check_rows(len(items), file)
    return asked.log(asked.layout_of_objects(objects), rows, "item")


def _results(asked: _LogFile, runs: list[Any]) -> Log:
    """Return the requests in the results of a load generator, which have no tenants."""
    found = requests_of(runs, named(asked.file))
    if found is None:
        keys = [str(key) for run in runs[:1] if isinstance(run, dict) for key in run]
        raise _unknown(asked.file, "keys", keys)
    sources.check_rows(len(found.requests), asked.file)
    log = asked.one_by_one(found.layout, lambda: iter(enumerate(found.requests, 1)), "request", Unfolding())
    return replace(log, notes=tuple(found.notes))


def suggested_columns(names: list[str]) -> str:
    """Write the option ``columns`` with those names of a file that are usual ones."""
    there = {spelling(name): name for name in names}
    # A column called input may hold text or tokens, so it is only suggested.
    found = {name: usual_name(name, there, name) for name in formats.USUAL_NAMES}
    if not any(found.values()):
        return formats.COLUMNS_HELP
    blanks = {"arrival": "TIME", "input": "PROMPT_TOKENS", "output": "ANSWER_TOKENS", "tenant": None}
    parts = [f"{name}={shorten(column)}" for name, blank in blanks.items() if (column := found[name] or blank)]
    return option("columns", ",".join(parts))


def _unknown(file: Path, what: str, names: list[str]) -> BadInput:
    return BadInput(
        f"not a log we know; its {what}: {shorten(', '.join(names), 200) or 'none'}",
        where=named(file),
        fix=f"Say which is what: {suggested_columns(names)}\n  Known without: {formats.KNOWN}",
    )
