"""Read a request log of any supported kind as a ``Trace``, in batches of bounded memory or whole.

A file is recognised by what it holds. Every row ends up in a batch or in ``problems``, with its place and the reason;
a file without a usable row is an error.

A log may list the blocks of its prompts, or have a key (of a system prompt, template or session) that only says that
prompts share *something*. They cannot share more than the shortest of them, so that much is assumed: an upper bound on
what a prefix cache can reuse, which a note says. It is cut into whole blocks, of 16 tokens (the block of vLLM) or
larger where the shared parts are long. An unknown table can be previewed, so that the user can name its columns.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokonomics.errors import BadInput, option, shorten
from tokonomics.memory_budget import NoRoom, check_room
from tokonomics.traffic import formats, sources
from tokonomics.traffic.attribution import labels_in
from tokonomics.traffic.exports import opened
from tokonomics.traffic.formats import COLUMNS_HELP, LOG_FIELDS, OWN, REQUIRED, TRACES, sample_path, spelling
from tokonomics.traffic.recognise import Log, first_bytes, recognise, separator_of, text_lines
from tokonomics.traffic.sessions import GROWING, growing_prefix, turns_of
from tokonomics.traffic.sources import TableFile, named
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace
from tokonomics.units import plural

if TYPE_CHECKING:
    import polars as pl

_BYTES_PER_ROW, _BYTES_PER_BLOCK = 110, 30
"""Memory while a log is read whole: peaks for 3 million rows with tenants, and for 30 million block ids, as parquet."""
SMALLEST_BLOCK = 16
LARGEST_BLOCK = 8192
MERGED_ROWS = 1_000_000
_BYTES_PER_KEY = 260  # peak over that of a log with one, by key: 1.5 and 3 million keys of 36 characters, as parquet
BLOCKS_A_REQUEST = 32
"""The highest average: it keeps a long log of long shared prompts within memory and loses less than 1 block in 32."""
UPPER_BOUND = (
    "requests with the same {column} are taken to share their prompt up to the shortest of them: "
    "an upper bound on what a prefix cache can reuse"
)


@dataclass
class Problems:
    """Rows that could not be used: their number, the first few with place and reason; and other notes."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class TraceFile:
    """A log that was recognised; only its first rows have been read."""

    path: Path
    format: str
    log: Log
    strict: bool = False
    keys: "pl.DataFrame | None" = None
    """The shared part of each key that occurs more than once: key, blocks, and number of the first block."""
    problems: Problems = field(default_factory=Problems)  # filled while reading

    @property
    def block_tokens(self) -> int | None:
        """Return the tokens of a shared block, if the log has any."""
        return self.log.layout.block_tokens if self.log.layout.paths("prefix") else None

    def read(self, most: int | None = None) -> Trace:
        """Read the whole log: sorted by arrival, times from the first request, tenants and blocks numbered.

        With ``most`` it ends with the batch in which requests and their blocks reach that number, or after which
        memory is full.
        """
        import polars as pl

        frames: list[pl.DataFrame] = []
        rows = blocks = 0
        for frame in self.batches():
            rows += len(frame)
            blocks += int(frame["prefix"].list.len().sum()) if "prefix" in frame.columns else 0
            try:
                check_room(
                    rows * _BYTES_PER_ROW + blocks * _BYTES_PER_BLOCK,
                    f"more than {rows:,} requests",
                    where=named(self.path),
                    fix="Give it in parts, as files of fewer rows; `tokonomics trace` sums up a log of any length.",
                )
            except NoRoom:
                if most is None or not frames:
                    raise
                break
            frames.append(frame)
            if most is not None and rows + blocks >= most:
                break
        whole = pl.concat(frames)
        optional = {"priority": "priority", "patience": "patience_s", "usd": "usd"}
        columns: dict[str, Any] = {
            name: whole[column].to_numpy() for column, name in optional.items() if column in whole.columns
        }
        if "tenant" in whole.columns:
            tenants = whole["tenant"].unique().sort()
            numbers = whole["tenant"].replace_strict(tenants, range(len(tenants))).to_numpy().astype(np.int32)
            columns |= {"tenants": tuple(tenants), "tenant": numbers}
        trace = make_trace(
            *(whole[name].to_numpy() for name in REQUIRED),
            prefix=_blocks(whole["prefix"], self.block_tokens) if "prefix" in whole.columns else None,
            source=f"{self.path.name} ({self.format})",
            **columns,
        )
        found = turns_of(whole)
        self.problems.notes += found.notes
        if found.turns is None:
            return trace
        if trace.prefix is not None or self.log.layout.name == OWN.name:
            return replace(trace, turns=found.turns)
        self.problems.notes.append(GROWING)
        prefix = growing_prefix(found.turns, trace.input_tokens, trace.output_tokens)
        return replace(trace, turns=found.turns, prefix=prefix)

    def batches(self) -> "Iterator[pl.DataFrame]":
        """Yield all usable rows, some hundred thousand at a time, in any order.

        Columns are arrival (unix time for dates, or the log's own clock), input and output; where the log has them,
        tenant, priority, patience (infinite where the client never hangs up), prefix (a list of block ids), usd (the
        cost that the log states) and ``OF_SESSIONS``.
        """
        import polars as pl

        from tokonomics.traffic.cleaning import clean, set_aside

        layout = self.log.layout
        problems = self.problems = Problems(notes=[*self.log.notes, *([layout.note] if layout.note else [])])
        good = unanswered = costless = 0
        ids = pl.int_ranges(pl.col("first"), pl.col("first") + pl.col("blocks"), dtype=pl.Int64)
        for raw in self.log.raw():
            kept, bad = clean(raw, layout)
            if len(bad):
                set_aside(problems, bad, layout, named(self.path), self.log.place, strict=self.strict)
            if len(kept):
                good += len(kept)
                unanswered += int((kept["output"] == 0).sum())
                if "usd" in kept.columns and (unread := kept["usd"].null_count()):
                    costless += unread
                    kept = kept.with_columns(kept["usd"].fill_null(0.0))
                if self.keys is not None:
                    known = kept.join(self.keys, on="prefix", how="left", maintain_order="left")
                    kept = known.with_columns(prefix=pl.when(pl.col("blocks") > 0).then(ids).otherwise([]))
                    kept = kept.drop("first", "blocks")
                yield kept
        if not good:
            left_out = self.log.unfolding.left_out if self.log.unfolding else {}
            reasons = problems.first[:3] or [f"{number:,} {why}" for why, number in left_out.items()]
            if not reasons:
                raise BadInput("has no requests: there is nothing below its header", where=named(self.path))
            what = "; ".join(["no request in it can be used", *reasons])
            fix = f"It was read as {self.format}. If it is something else, name the columns: {COLUMNS_HELP}"
            raise BadInput(what, where=named(self.path), fix=fix)
        if unanswered and layout.unanswered:
            problems.notes.append(f"{unanswered:,} {layout.unanswered}")
        if costless:
            what = f"{costless:,} requests have a {layout.label('usd')} that is no amount of dollars: taken as none"
            problems.notes.append(what)
        if self.log.unfolding:
            problems.notes += self.log.unfolding.notes(named(self.path))


