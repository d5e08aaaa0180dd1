"""Turn the fields of a log, as written, into times and token counts, or say why a row cannot be used.

Each batch is handled as columns: a value that cannot be read becomes null. A row with such a value, or one out of
range, is set aside with its place in the file and the reason. No row disappears without being counted.

The module also keeps Rust's panic messages about damaged files off the screen, since an error of ours reports them.
Polars raises a PanicException, but by then one of its threads has written the text of the panic, with a backtrace, to
file descriptor 2. While a file is read, that descriptor leads to a temporary file, and Python's own standard error to
the screen. If the file could be read, the text that was caught is shown afterwards.
"""

import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import polars as pl

from tokonomics.errors import BadInput, shorten
from tokonomics.traffic.formats import REQUIRED, UNNAMED, LogLayout
from tokonomics.traffic.trace import MOST_TOKENS

if TYPE_CHECKING:
    from tokonomics.traffic.readers import Problems

FIRST_SHOWN = 5
LATEST_S = 1e11  # counted in seconds it would be beyond year 5000, so it is in finer units
MOST_S = 1e12  # before or after 1970 or the log's own start: 30,000 years, more than any time in any unit
MOST_URGENT, LEAST_URGENT = -(2**31), 2**31 - 1
MOST_USD = 1e6  # of one request: above any price of a hundred million tokens, so more is a mistake in the file


def seconds(column: pl.Series, per_second: float) -> pl.Series:
    """Return times as seconds: numbers in the log's unit, or dates (UTC if they have no zone) as unix time."""
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if column.dtype == pl.Datetime:
        return column.dt.timestamp("us") / 1e6
    if column.dtype != pl.String:
        return waits(column, per_second)
    text = column.str.strip_chars()
    numbers = text.cast(pl.Float64, strict=False)
    if numbers.null_count() == text.null_count():
        return _scaled(numbers, per_second)
    return pl.select(pl.coalesce(_scaled(numbers, per_second), _dates(text))).to_series().alias(column.name)


def _dates(text: pl.Series) -> pl.Series:
    """Return the unix time of ISO dates: with or without fraction, zone, and the T between date and time.

    Whole seconds and the rest are read separately: a fixed format is parsed several times as fast as one with a
    fraction.
    """
    spaced = text
    if (text.str.slice(10, 1) == "T").any():
        spaced = text.str.replace(r"^(.{10})T", "$1 ")
    whole = spaced.str.slice(0, 19).str.to_datetime("%Y-%m-%d %H:%M:%S", strict=False, time_unit="us", cache=False)
    rest = spaced.str.slice(19).alias("rest")
    frame = rest.to_frame().with_columns(whole=whole.dt.timestamp("ms") / 1e3)
    after = pl.col("rest")
    digits = pl.when(after.str.starts_with(".")).then(after.cast(pl.Float64, strict=False))
    fraction = pl.when(after == "").then(0.0).otherwise(digits)
    read = frame.select(pl.col("whole") + pl.when(fraction < 1).then(fraction)).to_series()
    if read.null_count() == whole.null_count():
        return read
    # A fraction of a second and the offset of a zone.
    ending = r"^(\.[0-9]{1,15})? ?(?:Z|z|UTC|([+-])([0-9]{2})(?::?([0-9]{2}))?|)$"
    fraction, sign, hours, minutes = (after.str.extract(ending, group) for group in range(1, 5))
    ahead = hours.cast(pl.Float64) * 60 + minutes.cast(pl.Float64).fill_null(0.0)
    ahead = pl.when(sign == "-").then(-ahead).otherwise(ahead).fill_null(0.0)
    later = pl.when(after.str.contains(ending)).then(fraction.cast(pl.Float64).fill_null(0.0) - 60 * ahead)
    return frame.select(pl.col("whole") + later).to_series()


def _scaled(numbers: pl.Series, per_second: float) -> pl.Series:
    if per_second:
        return numbers if per_second == 1.0 else numbers / per_second
    size = pl.col("")
    digits = (size.abs() / LATEST_S).clip(1).log10()
    finer = pl.when(digits == 0).then(1.0).when(digits <= 3).then(1e3).when(digits <= 6).then(1e6).otherwise(1e9)
    return numbers.alias("").to_frame().select(size / finer).to_series()


