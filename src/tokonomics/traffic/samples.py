"""Real traffic shipped with the package, to try things without a log of one's own.

Four public traces, and two sets of lengths without arrival times; ``data/README.md`` says where each comes from, its
licence, and how it was reduced (``benchmarks/reduce_traces.py``).
"""

from pathlib import Path
from typing import TYPE_CHECKING

from tokonomics.errors import UnknownName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FOLDER = Path(__file__).with_name("data")
TRACES = ("azure-code", "azure-conv", "mooncake-conversation", "mooncake-synthetic")
"""What ``open_trace`` takes by name."""
SAMPLES = (*TRACES, "arxiv", "sharegpt")
"""What ``sample_lengths`` takes: the traces, and the samples that have lengths only."""


def sample_path(name: str) -> Path:
    """The file of a sample."""
    if name not in SAMPLES:
        raise UnknownName("sample", name, SAMPLES)
    return FOLDER / f"{name}.parquet"


def sample_lengths(name: str) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Tokens of the prompt and of the answer of each request, paired, in the order of the sample."""
    import polars as pl

    table = pl.read_parquet(sample_path(name), columns=["input_tokens", "output_tokens"]).cast(pl.Int64)
    return table["input_tokens"].to_numpy(), table["output_tokens"].to_numpy()
