"""Answer which machines to buy, on which terms, hour by hour."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from tokonomics.catalog.api_hosts import hosts_of
from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.feeds import SCARCE, Interruptions, hourly_rate
from tokonomics.catalog.load_models import find_model
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import MAX_AGE_DAYS, Offer, Terms
from tokonomics.errors import BadInput, option, shorten
from tokonomics.fleet.cheapest import require_target
from tokonomics.fleet.commitments import CommitmentReport, Outlook, commitments, require_a_quote
from tokonomics.fleet.design import (
    BatchReport,
    BatchWay,
    FleetBounds,
    FleetReport,
    batch_report,
    batch_way,
    plan_fleet,
    require_one_class,
)
from tokonomics.fleet.offers import FleetMarket, Machines, fleet_machines, zones_needed
from tokonomics.fleet.scaling import ScalingReport, require_on_demand, require_slos, scaling_ways
from tokonomics.fleet.traffic import (
    FleetTraffic,
    is_curve,
    parse_batch_work,
    parse_demand,
    traffic_from_curve,
    traffic_from_trace,
)
from tokonomics.money.purchases import BatchWork, FleetLimits
from tokonomics.money.trace_bills import host_bills
from tokonomics.planner.parsing import kv_for, terms_from, weights_for
from tokonomics.questions.catalogue import offers_of
from tokonomics.questions.deployment import named, require_writer, targets_of
from tokonomics.questions.inputs import Traffic
from tokonomics.questions.request import SILENT, Listener, read_share
from tokonomics.questions.requests.buy import FleetRequest
from tokonomics.questions.result import Result
from tokonomics.questions.serving import say_if_compiling
from tokonomics.questions.traffic import lengths_of, read_rate, read_time, traffic_of
from tokonomics.sizing.buy import reserved_prices
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.trace import Trace
from tokonomics.types import today
from tokonomics.units import (
    DAY_S,
    HOURS_PER_MONTH,
    SECONDS_PER_HOUR,
    TOKENS_PER_MTOK,
    percent,
    plural,
    usd,
    whole_number,
)


class FleetResult(Result, FleetReport):
    """The cheapest fleet over time, what it is compared with, and its simulation."""

    ROWS = "plan.purchases"

    scaling: ScalingReport | None = None  # ways to follow a day's traffic, if asked for
    batch_work: BatchReport | None = None  # batch work beside the traffic, if asked for
    commitments: CommitmentReport | None = None  # what to reserve for months or years, if asked for

    def headline(self) -> str:
        plan = self.plan
        return (
            f"{self.model}: {usd(plan.usd_per_month)} a month, 99 of 100 months below {usd(plan.p99_usd_per_month)}; "
            f"{plural(len(plan.purchases), 'purchase')} over {plan.hours} hours"
        )


def fleet(request: FleetRequest, listener: Listener = SILENT) -> FleetResult:
    """Find the cheapest fleet over time, compare it with others, and check it in the simulator."""
    targets = targets_of(request)
    model = find_model(named(request.model))
    require_writer(model)
    weights, kv = weights_for(model, request.weights, None), kv_for(model, request.kv)
    terms, risk = _terms(request), _interruptions(request.interruptions)
    _check_scaling(request, targets, terms)
    outlook = _outlook(request, terms)
    startup_s = read_time(request.startup, "startup")
    target = None if request.availability is None else require_target(request.availability)
    engine = find_engine(request.engine) if request.engine else None
    traffic = _traffic(request, model.max_context, listener)
    work = None if request.batch_work is None else _work(request.batch_work, traffic)
    offers = offers_of(request)
    if outlook is not None:
        _require_a_quote(offers, outlook)
    market = FleetMarket(
        today=today(),
        terms=terms,
        startup_s=startup_s,
        interruptions=risk,
        aws_zones=request.offers is None,
        most_zones=zones_needed(1.0 if request.max_zone_share is None else request.max_zone_share),
        anywhere=request.anywhere,
    )
    say_if_compiling(listener)
    doubtful = request.gpu is not None or request.offers is not None
    machines = fleet_machines(
        model, engine, offers, traffic, targets, market,
        weights=weights, kv=kv, doubtful=doubtful, say=listener.doing,
    )  # fmt: skip
    if outlook is not None:
        require_a_quote((offer.reserved for offer in machines.offers), outlook)
    found = plan_fleet(
        model.name,
        ", ".join(sorted({layout.deployment.engine.name for layout in machines.layouts.values()})),
        machines,
        traffic,
        targets,
        FleetLimits(min_replicas=request.min_replicas, fallback=not request.no_fallback),
        FleetBounds(request.max_spot_share, request.max_zone_share, target, request.anywhere),
        gap=request.gap,
        time_limit_s=request.time_limit,
        with_replay=not request.no_replay,
        seed=request.seed,
        say=listener.doing,
    )
    here = {kind.name for kind in found.machines}
    bought = machines.only([offer for offer in machines.offers if offer.name in here])
    bought = bought.counted_less(found.counted_share) if found.counted_share < 1 else bought
    return FleetResult(
        **dict(found),
        scaling=scaling_ways(bought, traffic, found.slos, request.scaling_room, request.seed, listener.doing)
        if request.scaling
        else None,
        batch_work=None if work is None else _batch_work(request, work, found, bought, traffic, listener),
        commitments=None if outlook is None else _commitments(request, outlook, found, machines, traffic, listener),
    )


def _check_scaling(request: FleetRequest, slos: Sequence[Slo], terms: Sequence[Terms]) -> None:
    """Check the inputs of the ways to scale, before anything is simulated."""
    if request.scaling:
        require_slos(slos)
        require_on_demand(terms)
    elif request.scaling_room is not None:
        raise BadInput("is for ways to scale", field="scaling_room", fix=f"Give {option('scaling')} as well.")


_ABOUT_COMMITMENTS = ("growth", "growth_noise", "horizon", "commit_price", "caution")


def _outlook(request: FleetRequest, terms: Sequence[Terms]) -> Outlook | None:
    """Read what is expected of the months ahead; None if nobody asks what to commit to."""
    if not request.commit:
        for name in _ABOUT_COMMITMENTS:
            if getattr(request, name) is not None:
                raise BadInput("is for commitments", field=name, fix=f"Give {option('commit')} as well.")
        return None
    if Terms.on_demand not in terms or (Terms.reserved not in terms and request.commit_price is None):
        fix = f"Leave out {option('terms')} and {option('no_reserved')}."
        raise BadInput("chooses between reserving and renting on demand", field="commit", fix=fix)
    return Outlook(
        months=request.horizon or 36,
        growth=_growth(request.growth),
        noise=request.growth_noise or 0.0,
        caution=request.caution or 0.0,
        usd_per_gpu_hour=None if request.commit_price is None else _commit_prices(request.commit_price),
    )


def _require_a_quote(offers: Sequence[Offer], outlook: Outlook) -> None:
    """Refuse before anything is sized if no recent offer quotes a commitment; if all are old, that is told instead."""
    recent = [offer for offer in offers if offer.age_days(today()) <= MAX_AGE_DAYS]
    if recent:
        require_a_quote((reserved_prices(offer) for offer in recent if offer.usd_per_hour is not None), outlook)


def _growth(text: str | None) -> tuple[float, float, float]:
    """Read ``3%`` or ``0:3%:6%``, a month."""
    parts = (text or "0").split(":")
    try:
        rates = [float(cast("float", read_share(part))) for part in parts]
    except ValueError:
        rates = []
    if len(rates) not in (1, 3) or rates != sorted(rates) or not all(-0.5 <= rate <= 0.5 for rate in rates):
        fix = "Write a share a month of at most a half, such as 3%, or low:mid:high, such as -2%:3%:6%."
        raise BadInput(f"'{shorten(text or '')}' is not a growth", field="growth", fix=fix)
    return rates[0], rates[len(rates) // 2], rates[-1]


def _commit_prices(text: str) -> dict[str, float]:
    """Read ``1y=1.9,3y=1.5``: what a GPU-hour costs, by term."""
    found = {}
    for part in text.split(","):
        written = re.fullmatch(r"\s*([1-9][0-9]?)([my])=([0-9]*\.?[0-9]+)\s*", part)
        if written is None or float(written[3]) <= 0:
            fix = "Write USD per GPU-hour by term, such as 1y=1.9,3y=1.5 or 6m=2.2."
            raise BadInput(f"'{shorten(part)}' is not a price of a term", field="commit_price", fix=fix)
        found[plural(int(written[1]), "year" if written[2] == "y" else "month")] = float(written[3])
    return found


def _commitments(
    request: FleetRequest,
    outlook: Outlook,
    found: FleetReport,
    machines: Machines,
    traffic: FleetTraffic,
    listener: Listener,
) -> CommitmentReport:
    """Advise what to commit to, of any machine at the fleet's precision, wherever it is sold."""
    precisions = {(kind.weights, kind.kv) for kind in found.machines}
    kinds = machines.kinds
    same = [offer for offer in machines.offers if (kinds[offer.name].weights, kinds[offer.name].kv) in precisions]
    chosen = machines.only(same)
    return commitments(
        chosen.counted_less(found.counted_share) if found.counted_share < 1 else chosen,
        traffic, found.slos, outlook, today(),
        min_replicas=request.min_replicas, counted_share=found.counted_share, time_limit_s=request.time_limit,
        seed=request.seed, say=listener.doing,
    )  # fmt: skip


