"""``tokonomics tenants``: what sharing a fleet among tenants saves, does to each of them, and who pays what."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, working
from tokonomics.cli.groups import Layout, Market, Shown, Traffic, flat

TraceNames = Annotated[
    list[str] | None,
    typer.Option("--trace", help="Log with a tenant column, or a shipped sample; several: one for each tenant."),
]
LoraRank = Annotated[int, typer.Option(min=0, help="Each tenant has a LoRA adapter of this rank on the shared base.")]
LoraAdapters = Annotated[
    int | None, typer.Option(min=1, help="Adapters loaded on each replica.", show_default="one for each tenant")
]
_TAKES_A_WHILE = 400_000
"""Requests from which some twenty simulations of all of them take more than half a minute."""


@flat
def tenants(
    *,
    model_name: flags.ModelArgument = None,
    model: flags.Model = None,
    gpu: flags.GpuName,
    layout: Layout,
    trace: TraceNames = None,
    traffic: Traffic,
    router: flags.RouterName = "least-outstanding",
    priority: flags.ByPriority = False,
    slo: flags.SloText = None,
    lora_rank: LoraRank = 0,
    lora_adapters: LoraAdapters = None,
    usd_per_hour: flags.UsdPerHour = None,
    market: Market,
    shown: Shown,
) -> None:
    """One fleet for all tenants, or one for each: replicas, latency, a noisy neighbour, and who pays what.

    \b
    Examples:
      tokonomics tenants --model llama-3.1-8b --gpu H100 --trace log.csv --columns tenant=customer --slo ttft_p99=0.5
      tokonomics tenants --model llama-3.1-8b --gpu H100 --trace team-a.csv --trace team-b.csv --slo ttft_p99=0.5
      tokonomics tenants llama-3.1-8b --gpu L4 --tenants 10,skew=1 --rate 4 --input 500 --output 100 --slo ttft_p99=1
      tokonomics tenants --model llama-3.1-70b --gpu H200 --tp 2 --trace log.csv --lora-rank 16 --lora-adapters 50
      tokonomics tenants chat.toml --tenants 10,skew=1
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, model_from, prices_of, say_if_compiling
    from tokonomics.cli.traffic_flags import traffic_from
    from tokonomics.errors import BadInput
    from tokonomics.planner.levers.lora import lora_lever
    from tokonomics.planner.levers.noisy_neighbour import noisy_neighbour
    from tokonomics.planner.levers.tenancy import Sharing, pool
    from tokonomics.report.tenants_charts import tenants_chart
    from tokonomics.report.tenants_view import tenants_view
    from tokonomics.traffic.promises import parse_promises
    from tokonomics.traffic.tenants import joined, present

    shown.check()
    if lora_adapters and not lora_rank:
        raise BadInput("needs a rank as well", where="--lora-adapters", fix="Give --lora-rank 16.")
    promises = parse_promises(slo) if slo is not None else ()

    if trace and len(trace) > 1:
        requests = joined([traffic_from(each, traffic) for each in trace], _file_names(trace))
    else:
        requests = traffic_from(trace[0] if trace else None, traffic)
    own = deployment_from(model_from(model_name, model), gpu, layout)
    shared = own
    if lora_rank:
        senders = len(present(requests))
        count = lora_adapters or senders
        if count < senders:
            raise BadInput(f"{senders} tenants need one each", where="--lora-adapters")
        shared = deployment_from(model_from(model_name, model), gpu, layout, lora_rank, count)
    price = prices_of(own, usd_per_hour, market)
    fleet = fleet_from(1, router, None, None, 0, None)
    sharing = Sharing(
        shared, own, requests, promises, lambda count: price(count)[0], fleet.router, priority, traffic.seed
    )
    say_if_compiling()
    if len(requests) > _TAKES_A_WHILE:
        typer.echo(f"{len(requests):,} requests are simulated some twenty times; --from and --to take a part", err=True)
    with working("searching") as say:
        pooling = pool(sharing, say)
        noisy = noisy_neighbour(sharing, pooling, say=say)
    price_from = _price_text(price(pooling.apart.replicas), price(pooling.together.replicas))
    adapters = lora_lever(sharing, pooling) if lora_rank else None
    result = {
        **pooling.model_dump(mode="json"),
        "gain": pooling.gain,
        "saved_share": pooling.bill.saved_share,
        "noisy_neighbour": noisy.model_dump(mode="json"),
        "lora": adapters.model_dump(mode="json") if adapters else None,
        "price_from": price_from,
    }
    charts = {"Shared or apart": lambda: tenants_chart(pooling, noisy, promises)}
    view = partial(tenants_view, pooling, noisy, adapters, price_from)
    shown.give(Answer(result, view, "One fleet for all tenants", charts))


def _file_names(paths: list[str]) -> list[str]:
    """A tenant is called like its file; like its path where two files share a name; numbered where it comes again."""
    short = [Path(each).name.split(".")[0] for each in paths]
    names = short if len(set(short)) == len(short) or len(set(paths)) == 1 else paths
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return [f"{name} ({again + 1})" if again else name for name, again in zip(names, before, strict=True)]


def _price_text(apart: tuple[float, str], together: tuple[float, str]) -> str:
    """Whose price it is; both where fleets of these sizes are cheapest on different machines."""
    from tokonomics.units import usd

    if (usd(apart[0]), apart[1]) == (usd(together[0]), together[1]):
        return apart[1]
    machines = "whole machines are paid for, and which are cheapest depends on how many replicas stand on them"
    return f"{usd(apart[0])} apart ({apart[1]}), {usd(together[0])} together ({together[1]}): {machines}"
