"""Makes the three spot tables of ``src/tokonomics/catalog/data`` out of AWS's advisor file and a price history.

    python benchmarks/reduce_spot.py aws_spot_interruption.csv aws_gpu_price_history.parquet src/tokonomics/catalog/data

``spot_interruption.csv`` keeps the band of each GPU instance and region. ``spot_zones.csv.gz`` is one row an instance
and zone: the median spot price of its last 30 days, the on-demand price, and how far above its own median the dearest
tenth of days lies. ``spot_prices.csv`` is one row an instance: spot ÷ on demand over all zones and days, and how far
the prices of two zones of a region move together (correlation of the changes over a week, in the mean over pairs).
"""

import argparse
import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

ADVISOR_DATE = "2025-06-28"
NOT_GPUS = ("inf", "trn")
"""Inferentia and Trainium: accelerators the GPU catalogue does not hold."""
RECENT_DAYS = 30
CHANGE_DAYS = 7
"""AWS smooths its spot prices: over a day most do not move at all."""
LEAST_COMMON_DAYS = 60
"""Fewer days that two zones have in common say nothing of how they move together."""

Floats = NDArray[np.float64]


def write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A CSV file with Unix line ends, packed where its name ends with .gz."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    content = file.getvalue().encode()
    path.write_bytes(gzip.compress(content, 9, mtime=0) if path.suffix == ".gz" else content)


def reduce_advisor(advisor: Path, out: Path) -> int:
    """The bands of GPU instances."""
    with advisor.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not row["instance_type"].startswith(NOT_GPUS)]
    kept = sorted((row["instance_type"], row["region"], int(row["interruption_band"]), ADVISOR_DATE) for row in rows)
    write(out, ("instance", "region", "band", "date"), kept)
    return len(kept)


def reduce_zones(prices: pl.DataFrame, out: Path) -> int:
    """Each zone's recent price and its spread over the whole history."""
    last = prices["date"].max()
    zones = (
        prices.with_columns(recent=pl.col("date") > pl.lit(last) - pl.duration(days=RECENT_DAYS))
        .group_by("instance_type", "region", "az")
        .agg(
            on_demand=pl.col("on_demand").sort_by("date").last(),
            spot=pl.col("spot").filter(pl.col("recent")).median(),
            spread=pl.col("spot").quantile(0.9, "linear") / pl.col("spot").median(),
            days=pl.len(),
            date=pl.col("date").max().dt.strftime("%Y-%m-%d"),
        )
        .drop_nulls("spot")
        .sort("instance_type", "region", "az")
    )
    write(
        out,
        ("instance", "region", "zone", "usd_per_hour", "spot_usd_per_hour", "p90_to_median", "days", "date"),
        (
            (inst, region, zone, f"{demand:.4f}", f"{spot:.4f}", f"{max(1.0, spread):.3f}", days, date)
            for inst, region, zone, demand, spot, spread, days, date in zones.iter_rows()
        ),
    )
    return len(zones)


def pair_correlations(prices: pl.DataFrame) -> list[float]:
    """Of the weekly changes of log price, each pair of zones within a region."""
    found = []
    for _, region in prices.group_by("region"):
        wide = region.pivot("az", index="date", values="spot", aggregate_function="first").sort("date")
        every_day = wide.select(pl.date_range(pl.col("date").min(), pl.col("date").max())).join(
            wide, on="date", how="left"
        )
        levels: Floats = np.log(every_day.drop("date").to_numpy().astype(np.float64))
        changes = levels[CHANGE_DAYS:] - levels[:-CHANGE_DAYS]
        for one, other in combinations(changes.T, 2):
            both = np.isfinite(one) & np.isfinite(other)
            if both.sum() >= LEAST_COMMON_DAYS and one[both].std() > 0 and other[both].std() > 0:
                found.append(float(np.corrcoef(one[both], other[both])[0, 1]))
    return found


def reduce_instances(prices: pl.DataFrame, out: Path) -> int:
    """One row an instance."""
    rows = []
    for name in prices["instance_type"].unique().sort():
        mine = prices.filter(pl.col("instance_type") == name)
        ratio = (mine["spot"] / mine["on_demand"]).to_numpy()
        pairs = pair_correlations(mine)
        median, p90 = np.median(ratio), np.quantile(ratio, 0.9)
        correlation = f"{np.mean(pairs):.2f}" if pairs else ""
        zones, days = mine["az"].n_unique(), mine["date"].n_unique()
        rows.append(
            (name, f"{median:.3f}", f"{p90:.3f}", correlation, len(pairs), zones, days, str(mine["date"].max()))
        )
    header = ("instance", "median_ratio", "p90_ratio", "zone_correlation", "zone_pairs", "zones", "days", "date")
    write(out, header, rows)
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("advisor", type=Path, help="bands by instance and region (CSV)")
    parser.add_argument("history", type=Path, help="daily prices by instance and zone (Parquet)")
    parser.add_argument("out", type=Path, help="the folder to write to")
    paths = parser.parse_args()
    prices = (
        pl.read_parquet(paths.history)
        .drop_nulls(["on_demand", "spot"])
        .filter(pl.col("spot") > 0, pl.col("on_demand") > 0)
        .with_columns(
            pl.col("date").cast(pl.Date),
            pl.col("instance_type", "region", "az").cast(pl.String),
            pl.col("on_demand", "spot").cast(pl.Float64),
        )
    )
    print(f"{reduce_advisor(paths.advisor, paths.out / 'spot_interruption.csv')} bands")
    print(f"{reduce_zones(prices, paths.out / 'spot_zones.csv.gz')} zones")
    print(f"{reduce_instances(prices, paths.out / 'spot_prices.csv')} instances")


if __name__ == "__main__":
    main()
