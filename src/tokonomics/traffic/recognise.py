"""Which kind of log a file is, told from its first bytes, header or keys, and how to read it.

The order is: parquet by its magic number, an engine's log by its lines, JSON by its first character, everything else as
a table with a header. What tools export is unfolded first (``exports``); where somebody asks whose requests they are,
rows are gone through one by one (``attribution``). Other JSON documents are results of load generators: vLLM ``bench
serve --save-detailed`` keeps parallel lists of its requests; guidellm a list of requests for each benchmark of a sweep.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tokonomics.errors import BadInput, nearest, option, shorten
from tokonomics.traffic import formats, sources
from tokonomics.traffic.attribution import Attribution
from tokonomics.traffic.engine_lines import engine_layout, engine_of, engine_rows, looks_like_an_engine
from tokonomics.traffic.export_tables import fields_of, table_batches, telling_columns
from tokonomics.traffic.exports import BULKY, Export, Unfolding, export_of, opened
from tokonomics.traffic.formats import (
    COLUMNS_HELP,
    GUIDELLM,
    KNOWN,
    OWN,
    SUPPORTED,
    USUAL_NAMES,
    VLLM,
    LogLayout,
    paths_in,
    spelling,
)
from tokonomics.traffic.samples import TRACES
from tokonomics.traffic.sources import named

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = ",\t;|"
SERVEGEN_COLUMNS = {"model", "client", "t_s", "rate_rps"}
_BEFORE_A_REQUEST = 50_000  # lines in which an engine that has started must have logged one
_BY = "\x01by"  # the tenant by the labels asked for, beside the keys of a row

Rows = Callable[[], Iterator[tuple[int, Any]]]
"""The rows of a log with their places, from the beginning."""
Beside = Callable[[LogLayout, Collection[str]], Iterator["pl.DataFrame"]]
"""The batches of a table, some of its columns beside the fields of requests."""


@dataclass(frozen=True)
class Log:
    """A file that was recognised: how its fields are called, and how to get at its rows."""

    layout: LogLayout
    raw: "Callable[[LogLayout], Iterator[pl.DataFrame]]"
    place: str  # what the number of a row counts: line, row, request
    notes: tuple[str, ...] = ()
    unfolding: Unfolding | None = None
    """What was left out and attributed, after a pass over the rows."""


class FoundRequests(NamedTuple):
    """The requests of a document, how to read them, and what to know about them."""

    layout: LogLayout
    requests: list[Any]
    notes: list[str]


class DescribesClients(BadInput):
    """Not a log of requests; whoever takes both draws requests from it with ``servegen_trace``."""

    def __init__(self, where: str) -> None:
        super().__init__(
            "ServeGen describes clients, it is not a log of requests",
            where=where,
            fix=f"Draw requests from it: tokonomics trace {where} {option('start', '10h')} {option('end', '11h')} "
            f"{option('save', 'drawn.parquet')}",
        )


def recognise(file: Path, columns: str | None, by: tuple[str, ...] = ()) -> Log:
    """What the file is; an error that names what was found where it is nothing we know."""
    asked = _LogFile(file, columns, Attribution(by) if by else None)
    start = _start(file)
    if start.startswith(sources.PARQUET):
        return _parquet(asked)
    lines = text_lines(file)
    if columns is None and (engine := _engine(file, lines)):
        return _engine_log(asked, engine)
    return _json(asked, lines) if lines[0].lstrip()[0] in "{[" else _csv(asked, lines)


def text_lines(file: Path) -> list[str]:
    """The first lines of a file that is text."""
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
    """What stands between the columns of a table whose first line is its header."""
    return max(SEPARATORS, key=lines[0].count)


@dataclass(frozen=True)
class _LogFile:
    """The file, and what somebody said about it."""

    file: Path
    columns: str | None
    attribution: Attribution | None

    def log(
        self, layout: LogLayout, raw: "Callable[[LogLayout], Iterator[pl.DataFrame]]", rows: Rows, place: str
    ) -> Log:
        """In batches as they are, or row by row where each must say whose it is."""
        if self.attribution is None:
            return Log(layout, raw, place)
        by = self.attribution

        def told() -> Iterator[tuple[int, Any]]:
            for number, item in rows():
                yield number, {**item, _BY: by.tenant(item)} if isinstance(item, dict) else item

        return self.rows(replace(layout, tenant=((_BY,),)), told, place, Unfolding(by))

    def table(self, layout: LogLayout, raw: Beside, rows: Rows, columns: Mapping[str, bool], place: str) -> Log:
        """Of a table, whose columns may be nested: in batches too where each row must say whose it is."""
        by = self.attribution
        telling = [name for name in columns if by and by.tells(name)]
        if by is None or any(columns[name] for name in telling):
            return self.log(layout, lambda known: raw(known, ()), rows, place)
        unfolding = Unfolding(by)

        @lru_cache(sources.REMEMBERED)
        def tenant_of(*cells: Any) -> str:
            return by.tenant(dict(zip(telling, cells, strict=True)))

        def batches(known: LogLayout) -> "Iterator[pl.DataFrame]":
            import polars as pl

            unfolding.restart()
            by.meet(columns)
            for batch in raw(replace(known, tenant=()), telling):
                tenant = sources.by_distinct(batch, telling, tenant_of) if telling else tenant_of()
                yield sources.without_beside(batch).with_columns(pl.lit(tenant).alias("tenant"))

        return Log(replace(layout, tenant=((_BY,),)), batches, place, unfolding=unfolding)

    def rows(self, layout: LogLayout, rows: Rows, place: str, unfolding: Unfolding) -> Log:
        """Of rows that are made one by one."""

        def batches(known: LogLayout) -> "Iterator[pl.DataFrame]":
            unfolding.restart()
            made, read = rows(), 0
            while part := self.part_of(made):
                read += len(part)
                sources.check_rows(read, self.file)
                yield sources.objects_frame(part, known)

        return Log(layout, batches, place, unfolding=unfolding)

    def part_of(self, made: Iterator[tuple[int, Any]]) -> list[tuple[int, Any]]:
        """The next rows; a mistake in them names the file."""
        try:
            return list(islice(made, sources.BATCH_LINES))
        except BadInput as error:
            error.where = error.where or named(self.file)
            raise

    def exported_table(self, export: Export, raw: Beside, items: Rows, columns: Mapping[str, bool], place: str) -> Log:
        """In batches where its columns are the fields of requests; else row by row."""
        layout = export.layout(self.attribution)
        fields = fields_of(export.tabled, columns, layout) if export.tabled else None
        if export.tabled is None or fields is None:
            return self.exported(export, items, place)
        if any(columns[name] for name in telling_columns(export.tabled, columns, self.attribution)):
            return self.exported(export, items, place)
        unfolding = Unfolding(self.attribution)
        return Log(
            layout,
            lambda _: table_batches(export, raw, columns, fields, unfolding),
            place,
            unfolding=unfolding,
        )

    def exported(self, export: Export, items: Rows, place: str) -> Log:
        """Of a tool's objects, each of which may hold several requests or none."""
        unfolding = Unfolding(self.attribution)

        def rows() -> Iterator[tuple[int, Any]]:
            if export.look_over:
                for _, item in items():
                    for inner in opened(item):
                        if isinstance(inner, dict):
                            export.look_over(inner, unfolding)
            for number, item in items():
                for inner in opened(item):
                    if isinstance(inner, dict):
                        yield from ((number, row) for row in export.unfold(inner, unfolding))
                    else:
                        yield number, inner

        return self.rows(export.layout(self.attribution), rows, place, unfolding)