def _work(text: str, traffic: FleetTraffic) -> BatchWork:
    """Read the batch work, in requests of the traffic's lengths; refuse it if both cannot be combined."""
    sample = next(iter(traffic.samples.values()))
    work = parse_batch_work(text, float(sample.input_tokens.mean() + sample.output_tokens.mean()))
    require_one_class(traffic)
    work.windows(traffic.demand.hours)
    return work


def _batch_work(
    request: FleetRequest,
    work: BatchWork,
    found: FleetReport,
    machines: Machines,
    traffic: FleetTraffic,
    listener: Listener,
) -> BatchReport:
    """Price batch work in the fleet's idle hours, on machines of its own, or at the cheapest host of the model."""
    report = batch_report(
        work, found.plan, machines, traffic, found.slos, found.limits,
        gap=request.gap, time_limit_s=request.time_limit, with_replay=not request.no_replay, seed=request.seed,
        say=listener.doing,
    )  # fmt: skip
    hosted = batch_api(
        find_model(named(request.model)), named(request.model), next(iter(traffic.samples.values())), work
    )
    ways = sorted((*report.ways, *_hosted_ways(hosted, report)), key=lambda way: way.usd_per_month)
    return report.model_copy(update={"ways": tuple(ways)})


def _hosted_ways(hosted: BatchWay | None, report: BatchReport) -> Iterator[BatchWay]:
    """Yield all of the work at a host, and the work that idle hours cannot hold."""
    if hosted is None:
        return
    yield hosted
    if 0 < (free := report.least_free_share) < 1:
        usd, note = hosted.usd_per_month * (1 - free), f"{percent(free)} in idle hours; {hosted.note}"
        yield batch_way(f"idle hours, then {hosted.name}", usd, report.work, note)