def open_trace(
    path: Path | str, *, columns: str | None = None, strict: bool = False, by: Sequence[str] = ()
) -> TraceFile:
    """Recognise a log, or a shipped sample by its name, and prepare it for reading.

    ``columns`` says which column is what (``arrival=…,input=…,output=…``) where the log is not a known one: times are
    seconds (milliseconds where the name ends in ``_ms``) or dates; ``prefix`` is a list of ids of chained blocks
    (``block=`` says of how many tokens), or a key that requests with a common start of their prompts share;
    ``patience`` is how long after its arrival the client hangs up (empty: never). ``session`` is the conversation or
    job that a request is part of; ``parent`` (one or several) are the ``request`` ids whose answers it waits for,
    ``pause`` how long after them it is sent. With ``strict`` the first unusable row is an error. ``by`` names labels
    (team, feature, user …): the tenant of a request is then the value of these labels in its fields, metadata or tags.
    """
    file = Path(path)
    name = str(path)
    is_sample = name in TRACES and not file.exists()
    log = recognise(sample_path(name) if is_sample else file, columns, labels_in(by))
    opened = TraceFile(file, "shipped sample" if is_sample else log.layout.name, log, strict)
    return _with_blocks(opened) if log.layout.paths("prefix") else opened


def _with_blocks(file: TraceFile) -> TraceFile:
    """Return the same file with its block size: as stated, as its lists show, or from a pass over its keys."""
    from tokonomics.traffic.cleaning import clean

    log, layout, keys = file.log, file.log.layout, None
    if layout.prefix_is_key:
        keys, size = _shared_parts((clean(raw, layout)[0] for raw in log.raw()), named(file.path))
        log = replace(log, notes=(*log.notes, UPPER_BOUND.format(column=layout.label("prefix"))))
    elif layout.block_tokens:
        return file
    else:
        first = next(iter(log.raw()), None)
        found = log.unfolding.block_tokens if log.unfolding else None
        if found is None:
            usable = None if first is None else clean(first.head(1000), layout)[0]
            if usable is None or not len(usable):
                return file  # reading it says why
            found = _block_size(usable)
        if found is None:
            what = f"cannot tell how many tokens a block of {layout.label('prefix')} has"
            raise BadInput(what, where=named(file.path), fix=f"Say so: {option('columns', '…,block=16')}")
        size = found
    return replace(file, log=replace(log, layout=replace(layout, block_tokens=size)), keys=keys)


