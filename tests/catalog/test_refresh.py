"""Refreshing prices: a server on this machine only, recorded answers of every provider, a stand-in for gpuhunt."""

import json
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tests.catalog.file_hosts import Host, file_host

from tokonomics.catalog import refresh as refresh_module
from tokonomics.catalog.feeds import Quote, read_vms
from tokonomics.catalog.offers import Terms, cache_file, gpu_key, load_offers
from tokonomics.catalog.refresh import Refresh, reduce_quotes, refresh
from tokonomics.errors import BadInput

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


CHANGED = {"Last-Modified": "Tue, 25 Aug 2026 12:00:00 GMT"}


@pytest.fixture
def site() -> Iterator[Host]:
    """A catalogue of three providers; its files were last changed on 2026-08-25."""
    with file_host() as host:
        for provider, text in (("aws", AWS), ("lambda", LAMBDA), ("gcp", GCP)):
            publish(host, provider, text.encode())
        yield host


def publish(host: Host, provider: str, content: bytes) -> None:
    host.files[f"/{provider}/vms.csv"] = (200, CHANGED, content)


@pytest.fixture
def url(site: Host) -> str:
    return site.url


pytestmark = pytest.mark.usefixtures("on_the_thirtieth_of_august")


def outcome(done: Refresh, provider: str) -> refresh_module.ProviderRefresh:
    return next(each for each in done.providers if each.provider == provider)


def test_refreshed_prices_are_what_is_loaded_next(url: str) -> None:
    done = refresh(url=url, providers=["aws", "lambda", "gcp"])
    assert done.path == cache_file()
    assert [(each.provider, each.error) for each in done.providers] == [("aws", None), ("lambda", None), ("gcp", None)]
    aws = {each.region: each for each in load_offers() if each.provider == "aws"}
    assert set(aws) == {"us-east-1", "eu-west-1", "ap-east-1"}
    here = aws["us-east-1"]
    assert (here.usd_per_hour, here.spot_usd_per_hour, here.gpu) == (55.0, 20.0, "H100-SXM")
    assert aws["eu-west-1"].spot_usd_per_hour == 66.0  # on AWS spot may truly reach the on-demand price
    # Prices are as old as the file, not as the download; rows without a whole known GPU are counted, not kept.
    assert outcome(done, "aws").date == date(2026, 8, 25)
    assert {(each.date, each.gpu) for each in aws.values()} == {(date(2026, 8, 25), "H100-SXM")}
    assert outcome(done, "aws").skipped == 2  # Trainium and an eighth of an L4
    # A spot price equal to that on demand is no spot market elsewhere.
    (one,) = [each for each in load_offers() if each.provider == "lambda"]
    assert (one.gpu, one.price(), one.price(Terms.spot)) == ("H100-PCIe", 3.29, None)


def test_google_hosts_and_accelerators_are_added_zone_by_zone(url: str) -> None:
    refresh(url=url, providers=["gcp"])
    read = (each for each in load_offers() if each.provider == "gcp" and not each.gpu.startswith("TPU"))
    gcp = {(each.instance, each.gpu): each for each in read}
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
    assert "404" in (failed.error or "")
    assert failed.rows == len(before) > 0
    assert [each for each in load_offers() if each.provider == "runpod"] == before


def test_the_last_good_offers_are_those_of_the_last_refresh(url: str, site: Host) -> None:
    refresh(url=url, providers=["lambda"])
    publish(site, "lambda", b"\xff\xfe garbage")
    done = refresh(url=url, providers=["aws", "lambda"])
    assert outcome(done, "lambda").error is not None
    assert [each.price() for each in load_offers() if each.provider == "lambda"] == [3.29]


def test_when_everything_fails_the_old_file_stays_or_none_is_written(url: str) -> None:
    assert refresh(url="http://127.0.0.1:9", providers=["aws"], timeout_s=2).path is None
    assert not cache_file().exists()
    refresh(url=url, providers=["aws"])
    old = cache_file().read_bytes()
    done = refresh(url=url + "/nowhere", providers=["aws", "gcp"])
    assert done.path is None
    assert all(each.error for each in done.providers)
    assert cache_file().read_bytes() == old
    assert [file.name for file in cache_file().parent.iterdir()] == ["offers.csv"]


def test_reserved_prices_the_catalogue_lacks_stay_from_before(url: str) -> None:
    before = next(each for each in load_offers() if each.instance == "p5.48xlarge" and each.region == "us-east-1")
    refresh(url=url, providers=["aws"])
    after = next(each for each in load_offers() if each.instance == "p5.48xlarge" and each.region == "us-east-1")
    assert after.price(Terms.reserved) == before.price(Terms.reserved) is not None
    assert "service-capacity-modeling" in after.source


