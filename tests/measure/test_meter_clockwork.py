"""Gaps, absences, clocks that jump and servers that come and go, in the meter's own time."""

from copy import copy
from itertools import pairwise

import pytest
from tests.measure.metered import BEGIN, Bench, HandSource, PageSource, Process, read_page

from tokonomics.measure.meter.bill import bill
from tokonomics.measure.meter.exposition import page
from tokonomics.measure.meter.live_meter import LATE_S, MeterSettings
from tokonomics.measure.meter.readings import Reading
from tokonomics.measure.meter.spans import WatchedSpan
from tokonomics.measure.meter.state import Planned
from tokonomics.measure.meter.watch import LONG_S, STARTED_AGAIN, STRANGERS_BELIEVED


def test_tokens_from_before_the_first_reading_are_not_ours(bench: Bench) -> None:
    group = bench.only(work=(1000, 1000))
    assert (group.total.output, group.total.usd) == (0, 0)


def test_a_server_that_is_away_is_paid_and_its_tokens_are_shown_as_unseen(bench: Bench) -> None:
    bench.tick()
    bench.process.work(10, 5)
    bench.process.up = False
    for _ in range(3):
        state = bench.tick()
        assert not state.groups[0].up
    assert state.total.gap_usd == pytest.approx(45 * 0.001)
    assert state.total.output == 0
    assert state.notes == ("http://gpu:8000: cannot be reached",)
    bench.process.up = True
    group = bench.only()
    assert (group.total.output, group.total.unseen_tokens, group.misses) == (5, 15, 3)
    assert group.total.gap_s == pytest.approx(60)
    assert bench.only().total.idle_s == pytest.approx(15)


