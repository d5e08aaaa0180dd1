"""Tenants of a trace: moved, made busier and joined without losing a request."""

import numpy as np
import pytest
from tests.there import there

from tokonomics.traffic.arrivals import parse_arrivals
from tokonomics.traffic.generate import generate, parse_sessions, parse_tenants
from tokonomics.traffic.lengths import parse_lengths
from tokonomics.traffic.tenants import (
    ALIGNED,
    SPREAD,
    busier,
    by_tenant,
    correlation,
    have_peaks,
    joined,
    only,
    peak_phase,
    present,
    served_last,
    with_peaks,
)
from tokonomics.traffic.trace import Trace, make_trace


def day(arrivals: str = "diurnal:0.5,peak=2", tenants: str = "4,skew=0", sessions: str | None = None) -> Trace:
    return generate(
        parse_arrivals(arrivals), parse_lengths("300", "input"), parse_lengths("50", "output"), duration_s=86_400,
        tenants=parse_tenants(tenants), sessions=parse_sessions(sessions) if sessions else None,
    )  # fmt: skip


def test_peaks_fall_together_or_lie_a_quarter_of_a_day_apart() -> None:
    trace = day()

    def peaks(made: Trace) -> list[float]:
        return sorted(peak_phase(made.arrival_s[at], 86_400) for at in by_tenant(made).values())

    together, apart = peaks(with_peaks(trace, ALIGNED)), peaks(with_peaks(trace, SPREAD))
    assert np.ptp(together) < 0.01
    assert np.diff(apart) == pytest.approx([0.25] * 3, abs=0.01)
    assert (correlation(with_peaks(trace, ALIGNED)) or 0) > 0.95
    assert (correlation(with_peaks(trace, SPREAD)) or 1) < 0
    for where in (ALIGNED, SPREAD):  # keeps every request
        moved = with_peaks(trace, where)
        assert (np.diff(moved.arrival_s) >= 0).all()
        assert moved.arrival_s[0] == 0
        assert np.bincount(moved.tenant).tolist() == np.bincount(trace.tenant).tolist()  # type: ignore[arg-type]


def test_steady_traffic_has_no_time_of_day_and_who_is_served_last_is_behind_all_others() -> None:
    steady = day("poisson:0.01")
    assert have_peaks(day())
    assert not have_peaks(day("poisson:0.5"))
    assert (there(served_last(steady, 2).priority) == (steady.tenant == 2)).all()


def test_busier_doubles_one_tenant_and_leaves_the_others_alone() -> None:
    trace = day("diurnal:0.1,peak=2", sessions="3,think=60")
    made = busier(trace, 1)
    before, after = np.bincount(trace.tenant), np.bincount(made.tenant)  # type: ignore[arg-type]
    assert after.tolist() == [before[0], 2 * before[1], before[2], before[3]]
    for tenant in (0, 2, 3):
        assert np.diff(only(made, [tenant]).arrival_s) == pytest.approx(np.diff(only(trace, [tenant]).arrival_s))
    assert made.prefix is not None
    assert trace.prefix is not None
    assert made.prefix.distinct == 2 * trace.prefix.distinct
    first_of_copies = made.prefix.ids >= trace.prefix.distinct
    assert int(first_of_copies.sum()) == len(only(trace, [1]).prefix.ids)  # type: ignore[union-attr]
    # The day keeps its shape.
    assert peak_phase(only(made, [1]).arrival_s, 86_400) == pytest.approx(
        peak_phase(only(trace, [1]).arrival_s, 86_400), abs=0.02
    )


def test_logs_become_tenants_that_begin_together() -> None:
    first, second = make_trace([5, 7, 9], [1, 2, 3], [1, 1, 1]), make_trace([100, 101], [8, 9], [2, 2])
    made = joined([first, second], ["a", "b"])
    assert made.arrival_s.tolist() == [0, 0, 1, 2, 4]
    assert made.input_tokens.tolist() == [1, 8, 9, 2, 3]
    assert [made.tenants[each] for each in made.tenant] == ["a", "b", "b", "a", "a"]  # type: ignore[union-attr]
    assert present(made) == (0, 1)


def test_joined_logs_share_no_blocks() -> None:
    parts = [day("poisson:0.02", sessions="3,think=60") for _ in range(2)]
    made = joined(parts, ["a", "b"])
    assert made.prefix is not None
    for number, part in enumerate(parts):
        assert part.prefix is not None
        own = there(only(made, [number]).prefix)
        assert (own.ids - number * part.prefix.distinct == part.prefix.ids).all()