def _traffic(request: FleetRequest, context: int, listener: Listener) -> FleetTraffic:
    limits = _size_classes(request.size_classes)
    demand, trace, rate = request.demand, request.trace, request.rate
    if demand is None and trace is None and rate is not None:
        demand = f"1x{read_rate(rate):g}"
    elif demand is not None and rate is not None:
        raise BadInput(f"says the same as {option('demand')}", field="rate", fix="Give one of the two.")
    if (demand is None) == (trace is None):
        what = "no demand is given" if demand is None else "a demand and a log are given"
        shape = f"{option('input', 1000)} {option('output', 300)}"
        raise BadInput(
            what,
            field="demand",
            fix=f"Write {option('demand', '12x20,12x2')} {shape}, {option('rate', 20)} …, or "
            f"{option('trace', 'log.jsonl')}.",
        )
    if trace is not None:
        for name in ("input", "output"):
            if getattr(request, name) is not None:
                raise BadInput("is for a demand curve; a log brings its own lengths", field=name)
        log = Traffic(trace=trace, rate=rate, columns=request.columns, seed=request.seed)
        made = traffic_from_trace(traffic_of(log, listener), limits, request.hours, context)
        return replace(made, headroom=request.headroom or 0.0)
    curve = parse_demand(demand or "", request.hours)
    if curve.peak <= 0:
        raise BadInput("there is no hour with a request", field="demand")
    if request.columns is not None:
        raise BadInput("is for a log", field="columns")
    inputs, outputs = lengths_of(Traffic(input=request.input, output=request.output), least=1)
    arrivals = parse_arrivals(demand or "", "demand") if is_curve(demand or "") else None
    made = traffic_from_curve(curve, inputs, outputs, limits, request.seed, context, arrivals)
    return replace(made, headroom=request.headroom or 0.0)


