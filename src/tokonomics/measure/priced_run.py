"""Price a benchmark in dollars, and tell how far our prediction was off.

On **reservation** means the machine's price over the tokens of answered requests, for as long as the load ran. The
price is split between prompts and answers by the share of the GPU's time that prompts take. That share is modelled, so
it needs a model and a GPU we know; the whole bill over all tokens, or over the answers alone, does not. Predictions and
their errors are those of ``validate``: the same run, simulated.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat, ValidationError

from tokonomics.catalog.apis import ApiPrice, price_request
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.offer_choice import cheapest_offer, machines_usd_per_hour
from tokonomics.catalog.offers import Offer
from tokonomics.errors import BadInput, TokonomicsError, UnknownName, from_validation, option, shorten
from tokonomics.measure.benchmark_run import BenchmarkRun, LoadPoint, LoadVerdict, MostGpus, MostStages, Stated, judge
from tokonomics.measure.measurements import MOST_REQUESTS, Measurement, Metric, Mode, RunFacts, Statistic
from tokonomics.measure.stated_setup import assumed_weights, stated_deployment, stated_weights, steps_of
from tokonomics.measure.validate import most_sequences, predict, replica_curve, steady_of
from tokonomics.money.cost import split_by_gpu_time
from tokonomics.physics.intervals import Interval
from tokonomics.sizing.hosts import cheapest_host
from tokonomics.traffic.slo import Slo
from tokonomics.types import Noun, today
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK, plural


@dataclass(frozen=True)
class GivenMachine:
    """What the user says about the machine, instead of what files say."""

    gpu: str | None = None
    gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dp: int | None = None
    engine: str | None = None
    weights: str | None = None
    kv: str | None = None
    model: str | None = None


class MeasuredMachine(Noun):
    """What served the run: given by the user, or else stated by the file."""

    gpu: str
    gpus: MostGpus
    tp: MostGpus
    pp: MostStages = 1
    ep: MostGpus = 1
    dp: MostGpus = 1
    engine: str = "vllm"
    weights: str = "unstated"
    kv: str | None = None
    tuned: bool = False

    @property
    def replicas(self) -> int:
        return self.gpus // (self.tp * self.pp * self.dp)


class Price(Noun):
    """What the machine costs, all GPUs together; or what an API charges per token."""

    usd_per_hour: PositiveFloat | None = None
    api: ApiPrice | None = None
    price_from: str


class PointPrice(Noun):
    """Dollars per Mtok at one load, on reservation."""

    blended: PositiveFloat  # prompt and answer tokens alike
    output_only: PositiveFloat  # the whole bill divided by the answers alone
    input: PositiveFloat | None = None
    output: PositiveFloat | None = None  # by the modelled shares of the GPU's time; None without a model of it


class Scored(Noun):
    """One measured figure with our prediction of it."""

    metric: Metric
    statistic: Statistic = Statistic.mean
    measured: PositiveFloat
    predicted: Interval
    off: float  # predicted ÷ measured − 1
    inside: bool  # whether the measured figure is in the predicted 80 % interval


class PricedPoint(Noun):
    load: str
    usd_per_mtok: PointPrice | None
    scored: tuple[Scored, ...]
    recorded: bool = False  # predicted with the arrivals and lengths of its own requests; otherwise with drawn ones
    not_predicted: str | None = None


class PricedRun(Noun):
    run: BenchmarkRun
    machine: MeasuredMachine | None
    price: Price | None
    points: tuple[PricedPoint, ...]
    verdict: LoadVerdict
    median_abs_error: dict[str, float]  # by figure ("ttft_s p99"): the median of |predicted ÷ measured − 1| over loads
    assumed_weights: str | None = None  # the checkpoint's own precision, if nobody stated one


def machine_of(stated: Stated, given: GivenMachine) -> MeasuredMachine | None:
    """Return what the user says, completed by what the file says; None if neither names a GPU."""
    name, gpus, tp = given.gpu or stated.gpu, given.gpus, given.tp
    if name is None:
        return None
    with suppress(UnknownName):  # a file may name a GPU that the catalogue does not have
        name = find_gpu(name).key
    stages, groups = given.pp or stated.pp or 1, given.dp or stated.dp or 1
    many = gpus or stated.gpus or (tp or stated.tp or 1) * stages * groups
    # GPUs given without a split are assumed to share every layer, as one replica.
    split = tp or (stated.tp if gpus is None or gpus == stated.gpus else None) or max(1, many // (stages * groups))
    replica = split * stages * groups
    if many % replica:
        fix = f"Give {option('tp')} (and {option('pp')}, {option('dp')}) so that they divide {option('gpus')}."
        raise BadInput(f"{plural(many, 'GPU')} cannot hold whole replicas of {replica}", field="gpus", fix=fix)
    try:
        return MeasuredMachine(
            gpu=name, gpus=many, tp=split, pp=stages, ep=given.ep or stated.ep or 1, dp=groups, kv=given.kv,
            tuned=stated.tuned,
            engine=given.engine or stated.engine or "vllm", weights=given.weights or stated.weights or "unstated",
        )  # fmt: skip
    except ValidationError as error:
        raise from_validation(error, "the machine") from None


def as_model(run: BenchmarkRun, model: str) -> BenchmarkRun:
    """Return the run under the model that the user names; the precision in its own name still holds."""
    named = stated_weights(run.stated.weights or "unstated", run.model or "")
    stated = run.stated.model_copy(update={"weights": named.value}) if named and not run.stated.weights else run.stated
    return run.model_copy(update={"model": model, "stated": stated})


def rental_of(machine: MeasuredMachine, model: str | None, offers: Iterable[Offer] | None = None) -> Price | None:
    """Return the cheapest offer of the machine, on a host that holds a known model; None if nobody sells it."""
    deployment = None
    with suppress(TokonomicsError):
        if model is not None:
            split = (machine.tp, machine.pp, machine.ep, machine.dp)
            served = (machine.weights, machine.kv, machine.engine)
            deployment = stated_deployment(model, machine.gpu, *split, *served)
    try:
        if deployment is not None:
            offer, usd_per_hour = cheapest_host(deployment, machine.replicas, offers)
        else:
            offer = cheapest_offer(machine.gpu, machine.gpus, offers=offers, together=machine.tp * machine.dp)
            usd_per_hour = machines_usd_per_hour(offer, machine.gpus)
    except TokonomicsError:  # a GPU that is only in the file, or that nobody sells
        return None
    return Price(usd_per_hour=usd_per_hour, price_from=offer.quoted(today()))


def price_run(
    run: BenchmarkRun, machine: MeasuredMachine | None, price: Price | None, slos: Sequence[Slo] = ()
) -> PricedRun:
    points = tuple(_priced(run, point, machine, price) for point in run.points)
    prices = [point.usd_per_mtok.blended if point.usd_per_mtok else None for point in points]
    sizes: dict[str, list[float]] = defaultdict(list)
    for scored in (scored for point in points for scored in point.scored):
        sizes[scored.metric.figure(scored.statistic)].append(abs(scored.off))
    assumed = None
    if run.model is not None and machine is not None and any(point.scored for point in points):
        assumed = assumed_weights(machine.weights, run.model)
    return PricedRun(
        run=run.without_records(), machine=machine, price=price, points=points,
        verdict=judge(run.points, prices, slos),
        median_abs_error={figure: statistics.median(values) for figure, values in sizes.items()},
        assumed_weights=assumed,
    )  # fmt: skip


def measurements_of(run: BenchmarkRun, machine: MeasuredMachine) -> list[Measurement]:
    """Return every figure of a run that can be predicted, a row each, for one replica."""
    return [row for point in run.points for row in _rows(run, point, machine)]


def _priced(run: BenchmarkRun, point: LoadPoint, machine: MeasuredMachine | None, price: Price | None) -> PricedPoint:
    rows = _rows(run, point, machine) if machine else []
    scored, reason = [], None
    with_median = {row.metric for row in rows if row.statistic is Statistic.p50}
    for row in rows:
        if row.statistic is Statistic.mean and row.metric in with_median:
            continue  # one typical figure is enough to show
        said = predict(row)
        if isinstance(said, str):
            reason = said
            continue
        whole = machine.replicas if machine and row.metric is Metric.output_tok_s else 1
        scored.append(
            Scored(
                metric=row.metric,
                statistic=row.statistic,
                measured=row.value * whole,
                predicted=Interval(**{name: value * whole for name, value in said.interval}),
                off=said.interval.mid / row.value - 1,
                inside=said.inside,
            )
        )
    if machine and not rows:
        reason = "the file names no model" if run.model is None else "it has no figure that is predicted"
    share = None
    with suppress(TokonomicsError):
        share = _prefill_share(rows[0]) if scored else None
    return PricedPoint(
        load=point.load, usd_per_mtok=_dollars(point, price, share) if price else None, scored=tuple(scored),
        recorded=bool(scored and point.records), not_predicted=reason,
    )  # fmt: skip


def _dollars(point: LoadPoint, price: Price, prefill_share: float | None) -> PointPrice | None:
    if price.api is not None:
        return _charged(point, price.api)
    per_second = (price.usd_per_hour or 0.0) / SECONDS_PER_HOUR
    tokens = point.input_tokens_per_s + point.output_tokens_per_s
    split = None
    if prefill_share is not None:
        lengths = (point.mean_input_tokens, point.mean_output_tokens)
        split = split_by_gpu_time(per_second, point.requests_per_s, *lengths, prefill_share)
    return PointPrice(
        blended=per_second / tokens * TOKENS_PER_MTOK,
        output_only=per_second / point.output_tokens_per_s * TOKENS_PER_MTOK,
        input=split.input if split and split.input > 0 else None,
        output=split.output if split and split.output > 0 else None,
    )


def _charged(point: LoadPoint, api: ApiPrice) -> PointPrice | None:
    """Return what an API charges for the mean request, nothing from a cache; None if it costs nothing."""
    inputs, outputs = point.mean_input_tokens, point.mean_output_tokens
    usd, rates = price_request(api, inputs, 0.0, outputs), api.rates(inputs)
    if usd <= 0:
        return None
    return PointPrice(
        blended=usd / (inputs + outputs) * TOKENS_PER_MTOK,
        output_only=usd / outputs * TOKENS_PER_MTOK,
        input=rates.input_usd_per_mtok or None,
        output=rates.output_usd_per_mtok or None,
    )


def _rows(run: BenchmarkRun, point: LoadPoint, machine: MeasuredMachine) -> list[Measurement]:
    if run.model is None:
        return []
    replicas = machine.replicas
    users = max(1, round(point.concurrency / replicas)) if point.concurrency else None
    facts = _facts(point, replicas, users)
    # If the load is not known, predict only the mean, or else the median.
    known = bool(users or point.rate or point.records or facts.requests)
    figures: list[tuple[Metric, Statistic, float]] = []
    for metric, spread in ((Metric.tpot_s, point.tpot_s), (Metric.ttft_s, point.ttft_s)):
        values = [(statistic, getattr(spread, statistic, None)) for statistic in Statistic]
        stated = [(metric, statistic, value) for statistic, value in values if value is not None]
        figures += stated if known else stated[:1]
    figures.append((Metric.output_tok_s, Statistic.mean, point.output_tokens_per_s / replicas))
    return [
        Measurement(
            key=f"{point.load}, {metric.figure(statistic)}",
            model=run.model,
            **dict(machine),
            year=run.when.year if run.when else 2026,
            input_tokens=max(1, round(point.mean_input_tokens)),
            output_tokens=max(1, round(point.mean_output_tokens)),
            batch=users,
            rate=point.rate / replicas if point.rate else None,
            mode=Mode.fixed_concurrency if users else Mode.server_slo if point.rate else Mode.max_throughput,
            metric=metric,
            value=value,
            source=shorten(run.tool, 60),
            statistic=statistic,
            run=facts,
        )
        for metric, statistic, value in figures
        # Less than a nanosecond means that the clock did not tick.
        if value >= 1e-9
    ]


def _facts(point: LoadPoint, replicas: int, users: int | None) -> RunFacts:
    """Return what is known about one replica's run: it gets every n-th request."""
    answered = [sent for sent in point.records if sent.error is None and sent.input_tokens and sent.output_tokens]
    mine = sorted(answered, key=lambda request: request.sent_s)[::replicas]
    count = len(mine) or math.ceil((point.completed or 0) / replicas)
    return RunFacts(
        requests=min(count, MOST_REQUESTS) or None,
        spread=point.length_spread,
        # Our own benchmark counts separately what was answered before every user had an answer.
        warm_up=users if users and point.outside.requests >= users else 0,
        arrival_s=tuple(request.sent_s - mine[0].sent_s for request in mine),
        input_tokens=tuple(request.input_tokens for request in mine),
        output_tokens=tuple(request.output_tokens for request in mine),
    )


