"""Cost against batch limit, load and burstiness: the same requests on the same deployment, one thing changed at a time.

Every point is sized anew by simulation, so it shows what a fleet for that traffic costs, not what an average would say:
a burst needs the replicas of its busiest minutes and pays for them in the quiet ones.
"""

from dataclasses import replace

from tokonomics.planner.bills import Bills, SetupBill
from tokonomics.planner.load import Load
from tokonomics.planner.setup import Setup
from tokonomics.traffic.arrivals import draw_arrivals, parse_arrivals
from tokonomics.types import Noun
from tokonomics.units import percent

LIMITS = (1, 4, 16, 64, 256, 1024)
LOADS = (1 / 16, 1 / 4, 1, 4)
"""Times the rate that was given."""
BUSY_SHARE = 1 / 3
"""Of the time in which a burst-then-idle load works: the eight hours of a working day."""
_ROUNDS = 4
"""Bursts in the time simulated: each long enough that no queue can hold it."""


class UtilizationPoint(Noun):
    """One setting."""

    name: str
    bill: SetupBill | None
    reason: str | None


class Utilization(Noun):
    """Three ways to waste capacity, or not to."""

    by_batch: tuple[UtilizationPoint, ...]
    by_load: tuple[UtilizationPoint, ...]
    by_burst: tuple[UtilizationPoint, ...]
    """At equal mean rate, calmest first."""


def utilization_bills(setup: Setup, bills: Bills | None = None) -> Utilization:
    """The setup at other batch limits, loads and arrivals."""
    bills = bills or Bills()
    engine = setup.deployment.limits.max_sequences
    rate = setup.load.workload.rate
    return Utilization(
        by_batch=tuple(
            _point(f"up to {limit}", replace(setup, max_sequences=limit), bills) for limit in LIMITS if limit <= engine
        ),
        by_load=tuple(
            _point(f"{rate * times:.3g}/s", replace(setup, load=setup.load.at(rate * times)), bills) for times in LOADS
        ),
        by_burst=tuple(
            _point(name, replace(setup, load=arriving(setup.load, text)), bills)
            for name, text in arrival_patterns(setup.load).items()
        ),
    )


def arrival_patterns(load: Load) -> dict[str, str | None]:
    """From the calmest to burst-then-idle; None: as they came."""
    # At one request a second, so many bursts as rounds carry all requests.
    on_s = len(load.trace) / _ROUNDS
    off_s = on_s * (1 / BUSY_SHARE - 1)
    return {
        "evenly spaced": "constant:1",
        "as given": None,
        "gaps vary threefold (cv 3)": "gamma:1,cv=3",
        f"all in {percent(BUSY_SHARE)} of the time": f"onoff:1,on={on_s:.6g},off={off_s:.6g}",
    }


def arriving(load: Load, arrivals: str | None) -> Load:
    """The same requests in the same order and at the same mean rate, arriving otherwise."""
    if arrivals is None:
        return load
    times = draw_arrivals(parse_arrivals(arrivals), requests=len(load.trace), seed=0)
    trace = replace(load.trace, arrival_s=times)
    return replace(load, trace=trace.faster(load.workload.rate * load.share / trace.rate))


def _point(name: str, setup: Setup, bills: Bills) -> UtilizationPoint:
    bills.progress(name)
    made = bills.of(setup)
    if isinstance(made, SetupBill):
        return UtilizationPoint(name=name, bill=made, reason=None)
    return UtilizationPoint(name=name, bill=None, reason=made.reason)
