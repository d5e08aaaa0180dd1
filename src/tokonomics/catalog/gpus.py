"""List the GPUs, what each can do at most (bytes, bytes per second, FLOP/s), and the slices it can be cut into.

Figures are from the vendors' datasheets, dense and one-directional, kept in ``data/gpus.toml`` with source and date;
the user's own catalogue adds GPUs or replaces figures of ours. A datasheet rate is a ceiling that no kernel exceeds;
``physics`` knows how much of it is reached.

For NVIDIA's Multi-Instance GPU, a GPU has seven compute slices and eight memory slices. A profile takes some of each,
and may begin only at certain memory slices; a set of profiles fits when they can be laid out without overlap. A slice
is a GPU of its own: its share of the multiprocessors, and of memory, cache and bandwidth by its memory slices.
``data/mig.toml`` has them with source.
"""

import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveInt, ValidationError, model_validator

from tokonomics.catalog.entries import DATA, resolve, shipped_tables, spelling, spellings, user_path, user_tables
from tokonomics.catalog.layers import Precision
from tokonomics.errors import BadInput, UnknownName, from_validation, shorten
from tokonomics.types import Noun
from tokonomics.units import GIB

Dtype = Literal["bf16", "fp16", "fp8", "int8", "fp4"]
Vendor = Literal["nvidia", "amd", "intel", "apple", "google", "aws"]
Architecture = Literal[
    "volta", "turing", "ampere", "ada", "hopper", "blackwell", "blackwell-rtx",
    "cdna2", "cdna3", "cdna4", "rdna3", "rdna3.5", "gaudi2", "gaudi3",
    "xe-hpc", "apple", "tpu-v5e", "tpu-v6e", "tpu-v7x", "trainium2",
]  # fmt: skip

DRIVER_RESERVE_BYTES = int(0.7 * GIB)
"""Memory that the driver reserves from the total it reports: 0.23 to 0.85 GiB on the cards with both figures."""

PCIE_GEN4_BYTES_PER_S = 32e9  # sixteen lanes in one direction: assumed if a GPU's host link is unknown

NETWORK_BYTES_PER_S = 50e9
"""One 400 Gbit/s card for each GPU (NVIDIA ConnectX-7, as in the HGX H100 and B200 reference designs)."""

ADD_A_GPU = """To add one, put five lines of its datasheet (dense rates) into {path}:
  [gpus.MY-GPU]
  architecture = "hopper"
  memory_gb = 80
  bandwidth_bytes_per_s = 3.35e12
  flops = {{ bf16 = 989e12, fp8 = 1979e12 }}"""

# Physical ranges wide enough for the next generations; a figure outside has wrong units (GB/s, TFLOP/s, bits).
Bandwidth = Annotated[float, Field(ge=1e11, le=1e14)]
Flops = Annotated[float, Field(ge=1e12, le=1e18)]
LinkSpeed = Annotated[float, Field(ge=1e9, le=1e13)]
MemoryGb = Annotated[float, Field(ge=1, le=10_000)]
Watts = Annotated[float, Field(ge=10, le=10_000)]
Year = Annotated[int, Field(ge=2006, le=2100)]


