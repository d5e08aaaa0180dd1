"""The SkyPilot catalogue's ``vms.csv`` files: what is quoted in each zone, as quotes of whole GPUs the catalogue knows.

Google prices a host and its accelerators apart: the two are added. GPUs that share a name upstream (A100, V100, H100)
are told apart by memory or form factor, read from the instance's name or from ``GpuInfo``.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

from tokonomics.catalog.entries import spelling
from tokonomics.catalog.offers import MAX_GPUS, MAX_USD_PER_HOUR, MIN_USD_PER_HOUR, gpu_key
from tokonomics.errors import BadInput, TokonomicsError

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
    """The quotes in one provider's file, and how many rows with an accelerator could not be used."""
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
    """A row as a quote; None when it has no whole GPU that the catalogue knows, or no price."""
    gpus, usd, spot = (amount(row.get(column, "")) for column in ("AcceleratorCount", "Price", "SpotPrice"))
    instance, name = row["InstanceType"].strip(), row["AcceleratorName"].strip()
    region = row["Region"].strip().removeprefix(",").strip()
    if not name or not instance or not region or (usd is None and spot is None):
        return None  # An empty region is how the catalogue writes down what is sold nowhere at the moment.
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
    """The catalogue's key of the GPU, telling apart those that share a name by memory or by form factor."""
    # Resellers name the machine of whom they sell beside their own name for it.
    instance = f"{row['InstanceType']} {row.get('UpstreamCloudId', '')}"
    hint = re.search(r"_(\d+)GB", instance)
    told = hint or re.search(r"SizeInMiB\W+(\d+)", row.get("GpuInfo", ""), re.IGNORECASE)
    size = float(told.group(1)[:9]) if told else 0.0
    if provider == "vast" and not hint:
        size /= gpus  # It tells the memory of all of them.
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
    """SXM unless the instance, or what that provider is known to rent under the bare name, says otherwise."""
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


# Google prices the accelerators of these hosts apart (https://cloud.google.com/compute/docs/gpus).
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
    """Each host with its accelerators in the same zone, the two prices added."""
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
