"""Define what the meter reads: counters of serving engines under common names, what GPUs report and draw, and the time.

Engines disagree on what "prompt tokens" are and count per rank or data-parallel engine, so a reading keeps every series
of a kind separate: only increases of single series may be added up, because each can restart from zero. A source is
anything that can be asked for readings: an engine's address, or a Prometheus server.

Each GPU is read by NVML on this machine, or from the page of a DCGM exporter. Energy is the difference of two readings
of the GPU's own counter (millijoules since the driver was loaded), or power × time if a GPU has no counter. Power and
energy belong to the physical GPU: the slices of a MIG GPU and the pods that share one repeat the same number, so sums
count each GPU once. Names and units are those of NVML 13 and of the DCGM exporter's default page.
"""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import Field

from tokonomics.errors import BadInput, TokonomicsError, shorten
from tokonomics.types import Noun

if TYPE_CHECKING:
    import aiohttp


class Counted(StrEnum):
    """What is counted over the life of a process; values of all series of a kind add up."""

    input_total = "input_total"  # prompt tokens, including those found in a cache
    input_cached = "input_cached"  # part of them, not computed again
    output = "output"
    answered = "answered"  # requests that ended well
    failed = "failed"  # requests that ended in an error, or were cancelled
    preempted = "preempted"  # times that a request lost its place and must compute again
    work = "work"  # steps, seconds or tokens that change whenever the engine works; only the change matters
    idle_s = "idle_s"  # seconds without work, as the engine counts them
    ttft_s = "ttft_s"
    ttft_count = "ttft_count"
    e2e_s = "e2e_s"
    e2e_count = "e2e_count"
    tpot_s = "tpot_s"
    tpot_count = "tpot_count"
    prompt_s = "prompt_s"  # seconds of computing prompts
    step_s = "step_s"  # of steps without prompts, if they are logged
    step_count = "step_count"
    step_answers = "step_answers"  # that ran in them
    ttft_buckets = "ttft_buckets"
    tpot_buckets = "tpot_buckets"
    input_buckets = "input_buckets"
    output_buckets = "output_buckets"


STEPS = (Counted.step_s, Counted.step_count, Counted.step_answers)
"""What a log adds to a page: a meter that is started again counts them anew, and so do they."""
BUCKETS = (Counted.ttft_buckets, Counted.tpot_buckets, Counted.input_buckets, Counted.output_buckets)
"""Histograms: for each upper bound, in the label ``le``, how many requests were at most that slow or long."""
Series = Mapping[str, float]  # values by the series' full name, such as ``vllm:generation_tokens_total{engine="0"}``


@dataclass(frozen=True, slots=True)
class Reading:
    """What one model on one server had counted at an instant."""

    target: str  # the address, or the name the source gives it
    engine: str
    model: str  # as the engine names it; "" if it does not
    at: float  # unix seconds, by the meter's clock
    counters: Mapping[Counted, Series]
    started: float | None = None  # of the process, unix seconds by the server's clock
    server_at: float | None = None  # ``at`` by that clock, if the answer states it: our clock may be set meanwhile
    created: Series = field(default_factory=dict)  # when each series was created; later means restarted at 0
    running: float | None = None
    waiting: float | None = None
    kv_share: float | None = None  # share of the KV cache in use, 0 to 1
    states: Mapping[str, str] = field(default_factory=dict)  # of its set-up: the KV cache's precision, blocks …
    lumpy: bool = False  # tokens are counted only when a request ends
    moves_within: bool = False  # a counter moves while a request runs; none moved means no work, whatever gauges say
    tells_idle: bool = True  # False: nothing on the page moves during a long request, so no change does not mean idle
    labels: Mapping[str, str] = field(default_factory=dict)  # of the target, to group by: pod, namespace, tenant, team

    def total(self, kind: Counted) -> float:
        return sum(self.counters.get(kind, {}).values())


class GpuReading(Noun):
    """What one GPU reports at an instant; None if it does not."""

    uuid: str
    name: str
    at: float = Field(exclude=True)
    utilization: float | None = None  # share of the time in which any kernel ran: decode at batch 1 reads about 1
    power_w: float | None = None
    energy_j: float | None = None  # cumulative; starts again with the driver or the machine
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    dram_active: float | None = None  # share of the memory bandwidth in use, 0 to 1
    tensor_active: float | None = None
    labels: dict[str, str] = Field(default_factory=dict)  # such as hostname, pod, namespace


class Missed(TokonomicsError):
    """Raised if a reading did not come: the meter reports it, counts it, and goes on."""


async def body_of(response: "aiohttp.ClientResponse", most_bytes: int) -> bytes:
    """Return the body of an answer if it is not too large."""
    body = bytearray()
    async for piece in response.content.iter_chunked(1 << 16):
        body += piece
        if len(body) > most_bytes:
            raise Missed(f"the answer is larger than {most_bytes // 10**6} MB")
    return bytes(body)