def _engine(file: Path, lines: list[str]) -> str | None:
    if engine := engine_of(lines):
        return engine
    if not looks_like_an_engine(lines):
        return None
    return engine_of(line for _, line in islice(sources.numbered_lines(file), _BEFORE_A_REQUEST))


def _engine_log(asked: _LogFile, engine: str) -> Log:
    unfolding = Unfolding(asked.attribution)

    def rows() -> Iterator[tuple[int, Any]]:
        return engine_rows(sources.numbered_lines(asked.file), unfolding)

    return asked.rows(engine_layout(engine, asked.attribution), rows, "line", unfolding)


def _start(file: Path) -> bytes:
    where = named(file)
    try:
        with file.open("rb") as opened:
            start = opened.read(4096)
    except IsADirectoryError:
        if any(any(file.glob(f"{above}chunk-*-trace.csv")) for above in ("", "*/", "*/*/")):
            raise DescribesClients(where) from None
        raise BadInput("is a folder", where=where, fix="Give one of its files.") from None
    except (OSError, ValueError) as error:
        guesses = nearest(file.name, TRACES)
        hint = f"Did you mean the sample {' or '.join(guesses)}?" if guesses else None
        if isinstance(error, FileNotFoundError) and not guesses:
            hint = f"Give the path of your log, or a shipped sample: {', '.join(TRACES)}."
        raise BadInput(getattr(error, "strerror", None) or "cannot be opened", where=where, fix=hint) from None
    if not start:
        raise BadInput("is empty", where=where)
    if start.startswith(b"PK\x03\x04"):
        raise BadInput("is a zip archive", where=where, fix="Unpack it; gzip and zstd are read as they are.")
    return start


