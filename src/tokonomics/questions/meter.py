"""Answer what the tokens of live servers cost: the settings of ``meter``, and ``meter report``."""

import math
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any

from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import cheapest_offer, machines_usd_per_hour, market_offers
from tokonomics.catalog.places import WORLD, grid_named
from tokonomics.errors import BadInput, did_you_mean, option, shorten
from tokonomics.measure.meter.bill import (
    LEDGER_KEYS,
    MeteredEnergy,
    MeteredGpu,
    StatementSale,
    bill,
    bill_csv,
    bill_sale,
    duration,
    instant,
    metered_energy,
    token_costs,
)
from tokonomics.measure.meter.export import Exported, ExportFormat, cached_needs, estimated, exported
from tokonomics.measure.meter.exposition import listen_address
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.ledger_file import default_ledger
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.price_factors import UnusualDay, read_plan, unusual_days
from tokonomics.measure.meter.prometheus_source import prometheus_gpus
from tokonomics.measure.meter.readings import GpuSource, SystemClock, dcgm_gpus, nvml_gpus
from tokonomics.measure.meter.scrape import PrometheusApi, address_of
from tokonomics.measure.meter.spending import BudgetBook, Prices, find_offer, parse_budgets, parse_labels, parse_prices
from tokonomics.measure.meter.state import BudgetState, Planned, Statement
from tokonomics.measure.meter.tags import MODEL, BillSplit, LogSplit, TaggedLog, read_tags
from tokonomics.measure.meter.watch import CLOCK_SLACK_S
from tokonomics.money.attribution import sell_terms
from tokonomics.money.breakeven import Upkeep, upkeep
from tokonomics.money.cost import require_positive
from tokonomics.questions.catalogue import extras_of
from tokonomics.questions.inputs import LogInputs
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.run import (
    PROMETHEUS,
    AgainstPlan,
    BehindAddress,
    InLedger,
    MeterExportRequest,
    MeterReportRequest,
    MeterWatchRequest,
    TwinReportRequest,
)
from tokonomics.questions.result import Result, beside
from tokonomics.traffic.attribution import MOST_LABELS
from tokonomics.types import today
from tokonomics.units import DAY_S, HOURS_PER_MONTH, SECONDS_PER_HOUR, percent, plural, seconds, usd


class MeterReportResult(Result, Statement):
    """The cost of metered tokens."""

    ROWS = "lines"

    unusual: tuple[UnusualDay, ...] = ()  # days with a price outside its band, and why
    sale: StatementSale | None = None  # what was earned, if a price or a margin is given
    budgets: tuple[BudgetState, ...] = ()
    split: LogSplit | None = None  # how a request log split the dollars, if one is given
    energy: MeteredEnergy | None = None
    """What the servers drew and emitted; None if the GPUs were neither read nor named."""
    upkeep: Upkeep | None = None  # the same bill with people and overheads of this period, if any are given
    in_time: Any = beside()  # the same by ``over`` only, for the chart
    over: Any = beside()
    extent: Any = beside()  # when the ledger begins and ends, in Unix seconds

    def headline(self) -> str:
        price = self.total.usd_per_mtok
        return f"{usd(self.total.usd)} in all" + ("" if price is None else f", {usd(price)} per Mtok")


def ledger_of(request: InLedger) -> Path:
    """Return the named ledger, or this user's own."""
    return Path(request.ledger) if request.ledger else default_ledger()


def planned_of(request: AgainstPlan) -> Planned | None:
    """Return the plan, which must be given in one way only; None if there is none."""
    usd_per_mtok, batch = request.planned_usd_per_mtok, request.planned_batch
    if request.plan is not None:
        if usd_per_mtok is not None or batch is not None:
            raise BadInput("a plan is given twice", field="plan", fix="Give the file, or the figures.")
        return read_plan(Path(request.plan))
    if usd_per_mtok is None:
        if batch is not None:
            fix = f"Add {option('planned_usd_per_mtok')}."
            raise BadInput("needs the planned price too", field="planned_batch", fix=fix)
        return None
    return Planned(
        usd_per_mtok=require_positive("planned_usd_per_mtok", usd_per_mtok),
        batch=require_positive("planned_batch", batch) if batch is not None else None,
    )