def test_what_was_produced_while_the_meter_was_away_is_an_absence_of_its_own(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.passed += 985
    bench.process.work(100, 50)
    bench.again()
    group = bench.only()
    assert group.total.away_s == pytest.approx(1000)
    assert group.total.unseen_tokens == 150
    assert [span.watched for span in bench.spans()] == [WatchedSpan.seen, WatchedSpan.away]


def test_from_now_leaves_the_absence_out(bench: Bench) -> None:
    bench.tick()
    bench.tick(work=(1, 1))
    bench.clock.passed += 985
    bench.process.work(100, 50)
    bench.again(from_now=True)
    group = bench.only()
    assert (group.total.away_s, group.total.output) == (0, 1)


def test_a_machine_that_slept_was_not_watching(bench: Bench) -> None:
    bench.tick()
    group = bench.only(seconds=LONG_S + 1000, work=(10, 5))
    assert group.total.away_s == pytest.approx(LONG_S + 1000)


@pytest.mark.parametrize("jump", [-3500.0, -30.0, 30.0, 7200.0, 40 * 365 * 86_400.0])
def test_a_wall_clock_that_is_set_changes_labels_and_no_sums(bench: Bench, jump: float) -> None:
    for place in range(20):
        if place == 10:
            bench.clock.offset += jump
        state = bench.tick(work=(10, 5))
    spans = bench.spans()
    assert all(span.seconds >= 0 for span in spans)
    assert state.total.seconds == pytest.approx(19 * 15)
    assert state.total.output == 19 * 5
    assert any(span.end == pytest.approx(bench.clock.wall()) for span in spans)
    if jump > 0:
        assert all(then.start >= first.end - 1e-6 for first, then in pairwise(spans))


def test_the_clock_is_behind_the_book_when_the_next_meter_starts(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.offset -= 3600
    bench.process.work(10, 5)
    bench.again()
    group = bench.only()
    assert (group.total.away_s, group.total.output) == (0, 5)
    assert group.total.seconds == pytest.approx(15)


def test_an_absence_after_the_clock_was_set_back_in_the_one_before_is_paid_in_full(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.offset -= 3600
    bench.again()
    bench.tick()
    bench.clock.passed += 585
    bench.again()
    assert bench.only().total.seconds == pytest.approx(15 + 600)


def test_a_restart_is_said_with_what_cannot_be_known_of_it(bench: Bench) -> None:
    bench.tick()
    assert bench.only(work=(10, 5)).said is None
    bench.process.restart()
    assert bench.only().said == STARTED_AGAIN
    assert bench.only().said is None


def test_sums_of_the_hour_and_the_day_begin_again(bench: Bench) -> None:
    bench.tick(23 * 3600 + 3585)
    assert bench.only(10, work=(10, 5)).today.output == 5
    group = bench.only(10, work=(10, 7))
    # The span from 23:59:55 to 0:00:05 has its tokens in the new day, half of its dollars in the old one.
    assert (group.today.output, group.hour.output, group.total.output) == (7, 7, 12)
    assert group.today.usd == pytest.approx(0.005)
    assert group.total.usd == pytest.approx(0.020)


def test_today_goes_on_after_the_meter_was_started_again(bench: Bench) -> None:
    bench.tick(7200)
    bench.tick(work=(10, 5))
    bench.again()
    group = bench.only(work=(10, 7))
    assert (group.today.output, group.hour.output) == (12, 12)


def test_now_forgets_after_a_minute(bench: Bench) -> None:
    bench.tick()
    assert bench.only(work=(0, 60)).now.output == 60
    for _ in range(3):
        group = bench.only()
    assert group.now.output == 60
    assert group.now.output_per_s == pytest.approx(1)
    assert bench.only().now.output == 0


def test_two_processes_behind_one_address_are_said_and_not_counted_as_restarts(bench: Bench) -> None:
    bench.tick(5000)
    other = Process(bench.clock)
    bench.tick(5000)
    mine = copy(bench.process)
    other.work(500, 500)
    bench.process.__dict__.update(other.__dict__)
    group = bench.only()
    assert group.said is not None
    assert "load balancer" in group.said
    bench.process.__dict__.update(mine.__dict__)
    group = bench.only()
    assert (group.said, group.total.output) == (None, 0)


def test_after_more_than_a_month_counting_starts_anew_and_says_so(bench: Bench) -> None:
    bench.tick()
    bench.tick(work=(1, 1))
    bench.clock.passed += 56 * 365 * 86_400
    bench.process.work(100, 50)
    bench.again()
    group = bench.only()
    assert group.said is not None
    assert "starts anew" in group.said
    assert (group.total.output, group.total.away_s) == (1, 0)


def test_an_absence_costs_what_the_server_cost_before_it(bench: Bench) -> None:
    bench.tick()
    bench.tick()
    bench.clock.passed += 985
    bench.again(usd_per_hour=36.0)
    assert bench.only().total.usd == pytest.approx((15 + 1000) * 0.001)
    assert bench.only().total.usd == pytest.approx((15 + 1000) * 0.001 + 15 * 0.01)


@pytest.mark.parametrize("began_meanwhile", [True, False])
def test_a_server_that_is_down_when_the_meter_starts_is_paid_for(bench: Bench, began_meanwhile: bool) -> None:
    """Its gap has no model until it answers; its counts are ours if it began while we looked."""
    bench.process.work(100, 50)
    bench.process.up = False
    bench.tick()
    state = bench.tick()
    (group,) = state.groups
    assert (group.up, group.model) == (False, "")
    assert state.total.gap_usd == pytest.approx(0.015)
    assert b'llm_target_up{engine="",model="",target="http://gpu:8000"} 0.0' in page(state, MeterSettings(3.6))[0]
    bench.again()
    bench.process.up = True
    if began_meanwhile:
        bench.process.restart()
        bench.process.work(10, 5)
    group = bench.only()
    assert (group.up, group.model) == (True, "tiny")
    assert group.total.output == (5 if began_meanwhile else 0)
    assert group.total.usd == pytest.approx(0.030)
    assert group.today.usd == group.total.usd
    assert {span.model for span in bench.spans()} == {"tiny"}


def test_a_clock_that_was_wrong_for_one_reading_is_followed_back(bench: Bench) -> None:
    year = 365 * 86_400.0
    for place in range(10):
        bench.clock.offset = BEGIN + (year if place == 4 else 0.0)
        state = bench.tick(work=(10, 5))
        if place == 5:
            assert state.notes == ("http://gpu:8000: the clock was set back by 8,760 h",)
    assert state.total.seconds == pytest.approx(9 * 15)
    assert [span.start < BEGIN + 86_400 for span in bench.spans()].count(False) == 1
    assert state.today.output >= 4 * 5


def test_blue_after_green_loses_no_token_that_was_read(bench: Bench) -> None:
    """A new process that warmed up beside the old one takes its address over: after three readings it is believed."""
    bench.tick(5000)
    bench.process.started -= 3000
    bench.process.work(0, 500)
    for _ in range(STRANGERS_BELIEVED + 1):
        group = bench.only()
        bench.process.work(0, 7)
    assert (group.said, group.total.output) == (None, 7 * STRANGERS_BELIEVED)


def test_every_scrape_of_a_prometheus_counts_with_its_own_time(fleet: Bench) -> None:
    fleet.scrape(0)
    for _ in range(4):
        fleet.clock.passed += 30
        fleet.process.work(10, 5)
        fleet.scraper.scrape(fleet.process)
    state = fleet.tick(7)
    assert state.total.output == 20
    assert state.total.seconds == pytest.approx(120)
    assert fleet.tick(7).total.seconds == pytest.approx(120), "nothing new: nothing is paid twice"
    fleet.scraper.down = True
    assert fleet.tick(0).notes == ("http://prometheus:9090: does not answer",)
    fleet.scraper.down = False
    assert fleet.scrape(30).total.seconds == pytest.approx(fleet.clock.passed)


def test_a_pod_is_paid_from_its_first_breath_to_its_last_scrape(fleet: Bench) -> None:
    fleet.scrape(0)
    fleet.clock.passed += 10
    second = Process(fleet.clock)
    second.work(10, 5)
    fleet.clock.passed += 20
    fleet.scraper.scrape(second, "prod/b")
    new = next(group for group in fleet.scrape(0).groups if group.target == "prod/b")
    assert new.total.output == 5
    assert new.total.seconds == pytest.approx(20)
    fleet.scraper.living.discard("prod/b")
    assert [group.target for group in fleet.scrape(3600).groups] == ["prod/a"]
    assert sum(span.seconds for span in fleet.spans() if span.target == "prod/b") == pytest.approx(20)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_pod_that_left_and_came_back_keeps_its_tokens_and_is_not_paid_between(fleet: Bench, restarts: bool) -> None:
    """Half a minute, an hour away in which it serves on or starts again, half a minute from its first scrape on."""
    fleet.scrape(0, work=(10, 5))
    fleet.scrape(30, work=(10, 5))
    fleet.scraper.living.clear()
    assert fleet.tick(30).groups == ()
    fleet.clock.passed += 3600
    if restarts:
        fleet.process.restart()
    fleet.scrape(0, work=(10, 7))
    state = fleet.scrape(30)
    assert state.total.output == 5 + 7
    assert state.total.seconds == pytest.approx(30 + 30)
    assert state.today.output == state.total.output == sum(span.output for span in fleet.spans())
    (mark,) = fleet.book.marks().values()
    assert mark.totals["tiny"] == state.total


def test_the_past_of_a_pod_that_is_gone_is_not_booked_again(fleet: Bench) -> None:
    """A minute; gone, the meter starts anew and asks Prometheus for that minute again."""
    past: list[Reading] = []
    for _ in range(5):
        fleet.scrape(work=(100, 10))
        past += read_page(fleet.process.page(), "prod/a", fleet.clock.wall())
    fleet.scraper.living.clear()
    fleet.tick()
    fleet.again()
    fleet.meter.backfill(past, fleet.clock.wall())
    assert sum(span.seconds for span in fleet.spans()) == pytest.approx(60)


def test_pods_that_are_gone_for_good_are_forgotten_but_for_their_sums(fleet: Bench) -> None:
    """Twenty pods of a quarter of a minute each; two months later another one comes."""
    past: list[Reading] = []
    for number in range(20):
        fleet.process.restart()
        fleet.scraper.living.clear()
        for _ in range(2):
            fleet.clock.passed += 15
            fleet.process.work(100, 10)
            fleet.scraper.scrape(fleet.process, f"prod/llama-{number}")
            past += read_page(fleet.process.page(), f"prod/llama-{number}", fleet.clock.wall())
            fleet.tick(0)
    assert len(fleet.book.marks()) == 20
    fleet.clock.passed += 60 * 86_400.0
    fleet.scraper.living.clear()
    fleet.process.restart()
    booked = fleet.scrape().total
    assert set(fleet.book.marks()) == {target for target, _ in fleet.meter._sums} == {"prod/a"}
    assert booked.output == 39 * 10, "all but what the first had counted before it was seen"
    fleet.again()
    fleet.meter.backfill(past, fleet.clock.wall())
    assert sum(span.server_s for span in fleet.spans()) == pytest.approx(booked.seconds), "the past counts once"
    assert fleet.tick(0).total == booked


def test_a_pod_that_is_there_but_not_scraped_is_a_gap(fleet: Bench) -> None:
    fleet.scrape(0)
    assert fleet.tick(1000).total.gap_s == pytest.approx(1000 - LATE_S)
    state = fleet.scrape(30, work=(10, 5))
    assert state.total.gap_s == pytest.approx(1030)
    assert state.total.unseen_tokens == 15


@pytest.mark.parametrize("strange", [False, True])
def test_a_scrape_that_comes_after_its_time_was_taken_for_a_gap_is_not_paid_again(fleet: Bench, strange: bool) -> None:
    """Also one that is refused, since another process may have answered for a load balancer."""
    other = Process(fleet.clock)
    other.started -= 1000
    fleet.scrape(0)
    fleet.clock.passed = LONG_S + LATE_S - 1
    fleet.process.work(10, 5)
    late = "prod/a", fleet.clock.wall() - LATE_S, (other if strange else fleet.process).page()
    assert fleet.tick(3).total.gap_s == pytest.approx(LONG_S + 2)
    fleet.scraper.scraped.append(late)
    total = fleet.scrape(0).total
    assert total.output == 5
    assert total.seconds == pytest.approx(fleet.clock.passed)


def test_a_source_that_is_strange_from_the_first_does_not_hide_the_others(bench: Bench) -> None:
    bad = Process(bench.clock, up=False)
    bench.sources = [PageSource(bench.process, "http://a:1"), PageSource(bad, "http://b:1")]
    bench.start()
    bench.tick(0)
    state = bench.tick(work=(10, 5))
    assert state.total.output == 5
    assert state.notes == ("http://b:1: cannot be reached",)
    assert state.at == BEGIN + bench.clock.passed


def test_nothing_that_counts_up_on_our_page_ever_falls(bench: Bench) -> None:
    """Hits run ahead of the prompts they are part of, a page is cut in half, a server is away."""
    lines = ""
    bench.sources = [HandSource("http://gpu:8000", lambda: read_page(lines, "http://gpu:8000", bench.clock.wall()))]
    bench.start()
    hits: list[tuple[int, int | None]] = [
        (0, 0),
        (100, 40),
        (100, 130),
        (200, None),
        (200, 130),
        (300, 300),
        (600, 300),
    ]
    before: dict[str, float] = {}
    for prompt, cached in hits:
        lines = f'vllm:prompt_tokens_total{{model_name="m"}} {prompt}\n'
        lines += f'vllm:prefix_cache_hits_total{{model_name="m"}} {cached}\n' if cached is not None else ""
        state = bench.tick()
        rows = [line.rpartition(" ") for line in page(state, MeterSettings(3.6))[0].decode().splitlines()]
        counts = {name: float(value) for name, _, value in rows if "_total{" in name}
        assert all(counts[name] >= value for name, value in before.items())
        before = counts
    assert (state.total.input_cached, state.total.input_computed) == (300, 300)


def test_now_is_one_window_for_all_engines(bench: Bench) -> None:
    """Under a steady load the last minutes cost what the hour costs, though one engine counts at the end."""
    pages = {
        "http://a:1": 'vllm:prompt_tokens_total{{model_name="m"}} {0}000\n'
        'vllm:generation_tokens_total{{model_name="m"}} {0}000\n',
        "http://b:1": "llamacpp:prompt_tokens_total {0}0\nllamacpp:tokens_predicted_total {0}0\n",
    }

    def source(name: str) -> HandSource:
        return HandSource(
            name, lambda: read_page(pages[name].format(int(bench.clock.passed)), name, bench.clock.wall())
        )

    bench.sources = [source(name) for name in pages]
    bench.start()
    for _ in range(30):
        state = bench.tick()
    assert state.now.usd_per_mtok == pytest.approx(state.hour.usd_per_mtok)


@pytest.mark.parametrize(("then", "starved_s"), [(60.0, 0.0), (30.0, 60.0)])
def test_the_screen_and_a_report_name_the_same_starved_dollars(bench: Bench, then: float, starved_s: float) -> None:
    """Half of the planned 48 is 24: 9 and 60 running are 34.5 in the mean of a row, 9 and 30 are 19.5."""
    planned = Planned(usd_per_mtok=1.0, batch=48.0)
    bench.start(planned=planned)
    bench.tick(0)
    for running in (9.0, 9.0, then, then):
        bench.process.work(100, 50)
        bench.process.running = running
        screen = bench.tick().total
    report = bill(bench.spans(), BEGIN, bench.clock.wall(), ("model",), planned).total
    assert screen.starved_usd == pytest.approx(report.starved_usd)
    assert screen.starved_s == report.starved_s
    assert (screen.starved_s, screen.busy_s) == (starved_s, 60.0)