class PromptTime(Noun):
    """The share of the GPU's busy time that prompts take, and the part of it that cached tokens add."""

    share: NonNegativeFloat
    cached_share: NonNegativeFloat


def prompt_time(model: str, machine: MeasuredMachine, point: LoadPoint, cached_tokens: float = 0.0) -> PromptTime:
    """Model it under a load of which ``point`` counts computed tokens only; raise an error if that is not possible."""
    run = BenchmarkRun(tool="", model=model, points=(point,))
    row = _rows(run, point, machine)[0]
    steps = steps_of(row)
    with_cache, without = (float(steps.prefill(row.input_tokens, past)) for past in (cached_tokens, 0.0))
    return PromptTime(share=_prefill_share(row, cached_tokens), cached_share=max(0.0, 1 - without / with_cache))


def _prefill_share(row: Measurement, cached_tokens: float = 0.0) -> float:
    """Return the share of the GPU's busy time that prompts take; raise an error if it cannot be predicted."""
    steps, most = steps_of(row), most_sequences(row)
    curve = replica_curve(steps, row.input_tokens, row.output_tokens, most, cached_tokens)
    steady = steady_of(row, curve)
    on_prompts = steady.rate * float(np.interp(steady.batch, curve.batches, curve.stall_s))
    return min(0.999, on_prompts / min(1.0, steady.batch))  # with less than one request on average it is sometimes idle