class Gpu(Noun):
    """One GPU as software sees it."""

    key: str
    name: str
    architecture: Architecture
    memory_gb: MemoryGb  # as marketed
    memory_bytes: PositiveInt  # the device's total as its driver reports it
    memory_reported: bool  # False: ``memory_bytes`` is the marketed figure in decimal gigabytes, the least it can be
    visible_bytes: PositiveInt | None = None  # what a process sees of the total, if a log shows it
    bandwidth_bytes_per_s: Bandwidth
    flops: dict[Dtype, Flops]  # dense, by number format; only formats that the hardware multiplies at full rate
    fast_link_bytes_per_s: LinkSpeed | None = None  # NVLink, Infinity Fabric, in one direction; None: only PCIe
    fast_link_gpus: PositiveInt = 1  # how many GPUs that link joins
    fast_link_is_mesh: bool = False  # links to each other GPU without a switch: a smaller group has only its share
    pcie_bytes_per_s: LinkSpeed = PCIE_GEN4_BYTES_PER_S
    gpus_per_node: PositiveInt = 8
    network_bytes_per_s: LinkSpeed = NETWORK_BYTES_PER_S  # of one GPU to other machines, if they have a network
    consumer: bool = False  # a card for desktops: no link to others, and peers reach it through the host's memory
    watts: Watts | None = None
    year: Year | None = None
    unified_memory: bool = False  # the CPU uses the same memory; ``visible_bytes`` is what the GPU may take of it
    aliases: tuple[str, ...] = ()
    source: str
    date: datetime.date | None = None
    note: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _least_memory_unless_reported(cls, row: object) -> object:
        if not isinstance(row, dict) or "memory_reported" in row:
            return row
        marketed = row.get("memory_gb")
        if "memory_bytes" in row or not isinstance(marketed, int | float) or not 0 < marketed < 1e6:
            return {**row, "memory_reported": True}
        return {**row, "memory_bytes": int(marketed * 1e9), "memory_reported": False}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not self.flops.keys() & {"bf16", "fp16"}:
            raise ValueError("flops needs a 16-bit rate: bf16, or fp16 where the hardware has no bf16")
        marketed = self.memory_gb * 1e9
        # "80 GB" is anything from 80e9 bytes less ECC to 80 × 2^30.
        if not 0.9 * marketed <= self.memory_bytes <= 1.08 * marketed:
            raise ValueError(f"memory_bytes {self.memory_bytes:,} is not {self.memory_gb:g} GB")
        if self.visible_bytes and self.visible_bytes > self.memory_bytes:
            raise ValueError(f"visible_bytes {self.visible_bytes:,} exceeds memory_bytes {self.memory_bytes:,}")
        if (self.fast_link_bytes_per_s is None) != (self.fast_link_gpus == 1):
            raise ValueError("fast_link_bytes_per_s and fast_link_gpus (2 or more) go together")
        return self

    def __hash__(self) -> int:
        """Hash only name and bandwidth: a dictionary of rates has no hash."""
        return hash((self.key, self.bandwidth_bytes_per_s))

    @property
    def vendor(self) -> Vendor:
        return next((vendor for family, vendor in _VENDORS.items() if self.architecture.startswith(family)), "nvidia")

    @property
    def comes_in_slices(self) -> bool:
        """Tell whether it is sold in slices of 1, 4, 8, 16 … chips joined in a mesh, which only powers of two divide.

        Cloud TPUs are (Google Cloud TPU documentation, "TPU v5e" and "TPU v6e", tables of supported configurations:
        1x1, 2x2, 2x4, 4x4 … 16x16).
        """
        return self.vendor == "google"

    @property
    def usable_bytes(self) -> int:
        """Return the device memory that processes can share: what engines take their fraction of."""
        if self.visible_bytes:
            return self.visible_bytes
        return self.memory_bytes - DRIVER_RESERVE_BYTES if self.memory_reported else self.memory_bytes

    @property
    def link_bytes_per_s(self) -> float:
        """Return the rate between two neighbours, in one direction: the fast link, or PCIe if there is none."""
        return self.fast_link_bytes_per_s or self.pcie_bytes_per_s

    def link_among(self, gpus: int) -> float:
        """Return the bytes per second and direction of one GPU if that many of one machine work together.

        A bridge joins two or four cards: a larger group is as slow as its slowest hop, which is PCIe.
        """
        if gpus > self.fast_link_gpus:
            return self.pcie_bytes_per_s
        share = (gpus - 1) / (self.fast_link_gpus - 1) if self.fast_link_is_mesh and gpus > 1 else 1.0
        return self.link_bytes_per_s * share

    def peak_flops(self, weights: Precision) -> float:
        """Return the highest FLOP/s at which matrices with weights of that precision are multiplied.

        FP8, INT8 and FP4 weights run at their own rate if the hardware has that math; otherwise engines unpack them and
        multiply in 16 bits (vLLM docs, "FP8 W8A8": weight-only by Marlin kernels before Ada), as they always do with
        INT4 weights (AWQ and GPTQ are W4A16). Without BF16, 16 bits means FP16. FP32 weights can at best use TF32, half
        the 16-bit rate on Ampere and later (NVIDIA A100 datasheet: 156 against 312).
        """
        wide = self.flops["bf16"] if "bf16" in self.flops else self.flops["fp16"]
        if weights is Precision.fp32:
            return wide / 2
        narrow = _MATH.get(weights)
        return max(wide, self.flops.get(narrow, 0.0)) if narrow else wide


_VENDORS: dict[str, Vendor] = {
    "cdna": "amd", "rdna": "amd", "gaudi": "intel", "xe": "intel", "apple": "apple", "tpu": "google", "trainium": "aws",
}  # fmt: skip
_MATH: dict[str, Dtype] = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp4"}


@cache
def shipped_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of our catalogue, without the user's changes."""
    rows = shipped_tables("gpus.toml")["gpus"]
    return tuple(
        _gpu(sized, part, f"{DATA / 'gpus.toml'} [gpus.{key}]")
        for key, row in rows.items()
        for sized, part in _in_sizes(key, row)
    )


