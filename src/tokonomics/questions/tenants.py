"""Answer what sharing a fleet among tenants saves, how it affects each of them, and who pays what."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokonomics.errors import BadInput, option, shorten
from tokonomics.levers.lora import LoraLever, lora_lever
from tokonomics.levers.tenancy import NoisyNeighbour, Pooling, Sharing, TenantRow, noisy_neighbour, pool
from tokonomics.money.attribution import ClassCost, Sale, SellPrice, SellTerms, break_even, sell_terms
from tokonomics.money.cost import split_by_gpu_time
from tokonomics.planner.class_report import ClassReport, class_report
from tokonomics.planner.parsing import router_from
from tokonomics.questions.deployment import classes_of, deployment_of, require_writer, targets_of
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import TenantsRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.serving import prices_of, say_if_compiling, within_context
from tokonomics.questions.traffic import traffic_of
from tokonomics.traffic.attribution import labels_in, values_of
from tokonomics.traffic.slo import ServiceClass
from tokonomics.traffic.tenants import classed, joined, present
from tokonomics.traffic.trace import Trace
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR, TOKENS_PER_MTOK, usd


class TenantSale(Noun):
    tenant: str
    hour: Sale  # revenue from its tokens against its part of the shared fleet's bill


class TenantsSale(Noun):
    """What an hour of the shared fleet earns, tenant by tenant."""

    usd_per_mtok: SellPrice
    tenants: tuple[TenantSale, ...]
    hour: Sale
    break_even_tokens_per_day: float | None  # of all tenants together, at this mix
    break_even_load: float | None  # as a share of full batches; None if that is not known


class LabelRow(Noun):
    """The share of the fleet's bill for requests with one value of a label."""

    value: str
    requests: int
    tokens: int
    pays_usd_per_hour: float


class LabelCost(Noun):
    """The bill of the shared fleet by one label, largest first."""

    label: str
    values: tuple[LabelRow, ...]


class TenantsResult(Result, Pooling):
    """One fleet for all tenants, or one for each."""

    by: tuple[LabelCost, ...] = ()  # if tenants are named by several labels: each label alone
    noisy_neighbour: NoisyNeighbour
    lora: LoraLever | None
    price_from: str
    sale: TenantsSale | None = None  # what the shared fleet earns, if a price or a margin is given
    classes: ClassReport | None = None
    """What each class of service gets and pays on the shared fleet, if there are any."""
    targets: Any = beside()

    def plain(self) -> Any:
        return super().plain() | {"gain": self.gain, "saved_share": self.bill.saved_share}


_TAKES_A_WHILE = 400_000  # with this many requests, about twenty simulations take more than half a minute


def tenants(request: TenantsRequest, listener: Listener = SILENT) -> TenantsResult:
    """Compare one fleet for all tenants with one for each: replicas, latency, a noisy neighbour, and who pays what."""
    rank = request.lora_rank
    if request.lora_adapters and not rank:
        fix = f"Give {option('lora_rank', 16)}."
        raise BadInput("needs a rank as well", field="lora_adapters", fix=fix)
    targets, terms = targets_of(request), sell_terms(request.sell, request.margin)
    own = shared = deployment_of(request, request.model, request.gpu)
    require_writer(own.model)
    requests = within_context(_requests(request, own.model.max_context, listener), own, listener)
    requests = classed(requests, _classes_of(request), request.seed)
    if rank:
        senders = len(present(requests))
        count = request.lora_adapters or senders
        if count < senders:
            raise BadInput(f"{senders} tenants need one each", field="lora_adapters")
        shared = deployment_of(request, request.model, request.gpu, rank, count)
        # Each sender has one adapter; more are held, and none uses them here.
        shared = shared.model_copy(update={"lora_in_batch": float(senders)})
    price = prices_of(own, request)
    router = None if request.router is None else router_from(request.router)
    sharing = Sharing(
        shared, own, requests, targets, lambda count: price(count)[0], router, request.priority, request.seed,
        request.headroom or 0.0,
    )  # fmt: skip
    say_if_compiling(listener)
    if len(requests) > _TAKES_A_WHILE:
        part = f"{option('start')} and {option('end')} take a part"
        listener.note(f"{len(requests):,} requests are simulated some twenty times; {part}")
    listener.doing("searching")
    pooling = pool(sharing, listener.doing)
    sold = {"sale": _sold(pooling, terms)} if terms else {}
    return TenantsResult(
        **dict(pooling),
        **sold,
        by=_by_label(labels_in(request.by or ()), pooling.tenants),
        noisy_neighbour=noisy_neighbour(sharing, pooling, say=listener.doing),
        lora=lora_lever(sharing, pooling) if rank else None,
        price_from=price_text(price(pooling.apart.replicas), price(pooling.together.replicas)),
        classes=_classes(sharing, pooling),
        targets=targets,
    )


def _classes_of(request: TenantsRequest) -> tuple[ServiceClass, ...]:
    """Return the classes of service; a tenant is in one of them."""
    classes = classes_of(request)
    if drawn := next((one.name for one in classes if one.share is not None), None):
        fix = f"Name them: {option('classes', 'gold,tenants=acme')}."
        raise BadInput(
            f"{shorten(drawn)} is a share of the requests, and here classes have tenants", field="classes", fix=fix
        )
    return classes