def _shared_parts(batches: "Iterable[pl.DataFrame]", where: str) -> "tuple[pl.DataFrame, int]":
    """Return the blocks that requests with the same key share, and the size of a block.

    One pass over the log finds the shortest prompt of every key; memory grows with the number of keys only.
    """
    import polars as pl

    parts = [pl.DataFrame(schema={"prefix": pl.String, "shortest": pl.Int64, "requests": pl.Int64})]

    def merged() -> pl.DataFrame:
        by_key = pl.concat(parts).group_by("prefix", maintain_order=True)
        return by_key.agg(pl.col("shortest").min(), pl.col("requests").sum())

    for batch in batches:
        parts.append(
            batch.filter(pl.col("prefix").is_not_null() & (pl.col("prefix") != "")).select(
                "prefix", shortest=pl.col("input"), requests=pl.lit(1, pl.Int64)
            )
        )
        # Not after every batch: with millions of keys the work would grow quadratically with the log.
        if sum(map(len, parts[1:])) >= max(len(parts[0]), MERGED_ROWS):
            parts = [merged()]
            check_room(
                len(parts[0]) * _BYTES_PER_KEY,
                f"to compare more than {plural(len(parts[0]), 'key')} of shared prompts",
                where=where,
                fix=f"Without them: {option('columns', 'arrival=…,input=…,output=…')}.",
            )
    shortest = merged()
    shared = shortest.filter(pl.col("requests") > 1)
    block_tokens = SMALLEST_BLOCK
    requests = max(int(shortest["requests"].sum()), 1)
    tokens = int((shared["shortest"] * shared["requests"]).sum())
    while tokens / block_tokens > BLOCKS_A_REQUEST * requests and block_tokens < LARGEST_BLOCK:
        block_tokens *= 2
    counted = shared.select("prefix", blocks=pl.col("shortest") // block_tokens)
    return counted.with_columns(first=pl.col("blocks").cum_sum() - pl.col("blocks")), block_tokens


def _block_size(batch: "pl.DataFrame") -> int | None:
    """Return the block size at which the lists of blocks just cover the prompts; None if no power of two does."""
    lengths = batch["prefix"].list.len().to_numpy().astype(np.int64)
    prompts = batch["input"].to_numpy()[lengths > 0]
    lengths = lengths[lengths > 0]
    fits = []
    for block_tokens in 2 ** np.arange(14):
        # Some engines list only the blocks that are full.
        full, covering = prompts // block_tokens, -(-prompts // block_tokens)
        if len(lengths) and np.mean((lengths == full) | (lengths == covering)) >= 0.9:
            fits.append(int(block_tokens))
    return fits[0] if len(fits) == 1 else None


def _blocks(lists: "pl.Series", block_tokens: int | None) -> PrefixBlocks | None:
    """Number ids from 0: by a table if they lie close together, otherwise by sorting."""
    if not block_tokens:
        return None
    ids = lists.filter(lists.list.len() > 0).explode().to_numpy().astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(lists.list.len().to_numpy())]).astype(np.int64)
    if not len(ids):
        return PrefixBlocks(np.zeros(0, np.int32), starts, block_tokens, 0)
    low = int(ids.min())
    span = int(ids.max()) - low + 1
    if span > 8 * len(ids) + 1024:
        distinct, numbers = np.unique(ids, return_inverse=True)
        return PrefixBlocks(numbers.astype(np.int32), starts, block_tokens, len(distinct))
    seen = np.zeros(span, bool)
    seen[ids - low] = True
    number = np.cumsum(seen, dtype=np.int32) - np.int32(1)
    return PrefixBlocks(number[ids - low], starts, block_tokens, int(number[-1]) + 1)


