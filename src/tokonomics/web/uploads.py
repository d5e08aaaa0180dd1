"""Keep files that people drop onto the page: in a private folder, for a while, limited in size, number and rows.

A file lies in a folder of its own named by a random id, under the last part of its name with all but letters, digits
and ``._-`` replaced; nothing that a client sends chooses where it is written. The folder is removed when the server
ends. If a server was killed, nobody holds its folder's lock any more, and the next server removes the folder when it
starts.
"""

import asyncio
import fcntl
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.guarded.worker import MOST_ROWS


class TooMuch(TokonomicsError):
    """Raised when a file, or all files together, exceed the limits."""


class TooSlow(TooMuch):
    """Raised when a file does not arrive in time."""


@dataclass(frozen=True)
class Upload:
    """One kept file."""

    id: str
    name: str
    path: Path
    bytes: int
    at: float


@dataclass(frozen=True)
class UploadLimits:
    """The limits on uploads."""

    file_bytes: int = 64_000_000
    all_bytes: int = 256_000_000
    files: int = 32
    rows: int = MOST_ROWS
    age_s: float = 2 * 3600.0
    seconds: float = 120.0  # for one file to arrive
    silence_s: float = 15.0  # longest time without a byte


PREFIX = "tokonomics-web-"
_YOUNG_S = 60.0  # a folder this new may belong to a server that has not locked it yet


def sweep(where: Path, young_s: float = _YOUNG_S) -> None:
    """Remove the folders of killed servers: those of ours that no process holds."""
    for folder in where.glob(f"{PREFIX}*"):
        with suppress(OSError):
            seen = folder.lstat()
            if seen.st_uid != os.getuid() or folder.is_symlink() or time.time() - seen.st_mtime < young_s:
                continue
            lock = _hold(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _hold(folder: Path) -> int:
    """Lock a folder; raise OSError if another process holds it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


class Uploads:
    """Keep files by id."""

    def __init__(self, limits: UploadLimits | None = None) -> None:
        self.limits = limits or UploadLimits()
        sweep(Path(tempfile.gettempdir()))
        self.root = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._held = _hold(self.root)
        self.empty = self.root / "empty"
        """An empty folder, the working folder of workers."""
        self.empty.mkdir(mode=0o500)
        self._kept: dict[str, Upload] = {}
        self._arriving: dict[str, int] = {}
        """Bytes of files that are still arriving."""
        self._ends: dict[str, threading.Timer] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            ends = list(self._ends.values())
            self._ends.clear()
        for end in ends:
            end.cancel()
        shutil.rmtree(self.root, ignore_errors=True)
        with suppress(OSError):  # already closed
            os.close(self._held)
            self._held = -1

    def find(self, id: str) -> Path:
        self._drop_old()
        with self._lock:
            kept = self._kept.get(id)
        if kept is None:
            raise BadInput("there is no such upload, or it is too old", where="upload", fix="Drop the file again.")
        return kept.path

    def drop(self, id: str) -> bool:
        """Forget a file; return whether there was one."""
        with self._lock:
            kept = self._kept.pop(id, None)
            end = self._ends.pop(id, None)
        if end:
            end.cancel()
        if kept:
            shutil.rmtree(self.root / kept.id, ignore_errors=True)
        return kept is not None

    def call(self, id: str, name: str) -> None:
        """Move a config.json into a folder with its model's name, after which the model is called."""
        with self._lock:
            kept = self._kept.get(id)
            if kept is None or kept.path.name != "config.json":
                return
            folder = self.root / id / safe_name(name)
            with suppress(OSError):  # the file has just gone: the next request for it gets an error
                folder.mkdir(mode=0o700)
                self._kept[id] = replace(kept, path=kept.path.rename(folder / kept.path.name))

    async def keep(self, name: str, parts: AsyncIterator[bytes], said_bytes: int | None) -> Upload:
        """Write a file as it arrives; do not keep one that is too large."""
        self._drop_old()
        id = secrets.token_urlsafe(12)
        with self._lock:
            taken = sum(upload.bytes for upload in self._kept.values()) + sum(self._arriving.values())
            room = min(self.limits.file_bytes, self.limits.all_bytes - taken)
            if room <= 0 or (said_bytes is not None and said_bytes > room):
                raise self._too_large(room)
            room = self._arriving[id] = room if said_bytes is None else said_bytes
        try:
            return await self._kept_as(id, name, parts, room)
        finally:
            with self._lock:
                self._arriving.pop(id, None)

    async def _kept_as(self, id: str, name: str, parts: AsyncIterator[bytes], room: int) -> Upload:
        folder = self.root / id
        folder.mkdir(mode=0o700)
        try:
            size = await self._written(folder / safe_name(name), parts, room)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        made = Upload(id, safe_name(name), folder / safe_name(name), size, time.monotonic())
        with self._lock:
            self._kept[id] = made
            self._arriving.pop(id)
            end = self._ends[id] = threading.Timer(self.limits.age_s, self.drop, [id])
            end.daemon = True
            too_many = list(self._kept)[: -self.limits.files]
        end.start()
        for old in too_many:
            self.drop(old)
        return made

    async def _written(self, path: Path, parts: AsyncIterator[bytes], room: int) -> int:
        until = time.monotonic() + self.limits.seconds
        size = lines = 0
        arriving = aiter(parts)
        with path.open("wb") as file:
            while True:
                try:  # a silent or slow client cannot hold a place for long
                    if (left_s := until - time.monotonic()) <= 0:
                        raise TimeoutError
                    async with asyncio.timeout(min(self.limits.silence_s, left_s)):
                        part = await anext(arriving, None)
                except TimeoutError:
                    raise TooSlow("took too long to arrive") from None
                if part is None:
                    break
                size += len(part)
                lines += part.count(b"\n")
                if size > room:
                    raise self._too_large(room)
                if lines > self.limits.rows:
                    raise TooMuch(
                        f"has more than {self.limits.rows:,} lines", fix="Use the command line for larger logs."
                    )
                file.write(part)
        if not size:
            raise BadInput("is empty", where=path.name)
        return size

    def _too_large(self, room: int) -> TooMuch:
        return TooMuch(
            f"is larger than the {max(room, 0) / 1e6:.0f} MB there is room for",
            fix="Use the command line for larger files.",
        )

    def _drop_old(self) -> None:
        before = time.monotonic() - self.limits.age_s
        with self._lock:
            old = [upload.id for upload in self._kept.values() if upload.at < before]
        for id in old:
            self.drop(id)


def safe_name(name: str) -> str:
    """Return the last part of a name in harmless characters, of bounded length, with its ending."""
    last = re.split(r"[/\\]", name)[-1]
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip(".-")
    return plain[-100:].lstrip(".-") or "file"
