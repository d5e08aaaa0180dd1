"""``tokonomics simulate`` and ``tokonomics capacity``: what a deployment does with traffic, and how much it holds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokonomics.cli import flags
from tokonomics.cli.answer import Answer, working
from tokonomics.cli.groups import Layout, Market, Shown, Traffic, flat
from tokonomics.cli.output import console

if TYPE_CHECKING:
    from tokonomics.physics.deployment import Deployment
    from tokonomics.traffic.trace import Trace

Replicas = Annotated[int, typer.Option(min=1, max=10_000, help="Replicas behind the router.")]
AutoscaleText = Annotated[
    str | None,
    typer.Option("--autoscale", help="Replicas that come and go: max=8,target=32,cold=120,min=1."),
]
OutageTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--outage", help="A replica that fails: replica=0,at=600,for=300; or a spot one: …,notice=120,spot=1."
    ),
]
PrefillReplicas = Annotated[
    int, typer.Option(min=0, max=10_000, help="Replicas that compute prompts only and send the KV on (disaggregation).")
]
Link = Annotated[
    float | None, typer.Option(help="GB/s from a prefill GPU to a decode GPU.", show_default="50: 400 Gbit/s each")
]

_WORTH_SHOWING = 200_000
"""Requests from which a simulation takes long enough for a progress bar."""


@flat
def simulate(
    *,
    model_name: flags.ModelArgument = None,
    model: flags.Model = None,
    gpu: flags.GpuName,
    layout: Layout,
    trace: flags.TraceName = None,
    traffic: Traffic,
    replicas: Replicas = 1,
    router: flags.RouterName = "least-outstanding",
    autoscale: AutoscaleText = None,
    outage: OutageTexts = None,
    prefill_replicas: PrefillReplicas = 0,
    link: Link = None,
    timeout: flags.TimeoutText = None,
    priority: flags.ByPriority = False,
    no_prefix_cache: flags.NoPrefixCache = False,
    max_sequences: flags.MaxSequences = None,
    max_batched_tokens: flags.MaxBatchedTokens = None,
    slo: flags.SloText = None,
    usd_per_hour: flags.UsdPerHour = None,
    market: Market,
    save: Annotated[Path | None, typer.Option(help="Save what became of each request as .parquet.")] = None,
    shown: Shown,
) -> None:
    """Serve a request log on a deployment, request by request: latency, throughput, utilisation, cost.

    \b
    Examples:
      tokonomics simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --slo ttft_p99=0.5,tpot_p99=0.05
      tokonomics simulate --model llama-2-7b --gpu A100-80GB --arrivals poisson:2 --duration 1h --input 512 --output 99
      tokonomics simulate --model llama-3.1-70b --gpu H100 --tp 4 --trace log.jsonl --replicas 3 --router prefix-aware
      tokonomics simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --speed 8 --autoscale max=6,target=9,cold=9
      tokonomics simulate --model llama-3.1-8b --gpu L40S --trace azure-code --replicas 4 --outage replica=0,at=600
      tokonomics simulate chat.toml --replicas 2
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

    shown.check()
    if save:
        check_save_path(save)
    promises = parse_promises(slo) if slo is not None else ()
    deployment = deployment_from(model_from(model_name, model), gpu, layout)
    fleet = fleet_from(replicas, router, autoscale, outage, prefill_replicas, link)
    price = price_of(deployment, fleet, usd_per_hour, market)
    requests = traffic_from(trace, traffic)
    say_if_compiling()
    with _progress(len(requests)) as on_arrivals:
        simulation = run(
            deployment,
            requests,
            fleet,
            timeout_s=timeout_from(timeout),
            by_priority=priority,
            prefix_cache=not no_prefix_cache,
            max_sequences=max_sequences,
            max_batched_tokens=max_batched_tokens,
            seed=traffic.seed,
            progress=on_arrivals,
        )
    made = outcome(simulation, promises)
    cost = served_cost(made, *price) if price else None
    if save:
        save_records(simulation, save)
        typer.echo(f"requests saved to {save}", err=True)
    result = {
        "deployment": str(deployment),
        **made.model_dump(mode="json"),
        "usd_per_mtok": cost.usd_per_mtok if cost else None,
        "cost": cost.model_dump(mode="json") if cost else None,
        "timeline": [each.model_dump(mode="json") for each in moments(simulation)],
        "wall_s": simulation.wall_s,
        "simulated_requests_per_s": made.requests / simulation.wall_s,
    }
    subtitle = f"{requests.source}: {plural(made.requests, 'request')}, {requests.rate:.3g} a second"
    served = what_serves(simulation)
    charts = {"What happens over time": lambda: simulate_chart(made, moments(simulation), served, subtitle)}
    answer = Answer(result, lambda: simulate_view(simulation, made, cost), f"{served} under {requests.source}", charts)
    shown.give(answer)


