"""Return what a meter's windows say of a model's servers today: how many, their price, and the traffic as it recurs.

Requests a second are kept by the hour of the week; by the hour of the day while less than a week was seen, and as one
mean while less than a day was. An hour's rate is that of a server while it was watched, times the servers paid for.
What was counted while nobody watched is left out, and an hour that was mostly not watched is unknown: it has the mean
of the same hour of other days. Lengths fill the engine's histograms, and prompts share as much as the cache found.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from tokonomics.measure.meter.readings import Counted
from tokonomics.measure.meter.windows import ServedWindow
from tokonomics.operate.expect import TERMS, WindowTraffic, lengths_in, shared_beginnings
from tokonomics.operate.learn import TwinWindow
from tokonomics.operate.scoreboard import Scoreboard
from tokonomics.sizing.load import Load, load_of_shape
from tokonomics.traffic.arrivals import hourly_text
from tokonomics.traffic.lengths import Lengths, parse_lengths
from tokonomics.types import Noun
from tokonomics.units import SECONDS_PER_HOUR

_DAY, _WEEK = 24, 168  # hours
_MONDAY = 3 * _DAY  # 1970 began on a Thursday
_LEAST_SEEN = 0.5  # of the paid time of an hour; below it its rate is unknown (our choice, as for a twin's windows)


class MeteredServers(Noun):
    """The servers of a model, their bill and their traffic over a period."""

    model: str  # as the servers name it
    since: float  # unix seconds
    until: float
    servers: PositiveInt  # paid for in the last hour
    targets: tuple[str, ...]
    mean_servers: PositiveFloat
    usd_per_hour: PositiveFloat  # of all of them, in the mean of the period
    server_usd_per_hour: PositiveFloat
    traffic: WindowTraffic  # of all servers together
    by_hour: tuple[NonNegativeFloat, ...] = ()  # requests a second in each hour of a day (UTC) or a week from Monday
    tpot_s: float | None = None  # mean, as counted
    ttft_s: float | None = None
    states: dict[str, str] = Field(default_factory=dict)  # what the newest window says of the set-up

    @property
    def arrivals(self) -> str | None:
        """Return the traffic's curve as ``--arrivals`` takes it; None if it is one rate."""
        return hourly_text(self.by_hour) if self.by_hour else None


def metered_servers(windows: Iterable[ServedWindow]) -> MeteredServers | None:
    """Return the servers that the windows of one model are of; None if no request was counted, or nothing was paid."""
    rows = [window for window in windows if window.sums.seconds > 0]
    requests = sum(window.seen_requests for window in rows)
    if not rows or requests <= 0 or sum(window.sums.usd for window in rows) <= 0:
        return None
    since, until = _begins(rows), max(row.start + row.sums.seconds for row in rows)
    last = [row for row in rows if row.start + row.sums.seconds > until - SECONDS_PER_HOUR]
    newest = max(row.start for row in rows)
    # One that has gone meanwhile, as in a rolling update, is not there now.
    targets = tuple(sorted({row.target for row in last if row.start == newest}))
    total = rows[0].sums
    for row in rows[1:]:
        total += row.sums
    rates = _rates(rows, since, until)
    by_hour = _cycle(rates)
    counted, tpot_count = sum(row.requests for row in rows), sum(row.tpot_count for row in rows)
    seen_s = sum(row.seen_s for row in rows)
    even = requests / seen_s * total.seconds / (until - since) if seen_s > 0 else requests / (until - since)
    return MeteredServers(
        model=rows[-1].model, since=since, until=until, servers=len(targets), targets=targets,
        mean_servers=total.seconds / (until - since),
        usd_per_hour=total.usd / (until - since) * SECONDS_PER_HOUR,
        server_usd_per_hour=total.usd / total.seconds * SECONDS_PER_HOUR,
        traffic=WindowTraffic(
            requests_per_s=sum(by_hour) / len(by_hour) if by_hour else even,
            input_tokens=max(1.0, total.input_total / counted),
            output_tokens=max(1.0, total.output / (total.answered or counted)),
            hit_share=min(1.0, total.input_cached / total.input_total) if total.input_total > 0 else 0.0,
            inputs=_added(rows, Counted.input_buckets), outputs=_added(rows, Counted.output_buckets),
        ),
        by_hour=by_hour,
        tpot_s=sum(row.tpot_s for row in rows) / tpot_count if tpot_count > 0 else None,
        ttft_s=total.ttft_s / total.ttft_count if total.ttft_count > 0 else None,
        states=max(last, key=lambda row: row.start).states,
    )  # fmt: skip


def _begins(windows: Sequence[ServedWindow]) -> float:
    """Return when the first server's paid time begins: it lasts to where its second window begins."""
    first = min(windows, key=lambda window: window.start)
    following = [window.start for window in windows if window.target == first.target and window.start > first.start]
    ends = min(following, default=math.inf)
    return max(first.start, ends - first.sums.seconds) if ends - first.start <= SECONDS_PER_HOUR else first.start


