"""How much does a replica hold, and how many replicas does a log need?"""

from typing import TYPE_CHECKING

from tokonomics.errors import BadInput
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
from tokonomics.questions.serving import deployment_of, fleet_of, price_of, say_if_compiling, timeout_of
from tokonomics.questions.traffic import traffic_of, trial_of

if TYPE_CHECKING:
    from tokonomics.physics.deployment import Deployment
    from tokonomics.questions.results import CapacityResult
    from tokonomics.serving.simulator import Simulation
    from tokonomics.traffic.trace import Trace


class CapacityRequest(SomeModel, OneGpu, Layout, Traffic, Routed, Serving, Objectives, Priced, Profiled):
    """
    Examples:
      tokonomics capacity --model llama-3.1-8b --gpu H100 --input 1000 --output 300 --slo ttft_p99=0.5,tpot_p99=0.05
      tokonomics capacity --model llama-3.1-70b --gpu H200 --tp 2 --weights fp8 --trace azure-conv --slo tpot_p99=40ms
      tokonomics capacity --model llama-3.1-8b --gpu L4 --arrivals gamma:1,cv=3 --input 500 --output 99 --slo ttft=1
      tokonomics capacity chat.toml --gpu H200
    """


def capacity(request: CapacityRequest, listener: Listener = SILENT) -> "CapacityResult":
    """The highest rate of one replica under the latency targets, and the replicas a log needs."""
    from tokonomics.money.served import served_cost
    from tokonomics.questions.results import CapacityResult
    from tokonomics.serving.capacity import highest_rate, replicas_needed
    from tokonomics.serving.simulator import simulate as run

    targets = targets_of(request)
    deployment = deployment_of(request, request.model, request.gpu)
    price_of(deployment, fleet_of(1, request.router), request)  # mistakes before the search
    made_up = request.trace is None
    log = trial_of(request, listener) if made_up else traffic_of(request, listener)
    timeout_s = timeout_of(request.timeout)

    def serve(requests: "Trace", count: int = 1) -> "Simulation":
        return run(
            deployment,
            requests,
            fleet_of(count, request.router),
            timeout_s=timeout_s,
            by_priority=request.priority,
            prefix_cache=not request.no_prefix_cache,
            max_sequences=request.max_sequences,
            max_batched_tokens=request.max_batched_tokens,
            seed=request.seed,
        )

    guess = _guessed_rate(deployment, log)
    say_if_compiling(listener)
    listener.doing("searching the highest rate of one replica")
    best = highest_rate(serve, log, targets, guess)
    needed = None
    if not made_up:
        listener.doing("searching the replicas this log needs")
        needed = replicas_needed(lambda count: serve(log, count), targets)
    price = price_of(deployment, fleet_of(needed.replicas if needed else 1, request.router), request)
    cost = served_cost(needed.outcome if needed else best.outcome, *price) if price else None
    return CapacityResult(
        deployment=str(deployment),
        rate=best.rate,
        replicas=needed.replicas if needed else None,
        usd_per_mtok=cost.usd_per_mtok if cost else None,
        highest_rate=best,
        replicas_needed=needed,
        cost=cost,
        placed=deployment,
        log=log,
    )


def _guessed_rate(deployment: "Deployment", traffic: "Trace") -> float:
    """Where the search begins: half of what full batches of mean requests would finish."""
    from tokonomics.serving.simulator import requests_for, rules_for
    from tokonomics.serving.state import too_long
    from tokonomics.serving.steady import ReplicaCurve

    rules = rules_for(deployment, traffic)
    served = ~too_long(requests_for(traffic, rules), rules)
    if not served.any():
        raise BadInput("every request is longer than the model's context or a replica's memory", where=traffic.source)
    inputs, outputs = (float(tokens[served].mean()) for tokens in (traffic.input_tokens, traffic.output_tokens))
    return ReplicaCurve(deployment, max(1, round(inputs)), max(1, round(outputs))).capacity().rate / 2
