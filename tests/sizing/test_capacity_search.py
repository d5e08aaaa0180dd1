"""How much a deployment holds: the answer is checked by simulating it, and what lies just beyond it."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.deployed import on

from tokonomics.errors import TokonomicsError
from tokonomics.physics.deployment import Deployment
from tokonomics.serving.capacity import BEHIND, MOST_REPLICAS, apart_in_time, sure_to_miss, what_breaks
from tokonomics.serving.outcome import outcome
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, OPEN, REQUEST
from tokonomics.sizing.layouts import Reason
from tokonomics.sizing.load import load_of_requests
from tokonomics.sizing.rules import PATIENCE, WORK_IN_HAND
from tokonomics.sizing.search import HighestRate, NeverHolds, highest_rate, replicas_needed, smallest_that_holds
from tokonomics.sizing.setup import Handling, Setup
from tokonomics.traffic.slo import Slo, parse_slos
from tokonomics.traffic.trace import Trace, make_trace

SLOS = ["ttft_p99=0.3", "tpot_p99=20ms", "e2e_p90=4,ttft_mean=0.2"]


@cache
def deployment() -> Deployment:
    return on()


@cache
def traffic(count: int = 20_000, rate: float = 1.0) -> Trace:
    rng = np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    return make_trace(arrival, rng.integers(100, 2000, count), rng.integers(20, 300, count))


def serve(trace: Trace) -> Simulation:
    return simulate(deployment(), trace)


def on_log(count: int = 600, rate: float = 100.0, slo: str | None = None) -> Setup:
    return Setup(deployment(), load_of_requests(traffic(count, rate)), slos=parse_slos(slo) if slo else ())


@cache
def found(text: str, guess: float = 10.0) -> HighestRate:
    """With the engine's own limit on sequences, so that one simulation checks it."""
    limit = deployment().limits.max_sequences
    setup = Setup(deployment(), load_of_requests(traffic()), slos=parse_slos(text), max_sequences=limit)
    return highest_rate(setup, guess)


def kept_at(rate: float, slos: tuple[Slo, ...]) -> bool | None:
    """The same requests so many a second."""
    trace = traffic()
    arrival = trace.arrival_s / rate * trace.rate
    return outcome(serve(make_trace(arrival, trace.input_tokens, trace.output_tokens)), slos).slo_met


@pytest.mark.parametrize("text", SLOS)
def test_the_slo_is_kept_at_the_highest_rate_and_not_one_percent_beyond(text: str) -> None:
    best, slos = found(text), parse_slos(text)
    assert best.rate < best.at_most <= 1.01 * best.rate
    in_hand = WORK_IN_HAND if text.startswith("tpot") else 1.0  # where no SLO bounds the wait
    assert kept_at(best.rate * in_hand, slos)
    assert not kept_at(best.at_most * in_hand, slos)
    assert best.outcome.slo_met


@pytest.mark.parametrize("text", SLOS)
def test_what_gives_way_is_said_with_what_was_asked(text: str) -> None:
    names = [part.partition("=")[0] for part in text.split(",")]
    assert any(found(text).breaks.startswith(f"{name} is ") for name in names)
    assert "the SLO is" in found(text).breaks


def test_a_stricter_slo_holds_fewer_requests() -> None:
    rates = [found(f"ttft_p99={seconds}").rate for seconds in (0.2, 0.3, 1.0, 3.0)]
    assert rates == sorted(rates)


@pytest.mark.parametrize("guess", [0.01, 1.0, 300.0])
def test_the_answer_does_not_depend_on_the_guess(guess: float) -> None:
    assert found("ttft_p99=0.3", guess).rate == pytest.approx(found("ttft_p99=0.3").rate, rel=0.05)


def test_without_a_slo_the_limit_is_what_is_finished() -> None:
    """One that takes a step at a time: its requests cannot come faster than they are served one by one."""

    def one_by_one(trace: Trace) -> Simulation:
        return simulate(deployment(), trace, max_sequences=1)

    alone = one_by_one(make_trace(np.arange(20_000) * 1000.0, traffic().input_tokens, traffic().output_tokens))
    service_s = float((alone.served.finish_s - alone.trace.arrival_s).mean())
    best = highest_rate(Setup(deployment(), load_of_requests(traffic()), max_sequences=1), 10.0)
    assert best.rate * service_s * WORK_IN_HAND == pytest.approx(1.0, abs=0.05)
    assert "falls behind" in best.breaks


