"""Reads what ServeGen says about its clients: how fast and how unevenly each sends, and how long its requests are.

ServeGen (Alibaba, NSDI'26) publishes no requests but, for each client and 600-s window, a rate and the family and
shape of the gaps between requests, and for each 6-h window the distribution of lengths. Two ways of storing it are
read: its own folders (``category/model/chunk-N-trace.csv`` without a header, ``chunk-N-dataset.json`` with the
probability of each length), and a pair of tables (arrivals: model, client, t_s, rate_rps, family, p1; lengths: model,
client, window_start_s, field, p1 … p99.9).
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.traffic.sources import MOST_ROWS, check_rows, named, readable

if TYPE_CHECKING:
    import polars as pl

Floats = NDArray[np.float64]
FAMILIES = ("Gamma", "Weibull")
QUANTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9")
COLUMNS = ("client", "t_s", "rate_rps", "cv", "family", "p1", "p2")
"""Of a chunk-N-trace.csv, but for the client, which is the N."""
DEFAULT_WINDOW_S = 600.0


@dataclass(frozen=True)
class ClientLengths:
    """A distribution of a count, as points of its cumulative probability."""

    probability: Floats
    value: Floats
    steps: bool
    """The value of the first point not below (all probabilities known), or a line between points (quantiles)."""

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        chance = rng.random(count)
        if not self.steps:
            return np.asarray(np.interp(chance, self.probability, self.value), np.float64)
        places = np.searchsorted(self.probability, chance * self.probability[-1], side="right")
        return np.asarray(np.take(self.value, places, mode="clip"), np.float64)


Fields = dict[str, ClientLengths]
Windows = list[tuple[float, Fields]]  # of a client: from when on, and how long what is; in order of time


@dataclass(frozen=True)
class Clients:
    """The windows of one model's clients in which any request is sent, by client and time; and the lengths."""

    model: str
    names: tuple[str, ...]
    client: NDArray[np.int64]  # index into ``names``
    start_s: Floats
    rate: Floats
    shape: Floats
    weibull: NDArray[np.bool_]
    window_s: float
    lengths: dict[int, Windows]


def read_clients(path: Path, model: str | None) -> Clients:
    """From a table with its lengths beside it, or from ServeGen's folders."""
    if path.is_dir():
        folder = _model_folder(path, model)
        return _clients(folder.name, _folder_arrivals(folder), _folder_lengths(folder), named(folder))
    table = _table(path, COLUMNS[:3] + COLUMNS[4:6] + ("model",))
    name = _chosen(model, sorted(table["model"].unique().to_list()), named(path))
    beside = path.with_name(path.name.replace("arrivals", "lengths"))
    if beside == path:
        raise BadInput("no table of lengths beside it", where=named(path), fix="Name them …arrivals… and …lengths….")
    return _clients(name, table.filter(table["model"] == name), _table_lengths(beside, name), named(path))


def _chosen(model: str | None, known: list[str], where: str) -> str:
    if model is None and len(known) == 1:
        return known[0]
    if model is None:
        listed = shorten(", ".join(known), 300)
        raise BadInput("describes several models", where=where, fix=f"Choose one: {option('servegen_model')} {listed}")
    if model not in known:
        raise UnknownName("ServeGen model", model, known, fix=f"It has {shorten(', '.join(known), 300)}.")
    return model


def _table(path: Path, needed: tuple[str, ...]) -> "pl.DataFrame":
    import polars as pl

    with readable(path):
        most = MOST_ROWS.get()
        first = None if most is None else most + 1
        table = pl.read_parquet(path, n_rows=first) if path.suffix == ".parquet" else pl.read_csv(path, n_rows=first)
        check_rows(len(table), path, "too many")
        if missing := [name for name in needed if name not in table.columns]:
            raise BadInput(f"not a ServeGen table: no column {missing[0]}", where=named(path))
        words = ("model", "family", "field")
        read = table.select(pl.col(name).cast(pl.String if name in words else pl.Float64) for name in needed)
    if any(read[name].null_count() for name in ("model", "client")):
        raise BadInput("a row without a model or a client", where=named(path))
    return read


