"""A spike in long traffic does not choose the GPU where the SLO lets it be late."""

import numpy as np
from tests.deployed import on
from tests.planner.small_catalogue import OFFERS, TODAY

from tokonomics.catalog.gpus import find_gpu
from tokonomics.levers.lever_list import right_size
from tokonomics.physics.deployment import deploy
from tokonomics.sizing.bill import Bill, Bills
from tokonomics.sizing.layouts import NotServed
from tokonomics.sizing.load import load_of_log, load_of_shape
from tokonomics.sizing.setup import Setup
from tokonomics.traffic.slo import parse_slos
from tokonomics.traffic.trace import make_trace

DAY = Setup(
    on(gpu="L4"),
    load_of_shape(None, "const:1500", "const:200", arrivals="diurnal:0.5,peak=3"),
    OFFERS,
    TODAY,
    parse_slos("ttft_p99=2,tpot_p90=0.2"),
)


def test_a_spike_that_the_slo_lets_be_late_does_not_choose_the_gpu() -> None:
    """One request in seventeen comes in a spike, and one in ten may be late: the quiet rest asks for one A100.

    The spike alone would be served cheapest by H100s, and then no other GPU would seem to save anything.
    """
    rng = np.random.default_rng(0)
    arrival = np.sort(np.concatenate([rng.uniform(0, 23_500, 23_500), rng.uniform(12_000, 12_080, 1_500)]))
    load = load_of_log(make_trace(arrival, np.full(25_000, 1000), np.full(25_000, 200)))
    on = {
        gpu: Setup(deploy(DAY.deployment.model, find_gpu(gpu), DAY.deployment.engine), load, OFFERS, TODAY,
                   parse_slos("ttft_p90=2"))
        for gpu in ("L4", "A100-80GB", "H100")
    }  # fmt: skip
    bills = Bills()
    usd = {gpu: bill.usd_per_month for gpu, setup in on.items() if isinstance(bill := bills.bill_of(setup), Bill)}
    assert usd["A100-80GB"] < min(usd["L4"], usd["H100"])
    for gpu in ("L4", "H100"):
        picked = right_size(on[gpu], bills=bills)
        assert isinstance(picked, Setup)
        assert picked.deployment.gpu.key == "A100-80GB"
    stays = right_size(on["A100-80GB"], bills=bills)
    assert isinstance(stays, NotServed)
    assert "screened" in stays.reason
    assert "simulated" in stays.reason