def test_every_trial_is_told_in_order_of_its_rate() -> None:
    best = found("tpot_p99=20ms")
    rates = [trial.rate for trial in best.trials]
    assert rates == sorted(set(rates))
    assert all(trial.holds == (trial.rate <= best.rate) for trial in best.trials)
    assert {best.rate, best.at_most} <= set(rates)


COUNTS = st.integers(1, MOST_REPLICAS)


def never() -> bool:
    return False


@given(COUNTS, COUNTS)
def test_the_smallest_is_found_from_wherever_the_search_begins(needed: int, start: int) -> None:
    assert smallest_that_holds(lambda count: count >= needed, start, 1, MOST_REPLICAS, never) == needed


@given(COUNTS, COUNTS)
def test_no_more_replicas_are_tried_than_allowed(start: int, most: int) -> None:
    tried: set[int] = set()

    def holds(count: int) -> bool:
        tried.add(count)
        return False

    assert smallest_that_holds(holds, min(start, most), 1, most, never) is None
    assert max(tried) == most


def test_a_search_without_hope_ends_after_its_patience() -> None:
    tried: list[int] = []

    def holds(count: int) -> bool:
        tried.append(count)
        return False

    assert smallest_that_holds(holds, 3, 1, MOST_REPLICAS, lambda: True) is None
    assert sorted(set(tried)) == [3, 4, 6]
    assert len(set(tried)) == PATIENCE


def test_requests_apart_in_time_are_all_of_few_and_an_even_part_of_many() -> None:
    few = apart_in_time(traffic(600), 1000)
    assert few.input_tokens.tolist() == traffic(600).input_tokens.tolist()
    assert np.diff(few.arrival_s).min() > 86_400
    many = apart_in_time(traffic(600), 100)
    assert len(many) == 100
    assert many.input_tokens[[0, -1]].tolist() == traffic(600).input_tokens[[0, -1]].tolist()


def test_light_traffic_needs_one_replica() -> None:
    needed = replicas_needed(on_log(rate=1.0, slo="ttft_p99=0.5"))
    assert (needed.replicas, len(needed.trials)) == (1, 1)


@pytest.mark.parametrize("search", [lambda setup: highest_rate(setup, 10.0), replicas_needed], ids=["rate", "replicas"])
def test_a_slo_that_nothing_keeps_is_refused_with_what_breaks(search: Callable[[Setup], object]) -> None:
    with pytest.raises(NeverHolds) as refused:
        search(on_log(60, 1.0, "ttft_p99=1ms"))
    assert refused.value.refused.kind is Reason.too_slow
    assert "TTFT p99" in str(refused.value)


def test_requests_that_are_all_too_long_are_said_to_be() -> None:
    with pytest.raises(TokonomicsError, match="exceed the model's 131,072"):
        highest_rate(Setup(deployment(), load_of_requests(make_trace([0.0, 1.0], [200_000] * 2, [10] * 2))), 1.0)


def test_clients_that_hang_up_are_not_served() -> None:
    """A rate that holds only because nearly everybody left is none."""
    patient = Setup(deployment(), load_of_requests(traffic()), handling=Handling(timeout_s=3.0))
    best = highest_rate(patient, 10.0)
    assert best.outcome.completed > 0.9 * len(traffic())


def test_clients_who_hang_up_at_once_are_said_to_have_given_up() -> None:
    with pytest.raises(NeverHolds) as refused:
        highest_rate(Setup(deployment(), load_of_requests(traffic(60)), handling=Handling(timeout_s=1e-3)), 10.0)
    assert "given up" in str(refused.value)


@pytest.mark.parametrize(
    "trace", [make_trace([0.0], [100], [10]), make_trace([0.0] * 50, [100] * 50, [10] * 50)], ids=["one", "all at once"]
)
def test_requests_that_have_no_rate_are_refused(trace: Trace) -> None:
    with pytest.raises(TokonomicsError):
        highest_rate(Setup(deployment(), load_of_requests(trace), slos=parse_slos("ttft_p99=1")), 10.0)


def test_requests_too_few_to_judge_by_are_repeated() -> None:
    three = make_trace([0.0, 1.0, 2.0], [500, 1000, 1500], [100, 50, 150])
    slos = parse_slos("ttft_p99=1")
    best = highest_rate(Setup(deployment(), load_of_requests(three), slos=slos), 10.0)
    assert min(trial.outcome.requests for trial in best.trials) >= 20_000
    mean = make_trace(np.arange(20_000.0), [1000] * 20_000, [100] * 20_000)
    even = highest_rate(Setup(deployment(), load_of_requests(mean), slos=slos), 10.0)
    assert best.rate == pytest.approx(even.rate, rel=0.1)