def _parquet(asked: _LogFile) -> Log:
    file = asked.file
    schema = sources.parquet_schema(file)

    def rows() -> Iterator[tuple[int, Any]]:
        return sources.parquet_rows(file, BULKY)

    if asked.columns is None and (export := export_of([dict.fromkeys(schema)])):
        return asked.exported(export, rows, "row")
    layout = _table_layout(file, list(schema), asked.columns)
    if layout.prefix:
        is_key = not schema[layout.prefix[0][0]].is_nested()
        said = None if is_key else sources.parquet_block_tokens(file)
        layout = replace(layout, prefix_is_key=is_key, block_tokens=layout.block_tokens or said)
    return asked.table(
        layout,
        lambda known, beside: sources.parquet_batches(file, known, beside),
        lambda: sources.parquet_rows(file),
        {name: dtype.is_nested() for name, dtype in schema.items()},
        "row",
    )


def _csv(asked: _LogFile, lines: list[str]) -> Log:
    file = asked.file
    separator = separator_of(lines)
    names = sources.csv_names(file, separator)
    if asked.columns is None and (export := export_of([dict.fromkeys(names)])):
        return asked.exported_table(
            export,
            lambda known, beside: sources.csv_batches(file, known, separator, beside),
            lambda: sources.csv_rows(file, separator, BULKY),
            {name: False for name in names if name not in BULKY},
            "line",
        )
    layout = _table_layout(file, names, asked.columns)
    if layout.name == OWN.name:
        layout = replace(layout, prefix=())  # lists do not fit in a cell
    return asked.table(
        replace(layout, prefix_is_key=bool(layout.prefix)),
        lambda known, beside: sources.csv_batches(file, known, separator, beside),
        lambda: sources.csv_rows(file, separator),
        dict.fromkeys(names, False),
        "line",
    )


def _table_layout(file: Path, names: list[str], columns: str | None) -> LogLayout:
    if columns is not None:
        return formats.layout_from_option(columns, {(name,) for name in names})
    if set(names) >= SERVEGEN_COLUMNS:
        raise DescribesClients(named(file))
    layout = formats.layout_of_columns(names) or formats.layout_of_usual_names(names)
    if layout is None:
        raise _unknown(file, "columns", names)
    return layout


def _json(asked: _LogFile, lines: list[str]) -> Log:
    file = asked.file
    items = [sources.load(line) for line in lines]
    objects = [item for item in items if isinstance(item, dict)]
    if lines[0].lstrip().startswith("[") or 2 * len(objects) < len(items):
        return _document(asked)

    def rows() -> Iterator[tuple[int, Any]]:
        return ((number, sources.load(line)) for number, line in sources.numbered_lines(file))

    if asked.columns is None:
        if export := export_of(inner for item in objects for inner in opened(item)):
            return asked.exported(export, rows, "line")
        if _is_document(objects[0]):
            return _runs(file, [sources.load(line) for line in sources.all_lines(file)])
    if len(lines) == 1 and opened(objects[0]) != objects:
        return _document(asked)
    layout = _keyed(_object_layout(file, objects, asked.columns), objects)
    return asked.log(layout, lambda known: sources.line_batches(file, known), rows, "line")


def _object_layout(file: Path, objects: list[dict[str, Any]], columns: str | None) -> LogLayout:
    present = set().union(*(paths_in(item) for item in objects))
    if columns is not None:
        return formats.layout_from_option(columns, present)
    keys = sorted({path[0] for path in present})
    layout = formats.layout_of_objects(objects) or formats.layout_of_usual_names(keys)
    if layout is None:
        raise _unknown(file, "keys", keys)
    return layout


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
        return _runs(file, [whole])
    if not objects:
        raise BadInput("a JSON list without objects", where=named(file), fix=f"Supported: {SUPPORTED}")
    sources.check_rows(len(items), file)
    layout = _keyed(_object_layout(file, objects, asked.columns), objects)
    return asked.log(layout, _listed(layout, items, "item").raw, rows, "item")


def _runs(file: Path, runs: list[Any]) -> Log:
    found = requests_of(runs, named(file))
    if found is None:
        keys = [str(key) for run in runs[:1] if isinstance(run, dict) for key in run]
        raise _unknown(file, "keys", keys)
    sources.check_rows(len(found.requests), file)
    return _listed(found.layout, found.requests, "request", tuple(found.notes))


def _is_document(item: Any) -> bool:
    """A result of a load generator, rather than a line of a log."""
    return isinstance(item, dict) and ("input_lens" in item or "request_throughput" in item or "benchmarks" in item)


