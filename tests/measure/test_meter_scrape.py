"""Pages over real HTTP: found where engines have them, and anything wrong is a reading that did not come."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import pytest
from tests.measure.metered import HandClock
from tests.measure.metrics_server import MetricsServer, metrics_server

from tokonomics.errors import BadInput
from tokonomics.measure.addresses import target
from tokonomics.measure.meter import scrape
from tokonomics.measure.meter.engines import UnknownEngine
from tokonomics.measure.meter.ledger import Ledger
from tokonomics.measure.meter.live_meter import MeterSettings
from tokonomics.measure.meter.readings import Counted, Missed, Reading
from tokonomics.measure.meter.scrape import EngineSource, PrometheusApi, address_of, authorization
from tokonomics.measure.meter.session import meter_servers
from tokonomics.measure.meter.state import MeterState


@pytest.fixture(scope="module")
def server() -> Iterator[MetricsServer]:
    with metrics_server() as made:
        yield made


def read(url: str, times: int = 1) -> Sequence[Reading]:
    async def reads() -> Sequence[Reading]:
        async with aiohttp.ClientSession(headers=authorization()) as session:
            source = EngineSource(address_of(url), session, HandClock())
            for _ in range(times - 1):
                await source.read()
            return await source.read()

    return asyncio.run(reads())


@pytest.mark.parametrize("path", ["good", "good/", "good/metrics", "good/v1"])
def test_a_page_is_found_from_the_servers_address(server: MetricsServer, path: str) -> None:
    server.process.work(100, 20)
    (reading,) = read(f"{server.address}/{path}")
    assert reading.total(Counted.output) == server.process.true_output


def test_the_path_of_tensorrt_llm_is_tried_once_and_kept(server: MetricsServer) -> None:
    server.asked.clear()
    read(f"{server.address}/elsewhere", times=3)
    assert server.asked == ["/elsewhere/metrics", *["/elsewhere/prometheus/metrics"] * 3]


def test_a_key_comes_from_the_environment(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKONOMICS_METER_AUTHORIZATION", "Bearer secret")
    read(f"{server.address}/good")
    assert server.headers[-1] == "Bearer secret"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("html", "text/html"),
        ("broken", "answers 500"),
        ("cut", "broke off"),
        ("garbage", "not text"),
        ("endless", "larger than"),
        ("hangs", "no answer in"),
        ("off", "answers 501"),
        ("node", "no serving engine"),
    ],
)
def test_what_is_no_page_is_a_miss_that_says_why(
    server: MetricsServer, behaviour: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.2 if behaviour == "hangs" else 10.0)
    monkeypatch.setattr(scrape, "MOST_BYTES", 1_000_000)
    with pytest.raises(Missed, match=said):
        read(f"{server.address}/{behaviour}")


def test_metrics_that_are_off_say_how_to_turn_them_on(server: MetricsServer) -> None:
    with pytest.raises(Missed) as missed:
        read(f"{server.address}/off")
    assert "--metrics" in str(missed.value.fix)


def test_nobody_there_is_a_miss() -> None:
    with pytest.raises(Missed, match="cannot be reached"):
        read("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "text",
    ["", "ftp://x", "http://", "http://x:0", "http://[", "http://user:password@x:1", "http://x:1/metrics?token=s"],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        address_of(text)


def test_an_address_may_leave_out_the_scheme() -> None:
    assert address_of("gpu1:8000") == "http://gpu1:8000"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/metrics", "/prometheus/metrics"])
def test_one_server_has_one_name_however_it_is_written(path: str) -> None:
    assert address_of(f"http://gpu1:8000{path}") == "http://gpu1:8000"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("HTTP://GPU1:8000", "http://gpu1:8000"),
        ("http://gpu1:80/", "http://gpu1"),
        ("https://gpu1:443", "https://gpu1"),
        ("http://gpu1:443", "http://gpu1:443"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_case_and_default_ports_do_not_make_two_servers_of_one(text: str, name: str) -> None:
    assert address_of(text) == name


def test_a_redirect_is_a_miss_and_not_followed(server: MetricsServer) -> None:
    """It may lead to another server, whose tokens would count here."""
    with pytest.raises(Missed, match="answers 302"):
        read(f"{server.address}/redirects")


def test_servers_that_hang_do_not_make_others_miss(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One place, held until its time is up: the time of who waits for it has not begun."""
    monkeypatch.setattr(scrape, "TIMEOUT_S", 0.3)

    async def reads() -> list[Sequence[Reading] | BaseException]:
        async with aiohttp.ClientSession() as session:
            place, clock = asyncio.Semaphore(1), HandClock()
            urls = [*(f"{server.address}/hangs" for _ in range(3)), f"{server.address}/good"]
            sources = [EngineSource(url, session, clock, at_once=place) for url in urls]
            return await asyncio.gather(*(source.read() for source in sources), return_exceptions=True)

    *hung, good = asyncio.run(reads())
    assert all(isinstance(each, Missed) for each in hung)
    assert not isinstance(good, BaseException)