def verdict(trace: Trace) -> str | None:
    """Without a SLO, one request at a time."""
    made = simulate(deployment(), trace, max_sequences=1)
    return what_breaks(made, outcome(made))


def one_by_one(gaps_s: float, count: int = 2_000) -> Trace:
    return make_trace(np.arange(count) * gaps_s, [500] * count, [50] * count)


@cache
def service_s() -> float:
    """Of a server that is never idle: the next prompt is launched while the last answer ends."""
    busy = simulate(deployment(), one_by_one(0.0, 200), max_sequences=1)
    return float(np.diff(np.sort(busy.served.finish_s)).mean())


@pytest.mark.parametrize(("load", "behind"), [(0.9, False), (0.99, False), (1.05, True), (1.5, True), (3.0, True)])
def test_a_backlog_that_grows_is_falling_behind(load: float, behind: bool) -> None:
    """Evenly spaced equal requests, one at a time: of a load that is too much, 1 − 1/load wait at the end."""
    assert verdict(one_by_one(service_s() / load)) == (BEHIND if behind else None)


def test_a_burst_at_the_last_moment_is_no_backlog_and_the_same_all_along_is() -> None:
    """Thirty at once, more than 1 % of all, after a day at nine tenths of what it can do."""
    steady = one_by_one(service_s() / 0.9)
    times = np.append(steady.arrival_s, np.full(30, steady.arrival_s[-1]))
    ending = make_trace(times, [500] * len(times), [50] * len(times))
    made = simulate(deployment(), ending, max_sequences=1)
    assert np.count_nonzero(made.served.start_s > times[-1]) > 0.01 * len(times)
    assert verdict(ending) is None
    often = np.sort(np.concatenate([steady.arrival_s, np.repeat(steady.arrival_s[::100], 30)]))
    assert verdict(make_trace(often, [500] * len(often), [50] * len(often))) == BEHIND


def test_what_always_waits_is_no_backlog() -> None:
    """Thirty come together every thirty services, the last of them at the end: no more wait there than ever."""
    times = np.repeat(np.arange(60) * 30 * service_s() / 0.95, 30)
    assert verdict(make_trace(times, [500] * len(times), [50] * len(times))) is None


def test_where_most_have_not_begun_at_the_end_it_is_behind_however_the_queue_went() -> None:
    """All at once, and one more when half of them are done: the queue only shrinks, and repeated it would not."""
    times = np.append(np.zeros(1_000), 500 * service_s())
    assert verdict(make_trace(times, [500] * 1_001, [50] * 1_001)) == BEHIND


@given(st.integers(0, 2**32 - 1))
def test_an_end_is_seen_at_the_look_at_which_counting_all_would_show_it(seed: int) -> None:
    """Each look sees some more requests, and later times of what ended since the one before."""
    chance, count = np.random.default_rng(seed), 60
    rows = np.zeros(count, REQUEST)
    rows["status"], rows["output_tokens"] = OPEN, 5
    trace = make_trace(np.zeros(count + 5), [500] * (count + 5), [5] * (count + 5))
    misses = sure_to_miss(parse_slos("ttft_p90=1,tpot_p95=1,e2e_p50=4"), trace)
    fresh = np.zeros(0, np.intp)
    for stop in range(10, count + 1, 10):
        rows["first_token_s"][fresh] += 0.2
        rows["finish_s"][fresh] += 0.4
        ends = (rows["status"][:stop] == OPEN) & (chance.random(stop) < 0.6)
        fresh = np.flatnonzero(ends)
        rows["status"][fresh], rows["first_token_s"][fresh] = DONE, chance.uniform(0, 1.1, len(fresh))
        rows["finish_s"][fresh] = rows["first_token_s"][fresh] + chance.uniform(0, 4.2, len(fresh))
        done = rows[:stop][rows["status"][:stop] == DONE]
        wait, whole = done["first_token_s"], done["finish_s"]
        # Of 65 requests 6.5, 3.25 and 32.5 may be late, and one more (``late_allowed``).
        late = ((wait > 1).sum() > 7.5, ((whole - wait) / 4 > 1).sum() > 4.25, (whole > 4).sum() > 33.5)
        assert misses(rows[:stop]) == any(late)
