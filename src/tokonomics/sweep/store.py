"""Keep the folder of a sweep: finished points stay, however the program ends.

Each batch of finished points becomes one parquet file, which exists complete or not at all (``files``). Small parts are
merged now and then: the merged file is named after the first and the last part it holds, so a part inside another's
span was left by a kill between the two steps. A lock that the system releases with the process keeps a second sweep
out.
"""

import fcntl
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from tokonomics.errors import BadInput, shorten
from tokonomics.files import whole, write_text
from tokonomics.sweep.outcome import PointOutcome, Status
from tokonomics.sweep.points import SweepPoint

SCHEMA = 1  # version of the folder; another number is refused
MANIFEST, RESULTS, LOCK = "manifest.json", "results.parquet", "lock"
_PART = re.compile(r"part-(\d{9})(?:-(\d{9}))?\.parquet")
_SMALL = 128
"""Merge after this many small parts: reading thousands of tiny files takes longer than reading their rows."""
_CHUNK = 2_000  # points sorted at a time, as their answers are in memory together
_COLUMNS = {
    "id": pl.String, "status": pl.String, "error": pl.String, "seconds": pl.Float64, "figures": pl.String,
    "answer": pl.String,
}  # fmt: skip


@dataclass
class KeptPoint:
    """A finished point, without its whole answer."""

    outcome: PointOutcome
    part: str


@dataclass
class Store:
    """An open folder; only ``opened`` makes one."""

    folder: Path
    done: dict[str, KeptPoint] = field(default_factory=dict)  # by the point's id
    _next: int = 1
    _small: list[str] = field(default_factory=list)

    def add(self, finished: Sequence[tuple[str, PointOutcome]]) -> None:
        """Keep finished points; they are on disk when this returns."""
        if not finished:
            return
        name = f"part-{self._next:09}.parquet"
        rows = [
            (key, str(outcome.status), outcome.error, outcome.seconds, json.dumps(outcome.figures), outcome.answer)
            for key, outcome in finished
        ]
        self._write(pl.DataFrame(rows, schema=_COLUMNS, orient="row"), name)
        self._next += 1
        self._small.append(name)
        for key, outcome in finished:
            self.done[key] = KeptPoint(replace(outcome, answer=None), name)
        if len(self._small) >= _SMALL:
            self._merge()

    def forget_failed(self) -> int:
        """Forget failed points, so that they are done again."""
        failed = {kept.part for kept in self.done.values() if kept.outcome.status is Status.FAILED}
        for name in sorted(failed):
            rows = pl.read_parquet(self.folder / name, glob=False)
            self._write(rows.filter(pl.col("status") != Status.FAILED.value), name)
        gone = [key for key, kept in self.done.items() if kept.outcome.status is Status.FAILED]
        for key in gone:
            del self.done[key]
        return len(gone)

    def clear(self) -> None:
        for path in _parts(self.folder):
            path.unlink()
        (self.folder / RESULTS).unlink(missing_ok=True)
        self.done.clear()
        self._small.clear()

    def results(self, points: Sequence[SweepPoint], columns: Mapping[str, Sequence[Any]]) -> Path:
        """Write one file with a row for each point, in their order: ``columns``, then the whole answers."""
        path = self.folder / RESULTS
        light = pl.DataFrame(
            {"point": [point.place for point in points], "id": [point.id for point in points], **columns},
            schema_overrides={"point": pl.Int64},
            strict=False,
        )
        chunks = []
        for begin in range(0, len(points), _CHUNK):
            files = sorted({self.done[point.id].part for point in points[begin : begin + _CHUNK]})
            answers = pl.scan_parquet([self.folder / name for name in files], glob=False).select("id", "answer")
            rows = light.slice(begin, _CHUNK).lazy()
            chunks.append(rows.join(answers, on="id", how="left", maintain_order="left"))
        with whole(path, str(path)) as unfinished:
            pl.concat(chunks).sink_parquet(unfinished, maintain_order=True)
        return path

    def _merge(self) -> None:
        first, last = (_span(name) for name in (self._small[0], self._small[-1]))
        name = f"part-{first[0]:09}-{last[1]:09}.parquet"
        rows = pl.concat([pl.read_parquet(self.folder / part, glob=False) for part in self._small])
        self._write(rows, name)
        for part in self._small:
            (self.folder / part).unlink()
        self._small.clear()
        for key in rows["id"]:
            self.done[key].part = name

    def _write(self, rows: pl.DataFrame, name: str) -> None:
        with whole(self.folder / name, str(self.folder)) as unfinished:
            rows.write_parquet(unfinished)


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Open the folder, create it if needed, and lock out other sweeps until the end."""
    where = shorten(str(folder), 200)
    if folder.exists() and not folder.is_dir():
        raise BadInput("is a file, not the folder of a sweep", where=where, fix="Name another with --into.")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in (MANIFEST, LOCK)):
        raise BadInput("holds other files", where=where, fix="Name a new folder with --into.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", where=where) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(
                "another sweep is at work in it", where=where, fix="Wait for it, or name another folder with --into."
            ) from None
        yield _read(folder)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of the folder's last sweep; None if there was none."""
    path = folder / MANIFEST
    try:
        said = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be read: {error}", where=str(path), fix="Delete the folder to begin anew.") from None
    if not isinstance(said, dict) or said.get("schema") != SCHEMA:
        raise BadInput(
            "was written by another version of tokonomics", where=str(path), fix="Name a new folder with --into."
        )
    return said


def write_manifest(folder: Path, said: Mapping[str, Any]) -> None:
    text = json.dumps({"schema": SCHEMA, **said}, indent=2, ensure_ascii=False) + "\n"
    write_text(folder / MANIFEST, text, str(folder))


def _read(folder: Path) -> Store:
    """Read what is done, and remove what a kill left half-finished."""
    for stray in folder.glob(".*.part.*"):
        stray.unlink()
    parts = sorted(_parts(folder), key=lambda path: (_span(path.name)[0], -_span(path.name)[1]))
    store = Store(folder)
    reached = 0
    for path in parts:
        first, last = _span(path.name)
        if last <= reached:
            path.unlink()  # already merged
            continue
        reached = last
        if first == last:
            store._small.append(path.name)
        for row in _rows(path):
            outcome = PointOutcome(
                Status(row["status"]), row["error"], json.loads(row["figures"]), None, row["seconds"]
            )
            store.done[row["id"]] = KeptPoint(outcome, path.name)
    store._next = reached + 1
    return store


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        light = [name for name in _COLUMNS if name != "answer"]
        return pl.read_parquet(path, columns=light, glob=False).to_dicts()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(
            f"cannot be read: {shorten(str(error), 120)}",
            where=str(path),
            fix="Something else than a sweep changed it: delete this file, and its points are done again.",
        ) from None


def _parts(folder: Path) -> list[Path]:
    return [path for path in folder.glob("part-*.parquet") if _PART.fullmatch(path.name)]


def _span(name: str) -> tuple[int, int]:
    found = _PART.fullmatch(name)
    assert found is not None
    return int(found[1]), int(found[2] or found[1])
