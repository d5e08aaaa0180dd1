"""Draw requests from ServeGen's description of a provider's clients: every client is a tenant with its own rhythm.

ServeGen (Alibaba, NSDI'26) publishes no requests but, for each client and 600-s window, a rate and the family and
shape of the gaps between requests, and for each 6-h window the distribution of lengths. Two ways of storing it are
read: its own folders (``category/model/chunk-N-trace.csv`` without a header, ``chunk-N-dataset.json`` with the
probability of each length), and a pair of tables (arrivals: model, client, t_s, rate_rps, family, p1; lengths: model,
client, window_start_s, field, p1 … p99.9).

For each client and window: as many requests as its rate says, with gaps from its Gamma or Weibull, stretched to fill
the window (ServeGen's own way: only the shape of the fit counts, its mean does not match the rate). One gap more than
requests is drawn, so that clients do not all send on the stroke of the next window. Lengths come from the client's
distribution at that time; prompt and answer are drawn independently, as ServeGen stores them. Linear interpolation of
stored quantiles puts the mean of all clients 1.5 % above the stored means.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, UnknownName, option, shorten
from tokonomics.memory_budget import check_room
from tokonomics.traffic.sources import MOST_ROWS, check_rows, named, readable
from tokonomics.traffic.trace import MOST_TOKENS, Floats, Trace, make_trace

if TYPE_CHECKING:
    import polars as pl

FAMILIES = ("Gamma", "Weibull")
QUANTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9")
COLUMNS = ("client", "t_s", "rate_rps", "cv", "family", "p1", "p2")
"""The columns of a chunk-N-trace.csv, except for the client, which is the N."""
DEFAULT_WINDOW_S = 600.0
MOST_DRAWN = 20_000_000  # requests at a time: 1 GB while they are drawn
BYTES_PER_REQUEST = 52  # measured with 2.4 million
MEDIA = ("image", "audio", "video")
_PART = (
    f"Take a part of the time ({option('start', '10h')} {option('end', '11h')}) "
    f"or of the rate ({option('servegen_scale', 0.01)})."
)


class ClientLengths(NamedTuple):
    """A distribution of a count, as points of its cumulative probability."""

    probability: Floats
    value: Floats
    steps: bool
    """True: take the first point not below (all probabilities are known); False: interpolate between quantiles."""

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        chance = rng.random(count)
        if not self.steps:
            return np.asarray(np.interp(chance, self.probability, self.value), np.float64)
        places = np.searchsorted(self.probability, chance * self.probability[-1], side="right")
        return np.asarray(np.take(self.value, places, mode="clip"), np.float64)


Fields = dict[str, ClientLengths]
Windows = list[tuple[float, Fields]]  # of a client: the start of each window and its lengths, in order of time


class Clients(NamedTuple):
    """One model's clients: the windows in which they send requests, by client and time, and their lengths."""

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
    """Read the clients from a table with its lengths beside it, or from ServeGen's folders."""
    if path.is_dir():
        folders = {file.parent.name: file.parent for file in path.glob("**/chunk-*-trace.csv")}
        if not folders:
            fix = "Give ServeGen's data folder, or a table."
            raise BadInput("no chunk-N-trace.csv in it", where=named(path), fix=fix)
        folder = path if path in folders.values() else folders[_chosen(model, sorted(folders), named(path))]
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
        check_rows(len(table), path)
        if missing := [name for name in needed if name not in table.columns]:
            raise BadInput(f"not a ServeGen table: no column {missing[0]}", where=named(path))
        words = ("model", "family", "field")
        read = table.select(pl.col(name).cast(pl.String if name in words else pl.Float64) for name in needed)
    if any(read[name].null_count() for name in ("model", "client")):
        raise BadInput("a row without a model or a client", where=named(path))
    return read


