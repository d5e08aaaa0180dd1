"""What the meter knows, as a /metrics page of its own: dollars beside tokens, for Prometheus, Grafana and alerts.

Counters are the ledger's sums, so they outlive restarts of the meter, and a rate or increase over any window is exact;
gauges are of the last minute. Prices line up with OpenCost's: ``llm_gpu_hourly_cost`` is its ``node_gpu_hourly_cost``
(dollars per GPU and hour), ``llm_gpu_allocation`` its ``container_gpu_allocation``, ``llm_total_hourly_cost`` its
``node_total_hourly_cost``; idle here is time without tokens on GPUs that OpenCost counts as allocated.
Series are bounded by the servers that are there: no label holds anything of a request.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from tokonomics.errors import BadInput, shorten
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.state import GroupState, MeterState, MeterTally, usd_per_mtok_of
from tokonomics.types import Noun

DEFAULT_LISTEN = "127.0.0.1:9464"  # this machine alone; the port is the default of OpenTelemetry's Prometheus exporters


class Told(Noun):
    """What the meter was told and does not find out: shown where given."""

    gpus_per_target: int | None = None
    price_date: date | None = None
    usd_per_kwh: float | None = None


class MetricFamily(NamedTuple):
    """A metric: its name without ``_total``, whether it counts up, its labels, and what it says."""

    name: str
    counts: bool
    labels: tuple[str, ...]
    help: str

    @property
    def sample_name(self) -> str:
        return f"{self.name}_total" if self.counts else self.name


_GROUP = ("target", "model", "engine")
_GPU = ("hostname", "gpu", "uuid", "gpu_name")
_SLICE = (*_GPU, "mig_id")

COST = MetricFamily(
    "llm_cost_per_million_tokens", False, (*_GROUP, "basis", "kind"),
    "US dollars per million tokens over the last minute (five where an engine counts at the end of a request). "
    "basis: reservation = every paid hour, usage = busy time alone. kind: all dollars over input and output tokens "
    "(blended), over output alone, or over input alone.",
)  # fmt: skip
PLANNED_COST = MetricFamily(
    "llm_planned_cost_per_million_tokens", False, ("basis", "kind"), "What the plan estimated, in US dollars."
)
TOKENS = MetricFamily(
    "llm_tokens", True, (*_GROUP, "kind"),
    "Tokens served. kind: input_computed, input_cached (found in the prefix cache), output; the three add up to what "
    "an API would bill.",
)  # fmt: skip
UNSEEN = MetricFamily(
    "llm_unseen_tokens", True, _GROUP,
    "Of llm_tokens_total: counted while the server or the meter was away. Leave them out beside busy dollars.",
)  # fmt: skip
DOLLARS = MetricFamily(
    "llm_cost_usd", True, (*_GROUP, "state"),
    "US dollars of paid time. state: busy, idle (no work at all), gap (the server did not answer), away (the meter did "
    "not run); the four add up to the bill.",
)  # fmt: skip
SECONDS = MetricFamily(
    "llm_time_seconds", True, (*_GROUP, "state"), "Paid time, by the same states as llm_cost_usd_total."
)
FAILED_DOLLARS = MetricFamily(
    "llm_failed_cost_usd", True, _GROUP, "Of the busy dollars: spent on requests that failed or were given up."
)
REQUESTS = MetricFamily("llm_requests", True, (*_GROUP, "outcome"), "Requests that ended: answered or failed.")
PREEMPTIONS = MetricFamily("llm_preemptions", True, _GROUP, "Times a request lost its place and had to compute again.")
MISSES = MetricFamily("llm_missed_readings", True, _GROUP, "Readings that did not come, since the meter started.")
RUNNING = MetricFamily("llm_requests_running", False, _GROUP, "Requests in the batch now.")
WAITING = MetricFamily("llm_requests_waiting", False, _GROUP, "Requests in the queue now.")
KV_USE = MetricFamily("llm_kv_cache_usage_ratio", False, _GROUP, "Share of the KV cache in use, 0 to 1.")
BATCH = MetricFamily(
    "llm_batch_requests", False, _GROUP, "Requests running, in the mean over the busy time of the last minute."
)
UP = MetricFamily("llm_target_up", False, _GROUP, "1 if the last reading came.")
BUSY = MetricFamily("llm_target_busy", False, _GROUP, "1 if there was work at the last reading.")
INFO = MetricFamily(
    "llm_target_info", False, ("target",), "Labels of a target, to join on: pod, namespace, team and so on."
)
TOTAL_PRICE = MetricFamily(
    "llm_total_hourly_cost",
    False,
    ("target",),
    "US dollars per hour of the server, all GPUs (OpenCost: node_total_hourly_cost).",
)
GPU_PRICE = MetricFamily(
    "llm_gpu_hourly_cost", False, ("target",), "US dollars per GPU and hour (OpenCost: node_gpu_hourly_cost)."
)
GPUS = MetricFamily(
    "llm_gpu_allocation", False, ("target",), "GPUs of the server (OpenCost: container_gpu_allocation)."
)
PRICE_DATE = MetricFamily("llm_price_timestamp_seconds", False, (), "The day from which the price is, as unix time.")
POWER = MetricFamily("llm_gpu_power_watts", False, _GPU, "What the board draws now; each physical GPU once.")
ENERGY = MetricFamily(
    "llm_gpu_energy_joules", True, _GPU, "Energy since the driver was loaded; each physical GPU once."
)
ELECTRICITY = MetricFamily(
    "llm_electricity_usd",
    True,
    (),
    "Of the GPU boards since the meter started, at the price given; not part of the bill.",
)
KWH_PRICE = MetricFamily("llm_electricity_usd_per_kwh", False, (), "The price of electricity that the meter was given.")
UTILIZATION = MetricFamily(
    "llm_gpu_utilization_ratio", False, _SLICE, "Share of time in which any kernel ran: near 1 even at batch 1."
)
DRAM = MetricFamily(
    "llm_gpu_dram_active_ratio", False, _SLICE, "Share of the memory bandwidth in use: what decode is bound by."
)
TENSOR = MetricFamily("llm_gpu_tensor_active_ratio", False, _SLICE, "Share of time in which tensor cores worked.")
MEMORY = MetricFamily("llm_gpu_memory_used_bytes", False, _SLICE, "GPU memory in use.")
LAST = MetricFamily("llm_meter_last_reading_timestamp_seconds", False, (), "When the meter last looked, as unix time.")
EVERY = MetricFamily("llm_meter_interval_seconds", False, (), "How often the meter looks.")
HELD = MetricFamily(
    "llm_meter_held_spans", False, (), "Stretches of time not yet written to the ledger, because it cannot be."
)

FAMILIES = (
    COST, PLANNED_COST, TOKENS, UNSEEN, DOLLARS, SECONDS, FAILED_DOLLARS, REQUESTS, PREEMPTIONS, MISSES, RUNNING,
    WAITING, KV_USE, BATCH, UP, BUSY, INFO, TOTAL_PRICE, GPU_PRICE, GPUS, PRICE_DATE, POWER, ENERGY, ELECTRICITY,
    KWH_PRICE, UTILIZATION, DRAM, TENSOR, MEMORY, LAST, EVERY, HELD,
)  # fmt: skip
"""Everything on the page, in its order."""

Value = tuple[Mapping[str, str], float | None]


def page(state: MeterState | None, told: Told | None = None, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type, in the format that the reader asks for."""
    registry = CollectorRegistry()
    registry.register(_Once(list(metrics(state, told or Told())) if state is not None else []))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Once:
    """What a registry asks: here the families are made already."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        return self._found


def metrics(state: MeterState, told: Told) -> Iterator[Metric]:
    """Families that have anything to say; one with nothing known is left out rather than shown as zero."""
    found: dict[MetricFamily, list[Value]] = {family: [] for family in FAMILIES}
    for group in state.groups:
        _add_group(found, group)
    _add_targets(found, state.groups, told)
    _add_gpus(found, state.gpus)
    if state.planned is not None:
        found[PLANNED_COST].append(({"basis": "reservation", "kind": "blended"}, state.planned.usd_per_mtok))
    if told.price_date is not None:
        found[PRICE_DATE].append(({}, datetime.combine(told.price_date, time(), UTC).timestamp()))
    found[ELECTRICITY].append(({}, state.electricity_usd))
    found[KWH_PRICE].append(({}, told.usd_per_kwh))
    found[LAST].append(({}, state.at))
    found[EVERY].append(({}, state.every_s))
    found[HELD].append(({}, float(state.held_spans)))
    for family, values in found.items():
        known = [(labels, value) for labels, value in values if value is not None]
        if known:
            yield _metric(family, known)


def _metric(family: MetricFamily, values: list[tuple[Mapping[str, str], float]]) -> Metric:
    names = list(dict.fromkeys([*family.labels, *(name for labels, _ in values for name in labels)]))
    make = CounterMetricFamily if family.counts else GaugeMetricFamily
    metric = make(family.name, family.help, labels=names)
    for labels, value in values:
        metric.add_metric([labels.get(name, "") for name in names], value)
    return metric


def _add_group(found: dict[MetricFamily, list[Value]], group: GroupState) -> None:
    labels = {"target": group.target, "model": group.model, "engine": group.engine}
    total = group.total
    for (basis, kind), dollars in cost_per_mtok(group.now).items():
        found[COST].append((labels | {"basis": basis, "kind": kind}, dollars))
    for kind, tokens in (
        ("input_computed", total.input_computed), ("input_cached", total.input_cached), ("output", total.output),
    ):  # fmt: skip
        found[TOKENS].append((labels | {"kind": kind}, tokens))
    found[UNSEEN].append((labels, total.unseen_tokens))
    for state, usd, seconds in (
        ("busy", total.busy_usd, total.busy_s), ("idle", total.idle_usd, total.idle_s),
        ("gap", total.gap_usd, total.gap_s), ("away", total.away_usd, total.away_s),
    ):  # fmt: skip
        found[DOLLARS].append((labels | {"state": state}, usd))
        found[SECONDS].append((labels | {"state": state}, seconds))
    found[FAILED_DOLLARS].append((labels, total.failed_usd))
    found[REQUESTS] += [
        (labels | {"outcome": "answered"}, total.answered),
        (labels | {"outcome": "failed"}, total.failed),
    ]
    found[PREEMPTIONS].append((labels, total.preempted))
    found[MISSES].append((labels, float(group.misses)))
    found[RUNNING].append((labels, group.running))
    found[WAITING].append((labels, group.waiting))
    found[KV_USE].append((labels, group.kv_share))
    found[BATCH].append((labels, group.now.batch))
    found[UP].append((labels, float(group.up)))
    found[BUSY].append((labels, None if group.busy is None else float(group.busy)))


def cost_per_mtok(tally: MeterTally) -> dict[tuple[str, str], float | None]:
    """By basis and kind of token."""
    unseen_input = tally.unseen_tokens - tally.unseen_output
    return {
        ("reservation", "blended"): tally.usd_per_mtok,
        ("reservation", "output"): tally.usd_per_mtok_output,
        ("reservation", "input"): usd_per_mtok_of(tally.usd, tally.input_total),
        ("usage", "blended"): tally.usd_per_mtok_usage,
        ("usage", "output"): tally.usd_per_mtok_output_usage,
        ("usage", "input"): usd_per_mtok_of(tally.busy_usd, tally.input_total - unseen_input),
    }


def _add_targets(found: dict[MetricFamily, list[Value]], groups: Iterable[GroupState], told: Told) -> None:
    """What belongs to a server and not to each model on it, once."""
    for target, group in {group.target: group for group in groups}.items():
        labels = {"target": target}
        own = {_label(name): value for name, value in group.labels.items()}
        found[INFO].append((own | labels, 1.0))
        found[TOTAL_PRICE].append((labels, group.usd_per_hour))
        if told.gpus_per_target:
            found[GPU_PRICE].append((labels, group.usd_per_hour / told.gpus_per_target))
            found[GPUS].append((labels, float(told.gpus_per_target)))


def _label(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r"^[0-9_]+", "", name)) or "label"


def _add_gpus(found: dict[MetricFamily, list[Value]], gpus: Iterable[GpuReading]) -> None:
    """Power and energy of each physical GPU, the rest of each slice; pods that share one repeat it, and are one."""
    seen: set[tuple[MetricFamily, tuple[str, ...]]] = set()
    for gpu in gpus:
        labels = {
            "hostname": gpu.labels.get("hostname", ""),
            "gpu": gpu.labels.get("gpu", ""),
            "uuid": gpu.uuid,
            "gpu_name": gpu.name,
        }
        part = labels | {"mig_id": gpu.labels.get("mig_id", "")}
        for family, where, value in (
            (POWER, labels, gpu.power_w), (ENERGY, labels, gpu.energy_j), (UTILIZATION, part, gpu.utilization),
            (DRAM, part, gpu.dram_active), (TENSOR, part, gpu.tensor_active), (MEMORY, part, gpu.memory_used_bytes),
        ):  # fmt: skip
            key = (family, tuple(where.values()))
            if value is not None and key not in seen:
                seen.add(key)
                found[family].append((where, value))


def listen_address(text: str) -> tuple[str, int]:
    """``127.0.0.1:9464``, ``:9464`` or ``9464``: without a host, this machine alone."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port[:9]) >= 1 << 16:
        raise BadInput(
            f"'{shorten(text)}' is no address to listen on", field="listen", fix=f"Write such as {DEFAULT_LISTEN}."
        )
    return host.strip("[]") or "127.0.0.1", int(port)


@asynccontextmanager
async def serve_exposition(
    host: str, port: int, latest: Callable[[], MeterState | None], told: Told | None = None
) -> AsyncIterator[str]:
    """Serve /metrics until the block ends; gives the address, with the port that was found for port 0."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        body, content_type = page(latest(), told, ",".join(request.headers.getall("Accept", [])))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def front(request: web.Request) -> web.Response:
        return web.Response(text="tokonomics meter: what tokens cost. The metrics are at /metrics.\n")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    app.router.add_get("/", front)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise BadInput(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                field="listen",
                fix="Choose another port, or end what uses it.",
            ) from None
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()
