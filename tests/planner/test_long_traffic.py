"""Long traffic is sized on its busiest part first: the same answer as the whole, with fewer whole simulations."""

import numpy as np
import pytest
from tests.planner.small_catalogue import OFFERS, TODAY

from tokonomics.catalog.engines import find_engine
from tokonomics.catalog.gpus import find_gpu
from tokonomics.catalog.load_models import find_model
from tokonomics.physics.deployment import deploy
from tokonomics.planner.levers.right_size import PLANNED_WHOLE, right_size
from tokonomics.serving.outcome import request_latencies
from tokonomics.serving.simulator import Simulation
from tokonomics.sizing import attempt
from tokonomics.sizing.attempt import Sized, serve
from tokonomics.sizing.bill import Bills, SetupBill
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.sizing.search import size
from tokonomics.sizing.setup import NotServed, Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

DAY = Setup(
    deploy(find_model("llama-3.1-8b"), find_gpu("L4"), find_engine("vllm")),
    load_of_shape(None, "const:1500", "const:200", arrivals="diurnal:0.5,peak=3"),
    OFFERS,
    TODAY,
    parse_slos("ttft_p99=2,tpot_p90=0.2"),
)


@pytest.mark.slow
def test_the_busiest_part_decides_nothing_that_the_whole_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def counted(*args: object, **more: object) -> Simulation:
        made = serve(*args, **more)  # type: ignore[arg-type]
        lengths.append(len(made.trace))
        return made

    monkeypatch.setattr(attempt, "serve", counted)
    found, whole = [], []
    for long in (10**9, 30_000):
        monkeypatch.setattr(attempt, "WHOLE_AT_ONCE", long)
        lengths.clear()
        made = size(DAY)
        assert isinstance(made, Sized)
        found.append((made.replicas, made.router, made.outcome))
        whole.append(sum(length == len(DAY.load.trace) for length in lengths))
    assert found[0] == found[1]
    assert found[0][0] > 1
    assert whole[1] < whole[0]


@pytest.mark.slow
def test_no_more_requests_are_late_in_the_busiest_part_than_in_all() -> None:
    part = DAY.load.busiest(20_000)
    late = [np.count_nonzero(request_latencies(serve(DAY, 1, load=load))["ttft"] > 2.0) for load in (part, DAY.load)]
    assert 0 < late[0] <= late[1]


def test_a_spike_that_the_slo_lets_be_late_does_not_choose_the_gpu() -> None:
    """One request in seventeen comes in a spike, and one in ten may be late: the quiet rest asks for one A100.

    The spike alone would be served cheapest by H100s, and then no other GPU would seem to save anything.
    """
    rng = np.random.default_rng(0)
    arrival = np.sort(np.concatenate([rng.uniform(0, 23_500, 23_500), rng.uniform(12_000, 12_080, 1_500)]))
    load = load_of_log(make_trace(arrival, np.full(25_000, 1000), np.full(25_000, 200)))
    assert len(load.trace) > PLANNED_WHOLE
    on = {
        gpu: Setup(deploy(DAY.deployment.model, find_gpu(gpu), DAY.deployment.engine), load, OFFERS, TODAY,
                   parse_slos("ttft_p90=2"))
        for gpu in ("L4", "A100-80GB", "H100")
    }  # fmt: skip
    bills = Bills()
    usd = {gpu: bill.usd_per_month for gpu, setup in on.items() if isinstance(bill := bills.of(setup), SetupBill)}
    assert usd["A100-80GB"] < min(usd["L4"], usd["H100"])
    for gpu in ("L4", "H100"):
        picked = right_size(on[gpu], bills=bills)
        assert isinstance(picked, Setup)
        assert picked.deployment.gpu.key == "A100-80GB"
    stays = right_size(on["A100-80GB"], bills=bills)
    assert isinstance(stays, NotServed)
    assert "screened" in stays.reason
    assert "simulated" in stays.reason
