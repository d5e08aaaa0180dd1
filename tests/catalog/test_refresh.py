"""Refreshing prices: against a server on this machine only, and a stand-in for gpuhunt."""

import os
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokonomics.catalog import refresh as refresh_module
from tokonomics.catalog.offers import Terms, cache_file, gpu_key, load_offers
from tokonomics.catalog.refresh import Refresh, reduce_quotes, refresh
from tokonomics.catalog.skypilot import Quote, read_vms
from tokonomics.errors import BadInput, TokonomicsError

COLUMNS = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone,GpuInfo\n"
)
AWS = COLUMNS + (
    "p5.48xlarge,H100,8.0,192,2048,60.0,20.0,us-east-1,a,\n"
    "p5.48xlarge,H100,8.0,192,2048,55.0,30.0,us-east-1,b,\n"
    "p5.48xlarge,H100,8.0,192,2048,66.0,66.0,eu-west-1,a,\n"
    "p5.48xlarge,H100,8.0,192,2048,77.0,10.0,ap-east-1,a,\n"
    "m5.large,,,2,8,0.1,0.05,us-east-1,a,\n"
    "trn1.32xlarge,Trainium,16.0,128,512,21.5,8.0,us-east-1,a,\n"
    "g6f.large,L4,0.125,2,8,0.2,0.1,us-east-1,a,\n"
)
LAMBDA = COLUMNS + "gpu_1x_h100_pcie,H100,1.0,26,200,3.29,3.29,us-east-1,,\n"
GCP = COLUMNS + (
    "a3-highgpu-8g,,,208,1872,9.0,2.0,us-central1,us-central1-a,\n"
    "a3-highgpu-8g,,,208,1872,9.0,2.0,us-west1,us-west1-a,\n"
    "n1-standard-8,,,8,30,0.4,0.1,us-central1,us-central1-a,\n"
    "n1-standard-8,,,8,30,0.4,0.1,us-central1,us-central1-b,\n"
    ",H100,8,,,80.0,15.0,us-central1,us-central1-a,\n"
    ",T4,2,,,0.7,,us-central1,us-central1-a,\n"
    ",V100,1,,,2.48,0.8,us-central1,us-central1-b,\n"
    ",tpu-v6e-8,1,,,700.0,700.0,us-central1,us-central1-b,\n"
)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """The folder that is served; files in it were last changed on 2026-08-25."""
    root = tmp_path / "site"
    for provider, text in (("aws", AWS), ("lambda", LAMBDA), ("gcp", GCP)):
        publish(root, provider, text)
    return root


def publish(root: Path, provider: str, text: str | bytes) -> None:
    file = root / provider / "vms.csv"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    changed = datetime(2026, 8, 25, 12, tzinfo=UTC).timestamp()
    os.utime(file, (changed, changed))


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    yield from serve(partial(_Quiet, directory=str(site)))


def serve(handler: object) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)  # type: ignore[arg-type]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _own_cache_and_a_fixed_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKONOMICS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TOKONOMICS_TODAY", "2026-08-30")


def outcome(done: Refresh, provider: str) -> refresh_module.ProviderRefresh:
    return next(each for each in done.providers if each.provider == provider)


def test_refreshed_prices_are_what_is_loaded_next(url: str) -> None:
    done = refresh(url=url, providers=["aws", "lambda", "gcp"])
    assert done.path == cache_file()
    assert [(each.provider, each.error) for each in done.providers] == [("aws", None), ("lambda", None), ("gcp", None)]
    aws = {each.region: each for each in load_offers() if each.provider == "aws"}
    assert set(aws) == {"us-east-1", "eu-west-1", "ap-east-1"}
    here = aws["us-east-1"]
    assert (here.usd_per_hour, here.spot_usd_per_hour, here.gpu, here.regions_seen) == (55.0, 20.0, "H100-SXM", 3)
    assert aws["eu-west-1"].spot_usd_per_hour == 66.0  # on AWS spot may truly reach the on-demand price


def test_prices_are_as_old_as_the_file_not_as_the_download(url: str) -> None:
    done = refresh(url=url, providers=["aws"])
    assert outcome(done, "aws").date == date(2026, 8, 25)
    assert {each.date for each in load_offers() if each.provider == "aws"} == {date(2026, 8, 25)}


def test_rows_without_a_whole_known_gpu_are_counted_not_kept(url: str) -> None:
    done = refresh(url=url, providers=["aws"])
    assert outcome(done, "aws").skipped == 2  # Trainium and an eighth of an L4
    assert {each.gpu for each in load_offers() if each.provider == "aws"} == {"H100-SXM"}


