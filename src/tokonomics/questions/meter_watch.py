"""What to meter, and how: the inputs of ``tokonomics meter``, checked."""

from typing import TYPE_CHECKING

from tokonomics.errors import BadInput, option, shorten
from tokonomics.questions.metered import AgainstPlan, InLedger, planned_of
from tokonomics.questions.request import Number, Placement, Request, Switch, Text, Texts, Whole, declared

if TYPE_CHECKING:
    from datetime import date

    from tokonomics.measure.meter.readings import GpuSource
    from tokonomics.measure.meter.session import MeterSettings

_PROMETHEUS = "http://prometheus:9090"


class Servers(Request):
    """Which servers, at which price, how often and how long."""

    urls: Texts | None = declared(
        None,
        "Servers, or their metrics pages.",
        place=Placement.FIRST,
        metavar="URL…",
        example=["http://localhost:8000"],
    )
    usd_per_hour: Number | None = declared(None, "Price of one GPU-hour.", example=2.49)
    gpu: Text | None = declared(None, "Or the GPU: its cheapest offer is the price.", example="H100")
    offer: Text | None = declared(
        None, "Or the machine that is rented: aws:p5.48xlarge; see `tokonomics offers`.", example="aws:p5.48xlarge"
    )
    price: Texts | None = declared(
        None,
        "GPU-hour of some servers, by label or address: gpu=L4:0.80. Repeat it for more.",
        example=["gpu=L4:0.80"],
    )
    gpus: Whole | None = declared(
        None, "GPUs behind each address.", low=1, high=10**6, without="1, or those of --offer", example=2
    )
    provider: Text | None = declared(None, "With --gpu: the offers of this provider only.", example="aws")
    every: Text = declared("15s", "How often: 5s, 15s, 1m.")
    for_: Text | None = declared(None, "How long: 10m, 8h.", key="for", without="until Ctrl-C", example="8h")
    once: Switch = declared(False, "Read twice, one interval apart, and print.")


class MeterWatchRequest(Servers, InLedger, AgainstPlan):
    """
    A server that wants a key: put the header's value into TOKONOMICS_METER_AUTHORIZATION.

    Examples:
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49
      tokonomics meter http://gpu1:8000 http://gpu2:8000 --gpu H100 --gpus 2 --label team=search
      tokonomics meter http://localhost:8000 --usd-per-hour 2.49 --planned-usd-per-mtok 0.35 --planned-batch 48
      tokonomics meter http://gpu1:8000 --offer aws:p5.48xlarge
      tokonomics meter --prometheus http://prometheus:9090 --gpu H100 --price gpu=L4:0.80
    """

    from_now: Switch = declared(False, "Leave out the time since the last meter on this ledger.")
    label: Texts | None = declared(None, "For reports: team=search. Repeat it for more.", example=["team=search"])
    prometheus: Text | None = declared(
        None, "Read engines through the Prometheus that scrapes them.", example=_PROMETHEUS
    )
    query: Text | None = declared(None, 'Of its series: namespace="prod",job=~"vllm.*".', example='namespace="prod"')
    keep_label: Texts | None = declared(None, "Its label to group reports by: team. Repeat.", example=["team"])
    since: Text | None = declared(None, "Read its past first, from: 1d, 2026-11-08.", example="1d")
    listen: Text | None = declared(
        None, "Serve our own /metrics: 9464, 0.0.0.0:9464; see `meter files`.", example="9464"
    )
    gpu_metrics: Text | None = declared(
        None, "GPUs too: nvml (this machine's), a DCGM exporter's address, or prometheus.", example="nvml"
    )
    usd_per_kwh: Number | None = declared(None, "Price of electricity, for what the GPUs draw.", example=0.12)


def asked(request: MeterWatchRequest) -> "MeterSettings":
    """All that a run of the meter needs, checked before a server is asked for anything."""
    from tokonomics.measure.meter.bill import duration, instant
    from tokonomics.measure.meter.exposition import listen_address
    from tokonomics.measure.meter.prices import Prices, parse_prices
    from tokonomics.measure.meter.readings import SystemClock
    from tokonomics.measure.meter.session import MeterSettings
    from tokonomics.money.cost import require_positive

    every_s = _in_range("every", duration(request.every, "every"), 0.1, 3600)
    for_s = _in_range("for_", duration(request.for_, "for_"), every_s, 10**9) if request.for_ is not None else None
    for name in ("query", "keep_label", "since"):
        if getattr(request, name) and request.prometheus is None:
            raise BadInput("is for a Prometheus", field=name, fix=f"Add {option('prometheus', _PROMETHEUS)}.")
    server_usd, price_from, price_date, gpus = _price(request)
    others = parse_prices(request.price or (), gpus)
    kwh = request.usd_per_kwh
    return MeterSettings(
        urls=request.urls or (),
        usd_per_hour=Prices(server_usd, others),
        price_from=price_from,
        every_s=every_s,
        beats=1 if request.once else round(for_s / every_s) if for_s is not None else None,
        labels=_labels(request.label or ()),
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
    )


def _price(request: MeterWatchRequest) -> "tuple[float, str, date | None, int]":
    """Of all GPUs behind an address, an hour, where it comes from and of which day; and how many GPUs they are."""
    from tokonomics.catalog.gpus import find_gpu
    from tokonomics.catalog.offers import cheapest_offer, load_offers, machines_usd_per_hour, select_offers
    from tokonomics.clock import today
    from tokonomics.measure.meter.prices import find_offer
    from tokonomics.money.cost import require_positive

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
        provider = request.provider
        sold = load_offers() if provider is None else select_offers(load_offers(), provider=provider)
        rented = cheapest_offer(find_gpu(request.gpu).name, gpus, offers=sold)
    return machines_usd_per_hour(rented, gpus), rented.quoted(today()), rented.date, gpus


def _gpu_source(text: str | None, prometheus: str | None) -> "GpuSource | None":
    from tokonomics.measure.meter.gpu import DcgmSource, NvmlSource
    from tokonomics.measure.meter.prometheus_source import PrometheusGpuSource
    from tokonomics.measure.meter.scrape import address_of

    if text is None:
        return None
    if text == "prometheus":
        if prometheus is None:
            fix = f"Add {option('prometheus', _PROMETHEUS)}."
            raise BadInput("needs its address", field="gpu_metrics", fix=fix)
        return PrometheusGpuSource(prometheus)
    return NvmlSource() if text == "nvml" else DcgmSource(address_of(text))


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    made = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier() or not value.strip():
            raise BadInput(f"'{shorten(text)}' is not a label", field="label", fix="Such as team=search.")
        made[name.strip()] = value.strip()
    return made


def _in_range(field: str, seconds: float | None, low: float, high: float) -> float:
    if seconds is None or not low <= seconds <= high:
        raise BadInput(f"must be from {low:g} s to {high:,.6g} s", field=field)
    return seconds
