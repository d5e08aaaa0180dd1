"""What share of a reasoning model's output is thinking, in production: ServeGen's clients of DeepSeek-R1.

    python benchmarks/fit_thinking.py servegen_arrivals.parquet servegen_lengths.parquet

ServeGen (alibaba/ServeGen, Apache-2.0; arXiv:2505.09999) describes 73 clients over a day: requests a second in windows
of ten minutes, and in windows of six hours how long their outputs are and what share of each is reasoning. A client
counts by the tokens it gets: requests × mean output. ``traffic/workload.py`` carries the share.
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl

MODEL, WINDOW_S = "deepseek-r1", 21_600


def clients(arrivals: Path, lengths: Path) -> pl.DataFrame:
    """By client and window: requests a second, mean output tokens, mean share of reasoning."""
    of_model = pl.col("model").cast(pl.String) == MODEL
    start = (pl.col("t_s") // WINDOW_S * WINDOW_S).cast(pl.Int64).alias("window_start_s")
    rates = (
        pl.read_parquet(arrivals)
        .filter(of_model)
        .group_by(pl.col("client").cast(pl.Int64), start)
        .agg(pl.col("rate_rps").cast(pl.Float64).mean().alias("rate"))
    )
    means = (
        pl.read_parquet(lengths)
        .filter(of_model & pl.col("field").is_in(["output_tokens", "reason_ratio"]))
        .pivot("field", index=["client", "window_start_s"], values="mean")
    )
    return rates.join(means, on=["client", "window_start_s"]).filter(pl.col("rate") > 0)


def shares(found: pl.DataFrame) -> dict[str, float]:
    """Of all output tokens, and of a request in the mean."""
    rate, output, ratio = (found[name].to_numpy() for name in ("rate", "output_tokens", "reason_ratio"))
    return {
        "of tokens": float(np.average(ratio, weights=rate * output)),
        "of a request": float(np.average(ratio, weights=rate)),
    }


def main(arrivals: str, lengths: str) -> None:
    found = clients(Path(arrivals), Path(lengths))
    print(f"{found['client'].n_unique()} clients, {len(found)} windows")
    for name, share in shares(found).items():
        print(f"share of thinking {name}: {share:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
