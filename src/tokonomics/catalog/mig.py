"""Which slices a GPU can be cut into (NVIDIA's Multi-Instance GPU), and which of them fit together.

A GPU has seven compute slices and eight memory slices. A profile takes some of each, and may begin only at certain
memory slices; a set of profiles fits when they can be laid out without overlap. A slice is a GPU of its own: its share
of the multiprocessors, and of memory, cache and bandwidth by its memory slices. ``data/mig.toml`` has them with source.
"""

import datetime
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import PositiveInt

from tokonomics.catalog.gpus import Gpu
from tokonomics.types import Noun

COMPUTE_SLICES, MEMORY_SLICES = 7, 8
_SHIPPED = Path(__file__).parent / "data" / "mig.toml"


class MigProfile(Noun):
    """A slice that a GPU can be cut into."""

    name: str
    """Such as ``3g.40gb``."""
    compute: PositiveInt
    memory: PositiveInt
    starts: tuple[int, ...]
    compute_share: float
    """Of the GPU's multiprocessors."""

    @property
    def memory_share(self) -> float:
        """Of its memory, its cache and its bandwidth."""
        return self.memory / MEMORY_SLICES


class _Row(Noun):
    gigabytes: tuple[int, ...]
    multiprocessors: tuple[int, ...] | None = None
    of: int | None = None
    source: str
    date: datetime.date


@cache
def _shipped() -> dict[str, tuple[MigProfile, ...]]:
    content = tomllib.loads(_SHIPPED.read_text(encoding="utf-8"))
    return {key: _profiles(content["profiles"], _Row.model_validate(row)) for key, row in content["gpus"].items()}


def _profiles(geometry: Sequence[dict[str, object]], row: _Row) -> tuple[MigProfile, ...]:
    counts = row.multiprocessors or (None,) * len(geometry)
    return tuple(
        MigProfile.model_validate(
            {
                "name": f"{place['compute']}g.{gigabytes}gb",
                "compute_share": count / row.of if count and row.of else int(str(place["compute"])) / COMPUTE_SLICES,
                **place,
            }
        )
        for place, gigabytes, count in zip(geometry, row.gigabytes, counts, strict=True)
    )


def mig_profiles(gpu: Gpu) -> tuple[MigProfile, ...]:
    """What a GPU can be cut into, the smallest first; nothing where it cannot be cut."""
    return _shipped().get(gpu.key, ())


def fit_together(profiles: Sequence[MigProfile]) -> bool:
    """Whether one GPU can be cut into all of these at once."""
    return sum(profile.compute for profile in profiles) <= COMPUTE_SLICES and _laid_out(
        sorted(profiles, key=lambda profile: (-profile.memory, len(profile.starts))), 0
    )


def _laid_out(profiles: Sequence[MigProfile], taken: int) -> bool:
    """Whether these have room beside the memory slices that are taken (one bit each)."""
    if not profiles:
        return True
    first, *rest = profiles
    wide = (1 << first.memory) - 1
    return any(not taken & wide << start and _laid_out(rest, taken | wide << start) for start in first.starts)


def slice_of(gpu: Gpu, profile: MigProfile) -> Gpu:
    """A slice as a GPU: its rates are the datasheet's by its shares, so its speed is scaled from the whole one's."""
    compute, memory = profile.compute_share, profile.memory_share
    return gpu.model_copy(
        update={
            "key": f"{gpu.key} {profile.name}",
            "name": f"{gpu.name}, MIG {profile.name}",
            "memory_gb": gpu.memory_gb * memory,
            "memory_bytes": int(gpu.memory_bytes * memory),
            "visible_bytes": int(gpu.usable_bytes * memory),
            "bandwidth_bytes_per_s": gpu.bandwidth_bytes_per_s * memory,
            "flops": {dtype: rate * compute for dtype, rate in gpu.flops.items()},
            "fast_link_bytes_per_s": None,
            "fast_link_gpus": 1,
            "aliases": (),
        }
    )