def test_another_engine_that_comes_to_the_address_is_found(server: MetricsServer) -> None:
    other = (Path(__file__).parent / "pages" / "tgi-3.prom").read_text()

    async def reads() -> Sequence[Reading]:
        async with aiohttp.ClientSession() as session:
            source = EngineSource(address_of(f"{server.address}/good"), session, HandClock())
            await source.read()
            server.process.page = lambda: other  # type: ignore[method-assign]
            return await source.read()

    try:
        assert asyncio.run(reads())[0].engine == "tgi"
    finally:
        del server.process.page


def test_an_engine_that_tells_its_start_is_found_where_one_was_that_does_not(server: MetricsServer) -> None:
    own, other = server.process.page(), (Path(__file__).parent / "pages" / "tgi-3.prom").read_text()

    async def reads() -> Sequence[Reading]:
        async with aiohttp.ClientSession() as session:
            source = EngineSource(address_of(f"{server.address}/good"), session, HandClock())
            await source.read()
            server.process.page = lambda: own  # type: ignore[method-assign]
            return await source.read()

    server.process.page = lambda: other  # type: ignore[method-assign]
    try:
        (reading,) = asyncio.run(reads())
    finally:
        del server.process.page
    assert (reading.engine, reading.started) == ("vllm", server.process.started)


def test_a_run_goes_on_when_one_of_its_servers_is_bad_from_the_start(server: MetricsServer, tmp_path: Path) -> None:
    shown: list[MeterState] = []
    urls = [f"{server.address}/good", f"{server.address}/broken"]
    with Ledger(tmp_path / "meter.db") as book:
        last = meter_servers(MeterSettings(2.0, urls, every_s=0.05, beats=2), book, shown.append)
    assert len(shown) in (2, 3)  # a beat that a busy machine comes too late for is skipped
    assert last == shown[-1]
    assert {group.target: group.up for group in shown[-1].groups} == {urls[0]: True, urls[1]: False}
    assert "answers 500" in shown[-1].notes[0]


@pytest.mark.parametrize(("path", "kind"), [("node", "no serving engine"), ("broken", "answers 500")])
def test_a_run_that_cannot_begin_says_why(server: MetricsServer, tmp_path: Path, path: str, kind: str) -> None:
    with Ledger(tmp_path / "meter.db") as book, pytest.raises(BadInput, match=kind):
        meter_servers(MeterSettings(2.0, [f"{server.address}/{path}"]), book, lambda state: None)


def test_an_unknown_engine_ends_a_run_even_beside_a_good_one(server: MetricsServer, tmp_path: Path) -> None:
    urls = [f"{server.address}/good", f"{server.address}/node"]
    with Ledger(tmp_path / "meter.db") as book, pytest.raises(BadInput) as refused:
        meter_servers(MeterSettings(2.0, urls), book, lambda state: None)
    assert refused.value.where == f"{server.address}/node"
    assert issubclass(UnknownEngine, Missed)


@pytest.mark.parametrize("host", ["[::1]", "gpu2", "10.0.0.7"])
def test_an_address_is_shown_as_one_can_write_it_and_without_secrets(host: str) -> None:
    written = f"http://me:secret@{host}:9090/prom?key=secret"
    assert PrometheusApi(written).shown == f"http://{host}:9090/prom"
    assert target(written).shown == f"http://{host}:9090/prom/v1/chat/completions"
    assert address_of(f"http://{host}:9090/prom/") == f"http://{host}:9090/prom"
