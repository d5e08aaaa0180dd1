"""The cheapest ways to serve a model: every offer × tensor parallelism × precision, priced or refused with a reason.

Each distinct deployment is put through memory and the steady state once; each offer that can host it then costs
whole instances times its price. Nothing is dropped silently: a candidate is ranked, or rejected with its reason.
"""

import math
from collections.abc import Sequence
from datetime import date
from itertools import groupby

from pydantic import Field

from tokonomics.catalog.engines import Engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.models import ModelSpec
from tokonomics.catalog.offers import Offer, Terms
from tokonomics.catalog.precision import Precision
from tokonomics.money.cost import CostLine, CostTree, TokenPrices, split_by_gpu_time
from tokonomics.nouns import Badge, Noun
from tokonomics.physics.deployment import Deployment
from tokonomics.physics.intervals import interval
from tokonomics.physics.origins import speed_badge
from tokonomics.physics.sharding import shard
from tokonomics.planner.candidates import Reason, Refusal, deployments, weight_choices, why_not
from tokonomics.serving.steady import Capacity, MissesPromise, ReplicaCurve
from tokonomics.traffic.workload import Slo, Workload
from tokonomics.units import BYTES_PER_GB, HOURS_PER_MONTH, SECONDS_PER_HOUR, percent, usd

DEFAULT_MAX_UTILIZATION = 0.7
"""The planning utilisation of the document this product starts from; a stand-in until bursts are simulated."""
DEFAULT_MAX_AGE_DAYS = 365
"""A price older than a year no longer tells what the machine costs; younger ones are marked when they are stale."""
UNUSED = "unused GPUs"
"""GPUs of a paid instance on which no replica runs."""


class Candidate(Noun):
    """One way to serve the traffic, with what it costs."""

    gpu: str
    gpus_per_replica: int
    tp: int
    weights: Precision
    kv: Precision
    engine: str
    provider: str
    region: str
    instance: str
    terms: Terms
    instance_usd_per_hour: float
    price_date: date
    price_stale: bool
    replicas: int
    instances: int
    gpus_paid: int
    batch: float
    max_batch: int
    limited_by: str
    tpot_s: float
    tpot_range_s: tuple[float, float]
    """What four of five measurements of this kind lie between."""
    ttft_s: float
    utilization: float
    """Of the replicas' capacity under the promise."""
    speed: Badge
    """Whether the kernels behind the speed were measured on this GPU, or are another's scaled by the datasheet."""
    capacity_requests_per_s: float
    """Of one replica."""
    usd_per_month: float
    usd_per_mtok: TokenPrices
    """Reservation basis: the whole bill."""
    usd_per_mtok_usage: float
    """Blended, usage basis: only the share of the paid capacity that the traffic takes."""
    below_checkpoint: bool
    """The weights are held at fewer bits than they were published in: check quality."""
    bill: CostTree


class Rejection(Noun):
    """A candidate that was not ranked, and why."""

    gpu: str
    tp: int | None = None
    weights: Precision | None = None
    provider: str | None = None
    region: str | None = None
    instance: str | None = None
    kind: Reason
    reason: str


class Limits(Noun):
    """What the user will not go beyond."""

    max_utilization: float = Field(default=DEFAULT_MAX_UTILIZATION, ge=0.01, le=1)
    max_usd_per_gpu_hour: float | None = Field(default=None, gt=0)
    max_gpus: int | None = Field(default=None, gt=0)
    max_age_days: int = Field(default=DEFAULT_MAX_AGE_DAYS, ge=0)


class Plan(Noun):
    """Every candidate, cheapest first, and every refusal."""

    model: str
    workload: Workload
    slo: Slo
    limits: Limits
    best: Candidate | None
    ranked: tuple[Candidate, ...]
    rejected: tuple[Rejection, ...]

    def leaders(self, count: int) -> list[Candidate]:
        """The cheapest offer of each GPU, number of GPUs and precision, so that ten rows show ten choices."""
        seen: dict[tuple[str, int, Precision], Candidate] = {}
        for row in self.ranked:
            seen.setdefault((row.gpu, row.gpus_per_replica, row.weights), row)
        return list(seen.values())[:count]

    def best_at_checkpoint(self) -> Candidate | None:
        """The cheapest that serves the weights as they were published."""
        return next((row for row in self.ranked if not row.below_checkpoint), None)


