"""The chart library for the page: built once from the installed vl-convert package, kept in the user's cache folder.

Building takes seconds, so the file is kept by the version of vl-convert. It is an ES module that exports ``vegaEmbed``;
with vega-embed's ``ast: true`` expressions are interpreted, and the page needs no ``unsafe-eval``.
"""

import hashlib
import os
import threading
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from tokonomics.errors import BadInput
from tokonomics.files import make_folder, whole

_SNIPPET = "export { vegaEmbed, vega };"
_END = b"\n// whole\n"
"""A file without it was cut short."""
_LOCK = threading.Lock()


def name() -> str:
    """Changes with the library, and is known before it is built."""
    return hashlib.sha256(f"{version('vl-convert-python')} {_SNIPPET}".encode()).hexdigest()[:16]


def bundle() -> bytes:
    """The library, from the cache where it is there."""
    with _LOCK:
        return _bundle()


@lru_cache(maxsize=1)
def _bundle() -> bytes:
    folder = _folder()
    kept = folder / f"vega-{name()}.js"
    with suppress(OSError):
        code = kept.read_bytes()
        if code.endswith(_END):
            return code
    import vl_convert

    code = str(vl_convert.javascript_bundle(_SNIPPET)).encode() + _END
    _keep(folder, kept, code)
    return code


def _keep(folder: Path, kept: Path, code: bytes) -> None:
    """Written whole or not at all; without a place to write it is built each time."""
    with suppress(BadInput):
        make_folder(folder, str(folder))
        with whole(kept, str(kept)) as unfinished:
            unfinished.write_bytes(code)


def _folder() -> Path:
    shared = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(shared) if shared else Path.home() / ".cache") / "tokonomics"
    except RuntimeError:  # a user without a home
        return Path(os.devnull)
