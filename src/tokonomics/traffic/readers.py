"""Reads a request log of any supported kind, in batches of bounded memory or whole, as a ``Trace``.

What a file is, is told from what it holds. Every row ends up in a batch or in ``problems``, with its place and the
reason; a file of which no row can be used is an error.

A log may list the blocks of its prompts, or have a key (of a system prompt, template or session) that only says that
prompts share *something*. They cannot share more than the shortest of them, so that much is taken: an upper bound on
what a prefix cache can reuse, and said so. It is cut into whole blocks, of 16 tokens (the block of vLLM) or larger
where the shared parts are long. A table that is nobody's known log is previewed, for the user to name its columns.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option, shorten
from tokonomics.memory_budget import NoRoom, check_room
from tokonomics.traffic import formats, sources
from tokonomics.traffic.attribution import labels_in
from tokonomics.traffic.exports import opened
from tokonomics.traffic.formats import (
    COLUMNS_HELP,
    LOG_FIELDS,
    OWN,
    REQUIRED,
    TRACES,
    sample_path,
    spelling,
    usual_name,
)
from tokonomics.traffic.recognise import Log, first_bytes, recognise, separator_of, text_lines
from tokonomics.traffic.sessions import GROWING, growing_prefix, turns_of
from tokonomics.traffic.sources import TableFile, named
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace
from tokonomics.units import plural

if TYPE_CHECKING:
    import polars as pl

_BYTES_PER_ROW, _BYTES_PER_BLOCK = 110, 30
"""While a log is read whole: peaks over 3 million rows with tenants, and over 30 million block ids, as parquet."""
SMALLEST_BLOCK = 16
LARGEST_BLOCK = 8192
MERGED_ROWS = 1_000_000
_BYTES_PER_KEY = 260  # peak over that of a log with one, by key: 1.5 and 3 million keys of 36 characters, as parquet
BLOCKS_A_REQUEST = 32
"""On average, at most: keeps a long log of long shared prompts within memory at a loss of less than 1 block in 32."""
UPPER_BOUND = (
    "requests with the same {column} are taken to share their prompt up to the shortest of them: "
    "an upper bound on what a prefix cache can reuse"
)


@dataclass
class Problems:
    """Rows that could not be used: how many, the first few with place and reason; and what else to know."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SharedPrompts:
    """The shared part of each key that occurs more than once."""

    keys: "pl.DataFrame"  # key, blocks, first (number of its first block)
    block_tokens: int

    def blocks(self, batch: "pl.DataFrame") -> "pl.DataFrame":
        """The batch with the ids of the shared blocks in place of the key."""
        import polars as pl

        known = batch.join(self.keys, on="prefix", how="left", maintain_order="left")
        ids = pl.int_ranges(pl.col("first"), pl.col("first") + pl.col("blocks"), dtype=pl.Int64)
        return known.with_columns(prefix=pl.when(pl.col("blocks") > 0).then(ids).otherwise([])).drop("first", "blocks")


