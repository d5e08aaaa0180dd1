"""Keep the meter's ledger: spans of paid time and the counters they end with, in one SQLite file.

A tick's spans and the last counters of every server are written in one transaction. However the meter ends, the
counters in the ledger match the sum of its spans, so the next meter continues from there: nothing is lost or counted
twice. Consecutive spans at the same price and in the same state, which start within the same five minutes, are one row.
While the disk is full, spans are kept in memory, joined if possible, and written when there is room.
"""

import json
import math
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from tokonomics.errors import shorten
from tokonomics.measure.meter.ledger_file import FAILED_S, SCHEMA, locked, opened, undamaged
from tokonomics.measure.meter.readings import Reading
from tokonomics.measure.meter.spans import SUMS, PaidTime, WatchedSpan
from tokonomics.measure.meter.state import MeterTally
from tokonomics.measure.meter.windows import ServedWindow, joined
from tokonomics.units import DAY_S, SECONDS_PER_HOUR

ROW_S = 300.0  # spans within this time are one row, so a report's edge moves its tokens by at most this
LATEST_S, LONGEST_S = 253_402_300_800.0, 10.0 * 366 * DAY_S  # the end of 9999, ten years; a row beyond is damaged
FINE_S, KEPT_S = 2 * DAY_S, 35 * DAY_S  # windows are ten minutes long for two days, then hours for five weeks
FORECASTS_KEPT_S = 8 * DAY_S  # a week, whole days
MOST_HELD = 50_000  # spans in memory while the disk is full, about 50 MB; beyond it they are joined across five minutes

_READINGS = TypeAdapter(list[Reading])
_WHO = ("target", "model", "engine", "watched", "usd_per_hour", "labels")
_COLUMNS = (*_WHO, "start", *SUMS)
_MARK = "target, until, usd_per_hour, is_gone, readings, totals"
# From one server to the one before it, by the table's key: each row is the newest of its server.
NEWEST_FORECAST = """SELECT target, model, start, document FROM forecasts WHERE (target, model) < (?, ?)
ORDER BY target DESC, model DESC, start DESC LIMIT 1"""
FORECASTS_BETWEEN = "SELECT document FROM forecasts WHERE start >= ? AND start < ? ORDER BY start, target, model"
FORECAST_STARTS = "SELECT start FROM forecasts ORDER BY start DESC LIMIT ?"


@dataclass(frozen=True, slots=True)
class Mark:
    """The time up to which a server is in the ledger, and its counters at that time, by model.

    The mark of a server that is gone is kept for a while, in case it comes back (``Ledger.forget``). A Prometheus that
    is asked for its past (``--since``) may report the server even later: its spans say what is already in the ledger.
    """

    target: str
    until: float
    readings: Mapping[str, Reading]
    totals: Mapping[str, MeterTally]  # the sums of all spans of each model
    usd_per_hour: float  # its price then, which an absence of the meter also costs
    is_gone: bool = False  # it was scaled down: not paid for until it is back


@dataclass(frozen=True, slots=True)
class Drawn:
    """What all GPUs that were read drew in the seconds before an instant."""

    at: float
    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class DayUsd:
    """Dollars of one model on servers with the same labels, in one day (UTC, counted from 1970)."""

    day: int
    model: str
    labels: Mapping[str, str]
    usd: float
    began: float  # unix seconds of the first of them


