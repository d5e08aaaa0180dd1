"""Reduces public traces to the samples under ``src/tokonomics/traffic/data``, and checks them against the raw files.

    python benchmarks/reduce_traces.py RAW_FOLDER

RAW_FOLDER holds the files named in ``SOURCES``: the Azure 2023 CSVs, the Mooncake FAST25 JSON lines (both gzipped) and
the length tables of vidur. Reading here is plain Python (csv, json), apart from the readers that the checks compare.
"""

import csv
import gzip
import json
import sys
from datetime import datetime
from pathlib import Path

import polars as pl

from tokonomics.traffic.formats import FOLDER, sample_lengths, sample_path
from tokonomics.traffic.readers import open_trace

SOURCES = {
    "azure-code": "azure_llm_2023_code.csv.gz",
    "azure-conv": "azure_llm_2023_conv.csv.gz",
    "mooncake-conversation": "mooncake_conversation.jsonl.gz",
    "mooncake-synthetic": "mooncake_synthetic.jsonl.gz",
    "arxiv": "arxiv_summarization_lengths.parquet",
    "sharegpt": "sharegpt_8k_lengths.parquet",
}
MOONCAKE_BLOCK_TOKENS = 512


def azure(raw: Path) -> pl.DataFrame:
    """Times from the first request, to the microsecond."""
    with gzip.open(raw, "rt", newline="") as lines:
        rows = list(csv.DictReader(lines))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]) for row in rows]
    return pl.DataFrame(
        {
            "arrival_s": [round((time - min(times)).total_seconds(), 6) for time in times],
            "input_tokens": [int(row["ContextTokens"]) for row in rows],
            "output_tokens": [int(row["GeneratedTokens"]) for row in rows],
        }
    )


def mooncake(raw: Path) -> pl.DataFrame:
    with gzip.open(raw, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return pl.DataFrame(
        {
            "arrival_s": [row["timestamp"] / 1000 for row in rows],
            "input_tokens": [row["input_length"] for row in rows],
            "output_tokens": [row["output_length"] for row in rows],
            "prefix_blocks": [row["hash_ids"] for row in rows],
        },
        schema_overrides={"prefix_blocks": pl.List(pl.Int32)},
    )


def lengths(raw: Path) -> pl.DataFrame:
    """Only named anew."""
    return pl.read_parquet(raw).rename({"num_prefill_tokens": "input_tokens", "num_decode_tokens": "output_tokens"})


def reduce(name: str, raw: Path) -> pl.DataFrame:
    made = azure(raw) if name.startswith("azure") else mooncake(raw) if name.startswith("mooncake") else lengths(raw)
    small = made.with_columns(made[name].shrink_dtype() for name in ("input_tokens", "output_tokens"))
    told = {"block_tokens": str(MOONCAKE_BLOCK_TOKENS)} if "prefix_blocks" in made.columns else {}
    small.write_parquet(sample_path(name), compression="brotli", compression_level=11, statistics=False, metadata=told)
    return made


def check(name: str, raw: Path, made: pl.DataFrame) -> None:
    """The sample, and the reader of the raw file, against what plain Python read from it."""
    inputs, outputs = sample_lengths(name)
    assert inputs.tolist() == made["input_tokens"].to_list()
    assert outputs.tolist() == made["output_tokens"].to_list()
    size = sample_path(name).stat().st_size
    print(
        f"{name:22} {len(made):6,} requests  mean {inputs.mean():9,.2f} in {outputs.mean():7,.2f} out  {size:9,} bytes"
    )
    if name in ("arxiv", "sharegpt"):
        return
    sample, read = open_trace(name).read(), open_trace(raw).read()
    for trace in (sample, read):
        ordered = made.sort("arrival_s", maintain_order=True)
        assert trace.input_tokens.tolist() == ordered["input_tokens"].to_list()
        assert trace.output_tokens.tolist() == ordered["output_tokens"].to_list()
        assert abs(trace.arrival_s - ordered["arrival_s"].to_numpy()).max() < 2e-6
        if "prefix_blocks" in made.columns:
            assert trace.prefix is not None
            assert trace.prefix.block_tokens == MOONCAKE_BLOCK_TOKENS
            assert trace.prefix.ids.tolist() == ordered["prefix_blocks"].explode().to_list()


def main(folder: str) -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, file in SOURCES.items():
        check(name, Path(folder) / file, reduce(name, Path(folder) / file))
    print(f"{sum(file.stat().st_size for file in FOLDER.glob('*.parquet')):,} bytes in all")


if __name__ == "__main__":
    main(*sys.argv[1:])
