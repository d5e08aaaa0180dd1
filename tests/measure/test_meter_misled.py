"""What must not mislead the meter: late scrapes, swapped models, numbers that cannot be, prices that hang on labels."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.measure.metered import HandClock, PageSource, Process
from tests.measure.metrics_server import metrics_server
from tests.measure.test_meter_clockwork import Bench, Scraper, run
from tests.measure.test_meter_clockwork import bench as bench

from tokonomics.measure.meter.engines import FINDER, readings_of, samples_of
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.measure.meter.live_meter import LATE_S, LUMPY_NOW_S, Meter, MeterSettings
from tokonomics.measure.meter.readings import Missed, Reading
from tokonomics.measure.meter.session import meter_servers
from tokonomics.measure.meter.spending import PriceOf, Prices
from tokonomics.measure.meter.watch import LONG_S, Watch


def test_a_scrape_that_comes_after_its_time_was_taken_for_a_gap_is_not_paid_again(tmp_path: Path) -> None:
    clock = HandClock()
    process, source = Process(clock), Scraper(clock)
    with Ledger(tmp_path / "meter.db") as book:
        meter = Meter([source], book, clock, MeterSettings(3.6))
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
        meter = Meter([source], book, clock, MeterSettings(3.6))
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
        meter = Meter([source], book, clock, MeterSettings(3.6))
        meter.backfill(past, clock.wall())
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
        meter = Meter([PageSource(process, labels={"team": "search"})], book, clock, MeterSettings(prices))
        run(meter)
        clock.passed += 100
        state = run(meter)
        assert {span.labels["team"] for span in book.spans()} == {"search"}
    assert state.total.usd == pytest.approx(100 * 36 / 3600)
    assert not any("no server has it" in note for note in state.notes)


def test_a_counter_that_dips_within_one_process_is_not_counted_again(bench: Bench) -> None:
    """Twenty dips by one, each put right by the next page: what was served is what is counted."""
    bench.tick()
    said = []
    for _ in range(20):
        bench.process.work(100, 50)
        bench.tick()
        bench.process.counted[0]["output"] -= 1
        said.append(" ".join(bench.tick().notes))
        bench.process.counted[0]["output"] += 1
    group = bench.only()
    assert (group.total.input_total, group.total.output) == (bench.process.true_input, bench.process.true_output)
    assert all("vllm:generation_tokens_total fell from" in notes for notes in said)


def test_a_process_that_says_nothing_of_itself_is_believed_to_have_restarted(bench: Bench) -> None:
    """As Prometheus' own ``increase`` does."""
    bench.process.says_start = False
    bench.tick()
    bench.process.work(100, 50)
    bench.tick()
    bench.process.restart()
    bench.process.work(60, 30)
    assert bench.only().total.output == 80


def relabelled(old: str, *new: str) -> Callable[[Process], str]:
    """The page with other labels than before, where a series may have become several."""

    def page(process: Process) -> str:
        lines = []
        for line in Process.page(process).splitlines():
            if old not in line:
                lines.append(line)
                continue
            name, _, value = line.rpartition(" ")
            lines += [f"{name.replace(old, label)} {float(value) / len(new)}" for label in new]
        return "\n".join(lines) + "\n"

    return page


@pytest.mark.parametrize(
    "labels",
    [('engine="0",lora=""',), ('engine="zero"',), ('engine="0",part="a"', 'engine="0",part="b"')],
    ids=["added", "renamed", "split"],
)
def test_another_label_of_the_same_series_is_no_new_series(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...]
) -> None:
    bench.process.work(1000, 400)
    bench.tick()
    for page in (relabelled('engine="0"', *labels), Process.page, relabelled('engine="0"', *labels)):
        monkeypatch.setattr(bench.process, "page", lambda page=page: page(bench.process))
        bench.process.work(100, 40)
        group = bench.only()
    assert (group.total.input_total, group.total.output) == (300, 120)


def test_a_series_that_stands_twice_makes_a_page_that_did_not_come(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.tick()
    series = 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 7000000.0'
    with monkeypatch.context() as spoilt:
        spoilt.setattr(bench.process, "page", lambda: f"{series}\n{Process.page(bench.process)}")
        assert not bench.only().up
    bench.process.work(10, 5)
    assert bench.only().total.output == 5


def test_a_page_of_countless_models_is_refused() -> None:
    lines = [f'vllm:generation_tokens_total{{model_name="m{number}"}} 1.0' for number in range(1001)]
    samples = samples_of("\n".join(lines) + "\n", FINDER)
    with pytest.raises(Missed, match="names 1,001 models"):
        readings_of(samples, "http://gpu:8000", 0.0)
    assert len(readings_of(samples[:1000], "http://gpu:8000", 0.0)) == 1000


def test_labels_follow_a_clock_that_is_set_back_by_half_an_hour(bench: Bench) -> None:
    bench.tick()
    bench.clock.offset -= 1800
    bench.process.work(10, 5)
    state = bench.tick()
    assert state.notes == ("http://gpu:8000: the clock was set back by 30 min",)
    assert bench.spans()[0].end == pytest.approx(bench.clock.wall())
    assert state.total.output == 5
    assert state.total.seconds == pytest.approx(15)


def test_one_server_by_two_names_is_metered_once(tmp_path: Path) -> None:
    """By whichever name the ledger has, or else the first; another port is another server."""
    with metrics_server() as one, metrics_server() as other, Ledger(tmp_path / "meter.db") as book:
        first, second = (f"{server.address}/good" for server in (one, other))
        again = first.replace("127.0.0.1", "localhost")
        said: list[str] = []
        for urls in ([again, second], [first, again, second]):
            asked = MeterSettings(3.6, urls, every_s=0.05, beats=1)
            state = meter_servers(asked, book, lambda _: None, said.append)
            assert {group.target for group in state.groups} == {again, second}
        assert set(book.marks()) == {again, second}
    assert said == [f"{first} is {again}: metered once"]