class Source(Protocol):
    name: str  # for messages; for an engine's address also the target of its readings
    discovers: bool  # targets come and go; one that is no longer reported is no longer paid for
    labels: Mapping[str, str]  # of its one target, to group and price by; empty if it discovers
    warnings: Sequence[str]  # what was odd about the last reading

    async def read(self) -> Sequence[Reading]:
        """Return all readings there are now; raise ``Missed`` if there are none.

        A source that discovers gives every scrape of each living target since the last call, with its own time.
        """


GpuSource = Callable[[], Awaitable[Sequence[GpuReading]]]  # all GPUs there are now; raises our error if none


class Clock(Protocol):
    """Two clocks: one for dates, which may jump, and one that measures durations."""

    def wall(self) -> float:
        """Return unix seconds."""

    def steady(self) -> float:
        """Return seconds since some instant; they never go back."""


class SystemClock:
    def wall(self) -> float:
        return time.time()

    def steady(self) -> float:
        # Only Linux has a clock that neither jumps nor stops while the machine sleeps.
        boottime = getattr(time, "CLOCK_BOOTTIME", None)
        return time.clock_gettime(boottime) if boottime is not None else time.monotonic()


JOULES_PER_KWH = 3.6e6
_PER_MILLI = 1e-3
_PERCENT = 0.01
_MIB = 2**20
# DCGM writes "no value" as a number at the top of its type's range (dcgm_structs.h: DCGM_INT32_BLANK 0x7ffffff0,
# DCGM_INT64_BLANK 0x7ffffffffffffff0, DCGM_FP64_BLANK 2^47), and adds a small number for the reason. No GPU draws 2 GW
# or holds 2 PiB, so anything from the smallest of them on is no value; only the energy counter can really exceed it.
_BLANK, _ENERGY_BLANK = float(0x7FFFFFF0), 2.0**62
_MAX_PAGE_BYTES = 16_000_000  # our choice: 8 GPUs of 7 MIG slices with 30 fields each are 1,700 lines, half a megabyte

_DCGM: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilization", _PERCENT),
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", _PER_MILLI),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DCGM_FI_DEV_FB_FREE": ("memory_free_bytes", _MIB),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("engine_active", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 1.0),
}
DCGM_NAMES = frozenset(_DCGM)
_LABELS = {
    "hostname": ("hostname", "Hostname", "node", "instance"),
    "gpu": ("gpu",),
    "mig_profile": ("GPU_I_PROFILE",),
    "mig_id": ("GPU_I_ID",),
    "pod": ("exported_pod", "pod"),
    "namespace": ("exported_namespace", "namespace"),
    "container": ("exported_container", "container"),
}
"""Our labels and theirs: older exporters write Hostname, and Prometheus renames a pod's labels that clash with those of
the exporter's own pod."""


class NoGpuSeen(TokonomicsError):
    """Raised if no GPU can be read here; a meter shows the reason and goes on without electricity."""


def joules_used(before: Iterable[GpuReading], after: Iterable[GpuReading]) -> float:
    """Return what the GPUs in both readings drew between them, each physical GPU counted once.

    If a counter fell, it restarted with its driver, and its new value counts.
    """
    earlier, joules = physical_gpus(before), 0.0
    for key, now in physical_gpus(after).items():
        then = earlier.get(key)
        if then is not None and now.energy_j is not None and then.energy_j is not None:
            joules += now.energy_j - then.energy_j if now.energy_j >= then.energy_j else now.energy_j
        elif then is not None and now.power_w is not None and then.power_w is not None:
            joules += (now.power_w + then.power_w) / 2 * max(0.0, now.at - then.at)
    return joules


def electricity_usd(joules: float, usd_per_kwh: float) -> float:
    """Return the dollars for what the GPUs drew: the boards alone, without host, power supply and cooling."""
    return joules / JOULES_PER_KWH * usd_per_kwh


def physical_gpus(readings: Iterable[GpuReading]) -> dict[tuple[str, str], GpuReading]:
    """Return one reading for each physical GPU: of several, one with its energy, else one with its power."""
    by_gpu: dict[tuple[str, str], list[GpuReading]] = defaultdict(list)
    for reading in readings:
        by_gpu[reading.labels.get("hostname", ""), reading.uuid].append(reading)
    return {
        gpu: max(same, key=lambda reading: (reading.energy_j is not None, reading.power_w is not None))
        for gpu, same in by_gpu.items()
    }


async def nvml_gpus() -> list[GpuReading]:
    """Return the GPUs of this machine."""
    return read_nvml(time.time())


