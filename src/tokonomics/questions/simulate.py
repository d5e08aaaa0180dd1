"""What does a deployment do with traffic, request by request?"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.questions.inputs import (
    Layout,
    Objectives,
    OneGpu,
    Priced,
    Profiled,
    Routed,
    Serving,
    SomeModel,
    Traffic,
)
from tokonomics.questions.listener import SILENT, Listener
from tokonomics.questions.load import targets_of
from tokonomics.questions.request import Kind, Number, Text, Texts, Whole, declared
from tokonomics.questions.serving import deployment_of, fleet_of, price_of, say_if_compiling, timeout_of
from tokonomics.questions.traffic import traffic_of

if TYPE_CHECKING:
    from tokonomics.questions.results import SimulateResult

_WORTH_COUNTING = 200_000
"""Requests from which a simulation takes long enough for a progress bar."""


class SimulateRequest(SomeModel, OneGpu, Layout, Traffic, Routed, Serving, Objectives, Priced, Profiled):
    """
    Examples:
      tokonomics simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --slo ttft_p99=0.5,tpot_p99=0.05
      tokonomics simulate --model llama-2-7b --gpu A100-80GB --arrivals poisson:2 --duration 1h --input 512 --output 99
      tokonomics simulate --model llama-3.1-70b --gpu H100 --tp 4 --trace log.jsonl --replicas 3 --router prefix-aware
      tokonomics simulate --model llama-3.1-8b --gpu H100 --trace azure-conv --speed 8 --autoscale max=6,target=9,cold=9
      tokonomics simulate --model llama-3.1-8b --gpu L40S --trace azure-code --replicas 4 --outage replica=0,at=600
      tokonomics simulate chat.toml --replicas 2
    """

    replicas: Whole = declared(1, "Replicas behind the router.", low=1, high=10_000, example=2)
    autoscale: Text | None = declared(
        None,
        "Replicas that come and go: max=8,target=32,cold=120,min=1.",
        example="max=8,target=32,cold=120",
    )
    outage: Texts | None = declared(
        None,
        "A replica that fails: replica=0,at=600,for=300; or a spot one: …,notice=120,spot=1.",
        example=["replica=0,at=600"],
    )
    prefill_replicas: Whole = declared(
        0, "Replicas that compute prompts only and send the KV on (disaggregation).", low=0, high=10_000
    )
    link: Number | None = declared(
        None, "GB/s from a prefill GPU to a decode GPU.", without="50: 400 Gbit/s each", example=50.0
    )
    save: Text | None = declared(
        None,
        "Save what became of each request as .parquet.",
        kind=Kind.FILE,
        writes=True,
        example="requests.parquet",
    )


def simulate(request: SimulateRequest, listener: Listener = SILENT) -> "SimulateResult":
    """Latency, throughput, utilisation and cost of every request served one by one."""
    from tokonomics.money.served import served_cost
    from tokonomics.questions.results import SimulateResult
    from tokonomics.serving.outcome import moments, outcome, save_records
    from tokonomics.serving.simulator import simulate as run
    from tokonomics.traffic.trace import check_save_path

    save = Path(request.save) if request.save else None
    if save:
        check_save_path(save)
    targets = targets_of(request)
    deployment = deployment_of(request, request.model, request.gpu)
    fleet = fleet_of(
        request.replicas, request.router, request.autoscale, request.outage, request.prefill_replicas, request.link
    )
    price = price_of(deployment, fleet, request)
    requests = traffic_of(request, listener)
    say_if_compiling(listener)
    count = len(requests)
    simulation = run(
        deployment,
        requests,
        fleet,
        timeout_s=timeout_of(request.timeout),
        by_priority=request.priority,
        prefix_cache=not request.no_prefix_cache,
        max_sequences=request.max_sequences,
        max_batched_tokens=request.max_batched_tokens,
        seed=request.seed,
        progress=listener.counting(f"serving {count:,} requests", count) if count >= _WORTH_COUNTING else None,
    )
    found = outcome(simulation, targets)
    cost = served_cost(found, *price) if price else None
    if save:
        save_records(simulation, save)
        listener.note(f"requests saved to {save}")
    return SimulateResult(
        deployment=str(deployment),
        **dict(found),
        usd_per_mtok=cost.usd_per_mtok if cost else None,
        cost=cost,
        timeline=tuple(moments(simulation)),
        wall_s=simulation.wall_s,
        simulated_requests_per_s=found.requests / simulation.wall_s,
        simulation=simulation,
        log=requests,
    )