def counts(column: pl.Series, _: float = 1.0) -> pl.Series:
    """Return whole numbers, also those written as 12.0; null where a value is not one."""
    if column.dtype.is_integer():
        return column.cast(pl.Int64, strict=False)
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        whole = text.cast(pl.Int64, strict=False)
        if whole.null_count() == text.null_count():
            return whole
        column = text.cast(pl.Float64, strict=False)
    elif not column.dtype.is_numeric():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Int64)
    floats = column.cast(pl.Float64).alias("")
    integral = pl.when(pl.col("").is_finite() & (pl.col("").round() == pl.col(""))).then(pl.col(""))
    return floats.to_frame().select(integral.cast(pl.Int64, strict=False)).to_series().alias(column.name)


def waits(column: pl.Series, per_second: float) -> pl.Series:
    """Return lengths of time as seconds: numbers only, no dates; null where a value is not a number."""
    if column.dtype != pl.String and not column.dtype.is_numeric():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return _scaled(column.cast(pl.Float64, strict=False), per_second)


def dollars(column: pl.Series, _: float) -> pl.Series:
    """Return the costs of requests; null where a value is not a valid amount."""
    inside = pl.when(pl.col("usd").is_between(0, MOST_USD)).then(pl.col("usd"))
    return waits(column, 1.0).alias("usd").to_frame().select(inside).to_series()


class _Rule(NamedTuple):
    """How a field is read, and its valid range."""

    read: Callable[[pl.Series, float], pl.Series]
    least: float
    most: float
    what: str | None = None
    """What a message says the value must be; None: an unreadable value counts as missing, and the row can be used."""


_RULES = {
    "arrival": _Rule(seconds, -MOST_S, MOST_S, "a time"),
    "input": _Rule(counts, 1, MOST_TOKENS, "a whole number"),
    "output": _Rule(counts, 0, MOST_TOKENS, "a whole number"),
    "priority": _Rule(counts, MOST_URGENT, LEAST_URGENT, "a whole number"),
    "patience": _Rule(waits, math.ulp(0.0), math.inf, "a time above 0"),
    "usd": _Rule(dollars, 0, MOST_USD, f"dollars from 0 to {MOST_USD:,.0f}"),
    "cached": _Rule(counts, 0, MOST_TOKENS),
    "pause": _Rule(waits, 0, math.inf),
    "took": _Rule(waits, 0, math.inf),
    "ended": _Rule(seconds, -MOST_S, MOST_S),
}


def _checked(layout: LogLayout, present: Collection[str]) -> dict[str, _Rule]:
    """Return the fields whose values must be valid; a cost only if the user named its column."""
    rules = {name: rule for name, rule in _RULES.items() if rule.what and (name != "usd" or layout.usd_told)}
    return {name: rule for name, rule in rules.items() if name in present}


