"""``tokonomics tenants``: what sharing a fleet among tenants saves, does to each of them, and who pays what."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give, working
from tokonomics.cli.output import Json
from tokonomics.cli.profile_flag import ProfileFile
from tokonomics.cli.serving_flags import (
    ByPriority,
    EngineName,
    Ep,
    GpuName,
    Kv,
    Model,
    ModelArgument,
    Pp,
    RouterName,
    SloText,
    Tp,
    UsdPerHour,
    Weights,
)
from tokonomics.cli.traffic_flags import (
    ArrivalsText,
    Columns,
    Duration,
    From,
    InputText,
    OutputText,
    Requests,
    Sample,
    Seed,
    SessionsText,
    Speed,
    Strict,
    SystemText,
    TenantsText,
    To,
)

if TYPE_CHECKING:
    from tokonomics.physics.deployment import Deployment
    from tokonomics.traffic.trace import Trace

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


def tenants(
    gpu: GpuName,
    model_name: ModelArgument = None,
    model: Model = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    trace: TraceNames = None,
    columns: Columns = None,
    strict: Strict = False,
    start: From = None,
    end: To = None,
    sample: Sample = None,
    speed: Speed = None,
    arrivals: ArrivalsText = None,
    requests: Requests = None,
    duration: Duration = None,
    input_text: InputText = None,
    output_text: OutputText = None,
    system_prompts: SystemText = None,
    sessions: SessionsText = None,
    tenants: TenantsText = None,
    seed: Seed = 0,
    router: RouterName = "least-outstanding",
    priority: ByPriority = False,
    slo: SloText = None,
    lora_rank: LoraRank = 0,
    lora_adapters: LoraAdapters = None,
    usd_per_hour: UsdPerHour = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """One fleet for all tenants, or one for each: replicas, latency, a noisy neighbour, and who pays what.

    \b
    Examples:
      tokonomics tenants --model llama-3.1-8b --gpu H100 --trace log.csv --columns tenant=customer --slo ttft_p99=0.5
      tokonomics tenants --model llama-3.1-8b --gpu H100 --trace team-a.csv --trace team-b.csv --slo ttft_p99=0.5
      tokonomics tenants --model llama-3.1-8b --gpu L4 --arrivals diurnal:2,peak=3 --duration 1d --tenants 10,skew=1
        --input 500 --output 100 --slo ttft_p99=1
      tokonomics tenants --model llama-3.1-70b --gpu H200 --tp 2 --trace log.csv --lora-rank 16 --lora-adapters 50
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, model_from, say_if_compiling
    from tokonomics.cli.traffic_flags import traffic_from
    from tokonomics.errors import BadInput
    from tokonomics.money.levers.lora import lora_lever
    from tokonomics.money.levers.noisy_neighbour import noisy_neighbour
    from tokonomics.money.levers.tenancy import Sharing, pool
    from tokonomics.report.tenants_charts import tenants_chart
    from tokonomics.report.tenants_view import tenants_view
    from tokonomics.traffic.promises import parse_promises
    from tokonomics.traffic.tenants import joined, present

    check_files(chart, html)
    if lora_adapters and not lora_rank:
        raise BadInput("needs a rank as well", where="--lora-adapters", fix="Give --lora-rank 16.")
    promises = parse_promises(slo) if slo is not None else ()

    def read(name: str | None) -> "Trace":
        return traffic_from(
            name,
            arrivals=arrivals,
            requests=requests,
            duration=duration,
            input_text=input_text,
            output_text=output_text,
            system_prompts=system_prompts,
            sessions=sessions,
            tenants=tenants,
            speed=speed,
            sample=sample,
            start=start,
            end=end,
            seed=seed,
            columns=columns,
            strict=strict,
        )

    if trace and len(trace) > 1:
        traffic = joined([read(each) for each in trace], _file_names(trace))
    else:
        traffic = read(trace[0] if trace else None)
    own = deployment_from(model_from(model_name, model), gpu, engine, tp, pp, ep, weights, kv)
    shared = own
    if lora_rank:
        senders = len(present(traffic))
        count = lora_adapters or senders
        if count < senders:
            raise BadInput(f"{senders} tenants need one each", where="--lora-adapters")
        shared = deployment_from(
            model_from(model_name, model),
            gpu,
            engine,
            tp,
            pp,
            ep,
            weights,
            kv,
            lora_rank=lora_rank,
            lora_adapters=count,
        )
    price = _prices(own, usd_per_hour)
    fleet = fleet_from(1, router, None, None, 0, None)
    sharing = Sharing(shared, own, traffic, promises, lambda count: price(count)[0], fleet.router, priority, seed)
    say_if_compiling()
    if len(traffic) > _TAKES_A_WHILE:
        typer.echo(f"{len(traffic):,} requests are simulated some twenty times; --from and --to take a part", err=True)
    with working("searching") as say:
        pooling = pool(sharing, say)
        noisy = noisy_neighbour(sharing, pooling, say=say)
    price_from = _price_text(price(pooling.apart.replicas), price(pooling.together.replicas))
    adapters = lora_lever(sharing, pooling) if lora_rank else None
    shown = {
        **pooling.model_dump(mode="json"),
        "gain": pooling.gain,
        "saved_share": pooling.bill.saved_share,
        "noisy_neighbour": noisy.model_dump(mode="json"),
        "lora": adapters.model_dump(mode="json") if adapters else None,
        "price_from": price_from,
    }
    charts = {"Shared or apart": lambda: tenants_chart(pooling, noisy, promises)}
    view = partial(tenants_view, pooling, noisy, adapters, price_from)
    give(Answer(shown, view, "One fleet for all tenants", charts), json=json, chart=chart, html=html)


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


def _prices(deployment: "Deployment", usd_per_hour: float | None) -> Callable[[int], tuple[float, str]]:
    """Dollars an hour of a replica among so many, and whose price it is.

    All of them, shared or not, stand on the same owner's machines.
    """
    from tokonomics.cli.serving_flags import fleet_from, price_of
    from tokonomics.errors import BadInput

    def of(count: int) -> tuple[float, str]:
        found = price_of(deployment, fleet_from(count, "least-outstanding", None, None, 0, None), usd_per_hour)
        if found is None:
            raise BadInput(
                f"nobody is known to sell {deployment.gpu.key}", where="--usd-per-hour", fix="Give its price."
            )
        return found

    of(1)
    return of