def asked(request: MeterWatchRequest) -> MeterSettings:
    """Return all that a run of the meter needs, checked before any server is contacted."""
    every_s = _in_range("every", duration(request.every, "every"), 0.1, 3600)
    for_s = _in_range("for_", duration(request.for_, "for_"), every_s, 10**9) if request.for_ is not None else None
    for name in ("query", "keep_label", "since"):
        if getattr(request, name) and request.prometheus is None:
            raise BadInput("is for a Prometheus", field=name, fix=f"Add {option('prometheus', PROMETHEUS)}.")
    server_usd, price_from, price_date, gpus = _price(request)
    others = parse_prices(request.price or (), gpus)
    kwh = request.usd_per_kwh
    return MeterSettings(
        urls=request.urls or (),
        usd_per_hour=Prices(server_usd, others),
        price_from=price_from,
        every_s=every_s,
        beats=1 if request.once else round(for_s / every_s) if for_s is not None else None,
        labels=parse_labels(request.label or (), request.urls or ()),
        planned=planned_of(request),
        from_now=request.from_now,
        prometheus=request.prometheus,
        match=request.query,
        keep_labels=(*(request.keep_label or ()), *(priced.label for priced in others if priced.label)),
        since=instant(request.since, SystemClock().wall(), "since") if request.since is not None else None,
        gpus=_gpu_source(request.gpu_metrics, request.prometheus),
        listen=listen_address(request.listen) if request.listen is not None else None,
        gpus_per_server=gpus,
        price_date=price_date,
        usd_per_kwh=require_positive("usd_per_kwh", kwh) if kwh is not None else None,
        budgets=parse_budgets(request.budget or ()),
    )


def _price(request: MeterWatchRequest) -> tuple[float, str, date | None, int]:
    """Return the price per hour of all GPUs behind an address, its source and day, and the number of GPUs."""
    given = [name for name in ("usd_per_hour", "gpu", "offer") if getattr(request, name)]
    if len(given) > 1:
        both = " and ".join(option(name) for name in given)
        raise BadInput(f"the price is given twice: {both}", field=given[1], fix="Leave one out.")
    gpus = request.gpus or 1
    if request.usd_per_hour is not None:
        return require_positive("usd_per_hour", request.usd_per_hour) * gpus, "as given", None, gpus
    if request.offer is not None:
        rented = find_offer(request.offer)
        gpus = request.gpus or rented.gpus
    elif request.gpu is None:
        ways = f"{option('usd_per_hour', 2.49)}, {option('gpu', 'H100')} or {option('offer', 'aws:p5.48xlarge')}"
        raise BadInput("no price is given", field="usd_per_hour", fix=f"Give {ways}.")
    else:
        sold = market_offers(request.provider)
        rented = cheapest_offer(find_gpu(request.gpu).name, gpus, offers=sold)
    return machines_usd_per_hour(rented, gpus), rented.quoted(today()), rented.date, gpus


def _gpu_source(text: str | None, prometheus: str | None) -> GpuSource | None:
    if text is None:
        return None
    if text == "prometheus":
        if prometheus is None:
            fix = f"Add {option('prometheus', PROMETHEUS)}."
            raise BadInput("needs its address", field="gpu_metrics", fix=fix)
        return partial(prometheus_gpus, PrometheusApi(prometheus))
    return nvml_gpus if text == "nvml" else partial(dcgm_gpus, address_of(text))


def _in_range(field: str, seconds: float, low: float, high: float) -> float:
    if not low <= seconds <= high:
        raise BadInput(f"must be from {low:g} s to {high:,.0f} s", field=field)
    return seconds


TEAM = "team"  # exports group by this label by default; servers may lack it
_BY_HOUR_S = 2 * DAY_S  # the chart has hourly bars for a period up to this long, daily bars for a longer one


