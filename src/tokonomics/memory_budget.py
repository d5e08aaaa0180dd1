"""Refuse work that needs more memory than this machine can give, before it begins.

The limit is what the system says is available (Linux: MemAvailable, the memory limit of the control group, the limit on
the process's address space; elsewhere the installed memory), or ``TOKONOMICS_MEMORY``, such as ``8G``, if that is set.
Estimates are bytes per request or row, measured where they are used.
"""

import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tokonomics.errors import BadInput, shorten
from tokonomics.units import gigabytes

VARIABLE = "TOKONOMICS_MEMORY"
SHARE = 0.8
"""Share of the available memory to use. A choice: the system needs some, and estimates are a few per cent off."""
NEVER_REFUSED = 256_000_000
"""Bytes always allowed, unless a limit is set: Python with the libraries takes as much, so no need to ask the
system."""
ALLOW_MORE = f"Where there is more memory, {VARIABLE}=64G says so."

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class NoRoom(BadInput):
    """Raised when a request does not fit the memory that may be used."""


def check_room(needed_bytes: float, what: str, *, where: str | None = None, field: str | None = None, fix: str) -> None:
    """Refuse ``what`` if it needs more memory than may be used; ``fix`` says how to ask for less."""
    stated = os.environ.get(VARIABLE)
    if needed_bytes <= NEVER_REFUSED and not stated:
        return
    room = stated_bytes(stated) if stated else SHARE * available_bytes()
    if needed_bytes > room:
        said = f"{VARIABLE} allows" if stated else f"{SHARE:.0%} of what is free here are"
        raise NoRoom(
            f"{what} would take about {gigabytes(needed_bytes)} of memory; {said} {gigabytes(room)}",
            where=where,
            field=field,
            fix=f"{fix} {ALLOW_MORE}",
        )


def stated_bytes(text: str) -> float:
    """Read a size such as ``8G``, ``500M``, ``16GiB`` or ``8000000000``."""
    found = re.fullmatch(r"([0-9]+\.?[0-9]*)\s*([KMGT]I?|)B?", text.strip().upper())
    if not found or not float(found[1]):
        raise BadInput(f"'{shorten(text)}' is not an amount of memory", where=VARIABLE, fix="Such as 8G or 500M.")
    return float(found[1]) * _UNITS[found[2]]


def available_bytes() -> float:
    """Return the bytes that can be used without swapping or being killed."""
    limits = [_installed(), limited_room(), *(free for _, free in _control_groups())]
    with suppress(OSError, ValueError, IndexError):  # where Linux reports it
        told = re.search(r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M)
        limits += [float(told[1]) * 1024] if told else []
    return max(0.0, min(limits))


def given_bytes() -> float:
    """Return the total memory of the machine or of the container, free or not."""
    return min([_installed(), *(limit for limit, _ in _control_groups())])


def limit_memory(more_bytes: int) -> bool:
    """Limit this process to ``more_bytes`` beyond what it has (addresses); return False if the system cannot."""
    try:
        import resource

        limit = _taken_addresses() + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError, ValueError):
        return False
    return True


def limited_room() -> float:
    """Return the bytes that ``limit_memory`` or ``ulimit -v`` still leave this process; infinite without a limit."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return float(limit - _taken_addresses())
    return math.inf


def can_limit_memory() -> bool:
    """Tell whether ``limit_memory`` works here: only Linux reports how much the process has taken."""
    try:
        return _taken_addresses() > 0
    except (OSError, ValueError):
        return False


def _installed() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError):
        return float("inf")


def _control_groups() -> Iterator[tuple[float, float]]:
    """Yield the memory limit and the free bytes of every control group from this process's own up to the root.

    Version 2 has one tree, version 1 has one for memory alone. A container may see its own group as the root.
    """
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        _, controllers, own = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            yield from _up_from(_CONTROL_GROUPS, own, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            yield from _up_from(_CONTROL_GROUPS / "memory", own, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _up_from(root: Path, own: str, limit_file: str, used_file: str) -> Iterator[tuple[float, float]]:
    group = root / own.lstrip("/")
    for folder in (group, *group.parents):
        if root not in (folder, *folder.parents):
            return
        with suppress(OSError, ValueError):  # "max" is not a number: no limit here
            limit = float((folder / limit_file).read_text())
            used = float((folder / used_file).read_text())
            yield limit, limit - max(0.0, used - _reclaimed(folder))


def _reclaimed(group: Path) -> float:
    """Return the bytes that count as used but are freed when needed, such as a log's pages after it was read.

    This follows the kernel's MemAvailable, without the pages in recent use: inactive_file and slab_reclaimable of
    Documentation/admin-guide/cgroup-v2.rst; version 1 has total_inactive_file, which includes the groups below.
    """
    told = {}
    with suppress(OSError, ValueError):
        told = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
    with suppress(ValueError):
        cache = float(told.get("total_inactive_file", told.get("inactive_file", 0)))
        return cache + float(told.get("slab_reclaimable", 0))
    return 0.0


def _taken_addresses() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
