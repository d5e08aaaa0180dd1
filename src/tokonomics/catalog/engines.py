"""List the serving engines, what each does by default (batch limits, memory, precisions), and how soon it serves.

Unless one is named, ``default_engine`` decides which engine serves a GPU: the first of the file that runs there,
unless people serve with another (``default_on``). TPUs and Trainium2 get vLLM with its plugins, Macs llama.cpp.

Defaults were read in the engines' own sources, of the version named in each row of ``data/engines.toml``. How much
device memory an engine leaves for the KV cache follows one of three rules, which differ in what the share covers.

An engine is started from an order, from a disk, or from the host's memory:

    cold start = machine + image + engine + weights ÷ the disk's bytes a second
    wake       = a fixed time + weights ÷ what vLLM reaches of PCIe; asleep, the weights are in the host's memory

Each figure is one row of ``data/start_times.toml``, with source and date: fleets, autoscaling and models that share a
GPU all read them here.
"""

import datetime
from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from tokonomics.catalog.entries import resolve, shipped_tables
from tokonomics.catalog.gpus import Architecture, Gpu
from tokonomics.catalog.layers import Precision
from tokonomics.types import Noun
from tokonomics.units import GIB

Share = Annotated[float, Field(gt=0, le=1)]


class MemoryRule(StrEnum):
    """What an engine's share of device memory must hold."""

    all = "all"  # weights, workspace and KV cache (vLLM's ``gpu_memory_utilization``)
    weights_and_kv = "weights_and_kv"  # without the workspace (SGLang's ``mem_fraction_static``)
    free = "free"  # KV alone: a share of what weights and workspace leave (TensorRT-LLM's ``free_gpu_memory_fraction``)


class Defaults(Noun):
    """What an engine sets by default on devices of at least that much memory."""

    at_least_gib: float = Field(default=0, ge=0)
    except_gpus: tuple[str, ...] = ()
    only_gpus: tuple[str, ...] = ()
    memory_fraction: Share
    reserve_bytes: NonNegativeInt = 0  # kept out of the share, in bytes rather than as a fraction
    max_sequences: PositiveInt
    max_batched_tokens: PositiveInt  # tokens of one step: the budget that prompts are chunked into


class Hardware(Noun):
    """The precisions that run on some architectures."""

    architectures: tuple[Architecture, ...]
    weights: tuple[Precision, ...]
    kv: tuple[Precision, ...]


class Engine(Noun):
    """A serving stack with its defaults."""

    key: str
    name: str
    version: str
    aliases: tuple[str, ...] = ()
    kv_block_tokens: PositiveInt
    memory_rule: MemoryRule
    chunks_prefill: bool  # splits a prompt over several steps when it exceeds the token budget
    mixes_prefill_with_decode: bool  # one step may hold both; otherwise a prompt's step delays the running requests
    reuses_prefixes: bool
    reserves_answers: bool  # admits a request only if its whole answer has room; otherwise preempts
    default_on: tuple[
        Architecture, ...
    ] = ()  # where people serve with it though an engine listed before runs there too
    converts: dict[Precision, Precision] = Field(default_factory=dict)  # what it loads where it has not the published
    scales_blocks: bool = False  # sums of a few INT8 products are scaled one by one: no faster than 16 bits
    defaults: tuple[Defaults, ...]
    hardware: tuple[Hardware, ...]
    source: str
    date: datetime.date
    note: str | None = None

    @field_validator("defaults")
    @classmethod
    def _cover_every_device(cls, defaults: tuple[Defaults, ...]) -> tuple[Defaults, ...]:
        sizes = [default.at_least_gib for default in defaults]
        last = defaults[-1] if sizes else Defaults(memory_fraction=1, max_sequences=1, max_batched_tokens=1)
        if sizes != sorted(sizes, reverse=True) or not sizes or sizes[-1] != 0 or last.except_gpus or last.only_gpus:
            raise ValueError("defaults must be listed by memory, largest first, the last for every device")
        return defaults

    def __hash__(self) -> int:
        """Hash only name and version, which is quick."""
        return hash((self.key, self.version))

    def defaults_on(self, gpu: Gpu) -> Defaults:
        """Return its defaults on that device."""
        gib = gpu.memory_bytes / GIB
        return next(
            one
            for one in self.defaults
            if gib >= one.at_least_gib and gpu.key not in one.except_gpus and gpu.key in (one.only_gpus or {gpu.key})
        )

    def loads(self, published: Iterable[Precision]) -> tuple[Precision, ...]:
        """Return in what it loads checkpoints of these precisions, each once: GGUF files of FP8 models are Q8_0."""
        return tuple(dict.fromkeys(self.converts.get(precision, precision) for precision in published))

    def memory_text(self, gpu: Gpu) -> str:
        """Describe what its memory setting means on that device."""
        defaults = self.defaults_on(gpu)
        share = f"{defaults.memory_fraction * 100:.0f} %"
        kept = f", less {defaults.reserve_bytes / GIB:.1f} GiB" if defaults.reserve_bytes else ""
        match self.memory_rule:
            case MemoryRule.all:
                return f"{self.key} takes {share} for everything{kept}"
            case MemoryRule.weights_and_kv:
                return f"{self.key} takes {share}{kept} for weights and KV"
            case MemoryRule.free:
                return f"{self.key} takes {share} of what weights and workspace leave{kept}"

    def hardware_of(self, architecture: Architecture) -> Hardware | None:
        """Return what runs on an architecture; None if the engine does not."""
        return next((hardware for hardware in self.hardware if architecture in hardware.architectures), None)

    def kv_bytes(self, gpu: Gpu, weight_bytes: float, workspace_bytes: float, fraction: float | None = None) -> float:
        """Return the device memory left for the KV cache; negative if weights and workspace alone do not fit.

        ``fraction`` is the engine's own memory setting if the user has changed it.
        """
        defaults = self.defaults_on(gpu)
        share = defaults.memory_fraction if fraction is None else fraction
        reserve = defaults.reserve_bytes if fraction is None else 0
        taken = gpu.usable_bytes * share - reserve
        match self.memory_rule:
            case MemoryRule.all:
                return taken - weight_bytes - workspace_bytes
            case MemoryRule.weights_and_kv:
                # A workspace larger than what the share leaves would fail at run time, so take it from the cache here.
                return min(taken - weight_bytes, gpu.usable_bytes - weight_bytes - workspace_bytes)
            case MemoryRule.free:
                free = gpu.usable_bytes - weight_bytes - workspace_bytes
                return free * share if free > 0 else free