def _in_sizes(key: str, row: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield a row once for each memory it is sold with; the largest also has the plain names."""
    sizes = row.get("sizes_gb")
    if not isinstance(sizes, dict):
        yield key, row
        return
    names = [key, row["name"], *row.get("aliases", ())]  # type: ignore[misc] # a list of texts, or Gpu refuses the row
    plain = {name: value for name, value in row.items() if name != "sizes_gb"}
    for size, share in sizes.items():
        whole = int(size) * GIB
        yield (
            f"{key}-{size}GB",
            {
                **plain,
                "name": f"{row['name']} {size}GB",
                "memory_gb": int(size),
                "memory_bytes": whole,
                "visible_bytes": int(whole * share),
                "unified_memory": True,
                "aliases": [f"{name} {size}GB" for name in names[2:]] + (names if size == [*sizes][-1] else []),
            },
        )


def all_gpus() -> tuple[Gpu, ...]:
    """Return every GPU of the catalogue; a user's row replaces the figures of one of ours and keeps its names."""
    own = user_tables("gpus")
    if not own:
        return shipped_gpus()
    gpus = {gpu.key: gpu for gpu in shipped_gpus()}
    for name, row in own.items():
        where = f"{user_path()} [gpus.{shorten(name)}]"
        ours = next((gpu for gpu in gpus.values() if spelling(name) in spellings(gpu)), None)
        known = {"name": ours.name, "aliases": ours.aliases} if ours else {}
        gpu = _gpu(ours.key if ours else name, {**known, **row}, where)
        rival = next(
            (other for other in gpus.values() if other is not ours and spellings(other) & spellings(gpu)), None
        )
        if rival:
            raise BadInput(f"another GPU, {rival.key}, already goes by one of its names", where=where)
        gpus[gpu.key] = gpu
    return tuple(gpus.values())


def find_gpu(name: str) -> Gpu:
    """Return the GPU with that name, as people, clouds or ``nvidia-smi`` spell it."""
    if not user_tables("gpus") and (found := _shipped_by_spelling().get(spelling(name))):
        return found
    return resolve("GPU", name, all_gpus(), fix=ADD_A_GPU.format(path=user_path()), listing="tokonomics gpus")


@cache
def _shipped_by_spelling() -> Mapping[str, Gpu]:
    """Return our GPUs by every form of their names; where two share one, the first."""
    return {form: gpu for gpu in reversed(shipped_gpus()) for form in spellings(gpu)}


def find_gpus(
    match: str | None = None, min_memory_gb: float | None = None, architecture: str | None = None
) -> list[Gpu]:
    """Return the GPUs whose names contain ``match``, with at least that much memory, of an architecture."""
    known = all_gpus()
    found = [gpu for gpu in known if match is None or any(spelling(match) in name for name in spellings(gpu))]
    if match and not found:
        return [find_gpu(match)]  # raises, with the nearest names
    if architecture is not None and architecture.casefold() not in {gpu.architecture for gpu in known}:
        raise UnknownName("architecture", architecture, {gpu.architecture for gpu in known})
    return [
        gpu
        for gpu in found
        if (min_memory_gb is None or gpu.memory_gb >= min_memory_gb)
        and (architecture is None or gpu.architecture == architecture.casefold())
    ]


def _gpu(key: str, row: Mapping[str, object], where: str) -> Gpu:
    try:
        return Gpu.model_validate({"name": key, "source": "your catalogue", **row, "key": key})
    except ValidationError as error:
        raise from_validation(error, where, Gpu.model_fields) from None


COMPUTE_SLICES, MEMORY_SLICES = 7, 8


class MigProfile(Noun):
    """A slice that a GPU can be cut into."""

    name: str  # such as ``3g.40gb``
    compute: PositiveInt
    memory: PositiveInt
    starts: tuple[int, ...]
    compute_share: float  # of the GPU's multiprocessors

    @property
    def memory_share(self) -> float:
        """Return its share of the GPU's memory, cache and bandwidth."""
        return self.memory / MEMORY_SLICES


class _Row(Noun):
    gigabytes: tuple[int, ...]
    multiprocessors: tuple[int, ...] | None = None
    of: int | None = None
    source: str
    date: datetime.date


@cache
def _shipped() -> dict[str, tuple[MigProfile, ...]]:
    content = shipped_tables("mig.toml")
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
    """Return what a GPU can be cut into, the smallest first; nothing if it cannot be cut."""
    return _shipped().get(gpu.key, ())


def fit_together(profiles: Sequence[MigProfile]) -> bool:
    """Decide whether one GPU can be cut into all of these at once."""
    return sum(profile.compute for profile in profiles) <= COMPUTE_SLICES and _laid_out(
        sorted(profiles, key=lambda profile: (-profile.memory, len(profile.starts))), 0
    )


def _laid_out(profiles: Sequence[MigProfile], taken: int) -> bool:
    """Decide whether these have room beside the memory slices that are taken (one bit each)."""
    if not profiles:
        return True
    first, *rest = profiles
    wide = (1 << first.memory) - 1
    return any(not taken & wide << start and _laid_out(rest, taken | wide << start) for start in first.starts)


def slice_of(gpu: Gpu, profile: MigProfile) -> Gpu:
    """Return a slice as a GPU with its shares of the datasheet's rates, so its speed is scaled from the whole one's."""
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


def gpu_text(gpu: str) -> str:
    """Return the name that people use: ``H100``, ``A100 80GB``, ``RTX 5090``, ``RTX PRO 6000``."""
    return re.sub("(RTX|PRO)(?=[A-Z0-9])", r"\1 ", gpu.removesuffix("-SXM").replace("-", " "))
