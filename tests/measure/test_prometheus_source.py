"""Engines read through a Prometheus: the same counts as from their own pages, restarts and departures included."""

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.measure.faulty import Fault, FaultyPage, faulty_page
from tests.measure.real_prometheus import RealPrometheus, needs_prometheus, sglang_page, vllm_page
from tests.measure.served import served
from tests.there import refused

from tokonomics.errors import BadInput
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import Meter, MeterSettings
from tokonomics.measure.meter.prometheus_source import PrometheusSource, matchers, prometheus_gpus, scrapes_of
from tokonomics.measure.meter.readings import Counted, Missed, NoGpuSeen, Reading, SystemClock
from tokonomics.measure.meter.scrape import PrometheusApi, Series
from tokonomics.measure.meter.state import MeterState, MeterTally

STARTED = 1.7e9
ODD_JOB = r'the "new" one (1.5|2) \d+'
"""A name that must be quoted in a query, and is no pattern."""
GPU = "".join(
    f'{name}{{gpu="0",UUID="GPU-1",modelName="H100",hostname="node-1",pod="llama-0"}} {value}\n'
    for name, value in (
        ("DCGM_FI_DEV_POWER_USAGE", 350.5),
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", 7_200_000),
        ("DCGM_FI_DEV_GPU_UTIL", 9223372036854775794),
    )
)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealPrometheus]:
    with RealPrometheus(tmp_path_factory.mktemp("prometheus")).running() as server:
        yield server


class Fleet:
    """Three servers behind one Prometheus: two vLLM replicas and an SGLang one, with what each has counted."""

    match = 'namespace="prod"'

    def __init__(self, prometheus: RealPrometheus, stack: ExitStack) -> None:
        self.prometheus = prometheus
        self.counts: dict[str, dict[str, float]] = {
            "a": {"input": 1000, "cached": 100, "output": 200, "started": STARTED},
            "b": {"input": 5000, "cached": 0, "output": 700, "started": STARTED},
            "c": {"input": 300, "cached": 30, "output": 40},
        }
        self.pages: dict[str, FaultyPage] = {
            "a": stack.enter_context(faulty_page(FaultyPage(lambda: vllm_page(self.counts["a"], engines=(0, 1))))),
            "b": stack.enter_context(faulty_page(FaultyPage(lambda: vllm_page(self.counts["b"]) + GPU))),
            "c": stack.enter_context(faulty_page(FaultyPage(lambda: sglang_page(self.counts["c"])))),
        }
        self.there = ["a", "b", "c"]
        self.tell()

    def tell(self) -> None:
        self.prometheus.scrape(
            {
                self.pages[name].address.removeprefix("http://"): {
                    "pod": f"pod-{name}", "namespace": "prod", "team": "search" if name == "c" else "chat",
                    "job": ODD_JOB if name == "c" else "engines",
                }
                for name in self.there
            }
        )  # fmt: skip

    def seen(self) -> None:
        """Wait until Prometheus has scraped what every server that is there shows now."""
        for name in self.there:
            metric = "sglang:generation_tokens_total" if name == "c" else "vllm:generation_tokens_total"
            total = f'sum({metric}{{pod="pod-{name}",{self.match}}}) == {self.counts[name]["output"]}'
            self.prometheus.wait_for(total)


@pytest.fixture(scope="module")
def fleet(prometheus: RealPrometheus) -> Iterator[Fleet]:
    with ExitStack() as stack:
        fleet = Fleet(prometheus, stack)
        fleet.seen()
        yield fleet


def read(source: PrometheusSource) -> Sequence[Reading]:
    return asyncio.run(source.read())


@needs_prometheus
def test_every_replica_is_a_reading_with_the_labels_of_its_pod(fleet: Fleet) -> None:
    source = PrometheusSource(fleet.prometheus.url, fleet.match, keep_labels=["team"])
    found = {reading.target: reading for reading in read(source)}
    assert set(found) == {f"prod/pod-{name}" for name in "abc"}
    a, c = found["prod/pod-a"], found["prod/pod-c"]
    assert (a.engine, a.model, c.engine, c.model) == ("vllm", "llama", "sglang", "qwen")
    kinds = (Counted.input_total, Counted.input_cached, Counted.output)
    assert [a.total(kind) for kind in kinds] == [fleet.counts["a"][name] for name in ("input", "cached", "output")]
    assert (a.labels["team"], c.labels["team"]) == ("chat", "search")
    assert a.labels["instance"] == fleet.pages["a"].address.removeprefix("http://")
    assert (a.started, a.kv_share) == (fleet.counts["a"]["started"], 0.25)
    assert len(a.counters[Counted.output]) == 2, "each data-parallel engine stays a series of its own"
    names = [*a.counters[Counted.output], *c.counters[Counted.output]]
    assert not any("instance" in name or "team" in name for name in names)


