"""How much memory a piece of work may take on this machine; what needs more is refused before it begins.

The room is what the system says is available (Linux: MemAvailable, the memory limit of the control group, the limit on
the process's addresses; elsewhere the installed memory), or ``TOKONOMICS_MEMORY``, such as ``8G``, where that is set.
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
"""Of what is available. A choice: the system needs some to stay responsive, and estimates are a few per cent off."""
NEVER_REFUSED = 256_000_000
"""Bytes, unless a limit is set: Python with the libraries takes as much already, so the system need not be asked."""
ALLOW_MORE = f"Where there is more memory, {VARIABLE}=64G says so."

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_CONTROL_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


class NoRoom(BadInput):
    """What was asked for does not fit the memory that may be used."""


def check_room(needed_bytes: float, what: str, *, where: str | None = None, field: str | None = None, fix: str) -> None:
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
            field=field,
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
    limits = [_installed(), limited_room(), *(free for _, free in _control_groups())]
    with suppress(OSError, ValueError, IndexError):  # as Linux tells it
        told = re.search(r"^MemAvailable:\s*(\d+)", Path("/proc/meminfo").read_text(), re.M)
        limits += [float(told[1]) * 1024] if told else []
    return max(0.0, min(limits))


def given_bytes() -> float:
    """What there is in all, free or not: of the machine, or of the container."""
    return min([_installed(), *(limit for limit, _ in _control_groups())])


def limit_memory(more_bytes: int) -> bool:
    """Give this process so many bytes beyond what it has taken; False where the system cannot (it counts addresses)."""
    try:
        import resource

        limit = _taken_addresses() + more_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    except (ImportError, OSError, ValueError):
        return False
    return True


def limited_room() -> float:
    """Bytes that this process may still take, under ``limit_memory`` or ``ulimit -v``; infinite without a limit."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return float(limit - _taken_addresses())
    return math.inf


def can_limit_memory() -> bool:
    """Whether ``limit_memory`` would limit anything here: elsewhere than on Linux nothing tells what was taken."""
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
    """A container's limits, and what each leaves free: of every group between this process's own and the root.

    Version 2 has one tree, version 1 one for memory alone. A container may see its own group as the root.
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
        with suppress(OSError, ValueError):  # "max" is no number: no limit here
            limit = float((folder / limit_file).read_text())
            used = float((folder / used_file).read_text())
            yield limit, limit - max(0.0, used - _reclaimed(folder))


def _reclaimed(group: Path) -> float:
    """Bytes that count as used and are given up when needed, such as a log's pages after it was read.

    As the kernel counts MemAvailable, without the pages in recent use: inactive_file and slab_reclaimable of
    Documentation/admin-guide/cgroup-v2.rst; version 1 has total_inactive_file, with the groups below.
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
