"""What every answer rests on besides its inputs: the program, its data, prices, profile, packages and the day.

It is part of a point's id, so that results are only reused where they would come out the same, and every machine of a
cluster must stand on the same ground before it answers anything.
"""

import hashlib
import json
import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tokonomics
from tokonomics.clock import today

_PACKAGES = ("numpy", "scipy", "numba", "polars", "genai-prices")
"""Those whose arithmetic or data an answer holds."""

Ground = dict[str, str]
DAY = "day"


def ground() -> Ground:
    """Of this process, now."""
    from tokonomics.catalog.offers import SNAPSHOT, cache_file
    from tokonomics.catalog.user_file import user_path
    from tokonomics.physics.calibration import VARIABLE
    from tokonomics.sweep.points import file_digest

    profile = os.environ.get(VARIABLE)
    return {
        "tokonomics": tokonomics.__version__,
        "program": _program(),
        "prices": file_digest(str(cache_file())) or file_digest(str(SNAPSHOT)) or "none",
        "catalogue": file_digest(str(user_path())) or "none",
        "profile": (file_digest(profile) or "missing") if profile else "none",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "processor": platform.machine(),
        **{name: _version(name) for name in _PACKAGES},
        DAY: today().isoformat(),
    }


def without_day(one: Ground) -> Ground:
    return {name: value for name, value in one.items() if name != DAY}


def ground_id(one: Ground, verb: str) -> str:
    return hashlib.sha256(json.dumps([verb, one], sort_keys=True).encode()).hexdigest()


def differences(here: Ground, there: Ground) -> list[str]:
    """What is not the same, in words; digests say only that they differ."""
    return [
        f"{name} {there.get(name)} (here {value})" if len(value) < 20 else f"other {name}"
        for name, value in here.items()
        if there.get(name) != value
    ]


@lru_cache(maxsize=1)
def _program() -> str:
    """The hash of the package's own files: a version number stays while its code is worked on."""
    made = hashlib.sha256()
    root = Path(tokonomics.__file__).parent
    for path in sorted(root.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            made.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            made.update(path.read_bytes())
    return made.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