def clean(raw: pl.DataFrame, layout: LogLayout) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the usable rows with columns arrival, input, output, …; and the others with their places and values."""
    bare = pl.col("usd").str.strip_chars().str.strip_prefix("$").str.strip_chars()
    for name, text in (("patience", pl.col("patience").str.strip_chars()), ("usd", bare)):
        if name in raw.columns and raw[name].dtype == pl.String:
            raw = raw.with_columns(text.replace("", None))
    columns = {
        name: rule.read(raw[name], layout.units.get("arrival" if name == "ended" else name, 1.0))
        for name, rule in _RULES.items()
        if name in raw.columns
    }
    good = pl.lit(value=True)
    for name, rule in _checked(layout, raw.columns).items():
        inside = pl.col(name).is_between(rule.least, rule.most)
        good &= inside if name in REQUIRED else inside | pl.col(f"{name}_raw").is_null()
    if "trouble" in raw.columns:
        good &= pl.col("trouble").is_null()
    if "prefix" in raw.columns and not layout.prefix_is_key:
        # Every block needs an id, and the blocks must fit into the prompt, or into prompt and answer.
        blocks, size = pl.col("prefix").list.len().fill_null(0).cast(pl.Int64), layout.block_tokens or 1
        good &= ~pl.col("prefix").list.eval(pl.element().is_null()).list.any().fill_null(value=False)
        good &= ((blocks - 1) * size < pl.col("input")) | (blocks * size <= pl.col("input") + pl.col("output"))
    both = raw.rename({name: f"{name}_raw" for name in columns}).with_columns(**columns)
    marked = both.with_columns(good=good.fill_null(value=False))
    kept = marked if marked["good"].all() else marked.filter("good")
    tidy = {
        "tenant": pl.col("tenant").cast(pl.String).fill_null(UNNAMED),
        "priority": pl.col("priority").fill_null(0),
        "patience": pl.col("patience").fill_null(math.inf),
        # An unreadable cost stays null, so that the caller can count it.
        "usd": pl.when(pl.col("usd_raw").is_null()).then(0.0).otherwise(pl.col("usd")).alias("usd"),
        "prefix": pl.col("prefix") if layout.prefix_is_key else pl.col("prefix").fill_null([]),
        **{name: pl.col(name).cast(pl.String) for name in ("session", "request", "parent")},
        **{name: pl.col(name) for name in ("cached", "pause", "took", "ended")},
    }
    optional = [column for name, column in tidy.items() if name in raw.columns]
    return kept.select(*REQUIRED, *optional), marked.filter(~pl.col("good"))


def reason(row: dict[str, Any], layout: LogLayout) -> str:
    """Say why a row cannot be used, in the words of its log."""
    if row.get("trouble"):
        return shorten(str(row["trouble"]), 120)
    if all(row[f"{name}_raw"] is None for name in REQUIRED):
        return "empty row"
    for name, rule in _checked(layout, row).items():
        label, given, read = layout.label(name), row[f"{name}_raw"], row[name]
        shown = shorten(repr(given) if isinstance(given, str) else str(given))
        if given is None and name in REQUIRED:
            return f"{label} is missing"
        if given is None or (read is not None and rule.least <= read <= rule.most):
            continue
        if read is not None and rule.read is counts:
            return f"{label} is {shown}, must be {rule.least:,} to {rule.most:,}"
        return f"{label} is {shown}, not {rule.what}"
    blocks = row.get("prefix") or []
    if None in blocks:
        return f"{layout.label('prefix')} has a block without an id"
    listed = f"{layout.label('prefix')} lists {len(blocks):,} blocks of {layout.block_tokens or 1:,}"
    return f"{listed}: more than {row['input']:,} + {row['output']:,} tokens of prompt and answer"


def set_aside(
    problems: "Problems", bad: pl.DataFrame, layout: LogLayout, file: str, place: str, *, strict: bool
) -> None:
    """Count the unusable rows and keep the first few; if ``strict``, refuse the first."""
    for row in bad.head(FIRST_SHOWN - len(problems.first)).iter_rows(named=True):
        why = reason(row, layout)
        if strict:
            where = f"{file}:{row['row']}" if place == "line" else f"{file}: {place} {row['row']}"
            raise BadInput(why, where=where)
        problems.first.append(f"{place} {row['row']}: {why}")
    problems.count += len(bad)


_LOCK = Lock()
_STDERR = 2
_reading = 0  # files being read: the first takes the descriptor, the last gives it back
_caught: "_Caught | None" = None


class _Caught:
    """Lead file descriptor 2 to a temporary file until it is released."""

    def __init__(self) -> None:
        self.text: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `release`
        self.before: Any = sys.stderr
        sys.stderr.flush()
        self.screen = os.dup(_STDERR)
        os.dup2(self.text.fileno(), _STDERR)
        how: dict[str, Any] = {"encoding": self.before.encoding, "errors": "replace", "buffering": 1, "closefd": False}
        sys.stderr = open(self.screen, "w", **how)  # noqa: PTH123, SIM115 - closed with the descriptor

    def release(self, *, shown: bool) -> None:
        sys.stderr.flush()
        sys.stderr = self.before
        os.dup2(self.screen, _STDERR)
        os.close(self.screen)
        if shown and self.text.tell():
            self.text.seek(0)
            shutil.copyfileobj(self.text, sys.stderr.buffer)
            sys.stderr.flush()
        self.text.close()


@contextmanager
def without_panics() -> Iterator[None]:
    """Keep what a library writes to standard error off the screen; do nothing if standard error is not a file."""
    global _reading, _caught
    with _LOCK:
        _reading += 1
        if _reading == 1 and _is_plain():
            with suppress(OSError):  # without room for a temporary file, a panic also appears on the screen
                _caught = _Caught()
    shown = False
    try:
        yield
        shown = True
    finally:
        with _LOCK:
            _reading -= 1
            if not _reading and _caught:
                _caught.release(shown=shown)
                _caught = None


def _is_plain() -> bool:
    """Return whether Python's standard error is the descriptor that Rust writes to."""
    try:
        return sys.stderr is not None and sys.stderr.fileno() == _STDERR
    except (OSError, ValueError, AttributeError):
        return False
