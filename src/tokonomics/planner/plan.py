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
from tokonomics.nouns import Noun
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.candidates import deployments, weight_choices, why_not
from tokonomics.serving.steady import Capacity, MissesPromise, ReplicaCurve, Steady
from tokonomics.traffic.workload import Slo, Workload
from tokonomics.units import HOURS_PER_MONTH, SECONDS_PER_HOUR, percent, usd

DEFAULT_MAX_UTILIZATION = 0.7
"""The planning utilisation of the document this product starts from; a stand-in until bursts are simulated."""

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
    ttft_s: float
    utilization: float
    """Of the replicas' capacity under the promise."""
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
    reason: str


class Limits(Noun):
    """What the user will not go beyond."""

    max_utilization: float = Field(default=DEFAULT_MAX_UTILIZATION, ge=0.01, le=1)
    max_usd_per_gpu_hour: float | None = Field(default=None, gt=0)
    max_gpus: int | None = Field(default=None, gt=0)
    old_offers: bool = False
    """Also rank prices that are much older than the newest ones."""


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
    rejected: list[Rejection] = []
    hosts, refused = _usable(offers, terms, limits)
    rejected += refused
    for gpu_key, group in groupby(sorted(hosts, key=lambda offer: offer.gpu), key=lambda offer: offer.gpu):
        on_this_gpu = list(group)
        most_gpus = max(offer.gpus for offer in on_this_gpu)
        choices = deployments(model, find_gpu(gpu_key), engine, weights or weight_choices(model), kv, most_gpus)
        for deployment in choices:
            replica = _replica(deployment, workload, slo)
            if isinstance(replica, str):
                rejected.append(_reject(deployment, replica))
                continue
            for offer in on_this_gpu:
                reason = _cannot_host(deployment, offer)
                if reason:
                    rejected.append(_reject(deployment, reason, offer))
                    continue
                row = _price(deployment, offer, terms, *replica, workload, limits, today)
                if limits.max_gpus and row.gpus_paid > limits.max_gpus:
                    reason = f"takes {row.gpus_paid} GPUs; at most {limits.max_gpus} allowed"
                    rejected.append(_reject(deployment, reason, offer))
                else:
                    ranked.append(row)
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


def _usable(offers: Sequence[Offer], terms: Terms, limits: Limits) -> tuple[list[Offer], list[Rejection]]:
    """Offers with a price on these terms, recent and cheap enough; the others with their reason."""
    newest = max((offer.date for offer in offers), default=date.min)
    kept: list[Offer] = []
    refused: list[Rejection] = []
    for offer in offers:
        price = offer.usd_per_gpu_hour(terms)
        cap = limits.max_usd_per_gpu_hour
        if price is None:
            reason = f"no {terms.replace('_', '-')} price"
        elif cap is not None and price > cap:
            reason = f"{usd(price)} a GPU-hour, above {usd(cap)}"
        elif not limits.old_offers and offer.is_stale(newest):
            reason = f"price of {offer.date}: too old beside prices of {newest}"
        else:
            kept.append(offer)
            continue
        refused.append(
            Rejection(
                gpu=offer.gpu, provider=offer.provider, region=offer.region, instance=offer.instance, reason=reason
            )
        )
    return kept, refused


def _replica(deployment: Deployment, workload: Workload, slo: Slo) -> tuple[ReplicaCurve, Capacity] | str:
    """How one replica serves this traffic, or why it cannot."""
    reason = why_not(deployment, workload.input_tokens + workload.output_tokens)
    if reason:
        return reason
    curve = ReplicaCurve(deployment, workload.input_tokens, workload.output_tokens)
    try:
        return curve, curve.capacity(slo.tpot_s)
    except MissesPromise as miss:
        return f"misses TPOT by {percent(miss.tpot_s / miss.promised_s - 1)} even for a single request"


def _cannot_host(deployment: Deployment, offer: Offer) -> str | None:
    if deployment.gpus > offer.gpus:
        has = "1 GPU" if offer.gpus == 1 else f"{offer.gpus} GPUs"
        return f"the instance has {has}, a replica needs {deployment.gpus}"
    return None


def _price(
    deployment: Deployment,
    offer: Offer,
    terms: Terms,
    curve: ReplicaCurve,
    capacity: Capacity,
    workload: Workload,
    limits: Limits,
    today: date,
) -> Candidate:
    """A fleet of whole instances of one offer that carries the traffic."""
    # The last digit of a division must not cost a replica.
    replicas = max(1, math.ceil(workload.rate / (capacity.rate * limits.max_utilization) - 1e-9))
    instances = math.ceil(replicas / (offer.gpus // deployment.gpus))
    steady = curve.at(workload.rate / replicas, capacity)
    usd_per_hour = offer.price(terms) or 0.0
    bill = _bill(deployment, offer, usd_per_hour, instances, replicas, steady)
    usd_per_second = instances * usd_per_hour / SECONDS_PER_HOUR
    prices = split_by_gpu_time(
        usd_per_second, workload.rate, workload.input_tokens, workload.output_tokens, steady.prefill_share
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
        ttft_s=steady.ttft_s,
        utilization=steady.utilization,
        capacity_requests_per_s=capacity.rate,
        usd_per_month=bill.usd,
        usd_per_mtok=prices,
        usd_per_mtok_usage=prices.blended * used,
        below_checkpoint=deployment.weights.is_below(deployment.model.checkpoint),
        bill=bill,
    )


def _bill(
    deployment: Deployment, offer: Offer, usd_per_hour: float, instances: int, replicas: int, steady: Steady
) -> CostTree:
    """A month of instances: what computes prompts, what writes answers, what waits, what no replica uses."""
    gpu_hours = instances * offer.gpus * HOURS_PER_MONTH
    serving = replicas * deployment.gpus * HOURS_PER_MONTH
    working = serving * steady.utilization
    shares = {
        "prefill": working * steady.prefill_share,
        "decode": working * (1 - steady.prefill_share),
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
    """At the same bill, more bits win; then the fleet with more room."""
    return row.usd_per_month, -row.weights.bits, row.usd_per_mtok_usage, row.provider, row.instance, row.region


def _reject(deployment: Deployment, reason: str, offer: Offer | None = None) -> Rejection:
    return Rejection(
        gpu=deployment.gpu.key,
        tp=deployment.tp,
        weights=deployment.weights,
        provider=offer.provider if offer else None,
        region=offer.region if offer else None,
        instance=offer.instance if offer else None,
        reason=reason,
    )