def _clients(model: str, table: "pl.DataFrame", lengths: dict[tuple[int, float], Fields], where: str) -> Clients:
    """Collect the clients; ``lengths`` are by client and start of the window."""
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
    usable_lengths = {
        when: fields
        for when, fields in lengths.items()
        if "output_tokens" in fields and ("input_tokens" in fields or "text_tokens" in fields)
    }
    if not usable_lengths:
        raise BadInput(f"no lengths for any client of {shorten(model)}", where=where)
    windows: dict[int, Windows] = {}
    for (client, start_s), fields in usable_lengths.items():
        if client in number:
            windows.setdefault(number[client], []).append((start_s, fields))
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
                texts = {name: text.strip("{ }") for name, text in fields.items() if name != "reason_ratio"}
                # An empty distribution: the client sent nothing in that window.
                if all(texts.values()):
                    windows[client, float(start)] = {name: _probabilities(text) for name, text in texts.items()}
        except (ValueError, AttributeError, TypeError, OSError, RecursionError) as error:
            said = shorten(str(error), 100)
            raise BadInput(f"not a ServeGen dataset: {said}", where=named(file)) from None
    return windows


def _probabilities(text: str) -> ClientLengths:
    """Read a distribution written as "35: 0.25, 36: 0.75"."""
    pairs = np.array([part.split(":") for part in text.split(",")], float)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.isfinite(pairs).all() or (pairs < 0).any():
        raise ValueError("probabilities must be pairs of length and share")
    pairs = pairs[np.argsort(pairs[:, 0])]
    if not pairs[:, 1].sum() > 0:
        raise ValueError("all probabilities are 0")
    return ClientLengths(np.cumsum(pairs[:, 1]), pairs[:, 0], steps=True)