def requests_of(documents: list[Any], where: str) -> FoundRequests | None:
    """The requests of the results of a load generator, of one run or of several; None where it is something else."""
    if not all(_is_document(item) for item in documents):
        return None
    reports = ["benchmarks" in item for item in documents]
    if all(reports):
        return _guidellm(documents, where)
    return None if any(reports) else _vllm(documents, where)


def _vllm(runs: list[dict[str, Any]], where: str) -> FoundRequests:
    rows: list[Any] = []
    for run in runs:
        starts, inputs, outputs = lists = [run.get(name) for name in ("start_times", "input_lens", "output_lens")]
        if not (isinstance(starts, list) and isinstance(inputs, list) and isinstance(outputs, list)):
            what = "a benchmark result without its requests (start_times, input_lens, output_lens)"
            raise BadInput(what, where=where, fix="Run vllm bench serve with --save-detailed.")
        if not len(starts) == len(inputs) == len(outputs):
            said = ", ".join(str(len(values or ())) for values in lists)
            raise BadInput(f"start_times, input_lens and output_lens differ in length: {said}", where=where)
        # A request that was never sent keeps a start of 0, decades before the others on the clock of the run.
        rows += [
            {"start_times": start or None, "input_lens": prompt, "output_lens": answer}
            for start, prompt, answer in zip(starts, inputs, outputs, strict=True)
        ]
    return FoundRequests(VLLM, rows, [])


def _guidellm(reports: list[dict[str, Any]], where: str) -> FoundRequests:
    rows: list[Any] = []
    left_out: dict[str, int] = {}
    benchmarks = [run for report in reports for run in _list(report.get("benchmarks"), "benchmarks", where)]
    for benchmark in benchmarks:
        requests = benchmark.get("requests") if isinstance(benchmark, dict) else None
        if not isinstance(requests, dict):
            raise BadInput("a guidellm benchmark without its requests", where=where)
        rows += _list(requests.get("successful"), "requests.successful", where)
        for kind in ("errored", "incomplete"):
            left_out[kind] = left_out.get(kind, 0) + len(_list(requests.get(kind), f"requests.{kind}", where))
    notes = [f"{count} {kind} requests are left out" for kind, count in left_out.items() if count]
    if len(benchmarks) > 1:
        notes.append(f"{len(benchmarks)} benchmarks follow one another: rates change between them")
    present = set().union(*(paths_in(row) for row in rows[:500] if isinstance(row, dict)))
    narrowed = GUIDELLM.narrowed(present)
    complete = narrowed.arrival and narrowed.input and narrowed.output
    return FoundRequests(narrowed if complete else GUIDELLM, rows, notes)


def _list(value: Any, name: str, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput(f"{name} is not a list", where=where)
    return value


def _listed(layout: LogLayout, items: list[Any], place: str, notes: tuple[str, ...] = ()) -> Log:
    def batches(known: LogLayout) -> "Iterator[pl.DataFrame]":
        for start in range(0, len(items), sources.BATCH_LINES):
            part = items[start : start + sources.BATCH_LINES]
            yield sources.objects_frame(enumerate(part, start + 1), known)

    return Log(layout, batches, place, notes)


def _keyed(layout: LogLayout, objects: list[dict[str, Any]]) -> LogLayout:
    """Whether the prefix field, if any, holds lists of blocks or keys: as in the first objects that have it."""
    if not layout.prefix:
        return layout
    values = (sources.value_at(item, layout.prefix) for item in objects)
    first: Any = next((value for value in values if value is not None), [])
    return replace(layout, prefix_is_key=not isinstance(first, list | dict))


def suggested_columns(names: list[str]) -> str:
    """``columns`` with the names that a file has, where they are usual ones."""
    there = {spelling(name): name for name in names}
    # A column called input may hold the text as well as its tokens: suggested, not read by.
    usual = {field: (*known, field) for field, known in USUAL_NAMES.items()}
    found = {field: next((there[name] for name in known if name in there), None) for field, known in usual.items()}
    if not any(found.values()):
        return COLUMNS_HELP
    blanks = {"arrival": "TIME", "input": "PROMPT_TOKENS", "output": "ANSWER_TOKENS"}
    parts = [f"{field}={shorten(found[field] or blank)}" for field, blank in blanks.items()]
    if found["tenant"]:
        parts.append(f"tenant={shorten(found['tenant'])}")
    return option("columns", ",".join(parts))


def _unknown(file: Path, what: str, names: list[str]) -> BadInput:
    found = shorten(", ".join(names), 200) or "none"
    return BadInput(
        f"not a log we know; its {what}: {found}",
        where=named(file),
        fix=f"Say which is what: {suggested_columns(names)}\n  Known without: {KNOWN}",
    )
