"""Find what a question is asked of: a model's servers as a ledger, a twin or a Prometheus knows them, and their twin.

A change is proposed only if it saves more than the twin's own error. That is one number for each proposal, as a share
of the bill: the error of the server's time per token, as the number of replicas is proportional to it; for what depends
on when traffic comes (autoscaling, work that waits, commitments, spot) with the error of the traffic's forecast, both
being independent; for an API, which is paid by the token, that of the forecast alone. On another GPU a twin has
measured nothing, so the general error of predictions there is added. Without a twin nothing is left out: a proposal
shows the 80 % interval of predictions of its class.
"""

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import NonNegativeInt, PositiveFloat

from tokonomics.addresses import split_address
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offer_choice import cheapest_offer, machines_usd_per_hour
from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput, TokonomicsError, UnknownName, option, shorten
from tokonomics.levers.lever_list import API
from tokonomics.levers.ranking import Pulled, Ranking
from tokonomics.measure.meter.bill import instant
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.ledger_file import default_ledger
from tokonomics.measure.meter.windows import OpenWindows, ServedWindow
from tokonomics.money.cost import require_positive
from tokonomics.operate.learn import TwinWindow
from tokonomics.operate.metered import MeteredServers, TwinErrors, factors_of, metered_servers, twin_errors
from tokonomics.operate.scoreboard import scoreboard
from tokonomics.operate.twin import newest_of, said_of
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import Interval, interval, prior_deviation
from tokonomics.questions.request import Listener
from tokonomics.questions.requests.traffic import Runs
from tokonomics.sizing.bill import Bill
from tokonomics.sizing.setup import Setup
from tokonomics.types import Noun, today
from tokonomics.units import DAY_S, HOURS_PER_MONTH, SECONDS_PER_HOUR

TWIN, LEDGER = "twin", "ledger"
REPLICAS, TOGETHER = "replicas", "together"  # names of proposals that no lever has
_LAST = "7d"
_MEDIAN = 0.6745
"""The median size of an error with a normal distribution, in its standard deviations: a twin's error is a median."""
_WHEN = ("waiting", "autoscale", "commit", "spot")
"""Knobs whose saving depends on when traffic comes."""


@dataclass(frozen=True)
class MeteredRun:
    """What is known of a model's servers."""

    source: str
    servers: MeteredServers
    factors: dict[str, float]
    errors: TwinErrors | None


class Proposal(Noun):
    """A change, and how sure its saving is."""

    name: str
    knob: str
    saved_usd_per_month: float
    """Beside what fewer replicas save; of fewer replicas, of all together and of an API, all of the metered bill."""
    saved_share: float  # of the metered bill
    error_share: float | None  # the twin's own, of the same bill; None: no twin
    likely: Interval | None  # times the mean time per token, of four of five predictions of its class; None for an API
    usd_per_month: PositiveFloat
    becomes: str
    replicas: NonNegativeInt
    ttft_p99_s: float | None
    tpot_p99_s: float | None
    effort: str
    risk: str


class MeteredToday(Noun):
    """What runs today as metered, and the changes that save more than the twin is off."""

    source: str
    servers: MeteredServers
    usd_per_month: PositiveFloat  # at the pace of the period
    modelled_usd_per_month: PositiveFloat  # the same set-up on as many servers
    modelled_share: float  # by how much the modelled bill is above the metered one
    modelled_tpot_s: float | None  # mean, on as many servers, to compare with the metered one
    modelled_ttft_s: float | None
    needed: NonNegativeInt  # replicas that today's set-up takes to meet the SLO
    factors: dict[str, float]  # learned by the twin, and used in every prediction; empty without one
    errors: TwinErrors | None
    proposals: tuple[Proposal, ...]
    smaller: tuple[Proposal, ...]  # not made: they save less than the twin's own error

    @property
    def error_share(self) -> float | None:
        return self.errors.speed if self.errors else None


def is_metered(request: Runs) -> bool:
    """Tell whether the traffic is what was metered; ``--from`` of a log is a time."""
    return request.start is not None and request.trace is None


def metered_run(request: Runs, deployment: Deployment, listener: Listener) -> MeteredRun:
    """Return what is known of the servers of the requested model."""
    source = str(request.start).strip()
    _refuse_others(request)
    if split_address(source):
        windows = _asked_of_prometheus(request, source, _since(request, time.time()), deployment, listener)
        return MeteredRun(source, _of_model(windows, deployment.model, source, listener), {}, None)
    if request.query is not None:
        fix = f"Give its address: {option('start', 'http://prometheus:9090')}."
        raise BadInput("is for a Prometheus", field="query", fix=fix)
    path = default_ledger() if source in (TWIN, LEDGER) else Path(source)
    with _opened(path) as book, book.snapshot():
        extent = book.extent()
        since = _since(request, min(time.time(), extent[1]) if extent else time.time())
        windows = _windows(book, since)
        servers = _of_model(windows, deployment.model, shorten(str(path), 200), listener)
        boards = scoreboard(one for one in said_of(book, since, time.time()) if one.model == servers.model)
        newest = [one for one in newest_of(book) if _is_of(one, servers)]
    errors = twin_errors(boards)
    if source == TWIN and errors is None:
        alone = f"take what was metered: {option('start', LEDGER)}"
        fix = f"Let `tokonomics twin … --model … --gpu …` meter for a while, or {alone}."
        raise BadInput(f"no twin has scored {shorten(servers.model)} since then", field="start", fix=fix)
    return MeteredRun(str(path), servers, factors_of(newest), errors)


