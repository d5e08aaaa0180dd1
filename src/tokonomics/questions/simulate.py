"""Answer what a deployment does with traffic, and how much it holds: ``simulate`` and ``capacity``."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import NonNegativeFloat

from tokonomics.catalog.models import ModelSpec
from tokonomics.errors import BadInput
from tokonomics.files import check_path
from tokonomics.money.attribution import class_bills
from tokonomics.money.trace_bills import ServedCost, served_cost, served_cost_apart
from tokonomics.physics.deployment import Deployment
from tokonomics.planner.class_report import ClassReport, OneSlo, class_report, run_bill, slo_texts
from tokonomics.planner.parsing import router_from
from tokonomics.questions.deployment import (
    NO_ANSWERS,
    check_jobs,
    check_pauses,
    classes_of,
    deployment_of,
    encodes,
    targets_of,
    trace_for,
)
from tokonomics.questions.load import lasting
from tokonomics.questions.request import SILENT, Listener
from tokonomics.questions.requests.traffic import CapacityRequest, SimulateRequest
from tokonomics.questions.result import Result, beside
from tokonomics.questions.serving import (
    apart,
    check_servable,
    drafting,
    fleet_of,
    price_of,
    prices_apart,
    say_if_compiling,
    timeout_of,
    within_context,
)
from tokonomics.questions.traffic import traffic_of, trial_of
from tokonomics.serving.class_outcome import FirstAnswer, simulated
from tokonomics.serving.loop import Watcher
from tokonomics.serving.outcome import Moment, Outcome, SideOutcome, moments, outcome, save_records, sides
from tokonomics.serving.playback import Playback, playback
from tokonomics.serving.simulator import Simulation, requests_for, rules_for
from tokonomics.serving.simulator import simulate as run
from tokonomics.serving.state import REFUSED, too_long
from tokonomics.serving.steady import ReplicaCurve
from tokonomics.sizing.attempt import attempt
from tokonomics.sizing.load import Load, load_of_requests
from tokonomics.sizing.screen import late_by_pauses
from tokonomics.sizing.search import HighestRate, NeverHolds, ReplicasNeeded, highest_rate, replicas_needed
from tokonomics.sizing.setup import Handling, Setup
from tokonomics.traffic.generate import ENOUGH_REQUESTS
from tokonomics.traffic.slo import Slo
from tokonomics.traffic.tenants import classed, strictest, without_classes
from tokonomics.traffic.trace import Trace
from tokonomics.traffic.workload import lengths_text, parse_thinking
from tokonomics.types import Noun, copied
from tokonomics.units import plural, requests_a_second, seconds, usd


class SimulateResult(Result, Outcome):
    """A simulation in figures, its bill, and its course over time."""

    deployment: str
    usd_per_mtok: float | None  # the whole bill over all tokens; None if no price is known
    cost: ServedCost | None
    usd_per_job: float | None = None
    """Paid while the sessions arrive, over the finished ones; None if there are none, or no price is known."""
    thinking: FirstAnswer | None = None  # when the answers of a reasoning model begin, and what their tokens cost
    lengths: str = ""  # how long prompts and answers are, in words
    too_long: int = 0  # requests refused because they are longer than the model's context
    sides: tuple[SideOutcome, ...] = ()  # the two sides of a disaggregated fleet: prefill, then decode
    classes: ClassReport | None = None  # what each class of service gets and pays, if there are any
    timeline: tuple[Moment, ...]
    playback: Playback | None = None  # the run moment by moment, and who missed the SLO, if asked for
    wall_s: float
    simulated_requests_per_s: float

    hopeless: Any = beside()  # why no hardware meets the SLOs (``NotServed``); None if some might
    simulation: Any = beside()
    log: Any = beside()

    def plain(self) -> Any:
        found = super().plain()
        return {"deployment": found.pop("deployment"), **found}

    def headline(self) -> str:
        price = "no price" if self.usd_per_mtok is None else f"{usd(self.usd_per_mtok)} per Mtok"
        times = [(name, spread.p99) for name, spread in (("TTFT", self.ttft_s), ("TPOT", self.tpot_s))]
        latency = "".join(f", {name} p99 {seconds(value)}" for name, value in times if value is not None)
        missed = ", ".join(target.slo for target in self.slo if not target.met)
        verdict = "" if self.slo_met is None else f"; {missed} missed" if missed else "; every SLO met"
        return f"{self.deployment}: {price}{latency}; {plural(self.requests, 'request')}{verdict}"


class SessionsAtOnce(Noun):
    """How many sessions are under way at a time, on average, at the highest rate that one replica holds."""

    replica: NonNegativeFloat
    gpu: NonNegativeFloat
    machine: NonNegativeFloat | None  # with as many replicas as its GPUs hold; None if a replica takes several
    usd_per_hour: NonNegativeFloat | None  # for each dollar an hour; None without a price


class CapacityResult(Result):
    """The highest rate of one replica, and the replicas that a log needs."""

    ROWS = "highest_rate.trials"

    deployment: str
    rate: float  # requests a second that one replica serves
    replicas: int | None  # for the log at its own rate; None for generated requests
    usd_per_mtok: float | None
    usd_per_job: float | None = None  # for sessions: paid while they arrive, over the finished ones
    at_once: SessionsAtOnce | None = None  # of sessions
    lengths: str = ""  # how long prompts and answers are, in words
    highest_rate: HighestRate
    replicas_needed: ReplicasNeeded | None
    cost: ServedCost | None
    classes: ClassReport | None = None  # what each class of service gets and pays at that rate, if there are any

    placed: Any = beside()
    log: Any = beside()

    def headline(self) -> str:
        price = "" if self.usd_per_mtok is None else f", {usd(self.usd_per_mtok)} per Mtok"
        needed = "" if self.replicas is None else f"; this log needs {plural(self.replicas, 'replica')}"
        breaks = self.highest_rate.breaks
        holds = requests_a_second(f"{self.rate:.3g}")
        return f"{self.deployment}: {holds} a replica, then {breaks}{needed}{price}"


_WORTH_COUNTING = 200_000  # with this many requests, a simulation is long enough for a progress bar


def simulate(request: SimulateRequest, listener: Listener = SILENT) -> SimulateResult:
    """Serve every request one by one, and return latency, throughput, utilisation and cost."""
    save = Path(request.save) if request.save else None
    if save:
        check_path(save, "save", (".parquet",))
    targets = targets_of(request)
    plain = deployment_of(request, request.model, request.gpu, images=request.images)
    deployment = drafting(plain, request, listener)
    thinking = parse_thinking(request.thinking, deployment.model.reasons)
    fleet = fleet_of(request.replicas, request.router, request.autoscale, request.outage, request.timeout)
    fleet = apart(fleet, request, deployment)
    price = price_of(deployment, fleet, request) if not fleet.prefill_replicas else None
    both_prices = prices_apart(deployment, fleet, request) if fleet.prefill_replicas else None
    requests = _requests(request, deployment.model, targets, partial(traffic_of, listener=listener))
    check_servable(requests, deployment)
    requests = classed(requests, classes_of(request), request.seed)
    say_if_compiling(listener)
    count = len(requests)
    counts = listener.counting(f"serving {count:,} requests", count) if count >= _WORTH_COUNTING else None
    simulation = run(deployment, requests, fleet, **_rules(request), watch=Watcher(progress=counts))
    found = outcome(simulation, targets)
    both = sides(simulation) if fleet.prefill_replicas else ()
    cost = served_cost(found, *price) if price else None
    if both_prices:
        cost = served_cost_apart(found, both, both_prices[:2], both_prices[2])
    if save:
        save_records(simulation, save)
        listener.note(f"requests saved to {save}")
    return SimulateResult(
        deployment=str(deployment),
        **dict(found),
        usd_per_mtok=cost.usd_per_mtok if cost else None,
        cost=cost,
        usd_per_job=usd_per_job(found, cost),
        thinking=simulated(simulation, thinking, cost.usd_per_mtok_output if cost else None) if thinking else None,
        lengths=lengths_text(simulation.trace),
        too_long=_too_long(simulation),
        sides=both,
        classes=_classes(request, simulation, cost, listener),
        timeline=tuple(moments(simulation)),
        **(
            {"playback": playback(simulation, targets, cost.usd_per_replica_hour if cost else None)}
            if request.playback
            else {}
        ),
        wall_s=simulation.wall_s,
        simulated_requests_per_s=found.requests / simulation.wall_s,
        hopeless=late_by_pauses(requests, targets),
        simulation=simulation,
        log=requests,
    )


def _too_long(made: Simulation) -> int:
    """Count the requests refused because the model's context is shorter."""
    lengths = made.trace.input_tokens.astype(np.int64) + made.trace.output_tokens
    return int(np.count_nonzero((made.served.status == REFUSED) & (lengths > made.rules.max_context)))