def _size_classes(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    sizes = [whole_number(part) or 0 for part in text.split(",")]
    if not all(0 < size <= 10**8 for size in sizes) or len(set(sizes)) < len(sizes):
        raise BadInput(
            f"'{shorten(text)}' are not sizes in tokens",
            field="size_classes",
            fix="Write sizes in tokens, such as 4000 or 1k,8k.",
        )
    return tuple(sorted(sizes))


def _terms(request: FleetRequest) -> tuple[Terms, ...]:
    left_out = {Terms.spot: request.no_spot, Terms.reserved: request.no_reserved}
    allowed = terms_from(request.terms or ("on_demand", "reserved", "spot"))
    chosen = tuple(terms for terms in allowed if not left_out.get(terms))
    if not chosen:
        raise BadInput("leaves nothing to buy", field="terms", fix="Write such as on_demand,reserved,spot.")
    return chosen


def _interruptions(text: str | None) -> Interruptions | None:
    if text is None:
        return None
    if text.strip().lower() == "scarce":
        return SCARCE
    try:
        chance = float(text)
    except ValueError:
        chance = -1.0
    if not 0 <= chance < 1:
        raise BadInput(
            f"'{shorten(text)}' is not a chance",
            field="interruptions",
            fix="Write such as 0.2: taken back within a month with a chance of 20 %; or scarce.",
        )
    return Interruptions(per_hour=hourly_rate(chance))


def batch_api(model: ModelSpec, name: str, sample: Trace, work: BatchWork) -> BatchWay | None:
    """Return the cheapest host, at its batch price if one is quoted, else at the list price; None if nobody hosts it.

    Batch prices are for answers within a day: for a nearer deadline only list prices count.
    """
    hosts = hosts_of(model, name)
    if not hosts:
        return None
    within_a_day = work.deadline_hours * SECONDS_PER_HOUR >= DAY_S
    best = min(host_bills(hosts, sample, batch=within_a_day), key=lambda bill: bill.usd_per_mtok)
    quoted = best.name.endswith("(batch)")
    why = "it quotes no batch price" if within_a_day else "batch prices are for answers within a day"
    said = "its batch price" if quoted else f"its list price: {why}"
    usd = best.usd_per_mtok * work.tokens_per_day * HOURS_PER_MONTH / 24 / TOKENS_PER_MTOK
    kind = "batch API" if quoted else "API"
    return batch_way(f"{best.name.removesuffix(' (batch)')}, {kind}", usd, work, said)
