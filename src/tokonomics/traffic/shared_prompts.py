"""What a log says about prompts that begin alike, where it does not list numbered blocks.

A key (of a system prompt, template or session) only says that prompts share *something*. They cannot share more than
the shortest of them, so that much is taken: an upper bound on what a prefix cache can reuse, and said so. It is cut
into whole blocks, of 16 tokens (the block of vLLM) or larger where the shared parts are long.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokonomics.errors import option
from tokonomics.memory_budget import check_room
from tokonomics.units import plural

if TYPE_CHECKING:
    import polars as pl

SMALLEST_BLOCK = 16
LARGEST_BLOCK = 8192
MERGED_ROWS = 1_000_000
_BYTES_PER_KEY = 260
"""Peak over that of a log with one, by key: 1.5 and 3 million keys of 36 characters, as parquet."""
BLOCKS_A_REQUEST = 32
"""On average, at most: keeps a long log of long shared prompts within memory at a loss of less than 1 block in 32."""
UPPER_BOUND = (
    "requests with the same {column} are taken to share their prompt up to the shortest of them: "
    "an upper bound on what a prefix cache can reuse"
)


@dataclass(frozen=True)
class SharedPrompts:
    """The shared part of each key that occurs more than once."""

    keys: "pl.DataFrame"
    """key, blocks, first (number of its first block)."""
    block_tokens: int

    def blocks(self, batch: "pl.DataFrame") -> "pl.DataFrame":
        """The batch with the ids of the shared blocks in place of the key."""
        import polars as pl

        known = batch.join(self.keys, on="prefix", how="left", maintain_order="left")
        ids = pl.int_ranges(pl.col("first"), pl.col("first") + pl.col("blocks"), dtype=pl.Int64)
        return known.with_columns(prefix=pl.when(pl.col("blocks") > 0).then(ids).otherwise([])).drop("first", "blocks")


def learn(batches: "Iterable[pl.DataFrame]", where: str) -> SharedPrompts:
    """One pass over the log for the shortest prompt of every key; memory grows with the number of keys only.

    More keys than can be held are refused in the name of ``where``.
    """
    import polars as pl

    parts = [pl.DataFrame(schema={"prefix": pl.String, "shortest": pl.Int64, "requests": pl.Int64})]

    def merged() -> pl.DataFrame:
        by_key = pl.concat(parts).group_by("prefix", maintain_order=True)
        return by_key.agg(pl.col("shortest").min(), pl.col("requests").sum())

    for batch in batches:
        parts.append(
            batch.filter(pl.col("prefix").is_not_null() & (pl.col("prefix") != "")).select(
                "prefix", shortest=pl.col("input"), requests=pl.lit(1, pl.Int64)
            )
        )
        # Not after every batch: with millions of keys the work would grow with the square of the log.
        if sum(map(len, parts[1:])) >= max(len(parts[0]), MERGED_ROWS):
            parts = [merged()]
            check_room(
                len(parts[0]) * _BYTES_PER_KEY,
                f"to compare more than {plural(len(parts[0]), 'key')} of shared prompts",
                where=where,
                fix=f"Without them: {option('columns', 'arrival=…,input=…,output=…')}.",
            )
    shortest = merged()
    shared = shortest.filter(pl.col("requests") > 1)
    block_tokens = SMALLEST_BLOCK
    requests = max(int(shortest["requests"].sum()), 1)
    tokens = int((shared["shortest"] * shared["requests"]).sum())
    while tokens / block_tokens > BLOCKS_A_REQUEST * requests and block_tokens < LARGEST_BLOCK:
        block_tokens *= 2
    counted = shared.select("prefix", blocks=pl.col("shortest") // block_tokens)
    return SharedPrompts(counted.with_columns(first=pl.col("blocks").cum_sum() - pl.col("blocks")), block_tokens)


def block_size_of_lists(batch: "pl.DataFrame") -> int | None:
    """The block size at which the lists of blocks just cover the prompts; None where no power of two does."""
    lengths = batch["prefix"].list.len().to_numpy().astype(np.int64)
    prompts = batch["input"].to_numpy()[lengths > 0]
    lengths = lengths[lengths > 0]
    fits = []
    for block_tokens in 2 ** np.arange(14):
        # Some engines list only the blocks that are full.
        full, covering = prompts // block_tokens, -(-prompts // block_tokens)
        if len(lengths) and np.mean((lengths == full) | (lengths == covering)) >= 0.9:
            fits.append(int(block_tokens))
    return fits[0] if len(fits) == 1 else None