def _classes(
    request: SimulateRequest, made: Simulation, cost: ServedCost | None, listener: Listener
) -> ClassReport | None:
    """Return what each class gets and pays, and which breaks first on the same fleet."""
    if not made.trace.classes:
        return None
    listener.doing("simulating the classes under more and more load")

    def serve(times: float) -> Simulation:
        return run(made.deployment, made.trace.faster(times), made.fleet, **_rules(request))

    return class_report(serve, made, class_bills(made, cost.usd) if cost else (), "this run")


def _requests(
    request: SimulateRequest | CapacityRequest, model: ModelSpec, targets: Sequence[Slo], make: Callable[..., Trace]
) -> Trace:
    """Return the traffic as the model reads it: generated requests leave room for their images in its context."""
    if encodes([model], request.output, targets) and request.trace is None:
        request = request.model_copy(update={"output": NO_ANSWERS.text})
    room = model.max_context - (model.images.tokens if model.images else 0)
    if room < 1:
        raise BadInput(f"take more than the {model.max_context:,} tokens of context of {model.name}", field="images")
    made = trace_for(model, make(request, context=room))
    check_jobs(targets, made)
    return made


def _rules(request: SimulateRequest | CapacityRequest) -> dict[str, Any]:
    """Return how requests are admitted and given up, as the simulator takes it."""
    return {
        "timeout_s": timeout_of(request.timeout), "by_priority": request.priority, "seed": request.seed,
        "prefix_cache": not request.no_prefix_cache, "max_sequences": request.max_sequences,
        "max_batched_tokens": request.max_batched_tokens,
    }  # fmt: skip