def _windows(book: Ledger, since: float) -> list[ServedWindow]:
    """Return what a ledger has since then; of the time before meters kept windows, its spans say all but histograms."""
    windows = list(book.windows(since))
    first = min((window.start for window in windows), default=math.inf)
    earlier = (span for span in book.spans(since, first) if span.start >= since and span.end <= first)
    return [*OpenWindows(lambda *_: None).add(earlier), *windows]


def _is_of(said: TwinWindow, servers: MeteredServers) -> bool:
    return said.model == servers.model and said.target in servers.targets


def _since(request: Runs, until: float) -> float:
    """Return where to begin: at a whole hour, so that a week has all of its hours; if not asked, before ``until``."""
    now = time.time()
    first = instant(request.since, now, "since") if request.since else instant(_LAST, until, "since")
    if first >= now:
        raise BadInput("is not in the past", field="since", fix="Such as 7d, or 2026-11-08.")
    return first // SECONDS_PER_HOUR * SECONDS_PER_HOUR


_OTHERS = (
    "rate", "tokens_per_month", "input", "output", "arrivals", "columns", "end", "system_prompts", "sessions",
)  # fmt: skip


def _refuse_others(request: Runs) -> None:
    for name in _OTHERS:
        if getattr(request, name) is not None:
            raise BadInput(
                "is for other traffic than what was metered", field=name, fix=f"Or leave out {option('start')}."
            )


def _opened(path: Path) -> Ledger:
    try:
        return Ledger(path, read_only=True)
    except BadInput as error:
        raise BadInput(error.what, where=shorten(str(path), 200), field="start", fix=error.fix) from None


def _of_model(windows: Sequence[ServedWindow], model: ModelSpec, where: str, listener: Listener) -> MeteredServers:
    """Return the servers of a model; a single name that the catalogue does not have is taken for it, and said."""
    names = list(dict.fromkeys(window.model for window in windows if window.model))
    ours = [name for name in names if _key(name) == model.key]
    unknown = [name for name in names if _key(name) is None]
    if not ours and len(unknown) == 1:
        listener.note(f"{where} names its model {shorten(unknown[0])}, not in the catalogue: taken as {model.key}")
        ours = unknown
    if not ours:
        there = f"it has {', '.join(map(shorten, names))}" if names else "nothing was metered since then"
        fix = f"Look further back ({option('since', '30d')}), or name the model as the server does in your catalogue."
        raise BadInput(f"has no server of {model.key}: {there}", where=where, field="start", fix=fix)
    found = metered_servers(window for window in windows if window.model in ours)
    if found is None:
        fix = f"Look further back: {option('since', '30d')}."
        raise BadInput(f"no request of {model.key} was counted since then", where=where, field="start", fix=fix)
    if found.until < time.time() - DAY_S:
        listener.note(f"no reading since {datetime.fromtimestamp(found.until, UTC):%Y-%m-%d %H:%M} UTC: as of then")
    return found


def _key(name: str) -> str | None:
    with suppress(UnknownName, TokonomicsError):
        return find_model(name).key
    return None


def _asked_of_prometheus(
    request: Runs, url: str, since: float, deployment: Deployment, listener: Listener
) -> list[ServedWindow]:
    """Return the windows that a meter would have kept of a Prometheus' past."""
    from tokonomics.measure.meter.live_meter import Meter, MeterSettings
    from tokonomics.measure.meter.prometheus_source import PrometheusSource
    from tokonomics.measure.meter.readings import SystemClock

    gpus = deployment.gpus
    if request.usd_per_hour is not None:
        usd_per_hour = require_positive("usd_per_hour", request.usd_per_hour) * gpus
    else:
        rented = cheapest_offer(deployment.gpu.name, gpus)
        usd_per_hour = machines_usd_per_hour(rented, gpus)
        listener.note(f"a Prometheus knows no price: {rented.quoted(today())}; yours: {option('usd_per_hour', 2.5)}")

    async def read(book: Ledger) -> None:
        clock = SystemClock()
        source = PrometheusSource(url, request.query, clock=clock.wall, in_buckets=True)
        meter = Meter([source], book, clock, MeterSettings(usd_per_hour=usd_per_hour, prometheus=url))
        async for at, readings in source.history(since, clock.wall()):
            meter.backfill(readings, at)
            listener.doing(f"reading the past up to {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC")

    with TemporaryDirectory(prefix="tokonomics-") as folder, Ledger(Path(folder) / "past.db") as book:
        try:
            asyncio.run(read(book))
        except TokonomicsError as error:
            field = "start" if error.field == "prometheus" else error.field
            raise BadInput(error.what, where=error.where, field=field, fix=error.fix) from None
        return list(book.windows(since))


# --- the set-up of today ----------------------------------------------------------------------------------------------


