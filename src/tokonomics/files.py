"""Write every file of ours whole or not at all, however the writer ends.

The content goes to a hidden file in the same folder, then to disk (fsync), and then takes the final name in one step
(rename). A reader finds the old file or the new one, and of two writers the last one wins. An existing file keeps its
permissions, a link keeps its target, and a pipe or a device is written to directly.
"""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tokonomics.errors import BadInput, option, shorten

ABANDONED_S = 3600.0
"""A hidden file untouched for this long belongs to a killed writer: the next writer of the name removes it."""


def cache_folder() -> Path:
    """Return the folder for fetched data."""
    if own := os.environ.get("TOKONOMICS_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "tokonomics"


@contextmanager
def whole(path: Path, where: str) -> Iterator[Path]:
    """Yield the path to write to; it becomes ``path`` if the block succeeds. ``where`` names it in the error."""
    try:
        with _aside(path) as unfinished:
            yield unfinished
    except BadInput:
        raise
    except Exception as error:
        if (reason := _refusal(error)) is None:
            raise
        raise BadInput(f"cannot be written: {reason}", where=where) from None


def _refusal(error: Exception) -> str | None:
    """Return the system's error message; libraries in Rust (polars, vl-convert) wrap it in errors of their own."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if wrapped := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(wrapped[1]))
    # When the last bytes of a table cannot be written, polars does not say why.
    return "the disk did not take all of it" if "transport error" in str(error) else None


def write_text(path: Path, text: str, where: str) -> None:
    """Write a text file in UTF-8 with its line ends unchanged; what UTF-8 cannot encode becomes a question mark."""
    with whole(path, where) as unfinished:
        unfinished.write_bytes(text.encode(errors="replace"))


def make_folder(folder: Path, where: str) -> None:
    """Create a folder for what is about to be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", where=where) from None


def check_path(path: Path, field: str, endings: Sequence[str]) -> None:
    """Refuse a name or folder that cannot be written to, before any work is done."""
    if path.suffix.lower() not in endings:
        raise BadInput(f"'{shorten(path.name)}' does not end with {' or '.join(endings)}", field=field)
    try:
        there, taken = path.parent.is_dir(), path.is_dir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be written: {reason}", where=option(field, shorten(path.name))) from None
    if not there:
        raise BadInput(f"the folder {shorten(str(path.parent), 200)} does not exist", field=field)
    if taken:
        raise BadInput(f"{shorten(str(path), 200)} is a folder", field=field)


@contextmanager
def _aside(path: Path) -> Iterator[Path]:
    target = _behind_links(path)
    try:
        before = target.stat()
    except FileNotFoundError:
        before = None
    if before is not None and stat.S_ISDIR(before.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if before is not None and not stat.S_ISREG(before.st_mode):
        yield target  # a pipe or a device: a rename would replace it by a file
        return
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))  # a rename would not check this permission
    _remove_abandoned(target)
    start, end = _around(target)
    unfinished = target.with_name(f"{start}{secrets.token_hex(6)}{end}")
    try:
        # A file that only its owner may read stays private while it is written.
        mode = 0o666 if before is None else stat.S_IMODE(before.st_mode) & 0o066 | 0o600
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield unfinished
        _to_disk(unfinished)
        if before is not None:
            unfinished.chmod(stat.S_IMODE(before.st_mode))
        unfinished.replace(target)
        with suppress(OSError):  # not every file system can do this; the file is complete anyway
            _to_disk(target.parent)
    except BaseException:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _behind_links(path: Path) -> Path:
    try:
        return path.resolve() if path.is_symlink() else path
    except RuntimeError:  # Python before 3.13 raises this for a loop of links
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None


def _to_disk(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _around(target: Path) -> tuple[str, str]:
    """Return the beginning and end of the name of an unfinished file; twelve letters go between them.

    The ending stays, because charts are drawn in the format that it names. A name has at most 255 bytes, and a letter
    up to four.
    """
    return f".{target.stem[:40]}.", f".part{target.suffix[:10]}"


def _remove_abandoned(target: Path) -> None:
    start, end = _around(target)
    before = time.time() - ABANDONED_S
    with suppress(OSError), os.scandir(target.parent) as entries:
        for entry in entries:
            name = entry.name
            hexadecimal = name[len(start) : -len(end)]
            ours = name.startswith(start) and name.endswith(end) and len(hexadecimal) == 12
            if ours and entry.stat(follow_symlinks=False).st_mtime < before:
                with suppress(OSError):
                    Path(entry.path).unlink()
