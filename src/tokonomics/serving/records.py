"""What became of each request, as a table: for a file, a notebook, or one's own questions."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tokonomics.errors import option, shorten
from tokonomics.files import whole
from tokonomics.serving.outcome import request_latencies
from tokonomics.serving.simulator import Simulation

if TYPE_CHECKING:
    import polars as pl

STATUS = ("refused", "done", "timed out", "unserved")


def records(simulation: Simulation) -> "pl.DataFrame":
    """One row a request: when it came, how long it waited, what it got."""
    import polars as pl

    trace, served = simulation.trace, simulation.served
    latencies = request_latencies(simulation)
    columns: dict[str, object] = {
        "arrival_s": trace.arrival_s,
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "status": pl.Series(np.array(STATUS)[served.status]).cast(pl.Categorical),
        "queue_s": latencies["queue"],
        "ttft_s": latencies["ttft"],
        "tpot_s": latencies["tpot"],
        "e2e_s": latencies["e2e"],
        "cached_tokens": served.cached_tokens,
        "preemptions": served.preemptions,
        "restarts": served.restarts,
        "replica": served.replica,
    }
    if trace.priority is not None:
        columns["priority"] = trace.priority
    if trace.tenant is not None:
        columns["tenant"] = pl.Series(np.array(trace.tenants)[trace.tenant]).cast(pl.Categorical)
    made = pl.DataFrame(columns)
    return made.with_columns(pl.col(pl.Float64).fill_nan(None))


def save_records(simulation: Simulation, path: Path) -> None:
    """Write the table as parquet: whole, or not at all."""
    with whole(path, option("save", shorten(str(path), 200))) as unfinished:
        records(simulation).write_parquet(unfinished)