@flat
def capacity(
    *,
    model_name: flags.ModelArgument = None,
    model: flags.Model = None,
    gpu: flags.GpuName,
    layout: Layout,
    trace: flags.TraceName = None,
    traffic: Traffic,
    router: flags.RouterName = "least-outstanding",
    timeout: flags.TimeoutText = None,
    priority: flags.ByPriority = False,
    no_prefix_cache: flags.NoPrefixCache = False,
    max_sequences: flags.MaxSequences = None,
    max_batched_tokens: flags.MaxBatchedTokens = None,
    slo: flags.SloText = None,
    usd_per_hour: flags.UsdPerHour = None,
    market: Market,
    shown: Shown,
) -> None:
    """The highest rate one replica holds under a promise, and the replicas a request log needs; by simulation.

    \b
    Examples:
      tokonomics capacity --model llama-3.1-8b --gpu H100 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=0.05
      tokonomics capacity --model llama-3.1-70b --gpu H200 --tp 2 --weights fp8 --trace azure-conv --slo tpot_p99=40ms
      tokonomics capacity --model llama-3.1-8b --gpu L4 --arrivals gamma:1,cv=3 --input 500 --output 99 --slo ttft=1
      tokonomics capacity chat.toml --gpu H200
    """
    from tokonomics.cli.choices import deployment_from
    from tokonomics.cli.serving_flags import fleet_from, model_from, price_of, say_if_compiling, timeout_from
    from tokonomics.cli.traffic_flags import traffic_from, trial_from
    from tokonomics.money.served import served_cost
    from tokonomics.report.simulate_charts import capacity_chart
    from tokonomics.report.simulate_view import capacity_view
    from tokonomics.serving.capacity import highest_rate, replicas_needed
    from tokonomics.serving.simulator import Simulation
    from tokonomics.serving.simulator import simulate as run
    from tokonomics.traffic.promises import parse_promises

    shown.check()
    promises = parse_promises(slo) if slo is not None else ()
    deployment = deployment_from(model_from(model_name, model), gpu, layout)
    price_of(deployment, fleet_from(1, router, None, None, 0, None), usd_per_hour, market)  # mistakes before the search
    made_up = trace is None
    log = trial_from(traffic) if made_up else traffic_from(trace, traffic)
    settings = {
        "timeout_s": timeout_from(timeout),
        "by_priority": priority,
        "prefix_cache": not no_prefix_cache,
        "max_sequences": max_sequences,
        "max_batched_tokens": max_batched_tokens,
        "seed": traffic.seed,
    }

    def serve(requests: "Trace", count: int = 1) -> Simulation:
        return run(deployment, requests, fleet_from(count, router, None, None, 0, None), **settings)  # type: ignore[arg-type]

    guess = _guessed_rate(deployment, log)
    say_if_compiling()
    with working("searching") as say:
        say("searching the highest rate of one replica")
        best = highest_rate(serve, log, promises, guess)
        needed = None
        if not made_up:
            say("searching the replicas this log needs")
            needed = replicas_needed(lambda count: serve(log, count), promises)
    fleet = fleet_from(needed.replicas if needed else 1, router, None, None, 0, None)
    price = price_of(deployment, fleet, usd_per_hour, market)
    cost = served_cost(needed.outcome if needed else best.outcome, *price) if price else None
    result = {
        "deployment": str(deployment),
        "rate": best.rate,
        "replicas": needed.replicas if needed else None,
        "usd_per_mtok": cost.usd_per_mtok if cost else None,
        "highest_rate": best.model_dump(mode="json"),
        "replicas_needed": needed.model_dump(mode="json") if needed else None,
        "cost": cost.model_dump(mode="json") if cost else None,
    }
    points = [(trial.rate, trial.outcome) for trial in best.trials]
    charts = {"Latency as the rate grows": lambda: capacity_chart(points, str(deployment), log.source, best.rate)}
    view = lambda: capacity_view(deployment, log, best, needed, cost)  # noqa: E731
    shown.give(Answer(result, view, f"What {deployment} holds", charts))


def _guessed_rate(deployment: "Deployment", traffic: "Trace") -> float:
    """Where the search begins: half of what full batches of mean requests would finish."""
    from tokonomics.errors import BadInput
    from tokonomics.serving.simulator import requests_for, rules_for
    from tokonomics.serving.state import too_long
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
