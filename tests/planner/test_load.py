"""A log as the planner takes it."""

from tokonomics.planner.load import load_of_log
from tokonomics.traffic.trace import make_trace


def test_requests_longer_than_the_context_are_left_out_and_counted() -> None:
    load = load_of_log(make_trace([0.0, 1.0, 2.0, 3.0], [100, 5000, 100, 9000], [10, 10, 10, 10]))
    kept = load.within(4096)
    assert (len(kept.trace), kept.too_long, kept.workload.rate) == (2, 2, load.workload.rate / 2)
    assert kept.within(4096) is kept
