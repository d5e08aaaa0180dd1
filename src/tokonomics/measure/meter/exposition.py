"""Serve what the meter knows as its own /metrics page: dollars beside tokens, for Prometheus, Grafana and alerts.

Counters are the ledger's sums, so they survive restarts of the meter, and a rate or increase over any window is exact;
gauges are of the last minute. Prices correspond to OpenCost's: ``llm_gpu_hourly_cost`` is its ``node_gpu_hourly_cost``
(dollars per GPU and hour), ``llm_gpu_allocation`` its ``container_gpu_allocation``, ``llm_total_hourly_cost`` its
``node_total_hourly_cost``; idle here is time without tokens on GPUs that OpenCost counts as allocated. The number of
series is limited by the running servers: no label holds anything of a request. ``write_files`` writes a Grafana
dashboard, Prometheus rules with alerts, and a scrape configuration for this page.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, time
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from tokonomics.addresses import say_once_when_full
from tokonomics.errors import BadInput, option, shorten
from tokonomics.files import make_folder, write_text
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.readings import GpuReading
from tokonomics.measure.meter.state import GroupState, MeterState, MeterTally, usd_per_mtok_of

DEFAULT_LISTEN = "127.0.0.1:9464"  # only this machine; the port is the default of OpenTelemetry's Prometheus exporters


class MetricFamily(NamedTuple):
    """A metric on the page: its name (counters end in ``_total``), its labels and its help text."""

    name: str
    labels: tuple[str, ...]
    help: str


_GROUP = ("target", "model", "engine")
_GPU = ("hostname", "gpu", "uuid", "gpu_name")
_SLICE = (*_GPU, "mig_id")
_FIGURE = ("target", "model", "figure")
FAMILIES = tuple(MetricFamily(*row) for row in (
    ("llm_twin_expected", (*_FIGURE, "bound"),
     "What the twin expects of the present window. figure: requests_per_s, ttft_p99_s, usd_per_mtok and so on; bound: "
     "mid, and low and high, which hold four of five windows."),
    ("llm_twin_error_ratio", _FIGURE,
     "Median size of the twin's error over a day of forecasts; of shares in points."),
    ("llm_twin_coverage_ratio", _FIGURE, "Share of its windows of a day within the interval: 0.8 if it is right."),
    ("llm_cost_per_million_tokens", (*_GROUP, "basis", "kind"),
     "US dollars per million tokens over the last minute (five where an engine counts at the end of a request). "
     "basis: reservation = every paid hour, usage = busy time alone. kind: all dollars over input and output tokens "
     "(blended), over output alone, or over input alone."),
    ("llm_planned_cost_per_million_tokens", ("basis", "kind"), "What the plan estimated, in US dollars."),
    ("llm_tokens_total", (*_GROUP, "kind"),
     "Tokens served. kind: input_computed, input_cached (found in the prefix cache), output; the three add up to what "
     "an API would bill."),
    ("llm_unseen_tokens_total", _GROUP,
     "Of llm_tokens_total: counted while the server or the meter was away. Leave them out beside busy dollars."),
    ("llm_cost_usd_total", (*_GROUP, "state"),
     "US dollars of paid time. state: busy, idle (no work at all), gap (the server did not answer), away (the meter "
     "did not run); the four add up to the bill."),
    ("llm_time_seconds_total", (*_GROUP, "state"), "Paid time, by the same states as llm_cost_usd_total."),
    ("llm_failed_cost_usd_total", _GROUP, "Of the busy dollars: spent on requests that failed or were given up."),
    ("llm_requests_total", (*_GROUP, "outcome"), "Requests that ended: answered or failed."),
    ("llm_preemptions_total", _GROUP, "Times a request lost its place and had to compute again."),
    ("llm_missed_readings_total", _GROUP, "Readings that did not come, since the meter started."),
    ("llm_requests_running", _GROUP, "Requests in the batch now."),
    ("llm_requests_waiting", _GROUP, "Requests in the queue now."),
    ("llm_kv_cache_usage_ratio", _GROUP, "Share of the KV cache in use, 0 to 1."),
    ("llm_batch_requests", _GROUP, "Requests running, in the mean over the busy time of the last minute."),
    ("llm_target_up", _GROUP, "1 if the last reading came."),
    ("llm_target_busy", _GROUP, "1 if there was work at the last reading."),
    ("llm_target_info", ("target",), "Labels of a target, to join on: pod, namespace, team and so on."),
    ("llm_total_hourly_cost", ("target",),
     "US dollars per hour of the server, all GPUs (OpenCost: node_total_hourly_cost)."),
    ("llm_gpu_hourly_cost", ("target",), "US dollars per GPU and hour (OpenCost: node_gpu_hourly_cost)."),
    ("llm_gpu_allocation", ("target",), "GPUs of the server (OpenCost: container_gpu_allocation)."),
    ("llm_price_timestamp_seconds", (), "The day from which the price is, as unix time."),
    ("llm_gpu_power_watts", _GPU, "What the board draws now; each physical GPU once."),
    ("llm_gpu_energy_joules_total", _GPU, "Energy since the driver was loaded; each physical GPU once."),
    ("llm_electricity_usd_total", (),
     "Of the GPU boards since the meter started, at the price given; not part of the bill."),
    ("llm_electricity_usd_per_kwh", (), "The price of electricity that the meter was given."),
    ("llm_gpu_utilization_ratio", _SLICE, "Share of time in which any kernel ran: near 1 even at batch 1."),
    ("llm_gpu_dram_active_ratio", _SLICE, "Share of the memory bandwidth in use: what decode is bound by."),
    ("llm_gpu_tensor_active_ratio", _SLICE, "Share of time in which tensor cores worked."),
    ("llm_gpu_memory_used_bytes", _SLICE, "GPU memory in use."),
    ("llm_budget_usd", ("budget",),
     "US dollars that this calendar month may cost. budget: all, or whose, such as team=search."),
    ("llm_budget_spent_usd", ("budget",), "Of it, spent since the month began (UTC)."),
    ("llm_budget_forecast_usd", ("budget", "bound"),
     "What the month will come to. bound: mid, and low and high, between which 80 % of months end."),
    ("llm_meter_last_reading_timestamp_seconds", (), "When the meter last looked, as unix time."),
    ("llm_meter_interval_seconds", (), "How often the meter looks."),
    ("llm_meter_held_spans", (), "Stretches of time not yet written to the ledger, because it cannot be."),
))  # fmt: skip
"""All metrics on the page, in order."""

Found = dict[str, list[tuple[Mapping[str, str], float | None]]]


def page(state: MeterState | None, settings: MeterSettings, accept: str = "") -> tuple[bytes, str]:
    """Return the page and its content type, in the format that the reader asks for."""
    return encoded(list(metrics(state, settings)) if state is not None else [], accept)


def encoded(families: list[Metric], accept: str) -> tuple[bytes, str]:
    """Return metrics as text, and its content type."""

    class Given:
        def collect(self) -> list[Metric]:
            return families

    registry = CollectorRegistry()
    registry.register(Given())
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def metrics(state: MeterState, settings: MeterSettings) -> Iterator[Metric]:
    """Yield the families that have a value; an unknown one is left out rather than shown as zero."""
    found: Found = {family.name: [] for family in FAMILIES}
    for group in state.groups:
        _add_group(found, group)
    _add_targets(found, state.groups, settings.gpus_per_server)
    _add_gpus(found, state.gpus)
    if state.planned is not None:
        planned = {"basis": "reservation", "kind": "blended"}, state.planned.usd_per_mtok
        found["llm_planned_cost_per_million_tokens"].append(planned)
    for budget in state.budgets:
        whose = {"budget": budget.budget}
        found["llm_budget_usd"].append((whose, budget.budget_usd))
        found["llm_budget_spent_usd"].append((whose, budget.spent_usd))
        for bound in ("low", "mid", "high"):
            found["llm_budget_forecast_usd"].append((whose | {"bound": bound}, getattr(budget.month_end, bound)))
    for expected in state.expected:
        of = {"target": expected.target, "model": expected.model, "figure": expected.figure}
        for bound in ("low", "mid", "high"):
            found["llm_twin_expected"].append((of | {"bound": bound}, getattr(expected, bound)))
        found["llm_twin_error_ratio"].append((of, expected.error))
        found["llm_twin_coverage_ratio"].append((of, expected.coverage))
    day = settings.price_date
    for name, value in (
        ("llm_price_timestamp_seconds", datetime.combine(day, time(), UTC).timestamp() if day else None),
        ("llm_electricity_usd_total", state.electricity_usd),
        ("llm_electricity_usd_per_kwh", settings.usd_per_kwh),
        ("llm_meter_last_reading_timestamp_seconds", state.at),
        ("llm_meter_interval_seconds", state.every_s),
        ("llm_meter_held_spans", state.held_spans),
    ):
        found[name].append(({}, value))
    for family in FAMILIES:
        known = [(labels, value) for labels, value in found[family.name] if value is not None]
        if known:
            names = list(dict.fromkeys([*family.labels, *(name for labels, _ in known for name in labels)]))
            make = CounterMetricFamily if family.name.endswith("_total") else GaugeMetricFamily
            metric = make(family.name, family.help, labels=names)
            for labels, value in known:
                metric.add_metric([labels.get(name, "") for name in names], value)
            yield metric


def _add_group(found: Found, group: GroupState) -> None:
    labels = {"target": group.target, "model": group.model, "engine": group.engine}
    total = group.total

    def add(name: str, value: float | None, **more: str) -> None:
        found[name].append((labels | more, value))

    for (basis, kind), dollars in cost_per_mtok(group.now).items():
        add("llm_cost_per_million_tokens", dollars, basis=basis, kind=kind)
    for kind in ("input_computed", "input_cached", "output"):
        add("llm_tokens_total", getattr(total, kind), kind=kind)
    add("llm_unseen_tokens_total", total.unseen_tokens)
    for state in ("busy", "idle", "gap", "away"):
        add("llm_cost_usd_total", getattr(total, f"{state}_usd"), state=state)
        add("llm_time_seconds_total", getattr(total, f"{state}_s"), state=state)
    add("llm_failed_cost_usd_total", total.failed_usd)
    for outcome in ("answered", "failed"):
        add("llm_requests_total", getattr(total, outcome), outcome=outcome)
    add("llm_preemptions_total", total.preempted)
    add("llm_missed_readings_total", float(group.misses))
    add("llm_requests_running", group.running)
    add("llm_requests_waiting", group.waiting)
    add("llm_kv_cache_usage_ratio", group.kv_share)
    add("llm_batch_requests", group.now.batch)
    add("llm_target_up", float(group.up))
    add("llm_target_busy", None if group.busy is None else float(group.busy))


def cost_per_mtok(tally: MeterTally) -> dict[tuple[str, str], float | None]:
    """Return US dollars per million tokens, by basis and kind of token."""
    unseen_input = tally.unseen_tokens - tally.unseen_output
    return {
        ("reservation", "blended"): tally.usd_per_mtok,
        ("reservation", "output"): tally.usd_per_mtok_output,
        ("reservation", "input"): usd_per_mtok_of(tally.usd, tally.input_total),
        ("usage", "blended"): tally.usd_per_mtok_usage,
        ("usage", "output"): tally.usd_per_mtok_output_usage,
        ("usage", "input"): usd_per_mtok_of(tally.busy_usd, tally.input_total - unseen_input),
    }


def _add_targets(found: Found, groups: Iterable[GroupState], gpus: int) -> None:
    """Add what belongs to a server and not to each model on it, once."""
    for target, group in {group.target: group for group in groups}.items():
        labels, own = {"target": target}, {}
        for name, value in group.labels.items():
            own[re.sub(r"[^a-zA-Z0-9_]", "_", re.sub(r"^[0-9_]+", "", name)) or "label"] = value
        found["llm_target_info"].append((own | labels, 1.0))
        found["llm_total_hourly_cost"].append((labels, group.usd_per_hour))
        found["llm_gpu_hourly_cost"].append((labels, group.usd_per_hour / gpus))
        found["llm_gpu_allocation"].append((labels, float(gpus)))


def _add_gpus(found: Found, gpus: Iterable[GpuReading]) -> None:
    """Add power and energy of each physical GPU, and the rest of each slice, once: pods that share one repeat it."""
    seen: set[tuple[str, ...]] = set()
    for gpu in gpus:
        of_gpu = {"hostname": gpu.labels.get("hostname", ""), "gpu": gpu.labels.get("gpu", "")}
        of_gpu |= {"uuid": gpu.uuid, "gpu_name": gpu.name}
        of_slice = of_gpu | {"mig_id": gpu.labels.get("mig_id", "")}
        for name, labels, value in (
            ("llm_gpu_power_watts", of_gpu, gpu.power_w),
            ("llm_gpu_energy_joules_total", of_gpu, gpu.energy_j),
            ("llm_gpu_utilization_ratio", of_slice, gpu.utilization),
            ("llm_gpu_dram_active_ratio", of_slice, gpu.dram_active),
            ("llm_gpu_tensor_active_ratio", of_slice, gpu.tensor_active),
            ("llm_gpu_memory_used_bytes", of_slice, gpu.memory_used_bytes),
        ):
            key = (name, *labels.values())
            if value is not None and key not in seen:
                seen.add(key)
                found[name].append((labels, value))


def listen_address(text: str) -> tuple[str, int]:
    """Read ``127.0.0.1:9464``, ``:9464`` or ``9464``; without a host, only this machine."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port[:9]) >= 1 << 16:
        fix = f"Write such as {DEFAULT_LISTEN}."
        raise BadInput(f"'{shorten(text)}' is no address to listen on", field="listen", fix=fix)
    return host.strip("[]") or "127.0.0.1", int(port)