# --- a table that is no known log -------------------------------------------------------------------------------------

SHOWN_ROWS = 5
MOST_COLUMNS = 100  # to show and choose from: our choice, a request log has some dozen
_CELL = 40  # characters
_OF_TOKENS = {"token", "tokens", "tok", "toks", "len", "length", "count", "n", "num"}


@dataclass(frozen=True)
class TablePreview:
    """The columns of a table, its first rows as short texts, and a guess at the column of each field."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    guesses: Mapping[str, str]


def preview(path: Path) -> TablePreview | None:
    """Return the columns and first rows of a table, so that the user can name its columns; None if it is no table."""
    try:
        rows = _first_rows(path)
    except BadInput:
        return None
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if formats.can_be_told(name)]
    names = names[:MOST_COLUMNS]
    if len(names) < len(REQUIRED):
        return None
    shown = tuple(tuple(_cell(row.get(name)) for name in names) for row in rows[:SHOWN_ROWS])
    return TablePreview(tuple(names), shown, guessed(names, shown))


def _first_rows(path: Path) -> list[dict[str, Any]]:
    if first_bytes(path).startswith(sources.PARQUET):
        return TableFile(path).first_rows(SHOWN_ROWS)
    lines = text_lines(path)
    if lines[0].lstrip()[0] not in "{[":
        return TableFile(path, separator_of(lines)).first_rows(SHOWN_ROWS)
    items = [sources.load(line) for line in lines]
    objects = [item for item in items if isinstance(item, dict)]
    if 2 * len(objects) < len(items) or len(items) == 1:  # one object is no log; it may hold one
        whole = sources.document(path)
        held = whole if isinstance(whole, list) else opened(whole) if isinstance(whole, dict) else []
        objects = [item for item in held[: sources.HEAD_LINES] if isinstance(item, dict) and item is not whole]
    return [dict(_flat(item)) for item in objects]


def _flat(item: Mapping[str, Any], above: str = "", depth: int = formats.DEPTH) -> Iterator[tuple[str, Any]]:
    """Yield the fields that are not null, by the keys that lead to them, joined by dots."""
    for key, value in item.items():
        if isinstance(value, dict) and depth > 1:
            yield from _flat(value, f"{above}{key}.", depth - 1)
        elif value is not None:
            yield f"{above}{key}", value


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return shorten(value if isinstance(value, str) else json.dumps(value, default=str), _CELL)


def guessed(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return the likely column of each field: one with a usual name, or with a word of the field, such as ``when``.

    Tokens are numbers, so a column of text holds none. The fields of sessions are kept only where they say which
    requests belong together.
    """
    found: dict[str, str] = {}
    for name, known in LOG_FIELDS.items():
        left = [column for column in columns if column not in found.values()]
        if name in ("input", "output"):
            cells = {column: [row[columns.index(column)].strip() for row in rows] for column in left}
            left = [name for name in left if all(re.fullmatch(r"[0-9]+(\.0)?|", cell) for cell in cells[name])]
        there: dict[str, str] = {}
        for column in left:
            last = spelling(column.rpartition(".")[2])
            there.setdefault(formats.without_unit(last) if name == "arrival" else last, column)
        guess = formats.usual_name(name, there, *known.likely.split(), name)
        words = {column: set(spelling(column).split("_")) for column in left}
        fit = [column for column in left if words[column] & {*known.words.split()}]
        if guess or fit:  # among columns with a word of the field, prefer one that counts tokens
            found[name] = guess or next((column for column in fit if words[column] & _OF_TOKENS), fit[0])
    if formats.tells_sessions(found):
        return found
    return {name: column for name, column in found.items() if name not in formats.OF_SESSIONS}