def meter_report(request: MeterReportRequest, listener: Listener = SILENT) -> MeterReportResult:
    """Report a period from the meter's ledger, by model, server, day, hour or label."""
    _asked_for(request, time.time())  # refuse impossible times before looking for the ledger
    keys = _keys(request.by)
    planned, on = planned_of(request), gpu_behind(request)
    terms, budgets = sell_terms(request.sell, request.margin), parse_budgets(request.budget or ())
    grid, extras = grid_named(request.grid or WORLD), extras_of(request)
    with Ledger(ledger_of(request), read_only=True) as book, book.snapshot():
        if request.since == "1d" and request.until is None:
            listener.note(f"the last day is shown; for another time: {option('since', '7d')}")
        first, last = stretch(request, book, listener)
        log = _log_of(request, keys, book, first, last, listener)
        split = None if log is None else _split(book, first, last, keys, log, on, planned)
        if log and (tagged := next((budget for budget in budgets if budget.key in log.tags), None)):
            said = f"{tagged.name}: budgets go by the model and labels of servers, and {tagged.key} is a tag of the log"
            raise BadInput(said, field="budget")
        made = split.statement(keys) if split else bill(book.spans(first, last), first, last, keys, planned)
        over = "hour" if last - first <= _BY_HOUR_S else "day"
        in_time = bill(book.spans(first, last), first, last, (over,))
        # A partial day covers other hours than a full one, and so has another price.
        from_s, to_s = math.ceil(in_time.since / DAY_S) * DAY_S, math.floor(in_time.until / DAY_S) * DAY_S
        days = (
            bill(book.spans(from_s, to_s), from_s, to_s, ("model", "day")) if over == "day" and from_s < to_s else None
        )
        if split and (terms or on):
            by_model = split.statement((*keys, "model", "engine"))
        else:
            by_model = bill(book.spans(first, last), first, last, (*keys, "model", "engine")) if terms or on else made
        extent, drawn = book.extent(), book.energy(first, last)
        # Days after the last reading are unknown, not free.
        states = BudgetBook(budgets, book).states(min(last, extent[1]) if extent else last)
    if request.csv:
        path = Path(request.csv)
        bill_csv(made, path)
        listener.note(f"table saved to {path}")
    found: dict[str, object] = {"unusual": unusual_days(days) if days else (), "split": split and split.summary()}
    if terms:
        found |= {"sale": bill_sale(made, by_model, terms, on)}
    months = (made.until - made.since) / (HOURS_PER_MONTH * SECONDS_PER_HOUR)
    found |= {
        "energy": metered_energy(by_model, drawn, on, grid),
        "upkeep": upkeep(extras, made.total.usd, made.total.billed_tokens, months),
    }
    if budgets:
        found |= {"budgets": states}
    if extent and extent[1] < last - DAY_S:
        note = f"no reading since {datetime.fromtimestamp(extent[1], UTC):%Y-%m-%d %H:%M} UTC"
        listener.note(f"{note}: budgets are as of then" if budgets else note)
    return MeterReportResult(**dict(made), **found, in_time=in_time, over=over, extent=extent)


def _keys(by: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key.strip() for key in by.split(",") if key.strip()))


def _log_of(
    request: LogInputs, keys: Sequence[str], book: Ledger, first: float, last: float, listener: Listener
) -> TaggedLog | None:
    """Return what the request log has within the stretch, by those keys that it knows as tags; None without a log."""
    if request.trace is None:
        if request.columns is not None:
            fix = f"Add {option('trace', 'spend.jsonl')}."
            raise BadInput("is for a request log", field="columns", fix=fix)
        return None
    from tokonomics.traffic.readers import open_trace

    if not isinstance(request.trace, str):
        raise BadInput("must be a file", field="trace")
    tags = [key for key in keys if key not in LEDGER_KEYS]
    if not 0 < len(tags) < MOST_LABELS:
        said = "names more tags than can be split by" if tags else "names no tag of the log to split the dollars by"
        raise BadInput(said, field="by", fix=f"Such as {option('by', 'team,feature')}, {MOST_LABELS - 1} at most.")
    file = open_trace(request.trace, columns=request.columns, by=(*tags, MODEL))
    listener.doing(f"reading {shorten(file.path.name)}")
    extent = book.extent() or (first, last)
    log = read_tags(file, tags, max(first, extent[0]), min(last, extent[1]))
    for said in file.problems.notes:
        listener.note(f"{shorten(file.path.name)}: {said}")
    if file.problems.count:
        bad = f"{plural(file.problems.count, 'row')} cannot be used: {file.problems.first[0]}"
        listener.note(f"{shorten(file.path.name)}: {bad}")
    return log


