"""Reads a request log of any supported kind, in batches of bounded memory or whole, as a ``Trace``.

What a file is, is told from what it holds. Every row ends up in a batch or in ``problems``, with its place and the
reason; a file of which no row can be used is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import NoRoom, check_room
from tokonomics.traffic import shared_prompts
from tokonomics.traffic.cleaning import Problems, clean, set_aside
from tokonomics.traffic.formats import COLUMNS_HELP, LogLayout
from tokonomics.traffic.recognise import Log, recognise
from tokonomics.traffic.samples import sample_names, sample_path
from tokonomics.traffic.sources import named
from tokonomics.traffic.trace import PrefixBlocks, Trace, make_trace

if TYPE_CHECKING:
    import polars as pl

_BYTES_PER_ROW, _BYTES_PER_BLOCK = 110, 30
"""While a log is read whole: peaks over 3 million rows with tenants, and over 30 million block ids, as parquet."""


class Rows(NamedTuple):
    """A batch of requests of a log, in any order; columns of equal length."""

    arrival_s: NDArray[np.float64]
    """Unix time for dates, or the log's own clock."""
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    tenant: NDArray[np.int32] | None = None
    """Index into ``tenants``, the names in this batch."""
    tenants: tuple[str, ...] = ()
    priority: NDArray[np.int64] | None = None
    blocks: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
    """The ids of all requests as the log has them, and where those of each begin (one more than requests)."""
    patience_s: NDArray[np.float64] | None = None
    """Infinite where the client waits for good."""


@dataclass
class TraceFile:
    """A log that was recognised; of the rows, no more than the first were read yet."""

    path: Path
    format: str
    log: Log
    strict: bool = False
    shared: shared_prompts.SharedPrompts | None = None
    problems: Problems = field(default_factory=Problems)
    """Filled while reading."""

    @property
    def block_tokens(self) -> int | None:
        """Of the shared blocks, where the log has any."""
        return self.log.layout.block_tokens if self.log.layout.prefix else None

    def batches(self) -> Iterator[Rows]:
        """All usable rows, in batches of at most some hundred thousand."""
        return map(_rows, self._frames())

    def read(self, most: int | None = None) -> Trace:
        """The whole log: sorted by arrival, times from the first request, tenants and blocks numbered.

        With ``most`` it ends with the batch in which requests and the blocks they list come to so many, or after
        which no more can be held.
        """
        import polars as pl

        frames, held = [], 0
        try:
            for frame in self._within_memory():
                frames.append(frame)
                held += len(frame) + (int(frame["prefix"].list.len().sum()) if "prefix" in frame.columns else 0)
                if most is not None and held >= most:
                    break
        except NoRoom:
            if most is None or not frames:
                raise
        whole = pl.concat(frames)
        names, numbers = _numbered(whole["tenant"]) if "tenant" in whole.columns else ((), None)
        prefix = None
        if "prefix" in whole.columns and self.block_tokens:
            ids, starts = _flat(whole["prefix"])
            dense, distinct = _dense(ids)
            prefix = PrefixBlocks(dense, starts, self.block_tokens, distinct)
        return make_trace(
            whole["arrival"].to_numpy(),
            whole["input"].to_numpy(),
            whole["output"].to_numpy(),
            tenant=numbers,
            tenants=names,
            priority=whole["priority"].to_numpy() if "priority" in whole.columns else None,
            patience_s=whole["patience"].to_numpy() if "patience" in whole.columns else None,
            prefix=prefix,
            source=f"{self.path.name} ({self.format})",
        )

    def _within_memory(self) -> "Iterator[pl.DataFrame]":
        """The rows as they are read; stops when all of them would not fit, however small the file was packed."""
        rows = blocks = 0
        for frame in self._frames():
            rows += len(frame)
            if "prefix" in frame.columns:
                blocks += int(frame["prefix"].list.len().sum() or 0)
            check_room(
                rows * _BYTES_PER_ROW + blocks * _BYTES_PER_BLOCK,
                f"more than {rows:,} requests",
                where=named(self.path),
                fix="Give it in parts, as files of fewer rows; `tokonomics trace` sums up a log of any length.",
            )
            yield frame

    def _frames(self) -> "Iterator[pl.DataFrame]":
        layout = self.log.layout
        problems = self.problems = Problems(notes=[*self.log.notes, *([layout.note] if layout.note else [])])
        good = unanswered = 0
        for raw in self.log.raw(layout):
            kept, bad = clean(raw, layout)
            if len(bad):
                set_aside(problems, bad, layout, named(self.path), self.log.place, strict=self.strict)
            if len(kept):
                good += len(kept)
                unanswered += int((kept["output"] == 0).sum())
                yield self.shared.blocks(kept) if self.shared else kept
        if not good and not problems.count:
            raise BadInput("has no requests: there is nothing below its header", where=named(self.path))
        if not good:
            raise BadInput(
                "; ".join(["no request in it can be used", *problems.first[:3]]),
                where=named(self.path),
                fix=f"It was read as {self.format}. If it is something else, name the columns: {COLUMNS_HELP}",
            )
        if unanswered and layout.unanswered:
            problems.notes.append(f"{unanswered:,} {layout.unanswered}")


