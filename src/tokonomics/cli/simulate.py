"""``tokonomics simulate`` and ``tokonomics capacity``: what a deployment does with traffic, and how much it holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli.answer import Answer, ChartFile, HtmlFile, check_files, give, working
from tokonomics.cli.output import Json, console
from tokonomics.cli.profile_flag import ProfileFile
from tokonomics.cli.serving_flags import (
    AutoscaleText,
    ByPriority,
    EngineName,
    Ep,
    GpuName,
    Kv,
    Link,
    MaxBatchedTokens,
    MaxSequences,
    Model,
    ModelArgument,
    NoPrefixCache,
    OutageTexts,
    Pp,
    PrefillReplicas,
    Replicas,
    RouterName,
    SloText,
    TimeoutText,
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
    ServegenModel,
    ServegenScale,
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

TraceName = Annotated[
    str | None, typer.Option("--trace", help="A request log, or a shipped sample such as azure-conv (docs/traffic.md).")
]

_WORTH_SHOWING = 200_000
"""Requests from which a simulation takes long enough for a progress bar."""
_CAPACITY_REQUESTS = 20_000
"""Requests of one trial: enough for a p99 that 200 requests lie beyond."""


def simulate(
    gpu: GpuName,
    model_name: ModelArgument = None,
    model: Model = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    trace: TraceName = None,
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
    servegen_model: ServegenModel = None,
    servegen_scale: ServegenScale = None,
    seed: Seed = 0,
    replicas: Replicas = 1,
    router: RouterName = "least-outstanding",
    autoscale: AutoscaleText = None,
    outage: OutageTexts = None,
    prefill_replicas: PrefillReplicas = 0,
    link: Link = None,
    timeout: TimeoutText = None,
    priority: ByPriority = False,
    no_prefix_cache: NoPrefixCache = False,
    max_sequences: MaxSequences = None,
    max_batched_tokens: MaxBatchedTokens = None,
    slo: SloText = None,
    usd_per_hour: UsdPerHour = None,
    save: Annotated[Path | None, typer.Option(help="Save what became of each request as .parquet.")] = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """Serve a request log on a deployment, request by request: latency, throughput, utilisation, cost.

    \b
    Examples:
      tokonomics simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --slo ttft_p99=0.5,tpot_p99=0.05
      tokonomics simulate --model llama-2-7b --gpu A100-80GB --arrivals poisson:2 --duration 1h --input 512 --output 99
      tokonomics simulate --model llama-3.1-70b --gpu H100 --tp 4 --trace log.jsonl --replicas 3 --router prefix-aware
      tokonomics simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --speed 8 --autoscale max=6,target=9,cold=9
      tokonomics simulate --model llama-3.1-8b --gpu L40S --trace azure-code --replicas 4 --outage replica=0,at=600
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, model_from, price_of, say_if_compiling, timeout_from
    from tokonomics.cli.traffic_flags import traffic_from
    from tokonomics.money.served import served_cost
    from tokonomics.report.simulate_charts import simulate_chart
    from tokonomics.report.simulate_view import simulate_view, what_serves
    from tokonomics.serving.outcome import moments, outcome
    from tokonomics.serving.records import save_records
    from tokonomics.serving.simulator import simulate as run
    from tokonomics.traffic.promises import parse_promises
    from tokonomics.traffic.save import check_save_path
    from tokonomics.units import plural

    check_files(chart, html)
    if save:
        check_save_path(save)
    promises = parse_promises(slo) if slo is not None else ()
    deployment = deployment_from(model_from(model_name, model), gpu, engine, tp, pp, ep, weights, kv)
    fleet = fleet_from(replicas, router, autoscale, outage, prefill_replicas, link)
    price = price_of(deployment, fleet, usd_per_hour)
    traffic = traffic_from(
        trace,
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
        servegen_model=servegen_model,
        servegen_scale=servegen_scale,
    )
    say_if_compiling()
    with _progress(len(traffic)) as on_arrivals:
        simulation = run(
            deployment,
            traffic,
            fleet,
            timeout_s=timeout_from(timeout),
            by_priority=priority,
            prefix_cache=not no_prefix_cache,
            max_sequences=max_sequences,
            max_batched_tokens=max_batched_tokens,
            seed=seed,
            progress=on_arrivals,
        )
    made = outcome(simulation, promises)
    cost = served_cost(made, *price) if price else None
    if save:
        save_records(simulation, save)
        typer.echo(f"requests saved to {save}", err=True)
    shown = {
        "deployment": str(deployment),
        **made.model_dump(mode="json"),
        "usd_per_mtok": cost.usd_per_mtok if cost else None,
        "cost": cost.model_dump(mode="json") if cost else None,
        "timeline": [each.model_dump(mode="json") for each in moments(simulation)],
        "wall_s": simulation.wall_s,
        "simulated_requests_per_s": made.requests / simulation.wall_s,
    }
    subtitle = f"{traffic.source}: {plural(made.requests, 'request')}, {traffic.rate:.3g} a second"
    served = what_serves(simulation)
    charts = {"What happens over time": lambda: simulate_chart(made, moments(simulation), served, subtitle)}
    answer = Answer(shown, lambda: simulate_view(simulation, made, cost), f"{served} under {traffic.source}", charts)
    give(answer, json=json, chart=chart, html=html)