def plan(
    model: ModelSpec,
    workload: Workload,
    offers: Sequence[Offer],
    engine: Engine,
    *,
    today: date,
    slo: Slo | None = None,
    weights: Sequence[Precision] | None = None,
    kv: Precision = Precision.bf16,
    terms: Terms = Terms.on_demand,
    limits: Limits | None = None,
) -> Plan:
    """Rank every candidate by the monthly bill for this traffic."""
    slo, limits = slo or Slo(), limits or Limits()
    ranked: list[Candidate] = []
    hosts, rejected = _usable(offers, terms, limits, today)
    for gpu_key, group in groupby(sorted(hosts, key=lambda offer: offer.gpu), key=lambda offer: offer.gpu):
        on_this_gpu = list(group)
        most_gpus = max(offer.gpus for offer in on_this_gpu)
        choices = deployments(model, find_gpu(gpu_key), engine, weights or weight_choices(model), kv, most_gpus)
        for deployment in choices:
            replica = _replica(deployment, workload, slo)
            if isinstance(replica, Refusal):
                rejected.append(_reject(deployment, replica))
                continue
            for offer in on_this_gpu:
                outcome = _price(deployment, offer, terms, *replica, workload, limits, today)
                if isinstance(outcome, Refusal):
                    rejected.append(_reject(deployment, outcome, offer))
                else:
                    ranked.append(outcome)
    ranked.sort(key=_cheapest_then_most_faithful)
    return Plan(
        model=model.key,
        workload=workload,
        slo=slo,
        limits=limits,
        best=ranked[0] if ranked else None,
        ranked=tuple(ranked),
        rejected=tuple(rejected),
    )


def _usable(offers: Sequence[Offer], terms: Terms, limits: Limits, today: date) -> tuple[list[Offer], list[Rejection]]:
    """Offers with a price on these terms, recent and cheap enough; the others with their reason.

    When every price is older than the limit, age no longer tells them apart and is not held against any.
    """
    oldest = limits.max_age_days
    if all(offer.age_days(today) > oldest for offer in offers):
        oldest = max((offer.age_days(today) for offer in offers), default=0)
    kept: list[Offer] = []
    refused: list[Rejection] = []
    for offer in offers:
        price, cap = offer.usd_per_gpu_hour(terms), limits.max_usd_per_gpu_hour
        if price is None:
            refusal = Refusal(Reason.no_price, f"no {terms.replace('_', '-')} price")
        elif cap is not None and price > cap:
            refusal = Refusal(Reason.too_dear, f"dearer than {usd(cap)} a GPU-hour")
        elif offer.age_days(today) > oldest:
            refusal = Refusal(Reason.old_price, f"price of {offer.date}, more than {oldest} days old")
        else:
            kept.append(offer)
            continue
        refused.append(
            Rejection(
                gpu=offer.gpu,
                provider=offer.provider,
                region=offer.region,
                instance=offer.instance,
                kind=refusal.kind,
                reason=refusal.reason,
            )
        )
    return kept, refused


def _replica(deployment: Deployment, workload: Workload, slo: Slo) -> tuple[ReplicaCurve, Capacity] | Refusal:
    """How one replica serves this traffic, or why it cannot."""
    refusal = why_not(deployment, workload.input_tokens + workload.output_tokens)
    if refusal:
        return refusal
    curve = ReplicaCurve(deployment, workload.input_tokens, workload.output_tokens)
    try:
        return curve, curve.capacity(slo.tpot_s)
    except MissesPromise as miss:
        late = percent(miss.tpot_s / miss.promised_s - 1)
        return Refusal(Reason.too_slow, f"misses TPOT by {late} even for a single request")


