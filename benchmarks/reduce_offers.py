"""Makes the price list that is shipped out of a table of GPU offers in every region.

    python benchmarks/reduce_offers.py gpu_offers_all.csv.gz src/tokonomics/catalog/data
    python benchmarks/reduce_offers.py --history gpu_price_history.csv.gz.gz src/tokonomics/catalog/data

Writes ``offers.csv`` (a machine at one price is one row, with every region it is sold in), ``places.csv`` (the country
of each provider's regions) and ``sellers.csv`` (what kind of seller each provider is). Rows are left out where the GPU
is not in the catalogue, and where there is no price or no region. With ``--history``
it writes ``price_history.csv.gz`` alone: what a GPU-hour cost month by month.
"""

import argparse
import csv
import gzip
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokonomics.catalog.feeds import known_gpu
from tokonomics.catalog.offers import BETWEEN_REGIONS

COLUMNS = {
    "provider": "provider",
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
}
PRICES = ("usd_per_hour", "spot_usd_per_hour", "reserved_3yr_usd_per_hour")
RESERVED_SOURCE = "; reserved: service-capacity-modeling 0.3.212, 2026-10-14"
IN_EUR = {"scaleway", "seeweb"}
"""They sell in euro; the catalogue takes the figures for dollars (skypilot, fetch_seeweb.py: ``hourly_price``)."""


NOT_IN_TABLE = {
    "coreweave": "cloud", "qubrid": "cloud", "daytona": "cloud", "jarvislabs": "cloud", "lium": "marketplace"
}  # fmt: skip
"""Sellers of ``offers_more.csv``, which is collected by hand, and those that `offers --refresh` reads; lium rents out
machines of others (lium.io)."""


def region_of(row: Mapping[str, str]) -> str:
    """vast writes ", US, NA" where it does not know the place; PrimeIntellect's IS is Iceland, and Israel."""
    if row["provider"] == "primeintellect" and row["region"] == "IS":
        return row["country"]
    return row["region"].strip().removeprefix(",").strip()


def reduced(row: Mapping[str, str]) -> dict[str, str]:
    """One row without its region."""
    offer = {ours: row[theirs].strip() for ours, theirs in COLUMNS.items()}
    for name in ("vcpus", "memory_gb"):
        offer[name] = offer[name].removesuffix(".0")
    if offer["reserved_3yr_usd_per_hour"]:
        offer["source"] += RESERVED_SOURCE
    return offer


def why_left_out(row: Mapping[str, str]) -> str | None:
    offer = reduced(row)
    if offer["provider"] in IN_EUR:
        return f"{offer['provider']}: euro taken for dollars"
    if not region_of(row):
        return "no region"
    if not any(offer[price] and float(offer[price]) > 0 for price in PRICES):
        return "no price"
    return None if known_gpu(offer["gpu"]) else f"GPU {offer['gpu']} is not in the catalogue"


def merged(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """A machine at one price once, with all its regions."""
    regions: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for row in rows:
        regions[tuple(reduced(row).values())].add(region_of(row))
    names = tuple(COLUMNS)
    offers = [
        dict(zip(names, values, strict=True)) | {"region": BETWEEN_REGIONS.join(sorted(where))}
        for values, where in regions.items()
    ]
    return sorted(
        offers, key=lambda row: (row["provider"], row["gpu"], int(row["gpus"]), row["instance"], row["region"])
    )


def write(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> None:
    file = io.StringIO()
    writer = csv.DictWriter(file, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = file.getvalue().encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


_GPU_OF_HISTORY = {"A100": "A100-40GB", ("runpod", "H100"): "H100-PCIe"}
"""Names that mean another GPU in the history than in a price list: A100 there is the card of 40 GB (aws p4d, gcp
a2-highgpu, Lambda's gpu_1x_a100), and RunPod lists its PCIe card as H100, the other one as H100-SXM."""


def history(rows: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the monthly prices of GPUs in the catalogue, by seller; those in euro are left out."""
    found = []
    for row in rows:
        name, provider = row["gpu"], row["provider"]
        gpu = _GPU_OF_HISTORY.get((provider, name)) or _GPU_OF_HISTORY.get(name) or known_gpu(name)
        if gpu and provider not in IN_EUR:
            prices = ("month_end", "list_last_changed", "min_usd_per_gpu_hour", "median_usd_per_gpu_hour")
            found.append({one: row[one] for one in prices} | {"provider": provider, "name": name, "gpu": gpu})
            found[-1]["terms"] = row["kind"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--history", action="store_true", help="the table has prices month by month")
    parser.add_argument("offers", type=Path, help="the full table, gzipped")
    parser.add_argument("out", type=Path, help="the folder of the shipped files")
    paths = parser.parse_args()
    if paths.history:
        with gzip.open(paths.offers, "rt", newline="", encoding="utf-8") as file:
            months = history(csv.DictReader(file))
        write(paths.out / "price_history.csv.gz", tuple(months[0]), months)
        print(f"{len(months)} monthly prices")
        return
    with gzip.open(paths.offers, "rt", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    left_out = Counter(reason for row in rows if (reason := why_left_out(row)))
    for reason, number in left_out.most_common():
        print(f"{number:5} rows left out: {reason}")
    kept = [row for row in rows if not why_left_out(row)]
    offers = merged(kept)
    write(paths.out / "offers.csv", ("provider", "region", *(name for name in COLUMNS if name != "provider")), offers)
    places: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in kept:
        places[row["provider"], region_of(row)].add(row["country"])
    known = [
        (*place, *countries) for place, countries in sorted(places.items()) if len(countries) == 1 and any(countries)
    ]
    columns = ("provider", "region", "country")
    write(paths.out / "places.csv", columns, [dict(zip(columns, place, strict=True)) for place in known])
    sellers = sorted({(row["provider"], row["kind"]) for row in kept} | set(NOT_IN_TABLE.items()))
    write(
        paths.out / "sellers.csv", ("provider", "seller"), [{"provider": who, "seller": kind} for who, kind in sellers]
    )
    print(f"{len(rows)} rows read, {len(kept)} kept: {len(offers)} machines at one price, {len(places)} regions")


if __name__ == "__main__":
    main()
