"""What must not mislead the meter: swapped models, numbers that cannot be, prices that hang on labels."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.measure.faulty import metrics_server
from tests.measure.metered import Bench, PageSource, Process, read_page

from tokonomics.measure.meter.engines import FINDER, readings_of, samples_of
from tokonomics.measure.meter.ledger import Ledger, Mark
from tokonomics.measure.meter.live_meter import LUMPY_NOW_S, MeterSettings
from tokonomics.measure.meter.readings import Missed, Reading
from tokonomics.measure.meter.session import meter_servers
from tokonomics.measure.meter.spending import PriceOf, Prices
from tokonomics.measure.meter.watch import Watch


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
    assert bench.only(work=(10, 5)).total.output == 5
    assert sum(span.output for span in bench.spans()) == 5


def test_a_past_that_is_read_in_is_not_kept_in_memory(fleet: Bench) -> None:
    """An hour of scrapes at 15 s are 240 spans, of which ``now`` needs those of five minutes at the most."""
    past: list[Reading] = []
    for _ in range(241):
        past += read_page(fleet.process.page(), "prod/a", fleet.clock.wall())
        fleet.clock.passed += 15
        fleet.process.work(10, 5)
    fleet.meter.backfill(past, fleet.clock.wall())
    assert sum(span.seconds for span in fleet.spans()) == pytest.approx(3600)
    assert len([span for sums in fleet.meter._sums.values() for span in sums.recent]) <= LUMPY_NOW_S / 15 + 1


def test_a_model_that_was_swapped_for_another_has_no_part_in_what_comes_after(bench: Bench) -> None:
    bench.tick()
    before = bench.tick(work=(10, 5)).total
    bench.process.restart()
    bench.process.model = "other"
    state = bench.tick(work=(10, 7))
    assert [(group.model, group.total.output) for group in state.groups] == [("other", 7)]
    assert state.total.output == 12
    bench.process.up = False
    bench.tick()
    assert sum(span.usd for span in bench.spans() if span.model == "tiny") == pytest.approx(before.usd)
    bench.process.up, bench.process.model = True, "tiny"
    bench.process.restart()
    (back,) = bench.tick(work=(10, 3)).groups
    assert (back.model, back.total.output) == ("tiny", 8)
    bench.again()
    assert bench.tick().total.output == 15


def test_a_server_that_does_not_tell_its_model_once_after_a_swap_still_has_the_same_counters(bench: Bench) -> None:
    bench.tick()
    bench.process.restart()
    bench.process.model = "other"
    bench.tick(work=(10, 7))
    bench.process.model = ""
    group = bench.only(work=(10, 3))
    assert (group.model, group.total.output) == ("other", 10)
    assert sum(span.output for span in bench.spans()) == 10


def test_a_mark_that_names_no_model_is_no_crash() -> None:
    watch = Watch("http://gpu:8000", 3.6, Mark("http://gpu:8000", 100.0, {}, {}, 3.6, is_gone=False))
    assert watch.missed(Missed("cannot be reached"), 160.0, 60.0) == []


@pytest.mark.parametrize("up", [True, False])
def test_a_server_with_a_label_has_the_price_of_its_label_from_the_first_second(bench: Bench, up: bool) -> None:
    bench.process.up = up
    bench.sources = [PageSource(bench.process, labels={"team": "search"})]
    bench.start(usd_per_hour=Prices(3.6, (PriceOf("team", "search", 36.0),)))
    bench.tick(0)
    state = bench.tick(100)
    assert {span.labels["team"] for span in bench.spans()} == {"search"}
    assert state.total.usd == pytest.approx(100 * 36 / 3600)


def test_a_counter_that_dips_within_one_process_is_not_counted_again(bench: Bench) -> None:
    """Twenty dips by one, each put right by the next page: what was served is what is counted."""
    bench.tick()
    said = []
    for _ in range(20):
        bench.tick(work=(100, 50))
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
    bench.tick(work=(100, 50))
    bench.process.restart()
    assert bench.only(work=(60, 30)).total.output == 80


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
def test_another_label_is_no_new_series(bench: Bench, monkeypatch: pytest.MonkeyPatch, labels: tuple[str, ...]) -> None:
    bench.tick(work=(1000, 400))
    for page in (relabelled('engine="0"', *labels), Process.page, relabelled('engine="0"', *labels)):
        monkeypatch.setattr(bench.process, "page", lambda page=page: page(bench.process))
        group = bench.only(work=(100, 40))
    assert (group.total.input_total, group.total.output) == (300, 120)


def test_a_series_that_stands_twice_spoils_the_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.tick()
    series = 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 7000000.0'
    with monkeypatch.context() as spoilt:
        spoilt.setattr(bench.process, "page", lambda: f"{series}\n{Process.page(bench.process)}")
        assert not bench.only().up
    assert bench.only(work=(10, 5)).total.output == 5


def test_a_page_of_countless_models_is_refused() -> None:
    lines = [f'vllm:generation_tokens_total{{model_name="m{number}"}} 1.0' for number in range(1001)]
    samples = samples_of("\n".join(lines) + "\n", FINDER)
    with pytest.raises(Missed, match="names 1,001 models"):
        readings_of(samples, "http://gpu:8000", 0.0)
    assert len(readings_of(samples[:1000], "http://gpu:8000", 0.0)) == 1000


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
