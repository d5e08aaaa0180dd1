"""``tokonomics meter``: what live servers' tokens cost, and ``meter report``: what they have cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give
from tokonomics.cli.meter_files import files
from tokonomics.cli.output import Json, console, show, show_json
from tokonomics.errors import BadInput, shorten

if TYPE_CHECKING:
    from datetime import date

    from tokonomics.measure.meter.readings import GpuSource
    from tokonomics.measure.meter.session import Show
    from tokonomics.measure.meter.state import MeterState, Planned

LedgerFile = Annotated[
    Path | None,
    typer.Option("--ledger", help="SQLite file of spans.", show_default="~/.local/share/tokonomics/meter.db"),
]
PlanFile = Annotated[
    Path | None, typer.Option("--plan", help="To compare with: the file of `tokonomics plan … --json`.")
]
PlannedUsd = Annotated[float | None, typer.Option(help="To compare with, instead of a file.")]
PlannedBatch = Annotated[float | None, typer.Option(help="Requests running at once that were planned, with it.")]


class _UrlsOrVerb(TyperGroup):
    """``meter http://…`` is ``meter watch http://…``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, "-h", "--help"}:
            args = ["watch", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_UrlsOrVerb,
    no_args_is_help=True,
    help="""What the tokens of live servers cost, from the counters that they expose; idle time included.

    Reads vLLM, SGLang, TensorRT-LLM, llama.cpp and TGI. Every interval goes to a ledger, which survives crashes of the
    meter and restarts of the servers without losing or inventing a token. How it counts: docs/meter.md.

    \b
    Examples:
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49
      tokonomics meter http://gpu1:8000 http://gpu2:8000 --gpu H100 --gpus 2 --plan plan.json
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49 --once --every 10s --json
      tokonomics meter --prometheus http://prometheus:9090 --query 'namespace="prod"' --gpu H100 --listen 9464
      tokonomics meter report --since 7d --by model,day --chart week.png
    """,
)