def test_a_spot_price_equal_to_on_demand_is_no_spot_market(url: str) -> None:
    refresh(url=url, providers=["lambda"])
    (one,) = [each for each in load_offers() if each.provider == "lambda"]
    assert (one.gpu, one.price(), one.price(Terms.spot)) == ("H100-PCIe", 3.29, None)


def test_google_hosts_and_accelerators_are_added_zone_by_zone(url: str) -> None:
    refresh(url=url, providers=["gcp"])
    gcp = {(each.instance, each.gpu): each for each in load_offers() if each.provider == "gcp"}
    big = gcp["a3-highgpu-8g", "H100-SXM"]
    assert (big.region, big.gpus, big.price(), big.price(Terms.spot)) == ("us-central1", 8, 89.0, 17.0)
    assert gcp["n1-standard-8", "T4"].price() == pytest.approx(1.1)
    assert gcp["n1-standard-8", "T4"].price(Terms.spot) is None  # the accelerator has no spot price
    assert gcp["n1-standard-8", gpu_key("V100")].price() == pytest.approx(2.88)
    assert len(gcp) == 3


def test_a_provider_that_fails_keeps_its_last_good_offers(url: str) -> None:
    before = [each for each in load_offers() if each.provider == "runpod"]
    done = refresh(url=url, providers=["aws", "runpod"])
    failed = outcome(done, "runpod")
    assert failed.error is not None
    assert "404" in failed.error
    assert failed.rows == len(before) > 0
    assert [each for each in load_offers() if each.provider == "runpod"] == before


def test_the_last_good_offers_are_those_of_the_last_refresh(url: str, site: Path) -> None:
    refresh(url=url, providers=["lambda"])
    publish(site, "lambda", b"\xff\xfe garbage")
    done = refresh(url=url, providers=["aws", "lambda"])
    assert outcome(done, "lambda").error is not None
    assert [each.price() for each in load_offers() if each.provider == "lambda"] == [3.29]


def test_when_everything_fails_the_old_file_stays(url: str) -> None:
    refresh(url=url, providers=["aws"])
    old = cache_file().read_bytes()
    done = refresh(url=url + "/nowhere", providers=["aws", "gcp"])
    assert done.path is None
    assert all(each.error for each in done.providers)
    assert cache_file().read_bytes() == old
    assert [file.name for file in cache_file().parent.iterdir()] == ["offers.csv"]


def test_nothing_is_written_where_there_was_nothing_and_everything_fails() -> None:
    done = refresh(url="http://127.0.0.1:9", providers=["aws"], timeout_s=2)
    assert done.path is None
    assert not cache_file().exists()


def test_reserved_prices_the_catalogue_lacks_stay_from_before(url: str) -> None:
    before = next(each for each in load_offers() if each.instance == "p5.48xlarge" and each.region == "us-east-1")
    refresh(url=url, providers=["aws"])
    after = next(each for each in load_offers() if each.instance == "p5.48xlarge" and each.region == "us-east-1")
    assert after.price(Terms.reserved) == before.price(Terms.reserved) is not None
    assert "service-capacity-modeling" in after.source


def test_a_reply_that_is_too_large_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_module, "MAX_DOWNLOAD_BYTES", 100)
    (failed,) = refresh(url=url, providers=["aws"]).providers
    assert failed.error is not None
    assert "larger" in failed.error


@pytest.mark.parametrize("reply", [b"", b"<html>not here</html>", b"\x00\x01\xff", COLUMNS.encode(), b'a,"b\n1'])
def test_a_reply_that_is_no_catalogue_is_an_error_of_that_provider(url: str, site: Path, reply: bytes) -> None:
    publish(site, "aws", reply)
    (failed,) = refresh(url=url, providers=["aws"]).providers
    assert failed.error


