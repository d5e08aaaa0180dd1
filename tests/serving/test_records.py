"""What became of each request, as a file: the simulation's own arrays, whole or not at all."""

from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.serving.small_worlds import on

from tokonomics.serving.fleet_settings import FleetSettings
from tokonomics.serving.outcome import outcome, records, save_records
from tokonomics.serving.simulator import Simulation, simulate
from tokonomics.serving.state import DONE, REFUSED, TIMED_OUT
from tokonomics.traffic.trace import make_trace


@cache
def simulation() -> Simulation:
    """Some requests are too long, some clients hang up, some answers have one token or none; two tenants."""
    rng = np.random.default_rng(2)
    inputs, outputs = rng.integers(1, 2000, 800), rng.integers(0, 300, 800)
    inputs[::100] = 200_000
    arrival = np.cumsum(rng.exponential(1 / 40, 800))
    trace = make_trace(arrival, inputs, outputs, tenant=np.arange(800, dtype=np.int32) % 2, tenants=("free", "paid"))
    return simulate(on(), trace, FleetSettings(replicas=2), timeout_s=3.0, max_sequences=16)


def test_the_file_is_the_arrays(tmp_path: Path) -> None:
    file = tmp_path / "served.parquet"
    save_records(simulation(), file)
    table, trace, served = pl.read_parquet(file), simulation().trace, simulation().served
    assert list(tmp_path.iterdir()) == [file]
    assert table.height == len(trace)
    assert table["arrival_s"].to_list() == trace.arrival_s.tolist()
    for name in ("input_tokens", "output_tokens"):
        assert table[name].to_list() == getattr(trace, name).tolist()
    for name in ("cached_tokens", "preemptions", "restarts", "replica"):
        assert table[name].to_list() == getattr(served, name).tolist()
    assert table["tenant"].cast(pl.String).to_list() == ["free", "paid"] * 400


def test_a_status_is_a_word() -> None:
    words = {DONE: "done", REFUSED: "refused", TIMED_OUT: "timed out"}
    found = records(simulation())["status"].cast(pl.String).to_list()
    assert found == [words[int(status)] for status in simulation().served.status]
    assert set(found) == set(words.values())


def test_a_time_that_there_is_none_of_is_null_and_never_nan() -> None:
    table, served, trace = records(simulation()), simulation().served, simulation().trace
    for row in range(len(trace)):
        first, finish = float(served.first_token_s[row]), float(served.finish_s[row])
        later = int(trace.output_tokens[row]) - 1
        ttft, tpot = table["ttft_s"][row], table["tpot_s"][row]
        assert (ttft is None) == np.isnan(first)
        assert ttft is None or ttft == pytest.approx(first - trace.arrival_s[row])
        if served.status[row] == DONE:
            assert tpot == (pytest.approx((finish - first) / later) if later > 0 else None)
    assert table.select(pl.col(pl.Float64).is_nan().any()).row(0) == (False,) * 5


def test_the_table_sums_to_the_outcome() -> None:
    made, done = outcome(simulation()), records(simulation()).filter(pl.col("status").cast(pl.String) == "done")
    assert done.height == made.completed
    assert done["output_tokens"].sum() == made.output_tokens
    assert done["ttft_s"].mean() == pytest.approx(made.ttft_s.mean)
    assert done["tpot_s"].drop_nulls().mean() == pytest.approx(made.tpot_s.mean)
    assert records(simulation())["preemptions"].sum() == made.preemptions


def test_a_file_that_cannot_be_written_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "served.parquet"
    file.write_bytes(b"mine")

    def half(self: pl.DataFrame, target: Path) -> None:
        target.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_parquet", half)
    with pytest.raises(Exception, match="No space left"):
        save_records(simulation(), file)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == b"mine"