def _price(
    deployment: Deployment,
    offer: Offer,
    terms: Terms,
    curve: ReplicaCurve,
    capacity: Capacity,
    workload: Workload,
    limits: Limits,
    today: date,
) -> Candidate | Refusal:
    """A fleet of whole instances of one offer that carries the traffic."""
    if deployment.gpus > offer.gpus:
        has = "1 GPU" if offer.gpus == 1 else f"{offer.gpus} GPUs"
        return Refusal(Reason.instance_too_small, f"the instance has {has}, a replica needs {deployment.gpus}")
    shard_gb = shard(deployment).total / BYTES_PER_GB
    if offer.memory_gb is not None and offer.memory_gb < shard_gb:
        # Weights pass through the host on their way to the GPU, a rank's share at a time.
        reason = f"the host has {offer.memory_gb:g} GB, one GPU's weights take {shard_gb:.0f}"
        return Refusal(Reason.host_too_small, reason)
    # The last digit of a division must not cost a replica.
    replicas = max(1, math.ceil(workload.rate / (capacity.rate * limits.max_utilization) - 1e-9))
    instances = math.ceil(replicas / (offer.gpus // deployment.gpus))
    if limits.max_gpus and instances * offer.gpus > limits.max_gpus:
        paid = instances * offer.gpus
        return Refusal(Reason.too_many_gpus, f"takes {paid} GPUs; at most {limits.max_gpus} allowed")
    steady = curve.at_rate(workload.rate / replicas, capacity)
    tpot = interval(steady.tpot_s, "tpot", deployment)
    usd_per_hour = offer.price(terms) or 0.0
    bill = _bill(deployment, offer, usd_per_hour, instances, replicas, steady.utilization, capacity.prefill_share)
    usd_per_second = instances * usd_per_hour / SECONDS_PER_HOUR
    prices = split_by_gpu_time(
        usd_per_second, workload.rate, workload.input_tokens, workload.output_tokens, capacity.prefill_share
    )
    used = replicas * deployment.gpus / (instances * offer.gpus) * steady.utilization
    return Candidate(
        gpu=offer.gpu,
        gpus_per_replica=deployment.gpus,
        tp=deployment.tp,
        weights=deployment.weights,
        kv=deployment.kv,
        engine=deployment.engine.key,
        provider=offer.provider,
        region=offer.region,
        instance=offer.instance,
        terms=terms,
        instance_usd_per_hour=usd_per_hour,
        price_date=offer.date,
        price_stale=offer.is_stale(today),
        replicas=replicas,
        instances=instances,
        gpus_paid=instances * offer.gpus,
        batch=steady.batch,
        max_batch=capacity.batch,
        limited_by=capacity.limited_by,
        tpot_s=steady.tpot_s,
        tpot_range_s=(tpot.low, tpot.high),
        ttft_s=steady.ttft_s,
        utilization=steady.utilization,
        speed=speed_badge(deployment),
        capacity_requests_per_s=capacity.rate,
        usd_per_month=bill.usd,
        usd_per_mtok=prices,
        usd_per_mtok_usage=prices.blended * used,
        below_checkpoint=deployment.weights.is_below(deployment.model.served),
        bill=bill,
    )


def _bill(
    deployment: Deployment,
    offer: Offer,
    usd_per_hour: float,
    instances: int,
    replicas: int,
    utilization: float,
    prefill_share: float,
) -> CostTree:
    """A month of instances: what prompts take of the capacity, what answers take, what waits, what no replica uses.

    Prompts and answers are charged what they take at full load; what a smaller batch wastes is idle capacity.
    """
    gpu_hours = instances * offer.gpus * HOURS_PER_MONTH
    serving = replicas * deployment.gpus * HOURS_PER_MONTH
    working = serving * utilization
    shares = {
        "prefill": working * prefill_share,
        "decode": working * (1 - prefill_share),
        "idle": serving - working,
        UNUSED: gpu_hours - serving,
    }
    return CostTree(
        name=f"{instances}× {offer.provider} {offer.instance}",
        lines=tuple(
            CostLine(name=name, quantity=hours, unit="GPU-hour", usd_per_unit=usd_per_hour / offer.gpus)
            for name, hours in shares.items()
            if hours > 0
        ),
    )


def _cheapest_then_most_faithful(row: Candidate) -> tuple[float, int, float, str, str, str]:
    """At the same bill, to the cent, more bits win; then the fleet with more room."""
    cents = round(row.usd_per_month, 2)
    return cents, -row.weights.bits, row.usd_per_mtok_usage, row.provider, row.instance, row.region


def _reject(deployment: Deployment, refusal: Refusal, offer: Offer | None = None) -> Rejection:
    return Rejection(
        gpu=deployment.gpu.key,
        tp=deployment.tp,
        weights=deployment.weights,
        provider=offer.provider if offer else None,
        region=offer.region if offer else None,
        instance=offer.instance if offer else None,
        kind=refusal.kind,
        reason=refusal.reason,
    )
