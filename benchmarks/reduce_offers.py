"""Makes ``src/tokonomics/catalog/data/offers.csv`` out of a table of GPU offers.

    python benchmarks/reduce_offers.py gpu_offers.csv src/tokonomics/catalog/data/offers.csv

Keeps the columns an Offer has, renames them, and corrects the rows known to be mislabelled, saying each one. No row is
dropped unless it has neither a price nor a GPU count.
"""

import argparse
import csv
import re
import sys
from collections.abc import Mapping
from pathlib import Path

COLUMNS = {
    "provider": "provider",
    "region": "region",
    "instance": "instance_type",
    "gpu": "gpu_name",
    "gpus": "gpu_count",
    "vcpus": "vcpu",
    "memory_gb": "memory_gb",
    "usd_per_hour": "price_on_demand_usd_hr",
    "spot_usd_per_hour": "price_spot_usd_hr",
    "reserved_3yr_usd_per_hour": "price_reserved_3yr_usd_hr",
    "date": "snapshot_date",
    "source": "source",
    "regions_seen": "regions_seen",
}
RESERVED_SOURCE = "; reserved: service-capacity-modeling 0.3.212, 2026-10-14"


def gpu_of(row: Mapping[str, str]) -> str:
    """The GPU by the instance's own name, where the table contradicts it.

    The source counts the memory of all GPUs of some V100 machines as that of one, and files vast's H100 NVL under SXM.
    """
    instance, gpu = row["instance_type"], row["gpu_name"]
    if gpu == "V100-32GB" and "V100_16GB" in instance:
        return "V100"
    if gpu == "H100-SXM" and re.search(r"H100_NVL(?!INK)", instance):
        return "H100-NVL"
    return gpu


def region_of(row: Mapping[str, str]) -> str:
    """vast writes ", US, NA" where it does not know the place."""
    return row["region"].strip().removeprefix(",").strip()


def plain(number: str) -> str:
    """48.0 → 48."""
    return number.removesuffix(".0")


def reduced(row: Mapping[str, str]) -> dict[str, str]:
    """One row of the shipped file."""
    offer = {ours: row[theirs].strip() for ours, theirs in COLUMNS.items()}
    offer["region"], offer["gpu"] = region_of(row), gpu_of(row)
    offer["vcpus"], offer["memory_gb"] = plain(offer["vcpus"]), plain(offer["memory_gb"])
    if offer["reserved_3yr_usd_per_hour"]:
        offer["source"] += RESERVED_SOURCE
    return offer


def is_usable(offer: Mapping[str, str]) -> bool:
    """It has a GPU, a price to buy it at, and a place: the source leaves the region empty where it is sold nowhere."""
    prices = (offer["usd_per_hour"], offer["spot_usd_per_hour"], offer["reserved_3yr_usd_per_hour"])
    sold = offer["gpus"].isdigit() and int(offer["gpus"]) > 0 and any(price and float(price) > 0 for price in prices)
    return sold and bool(offer["region"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("offers", type=Path, help="the full table")
    parser.add_argument("out", type=Path, help="the shipped file to write")
    paths = parser.parse_args()
    with paths.offers.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    kept: list[dict[str, str]] = []
    for row in rows:
        offer = reduced(row)
        if offer["gpu"] != row["gpu_name"]:
            print(f"relabelled {offer['provider']} {offer['instance']}: {row['gpu_name']} → {offer['gpu']}")
        if is_usable(offer):
            kept.append(offer)
        else:
            print(f"dropped {row}", file=sys.stderr)
    kept.sort(key=lambda each: (each["provider"], each["gpu"], int(each["gpus"]), each["instance"], each["region"]))
    with paths.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(COLUMNS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)
    print(f"{len(rows)} rows read, {len(kept)} kept, {len(rows) - len(kept)} dropped")


if __name__ == "__main__":
    main()