def servegen_trace(
    arrivals_path: Path | str,
    *,
    model: str | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Draw the requests of one model between two times (by default all of it), at ``scale`` times the rate.

    ``arrivals_path`` is the table of arrivals, with the table of lengths beside it (…arrivals… and …lengths…), or a
    folder as ServeGen publishes it. Clients without lengths take those of the model's others; ``source`` says so.
    """
    if not 0 < scale < 1e6:
        raise BadInput(f"must be above 0 and below 1,000,000, got {scale:g}", field="servegen_scale")
    clients = read_clients(Path(arrivals_path), model)
    end = float(clients.start_s.max() + clients.window_s if len(clients.start_s) else 0.0) if end_s is None else end_s
    if not start_s < end:
        raise BadInput(f"the time ends ({end:,.0f} s) before it starts ({start_s:,.0f} s)", field="start, end")
    rng = np.random.default_rng(seed)
    window, arrival = _arrivals(clients, start_s, end, scale, rng)
    if not len(arrival):
        what = f"no client sends anything between {start_s:,.0f} s and {end:,.0f} s"
        raise BadInput(what, where=named(arrivals_path))
    inputs, outputs, borrowed = _lengths(clients, window, rng)
    sender = clients.client[window]
    present, tenant = np.unique(sender, return_inverse=True)
    note = f"; {borrowed} of {len(present)} clients with lengths of the others" if borrowed else ""
    return make_trace(
        arrival,
        inputs,
        outputs,
        tenant=tenant.astype(np.int32),
        tenants=tuple(clients.names[client] for client in present),
        source=f"drawn from ServeGen {clients.model}, {start_s:,.0f} to {end:,.0f} s{note}",
    )


def _arrivals(
    clients: Clients, start_s: float, end_s: float, scale: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Return the window (its index) and the time of every request, by window."""
    chosen = np.flatnonzero((clients.start_s + clients.window_s > start_s) & (clients.start_s < end_s))
    expected = clients.rate[chosen] * clients.window_s * scale
    begins, ends = clients.start_s[chosen], clients.start_s[chosen] + clients.window_s
    inside = np.minimum(ends, end_s) - np.maximum(begins, start_s)
    if (total := float((expected * inside / clients.window_s).sum())) > MOST_DRAWN:
        said = f"about {total:,.0f} requests from {start_s:,.0f} s to {end_s:,.0f} s, more than {MOST_DRAWN:,}"
        raise BadInput(said, where=clients.model, fix=_PART)
    check_room(total * BYTES_PER_REQUEST, f"drawing {total:,.0f} requests", where=clients.model, fix=_PART)
    # Rounded at random, so that a small scale does not lose the quiet clients.
    requests = np.floor(expected + rng.random(len(chosen))).astype(np.int64)
    chosen, requests = chosen[requests > 0], requests[requests > 0]
    windows, times = [], []
    for part in np.array_split(np.arange(len(chosen)), max(1, int(requests.sum()) // 1_000_000)):
        window, time = _stretched(clients, chosen[part], requests[part], rng)
        wanted = (time >= start_s) & (time < end_s)
        windows.append(window[wanted])
        times.append(time[wanted])
    return np.concatenate(windows), np.concatenate(times)


def _stretched(
    clients: Clients, windows: NDArray[np.intp], requests: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Return the times of that many requests in each window: gaps of its shape, scaled so that they fill it."""
    gaps_in = requests + 1
    shape = np.repeat(clients.shape[windows], gaps_in)
    weibull = np.repeat(clients.weibull[windows], gaps_in)
    gaps = np.empty(len(shape))
    gaps[weibull] = rng.weibull(shape[weibull])
    gaps[~weibull] = rng.standard_gamma(shape[~weibull])
    ends = np.cumsum(gaps_in)
    starts = ends - gaps_in
    # The extremes of a very uneven shape may be too small or too large for a float: keep every window fillable.
    largest = np.maximum.reduceat(np.minimum(gaps, 1e200), starts) if len(starts) else np.zeros(0)
    gaps = np.minimum(gaps, 1e200) / np.repeat(np.where(largest > 0, largest, 1.0), gaps_in)
    gaps[starts[largest == 0]] = 1.0
    run = np.cumsum(gaps)
    before = np.concatenate([[0.0], run])[starts]
    share = (run - np.repeat(before, gaps_in)) / np.repeat(run[ends - 1] - before, gaps_in)
    is_request = np.ones(len(gaps), bool)
    is_request[ends - 1] = False
    window = np.repeat(windows, gaps_in)[is_request]
    end_s = clients.start_s[window] + clients.window_s
    # A gap too small for a float must not push a request into the next window.
    return window, np.minimum(end_s - clients.window_s * (1 - share[is_request]), np.nextafter(end_s, 0))


def _lengths(
    clients: Clients, window: NDArray[np.intp], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the tokens of every prompt and answer, and how many clients had to borrow theirs."""
    inputs, outputs = np.empty(len(window), np.int64), np.empty(len(window), np.int64)
    weight = {client: float(clients.rate[clients.client == client].sum()) for client in clients.lengths}
    borrowers: set[int] = set()
    used, first, count = np.unique(window, return_index=True, return_counts=True)
    for index, start, many in zip(used, first, count, strict=True):
        client, time = int(clients.client[index]), float(clients.start_s[index])
        if client in clients.lengths:
            parts = [(slice(start, start + many), _at(clients.lengths[client], time))]
        else:
            borrowers.add(client)
            parts = _borrowed(clients, weight, time, start, many, rng)
        for where, fields in parts:
            size = where.stop - where.start
            inputs[where] = np.clip(np.rint(_prompts(fields, size, rng)), 1, MOST_TOKENS)
            outputs[where] = np.clip(np.rint(fields["output_tokens"].draw(rng, size)), 0, MOST_TOKENS)
    return inputs, outputs, len(borrowers)


def _at(windows: Windows, time: float) -> Fields:
    """Return the last window that began by then, or the first if none had."""
    return [fields for place, (start, fields) in enumerate(windows) if start <= time or place == 0][-1]


def _borrowed(
    clients: Clients, weight: dict[int, float], time: float, start: int, many: int, rng: np.random.Generator
) -> list[tuple[slice, Fields]]:
    """Draw each request's lengths from another client; a busier client is more likely."""
    donors, shares = list(weight), np.array(list(weight.values()))
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(len(donors), 1 / len(donors))
    drawn = rng.multinomial(many, shares)
    order = rng.permutation(np.flatnonzero(drawn))
    ends = start + np.cumsum(drawn[order])
    return [
        (slice(int(end - drawn[donor]), int(end)), _at(clients.lengths[donors[donor]], time))
        for donor, end in zip(order, ends, strict=True)
    ]


def _prompts(fields: Fields, size: int, rng: np.random.Generator) -> Floats:
    """Return the tokens of text, and of as many images, sounds and videos as the request has."""
    if "input_tokens" in fields:
        return fields["input_tokens"].draw(rng, size)
    tokens = fields["text_tokens"].draw(rng, size)
    for medium in MEDIA:
        if f"{medium}_count" in fields and f"{medium}_tokens" in fields:
            pieces = np.rint(fields[f"{medium}_count"].draw(rng, size)).astype(np.int64)
            sizes = fields[f"{medium}_tokens"].draw(rng, int(pieces.sum()))
            tokens = tokens + np.bincount(np.repeat(np.arange(size), pieces), weights=sizes, minlength=size)
    return tokens