def _split(
    book: Ledger,
    first: float,
    last: float,
    keys: Sequence[str],
    log: TaggedLog,
    on: MeteredGpu | None,
    planned: Planned | None = None,
) -> BillSplit:
    """Return the bill of a stretch, split among the senders of a log."""
    labels = [key for key in keys if key not in (*log.tags, "day", "hour", "model", "engine")]
    billed = bill(book.spans(first, last), first, last, ("hour", *labels, "model", "engine"), planned)
    return BillSplit(billed, log, token_costs(billed, on))


def is_metered(request: MeterReportRequest, since: float, until: float) -> bool:
    """Return whether the ledger has anything between two instants."""
    with Ledger(ledger_of(request), read_only=True) as book:
        return any(span.end > since for span in book.spans(since, until) if span.start < until)


def gpu_behind(request: BehindAddress) -> MeteredGpu | None:
    """Return the GPUs behind each address; None if they are not named."""
    if request.gpu is None:
        if request.gpus is not None:
            raise BadInput("needs their kind too", field="gpus", fix=f"Add {option('gpu', 'H100')}.")
        return None
    return MeteredGpu(gpu=find_gpu(request.gpu).key, gpus=request.gpus or 1)


def meter_export(request: MeterExportRequest, listener: Listener = SILENT) -> Exported:
    """Export charges and prices of a period of the ledger, or of a plan."""
    if request.plan is not None:
        return estimated(Path(request.plan), today())
    _asked_for(request, time.time())
    on, labels = gpu_behind(request), _keys(request.by)
    with Ledger(ledger_of(request), read_only=True) as book, book.snapshot():
        if request.since == "30d" and request.until is None:
            listener.note(f"the last 30 days are exported; for another time: {option('since', '7d')}")
        first, last = stretch(request, book, listener)
        first = first // DAY_S * DAY_S  # charges cover whole days
        by = ("day", "model", *labels)
        if (log := _log_of(request, labels, book, first, last, listener)) is not None:
            split = _split(book, first, last, by, log, on)
            charged, lacking = split.statement(by), split.summary().not_in_log_share
            if lacking:
                listener.note(f"{percent(lacking)} of the metered tokens are not in the log")
        else:
            charged = bill(book.spans(first, last), first, last, by, may_lack=(TEAM,))
        by_model = bill(book.spans(first, last), first, last, ("model", "engine"))
    if not charged.lines:
        raise BadInput("the ledger has nothing in this stretch", field="since", fix="Take an earlier start.")
    prices = token_costs(by_model, on)
    for price in prices:
        if price.why_alike:
            listener.note(f"{price.model}: one price for every token, {' '.join(price.why_alike.split())}")
        if request.format == ExportFormat.litellm and (needs := cached_needs(price)):
            listener.note(f"{price.model}: {needs}")
    return exported(charged, labels, prices, until=max(charged.until, min(last, time.time())))


def export_format(text: str) -> ExportFormat:
    if text not in set(ExportFormat):
        fix = f"Valid: {', '.join(ExportFormat)}. {did_you_mean(text, ExportFormat, 1) or ''}".rstrip()
        raise BadInput(f"there is no format '{shorten(text)}'", where="FORMAT", fix=fix)
    return ExportFormat(text)


def stretch(
    request: MeterReportRequest | MeterExportRequest | TwinReportRequest, book: Ledger, listener: Listener = SILENT
) -> tuple[float, float]:
    """Return the first and the last instant of the period; without an end, the end of the ledger."""
    # After the ledger's snapshot, so that the row a meter is writing ends before, with all that it counted.
    now, extent = time.time(), book.extent()
    first, last = _asked_for(request, now)
    if request.until is None and extent and extent[1] > last:
        last = extent[1]
        if last > now + CLOCK_SLACK_S:
            ahead = f"the ledger reaches {seconds(last - now)} beyond now"
            listener.note(f"{ahead}: the clock was set back since, or is wrong here; all of it is shown")
    return first, last


def _asked_for(request: MeterReportRequest | MeterExportRequest | TwinReportRequest, now: float) -> tuple[float, float]:
    """Return the period as written; without an end, until now."""
    first = instant(request.since, now, "since")
    last = instant(request.until, now, "until") if request.until is not None else now
    if first >= last:
        raise BadInput(f"nothing lies between {option('since')} and {option('until')}", field="since")
    return first, last
