"""How much memory a piece of work may take on this machine; what needs more is refused before it begins.

The room is what the system says is available (Linux: MemAvailable, the memory limit of the control group, the limit on
the process's addresses; elsewhere the installed memory), or ``TOKONOMICS_MEMORY``, such as ``8G``, where that is set.
Estimates are bytes per request or row, measured where they are used.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from tokonomics.errors import BadInput, shorten
from tokonomics.units import gigabytes

VARIABLE = "TOKONOMICS_MEMORY"
SHARE = 0.8
"""Of what is available. A choice: the system needs some to stay responsive, and estimates are a few per cent off."""
NEVER_REFUSED = 256_000_000
"""Bytes, unless a limit is set: Python with the libraries takes as much already, so the system need not be asked."""
ALLOW_MORE = f"Where there is more memory, {VARIABLE}=64G says so."

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


class NoRoom(BadInput):
    """What was asked for does not fit the memory that may be used."""


def check_room(needed_bytes: float, what: str, *, where: str | None = None, fix: str) -> None:
    """Refuse ``what`` where it needs more memory than may be used; ``fix`` says how to ask for less."""
    stated = os.environ.get(VARIABLE)
    if needed_bytes <= NEVER_REFUSED and not stated:
        return
    room = stated_bytes(stated) if stated else SHARE * available_bytes()
    if needed_bytes > room:
        said = f"{VARIABLE} allows" if stated else f"{SHARE:.0%} of what is free here are"
        raise NoRoom(
            f"{what} would take about {gigabytes(needed_bytes)} of memory; {said} {gigabytes(room)}",
            where=where,
            fix=f"{fix} {ALLOW_MORE}",
        )


def stated_bytes(text: str) -> float:
    """``8G``, ``500M``, ``16GiB``, ``8000000000``."""
    found = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([KMGT]I?|)B?", text.strip().upper())
    if not found or not float(found[1]):
        raise BadInput(f"'{shorten(text)}' is not an amount of memory", where=VARIABLE, fix="Such as 8G or 500M.")
    return float(found[1]) * _UNITS[found[2]]


def available_bytes() -> float:
    """What can be used without swapping, or being killed for it."""
    found = [_installed(), _free_on_linux(), _free_in_control_group(), _free_addresses()]
    return min(each for each in found if each is not None)


def _installed() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return float("inf")


def _free_on_linux() -> float | None:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    return None


def _free_in_control_group() -> float | None:
    """A container's limit: what is left of the tightest one between this process's group and the root (version 2)."""
    free = None
    with suppress(OSError, ValueError):
        own = next(line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        group = _CONTROL_GROUPS / own.lstrip("/")
        for folder in (group, *group.parents):
            if _CONTROL_GROUPS not in (folder, *folder.parents):
                break
            with suppress(OSError, ValueError):  # "max" is no number: no limit here
                left = float((folder / "memory.max").read_text()) - float((folder / "memory.current").read_text())
                free = left if free is None else min(free, left)
    return None if free is None else max(0.0, free)


def _free_addresses() -> float | None:
    """Under ``ulimit -v``, as workers of the page are."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError, ValueError):
        return None
    return max(0.0, float(limit - used))