@cache
def all_engines() -> tuple[Engine, ...]:
    rows = shipped_tables("engines.toml")["engines"]
    return tuple(Engine.model_validate({"key": key, **row}) for key, row in rows.items())


def find_engine(name: str) -> Engine:
    return resolve("engine", name, all_engines(), fix=f"Known: {', '.join(engine.key for engine in all_engines())}.")


@cache
def default_engine(architecture: Architecture) -> Engine:
    """Return the engine that an architecture is served with unless one is named."""
    runs = [engine for engine in all_engines() if engine.hardware_of(architecture)]
    return next((engine for engine in runs if architecture in engine.default_on), runs[0])


def engine_for(gpu: Gpu, named: str | None = None) -> Engine:
    """Return the named engine, or the one that runs on the GPU by default."""
    return default_engine(gpu.architecture) if named is None else find_engine(named)


class StartTime(Noun):
    """One figure and its source."""

    value: PositiveFloat
    source: str
    date: datetime.date


class StartTimes(Noun):
    """The figures of the file, by name."""

    machine_s: StartTime
    image_s: StartTime
    engine_s: StartTime
    network_disk_bytes_per_s: StartTime
    sleep_fixed_s: StartTime
    sleep_share_of_pcie: StartTime
    wake_fixed_s: StartTime
    wake_share_of_pcie: StartTime
    asleep_bytes: StartTime

    @property
    def ready_s(self) -> float:
        """Return the time from the order until an engine loads weights."""
        return self.machine_s.value + self.image_s.value + self.engine_s.value

    def cold_s(self, weight_bytes: float) -> float:
        """Return the time from the order to the first answer, from a network disk: a new machine's disks are empty."""
        return self.ready_s + weight_bytes / self.network_disk_bytes_per_s.value

    def wake_s(self, weight_bytes: float, gpu: Gpu) -> float:
        """Return the time until an engine whose weights are in the host's memory serves."""
        return self.wake_fixed_s.value + weight_bytes / (self.wake_share_of_pcie.value * gpu.pcie_bytes_per_s)

    def sleep_s(self, weight_bytes: float, gpu: Gpu) -> float:
        """Return the time until its weights are in the host's memory, from the second time on."""
        return self.sleep_fixed_s.value + weight_bytes / (self.sleep_share_of_pcie.value * gpu.pcie_bytes_per_s)


@cache
def start_times() -> StartTimes:
    """Return the shipped figures."""
    return StartTimes.model_validate(shipped_tables("start_times.toml"))