@asynccontextmanager
async def serve_exposition(
    host: str, port: int, latest: Callable[[], MeterState | None], settings: MeterSettings
) -> AsyncIterator[str]:
    """Serve /metrics until the block ends; yield the address, with the port that was chosen for port 0."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        body, content_type = page(latest(), settings, ",".join(request.headers.getall("Accept", [])))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def front(request: web.Request) -> web.Response:
        return web.Response(text="tokonomics meter: what tokens cost. The metrics are at /metrics.\n")

    app = web.Application()
    app.router.add_get("/metrics", answer)
    app.router.add_get("/", front)
    say_once_when_full()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            said = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise BadInput(said, field="listen", fix="Choose another port, or end what uses it.") from None
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{runner.addresses[0][1]}/metrics"
    finally:
        await runner.cleanup()


NAMES = ("tokonomics-dashboard.json", "tokonomics-rules.yml", "prometheus-scrape.yml")


def text_of(name: str) -> str:
    return files("tokonomics.measure.meter").joinpath("files", name).read_text(encoding="utf-8")


def write_files(directory: Path, overwrite: bool = False) -> list[Path]:
    """Write all files; keep one that differs, such as one with changed thresholds, unless told to overwrite."""
    where, paths = shorten(str(directory)), [directory / name for name in NAMES]
    kept = [path.name for path in paths if _differs(path)]
    if kept and not overwrite:
        fix = f"Give {option('overwrite')} to replace what you changed, or another directory."
        raise BadInput(f"{', '.join(kept)} there differs from what we ship", where=where, fix=fix)
    make_folder(directory, where)
    for path in paths:
        write_text(path, text_of(path.name), where)
    return paths


def _differs(path: Path) -> bool:
    try:
        return path.exists() and path.read_text(encoding="utf-8") != text_of(path.name)
    except (OSError, UnicodeDecodeError):
        return True