def capacity(request: CapacityRequest, listener: Listener = SILENT) -> CapacityResult:
    """Find the highest rate of one replica under the latency targets, and the replicas a log needs."""
    targets = targets_of(request)
    plain = deployment_of(request, request.model, request.gpu, images=request.images)
    deployment = drafting(plain, request, listener)
    price_of(deployment, fleet_of(), request)  # find mistakes before the search
    made_up = request.trace is None
    if made_up and (request.rate or request.tokens_per_month):
        listener.note("the rate asked for is left aside: the highest one is searched; tokonomics plan sizes for a rate")
    make = trial_of if made_up else traffic_of
    log = _requests(request, deployment.model, targets, partial(make, listener=listener))
    log = within_context(log, deployment, listener)
    check_pauses(targets, _as_planned(request, log, deployment.model.max_context) if made_up else log)
    log = classed(log, classes_of(request), request.seed)
    load = load_of_requests(log, request.headroom or 0.0)
    if not made_up and (request.rate or request.tokens_per_month or request.speed):
        load = lasting(load, listener)
    setup = _setup(request, deployment, load, targets)
    guess = _guessed_rate(deployment, log)
    say_if_compiling(listener)
    listener.doing("searching the highest rate of one replica")
    best = highest_rate(setup, guess)
    needed = None
    if not made_up:
        listener.doing("searching the replicas this log needs")
        needed = replicas_needed(setup)
    price = price_of(deployment, fleet_of(needed.replicas if needed else 1), request)
    cost = served_cost(needed.outcome if needed else best.outcome, *price) if price else None
    listener.doing("simulating the classes under more and more load")
    classes = _classes_at(best, setup, guess, price[0] if price else None)
    return CapacityResult(
        deployment=str(deployment),
        rate=best.rate,
        replicas=needed.replicas if needed else None,
        usd_per_mtok=cost.usd_per_mtok if cost else None,
        usd_per_job=usd_per_job(needed.outcome if needed else best.outcome, cost),
        at_once=_at_once(best.outcome, deployment, price and price[0]),
        lengths=lengths_text(log),
        highest_rate=best,
        replicas_needed=needed,
        cost=cost,
        classes=classes,
        placed=deployment,
        log=log,
    )


