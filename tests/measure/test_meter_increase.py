"""No restart, rename or missing series loses a token that was seen, or makes one up."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.measure.metered import HandClock, Process
from tests.measure.test_meter_spans import read
from tests.there import there

from tokonomics.measure.meter.readings import Counted, Reading
from tokonomics.measure.meter.spans import CLOCKS_APART_S, change_between, is_stranger


def output(before: Reading | None, now: Reading) -> float:
    return change_between(before, now).counted[Counted.output]


def test_between_two_readings_the_difference_counts() -> None:
    process = Process(HandClock())
    process.work(10, 5)
    before = read(process)
    process.work(7, 3, cached=2)
    counted = change_between(before, read(process)).counted
    assert (counted[Counted.input_total], counted[Counted.input_cached], counted[Counted.output]) == (7, 2, 3)


@pytest.mark.parametrize(("says_start", "more"), [(True, 4), (False, 4), (True, 5000)])
def test_after_a_restart_all_of_the_new_count_is_new(says_start: bool, more: int) -> None:
    """Also where it has overtaken the old count, if it says when it started."""
    process = Process(HandClock(), says_start=says_start)
    process.work(1000, 500)
    before = read(process)
    process.clock.passed += 60
    process.restart()
    process.work(10, more)
    assert output(before, read(process)) == more


def test_a_restart_that_overtook_the_old_count_is_found_by_its_series_too() -> None:
    key = "vllm:generation_tokens_total{engine=0}"
    before = Reading("t", "vllm", "m", 0.0, {Counted.output: {key: 5.0}}, created={key: 1000.0})
    now = replace(before, counters={Counted.output: {key: 50.0}}, created={key: 1060.0})
    assert output(before, now) == 50
    assert output(before, replace(now, created={key: 1000.0})) == 45


def test_one_engine_of_several_that_restarts_alone_does_not_touch_the_others() -> None:
    process = Process(HandClock(), engines=2, says_start=False)
    process.work(0, 1000, engine=0)
    process.work(0, 1000, engine=1)
    before = read(process)
    process.counted[1]["output"] = 0.0
    process.work(0, 30, engine=0)
    process.work(0, 7, engine=1)
    assert output(before, read(process)) == 30 + 7


def test_a_series_that_appears_in_a_known_process_counts_from_zero() -> None:
    process = Process(HandClock())
    before = replace(read(process), counters={})
    process.work(10, 5)
    assert output(before, read(process)) == 5


def test_a_series_that_is_away_for_a_while_counts_from_where_it_was() -> None:
    process = Process(HandClock(), engines=2)
    process.work(0, 100, engine=1)
    first = read(process)
    lacking = replace(first, counters={Counted.output: {"vllm:generation_tokens_total{engine=0}": 0.0}})
    process.work(0, 11, engine=1)
    assert output(first, lacking) == 0
    assert output(change_between(first, lacking).carried, read(process)) == 11


def test_the_same_process_under_another_name_counts_only_what_comes() -> None:
    old = Reading(
        "t", "vllm", "m", 0.0, {Counted.input_total: {"i": 90.0}, Counted.input_cached: {"a": 40.0}}, started=1.0
    )
    new = replace(old, counters={Counted.input_total: {"i": 200.0}, Counted.input_cached: {"b": 100.0}})
    assert change_between(old, new).counted[Counted.input_cached] == 0.0
    assert change_between(old, replace(new, started=99.0)).counted[Counted.input_cached] == 100.0


CACHED, HITS = "vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"


def cached_page(cached: float | None, hits: float, started: float | None) -> Reading:
    """Half a page lacks the counter of cached tokens, and shows another, which counts blocks of all engines."""
    counted = {CACHED: cached} if cached is not None else {HITS: hits}
    counters = {Counted.input_total: {"vllm:prompt_tokens_total": 1e6 + hits}, Counted.input_cached: counted}
    return Reading("t", "vllm", "m", 0.0, counters, started=started)


@pytest.mark.parametrize("started", [None, 1.0])
def test_half_a_page_does_not_count_under_a_lesser_name(started: float | None) -> None:
    """Whole, half, half, whole: the 30 tokens that were cached meanwhile count once, when they are read."""
    pages = [
        cached_page(40, 9e8, started),
        cached_page(None, 9e8 + 5, None),
        cached_page(None, 9e8 + 9, None),
        cached_page(70, 9e8 + 200, started),
    ]
    last, counted = pages[0], []
    for now in pages[1:]:
        counted.append(change_between(last, now).counted[Counted.input_cached])
        last = change_between(last, now).carried
    assert counted == [0, 0, 30]
    assert last.started == started


def test_a_better_name_that_appears_later_is_counted_from_there() -> None:
    first, then = cached_page(None, 500, 1.0), cached_page(40, 600, 1.0)
    assert change_between(first, then).counted[Counted.input_cached] == 0
    assert (
        change_between(change_between(first, then).carried, cached_page(45, 700, 1.0)).counted[Counted.input_cached]
        == 5
    )


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=30), st.integers(0, 1000))
def test_cached_tokens_never_outgrow_the_input_and_none_is_lost(steps: list[tuple[int, int]], base: int) -> None:
    """Engines count hits when a request is scheduled and its prompt when it ends: the one runs ahead of the other."""
    total, cached = 0, base
    last = _counts(total, cached)
    sums = {Counted.input_total: 0.0, Counted.input_cached: 0.0}
    for more_input, more_cached in [*steps, (10**6, 0)]:
        total, cached = total + more_input, cached + more_cached
        now = _counts(total, cached)
        counted = change_between(last, now).counted
        assert 0 <= counted[Counted.input_cached] <= counted[Counted.input_total]
        sums = {kind: sums[kind] + counted[kind] for kind in sums}
        last = change_between(last, now).carried
    assert sums == {Counted.input_total: total, Counted.input_cached: cached - base}


def _counts(total: float, cached: float) -> Reading:
    two = {f"{CACHED}{{engine=0}}": cached // 2, f"{CACHED}{{engine=1}}": cached - cached // 2}
    counters = {Counted.input_total: {"vllm:prompt_tokens_total": float(total)}, Counted.input_cached: two}
    return Reading("t", "vllm", "m", 0.0, counters)


def of_engine(engine: str, output_tokens: float, started: float | None = None) -> Reading:
    name = {"vllm": "vllm:generation_tokens_total", "sglang": "sglang:generation_tokens_total"}[engine]
    return Reading("t", engine, "m", 0.0, {Counted.output: {name: output_tokens}}, started=started)


def test_two_engines_that_answer_in_turn_are_counted_once() -> None:
    """SGLang does not tell its start; it came after vLLM, so that all it counted is new."""
    last, counted = of_engine("vllm", 1000.0, started=1.0), []
    for now in (of_engine("sglang", 70.0), of_engine("vllm", 1005.0, started=1.0), of_engine("sglang", 72.0)):
        counted.append(output(last, now))
        last = change_between(last, now).carried
    assert counted == [70, 5, 2]


def test_a_restart_is_one_by_the_servers_clock_where_ours_is_wrong() -> None:
    """Our clock was an hour ahead when the old process was read; the new one started a minute later."""
    old = replace(of_engine("vllm", 5.0, started=1000.0), at=5000.0 + 3600.0, server_at=5000.0)
    new = of_engine("vllm", 2.0, started=5060.0)
    assert not is_stranger(old, new)
    assert is_stranger(replace(old, server_at=None), new)
    assert is_stranger(replace(old, at=5000.0), replace(new, started=4000.0)), "both clocks say so: a load balancer"


def test_two_processes_that_answer_in_turn_are_not_restarts_and_clocks_that_differ_a_little_make_none_strange() -> None:
    clock = HandClock()
    one = Process(clock)
    clock.passed += 5000
    two = Process(clock)
    clock.passed += 5000
    assert [is_stranger(read(old), read(new)) for old, new in ((one, two), (two, one), (one, one))] == [
        True,
        True,
        False,
    ]
    before = read(one)
    clock.passed += 60
    one.restart()
    one.started -= 60 + CLOCKS_APART_S / 2
    assert not is_stranger(replace(before, started=there(before.started) - 500), read(one))


events = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, 500), st.integers(0, 500)),
        st.tuples(st.just("read"), st.just(0), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(history=events, says_start=st.booleans())
def test_what_was_seen_is_counted_once_over_any_history(history: list[tuple[str, int, int]], says_start: bool) -> None:
    """A restart is read before it happens, so that all work was seen; then the increases are all the work there was.

    A process that does not say when it started must count less than the one before to be told from it.
    """
    process = Process(HandClock(), says_start=says_start)
    last = read(process)
    counted = 0.0
    for what, tokens_in, tokens_out in history:
        process.clock.passed += 10
        if what == "work":
            process.work(tokens_in, tokens_out)
        else:
            now = read(process)
            counted += output(last, now)
            last = change_between(last, now).carried
            if what == "restart":
                process.restart()
                if not says_start:
                    now = read(process)
                    counted += output(last, now)
                    last = now
    counted += output(last, read(process))
    assert counted == process.true_output