def open_trace(path: Path | str, *, columns: str | None = None, strict: bool = False) -> TraceFile:
    """Recognises a log, or a shipped sample by its name, and makes it ready to be read.

    ``columns`` says which column is what (``arrival=…,input=…,output=…``) where the log is not a known one: times are
    seconds (milliseconds where the name ends in ``_ms``) or dates; ``prefix`` is a list of ids of chained blocks
    (``block=`` says of how many tokens), or a key that requests with a common start of their prompts share;
    ``patience`` is how long after its arrival the client hangs up (empty: it waits for good). With ``strict`` the first
    row that cannot be used is an error.
    """
    file = Path(path)
    name = str(path)
    is_sample = name in sample_names() and not file.exists()
    log = recognise(sample_path(name) if is_sample else file, columns)
    opened = TraceFile(file, "shipped sample" if is_sample else log.layout.name, log, strict)
    return _with_blocks(opened) if log.layout.prefix else opened


def _with_blocks(file: TraceFile) -> TraceFile:
    """The same file, knowing the size of its blocks: as stated, as its lists show, or from a pass over its keys."""
    layout = file.log.layout
    if layout.prefix_is_key:
        shared = shared_prompts.learn((clean(raw, layout)[0] for raw in file.log.raw(layout)), named(file.path))
        note = shared_prompts.UPPER_BOUND.format(column=layout.label("prefix"))
        log = replace(file.log, layout=replace(layout, block_tokens=shared.block_tokens), notes=(*file.log.notes, note))
        return replace(file, log=log, shared=shared)
    if layout.block_tokens:
        return file
    found = next((_block_size(raw, layout) for raw in islice(file.log.raw(layout), 1)), None)
    if found is None:
        raise BadInput(
            f"cannot tell how many tokens a block of {layout.label('prefix')} has",
            where=named(file.path),
            fix=f"Say so: {option('columns', '…,block=16')}",
        )
    return replace(file, log=replace(file.log, layout=replace(layout, block_tokens=found)))


def _block_size(raw: "pl.DataFrame", layout: LogLayout) -> int | None:
    return shared_prompts.block_size_of_lists(clean(raw.head(1000), layout)[0])


def _rows(frame: "pl.DataFrame") -> Rows:
    names, numbers = _numbered(frame["tenant"]) if "tenant" in frame.columns else ((), None)
    return Rows(
        frame["arrival"].to_numpy(),
        frame["input"].to_numpy(),
        frame["output"].to_numpy(),
        numbers,
        names,
        frame["priority"].to_numpy() if "priority" in frame.columns else None,
        _flat(frame["prefix"]) if "prefix" in frame.columns else None,
        frame["patience"].to_numpy() if "patience" in frame.columns else None,
    )


def _flat(lists: "pl.Series") -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The ids of all requests in a row, and where those of each begin."""
    lengths = lists.list.len().to_numpy()
    ids = lists.filter(lists.list.len() > 0).explode().to_numpy().astype(np.int64)
    return ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _dense(ids: NDArray[np.int64]) -> tuple[NDArray[np.int32], int]:
    """Ids numbered from 0, and how many differ; by a table where they lie close together, else by sorting."""
    if not len(ids):
        return np.zeros(0, np.int32), 0
    low = int(ids.min())
    span = int(ids.max()) - low + 1
    if span > 8 * len(ids) + 1024:
        distinct, numbers = np.unique(ids, return_inverse=True)
        return numbers.astype(np.int32), len(distinct)
    seen = np.zeros(span, bool)
    seen[ids - low] = True
    number = np.cumsum(seen, dtype=np.int32) - np.int32(1)
    return number[ids - low], int(number[-1]) + 1


def _numbered(names: "pl.Series") -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """The distinct names in order, and the number of each row's."""
    distinct = names.unique().sort()
    numbers = names.replace_strict(distinct, range(len(distinct))).to_numpy()
    return tuple(distinct), numbers.astype(np.int32)
