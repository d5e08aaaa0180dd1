"""Draws requests from ServeGen's description of a provider's clients: every client is a tenant with its own rhythm.

For each client and window: as many requests as its rate says, with gaps from its Gamma or Weibull, stretched to fill
the window (ServeGen's own way: only the shape of the fit counts, its mean does not match the rate). One gap more than
requests is drawn, so that clients do not all send on the stroke of the next window. Lengths come from the client's
distribution at that time; prompt and answer are drawn independently, as ServeGen stores them. Linear interpolation of
stored quantiles puts the mean of all clients 1.5 % above the stored means.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokonomics.errors import BadInput, option
from tokonomics.memory_budget import check_room
from tokonomics.traffic.servegen_files import Clients, Fields, Windows, read_clients
from tokonomics.traffic.sources import named
from tokonomics.traffic.trace import MOST_TOKENS, Trace, make_trace

MOST_DRAWN = 20_000_000  # requests at a time: 1 GB while they are drawn
BYTES_PER_REQUEST = 52  # measured with 2.4 million
MEDIA = ("image", "audio", "video")
Floats = NDArray[np.float64]
_PART = (
    f"Take a part of the time ({option('start', '10h')} {option('end', '11h')}) "
    f"or of the rate ({option('servegen_scale', 0.01)})."
)


def servegen_trace(
    arrivals_path: Path | str,
    *,
    model: str | None = None,
    start_s: float = 0.0,
    end_s: float | None = None,
    scale: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Requests of one model between two times of the description (all of it by default), at ``scale`` times the rate.

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
    told = f"; {borrowed} of {len(present)} clients with lengths of the others" if borrowed else ""
    return make_trace(
        arrival,
        inputs,
        outputs,
        tenant=tenant.astype(np.int32),
        tenants=tuple(clients.names[client] for client in present),
        source=f"drawn from ServeGen {clients.model}, {start_s:,.0f} to {end:,.0f} s{told}",
    )


def _arrivals(
    clients: Clients, start_s: float, end_s: float, scale: float, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """The window (its index) and the time of every request, by window."""
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
    """Times of that many requests in each window: gaps of its shape, scaled so that they fill it."""
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
    """Tokens of every prompt and answer; and how many clients had to borrow theirs."""
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
    """The last that began by then; the first where none had."""
    begun = [fields for start, fields in windows if start <= time]
    return begun[-1] if begun else windows[0][1]


def _borrowed(
    clients: Clients, weight: dict[int, float], time: float, start: int, many: int, rng: np.random.Generator
) -> list[tuple[slice, Fields]]:
    """Each request like one of another client, the busier the likelier."""
    donors = list(weight)
    shares = np.array([weight[donor] for donor in donors])
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(len(donors), 1 / len(donors))
    drawn = rng.multinomial(many, shares)
    order = rng.permutation(np.flatnonzero(drawn))
    ends = start + np.cumsum(drawn[order])
    return [
        (slice(int(end - drawn[donor]), int(end)), _at(clients.lengths[donors[donor]], time))
        for donor, end in zip(order, ends, strict=True)
    ]


def _prompts(fields: Fields, size: int, rng: np.random.Generator) -> Floats:
    """Tokens of text, and of as many images, sounds and videos as the request has."""
    if "input_tokens" in fields:
        return fields["input_tokens"].draw(rng, size)
    tokens = fields["text_tokens"].draw(rng, size)
    for medium in MEDIA:
        if f"{medium}_count" in fields and f"{medium}_tokens" in fields:
            pieces = np.rint(fields[f"{medium}_count"].draw(rng, size)).astype(np.int64)
            sizes = fields[f"{medium}_tokens"].draw(rng, int(pieces.sum()))
            tokens = tokens + np.bincount(np.repeat(np.arange(size), pieces), weights=sizes, minlength=size)
    return tokens