@needs_prometheus
def test_a_sample_keeps_the_time_at_which_it_was_scraped(fleet: Fleet) -> None:
    """Asked twice at the same instant, after it: the same scrape has the same time, not that of asking.

    Soon after it: a scrape that has begun by the time of a query may come in only after its answer.
    """
    (known,) = fleet.prometheus.wait_for(f'timestamp(vllm:generation_tokens_total{{pod="pod-b",{fleet.match}}})')
    scraped = float(known["value"][1])
    source = PrometheusSource(fleet.prometheus.url, f'{fleet.match},pod="pod-b"', clock=lambda: scraped + 0.05)
    (first,) = read(source)
    assert first.at == pytest.approx(scraped, abs=0.0015)
    (again,) = read(source)
    assert again.at == first.at


@needs_prometheus
def test_the_meter_books_a_fleet_live_and_from_history_alike(fleet: Fleet, tmp_path: Path) -> None:
    """Tokens are the servers' own; dollars are the price over the time from each one's first to its last scrape.

    Between two questions a restarts twice and c once without saying so, which its falling counters betray.
    """
    source, truth = PrometheusSource(fleet.prometheus.url, fleet.match), dict.fromkeys("abc", 0.0)

    async def live(book: Ledger) -> MeterState:
        meter = Meter([source], book, SystemClock(), MeterSettings(3600.0, every_s=0.2))
        first = await meter.tick()
        assert first.total == MeterTally()
        for step in range(5):
            restarted = {1: "a", 2: "ac"}.get(step, "")
            for name, counts in fleet.counts.items():
                if name in restarted:
                    # Its clock is ahead of ours: no engine is read twice within the time that it takes to load.
                    counts |= {"input": 0, "cached": 0, "output": 0, "started": time.time() + 60 * step}
                counts["output"] += 5 + step
                truth[name] += 5 + step
            fleet.seen()
            if step != 1:
                await meter.tick()
        return await meter.tick()

    with Ledger(tmp_path / "live.db") as book:
        state = asyncio.run(live(book))
        marks = book.marks()
    by_target = {group.target[-1]: group for group in state.groups}
    assert {name: group.total.output for name, group in by_target.items()} == truth
    begins = {}
    for name, group in by_target.items():
        assert group.up
        assert group.total.usd == pytest.approx(group.total.seconds), "a dollar a second"
        begins[name] = marks[group.target].until - group.total.seconds
    since, until = min(begins.values()) - 0.001, max(mark.until for mark in marks.values())

    async def past(book: Ledger) -> None:
        source = PrometheusSource(fleet.prometheus.url, fleet.match)
        meter = Meter([source], book, SystemClock(), MeterSettings(3600.0))
        async for at, readings in source.history(since, until):
            meter.backfill(readings, at)

    with Ledger(tmp_path / "past.db") as book:
        asyncio.run(past(book))
        asyncio.run(past(book))  # What is booked already is not booked again.
        booked = {target[-1]: sum(mark.totals.values(), MeterTally()) for target, mark in book.marks().items()}
    assert {name: total.output for name, total in booked.items()} == truth
    # The same spans but for the scrapes of the others before each one's first live reading, and after its last.
    for name, total in booked.items():
        assert total.usd == pytest.approx(until - begins[name], abs=1.0)


@needs_prometheus
def test_gpus_are_read_through_the_same_prometheus_with_the_pods_they_work_for(fleet: Fleet) -> None:
    """The exporter's own pod has the label pod, so Prometheus calls that of the workload exported_pod."""
    (gpu,) = asyncio.run(prometheus_gpus(PrometheusApi(fleet.prometheus.url), 'pod="pod-b"'))
    assert (gpu.power_w, gpu.energy_j, gpu.utilization) == (350.5, 7200.0, None)
    assert (gpu.labels["pod"], gpu.labels["hostname"]) == ("llama-0", "node-1")
    with pytest.raises(NoGpuSeen):
        asyncio.run(prometheus_gpus(PrometheusApi(fleet.prometheus.url), 'pod="nobody"'))


