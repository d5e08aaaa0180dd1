"""Answer from which volume on self-hosting a model is cheaper than an API."""

from typing import Any

from pydantic import Field

from tokonomics.catalog.api_hosts import find_api, hosts_of
from tokonomics.catalog.apis import ApiPrice
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput, option, shorten
from tokonomics.measure.benchmark_run import ApiLatency
from tokonomics.money.breakeven import Extra, SelfHosted, kind_of_equation
from tokonomics.money.trace_bills import ApiCost, ApiLeftOut, api_bills, host_bills
from tokonomics.planner.apis import in_region, share_of_api
from tokonomics.planner.hosting import (
    TRICKLE,
    BreakEvenReport,
    Hosting,
    NothingFits,
    report,
    self_hosted,
    tokens_per_request,
)
from tokonomics.planner.infeasible import Blame
from tokonomics.planner.parsing import amount, listed
from tokonomics.questions.api_beside import latencies_of
from tokonomics.questions.catalogue import every_offer, extras_of
from tokonomics.questions.deployment import named, require_writer, targets_of
from tokonomics.questions.load import blamed, load_of, question_of, say_not_tried
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.buy import BreakevenRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.serving import say_if_compiling
from tokonomics.questions.traffic import read_rate
from tokonomics.sizing.load import Load
from tokonomics.traffic.trace import Trace
from tokonomics.units import SECONDS_PER_MONTH, count, percent, plural, usd

_PLANNED = ("model", "slo", "offline", "gpu", "provider", "region", "terms", "discount", "offers", "max_price",
            "max_age", "weights", "min_weights", "min_recovery", "kv", "engine", "spare", "headroom", "quick",
            "arrivals", "start", "end")  # fmt: skip
"""Inputs of a plan that do not apply to a replica with given speed and price."""


class BreakevenResult(Result, BreakEvenReport):
    """A self-hosted model against APIs, at every volume."""

    ROWS = "found"

    latencies: dict[str, ApiLatency] = Field(default_factory=dict)
    """How fast the measured APIs answer, by name."""

    def headline(self) -> str:
        said = []
        for meets in (self.found[place] for place in self.counted):
            from_here, bits = meets.stays_tokens_per_month, self.fewer_bits(meets)
            never = f"never cheaper than {meets.api}"
            verdict = f"cheaper than {meets.api} from {count(from_here)} tokens a month on" if from_here else never
            said.append(f"{verdict} ({bits}, fewer bits than published)" if bits else verdict)
        more = [f"{plural(len(said) - 3, 'API')} more"] if len(said) > 3 else []
        return f"{self.model}, hosted: {'; '.join([*said[:3], *more])}"


class NothingHosts(Result):
    """Nothing can be hosted, and why."""

    blame: tuple[Blame, ...]
    study: Any = beside()

    @property
    def is_found(self) -> bool:
        return False


def breakeven(request: BreakevenRequest, listener: Listener = SILENT) -> BreakevenResult | NothingHosts:
    """Compare a self-hosted model with APIs at every volume: whole machines against a price per token."""
    extras, latencies = extras_of(request), latencies_of(request)
    if request.replica_tokens_per_second is not None or request.usd_per_hour is not None:
        return BreakevenResult(**dict(_given(request, extras)), latencies=latencies)
    try:
        return BreakevenResult(**dict(_planned(request, extras, listener)), latencies=latencies)
    except NothingFits as nothing:
        return NothingHosts(blame=tuple(blamed(request, nothing.study)), study=nothing.study)


def hosting_of(request: BreakevenRequest, offers: tuple[Offer, ...], listener: Listener = SILENT) -> Hosting:
    """Return the question, apart from the volume."""

    def drawn_at(rate: float) -> Load:
        return load_of(request.model_copy(update={"rate": f"{rate:.9g}", "tokens_per_month": None}))

    def at_rate(rate: float) -> Load:
        """Draw the lengths once: the closed form needs only these, and they are the same at every rate."""
        if request.quick and trickle.is_drawn_alike_at(rate):
            return trickle.at(float(f"{rate:.9g}"))
        return drawn_at(rate)

    trickle = drawn_at(TRICKLE)
    paceless = request.model_copy(update={"rate": None, "tokens_per_month": None})
    log = load_of(paceless, listener) if request.trace is not None else None
    base = question_of(request, named(request.model), trickle, offers, request.quick)
    if base.limits.spare.zone:
        fix = f"Such as {option('spare', 1)} for a machine; `tokonomics plan` has zones."
        raise BadInput(
            "a bill that grows by volume is known for spare machines, not for a zone", field="spare", fix=fix
        )
    return Hosting(base, at_rate, log, request.cached_share or 0.0)


def _planned(request: BreakevenRequest, extras: tuple[Extra, ...], listener: Listener) -> BreakEvenReport:
    """Compute the self-hosted side with the machines that the planner would buy."""
    model = find_model(named(request.model))
    require_writer(model)
    hosting = hosting_of(request, every_offer(request), listener)
    say_not_tried(hosting.base, listener)
    load = hosting.load(TRICKLE)
    own = _own_volume(request, tokens_per_request(load))
    cached = request.cached_share
    share = share_of_api(hosting.recorded(), cached)
    bills, left_out, perhaps = _bills(request, load.trace, share)
    if not request.quick:
        say_if_compiling(listener)
    listener.doing("planning")
    prices = [bill.usd_per_mtok for bill in bills]
    own_rate = own / tokens_per_request(load) / SECONDS_PER_MONTH if own else None
    hosted, hardware = self_hosted(hosting, prices, extras, own_rate, listener.doing)
    return report(
        model.name, load.trace, hosted, hardware, bills, left_out, cached_share=share,
        slos=targets_of(request), own_tokens_per_month=own, perhaps_there=perhaps,
    )  # fmt: skip


