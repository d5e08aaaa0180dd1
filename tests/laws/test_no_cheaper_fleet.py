"""No cheaper fleet is missed: in random worlds, one replica fewer breaks behind every router, at every batch limit."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.deployed import on
from tests.explore import EXPLORE
from tests.there import there

from tokonomics.physics.deployment import Deployment
from tokonomics.serving.capacity import what_breaks
from tokonomics.serving.fleet_settings import FleetSettings, Router
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import simulate
from tokonomics.sizing.attempt import Sized
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import Load, load_of_log, load_of_requests
from tokonomics.sizing.search import size
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

PARTS = 4
WORLDS = 100 * EXPLORE or 40
KINDS = ("ttft", "tpot", "e2e", "job")
REQUESTS = 500
MOST_LIMIT = 96
"""Above it a limit is never reached in these worlds: the engine's own does the same."""


def deployed(rng: np.random.Generator) -> Deployment:
    gpu = str(rng.choice(["A100-80GB", "H100", "L40S"]))
    return on(gpu=gpu)


def world(number: int) -> Setup:
    """A deployment under more or less load than one replica holds, with one target near what it delivers."""
    rng = np.random.default_rng(number)
    kind, deployment = KINDS[number % len(KINDS)], deployed(rng)
    inputs, outputs = int(rng.integers(200, 8000)), int(rng.integers(5, 200))
    rate = float(rng.uniform(0.5, 2.5) * one_by_one(deployment, inputs, outputs))
    if kind == "job":
        turns = int(rng.integers(2, 6))
        made = generate(
            parse_arrivals(f"poisson:{rate / turns:.6g}"),
            parse_lengths(f"const:{inputs}", "input"),
            parse_lengths(f"const:{outputs}", "output"),
            requests=REQUESTS,
            seed=number,
            sessions=parse_sessions(f"{turns},think=2"),
        )
        load: Load = load_of_requests(replace(made, prefix=None))
    else:
        arrival_s = np.cumsum(rng.exponential(1 / rate, REQUESTS))
        spread = rng.lognormal(0, 0.4, REQUESTS)
        prompts = np.clip(inputs * spread, 50, 12_000).astype(int)
        load = load_of_log(make_trace(arrival_s, prompts, np.full(REQUESTS, outputs)))
    delivered = outcome(simulate(deployment, load.trace, FleetSettings(replicas=2)))
    statistic = str(rng.choice(["p90", "p95", "p99"]))
    if kind == "job":
        near = getattr(there(delivered.sessions).job_s, statistic)
    else:
        near = getattr(getattr(delivered, f"{kind}_s"), statistic)
    slo = f"{kind}_{statistic}={near * rng.uniform(0.8, 1.6):.6g}"
    if kind == "tpot":
        wait = delivered.ttft_s.p99
        slo += f",ttft_p99={(wait or 1.0) * rng.uniform(1.5, 4):.6g}"
    return Setup(deployment, load, slos=parse_slos(slo))


def one_by_one(deployment: Deployment, inputs: int, outputs: int) -> float:
    """Requests a second that a replica serves one after the other."""
    alone = outcome(simulate(deployment, make_trace([0.0], [inputs], [outputs])))
    return 1 / float(alone.e2e_s.p50 or math.nan)


def holds(setup: Setup, replicas: int, router: Router, limit: int | None) -> bool:
    """By a direct simulation of all requests."""
    fleet = FleetSettings(replicas=replicas, router=router)
    made = simulate(setup.deployment, setup.load.trace, fleet, max_sequences=limit)
    return what_breaks(made, outcome(made, setup.slos, with_load=False)) is None


def nearly(setup: Setup) -> list[Setup]:
    """The same requests a hundredth faster and slower."""
    return [replace(setup, load=load_of_requests(setup.load.trace.faster(times))) for times in (0.99, 1.01)]


@pytest.mark.slow
@pytest.mark.law
@pytest.mark.parametrize("part", range(PARTS))
def test_one_replica_fewer_breaks_whatever_its_router_and_limit(part: int) -> None:
    sized = 0
    for number in range(part, WORLDS, PARTS):
        setup = world(number)
        found = size(setup)
        if isinstance(found, NotServed):
            # Then not even a fleet with a replica for every other request holds.
            assert not holds(setup, REQUESTS // 2, Router.least_outstanding, None), number
            continue
        assert isinstance(found, Sized)
        assert holds(setup, found.replicas, found.router, found.max_sequences), number
        sized += 1
        if found.replicas > 1:
            routers = (Router.round_robin, Router.least_outstanding)[: found.replicas - 1]
            limits = [None, *range(1, MOST_LIMIT + 1)]
            ways = [(router, limit) for router in routers for limit in limits]
            cheaper = [way for way in ways if holds(setup, found.replicas - 1, *way)]
            # What a hundredth of the rate decides is chance: no capacity is known more closely.
            surely = [way for way in cheaper if all(holds(at, found.replicas - 1, *way) for at in nearly(setup))]
            assert surely == [], (number, found.replicas, setup.slos)
    assert sized >= 5
