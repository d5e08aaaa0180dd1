"""Machine code kept on disk between runs: under a name made of its sources, and believed only where its checksum holds.

Numba keeps what it compiled beside the source and notices when that file changes, but not when a function it calls,
in another file, does. So the code is kept in a folder named by all these sources and by the versions that compile
them: a changed line anywhere means a fresh start, copies of the same sources share their code, and a read-only
installation can keep its code too. A file that was cut off or spoilt would end the process: it is compiled anew. Where
the disk is full, code is compiled and not kept.
"""

import hashlib
import os
import pickle
import shutil
import time
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba.core import caching

_KEPT_S = 30 * 86_400
_CRC_BYTES = 4

_njit: Any = numba.njit
_config: Any = numba.config
_IndexedFiles: Any = caching.IndexDataCacheFile
_OneFunction: Any = caching.FunctionCache

Function = TypeVar("Function", bound=Callable[..., object])


def kept(function: Function, folder: Path | None, **options: bool) -> Function:
    """The function, compiled at its first call or loaded from the folder; None: nothing is kept."""
    made = _njit(**options)(function)
    if folder is not None:
        with suppress(RuntimeError):  # a function of no file has no name to be kept under
            made._cache = _CheckedCache(function, folder)
    return cast(Function, made)


def code_folder(name: str, sources: Iterable[Path]) -> Path | None:
    """Where code of these sources is kept; None where nothing can be written."""
    text = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__} {np.__version__}".encode())
    for source in (*sources, Path(__file__)):
        text.update(source.read_bytes())
    home = os.environ.get("XDG_CACHE_HOME")
    try:
        parent = (Path(home) if home else Path.home() / ".cache") / "tokonomics"
        folder = parent / f"{name}-{text.hexdigest()[:16]}"
        if folder.exists():
            os.utime(folder)  # somebody runs it
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _forget_others(folder, name)
    except (OSError, RuntimeError):  # nobody's home, or not to be written to
        return None
    return folder if os.access(folder, os.W_OK) else None


def is_whole(folder: Path) -> bool:
    """Whether there is code in a folder, and none that is damaged; what is, is removed."""
    files = [file for file in folder.iterdir() if file.suffix in (".nbi", ".nbc")]
    damaged = [file for file in files if _checked(file) is None]
    for file in damaged:
        file.unlink(missing_ok=True)
    return bool(files) and not damaged


def _forget_others(folder: Path, name: str) -> None:
    """Remove code of sources that nobody has run for a month."""
    for other in folder.parent.glob(f"{name}-*"):
        with suppress(FileNotFoundError):  # another process was quicker
            if time.time() - other.stat().st_mtime > _KEPT_S:
                shutil.rmtree(other, ignore_errors=True)


def _checked(path: Path) -> bytes | None:
    """What a file holds before its checksum; None where that is another, or there is no file."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    data, crc = content[:-_CRC_BYTES], content[-_CRC_BYTES:]
    return data if data and zlib.crc32(data).to_bytes(_CRC_BYTES, "big") == crc else None


class _CheckedFile(_IndexedFiles):  # type: ignore[misc]
    """An index of one function's code, and the code, each with a checksum behind it."""

    def _load_index(self) -> dict[Any, str]:
        data = _checked(Path(self._index_path))
        return {} if data is None else cast(dict[Any, str], pickle.loads(data))

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, overloads)

    def _load_data(self, name: str) -> object:
        data = _checked(Path(self._data_path(name)))
        if data is None:
            raise OSError("damaged")  # as good as not there: it is compiled anew
        return pickle.loads(data)

    def _save_data(self, name: str, data: object) -> None:
        self._write(self._data_path(name), data)

    def _write(self, path: str, what: object) -> None:
        data = self._dump(what)
        with self._open_for_write(path) as file:
            file.write(data + zlib.crc32(data).to_bytes(_CRC_BYTES, "big"))


class _CheckedCache(_OneFunction):  # type: ignore[misc]
    """The kept code of one function, in a folder whose name stands for all of its sources."""

    def __init__(self, function: Callable[..., object], folder: Path) -> None:
        before = _config.CACHE_DIR
        try:
            _config.CACHE_DIR = str(folder)
            super().__init__(function)
        finally:
            _config.CACHE_DIR = before
        self._cache_path = str(folder)
        self._cache_file = _CheckedFile(str(folder), self._impl.filename_base, folder.name)

    def _save_overload(self, sig: object, data: Any) -> None:
        if self._enabled and self._impl.check_cachable(data):
            with suppress(OSError):  # a full disk: the next run compiles again
                self._cache_file.save(self._index_key(sig, data.codegen), self._impl.reduce(data))