def _given(request: BreakevenRequest, extras: tuple[Extra, ...]) -> BreakEvenReport:
    """Compute the self-hosted side from the user's own speed, price and utilisation."""
    speed, price, share = request.replica_tokens_per_second, request.usd_per_hour, request.max_utilization
    both = f"{option('replica_tokens_per_second')} and {option('usd_per_hour')}"
    for name in _PLANNED:
        if getattr(request, name) not in (None, False):
            what = f"plans a fleet; with {both} its speed and price are given"
            raise BadInput(what, field=name, fix=f"Leave it out; or, to plan, leave out {both}.")
    if speed is None or price is None:
        missing = "usd_per_hour" if price is None else "replica_tokens_per_second"
        such_as = f"{option('replica_tokens_per_second', 2400)} {option('usd_per_hour', 2.21)}"
        raise BadInput("is missing", field=missing, fix=f"Such as {such_as}.")
    if share is None:
        fix = f"Such as 0.7; or, to plan, leave out {both}."
        raise BadInput("how full are the machines?", field="max_utilization", fix=fix)
    gpus = request.replica_gpus
    name = f"{plural(gpus, 'GPU')} at {usd(price)}/h, {speed:,.0f} tok/s filled to {percent(share)}"
    kind = kind_of_equation(name, price, gpus, speed, share)
    rate = "1" if request.trace is None else None
    shape = request.model_copy(update={"rate": rate, "tokens_per_month": None})
    load = load_of(shape)
    cached = share_of_api(load, request.cached_share)
    bills, left_out, perhaps = _bills(request, load.trace, cached)
    return report(
        "your replica", load.trace, SelfHosted(kinds=(kind,), extras=extras), (), bills, left_out,
        cached_share=cached, filled=(), own_tokens_per_month=_own_volume(request, tokens_per_request(load)),
        perhaps_there=perhaps,
    )  # fmt: skip


def _own_volume(request: BreakevenRequest, tokens_per_request: float) -> float | None:
    """Return the user's own tokens a month, however the traffic is given; None if only its shape is given."""
    if request.rate is not None and request.tokens_per_month is not None:
        what = f"says the same as {option('rate')}"
        raise BadInput(what, field="tokens_per_month", fix="Give one of the two.")
    if request.rate is not None:
        return read_rate(request.rate) * tokens_per_request * SECONDS_PER_MONTH
    if request.tokens_per_month is not None:
        return amount(request.tokens_per_month, "tokens_per_month")
    if request.arrivals is not None or request.trace is not None:
        return load_of(request).workload.rate * tokens_per_request * SECONDS_PER_MONTH
    return None


def _bills(
    request: BreakevenRequest, trace: Trace, cached_share: float
) -> tuple[tuple[ApiCost, ...], tuple[ApiLeftOut, ...], tuple[str, ...]]:
    """Return what the APIs charge: the requested ones in their order, or every host of the model, cheapest first.

    Under a region, hosts known to compute there come first, and those that compute elsewhere are left out. Hosts that
    do not say that they compute there are named at last; an API that was asked for counts wherever it computes.
    """
    replayed = request.cached_share is None
    if request.api:
        named_apis = [find_api(name) for name in dict.fromkeys(listed(request.api, "api") or ())]
        return *api_bills(named_apis, trace, cached_share, request.batch_api, replayed=replayed), ()
    bills = host_bills(_hosts(request), trace, cached_share, request.batch_api, replayed=replayed)
    region = listed(request.region, "region") or ()
    placed = in_region(bills, region)
    elsewhere = tuple(
        ApiLeftOut(name=bill.name, why=f"its host computes in {', '.join(bill.areas)}") for bill in placed[False]
    )
    if not (counted := (*placed[True], *placed[None])):
        why = f"all hosts of {shorten(request.model or '')} compute elsewhere" if elsewhere else "no host holds them"
        fix = f"Name what to compare with: {option('api', 'groq:llama-3.1-8b-instant')}."
        raise BadInput(f"no API serves these requests: {why}", field="region" if elsewhere else "input", fix=fix)
    return counted, elsewhere, tuple(bill.name for bill in placed[None])


def _hosts(request: BreakevenRequest) -> list[ApiPrice]:
    such_as = f"{option('api', 'groq:llama-3.1-8b-instant')}; see `tokonomics apis`."
    if request.model is None:
        raise BadInput("which API is it compared with?", field="api", fix=f"Such as {such_as}")
    model = find_model(request.model)
    found = hosts_of(model, request.model)
    if not found:
        what = f"the API catalogue has no host of {shorten(request.model)}"
        raise BadInput(what, field="api", fix=f"Name what to compare with as host:model, such as {such_as}")
    return found