@needs_prometheus
def test_a_pod_that_is_gone_is_not_reported_and_one_that_does_not_answer_still_is(fleet: Fleet) -> None:
    source = PrometheusSource(fleet.prometheus.url, fleet.match)
    read(source)
    fleet.pages["c"].fault = Fault.refused
    fleet.there = ["a", "c"]
    fleet.tell()
    fleet.prometheus.wait_for(f'up{{{fleet.match}}} == 0 or absent(up{{pod="pod-b",{fleet.match}}})', 2)
    assert {reading.target[-1] for reading in read(source)} >= {"a", "c"}
    left = {reading.target[-1] for reading in read(source)}
    assert left == {"a", "c"}
    last = [reading for reading in read(source) if reading.target.endswith("c")]
    assert len({reading.at for reading in last}) == 1, "no new page, so no new time"
    fleet.pages["c"].fault = Fault.none
    fleet.counts["c"]["output"] += 5
    fleet.seen()
    newer = max(reading.at for reading in read(source) if reading.target.endswith("c"))
    assert newer > last[0].at


@needs_prometheus
@pytest.mark.parametrize(("match", "said"), [('job=~"("', "missing closing"), ('namespace="nowhere"', "nowhere")])
def test_what_is_not_found_is_said_in_prometheus_words(prometheus: RealPrometheus, match: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refused:
        read(PrometheusSource(prometheus.url, match))
    assert prometheus.url in str(refused.value)


@pytest.mark.parametrize("query", ["sum(rate(x[5m]))", "x[5m]", "prod", 'vllm:generation_tokens_total{job="a"}'])
def test_a_query_where_matchers_are_meant_is_refused(query: str) -> None:
    assert refused(matchers, query).field == "query"


@pytest.mark.parametrize("match", ['{namespace="prod"}', ' namespace="prod", ', 'namespace="prod"'])
def test_matchers_may_come_with_braces(match: str) -> None:
    assert matchers(match) == 'namespace="prod"'


def one(job: str, times: Sequence[float], instance: str = "10.0.0.1:8000", **more: str) -> Series:
    labels = {"__name__": "vllm:generation_tokens_total", "job": job, "instance": instance, **more}
    return Series(labels, [(at, 1.0) for at in times])


def test_a_server_that_two_jobs_scrape_is_refused_before_it_counts_twice() -> None:
    with pytest.raises(BadInput, match="scraped twice") as twice:
        scrapes_of([one("pods", [1, 3, 5]), one("services", [2, 4, 6])], [])
    assert "query 'job=\"pods\"'" in str(twice.value)


def test_a_pod_that_takes_over_anothers_address_or_has_it_in_another_cluster_is_no_second_scraper() -> None:
    found = scrapes_of([one("pods", [1, 3], pod="old"), one("pods", [5, 7], pod="new")], [])
    assert [(dict(each.target)["pod"], each.at) for each in found] == [("old", 1), ("old", 3), ("new", 5), ("new", 7)]
    found = scrapes_of([one("pods", [1, 3], cluster="east"), one("pods", [2, 4], cluster="west")], [])
    assert len({each.target for each in found}) == 2


def test_a_label_of_the_target_that_changes_does_not_begin_a_counter_anew() -> None:
    """``up`` has the labels of the target and none of the engine: revision is one of them, engine is not."""
    up = Series({"__name__": "up", "job": "pods", "instance": "10.0.0.1:8000", "revision": "2"}, [(1.0, 1.0)])
    engines = [one("pods", [1], revision="1", engine="0"), one("pods", [2], revision="2", engine="0")]
    found = scrapes_of(engines, [up])
    assert [sample.labels for each in found for sample in each.samples] == [{"engine": "0"}] * 2


def test_sums_without_an_instance_are_refused() -> None:
    sums = [series({"__name__": "vllm:generation_tokens_total"}), (200, EMPTY), (200, NONE_LIVING)]
    with canned(sums) as url, pytest.raises(BadInput) as refused:
        read(PrometheusSource(url, clock=lambda: 10.0))
    assert refused.value.field == "prometheus"


def series(labels: Mapping[str, str]) -> tuple[int, str]:
    result = [{"metric": labels, "values": [[1.0, "1"], [2.0, "NaN"]]}]
    return 200, json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


@contextmanager
def canned(answers: Sequence[tuple[int, str]], get_only: bool = False, asked: list[str] | None = None) -> Iterator[str]:
    """A server that gives these answers in turn, the last one for good."""
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        if asked is not None:
            asked.append(await request.text())
        if get_only and request.method == "POST":
            return web.Response(status=405)
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_route("*", "/api/v1/query", answer)
    with served(app) as address:
        yield address.replace("http://", "http://user:secret@")


NONE_LIVING = json.dumps({"status": "success", "data": {"resultType": "vector", "result": []}})
EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((200, "<html>proxy: header Authorization: KEY</html>"), BadInput),
        ((404, "404 page not found"), BadInput),
        ((200, '{"status": "success"}'), BadInput),
        ((200, '{"hello": 1}'), BadInput),
        ((401, "who are you"), BadInput),
        ((400, '{"status":"error","error":"no such tenant: KEY"}'), BadInput),
        ((503, '{"status":"error","error":"query timed out"}'), Missed),
        ((502, "bad gateway " * 2 + "Authorization: KEY"), Missed),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, tuple) else "",
)
def test_no_error_shows_a_secret(
    answer: tuple[int, str], kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "0123456789abcdef" * 4
    with canned([(answer[0], answer[1].replace("KEY", f"Bearer {key}"))]) as url:
        with pytest.raises(kind) as wrong:
            read(PrometheusSource(url))
        assert "secret" not in str(wrong.value)
        monkeypatch.setenv("TOKONOMICS_METER_AUTHORIZATION", f"Bearer {key}")
        both = refused(PrometheusSource, url)
        assert both.field == "prometheus", "a password in the address and a header are one too many"
        with pytest.raises(kind) as wrong:
            read(PrometheusSource(url.replace("user:secret@", "")))
    assert not any(key[start : start + 8] in str(wrong.value) for start in range(len(key) - 8))


def test_a_prometheus_that_is_away_is_missed_and_not_waited_for() -> None:
    with faulty_page(FaultyPage(lambda: "")) as page:
        page.fault = Fault.refused
        with pytest.raises(Missed):
            read(PrometheusSource(page.address))


def test_an_error_page_in_the_middle_of_a_run_is_missed_and_does_not_end_it() -> None:
    name = {"__name__": "vllm:generation_tokens_total", "instance": "a:1", "job": "j"}
    living = json.dumps({"status": "success", "data": {"resultType": "vector", "result": [{"metric": name}]}})
    good = [series(name), (200, EMPTY), (200, living)]
    with canned([*good, (200, "<html>Sign in</html>"), *good]) as url:
        source = PrometheusSource(url, clock=lambda: 10.0)
        assert len(read(source)) == 1
        with pytest.raises(Missed):
            read(source)
        assert [reading.at for reading in read(source)] == [1.0], "still there; NaN is no sample"


def test_a_store_without_up_keeps_a_target_as_long_as_prometheus_would_show_it() -> None:
    name = {"__name__": "vllm:generation_tokens_total", "instance": "a:1", "job": "j"}
    now = [10.0]
    none = [(200, NONE_LIVING), (200, NONE_LIVING)]
    found, nothing = [series(name), (200, EMPTY), *none], [(200, EMPTY), *none]
    with canned([*found, *nothing, *nothing]) as url:
        source = PrometheusSource(url, clock=lambda: now[0])
        assert [reading.at for reading in read(source)] == [1.0]
        now[0] = 300.0
        assert [reading.at for reading in read(source)] == [1.0]
        now[0] = 302.0
        assert list(read(source)) == []


@pytest.mark.parametrize("get_only", [False, True])
def test_warnings_of_the_server_are_kept_also_through_a_proxy_that_lets_only_get_pass(get_only: bool) -> None:
    partial = json.dumps(json.loads(EMPTY) | {"warnings": ["store gateway b did not answer"]})
    with canned([(200, partial)], get_only=get_only) as url:
        source = PrometheusSource(url)
        with pytest.raises(BadInput):
            read(source)
        assert source.warnings == ["store gateway b did not answer"]


def test_history_that_is_too_much_at_once_is_asked_for_in_smaller_pieces() -> None:
    """Ten minutes are refused, and so are five; two and a half are not."""
    refused = 422, json.dumps({"status": "error", "error": "query processing would load too many samples into memory"})
    asked: list[str] = []
    pieces = [(200, EMPTY), (200, NONE_LIVING)] * 4
    with canned([refused, refused, *pieces], asked=asked) as url:
        source = PrometheusSource(url)

        async def whole() -> int:
            return len([piece async for piece in source.history(0.0, 600.0)])

        with pytest.raises(BadInput):
            asyncio.run(whole())
    assert len([question for question in asked if "count%28up" not in question]) == 2 + 4


@pytest.mark.parametrize("url", ["localhost:9090", "ftp://x", "http://", "http://x:0"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    assert refused(PrometheusSource, url).field == "prometheus"


@pytest.mark.parametrize("base", ["http://prom:9090", "https://host/prometheus"])
@pytest.mark.parametrize("path", ["", "/", "/graph", "/query", "/api/v1/query", "/graph/"])
def test_the_address_of_a_page_is_taken_for_the_server_it_belongs_to(base: str, path: str) -> None:
    assert PrometheusSource(f"{base}{path}").name == base
