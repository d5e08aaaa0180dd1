"""Long traffic is sized on its busiest part first: the same answer as the whole, with fewer whole simulations."""

import numpy as np
import pytest
from tests.planner.small_catalogue import OFFERS, TODAY

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.planner import sizing
from tokonomics.planner.load import load_of_shape
from tokonomics.planner.setup import Setup
from tokonomics.planner.sizing import Sizing, serve, size
from tokonomics.serving.outcome import request_latencies
from tokonomics.serving.simulator import Simulation
from tokonomics.traffic.promises import parse_promises

DAY = Setup(
    deploy(find_model("llama-3.1-8b"), find_gpu("L4"), find_engine("vllm")),
    load_of_shape(None, "1500", "200", arrivals="diurnal:0.5,peak=3"),
    OFFERS,
    TODAY,
    parse_promises("ttft_p99=2,tpot_p90=0.2"),
)


@pytest.mark.slow
def test_the_busiest_part_decides_nothing_that_the_whole_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(*args: object, **more: object) -> Simulation:
        made = serve(*args, **more)  # type: ignore[arg-type]
        lengths.append(len(made.trace))
        return made

    monkeypatch.setattr(sizing, "serve", counted)
    found, whole = [], []
    for long in (10**9, 30_000):
        monkeypatch.setattr(sizing, "LONG", long)
        lengths.clear()
        made = size(DAY)
        assert isinstance(made, Sizing)
        found.append((made.replicas, made.router, made.outcome))
        whole.append(sum(each == len(DAY.load.trace) for each in lengths))
    assert found[0] == found[1]
    assert found[0][0] > 1
    assert whole[1] < whole[0]


@pytest.mark.slow
def test_no_more_requests_are_late_in_the_busiest_part_than_in_all() -> None:
    part = DAY.load.busiest(20_000)
    late = [np.count_nonzero(request_latencies(serve(DAY, 1, load=load))["ttft"] > 2.0) for load in (part, DAY.load)]
    assert 0 < late[0] <= late[1]