@app.command("watch")
def watch(
    urls: Annotated[list[str] | None, typer.Argument(help="Servers, or their metrics pages.", metavar="URL…")] = None,
    usd_per_hour: Annotated[float | None, typer.Option(help="Price of one GPU-hour.")] = None,
    gpu: Annotated[str | None, typer.Option(help="Or the GPU: its cheapest offer is the price.")] = None,
    offer: Annotated[
        str | None, typer.Option(help="Or the machine that is rented: aws:p5.48xlarge; see `tokonomics offers`.")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(help="GPU-hour of some servers, by label or address: gpu=L4:0.80. Repeat it for more."),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(min=1, max=10**6, help="GPUs behind each address.", show_default="1, or those of --offer"),
    ] = None,
    provider: Annotated[str | None, typer.Option(help="With --gpu: the offers of this provider only.")] = None,
    every: Annotated[str, typer.Option(help="How often: 5s, 15s, 1m.")] = "15s",
    for_: Annotated[str | None, typer.Option("--for", help="How long: 10m, 8h.", show_default="until Ctrl-C")] = None,
    once: Annotated[bool, typer.Option("--once", help="Read twice, one interval apart, and print.")] = False,
    ledger: LedgerFile = None,
    from_now: Annotated[
        bool, typer.Option("--from-now", help="Leave out the time since the last meter on this ledger.")
    ] = False,
    label: Annotated[list[str] | None, typer.Option(help="For reports: team=search. Repeat it for more.")] = None,
    plan: PlanFile = None,
    planned_usd_per_mtok: PlannedUsd = None,
    planned_batch: PlannedBatch = None,
    prometheus: Annotated[
        str | None, typer.Option(help="Read engines through the Prometheus that scrapes them.")
    ] = None,
    query: Annotated[str | None, typer.Option(help='Of its series: namespace="prod",job=~"vllm.*".')] = None,
    keep_label: Annotated[list[str] | None, typer.Option(help="Its label to group reports by: team. Repeat.")] = None,
    since: Annotated[str | None, typer.Option(help="Read its past first, from: 1d, 2026-11-08.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="Serve our own /metrics: 9464, 0.0.0.0:9464; see `meter files`.")
    ] = None,
    gpu_metrics: Annotated[
        str | None, typer.Option(help="GPUs too: nvml (this machine's), a DCGM exporter's address, or prometheus.")
    ] = None,
    usd_per_kwh: Annotated[float | None, typer.Option(help="Price of electricity, for what the GPUs draw.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object an interval, or the last with --once.")] = False,
) -> None:
    """What the tokens of these servers cost now, this hour and today, until Ctrl-C.

    A server that wants a key: put the header's value into TOKONOMICS_METER_AUTHORIZATION.

    \b
    Examples:
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49
      tokonomics meter http://gpu1:8000 http://gpu2:8000 --gpu H100 --gpus 2 --label team=search
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49 --planned-usd-per-mtok 0.35 --planned-batch 48
      tokonomics meter http://gpu1:8000 --offer aws:p5.48xlarge
      tokonomics meter --prometheus http://prometheus:9090 --gpu H100 --price gpu=L4:0.80
    """
    from tokonomics.measure.meter.bill import duration, instant
    from tokonomics.measure.meter.clocks import SystemClock
    from tokonomics.measure.meter.exposition import listen_address
    from tokonomics.measure.meter.ledger import Ledger, default_ledger
    from tokonomics.measure.meter.prices import Prices, parse_prices
    from tokonomics.measure.meter.session import Asked, meter_servers
    from tokonomics.money.cost import require_positive

    every_s = _in_range("--every", duration(every, "every"), 0.1, 3600)
    for_s = _in_range("--for", duration(for_, "for_"), every_s, 10**9) if for_ is not None else None
    for flag, value in (("--query", query), ("--keep-label", keep_label), ("--since", since)):
        if value and prometheus is None:
            raise BadInput("is for a Prometheus", where=flag, fix="Add --prometheus http://prometheus:9090.")
    server_usd, price_from, price_date, gpus = _price(usd_per_hour, gpu, offer, gpus, provider)
    others = parse_prices(price or (), gpus)
    path = ledger or default_ledger()
    asked = Asked(
        urls=tuple(urls or ()),
        usd_per_hour=Prices(server_usd, others),
        price_from=price_from,
        every_s=every_s,
        beats=1 if once else round(for_s / every_s) if for_s is not None else None,
        labels=_labels(label or []),
        planned=_planned(plan, planned_usd_per_mtok, planned_batch),
        from_now=from_now,
        prometheus=prometheus,
        match=query,
        keep_labels=(*(keep_label or ()), *(each.label for each in others if each.label)),
        since=instant(since, SystemClock().wall(), "since") if since is not None else None,
        gpus=_gpu_source(gpu_metrics, prometheus),
        listen=listen_address(listen) if listen is not None else None,
        gpus_per_server=gpus,
        price_date=price_date,
        usd_per_kwh=require_positive("usd_per_kwh", usd_per_kwh) if usd_per_kwh is not None else None,
    )
    with Ledger(path) as book, _shown(json, once) as show_state:
        last = meter_servers(asked, book, show_state, say=lambda text: typer.echo(text, err=True))
    if last is None:
        return
    if once and json:
        show_json(last)
    elif not json:
        from tokonomics.report.meter_view import end_view, meter_view

        show(meter_view(last)) if once else show(end_view(last))
        more = f" --ledger {path}" if ledger else ""
        typer.echo(f"report:  tokonomics meter report --since 1d --by model,hour{more}", err=True)


@app.command("report")
def report(
    since: Annotated[str, typer.Option(help="From: 7d, 90m ago, or 2026-11-08 (UTC).")] = "1d",
    until: Annotated[str | None, typer.Option(help="To, likewise.", show_default="now")] = None,
    by: Annotated[str, typer.Option(help="model, target, engine, day, hour or any label, with commas.")] = "model,day",
    ledger: LedgerFile = None,
    plan: PlanFile = None,
    planned_usd_per_mtok: PlannedUsd = None,
    planned_batch: PlannedBatch = None,
    csv: Annotated[Path | None, typer.Option(help="Save the lines as a table.")] = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    json: Json = False,
) -> None:
    """What tokens have cost, by model, server, day, hour or label, from the meter's ledger.

    \b
    Examples:
      tokonomics meter report --since 7d --by model,day
      tokonomics meter report --since 2026-11-01 --until 2026-11-08 --by team --csv week.csv
      tokonomics meter report --since 1d --by hour --chart day.png
    """
    import time

    from tokonomics.measure.meter.bill import bill, bill_csv, instant
    from tokonomics.measure.meter.ledger import Ledger, default_ledger
    from tokonomics.report.meter_charts import bill_over_time
    from tokonomics.report.meter_view import bill_view

    check_files(chart, html)
    now = time.time()
    first = instant(since, now, "since")
    last = instant(until, now, "until") if until is not None else now
    if first >= last:
        raise BadInput("nothing lies between --since and --until", where="--since")
    keys = tuple(key.strip() for key in by.split(",") if key.strip())
    planned = _planned(plan, planned_usd_per_mtok, planned_batch)
    with Ledger(ledger or default_ledger(), read_only=True) as book:
        made = bill(book.spans(first, last), first, last, keys, planned)
        over = "hour" if last - first <= 2 * 86_400 else "day"
        in_time = bill(book.spans(first, last), first, last, (over,))
    if csv:
        bill_csv(made, csv)
        typer.echo(f"table saved to {csv}", err=True)
    charts = {"Dollars over time": lambda: bill_over_time(in_time, over)}
    answer = Answer(made, lambda: bill_view(made), "What the metered tokens cost", charts)
    give(answer, json=json, chart=chart, html=html)


app.command("files")(files)


def _price(
    usd_per_hour: float | None, gpu: str | None, offer: str | None, gpus: int | None, provider: str | None
) -> "tuple[float, str, date | None, int]":
    """Of all GPUs behind an address, an hour, where it comes from and of which day; and how many GPUs they are."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.offers import cheapest_offer, load_offers, machines_usd_per_hour, select_offers
    from tokonomics.clock import today
    from tokonomics.measure.meter.prices import find_offer
    from tokonomics.money.cost import require_positive

    given = [flag for flag, value in (("--usd-per-hour", usd_per_hour), ("--gpu", gpu), ("--offer", offer)) if value]
    if len(given) > 1:
        raise BadInput(f"the price is given twice: {' and '.join(given)}", where=given[1], fix="Leave one out.")
    if usd_per_hour is not None:
        each = require_positive("usd_per_hour", usd_per_hour)
        return each * (gpus or 1), "as given", None, gpus or 1
    if offer is not None:
        rented = find_offer(offer)
        gpus = gpus or rented.gpus
    elif gpu is None:
        fix = "Give --usd-per-hour 2.49, --gpu H100 or --offer aws:p5.48xlarge."
        raise BadInput("no price is given", where="--usd-per-hour", fix=fix)
    else:
        gpus = gpus or 1
        sold = load_offers() if provider is None else select_offers(load_offers(), provider=provider)
        rented = cheapest_offer(find_gpu(gpu).name, gpus, offers=sold)
    return machines_usd_per_hour(rented, gpus), rented.quoted(today()), rented.date, gpus


def _gpu_source(text: str | None, prometheus: str | None) -> "GpuSource | None":
    from tokonomics.measure.meter.gpu import DcgmSource, NvmlSource
    from tokonomics.measure.meter.prometheus_gpus import PrometheusGpuSource
    from tokonomics.measure.meter.scrape import address_of

    if text is None:
        return None
    if text == "prometheus":
        if prometheus is None:
            raise BadInput("needs its address", where="--gpu-metrics", fix="Add --prometheus http://prometheus:9090.")
        return PrometheusGpuSource(prometheus)
    return NvmlSource() if text == "nvml" else DcgmSource(address_of(text))


def _planned(path: Path | None, usd_per_mtok: float | None, batch: float | None) -> "Planned | None":
    from tokonomics.measure.meter.against_plan import read_plan
    from tokonomics.measure.meter.state import Planned
    from tokonomics.money.cost import require_positive

    if path is not None:
        if usd_per_mtok is not None or batch is not None:
            raise BadInput("a plan is given twice", where="--plan", fix="Give the file, or the figures.")
        return read_plan(path)
    if usd_per_mtok is None:
        if batch is not None:
            raise BadInput("needs the planned price too", where="--planned-batch", fix="Add --planned-usd-per-mtok.")
        return None
    return Planned(
        usd_per_mtok=require_positive("planned_usd_per_mtok", usd_per_mtok),
        batch=require_positive("planned_batch", batch) if batch is not None else None,
    )


def _labels(texts: list[str]) -> dict[str, str]:
    made = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier() or not value.strip():
            raise BadInput(f"'{shorten(text)}' is not a label", where="--label", fix="Such as team=search.")
        made[name.strip()] = value.strip()
    return made


def _in_range(flag: str, value: float | None, low: float, high: float) -> float:
    if value is None or not low <= value <= high:
        raise BadInput(f"must be from {low:g} s to {high:,.6g} s", where=flag)
    return value


@contextmanager
def _shown(json: bool, once: bool) -> "Iterator[Show]":
    """How each interval is shown: redrawn on a terminal, a line each in a pipe, an object each as JSON."""
    if once:
        yield lambda state: None
        return
    if json:
        yield _print_json
        return
    from tokonomics.report.meter_view import meter_line, meter_view

    screen = console()
    if not screen.is_terminal:
        yield lambda state: typer.echo(meter_line(state))
        return
    from rich.live import Live

    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield lambda state: live.update(meter_view(state), refresh=True)


def _print_json(state: "MeterState") -> None:
    typer.echo(state.model_dump_json())
