"""Read the price lists of others: SkyPilot's ``vms.csv`` files, and AWS's figures about spot machines.

SkyPilot: Google prices a host and its accelerators separately, and the two are added. GPUs that share a name upstream
(A100, V100, H100) are distinguished by memory or form factor, read from the instance's name or from ``GpuInfo``.

Spot: three shipped tables (``data/spot_*.csv``, made by ``benchmarks/reduce_spot.py``): the Spot Advisor's monthly band
of each instance and region, the recent price of each zone, and for each instance how spot compares with on demand and
how strongly the zones of a region are correlated. A band is a range of a probability over a month; the hourly rate that
gives it is −ln(1 − p) ÷ 730. The advisor counts running machines and does not say how hard it is to get one
(``SCARCE``).
"""

import csv
import datetime as dt
import io
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.catalog.entries import shipped_rows, spelling
from tokonomics.catalog.offers import MAX_GPUS, MAX_USD_PER_HOUR, MIN_USD_PER_HOUR, gpu_key
from tokonomics.errors import BadInput, TokonomicsError, UnknownName
from tokonomics.types import Noun
from tokonomics.units import HOURS_PER_MONTH

Row = Mapping[str, str]


class Quote(NamedTuple):
    """A price in one zone, before it is reduced."""

    instance: str
    region: str
    gpu: str
    gpus: int
    vcpus: float | None
    memory_gb: float | None
    usd_per_hour: float | None
    spot_usd_per_hour: float | None


def read_vms(provider: str, text: str) -> tuple[list[Quote], int]:
    """Return the quotes in one provider's file, and how many rows with an accelerator could not be used."""
    rows = _rows(text)
    machines = _gcp_machines(rows) if provider == "gcp" else rows
    quotes = [quote for row in machines if (quote := _quote(provider, row)) is not None]
    return quotes, sum(1 for row in machines if row["AcceleratorName"]) - len(quotes)