def as_metered(offers: Iterable[Offer], deployment: Deployment, servers: MeteredServers) -> tuple[Offer, ...]:
    """Return the offers with the metered price for the GPU that runs today.

    Others' machines with it stay on the terms that today's are not bought on: reserved and spot.
    """
    gpu, price = deployment.gpu, servers.server_usd_per_hour / deployment.gpus
    sizes = sorted({size for size in (1, 2, 4, 8) if size <= gpu.gpus_per_node} | {deployment.gpus})
    own = [
        Offer(
            provider="yours", region="as metered", instance=f"{size}×{gpu.key}", gpu=gpu.key, gpus=size,
            usd_per_hour=price * size, date=today(), source="the meter",
        )
        for size in sizes
    ]  # fmt: skip
    others = (
        offer.model_copy(update={"usd_per_hour": None}) if offer.gpu == gpu.key else offer
        for offer in offers
    )  # fmt: skip
    return (*own, *others)


# --- what is proposed -------------------------------------------------------------------------------------------------


def proposed(run: MeteredRun, setup: Setup, ranking: Ranking, modelled: Bill) -> MeteredToday:
    """Return today as metered, and what a ranking of levers proposes for it."""
    servers, now = run.servers, ranking.now
    paid = servers.usd_per_hour * HOURS_PER_MONTH
    # Where today's servers are too few for the SLO, a change saves what it costs less than they do.
    base = min(paid, now.usd_per_month)

    def proposal(name: str, knob: str, saved: float, bill: Bill, effort: str, risk: str) -> Proposal:
        there = deployment_in(setup, bill)
        return Proposal(
            name=name, knob=knob, saved_usd_per_month=saved, saved_share=saved / paid,
            error_share=error_of(run.errors, knob, setup.deployment, there),
            likely=interval(1.0, "tpot", there), usd_per_month=bill.usd_per_month, becomes=bill.deployment,
            replicas=bill.all_replicas, ttft_p99_s=bill.ttft_s.p99, tpot_p99_s=bill.tpot_s.p99, effort=effort,
            risk=risk,
        )  # fmt: skip

    made = [
        proposal(lever.name, lever.knob, base - lever.bill.usd_per_month, lever.bill, lever.effort, lever.risk)
        for lever in ranking.levers
        if lever.bill
    ]
    made += [_called(run, lever, paid) for lever in ranking.levers if lever.api and lever.reason is None]
    fewer = f"{now.all_replicas} instead of {servers.mean_servers:.3g} replicas"
    room = "less room for what the period did not have"
    made.append(proposal(fewer, REPLICAS, paid - now.usd_per_month, now, "a number", room))
    if len(ranking.taken) > 1:
        named, saved = " + ".join(ranking.taken), paid - ranking.together.usd_per_month
        made.append(proposal(named, TOGETHER, saved, ranking.together, "all of these", "that of each of them"))
    saving = sorted((one for one in made if one.saved_share > 0), key=lambda one: -one.saved_usd_per_month)
    return MeteredToday(
        source=run.source, servers=servers, usd_per_month=paid, modelled_usd_per_month=modelled.usd_per_month,
        modelled_share=modelled.usd_per_month / paid - 1, modelled_tpot_s=modelled.tpot_s.mean,
        modelled_ttft_s=modelled.ttft_s.mean, needed=now.all_replicas, factors=run.factors, errors=run.errors,
        proposals=tuple(one for one in saving if one.saved_share > (one.error_share or 0.0)),
        smaller=tuple(one for one in saving if one.saved_share <= (one.error_share or 0.0)),
    )  # fmt: skip


def _called(run: MeteredRun, lever: Pulled, paid: float) -> Proposal:
    """Return the proposal of calling an API, which replaces all servers: its bill depends on the tokens alone."""
    assert lever.api is not None
    saved = paid - lever.api.usd_per_month
    errors = run.errors
    return Proposal(
        name=lever.name, knob=API, saved_usd_per_month=saved, saved_share=saved / paid,
        error_share=errors and (errors.speed if errors.traffic is None else errors.traffic), likely=None,
        usd_per_month=lever.api.usd_per_month, becomes=lever.api.api.name, replicas=0, ttft_p99_s=None, tpot_p99_s=None,
        effort=lever.effort, risk=lever.risk,
    )  # fmt: skip


def deployment_in(setup: Setup, bill: Bill) -> Deployment:
    """Return the layout that a bill is for."""
    fields = {name: getattr(bill, name) for name in ("tp", "pp", "ep", "dp", "weights", "kv")}
    return setup.deployment.model_copy(update=fields | {"gpu": find_gpu(bill.gpu)})


def error_of(errors: TwinErrors | None, knob: str, now: Deployment, then: Deployment) -> float | None:
    """Return the twin's own error of a proposal, as a share of the bill; None without a twin."""
    if errors is None:
        return None
    parts = [errors.speed]
    if knob in _WHEN and errors.traffic is not None:
        parts.append(errors.traffic)
    if then.gpu != now.gpu:
        parts.append(_MEDIAN * prior_deviation("tpot", then))
    return math.hypot(*parts)
