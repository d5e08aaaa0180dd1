"""What is known of servers from a ledger is what they were made of: rates by the hour, lengths, prices, sharing."""

import math

import numpy as np
import pytest
from tests.operate.metered_windows import HOUR_S, MODEL, MONDAY, KnownServers, lognormal, scored

from tokonomics.operate.metered import factors_of, metered_load, metered_servers, twin_errors
from tokonomics.operate.scoreboard import scoreboard
from tokonomics.traffic.arrivals import parse_arrivals


def by_the_week(at: float) -> float:
    """Two requests a second, twice that from eight to eight, a quarter of all at weekends."""
    hour, day = at % 86_400 / HOUR_S, (at - MONDAY) // 86_400 % 7
    return (4.0 if 8 <= hour < 20 else 2.0) * (0.25 if day >= 5 else 1.0)


def test_a_week_gives_back_its_rate_in_every_hour_of_it() -> None:
    windows = KnownServers(by_the_week).windows(MONDAY, 15 * 24)
    found = metered_servers(windows)
    assert found is not None
    assert len(found.by_hour) == 168
    for hour, rate in enumerate(found.by_hour):
        true = by_the_week(MONDAY + hour * HOUR_S)
        # Counts of two weeks scatter by the root of their number; one of 168 may be off by four times that.
        assert rate == pytest.approx(true, rel=4 / math.sqrt(2 * true * HOUR_S)), hour


def test_less_than_a_week_is_a_day_and_less_than_a_day_one_rate() -> None:
    servers = KnownServers(by_the_week)
    days, hours = (metered_servers(servers.windows(MONDAY, number)) for number in (3 * 24, 9))
    assert days is not None
    assert hours is not None
    assert len(days.by_hour) == 24
    assert days.by_hour[12] / days.by_hour[3] == pytest.approx(2.0, rel=0.05)
    assert hours.by_hour == ()
    true = np.mean([by_the_week(MONDAY + hour * HOUR_S) for hour in range(9)])
    assert hours.traffic.requests_per_s == pytest.approx(true, rel=0.02)


def test_the_load_has_the_rate_lengths_and_sharing_that_were_metered() -> None:
    found = metered_servers(KnownServers(by_the_week, hit_share=0.3).windows(MONDAY, 48))
    assert found is not None
    load = metered_load(found, 131_072)
    trace, workload = load.trace, load.workload
    assert workload.rate == pytest.approx(3.0, rel=0.01)
    assert workload.input_tokens == pytest.approx(1000, rel=0.01)
    assert workload.output_tokens == pytest.approx(300, rel=0.01)
    drawn = lognormal(1000, 0.8, 200_000, 1)
    # Buckets of 1, 2 and 5 are even in logarithms inside, which a lognormal's are not: a fifth.
    assert workload.input_p50 == pytest.approx(np.percentile(drawn, 50), rel=0.2)
    assert workload.input_p99 == pytest.approx(np.percentile(drawn, 99), rel=0.2)
    assert trace.prefix is not None
    shared = trace.prefix.ids.size * trace.prefix.block_tokens / float(trace.input_tokens.sum())
    assert shared == pytest.approx(0.3, abs=0.02)
    busy = (trace.arrival_s % 86_400 >= 8 * HOUR_S) & (trace.arrival_s % 86_400 < 20 * HOUR_S)
    assert busy.mean() == pytest.approx(2 / 3, abs=0.01)


def test_an_hour_that_nobody_watched_has_the_rate_of_other_days() -> None:
    noon = MONDAY + 12 * HOUR_S
    found = metered_servers(KnownServers(by_the_week, unseen={noon: 1.0}).windows(MONDAY, 72))
    assert found is not None
    assert found.by_hour[12] == pytest.approx(4.0, rel=0.05)


def test_what_came_in_a_gap_is_not_put_into_the_time_that_was_watched() -> None:
    """Half an hour unseen, whose requests are counted when the server is back: the rate is not twice as high."""
    hours = {MONDAY + hour * HOUR_S: 0.4 for hour in range(48)}
    found = metered_servers(KnownServers(by_the_week, unseen=hours).windows(MONDAY, 48))
    assert found is not None
    assert found.traffic.requests_per_s == pytest.approx(3.0, rel=0.02)


def test_the_bill_is_what_the_ledger_has() -> None:
    found = metered_servers(KnownServers(by_the_week, servers=3, usd_per_hour=2.5).windows(MONDAY, 30))
    assert found is not None
    assert (found.servers, found.model) == (3, MODEL)
    assert found.mean_servers == pytest.approx(3)
    assert found.usd_per_hour == pytest.approx(7.5)
    assert found.server_usd_per_hour == pytest.approx(2.5)
    assert found.tpot_s == pytest.approx(0.02)


def test_servers_that_come_and_go_cost_their_mean() -> None:
    """Four by day and one at night: what runs now is what the last hour had."""
    day = [
        window
        for window in KnownServers(lambda at: 4.0, servers=4).windows(MONDAY, 48)
        if window.target.endswith("0:8000") or 8 <= window.start % 86_400 / HOUR_S < 20
    ]
    found = metered_servers(day)
    assert found is not None
    assert found.servers == 1
    assert found.mean_servers == pytest.approx(2.5)
    # Each server has a fourth of four a second, so fewer servers serve less.
    assert found.by_hour[12] == pytest.approx(4.0, rel=0.05)
    assert found.by_hour[2] == pytest.approx(1.0, rel=0.05)


def test_nothing_counted_is_no_traffic() -> None:
    assert metered_servers([]) is None
    assert metered_servers(KnownServers(lambda at: 0.0).windows(MONDAY, 3)) is None


def test_the_errors_are_those_of_the_scored_windows_of_all_servers() -> None:
    windows = KnownServers(by_the_week).windows(MONDAY, 3)
    said = [scored(window, 0.1 if window.target.endswith("0:8000") else 0.2) for window in windows]
    found = twin_errors(scoreboard(said))
    assert found is not None
    assert found.windows == 6
    assert found.speed == pytest.approx(0.15)
    assert found.traffic == pytest.approx(0.15)
    assert twin_errors(scoreboard([])) is None


def test_factors_of_several_servers_are_their_geometric_mean() -> None:
    one, other = KnownServers(by_the_week).windows(MONDAY, 1)
    said = [scored(one, 0, {"decode": 1.6}), scored(other, 0, {"decode": 2.5})]
    assert factors_of(said)["decode"] == pytest.approx(2.0)
    assert factors_of([scored(one, 0)]) == {}


def test_hours_are_written_as_arrivals_that_are_read_back() -> None:
    found = metered_servers(KnownServers(by_the_week).windows(MONDAY, 48))
    assert found is not None
    assert found.arrivals is not None
    curve = parse_arrivals(found.arrivals).curve
    assert curve.period_s == 86_400
    for hour, rate in enumerate(found.by_hour):
        assert curve.by((hour + 1) * HOUR_S) - curve.by(hour * HOUR_S) == pytest.approx(rate * HOUR_S, rel=1e-3)