def _rows(text: str) -> list[dict[str, str]]:
    try:
        table = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        columns = set(table.fieldnames or ())
        if missing := {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region"} - columns:
            raise BadInput(f"not a SkyPilot vms.csv: no column {', '.join(sorted(missing))}")
        return [{key: value or "" for key, value in row.items() if isinstance(key, str)} for row in table]
    except csv.Error as error:
        raise BadInput(f"not a SkyPilot vms.csv: {error}") from None


def _quote(provider: str, row: Row) -> Quote | None:
    """Return a row as a quote; None if it has no whole GPU that the catalogue knows, or no price."""
    gpus, usd, spot = (amount(row.get(column, "")) for column in ("AcceleratorCount", "Price", "SpotPrice"))
    instance, name = row["InstanceType"].strip(), row["AcceleratorName"].strip()
    region = row["Region"].strip().removeprefix(",").strip()
    if not name or not instance or not region or (usd is None and spot is None):
        return None  # An empty region means that it is currently sold nowhere.
    if gpus is None or gpus != int(gpus) or gpus > MAX_GPUS:  # AWS sells fractions of an L4.
        return None
    if provider == "azure" and instance in ("Standard_ND96is_H100_v5", "Standard_ND96isr_H100_v5"):
        gpus = 8.0  # Upstream says 12; Azure documents 8.
    gpu = _gpu(provider, int(gpus), row)
    if gpu is None:
        return None
    return Quote(
        instance=instance,
        region=region,
        gpu=gpu,
        gpus=int(gpus),
        vcpus=amount(row.get("vCPUs", "")),
        memory_gb=amount(row.get("MemoryGiB", "")),
        usd_per_hour=usd,
        spot_usd_per_hour=spot,
    )


def amount(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if MIN_USD_PER_HOUR <= number <= MAX_USD_PER_HOUR else None


def _gpu(provider: str, gpus: int, row: Row) -> str | None:
    """Return the catalogue's key of the GPU; memory or form factor distinguishes those that share a name."""
    # Resellers also give the original provider's name of the machine.
    instance = f"{row['InstanceType']} {row.get('UpstreamCloudId', '')}"
    hint = re.search(r"_(\d+)GB", instance)
    told = hint or re.search(r"SizeInMiB\W+(\d+)", row.get("GpuInfo", ""), re.IGNORECASE)
    size = float(told.group(1)[:9]) if told else 0.0
    if provider == "vast" and not hint:
        size /= gpus  # The memory is that of all GPUs.
    memory_gb = size / 1024 if size > 1024 else size
    return known_gpu(full_name(provider, instance, row["AcceleratorName"].strip(), memory_gb))


def full_name(provider: str, instance: str, name: str, memory_gb: float) -> str:
    known = _RENAMED.get(name, name)
    if known == "A100":
        return "A100-80GB" if memory_gb > 60 else "A100-40GB"
    if known == "V100":
        return "V100-32GB" if memory_gb == 32 else "V100"
    if known == "H100":
        return _h100(provider, instance.upper())
    return known


def _h100(provider: str, instance: str) -> str:
    """Return the SXM card unless the instance, or what that provider is known to rent under the plain name, differs."""
    if "SXM" in instance:
        return "H100-SXM"
    if re.search(r"NVL(?!INK)|_NC\d+AD", instance):  # Azure's NC…ads_H100_v5 machines have the NVL card.
        return "H100-NVL"
    bare = provider in ("runpod", "shadeform") or "HYPERSTACK" in (provider.upper(), instance.split("_")[0])
    return "H100-PCIe" if "PCIE" in instance or bare else "H100-SXM"


_RENAMED = {
    "A100-80GB-SXM": "A100-80GB",
    "A100-80G-PCIe": "A100-80GB-PCIe",
    "A100-80G-PCIe-NVLink": "A100-80GB-PCIe",
    "H100-80G-PCIe": "H100-PCIe",
    "H100-80G-PCIe-NVLink": "H100-PCIe",
    "H100-80G-SXM5": "H100-SXM",
    "H100-NVLINK": "H100-SXM",
    "H200-SXM": "H200",
    "RTX6000Ada": "RTX6000-Ada",
    "RTX-6000-Ada": "RTX6000-Ada",
    "RTXA6000": "A6000",
    "RTX-PRO-6000": "RTXPRO6000",
    "RTX PRO 6000 96GB": "RTXPRO6000",
    "RTXPRO6000-WK": "RTXPRO6000",
    "RTXPRO6000S": "RTXPRO6000",
    "RTXPRO6000WS": "RTXPRO6000",
    "H100NVL": "H100-NVL",
}


@cache
def known_gpu(name: str) -> str | None:
    try:
        return gpu_key(name)
    except TokonomicsError:
        return None


# Google prices the accelerators of these hosts separately (https://cloud.google.com/compute/docs/gpus).
_GCP_FAMILIES = {
    "a2-highgpu": "A100",
    "a2-megagpu": "A100",
    "a2-ultragpu": "A100-80GB",
    "a3-edgegpu": "H100",
    "a3-highgpu": "H100",
    "a3-megagpu": "H100-MEGA",
    "a3-ultragpu": "H200",
    "a4-highgpu": "B200",
}
_GCP_HOSTS = {
    **{f"g2-standard-{vcpus}": [("L4", 1)] for vcpus in (4, 8, 12, 16, 32)},
    **{f"g2-standard-{vcpus}": [("L4", vcpus // 12)] for vcpus in (24, 48, 96)},
    **{f"g4-standard-{vcpus}": [("RTXPRO6000", vcpus // 48)] for vcpus in (48, 96, 192, 384)},
    # Any n1 host takes these GPUs; the sizes are the snapshot's choice (data/README.md).
    "n1-standard-4": [("T4", 1)],
    "n1-standard-8": [("T4", 2), ("V100", 1)],
    "n1-standard-16": [("T4", 4), ("V100", 2)],
    "n1-standard-32": [("V100", 4)],
    "n1-standard-64": [("V100", 8)],
}  # fmt: skip


def _gcp_machines(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return each host with its accelerators in the same zone, the two prices added."""
    parts = {
        (spelling(row["AcceleratorName"]), amount(row["AcceleratorCount"]), row.get("AvailabilityZone", "")): row
        for row in rows
        if row["AcceleratorName"] and not row["InstanceType"]
    }
    machines = []
    for host in rows:
        for name, count in _gcp_accelerators(host["InstanceType"]):
            part = parts.get((spelling(name), float(count), host.get("AvailabilityZone", "")))
            if part is not None:
                sums = {column: _sum(host.get(column, ""), part.get(column, "")) for column in ("Price", "SpotPrice")}
                machines.append({**host, "AcceleratorName": name, "AcceleratorCount": str(count), **sums})
    return machines


def _gcp_accelerators(host: str) -> list[tuple[str, int]]:
    sized = re.fullmatch(r"(a\d-[a-z]+)-(\d{1,2})g", host)
    if sized and sized.group(1) in _GCP_FAMILIES:
        return [(_GCP_FAMILIES[sized.group(1)], int(sized.group(2)))]
    return _GCP_HOSTS.get(host, [])


def _sum(left: str, right: str) -> str:
    one, two = amount(left), amount(right)
    return "" if one is None or two is None else str(one + two)


BANDS = ((0.0, 0.05), (0.05, 0.10), (0.10, 0.15), (0.15, 0.20), (0.20, 0.50))
"""AWS Spot Advisor: share of machines reclaimed in a month. The last band is ">20 %"; its upper end is assumed."""

OUTAGE_HOURS = 1.85
"""Hours until a zone without machines has some again: the mean outage of single V100s in nine AWS zones, February to
April 2023 (SkyPilot spot traces of "Can't Be Late", NSDI 2024). Half of the outages were shorter than 0.5 h."""

NOTICE_S = 120.0
"""AWS warns a spot machine two minutes before it is reclaimed (EC2 user guide, "Spot Instance interruption notices").
"""

REGION_CORRELATION = 0.5
"""Correlation between the availability of two zones of a region: 0.50 to 0.70 for V100 in three collections of those
traces (two regions: 0.17 to 0.19). Used if prices do not give one."""


class Interruptions(Noun):
    """How often a machine is reclaimed, and how long until another is available."""

    per_hour: NonNegativeFloat  # of one running machine
    outage_hours: PositiveFloat = OUTAGE_HOURS

    @property
    def availability(self) -> float:
        """Return the share of hours in which the market offers the machine: up ÷ (up + down)."""
        return 1 / (1 + self.per_hour * self.outage_hours)


SCARCE = Interruptions(per_hour=1 / 3.34, outage_hours=OUTAGE_HOURS)
"""The stress case of a scarce GPU: mean time to interruption 3.34 h in the traces named above (64 % available), a
thousand times what the advisor's bands say about the GPUs of 2025."""


class Band(Noun):
    """The advisor's band of one instance in one region."""

    instance: str
    region: str
    band: int = Field(ge=0, lt=len(BANDS))
    date: dt.date

    @property
    def monthly(self) -> tuple[float, float]:
        """Return the range of the probability of being reclaimed within a month."""
        return BANDS[self.band]

    @property
    def interruptions(self) -> Interruptions:
        """Return the rate at the middle of the band."""
        low, high = self.monthly
        return Interruptions(per_hour=hourly_rate((low + high) / 2))


class ZonePrice(Noun):
    """The price of one instance in one zone."""

    instance: str
    region: str
    zone: str
    usd_per_hour: PositiveFloat  # on demand, the whole instance
    spot_usd_per_hour: PositiveFloat  # median of the last 30 days
    p90_to_median: float = Field(ge=1)  # how far above its own median the most expensive tenth of days was
    days: PositiveInt
    date: dt.date


class SpotHistory(Noun):
    """Spot prices of one instance over all zones and days."""

    instance: str
    median_ratio: PositiveFloat  # spot ÷ on demand
    p90_ratio: PositiveFloat
    zone_correlation: float | None = Field(default=None, ge=-1, le=1)
    """Between the weekly price changes of two zones of a region; None if too few were seen."""
    zone_pairs: int
    zones: PositiveInt
    days: PositiveInt
    date: dt.date

    @property
    def correlation(self) -> float:
        """Return the correlation between zones, for drawing interruptions: prices stand in for availability."""
        return REGION_CORRELATION if self.zone_correlation is None else max(0.0, self.zone_correlation)


def hourly_rate(monthly_probability: float) -> float:
    """Return the interruptions an hour that give this chance of at least one in a month."""
    if not 0 <= monthly_probability < 1:
        raise BadInput(f"a monthly probability is from 0 up to but not 1; got {monthly_probability}")
    return -math.log1p(-monthly_probability) / HOURS_PER_MONTH


@cache
def load_bands() -> dict[tuple[str, str], Band]:
    """Return the bands by instance and region."""
    return {
        (band.instance, band.region): band for band in map(Band.model_validate, shipped_rows("spot_interruption.csv"))
    }


@cache
def load_zone_prices() -> dict[str, tuple[ZonePrice, ...]]:
    """Return the zones by instance, the cheapest first; at the same price, the steadier first."""
    zones: dict[str, list[ZonePrice]] = {}
    for zone in map(ZonePrice.model_validate, shipped_rows("spot_zones.csv.gz")):
        zones.setdefault(zone.instance, []).append(zone)
    for prices in zones.values():
        prices.sort(key=lambda zone: (zone.spot_usd_per_hour, zone.p90_to_median))
    return {name: tuple(prices) for name, prices in zones.items()}


@cache
def load_spot_history() -> dict[str, SpotHistory]:
    """Return the history by instance."""
    return {prices.instance: prices for prices in map(SpotHistory.model_validate, shipped_rows("spot_prices.csv"))}


def find_band(instance: str, region: str) -> Band:
    """Return the advisor's band of that instance in that region."""
    bands = load_bands()
    if (instance, region) in bands:
        return bands[instance, region]
    regions = sorted(place for name, place in bands if name == instance)
    if not regions:
        raise UnknownName("spot instance", instance, {name for name, _ in bands}, fix="Give its interruptions an hour.")
    raise UnknownName("spot region", region, regions, fix=f"{instance} is listed in: {', '.join(regions)}")


def find_zones(instance: str, region: str | None = None) -> tuple[ZonePrice, ...]:
    """Return the zones that recently sold it on spot, cheapest first; of one region or of all."""
    zones = load_zone_prices()
    if instance not in zones:
        raise UnknownName("spot instance", instance, zones, fix="Give its spot price yourself.")
    return tuple(zone for zone in zones[instance] if region in (None, zone.region))