def test_a_server_that_hangs_up_is_an_error_of_that_provider() -> None:
    class Rude(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.connection.close()

    for address in serve(Rude):
        (failed,) = refresh(url=address, providers=["aws"], timeout_s=5).providers
        assert failed.error


def test_a_catalogue_without_a_date_says_that_the_day_is_that_of_the_download() -> None:
    class Undated(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(AWS.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    for address in serve(Undated):
        (done,) = refresh(url=address, providers=["aws"]).providers
        assert done.date == date(2026, 8, 30)
        assert done.note is not None
        assert "fetched" in done.note


def test_the_day_of_a_file_is_asked_of_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    class History(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            dated = b'[{"commit": {"committer": {"date": "2024-08-18T03:00:00Z"}}}]'
            self.wfile.write(dated if "commits" in self.path else AWS.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    for address in serve(History):
        monkeypatch.setattr(refresh_module, "CATALOG_URL", address)
        monkeypatch.setattr(refresh_module, "HISTORY_URL", address + "/commits?path={provider}")
        (done,) = refresh(url=address, providers=["aws"]).providers
        assert done.date == date(2024, 8, 18)


def test_only_web_addresses_are_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a web address"):
        refresh(url=tmp_path.as_uri(), providers=["aws"])


def test_up_to_five_regions_of_an_instance_are_kept() -> None:
    quotes = [Quote("x", f"r{n}", "L4", 1, 4, 16, 1.0 + n, 9.0 - n / 2) for n in range(9)]
    quotes.append(Quote("x", "us-east-1", "L4", 1, 4, 16, 5.5, 7.1))
    kept = reduce_quotes("aws", quotes, date(2026, 1, 1), "test")
    assert {each.region for each in kept} == {"r0", "r4", "r8", "us-east-1"}  # r4: the median; r8: cheapest on spot
    assert {each.regions_seen for each in kept} == {10}


@pytest.mark.parametrize(
    ("provider", "row", "gpu"),
    [
        ("vast", "2x-A100_SXM4,A100,2,1,1,1.0,,X,,\"{'MemoryInfo': {'SizeInMiB': 81920}}\"", "A100-80GB"),
        ("lambda", "gpu_1x_a100,A100,1,1,1,1.0,,X,,\"{'MemoryInfo': {'SizeInMiB': 40960}}\"", "A100-40GB"),
        ("primeintellect", "d__2xV100_16GB__10,V100,2,1,1,1.0,,X,,\"{'MemoryInfo': {'SizeInMiB': 32}}\"", "V100"),
        ("azure", "Standard_NC40ads_H100_v5,H100,1,1,1,1.0,,X,,", "H100-NVL"),
        ("runpod", "1x_H100_SECURE,H100,1,1,1,1.0,,X,,", "H100-PCIe"),
        ("fluidstack", "H100_NVLINK_80GB::8,H100-NVLINK,8,1,1,1.0,,X,,", "H100-SXM"),
        ("verda", "1RTXPRO6000.30V,RTX-PRO-6000,1,1,1,1.0,,X,,", "RTXPRO6000"),
    ],
)
def test_gpus_that_share_a_name_upstream_are_told_apart(provider: str, row: str, gpu: str) -> None:
    (quote,), _ = read_vms(provider, COLUMNS + row + "\n")
    assert quote.gpu == gpu_key(gpu)


def test_upstream_miscounts_of_azure_are_corrected() -> None:
    (quote,), _ = read_vms("azure", COLUMNS + "Standard_ND96isr_H100_v5,H100,12,96,1900,98.32,,eastus,,\n")
    assert quote.gpus == 8


@settings(max_examples=150, deadline=None)
@given(text=st.one_of(st.text(max_size=200), st.text(max_size=200).map(lambda rest: COLUMNS + rest)), gcp=st.booleans())
def test_no_catalogue_makes_anything_but_quotes_or_our_own_error(text: str, gcp: bool) -> None:
    try:
        quotes, skipped = read_vms("gcp" if gcp else "aws", text)
    except TokonomicsError:
        return
    assert skipped >= 0
    assert all(quote.gpus >= 1 for quote in quotes)


def test_an_unknown_source_is_an_error() -> None:
    with pytest.raises(BadInput, match="skypilot or gpuhunt"):
        refresh("yellow pages")


def test_without_gpuhunt_the_message_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(BadInput, match=r"pip install '\.\[live\]'"):
        refresh("gpuhunt")


def test_gpuhunt_items_become_offers_and_a_failing_provider_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def item(price: float, spot: bool, gpu: str | None = "A100", memory: float = 80) -> SimpleNamespace:
        return SimpleNamespace(
            provider="lambdalabs", instance_name="gpu_8x", location="us-east-1", price=price, cpu=240, memory=1800.0,
            gpu_count=8 if gpu else 0, gpu_name=gpu, gpu_memory=memory, spot=spot,
        )  # fmt: skip

    def query(*, provider: str) -> list[SimpleNamespace]:
        if provider != "lambdalabs":
            raise RuntimeError("no answer")
        return [item(16.0, False), item(6.0, True), item(1.0, False, None), item(1.0, False, "Nonesuch9000")]

    fake = ModuleType("gpuhunt")
    fake.query = query  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", fake)
    done = refresh("gpuhunt", providers=["lambda", "aws"])
    (one,) = [each for each in load_offers() if each.provider == "lambda"]
    assert (one.gpu, one.gpus, one.price(), one.price(Terms.spot)) == ("A100-80GB", 8, 16.0, 6.0)
    assert (one.source, one.date) == ("gpuhunt", date(2026, 8, 30))
    assert outcome(done, "lambda").skipped == 1
    assert outcome(done, "aws").error == "gpuhunt: no answer"
    assert sum(each.provider == "aws" for each in load_offers()) == 199