class Ledger:
    """An open ledger: one meter writes; any number of reports read."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self._held: list[PaidTime] = []
        self._held_marks: dict[str, Mark] = {}
        self._held_energy: list[Drawn] = []
        self._held_windows: dict[tuple[str, str, float], ServedWindow] = {}
        self._held_forecasts: dict[tuple[str, str, float], str] = {}
        self._named: dict[str, tuple[str, str]] = {}
        self._last: dict[tuple[str, str], tuple[int | None, PaidTime]] = {}
        self._lock = None if read_only else locked(path)
        try:
            self._db = opened(path, read_only)
            self._is_first = self._db.execute("PRAGMA user_version").fetchone()[0] < SCHEMA
        except BaseException:
            self._unlock()
            raise

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()
        self._unlock()

    @property
    def held(self) -> int:
        """Return the number of spans that could not be written yet."""
        return len(self._held)

    def record(
        self,
        spans: Iterable[PaidTime],
        marks: Iterable[Mark],
        drawn: Drawn | None = None,
        windows: Iterable[ServedWindow] = (),
    ) -> str | None:
        """Write a tick and whatever is held from before; return None, or why it could not be written."""
        _join(self._held, spans, ROW_S)
        self._held_energy = [*self._held_energy, drawn][-MOST_HELD:] if drawn else self._held_energy
        self._held_marks |= {mark.target: mark for mark in marks}
        self._held_windows |= {window.key: window for window in windows}
        try:
            self._write()
        except sqlite3.Error as error:
            self._roll_back()
            if len(self._held) > MOST_HELD:
                spans, self._held = self._held, []
                _join(self._held, spans, float("inf"))
            return str(error)
        self._held, self._held_marks, self._named, self._held_energy, self._held_windows = [], {}, {}, [], {}
        return None

    def name(self, target: str, model: str, engine: str) -> None:
        """Assign a server's spans without a model to the model it turned out to have; written with the next tick."""
        self._named[target] = model, engine
        self._held = [
            replace(span, model=model, engine=engine) if (span.target, span.model) == (target, "") else span
            for span in self._held
        ]

    def marks(self) -> dict[str, Mark]:
        """Return the mark of every server, as of the last tick that was written."""
        with undamaged(self.path):
            rows = self._db.execute(f"SELECT {_MARK} FROM servers")
            return {
                target: Mark(
                    target,
                    _finite(until),
                    {reading.model: reading for reading in _READINGS.validate_json(readings)},
                    {model: MeterTally(**sums) for model, sums in json.loads(totals).items()},
                    _finite(usd_per_hour),
                    bool(is_gone),
                )
                for target, until, usd_per_hour, is_gone, readings, totals in rows
            }

    def departed(self) -> dict[str, MeterTally]:
        """Return the sums of all spans of forgotten servers, by model."""
        with undamaged(self.path):
            rows = self._db.execute("SELECT model, totals FROM departed") if self._has("departed") else ()
            return {model: MeterTally(**json.loads(totals)) for model, totals in rows}

    def forget(self, before: float) -> list[str]:
        """Drop the marks of discovered servers gone since then, but keep their sums; return their names."""
        query = "SELECT target FROM servers WHERE is_gone AND until < ? AND target NOT LIKE '%://%'"
        with undamaged(self.path):
            names = {target for (target,) in self._db.execute(query, (before,))}
        if not names or self._held_marks:
            return []
        sums = self.departed()
        for mark in self.marks().values():
            for model, total in mark.totals.items() if mark.target in names else ():
                sums[model] = sums.get(model, MeterTally()) + total
        rows = [(model, json.dumps(total.__dict__, separators=(",", ":"))) for model, total in sums.items()]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO departed VALUES (?, ?)", rows)
            self._db.executemany("DELETE FROM servers WHERE target = ?", [(target,) for target in names])
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()  # a full disk: the marks stay until there is room
            return []
        self._last = {key: row for key, row in self._last.items() if key[0] not in names}
        return sorted(names)

    def booked_until(self, target: str) -> float | None:
        """Return when the last of a server's spans ends; None if it has none."""
        with undamaged(self.path):
            query = "SELECT MAX(start + seconds) FROM spans WHERE target = ?"
            (until,) = self._db.execute(query, (target,)).fetchone()
            return None if until is None else _finite(until)

    def spans(self, since: float = float("-inf"), until: float = float("inf")) -> Iterator[PaidTime]:
        """Yield the spans that overlap the window, oldest first."""
        columns = ", ".join(FAILED_S if self._is_first and name == "failed_s" else name for name in _COLUMNS)
        with undamaged(self.path):
            checked = self._has("checks")
            crc, join = ("crc", "LEFT JOIN checks USING (id)") if checked else ("NULL", "")
            query = (
                f"SELECT {columns}, {crc} FROM spans {join} WHERE start < ? AND start + seconds >= ? ORDER BY start, id"
            )
            yield from map(_span, self._db.execute(query, (until, since)))

    def window(self, target: str, model: str, start: float) -> ServedWindow | None:
        """Return a window as it is so far; None if nothing is known of it."""
        if held := self._held_windows.get((target, model, start)):
            return held
        return next(self._windows("start = ? AND target = ? AND model = ?", start, target, model), None)

    def windows(self, since: float = 0.0, until: float = LATEST_S) -> Iterator[ServedWindow]:
        """Yield the windows that begin between two instants, oldest first; those that could not be written yet last."""
        for window in self._windows("start >= ? AND start < ? ORDER BY start, target, model", since, until):
            if window.key not in self._held_windows:
                yield window
        yield from (window for window in self._held_windows.values() if since <= window.start < until)

    def keep_forecasts(self, documents: Mapping[tuple[str, str, float], str]) -> str | None:
        """Write what a twin says of windows, by server, model and start; return None, or why it could not be written.

        What could not be written is held, and written with what comes next.
        """
        self._held_forecasts |= documents
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for key, document in self._held_forecasts.items():
                said = (*key, document)
                self._db.execute(
                    "INSERT OR REPLACE INTO forecasts (target, model, start, document) VALUES (?, ?, ?, ?)", said
                )
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._roll_back()
            return str(error)
        self._held_forecasts = {}
        return None

    def forecasts(self, since: float = 0.0, until: float = LATEST_S) -> Iterator[str]:
        """Yield what a twin said of the windows that begin between two instants, oldest first."""
        with undamaged(self.path):
            if self._has("forecasts"):
                for (document,) in self._db.execute(FORECASTS_BETWEEN, (since, until)):
                    yield document

    def newest_forecasts(self) -> dict[tuple[str, str, float], str]:
        """Return the newest of what a twin said of every server, by server, model and start."""
        found: dict[tuple[str, str, float], str] = {}
        with undamaged(self.path):
            before: Sequence[object] | None = (b"", b"") if self._has("forecasts") else None  # bytes sort after texts
            while before and (row := self._db.execute(NEWEST_FORECAST, before).fetchone()):
                before, found[row[:3]] = row[:2], row[3]
        return found

    def forecast_starts(self, most: int) -> list[float]:
        """Return when the windows of the newest forecasts begin, newest first."""
        with undamaged(self.path):
            rows = self._db.execute(FORECAST_STARTS, (most,)) if self._has("forecasts") else ()
            return [_finite(start) for (start,) in rows]

    def forget_windows(self, now: float) -> None:
        """Join windows older than two days into hours, and drop those older than five weeks, with their forecasts."""
        old = (now - FINE_S) // SECONDS_PER_HOUR * SECONDS_PER_HOUR
        within = f"CAST(start AS INTEGER) % {round(SECONDS_PER_HOUR)}"
        with undamaged(self.path):
            servers = self._db.execute(
                f"SELECT DISTINCT target, model FROM windows WHERE start < ? AND {within} > 0", (old,)
            ).fetchall()
        try:
            for server in servers:  # one at a time: those of a day of a large fleet are many
                self._join_into_hours(server, f"target = ? AND model = ? AND start < ? AND {within} > 0", old)
            self._db.execute("BEGIN IMMEDIATE")
            for table, kept_s in (("windows", KEPT_S), ("forecasts", FORECASTS_KEPT_S)):
                self._db.execute(f"DELETE FROM {table} WHERE start < ?", (now - kept_s,))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            self._roll_back()  # a full disk: tomorrow again

    def _join_into_hours(self, server: tuple[str, str], which: str, old: float) -> None:
        hours: dict[float, ServedWindow] = {}
        for window in self._windows(f"{which} ORDER BY start", *server, old):
            start = window.start // SECONDS_PER_HOUR * SECONDS_PER_HOUR
            first = hours.get(start) or self.window(*server, start)
            hours[start] = joined(first, window, start) if first else window.model_copy(update={"start": start})
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(f"DELETE FROM windows WHERE {which}", (*server, old))
        self._insert_windows(hours.values())
        self._db.execute("COMMIT")

    def _insert_windows(self, windows: Iterable[ServedWindow]) -> None:
        query = "INSERT OR REPLACE INTO windows (target, model, start, document) VALUES (?, ?, ?, ?)"
        self._db.executemany(
            query, [(*window.key, window.model_dump_json(exclude_defaults=True)) for window in windows]
        )

    def _windows(self, which: str, *values: object) -> Iterator[ServedWindow]:
        with undamaged(self.path):
            if self._has("windows"):
                for (document,) in self._db.execute(f"SELECT document FROM windows WHERE {which}", values):
                    yield ServedWindow.model_validate_json(document)

    def _has(self, table: str) -> bool:
        return bool(self._db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone())

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the ledger throughout, whatever is written meanwhile; refuse a damaged one."""
        with undamaged(self.path):
            self._db.execute("BEGIN")
            (found,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ValueError(found)
        try:
            yield
        finally:
            self._roll_back()

    def extent(self) -> tuple[float, float] | None:
        """Return when its first row begins and its last one ends; None while it has none."""
        with undamaged(self.path):
            first, last = self._db.execute("SELECT MIN(start), MAX(start + seconds) FROM spans").fetchone()
            return None if first is None else (_finite(first), _finite(last))

    def energy(self, since: float, until: float) -> Drawn | None:
        """Return what the GPUs drew in a window, by whole bins that begin in it; None if none were read."""
        with undamaged(self.path):
            if not self._has("energy"):
                return None
            query = "SELECT MAX(start), SUM(seconds), SUM(joules) FROM energy WHERE start >= ? AND start < ?"
            last, seconds, joules = self._db.execute(query, (since // ROW_S * ROW_S, until)).fetchone()
            return None if last is None else Drawn(_finite(last), _finite(seconds), _finite(joules))

    def usd_by_day(self, since: float, until: float) -> Iterator[DayUsd]:
        """Yield only dollars, added up by the database: weeks of a large fleet are millions of rows.

        A row within one day goes into its sum; one that crosses midnight or an edge is cut in proportion to length.
        """
        first, last = f"CAST(start / {DAY_S}.0 AS INTEGER)", f"CAST((start + seconds) / {DAY_S}.0 AS INTEGER)"
        apart = f"CASE WHEN {first} = {last} AND start >= ? AND start + seconds <= ? THEN 0 ELSE id END"
        query = f"""SELECT {first} AS day, {apart} AS apart, model, labels, SUM(usd), MIN(start), SUM(seconds)
                    FROM spans WHERE start < ? AND start + seconds >= ? GROUP BY day, apart, model, labels"""
        with undamaged(self.path):
            for day, row, model, labels, *sums in self._db.execute(query, (since, until, until, since)):
                usd, start, seconds = map(_finite, sums)
                pieces = [(day, start, usd)] if not row else _by_day(start, seconds, usd, since, until)
                for number, began, dollars in pieces:
                    yield DayUsd(number, model, json.loads(labels), dollars, began)

    def _write(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        last = dict(self._last)
        for target, (model, engine) in self._named.items():
            named = "UPDATE spans SET model = ?, engine = ? WHERE target = ? AND model = ''"
            self._db.execute(named, (model, engine, target))
            last.pop((target, ""), None)
        for span in self._held:
            row, open_span = last.get((span.target, span.model), (None, None))
            joined = joined_row(open_span, span, ROW_S) if open_span else None
            if joined is not None:
                sets = ", ".join(f"{name} = ?" for name in SUMS)
                values = [getattr(joined, name) for name in SUMS]
                self._db.execute(f"UPDATE spans SET {sets} WHERE id = ?", (*values, row))
            else:
                labels = json.dumps(dict(sorted(span.labels.items())))
                values = [labels if name == "labels" else getattr(span, name) for name in _COLUMNS]
                places = ", ".join("?" for _ in _COLUMNS)
                row = self._db.execute(f"INSERT INTO spans ({', '.join(_COLUMNS)}) VALUES ({places})", values).lastrowid
            last[span.target, span.model] = row, joined or span
            self._db.execute("INSERT OR REPLACE INTO checks VALUES (?, ?)", (row, _crc(joined or span)))
        for drawn in self._held_energy:
            add = "seconds = seconds + excluded.seconds, joules = joules + excluded.joules"
            query = f"INSERT INTO energy VALUES (?, ?, ?) ON CONFLICT(start) DO UPDATE SET {add}"
            self._db.execute(query, (drawn.at // ROW_S * ROW_S, drawn.seconds, drawn.joules))
        for mark in self._held_marks.values():
            readings = _READINGS.dump_json([*mark.readings.values()]).decode()
            totals = json.dumps({model: sums.__dict__ for model, sums in mark.totals.items()}, separators=(",", ":"))
            values = [mark.target, mark.until, mark.usd_per_hour, mark.is_gone, readings, totals]
            self._db.execute(f"INSERT OR REPLACE INTO servers ({_MARK}) VALUES (?, ?, ?, ?, ?, ?)", values)
        self._insert_windows(self._held_windows.values())
        self._db.execute("COMMIT")
        self._last = last

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _by_day(start: float, seconds: float, usd: float, since: float, until: float) -> Iterator[tuple[int, float, float]]:
    """Yield the part of a row in each day of a window: the day, where the part begins, and its dollars."""
    first, end = max(start, since), min(start + seconds, until)
    while first < end:
        day = int(first // DAY_S)
        ends = min(end, (day + 1) * DAY_S)
        yield day, first, usd * (ends - first) / seconds
        first = ends


def _finite(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{shorten(repr(value))} is no number")
    return value


def _join(into: list[PaidTime], pieces: Iterable[PaidTime], row_s: float) -> None:
    """Add pieces, each to the last span of its server and model if it continues that one."""
    last = {(span.target, span.model): place for place, span in enumerate(into)}
    for piece in pieces:
        place = last.get((piece.target, piece.model))
        joined = joined_row(into[place], piece, row_s) if place is not None else None
        if place is not None and joined is not None:
            into[place] = joined
        else:
            last[piece.target, piece.model] = len(into)
            into.append(piece)


def joined_row(first: PaidTime, then: PaidTime, row_s: float = ROW_S) -> PaidTime | None:
    """Return two spans as one row of the ledger; None if they cannot be one."""
    if any(getattr(first, name) != getattr(then, name) for name in _WHO):
        return None
    # A gap between them (the clock was set) must not become part of the row.
    apart = first.start // row_s != then.start // row_s or abs(then.start - first.end) > 1e-3
    if apart and row_s != float("inf"):
        return None
    return replace(first, **{name: getattr(first, name) + getattr(then, name) for name in SUMS})


def _crc(span: PaidTime) -> int:
    """Return a checksum of everything but the model and engine, which may become known later."""
    words = json.dumps([span.target, span.watched, dict(sorted(span.labels.items()))])
    numbers = [getattr(span, name) for name in ("usd_per_hour", "start", *SUMS)]
    return zlib.crc32(struct.pack(f"<{len(numbers)}d", *numbers), zlib.crc32(words.encode()))


def _span(columns: Sequence[object]) -> PaidTime:
    *row, crc = columns
    values = dict(zip(_COLUMNS, row, strict=True))
    values["labels"] = json.loads(str(values["labels"]))
    values["watched"] = WatchedSpan(str(values["watched"]))
    if not isinstance(values["labels"], dict) or not all(map(math.isfinite, row[len(_WHO) :])):  # type: ignore[arg-type]
        raise ValueError("a span that is no span")
    _finite(values["usd_per_hour"])
    span = PaidTime(**values)  # type: ignore[arg-type]
    if not 0 <= span.start <= span.end <= LATEST_S or span.seconds > LONGEST_S:
        raise ValueError("a span at no time")
    if crc is not None and crc != _crc(span):
        raise ValueError("a span that is not what was written")
    return span