def _clients(model: str, table: "pl.DataFrame", lengths: dict[tuple[int, float], Fields], where: str) -> Clients:
    """``lengths`` are by client and start of the window."""
    import polars as pl

    ids = table["client"].unique().sort()
    window = table["t_s"].unique().sort().diff().min()
    busy = table.filter(pl.col("rate_rps") > 0).sort("client", "t_s")
    usable = pl.col("family").is_in(FAMILIES) & pl.col("p1").is_between(0, 1e9, closed="right")
    usable &= pl.col("rate_rps").is_finite() & pl.col("t_s").is_finite()
    odd = busy.filter(~usable.fill_null(value=False))
    if len(odd):
        shown = shorten(str(odd.select("family", "p1", "rate_rps").row(0)), 100)
        raise BadInput(f"a window with family, shape, rate = {shown}: expected {' or '.join(FAMILIES)}", where=where)
    number = {int(client): index for index, client in enumerate(ids)}
    told = {
        when: fields
        for when, fields in lengths.items()
        if "output_tokens" in fields and ("input_tokens" in fields or "text_tokens" in fields)
    }
    if not told:
        raise BadInput(f"no lengths for any client of {shorten(model)}", where=where)
    windows: dict[int, Windows] = {number[client]: [] for client, _ in told if client in number}
    for (client, start_s), fields in told.items():
        if client in number:
            windows[number[client]].append((start_s, fields))
    return Clients(
        model,
        tuple(f"client {int(client)}" for client in ids),
        np.searchsorted(ids.to_numpy(), busy["client"].to_numpy()),
        busy["t_s"].to_numpy(),
        busy["rate_rps"].to_numpy(),
        busy["p1"].to_numpy(),
        (busy["family"] == "Weibull").to_numpy(),
        float(window) if isinstance(window, float) else DEFAULT_WINDOW_S,
        {client: sorted(own, key=lambda window: window[0]) for client, own in windows.items()},
    )


def _table_lengths(path: Path, model: str) -> dict[tuple[int, float], Fields]:
    if not path.exists():
        raise BadInput("no table of lengths", where=named(path), fix="Give its path.")
    table = _table(path, ("model", "client", "window_start_s", "field", *QUANTILES))
    chances = np.array([float(name[1:]) / 100 for name in QUANTILES])
    windows: dict[tuple[int, float], Fields] = {}
    for row in table.filter(table["model"] == model).iter_rows(named=True):
        values = np.array([row[name] for name in QUANTILES], float)
        if not (np.isfinite(values).all() and values[0] >= 0 and (np.diff(values) >= 0).all()):
            raise BadInput(f"quantiles of client {int(row['client'])} do not rise", where=named(path))
        fields = windows.setdefault((int(row["client"]), row["window_start_s"]), {})
        fields[row["field"]] = ClientLengths(chances, values, steps=False)
    return windows


def _model_folder(path: Path, model: str | None) -> Path:
    """The folder given, or the one of that model inside it."""
    if any(path.glob("chunk-*-trace.csv")):
        return path
    found = {file.parent.name: file.parent for file in path.glob("**/chunk-*-trace.csv")}
    if not found:
        raise BadInput("no chunk-N-trace.csv in it", where=named(path), fix="Give ServeGen's data folder, or a table.")
    return found[_chosen(model, sorted(found), named(path))]


def _client_of(file: Path) -> int:
    number = re.match(r"chunk-(\d{1,9})-", file.name)
    if number is None:
        raise BadInput("not named chunk-NUMBER-…", where=named(file))
    return int(number[1])


def _folder_arrivals(folder: Path) -> "pl.DataFrame":
    import polars as pl

    tables = []
    for file in sorted(folder.glob("chunk-*-trace.csv")):
        schema = {name: pl.String if name == "family" else pl.Float64 for name in COLUMNS[1:]}
        with readable(file):
            table = pl.read_csv(file, has_header=False, schema=schema)
        tables.append(table.with_columns(client=pl.lit(float(_client_of(file))), family=pl.col("family").fill_null("")))
    return pl.concat(tables)


def _folder_lengths(folder: Path) -> dict[tuple[int, float], Fields]:
    windows: dict[tuple[int, float], Fields] = {}
    for file in sorted(folder.glob("chunk-*-dataset.json")):
        client = _client_of(file)
        try:
            for start, fields in json.loads(file.read_text()).items():
                told = {name: text.strip("{ }") for name, text in fields.items() if name != "reason_ratio"}
                # An empty distribution: the client sent nothing in that window.
                if all(told.values()):
                    windows[client, float(start)] = {name: _probabilities(text) for name, text in told.items()}
        except (ValueError, AttributeError, TypeError, OSError, RecursionError) as error:
            said = shorten(str(error), 100)
            raise BadInput(f"not a ServeGen dataset: {said}", where=named(file)) from None
    return windows


def _probabilities(text: str) -> ClientLengths:
    """From "35: 0.25, 36: 0.75"."""
    pairs = np.array([part.split(":") for part in text.split(",")], float)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.isfinite(pairs).all() or (pairs < 0).any():
        raise ValueError("probabilities must be pairs of length and share")
    pairs = pairs[np.argsort(pairs[:, 0])]
    if not pairs[:, 1].sum() > 0:
        raise ValueError("all probabilities are 0")
    return ClientLengths(np.cumsum(pairs[:, 1]), pairs[:, 0], steps=True)