async def dcgm_gpus(url: str, timeout_s: float = 10.0) -> list[GpuReading]:
    """Return the GPUs on the page of a DCGM exporter."""
    import aiohttp

    page = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
    try:
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(page) as response:
            if response.status != 200:
                raise BadInput(f"answered status {response.status}", where="the DCGM exporter")
            body = await body_of(response, _MAX_PAGE_BYTES)
        return read_dcgm_page(body.decode(errors="replace"), time.time())
    except TimeoutError:
        raise NoGpuSeen(f"the DCGM exporter did not answer within {timeout_s:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError, Missed) as error:
        said = shorten(str(error) or type(error).__name__, 160)
        raise NoGpuSeen(f"the DCGM exporter cannot be read: {said}") from None


def read_nvml(at: float, nvml: Any = None) -> list[GpuReading]:
    """Read every NVIDIA GPU of this machine now; ``NoGpuSeen`` says why there is none."""
    if nvml is None:
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        fix = "Run the meter on the GPU machine, or give it a DCGM exporter's page."
        raise NoGpuSeen(f"no GPU seen here: {str(error).rstrip('.')}", fix=fix) from None
    try:
        if nvml.nvmlDeviceGetCount() == 0:
            raise NoGpuSeen("no GPU seen here: the driver is loaded but shows no device")
        return [_read_device(nvml, index, at) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise NoGpuSeen(f"no GPU seen here: {str(error).rstrip('.')}") from None
    finally:
        nvml.nvmlShutdown()


def _read_device(nvml: Any, index: int, at: float) -> GpuReading:
    """Read one GPU; what it does not support, or does not tell this user, is None."""

    def ask(question: Callable[[], float]) -> float | None:
        try:
            return float(question())
        except nvml.NVMLError:
            return None

    def text(name: str | bytes) -> str:
        """Decode the name: older releases of nvidia-ml-py answer in bytes."""
        return name.decode(errors="replace") if isinstance(name, bytes) else name

    labels = {"gpu": str(index)}
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = text(nvml.nvmlDeviceGetUUID(handle)), text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError as error:
        # A GPU that fell off the bus is still paid for: keep it in the list, with nothing known about it.
        return GpuReading(uuid=f"gpu-{index}", name=f"unreadable: {error}", at=at, labels=labels)
    return GpuReading(
        uuid=uuid,
        name=name,
        at=at,
        utilization=ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu * _PERCENT),
        power_w=ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) * _PER_MILLI),
        energy_j=ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * _PER_MILLI),
        memory_used_bytes=ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        memory_total_bytes=ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total),
        labels=labels,
    )


def read_dcgm_page(page: str, at: float) -> list[GpuReading]:
    """Read every GPU, MIG slice and pod's share on an exporter's page."""
    from prometheus_client.parser import text_string_to_metric_families

    where = "the DCGM exporter"
    try:
        found = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
        samples = [(sample.name, sample.labels, float(sample.value)) for sample in found]
    except (ValueError, KeyError, IndexError, OverflowError):
        raise BadInput("does not show a page of Prometheus metrics", where=where) from None
    readings = dcgm_readings(samples, at)
    if not readings:
        raise BadInput("shows no GPU", where=where, fix=f"Expected samples such as {min(_DCGM)}.")
    return readings


def dcgm_readings(samples: Iterable[tuple[str, Mapping[str, str], float]], at: float) -> list[GpuReading]:
    """Return readings from parsed samples; skip those of other exporters."""
    values: dict[tuple[str, str, tuple[tuple[str, str], ...]], dict[str, float]] = defaultdict(dict)
    for name, labels, value in samples:
        # The parser of prometheus_client adds _total to the name of what the page declares as a counter.
        known = _DCGM.get(name.removesuffix("_total"))
        if known is None:
            continue
        field, scale = known
        ours = {ours: said for ours, theirs in _LABELS.items() if (said := _first(labels, theirs))}
        uuid = _first(labels, ("UUID", "uuid")) or f"gpu-{ours.get('gpu', '?')}"
        fields = values[uuid, labels.get("modelName") or "GPU", tuple(ours.items())]
        if 0 <= value < (_ENERGY_BLANK if field == "energy_j" else _BLANK):
            fields[field] = value * scale
    readings = []
    for (uuid, name, labelled), fields in values.items():
        engine, free = fields.pop("engine_active", None), fields.pop("memory_free_bytes", None)
        if engine is not None:
            # A MIG slice has no utilisation; the share of time in which its engine was active is equivalent.
            fields.setdefault("utilization", engine)
        if free is not None and "memory_used_bytes" in fields:
            fields["memory_total_bytes"] = fields["memory_used_bytes"] + free
        readings.append(GpuReading(uuid=uuid, name=name, at=at, labels=dict(labelled), **fields))
    return readings


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((labels[name] for name in names if labels.get(name)), None)