def _rates(windows: Sequence[ServedWindow], since: float, until: float) -> dict[int, float]:
    """Return the requests a second of all servers in each whole hour that was watched, by its number since 1970."""
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for window in windows:
        of_hour = sums[int(window.start // SECONDS_PER_HOUR)]
        for place, value in enumerate((window.seen_requests, window.seen_s, window.sums.seconds)):
            of_hour[place] += value
    first, end = -int(-since // SECONDS_PER_HOUR), int(until // SECONDS_PER_HOUR)
    rates = {}
    for hour in range(first, end):
        requests, seen_s, paid_s = sums[hour]
        if paid_s <= 0:
            rates[hour] = 0.0  # scaled to zero
        elif seen_s >= _LEAST_SEEN * paid_s:
            rates[hour] = requests / seen_s * paid_s / SECONDS_PER_HOUR
    return rates


def _cycle(rates: dict[int, float]) -> tuple[float, ...]:
    """Return the mean rate of each hour of a week, or of a day; empty if less than a day is known."""
    span = max(rates) - min(rates) + 1 if rates else 0
    if span < _DAY:
        return ()
    by_day, mean = _means(rates, _DAY), sum(rates.values()) / len(rates)
    hours = _WEEK if span >= _WEEK else _DAY
    by_hour = _means(rates, hours)
    return tuple(by_hour.get(hour, by_day.get(hour % _DAY, mean)) for hour in range(hours))


def _means(rates: dict[int, float], hours: int) -> dict[int, float]:
    found: dict[int, list[float]] = defaultdict(list)
    for hour, rate in rates.items():
        found[(hour + _MONDAY) % hours].append(rate)
    return {hour: sum(came) / len(came) for hour, came in found.items()}


def _added(windows: Sequence[ServedWindow], kind: Counted) -> dict[float, float]:
    """Return a histogram over all windows."""
    sums: dict[float, float] = defaultdict(float)
    for window in windows:
        for bound, count in window.buckets.get(kind, {}).items():
            sums[bound] += count
    return dict(sums)


def metered_load(found: MeteredServers, context: int, seed: int = 0) -> Load:
    """Return the traffic of these servers as requests: a whole day or week of them, cut to what the model can hold."""
    traffic = found.traffic
    lengths = (
        _lengths(traffic.inputs, traffic.input_tokens, "input", context - 1),
        _lengths(traffic.outputs, traffic.output_tokens, "output", context - 1),
    )
    rate = None if found.arrivals else traffic.requests_per_s
    load = load_of_shape(rate, *lengths, arrivals=found.arrivals, seed=seed).within(context)
    shared = shared_beginnings(load.trace.input_tokens.astype(np.int64), traffic.hit_share)
    return replace(load, trace=replace(load.trace, prefix=shared, source="the meter"))


def _lengths(buckets: dict[float, float], mean: float, side: str, most: int) -> Lengths:
    """Return lengths that fill a histogram; those of chat around the mean if the engine has none."""
    if not buckets:
        return parse_lengths(str(max(1, round(mean))), side)
    text = f"as metered ({side})"
    return Lengths(text, lambda rng, number: np.clip(lengths_in(buckets, mean, number, rng), 1, most), mean=mean)


# --- how sure it is ---------------------------------------------------------------------------------------------------


class TwinErrors(Noun):
    """How far a twin was off, as shares: in the median over its windows, those of each server counting alike."""

    windows: PositiveInt
    speed: NonNegativeFloat
    """Of the mean time per token once the traffic is known; of the first token's where no time per token is counted.
    At a given batch a server's throughput is one over that time, so the number of replicas is as far off."""
    traffic: NonNegativeFloat | None = None  # of the tokens a second forecast before a window began


def twin_errors(boards: Iterable[Scoreboard]) -> TwinErrors | None:
    """Return the errors of the twins of some servers; None if no speed was scored."""
    scored = [board for board in boards if _speed_of(board) is not None]
    windows = sum(board.windows for board in scored)
    if not windows:
        return None
    traffic = [(board.windows, error) for board in scored if (error := board.error_of("tokens_per_s")) is not None]
    return TwinErrors(
        windows=windows,
        speed=sum(board.windows * (_speed_of(board) or 0.0) for board in scored) / windows,
        traffic=sum(number * error for number, error in traffic) / sum(number for number, _ in traffic)
        if traffic else None,
    )  # fmt: skip


def _speed_of(board: Scoreboard) -> float | None:
    found = board.error_of("tpot_s", "given")
    return board.error_of("ttft_s", "given") if found is None else found


def factors_of(newest: Iterable[TwinWindow]) -> dict[str, float]:
    """Return what twins have learned last, as the geometric mean over servers; empty if they have learned nothing."""
    learned = [said.factors for said in newest if said.factors]
    return {
        term: math.exp(sum(math.log(factors.get(term, 1.0)) for factors in learned) / len(learned))
        for term in TERMS
    } if learned else {}  # fmt: skip