def _at_once(served: Outcome, deployment: Deployment, usd_per_hour: float | None) -> SessionsAtOnce | None:
    if served.sessions is None:
        return None
    one = served.sessions.at_once
    replicas = deployment.gpu.gpus_per_node // deployment.gpus
    return SessionsAtOnce(
        replica=one,
        gpu=one / deployment.gpus,
        machine=replicas * one if replicas else None,
        usd_per_hour=one / usd_per_hour if usd_per_hour else None,
    )


def _as_planned(request: CapacityRequest, log: Trace, context: int) -> Trace:
    """Return generated sessions as a plan for their rate draws them, so that pauses agree; others unchanged."""
    if log.turns is None or request.rate is None or request.arrivals is not None:
        return log
    return load_of_requests(traffic_of(request, SILENT, context)).within(context).trace


def _setup(request: CapacityRequest, deployment: Deployment, load: Load, targets: tuple[Slo, ...]) -> Setup:
    rules = _rules(request)
    clients = fleet_of(timeout=request.timeout)
    names = ("timeout_s", "by_priority", "max_batched_tokens", "seed")
    handling = Handling(**{name: rules[name] for name in names}, **copied(clients, "retries", "backoff_s"))
    router = None if request.router is None else router_from(request.router)
    own = {name: rules[name] for name in ("prefix_cache", "max_sequences")}
    return Setup(deployment, load, slos=targets, router=router, handling=handling, **own)


def _classes_at(best: HighestRate, setup: Setup, guess: float, usd_per_hour: float | None) -> ClassReport | None:
    """Return the classes at the highest rate of one replica, and the rate with one SLO for all."""
    log = setup.load.trace
    if not log.classes:
        return None
    repeated = log.repeated(math.ceil(ENOUGH_REQUESTS / len(log)))
    at_that_rate = replace(setup, load=load_of_requests(repeated.faster(best.rate / repeated.rate)))

    def serve(times: float = 1.0) -> Simulation:
        made = attempt(at_that_rate, 1, best.max_sequences, times).simulation
        assert made is not None
        return made

    texts = slo_texts(log.classes)
    one_class = load_of_requests(without_classes(log), setup.load.headroom)
    alike = replace(setup, load=one_class, slos=strictest(log.classes))
    try:
        one_slo = OneSlo(slos=texts, rate=highest_rate(alike, guess).rate)
    except NeverHolds as never:
        one_slo = OneSlo(slos=texts, why_not=never.what)
    made = serve()
    return class_report(serve, made, run_bill(made, usd_per_hour), "this run", one_slo)


def usd_per_job(found: Outcome, cost: ServedCost | None) -> float | None:
    """Return the paid time while sessions arrive over the finished ones; None without a price or any session."""
    if cost is None or found.sessions is None or not found.sessions.finished:
        return None
    return cost.usd / found.sessions.finished


def _guessed_rate(deployment: Deployment, traffic: Trace) -> float:
    """Return where the search begins: half of what full batches of mean requests would finish."""
    rules = rules_for(deployment, traffic)
    served = ~too_long(requests_for(traffic, rules), rules)
    inputs, outputs = (float(tokens[served].mean()) for tokens in (traffic.input_tokens, traffic.output_tokens))
    return ReplicaCurve(deployment, max(1, round(inputs)), max(1, round(outputs))).capacity().rate / 2
