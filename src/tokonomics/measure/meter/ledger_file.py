"""Open the meter's ledger: one SQLite file with its tables, one writer at a time, and damage that is refused."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tokonomics.errors import BadInput, option, shorten
from tokonomics.measure.meter.spans import SUMS

APPLICATION = 0x746F6B6F  # ``toko``: marks the file as ours, in SQLite's own field for it
SCHEMA = 2  # 1 had no ``failed_s``

_CREATE = f"""
CREATE TABLE spans (
  id INTEGER PRIMARY KEY, target TEXT NOT NULL, model TEXT NOT NULL, engine TEXT NOT NULL, watched TEXT NOT NULL,
  usd_per_hour REAL NOT NULL, labels TEXT NOT NULL, start REAL NOT NULL,
  {", ".join(f"{name} REAL NOT NULL" for name in SUMS)});
CREATE INDEX spans_by_end ON spans (start + seconds);
CREATE INDEX spans_by_server ON spans (target, model, id);
CREATE TABLE servers (
  target TEXT PRIMARY KEY, until REAL NOT NULL, usd_per_hour REAL NOT NULL, is_gone INTEGER NOT NULL,
  readings TEXT NOT NULL, totals TEXT NOT NULL);
"""

# Later tables are separate, so that older readers still work. ``energy``: what the GPUs drew, in bins of five minutes.
# ``checks``: a checksum of each span, because a flipped bit would change the bill. ``departed``: the sums of forgotten
# servers' spans, by model, so that thousands of pods that came and went are a few rows. ``windows``: what servers did,
# ten minutes a row, hours after two days. ``forecasts``: what a twin expected of a window, and how it was.
_LATER = """
CREATE TABLE IF NOT EXISTS energy (start REAL PRIMARY KEY, seconds REAL NOT NULL, joules REAL NOT NULL);
CREATE TABLE IF NOT EXISTS checks (id INTEGER PRIMARY KEY, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS departed (model TEXT PRIMARY KEY, totals TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS windows (
  target TEXT NOT NULL, model TEXT NOT NULL, start REAL NOT NULL, document TEXT NOT NULL,
  PRIMARY KEY (start, target, model)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS forecasts (
  target TEXT NOT NULL, model TEXT NOT NULL, start REAL NOT NULL, document TEXT NOT NULL,
  PRIMARY KEY (target, model, start)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS forecasts_by_start ON forecasts (start);
"""
# Compute it for a row of the first version as was done then.
FAILED_S = "CASE WHEN answered + failed > 0 THEN busy_s * failed / (answered + failed) ELSE 0.0 END"
_UPGRADE = f"""
BEGIN IMMEDIATE; ALTER TABLE spans ADD COLUMN failed_s REAL NOT NULL DEFAULT 0.0;
UPDATE spans SET failed_s = {FAILED_S}; PRAGMA user_version = {SCHEMA}; COMMIT;
"""


def default_ledger() -> Path:
    """Return where the ledger is unless a file is named."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(data) / "tokonomics" / "meter.db"


def locked(path: Path) -> IO[str]:
    """Take the lock for writing, which ends with the process, however it ends."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = Path(f"{path}.lock").open("a")  # noqa: SIM115 - held as long as the ledger is open; not ours to empty
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror}", where=_where(path)) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        fix = f"Give that meter all the addresses, or this one a file of its own with {option('ledger', 'FILE')}."
        raise BadInput("another meter is writing to this ledger", where=_where(path), fix=fix) from None
    return lock


def opened(path: Path, read_only: bool) -> sqlite3.Connection:
    """Return a connection to the file, with all its tables if it may be written."""
    where = _where(path)
    if read_only and not path.exists():
        fix = "Meter first: tokonomics meter http://… --usd-per-hour 2.49"
        raise BadInput("there is no ledger yet", where=where, fix=fix)
    with ExitStack() as undo:
        try:
            db = _connect(path, read_only)
            undo.callback(db.close)
            asked = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            application, version, tables = (db.execute(query).fetchone()[0] for query in asked)
            if application != APPLICATION and (tables or read_only):
                raise BadInput("is not a ledger of tokonomics", where=where, fix="Name another file.")
            if version > SCHEMA:
                said = f"was written by a newer tokonomics (ledger version {version}, this one reads up to {SCHEMA})"
                raise BadInput(said, where=where, fix="Upgrade tokonomics, or name another file.")
            if not read_only:
                db.execute("PRAGMA journal_mode = WAL")
                # Power loss that undoes a commit also undoes its counters: the next meter counts those tokens once.
                db.execute("PRAGMA synchronous = NORMAL")
                if not tables:
                    header = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {SCHEMA};"
                    db.executescript(f"BEGIN IMMEDIATE; {_CREATE} {header} COMMIT;")
                elif version < SCHEMA:
                    db.executescript(_UPGRADE)
                db.executescript(_LATER)
        except (sqlite3.Error, UnicodeError) as error:  # a message that quotes a damaged schema may not be text
            raise BadInput(f"cannot be used as a ledger: {shorten(str(error), 120)}", where=where) from None
        undo.pop_all()
    return db


def _connect(path: Path, read_only: bool) -> sqlite3.Connection:
    if not read_only:
        return sqlite3.connect(path, isolation_level=None, timeout=5)
    address = f"{path.resolve().as_uri()}?mode=ro"
    with ExitStack() as undo:
        db = sqlite3.connect(address, uri=True, isolation_level=None, timeout=5)
        undo.callback(db.close)
        try:
            db.execute("PRAGMA user_version")
        except sqlite3.OperationalError:
            # A read-only folder has no place for the files that readers share with a writer; there is no writer either.
            if (journal := Path(f"{path}-wal")).exists() and journal.stat().st_size:
                raise  # what only the journal has would be missing from every sum
            return sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None)
        undo.pop_all()
    return db


@contextmanager
def undamaged(path: Path) -> Iterator[None]:
    """Refuse a ledger that a disk or a person has damaged: half of it would be a wrong bill."""
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        said = f"is damaged: {shorten(' '.join(str(error).split()) or type(error).__name__, 120)}"
        fix = "Put back a copy of it, save what can be read with sqlite3's .recover, or name another file."
        raise BadInput(said, where=_where(path), fix=fix) from None


def _where(path: Path) -> str:
    return option("ledger", shorten(str(path), 200))