def test_a_reply_that_is_too_large_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_module, "MAX_DOWNLOAD_BYTES", 100)
    (failed,) = refresh(url=url, providers=["aws"]).providers
    assert "larger" in (failed.error or "")


@pytest.mark.parametrize("reply", [b"", b"<html>not here</html>", b"\x00\x01\xff", COLUMNS.encode(), b'a,"b\n1'])
def test_a_reply_that_is_no_catalogue_is_an_error_of_that_provider(url: str, site: Host, reply: bytes) -> None:
    publish(site, "aws", reply)
    (failed,) = refresh(url=url, providers=["aws"]).providers
    assert failed.error
    site.files["/aws/vms.csv"] = (0, {}, b"")  # hangs up
    (failed,) = refresh(url=url, providers=["aws"], timeout_s=5).providers
    assert failed.error


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The catalogue and its history, as the public places answer."""
    with file_host() as host:
        monkeypatch.setattr(refresh_module, "CATALOG_URLS", (f"{host.url}/first", f"{host.url}/mirror"))
        monkeypatch.setattr(refresh_module, "HISTORY_URL", host.url + "/commits/{version}/{provider}")
        yield host


def committed(day: str) -> str:
    return json.dumps([{"commit": {"committer": {"date": f"{day}T03:00:00Z"}}}])


@pytest.mark.parametrize("place", ["/first/v8", "/first/v9", "/mirror/v8"])
def test_a_file_and_its_day_are_found_in_versions_and_the_mirror(public: Host, place: str) -> None:
    public.files = {f"{place}/aws/vms.csv": AWS, f"/commits/{place[-2:]}/aws": committed("2026-08-01")}
    (done,) = refresh(providers=["aws"]).providers
    assert (done.error, done.date) == (None, date(2026, 8, 1))


def test_a_catalogue_without_a_date_says_that_the_day_is_that_of_the_download(public: Host) -> None:
    public.files = {"/first/v8/aws/vms.csv": AWS}
    (done,) = refresh(providers=["aws"]).providers
    assert done.date == date(2026, 8, 30)
    assert "fetched" in (done.note or "")


def test_a_file_that_is_nowhere_is_told_by_its_first_address(public: Host) -> None:
    (failed,) = refresh(providers=["aws"]).providers
    assert "/first/v8/aws/vms.csv: HTTP Error 404" in (failed.error or "")
    assert len(public.asked) == 4


def test_prices_copied_to_another_folder_are_no_younger(public: Host) -> None:
    public.files = {"/first/v8/aws/vms.csv": AWS, "/commits/v8/aws": committed("2025-03-01")}
    refresh(providers=["aws"])
    public.files = {"/first/v9/aws/vms.csv": AWS, "/commits/v9/aws": committed("2026-08-20")}
    (copied,) = refresh(providers=["aws"]).providers
    assert copied.date == date(2025, 3, 1)
    assert {each.date for each in load_offers() if each.provider == "aws"} == {date(2025, 3, 1)}
    public.files["/first/v9/aws/vms.csv"] = AWS.replace(",66.0,66.0,", ",64.0,64.0,")
    (changed,) = refresh(providers=["aws"]).providers
    assert changed.date == date(2026, 8, 20)


def test_every_region_of_an_instance_is_kept() -> None:
    quotes = [Quote("x", f"r{n}", "L4", 1, 4, 16, 1.0 + n, 9.0 - n / 2) for n in range(9)]
    quotes.append(Quote("x", "r3", "L4", 1, 4, 16, 3.5, 8.0))
    kept = {each.region: each for each in reduce_quotes("aws", quotes, date(2026, 1, 1), "test")}
    assert set(kept) == {f"r{n}" for n in range(9)}
    # Another zone of the same region: the lowest of both.
    assert (kept["r3"].usd_per_hour, kept["r3"].spot_usd_per_hour) == (3.5, 7.5)


RECORDED = Path(__file__).parent / "skypilot_catalog"
QUOTED: dict[str, list[tuple[str, str, int, str, float | None, float | None]]] = {
    "aws": [
        ("g6.xlarge", "L4", 1, "eu-central-1", 1.0064, 0.4392),
        ("g6.xlarge", "L4", 1, "eu-central-1", 1.0064, 0.4424),
        ("g6.xlarge", "L4", 1, "eu-north-1", 0.8536, 0.2584),
    ],
    "azure": [("Standard_NV72ads_A10_v5", "A10", 2, "eastus", 6.52, 1.63)],
    "cudo": [
        ("epyc-genoa-a100-pcie_1x24v48gb", "A100-80GB", 1, "no-kristiansand-1", 1.8528, None),
        ("sapphire-rapids-h100_1x24v48gb", "H100-SXM", 1, "no-kristiansand-1", 2.1668, None),
    ],
    "daytona": [("2x-H200", "H200", 2, "earth", 13.1264, 7.56), ("8x-MI355X", "MI355X", 8, "earth", 64.1056, 36.88)],
    "do": [("gpu-h100x8-640gb", "H100-SXM", 8, "nyc2", 47.6, None)],
    "fluidstack": [("H100_NVLINK_80GB::8", "H100-SXM", 8, "FINLAND", 23.92, None)],
    # Host and accelerators are priced apart: 0.73948 + 2.93391 and 0.36975 + 1.4341; 8.79698 + 46.94253, …
    "gcp": [
        ("a2-highgpu-1g", "A100-40GB", 1, "us-central1", 3.67339, 1.80385),
        ("a2-megagpu-16g", "A100-40GB", 16, "us-central1", 55.73951, 27.34384),
    ],
    "hyperbolic": [("2x-H100-149-1443", "H100-SXM", 2, "default", 2.58, None)],
    "hyperstack": [
        ("n3-A100x1", "A100-80GB-PCIe", 1, "CANADA-1", 1.35, None),
        ("n3-H100x8-NVLink", "H100-PCIe", 8, "CANADA-1", 15.6, None),
        ("n3-H100-SXM5x8", "H100-SXM", 8, "US-1", 19.2, None),
    ],
    "ibm": [("gx2-8x64x1v100", "V100-16GB", 1, "eu-de", 2.746, None)] * 2,
    "jarvislabs": [("8x_H100_192V_1600G", "H100-SXM", 8, "IN2", 27.92, None)],
    "lambda": [
        ("gpu_8x_v100_n", "V100-16GB", 8, "europe-central-1", 6.32, None),
        ("gpu_1x_a6000", "A6000", 1, "europe-central-1", 1.09, None),
    ],
    "lium": [
        ("H100-SXM_8x", "H100-SXM", 8, "RU", 14.0, None),
        ("RTXPRO6000-WK_1x", "RTXPRO6000", 1, "RO", 1.45, None),
        ("B200_1x", "B200", 1, "FI", 6.5318, None),
    ],
    "nebius": [("gpu-h200-sxm_8gpu-128vcpu-1600gb", "H200", 8, "eu-west1", 28.0, 11.6)],
    "oci": [
        ("BM.GPU4.8", "A100-40GB", 8, "us-sanjose-1", 24.4, None),
        ("BM.GPU.MI355X.8", "MI355X", 8, "us-sanjose-1", 68.8, None),
        ("VM.GPU3.1", "V100-16GB", 1, "us-sanjose-1", 2.95, 1.475),
    ],
    "paperspace": [
        ("H100x8", "H100-SXM", 8, "East Coast (NY2)", 47.6, None),
        ("V100-32Gx2", "V100-32GB", 2, "East Coast (NY2)", 4.6, None),
    ],
    "primeintellect": [
        ("hyperstack__1xH100_80GB__28__180", "H100-PCIe", 1, "CA", 1.9, None),
        ("hyperstack__8xH100_80GB__192__960", "H100-SXM", 8, "US", 19.2, None),
        ("datacrunch__1xA100_80GB__22__120__SPOT", "A100-80GB", 1, "FI", None, 0.53),
    ],
    "runpod": [
        ("2x_A100-80GB_SECURE", "A100-80GB", 2, "IN", 2.78, 2.78),
        ("2x_A100-80GB_SECURE", "A100-80GB", 2, "JP", 2.78, 2.78),
    ],
    "shadeform": [
        ("scaleway_H100x2", "H100-PCIe", 2, "warsaw-poland-1", 6.6, None),
        ("lambdalabs_H100-sxm5x8", "H100-SXM", 8, "saltlakecity-usa-1", 31.92, None),
        ("denvr_A100-sxm4x8", "A100-40GB", 8, "calgary-canada-1", 11.2, None),
        ("massedcompute_RTXPro6000x4", "RTXPRO6000", 4, "kansascity-usa-6", 8.76, None),
    ],
    # The memory told is that of all the GPUs of a machine: two of 40 GB are 81,920 MiB.
    "vast": [
        ("2x-A100_SXM4-32-65536", "A100-80GB", 2, "Montana, US, NA", 1.87, None),
        ("2x-A100_SXM4-32-65536", "A100-40GB", 2, "Germany, DE, EU", 1.87, None),
        ("2x-Tesla_V100-32-65536", "V100-16GB", 2, "North Carolina, US, NA", 0.35, None),
        ("1x-H100_NVL-32-65536", "H100-NVL", 1, "Bulgaria, BG, EU", 1.98, None),
        ("4x-H200-32-65536", "H200", 4, "US, NA", 10.35, None),
    ],
    "verda": [("1B300.30V", "B300", 1, "FIN-03", 6.99, 2.447), ("2B200.60V", "B200", 2, "FIN-03", None, 3.423)],
    "yotta": [("8x112v952g_NVIDIA_GeForce_RTX_5090_32G_SECURE", "RTX5090", 8, "us-east-2", 5.2, None)],
}
"""Read in the recorded rows by eye: instance, GPU, number, region, price on demand, on spot."""


@pytest.mark.parametrize("provider", refresh_module.PROVIDERS)
def test_what_a_provider_publishes_is_read_as_it_is_meant(provider: str) -> None:
    text = (RECORDED / f"{provider}.csv").read_text(encoding="utf-8")
    quotes, _ = read_vms(provider, text)
    assert [(each.instance, each.gpu, each.gpus, each.region) for each in quotes] == [
        expected[:4] for expected in QUOTED[provider]
    ]
    for quote, expected in zip(quotes, QUOTED[provider], strict=True):
        assert [quote.usd_per_hour, quote.spot_usd_per_hour] == [
            None if usd is None else pytest.approx(usd) for usd in expected[4:]
        ]


def test_a_refresh_reads_every_provider(public: Host) -> None:
    public.files = {
        f"/first/v8/{provider}/vms.csv": (RECORDED / f"{provider}.csv").read_text(encoding="utf-8")
        for provider in refresh_module.PROVIDERS
    }
    done = refresh()
    assert [each.provider for each in done.providers if each.error] == []
    assert {each.provider for each in load_offers()} >= set(refresh_module.PROVIDERS)


@pytest.mark.parametrize(
    ("provider", "row", "gpu"),
    [
        ("vast", "2x-A100_SXM4,A100,2,1,1,1.0,,X,,\"{'MemoryInfo': {'SizeInMiB': 163840}}\"", "A100-80GB"),
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


def test_only_web_addresses_and_sources_that_exist_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="not a web address"):
        refresh(url=tmp_path.as_uri(), providers=["aws"])
    with pytest.raises(BadInput, match="skypilot or gpuhunt"):
        refresh("yellow pages")
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    with pytest.raises(BadInput, match=r"pip install '\.\[live\]'"):
        refresh("gpuhunt")


def test_gpuhunt_items_become_offers_and_a_failing_provider_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def item(price: float, spot: bool = False, gpu: str | None = "A100", flag: str | None = None) -> SimpleNamespace:
        """The fields of a CatalogItem of gpuhunt 0.1.34."""
        return SimpleNamespace(
            provider="lambdalabs", instance_name="gpu_8x", location="us-east-1", price=price, cpu=240, memory=1800.0,
            gpu_count=8 if gpu else 0, gpu_name=gpu, gpu_memory=80.0, spot=spot, disk_size=None, gpu_vendor="nvidia",
            flags=[flag] if flag else [], cpu_arch="x86", provider_data={},
        )  # fmt: skip

    def query(*, provider: str) -> list[SimpleNamespace]:
        if provider != "lambdalabs":
            raise RuntimeError("no answer")
        booked_ahead = item(4.0, flag="gcp-dws-calendar-mode")
        return [item(16.0), item(6.0, spot=True), item(1.0, gpu=None), item(1.0, gpu="Nonesuch9000"), booked_ahead]

    before = sum(each.provider == "aws" for each in load_offers())
    fake = ModuleType("gpuhunt")
    fake.query = query  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gpuhunt", fake)
    done = refresh("gpuhunt", providers=["lambda", "aws"])
    (one,) = [each for each in load_offers() if each.provider == "lambda"]
    assert (one.gpu, one.gpus, one.price(), one.price(Terms.spot)) == ("A100-80GB", 8, 16.0, 6.0)
    assert (one.source, one.date) == ("gpuhunt", date(2026, 8, 30))
    assert outcome(done, "lambda").skipped == 2
    assert outcome(done, "aws").error == "gpuhunt: no answer"
    assert sum(each.provider == "aws" for each in load_offers()) == before > 100
