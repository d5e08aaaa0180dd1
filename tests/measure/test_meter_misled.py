"""What must not mislead the meter: late scrapes, swapped models, numbers that cannot be, prices that hang on labels."""

from pathlib import Path

import pytest
from tests.measure.metered import HandClock, PageSource, Process
from tests.measure.test_meter_clockwork import Bench, Scraper, run
from tests.measure.test_meter_clockwork import bench as bench

from tokonomics.measure.meter.engines import FINDER, readings_of, samples_of
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.measure.meter.meter import LATE_S, LUMPY_NOW_S, Meter
from tokonomics.measure.meter.prices import PriceOf, Prices
from tokonomics.measure.meter.readings import Missed, Reading
from tokonomics.measure.meter.watch import LONG_S, Watch


def test_a_scrape_that_comes_after_its_time_was_taken_for_a_gap_is_not_paid_again(tmp_path: Path) -> None:
    clock = HandClock()
    process, source = Process(clock), Scraper(clock)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, 3.6)
        source.scrape("prod/a", process)
        run(meter)
        clock.passed = LONG_S + LATE_S - 1
        process.work(10, 5)
        late = clock.wall() - LATE_S, process.page()
        clock.passed += 3
        assert run(meter).total.gap_s == pytest.approx(LONG_S + 2)
        source.scraped.append(("prod/a", *late))
        source.scrape("prod/a", process)
        total = run(meter).total
        assert total.output == 5
        assert total.seconds == pytest.approx(clock.passed)


def test_a_late_scrape_of_another_process_does_not_have_its_time_paid_again(tmp_path: Path) -> None:
    """It is refused, since a load balancer may have answered; the gap that it falls into is paid already."""
    clock = HandClock()
    process, other, source = Process(clock), Process(clock), Scraper(clock)
    other.started -= 1000
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, 3.6)
        source.scrape("prod/a", process)
        run(meter)
        clock.passed = LONG_S + LATE_S - 1
        late = clock.wall() - LATE_S, other.page()
        clock.passed += 3
        assert run(meter).total.gap_s == pytest.approx(LONG_S + 2)
        source.scraped.append(("prod/a", *late))
        source.scrape("prod/a", process)
        assert run(meter).total.seconds == pytest.approx(clock.passed)


@pytest.mark.parametrize("running", [1e308, -1.0])
def test_a_gauge_that_cannot_be_is_no_gauge(bench: Bench, running: float) -> None:
    bench.tick()
    bench.process.work(10, 5)
    bench.process.running = running
    group = bench.only()
    assert (group.total.output, group.running, group.total.batch) == (5, None, 0.0)
    assert [span.output for span in bench.spans()] == [5]


def test_a_counter_beyond_any_count_is_a_page_that_did_not_come(bench: Bench) -> None:
    bench.tick()
    before = bench.process.counted
    bench.process.counted = [{**before[0], "output": 1e308}] * 2
    assert not bench.only().up
    bench.process.counted = before
    bench.process.work(10, 5)
    assert bench.only().total.output == 5
    assert sum(span.output for span in bench.spans()) == 5


def test_a_past_that_is_read_in_is_not_kept_in_memory(tmp_path: Path) -> None:
    """An hour of scrapes at 15 s are 240 spans, of which ``now`` needs those of five minutes at the most."""
    clock = HandClock()
    process, source = Process(clock), Scraper(clock)
    past: list[Reading] = []
    for _ in range(241):
        past += readings_of(samples_of(process.page(), FINDER), "prod/a", clock.wall())
        clock.passed += 15
        process.work(10, 5)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, 3.6)
        meter.backfill(source, past, clock.wall())
        assert sum(span.seconds for span in book.spans()) == pytest.approx(3600)
        kept = [span for sums in meter._sums.values() for span in sums.recent]
    assert len(kept) <= LUMPY_NOW_S / 15 + 1


def test_a_model_that_was_swapped_for_another_has_no_part_in_what_comes_after(bench: Bench) -> None:
    bench.tick()
    bench.process.work(10, 5)
    before = bench.tick().total
    bench.process.restart()
    bench.process.model = "other"
    bench.process.work(10, 7)
    state = bench.tick()
    assert [(group.model, group.total.output) for group in state.groups] == [("other", 7)]
    assert state.total.output == 12
    bench.process.up = False
    bench.tick()
    assert sum(span.usd for span in bench.spans() if span.model == "tiny") == pytest.approx(before.usd)
    bench.process.up, bench.process.model = True, "tiny"
    bench.process.restart()
    bench.process.work(10, 3)
    (back,) = bench.tick().groups
    assert (back.model, back.total.output) == ("tiny", 8)
    bench.again()
    assert bench.tick().total.output == 15


def test_a_server_that_does_not_tell_its_model_once_after_a_swap_still_has_the_same_counters(bench: Bench) -> None:
    bench.tick()
    bench.process.restart()
    bench.process.model = "other"
    bench.process.work(10, 7)
    bench.tick()
    bench.process.model = ""
    bench.process.work(10, 3)
    group = bench.only()
    assert (group.model, group.total.output) == ("other", 10)
    assert sum(span.output for span in bench.spans()) == 10


def test_a_mark_that_names_no_model_is_no_crash() -> None:
    watch = Watch("http://gpu:8000", 3.6, Mark("http://gpu:8000", 100.0, {}, {}, 3.6, is_gone=False))
    assert watch.missed(Missed("cannot be reached"), 160.0, 60.0) == []


@pytest.mark.parametrize("up", [True, False])
def test_a_server_with_a_label_has_the_price_of_its_label_from_the_first_second(tmp_path: Path, up: bool) -> None:
    clock = HandClock()
    process = Process(clock, up=up)
    prices = Prices(3.6, (PriceOf("team", "search", 36.0),))
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([PageSource(process, labels={"team": "search"})], book, clock, prices)
        run(meter)
        clock.passed += 100
        state = run(meter)
        assert {span.labels["team"] for span in book.spans()} == {"search"}
    assert state.total.usd == pytest.approx(100 * 36 / 3600)
    assert not any("no server has it" in note for note in state.notes)