@dataclass
class TraceFile:
    """A log that was recognised; of the rows, no more than the first were read yet."""

    path: Path
    format: str
    log: Log
    strict: bool = False
    shared: SharedPrompts | None = None
    problems: Problems = field(default_factory=Problems)  # filled while reading

    @property
    def block_tokens(self) -> int | None:
        """Of the shared blocks, where the log has any."""
        return self.log.layout.block_tokens if self.log.layout.paths("prefix") else None

    def read(self, most: int | None = None) -> Trace:
        """The whole log: sorted by arrival, times from the first request, tenants and blocks numbered.

        With ``most`` it ends with the batch in which requests and the blocks they list come to so many, or after
        which no more can be held.
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
        columns = {name: whole[name].to_numpy() for name in ("priority", "patience", "usd") if name in whole.columns}
        names, numbers = _numbered(whole["tenant"]) if "tenant" in whole.columns else ((), None)
        trace = make_trace(
            *(whole[name].to_numpy() for name in ("arrival", "input", "output")),
            tenant=numbers,
            tenants=names,
            priority=columns.get("priority"),
            patience_s=columns.get("patience"),
            prefix=_blocks(whole["prefix"], self.block_tokens) if "prefix" in whole.columns else None,
            usd=columns.get("usd"),
            source=f"{self.path.name} ({self.format})",
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
        """All usable rows, some hundred thousand at a time, in any order.

        Columns are arrival (unix time for dates, or the log's own clock), input and output; where the log has them,
        tenant, priority, patience (infinite where the client waits for good), prefix, a list of block ids, usd,
        what the log says the request cost, and ``OF_SESSIONS``.
        """
        from tokonomics.traffic.cleaning import clean, set_aside

        layout = self.log.layout
        problems = self.problems = Problems(notes=[*self.log.notes, *([layout.note] if layout.note else [])])
        good = unanswered = costless = 0
        for raw in self.log.raw(layout):
            kept, bad = clean(raw, layout)
            if len(bad):
                set_aside(problems, bad, layout, named(self.path), self.log.place, strict=self.strict)
            if len(kept):
                good += len(kept)
                unanswered += int((kept["output"] == 0).sum())
                if "usd" in kept.columns and (unread := kept["usd"].null_count()):
                    costless += unread
                    kept = kept.with_columns(kept["usd"].fill_null(0.0))
                yield self.shared.blocks(kept) if self.shared else kept
        left_out = self.log.unfolding.left_out if self.log.unfolding else {}
        if not good and not problems.count and left_out:
            what = "; ".join(f"{number:,} {why}" for why, number in left_out.items())
            raise BadInput(f"no request in it can be used: {what}", where=named(self.path))
        if not good and not problems.count:
            raise BadInput("has no requests: there is nothing below its header", where=named(self.path))
        if not good:
            what = "; ".join(["no request in it can be used", *problems.first[:3]])
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
    """Recognises a log, or a shipped sample by its name, and makes it ready to be read.

    ``columns`` says which column is what (``arrival=…,input=…,output=…``) where the log is not a known one: times are
    seconds (milliseconds where the name ends in ``_ms``) or dates; ``prefix`` is a list of ids of chained blocks
    (``block=`` says of how many tokens), or a key that requests with a common start of their prompts share;
    ``patience`` is how long after its arrival the client hangs up (empty: it waits for good). ``session`` is the
    conversation or job that a request is part of; ``parent`` (one or several) are the ``request`` ids whose answers it
    waits for, ``pause`` how long after them it is sent. With ``strict`` the first
    row that cannot be used is an error. ``by`` names labels (team, feature, user …): the tenant of a request is then
    what its fields, metadata or tags say of them.
    """
    file = Path(path)
    name = str(path)
    is_sample = name in TRACES and not file.exists()
    log = recognise(sample_path(name) if is_sample else file, columns, labels_in(by))
    opened = TraceFile(file, "shipped sample" if is_sample else log.layout.name, log, strict)
    return _with_blocks(opened) if log.layout.paths("prefix") else opened


def _with_blocks(file: TraceFile) -> TraceFile:
    """The same file, knowing the size of its blocks: as stated, as its lists show, or from a pass over its keys."""
    from tokonomics.traffic.cleaning import clean

    layout = file.log.layout
    if layout.prefix_is_key:
        shared = _learn((clean(raw, layout)[0] for raw in file.log.raw(layout)), named(file.path))
        note = UPPER_BOUND.format(column=layout.label("prefix"))
        log = replace(file.log, layout=replace(layout, block_tokens=shared.block_tokens), notes=(*file.log.notes, note))
        return replace(file, log=log, shared=shared)
    if layout.block_tokens:
        return file
    first = next(iter(file.log.raw(layout)), None)
    size = None if first is None else _block_size(clean(first.head(1000), layout)[0])
    if size is None:
        what = f"cannot tell how many tokens a block of {layout.label('prefix')} has"
        raise BadInput(what, where=named(file.path), fix=f"Say so: {option('columns', '…,block=16')}")
    return replace(file, log=replace(file.log, layout=replace(layout, block_tokens=size)))


def _learn(batches: "Iterable[pl.DataFrame]", where: str) -> SharedPrompts:
    """One pass over the log for the shortest prompt of every key; memory grows with the number of keys only."""
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
        # Not after every batch: with millions of keys the work would grow with the square of the log.
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
    return SharedPrompts(counted.with_columns(first=pl.col("blocks").cum_sum() - pl.col("blocks")), block_tokens)


def _block_size(batch: "pl.DataFrame") -> int | None:
    """The block size at which the lists of blocks just cover the prompts; None where no power of two does."""
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
    """Ids numbered from 0: by a table where they lie close together, else by sorting."""
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


def _numbered(names: "pl.Series") -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """The distinct names in order, and the number of each row's."""
    distinct = names.unique().sort()
    numbers = names.replace_strict(distinct, range(len(distinct))).to_numpy()
    return tuple(distinct), numbers.astype(np.int32)


# --- a table that nobody knows ----------------------------------------------------------------------------------------


SHOWN_ROWS = 5


MOST_COLUMNS = 100
"""That are shown, and can be chosen from: our choice, a request log has some dozen."""


_CELL = 40  # characters


_OF_TOKENS = {"token", "tokens", "tok", "toks", "len", "length", "count", "n", "num"}


@dataclass(frozen=True)
class TablePreview:
    """The columns of a table, its first rows as short texts, and a guess at the column of each field."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    guesses: Mapping[str, str]


def preview(path: Path) -> TablePreview | None:
    """What is in a file that may be a table of requests, for the user to say which column is what; None: no table."""
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
    """Fields that are not null, by the keys that lead to them with dots between."""
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
    """The probable column of each field: one that people usually give it, else one with a word of it, such as ``when``.

    Tokens are numbers, so a column of text is none. The fields of sessions count only where they tell which belong
    together.
    """
    found: dict[str, str] = {}
    for name, known in LOG_FIELDS.items():
        left = [column for column in columns if column not in found.values()]
        if name in ("input", "output"):
            left = [column for column in left if _is_count(row[columns.index(column)] for row in rows)]
        there: dict[str, str] = {}
        for column in left:
            last = spelling(column.rpartition(".")[2])
            there.setdefault(formats.without_unit(last) if name == "arrival" else last, column)
        guess = usual_name(name, there, *known.likely.split(), name) or _worded({*known.words.split()}, left)
        if guess is not None:
            found[name] = guess
    if formats.tells_sessions(found):
        return found
    return {name: column for name, column in found.items() if name not in formats.OF_SESSIONS}


def _worded(wanted: set[str], names: Sequence[str]) -> str | None:
    """The first with a word of the field; of tokens sooner one that says that it counts them."""
    words = {name: set(spelling(name).split("_")) for name in names}
    fit = [name for name in names if words[name] & wanted]
    return next((name for name in fit if words[name] & _OF_TOKENS), fit[0] if fit else None)


def _is_count(cells: Iterable[str]) -> bool:
    """Whether all that is there are numbers, such as 812 and 812.0."""
    return all(re.fullmatch(r"[0-9]+(\.0)?", cell.strip()) for cell in cells if cell.strip())