def capacity(
    gpu: GpuName,
    model_name: ModelArgument = None,
    model: Model = None,
    tp: Tp = 1,
    pp: Pp = 1,
    ep: Ep = 1,
    weights: Weights = None,
    kv: Kv = "bf16",
    engine: EngineName = "vllm",
    trace: TraceName = None,
    columns: Columns = None,
    strict: Strict = False,
    start: From = None,
    end: To = None,
    sample: Sample = None,
    speed: Speed = None,
    arrivals: ArrivalsText = None,
    requests: Requests = None,
    input_text: InputText = None,
    output_text: OutputText = None,
    system_prompts: SystemText = None,
    sessions: SessionsText = None,
    tenants: TenantsText = None,
    seed: Seed = 0,
    router: RouterName = "least-outstanding",
    timeout: TimeoutText = None,
    priority: ByPriority = False,
    no_prefix_cache: NoPrefixCache = False,
    max_sequences: MaxSequences = None,
    max_batched_tokens: MaxBatchedTokens = None,
    slo: SloText = None,
    usd_per_hour: UsdPerHour = None,
    chart: ChartFile = None,
    html: HtmlFile = None,
    profile: ProfileFile = None,
    json: Json = False,
) -> None:
    """The highest rate one replica holds under a promise, and the replicas a request log needs; by simulation.

    \b
    Examples:
      tokonomics capacity --model llama-3.1-8b --gpu H100 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=0.05
      tokonomics capacity --model llama-3.1-70b --gpu H200 --tp 2 --weights fp8 --trace azure-conv --slo tpot_p99=40ms
      tokonomics capacity --model llama-3.1-8b --gpu L4 --arrivals gamma:1,cv=3 --input 500 --output 99 --slo ttft=1
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, model_from, price_of, say_if_compiling, timeout_from
    from tokonomics.cli.traffic_flags import traffic_from
    from tokonomics.money.served import served_cost
    from tokonomics.report.simulate_charts import capacity_chart
    from tokonomics.report.simulate_view import capacity_view
    from tokonomics.serving.capacity import highest_rate, replicas_needed
    from tokonomics.serving.simulator import Simulation
    from tokonomics.serving.simulator import simulate as run
    from tokonomics.traffic.promises import parse_promises

    check_files(chart, html)
    promises = parse_promises(slo) if slo is not None else ()
    deployment = deployment_from(model_from(model_name, model), gpu, engine, tp, pp, ep, weights, kv)
    made_up = trace is None
    traffic = traffic_from(
        trace,
        arrivals="poisson:1" if made_up and arrivals is None else arrivals,
        requests=_CAPACITY_REQUESTS if made_up and requests is None else requests,
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
    settings = {
        "timeout_s": timeout_from(timeout),
        "by_priority": priority,
        "prefix_cache": not no_prefix_cache,
        "max_sequences": max_sequences,
        "max_batched_tokens": max_batched_tokens,
        "seed": seed,
    }

    def serve(requests: "Trace", count: int = 1) -> Simulation:
        return run(deployment, requests, fleet_from(count, router, None, None, 0, None), **settings)  # type: ignore[arg-type]

    guess = _guessed_rate(deployment, traffic)
    say_if_compiling()
    with working("searching") as say:
        say("searching the highest rate of one replica")
        best = highest_rate(serve, traffic, promises, guess)
        needed = None
        if not made_up:
            say("searching the replicas this log needs")
            needed = replicas_needed(lambda count: serve(traffic, count), promises)
    fleet = fleet_from(needed.replicas if needed else 1, router, None, None, 0, None)
    price = price_of(deployment, fleet, usd_per_hour)
    cost = served_cost(needed.outcome if needed else best.outcome, *price) if price else None
    shown = {
        "deployment": str(deployment),
        "rate": best.rate,
        "replicas": needed.replicas if needed else None,
        "usd_per_mtok": cost.usd_per_mtok if cost else None,
        "highest_rate": best.model_dump(mode="json"),
        "replicas_needed": needed.model_dump(mode="json") if needed else None,
        "cost": cost.model_dump(mode="json") if cost else None,
    }
    points = [(trial.rate, trial.outcome) for trial in best.trials]
    charts = {"Latency as the rate grows": lambda: capacity_chart(points, str(deployment), traffic.source, best.rate)}
    view = lambda: capacity_view(deployment, traffic, best, needed, cost)  # noqa: E731
    give(Answer(shown, view, f"What {deployment} holds", charts), json=json, chart=chart, html=html)


def _guessed_rate(deployment: "Deployment", traffic: "Trace") -> float:
    """Where the search begins: half of what full batches of mean requests would finish."""
    from tokonomics.errors import BadInput
    from tokonomics.serving.simulator import requests_for, rules_for, too_long
    from tokonomics.serving.steady import ReplicaCurve

    rules = rules_for(deployment, traffic)
    served = ~too_long(requests_for(traffic, rules), rules)
    if not served.any():
        raise BadInput("every request is longer than the model's context or a replica's memory", where=traffic.source)
    inputs, outputs = (float(each[served].mean()) for each in (traffic.input_tokens, traffic.output_tokens))
    return ReplicaCurve(deployment, max(1, round(inputs)), max(1, round(outputs))).capacity().rate / 2


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal for simulations that take a while."""
    screen = console(stderr=True)
    if not screen.is_terminal or count < _WORTH_SHOWING:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=screen, transient=True) as bar:
        task = bar.add_task(f"serving {count:,} requests", total=count)
        yield lambda arrived: bar.update(task, completed=arrived)
