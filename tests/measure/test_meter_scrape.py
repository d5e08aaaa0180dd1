"""Pages over real HTTP: found where engines have them, and anything wrong is a reading that did not come."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import aiohttp
import pytest
from tests.measure.faulty import MetricsServer
from tests.measure.metered import HandClock

from tokonomics.addresses import target
from tokonomics.errors import BadInput
from tokonomics.measure.meter import scrape
from tokonomics.measure.meter.engines import UnknownEngine
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.readings import Counted, Missed, Reading
from tokonomics.measure.meter.scrape import EngineSource, PrometheusApi, address_of, authorization
from tokonomics.measure.meter.session import meter_servers
from tokonomics.measure.meter.state import MeterState


def read(url: str, times: int = 1) -> Sequence[Reading]:
    async def reads() -> Sequence[Reading]:
        async with aiohttp.ClientSession(headers=authorization()) as session:
            source = EngineSource(address_of(url), session, HandClock())
            for _ in range(times - 1):
                await source.read()
            return await source.read()

    return asyncio.run(reads())


@pytest.mark.parametrize("path", ["good", "good/", "good/metrics", "good/v1"])
def test_a_page_is_found_from_the_servers_address(metrics: MetricsServer, path: str) -> None:
    metrics.process.work(100, 20)
    (reading,) = read(f"{metrics.address}/{path}")
    assert reading.total(Counted.output) == metrics.process.true_output


def test_the_path_of_tensorrt_llm_is_tried_once_and_kept(metrics: MetricsServer) -> None:
    metrics.requests.clear()
    read(f"{metrics.address}/elsewhere", times=3)
    asked = [request.path for request in metrics.requests]
    assert asked == ["/elsewhere/metrics", *["/elsewhere/prometheus/metrics"] * 3]


def test_a_key_comes_from_the_environment(metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_METER_AUTHORIZATION", "Bearer secret")
    read(f"{metrics.address}/good")
    assert metrics.requests[-1].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("way", "fix"),
    [(way, None) for way in ("html", "error", "cut", "garbage", "endless", "slow", "redirects")]
    + [("off", "--metrics"), ("node", "--enable-metrics")],
)
def test_no_page_is_a_miss(metrics: MetricsServer, way: str, fix: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirect may lead to another server, whose tokens would count here."""
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.2 if way == "slow" else 10.0)
    monkeypatch.setattr(scrape, "MOST_BYTES", 1_000_000)
    with pytest.raises(Missed) as missed:
        read(f"{metrics.address}/{way}")
    assert fix is None or fix in str(missed.value.fix)
    assert isinstance(missed.value, UnknownEngine) == (way == "node")


def test_nobody_there_is_a_miss() -> None:
    with pytest.raises(Missed):
        read("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "text",
    ["", "ftp://x", "http://", "http://x:0", "http://[", "http://user:password@x:1", "http://x:1/metrics?token=s"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        address_of(text)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((f"http://gpu1:8000{path}", "http://gpu1:8000") for path in ("", "/", "/v1", "/v1/", "/metrics")),
        ("http://gpu1:8000/prometheus/metrics", "http://gpu1:8000"),
        ("gpu1:8000", "http://gpu1:8000"),
        ("HTTP://GPU1:8000", "http://gpu1:8000"),
        ("http://gpu1:80/", "http://gpu1"),
        ("https://gpu1:443", "https://gpu1"),
        ("http://gpu1:443", "http://gpu1:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_one_server_has_one_name_however_it_is_written(text: str, name: str) -> None:
    assert address_of(text) == name


def test_servers_that_hang_do_not_make_others_miss(metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One place, held until its time is up: the time of who waits for it has not begun."""
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.3)

    async def reads() -> list[Sequence[Reading] | BaseException]:
        async with aiohttp.ClientSession() as session:
            place, clock = asyncio.Semaphore(1), HandClock()
            urls = [*(f"{metrics.address}/slow" for _ in range(3)), f"{metrics.address}/good"]
            sources = [EngineSource(url, session, clock, at_once=place) for url in urls]
            return await asyncio.gather(*(source.read() for source in sources), return_exceptions=True)

    *hung, good = asyncio.run(reads())
    assert all(isinstance(each, Missed) for each in hung)
    assert not isinstance(good, BaseException)


@pytest.mark.parametrize("first", ["vllm", "tgi"])
def test_another_engine_that_comes_to_the_address_is_found(metrics: MetricsServer, first: str) -> None:
    """Also one that tells its start where one was that does not."""
    pages = {"vllm": metrics.process.page(), "tgi": (Path(__file__).parent / "pages" / "tgi-3.prom").read_text()}
    order = [first, *(name for name in pages if name != first)]

    async def reads() -> list[Reading]:
        async with aiohttp.ClientSession() as session:
            source = EngineSource(address_of(f"{metrics.address}/good"), session, HandClock())
            found: list[Reading] = []
            for name in order:
                metrics.source = partial(pages.__getitem__, name)
                found += await source.read()
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "source", metrics.source)
        assert [reading.engine for reading in asyncio.run(reads())] == order


def test_a_run_goes_on_when_one_of_its_servers_is_bad_from_the_start(metrics: MetricsServer, tmp_path: Path) -> None:
    shown: list[MeterState] = []
    urls = [f"{metrics.address}/good", f"{metrics.address}/error"]
    with Ledger(tmp_path / "meter.db") as book:
        last = meter_servers(MeterSettings(2.0, urls, every_s=0.05, beats=2), book, shown.append)
    assert len(shown) in (2, 3)  # a beat that a busy machine comes too late for is skipped
    assert last == shown[-1]
    assert {group.target: group.up for group in shown[-1].groups} == {urls[0]: True, urls[1]: False}


@pytest.mark.parametrize("way", ["node", "error"])
def test_a_run_that_cannot_begin_says_where(metrics: MetricsServer, tmp_path: Path, way: str) -> None:
    """One page of no engine ends it even beside a good one; one that fails only where none answers."""
    urls = [f"{metrics.address}/{way}", *([f"{metrics.address}/good"] if way == "node" else [])]
    with Ledger(tmp_path / "meter.db") as book, pytest.raises(BadInput) as refused:
        meter_servers(MeterSettings(2.0, urls), book, lambda state: None)
    assert refused.value.where == urls[0]


@pytest.mark.parametrize("host", ["[::1]", "gpu2", "10.0.0.7"])
def test_an_address_is_shown_as_one_can_write_it_and_without_secrets(host: str) -> None:
    written = f"http://me:secret@{host}:9090/prom?key=secret"
    assert PrometheusApi(written).shown == f"http://{host}:9090/prom"
    assert target(written).shown == f"http://{host}:9090/prom/v1/chat/completions"
    assert address_of(f"http://{host}:9090/prom/") == f"http://{host}:9090/prom"