def _classes(sharing: Sharing, pooling: Pooling) -> ClassReport | None:
    """Return what each class gets on the shared fleet; it pays what its tenants pay."""
    trace = sharing.trace
    if trace.service is None or trace.tenant is None:
        return None
    service = {trace.tenants[tenant]: int(place) for tenant, place in zip(trace.tenant, trace.service, strict=True)}
    hours, bills = pooling.duration_s / SECONDS_PER_HOUR, []
    for place, one in enumerate(trace.classes):
        own = [row for row in pooling.tenants if service[row.tenant] == place]
        used, unused = (math.fsum(getattr(row, f"{name}_usd_per_hour") for row in own) for name in ("usage", "unused"))
        tokens = sum(row.tokens for row in own)
        mtok = (used + unused) * hours / tokens * TOKENS_PER_MTOK if tokens and hours else None
        parts = {"used_usd": used, "unused_usd": unused, "usd": used + unused}
        bills.append(ClassCost(name=one.name, tokens=tokens, **parts, usd_per_mtok=mtok))
    made = sharing.serve(trace, pooling.sized)
    return class_report(lambda times: sharing.serve(trace.faster(times), pooling.sized), made, bills, "an hour")


def _sold(pooling: Pooling, terms: SellTerms) -> TenantsSale:
    """Return an hour's sales of the shared fleet: tokens sent are sold; a tenant's cost is its share of the bill."""
    hours = pooling.duration_s / SECONDS_PER_HOUR
    kinds = ("input_tokens", "output_tokens", "cached_tokens")
    tokens = [sum(getattr(row, name) for row in pooling.tenants) for name in kinds]
    per_s = [count / pooling.duration_s for count in tokens[:2]]
    cost = split_by_gpu_time(
        pooling.together.usd_per_hour / SECONDS_PER_HOUR, 1.0, per_s[0], per_s[1], pooling.prompt_share
    )
    price = terms.price_over(cost.input, cost.output)
    sales = [
        TenantSale(
            tenant=row.tenant,
            hour=Sale(
                revenue_usd=price.revenue(*(getattr(row, name) for name in kinds)) / hours,
                cost_usd=row.pays_usd_per_hour,
            ),
        )
        for row in pooling.tenants
    ]
    hour = Sale(revenue_usd=price.revenue(*tokens) / hours, cost_usd=pooling.together.usd_per_hour)
    tokens_per_day, at_load = break_even(hour, sum(per_s), pooling.together.load_share)
    return TenantsSale(
        usd_per_mtok=price,
        tenants=tuple(sales),
        hour=hour,
        break_even_tokens_per_day=tokens_per_day,
        break_even_load=at_load,
    )


def _by_label(labels: Sequence[str], rows: Sequence[TenantRow]) -> tuple[LabelCost, ...]:
    """Return what tenants pay by each label alone, if they are named by several; each sums to the whole bill."""
    bills = []
    for place, label in enumerate(labels if len(labels) > 1 else ()):
        values: dict[str, list[TenantRow]] = {}
        for row in rows:
            values.setdefault(values_of(row.tenant, len(labels))[place], []).append(row)
        lines = [
            LabelRow(
                value=value,
                requests=sum(row.requests for row in own),
                tokens=sum(row.tokens for row in own),
                pays_usd_per_hour=math.fsum(row.pays_usd_per_hour for row in own),
            )
            for value, own in values.items()
        ]
        bills.append(LabelCost(label=label, values=tuple(sorted(lines, key=lambda line: -line.pays_usd_per_hour))))
    return tuple(bills)


def _requests(request: TenantsRequest, context: int, listener: Listener) -> Trace:
    """Return the requests of one log with tenants, of a log for each tenant, or generated ones."""
    logs: Sequence[str] = request.trace or ()
    if len(logs) > 1 and request.by:
        raise BadInput("is for one log: of several, each is a tenant", field="by")
    traces = [traffic_of(request.model_copy(update={"trace": log}), listener, context) for log in logs or (None,)]
    return joined(traces, _file_names(logs)) if len(traces) > 1 else traces[0]


def _file_names(paths: Sequence[str]) -> list[str]:
    """Name each tenant after its file, after its path if two files share a name, with a number if it comes again."""
    short = [Path(path).name.split(".")[0] for path in paths]
    names = short if len(set(short)) == len(short) or len(set(paths)) == 1 else list(paths)
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} ({again + 1})" if again else name for name, again in zip(names, before, strict=True)]


def price_text(apart: tuple[float, str], together: tuple[float, str]) -> str:
    """Name the source of the price; both if the cheapest machines differ between the two fleets."""
    if (usd(apart[0]), apart[1]) == (usd(together[0]), together[1]):
        return apart[1]
    machines = "whole machines are paid for, and which are cheapest depends on how many replicas stand on them"
    return f"{usd(apart[0])} apart ({apart[1]}), {usd(together[0])} together ({together[1]}): {machines}"
