"""Files that people drop onto the page: kept in a private folder for a while, limited in size, number and rows.

A file lies in a folder of its own named by a random id, under the last part of its name with all but letters, digits
and ``._-`` replaced; nothing that a client sends chooses where it is written. The folder goes when the server ends.
"""

import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from tokonomics.errors import BadInput, TokonomicsError
from tokonomics.web.looking import MOST_ROWS


class TooMuch(TokonomicsError):
    """A file, or all of them together, beyond what is kept."""


@dataclass(frozen=True)
class Upload:
    """One kept file."""

    id: str
    name: str
    path: Path
    bytes: int
    at: float


@dataclass(frozen=True)
class Limits:
    """What is taken in."""

    file_bytes: int = 64_000_000
    all_bytes: int = 256_000_000
    files: int = 32
    rows: int = MOST_ROWS
    age_s: float = 2 * 3600.0
    seconds: float = 120.0
    """For one file to arrive."""


class Uploads:
    """The kept files, by id."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.root = Path(tempfile.mkdtemp(prefix="tokonomics-web-"))
        self.empty = self.root / "empty"
        """Where workers stand: there is nothing in it."""
        self.empty.mkdir(mode=0o500)
        self._kept: dict[str, Upload] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.root, ignore_errors=True)

    def find(self, id: str) -> Path:
        """The file of an id."""
        self._drop_old()
        with self._lock:
            kept = self._kept.get(id)
        if kept is None:
            raise BadInput("there is no such upload, or it is too old", where="upload", fix="Drop the file again.")
        return kept.path

    def names(self) -> dict[str, str]:
        """What to say instead of where a file lies."""
        with self._lock:
            return {str(kept.path): kept.name for kept in self._kept.values()}

    def drop(self, id: str) -> bool:
        """Forget a file; whether there was one."""
        with self._lock:
            kept = self._kept.pop(id, None)
        if kept:
            shutil.rmtree(kept.path.parent, ignore_errors=True)
        return kept is not None

    async def keep(self, name: str, parts: AsyncIterator[bytes], said_bytes: int | None) -> Upload:
        """Write a file as it arrives; whatever is too large is not kept."""
        self._drop_old()
        with self._lock:
            room = min(self.limits.file_bytes, self.limits.all_bytes - sum(each.bytes for each in self._kept.values()))
        if said_bytes is not None and said_bytes > room:
            raise self._too_large(room)
        id = secrets.token_urlsafe(12)
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
            too_many = list(self._kept)[: -self.limits.files]
        for old in too_many:
            self.drop(old)
        return made

    async def _written(self, path: Path, parts: AsyncIterator[bytes], room: int) -> int:
        size = lines = 0
        until = time.monotonic() + self.limits.seconds
        with path.open("wb") as file:
            async for part in parts:
                size += len(part)
                lines += part.count(b"\n")
                if size > room:
                    raise self._too_large(room)
                if lines > self.limits.rows:
                    raise TooMuch(
                        f"has more than {self.limits.rows:,} lines", fix="Use the command line for larger logs."
                    )
                if time.monotonic() > until:
                    raise TooMuch("took too long to arrive")
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
            old = [each.id for each in self._kept.values() if each.at < before]
        for id in old:
            self.drop(id)


def safe_name(name: str) -> str:
    """The last part of a name, of harmless characters and bounded length; its ending stays."""
    last = re.split(r"[/\\]", name)[-1]
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", last).lstrip(".-")
    return plain[-100:].lstrip(".-") or "file"
